"""ReliableConcurrentQueue: many producers and consumers at once, in nearly the order of commits.

    row    position -> visible from, ticks, 8 bytes | deliveries, 4 bytes | stored value

A dequeue hides an item from other transactions at once; the commit removes it, an abort returns
it to the front. For work that outlives a transaction, `receive` hides an item for a time and
counts its deliveries durably: `complete` removes it, otherwise it becomes visible again.
"""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from partita.errors import PartitaError
from partita.reliable.collections.enumeration import ReadView, scan, snapshot_view
from partita.reliable.collections.queue import Arrivals, stage_all
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import (
    Transaction,
    Transactions,
    Workspace,
    refuse_snapshot,
)
from partita.reliable.state.locks import LockMode
from partita.reliable.state.state import POSITION_BYTES, Collection
from partita.reliable.values import limits
from partita.reliable.values.arguments import checked_count, checked_limit, checked_timeout
from partita.reliable.values.serialization import ValueCodec
from partita.ticks import TICKS_PER_SECOND

V = TypeVar("V")
D = TypeVar("D")

STALE_MIN = 1_024
"""Entries of removed items are kept up to this many plus twice the number of items."""
_VISIBLE_BYTES = 8
HEADER_BYTES = 12
"""The bytes before the stored value in a row."""


class Delivery(msgspec.Struct, Generic[V], frozen=True):
    """An item that `receive` has hidden; `deliveries` includes this one."""

    value: V
    position: int
    deliveries: int
    visible_again: int
    """Wall clock in ticks when others can receive it; also identifies this delivery."""


class ReliableConcurrentQueue(Generic[V]):
    """A durable queue for many consumers. Open it with `state.concurrent_queue(...)`."""

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
        self._taken: dict[bytes, str] = {}
        self._returned: dict[bytes, int] = {}
        """How often an abort returned an item, in this process."""
        self._ready: list[bytes] = []
        self._hidden: list[tuple[int, bytes]] = []
        for key, row in collection.rows.values.items():
            self._offer(key, row)

    @property
    def auto(self) -> "AutoConcurrentQueue[V]":
        """The same operations without a transaction block: each is a transaction of its own."""
        return AutoConcurrentQueue(self._state, self)

    async def enqueue(
        self, tx: Transaction, value: V, *, delay: float = 0.0, timeout: float | None = None
    ) -> None:
        """Add a value; it becomes visible `delay` seconds after the commit."""
        seconds = _checked_delay(delay)
        space = await self._enter(tx, timeout)
        visible = tx.now + round(seconds * TICKS_PER_SECOND) if seconds else 0
        version = self.collection.description.written_version
        stored = self.codec.encode(value, version=version, stored=tx.origin_of(value, self.codec))
        tx.stage_enqueue(space, _row(visible, 0, stored))
        space.seen[len(space.seen).to_bytes(POSITION_BYTES)] = (stored, value)

    async def dequeue(
        self,
        tx: Transaction,
        default: D | None = None,
        *,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> V | D | None:
        """Remove and return a value; `default` if there is none after `wait` seconds."""
        taken = await self.dequeue_many(tx, 1, wait=wait, timeout=timeout)
        return taken[0] if taken else default

    async def dequeue_many(
        self, tx: Transaction, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        space, keys = await self._acquire(tx, count, wait, timeout)
        with self._giving_back(keys):
            rows = [self.collection.rows.values[key] for key in keys]
            values = [self.codec.decode(row[HEADER_BYTES:]) for row in rows]
            stage_all(tx, space, dict.fromkeys(keys))
        for value, row in zip(values, rows, strict=True):
            tx.note_origin(value, row[HEADER_BYTES:], self.codec)
        for key in keys:  # the consumer may change a value that it dequeued
            space.handed_out.pop(key, None)
        return values

    async def receive(
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
        seconds = _checked_delay(visibility)
        space, keys = await self._acquire(tx, count, wait, timeout)
        visible = tx.now + round(seconds * TICKS_PER_SECOND)
        deliveries = []
        rows: dict[bytes, bytes | None] = {}
        with self._giving_back(keys):
            for key in keys:
                row = self.collection.rows.values[key]
                number, stored = _deliveries(row) + 1, row[HEADER_BYTES:]
                rows[key] = _row(visible, number, stored)
                value = self.codec.decode(stored)
                tx.note_origin(value, stored, self.codec)
                deliveries.append(Delivery(value, int.from_bytes(key), number, visible))
            stage_all(tx, space, rows)
        return deliveries

    async def complete(
        self, tx: Transaction, delivery: Delivery[V], *, timeout: float | None = None
    ) -> bool:
        """Remove a received item; return False if it was received again since."""
        space, key = await self._own(tx, delivery, timeout)
        if key is None:
            return False
        self._stage_own(tx, space, key, None)
        return True

    async def release(
        self,
        tx: Transaction,
        delivery: Delivery[V],
        *,
        delay: float = 0.0,
        timeout: float | None = None,
    ) -> bool:
        """Make a received item visible after `delay` seconds; False if it was received since."""
        seconds = _checked_delay(delay)
        space, key = await self._own(tx, delivery, timeout)
        row = None if key is None else space.find(key)
        if key is None or row is None:
            return False
        visible = tx.now + round(seconds * TICKS_PER_SECOND)
        self._stage_own(tx, space, key, _row(visible, _deliveries(row), row[HEADER_BYTES:]))
        return True

    async def peek(
        self,
        tx: Transaction | Snapshot,
        default: D | None = None,
        *,
        timeout: float | None = None,
    ) -> V | D | None:
        """Return a visible value without locking it; `default` if there is none."""
        async for value in self.items(tx, limit=1, timeout=timeout):
            return value
        return default

    async def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of committed items, including hidden ones."""
        if isinstance(tx, Snapshot):
            tx.check_collection(self.collection)
            return self.collection.count(tx.sequence)
        await self._enter(tx, timeout)
        return self.collection.count(tx.snapshot.sequence)

    async def items(
        self,
        tx: Transaction | Snapshot,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[V]:
        """Yield the committed visible values in the order of their commits."""
        left = checked_limit(limit)
        space = None
        if isinstance(tx, Snapshot):
            view = snapshot_view(tx)
        else:
            space = await self._enter(tx, timeout)
            view = ReadView(tx.snapshot, tx.check)  # without own writes
        now, taken = view.snapshot.now, frozenset(self._taken)
        async for rows in scan(view, self.collection, b"", None, reverse=False):
            for key, row in rows:
                if left == 0:
                    return
                if _visible(row) <= now and key not in taken:
                    left -= 1
                    stored = row[HEADER_BYTES:]
                    value = self.codec.decode(stored)
                    if space is not None and self.codec.is_copied and isinstance(tx, Transaction):
                        tx.hand_out(space, key, stored, value)
                    yield value

    def returned(self, delivery_position: int) -> int:
        """Return how often aborted transactions returned an item, in this process."""
        return self._returned.get(delivery_position.to_bytes(POSITION_BYTES), 0)

    async def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove all items, in the given transaction or in a new one."""
        if tx is None:
            async with self._state.transaction() as own:
                await self.clear(own, timeout=timeout)
            return
        refuse_snapshot(tx)
        space = await tx.enter_to_clear(self, timeout)
        taken = list(space.writes)
        tx.stage_clear(space)
        self._give_back(taken)  # other transactions wait until this one ends

    # --- used by the transaction and the state --------------------------------------------

    def key_of(self, encoded: bytes) -> object:
        return int.from_bytes(encoded)

    def watch(self, _sequence: int, key: bytes, _old: bytes | None, new: bytes | None) -> None:
        """Note an applied change."""
        if new is not None:
            self._offer(key, new)
            self._forget_removed()
            self._arrivals.announce()
        elif key:
            self._returned.pop(key, None)
        else:
            self._returned.clear()

    def rebind(self, collection: Collection) -> None:
        """Use the rows of a full copy."""
        self.collection = collection
        self._taken.clear()
        self._returned.clear()
        self._ready.clear()
        self._hidden.clear()
        for key, row in collection.rows.values.items():
            self._offer(key, row)
        self._arrivals.announce()

    # --------------------------------------------------------------------------------------

    async def _enter(self, tx: Transaction, timeout: float | None) -> Workspace:
        refuse_snapshot(tx)
        space = tx.space(self, timeout) or await tx.enter(self, timeout)
        space.on_end = self._end
        return space

    def _end(self, space: Workspace, is_committed: bool) -> None:  # noqa: FBT001 - a callback
        """Return the items of an aborted transaction."""
        if is_committed:
            for key in space.writes:
                self._taken.pop(key, None)
            return
        for key in space.writes:
            if key in self._taken:
                self._returned[key] = self._returned.get(key, 0) + 1
        self._give_back(space.writes)

    async def _acquire(
        self, tx: Transaction, count: int, wait: float, timeout: float | None
    ) -> tuple[Workspace, list[bytes]]:
        count = checked_count(count)
        space = await self._enter(tx, timeout)
        deadline = asyncio.get_running_loop().time() + checked_timeout(wait)
        while True:
            tx.check_writable()
            keys = [] if space.is_cleared else self._take(tx, count)
            seconds = deadline - asyncio.get_running_loop().time()
            if keys or seconds <= 0 or count == 0:
                return space, keys
            await tx.pause(self._arrivals.expect(), min(seconds, self._next_visible(tx.now)))

    async def _own(
        self, tx: Transaction, delivery: Delivery[V], timeout: float | None
    ) -> tuple[Workspace, bytes | None]:
        """Return the key of a received item, None if it was received again since."""
        space = await self._enter(tx, timeout)
        key = delivery.position.to_bytes(POSITION_BYTES)
        await tx.lock(self, key, LockMode.EXCLUSIVE, timeout)
        row = space.find(key)
        mine = (delivery.visible_again, delivery.deliveries)
        if row is None or (_visible(row), _deliveries(row)) != mine:
            return space, None
        if self._taken.get(key, tx.id) != tx.id:
            return space, None
        self._taken[key] = tx.id  # it may become visible before the commit
        return space, key

    def _stage_own(self, tx: Transaction, space: Workspace, key: bytes, row: bytes | None) -> None:
        try:
            tx.stage(space, key, row)
        except PartitaError:
            if key not in space.writes:
                self._give_back([key])
            raise

    def _take(self, tx: Transaction, count: int) -> list[bytes]:
        now, values = tx.now, self.collection.rows.values
        while self._hidden and self._hidden[0][0] <= now:
            heapq.heappush(self._ready, heapq.heappop(self._hidden)[1])
        keys: list[bytes] = []
        while self._ready and len(keys) < count:
            key = heapq.heappop(self._ready)
            row = values.get(key)
            # An item may be here twice, or may have been taken or removed since.
            if row is None or key in self._taken:
                continue
            if _visible(row) > now:  # it was hidden again, or the clock went back
                heapq.heappush(self._hidden, (_visible(row), key))
                continue
            self._taken[key] = tx.id
            keys.append(key)
        return keys

    @contextlib.contextmanager
    def _giving_back(self, keys: list[bytes]) -> Iterator[None]:
        """Return the keys to the queue if the block raises."""
        try:
            yield
        except BaseException:
            self._give_back(keys)
            raise

    def _give_back(self, keys: Iterable[bytes]) -> None:
        is_returned = False
        for key in keys:
            if self._taken.pop(key, None) is not None:
                heapq.heappush(self._ready, key)
                is_returned = True
        if is_returned:
            self._arrivals.announce()

    def _next_visible(self, now: int) -> float:
        if not self._hidden:
            return float("inf")
        return max(self._hidden[0][0] - now, 0) / TICKS_PER_SECOND + 0.001

    def _forget_removed(self) -> None:
        """Drop the entries of removed items, which a secondary never takes from the heaps."""
        rows = self.collection.rows.values
        if len(self._ready) + len(self._hidden) > STALE_MIN + 2 * len(rows):
            self._ready.clear()
            self._hidden.clear()
            for key, row in rows.items():
                self._offer(key, row)

    def _offer(self, key: bytes, row: bytes) -> None:
        visible = _visible(row)
        if visible:
            heapq.heappush(self._hidden, (visible, key))
        else:
            heapq.heappush(self._ready, key)


class AutoConcurrentQueue(Generic[V]):
    """The operations of a concurrent queue without a transaction block.

    A value that is dequeued is removed at once; `receive` keeps it until `complete`. `jobs.auto`
    returns it.
    """

    def __init__(self, state: Transactions, owner: ReliableConcurrentQueue[V]) -> None:
        self._state = state
        self._owner = owner

    async def enqueue(self, value: V, *, delay: float = 0.0, timeout: float | None = None) -> None:
        """Add a value; it becomes visible after `delay` seconds."""
        async with self._state.transaction() as tx:
            await self._owner.enqueue(tx, value, delay=delay, timeout=timeout)

    async def dequeue(
        self, default: D | None = None, *, wait: float = 0.0, timeout: float | None = None
    ) -> V | D | None:
        """Remove and return a value; `default` if there is none after `wait` seconds."""
        async with self._state.transaction() as tx:
            return await self._owner.dequeue(tx, default, wait=wait, timeout=timeout)

    async def dequeue_many(
        self, count: int, *, wait: float = 0.0, timeout: float | None = None
    ) -> list[V]:
        """Remove and return up to `count` values; wait up to `wait` seconds for the first."""
        async with self._state.transaction() as tx:
            return await self._owner.dequeue_many(tx, count, wait=wait, timeout=timeout)

    async def receive(
        self,
        count: int = 1,
        *,
        visibility: float,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> list[Delivery[V]]:
        """Return up to `count` items and hide them for `visibility` seconds."""
        async with self._state.transaction() as tx:
            return await self._owner.receive(
                tx, count, visibility=visibility, wait=wait, timeout=timeout
            )

    async def complete(self, delivery: Delivery[V], *, timeout: float | None = None) -> bool:
        """Remove a received item; return False if it was received again since."""
        async with self._state.transaction() as tx:
            return await self._owner.complete(tx, delivery, timeout=timeout)

    async def release(
        self, delivery: Delivery[V], *, delay: float = 0.0, timeout: float | None = None
    ) -> bool:
        """Make a received item visible after `delay` seconds; False if it was received since."""
        async with self._state.transaction() as tx:
            return await self._owner.release(tx, delivery, delay=delay, timeout=timeout)

    async def peek(self, default: D | None = None) -> V | D | None:
        """Return a visible value without removing it; `default` if there is none."""
        async with self._state.snapshot() as snapshot:
            return await self._owner.peek(snapshot, default)

    async def count(self) -> int:
        """Return the number of items, including hidden ones."""
        async with self._state.snapshot() as snapshot:
            return await self._owner.count(snapshot)

    async def clear(self, *, timeout: float | None = None) -> None:
        """Remove all items."""
        await self._owner.clear(timeout=timeout)


def _checked_delay(delay: object) -> float:
    """Return the delay, at most the longest time to live."""
    return min(checked_timeout(delay), limits.TTL_SECONDS_MAX)


def _row(visible: int, deliveries: int, stored: bytes) -> bytes:
    return visible.to_bytes(_VISIBLE_BYTES) + deliveries.to_bytes(4) + stored


def _visible(row: bytes) -> int:
    return int.from_bytes(row[:_VISIBLE_BYTES])


def _deliveries(row: bytes) -> int:
    return int.from_bytes(row[_VISIBLE_BYTES:HEADER_BYTES])
