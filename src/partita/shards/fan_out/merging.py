"""Combine the rows of many shards: as they arrive, in order, or reduced to one row per group.

Pure: rows are offered and taken, without waiting. Rule: an ordered merge returns a row only when no
shard can still deliver a row that precedes it.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from partita.errors import InvalidRequestError, LimitExceededError, SchemaMismatchError

ReduceKind = Literal["count", "sum", "min", "max"]
REDUCE_KINDS: tuple[ReduceKind, ...] = ("count", "sum", "min", "max")
REDUCED_GROUPS_MAX = 1_000_000
"""The maximum number of groups that a reduction holds in memory."""

AnyRow = TypeVar("AnyRow", bound=Sequence[Any])
SortKey = Callable[[Sequence[Any]], tuple[Any, ...]]


# --- order ----------------------------------------------------------------------------------------


class Ordering(msgspec.Struct, frozen=True):
    """One column of an order: its position in the row, and its direction."""

    position: int
    descending: bool = False
    nulls_last: bool = True


def sort_key(orderings: Sequence[Ordering]) -> SortKey:
    """Return a sort key that orders rows as shards do: NaN above numbers, text by code point."""
    parts = [(each.position, each.descending, each.nulls_last) for each in orderings]

    def key(row: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            _part(row[position], descending=descending, nulls_last=nulls_last)
            for position, descending, nulls_last in parts
        )

    return key


def _part(value: Any, *, descending: bool, nulls_last: bool) -> tuple[Any, ...]:
    if value is None:
        return (1,) if nulls_last else (-1,)
    comparable = _comparable(value)
    return (0, _Descending(comparable) if descending else comparable)


def _comparable(value: Any) -> tuple[int, Any]:
    # A column of SQLite can hold all classes of values: numbers sort before text before bytes.
    if isinstance(value, str):
        return 2, value
    if isinstance(value, bytes):
        return 3, value
    if isinstance(value, float | Decimal) and math.isnan(value):
        return 1, 0
    return 0, value


class _Descending:
    __slots__ = ("value",)

    def __init__(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def __lt__(self, other: "_Descending") -> bool:
        return other.value < self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


# --- merging --------------------------------------------------------------------------------------


class Merge(Protocol[AnyRow]):
    """Combines the rows of all shards."""

    def offer(self, stream: int, rows: Sequence[AnyRow]) -> None:
        """Add rows of a stream."""
        ...

    def end(self, stream: int) -> None:
        """Record that a stream delivers no more rows."""
        ...

    def take(self, rows_max: int) -> list[AnyRow]:
        """Return rows that can be returned now; empty if a stream must deliver first."""
        ...

    def held(self, stream: int) -> int:
        """Return how many rows of the stream are buffered."""
        ...


class UnionAll(Merge[AnyRow]):
    """Rows in the order in which the shards deliver them."""

    def __init__(self, streams: int) -> None:
        self._batches: deque[tuple[int, Sequence[AnyRow]]] = deque()
        self._held = [0] * streams

    def offer(self, stream: int, rows: Sequence[AnyRow]) -> None:
        if rows:
            self._batches.append((stream, rows))
            self._held[stream] += len(rows)

    def end(self, stream: int) -> None:
        """Do nothing: rows that were delivered are still returned."""

    def take(self, rows_max: int) -> list[AnyRow]:
        taken: list[AnyRow] = []
        while self._batches and len(taken) < rows_max:
            stream, rows = self._batches.popleft()
            wanted = rows_max - len(taken)
            taken += rows[:wanted]
            if len(rows) > wanted:
                self._batches.appendleft((stream, rows[wanted:]))
            self._held[stream] -= min(wanted, len(rows))
        return taken

    def held(self, stream: int) -> int:
        return self._held[stream]


class OrderedMerge(Merge[AnyRow]):
    """Merges ordered streams into one; equal rows come in the order of the streams."""

    def __init__(self, streams: int, key: SortKey) -> None:
        self._key = key
        self._rows: list[deque[AnyRow]] = [deque() for _ in range(streams)]
        self._heads: list[tuple[tuple[Any, ...], int]] = []
        self._awaited = set(range(streams))
        self._ended: set[int] = set()

    def offer(self, stream: int, rows: Sequence[AnyRow]) -> None:
        self._rows[stream].extend(rows)
        if stream in self._awaited and rows:
            self._awaited.discard(stream)
            self._push(stream)

    def end(self, stream: int) -> None:
        self._ended.add(stream)
        self._awaited.discard(stream)

    def take(self, rows_max: int) -> list[AnyRow]:
        taken: list[AnyRow] = []
        while self._heads and not self._awaited and len(taken) < rows_max:
            _, stream = heapq.heappop(self._heads)
            rows = self._rows[stream]
            taken.append(rows.popleft())
            if rows:
                self._push(stream)
            elif stream not in self._ended:
                self._awaited.add(stream)
        return taken

    def held(self, stream: int) -> int:
        return len(self._rows[stream])

    def _push(self, stream: int) -> None:
        try:
            heapq.heappush(self._heads, (self._key(self._rows[stream][0]), stream))
        except TypeError as error:
            raise SchemaMismatchError(
                "OrderNotComparable",
                "The values of an order_by= column cannot be compared between shards.",
                hint="Compare the schemas of the shards with fleet.check_drift().",
            ) from error


# --- reducing -------------------------------------------------------------------------------------


class Reduce(msgspec.Struct, frozen=True):
    """How the answers of the shards are combined: columns to reduce; all others form groups.

    Counts and sums are added over the shards; the minimum is that of the minima. Nulls are
    ignored. An average cannot be reduced: select sum and count.
    """

    columns: tuple[tuple[str, ReduceKind], ...]
    """Names of result columns with their kind; "" is the only column."""

    @classmethod
    def count(cls, *names: str) -> "Reduce":
        """Add up columns that hold counts."""
        return cls._of("count", names)

    @classmethod
    def sum(cls, *names: str) -> "Reduce":
        return cls._of("sum", names)

    @classmethod
    def min(cls, *names: str) -> "Reduce":
        return cls._of("min", names)

    @classmethod
    def max(cls, *names: str) -> "Reduce":
        return cls._of("max", names)

    def __and__(self, other: "Reduce") -> "Reduce":
        """Reduce the columns of both: `Reduce.count("posts") & Reduce.max("newest")`."""
        return Reduce(self.columns + other.columns)

    @classmethod
    def _of(cls, kind: ReduceKind, names: Sequence[str]) -> "Reduce":
        return cls(tuple((name, kind) for name in names or ("",)))


ReduceOption = Reduce | ReduceKind | Mapping[str, ReduceKind]


def as_reduce(given: ReduceOption) -> Reduce:
    """Parse `reduce=`: a Reduce, a kind for the only column, or kinds by column name."""
    if isinstance(given, Reduce):
        return given
    kinds = dict(given) if isinstance(given, Mapping) else {"": given}
    unknown = [kind for kind in kinds.values() if kind not in REDUCE_KINDS]
    if unknown or not kinds:
        raise InvalidRequestError(
            "ReduceUnknown",
            f"reduce= has the unknown kind {unknown[0]!r}." if unknown else "reduce= is empty.",
            hint=f"Use {', '.join(REDUCE_KINDS)}; for an average select sum and count.",
        )
    return Reduce(tuple(kinds.items()))


class Fold:
    """A reduction in progress: one row per group, in the order of arrival."""

    def __init__(self, names: Sequence[str], reduce: Reduce) -> None:
        self._kinds = _kinds_by_position(names, reduce)
        self._group = [place for place in range(len(names)) if place not in self._kinds]
        self._width = len(names)
        self._rows: dict[tuple[Any, ...], list[Any]] = {}

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            group = tuple(row[place] for place in self._group)
            known = self._rows.get(group)
            if known is None:
                self._begin(group, row)
                continue
            for place, kind in self._kinds.items():
                known[place] = _joined(kind, known[place], row[place])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the reduced rows; without groups exactly one, even if no shard had rows."""
        if not self._rows and not self._group:
            yield tuple(_of_nothing(self._kinds[place]) for place in range(self._width))
        for row in self._rows.values():
            yield tuple(row)

    def _begin(self, group: tuple[Any, ...], row: Sequence[Any]) -> None:
        if len(self._rows) >= REDUCED_GROUPS_MAX:
            raise LimitExceededError(
                "TooManyGroups",
                f"The reduction has more than {REDUCED_GROUPS_MAX} groups.",
                facts={"groups_max": REDUCED_GROUPS_MAX},
                hint="Order the rows by group with order_by= and reduce them yourself.",
            )
        self._rows[group] = [
            _of_nothing(self._kinds[place]) if value is None and place in self._kinds else value
            for place, value in enumerate(row)
        ]


def _kinds_by_position(names: Sequence[str], reduce: Reduce) -> dict[int, ReduceKind]:
    kinds: dict[int, ReduceKind] = {}
    for name, kind in reduce.columns:
        if name not in names and (name or len(names) != 1):
            raise InvalidRequestError(
                "ReduceColumnUnknown",
                f"The statement has no column {name!r} to reduce."
                if name
                else "The statement has several columns, and reduce= does not name one.",
                facts={"columns": tuple(names)},
                hint='Name a column of the result: reduce=Reduce.sum("total").',
            )
        kinds[names.index(name) if name else 0] = kind
    return kinds


def _of_nothing(kind: ReduceKind) -> Any:
    return 0 if kind == "count" else None


def _joined(kind: ReduceKind, known: Any, value: Any) -> Any:
    if value is None:
        return known
    if known is None:
        return value
    if kind == "min":
        return min(known, value)
    if kind == "max":
        return max(known, value)
    return known + value
