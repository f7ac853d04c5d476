"""StateManager: one partition's state on this replica, as its users see it.

It composes the parts that do the work: open collections, index builder, runner, checkpoints,
housekeeping, backups. Whether this replica may write is decided outside (a local state always
may; `replica` decides for a replicated one) and set with `promote` and `depose`.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

from partita.errors import (
    DamageError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    QuorumLostError,
    StateClosedError,
    UsageError,
)
from partita.reliable.collections import retry as retries
from partita.reliable.collections.change_feed import ChangeFeed
from partita.reliable.collections.committer import (
    ENTRY_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Committer,
    LogProgress,
)
from partita.reliable.collections.concurrent_queue import ReliableConcurrentQueue
from partita.reliable.collections.dictionary import ReliableDictionary
from partita.reliable.collections.dictionary_rows import DictionaryRows
from partita.reliable.collections.indexes import Index, IndexFunction, IndexView
from partita.reliable.collections.queue import ReliableQueue
from partita.reliable.collections.retry import Attempt, Committed, policy_of
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import (
    Core,
    Isolation,
    Transaction,
    origin,
    refuse_snapshot,
)
from partita.reliable.manager.backup import Backup, Backups, Folder
from partita.reliable.manager.declared import ConcurrentQueue, Declared, Dictionary, Queue
from partita.reliable.manager.descriptions import Descriptions
from partita.reliable.manager.housekeeping import (
    CHECKPOINT_BYTES,
    CheckpointWriter,
    Housekeeping,
)
from partita.reliable.manager.index_builder import IndexBuilder
from partita.reliable.manager.notices import CollectionNotice, Commit, Notices
from partita.reliable.manager.open_collections import OpenCollections, Opened
from partita.reliable.manager.runner import Runner
from partita.reliable.manager.state_meter import StateMeter
from partita.reliable.state.records import decode_record, record_hash
from partita.reliable.state.state import Collection, State
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.increments import IncrementalCheckpoints
from partita.reliable.storage.local_log import LocalLog
from partita.reliable.storage.log import Log
from partita.reliable.values import limits
from partita.reliable.values.arguments import (
    checked_mutation_check,
    checked_sequence,
    checked_timeout,
)
from partita.reliable.values.limits import Sizes
from partita.reliable.values.schema import Schema
from partita.reliable.values.serialization import ValueCodec
from partita.retrying import RetryPolicy
from partita.ticks import Clock

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long closing a replica waits for running commits."""


class ReplicaRole(Protocol):
    """What the state needs of the replica that decides its role."""

    copies: int
    log_last: int
    promotions: int

    async def wait_primary(self, timeout: float) -> bool: ...

    async def step_down(self, to: str = "") -> None: ...

    async def close(self) -> None: ...


class StateManager:
    """One partition's state. Open it with `partita.open_state`."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        state: State,
        log: Log,
        clock: Clock,
        checkpoints: Checkpoints,
        *,
        name: str,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        sizes: Sizes = Sizes(),  # noqa: B008 - frozen
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._checkpoints = checkpoints
        core = self._core = Core(state, clock, name)
        state.call_soon = self._call_soon
        core.role_error = _secondary()
        self._sizes = sizes
        room = min(log.record_bytes_max, sizes.record_bytes_max)
        room -= RECORD_OVERHEAD_BYTES + ENTRY_OVERHEAD_BYTES
        core.entry_bytes_max = min(sizes.transaction_bytes_max, room)
        core.transaction_bytes_max = sizes.transaction_bytes_max
        core.transaction_operations_max = sizes.transaction_operations_max
        self._progress = LogProgress()
        self._runner = Runner(core)
        self.descriptions = Descriptions(core)
        self._indexes = IndexBuilder(core, self._runner, self.descriptions)
        self._collections = OpenCollections(core, self._runner, self.descriptions, self._indexes)
        self.backups = Backups(self)
        self.checkpoint_writer = CheckpointWriter(
            core,
            log,
            checkpoints,
            self.backups,
            self._progress,
            checkpoint_bytes=checkpoint_bytes,
        )
        self._housekeeping = Housekeeping(
            core, self._runner, self.checkpoint_writer, self._collections, self._indexes
        )
        self._deposed_committer: Committer | None = None
        self._feeds: list[ChangeFeed[Any, Any]] = []
        self._notices = Notices(state)
        self._closing: asyncio.Task[None] | None = None
        self._meter: StateMeter | None = None
        self.replica_id = name
        self.before_close: Callable[[], Awaitable[None]] | None = None
        """Awaited when the state begins to close."""
        self.on_close: Callable[[], None] | None = None
        """Releases what the log is stored on, after the log was closed."""
        self.replica: ReplicaRole | None = None
        """The replica that decides the role of a replicated state; None for a local one."""
        self.on_stopped: Callable[[PartitaError], None] | None = None
        """Called when the log has stopped."""

    # --- role and life cycle --------------------------------------------------------------

    @property
    def is_primary(self) -> bool:
        """Whether this replica commits."""
        return self._core.role_error is None

    @property
    def is_closed(self) -> bool:
        return self._closing is not None

    @property
    def sequence(self) -> int:
        """The last sequence applied here."""
        return self._core.state.sequence

    @property
    def epoch(self) -> int:
        return self._core.state.epoch

    @property
    def clock(self) -> Clock:
        return self._core.clock

    @property
    def log(self) -> Log:
        return self._log

    @property
    def state(self) -> State:
        """The rows themselves, for tools and tests; do not change them."""
        return self._core.state

    @property
    def log_bytes(self) -> int | None:
        """The size of the files of the log; None if the log is not on this machine."""
        return self._log.stored_bytes if isinstance(self._log, LocalLog) else None

    @property
    def log_bytes_since_checkpoint(self) -> int:
        return self._progress.bytes_since_checkpoint

    def measure(self, name: str) -> None:
        """Add this state to the metrics of the process, under a name, until it is closed."""
        if self._meter is not None:
            self._meter.close()
        self._meter = StateMeter(self, name)

    @property
    def core(self) -> Core:
        """What all transactions share, for observers; do not change it."""
        return self._core

    @property
    def checkpoints(self) -> Checkpoints:
        return self._checkpoints

    async def wait_primary(self, timeout: float = 30.0) -> bool:
        """Wait until this replica is the primary; return False if it is not within the time."""
        if self.replica is None:
            return self.is_primary
        return await self.replica.wait_primary(checked_timeout(timeout))

    async def step_down(self) -> None:
        """Let another replica become primary; does nothing on a local state."""
        if self.replica is not None:
            await self.replica.step_down()

    def set_mutation_check(self, mode: str) -> None:
        """Set how often values are checked: on, sample (one transaction in 100) or off."""
        self._core.mutation_check = checked_mutation_check(mode)

    async def recover(self) -> None:
        """Apply the records of the log after the checkpoint and its increments."""
        if isinstance(self._checkpoints, IncrementalCheckpoints):
            self._progress.bytes_since_checkpoint = self._checkpoints.log_bytes
        async for sequence, raw in self._log.read_from(self.sequence + 1):
            self.apply(sequence, raw)

    def apply(self, sequence: int, raw: bytes) -> bool:
        """Apply one record of the log; return False if it came from a deposed primary."""
        record = decode_record(raw)
        if record.sequence != sequence:
            raise DamageError(
                "RecordMisplaced",
                f"The log contains record {record.sequence} at sequence {sequence}.",
                facts={"sequence": sequence},
                hint="Restore a backup: the log was mixed with another one.",
            )
        counts = self._core.state.apply(record, record_hash(raw))
        self._progress.note(sequence, len(raw))
        return counts

    def promote(self) -> None:
        """Start to commit: this replica is the only writer of the log."""
        self._core.committer = Committer(
            self._log,
            self._core.state,
            self._core.clock,
            progress=self._progress,
            on_stop=self._stopped,
            counts=self._core.counts,
            record_bytes_max=self._sizes.record_bytes_max,
        )
        self._core.role_error = None

    def depose(self, error: PartitaError) -> None:
        """Stop committing, and end every open transaction."""
        committer = self._core.committer
        self._core.depose(error)
        if committer is not None:
            self._deposed_committer = committer
            committer.stop(error)

    def name_primary(self, error: NotPrimaryError) -> None:
        """Set the error of writes on a secondary, which names the primary."""
        if isinstance(self._core.role_error, NotPrimaryError | QuorumLostError):
            self._core.role_error = error

    async def committer_idle(self) -> None:
        """Return when all submitted transactions of a deposed primary have ended."""
        if self._deposed_committer is not None:
            await self._deposed_committer.idle()

    def replace(self, state: State) -> None:
        """Continue with a full copy: open collections use it, open snapshots end."""
        self._core.state = state
        state.call_soon = self._call_soon
        self._collections.rebind()
        for feed in list(self._feeds):
            feed.rebuilt()
        self._notices.rebuilt(state)
        self._progress.wake(state.sequence)

    def start_housekeeping(self) -> None:
        self._housekeeping.start()

    async def close(self) -> None:
        """Wait for running commits, then release everything. Open transactions are aborted.

        A cancelled close continues; a second one waits for the first.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._meter is not None:
            self._meter.close()
        if self.before_close is not None:
            await self.before_close()
        for feed in list(self._feeds):
            feed.close()
        committer = self._core.committer
        closed = StateClosedError(
            "StateClosed",
            "The state was closed.",
            hint="Open it again with partita.open_state(...).",
        )
        self._core.depose(closed)
        if self.replica is not None:
            await self.replica.close()
        await self._housekeeping.stop()
        if committer is not None:
            # A lost quorum may never answer: the record in flight then stays in doubt.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.replica is None else CLOSE_SECONDS):
                    await committer.idle()
            committer.stop(closed)
        for _, future in self._progress.waits:
            if not future.done():
                future.set_result(None)
        try:
            async with self.checkpoint_writer.lock:
                await self._log.close()
        finally:
            if self.on_close is not None:
                self.on_close()

    # --- collections ----------------------------------------------------------------------

    @overload
    async def open(
        self, declared: Dictionary[K, V], *, tx: Transaction | None = None
    ) -> ReliableDictionary[K, V]: ...
    @overload
    async def open(
        self, declared: ConcurrentQueue[V], *, tx: Transaction | None = None
    ) -> ReliableConcurrentQueue[V]: ...
    @overload
    async def open(
        self, declared: Queue[V], *, tx: Transaction | None = None
    ) -> ReliableQueue[V]: ...
    async def open(
        self,
        declared: Dictionary[K, V] | Queue[V] | ConcurrentQueue[V],
        *,
        tx: Transaction | None = None,
    ) -> ReliableDictionary[K, V] | ReliableQueue[V] | ReliableConcurrentQueue[V]:
        """Open a declared collection: `users = await state.open(USERS)`.

        A new one is created in a transaction of its own, or in the given one: then it exists only
        there until the commit, and an abort leaves nothing.
        """

        def build(
            collection: Collection, values: ValueCodec[V]
        ) -> ReliableDictionary[K, V] | ReliableQueue[V] | ReliableConcurrentQueue[V]:
            if isinstance(declared, ConcurrentQueue):
                return ReliableConcurrentQueue(self, collection, values=values)
            if isinstance(declared, Queue):
                return ReliableQueue(self, collection, values=values)
            return ReliableDictionary(
                self,
                collection,
                keys=declared.keys,
                values=values,
                ttl=declared.declaration.ttl,
                is_copied=values.is_copied,
                keeps_every_change=declared.declaration.every_change,
            )

        if not isinstance(declared, Declared):
            raise UsageError(
                "DeclarationExpected",
                f"open() takes a Dictionary, Queue or ConcurrentQueue, not {declared!r}.",
                hint='Declare it: USERS = Dictionary("users", key=str, value=User).',
            )
        if tx is None:
            return await self._collections.open(declared, build)
        refuse_snapshot(tx)
        return await self._collections.open_in(tx, declared, build)

    @overload
    async def dictionary(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        indexes: Mapping[str, IndexFunction | Index] | None = ...,
        ttl: float | None = ...,
        mutable: Literal["refuse", "copy"] = ...,
        preserve_unknown: bool = ...,
    ) -> ReliableDictionary[K, V]: ...
    @overload
    async def dictionary(
        self,
        name: str,
        *,
        key: object,
        value: object,
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        indexes: Mapping[str, IndexFunction | Index] | None = ...,
        ttl: float | None = ...,
        mutable: Literal["refuse", "copy"] = ...,
        preserve_unknown: bool = ...,
    ) -> ReliableDictionary[Any, Any]: ...
    async def dictionary(  # noqa: PLR0913 - by keyword
        self,
        name: str,
        *,
        key: Any,
        value: Any,
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        indexes: Mapping[str, IndexFunction | Index] | None = None,
        ttl: float | None = None,
        mutable: Literal["refuse", "copy"] = "refuse",
        preserve_unknown: bool = True,
    ) -> ReliableDictionary[Any, Any]:
        """Open a dictionary by its options, as `open(Dictionary(...))` does."""
        declared: Dictionary[Any, Any] = Dictionary(
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
        return await self.open(declared)

    @overload
    async def queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableQueue[V]: ...
    @overload
    async def queue(
        self,
        name: str,
        *,
        value: object,
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableQueue[Any]: ...
    async def queue(
        self,
        name: str,
        *,
        value: Any,
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> ReliableQueue[Any]:
        """Open a queue with strict order by its options, as `open(Queue(...))` does."""
        declared: Queue[Any] = Queue(
            name, value=value, version=version, upcasts=upcasts, mutable=mutable
        )
        return await self.open(declared)

    @overload
    async def concurrent_queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableConcurrentQueue[V]: ...
    @overload
    async def concurrent_queue(
        self,
        name: str,
        *,
        value: object,
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableConcurrentQueue[Any]: ...
    async def concurrent_queue(
        self,
        name: str,
        *,
        value: Any,
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> ReliableConcurrentQueue[Any]:
        """Open a queue for many consumers by its options, as `open(ConcurrentQueue(...))` does."""
        declared: ConcurrentQueue[Any] = ConcurrentQueue(
            name, value=value, version=version, upcasts=upcasts, mutable=mutable
        )
        return await self.open(declared)

    def collections(self) -> list[Opened]:
        """List all collections of the state, by name."""
        return self._collections.list_all()

    async def drop(
        self, name: str, *, tx: Transaction | None = None, timeout: float | None = None
    ) -> None:
        """Remove a collection and its content; waits for the transactions that use it.

        With `tx` it is removed by the commit of that transaction.
        """
        if tx is None:
            async with self.transaction() as own:
                await self._collections.drop(own, name, timeout)
        else:
            refuse_snapshot(tx)
            await self._collections.drop(tx, name, timeout)

    async def keep_versions(self, collection: Collection, *, is_locked: bool) -> None:
        """Keep the version of every row of a dictionary from now on."""
        await self.descriptions.keep_versions(collection, is_locked=is_locked)

    async def promote_schema(self, name: str, version: int) -> None:
        """Let every replica write a schema version from now on, by a record in the log.

        Refused while a live replica cannot read the version.
        """
        await self._collections.promote_schema(name, version)

    def readable_versions(self) -> dict[str, int]:
        """Return the newest schema version of each open collection that this code can read."""
        return self._collections.readable_versions()

    async def rewrite(self, collection: ReliableDictionary[Any, Any], *, batch: int = 500) -> int:
        """Convert all rows of older versions now, in small transactions; return their number."""
        return await self._collections.rewrite(collection, batch)

    async def build_index(self, owner: DictionaryRows[Any, Any], view: IndexView) -> None:
        """Fill an index from the rows, in small transactions."""
        await self._indexes.build(owner, view)

    # --- transactions ---------------------------------------------------------------------

    def transaction(
        self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS, isolation: Isolation = "locks"
    ) -> Transaction:
        """Begin a transaction; `timeout` is how long each operation waits for its lock.

        With `isolation="snapshot"` it reads dictionaries as of its beginning and locks no keys; its
        commit raises WriteConflictError if another one has written the same rows since.
        """
        return Transaction(self._core, timeout=timeout, isolation=isolation)

    def shared_transaction(
        self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS, isolation: Isolation = "locks"
    ) -> Transaction:
        """Begin a transaction that several tasks use in turn, for the synchronous API."""
        return Transaction(self._core, timeout=timeout, isolation=isolation, is_shared=True)

    def snapshot(self) -> Snapshot:
        """Open a lock-free read view, consistent over all collections."""
        self._core.check_open()
        return Snapshot(self._core.state, self._core.now(), origin())

    async def read_at_least(self, sequence: int, *, timeout: float = 10.0) -> None:
        """Wait until this replica has applied a sequence: read your writes on a secondary."""
        if self.sequence >= checked_sequence(sequence):
            return
        await self._progress.wait(sequence, checked_timeout(timeout))
        self._core.check_open()
        if self.sequence < sequence:
            raise NotReadableError(
                "NotReadable",
                f"This replica has applied sequence {self.sequence}, not yet {sequence}.",
                facts={"sequence": sequence, "applied": self.sequence},
                hint="Increase timeout=, or read on the primary.",
            )

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
    ) -> AsyncIterator[Attempt]:
        """Retry by hand: `async for attempt in state.attempts(): async with attempt as tx:`."""
        policy = policy_of(retry, attempts, first_delay, max_delay, deadline)
        begin = functools.partial(self.transaction, timeout=timeout, isolation=isolation)
        return retries.attempts(begin, policy, self.clock)

    async def run(  # noqa: PLR0913 - by keyword
        self,
        function: Callable[..., Awaitable[T]],
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
        """Run `await function(tx, *arguments)` in a transaction, with retries.

        With an `idempotency_key` the function takes effect exactly once, across lost answers and
        restarts: its encoded result is stored with the commit and returned again, as the type of
        the function's return annotation (plain values without one). `attempts`, `first_delay`,
        `max_delay` and `deadline` change single limits of `retry`.
        """
        return await self.run_with(
            functools.partial(self.transaction, timeout=timeout, isolation=isolation),
            function,
            arguments,
            idempotency_key=idempotency_key,
            policy=policy_of(retry, attempts, first_delay, max_delay, deadline),
        )

    async def call(
        self,
        function: Callable[..., Awaitable[T]],
        *arguments: Any,
        idempotency_key: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
        isolation: Isolation = "locks",
    ) -> T:
        """Run a function as `run` does, and return its value without the sequence."""
        done = await self.run(
            function,
            *arguments,
            idempotency_key=idempotency_key,
            retry=retry,
            timeout=timeout,
            isolation=isolation,
        )
        return done.value

    async def run_with(
        self,
        begin: Callable[[], Transaction],
        function: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        *,
        idempotency_key: str | None,
        policy: RetryPolicy,
    ) -> Committed[T]:
        """Run a function in transactions that `begin` opens, for the synchronous API."""
        return await self._runner.run(
            function, *arguments, begin=begin, idempotency_key=idempotency_key, policy=policy
        )

    async def outcome(self, idempotency_key: str, result_type: Any = Any) -> Committed[Any] | None:
        """Return what a run with this key has committed, None if nothing (or too long ago)."""
        return self._runner.outcome(idempotency_key, result_type)

    # --- checkpoints, backups and feeds ---------------------------------------------------

    async def checkpoint(self) -> int:
        """Write a checkpoint now and truncate the log; return its sequence."""
        return await self.checkpoint_writer.write()

    async def backup(
        self,
        folder: Folder,
        *,
        incremental: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backup:
        """Back up the state into a folder while commits continue.

        An incremental backup contains what was committed since the newest one in the folder.
        """
        self._core.check_open()
        return await self.backups.write(folder, incremental=incremental, progress=progress)

    def add_feed(self, feed: ChangeFeed[Any, Any]) -> None:
        """Tell a feed about rebuilds."""
        self._core.check_open()
        self._feeds.append(feed)

    def remove_feed(self, feed: ChangeFeed[Any, Any]) -> None:
        self._feeds.remove(feed)

    def on_commit(self, function: Callable[[Commit], object]) -> Callable[[], None]:
        """Call `function(commit)` for every record that is applied here; return how to stop it.

        It is called before the commit returns, in the order of the log, on the primary and on
        secondaries. It is an ordinary function and must be quick; its exceptions are logged.
        """
        self._core.check_open()
        return self._notices.on_commit(function)

    def on_collections(self, function: Callable[[CollectionNotice], object]) -> Callable[[], None]:
        """Call `function(notice)` when a collection is added or dropped; return how to stop it.

        After a full copy the notice is `rebuilt`. Otherwise as `on_commit`.
        """
        self._core.check_open()
        return self._notices.on_collections(function)

    def feed(self, dictionary: DictionaryRows[K, V], since: int) -> ChangeFeed[K, V]:
        """Return the change feed of a dictionary."""
        return ChangeFeed(self, dictionary, since)

    # --------------------------------------------------------------------------------------

    def _stopped(self, error: PartitaError) -> None:
        """Stop writing because the committer has stopped."""
        self._core.depose(error)
        if self.on_stopped is not None:
            self.on_stopped(error)

    def _call_soon(self, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():  # a snapshot may be closed after the loop
            self._loop.call_soon(function)


def _secondary() -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        "This replica is a secondary: it reads, and does not write.",
        hint="Send the work to the primary.",
    )
    error.primary = ""
    return error
