"""Turns by key: what must read before it writes waits for the others of the same key.

Only a courtesy within one front end: without it, all but one of the changes of an often changed
entity would find that it had changed since they read it, and read it again. The database decides.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager


class Turns:
    """Who is at work on each key, and who waits."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Future[None]] = {}
        """By key: the end of the turn that was taken last."""

    @asynccontextmanager
    async def take(self, keys: Sequence[Hashable]) -> AsyncIterator[None]:
        """Wait for all who asked for one of the keys before."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = {last for key in keys if (last := self._last.get(key)) is not None}
        self._last.update(dict.fromkeys(keys, mine))
        try:
            if before:
                await asyncio.wait(before)
            yield
        finally:
            mine.set_result(None)
            for key in keys:
                if self._last.get(key) is mine:
                    del self._last[key]
