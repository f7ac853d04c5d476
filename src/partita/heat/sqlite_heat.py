"""`heat.sqlite` in the folder of an account, or in memory.

    heat   table (lower-cased; '' the others), seconds (60, 600), start | name, sums, axis (packed)

It is not synced: a power cut may lose the last minutes, or damage the file, which is then put
aside. The account itself is never affected. Methods run in a thread of their own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import apsw

from partita.errors import DamageError, FormatVersionError, PartitaError, UnavailableError
from partita.heat.axes import COUNTERS, Axis, merge, total
from partita.heat.kept import IN_MEMORY, Column, Retention, TableTotal, chosen, ten_of
from partita.heat.limits import MINUTE_SECONDS, TEN_SECONDS
from partita.heat.minutes import Axes
from partita.heat.packing import pack, unpack
from partita.storage.folder import make_private

logger = logging.getLogger("partita.heat")

HEAT_FILE = "heat.sqlite"
FORMAT = 1
"""The `user_version` of the file."""
DAMAGED = -1
"""The `user_version` of a file with an axis that cannot be read: the next start puts it aside."""
BUSY_MS = 2000
_ENDS = ("", "-wal", "-shm")

T = TypeVar("T")

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS heat (
  folded TEXT NOT NULL, seconds INTEGER NOT NULL, start INTEGER NOT NULL, name TEXT NOT NULL,
  {"".join(f"{counter} INTEGER NOT NULL, " for counter in COUNTERS)}axis BLOB NOT NULL,
  PRIMARY KEY (folded, seconds, start)
);
CREATE INDEX IF NOT EXISTS heat_start ON heat (seconds, start);
PRAGMA user_version = {FORMAT};
"""
_PUT = f"INSERT OR REPLACE INTO heat VALUES (?, ?, ?, ?, {', '.join('?' * len(COUNTERS))}, ?)"  # noqa: S608
_FIND = "SELECT axis FROM heat WHERE folded = ? AND seconds = ? AND start = ?"
_OPEN_AGAIN = f"""
DELETE FROM heat WHERE seconds = {TEN_SECONDS} AND start = :ten AND EXISTS (
  SELECT 1 FROM heat WHERE seconds = {MINUTE_SECONDS} AND start >= :ten
    AND start < :ten + {TEN_SECONDS})
"""  # noqa: S608 - only numbers
_UNSETTLED = f"""
SELECT DISTINCT folded, start - start % {TEN_SECONDS} AS ten FROM heat AS minute
 WHERE seconds = {MINUTE_SECONDS} AND start < :ten AND NOT EXISTS (
   SELECT 1 FROM heat WHERE folded = minute.folded AND seconds = {TEN_SECONDS}
      AND start = minute.start - minute.start % {TEN_SECONDS})
"""  # noqa: S608 - only numbers
_MINUTES = f"""
SELECT name, axis FROM heat
 WHERE folded = ? AND seconds = {MINUTE_SECONDS} AND start >= ? AND start < ? ORDER BY start
"""  # noqa: S608 - only numbers
_FORGET = "DELETE FROM heat WHERE seconds = ? AND NOT start BETWEEN ? AND ?"
_READ = """
SELECT start, seconds, axis FROM heat
 WHERE folded = ? AND start + seconds > ? AND start < ? ORDER BY start
"""
_SUMS = ", ".join(f"sum({counter})" for counter in COUNTERS)
_TABLES = f"""
SELECT max(name), {_SUMS} FROM heat AS found
 WHERE start + seconds > :since AND start < :to AND (seconds = {MINUTE_SECONDS} OR NOT EXISTS (
   SELECT 1 FROM heat WHERE folded = found.folded AND seconds = {MINUTE_SECONDS}
      AND start >= found.start AND start < found.start + {TEN_SECONDS}))
 GROUP BY folded ORDER BY sum(reads) + sum(writes) DESC
"""  # noqa: S608 - the names of counters


class SqliteHeat:
    """The axes of one account; build it with `open`."""

    is_shared = False

    def __init__(self, connection: apsw.Connection, folder: Path | None) -> None:
        self._connection = connection
        self._folder = folder
        self._retention = IN_MEMORY if folder is None else Retention()
        self._thread = ThreadPoolExecutor(1, "partita-heat")

    @classmethod
    async def open(cls, folder: Path | None) -> "SqliteHeat":
        """Open the file of a folder, None: in memory. A damaged file is put aside."""
        return await asyncio.to_thread(cls._open, folder)

    @classmethod
    def _open(cls, folder: Path | None) -> "SqliteHeat":
        if folder is None:
            return cls(_created(apsw.Connection(":memory:")), None)
        path = folder / HEAT_FILE
        try:
            return cls(_opened(path), folder)
        except FormatVersionError:
            raise
        except DamageError:
            aside = path.with_suffix(".damaged")
            for end in _ENDS[1:]:
                path.with_name(path.name + end).unlink(missing_ok=True)
            path.replace(aside)
            logger.warning("heat: %s is damaged and was renamed to %s", path, aside.name)
            return cls(_opened(path), folder)

    @classmethod
    def beside(cls, folder: Path) -> "SqliteHeat":
        """Open the file for reading while a server may write it; raise if there is none."""
        path = folder / HEAT_FILE
        try:
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
            connection.set_busy_timeout(BUSY_MS)
            connection.pragma("query_only", 1)
            _check_format(connection)
        except apsw.Error as error:
            raise _failed(error, folder) from error
        return cls(connection, folder)

    async def add(self, start: int, axes: Axes, now: int) -> None:
        await self._do(lambda: self._add(start, axes, now))

    async def read(self, folded: str, since: int, to: int) -> list[Column]:
        return await self._do(lambda: self._read(folded, since, to))

    async def tables(self, since: int, to: int) -> list[TableTotal]:
        return await self._do(lambda: self._tables(since, to))

    async def close(self) -> None:
        with contextlib.suppress(PartitaError):  # what is not written yet may be lost
            await self._do(self._connection.close)
        self._thread.shutdown()

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._marking_damage, work
            )
        except apsw.Error as error:
            raise _failed(error, self._folder) from error

    def _marking_damage(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except DamageError:
            with contextlib.suppress(apsw.Error):  # a reader beside the server changes nothing
                self._connection.pragma("user_version", DAMAGED)
            raise

    def _add(self, start: int, axes: Axes, now: int) -> None:
        with self._connection:
            for folded, table in axes.items():
                known = self._rows(_FIND, folded, MINUTE_SECONDS, start)
                axes_known = [unpack(packed) for (packed,) in known]
                axis = merge([*axes_known, table.axis]) if known else table.axis
                self._put(folded, MINUTE_SECONDS, start, table.name, axis)
            self._rows(_OPEN_AGAIN, ten=ten_of(start))
            for folded, ten in self._rows(_UNSETTLED, ten=ten_of(now)):
                self._settle(folded, ten)
            for seconds in (MINUTE_SECONDS, TEN_SECONDS):
                self._rows(_FORGET, seconds, *self._retention.bounds(seconds, now))

    def _settle(self, folded: str, ten: int) -> None:
        """Add the axis of ten minutes that are over."""
        minutes = self._rows(_MINUTES, folded, ten, ten + TEN_SECONDS)
        axis = merge(unpack(packed) for _name, packed in minutes)
        self._put(folded, TEN_SECONDS, ten, minutes[-1][0], axis)

    def _put(self, folded: str, seconds: int, start: int, name: str, axis: Axis) -> None:
        self._rows(_PUT, folded, seconds, start, name, *total(axis), pack(axis))

    def _read(self, folded: str, since: int, to: int) -> list[Column]:
        rows = self._rows(_READ, folded, since, to)
        return chosen(Column(start, seconds, unpack(packed)) for start, seconds, packed in rows)

    def _tables(self, since: int, to: int) -> list[TableTotal]:
        rows = self._rows(_TABLES, since=since, to=to)
        return [TableTotal(name, tuple(counts)) for name, *counts in rows]

    def _rows(self, statement: str, *values: object, **named: object) -> list[Any]:
        bindings: Any = named or values
        return self._connection.execute(statement, bindings).fetchall()


def _opened(path: Path) -> apsw.Connection:
    connection = None
    try:
        make_private(path)
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(BUSY_MS)
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "OFF")
        if connection.pragma("quick_check", 1) != "ok":
            raise apsw.CorruptError
        return _created(connection)
    except (apsw.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise _failed(error, path.parent) from error


def _created(connection: apsw.Connection) -> apsw.Connection:
    if connection.pragma("user_version"):
        _check_format(connection)
    connection.execute(_SCHEMA)
    return connection


def _check_format(connection: apsw.Connection) -> None:
    found = connection.pragma("user_version")
    if found == DAMAGED:
        raise apsw.CorruptError
    if found != FORMAT:
        connection.close()
        raise FormatVersionError(
            "FormatVersion",
            f"The file {HEAT_FILE} has format {found}; this Partita has {FORMAT}.",
            hint="Upgrade Partita, or remove the file; only heat is lost.",
        )


def _failed(error: apsw.Error | OSError, folder: Path | None) -> PartitaError:
    facts = {"folder": str(folder)}
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return DamageError(
            "HeatDamaged",
            f"The file {HEAT_FILE} is damaged.",
            facts=facts,
            hint="Restart the server, which puts it aside; only heat is lost.",
        )
    return UnavailableError(
        "HeatUnavailable",
        f"The file {HEAT_FILE} cannot be used: {error}.",
        facts=facts,
        hint="Check the free space of the disk and the permissions of the folder.",
    )
