"""Time, randomness and identifiers, handed in: the only module that asks the machine for them.

Times of the table protocol are whole ticks of 100 ns since 1970-01-01 UTC.
"""

import random
import secrets
import time
import uuid
from typing import Protocol

TICKS_A_SECOND = 10_000_000


class Clock(Protocol):
    """What the rest of Partita may know about time and chance."""

    def ticks(self) -> int:
        """Wall clock in ticks. It may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    def random_bytes(self, count: int) -> bytes: ...

    def new_id(self) -> str:
        """Return a fresh random UUID as text."""
        ...


class SystemClock:
    """The machine's own time and randomness."""

    def ticks(self) -> int:
        return time.time_ns() // 100

    def monotonic(self) -> float:
        return time.monotonic()

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def new_id(self) -> str:
        return str(uuid.uuid4())


class ManualClock:
    """A clock that stands still until it is moved, with seeded randomness: for tests.

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
        """Let time pass on both clocks."""
        self._ticks += round(seconds * TICKS_A_SECOND)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as an operator or NTP would."""
        self._ticks += round(seconds * TICKS_A_SECOND)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def new_id(self) -> str:
        return str(uuid.UUID(bytes=self._random.randbytes(16), version=4))
