"""One SQLAlchemy engine for each database, with the settings that routing relies on.

An engine is created at its first use; beyond `engines_max` the least recently used is closed.
Rule: a transaction begins where SQLAlchemy begins it, in `BeginTransaction` or `BeginRouted`.
SQLite gets a real BEGIN, because the driver's own mode would accept a write on an old snapshot. A
routed connection enters its mapping there, before the first statement of the transaction.
"""

import asyncio
import functools
import logging
import os
import sqlite3
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, PoolProxiedConnection

from partita.errors import StaleMappingError
from partita.shards.connections.idle_connections import IdleConnections
from partita.shards.connections.locations import (
    ASYNC_DRIVERS,
    check_driver,
    file_of,
    location_of,
    parsed_url,
    sync_url,
)
from partita.shards.connections.revocable import BEGIN_IMMEDIATE, RevocableConnection
from partita.shards.connections.worker_threads import WorkerThreads
from partita.shards.keys.mapping import Location
from partita.sqlite_versions import has_wal_reset_bug

ENGINES_MAX = 64
"""The maximum number of open engines; each has a pool of its own."""
BUSY_TIMEOUT_SECONDS = 15.0
"""How long an SQLite connection waits for the write lock."""
CONNECT_SECONDS = 10
"""The time-out of a new connection to a server, unless the URL has `connect_timeout=`."""
ENTRY = "partita.entry"
"""Where a pooled connection keeps its `Entry`."""
LEASE = "partita.lease"
"""Where a pooled connection keeps the id of the mapping whose session lock it holds."""
SINGLE = "partita.single"
"""Set if the next transaction of a pooled SQLite connection is a single SELECT: it has a snapshot
of its own and needs no BEGIN."""
SPOILED = "partita.spoiled"
"""Set if a pooled connection must be closed instead of reused."""

logger = logging.getLogger("partita.shards")
_Begin = Callable[[PoolProxiedConnection, bool], None]
Credentials = Callable[[Location], URL | str | None]
_CONNECT_TIMEOUTS = {"psycopg": "connect_timeout", "asyncpg": "timeout"}
"""The name of the option in each driver. Their defaults are a minute or more."""


class Engines:
    """The engines of one process, by location.

    `credentials(location)` is called for each new connection and returns a URL with user and
    password, or None. A host and a port in the URL replace those of the location. For None, the
    credentials of a URL that this process was given for the same server are used, else the driver's
    own (PGUSER, .pgpass).
    """

    def __init__(
        self,
        credentials: Credentials | None = None,
        options: Mapping[str, Any] | None = None,
        engines_max: int = ENGINES_MAX,
    ) -> None:
        self._credentials = credentials
        self._options = dict(options or {})
        self._engines_max = engines_max
        self._engines: OrderedDict[_Name, Engine] = OrderedDict()
        self._async: dict[tuple[_Name, int], _AsyncEntry] = {}
        self._admins: dict[Location, Engine] = {}
        self._given: dict[tuple[str, str, int | None], URL] = {}
        self._lock = threading.Lock()
        self.workers = WorkerThreads()
        """The threads of fan-outs; they end when the connections are closed."""
        self.idle = IdleConnections()
        """SQLite connections of fan-outs, outside the pools."""
        self.routes = 0
        """Connections that were routed and validated."""
        self.pauses: dict[str, tuple[float, float]] = {}
        """By id of an unreachable shard: the earliest time of the next read of the global catalog,
        and the pause after that. Written by the router."""
        _all.add(self)

    def remember(self, url: str | URL) -> Location:
        """Keep the credentials of the URL in memory, for its server, and return its location."""
        parsed = parsed_url(url)
        location = location_of(parsed)
        check_driver(location)
        if parsed.username or parsed.password:
            server = (parsed.get_backend_name(), (parsed.host or "").lower(), parsed.port)
            self._given[server] = parsed
        return location

    def for_location(
        self, location: Location, *, is_routed: bool = False, login: URL | None = None
    ) -> Engine:
        """Return the pooled engine of the location.

        A routed engine has a pool of its own and begins no transaction without validation. So has
        the engine of each `login`, whose user and password replace those of the manager.
        """
        name = _Name(location, is_routed, login)
        engine = self._engines.get(name)
        if engine is None:
            return self._add(name)
        # move_to_end() is atomic; it fails only if another thread has just closed the engine.
        try:
            self._engines.move_to_end(name)
        except KeyError:
            return self._add(name)
        return engine

    def admin(self, location: Location) -> Engine:
        """Return an engine without a pool: session locks end with their connection."""
        with self._lock:
            engine = self._admins.get(location)
            if engine is None:
                options = {**_without_pool(self._options), "poolclass": NullPool}
                engine = self._admins[location] = self._create(_Name(location), options)
            return engine

    def async_for_location(
        self, location: Location, *, is_routed: bool = False, login: URL | None = None
    ) -> AsyncEngine:
        """Return the pooled async engine of the location for the running event loop."""
        loop = asyncio.get_running_loop()
        name = (_Name(location, is_routed, login), id(loop))
        entry = self._async.get(name)
        if entry is not None and entry.loop is loop:
            return entry.engine
        with self._lock:
            self._drop_closed_loops()
            engine = self._create_async(name[0])
            self._async[name] = _AsyncEntry(engine, loop)
        return engine

    def dispose(self) -> None:
        """Close all pooled connections; async ones need `await adispose()`."""
        with self._lock:
            engines = [*self._engines.values(), *self._admins.values()]
            self._engines.clear()
            self._admins.clear()
        self.idle.close(*engines)
        for engine in engines:
            engine.dispose()
        self.workers.close()

    async def adispose(self) -> None:
        """Close all pooled connections, including those of this event loop."""
        with self._lock:
            self._drop_closed_loops()
            loop = asyncio.get_running_loop()
            names = [name for name, entry in self._async.items() if entry.loop is loop]
            engines = [self._async.pop(name).engine for name in names]
        for engine in engines:
            await engine.dispose()
        self.dispose()

    def forget(self) -> None:
        """Drop all connections without closing them: they belong to the parent process."""
        self._lock = threading.Lock()  # the old one may be held by a thread of the parent
        self.workers = WorkerThreads()
        self._inherited = self.idle  # closing it would release the parent's locks
        self.idle = IdleConnections()
        engines = [*self._engines.values(), *self._admins.values()]
        engines += [entry.engine.sync_engine for entry in self._async.values()]
        self._engines.clear()
        self._admins.clear()
        self._async.clear()
        for engine in engines:
            engine.dispose(close=False)

    def _add(self, name: "_Name") -> Engine:
        evicted: list[Engine] = []
        with self._lock:
            engine = self._engines.get(name)
            if engine is None:
                engine = self._create(name, self._options)
                self._engines[name] = engine
            while len(self._engines) > self._engines_max:
                evicted.append(self._engines.popitem(last=False)[1])
        self.idle.close(*evicted)
        for old in evicted:
            # Connections in use stay open and are closed when they are returned.
            old.dispose()
        return engine

    def _create(self, name: "_Name", options: Mapping[str, Any]) -> Engine:
        url = sync_url(name.location)
        settings = _with_settings(name.location, options, url.get_driver_name())
        engine = create_engine(url, **settings)
        self._install(engine, name)
        return engine

    def _create_async(self, name: "_Name") -> AsyncEngine:
        location = name.location
        url = make_url(location.text)
        if "+" not in url.drivername:
            url = url.set(drivername=ASYNC_DRIVERS.get(location.backend, url.drivername))
        settings = _with_settings(location, self._options, url.get_driver_name())
        engine = create_async_engine(url, **settings)
        self._install(engine.sync_engine, name)
        return engine

    def _install(self, engine: Engine, name: "_Name") -> None:
        location = name.location
        if location.backend == "sqlite":
            warn_of_wal_reset(sqlite3.sqlite_version_info)
            event.listen(engine, "do_connect", _refuse_missing_file(location))
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "checkin", _release_sqlite)
        else:
            event.listen(engine, "do_connect", self._log_in(location, name.login))
            event.listen(engine, "checkin", _release)
            event.listen(engine, "handle_error", _keep_pool)
        dialect: Any = engine.dialect
        dialect.do_begin = BeginRouted(dialect) if name.is_routed else BeginTransaction(dialect)
        if name.is_routed:
            dialect.do_execute = CheckRows(dialect.do_execute)
            dialect.do_executemany = CheckRows(dialect.do_executemany)

    def _log_in(self, location: Location, login: URL | None) -> Callable[..., None]:
        def log_in(
            dialect: Dialect, _record: ConnectionPoolEntry, _positional: Any, named: dict[str, Any]
        ) -> None:
            url = self.login(location)
            if url is not None:
                named.update(_chosen(dialect, url, {"user", "password", "host", "port"}))
            if login is not None:
                named.pop("password", None)
                named.update(_chosen(dialect, login, {"user", "password"}))

        return log_in

    def login(self, location: Location) -> URL | None:
        """Return a URL with the credentials for the location; None for the driver's own."""
        answer = self._credentials(location) if self._credentials is not None else None
        if answer is not None:
            return parsed_url(answer)
        return self._given.get((location.backend, location.host, location.port))

    def _drop_closed_loops(self) -> None:
        for name, entry in list(self._async.items()):
            if entry.loop.is_closed():
                del self._async[name]
                entry.engine.sync_engine.dispose(close=False)


_all: weakref.WeakSet[Engines] = weakref.WeakSet()


def _forget_all() -> None:
    for engines in list(_all):
        engines.forget()


# Two processes that share a socket would read each other's answers.
os.register_at_fork(after_in_child=_forget_all)


def _chosen(dialect: Dialect, url: URL, names: set[str]) -> dict[str, Any]:
    given = dialect.create_connect_args(url)[1]
    return {name: value for name, value in given.items() if name in names}


class _Name(NamedTuple):
    """What an engine is for."""

    location: Location
    is_routed: bool = False
    login: URL | None = None


class _AsyncEntry(NamedTuple):
    engine: AsyncEngine
    loop: asyncio.AbstractEventLoop


def _with_settings(location: Location, options: Mapping[str, Any], driver: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "timeout": BUSY_TIMEOUT_SECONDS,
        "isolation_level": None,
        "factory": RevocableConnection,
    }
    if location.backend != "sqlite":
        is_named = any(name in _CONNECT_TIMEOUTS.values() for name, _ in location.options)
        option = _CONNECT_TIMEOUTS.get(driver)
        settings = {} if is_named or option is None else {option: CONNECT_SECONDS}
    return {**options, "connect_args": {**settings, **options.get("connect_args", {})}}


def _without_pool(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in options.items()
        if not name.startswith("pool") and name != "max_overflow"
    }


def _refuse_missing_file(location: Location) -> Callable[..., None]:
    file = file_of(location)
    assert file is not None

    def refuse(dialect: Dialect, *_rest: object) -> None:
        if not file.exists():
            # The driver's own error, so that it is handled like an unreachable server.
            message = f"the file {file} does not exist"
            raise dialect.loaded_dbapi.OperationalError(message)

    return refuse


def _set_up_sqlite(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in sqlite_pragmas(sys.platform):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def sqlite_pragmas(platform: str) -> tuple[str, ...]:
    """Return the settings of every SQLite connection.

    On macOS fsync() leaves data in the cache of the disk unless F_FULLFSYNC is asked for.
    """
    pragmas = ("journal_mode = WAL", "foreign_keys = ON")
    if platform != "darwin":
        return pragmas
    return (*pragmas, "fullfsync = ON", "checkpoint_fullfsync = ON")


@functools.cache
def warn_of_wal_reset(version: tuple[int, int, int]) -> None:
    """Log, once per process, that this SQLite may damage the files of shards and catalogs.

    A warning only: the version is that of the interpreter, which not every user can replace.
    """
    if has_wal_reset_bug(version):
        logger.warning(
            "SQLite %d.%d.%d of this Python may damage a database that several connections write "
            "(https://sqlite.org/wal.html#walresetbug). Use a Python whose sqlite3 module has "
            "SQLite 3.51.3 or later (or 3.50.7, 3.44.6), or keep shards in PostgreSQL.",
            *version,
        )


class Entry(Protocol):
    """Admits the transactions of one routed connection; `router.MappingEntry` is the only one."""

    @property
    def writes(self) -> bool:
        """Whether a transaction on SQLite takes the write lock of the file when it begins."""
        ...

    def enter(self, dialect: Dialect, pooled: PoolProxiedConnection) -> None:
        """Validate the mapping in the transaction that has just begun, or raise."""
        ...

    def check_rows(self, context: DefaultExecutionContext) -> None:
        """Refuse an INSERT or UPDATE that stores rows of other mappings."""
        ...


class BeginTransaction:
    """Begins the transactions of an engine: SQLAlchemy calls it as `dialect.do_begin`.

    A "begin" event would do as well, but events make connections a third more expensive.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._begin: _Begin = _begin_later
        self._driver_of: Callable[[PoolProxiedConnection], Any] | None = None
        if dialect.name == "sqlite":
            self._begin = _begin_sqlite_async if dialect.is_async else _begin_sqlite
            self._driver_of = sqlite_connection if dialect.is_async else _driver_connection

    def __call__(self, pooled: PoolProxiedConnection) -> None:
        if pooled.info.pop(SINGLE, False):
            return
        self._begin(pooled, False)  # noqa: FBT003 - a _Begin
        if self._driver_of is not None:
            self._driver_of(pooled).is_untouched = True


class BeginRouted(BeginTransaction):
    """Begins the transactions of a routed engine: each of them enters its mapping."""

    def __call__(self, pooled: PoolProxiedConnection) -> None:
        entry: Entry | None = pooled.info.get(ENTRY)
        if entry is None:
            raise _not_validated()
        writes = entry.writes
        self._begin(pooled, writes)
        entry.enter(self._dialect, pooled)
        if self._driver_of is not None:
            self._driver_of(pooled).is_untouched = not writes


class CheckRows:
    """Checks the rows that a statement stores, then executes it (`dialect.do_execute`)."""

    def __init__(self, execute: Callable[..., None]) -> None:
        self._execute = execute

    def __call__(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if context is not None and (context.isinsert or context.isupdate):
            entry: Entry | None = context.root_connection.info.get(ENTRY)
            if entry is not None:
                entry.check_rows(context)
        self._execute(cursor, statement, parameters, context)


def _begin_later(_pooled: PoolProxiedConnection, _writes: bool) -> None:  # noqa: FBT001 - a _Begin
    """Do nothing: the driver sends BEGIN with the first statement."""


def _driver_connection(pooled: PoolProxiedConnection) -> Any:
    return pooled.dbapi_connection


def _begin_sqlite(pooled: PoolProxiedConnection, writes: bool) -> None:  # noqa: FBT001 - a _Begin
    driver: Any = pooled.dbapi_connection
    if writes:
        driver.begin_to_write()
    else:
        driver.begin()


def _begin_sqlite_async(pooled: PoolProxiedConnection, writes: bool) -> None:  # noqa: FBT001
    cursor = pooled.cursor()
    # Executed in the connection's own thread, which may wait for the lock.
    sqlite_connection(pooled).is_untouched = writes
    cursor.execute(BEGIN_IMMEDIATE if writes else "BEGIN")
    cursor.close()


def _not_validated() -> StaleMappingError:
    # SQLAlchemy has replaced a lost driver connection by another one.
    return StaleMappingError(
        "ConnectionLost",
        "The routed connection was lost; its replacement has not been validated.",
        hint="Close the connection and connect again, or use map.run(), which retries.",
    )


def _release_sqlite(connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    if connection is None:
        return
    driver = sqlite_connection(connection)
    if record.info.pop(ENTRY, None) is not None or driver.is_ended:
        driver.release()


def sqlite_connection(connection: Any) -> RevocableConnection:
    """Return the SQLite connection behind SQLAlchemy's or aiosqlite's."""
    if isinstance(connection, RevocableConnection):
        return connection
    below = connection.driver_connection or connection.dbapi_connection  # detached from its pool
    found = getattr(below, "_conn", below)
    assert isinstance(found, RevocableConnection)
    return found


def _release(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info.pop(ENTRY, None)
    if record.info.pop(SPOILED, None):
        record.invalidate()


def _keep_pool(context: ExceptionContext) -> None:
    # A mover terminates single sessions; the others of the pool still work. A broken one is found
    # when the router validates it, before the caller gets it.
    if context.is_disconnect:
        context.invalidate_pool_on_disconnect = False
        # SQLAlchemy does not close the cursor of a lost connection, and psycopg warns about it.
        cursor = getattr(context.execution_context, "cursor", None)
        if cursor is not None:
            with suppress(Exception):
                cursor.close()
