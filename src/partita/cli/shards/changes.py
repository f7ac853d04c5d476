"""The verbs of `partita shards` that change maps, shards, mappings and locks.

Rule: no verb here moves a row, except `remove-shard --moving-to`, which moves mappings first.
"""

from typing import Any

from partita.cli.kit.commands import Given
from partita.cli.kit.text import count_text
from partita.cli.shards.facts import Changed, FoundMapping, Maps, Shards
from partita.cli.shards.keys import parse_key, parse_keys, range_text
from partita.cli.shards.mappings import (
    facts_of,
    found_facts,
    map_facts,
    mapping_of,
    planned_facts,
    refuse_locked,
    refuse_taken,
    schema_of,
    shard_facts,
)
from partita.cli.shards.opening import choose_map, choose_shard
from partita.errors import ConfigurationError, RangeError, ShardInUseError, UsageError
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.mapping import MappingStatus, ShardStatus
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import AnyShardMap, ShardMapManager

# Maps


def delete_map(manager: ShardMapManager, given: Given) -> Changed:
    manager.get_map(given.name)  # a misspelt name is an error here
    manager.delete_map(given.name)
    return _done(f"Delete the map {given.name}")


def set_schema(manager: ShardMapManager, given: Given) -> Maps:
    schema = schema_of(given)
    if (schema is None) is not given.none:
        raise ConfigurationError(
            "SchemaNotGiven",
            "Name the sharded tables, or give --none.",
            hint="Give --metadata module:attribute --sharded TABLE=COLUMN, or --none alone.",
        )
    shard_map = choose_map(manager, given.map)
    shard_map.set_schema(schema)
    return Maps(manager.location.text, [map_facts(shard_map)])


def upgrade_catalogs(manager: ShardMapManager, _given: Given) -> Changed:
    locations = manager.list_locations()
    manager.upgrade_store()
    return _done(
        "Upgrade the catalogs", steps=[manager.location.text, *(one.text for one in locations)]
    )


# Shards


def create_database(manager: ShardMapManager, given: Given) -> Changed:
    is_new = Fleet(manager).create_database(given.url)
    return _done("Create the database" if is_new else "Create nothing: the database exists")


def drop_database(manager: ShardMapManager, given: Given) -> Changed:
    existed = Fleet(manager).drop_database(given.url)
    return _done("Drop the database" if existed else "Drop nothing: the database does not exist")


def remove_shard(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = choose_map(manager, given.map)
    shards = shard_map.shards()
    shard = choose_shard(shards, given.shard)
    to = None if given.moving_to is None else choose_shard(shards, given.moving_to)
    mappings = shard_map.mappings(shard=shard)
    what = f"Remove {shard.location.text} from {shard_map.name}"
    steps = [] if to is None or not mappings else [f"move its mappings to {to.location.text}"]
    if given.dry_run:
        if mappings and to is None:
            raise ShardInUseError(
                "ShardHasMappings",
                "The shard still has mappings.",
                facts={"shard": shard.location.text, "mappings": len(mappings)},
                hint="Give --moving-to SHARD.",
            )
        for one in mappings:
            refuse_locked(one)
    else:
        Fleet(manager).remove_shard(shard, to)
    return Changed(
        what,
        given.dry_run,
        removed=[facts_of(one) for one in mappings],
        added=[planned_facts(one.range, shard_map, to) for one in mappings if to is not None],
        shard=shard.location.text,
        steps=steps,
    )


def mark_shard(manager: ShardMapManager, given: Given) -> Shards:
    shard_map = choose_map(manager, given.map)
    shard = choose_shard(shard_map.shards(), given.shard)
    changed = shard_map.update_shard(shard, status=ShardStatus(given.status))
    return Shards(shard_facts(manager, shard_map, [changed]))


# Mappings


def create_mapping(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = choose_map(manager, given.map)
    shard = choose_shard(shard_map.shards(), given.shard)
    asked = [_keys_to_map(text, shard_map) for text in given.keys]
    ranges = shard_map.encode_ranges(asked)
    status = MappingStatus.OFFLINE if given.offline else MappingStatus.ONLINE
    what = f"Map {', '.join(given.keys)} of {shard_map.name} to {shard.location.text}"
    if given.dry_run:
        refuse_taken(shard_map, ranges)
        added = [
            planned_facts(shard_map.decode_range(one), shard_map, shard, status) for one in ranges
        ]
    else:
        added = [facts_of(one) for one in shard_map.create_mappings(asked, shard, status=status)]
    return Changed(what, given.dry_run, removed=[], added=added, shard=shard.location.text)


def _keys_to_map(text: str, shard_map: AnyShardMap) -> Any:
    asked = parse_keys(text, shard_map)
    if shard_map.kind != "list" and not isinstance(asked, Range):
        raise RangeError(
            "KeyInRangeMap",
            "A range or hash map maps ranges.",
            facts={"map": shard_map.name},
            hint="Write LOW:HIGH.",
        )
    return asked


def delete_mapping(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = choose_map(manager, given.map)
    mapping = mapping_of(shard_map, given.key)
    what = f"Delete the mapping {range_text(mapping.range)} of {shard_map.name}"
    if not given.dry_run:
        shard_map.delete_mapping(mapping, token=given.token)
    elif mapping.is_online:
        raise UsageError(
            "MappingOnline",
            "An online mapping cannot be deleted.",
            facts={"map": shard_map.name, "mapping": mapping.id},
        )
    else:
        refuse_locked(mapping, given.token)
    shard = mapping.shard.location.text
    return Changed(what, given.dry_run, removed=[facts_of(mapping)], added=[], shard=shard)


def assign(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = choose_map(manager, given.map)
    shard = choose_shard(shard_map.shards(), given.to)
    before = mapping_of(shard_map, given.key)
    after = shard_map.update_mapping(before, shard=shard, token=given.token)
    what = f"Assign {range_text(before.range)} of {shard_map.name} to {shard.location.text}"
    return Changed(
        what,
        dry_run=False,
        removed=[facts_of(before)],
        added=[facts_of(after)],
        shard=shard.location.text,
    )


# Locks


def lock(manager: ShardMapManager, given: Given) -> FoundMapping:
    shard_map = choose_map(manager, given.map)
    shard_map.lock(mapping_of(shard_map, given.key), token=given.token)
    return found_facts(shard_map, parse_key(given.key, shard_map))


def unlock(manager: ShardMapManager, given: Given) -> Changed:
    if (given.key is None) is (given.token is None):
        raise ConfigurationError(
            "Configuration",
            "Give either a token or a key.",
            hint="Give --token TOKEN for all that it locked, or KEY --force for one mapping.",
        )
    shard_map = choose_map(manager, given.map)
    if given.token is not None:
        before = [one for one in shard_map.mappings() if one.lock_owner == given.token]
        shard_map.unlock(given.token)
    elif given.force:
        before = [mapping_of(shard_map, given.key)]
        shard_map.force_unlock(before[0])
    else:
        raise ConfigurationError(
            "Configuration",
            "A lock is released by its token.",
            hint="Give --token TOKEN, or --force if its owner has ended.",
        )
    ids = {one.id for one in before}
    after = [facts_of(one) for one in shard_map.mappings() if one.id in ids]
    what = f"Unlock {count_text(len(before), 'mapping')} of {shard_map.name}"
    return Changed(what, dry_run=False, removed=[facts_of(one) for one in before], added=after)


def _done(what: str, steps: list[str] | None = None) -> Changed:
    return Changed(what, dry_run=False, removed=[], added=[], steps=steps or [])
