"""One shard map of an open catalog: its keys, its schema, its cache, and the executor of changes.

The operations on a map are functions of the other modules; `ShardMap` lists them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from sqlalchemy import URL, Connection

from partita.errors import RangeError
from partita.shards.catalog import global_catalog
from partita.shards.catalog.change_plans import MappingRow, MapRow, ShardRow
from partita.shards.catalog.executor import Counters, Executor
from partita.shards.connections.locations import location_of
from partita.shards.keys.cache import MappingCache
from partita.shards.keys.mapping import Location, Mapping, MappingStatus, Shard, ShardStatus
from partita.shards.keys.ranges import KeyRange, Range, decode_range, encode_range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.keys.shard_key import KeyType, key_type_named
from partita.shards.routing.row_keys import RowKeys
from partita.ticks import Clock

Where = Shard | Location | URL | str
"""A shard, or where it is."""


class OpenMap:
    """The state of a shard map in this process, and the encoding of its keys.

    It holds no mappings: they are in the catalogs and, as far as they were read, in the cache.
    """

    def __init__(self, row: MapRow, executor: Executor, cache: MappingCache) -> None:
        self.id = row.id
        self.name = row.name
        self.kind = row.kind
        self.key_type: KeyType = key_type_named(row.key_type)
        self.executor = executor
        self.engines = executor.engines
        self.cache = cache
        """The mappings that this process has read."""
        self.encode_key: Callable[[Any], bytes] = self._encoder(row)
        """Returns the bytes by which the map orders a key, or raises InvalidShardKeyError."""
        self.shards_at_epoch: tuple[int, tuple[Shard, ...]] = (-1, ())
        """The shards of the last fan-out, and the epoch at which they were read."""
        self._row = row
        self.adopt_schema(None if row.schema is None else ShardedSchema.from_json(row.schema))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, key={self.key_type.name})"

    @property
    def clock(self) -> Clock:
        return self.executor.clock

    @property
    def counters(self) -> Counters:
        return self.executor.counters

    def row(self) -> MapRow:
        """Return the map as the catalogs store it; its schema and epoch may be older."""
        return self._row

    def refresh(self, row: MapRow) -> None:
        """Use the row that was read now: another process may have stored another schema."""
        if row.schema != self._row.schema:
            self.adopt_schema(None if row.schema is None else ShardedSchema.from_json(row.schema))
        self._row = row

    def read_schema(self) -> ShardedSchema | None:
        """Return the schema as it is in the global catalog now."""
        row = self.executor.read(lambda connection: global_catalog.find_map(connection, self.name))
        if row is not None and row.id == self.id:
            self.refresh(row)
        return self.schema

    # --- the schema -------------------------------------------------------------------------------

    def adopt_schema(self, schema: ShardedSchema | None) -> None:
        """Use this object for the stored schema: it knows its MetaData."""
        self.schema = schema
        """The sharded tables, as given or stored; None if unknown."""
        self.row_keys = None if schema is None else RowKeys(schema, self.encode_key)
        """Checks the rows that routed connections store; None without a schema."""

    def set_schema(self, schema: ShardedSchema | None) -> None:
        """Store which tables are sharded by which column."""
        if schema is not None:
            schema.check_key_type(self.key_type)
        text = None if schema is None else schema.to_json()
        self.executor.decide(
            self.id,
            self.name,
            lambda locked: global_catalog.write_schema(locked.connection, self.id, text),
        )
        self.adopt_schema(schema)
        self._row = msgspec.structs.replace(self._row, schema=text)

    # --- keys and ranges, which each kind of map encodes differently ------------------------------

    def _encoder(self, _row: MapRow) -> Callable[[Any], bytes]:
        return self.key_type.encode

    def encode_range(self, given: Any) -> KeyRange:
        """Return the argument of create_mapping() and mappings() in bytes."""
        return encode_range(checked_range(given), self.key_type)

    def encode_given(self, given: Any) -> KeyRange:
        """Return the keys of a mapping, of a range, or a single key, in bytes."""
        if isinstance(given, Mapping):
            return given.key_range
        if isinstance(given, Range):
            return self.encode_range(given)
        return KeyRange.point(self.encode_key(given))

    def encode_ranges(self, many: Iterable[Any]) -> list[KeyRange]:
        """Return the argument of create_mappings() in bytes."""
        # A text is a sequence of letters, each of which would become a key.
        if isinstance(many, str | bytes | Range):
            raise RangeError(
                "InvalidRange",
                f"Mappings must be given as a list, not as {type(many).__name__}.",
                hint="Put a single one in brackets: mappings=[…].",
            )
        return [self._encode_new(given) for given in many]

    def _encode_new(self, given: Any) -> KeyRange:
        return self.encode_range(given)

    def encode_bound(self, at: Any) -> bytes:
        """Return the bytes of a bound, at which a mapping can be split."""
        return self.key_type.encode_bound(at)

    def decode_range(self, key_range: KeyRange) -> Range:
        return decode_range(key_range, self.key_type)

    # --- rows of the catalogs as values -----------------------------------------------------------

    def shard_of(self, row: ShardRow) -> Shard:
        location = Location.from_text(row.location)
        return Shard(
            row.id, self.name, location, row.version, ShardStatus(row.status), self._connect
        )

    def _connect(self, location: Location) -> Connection:
        return self.engines.for_location(location).connect()

    def mapping_of(self, row: MappingRow, shard: Shard) -> Mapping:
        key_range = KeyRange(row.low, row.high)
        return Mapping(
            row.id,
            self.name,
            shard,
            key_range,
            self.decode_range(key_range),
            MappingStatus(row.status),
            row.lock_owner,
        )


def mappings_of(
    shard_map: OpenMap, rows: Iterable[tuple[MappingRow, ShardRow]]
) -> Iterator[Mapping]:
    """Yield the mappings of the rows; mappings of one shard share its object."""
    shards: dict[str, Shard] = {}
    for row, shard in rows:
        if shard.id not in shards:
            shards[shard.id] = shard_map.shard_of(shard)
        yield shard_map.mapping_of(row, shards[shard.id])


def checked_range(given: Any) -> Range:
    if isinstance(given, Range):
        return given
    raise RangeError(
        "InvalidRange",
        f"A range must be a Range(low, high), not {type(given).__name__}.",
        hint="Range(None, None) holds all keys.",
    )


def place_of(where: Where) -> Location:
    """Return the location of a shard or a URL."""
    if isinstance(where, Shard):
        return where.location
    return where if isinstance(where, Location) else location_of(where)
