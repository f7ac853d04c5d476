"""The embedded table store on one SQLite database, on disk or in memory.

An entity is a row of a WITHOUT ROWID table in key order, with its document and a JSONB column of
its short values, on which a residual filter is pushed down. The push-down may select too much,
never too little: the exact filter then decides.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw
import msgspec

from partita.clock import SystemClock
from partita.errors import (
    PartitaError,
    TableExistsError,
    TableNotFoundError,
    UnavailableError,
)
from partita.policies import Policy
from partita.refusals import not_found
from partita.storage.database import Database, Upgrades
from partita.storage.store_clock import StoreClock
from partita.tables import limits, pushdown
from partita.tables.entity import (
    Entity,
    EntityKey,
    pack_document,
    replaceable_entity,
    stored_entity,
)
from partita.tables.expectations import ANYTHING, NOTHING
from partita.tables.filters import Filter
from partita.tables.operations import Insert, InsertOrReplace
from partita.tables.paging import KeyRange, Page
from partita.tables.pushdown import Described
from partita.tables.reading.learned_index import (
    LearnedIndexes,
    Place,
    conditions_of,
    read_index,
)
from partita.tables.sqlite_scan import Scan, where_of
from partita.tables.store import Decide, Expected, Statistics, Table
from partita.ticks import Clock

FORMAT_VERSION = 2
SCHEMA = """
CREATE TABLE catalog (
  id INTEGER PRIMARY KEY AUTOINCREMENT, folded TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
  policies BLOB NOT NULL
);
CREATE TABLE dropped (id INTEGER PRIMARY KEY);
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE entity (
  tid INTEGER NOT NULL, pk TEXT NOT NULL, rk TEXT NOT NULL, ticks INTEGER NOT NULL,
  marks INTEGER NOT NULL, short BLOB, document BLOB NOT NULL, PRIMARY KEY (tid, pk, rk)
) WITHOUT ROWID;
"""


def _keep_documents(_connection: apsw.Connection) -> None:
    """Keep documents without a checksum: each gets one when it is written again."""


UPGRADES: Upgrades = {1: _keep_documents}

INLINE_ENTITIES_MAX = 128
"""A range without residual is first read on the loop: this many entities take 0.15 ms."""
MEMORY_SECONDS_MAX = 0.25
"""A scan in memory blocks the loop, so its pages end sooner."""
PURGE_ENTITIES = 200
"""Entities of a dropped table that one change removes."""
PURGE_PAUSE_SECONDS = 0.005

_GET = "SELECT ticks, document FROM entity WHERE tid = ? AND pk = ? AND rk = ?"
_GET_MANY = (
    "SELECT pk, rk, ticks, document FROM entity"
    " WHERE tid = ? AND pk = ? AND rk IN (SELECT value FROM json_each(?))"
)
_INSERT = (
    "INSERT INTO entity (tid, pk, rk, ticks, marks, short, document)"
    " VALUES (?, ?, ?, ?, ?, jsonb(?), ?) ON CONFLICT DO NOTHING"
)
_PUT = _INSERT.replace(
    "NOTHING",
    "UPDATE SET ticks = excluded.ticks,"
    " marks = excluded.marks, short = excluded.short, document = excluded.document",
)
_COUNT = (
    "SELECT count(*), coalesce(sum(length(document) - 5 * (substr(document, -1) = x'02')), 0)"
    " FROM entity WHERE "
)
"""Without the checksums of the documents."""
_REMOVE = "DELETE FROM entity WHERE tid = ? AND pk = ? AND rk = ?"
_PURGE = (
    "DELETE FROM entity WHERE tid = ?1 AND (pk, rk) IN"
    " (SELECT pk, rk FROM entity WHERE tid = ?1 ORDER BY pk, rk LIMIT ?2)"
)

_decode_policies = msgspec.json.Decoder(list[Policy]).decode
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class LongGroupError(Exception):
    """A group reads more than one turn of the loop allows."""


class SqliteTableStore:
    """A TableStore on a Database; see partita.tables.store for the contract."""

    _purging: "asyncio.Task[None] | None" = None

    def __init__(self, database: Database, clock: StoreClock) -> None:
        self.database = database
        self._clock = clock
        self._tables: dict[str, Table] = {}
        """Committed tables by folded name; changed only after a commit."""
        database.prepare("tables", FORMAT_VERSION, SCHEMA, UPGRADES)
        for identity, name in database.reader.execute("SELECT id, name FROM catalog"):
            self._tables[_folded(name)] = Table(identity, name)
        self._cursors: dict[apsw.Connection, apsw.Cursor] = {}
        """One per connection of the loop: a new cursor costs as much as binding the keys."""
        self.indexes = LearnedIndexes(lambda: database.is_changing)
        database.on_begin.append(lambda _connection: self.indexes.touched.clear())
        # Folders of older versions have their mark here; it is not updated any more.
        clock.not_before(
            database.reader.execute("SELECT value FROM setting WHERE name = 'ticks'").get or 0
        )

    @classmethod
    async def open(
        cls,
        database: Database,
        clock: Clock | None = None,
        *,
        store_clock: StoreClock | None = None,
    ) -> "SqliteTableStore":
        """Open the tables of a database; `store_clock` is shared with its other stores."""
        store = cls(database, store_clock or StoreClock(database, clock or SystemClock()))
        if database.reader.execute("SELECT EXISTS (SELECT 1 FROM dropped)").get:
            store._start_purge()
        return store

    async def close(self) -> None:
        if self._purging is not None:
            self._purging.cancel()
            await asyncio.wait([self._purging])
        await self.database.close()
        self._cursors.clear()

    # Tables

    async def find_table(self, name: str) -> Table | None:
        return self._tables.get(name.lower() if name.isascii() else name)

    def find_table_here(self, name: str) -> Table | None:
        """Find a table in any thread."""
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
                raise not_found(TableNotFoundError, {"table": name})
            connection.execute("INSERT INTO dropped VALUES (?)", (identity,))
        if (table := self._tables.get(folded)) is not None and table.id == identity:
            del self._tables[folded]
            self.indexes.drop_table(table.id)
        self._start_purge()

    async def list_tables(self, start: str, limit: int) -> list[Table]:
        names = sorted(name for name in self._tables if name >= start)
        return [self._tables[name] for name in names[:limit]]

    # Entities

    async def get(self, table: Table, key: EntityKey) -> Entity | None:
        return self.get_now(table, key)

    def get_now(self, table: Table, key: EntityKey) -> Entity | None:
        """Read an entity on the loop, which takes some microseconds."""
        reader = self.database.reader_of_this_turn()
        cursor = self._cursors.get(reader) or self._cursor_of(reader)
        rows: list[Any] = cursor.execute(_GET, (table.id, *key)).fetchall()
        return stored_entity(key[0], key[1], *rows[0]) if rows else None

    def get_here(self, table: Table, key: EntityKey) -> Entity | None:
        """Read an entity in any thread; for a store on disk only."""
        rows = self.database.read_here(lambda reader: _rows(reader, _GET, (table.id, *key)))
        return stored_entity(key[0], key[1], *rows[0]) if rows else None

    async def scan(self, table: Table, span: KeyRange, residual: Filter | None, limit: int) -> Page:
        if span.is_empty or limit <= 0:
            return Page([])
        scan = Scan(table, span, residual, limit, self._clock.clock)
        if residual is None and span.single_partition() is not None:
            inline = min(limit, INLINE_ENTITIES_MAX)
            page = scan.read_plain(self.database.reader_of_this_turn(), inline)
            if page.continuation is None or inline == limit:
                return page
        if residual is not None:
            found = await self._scan_by_index(scan, table, span, residual)
            if found is not None:
                return found
        if self.database.folder is None:
            return await self.database.in_reader(partial(scan.read, seconds=MEMORY_SECONDS_MAX))
        return await self.database.in_reader(scan.read)

    async def _scan_by_index(
        self, scan: Scan, table: Table, span: KeyRange, residual: Filter
    ) -> Page | None:
        """Read a page by a learned index, which this scan may make; None if none helps."""
        partition_key = span.lower.partition_key
        whole = KeyRange.of_partition(partition_key)
        # A range of row keys may be so short that reading it is cheaper.
        conditions = conditions_of(residual) if span.upper == whole.upper else ()
        if not conditions:
            return None
        place = (table.id, partition_key)
        candidates = self.indexes.find(place, conditions)
        if candidates is None:
            if span != whole or not await self._make_index(place, conditions[0].name):
                return None
            candidates = self.indexes.find(place, conditions)
            if candidates is None:
                return None
        if candidates.count <= INLINE_ENTITIES_MAX:
            return scan.read_candidates(self.database.reader_of_this_turn(), candidates)
        page = await self.database.in_reader(partial(scan.read_candidates, candidates=candidates))
        # If the partition was changed meanwhile, the rows may be newer than the index.
        return page if self.indexes.is_kept(place, candidates.index) else None

    async def _make_index(self, place: Place, name: str) -> bool:
        """Make an index if it is worth it; return whether it is kept."""
        mark = self.indexes.to_make(place, name)
        if mark is None:
            return False
        try:
            index = await self.database.in_reader(partial(read_index, place=place, name=name))
        except BaseException:
            self.indexes.give_up(place, mark, name)
            raise
        return self.indexes.keep(place, mark, name, index)

    async def change(  # noqa: PLR0913 - see TableStore
        self,
        table: Table,
        partition_key: str,
        row_keys: Sequence[str],
        decide: Decide,
        *,
        expected: Expected | None = None,
        frees_space: bool = False,
        is_long: bool = False,
    ) -> Sequence[Entity | None]:
        if len(row_keys) == 1:
            async with self.database.change(
                frees_space=frees_space, is_one_statement=True
            ) as connection:
                self._touch((table.id, partition_key))
                key = EntityKey(partition_key, row_keys[0])
                expectation = expected()[0] if expected is not None else None
                return self._change_one(connection, table, key, decide, expectation)

        place = (table.id, partition_key)

        def change_here(
            connection: apsw.Connection, bytes_max: int | None = None
        ) -> Sequence[Entity | None]:
            self._touch(place)
            before = _read(connection, table, partition_key, row_keys, bytes_max=bytes_max)
            entities = decide(before, self._clock.next())
            put = [entity for entity in entities if entity is not None]
            if put:
                put_entities(connection, table, put)
            if len(put) < len(row_keys):
                connection.executemany(
                    _REMOVE,
                    [
                        (table.id, partition_key, row_key)
                        for row_key, entity in zip(row_keys, entities, strict=True)
                        if entity is None
                    ],
                )
            return entities

        if not is_long:
            bytes_max = None if self.database.folder is None else limits.TURN_BYTES_MAX
            with contextlib.suppress(LongGroupError):
                async with self.database.change(frees_space=frees_space) as connection:
                    return change_here(connection, bytes_max)

        async def change_alone(connection: apsw.Connection) -> Sequence[Entity | None]:
            return change_here(connection)

        self.indexes.hold(place)
        try:
            return await self.database.run_alone(change_alone, frees_space=frees_space)
        finally:
            self.indexes.release(place)

    async def put(self, table: Table, operation: Insert | InsertOrReplace) -> Entity | None:
        """Apply an insert or upsert by one statement; return when it is durable.

        Returns None, with nothing changed, if `change` must decide.
        """
        database = self.database
        connection = database.enter_now() or await database.enter(frees_space=False)
        key = operation.key
        self._touch((table.id, key.partition_key))
        entity: Entity | None = None
        try:
            entity = operation.apply(None, self._clock.next())
            is_insert = type(operation) is Insert
            self._cursor_of(connection).execute(
                _INSERT if is_insert else _PUT, _row_of(table, entity)
            )
            if is_insert and not connection.changes():
                entity = None
        except BaseException as error:
            database.leave(error, has_savepoint=False)
            raise
        await database.durable(database.leave(None, has_savepoint=False))
        return entity

    def _touch(self, place: Place) -> None:
        """Drop the indexes of a partition that is about to change."""
        self.indexes.touched.add(place)
        if place in self.indexes.partitions:
            self.indexes.drop(place)

    def _change_one(
        self,
        connection: apsw.Connection,
        table: Table,
        key: EntityKey,
        decide: Decide,
        expectation: int | None,
    ) -> Sequence[Entity | None]:
        """Change one entity by one statement; read it before only if the decision needs it."""
        cursor = self._cursor_of(connection)
        if expectation in (NOTHING, ANYTHING):
            try:
                entities = decide({}, self._clock.next())
            except PartitaError:
                pass  # what is stored may be refused for another reason
            else:
                assert entities[0] is not None  # only a delete removes, and it expects something
                statement = _INSERT if expectation == NOTHING else _PUT
                cursor.execute(statement, _row_of(table, entities[0]))
                if expectation == ANYTHING or connection.changes():
                    return entities
        rows: list[Any] = cursor.execute(_GET, (table.id, *key)).fetchall()
        before = {key.row_key: replaceable_entity(*key, *rows[0])} if rows else {}
        entities = decide(before, self._clock.next())
        if entities[0] is not None:
            cursor.execute(_PUT, _row_of(table, entities[0]))
        else:
            cursor.execute(_REMOVE, (table.id, *key))
        return entities

    def _cursor_of(self, connection: apsw.Connection) -> apsw.Cursor:
        cursor = self._cursors.get(connection)
        return cursor or self._cursors.setdefault(connection, connection.cursor())

    def places(self, table: Table, span: KeyRange) -> Sequence[str]:  # noqa: ARG002 - one file
        return ()

    async def statistics(self, table: Table, span: KeyRange) -> Statistics:
        where, parameters = where_of(table, span)

        def read(connection: apsw.Connection) -> Statistics:
            row: Any = connection.execute(
                _COUNT + where,
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


def _read(
    connection: apsw.Connection,
    table: Table,
    partition_key: str,
    row_keys: Sequence[str],
    *,
    bytes_max: int | None,
) -> dict[str, Entity]:
    """Read the entities that exist; raise LongGroupError above the limit, if there is one."""
    parameters = (table.id, partition_key, _encode(row_keys).decode())
    found: dict[str, Entity] = {}
    size = 0
    for row in connection.execute(_GET_MANY, parameters):
        found[row[1]] = entity = replaceable_entity(*row)
        size += len(entity.document)
        if bytes_max is not None and size > bytes_max:
            raise LongGroupError
    return found


def put_entities(connection: apsw.Connection, table: Table, entities: Sequence[Entity]) -> None:
    """Insert or replace the rows of entities."""
    connection.executemany(_PUT, [_row_of(table, entity) for entity in entities])


def _row_of(table: Table, entity: Entity) -> tuple[Any, ...]:
    properties = entity.properties()
    columns = (
        properties.columns if type(properties) is Described else pushdown.columns_of(properties)
    )
    return (
        table.id,
        entity.partition_key,
        entity.row_key,
        entity.ticks,
        *columns,
        pack_document(entity.ticks, entity.document),
    )


def _rows(connection: apsw.Connection, sql: str, parameters: tuple[Any, ...]) -> list[Any]:
    return connection.execute(sql, parameters).fetchall()


def _set_setting(connection: apsw.Connection, name: str, value: bytes) -> None:
    connection.execute(
        "INSERT INTO setting VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
        (name, value),
    )


def _folded(name: str) -> str:
    """Fold the case of a name: of ASCII only, because the Kelvin sign is not a k."""
    return name.lower() if name.isascii() else name


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even if the caller is cancelled: the cache must follow every commit."""
    return await asyncio.shield(asyncio.ensure_future(work))
