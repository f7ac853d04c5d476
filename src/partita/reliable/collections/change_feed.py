"""The change feed of a dictionary: committed changes in the order of the log, each one once.

Applying a record only appends bytes to a bounded buffer; the reader of the feed decodes them.
Changes before the buffer, or that did not fit into it, are read from the log: its records are
applied again to a scratch state, which has the old values. If checkpoint and log do not reach
back far enough, the feed starts again with a rebuild: all rows of a snapshot, then the changes
after it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import msgspec

from partita.errors import (
    NotReadableError,
    StateClosedError,
    UsageError,
)
from partita.reliable.collections.snapshot import Snapshot, collection_dropped
from partita.reliable.state.records import Entry, Outcome, Record, decode_record, record_hash
from partita.reliable.state.state import Collection, State
from partita.reliable.storage.checkpoint import Checkpoint, Reader
from partita.reliable.storage.log import Log
from partita.reliable.values.arguments import checked_sequence

K = TypeVar("K")
V = TypeVar("V")
K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)

FEED_BUFFER_MAX = 10_000
"""Changes buffered for the reader of one feed; beyond, it reads the log again."""
FEED_BUFFER_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of their keys and values. Both limits are checked before a record, not inside."""
REPLAY_CHANGES = 1_000
"""Changes read from the log at once, to the end of their record."""
REPLAY_BYTES = 4 * 1024 * 1024
STEP_BYTES = 32 * 1024
"""Bytes of log that are applied before other tasks run."""
STEP_CHANGES = 256
"""Changes returned to a reader, or rows read from a snapshot, before other tasks run."""

RawChange = tuple[int, bytes | None, bytes | None, bytes | None]
"""Sequence, key, old and new value; a change without a key is a rebuild."""


class Change(msgspec.Struct, Generic[K, V], frozen=True):
    """One committed change of a dictionary.

    `rebuild` means: discard what you know, all rows of the dictionary follow as `add`. An absent
    value is None, and so is a stored None: `kind` distinguishes them.
    """

    kind: Literal["add", "update", "delete", "clear", "rebuild"]
    key: K | None
    old: V | None
    new: V | None
    sequence: int
    is_last: bool
    """Whether this is the last change of its sequence, from which changes(since=) can resume."""


class FeedDictionary(Protocol[K_co, V_co]):
    """What a feed needs of its dictionary."""

    name: str
    collection: Collection

    def decode_pair(self, encoded: bytes, stored: bytes | None) -> tuple[K_co, V_co | None]: ...


class CheckpointSource(Protocol):
    """The checkpoint from which a scratch state may start."""

    newest: Checkpoint | None

    def read(self, checkpoint: Checkpoint) -> bytes: ...


class FeedSource(Protocol):
    """What a feed needs of its state."""

    @property
    def sequence(self) -> int: ...

    @property
    def is_primary(self) -> bool: ...

    @property
    def log(self) -> Log: ...

    @property
    def checkpoints(self) -> CheckpointSource: ...

    def snapshot(self) -> Snapshot: ...

    def add_feed(self, feed: "ChangeFeed[Any, Any]") -> None:
        """Call `rebuilt` of the feed after a rebuild and `close` at the end."""
        ...

    def remove_feed(self, feed: "ChangeFeed[Any, Any]") -> None: ...


class _Buffer:
    """Changes that were applied after the sequence `after`, up to the limits.

    `lost_from` is None as long as the buffer is complete, then the first missing sequence.
    """

    def __init__(self, collection: Collection, after: int, wake: Callable[[], None]) -> None:
        self.collection = collection
        self.after = after
        self.lost_from: int | None = None
        self.changes: deque[RawChange] = deque()
        self._bytes = 0
        self._wake = wake
        collection.watchers.append(self._watch)

    def take(self) -> deque[RawChange]:
        """Remove and return all changes, always of complete records."""
        changes, self.changes, self._bytes = self.changes, deque(), 0
        return changes

    def detach(self) -> None:
        self.collection.watchers.remove(self._watch)

    def _watch(self, sequence: int, key: bytes, old: bytes | None, new: bytes | None) -> None:
        if sequence <= self.after or self.lost_from is not None:
            return
        changes = self.changes
        if changes and changes[-1][0] != sequence and self._is_full():
            self.lost_from = changes[0][0]
            changes.clear()
            return
        changes.append((sequence, key, old, new))
        self._bytes += _size(key, old, new)
        self._wake()

    def _is_full(self) -> bool:
        return len(self.changes) >= FEED_BUFFER_MAX or self._bytes >= FEED_BUFFER_BYTES_MAX


class ChangeFeed(Generic[K, V]):
    """The changes of one dictionary, for one reader: `async with users.changes(since=n) as feed`.

    The iteration waits for new changes and ends when the feed or the state is closed. A
    cancelled wait loses nothing. `ReliableDictionary.changes` returns it.
    """

    def __init__(self, source: FeedSource, dictionary: FeedDictionary[K, V], since: int) -> None:
        self._source = source
        self._dictionary = dictionary
        self._position = checked_sequence(since)
        """All changes up to this sequence were returned or are in `_pending`."""
        self._pending: deque[RawChange] = deque()
        """The next changes: complete records, or rows of a rebuild."""
        self._pending_bytes = 0
        self._buffer: _Buffer | None = None
        """Changes that are applied meanwhile; exists from opening to closing."""
        self._scratch: State | None = None
        """The state to which the log is applied again while the position is before the buffer."""
        self._snapshot: Snapshot | None = None
        """The snapshot of a rebuild, until its last row is in `_pending`."""
        self._next_row = b""
        self._needs_rebuild = False
        self._starts = 0
        """Incremented when the feed starts again: a step that waited must check it afterwards."""
        self._given = 0
        self._woken: asyncio.Future[None] | None = None
        self._is_reading = False
        self._is_entered = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise _not_open()
        self._source.add_feed(self)
        self._is_entered = True
        # A primary has applied the whole log: a position after it was lost by a restore.
        self._needs_rebuild = self._source.is_primary and self._position > self._source.sequence
        self._attached()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._source.remove_feed(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[K, V]:
        if not self._is_entered:
            raise _not_open()
        if self._is_reading:
            raise UsageError(
                "FeedInUse",
                f"Two tasks read the change feed of {self._dictionary.name!r} at the same time.",
                hint="Open one feed per task.",
            )
        self._is_reading = True
        try:
            if await self._is_next_ready():
                return self._take_next()
        except StateClosedError:
            self.close()
        finally:
            self._is_reading = False
        raise StopAsyncIteration

    def close(self) -> None:
        """End the iteration and a running wait; closing twice does nothing."""
        self._is_closed = True
        self._forget()

    def rebuilt(self) -> None:
        """Start again: the rows were replaced by a full copy or a restore."""
        if not self._is_closed:
            self._needs_rebuild = True
            self._forget()

    # --- the next change ------------------------------------------------------------------

    async def _is_next_ready(self) -> bool:
        """Wait until there is a change; return False if the feed was closed."""
        if self._given >= STEP_CHANGES:
            self._given = 0
            await asyncio.sleep(0)
        while not self._is_closed:
            # A row of a rebuild is known to be the last only when no other can follow.
            if len(self._pending) > (0 if self._snapshot is None else 1):
                return True
            await self._fetch()
        return False

    def _take_next(self) -> Change[K, V]:
        sequence, encoded, old, new = self._pending[0]
        is_last = len(self._pending) == 1 or self._pending[1][0] != sequence
        change = self._decoded(sequence, encoded, old, new, is_last=is_last)
        self._pending.popleft()  # after decoding: a value that cannot be decoded is not skipped
        self._given += 1
        return change

    def _decoded(
        self,
        sequence: int,
        encoded: bytes | None,
        old: bytes | None,
        new: bytes | None,
        *,
        is_last: bool,
    ) -> Change[K, V]:
        if encoded is None:
            return Change("rebuild", None, None, None, sequence, is_last)
        if old is None and new is None:
            return Change("clear", None, None, None, sequence, is_last)
        key, new_value = self._dictionary.decode_pair(encoded, new)
        if old is None:
            return Change("add", key, None, new_value, sequence, is_last)
        _, old_value = self._dictionary.decode_pair(encoded, old)
        kind: Literal["update", "delete"] = "delete" if new is None else "update"
        return Change(kind, key, old_value, new_value, sequence, is_last)

    async def _fetch(self) -> None:
        """Do one step towards the next change, or wait for it."""
        if self._snapshot is not None:
            await self._fetch_rows(self._snapshot)
            return
        if self._needs_rebuild:
            self._begin_rebuild()
            return
        buffer = self._attached()
        if self._position < buffer.after:
            await self._replay(buffer.after)
            return
        self._scratch = None
        if buffer.changes:
            self._pending = buffer.take()
            self._position = self._pending[-1][0]
            return
        self._refuse_if_dropped()
        await self._wait()

    async def _wait(self) -> None:
        self._woken = asyncio.get_running_loop().create_future()
        try:
            await self._woken
        finally:
            self._woken = None

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _attached(self) -> _Buffer:
        """Return a buffer that is complete after its `after`."""
        buffer = self._buffer
        if buffer is not None:
            if buffer.lost_from is None:
                return buffer
            if self._position >= buffer.after:
                self._position = max(self._position, buffer.lost_from - 1)
            buffer.detach()
        return self._attach(max(self._source.sequence, self._position))

    def _attach(self, after: int) -> _Buffer:
        self._buffer = _Buffer(self._dictionary.collection, after, self._wake)
        return self._buffer

    def _forget(self) -> None:
        self._starts += 1
        self._pending.clear()
        self._scratch = None
        if self._buffer is not None:
            self._buffer.detach()
            self._buffer = None
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        self._wake()

    def _refuse_if_dropped(self) -> None:
        if self._dictionary.collection.is_dropped:
            raise collection_dropped(self._dictionary.name)

    # --- rebuild --------------------------------------------------------------------------

    def _begin_rebuild(self) -> None:
        """Open a snapshot, and buffer the changes after it."""
        self._refuse_if_dropped()
        snapshot = self._source.snapshot()
        self._forget()
        self._attach(snapshot.sequence)
        self._snapshot, self._next_row = snapshot, b""
        self._position = snapshot.sequence
        self._pending.append((snapshot.sequence, None, None, None))
        self._needs_rebuild = False

    async def _fetch_rows(self, snapshot: Snapshot) -> None:
        assert self._buffer is not None
        sequence = snapshot.sequence
        rows, last = self._buffer.collection.scan(
            sequence, self._next_row, None, limit=STEP_CHANGES
        )
        self._pending.extend((sequence, key, None, value) for key, value in rows)
        if last is None:
            snapshot.close()
            self._snapshot = None
        else:
            self._next_row = last + b"\x00"
            await asyncio.sleep(0)

    # --- reading the log ------------------------------------------------------------------

    async def _replay(self, until: int) -> None:
        """Read some changes after the position from the log, up to a sequence."""
        start = self._starts
        scratch = self._scratch or await self._begin_scratch()
        if self._starts != start:
            return
        self._scratch = scratch
        before = scratch.sequence
        records = self._source.log.read_from(before + 1)
        try:
            await self._apply(records, scratch, until)
        except NotReadableError:  # the log does not reach back far enough
            self._needs_rebuild |= self._starts == start
        finally:
            if isinstance(records, AsyncGenerator):
                await records.aclose()
        if self._starts == start and scratch.sequence == before:
            self._needs_rebuild = True  # the log ends before the applied sequence

    async def _begin_scratch(self) -> State:
        """Return a state at or before the position that contains only this dictionary."""
        scratch, checkpoints = State(), self._source.checkpoints
        if checkpoints.newest is not None and checkpoints.newest.sequence <= self._position:
            await _fill(scratch, checkpoints, checkpoints.newest)
        identifier = self._dictionary.collection.id
        ours = scratch.collections.get(identifier)
        scratch.collections = {} if ours is None else {identifier: ours}
        return scratch

    async def _apply(
        self, records: AsyncIterator[tuple[int, bytes]], scratch: State, until: int
    ) -> None:
        start, identifier, since_step = self._starts, self._dictionary.collection.id, 0
        self._pending_bytes = 0
        async for sequence, raw in records:
            if self._starts != start:
                return
            ours = scratch.collections.get(identifier)
            if ours is not None and not ours.watchers:
                ours.watchers.append(self._note)
            scratch.apply(_only(identifier, decode_record(raw)), record_hash(raw))
            self._position = max(self._position, sequence)
            if sequence >= until or self._has_enough():
                return
            since_step += len(raw)
            if since_step >= STEP_BYTES:
                since_step = 0
                await asyncio.sleep(0)

    def _note(self, sequence: int, key: bytes, old: bytes | None, new: bytes | None) -> None:
        if sequence > self._position:
            self._pending.append((sequence, key, old, new))
            self._pending_bytes += _size(key, old, new)

    def _has_enough(self) -> bool:
        return len(self._pending) >= REPLAY_CHANGES or self._pending_bytes >= REPLAY_BYTES


async def _fill(scratch: State, checkpoints: CheckpointSource, newest: Checkpoint) -> None:
    """Fill a state from a checkpoint, whose file may be removed after the next wait."""
    content = checkpoints.read(newest)
    reader = Reader(newest.name, len(content), lambda start, count: content[start : start + count])
    (await reader.read_all()).fill(scratch)


def _only(identifier: int, record: Record) -> Record:
    """Return the record without the operations on other collections."""
    operations = [
        operation
        for entry in record.entries
        for operation in entry.operations
        if not isinstance(operation, Outcome) and operation.collection == identifier
    ]
    return msgspec.structs.replace(record, entries=[Entry("", operations)])


def _size(key: bytes, old: bytes | None, new: bytes | None) -> int:
    return len(key) + (0 if old is None else len(old)) + (0 if new is None else len(new))


def _not_open() -> UsageError:
    return UsageError(
        "FeedNotOpen",
        "A change feed can be opened once, and read only inside its `async with` block.",
        hint="Use `async with users.changes(since=sequence) as feed`, with a new feed per block.",
    )
