"""Entities of all tables, and the keys that change while a range is copied."""

from partita.scaleout.schema.locks import RANGE_LOCKS

TABLES = """
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
"""

MERGED, UPSERTED, INSERTED = 0, 1, 2
"""How `write_1` writes a trip: any changes; entities that replace anything; new entities. The
latter two cost about half as much."""

FUNCTIONS = f"""
-- Write what the arrays say, in their order, without the groups in `skipped`; return the numbers of
-- the changes that were refused, and the ticks that were found instead (NULL: nothing was found).
-- `expected` is -1 anything, 0 nothing, -2 something, or exact ticks; a document NULL removes.
CREATE OR REPLACE FUNCTION partita.store_1(
  how int, skipped int[], groups int[], tids bigint[], pks text[], rks text[], expected bigint[],
  stamps bigint[], marks bigint[], shorts jsonb[], documents bytea[],
  OUT refused int[], OUT stored bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  changed bigint;
  done bigint[];
BEGIN
  IF how = {UPSERTED} THEN
    INSERT INTO partita.entity AS e (tid, pk, rk, ticks, marks, short, document)
      SELECT q.tid, q.pk, q.rk, q.ticks, q.marks, q.short, q.document
        FROM unnest(tids, pks, rks, stamps, marks, shorts, documents, groups)
          AS q (tid, pk, rk, ticks, marks, short, document, group_number)
       WHERE skipped IS NULL OR q.group_number <> ALL (skipped)
      ON CONFLICT (tid, pk, rk) DO UPDATE SET ticks = excluded.ticks, marks = excluded.marks,
        short = excluded.short, document = excluded.document WHERE e.ticks < excluded.ticks;
    GET DIAGNOSTICS changed = ROW_COUNT;
  ELSIF how = {INSERTED} THEN
    INSERT INTO partita.entity (tid, pk, rk, ticks, marks, short, document)
      SELECT q.tid, q.pk, q.rk, q.ticks, q.marks, q.short, q.document
        FROM unnest(tids, pks, rks, stamps, marks, shorts, documents, groups)
          AS q (tid, pk, rk, ticks, marks, short, document, group_number)
       WHERE skipped IS NULL OR q.group_number <> ALL (skipped)
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
        UPDATE SET ticks = q.ticks, marks = q.marks, short = q.short, document = q.document
      WHEN MATCHED AND q.document IS NULL AND e.ticks < q.ticks
          AND (q.expected IN (-1, -2) OR q.expected = e.ticks) THEN
        DELETE
      WHEN NOT MATCHED AND q.document IS NOT NULL AND q.expected IN (-1, 0) THEN
        INSERT (tid, pk, rk, ticks, marks, short, document)
          VALUES (q.tid, q.pk, q.rk, q.ticks, q.marks, q.short, q.document)
      RETURNING q.number
    )
    SELECT count(*), array_agg(w.number) INTO changed, done FROM written w;
  END IF;
  IF changed = cardinality(tids) THEN
    RETURN;
  END IF;
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
END
$$;

-- Write a trip: changes in the order of their keys, a key once. Changes with the same number in
-- `groups` (NULL: the trip has no groups of several) are written together or not at all. Return the
-- refused changes as `store_1` does; or the places of stale ranges, negative: nothing was written.
CREATE OR REPLACE FUNCTION partita.write_1(
  range_ids int[], epochs bigint[], how int, groups int[], tids bigint[], pks text[], rks text[],
  expected bigint[], stamps bigint[], marks bigint[], shorts jsonb[], documents bytea[])
RETURNS TABLE (number int, ticks bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  owned int;
  is_captured boolean;
  refused int[];
  stored bigint[];
  failed int[];
  skipped int[];
  refused_groups int[];
  ticks_of_groups bigint[];
BEGIN
  -- Try, not wait: a change of the range must not hold up the other changes of the trip.
  FOR place IN 1 .. cardinality(range_ids) LOOP
    IF NOT pg_try_advisory_xact_lock_shared({RANGE_LOCKS}, range_ids[place]) THEN
      RETURN QUERY SELECT -place, NULL::bigint;
      RETURN;
    END IF;
  END LOOP;
  -- A new statement, so a new snapshot: it has every change of a range before our lock.
  SELECT count(*), bool_or(r.capture) INTO owned, is_captured
    FROM unnest(range_ids, epochs) AS q (id, epoch)
    JOIN partita.range_own r ON r.id = q.id AND r.epoch = q.epoch AND r.state = 'o';
  IF owned < cardinality(range_ids) THEN
    RETURN QUERY SELECT -q.place::int, NULL::bigint
      FROM unnest(range_ids, epochs) WITH ORDINALITY AS q (id, epoch, place)
     WHERE NOT EXISTS (SELECT FROM partita.range_own r
                        WHERE r.id = q.id AND r.epoch = q.epoch AND r.state = 'o');
    RETURN;
  END IF;
  IF groups IS NULL THEN
    SELECT s.refused, s.stored INTO refused, stored FROM partita.store_1(
      how, NULL, NULL, tids, pks, rks, expected, stamps, marks, shorts, documents) s;
  ELSE
    LOOP
      BEGIN
        SELECT s.refused, s.stored INTO refused, stored FROM partita.store_1(
          how, skipped, groups, tids, pks, rks, expected, stamps, marks, shorts, documents) s;
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
"""  # noqa: S608 - only our own numbers

PRIVILEGES = {
    "entity": "SELECT, INSERT, UPDATE, DELETE",
    "change": "SELECT, INSERT, DELETE",
}
"""What the role of front ends may do, by table."""
