"""Entities in groups: one partition, at most 100 operations and 4 MiB, each entity once; pure."""

from collections.abc import Sequence

import msgspec

from partita.bulk.batches import GROUP_BYTES_MAX, Change
from partita.tables.limits import GROUP_OPERATIONS_MAX


class Planned(msgspec.Struct, frozen=True, gc=False):
    """A change, and the place of the row that asks for it: a line of a file, or 0."""

    change: Change
    place: int = 0


Group = list[Planned]


def in_rounds(changes: Sequence[Planned]) -> list[list[Group]]:
    """Return rounds of groups. The groups of a round may be performed in any order.

    A round has each entity at most once: a second change of an entity is in the next round, so
    that the changes of an entity keep their order.
    """
    rounds: list[list[Group]] = []
    times: dict[tuple[str, str], int] = {}
    open_groups: dict[tuple[int, str], tuple[Group, int]] = {}
    for planned in changes:
        change = planned.change
        key = (change.partition_key, change.row_key)
        number = times.get(key, 0)
        times[key] = number + 1
        if number == len(rounds):
            rounds.append([])
        group, size = open_groups.get((number, change.partition_key), (None, 0))
        added = change.wire_bytes
        if group is None or len(group) >= GROUP_OPERATIONS_MAX or size + added > GROUP_BYTES_MAX:
            group, size = [], 0
            rounds[number].append(group)
        group.append(planned)
        open_groups[number, change.partition_key] = group, size + added
    return rounds
