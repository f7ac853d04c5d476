"""Reliable state without asyncio: for scripts, Django, Flask, and threads.

Generated from dictionary.py, queue.py, concurrent_queue.py, state_manager.py, opening.py by
tools/make_sync.py. Do not edit: change the source instead.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, overload

from partita.reliable import opening
from partita.reliable.blocking import (
    Attempt,
    OnDataLoss,
    OpenCollection,
    OpenState,
    RestoreContext,
    Snapshot,
    Transaction,
    open_block,
)
from partita.reliable.blocking_feed import ChangeFeed, OpenDictionary
from partita.reliable.collections.concurrent_queue import Delivery
from partita.reliable.collections.concurrent_queue import (
    ReliableConcurrentQueue as AsyncConcurrentQueue,
)
from partita.reliable.collections.dictionary import NO_DEFAULT, Missing, NoDefault
from partita.reliable.collections.indexes import Index, IndexFunction
from partita.reliable.collections.queue import ReliableQueue as AsyncQueue
from partita.reliable.collections.retry import Committed
from partita.reliable.manager.backup import Backup, Folder
from partita.reliable.manager.housekeeping import CHECKPOINT_BYTES
from partita.reliable.manager.open_collections import Opened
from partita.reliable.opening import Durability
from partita.reliable.state.locks import LockMode
from partita.reliable.values.schema import Schema
from partita.ticks import Clock

__all__ = [
    "Attempt",
    "ChangeFeed",
    "OnDataLoss",
    "ReliableConcurrentQueue",
    "ReliableDictionary",
    "ReliableQueue",
    "RestoreContext",
    "Snapshot",
    "StateManager",
    "Transaction",
    "open_state",
]

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class ReliableDictionary(OpenDictionary[K, V]):
    """A durable dictionary. Open it with `state.dictionary(...)`.

    Every operation takes a transaction; reads also accept a snapshot.
    """

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

        Pass MISSING as the default where None may be a value. Use `lock=LockMode.UPDATE` for a
        key that you will write: two transactions that read it with shared locks and then both
        write it would deadlock.
        """
        return cast(
            "V | D", self._perform(tx, self.inner.get, key, default, lock=lock, timeout=timeout)
        )

    def get_many(
        self,
        tx: Transaction | Snapshot,
        keys: Iterable[K],
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> dict[K, V]:
        """Return the values of the keys that exist.

        Locks are taken in key order; `timeout` applies to all of them together.
        """
        return self._perform(tx, self.inner.get_many, list(keys), lock=lock, timeout=timeout)

    def contains(
        self,
        tx: Transaction | Snapshot,
        key: K,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> bool:
        """Return whether the key exists, with the same lock as `get`."""
        return self._perform(tx, self.inner.contains, key, lock=lock, timeout=timeout)

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
        self._perform(tx, self.inner.set, key, value, ttl=ttl, timeout=timeout)

    def add(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write a new key; KeyExistsError if it exists."""
        self._perform(tx, self.inner.add, key, value, ttl=ttl, timeout=timeout)

    def try_add(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write a new key and return True; False if it exists (the lock is kept)."""
        return self._perform(tx, self.inner.try_add, key, value, ttl=ttl, timeout=timeout)

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
        """Write `default` for a new key, `update(value)` for an existing one; return the value.

        `update` runs while the key is locked. It must return a new object and not change the
        given one.

        It is called in the thread of the state: it must be quick, and must not use the state.
        """
        return self._perform(tx, self.inner.upsert, key, default, update, ttl=ttl, timeout=timeout)

    def get_or_add(
        self,
        tx: Transaction,
        key: K,
        value: V | Callable[[], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Return the value of the key; write `value` (or what it returns) first if the key is new.

        An existing key needs only a shared lock.
        """
        return self._perform(tx, self.inner.get_or_add, key, value, ttl=ttl, timeout=timeout)

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
        """Write the value if the key has the expected value (MISSING: if the key is absent).

        Values are compared in their stored form: they are equal if all fields are equal.
        """
        return self._perform(
            tx, self.inner.compare_and_set, key, value, expected, ttl=ttl, timeout=timeout
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
        return cast("V | D", self._perform(tx, self.inner.pop, key, default, timeout=timeout))

    def delete(self, tx: Transaction, key: K, *, timeout: float | None = None) -> bool:
        """Remove the key; return False if it was absent."""
        return self._perform(tx, self.inner.delete, key, timeout=timeout)

    def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove all keys, in the given transaction or in a new one.

        It waits for every transaction that uses the dictionary.
        """
        if tx is None:
            self._thread.run(self.inner.clear(None, timeout=timeout))
        else:
            self._perform(tx, self.inner.clear, timeout=timeout)

    # --- reading many ---------------------------------------------------------------------

    def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of keys, in constant time; expired keys count until removed."""
        return self._perform(tx, self.inner.count, timeout=timeout)

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

        `prefix` selects text and bytes that start with it, and tuples whose first elements are
        equal to it; `where` is called for each pair. `reverse` changes the order, not the range.
        The iterator sees the state at the time it starts; `timeout` applies to the lock that it
        takes then.

        `where` is called in the thread of the state. Some hundred rows are fetched ahead of those
        that are yielded.
        """
        return self._pages(
            tx,
            self.inner.items,
            prefix=prefix,
            start=start,
            end=end,
            reverse=reverse,
            limit=limit,
            where=where,
            timeout=timeout,
        )

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
        """Yield keys without decoding their values."""
        return self._pages(
            tx,
            self.inner.keys,
            prefix=prefix,
            start=start,
            end=end,
            reverse=reverse,
            limit=limit,
            timeout=timeout,
        )

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
        return self._pages(
            tx,
            self.inner.values,
            prefix=prefix,
            start=start,
            end=end,
            reverse=reverse,
            limit=limit,
            where=where,
            timeout=timeout,
        )

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
        return self._pages(
            tx, self.inner.find, reverse=reverse, limit=limit, timeout=timeout, **index
        )


class ReliableQueue(OpenCollection[AsyncQueue[V]], Generic[V]):
    """A durable queue. Open it with `state.queue(...)`."""

    def enqueue(self, tx: Transaction, value: V, *, timeout: float | None = None) -> None:
        """Add a value at the end; other transactions see it after the commit."""
        self._perform(tx, self.inner.enqueue, value, timeout=timeout)

    def dequeue(
        self,
        tx: Transaction,
        default: D | None = None,
        *,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> V | D | None:
        """Remove and return the first value; `default` if there is none after `wait` seconds."""
        return self._perform(tx, self.inner.dequeue, default, wait=wait, timeout=timeout)

    def dequeue_many(
        self, tx: Transaction, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        return self._perform(tx, self.inner.dequeue_many, count, wait=wait, timeout=timeout)

    def peek(
        self,
        tx: Transaction | Snapshot,
        default: D | None = None,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> V | D | None:
        """Return the first value without removing it; `default` if there is none."""
        return self._perform(tx, self.inner.peek, default, lock=lock, timeout=timeout)

    def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of values, in constant time."""
        return self._perform(tx, self.inner.count, timeout=timeout)

    def items(
        self,
        tx: Transaction | Snapshot,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[V]:
        """Yield the values from first to last, then those that this transaction added."""
        return self._pages(tx, self.inner.items, limit=limit, timeout=timeout)

    def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove all values, in the given transaction or in a new one."""
        if tx is None:
            self._thread.run(self.inner.clear(None, timeout=timeout))
        else:
            self._perform(tx, self.inner.clear, timeout=timeout)


class ReliableConcurrentQueue(OpenCollection[AsyncConcurrentQueue[V]], Generic[V]):
    """A durable queue for many consumers. Open it with `state.concurrent_queue(...)`."""

    def enqueue(
        self, tx: Transaction, value: V, *, delay: float = 0.0, timeout: float | None = None
    ) -> None:
        """Add a value; it becomes visible `delay` seconds after the commit."""
        self._perform(tx, self.inner.enqueue, value, delay=delay, timeout=timeout)

    def dequeue(
        self,
        tx: Transaction,
        default: D | None = None,
        *,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> V | D | None:
        """Remove and return a value; `default` if there is none after `wait` seconds."""
        return self._perform(tx, self.inner.dequeue, default, wait=wait, timeout=timeout)

    def dequeue_many(
        self, tx: Transaction, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        return self._perform(tx, self.inner.dequeue_many, count, wait=wait, timeout=timeout)

    def receive(
        self,
        tx: Transaction,
        count: int = 1,
        *,
        visibility: float,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> list[Delivery[V]]:
        """Return up to `count` items and hide them for `visibility` seconds after the commit.

        An item becomes visible again unless `complete` is called within this time.
        """
        return self._perform(
            tx, self.inner.receive, count, visibility=visibility, wait=wait, timeout=timeout
        )

    def complete(
        self, tx: Transaction, delivery: Delivery[V], *, timeout: float | None = None
    ) -> bool:
        """Remove a received item; return False if it was received again since."""
        return self._perform(tx, self.inner.complete, delivery, timeout=timeout)

    def release(
        self,
        tx: Transaction,
        delivery: Delivery[V],
        *,
        delay: float = 0.0,
        timeout: float | None = None,
    ) -> bool:
        """Make a received item visible after `delay` seconds; False if it was received since."""
        return self._perform(tx, self.inner.release, delivery, delay=delay, timeout=timeout)

    def peek(
        self,
        tx: Transaction | Snapshot,
        default: D | None = None,
        *,
        timeout: float | None = None,
    ) -> V | D | None:
        """Return a visible value without locking it; `default` if there is none."""
        return self._perform(tx, self.inner.peek, default, timeout=timeout)

    def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of committed items, including hidden ones."""
        return self._perform(tx, self.inner.count, timeout=timeout)

    def items(
        self,
        tx: Transaction | Snapshot,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[V]:
        """Yield the committed visible values in the order of their commits."""
        return self._pages(tx, self.inner.items, limit=limit, timeout=timeout)

    def returned(self, delivery_position: int) -> int:
        """Return how often aborted transactions returned an item, in this process."""
        return self._thread.call(lambda: self.inner.returned(delivery_position))

    def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove all items, in the given transaction or in a new one."""
        if tx is None:
            self._thread.run(self.inner.clear(None, timeout=timeout))
        else:
            self._perform(tx, self.inner.clear, timeout=timeout)


class StateManager(OpenState):
    """One partition's state. Open it with `open_state`.

    Any number of threads may use it, each with its own transactions.
    """

    # --- role and life cycle --------------------------------------------------------------

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

    def wait_primary(self, timeout: float = 30.0) -> bool:
        """Wait until this replica is the primary; return False if it is not within the time."""
        return self._thread.run(self._inner.wait_primary(timeout))

    def step_down(self) -> None:
        """Let another replica become primary; does nothing on a local state."""
        self._thread.run(self._inner.step_down())

    def set_mutation_check(self, mode: str) -> None:
        """Set how often values are checked: on, sample (one transaction in 100) or off."""
        self._thread.call(lambda: self._inner.set_mutation_check(mode))

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
    ) -> ReliableDictionary[K, V]:
        """Open a dictionary, creating it (in a transaction of its own) if it is new.

        `indexes` are functions of the value that return a key, a list of keys or None; they are
        built before this returns. `ttl` is the time to live of values, in seconds. `upcasts` are
        functions marked with `@upcast` (and `@downcast`) that convert older versions to newer.
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
    ) -> ReliableQueue[V]:
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
    ) -> ReliableConcurrentQueue[V]:
        """Open a queue for many concurrent consumers, creating it if it is new."""
        inner = self._thread.run(
            self._inner.concurrent_queue(
                name, value=value, version=version, upcasts=upcasts, mutable=mutable
            )
        )
        return ReliableConcurrentQueue(self._thread, inner)

    def collections(self) -> list[Opened]:
        """List all collections of the state, by name."""
        return self._thread.call(self._inner.collections)

    def drop(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a collection and its content; waits for the transactions that use it."""
        self._thread.run(self._inner.drop(name, timeout=timeout))

    def promote_schema(self, name: str, version: int) -> None:
        """Let every replica write a schema version from now on, by a record in the log.

        Refused while a live replica cannot read the version.
        """
        self._thread.run(self._inner.promote_schema(name, version))

    def rewrite(self, collection: ReliableDictionary[Any, Any], *, batch: int = 500) -> int:
        """Convert all rows of older versions now, in small transactions; return their number."""
        return self._thread.run(self._inner.rewrite(collection.inner, batch=batch))

    def read_at_least(self, sequence: int, *, timeout: float = 10.0) -> None:
        """Wait until this replica has applied a sequence: read your writes on a secondary."""
        self._thread.run(self._inner.read_at_least(sequence, timeout=timeout))

    def outcome(self, idempotency_key: str, result_type: Any = Any) -> Committed[Any] | None:
        """Return what a run with this key has committed, None if nothing (or too long ago)."""
        return self._thread.run(self._inner.outcome(idempotency_key, result_type))

    # --- checkpoints, backups and feeds ---------------------------------------------------

    def checkpoint(self) -> int:
        """Write a checkpoint now and truncate the log; return its sequence."""
        return self._thread.run(self._inner.checkpoint())

    def backup(
        self,
        folder: Folder,
        *,
        incremental: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backup:
        """Back up the state into a folder while commits continue.

        An incremental backup contains what was committed since the newest one in the folder.
        """
        return self._thread.run(
            self._inner.backup(folder, incremental=incremental, progress=progress)
        )


def open_state(  # noqa: PLR0913 - by keyword
    where: str | os.PathLike[str] | Sequence[str],
    *,
    partition: str | None = None,
    replicas: int = 3,
    folder: str | os.PathLike[str] | None = None,
    durability: Durability = "full",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    on_data_loss: OnDataLoss | None = None,
    address: str = "",
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> StateManager:
    """Open the state in a folder, or one partition on NATS ("nats://host:4222", or several).

    On NATS, `partition` is its name, `replicas` the number of nodes that store each record, and
    `folder` is where this replica stores its checkpoints (without one it starts with a full copy).
    `durability="fast"` returns before the disk has synced: a power failure may lose the last
    commits. `on_data_loss` is called to restore a backup if the stored state is damaged. `address`
    is the address of this replica in the errors of other replicas; `monitor` has the monitoring
    addresses of the nodes if they are not at the client port + 4000; `connect_options` are passed
    to nats-py.

    The state is open when this returns, and closed by `with`, by `close()`, or at the end of the
    program. Open it after a fork, never before: in a worker of the server, not where the server
    loads your code.
    """
    block = functools.partial(
        opening.open_state,
        where,
        partition=partition,
        replicas=replicas,
        folder=folder,
        durability=durability,
        checkpoint_bytes=checkpoint_bytes,
        address=address,
        monitor=monitor,
        connect_options=connect_options,
        clock=clock,
    )
    return open_block(StateManager, block, on_data_loss)
