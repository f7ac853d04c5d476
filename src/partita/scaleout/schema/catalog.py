"""The catalog: accounts, tables, ranges of keys, settings, slots and front ends.

Ids of tables, queues and containers come from one sequence and are never used again, so that each
can have ranges. `range` is the catalog's map of them; `range_own` is the row of the shard that has
the range: it decides whether a transaction may act (state: o own, i importing, f fenced). A range
ends before `hi`; NULL means no end.

Every change of what front ends keep in memory gets the next number of `catalog_version`, in its
own transaction. The row lock is taken last, so changes never wait for each other in a circle.
"""

from partita.scaleout.schema.locks import JOB_LOCKS, PURGE_TABLES_JOB, SLOT_JOB

TABLES = """
CREATE SEQUENCE partita.object_id;
CREATE SEQUENCE partita.epoch;
CREATE TABLE partita.catalog_version (
  id int PRIMARY KEY CHECK (id = 1), version bigint NOT NULL
);
INSERT INTO partita.catalog_version VALUES (1, 1);
CREATE TABLE partita.account (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE
);
CREATE TABLE partita.tables (
  id bigint PRIMARY KEY DEFAULT nextval('partita.object_id'),
  account_id int NOT NULL REFERENCES partita.account (id),
  folded text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
  policies bytea NOT NULL DEFAULT '[]', version bigint NOT NULL,
  UNIQUE (account_id, folded)
);
CREATE INDEX tables_version ON partita.tables (version);
CREATE TABLE partita.dropped_table (
  tid bigint PRIMARY KEY, version bigint NOT NULL, purged_at bigint
);
CREATE INDEX dropped_table_version ON partita.dropped_table (version);
CREATE TABLE partita.setting (
  account_id int NOT NULL REFERENCES partita.account (id), name text COLLATE "C" NOT NULL,
  value bytea NOT NULL, version bigint NOT NULL, PRIMARY KEY (account_id, name)
);
CREATE TABLE partita.range (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tid bigint NOT NULL,
  lo text COLLATE "C" NOT NULL, hi text COLLATE "C", shard int NOT NULL DEFAULT 0,
  epoch bigint NOT NULL, state "char" NOT NULL DEFAULT 'o', UNIQUE (tid, lo)
);
CREATE TABLE partita.range_own (
  id int PRIMARY KEY, tid bigint NOT NULL, lo text COLLATE "C" NOT NULL, hi text COLLATE "C",
  epoch bigint NOT NULL, state "char" NOT NULL DEFAULT 'o', capture boolean NOT NULL DEFAULT false
);
CREATE INDEX range_own_tid ON partita.range_own (tid, lo);
CREATE TABLE partita.slot (
  id int PRIMARY KEY, holder uuid, expires_at bigint NOT NULL, free_at bigint NOT NULL,
  floor bigint NOT NULL
);
CREATE TABLE partita.front_end (
  id uuid PRIMARY KEY, name text NOT NULL, slot int, seen_at bigint NOT NULL
);
"""

FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION partita.ticks_1() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT (EXTRACT(epoch FROM pg_catalog.clock_timestamp()) * 10000000)::bigint
$$;

CREATE OR REPLACE FUNCTION partita.catalog_changed_1() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  changed bigint;
BEGIN
  UPDATE partita.catalog_version SET version = version + 1 RETURNING version INTO changed;
  PERFORM pg_catalog.pg_notify('partita_catalog', changed::text);
  RETURN changed;
END
$$;

-- Give a new table, queue or container its first range: all keys.
CREATE OR REPLACE FUNCTION partita.open_range_1(
  of_tid bigint, OUT range_id int, OUT range_epoch bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  range_epoch := pg_catalog.nextval('partita.epoch');
  INSERT INTO partita.range (tid, lo, epoch) VALUES (of_tid, '', range_epoch)
    RETURNING id INTO range_id;
  INSERT INTO partita.range_own (id, tid, lo, epoch) VALUES (range_id, of_tid, '', range_epoch);
END
$$;

-- Return no row if the name is taken.
CREATE OR REPLACE FUNCTION partita.create_table_1(
  of_account int, as_folded text, as_name text)
RETURNS TABLE (tid bigint, range_id int, range_epoch bigint, at_version bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO partita.tables (account_id, folded, name, version)
    VALUES (of_account, as_folded, as_name, 0)
    ON CONFLICT DO NOTHING RETURNING id INTO tid;
  IF tid IS NULL THEN RETURN; END IF;
  SELECT r.range_id, r.range_epoch INTO range_id, range_epoch
    FROM partita.open_range_1(tid) r;
  at_version := partita.catalog_changed_1();
  UPDATE partita.tables SET version = at_version WHERE id = tid;
  RETURN NEXT;
END
$$;

-- The same as drop_table_2, for front ends of version 1.2 of the schema: they do not close the
-- ranges on other shards, which later ones do.
CREATE OR REPLACE FUNCTION partita.drop_table_1(of_account int, of_folded text)
RETURNS TABLE (tid bigint, at_version bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT d.tid, d.at_version
    FROM partita.drop_table_2(of_account, of_folded) d LIMIT 1;
END
$$;

CREATE OR REPLACE FUNCTION partita.set_setting_1(
  of_account int, of_name text, new_value bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  changed bigint;
BEGIN
  INSERT INTO partita.setting (account_id, name, value, version)
    VALUES (of_account, of_name, new_value, 0)
    ON CONFLICT (account_id, name) DO UPDATE SET value = excluded.value;
  changed := partita.catalog_changed_1();
  UPDATE partita.setting SET version = changed WHERE account_id = of_account AND name = of_name;
  RETURN changed;
END
$$;

-- Lease the first slot that may be given away; return no row if all are taken. A slot whose floor
-- is in the future waits, because its next holder would have to make stamps in the future.
CREATE OR REPLACE FUNCTION partita.take_slot_1(
  by_holder uuid, slots_max int, lease_ticks bigint, quarantine_ticks bigint, new_floor bigint,
  close_ticks bigint)
RETURNS TABLE (slot int, floor bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_ticks bigint;
BEGIN
  PERFORM pg_catalog.pg_advisory_xact_lock({JOB_LOCKS}, {SLOT_JOB});
  now_ticks := partita.ticks_1();
  SELECT s.id, s.floor INTO slot, floor FROM partita.slot s
   WHERE s.free_at <= now_ticks AND s.floor <= now_ticks + close_ticks ORDER BY s.id LIMIT 1;
  IF slot IS NULL THEN
    SELECT pg_catalog.count(*), 0 INTO slot, floor FROM partita.slot;
    IF slot >= slots_max THEN RETURN; END IF;
    INSERT INTO partita.slot (id, expires_at, free_at, floor) VALUES (slot, 0, 0, 0);
  END IF;
  UPDATE partita.slot s
     SET holder = by_holder, expires_at = now_ticks + lease_ticks,
         free_at = now_ticks + lease_ticks + quarantine_ticks,
         floor = greatest(s.floor, new_floor)
   WHERE s.id = slot;
  RETURN NEXT;
END
$$;

-- Delete the next entities of a dropped table from a key on; return the last of them. Return no row
-- if another front end purges, or nothing is left: the table is then noted as purged.
CREATE OR REPLACE FUNCTION partita.purge_table_1(
  of_tid bigint, from_pk text, from_rk text, entities_max int)
RETURNS TABLE (last_pk text, last_rk text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT pg_catalog.pg_try_advisory_xact_lock({JOB_LOCKS}, {PURGE_TABLES_JOB}) THEN
    RETURN;
  END IF;
  SELECT k.pk, k.rk INTO last_pk, last_rk
    FROM (SELECT e.pk, e.rk FROM partita.entity e
           WHERE e.tid = of_tid AND (e.pk, e.rk) >= (from_pk, from_rk)
           ORDER BY e.pk, e.rk LIMIT entities_max) k
   ORDER BY k.pk DESC, k.rk DESC LIMIT 1;
  IF last_pk IS NULL THEN
    DELETE FROM partita.removed r WHERE r.tid = of_tid;
    UPDATE partita.dropped_table d SET purged_at = partita.ticks_1() WHERE d.tid = of_tid;
    RETURN;
  END IF;
  DELETE FROM partita.entity e
   WHERE e.tid = of_tid AND (e.pk, e.rk) >= (from_pk, from_rk)
     AND (e.pk, e.rk) <= (last_pk, last_rk);
  RETURN NEXT;
END
$$;

-- Note that a front end is alive; return how many are.
CREATE OR REPLACE FUNCTION partita.beat_1(
  of_id uuid, of_name text, of_slot int, alive_ticks bigint, forget_ticks bigint) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_ticks bigint := partita.ticks_1();
BEGIN
  INSERT INTO partita.front_end VALUES (of_id, of_name, of_slot, now_ticks)
    ON CONFLICT (id) DO UPDATE SET slot = excluded.slot, seen_at = excluded.seen_at;
  DELETE FROM partita.front_end WHERE id IN (
    SELECT f.id FROM partita.front_end f WHERE f.seen_at < now_ticks - forget_ticks
    ORDER BY f.id FOR UPDATE SKIP LOCKED);
  RETURN (SELECT pg_catalog.count(*) FROM partita.front_end f
           WHERE f.seen_at > now_ticks - alive_ticks);
END
$$;
"""  # noqa: S608 - the numbers of locks

PRIVILEGES = {
    "schema_version": "SELECT",
    "catalog_version": "SELECT, UPDATE",
    "account": "SELECT, INSERT",
    "tables": "SELECT, INSERT, UPDATE, DELETE",
    "dropped_table": "SELECT, INSERT, UPDATE, DELETE",
    "setting": "SELECT, INSERT, UPDATE",
    "range": "SELECT, INSERT, UPDATE, DELETE",
    "range_own": "SELECT, INSERT, UPDATE, DELETE",
    "slot": "SELECT, INSERT, UPDATE",
    "front_end": "SELECT, INSERT, UPDATE, DELETE",
}
"""What the role of front ends may do, by table."""
