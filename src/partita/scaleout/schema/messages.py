"""Queues and their messages.

    queue          account_id, name, tid, …      in the catalog; a cleared queue gets a new number
    message        queue_id, sequence, nonce, …  on the shard of the queue's range, by its number;
                                                 in order of visibility by an index
    dropped_queue  id                            whose messages are still being removed here

Nothing counts messages: a row that every put and delete updates would make them wait for each
other. Every statement names the range of its queue (`schema.kinds`), so that no front end can use
an old number, or a shard that does not have the queue any more.
"""

TABLES = """
CREATE SEQUENCE partita.message_sequence;
CREATE TABLE partita.queue (
  account_id int NOT NULL REFERENCES partita.account (id), name text COLLATE "C" NOT NULL,
  id bigint NOT NULL DEFAULT nextval('partita.object_id'),
  metadata bytea NOT NULL, policies bytea NOT NULL DEFAULT '[]',
  PRIMARY KEY (account_id, name)
);
CREATE TABLE partita.dropped_queue (id bigint PRIMARY KEY, dropped_at bigint NOT NULL);
CREATE TABLE partita.message (
  queue_id bigint NOT NULL,
  sequence bigint NOT NULL DEFAULT nextval('partita.message_sequence'), nonce bigint NOT NULL,
  inserted_at bigint NOT NULL, expires_at bigint NOT NULL, visible_at bigint NOT NULL,
  dequeue_count int NOT NULL DEFAULT 0, receipt bytea NOT NULL, text bytea NOT NULL,
  PRIMARY KEY (queue_id, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000);
CREATE INDEX message_visibility ON partita.message ((queue_id + 0), visible_at, sequence);
CREATE INDEX message_expiry ON partita.message (expires_at);
"""
"""Each claim leaves a dead row behind at the start of the index, so vacuum runs early.

The index of visibility is on an expression, so that the planner can use it only where a statement
asks for it: after a queue was empty, its statistics make every index look as good as the others.
"""

FUNCTIONS = ""

PRIVILEGES = {
    "queue": "SELECT, INSERT, UPDATE, DELETE",
    "dropped_queue": "SELECT, INSERT, DELETE",
    "message": "SELECT, INSERT, UPDATE, DELETE",
}
"""What the role of front ends may do, by table."""
