"""The routing half of a shard map: its connections, sessions, units of work and fan-outs.

Every method hands on to the module that does the work; this is where users find them.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, Unpack

from sqlalchemy import Connection, Executable
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import scoped_session

from partita.shards.fan_out.fan_out import FanOutResult, fan_out
from partita.shards.fan_out.plan import FannedMap, FanOutOptions
from partita.shards.fan_out.tasks import AsyncFanOutResult, afan_out
from partita.shards.routing import retry as retries
from partita.shards.routing import router, session
from partita.shards.routing.retry import Retry
from partita.shards.routing.router import RoutedMap, Validate
from partita.shards.routing.session import (
    AsyncRoutedSessionmaker,
    RoutedSession,
    RoutedSessionmaker,
)

T = TypeVar("T")


class Routes:
    """Connections and sessions by key; the class that inherits it is the RoutedMap."""

    def connect(
        self: RoutedMap,
        key: Any,
        *,
        validate: Validate = "always",
        isolation_level: str | None = None,
        check_keys: bool = True,
        writes: bool = False,
    ) -> Connection:
        """Return a connection to the key's shard, in a validated transaction: use it in `with`."""
        return router.connect(
            self,
            key,
            validate=validate,
            isolation_level=isolation_level,
            check_keys=check_keys,
            writes=writes,
        )

    def aconnect(
        self: RoutedMap,
        key: Any,
        *,
        validate: Validate = "always",
        isolation_level: str | None = None,
        check_keys: bool = True,
        writes: bool = False,
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        """Give the async twin of `connect()`: `async with map.aconnect(key) as connection`."""
        return router.aconnect(
            self,
            key,
            validate=validate,
            isolation_level=isolation_level,
            check_keys=check_keys,
            writes=writes,
        )

    def sessionmaker(self: RoutedMap, **options: Any) -> RoutedSessionmaker:
        """Return a maker of routed sessions: `Session = map.sessionmaker(); Session(key)`."""
        return session.sessionmaker(self, **options)

    def async_sessionmaker(self: RoutedMap, **options: Any) -> AsyncRoutedSessionmaker:
        """Return a maker of routed async sessions."""
        return session.async_sessionmaker(self, **options)

    def scoped_session(
        self: RoutedMap,
        scopefunc: Callable[[], Any] | None,
        keyfunc: Callable[[], Any],
        **options: Any,
    ) -> scoped_session[RoutedSession]:
        """Return a registry of one session a scope, whose key `keyfunc()` tells."""
        return session.scoped_session(self, scopefunc, keyfunc, **options)

    def run(
        self: RoutedMap,
        key: Any,
        fn: Callable[[RoutedSession], T],
        *,
        retry: Retry | None = None,
        idempotent: bool = False,
        **options: Any,
    ) -> T:
        """Call `fn(session)` in a routed transaction and commit; tries go back through routing."""
        return retries.run(self, key, fn, retry=retry, idempotent=idempotent, **options)

    async def arun(
        self: RoutedMap,
        key: Any,
        fn: Callable[[AsyncSession], Awaitable[T]],
        *,
        retry: Retry | None = None,
        idempotent: bool = False,
        **options: Any,
    ) -> T:
        """Await `fn(session)` in a routed transaction: the async twin of `run()`."""
        return await retries.arun(self, key, fn, retry=retry, idempotent=idempotent, **options)

    def routed(
        self: RoutedMap,
        argument: str,
        *,
        retry: Retry | None = None,
        idempotent: bool = False,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that hands a routed session in, by the key in `argument`."""
        return retries.routed(self, argument, retry=retry, idempotent=idempotent, **options)

    def fan_out(
        self: FannedMap, statement: Executable, **options: Unpack[FanOutOptions]
    ) -> FanOutResult:
        """Run a SELECT on many shards and return their rows."""
        return fan_out(self, statement, **options)

    def afan_out(
        self: FannedMap, statement: Executable, **options: Unpack[FanOutOptions]
    ) -> AsyncFanOutResult:
        """Run a SELECT on many shards and return their rows for `async for`."""
        return afan_out(self, statement, **options)
