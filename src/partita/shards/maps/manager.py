"""ShardMapManager: creates, opens and repairs a catalog, and returns its shard maps.

One manager per process and catalog is enough: it owns the engines, the caches and the counters.
Rule: its knowledge is a cache; the global catalog is authoritative.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, overload

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from partita.clock import SystemClock
from partita.errors import (
    ShardInUseError,
    ShardMapExistsError,
    ShardMapNotFoundError,
    UsageError,
)
from partita.shards.catalog import global_catalog, local_catalog
from partita.shards.catalog.change_plans import MapRow
from partita.shards.catalog.executor import Ending, Executor, catalog_unreachable, unreachable
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.connections.engines import Credentials, Engines
from partita.shards.connections.locations import create_file, file_of
from partita.shards.keys.cache import MappingCache
from partita.shards.keys.mapping import Location
from partita.shards.keys.schema import ShardedSchema
from partita.shards.keys.shard_key import BUCKETS_MAX, key_type
from partita.shards.maps.recovery import Recovery, check_choice
from partita.shards.maps.shard_map import HashShardMap, ListShardMap, RangeShardMap
from partita.shards.maps.shard_meter import ShardMeter
from partita.ticks import Clock

IfExists = Literal["fail", "keep", "replace"]
Load = Literal["lazy", "eager"]
Kind = Literal["list", "range", "hash"]
AnyShardMap = ListShardMap | RangeShardMap | HashShardMap

MAP_NAME_MAX = 50
"""The maximum length of the name of a shard map."""

DEPLOY_TRIES = 50
DEPLOY_PAUSE_SECONDS = 0.05

_KINDS: dict[str, type[AnyShardMap]] = {
    "list": ListShardMap,
    "range": RangeShardMap,
    "hash": HashShardMap,
}


class ShardMapManager:
    """The shard maps of one catalog; call create(), open() or try_open() to get one."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.engines = executor.engines
        self._maps: dict[str, AnyShardMap] = {}
        """By name, as last read."""
        self._meter = ShardMeter(self)

    # --- creating and opening ---------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        url: str | URL,
        *,
        if_exists: IfExists = "fail",
        load: Load = "lazy",
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> "ShardMapManager":
        """Create a catalog in a database.

        If there is one already, "replace" deletes it with all its maps (rows of shards stay), and
        "keep" opens it.
        """
        check_choice("if_exists", if_exists, ("fail", "keep", "replace"))
        executor = _executor(url, credentials, clock, engine_options)
        with _disposed_on_error(executor):
            create_file(executor.catalog)
            _deploy_in_turn(executor, if_exists)
            return _loaded(cls(executor), load)

    @classmethod
    def open(
        cls,
        url: str | URL,
        *,
        load: Load = "lazy",
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> "ShardMapManager":
        """Open an existing catalog, or raise ShardMapNotFoundError."""
        executor = _executor(url, credentials, clock, engine_options)
        with _disposed_on_error(executor):
            if not _has_catalog(executor):
                raise ShardMapNotFoundError(
                    "CatalogNotFound",
                    "The database has no catalog.",
                    facts={"catalog": executor.catalog.text},
                    hint="Create one with ShardMapManager.create().",
                )
            return _loaded(cls(executor), load)

    @classmethod
    def try_open(
        cls,
        url: str | URL,
        *,
        load: Load = "lazy",
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> "ShardMapManager | None":
        """Open an existing catalog, or return None."""
        try:
            return cls.open(
                url, load=load, credentials=credentials, clock=clock, engine_options=engine_options
            )
        except ShardMapNotFoundError:
            return None

    def close(self) -> None:
        """Close all connections of this manager."""
        self.engines.dispose()

    async def aclose(self) -> None:
        """Close all connections of this manager, including those of async sessions."""
        await self.engines.adispose()

    def __enter__(self) -> "ShardMapManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ShardMapManager({self.location.text!r})"

    @property
    def location(self) -> Location:
        return self.executor.catalog

    @property
    def clock(self) -> Clock:
        return self.executor.clock

    # --- maps -------------------------------------------------------------------------------------

    def create_list_map(
        self, name: str, *, key: object, schema: ShardedSchema | None = None
    ) -> ListShardMap:
        made = self._create_map("list", name, key, None, schema)
        assert isinstance(made, ListShardMap)
        return made

    def create_range_map(
        self, name: str, *, key: object, schema: ShardedSchema | None = None
    ) -> RangeShardMap:
        made = self._create_map("range", name, key, None, schema)
        assert isinstance(made, RangeShardMap)
        return made

    def create_hash_map(
        self, name: str, *, key: object, buckets: int = 1024, schema: ShardedSchema | None = None
    ) -> HashShardMap:
        """Create a map that distributes keys evenly; the number of buckets is fixed."""
        _check_buckets(buckets)
        made = self._create_map("hash", name, key, buckets, schema)
        assert isinstance(made, HashShardMap)
        return made

    @overload
    def get_map(
        self, name: str, *, kind: Literal["list"], key: object | None = None
    ) -> ListShardMap: ...
    @overload
    def get_map(
        self, name: str, *, kind: Literal["hash"], key: object | None = None
    ) -> HashShardMap: ...
    @overload
    def get_map(
        self, name: str, *, kind: Literal["range"], key: object | None = None
    ) -> RangeShardMap: ...
    @overload
    def get_map(
        self, name: str, *, kind: Kind | None = None, key: object | None = None
    ) -> AnyShardMap: ...
    def get_map(
        self, name: str, *, kind: Kind | None = None, key: object | None = None
    ) -> AnyShardMap:
        """Return a map; `kind` and `key`, if given, must match it."""
        found = self.find_map(name)
        if found is None:
            raise global_catalog.map_not_found(name)
        asked = found.key_type if key is None else key_type(key)
        if kind not in {None, found.kind} or asked != found.key_type:
            raise UsageError(
                "ShardMapMismatch",
                "The shard map has another kind or key type than requested.",
                facts={"map": name, "kind": found.kind, "key": found.key_type.name},
                hint="Pass its kind= and key=, or omit both.",
            )
        return found

    def find_map(self, name: str) -> AnyShardMap | None:
        """Return a map, or None."""
        row = self.executor.read(lambda connection: global_catalog.find_map(connection, name))
        if row is None:
            self._maps.pop(name, None)
            return None
        return self._map(row)

    def list_maps(self) -> list[AnyShardMap]:
        rows = self.executor.read(global_catalog.list_maps)
        return [self._map(row) for row in rows]

    def delete_map(self, name: str) -> None:
        """Delete a map without shards; do nothing if it does not exist."""
        found = self.find_map(name)
        if found is None:
            return
        self.executor.decide(found.id, name, self._delete_map)
        found.cache.clear()
        self._maps.pop(name, None)

    def _create_map(
        self, kind: Kind, name: str, key: object, buckets: int | None, schema: ShardedSchema | None
    ) -> AnyShardMap:
        _check_name(name)
        declared = key_type(key)
        if schema is not None:
            schema.check_key_type(declared)
        text = None if schema is None else schema.to_json()
        row = MapRow(self.executor.new_id(), name, kind, declared.name, buckets, text)
        try:
            with self.executor.engine.begin() as connection:
                global_catalog.insert_map(connection, row)
                self.executor.fault("map inserting")
        except IntegrityError as error:
            raise ShardMapExistsError(
                "ShardMapExists",
                "A shard map with this name already exists.",
                facts={"map": name},
                hint="Use get_map(), or choose another name.",
            ) from error
        except DBAPIError as error:
            raise catalog_unreachable(self.location) from error
        made = self._map(row)
        if schema is not None:
            made.adopt_schema(schema)
        return made

    def _delete_map(self, locked: LockedMap) -> None:
        if locked.has_shards():
            raise ShardInUseError(
                "ShardMapHasShards",
                "The shard map still has shards.",
                facts={"map": locked.row.name},
                hint="Delete its mappings and shards first.",
            )
        global_catalog.delete_map(locked.connection, locked.row.id)
        self.executor.fault("map deleting")

    def _map(self, row: MapRow) -> AnyShardMap:
        known = self._maps.get(row.name)
        if known is not None and known.id == row.id:
            known.refresh(row)
            return known
        made = _KINDS[row.kind](row, self.executor, MappingCache())
        return self._maps.setdefault(row.name, made) if known is None else self._replace(made)

    def _replace(self, made: AnyShardMap) -> AnyShardMap:
        self._maps[made.name] = made
        return made

    # --- maintenance ------------------------------------------------------------------------------

    def repair(self) -> dict[str, Ending]:
        """End the unfinished changes whose processes have died; return how each ended."""
        return self.executor.repair()

    @property
    def recovery(self) -> Recovery:
        """Compare and rebuild catalogs after a restore, a failover or a loss."""
        return Recovery(self.executor, self.find_map, self.list_maps)

    def list_locations(self) -> list[Location]:
        """Return the location of every shard of every map, once."""
        found = self.executor.read(global_catalog.list_locations)
        return [Location.from_text(one) for one in found]

    def upgrade_store(self) -> None:
        """Upgrade the global catalog, then all local catalogs, to the version of this program."""
        try:
            with self.executor.engine.begin() as connection:
                global_catalog.upgrade(connection)
        except DBAPIError as error:
            raise catalog_unreachable(self.location) from error
        for location in self.list_locations():
            try:
                with self.executor.on_shard(location.text) as connection:
                    local_catalog.upgrade(connection)
            except DBAPIError as error:
                raise unreachable(location.text) from error

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events in this process, which only grow.

        lookups, hits, misses, adds and removes of the caches; routes, reroutes, refused and retries
        of routing; fan_outs, fan_out_shards and fan_out_failures; moves and move_rows; operations,
        operations_undone and operations_finished of the catalogs.
        """
        totals = {"routes": self.engines.routes, **vars(self.executor.counters)}
        for shard_map in list(self._maps.values()):
            for name, count in shard_map.cache.counters().items():
                totals[name] = totals.get(name, 0) + count
        totals["lookups"] = totals.get("hits", 0) + totals.get("misses", 0)
        return totals


def _executor(
    url: str | URL,
    credentials: Credentials | None,
    clock: Clock | None,
    engine_options: Mapping[str, Any] | None,
) -> Executor:
    engines = Engines(credentials=credentials, options=engine_options)
    return Executor(engines, engines.remember(url), clock or SystemClock())


def _deploy_in_turn(executor: Executor, if_exists: IfExists) -> None:
    for _ in range(DEPLOY_TRIES - 1):
        try:
            return _deploy(executor, if_exists)
        except OperationalError as error:
            # Many processes may start at once, and SQLite does not wait for the lock while a file
            # is initialized.
            if "locked" not in str(error):
                raise
        time.sleep(DEPLOY_PAUSE_SECONDS)
    return _deploy(executor, if_exists)


def _deploy(executor: Executor, if_exists: IfExists) -> None:
    with executor.engine.begin() as connection:
        if if_exists == "replace":
            global_catalog.drop(connection)
        if global_catalog.deploy(connection) or if_exists == "keep":
            return
    raise ShardMapExistsError(
        "CatalogExists",
        "The database already has a catalog.",
        facts={"catalog": executor.catalog.text},
        hint='Use open(), or create(…, if_exists="keep" or "replace").',
    )


def _has_catalog(executor: Executor) -> bool:
    file = file_of(executor.catalog)
    if file is not None and not file.exists():
        return False
    with executor.engine.connect() as connection:
        return global_catalog.is_deployed(connection)


def _loaded(manager: ShardMapManager, load: Load) -> ShardMapManager:
    check_choice("load", load, ("lazy", "eager"))
    with manager.executor.engine.connect() as connection:
        global_catalog.check_version(connection)
    if load == "eager":
        for shard_map in manager.list_maps():
            shard_map.load()
    return manager


@contextlib.contextmanager
def _disposed_on_error(executor: Executor) -> Iterator[None]:
    """Close all connections if the manager cannot be created."""
    try:
        yield
    except DBAPIError as error:
        executor.engines.dispose()
        raise catalog_unreachable(executor.catalog) from error
    except BaseException:
        executor.engines.dispose()
        raise


def _check_name(name: object) -> None:
    if (
        isinstance(name, str)
        and 1 <= len(name) <= MAP_NAME_MAX
        and name.isprintable()
        and name == name.strip()
    ):
        return
    raise UsageError(
        "InvalidShardMapName",
        "The name of a shard map must be 1 to 50 printable characters without outer spaces.",
        facts={"name": name},
        hint="Choose another name.",
    )


def _check_buckets(buckets: object) -> None:
    if isinstance(buckets, int) and 1 <= buckets <= BUCKETS_MAX:
        return
    raise UsageError(
        "InvalidBuckets",
        "The number of buckets is out of range.",
        facts={"buckets": buckets, "least": 1, "most": BUCKETS_MAX},
        hint="Choose a few buckets for each shard that you may ever need.",
    )
