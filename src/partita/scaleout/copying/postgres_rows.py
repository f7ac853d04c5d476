"""The rows of an account in PostgreSQL, in key order: of a source, or of a copy in progress.

Of a source only what is in use is read, as in `folder_rows`. In a copy, extents and contents have
other numbers than in its source: `copy_id` translates them back.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from itertools import chain
from typing import Any

from partita.queues.message import MessagePlace, message_damaged, unpack_text
from partita.scaleout.connections.session import DriverError, translated
from partita.scaleout.copying.parts import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    CopyPart,
    Key,
    Kind,
    Plan,
    Row,
    bytes_of,
)
from partita.tables.entity import stored_entity

FETCHED_ROWS = 100
"""Rows that are fetched at a time: each may have more than a MiB."""
DIGEST_BYTES = 32
"""The name of an object starts with the SHA-256 of its content."""

_IN_USE = (
    "EXISTS (SELECT FROM partita.blob b JOIN partita.container c ON c.id = b.container"
    " WHERE b.content = p.content AND c.account_id = :account)"
)
_EXTENT_IN_USE = (
    f"(EXISTS (SELECT FROM partita.piece p WHERE p.extent = e.id AND {_IN_USE})"
    " OR EXISTS (SELECT FROM partita.block k JOIN partita.container c ON c.id = k.container"
    " WHERE k.extent = e.id AND c.account_id = :account))"
)
_DIGEST = f"substr(e.object, 1, {DIGEST_BYTES})"

_KEYS: Mapping[Kind, str] = {
    "extents": "e.id",
    "contents": "p.content, p.place",
    "container": "b.name, b.snapshot",
    "blocks": "k.name, k.id",
    "table": "pk, rk",
    "queue": "sequence",
}
_KEYS_OF_COPY: Mapping[Kind, str] = {
    **_KEYS,
    "extents": "m.source",
    "contents": "c.source, p.place",
}
_ROWS: Mapping[Kind, str] = {
    "extents": f"SELECT e.id, e.size, {_DIGEST}, e.checks, e.bytes FROM partita.extent e"
    f" WHERE {_EXTENT_IN_USE}",
    "contents": "SELECT p.content, p.place, p.size, p.start, p.extent, p.block"
    f" FROM partita.piece p WHERE {_IN_USE}",
    "container": "SELECT b.name, b.snapshot, b.is_committed, b.content, b.facts"
    " FROM partita.blob b WHERE b.container = $1",
    "blocks": "SELECT k.name, k.id, k.extent, k.size, k.staged_at FROM partita.block k"
    " WHERE k.container = $1",
    "table": "SELECT pk, rk, ticks, document FROM partita.entity WHERE tid = $1",
    "queue": "SELECT sequence, nonce, inserted_at, expires_at, visible_at, dequeue_count, receipt,"
    " text FROM partita.message WHERE queue_id = $1 AND expires_at > $2",
}
_ROWS_OF_COPY: Mapping[Kind, str] = {
    **_ROWS,
    "extents": f"SELECT m.source, e.size, {_DIGEST}, e.checks, e.bytes FROM partita.copy_id m"
    " JOIN partita.extent e ON e.id = m.target WHERE m.account_id = :account AND m.kind = 'e'",
    "contents": "SELECT c.source, p.place, p.size, p.start, e.source, p.block"
    " FROM partita.copy_id c JOIN partita.piece p ON p.content = c.target"
    " LEFT JOIN partita.copy_id e"
    " ON e.account_id = :account AND e.kind = 'e' AND e.target = p.extent"
    " WHERE c.account_id = :account AND c.kind = 'c'",
    "container": "SELECT b.name, b.snapshot, b.is_committed, coalesce(c.source, 0), b.facts"
    " FROM partita.blob b LEFT JOIN partita.copy_id c"
    " ON c.account_id = :account AND c.kind = 'c' AND c.target = b.content WHERE b.container = $1",
    "blocks": "SELECT k.name, k.id, e.source, k.size, k.staged_at FROM partita.block k"
    " LEFT JOIN partita.copy_id e"
    " ON e.account_id = :account AND e.kind = 'e' AND e.target = k.extent WHERE k.container = $1",
}
_COUNTS: Mapping[Kind, str] = {
    "extents": "SELECT count(*), coalesce(sum(length(e.bytes)), 0)::bigint FROM partita.extent e"
    f" WHERE {_EXTENT_IN_USE}",
    "contents": f"SELECT count(*), count(*) * 48 FROM partita.piece p WHERE {_IN_USE}",
    "container": "SELECT count(*), coalesce(sum(length(name) + length(facts)), 0)::bigint"
    " FROM partita.blob WHERE container = $1",
    "blocks": "SELECT count(*), count(*) * 100 FROM partita.block WHERE container = $1",
    "table": "SELECT count(*), coalesce(sum(length(pk) + length(rk) + length(document)), 0)::bigint"
    " FROM partita.entity WHERE tid = $1",
    "queue": "SELECT count(*), coalesce(sum(length(text) + 60), 0)::bigint FROM partita.message"
    " WHERE queue_id = $1",
}
_LARGE = (
    "SELECT count(*), coalesce(sum(size), 0)::bigint FROM (SELECT max(e.size) AS size"
    f" FROM partita.extent e WHERE e.object IS NOT NULL AND {_EXTENT_IN_USE}"
    f" GROUP BY {_DIGEST}) large"
)
_SETTINGS = "SELECT name, value FROM partita.setting WHERE account_id = :account ORDER BY name"
_TABLES = (
    "SELECT id, folded, name, policies FROM partita.tables WHERE account_id = :account ORDER BY 2"
)
_QUEUES = (
    "SELECT tid, name, metadata, policies FROM partita.queue WHERE account_id = :account ORDER BY 2"
)
_CONTAINERS = (
    "SELECT id, name, facts FROM partita.container WHERE account_id = :account ORDER BY name"
)


class PostgresRows:
    """What one connection sees of an account; for rows, it must be in a transaction."""

    def __init__(self, connection: Any, account_id: int, *, is_target: bool = False) -> None:
        self.connection = connection
        self._account_id = account_id
        self._is_target = is_target
        self._ids: dict[CopyPart, int] = {}

    async def plans(self) -> list[Plan]:
        """Return all parts; the contents of blobs first, as front ends may remove objects."""
        plans = [await self._plan(CopyPart("extents")), await self._plan(CopyPart("contents"))]
        for identity, name, facts in await self.fetch(_CONTAINERS):
            plans.append(await self._plan(CopyPart("container", name), identity, facts))
            plans.append(await self._plan(CopyPart("blocks", name), identity))
        settings = await self.fetch(_SETTINGS)
        plans.append(Plan(CopyPart("settings"), tuple(chain.from_iterable(settings)), 0, 0))
        for identity, folded, *head in await self.fetch(_TABLES):
            plans.append(await self._plan(CopyPart("table", folded), identity, *head))
        for identity, name, *head in await self.fetch(_QUEUES):
            plans.append(await self._plan(CopyPart("queue", name), identity, *head))
        return plans

    async def _plan(self, part: CopyPart, identity: int = 0, *head: object) -> Plan:
        self._ids[part] = identity
        values = (identity,) if part.name else ()
        ((rows, size),) = await self.fetch(_COUNTS[part.kind], *values)
        return Plan(part, head, rows, size)

    async def large_contents(self) -> tuple[int, int]:
        """Return how many contents are objects, and their bytes."""
        ((objects, size),) = await self.fetch(_LARGE)
        return objects, size

    async def rows(
        self, part: CopyPart, after: Key | None, alive_at: int, identity: int | None = None
    ) -> AsyncGenerator[list[Row]]:
        """Yield the rows of a part after a key, in batches."""
        if part.kind == "settings":
            return
        keys = (_KEYS_OF_COPY if self._is_target else _KEYS)[part.kind]
        statement = (_ROWS_OF_COPY if self._is_target else _ROWS)[part.kind]
        values: list[object] = []
        if part.name:
            values.append(self._ids[part] if identity is None else identity)
        if part.kind == "queue":
            values.append(alive_at)
        if after is not None:
            first = len(values) + 1
            places = ", ".join(f"${number}" for number in range(first, first + len(after)))
            statement += f" AND ({keys}) > ({places})"
            values += after
        canonical = _CANONICAL.get(part.kind, tuple)
        async for batch in self._batches(f"{statement} ORDER BY {keys}", values):
            yield [canonical(row) for row in batch]

    async def _batches(self, statement: str, values: list[object]) -> AsyncGenerator[list[Any]]:
        batch: list[Any] = []
        size = 0
        try:
            cursor = await self.connection.cursor(self._of_account(statement), *values)
            while some := await cursor.fetch(FETCHED_ROWS):
                batch += some
                size += sum(map(bytes_of, some))
                if size >= BATCH_BYTES_MAX or len(batch) >= BATCH_ROWS_MAX:
                    yield batch
                    batch, size = [], 0
        except DriverError as error:
            raise translated(error) from error
        if batch:
            yield batch

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        try:
            found: list[Any] = await self.connection.fetch(self._of_account(statement), *values)
        except DriverError as error:
            raise translated(error) from error
        return found

    def _of_account(self, statement: str) -> str:
        return statement.replace(":account", str(self._account_id))


def _entity(row: Any) -> Row:
    return (*row[:3], stored_entity(*row).document)


def _message(row: Any) -> Row:
    sequence, nonce, *rest, stored = row
    text = unpack_text(nonce, stored)
    if text is None:
        raise message_damaged(MessagePlace(sequence, nonce))
    return sequence, nonce, *rest, text


_CANONICAL: Mapping[Kind, Callable[[Any], Row]] = {"table": _entity, "queue": _message}
