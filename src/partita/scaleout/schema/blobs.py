"""Containers, blobs, their blocks and content; the rows are those of the embedded store.

    container          id | account, name | facts
    blob               container, name, snapshot (names.LIVE: the blob itself) | content | facts
                       | state, expires_at: they follow from the facts
    block              container, name, id | extent, size | staged_at
    piece              content, place | size | start in the extent | extent | id of the block
    extent             id | size | object, or bytes | a check for each chunk
    dropped_content    a content that may be unused | origin | dropped_at
    dropped_container  id
    upload_claim       an upload that has stored an object, or will, and has no record yet
    dropped_object     an object that may be unused; is_leaving: it is, and will be removed
    object_store       which object store belongs to this database, and when it was swept

An object is named by the SHA-256 of its content and 8 random bytes: the name of a removed object
is never used again. Contents and extents have numbers of one sequence, taken by ranges.

Blobs and containers are locked by advisory locks with one number (`scaleout.blobs.locks`), before
the statement that looks at them: a function that is VOLATILE gives each statement a new snapshot.
"""

NUMBERS_TAKEN = 256
"""How many numbers of contents and extents a front end takes at a time."""

STATE_INDEXES = """
CREATE INDEX blob_tagged ON partita.blob (container, name) WHERE state = 1;
CREATE INDEX blob_expires ON partita.blob (expires_at) WHERE expires_at IS NOT NULL;
"""
UPGRADE = f"""
ALTER TABLE partita.blob ADD COLUMN state smallint NOT NULL DEFAULT 0, ADD COLUMN expires_at bigint;
{STATE_INDEXES}"""
"""The step that adds the states of blobs; `tagged_blobs.mark_tagged` completes it."""

TABLES = f"""
CREATE SEQUENCE partita.content_id INCREMENT BY {NUMBERS_TAKEN};
CREATE TABLE partita.container (
  id bigint PRIMARY KEY DEFAULT nextval('partita.object_id'),
  account_id int NOT NULL REFERENCES partita.account (id), name text COLLATE "C" NOT NULL,
  facts bytea NOT NULL, UNIQUE (account_id, name)
);
CREATE TABLE partita.dropped_container (id bigint PRIMARY KEY);
CREATE TABLE partita.blob (
  container bigint NOT NULL, name text COLLATE "C" NOT NULL, snapshot bigint NOT NULL,
  is_committed boolean NOT NULL, content bigint NOT NULL, facts bytea NOT NULL,
  state smallint NOT NULL DEFAULT 0, expires_at bigint,
  PRIMARY KEY (container, name, snapshot)
) WITH (fillfactor = 90);
CREATE INDEX blob_content ON partita.blob (content);
{STATE_INDEXES}CREATE TABLE partita.block (
  container bigint NOT NULL, name text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL,
  extent bigint NOT NULL, size bigint NOT NULL, staged_at bigint NOT NULL,
  PRIMARY KEY (container, name, id)
);
CREATE INDEX block_extent ON partita.block (extent);
CREATE TABLE partita.piece (
  content bigint NOT NULL, place bigint NOT NULL, size bigint NOT NULL, start bigint NOT NULL,
  extent bigint NOT NULL, block text COLLATE "C", PRIMARY KEY (content, place)
);
CREATE INDEX piece_extent ON partita.piece (extent);
CREATE TABLE partita.extent (
  id bigint PRIMARY KEY, size bigint NOT NULL, object bytea,
  checks bytea STORAGE EXTERNAL NOT NULL, bytes bytea STORAGE EXTERNAL
);
CREATE INDEX extent_object ON partita.extent (object) WHERE object IS NOT NULL;
CREATE TABLE partita.dropped_content (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  content bigint NOT NULL, origin bigint NOT NULL, dropped_at bigint NOT NULL
);
CREATE INDEX dropped_content_at ON partita.dropped_content (dropped_at);
CREATE TABLE partita.upload_claim (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, object bytea NOT NULL,
  claimed_at bigint NOT NULL
);
CREATE INDEX upload_claim_object ON partita.upload_claim (object);
CREATE INDEX upload_claim_at ON partita.upload_claim (claimed_at);
CREATE TABLE partita.dropped_object (object bytea PRIMARY KEY, is_leaving boolean NOT NULL);
CREATE TABLE partita.object_store (
  id int PRIMARY KEY CHECK (id = 1), owner text NOT NULL, swept_at bigint NOT NULL
);
"""

IS_LAST = """NOT EXISTS (
               SELECT FROM partita.blob l WHERE l.container = b.container AND l.name = b.name
                  AND l.snapshot > b.snapshot AND l.is_committed AND l.state <= 3)"""
"""Whether no later row is the blob, an earlier version of it, or the deleted blob."""

FUNCTIONS = f"""
-- Lock a container (shared) and a blob (exclusive), then look the blob up. Without `waits`, give up
-- if a lock is taken. Nulls are what was not found.
CREATE OR REPLACE FUNCTION partita.find_blob_1(
  of_account int, of_container text, of_name text, of_snapshot bigint,
  container_lock bigint, blob_lock bigint, waits boolean,
  OUT is_locked boolean, OUT container bigint, OUT content bigint, OUT facts bytea)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF waits THEN
    PERFORM pg_advisory_xact_lock_shared(container_lock);
    PERFORM pg_advisory_xact_lock(blob_lock);
    is_locked := true;
  ELSE
    is_locked := pg_try_advisory_xact_lock_shared(container_lock)
                 AND pg_try_advisory_xact_lock(blob_lock);
    IF NOT is_locked THEN RETURN; END IF;
  END IF;
  SELECT c.id, b.content, b.facts INTO container, content, facts
    FROM partita.container c LEFT JOIN partita.blob b
      ON b.container = c.id AND b.name = of_name AND b.snapshot = of_snapshot
   WHERE c.account_id = of_account AND c.name = of_container;
END
$$;

-- Lock the name of a container against other changes of the container, then look it up.
CREATE OR REPLACE FUNCTION partita.find_container_1(
  of_account int, of_name text, name_lock bigint, OUT id bigint, OUT facts bytea)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(name_lock);
  SELECT c.id, c.facts INTO find_container_1.id, find_container_1.facts
    FROM partita.container c WHERE c.account_id = of_account AND c.name = of_name;
END
$$;

-- Drop a container once no transaction changes its blobs.
CREATE OR REPLACE FUNCTION partita.drop_container_1(of_id bigint, container_lock bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(container_lock);
  DELETE FROM partita.container WHERE id = of_id;
  INSERT INTO partita.dropped_container VALUES (of_id);
END
$$;

-- Give a container another name once no transaction changes its blobs.
CREATE OR REPLACE FUNCTION partita.rename_container_1(
  of_id bigint, new_name text, new_facts bytea, container_lock bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(container_lock);
  UPDATE partita.container SET name = new_name, facts = new_facts WHERE id = of_id;
END
$$;

-- Claim an object for a content: one that an extent or another upload has, or a new one.
CREATE OR REPLACE FUNCTION partita.claim_object_1(
  of_digest bytea, salt bytea, digest_lock bigint, at bigint, OUT claim bigint, OUT object bytea)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lowest bytea := of_digest || '\\x0000000000000000'::bytea;
  highest bytea := of_digest || '\\xffffffffffffffff'::bytea;
BEGIN
  PERFORM pg_advisory_xact_lock(digest_lock);
  -- One statement, one snapshot: an upload that commits turns its claim into an extent.
  SELECT k.object INTO claim_object_1.object FROM (
    SELECT e.object FROM partita.extent e WHERE e.object BETWEEN lowest AND highest
     UNION ALL
    SELECT c.object FROM partita.upload_claim c WHERE c.object BETWEEN lowest AND highest) k
   LIMIT 1;
  object := coalesce(object, of_digest || salt);
  INSERT INTO partita.upload_claim (object, claimed_at) VALUES (claim_object_1.object, at)
    RETURNING id INTO claim;
END
$$;

-- List a container by a delimiter: a skip scan from prefix to prefix, of one snapshot. Names that
-- contain the delimiter after the prefix are shown as one row without facts. `after_delimiter` is
-- the first text after all texts that start with the delimiter (null: there is none).
CREATE OR REPLACE FUNCTION partita.list_blobs_1(
  of_container bigint, with_prefix text, before text, by_delimiter text, after_delimiter text,
  from_name text, from_snapshot bigint, rows_max int, live bigint,
  shows_snapshots boolean, shows_uncommitted boolean)
RETURNS TABLE (name text, snapshot bigint, facts bytea)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_row record;
  hidden text;
  skipped int := char_length(with_prefix);
  place int;
  is_done boolean := false;
BEGIN
  WHILE NOT is_done AND rows_max > 0 LOOP
    is_done := true;
    FOR found_row IN
      SELECT b.name, b.snapshot, b.facts FROM partita.blob b
       WHERE b.container = of_container AND (b.name, b.snapshot) >= (from_name, from_snapshot)
         AND (shows_snapshots OR b.snapshot = live) AND (shows_uncommitted OR b.is_committed)
       ORDER BY b.name, b.snapshot
    LOOP
      EXIT WHEN rows_max = 0 OR found_row.name >= before COLLATE "C";
      CONTINUE WHEN starts_with(found_row.name, hidden);
      rows_max := rows_max - 1;
      place := strpos(substr(found_row.name, skipped + 1), by_delimiter);
      IF place > 0 THEN
        name := left(found_row.name, skipped + place - 1) || by_delimiter;
        snapshot := 0;
        facts := NULL;
        RETURN NEXT;
        hidden := name;
        from_name := coalesce(left(name, skipped + place - 1) || after_delimiter, name);
        from_snapshot := 0;
        is_done := false;
        EXIT;
      END IF;
      name := found_row.name;
      snapshot := found_row.snapshot;
      facts := found_row.facts;
      RETURN NEXT;
    END LOOP;
  END LOOP;
END
$$;

-- As list_blobs_1, with the rows of some states; of others those that no later row of the blob
-- follows. Front ends of schema 1.3 call list_blobs_1.
CREATE OR REPLACE FUNCTION partita.list_blobs_2(
  of_container bigint, with_prefix text, before text, by_delimiter text, after_delimiter text,
  from_name text, from_snapshot bigint, rows_max int, live bigint,
  shows_uncommitted boolean, states int[], states_if_last int[], at bigint)
RETURNS TABLE (name text, snapshot bigint, facts bytea, is_last boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_row record;
  hidden text;
  skipped int := char_length(with_prefix);
  place int;
  is_done boolean := false;
BEGIN
  WHILE NOT is_done AND rows_max > 0 LOOP
    is_done := true;
    FOR found_row IN
      SELECT b.name, b.snapshot, b.facts,
             b.state IN (2, 3) AND {IS_LAST} AS is_last FROM partita.blob b
       WHERE b.container = of_container AND (b.name, b.snapshot) >= (from_name, from_snapshot)
         AND (b.snapshot = live OR (b.state = ANY (states)
              OR b.state = ANY (states_if_last) AND {IS_LAST})
              AND (b.expires_at IS NULL OR b.expires_at > at))
         AND (shows_uncommitted OR b.is_committed)
       ORDER BY b.name, b.snapshot
    LOOP
      EXIT WHEN rows_max = 0 OR found_row.name >= before COLLATE "C";
      CONTINUE WHEN starts_with(found_row.name, hidden);
      rows_max := rows_max - 1;
      place := strpos(substr(found_row.name, skipped + 1), by_delimiter);
      IF place > 0 THEN
        name := left(found_row.name, skipped + place - 1) || by_delimiter;
        snapshot := 0;
        facts := NULL;
        is_last := false;
        RETURN NEXT;
        hidden := name;
        from_name := coalesce(left(name, skipped + place - 1) || after_delimiter, name);
        from_snapshot := 0;
        is_done := false;
        EXIT;
      END IF;
      name := found_row.name;
      snapshot := found_row.snapshot;
      facts := found_row.facts;
      is_last := found_row.is_last;
      RETURN NEXT;
    END LOOP;
  END LOOP;
END
$$;
"""  # noqa: S608 - only our own text

_ALL = "SELECT, INSERT, UPDATE, DELETE"

PRIVILEGES = {
    "container": _ALL,
    "dropped_container": "SELECT, INSERT, DELETE",
    "blob": _ALL,
    "block": _ALL,
    "piece": _ALL,
    "extent": _ALL,
    "dropped_content": "SELECT, INSERT, DELETE",
    "upload_claim": _ALL,
    "dropped_object": _ALL,
    "object_store": "SELECT, INSERT, UPDATE",
}
"""What the role of front ends may do, by table."""
