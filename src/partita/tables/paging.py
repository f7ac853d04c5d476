"""Ranges of entity keys, pages, and where the next page starts.

Order is the order of (partition key, row key) tuples of text by code point, which is the byte
order of UTF-8. A range is half open; `after(text)` is the smallest text after `text`, so that
every inclusive or exclusive bound becomes one pair. U+0000 is not allowed in keys.
"""

from collections.abc import Sequence

import msgspec

from partita.tables.entity import Entity, EntityKey


def after(text: str) -> str:
    """Return the smallest text greater than `text`."""
    return text + "\x00"


FIRST = EntityKey("", "")


class KeyRange(msgspec.Struct, frozen=True, gc=False):
    """Keys from `lower` (inside) to `upper` (outside; None: no end)."""

    lower: EntityKey = FIRST
    upper: EntityKey | None = None

    @classmethod
    def of_partition(cls, partition_key: str) -> "KeyRange":
        return cls(EntityKey(partition_key, ""), EntityKey(after(partition_key), ""))

    @property
    def is_empty(self) -> bool:
        return self.upper is not None and self.lower >= self.upper

    def contains(self, key: EntityKey) -> bool:
        return self.lower <= key and (self.upper is None or key < self.upper)

    def clip(self, other: "KeyRange") -> "KeyRange":
        """Return the keys in both."""
        uppers = [upper for upper in (self.upper, other.upper) if upper is not None]
        return KeyRange(max(self.lower, other.lower), min(uppers, default=None))

    def starting_at(self, key: EntityKey) -> "KeyRange":
        return KeyRange(max(self.lower, key), self.upper)

    def single_partition(self) -> str | None:
        """Find the partition key of the range, if it is limited to one."""
        if self.upper is None:
            return None
        lower, upper = self.lower.partition_key, self.upper
        if upper.partition_key == lower or upper == (after(lower), ""):
            return lower
        return None


class Page(msgspec.Struct, frozen=True):
    """Entities in order, and the key where the next page starts (None: this is the last page)."""

    entities: Sequence[Entity]
    continuation: EntityKey | None = None
    examined: int = 0
    """Entities that were read to find them: at least so many."""
    is_counted: bool = True
    """Whether `examined` is exact: so it is without a filter, and with one if the scan took more
    than 20 ms. Counting what a short scan reads would take half as long as the scan."""
    index: str = ""
    """The property whose learned index found the entities, if one did."""
