"""`partita state verify`: whether a state would open, and whether its files are consistent.

The checkpoints, the log with its marks, and the state that the records make are compared. All
damage is reported at once, as far as one part can be checked without the others.
"""

import contextlib
from collections.abc import Iterator

from partita.cli.state.facts import CheckpointFacts, Damage, LogFacts, MarkFacts, StateVerified
from partita.errors import ChainBrokenError, DamageError
from partita.reliable.observing.folder_reading import (
    ReadingDisk,
    has_pending_restore,
    is_replica,
    is_segment,
    load_checkpoint,
    open_log,
)
from partita.reliable.state.records import decode_record, record_hash
from partita.reliable.state.state import State
from partita.reliable.storage.checkpoint import Checkpoint, is_checkpoint, read_file
from partita.reliable.storage.increments import verify_increments
from partita.reliable.storage.local_log import MARKS_FILE, LocalLog
from partita.reliable.storage.segment import MARK_BYTES, newest_mark
from partita.ticks import moment

Marks = list[tuple[int, bytes]]
"""Sequences that were synced, and the hashes of their records."""


async def verify(disk: ReadingDisk, path: str) -> StateVerified:
    """Verify everything that opening would read; nothing is changed."""
    found = _Findings()
    state = State()
    checkpoint: Checkpoint | None = None
    log: LocalLog | None = None
    is_rebuilt = False
    with found.collecting():
        checkpoint = await load_checkpoint(disk, state)
    await _verify_older(disk, found)
    for problem in await verify_increments(disk, checkpoint):
        found.notes.append(f"{problem} Opening applies the log instead; check the disk.")
    marks, unreadable_bytes = _read_marks(disk)
    with found.collecting():
        log = await open_log(disk, checkpoint)
    if log is not None and log.first <= state.sequence + 1:
        with found.collecting():
            is_rebuilt = await _replay(log, state, checkpoint, marks)
    _note_files(disk, found, unreadable_bytes)
    if checkpoint is None and log is not None:
        _note_way_out(found, log, state)
    is_sound = not found.damage
    return StateVerified(
        path=path,
        is_sound=is_sound,
        sequence=state.sequence if is_sound else None,
        epoch=state.epoch if is_sound else None,
        digest=state.digest() if is_sound else None,
        checkpoint=checkpoint_facts(checkpoint),
        log=log_facts(disk, log),
        marks=None if marks is None else _mark_facts(marks, unreadable_bytes),
        torn_tail=disk.torn_tail,
        is_rebuilt_from_nothing=is_rebuilt,
        damage=found.damage,
        notes=found.notes,
    )


class _Findings:
    """Damage and notes."""

    def __init__(self) -> None:
        self.damage: list[Damage] = []
        self.notes: list[str] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        try:
            yield
        except DamageError as error:
            self.damage.append(_damage_of(error))


def checkpoint_facts(checkpoint: Checkpoint | None) -> CheckpointFacts | None:
    if checkpoint is None:
        return None
    return CheckpointFacts(
        checkpoint.name, checkpoint.sequence, checkpoint.size, moment(checkpoint.ticks)
    )


def log_facts(disk: ReadingDisk, log: LocalLog | None) -> LogFacts | None:
    if log is None:
        return None
    segments = [name for name in disk.names() if is_segment(name)]
    return LogFacts(log.first, log.last, sum(map(disk.size, segments)), len(segments))


async def _verify_older(disk: ReadingDisk, found: _Findings) -> None:
    """Check the checkpoints that a crash left besides the current one."""
    names = [name for name in disk.names() if is_checkpoint(name)]
    for name in names if has_pending_restore(disk) else names[:-1]:
        try:
            await read_file(disk, name, State())
        except DamageError as error:
            found.notes.append(f"{error.message} Opening removes this file; check the disk.")


def _read_marks(disk: ReadingDisk) -> tuple[Marks | None, int]:
    """Return the marks, and how many bytes are not marks."""
    if MARKS_FILE not in disk.names() or has_pending_restore(disk):
        return None, 0
    raw = disk.read(MARKS_FILE)
    places = range(0, len(raw) - MARK_BYTES + 1, MARK_BYTES)
    found = [newest_mark(raw[place : place + MARK_BYTES]) for place in places]
    marks = [mark for mark in found if mark is not None]
    return marks, len(raw) - len(marks) * MARK_BYTES


def _mark_facts(marks: Marks, unreadable_bytes: int) -> MarkFacts:
    newest = max((sequence for sequence, _ in marks), default=None)
    return MarkFacts(len(marks), unreadable_bytes, newest)


async def _replay(
    log: LocalLog, state: State, checkpoint: Checkpoint | None, marks: Marks | None
) -> bool:
    """Apply the log after the checkpoint; True if a state from record 1 is the same."""
    known = dict(marks or ())
    reaches_back = log.first == 1 and checkpoint is not None and checkpoint.sequence > 0
    fresh = State() if reaches_back else None
    async for sequence, raw in log.read_from(log.first):
        new_hash = record_hash(raw)
        if known.get(sequence, new_hash) != new_hash:
            raise _other_record(sequence)
        try:
            record = decode_record(raw)
            if fresh is not None and checkpoint is not None:
                fresh.apply(record, new_hash)
                if sequence == checkpoint.sequence:
                    _refuse_if_other(checkpoint, fresh, state)
            if sequence > state.sequence:
                state.apply(record, new_hash)
        except DamageError as error:
            error.facts.setdefault("sequence", sequence)
            raise
    if fresh is None or checkpoint is None:
        return False
    _refuse_if_other(checkpoint, fresh, state)
    return True


def _refuse_if_other(checkpoint: Checkpoint, fresh: State, state: State) -> None:
    """Compare the states that the checkpoint and the log give for one sequence."""
    if fresh.digest() != state.digest():
        raise DamageError(
            "CheckpointDamaged",
            f"{checkpoint.name} holds another state than the log up to its record gives.",
            facts={"file": checkpoint.name, "sequence": checkpoint.sequence},
            hint="Nothing was changed. Copy the folder and restore a backup; a replica may be "
            "emptied and copied from another.",
        )


def _note_files(disk: ReadingDisk, found: _Findings, unreadable_bytes: int) -> None:
    tail = disk.torn_tail
    if tail is not None:
        found.notes.append(
            f"{tail.file} has a torn tail of {tail.bytes} bytes that was never acknowledged; "
            "opening the state cuts it."
        )
    if has_pending_restore(disk):
        found.notes.append("A restore was interrupted; opening the state finishes it.")
    elif is_replica(disk.names()):
        found.notes.append("There is no log here: this is a replica, whose log is on NATS.")
    if unreadable_bytes:
        found.notes.append(
            f"{unreadable_bytes} bytes of {MARKS_FILE} are not marks; opening starts a new file."
        )
    left_over = [name for name in disk.names() if name.endswith(".new")]
    if left_over:
        found.notes.append(f"A crash left {', '.join(left_over)}; opening removes it.")


def _note_way_out(found: _Findings, log: LocalLog, state: State) -> None:
    """Add a note if a damaged checkpoint is not needed."""
    files = [damage.file or "" for damage in found.damage]
    if len(files) != 1 or not is_checkpoint(files[0]):
        return
    if log.first == 1 and state.sequence == log.last:
        found.notes.append(
            "The log begins at record 1 and was applied completely: the state opens without "
            f"{files[0]}. Move that file to another folder, do not delete it."
        )


def _damage_of(error: DamageError) -> Damage:
    file, offset, sequence = (error.facts.get(name) for name in ("file", "offset", "sequence"))
    return Damage(
        code=error.code,
        message=error.message,
        file=file if isinstance(file, str) else None,
        offset=offset if isinstance(offset, int) else None,
        sequence=sequence if isinstance(sequence, int) else None,
        hint=error.hint,
    )


def _other_record(sequence: int) -> ChainBrokenError:
    return ChainBrokenError(
        "LogChainBroken",
        f"Record {sequence} is not the one that was acknowledged according to {MARKS_FILE}.",
        facts={"file": MARKS_FILE, "sequence": sequence},
        hint="Files of two logs were mixed. Restore a backup, or copy the state from another "
        "replica.",
    )
