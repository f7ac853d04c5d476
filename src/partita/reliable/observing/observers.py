"""Observers of a state in a folder and of a state that is open in this process.

An observer reads and never writes. That of a folder reads the files once, with the folder locked
meanwhile, and then answers from memory: `refresh` reads them again.
"""

import os
from pathlib import Path
from typing import Protocol

from partita.clock import SystemClock
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.observing.facts import (
    BackupFacts,
    CheckpointFacts,
    CollectionFacts,
    LockReport,
    LogFacts,
    ReplicaFacts,
    RowPage,
    StateFacts,
)
from partita.reliable.observing.folder_reading import (
    FoundState,
    is_segment,
    read_state,
    reading,
)
from partita.reliable.observing.views import chosen, collection_facts, lock_report, row_page
from partita.reliable.replication.replica import VERSION, Heartbeat, Replica
from partita.reliable.replication.stream import NoAnswer
from partita.reliable.state.state import State
from partita.reliable.storage.backup_chain import Backup
from partita.reliable.storage.checkpoint import Checkpoint
from partita.ticks import TICKS_PER_SECOND, Clock, moment

ROWS_PER_PAGE = 200
LOCKS_PER_PAGE = 100


class Observer(Protocol):
    """What an observer of a state can be asked."""

    async def status(self) -> StateFacts:
        """Return primary, replicas, log, checkpoint and backup."""
        ...

    async def collections(self) -> list[CollectionFacts]:
        """Return all collections with their counts, by name."""
        ...

    async def rows(
        self,
        collection: str,
        *,
        after: str | None = None,
        start: object = None,
        limit: int = ROWS_PER_PAGE,
    ) -> RowPage:
        """Return one page of rows: after `next` of the page before, or from the key `start` on."""
        ...

    async def locks(self, *, limit: int = LOCKS_PER_PAGE) -> LockReport:
        """Return the locks of the primary; none for a folder that is not open."""
        ...

    async def refresh(self) -> None:
        """Read what has changed; does nothing where answers are always current."""
        ...

    async def close(self) -> None: ...


class FolderObserver:
    """Answers from what the files of a folder held when they were read."""

    def __init__(self, path: Path, found: FoundState, log: LogFacts | None, clock: Clock) -> None:
        self._path = path
        self._found = found
        self._log = log
        self._clock = clock

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], clock: Clock | None = None
    ) -> "FolderObserver":
        """Read a folder; StoreLockedError if a program has it open."""
        found, log = await _read(Path(path))
        return cls(Path(path), found, log, clock or SystemClock())

    async def refresh(self) -> None:
        self._found, self._log = await _read(self._path)

    async def status(self) -> StateFacts:
        state, where = self._found.state, os.fspath(self._path)
        notes = ["The state is not open: no program commits."]
        if self._found.log is None:
            notes.append("There is no log here: this is a replica, whose log is on NATS.")
        return StateFacts(
            where,
            "folder",
            None,
            state.sequence,
            state.epoch,
            moment(state.ticks),
            None,
            [],
            [],
            self._log,
            checkpoint_facts(self._found.checkpoint),
            None,
            notes,
        )

    async def collections(self) -> list[CollectionFacts]:
        return _collections(self._found.state)

    async def rows(
        self,
        collection: str,
        *,
        after: str | None = None,
        start: object = None,
        limit: int = ROWS_PER_PAGE,
    ) -> RowPage:
        now = self._clock.ticks()
        return row_page(self._found.state, collection, now, after=after, start=start, limit=limit)

    async def locks(self, *, limit: int = LOCKS_PER_PAGE) -> LockReport:  # noqa: ARG002 - none
        return LockReport("", [], 0, 0, 0)

    async def close(self) -> None:
        """Do nothing: no file is open."""


class OpenObserver:
    """Answers about a state that is open in this process, on the event loop of the state."""

    def __init__(self, state: StateManager, where: str = "", partition: str | None = None) -> None:
        self._state = state
        self._where = where
        self._partition = partition

    async def status(self) -> StateFacts:
        state = self._state
        beats = await _heartbeats(state)
        replicas = [replica_facts(name, beat, state.log.last) for name, beat in beats.items()]
        backup = state.backups.newest
        return StateFacts(
            self._where,
            "open",
            self._partition,
            max(state.log.last, state.sequence),
            state.epoch,
            moment(state.state.ticks),
            None,
            replicas or [_own_facts(state)],
            [],
            LogFacts(state.log.first, state.log.last, state.log_bytes),
            checkpoint_facts(state.checkpoints.newest),
            None if backup is None else _backup_facts(backup, state.clock),
            [],
        )

    async def collections(self) -> list[CollectionFacts]:
        self._state.core.check_open()
        return _collections(self._state.state)

    async def rows(
        self,
        collection: str,
        *,
        after: str | None = None,
        start: object = None,
        limit: int = ROWS_PER_PAGE,
    ) -> RowPage:
        self._state.core.check_open()
        now = self._state.clock.ticks()
        return row_page(self._state.state, collection, now, after=after, start=start, limit=limit)

    async def locks(self, *, limit: int = LOCKS_PER_PAGE) -> LockReport:
        return lock_report(self._state.core, self._state.replica_id, limit=limit)

    async def refresh(self) -> None:
        """Do nothing: answers are always current."""

    async def close(self) -> None:
        """Do nothing: the state belongs to the program."""


def checkpoint_facts(checkpoint: Checkpoint | None) -> CheckpointFacts | None:
    if checkpoint is None:
        return None
    return CheckpointFacts(checkpoint.sequence, checkpoint.size, moment(checkpoint.ticks))


def replica_facts(name: str, beat: Heartbeat, last: int) -> ReplicaFacts:
    """Return what a heartbeat says, compared with the end of the log."""
    return ReplicaFacts(
        replica=name,
        address=beat.address,
        role="primary" if beat.is_primary else "secondary",
        applied=beat.applied,
        # A primary applies what it appends: its heartbeat is only older than the log.
        lag=0 if beat.is_primary else max(last - beat.applied, 0),
        epoch=beat.epoch or None,
        checkpoint=beat.checkpoint,
        version=beat.version or None,
        schemas=beat.readable,
        is_placed=beat.is_placed,
    )


def seconds_since(clock: Clock, ticks: int) -> float:
    """Return the seconds since a moment; 0 for one in the future."""
    return round(max(clock.ticks() - ticks, 0) / TICKS_PER_SECOND, 1)


async def _read(path: Path) -> tuple[FoundState, LogFacts | None]:
    with reading(path) as disk:
        found = await read_state(disk)
        if found.log is None:
            return found, None
        segments = [name for name in disk.names() if is_segment(name)]
        size = sum(map(disk.size, segments))
        return found, LogFacts(found.log.first, found.log.last, size, len(segments))


def _collections(state: State) -> list[CollectionFacts]:
    return [collection_facts(state, each) for each in chosen(state)]


async def _heartbeats(state: StateManager) -> dict[str, Heartbeat]:
    """Return the heartbeats of all replicas; none of a local state, or without an answer."""
    if not isinstance(state.replica, Replica):
        return {}
    try:
        return await state.replica.heartbeats()
    except NoAnswer:
        return {}


def _own_facts(state: StateManager) -> ReplicaFacts:
    newest = state.checkpoints.newest
    return ReplicaFacts(
        replica=state.replica_id,
        address="",
        role="primary" if state.is_primary else "secondary",
        applied=state.sequence,
        lag=max(state.log.last - state.sequence, 0),
        epoch=state.epoch,
        checkpoint=0 if newest is None else newest.sequence,
        version=VERSION,
        schemas=state.readable_versions(),
        is_placed=False,
    )


def _backup_facts(backup: Backup, clock: Clock) -> BackupFacts:
    age = seconds_since(clock, backup.made_at)
    return BackupFacts(backup.last_sequence, backup.kind, moment(backup.made_at), age)
