"""Backups of a state, written while commits continue, and their restore.

A backup is full (a checkpoint) or an increment (the records since the previous backup);
backup_chain.py describes the files and their chain. A restore first builds the whole state and
writes it as `restore.part`: once that file exists under its final name, the restore will be
completed, by the next process that opens the folder if necessary.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

from partita.errors import (
    BackupOrderError,
    DamageError,
    NotReadableError,
    PartitaError,
    UnavailableError,
)
from partita.reliable.state.records import NO_HASH, Tip, decode_record
from partita.reliable.state.state import State
from partita.reliable.storage.backup_chain import (
    HEAD,
    Backup,
    backup_tip,
    continued,
    find_newest,
    list_numbers,
    manifest_name,
    part_name,
    read_chain,
    read_records,
    sha256_of,
    write_manifest,
)
from partita.reliable.storage.checkpoint import (
    RESTORE_FILE,
    SYNC_BYTES,
    Progress,
    describe_file,
    discarding,
    is_checkpoint,
    name_of,
    put_in_place,
    read_file,
    verify_file,
    write_file,
)
from partita.reliable.storage.disk import Disk
from partita.reliable.storage.local_log import LocalLog
from partita.reliable.storage.log import Log
from partita.reliable.storage.os_disk import OsDisk
from partita.ticks import Clock

__all__ = [
    "Backup",
    "Backups",
    "Folder",
    "RestoreContext",
    "Restored",
    "finish_restore",
    "read_chain",
    "restore",
    "write_backup",
]

LOG_BYTES_KEPT_MAX = 800 * 1024 * 1024
"""Bytes of log kept for the next increment; beyond that a full backup is needed."""

Folder = str | Path | Disk


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore; its epoch is higher than that of the backup."""

    sequence: int
    epoch: int
    hash: bytes
    backups: tuple[int, ...]
    """The numbers of the backups that were used."""
    restored_at: int


class Source(Protocol):
    """What a backup needs of the state, which is a StateManager."""

    @property
    def state(self) -> State: ...

    @property
    def log(self) -> Log: ...

    @property
    def clock(self) -> Clock: ...


class Backups:
    """Writes the backups of one open state, one at a time, and tracks the log that they need."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = asyncio.Lock()
        self._needed: int | None = None
        self._bytes_kept = 0
        self.newest: Backup | None = None
        """The newest backup that this process has taken."""
        self.after_backup: Callable[[Backup], Awaitable[None]] | None = None
        """Called with each backup that was written."""

    async def write(
        self, folder: Folder, *, incremental: bool = False, progress: Progress | None = None
    ) -> Backup:
        """Write a backup into a folder; see `write_backup`."""
        if self._lock.locked():
            raise UnavailableError(
                "BackupInProgress",
                "Another backup of this state is running.",
                hint="Wait until that backup has ended, then start another.",
            )
        async with self._lock, _opened(folder) as disk:
            before = self._needed
            if before is None:
                # Records that are committed while this one is written belong to the next.
                self._needed, self._bytes_kept = self._source.state.sequence + 1, 0
            try:
                backup = await write_backup(
                    self._source, disk, incremental=incremental, progress=progress
                )
            except BaseException:
                self._needed = before
                raise
            self._needed, self._bytes_kept = backup.last_sequence + 1, 0
            self.newest = backup
        if self.after_backup is not None:
            await self.after_backup(backup)
        return backup

    def log_needed_from(self, log_bytes: int) -> int | None:
        """Return the first record that the next increment needs, None if there is none.

        Called once per checkpoint with the bytes of log since the previous one: a chain that is
        not continued must not keep the log without limit.
        """
        self._bytes_kept += log_bytes
        if self._bytes_kept > LOG_BYTES_KEPT_MAX:
            self._needed = None
        return self._needed


class RestoreContext:
    """The argument of `on_data_loss`: why the state cannot be opened, and how to restore it."""

    def __init__(self, target: Disk, clock: Clock, cause: PartitaError) -> None:
        self.cause = cause
        self.restored: Restored | None = None
        self._target = target
        self._clock = clock

    async def restore(
        self, folder: Folder, *, force: bool = True, up_to: int | None = None
    ) -> Restored:
        """Replace the damaged state by the newest backup of a folder, or by an older state."""
        async with _opened(folder) as disk:
            self.restored = await restore(disk, self._target, self._clock, force=force, up_to=up_to)
            return self.restored


async def write_backup(
    source: Source, folder: Disk, *, incremental: bool, progress: Progress | None = None
) -> Backup:
    """Back up the current state while commits continue. One state per folder.

    An increment contains the records since the newest backup in the folder; if there are none,
    nothing is written and that backup is returned. It is refused (FullBackupNeeded) if there is
    no backup that this state continues, or if the log does not reach back to it.
    """
    number = max(list_numbers(folder), default=0) + 1
    if not incremental:
        return await _write_full(source, folder, number, progress)
    newest = find_newest(folder)
    if newest is None:
        raise _full_needed("the folder contains no backup")
    state = source.state
    if state.sequence < newest.last_sequence or state.epoch < newest.epoch:
        raise _full_needed("the newest backup in the folder is ahead of this state", newest)
    if state.sequence == newest.last_sequence:
        if (state.hash.hex(), state.epoch) != (newest.hash_after, newest.epoch):
            raise _full_needed(
                "the newest backup is of another state, or was made before a restore"
            )
        return newest
    return await _write_increment(source, folder, newest, progress)


async def restore(
    source: Disk,
    target: Disk,
    clock: Clock,
    *,
    force: bool = False,
    up_to: int | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Restore the state on a disk from a folder of backups; it must not be open.

    An existing state is replaced only if the backup continues it, or with `force`. The restored
    state has a higher epoch than both, so that the two histories can be distinguished.
    """
    chain = await read_chain(source, up_to=up_to, progress=progress)
    here = await _tip_of(target, force=force)
    state = State()
    hash_here = await _rebuild(state, source, chain, up_to, at=here.sequence, progress=progress)
    if not force:
        _refuse_to_go_back(here, state, hash_here)
    state.epoch = max(state.epoch, here.epoch) + 1
    await write_file(target, RESTORE_FILE, state, progress=progress)
    await finish_restore(target)
    return Restored(
        state.sequence,
        state.epoch,
        state.hash,
        tuple(backup.number for backup in chain),
        clock.ticks(),
    )


async def finish_restore(target: Disk) -> bool:
    """Finish an interrupted restore; must be called before the files of a state are read.

    It can be interrupted at any point and called again: `restore.part` exists until the last
    step, and the other files are ignored until then.
    """
    names = target.names()
    unfinished = f"{RESTORE_FILE}.new"
    if unfinished in names:
        target.remove(unfinished)
    if RESTORE_FILE not in names:
        return False
    found = await verify_file(target, RESTORE_FILE)
    # A killed process may have renamed it without syncing the name: do so before the old files
    # are removed.
    await target.sync_folder()
    for name in names:
        if _is_of_state(name):
            target.remove(name)
    await target.sync_folder()
    log = await LocalLog.begin(target, chain=(found.sequence, found.hash))
    await log.close()
    target.rename(RESTORE_FILE, name_of(found.sequence))
    await target.sync_folder()
    return True


# Writing


async def _write_full(
    source: Source, folder: Disk, number: int, progress: Progress | None
) -> Backup:
    made_at = source.clock.ticks()
    part = part_name(number)
    written = await write_file(folder, part, source.state, progress=progress)
    backup = Backup(
        kind="full",
        number=number,
        first_sequence=0,
        last_sequence=written.sequence,
        epoch=written.epoch,
        hash_before=NO_HASH.hex(),
        epoch_before=0,
        hash_after=written.hash.hex(),
        sha256=await sha256_of(folder, part),
        bytes=written.size,
        path=part,
        made_at=made_at,
    )
    await write_manifest(folder, backup)
    return backup


async def _write_increment(
    source: Source, folder: Disk, newest: Backup, progress: Progress | None
) -> Backup:
    made_at = source.clock.ticks()
    last = Tip(source.state.sequence, source.state.hash, source.state.epoch)
    part = part_name(newest.number + 1)
    file = folder.create(f"{part}.new")
    with discarding(folder, file):
        file.write(HEAD)
        unsynced = 0
        async for raw in _new_records(source.log, newest, last, progress):
            file.write(len(raw).to_bytes(4) + raw)
            unsynced += len(raw)
            if unsynced >= SYNC_BYTES:
                unsynced = 0
                await file.sync()
        size = file.size
        await put_in_place(folder, file, part)
    backup = Backup(
        kind="incremental",
        number=newest.number + 1,
        first_sequence=newest.last_sequence + 1,
        last_sequence=last.sequence,
        epoch=last.epoch,
        hash_before=newest.hash_after,
        epoch_before=newest.epoch,
        hash_after=last.hash.hex(),
        sha256=await sha256_of(folder, part),
        bytes=size,
        path=part,
        made_at=made_at,
    )
    await write_manifest(folder, backup)
    return backup


async def _new_records(
    log: Log, newest: Backup, last: Tip, progress: Progress | None
) -> AsyncIterator[bytes]:
    """Yield the records after a backup up to `last`, and verify the chain."""
    tip = backup_tip(newest)
    total = last.sequence - tip.sequence
    found = log.read_from(tip.sequence + 1)
    try:
        async for sequence, raw in found:
            record = decode_record(raw)
            # A new epoch starts with a record of its primary, except after a restore.
            if record.epoch > tip.epoch and not record.primary:
                raise _full_needed("this state was restored since the newest backup", newest)
            after = continued(tip, record, raw)
            if after is None:
                raise _full_needed(
                    "the newest backup does not belong to this state's history", newest
                )
            tip = after
            yield raw
            if progress is not None:
                progress(total - (last.sequence - sequence), total)
            if sequence == last.sequence:
                break
    except NotReadableError as error:
        raise _full_needed("the log was truncated since the newest backup", newest) from error
    finally:
        if isinstance(found, AsyncGenerator):
            await found.aclose()
    if tip != last:
        raise _full_needed("the newest backup does not belong to this state's history", newest)


# Restoring


async def _tip_of(target: Disk, *, force: bool) -> Tip:
    """Return the last record of the state on a disk; with `force` a damaged one is empty."""
    try:
        await finish_restore(target)
        return await _read_tip(target)
    except DamageError as error:
        if force:
            return Tip(0, NO_HASH, 0)
        raise BackupOrderError(
            "RestoreWouldGoBack",
            "The state in the folder is damaged, so that it cannot be compared with the backup.",
            hint="Keep a copy of the folder, then restore with force.",
        ) from error


async def _read_tip(target: Disk) -> Tip:
    names = target.names()
    tip = Tip(0, NO_HASH, 0)
    for name in filter(is_checkpoint, names):
        found = describe_file(target, name)
        tip = Tip(found.sequence, found.hash, found.epoch)
    if not any(name.startswith("log-") for name in names):
        return tip
    log = await LocalLog.open(target, chain=(tip.sequence, tip.hash))
    await log.close()
    return log.tip._replace(epoch=max(log.tip.epoch, tip.epoch))


async def _rebuild(
    state: State,
    source: Disk,
    chain: list[Backup],
    up_to: int | None,
    *,
    at: int,
    progress: Progress | None,
) -> bytes | None:
    """Fill a state from a chain; return its hash at the sequence `at`, None if not reached."""
    await read_file(source, chain[0].path, state, progress=progress)
    hash_there = state.hash if state.sequence == at else None
    first = state.sequence
    last = chain[-1].last_sequence if up_to is None else up_to
    for backup in chain[1:]:
        async with contextlib.aclosing(read_records(source, backup)) as records:
            async for record, new_hash in records:
                if record.sequence > last:
                    break
                state.apply(record, new_hash)
                if state.sequence == at:
                    hash_there = state.hash
                if progress is not None:
                    progress(state.sequence - first, last - first)
    return hash_there


def _refuse_to_go_back(here: Tip, state: State, hash_here: bytes | None) -> None:
    if not here.sequence:
        return
    if here.sequence < state.sequence and here.hash == hash_here:
        return
    if here.sequence >= state.sequence:
        reason = (
            f"The state in the folder ends at sequence {here.sequence}, the backup at "
            f"{state.sequence}."
        )
    else:
        reason = f"The backup does not continue the state in the folder at {here.sequence}."
    raise BackupOrderError(
        "RestoreWouldGoBack",
        reason,
        facts={"here": here.sequence, "backup": state.sequence},
        hint="Restore into an empty folder, or with force if the state there may be lost.",
    )


def _is_of_state(name: str) -> bool:
    return name.startswith(("log-", "checkpoint-", "increment-"))


# Files and names


@contextlib.asynccontextmanager
async def _opened(folder: Folder) -> AsyncIterator[Disk]:
    """Open a folder and close it at the end; a Disk is not closed."""
    if not isinstance(folder, str | Path):
        yield folder
        return
    disk = OsDisk(Path(folder))
    try:
        yield disk
    finally:
        disk.close()


def _full_needed(reason: str, newest: Backup | None = None) -> BackupOrderError:
    return BackupOrderError(
        "FullBackupNeeded",
        f"An incremental backup is not possible: {reason}.",
        facts={"newest": manifest_name(newest.number)} if newest else {},
        hint="Take a full backup, then continue with incremental ones.",
    )
