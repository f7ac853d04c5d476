"""Queues on PostgreSQL for tests: one database per process, an account of its own for each test."""

import asyncio
import functools
import getpass
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from partita.clock import SystemClock
from partita.local_postgres import HOST
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.queues.postgres_store import QueueDatabase
from partita.scaleout.schema.install import install
from partita.storage.durability import Durability
from partita.ticks import Clock
from support.postgres import server

_numbers = itertools.count(1)


@functools.cache
def queue_url() -> str:
    """Return the URL of a database with the schema; its commits do not wait for the disk."""
    running = server()
    database = running.take_database("queues")
    url = f"postgresql://{getpass.getuser()}@{HOST}:{running.port}/{database}"
    # In a thread of its own: the caller may be in an event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(install(url))).result()
    return url


@functools.cache
def _connector(url: str) -> Connector:
    """One for all tests: it checks the server once."""
    return Connector(Location.parse(url), Durability.FAST)


class TickingTime:
    """The time of a manual clock, one tick later at each statement, as a real clock would be."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def __call__(self) -> int:
        self._last = self.upcoming()
        return self._last

    def upcoming(self) -> int:
        """Return the time of the next statement."""
        return max(self._clock.ticks(), self._last + 1)

    def follow(self) -> None:
        """Go back to a clock that was set back."""
        self._last = 0


class OpenQueues:
    """The queues of one front end, and an account; `url` is that of a fleet's catalog."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        now: Callable[[], int | None] = lambda: None,
        account_id: int = 0,
        url: str | None = None,
    ) -> None:
        self._connector = _connector(url or queue_url())
        self.pool = Pool(self._connector)
        self.account_id = account_id
        self.may_expire = True
        self._clock = clock or SystemClock()
        self._now = now

    async def open(self) -> None:
        self._catalog = await Catalog.open(self._connector, self.pool)
        self.database = QueueDatabase(
            self._catalog,
            self.pool,
            self._clock,
            may_expire=lambda: self.may_expire,
            now=self._now,
        )
        if not self.account_id:
            name = f"queues{next(_numbers)}"
            statement = "INSERT INTO partita.account (name) VALUES ($1) RETURNING id"
            self.account_id = (await self.run(statement, name))[0]["id"]
        self.store = self.database.store(self.account_id)

    async def close(self) -> None:
        await self.database.close()
        await self._catalog.shards.close()
        await self._catalog.close()
        await self.pool.close()

    async def run(self, statement: str, *values: object) -> list[dict[str, Any]]:
        async with self.pool.link() as link:
            return [dict(row) for row in await link.write(statement, *values)]
