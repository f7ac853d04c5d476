"""ReliableDictionary: typed keys and values on the rows of a collection, under key locks.

A single read takes a shared lock and is repeatable. A write takes the exclusive lock; its own
transaction sees it at once, others after the commit. Enumerations and counts read a snapshot,
combined with the transaction's own writes. Reads of a snapshot take no locks. The file is long
because it implements the operations of a standard type.
"""

import asyncio
import contextlib
import enum
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, overload

import msgspec

from partita.errors import KeyExistsError, KeyNotFoundError, UsageError
from partita.reliable.collections import enumeration
from partita.reliable.collections.change_feed import ChangeFeed
from partita.reliable.collections.enumeration import ReadView, scan, snapshot_view, transaction_view
from partita.reliable.collections.indexes import IndexView
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import (
    Transaction,
    Transactions,
    Workspace,
    refuse_snapshot,
)
from partita.reliable.state.locks import LockMode
from partita.reliable.state.records import Alter, Operation
from partita.reliable.state.state import Collection, encode_description
from partita.reliable.values.arguments import checked_limit, checked_timeout, checked_ttl
from partita.reliable.values.key_codec import KeyCodec
from partita.reliable.values.serialization import (
    ValueCache,
    ValueCodec,
    stored_expiry,
    stored_version,
)
from partita.ticks import TICKS_PER_SECOND

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

STALE_EXPIRIES_MIN = 1_024
"""Expiries of overwritten rows are kept up to this many plus the number of rows."""
EXPIRES = 0x80
"""The bit of a stored value's first byte that says it has an expiry."""


class Missing(enum.Enum):
    """The type of MISSING, which means "no value" where None may be a value."""

    MISSING = "MISSING"


class NoDefault(enum.Enum):
    """The type of NO_DEFAULT: the caller passed no default. MISSING is an ordinary default."""

    NO_DEFAULT = "NO_DEFAULT"


MISSING: Final = Missing.MISSING
NO_DEFAULT: Final = NoDefault.NO_DEFAULT


class DictionaryState(Transactions, Protocol):
    """What a dictionary needs of its state."""

    async def build_index(self, owner: "ReliableDictionary[Any, Any]", view: IndexView) -> None: ...

    def feed(self, dictionary: "ReliableDictionary[K, V]", since: int) -> ChangeFeed[K, V]: ...


class ReliableDictionary(Generic[K, V]):
    """A durable dictionary. Open it with `state.dictionary(...)`.

    Every operation takes a transaction; reads also accept a snapshot.
    """

    def __init__(
        self,
        state: DictionaryState,
        collection: Collection,
        *,
        keys: KeyCodec[K],
        values: ValueCodec[V],
        ttl: float | None,
        is_copied: bool,
    ) -> None:
        self._state = state
        self.name = collection.description.name
        self.collection = collection
        self._keys = keys
        self.codec = values
        self._ttl = checked_ttl(ttl)
        self.cache: ValueCache[V] | None = None if is_copied else ValueCache()
        """None where each read returns a new object, which its reader may change."""
        self._expiring: list[tuple[int, bytes]] = []
        self.indexes: dict[str, IndexView] = {}
        self._note_expiries()

    # --- reading one key ------------------------------------------------------------------

    @overload
    async def get(
        self,
        tx: Transaction | Snapshot,
        key: K,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> V: ...
    @overload
    async def get(
        self,
        tx: Transaction | Snapshot,
        key: K,
        default: D,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> V | D: ...
    async def get(
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
        encoded = self._keys.encode(key)
        if isinstance(tx, Snapshot):
            stored = self._find_at(tx, encoded)
        else:
            refuse_snapshot(tx)
            space = tx.space(self, timeout) or await tx.enter(self, timeout)
            if tx.is_on_primary:
                waiter = tx.acquire(self, encoded, lock, timeout)
                if waiter is not None:
                    await tx.wait(self, waiter, timeout)
                stored = self._find(tx, space, encoded)
                if stored is not None:
                    return self._seen(space, encoded, stored)
            else:
                stored = self._find_at(tx.snapshot, encoded)
        if stored is not None:
            return self._decode(encoded, stored)
        if default is NO_DEFAULT:
            raise self._not_found(key)
        return default

    async def get_many(
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
        ordered = sorted({self._keys.encode(key): key for key in keys}.items())
        found: dict[K, V] = {}
        if not isinstance(tx, Snapshot):
            refuse_snapshot(tx)
            space = tx.space(self, timeout) or await tx.enter(self, timeout)
            if tx.is_on_primary:
                for encoded, key in ordered:
                    await tx.lock(self, encoded, lock, timeout)
                    stored = self._find(tx, space, encoded)
                    if stored is not None:
                        found[key] = self._seen(space, encoded, stored)
                return found
        snapshot = tx if isinstance(tx, Snapshot) else tx.snapshot
        for encoded, key in ordered:
            stored = self._find_at(snapshot, encoded)
            if stored is not None:
                found[key] = self._decode(encoded, stored)
        return found

    async def contains(
        self,
        tx: Transaction | Snapshot,
        key: K,
        *,
        lock: LockMode = LockMode.SHARED,
        timeout: float | None = None,
    ) -> bool:
        """Return whether the key exists, with the same lock as `get`."""
        encoded = self._keys.encode(key)
        if isinstance(tx, Snapshot):
            return self._find_at(tx, encoded) is not None
        refuse_snapshot(tx)
        space = tx.space(self, timeout) or await tx.enter(self, timeout)
        if not tx.is_on_primary:
            return self._find_at(tx.snapshot, encoded) is not None
        await tx.lock(self, encoded, lock, timeout)
        return self._find(tx, space, encoded) is not None

    # --- writing --------------------------------------------------------------------------

    async def set(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write the value, whether the key exists or not."""
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        self._stage(tx, space, encoded, value, ttl)

    async def add(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write a new key; KeyExistsError if it exists."""
        if not await self.try_add(tx, key, value, ttl=ttl, timeout=timeout):
            raise KeyExistsError(
                "KeyExists",
                f"The dictionary {self.name!r} contains this key already.",
                facts={"collection": self.name, "key": key},
                hint="Use set() to overwrite it, or try_add() to get False instead.",
            )

    async def try_add(
        self,
        tx: Transaction,
        key: K,
        value: V,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write a new key and return True; False if it exists (the lock is kept)."""
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        if self._find(tx, space, encoded) is not None:
            return False
        self._stage(tx, space, encoded, value, ttl)
        return True

    async def upsert(
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
        """
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        stored = self._find(tx, space, encoded)
        value = default if stored is None else update(self._seen(space, encoded, stored))
        if asyncio.iscoroutine(value):
            value.close()
            raise UsageError(
                "UpdateSuspends",
                "update= must be an ordinary function: it cannot await while the key is locked.",
                hint="Call get() with lock=LockMode.UPDATE, await, then call set().",
            )
        self._stage(tx, space, encoded, value, ttl)
        return value

    async def get_or_add(
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
        refuse_snapshot(tx)
        encoded = self._keys.encode(key)
        if not tx.is_on_primary:
            tx.check_writable()
        space = tx.space(self, timeout) or await tx.enter(self, timeout)
        if self._find(tx, space, encoded) is not None:
            await tx.lock(self, encoded, LockMode.SHARED, timeout)
            stored = self._find(tx, space, encoded)
            if stored is not None:
                return self._seen(space, encoded, stored)
        await tx.lock(self, encoded, LockMode.EXCLUSIVE, timeout)
        stored = self._find(tx, space, encoded)
        if stored is not None:
            return self._seen(space, encoded, stored)
        new = value() if callable(value) else value
        self._stage(tx, space, encoded, new, ttl)
        return new

    async def compare_and_set(
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
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        stored = self._find(tx, space, encoded)
        if (stored is None) != (expected is MISSING):
            return False
        if stored is not None and self.codec.mutated_path(expected, stored) is not None:  # type: ignore[arg-type]
            return False
        self._stage(tx, space, encoded, value, ttl)
        return True

    @overload
    async def pop(self, tx: Transaction, key: K, *, timeout: float | None = ...) -> V: ...
    @overload
    async def pop(
        self, tx: Transaction, key: K, default: D, *, timeout: float | None = ...
    ) -> V | D: ...
    async def pop(
        self,
        tx: Transaction,
        key: K,
        default: D | NoDefault = NO_DEFAULT,
        *,
        timeout: float | None = None,
    ) -> V | D:
        """Remove the key and return its value; `default`, or KeyNotFoundError, if it is absent."""
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        stored = self._find(tx, space, encoded)
        if stored is not None:
            value = self._decode(encoded, stored)
            self._stage_delete(tx, space, encoded)
            return value
        if default is NO_DEFAULT:
            raise self._not_found(key)
        return default

    async def delete(self, tx: Transaction, key: K, *, timeout: float | None = None) -> bool:
        """Remove the key; return False if it was absent."""
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        if self._find(tx, space, encoded) is None:
            return False
        self._stage_delete(tx, space, encoded)
        return True

    async def clear(self, tx: Transaction | None = None, *, timeout: float | None = None) -> None:
        """Remove all keys, in the given transaction or in a new one.

        It waits for every transaction that uses the dictionary.
        """
        if tx is None:
            async with self._state.transaction() as own:
                await self.clear(own, timeout=timeout)
            return
        refuse_snapshot(tx)
        tx.stage_clear(await tx.enter_to_clear(self, timeout))

    # --- reading many ---------------------------------------------------------------------

    async def count(self, tx: Transaction | Snapshot, *, timeout: float | None = None) -> int:
        """Return the number of keys, in constant time; expired keys count until removed."""
        if isinstance(tx, Snapshot):
            tx.check_collection(self.collection)
            return self.collection.count(tx.sequence)
        refuse_snapshot(tx)
        space = tx.space(self, timeout) or await tx.enter(self, timeout)
        return await enumeration.count(tx, space)

    async def items(  # noqa: PLR0913 - by keyword
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
    ) -> AsyncIterator[tuple[K, V]]:
        """Yield keys and values in key order, from `start` up to but not including `end`.

        `prefix` selects text and bytes that start with it, and tuples whose first elements are
        equal to it; `where` is called for each pair. `reverse` changes the order, not the range.
        The iterator sees the state at the time it starts; `timeout` applies to the lock that it
        takes then.
        """
        decode_key, left = self._keys.decode, checked_limit(limit)
        read = self._read_committed if isinstance(tx, Snapshot) else partial(self._read, tx)
        bounds = self._bounds(prefix, start, end)
        view = await self._view(tx, timeout)
        async for rows in self._scan(view, *bounds, reverse=reverse):
            for encoded, stored in rows:
                if left == 0:
                    return
                key, value = decode_key(encoded), read(encoded, stored)
                if where is None or where(key, value):
                    left -= 1
                    yield key, value

    async def keys(  # noqa: PLR0913 - by keyword
        self,
        tx: Transaction | Snapshot,
        *,
        prefix: object = None,
        start: K | None = None,
        end: K | None = None,
        reverse: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[K]:
        """Yield keys without decoding their values."""
        decode_key, left = self._keys.decode, checked_limit(limit)
        bounds = self._bounds(prefix, start, end)
        view = await self._view(tx, timeout)
        async for rows in self._scan(view, *bounds, reverse=reverse):
            for encoded, _ in rows:
                if left == 0:
                    return
                left -= 1
                yield decode_key(encoded)

    async def values(  # noqa: PLR0913 - by keyword
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
    ) -> AsyncIterator[V]:
        """Yield values in the order of their keys."""
        async for _, value in self.items(
            tx,
            prefix=prefix,
            start=start,
            end=end,
            reverse=reverse,
            limit=limit,
            where=where,
            timeout=timeout,
        ):
            yield value

    async def find(
        self,
        tx: Transaction | Snapshot,
        *,
        reverse: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
        **index: object,
    ) -> AsyncIterator[tuple[K, V]]:
        """Yield the pairs that an index finds, in key order: `find(snapshot, item="lamp")`."""
        view, wanted = self._index(index)
        if not view.is_ready and isinstance(tx, Snapshot):
            # A transaction would wait for its own locks, so it reads every row; a snapshot does
            # so too if the index is not built in time.
            seconds = None if timeout is None else checked_timeout(timeout)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._state.build_index(self, view)
        left = checked_limit(limit)
        seen = await self._view(tx, timeout)
        async for encoded, stored in self._matches(seen, view, wanted, reverse=reverse):
            if left == 0:
                return
            left -= 1
            yield self._keys.decode(encoded), self._read(tx, encoded, stored)

    def changes(self, *, since: int = 0) -> ChangeFeed[K, V]:
        """Return the feed of changes after a sequence: `async with users.changes(since=n)`."""
        return self._state.feed(self, since)

    # --- used by the transaction and the state --------------------------------------------

    def key_of(self, encoded: bytes) -> object:
        return self._keys.decode(encoded)

    def value_of(self, encoded: bytes, stored: bytes) -> V:
        """Return the value of a row, for an index."""
        return self._decode(encoded, stored)

    def decode_pair(self, encoded: bytes, stored: bytes | None) -> tuple[K, V | None]:
        """Return key and value of a row from the log."""
        value = None if stored is None else self.codec.decode(stored)
        return self._keys.decode(encoded), value

    def index_operations(self, space: Workspace, indexes: list[Collection]) -> list[Operation]:
        """Return the changes of the indexes; mark those with an unknown function as not ready."""
        operations: list[Operation] = []
        for index in indexes:
            name = index.description.name.rpartition("\x00")[2]
            view = self.indexes.get(name)
            # An index of another version of the function is not updated but built again.
            if view is not None and (view.is_ready or not index.description.is_ready):
                operations.extend(view.operations(space))
            elif index.description.is_ready:
                stale = msgspec.structs.replace(index.description, is_ready=False)
                operations.append(Alter(index.id, encode_description(stale)))
        return operations

    def expired_keys(self, now: int, limit: int) -> list[bytes]:
        """Return expired keys, each once: `sweep` removes them."""
        keys: list[bytes] = []
        values = self.collection.rows.values
        while self._expiring and self._expiring[0][0] <= now and len(keys) < limit:
            expires, key = heapq.heappop(self._expiring)
            stored = values.get(key)
            if stored is not None and stored_expiry(stored) == expires:
                keys.append(key)
        return keys

    def expect_again(self, keys: list[bytes]) -> None:
        """Return keys that a sweep could not remove to the list of expiries."""
        values = self.collection.rows.values
        for key in keys:
            if key in values and values[key][0] & EXPIRES:
                heapq.heappush(self._expiring, (stored_expiry(values[key]), key))

    async def sweep(self, tx: Transaction, keys: list[bytes]) -> None:
        """Remove the rows that are still expired."""
        for encoded in sorted(keys):
            space = await self._write_lock(tx, encoded, None)
            stored = space.find(encoded)
            if stored is not None and stored[0] & EXPIRES and stored_expiry(stored) <= tx.now:
                tx.stage(space, encoded, None)

    async def rewrite_rows(self, tx: Transaction, keys: list[bytes]) -> int:
        """Rewrite rows of older versions in the written version; return their number."""
        count = 0
        version = self.collection.description.written_version
        for encoded in keys:
            space = await self._write_lock(tx, encoded, None)
            stored = self._find(tx, space, encoded)
            if stored is None or stored_version(stored) >= version:
                continue
            value = self.codec.decode(stored)
            self._put(tx, space, encoded, value, stored_expiry(stored))
            count += 1
        return count

    def rebind(self, collection: Collection) -> None:
        """Use the rows of a full copy."""
        self.collection = collection
        if self.cache is not None:
            self.cache.clear()
        self._note_expiries()

    # --------------------------------------------------------------------------------------

    def _find(self, tx: Transaction, space: Workspace, encoded: bytes) -> bytes | None:
        stored = space.find(encoded)
        if stored is not None and stored[0] & EXPIRES and stored_expiry(stored) <= tx.now:
            return None
        return stored

    def _find_at(self, snapshot: Snapshot, encoded: bytes) -> bytes | None:
        stored = snapshot.find(self.collection, encoded)
        if stored is not None and stored[0] & EXPIRES and stored_expiry(stored) <= snapshot.now:
            return None
        return stored

    def _decode(self, encoded: bytes, stored: bytes) -> V:
        cached = None if self.cache is None else self.cache.find(encoded, stored)
        if cached is not None:
            return cached[1]
        value = self.codec.decode(stored)
        if self.cache is not None:
            self.cache.put(encoded, stored, value)
        return value

    def _read(self, tx: Transaction | Snapshot, encoded: bytes, stored: bytes) -> V:
        """Decode a row of an enumeration, which leaves the cache to single reads."""
        if not isinstance(tx, Snapshot):
            space = tx.space(self)
            if space is not None and encoded in space.writes:
                return self._seen(space, encoded, stored)
            if space is not None and self.cache is None:
                value = self.codec.decode(stored)
                tx.hand_out(space, encoded, stored, value)
                return value
        return self._read_committed(encoded, stored)

    def _read_committed(self, encoded: bytes, stored: bytes) -> V:
        cached = None if self.cache is None else self.cache.find(encoded, stored)
        return self.codec.decode(stored) if cached is None else cached[1]

    def _seen(self, space: Workspace, encoded: bytes, stored: bytes) -> V:
        """Return the value of a locked read and record it for the mutation check."""
        if self.cache is not None and space.writes.get(encoded) is stored:
            return space.given[encoded]  # type: ignore[return-value]
        value = self._decode(encoded, stored)
        if self.cache is None:
            space.copies.setdefault(encoded, []).append((stored, value))
        else:
            space.seen[encoded] = (stored, value)
        return value

    async def _write_lock(
        self, tx: Transaction, encoded: bytes, timeout: float | None
    ) -> Workspace:
        refuse_snapshot(tx)
        space = tx.space(self, timeout)
        if space is None:
            if not tx.is_on_primary:
                tx.check_writable()
            space = await tx.enter(self, timeout)
        waiter = tx.acquire(self, encoded, LockMode.EXCLUSIVE, timeout)
        if waiter is not None:
            await tx.wait(self, waiter, timeout)
        return space

    def _stage(
        self, tx: Transaction, space: Workspace, encoded: bytes, value: V, ttl: float | None
    ) -> None:
        seconds = self._ttl if ttl is None else checked_ttl(ttl)
        expires = 0 if seconds is None else tx.now + round(seconds * TICKS_PER_SECOND)
        self._put(tx, space, encoded, value, expires)

    def _put(
        self, tx: Transaction, space: Workspace, encoded: bytes, value: V, expires: int
    ) -> None:
        stored = self.codec.encode(
            value,
            version=self.collection.description.written_version,
            stored=space.find(encoded),
            expires=expires,
        )
        tx.stage(space, encoded, stored)
        space.given[encoded] = value
        space.seen.pop(encoded, None)
        space.copies.pop(encoded, None)
        space.handed_out.pop(encoded, None)

    def _stage_delete(self, tx: Transaction, space: Workspace, encoded: bytes) -> None:
        tx.stage(space, encoded, None)
        space.given.pop(encoded, None)
        space.seen.pop(encoded, None)
        space.copies.pop(encoded, None)
        space.handed_out.pop(encoded, None)

    async def _scan(
        self, view: ReadView, lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        may_expire = self._has_expiries or self._ttl is not None or bool(view.writes)
        async for rows in scan(view, self.collection, lower, upper, reverse=reverse):
            if may_expire:
                yield [row for row in rows if not _is_expired(row[1], view.snapshot.now)]
            else:
                yield rows

    async def _view(self, tx: Transaction | Snapshot, timeout: float | None) -> ReadView:
        """Return the view of an enumeration that starts now."""
        if isinstance(tx, Snapshot):
            return snapshot_view(tx)
        refuse_snapshot(tx)
        return transaction_view(tx, tx.space(self, timeout) or await tx.enter(self, timeout))

    def _bounds(self, prefix: object, start: K | None, end: K | None) -> tuple[bytes, bytes | None]:
        lower, upper = b"", None
        if prefix is not None:
            lower, upper = self._keys.prefix_range(prefix)
        if start is not None:
            lower = max(lower, self._keys.encode(start))
        if end is not None:
            encoded = self._keys.encode(end)
            upper = encoded if upper is None else min(upper, encoded)
        if upper is not None and upper < lower:
            upper = lower
        return lower, upper

    async def _matches(
        self, seen: ReadView, view: IndexView, wanted: object, *, reverse: bool
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the rows of an index key; read every row if the index is newer than the view."""
        if view.covers(seen.snapshot):
            async for encoded in view.find(seen, wanted, reverse=reverse):
                stored = seen.find(self.collection, encoded)
                if stored is not None and not _is_expired(stored, seen.snapshot.now):
                    yield encoded, stored
            return
        async for rows in self._scan(seen, b"", None, reverse=reverse):
            for encoded, stored in rows:
                if view.is_match(encoded, stored, wanted):
                    yield encoded, stored

    def _index(self, given: dict[str, object]) -> tuple[IndexView, object]:
        if len(given) != 1:
            raise UsageError(
                "IndexUnknown",
                f"find() takes the value of one index, not of {len(given)}.",
                facts={"collection": self.name, "indexes": sorted(self.indexes)},
                hint='Name one index, as in find(snapshot, item="lamp").',
            )
        [(name, wanted)] = given.items()
        view = self.indexes.get(name)
        if view is None:
            raise UsageError(
                "IndexUnknown",
                f"The dictionary {self.name!r} was opened without an index {name!r}.",
                facts={"collection": self.name, "indexes": sorted(self.indexes)},
                hint="Declare the index: state.dictionary(..., indexes={name: function}).",
            )
        return view, wanted

    def _note_expiries(self) -> None:
        values = self.collection.rows.values
        self._expiring = [
            (stored_expiry(stored), key) for key, stored in values.items() if stored[0] & EXPIRES
        ]
        heapq.heapify(self._expiring)
        self._has_expiries = bool(self._expiring)
        """Whether a row ever had one: older snapshots still see removed rows."""

    def watch(self, _sequence: int, key: bytes, _old: bytes | None, new: bytes | None) -> None:
        """Record the expiry of a row that was applied."""
        if new is not None and new[0] & EXPIRES:
            self._has_expiries = True
            heapq.heappush(self._expiring, (stored_expiry(new), key))
            rows = self.collection.rows.values
            if len(self._expiring) > STALE_EXPIRIES_MIN + 2 * len(rows):
                self._note_expiries()
                self._has_expiries = True

    def _not_found(self, key: K) -> KeyNotFoundError:
        return KeyNotFoundError(
            "KeyNotFound",
            f"The dictionary {self.name!r} does not contain this key.",
            facts={"collection": self.name, "key": key},
            hint="Pass a default: get(tx, key, None), or MISSING if None may be a value.",
        )


def _is_expired(stored: bytes, now: int) -> bool:
    return bool(stored[0] & EXPIRES) and stored_expiry(stored) <= now
