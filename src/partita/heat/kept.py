"""Where the axes of an account are kept: the contract, and its rules; pure.

A minute is added once it is over; adding to it again, after the clock was set back, adds to its
load. Ten minutes that are over are also kept as one axis, for longer.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from partita.heat.axes import READS, WRITES, Axis, Counts, merge
from partita.heat.limits import (
    MINUTE_SECONDS,
    MINUTES_IN_MEMORY_SECONDS,
    MINUTES_KEPT_SECONDS,
    TEN_SECONDS,
    TENS_IN_MEMORY_SECONDS,
    TENS_KEPT_SECONDS,
)
from partita.heat.minutes import Axes


class Retention(msgspec.Struct, frozen=True):
    """For how long minutes and tens are kept, in seconds."""

    minutes: int = MINUTES_KEPT_SECONDS
    tens: int = TENS_KEPT_SECONDS

    def bounds(self, seconds: int, now: int) -> tuple[int, int]:
        """Return the starts between which axes are kept; one far ahead is from a wrong clock.

        The minutes of one ten are removed together: the axis of the ten replaces all of them.
        """
        kept = self.minutes if seconds == MINUTE_SECONDS else self.tens
        return ten_of(now - kept), now + kept


IN_MEMORY = Retention(MINUTES_IN_MEMORY_SECONDS, TENS_IN_MEMORY_SECONDS)


class Column(msgspec.Struct, frozen=True):
    """The load of a table in a time."""

    start: int
    """In seconds since 1970."""
    seconds: int
    axis: Axis
    is_open: bool = False
    """Whether more load may follow."""


class TableTotal(msgspec.Struct, frozen=True):
    """The load of a table in all of the time that was read; a name "" means all other tables."""

    name: str
    counts: Counts

    @property
    def load(self) -> int:
        return self.counts[READS] + self.counts[WRITES]


class KeptHeat(Protocol):
    """The axes of one account. Times are in seconds since 1970; `to` is outside."""

    is_shared: bool
    """Whether other processes measure the same account, and open minutes are read here, too."""

    async def add(self, start: int, axes: Axes, now: int) -> None:
        """Add the load of a minute, and remove what is too old `now`."""
        ...

    async def read(self, folded: str, since: int, to: int) -> list[Column]:
        """Return the columns of a table in order: minutes, and before them, tens."""
        ...

    async def tables(self, since: int, to: int) -> list[TableTotal]:
        """Return the tables with load, the hottest first."""
        ...

    async def close(self) -> None: ...


def ten_of(start: int) -> int:
    """Return the start of the ten minutes that a time is in."""
    return start - start % TEN_SECONDS


def chosen(columns: Iterable[Column]) -> list[Column]:
    """Return minutes, and tens only where there are none, in order; merge those of one time."""
    found: dict[tuple[int, int], list[Column]] = {}
    for column in columns:
        found.setdefault((column.start, column.seconds), []).append(column)
    in_minutes = {ten_of(start) for start, seconds in found if seconds == MINUTE_SECONDS}
    return [
        _as_one(found[start, seconds])
        for start, seconds in sorted(found)
        if seconds == MINUTE_SECONDS or start not in in_minutes
    ]


def _as_one(columns: Sequence[Column]) -> Column:
    first = columns[0]
    if len(columns) == 1:
        return first
    axis = merge(column.axis for column in columns)
    return Column(first.start, first.seconds, axis, any(column.is_open for column in columns))


def with_open(tables: list[TableTotal], opened: Axes) -> list[TableTotal]:
    """Return the totals of tables with those of the open minute, the hottest first."""
    found = {table.name.lower(): table for table in tables}
    for folded, table in opened.items():
        counts = table.total
        if folded in found:
            counts = tuple(map(sum, zip(found[folded].counts, counts, strict=True)))
        found[folded] = TableTotal(table.name, counts)
    return sorted(found.values(), key=lambda table: -table.load)
