"""ReliableDictionary: typed keys and values on the rows of a collection, under key locks.

A single read takes a shared lock and is repeatable. A write takes the exclusive lock; its own
transaction sees it at once, others after the commit. Enumerations and counts read a snapshot,
combined with the transaction's own writes. Reads of a snapshot take no locks. The file is long
because it implements the operations of a standard type, twice: in a transaction, and `auto`.
"""

import asyncio
import contextlib
import enum
import heapq
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, Generic, TypeVar, cast, overload

import msgspec

from partita.errors import KeyExistsError, UsageError, VersionConflictError
from partita.reliable.collections import enumeration
from partita.reliable.collections.change_feed import ChangeFeed
from partita.reliable.collections.dictionary_rows import (
    EXPIRES,
    STALE_EXPIRIES_MIN,
    UNCOMMITTED,
    DictionaryRows,
    guard,
)
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import (
    Transaction,
    Transactions,
    Workspace,
    refuse_snapshot,
)
from partita.reliable.state.locks import LockMode
from partita.reliable.values.arguments import checked_limit, checked_timeout, checked_ttl
from partita.reliable.values.serialization import stored_expiry, stored_version
from partita.ticks import TICKS_PER_SECOND

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Missing(enum.Enum):
    """The type of MISSING, which means "no value" where None may be a value."""

    MISSING = "MISSING"


class NoDefault(enum.Enum):
    """The type of NO_DEFAULT: the caller passed no default. MISSING is an ordinary default."""

    NO_DEFAULT = "NO_DEFAULT"


MISSING: Final = Missing.MISSING
NO_DEFAULT: Final = NoDefault.NO_DEFAULT


class Versioned(msgspec.Struct, Generic[V], frozen=True):
    """A value with its version: the sequence of the commit that wrote it.

    A version never returns: a row that is deleted and added again has another one. It is 0 for a
    row that the transaction itself has written.
    """

    value: V
    version: int


class ReliableDictionary(DictionaryRows[K, V]):
    """A durable dictionary. Open it with `state.dictionary(...)`.

    Every operation takes a transaction; reads also accept a snapshot.
    """

    @property
    def auto(self) -> "AutoDictionary[K, V]":
        """The same operations without a transaction block: each is a transaction of its own."""
        return AutoDictionary(self._state, self)

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
                if tx.takes_locks:
                    waiter = tx.acquire(self, encoded, lock, timeout)
                    if waiter is not None:
                        await tx.wait(self, waiter, timeout)
                else:
                    guard(space, encoded, lock)
                stored = self._find(tx, space, encoded)
                if stored is not None:
                    return self._seen(tx, space, encoded, stored)
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
                    await self._read_lock(tx, space, encoded, lock, timeout)
                    stored = self._find(tx, space, encoded)
                    if stored is not None:
                        found[key] = self._seen(tx, space, encoded, stored)
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
        await self._read_lock(tx, space, encoded, lock, timeout)
        return self._find(tx, space, encoded) is not None

    @overload
    async def get_versioned(
        self,
        tx: Transaction | Snapshot,
        key: K,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> Versioned[V]: ...
    @overload
    async def get_versioned(
        self,
        tx: Transaction | Snapshot,
        key: K,
        default: D,
        *,
        lock: LockMode = ...,
        timeout: float | None = ...,
    ) -> Versioned[V] | D: ...
    async def get_versioned(
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
        value = await self.get(tx, key, MISSING, lock=lock, timeout=timeout)
        if value is not MISSING:
            return Versioned(value, await self._version_of(tx, self._keys.encode(key)))
        if default is NO_DEFAULT:
            raise self._not_found(key)
        return default

    # --- writing --------------------------------------------------------------------------

    async def set(
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
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        if if_version is not None:
            self._check_version(tx, space, encoded, if_version)
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
        default: V | Callable[[], V],
        update: Callable[[V], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Write `default` for a new key, `update(value)` for an existing one; return the value.

        `default` may be a function, which is called only for a new key. Both functions run while
        the key is locked. `update` must return a new object and not change the given one.
        """
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        stored = self._find(tx, space, encoded)
        if stored is not None:
            value = update(self._seen(tx, space, encoded, stored))
        else:
            value = default() if callable(default) else default
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
            await self._read_lock(tx, space, encoded, LockMode.SHARED, timeout)
            stored = self._find(tx, space, encoded)
            if stored is not None:
                return self._seen(tx, space, encoded, stored)
        await self._read_lock(tx, space, encoded, LockMode.EXCLUSIVE, timeout)
        stored = self._find(tx, space, encoded)
        if stored is not None:
            return self._seen(tx, space, encoded, stored)
        new = value() if callable(value) else value
        self._stage(tx, space, encoded, new, ttl)
        return new

    async def compare_and_set(
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
        wanted = _expected(old_form, expected)
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        stored = self._find(tx, space, encoded)
        if (stored is None) != (wanted is MISSING):
            return False
        if stored is not None and self.codec.mutated_path(wanted, stored) is not None:  # type: ignore[arg-type]
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
            tx.note_origin(value, stored, self.codec)
            self._stage_delete(tx, space, encoded)
            return value
        if default is NO_DEFAULT:
            raise self._not_found(key)
        return default

    async def delete(
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
        encoded = self._keys.encode(key)
        space = await self._write_lock(tx, encoded, timeout)
        if if_version is not None:
            self._check_version(tx, space, encoded, if_version)
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
        left = checked_limit(limit)
        bounds = self._bounds(prefix, start, end)
        view = await self._view(tx, timeout)
        async for rows in self._scan(view, *bounds, reverse=reverse):
            if where is None:
                wanted = rows if left < 0 else rows[:left]
                for pair in self._pairs(tx, wanted):
                    yield pair
                left -= len(wanted)
            else:
                for key, value in self._pairs(tx, rows):
                    if left == 0:
                        return
                    if where(key, value):
                        left -= 1
                        yield key, value
            if left == 0:
                return

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
        left = checked_limit(limit)
        bounds = self._bounds(prefix, start, end)
        view = await self._view(tx, timeout)
        async for rows in self._scan(view, *bounds, reverse=reverse):
            encoded = [key for key, _ in (rows if left < 0 else rows[:left])]
            for key in self._keys.decode_many(encoded):
                yield key
            left -= len(encoded)
            if left == 0:
                return

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

    def watch(self, _sequence: int, key: bytes, _old: bytes | None, new: bytes | None) -> None:
        """Record the expiry of a row that was applied."""
        if new is not None and new[0] & EXPIRES:
            self._has_expiries = True
            heapq.heappush(self._expiring, (stored_expiry(new), key))
            rows = self.collection.rows.values
            if len(self._expiring) > STALE_EXPIRIES_MIN + 2 * len(rows):
                self._note_expiries()
                self._has_expiries = True

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

    # --------------------------------------------------------------------------------------

    async def _write_lock(
        self, tx: Transaction, encoded: bytes, timeout: float | None
    ) -> Workspace:
        refuse_snapshot(tx)
        space = tx.space(self, timeout)
        if space is None:
            if not tx.is_on_primary:
                tx.check_writable()
            space = await tx.enter(self, timeout)
        if tx.takes_locks:
            waiter = tx.acquire(self, encoded, LockMode.EXCLUSIVE, timeout)
            if waiter is not None:
                await tx.wait(self, waiter, timeout)
        elif not tx.is_on_primary:
            tx.check_writable()
        return space

    def _check_version(
        self, tx: Transaction, space: Workspace, encoded: bytes, wanted: int
    ) -> None:
        found: int | None = None
        if self._find(tx, space, encoded) is not None:
            if encoded in space.writes:
                found = UNCOMMITTED
            elif self.collection.versioned_since:
                sequence = tx.sequence if space.at is None else space.at
                found = self.collection.version(encoded, sequence)
        if found != wanted:
            raise VersionConflictError(
                "VersionConflict",
                f"The row does not have version {wanted}: "
                + ("it does not exist." if found is None else f"it has version {found}."),
                facts={"collection": self.name, "key": self.key_of(encoded), "version": found},
                hint="Read it again with get_versioned(), decide again, and write.",
            )

    def _stage(
        self, tx: Transaction, space: Workspace, encoded: bytes, value: V, ttl: float | None
    ) -> None:
        seconds = self._ttl if ttl is None else checked_ttl(ttl)
        expires = 0 if seconds is None else tx.now + round(seconds * TICKS_PER_SECOND)
        self._put(tx, space, encoded, value, expires)

    def _put(
        self, tx: Transaction, space: Workspace, encoded: bytes, value: V, expires: int
    ) -> None:
        moved = tx.origin_of(value, self.codec)
        stored = self.codec.encode(
            value,
            version=self.collection.description.written_version,
            stored=space.find(encoded) if moved is None else moved,
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


class AutoDictionary(Generic[K, V]):
    """The operations of a dictionary without a transaction: `await users.auto.set(key, user)`.

    Each write is one transaction; each read is a snapshot, which waits for no lock. To combine
    several operations, use a transaction. `users.auto` returns it.
    """

    def __init__(self, state: Transactions, owner: ReliableDictionary[K, V]) -> None:
        self._state = state
        self._owner = owner

    @overload
    async def get(self, key: K) -> V: ...
    @overload
    async def get(self, key: K, default: D) -> V | D: ...
    async def get(self, key: K, default: D | NoDefault = NO_DEFAULT) -> V | D:
        """Return the value; `default` for an absent key, or KeyNotFoundError without one."""
        async with self._state.snapshot() as snapshot:
            return cast("V | D", await self._owner.get(snapshot, key, default))

    @overload
    async def get_versioned(self, key: K) -> Versioned[V]: ...
    @overload
    async def get_versioned(self, key: K, default: D) -> Versioned[V] | D: ...
    async def get_versioned(self, key: K, default: D | NoDefault = NO_DEFAULT) -> Versioned[V] | D:
        """Return the value and its version, for a later write with `if_version`."""
        async with self._state.snapshot() as snapshot:
            found = await self._owner.get_versioned(snapshot, key, default)
            return cast("Versioned[V] | D", found)

    async def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the keys that exist."""
        async with self._state.snapshot() as snapshot:
            return await self._owner.get_many(snapshot, keys)

    async def contains(self, key: K) -> bool:
        """Return whether the key exists."""
        async with self._state.snapshot() as snapshot:
            return await self._owner.contains(snapshot, key)

    async def count(self) -> int:
        """Return the number of keys."""
        async with self._state.snapshot() as snapshot:
            return await self._owner.count(snapshot)

    async def set(
        self,
        key: K,
        value: V,
        *,
        if_version: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write the value, whether the key exists or not; with `if_version` as in a transaction."""
        async with self._state.transaction() as tx:
            await self._owner.set(tx, key, value, if_version=if_version, ttl=ttl, timeout=timeout)

    async def add(
        self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None
    ) -> None:
        """Write a new key; KeyExistsError if it exists."""
        async with self._state.transaction() as tx:
            await self._owner.add(tx, key, value, ttl=ttl, timeout=timeout)

    async def try_add(
        self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None
    ) -> bool:
        """Write a new key and return True; False if it exists."""
        async with self._state.transaction() as tx:
            return await self._owner.try_add(tx, key, value, ttl=ttl, timeout=timeout)

    async def upsert(
        self,
        key: K,
        default: V | Callable[[], V],
        update: Callable[[V], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Write `default` for a new key, `update(value)` for an existing one; return the value."""
        async with self._state.transaction() as tx:
            return await self._owner.upsert(tx, key, default, update, ttl=ttl, timeout=timeout)

    async def get_or_add(
        self,
        key: K,
        value: V | Callable[[], V],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> V:
        """Return the value of the key; write `value` (or what it returns) first if it is new."""
        async with self._state.transaction() as tx:
            return await self._owner.get_or_add(tx, key, value, ttl=ttl, timeout=timeout)

    async def compare_and_set(
        self,
        key: K,
        value: V,
        *,
        expected: V | Missing,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Write the value if the key has the `expected` value (MISSING: if the key is absent)."""
        async with self._state.transaction() as tx:
            return await self._owner.compare_and_set(
                tx, key, value, expected=expected, ttl=ttl, timeout=timeout
            )

    @overload
    async def pop(self, key: K, *, timeout: float | None = ...) -> V: ...
    @overload
    async def pop(self, key: K, default: D, *, timeout: float | None = ...) -> V | D: ...
    async def pop(
        self, key: K, default: D | NoDefault = NO_DEFAULT, *, timeout: float | None = None
    ) -> V | D:
        """Remove the key and return its value; `default`, or KeyNotFoundError, if it is absent."""
        async with self._state.transaction() as tx:
            return cast("V | D", await self._owner.pop(tx, key, default, timeout=timeout))

    async def delete(
        self, key: K, *, if_version: int | None = None, timeout: float | None = None
    ) -> bool:
        """Remove the key; return False if it was absent."""
        async with self._state.transaction() as tx:
            return await self._owner.delete(tx, key, if_version=if_version, timeout=timeout)

    async def clear(self, *, timeout: float | None = None) -> None:
        """Remove all keys."""
        await self._owner.clear(timeout=timeout)


def _expected(old_form: tuple[V | Missing, ...], expected: V | Missing | NoDefault) -> V | Missing:
    if len(old_form) == 1 and expected is NO_DEFAULT:
        warnings.warn(
            "compare_and_set() takes expected= by keyword; by position it will be refused.",
            DeprecationWarning,
            stacklevel=3,
        )
        return old_form[0]
    if old_form or expected is NO_DEFAULT:
        message = "compare_and_set() takes tx, key and value by position, and expected= by keyword."
        raise TypeError(message)
    return expected
