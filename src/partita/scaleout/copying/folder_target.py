"""A folder as the target of a copy.

Its database has two more tables until the copy is complete; while they exist, nothing else opens
it. The tables, queues and containers get their names at the end.

    copy        source | shift
    copy_part   kind, name | head | id in the target | last key | is_done | differs
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from partita.blobs.store.files import FolderFiles
from partita.blobs.store.rows import FORMAT_VERSION as BLOBS_VERSION
from partita.blobs.store.rows import SCHEMA as BLOBS_SCHEMA
from partita.blobs.store.rows import UPGRADES as BLOBS_UPGRADES
from partita.errors import ConfigurationError
from partita.queues.message import pack_text
from partita.queues.sqlite_store import FORMAT_VERSION as QUEUES_VERSION
from partita.queues.sqlite_store import SCHEMA as QUEUES_SCHEMA
from partita.queues.sqlite_store import UPGRADES as QUEUES_UPGRADES
from partita.scaleout.copying.contract import Pieces, not_empty, other_source
from partita.scaleout.copying.folder_rows import OLD_MARK, FolderRows
from partita.scaleout.copying.folder_source import content_path, in_thread, next_batch, read_file
from partita.scaleout.copying.parts import CopyPart, Kind, Moment, Row, State, key_of, states_of
from partita.storage.database import COPY_TABLE, DATABASE_FILE, Database
from partita.storage.store_clock import StoreClock
from partita.tables import pushdown
from partita.tables.entity import Entity, pack_document
from partita.tables.sqlite_store import FORMAT_VERSION as TABLES_VERSION
from partita.tables.sqlite_store import SCHEMA as TABLES_SCHEMA
from partita.tables.sqlite_store import UPGRADES as TABLES_UPGRADES
from partita.ticks import Clock

_RECORD = f"""
CREATE TABLE {COPY_TABLE} (
  id INTEGER PRIMARY KEY CHECK (id = 1), source TEXT NOT NULL, shift INTEGER NOT NULL
);
CREATE TABLE copy_part (
  kind TEXT NOT NULL, name TEXT NOT NULL, head BLOB NOT NULL, target INTEGER NOT NULL, last BLOB,
  is_done INTEGER NOT NULL, differs INTEGER NOT NULL, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
"""
_FORGET = f"DROP TABLE copy_part; DROP TABLE {COPY_TABLE}"
_PUT: Mapping[Kind, str] = {
    "extents": "INSERT INTO extent (id, size, hash, checks, bytes) VALUES (?, ?, ?, ?, ?)",
    "contents": "INSERT INTO piece VALUES (?, ?, ?, ?, ?, ?)",
    "container": "INSERT INTO blob VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "blocks": "INSERT INTO block VALUES (?, ?, ?, ?, ?, ?)",
    "table": "INSERT INTO entity VALUES (?, ?, ?, ?, ?, jsonb(?), ?)",
    "queue": "INSERT INTO message (queue_id, sequence, nonce, inserted_at, expires_at, visible_at,"
    " dequeue_count, receipt, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
}
_ERASE: Mapping[Kind, str] = {
    "extents": "DELETE FROM extent",
    "contents": "DELETE FROM piece",
    "container": "DELETE FROM blob WHERE container = ?",
    "blocks": "DELETE FROM block WHERE container = ?",
    "table": "DELETE FROM entity WHERE tid = ?",
    "queue": "DELETE FROM message WHERE queue_id = ?",
}
_NAME: Mapping[Kind, str] = {
    "container": "INSERT INTO container (id, name, facts) VALUES (?, ?, ?)",
    "table": "INSERT INTO catalog (id, folded, name, policies) VALUES (?, ?, ?, ?)",
    "queue": "INSERT INTO queue (id, name, metadata, policies) VALUES (?, ?, ?, ?)",
}
_COUNT_MESSAGES = (
    "INSERT INTO message_count SELECT id, (SELECT count(*) FROM message WHERE queue_id = queue.id)"
    " FROM queue"
)
_SET_MARK = (
    "INSERT INTO clock VALUES (1, ?) ON CONFLICT DO UPDATE SET mark = max(mark, excluded.mark)"
)
_HAS_ROWS = (
    "SELECT EXISTS (SELECT 1 FROM catalog) OR EXISTS (SELECT 1 FROM queue)"
    f" OR EXISTS (SELECT 1 FROM container) OR EXISTS (SELECT 1 FROM setting WHERE name <> "
    f"'{OLD_MARK}')"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Any, ...]).decode


class FolderTarget:
    """A folder that becomes an account; other processes are kept out until it is complete."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder.absolute()
        self.identity = f"folder {self.folder}"
        self._clock = clock
        self._database: Database | None = None

    async def open(self) -> None:
        if (self.folder.parent / DATABASE_FILE).exists():
            raise ConfigurationError(
                "FolderUnusable",
                f"The folder {self.folder.parent} is the folder of an account.",
                hint=f"Give its parent folder: {self.folder.parent.parent}",
            )
        self._database = database = await Database.open(self.folder, is_copying=True)
        self._store_clock = StoreClock(database, self._clock)
        database.prepare("tables", TABLES_VERSION, TABLES_SCHEMA, TABLES_UPGRADES)
        database.prepare("queues", QUEUES_VERSION, QUEUES_SCHEMA, QUEUES_UPGRADES)
        database.prepare("blobs", BLOBS_VERSION, BLOBS_SCHEMA, BLOBS_UPGRADES)
        self._files = FolderFiles(self.folder)
        self._files.clear_incoming()
        self._rows = FolderRows(database.reader, is_target=True)

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()
            self._database = None

    @property
    def database(self) -> Database:
        assert self._database is not None
        return self._database

    async def clocks(self) -> Moment:
        return Moment(self._store_clock.steady(), self._store_clock.now())

    async def begin(self, source: str, shift: int) -> int:
        """Begin a copy or continue one; return the shift of its times."""
        reader = self.database.reader
        if reader.table_exists("main", COPY_TABLE):
            recorded: Any = reader.execute("SELECT source, shift FROM copy").fetchone()
            if recorded[0] != source:
                raise other_source(self.identity, recorded[0])
            return int(recorded[1])
        if reader.execute(_HAS_ROWS).get:
            raise not_empty(self.identity)
        async with self.database.change() as connection:
            connection.execute(_RECORD)
            connection.execute("INSERT INTO copy VALUES (1, ?, ?)", (source, shift))
        return shift

    async def states(self) -> dict[CopyPart, State]:
        rows: Any = self.database.reader.execute(
            "SELECT kind, name, target, head, last, is_done, differs FROM copy_part"
        )
        return {
            CopyPart(kind, name): State(
                target,
                _decode(head),
                None if last is None else _decode(last),
                bool(is_done),
                bool(differs),
            )
            for kind, name, target, head, last, is_done, differs in rows
        }

    async def start(self, part: CopyPart, head: Row, state: State | None) -> State:
        """Begin a part with nothing in it."""
        async with self.database.change() as connection:
            target = 0
            if state is not None:
                target = state.target
                _erase(connection, part, target)
            elif part.kind == "blocks":
                target = _target_of(connection, CopyPart("container", part.name))
            elif part.name:
                target = 1 + _target_max(connection)
            connection.execute(
                "INSERT OR REPLACE INTO copy_part VALUES (?, ?, ?, ?, NULL, 0, 0)",
                (part.kind, part.name, _encode(head), target),
            )
        return State(target, head)

    async def drop(self, part: CopyPart, state: State) -> None:
        """Remove a part that the source has no more."""
        async with self.database.change() as connection:
            _erase(connection, part, state.target)
            connection.execute(
                "DELETE FROM copy_part WHERE kind = ? AND name = ?", (part.kind, part.name)
            )

    async def write(self, part: CopyPart, state: State, rows: Sequence[Row]) -> None:
        """Write a batch, and record how far the part is."""
        stored = list(_stored(part, state.target, rows))
        last = _encode(key_of(part, rows[-1]))
        async with self.database.change() as connection:
            connection.executemany(_PUT[part.kind], stored)
            self._update(connection, part, "last = ?", last)

    async def complete(self, part: CopyPart) -> None:
        async with self.database.change() as connection:
            self._update(connection, part, "is_done = 1")

    async def repeat(self, parts: Sequence[CopyPart]) -> None:
        """Record that parts differ."""
        async with self.database.change() as connection:
            for part in parts:
                self._update(connection, part, "is_done = 0, differs = 1")

    async def rows(self, part: CopyPart, state: State, alive_at: int) -> AsyncGenerator[list[Row]]:
        def read() -> Iterator[Row]:
            return self._rows.rows(part, None, alive_at, state.target)

        found = await in_thread(read, self.folder)
        while batch := await in_thread(lambda: next_batch(found), self.folder):
            yield batch

    async def put_content(self, digest: bytes, size: int, pieces: Pieces) -> None:
        path = content_path(self.folder, digest)
        if path.is_file() and path.stat().st_size == size:
            return
        if (content := await pieces()) is None:
            return
        incoming = await asyncio.to_thread(self._files.begin, self._clock.new_id())
        try:
            async for piece in content:
                await asyncio.to_thread(incoming.write, piece)
            await asyncio.to_thread(self._files.place, incoming, digest)
        finally:
            self._files.discard(incoming)

    async def digest_of(self, digest: bytes) -> bytes | None:
        """Return the SHA-256 of a stored content; None if it is missing."""
        try:
            descriptor = os.open(content_path(self.folder, digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        found = hashlib.sha256()
        async for piece in read_file(descriptor):
            found.update(piece)
        return found.digest()

    async def forget(self) -> None:
        async with self.database.change() as connection:
            connection.execute(_FORGET)

    async def finish(self, stamp: int) -> None:
        """Give the parts their names, and let other processes in: in one transaction."""
        states = await self.states()
        async with self.database.change() as connection:
            for part, state in states.items():
                if part.kind == "settings":
                    pairs = zip(state.head[::2], state.head[1::2], strict=True)
                    connection.executemany("INSERT INTO setting VALUES (?, ?)", pairs)
                if part.kind in _NAME:
                    connection.execute(_NAME[part.kind], (state.target, part.name, *state.head))
            connection.execute(_COUNT_MESSAGES)
            connection.execute(_SET_MARK, (stamp,))
            connection.execute(_FORGET)

    def _update(
        self, connection: apsw.Connection, part: CopyPart, change: str, *values: object
    ) -> None:
        connection.execute(
            f"UPDATE copy_part SET {change} WHERE kind = ? AND name = ?",
            (*values, part.kind, part.name),
        )


def _stored(part: CopyPart, target: int, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows as the tables of the folder have them."""
    for row in rows:
        if part.kind == "table":
            entity = Entity(*row)
            properties = entity.properties()
            marks, short = pushdown.columns_of(properties)
            stored = pack_document(entity.ticks, entity.document)
            yield target, *row[:3], marks, short, stored
        elif part.kind == "queue":
            yield target, *row[:-1], pack_text(row[1], row[-1])
        elif part.kind == "container":
            yield target, *row, *states_of(row)
        elif part.name:
            yield target, *row
        else:
            yield row


def _erase(connection: apsw.Connection, part: CopyPart, target: int) -> None:
    statement = _ERASE.get(part.kind, "")
    connection.execute(statement, (target,) * statement.count("?"))


def _target_of(connection: apsw.Connection, part: CopyPart) -> int:
    found: Any = connection.execute(
        "SELECT target FROM copy_part WHERE kind = ? AND name = ?", (part.kind, part.name)
    ).get
    return int(found)


def _target_max(connection: apsw.Connection) -> int:
    found: Any = connection.execute("SELECT coalesce(max(target), 0) FROM copy_part").get
    return int(found)
