"""The verbs of `partita shards` for catalogs that differ and shards that are lost.

Rule: an error of one shard is a line of the result and an exit status, not the end of the verb.
"""

from typing import Any

from sqlalchemy.exc import DBAPIError

from partita.cli.kit.commands import Given
from partita.cli.shards.facts import Changed, DifferenceFacts, Maps, Recovered, Shards
from partita.cli.shards.fleet import error_text
from partita.cli.shards.keys import parse_keys, range_text
from partita.cli.shards.mappings import facts_of, map_facts, shard_facts
from partita.cli.shards.opening import checked_url, choose_shard, chosen_maps
from partita.errors import ConfigurationError, PartitaError
from partita.shards.catalog import global_catalog
from partita.shards.keys.mapping import Shard
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from partita.shards.maps.recovery import MappingDifference

# Catalogs that differ


def recover(manager: ShardMapManager, given: Given) -> Recovered:
    maps = chosen_maps(manager, given.map)
    if given.keep is not None and given.shard is None:
        raise ConfigurationError(
            "Configuration",
            "--keep needs one shard.",
            hint="Name the shard: partita shards recover SHARD --keep global.",
        )
    if given.only and given.keep is None:
        raise ConfigurationError(
            "Configuration", "--only needs --keep.", hint="Add --keep global or --keep local."
        )
    every = [(one, shard) for one in maps for shard in one.shards()]
    if given.shard is not None:
        location = _named(every, given.shard)
        every = [(one, shard) for one, shard in every if shard.location.identity == location]
    # Read before anything is changed: the maps may have keys of different types.
    only = {one.id: [parse_keys(text, one) for text in given.only] or None for one, _ in every}
    ended = _pending_changes(manager) if given.dry_run else _end_changes(manager)
    differences, errors = _differences(manager, every, is_dry=given.dry_run)
    if given.keep is not None and not given.dry_run:
        for shard_map, shard in every:
            manager.recovery.resolve(
                shard, keep=given.keep, only=only[shard_map.id], shard_map=shard_map
            )
    return Recovered(given.dry_run, given.keep, differences, ended, errors)


def _named(every: list[tuple[AnyShardMap, Shard]], name: str) -> str:
    """Return the identity of the named database; it may be a shard of several maps."""
    databases = {shard.location.identity: shard for _, shard in every}
    by_id = {shard.id: shard for _, shard in every}
    if name in by_id:
        return by_id[name].location.identity
    return choose_shard(databases.values(), name).location.identity


def _pending_changes(manager: ShardMapManager) -> dict[str, str]:
    with manager.executor.engine.connect() as connection:
        return dict.fromkeys(global_catalog.list_pending(connection), "would be ended")


def _end_changes(manager: ShardMapManager) -> dict[str, str]:
    ended: dict[str, str] = {}
    for operation in _pending_changes(manager):
        try:
            ended[operation] = manager.executor.recover(operation)
        except (PartitaError, DBAPIError) as error:
            ended[operation] = error_text(error)
    return ended


def _differences(
    manager: ShardMapManager, every: list[tuple[AnyShardMap, Shard]], *, is_dry: bool
) -> tuple[list[DifferenceFacts], dict[str, str]]:
    found: list[DifferenceFacts] = []
    errors: dict[str, str] = {}
    for shard_map, shard in every:
        if is_dry and _has_pending(manager, shard):
            errors[shard.location.text] = "An interrupted change must be finished before comparing."
            continue
        try:
            differences = manager.recovery.differences(shard, shard_map=shard_map)
        except (PartitaError, DBAPIError) as error:
            errors[shard.location.text] = error_text(error)
        else:
            found += [_difference_facts(one) for one in differences]
    return found, errors


def _has_pending(manager: ShardMapManager, shard: Shard) -> bool:
    with manager.executor.engine.connect() as connection:
        return bool(global_catalog.list_pending(connection, shard.id))


def _difference_facts(one: MappingDifference) -> DifferenceFacts:
    def owner(mapping: Any) -> str | None:
        return None if mapping is None else mapping.shard.location.text

    return DifferenceFacts(
        map=one.map_name,
        shard=one.location.text,
        range=range_text(one.range),
        where=one.where,
        in_global=owner(one.in_global),
        in_local=owner(one.in_local),
    )


# Lost shards


def attach(manager: ShardMapManager, given: Given) -> Shards:
    shard_map = None if given.map is None else manager.get_map(given.map)
    attached = manager.recovery.attach(checked_url(given.url), shard_map=shard_map)
    return Shards(
        [
            fact
            for one in attached
            for fact in shard_facts(manager, manager.get_map(one.map_name), [one])
        ]
    )


def detach(manager: ShardMapManager, given: Given) -> Changed:
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


def rebuild_catalog(manager: ShardMapManager, given: Given) -> Maps:
    manager.recovery.rebuild_global(*(checked_url(url) for url in given.urls))
    return Maps(manager.location.text, [map_facts(one) for one in manager.list_maps()])
