"""The embedded queue store on the account's SQLite database, on disk or in memory.

    queue          id, name, metadata, policies    a cleared queue gets a new id
    message_count  queue_id, messages              updated with each change
    message        sequence, queue_id, nonce, …    in order of visibility by an index
    dropped_queue  id                              whose messages are still being removed

A claim reads the first rows of the index, so its cost does not depend on the number of messages.
Expired messages are removed by the claim that finds them, and by a sweep. `visible_at` is in the
steady time of the account, which no leap of the wall clock changes.
"""

import asyncio
import contextlib
import hmac
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from partita.errors import UnavailableError
from partita.policies import Policy
from partita.queues.message import (
    NONCE_BYTES,
    SECRET_BYTES,
    Message,
    MessagePlace,
    StoredMessage,
    expiry_of,
    message_damaged,
    new_receipt,
    nonce_of,
    pack_text,
    unpack_text,
)
from partita.queues.refusals import (
    beyond_expiry,
    message_not_found,
    queue_exists,
    queue_not_found,
    receipt_mismatch,
)
from partita.queues.store import Queue, is_same_metadata
from partita.storage.database import Database, Upgrades
from partita.storage.store_clock import StoreClock
from partita.ticks import TICKS_PER_SECOND

logger = logging.getLogger("partita.queues")

FORMAT_VERSION = 2
SCHEMA = """
CREATE TABLE queue (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, metadata BLOB NOT NULL,
  policies BLOB NOT NULL
);
CREATE TABLE message_count (queue_id INTEGER PRIMARY KEY, messages INTEGER NOT NULL);
CREATE TABLE dropped_queue (id INTEGER PRIMARY KEY);
CREATE TABLE message (
  sequence INTEGER PRIMARY KEY, queue_id INTEGER NOT NULL, nonce INTEGER NOT NULL,
  inserted_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, visible_at INTEGER NOT NULL,
  dequeue_count INTEGER NOT NULL, receipt BLOB NOT NULL, text TEXT NOT NULL
);
CREATE INDEX message_visibility ON message (queue_id, visible_at);
CREATE INDEX message_expiry ON message (expires_at);
"""


def _keep_texts(_connection: apsw.Connection) -> None:
    """Keep texts without a checksum: messages that are put or updated get one."""


UPGRADES: Upgrades = {1: _keep_texts}

SWEEP_SECONDS = 10.0
"""How often the sweep removes expired messages."""
SWEEP_MESSAGES = 500
"""Messages that one change removes: about two milliseconds' work."""
SWEEP_PAUSE_SECONDS = 0.005

_INSERT = (
    "INSERT INTO message (queue_id, nonce, inserted_at, expires_at, visible_at, dequeue_count,"
    " receipt, text) VALUES (?, ?, ?, ?, ?, 0, ?, ?)"
)
_COLUMNS = (
    "SELECT sequence, nonce, text, inserted_at, expires_at, visible_at, dequeue_count, receipt"
    " FROM message WHERE "
)
_VISIBLE = _COLUMNS + "queue_id = ? AND visible_at <= ? ORDER BY visible_at, sequence LIMIT ?"
_ALIVE = (
    _COLUMNS + "queue_id = ? AND visible_at <= ? AND expires_at > ?"
    " ORDER BY visible_at, sequence LIMIT ?"
)
_ONE = _COLUMNS + "sequence = ? AND queue_id = ? AND nonce = ? AND expires_at > ?"
_CLAIM = "UPDATE message SET visible_at = ?, dequeue_count = ?, receipt = ? WHERE sequence = ?"
_HIDE = "UPDATE message SET visible_at = expires_at WHERE sequence = ?"
_UPDATE = "UPDATE message SET visible_at = ?, receipt = ?, text = ? WHERE sequence = ?"
_DELETE = (
    "DELETE FROM message WHERE sequence = ? AND queue_id = ? AND nonce = ? AND receipt = ?"
    " AND expires_at > ?"
)
_COUNT = "UPDATE message_count SET messages = messages + ? WHERE queue_id = ?"
_REMOVE_MET = (
    "DELETE FROM message WHERE expires_at <= ? AND sequence IN (SELECT sequence FROM message"
    " WHERE queue_id = ? AND visible_at <= ? ORDER BY visible_at, sequence LIMIT ?)"
)
_REMOVE_EXPIRED = (
    "DELETE FROM message WHERE sequence IN (SELECT sequence FROM message"
    " WHERE expires_at <= ? ORDER BY expires_at LIMIT ?) RETURNING queue_id"
)
_REMOVE_DROPPED = (
    "DELETE FROM message WHERE sequence IN"
    " (SELECT sequence FROM message WHERE queue_id = ? LIMIT ?)"
)
_QUEUE = (
    "SELECT name, metadata, messages FROM queue JOIN message_count ON queue_id = queue.id"
    " WHERE name = ?"
)
_LIST = (
    "SELECT name, metadata, messages FROM queue JOIN message_count ON queue_id = queue.id"
    " WHERE name >= max(?1, ?2) AND name < ?1 || char(0x10ffff) ORDER BY name LIMIT ?3"
)

_decode_policies = msgspec.json.Decoder(list[Policy]).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class SqliteQueueStore:
    """A QueueStore on a Database; see partita.queues.store for the contract."""

    _sweeping: "asyncio.Task[None] | None" = None

    def __init__(self, database: Database, clock: StoreClock) -> None:
        self.database = database
        self._clock = clock
        database.prepare("queues", FORMAT_VERSION, SCHEMA, UPGRADES)
        self._ids: dict[str, int] = dict(database.reader.execute("SELECT name, id FROM queue"))
        """Committed queues by name; changed only after a commit."""
        self._has_dropped = asyncio.Event()

    @classmethod
    async def open(cls, database: Database, clock: StoreClock) -> "SqliteQueueStore":
        store = cls(database, clock)
        store._sweeping = asyncio.get_running_loop().create_task(store._keep_sweeping())
        return store

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    # Queues

    async def create_queue(self, name: str, metadata: Mapping[str, str]) -> bool:
        return await _unbroken(self._create_queue(name, metadata))

    async def _create_queue(self, name: str, metadata: Mapping[str, str]) -> bool:
        async with self.database.change() as connection:
            found: Any = connection.execute(
                "SELECT id, metadata FROM queue WHERE name = ?", (name,)
            ).fetchone()
            if found is None:
                identity = _insert_queue(connection, name, _encode(metadata), b"[]")
            elif not is_same_metadata(_decode_metadata(found[1]), metadata):
                raise queue_exists(name)
            else:
                identity = found[0]
        self._ids[name] = identity
        return found is None

    async def delete_queue(self, name: str) -> None:
        await _unbroken(self._delete_queue(name))

    async def _delete_queue(self, name: str) -> None:
        async with self.database.change(frees_space=True) as connection:
            identity, *_ = _take_queue(connection, name)
        if self._ids.get(name) == identity:
            del self._ids[name]
        self._has_dropped.set()

    async def clear(self, name: str) -> None:
        await _unbroken(self._clear(name))

    async def _clear(self, name: str) -> None:
        async with self.database.change(frees_space=True) as connection:
            old, metadata, policies = _take_queue(connection, name)
            new = _insert_queue(connection, name, metadata, policies)
        if self._ids.get(name) == old:
            self._ids[name] = new
        self._has_dropped.set()

    async def get_queue(self, name: str) -> Queue:
        # By name: a reader sees a clear before `_ids` is updated.
        reader = self.database.reader_of_this_turn()
        row: Any = reader.execute(_QUEUE, (name,)).fetchone()
        if row is None:
            raise queue_not_found(name)
        return _queue(row)

    async def list_queues(self, prefix: str, start: str, limit: int) -> list[Queue]:
        def read(connection: apsw.Connection) -> list[Queue]:
            return [_queue(row) for row in connection.execute(_LIST, (prefix, start, limit))]

        return await self.database.in_reader(read)

    async def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        async with self.database.change() as connection:
            connection.execute(
                "UPDATE queue SET metadata = ? WHERE name = ?", (_encode(metadata), name)
            )
            _check_found(connection, name)

    async def get_policies(self, name: str) -> list[Policy]:
        reader = self.database.reader_of_this_turn()
        stored: Any = reader.execute("SELECT policies FROM queue WHERE name = ?", (name,)).get
        if stored is None:
            raise queue_not_found(name)
        return _decode_policies(stored)

    async def set_policies(self, name: str, policies: Sequence[Policy]) -> None:
        async with self.database.change() as connection:
            connection.execute(
                "UPDATE queue SET policies = ? WHERE name = ?", (_encode(policies), name)
            )
            _check_found(connection, name)

    # Messages

    async def put(
        self, name: str, text: str, *, hidden_seconds: int, lifetime_seconds: int | None
    ) -> Message:
        async with self.database.change() as connection:
            identity, now = self._id(name), self._clock.next()
            nonce = nonce_of(self._clock.clock.random_bytes(NONCE_BYTES))
            expires_at = expiry_of(now, lifetime_seconds)
            visible_at = self._clock.next_steady() + hidden_seconds * TICKS_PER_SECOND
            receipt = self._new_receipt(now)
            connection.execute(
                _INSERT,
                (identity, nonce, now, expires_at, visible_at, receipt, pack_text(nonce, text)),
            )
            sequence = connection.last_insert_rowid()
            connection.execute(_COUNT, (1, identity))
        return StoredMessage(
            sequence, nonce, text, now, expires_at, visible_at, 0, receipt
        ).message()

    async def claim(self, name: str, limit: int, *, hidden_seconds: int) -> list[Message]:
        claimed: list[Message] | None = None
        while claimed is None:
            # Receiving messages can free a full disk, so a claim may use the reserve.
            async with self.database.change(frees_space=True) as connection:
                claimed = self._claim(connection, self._id(name), limit, hidden_seconds)
        return claimed

    def _claim(
        self, connection: apsw.Connection, identity: int, limit: int, hidden_seconds: int
    ) -> list[Message] | None:
        """Claim visible messages; None: again, after expired or damaged ones were taken away."""
        now, steady = self._clock.next(), self._clock.next_steady()
        rows = _rows(connection, _VISIBLE, (identity, steady, limit))
        if any(row.expires_at <= now for row in rows):
            # At least the range that was read, or expired messages after valid ones would stay.
            count = max(limit, SWEEP_MESSAGES)
            connection.execute(_REMOVE_MET, (now, identity, steady, count))
            connection.execute(_COUNT, (-connection.changes(), identity))
            rows = _rows(connection, _VISIBLE, (identity, steady, limit))
            if any(row.expires_at <= now for row in rows):
                return None
        damaged = [(row.sequence,) for row in rows if row.text is None]
        if damaged:
            # Not an error: it would keep all messages after them from being received.
            logger.error("%d damaged messages of queue %d are hidden", len(damaged), identity)
            connection.executemany(_HIDE, damaged)
            return None
        until = steady + hidden_seconds * TICKS_PER_SECOND
        claimed = [
            row._replace(
                visible_at=until + n,  # one tick apart, so that they become visible in their order
                dequeue_count=row.dequeue_count + 1,
                receipt=self._new_receipt(now),
            )
            for n, row in enumerate(rows)
        ]
        connection.executemany(
            _CLAIM,
            [(row.visible_at, row.dequeue_count, row.receipt, row.sequence) for row in claimed],
        )
        return [row.message() for row in claimed]

    async def peek(self, name: str, limit: int) -> list[Message]:
        identity, now, steady = self._id(name), self._clock.now(), self._clock.steady()
        rows = _rows(self.database.reader_of_this_turn(), _VISIBLE, (identity, steady, limit))
        if any(row.expires_at <= now for row in rows):
            # The number of expired messages to skip is unknown, and a peek removes nothing.
            rows = await self.database.in_reader(
                lambda reader: _rows(reader, _ALIVE, (identity, steady, now, limit))
            )
        return [row.message() for row in rows if row.text is not None]

    async def update(
        self,
        name: str,
        place: MessagePlace,
        receipt: bytes,
        *,
        hidden_seconds: int,
        text: str | None,
    ) -> Message:
        async with self.database.change() as connection:
            now = self._clock.next()
            row = self._held(connection, name, place, receipt, now)
            hidden = hidden_seconds * TICKS_PER_SECOND
            if now + hidden > row.expires_at:
                raise beyond_expiry(hidden_seconds)
            visible_at = self._clock.next_steady() + hidden
            kept = row.text if text is None else text
            if kept is None:
                raise message_damaged(place)
            changed = row._replace(
                text=kept,
                visible_at=visible_at,
                receipt=self._new_receipt(now),
            )
            connection.execute(
                _UPDATE,
                (visible_at, changed.receipt, pack_text(row.nonce, kept), changed.sequence),
            )
        return changed.message()

    async def delete(self, name: str, place: MessagePlace, receipt: bytes) -> None:
        async with self.database.change(frees_space=True) as connection:
            identity, now = self._id(name), self._clock.next()
            connection.execute(_DELETE, (place.sequence, identity, place.nonce, receipt, now))
            if connection.changes() == 0:
                self._held(connection, name, place, receipt, now)
            connection.execute(_COUNT, (-1, identity))

    def _held(
        self, connection: apsw.Connection, name: str, place: MessagePlace, receipt: bytes, now: int
    ) -> StoredMessage:
        """Return the row of a message with this receipt, or raise."""
        rows = _rows(connection, _ONE, (place.sequence, self._id(name), place.nonce, now))
        if not rows:
            raise message_not_found(name, place)
        if not hmac.compare_digest(rows[0].receipt, receipt):
            raise receipt_mismatch(name, place)
        return rows[0]

    def _new_receipt(self, now: int) -> bytes:
        return new_receipt(now, self._clock.clock.random_bytes(SECRET_BYTES))

    def _id(self, name: str) -> int:
        identity = self._ids.get(name)
        if identity is None:
            raise queue_not_found(name)
        return identity

    # Space of dropped and expired messages

    async def sweep(self) -> None:
        while await self._sweep_some():  # noqa: ASYNC110 - a pause, not a wait
            await asyncio.sleep(SWEEP_PAUSE_SECONDS)

    async def _keep_sweeping(self) -> None:
        while self.database.is_writable:
            # A full or busy disk only delays it; a stopped one ends the loop.
            with contextlib.suppress(UnavailableError):
                await self.sweep()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._has_dropped.wait()
            self._has_dropped.clear()

    async def _sweep_some(self) -> bool:
        """Remove a few messages; return whether there may be more."""
        reader = self.database.reader
        dropped = reader.execute("SELECT id FROM dropped_queue LIMIT 1").get
        if dropped is not None:
            await self._remove_dropped(dropped)
            return True
        earliest: Any = reader.execute("SELECT min(expires_at) FROM message").get
        if earliest is None or earliest > self._clock.now():
            return False
        await self._remove_expired()
        return True

    async def _remove_dropped(self, identity: int) -> None:
        async with self.database.change(frees_space=True) as connection:
            connection.execute(_REMOVE_DROPPED, (identity, SWEEP_MESSAGES))
            if connection.changes() == 0:
                connection.execute("DELETE FROM dropped_queue WHERE id = ?", (identity,))

    async def _remove_expired(self) -> None:
        async with self.database.change(frees_space=True) as connection:
            removed = connection.execute(
                _REMOVE_EXPIRED, (self._clock.next(), SWEEP_MESSAGES)
            ).fetchall()
            counts = Counter(identity for (identity,) in removed)
            connection.executemany(
                _COUNT, [(-count, identity) for identity, count in counts.items()]
            )


def _insert_queue(connection: apsw.Connection, name: str, metadata: bytes, policies: bytes) -> int:
    connection.execute(
        "INSERT INTO queue (name, metadata, policies) VALUES (?, ?, ?)", (name, metadata, policies)
    )
    identity = connection.last_insert_rowid()
    connection.execute("INSERT INTO message_count VALUES (?, 0)", (identity,))
    return identity


def _take_queue(connection: apsw.Connection, name: str) -> tuple[int, bytes, bytes]:
    """Remove a queue from the catalog; the sweep removes its messages."""
    row: Any = connection.execute(
        "DELETE FROM queue WHERE name = ? RETURNING id, metadata, policies", (name,)
    ).fetchone()
    if row is None:
        raise queue_not_found(name)
    connection.execute("DELETE FROM message_count WHERE queue_id = ?", (row[0],))
    connection.execute("INSERT INTO dropped_queue VALUES (?)", (row[0],))
    return row[0], row[1], row[2]


def _check_found(connection: apsw.Connection, name: str) -> None:
    if connection.changes() == 0:
        raise queue_not_found(name)


def _queue(row: Any) -> Queue:
    name, metadata, messages = row
    return Queue(name, _decode_metadata(metadata), messages)


def _rows(
    connection: apsw.Connection, sql: str, parameters: tuple[Any, ...]
) -> list[StoredMessage]:
    found: list[Any] = connection.execute(sql, parameters).fetchall()
    return [
        StoredMessage(sequence, nonce, unpack_text(nonce, text), *rest)
        for sequence, nonce, text, *rest in found
    ]


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even if the caller is cancelled: the cache must follow every commit."""
    return await asyncio.shield(asyncio.ensure_future(work))
