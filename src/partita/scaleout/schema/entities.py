"""Entities of all tables, the stamps of removed ones, and keys that change while a range is copied.

A row of `removed` has the ticks of a version that was deleted and a hash of its keys; with the hash
`ALL_KEYS` it stands for many that were deleted long ago. An insert must have later ticks, so that
those of a key rise across deletes, too, whatever the clocks of front ends show. `write_2` looks for
such rows after it has written: an insert waits for a transaction that deletes the same key, and
only a later snapshot has what that transaction left behind.

Each partition has one of the sequences `version_N`, by a hash of its key. A write counts it up
before it changes anything, and a sequence is not undone: a reader that finds the same number again
knows that no write has begun in between (see `partita.scaleout.tables.learned`).
"""

from partita.scaleout.schema.locks import FOLD_REMOVED_JOB, JOB_LOCKS, RANGE_LOCKS

REMOVED_TABLES = """
CREATE TABLE partita.removed (
  tid bigint NOT NULL, ticks bigint NOT NULL, key_hash bigint NOT NULL
);
CREATE INDEX removed_ticks ON partita.removed (tid, ticks);
"""
VERSIONS = 64
"""Sequences: partitions with the same one are forgotten together."""
VERSION_SEQUENCES = f"""
DO $$ BEGIN FOR n IN 0 .. {VERSIONS - 1} LOOP
  EXECUTE format('CREATE SEQUENCE partita.version_%s', n);
END LOOP; END $$;
"""
TABLES = f"""
CREATE TABLE partita.entity (
  tid bigint NOT NULL, pk text COLLATE "C" NOT NULL, rk text COLLATE "C" NOT NULL,
  ticks bigint NOT NULL, marks bigint NOT NULL, short jsonb, document bytea NOT NULL,
  PRIMARY KEY (tid, pk, rk)
) WITH (fillfactor = 80);
CREATE TABLE partita.change (
  range_id int NOT NULL, tx xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  pk text COLLATE "C" NOT NULL, rk text COLLATE "C" NOT NULL
);
CREATE INDEX change_range ON partita.change (range_id);
{REMOVED_TABLES}{VERSION_SEQUENCES}"""

ALL_KEYS = 0
"""The hash of a row of `removed` that is about all keys of a table."""
EARLY = "PT002"
"""The SQLSTATE of a trip with stamps that are not later than those of removed entities."""

MERGED, UPSERTED, INSERTED = 0, 1, 2
"""How `write_2` writes a trip: any changes; entities that replace anything; new entities. The
latter two cost about half as much."""

_KEY_HASH = "hashtextextended(q.rk, hashtextextended(q.pk, 0))"

VERSION_NUMBER = f"hashtextextended({{pk}}, {{tid}}) & {VERSIONS - 1}"
"""The number of the sequence of a partition."""

_ROWS = """unnest(tids, pks, rks, stamps, marks, shorts, documents, groups)
          AS q (tid, pk, rk, ticks, marks, short, document, group_number)
       WHERE skipped IS NULL OR q.group_number <> ALL (skipped)"""

# Writes what the arrays of `write_2` say, in their order, without the groups in `skipped`. Sets
# `refused` to the numbers of the changes that were refused, and `stored` to the ticks that were
# found instead (NULL: nothing was found).
_STORE = f"""
  IF how = {UPSERTED} THEN
    INSERT INTO partita.entity AS e (tid, pk, rk, ticks, marks, short, document)
      SELECT q.tid, q.pk, q.rk, q.ticks, q.marks, q.short::jsonb, q.document FROM {_ROWS}
      ON CONFLICT (tid, pk, rk) DO UPDATE SET ticks = excluded.ticks, marks = excluded.marks,
        short = excluded.short, document = excluded.document WHERE e.ticks < excluded.ticks;
    GET DIAGNOSTICS changed = ROW_COUNT;
  ELSIF how = {INSERTED} THEN
    INSERT INTO partita.entity (tid, pk, rk, ticks, marks, short, document)
      SELECT q.tid, q.pk, q.rk, q.ticks, q.marks, q.short::jsonb, q.document FROM {_ROWS}
      ON CONFLICT (tid, pk, rk) DO NOTHING;
    GET DIAGNOSTICS changed = ROW_COUNT;
  ELSE
    WITH written AS (
      MERGE INTO partita.entity e USING (
        SELECT * FROM unnest(
            tids, pks, rks, expected, stamps, marks, shorts, documents, groups) WITH ORDINALITY
          AS u (tid, pk, rk, expected, ticks, marks, short, document, group_number, number)
         WHERE skipped IS NULL OR u.group_number <> ALL (skipped)
      ) q ON e.tid = q.tid AND e.pk = q.pk AND e.rk = q.rk
      WHEN MATCHED AND q.document IS NOT NULL AND e.ticks < q.ticks
          AND (q.expected IN (-1, -2) OR q.expected = e.ticks) THEN
        UPDATE SET ticks = q.ticks, marks = q.marks, short = q.short::jsonb, document = q.document
      WHEN MATCHED AND q.document IS NULL AND e.ticks < q.ticks
          AND (q.expected IN (-1, -2) OR q.expected = e.ticks) THEN
        DELETE
      WHEN NOT MATCHED AND q.document IS NOT NULL AND q.expected IN (-1, 0) THEN
        INSERT (tid, pk, rk, ticks, marks, short, document)
          VALUES (q.tid, q.pk, q.rk, q.ticks, q.marks, q.short::jsonb, q.document)
      RETURNING q.number, q.tid, e.ticks,
        CASE WHEN q.document IS NULL THEN {_KEY_HASH} END AS removed_hash
    ), removed AS (
      INSERT INTO partita.removed (tid, ticks, key_hash)
        SELECT w.tid, w.ticks, w.removed_hash FROM written w WHERE w.removed_hash IS NOT NULL
    )
    SELECT count(*), array_agg(w.number) INTO changed, done FROM written w;
  END IF;
  refused := NULL;
  IF changed < cardinality(tids) THEN
    -- An entity of the two plain kinds was written if it has our stamp: no other has the same.
    SELECT array_agg(q.number::int), array_agg(e.ticks) INTO refused, stored
      FROM unnest(tids, pks, rks, expected, stamps, documents, groups) WITH ORDINALITY
        AS q (tid, pk, rk, expected, ticks, document, group_number, number)
      LEFT JOIN partita.entity e ON e.tid = q.tid AND e.pk = q.pk AND e.rk = q.rk
     WHERE (skipped IS NULL OR q.group_number <> ALL (skipped))
       AND CASE WHEN how = {MERGED}
           THEN q.number <> ALL (coalesce(done, '{{}}'))
                AND NOT (q.document IS NULL AND q.expected IN (-1, 0) AND e.tid IS NULL)
           ELSE e.ticks IS DISTINCT FROM q.ticks END;
  END IF;"""  # noqa: S608 - only our own numbers

FUNCTIONS = f"""
-- Write a trip: changes in the order of their keys, a key once. `expected` is -1 anything, 0
-- nothing, -2 something, or exact ticks; a document NULL removes. Changes with the same number in
-- `groups` (NULL: the trip has no groups of several) are written together or not at all. Return the
-- numbers of refused changes and the ticks found; or the places of stale ranges, negative: nothing
-- was written. Raise {EARLY} if stamps are not later than those of removed entities: the detail has
-- the number of each such change, and the ticks found.
CREATE OR REPLACE FUNCTION partita.write_2(
  range_ids int[], epochs bigint[], how int, groups int[], tids bigint[], pks text[], rks text[],
  expected bigint[], stamps bigint[], marks bigint[], shorts text[], documents bytea[])
RETURNS TABLE (number int, ticks bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  owned int;
  is_captured boolean;
  changed bigint;
  done bigint[];
  refused int[];
  stored bigint[];
  failed int[];
  skipped int[];
  refused_groups int[];
  ticks_of_groups bigint[];
  early text;
BEGIN
  -- Try, not wait: a change of the range must not hold up the other changes of the trip.
  FOR place IN 1 .. cardinality(range_ids) LOOP
    IF NOT pg_try_advisory_xact_lock_shared({RANGE_LOCKS}, range_ids[place]) THEN
      RETURN QUERY SELECT -place, NULL::bigint;
      RETURN;
    END IF;
  END LOOP;
  -- A new statement, so a new snapshot: it has every change of a range before our lock.
  IF cardinality(range_ids) = 1 THEN
    -- The same for one range: it costs a quarter of the join.
    SELECT count(*), bool_or(r.capture) INTO owned, is_captured FROM partita.range_own r
     WHERE r.id = range_ids[1] AND r.epoch = epochs[1] AND r.state = 'o';
  ELSE
    SELECT count(*), bool_or(r.capture) INTO owned, is_captured
      FROM unnest(range_ids, epochs) AS q (id, epoch)
      JOIN partita.range_own r ON r.id = q.id AND r.epoch = q.epoch AND r.state = 'o';
  END IF;
  IF owned < cardinality(range_ids) THEN
    RETURN QUERY SELECT -q.place::int, NULL::bigint
      FROM unnest(range_ids, epochs) WITH ORDINALITY AS q (id, epoch, place)
     WHERE NOT EXISTS (SELECT FROM partita.range_own r
                        WHERE r.id = q.id AND r.epoch = q.epoch AND r.state = 'o');
    IF NOT FOUND THEN
      -- The second look has a later snapshot, in which the ranges are owned: nothing was written.
      RETURN QUERY SELECT -p, NULL::bigint FROM generate_series(1, cardinality(range_ids)) p;
    END IF;
    RETURN;
  END IF;
  -- Count before the write, and after the transaction has its number: a reader of the count can
  -- then wait for the end of this transaction.
  PERFORM pg_current_xact_id();
  PERFORM nextval(('partita.version_' || v.number)::regclass) FROM (
    SELECT DISTINCT {VERSION_NUMBER.format(pk="q.pk", tid="q.tid")} AS number
      FROM unnest(tids, pks) AS q (tid, pk)
  ) v;
  IF groups IS NULL THEN
    {_STORE}
  ELSE
    LOOP
      BEGIN
        {_STORE}
        SELECT array_agg(DISTINCT groups[n]) INTO failed
          FROM unnest(refused) n WHERE groups[n] <> 0;
        EXIT WHEN failed IS NULL;
        RAISE SQLSTATE 'PT001';
      EXCEPTION WHEN SQLSTATE 'PT001' THEN
        -- All is undone, but variables are kept: write the others again.
        SELECT refused_groups || array_agg(q.n), ticks_of_groups || array_agg(q.t)
          INTO refused_groups, ticks_of_groups
          FROM unnest(refused, stored) AS q (n, t) WHERE groups[q.n] <> 0;
        skipped := skipped || failed;
      END;
    END LOOP;
    refused := refused || refused_groups;
    stored := stored || ticks_of_groups;
  END IF;
  -- The keys are sorted: this finds out whether all are of one table.
  IF tids[1] < tids[cardinality(tids)] OR EXISTS (
      SELECT FROM partita.removed r
       WHERE r.tid = tids[1] AND r.ticks >= (SELECT min(s) FROM unnest(stamps) s)) THEN
    SELECT string_agg(f.number || ' ' || f.ticks, ',') INTO early FROM (
      SELECT q.number, max(r.ticks) AS ticks
        FROM unnest(tids, pks, rks, stamps, documents) WITH ORDINALITY
          AS q (tid, pk, rk, ticks, document, number)
        JOIN partita.removed r ON r.tid = q.tid AND r.ticks >= q.ticks
       WHERE q.document IS NOT NULL AND r.key_hash IN ({_KEY_HASH}, {ALL_KEYS})
       GROUP BY q.number
    ) f;
    IF early IS NOT NULL THEN
      RAISE SQLSTATE '{EARLY}' USING DETAIL = early;
    END IF;
  END IF;
  IF is_captured THEN
    INSERT INTO partita.change (range_id, pk, rk)
      SELECT r.id, q.pk, q.rk FROM unnest(tids, pks, rks) AS q (tid, pk, rk)
        JOIN partita.range_own r
          ON r.tid = q.tid AND q.pk >= r.lo AND (r.hi IS NULL OR q.pk < r.hi);
  END IF;
  IF refused IS NOT NULL THEN
    RETURN QUERY SELECT q.n, q.t FROM unnest(refused, stored) AS q (n, t);
  END IF;
END
$$;

-- The same for front ends of version 1.1 of the schema and earlier.
CREATE OR REPLACE FUNCTION partita.write_1(
  range_ids int[], epochs bigint[], how int, groups int[], tids bigint[], pks text[], rks text[],
  expected bigint[], stamps bigint[], marks bigint[], shorts jsonb[], documents bytea[])
RETURNS TABLE (number int, ticks bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT w.number, w.ticks FROM partita.write_2(range_ids, epochs, how, groups, tids, pks, rks,
    expected, stamps, marks, shorts::text[], documents) w
$$;
DROP FUNCTION IF EXISTS partita.store_1;

-- Replace the rows of `removed` that are older than `kept_ticks` by one for each table.
CREATE OR REPLACE FUNCTION partita.fold_removed_1(kept_ticks bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  horizon bigint := partita.ticks_1() - kept_ticks;
BEGIN
  IF NOT pg_try_advisory_xact_lock({JOB_LOCKS}, {FOLD_REMOVED_JOB}) THEN
    RETURN;
  END IF;
  WITH aged AS (
    SELECT DISTINCT r.tid FROM partita.removed r
     WHERE r.ticks < horizon AND r.key_hash <> {ALL_KEYS}
  ), folded AS (
    DELETE FROM partita.removed r USING aged a WHERE r.tid = a.tid AND r.ticks < horizon
    RETURNING r.tid, r.ticks
  )
  INSERT INTO partita.removed (tid, ticks, key_hash)
    SELECT f.tid, max(f.ticks), {ALL_KEYS} FROM folded f GROUP BY f.tid;
END
$$;
"""  # noqa: S608 - only our own numbers

PRIVILEGES = {
    "entity": "SELECT, INSERT, UPDATE, DELETE",
    "change": "SELECT, INSERT, DELETE",
    "removed": "SELECT, INSERT, DELETE",
}
"""What the role of front ends may do, by table."""
