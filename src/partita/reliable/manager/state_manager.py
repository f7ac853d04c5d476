"""StateManager: one partition's state on this replica, as its users see it.

It composes the parts that do the work: open collections, index builder, runner, checkpoints,
housekeeping, backups. Whether this replica may write is decided outside (a local state always
may; `replica` decides for a replicated one) and set with `promote` and `depose`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, cast

from partita.errors import (
    DamageError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    QuorumLostError,
    StateClosedError,
)
from partita.reliable.collections import retry
from partita.reliable.collections.change_feed import ChangeFeed
from partita.reliable.collections.committer import (
    ENTRY_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Committer,
    LogProgress,
)
from partita.reliable.collections.concurrent_queue import ReliableConcurrentQueue
from partita.reliable.collections.dictionary import ReliableDictionary
from partita.reliable.collections.indexes import Index, IndexFunction, IndexView
from partita.reliable.collections.queue import ReliableQueue
from partita.reliable.collections.retry import Attempt, Backoff, Committed
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import Core, Transaction, origin
from partita.reliable.manager.backup import Backup, Backups, Folder
from partita.reliable.manager.declarations import Declaration
from partita.reliable.manager.descriptions import Descriptions
from partita.reliable.manager.housekeeping import (
    CHECKPOINT_BYTES,
    CheckpointWriter,
    Housekeeping,
)
from partita.reliable.manager.index_builder import IndexBuilder
from partita.reliable.manager.open_collections import OpenCollections, Opened, checked_indexes
from partita.reliable.manager.runner import Runner
from partita.reliable.state.records import decode_record, record_hash
from partita.reliable.state.state import Collection, Description, State
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.log import Log
from partita.reliable.values import limits
from partita.reliable.values.arguments import (
    checked_mutation_check,
    checked_sequence,
    checked_timeout,
    checked_ttl,
)
from partita.reliable.values.key_codec import key_codec
from partita.reliable.values.schema import Schema
from partita.reliable.values.serialization import ValueCodec
from partita.ticks import Clock

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long closing a replica waits for running commits."""


class ReplicaRole(Protocol):
    """What the state needs of the replica that decides its role."""

    async def wait_primary(self, timeout: float) -> bool: ...

    async def step_down(self) -> None: ...

    async def close(self) -> None: ...


class StateManager:
    """One partition's state. Open it with `partita.open_state`."""

    def __init__(
        self,
        state: State,
        log: Log,
        clock: Clock,
        checkpoints: Checkpoints,
        *,
        name: str,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._checkpoints = checkpoints
        core = self._core = Core(state, clock, name)
        state.call_soon = self._call_soon
        core.role_error = _secondary()
        room = log.record_bytes_max - RECORD_OVERHEAD_BYTES - ENTRY_OVERHEAD_BYTES
        core.entry_bytes_max = min(limits.TRANSACTION_BYTES_MAX, room)
        self._progress = LogProgress()
        self._runner = Runner(core)
        self.descriptions = Descriptions(core)
        self._indexes = IndexBuilder(core, self._runner, self.descriptions)
        self._collections = OpenCollections(core, self._runner, self.descriptions, self._indexes)
        self._backups = Backups(self)
        self.checkpoint_writer = CheckpointWriter(
            core,
            log,
            checkpoints,
            self._backups,
            self._progress,
            checkpoint_bytes=checkpoint_bytes,
        )
        self._housekeeping = Housekeeping(
            core, self._runner, self.checkpoint_writer, self._collections, self._indexes
        )
        self._deposed_committer: Committer | None = None
        self._feeds: list[ChangeFeed[Any, Any]] = []
        self._closing: asyncio.Task[None] | None = None
        self.replica_id = name
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
        """Apply the records of the log after the checkpoint."""
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

    async def dictionary(  # noqa: PLR0913 - by keyword
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
    ) -> ReliableDictionary[K, V]:
        """Open a dictionary, creating it (in a transaction of its own) if it is new.

        `indexes` are functions of the value that return a key, a list of keys or None; they are
        built before this returns. `ttl` is the time to live of values, in seconds. `upcasts` are
        functions marked with `@upcast` (and `@downcast`) that convert older versions to newer.
        """
        keys = key_codec(key)
        declared = Declaration(
            value,
            _schema(version),
            tuple(upcasts),
            mutable,
            key,
            preserve_unknown,
            checked_ttl(ttl),
            checked_indexes(indexes),
        )

        def build(collection: Collection, values: ValueCodec[V]) -> ReliableDictionary[K, V]:
            return ReliableDictionary(
                self,
                collection,
                keys=keys,
                values=values,
                ttl=declared.ttl,
                is_copied=mutable == "copy",
            )

        wanted = Description(name, "dictionary", keys.name)
        opened = await self._collections.open(wanted, declared, build)
        return cast("ReliableDictionary[K, V]", opened)

    async def queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> ReliableQueue[V]:
        """Open a queue with strict order, creating it if it is new."""
        declared = Declaration(value, _schema(version), tuple(upcasts), mutable)

        def build(collection: Collection, values: ValueCodec[V]) -> ReliableQueue[V]:
            return ReliableQueue(self, collection, values=values)

        opened = await self._collections.open(Description(name, "queue"), declared, build)
        return cast("ReliableQueue[V]", opened)

    async def concurrent_queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> ReliableConcurrentQueue[V]:
        """Open a queue for many concurrent consumers, creating it if it is new."""
        declared = Declaration(value, _schema(version), tuple(upcasts), mutable)

        def build(collection: Collection, values: ValueCodec[V]) -> ReliableConcurrentQueue[V]:
            return ReliableConcurrentQueue(self, collection, values=values)

        wanted = Description(name, "concurrent_queue")
        opened = await self._collections.open(wanted, declared, build)
        return cast("ReliableConcurrentQueue[V]", opened)

    def collections(self) -> list[Opened]:
        """List all collections of the state, by name."""
        return self._collections.list_all()

    async def drop(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a collection and its content; waits for the transactions that use it."""
        await self._collections.drop(name, timeout)

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

    async def build_index(self, owner: ReliableDictionary[Any, Any], view: IndexView) -> None:
        """Fill an index from the rows, in small transactions."""
        await self._indexes.build(owner, view)

    # --- transactions ---------------------------------------------------------------------

    def transaction(self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction; `timeout` is how long each operation waits for its lock."""
        return Transaction(self._core, timeout=timeout)

    def shared_transaction(self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction that several tasks use in turn, for the synchronous API."""
        return Transaction(self._core, timeout=timeout, is_shared=True)

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

    def attempts(
        self,
        *,
        attempts: int = retry.ATTEMPTS,
        first_delay: float = retry.FIRST_DELAY_SECONDS,
        max_delay: float = retry.DELAY_SECONDS_MAX,
        deadline: float = retry.DEADLINE_SECONDS,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
    ) -> AsyncIterator[Attempt]:
        """Retry by hand: `async for attempt in state.attempts(): async with attempt as tx:`."""
        backoff = Backoff(attempts, first_delay, max_delay, deadline)
        return retry.attempts(lambda: self.transaction(timeout=timeout), backoff, self.clock)

    async def run(  # noqa: PLR0913 - by keyword
        self,
        function: Callable[..., Awaitable[T]],
        *arguments: Any,
        idempotency_key: str | None = None,
        attempts: int = retry.ATTEMPTS,
        first_delay: float = retry.FIRST_DELAY_SECONDS,
        max_delay: float = retry.DELAY_SECONDS_MAX,
        deadline: float = retry.DEADLINE_SECONDS,
        timeout: float = limits.LOCK_TIMEOUT_SECONDS,
    ) -> Committed[T]:
        """Run `await function(tx, *arguments)` in a transaction, with retries.

        With an `idempotency_key` the function takes effect exactly once, across lost answers and
        restarts: its encoded result is stored with the commit and returned again, as the type of
        the function's return annotation (plain values without one).
        """
        return await self.run_with(
            lambda: self.transaction(timeout=timeout),
            function,
            arguments,
            idempotency_key=idempotency_key,
            backoff=Backoff(attempts, first_delay, max_delay, deadline),
        )

    async def run_with(
        self,
        begin: Callable[[], Transaction],
        function: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        *,
        idempotency_key: str | None,
        backoff: Backoff,
    ) -> Committed[T]:
        """Run a function in transactions that `begin` opens, for the synchronous API."""
        return await self._runner.run(
            function, *arguments, begin=begin, idempotency_key=idempotency_key, backoff=backoff
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
        return await self._backups.write(folder, incremental=incremental, progress=progress)

    def add_feed(self, feed: ChangeFeed[Any, Any]) -> None:
        """Tell a feed about rebuilds."""
        self._core.check_open()
        self._feeds.append(feed)

    def remove_feed(self, feed: ChangeFeed[Any, Any]) -> None:
        self._feeds.remove(feed)

    def feed(self, dictionary: ReliableDictionary[K, V], since: int) -> ChangeFeed[K, V]:
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


def _schema(version: int | Schema) -> Schema:
    return version if isinstance(version, Schema) else Schema(version)


def _secondary() -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        "This replica is a secondary: it reads, and does not write.",
        hint="Send the work to the primary.",
    )
    error.primary = ""
    return error
