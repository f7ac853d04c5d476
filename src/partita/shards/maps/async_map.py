"""The operations of a shard map that work on rows, for asyncio.

They have the names of `ShardMap`; its own names with an `a` in front are the same functions.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, Unpack, overload

from sqlalchemy import URL, Executable
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from partita.shards.fan_out.plan import FanOutOptions
from partita.shards.fan_out.tasks import AsyncFanOutResult, afan_out
from partita.shards.maps.open_map import OpenMap, Where
from partita.shards.maps.shard_connections import aconnect_shard
from partita.shards.routing import router
from partita.shards.routing.retry import AnyPolicy, arun
from partita.shards.routing.session import AsyncRoutedSessionmaker, async_sessionmaker

T = TypeVar("T")
A = TypeVar("A", bound=AsyncSession)


class AsyncShardMap:
    """A shard map for asyncio: `tenants.aio.run(key, work)`; `ShardMap.aio` returns it."""

    def __init__(self, shard_map: OpenMap) -> None:
        self._map: Any = shard_map

    def connect(
        self, key: Any, **options: Unpack[router.ConnectOptions]
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        """Return an async connection as `ShardMap.connect()` does: `async with … as connection`."""
        return router.aconnect(self._map, key, **options)

    def connect_shard(
        self, where: Where, *, validate: bool = True, credentials: URL | str | None = None
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        """Return an async connection to a shard of the map, as `ShardMap.connect_shard()` does."""
        return aconnect_shard(self._map, where, validate=validate, credentials=credentials)

    @overload
    def sessionmaker(self, *, class_: type[A], **options: Any) -> AsyncRoutedSessionmaker[A]: ...
    @overload
    def sessionmaker(self, **options: Any) -> AsyncRoutedSessionmaker[AsyncSession]: ...
    def sessionmaker(self, **options: Any) -> AsyncRoutedSessionmaker[Any]:
        """Return a factory of async sessions."""
        return async_sessionmaker(self._map, **options)

    @overload
    def begin(
        self, key: Any, *, class_: type[A], **options: Any
    ) -> AbstractAsyncContextManager[A]: ...
    @overload
    def begin(self, key: Any, **options: Any) -> AbstractAsyncContextManager[AsyncSession]: ...
    def begin(self, key: Any, **options: Any) -> AbstractAsyncContextManager[Any]:
        """Open a session of a key and a transaction that is committed at the end of the block."""
        return async_sessionmaker(self._map, **options).begin(key)

    @overload
    async def run(
        self,
        key: Any,
        fn: Callable[[A], Awaitable[T]],
        *,
        class_: type[A],
        retry: AnyPolicy | None = None,
        idempotent: bool = False,
        **options: Any,
    ) -> T: ...
    @overload
    async def run(
        self,
        key: Any,
        fn: Callable[[AsyncSession], Awaitable[T]],
        *,
        retry: AnyPolicy | None = None,
        idempotent: bool = False,
        **options: Any,
    ) -> T: ...
    @overload
    async def run(
        self,
        key: Any,
        fn: Callable[..., Awaitable[T]],
        argument: Any,
        *arguments: Any,
        retry: AnyPolicy | None = None,
        idempotent: bool = False,
        **options: Any,
    ) -> T: ...
    async def run(
        self,
        key: Any,
        fn: Callable[..., Awaitable[T]],
        *arguments: Any,
        retry: AnyPolicy | None = None,
        idempotent: bool = False,
        **options: Any,
    ) -> T:
        """Await `fn(session, *arguments)` in a routed transaction, commit, return its result."""
        given = {"retry": retry, "idempotent": idempotent, **options}
        return await arun(self._map, key, fn, *arguments, **given)

    def fan_out(self, statement: Executable, **options: Unpack[FanOutOptions]) -> AsyncFanOutResult:
        """Run a SELECT on many shards and return their rows for `async for`."""
        return afan_out(self._map, statement, **options)
