"""The requests of a query: point reads, ranges of row keys, scans.

A query first finds spots: points and ranges of keys. `gather` combines them into few requests, in
key order and without overlap, so that no entity is read twice.
"""

import enum

import msgspec

from partita.patterns.keys.key_text import just_above
from partita.patterns.planning.filter_text import bounds_text, quoted
from partita.patterns.protocol.values import RowKey
from partita.tables.plan import PlanKind

POINTS_MAX = 100
"""Point reads of one query; more of them are read as one range around them."""
RANGES_MAX = 8
"""Ranges of one partition in one query; more of them are read as one range around them."""
PARTITIONS_MAX = 256
"""Partitions of one query; more of them are read as a range of partitions."""


class QueryKind(enum.Enum):
    """The kinds of queries, from the cheapest to the most expensive."""

    POINT = "point"
    POINTS = "points"
    """Any number of point reads, possibly none."""
    RANGE = "range"
    """A range of row keys of one partition."""
    PARTITION = "partition"
    """A whole partition."""
    SPREAD = "spread"
    """Several known partitions, whose answers are merged."""
    MULTI_PARTITION = "multi-partition"
    """All partitions between two keys."""
    TABLE = "table"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {kind: rank for rank, kind in enumerate(QueryKind)}


class PointRead(msgspec.Struct, frozen=True):
    key: RowKey

    @property
    def kind(self) -> PlanKind:
        return PlanKind.POINT

    def bounds_text(self) -> str:
        keys = quoted(self.key.partition), quoted(self.key.row)
        return f"PartitionKey eq {keys[0]} and RowKey eq {keys[1]}"


class RangeRead(msgspec.Struct, frozen=True):
    """The row keys of one partition from `lower` to `upper` (exclusive; None is unbounded)."""

    partition: str
    lower: str = ""
    upper: str | None = None

    @property
    def kind(self) -> PlanKind:
        is_whole = not self.lower and self.upper is None
        return PlanKind.PARTITION if is_whole else PlanKind.RANGE

    def bounds_text(self) -> str:
        rows = bounds_text("RowKey", self.lower, self.upper)
        return " and ".join(filter(None, (f"PartitionKey eq {quoted(self.partition)}", rows)))


class ScanRead(msgspec.Struct, frozen=True):
    """The partition keys from `lower` to `upper` (exclusive), and a range of row keys in each."""

    lower: str = ""
    upper: str | None = None
    row_lower: str = ""
    row_upper: str | None = None

    @property
    def kind(self) -> PlanKind:
        is_whole = not self.lower and self.upper is None
        return PlanKind.TABLE if is_whole else PlanKind.MULTI_PARTITION

    def bounds_text(self) -> str:
        partitions = bounds_text("PartitionKey", self.lower, self.upper)
        rows = bounds_text("RowKey", self.row_lower, self.row_upper)
        return " and ".join(filter(None, (partitions, rows)))


Read = PointRead | RangeRead | ScanRead


class Spot(msgspec.Struct, frozen=True):
    """A range of row keys in one partition, or in all partitions up to `partition_upper`."""

    partition: str
    lower: str
    upper: str | None
    point: RowKey | None = None
    is_open: bool = False
    partition_upper: str | None = None

    @property
    def partition_end(self) -> str | None:
        return self.partition_upper if self.is_open else just_above(self.partition)


class Hull(enum.Enum):
    """What the requests include beyond the spots."""

    NOTHING = "nothing"
    ROWS = "rows"
    """Other row keys of the same partitions."""
    PARTITIONS = "partitions"
    """Other partitions."""


def gather(spots: list[Spot]) -> tuple[tuple[Read, ...], Hull]:
    """Return the requests for the spots, and what else they include."""
    if any(spot.is_open for spot in spots):
        return (_scan_around(spots),), Hull.PARTITIONS if len(spots) > 1 else Hull.NOTHING
    points = sorted({spot.point for spot in spots if spot.point is not None})
    if all(spot.point is not None for spot in spots) and len(points) <= POINTS_MAX:
        return tuple(map(PointRead, points)), Hull.NOTHING
    partitions = sorted({spot.partition for spot in spots})
    if len(partitions) > PARTITIONS_MAX:
        return (_scan_around(spots),), Hull.PARTITIONS
    reads: list[Read] = []
    hull = Hull.NOTHING
    for partition in partitions:
        ranges = _joined([spot for spot in spots if spot.partition == partition])
        if len(ranges) > RANGES_MAX:
            ranges, hull = [(ranges[0][0], ranges[-1][1])], Hull.ROWS
        reads += [RangeRead(partition, lower, upper) for lower, upper in ranges]
    return tuple(reads), hull


def _joined(spots: list[Spot]) -> list[tuple[str, str | None]]:
    """Return the ranges of row keys in order, with overlapping ones joined."""
    ranges: list[tuple[str, str | None]] = []
    for lower, upper in sorted({(spot.lower, spot.upper) for spot in spots}, key=_by_lower):
        if ranges and (ranges[-1][1] is None or lower < ranges[-1][1]):
            first, last = ranges.pop()
            ranges.append((first, _later(last, upper)))
        else:
            ranges.append((lower, upper))
    return ranges


def _by_lower(span: tuple[str, str | None]) -> str:
    return span[0]


def _later(this: str | None, that: str | None) -> str | None:
    return None if this is None or that is None else max(this, that)


def _scan_around(spots: list[Spot]) -> ScanRead:
    first = spots[0]
    end, row_end = first.partition_end, first.upper
    for spot in spots[1:]:
        end, row_end = _later(end, spot.partition_end), _later(row_end, spot.upper)
    return ScanRead(
        min(spot.partition for spot in spots), end, min(spot.lower for spot in spots), row_end
    )


def kind_of(reads: tuple[Read, ...]) -> QueryKind:
    if all(isinstance(read, PointRead) for read in reads):
        return QueryKind.POINT if len(reads) == 1 else QueryKind.POINTS
    if isinstance(reads[0], ScanRead):
        return QueryKind(reads[0].kind.value)
    if len({read.partition for read in reads if isinstance(read, RangeRead)}) > 1:
        return QueryKind.SPREAD
    return QueryKind.PARTITION if reads[0].kind is PlanKind.PARTITION else QueryKind.RANGE
