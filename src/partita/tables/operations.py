"""The requested changes of one entity: pure values that say what to write.

`apply(before, now)` returns the entity to store, or None to remove it. It raises when the
entity as it is forbids the operation. Existence is judged before the etag.
"""

import msgspec

from partita.errors import EntityExistsError, EntityNotFoundError, ETagMismatchError
from partita.tables.edm import TYPE_SUFFIX, Members
from partita.tables.entity import Entity, EntityKey, build

ANY_ETAG = "*"
"""The condition that only demands that the entity exists."""


class Insert(msgspec.Struct, frozen=True, gc=False):
    """Add an entity that must not exist yet."""

    key: EntityKey
    properties: Members

    def apply(self, before: Entity | None, now: int) -> Entity:
        if before is not None:
            raise EntityExistsError("EntityAlreadyExists", "The specified entity already exists.")
        return build(self.key, now, self.properties)


class Replace(msgspec.Struct, frozen=True, gc=False):
    """Put other properties in place of an existing entity's."""

    key: EntityKey
    properties: Members
    etag: str = ANY_ETAG

    def apply(self, before: Entity | None, now: int) -> Entity:
        check_condition(before, self.etag)
        return build(self.key, now, self.properties)


class Merge(msgspec.Struct, frozen=True, gc=False):
    """Set some properties of an existing entity and leave the others."""

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
    """Return the entity if it exists and its etag is the expected one."""
    if before is None:
        raise EntityNotFoundError("ResourceNotFound", "The specified resource does not exist.")
    if etag not in (ANY_ETAG, before.etag):
        raise ETagMismatchError(
            "UpdateConditionNotSatisfied",
            "The update condition specified in the request was not satisfied.",
            hint="Read the entity again and decide again.",
        )
    return before


def merged(existing: Members, changes: Members) -> Members:
    """Return the properties after a merge.

    A null in a merge means "say nothing about it": such properties never reach this point. A
    property may change its type, so that its old annotation goes with its old value.
    """
    result = dict(existing)
    for name in changes:
        if not name.endswith(TYPE_SUFFIX):
            result.pop(name + TYPE_SUFFIX, None)
            result.pop(name, None)
    result.update(changes)
    return result
