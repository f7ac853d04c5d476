"""What a call does that a shard refuses because the range is not as the front end knows it."""

import asyncio
import enum
from typing import Final

from partita.scaleout.connections.link import busy

REPEAT_SECONDS_MAX = 5.0
"""How long a call is repeated while ranges are changed, or others change the same entities, ..."""
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.002, 0.05
"""... with these pauses in between, ..."""
REPEATS_AT_ONCE = 8
"""... except for the first of these."""


class Stale(enum.Enum):
    """The answer for a range that was changed: refresh the catalog."""

    STALE = enum.auto()


STALE: Final = Stale.STALE


class Patience:
    """How long a call is repeated that others prevent."""

    # Of the class: every call has its patience, and nearly none needs it.
    _count = 0
    _pause = PAUSE_SECONDS_MIN
    _waited = 0.0

    async def wait(self, reason: str) -> None:
        """Wait before the next attempt; raise StoreBusyError if there were enough."""
        self._count += 1
        if self._count <= REPEATS_AT_ONCE:
            return
        if self._waited >= REPEAT_SECONDS_MAX:
            raise busy(reason)
        await asyncio.sleep(self._pause)
        self._waited += self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
