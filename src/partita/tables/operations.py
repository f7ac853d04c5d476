"""The operations on an entity and entity group transactions, as pure values.

`apply(before, now)` returns the entity to store, or None to remove it. It raises if the current
entity forbids the operation; existence is checked before the etag. A single write is a group of
one; each key occurs once in a group, so that all operations can be applied before all writes.
"""

from collections.abc import Mapping, Sequence

import msgspec

from partita.errors import (
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    GroupRuleError,
    PartitaError,
)
from partita.refusals import not_found
from partita.tables import limits
from partita.tables.edm import TYPE_SUFFIX, Members
from partita.tables.entity import Entity, EntityKey, build

ANY_ETAG = "*"
"""The condition that the entity exists."""


class Insert(msgspec.Struct, frozen=True, gc=False):
    """Add an entity that must not exist yet."""

    key: EntityKey
    properties: Members

    def apply(self, before: Entity | None, now: int) -> Entity:
        if before is not None:
            raise EntityExistsError("EntityAlreadyExists", "The specified entity already exists.")
        return build(self.key, now, self.properties)


class Replace(msgspec.Struct, frozen=True, gc=False):
    """Replace all properties of an existing entity."""

    key: EntityKey
    properties: Members
    etag: str = ANY_ETAG

    def apply(self, before: Entity | None, now: int) -> Entity:
        check_condition(before, self.etag)
        return build(self.key, now, self.properties)


class Merge(msgspec.Struct, frozen=True, gc=False):
    """Set some properties of an existing entity; keep the others."""

    key: EntityKey
    properties: Members
    etag: str = ANY_ETAG

    def apply(self, before: Entity | None, now: int) -> Entity:
        existing = check_condition(before, self.etag)
        return build(self.key, now, merged(existing.properties(), self.properties))


class InsertOrReplace(msgspec.Struct, frozen=True, gc=False):
    """Write the entity whether or not it exists."""

    key: EntityKey
    properties: Members

    def apply(self, before: Entity | None, now: int) -> Entity:  # noqa: ARG002 - one shape for all
        return build(self.key, now, self.properties)


class InsertOrMerge(msgspec.Struct, frozen=True, gc=False):
    """Merge into the entity if it exists, insert it otherwise."""

    key: EntityKey
    properties: Members

    def apply(self, before: Entity | None, now: int) -> Entity:
        existing = before.properties() if before is not None else {}
        return build(self.key, now, merged(existing, self.properties))


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove an existing entity."""

    key: EntityKey
    etag: str = ANY_ETAG

    def apply(self, before: Entity | None, now: int) -> None:  # noqa: ARG002 - one shape for all
        check_condition(before, self.etag)


Operation = Insert | Replace | Merge | InsertOrReplace | InsertOrMerge | Delete


def check_condition(before: Entity | None, etag: str) -> Entity:
    """Return the entity if it exists and has the expected etag."""
    if before is None:
        raise not_found(EntityNotFoundError)
    if etag not in (ANY_ETAG, before.etag):
        raise ETagMismatchError(
            "UpdateConditionNotSatisfied",
            "The update condition specified in the request was not satisfied.",
            hint="Read the entity again, then decide.",
        )
    return before


def merged(existing: Members, changes: Members) -> Members:
    """Return the properties after a merge.

    A null in a merge leaves the property unchanged: such properties are dropped before. A property
    may change its type, so its old annotation is removed with its old value.
    """
    result = dict(existing)
    for name in changes:
        if not name.endswith(TYPE_SUFFIX):
            result.pop(name + TYPE_SUFFIX, None)
            result.pop(name, None)
    result.update(changes)
    return result


class Outcome(msgspec.Struct, frozen=True):
    """The entity after each operation, in order; None for a delete."""

    entities: Sequence[Entity | None]


class EntityGroup(msgspec.Struct, frozen=True):
    """Operations on one partition that are applied atomically."""

    operations: Sequence[Operation]

    @property
    def partition_key(self) -> str:
        return self.operations[0].key.partition_key

    @property
    def is_long(self) -> bool:
        """Whether it writes so many properties that it takes several milliseconds."""
        count = 0
        for operation in self.operations:
            if not isinstance(operation, Delete):
                count += len(operation.properties)
        return count > limits.TURN_MEMBERS_MAX

    @property
    def only_deletes(self) -> bool:
        return {type(operation) for operation in self.operations} == {Delete}

    def check(self) -> None:
        """Raise for the first operation that breaks a rule; the error's facts name its index."""
        keys = {operation.key for operation in self.operations}
        if (
            len(keys) == len(self.operations) <= limits.GROUP_OPERATIONS_MAX
            and len({key.partition_key for key in keys}) <= 1
        ):
            return
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
        # The service checks partitions after the count and the keys of the whole group.
        for index, operation in enumerate(self.operations):
            if operation.key.partition_key != self.partition_key:
                raise GroupRuleError(
                    "CommandsInBatchActOnDifferentPartitions",
                    "All commands in a batch must operate on same entity group.",
                    facts={"index": index},
                )

    def apply(self, before: Mapping[str, Entity], now: int) -> list[Entity | None]:
        """Return the entity after each operation; the error of a failing one names its index."""
        entities: list[Entity | None] = []
        for index, operation in enumerate(self.operations):
            try:
                entities.append(operation.apply(before.get(operation.key.row_key), now))
            except PartitaError as error:
                error.facts["index"] = index
                raise
        return entities
