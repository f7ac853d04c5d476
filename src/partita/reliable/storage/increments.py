r"""Increments: what has changed since a checkpoint, so that opening need not apply the whole log.

    file     "PARTINC\n" | format 4 | length 4 | crc32c 4 | heading | block | block | … | footer
    heading  MessagePack map, the class IncrementHeading
    block    as in a checkpoint; with the highest bit of the collection's number set, the array
             [key, key, …] of rows that were removed

An increment continues the checkpoint or the increment before it: `after` names the sequence and the
hash of that file. Rule: nothing depends on an increment. The log is truncated below the newest
checkpoint only, so a file that is damaged or continues another one is removed, and the log is
applied from the file before it.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from partita.errors import DamageError
from partita.reliable.state.state import Collection, KeptOutcome, Rows, State, Touched
from partita.reliable.storage.checkpoint import (
    OUTCOMES,
    ROWS_AT_ONCE,
    Checkpoint,
    CheckpointHeading,
    Checkpoints,
    CollectionHeading,
    Progress,
    Reader,
    Writer,
    discarding,
    heading_of,
    outcome_rows,
    put_in_place,
    remove_file,
    set_heading,
    versioned,
    write_rows,
)
from partita.reliable.storage.disk import Disk

logger = logging.getLogger("partita.reliable")

FORMAT = 1
MAGIC = b"PARTINC\n"
PREFIX = "increment-"
REMOVED = 1 << 31
"""Set in the collection number of a block of removed keys."""
CHECKPOINT_SHARE = 4
"""Increments are written beside a checkpoint of at least so many times the log between them: a
smaller one is soon replaced."""
LOG_SHARE = 32
"""An increment is due after this part of the checkpoint's size in log, if that is more."""
TOUCHED_MAX = 1_000_000
"""Keys that are noted for the next increment; with more, the next file is a checkpoint."""

_encode = msgspec.msgpack.Encoder().encode
_keys_decoder = msgspec.msgpack.Decoder(list[bytes])


class IncrementHeading(msgspec.Struct, frozen=True):
    """The state after the increment, without rows, and what it adds."""

    state: CheckpointHeading
    """Its `outcomes` is the number of those that are new."""
    after: tuple[int, bytes]
    """Sequence and hash of the file before."""
    rows: int
    """About the rows, removed keys and outcomes in the blocks, for progress."""
    whole: tuple[int, ...]
    """The collections whose rows are all here."""
    log_bytes: int
    """Bytes of log since the checkpoint."""


_heading_decoder = msgspec.msgpack.Decoder(IncrementHeading)


class Increment(msgspec.Struct, frozen=True):
    """One file: the state after the record at `sequence`, whose hash is `hash`."""

    name: str
    sequence: int
    hash: bytes
    size: int
    log_bytes: int


def name_of(sequence: int) -> str:
    """Return the file name of an increment; names sort like sequences."""
    return f"{PREFIX}{sequence:020}.part"


class IncrementalCheckpoints(Checkpoints):
    """Checkpoints of a local log, and the increments since the newest one, in order."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.increments: list[Increment] = []

    async def load(self, state: State, *, progress: Progress | None = None) -> Checkpoint | None:
        """Fill an empty state from the newest checkpoint and its increments."""
        found = await super().load(state, progress=progress)
        names = [name for name in self._disk.names() if name.startswith(PREFIX)]
        if found is not None:
            try:
                await self._load_increments(state, names)
            except DamageError as error:
                logger.warning("the log is applied instead of increments: %s", error)
                self.increments = []
                fresh = State()
                found = await super().load(fresh, progress=progress)
                vars(state).update(vars(fresh))
            state.track_changes()
        used = {one.name for one in self.increments}
        for name in names:
            if name not in used:
                await remove_file(self._disk, name)
        return found

    async def _load_increments(self, state: State, names: Sequence[str]) -> None:
        for name in names:
            if not name.endswith(".part"):
                continue
            found = await read_increment(self._disk, name, state)
            if found is None:
                return
            self.increments.append(found)

    @property
    def log_bytes(self) -> int:
        """The bytes of log between the checkpoint and the newest increment."""
        return self.increments[-1].log_bytes if self.increments else 0

    def is_increment_due(self, state: State, log_bytes: int, checkpoint_bytes: int) -> bool:
        """Return whether the log since the newest file is long enough for an increment."""
        newest = self.newest
        if newest is None:
            return False
        touched = (one.rows.touched for one in state.collections.values())
        count = sum(len(each) for each in touched if each)
        if newest.size < CHECKPOINT_SHARE * checkpoint_bytes or count > TOUCHED_MAX:
            state.forget_changes()  # the next file is a checkpoint
            return False
        due = max(checkpoint_bytes, newest.size // LOG_SHARE)
        if log_bytes - self.log_bytes < due:
            return False
        return _is_smaller(state)

    async def write_increment(
        self, state: State, log_bytes: int, *, progress: Progress | None = None
    ) -> Increment | None:
        """Write what has changed since the newest file; None if nothing has.

        The records up to now must be durable.
        """
        async with self._lock:
            last = self.increments[-1] if self.increments else self.newest
            if last is None or last.sequence >= state.sequence:
                return None
            noted = state.track_changes()
            try:
                written = await write_increment(
                    self._disk,
                    state,
                    noted,
                    after=(last.sequence, last.hash),
                    log_bytes=log_bytes,
                    progress=progress,
                )
            except BaseException:
                state.return_changes(noted)
                raise
            self.increments.append(written)
            return written

    async def _write_file(self, state: State, progress: Progress | None) -> Checkpoint:
        noted = state.track_changes()
        try:
            written = await super()._write_file(state, progress)
        except BaseException:
            state.return_changes(noted)
            raise
        # Increments that a crash leaves here continue another checkpoint: load removes them.
        replaced, self.increments = self.increments, []
        for one in replaced:
            await remove_file(self._disk, one.name)
        return written


def _is_smaller(state: State) -> bool:
    """Return whether an increment has clearly fewer rows than a checkpoint."""
    rows = [one.rows for one in state.collections.values()]
    written = sum(len(each.values if each.touched is None else each.touched) for each in rows)
    return 2 * written < sum(len(each.values) for each in rows)


async def write_increment(
    disk: Disk,
    state: State,
    noted: dict[int, Touched | None],
    *,
    after: tuple[int, bytes],
    log_bytes: int,
    progress: Progress | None = None,
) -> Increment:
    """Write the noted rows of the current state to a file, while commits continue."""
    collections = [state.collections[number] for number in sorted(state.collections)]
    outcomes = list(_newer_outcomes(state, after[0]))
    whole = tuple(one.id for one in collections if noted[one.id] is None)
    described = msgspec.structs.replace(heading_of(state, collections), outcomes=len(outcomes))
    rows = sum(
        len(one.rows.values if (keys := noted[one.id]) is None else keys) for one in collections
    )
    heading = IncrementHeading(described, after, rows + len(outcomes), whole, log_bytes)
    sequence = state.open_snapshot()
    name = name_of(sequence)
    try:
        file = disk.create(f"{name}.new", is_apart=True)
        with discarding(disk, file):
            writer = Writer(disk, file, state, heading.rows, progress)
            await writer.begin(MAGIC, FORMAT, _encode(heading))
            for collection in collections:
                keys = noted[collection.id]
                if keys is None:
                    await write_rows(writer, collection, sequence)
                else:
                    await _write_touched(writer, collection, sequence, after[0], keys)
            await writer.rows(OUTCOMES, outcome_rows(outcomes))
            await writer.end()
            size = file.size
            await put_in_place(disk, file, name)
    finally:
        state.close_snapshot(sequence)
    return Increment(name, sequence, described.hash, size, log_bytes)


async def _write_touched(
    writer: Writer, collection: Collection, sequence: int, since: int, keys: Touched
) -> None:
    pieces = collection.touched_pieces(sequence, since, keys)
    if collection.versioned_since:
        steps = (versioned(collection, piece.items(), sequence) for piece in pieces)
        await writer.rows(collection.id, steps)
    else:
        await writer.pieces(collection.id, pieces)
    await writer.rows(collection.id | REMOVED, _removed(keys))


def _removed(keys: Touched) -> Iterator[list[tuple[bytes]]]:
    pairs = keys.pairs()
    while step := list(islice(pairs, ROWS_AT_ONCE)):
        yield [(key,) for key, is_there in step if not is_there]


def _newer_outcomes(state: State, since: int) -> list[tuple[str, KeptOutcome]]:
    """Return the outcomes of records after a sequence, which are the last ones."""
    found: list[tuple[str, KeptOutcome]] = []
    for name, kept in reversed(state.outcomes.items()):
        if kept.sequence <= since:
            break
        found.append((name, kept))
    return found[::-1]


async def read_increment(
    disk: Disk, name: str, state: State, *, progress: Progress | None = None
) -> Increment | None:
    """Add an increment to the state that it continues; None if it continues another one.

    After a DamageError the state is not usable.
    """
    reader = _reader(disk, name)
    heading = reader.read_increment_heading()
    if heading.after != (state.sequence, state.hash):
        return None
    await reader.add_to(state, heading, progress)
    described = heading.state
    return Increment(name, described.sequence, described.hash, reader.size, heading.log_bytes)


async def verify_increments(disk: Disk, checkpoint: Checkpoint | None) -> list[str]:
    """Return what is wrong with the increments on a disk, without their rows."""
    after = None if checkpoint is None else (checkpoint.sequence, checkpoint.hash)
    problems: list[str] = []
    for name in [name for name in disk.names() if name.startswith(PREFIX)]:
        reader = _reader(disk, name)
        try:
            heading = reader.read_increment_heading()
            await reader.verify_rest()
        except DamageError as error:
            problems.append(error.message)
            after = None
        else:
            if heading.after != after:
                problems.append(f"{name} does not continue the file before it.")
            after = (heading.state.sequence, heading.state.hash)
    return problems


class _IncrementReader(Reader):
    """Reads one increment into the state that it continues."""

    def read_increment_heading(self) -> IncrementHeading:
        return self.decoded(_heading_decoder, self.read_head(MAGIC, FORMAT)[1])

    async def add_to(
        self, state: State, heading: IncrementHeading, progress: Progress | None
    ) -> None:
        after = heading.state
        collections = {one.id: _continued(state, heading, one) for one in after.collections}
        outcomes = dict(state.outcomes)
        done = blocks = 0
        async for chunk in self.chunks():
            for number, block in chunk:
                collection = collections.get(number & ~REMOVED)
                if number == OUTCOMES:
                    done += self._add_outcomes(outcomes, block)
                elif collection is None:
                    raise self.damaged("it contains rows of an unknown collection")
                elif number & REMOVED:
                    done += self._remove(collection.rows, block, after.sequence)
                elif collection.id in heading.whole:
                    is_versioned = collection.versioned_since > 0
                    done += self.read_rows(collection.rows, block, is_versioned=is_versioned)
                else:
                    done += self._merge(collection, block)
                blocks += 1
                if progress is not None:
                    progress(done, heading.rows)
            await asyncio.sleep(0)
        self.read_footer(blocks, done)
        for one in after.collections:
            if len(collections[one.id].rows.values) != one.count:
                raise self.damaged("rows of a collection are missing")
        # An increment does not say which outcomes were forgotten: those that have expired.
        live = [each for each in outcomes.items() if each[1].expires > after.ticks]
        state.replace_collections(collections.values(), live)
        set_heading(state, after)

    def _merge(self, collection: Collection, block: memoryview) -> int:
        found, versions = self.rows_of(block, is_versioned=collection.versioned_since > 0)
        collection.rows.values.merge(found, len(block))
        collection.rows.versions.update(versions)
        return len(found)

    def _remove(self, rows: Rows, block: memoryview, sequence: int) -> int:
        keys = self.decoded(_keys_decoder, block)
        for key in keys:
            # A row that was added and removed after the file before is not in it.
            rows.values.remove(key, sequence)
            rows.versions.pop(key, None)
        return len(keys)

    def _add_outcomes(self, outcomes: dict[str, KeptOutcome], block: memoryview) -> int:
        pairs = self.outcomes_of(block)
        for name, kept in pairs:
            outcomes.pop(name, None)
            outcomes[name] = kept
        return len(pairs)


def _reader(disk: Disk, name: str) -> _IncrementReader:
    size = disk.size(name)
    return _IncrementReader(
        name, size, lambda start, count: disk.read(name, start, count), disk.aside
    )


def _continued(state: State, heading: IncrementHeading, described: CollectionHeading) -> Collection:
    """Return a collection as the heading describes it, with the rows that the state has of it."""
    known = state.collections.get(described.id)
    collection = Collection(described.id, described.description)
    collection.tail = described.tail
    collection.versioned_since = heading.state.versioned_since.get(described.id, 0)
    if known is not None and described.id not in heading.whole:
        collection.rows = known.rows
    return collection
