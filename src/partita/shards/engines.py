"""One SQLAlchemy engine for each database, with the settings that routing relies on.

An engine is made at its first use; the least recently used ones beyond `engines_max` are closed.
Rule: a transaction begins where SQLAlchemy says it begins. SQLite gets a real BEGIN (the driver's
own mode would let a stale write pass), and where a routed connection begins, what its `ENTER` holds
is called on that very connection.
"""

import asyncio
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, PoolProxiedConnection

from partita.errors import StaleMappingError
from partita.shards.mapping import Location
from partita.shards.revocable import RevocableConnection

ENGINES_MAX = 64
"""The most engines, and so pools, that are kept open."""
BUSY_TIMEOUT_SECONDS = 15.0
"""How long an SQLite connection waits for the writer before it."""
ENTER = "partita.enter"
"""Where a pooled connection keeps what must be called when its next transaction begins."""
LEASE = "partita.lease"
"""Where a pooled connection keeps the id of the mapping whose session lock it holds."""
SPOILED = "partita.spoiled"
"""Set where a pooled connection must be closed instead of being used again."""

_Enter = Callable[[PoolProxiedConnection], None]
Credentials = Callable[[Location], URL | str | None]
_ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
_SYNC_DRIVERS = {"aiosqlite": "sqlite", "asyncpg": "postgresql+psycopg"}


def location_of(url: str | URL) -> Location:
    """Return where the URL leads, without its secrets; SQLite paths become absolute."""
    return Location.from_url(make_url(url), relative_to=str(Path.cwd()))


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
        self.pauses: dict[str, tuple[float, float]] = {}
        """When the clients of an unreachable shard may ask the global catalog again, by shard id:
        not before, and the pause after that. The router moves it."""

    def remember(self, url: str | URL) -> Location:
        """Keep user and password of the URL in memory, for its server, and return its location."""
        parsed = make_url(url)
        if parsed.username or parsed.password:
            server = (parsed.get_backend_name(), (parsed.host or "").lower(), parsed.port)
            self._given[server] = parsed
        return location_of(parsed)

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
                engine = self._admins[location] = self._create(location, {"poolclass": NullPool})
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
        for engine in engines:
            engine.dispose()

    async def adispose(self) -> None:
        """Close all pooled connections, async ones too."""
        with self._lock:
            loop = asyncio.get_running_loop()
            entries = [entry for entry in self._async.values() if entry.loop is loop]
            self._async.clear()
        for entry in entries:
            await entry.engine.dispose()
        self.dispose()

    def _add(self, name: tuple[Location, bool]) -> Engine:
        evicted: list[Engine] = []
        with self._lock:
            engine = self._engines.get(name)
            if engine is None:
                engine = self._create(name[0], self._options, is_routed=name[1])
                self._engines[name] = engine
            while len(self._engines) > self._engines_max:
                evicted.append(self._engines.popitem(last=False)[1])
        for old in evicted:
            # Connections in use live on and are closed when they come back.
            old.dispose()
        return engine

    def _create(
        self, location: Location, options: Mapping[str, Any], *, is_routed: bool = False
    ) -> Engine:
        url = make_url(location.text)
        if url.get_driver_name() in _SYNC_DRIVERS:
            url = url.set(drivername=_SYNC_DRIVERS[url.get_driver_name()])
        engine = create_engine(url, **_with_settings(location, options))
        self._install(engine, location, is_routed=is_routed)
        return engine

    def _create_async(self, location: Location, *, is_routed: bool) -> AsyncEngine:
        url = make_url(location.text)
        if "+" not in url.drivername:
            url = url.set(drivername=_ASYNC_DRIVERS.get(location.backend, url.drivername))
        engine = create_async_engine(url, **_with_settings(location, self._options))
        self._install(engine.sync_engine, location, is_routed=is_routed)
        return engine

    def _install(self, engine: Engine, location: Location, *, is_routed: bool) -> None:
        # Not as "begin" events: a connection of an engine with events costs a third more.
        if location.backend == "sqlite":
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "checkin", _release_sqlite)
            begin = _begin_sqlite_async if engine.dialect.is_async else _begin_sqlite
        else:
            event.listen(engine, "do_connect", self._log_in(location))
            event.listen(engine, "checkin", _release)
            event.listen(engine, "handle_error", _keep_the_pool)
            begin = _begin
        enter = _enter if is_routed else _pass
        do_begin = functools.partial(begin, functools.partial(enter, engine.dialect))
        engine.dialect.do_begin = do_begin  # type: ignore[method-assign]

    def _log_in(self, location: Location) -> Callable[..., None]:
        def log_in(
            dialect: Dialect, _record: ConnectionPoolEntry, _positional: Any, named: dict[str, Any]
        ) -> None:
            url = self._credentials_of(location)
            if url is not None:
                kept = {"user", "password"}
                given = dialect.create_connect_args(url)[1]
                named.update({name: value for name, value in given.items() if name in kept})

        return log_in

    def _credentials_of(self, location: Location) -> URL | None:
        answer = self._credentials(location) if self._credentials is not None else None
        if answer is not None:
            return make_url(answer)
        return self._given.get((location.backend, location.host, location.port))

    def _drop_closed_loops(self) -> None:
        for name, entry in list(self._async.items()):
            if entry.loop.is_closed():
                del self._async[name]
                entry.engine.sync_engine.dispose(close=False)


class _AsyncEntry:
    __slots__ = ("engine", "loop")

    def __init__(self, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.loop = loop


def _with_settings(location: Location, options: Mapping[str, Any]) -> dict[str, Any]:
    if location.backend != "sqlite":
        return dict(options)
    settings = {
        "timeout": BUSY_TIMEOUT_SECONDS,
        "isolation_level": None,
        "factory": RevocableConnection,
    }
    return {**options, "connect_args": {**settings, **options.get("connect_args", {})}}


def _set_up_sqlite(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(enter: _Enter, pooled: PoolProxiedConnection) -> None:
    driver = pooled.driver_connection
    assert isinstance(driver, RevocableConnection)
    driver.begin()
    enter(pooled)


def _begin_sqlite_async(enter: _Enter, pooled: PoolProxiedConnection) -> None:
    cursor = pooled.cursor()
    cursor.execute("BEGIN")
    cursor.close()
    enter(pooled)


def _begin(enter: _Enter, pooled: PoolProxiedConnection) -> None:
    # The driver sends BEGIN with the first statement.
    enter(pooled)


def _enter(dialect: Dialect, pooled: PoolProxiedConnection) -> None:
    enter = pooled.info.get(ENTER)
    if enter is None:
        # Because SQLAlchemy took another session for one that was lost, and nobody validated it.
        raise StaleMappingError(
            "ConnectionLost",
            "The routed connection was lost, and its successor is not validated.",
            hint="Close it and connect again: map.run() does it.",
        )
    enter(dialect, pooled)


def _pass(_dialect: Dialect, _pooled: PoolProxiedConnection) -> None:
    pass


def _release_sqlite(connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    if connection is None:
        return
    if record.info.pop(ENTER, None) is not None:
        sqlite_connection(connection).release()


def sqlite_connection(connection: Any) -> RevocableConnection:
    """Return the driver's connection below SQLAlchemy's, and below aiosqlite's."""
    if isinstance(connection, RevocableConnection):
        return connection
    below = connection.driver_connection
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
