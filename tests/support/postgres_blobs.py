"""Blob stores on a real PostgreSQL: databases that are emptied before each test."""

import asyncio
from pathlib import Path
from typing import Any

import psycopg

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.store.garbage_collector import Pause, no_pause
from partita.clock import ManualClock
from partita.scaleout.blobs.contents import Contents
from partita.scaleout.blobs.postgres_store import PostgresBlobStore
from partita.scaleout.catalog.fleet_clock import FleetClock, Lease
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.schema import blobs
from partita.scaleout.schema.install import install
from partita.storage.durability import Durability
from support import postgres

FAR = 2**62
EMPTY = ";".join(f"DELETE FROM partita.{table}" for table in blobs.PRIVILEGES)
ACCOUNT = "INSERT INTO partita.account (name) VALUES ('blobs')"


class BlobDatabase:
    """A database with the schema and one account."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connector = Connector(Location.parse(url), Durability.FAST)
        self._session = psycopg.connect(url, autocommit=True)
        self._session.execute(ACCOUNT)

    def empty(self) -> None:
        self._session.execute(EMPTY.encode())

    def count(self, table: str) -> int:
        found: Any = self._session.execute(f"SELECT count(*) FROM partita.{table}".encode())
        count: int = found.fetchone()[0]
        return count


_databases: dict[str, BlobDatabase] = {}


async def blob_database(name: str) -> BlobDatabase:
    """Return a database without blobs; one for each name."""
    if name not in _databases:
        running = postgres.server()
        url = running.url(running.take_database(name)).replace("+psycopg", "")
        await install(url)
        _databases[name] = BlobDatabase(url)
    _databases[name].empty()
    return _databases[name]


def fleet_clock(clock: ManualClock, slot: int) -> FleetClock:
    made = FleetClock(clock)
    made.use(Lease(slot, 0, float("inf"), FAR))
    made.compare(made.reading(), made.reading(clock.ticks()))
    return made


class FrontEnd:
    """What one front end has of blobs; several may share a database."""

    def __init__(self, pool: Pool, contents: Contents) -> None:
        self.pool = pool
        self.contents = contents
        self.store = PostgresBlobStore(contents, 1)
        self.engine = BlobEngine(self.store)

    @classmethod
    async def open(
        cls,
        database: BlobDatabase,
        blob_store: str | None,
        clock: ManualClock,
        *,
        slot: int = 1,
        pause: Pause = no_pause,
    ) -> "FrontEnd":
        pool = Pool(database.connector)
        try:
            contents = await Contents.open(
                pool, fleet_clock(clock, slot), blob_store, seconds_kept=0, pause=pause
            )
        except BaseException:
            await pool.close()
            raise
        return cls(pool, contents)

    async def close(self) -> None:
        await self.engine.close()
        await self.contents.close()
        await self.pool.close()

    async def objects(self) -> list[bytes]:
        """List the objects outside of the database."""
        return await asyncio.to_thread(
            lambda: [name for part in self.contents.files.digests() for name in part]
        )


def folder_url(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return folder.as_uri()
