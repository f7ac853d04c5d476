"""Staged changes → groups: one partition each, at most 100 operations and 4 MiB. Pure.

A group is applied whole or not at all. The order of changes within a partition is kept; two
changes of one entity never share a group, because a group may name an entity once.
"""

from collections.abc import Sequence

import msgspec

from partita.bulk.batches import Change, Kind
from partita.console.errors import invalid
from partita.console.tables.typed_rows import Property, document_of
from partita.tables import limits

GROUP_BYTES_MAX = limits.GROUP_BYTES_MAX - 4096
"""The bytes of the operations of a group; the rest is for the frame of the batch."""
CHANGES_MAX = 5000
"""Staged changes of one request."""


class Staged(msgspec.Struct, forbid_unknown_fields=True):
    """One change as the pages send it."""

    kind: str
    """insert, replace, merge, upsert-replace, upsert-merge or delete."""
    partition_key: str
    row_key: str
    properties: list[Property] = []
    etag: str = "*"


class Group(msgspec.Struct, frozen=True):
    """Changes of one partition, and their positions among the staged ones."""

    partition_key: str
    indices: list[int]
    changes: list[Change]

    @property
    def wire_bytes(self) -> int:
        return sum(change.wire_bytes for change in self.changes)


def change_of(staged: Staged) -> Change:
    """Return the change for the wire; an error names what is wrong with it."""
    try:
        kind = Kind(staged.kind)
    except ValueError:
        message = f"{staged.kind!r} is not a kind of change."
        raise invalid(message) from None
    if not (staged.etag.isascii() and staged.etag.isprintable()):
        raise invalid("The etag is not that of an entity.", "Load the entity again.")
    document = b""
    if kind is not Kind.DELETE:
        document = document_of(staged.partition_key, staged.row_key, staged.properties)
    return Change(kind, staged.partition_key, staged.row_key, document, staged.etag or "*")


def split(changes: Sequence[Change]) -> list[Group]:
    """Divide changes into groups, partitions in the order of their first change."""
    if len(changes) > CHANGES_MAX:
        message = f"More than {CHANGES_MAX:,} changes are staged."
        raise invalid(message, "Apply them in parts, or use an import.")
    groups: list[Group] = []
    last: dict[str, Group] = {}
    for index, change in enumerate(changes):
        group = last.get(change.partition_key)
        if group is None or not _fits(group, change):
            group = last[change.partition_key] = Group(change.partition_key, [], [])
            groups.append(group)
        group.indices.append(index)
        group.changes.append(change)
    return groups


def _fits(group: Group, change: Change) -> bool:
    return (
        len(group.changes) < limits.GROUP_OPERATIONS_MAX
        and group.wire_bytes + change.wire_bytes <= GROUP_BYTES_MAX
        and all(change.row_key != each.row_key for each in group.changes)
    )
