"""Containers, blobs, their blocks and content."""

TABLES = """
CREATE TABLE partita.container (
  id bigint PRIMARY KEY DEFAULT nextval('partita.object_id'),
  account_id int NOT NULL REFERENCES partita.account (id), name text COLLATE "C" NOT NULL,
  facts bytea NOT NULL, UNIQUE (account_id, name)
);
CREATE TABLE partita.dropped_container (id bigint PRIMARY KEY);
CREATE TABLE partita.blob (
  container bigint NOT NULL, name text COLLATE "C" NOT NULL, snapshot bigint NOT NULL,
  is_committed boolean NOT NULL, content bigint NOT NULL, facts bytea NOT NULL,
  PRIMARY KEY (container, name, snapshot)
);
CREATE INDEX blob_content ON partita.blob (content);
CREATE TABLE partita.block (
  container bigint NOT NULL, name text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL,
  extent bigint NOT NULL, size bigint NOT NULL, staged_at bigint NOT NULL,
  PRIMARY KEY (container, name, id)
);
CREATE INDEX block_extent ON partita.block (extent);
CREATE TABLE partita.piece (
  content bigint NOT NULL, place int NOT NULL, size bigint NOT NULL, start bigint NOT NULL,
  extent bigint NOT NULL, block text COLLATE "C", PRIMARY KEY (content, place)
);
CREATE INDEX piece_extent ON partita.piece (extent);
CREATE TABLE partita.extent (
  id bigint PRIMARY KEY, size bigint NOT NULL, hash bytea, checks bytea NOT NULL, bytes bytea
);
CREATE INDEX extent_hash ON partita.extent (hash) WHERE hash IS NOT NULL;
CREATE TABLE partita.dropped_content (content bigint PRIMARY KEY, origin bigint NOT NULL);
"""

FUNCTIONS = """
"""

PRIVILEGES = {
    "container": "SELECT, INSERT, UPDATE, DELETE",
    "dropped_container": "SELECT, INSERT, DELETE",
    "blob": "SELECT, INSERT, UPDATE, DELETE",
    "block": "SELECT, INSERT, UPDATE, DELETE",
    "piece": "SELECT, INSERT, UPDATE, DELETE",
    "extent": "SELECT, INSERT, UPDATE, DELETE",
    "dropped_content": "SELECT, INSERT, DELETE",
}
"""What the role of front ends may do, by table."""
