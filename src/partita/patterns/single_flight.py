"""Locks by key: callers that want the same key run one after another, others do not wait.

The first caller fills the cache and the others find its result: a hundred tasks that miss the same
entry read it once. Several keys are locked in sorted order, so that callers cannot deadlock.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Generic, TypeVar

from partita.patterns.protocol.values import RowKey

L = TypeVar("L")


class _Locks(Generic[L]):
    """The locks in use, with the number of callers that hold each or wait for it."""

    def __init__(self, new_lock: Callable[[], L]) -> None:
        self._new_lock = new_lock
        self._locks: dict[RowKey, L] = {}
        self._users: dict[RowKey, int] = {}
        self._counting = threading.Lock()

    def enter(self, key: RowKey) -> L:
        with self._counting:
            self._users[key] = self._users.get(key, 0) + 1
            return self._locks.setdefault(key, self._new_lock())

    def leave(self, key: RowKey) -> None:
        with self._counting:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]


class AsyncKeyLocks:
    """Locks by key, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._locks = _Locks(asyncio.Lock)

    @asynccontextmanager
    async def hold(self, keys: Iterable[RowKey]) -> AsyncIterator[None]:
        """Hold the locks of these keys inside the context."""
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                lock = self._locks.enter(key)
                stack.callback(self._locks.leave, key)
                await stack.enter_async_context(lock)
            yield


class KeyLocks:
    """Locks by key, for threads."""

    def __init__(self) -> None:
        self._locks = _Locks(threading.Lock)

    @contextmanager
    def hold(self, keys: Iterable[RowKey]) -> Iterator[None]:
        """Hold the locks of these keys inside the context."""
        with ExitStack() as stack:
            for key in sorted(set(keys)):
                lock = self._locks.enter(key)
                stack.callback(self._locks.leave, key)
                stack.enter_context(lock)
            yield
