"""The clocks: the only module that asks the machine for time, randomness and identifiers."""

import logging
import random
import secrets
import time
import uuid

from partita.ticks import TICKS_PER_SECOND, Clock

__all__ = ["Clock", "LeapCheckedClock", "ManualClock", "SystemClock"]

logger = logging.getLogger("partita.clock")

LEAP_SECONDS_MAX = 300
"""A forward leap of the wall clock beyond this is not followed until it is confirmed."""
LEAP_CONFIRM_SECONDS = 3600
"""A leap that has lasted this long is confirmed."""


class SystemClock:
    """The time and randomness of the machine."""

    def ticks(self) -> int:
        return time.time_ns() // 100

    monotonic = staticmethod(time.monotonic)

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def new_id(self) -> str:
        return str(uuid.uuid4())


class LeapCheckedClock:
    """A clock that does not follow a forward leap of the wall clock until it is confirmed.

    Expiry by a time that leapt ahead could not be taken back. A leap is confirmed when it has
    lasted for some time, or when the process is restarted.

    >>> source = ManualClock()
    >>> clock, before = LeapCheckedClock(source), source.ticks()
    >>> source.jump(86_400)
    >>> clock.ticks() - before
    0
    """

    def __init__(self, clock: Clock) -> None:
        self.source = clock
        self.monotonic = clock.monotonic
        self.random_bytes = clock.random_bytes
        self.new_id = clock.new_id
        self._lead = clock.ticks()
        """The latest credible time of the wall clock, ..."""
        self._lead_since = clock.monotonic()
        """... and when that was."""
        self._leap: tuple[int, float] | None = None
        """The ticks of a leap that is not confirmed, and when it was noticed."""

    def ticks(self) -> int:
        wall, monotonic = self.source.ticks(), self.monotonic()
        expected = self._lead + int((monotonic - self._lead_since) * TICKS_PER_SECOND)
        if wall - expected > LEAP_SECONDS_MAX * TICKS_PER_SECOND:
            if not self._is_confirmed(wall - expected, monotonic):
                return expected
        elif wall < expected:
            self._leap = None
            return wall  # it was set back; the latest time still tells how far it may go ahead
        self._leap = None
        self._lead, self._lead_since = wall, monotonic
        return wall

    def _is_confirmed(self, leap: int, monotonic: float) -> bool:
        """Return whether the wall clock has been that much too far ahead for long enough."""
        if self._leap is None or abs(leap - self._leap[0]) > LEAP_SECONDS_MAX * TICKS_PER_SECOND:
            self._leap = leap, monotonic
            logger.warning(
                "the wall clock leapt %d s ahead: nothing expires by it until it has kept this time"
                " for %d s; correct the clock, or restart to accept the time now",
                leap // TICKS_PER_SECOND,
                LEAP_CONFIRM_SECONDS,
            )
        if monotonic - self._leap[1] < LEAP_CONFIRM_SECONDS:
            return False
        logger.warning("the leap of the wall clock is confirmed: expiry follows it")
        return True


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
