"""What an operation expects of the stored entity, so that a store can decide before it reads.

An expectation is a number: one of the constants below, or the exact ticks of the stored version.
While the stored entity meets the expectation of an operation, the operation has the same outcome
on the stand-in that `assumed` returns. An operation without an expectation (None) must read.
"""

from typing import assert_never

from partita.tables.entity import Entity, EntityKey, ticks_of_etag
from partita.tables.operations import (
    ANY_ETAG,
    Delete,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
)

ANYTHING = -1
"""The entity may exist or not."""
NOTHING = 0
"""The entity does not exist."""
SOMETHING = -2
"""The entity exists, in any version."""


def expectation_of(operation: Operation) -> int | None:
    """Return what the operation expects; None if its outcome depends on the stored entity."""
    match operation:
        case Insert():
            return NOTHING
        case InsertOrReplace():
            return ANYTHING
        case Replace() | Delete():
            return SOMETHING if operation.etag == ANY_ETAG else _version_of(operation.etag)
        case Merge() | InsertOrMerge():
            return None
    assert_never(operation)


def assumed(key: EntityKey, expectation: int) -> Entity | None:
    """Return the stand-in for an entity that meets an expectation.

    It has the etag of the expected version and no properties, like a damaged entity.
    """
    if expectation in (ANYTHING, NOTHING):
        return None
    return Entity(*key, max(expectation, 0), b"")


def _version_of(etag: str) -> int | None:
    # Etags of 1970 and before would be mistaken for the constants.
    ticks = ticks_of_etag(etag)
    return ticks if ticks is not None and ticks > 0 else None
