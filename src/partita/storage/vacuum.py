"""The background vacuum of a database file: pages that stay free are returned to the disk.

A delete leaves free pages in the file, and later writes use them. What no write has used for some
time is returned: a step moves the last pages of the file to free places in front of them, and the
next checkpoint truncates the file. A step is one short transaction in the commit thread, and the
pauses between the steps are longer than the steps.

Only a file that was created or compacted with `auto_vacuum = INCREMENTAL` can be vacuumed in
steps; `partita compact` converts others.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import apsw

from partita.errors import PartitaError
from partita.storage.disk_reserve import RESERVE_BYTES

logger = logging.getLogger("partita.storage.vacuum")

LOOK_SECONDS = 10.0
"""How often the free pages are counted."""
LOOKS = 3
"""Pages count as unused if they were free at this many counts in a row."""
START_BYTES = 16 * 1024 * 1024
"""Unused pages with fewer bytes stay in the file."""
KEEP_BYTES = 4 * 1024 * 1024
"""What a vacuum leaves for later writes."""
STEP_PAGES_MAX = 64
STEP_SECONDS_MAX = 0.005
"""A step ends after this many pages, or after this time: a commit waits for one step at most."""
PAUSE_SECONDS = 0.02
PAUSE_FACTOR = 4
"""The pause after a step: the longer one of a fixed time and a multiple of the step's."""
ROOM_BYTES_MIN = RESERVE_BYTES // 4
"""With less free space on the disk there is no vacuum: its pages pass through the log."""
ROOM_SHORT_BYTES = 64 * 1024 * 1024
SHORT_STEP_PAGES = 8
"""With less free space than this a step has fewer pages, so that its log needs little of it."""
INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum` of files that can be vacuumed in steps."""

T = TypeVar("T")


class Vacuumed(Protocol):
    """What is used of a database."""

    reader: apsw.Connection

    @property
    def is_writable(self) -> bool: ...

    def find_room(self) -> int:
        """Return the free bytes of the disk; 0 while it counts as full."""
        ...

    async def run_alone(
        self, work: Callable[[apsw.Connection], Coroutine[Any, Any, T]], *, frees_space: bool
    ) -> T: ...

    def checkpoint_soon(self) -> None:
        """Start to copy the log into the main file, which also truncates the file."""
        ...


class Vacuum:
    """The vacuum of one database; it begins by itself until `close`."""

    _timer: asyncio.TimerHandle | None = None
    _task: "asyncio.Task[None] | None" = None

    def __init__(self, database: Vacuumed, page_bytes: int) -> None:
        self._database = database
        self._page_bytes = page_bytes
        self._loop = asyncio.get_running_loop()
        self._free: deque[int] = deque(maxlen=LOOKS)
        """The last counts of free pages."""
        self.is_possible = database.reader.pragma("auto_vacuum") == INCREMENTAL
        if self.is_possible:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _look(self) -> None:
        if not self._database.is_writable:
            return
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        with contextlib.suppress(apsw.Error):  # a disk that fails is reported by the next change
            self._free.append(self._database.reader.pragma("freelist_count"))
        is_idle = self._task is None or self._task.done()
        pages = surplus_pages(self._free, self._page_bytes)
        if pages and is_idle and self._database.find_room() >= ROOM_BYTES_MIN:
            self._task = self._loop.create_task(self._run(pages))

    async def _run(self, pages: int) -> None:
        # Because a full or busy disk only delays the vacuum, and the database reports a failed one.
        with contextlib.suppress(PartitaError, OSError):
            await self.vacuum(pages)

    async def vacuum(self, pages: int) -> int:
        """Return up to this many pages to the disk, step by step; return how many it were."""
        done = 0
        while done < pages and (room := self._database.find_room()) >= ROOM_BYTES_MIN:
            begun = self._loop.time()
            size = STEP_PAGES_MAX if room >= ROOM_SHORT_BYTES else SHORT_STEP_PAGES
            removed = await self._step(min(pages - done, size))
            if not removed:
                break
            done += removed
            await asyncio.sleep(max(PAUSE_SECONDS, PAUSE_FACTOR * (self._loop.time() - begun)))
        self._free.clear()
        if done:
            self._database.checkpoint_soon()
            logger.info("the vacuum returned %d bytes to the disk", done * self._page_bytes)
        return done

    async def _step(self, pages: int) -> int:
        async def work(connection: apsw.Connection) -> int:
            deadline = self._loop.time() + STEP_SECONDS_MAX
            removed = 0
            cursor = connection.cursor()
            # SQLite returns one row per page that it has removed from the end of the file.
            for _ in cursor.execute(f"PRAGMA incremental_vacuum({pages})"):
                removed += 1
                if self._loop.time() >= deadline:
                    break
            cursor.close(force=True)
            return removed

        return await self._database.run_alone(work, frees_space=True)


def surplus_pages(free: Sequence[int], page_bytes: int) -> int:
    """Return how many pages to remove, by the last counts of free pages."""
    if len(free) < LOOKS or min(free) * page_bytes < START_BYTES:
        return 0
    return min(free) - KEEP_BYTES // page_bytes
