"""One SQLAlchemy engine for each database, with the settings that routing relies on.

An engine is made at its first use; the least recently used ones beyond `engines_max` are closed.
Rule: a transaction begins where SQLAlchemy says it begins. SQLite gets a real BEGIN (the driver's
own mode would let a stale write pass), and where a routed connection begins, what its `ENTER` holds
is called on that very connection.
"""

import asyncio
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, PoolProxiedConnection

from partita.errors import ConfigurationError, StaleMappingError
from partita.shards.connections.idle_connections import IdleConnections
from partita.shards.connections.revocable import BEGIN_IMMEDIATE, RevocableConnection
from partita.shards.connections.worker_threads import WorkerThreads
from partita.shards.keys.mapping import Location

ENGINES_MAX = 64
"""The most engines, and so pools, that are kept open."""
BUSY_TIMEOUT_SECONDS = 15.0
"""How long an SQLite connection waits for the writer before it."""
CONNECT_SECONDS = 10
"""How long a new connection to a server may take; `connect_timeout=` in the URL goes before."""
ENTER = "partita.enter"
"""Where a pooled connection keeps what must be called when its next transaction begins."""
LEASE = "partita.lease"
"""Where a pooled connection keeps the id of the mapping whose session lock it holds."""
SINGLE = "partita.single"
"""Set where the next transaction of a pooled SQLite connection is one SELECT, which has a snapshot
of its own: it needs no BEGIN."""
SPOILED = "partita.spoiled"
"""Set where a pooled connection must be closed instead of being used again."""

_Begin = Callable[[PoolProxiedConnection, bool], None]
Credentials = Callable[[Location], URL | str | None]
_ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
_SQLITE_OPTIONS = {
    *("cache", "immutable", "mode", "nolock", "psow", "uri", "vfs"),
    *("cached_statements", "check_same_thread", "detect_types", "isolation_level", "timeout"),
}
_CONNECT_TIMEOUTS = {"psycopg": "connect_timeout", "asyncpg": "timeout"}
"""What drivers call it. Their own defaults, a minute and more, would hold a thread that long."""
_SYNC_DRIVERS = {"aiosqlite": "sqlite", "asyncpg": "postgresql+psycopg"}


def location_of(url: str | URL) -> Location:
    """Return where the URL leads, without its secrets.

    The path of an SQLite file becomes the one that the file has without `..` and links, because
    two names for one file must not be two databases.
    """
    location = Location.from_url(_parsed(url), relative_to=str(Path.cwd()))
    return _resolved(location) if location.backend == "sqlite" else location


def _parsed(url: str | URL) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        # Neither the URL nor the cause is repeated: they may hold a part of a password.
        raise ConfigurationError(
            "InvalidLocation",
            "The URL of the database cannot be read.",
            hint="Write dialect+driver://host:port/database, or sqlite:///file.db.",
        ) from None


def _resolved(location: Location) -> Location:
    path = os.path.realpath(location.identity.removeprefix("sqlite://"))
    database = "file:" + quote(path) if location.database.startswith("file:") else path
    return msgspec.structs.replace(location, database=database)


def check_driver(location: Location) -> None:
    """Refuse a database that no engine can be made for, before anything is written about it."""
    if location.backend not in _ASYNC_DRIVERS:
        raise ConfigurationError(
            "DialectNotSupported",
            "Catalogs and shards are databases of PostgreSQL or SQLite.",
            facts={"dialect": location.dialect},
            hint="Write postgresql+psycopg://host:port/database, or sqlite:///file.db.",
        )
    url = _sync_url(location)
    try:
        dialect = url.get_dialect()
        dialect.import_dbapi()
    except (ArgumentError, ImportError) as error:
        raise ConfigurationError(
            "DriverNotInstalled",
            "The driver that the URL names is not installed.",
            facts={"dialect": location.dialect},
            hint="Install it, or name another one: postgresql+psycopg://… needs psycopg.",
        ) from error
    _check_options(location, url, dialect)


def _check_options(location: Location, url: URL, dialect: type[Dialect]) -> None:
    # A server answers for its own options; what SQLite does not know would be ignored.
    names = {name for name, _ in location.options}
    unknown = names - _SQLITE_OPTIONS if location.backend == "sqlite" else set[str]()
    if not unknown:
        try:
            dialect().create_connect_args(url)
        except (ArgumentError, ValueError):
            unknown = names
    if unknown:
        raise ConfigurationError(
            "InvalidLocation",
            "The URL has options that the driver does not take.",
            facts={"options": sorted(unknown)},
            hint="Leave them out, or correct their values.",
        )


def _sync_url(location: Location) -> URL:
    url = make_url(location.text)
    if url.get_driver_name() in _SYNC_DRIVERS:
        url = url.set(drivername=_SYNC_DRIVERS[url.get_driver_name()])
    return url


def file_of(location: Location) -> Path | None:
    """Return the file of an SQLite database; None for databases of servers."""
    if location.backend != "sqlite":
        return None
    return Path(location.identity.removeprefix("sqlite://"))


def create_file(location: Location) -> None:
    """Make the empty file that is an empty SQLite database, unless it is there.

    Connecting never makes one: a shard whose file is lost must not come back empty.
    """
    file = file_of(location)
    if file is not None:
        # Where it cannot be made, the connection that follows fails and says so.
        with suppress(OSError):
            file.touch(0o644)


class Engines:
    """The engines of one process, by location.

    `credentials(location)` is asked at every new connection and returns a URL with user and
    password, or None; without an answer, those of a URL that this process was given for the same
    server are used, and else the driver's own (PGUSER, .pgpass).
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
        self._engines: OrderedDict[tuple[Location, bool], Engine] = OrderedDict()
        self._async: dict[tuple[Location, bool, int], _AsyncEntry] = {}
        self._admins: dict[Location, Engine] = {}
        self._given: dict[tuple[str, str, int | None], URL] = {}
        self._lock = threading.Lock()
        self.workers = WorkerThreads()
        """The threads of fan-outs; they end with the connections."""
        self.idle = IdleConnections()
        """Connections of fan-outs to SQLite, beside the pools."""
        self.pauses: dict[str, tuple[float, float]] = {}
        """When the clients of an unreachable shard may ask the global catalog again, by shard id:
        not before, and the pause after that. The router moves it."""
        _all.add(self)

    def remember(self, url: str | URL) -> Location:
        """Keep user and password of the URL in memory, for its server, and return its location."""
        parsed = _parsed(url)
        location = location_of(parsed)
        check_driver(location)
        if parsed.username or parsed.password:
            server = (parsed.get_backend_name(), (parsed.host or "").lower(), parsed.port)
            self._given[server] = parsed
        return location

    def for_location(self, location: Location, *, is_routed: bool = False) -> Engine:
        """Return the pooled engine of the location.

        A routed one has a pool of its own, and begins no transaction that was not validated.
        """
        name = (location, is_routed)
        engine = self._engines.get(name)
        if engine is None:
            return self._add(name)
        # Moving within an OrderedDict is one step of the interpreter; an entry that another
        # thread has just closed is only not moved.
        try:
            self._engines.move_to_end(name)
        except KeyError:
            return self._add(name)
        return engine

    def admin(self, location: Location) -> Engine:
        """Return an engine without a pool, for movers: session locks end with their connection."""
        with self._lock:
            engine = self._admins.get(location)
            if engine is None:
                options = {**_without_pool(self._options), "poolclass": NullPool}
                engine = self._admins[location] = self._create(location, options)
            return engine

    def async_for_location(self, location: Location, *, is_routed: bool = False) -> AsyncEngine:
        """Return the pooled async engine of the location for the running event loop."""
        loop = asyncio.get_running_loop()
        name = (location, is_routed, id(loop))
        entry = self._async.get(name)
        if entry is not None and entry.loop is loop:
            return entry.engine
        with self._lock:
            self._drop_closed_loops()
            engine = self._create_async(location, is_routed=is_routed)
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
        """Close all pooled connections, those of this event loop too."""
        with self._lock:
            self._drop_closed_loops()
            loop = asyncio.get_running_loop()
            names = [name for name, entry in self._async.items() if entry.loop is loop]
            engines = [self._async.pop(name).engine for name in names]
        for engine in engines:
            await engine.dispose()
        self.dispose()

    def forget(self) -> None:
        """Leave all connections to the process that this one was forked from."""
        self._lock = threading.Lock()  # because a thread that is not here may have held the old one
        self.workers = WorkerThreads()
        self._inherited = self.idle  # because to close what the parent uses would release its locks
        self.idle = IdleConnections()
        engines = [*self._engines.values(), *self._admins.values()]
        engines += [entry.engine.sync_engine for entry in self._async.values()]
        self._engines.clear()
        self._admins.clear()
        self._async.clear()
        for engine in engines:
            engine.dispose(close=False)

    def _add(self, name: tuple[Location, bool]) -> Engine:
        evicted: list[Engine] = []
        with self._lock:
            engine = self._engines.get(name)
            if engine is None:
                engine = self._create(name[0], self._options, is_routed=name[1])
                self._engines[name] = engine
            while len(self._engines) > self._engines_max:
                evicted.append(self._engines.popitem(last=False)[1])
        self.idle.close(*evicted)
        for old in evicted:
            # Connections in use live on and are closed when they come back.
            old.dispose()
        return engine

    def _create(
        self, location: Location, options: Mapping[str, Any], *, is_routed: bool = False
    ) -> Engine:
        url = _sync_url(location)
        settings = _with_settings(location, options, url.get_driver_name())
        engine = create_engine(url, **settings)
        self._install(engine, location, is_routed=is_routed)
        return engine

    def _create_async(self, location: Location, *, is_routed: bool) -> AsyncEngine:
        url = make_url(location.text)
        if "+" not in url.drivername:
            url = url.set(drivername=_ASYNC_DRIVERS.get(location.backend, url.drivername))
        settings = _with_settings(location, self._options, url.get_driver_name())
        engine = create_async_engine(url, **settings)
        self._install(engine.sync_engine, location, is_routed=is_routed)
        return engine

    def _install(self, engine: Engine, location: Location, *, is_routed: bool) -> None:
        # Not as "begin" events: a connection of an engine with events costs a third more.
        if location.backend == "sqlite":
            event.listen(engine, "do_connect", _refuse_a_lost_file(location))
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "checkin", _release_sqlite)
        else:
            event.listen(engine, "do_connect", self._log_in(location))
            event.listen(engine, "checkin", _release)
            event.listen(engine, "handle_error", _keep_the_pool)
        dialect: Any = engine.dialect
        dialect.do_begin = _do_begin(dialect, is_routed=is_routed)
        if is_routed:
            dialect.do_execute = _checking_rows(dialect.do_execute)
            dialect.do_executemany = _checking_rows(dialect.do_executemany)

    def _log_in(self, location: Location) -> Callable[..., None]:
        def log_in(
            dialect: Dialect, _record: ConnectionPoolEntry, _positional: Any, named: dict[str, Any]
        ) -> None:
            url = self.login(location)
            if url is not None:
                kept = {"user", "password"}
                given = dialect.create_connect_args(url)[1]
                named.update({name: value for name, value in given.items() if name in kept})

        return log_in

    def login(self, location: Location) -> URL | None:
        """Return a URL whose user and password are for the location; None: the driver's own."""
        answer = self._credentials(location) if self._credentials is not None else None
        if answer is not None:
            return _parsed(answer)
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


# Two processes that talk on one socket would read each other's answers.
os.register_at_fork(after_in_child=_forget_all)


class _AsyncEntry:
    __slots__ = ("engine", "loop")

    def __init__(self, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.loop = loop


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


def _refuse_a_lost_file(location: Location) -> Callable[..., None]:
    file = file_of(location)
    assert file is not None

    def refuse(dialect: Dialect, *_rest: object) -> None:
        if not file.exists():
            # As the driver's own error, because it is handled where a server is not there.
            message = f"there is no file {file}"
            raise dialect.loaded_dbapi.OperationalError(message)

    return refuse


def _set_up_sqlite(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _do_begin(dialect: Dialect, *, is_routed: bool) -> Callable[[PoolProxiedConnection], None]:
    """Return what begins a transaction; every routed call comes by here, so it calls little."""
    begin: _Begin = _begin_later
    touched: Callable[[PoolProxiedConnection], Any] | None = None
    if dialect.name == "sqlite":
        begin = _begin_sqlite_async if dialect.is_async else _begin_sqlite
        touched = sqlite_connection if dialect.is_async else _driver_connection

    def begin_and_enter(pooled: PoolProxiedConnection) -> None:
        writes = False
        if is_routed:
            enter = pooled.info.get(ENTER)
            if enter is None:
                raise _not_validated()
            writes = enter.writes
            begin(pooled, writes)
            enter(dialect, pooled)
        elif pooled.info.pop(SINGLE, False):
            return
        else:
            begin(pooled, writes)
        if touched is not None:
            touched(pooled).is_untouched = not writes

    return begin_and_enter


def _checking_rows(execute: Callable[..., None]) -> Callable[..., None]:
    """Return what executes a statement after a look at the rows that it stores."""

    def check_and_execute(
        cursor: Any, statement: str, parameters: Any, context: Any = None
    ) -> None:
        if context is not None and (context.isinsert or context.isupdate):
            enter = context.root_connection.info.get(ENTER)
            if enter is not None:
                enter.check_rows(context)
        execute(cursor, statement, parameters, context)

    return check_and_execute


def _begin_later(_pooled: PoolProxiedConnection, _writes: bool) -> None:  # noqa: FBT001 - as above
    """Do nothing: the driver sends BEGIN with the first statement."""


def _driver_connection(pooled: PoolProxiedConnection) -> Any:
    return pooled.dbapi_connection


def _begin_sqlite(pooled: PoolProxiedConnection, writes: bool) -> None:  # noqa: FBT001 - as above
    driver: Any = pooled.dbapi_connection
    if writes:
        driver.begin_to_write()
    else:
        driver.begin()


def _begin_sqlite_async(pooled: PoolProxiedConnection, writes: bool) -> None:  # noqa: FBT001
    cursor = pooled.cursor()
    # In the connection's own thread, which may wait where the event loop must not.
    sqlite_connection(pooled).is_untouched = writes
    cursor.execute(BEGIN_IMMEDIATE if writes else "BEGIN")
    cursor.close()


def _not_validated() -> StaleMappingError:
    # SQLAlchemy took another session for one that was lost, and nobody validated it.
    return StaleMappingError(
        "ConnectionLost",
        "The routed connection was lost, and its successor is not validated.",
        hint="Close it and connect again: map.run() does it.",
    )


def _release_sqlite(connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    if connection is None:
        return
    driver = sqlite_connection(connection)
    if record.info.pop(ENTER, None) is not None or driver.is_ended:
        driver.release()


def sqlite_connection(connection: Any) -> RevocableConnection:
    """Return the driver's connection below SQLAlchemy's, and below aiosqlite's."""
    if isinstance(connection, RevocableConnection):
        return connection
    below = connection.driver_connection or connection.dbapi_connection  # if it is in no pool
    found = getattr(below, "_conn", below)
    assert isinstance(found, RevocableConnection)
    return found


def _release(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info.pop(ENTER, None)
    if record.info.pop(SPOILED, None):
        record.invalidate()


def _keep_the_pool(context: ExceptionContext) -> None:
    # A mover terminates single sessions: the others of the pool are sound. Those that are not
    # are found one by one, before they are handed out, when the router validates.
    if context.is_disconnect:
        context.invalidate_pool_on_disconnect = False
        # SQLAlchemy leaves the cursor of a lost connection; psycopg warns of one on the server.
        cursor = getattr(context.execution_context, "cursor", None)
        if cursor is not None:
            with suppress(Exception):
                cursor.close()
