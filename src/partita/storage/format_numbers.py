"""The format numbers of a database, protected against damage: SQLite has no checksums.

    format              one row for each system: its name and the number of its tables
    application_id      APPLICATION_ID
    user_version        a checksum of the rows of `format`

A number that does not match the checksum was damaged, not written by another version. Databases
from before the checksum have 0 there, and 1 for every system.
"""

import contextlib
from collections.abc import Iterator
from zlib import crc32

import apsw

from partita.errors import DamageError, FormatVersionError

APPLICATION_ID = 0x50415254
"""`PART` in the header of the file: other SQLite files are refused."""
_UNMARKED = 0


@contextlib.contextmanager
def guarded_numbers(connection: apsw.Connection) -> Iterator[None]:
    """Raise if format numbers are damaged; record their checksum when the block has changed them.

    For use in a transaction.
    """
    numbers, mark = _numbers_in(connection), connection.pragma("user_version")
    is_unmarked = mark == _UNMARKED and set(numbers.values()) == {1}
    if numbers and mark != _mark_of(numbers) and not is_unmarked:
        raise _damaged("its format numbers do not match their checksum")
    yield
    now = _mark_of(_numbers_in(connection))
    if now != mark:
        connection.pragma("user_version", now)


def refuse_foreign(connection: apsw.Connection) -> None:
    """Raise unless a database was written by Partita."""
    if connection.pragma("application_id") == APPLICATION_ID:
        return
    if _has_numbers(connection):
        raise _damaged("its application id was changed")
    raise FormatVersionError(
        "FormatVersion",
        "The database file was not written by Partita.",
        hint="Choose another folder, or move the file account.sqlite to another one.",
    )


def _has_numbers(connection: apsw.Connection) -> bool:
    query = "SELECT count(*) FROM sqlite_schema WHERE name = 'format'"
    return bool(connection.execute(query).get)


def _numbers_in(connection: apsw.Connection) -> dict[str, object]:
    if not _has_numbers(connection):
        return {}
    return dict(connection.execute("SELECT system, version FROM format ORDER BY system"))


def _mark_of(numbers: dict[str, object]) -> int:
    text = ",".join(f"{system}={number}" for system, number in sorted(numbers.items()))
    return (crc32(text.encode()) & 0x7FFF_FFFF) or 1


def _damaged(reason: str) -> DamageError:
    return DamageError(
        "StoreDamaged",
        f"The database file is damaged: {reason}.",
        hint="Restore a backup: partita account restore.",
    )
