"""Register, remove and update the shards of a map."""

from sqlalchemy import URL

from partita.errors import ConflictError
from partita.shards.catalog import change_plans
from partita.shards.catalog.change_plans import ChangePlan, ShardRow
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.connections.locations import check_driver
from partita.shards.keys.mapping import Location, Shard, ShardStatus
from partita.shards.maps import changes
from partita.shards.maps.open_map import OpenMap


def create_shard(shard_map: OpenMap, url: URL | str | Location) -> Shard:
    """Register a database as a shard and create its local catalog.

    The credentials of the URL are kept in this process only, never in a catalog.
    """
    if isinstance(url, Location):
        check_driver(url)
        location = url
    else:
        location = shard_map.engines.remember(url)
    row = ShardRow(
        id=shard_map.executor.new_id(),
        map_id=shard_map.id,
        location=location.text,
        version=shard_map.executor.new_id(),
        status=ShardStatus.ONLINE.value,
        last_operation="",
    )

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        existing = locked.find_shard_at(location.identity)
        return change_plans.create_shard(operation, locked.row, row, existing)

    return shard_map.shard_of(changes.run(shard_map, build).shards_after[0])


def delete_shard(shard_map: OpenMap, shard: Shard) -> None:
    """Remove a shard without mappings from the map; the database itself is not changed."""

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        row = _current_row(locked, shard)
        mappings = locked.count_mappings(shard.id)
        return change_plans.delete_shard(operation, locked.row, row, mappings)

    changes.run(shard_map, build)


def update_shard(shard_map: OpenMap, shard: Shard, *, status: ShardStatus) -> Shard:
    """Change the status of a shard; an offline shard gets no new mappings.

    Its existing mappings stay online until set_offline(). Earlier Shard objects become stale.
    """
    version = shard_map.executor.new_id()

    def build(locked: LockedMap, operation: str) -> ChangePlan:
        row = _current_row(locked, shard)
        return change_plans.update_shard(
            operation, locked.row, row, version=version, status=status.value
        )

    plan = changes.run(shard_map, build)
    for mapping in shard_map.cache.mappings():
        if mapping.shard == shard:
            shard_map.cache.remove(mapping.id)
    return shard_map.shard_of(plan.shards_after[0])


def _current_row(locked: LockedMap, shard: Shard) -> ShardRow:
    row = locked.shard(shard.id)
    if row.version != shard.version:
        raise ConflictError(
            "StaleShard",
            "The shard has changed since it was read.",
            facts={"map": locked.row.name, "location": shard.location.text},
            hint="Read it again with get_shard() and repeat the change.",
        )
    return row
