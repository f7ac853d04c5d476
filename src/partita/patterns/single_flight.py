"""Turns: those that want the same key at once go one after the other, and the rest do not wait.

So what the first one finds out is known to the others, and a hundred tasks that miss the same
entry of a cache ask for it once. Several keys are taken in their order: nobody waits for whom
waits for it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Generic, TypeVar

from partita.patterns.protocol.values import RowKey

L = TypeVar("L")


class _Turn(Generic[L]):
    def __init__(self, lock: L) -> None:
        self.lock = lock
        self.wanted = 0
        """How many hold it or wait for it; who is the last to leave removes it."""


class AsyncTurns:
    """Turns of tasks in one loop."""

    def __init__(self) -> None:
        self._turns: dict[RowKey, _Turn[asyncio.Lock]] = {}

    @asynccontextmanager
    async def of(self, keys: Iterable[RowKey]) -> AsyncIterator[None]:
        """Have the turn of all these keys inside the context."""
        async with AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                turn = self._turns.setdefault(key, _Turn(asyncio.Lock()))
                turn.wanted += 1
                stack.callback(self._leave, key, turn)
                await stack.enter_async_context(turn.lock)
            yield

    def _leave(self, key: RowKey, turn: _Turn[asyncio.Lock]) -> None:
        turn.wanted -= 1
        if not turn.wanted:
            del self._turns[key]


class Turns:
    """Turns of threads."""

    def __init__(self) -> None:
        self._turns: dict[RowKey, _Turn[threading.Lock]] = {}
        self._counting = threading.Lock()

    @contextmanager
    def of(self, keys: Iterable[RowKey]) -> Iterator[None]:
        """Have the turn of all these keys inside the context."""
        with ExitStack() as stack:
            for key in sorted(set(keys)):
                with self._counting:
                    turn = self._turns.setdefault(key, _Turn(threading.Lock()))
                    turn.wanted += 1
                stack.callback(self._leave, key, turn)
                stack.enter_context(turn.lock)
            yield

    def _leave(self, key: RowKey, turn: _Turn[threading.Lock]) -> None:
        with self._counting:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[key]
