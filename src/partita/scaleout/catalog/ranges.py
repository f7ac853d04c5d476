"""The ranges of a table's partition keys, and which of them has a key. Pure.

Keys compare by code points, as PostgreSQL's collation "C" does in UTF8.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from partita.errors import CatalogMismatchError


class Range(msgspec.Struct, frozen=True, gc=False):
    """The keys from `lo` on, before `hi`; the shard refuses another id or epoch as stale."""

    id: int
    lo: str
    hi: str | None
    """None: no end."""
    epoch: int
    shard: int = 0


class RangeMap:
    """All ranges of one table: they follow each other from the empty key to the end.

    >>> ranges = RangeMap([Range(1, "", "m", 7), Range(2, "m", None, 8)])
    >>> ranges.find("apple").id, ranges.find("m").id
    (1, 2)
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = sorted(ranges, key=lambda each: each.lo)
        self._starts = [each.lo for each in self.ranges]
        ends = [each.hi for each in self.ranges]
        if not self.ranges or [*self._starts, None] != ["", *ends]:
            raise CatalogMismatchError(
                "StoreRangesBroken",
                "The ranges of a table do not follow each other.",
                facts={"ranges": [each.id for each in self.ranges]},
                hint="Restore a backup of the database.",
            )

    def find(self, partition_key: str) -> Range:
        """Return the range that has a key."""
        return self.ranges[bisect_right(self._starts, partition_key) - 1]

    def between(self, start: str, end: str | None, *, has_end: bool = False) -> Iterator[Range]:
        """Yield the ranges that have keys from `start` on, before `end` (or at it), in order."""
        for place in range(bisect_right(self._starts, start) - 1, len(self.ranges)):
            found = self.ranges[place]
            if end is not None and (found.lo > end if has_end else found.lo >= end):
                return
            yield found
