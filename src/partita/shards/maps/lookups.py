"""Look up mappings and shards, in the global catalog or in the cache of this process.

Functions for administration read the global catalog by default. Routing reads the cache, because it
validates each mapping on its shard.
"""

from typing import Any, Literal

from sqlalchemy import Connection

from partita.errors import MappingNotFoundError, ShardMapNotFoundError
from partita.shards.catalog import global_catalog
from partita.shards.catalog.change_plans import MappingRow, ShardRow
from partita.shards.keys.mapping import Mapping, Shard
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.maps.open_map import OpenMap, Where, mappings_of, place_of

Lookup = Literal["cache", "store"]


def get(shard_map: OpenMap, key: Any, *, lookup: Lookup = "store") -> Mapping:
    """Return the mapping of a key, or raise MappingNotFoundError.

    "store" reads the global catalog. "cache" returns the cached mapping, which may be stale, and
    reads the global catalog only if there is none.
    """
    if lookup == "cache":
        cached = shard_map.cache.find(shard_map.encode_key(key))
        if cached is not None:
            return cached
    mapping = find(shard_map, key)
    if mapping is None:
        raise global_catalog.key_not_mapped(shard_map.name, key)
    return mapping


def find(shard_map: OpenMap, key: Any, *, lookup: Lookup = "store") -> Mapping | None:
    """Return the mapping of a key as `get()` does, or None."""
    return find_encoded(shard_map, shard_map.encode_key(key), lookup=lookup)


def find_cached(shard_map: OpenMap, key: Any) -> Mapping | None:
    """Return the cached mapping of a key, or None, without reading the global catalog."""
    return shard_map.cache.find(shard_map.encode_key(key))


def find_encoded(shard_map: OpenMap, key: bytes, *, lookup: Lookup = "store") -> Mapping | None:
    """Return the mapping of an encoded key as `get()` does, or None."""
    if lookup == "cache":
        cached = shard_map.cache.find(key)
        if cached is not None:
            return cached

    def read(connection: Connection) -> tuple[MappingRow, ShardRow] | None:
        found = global_catalog.find_by_key(connection, shard_map.id, key)
        if found is None:
            _check_exists(shard_map, connection)
        return found

    found = shard_map.executor.read(read)
    if found is None:
        stale = shard_map.cache.find(key)
        if stale is not None:
            shard_map.cache.remove(stale.id)
        return None
    mapping = shard_map.mapping_of(found[0], shard_map.shard_of(found[1]))
    shard_map.cache.add(mapping)
    return mapping


def resolve(shard_map: OpenMap, given: Any) -> Mapping:
    """Return a mapping that is given itself, by its range, or by one of its keys."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, Range):
        return get(shard_map, given)
    wanted = shard_map.encode_range(given)
    held = mappings(shard_map, given)
    for mapping in held:
        if mapping.key_range == wanted:
            return mapping
    raise MappingNotFoundError(
        "MappingNotFound",
        "No mapping has exactly this range.",
        facts={"map": shard_map.name, "range": given, "mappings": [one.range for one in held[:10]]},
        hint="Give the range of a mapping, one of its keys, or the mapping itself.",
    )


def forget(shard_map: OpenMap, mapping: Any) -> None:
    """Remove mappings from the cache: one itself, those of a range, or that of a key."""
    if isinstance(mapping, Mapping):
        shard_map.cache.remove(mapping.id)
        return
    keys = shard_map.encode_given(mapping)
    for cached in shard_map.cache.mappings():
        if keys.intersects(cached.key_range):
            shard_map.cache.remove(cached.id)


def load(shard_map: OpenMap) -> None:
    """Read all mappings into the cache."""
    shard_map.cache.load(mappings(shard_map))


def mappings(
    shard_map: OpenMap,
    range: Any = None,  # noqa: A002 - the domain's word
    *,
    shard: Where | None = None,
) -> list[Mapping]:
    """Return all mappings, or those that hold keys of a range or belong to a shard, in order.

    The range may be a single key, or a mapping.
    """
    wanted = KeyRange() if range is None else shard_map.encode_given(range)
    if shard is not None and not isinstance(shard, Shard):
        shard = get_shard(shard_map, shard)

    def read(connection: Connection) -> list[Mapping]:
        _check_exists(shard_map, connection)
        rows = global_catalog.list_mappings(
            connection,
            shard_map.id,
            low=wanted.low,
            high=wanted.high,
            shard_id=None if shard is None else shard.id,
        )
        return list(mappings_of(shard_map, rows))

    return shard_map.executor.read(read)


def shards(shard_map: OpenMap) -> list[Shard]:
    """Return the shards of the map."""

    def read(connection: Connection) -> list[ShardRow]:
        _check_exists(shard_map, connection)
        return global_catalog.list_shards(connection, shard_map.id)

    return [shard_map.shard_of(row) for row in shard_map.executor.read(read)]


def current_shards(shard_map: OpenMap) -> list[Shard]:
    """Return the shards; they are read again only if the epoch of the map has changed."""
    epoch = shard_map.executor.read_epoch(shard_map.id)
    if epoch is None:
        raise _map_not_found(shard_map)
    known, found = shard_map.shards_at_epoch
    if known != epoch:
        # The list may be newer than the epoch, but not older: then it is read once more.
        found = tuple(shards(shard_map))
        shard_map.shards_at_epoch = (epoch, found)
    return list(found)


def forget_shards(shard_map: OpenMap) -> None:
    """Make the next `current_shards()` read the shards."""
    shard_map.shards_at_epoch = (-1, ())


def get_shard(shard_map: OpenMap, where: Where) -> Shard:
    """Return the shard at a location from the global catalog, or raise ShardNotFoundError."""
    found = find_shard(shard_map, where)
    if found is None:
        location = place_of(where).text
        raise global_catalog.shard_not_found({"map": shard_map.name, "location": location})
    return found


def find_shard(shard_map: OpenMap, where: Where) -> Shard | None:
    """Return the shard at a location from the global catalog, or None."""
    identity = place_of(where).identity

    def read(connection: Connection) -> ShardRow | None:
        _check_exists(shard_map, connection)
        return global_catalog.find_shard(connection, shard_map.id, identity)

    row = shard_map.executor.read(read)
    return None if row is None else shard_map.shard_of(row)


def epoch(shard_map: OpenMap) -> int:
    """Return a number that grows with every change of the map."""
    found = shard_map.executor.read(
        lambda connection: global_catalog.read_epoch(connection, shard_map.id)
    )
    if found is None:
        raise _map_not_found(shard_map)
    return found


def _check_exists(shard_map: OpenMap, connection: Connection) -> None:
    if global_catalog.read_epoch(connection, shard_map.id) is None:
        raise _map_not_found(shard_map)


def _map_not_found(shard_map: OpenMap) -> ShardMapNotFoundError:
    shard_map.cache.clear()
    return global_catalog.map_not_found(shard_map.name)
