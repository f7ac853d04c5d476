"""Rows that a database brings along: each must belong to a mapping that the database will have.

Keys are read once each and compared as the map compares them, in Python: that is right for every
type of key, for hash maps, and for databases that sort text in their own way.
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
    """Refuse a database with rows whose sharding keys lie outside the ranges."""
    schema = shard_map.schema
    if schema is None:
        raise ConfigurationError(
            "ShardedSchemaMissing",
            "The map does not say which tables are sharded by which column.",
            facts={"map": shard_map.name},
            hint="Give it a schema: shard_map.set_schema(ShardedSchema(metadata, keys={…})).",
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
            "Rows have sharding keys that no mapping of this shard would hold: "
            + ", ".join(f"{rows} in {name}" for name, rows in outside.items())
            + ".",
            facts={"map": shard_map.name, "rows": sum(outside.values())},
            hint="Map those keys too, or delete the rows: nobody could reach them.",
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
    # SQLite keeps no zone: what SQLAlchemy wrote there was UTC, as the map's keys are.
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
