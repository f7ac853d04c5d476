"""What one transaction read, locked and wrote; its commit and its end.

Writes stay here until the commit makes one entry of a record of them, so that an abort leaves
nothing to undo. Read locks go when the commit begins, the others when it is applied. The
transaction belongs to the task that opened it: two at once would see each other's half.
"""

import asyncio
import enum
import logging
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from partita.errors import (
    CollectionNotFoundError,
    DeadlockError,
    InDoubtError,
    LimitExceededError,
    LockTimeoutError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    StateClosedError,
    TransactionAbortedError,
    TransactionUseError,
    UsageError,
)
from partita.reliable.collections.committer import Committer
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.unclosed import end_lost, origin
from partita.reliable.state.locks import LockMode, LockTable, Waiter
from partita.reliable.state.records import (
    Alter,
    Clear,
    Create,
    Delete,
    Enqueue,
    Entry,
    Operation,
    Outcome,
    Put,
)
from partita.reliable.state.state import Collection, State
from partita.reliable.values import limits
from partita.reliable.values.arguments import checked_timeout
from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

OUTCOMES = 0
"""The place of idempotency keys in the lock table; no collection has this identifier."""
CREATIONS = -1
"""The place in the lock table of who creates a collection."""

OPERATION_OVERHEAD_BYTES = 16


class Status(enum.Enum):
    """Where a transaction stands."""

    ACTIVE = "active"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Owner(Protocol):
    """The collection as its users see it: what a transaction asks of it."""

    name: str
    collection: Collection

    def key_of(self, encoded: bytes) -> object:
        """Return the key for an error."""
        ...

    def check_mutation(self, space: "Workspace") -> None:
        """Raise MutatedValueError when a value was changed behind our back."""
        ...

    def check_same(self, key: bytes, value: object, stored: bytes) -> None:
        """Raise MutatedValueError when a value is not what its bytes say."""
        ...

    def more_operations(self, space: "Workspace") -> list[Operation]:
        """Return what a commit must write beside the rows (indexes)."""
        ...

    def ended(self, space: "Workspace", sequence: int | None) -> None:
        """Hear that the transaction was committed at a sequence, or aborted."""
        ...


class Transactions(Protocol):
    """Where a collection gets a transaction of its own from."""

    def transaction(self) -> "Transaction": ...


class Workspace:
    """What one transaction did to one collection.

    `writes` holds the newest bytes by key (None: deleted), `given` the objects they were made
    of, `seen` the objects that were read, with the bytes they stand for (`copies` where each read
    gives another object, `handed_out` those of enumerations).
    """

    __slots__ = (
        "collection",
        "copies",
        "enqueued",
        "given",
        "handed_out",
        "is_cleared",
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

    def find(self, key: bytes) -> bytes | None:
        """Return the newest bytes: own writes first, then what is committed."""
        if key in self.writes:
            return self.writes[key]
        return None if self.is_cleared else self.collection.rows.values.get(key)

    def clear(self) -> None:
        self.is_cleared = True
        self.writes.clear()
        self.given.clear()
        self.seen.clear()
        self.copies.clear()
        self.handed_out.clear()
        self.enqueued.clear()

    def operations(self) -> list[Operation]:
        identifier = self.collection.id
        committed = self.collection.rows.values
        operations: list[Operation] = []
        if self.is_cleared:
            committed = {}
            operations.append(Clear(identifier))
        for key, value in self.writes.items():
            if value is not None:
                operations.append(Put(identifier, key, value))
            elif key in committed:
                operations.append(Delete(identifier, key))
        if self.enqueued:
            operations += [Enqueue(identifier, value) for value in self.enqueued]
        return operations


class Core:
    """What all transactions of a replica share. `role_error` is None on the primary."""

    def __init__(self, state: State, clock: Clock, name: str) -> None:
        self.state = state
        self.clock = clock
        self.locks = LockTable()
        self.committer: Committer | None = None
        self.role_error: PartitaError | None = None
        self.checks_mutation: Callable[[], bool] = lambda: True
        self.active: dict[str, weakref.ref[Transaction]] = {}
        """Open transactions; one that is no longer referenced is aborted and removed."""
        self.entry_bytes_max = limits.TRANSACTION_BYTES_MAX
        """What a transaction may take of a record; less where the log takes less."""
        self._name = name
        self._count = 0

    def new_id(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count:x}"

    def now(self) -> int:
        """Wall clock in ticks that never goes back behind what is committed."""
        return max(self.clock.ticks(), self.state.ticks)

    def check_open(self) -> None:
        if isinstance(self.role_error, StateClosedError):
            raise self.role_error

    def writable(self) -> Committer:
        if self.committer is None or self.role_error is not None:
            raise self.role_error or NotPrimaryError("NotPrimary", "This replica cannot write.")
        return self.committer

    def depose(self, error: PartitaError) -> None:
        """Stop writing: every open transaction ends, since its locks mean nothing any more."""
        if not isinstance(self.role_error, StateClosedError):  # closed stays closed
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

    def __init__(self, core: Core, *, timeout: float, is_shared: bool = False) -> None:
        core.check_open()
        self._core = core
        self._timeout = checked_timeout(timeout)
        self._loop = asyncio.get_running_loop()  # asked once: it is a system call
        self._task = None if is_shared else asyncio.current_task(self._loop)
        self._is_shared = is_shared
        self._woken: asyncio.Future[None] | None = None
        self._spaces: dict[int, Workspace] = {}
        self._snapshot: Snapshot | None = None
        self._more: list[Operation] = []
        self._callbacks: list[Callable[[int], object]] = []
        self._bytes = 0
        self._count = 0
        self._ended_by: PartitaError | None = None
        self._spent = 0.0
        """Seconds that the operation has waited for locks: they share one time-out."""
        self._done: asyncio.Future[int] | None = None
        self._checks_mutation: bool | None = None
        self.id = core.new_id()
        self.origin = origin()
        self.commit_sequence: int | None = None
        self.keeps_outcome = False
        """While a function runs under an idempotency key: its outcome belongs to the commit."""
        self.is_on_primary = core.role_error is None
        core.active[self.id] = weakref.ref(self)
        self.status = Status.ACTIVE

    def __del__(self) -> None:
        if getattr(self, "status", None) is Status.ACTIVE:
            end_lost(self._loop, self.origin, f"Transaction {self.id}", self._end_lost, self)

    # --- what collections use -------------------------------------------------------------

    @property
    def locks(self) -> LockTable:
        return self._core.locks

    @property
    def now(self) -> int:
        return self._core.now()

    @property
    def snapshot(self) -> Snapshot:
        """The read point of enumerations and counts: taken at the first of them."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self._core.state, self._core.now())
        return self._snapshot

    def check(self) -> None:
        """Refuse use after the end, by another task, or while an operation still waits."""
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
        """Refuse a write before it takes a lock, where it could never be committed."""
        self.check()
        self._writable()

    def space(self, owner: Owner, timeout: float | None = None) -> Workspace | None:
        """Begin an operation: return what was done to a collection so far; None before `enter`."""
        self.check()
        if timeout is not None:
            checked_timeout(timeout)
        self._spent = 0.0
        space = self._spaces.get(owner.collection.id)
        if space is not None and space.collection is not owner.collection:
            raise self._replaced() if self._holds(owner) else self._foreign(owner)
        return space

    async def enter(
        self, owner: Owner, timeout: float | None, mode: LockMode = LockMode.SHARED
    ) -> Workspace:
        """Begin to use a collection: nobody may clear or drop it until the end."""
        if self.is_on_primary:
            await self.lock(owner, None, mode, timeout)
        if not self._holds(owner):
            raise self._foreign(owner)
        space = self._spaces[owner.collection.id] = Workspace(owner)
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
        """Take a lock that is free; else return the request that must be waited for.

        Without time to wait no request is made: it could cost others theirs.
        """
        locks, resource = self._core.locks, (owner.collection.id, key)
        if type(mode) is not LockMode:
            mode = _checked_mode(mode)
        if timeout == 0 or (timeout is None and self._timeout == 0):
            if locks.try_acquire(self.id, resource, mode):
                return None
            raise self._timed_out(owner, key, locks.oldest_holder(resource, self.id), 0.0)
        return locks.acquire(self.id, resource, mode)

    async def wait(self, owner: Owner, waiter: Waiter, timeout: float | None) -> None:
        """Wait for a lock that was not free."""
        clock, locks = self._core.clock, self._core.locks
        started = clock.monotonic()
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
            self._spent += clock.monotonic() - started
        if waiter.granted:
            return
        if not waiter.deadlock_with:
            raise self._timed_out(owner, waiter.resource[1], holder, self._spent)
        key = _told_key(owner, waiter.resource[1])
        raise DeadlockError.of(holder, owner.name, key, self._spent)

    async def pause(self, woken: "asyncio.Future[None]", seconds: float) -> None:
        """Wait for a future, a time, or the end of the transaction; then it must still be open."""
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
        """Note an object that an enumeration gives out and its holder could change.

        Beyond the limit the oldest is checked now: neither memory nor the commit grows with what
        was enumerated.
        """
        if not self.is_on_primary or not self.checks_mutation:
            return
        handed_out = space.handed_out
        handed_out.setdefault(key, []).append((stored, value))
        if len(handed_out) > limits.HANDED_OUT_MAX:
            oldest = next(iter(handed_out))
            for before, given in handed_out[oldest]:
                space.owner.check_same(oldest, given, before)
            del handed_out[oldest]

    def stage(self, space: Workspace, key: bytes, value: bytes | None) -> None:
        """Note a write; a transaction that grows beyond its limits is refused here."""
        self._writable()
        self._grow(len(key) + (0 if value is None else len(value)))
        space.writes[key] = value

    def stage_enqueue(self, space: Workspace, value: bytes) -> None:
        self._writable()
        self._grow(len(value))
        space.enqueued.append(value)

    def stage_clear(self, space: Workspace) -> None:
        self._writable()
        space.clear()

    def stage_operations(self, operations: list[Operation]) -> None:
        """Add operations that no workspace makes: outcomes, schemas, drops."""
        self._writable()
        self._more.extend(operations)

    # --- what users use -------------------------------------------------------------------

    def after_commit(self, callback: Callable[[int], object]) -> None:
        """Call `callback(sequence)` once the commit is durable; never after an abort."""
        self.check()
        if asyncio.iscoroutinefunction(callback) or not callable(callback):
            raise TransactionUseError(
                "CallbackNotCallable",
                f"after_commit() takes an ordinary function, not {callback!r}.",
                hint="Give a function of one argument, the sequence; nothing is awaited in it.",
            )
        self._callbacks.append(callback)

    async def commit(self) -> None:
        """Make the writes durable and visible, all or none, and let go of the locks.

        A cancelled commit goes on: it is in the log or not, never half. With nothing written
        there is nothing to make durable and it always succeeds.
        """
        self.check()
        if self._done is not None:
            raise self._not_active()
        if self.keeps_outcome:
            raise TransactionUseError(
                "CommitUnderKey",
                "A function that runs under an idempotency key does not commit by itself.",
                facts={"transaction": self.id},
                hint="Return the result: state.run commits it together with the writes.",
            )
        self.status = Status.COMMITTING
        try:
            entry, size = self._entry()
            committer = self._writable() if entry.operations else None
        except BaseException:
            self._end(Status.ABORTED)
            raise
        if committer is None:
            self._end(Status.COMMITTED)
            return
        self._core.locks.release_shared(self.id)
        self._done = self._loop.create_future()
        committer.submit(entry, size, self)
        # Cancelling this wait ends the future alone: the committer does not look at it.
        await self._done

    async def abort(self) -> None:
        """Forget the writes and let go of the locks."""
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

    # --- what the committer and the system say --------------------------------------------

    def committed(self, sequence: int) -> None:
        self.commit_sequence = sequence
        self._end(Status.COMMITTED)
        for callback in self._callbacks:
            try:
                callback(sequence)
            except (Exception, asyncio.CancelledError):  # the commit is done, and stays so
                logger.exception("a callback after commit failed")
        if self._done is not None and not self._done.done():
            self._done.set_result(sequence)

    def failed(self, error: PartitaError) -> None:
        self._end(Status.ABORTED)
        if isinstance(error, InDoubtError):
            error.transaction_id = self.id
        if self._done is not None and not self._done.done():
            self._done.set_exception(_copy(error))
            self._done.exception()  # whoever was cancelled does not come back for it

    def end_by_system(self, error: PartitaError) -> None:
        """End an open transaction from outside; its next operation says why."""
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
                f"Transaction {self.id} began before this replica was primary: it took no locks.",
                facts={"transaction": self.id},
                hint="Run it again from its beginning; state.run does that.",
            )
        return committer

    @property
    def checks_mutation(self) -> bool:
        """Whether values are checked in this transaction; asked once, since samples are counted."""
        if self._checks_mutation is None:
            self._checks_mutation = self._core.checks_mutation()
        return self._checks_mutation

    def _entry(self) -> tuple[Entry, int]:
        if self.checks_mutation:
            for space in self._spaces.values():
                space.owner.check_mutation(space)
        operations: list[Operation] = []
        more = list(self._more)
        for space in self._spaces.values():
            if written := space.operations():
                operations += written
                more += space.owner.more_operations(space)
        size = self._bytes
        if more:
            operations += more
            size += sum(_size(operation) for operation in more)
        size += len(operations) * OPERATION_OVERHEAD_BYTES
        if size > self._core.entry_bytes_max:
            raise _too_large(self.id, f"{self._core.entry_bytes_max} bytes, with its indexes")
        return Entry(self.id, operations), size

    def _grow(self, count: int) -> None:
        self._count += 1
        self._bytes += count
        if self._count > limits.TRANSACTION_OPERATIONS_MAX:
            raise _too_large(self.id, f"{limits.TRANSACTION_OPERATIONS_MAX} times")
        if self._bytes > limits.TRANSACTION_BYTES_MAX:
            raise _too_large(self.id, f"{limits.TRANSACTION_BYTES_MAX} bytes")

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
        for space in self._spaces.values():
            space.owner.ended(space, self.commit_sequence)

    def _holds(self, owner: Owner) -> bool:
        return self._core.state.collections.get(owner.collection.id) is owner.collection

    def _replaced(self) -> PartitaError:
        return NotReadableError(
            "SnapshotReplaced",
            f"The replica took a full copy after transaction {self.id} had begun.",
            facts={"transaction": self.id},
            hint="Run it again from its beginning; state.run does that.",
        )

    def _foreign(self, owner: Owner) -> PartitaError:
        if owner.collection.is_dropped:
            return CollectionNotFoundError(
                "CollectionNotFound",
                f"The collection {owner.name!r} was dropped.",
                facts={"collection": owner.name},
                hint="Open it again: that creates a new one.",
            )
        return TransactionUseError(
            "TransactionForeign",
            f"The collection {owner.name!r} does not belong to the state of transaction {self.id}.",
            facts={"collection": owner.name, "transaction": self.id},
            hint="A transaction never leaves its partition: open one on the collection's state.",
        )

    def _timed_out(
        self, owner: Owner, key: bytes | None, holder: str, waited: float
    ) -> LockTimeoutError:
        return LockTimeoutError.of(holder, owner.name, _told_key(owner, key), waited)

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


def refuse_snapshot(tx: object) -> None:
    """Say so when a write is given something else than a transaction."""
    if not isinstance(tx, Transaction):
        raise TransactionUseError(
            "TransactionExpected",
            f"This operation needs a transaction, not {type(tx).__name__}.",
            hint="Use `async with state.transaction() as tx`.",
        )


def _too_large(transaction_id: str, most: str) -> LimitExceededError:
    return LimitExceededError(
        "TransactionTooLarge",
        f"A transaction may write {most}.",
        facts={"transaction": transaction_id},
        hint="Write in several transactions.",
    )


def _checked_mode(mode: object) -> LockMode:
    """Take a mode by its number: a number itself would pass for a mode and lock another."""
    try:
        return LockMode(mode)  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(
            "InvalidLockMode",
            f"A lock is taken in a LockMode, not {mode!r}.",
            hint="LockMode.SHARED, LockMode.UPDATE or LockMode.EXCLUSIVE.",
        ) from None


def _told_key(owner: Owner, key: bytes | None) -> object:
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
    """Return an equal error: one object raised in many tasks would share its traceback."""
    copy = type(error)(error.code, error.message, facts=error.facts, hint=error.hint)
    copy.__dict__.update(error.__dict__)
    return copy
