"""The columns of a table as a picture: ranges of keys by times, each cell a rate per second; pure.

Rows are cut where the load is, but a partition gets rows by the square root of its load: one with
much load is brighter than others, not only larger.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby, zip_longest

import msgspec

from partita.heat.axes import (
    BYTES_IN,
    BYTES_OUT,
    READS,
    SCANNED,
    WRITES,
    Axis,
    Bucket,
    Counts,
    merge,
    partition_of,
)
from partita.heat.kept import Column
from partita.heat.limits import MINUTE_SECONDS

KINDS: dict[str, tuple[int, ...]] = {
    "all": (READS, WRITES),
    "reads": (READS,),
    "writes": (WRITES,),
    "bytes": (BYTES_OUT, BYTES_IN),
}
"""What can be drawn: the counters of which the sum is shown."""
UNITS = {"all": "entities/s", "reads": "reads/s", "writes": "writes/s", "bytes": "bytes/s"}
FINE_BUCKETS_MAX = 2048
"""Buckets from which the rows of a picture are put together."""


class Row(msgspec.Struct, frozen=True):
    """One range of keys of a picture."""

    first: str
    last: str


class Picture(msgspec.Struct, frozen=True):
    """Rates by time and range of keys."""

    since: int
    step: int
    """Seconds of one column."""
    rows: list[Row]
    cells: list[list[float]]
    """By column, then by row."""
    unit: str

    @property
    def peak(self) -> float:
        return max((max(column, default=0.0) for column in self.cells), default=0.0)

    @property
    def to(self) -> int:
        return self.since + self.step * len(self.cells)


def amount(counts: Counts, kind: str) -> int:
    """Return what is shown of some counts."""
    return sum(counts[counter] for counter in KINDS[kind])


def draw(columns: Sequence[Column], kind: str, *, rows_max: int, columns_max: int) -> Picture:
    """Return a picture of at most so many rows and columns."""
    if not columns:
        return Picture(0, MINUTE_SECONDS, [], [], UNITS[kind])
    since = min(column.start for column in columns)
    to = max(column.start + column.seconds for column in columns)
    minutes = math.ceil((to - since) / MINUTE_SECONDS)
    step = math.ceil(minutes / columns_max) * MINUTE_SECONDS
    rows = rows_of([column.axis for column in columns], rows_max)
    count = math.ceil((to - since) / step)
    cells = [[0.0] * len(rows) for _ in range(count)]
    firsts, lasts = [row.first for row in rows], [row.last for row in rows]
    for column in columns:
        rates = _rates(column, kind, firsts, lasts)
        begin, end = column.start - since, column.start - since + column.seconds
        for place in range(begin // step, min(count, math.ceil(end / step))):
            part = (min(end, (place + 1) * step) - max(begin, place * step)) / step
            cell = cells[place]
            for row, rate in rates.items():
                cell[row] += rate * part
    return Picture(since, step, rows, cells, UNITS[kind])


def _rates(
    column: Column, kind: str, firsts: Sequence[str], lasts: Sequence[str]
) -> dict[int, float]:
    """Return the rate per second of each row that a column has load in."""
    rates: dict[int, float] = {}

    def spread(found: float, start: int, end: int) -> None:
        for row in range(start, end):
            rates[row] = rates.get(row, 0.0) + found / (end - start) / column.seconds

    for bucket, after in zip_longest(column.axis, column.axis[1:]):
        found = float(amount(bucket.counts, kind))
        start = bisect_left(lasts, bucket.first)
        end = max(start + 1, bisect_right(firsts, bucket.last))
        scanned = bucket.counts[SCANNED]
        if after is not None and scanned and after.counts[SCANNED]:
            # A query read the keys between two buckets, too, though no other request did.
            by_query = found * scanned / bucket.load
            spread(by_query, start, max(end, bisect_left(lasts, after.first)))
            found -= by_query
        if found:
            spread(found, start, end)
    return rates


def rows_of(axes: Sequence[Axis], rows_max: int) -> list[Row]:
    """Return the ranges of keys that a picture of these axes shows, in order."""
    groups = partitions_of(merge(axes, FINE_BUCKETS_MAX))
    rows: list[Row] = []
    for group, count in zip(groups, _allotted(groups, rows_max), strict=True):
        rows += _cut(group, count)
    return _joined(rows, rows_max)


def partitions_of(axis: Axis) -> list[Axis]:
    """Group the neighbours that are in one partition; a bucket of several is a group of its own."""

    def partition(pair: tuple[int, Bucket]) -> object:
        place, bucket = pair
        one = partition_of(bucket.first)
        return one if one == partition_of(bucket.last) else place

    return [
        [bucket for _place, bucket in found] for _key, found in groupby(enumerate(axis), partition)
    ]


def _allotted(groups: Sequence[Axis], rows_max: int) -> list[int]:
    """Return how many rows each group gets."""
    weights = [math.sqrt(sum(bucket.load for bucket in group)) for group in groups]
    whole = sum(weights) or 1.0
    return [
        min(len(group), max(1, round(rows_max * weight / whole)))
        for group, weight in zip(groups, weights, strict=True)
    ]


def _cut(group: Axis, count: int) -> list[Row]:
    """Cut neighbours into as many rows, of about the same number of buckets."""
    size = math.ceil(len(group) / count)
    parts = [group[start : start + size] for start in range(0, len(group), size)]
    return [Row(part[0].first, part[-1].last) for part in parts]


def _joined(rows: list[Row], rows_max: int) -> list[Row]:
    size = math.ceil(len(rows) / rows_max) if rows else 1
    return [
        Row(rows[start].first, rows[min(start + size, len(rows)) - 1].last)
        for start in range(0, len(rows), size)
    ]


class HotRange(msgspec.Struct, frozen=True):
    """A range of keys and its part of the load."""

    first: str
    last: str
    rate: float
    """Per second, of the time that was read."""
    share: float


def hottest(columns: Sequence[Column], kind: str, count: int) -> list[HotRange]:
    """Return the ranges with the most load: partitions, or buckets of several."""
    seconds = sum(column.seconds for column in columns)
    found = [
        (group[0].first, group[-1].last, sum(amount(bucket.counts, kind) for bucket in group))
        for group in partitions_of(merge([column.axis for column in columns]))
    ]
    whole = sum(load for _first, _last, load in found)
    return [
        HotRange(first, last, load / seconds, load / whole)
        for first, last, load in sorted(found, key=lambda each: -each[2])[:count]
        if load
    ]
