"""Removes the messages of dropped queues, and expired messages that no claim meets.

Every front end sweeps all shards, and an advisory lock lets one at a time work. Expiry cannot be
taken back, and the clock of a database may leap: expired messages are hidden at once, but removed
only while `may_expire()` says that the clock of the front end agrees with that of the catalog.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from partita.errors import PartitaError
from partita.scaleout.catalog.shards import Shards
from partita.scaleout.connections.pool import Pool
from partita.scaleout.queues import statements
from partita.scaleout.queues.lanes import Now
from partita.scaleout.queues.writing import write
from partita.ticks import TICKS_PER_SECOND

logger = logging.getLogger("partita.queues")

SWEEP_SECONDS = 10.0
"""How often the sweep runs."""
SWEEP_MESSAGES = 500
"""Messages that one statement removes."""
SWEEP_PAUSE_SECONDS = 0.005
DROPPED_SECONDS = 3600
"""How long a dropped queue is remembered: a put that found it before may still add a message."""


class Sweep:
    """The sweep of one front end."""

    def __init__(self, shards: Shards, now: Now, may_expire: Callable[[], bool]) -> None:
        self._shards = shards
        self._now = now
        self._may_expire = may_expire
        self._has_dropped = asyncio.Event()

    def hasten(self) -> None:
        """Run soon: a queue was dropped."""
        self._has_dropped.set()

    async def keep_running(self) -> None:
        while True:
            try:
                await self.run()
            except PartitaError as error:
                # What is not removed now is removed later, by this front end or another.
                logger.warning("the sweep of queues failed: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._has_dropped.wait()
            self._has_dropped.clear()

    async def run(self) -> None:
        """Remove everything that can be removed now, also if a shard is away; then raise."""
        failures: list[PartitaError] = []
        for pool in self._shards.pools():
            try:
                await self._run(pool)
            except PartitaError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _run(self, pool: Pool) -> None:
        while await _remove(pool, statements.REMOVE_DROPPED, SWEEP_MESSAGES):  # noqa: ASYNC110
            await asyncio.sleep(SWEEP_PAUSE_SECONDS)
        kept = DROPPED_SECONDS * TICKS_PER_SECOND
        await _remove(pool, statements.FORGET_DROPPED, self._now(), kept)
        while await self._remove_expired(pool):  # noqa: ASYNC110 - a pause, not a wait
            await asyncio.sleep(SWEEP_PAUSE_SECONDS)

    async def _remove_expired(self, pool: Pool) -> bool:
        if not self._may_expire():
            return False
        return await _remove(pool, statements.REMOVE_EXPIRED, self._now(), SWEEP_MESSAGES)


async def _remove(pool: Pool, statement: str, *values: object) -> bool:
    """Run a statement; return whether it removed something."""
    async with pool.link() as link:
        return bool(await write(link, statement, *values))
