"""Change capture on the source of a move: triggers that note which rows changed. Texts only.

Each sharded table gets an outbox with the typed primary key and sharding columns of every changed
row of the range, in the same transaction as the change. Nothing else is noted: whoever replays an
entry reads the row as it is now. Why no change is lost:

1. Installed for all later changes. PostgreSQL's CREATE TRIGGER takes SHARE ROW EXCLUSIVE, which
   waits for every transaction that has written to the table, and a transaction that began before
   but writes later sees the trigger when it locks the table. On SQLite writers are serial; one
   whose snapshot is older than the trigger cannot write at all. Copying begins after that, so
   what was changed before the triggers is in every copied batch.
2. An entry is visible exactly when its change is. A pass reads entries and rows in one snapshot,
   so each row that it reads contains the change of each entry that it saw.
3. Sequence order is not commit order: entry 5 may appear after entry 6. So there is no mark up to
   which entries are done. A pass deletes exactly the entries of its own snapshot (PostgreSQL: by
   their transaction, `pg_visible_in_snapshot`; SQLite: by number, because writers are serial),
   and only after the target has committed. A crash between replays them again: same outcome.
4. Passes follow each other, so what is written last on the target was read last on the source.
   The pass behind the fence, when nobody writes any more, leaves no entry: both sides are equal.
"""
# ruff: noqa: S608 - names are quoted and values are literals of known types

from collections.abc import Sequence

from partita.shards.moving.move_plan import TableShape

NAME = "partita_outbox"


def quote(name: str) -> str:
    """Return an identifier for SQL, whatever characters it has."""
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
    """Return the name of the outbox, trigger and function of one table of one job."""
    return f"{NAME}_{job_id[:12]}_{number}"


# --- PostgreSQL -----------------------------------------------------------------------------------


def postgres_outbox(shape: TableShape, name: str, schema: str) -> list[str]:
    """Return the DDL of an outbox and of the function that fills it; nobody else needs to wait."""
    full = f"{quote(schema)}.{quote(name)}"
    return [
        (
            f"CREATE TABLE IF NOT EXISTS {full} AS "
            f"SELECT pg_current_xact_id() AS partita_tx, {listed(shape.identity)} "
            f"FROM {table_name(shape)} WITH NO DATA"
        ),
    ]


def postgres_function(
    shape: TableShape, name: str, schema: str, conditions: tuple[str, str]
) -> list[str]:
    """Return the trigger's function; `conditions` are of the row before and after the change.

    It runs with the rights of the mover, because writers need none on the outbox.
    """
    full = f"{quote(schema)}.{quote(name)}"
    columns = f"partita_tx, {listed(shape.identity)}"
    before, after = conditions
    insert = f"INSERT INTO {full} ({columns}) VALUES (pg_current_xact_id(), "
    return [
        f"""CREATE OR REPLACE FUNCTION {full}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $partita$
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
    """Return the DDL that makes writers of the table fill the outbox: for one transaction.

    ALWAYS, because a session that applies replicated changes writes rows as well.
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
    """Return the DDL that takes everything of one table away again."""
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
    """Return the DDL of an outbox and its triggers, for one transaction.

    INSERT OR REPLACE takes rows away that clash on a unique index without calling the triggers of
    a deletion, so rows that would clash are noted beforehand (`inside` is the range of a row).
    """
    full, table = quote(name), table_name(shape)
    columns = listed(shape.identity)
    before, after = conditions
    insert = f"INSERT INTO {full} ({columns})"
    old = f"{insert} SELECT {listed(shape.identity, 'OLD')} WHERE {before};"
    new = f"{insert} SELECT {listed(shape.identity, 'NEW')} WHERE {after};"
    clashes = "".join(
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
        *(_sqlite_trigger(f"{name}_bi", f"BEFORE INSERT ON {table}", clashes) if clashes else []),
        *(_sqlite_trigger(f"{name}_bu", f"BEFORE UPDATE ON {table}", clashes) if clashes else []),
    ]


def sqlite_removal(name: str) -> list[str]:
    """Return the DDL that takes everything of one table away again."""
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
