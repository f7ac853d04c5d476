"""Counts of messages that a front end keeps for a moment. Pure.

Counting reads the index of a queue, so a count is kept for a while. A kept count is never lower
than what clients of this front end know: it includes what they put since counting began.
"""

from partita.ticks import Clock

COUNT_KEPT_SECONDS = 1.0
COUNT_KEPT_FACTOR = 20
"""A count is kept this many times as long as counting took, if that is longer."""
COUNTS_MAX = 10_000
"""Counts kept at a time."""

Key = tuple[int, str]
"""Account and name of a queue."""


class Count:
    """The count of one queue, begun or complete."""

    def __init__(self, queue_id: int, begun: float) -> None:
        self.queue_id = queue_id
        self.begun = begun
        self.number = 0
        """The messages that were put since counting began, and when complete also the others."""
        self.until: float | None = None
        """When a complete count is too old."""

    def complete(self, found: int, now: float) -> int:
        """Add the messages that were found; return the count."""
        self.number += found
        self.until = now + max(COUNT_KEPT_SECONDS, (now - self.begun) * COUNT_KEPT_FACTOR)
        return self.number


class Counts:
    """The latest count of each queue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[Key, Count] = {}

    def find(self, key: Key, queue_id: int) -> int | None:
        """Return the kept count of a queue; None if there is none or it is too old."""
        count = self._counts.get(key)
        if count is None or count.until is None or count.queue_id != queue_id:
            return None
        return count.number if self._clock.monotonic() < count.until else None

    def begin(self, key: Key, queue_id: int) -> Count:
        """Start a count, before its statement is sent."""
        if len(self._counts) >= COUNTS_MAX:
            self._counts.clear()
        count = self._counts[key] = Count(queue_id, self._clock.monotonic())
        return count

    def complete(self, count: Count, found: int) -> int:
        return count.complete(found, self._clock.monotonic())

    def added(self, key: Key) -> None:
        """Count a message that was put: at worst it is counted twice."""
        if (count := self._counts.get(key)) is not None:
            count.number += 1

    def find_complete(self, key: Key) -> Count | None:
        """Return the count that includes all messages that are there now.

        Ask before the delete is sent, and take the message from this count when it is gone.
        """
        count = self._counts.get(key)
        return count if count is not None and count.until is not None else None
