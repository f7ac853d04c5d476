"""The threads that hash, write, sync and read content.

Readers have their own threads: a slow sync must not delay reads.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

WRITING_THREADS = 4
READING_THREADS = 2

T = TypeVar("T")


class ContentThreads:
    """A few threads of one store."""

    def __init__(self, count: int, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(count, name)

    def start(self, call: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Run a call in a thread. Cancelling the future would not stop the thread: see `run`."""
        return self._loop.run_in_executor(self._threads, lambda: call(*arguments))

    async def run(self, call: Callable[..., T], *arguments: object) -> T:
        """Return the result of a call; a cancelled caller leaves it running."""
        return await asyncio.shield(self.start(call, *arguments))

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
