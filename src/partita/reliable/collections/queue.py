"""ReliableQueue: strict first in, first out, in the order of commits.

Positions are assigned when a record is applied, so that producers never wait for each other. One
transaction at a time may dequeue: it locks the head until it ends. A transaction that finds the
queue empty does not block producers.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Generic, TypeVar

from partita.reliable.collections import enumeration
from partita.reliable.collections.enumeration import scan, snapshot_view, transaction_view
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import (
    Transaction,
    Transactions,
    Workspace,
    refuse_snapshot,
)
from partita.reliable.state.locks import LockMode
from partita.reliable.state.state import POSITION_BYTES, Collection
from partita.reliable.values.arguments import checked_count, checked_limit, checked_timeout
from partita.reliable.values.serialization import ValueCodec

V = TypeVar("V")
D = TypeVar("D")

HEAD = b"head"
"""The key of the lock on the head; its length differs from that of a position."""

WAKE_AT_ONCE = 512
"""Waiting dequeues that are woken in one turn of the event loop."""


class Arrivals:
    """The dequeues that wait for a value, in the order in which they began to wait."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def expect(self) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        future.add_done_callback(lambda done: self._waiting.pop(done, None))
        return future

    def announce(self) -> None:
        """Wake all that wait now, WAKE_AT_ONCE in each turn of the event loop."""
        waiting, self._waiting = self._waiting, {}
        if waiting:
            _wake_some(iter(waiting))


def _wake_some(waiting: "Iterator[asyncio.Future[None]]") -> None:
    woken = list(itertools.islice(waiting, WAKE_AT_ONCE))
    for future in woken:
        if not future.done():
            future.set_result(None)
    if len(woken) == WAKE_AT_ONCE:
        asyncio.get_running_loop().call_soon(_wake_some, waiting)


class ReliableQueue(Generic[V]):
    """A durable queue. Open it with `state.queue(...)`."""

    cache = None
    index_operations = None
    keeps_every_change = False

    def __init__(
        self, state: Transactions, collection: Collection, *, values: ValueCodec[V]
    ) -> None:
        self._state = state
        self.name = collection.description.name
        self.collection = collection
        self.codec = values
        self._arrivals = Arrivals()
        self._head = _first_position(collection)
        """There is no value before this position, and there will be none."""

    @property
    def auto(self) -> "AutoQueue[V]":
        """The same operations without a transaction block: each is a transaction of its own."""
        return AutoQueue(self._state, self)

    async def enqueue(self, tx: Transaction, value: V, *, timeout: float | None = None) -> None:
        """Add a value at the end; other transactions see it after the commit."""
        space = await self._enter(tx, timeout)
        version = self.collection.description.written_version
        stored = self.codec.encode(value, version=version, stored=tx.origin_of(value, self.codec))
        tx.stage_enqueue(space, stored)
        space.seen[len(space.seen).to_bytes(POSITION_BYTES)] = (stored, value)

    async def dequeue(
        self,
        tx: Transaction,
        default: D | None = None,
        *,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> V | D | None:
        """Remove and return the first value; `default` if there is none after `wait` seconds."""
        taken = await self.dequeue_many(tx, 1, wait=wait, timeout=timeout)
        return taken[0] if taken else default

    async def dequeue_many(
        self, tx: Transaction, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        count = checked_count(count)
        space = await self._enter(tx, timeout)
        deadline = asyncio.get_running_loop().time() + checked_timeout(wait)
        await tx.lock(self, HEAD, LockMode.EXCLUSIVE, timeout)
        while True:
            taken = self._take(tx, space, count)
            seconds = deadline - asyncio.get_running_loop().time()
            if taken or seconds <= 0 or count == 0:
                return taken
            await tx.pause(self._arrivals.expect(), seconds)

    async def peek(
        self,
        tx: Transaction | Snapshot,
        default: D | None = None,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> V | D | None:
        """Return the first value without removing it; `default` if there is none."""
        if isinstance(tx, Transaction) and tx.is_on_primary:
            space = await self._enter(tx, timeout)
            await tx.lock(self, HEAD, lock, timeout)
            for key in self._first(space, 1):
                return self._read(tx, space, key, self.collection.rows.values[key])
            for own in space.enqueued[:1]:
                return self._read(tx, space, _own_place(0), own)
            return default
        async for value in self.items(tx, limit=1, timeout=timeout):
            return value
        return default

    async def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of values, in constant time."""
        if isinstance(tx, Snapshot):
            tx.check_collection(self.collection)
            return self.collection.count(tx.sequence)
        space = await self._enter(tx, timeout)
        return await enumeration.count(tx, space) + len(space.enqueued)

    async def items(
        self,
        tx: Transaction | Snapshot,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[V]:
        """Yield the values from first to last, then those that this transaction added."""
        left = checked_limit(limit)
        enqueued: list[bytes] = []
        space = None
        if isinstance(tx, Snapshot):
            view = snapshot_view(tx)
        else:
            space = await self._enter(tx, timeout)
            view, enqueued = transaction_view(tx, space), list(space.enqueued)
        async for rows in scan(view, self.collection, b"", None, reverse=False):
            for key, stored in rows:
                if left == 0:
                    return
                left -= 1
                yield self._read(tx, space, key, stored)
        for index, stored in enumerate(enqueued):
            if left == 0:
                return
            left -= 1
            yield self._read(tx, space, _own_place(index), stored)

    async def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove all values, in the given transaction or in a new one."""
        if tx is None:
            async with self._state.transaction() as own:
                await self.clear(own, timeout=timeout)
            return
        refuse_snapshot(tx)
        tx.stage_clear(await tx.enter_to_clear(self, timeout))

    # --- used by the transaction and the state --------------------------------------------

    def key_of(self, encoded: bytes) -> object:
        return "the head" if encoded == HEAD else int.from_bytes(encoded[-POSITION_BYTES:])

    def watch(self, _sequence: int, key: bytes, _old: bytes | None, new: bytes | None) -> None:
        """Note an applied change: wake waiting dequeues, or advance the head."""
        if new is not None:
            self._arrivals.announce()
        elif key:
            self._head = key + b"\x00"  # values are removed in the order of their positions

    def rebind(self, collection: Collection) -> None:
        """Use the rows of a full copy."""
        self.collection = collection
        self._head = _first_position(collection)
        self._arrivals.announce()

    # --------------------------------------------------------------------------------------

    async def _enter(self, tx: Transaction, timeout: float | None) -> Workspace:
        refuse_snapshot(tx)
        return tx.space(self, timeout) or await tx.enter(self, timeout)

    def _first(self, space: Workspace, count: int) -> list[bytes]:
        """Return the first committed positions that this transaction has not dequeued.

        The rows contain dequeued positions as long as a snapshot sees them.
        """
        found: list[bytes] = []
        rows, step = self.collection.rows, count + len(space.writes)
        lower, is_front = self._head, True
        while len(found) < count and not space.is_cleared:
            keys = rows.between(lower, None, limit=step)
            for key in keys:
                if key in rows.values:
                    is_front = False
                    if key not in space.writes:
                        found.append(key)
                elif is_front:
                    self._head = key + b"\x00"
            if len(keys) < step:
                break
            lower = keys[-1] + b"\x00"
        return found[:count]

    def _take(self, tx: Transaction, space: Workspace, count: int) -> list[V]:
        tx.check_writable()
        keys = self._first(space, count)
        stored = [self.collection.rows.values[key] for key in keys]
        own = space.enqueued[: count - len(keys)]
        values = [self.codec.decode(one) for one in (*stored, *own)]
        stage_all(tx, space, dict.fromkeys(keys))
        del space.enqueued[: len(own)]
        for value, one in zip(values, (*stored, *own), strict=True):
            tx.note_origin(value, one, self.codec)
        for key in keys:  # the consumer may change a value that it dequeued
            space.handed_out.pop(key, None)
        return values

    def _read(
        self, tx: Transaction | Snapshot, space: Workspace | None, place: bytes, stored: bytes
    ) -> V:
        value = self.codec.decode(stored)
        if space is not None and self.codec.is_copied and isinstance(tx, Transaction):
            tx.hand_out(space, place, stored, value)
        return value


class AutoQueue(Generic[V]):
    """The operations of a queue without a transaction block: `await jobs.auto.enqueue(job)`.

    A value that is dequeued is removed at once: use a transaction to remove it together with the
    result of its work. `jobs.auto` returns it.
    """

    def __init__(self, state: Transactions, owner: ReliableQueue[V]) -> None:
        self._state = state
        self._owner = owner

    async def enqueue(self, value: V, *, timeout: float | None = None) -> None:
        """Add a value at the end."""
        async with self._state.transaction() as tx:
            await self._owner.enqueue(tx, value, timeout=timeout)

    async def dequeue(
        self, default: D | None = None, *, wait: float = 0.0, timeout: float | None = None
    ) -> V | D | None:
        """Remove and return the first value; `default` if there is none after `wait` seconds."""
        async with self._state.transaction() as tx:
            return await self._owner.dequeue(tx, default, wait=wait, timeout=timeout)

    async def dequeue_many(
        self, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        async with self._state.transaction() as tx:
            return await self._owner.dequeue_many(tx, count, wait=wait, timeout=timeout)

    async def peek(self, default: D | None = None) -> V | D | None:
        """Return the first value without removing it; `default` if there is none."""
        async with self._state.snapshot() as snapshot:
            return await self._owner.peek(snapshot, default)

    async def count(self) -> int:
        """Return the number of values."""
        async with self._state.snapshot() as snapshot:
            return await self._owner.count(snapshot)

    async def clear(self, *, timeout: float | None = None) -> None:
        """Remove all values."""
        await self._owner.clear(timeout=timeout)


def _own_place(index: int) -> bytes:
    """Return the key of a value that this transaction added, before it has a position."""
    return b"own" + index.to_bytes(POSITION_BYTES)


def _first_position(collection: Collection) -> bytes:
    """Return the position of the first value, now or later: rows are added in position order."""
    return next(iter(collection.rows.values), collection.tail.to_bytes(POSITION_BYTES))


def stage_all(tx: Transaction, space: Workspace, rows: Mapping[bytes, bytes | None]) -> None:
    """Stage every row or none: a value that is not returned must stay in the queue."""
    tx.check_room(len(rows), sum(len(key) + len(row or b"") for key, row in rows.items()))
    for key, row in rows.items():
        tx.stage(space, key, row)
