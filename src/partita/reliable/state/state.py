"""The state of a replica, as bytes: `State.apply(record)` is deterministic and does no I/O.

The newest version of every row is in the blocks of its collection (blocks.py). Older versions
exist only while a snapshot may read them: the first write to a key after a snapshot was opened
puts the replaced version into the history of the key. So a state without snapshots has no extra
cost, and a snapshot costs one version of each key that is written while it is open.

Versions that no snapshot can read any more are discarded in the order in which they were
replaced, a bounded number of entries in one turn of the event loop.

The result of applying depends on the record and the state only: positions of queues, expiry of
outcomes, whether a record of an old epoch is ignored.
"""

import hashlib
import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, TypeVar, cast

import msgspec
from sortedcontainers import SortedList

from partita.errors import ChainBrokenError, DamageError
from partita.reliable.state.blocks import Blocks
from partita.reliable.state.parted_dict import PartedDict
from partita.reliable.state.records import (
    NO_HASH,
    Alter,
    Clear,
    Create,
    Delete,
    Drop,
    Enqueue,
    Outcome,
    Put,
    Record,
)
from partita.reliable.state.replaced import Kept, ReplacedOrder
from partita.reliable.values.layout import Layout

PRUNE_AT_ONCE = 512
"""Old versions, old counts and cleared rows that are discarded in one turn of the event loop."""
PRUNE_WINDOW = PRUNE_AT_ONCE // 2
"""Entries between two callbacks of the loop; one turn overlaps with two such windows."""
FORGET_AT_ONCE = 100
"""Expired outcomes that one record removes, in addition to as many as it has transactions."""
POSITION_BYTES = 8
GATHERED_ROWS = 256
"""Touched rows that are returned together."""
PASSED_BLOCKS = 64
"""Blocks that are looked at for touched rows in one step."""

T = TypeVar("T")
Touched = PartedDict[bool]
"""Keys that were written (True) or removed (False)."""
Past = list[tuple[int, T]]
"""Replaced versions, each with the sequence that replaced it, in ascending order."""
Replaced = tuple[int, bytes | None, int | None]
"""A replaced row: the sequence that replaced it, its value and its version."""
_DISCARDED: tuple[int, Any, None] = (-1, None, None)

CollectionEvent = Literal["added", "dropped"]

Watcher = Callable[[int, bytes, bytes | None, bytes | None], None]
"""Called by apply with (sequence, key, old value, new value); key b"" and no values: cleared."""


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """The attributes of a collection that the log contains besides its rows."""

    name: str
    kind: str
    """dictionary, queue, concurrent_queue or index."""
    key: str = ""
    value: str = ""
    fingerprint: str = ""
    written_version: int = 1
    """The schema version that every replica writes now."""
    owner: int = 0
    """For an index: the identifier of its dictionary."""
    index_version: int = 0
    is_ready: bool = True
    """For an index: whether it covers every row. Writers without its function set it to False."""
    layouts: dict[int, Layout] = {}
    """The layout of values by schema version, for the written version and newer ones."""
    is_versioned: bool = False
    """Whether the version of each row is kept: the sequence of the record that wrote it."""


_description_decoder = msgspec.msgpack.Decoder(Description)
_encode = msgspec.msgpack.Encoder().encode


def encode_description(description: Description) -> bytes:
    """Return the bytes that Create and Alter carry."""
    return _encode(description)


class Rows:
    """Rows of a collection in one generation (a clear starts the next).

    `values` has the newest versions, `history` the replaced ones, `counts` the number of keys
    before a record. A key is in `departed` if and only if it is in `history` and not in `values`.
    `versions` has the sequences that wrote the rows, of a collection that keeps them. `touched`
    has the keys that were written (True) or removed (False) since the newest checkpoint, None if
    that is not known: after a clear, or because nothing needs it.
    """

    __slots__ = ("counts", "departed", "history", "touched", "values", "versions")

    def __init__(self, values: Blocks | None = None) -> None:
        self.values = Blocks() if values is None else values
        self.history: MutableMapping[bytes, list[Replaced] | tuple[Replaced]] = {}
        """A single replaced row is a tuple, of which the garbage collector keeps no account."""
        self.departed: SortedList[bytes] = SortedList()
        self.counts: Past[int] = []
        self.versions: dict[bytes, int] = {}
        self.touched: Touched | None = None

    def find(self, key: bytes, sequence: int) -> bytes | None:
        """Return the value as of a sequence."""
        return self.value_at(key, self.values.get(key), sequence)

    def value_at(self, key: bytes, newest: bytes | None, sequence: int) -> bytes | None:
        """Return the value as of a sequence of a key whose newest value is known."""
        versions = self.history.get(key)
        if versions is not None:
            place = _place_after(versions, sequence)
            if place < len(versions):
                return versions[place][1]
        return newest

    def version(self, key: bytes, sequence: int) -> int | None:
        """Return the version of a key as of a sequence, None if none was recorded."""
        past = self.history.get(key)
        if past is not None:
            place = _place_after(past, sequence)
            if place < len(past):
                return past[place][2]
        return self.versions.get(key)

    def has_changed(self, key: bytes, since: int) -> bool:
        """Return whether a key was written after a sequence that an open snapshot has."""
        past = self.history.get(key)
        return past is not None and past[-1][0] > since

    def count(self, sequence: int) -> int:
        """Return the number of keys at a sequence."""
        place = _place_after(self.counts, sequence)
        return self.counts[place][1] if place < len(self.counts) else len(self.values)

    def between(self, lower: bytes, upper: bytes | None, *, limit: int) -> list[bytes]:
        """Return the first keys of a half-open range, including deleted ones."""
        return [key for key, _ in self.newest(lower, upper, limit=limit)]

    def newest(
        self, lower: bytes, upper: bytes | None, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes | None]]:
        """Return the newest values of the first keys of a half-open range, None if deleted."""
        found = self.values.between(lower, upper, limit=limit, reverse=reverse)
        if not self.departed:
            return cast("list[tuple[bytes, bytes | None]]", found)
        departed = self.departed.irange(lower, upper, inclusive=(True, False), reverse=reverse)
        merged = [*found, *((key, None) for key in islice(departed, limit))]
        return sorted(merged, key=itemgetter(0), reverse=reverse)[:limit]

    def piece(self, lower: bytes, sequence: int) -> tuple[dict[bytes, bytes], bytes | None]:
        """Return the rows of one block from a key on as of a sequence, and where the next begins.

        The rows are in key order. They must be used before the next write.
        """
        block, bound, after = self.values.block_at(lower)
        rows = block.ordered()
        if block.changed <= sequence and lower <= bound:
            return rows, after
        past = self._past_between(rows, lower, after, sequence)
        if lower > bound:
            rows = {key: value for key, value in rows.items() if key >= lower}
        if past:
            merged = {**rows, **past}
            rows = {key: value for key in sorted(merged) if (value := merged[key]) is not None}
        return rows, after

    def touched_piece(
        self, lower: bytes, sequence: int, since: int, touched: Touched
    ) -> tuple[dict[bytes, bytes], bytes | None]:
        """Return the rows of `piece` that are among the touched ones.

        No key of `touched` was written before the sequence `since`.
        """
        block, _, after = self.values.block_at(lower)
        if block.changed <= since:
            return {}, after
        rows, after = self.piece(lower, sequence)
        keys = touched.among(rows)
        return {key: value for key, value in rows.items() if key in keys}, after

    def _past_between(
        self, rows: dict[bytes, bytes], lower: bytes, upper: bytes | None, sequence: int
    ) -> dict[bytes, bytes | None]:
        """Return what a snapshot sees of the keys of a block that have a history."""
        departed = self.departed.irange(lower, upper, inclusive=(True, False))
        past: dict[bytes, bytes | None] = {}
        history = self.history
        known = history.among(rows) if isinstance(history, PartedDict) else ()
        for key in (*known, *departed):
            if key >= lower:
                past[key] = self.value_at(key, rows.get(key), sequence)
        return past


class Collection:
    """One named dictionary, queue or index.

    `generations` are the rows that were cleared and not discarded yet; `tail` is the next
    position of a queue and never decreases.
    """

    __slots__ = (
        "description",
        "generations",
        "id",
        "is_dropped",
        "is_new",
        "ready_since",
        "rows",
        "tail",
        "versioned_since",
        "watchers",
    )

    def __init__(self, identifier: int, description: Description) -> None:
        self.id = identifier
        self.description = description
        self.rows = Rows()
        self.generations: Past[Rows] = []
        self.tail = 0
        self.is_dropped = False
        self.is_new = False
        """Whether an open transaction creates it: no record does so yet."""
        self.ready_since = 0
        """For an index: the sequence from which on it covers every row."""
        self.versioned_since = 0
        """The sequence from which on versions are kept, 0 if they are not. It is the version of
        rows that were not written since."""
        self.watchers: list[Watcher] = []

    def version(self, key: bytes, sequence: int) -> int:
        """Return the version of an existing row as of a sequence; the collection keeps versions.

        A snapshot from before they were kept sees unknown versions of rows that have changed
        since: its own sequence, which no row has as its version.
        """
        rows = self.rows_at(sequence)
        known = rows.version(key, sequence)
        if known is not None:
            return known
        is_old = rows is not self.rows or rows.has_changed(key, sequence)
        return sequence if is_old and sequence < self.versioned_since else self.versioned_since

    def has_changed(self, key: bytes | None, since: int) -> bool:
        """Return whether a key (None: any key) was written after an open snapshot's sequence."""
        rows = self.rows
        if self.rows_at(since) is not rows:
            return True
        if key is not None:
            return rows.has_changed(key, since)
        return any(past[-1][0] > since for past in rows.history.values())

    def rows_at(self, sequence: int) -> Rows:
        """Return the generation that a snapshot sees."""
        place = _place_after(self.generations, sequence)
        return self.generations[place][1] if place < len(self.generations) else self.rows

    def find(self, key: bytes, sequence: int) -> bytes | None:
        return self.rows_at(sequence).find(key, sequence)

    def count(self, sequence: int) -> int:
        return self.rows_at(sequence).count(sequence)

    def scan(
        self,
        sequence: int,
        lower: bytes,
        upper: bytes | None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return the rows of the next `limit` keys, and the last of those keys if more follow.

        Keys whose row the snapshot does not see count too, so that a step is bounded work.
        Continue after the last key (before it, in reverse).
        """
        rows = self.rows_at(sequence)
        found = rows.newest(lower, upper, limit=limit, reverse=reverse)
        last = found[-1][0] if len(found) == limit else None
        if rows.history:
            seen = ((key, rows.value_at(key, value, sequence)) for key, value in found)
            return [(key, value) for key, value in seen if value is not None], last
        # Without a history every key has a value.
        return cast("list[tuple[bytes, bytes]]", found), last

    def pairs(self, sequence: int, *, limit: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all rows as of a sequence in key order, in steps of bounded work."""
        lower: bytes | None = b""
        while lower is not None:
            found, last = self.scan(sequence, lower, None, limit=limit)
            yield found
            lower = None if last is None else last + b"\x00"

    def pieces(self, sequence: int) -> Iterator[dict[bytes, bytes]]:
        """Yield all rows as of a sequence in key order, block by block.

        A piece must be used before the next write: it may be the dict that contains the rows.
        """
        lower: bytes | None = b""
        while lower is not None:
            rows, lower = self.rows_at(sequence).piece(lower, sequence)
            if rows:
                yield rows

    def touched_pieces(
        self, sequence: int, since: int, touched: Touched
    ) -> Iterator[dict[bytes, bytes]]:
        """Yield the touched rows as of a sequence in key order; the same holds as for `pieces`.

        After some blocks without any an empty piece is yielded, so that a step is bounded work.
        """
        gathered: dict[bytes, bytes] = {}
        lower: bytes | None = b""
        passed = 0
        while lower is not None:
            rows = self.rows_at(sequence)
            piece, lower = rows.touched_piece(lower, sequence, since, touched)
            passed += 1
            if piece:
                gathered |= piece
            if len(gathered) >= GATHERED_ROWS or passed >= PASSED_BLOCKS:
                yield gathered
                gathered, passed = {}, 0
        if gathered:
            yield gathered


class KeptOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The stored outcome of an idempotent transaction."""

    sequence: int
    expires: int
    result: bytes


class State:
    """All collections at one sequence, and the older versions that open snapshots see."""

    def __init__(self) -> None:
        self.sequence = 0
        self.epoch = 0
        self.primary = ""
        self.hash = NO_HASH
        self.ticks = 0
        """Wall clock of the newest record; the times of a primary are never earlier."""
        self.collections: dict[int, Collection] = {}
        self.names: dict[str, int] = {}
        self.next_collection = 1
        self._indexes: dict[int, list[Collection]] = {}
        self.outcomes: dict[str, KeptOutcome] = {}
        """May include outcomes that have expired."""
        self._expiring: list[tuple[int, str]] = []
        self._snapshots: dict[int, int] = {}
        """The number of open snapshots by sequence, in ascending order."""
        self._newest_snapshot = -1
        self._replaced = ReplacedOrder()
        """What is kept for snapshots, in the order in which it was replaced."""
        self._prune_left = PRUNE_WINDOW
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        """Calls a function in the next turn of the event loop, where pruning continues.
        Without it (nothing else shares the thread) each call to `prune` counts as a turn."""
        self.on_applied: Callable[[Record], None] | None = None
        """Called after the commits of a record were applied."""
        self.on_collection: Callable[[CollectionEvent, Collection], None] | None = None
        """Called when a record creates or drops a collection."""

    def apply(self, record: Record, new_hash: bytes) -> bool:
        """Change the state by the next record; return False if it came from a deposed primary.

        `new_hash` is the hash of the record. ChainBrokenError: the record is not the next one.
        """
        if record.sequence != self.sequence + 1:
            raise ChainBrokenError(
                "ChainBroken",
                f"Record {record.sequence} does not follow record {self.sequence}.",
                facts={"sequence": record.sequence, "applied": self.sequence},
                hint="Restore a backup: the log lost records or was mixed with another one.",
            )
        if record.epoch < self.epoch:
            self.sequence = record.sequence
            return False
        if record.previous != self.hash:
            raise ChainBrokenError(
                "ChainBroken",
                f"Record {record.sequence} does not continue the previous record.",
                facts={"sequence": record.sequence, "epoch": record.epoch},
                hint="Restore a backup: the log was changed or mixed with another one.",
            )
        sequence = self.sequence = record.sequence
        self.hash = new_hash
        self.epoch = record.epoch
        self.ticks = max(self.ticks, record.ticks)
        if record.primary:
            self.primary = record.primary
        for entry in record.entries:
            for operation in entry.operations:
                if isinstance(operation, Put):  # the most frequent operation
                    collection = self._collection(operation.collection)
                    self._put(collection, operation.key, operation.value, sequence)
                else:
                    self._apply(operation, sequence)
        self._forget_outcomes(FORGET_AT_ONCE + len(record.entries))
        if self._replaced.count:
            self.prune()
        if self.on_applied is not None and record.entries:
            self.on_applied(record)
        return True

    def indexes_of(self, owner: Collection) -> list[Collection]:
        """Return the indexes of a dictionary."""
        return self._indexes.get(owner.id, [])

    def find(self, name: str) -> Collection | None:
        identifier = self.names.get(name)
        return None if identifier is None else self.collections[identifier]

    def open_snapshot(self) -> int:
        """Keep the current versions until `close_snapshot`; return their sequence."""
        self._snapshots[self.sequence] = self._snapshots.get(self.sequence, 0) + 1
        self._newest_snapshot = self.sequence
        return self.sequence

    def close_snapshot(self, sequence: int) -> None:
        left = self._snapshots[sequence] - 1
        if left:
            self._snapshots[sequence] = left
            return
        del self._snapshots[sequence]
        self._newest_snapshot = next(reversed(self._snapshots), -1)
        self.prune()

    def prune(self) -> bool:
        """Discard versions that no snapshot can read; return whether all of them are discarded.

        At most PRUNE_AT_ONCE entries are discarded in one turn of the loop, however often this
        is called; the following turns continue without a call.
        """
        oldest = next(iter(self._snapshots), self.sequence)
        replaced = self._replaced
        if not replaced or replaced.first().sequence > oldest:
            return True
        if self.call_soon is None:
            self._prune_left = PRUNE_AT_ONCE
        elif self._prune_left == PRUNE_WINDOW:
            self.call_soon(self._begin_window)
        while replaced and replaced.first().sequence <= oldest:
            if not self._prune_left:
                return False
            self._prune_left -= 1
            self._discard_one()
        return True

    def _begin_window(self) -> None:
        self._prune_left = PRUNE_WINDOW
        self.prune()

    def _discard_one(self) -> None:
        """Discard the oldest entry, or one row of it if it is the rows before a clear."""
        first = self._replaced.first()
        sequence, kept, key = first.sequence, first.kept, first.key
        if isinstance(kept, Collection):
            rows = kept.generations[bisect_left(kept.generations, (sequence,))][1]
            if rows.values:
                gone, _ = rows.values.popitem()
                rows.versions.pop(gone, None)
                return
            _discard(kept.generations, sequence)
        elif key is None:
            _discard(kept.counts, sequence)
        else:
            versions = kept.history[key]
            if isinstance(versions, list):
                _discard(versions, sequence)
            if not versions or isinstance(versions, tuple):
                del kept.history[key]
                if not kept.history:
                    kept.history = {}
                if kept.departed and key not in kept.values:
                    kept.departed.remove(key)
        self._replaced.discard_first()

    def track_changes(self) -> dict[int, Touched | None]:
        """Note from now on which keys are touched; return those noted so far, by collection."""
        noted = {number: one.rows.touched for number, one in self.collections.items()}
        for collection in self.collections.values():
            collection.rows.touched = PartedDict()
        return noted

    def return_changes(self, noted: dict[int, Touched | None]) -> None:
        """Add what `track_changes` returned to what was noted since: it was not stored."""
        for number, earlier in noted.items():
            collection = self.collections.get(number)
            if collection is not None and collection.rows.touched is not None:
                if earlier is not None:
                    earlier.update(collection.rows.touched.pairs())
                collection.rows.touched = earlier

    def forget_changes(self) -> None:
        """Note no longer which keys are touched."""
        for collection in self.collections.values():
            collection.rows.touched = None

    def digest(self) -> str:
        """Return a hash of the whole state, equal on all replicas at the same sequence."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(_encode([self.sequence, self.epoch, self.hash, self.next_collection]))
        for identifier in sorted(self.collections):
            collection = self.collections[identifier]
            values = sorted(collection.rows.values.items())
            digest.update(_encode([identifier, collection.description, collection.tail, values]))
        # Replicas may have forgotten more or fewer of the expired ones.
        live = [each for each in self.outcomes.items() if each[1].expires > self.ticks]
        digest.update(_encode(sorted(live)))
        return digest.hexdigest()

    def restore(
        self, collections: Iterable[Collection], outcomes: Iterable[tuple[str, KeptOutcome]]
    ) -> None:
        """Add the content of a checkpoint; the caller sets sequence, epoch and hash."""
        for collection in collections:
            self._add(collection)
        self.outcomes = dict(outcomes)
        self._expiring = [(kept.expires, name) for name, kept in self.outcomes.items()]
        heapq.heapify(self._expiring)

    def replace_collections(
        self, collections: Iterable[Collection], outcomes: Iterable[tuple[str, KeptOutcome]]
    ) -> None:
        """Continue with the content of an increment."""
        self.collections, self.names, self._indexes = {}, {}, {}
        self.restore(collections, outcomes)

    def _apply(
        self,
        operation: Delete | Clear | Enqueue | Create | Alter | Drop | Outcome,
        sequence: int,
    ) -> None:
        match operation:
            case Delete(identifier, key):
                self._delete(self._collection(identifier), key, sequence)
            case Enqueue(identifier, value):
                collection = self._collection(identifier)
                position = collection.tail.to_bytes(POSITION_BYTES)
                collection.tail += 1
                self._put(collection, position, value, sequence)
            case Outcome(name, result, expires):
                self.outcomes.pop(name, None)  # the newest are the last
                self.outcomes[name] = KeptOutcome(sequence, expires, result)
                heapq.heappush(self._expiring, (expires, name))
            case Clear(identifier):
                self._clear(self._collection(identifier), sequence)
            case Create(identifier, description):
                self._create(identifier, _decode_description(description))
            case Alter(identifier, description):
                self._alter(self._collection(identifier), _decode_description(description))
            case Drop(identifier):
                self._drop(self._collection(identifier), sequence)

    def _put(self, collection: Collection, key: bytes, value: bytes, sequence: int) -> None:
        rows = collection.rows
        old = rows.values.put(key, value, sequence)
        if old is None and rows.departed and key in rows.history:
            rows.departed.remove(key)
        if self._snapshots:
            self._keep(rows, key, old, sequence, len(rows.values) - (old is None))
        if collection.versioned_since:
            rows.versions[key] = sequence
        if rows.touched is not None:
            rows.touched[key] = True
        for watch in collection.watchers:
            watch(sequence, key, old, value)

    def _delete(self, collection: Collection, key: bytes, sequence: int) -> None:
        rows = collection.rows
        old = rows.values.remove(key, sequence)
        if old is None:
            raise DamageError(
                "RecordMeaningless",
                f"Record {sequence} removes a key that does not exist.",
                facts={"sequence": sequence, "collection": collection.description.name},
                hint="Restore a backup: the log does not belong to this state.",
            )
        if self._snapshots:
            self._keep(rows, key, old, sequence, len(rows.values) + 1)
        rows.versions.pop(key, None)
        if rows.touched is not None:
            rows.touched[key] = False
        if key in rows.history:
            rows.departed.add(key)
        for watch in collection.watchers:
            watch(sequence, key, old, None)

    def _keep(self, rows: Rows, key: bytes, old: bytes | None, sequence: int, count: int) -> None:
        """Keep the version that a write replaced, and the count before, for open snapshots.

        A version that was written after the newest snapshot was opened is not kept, because no
        snapshot sees it: a key that is written often costs one version, not one per write.
        """
        newest = self._newest_snapshot
        versions = rows.history.get(key)
        if versions is None or versions[-1][0] <= newest:
            entry = (sequence, old, rows.versions.get(key))
            if versions is None:
                if not rows.history:
                    rows.history = PartedDict()
                rows.history[key] = (entry,)
            elif isinstance(versions, tuple):
                rows.history[key] = [*versions, entry]
            else:
                versions.append(entry)
            self._replaced.append(Kept(sequence, rows, key))
        if not rows.counts or rows.counts[-1][0] <= newest:
            rows.counts.append((sequence, count))
            self._replaced.append(Kept(sequence, rows, None))

    def _clear(self, collection: Collection, sequence: int) -> None:
        # Also without a snapshot: freeing many rows at once would block the event loop.
        collection.generations.append((sequence, collection.rows))
        self._replaced.append(Kept(sequence, collection, None))
        collection.rows = Rows()
        for watch in collection.watchers:
            watch(sequence, b"", None, None)

    def _create(self, identifier: int, description: Description) -> None:
        collection = Collection(identifier, description)
        if description.is_versioned:
            collection.versioned_since = self.sequence
        self._add(collection)
        self.next_collection = max(self.next_collection, identifier + 1)
        if self.on_collection is not None:
            self.on_collection("added", collection)

    def _add(self, collection: Collection) -> None:
        description = collection.description
        self.collections[collection.id] = collection
        self.names[description.name] = collection.id
        if description.owner:
            self._indexes.setdefault(description.owner, []).append(collection)

    def _alter(self, collection: Collection, description: Description) -> None:
        if description.is_ready and not collection.description.is_ready:
            collection.ready_since = self.sequence
        if description.is_versioned != collection.description.is_versioned:
            collection.versioned_since = self.sequence if description.is_versioned else 0
            collection.rows.versions.clear()
            collection.rows.touched = None
        collection.description = description

    def _drop(self, collection: Collection, sequence: int) -> None:
        self._clear(collection, sequence)
        collection.is_dropped = True
        del self.collections[collection.id]
        del self.names[collection.description.name]
        self._indexes.pop(collection.id, None)
        if collection.description.owner in self._indexes:
            self._indexes[collection.description.owner].remove(collection)
        if self.on_collection is not None:
            self.on_collection("dropped", collection)

    def _collection(self, identifier: int) -> Collection:
        try:
            return self.collections[identifier]
        except KeyError:
            raise DamageError(
                "RecordMeaningless",
                f"Record {self.sequence} writes to a collection that does not exist.",
                facts={"sequence": self.sequence, "collection": identifier},
                hint="Restore a backup: the log does not belong to this state.",
            ) from None

    def _forget_outcomes(self, count: int) -> None:
        """Remove some of the outcomes that have expired by the time of the newest record.

        The others are ignored by readers, and later records remove them: more than one expires
        for each new one only after a pause or a jump of the clock.
        """
        while count and self._expiring and self._expiring[0][0] <= self.ticks:
            count -= 1
            expires, name = heapq.heappop(self._expiring)
            kept = self.outcomes.get(name)
            if kept is not None and kept.expires == expires:  # otherwise the key was used again
                del self.outcomes[name]


def _place_after(past: Sequence[tuple[Any, ...]], sequence: int) -> int:
    """Return the index of the first entry that was replaced after a sequence."""
    return bisect_left(past, (sequence + 1,))


def _discard(past: list[Any], sequence: int) -> None:
    """Discard the oldest entry, which was replaced at a sequence.

    Discarded entries stay in front until they are half of the list: moving the others for each
    of them would take quadratic time.
    """
    place = bisect_left(past, (sequence,))
    past[place] = _DISCARDED
    if 2 * (place + 1) >= len(past):
        del past[: place + 1]


def _decode_description(raw: bytes) -> Description:
    try:
        return _description_decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise DamageError(
            "RecordMeaningless", "A record contains an unreadable description of a collection."
        ) from error
