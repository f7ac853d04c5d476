"""Check the rows of a database before it is adopted: each must belong to one of its mappings.

Each distinct key is read once and encoded in Python as the map does, which is correct for all key
types, for hash maps, and whatever the collation of the database.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, MetaData, Table, func, select

from partita.errors import ConfigurationError, InvalidShardKeyError, SchemaMismatchError
from partita.shards.keys.ranges import KeyRange
from partita.shards.keys.schema import ShardedTable
from partita.shards.maps.shard_map import ShardMap

KEYS_PER_FETCH = 10_000


def check_rows(
    connection: Connection,
    shard_map: ShardMap,
    asked: Sequence[KeyRange],
    metadata: MetaData | None,
) -> None:
    """Refuse a database with rows whose sharding keys are outside the ranges."""
    schema = shard_map.schema
    if schema is None:
        raise ConfigurationError(
            "ShardedSchemaMissing",
            "The map has no schema, so its sharding columns are unknown.",
            facts={"map": shard_map.name},
            hint="Call shard_map.set_schema(ShardedSchema(metadata, keys={…})).",
        )
    known = schema.metadata if schema.metadata is not None else metadata
    outside = {
        table.name: rows
        for table in schema.sharded_tables()
        if (
            rows := _count_outside(
                connection, shard_map, sorted(asked), _table(connection, table, known), table
            )
        )
    }
    connection.rollback()
    if outside:
        raise SchemaMismatchError(
            "RowsOutsideMappings",
            "Some rows have sharding keys outside the mappings of this shard: "
            + ", ".join(f"{rows} in {name}" for name, rows in outside.items())
            + ".",
            facts={"map": shard_map.name, "rows": sum(outside.values())},
            hint="Map those keys as well, or delete the rows: routing could not reach them.",
        )


def _table(connection: Connection, sharded: ShardedTable, metadata: MetaData | None) -> Table:
    if metadata is not None and sharded.name in metadata.tables:
        return metadata.tables[sharded.name]
    return Table(sharded.table, MetaData(), schema=sharded.schema, autoload_with=connection)


def _count_outside(
    connection: Connection,
    shard_map: ShardMap,
    ranges: list[KeyRange],
    table: Table,
    sharded: ShardedTable,
) -> int:
    lows = [each.low for each in ranges]

    def is_inside(values: tuple[Any, ...]) -> bool:
        try:
            key = shard_map.encode_key(values if shard_map.key_type.is_composite else values[0])
        except InvalidShardKeyError:
            return False
        place = bisect_right(lows, key) - 1
        return place >= 0 and ranges[place].contains(key)

    counted = _count_keys(connection, table, sharded.columns)
    return sum(rows for values, rows in counted if not is_inside(values))


def _count_keys(
    connection: Connection, table: Table, names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], int]]:
    by_name = {column.name: column for column in table.columns}
    columns = [by_name[name] for name in names]
    query = select(*columns, func.count()).group_by(*columns)
    found = connection.execution_options(yield_per=KEYS_PER_FETCH).execute(query)
    for *values, rows in found:
        yield tuple(_aware(value) for value in values), rows


def _aware(value: Any) -> Any:
    # SQLite stores no time zone; stored values are UTC, as are the keys of the map.
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
