"""A queue as a request finds it: its number, and the range and shard that have its messages."""

from typing import NamedTuple

from partita.scaleout.catalog.ranges import Range


class QueuePlace(NamedTuple):
    """Where a queue is, as far as the front end knows; places sort by the number of the queue."""

    tid: int
    range: Range
    name: str

    @property
    def fence(self) -> tuple[int, int]:
        """The number and epoch of the range, which a shard compares with its own."""
        return self.range.id, self.range.epoch
