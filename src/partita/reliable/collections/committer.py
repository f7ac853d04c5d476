"""Group commit: one record in flight; transactions that arrive meanwhile share the next record.

The order of the log is the order of `submit`. A transaction ends after its record is durable and
applied; when the log fails, all waiting transactions fail with the same error.
"""

import asyncio
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Protocol

from partita.errors import (
    DamageError,
    InDoubtError,
    LimitExceededError,
    NotPrimaryError,
    PartitaError,
    StateClosedError,
    StoreFullError,
)
from partita.reliable.collections.state_counts import StateCounts
from partita.reliable.state.records import FORMAT, Entry, Record, encode_record
from partita.reliable.state.state import State
from partita.reliable.storage.log import Log
from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

RECORD_OVERHEAD_BYTES = 1024
ENTRY_OVERHEAD_BYTES = 64


class Pending(Protocol):
    """A transaction that waits for its commit."""

    def committed(self, sequence: int) -> None: ...

    def failed(self, error: PartitaError) -> None: ...


class LogProgress:
    """How much of the log this replica has applied."""

    def __init__(self) -> None:
        self.bytes_since_checkpoint = 0
        """Bytes of log applied since the last checkpoint was started."""
        self.waits: list[tuple[int, asyncio.Future[None]]] = []
        """The reads that wait for a sequence."""

    def note(self, sequence: int, count: int) -> None:
        """Add a record of `count` bytes that was applied."""
        self.bytes_since_checkpoint += count
        if self.waits:
            self.wake(sequence)

    def wake(self, sequence: int) -> None:
        """End the waits for this sequence and for lower ones."""
        for wanted, future in self.waits:
            if wanted <= sequence and not future.done():
                future.set_result(None)
        self.waits = [wait for wait in self.waits if not wait[1].done()]

    async def wait(self, sequence: int, seconds: float) -> None:
        """Return when the sequence was applied, or after a time."""
        wait = (sequence, asyncio.get_running_loop().create_future())
        self.waits.append(wait)
        try:
            async with asyncio.timeout(seconds):
                await wait[1]
        except TimeoutError:
            pass  # the caller compares: the sequence may have come with a full copy
        finally:
            self.waits = [other for other in self.waits if other is not wait]


class Committer:
    """Appends to the log while this replica is primary."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        log: Log,
        state: State,
        clock: Clock,
        *,
        progress: LogProgress,
        on_stop: Callable[[PartitaError], None],
        counts: StateCounts | None = None,
        record_bytes_max: int | None = None,
    ) -> None:
        self._counts = counts or StateCounts()
        self._log = log
        self._state = state
        self._clock = clock
        self._progress = progress
        self._on_stop = on_stop
        self._waiting: deque[tuple[Entry, int, Pending]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._group_before = 0
        self._record_bytes_max = record_bytes_max
        self.stopped_by: PartitaError | None = None
        """The reason why nothing is committed any more; set once."""

    def submit(self, entry: Entry, size: int, pending: Pending) -> None:
        """Queue a transaction; `pending.committed` or `pending.failed` is called at its end."""
        if self.stopped_by is not None:
            pending.failed(self.stopped_by)
            return
        self._waiting.append((entry, size, pending))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def idle(self) -> None:
        """Return when all submitted transactions have ended."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def stop(self, error: PartitaError) -> None:
        """Refuse all later transactions; the record in flight still gets its own result."""
        if self.stopped_by is None:
            self.stopped_by = error
            self._on_stop(error)
        waiting, self._waiting = self._waiting, deque()
        for _, _, pending in waiting:
            pending.failed(error)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._commit(self._next_group())
                # Let the committed transactions run, so that their next commits share a record.
                await asyncio.sleep(0)
        finally:
            self._task = None

    def _next_group(self) -> list[tuple[Entry, int, Pending]]:
        room = self._log.record_bytes_max
        if self._record_bytes_max is not None:
            room = min(room, self._record_bytes_max)
        room -= RECORD_OVERHEAD_BYTES
        group: list[tuple[Entry, int, Pending]] = []
        while self._waiting:
            size = self._waiting[0][1] + ENTRY_OVERHEAD_BYTES
            if group and size > room:
                break
            room -= size
            group.append(self._waiting.popleft())
        return group

    async def _commit(self, group: list[tuple[Entry, int, Pending]]) -> None:
        state = self._state
        record = Record(
            FORMAT,
            state.epoch,
            state.sequence + 1,
            state.hash,
            max(self._clock.ticks(), state.ticks),
            "",
            [entry for entry, _, _ in group],
        )
        raw = encode_record(record)
        alone = len(group) == 1 and self._group_before <= 1
        self._group_before = len(group)
        began = self._clock.monotonic()
        try:
            state.apply(record, await self._log.append(record.sequence, raw, alone=alone))
        except PartitaError as error:
            self._fail(group, error)
            return
        except Exception:
            logger.exception("internal error while committing record %d", record.sequence)
            self.stop(_internal_error())
            self._fail(group, _in_doubt(record.sequence))
            return
        counts = self._counts
        seconds, times = self._clock.monotonic() - began, counts.commit_seconds
        times.counts[bisect_left(times.bounds, seconds)] += 1  # as observe() does, without a call
        times.total += seconds
        counts.records += 1
        counts.commits += len(group)
        for _, _, pending in group:
            pending.committed(record.sequence)
        self._progress.note(record.sequence, len(raw))

    def _fail(self, group: list[tuple[Entry, int, Pending]], error: PartitaError) -> None:
        """Fail a group; stop unless the error means that the log wrote nothing."""
        if not isinstance(error, StoreFullError | LimitExceededError):
            reason: PartitaError = error
            if not isinstance(error, NotPrimaryError | InDoubtError | DamageError):
                logger.error("the log stopped: %s", error)
            if isinstance(error, InDoubtError):
                # Waiting transactions were never sent; the state can still be read.
                reason = NotPrimaryError(
                    "NotPrimary",
                    "This replica no longer knows the end of the log.",
                    hint="Send the work to the primary; one is elected within seconds.",
                )
            self.stop(reason)
        for _, _, pending in group:
            pending.failed(error)


def _internal_error() -> StateClosedError:
    return StateClosedError(
        "StateClosed",
        "The state stopped because of an internal error; the log contains what was committed.",
        hint="Check the traceback in the logging output, then open the state again.",
    )


def _in_doubt(sequence: int) -> InDoubtError:
    return InDoubtError(
        "InDoubt",
        "A record may or may not be in the log: the state stopped during its append.",
        facts={"sequence": sequence},
        hint="Open the state again, and ask for the outcome by its idempotency key.",
    )
