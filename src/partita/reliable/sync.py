"""The synchronous face of reliable state: for scripts, Django, Flask, and threads.

It runs the state on an event loop in a thread of its own and has the methods of the asynchronous
classes, under the same names, without `await`. Every rule is theirs: a method here hands a call
over and waits. Any thread may use the state; a transaction is used by one thread at a time.

It is long because it says every signature once more, so that editors and type checkers know them.
"""

import asyncio
import atexit
import contextlib
import functools
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from partita.errors import PartitaError, StateClosedError, TransactionUseError, UsageError
from partita.reliable import opening
from partita.reliable.collections import retry
from partita.reliable.collections.change_feed import Change
from partita.reliable.collections.change_feed import ChangeFeed as AsyncChangeFeed
from partita.reliable.collections.concurrent_queue import Delivery
from partita.reliable.collections.concurrent_queue import (
    ReliableConcurrentQueue as AsyncConcurrentQueue,
)
from partita.reliable.collections.dictionary import NO_DEFAULT, Missing, NoDefault
from partita.reliable.collections.dictionary import ReliableDictionary as AsyncDictionary
from partita.reliable.collections.indexes import Index, IndexFunction
from partita.reliable.collections.queue import ReliableQueue as AsyncQueue
from partita.reliable.collections.retry import Backoff, Committed
from partita.reliable.collections.snapshot import Snapshot as AsyncSnapshot
from partita.reliable.collections.transaction import Status, origin
from partita.reliable.collections.transaction import Transaction as AsyncTransaction
from partita.reliable.loop_thread import Ask, LoopThread, refuse_running_loop
from partita.reliable.manager.backup import Folder, Restored
from partita.reliable.manager.backup import RestoreContext as AsyncRestoreContext
from partita.reliable.manager.housekeeping import CHECKPOINT_BYTES
from partita.reliable.manager.open_collections import Opened
from partita.reliable.manager.state_manager import StateManager as AsyncStateManager
from partita.reliable.opening import Durability
from partita.reliable.state.locks import LockMode
from partita.reliable.storage.backup_chain import Backup
from partita.reliable.values import limits
from partita.reliable.values.arguments import checked_timeout
from partita.reliable.values.schema import Schema
from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
T = TypeVar("T")
W = TypeVar("W")

PAGE_ROWS = 256
"""Rows or changes that one hand-over brings to an iteration."""
EXIT_SECONDS = 5.0
"""How long the end of the program waits for a state that nobody closed."""


def open_state(  # noqa: PLR0913 - by keyword
    where: str | os.PathLike[str] | Sequence[str],
    *,
    partition: str | None = None,
    replicas: int = 3,
    folder: str | os.PathLike[str] | None = None,
    durability: Durability = "full",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    on_data_loss: Callable[["RestoreContext"], None] | None = None,
    address: str = "",
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> "StateManager":
    """Open a state, given what `partita.open_state` is given, for use without asyncio.

    It is open at once, and closed by `with`, by `close()`, or at the end of the program. Open it
    after a fork, never before: in a worker of the server, not where the server loads your code.
    """

    async def opened(ask: Ask) -> StateManager:
        async def restore(context: AsyncRestoreContext) -> None:
            assert on_data_loss is not None
            await ask(functools.partial(on_data_loss, RestoreContext(thread, context)))

        block = opening.open_state(
            where,
            partition=partition,
            replicas=replicas,
            folder=folder,
            durability=durability,
            checkpoint_bytes=checkpoint_bytes,
            on_data_loss=None if on_data_loss is None else restore,
            address=address,
            monitor=monitor,
            connect_options=connect_options,
            clock=clock,
        )
        return StateManager(thread, await block.__aenter__(), block)

    thread = LoopThread("partita-state")
    try:
        return thread.run_asking(opened)
    except BaseException:
        thread.stop(seconds=EXIT_SECONDS)
        raise


class RestoreContext:
    """What `on_data_loss` is given: why the state cannot be opened, and the way back."""

    def __init__(self, thread: LoopThread, inner: AsyncRestoreContext) -> None:
        self._thread = thread
        self._inner = inner
        self.cause = inner.cause

    def restore(self, folder: Folder, *, force: bool = True, up_to: int | None = None) -> Restored:
        """Replace what is here by the newest backup of a folder, or by an older state of it."""
        return self._thread.run(self._inner.restore(folder, force=force, up_to=up_to))


class StateManager:
    """One partition's state, for any number of threads. Open it with `open_state`."""

    def __init__(
        self,
        thread: LoopThread,
        inner: AsyncStateManager,
        block: contextlib.AbstractAsyncContextManager[AsyncStateManager],
    ) -> None:
        self._thread = thread
        self._inner = inner
        self._block = block
        self._closing = threading.RLock()
        self._is_closed = False
        atexit.register(self._close_at_exit)

    # --- life -----------------------------------------------------------------------------

    @property
    def is_primary(self) -> bool:
        """Whether this replica commits."""
        return self._inner.is_primary

    @property
    def sequence(self) -> int:
        """The last sequence applied here."""
        return self._inner.sequence

    @property
    def epoch(self) -> int:
        return self._inner.epoch

    @property
    def replica_id(self) -> str:
        return self._inner.replica_id

    def wait_primary(self, timeout: float = 30.0) -> bool:
        """Wait until this replica is the primary; False if it is not within the time."""
        return self._thread.run(self._inner.wait_primary(timeout))

    def step_down(self) -> None:
        """Let another replica become primary; a local state has no other."""
        self._thread.run(self._inner.step_down())

    def set_mutation_check(self, mode: str) -> None:
        """Choose how often values are checked: on, sample (one transaction in 100) or off."""
        self._thread.call(lambda: self._inner.set_mutation_check(mode))

    def close(self) -> None:
        """Let what is committing end, then let go. Open transactions are aborted."""
        with self._closing:
            if self._is_closed or self._thread.is_forked:
                return
            refuse_running_loop()
            atexit.unregister(self._close_at_exit)
            self._is_closed = True
            try:
                if not self._thread.is_stopping:
                    self._thread.finish(self._leave())
            finally:
                self._thread.stop(seconds=EXIT_SECONDS)

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- collections ----------------------------------------------------------------------

    def dictionary(  # noqa: PLR0913 - by keyword
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        indexes: Mapping[str, IndexFunction | Index] | None = None,
        ttl: float | None = None,
        mutable: Literal["refuse", "copy"] = "refuse",
        preserve_unknown: bool = True,
    ) -> "ReliableDictionary[K, V]":
        """Open a dictionary, creating it (in a transaction of its own) if it is new.

        `indexes` are functions of the value that return a key, a list of keys or None; they are
        built before this returns. `ttl` is the time to live of values, in seconds. `upcasts` are
        functions marked with `@upcast` (and `@downcast`) that turn older versions into newer.
        """
        inner = self._thread.run(
            self._inner.dictionary(
                name,
                key=key,
                value=value,
                version=version,
                upcasts=upcasts,
                indexes=indexes,
                ttl=ttl,
                mutable=mutable,
                preserve_unknown=preserve_unknown,
            )
        )
        return ReliableDictionary(self._thread, inner)

    def queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> "ReliableQueue[V]":
        """Open a queue with strict order, creating it if it is new."""
        inner = self._thread.run(
            self._inner.queue(name, value=value, version=version, upcasts=upcasts, mutable=mutable)
        )
        return ReliableQueue(self._thread, inner)

    def concurrent_queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> "ReliableConcurrentQueue[V]":
        """Open a queue for many consumers at once, creating it if it is new."""
        inner = self._thread.run(
            self._inner.concurrent_queue(
                name, value=value, version=version, upcasts=upcasts, mutable=mutable
            )
        )
        return ReliableConcurrentQueue(self._thread, inner)

    def collections(self) -> list[Opened]:
        """List what the state holds, by name."""
        return self._thread.call(self._inner.collections)

    def drop(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a collection with all that is in it; it waits for those who use it."""
        self._thread.run(self._inner.drop(name, timeout=timeout))

    def promote_schema(self, name: str, version: int) -> None:
        """Let every replica write a schema version from now on, as a record in the log.

        Refused while a live replica cannot read it.
        """
        self._thread.run(self._inner.promote_schema(name, version))

    def rewrite(self, collection: "ReliableDictionary[Any, Any]", *, batch: int = 500) -> int:
        """Convert all rows of older versions now, in small transactions; return how many."""
        return self._thread.run(self._inner.rewrite(collection.inner, batch=batch))

    # --- transactions ---------------------------------------------------------------------

    def transaction(self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS) -> "Transaction":
        """Begin a transaction; `timeout` is how long each operation waits for its lock."""
        begin = functools.partial(self._inner.shared_transaction, timeout=timeout)
        inner = self._thread.call(begin)
        inner.origin = origin()  # the thread of the loop does not know it
        return Transaction(self._thread, inner)

    def snapshot(self) -> "Snapshot":
        """Open a lock-free read view, consistent over all collections."""
        inner = self._thread.call(self._inner.snapshot)
        inner.origin = origin()
        return Snapshot(self._thread, inner)

    def read_at_least(self, sequence: int, *, timeout: float = 10.0) -> None:
        """Wait until this replica has applied a sequence: read your writes on a secondary."""
        self._thread.run(self._inner.read_at_least(sequence, timeout=timeout))

    def attempts(
        self,
        *,
        attempts: int = retry.ATTEMPTS,
        first_delay: float = retry.FIRST_DELAY_SECONDS,
        max_delay: float = retry.DELAY_SECONDS_MAX,
        deadline: float = retry.DEADLINE_SECONDS,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
    ) -> "Iterator[Attempt]":
        """Try again by hand: `for attempt in state.attempts(): with attempt as tx:`."""
        inner = retry.attempts(
            functools.partial(self._inner.shared_transaction, timeout=timeout),
            Backoff(attempts, first_delay, max_delay, deadline),
            self._inner.clock,
        )
        return map(functools.partial(Attempt, self._thread), _pages(self._thread, inner, size=1))

    def run(  # noqa: PLR0913 - by keyword
        self,
        function: Callable[..., T],
        *arguments: Any,
        idempotency_key: str | None = None,
        attempts: int = retry.ATTEMPTS,
        first_delay: float = retry.FIRST_DELAY_SECONDS,
        max_delay: float = retry.DELAY_SECONDS_MAX,
        deadline: float = retry.DEADLINE_SECONDS,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
    ) -> Committed[T]:
        """Call `function(tx, *arguments)` in a transaction, again where that may help.

        It is called in this thread. With an `idempotency_key` the work is done exactly once,
        across lost answers and restarts: its result is kept with the commit, encoded, and given
        again (as the type that the function's return annotation names; plain values without one).
        """
        used: list[Transaction] = []

        def in_turn(ask: Ask) -> Coroutine[Any, Any, Committed[T]]:
            # Wrapped, because the result is decoded as the type that the function names.
            @functools.wraps(function)
            async def asked(inner: AsyncTransaction, *arguments: Any) -> T:
                tx = Transaction(self._thread, inner)
                used.append(tx)
                return await ask(lambda: _plain(function(tx, *arguments)))

            asked.__annotations__ = getattr(function, "__annotations__", {})
            return self._inner.run_with(
                functools.partial(self._inner.shared_transaction, timeout=timeout),
                asked,
                arguments,
                idempotency_key=idempotency_key,
                backoff=Backoff(attempts, first_delay, max_delay, deadline),
            )

        try:
            return self._thread.run_asking(in_turn)
        finally:
            for tx in used:
                tx.call_back()

    def outcome(self, idempotency_key: str, result_type: Any = Any) -> Committed[Any] | None:
        """Return what a run under this key committed, None if it has not (or too long ago)."""
        return self._thread.run(self._inner.outcome(idempotency_key, result_type))

    # --- files ----------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Write a checkpoint now and cut the log behind it; return its sequence."""
        return self._thread.run(self._inner.checkpoint())

    def backup(
        self,
        folder: Folder,
        *,
        incremental: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backup:
        """Back the state up into a folder while commits go on.

        An incremental backup holds what was committed since the newest one in the folder.
        """
        backup = self._inner.backup(folder, incremental=incremental, progress=progress)
        return self._thread.run(backup)

    # --------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        await self._block.__aexit__(None, None, None)

    def _close_at_exit(self) -> None:
        """Close what nobody closed. What is committed is durable anyway: the exit does not hang."""
        if not self._is_closed and not self._thread.is_forked:
            self._is_closed = True
            self._thread.stop(self._leave(), seconds=EXIT_SECONDS)


class Transaction:
    """A unit of atomic change over any collections of one state.

    Leaving its `with` block commits; an exception aborts. One thread after another may use it,
    two at once may not.
    """

    def __init__(self, thread: LoopThread, inner: AsyncTransaction) -> None:
        self.thread = thread
        self.inner = inner
        """The asynchronous transaction: nothing but the state's own thread may use it."""
        self._turn = threading.RLock()  # its own thread may find it taken, by an interrupt
        self._due: deque[tuple[Callable[[int], object], int]] = deque()

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def status(self) -> Status:
        return self.inner.status

    @property
    def commit_sequence(self) -> int | None:
        """Where it was committed; None until the commit has written something."""
        return self.inner.commit_sequence

    def after_commit(self, callback: Callable[[int], object]) -> None:
        """Call `callback(sequence)` once the commit is durable; never after an abort.

        It is called in the thread that commits, which may use the state again.
        """

        def note(sequence: int) -> None:
            self._due.append((callback, sequence))

        self._in_turn(self.thread.call, functools.partial(self.inner.after_commit, note))

    def commit(self) -> None:
        """Make the writes durable and visible, all or none, and let go of the locks."""
        self.finish(self.inner.commit())

    def abort(self) -> None:
        """Forget the writes and let go of the locks."""
        self.perform(self.inner.abort())

    def __enter__(self) -> Self:
        if self.inner.status is not Status.ACTIVE:
            self.perform(self.inner.__aenter__())  # says why
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.finish(self.inner.__aexit__(kind, error, trace))
        except StateClosedError:
            if error is None:  # or it would hide why the block was left
                raise

    # --- what the other classes use -------------------------------------------------------

    def perform(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation of this transaction, if no other is under way."""
        return self._in_turn(self.thread.perform, operation)

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation that needs a task of its own."""
        return self._in_turn(self.thread.run, operation)

    def finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run what ends this transaction: an interrupt does not cut it off."""
        try:
            return self._in_turn(self.thread.finish, operation)
        finally:
            self.call_back()

    def call_back(self) -> None:
        """Call what was to be called after the commit, each once."""
        while self._due:
            callback, sequence = self._due.popleft()
            try:
                callback(sequence)
            except Exception:  # the commit is done: a callback cannot undo it
                logger.exception("a callback after commit failed")

    def _in_turn(self, run: Callable[[W], T], work: W) -> T:
        if not self._turn.acquire(blocking=False):
            if inspect.iscoroutine(work):
                work.close()
            self.thread.check()  # it may be the operation under way that calls us
            raise TransactionUseError(
                "TransactionInUse",
                f"Transaction {self.id} was used by two threads at once.",
                facts={"transaction": self.id},
                hint="Give each thread its own transaction.",
            )
        try:
            return run(work)
        finally:
            self._turn.release()


class Snapshot:
    """The state as of one sequence, until it is closed. Any thread may read it."""

    def __init__(self, thread: LoopThread, inner: AsyncSnapshot) -> None:
        self.thread = thread
        self.inner = inner
        """The asynchronous snapshot: nothing but the state's own thread may use it."""

    @property
    def sequence(self) -> int:
        return self.inner.sequence

    def close(self) -> None:
        """Let go of old versions; closing twice does nothing."""
        with contextlib.suppress(StateClosedError):
            self.thread.call(self.inner.close)

    def __enter__(self) -> Self:
        self.perform(self.inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def perform(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run a read of this snapshot."""
        return self.thread.perform(operation)

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run a read that needs a task of its own."""
        return self.thread.run(operation)


class Attempt:
    """One try: `with attempt as tx`. A failure worth another try is kept, not raised."""

    def __init__(self, thread: LoopThread, inner: retry.Attempt) -> None:
        self._thread = thread
        self._inner = inner
        self._tx: Transaction | None = None

    @property
    def failure(self) -> PartitaError | None:
        return self._inner.failure

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

    def __enter__(self) -> Transaction:
        self._tx = Transaction(self._thread, self._thread.perform(self._inner.__aenter__()))
        return self._tx

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert self._tx is not None
        try:
            return self._tx.finish(self._inner.__aexit__(kind, error, trace))
        except StateClosedError:
            if error is None:  # or it would hide why the block was left
                raise
            return False


class ReliableDictionary(Generic[K, V]):
    """A dictionary that survives. Open it with `state.dictionary(...)`.

    Every operation is given a transaction; reads may be given a snapshot instead.
    """

    def __init__(self, thread: LoopThread, inner: AsyncDictionary[K, V]) -> None:
        self._thread = thread
        self.inner = inner
        """The asynchronous dictionary: nothing but the state's own thread may use it."""

    @property
    def name(self) -> str:
        return self.inner.name

    # --- reading one key ------------------------------------------------------------------

    @overload
    def get(
        self,
        tx: Transaction | Snapshot,
        key: K,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> V: ...
    @overload
    def get(
        self,
        tx: Transaction | Snapshot,
        key: K,
        default: D,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> V | D: ...
    def get(
        self,
        tx: Transaction | Snapshot,
        key: K,
        default: D | NoDefault = NO_DEFAULT,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> V | D:
        """Return the value; `default` for an absent key, or KeyNotFoundError without one.

        Give MISSING as the default where None may be a value. Take `lock=LockMode.UPDATE` for
        what you will write: two transactions that read under shared locks and then both write
        would block each other.
        """
        inner = _inner(tx, self._thread)
        found = tx.perform(self.inner.get(inner, key, default, lock=lock, timeout=timeout))
        return cast("V | D", found)

    def get_many(
        self,
        tx: Transaction | Snapshot,
        keys: Iterable[K],
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> dict[K, V]:
        """Return those of the keys that exist.

        Locks are taken in key order; `timeout` is for all of them together.
        """
        inner = _inner(tx, self._thread)
        return tx.perform(self.inner.get_many(inner, list(keys), lock=lock, timeout=timeout))

    def contains(
        self,
        tx: Transaction | Snapshot,
        key: K,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> bool:
        """Say whether the key exists, under the same lock as `get`."""
        inner = _inner(tx, self._thread)
        return tx.perform(self.inner.contains(inner, key, lock=lock, timeout=timeout))

    # --- writing --------------------------------------------------------------------------

    def set(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write the value, whether the key exists or not."""
        inner = _inner(tx, self._thread)
        tx.perform(self.inner.set(inner, key, value, ttl=ttl, timeout=timeout))

    def add(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write a new key; KeyExistsError if there is one."""
        inner = _inner(tx, self._thread)
        tx.perform(self.inner.add(inner, key, value, ttl=ttl, timeout=timeout))

    def try_add(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write a new key and return True; False if there is one (the lock is kept)."""
        inner = _inner(tx, self._thread)
        return tx.perform(self.inner.try_add(inner, key, value, ttl=ttl, timeout=timeout))

    def upsert(
        self,
        tx: Transaction,
        key: K,
        default: V,
        update: Callable[[V], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Write `default` for a new key, `update(value)` for an old one; return what was written.

        `update` runs under the lock, in the state's own thread: it must be quick, must return
        another object and not change the one given, and must not use the state.
        """
        inner = _inner(tx, self._thread)
        return tx.perform(self.inner.upsert(inner, key, default, update, ttl=ttl, timeout=timeout))

    def get_or_add(
        self,
        tx: Transaction,
        key: K,
        value: V | Callable[[], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Return the value of the key, after writing `value` (or what it returns) if it is new.

        An existing key needs a shared lock only.
        """
        inner = _inner(tx, self._thread)
        return tx.perform(self.inner.get_or_add(inner, key, value, ttl=ttl, timeout=timeout))

    def compare_and_set(
        self,
        tx: Transaction,
        key: K,
        value: V,
        expected: V | Missing,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write the value if the key has the expected one (MISSING: if it is absent).

        Values are compared as they are stored, so equal means equal in every field.
        """
        inner = _inner(tx, self._thread)
        return tx.perform(
            self.inner.compare_and_set(inner, key, value, expected, ttl=ttl, timeout=timeout)
        )

    @overload
    def pop(self, tx: Transaction, key: K, *, timeout: float | None = ...) -> V: ...
    @overload
    def pop(self, tx: Transaction, key: K, default: D, *, timeout: float | None = ...) -> V | D: ...
    def pop(
        self,
        tx: Transaction,
        key: K,
        default: D | NoDefault = NO_DEFAULT,
        *,
        timeout: float | None = None,
    ) -> V | D:
        """Remove the key and return its value; `default`, or KeyNotFoundError, if it is absent."""
        inner = _inner(tx, self._thread)
        return cast("V | D", tx.perform(self.inner.pop(inner, key, default, timeout=timeout)))

    def delete(self, tx: Transaction, key: K, *, timeout: float | None = None) -> bool:
        """Remove the key; False if it was absent."""
        inner = _inner(tx, self._thread)
        return tx.perform(self.inner.delete(inner, key, timeout=timeout))

    def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove all keys, in a given transaction or in its own.

        It waits for every transaction that uses the dictionary.
        """
        _clear(self._thread, self.inner, tx, timeout)

    # --- reading many ---------------------------------------------------------------------

    def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of keys: kept, not walked. Expired ones count until swept."""
        inner = _inner(tx, self._thread)
        return tx.perform(self.inner.count(inner, timeout=timeout))

    def items(  # noqa: PLR0913 - by keyword
        self,
        tx: Transaction | Snapshot,
        *,
        prefix: object = None,
        start: K | None = None,
        end: K | None = None,
        reverse: bool = False,
        limit: int | None = None,
        where: Callable[[K, V], bool] | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[K, V]]:
        """Yield keys and values in key order, from `start` up to but not including `end`.

        `prefix` keeps texts and bytes that start with it, tuples whose first places it is;
        `where` is asked for each pair, in the state's own thread. In reverse, the order turns,
        not the range. What the iterator sees is fixed when it starts; `timeout` is for the lock
        that it takes then. Rows are fetched some hundred ahead of what is yielded.
        """
        rows = self.inner.items(
            _inner(tx, self._thread),
            prefix=prefix,
            start=start,
            end=end,
            reverse=reverse,
            limit=limit,
            where=where,
            timeout=timeout,
        )
        return _pages(self._thread, rows, tx)

    def keys(  # noqa: PLR0913 - by keyword
        self,
        tx: Transaction | Snapshot,
        *,
        prefix: object = None,
        start: K | None = None,
        end: K | None = None,
        reverse: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[K]:
        """Yield keys alone: no value is decoded."""
        rows = self.inner.keys(
            _inner(tx, self._thread),
            prefix=prefix,
            start=start,
            end=end,
            reverse=reverse,
            limit=limit,
            timeout=timeout,
        )
        return _pages(self._thread, rows, tx)

    def values(  # noqa: PLR0913 - by keyword
        self,
        tx: Transaction | Snapshot,
        *,
        prefix: object = None,
        start: K | None = None,
        end: K | None = None,
        reverse: bool = False,
        limit: int | None = None,
        where: Callable[[K, V], bool] | None = None,
        timeout: float | None = None,
    ) -> Iterator[V]:
        """Yield values in the order of their keys."""
        rows = self.inner.values(
            _inner(tx, self._thread),
            prefix=prefix,
            start=start,
            end=end,
            reverse=reverse,
            limit=limit,
            where=where,
            timeout=timeout,
        )
        return _pages(self._thread, rows, tx)

    def find(
        self,
        tx: Transaction | Snapshot,
        *,
        reverse: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
        **index: object,
    ) -> Iterator[tuple[K, V]]:
        """Yield the pairs that an index finds, in key order: `find(snapshot, item="lamp")`."""
        inner = _inner(tx, self._thread)
        rows = self.inner.find(inner, reverse=reverse, limit=limit, timeout=timeout, **index)
        return _pages(self._thread, rows, tx)

    def changes(self, *, since: int = 0, wait: float | None = None) -> "ChangeFeed[K, V]":
        """Return the feed of changes behind a sequence: `with users.changes(since=n) as feed`.

        Iterating ends when nothing came for `wait` seconds; without `wait` it goes on for ever.
        """
        return ChangeFeed(self._thread, self.inner.changes(since=since), wait)


class ReliableQueue(Generic[V]):
    """A queue that survives. Open it with `state.queue(...)`."""

    def __init__(self, thread: LoopThread, inner: AsyncQueue[V]) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def enqueue(self, tx: Transaction, value: V, *, timeout: float | None = None) -> None:
        """Put a value at the end; others see it after the commit."""
        inner = _inner(tx, self._thread)
        tx.perform(self._inner.enqueue(inner, value, timeout=timeout))

    def dequeue(
        self,
        tx: Transaction,
        default: D | None = None,
        *,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> V | D | None:
        """Take the first value; `default` if there is none after `wait` seconds."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.dequeue(inner, default, wait=wait, timeout=timeout))

    def dequeue_many(
        self, tx: Transaction, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Take up to `count` values from the front; wait for the first if there is none."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.dequeue_many(inner, count, wait=wait, timeout=timeout))

    def peek(
        self,
        tx: Transaction | Snapshot,
        default: D | None = None,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> V | D | None:
        """Return the first value without taking it; `default` if there is none."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.peek(inner, default, lock=lock, timeout=timeout))

    def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of values: kept, not walked."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.count(inner, timeout=timeout))

    def items(
        self,
        tx: Transaction | Snapshot,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[V]:
        """Yield the values from first to last, own ones behind the others."""
        rows = self._inner.items(_inner(tx, self._thread), limit=limit, timeout=timeout)
        return _pages(self._thread, rows, tx)

    def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove everything, in a given transaction or in its own."""
        _clear(self._thread, self._inner, tx, timeout)


class ReliableConcurrentQueue(Generic[V]):
    """A queue for many consumers. Open it with `state.concurrent_queue(...)`."""

    def __init__(self, thread: LoopThread, inner: AsyncConcurrentQueue[V]) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def enqueue(
        self, tx: Transaction, value: V, *, delay: float = 0.0, timeout: float | None = None
    ) -> None:
        """Add a value; others may have it after the commit and `delay` seconds."""
        inner = _inner(tx, self._thread)
        tx.perform(self._inner.enqueue(inner, value, delay=delay, timeout=timeout))

    def dequeue(
        self,
        tx: Transaction,
        default: D | None = None,
        *,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> V | D | None:
        """Take a value; `default` if there is none after `wait` seconds."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.dequeue(inner, default, wait=wait, timeout=timeout))

    def dequeue_many(
        self, tx: Transaction, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Take up to `count` values; wait for the first if there is none."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.dequeue_many(inner, count, wait=wait, timeout=timeout))

    def receive(
        self,
        tx: Transaction,
        count: int = 1,
        *,
        visibility: float,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> list[Delivery[V]]:
        """Hide up to `count` items for `visibility` seconds from the commit of `tx` on.

        Who has not called `complete` by then gave the item back.
        """
        inner = _inner(tx, self._thread)
        return tx.perform(
            self._inner.receive(inner, count, visibility=visibility, wait=wait, timeout=timeout)
        )

    def complete(
        self, tx: Transaction, delivery: Delivery[V], *, timeout: float | None = None
    ) -> bool:
        """Remove a received item; False if it came back and is no longer ours."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.complete(inner, delivery, timeout=timeout))

    def release(
        self,
        tx: Transaction,
        delivery: Delivery[V],
        *,
        delay: float = 0.0,
        timeout: float | None = None,
    ) -> bool:
        """Give a received item back after `delay` seconds; False if it is no longer ours."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.release(inner, delivery, delay=delay, timeout=timeout))

    def returned(self, delivery_position: int) -> int:
        """Return how often aborted transactions put an item back, in this process."""
        return self._thread.call(lambda: self._inner.returned(delivery_position))

    def peek(
        self,
        tx: Transaction | Snapshot,
        default: D | None = None,
        *,
        timeout: float | None = None,
    ) -> V | D | None:
        """Return a value that could be taken next, without its lock; `default` if there is none."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.peek(inner, default, timeout=timeout))

    def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of committed items, hidden ones too."""
        inner = _inner(tx, self._thread)
        return tx.perform(self._inner.count(inner, timeout=timeout))

    def items(
        self,
        tx: Transaction | Snapshot,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[V]:
        """Yield committed values that nobody hides, in the order of their commits."""
        rows = self._inner.items(_inner(tx, self._thread), limit=limit, timeout=timeout)
        return _pages(self._thread, rows, tx)

    def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove everything, in a given transaction or in its own."""
        _clear(self._thread, self._inner, tx, timeout)


class ChangeFeed(Generic[K, V]):
    """The changes of one dictionary: `with users.changes(since=n) as feed: for change in feed`.

    A task of the loop reads ahead, up to a page; an interrupted wait loses nothing.
    """

    def __init__(
        self, thread: LoopThread, inner: AsyncChangeFeed[K, V], wait: float | None
    ) -> None:
        self._thread = thread
        self._inner = inner
        self._wait = None if wait is None else checked_timeout(wait)
        self._turn = threading.RLock()  # its own thread may find it taken, by an interrupt
        self._page: deque[Change[K, V]] = deque()
        """What the reader has not had yet. The loop fills it only while the reader waits."""
        self._ahead: list[Change[K, V]] = []
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        self._thread.run(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed = True
        with contextlib.suppress(StateClosedError):
            self._thread.run(self._shut(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[K, V]:
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                "FeedInUse",
                "A change feed was read by two threads at once.",
                hint="Open a feed for each thread.",
            )
        try:
            if not self._page and not self._is_closed:
                with contextlib.suppress(StateClosedError):
                    self._thread.run(self._fill())
            if self._is_closed or not self._page:
                raise StopIteration
            return self._page.popleft()
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the iteration, for a thread that waits too; closing twice does nothing."""
        self._is_closed = True
        self._thread.post(self._inner.close)

    # --- in the thread of the loop --------------------------------------------------------

    async def _open(self) -> None:
        await self._inner.__aenter__()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            async for change in self._inner:
                self._ahead.append(change)
                self._arrived.set()
                if len(self._ahead) >= PAGE_ROWS:
                    self._taken.clear()
                    await self._taken.wait()
        finally:
            self._arrived.set()

    async def _fill(self) -> None:
        reading = self._reading
        if reading is None:
            await anext(self._inner)  # says that it is not open
            return
        if not self._ahead and not reading.done():
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait):
                    await self._arrived.wait()
        self._page.extend(self._ahead)
        self._ahead.clear()
        self._taken.set()
        if not self._page and reading.done():
            await reading  # raises what ended it

    async def _shut(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


@overload
def _inner(tx: Transaction, thread: LoopThread) -> AsyncTransaction: ...
@overload
def _inner(tx: Transaction | Snapshot, thread: LoopThread) -> AsyncTransaction | AsyncSnapshot: ...
def _inner(tx: object, thread: LoopThread) -> AsyncTransaction | AsyncSnapshot:
    """Return what the state's own thread works with; refuse what belongs to no or another state."""
    if isinstance(tx, Transaction | Snapshot) and tx.thread is thread:
        return tx.inner
    raise UsageError(
        "TransactionExpected",
        "This operation needs a transaction or snapshot of its own state, from the same "
        f"module, not {type(tx).__name__}.",
        hint="Use `with state.transaction() as tx`.",
    )


def _clear(
    thread: LoopThread,
    inner: AsyncDictionary[Any, Any] | AsyncQueue[Any] | AsyncConcurrentQueue[Any],
    tx: Transaction | None,
    timeout: float | None,
) -> None:
    if tx is None:
        thread.run(inner.clear(timeout=timeout))
    else:
        given = _inner(tx, thread)
        tx.perform(inner.clear(given, timeout=timeout))


def _pages(
    thread: LoopThread,
    rows: AsyncIterator[T],
    tx: Transaction | Snapshot | None = None,
    *,
    size: int = PAGE_ROWS,
) -> Iterator[T]:
    """Yield rows, of which each hand-over brings a page.

    An iteration that nobody goes on with ends by itself: asyncio closes a generator that is lost.
    """
    run = thread.run if tx is None else tx.run
    is_last = False
    while not is_last:
        page, is_last = run(_take(rows, size))
        yield from page


async def _take(rows: AsyncIterator[T], size: int) -> tuple[list[T], bool]:
    page: list[T] = []
    async for row in rows:
        page.append(row)
        if len(page) == size:
            return page, False
    return page, True


def _plain(value: T) -> T:
    if not inspect.iscoroutine(value):
        return value
    value.close()
    raise UsageError(
        "FunctionSuspends",
        "run() of the synchronous state calls an ordinary function, not a coroutine function.",
        hint="Write `def`, or use `async with partita.open_state(...)`.",
    )
