"""Find the shard of a key and hand out a connection to it whose transaction is validated.

The way: cache, engine, BEGIN, validation on that very connection; if the mapping is gone, once
more with a mapping from the global catalog. Rule: whatever begins a transaction on a routed
connection validates again, so no statement of a user ever runs on a mapping that was not entered.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, Protocol

from sqlalchemy import Connection, Engine
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
from partita.shards.catalog import change_plans as operations
from partita.shards.connections import validation
from partita.shards.connections.engines import ENTER, Engines
from partita.shards.connections.validation import Entry
from partita.shards.keys.mapping import Mapping, MappingStatus
from partita.shards.routing.row_keys import RowKeys
from partita.ticks import Clock

Validate = Literal["always", "lease", "never"]

DEAD_CONNECTIONS_MAX = 2
"""How many dead pooled connections are replaced before the shard counts as unreachable."""
_UNDEFINED = ("42883", "42P01")
"""SQLSTATEs of a function and of a table that are not there."""
ASK_SECONDS_MIN, ASK_SECONDS_MAX = 5.0, 30.0
"""A dead shard sends its clients to the global catalog only this often, with doubling pauses."""


class Terms(NamedTuple):
    """How a transaction is entered, and what it may store."""

    validate: Validate = "always"
    isolation_level: str | None = None
    check_keys: bool = True
    writes: bool = False
    """Whether it takes the write lock of an SQLite file when it begins."""


class RoutedMap(Protocol):
    """What the router needs of a shard map."""

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
        """Return the mapping of the key; with "store", past the cache and then into it."""
        ...

    def forget(self, mapping: Mapping) -> None:
        """Drop the mapping from the cache."""
        ...


def connect(
    shard_map: RoutedMap,
    key: Any,
    *,
    validate: Validate = "always",
    isolation_level: str | None = None,
    check_keys: bool = True,
    writes: bool = False,
) -> Connection:
    """Return a connection to the key's shard, in a transaction that is validated.

    Use it as a context manager, as any connection: what was not committed is rolled back at its
    end. After a commit the next statement validates again; there a mapping that has moved is a
    StaleMappingError, because the connection cannot follow it. Rows of other mappings are refused
    (WrongShardKeyError) unless `check_keys` is False. With `writes`, every transaction on SQLite
    holds the write lock of the file from its beginning.
    """
    return _route(_Sync(shard_map), key, Terms(validate, isolation_level, check_keys, writes))


@asynccontextmanager
async def aconnect(
    shard_map: RoutedMap,
    key: Any,
    *,
    validate: Validate = "always",
    isolation_level: str | None = None,
    check_keys: bool = True,
    writes: bool = False,
) -> AsyncIterator[AsyncConnection]:
    """Give the async twin of `connect()`: `async with map.aconnect(key) as connection`."""
    road = _Async(shard_map)
    terms = Terms(validate, isolation_level, check_keys, writes)
    routed = await greenlet_spawn(_route, road, key, terms)
    connection = AsyncConnection(road.async_engine(routed), routed)
    try:
        yield connection
    finally:
        await asyncio.shield(connection.close())


def route(shard_map: RoutedMap, key: Any, terms: Terms, *, is_async: bool) -> Connection:
    """Return a routed connection; of an async engine inside SQLAlchemy's greenlet."""
    return _route(_Async(shard_map) if is_async else _Sync(shard_map), key, terms)


def mapping_of(connection: Connection) -> Mapping | None:
    """Return the mapping that the connection was routed by; None if it was not."""
    enter = _enter_of(connection)
    return None if enter is None else enter.mapping


def key_of(connection: Connection) -> Any:
    """Return the key that the connection was routed by; None if it was not."""
    enter = _enter_of(connection)
    return None if enter is None else enter.key


def _enter_of(connection: Connection) -> "_Enter | None":
    enter = None if connection.closed else connection.info.get(ENTER)
    return enter if isinstance(enter, _Enter) else None


class _Sync:
    """Look up and connect in the caller's thread."""

    def __init__(self, shard_map: RoutedMap) -> None:
        self.map = shard_map
        self.engines = shard_map.engines

    def engine(self, mapping: Mapping) -> Engine:
        return self.engines.for_location(mapping.shard.location, is_routed=True)

    def find(self, key: Any) -> Mapping:
        return self.map.get(key, lookup="cache")

    def look_up(self, key: Any) -> Mapping:
        return self.map.get(key, lookup="store")


class _Async(_Sync):
    """The same inside a greenlet: what blocks is awaited in a thread."""

    def engine(self, mapping: Mapping) -> Engine:
        location = mapping.shard.location
        self._engine = self.engines.async_for_location(location, is_routed=True)
        return self._engine.sync_engine

    def async_engine(self, connection: Connection) -> Any:
        assert self._engine.sync_engine is connection.engine
        return self._engine

    def find(self, key: Any) -> Mapping:
        cached = getattr(self.map, "find_cached", None)
        found: Mapping | None = cached(key) if cached is not None else None
        return found or await_only(asyncio.to_thread(self.map.get, key, lookup="cache"))

    def look_up(self, key: Any) -> Mapping:
        return await_only(asyncio.to_thread(self.map.get, key, lookup="store"))


def check_validate(validate: str) -> None:
    """Refuse a way to validate that there is not."""
    if validate not in _CHECKS:
        raise UsageError(
            "UnknownValidation",
            f"There is no validation {validate!r}.",
            hint='Choose validate="always", "lease" or "never".',
        )


def _route(road: _Sync, key: Any, terms: Terms) -> Connection:
    check_validate(terms.validate)
    try:
        return _route_once_more(road, key, terms)
    except MappingOfflineError:
        road.map.counters.refused += 1
        raise


def _route_once_more(road: _Sync, key: Any, terms: Terms) -> Connection:
    mapping = road.find(key)
    if mapping.status is not MappingStatus.ONLINE:
        # An offline mapping comes back with another id: only the store knows when.
        mapping = road.look_up(key)
    try:
        return _open(road, key, mapping, terms)
    except _GoneError:
        road.map.forget(mapping)
        fresh = road.look_up(key)
    except ShardOfflineError:
        found = _ask_again(road, key, mapping)
        if found is None:
            raise
        fresh = found
    road.map.counters.reroutes += 1
    if fresh.id == mapping.id and fresh.shard.location == mapping.shard.location:
        raise _refusal("gone", mapping)
    try:
        return _open(road, key, fresh, terms)
    except _GoneError as error:
        road.map.forget(fresh)
        raise _stale(fresh) from error


def _open(road: _Sync, key: Any, mapping: Mapping, terms: Terms) -> Connection:
    if mapping.status is not MappingStatus.ONLINE:
        raise _refusal("offline", mapping)
    engine = road.engine(mapping)
    row_keys = road.map.row_keys if terms.check_keys else None
    for dead in range(DEAD_CONNECTIONS_MAX + 1):
        try:
            connection = engine.connect()
        except (DBAPIError, OSError) as error:  # asyncpg leaves the system's errors as they are
            raise _unreachable(mapping) from error
        try:
            if terms.isolation_level is not None:
                _set_isolation(connection, terms.isolation_level)
            connection.info[ENTER] = _Enter(key, mapping, terms, row_keys)
            connection.begin()
        except DBAPIError as error:
            if not error.connection_invalidated:
                connection.close()
                if _lacks_the_catalog(error):
                    location = mapping.shard.location.text
                    raise operations.local_catalog_differs(mapping.map_name, location) from error
                raise
            # Because nothing of the user's ran on it, a dead connection is replaced in silence.
            connection.close()
            if dead:
                engine.dispose()
        except BaseException:
            connection.close()
            raise
        else:
            if road.engines.pauses:
                road.engines.pauses.pop(mapping.shard.id, None)
            return connection
    raise _unreachable(mapping)


def _lacks_the_catalog(error: DBAPIError) -> bool:
    # An empty database in the place of the shard: no function to enter by, no table to look at.
    state = getattr(error.orig, "sqlstate", None)
    return state in _UNDEFINED or "no such table: partita_local_mappings" in str(error.orig)


def _set_isolation(connection: Connection, isolation_level: str) -> None:
    if isolation_level.upper() == "AUTOCOMMIT":
        raise _autocommit_refused()
    connection.execution_options(isolation_level=isolation_level)


def _autocommit_refused() -> TransactionUseError:
    return TransactionUseError(
        "AutocommitRefused",
        "A routed connection is validated for one transaction, and autocommit has none.",
        hint="Leave isolation_level out, or connect to the shard unrouted: shard.connect().",
    )


class _GoneError(Exception):
    """The local catalog does not know the mapping: the cache is stale."""


class _Enter:
    """What a routed connection calls when a transaction begins on it."""

    __slots__ = ("_check", "_is_first", "_row_keys", "key", "mapping", "writes")

    def __init__(self, key: Any, mapping: Mapping, terms: Terms, row_keys: RowKeys | None) -> None:
        self.key = key
        self.mapping = mapping
        self.writes = terms.writes
        self._row_keys = row_keys
        self._check = _CHECKS[terms.validate]
        self._is_first = True

    def __call__(self, dialect: Dialect, pooled: Pooled) -> None:
        # Options of an engine or a connection may have asked for it; SQLite has its own BEGIN.
        if dialect.name != "sqlite" and pooled.dbapi_connection.autocommit:  # type: ignore[union-attr]
            raise _autocommit_refused()
        entry = self._check(dialect, pooled, self.mapping.id)
        if entry == "online":
            self._is_first = False
            return
        if entry != "gone":
            raise _refusal(entry, self.mapping)
        if self._is_first:
            raise _GoneError
        raise _stale(self.mapping)

    def check_rows(self, context: DefaultExecutionContext) -> None:
        """Refuse an INSERT or UPDATE that stores rows of other mappings."""
        if self._row_keys is not None:
            self._row_keys.check(context, self.key, self.mapping)


def _never(dialect: Dialect, pooled: Pooled, _mapping_id: str) -> Entry:
    validation.drop_lease(dialect, pooled)
    return "online"


_CHECKS: dict[str, Callable[[Dialect, Pooled, str], Entry]] = {
    "always": validation.validate,
    "lease": validation.lease,
    "never": _never,
}


def _ask_again(road: _Sync, key: Any, mapping: Mapping) -> Mapping | None:
    """Return the key's mapping if it is another one by now; None if not, or if asked just now."""
    pauses, now = road.engines.pauses, road.map.clock.monotonic()
    not_before, seconds = pauses.get(mapping.shard.id, (now, ASK_SECONDS_MIN))
    if now < not_before:
        return None
    pauses[mapping.shard.id] = (now + seconds, min(2 * seconds, ASK_SECONDS_MAX))
    fresh = road.look_up(key)
    is_same = fresh.id == mapping.id and fresh.shard.location == mapping.shard.location
    return None if is_same else fresh


def _refusal(entry: Entry, mapping: Mapping) -> MappingOfflineError:
    if entry == "gone":
        return MappingOfflineError(
            "MappingChanging",
            "The global catalog names this mapping, its shard does not: a change is under way.",
            facts=_facts(mapping),
            hint="Try again: map.run() does it. If it stays, compare the catalogs: recovery.",
        )
    return MappingOfflineError(
        "MappingOffline",
        "The mapping is offline: it is being moved, or somebody took it offline.",
        facts=_facts(mapping),
        hint="Try again later: map.run() does it, through routing.",
    )


def _stale(mapping: Mapping) -> StaleMappingError:
    return StaleMappingError(
        "StaleMapping",
        "The mapping was changed since it was looked up.",
        facts=_facts(mapping),
        hint="Connect again: the key may be on another shard by now. map.run() does it.",
    )


def _unreachable(mapping: Mapping) -> ShardOfflineError:
    return ShardOfflineError(
        "ShardUnreachable",
        "The shard cannot be reached.",
        facts=_facts(mapping),
        hint="See whether its database runs, and whether the credentials are right.",
    )


def _facts(mapping: Mapping) -> dict[str, object]:
    return {
        "map": mapping.map_name,
        "mapping": mapping.id,
        "shard": mapping.shard.location.text,
    }
