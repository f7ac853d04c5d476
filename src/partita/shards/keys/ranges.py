"""Ranges of sharding keys: as values (Range) and encoded as bytes (KeyRange).

Both are half-open, `[low, high)`; None means unbounded. An empty or inverted KeyRange cannot be
created. A Range is checked when it is encoded, because its order depends on the key type.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from partita.errors import DamageError, RangeError
from partita.shards.keys.shard_key import KeyType


class Range(msgspec.Struct, frozen=True, gc=False):
    """All keys from `low` to `high`, exclusive; None means unbounded.

    A mapping of one key (list maps) is shown as `Range(key, key)`.
    """

    low: Any = None
    high: Any = None

    @property
    def is_point(self) -> bool:
        return self.low is not None and bool(self.low == self.high)

    def __repr__(self) -> str:
        return f"Range({self.low!r}, {self.high!r})"


class KeyRange(msgspec.Struct, frozen=True, gc=False):
    """All encoded keys from `low` to `high`, exclusive; an empty `low` or None means unbounded.

    Ranges are ordered by their low end, then by their high end.
    """

    low: bytes = b""
    high: bytes | None = None

    def __post_init__(self) -> None:
        if self.high is not None and self.low >= self.high:
            raise _refused("InvalidRange", "The range is empty or inverted.")

    @classmethod
    def point(cls, key: bytes) -> "KeyRange":
        """Return the range of this key only: no bytes sort between it and itself with 00 added."""
        return cls(key, key + b"\x00")

    @property
    def is_point(self) -> bool:
        return self.high == self.low + b"\x00"

    def contains(self, key: bytes) -> bool:
        return self.low <= key and (self.high is None or key < self.high)

    def covers(self, other: "KeyRange") -> bool:
        """Return whether `other` is inside this range."""
        return self.low <= other.low and _end(other) <= _end(self)

    def intersects(self, other: "KeyRange") -> bool:
        return (other.high is None or self.low < other.high) and (
            self.high is None or other.low < self.high
        )

    def touches(self, other: "KeyRange") -> bool:
        """Return whether one range ends where the other begins."""
        return self.high == other.low or other.high == self.low

    def intersection(self, other: "KeyRange") -> "KeyRange | None":
        if not self.intersects(other):
            return None
        return KeyRange(max(self.low, other.low), min(self, other, key=_end).high)

    def minus(self, other: "KeyRange") -> "list[KeyRange]":
        """Return this range without `other`: zero, one or two ranges."""
        if not self.intersects(other):
            return [self]
        left = [KeyRange(self.low, other.low)] if self.low < other.low else []
        right: list[KeyRange] = []
        if other.high is not None and _end(other) < _end(self):
            right = [KeyRange(other.high, self.high)]
        return left + right

    def split(self, at: bytes) -> "tuple[KeyRange, KeyRange]":
        """Return both parts; `at` is the low end of the second and must be strictly inside."""
        if not self.low < at or not self.contains(at):
            raise _refused(
                "InvalidSplit",
                "The split point must be strictly inside the range.",
                "Choose a key greater than the low end and less than the high end.",
            )
        return KeyRange(self.low, at), KeyRange(at, self.high)

    def join(self, other: "KeyRange") -> "KeyRange":
        """Return the union of two adjacent ranges."""
        if not self.touches(other):
            raise _refused(
                "RangesApart",
                "Only adjacent ranges can be joined.",
                "Name two adjacent mappings.",
            )
        first, second = sorted((self, other))
        return KeyRange(first.low, second.high)

    def __lt__(self, other: "KeyRange") -> bool:
        return (self.low, _end(self)) < (other.low, _end(other))

    def __le__(self, other: "KeyRange") -> bool:
        return not other < self

    def __gt__(self, other: "KeyRange") -> bool:
        return other < self

    def __ge__(self, other: "KeyRange") -> bool:
        return not self < other


FULL = KeyRange()
"""Every key."""


def encode_range(range: Range, key: KeyType) -> KeyRange:  # noqa: A002 - the domain's word
    """Return the range in bytes; RangeError if it cannot contain a key."""
    low = b"" if range.low is None else key.encode_bound(range.low)
    high = None if range.high is None else key.encode_bound(range.high)
    if high is not None and max(low, key.lowest) >= high:
        raise _refused("InvalidRange", f"{range!r} contains no key of type {key.name}.")
    return KeyRange(low, high)


def decode_range(encoded: KeyRange, key: KeyType) -> Range:
    """Return the range that was encoded; an empty low end becomes None."""
    low = key.decode_bound(encoded.low) if encoded.low else None
    high = None if encoded.high is None else key.decode_bound(encoded.high)
    return Range(low, high)


def decode_point(encoded: KeyRange, key: KeyType) -> Range:
    """Return the range of one key as `Range(key, key)`, the form of list maps."""
    if not encoded.is_point:
        raise DamageError("StoreDamaged", "A stored mapping of a list map holds more than one key.")
    value = key.decode(encoded.low)
    return Range(value, value)


def first_overlap(ranges: Iterable[KeyRange]) -> tuple[KeyRange, KeyRange] | None:
    """Return two of the ranges that overlap, or None."""
    ordered = sorted(ranges)
    for left, right in pairwise(ordered):
        if left.intersects(right):
            return left, right
    return None


def _end(key_range: KeyRange) -> tuple[bool, bytes]:
    return key_range.high is None, key_range.high or b""


def _refused(code: str, message: str, hint: str = "") -> RangeError:
    return RangeError(
        code,
        message,
        hint=hint or "The low end must be less than the high end; None means unbounded.",
    )
