"""How ranges are changed: the record of a job, and the steps that one statement must take as one.

    on the catalog   start_job_1 records a job; change_ranges_1 is its commit point
    on a shard       replace_own_1 splits and merges; import_range_1, capture_range_1,
                     fence_range_1, own_imported_1, reopen_range_1 and leave_range_1 move

Functions that change a row of `range_own` first take the exclusive lock of the range: then no
transaction that has looked at the row before still writes.
"""

from partita.scaleout.schema.locks import (
    CONTROL_JOB,
    JOB_LOCKS,
    LOCK_NUMBERS,
    RANGE_LOCKS,
    RECORDED_JOB_LOCKS,
)

TABLES = ""
TAKEN_OVER = "PT003"
"""The SQLSTATE of a step of a job that another process has ended or changed."""

_LOCK = f"PERFORM pg_advisory_xact_lock({RANGE_LOCKS}, of_id)"
_TAKE_OVER = f"RAISE SQLSTATE '{TAKEN_OVER}' USING MESSAGE = 'the job was taken over'"

FUNCTIONS = f"""
-- Record a job, and take its lock for this session, unless another job (`blocker`) changes one of
-- its ranges or, if both are moves, has one of its shards. Record nothing, and return NULL twice,
-- if a range is not as the job says: another job has changed it since, or its table was dropped.
CREATE OR REPLACE FUNCTION partita.start_job_1(
  of_kind text, first_step text, of_facts jsonb, OUT job bigint, OUT blocker bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock({JOB_LOCKS}, {CONTROL_JOB});
  SELECT j.id INTO blocker FROM partita.job j
   WHERE EXISTS (SELECT FROM jsonb_array_elements(j.facts->'ranges') a
                   JOIN jsonb_array_elements(of_facts->'ranges') b ON a.value = b.value)
      OR j.kind = 'move' AND of_kind = 'move' AND EXISTS (
        SELECT FROM jsonb_array_elements(j.facts->'shards') a
          JOIN jsonb_array_elements(of_facts->'shards') b ON a.value = b.value)
   ORDER BY j.id LIMIT 1;
  -- A statement after that one: no job can change the ranges between this snapshot and our record.
  IF blocker IS NULL AND NOT EXISTS (
      SELECT FROM jsonb_array_elements(of_facts->'ranges') WITH ORDINALITY AS q (id, place)
       WHERE NOT EXISTS (
         SELECT FROM partita.range r
          WHERE r.id = q.id::int AND r.state = 'o' AND r.shard = (of_facts->'shards'->0)::int
            AND r.epoch = coalesce(
                  of_facts->'epochs'->(q.place::int - 1), of_facts->'epoch')::bigint)) THEN
    INSERT INTO partita.job (kind, step, facts, started_at, changed_at)
      VALUES (of_kind, first_step, of_facts, partita.ticks_1(), partita.ticks_1())
      RETURNING id INTO job;
    -- Of the session: nothing else may take the job for one that was left.
    PERFORM pg_advisory_lock({RECORDED_JOB_LOCKS}, (job % {LOCK_NUMBERS})::int);
  END IF;
END
$$;

-- Go on to the next step of a job whose version is known; return its version.
CREATE OR REPLACE FUNCTION partita.advance_job_1(of_job bigint, of_version bigint, next_step text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE partita.job j SET step = next_step, version = of_version + 1, error = NULL,
    changed_at = partita.ticks_1() WHERE j.id = of_job AND j.version = of_version;
  IF NOT FOUND THEN {_TAKE_OVER}; END IF;
  RETURN of_version + 1;
END
$$;

-- The commit point of a job: replace ranges of a table or queue by others, and go on to the next
-- step. Return the version of the job; NULL, and change nothing, if the table or a range is gone.
CREATE OR REPLACE FUNCTION partita.change_ranges_1(
  of_job bigint, of_version bigint, next_step text, of_tid bigint, old_ids int[], new_ids int[],
  los text[], his text[], epochs bigint[], on_shard int)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  advanced bigint;
  of_kind "char" := partita.lock_object_1(of_tid);
BEGIN
  IF of_kind IS NULL THEN RETURN NULL; END IF;
  IF (SELECT count(*) FROM partita.range r
       WHERE r.id = ANY (old_ids) AND r.tid = of_tid AND r.state = 'o') < cardinality(old_ids) THEN
    RETURN NULL;
  END IF;
  advanced := partita.advance_job_1(of_job, of_version, next_step);
  DELETE FROM partita.range r WHERE r.id = ANY (old_ids);
  INSERT INTO partita.range (id, tid, lo, hi, shard, epoch, changed_at, kind)
    OVERRIDING SYSTEM VALUE
    SELECT q.id, of_tid, q.lo, q.hi, on_shard, q.epoch, partita.ticks_1(), of_kind
      FROM unnest(new_ids, los, his, epochs) AS q (id, lo, hi, epoch);
  PERFORM partita.object_changed_1(of_tid, on_shard);
  RETURN advanced;
END
$$;

-- Take numbers for new ranges.
CREATE OR REPLACE FUNCTION partita.new_ranges_1(how_many int)
RETURNS TABLE (range_id int, range_epoch bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT nextval(pg_get_serial_sequence('partita.range', 'id'))::int, nextval('partita.epoch')
    FROM generate_series(1, how_many)
$$;

-- Replace ranges by others that have the same keys. Return whether they are, by now.
CREATE OR REPLACE FUNCTION partita.replace_own_1(
  of_tid bigint, old_ids int[], old_epochs bigint[], new_ids int[], los text[], his text[],
  epochs bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock({RANGE_LOCKS}, o.id)
    FROM (SELECT u.id FROM unnest(old_ids) u (id) ORDER BY u.id) o;
  IF (SELECT count(*) FROM partita.range_own r
        JOIN unnest(old_ids, old_epochs) AS q (id, epoch) ON r.id = q.id AND r.epoch = q.epoch
       WHERE r.state = 'o') < cardinality(old_ids) THEN
    RETURN (SELECT count(*) FROM partita.range_own r WHERE r.id = ANY (new_ids))
      = cardinality(new_ids);
  END IF;
  DELETE FROM partita.range_own r WHERE r.id = ANY (old_ids);
  INSERT INTO partita.range_own (id, tid, lo, hi, epoch)
    SELECT q.id, of_tid, q.lo, q.hi, q.epoch
      FROM unnest(new_ids, los, his, epochs) AS q (id, lo, hi, epoch);
  RETURN true;
END
$$;

-- On the target: note that a range arrives. Return false if the shard has some of its keys already.
CREATE OR REPLACE FUNCTION partita.import_range_2(
  of_id int, of_tid bigint, from_lo text, to_hi text, of_epoch bigint, of_kind "char")
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM partita.range_own r
              WHERE r.tid = of_tid AND (to_hi IS NULL OR r.lo < to_hi)
                AND (r.hi IS NULL OR r.hi > from_lo)) THEN
    RETURN false;
  END IF;
  INSERT INTO partita.range_own (id, tid, lo, hi, epoch, state, kind)
    VALUES (of_id, of_tid, from_lo, to_hi, of_epoch, 'i', of_kind);
  RETURN true;
END
$$;

-- On the source: from here on, note each key that is written. Return false if it is not the owner.
-- Front ends of version 1.5 find the queue no more, once none of their statements is at work.
CREATE OR REPLACE FUNCTION partita.capture_range_1(of_id int, of_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM partita.range_own r JOIN partita.queue q ON q.tid = r.tid
              WHERE r.id = of_id AND r.kind = 'q' AND q.id IS NOT NULL) THEN
    LOCK TABLE partita.queue IN ACCESS EXCLUSIVE MODE;
    UPDATE partita.queue q SET id = NULL FROM partita.range_own r
     WHERE r.id = of_id AND q.tid = r.tid;
  END IF;
  {_LOCK};
  DELETE FROM partita.change c WHERE c.range_id = of_id;
  UPDATE partita.range_own r SET capture = true
   WHERE r.id = of_id AND r.epoch = of_epoch AND r.state = 'o';
  RETURN FOUND;
END
$$;

-- On the source: refuse all transactions with the range, once none writes to it any more.
CREATE OR REPLACE FUNCTION partita.fence_range_1(of_id int, of_epoch bigint, next_epoch bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  {_LOCK};
  UPDATE partita.range_own r SET state = 'f', epoch = next_epoch
   WHERE r.id = of_id AND r.epoch = of_epoch AND r.state = 'o';
  RETURN FOUND;
END
$$;

-- On the target, after the commit point: serve the range. Return false if its table was dropped.
CREATE OR REPLACE FUNCTION partita.own_imported_1(of_id int, of_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  {_LOCK};
  UPDATE partita.range_own r SET state = 'o'
   WHERE r.id = of_id AND r.epoch = of_epoch AND r.state IN ('i', 'o');
  RETURN FOUND;
END
$$;

-- On the source, if a move is taken back: serve the range again, with an epoch that is not known to
-- any transaction. Return false if its table was dropped.
CREATE OR REPLACE FUNCTION partita.reopen_range_1(of_id int, next_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  {_LOCK};
  DELETE FROM partita.change c WHERE c.range_id = of_id;
  UPDATE partita.range_own r SET state = 'o', epoch = next_epoch, capture = false
   WHERE r.id = of_id AND r.state IN ('o', 'f');
  RETURN FOUND;
END
$$;

-- Forget a range: on the source after the commit point, on the target if the move is taken back.
CREATE OR REPLACE FUNCTION partita.leave_range_1(of_id int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  {_LOCK};
  DELETE FROM partita.change c WHERE c.range_id = of_id;
  DELETE FROM partita.range_own r WHERE r.id = of_id AND r.state IN ('f', 'i');
END
$$;

-- Delete the next entities of an interval of keys that this shard does not serve, from a key on;
-- return the last of them. Return no row if nothing is left.
CREATE OR REPLACE FUNCTION partita.erase_keys_1(
  of_tid bigint, from_lo text, to_hi text, from_pk text, from_rk text, entities_max int)
RETURNS TABLE (last_pk text, last_rk text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM partita.range_own r
              WHERE r.tid = of_tid AND r.state <> 'i' AND (to_hi IS NULL OR r.lo < to_hi)
                AND (r.hi IS NULL OR r.hi > from_lo)) THEN
    RAISE 'this shard serves some of these keys';
  END IF;
  SELECT k.pk, k.rk INTO last_pk, last_rk
    FROM (SELECT e.pk, e.rk FROM partita.entity e
           WHERE e.tid = of_tid AND e.pk >= from_lo AND (to_hi IS NULL OR e.pk < to_hi)
             AND (e.pk, e.rk) >= (from_pk, from_rk)
           ORDER BY e.pk, e.rk LIMIT entities_max) k
   ORDER BY k.pk DESC, k.rk DESC LIMIT 1;
  IF last_pk IS NULL THEN RETURN; END IF;
  DELETE FROM partita.entity e
   WHERE e.tid = of_tid AND e.pk >= from_lo AND (e.pk, e.rk) >= (from_pk, from_rk)
     AND (e.pk, e.rk) <= (last_pk, last_rk);
  RETURN NEXT;
END
$$;

-- Delete the next messages of a queue that this shard does not serve; return the last of them.
-- Return no row if nothing is left. The bounds are those of the queue's only range.
CREATE OR REPLACE FUNCTION partita.erase_messages_1(
  of_tid bigint, from_lo text, to_hi text, from_sequence bigint, messages_max int)
RETURNS TABLE (last_sequence bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM partita.range_own r WHERE r.tid = of_tid AND r.state <> 'i') THEN
    RAISE 'this shard serves these messages';
  END IF;
  SELECT max(k.sequence) INTO last_sequence
    FROM (SELECT m.sequence FROM partita.message m
           WHERE m.queue_id = of_tid AND m.sequence >= from_sequence
           ORDER BY m.sequence LIMIT messages_max) k;
  IF last_sequence IS NULL THEN RETURN; END IF;
  DELETE FROM partita.message m
   WHERE m.queue_id = of_tid AND m.sequence BETWEEN from_sequence AND last_sequence;
  RETURN NEXT;
END
$$;

-- On the target of a queue: give its later messages later numbers than those that it has.
CREATE OR REPLACE FUNCTION partita.pass_messages_1(of_tid bigint, leap bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  last bigint := (SELECT max(m.sequence) FROM partita.message m WHERE m.queue_id = of_tid);
BEGIN
  -- Others take numbers meanwhile: the leap keeps theirs from being given away again.
  IF nextval('partita.message_sequence') <= last THEN
    PERFORM setval('partita.message_sequence', last + leap);
  END IF;
END
$$;

-- On a shard, to reconcile it: serve these ranges of a table or queue and no other ones.
CREATE OR REPLACE FUNCTION partita.set_own_2(
  of_tid bigint, of_kind "char", ids int[], los text[], his text[], epochs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock({RANGE_LOCKS}, r.id)
    FROM (SELECT o.id FROM partita.range_own o WHERE o.tid = of_tid ORDER BY o.id) r;
  DELETE FROM partita.change c USING partita.range_own r WHERE r.tid = of_tid AND c.range_id = r.id;
  DELETE FROM partita.range_own r WHERE r.tid = of_tid;
  INSERT INTO partita.range_own (id, tid, lo, hi, epoch, kind)
    SELECT q.id, of_tid, q.lo, q.hi, q.epoch, of_kind
      FROM unnest(ids, los, his, epochs) AS q (id, lo, hi, epoch);
END
$$;

-- In the catalog, to reconcile it: a table or queue has these ranges. Return false if it does not
-- exist.
CREATE OR REPLACE FUNCTION partita.set_ranges_1(
  of_tid bigint, ids int[], los text[], his text[], epochs bigint[], shards int[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  of_kind "char" := partita.lock_object_1(of_tid);
BEGIN
  IF of_kind IS NULL THEN RETURN false; END IF;
  DELETE FROM partita.range r WHERE r.tid = of_tid;
  INSERT INTO partita.range (id, tid, lo, hi, epoch, shard, changed_at, kind)
    OVERRIDING SYSTEM VALUE
    SELECT q.id, of_tid, q.lo, q.hi, q.epoch, q.shard, partita.ticks_1(), of_kind
      FROM unnest(ids, los, his, epochs, shards) AS q (id, lo, hi, epoch, shard);
  PERFORM partita.object_changed_1(of_tid, shards[1]);
  RETURN true;
END
$$;

-- In the catalog, after it was restored: never use these numbers again.
CREATE OR REPLACE FUNCTION partita.pass_numbers_1(last_range int, last_epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ranges regclass := pg_get_serial_sequence('partita.range', 'id');
BEGIN
  IF nextval(ranges) <= last_range THEN PERFORM setval(ranges, last_range); END IF;
  IF nextval('partita.epoch') <= last_epoch THEN
    PERFORM setval('partita.epoch', last_epoch);
  END IF;
END
$$;

-- On a database that becomes a shard: take its number and identity. Return false if it is in use.
CREATE OR REPLACE FUNCTION partita.become_shard_1(of_id int, of_identity uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE partita.shard_own o SET id = of_id, identity = of_identity
   WHERE o.identity = of_identity OR o.id = 0
     AND NOT EXISTS (SELECT FROM partita.account) AND NOT EXISTS (SELECT FROM partita.range_own)
     AND NOT EXISTS (SELECT FROM partita.entity)
     AND NOT EXISTS (SELECT FROM partita.shard s WHERE s.id <> 0);
  RETURN FOUND;
END
$$;

-- In the catalog: list a shard, unless it is listed already.
CREATE OR REPLACE FUNCTION partita.list_shard_1(
  of_id int, of_name text, of_url text, of_identity uuid) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO partita.shard (id, name, url, identity, version)
    SELECT of_id, of_name, of_url, of_identity, partita.catalog_changed_1()
     WHERE NOT EXISTS (SELECT FROM partita.shard s WHERE s.identity = of_identity)
$$;

-- In the catalog: give no new ranges to a shard. Return false if it does not exist.
CREATE OR REPLACE FUNCTION partita.drain_shard_1(of_id int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE partita.shard s SET state = 'd', version = partita.catalog_changed_1()
   WHERE s.id = of_id AND s.state <> 'd';
  RETURN EXISTS (SELECT FROM partita.shard s WHERE s.id = of_id);
END
$$;

-- In the catalog: forget a shard that is draining. Return how many ranges and jobs it still has;
-- it is forgotten if it has none.
CREATE OR REPLACE FUNCTION partita.remove_shard_1(of_id int, OUT ranges bigint, OUT jobs bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock({JOB_LOCKS}, {CONTROL_JOB});
  SELECT count(*) INTO ranges FROM partita.range r WHERE r.shard = of_id;
  SELECT count(*) INTO jobs FROM partita.job j WHERE j.facts->'shards' @> to_jsonb(of_id);
  IF ranges + jobs = 0 THEN
    DELETE FROM partita.shard s WHERE s.id = of_id AND s.state = 'd';
    PERFORM partita.catalog_changed_1();
  END IF;
END
$$;
"""  # noqa: S608 - our own numbers and statements

PRIVILEGES: dict[str, str] = {}
"""Jobs are run by the owner of the schema, so that front ends get no more privileges."""
