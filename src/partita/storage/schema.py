"""The schema of a database file, compared with the expected one before the file is trusted.

A file, such as that of a backup, may have been written by another party. Triggers, views,
generated columns, checks and indexes on expressions are code in it, so a file is refused unless
its schema is exactly the one that Partita creates.
"""

import re
from collections.abc import Iterable

import apsw

from partita.errors import DamageError

Schema = dict[tuple[str, str, str], str]
"""Type, name and table of each object: the statement that creates it."""

_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
_STATISTICS = (
    "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
)
"""SQLite creates these tables when an operator runs ANALYZE."""


def distrust(connection: apsw.Connection) -> None:
    """Run no code of the file: triggers, views, and functions with side effects in its schema."""
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)


def schema_of(*statements: str) -> Schema:
    """Return the schema that these statements create."""
    scratch = apsw.Connection(":memory:")
    try:
        for each in statements:
            scratch.execute(each)
        return _read(scratch)
    finally:
        scratch.close()


def check_tables(connection: apsw.Connection, expected: Schema) -> None:
    """Raise unless the expected tables, and everything on them, are exactly as expected."""
    tables = {table for _, _, table in expected}
    found = {key: sql for key, sql in _read(connection).items() if key[2] in tables}
    _refuse(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))


def check_all(connection: apsw.Connection, expected: Schema, earlier: Schema) -> None:
    """Raise if the file has anything that is not expected; tables may be missing.

    `earlier` has the tables of earlier formats.
    """
    for each in _STATISTICS:
        name = each.removeprefix("CREATE TABLE ").partition("(")[0]
        expected = {**expected, ("table", name, name): _normalized(each)}
    _refuse(
        key
        for key, sql in _read(connection).items()
        if sql not in (expected.get(key), earlier.get(key))
    )


def _read(connection: apsw.Connection) -> Schema:
    return {
        (str(kind), str(name), str(table)): _normalized(str(sql))
        for kind, name, table, sql in connection.execute(_OBJECTS)
    }


def _normalized(sql: str) -> str:
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(sql.split()))


def _refuse(differing: Iterable[tuple[str, str, str]]) -> None:
    names = sorted(f"{kind} {name[:64]!r}" for kind, name, _ in differing)
    if names:
        raise DamageError(
            "StoreDamaged",
            f"The schema of the database is not that of Partita: {', '.join(names[:5])}.",
            facts={"objects": len(names)},
            hint="Restore a backup that you trust; the file was changed by another program.",
        )
