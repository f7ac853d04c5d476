"""Units of time, and the `Clock` that every part is handed; pure.

Times of the table protocol are whole ticks of 100 ns since 1970-01-01 UTC. The clocks themselves
are in `partita.clock`, the only module that asks the machine for time and randomness.
"""

from datetime import UTC, datetime, timedelta
from typing import Protocol

TICKS_PER_MICROSECOND = 10
TICKS_PER_SECOND = 1_000_000 * TICKS_PER_MICROSECOND
SECONDS_PER_DAY = 86_400
TICKS_PER_DAY = SECONDS_PER_DAY * TICKS_PER_SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """The source of time, randomness and identifiers."""

    def ticks(self) -> int:
        """Wall clock in ticks. It may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease; only differences are meaningful."""
        ...

    def random_bytes(self, count: int) -> bytes: ...

    def new_id(self) -> str:
        """Return a fresh random UUID as text."""
        ...


def moment(ticks: int) -> str | None:
    """Write a time for people and programs; None for no time."""
    if not ticks:
        return None
    try:
        when = _EPOCH + timedelta(microseconds=ticks // 10)
    except OverflowError:
        when = datetime.max.replace(tzinfo=UTC)
    return when.isoformat().replace("+00:00", "Z")
