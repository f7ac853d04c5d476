"""The clocks: the only module that asks the machine for time, randomness and identifiers."""

import random
import secrets
import time
import uuid

from partita.ticks import TICKS_PER_SECOND, Clock

__all__ = ["Clock", "ManualClock", "SystemClock"]


class SystemClock:
    """The time and randomness of the machine."""

    def ticks(self) -> int:
        return time.time_ns() // 100

    monotonic = staticmethod(time.monotonic)

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def new_id(self) -> str:
        return str(uuid.uuid4())


class ManualClock:
    """A clock that only moves when it is told to, with seeded randomness: for tests.

    >>> clock = ManualClock()
    >>> before = clock.ticks()
    >>> clock.advance(1.5)
    >>> clock.ticks() - before
    15000000
    """

    def __init__(self, ticks: int = 17_000_000_000_000_000, *, seed: int = 0) -> None:
        self._ticks = ticks
        self._monotonic = 0.0
        self._random = random.Random(seed)  # noqa: S311 - reproducible on purpose

    def ticks(self) -> int:
        return self._ticks

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Advance the wall clock and the monotonic clock."""
        self._ticks += round(seconds * TICKS_PER_SECOND)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as an operator or NTP would."""
        self._ticks += round(seconds * TICKS_PER_SECOND)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def new_id(self) -> str:
        return str(uuid.UUID(bytes=self._random.randbytes(16), version=4))
