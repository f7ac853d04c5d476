"""Queues and their messages."""

TABLES = """
CREATE TABLE partita.queue (
  id bigint PRIMARY KEY DEFAULT nextval('partita.object_id'),
  account_id int NOT NULL REFERENCES partita.account (id), name text COLLATE "C" NOT NULL,
  metadata bytea NOT NULL, policies bytea NOT NULL DEFAULT '[]', UNIQUE (account_id, name)
);
CREATE TABLE partita.dropped_queue (id bigint PRIMARY KEY);
CREATE TABLE partita.message (
  queue_id bigint NOT NULL, sequence bigint NOT NULL, nonce bigint NOT NULL,
  inserted_at bigint NOT NULL, expires_at bigint NOT NULL, visible_at bigint NOT NULL,
  dequeue_count int NOT NULL, receipt bytea NOT NULL, text bytea NOT NULL,
  PRIMARY KEY (queue_id, sequence)
);
CREATE INDEX message_visibility ON partita.message (queue_id, visible_at, sequence);
CREATE INDEX message_expiry ON partita.message (expires_at);
"""

FUNCTIONS = """
"""

PRIVILEGES = {
    "queue": "SELECT, INSERT, UPDATE, DELETE",
    "dropped_queue": "SELECT, INSERT, DELETE",
    "message": "SELECT, INSERT, UPDATE, DELETE",
}
"""What the role of front ends may do, by table."""
