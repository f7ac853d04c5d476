"""What the columns of a table show: appends, a hot partition, scans; and what to do; pure."""

import enum
from collections import Counter
from collections.abc import Sequence

import msgspec

from partita.heat.axes import READS, SCANNED, WRITES, Axis, partition_of
from partita.heat.kept import Column

ENTITIES_MIN = 100
"""Less load than this has no shape."""
COLUMNS_MIN = 3
"""Fewer columns do not show a direction."""
APPENDED_SHARE_MIN = 0.8
"""The part of the writes that is beyond all keys before it."""
HOT_SHARE_MIN = 0.4
"""The part of the load that one of several partitions has."""
HOT_LOAD_MIN = 0.01
"""The part of the whole load, of all columns, below which no partition is hot: a quiet minute has
few keys."""
HOT_RATE_MIN = 1000
"""Entities per second in one partition: half of the target."""
SCANNED_SHARE_MIN = 0.4
"""The part of the reads that queries over several partitions make."""
TARGET_PER_SECOND = 2000
"""The scalability target of Azure for one partition."""


class Kind(enum.Enum):
    """The shapes that are known."""

    APPEND = "append"
    PREPEND = "prepend"
    HOT_PARTITION = "hot partition"
    SCAN = "scan"


class Shape(msgspec.Struct, frozen=True):
    """What was recognised, on what evidence, and what to do."""

    kind: Kind
    partition: str | None
    """The partition key of a hot partition."""
    share: float
    rate: float
    """Entities per second; of a hot partition, those of its busiest column."""
    evidence: str
    advice: str


def recognise(columns: Sequence[Column]) -> list[Shape]:
    """Return what the columns of one table show, if anything."""
    found = [_appends(columns), _hot_partition(columns), _scans(columns)]
    return [shape for shape in found if shape is not None]


def _appends(columns: Sequence[Column]) -> Shape | None:
    written = [
        (column, axis)
        for column in columns
        if (axis := [bucket for bucket in column.axis if bucket.counts[WRITES]])
    ]
    writes = sum(_sum(axis, WRITES) for _column, axis in written)
    if len(written) < COLUMNS_MIN or writes < ENTITIES_MIN:
        return None
    beyond, before = _beyond([axis for _column, axis in written])
    later = writes - _sum(written[0][1], WRITES)
    share = max(beyond, before) / later if later else 0.0
    if share < APPENDED_SHARE_MIN:
        return None
    seconds = sum(column.seconds for column, _axis in written)
    kind, place = (Kind.APPEND, "after") if beyond >= before else (Kind.PREPEND, "before")
    return Shape(
        kind,
        None,
        share,
        writes / seconds,
        f"{share:.0%} of the writes have keys {place} all earlier ones",
        "All writes go to one end of the table, so one server has them all. Put a value that is"
        " spread before the time in the partition key, such as a hash or the number of a bucket,"
        " or the tenant. See docs/patterns/prepend-append.md.",
    )


def _beyond(axes: Sequence[Axis]) -> tuple[float, float]:
    """Return the writes after, and before, all keys of earlier columns."""
    low, high = axes[0][0].first, axes[0][-1].last
    after = before = 0.0
    for axis in axes[1:]:
        for first, last, counts in axis:
            if last > high:
                after += counts[WRITES] * (1.0 if first >= high else 0.5)
            elif first < low:
                before += counts[WRITES] * (1.0 if last <= low else 0.5)
        low, high = min(low, axis[0].first), max(high, axis[-1].last)
    return after, before


class _Partitions(msgspec.Struct, frozen=True):
    """The partitions that one column has alone in a bucket."""

    loads: Counter[str]
    whole: int
    seconds: int
    has_others: bool

    @property
    def hottest(self) -> str:
        return self.loads.most_common(1)[0][0] if self.loads else ""

    def is_hot(self, partition: str) -> bool:
        """Return whether one of several has much of the load, or one alone a high rate."""
        load = self.loads[partition]
        is_one_of_several = self.has_others or len(self.loads) > 1
        has_share = is_one_of_several and load >= HOT_SHARE_MIN * self.whole
        return load > 0 and (has_share or load >= HOT_RATE_MIN * self.seconds)


def _hot_partition(columns: Sequence[Column]) -> Shape | None:
    found = [_partitions_of(column) for column in columns]
    hot = Counter(each.hottest for each in found if each.is_hot(each.hottest))
    if not hot:
        return None
    ((partition, count),) = hot.most_common(1)
    times = [each for each in found if each.is_hot(partition)]
    load, whole = (
        sum(each.loads[partition] for each in times),
        sum(each.whole for each in times),
    )
    least = max(ENTITIES_MIN, HOT_LOAD_MIN * sum(each.whole for each in found))
    if load < least or count < min(COLUMNS_MIN, len(columns)):
        return None
    peak = max(each.loads[partition] / each.seconds for each in times)
    of_target = f"{peak / TARGET_PER_SECOND:.0%} of the target of {TARGET_PER_SECOND:,}"
    return Shape(
        Kind.HOT_PARTITION,
        partition,
        load / whole,
        peak,
        f"in {len(times)} of {len(columns)} columns one partition has {load / whole:.0%} of the"
        f" load, at most {peak:,.1f} entities per second: {of_target}",
        "One partition is served by one server. Divide its entities over several partition keys,"
        " or cache what is read most. See docs/patterns/throughput-targets.md.",
    )


def _partitions_of(column: Column) -> _Partitions:
    loads: Counter[str] = Counter()
    has_others = False
    for bucket in column.axis:
        partition = partition_of(bucket.first)
        if partition == partition_of(bucket.last):
            loads[partition] += bucket.load
        else:
            has_others = True
    whole = sum(bucket.load for bucket in column.axis)
    return _Partitions(loads, whole, column.seconds, has_others)


def _scans(columns: Sequence[Column]) -> Shape | None:
    reads = sum(_sum(column.axis, READS) for column in columns)
    scanned = sum(_sum(column.axis, SCANNED) for column in columns)
    times = [
        column
        for column in columns
        if _sum(column.axis, SCANNED) >= max(1, _sum(column.axis, READS) // 2)
    ]
    if scanned < ENTITIES_MIN or (scanned < SCANNED_SHARE_MIN * reads and not times):
        return None
    seconds = sum(column.seconds for column in columns)
    return Shape(
        Kind.SCAN,
        None,
        scanned / reads,
        scanned / seconds,
        f"{scanned / reads:.0%} of the entities read were read by queries over several partitions",
        "Such a query reads every entity between its first and its last key. Name the partition"
        " key in the filter, or add an index table for it. `partita query --explain` and the"
        " console show the plan. See docs/patterns/inter-partition-index.md.",
    )


def _sum(axis: Axis, counter: int) -> int:
    return sum(bucket.counts[counter] for bucket in axis)
