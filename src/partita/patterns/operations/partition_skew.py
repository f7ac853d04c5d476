"""How the entities of a type are distributed over partitions.

The guide's two extremes: one partition for everything cannot be spread over nodes; one entity per
partition cannot be in a group with another. `weigh` is pure; `count_partitions` reads the keys of
all entities.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from partita.patterns.design.lints import Lint
from partita.patterns.following.index_lifecycle import type_filter
from partita.patterns.protocol.calls import QueryRows, Steps, ask
from partita.patterns.types.decorators import EntityType

LARGEST_SHOWN_MAX = 5
ENTITIES_MIN = 20
"""Fewer entities do not allow a judgement."""
SHARE_MAX = 0.5
"""The largest acceptable share of the entities in one partition."""


class Balance(msgspec.Struct, frozen=True):
    """The partitions of one type."""

    type: str
    entities: int
    partitions: int
    largest: tuple[tuple[str, int], ...]
    """The partition keys with the most entities, and their numbers."""
    histogram: dict[int, int]
    """The number of partitions with up to 1, 2, 4, 8, ... entities, above the previous bound."""
    grouped: int
    """Entities that share their partition with another, so that a group can contain both."""

    @property
    def advice(self) -> list[Lint]:
        return list(_advise(self))

    def __str__(self) -> str:
        lines = [f"{self.type}: {self.entities} entities in {self.partitions} partitions"]
        lines += [f"{count:>9} of up to {bound}" for bound, count in self.histogram.items()]
        lines += [f"{count:>9} entities in {key!r}" for key, count in self.largest]
        return "\n".join([*lines, *map(str, self.advice)])


def weigh(name: str, counts: Mapping[str, int]) -> Balance:
    """Return the balance of a type with these numbers of entities by partition.

    >>> weigh("Employee", {"Sales": 3, "Legal": 1}).histogram
    {1: 1, 4: 1}
    """
    bounds = Counter(1 << (count - 1).bit_length() for count in counts.values())
    largest = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return Balance(
        type=name,
        entities=sum(counts.values()),
        partitions=len(counts),
        largest=tuple(largest[:LARGEST_SHOWN_MAX]),
        histogram=dict(sorted(bounds.items())),
        grouped=sum(count for count in counts.values() if count > 1),
    )


def count_partitions(model: EntityType[Any], progress: Callable[[int], object]) -> Steps[Balance]:
    """Count a type's entities by partition. Scans the table."""
    counts: Counter[str] = Counter()
    query = QueryRows(model.table, type_filter(model), ("PartitionKey", "RowKey"))
    while True:
        page = yield from ask(query)
        counts.update(row.key.partition for row in page.rows)
        progress(counts.total())
        if page.continuation is None:
            return weigh(model.name, counts)
        query = msgspec.structs.replace(query, continuation=page.continuation)


def _advise(balance: Balance) -> Iterator[Lint]:
    if balance.entities < ENTITIES_MIN:
        return
    name, (key, most) = balance.type, balance.largest[0]
    if balance.partitions == 1:
        yield Lint(
            "SinglePartition",
            f"All entities of {name} are in the partition {key!r}, so only one node serves them.",
            "Add a field with many values to the partition template, or a hash: {id:hash16}.",
        )
    elif balance.grouped == 0:
        yield Lint(
            "OneEntityPerPartition",
            f"Each partition has one {name}, so a group cannot contain two of them.",
            "This suits point reads; entities that must change together need a common partition.",
        )
    elif most > SHARE_MAX * balance.entities:
        yield Lint(
            "LopsidedPartitions",
            f"The partition {key!r} has {most} of the {balance.entities} entities of {name}.",
            "Spread it: add a field, or the hash of one, to the partition template.",
        )
