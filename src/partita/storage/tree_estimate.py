"""How many rows of a table WITHOUT ROWID have a number in their first column: an estimate.

The B-tree of a large table is not read as a whole, as `count(*)` would: the pages at the two ends
of the range are followed down to the leaves, and of the subtrees between them a few are followed.
The pages come from the main file, so rows that are only in the write-ahead log are not counted.
A page that cannot be understood counts as nothing: another process may write meanwhile.

    page       type 1 | 2 | cells 2 | 2 | 1 | rightmost child 4 (interior only) | places of cells
    cell       left child 4 (interior only) | bytes of the record, varint | record
    record     bytes of the header, varint | type of each column, varint | values
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

SAMPLES_MAX = 6
"""Subtrees of one page that are followed; deeper, the half of it."""
PAGES_MAX = 2000
"""Pages that one estimate reads: a tree that needs more is damaged."""

_INTERIOR, _LEAF = 2, 10
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_ZERO, _ONE = 8, 9
_VARINT_BYTES_MAX = 9

ReadPage = Callable[[int], bytes]
"""Returns a page by its number, counted from 1; empty if it does not exist."""


class Rows(NamedTuple):
    """A number of rows, and the bytes of their records."""

    number: float
    size: float

    def __add__(self, other: object) -> "Rows":
        assert isinstance(other, Rows)
        return Rows(self.number + other.number, self.size + other.size)

    def times(self, factor: float) -> "Rows":
        return Rows(self.number * factor, self.size * factor)


NONE = Rows(0, 0)


class _Page(NamedTuple):
    cells: list[tuple[int, int]]
    """The first column and the bytes of each record, in order."""
    children: list[int]
    """One more than cells; none in a leaf."""


def estimate_rows(read: ReadPage, root: int, number: int) -> Rows:
    """Estimate the rows of the tree whose first column is this number."""
    return _Tree(read, number).within(root, 0)


def file_pages(descriptor: int, page_bytes: int) -> ReadPage:
    """Return a reader of the pages of an open file."""
    return lambda number: os.pread(descriptor, page_bytes, (number - 1) * page_bytes)


class _Tree:
    def __init__(self, read: ReadPage, number: int) -> None:
        self._read = read
        self._number = number
        self._pages_left = PAGES_MAX

    def within(self, place: int, depth: int) -> Rows:
        """Estimate the rows of a subtree that have the number."""
        page = self._page(place)
        if page is None:
            return NONE
        found = sum((Rows(1, size) for first, size in page.cells if first == self._number), NONE)
        keys = [first for first, _ in page.cells]
        inner: list[int] = []
        for index, child in enumerate(page.children):
            before = keys[index - 1] if index else None
            after = keys[index] if index < len(keys) else None
            if before == after == self._number:
                inner.append(child)
            elif (before is None or before <= self._number) and (
                after is None or after >= self._number
            ):
                found += self.within(child, depth + 1)
        return found + self._sampled(inner, depth)

    def _sampled(self, children: Sequence[int], depth: int) -> Rows:
        """Estimate the rows of subtrees that have only the number, by a few of them."""
        count = min(len(children), SAMPLES_MAX if depth == 0 else SAMPLES_MAX // 2)
        if not count:
            return NONE
        step = len(children) / count
        chosen = [children[int((index + 0.5) * step)] for index in range(count)]
        total = sum((self._all(child, depth + 1) for child in chosen), NONE)
        return total.times(len(children) / count)

    def _all(self, place: int, depth: int) -> Rows:
        page = self._page(place)
        if page is None:
            return NONE
        own = Rows(len(page.cells), sum(size for _, size in page.cells))
        return own + self._sampled(page.children, depth)

    def _page(self, place: int) -> _Page | None:
        if not self._pages_left:
            return None
        self._pages_left -= 1
        try:
            return _decode(self._read(place))
        except IndexError:
            return None


def _decode(page: bytes) -> _Page | None:
    """Decode a page of an index tree; IndexError if it is cut or not such a page."""
    kind = page[0]
    if kind not in (_INTERIOR, _LEAF):
        return None
    header = 12 if kind == _INTERIOR else 8
    cells: list[tuple[int, int]] = []
    children: list[int] = []
    for index in range(int.from_bytes(page[3:5], "big")):
        at = header + 2 * index
        place = page[at] << 8 | page[at + 1]
        if kind == _INTERIOR:
            children.append(int.from_bytes(page[place : place + 4], "big"))
            place += 4
        size, place = _varint(page, place)
        cells.append((_first_column(page, place), size))
    if kind == _INTERIOR:
        children.append(int.from_bytes(page[8:12], "big"))
    return _Page(cells, children)


def _first_column(page: bytes, place: int) -> int:
    header, kinds = _varint(page, place)
    kind, _ = _varint(page, kinds)
    if kind in (_ZERO, _ONE):
        return kind - _ZERO
    size = _INTEGER_BYTES.get(kind, 0)
    value = page[place + header : place + header + size]
    if not size or len(value) < size:
        raise IndexError
    return int.from_bytes(value, "big", signed=True)


def _varint(page: bytes, place: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    value = 0
    for index in range(_VARINT_BYTES_MAX - 1):
        byte = page[place + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + index + 1
    return value << 8 | page[place + _VARINT_BYTES_MAX - 1], place + _VARINT_BYTES_MAX
