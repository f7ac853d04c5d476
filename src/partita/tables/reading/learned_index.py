"""Indexes of properties within partitions, learned from the filters that are asked. Not on disk.

An index has, for each short value of a property (see `partita.tables.pushdown`), the row keys of
the entities with it, so that a selective filter reads these and not the whole partition. It is made
for a partition that is asked for a property again without a change in between, lives in memory, and
is dropped by the first change of the partition. The one rule: a lookup may select too much, never
too little; the exact filter then decides.

It follows commits: what was read while a change of the partition was not committed is not kept, and
an index is dropped before a change is applied. So an index that is kept equals every snapshot
that is opened while it is kept. Commits of other processes are not noticed: only a store that has
its database alone may use it.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from partita.tables import edm
from partita.tables.filters import And, Comparison, Filter, Literal
from partita.tables.pushdown import (
    COLUMNS,
    EXACT_MAX,
    LAST,
    MARKS,
    SHORT_CHARACTERS_MAX,
    is_plain,
    widened,
)

ENTITIES_MAX = 50_000
"""A partition with more entities gets no index: making it would take over 0.1 s."""
INDEX_BYTES_MAX = 64 * 1024 * 1024
"""The memory of all indexes of a store, estimated."""
PARTITIONS_MAX = 4096
"""Partitions that are observed at a time; the one used least recently is forgotten first."""
SCANS_BEFORE = 2
"""An index is made for this scan of a property of an unchanged partition, ..."""
SCANS_BEFORE_MAX = 64
"""... and for a later one, each time twice as late, after indexes that were hardly used."""
PAYING_LOOKUPS = 4
"""Making an index takes about as long as this many lookups save."""
VALUE_BYTES = 200
"""What a value takes besides its row keys."""
CANDIDATES_ALWAYS, CANDIDATES_SHARE = 16, 8
"""Reading more entities by their keys, and more than this part, is not faster than the scan."""

_COUNT = "SELECT count(*) FROM (SELECT 1 FROM entity WHERE tid = ? AND pk = ? LIMIT ?)"
_READ = (
    "SELECT short ->> ?3 AS value, count(*), json_group_array(rk) FROM entity"
    " WHERE tid = ?1 AND pk = ?2 AND (short IS NULL OR value IS NOT NULL)"
    " GROUP BY value ORDER BY value"
)

Place = tuple[int, str]
"""The number of a table and a partition key."""


class Condition(NamedTuple):
    """The values of a property that a filter may select: short values from lower to upper."""

    name: str
    lower: Any
    upper: Any
    """Not less than `lower`, and of the same kind: both numbers or both texts."""
    alone: Literal | None = None
    """The literal, if the whole filter is that the property equals it."""


class Candidates(msgspec.Struct, frozen=True):
    """The entities that a filter may select, by an index."""

    index: "PropertyIndex"
    count: int
    row_keys: str
    """A JSON array."""
    alone: Literal | None
    """The filter, as `Condition.alone`, ..."""
    is_exact: bool
    """... and whether it is known to select all of them."""


class PropertyIndex(msgspec.Struct):
    """The row keys of a partition by the values of one property."""

    name: str
    numbers: list[Any]
    """In order, like `texts`."""
    texts: list[str]
    row_keys: dict[Any, tuple[int, str]]
    """Count and JSON array of row keys by value; by None of the entities without short values."""
    entities: int
    """Of the partition."""
    size: int
    lookups: int = 0
    exact: set[Literal] = msgspec.field(default_factory=set)
    """Literals that equal the property of each entity with their short value."""

    def find(self, condition: Condition) -> Candidates | None:
        """Return the entities whose value is in a range; None if these are too many."""
        _, lower, upper, alone = condition
        most = max(CANDIDATES_ALWAYS, self.entities // CANDIDATES_SHARE)
        found = [self.row_keys[None]] if None in self.row_keys else []
        if lower == upper:
            found += [self.row_keys[lower]] if lower in self.row_keys else []
        else:
            values = self.texts if isinstance(lower, str) else self.numbers
            start, end = bisect_left(values, lower), bisect_right(values, upper)
            if end - start > most:
                return None
            found += [self.row_keys[value] for value in values[start:end]]
        count = sum([each for each, _ in found])
        if count > most:
            return None
        self.lookups += 1
        row_keys = f"[{','.join([text[1:-1] for _, text in found])}]"
        return Candidates(self, count, row_keys, alone, alone in self.exact)


def read_index(connection: Any, place: Place, name: str) -> PropertyIndex | None:
    """Read an index in one statement; None if the partition has too many entities."""
    entities: int = connection.execute(_COUNT, (*place, ENTITIES_MAX + 1)).get
    if entities > ENTITIES_MAX:
        return None
    row_keys: dict[Any, tuple[int, str]] = {}
    size = 0
    for value, count, text in connection.execute(_READ, (*place, name)):
        row_keys[value] = count, text
        size += len(text) + VALUE_BYTES
    # SQLite orders as Python does: numbers before texts, texts by code point.
    values = [value for value in row_keys if value is not None]
    first_text = bisect_left(values, 1, key=lambda value: isinstance(value, str))
    numbers, texts = values[:first_text], values[first_text:]
    return PropertyIndex(name, numbers, texts, row_keys, entities, size)


class _Partition:
    """What is known of a partition since its last change."""

    __slots__ = ("indexes", "making", "scans")

    def __init__(self) -> None:
        self.scans: dict[str, int] = {}
        """By property: filters that an index on it would have made cheaper."""
        self.making: set[str] = set()
        self.indexes: dict[str, PropertyIndex] = {}


class LearnedIndexes:
    """The indexes of one store, used on its event loop.

    Before a change of a partition is applied, in any thread, its place is added to `touched`, and
    then dropped if it is in `partitions`.
    """

    def __init__(self, is_changing: Callable[[], bool]) -> None:
        self._is_changing = is_changing
        """Return whether a transaction is open or being committed."""
        self.partitions: dict[Place, _Partition] = {}
        self._size = 0
        self.touched: set[Place] = set()
        """Partitions that the current transaction has changed, or the last one: emptied when one
        begins."""
        self._held: dict[Place, int] = {}
        """Long changes of partitions that have not ended."""
        self._scans_before: dict[tuple[Place, str], int] = {}
        """Of properties whose last index was hardly used."""

    def hold(self, place: Place) -> None:
        """Learn nothing of a partition until `release`: another thread changes it."""
        self._held[place] = self._held.get(place, 0) + 1
        self.drop(place)

    def release(self, place: Place) -> None:
        # The caller may have been cancelled: the change then ends with its transaction.
        self.touched.add(place)
        left = self._held[place] - 1
        if left:
            self._held[place] = left
        else:
            del self._held[place]

    def drop_table(self, table_id: int) -> None:
        for place in [place for place in self.partitions if place[0] == table_id]:
            self.drop(place)

    def find(self, place: Place, conditions: Sequence[Condition]) -> Candidates | None:
        """Return the entities that satisfy a condition; None without an index that helps."""
        partition = self.partitions.get(place)
        if partition is None:
            return None
        for condition in conditions:
            index = partition.indexes.get(condition.name)
            found = None if index is None else index.find(condition)
            if found is not None:
                self.partitions[place] = self.partitions.pop(place)  # it is forgotten last
                return found
        return None

    def is_kept(self, place: Place, index: PropertyIndex) -> bool:
        """Return whether an index is still valid, so that what was read by it is one state."""
        partition = self.partitions.get(place)
        return partition is not None and partition.indexes.get(index.name) is index

    def to_make(self, place: Place, name: str) -> object | None:
        """Count a scan; return a mark for `keep` if an index of this property is to be made.

        None while a change of the partition is not committed: a snapshot would not have it.
        """
        partition = self.partitions.get(place)
        if partition is None:
            if place in self._held or (place in self.touched and self._is_changing()):
                return None
            while len(self.partitions) >= PARTITIONS_MAX:
                self.drop(next(iter(self.partitions)))
            partition = self.partitions[place] = _Partition()
        if name in partition.making or name in partition.indexes:
            return None
        scans = partition.scans[name] = partition.scans.get(name, 0) + 1
        if scans < self._scans_before.get((place, name), SCANS_BEFORE):
            return None
        partition.making.add(name)
        return partition

    def keep(self, place: Place, mark: object, name: str, index: PropertyIndex | None) -> bool:
        """Keep an index that was made, unless the partition was touched meanwhile."""
        partition = self.partitions.get(place)
        if partition is None or partition is not mark:
            self._judge(place, name, lookups=0)
            return False
        if index is None or index.size > INDEX_BYTES_MAX:
            return False  # `making` keeps it from being tried again before the next change
        partition.making.discard(name)
        partition.indexes[name] = index
        self._size += index.size
        while self._size > INDEX_BYTES_MAX:
            self.drop(next(each for each, kept in self.partitions.items() if kept.indexes))
        return self.is_kept(place, index)

    def give_up(self, place: Place, mark: object, name: str) -> None:
        """Forget that an index was being made: reading it failed."""
        partition = self.partitions.get(place)
        if partition is not None and partition is mark:
            partition.making.discard(name)

    def drop(self, place: Place) -> None:
        """Forget what is known of a partition, because it changes or other ones are used more."""
        partition = self.partitions.pop(place, None)
        if partition is None:
            return
        for name, index in partition.indexes.items():
            self._size -= index.size
            self._judge(place, name, lookups=index.lookups)

    def _judge(self, place: Place, name: str, *, lookups: int) -> None:
        """Make the next index later if this one did not pay."""
        if lookups >= PAYING_LOOKUPS:
            self._scans_before.pop((place, name), None)
            return
        if len(self._scans_before) >= PARTITIONS_MAX:
            self._scans_before.clear()
        before = self._scans_before.get((place, name), SCANS_BEFORE)
        self._scans_before[place, name] = min(2 * before, SCANS_BEFORE_MAX)


# ---------------------------------------------------------------------------------------------
# Conditions of a filter


def conditions_of(residual: Filter) -> list[Condition]:
    """Return the conditions that each selected entity satisfies, equalities first.

    A range has a lower bound: without one, a comparison is true for values of other types, too.
    """
    nodes = residual.children if isinstance(residual, And) else (residual,)
    equalities: list[Condition] = []
    lower: dict[tuple[str, bool], Any] = {}
    upper: dict[tuple[str, bool], Any] = {}
    for node in nodes:
        if not isinstance(node, Comparison) or node.name in COLUMNS:
            continue
        bounds = _bounds_of(node.literal)
        if bounds is None:
            continue
        kind = node.name, isinstance(bounds[0], str)
        if node.operator == "eq":
            alone = node.literal if node is residual else None
            equalities.append(Condition(node.name, *bounds, alone))
        elif node.literal.type in _ORDERED and node.operator in ("ge", "gt"):
            start = _start_of(node.literal)
            lower[kind] = max(start, lower.get(kind, start))
        elif node.literal.type in _CAPPED and node.operator in ("le", "lt"):
            end = _end_of(node.literal)
            upper[kind] = min(end, upper.get(kind, end))
    ranges = []
    for (name, is_text), start in lower.items():
        end = upper.get((name, is_text), MARKS[edm.DATETIME] + LAST if is_text else math.inf)
        ranges.append(Condition(name, start, max(start, end)))
    return equalities + ranges


_ORDERED = frozenset({edm.INT32, edm.INT64, edm.DOUBLE, edm.DATETIME})
_CAPPED = _ORDERED - {edm.DOUBLE}
"""Whole numbers are less than every Double literal, as their type is another one."""


def _bounds_of(literal: Literal) -> tuple[Any, Any] | None:
    """Return the first and the last short value that may equal a literal."""
    value: Any = literal.value
    match literal.type:
        case edm.STRING:
            is_exact = len(value) < SHORT_CHARACTERS_MAX and is_plain(value)
            return (value, value) if is_exact else None
        case edm.GUID:
            return (MARKS[edm.GUID] + value,) * 2
        case edm.DATETIME:
            return (MARKS[edm.DATETIME] + edm.text_of(value)[:-1],) * 2
        case edm.INT32 | edm.INT64 if abs(value) <= EXACT_MAX:
            return value, value
        case edm.INT32 | edm.INT64 | edm.DOUBLE if not math.isnan(value):
            return widened(float(value), -math.inf), widened(float(value), math.inf)
        case _:
            return None  # Boolean and Binary: their values are not selective


def _start_of(literal: Literal) -> Any:
    """Return the first short value that may be greater than a literal, or equal."""
    if literal.type == edm.DATETIME:
        return MARKS[edm.DATETIME] + edm.text_of(int(literal.value))[:-1]
    return widened(float(literal.value), -math.inf)


def _end_of(literal: Literal) -> Any:
    """Return the last short value that may be less than a literal, or equal."""
    value: Any = literal.value
    if literal.type == edm.DATETIME:
        return MARKS[edm.DATETIME] + edm.text_of(value)[:-1]
    end = widened(float(value), math.inf)
    # An Int32 property is less than an Int64 literal, whatever their values.
    return end if literal.type == edm.INT32 else max(end, float(edm.INT32_MAX + 1))
