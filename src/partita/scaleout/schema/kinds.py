"""What has ranges: tables, and queues since version 1.6. The functions that serve both kinds.

    range.kind, range_own.kind   t the entities of a table, q the messages of a queue
    queue.tid                    the number of the queue, of its range and of its messages
    queue.id                     the same while the queue is in the catalog's database, else NULL

A queue has one range. A cleared queue gets another number, and so another range.

Front ends of version 1.5 and earlier know nothing of ranges of queues: they find a queue by
`queue.id`, in the catalog's database only. A trigger gives the queues that they create, clear and
drop their ranges. Before a queue leaves the catalog's database, its `id` becomes NULL once no
statement reads the table: then they find no number, and can neither add a message nor receive one.
"""

from partita.scaleout.schema.locks import RANGE_LOCKS

KIND_TABLES = """
ALTER TABLE partita.range ADD kind "char" NOT NULL DEFAULT 't';
ALTER TABLE partita.range_own ADD kind "char" NOT NULL DEFAULT 't';
ALTER TABLE partita.queue ALTER id DROP NOT NULL;
ALTER TABLE partita.queue ADD tid bigint;
ALTER TABLE partita.queue ADD version bigint NOT NULL DEFAULT 0;
ALTER TABLE partita.dropped_queue ADD version bigint NOT NULL DEFAULT 0;
UPDATE partita.queue SET tid = id, version = (SELECT v.version FROM partita.catalog_version v);
CREATE UNIQUE INDEX queue_tid ON partita.queue (tid);
CREATE INDEX queue_version ON partita.queue (version);
WITH opened AS (
  INSERT INTO partita.range (tid, lo, epoch, kind)
    SELECT q.tid, '', nextval('partita.epoch'), 'q' FROM partita.queue q RETURNING id, tid, epoch)
INSERT INTO partita.range_own (id, tid, lo, epoch, kind) SELECT id, tid, '', epoch, 'q' FROM opened;
"""
"""Queues that exist are on the shard of the catalog."""
TABLES = KIND_TABLES

_LOCK_ALL = f"""PERFORM pg_advisory_xact_lock({RANGE_LOCKS}, r.id)
    FROM (SELECT o.id FROM partita.range_own o WHERE o.tid = of_tid ORDER BY o.id) r"""  # noqa: S608

FUNCTIONS = f"""
-- Lock ranges for a transaction that writes, then look at them, in a later snapshot. Return the
-- places of those that this shard does not serve with that epoch (NULL: none), and whether keys
-- must be noted in `change`. The caller writes only if no range is stale.
CREATE OR REPLACE FUNCTION partita.enter_1(
  range_ids int[], epochs bigint[], OUT stale int[], OUT is_captured boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Try, not wait: a change of one range must not hold up the others.
  FOR place IN 1 .. cardinality(range_ids) LOOP
    IF NOT pg_try_advisory_xact_lock_shared({RANGE_LOCKS}, range_ids[place]) THEN
      stale := ARRAY[place];
      RETURN;
    END IF;
  END LOOP;
  SELECT array_agg(q.place::int) FILTER (WHERE r.id IS NULL), coalesce(bool_or(r.capture), false)
    INTO stale, is_captured
    FROM unnest(range_ids, epochs) WITH ORDINALITY AS q (id, epoch, place)
    LEFT JOIN partita.range_own r ON r.id = q.id AND r.epoch = q.epoch AND r.state = 'o';
END
$$;

-- Lock a range to remove expired rows from it. Return false if it is copied or not served here.
CREATE OR REPLACE FUNCTION partita.may_sweep_1(range_id int, range_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  entered record;
BEGIN
  SELECT e.stale, e.is_captured INTO entered
    FROM partita.enter_1(ARRAY[range_id], ARRAY[range_epoch]) e;
  RETURN entered.stale IS NULL AND NOT entered.is_captured;
END
$$;

-- Give a range of a kind to this shard, for example the first range of a new queue.
CREATE OR REPLACE FUNCTION partita.own_range_2(
  range_id int, of_tid bigint, from_lo text, to_hi text, range_epoch bigint, of_kind "char")
RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO partita.range_own (id, tid, lo, hi, epoch, kind)
    VALUES (range_id, of_tid, from_lo, to_hi, range_epoch, of_kind) ON CONFLICT (id) DO NOTHING
$$;

-- Add a queue whose range a shard owns already; return no row if the name is taken.
CREATE OR REPLACE FUNCTION partita.add_queue_1(
  of_account int, as_name text, as_metadata bytea, of_tid bigint, range_id int, range_epoch bigint,
  on_shard int)
RETURNS TABLE (at_version bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO partita.queue (account_id, name, id, tid, metadata)
    VALUES (of_account, as_name, CASE WHEN on_shard = 0 THEN of_tid END, of_tid, as_metadata)
    ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN; END IF;
  INSERT INTO partita.range (id, tid, lo, shard, epoch, kind) OVERRIDING SYSTEM VALUE
    VALUES (range_id, of_tid, '', on_shard, range_epoch, 'q');
  at_version := partita.catalog_changed_1();
  UPDATE partita.queue SET version = at_version WHERE tid = of_tid;
  RETURN NEXT;
END
$$;

-- In the catalog: remove the ranges of something that was dropped. Those on other shards stay,
-- without an owner (state d), until these have closed them; return their shards, NULL if there are
-- none. `at` is the time of the drop.
CREATE OR REPLACE FUNCTION partita.drop_ranges_1(of_tid bigint, of_kind "char", at bigint)
RETURNS TABLE (at_version bigint, shard int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  changed bigint;
BEGIN
  {_LOCK_ALL};
  DELETE FROM partita.range_own WHERE tid = of_tid;
  DELETE FROM partita.range WHERE tid = of_tid AND shard = 0;
  UPDATE partita.range SET state = 'd' WHERE tid = of_tid;
  changed := partita.catalog_changed_1();
  IF of_kind = 'q' THEN
    INSERT INTO partita.dropped_queue (id, dropped_at, version) VALUES (of_tid, at, changed);
  ELSE
    INSERT INTO partita.dropped_table (tid, version) VALUES (of_tid, changed);
  END IF;
  RETURN QUERY SELECT changed, s.shard
    FROM (SELECT 1) one LEFT JOIN (
      SELECT DISTINCT r.shard FROM partita.range r WHERE r.tid = of_tid) s ON true;
END
$$;

-- Remove a table from the catalog, and its ranges. Return no row if it does not exist.
CREATE OR REPLACE FUNCTION partita.drop_table_2(of_account int, of_folded text)
RETURNS TABLE (tid bigint, at_version bigint, shard int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  dropped bigint;
BEGIN
  DELETE FROM partita.tables t WHERE t.account_id = of_account AND t.folded = of_folded
    RETURNING t.id INTO dropped;
  IF dropped IS NULL THEN RETURN; END IF;
  RETURN QUERY SELECT dropped, d.at_version, d.shard
    FROM partita.drop_ranges_1(dropped, 't', partita.ticks_1()) d;
END
$$;

-- The same for a queue.
CREATE OR REPLACE FUNCTION partita.drop_queue_1(of_account int, of_name text, at bigint)
RETURNS TABLE (tid bigint, at_version bigint, shard int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  dropped bigint;
BEGIN
  DELETE FROM partita.queue q WHERE q.account_id = of_account AND q.name = of_name
    RETURNING q.tid INTO dropped;
  IF dropped IS NULL THEN RETURN; END IF;
  RETURN QUERY SELECT dropped, d.at_version, d.shard
    FROM partita.drop_ranges_1(dropped, 'q', at) d;
END
$$;

-- Give a queue another number, whose range a shard owns already, and drop the former one. Return no
-- row if the queue does not have the former number any more.
CREATE OR REPLACE FUNCTION partita.clear_queue_1(
  of_account int, of_name text, old_tid bigint, new_tid bigint, range_id int, range_epoch bigint,
  on_shard int, at bigint)
RETURNS TABLE (tid bigint, at_version bigint, shard int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE partita.queue q
     SET tid = new_tid, id = CASE WHEN on_shard = 0 THEN new_tid END
   WHERE q.account_id = of_account AND q.name = of_name AND q.tid = old_tid;
  IF NOT FOUND THEN RETURN; END IF;
  INSERT INTO partita.range (id, tid, lo, shard, epoch, kind) OVERRIDING SYSTEM VALUE
    VALUES (range_id, new_tid, '', on_shard, range_epoch, 'q');
  RETURN QUERY SELECT old_tid, d.at_version, d.shard
    FROM partita.drop_ranges_1(old_tid, 'q', at) d;
  UPDATE partita.queue q SET version = (SELECT v.version FROM partita.catalog_version v)
   WHERE q.tid = new_tid;
END
$$;

-- On a shard: close all ranges of something that was dropped, once no transaction writes to them.
-- What they have is removed later.
CREATE OR REPLACE FUNCTION partita.close_ranges_1(of_tid bigint, of_kind "char", at bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  {_LOCK_ALL};
  DELETE FROM partita.range_own WHERE tid = of_tid;
  IF of_kind = 'q' THEN
    INSERT INTO partita.dropped_queue (id, dropped_at) VALUES (of_tid, at) ON CONFLICT DO NOTHING;
  ELSE
    INSERT INTO partita.dropped_table (tid, version) VALUES (of_tid, 0) ON CONFLICT DO NOTHING;
  END IF;
END
$$;

-- In the catalog: lock a table or a queue against being dropped. Return its kind; NULL if there is
-- none with this number.
CREATE OR REPLACE FUNCTION partita.lock_object_1(of_tid bigint) RETURNS "char"
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM partita.tables t WHERE t.id = of_tid FOR UPDATE;
  IF FOUND THEN RETURN 't'; END IF;
  PERFORM FROM partita.queue q WHERE q.tid = of_tid FOR UPDATE;
  IF FOUND THEN RETURN 'q'; END IF;
  RETURN NULL;
END
$$;

-- In the catalog: let front ends notice that ranges have changed, the first of which is on a shard.
CREATE OR REPLACE FUNCTION partita.object_changed_1(of_tid bigint, on_shard int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  changed bigint := partita.catalog_changed_1();
BEGIN
  UPDATE partita.tables t SET version = changed WHERE t.id = of_tid;
  UPDATE partita.queue q SET version = changed, id = CASE WHEN on_shard = 0 THEN of_tid END
   WHERE q.tid = of_tid;
END
$$;

-- The same as import_range_2 and set_own_2, for control processes of version 1.5 and earlier.
CREATE OR REPLACE FUNCTION partita.import_range_1(
  of_id int, of_tid bigint, from_lo text, to_hi text, of_epoch bigint) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT partita.import_range_2(of_id, of_tid, from_lo, to_hi, of_epoch, 't')
$$;
CREATE OR REPLACE FUNCTION partita.set_own_1(
  of_tid bigint, ids int[], los text[], his text[], epochs bigint[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT partita.set_own_2(of_tid, 't', ids, los, his, epochs)
$$;

-- For front ends of version 1.5 and earlier: what they do to a queue in the catalog's database is
-- done to its range, too.
CREATE OR REPLACE FUNCTION partita.follow_queue_1() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  of_tid bigint;
  range_epoch bigint;
  range_id int;
BEGIN
  IF TG_OP <> 'INSERT' THEN
    of_tid := OLD.tid;
    {_LOCK_ALL};
    DELETE FROM partita.range_own r WHERE r.tid = of_tid;
    DELETE FROM partita.range r WHERE r.tid = of_tid AND r.shard = 0;
  END IF;
  IF TG_OP <> 'DELETE' THEN
    range_epoch := nextval('partita.epoch');
    INSERT INTO partita.range (tid, lo, epoch, kind) VALUES (NEW.id, '', range_epoch, 'q')
      RETURNING id INTO range_id;
    PERFORM partita.own_range_2(range_id, NEW.id, '', NULL, range_epoch, 'q');
    UPDATE partita.queue q SET tid = NEW.id, version = partita.catalog_changed_1()
     WHERE q.account_id = NEW.account_id AND q.name = NEW.name;
  END IF;
  RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER follow_created AFTER INSERT ON partita.queue
  FOR EACH ROW WHEN (NEW.tid IS NULL) EXECUTE FUNCTION partita.follow_queue_1();
CREATE OR REPLACE TRIGGER follow_cleared AFTER UPDATE OF id ON partita.queue
  FOR EACH ROW WHEN (NEW.tid = OLD.tid AND OLD.id = OLD.tid AND NEW.id <> OLD.id)
  EXECUTE FUNCTION partita.follow_queue_1();
CREATE OR REPLACE TRIGGER follow_dropped AFTER DELETE ON partita.queue
  FOR EACH ROW WHEN (OLD.id IS NOT NULL) EXECUTE FUNCTION partita.follow_queue_1();
"""  # noqa: S608 - the number of locks

PRIVILEGES: dict[str, str] = {}
"""The tables are those of other parts."""
