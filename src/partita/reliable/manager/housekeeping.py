"""Work beside the transactions: checkpoints, truncation, indexes, removal of expired rows."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from partita.errors import NotPrimaryError, PartitaError, StateClosedError
from partita.metrics.families import Histogram
from partita.reliable.collections.committer import LogProgress
from partita.reliable.collections.transaction import Core
from partita.reliable.manager.backup import Backups
from partita.reliable.manager.index_builder import IndexBuilder
from partita.reliable.manager.open_collections import OpenCollections
from partita.reliable.manager.runner import Runner
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.increments import IncrementalCheckpoints
from partita.reliable.storage.log import Log

logger = logging.getLogger("partita.reliable")

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""A checkpoint is due after this much log, or as much as the last checkpoint has."""
HOUSEKEEPING_SECONDS = 0.5
LOOK_SECONDS_MIN = 0.01
"""The shortest wait between two looks at the clock."""
SWEPT_AT_ONCE = 500

AfterCheckpoint = Callable[[], Awaitable[None]]
PurgeLimit = Callable[[], Awaitable[int]]


class CheckpointWriter:
    """Writes checkpoints and truncates the log that they replace."""

    def __init__(
        self,
        core: Core,
        log: Log,
        checkpoints: Checkpoints,
        backups: Backups,
        progress: LogProgress,
        *,
        checkpoint_bytes: int,
    ) -> None:
        self._core = core
        self._log = log
        self._checkpoints = checkpoints
        self._backups = backups
        self._progress = progress
        self._checkpoint_bytes = checkpoint_bytes
        self.lock = asyncio.Lock()
        """Held while a checkpoint is written."""
        self.after_checkpoint: AfterCheckpoint | None = None
        """Called between a checkpoint and the truncation of the log."""
        self.purge_limit: PurgeLimit | None = None
        """Returns the lowest sequence of the log that a replica needs."""
        self.seconds = Histogram()
        """How long checkpoints took, with the truncation of the log."""

    async def write_if_due(self) -> None:
        checkpoints, log_bytes = self._checkpoints, self._progress.bytes_since_checkpoint
        if checkpoints.is_due(log_bytes, self._checkpoint_bytes):
            await self.write()
        elif isinstance(checkpoints, IncrementalCheckpoints) and checkpoints.is_increment_due(
            self._core.state, log_bytes, self._checkpoint_bytes
        ):
            await self.write_increment(checkpoints)

    async def write_increment(self, checkpoints: IncrementalCheckpoints) -> None:
        """Write what has changed since the newest file; the log is kept as it is."""
        async with self.lock:
            self._core.check_open()
            await self._log.sync()  # it must not survive records that it contains
            log_bytes = self._progress.bytes_since_checkpoint
            await checkpoints.write_increment(self._core.state, log_bytes)

    async def write(self) -> int:
        """Write a checkpoint and truncate the log; return the checkpoint's sequence."""
        progress = self._progress
        async with self.lock:
            self._core.check_open()
            began = self._core.clock.monotonic()
            before, progress.bytes_since_checkpoint = progress.bytes_since_checkpoint, 0
            try:
                await self._log.sync()  # a checkpoint must not survive records that it contains
                written = await self._checkpoints.write(self._core.state)
            except BaseException:
                progress.bytes_since_checkpoint += before
                raise
            if self.after_checkpoint is not None:
                await self.after_checkpoint()
            below = written.sequence + 1
            needed = self._backups.log_needed_from(before)
            if needed is not None:
                below = min(below, needed)
            if self.purge_limit is not None:
                below = min(below, await self.purge_limit())
            await self._log.truncate(below)
            self.seconds.observe(self._core.clock.monotonic() - began)
            return written.sequence


class Housekeeping:
    """A task that runs twice a second, by the clock of the state, and does the work that is due."""

    def __init__(
        self,
        core: Core,
        runner: Runner,
        checkpoints: CheckpointWriter,
        collections: OpenCollections,
        indexes: IndexBuilder,
    ) -> None:
        self._core = core
        self._runner = runner
        self._checkpoints = checkpoints
        self._collections = collections
        self._indexes = indexes
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task

    async def build_indexes(self) -> None:
        """Build indexes that were declared on a secondary, or were marked as not ready."""
        await self._indexes.build_all(
            one for one in self._collections.dictionaries() if not one.collection.is_dropped
        )

    async def sweep(self) -> None:
        """Remove expired rows in small transactions."""
        for dictionary in self._collections.dictionaries():
            if self._core.role_error is not None:
                continue
            while keys := dictionary.expired_keys(self._core.now(), SWEPT_AT_ONCE):
                try:
                    await self._runner.run(dictionary.sweep, keys)
                except BaseException:
                    dictionary.expect_again(keys)
                    raise

    async def _wait(self) -> None:
        """Return when the clock of the state has advanced far enough."""
        clock = self._core.clock
        due = clock.monotonic() + HOUSEKEEPING_SECONDS
        while (left := due - clock.monotonic()) > 0:  # noqa: ASYNC110 - a clock has no events
            await asyncio.sleep(max(left, LOOK_SECONDS_MIN))

    async def _work(self) -> None:
        while True:
            await self._wait()
            for step in (
                self._checkpoints.write_if_due,
                self._collections.describe_all,
                self.build_indexes,
                self.sweep,
            ):
                try:
                    await step()
                except (NotPrimaryError, StateClosedError):
                    continue
                except PartitaError as error:  # the other steps must not wait for this one
                    logger.warning("housekeeping failed and will be retried: %s", error)
                except Exception:
                    logger.exception("housekeeping failed and will be retried")
