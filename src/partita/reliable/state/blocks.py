"""The newest rows of a collection: a list of blocks in key order, each a dict of some hundred rows.

    bounds   [b"",     b"f",     b"q"    ]     the lowest key that each block may contain
    blocks   [{a…, e…}, {f…, p…}, {q…, z…}]     at least one; none is empty if there are several

A key is found by a binary search of the bounds and one lookup. What costs time for each row in
one large dict costs it here for the rows of one block: a dict that grows is copied, and the
garbage collector visits no row, because it does not visit a dict of bytes. A block is encoded and
decoded by one call, so that checkpoints and opening take little time of the event loop.

A dict keeps the order in which keys were added. A new key that is not the last one makes its
block unsorted; the block is sorted when its rows are read in order the next time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain, islice
from typing import TypeVar, overload

import msgspec

FULL_ROWS = 256
"""Rows of a block that is filled in key order; a block with twice as many is divided."""
FULL_BYTES = 64 * 1024
"""Bytes of keys and values of such a block; a block with twice as many is divided."""
SPARSE_ROWS = 32
"""A block that has lost rows and has at most so many is merged with the block before it."""

T = TypeVar("T")
Pairs = list[tuple[bytes, bytes]]


class Block(msgspec.Struct, gc=False):
    """The rows of one range of keys. No cycle contains a block: the collector ignores it."""

    rows: dict[bytes, bytes]
    size: int
    """About the bytes of its keys and values."""
    changed: int = 0
    """The sequence of the last write in its range; writes before the state was opened have 0."""
    is_sorted: bool = True

    def is_full(self) -> bool:
        return len(self.rows) >= FULL_ROWS or self.size >= FULL_BYTES

    def ordered(self) -> dict[bytes, bytes]:
        """Return the rows in key order."""
        if not self.is_sorted:
            rows = self.rows
            keys = sorted(rows)
            self.rows = dict(zip(keys, map(rows.__getitem__, keys), strict=True))
            self.is_sorted = True
        return self.rows


class Blocks(Mapping[bytes, bytes]):
    """Rows by encoded key, iterated in key order. Only `State` changes them."""

    __slots__ = ("_blocks", "_bounds", "_count")

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._bounds = [b""]
        self._blocks = [Block({}, 0)]
        self._count = 0
        rows = dict(pairs)
        self.extend({key: rows[key] for key in sorted(rows)}, sum(map(_size, rows.items())))

    # Reading

    def __getitem__(self, key: bytes) -> bytes:
        return self._blocks[bisect_right(self._bounds, key) - 1].rows[key]

    @overload
    def get(self, key: bytes, default: None = None, /) -> bytes | None: ...
    @overload
    def get(self, key: bytes, default: bytes | T, /) -> bytes | T: ...
    def get(self, key: bytes, default: object = None, /) -> object:
        return self._blocks[bisect_right(self._bounds, key) - 1].rows.get(key, default)

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, bytes)
        return key in self._blocks[bisect_right(self._bounds, key) - 1].rows

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.pieces())

    def items(self) -> "_Items":
        return _Items(self)

    def values(self) -> "_Values":
        return _Values(self)

    def pieces(self) -> Iterator[dict[bytes, bytes]]:
        """Yield the rows of each block in key order."""
        return (block.ordered() for block in self._blocks)

    def last_key(self) -> bytes | None:
        return next(reversed(self._blocks[-1].ordered()), None)

    def between(
        self, lower: bytes, upper: bytes | None, *, limit: int, reverse: bool = False
    ) -> Pairs:
        """Return the first rows of a half-open range, from either end."""
        found: Pairs = []
        step = -1 if reverse else 1
        if reverse:
            place = len(self._blocks) - 1 if upper is None else bisect_left(self._bounds, upper) - 1
        else:
            place = bisect_right(self._bounds, lower) - 1
        while 0 <= place < len(self._blocks) and len(found) < limit:
            bound = self._bounds[place]
            if upper is not None and bound >= upper and not reverse:
                break
            rows = self._blocks[place].ordered()
            if lower <= bound and upper is None and not reverse:
                found += islice(rows.items(), limit - len(found))
                place += 1
                continue
            keys = list(rows)
            end = len(keys) if upper is None else bisect_left(keys, upper)
            start = 0 if lower <= bound else bisect_left(keys, lower)
            left = limit - len(found)
            if reverse:
                keys = keys[max(start, end - left) : end][::-1]
            else:
                keys = keys[start : min(end, start + left)]
            found += zip(keys, map(rows.__getitem__, keys), strict=True)
            if reverse and lower >= bound:
                break
            place += step
        return found

    def block_at(self, lower: bytes) -> tuple[Block, bytes, bytes | None]:
        """Return the block that may contain a key, its bound and that of the next block."""
        place = bisect_right(self._bounds, lower) - 1
        after = self._bounds[place + 1] if place + 1 < len(self._bounds) else None
        return self._blocks[place], self._bounds[place], after

    # Changing

    def put(self, key: bytes, value: bytes, sequence: int) -> bytes | None:
        """Add or replace a row; return the value that it had."""
        place = bisect_right(self._bounds, key) - 1
        block = self._blocks[place]
        rows = block.rows
        old = rows.get(key)
        if old is not None:
            rows[key] = value
            block.size += len(value) - len(old)
        else:
            self._count += 1
            if rows and key < next(reversed(rows)):
                block.is_sorted = False
            elif rows and block.is_sorted and block.is_full():
                # Rows that come in key order leave full blocks behind.
                place += 1
                block = Block({}, 0)
                self._bounds.insert(place, key)
                self._blocks.insert(place, block)
                rows = block.rows
            rows[key] = value
            block.size += len(key) + len(value)
        block.changed = sequence
        if len(rows) > 2 * FULL_ROWS or (block.size > 2 * FULL_BYTES and len(rows) > 1):
            self._divide(place)
        return old

    def remove(self, key: bytes, sequence: int) -> bytes | None:
        """Remove a row; return the value that it had, None if the row does not exist."""
        place = bisect_right(self._bounds, key) - 1
        block = self._blocks[place]
        old = block.rows.pop(key, None)
        if old is None:
            return None
        block.size -= len(key) + len(old)
        block.changed = sequence
        self._count -= 1
        if len(block.rows) <= SPARSE_ROWS and len(self._blocks) > 1:
            self._merge(place)
        return old

    def popitem(self) -> tuple[bytes, bytes]:
        """Remove and return a row of those that no reader sees any more."""
        while not self._blocks[-1].rows:
            del self._blocks[-1], self._bounds[-1]
        self._count -= 1
        return self._blocks[-1].rows.popitem()

    def extend(self, rows: dict[bytes, bytes], size: int) -> None:
        """Add rows in key order, which come after all others; `size` is about their bytes."""
        if not rows:
            return
        each = max(1, size // len(rows))
        count = min(2 * FULL_ROWS, max(1, 2 * FULL_BYTES // each))
        parts = [rows] if len(rows) <= count else _parts(rows, count)
        for part in parts:
            block = Block(part, each * len(part))
            if self._count:
                self._bounds.append(next(iter(part)))
                self._blocks.append(block)
            else:
                self._blocks[0] = block
            self._count += len(part)

    def merge(self, rows: dict[bytes, bytes], size: int) -> None:
        """Add or replace rows in key order, of a state that is being loaded; see `extend`."""
        keys = list(rows)
        each = max(1, size // max(1, len(keys)))
        at = 0
        while at < len(keys):
            place = bisect_right(self._bounds, keys[at]) - 1
            if place + 1 == len(self._blocks):
                last = self.last_key()
                if last is None or last < keys[at]:
                    rest = {key: rows[key] for key in keys[at:]} if at else rows
                    self.extend(rest, each * len(rest))
                    return
                end = bisect_right(keys, last, at)
            else:
                end = bisect_left(keys, self._bounds[place + 1], at)
            part = {key: rows[key] for key in keys[at:end]} if end - at < len(keys) else rows
            self._merge_into(place, part, each)
            at = end

    def _merge_into(self, place: int, part: dict[bytes, bytes], each: int) -> None:
        block = self._blocks[place]
        before, usual = len(block.rows), block.size // max(1, len(block.rows))
        block.rows.update(part)
        added = len(block.rows) - before
        # The sizes of the replaced rows are not known: they had about the usual one.
        block.size += each * len(part) - usual * (len(part) - added)
        if added:
            self._count += added
            block.is_sorted = False
            if self._is_too_large(block):
                self._divide(place)

    def _is_too_large(self, block: Block) -> bool:
        rows = len(block.rows)
        return rows > 2 * FULL_ROWS or (block.size > 2 * FULL_BYTES and rows > 1)

    def _divide(self, place: int) -> None:
        block = self._blocks[place]
        pairs = iter(block.ordered().items())
        lower = dict(islice(pairs, len(block.rows) // 2))
        upper = dict(pairs)
        self._blocks[place : place + 1] = [
            Block(part, sum(map(_size, part.items())), block.changed) for part in (lower, upper)
        ]
        self._bounds.insert(place + 1, next(iter(upper)))

    def _merge(self, place: int) -> None:
        """Merge a sparse block with the one before it, or with the next one if it is empty."""
        block = self._blocks[place]
        if place:
            before = self._blocks[place - 1]
            count, size = len(before.rows) + len(block.rows), before.size + block.size
            if block.rows and (count > FULL_ROWS or size > FULL_BYTES):
                return
            # A new dict: the old one may have room for many more rows.
            rows = {**before.ordered(), **block.ordered()} if block.rows else before.rows
            changed = max(before.changed, block.changed)
            self._blocks[place - 1 : place + 1] = [Block(rows, size, changed, before.is_sorted)]
            del self._bounds[place]
        elif not block.rows:
            after = self._blocks[1]
            after.changed = max(after.changed, block.changed)
            del self._blocks[0], self._bounds[1]


class _Items(ItemsView[bytes, bytes]):
    def __init__(self, blocks: Blocks) -> None:
        super().__init__(blocks)
        self._pieces = blocks.pieces

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return chain.from_iterable(piece.items() for piece in self._pieces())


class _Values(ValuesView[bytes]):
    def __init__(self, blocks: Blocks) -> None:
        super().__init__(blocks)
        self._pieces = blocks.pieces

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(piece.values() for piece in self._pieces())


def _parts(rows: dict[bytes, bytes], count: int) -> Iterator[dict[bytes, bytes]]:
    pairs = iter(rows.items())
    while part := dict(islice(pairs, count)):
        yield part


def _size(pair: tuple[bytes, bytes]) -> int:
    return len(pair[0]) + len(pair[1])
