"""The shards of a fleet, and the jobs that change its ranges; all but `shard_own` in the catalog.

    shard      id, name, url (NULL: the catalog's own database), state: o open, d draining
    shard_own  on each shard: which one it is. A front end checks it at every connection
    job        a split, merge or move that is under way: what it does, and its last step

The identity of a shard is random and made when it is added: a database that was restored or
created at an address of the fleet by mistake has another one, and is refused. Numbers of shards are
never used again. Shard 0 is the database of the catalog.

A range is known to the catalog (`range`) and to its shard (`range_own`). To change it, a job is
recorded, the shard changes its rows under the exclusive lock of the range, and the catalog follows;
who meets an unfinished job finishes it or takes it back.
"""

FLEET_TABLES = """
CREATE TABLE partita.shard (
  id int PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE, url text,
  state "char" NOT NULL DEFAULT 'o', identity uuid NOT NULL, version bigint NOT NULL
);
CREATE TABLE partita.shard_own (
  one int PRIMARY KEY CHECK (one = 1), id int NOT NULL, identity uuid NOT NULL
);
CREATE TABLE partita.job (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text COLLATE "C" NOT NULL,
  step text COLLATE "C" NOT NULL, facts jsonb NOT NULL, version bigint NOT NULL DEFAULT 1,
  started_at bigint NOT NULL, changed_at bigint NOT NULL, error text
);
CREATE SEQUENCE partita.shard_id MINVALUE 1;
ALTER TABLE partita.range ADD changed_at bigint NOT NULL DEFAULT 0;
INSERT INTO partita.shard_own VALUES (1, 0, gen_random_uuid());
INSERT INTO partita.shard (id, name, identity, version)
  SELECT 0, 'catalog', identity, 1 FROM partita.shard_own;
"""
"""A new database is a fleet of one: the catalog and its only shard."""
TABLES = FLEET_TABLES

FUNCTIONS = """
-- Give a range to this shard, for example the first range of a new table.
CREATE OR REPLACE FUNCTION partita.own_range_1(
  range_id int, of_tid bigint, from_lo text, to_hi text, range_epoch bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO partita.range_own (id, tid, lo, hi, epoch)
    VALUES (range_id, of_tid, from_lo, to_hi, range_epoch) ON CONFLICT (id) DO NOTHING
$$;

-- Take numbers for a new table and its first range.
CREATE OR REPLACE FUNCTION partita.new_range_1(
  OUT tid bigint, OUT range_id int, OUT range_epoch bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT nextval('partita.object_id'),
         nextval(pg_get_serial_sequence('partita.range', 'id'))::int, nextval('partita.epoch')
$$;

-- Add a table whose first range a shard owns already; return no row if the name is taken.
CREATE OR REPLACE FUNCTION partita.add_table_1(
  of_account int, as_folded text, as_name text, of_tid bigint, range_id int, range_epoch bigint,
  on_shard int)
RETURNS TABLE (at_version bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO partita.tables (id, account_id, folded, name, version)
    VALUES (of_tid, of_account, as_folded, as_name, 0) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN RETURN; END IF;
  INSERT INTO partita.range (id, tid, lo, shard, epoch) OVERRIDING SYSTEM VALUE
    VALUES (range_id, of_tid, '', on_shard, range_epoch);
  at_version := partita.catalog_changed_1();
  UPDATE partita.tables SET version = at_version WHERE id = of_tid;
  RETURN NEXT;
END
$$;

-- The same as close_ranges_1, for front ends of version 1.5 of the schema and earlier.
CREATE OR REPLACE FUNCTION partita.close_table_1(of_tid bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM partita.close_ranges_1(of_tid, 't', partita.ticks_1());
END
$$;
"""

PRIVILEGES = {
    "shard": "SELECT",
    "shard_own": "SELECT",
    "job": "SELECT",
}
"""What the role of front ends may do, by table; jobs are run by the owner of the schema."""
