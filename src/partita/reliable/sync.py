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
    AutoOperations,
    OnDataLoss,
    OpenCollection,
    OpenState,
    RestoreContext,
    Snapshot,
    Transaction,
    open_block,
)
from partita.reliable.blocking_feed import ChangeFeed, OpenDictionary
from partita.reliable.blocking_service import Service, open_service_block, restore_state
from partita.reliable.collections.concurrent_queue import (
    AutoConcurrentQueue as AsyncAutoConcurrentQueue,
)
from partita.reliable.collections.concurrent_queue import Delivery
from partita.reliable.collections.concurrent_queue import (
    ReliableConcurrentQueue as AsyncConcurrentQueue,
)
from partita.reliable.collections.dictionary import NO_DEFAULT, Missing, NoDefault, Versioned
from partita.reliable.collections.dictionary import AutoDictionary as AsyncAutoDictionary
from partita.reliable.collections.dictionary import ReliableDictionary as AsyncDictionary
from partita.reliable.collections.indexes import Index, IndexFunction
from partita.reliable.collections.queue import AutoQueue as AsyncAutoQueue
from partita.reliable.collections.queue import ReliableQueue as AsyncQueue
from partita.reliable.collections.retry import Committed
from partita.reliable.manager.backup import Backup, Folder
from partita.reliable.manager.declared import ConcurrentQueue, Dictionary, Queue
from partita.reliable.manager.housekeeping import CHECKPOINT_BYTES
from partita.reliable.manager.notices import CollectionNotice, Commit
from partita.reliable.manager.open_collections import Opened
from partita.reliable.opening import Durability
from partita.reliable.service import service
from partita.reliable.service.requests import Request
from partita.reliable.state.locks import LockMode
from partita.reliable.values.limits import Sizes
from partita.reliable.values.schema import Schema
from partita.ticks import Clock

__all__ = [
    "Attempt",
    "AutoConcurrentQueue",
    "AutoDictionary",
    "AutoQueue",
    "ChangeFeed",
    "OnDataLoss",
    "ReliableConcurrentQueue",
    "ReliableDictionary",
    "ReliableQueue",
    "RestoreContext",
    "Service",
    "Snapshot",
    "StateManager",
    "Transaction",
    "open_service",
    "open_state",
    "restore_state",
]

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class ReliableDictionary(OpenDictionary[K, V]):
    """A durable dictionary. Open it with `state.dictionary(...)`.

    Every operation takes a transaction; reads also accept a snapshot.
    """

    @property
    def auto(self) -> "AutoDictionary[K, V]":
        """The same operations without a transaction block: each is a transaction of its own."""
        return AutoDictionary(self._thread, self.inner.auto)

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

    @overload
    def get_versioned(
        self,
        tx: Transaction | Snapshot,
        key: K,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> Versioned[V]: ...
    @overload
    def get_versioned(
        self,
        tx: Transaction | Snapshot,
        key: K,
        default: D,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> Versioned[V] | D: ...
    def get_versioned(
        self,
        tx: Transaction | Snapshot,
        key: K,
        default: D | NoDefault = NO_DEFAULT,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> Versioned[V] | D:
        """Return the value and its version, for a later `set` or `delete` with `if_version`.

        Versions are kept from the first call of this method on a dictionary, by a record in the
        log; rows that were written before have the sequence of that record as their version.
        """
        return cast(
            "Versioned[V] | D",
            self._perform(tx, self.inner.get_versioned, key, default, lock=lock, timeout=timeout),
        )

    # --- writing --------------------------------------------------------------------------

    def set(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        if_version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write the value, whether the key exists or not.

        With `if_version` (of `get_versioned`) the row must have that version, otherwise
        VersionConflictError is raised and nothing is written.
        """
        self._perform(
            tx, self.inner.set, key, value, if_version=if_version, ttl=ttl, timeout=timeout
        )

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
        default: V | Callable[[], V],
        update: Callable[[V], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Write `default` for a new key, `update(value)` for an existing one; return the value.

        `default` may be a function, which is called only for a new key. Both functions run while
        the key is locked. `update` must return a new object and not change the given one.

        They are called in the thread of the state: they must be quick, and must not use the state.
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
        *old_form: V | Missing,
        expected: V | Missing | NoDefault = NO_DEFAULT,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write the value if the key has the `expected` value (MISSING: if the key is absent).

        Values are compared in their stored form: they are equal if all fields are equal. Pass
        `expected` by keyword; by position it is accepted for one more version.
        """
        return self._perform(
            tx,
            self.inner.compare_and_set,
            key,
            value,
            *old_form,
            expected=expected,
            ttl=ttl,
            timeout=timeout,
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

    def delete(
        self,
        tx: Transaction,
        key: K,
        *,
        if_version: int | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Remove the key; return False if it was absent.

        With `if_version` the row must exist and have that version: VersionConflictError.
        """
        return self._perform(tx, self.inner.delete, key, if_version=if_version, timeout=timeout)

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


class AutoDictionary(AutoOperations[AsyncAutoDictionary[K, V]], Generic[K, V]):
    """The operations of a dictionary without a transaction: `users.auto.set(key, user)`.

    Each write is one transaction; each read is a snapshot, which waits for no lock. To combine
    several operations, use a transaction. `users.auto` returns it.
    """

    @overload
    def get(self, key: K) -> V: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | NoDefault = NO_DEFAULT) -> V | D:
        """Return the value; `default` for an absent key, or KeyNotFoundError without one."""
        return cast("V | D", self._thread.run(self.inner.get(key, default)))

    @overload
    def get_versioned(self, key: K) -> Versioned[V]: ...
    @overload
    def get_versioned(self, key: K, default: D) -> Versioned[V] | D: ...
    def get_versioned(self, key: K, default: D | NoDefault = NO_DEFAULT) -> Versioned[V] | D:
        """Return the value and its version, for a later write with `if_version`."""
        return cast("Versioned[V] | D", self._thread.run(self.inner.get_versioned(key, default)))

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the keys that exist."""
        return self._thread.run(self.inner.get_many(list(keys)))

    def contains(self, key: K) -> bool:
        """Return whether the key exists."""
        return self._thread.run(self.inner.contains(key))

    def count(self) -> int:
        """Return the number of keys."""
        return self._thread.run(self.inner.count())

    def set(
        self,
        key: K,
        value: V,
        *,
        if_version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write the value, whether the key exists or not; with `if_version` as in a transaction."""
        self._thread.run(
            self.inner.set(key, value, if_version=if_version, ttl=ttl, timeout=timeout)
        )

    def add(
        self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None
    ) -> None:
        """Write a new key; KeyExistsError if it exists."""
        self._thread.run(self.inner.add(key, value, ttl=ttl, timeout=timeout))

    def try_add(
        self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None
    ) -> bool:
        """Write a new key and return True; False if it exists."""
        return self._thread.run(self.inner.try_add(key, value, ttl=ttl, timeout=timeout))

    def upsert(
        self,
        key: K,
        default: V | Callable[[], V],
        update: Callable[[V], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Write `default` for a new key, `update(value)` for an existing one; return the value.

        They are called in the thread of the state: they must be quick, and must not use the state.
        """
        return self._thread.run(self.inner.upsert(key, default, update, ttl=ttl, timeout=timeout))

    def get_or_add(
        self,
        key: K,
        value: V | Callable[[], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Return the value of the key; write `value` (or what it returns) first if it is new."""
        return self._thread.run(self.inner.get_or_add(key, value, ttl=ttl, timeout=timeout))

    def compare_and_set(
        self,
        key: K,
        value: V,
        *,
        expected: V | Missing,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write the value if the key has the `expected` value (MISSING: if the key is absent)."""
        return self._thread.run(
            self.inner.compare_and_set(key, value, expected=expected, ttl=ttl, timeout=timeout)
        )

    @overload
    def pop(self, key: K, *, timeout: float | None = ...) -> V: ...
    @overload
    def pop(self, key: K, default: D, *, timeout: float | None = ...) -> V | D: ...
    def pop(
        self, key: K, default: D | NoDefault = NO_DEFAULT, *, timeout: float | None = None
    ) -> V | D:
        """Remove the key and return its value; `default`, or KeyNotFoundError, if it is absent."""
        return cast("V | D", self._thread.run(self.inner.pop(key, default, timeout=timeout)))

    def delete(
        self, key: K, *, if_version: int | None = None, timeout: float | None = None
    ) -> bool:
        """Remove the key; return False if it was absent."""
        return self._thread.run(self.inner.delete(key, if_version=if_version, timeout=timeout))

    def clear(self, *, timeout: float | None = None) -> None:
        """Remove all keys."""
        self._thread.run(self.inner.clear(timeout=timeout))


class ReliableQueue(OpenCollection[AsyncQueue[V]], Generic[V]):
    """A durable queue. Open it with `state.queue(...)`."""

    @property
    def auto(self) -> "AutoQueue[V]":
        """The same operations without a transaction block: each is a transaction of its own."""
        return AutoQueue(self._thread, self.inner.auto)

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


class AutoQueue(AutoOperations[AsyncAutoQueue[V]], Generic[V]):
    """The operations of a queue without a transaction block: `jobs.auto.enqueue(job)`.

    A value that is dequeued is removed at once: use a transaction to remove it together with the
    result of its work. `jobs.auto` returns it.
    """

    def enqueue(self, value: V, *, timeout: float | None = None) -> None:
        """Add a value at the end."""
        self._thread.run(self.inner.enqueue(value, timeout=timeout))

    def dequeue(
        self, default: D | None = None, *, wait: float = 0.0, timeout: float | None = None
    ) -> V | D | None:
        """Remove and return the first value; `default` if there is none after `wait` seconds."""
        return self._thread.run(self.inner.dequeue(default, wait=wait, timeout=timeout))

    def dequeue_many(
        self, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        return self._thread.run(self.inner.dequeue_many(count, wait=wait, timeout=timeout))

    def peek(self, default: D | None = None) -> V | D | None:
        """Return the first value without removing it; `default` if there is none."""
        return self._thread.run(self.inner.peek(default))

    def count(self) -> int:
        """Return the number of values."""
        return self._thread.run(self.inner.count())

    def clear(self, *, timeout: float | None = None) -> None:
        """Remove all values."""
        self._thread.run(self.inner.clear(timeout=timeout))


class AutoConcurrentQueue(AutoOperations[AsyncAutoConcurrentQueue[V]], Generic[V]):
    """The operations of a concurrent queue without a transaction block.

    A value that is dequeued is removed at once; `receive` keeps it until `complete`. `jobs.auto`
    returns it.
    """

    def enqueue(self, value: V, *, delay: float = 0.0, timeout: float | None = None) -> None:
        """Add a value; it becomes visible after `delay` seconds."""
        self._thread.run(self.inner.enqueue(value, delay=delay, timeout=timeout))

    def dequeue(
        self, default: D | None = None, *, wait: float = 0.0, timeout: float | None = None
    ) -> V | D | None:
        """Remove and return a value; `default` if there is none after `wait` seconds."""
        return self._thread.run(self.inner.dequeue(default, wait=wait, timeout=timeout))

    def dequeue_many(
        self, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        return self._thread.run(self.inner.dequeue_many(count, wait=wait, timeout=timeout))

    def receive(
        self,
        count: int = 1,
        *,
        visibility: float,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> list[Delivery[V]]:
        """Return up to `count` items and hide them for `visibility` seconds."""
        return self._thread.run(
            self.inner.receive(count, visibility=visibility, wait=wait, timeout=timeout)
        )

    def complete(self, delivery: Delivery[V], *, timeout: float | None = None) -> bool:
        """Remove a received item; return False if it was received again since."""
        return self._thread.run(self.inner.complete(delivery, timeout=timeout))

    def release(
        self, delivery: Delivery[V], *, delay: float = 0.0, timeout: float | None = None
    ) -> bool:
        """Make a received item visible after `delay` seconds; False if it was received since."""
        return self._thread.run(self.inner.release(delivery, delay=delay, timeout=timeout))

    def peek(self, default: D | None = None) -> V | D | None:
        """Return a visible value without removing it; `default` if there is none."""
        return self._thread.run(self.inner.peek(default))

    def count(self) -> int:
        """Return the number of items, including hidden ones."""
        return self._thread.run(self.inner.count())

    def clear(self, *, timeout: float | None = None) -> None:
        """Remove all items."""
        self._thread.run(self.inner.clear(timeout=timeout))


class ReliableConcurrentQueue(OpenCollection[AsyncConcurrentQueue[V]], Generic[V]):
    """A durable queue for many consumers. Open it with `state.concurrent_queue(...)`."""

    @property
    def auto(self) -> "AutoConcurrentQueue[V]":
        """The same operations without a transaction block: each is a transaction of its own."""
        return AutoConcurrentQueue(self._thread, self.inner.auto)

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

    @overload
    def open(
        self, declared: Dictionary[K, V], *, tx: Transaction | None = None
    ) -> ReliableDictionary[K, V]: ...
    @overload
    def open(
        self, declared: ConcurrentQueue[V], *, tx: Transaction | None = None
    ) -> ReliableConcurrentQueue[V]: ...
    @overload
    def open(self, declared: Queue[V], *, tx: Transaction | None = None) -> ReliableQueue[V]: ...
    def open(
        self,
        declared: Dictionary[K, V] | Queue[V] | ConcurrentQueue[V],
        *,
        tx: Transaction | None = None,
    ) -> ReliableDictionary[K, V] | ReliableQueue[V] | ReliableConcurrentQueue[V]:
        """Open a declared collection: `users = state.open(USERS)`.

        A new one is created in a transaction of its own, or in the given one: then it exists only
        there until the commit, and an abort leaves nothing.
        """
        inner: object = self._within(tx, self._inner.open, declared)
        if isinstance(inner, AsyncQueue):
            return ReliableQueue(self._thread, inner)
        if isinstance(inner, AsyncConcurrentQueue):
            return ReliableConcurrentQueue(self._thread, inner)
        assert isinstance(inner, AsyncDictionary)
        return ReliableDictionary(self._thread, inner)

    @overload
    def dictionary(
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
    def dictionary(
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
    def dictionary(  # noqa: PLR0913 - by keyword
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

    @overload
    def queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableQueue[V]: ...
    @overload
    def queue(
        self,
        name: str,
        *,
        value: object,
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableQueue[Any]: ...
    def queue(
        self,
        name: str,
        *,
        value: Any,
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> ReliableQueue[Any]:
        """Open a queue with strict order by its options, as `open(Queue(...))` does."""
        inner = self._thread.run(
            self._inner.queue(name, value=value, version=version, upcasts=upcasts, mutable=mutable)
        )
        return ReliableQueue(self._thread, inner)

    @overload
    def concurrent_queue(
        self,
        name: str,
        *,
        value: type[V],
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableConcurrentQueue[V]: ...
    @overload
    def concurrent_queue(
        self,
        name: str,
        *,
        value: object,
        version: int | Schema = ...,
        upcasts: Sequence[Callable[..., Any]] = ...,
        mutable: Literal["refuse", "copy"] = ...,
    ) -> ReliableConcurrentQueue[Any]: ...
    def concurrent_queue(
        self,
        name: str,
        *,
        value: Any,
        version: int | Schema = 1,
        upcasts: Sequence[Callable[..., Any]] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
    ) -> ReliableConcurrentQueue[Any]:
        """Open a queue for many consumers by its options, as `open(ConcurrentQueue(...))` does."""
        inner = self._thread.run(
            self._inner.concurrent_queue(
                name, value=value, version=version, upcasts=upcasts, mutable=mutable
            )
        )
        return ReliableConcurrentQueue(self._thread, inner)

    def collections(self) -> list[Opened]:
        """List all collections of the state, by name."""
        return self._thread.call(self._inner.collections)

    def drop(
        self, name: str, *, tx: Transaction | None = None, timeout: float | None = None
    ) -> None:
        """Remove a collection and its content; waits for the transactions that use it.

        With `tx` it is removed by the commit of that transaction.
        """
        self._within(tx, self._inner.drop, name, timeout=timeout)

    def promote_schema(self, name: str, version: int) -> None:
        """Let every replica write a schema version from now on, by a record in the log.

        Refused while a live replica cannot read the version.
        """
        self._thread.run(self._inner.promote_schema(name, version))

    def readable_versions(self) -> dict[str, int]:
        """Return the newest schema version of each open collection that this code can read."""
        return self._thread.call(self._inner.readable_versions)

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

    def on_commit(self, function: Callable[[Commit], object]) -> Callable[[], None]:
        """Call `function(commit)` for every record that is applied here; return how to stop it.

        It is called before the commit returns, in the order of the log, on the primary and on
        secondaries. It is an ordinary function and must be quick; its exceptions are logged.

        It is called in the thread of the state and must not use the state.
        """
        return self._thread.call(lambda: self._inner.on_commit(function))

    def on_collections(self, function: Callable[[CollectionNotice], object]) -> Callable[[], None]:
        """Call `function(notice)` when a collection is added or dropped; return how to stop it.

        After a full copy the notice is `rebuilt`. Otherwise as `on_commit`.
        """
        return self._thread.call(lambda: self._inner.on_collections(function))


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
    sizes: Sizes = Sizes(),  # noqa: B008 - frozen
    clock: Clock | None = None,
) -> StateManager:
    """Open the state in a folder, or one partition on NATS ("nats://host:4222", or several).

    ":memory:" opens a new, empty state that ends when it is closed, for tests.

    On NATS, `partition` is its name, `replicas` the number of nodes that store each record, and
    `folder` is where this replica stores its checkpoints (without one it starts with a full copy).
    `durability="fast"` returns before the disk has synced: a power failure may lose the last
    commits. `on_data_loss` is called to restore a backup if the stored state is damaged. `address`
    is the address of this replica in the errors of other replicas; `monitor` has the monitoring
    addresses of the nodes if they are not at the client port + 4000; `connect_options` are passed
    to nats-py. `sizes` are the largest records and transactions.

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
        sizes=sizes,
        clock=clock,
    )
    return open_block(StateManager, block, on_data_loss)


OnOpened = Callable[[StateManager], None]
Handle = Callable[[StateManager, Request], bytes]


def open_service(  # noqa: PLR0913 - by keyword
    where: str | Sequence[str],
    name: str,
    *,
    partitions: int | None = None,
    replicas: int = 3,
    folder: str | os.PathLike[str] | None = None,
    opened: OnOpened | None = None,
    handle: Handle | None = None,
    holds: bool = True,
    address: str = "",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Service[StateManager]:
    """Join a service with `partitions` states on NATS, and create it if it is new.

    The numbers of partitions and replicas are fixed when the service is created. Each partition
    is held by `replicas` of the processes that have joined (by all of them if there are fewer),
    and its log by as many nodes. `folder` belongs to this process; each partition has a folder
    in it.

    `opened(state)` is awaited for every state that this process holds before it serves: open the
    collections there and do nothing else, since it is called again if they do not exist yet.
    `handle(state, request)` answers the requests of `service.request` on the primary of the key.
    A process with `holds=False` only sends requests and need not know the number of partitions.

    `opened` and `handle` are ordinary functions and are called in other threads. The process has
    joined when this returns, and leaves by `with`, by `close()`, or at the end of the program.
    """
    block = functools.partial(
        service.open_service,
        where,
        name,
        partitions=partitions,
        replicas=replicas,
        folder=folder,
        holds=holds,
        address=address,
        checkpoint_bytes=checkpoint_bytes,
        monitor=monitor,
        connect_options=connect_options,
        clock=clock,
    )
    return open_service_block(StateManager, block, opened, handle)
