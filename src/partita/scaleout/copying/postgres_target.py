"""PostgreSQL as the target of a copy: COPY in batches, each with the record of how far it is.

Nothing that is copied has a name before the end, so front ends see an account that does not exist,
or is empty. `schema.copying` has the tables of the record. Each run takes the record over: a
forgotten process that still runs can write nothing more.
"""

import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from partita.blobs.store.contract import EMPTY
from partita.queues.message import pack_text
from partita.scaleout.blobs.contents import Contents
from partita.scaleout.blobs.objects import NoObjects, open_objects
from partita.scaleout.blobs.texts import NAME_BYTES_MAX
from partita.scaleout.catalog.fleet_clock import FleetClock
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import DriverError, translated
from partita.scaleout.copying.contract import (
    Pieces,
    not_empty,
    other_source,
    served,
    taken_over,
    unstorable,
)
from partita.scaleout.copying.parts import (
    EXTENT_HASH,
    CopyPart,
    Kind,
    Moment,
    Row,
    State,
    key_of,
    states_of,
)
from partita.scaleout.copying.postgres_objects import CopiedObjects
from partita.scaleout.copying.postgres_rows import PostgresRows
from partita.scaleout.copying.postgres_source import check_schema, fetch
from partita.scaleout.fleet import ALIVE_TICKS
from partita.scaleout.schema.blobs import NUMBERS_TAKEN
from partita.scaleout.tables.postgres_store import KEY_BYTES_MAX
from partita.storage.durability import Durability
from partita.tables import pushdown
from partita.tables.entity import Entity, pack_document
from partita.ticks import Clock

_COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "extents": ("id", "size", "object", "checks", "bytes"),
    "contents": ("content", "place", "size", "start", "extent", "block"),
    "container": (
        *("container", "name", "snapshot", "is_committed", "content", "facts"),
        *("state", "expires_at"),
    ),
    "blocks": ("container", "name", "id", "extent", "size", "staged_at"),
    "table": ("tid", "pk", "rk", "ticks", "marks", "short", "document"),
    "queue": (
        *("queue_id", "sequence", "nonce", "inserted_at", "expires_at", "visible_at"),
        *("dequeue_count", "receipt", "text"),
    ),
}
_TABLES: Mapping[Kind, str] = {
    "extents": "extent",
    "contents": "piece",
    "container": "blob",
    "blocks": "block",
    "table": "entity",
    "queue": "message",
}
# The objects of erased extents are kept for the extents that are copied next, by claims.
_ERASE: Mapping[Kind, str] = {
    "extents": """
WITH gone AS (
  DELETE FROM partita.extent e USING partita.copy_id m
   WHERE m.account_id = $1 AND m.kind = 'e' AND e.id = m.target AND $2::bigint = 0
  RETURNING e.object)
INSERT INTO partita.upload_claim (object, claimed_at)
SELECT DISTINCT object, partita.ticks_1() FROM gone WHERE object IS NOT NULL
""",
    "contents": """
DELETE FROM partita.piece p USING partita.copy_id m
 WHERE m.account_id = $1 AND m.kind = 'c' AND p.content = m.target AND $2::bigint = 0
""",
    "container": "DELETE FROM partita.blob WHERE $1::int > 0 AND container = $2",
    "blocks": "DELETE FROM partita.block WHERE $1::int > 0 AND container = $2",
    "table": "DELETE FROM partita.entity WHERE $1::int > 0 AND tid = $2",
    "queue": "DELETE FROM partita.message WHERE $1::int > 0 AND queue_id = $2",
}
_NAME: Mapping[Kind, str] = {
    "container": "INSERT INTO partita.container (account_id, id, name, facts)"
    " VALUES ($1, $2, $3, $4)",
    "table": "INSERT INTO partita.tables (account_id, id, folded, name, policies, version)"
    " VALUES ($1, $2, $3, $4, $5, 0)",
    # Without its other number: a trigger of the schema then opens the range.
    "queue": "INSERT INTO partita.queue (account_id, id, name, metadata, policies)"
    " VALUES ($1, $2, $3, $4, $5)",
}
_SETTING = "INSERT INTO partita.setting (account_id, name, value, version) VALUES ($1, $2, $3, 0)"
_HAS_ROWS = """
SELECT EXISTS (SELECT FROM partita.tables WHERE account_id = $1)
    OR EXISTS (SELECT FROM partita.queue WHERE account_id = $1)
    OR EXISTS (SELECT FROM partita.container WHERE account_id = $1)
    OR EXISTS (SELECT FROM partita.setting WHERE account_id = $1) AS has_rows
"""
_VERSIONS = """
WITH now AS MATERIALIZED (SELECT partita.catalog_changed_1() AS version),
     named AS (UPDATE partita.tables SET version = now.version FROM now WHERE account_id = $1)
UPDATE partita.setting SET version = now.version FROM now WHERE account_id = $1
"""
_OPEN_RANGES = """
SELECT partita.open_range_1(target) FROM partita.copy_part
 WHERE account_id = $1 AND kind = 'table' ORDER BY name
"""
_LAST_MESSAGE = """
SELECT coalesce(max(m.last), 0) FROM partita.copy_part p, LATERAL (
  SELECT max(m.sequence) AS last FROM partita.message m WHERE m.queue_id = p.target) m
 WHERE p.account_id = $1 AND p.kind = 'queue'
"""
_UPDATE = "UPDATE partita.copy_part SET {} WHERE account_id = $1 AND kind = $2 AND name = $3"
_PUT_PART = """
INSERT INTO partita.copy_part VALUES ($1, $2, $3, $4, $5, NULL, false, false)
ON CONFLICT (account_id, kind, name) DO UPDATE SET
  head = excluded.head, last = NULL, is_done = false, differs = false
"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Any, ...]).decode


class PostgresTarget:
    """An account of a database that has no data yet; `place` as for the source."""

    _account_id = 0
    _link: Link | None = None

    def __init__(
        self,
        location: Location,
        account: str,
        *,
        blob_store: str | None,
        durability: Durability,
        clock: Clock,
        place: str = "",
    ) -> None:
        self.identity = f"{place or location}, account {account}"
        self._account = account
        self._clock = clock
        self._connector = Connector(location, durability)
        self._pool = Pool(self._connector)
        self._blob_store = open_objects(blob_store)
        self._objects = CopiedObjects(self._pool, self._blob_store or NoObjects(), clock)
        self._run = uuid.UUID(clock.new_id())

    async def open(self) -> None:
        self._link = await self._connector.connect()
        await check_schema(self._connection)
        if self._blob_store is not None:
            contents = Contents(self._pool, FleetClock(self._clock), self._blob_store)
            try:
                await contents.check_owner(self._blob_store)
            finally:
                await contents.close()

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None
        await self._pool.close()

    @property
    def _connection(self) -> Any:
        assert self._link is not None
        return self._link.connection

    async def clocks(self) -> Moment:
        ((now,),) = await self._fetch("SELECT partita.ticks_1()")
        return Moment(now, now)

    # The record

    async def begin(self, source: str, shift: int) -> int:
        async with self._transaction():
            rows = await self._fetch(
                "SELECT a.id, c.source, c.shift FROM partita.account a LEFT JOIN partita.copy c"
                " ON c.account_id = a.id WHERE a.name = $1",
                self._account,
            )
            if rows and rows[0]["source"] is not None:
                self._account_id, recorded, shift = rows[0]
                if recorded != source:
                    raise other_source(self.identity, recorded)
                await self._fetch(
                    "UPDATE partita.copy SET run = $2 WHERE account_id = $1",
                    self._account_id,
                    self._run,
                )
                return shift
            await self._begin(rows[0]["id"] if rows else None, source, shift)
        return shift

    async def _begin(self, account_id: int | None, source: str, shift: int) -> None:
        if account_id is None:
            ((account_id,),) = await self._fetch(
                "INSERT INTO partita.account (name) VALUES ($1) RETURNING id", self._account
            )
        else:
            if (await self._fetch(_HAS_ROWS, account_id))[0]["has_rows"]:
                raise not_empty(self.identity)
            if await self._fetch(
                "SELECT 1 FROM partita.front_end WHERE seen_at > partita.ticks_1() - $1 LIMIT 1",
                ALIVE_TICKS,
            ):
                raise served(self.identity)
        assert account_id is not None
        self._account_id = account_id
        await self._fetch(
            "INSERT INTO partita.copy VALUES ($1, $2, $3, $4)", account_id, source, shift, self._run
        )

    async def states(self) -> dict[CopyPart, State]:
        rows = await self._fetch(
            "SELECT kind, name, target, head, last, is_done, differs FROM partita.copy_part"
            " WHERE account_id = $1",
            self._account_id,
        )
        return {
            CopyPart(kind, name): State(
                target, _decode(head), None if last is None else _decode(last), is_done, differs
            )
            for kind, name, target, head, last, is_done, differs in rows
        }

    async def start(self, part: CopyPart, head: Row, state: State | None) -> State:
        async with self._writing():
            if state is not None:
                target = state.target
                await self._erase(part, target)
            elif part.kind == "blocks":
                ((target,),) = await self._fetch(
                    "SELECT target FROM partita.copy_part"
                    " WHERE account_id = $1 AND kind = 'container' AND name = $2",
                    self._account_id,
                    part.name,
                )
            elif part.name:
                ((target,),) = await self._fetch("SELECT nextval('partita.object_id')")
            else:
                target = 0
            await self._fetch(
                _PUT_PART, self._account_id, part.kind, part.name, _encode(head), target
            )
        return State(target, head)

    async def drop(self, part: CopyPart, state: State) -> None:
        async with self._writing():
            await self._erase(part, state.target)
            await self._fetch(
                "DELETE FROM partita.copy_part WHERE account_id = $1 AND kind = $2 AND name = $3",
                self._account_id,
                part.kind,
                part.name,
            )

    async def complete(self, part: CopyPart) -> None:
        async with self._writing():
            await self._update(part, "is_done = true")

    async def repeat(self, parts: Sequence[CopyPart]) -> None:
        async with self._writing():
            for part in parts:
                await self._update(part, "is_done = false, differs = true")

    # Rows

    async def write(self, part: CopyPart, state: State, rows: Sequence[Row]) -> None:
        _check_keys(part, rows)
        async with self._writing():
            stored = await self._stored(part, state.target, rows)
            try:
                await self._connection.copy_records_to_table(
                    _TABLES[part.kind],
                    schema_name="partita",
                    columns=_COLUMNS[part.kind],
                    records=stored,
                )
            except DriverError as error:
                raise translated(error) from error
            if part.kind == "extents":
                await self._objects.take_claims(self._connection, rows)
            await self._update(part, "last = $4", _encode(key_of(part, rows[-1])))
        if part.kind == "extents":
            self._objects.forget_claims()

    async def _stored(self, part: CopyPart, target: int, rows: Sequence[Row]) -> Iterable[Row]:
        """Return rows as the tables of the database have them."""
        if part.kind == "table":
            return _entities(target, rows)
        if part.kind == "queue":
            return [(target, *row[:-1], pack_text(row[1], row[-1])) for row in rows]
        if part.kind == "extents":
            ids = await self._ids("e", (row[0] for row in rows))
            return [
                (ids[row[0]], row[1], self._objects.name_of(row[EXTENT_HASH]), *row[3:])
                for row in rows
            ]
        if part.kind == "contents":
            contents = await self._ids("c", (row[0] for row in rows))
            extents = await self._ids("e", (row[4] for row in rows))
            return [(contents[row[0]], *row[1:4], extents[row[4]], row[5]) for row in rows]
        if part.kind == "container":
            contents = await self._ids("c", (row[3] for row in rows))
            return [(target, *row[:3], contents[row[3]], row[4], *states_of(row)) for row in rows]
        extents = await self._ids("e", (row[2] for row in rows))
        return [(target, *row[:2], extents[row[2]], *row[3:]) for row in rows]

    async def _ids(self, kind: str, sources: Iterable[int]) -> dict[int, int]:
        """Return the numbers that extents or contents have here; new ones get one."""
        wanted = set(sources) - {EMPTY}
        rows = await self._fetch(
            "SELECT source, target FROM partita.copy_id"
            " WHERE account_id = $1 AND kind = $2 AND source = ANY ($3::bigint[])",
            self._account_id,
            kind,
            sorted(wanted),
        )
        found: dict[int, int] = dict(rows)
        missing = sorted(wanted - found.keys())
        ranges = await self._fetch(
            "SELECT nextval('partita.content_id') FROM generate_series(1, $1::int)",
            -(-len(missing) // NUMBERS_TAKEN),
        )
        numbers = (first + n for (first,) in ranges for n in range(NUMBERS_TAKEN))
        new = dict(zip(missing, numbers, strict=False))
        await self._fetch(
            "INSERT INTO partita.copy_id SELECT $1, $2, * FROM unnest($3::bigint[], $4::bigint[])",
            self._account_id,
            kind,
            list(new.keys()),
            list(new.values()),
        )
        return {**found, **new, EMPTY: EMPTY}

    async def rows(self, part: CopyPart, state: State, alive_at: int) -> AsyncGenerator[list[Row]]:
        rows = PostgresRows(self._connection, self._account_id, is_target=True)
        async with self._transaction():
            await self._fetch(
                "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)"
            )
            async for batch in rows.rows(part, None, alive_at, state.target):
                yield batch

    async def put_content(self, digest: bytes, size: int, pieces: Pieces) -> None:
        await self._objects.put(digest, size, pieces)

    async def digest_of(self, digest: bytes) -> bytes | None:
        return await self._objects.digest_of(digest, self._account_id)

    # The end

    async def forget(self) -> None:
        async with self._writing():
            await self._remove_record()

    async def _remove_record(self) -> None:
        for table in ("copy_id", "copy_part", "copy"):
            await self._fetch(
                f"DELETE FROM partita.{table} WHERE account_id = $1", self._account_id
            )

    async def finish(self, stamp: int) -> None:
        """Name everything; `stamp` is not needed: writes come after the ticks that they find."""
        del stamp
        states = await self.states()
        async with self._writing():
            if (await self._fetch(_HAS_ROWS, self._account_id))[0]["has_rows"]:
                raise not_empty(self.identity)
            for part, state in states.items():
                if part.kind in _NAME:
                    values = (self._account_id, state.target, part.name, *state.head)
                    await self._fetch(_NAME[part.kind], *values)
                if part.kind == "settings":
                    for name, value in zip(state.head[::2], state.head[1::2], strict=True):
                        await self._fetch(_SETTING, self._account_id, name, value)
            await self._fetch(_OPEN_RANGES, self._account_id)
            await self._number_messages()
            await self._remove_record()
            await self._fetch(_VERSIONS, self._account_id)

    async def _number_messages(self) -> None:
        """Let new messages have later numbers than those that were copied."""
        ((last,),) = await self._fetch(_LAST_MESSAGE, self._account_id)
        ((present,),) = await self._fetch("SELECT last_value FROM partita.message_sequence")
        if present > last:
            return
        # This locks the sequence: a number that a front end took meanwhile would be lost.
        await self._fetch("ALTER SEQUENCE partita.message_sequence NO CYCLE")
        await self._fetch(
            "SELECT setval('partita.message_sequence', greatest(last_value, $1))"
            " FROM partita.message_sequence",
            last,
        )

    # Statements

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        assert self._link is not None
        async with self._link.transaction():
            yield

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Run a transaction of the copy; refuse if another run has taken it over."""
        async with self._transaction():
            await self._fetch("SELECT pg_catalog.set_config('lock_timeout', '0', true)")
            rows = await self._fetch(
                "SELECT 1 FROM partita.copy WHERE account_id = $1 AND run = $2 FOR UPDATE",
                self._account_id,
                self._run,
            )
            if not rows:
                raise taken_over(self.identity)
            yield

    async def _erase(self, part: CopyPart, target: int) -> None:
        if part.kind in _ERASE:
            await self._fetch(_ERASE[part.kind], self._account_id, target)

    async def _update(self, part: CopyPart, change: str, *values: object) -> None:
        await self._fetch(_UPDATE.format(change), self._account_id, part.kind, part.name, *values)

    async def _fetch(self, statement: str, *values: object) -> list[Any]:
        return await fetch(self._connection, statement, *values)


def _entities(target: int, rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        entity = Entity(*row)
        properties = entity.properties()
        yield (
            target,
            *row[:3],
            *pushdown.columns_of(properties),
            pack_document(entity.ticks, entity.document),
        )


def _check_keys(part: CopyPart, rows: Sequence[Row]) -> None:
    """Refuse keys that PostgreSQL cannot store or index."""
    if part.kind == "table":
        longest, texts = KEY_BYTES_MAX, [row[0] + row[1] for row in rows]
    elif part.kind == "container":
        longest, texts = NAME_BYTES_MAX, [row[0] for row in rows]
    else:
        return
    for row, text in zip(rows, texts, strict=True):
        if len(text) * 4 > longest and len(text.encode()) > longest:
            raise unstorable(part, key_of(part, row), f"has more than {longest} bytes of UTF-8")
        if "\0" in text:
            raise unstorable(part, key_of(part, row), "contains U+0000")
