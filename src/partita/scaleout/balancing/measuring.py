"""Heat as the load of each range: how much, where to split it, its hottest partition; pure.

A bucket of an axis that reaches over the bounds of ranges is divided evenly among them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from partita.heat.axes import READS, SCANNED, WRITES, Axis, Bucket, Counts, merge, partition_of
from partita.heat.kept import Column
from partita.heat.shapes import Kind, recognise
from partita.scaleout.balancing.limits import READ_COST, SCANNED_COST, WRITE_COST


class RangeHeat(msgspec.Struct, frozen=True):
    """The load of one range, in point reads per second."""

    load: float = 0.0
    middle: str | None = None
    hot_key: str | None = None
    hot_share: float = 0.0
    is_appending: bool = False


class Sample(msgspec.Struct, frozen=True):
    """The load of a table that one front end has measured."""

    front_end: str
    at: int
    """The end of the time, in seconds since 1970."""
    seconds: float
    axis: Axis


def cost_of(counts: Counts) -> float:
    """Return the load of counters, in point reads."""
    read = counts[READS] - counts[SCANNED]
    return read * READ_COST + counts[SCANNED] * SCANNED_COST + counts[WRITES] * WRITE_COST


def measure(samples: Sequence[Sample], starts: Sequence[str]) -> list[RangeHeat]:
    r"""Return the heat of the ranges of a table, which begin with `starts` in key order.

    >>> axis = [Bucket("a\0", "a\0", (30, 0, 0, 0, 0)), Bucket("m\0", "m\0", (10, 0, 0, 0, 0))]
    >>> [each.load for each in measure([Sample("one", 5, 5.0, axis)], ["", "k"])]
    [6.0, 2.0]
    """
    covered: dict[str, float] = {}
    for each in samples:
        covered[each.front_end] = covered.get(each.front_end, 0.0) + each.seconds
    found: list[list[tuple[Sample, Bucket]]] = [[] for _ in starts]
    for each in samples:
        for bucket in each.axis:
            for place, part in _divided(bucket, starts):
                found[place].append((each, part))
    return [_heat(parts, covered, starts[place]) for place, parts in enumerate(found)]


def shortest_between(before: str, key: str) -> str:
    """Return the shortest start of `key` that is greater than `before`.

    >>> shortest_between("customer-0100", "customer-0204")
    'customer-02'
    """
    return next(key[:end] for end in range(1, len(key) + 1) if key[:end] > before)


def _divided(bucket: Bucket, starts: Sequence[str]) -> Iterable[tuple[int, Bucket]]:
    """Yield the place of each range that a bucket is in, and its part there."""
    first = bisect_right(starts, partition_of(bucket.first)) - 1
    last = bisect_right(starts, partition_of(bucket.last)) - 1
    if first == last:
        yield first, bucket
        return
    count = last - first + 1
    for place in range(first, last + 1):
        part = place - first
        counts = tuple(each * (part + 1) // count - each * part // count for each in bucket.counts)
        start = bucket.first if place == first else f"{starts[place]}\0"
        yield place, Bucket(start, bucket.last if place == last else start, counts)


def _heat(
    found: Sequence[tuple[Sample, Bucket]], covered: Mapping[str, float], lower: str
) -> RangeHeat:
    steps: dict[str, float] = {}
    partitions: dict[str, float] = {}
    for sample, bucket in found:
        rate = cost_of(bucket.counts) / covered[sample.front_end]
        first, last = partition_of(bucket.first), partition_of(bucket.last)
        if first == last:
            partitions[first] = partitions.get(first, 0.0) + rate
        for key in (first, last):
            steps[key] = steps.get(key, 0.0) + rate / 2
    whole = sum(steps.values())
    if not whole:
        return RangeHeat()
    hottest = max(partitions, key=lambda key: partitions[key], default=None)
    return RangeHeat(
        whole,
        _middle(steps, lower),
        hottest,
        0.0 if hottest is None else partitions[hottest] / whole,
        any(shape.kind is Kind.APPEND for shape in recognise(_columns(found))),
    )


def _middle(steps: Mapping[str, float], lower: str) -> str | None:
    """Return the bound that leaves the most even halves of the load; None if there is none."""
    whole, before = sum(steps.values()), 0.0
    best: tuple[float, str] | None = None
    for previous, key in pairwise(sorted(steps)):
        before += steps[previous]
        distance = abs(whole - 2 * before)
        if best is None or distance < best[0]:
            best = distance, shortest_between(max(previous, lower), key)
    return None if best is None else best[1]


def _columns(found: Sequence[tuple[Sample, Bucket]]) -> list[Column]:
    """Return what all front ends have measured as columns over time."""
    times: dict[tuple[int, int], list[Bucket]] = {}
    for sample, bucket in found:
        length = max(1, round(sample.seconds))
        times.setdefault((sample.at // length * length, length), []).append(bucket)
    return [
        Column(start, length, merge([sorted(buckets)]))
        for (start, length), buckets in sorted(times.items())
    ]
