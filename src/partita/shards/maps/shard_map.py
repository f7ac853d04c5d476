"""List, range and hash shard maps as users hold them.

`ShardMap` is the list of all operations on a map. Each is a function, of the module named beside
it, whose first argument is the map.
"""

from collections.abc import Callable
from typing import Any

from partita.errors import RangeError
from partita.shards.catalog.change_plans import MapRow
from partita.shards.fan_out.fan_out import fan_out
from partita.shards.fan_out.tasks import afan_out
from partita.shards.keys.ranges import KeyRange, Range, decode_point, decode_range, encode_range
from partita.shards.keys.shard_key import BUCKET, bucket_of
from partita.shards.maps import (
    lookups,
    mapping_changes,
    mapping_locks,
    shard_changes,
    shard_connections,
)
from partita.shards.maps.async_map import AsyncShardMap
from partita.shards.maps.open_map import OpenMap, checked_range
from partita.shards.routing import retry, router, session


class ShardMap(OpenMap):
    """The operations that list, range and hash maps have in common."""

    get = lookups.get
    find = lookups.find
    resolve = lookups.resolve
    find_cached = lookups.find_cached
    find_encoded = lookups.find_encoded
    forget = lookups.forget
    load = lookups.load
    mappings = lookups.mappings
    shards = lookups.shards
    current_shards = lookups.current_shards
    forget_shards = lookups.forget_shards
    get_shard = lookups.get_shard
    find_shard = lookups.find_shard
    epoch = lookups.epoch

    create_shard = shard_changes.create_shard
    delete_shard = shard_changes.delete_shard
    update_shard = shard_changes.update_shard

    create_mapping = mapping_changes.create_mapping
    create_mappings = mapping_changes.create_mappings
    delete_mapping = mapping_changes.delete_mapping
    update_mapping = mapping_changes.update_mapping
    set_offline = mapping_changes.set_offline
    set_online = mapping_changes.set_online

    lock = mapping_locks.lock
    unlock = mapping_locks.unlock
    force_unlock = mapping_locks.force_unlock
    lock_owner = mapping_locks.lock_owner

    connect = router.connect
    aconnect = router.aconnect
    connect_shard = shard_connections.connect_shard
    sessionmaker = session.sessionmaker
    async_sessionmaker = session.async_sessionmaker
    scoped_session = session.scoped_session
    begin = session.begin
    run = retry.run
    arun = retry.arun
    routed = retry.routed
    fan_out = fan_out
    afan_out = afan_out

    @property
    def aio(self) -> AsyncShardMap:
        """The operations on rows for asyncio, under the same names."""
        return AsyncShardMap(self)


class ListShardMap(ShardMap):
    """Single keys, each mapped to a shard."""

    def encode_range(self, given: Any) -> KeyRange:
        if isinstance(given, Range) and not given.is_point:
            return encode_range(given, self.key_type)
        key = given.low if isinstance(given, Range) else given
        return KeyRange.point(self.key_type.encode(key))

    def _encode_new(self, given: Any) -> KeyRange:
        if isinstance(given, Range) and not given.is_point:
            raise RangeError(
                "RangeInListMap",
                "A list map maps single keys, not ranges.",
                facts={"map": self.name},
                hint="Give one key, or use a range map.",
            )
        return self.encode_range(given)

    def decode_range(self, key_range: KeyRange) -> Range:
        return decode_point(key_range, self.key_type)

    def keys(self) -> list[Any]:
        """Return all mapped keys, in order."""
        return [mapping.key for mapping in self.mappings()]


class RangeShardMap(ShardMap):
    """Half-open ranges of keys, each mapped to a shard."""

    split = mapping_changes.split
    merge = mapping_changes.merge


class HashShardMap(RangeShardMap):
    """Keys distributed over buckets by their hash; ranges, splits and bounds are in buckets."""

    buckets: int

    def _encoder(self, row: MapRow) -> Callable[[Any], bytes]:
        assert row.buckets is not None
        self.buckets = buckets = row.buckets
        encode = self.key_type.encode
        return lambda key: bucket_of(encode(key), buckets)

    def encode_range(self, given: Any) -> KeyRange:
        asked = checked_range(given)
        low = 0 if asked.low is None else asked.low
        high = self.buckets if asked.high is None else asked.high
        key_range = encode_range(Range(low, high), BUCKET)
        if high > self.buckets:
            raise RangeError(
                "BucketOutside",
                f"The map has the buckets 0 to {self.buckets - 1}.",
                facts={"map": self.name, "range": asked},
                hint="End the range at the number of buckets, or at None.",
            )
        return key_range

    def decode_range(self, key_range: KeyRange) -> Range:
        return decode_range(key_range, BUCKET)

    def encode_bound(self, at: Any) -> bytes:
        return BUCKET.encode_bound(at)
