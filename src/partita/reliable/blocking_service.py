"""Services and restores of `partita.reliable.sync`, written by hand.

A service runs on an event loop in its own thread, with the states that this process holds. The
user's functions are ordinary ones: they run in other threads, where they may block.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

from partita.keys import Key
from partita.reliable.blocking import EXIT_SECONDS, OpenState, StateThread, refuse_running_loop
from partita.reliable.manager.backup import Restored
from partita.reliable.manager.state_manager import StateManager as AsyncStateManager
from partita.reliable.restoring import restore_state as restore_async
from partita.reliable.service.requests import Request
from partita.reliable.service.service import REQUEST_SECONDS
from partita.reliable.service.service import Service as AsyncService
from partita.reliable.storage.checkpoint import Progress
from partita.ticks import Clock

S = TypeVar("S", bound=OpenState)

Block = contextlib.AbstractAsyncContextManager[AsyncService]
"""What `partita.open_service` returns."""

HANDLERS_MAX = 32
"""Threads that answer requests of one service in this process."""


class Held(Generic[S]):
    """The synchronous states of a service, one for each state that this process holds."""

    def __init__(self, make: Callable[[StateThread, AsyncStateManager, None], S]) -> None:
        self._make = make
        self._held: dict[AsyncStateManager, S] = {}
        self.thread = StateThread()
        self.handlers = ThreadPoolExecutor(HANDLERS_MAX, "partita-service")

    def state(self, inner: AsyncStateManager) -> S:
        """Return the synchronous state of an asynchronous one."""
        if inner not in self._held:
            self._held = {one: kept for one, kept in self._held.items() if not one.is_closed}
            self._held[inner] = self._make(self.thread, inner, None)
        return self._held[inner]

    def opened(
        self, function: Callable[[S], None]
    ) -> Callable[[AsyncStateManager], Awaitable[None]]:
        """Return what the service awaits when a state was opened."""

        async def call(inner: AsyncStateManager) -> None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.handlers, function, self.state(inner))

        return call

    def handle(
        self, function: Callable[[S, Request], bytes]
    ) -> Callable[[AsyncStateManager, Request], Awaitable[bytes]]:
        """Return what the service awaits to answer a request."""

        async def call(inner: AsyncStateManager, request: Request) -> bytes:
            loop = asyncio.get_running_loop()
            work = functools.partial(function, self.state(inner), request)
            return await loop.run_in_executor(self.handlers, work)

        return call

    def stop(self) -> None:
        self.thread.stop(seconds=EXIT_SECONDS)
        self.handlers.shutdown(wait=False, cancel_futures=True)


class Service(Generic[S]):
    """The part of one process in a service. Open it with `open_service`."""

    def __init__(self, held: Held[S], inner: AsyncService, block: Block) -> None:
        self._held = held
        self._thread = held.thread
        self._inner = inner
        self._block = block
        self._closing = threading.RLock()
        self._is_closed = False
        atexit.register(self.close)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def address(self) -> str:
        """The address of this member in the errors of other members."""
        return self._inner.address

    @property
    def member_id(self) -> str:
        return self._inner.member_id

    @property
    def partitions(self) -> int:
        return self._inner.partitions

    def partition_of(self, key: Key) -> int:
        """Return the partition of a key, which never changes."""
        return self._inner.partition_of(key)

    def states(self) -> dict[int, S]:
        """Return the states that this process holds, by partition, including secondaries."""
        held = self._thread.call(self._inner.states)
        return {partition: self._held.state(inner) for partition, inner in held.items()}

    def state_for(self, key: Key) -> S:
        """Return the state of a key's partition if its primary is in this process.

        Otherwise NotPrimaryError names its address; `request` sends work there.
        """
        return self._held.state(self._thread.call(lambda: self._inner.state_for(key)))

    def request(
        self,
        key: Key,
        payload: bytes = b"",
        *,
        timeout: float = REQUEST_SECONDS,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Send a request to the primary of a key's partition and return its answer.

        While there is no primary or no answer, it is sent again until `timeout`, so that a
        request may arrive more than once, each time with the same id.
        """
        return self._thread.run(
            self._inner.request(key, payload, timeout=timeout, idempotency_key=idempotency_key)
        )

    def close(self) -> None:
        """Hand over all partitions and leave; other members take over within seconds."""
        with self._closing:
            if self._is_closed or self._thread.is_forked:
                return
            refuse_running_loop()
            atexit.unregister(self.close)
            self._is_closed = True
            try:
                if not self._thread.is_stopping:
                    self._thread.finish(self._leave())
            finally:
                self._held.stop()

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _leave(self) -> None:
        await self._block.__aexit__(None, None, None)


def open_service_block(
    make: Callable[[StateThread, AsyncStateManager, None], S],
    open_async: Callable[..., Block],
    opened: Callable[[S], None] | None,
    handle: Callable[[S, Request], bytes] | None,
) -> Service[S]:
    """Join a service in a new thread; the functions are called in other threads."""
    held = Held(make)

    async def joined() -> Service[S]:
        block = open_async(
            opened=None if opened is None else held.opened(opened),
            handle=None if handle is None else held.handle(handle),
        )
        return Service(held, await block.__aenter__(), block)

    try:
        return held.thread.run(joined())
    except BaseException:
        held.stop()
        raise


def restore_state(  # noqa: PLR0913 - by keyword
    backups: str | os.PathLike[str],
    where: str | os.PathLike[str] | Sequence[str],
    *,
    partition: str | None = None,
    replicas: int = 3,
    force: bool = False,
    up_to: int | None = None,
    progress: Progress | None = None,
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Restored:
    """Restore the newest state of a folder of backups, or an older one (`up_to`).

    An existing state in a folder is replaced only if the backup continues it, or with `force`; it
    must not be open in any process. On NATS the state becomes a new partition. `progress` is
    called in another thread.
    """
    thread = StateThread()
    try:
        return thread.run(
            restore_async(
                backups,
                where,
                partition=partition,
                replicas=replicas,
                force=force,
                up_to=up_to,
                progress=progress,
                monitor=monitor,
                connect_options=connect_options,
                clock=clock,
            )
        )
    finally:
        thread.stop(seconds=EXIT_SECONDS)
