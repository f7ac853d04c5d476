r"""Backups: a state in another folder, as chains of one full backup and increments.

    backup-<number>.part    full: a checkpoint's format; incremental: "PARTINC\n" | format 4 |
                            then of each record: length 4 | record (records.py)
    backup-<number>.json    the manifest: what the part holds, its SHA-256, its place in the chain

A manifest is written when its part is durable: a part without one is what a crash left. An
increment begins with the record after the last of the backup before it, and says its hash, so
that a link that is missing, foreign or changed is found before anything is restored.

A restore builds the whole state first and writes it as `restore.part`; from the moment that file
has its name the restore is decided, and whoever opens the folder next finishes it.
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from partita.clock import Clock
from partita.errors import (
    BackupOrderError,
    ChecksumError,
    DamageError,
    FormatVersionError,
    NotReadableError,
    PartitaError,
    UnavailableError,
)
from partita.reliable.checkpoint import (
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
from partita.reliable.disk import Disk
from partita.reliable.limits import RECORD_BYTES_MAX
from partita.reliable.local_log import LocalLog
from partita.reliable.log import Log
from partita.reliable.os_disk import OsDisk
from partita.reliable.records import NO_HASH, Record, decode_record, record_hash
from partita.reliable.segment import Tip
from partita.reliable.state import State

FORMAT = 1
MAGIC = b"PARTINC\n"
HEAD = MAGIC + FORMAT.to_bytes(4)
CHUNK_BYTES = 1024 * 1024
LOG_BYTES_KEPT_MAX = 800 * 1024 * 1024
"""Of log that waits for the next increment; behind that a full backup is needed again."""

Folder = str | Path | Disk


class Backup(msgspec.Struct, frozen=True):
    """One backup as its manifest tells it; hashes are hexadecimal."""

    kind: Literal["full", "incremental"]
    number: int
    first_sequence: int
    """Of an increment, its first record; 0 of a full backup, which holds everything."""
    last_sequence: int
    epoch: int
    """At `last_sequence`."""
    hash_before: str
    """Of the record that an increment continues; nothing for a full backup."""
    epoch_before: int
    hash_after: str
    """Of the record at `last_sequence`: what the next increment must continue."""
    sha256: str
    bytes: int
    path: str
    """The part's file name, in the folder of the manifest."""
    made_at: int
    """Wall clock in ticks."""


class Restored(msgspec.Struct, frozen=True):
    """What a restore has put in place; the epoch is above that of the backup."""

    sequence: int
    epoch: int
    hash: bytes
    backups: tuple[int, ...]
    """The numbers of the backups that were used."""
    restored_at: int


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    backup: Backup
    check: str
    """Blake2b of the encoded backup: a manifest may be read by people, not changed."""


class Source(Protocol):
    """What is backed up: a StateManager is one."""

    @property
    def state(self) -> State: ...

    @property
    def log(self) -> Log: ...

    @property
    def clock(self) -> Clock: ...


class Backups:
    """The backups of one open state: one at a time, and the log that the next one needs."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._turn = asyncio.Lock()
        self._needed: int | None = None
        self._bytes_kept = 0

    async def write(
        self, folder: Folder, *, incremental: bool = False, progress: Progress | None = None
    ) -> Backup:
        """Back the state up into a folder; see `write_backup`."""
        if self._turn.locked():
            raise UnavailableError(
                "BackupInProgress",
                "This state is being backed up already.",
                hint="Wait for that backup, then ask again.",
            )
        async with self._turn, _opened(folder) as disk:
            backup = await write_backup(
                self._source, disk, incremental=incremental, progress=progress
            )
            self._needed, self._bytes_kept = backup.last_sequence + 1, 0
            return backup

    def log_needed_from(self, log_bytes: int) -> int | None:
        """Return the first record that the next increment needs; None when nothing waits for it.

        Asked once a checkpoint, with the bytes of log since the checkpoint before: a chain that
        nobody continues must not keep the log for ever.
        """
        self._bytes_kept += log_bytes
        if self._bytes_kept > LOG_BYTES_KEPT_MAX:
            self._needed = None
        return self._needed


class RestoreContext:
    """What `on_data_loss` is given: why the state cannot be opened, and the way back."""

    def __init__(self, target: Disk, clock: Clock, cause: PartitaError) -> None:
        self.cause = cause
        self.restored: Restored | None = None
        self._target = target
        self._clock = clock

    async def restore(
        self, folder: Folder, *, force: bool = True, up_to: int | None = None
    ) -> Restored:
        """Replace what is here by the newest backup of a folder, or by an older state of it."""
        async with _opened(folder) as disk:
            self.restored = await restore(disk, self._target, self._clock, force=force, up_to=up_to)
            return self.restored


async def write_backup(
    source: Source, folder: Disk, *, incremental: bool, progress: Progress | None = None
) -> Backup:
    """Back up the state as it is now while commits go on. One state to a folder.

    An increment holds the records since the newest backup in the folder; when there are none,
    nothing is written and that backup is returned. It is refused (FullBackupNeeded) when there
    is no backup that this state continues, or when the log no longer reaches back to it.
    """
    number = max(_numbers(folder), default=0) + 1
    if not incremental:
        return await _write_full(source, folder, number, progress)
    newest = _newest(folder)
    if newest is None:
        raise _full_needed("the folder holds no backup")
    state = source.state
    if state.sequence < newest.last_sequence or state.epoch < newest.epoch:
        raise _full_needed("the newest backup in the folder is ahead of this state", newest)
    if state.sequence == newest.last_sequence:
        if (state.hash.hex(), state.epoch) != (newest.hash_after, newest.epoch):
            raise _full_needed("the newest backup is of another state, or of before a restore")
        return newest
    return await _write_increment(source, folder, newest, progress)


async def read_chain(
    folder: Disk, *, up_to: int | None = None, progress: Progress | None = None
) -> list[Backup]:
    """Return the newest full backup and its increments, every byte and link verified.

    With `up_to`, those that a restore to that sequence needs.
    """
    chain = _chain(folder, up_to)
    done, total = 0, sum(backup.bytes for backup in chain)
    for backup in chain:
        await _verify(folder, backup)
        done += backup.bytes
        if progress is not None:
            progress(done, total)
    return chain


async def restore(
    source: Disk,
    target: Disk,
    clock: Clock,
    *,
    force: bool = False,
    up_to: int | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Make the state on a disk what a folder of backups says; nothing else may have it open.

    What is there already is replaced only if the backup continues it, or with `force`. The
    restored state has a higher epoch than both, so that the two histories can be told apart.
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
    """Put a decided restore in place: to be called before a state's files are read.

    It may be cut off anywhere and called again: until its last step `restore.part` is there, and
    what is beside it counts for nothing.
    """
    names = target.names()
    unfinished = f"{RESTORE_FILE}.new"
    if unfinished in names:
        target.remove(unfinished)
    if RESTORE_FILE not in names:
        return False
    found = await verify_file(target, RESTORE_FILE)
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
    part = _part_name(number)
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
        sha256=await _sha256_of(folder, part),
        bytes=written.size,
        path=part,
        made_at=made_at,
    )
    await _write_manifest(folder, backup)
    return backup


async def _write_increment(
    source: Source, folder: Disk, newest: Backup, progress: Progress | None
) -> Backup:
    made_at = source.clock.ticks()
    last = Tip(source.state.sequence, source.state.hash, source.state.epoch)
    part = _part_name(newest.number + 1)
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
        sha256=await _sha256_of(folder, part),
        bytes=size,
        path=part,
        made_at=made_at,
    )
    await _write_manifest(folder, backup)
    return backup


async def _new_records(
    log: Log, newest: Backup, last: Tip, progress: Progress | None
) -> AsyncIterator[bytes]:
    """Yield the records after a backup up to one, each seen to continue the one before."""
    tip = _tip_after(newest)
    total = last.sequence - tip.sequence
    found = log.read_from(tip.sequence + 1)
    try:
        async for sequence, raw in found:
            record = decode_record(raw)
            # Epochs rise by a record that says who is primary; only a restore raises them silently.
            if record.epoch > tip.epoch and not record.primary:
                raise _full_needed("this state was restored since the newest backup", newest)
            after = _continued(tip, record, raw)
            if after is None:
                raise _full_needed("the newest backup is not of this state's history", newest)
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
        raise _full_needed("the newest backup is not of this state's history", newest)


async def _write_manifest(folder: Disk, backup: Backup) -> None:
    manifest = _Manifest(FORMAT, backup, _check(backup))
    name = _manifest_name(backup.number)
    file = folder.create(f"{name}.new")
    with discarding(folder, file):
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        await put_in_place(folder, file, name)


# Reading


def _chain(folder: Disk, up_to: int | None) -> list[Backup]:
    """Go back from the newest manifest to the full backup that the wanted state rests on."""
    numbers = sorted(_numbers(folder), reverse=True)
    chain: list[Backup] = []
    for number in numbers:
        if not chain and up_to is not None and _is_too_new(folder, number, up_to):
            continue
        backup = _read_manifest(folder, number)
        if chain:
            _refuse_unless_linked(backup, chain[-1])
        chain.append(backup)
        if backup.kind == "full":
            _refuse_if_short(backup=chain[0], up_to=up_to)
            return chain[::-1]
    if chain:
        raise _broken(_manifest_name(chain[-1].number - 1), chain[-1])
    raise BackupOrderError(
        "BackupNotFound",
        "The folder holds no backup." if up_to is None else f"No backup reaches back to {up_to}.",
        facts={} if up_to is None else {"sequence": up_to},
        hint="Choose the folder that the backups were written to, or a later sequence.",
    )


def _is_too_new(folder: Disk, number: int, up_to: int) -> bool:
    """Whether a backup is not needed; what cannot be read may not keep us from older ones."""
    try:
        backup = _read_manifest(folder, number)
    except (DamageError, BackupOrderError):
        return True
    begins = backup.last_sequence if backup.kind == "full" else backup.first_sequence
    return begins > up_to


def _refuse_if_short(backup: Backup, up_to: int | None) -> None:
    if up_to is not None and backup.last_sequence < up_to:
        raise BackupOrderError(
            "BackupNotFound",
            f"The backups that can be read reach {backup.last_sequence}, not {up_to}.",
            facts={"sequence": up_to, "last": backup.last_sequence},
            hint="Choose a sequence that the backups hold.",
        )


def _refuse_unless_linked(before: Backup, after: Backup) -> None:
    """Two neighbours of the folder, the second of them an increment."""
    if before.number != after.number - 1:
        raise _broken(_manifest_name(after.number - 1), after)
    begins = Tip(after.first_sequence - 1, bytes.fromhex(after.hash_before), after.epoch_before)
    if begins != _tip_after(before):
        raise _broken(_manifest_name(after.number), after)


def _newest(folder: Disk) -> Backup | None:
    """Return the newest backup if its chain is whole, as far as manifests and sizes tell."""
    return _chain(folder, None)[-1] if _numbers(folder) else None


def _read_manifest(folder: Disk, number: int) -> Backup:
    name = _manifest_name(number)
    try:
        manifest = msgspec.json.decode(folder.read(name), type=_Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(name, "it cannot be read") from error
    backup = manifest.backup
    if manifest.format > FORMAT:
        raise _newer(name, manifest.format)
    if manifest.check != _check(backup):
        raise _damaged(name, "it was changed")
    if backup.number != number or backup.path != _part_name(number):
        raise _broken(_manifest_name(backup.number), backup)
    if backup.path not in folder.names():
        raise _broken(backup.path, backup)
    if folder.size(backup.path) != backup.bytes:
        raise _damaged(backup.path, f"it has not the {backup.bytes} bytes that were written")
    return backup


async def _verify(folder: Disk, backup: Backup) -> None:
    """Compare a part with its manifest."""
    if await _sha256_of(folder, backup.path) != backup.sha256:
        raise _damaged(backup.path, "it does not match its SHA-256")
    if backup.kind == "full":
        found = describe_file(folder, backup.path)
        held = (found.sequence, found.epoch, found.hash.hex())
        if held != (backup.last_sequence, backup.epoch, backup.hash_after):
            raise _damaged(backup.path, "it holds another state than its manifest says")
        return
    async for _ in _records(folder, backup):
        pass


async def _records(folder: Disk, backup: Backup) -> AsyncGenerator[tuple[Record, bytes], None]:
    """Yield the records of an increment with their hashes, each seen to continue the one before."""
    tip = Tip(backup.first_sequence - 1, bytes.fromhex(backup.hash_before), backup.epoch_before)
    async for raw in _raw_records(folder, backup.path):
        record = decode_record(raw)
        after = _continued(tip, record, raw)
        if after is None:
            raise _damaged(backup.path, f"record {record.sequence} does not continue the chain")
        tip = after
        yield record, tip.hash
    if tip != _tip_after(backup):
        raise _damaged(backup.path, "it holds other records than its manifest says")


async def _raw_records(folder: Disk, name: str) -> AsyncIterator[bytes]:
    size = folder.size(name)
    if folder.read(name, 0, len(HEAD)) != HEAD:
        raise _damaged(name, "it is not an increment that this version reads")
    place, chunk, at = len(HEAD), b"", 0
    while place < size:
        length = int.from_bytes(chunk[at : at + 4])
        if len(chunk) - at < 4 or len(chunk) - at - 4 < length:
            chunk, at = folder.read(name, place, CHUNK_BYTES), 0
            length = int.from_bytes(chunk[:4])
            await asyncio.sleep(0)
        if len(chunk) < 4 or not 0 < length <= min(size - place - 4, RECORD_BYTES_MAX):
            raise _damaged(name, f"there is no record at byte {place}")
        if len(chunk) - at - 4 < length:
            chunk = folder.read(name, place, length + 4)
        yield chunk[at + 4 : at + 4 + length]
        at += 4 + length
        place += 4 + length


def _continued(tip: Tip, record: Record, raw: bytes) -> Tip | None:
    """Return the tip after a record; None when it does not continue the one before.

    A record of a deposed primary takes its sequence and changes nothing, as in State.apply.
    """
    if record.sequence != tip.sequence + 1:
        return None
    if record.epoch < tip.epoch:
        return tip._replace(sequence=record.sequence)
    if record.previous != tip.hash:
        return None
    return Tip(record.sequence, record_hash(raw), record.epoch)


def _tip_after(backup: Backup) -> Tip:
    return Tip(backup.last_sequence, bytes.fromhex(backup.hash_after), backup.epoch)


# Restoring


async def _tip_of(target: Disk, *, force: bool) -> Tip:
    """Return how far the state on a disk reaches; with `force` damage is as good as nothing."""
    try:
        await finish_restore(target)
        return await _read_tip(target)
    except DamageError as error:
        if force:
            return Tip(0, NO_HASH, 0)
        raise BackupOrderError(
            "RestoreWouldGoBack",
            "What is here is damaged: nobody can tell whether the backup continues it.",
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
    """Fill a state from a chain; return its hash at one sequence, if the chain passes there."""
    await read_file(source, chain[0].path, state, progress=progress)
    hash_there = state.hash if state.sequence == at else None
    first = state.sequence
    last = chain[-1].last_sequence if up_to is None else up_to
    for backup in chain[1:]:
        async with contextlib.aclosing(_records(source, backup)) as records:
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
        reason = f"What is here reaches {here.sequence}, the backup {state.sequence}."
    else:
        reason = f"The backup cannot be seen to continue what is here up to {here.sequence}."
    raise BackupOrderError(
        "RestoreWouldGoBack",
        reason,
        facts={"here": here.sequence, "backup": state.sequence},
        hint="Restore into an empty folder, or with force if what is here may be lost.",
    )


def _is_of_state(name: str) -> bool:
    return name.startswith(("log-", "checkpoint-"))


# Files and names


@contextlib.asynccontextmanager
async def _opened(folder: Folder) -> AsyncIterator[Disk]:
    """Open a folder of the machine for as long as it is needed; a Disk is its owner's."""
    if not isinstance(folder, str | Path):
        yield folder
        return
    disk = OsDisk(Path(folder))
    try:
        yield disk
    finally:
        disk.close()


async def _sha256_of(folder: Disk, name: str) -> str:
    digest = hashlib.sha256()
    for start in range(0, folder.size(name), CHUNK_BYTES):
        digest.update(folder.read(name, start, CHUNK_BYTES))
        await asyncio.sleep(0)
    return digest.hexdigest()


def _check(backup: Backup) -> str:
    return hashlib.blake2b(msgspec.json.encode(backup), digest_size=16).hexdigest()


def _numbers(folder: Disk) -> list[int]:
    found = (re.fullmatch(r"backup-(\d{6,})\.json", name) for name in folder.names())
    return [int(match[1]) for match in found if match]


def _manifest_name(number: int) -> str:
    return f"backup-{number:06}.json"


def _part_name(number: int) -> str:
    return f"backup-{number:06}.part"


def _full_needed(reason: str, newest: Backup | None = None) -> BackupOrderError:
    return BackupOrderError(
        "FullBackupNeeded",
        f"An incremental backup is not possible: {reason}.",
        facts={"newest": _manifest_name(newest.number)} if newest else {},
        hint="Take a full backup, then go on with incremental ones.",
    )


def _broken(missing: str, needed_by: Backup) -> BackupOrderError:
    return BackupOrderError(
        "BackupChainBroken",
        f"The backups are no chain: {missing} is missing, or is not the one that was written.",
        facts={"missing": missing, "number": needed_by.number},
        hint="Bring that file back from where it was copied to. With up_to= a state before the "
        "hole can be restored.",
    )


def _damaged(name: str, reason: str) -> ChecksumError:
    return ChecksumError(
        "BackupDamaged",
        f"{name} is damaged: {reason}.",
        facts={"file": name},
        hint="Nothing was changed. Use another copy of the backups; with up_to= a state before "
        "the damage can be restored.",
    )


def _newer(name: str, number: int) -> FormatVersionError:
    return FormatVersionError(
        "FormatVersion",
        f"{name} was written in format {number}; this version reads {FORMAT}.",
        facts={"file": name, "format": number},
        hint="Restore with the version of Partita that wrote it, or with a newer one.",
    )
