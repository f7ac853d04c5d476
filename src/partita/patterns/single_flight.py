"""Locks by key: callers that want the same key run one after another, others do not wait.

The first caller fills the cache and the others find its result: a hundred tasks that miss the same
entry read it once. Several keys are locked in sorted order, so that callers cannot deadlock.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Generic, TypeVar

from partita.patterns.protocol.values import RowKey

L = TypeVar("L")


class _Entry(Generic[L]):
    def __init__(self, lock: L) -> None:
        self.lock = lock
        self.users = 0
        """How many callers hold the lock or wait for it; the last one removes the entry."""


class AsyncKeyLocks:
    """Locks by key, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._entries: dict[RowKey, _Entry[asyncio.Lock]] = {}

    @asynccontextmanager
    async def hold(self, keys: Iterable[RowKey]) -> AsyncIterator[None]:
        """Hold the locks of these keys inside the context."""
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                entry = self._entries.setdefault(key, _Entry(asyncio.Lock()))
                entry.users += 1
                stack.callback(self._leave, key, entry)
                await stack.enter_async_context(entry.lock)
            yield

    def _leave(self, key: RowKey, entry: _Entry[asyncio.Lock]) -> None:
        entry.users -= 1
        if not entry.users:
            del self._entries[key]


class KeyLocks:
    """Locks by key, for threads."""

    def __init__(self) -> None:
        self._entries: dict[RowKey, _Entry[threading.Lock]] = {}
        self._counting = threading.Lock()

    @contextmanager
    def hold(self, keys: Iterable[RowKey]) -> Iterator[None]:
        """Hold the locks of these keys inside the context."""
        with ExitStack() as stack:
            for key in sorted(set(keys)):
                with self._counting:
                    entry = self._entries.setdefault(key, _Entry(threading.Lock()))
                    entry.users += 1
                stack.callback(self._leave, key, entry)
                stack.enter_context(entry.lock)
            yield

    def _leave(self, key: RowKey, entry: _Entry[threading.Lock]) -> None:
        with self._counting:
            entry.users -= 1
            if not entry.users:
                del self._entries[key]
