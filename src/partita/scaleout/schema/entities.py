"""Entities of all tables, and the keys that change while a range is copied."""

TABLES = """
CREATE TABLE partita.entity (
  tid bigint NOT NULL, pk text COLLATE "C" NOT NULL, rk text COLLATE "C" NOT NULL,
  ticks bigint NOT NULL, marks bigint NOT NULL, short jsonb, document bytea NOT NULL,
  PRIMARY KEY (tid, pk, rk)
) WITH (fillfactor = 90);
CREATE TABLE partita.change (
  range_id int NOT NULL, tx xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  pk text COLLATE "C" NOT NULL, rk text COLLATE "C" NOT NULL
);
CREATE INDEX change_range ON partita.change (range_id);
"""

FUNCTIONS = """
"""

PRIVILEGES = {
    "entity": "SELECT, INSERT, UPDATE, DELETE",
    "change": "SELECT, INSERT, DELETE",
}
"""What the role of front ends may do, by table."""
