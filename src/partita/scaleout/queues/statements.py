"""The SQL of the queue store.

Every statement finds the queue by account and name, and takes the time as a parameter:
NULL means the clock of the database. Arrays have one element per request of a trip; statements
that lock rows get them sorted, so that trips of several front ends lock in the same order.
"""

# ruff: noqa: S608 - only constants of this module are inserted

from partita.queues.limits import NEVER
from partita.scaleout.schema.locks import JOB_LOCKS, PURGE_QUEUES_JOB

_TIME = "WITH clock AS MATERIALIZED (SELECT coalesce($1::bigint, partita.ticks_1()) AS now)"
_TIME_LAST = _TIME.replace("$1", "$3")
_NOW = "(SELECT now FROM clock)"
_NEW_RECEIPT = f"int8send({_NOW}) || uuid_send(gen_random_uuid())"

# Both conditions are written so that exactly one index serves each statement (schema.messages).
_OF_QUEUE = "queue_id + 0"
_LIFE = f"expires_at - {_NOW}"

# Queues

CREATE_QUEUE = """
INSERT INTO partita.queue (account_id, name, metadata) VALUES ($1, $2, $3)
ON CONFLICT DO NOTHING RETURNING id
"""
FIND_QUEUE = "SELECT id, metadata FROM partita.queue WHERE account_id = $1 AND name = $2"
FIND_POLICIES = "SELECT policies FROM partita.queue WHERE account_id = $1 AND name = $2"
SET_METADATA = (
    "UPDATE partita.queue SET metadata = $3 WHERE account_id = $1 AND name = $2 RETURNING id"
)
SET_POLICIES = SET_METADATA.replace("metadata", "policies")
LIST_QUEUES = """
SELECT name, metadata FROM partita.queue
 WHERE account_id = $1 AND name >= greatest($2::text COLLATE "C", $3) AND name < $2 || chr(1114111)
 ORDER BY name LIMIT $4
"""
DELETE_QUEUE = f"""
{_TIME_LAST}, old AS (DELETE FROM partita.queue WHERE account_id = $1 AND name = $2 RETURNING id)
INSERT INTO partita.dropped_queue SELECT id, {_NOW} FROM old RETURNING id
"""
CLEAR_QUEUE = f"""
{_TIME_LAST}, old AS MATERIALIZED (
  SELECT id FROM partita.queue WHERE account_id = $1 AND name = $2 FOR UPDATE
), new AS (
  UPDATE partita.queue q SET id = nextval('partita.object_id') FROM old
   WHERE q.account_id = $1 AND q.name = $2
)
INSERT INTO partita.dropped_queue SELECT id, {_NOW} FROM old RETURNING id
"""
COUNT = """
SELECT count(*) AS number, max(sequence) AS last FROM (
  SELECT sequence FROM partita.message WHERE queue_id = $1 AND sequence > $2
   ORDER BY sequence LIMIT $3) m
"""

# Messages

PUT = f"""
{_TIME}
INSERT INTO partita.message (queue_id, nonce, inserted_at, expires_at, visible_at, receipt, text)
SELECT q.id, a.nonce, {_NOW}, least({_NOW} + a.lifetime, {NEVER}), {_NOW} + a.hidden,
       {_NEW_RECEIPT}, a.text
  FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[])
       WITH ORDINALITY AS a (account_id, name, nonce, hidden, lifetime, text, position)
  JOIN partita.queue q ON q.account_id = a.account_id AND q.name = a.name
 ORDER BY a.position
RETURNING sequence, nonce, inserted_at, expires_at, visible_at, receipt
"""
"""The nonce tells which request a row belongs to. A lifetime of NULL does not end."""

CLAIM = f"""
{_TIME}, found AS MATERIALIZED (
  SELECT a.position, a.total, a.skipped, q.id
    FROM unnest($2::int[], $3::text[], $4::int[], $5::int[])
         WITH ORDINALITY AS a (account_id, name, total, skipped, position)
    JOIN partita.queue q ON q.account_id = a.account_id AND q.name = a.name
), met AS MATERIALIZED (
  SELECT f.position, f.skipped, m.queue_id, m.sequence, m.expires_at > {_NOW} AS is_alive,
         row_number() OVER (PARTITION BY f.position, m.expires_at > {_NOW}
                            ORDER BY m.visible_at, m.sequence)::int AS number
    FROM found f CROSS JOIN LATERAL (
      SELECT queue_id, sequence, visible_at, expires_at FROM partita.message
       WHERE {_OF_QUEUE} = f.id AND visible_at <= {_NOW} AND ($7 OR {_LIFE} > 0)
       ORDER BY visible_at, sequence LIMIT f.total FOR UPDATE SKIP LOCKED) m
), removed AS (
  DELETE FROM partita.message m USING met
   WHERE m.queue_id = met.queue_id AND m.sequence = met.sequence AND NOT met.is_alive
  RETURNING met.position
), claimed AS (
  UPDATE partita.message m
     SET visible_at = {_NOW} + ($6::bigint[])[met.skipped + met.number],
         dequeue_count = m.dequeue_count + 1, receipt = {_NEW_RECEIPT}
    FROM met
   WHERE m.queue_id = met.queue_id AND m.sequence = met.sequence AND met.is_alive
  RETURNING met.position, met.number, m.sequence, m.nonce, m.text, m.inserted_at, m.expires_at,
            m.visible_at, m.dequeue_count, m.receipt
)
SELECT position, number, sequence, nonce, text, inserted_at, expires_at, visible_at,
       dequeue_count, receipt, NULL::bigint AS removed FROM claimed
UNION ALL
SELECT position, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT count(*) FROM removed r WHERE r.position = found.position) FROM found
"""
"""Claims of one queue are one element: the sum of their limits; $6, after the first `skipped`, is
how long each of its messages is hidden. $7: remove the expired messages that are met, else skip
them. A row with number 0 says that the queue exists."""

REMOVE_MET = f"""
{_TIME}
DELETE FROM partita.message m USING (
  SELECT m.queue_id, m.sequence
    FROM unnest($2::int[], $3::text[]) AS a (account_id, name)
    JOIN partita.queue q ON q.account_id = a.account_id AND q.name = a.name
    CROSS JOIN LATERAL (
      SELECT queue_id, sequence, expires_at FROM partita.message
       WHERE {_OF_QUEUE} = q.id AND visible_at <= {_NOW}
       ORDER BY visible_at, sequence LIMIT $4 FOR UPDATE SKIP LOCKED) m
   WHERE m.expires_at <= {_NOW}) met
 WHERE m.queue_id = met.queue_id AND m.sequence = met.sequence
"""
HIDE = """
UPDATE partita.message m SET visible_at = m.expires_at FROM partita.queue q
 WHERE q.account_id = $1 AND q.name = $2
   AND m.queue_id = q.id AND m.sequence = $3 AND m.receipt = $4
"""
TAKE_BACK = HIDE.replace("visible_at = m.expires_at", "receipt = $5")

PEEK = f"""
{_TIME}
SELECT m.sequence, m.nonce, m.text, m.inserted_at, m.expires_at, m.visible_at, m.dequeue_count,
       m.receipt
  FROM partita.queue q LEFT JOIN LATERAL (
    SELECT * FROM partita.message
     WHERE {_OF_QUEUE} = q.id AND visible_at <= {_NOW} AND {_LIFE} > 0
     ORDER BY visible_at, sequence LIMIT $4) m ON true
 WHERE q.account_id = $2 AND q.name = $3
 ORDER BY m.visible_at, m.sequence
"""

_ASKED = """
  unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[])
  WITH ORDINALITY AS a (account_id, name, sequence, nonce, receipt, position)
"""
DELETE = f"""
{_TIME}
DELETE FROM partita.message m
 USING {_ASKED} JOIN partita.queue q ON q.account_id = a.account_id AND q.name = a.name
 WHERE m.queue_id = q.id AND m.sequence = a.sequence AND m.nonce = a.nonce
   AND m.receipt = a.receipt AND m.{_LIFE} > 0
RETURNING a.position
"""
UPDATE = f"""
{_TIME}
UPDATE partita.message m
   SET visible_at = {_NOW} + a.hidden, receipt = {_NEW_RECEIPT}, text = coalesce(a.text, m.text)
  FROM unnest($2::int[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[],
              $8::bytea[])
       WITH ORDINALITY AS a (account_id, name, sequence, nonce, receipt, hidden, text, position)
  JOIN partita.queue q ON q.account_id = a.account_id AND q.name = a.name
 WHERE m.queue_id = q.id AND m.sequence = a.sequence AND m.nonce = a.nonce
   AND m.receipt = a.receipt AND m.{_LIFE} >= greatest(a.hidden, 1)
RETURNING a.position, m.sequence, m.nonce, m.text, m.inserted_at, m.expires_at, m.visible_at,
          m.dequeue_count, m.receipt
"""
JUDGE = f"""
{_TIME}
SELECT a.position, q.id AS queue_id, m.receipt, m.expires_at, {_NOW} AS now
  FROM {_ASKED}
  LEFT JOIN partita.queue q ON q.account_id = a.account_id AND q.name = a.name
  LEFT JOIN partita.message m ON m.queue_id = q.id AND m.sequence = a.sequence
       AND m.nonce = a.nonce AND m.{_LIFE} > 0
"""
"""What the messages are like that a delete or an update did not find."""

# Space of dropped and expired messages

_TURN = f"turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock({JOB_LOCKS}, {PURGE_QUEUES_JOB}))"
"""Only one front end at a time removes: the others would only meet the same rows."""

REMOVE_EXPIRED = f"""
{_TIME}, {_TURN}, old AS MATERIALIZED (
  SELECT queue_id, sequence FROM partita.message
   WHERE (SELECT * FROM turn) AND expires_at <= {_NOW}
   ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM partita.message m USING old
 WHERE m.queue_id = old.queue_id AND m.sequence = old.sequence
RETURNING 1
"""
REMOVE_DROPPED = f"""
WITH {_TURN}, old AS MATERIALIZED (
  SELECT m.queue_id, m.sequence FROM partita.dropped_queue d CROSS JOIN LATERAL (
    SELECT queue_id, sequence FROM partita.message WHERE queue_id = d.id
     ORDER BY sequence LIMIT $1 FOR UPDATE SKIP LOCKED) m
   WHERE (SELECT * FROM turn) LIMIT $1
)
DELETE FROM partita.message m USING old
 WHERE m.queue_id = old.queue_id AND m.sequence = old.sequence
RETURNING 1
"""
FORGET_DROPPED = f"""
{_TIME}
DELETE FROM partita.dropped_queue d
 WHERE d.dropped_at <= {_NOW} - $2::bigint
   AND NOT EXISTS (SELECT FROM partita.message m WHERE m.queue_id = d.id)
"""
