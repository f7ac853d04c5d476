"""Lock mappings against changes by other administrators; readers and writers are not affected."""

from partita.shards.catalog import change_plans
from partita.shards.catalog.change_plans import MappingRow
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.keys.mapping import Mapping
from partita.shards.maps import changes
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


def lock(shard_map: OpenMap, mapping: Mapping, *, token: str | None = None) -> MappingLock:
    """Lock a mapping against changes by others until the lock is released.

    The lock is held when this returns. A `with` block gets the token and releases the lock at its
    end. A token of your own outlives the process.
    """
    owner = token or shard_map.executor.new_id()

    def change(locked: LockedMap) -> None:
        change_plans.check_lock(locked.row, locked.mapping(mapping.id), None)
        locked.write_lock_owner([mapping.id], owner)

    changes.decide(shard_map, change, mapping)
    changes.cache_lock_owner(shard_map, mapping.id, mapping.key_range.low, owner)
    return MappingLock(shard_map, owner)


def unlock(shard_map: OpenMap, token: str, *, mapping: Mapping | None = None) -> int:
    """Release one mapping, or all that are locked with the token; return how many."""

    def change(locked: LockedMap) -> list[MappingRow]:
        if mapping is None:
            rows = locked.locked_by(token)
        else:
            rows = [locked.mapping(mapping.id)]
            change_plans.check_lock(locked.row, rows[0], token)
        locked.write_lock_owner([row.id for row in rows], None)
        return rows

    released = changes.decide(shard_map, change, *(() if mapping is None else (mapping,)))
    for row in released:
        changes.cache_lock_owner(shard_map, row.id, row.low, None)
    return len(released)


def force_unlock(shard_map: OpenMap, mapping: Mapping) -> None:
    """Release a mapping whatever its token: for owners that no longer exist."""

    def change(locked: LockedMap) -> None:
        locked.write_lock_owner([locked.mapping(mapping.id).id], None)

    changes.decide(shard_map, change, mapping)
    changes.cache_lock_owner(shard_map, mapping.id, mapping.key_range.low, None)


def lock_owner(shard_map: OpenMap, mapping: Mapping) -> str | None:
    """Return the token that the mapping is locked with, or None."""
    return changes.decide(shard_map, lambda locked: locked.mapping(mapping.id).lock_owner, mapping)
