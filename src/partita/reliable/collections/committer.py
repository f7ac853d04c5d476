"""Group commit: one record in flight, everything that waits meanwhile goes into the next.

The order of the log is the order of `submit`. A transaction is told only after its record is
durable and applied; when the log fails, all that wait are told the same.
"""

import asyncio
import logging
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
from partita.reliable.state.records import FORMAT, Entry, Record, encode_record, record_hash
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


class Committer:
    """Owns the end of the log while this replica is primary."""

    def __init__(
        self,
        log: Log,
        state: State,
        clock: Clock,
        *,
        on_applied: Callable[[int], None],
        on_stop: Callable[[PartitaError], None],
    ) -> None:
        self._log = log
        self._state = state
        self._clock = clock
        self._on_applied = on_applied
        """Told the bytes of each record that was applied."""
        self._on_stop = on_stop
        self._waiting: deque[tuple[Entry, int, Pending]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._group_before = 0
        self.stopped_by: PartitaError | None = None
        """Why nothing is committed any more; set once."""

    def submit(self, entry: Entry, size: int, pending: Pending) -> None:
        """Put a transaction in line; `pending` is told the end."""
        if self.stopped_by is not None:
            pending.failed(self.stopped_by)
            return
        self._waiting.append((entry, size, pending))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def idle(self) -> None:
        """Return when everything submitted so far has ended."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def stop(self, error: PartitaError) -> None:
        """Refuse everything from now on; what is in flight still gets its own end."""
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
                # Those just told run now and submit again: one turn makes a full group.
                await asyncio.sleep(0)
        finally:
            self._task = None

    def _next_group(self) -> list[tuple[Entry, int, Pending]]:
        room = self._log.record_bytes_max - RECORD_OVERHEAD_BYTES
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
        try:
            await self._log.append(record.sequence, raw, alone=alone)
            state.apply(record, record_hash(raw))
        except PartitaError as error:
            self._fail(group, error)
            return
        except Exception:
            logger.exception("record %d met an error of our own", record.sequence)
            self.stop(_broken())
            self._fail(group, _unknown_end(record.sequence))
            return
        for _, _, pending in group:
            pending.committed(record.sequence)
        self._on_applied(len(raw))

    def _fail(self, group: list[tuple[Entry, int, Pending]], error: PartitaError) -> None:
        """Tell a group why; all but a log that took nothing is the end of this committer."""
        if not isinstance(error, StoreFullError | LimitExceededError):
            told: PartitaError = error
            if not isinstance(error, NotPrimaryError | InDoubtError | DamageError):
                logger.error("the log stopped: %s", error)
            if isinstance(error, InDoubtError):
                # What waits was never sent; the log goes on, and the state may still be read.
                told = NotPrimaryError(
                    "NotPrimary",
                    "The end of the log is not known here any more.",
                    hint="Send the work to the primary; one is found within seconds.",
                )
            self.stop(told)
        for _, _, pending in group:
            pending.failed(error)


def _broken() -> StateClosedError:
    return StateClosedError(
        "StateClosed",
        "The state met an error of its own and stopped; the log holds what was committed.",
        hint="Look at the traceback in the logging, then open the state again.",
    )


def _unknown_end(sequence: int) -> InDoubtError:
    return InDoubtError(
        "InDoubt",
        "A record may or may not be in the log: the state stopped while it was on its way.",
        facts={"sequence": sequence},
        hint="Open the state again, and ask for the outcome by its idempotency key.",
    )
