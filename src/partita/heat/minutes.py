"""The samples of a minute as one axis per table; pure.

Table names are the same in any case: an axis is kept by the lower-cased name. The tables beyond
`TABLES_MAX`, those with the least load, share the axis `OTHERS`, whose keys are their names.
"""

from collections.abc import Iterable, Mapping

import msgspec

from partita.heat.axes import Axis, Bucket, Counts, fold, total
from partita.heat.limits import TABLES_MAX
from partita.heat.meter import READ, SCAN, Sample, text_of

OTHERS = ""
"""The name of the axis of all other tables."""


class TableAxis(msgspec.Struct, frozen=True):
    """The load of one table."""

    name: str
    """As a client wrote it."""
    axis: Axis

    @property
    def total(self) -> Counts:
        return total(self.axis)


Axes = Mapping[str, TableAxis]
"""By lower-cased name."""


def close(samples: Iterable[Sample], tables_max: int = TABLES_MAX) -> dict[str, TableAxis]:
    """Return the axes of the tables with the most load, and one of all others."""
    names: dict[str, str] = {}
    parts: dict[str, list[Bucket]] = {}
    for table, first, last, kind, entities, size in samples:
        folded = table.lower()
        names[folded] = table
        start = text_of(first)
        end = start if last is first else text_of(last)
        bucket = Bucket(start, end, counts_of(kind, entities, size))
        parts.setdefault(folded, []).append(bucket)
    return _limited(names, parts, tables_max)


def merged(several: Iterable[Axes], tables_max: int = TABLES_MAX) -> dict[str, TableAxis]:
    """Return the axes of several minutes or front ends as one."""
    names: dict[str, str] = {}
    parts: dict[str, list[Bucket]] = {}
    for axes in several:
        for folded, table in axes.items():
            names[folded] = table.name
            parts.setdefault(folded, []).extend(table.axis)
    return _limited(names, parts, tables_max)


def counts_of(kind: int, entities: int, size: int) -> Counts:
    """Return the counters of a sample, in the order of `axes.COUNTERS`."""
    if kind == READ:
        return entities, 0, 0, size, 0
    if kind == SCAN:
        return entities, entities, 0, size, 0
    return 0, 0, entities, 0, size


def _limited(
    names: Mapping[str, str], parts: Mapping[str, list[Bucket]], tables_max: int
) -> dict[str, TableAxis]:
    others = [*parts.get(OTHERS, ())]
    named = sorted(
        (folded for folded in parts if folded != OTHERS),
        key=lambda folded: -sum(bucket.load for bucket in parts[folded]),
    )
    axes = {folded: TableAxis(names[folded], fold(parts[folded])) for folded in named[:tables_max]}
    others += [Bucket(folded, folded, total(parts[folded])) for folded in named[tables_max:]]
    if others:
        axes[OTHERS] = TableAxis(OTHERS, fold(others))
    return axes
