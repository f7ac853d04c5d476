"""The SQL of change capture: triggers on the source of a move record which rows changed.

Each sharded table gets an outbox with the primary key and the sharding columns of every changed row
of the range, written in the transaction of the change. A replay reads the current rows of the
entries.
Why no change is lost:

1. All later changes are captured. PostgreSQL's CREATE TRIGGER takes a SHARE ROW EXCLUSIVE lock,
   which waits for every transaction that has written to the table; a transaction that began before
   but writes later sees the trigger when it locks the table. On SQLite writers are serial, and one
   whose snapshot is older than the trigger cannot write. Copying begins after that, so that all
   batches contain the changes made before the triggers.
2. An entry is visible exactly when its change is. A pass reads entries and rows in one snapshot, so
   that each row contains the changes of all entries that the pass has read.
3. Sequence order is not commit order: entry 5 may appear after entry 6. So entries are not complete
   up to a number. A pass deletes exactly the entries of its own snapshot (PostgreSQL: by their
   transaction, `pg_visible_in_snapshot`; SQLite: by number, because writers are serial), after the
   target has committed. After a crash in between they are replayed again, with the same outcome.
4. Passes are serial, so the last write on the target was read last on the source. The pass behind
   the fence, when there are no more writers, leaves no entry: both sides are equal.
"""
# ruff: noqa: S608 - names are quoted and values are literals of known types

from collections.abc import Sequence

from partita.shards.moving.move_plan import TableShape

NAME = "partita_outbox"


def quote(name: str) -> str:
    """Return a quoted identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_name(schema: str | None, table: str) -> str:
    """Return the quoted name of a table, with its schema."""
    return quote(table) if schema is None else f"{quote(schema)}.{quote(table)}"


def table_name(shape: TableShape) -> str:
    return quoted_name(shape.schema, shape.table)


def listed(names: Sequence[str], alias: str = "") -> str:
    """Return the names as a list of columns: `a."x", a."y"`."""
    dot = f"{alias}." if alias else ""
    return ", ".join(dot + quote(name) for name in names)


def outbox(job_id: str, number: int) -> str:
    """Return the name of the outbox, trigger and function of one table in one job."""
    return f"{NAME}_{job_id[:12]}_{number}"


# --- PostgreSQL -----------------------------------------------------------------------------------


def postgres_outbox(shape: TableShape, name: str, schema: str) -> list[str]:
    """Return the DDL of an outbox; it blocks no other session."""
    full = f"{quote(schema)}.{quote(name)}"
    return [
        (
            f"CREATE TABLE IF NOT EXISTS {full} AS "
            f"SELECT pg_catalog.pg_current_xact_id() AS partita_tx, {listed(shape.identity)} "
            f"FROM {table_name(shape)} WITH NO DATA"
        ),
    ]


def postgres_function(
    shape: TableShape, name: str, schema: str, conditions: tuple[str, str]
) -> list[str]:
    """Return the function of the trigger; `conditions` test the row before and after a change.

    It runs with the permissions of the mover, because writers have none on the outbox. So every
    name in it is qualified, and its path ends with pg_temp, which PostgreSQL would otherwise search
    first for types and tables: there the session of the writer may define its own.
    """
    full = f"{quote(schema)}.{quote(name)}"
    columns = f"partita_tx, {listed(shape.identity)}"
    before, after = conditions
    insert = f"INSERT INTO {full} ({columns}) VALUES (pg_catalog.pg_current_xact_id(), "
    return [
        f"""CREATE OR REPLACE FUNCTION {full}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $partita$
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION 'rows of this table are being moved to another shard: it cannot be truncated';
  END IF;
  IF TG_OP <> 'INSERT' THEN
    IF {before} THEN {insert}{listed(shape.identity, "OLD")}); END IF;
  END IF;
  IF TG_OP <> 'DELETE' THEN
    IF {after} THEN {insert}{listed(shape.identity, "NEW")}); END IF;
  END IF;
  RETURN NULL;
END $partita$""",
    ]


def postgres_triggers(shape: TableShape, name: str, schema: str) -> list[str]:
    """Return the DDL of the triggers, to be executed in one transaction.

    ALWAYS, because sessions that apply replicated changes write rows as well.
    """
    full = f"{quote(schema)}.{quote(name)}"
    table, rows, truncation = table_name(shape), quote(name), quote(f"{name}_t")
    return [
        f"DROP TRIGGER IF EXISTS {rows} ON {table}",
        f"DROP TRIGGER IF EXISTS {truncation} ON {table}",
        (
            f"CREATE TRIGGER {rows} AFTER INSERT OR UPDATE OR DELETE ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION {full}()"
        ),
        (
            f"CREATE TRIGGER {truncation} BEFORE TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {full}()"
        ),
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {rows}",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {truncation}",
    ]


def postgres_removal(shape: TableShape, name: str, schema: str) -> list[str]:
    """Return the DDL that removes the capture of one table."""
    full = f"{quote(schema)}.{quote(name)}"
    table = table_name(shape)
    return [
        f"DROP TRIGGER IF EXISTS {quote(name)} ON {table}",
        f"DROP TRIGGER IF EXISTS {quote(f'{name}_t')} ON {table}",
        f"DROP FUNCTION IF EXISTS {full}()",
        f"DROP TABLE IF EXISTS {full}",
    ]


# --- SQLite ---------------------------------------------------------------------------------------


def sqlite_capture(
    shape: TableShape,
    name: str,
    conditions: tuple[str, str],
    unique: Sequence[Sequence[str]],
    inside: str,
) -> list[str]:
    """Return the DDL of an outbox and its triggers, to be executed in one transaction.

    INSERT OR REPLACE deletes rows that conflict on a unique index without calling their delete
    triggers, so conflicting rows are recorded before (`inside` is the condition of the range).
    """
    full, table = quote(name), table_name(shape)
    columns = listed(shape.identity)
    before, after = conditions
    insert = f"INSERT INTO {full} ({columns})"
    old = f"{insert} SELECT {listed(shape.identity, 'OLD')} WHERE {before};"
    new = f"{insert} SELECT {listed(shape.identity, 'NEW')} WHERE {after};"
    conflicts = "".join(
        f" {insert} SELECT {columns} FROM {table} WHERE {_equal(index)} AND {inside};"
        for index in unique
    )
    return [
        (
            f"CREATE TABLE IF NOT EXISTS {full} "
            f"(partita_number INTEGER PRIMARY KEY AUTOINCREMENT, {columns})"
        ),
        *_sqlite_trigger(f"{name}_i", f"AFTER INSERT ON {table}", new),
        *_sqlite_trigger(f"{name}_u", f"AFTER UPDATE ON {table}", f"{old} {new}"),
        *_sqlite_trigger(f"{name}_d", f"AFTER DELETE ON {table}", old),
        *(
            _sqlite_trigger(f"{name}_bi", f"BEFORE INSERT ON {table}", conflicts)
            if conflicts
            else []
        ),
        *(
            _sqlite_trigger(f"{name}_bu", f"BEFORE UPDATE ON {table}", conflicts)
            if conflicts
            else []
        ),
    ]


def sqlite_removal(name: str) -> list[str]:
    """Return the DDL that removes the capture of one table."""
    triggers = [f"{name}_{end}" for end in ("i", "u", "d", "bi", "bu")]
    return [
        *(f"DROP TRIGGER IF EXISTS {quote(trigger)}" for trigger in triggers),
        f"DROP TABLE IF EXISTS {quote(name)}",
    ]


def _sqlite_trigger(name: str, when: str, body: str) -> list[str]:
    return [
        f"DROP TRIGGER IF EXISTS {quote(name)}",
        f"CREATE TRIGGER {quote(name)} {when} FOR EACH ROW BEGIN {body} END",
    ]


def _equal(columns: Sequence[str]) -> str:
    return " AND ".join(f"{quote(name)} = NEW.{quote(name)}" for name in columns)
