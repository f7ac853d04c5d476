"""StateManager: the collections of one partition on this replica, and all that is done to them.

It opens and drops collections, hands out transactions and snapshots, retries, and keeps house:
checkpoints, truncation, expiry. Whether this replica may write is decided outside (a local
state always may; `replica` decides for a replicated one) and told by `promote` and `depose`.
"""

import asyncio
import contextlib
import functools
import logging
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from partita.errors import (
    CollectionMismatchError,
    CollectionNotFoundError,
    DamageError,
    InDoubtError,
    LimitExceededError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    QuorumLostError,
    SchemaError,
    StateClosedError,
    UsageError,
)
from partita.reliable.collections import retry
from partita.reliable.collections.change_feed import ChangeFeed
from partita.reliable.collections.committer import (
    ENTRY_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Committer,
)
from partita.reliable.collections.concurrent_queue import ReliableConcurrentQueue
from partita.reliable.collections.dictionary import ReliableDictionary
from partita.reliable.collections.indexes import Index, IndexFunction, IndexView
from partita.reliable.collections.queue import ReliableQueue
from partita.reliable.collections.retry import Attempt, Backoff, Committed
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import (
    CREATIONS,
    OUTCOMES,
    Core,
    Owner,
    Status,
    Transaction,
    Workspace,
)
from partita.reliable.manager.backup import Backup, Backups, Folder
from partita.reliable.manager.declarations import Declaration, refuse_other
from partita.reliable.manager.describing import described
from partita.reliable.state.locks import LockMode
from partita.reliable.state.records import (
    Alter,
    Clear,
    Create,
    Drop,
    Operation,
    Outcome,
    decode_record,
    record_hash,
)
from partita.reliable.state.state import Collection, Description, State, encode_description
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.log import Log
from partita.reliable.values import limits
from partita.reliable.values.arguments import (
    checked_count,
    checked_idempotency_key,
    checked_index_name,
    checked_mutation_check,
    checked_name,
    checked_sequence,
    checked_timeout,
    checked_ttl,
)
from partita.reliable.values.key_codec import key_codec
from partita.reliable.values.schema import Schema
from partita.reliable.values.serialization import ValueCodec, decode_result, encode_result
from partita.ticks import TICKS_PER_SECOND, Clock

logger = logging.getLogger("partita.reliable")

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Collections = ReliableDictionary[Any, Any] | ReliableQueue[Any] | ReliableConcurrentQueue[Any]

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""A checkpoint is due behind this much log, or as much as the last checkpoint holds."""
CLOSE_SECONDS = 5.0
"""How long closing a replica waits for commits that are under way."""
HOUSEKEEPING_SECONDS = 0.5
CREATION_SECONDS = 10.0
"""How long opening a collection on a secondary waits for the primary to create it."""
SWEPT_AT_ONCE = 500
BUILT_AT_ONCE = 500


class Opened(msgspec.Struct, frozen=True):
    """What `state.collections()` says about one collection."""

    name: str
    kind: str
    key: str
    value: str
    written_version: int
    count: int
    indexes: tuple[str, ...]


class ReplicaRole(Protocol):
    """What the state asks of the replica that drives it."""

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
        self._state = state
        self._state.call_soon = self._call_soon
        self._log = log
        self._clock = clock
        self._checkpoints = checkpoints
        self._checkpoint_bytes = checkpoint_bytes
        self._core = Core(state, clock, name)
        self._core.role_error = _not_yet_primary("")
        room = log.record_bytes_max - RECORD_OVERHEAD_BYTES - ENTRY_OVERHEAD_BYTES
        self._core.entry_bytes_max = min(limits.TRANSACTION_BYTES_MAX, room)
        self._opened: dict[str, Collections] = {}
        self._declared: dict[str, Declaration] = {}
        """How the open collections were opened."""
        self._compared: dict[str, Description] = {}
        """Descriptions that say already what this code writes."""
        self._opening = asyncio.Lock()
        self._building = asyncio.Lock()
        self._checkpointing = asyncio.Lock()
        self._applied: list[tuple[int, asyncio.Future[None]]] = []
        self._log_bytes = 0
        """Bytes of log applied since the last checkpoint was begun."""
        self._house: asyncio.Task[None] | None = None
        self._backups = Backups(self)
        self._deposed_committer: Committer | None = None
        self._feeds: list[ChangeFeed[Any, Any]] = []
        self._closing: asyncio.Task[None] | None = None
        self.replica_id = name
        self.on_close: Callable[[], None] | None = None
        """Lets go of what the log lies on, after the log was closed."""
        self.replica: ReplicaRole | None = None
        """What decides the role of a replicated state; None for a local one."""
        self.on_stopped: Callable[[PartitaError], None] | None = None
        """Told when the log can go no further."""
        self.after_checkpoint: Callable[[], Awaitable[None]] | None = None
        """Called between a checkpoint and the truncation behind it."""
        self.check_promotion: Callable[[str, int], Awaitable[None]] | None = None
        """Raises unless every live replica can read a version of a collection's schema."""
        self.purge_limit: Callable[[], Awaitable[int]] | None = None
        """Returns the sequence below which no replica needs the log."""

    # --- life -----------------------------------------------------------------------------

    @property
    def is_primary(self) -> bool:
        """Whether this replica commits."""
        return self._core.role_error is None

    @property
    def sequence(self) -> int:
        """The last sequence applied here."""
        return self._state.sequence

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def log(self) -> Log:
        return self._log

    @property
    def state(self) -> State:
        """The rows themselves: for tools and tests; never change them."""
        return self._state

    @property
    def checkpoints(self) -> Checkpoints:
        return self._checkpoints

    async def wait_primary(self, timeout: float = 30.0) -> bool:
        """Wait until this replica is the primary; False if it is not within the time."""
        if self.replica is None:
            return self.is_primary
        return await self.replica.wait_primary(checked_timeout(timeout))

    async def step_down(self) -> None:
        """Let another replica become primary; a local state has no other."""
        if self.replica is not None:
            await self.replica.step_down()

    def set_mutation_check(self, mode: str) -> None:
        """Choose how often values are checked: on, sample (one transaction in 100) or off."""
        checked_mutation_check(mode)
        count = 0

        def sampled() -> bool:
            nonlocal count
            count += 1
            return count % 100 == 0

        choices = {"on": lambda: True, "sample": sampled, "off": lambda: False}
        self._core.checks_mutation = choices[mode]

    async def recover(self) -> None:
        """Apply what the log holds behind the checkpoint."""
        async for sequence, raw in self._log.read_from(self._state.sequence + 1):
            self.apply(sequence, raw)

    def apply(self, sequence: int, raw: bytes) -> bool:
        """Apply one record of the log; False: it came from a deposed primary."""
        record = decode_record(raw)
        if record.sequence != sequence:
            raise DamageError(
                "RecordMisplaced",
                f"Record {record.sequence} lies at sequence {sequence} of the log.",
                facts={"sequence": sequence},
                hint="The log was mixed with another: restore a backup.",
            )
        counts = self._state.apply(record, record_hash(raw))
        self._applied_bytes(len(raw))
        return counts

    def promote(self) -> None:
        """Begin to commit: the log is ours from here on."""
        self._core.committer = Committer(
            self._log,
            self._state,
            self._clock,
            on_applied=self._applied_bytes,
            on_stop=self._stopped,
        )
        self._core.role_error = None

    def depose(self, error: PartitaError) -> None:
        """Stop to commit, and end every open transaction."""
        committer = self._core.committer
        self._core.depose(error)
        if committer is not None:
            self._deposed_committer = committer
            committer.stop(error)

    def name_primary(self, error: NotPrimaryError) -> None:
        """Let a secondary's refusals say where the primary is."""
        if isinstance(self._core.role_error, NotPrimaryError | QuorumLostError):
            self._core.role_error = error

    async def committer_idle(self) -> None:
        """Return when nothing that was submitted is under way."""
        if self._deposed_committer is not None:
            await self._deposed_committer.idle()

    def replace(self, state: State) -> None:
        """Go on with a full copy: open collections follow, open snapshots end."""
        self._state = self._core.state = state
        self._state.call_soon = self._call_soon
        self.rebind()
        self._tell_applied()

    def start_housekeeping(self) -> None:
        if self._house is None:
            self._house = asyncio.get_running_loop().create_task(self._keep_house())

    async def close(self) -> None:
        """Let what is committing end, then let go. Open transactions are aborted.

        A cancelled close goes on; a second one waits for the first.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for feed in list(self._feeds):
            feed.close()
        committer = self._core.committer
        closed = StateClosedError(
            "StateClosed", "The state was closed.", hint="Open it again: partita.open_state(...)."
        )
        self._core.depose(closed)
        if self.replica is not None:
            await self.replica.close()
        if self._house is not None:
            self._house.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._house
        if committer is not None:
            # A quorum that is gone may never answer: what is in flight stays in doubt then.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.replica is None else CLOSE_SECONDS):
                    await committer.idle()
            committer.stop(closed)
        for _, future in self._applied:
            if not future.done():
                future.set_result(None)
        try:
            async with self._checkpointing:  # nobody writes where another may open soon
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
        functions marked with `@upcast` (and `@downcast`) that turn older versions into newer.
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
            _declared_all(indexes),
        )
        values: ValueCodec[V] = self._codec(declared)
        async with self._opening:
            wanted = Description(name, "dictionary", keys.name)
            collection = await self._collection(wanted, values, declared)
            opened = self._opened_as(collection)
            if opened is None:
                opened = ReliableDictionary(
                    self,
                    collection,
                    keys=keys,
                    values=values,
                    ttl=declared.ttl,
                    is_copied=mutable == "copy",
                )
                self._adopt(opened, declared)
                await self._open_indexes(opened, declared)
            else:
                await self._build_indexes_of(opened)
        return typing.cast("ReliableDictionary[K, V]", opened)

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
        values: ValueCodec[V] = self._codec(declared)
        async with self._opening:
            collection = await self._collection(Description(name, "queue"), values, declared)
            opened = self._opened_as(collection)
            if opened is None:
                opened = ReliableQueue(self, collection, values=values)
                self._adopt(opened, declared)
        return typing.cast("ReliableQueue[V]", opened)

    async def concurrent_queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> ReliableConcurrentQueue[V]:
        """Open a queue for many consumers at once, creating it if it is new."""
        declared = Declaration(value, _schema(version), tuple(upcasts), mutable)
        values: ValueCodec[V] = self._codec(declared)
        async with self._opening:
            collection = await self._collection(
                Description(name, "concurrent_queue"), values, declared
            )
            opened = self._opened_as(collection)
            if opened is None:
                opened = ReliableConcurrentQueue(self, collection, values=values)
                self._adopt(opened, declared)
        return typing.cast("ReliableConcurrentQueue[V]", opened)

    def collections(self) -> list[Opened]:
        """List what the state holds, by name."""
        self._core.check_open()
        return [
            Opened(
                collection.description.name,
                collection.description.kind,
                collection.description.key,
                collection.description.value,
                collection.description.written_version,
                len(collection.rows.values),
                tuple(_index_name(index) for index in self._state.indexes_of(collection)),
            )
            for _, collection in sorted(
                (collection.description.name, collection)
                for collection in self._state.collections.values()
                if collection.description.kind != "index"
            )
        ]

    async def drop(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a collection with all that is in it; it waits for those who use it."""
        collection = self._state.find(name)
        if collection is None or collection.description.kind == "index":
            raise CollectionNotFoundError(
                "CollectionNotFound",
                f"There is no collection {name!r}.",
                facts={"collection": name},
                hint="state.collections() lists them.",
            )
        owner = _Named(collection)
        async with self.transaction() as tx:
            tx.check_writable()
            await tx.lock(owner, None, LockMode.EXCLUSIVE, timeout)
            await tx.lock(_CREATIONS, b"", LockMode.EXCLUSIVE, timeout)  # an index on its way
            if collection.is_dropped:
                return
            dropped = [*self._state.indexes_of(collection), collection]
            tx.stage_operations([Drop(one.id) for one in dropped])
        if name in self._opened and self._opened[name].collection is collection:
            del self._opened[name]

    async def promote_schema(self, name: str, version: int) -> None:
        """Let every replica write a schema version from now on, as a record in the log.

        Refused while a live replica cannot read it.
        """
        collection = self._state.find(name)
        opened = self._opened.get(name)
        if collection is None or opened is None:
            raise CollectionNotFoundError(
                "CollectionNotFound",
                f"The collection {name!r} is not open here.",
                facts={"collection": name},
                hint="Open it with the code that reads the new version first.",
            )
        async with self._opening:
            await self._write_version(collection, opened.codec.version, version)

    async def rewrite(self, collection: ReliableDictionary[Any, Any], *, batch: int = 500) -> int:
        """Convert all rows of older versions now, in small transactions; return how many."""
        self._core.writable()
        if not isinstance(collection, ReliableDictionary):
            raise CollectionMismatchError(
                "CollectionMismatch",
                f"rewrite() takes a dictionary, not {type(collection).__name__}.",
                hint="The items of queues are read in every version, and gone when they are done.",
            )
        if checked_count(batch) == 0:
            raise UsageError("InvalidLimit", "One row at a time is the least: batch=1.")
        count, last = 0, b""
        while True:
            keys = collection.collection.rows.between(last, None, limit=batch)
            if not keys:
                return count
            last = keys[-1] + b"\x00"

            async def convert(tx: Transaction, keys: list[bytes] = keys) -> int:
                return await collection.rewrite_rows(tx, keys)

            count += (await self.run(convert)).value

    # --- transactions ---------------------------------------------------------------------

    def transaction(self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction; `timeout` is how long each operation waits for its lock."""
        return Transaction(self._core, timeout=timeout)

    def shared_transaction(self, *, timeout: float = limits.LOCK_TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction that several tasks use in turn: for the synchronous face."""
        return Transaction(self._core, timeout=timeout, is_shared=True)

    def snapshot(self) -> Snapshot:
        """Open a lock-free read view, consistent over all collections."""
        self._core.check_open()
        return Snapshot(self._state, self._core.now())

    async def read_at_least(self, sequence: int, *, timeout: float = 10.0) -> None:
        """Wait until this replica has applied a sequence: read your writes on a secondary."""
        if self._state.sequence >= checked_sequence(sequence):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._applied.append((sequence, future))
        try:
            async with asyncio.timeout(checked_timeout(timeout)):
                await future
        except TimeoutError:
            pass  # because the sequence may have come by a full copy
        finally:
            self._applied = [pair for pair in self._applied if pair[1] is not future]
        self._core.check_open()
        if self._state.sequence < sequence:
            raise NotReadableError(
                "NotReadable",
                f"This replica has applied {self._state.sequence}, not yet {sequence}.",
                facts={"sequence": sequence, "applied": self._state.sequence},
                hint="Wait longer, or read on the primary.",
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
        """Try again by hand: `async for attempt in state.attempts(): async with attempt as tx:`."""
        backoff = Backoff(attempts, first_delay, max_delay, deadline)
        return retry.attempts(lambda: self.transaction(timeout=timeout), backoff, self._clock)

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
        """Run `await function(tx, *arguments)` in a transaction, again where that may help.

        With an `idempotency_key` the work is done exactly once, across lost answers and
        restarts: its result is kept with the commit, encoded, and given again (as the type that
        the function's return annotation names; plain values without one).
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
        """Do what `run` does, on transactions that `begin` opens: for the synchronous face."""
        backoff = backoff.checked()
        started = self._clock.monotonic()
        failures = 0
        doubt: InDoubtError | None = None
        if idempotency_key is not None:
            checked_idempotency_key(idempotency_key)
        while True:
            try:
                return await self._try(begin, function, arguments, idempotency_key)
            except PartitaError as error:
                failures += 1
                doubt = error if isinstance(error, InDoubtError) else doubt
                delay = backoff.delay(failures, self._clock)
                spent = self._clock.monotonic() - started + delay
                has_key = idempotency_key is not None
                if (
                    failures >= backoff.attempts
                    or spent > backoff.deadline
                    or not retry.is_worth_another_try(error, has_key=has_key)
                ):
                    # What came after a doubt does not settle it: the first try may be in the log.
                    raise doubt or error from (error if doubt is not None else error.__cause__)
            await asyncio.sleep(delay)

    async def outcome(self, idempotency_key: str, result_type: Any = Any) -> Committed[Any] | None:
        """Return what a run under this key committed, None if it has not (or too long ago)."""
        checked_idempotency_key(idempotency_key)
        self._core.check_open()
        kept = self._state.outcomes.get(idempotency_key)
        if kept is None or kept.expires <= self._core.now():
            return None
        return Committed(decode_result(kept.result, result_type), kept.sequence)

    # --- checkpoints and feeds ------------------------------------------------------------

    async def checkpoint(self) -> int:
        """Write a checkpoint now and cut the log behind it; return its sequence."""
        async with self._checkpointing:
            self._core.check_open()
            before, self._log_bytes = self._log_bytes, 0
            try:
                await self._log.sync()  # no checkpoint may outlive the records that it covers
                written = await self._checkpoints.write(self._state)
            except BaseException:
                self._log_bytes += before
                raise
            if self.after_checkpoint is not None:
                await self.after_checkpoint()
            below = written.sequence + 1
            needed = self._backups.log_needed_from(before)
            if needed is not None:
                below = min(below, needed)
            if self.purge_limit is not None:
                below = min(below, await self.purge_limit())
            await self._log.truncate(below)
            return written.sequence

    async def backup(
        self,
        folder: Folder,
        *,
        incremental: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backup:
        """Back the state up into a folder while commits go on.

        An incremental backup holds what was committed since the newest one in the folder.
        """
        self._core.check_open()
        return await self._backups.write(folder, incremental=incremental, progress=progress)

    def add_feed(self, feed: ChangeFeed[Any, Any]) -> None:
        """Let a feed hear of rebuilds."""
        self._core.check_open()
        self._feeds.append(feed)

    def remove_feed(self, feed: ChangeFeed[Any, Any]) -> None:
        self._feeds.remove(feed)

    def feed(self, dictionary: ReliableDictionary[K, V], since: int) -> ChangeFeed[K, V]:
        """Return the change feed of a dictionary."""
        return ChangeFeed(self, dictionary, since)

    # --- what collections ask -------------------------------------------------------------

    def indexes_of(self, collection: Collection) -> list[Collection]:
        return self._state.indexes_of(collection)

    async def build_index(self, owner: ReliableDictionary[Any, Any], view: IndexView) -> None:
        """Fill an index from the rows: in small transactions, beside everyone's writes."""
        async with self._building:
            if self.is_primary and not view.is_ready:
                await self._build_index(owner, view)

    async def _build_index(self, owner: ReliableDictionary[Any, Any], view: IndexView) -> None:
        if view.locate() is None:
            full_name = f"{owner.name}\x00{view.name}"
            await self._create(
                Description(full_name, "index", owner=owner.collection.id, is_ready=False), owner
            )

        async def begin(tx: Transaction) -> None:
            # Nobody may have read the old entries and write behind their end.
            await tx.enter(owner, None, LockMode.EXCLUSIVE)
            identifier = view.collection.id
            tx.stage_operations([view.described(is_ready=False), Clear(identifier)])

        async def fill(tx: Transaction, keys: list[bytes]) -> None:
            # Exclusive: a shared lock goes when the commit begins, and a writer would not see the
            # entry that is on its way.
            await tx.enter(owner, None)
            for key in keys:
                tx.space(owner)  # each key is an operation with a time-out of its own
                await tx.lock(owner, key, LockMode.EXCLUSIVE, None)
            tx.stage_operations(view.entries_of(keys))

        await self.run(begin)
        last, limit = b"", BUILT_AT_ONCE
        while keys := owner.collection.rows.between(last, None, limit=limit):
            try:
                await self.run(fill, keys)
            except LimitExceededError:
                if len(keys) == 1:
                    raise
                limit = len(keys) // 2  # their entries do not fit into one transaction
            else:
                last = keys[-1] + b"\x00"
        await self._describe(owner, lambda: view.described(is_ready=True))

    def rebind(self) -> None:
        """Point open collections at the rows of a state that was replaced by a copy."""
        for name, opened in list(self._opened.items()):
            collection = self._state.find(name)
            if collection is None or collection.id != opened.collection.id:
                opened.collection.is_dropped = True
                del self._opened[name]
            else:
                opened.rebind(collection)
                collection.watchers.append(opened.watch)
        for feed in list(self._feeds):
            feed.rebuilt()

    def readable_versions(self) -> dict[str, int]:
        """Return the newest schema version of each open collection that this code can read."""
        return {name: opened.codec.version for name, opened in sorted(self._opened.items())}

    # --------------------------------------------------------------------------------------

    async def _try(
        self,
        begin: Callable[[], Transaction],
        function: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        idempotency_key: str | None,
    ) -> Committed[T]:
        async with begin() as tx:
            if idempotency_key is None:
                value = await _called(function, tx, arguments)
            else:
                result_type = _result_type(function)
                await tx.lock(_OUTCOMES, idempotency_key.encode(), LockMode.EXCLUSIVE, None)
                kept = await self.outcome(idempotency_key, result_type)
                if kept is not None:
                    return kept
                tx.check_writable()
                tx.keeps_outcome = True
                result = encode_result(await _called(function, tx, arguments))
                expires = tx.now + round(limits.OUTCOME_SECONDS_KEPT * TICKS_PER_SECOND)
                tx.keeps_outcome = False
                tx.stage_operations([Outcome(idempotency_key, result, expires)])
                value = decode_result(result, result_type)
            if tx.status is Status.ACTIVE:
                await tx.commit()
            return Committed(value, tx.commit_sequence)

    def _codec(self, declared: Declaration) -> ValueCodec[Any]:
        self._core.check_open()
        return ValueCodec(
            declared.value,
            schema=declared.schema,
            steps=declared.upcasts,
            mutable=typing.cast("Literal['refuse', 'copy']", declared.mutable),
            preserve_unknown=declared.preserve_unknown,
        )

    async def _collection(
        self, wanted: Description, values: ValueCodec[Any], declared: Declaration
    ) -> Collection:
        """Find or create a collection; `wanted` has name, kind and key."""
        name = checked_name(wanted.name)
        collection = self._state.find(name) or await self._created_elsewhere(name)
        schema = declared.schema
        if collection is None:
            collection = await self._create(
                msgspec.structs.replace(
                    wanted,
                    value=values.type_name,
                    fingerprint=values.fingerprint,
                    written_version=schema.written,
                    layouts={schema.version: values.layout},
                )
            )
        found = collection.description
        if (found.kind, found.key) != (wanted.kind, wanted.key):
            raise CollectionMismatchError(
                "CollectionMismatch",
                f"{name!r} is a {_told(found)}, not a {_told(wanted)}.",
                facts={"collection": name},
                hint="Open it as it was created, or choose another name.",
            )
        if self._opened_as(collection) is not None:
            refuse_other(name, self._declared[name], declared)
        if found.written_version > values.version:
            raise SchemaError(
                "SchemaTooNew",
                f"{name!r} is written in version {found.written_version}; "
                f"this code reads {values.version}.",
                facts={"collection": name, "version": found.written_version},
                hint="Deploy the code that reads the new version on every replica.",
            )
        described(collection, values)  # refuses a type that does not fit, also on a secondary
        if schema.write is None and found.written_version < schema.version and self.is_primary:
            await self._write_version(collection, values.version, schema.version)
        await self._describe_values(collection, values)
        return collection

    async def _describe_values(self, collection: Collection, values: ValueCodec[Any]) -> None:
        """Say in the log what this code writes, where it is more than what is said there."""
        if self.is_primary and described(collection, values) != collection.description:

            def alter() -> Operation:
                return Alter(collection.id, encode_description(described(collection, values)))

            await self._describe(_Named(collection), alter)

    async def _describe_all(self) -> None:
        """Describe the values of what was opened while this replica was a secondary."""
        for name, opened in list(self._opened.items()):
            collection = opened.collection
            if (
                not self.is_primary
                or collection.is_dropped
                or self._compared.get(name) is collection.description
            ):
                continue
            try:
                await self._describe_values(collection, opened.codec)
            except SchemaError as error:
                logger.warning("this code writes what other code cannot read: %s", error)
            self._compared[name] = collection.description

    def _opened_as(self, collection: Collection) -> Any:
        """Return the open collection, None if it is not open."""
        opened = self._opened.get(collection.description.name)
        return opened if opened is not None and opened.collection is collection else None

    async def _write_version(self, collection: Collection, readable: int, version: int) -> None:
        description = collection.description
        if version == description.written_version:
            return
        if not description.written_version < checked_count(version) <= readable:
            raise SchemaError(
                "SchemaNotPromoted",
                f"{description.name!r} is written in version {description.written_version}; "
                f"this code reads up to {readable}, so {version!r} cannot come next.",
                facts={"collection": description.name},
                hint="Versions only rise, and the code must read what it will write.",
            )
        if self.check_promotion is not None:
            await self.check_promotion(description.name, version)
        promoted = msgspec.structs.replace(description, written_version=version)
        alter = Alter(collection.id, encode_description(promoted))
        await self._describe(_Named(collection), lambda: alter)

    async def _open_indexes(
        self, owner: ReliableDictionary[Any, Any], declared: Declaration
    ) -> None:
        for name, index in declared.indexes.items():
            locate = functools.partial(self._find, f"{owner.name}\x00{name}")
            owner.indexes[name] = IndexView(name, index, owner, locate)
        try:
            await self._build_indexes_of(owner)
        except BaseException:
            # It was not handed out yet; the next opening may declare other indexes.
            owner.collection.watchers.remove(owner.watch)
            del self._opened[owner.name]
            raise

    async def _build_indexes_of(self, owner: ReliableDictionary[Any, Any]) -> None:
        for view in list(owner.indexes.values()):
            if self.is_primary and not view.is_ready:
                await self.build_index(owner, view)

    def _find(self, name: str) -> Collection | None:
        return self._state.find(name)

    async def _created_elsewhere(self, name: str) -> Collection | None:
        """Wait on a secondary until the primary has created a collection, or we are primary."""
        started = self._clock.monotonic()
        while isinstance(self._core.role_error, NotPrimaryError):
            found = self._state.find(name)
            if found is not None or self._clock.monotonic() - started > CREATION_SECONDS:
                return found
            await asyncio.sleep(CREATION_SECONDS / 200)
        return self._state.find(name)

    async def _create(self, description: Description, owner: Owner | None = None) -> Collection:
        """Create a collection, or find the one that was created meanwhile."""
        if isinstance(self._core.role_error, NotPrimaryError):
            raise _not_created(description.name, self._core.role_error.primary)
        self._core.writable()
        async with self.transaction() as tx:
            if owner is not None:
                await tx.enter(owner, None)
            # One creation at a time, to the end of its commit even if its caller is cancelled:
            # two must never take the same number or the same name.
            await tx.lock(_CREATIONS, b"", LockMode.EXCLUSIVE, None)
            found = self._state.find(description.name)
            if found is not None:
                return found
            if len(self._state.collections) >= limits.COLLECTIONS_MAX:
                raise LimitExceededError(
                    "TooManyCollections",
                    f"A state holds at most {limits.COLLECTIONS_MAX} collections and indexes.",
                    hint="Put what belongs together into one dictionary, with tuples as keys.",
                )
            identifier = self._state.next_collection
            tx.stage_operations([Create(identifier, encode_description(description))])
        return self._state.collections[identifier]

    async def _describe(self, owner: Owner, describe: Callable[[], Operation]) -> None:
        """Commit what is said about a collection that nobody drops meanwhile."""
        async with self.transaction() as tx:
            await tx.enter(owner, None)
            tx.stage_operations([describe()])

    def _adopt(self, opened: Collections, declared: Declaration) -> None:
        opened.collection.watchers.append(opened.watch)
        self._opened[opened.name] = opened
        self._declared[opened.name] = declared

    def _stopped(self, error: PartitaError) -> None:
        """The committer can go no further: neither can we."""
        self._core.depose(error)
        if self.on_stopped is not None:
            self.on_stopped(error)

    def _applied_bytes(self, count: int) -> None:
        """Count the log behind the checkpoint, and tell those who wait for a sequence."""
        self._log_bytes += count
        if self._applied:
            self._tell_applied()

    def _tell_applied(self) -> None:
        sequence = self._state.sequence
        for wanted, future in self._applied:
            if wanted <= sequence and not future.done():
                future.set_result(None)
        self._applied = [pair for pair in self._applied if not pair[1].done()]

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            for chore in (
                self._checkpoint_if_due,
                self._describe_all,
                self._build_indexes,
                self._sweep,
            ):
                try:
                    await chore()
                except (NotPrimaryError, StateClosedError):
                    continue
                except PartitaError as error:  # one that fails does not keep the others waiting
                    logger.warning("housekeeping will try again: %s", error)
                except Exception:
                    logger.exception("housekeeping will try again")

    async def _checkpoint_if_due(self) -> None:
        if self._checkpoints.is_due(self._log_bytes, self._checkpoint_bytes):
            await self.checkpoint()

    def _call_soon(self, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():  # a snapshot may be closed after it
            self._loop.call_soon(function)

    async def _build_indexes(self) -> None:
        """Build what was declared while this replica was a secondary, or was marked stale."""
        for opened in list(self._opened.values()):
            if isinstance(opened, ReliableDictionary) and not opened.collection.is_dropped:
                await self._build_indexes_of(opened)

    async def _sweep(self) -> None:
        """Remove rows whose time is over, some at a time."""
        for opened in list(self._opened.values()):
            if not isinstance(opened, ReliableDictionary) or not self.is_primary:
                continue
            while keys := opened.expired_keys(self._core.now(), SWEPT_AT_ONCE):
                try:
                    await self.run(opened.sweep, keys)
                except BaseException:
                    opened.expect_again(keys)
                    raise


class _Named:
    """A collection that nobody has opened: enough to lock it and name it."""

    def __init__(self, collection: Collection) -> None:
        self.name = collection.description.name
        self.collection = collection

    def key_of(self, encoded: bytes) -> object:
        return encoded.decode(errors="replace")

    def check_mutation(self, space: Workspace) -> None:
        """Nothing was read or written through it."""

    def check_same(self, key: bytes, value: object, stored: bytes) -> None:
        """Nothing was read or written through it."""

    def more_operations(self, _space: Workspace) -> list[Operation]:
        return []

    def ended(self, space: Workspace, sequence: int | None) -> None:
        """Nothing is kept."""


_OUTCOMES = _Named(Collection(OUTCOMES, Description("idempotency keys", "outcomes")))
_CREATIONS = _Named(Collection(CREATIONS, Description("new collections", "creations")))


def _schema(version: int | Schema) -> Schema:
    return version if isinstance(version, Schema) else Schema(version)


def _index_name(index: Collection) -> str:
    return index.description.name.rpartition("\x00")[2]


def _told(description: Description) -> str:
    return (
        f"{description.kind} with keys {description.key}" if description.key else description.kind
    )


def _declared_all(indexes: Mapping[str, IndexFunction | Index] | None) -> dict[str, Index]:
    given: object = indexes or {}
    if not isinstance(given, Mapping):
        raise UsageError(
            "IndexNotCallable",
            f"Indexes are given by name, not as {type(given).__name__}.",
            hint='indexes={"item": lambda value: value.item}.',
        )
    return {name: _declared(name, index) for name, index in given.items()}


def _declared(name: str, index: IndexFunction | Index) -> Index:
    declared = index if isinstance(index, Index) else Index(index)
    if not callable(declared.function):
        raise UsageError(
            "IndexNotCallable",
            f"The index {name!r} is given as {type(declared.function).__name__}, not a function.",
            hint='indexes={"item": lambda value: value.item}.',
        )
    checked_index_name(name)
    return declared


def _called(
    function: Callable[..., Awaitable[T]], tx: Transaction, arguments: tuple[Any, ...]
) -> Awaitable[T]:
    taken: object = function
    given: object = taken(tx, *arguments) if callable(taken) else taken
    if not isinstance(given, Awaitable):
        raise UsageError(
            "FunctionNotAsync",
            f"run() takes a coroutine function; this one returned {type(given).__name__}.",
            hint="Define it with `async def`.",
        )
    return given


def _result_type(function: Callable[..., Any]) -> Any:
    """Return what a coroutine function says it returns; Any if it does not."""
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError, AttributeError):  # a hint that exists for checkers only
        return Any


def _not_created(name: str, primary: str) -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        f"The collection {name!r} does not exist yet, and only the primary creates collections.",
        facts={"collection": name, "primary": primary},
        hint="Open it on the primary first, then here.",
    )
    error.primary = primary
    return error


def _not_yet_primary(primary: str) -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        "This replica is a secondary: it reads, and does not write.",
        facts={"primary": primary} if primary else {},
        hint="Send the work to the primary.",
    )
    error.primary = primary
    return error
