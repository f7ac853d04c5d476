"""Find the shard of a key and return a connection to it in a validated transaction.

Steps: look up the mapping in the cache, connect, BEGIN, validate on the same connection. If the
shard does not have the mapping, repeat once with the mapping of the global catalog. Rule: every
BEGIN on a routed connection calls its `MappingEntry`, so that no statement runs without validation.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import PoolProxiedConnection as Pooled
from sqlalchemy.util import await_only, greenlet_spawn

from partita.errors import (
    MappingOfflineError,
    ShardOfflineError,
    StaleMappingError,
    TransactionUseError,
    UsageError,
)
from partita.shards.catalog import change_plans
from partita.shards.connections import validation
from partita.shards.connections.engines import ENTRY, Engines
from partita.shards.connections.locations import parsed_url
from partita.shards.connections.validation import Admission
from partita.shards.keys.mapping import Mapping, MappingStatus
from partita.shards.routing.row_keys import RowKeys
from partita.ticks import Clock

Validate = Literal["always", "lease", "never"]

DEAD_CONNECTIONS_MAX = 2
"""How many broken pooled connections are replaced before the shard counts as unreachable."""
_UNDEFINED = ("42883", "42P01")
"""SQLSTATEs of an undefined function and an undefined table."""
ASK_SECONDS_MIN, ASK_SECONDS_MAX = 5.0, 30.0
"""The pause between reads of the global catalog for an unreachable shard; it doubles."""


class RoutingOptions(NamedTuple):
    """The options of a routed connection; see `connect`."""

    validate: Validate = "always"
    isolation_level: str | None = None
    check_keys: bool = True
    writes: bool = False
    """Whether transactions on SQLite begin with the write lock of the file."""
    login: URL | None = None
    """The user and the password of the connection; None: those of the manager."""


class ConnectOptions(TypedDict, total=False):
    """The options of `connect` and `aconnect`."""

    validate: Validate
    isolation_level: str | None
    check_keys: bool
    writes: bool
    credentials: URL | str | None


class RoutedMap(Protocol):
    """The part of a shard map that the router uses."""

    @property
    def name(self) -> str: ...
    @property
    def engines(self) -> Engines: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def counters(self) -> Any: ...
    @property
    def row_keys(self) -> RowKeys | None: ...

    def get(self, key: Any, *, lookup: Literal["cache", "store"]) -> Mapping:
        """Return the mapping of the key; "store" bypasses the cache and updates it."""
        ...

    def find_cached(self, key: Any) -> Mapping | None:
        """Return the mapping of the key from the cache only."""
        ...

    def forget(self, mapping: Mapping) -> None:
        """Remove the mapping from the cache."""
        ...


def connect(  # noqa: PLR0913 - options by name
    shard_map: RoutedMap,
    key: Any,
    *,
    validate: Validate = "always",
    isolation_level: str | None = None,
    check_keys: bool = True,
    writes: bool = False,
    credentials: URL | str | None = None,
) -> Connection:
    """Return a connection to the key's shard, in a validated transaction.

    Use it in a `with` block: the end of the block rolls back what was not committed. After a commit
    the next statement validates again; if the mapping has moved, it raises StaleMappingError,
    because the connection cannot follow it. Rows of other mappings are refused (WrongShardKeyError)
    unless `check_keys` is False. With `writes`, transactions on SQLite begin with the write lock of
    the file. `credentials` is a URL with the user and the password of this connection, which has a
    pool of its own; the global catalog is read with those of the manager.
    """
    options = RoutingOptions(validate, isolation_level, check_keys, writes, login_of(credentials))
    return _route(_Route(shard_map), key, options)


@asynccontextmanager
async def aconnect(  # noqa: PLR0913 - options by name
    shard_map: RoutedMap,
    key: Any,
    *,
    validate: Validate = "always",
    isolation_level: str | None = None,
    check_keys: bool = True,
    writes: bool = False,
    credentials: URL | str | None = None,
) -> AsyncIterator[AsyncConnection]:
    """Return an async connection as `connect()` does: `async with map.aconnect(key) as …`."""
    path = _AsyncRoute(shard_map)
    options = RoutingOptions(validate, isolation_level, check_keys, writes, login_of(credentials))
    routed = await greenlet_spawn(_route, path, key, options)
    connection = AsyncConnection(path.async_engine(routed), routed)
    try:
        yield connection
    finally:
        await asyncio.shield(connection.close())


def route(shard_map: RoutedMap, key: Any, options: RoutingOptions, *, is_async: bool) -> Connection:
    """Return a routed connection; with `is_async`, inside the greenlet of an async session."""
    return _route(_AsyncRoute(shard_map) if is_async else _Route(shard_map), key, options)


def login_of(credentials: URL | str | None) -> URL | None:
    """Return the `credentials=` of a connection or a session as a URL."""
    return None if credentials is None else parsed_url(credentials)


def entry_of(connection: Connection) -> "MappingEntry | None":
    """Return what admits the transactions of a routed connection; None for other connections."""
    entry = None if connection.closed else connection.info.get(ENTRY)
    return entry if isinstance(entry, MappingEntry) else None


class _Route:
    """Looks up mappings and finds engines in the caller's thread."""

    def __init__(self, shard_map: RoutedMap) -> None:
        self.map = shard_map
        self.engines = shard_map.engines

    def engine(self, mapping: Mapping, login: URL | None) -> Engine:
        return self.engines.for_location(mapping.shard.location, is_routed=True, login=login)

    def find(self, key: Any) -> Mapping:
        return self.map.get(key, lookup="cache")

    def look_up(self, key: Any) -> Mapping:
        return self.map.get(key, lookup="store")


class _AsyncRoute(_Route):
    """Does the same in a greenlet of SQLAlchemy: blocking calls run in a thread."""

    def engine(self, mapping: Mapping, login: URL | None) -> Engine:
        location = mapping.shard.location
        self._engine = self.engines.async_for_location(location, is_routed=True, login=login)
        return self._engine.sync_engine

    def async_engine(self, connection: Connection) -> Any:
        assert self._engine.sync_engine is connection.engine
        return self._engine

    def find(self, key: Any) -> Mapping:
        found = self.map.find_cached(key)
        return found or await_only(asyncio.to_thread(self.map.get, key, lookup="cache"))

    def look_up(self, key: Any) -> Mapping:
        return await_only(asyncio.to_thread(self.map.get, key, lookup="store"))


def check_validate(validate: str) -> None:
    """Refuse an unknown value of `validate=`."""
    if validate not in _CHECKS:
        raise UsageError(
            "UnknownValidation",
            f"validate={validate!r} is not an option.",
            hint='Use validate="always", "lease" or "never".',
        )


def _route(path: _Route, key: Any, options: RoutingOptions) -> Connection:
    check_validate(options.validate)
    try:
        return _route_with_retry(path, key, options)
    except MappingOfflineError:
        path.map.counters.refused += 1
        raise


def _route_with_retry(path: _Route, key: Any, options: RoutingOptions) -> Connection:
    mapping = path.find(key)
    if mapping.status is not MappingStatus.ONLINE:
        # An offline mapping comes online under a new id, which only the global catalog has.
        mapping = path.look_up(key)
    try:
        return _open(path, key, mapping, options)
    except _GoneError:
        path.map.forget(mapping)
        fresh = path.look_up(key)
    except ShardOfflineError:
        found = _look_up_moved(path, key, mapping)
        if found is None:
            raise
        fresh = found
    path.map.counters.reroutes += 1
    if _is_same(fresh, mapping):
        raise _refusal("gone", mapping)
    try:
        return _open(path, key, fresh, options)
    except _GoneError as error:
        path.map.forget(fresh)
        raise _stale(fresh) from error


def _open(path: _Route, key: Any, mapping: Mapping, options: RoutingOptions) -> Connection:
    if mapping.status is not MappingStatus.ONLINE:
        raise _refusal("offline", mapping)
    engine = path.engine(mapping, options.login)
    row_keys = path.map.row_keys if options.check_keys else None
    for broken in range(DEAD_CONNECTIONS_MAX + 1):
        try:
            connection = engine.connect()
        except (DBAPIError, OSError) as error:  # asyncpg raises the errors of the system as well
            raise _unreachable(mapping) from error
        try:
            if options.isolation_level is not None:
                _set_isolation(connection, options.isolation_level)
            connection.info[ENTRY] = MappingEntry(key, mapping, options, row_keys)
            connection.begin()
        except DBAPIError as error:
            connection.close()
            if not error.connection_invalidated:
                if _lacks_catalog(error):
                    location = mapping.shard.location.text
                    raise change_plans.local_catalog_differs(mapping.map_name, location) from error
                raise
            # No statement of the caller ran on it, so a broken connection is simply replaced.
            if broken:
                engine.dispose()
        except BaseException:
            connection.close()
            raise
        else:
            if path.engines.pauses:
                path.engines.pauses.pop(mapping.shard.id, None)
            path.engines.routes += 1
            return connection
    raise _unreachable(mapping)


def _lacks_catalog(error: DBAPIError) -> bool:
    # An empty database at the location of the shard has neither partita_enter() nor the tables.
    state = getattr(error.orig, "sqlstate", None)
    return state in _UNDEFINED or "no such table: partita_local_mappings" in str(error.orig)


def _set_isolation(connection: Connection, isolation_level: str) -> None:
    if isolation_level.upper() == "AUTOCOMMIT":
        raise _autocommit_refused()
    connection.execution_options(isolation_level=isolation_level)


def _autocommit_refused() -> TransactionUseError:
    return TransactionUseError(
        "AutocommitRefused",
        "A routed connection cannot use autocommit: validation holds for one transaction.",
        hint="Omit isolation_level, or connect to the shard without routing: shard.connect().",
    )


class _GoneError(Exception):
    """The local catalog does not have the mapping: the cache is stale."""


class MappingEntry:
    """Admits the transactions of one routed connection, by `engines.BeginRouted`.

    The connection keeps it in `connection.info[ENTRY]` until it returns to its pool.
    """

    __slots__ = ("_is_first", "_row_keys", "_validate", "key", "mapping", "writes")

    def __init__(
        self, key: Any, mapping: Mapping, options: RoutingOptions, row_keys: RowKeys | None
    ) -> None:
        self.key = key
        self.mapping = mapping
        self.writes = options.writes
        self._row_keys = row_keys
        self._validate = _CHECKS[options.validate]
        self._is_first = True

    def enter(self, dialect: Dialect, pooled: Pooled) -> None:
        """Validate the mapping in the transaction that has just begun, or raise."""
        # Options of an engine or a connection may have set it; SQLite has an explicit BEGIN.
        if dialect.name != "sqlite" and pooled.dbapi_connection.autocommit:  # type: ignore[union-attr]
            raise _autocommit_refused()
        admission = self._validate(dialect, pooled, self.mapping.id)
        if admission == "online":
            self._is_first = False
            return
        if admission != "gone":
            raise _refusal(admission, self.mapping)
        if self._is_first:
            raise _GoneError
        raise _stale(self.mapping)

    def check_rows(self, context: DefaultExecutionContext) -> None:
        """Refuse an INSERT or UPDATE that stores rows of other mappings."""
        if self._row_keys is not None:
            self._row_keys.check(context, self.key, self.mapping)


def _never(dialect: Dialect, pooled: Pooled, _mapping_id: str) -> Admission:
    validation.drop_lease(dialect, pooled)
    return "online"


_CHECKS: dict[str, Callable[[Dialect, Pooled, str], Admission]] = {
    "always": validation.validate,
    "lease": validation.lease,
    "never": _never,
}


def _look_up_moved(path: _Route, key: Any, mapping: Mapping) -> Mapping | None:
    """Return the mapping of the key if it has changed; None if not, or if read recently."""
    pauses, now = path.engines.pauses, path.map.clock.monotonic()
    not_before, seconds = pauses.get(mapping.shard.id, (now, ASK_SECONDS_MIN))
    if now < not_before:
        return None
    pauses[mapping.shard.id] = (now + seconds, min(2 * seconds, ASK_SECONDS_MAX))
    fresh = path.look_up(key)
    return None if _is_same(fresh, mapping) else fresh


def _is_same(left: Mapping, right: Mapping) -> bool:
    return left.id == right.id and left.shard.location == right.shard.location


def _refusal(admission: Admission, mapping: Mapping) -> MappingOfflineError:
    if admission == "gone":
        return MappingOfflineError(
            "MappingChanging",
            "The shard does not have this mapping of the global catalog: a change is in progress.",
            facts=_facts(mapping),
            hint="Try again, or use map.run(), which retries. If the error persists, compare the "
            "catalogs with manager.recovery.",
        )
    return MappingOfflineError(
        "MappingOffline",
        "The mapping is offline: it is being moved, or was taken offline.",
        facts=_facts(mapping),
        hint="Try again later, or use map.run(), which retries.",
    )


def _stale(mapping: Mapping) -> StaleMappingError:
    return StaleMappingError(
        "StaleMapping",
        "The mapping has changed since it was looked up.",
        facts=_facts(mapping),
        hint="Connect again, or use map.run(), which retries: the key may have moved.",
    )


def _unreachable(mapping: Mapping) -> ShardOfflineError:
    return ShardOfflineError(
        "ShardUnreachable",
        "The shard cannot be reached.",
        facts=_facts(mapping),
        hint="Check that its database is running and that the credentials are correct.",
    )


def _facts(mapping: Mapping) -> dict[str, object]:
    return {
        "map": mapping.map_name,
        "mapping": mapping.id,
        "shard": mapping.shard.location.text,
    }
