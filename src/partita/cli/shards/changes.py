"""The verbs of `partita shards` that change maps, shards, mappings, locks and catalogs by hand.

Rule: no verb here carries a row, except `remove-shard --moving-to`, which moves mappings first.
"""

import argparse
from typing import Any

from partita.cli.shards.facts import Changed, Found, Maps, ShardFacts, Shards
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
)
from partita.cli.shards.opening import checked_url, choose_map, choose_shard, chosen_maps
from partita.errors import ConfigurationError, RangeError, ShardInUseError, UsageError
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.mapping import MappingStatus, Shard, ShardStatus
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import AnyShardMap, ShardMapManager

# Maps


def delete_map(manager: ShardMapManager, given: argparse.Namespace) -> Changed:
    manager.get_map(given.name)  # a name that was misspelt is an error here
    manager.delete_map(given.name)
    return _done(f"Delete the map {given.name}")


def set_schema(manager: ShardMapManager, given: argparse.Namespace) -> Maps:
    schema = schema_of(given)
    if (schema is None) is not given.none:
        raise ConfigurationError(
            "SchemaNotGiven",
            "Either tables are named, or --none.",
            hint="Give --metadata module:attribute --sharded TABLE=COLUMN, or --none alone.",
        )
    shard_map = choose_map(manager, given.map)
    shard_map.set_schema(schema)
    return Maps(manager.location.text, [map_facts(shard_map)])


def upgrade_catalogs(manager: ShardMapManager, _given: argparse.Namespace) -> Changed:
    locations = manager.list_locations()
    manager.upgrade_store()
    return _done(
        "Upgrade the catalogs", steps=[manager.location.text, *(one.text for one in locations)]
    )


# Shards


def remove_shard(manager: ShardMapManager, given: argparse.Namespace) -> Changed:
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


def mark_shard(manager: ShardMapManager, given: argparse.Namespace) -> Shards:
    shard_map = choose_map(manager, given.map)
    shard = choose_shard(shard_map.shards(), given.shard)
    changed = shard_map.update_shard(shard, status=ShardStatus(given.status))
    return Shards([_shard_facts(shard_map, changed)])


def _shard_facts(shard_map: AnyShardMap, shard: Shard) -> ShardFacts:
    count = len(shard_map.mappings(shard=shard))
    return ShardFacts(shard_map.name, shard.location.text, shard.id, shard.status.value, count)


# Mappings


def create_mapping(manager: ShardMapManager, given: argparse.Namespace) -> Changed:
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


def delete_mapping(manager: ShardMapManager, given: argparse.Namespace) -> Changed:
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


def assign(manager: ShardMapManager, given: argparse.Namespace) -> Changed:
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


def lock(manager: ShardMapManager, given: argparse.Namespace) -> Found:
    shard_map = choose_map(manager, given.map)
    shard_map.lock(mapping_of(shard_map, given.key), token=given.token)
    return found_facts(shard_map, parse_key(given.key, shard_map))


def unlock(manager: ShardMapManager, given: argparse.Namespace) -> Changed:
    if (given.key is None) is (given.token is None):
        raise ConfigurationError(
            "Configuration",
            "Either a token or a key is named.",
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
            hint="Give --token TOKEN; --force releases the lock of an owner that is gone.",
        )
    ids = {one.id for one in before}
    after = [facts_of(one) for one in shard_map.mappings() if one.id in ids]
    count = "1 mapping" if len(before) == 1 else f"{len(before)} mappings"
    what = f"Unlock {count} of {shard_map.name}"
    return Changed(what, dry_run=False, removed=[facts_of(one) for one in before], added=after)


# Shards that are lost, or come back


def attach(manager: ShardMapManager, given: argparse.Namespace) -> Shards:
    shard_map = None if given.map is None else manager.get_map(given.map)
    attached = manager.recovery.attach(checked_url(given.url), shard_map=shard_map)
    return Shards([_shard_facts(manager.get_map(one.map_name), one) for one in attached])


def detach(manager: ShardMapManager, given: argparse.Namespace) -> Changed:
    maps = chosen_maps(manager, given.map)
    every = [shard for one in maps for shard in one.shards()]
    location = choose_shard(
        {shard.location.identity: shard for shard in every}.values(), given.shard
    ).location
    removed = [
        facts_of(mapping)
        for one in maps
        for mapping in one.mappings()
        if mapping.shard.location.identity == location.identity
    ]
    for one in maps:
        manager.recovery.detach(location, shard_map=one)
    what = f"Detach {location.text}"
    return Changed(what, dry_run=False, removed=removed, added=[], shard=location.text)


def rebuild_catalog(manager: ShardMapManager, given: argparse.Namespace) -> Maps:
    manager.recovery.rebuild_global(*(checked_url(url) for url in given.urls))
    return Maps(manager.location.text, [map_facts(one) for one in manager.list_maps()])


def _done(what: str, steps: list[str] | None = None) -> Changed:
    return Changed(what, dry_run=False, removed=[], added=[], steps=steps or [])
