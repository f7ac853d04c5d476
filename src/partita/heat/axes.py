"""Axes: the load of one table over its keys, in at most `BUCKETS_MAX` ranges of keys; pure.

A bucket has the first and the last key that was seen in it: keys between two buckets had no load.
Buckets are cut where the load is. `fold` makes an axis of samples, and of the buckets of other
axes; the sum of each counter stays what it was.

A range is spread evenly over the keys that are known in it: the ends of ranges, and single keys.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from partita.heat.limits import BUCKETS_MAX

COUNTERS = ("reads", "scanned", "writes", "bytes_out", "bytes_in")
"""Entities read, those of them that queries over several partitions read, entities written, bytes
of answers, and of request bodies."""
READS, SCANNED, WRITES, BYTES_OUT, BYTES_IN = range(len(COUNTERS))
ZERO = (0,) * len(COUNTERS)

GAP_FACTOR = 64
"""Neighbours are joined over a gap as if they had this much more load."""
HOT_FACTOR = 4096
"""The same with a neighbour that is a single hot key: these are joined last."""
GAP_CHARACTERS = 2
"""A gap is where the common prefix of neighbours is shorter by this than on both sides."""

START, END = "\0", "\U0010ffff\0"
"""The ends of a range of unknown keys: it reaches from the first, or to the last, known key."""

Counts = tuple[int, ...]


class Bucket(NamedTuple):
    """The counts of the keys from `first` to `last`, both inside."""

    first: str
    last: str
    counts: Counts

    @property
    def load(self) -> int:
        """Entities read and written."""
        return self.counts[READS] + self.counts[WRITES]


Axis = list[Bucket]
"""Buckets in the order of keys that do not overlap."""


def total(parts: Iterable[Bucket]) -> Counts:
    """Return the sum of each counter."""
    sums = list(ZERO)
    for _first, _last, counts in parts:
        for place, count in enumerate(counts):
            sums[place] += count
    return tuple(sums)


def fold(parts: Iterable[Bucket], limit: int = BUCKETS_MAX) -> Axis:
    """Return an axis of at most `limit` buckets; `parts` may overlap and have any order."""
    points, ranges = _points_of(_closed(list(parts)))
    keys = sorted(points)
    rows = [points[key] for key in keys]
    spread = _Spread(keys, ranges)
    loads = [
        row[READS] + row[WRITES] + extra for row, extra in zip(rows, spread.loads, strict=True)
    ]
    groups = _joined(_walk(keys, loads, spread.is_end, limit), limit)
    axis: Axis = []
    for group in groups:
        taken = spread.take(group.end)
        counts = tuple(map(sum, zip(taken, *rows[group.start : group.end], strict=True)))
        if any(counts):
            axis.append(Bucket(keys[group.start], keys[group.end - 1], counts))
    return axis


def merge(axes: Iterable[Axis], limit: int = BUCKETS_MAX) -> Axis:
    """Return one axis with the load of several."""
    return fold((bucket for axis in axes for bucket in axis), limit)


def _closed(parts: list[Bucket]) -> list[Bucket]:
    """Let ranges of unknown keys end at known ones; what nothing is known of is at the start."""
    if not any(first == START != last or last == END for first, last, _counts in parts):
        return parts
    known = {key for first, last, _counts in parts for key in (first, last)} - {START, END}
    low, high = min(known, default=START), max(known, default=START)
    return [
        Bucket(low if first == START != last else first, high if last == END else last, counts)
        for first, last, counts in parts
    ]


def _points_of(parts: Iterable[Bucket]) -> tuple[dict[str, list[int]], list[Bucket]]:
    """Return the counts of single keys, with zeros for the ends of ranges; and the ranges."""
    points: dict[str, list[int]] = {}
    ranges: dict[tuple[str, str], list[int]] = {}
    for first, last, counts in parts:
        if first == last:
            sums = points.get(first)
            if sums is None:
                points[first] = list(counts)
                continue
        else:
            sums = ranges.get((first, last))
            if sums is None:
                ranges[first, last] = list(counts)
                continue
        for place, count in enumerate(counts):
            sums[place] += count
    for key in (key for ends in ranges for key in ends):
        points.setdefault(key, list(ZERO))
    return points, [Bucket(*ends, tuple(counts)) for ends, counts in ranges.items()]


class _Spread:
    """Ranges that are spread evenly over the known keys, taken from the first key on."""

    def __init__(self, keys: Sequence[str], ranges: Sequence[Bucket]) -> None:
        self._is_empty = not ranges
        count = len(keys)
        self.loads = [0.0] * count
        if not ranges:
            return
        steps = [[0.0] * (count + 1) for _ in ZERO]
        covers = [0] * (count + 1)
        place = {key: number for number, key in enumerate(keys)}
        self._totals = total(ranges)
        self._given = list(ZERO)
        for first, last, counts in ranges:
            start, end = place[first], place[last] + 1
            covers[start] += 1
            covers[end - 1] -= 1
            for counter, amount in zip(steps, counts, strict=True):
                if amount:
                    counter[start] += amount / (end - start)
                    counter[end] -= amount / (end - start)
        # Rounding can leave a tiny negative rest after the end of a range.
        densities = [[max(0.0, each) for each in accumulate(counter)] for counter in steps]
        self._sums = [list(accumulate(density)) for density in densities]
        self.loads = list(map(sum, zip(densities[READS][:count], densities[WRITES], strict=False)))
        self._covered = list(accumulate(covers))

    def is_end(self, place: int) -> bool:
        """Return whether a range ends with this key, and none goes on."""
        if self._is_empty or place == 0:
            return False
        return self._covered[place - 1] > 0 and self._covered[place] == 0

    def take(self, end: int) -> list[int]:
        """Return whole counts for the keys up to `end` that were not taken before."""
        if self._is_empty:
            return list(ZERO)
        taken = []
        is_last = end == len(self.loads)
        for place, whole in enumerate(self._totals):
            reached = whole if is_last else min(whole, round(self._sums[place][end - 1]))
            taken.append(reached - self._given[place])
            self._given[place] = reached
        return taken


class _Group(NamedTuple):
    start: int
    end: int
    load: float
    has_gap: bool
    """Whether there is a gap after it."""
    is_hot: bool = False
    """Whether it is one key with the share of a bucket."""


def _walk(
    keys: Sequence[str], loads: Sequence[float], is_end: Callable[[int], bool], limit: int
) -> list[_Group]:
    """Cut the keys: a key with the share of a bucket has one of its own, others fill one."""
    share = sum(loads) / limit
    prefixes = [shared_prefix(one, other) for one, other in pairwise(keys)]
    groups: list[_Group] = []
    start, filled = 0, 0.0
    last = len(keys) - 1
    for place, load in enumerate(loads):
        if place > start and filled + load > share:
            groups.append(_Group(start, place, filled, has_gap=False))
            start, filled = place, 0.0
        filled += load
        has_gap = place < last and _is_gap(prefixes, place)
        if load >= share or has_gap or (is_end(place) and filled >= share / 2):
            groups.append(_Group(start, place + 1, filled, has_gap, load >= share))
            start, filled = place + 1, 0.0
    if start <= last:
        groups.append(_Group(start, last + 1, filled, has_gap=False))
    return groups


def _is_gap(prefixes: Sequence[int], place: int) -> bool:
    here = prefixes[place] + GAP_CHARACTERS
    is_left = place == 0 or here <= prefixes[place - 1]
    return is_left and (place + 1 == len(prefixes) or here <= prefixes[place + 1])


def _joined(groups: list[_Group], limit: int) -> list[_Group]:
    """Join neighbours with the least load until `limit` are left."""
    excess = len(groups) - limit
    if excess <= 0:
        return groups
    found: list[_Group | None] = [*groups]
    before, after = list(range(-1, len(groups) - 1)), list(range(1, len(groups) + 1))
    costs = [(_cost(*pair), place, place + 1) for place, pair in enumerate(pairwise(groups))]
    heapq.heapify(costs)
    while excess:
        cost, left, right = heapq.heappop(costs)
        one, other = found[left], found[right] if right < len(found) else None
        if one is None or other is None or after[left] != right or cost != _cost(one, other):
            continue
        joined = _Group(
            one.start, other.end, one.load + other.load, other.has_gap, one.is_hot or other.is_hot
        )
        found[left], found[right] = joined, None
        after[left] = following = after[right]
        if following < len(found):
            before[following] = left
            heapq.heappush(costs, (_cost(joined, _get(found, following)), left, following))
        if before[left] >= 0:
            heapq.heappush(costs, (_cost(_get(found, before[left]), joined), before[left], left))
        excess -= 1
    return [group for group in found if group is not None]


def _get(found: Sequence[_Group | None], place: int) -> _Group:
    group = found[place]
    assert group is not None
    return group


def _cost(one: _Group, other: _Group) -> float:
    factor = HOT_FACTOR if one.is_hot or other.is_hot else 1
    return (one.load + other.load + 1) * (GAP_FACTOR if one.has_gap else 1) * factor


def partition_of(key: str) -> str:
    """Return the partition key of a key."""
    return key.partition("\0")[0]


def shared_prefix(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
