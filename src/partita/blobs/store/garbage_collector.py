"""Reclaims space: dropped contents, their files, stale blocks, files without a row.

The one rule: a file is removed only after a change without a row for it is durable, and while no
upload claims its hash. A content is purged only while no reader has pinned it. The work is done
in small steps, concurrently with requests.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import apsw

from partita.blobs.rules import limits
from partita.blobs.rules.names import LIVE
from partita.blobs.store.content_claims import Claims
from partita.blobs.store.files import ContentFiles
from partita.blobs.store.rows import BlobRows, BlobTransaction
from partita.blobs.store.threads import ContentThreads
from partita.errors import PartitaError, UnavailableError
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from partita.ticks import TICKS_PER_SECOND

logger = logging.getLogger("partita.blobs")

PURGE_PIECES = 200
"""Pieces, blobs or files that one change removes or checks."""
PAUSE_SECONDS = 0.005
STALE_EVERY_SECONDS = 3600.0
"""How often staged blocks are checked for stale ones."""

_DROPPED = "SELECT content, origin FROM dropped_content ORDER BY content"

Pause = Callable[[str], Awaitable[None]]
"""Called at named points of the collector and of uploads; tests wait there."""


async def no_pause(_place: str) -> None:
    """Continue at once."""


class Collector:
    """The background task of a store."""

    _task: "asyncio.Task[None] | None" = None

    def __init__(
        self,
        database: Database,
        files: ContentFiles,
        threads: ContentThreads,
        claims: Claims,
        clock: StoreClock,
        pause: Pause = no_pause,
    ) -> None:
        self._database = database
        self._files = files
        self._threads = threads
        self._claims = claims
        self._clock = clock
        self._pause = pause
        self._suspects: set[bytes] = set()
        """Hashes whose files may have no row: of refused uploads, or claimed when checked."""
        self._wakes = asyncio.Event()
        self._collecting = asyncio.Lock()
        claims.on_free = self.wake

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Start the work soon."""
        self._wakes.set()

    def suspect(self, digest: bytes) -> None:
        """Check later whether a file has a row."""
        self._suspects.add(digest)
        self._wakes.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def collect(self) -> None:
        """Do all pending work."""
        async with self._collecting:
            while await self._step():  # noqa: ASYNC110 - a pause, so that requests come first
                await asyncio.sleep(PAUSE_SECONDS)

    async def sweep(self) -> None:
        """Remove every file without a row."""
        names = iter(self._files.digests())
        while (digests := await self._threads.run(next, names, None)) is not None:
            rows = BlobRows(self._database.reader_of_this_turn())
            strays = [digest for digest in digests if not rows.is_named(digest)]
            if strays:
                await self._remove_files(strays)

    async def forget_stale(self) -> None:
        """Remove what was kept long enough: staged blocks, and what was deleted."""
        await self._forget_blocks()
        await self.forget_expired()

    async def forget_expired(self) -> None:
        """Remove deleted blobs and containers whose time is over."""
        now, is_more = self._clock.now(), True
        while is_more:
            async with self._database.change(frees_space=True) as connection:
                tx = BlobTransaction(connection, self._clock)
                is_more = await tx.remove_expired(now, PURGE_PIECES) == PURGE_PIECES
            await asyncio.sleep(PAUSE_SECONDS)
        async with self._database.change(frees_space=True) as connection:
            await BlobTransaction(connection, self._clock).drop_expired(now)
        self.wake()

    async def _forget_blocks(self) -> None:
        """Remove blocks that were staged too long ago, and blobs that have only such blocks."""
        deadline = self._clock.now() - limits.STAGED_SECONDS_MAX * TICKS_PER_SECOND

        def read(connection: apsw.Connection) -> list[Any]:
            return connection.execute(
                "SELECT container, name FROM block GROUP BY container, name"
                " HAVING max(staged_at) < ?",
                (deadline,),
            ).fetchall()

        async def forget(container: int, name: str, connection: apsw.Connection) -> None:
            tx = BlobTransaction(connection, self._clock)
            if tx.staged_since(container, name) >= deadline:
                return  # another block was staged since the read
            await tx.discard_blocks(container, name)
            row = tx.get_blob(container, name, LIVE)
            if row is not None and not row.facts.is_committed:
                await tx.remove_blob(row)

        for stale in await self._database.in_reader(read):
            # In the thread: a blob may have 100,000 staged blocks.
            await self._database.run_alone(partial(forget, *stale), frees_space=True)

    async def _run(self) -> None:
        is_swept = await self._try(self.sweep)
        monotonic, stale_at = self._clock.clock.monotonic, 0.0
        while self._database.is_writable:
            self._wakes.clear()
            is_swept = is_swept or await self._try(self.sweep)
            if monotonic() >= stale_at:
                # Not at each wake: it reads all staged blocks.
                await self._try(self.forget_stale)
                stale_at = monotonic() + STALE_EVERY_SECONDS
            await self._try(self.collect)
            alarm = asyncio.get_running_loop().call_later(STALE_EVERY_SECONDS, self._wakes.set)
            try:
                await self._wakes.wait()
            finally:
                alarm.cancel()

    async def _try(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run some work; return whether it completed."""
        try:
            await work()
        except UnavailableError:
            return False  # because a full or busy disk only delays the work; a stopped one ends it
        except PartitaError:
            logger.exception("the collector of blobs failed; it will retry")
            return False
        return True

    async def _step(self) -> bool:
        """Do the work of one change; return whether there may be more."""
        reader = self._database.reader_of_this_turn()
        container = reader.execute("SELECT id FROM dropped_container LIMIT 1").get
        if container is not None:
            async with self._database.change(frees_space=True) as connection:
                tx = BlobTransaction(connection, self._clock)
                await tx.purge_container(container, PURGE_PIECES)
            return True
        contents = self._unpinned(reader.execute(_DROPPED))
        if contents:
            await self._purge(contents)
            return True
        suspects = [digest for digest in self._suspects if not self._claims.is_claimed(digest)]
        self._suspects.difference_update(suspects)
        if suspects:
            await self._remove_files(suspects)
        return bool(suspects)

    def _unpinned(self, dropped: Iterable[Any]) -> list[tuple[int, int]]:
        free = (pair for pair in dropped if not self._claims.is_pinned(pair[1]))
        return list(itertools.islice(free, PURGE_PIECES))

    async def _purge(self, contents: Sequence[tuple[int, int]]) -> None:
        """Remove some pieces of dropped contents, extents that only they used, their files."""
        leaving: list[bytes] = []
        with self._ending(leaving):
            async with self._database.change(frees_space=True) as connection:
                tx = BlobTransaction(connection, self._clock)
                room = PURGE_PIECES
                for content, origin in contents:
                    if room > 0 and not self._claims.is_pinned(origin):
                        count, digests = tx.purge(content, room)
                        room -= count
                        self._take(tx, digests, leaving)
            await self._remove(leaving, "purged")

    async def _remove_files(self, digests: Iterable[bytes]) -> None:
        """Remove the files that have no row."""
        leaving: list[bytes] = []
        with self._ending(leaving):
            async with self._database.change(frees_space=True) as connection:
                self._take(BlobTransaction(connection, self._clock), digests, leaving)
            await self._remove(leaving, "checked")

    def _take(self, tx: BlobTransaction, digests: Iterable[bytes], leaving: list[bytes]) -> None:
        """Mark the files to remove, in the same turn of the loop as the check of the rows."""
        for digest in digests:
            if tx.is_named(digest):
                continue
            if self._claims.begin_leaving(digest):
                leaving.append(digest)
            else:
                self._suspects.add(
                    digest
                )  # it is claimed: check it again when the claim is released

    async def _remove(self, leaving: Sequence[bytes], place: str) -> None:
        """Remove files after the removal of their rows is durable."""
        await self._pause(place)
        if leaving:
            await self._database.harden()
        for digest in leaving:
            await self._threads.run(self._files.remove, digest)

    @contextlib.contextmanager
    def _ending(self, leaving: Sequence[bytes]) -> Iterator[None]:
        """Release these hashes at the end, so that waiting uploads continue."""
        try:
            yield
        finally:
            for digest in leaving:
                self._claims.end_leaving(digest)
