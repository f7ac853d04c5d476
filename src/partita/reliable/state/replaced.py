"""What is kept for snapshots, in the order in which it was replaced.

There may be an entry for every row that was written while a checkpoint is read. Python's garbage
collector visits every item of a list or deque each time, but no item of a tuple whose items it
need not visit: so full pieces of the order are tuples.
"""

from collections import deque
from typing import Any

import msgspec

PIECE_ENTRIES = 512
"""Entries of a piece that the garbage collector does not visit."""


class Kept(msgspec.Struct, gc=False):
    """What is kept for snapshots, with the sequence that replaced it.

    A version of a key, a count (without a key), or the rows before a clear (a collection). No
    cycle contains one, so the garbage collector does not visit them.
    """

    sequence: int
    kept: Any
    """Rows or Collection of state.py."""
    key: bytes | None


class ReplacedOrder:
    """Entries that are added at the end and discarded from the front."""

    __slots__ = ("_last", "_pieces", "_place", "count")

    def __init__(self) -> None:
        self._pieces: deque[tuple[Kept, ...]] = deque()
        self._last: list[Kept] = []
        """The entries after the pieces."""
        self._place = 0
        """The place of the first entry in the first piece."""
        self.count = 0
        """An attribute: every record asks for it, and a call would cost it more."""

    def __len__(self) -> int:
        return self.count

    def append(self, entry: Kept) -> None:
        self.count += 1
        self._last.append(entry)
        if len(self._last) >= PIECE_ENTRIES:
            self._pieces.append(tuple(self._last))
            self._last = []

    def first(self) -> Kept:
        """Return the oldest entry of an order that is not empty."""
        return (self._pieces[0] if self._pieces else self._last)[self._place]

    def discard_first(self) -> None:
        self.count -= 1
        self._place += 1
        if self._place < len(self._pieces[0] if self._pieces else self._last):
            return
        self._place = 0
        if self._pieces:
            self._pieces.popleft()
        else:
            self._last = []
