"""The rules of an entity group transaction. A single write is a group of one.

Each key stands once in a group: that is what makes "apply all, then write all" safe.
"""

from collections.abc import Mapping, Sequence

import msgspec

from partita.errors import GroupRuleError, PartitaError
from partita.tables import limits
from partita.tables.entity import Entity, EntityKey
from partita.tables.operations import Delete, Operation


class Outcome(msgspec.Struct, frozen=True):
    """What each operation left behind, in order; None for a delete."""

    entities: list[Entity | None]


class EntityGroup(msgspec.Struct, frozen=True):
    """Operations on one partition that happen together or not at all."""

    operations: Sequence[Operation]

    @property
    def partition_key(self) -> str:
        return self.operations[0].key.partition_key

    @property
    def only_deletes(self) -> bool:
        return {type(operation) for operation in self.operations} == {Delete}

    def check(self) -> None:
        """Raise for the first operation that breaks a rule; the error's facts name its index."""
        seen: set[EntityKey] = set()
        for index, operation in enumerate(self.operations):
            if index == limits.GROUP_OPERATIONS_MAX:
                raise GroupRuleError(
                    "InvalidInput",
                    "The batch request operation exceeds the maximum 100 changes per change set.",
                    facts={"index": index - 1},
                )
            if operation.key in seen:
                raise GroupRuleError(
                    "InvalidDuplicateRow",
                    "The batch request contains multiple changes with same row key. An entity can"
                    " appear only once in a batch request.",
                    facts={"index": index},
                )
            seen.add(operation.key)
        # The service judges partitions only behind the count and the keys of the whole group.
        for index, operation in enumerate(self.operations):
            if operation.key.partition_key != self.partition_key:
                raise GroupRuleError(
                    "CommandsInBatchActOnDifferentPartitions",
                    "All commands in a batch must operate on same entity group.",
                    facts={"index": index},
                )

    def apply(self, before: Mapping[str, Entity], now: int) -> Outcome:
        """Return what to write; the error of a failing operation names its index."""
        entities: list[Entity | None] = []
        for index, operation in enumerate(self.operations):
            try:
                entities.append(operation.apply(before.get(operation.key.row_key), now))
            except PartitaError as error:
                error.facts["index"] = index
                raise
        return Outcome(entities)
