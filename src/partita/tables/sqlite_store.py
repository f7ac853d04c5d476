"""The embedded table store on one SQLite database; in memory it serves `--in-memory`.

An entity is a row of a WITHOUT ROWID table in key order, with its ready-made document and a
JSONB column of its short values, on which a residual filter is pushed down. The push-down may
select too much, never too little: the exact filter decides on what comes back.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import apsw
import msgspec

from partita.clock import TICKS_A_SECOND, Clock, SystemClock
from partita.database import Database
from partita.errors import TableExistsError, TableNotFoundError, UnavailableError
from partita.tables import limits, pushdown
from partita.tables.entity import Entity, EntityKey
from partita.tables.filters import Filter, Predicate, compile_filter
from partita.tables.paging import KeyRange, Page, after
from partita.tables.store import Policy, Statistics, Table

FORMAT_VERSION = 1
SCHEMA = """
CREATE TABLE catalog (
  id INTEGER PRIMARY KEY AUTOINCREMENT, folded TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
  policies BLOB NOT NULL
);
CREATE TABLE dropped (id INTEGER PRIMARY KEY);
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE entity (
  tid INTEGER NOT NULL, pk TEXT NOT NULL, rk TEXT NOT NULL, ticks INTEGER NOT NULL,
  short BLOB, document BLOB NOT NULL, PRIMARY KEY (tid, pk, rk)
) WITHOUT ROWID;
"""

TICKS_RESERVED = TICKS_A_SECOND
"""How far ahead the high-water mark of the store's clock is written."""
INLINE_ENTITIES_MAX = 128
"""A range without residual is first tried on the loop: up to this many entities take 0.15 ms."""
CHUNK_ENTITIES = 12_000
"""A long filtered scan looks at this many entities at a time."""
WHOLE_RANGE_SECONDS = 0.02
"""How long a filtered scan may look at a range as a whole before it goes on by steps."""
PROGRESS_INSTRUCTIONS = 20_000
"""SQLite asks for the time after so many instructions: about every millisecond."""
PURGE_ENTITIES = 200
"""Entities of a dropped table that one change removes."""
PURGE_PAUSE_SECONDS = 0.005

_GET = "SELECT ticks, document FROM entity WHERE tid = ? AND pk = ? AND rk = ?"
_PUT = (
    "INSERT INTO entity (tid, pk, rk, ticks, short, document) VALUES (?, ?, ?, ?, jsonb(?), ?)"
    " ON CONFLICT DO UPDATE SET"
    " ticks = excluded.ticks, short = excluded.short, document = excluded.document"
)
_REMOVE = "DELETE FROM entity WHERE tid = ? AND pk = ? AND rk = ?"
_PURGE = (
    "DELETE FROM entity WHERE tid = ?1 AND (pk, rk) IN"
    " (SELECT pk, rk FROM entity WHERE tid = ?1 ORDER BY pk, rk LIMIT ?2)"
)
_ROWS = "SELECT pk, rk, ticks, document FROM entity WHERE "

_decode_policies = msgspec.json.Decoder(list[Policy]).decode
_decode_members = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode
_encode = msgspec.json.Encoder().encode

Row = tuple[str, str, int, bytes]
T = TypeVar("T")


class SqliteTableStore:
    """A TableStore on a Database; see partita.tables.store for the contract."""

    _purging: "asyncio.Task[None] | None" = None

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self._clock = clock
        self._tables: dict[str, Table] = {}
        """Committed tables by folded name; moved only when a commit has ended."""
        database.prepare("tables", FORMAT_VERSION, SCHEMA)
        for identity, name in database.reader.execute("SELECT id, name FROM catalog"):
            self._tables[_folded(name)] = Table(identity, name)
        self._last_ticks: int = (
            database.reader.execute("SELECT value FROM setting WHERE name = 'ticks'").get or 0
        )
        """Ticks of the last change; at start, the persisted mark that no change has passed."""
        self._reserved_ticks = 0
        """No change may pass this mark before a later one is written."""
        database.on_begin.append(self._reserve_ticks)
        database.on_rollback.append(self._forget_reserve)
        self._point_read = database.reader.cursor()

    @classmethod
    async def open(cls, database: Database, clock: Clock | None = None) -> "SqliteTableStore":
        store = cls(database, clock or SystemClock())
        if database.reader.execute("SELECT EXISTS (SELECT 1 FROM dropped)").get:
            store._start_purge()
        return store

    async def close(self) -> None:
        if self._purging is not None:
            self._purging.cancel()
            await asyncio.wait([self._purging])
        self._point_read.close()
        await self.database.close()

    # Tables

    async def find_table(self, name: str) -> Table | None:
        return self._tables.get(_folded(name))

    async def create_table(self, name: str) -> Table:
        return await _unbroken(self._create_table(name))

    async def _create_table(self, name: str) -> Table:
        async with self.database.change() as connection:
            try:
                connection.execute(
                    "INSERT INTO catalog (folded, name, policies) VALUES (?, ?, ?)",
                    (_folded(name), name, b"[]"),
                )
            except apsw.ConstraintError as error:
                raise TableExistsError(
                    "TableAlreadyExists",
                    "The table specified already exists.",
                    facts={"table": name},
                ) from error
            table = Table(connection.last_insert_rowid(), name)
        self._tables[_folded(name)] = table
        return table

    async def delete_table(self, name: str) -> None:
        await _unbroken(self._delete_table(name))

    async def _delete_table(self, name: str) -> None:
        folded = _folded(name)
        async with self.database.change(frees_space=True) as connection:
            identity = connection.execute(
                "DELETE FROM catalog WHERE folded = ? RETURNING id", (folded,)
            ).get
            if identity is None:
                raise TableNotFoundError(
                    "ResourceNotFound",
                    "The specified resource does not exist.",
                    facts={"table": name},
                )
            connection.execute("INSERT INTO dropped VALUES (?)", (identity,))
        if (table := self._tables.get(folded)) is not None and table.id == identity:
            del self._tables[folded]
        self._start_purge()

    async def list_tables(self, start: str, limit: int) -> list[Table]:
        names = sorted(name for name in self._tables if name >= start)
        return [self._tables[name] for name in names[:limit]]

    # Entities

    async def get(self, table: Table, key: EntityKey) -> Entity | None:
        self.database.share_snapshot()
        rows: list[Any] = self._point_read.execute(_GET, (table.id, *key)).fetchall()
        return Entity(key[0], key[1], *rows[0]) if rows else None

    async def scan(self, table: Table, span: KeyRange, residual: Filter | None, limit: int) -> Page:
        if span.is_empty or limit <= 0:
            return Page([])
        if residual is None and span.single_partition() is not None:
            wanted = min(limit, INLINE_ENTITIES_MAX)
            rows, size = _select_within(
                self.database.reader, table, span, None, (wanted + 1, limits.PAGE_BYTES_MAX)
            )
            if size < limits.PAGE_BYTES_MAX and (len(rows) <= wanted or wanted == limit):
                return _page_of(rows, limit)
        return await self._scan_in_reader(table, span, residual, limit)

    async def _scan_in_reader(
        self, table: Table, span: KeyRange, residual: Filter | None, limit: int
    ) -> Page:
        chunk = _Chunk(table, residual, self._clock)
        deadline = self._clock.monotonic() + limits.PAGE_SECONDS_MAX
        found: list[Row] = []
        position: KeyRange | None = span
        size = 0
        while position is not None and len(found) <= limit and size < limits.PAGE_BYTES_MAX:
            rows, position, read = await self.database.in_reader(
                chunk.reader(position, limit + 1 - len(found), limits.PAGE_BYTES_MAX - size)
            )
            found += rows
            size += read
            # Looked at behind the first step: every page gets on.
            if self._clock.monotonic() > deadline:
                break
        if len(found) > limit:
            return _page_of(found, limit)
        return Page([Entity(*row) for row in found], position.lower if position else None)

    @asynccontextmanager
    async def partition(
        self, table: Table, partition_key: str, *, frees_space: bool = False
    ) -> AsyncIterator["SqlitePartition"]:
        async with self.database.change(frees_space=frees_space) as connection:
            # A wall clock that leapt since the mark was written must not carry us past it.
            now = min(self._clock.ticks(), self._reserved_ticks)
            self._last_ticks = max(now, self._last_ticks + 1)
            yield SqlitePartition(connection, table, partition_key, self._last_ticks)

    async def statistics(self, table: Table, span: KeyRange) -> Statistics:
        where, parameters = _where(table, span)

        def read(connection: apsw.Connection) -> Statistics:
            row: Any = connection.execute(
                "SELECT count(*), coalesce(sum(length(document)), 0) FROM entity WHERE " + where,  # noqa: S608 - only our own text
                parameters,
            ).fetchall()[0]
            return Statistics(*row)

        return await self.database.in_reader(read)

    # Policies and settings

    async def get_policies(self, table: Table) -> list[Policy]:
        rows: list[Any] = self.database.reader.execute(
            "SELECT policies FROM catalog WHERE id = ?", (table.id,)
        ).fetchall()
        return _decode_policies(rows[0][0]) if rows else []

    async def set_policies(self, table: Table, policies: Sequence[Policy]) -> None:
        async with self.database.change() as connection:
            connection.execute(
                "UPDATE catalog SET policies = ? WHERE id = ?", (_encode(policies), table.id)
            )

    async def get_setting(self, name: str) -> bytes | None:
        rows: list[Any] = self.database.reader.execute(
            "SELECT value FROM setting WHERE name = ?", (name,)
        ).fetchall()
        return rows[0][0] if rows else None

    async def set_setting(self, name: str, value: bytes) -> None:
        async with self.database.change() as connection:
            _set_setting(connection, name, value)

    # The store's clock

    def _reserve_ticks(self, connection: apsw.Connection) -> None:
        upcoming = max(self._clock.ticks(), self._last_ticks) + TICKS_RESERVED // 2
        if upcoming > self._reserved_ticks:
            self._reserved_ticks = upcoming + TICKS_RESERVED // 2
            _set_setting(connection, "ticks", self._reserved_ticks)

    def _forget_reserve(self) -> None:
        self._reserved_ticks = 0

    # Space of dropped tables

    def _start_purge(self) -> None:
        if self._purging is None or self._purging.done():
            self._purging = asyncio.get_running_loop().create_task(self._purge())

    async def _purge(self) -> None:
        while self.database.is_writable:
            identity = self.database.reader.execute("SELECT id FROM dropped LIMIT 1").get
            if identity is None:
                return
            # A full or busy disk only delays the purge; a stopped one ends the loop.
            with contextlib.suppress(UnavailableError):
                await self._purge_some(identity)
            await asyncio.sleep(PURGE_PAUSE_SECONDS)

    async def _purge_some(self, identity: int) -> None:
        async with self.database.change(frees_space=True) as connection:
            connection.execute(_PURGE, (identity, PURGE_ENTITIES))
            if connection.changes() == 0:
                connection.execute("DELETE FROM dropped WHERE id = ?", (identity,))


class SqlitePartition:
    """What a group reads and writes inside its savepoint."""

    def __init__(
        self, connection: apsw.Connection, table: Table, partition_key: str, now: int
    ) -> None:
        self._connection = connection
        self._table = table
        self._partition_key = partition_key
        self.now = now

    async def read(self, row_keys: Sequence[str]) -> dict[str, Entity]:
        found: dict[str, Entity] = {}
        pk = self._partition_key
        for rk in row_keys:
            rows: list[Any] = self._connection.execute(_GET, (self._table.id, pk, rk)).fetchall()
            if rows:
                found[rk] = Entity(pk, rk, *rows[0])
        return found

    async def write(self, put: Iterable[Entity], remove: Iterable[EntityKey]) -> None:
        identity = self._table.id
        for entity in put:
            self._connection.execute(
                _PUT,
                (
                    identity,
                    entity.partition_key,
                    entity.row_key,
                    entity.ticks,
                    pushdown.describe(entity.properties()),
                    entity.document,
                ),
            )
        for key in remove:
            self._connection.execute(_REMOVE, (identity, *key))


class _Chunk:
    """One step of a scan, run in a reader thread: a bounded time, or number of entities."""

    is_long = False
    """Set when the range proved too long to be looked at in one go."""

    def __init__(self, table: Table, residual: Filter | None, clock: Clock) -> None:
        self.table = table
        self.clock = clock
        self.pushed = pushdown.translate(residual) if residual is not None else None
        self.matches = compile_filter(residual) if residual is not None else None

    def reader(
        self, span: KeyRange, wanted: int, budget: int
    ) -> Callable[[apsw.Connection], tuple[list[Row], KeyRange | None, int]]:
        def read(connection: apsw.Connection) -> tuple[list[Row], KeyRange | None, int]:
            bounds = wanted, budget
            rest: KeyRange | None = None
            if self.matches is None:
                rows, size = _select_within(connection, self.table, span, None, bounds)
            else:
                rows, size, rest = self._read_filtered(connection, span, bounds)
            if len(rows) == wanted or size >= budget:
                rest = _behind(span, rows[-1])
            return rows, rest, size

        return read

    def _read_filtered(
        self, connection: apsw.Connection, span: KeyRange, bounds: tuple[int, int]
    ) -> tuple[list[Row], int, KeyRange | None]:
        """Try the whole range for a moment; if that is too short, cut it into steps.

        Most ranges are short, and finding where a step ends costs an eighth of the step.
        """
        if not self.is_long:
            deadline = self.clock.monotonic() + WHOLE_RANGE_SECONDS
            connection.set_progress_handler(
                lambda: self.clock.monotonic() > deadline, PROGRESS_INSTRUCTIONS
            )
            try:
                found = _select_within(
                    connection, self.table, span, self.pushed, bounds, self.matches
                )
            except apsw.InterruptError:
                self.is_long = True
            else:
                return *found, None
            finally:
                connection.set_progress_handler(None)
        part, rest = self._cut(connection, span)
        found = _select_within(connection, self.table, part, self.pushed, bounds, self.matches)
        return *found, rest

    def _cut(self, connection: apsw.Connection, span: KeyRange) -> tuple[KeyRange, KeyRange | None]:
        """Cut a range behind the number of entities that one step may look at."""
        where, parameters = _where(self.table, span)
        end: list[Any] = connection.execute(
            f"SELECT pk, rk FROM entity WHERE {where} ORDER BY pk, rk LIMIT 1 OFFSET ?",  # noqa: S608 - only our own text
            (*parameters, CHUNK_ENTITIES),
        ).fetchall()
        if not end:
            return span, None
        key = EntityKey(*end[0])
        return KeyRange(span.lower, key), KeyRange(key, span.upper)


def _members_of(row: Row) -> Mapping[str, object]:
    return _decode_members(b"{" + row[3])


def _behind(span: KeyRange, row: Row) -> KeyRange | None:
    rest = KeyRange(EntityKey(row[0], after(row[1])), span.upper)
    return None if rest.is_empty else rest


def _page_of(rows: list[Row], limit: int) -> Page:
    entities = [Entity(*row) for row in rows[:limit]]
    return Page(entities, EntityKey(*rows[limit][:2]) if len(rows) > limit else None)


def _where(table: Table, span: KeyRange) -> tuple[str, tuple[Any, ...]]:
    (pk, rk), upper = span.lower, span.upper
    if span.single_partition() is not None:
        assert upper is not None
        if upper.partition_key == pk:
            return "tid = ? AND pk = ? AND rk >= ? AND rk < ?", (table.id, pk, rk, upper.row_key)
        return "tid = ? AND pk = ? AND rk >= ?", (table.id, pk, rk)
    if upper is None:
        return "tid = ? AND (pk, rk) >= (?, ?)", (table.id, pk, rk)
    return "tid = ? AND (pk, rk) >= (?, ?) AND (pk, rk) < (?, ?)", (table.id, pk, rk, *upper)


def _select_within(
    connection: apsw.Connection,
    table: Table,
    span: KeyRange,
    pushed: pushdown.Sql | None,
    bounds: tuple[int, int],
    matches: Predicate | None = None,
) -> tuple[list[Row], int]:
    """Read matching rows until a count or a number of document bytes is reached."""
    limit, budget = bounds
    where, parameters = _where(table, span)
    if pushed is not None:
        where, parameters = f"{where} AND ({pushed[0]})", (*parameters, *pushed[1])
    statement = f"{_ROWS}{where} ORDER BY pk, rk"
    if matches is None:
        statement, parameters = statement + " LIMIT ?", (*parameters, limit)
    rows: list[Row] = []
    size = 0
    cursor = connection.execute(statement, parameters)
    for row in cursor:
        if matches is not None and not matches(_members_of(row)):
            continue
        rows.append(row)
        size += len(row[3])
        if size >= budget or len(rows) == limit:
            break
    cursor.close()
    return rows, size


def _set_setting(connection: apsw.Connection, name: str, value: bytes | int) -> None:
    connection.execute(
        "INSERT INTO setting VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
        (name, value),
    )


def _folded(name: str) -> str:
    """Return what matches names without case: of ASCII only, or the Kelvin sign would be a k."""
    return name.lower() if name.isascii() else name


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work though the caller is cancelled: memory must learn of every commit."""
    return await asyncio.shield(asyncio.ensure_future(work))
