"""The part of `partita.reliable.sync` that is written by hand because it cannot be generated.

A state runs on an event loop in its own thread. The classes here block the calling thread while
the loop works: transactions and their callbacks, iteration in pages, retries, and closing at the
end of the program. `blocking_feed` has the change feeds; the generated `sync` adds the methods that
only pass a call to the loop.
"""

import atexit
import contextlib
import functools
import inspect
import logging
import threading
from asyncio import _get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, Self, TypeVar

from partita.errors import PartitaError, StateClosedError, TransactionUseError, UsageError
from partita.loop_thread import Ask, LoopThread
from partita.reliable.collections import retry as retries
from partita.reliable.collections.concurrent_queue import (
    ReliableConcurrentQueue as AsyncConcurrentQueue,
)
from partita.reliable.collections.dictionary import ReliableDictionary as AsyncDictionary
from partita.reliable.collections.queue import ReliableQueue as AsyncQueue
from partita.reliable.collections.retry import Committed, policy_of
from partita.reliable.collections.snapshot import Snapshot as AsyncSnapshot
from partita.reliable.collections.transaction import Isolation, Status, origin
from partita.reliable.collections.transaction import Transaction as AsyncTransaction
from partita.reliable.manager.backup import Folder, Restored
from partita.reliable.manager.backup import RestoreContext as AsyncRestoreContext
from partita.reliable.manager.state_manager import StateManager as AsyncStateManager
from partita.reliable.values import limits
from partita.retrying import RetryPolicy

logger = logging.getLogger("partita.reliable")

T = TypeVar("T")
W = TypeVar("W")
C = TypeVar("C", bound=AsyncDictionary[Any, Any] | AsyncQueue[Any] | AsyncConcurrentQueue[Any])
A = TypeVar("A")
StateT = TypeVar("StateT", bound="OpenState")

Block = contextlib.AbstractAsyncContextManager[AsyncStateManager]
"""What `partita.open_state` returns."""

OnDataLoss = Callable[["RestoreContext"], None]

PAGE_ROWS = 256
"""Rows or changes that an iteration fetches from the loop at once."""
EXIT_SECONDS = 5.0
"""How long the end of the program waits for a state that was not closed."""


class StateThread(LoopThread):
    """The thread that a state runs in; refuses calls that would never end."""

    def __init__(self) -> None:
        refuse_running_loop()
        super().__init__("partita-state", _closed)

    def check(self) -> None:
        if self.is_forked:
            raise UsageError(
                "StateForked",
                "The state was opened before this process was forked; its thread is not here.",
                hint="Open the state after the fork: in the worker, not while the program loads.",
            )
        refuse_running_loop()
        super().check()


def refuse_running_loop() -> None:
    """Raise an error if an event loop runs in this thread, the state's own included."""
    if _get_running_loop() is not None:
        raise UsageError(
            "LoopIsRunning",
            "This call would block the event loop that runs in this thread.",
            hint="Use `async with partita.open_state(...)` in asyncio code. A function that is "
            "given to a collection (update=, where=, an index) must not use the state.",
        )


def _closed() -> StateClosedError:
    return StateClosedError(
        "StateClosed",
        "The state was closed.",
        hint="Open it again: partita.reliable.sync.open_state(...).",
    )


# --- transactions and snapshots -----------------------------------------------------------


class Transaction:
    """A unit of atomic change over any collections of one state.

    Leaving its `with` block commits; an exception aborts. Threads may use it one after another,
    but not at the same time.
    """

    def __init__(self, thread: StateThread, inner: AsyncTransaction) -> None:
        self.thread = thread
        self.inner = inner
        """The asynchronous transaction; only the thread of the state may use it."""
        self._turn = threading.RLock()  # reentrant: an interrupt may come while it is held
        self._due: deque[tuple[Callable[[int], object], int]] = deque()

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def status(self) -> Status:
        return self.inner.status

    @property
    def commit_sequence(self) -> int | None:
        """The sequence of its commit; None until the commit has written something."""
        return self.inner.commit_sequence

    def after_commit(self, callback: Callable[[int], object]) -> None:
        """Call `callback(sequence)` once the commit is durable; never after an abort.

        It is called in the thread that commits, and may use the state again.
        """

        def note(sequence: int) -> None:
            self._due.append((callback, sequence))

        self._in_turn(self.thread.call, functools.partial(self.inner.after_commit, note))

    def commit(self) -> None:
        """Make the writes durable and visible, all or none, and release the locks."""
        self.finish(self.inner.commit())

    def abort(self) -> None:
        """Discard the writes and release the locks."""
        self.perform(self.inner.abort())

    def __enter__(self) -> Self:
        if self.inner.status is not Status.ACTIVE:
            self.perform(self.inner.__aenter__())  # raises the reason
        return self

    def __exit__(self, *raised: Any) -> None:
        try:
            self.finish(self.inner.__aexit__(*raised))
        except StateClosedError:
            if raised[0] is None:  # do not hide the reason why the block was left
                raise

    # --- for the other classes ------------------------------------------------------------

    def perform(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation of this transaction, if no other one is running."""
        return self._in_turn(self.thread.perform, operation)

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation that needs its own task."""
        return self._in_turn(self.thread.run, operation)

    def finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run the operation that ends this transaction; an interrupt does not cancel it."""
        try:
            return self._in_turn(self.thread.finish, operation)
        finally:
            self.call_back()

    def call_back(self) -> None:
        """Call the callbacks of the commit, each once."""
        while self._due:
            callback, sequence = self._due.popleft()
            try:
                callback(sequence)
            except Exception:  # because the commit is durable: a callback cannot undo it
                logger.exception("a callback after commit failed")

    def _in_turn(self, run: Callable[[W], T], work: W) -> T:
        if not self._turn.acquire(blocking=False):
            if inspect.iscoroutine(work):
                work.close()
            self.thread.check()  # the running operation itself may have called
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

    def __init__(self, thread: StateThread, inner: AsyncSnapshot) -> None:
        self.thread = thread
        self.inner = inner
        """The asynchronous snapshot; only the thread of the state may use it."""

    @property
    def sequence(self) -> int:
        return self.inner.sequence

    def close(self) -> None:
        """Release the old versions; closing again has no effect."""
        with contextlib.suppress(StateClosedError):
            self.thread.call(self.inner.close)

    def __enter__(self) -> Self:
        self.perform(self.inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def perform(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run a read of this snapshot."""
        return self.thread.perform(operation)

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run a read that needs its own task."""
        return self.thread.run(operation)


def _inner_of(tx: object, thread: StateThread) -> Any:
    """Return the asynchronous transaction or snapshot; refuse one of another state."""
    if isinstance(tx, Transaction | Snapshot) and tx.thread is thread:
        return tx.inner
    raise UsageError(
        "TransactionExpected",
        "This operation needs a transaction or snapshot of its own state, from the same "
        f"module, not {type(tx).__name__}.",
        hint="Use `with state.transaction() as tx`.",
    )


class Attempt:
    """One attempt: `with attempt as tx`. An error that may be retried is kept, not raised."""

    def __init__(self, thread: StateThread, inner: retries.Attempt) -> None:
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

    def __exit__(self, *raised: Any) -> bool:
        assert self._tx is not None
        try:
            return self._tx.finish(self._inner.__aexit__(*raised))
        except StateClosedError:
            if raised[0] is None:  # do not hide the reason why the block was left
                raise
            return False


# --- the state ----------------------------------------------------------------------------


def open_block(
    make: "Callable[[StateThread, AsyncStateManager, Block], StateT]",
    open_async: Callable[..., Block],
    on_data_loss: OnDataLoss | None,
) -> StateT:
    """Open a state in a new thread; `on_data_loss` is called in this thread."""
    thread = StateThread()

    async def opened(ask: Ask) -> StateT:
        async def restore(context: AsyncRestoreContext) -> None:
            assert on_data_loss is not None
            await ask(functools.partial(on_data_loss, RestoreContext(thread, context)))

        block = open_async(on_data_loss=None if on_data_loss is None else restore)
        return make(thread, await block.__aenter__(), block)

    try:
        return thread.run_asking(opened)
    except BaseException:
        thread.stop(seconds=EXIT_SECONDS)
        raise


class RestoreContext:
    """What `on_data_loss` is given: the reason why the state cannot be opened, and `restore`."""

    def __init__(self, thread: StateThread, inner: AsyncRestoreContext) -> None:
        self._thread = thread
        self._inner = inner
        self.cause = inner.cause

    def restore(self, folder: Folder, *, force: bool = True, up_to: int | None = None) -> Restored:
        """Replace the state by the newest backup in a folder, or by an older one up to `up_to`."""
        return self._thread.run(self._inner.restore(folder, force=force, up_to=up_to))


class OpenState:
    """An open state: its life, its transactions and its retries."""

    def __init__(self, thread: StateThread, inner: AsyncStateManager, block: Block | None) -> None:
        self._thread = thread
        self._inner = inner
        self._block = block
        """Closes the state; None for a state that a service opens and closes."""
        self._closing = threading.RLock()
        self._is_closed = block is None
        if block is not None:
            atexit.register(self._close_at_exit)

    @property
    def replica_id(self) -> str:
        return self._inner.replica_id

    def close(self) -> None:
        """Wait for running commits, then release everything. Open transactions are aborted."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(
        self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS, isolation: Isolation = "locks"
    ) -> Transaction:
        """Begin a transaction; `timeout` is how long each operation waits for its lock.

        With `isolation="snapshot"` it reads dictionaries as of its beginning and locks no keys; its
        commit raises WriteConflictError if another one has written the same rows since.
        """
        inner = self._thread.call(self._begin(timeout, isolation))
        inner.origin = origin()  # of the caller: the thread of the loop does not know it
        return Transaction(self._thread, inner)

    def _begin(self, timeout: float, isolation: Isolation) -> Callable[[], AsyncTransaction]:
        return functools.partial(
            self._inner.shared_transaction, timeout=timeout, isolation=isolation
        )

    def snapshot(self) -> Snapshot:
        """Open a read view without locks, consistent over all collections."""
        inner = self._thread.call(self._inner.snapshot)
        inner.origin = origin()
        return Snapshot(self._thread, inner)

    def attempts(  # noqa: PLR0913 - by keyword
        self,
        *,
        retry: RetryPolicy | None = None,
        attempts: int | None = None,
        first_delay: float | None = None,
        max_delay: float | None = None,
        deadline: float | None = None,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
        isolation: Isolation = "locks",
    ) -> Iterator[Attempt]:
        """Retry explicitly: `for attempt in state.attempts(): with attempt as tx:`."""
        policy = policy_of(retry, attempts, first_delay, max_delay, deadline)
        inner = retries.attempts(self._begin(timeout, isolation), policy, self._inner.clock)
        pages = _pages(self._thread.run, inner, size=1)
        return map(functools.partial(Attempt, self._thread), pages)

    def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        idempotency_key: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
        isolation: Isolation = "locks",
    ) -> T:
        """Run a function as `run` does, and return its value without the sequence."""
        done = self.run(
            function,
            *arguments,
            idempotency_key=idempotency_key,
            retry=retry,
            timeout=timeout,
            isolation=isolation,
        )
        return done.value

    def run(  # noqa: PLR0913 - by keyword
        self,
        function: Callable[..., T],
        *arguments: Any,
        idempotency_key: str | None = None,
        retry: RetryPolicy | None = None,
        attempts: int | None = None,
        first_delay: float | None = None,
        max_delay: float | None = None,
        deadline: float | None = None,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
        isolation: Isolation = "locks",
    ) -> Committed[T]:
        """Call `function(tx, *arguments)` in a transaction; retry errors that may pass.

        It is called in this thread. With an `idempotency_key` the work is done exactly once,
        even if answers are lost or the program restarts: the result is stored with the commit
        and returned again, as the type of the function's return annotation (without one, as
        plain values). `attempts`, `first_delay`, `max_delay` and `deadline` change single limits
        of `retry`.
        """
        policy = policy_of(retry, attempts, first_delay, max_delay, deadline)
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
                self._begin(timeout, isolation),
                asked,
                arguments,
                idempotency_key=idempotency_key,
                policy=policy,
            )

        try:
            return self._thread.run_asking(in_turn)
        finally:
            for tx in used:
                tx.call_back()

    def _within(
        self,
        tx: Transaction | None,
        method: Callable[..., Coroutine[Any, Any, T]],
        *arguments: Any,
        **options: Any,
    ) -> T:
        """Run a method of the asynchronous state, in a transaction if one is given."""
        if tx is None:
            return self._thread.run(method(*arguments, **options))
        inner = _inner_of(tx, self._thread)
        return tx.run(method(*arguments, tx=inner, **options))

    async def _leave(self) -> None:
        assert self._block is not None, "a service closes its states itself"
        await self._block.__aexit__(None, None, None)

    def _close_at_exit(self) -> None:
        """Close a state that was left open; the exit waits, but not for ever."""
        if not self._is_closed and not self._thread.is_forked:
            self._is_closed = True
            self._thread.stop(self._leave(), seconds=EXIT_SECONDS)


def _plain(value: T) -> T:
    if not inspect.iscoroutine(value):
        return value
    value.close()
    raise UsageError(
        "FunctionSuspends",
        "run() of the synchronous state calls an ordinary function, not a coroutine function.",
        hint="Write `def`, or use `async with partita.open_state(...)`.",
    )


# --- collections --------------------------------------------------------------------------


class AutoOperations(Generic[A]):
    """The operations of a collection that are transactions of their own."""

    def __init__(self, thread: StateThread, inner: A) -> None:
        self._thread = thread
        self.inner = inner
        """The asynchronous object; only the thread of the state may use it."""


class OpenCollection(Generic[C]):
    """An open collection of a state."""

    def __init__(self, thread: StateThread, inner: C) -> None:
        self._thread = thread
        self.inner = inner
        """The asynchronous collection; only the thread of the state may use it."""

    @property
    def name(self) -> str:
        return self.inner.name

    def _perform(
        self,
        tx: Transaction | Snapshot,
        method: Callable[..., Coroutine[Any, Any, T]],
        *arguments: Any,
        **options: Any,
    ) -> T:
        """Run a method of the asynchronous collection in a transaction or snapshot."""
        inner = _inner_of(tx, self._thread)
        return tx.perform(method(inner, *arguments, **options))

    def _pages(
        self,
        tx: Transaction | Snapshot,
        method: Callable[..., AsyncIterator[T]],
        **options: Any,
    ) -> Iterator[T]:
        """Iterate over the rows of an asynchronous method."""
        rows = method(_inner_of(tx, self._thread), **options)
        return _pages(tx.run, rows)


def _pages(
    run: Callable[[Coroutine[Any, Any, tuple[list[T], bool]]], tuple[list[T], bool]],
    rows: AsyncIterator[T],
    *,
    size: int = PAGE_ROWS,
) -> Iterator[T]:
    """Yield rows, fetched from the loop in pages.

    An abandoned iteration needs no closing: asyncio closes generators that are not referenced.
    """
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


@contextlib.contextmanager
def beside(
    state: OpenState, make: Callable[[AsyncStateManager], contextlib.AbstractAsyncContextManager[T]]
) -> Iterator[T]:
    """Hold an asynchronous block open beside a state, in the thread of the state."""
    thread = state._thread  # noqa: SLF001 - of this module
    block = make(state._inner)  # noqa: SLF001 - of this module
    value = thread.run(block.__aenter__())
    try:
        yield value
    finally:
        with contextlib.suppress(StateClosedError):  # the block ended with the loop
            thread.finish(block.__aexit__(None, None, None))
