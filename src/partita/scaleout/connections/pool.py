"""A bounded set of connections: requests queue for one, then are refused, and never hang."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from partita.errors import StoreBusyError
from partita.metrics.families import Histogram
from partita.scaleout.connections.link import Connector, Link, Rows, busy
from partita.scaleout.connections.session import DriverError, translated

POOL_LINKS_MAX = 4
POOL_WAIT_SECONDS_MAX = 5.0
POOL_WAITING_MAX = 256
"""More waiting requests than this are refused at once."""


_QUEUEING = "connections"


def is_queueing(error: StoreBusyError) -> bool:
    """Return whether a call was refused because too many others wait, not by the database."""
    return error.facts.get("reason") == _QUEUEING


class Pool:
    """Connections for scans, long groups and transactions; lanes have their own."""

    def __init__(
        self,
        connector: Connector,
        *,
        links_max: int = POOL_LINKS_MAX,
        wait_seconds_max: float = POOL_WAIT_SECONDS_MAX,
        waits: Histogram | None = None,
    ) -> None:
        self._connector = connector
        self._wait_seconds_max = wait_seconds_max
        self._free: list[Link] = []
        self._slots = asyncio.Semaphore(links_max)
        self._waiting = 0
        self._waits = waits
        """Observes how long requests wait for a connection; only those that wait."""
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """Borrow a connection; a connection on which a call failed half-way is not used again."""
        await self._take_slot()
        try:
            link = self._taken() or await self._connector.connect()
            try:
                yield link
            finally:
                if not (link.is_closed or self._is_closed):
                    self._free.append(link)
                else:
                    link.terminate()
        finally:
            self._slots.release()

    async def read(self, statement: str, *values: object) -> Rows:
        """Run one statement that changes nothing."""
        async with self.link() as link:
            return await link.read(statement, *values)

    async def write(self, statement: str, *values: object) -> Rows:
        """Run one statement in a transaction of its own; return when it is durable."""
        async with self.link() as link:
            try:
                return await link.write(statement, *values)
            except DriverError as error:
                raise translated(error) from error

    async def close(self) -> None:
        self._is_closed = True
        free, self._free = self._free, []
        for link in free:
            await link.close()

    def _taken(self) -> Link | None:
        while self._free:
            link = self._free.pop()
            if not link.is_closed:
                return link
        return None

    async def _take_slot(self) -> None:
        if self._is_closed:
            raise busy("closing")
        if not self._slots.locked():
            await self._slots.acquire()
            return
        if self._waiting >= POOL_WAITING_MAX:
            raise busy(_QUEUEING)
        self._waiting += 1
        started = asyncio.get_running_loop().time()
        try:
            # A request starts outside of a task, which a time limit needs.
            await asyncio.sleep(0)
            async with asyncio.timeout(self._wait_seconds_max):
                await self._slots.acquire()
        except TimeoutError as error:
            raise busy(_QUEUEING) from error
        finally:
            self._waiting -= 1
            if self._waits is not None:
                self._waits.observe(asyncio.get_running_loop().time() - started)
