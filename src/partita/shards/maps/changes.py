"""Run a change of a shard map and update the cache with its outcome.

Rule: every change goes through the Executor, and its outcome into the cache; a refused change
removes the mappings that it named from the cache.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from partita.errors import ConflictError, UsageError
from partita.shards.catalog import change_plans
from partita.shards.catalog.change_plans import ChangePlan, MappingRow, ShardRow
from partita.shards.catalog.executor import Build
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.keys.mapping import Mapping
from partita.shards.keys.ranges import KeyRange
from partita.shards.maps.open_map import OpenMap, mappings_of

Outcome = TypeVar("Outcome")

CACHED_ONE_BY_ONE_MAX = 200
"""With more new mappings the cache is rebuilt: adding a single one copies a chunk."""


def run(shard_map: OpenMap, build: Build, *mappings: Mapping) -> ChangePlan:
    """Carry out a change of both catalogs; `mappings` are those that it changes."""
    with _forgetting_refused(shard_map, mappings):
        return shard_map.executor.run(shard_map.id, shard_map.name, build)


def run_and_cache(shard_map: OpenMap, build: Build, *mappings: Mapping) -> list[Mapping]:
    """Carry out a change of both catalogs and return the new mappings."""
    plan = run(shard_map, build, *mappings)
    cache = shard_map.cache
    for row in plan.removed:
        cache.remove(row.id)
    shards = {row.id: row for row in plan.shards_after}
    added = list(mappings_of(shard_map, ((row, shards[row.shard_id]) for row in plan.added)))
    if len(added) > CACHED_ONE_BY_ONE_MAX:
        ranges = sorted(mapping.key_range for mapping in added)
        kept = [one for one in cache.mappings() if not intersects_any(ranges, one.key_range)]
        cache.load([*kept, *added])
    else:
        for mapping in added:
            cache.add(mapping)
    return added


def decide(
    shard_map: OpenMap, change: Callable[[LockedMap], Outcome], *mappings: Mapping
) -> Outcome:
    """Run a change of the global catalog alone; `mappings` are those that it changes."""
    with _forgetting_refused(shard_map, mappings):
        return shard_map.executor.decide(shard_map.id, shard_map.name, change)


def read_current(shard_map: OpenMap, mapping: Mapping, token: str | None) -> Mapping:
    """Return the mapping from the global catalog; StaleMappingError if it has changed."""

    def read(locked: LockedMap) -> tuple[MappingRow, ShardRow]:
        row = locked.mapping(mapping.id)
        change_plans.check_lock(locked.row, row, token)
        return row, locked.shard(row.shard_id)

    row, shard = decide(shard_map, read, mapping)
    return shard_map.mapping_of(row, shard_map.shard_of(shard))


def cache_lock_owner(shard_map: OpenMap, mapping_id: str, low: bytes, owner: str | None) -> None:
    """Update the lock owner of a cached mapping."""
    cached = shard_map.cache.find(low)
    if cached is not None and cached.id == mapping_id:
        shard_map.cache.add(msgspec.structs.replace(cached, lock_owner=owner))


def intersects_any(ordered: Sequence[KeyRange], held: KeyRange) -> bool:
    """Return whether a range has keys in common with one of these sorted, disjoint ranges."""
    index = bisect_right(ordered, held.low, key=lambda one: one.low)
    return any(one.intersects(held) for one in ordered[max(index - 1, 0) : index + 1])


@contextmanager
def _forgetting_refused(shard_map: OpenMap, mappings: Sequence[Mapping]) -> Iterator[None]:
    # Not if a catalog or a shard cannot be reached: routing then needs the cached mappings.
    try:
        yield
    except (ConflictError, UsageError):
        for mapping in mappings:
            shard_map.cache.remove(mapping.id)
        raise
