"""The rows of a dictionary behind its operations: finding, staging, versions, expiry, scans.

Everything here works on encoded keys and stored values; `ReliableDictionary` in dictionary.py adds
the operations that users call.
"""

import heapq
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from partita.errors import KeyNotFoundError, UsageError
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
from partita.reliable.values.arguments import checked_ttl
from partita.reliable.values.key_codec import KeyCodec
from partita.reliable.values.serialization import (
    ValueCache,
    ValueCodec,
    stored_expiry,
)

K = TypeVar("K")
V = TypeVar("V")

STALE_EXPIRIES_MIN = 1_024
"""Expiries of overwritten rows are kept up to this many plus the number of rows."""
EXPIRES = 0x80
"""The bit of a stored value's first byte that says it has an expiry."""
_FIRST_EXPIRING = bytes([EXPIRES])
UNCOMMITTED: Final = 0
"""The version of a row that the transaction itself has written."""


class DictionaryState(Transactions, Protocol):
    """What a dictionary needs of its state."""

    async def build_index(self, owner: "DictionaryRows[Any, Any]", view: IndexView) -> None: ...

    def feed(self, dictionary: "DictionaryRows[K, V]", since: int) -> ChangeFeed[K, V]: ...

    async def keep_versions(self, collection: Collection, *, is_locked: bool) -> None:
        """Keep the version of every row from now on; `is_locked`: it cannot be dropped now."""
        ...


class DictionaryRows(Generic[K, V]):
    """The rows of an open dictionary."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        state: DictionaryState,
        collection: Collection,
        *,
        keys: KeyCodec[K],
        values: ValueCodec[V],
        ttl: float | None,
        is_copied: bool,
        keeps_every_change: bool = False,
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
        self.keeps_every_change = keeps_every_change
        self._note_expiries()

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
            return cached.value
        value = self.codec.decode(stored)
        if self.cache is not None:
            self.cache.put(encoded, stored, value)
        return value

    def _pairs(
        self, tx: Transaction | Snapshot, rows: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[tuple[K, V]]:
        """Yield the keys and values of some rows of an enumeration.

        Usually they are decoded by a few calls; a row that a transaction has written, or whose
        value is not usual, is read as `_read` does.
        """
        values = self._values_at_once(tx, rows) if rows else None
        if values is None:
            decode_key = self._keys.decode
            return ((decode_key(key), self._read(tx, key, stored)) for key, stored in rows)
        pairs = zip(self._keys.decode_many([key for key, _ in rows]), values, strict=True)
        return pairs if isinstance(tx, Snapshot) else _checked(tx, pairs)

    def _values_at_once(
        self, tx: Transaction | Snapshot, rows: Sequence[tuple[bytes, bytes]]
    ) -> list[V] | None:
        """Return what `_read` returns for each row; None if it must read them."""
        keys, stored = zip(*rows, strict=True)
        if not isinstance(tx, Snapshot):
            space = tx.space(self)
            if self.cache is None or (
                space is not None and any(key in space.writes for key in keys)
            ):
                return None
        values = self.codec.decode_many(stored)
        if values is None:
            return None
        if self.cache is not None:
            for place, cached in enumerate(self.cache.find_many(keys)):
                if cached is not None and cached.stored is stored[place]:
                    values[place] = cached.value
        if not isinstance(tx, Snapshot):
            tx.note_origins(values, stored, self.codec)
        return values

    def _read(self, tx: Transaction | Snapshot, encoded: bytes, stored: bytes) -> V:
        """Decode a row of an enumeration, which leaves the cache to single reads."""
        if not isinstance(tx, Snapshot):
            space = tx.space(self)
            if space is not None and encoded in space.writes:
                return self._seen(tx, space, encoded, stored)
            value = self._read_committed(encoded, stored)
            tx.note_origin(value, stored, self.codec)
            if space is not None and self.cache is None:
                tx.hand_out(space, encoded, stored, value)
            return value
        return self._read_committed(encoded, stored)

    def _read_committed(self, encoded: bytes, stored: bytes) -> V:
        cached = None if self.cache is None else self.cache.find(encoded, stored)
        return self.codec.decode(stored) if cached is None else cached.value

    def _seen(self, tx: Transaction, space: Workspace, encoded: bytes, stored: bytes) -> V:
        """Return the value of a locked read and record it for the mutation check."""
        if self.cache is not None and space.writes.get(encoded) is stored:
            return space.given[encoded]  # type: ignore[return-value]
        value = self._decode(encoded, stored)
        tx.note_origin(value, stored, self.codec)
        if self.cache is None:
            space.copies.setdefault(encoded, []).append((stored, value))
        else:
            space.seen[encoded] = (stored, value)
        return value

    async def _read_lock(
        self,
        tx: Transaction,
        space: Workspace,
        encoded: bytes,
        mode: LockMode,
        timeout: float | None,
    ) -> None:
        if tx.takes_locks:
            await tx.lock(self, encoded, mode, timeout)
        else:
            guard(space, encoded, mode)

    async def _version_of(self, tx: Transaction | Snapshot, encoded: bytes) -> int:
        """Return the version of a row that was read; start to keep versions if necessary."""
        space = None if isinstance(tx, Snapshot) else tx.space(self)
        if space is not None and (encoded in space.writes or space.collection.is_new):
            return UNCOMMITTED
        if not self.collection.versioned_since:
            await self._state.keep_versions(self.collection, is_locked=space is not None)
        if space is not None and space.at is None and tx.is_on_primary:  # type: ignore[union-attr]
            return self.collection.version(encoded, tx.sequence)
        snapshot = tx if isinstance(tx, Snapshot) else tx.snapshot
        return self.collection.version(encoded, snapshot.sequence)

    async def _scan(
        self, view: ReadView, lower: bytes, upper: bytes | None, *, reverse: bool
    ) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        may_expire = self._has_expiries or self._ttl is not None or bool(view.writes)
        async for rows in scan(view, self.collection, lower, upper, reverse=reverse):
            if may_expire:
                yield [row for row in rows if not is_expired(row[1], view.snapshot.now)]
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
                if stored is not None and not is_expired(stored, seen.snapshot.now):
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
        self._expiring = []
        if max(values.values(), default=b"") >= _FIRST_EXPIRING:  # one pass in C: most have none
            self._expiring += (
                (stored_expiry(stored), key)
                for key, stored in values.items()
                if stored[0] & EXPIRES
            )
        heapq.heapify(self._expiring)
        self._has_expiries = bool(self._expiring)
        """Whether a row ever had one: older snapshots still see removed rows."""

    def _not_found(self, key: K) -> KeyNotFoundError:
        return KeyNotFoundError(
            "KeyNotFound",
            f"The dictionary {self.name!r} does not contain this key.",
            facts={"collection": self.name, "key": key},
            hint="Pass a default: get(tx, key, None), or MISSING if None may be a value.",
        )


def _checked(tx: Transaction, pairs: Iterable[tuple[K, V]]) -> Iterator[tuple[K, V]]:
    """Yield pairs as long as their transaction may be used."""
    for pair in pairs:
        tx.check()
        yield pair


def is_expired(stored: bytes, now: int) -> bool:
    return bool(stored[0] & EXPIRES) and stored_expiry(stored) <= now


def guard(space: Workspace, encoded: bytes, mode: LockMode) -> None:
    """Let the commit of a snapshot transaction check a key that it read to write others."""
    if mode is not LockMode.SHARED:
        space.guarded.add(encoded)
