"""How many keys and rows a move would carry."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnClause, Select, column, func, select, table

from partita.cli.shards.opening import connect_shard
from partita.shards.keys.mapping import Mapping
from partita.shards.keys.ranges import KeyRange
from partita.shards.keys.schema import ShardedTable
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from partita.shards.moving.copying import Shardlet

_ORDERED = frozenset(("int", "uuid", "date", "bytes"))
"""Key types that every database orders as their encoding does."""


class Part(msgspec.Struct, frozen=True):
    """The part of a mapping that moves: one key, or all of it."""

    shard_map: AnyShardMap
    mapping: Mapping
    keys: KeyRange
    key: Any = None
    """The one key that was named; None for whole mappings of a range."""


def count_rows(manager: ShardMapManager, part: Part) -> tuple[int, int]:
    """Count the sharding keys that have rows on the source, and those rows."""
    schema, shard_map = part.shard_map.schema, part.shard_map
    assert schema is not None
    shardlet = Shardlet(part.keys, None, shard_map.key_type, shard_map.encode_key, schema)
    keys: set[tuple[object, ...]] = set()
    rows = 0
    with connect_shard(manager, part.mapping.shard.location) as connection:
        for each in schema.sharded_tables():
            for *values, count in connection.execute(_grouped(part, shardlet, each)):
                if _is_inside(part, values):
                    keys.add(tuple(values))
                    rows += count
    return len(keys), rows


def _grouped(part: Part, shardlet: Shardlet, sharded: ShardedTable) -> Select[Any]:
    """Return the query of all keys and their numbers of rows, narrowed where that is safe."""
    types = shardlet.types_of(sharded)
    columns: list[ColumnClause[Any]] = [
        column(name, type_) for name, type_ in zip(sharded.columns, types, strict=True)
    ]
    source = table(sharded.table, *columns, schema=sharded.schema)
    query = select(*columns, func.count()).select_from(source).group_by(*columns)
    if part.shard_map.kind == "hash":
        return query
    if part.key is not None:
        values = part.key if isinstance(part.key, tuple) else (part.key,)
        return query.where(*(each == value for each, value in zip(columns, values, strict=True)))
    if part.shard_map.key_type.name in _ORDERED:
        inside = part.shard_map.decode_range(part.keys)
        query = query if inside.low is None else query.where(columns[0] >= inside.low)
        query = query if inside.high is None else query.where(columns[0] < inside.high)
    return query


def _is_inside(part: Part, values: Sequence[Any]) -> bool:
    if None in values:
        return False
    # SQLite keeps no time zone: what it was given was UTC.
    known = [
        each.replace(tzinfo=UTC) if isinstance(each, datetime) and each.tzinfo is None else each
        for each in values
    ]
    key = tuple(known) if part.shard_map.key_type.is_composite else known[0]
    return part.keys.contains(part.shard_map.encode_key(key))
