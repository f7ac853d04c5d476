"""How much is sent at the same time, and how much per second."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from partita.ticks import Clock


class Pace:
    """Slots for requests: halved when the server is busy, and slowly given back.

    `rate_max` is the number of entities per second; None does not limit it.
    """

    def __init__(self, clock: Clock, concurrency: int, rate_max: float | None = None) -> None:
        self._clock = clock
        self._most = concurrency
        self._allowed = float(concurrency)
        self._used = 0
        self._freed = asyncio.Event()
        self._rate_max = rate_max
        self._next = clock.monotonic()

    def slow_down(self, _seconds: float = 0.0) -> None:
        """Halve the slots: the server is busy."""
        self._allowed = max(1.0, self._allowed / 2)

    @contextlib.asynccontextmanager
    async def slot(self, entities: int) -> AsyncIterator[None]:
        """Hold a slot while `entities` entities are sent."""
        while self._used >= int(self._allowed):
            self._freed.clear()
            await self._freed.wait()
        self._used += 1
        try:
            await self._wait_for_rate(entities)
            yield
            self._allowed = min(float(self._most), self._allowed + 0.1)
        finally:
            self._used -= 1
            self._freed.set()

    async def _wait_for_rate(self, entities: int) -> None:
        if self._rate_max is None:
            return
        now = self._clock.monotonic()
        start = max(self._next, now)
        self._next = start + entities / self._rate_max
        if start > now:
            await asyncio.sleep(start - now)
