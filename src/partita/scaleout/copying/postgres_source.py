"""PostgreSQL as the source of a copy: read in one snapshot, while front ends serve."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from partita.blobs.store.files import ContentFiles
from partita.errors import ChecksumError, ConfigurationError
from partita.scaleout.blobs.objects import NoObjects, open_objects
from partita.scaleout.catalog.catalog import copy_incomplete
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import DriverError, translated
from partita.scaleout.copying.parts import CopyPart, Key, Moment, Plan, Row
from partita.scaleout.copying.postgres_rows import DIGEST_BYTES, PostgresRows
from partita.scaleout.schema import versions
from partita.storage.durability import Durability

CONTENT_BYTES = 2 * 1024 * 1024
"""How much of an object is read at a time."""

_ACCOUNT = """
SELECT a.id, EXISTS (SELECT FROM partita.copy c WHERE c.account_id = a.id) AS is_copied
  FROM partita.account a WHERE a.name = $1
"""
_ELSEWHERE = """
SELECT 1 FROM partita.range r JOIN (
  SELECT id, account_id FROM partita.tables UNION ALL SELECT tid, account_id FROM partita.queue) t
  ON t.id = r.tid
 WHERE t.account_id = $1 AND r.shard <> 0 LIMIT 1
"""
_ACCOUNTS = "SELECT name FROM partita.account ORDER BY name"
_OBJECT = """
SELECT object FROM partita.extent WHERE object BETWEEN $1::bytea AND $2::bytea LIMIT 1
"""
_BLOB = """
SELECT c.name || '/' || b.name FROM partita.piece p JOIN partita.blob b ON b.content = p.content
  JOIN partita.container c ON c.id = b.container WHERE p.extent = $1 LIMIT 1
"""
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NO_LIMITS = """
SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true),
       pg_catalog.set_config('statement_timeout', '0', true)
"""


class PostgresSource:
    """An account of a database.

    `place` names the database where its URL is another one at each start.
    """

    def __init__(
        self,
        location: Location,
        account: str,
        *,
        blob_store: str | None,
        durability: Durability,
        place: str = "",
    ) -> None:
        self.identity = f"{place or location}, account {account}"
        self.account = account
        self._connector = Connector(location, durability)
        self._objects: ContentFiles = open_objects(blob_store) or NoObjects()
        self._pool = Pool(self._connector)
        """For what is read besides the snapshot, also at the same time."""
        self._link: Link | None = None

    async def open(self) -> None:
        self._link = await self._connector.connect()
        await check_schema(self._link.connection)
        rows = await self._pool.read(_ACCOUNT, self.account)
        if not rows:
            raise unknown_account(self.identity)
        if rows[0]["is_copied"]:
            raise copy_incomplete(self.account)
        if await self._pool.read(_ELSEWHERE, rows[0]["id"]):
            raise _on_several_shards(self.account)
        self._rows = PostgresRows(self._link.connection, rows[0]["id"])

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def moment(self) -> AsyncIterator[None]:
        """Read one state of the account in the block."""
        connection = self._rows.connection
        await fetch(connection, _SNAPSHOT)
        try:
            await fetch(connection, _NO_LIMITS)
            yield
        finally:
            if not connection.is_closed():
                await fetch(connection, "ROLLBACK")

    async def clocks(self) -> Moment:
        ((now,),) = await self._pool.read("SELECT partita.ticks_1()")
        return Moment(now, now)

    async def version(self) -> object:
        """Return a value that changes when anything in the server of the database is written."""
        ((version,),) = await self._pool.read(
            "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())"
        )
        return version

    async def plans(self) -> list[Plan]:
        return await self._rows.plans()

    async def large_contents(self) -> tuple[int, int]:
        return await self._rows.large_contents()

    def rows(self, part: CopyPart, after: Key | None, alive_at: int) -> AsyncGenerator[list[Row]]:
        return self._rows.rows(part, after, alive_at)

    async def content(self, digest: bytes) -> AsyncIterator[bytes] | None:
        """Return the pieces of an object; None if no record names it any more."""
        if (name := await self._find(digest)) is None:
            return None
        reading = read_object(self._objects, name)
        try:
            first = await anext(reading, b"")
        except ChecksumError:
            if await self._find(digest) is None:
                return None
            raise
        return _joined(first, reading)

    async def blob_of(self, extent: int) -> str | None:
        rows = await self._pool.read(_BLOB, extent)
        return rows[0][0] if rows else None

    async def _find(self, digest: bytes) -> bytes | None:
        rows = await self._pool.read(_OBJECT, digest, digest + b"\xff" * DIGEST_BYTES)
        return rows[0]["object"] if rows else None


def _on_several_shards(account: str) -> ConfigurationError:
    return ConfigurationError(
        "CopyNotPossible",
        f"Tables or queues of the account {account} are on other shards, and a copy reads one"
        " database.",
        facts={"account": account},
        hint="Copy its tables with `partita copy`, which reads through the front ends.",
    )


async def accounts_of(location: Location, durability: Durability) -> list[str]:
    """Return the names of all accounts of a database."""
    link = await Connector(location, durability).connect()
    try:
        await check_schema(link.connection)
        return [name for (name,) in await fetch(link.connection, _ACCOUNTS)]
    finally:
        await link.close()


async def check_schema(connection: Any) -> None:
    """Raise if the schema is missing, or of another version."""
    ((major, minor),) = await fetch(connection, "SELECT major, minor FROM partita.schema_version")
    if (major, minor) != (versions.MAJOR, versions.MINOR):
        raise versions.unknown_version((major, minor))


async def read_object(objects: ContentFiles, name: bytes) -> AsyncGenerator[bytes]:
    """Yield the bytes of an object."""
    opened = await asyncio.to_thread(objects.open, name)
    try:
        place = 0
        while piece := await asyncio.to_thread(opened.read, place, CONTENT_BYTES):
            yield piece
            place += len(piece)
    finally:
        opened.close()


async def hash_object(objects: ContentFiles, name: bytes) -> bytes | None:
    """Return the SHA-256 of an object; None if it is missing or cannot be read."""
    found = hashlib.sha256()
    try:
        async for piece in read_object(objects, name):
            found.update(piece)
    except ChecksumError:
        return None
    return found.digest()


async def _joined(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in others:
        yield piece


async def fetch(connection: Any, statement: str, *values: object) -> list[Any]:
    """Run a statement without a time limit; a copy has no caller that waits for it."""
    try:
        found: list[Any] = await connection.fetch(statement, *values)
    except DriverError as error:
        raise translated(error) from error
    return found


def unknown_account(identity: str) -> ConfigurationError:
    return ConfigurationError(
        "AccountUnknown",
        f"The database has no such account: {identity}.",
        hint="Name one of its accounts with --account.",
    )
