"""Change feeds of `partita.reliable.sync`, written by hand: the loop reads ahead in a task."""

import asyncio
import contextlib
import threading
from collections import deque
from typing import Any, Generic, Self, TypeVar

from partita.errors import StateClosedError, UsageError
from partita.reliable.blocking import PAGE_ROWS, OpenCollection, StateThread
from partita.reliable.collections.change_feed import Change
from partita.reliable.collections.change_feed import ChangeFeed as AsyncChangeFeed
from partita.reliable.collections.dictionary import ReliableDictionary as AsyncDictionary
from partita.reliable.values.arguments import checked_timeout

K = TypeVar("K")
V = TypeVar("V")


class OpenDictionary(OpenCollection[AsyncDictionary[K, V]], Generic[K, V]):
    """An open dictionary, with its change feeds."""

    def changes(self, *, since: int = 0, wait: float | None = None) -> "ChangeFeed[K, V]":
        """Return the feed of changes after a sequence: `with users.changes(since=n) as feed`.

        Iterating ends when no change has arrived for `wait` seconds; without `wait`, never.
        """
        return ChangeFeed(self._thread, self.inner.changes(since=since), wait)


class ChangeFeed(Generic[K, V]):
    """The changes of one dictionary: `with users.changes(since=n) as feed: for change in feed`.

    A task of the loop reads up to one page ahead; an interrupted wait loses no change.
    """

    def __init__(
        self, thread: StateThread, inner: AsyncChangeFeed[K, V], wait: float | None
    ) -> None:
        self._thread = thread
        self._inner = inner
        self._wait = None if wait is None else checked_timeout(wait)
        self._turn = threading.RLock()  # reentrant: an interrupt may come while it is held
        self._page: deque[Change[K, V]] = deque()
        """Fetched changes that were not yielded yet. The loop fills it while the reader waits."""
        self._ahead: list[Change[K, V]] = []
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        self._thread.run(self._open())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._is_closed = True
        with contextlib.suppress(StateClosedError):
            self._thread.run(self._shut(*raised))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[K, V]:
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                "FeedInUse",
                "A change feed was read by two threads at once.",
                hint="Open a feed for each thread.",
            )
        try:
            if not self._page and not self._is_closed:
                with contextlib.suppress(StateClosedError):
                    self._thread.run(self._fill())
            if self._is_closed or not self._page:
                raise StopIteration
            return self._page.popleft()
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the iteration, also in a thread that waits; closing again has no effect."""
        self._is_closed = True
        self._thread.post(self._inner.close)

    # --- in the thread of the loop --------------------------------------------------------

    async def _open(self) -> None:
        await self._inner.__aenter__()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            async for change in self._inner:
                self._ahead.append(change)
                self._arrived.set()
                if len(self._ahead) >= PAGE_ROWS:
                    self._taken.clear()
                    await self._taken.wait()
        finally:
            self._arrived.set()

    async def _fill(self) -> None:
        reading = self._reading
        if reading is None:
            await anext(self._inner)  # raises: it is not open
            return
        if not self._ahead and not reading.done():
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait):
                    await self._arrived.wait()
        self._page.extend(self._ahead)
        self._ahead.clear()
        self._taken.set()
        if not self._page and reading.done():
            await reading  # raises the error that ended it

    async def _shut(self, *raised: Any) -> None:
        await self._inner.__aexit__(*raised)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
