"""The SQL of the queue store.

Every statement takes the time as a parameter: NULL means the clock of the database. A statement
that changes messages first locks the ranges of its queues and looks at them (`enter_1`, in a later
snapshot than its own); it does nothing if one is stale, and says which: rows that begin with a
negative number. It notes the messages of a range that is copied. Arrays have one element per
request of a trip; statements that lock rows get them sorted, so that trips of several front ends
lock in the same order. A statement that only reads returns no row for a range that is stale.
"""

# ruff: noqa: S608 - only constants of this module are inserted

from partita.queues.limits import NEVER
from partita.scaleout.schema.locks import JOB_LOCKS, PURGE_QUEUES_JOB

_TIME = "WITH clock AS MATERIALIZED (SELECT coalesce($1::bigint, partita.ticks_1()) AS now)"
_NOW = "(SELECT now FROM clock)"
_FENCED = f"""
{_TIME}, fence AS MATERIALIZED (
  SELECT stale, is_captured FROM partita.enter_1($2::int[], $3::bigint[]))
"""
_IS_OWNED = "(SELECT stale IS NULL FROM fence)"
_STALE = "SELECT -s AS place FROM fence, unnest(fence.stale) s"
_NEW_RECEIPT = f"int8send({_NOW}) || uuid_send(gen_random_uuid())"

# Both conditions are written so that exactly one index serves each statement (schema.messages).
_OF_QUEUE = "queue_id + 0"
_LIFE = f"expires_at - {_NOW}"


def _captured(name: str, written: str) -> str:
    """Return the part of a statement that notes the messages which another part has written."""
    return f"""{name} AS (
  INSERT INTO partita.change (range_id, pk, rk)
  SELECT r.id, w.sequence::text, '' FROM {written} w JOIN partita.range_own r ON r.tid = w.queue_id
   WHERE (SELECT is_captured FROM fence))"""


# Queues, in the catalog

FIND_QUEUE = "SELECT tid, metadata FROM partita.queue WHERE account_id = $1 AND name = $2"
FIND_POLICIES = "SELECT policies FROM partita.queue WHERE account_id = $1 AND name = $2"
SET_METADATA = (
    "UPDATE partita.queue SET metadata = $3 WHERE account_id = $1 AND name = $2 RETURNING tid"
)
SET_POLICIES = SET_METADATA.replace("metadata", "policies")
LIST_QUEUES = """
SELECT name, metadata FROM partita.queue
 WHERE account_id = $1 AND name >= greatest($2::text COLLATE "C", $3) AND name < $2 || chr(1114111)
 ORDER BY name LIMIT $4
"""

# Reads of one range: its number, its epoch

_IS_RANGE = "r.id = $1::int AND r.epoch = $2::bigint AND r.state = 'o'"
COUNT = f"""
SELECT n.number, n.last FROM partita.range_own r CROSS JOIN LATERAL (
  SELECT count(*) AS number, max(sequence) AS last FROM (
    SELECT sequence FROM partita.message WHERE queue_id = r.tid AND sequence > $3
     ORDER BY sequence LIMIT $4) m) n
 WHERE {_IS_RANGE}
"""
PEEK = f"""
{_TIME.replace("$1", "$3")}
SELECT m.sequence, m.nonce, m.text, m.inserted_at, m.expires_at, m.visible_at, m.dequeue_count,
       m.receipt
  FROM partita.range_own r LEFT JOIN LATERAL (
    SELECT * FROM partita.message
     WHERE {_OF_QUEUE} = r.tid AND visible_at <= {_NOW} AND {_LIFE} > 0
     ORDER BY visible_at, sequence LIMIT $4) m ON true
 WHERE {_IS_RANGE}
 ORDER BY m.visible_at, m.sequence
"""

# Changes of messages: the time, the ranges, their epochs

PUT = f"""
{_FENCED}, added AS (
  INSERT INTO partita.message (queue_id, nonce, inserted_at, expires_at, visible_at, receipt, text)
  SELECT a.queue_id, a.nonce, {_NOW}, least({_NOW} + a.lifetime, {NEVER}), {_NOW} + a.hidden,
         {_NEW_RECEIPT}, a.text
    FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[])
         WITH ORDINALITY AS a (queue_id, nonce, hidden, lifetime, text, position)
   WHERE {_IS_OWNED} ORDER BY a.position
  RETURNING queue_id, sequence, nonce, inserted_at, expires_at, visible_at, receipt
), {_captured("noted", "added")}
SELECT 0 AS place, sequence, nonce, inserted_at, expires_at, visible_at, receipt FROM added
UNION ALL
SELECT place, NULL, NULL, NULL, NULL, NULL, NULL FROM ({_STALE}) s
"""
"""The nonce tells which request a row belongs to. A lifetime of NULL does not end."""

CLAIM = f"""
{_FENCED}, found AS MATERIALIZED (
  SELECT a.position, a.total, a.skipped, a.queue_id AS id
    FROM unnest($4::bigint[], $5::int[], $6::int[])
         WITH ORDINALITY AS a (queue_id, total, skipped, position)
   WHERE {_IS_OWNED}
), met AS MATERIALIZED (
  SELECT f.position, f.skipped, m.queue_id, m.sequence, m.expires_at > {_NOW} AS is_alive,
         row_number() OVER (PARTITION BY f.position, m.expires_at > {_NOW}
                            ORDER BY m.visible_at, m.sequence)::int AS number
    FROM found f CROSS JOIN LATERAL (
      SELECT queue_id, sequence, visible_at, expires_at FROM partita.message
       WHERE {_OF_QUEUE} = f.id AND visible_at <= {_NOW} AND ($8 OR {_LIFE} > 0)
       ORDER BY visible_at, sequence LIMIT f.total FOR UPDATE SKIP LOCKED) m
), removed AS (
  DELETE FROM partita.message m USING met
   WHERE m.queue_id = met.queue_id AND m.sequence = met.sequence AND NOT met.is_alive
  RETURNING met.position
), claimed AS (
  UPDATE partita.message m
     SET visible_at = {_NOW} + ($7::bigint[])[met.skipped + met.number],
         dequeue_count = m.dequeue_count + 1, receipt = {_NEW_RECEIPT}
    FROM met
   WHERE m.queue_id = met.queue_id AND m.sequence = met.sequence AND met.is_alive
  RETURNING met.position, met.number, m.sequence, m.nonce, m.text, m.inserted_at, m.expires_at,
            m.visible_at, m.dequeue_count, m.receipt
), {_captured("noted", "met")}
SELECT position, number, sequence, nonce, text, inserted_at, expires_at, visible_at,
       dequeue_count, receipt, NULL::bigint AS removed FROM claimed
UNION ALL
SELECT position, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT count(*) FROM removed r WHERE r.position = found.position) FROM found
UNION ALL
SELECT place, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM ({_STALE}) s
"""
"""Claims of one queue are one element: the sum of their limits; $7, after the first `skipped`, is
how long each of its messages is hidden. $8: remove the expired messages that are met, else skip
them. A row with number 0 has how many were removed."""

REMOVE_MET = f"""
{_FENCED}, met AS MATERIALIZED (
  SELECT m.queue_id, m.sequence
    FROM unnest($4::bigint[]) AS a (queue_id)
    CROSS JOIN LATERAL (
      SELECT queue_id, sequence, expires_at FROM partita.message
       WHERE {_OF_QUEUE} = a.queue_id AND visible_at <= {_NOW}
       ORDER BY visible_at, sequence LIMIT $5 FOR UPDATE SKIP LOCKED) m
   WHERE {_IS_OWNED} AND m.expires_at <= {_NOW}
), {_captured("noted", "met")}
DELETE FROM partita.message m USING met
 WHERE m.queue_id = met.queue_id AND m.sequence = met.sequence
"""
HIDE = f"""
{_FENCED}, hidden AS (
  UPDATE partita.message m SET visible_at = m.expires_at
   WHERE {_IS_OWNED} AND m.queue_id = $4 AND m.sequence = $5 AND m.receipt = $6
  RETURNING m.queue_id, m.sequence
), {_captured("noted", "hidden")}
SELECT FROM hidden
"""
TAKE_BACK = HIDE.replace("visible_at = m.expires_at", "receipt = $7")

_ASKED = """
  unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[])
  WITH ORDINALITY AS a (queue_id, sequence, nonce, receipt, position)
"""
DELETE = f"""
{_FENCED}, gone AS (
  DELETE FROM partita.message m USING {_ASKED}
   WHERE {_IS_OWNED} AND m.queue_id = a.queue_id AND m.sequence = a.sequence AND m.nonce = a.nonce
     AND m.receipt = a.receipt AND m.{_LIFE} > 0
  RETURNING a.position, m.queue_id, m.sequence
), {_captured("noted", "gone")}
SELECT position FROM gone UNION ALL {_STALE}
"""
UPDATE = f"""
{_FENCED}, updated AS (
  UPDATE partita.message m
     SET visible_at = {_NOW} + a.hidden, receipt = {_NEW_RECEIPT}, text = coalesce(a.text, m.text)
    FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bytea[])
         WITH ORDINALITY AS a (queue_id, sequence, nonce, receipt, hidden, text, position)
   WHERE {_IS_OWNED} AND m.queue_id = a.queue_id AND m.sequence = a.sequence AND m.nonce = a.nonce
     AND m.receipt = a.receipt AND m.{_LIFE} >= greatest(a.hidden, 1)
  RETURNING a.position, m.queue_id, m.sequence, m.nonce, m.text, m.inserted_at, m.expires_at,
            m.visible_at, m.dequeue_count, m.receipt
), {_captured("noted", "updated")}
SELECT position, sequence, nonce, text, inserted_at, expires_at, visible_at, dequeue_count, receipt
  FROM updated
UNION ALL
SELECT place, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM ({_STALE}) s
"""
JUDGE = f"""
{_TIME}
SELECT a.position, m.receipt, m.expires_at, {_NOW} AS now
  FROM unnest($2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
       WITH ORDINALITY AS a (range_id, epoch, queue_id, sequence, nonce, position)
  JOIN partita.range_own r ON r.id = a.range_id AND r.epoch = a.epoch AND r.state = 'o'
  LEFT JOIN partita.message m
    ON (m.queue_id, m.sequence) >= (a.queue_id, a.sequence)
       AND (m.queue_id, m.sequence) <= (a.queue_id, a.sequence)
       AND m.nonce = a.nonce AND m.{_LIFE} > 0
"""
"""What the messages are like that a delete or an update did not find; no row: a stale range.

Rows are compared, which only the primary key can serve: the index of visibility has the sequence,
too, and looks as good to the planner while the table is empty."""

# Space of dropped and expired messages

_TURN = f"turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock({JOB_LOCKS}, {PURGE_QUEUES_JOB}))"
"""Only one front end at a time removes: the others would only meet the same rows."""

REMOVE_EXPIRED = f"""
{_TIME}, {_TURN}, old AS MATERIALIZED (
  SELECT m.queue_id, m.sequence, r.id, r.epoch
    FROM partita.message m JOIN partita.range_own r ON r.tid = m.queue_id
   WHERE (SELECT * FROM turn) AND m.expires_at <= {_NOW} AND r.state = 'o' AND NOT r.capture
   ORDER BY m.expires_at LIMIT $2 FOR UPDATE OF m SKIP LOCKED
), swept AS MATERIALIZED (
  SELECT o.id FROM (SELECT DISTINCT id, epoch FROM old) o WHERE partita.may_sweep_1(o.id, o.epoch)
)
DELETE FROM partita.message m USING old JOIN swept ON swept.id = old.id
 WHERE m.queue_id = old.queue_id AND m.sequence = old.sequence
RETURNING 1
"""
"""Ranges that are copied are left alone: what is removed there would have to be noted."""
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
