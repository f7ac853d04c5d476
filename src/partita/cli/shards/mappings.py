"""The verbs of `partita shards` on maps, shards and mappings.

Rule: with --dry-run a verb makes the same lookups and refusals, and changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from partita.cli.kit.commands import Given
from partita.cli.shards.facts import (
    Changed,
    FoundMapping,
    MapFacts,
    MappingFacts,
    Mappings,
    Maps,
    ShardFacts,
    Shards,
)
from partita.cli.shards.keys import (
    parse_bound,
    parse_key,
    parse_key_type,
    parse_range,
    plain_key,
    range_text,
)
from partita.cli.shards.names import Names
from partita.cli.shards.opening import (
    checked_url,
    choose_map,
    choose_shard,
    chosen_maps,
    import_metadata,
    make_fleet,
)
from partita.errors import (
    ConfigurationError,
    MappingLockedError,
    MappingNotFoundError,
    RangeError,
    ShardExistsError,
    ShardOfflineError,
    UsageError,
)
from partita.shards.catalog.change_plans import mapping_exists
from partita.shards.connections.locations import location_of
from partita.shards.fleet.deployment import Deployment
from partita.shards.keys.mapping import Location, Mapping, MappingStatus, Shard
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from partita.shards.maps.shard_map import HashShardMap, RangeShardMap

if TYPE_CHECKING:
    from collections.abc import Iterator

# Listing


def list_maps(manager: ShardMapManager, _given: Given) -> Maps:
    return Maps(manager.location.text, [map_facts(one) for one in manager.list_maps()])


def map_facts(shard_map: AnyShardMap) -> MapFacts:
    schema = shard_map.schema
    return MapFacts(
        name=shard_map.name,
        kind=shard_map.kind,
        key=shard_map.key_type.name,
        buckets=shard_map.buckets if isinstance(shard_map, HashShardMap) else None,
        shards=len(shard_map.shards()),
        mappings=len(shard_map.mappings()),
        sharded={}
        if schema is None
        else {table.name: list(table.columns) for table in schema.sharded_tables()},
        reference=[] if schema is None else [table.name for table in schema.reference_tables()],
    )


def list_shards(manager: ShardMapManager, given: Given) -> Shards:
    return Shards(
        [
            fact
            for shard_map in chosen_maps(manager, given.map)
            for fact in shard_facts(manager, shard_map, shard_map.shards())
        ]
    )


def shard_facts(
    manager: ShardMapManager, shard_map: AnyShardMap, shards: Iterable[Shard]
) -> list[ShardFacts]:
    names = Names(manager.list_locations())
    counts = Counter(mapping.shard.id for mapping in shard_map.mappings())
    return [
        ShardFacts(
            map=shard_map.name,
            name=names.of(one.location.text),
            location=one.location.text,
            id=one.id,
            status=one.status.value,
            mappings=counts[one.id],
        )
        for one in shards
    ]


def list_mappings(manager: ShardMapManager, given: Given) -> Mappings:
    shard_map = choose_map(manager, given.map)
    shard = None if given.shard is None else choose_shard(shard_map.shards(), given.shard)
    asked = None if given.range is None else parse_range(given.range, shard_map)
    return Mappings([facts_of(one) for one in shard_map.mappings(asked, shard=shard)])


def look_up(manager: ShardMapManager, given: Given) -> FoundMapping:
    shard_map = choose_map(manager, given.map)
    return found_facts(shard_map, parse_key(given.key, shard_map))


def found_facts(shard_map: AnyShardMap, key: Any) -> FoundMapping:
    mapping = shard_map.get(key)
    is_hashed = isinstance(shard_map, HashShardMap)
    bucket = int.from_bytes(shard_map.encode_key(key)) if is_hashed else None
    return FoundMapping(plain_key(key), bucket, facts_of(mapping))


def facts_of(mapping: Mapping) -> MappingFacts:
    return MappingFacts(
        map=mapping.map_name,
        range=range_text(mapping.range),
        low=plain_key(mapping.range.low),
        high=plain_key(mapping.range.high),
        shard=mapping.shard.location.text,
        status=mapping.status.value,
        locked_by=mapping.lock_owner,
        id=mapping.id,
    )


def planned_facts(
    keys: Range,
    shard_map: AnyShardMap,
    where: Shard | Location,
    status: MappingStatus = MappingStatus.ONLINE,
) -> MappingFacts:
    """Return the facts of a mapping that would be made."""
    location = where.location if isinstance(where, Shard) else where
    return MappingFacts(
        map=shard_map.name,
        range=range_text(keys),
        low=plain_key(keys.low),
        high=plain_key(keys.high),
        shard=location.text,
        status=status.value,
        locked_by=None,
        id=None,
    )


def _planned(mapping: MappingFacts, keys: Range) -> MappingFacts:
    return msgspec.structs.replace(
        mapping, range=range_text(keys), low=plain_key(keys.low), high=plain_key(keys.high), id=None
    )


# Making maps and adding shards


def create_map(manager: ShardMapManager, given: Given) -> Maps:
    key, schema = parse_key_type(given.key_type), schema_of(given)
    made: AnyShardMap
    if given.kind == "hash":
        buckets = 1024 if given.buckets is None else given.buckets
        made = manager.create_hash_map(given.name, key=key, buckets=buckets, schema=schema)
    elif given.buckets is not None:
        raise ConfigurationError(
            "Configuration", "Only a hash map has buckets.", hint="Add --kind hash."
        )
    elif given.kind == "list":
        made = manager.create_list_map(given.name, key=key, schema=schema)
    else:
        made = manager.create_range_map(given.name, key=key, schema=schema)
    return Maps(manager.location.text, [map_facts(made)])


def schema_of(given: Given) -> ShardedSchema | None:
    if not (given.sharded or given.reference):
        return None
    metadata = import_metadata(given.metadata)
    if metadata is None:
        raise ConfigurationError(
            "SchemaNotGiven",
            "Sharded and reference tables are looked up in the application's MetaData.",
            hint="Add --metadata module:attribute.",
        )
    keys: dict[str, list[str]] = {}
    for one in given.sharded:
        name, equals, columns = one.partition("=")
        if not (name and equals and columns) or name in keys:
            raise ConfigurationError(
                "Configuration",
                f"{one!r} is not a table and its column, or the table is named twice.",
                hint="Write --sharded blog=tenant_id, with commas for a composite key.",
            )
        keys[name] = columns.split(",")
    return ShardedSchema(metadata, keys=keys, reference=given.reference)


def add_shard(manager: ShardMapManager, given: Given) -> Changed:
    shard_map, fleet = choose_map(manager, given.map), make_fleet(manager, given)
    if given.range and shard_map.kind == "list":
        raise RangeError(
            "RangeInListMap",
            "A list map maps single keys.",
            facts={"map": shard_map.name},
            hint="Give --key KEY.",
        )
    asked = [parse_range(one, shard_map) for one in given.range]
    asked += [parse_key(one, shard_map) for one in given.key]
    if given.key and shard_map.kind != "list":
        raise RangeError(
            "KeyInRangeMap",
            "A range or hash map maps ranges.",
            facts={"map": shard_map.name},
            hint="Give --range LOW:HIGH.",
        )
    location = location_of(checked_url(given.url))
    what = f"{'Adopt' if given.adopt else 'Add'} {location.text} to {shard_map.name}"
    if given.dry_run:
        return _would_add(shard_map, given, asked, what)
    if given.adopt:
        shard = fleet.adopt(shard_map, given.url, asked)
    else:
        shard = fleet.add_shard(shard_map, given.url, asked)
    added = [facts_of(one) for one in shard_map.mappings(shard=shard)]
    return Changed(what, dry_run=False, removed=[], added=added, shard=shard.location.text)


def _would_add(shard_map: AnyShardMap, given: Given, asked: Sequence[Any], what: str) -> Changed:
    location = location_of(given.url)
    ranges = [shard_map.encode_range(keys) for keys in asked]
    refuse_taken(shard_map, ranges)
    if shard_map.find_shard(location) is not None:
        raise ShardExistsError(
            "ShardExists",
            "The database is a shard of the map already.",
            facts={"map": shard_map.name, "location": location.text},
            hint="If adding it was interrupted, leave out --dry-run to continue.",
        )
    deployment = Deployment(import_metadata(given.metadata), given.alembic)
    with _looking_at(location, given.url) as connection:
        if connection is not None and given.adopt:
            deployment.verify(connection)
        elif connection is not None:
            deployment.check_empty(connection)
    added = [planned_facts(shard_map.decode_range(keys), shard_map, location) for keys in ranges]
    deploy = "check its schema and its rows" if given.adopt else "deploy the schema"
    steps = [deploy, "register it"] if given.adopt else ["register it", deploy, "verify it"]
    return Changed(
        what, dry_run=True, removed=[], added=added, shard=location.text, steps=[*steps, "map"]
    )


def refuse_taken(shard_map: AnyShardMap, ranges: Iterable[KeyRange]) -> None:
    """Refuse keys that are mapped already, as the change itself would."""
    mapped = shard_map.mappings()
    for wanted in ranges:
        for each in mapped:
            if each.key_range.intersects(wanted):
                raise mapping_exists(shard_map.name, range_text(each.range))


@contextmanager
def _looking_at(location: Location, given: str) -> "Iterator[Connection | None]":
    """Connect so that no SQLite file is made or changed; None if there is no file."""
    url = make_url(given)
    if location.backend == "sqlite":
        path = Path(location.identity.removeprefix("sqlite://"))
        if not path.exists():
            yield None
            return
        url = make_url(f"sqlite:///file:{path}?mode=ro&uri=true")
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise ShardOfflineError(
            "ShardUnreachable",
            "The database cannot be reached or used.",
            facts={"shard": location.text},
            hint="Check that it runs, and check the URL and the credentials.",
        ) from error
    finally:
        engine.dispose()


# Changing mappings


def split(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = _with_ranges(choose_map(manager, given.map))
    at = parse_bound(given.at, shard_map)
    before = _holding(shard_map, at)
    what = f"Split {range_text(before.range)} of {shard_map.name} at {given.at}"
    if not given.dry_run:
        halves = shard_map.split(before, at=at, token=given.token)
        added = [facts_of(one) for one in halves]
    else:
        refuse_locked(before, given.token)
        ranges = before.key_range.split(shard_map.encode_bound(at))
        old = facts_of(before)
        added = [_planned(old, shard_map.decode_range(one)) for one in ranges]
    return Changed(what, given.dry_run, [facts_of(before)], added, before.shard.location.text)


def merge(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = _with_ranges(choose_map(manager, given.map))
    at = parse_bound(given.at, shard_map)
    left, right = _neighbours(shard_map, shard_map.encode_bound(at), given.at)
    what = f"Merge {range_text(left.range)} and {range_text(right.range)} of {shard_map.name}"
    if not given.dry_run:
        added = facts_of(shard_map.merge(left, right, token=given.token))
    else:
        _refuse_unlike(left, right, given.token)
        joined = shard_map.decode_range(left.key_range.join(right.key_range))
        added = _planned(facts_of(left), joined)
    removed = [facts_of(left), facts_of(right)]
    return Changed(what, given.dry_run, removed, [added], left.shard.location.text)


def set_offline(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = choose_map(manager, given.map)
    before = mapping_of(shard_map, given.key)
    after = shard_map.set_offline(
        before, grace=given.grace, terminate=not given.no_terminate, token=given.token
    )
    return _status_change(before, after)


def set_online(manager: ShardMapManager, given: Given) -> Changed:
    shard_map = choose_map(manager, given.map)
    before = mapping_of(shard_map, given.key)
    return _status_change(before, shard_map.set_online(before, token=given.token))


def mapping_of(shard_map: AnyShardMap, key: str) -> Mapping:
    """Return the mapping that holds a key, given as text."""
    return shard_map.get(parse_key(key, shard_map))


def _status_change(before: Mapping, after: Mapping) -> Changed:
    what = f"Set {range_text(before.range)} of {before.map_name} {after.status.value}"
    shard = before.shard.location.text
    if before.status is after.status:
        return Changed(what, dry_run=False, removed=[], added=[], shard=shard)
    removed, added = [facts_of(before)], [facts_of(after)]
    return Changed(what, dry_run=False, removed=removed, added=added, shard=shard)


def _with_ranges(shard_map: AnyShardMap) -> RangeShardMap:
    if isinstance(shard_map, RangeShardMap):
        return shard_map
    raise RangeError(
        "RangeInListMap",
        "A list map maps single keys, which cannot be split or merged.",
        facts={"map": shard_map.name},
        hint="Move single keys with `partita shards move KEY --to SHARD`.",
    )


def _holding(shard_map: RangeShardMap, at: Any) -> Mapping:
    found = shard_map.find_encoded(shard_map.encode_bound(at), lookup="store")
    if found is None:
        raise MappingNotFoundError(
            "MappingNotFound",
            "No mapping holds the split point.",
            facts={"map": shard_map.name},
            hint="`partita shards mappings` lists what is mapped.",
        )
    return found


def _neighbours(shard_map: RangeShardMap, at: bytes, text: str) -> tuple[Mapping, Mapping]:
    mappings = shard_map.mappings()
    left = [one for one in mappings if one.key_range.high == at]
    right = [one for one in mappings if one.key_range.low == at]
    if left and right:
        return left[0], right[0]
    raise MappingNotFoundError(
        "MappingNotFound",
        f"No two mappings meet at {text}.",
        facts={"map": shard_map.name},
        hint="Give the key where one range ends and the next begins; "
        "`partita shards mappings` lists them.",
    )


def _refuse_unlike(left: Mapping, right: Mapping, token: str | None) -> None:
    refuse_locked(left, token)
    refuse_locked(right, token)
    if left.shard.id != right.shard.id or left.status is not right.status:
        raise UsageError(
            "MergeMismatch",
            "Only mappings of one shard and with the same status can be merged.",
            facts={"map": left.map_name},
            hint="Move one to the shard of the other first, or change its status.",
        )


def refuse_locked(mapping: Mapping, token: str | None = None) -> None:
    """Refuse a mapping that is locked with another token, as the change itself would."""
    facts = {"map": mapping.map_name, "range": range_text(mapping.range)}
    if mapping.lock_owner is None and token is not None:
        raise MappingLockedError(
            "MappingNotLocked", "The mapping is not locked with this token.", facts=facts
        )
    if mapping.lock_owner != token:
        raise MappingLockedError(
            "MappingLocked", "Another token holds the lock of the mapping.", facts=facts
        )
