"""Removes the messages of dropped queues, and expired messages that no claim meets.

Every front end sweeps, and an advisory lock lets one at a time work. Expiry cannot be taken back,
and the clock of the database may leap: expired messages are hidden at once, but removed only while
`may_expire()` says that the clock of the front end agrees with that of the database.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from partita.errors import PartitaError
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

    def __init__(self, pool: Pool, now: Now, may_expire: Callable[[], bool]) -> None:
        self._pool = pool
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
        """Remove everything that can be removed now."""
        while await self._write(statements.REMOVE_DROPPED, SWEEP_MESSAGES):  # noqa: ASYNC110
            await asyncio.sleep(SWEEP_PAUSE_SECONDS)
        kept = DROPPED_SECONDS * TICKS_PER_SECOND
        await self._write(statements.FORGET_DROPPED, self._now(), kept)
        while await self._remove_expired():  # noqa: ASYNC110 - a pause, not a wait
            await asyncio.sleep(SWEEP_PAUSE_SECONDS)

    async def _remove_expired(self) -> bool:
        if not self._may_expire():
            return False
        return await self._write(statements.REMOVE_EXPIRED, self._now(), SWEEP_MESSAGES)

    async def _write(self, statement: str, *values: object) -> bool:
        """Run a statement; return whether it removed something."""
        async with self._pool.link() as link:
            return bool(await write(link, statement, *values))
