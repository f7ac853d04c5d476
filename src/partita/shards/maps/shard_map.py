"""List, range and hash shard maps as users hold them: lookups, shards, mappings, locks.

A map object holds no mappings itself: they are in the catalogs and, as far as they were seen, in
the cache. Rule: every change goes through the Executor, and its outcome goes into the cache; a
change that is refused drops the mappings that it named from the cache.

Reads of an administrator (get, find, mappings, shards) ask the global catalog unless they are told
otherwise. Routing asks the cache: it validates what it finds.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import URL, Connection

from partita.errors import (
    ConflictError,
    MappingNotFoundError,
    OperationPendingError,
    RangeError,
    ShardNotFoundError,
    UsageError,
)
from partita.shards.catalog import change_plans as operations
from partita.shards.catalog import global_catalog
from partita.shards.catalog.change_plans import MappingRow, MapRow, Plan, ShardRow
from partita.shards.catalog.executor import Build, Counters, Executor
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.connections.engines import Engines, check_driver, location_of
from partita.shards.keys.cache import MappingCache
from partita.shards.keys.mapping import Location, Mapping, MappingStatus, Shard, ShardStatus
from partita.shards.keys.ranges import (
    KeyRange,
    Range,
    decode_point,
    decode_range,
    encode_range,
    first_overlap,
)
from partita.shards.keys.schema import ShardedSchema
from partita.shards.keys.shard_key import BUCKET, KeyType, bucket_of, key_type_named
from partita.shards.maps.routes import Routes
from partita.shards.routing import offline
from partita.shards.routing.row_keys import RowKeys
from partita.ticks import Clock

Outcome = TypeVar("Outcome")
Lookup = Literal["cache", "store"]
Where = Shard | Location | URL | str
"""A shard, or what it is called by."""

RANGES_PER_QUERY = 200
"""How many new ranges are compared with what is mapped at a time."""
CACHED_ONE_BY_ONE_MAX = 200
"""Beyond this many new mappings the cache is built anew: each single one copies a chunk."""


class ShardMap(Routes):
    """What list, range and hash maps have in common."""

    def __init__(self, row: MapRow, executor: Executor, cache: MappingCache) -> None:
        self.id = row.id
        self.name = row.name
        self.kind = row.kind
        self.key_type: KeyType = key_type_named(row.key_type)
        self.cache = cache
        """The mappings that this process has seen."""
        self._encode = self._encoder(row)
        self._find_cached = cache.find
        """Kept bound, because a lookup takes about as long as finding its methods."""
        self.executor = executor
        self._shards_at: tuple[int, tuple[Shard, ...]] = (-1, ())
        """The shards of the last fan-out, and the epoch in which they were read."""
        self._row = row
        self._use_schema(None if row.schema is None else ShardedSchema.from_json(row.schema))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, key={self.key_type.name})"

    @property
    def engines(self) -> Engines:
        return self.executor.engines

    @property
    def clock(self) -> Clock:
        return self.executor.clock

    @property
    def counters(self) -> Counters:
        return self.executor.counters

    @property
    def schema(self) -> ShardedSchema | None:
        """Which tables are sharded, as it was given or stored; None where nobody said."""
        return self._schema

    @property
    def row_keys(self) -> RowKeys | None:
        """What routed connections check the rows with that they store; None without a schema."""
        return self._row_keys

    def row(self) -> MapRow:
        """Return the map as the catalogs keep it; its schema and epoch may be older."""
        return self._row

    def adopt_schema(self, schema: ShardedSchema) -> None:
        """Use this object for what is stored already: it knows its MetaData."""
        self._use_schema(schema)

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
        self._use_schema(schema)

    def _use_schema(self, schema: ShardedSchema | None) -> None:
        self._schema = schema
        self._row_keys = None if schema is None else RowKeys(schema, self._encode)

    # --- keys and ranges: what the kinds of maps do differently -----------------------------------

    def _encoder(self, _row: MapRow) -> Callable[[Any], bytes]:
        return self.key_type.encode

    def encode_key(self, key: Any) -> bytes:
        """Return the bytes by which the map orders the key; InvalidShardKeyError if it cannot."""
        return self._encode(key)

    def encode_range(self, given: Any) -> KeyRange:
        """Return what create_mapping() and mappings() are given, in bytes."""
        return encode_range(_checked_range(given), self.key_type)

    def encode_ranges(self, many: Iterable[Any]) -> list[KeyRange]:
        """Return what create_mappings() is given, in bytes."""
        return [self.encode_range(given) for given in _listed(many)]

    def decode_range(self, key_range: KeyRange) -> Range:
        return decode_range(key_range, self.key_type)

    # --- lookups ----------------------------------------------------------------------------------

    def get(self, key: Any, *, lookup: Lookup = "store") -> Mapping:
        """Return the mapping of a key; MappingNotFoundError where none holds it.

        `store` asks the global catalog; `cache` returns what this process has seen, which may be
        stale, and asks the catalog only for what it has not seen.
        """
        if lookup == "cache":
            cached = self._find_cached(self._encode(key))
            if cached is not None:
                return cached
        mapping = self.find(key, lookup="store")
        if mapping is None:
            raise MappingNotFoundError(
                "MappingNotFound",
                "No mapping holds this key.",
                facts={"map": self.name, "key": key},
                hint="Map it with create_mapping() first.",
            )
        return mapping

    def find(self, key: Any, *, lookup: Lookup = "store") -> Mapping | None:
        """Return the mapping of a key as `get()` does, or None."""
        return self.find_encoded(self._encode(key), lookup=lookup)

    def find_cached(self, key: Any) -> Mapping | None:
        """Return the mapping of a key if this process has seen it, without asking the store."""
        return self._find_cached(self._encode(key))

    def forget(self, mapping: Mapping) -> None:
        """Drop a mapping from the cache."""
        self.cache.remove(mapping.id)

    def find_encoded(self, key: bytes, *, lookup: Lookup = "store") -> Mapping | None:
        if lookup == "cache":
            mapping = self.cache.find(key)
            if mapping is not None:
                return mapping
        found = self.executor.read(lambda connection: self._find_row(connection, key))
        if found is None:
            self._forget_key(key)
            return None
        mapping = self._mapping(*found)
        self.cache.add(mapping)
        return mapping

    def mappings(self, range: Any = None, *, shard: Shard | None = None) -> list[Mapping]:  # noqa: A002 - the domain's word
        """Return the mappings, those that hold keys of the range, those of a shard, in order."""
        wanted = KeyRange() if range is None else self.encode_range(range)

        def read(connection: Connection) -> list[Mapping]:
            self._check_exists(connection)
            rows = global_catalog.list_mappings(
                connection,
                self.id,
                low=wanted.low,
                high=wanted.high,
                shard_id=None if shard is None else shard.id,
            )
            return list(self._mappings(rows))

        return self.executor.read(read)

    def shards(self) -> list[Shard]:
        def read(connection: Connection) -> list[Shard]:
            self._check_exists(connection)
            return [self.shard_of(row) for row in global_catalog.list_shards(connection, self.id)]

        return self.executor.read(read)

    def current_shards(self) -> list[Shard]:
        """Return the shards as of the map's epoch, which is all that is read if it is the same."""
        epoch = self.executor.read_epoch(self.id)
        if epoch is None:
            raise self._gone()
        known, shards = self._shards_at
        if known != epoch:
            # The list may be newer than the epoch, never older: then it is read once more.
            shards = tuple(self.shards())
            self._shards_at = (epoch, shards)
        return list(shards)

    def forget_shards(self) -> None:
        """Let the next `current_shards()` read the list."""
        self._shards_at = (-1, ())

    def get_shard(self, where: Where) -> Shard:
        """Return the shard at a location, as the global catalog has it now."""
        found = self.find_shard(where)
        if found is None:
            raise ShardNotFoundError(
                "ShardNotFound",
                "The database is no shard of this map.",
                facts={"map": self.name, "location": place_of(where).text},
                hint="shards() lists them; create_shard() adds one.",
            )
        return found

    def find_shard(self, where: Where) -> Shard | None:
        identity = place_of(where).identity

        def read(connection: Connection) -> ShardRow | None:
            self._check_exists(connection)
            return global_catalog.find_shard(connection, self.id, identity)

        row = self.executor.read(read)
        return None if row is None else self.shard_of(row)

    def load(self) -> None:
        """Read all mappings into the cache."""
        self.cache.load(self.mappings())

    def epoch(self) -> int:
        """Return a number that grows with every change of the map."""
        epoch = self.executor.read(
            lambda connection: global_catalog.read_epoch(connection, self.id)
        )
        if epoch is None:
            raise self._gone()
        return epoch

    # --- shards -----------------------------------------------------------------------------------

    def create_shard(self, url: URL | str | Location) -> Shard:
        """Register a database and put the local catalog into it.

        User and password of the URL are kept in this process only, never in a catalog.
        """
        location = self._remember(url)
        row = ShardRow(
            id=self.executor.new_id(),
            map_id=self.id,
            location=location.text,
            version=self.executor.new_id(),
            status=ShardStatus.ONLINE.value,
            last_operation="",
        )

        def build(locked: LockedMap, operation: str) -> Plan:
            existing = locked.find_shard_at(location.identity)
            return operations.create_shard(operation, locked.row, row, existing)

        return self.shard_of(self._run(build).shards_after[0])

    def delete_shard(self, shard: Shard) -> None:
        """Take a shard without mappings out of the map; the database itself is left alone."""

        def build(locked: LockedMap, operation: str) -> Plan:
            row = self._current_shard(locked, shard)
            return operations.delete_shard(
                operation, locked.row, row, locked.count_mappings(shard.id)
            )

        self._run(build)

    def update_shard(self, shard: Shard, *, status: ShardStatus) -> Shard:
        """Change the status of a shard: an offline one gets no more mappings.

        Those that it has go on until set_offline(); a shard object that was read before is stale.
        """
        version = self.executor.new_id()

        def build(locked: LockedMap, operation: str) -> Plan:
            row = self._current_shard(locked, shard)
            return operations.update_shard(
                operation, locked.row, row, version=version, status=status.value
            )

        plan = self._run(build)
        for mapping in self.cache.mappings():
            if mapping.shard == shard:
                self.cache.remove(mapping.id)
        return self.shard_of(plan.shards_after[0])

    # --- mappings ---------------------------------------------------------------------------------

    def create_mapping(
        self, keys: Any, shard: Where, *, status: MappingStatus = MappingStatus.ONLINE
    ) -> Mapping:
        """Give a range of keys (list maps: one key) to a shard; MappingExistsError if taken."""
        return self.create_mappings([keys], shard, status=status)[0]

    def create_mappings(
        self, many: Iterable[Any], shard: Where, *, status: MappingStatus = MappingStatus.ONLINE
    ) -> list[Mapping]:
        """Give many ranges or keys to one shard: all of them or none."""
        ranges = self.encode_ranges(many)
        if not ranges:
            return []
        shard_id = (shard if isinstance(shard, Shard) else self.get_shard(shard)).id
        clash = first_overlap(ranges)
        if clash is not None:
            raise RangeError(
                "RangesOverlap",
                "Two of the given ranges have keys in common.",
                facts={"map": self.name, "ranges": [self.decode_range(one) for one in clash]},
                hint="Give disjoint ranges.",
            )
        rows = [self._new_row(key_range, shard_id, status.value) for key_range in ranges]

        def build(locked: LockedMap, operation: str) -> Plan:
            row = locked.shard(shard_id)
            taken = self._taken(locked, ranges)
            return operations.create_mappings(operation, locked.row, row, rows, taken)

        return self._cached(self._run(build))

    def delete_mapping(self, mapping: Mapping, *, token: str | None = None) -> None:
        """Delete an offline mapping: its keys belong to no shard then."""

        def build(locked: LockedMap, operation: str) -> Plan:
            row = locked.mapping(mapping.id)
            shard = locked.shard(row.shard_id)
            return operations.delete_mapping(operation, locked.row, shard, row, token)

        self._cached(self._run(build, mapping))

    def update_mapping(
        self,
        mapping: Mapping,
        *,
        shard: Shard | None = None,
        status: MappingStatus | None = None,
        token: str | None = None,
    ) -> Mapping:
        """Change the shard (of an offline mapping) or the status; the new mapping has a new id."""
        if shard in {None, mapping.shard} and status in {None, mapping.status}:
            return self._unchanged(mapping, token)

        def build(locked: LockedMap, operation: str) -> Plan:
            row = locked.mapping(mapping.id)
            source = locked.shard(row.shard_id)
            target = source if shard is None else locked.shard(shard.id)
            changed = msgspec.structs.replace(
                row,
                id=self.executor.new_id(),
                shard_id=target.id,
                status=row.status if status is None else status.value,
            )
            return operations.update_mapping(
                operation, locked.row, (source, target), (row, changed), token
            )

        return self._cached(self._run(build, mapping))[0]

    def set_offline(
        self,
        mapping: Mapping,
        *,
        grace: float = offline.GRACE_SECONDS,
        terminate: bool = True,
        token: str | None = None,
    ) -> Mapping:
        """Refuse new transactions of the mapping, wait for open ones, terminate those that stay.

        Transactions of other mappings on the same shard go on. With `terminate=False` the new
        mapping is returned after the grace, whether or not transactions stay. Called on a mapping
        that is offline, this waits for the transactions that stayed, and raises
        OperationPendingError (MappingInUse) if they outlive the grace as well.
        """
        current = self._unchanged(mapping, token)
        if not current.is_online:
            fence = offline.drain(
                self.engines,
                self.clock,
                current.shard.location,
                current.id,
                grace=grace,
                terminate=terminate,
            )
            fence.close()
            return current
        changed: list[Mapping] = []

        def change() -> Mapping:
            changed.append(self.update_mapping(current, status=MappingStatus.OFFLINE, token=token))
            return changed[0]

        try:
            _, fence = offline.set_offline(
                self.engines, self.clock, current, change, grace=grace, terminate=terminate
            )
        except OperationPendingError:
            if terminate or not changed:
                raise
        else:
            fence.close()
        return changed[0]

    def set_online(self, mapping: Mapping, *, token: str | None = None) -> Mapping:
        return self.update_mapping(mapping, status=MappingStatus.ONLINE, token=token)

    # --- locks: they keep other administrators away, not readers or writers -----------------------

    def lock(self, mapping: Mapping, *, token: str | None = None) -> "MappingLock":
        """Lock a mapping against changes by others, until the lock is released.

        The lock is there when this returns. `with` gives the token and releases at the end; a
        token of your own survives the process.
        """
        owner = token or self.executor.new_id()

        def change(locked: LockedMap) -> None:
            operations.check_lock(locked.row, locked.mapping(mapping.id), None)
            locked.write_lock_owner([mapping.id], owner)

        self._decide(change, mapping)
        self._refresh(mapping.id, mapping.key_range.low, owner)
        return MappingLock(self, owner)

    def unlock(self, token: str, *, mapping: Mapping | None = None) -> int:
        """Release one mapping, or all that were locked with the token; return how many."""

        def change(locked: LockedMap) -> list[MappingRow]:
            if mapping is None:
                rows = locked.locked_by(token)
            else:
                rows = [locked.mapping(mapping.id)]
                operations.check_lock(locked.row, rows[0], token)
            locked.write_lock_owner([row.id for row in rows], None)
            return rows

        released = self._decide(change, *(() if mapping is None else (mapping,)))
        for row in released:
            self._refresh(row.id, row.low, None)
        return len(released)

    def force_unlock(self, mapping: Mapping) -> None:
        """Release a mapping whoever locked it: for owners that are gone."""

        def change(locked: LockedMap) -> None:
            locked.write_lock_owner([locked.mapping(mapping.id).id], None)

        self._decide(change, mapping)
        self._refresh(mapping.id, mapping.key_range.low, None)

    def lock_owner(self, mapping: Mapping) -> str | None:
        """Return the token that the mapping is locked with now."""
        return self._decide(lambda locked: locked.mapping(mapping.id).lock_owner, mapping)

    # --- inside -----------------------------------------------------------------------------------

    def _remember(self, url: URL | str | Location) -> Location:
        if not isinstance(url, Location):
            return self.engines.remember(url)
        check_driver(url)
        return url

    @contextmanager
    def _dropping_refused(self, *mappings: Mapping) -> Iterator[None]:
        """Drop the mappings from the cache when a change of them is refused.

        Not when a catalog or a shard cannot be reached: routing then needs what is cached.
        """
        try:
            yield
        except (ConflictError, UsageError):
            for mapping in mappings:
                self.forget(mapping)
            raise

    def _run(self, build: Build, *mappings: Mapping) -> Plan:
        """Carry out a change; `mappings` are those that it was planned for."""
        with self._dropping_refused(*mappings):
            return self.executor.run(self.id, self.name, build)

    def _decide(self, change: Callable[[LockedMap], Outcome], *mappings: Mapping) -> Outcome:
        with self._dropping_refused(*mappings):
            return self.executor.decide(self.id, self.name, change)

    def _cached(self, plan: Plan) -> list[Mapping]:
        for row in plan.removed:
            self.cache.remove(row.id)
        shards = {row.id: row for row in plan.shards_after}
        added = list(self._mappings((row, shards[row.shard_id]) for row in plan.added))
        if len(added) > CACHED_ONE_BY_ONE_MAX:
            ranges = sorted(mapping.key_range for mapping in added)
            cached = self.cache.mappings()
            kept = [one for one in cached if not _intersects_any(ranges, one.key_range)]
            self.cache.load([*kept, *added])
            return added
        for mapping in added:
            self.cache.add(mapping)
        return added

    def _refresh(self, mapping_id: str, low: bytes, lock_owner: str | None) -> None:
        cached = self.cache.find(low)
        if cached is not None and cached.id == mapping_id:
            self.cache.add(msgspec.structs.replace(cached, lock_owner=lock_owner))

    def _forget_key(self, key: bytes) -> None:
        stale = self.cache.find(key)
        if stale is not None:
            self.cache.remove(stale.id)

    def _unchanged(self, mapping: Mapping, token: str | None) -> Mapping:
        def change(locked: LockedMap) -> tuple[MappingRow, ShardRow]:
            row = locked.mapping(mapping.id)
            operations.check_lock(locked.row, row, token)
            return row, locked.shard(row.shard_id)

        return self._mapping(*self._decide(change, mapping))

    def _taken(self, locked: LockedMap, ranges: Sequence[KeyRange]) -> Iterator[str]:
        ordered = sorted(ranges)
        for start in range(0, len(ordered), RANGES_PER_QUERY):
            some = ordered[start : start + RANGES_PER_QUERY]
            span = KeyRange(some[0].low, some[-1].high)
            for row in locked.overlapping(
                span.low, span.high, limit=10 if len(some) == 1 else None
            ):
                held = KeyRange(row.low, row.high)
                if _intersects_any(some, held):
                    yield repr(self.decode_range(held))

    def _current_shard(self, locked: LockedMap, shard: Shard) -> ShardRow:
        row = locked.shard(shard.id)
        if row.version != shard.version:
            raise ConflictError(
                "StaleShard",
                "The shard was changed since it was read.",
                facts={"map": self.name, "location": shard.location.text},
                hint="Read it again with get_shard() and decide again.",
            )
        return row

    def _new_row(self, key_range: KeyRange, shard_id: str, status: str) -> MappingRow:
        return MappingRow(
            self.executor.new_id(), self.id, shard_id, key_range.low, key_range.high, status
        )

    def _find_row(self, connection: Connection, key: bytes) -> tuple[MappingRow, ShardRow] | None:
        found = global_catalog.find_by_key(connection, self.id, key)
        if found is None:
            self._check_exists(connection)
        return found

    def _check_exists(self, connection: Connection) -> None:
        if global_catalog.read_epoch(connection, self.id) is None:
            raise self._gone()

    def _gone(self) -> Exception:
        self.cache.clear()
        return global_catalog.map_not_found(self.name)

    def shard_of(self, row: ShardRow) -> Shard:
        location = Location.from_text(row.location)
        status = ShardStatus(row.status)
        return Shard(row.id, self.name, location, row.version, status, self._open)

    def _open(self, location: Location) -> Connection:
        return self.engines.for_location(location).connect()

    def _mapping(self, row: MappingRow, shard: ShardRow) -> Mapping:
        return self.mapping_of(row, self.shard_of(shard))

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

    def _mappings(self, rows: Iterable[tuple[MappingRow, ShardRow]]) -> Iterator[Mapping]:
        shards: dict[str, Shard] = {}
        for row, shard in rows:
            if shard.id not in shards:
                shards[shard.id] = self.shard_of(shard)
            yield self.mapping_of(row, shards[shard.id])


class MappingLock:
    """A lock that is held: a context manager that gives the token."""

    def __init__(self, shard_map: ShardMap, token: str) -> None:
        self.token = token
        self._map = shard_map

    def release(self) -> None:
        """Release every mapping that is locked with the token, changed ones too."""
        self._map.unlock(self.token)

    def __enter__(self) -> str:
        return self.token

    def __exit__(self, *_: object) -> None:
        self.release()


class ListShardMap(ShardMap):
    """Single keys, each mapped to a shard."""

    def encode_range(self, given: Any) -> KeyRange:
        if isinstance(given, Range) and not given.is_point:
            return encode_range(given, self.key_type)
        key = given.low if isinstance(given, Range) else given
        return KeyRange.point(self.key_type.encode(key))

    def decode_range(self, key_range: KeyRange) -> Range:
        return decode_point(key_range, self.key_type)

    def create_mappings(
        self, many: Iterable[Any], shard: Where, *, status: MappingStatus = MappingStatus.ONLINE
    ) -> list[Mapping]:
        keys = list(_listed(many))
        for key in keys:
            if isinstance(key, Range) and not key.is_point:
                raise RangeError(
                    "RangeInListMap",
                    "A list map maps single keys.",
                    facts={"map": self.name},
                    hint="Give one key, or use a range map.",
                )
        return super().create_mappings(keys, shard, status=status)

    def keys(self) -> list[Any]:
        """Return every mapped key, in order."""
        return [mapping.key for mapping in self.mappings()]


class RangeShardMap(ShardMap):
    """Half-open ranges of keys, each mapped to a shard."""

    def split(
        self, mapping: Mapping | None = None, *, at: Any, token: str | None = None
    ) -> tuple[Mapping, Mapping]:
        """Cut a mapping in two on its shard; no row of the application moves.

        Without a mapping the one that holds `at` is cut.
        """
        point = self.encode_bound(at)
        found = mapping or self.find_encoded(point)
        if found is None:
            raise MappingNotFoundError(
                "MappingNotFound",
                "No mapping holds the split point.",
                facts={"map": self.name, "at": at},
                hint="Split at a key that is mapped.",
            )

        def build(locked: LockedMap, operation: str) -> Plan:
            row = locked.mapping(found.id)
            shard = locked.shard(row.shard_id)
            low = msgspec.structs.replace(row, id=self.executor.new_id(), high=point)
            high = msgspec.structs.replace(row, id=self.executor.new_id(), low=point)
            return operations.split_mapping(operation, locked.row, shard, row, (low, high), token)

        low, high = self._cached(self._run(build, found))
        return low, high

    def merge(self, left: Mapping, right: Mapping, *, token: str | None = None) -> Mapping:
        """Join two mappings of one shard that touch, the lower one first."""

        def build(locked: LockedMap, operation: str) -> Plan:
            halves = locked.mapping(left.id), locked.mapping(right.id)
            shard = locked.shard(halves[0].shard_id)
            merged = msgspec.structs.replace(
                halves[0], id=self.executor.new_id(), high=halves[1].high
            )
            return operations.merge_mappings(operation, locked.row, shard, halves, merged, token)

        return self._cached(self._run(build, left, right))[0]

    def encode_bound(self, at: Any) -> bytes:
        return self.key_type.encode_bound(at)


class HashShardMap(RangeShardMap):
    """Keys spread over buckets by their hash; ranges, splits and bounds are in buckets."""

    buckets: int

    def _encoder(self, row: MapRow) -> Callable[[Any], bytes]:
        assert row.buckets is not None
        self.buckets = buckets = row.buckets
        encode = self.key_type.encode
        return lambda key: bucket_of(encode(key), buckets)

    def encode_range(self, given: Any) -> KeyRange:
        asked = _checked_range(given)
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


def _intersects_any(ordered: Sequence[KeyRange], held: KeyRange) -> bool:
    """Tell whether a range has keys in common with any of these, which are sorted and disjoint."""
    index = bisect_right(ordered, held.low, key=lambda one: one.low)
    return any(one.intersects(held) for one in ordered[max(index - 1, 0) : index + 1])


def place_of(where: Where) -> Location:
    """Return where a shard, a URL or a location is."""
    if isinstance(where, Shard):
        return where.location
    return where if isinstance(where, Location) else location_of(where)


def _listed(many: Iterable[Any]) -> Iterable[Any]:
    # A text is a list of letters to Python, and each of them would become a key.
    if isinstance(many, str | bytes | Range):
        raise RangeError(
            "InvalidRange",
            f"Mappings are given as a list, not as {type(many).__name__}.",
            hint="Put a single one into brackets: mappings=[…].",
        )
    return many


def _checked_range(given: Any) -> Range:
    if isinstance(given, Range):
        return given
    raise RangeError(
        "InvalidRange",
        f"A range is written Range(low, high), not as {type(given).__name__}.",
        hint="Range(None, None) holds every key.",
    )
