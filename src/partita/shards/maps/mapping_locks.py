"""Lock mappings against changes by other administrators; readers and writers are not affected.

A mapping is given itself, by its range, or by one of its keys.
"""

from typing import Any

from partita.shards.catalog import change_plans
from partita.shards.catalog.change_plans import MappingRow
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.maps import changes, lookups
from partita.shards.maps.open_map import OpenMap


class MappingLock:
    """A lock that is held: a context manager that returns the token."""

    def __init__(self, shard_map: OpenMap, token: str) -> None:
        self.token = token
        self._map = shard_map

    def release(self) -> None:
        """Release every mapping that is locked with the token, including changed ones."""
        unlock(self._map, self.token)

    def __enter__(self) -> str:
        return self.token

    def __exit__(self, *_: object) -> None:
        self.release()


def lock(shard_map: OpenMap, mapping: Any, *, token: str | None = None) -> MappingLock:
    """Lock a mapping against changes by others until the lock is released.

    The lock is held when this returns. A `with` block gets the token and releases the lock at its
    end. A token of your own outlives the process.
    """
    found = lookups.resolve(shard_map, mapping)
    owner = token or shard_map.executor.new_id()

    def change(locked: LockedMap) -> None:
        change_plans.check_lock(locked.row, locked.mapping(found.id), None)
        locked.write_lock_owner([found.id], owner)

    changes.decide(shard_map, change, found)
    changes.cache_lock_owner(shard_map, found.id, found.key_range.low, owner)
    return MappingLock(shard_map, owner)


def unlock(shard_map: OpenMap, token: str, *, mapping: Any = None) -> int:
    """Release one mapping, or all that are locked with the token; return how many."""
    named = [] if mapping is None else [lookups.resolve(shard_map, mapping)]

    def change(locked: LockedMap) -> list[MappingRow]:
        rows = [locked.mapping(one.id) for one in named] or locked.locked_by(token)
        for row in rows:
            change_plans.check_lock(locked.row, row, token)
        locked.write_lock_owner([row.id for row in rows], None)
        return rows

    released = changes.decide(shard_map, change, *named)
    for row in released:
        changes.cache_lock_owner(shard_map, row.id, row.low, None)
    return len(released)


def force_unlock(shard_map: OpenMap, mapping: Any) -> None:
    """Release a mapping whatever its token: for owners that no longer exist."""
    found = lookups.resolve(shard_map, mapping)

    def change(locked: LockedMap) -> None:
        locked.write_lock_owner([locked.mapping(found.id).id], None)

    changes.decide(shard_map, change, found)
    changes.cache_lock_owner(shard_map, found.id, found.key_range.low, None)


def lock_owner(shard_map: OpenMap, mapping: Any) -> str | None:
    """Return the token that the mapping is locked with, or None."""
    found = lookups.resolve(shard_map, mapping)
    return changes.decide(shard_map, lambda locked: locked.mapping(found.id).lock_owner, found)
