"""Create, delete, update, split and merge the mappings of a map, and take them offline.

Only the catalogs change; no row of the application moves. A mapping is given itself, by its range,
or by one of its keys.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from partita.errors import MappingNotFoundError, OperationPendingError, RangeError
from partita.shards.catalog import change_plans
from partita.shards.catalog.change_plans import ChangePlan, MappingRow
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.keys.mapping import Mapping, MappingStatus, Shard
from partita.shards.keys.ranges import KeyRange, first_overlap
from partita.shards.maps import changes, lookups
from partita.shards.maps.open_map import OpenMap, Where
from partita.shards.routing import offline

RANGES_PER_QUERY = 200
"""How many new ranges are compared with the existing mappings in one query."""


def create_mapping(
    shard_map: OpenMap, keys: Any, shard: Where, *, status: MappingStatus = MappingStatus.ONLINE
) -> Mapping:
    """Map a range of keys (list maps: one key) to a shard; MappingExistsError if mapped."""
    return create_mappings(shard_map, [keys], shard, status=status)[0]


def create_mappings(
    shard_map: OpenMap,
    many: Iterable[Any],
    shard: Where,
    *,
    status: MappingStatus = MappingStatus.ONLINE,
) -> list[Mapping]:
    """Map several ranges or keys to one shard: all of them or none."""
    ranges = shard_map.encode_ranges(many)
    if not ranges:
        return []
    shard_id = (shard if isinstance(shard, Shard) else lookups.get_shard(shard_map, shard)).id
    overlap = first_overlap(ranges)
    if overlap is not None:
        raise RangeError(
            "RangesOverlap",
            "Two of the given ranges have keys in common.",
            facts={
                "map": shard_map.name,
                "ranges": [shard_map.decode_range(one) for one in overlap],
            },
            hint="Give disjoint ranges.",
        )
    rows = [
        MappingRow(
            shard_map.executor.new_id(), shard_map.id, shard_id, one.low, one.high, status.value
        )
        for one in ranges
    ]

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        row = locked.shard(shard_id)
        mapped = _mapped(shard_map, locked, ranges)
        return change_plans.create_mappings(operation, locked.row, row, rows, mapped)

    return changes.run_and_cache(shard_map, build)


def _mapped(shard_map: OpenMap, locked: LockedMap, ranges: Sequence[KeyRange]) -> Iterator[str]:
    """Yield descriptions of the mappings that hold keys of the ranges."""
    ordered = sorted(ranges)
    for start in range(0, len(ordered), RANGES_PER_QUERY):
        some = ordered[start : start + RANGES_PER_QUERY]
        limit = 10 if len(some) == 1 else None
        for row in locked.overlapping(some[0].low, some[-1].high, limit=limit):
            held = KeyRange(row.low, row.high)
            if changes.intersects_any(some, held):
                yield repr(shard_map.decode_range(held))


def delete_mapping(shard_map: OpenMap, mapping: Any, *, token: str | None = None) -> None:
    """Delete an offline mapping; its keys are then unmapped."""
    found = lookups.resolve(shard_map, mapping)

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        row = locked.mapping(found.id)
        shard = locked.shard(row.shard_id)
        return change_plans.delete_mapping(operation, locked.row, shard, row, token)

    changes.run_and_cache(shard_map, build, found)


def update_mapping(
    shard_map: OpenMap,
    mapping: Any,
    *,
    shard: Where | None = None,
    status: MappingStatus | None = None,
    token: str | None = None,
) -> Mapping:
    """Change the shard or the status of a mapping, or both; the new mapping has a new id.

    The rows stay where they are. With another shard, an online mapping is taken offline first, as
    `set_offline()` does, and only if `status` says what it is to be then: after a crash or an
    error between the two it is offline on its old shard.
    """
    found = lookups.resolve(shard_map, mapping)
    if shard is not None and not isinstance(shard, Shard):
        shard = lookups.get_shard(shard_map, shard)
    if found.is_online and shard is not None and shard != found.shard and status is not None:
        _check_target(shard_map, found, shard)
        found = set_offline(shard_map, found, token=token)
    if shard in {None, found.shard} and status in {None, found.status}:
        return changes.read_current(shard_map, found, token)

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        row = locked.mapping(found.id)
        source = locked.shard(row.shard_id)
        target = source if shard is None else locked.shard(shard.id)
        changed = msgspec.structs.replace(
            row,
            id=shard_map.executor.new_id(),
            shard_id=target.id,
            status=row.status if status is None else status.value,
        )
        return change_plans.update_mapping(
            operation, locked.row, (source, target), (row, changed), token
        )

    return changes.run_and_cache(shard_map, build, found)[0]


def _check_target(shard_map: OpenMap, mapping: Mapping, target: Shard) -> None:
    # Before the mapping is taken offline: a refused change leaves it online.
    def check(locked: LockedMap) -> None:
        change_plans.check_online(locked.row, locked.shard(target.id))

    changes.decide(shard_map, check, mapping)


def set_offline(
    shard_map: OpenMap,
    mapping: Any,
    *,
    grace: float = offline.GRACE_SECONDS,
    terminate: bool = True,
    token: str | None = None,
) -> Mapping:
    """Refuse new transactions of the mapping, wait for open ones, then terminate the rest.

    Transactions of other mappings on the same shard continue. With `terminate=False` the new
    mapping is returned after the grace period, even if transactions are still open. For a mapping
    that is already offline, this waits for such transactions and raises OperationPendingError
    (MappingInUse) if they outlast the grace period.
    """
    current = changes.read_current(shard_map, lookups.resolve(shard_map, mapping), token)
    if not current.is_online:
        fence = offline.drain(
            shard_map.engines,
            shard_map.clock,
            current.shard.location,
            current.id,
            grace=grace,
            terminate=terminate,
        )
        fence.close()
        return current
    changed: list[Mapping] = []

    def change() -> Mapping:
        status = MappingStatus.OFFLINE
        changed.append(update_mapping(shard_map, current, status=status, token=token))
        return changed[0]

    try:
        _, fence = offline.set_offline(
            shard_map.engines, shard_map.clock, current, change, grace=grace, terminate=terminate
        )
    except OperationPendingError:
        if terminate or not changed:
            raise
    else:
        fence.close()
    return changed[0]


def set_online(shard_map: OpenMap, mapping: Any, *, token: str | None = None) -> Mapping:
    """Admit transactions of the mapping."""
    return update_mapping(shard_map, mapping, status=MappingStatus.ONLINE, token=token)


def split(
    shard_map: OpenMap, mapping: Any = None, *, at: Any, token: str | None = None
) -> tuple[Mapping, Mapping]:
    """Split a mapping in two on its shard, by default the mapping that holds `at`."""
    point = shard_map.encode_bound(at)
    found = (
        lookups.find_encoded(shard_map, point)
        if mapping is None
        else lookups.resolve(shard_map, mapping)
    )
    if found is None:
        raise MappingNotFoundError(
            "MappingNotFound",
            "No mapping holds the split point.",
            facts={"map": shard_map.name, "at": at},
            hint="Split at a key that is mapped.",
        )

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        row = locked.mapping(found.id)
        shard = locked.shard(row.shard_id)
        low = msgspec.structs.replace(row, id=shard_map.executor.new_id(), high=point)
        high = msgspec.structs.replace(row, id=shard_map.executor.new_id(), low=point)
        return change_plans.split_mapping(operation, locked.row, shard, row, (low, high), token)

    low, high = changes.run_and_cache(shard_map, build, found)
    return low, high


def merge(
    shard_map: OpenMap,
    left: Any,
    right: Any,
    *,
    token: str | tuple[str | None, str | None] | None = None,
) -> Mapping:
    """Merge two adjacent mappings of one shard, the lower one first.

    If they are locked with different tokens, pass both: `token=(of_left, of_right)`. The merged
    mapping has the lock of the lower one.
    """
    tokens = token if isinstance(token, tuple) else (token, token)
    pair = lookups.resolve(shard_map, left), lookups.resolve(shard_map, right)

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        halves = locked.mapping(pair[0].id), locked.mapping(pair[1].id)
        shard = locked.shard(halves[0].shard_id)
        merged = msgspec.structs.replace(
            halves[0], id=shard_map.executor.new_id(), high=halves[1].high
        )
        return change_plans.merge_mappings(operation, locked.row, shard, halves, merged, tokens)

    return changes.run_and_cache(shard_map, build, *pair)[0]
