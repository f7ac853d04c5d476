"""Transactions: their reads, locks and writes, their commit and their abort.

Writes are kept in workspaces until the commit makes them one entry of a record, so that an abort
has nothing to undo. Read locks are released when the commit starts, the others when it was
applied. With isolation="snapshot" the keys of dictionaries are locked only by the commit, which
fails if one of them was written after the snapshot: the first committer wins. A transaction may
only be used by the task that opened it. The file is long because a commit needs all its parts, and
a reader follows it without leaving the file.
"""

import asyncio
import enum
import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from partita.clock import LeapCheckedClock
from partita.errors import (
    DeadlockError,
    InDoubtError,
    LimitExceededError,
    LockTimeoutError,
    MutatedValueError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    StateClosedError,
    TransactionAbortedError,
    TransactionUseError,
    UsageError,
    WriteConflictError,
)
from partita.reliable.collections.committer import Committer
from partita.reliable.collections.snapshot import Origin, Snapshot, collection_dropped, end_lost
from partita.reliable.collections.state_counts import StateCounts
from partita.reliable.state.locks import LockMode, LockTable, Waiter
from partita.reliable.state.records import (
    Alter,
    Clear,
    Create,
    Delete,
    Drop,
    Enqueue,
    Entry,
    Operation,
    Outcome,
    Put,
)
from partita.reliable.state.state import Collection, Description, State, encode_description
from partita.reliable.values import limits
from partita.reliable.values.arguments import checked_timeout
from partita.reliable.values.serialization import ValueCache, ValueCodec
from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

OUTCOMES = 0
"""The identifier of idempotency keys in the lock table; no collection has it."""
CREATIONS = -1
"""The identifier in the lock table of the lock for creating collections."""

OPERATION_OVERHEAD_BYTES = 16
MUTATION_SAMPLE = 100
"""Where the mutation check is sampled, it is done in one of this many transactions."""
_PACKAGE = str(Path(__file__).parents[2])


class Status(enum.Enum):
    """The status of a transaction."""

    ACTIVE = "active"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"


Isolation = Literal["locks", "snapshot"]

IndexOperations = Callable[["Workspace", list[Collection]], list[Operation]]


class Owner(Protocol):
    """An open collection: what a transaction needs of it."""

    name: str
    collection: Collection

    @property
    def codec(self) -> ValueCodec[Any] | None:
        """The codec of the values; None for a collection of which only the lock is used."""

    @property
    def cache(self) -> ValueCache[Any] | None:
        """The decoded values; None where each read must return a new object."""

    @property
    def index_operations(self) -> IndexOperations | None:
        """Returns what a commit writes to the indexes; None for a collection without any."""

    @property
    def keeps_every_change(self) -> bool:
        """Whether a commit contains every write to a key, not only the last one."""

    def key_of(self, encoded: bytes) -> object:
        """Return the key for an error message."""
        ...


class Transactions(Protocol):
    """Opens the transactions and snapshots that a collection needs for itself."""

    def transaction(self) -> "Transaction": ...

    def snapshot(self) -> Snapshot: ...


class Workspace:
    """What one transaction did to one collection.

    `writes` has the newest bytes by key (None: deleted) and `given` the objects that they encode;
    `seen` has the objects that were read with their bytes, `copies` the same where each read
    returns a new object, and `handed_out` those of enumerations. `journal` has all writes in their
    order if the commit is to contain them.
    """

    __slots__ = (
        "at",
        "collection",
        "copies",
        "enqueued",
        "given",
        "guarded",
        "handed_out",
        "is_cleared",
        "journal",
        "on_end",
        "owner",
        "seen",
        "writes",
    )

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.collection = owner.collection
        self.writes: dict[bytes, bytes | None] = {}
        self.given: dict[bytes, object] = {}
        self.seen: dict[bytes, tuple[bytes, object]] = {}
        self.copies: dict[bytes, list[tuple[bytes, object]]] = {}
        self.handed_out: dict[bytes, list[tuple[bytes, object]]] = {}
        self.enqueued: list[bytes] = []
        self.is_cleared = False
        self.journal: list[tuple[bytes, bytes | None]] | None = (
            [] if owner.keeps_every_change else None
        )
        self.at: int | None = None
        """The sequence that is read; None: the newest."""
        self.guarded: set[bytes] = set()
        """Keys that were read and must not have changed at the commit, though it does not write
        them; only where `at` is a sequence."""
        self.on_end: Callable[[Workspace, bool], None] | None = None
        """Called at the end of the transaction; True: it was committed."""

    def find(self, key: bytes) -> bytes | None:
        """Return the newest bytes: the transaction's own writes first, then committed ones."""
        if key in self.writes:
            return self.writes[key]
        if self.is_cleared:
            return None
        if self.at is not None:
            return self.collection.find(key, self.at)
        return self.collection.rows.values.get(key)

    def clear(self) -> None:
        self.is_cleared = True
        self.writes.clear()
        self.given.clear()
        self.seen.clear()
        self.copies.clear()
        self.handed_out.clear()
        self.enqueued.clear()
        if self.journal is not None:
            self.journal.clear()

    def operations(self) -> list[Operation]:
        identifier = self.collection.id
        committed: Mapping[bytes, bytes] = self.collection.rows.values
        operations: list[Operation] = []
        if self.is_cleared:
            committed = {}
            operations.append(Clear(identifier))
        if self.journal is not None:
            return operations + self._every_change(committed)
        for key, value in self.writes.items():
            if value is not None:
                operations.append(Put(identifier, key, value))
            elif key in committed:
                operations.append(Delete(identifier, key))
        if self.enqueued:
            operations += [Enqueue(identifier, value) for value in self.enqueued]
        return operations

    def _every_change(self, committed: Mapping[bytes, bytes]) -> list[Operation]:
        identifier = self.collection.id
        operations: list[Operation] = []
        exists: dict[bytes, bool] = {}
        for key, value in self.journal or ():
            if value is not None:
                operations.append(Put(identifier, key, value))
            elif exists.get(key, key in committed):
                operations.append(Delete(identifier, key))
            exists[key] = value is not None
        return operations

    async def validate(self, tx: "Transaction") -> None:
        """Lock what the commit writes or guards, and raise if it has changed since the snapshot."""
        assert self.at is not None
        for key in sorted({*self.writes, *self.guarded}):
            await tx.lock(self.owner, key, LockMode.EXCLUSIVE, None)
            if self.collection.has_changed(key, self.at):
                raise _write_conflict(tx.id, self.owner, key)
        if self.is_cleared and self.collection.has_changed(None, self.at):
            raise _write_conflict(tx.id, self.owner, None)

    def check_mutation(self) -> None:
        """Raise MutatedValueError if a value that was written or read has changed since."""
        for key, given in self.given.items():
            stored = self.writes.get(key)
            if stored is not None:
                self.check_value(key, given, stored)
        for key, (stored, value) in self.seen.items():
            self.check_value(key, value, stored)
        for read in (self.copies, self.handed_out):
            for key, copies in read.items():
                for stored, value in copies:
                    self.check_value(key, value, stored)

    def check_value(self, key: bytes, value: object, stored: bytes) -> None:
        """Raise MutatedValueError if a value differs from its bytes."""
        owner = self.owner
        assert owner.codec is not None, "only collections with values have them checked"
        path = owner.codec.mutated_path(value, stored)
        if path is not None:
            if owner.cache is not None:
                owner.cache.discard(key)
            raise MutatedValueError.of(owner.name, owner.key_of(key), path)

    def end(self, *, is_committed: bool) -> None:
        """Cache the objects that were committed: they are equal to what their bytes decode to."""
        cache = self.owner.cache
        if is_committed and cache is not None:
            for key, given in self.given.items():
                stored = self.writes.get(key)
                if stored is not None:
                    cache.put(key, stored, given)
        if self.on_end is not None:
            self.on_end(self, is_committed)


class Core:
    """What all transactions of a replica share. `role_error` is None on the primary."""

    def __init__(self, state: State, clock: Clock, name: str) -> None:
        self.state = state
        self.clock = LeapCheckedClock(clock)
        self.locks = LockTable()
        self.counts = StateCounts()
        self.committer: Committer | None = None
        self.role_error: PartitaError | None = None
        self.mutation_check = "on"
        """How often values are checked for changes: on, sample or off."""
        self.active: dict[str, weakref.ref[Transaction]] = {}
        """Open transactions; one that is no longer referenced is aborted and removed."""
        self.entry_bytes_max = limits.TRANSACTION_BYTES_MAX
        """The largest entry of a transaction; less where the log accepts less."""
        self.transaction_bytes_max = limits.TRANSACTION_BYTES_MAX
        self.transaction_operations_max = limits.TRANSACTION_OPERATIONS_MAX
        self._name = name
        self._count = 0
        self._samples = 0

    def new_id(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count:x}"

    def checks_mutation(self) -> bool:
        """Return whether the next transaction checks its values."""
        if self.mutation_check != "sample":
            return self.mutation_check == "on"
        self._samples += 1
        return self._samples % MUTATION_SAMPLE == 0

    def now(self) -> int:
        """Return the wall clock in ticks, never earlier than that of the newest record."""
        return max(self.clock.ticks(), self.state.ticks)

    def transaction(self) -> "Transaction":
        return Transaction(self, timeout=limits.LOCK_TIMEOUT_SECONDS)

    def check_open(self) -> None:
        if isinstance(self.role_error, StateClosedError):
            raise self.role_error

    def writable(self) -> Committer:
        if self.committer is None or self.role_error is not None:
            raise self.role_error or NotPrimaryError("NotPrimary", "This replica cannot write.")
        return self.committer

    def depose(self, error: PartitaError) -> None:
        """Stop writing and end every open transaction: its locks are no longer valid."""
        if not isinstance(self.role_error, StateClosedError):  # a closed state stays closed
            self.role_error = error
        self.committer = None
        for held in list(self.active.values()):
            tx = held()
            if tx is not None:
                tx.end_by_system(error)


class Transaction:
    """A unit of atomic change over any collections of one state.

    Leaving its `async with` block commits; an exception aborts. `commit_sequence` is None until
    the commit has written something.
    """

    def __init__(  # noqa: PLR0915 - one attribute after the other
        self,
        core: Core,
        *,
        timeout: float,
        isolation: Isolation = "locks",
        is_shared: bool = False,
    ) -> None:
        core.check_open()
        if isolation not in ("locks", "snapshot"):
            raise UsageError(
                "InvalidIsolation",
                f"isolation={isolation!r} is neither 'locks' nor 'snapshot'.",
                hint='Omit it, or pass isolation="snapshot".',
            )
        self._core = core
        if timeout != limits.LOCK_TIMEOUT_SECONDS:
            timeout = checked_timeout(timeout)
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._task = None if is_shared else asyncio.current_task(self._loop)
        self._is_shared = is_shared
        self._woken: asyncio.Future[None] | None = None
        self._spaces: dict[int, Workspace] = {}
        self._snapshot: Snapshot | None = None
        self._first: list[Operation] = []
        """Collections that are dropped and created, before the writes."""
        self._more: list[Operation] = []
        self._created: dict[str, Collection] = {}
        """The collections that this transaction creates, by name; no one else knows them."""
        self._dropped: dict[int, Collection] = {}
        self._on_end: list[Callable[[bool], None]] = []
        self._origins: dict[int, tuple[object, bytes, ValueCodec[Any]]] = {}
        """Objects that were read, with the bytes and the codec that they come from."""
        self._callbacks: list[Callable[[int], object]] = []
        self._bytes = 0
        self._count = 0
        self._ended_by: PartitaError | None = None
        self._spent = 0.0
        """Seconds that the operation has waited for locks, which share one time-out."""
        self._done: asyncio.Future[int] | None = None
        self._checks_mutation: bool | None = None
        self.id = core.new_id()
        self.origin = origin()
        self.began = core.clock.monotonic()
        """When it was opened, for observers of locks."""
        self.commit_sequence: int | None = None
        self.keeps_outcome = False
        """Whether a function runs with an idempotency key: its outcome is part of the commit."""
        self.is_on_primary = core.role_error is None
        self.takes_locks = self.is_on_primary and isolation == "locks"
        """Whether reads and writes of dictionaries lock their keys at once."""
        if isolation == "snapshot":
            self._snapshot = Snapshot(core.state, core.now(), self.origin)
        core.active[self.id] = weakref.ref(self)
        self.status = Status.ACTIVE

    def __del__(self) -> None:
        if getattr(self, "status", None) is Status.ACTIVE:
            end_lost(self._loop, self.origin, f"Transaction {self.id}", self._end_lost, self)

    # --- used by collections --------------------------------------------------------------

    @property
    def locks(self) -> LockTable:
        return self._core.locks

    @property
    def now(self) -> int:
        return self._core.now()

    @property
    def sequence(self) -> int:
        """The sequence of the newest record that was applied."""
        return self._core.state.sequence

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot for enumerations and counts, opened by the first of them."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self._core.state, self._core.now(), self.origin)
        return self._snapshot

    def check(self) -> None:
        """Raise after the end, in another task, or while an operation still waits."""
        if self.status is not Status.ACTIVE:
            raise self._not_active()
        if self._woken is not None or (
            not self._is_shared and asyncio.current_task(self._loop) is not self._task
        ):
            raise TransactionUseError(
                "TransactionInUse",
                f"Transaction {self.id} was used by two tasks.",
                facts={"transaction": self.id},
                hint="Await one operation after the other in the task that opened it; give each "
                "task its own transaction, and use timeout= instead of asyncio.wait_for().",
            )

    def check_writable(self) -> None:
        """Raise if writes cannot be committed, before a lock is taken."""
        self.check()
        self._writable()

    def space(self, owner: Owner, timeout: float | None = None) -> Workspace | None:
        """Start an operation: return the workspace of a collection, None before `enter`."""
        self.check()
        if timeout is not None:
            checked_timeout(timeout)
        self._spent = 0.0
        space = self._spaces.get(owner.collection.id)
        if space is not None and space.collection is not owner.collection:
            raise self._replaced() if self._holds(owner) else self._foreign(owner)
        if self._dropped and owner.collection.id in self._dropped:
            raise collection_dropped(owner.name)
        return space

    async def enter(
        self, owner: Owner, timeout: float | None, mode: LockMode = LockMode.SHARED
    ) -> Workspace:
        """Start to use a collection: until the end no other transaction may clear or drop it."""
        if self.is_on_primary:
            await self.lock(owner, None, mode, timeout)
        if not self._holds(owner):
            raise self._foreign(owner)
        space = self._spaces[owner.collection.id] = Workspace(owner)
        if self.is_on_primary and not self.takes_locks and owner.index_operations is not None:
            space.at = self.snapshot.sequence
        return space

    async def enter_to_clear(self, owner: Owner, timeout: float | None) -> Workspace:
        """Start to use a collection alone, for a clear."""
        self.check_writable()
        space = self.space(owner, timeout) or await self.enter(owner, timeout, LockMode.EXCLUSIVE)
        await self.lock(owner, None, LockMode.EXCLUSIVE, timeout)
        return space

    async def lock(
        self, owner: Owner, key: bytes | None, mode: LockMode, timeout: float | None
    ) -> None:
        """Take a lock within `timeout` (the transaction's own if None) for the whole operation."""
        if timeout is not None:
            checked_timeout(timeout)
        waiter = self.acquire(owner, key, mode, timeout)
        if waiter is not None:
            await self.wait(owner, waiter, timeout)

    def acquire(
        self, owner: Owner, key: bytes | None, mode: LockMode, timeout: float | None
    ) -> Waiter | None:
        """Take a free lock; otherwise return the request to wait for.

        With a time-out of 0 no request is queued: it could cause a deadlock for others.
        """
        locks, resource = self._core.locks, (owner.collection.id, key)
        if type(mode) is not LockMode:
            mode = _checked_mode(mode)
        if timeout == 0 or (timeout is None and self._timeout == 0):
            if locks.try_acquire(self.id, resource, mode):
                return None
            self._core.counts.lock_timeouts += 1
            raise self._timed_out(owner, key, locks.oldest_holder(resource, self.id), 0.0)
        return locks.acquire(self.id, resource, mode)

    async def wait(self, owner: Owner, waiter: Waiter, timeout: float | None) -> None:
        """Wait for a lock that was not free."""
        clock, locks = self._core.clock, self._core.locks
        started = waiter.since = clock.monotonic()
        holder = waiter.deadlock_with
        try:
            if not holder:
                seconds = self._timeout if timeout is None else timeout
                seconds = max(seconds - self._spent, 0.0)
                woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiter.wake = lambda _: _wake(woken)
                await self.pause(woken, seconds)
        finally:
            holder = waiter.deadlock_with or locks.oldest_holder(waiter.resource, self.id)
            locks.give_up(waiter)
            waited = clock.monotonic() - started
            self._spent += waited
            counts = self._core.counts
            counts.lock_wait_seconds.observe(waited)
        if waiter.granted:
            return
        if not waiter.deadlock_with:
            counts.lock_timeouts += 1
            raise self._timed_out(owner, waiter.resource[1], holder, self._spent)
        counts.deadlocks += 1
        key = _key_text(owner, waiter.resource[1])
        raise DeadlockError.of(holder, owner.name, key, self._spent)

    async def pause(self, woken: "asyncio.Future[None]", seconds: float) -> None:
        """Wait for a future, a time, or the end of the transaction, which raises."""
        timer = asyncio.get_running_loop().call_later(seconds, _wake, woken)
        self._woken = woken
        try:
            await woken
        finally:
            self._woken = None
            timer.cancel()
        if self.status is not Status.ACTIVE:
            raise self._not_active()

    def hand_out(self, space: Workspace, key: bytes, stored: bytes, value: object) -> None:
        """Record a mutable object that an enumeration returns, to check it at the commit.

        Beyond the limit the oldest is checked now, so that neither memory nor the time of the
        commit grows with the enumeration.
        """
        if not self.is_on_primary or not self.checks_mutation:
            return
        handed_out = space.handed_out
        handed_out.setdefault(key, []).append((stored, value))
        if len(handed_out) > limits.HANDED_OUT_MAX:
            oldest = next(iter(handed_out))
            for before, given in handed_out[oldest]:
                space.check_value(oldest, given, before)
            del handed_out[oldest]

    def check_room(self, count: int, size: int) -> None:
        """Raise LimitExceededError if so many more writes of so many bytes are too large."""
        core = self._core
        if self._count + count > core.transaction_operations_max:
            raise _too_large(self.id, f"{core.transaction_operations_max} rows")
        if self._bytes + size > core.transaction_bytes_max:
            raise _too_large(self.id, f"{core.transaction_bytes_max} bytes")

    def stage(self, space: Workspace, key: bytes, value: bytes | None) -> None:
        """Record a write; refuse it if the transaction becomes too large."""
        self._writable()
        self._grow(len(key) + (0 if value is None else len(value)))
        space.writes[key] = value
        if space.journal is not None:
            space.journal.append((key, value))

    def stage_enqueue(self, space: Workspace, value: bytes) -> None:
        self._writable()
        self._grow(len(value))
        space.enqueued.append(value)

    def stage_clear(self, space: Workspace) -> None:
        self._writable()
        space.clear()

    def stage_operations(self, operations: list[Operation]) -> None:
        """Add operations that do not come from a workspace: outcomes, schemas, drops."""
        self._writable()
        self._more.extend(operations)

    def find_collection(self, name: str) -> Collection | None:
        """Return a collection as this transaction sees it, with what it created and dropped."""
        created = self._created.get(name)
        if created is not None:
            return created
        found = self._core.state.find(name)
        return None if found is not None and found.id in self._dropped else found

    def stage_create(self, description: Description) -> Collection:
        """Create a collection that only this transaction sees until its commit.

        The caller holds the lock for creating collections.
        """
        self._writable()
        created = sum(isinstance(one, Create) for one in self._first)
        collection = Collection(self._core.state.next_collection + created, description)
        collection.is_new = True
        self._first.append(Create(collection.id, encode_description(description)))
        self._created[description.name] = collection
        return collection

    def stage_drop(self, collection: Collection) -> None:
        """Drop a collection and its indexes; the caller holds its lock and that of creations."""
        self._writable()
        for one in (*self._core.state.indexes_of(collection), collection):
            self._first.append(Drop(one.id))
            self._dropped[one.id] = one
        if self._created.get(collection.description.name) is collection:
            del self._created[collection.description.name]

    def on_end(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(is_committed)` at the end, before anything else can run."""
        self._on_end.append(callback)

    def note_origin(self, value: object, stored: bytes, codec: ValueCodec[Any]) -> None:
        """Remember the bytes of an object that was read: it may be written to another key."""
        if not codec.keeps_unknown:
            return
        if len(self._origins) >= limits.HANDED_OUT_MAX:
            del self._origins[next(iter(self._origins))]
        self._origins[id(value)] = (value, stored, codec)

    def note_origins(
        self, values: Sequence[object], stored: Sequence[bytes], codec: ValueCodec[Any]
    ) -> None:
        """Remember the bytes of many objects, as `note_origin` does for each."""
        if not codec.keeps_unknown:
            return
        origins = self._origins
        origins.update(
            zip(map(id, values), zip(values, stored, repeat(codec), strict=False), strict=True)
        )
        for oldest in list(islice(origins, max(0, len(origins) - limits.HANDED_OUT_MAX))):
            del origins[oldest]

    def origin_of(self, value: object, codec: ValueCodec[Any]) -> bytes | None:
        """Return the bytes that an object of this transaction was read from, by an equal codec."""
        found = self._origins.get(id(value))
        if found is None or found[0] is not value:
            return None
        _, stored, source = found
        is_same = source is codec or (
            (source.fingerprint, source.version) == (codec.fingerprint, codec.version)
        )
        return stored if is_same else None

    # --- public ---------------------------------------------------------------------------

    def after_commit(self, callback: Callable[[int], object]) -> None:
        """Call `callback(sequence)` when the commit is durable; never after an abort."""
        self.check()
        if asyncio.iscoroutinefunction(callback) or not callable(callback):
            raise TransactionUseError(
                "CallbackNotCallable",
                f"after_commit() takes an ordinary function, not {callback!r}.",
                hint="Pass a function of one argument, the sequence; it cannot await.",
            )
        self._callbacks.append(callback)

    async def commit(self) -> None:
        """Make the writes durable and visible, all or none, and release the locks.

        A cancelled commit continues: all of it is in the log, or nothing. A commit without
        writes always succeeds.
        """
        self.check()
        if self._done is not None:
            raise self._not_active()
        if self.keeps_outcome:
            raise TransactionUseError(
                "CommitUnderKey",
                "A function that runs with an idempotency key must not commit.",
                facts={"transaction": self.id},
                hint="Return the result: state.run() commits it together with the writes.",
            )
        try:
            await self._validate()
            self.status = Status.COMMITTING
            entry, size = self._entry()
            committer = self._writable() if entry.operations else None
        except BaseException:
            if self.status is not Status.ABORTED:  # the system may have ended it during a wait
                self._end(Status.ABORTED)
            raise
        if committer is None:
            self._end(Status.COMMITTED)
            return
        self._core.locks.release_shared(self.id)
        self._done = self._loop.create_future()
        committer.submit(entry, size, self)
        # Cancelling this wait cancels only the future, which the committer does not read.
        await self._done

    async def _validate(self) -> None:
        """Take the locks of a snapshot's writes; raise if the snapshot is too old for them."""
        written = [one for one in self._spaces.values() if one.at is not None]
        if not any(one.writes or one.is_cleared for one in written):
            return
        self._spent = 0.0
        for space in sorted(written, key=lambda one: one.collection.id):
            await space.validate(self)

    async def abort(self) -> None:
        """Discard the writes and release the locks."""
        self.check()
        self._end(Status.ABORTED)

    async def __aenter__(self) -> Self:
        if self.status is not Status.ACTIVE:
            raise self._not_active()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.status is Status.ACTIVE and error is not None:
            self._end(Status.ABORTED)
        elif self.status is Status.ACTIVE:
            await self.commit()
        elif self._ended_by is not None and error is None:
            raise self._not_active()

    # --- called by the committer and the state --------------------------------------------

    def committed(self, sequence: int) -> None:
        self.commit_sequence = sequence
        self._end(Status.COMMITTED)
        for callback in self._callbacks:
            try:
                callback(sequence)
            except (Exception, asyncio.CancelledError):  # the commit is durable
                logger.exception("a callback of after_commit() failed")
        if self._done is not None and not self._done.done():
            self._done.set_result(sequence)

    def failed(self, error: PartitaError) -> None:
        self._end(Status.ABORTED)
        if isinstance(error, InDoubtError):
            error.transaction_id = self.id
        if self._done is not None and not self._done.done():
            self._done.set_exception(_copy(error))
            self._done.exception()  # a cancelled caller does not retrieve it

    def end_by_system(self, error: PartitaError) -> None:
        """Abort an open transaction; its next operation raises this error."""
        if self.status is not Status.ACTIVE:
            return
        self._ended_by = error
        self._end(Status.ABORTED)
        if self._woken is not None:
            _wake(self._woken)

    # --------------------------------------------------------------------------------------

    def _writable(self) -> Committer:
        committer = self._core.writable()
        if not self.is_on_primary:
            raise TransactionAbortedError(
                "TransactionAborted",
                f"Transaction {self.id} started before this replica was primary, without locks.",
                facts={"transaction": self.id},
                hint="Run the transaction again; state.run() does that.",
            )
        return committer

    @property
    def checks_mutation(self) -> bool:
        """Whether values are checked in this transaction; decided once, because it is sampled."""
        if self._checks_mutation is None:
            self._checks_mutation = self._core.checks_mutation()
        return self._checks_mutation

    def _entry(self) -> tuple[Entry, int]:
        if self.checks_mutation:
            for space in self._spaces.values():
                space.check_mutation()
        operations: list[Operation] = list(self._first)
        more = list(self._more)
        for space in self._spaces.values():
            if space.collection.id in self._dropped:
                continue
            if written := space.operations():
                operations += written
                indexes = self._core.state.indexes_of(space.collection)
                if indexes and space.owner.index_operations is not None:
                    more += space.owner.index_operations(space, indexes)
        size = self._bytes
        if more or self._first:
            operations += more
            size += sum(_size(operation) for operation in (*self._first, *more))
        size += len(operations) * OPERATION_OVERHEAD_BYTES
        if size > self._core.entry_bytes_max:
            raise _too_large(self.id, f"{self._core.entry_bytes_max} bytes, including its indexes")
        return Entry(self.id, operations), size

    def _grow(self, size: int) -> None:
        self.check_room(1, size)
        self._count += 1
        self._bytes += size

    def _end_lost(self) -> None:
        if self.status is Status.ACTIVE:
            self._end(Status.ABORTED)

    def _end(self, status: Status) -> None:
        self.status = status
        self._core.active.pop(self.id, None)
        self._core.locks.release_all(self.id)
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        is_committed = self.commit_sequence is not None
        for callback in self._on_end:
            callback(is_committed)
        for space in self._spaces.values():
            space.end(is_committed=is_committed)

    def _holds(self, owner: Owner) -> bool:
        collection = owner.collection
        return (
            self._core.state.collections.get(collection.id) is collection
            or self._created.get(collection.description.name) is collection
        )

    def _replaced(self) -> PartitaError:
        return NotReadableError(
            "SnapshotReplaced",
            f"The replica loaded a full copy of the state after transaction {self.id} started.",
            facts={"transaction": self.id},
            hint="Run the transaction again; state.run() does that.",
        )

    def _foreign(self, owner: Owner) -> PartitaError:
        if owner.collection.is_dropped:
            return collection_dropped(owner.name)
        return TransactionUseError(
            "TransactionForeign",
            f"The collection {owner.name!r} does not belong to the state of transaction {self.id}.",
            facts={"collection": owner.name, "transaction": self.id},
            hint="Open the transaction on the state that the collection belongs to.",
        )

    def _timed_out(
        self, owner: Owner, key: bytes | None, holder: str, waited: float
    ) -> LockTimeoutError:
        return LockTimeoutError.of(holder, owner.name, _key_text(owner, key), waited)

    def _not_active(self) -> PartitaError:
        if self._ended_by is not None:
            if not isinstance(self._ended_by, TransactionAbortedError):
                return _copy(self._ended_by)
            return self._ended_by
        return TransactionUseError(
            "TransactionEnded",
            f"Transaction {self.id} is {self.status.value}.",
            facts={"transaction": self.id, "status": self.status.value},
            hint="Open another transaction: `async with state.transaction() as tx`.",
        )


def origin() -> Origin:
    """Return the place from which this package was called."""
    frame = sys._getframe(1)  # noqa: SLF001 - a whole stack would be slow
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return os.getpid(), None, 0
        frame = frame.f_back
    return os.getpid(), frame.f_code, frame.f_lasti


def refuse_snapshot(tx: object) -> None:
    """Raise if `tx` is not a transaction."""
    if not isinstance(tx, Transaction):
        raise TransactionUseError(
            "TransactionExpected",
            f"This operation needs a transaction, not {type(tx).__name__}.",
            hint="Use `async with state.transaction() as tx`.",
        )


def _write_conflict(transaction_id: str, owner: Owner, key: bytes | None) -> WriteConflictError:
    return WriteConflictError(
        "WriteConflict",
        f"Another transaction has written to {owner.name!r} since the snapshot of transaction "
        f"{transaction_id}.",
        facts={
            "collection": owner.name,
            "key": _key_text(owner, key),
            "transaction": transaction_id,
        },
        hint="Run the transaction again; state.run() does that.",
    )


def _too_large(transaction_id: str, most: str) -> LimitExceededError:
    return LimitExceededError(
        "TransactionTooLarge",
        f"A transaction may write at most {most}.",
        facts={"transaction": transaction_id},
        hint="Split the writes into several transactions.",
    )


def _checked_mode(mode: object) -> LockMode:
    """Return the mode of a number; a bare number would not compare as a mode."""
    try:
        return LockMode(mode)  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(
            "InvalidLockMode",
            f"A lock mode must be a LockMode, not {mode!r}.",
            hint="Pass lock=LockMode.SHARED, LockMode.UPDATE or LockMode.EXCLUSIVE.",
        ) from None


def _key_text(owner: Owner, key: bytes | None) -> object:
    return None if key is None else owner.key_of(key)


def _size(operation: Operation) -> int:
    match operation:
        case Outcome(key, result, _):
            return 4 * len(key) + len(result)
        case Create(_, description) | Alter(_, description):
            return len(description)
        case Put(_, entry, value):
            return len(entry) + len(value)
        case Delete(_, entry):
            return len(entry)
        case _:
            return 0


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _copy(error: PartitaError) -> PartitaError:
    """Return an equal error: tasks that raise the same object would share its traceback."""
    copy = type(error)(error.code, error.message, facts=error.facts, hint=error.hint)
    copy.__dict__.update(error.__dict__)
    return copy
