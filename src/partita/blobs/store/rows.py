"""The rows of containers, blobs, blocks and content, in the account's database.

A content is a number; its pieces map places to ranges of extents. The bytes of an extent are in
its row, or in the file of its hash. Blobs and snapshots share contents, contents share extents:
instead of reference counts, indexes show what is in use. A content that may be unused becomes a
dropped content; only the collector deletes extents. A replaced piece of a page blob also becomes
a dropped content, with the blob's content as its `origin`: readers of the origin pin it.

    container          id | name | facts
    blob               container, name, snapshot (names.LIVE: the blob itself) | content | facts
                       | state, expires_at: they follow from the facts
    block              container, name, id | extent, size | staged_at
    piece              content, place | size | start in the extent | extent | id of the block
    extent             id | size | hash, or bytes | a check for each chunk
    dropped_content    content | origin
    dropped_container  id

An earlier version and a deleted blob are rows like those of snapshots: see stored_format.
A deleted container has a name with its version (names.deleted_name).
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apsw

from partita.blobs.rules import limits
from partita.blobs.rules import stored_format as stored
from partita.blobs.rules.listing import FoundPlace
from partita.blobs.rules.names import DELETED_MARK, LIVE
from partita.blobs.rules.stored_format import DELETED, PLAIN, TAGGED, StoredContainer
from partita.blobs.store.contract import (
    EMPTY,
    BlobRow,
    BlockRow,
    ContainerRow,
    LongChangeError,
    PieceRow,
    Received,
    TaggedRow,
)
from partita.blobs.store.pieces import remains
from partita.blobs.store.upload import StoredContent
from partita.storage.database import Upgrades
from partita.storage.store_clock import StoreClock

FORMAT_VERSION = 2
SCHEMA = """
CREATE TABLE container (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, facts BLOB NOT NULL
);
CREATE TABLE dropped_container (id INTEGER PRIMARY KEY);
CREATE TABLE blob (
  container INTEGER NOT NULL, name TEXT NOT NULL, snapshot INTEGER NOT NULL,
  is_committed INTEGER NOT NULL, content INTEGER NOT NULL, facts BLOB NOT NULL,
  state INTEGER NOT NULL DEFAULT 0, expires_at INTEGER,
  PRIMARY KEY (container, name, snapshot)
) WITHOUT ROWID;
CREATE INDEX blob_content ON blob (content);
CREATE INDEX blob_tagged ON blob (container, name) WHERE state = 1;
CREATE INDEX blob_expires ON blob (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE block (
  container INTEGER NOT NULL, name TEXT NOT NULL, id TEXT NOT NULL, extent INTEGER NOT NULL,
  size INTEGER NOT NULL, staged_at INTEGER NOT NULL, PRIMARY KEY (container, name, id)
) WITHOUT ROWID;
CREATE INDEX block_extent ON block (extent);
CREATE TABLE piece (
  content INTEGER NOT NULL, place INTEGER NOT NULL, size INTEGER NOT NULL,
  start INTEGER NOT NULL, extent INTEGER NOT NULL, block TEXT, PRIMARY KEY (content, place)
) WITHOUT ROWID;
CREATE INDEX piece_extent ON piece (extent);
CREATE TABLE extent (
  id INTEGER PRIMARY KEY, size INTEGER NOT NULL, hash BLOB, checks BLOB NOT NULL, bytes BLOB
);
CREATE INDEX extent_hash ON extent (hash) WHERE hash IS NOT NULL;
CREATE TABLE dropped_content (content INTEGER PRIMARY KEY, origin INTEGER NOT NULL);
"""

EARLIER_SCHEMA = """
CREATE TABLE blob (
  container INTEGER NOT NULL, name TEXT NOT NULL, snapshot INTEGER NOT NULL,
  is_committed INTEGER NOT NULL, content INTEGER NOT NULL, facts BLOB NOT NULL,
  PRIMARY KEY (container, name, snapshot)
) WITHOUT ROWID;
"""
"""The tables of format 1 that differ."""
_UPGRADE_TO_2 = """
ALTER TABLE blob ADD COLUMN state INTEGER NOT NULL DEFAULT 0;
ALTER TABLE blob ADD COLUMN expires_at INTEGER;
CREATE INDEX blob_tagged ON blob (container, name) WHERE state = 1;
CREATE INDEX blob_expires ON blob (expires_at) WHERE expires_at IS NOT NULL;
"""


def _add_states(connection: apsw.Connection) -> None:
    """Add the columns of format 2, and mark the blobs that have tags."""
    connection.execute(_UPGRADE_TO_2)
    tagged = [
        (TAGGED, container, name, LIVE)
        for container, name, facts in connection.execute(
            "SELECT container, name, facts FROM blob WHERE snapshot = ? AND is_committed", (LIVE,)
        )
        if stored.decode_blob(facts).tags
    ]
    connection.executemany(
        "UPDATE blob SET state = ? WHERE container = ? AND name = ? AND snapshot = ?", tagged
    )


UPGRADES: Upgrades = {1: _add_states}

_FIND = (
    "SELECT c.id, b.content, b.facts FROM container c LEFT JOIN blob b"
    " ON b.container = c.id AND b.name = ? AND b.snapshot = ? WHERE c.name = ?"
)
_FIND_WITH_BYTES = (
    "SELECT c.id, b.content, b.facts, p.size, e.size, e.checks, e.bytes"
    " FROM container c LEFT JOIN blob b ON b.container = c.id AND b.name = ? AND b.snapshot = ?"
    " LEFT JOIN piece p ON p.content = b.content AND p.place = 0"
    " LEFT JOIN extent e ON e.id = p.extent AND e.hash IS NULL WHERE c.name = ?"
)
_PUT = (
    "INSERT INTO blob VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " is_committed = excluded.is_committed, content = excluded.content, facts = excluded.facts,"
    " state = excluded.state, expires_at = excluded.expires_at"
)
_TAGGED = (
    "SELECT c.name, b.container, b.name, b.facts FROM blob b INDEXED BY blob_tagged"  # noqa: S608 - only our own text
    " CROSS JOIN container c ON c.id = b.container"
    f" WHERE b.state = {TAGGED} AND (b.container, b.name) >= (?1, ?2) AND b.container <= ?3"
    f" AND instr(c.name, '{DELETED_MARK}') = 0 ORDER BY b.container, b.name LIMIT ?4"
)
_OVERLAPPING = (
    "SELECT place, size, start, extent FROM piece WHERE content = ?1 AND place < ?3 AND place >="
    " (SELECT coalesce(max(place), 0) FROM piece WHERE content = ?1 AND place <= ?2)"
    " ORDER BY place LIMIT ?4"
)

_OVERLAPPING_WITH_BYTES = (
    "SELECT p.place, p.size, p.start, p.extent, e.size, e.checks, e.bytes FROM piece p"
    " LEFT JOIN extent e ON e.id = p.extent AND e.hash IS NULL"
    " WHERE p.content = ?1 AND p.place < ?3 AND p.place >="
    " (SELECT coalesce(max(place), 0) FROM piece WHERE content = ?1 AND place <= ?2)"
    " ORDER BY p.place"
)


class InlineRow(NamedTuple):
    """An extent with its bytes in its row."""

    size: int
    checks: bytes
    bytes: bytes | None


class BlobRows:
    """The state that a connection sees.

    The coroutines are those of the contract and never suspend; the other methods are for any
    thread.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    async def find_container(self, name: str) -> ContainerRow | None:
        rows = self._rows("SELECT id, facts FROM container WHERE name = ?", name)
        if not rows:
            return None
        identity, facts = rows[0]
        return ContainerRow(identity, name, stored.decode_container(facts))

    def list_containers(
        self, start: str, end: str | None, limit: int, *, with_deleted: bool = False
    ) -> list[ContainerRow]:
        rows = self._rows(
            "SELECT id, name, facts FROM container WHERE name >= ?1 AND (?2 IS NULL OR name < ?2)"  # noqa: S608 - only our own text
            f" AND (?4 OR instr(name, '{DELETED_MARK}') = 0) ORDER BY name LIMIT ?3",
            start,
            end,
            limit,
            with_deleted,
        )
        return [
            ContainerRow(identity, name, stored.decode_container(facts))
            for identity, name, facts in rows
        ]

    def list_tagged(self, container: int | None, start: FoundPlace, limit: int) -> list[TaggedRow]:
        first = start if container is None else max(start, (container, ""))
        last = LIVE if container is None else container
        found: list[TaggedRow] = []
        for shown, identity, name, facts in self._rows(_TAGGED, *first, last, limit):
            blob = stored.decode_blob(facts)
            found.append(TaggedRow(shown, (identity, name), blob.tags, stored.version_of(blob)))
        return found

    async def find_blob(
        self, container: str, name: str, snapshot: int = LIVE
    ) -> tuple[int | None, BlobRow | None]:
        return self.read_blob(container, name, snapshot)

    def read_blob(
        self, container: str, name: str, snapshot: int
    ) -> tuple[int | None, BlobRow | None]:
        """Find a blob as `find_blob` does, in any thread."""
        rows = self._rows(_FIND, name, snapshot, container)
        if not rows:
            return None, None
        identity, content, facts = rows[0]
        if facts is None:
            return identity, None
        return identity, BlobRow(identity, name, snapshot, content, stored.decode_blob(facts))

    def find_blob_with_bytes(
        self, container: str, name: str, snapshot: int = LIVE
    ) -> tuple[int | None, BlobRow | None, "InlineRow | None"]:
        """Find a blob as `find_blob` does, and its content if that is one piece in a row."""
        rows = self._rows(_FIND_WITH_BYTES, name, snapshot, container)
        if not rows:
            return None, None, None
        identity, content, facts, piece_size, *inline = rows[0]
        if facts is None:
            return identity, None, None
        row = BlobRow(identity, name, snapshot, content, stored.decode_blob(facts))
        is_whole = inline[0] is not None and piece_size == row.facts.length == inline[0]
        return identity, row, InlineRow(*inline) if is_whole else None

    def get_blob(self, container: int, name: str, snapshot: int) -> BlobRow | None:
        rows = self._rows(
            "SELECT content, facts FROM blob WHERE container = ? AND name = ? AND snapshot = ?",
            container,
            name,
            snapshot,
        )
        if not rows:
            return None
        content, facts = rows[0]
        return BlobRow(container, name, snapshot, content, stored.decode_blob(facts))

    def list_staged(self, container: int, name: str, limit: int = -1) -> list[BlockRow]:
        rows = self._rows(
            "SELECT id, size, 0, extent FROM block WHERE container = ? AND name = ? ORDER BY id"
            " LIMIT ?",
            container,
            name,
            limit,
        )
        return [BlockRow(*row) for row in rows]

    def list_committed(self, content: int, limit: int = -1) -> list[BlockRow]:
        rows = self._rows(
            "SELECT block, size, start, extent FROM piece"
            " WHERE content = ? AND block IS NOT NULL ORDER BY place LIMIT ?",
            content,
            limit,
        )
        return [BlockRow(*row) for row in rows]

    async def some_block_id(self, row: BlobRow) -> str | None:
        """Find any block id of the blob, staged or committed: all have the same length."""
        rows = self._rows(
            "SELECT id FROM (SELECT id FROM block WHERE container = ? AND name = ? LIMIT 1)"
            " UNION ALL SELECT block FROM (SELECT block FROM piece WHERE content = ? LIMIT 1)",
            row.container,
            row.name,
            row.content,
        )
        return next((found for (found,) in rows if found is not None), None)

    def pieces(self, content: int, first: int, end: int, limit: int = -1) -> list[PieceRow]:
        """Return the pieces that contain bytes of a range, at most `limit`."""
        rows = self._rows(_OVERLAPPING, content, first, end, limit)
        pieces = map(PieceRow._make, rows)
        return [piece for piece in pieces if piece.place + piece.size > first]

    def pieces_with_bytes(
        self, content: int, first: int, end: int
    ) -> Iterator[tuple[PieceRow, InlineRow | None]]:
        """Yield the pieces that contain bytes of a range, with the bytes that are in rows."""
        parameters = (content, first, end)
        for row in self.connection.execute(_OVERLAPPING_WITH_BYTES, parameters):
            *piece, size, checks, inline = row
            found = PieceRow._make(piece)
            if found.place + found.size > first:
                yield found, None if inline is None else InlineRow(size, checks, inline)

    def is_named(self, digest: bytes) -> bool:
        """Return whether a row refers to a file."""
        return bool(self._rows("SELECT 1 FROM extent WHERE hash = ? LIMIT 1", digest))

    def staged_since(self, container: int, name: str) -> int:
        """Return when the last block was staged."""
        found: int | None = self._rows(
            "SELECT max(staged_at) FROM block WHERE container = ? AND name = ?", container, name
        )[0][0]
        return found or 0

    def _rows(self, statement: str, *parameters: object) -> list[Any]:
        return self.connection.execute(statement, parameters).fetchall()


StagedCounts = dict[tuple[int, str], int]
"""Staged blocks per blob, by container and name, cached because counting reads all blocks. It may
be too high (after a failed change), never too low."""


class BlobTransaction(BlobRows):
    """A change of the rows. Its stamps are unique: they number versions and contents.

    With `rows_max`, it raises LongChangeError before it touches more rows than that.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        clock: StoreClock,
        staged: StagedCounts | None = None,
        rows_max: int | None = None,
    ) -> None:
        super().__init__(connection)
        self._clock = clock
        self._staged = {} if staged is None else staged
        self._rows_left = rows_max
        self.has_dropped = False
        """Whether the collector has work after this change."""

    def stamp(self) -> int:
        return self._clock.next()

    @property
    def _limit(self) -> int:
        """How many rows to read: one more than the change may still touch; -1: all."""
        return -1 if self._rows_left is None else self._rows_left + 1

    def touch(self, count: int) -> None:
        """Count rows that the change reads or writes; raise LongChangeError if too many."""
        if self._rows_left is None:
            return
        self._rows_left -= count
        if self._rows_left < 0:
            raise LongChangeError

    def _count(self, source: str, *parameters: object) -> int:
        """Count rows, at most up to the limit."""
        found: int = self._rows(
            f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT ?)",  # noqa: S608 - only our own text
            *parameters,
            self._limit,
        )[0][0]
        return found

    async def staged_blocks(self, container: int, name: str) -> list[BlockRow]:
        found = self.list_staged(container, name, self._limit)
        self.touch(len(found))
        return found

    async def committed_blocks(self, content: int) -> list[BlockRow]:
        found = self.list_committed(content, self._limit)
        self.touch(len(found))
        return found

    async def snapshots(self, container: int, name: str) -> list[BlobRow]:
        rows = self._rows(
            "SELECT snapshot, content, facts FROM blob"  # noqa: S608 - only our own text
            f" WHERE container = ? AND name = ? AND snapshot < ? AND state = {PLAIN}"
            " ORDER BY snapshot LIMIT ?",
            container,
            name,
            LIVE,
            self._limit,
        )
        return self._kept(container, name, rows)

    async def deleted_blobs(self, container: int, name: str) -> list[BlobRow]:
        rows = self._rows(
            "SELECT snapshot, content, facts FROM blob"  # noqa: S608 - only our own text
            f" WHERE container = ? AND name = ? AND state >= {DELETED} ORDER BY snapshot LIMIT ?",
            container,
            name,
            self._limit,
        )
        return self._kept(container, name, rows)

    def _kept(self, container: int, name: str, rows: list[Any]) -> list[BlobRow]:
        self.touch(len(rows))
        return [
            BlobRow(container, name, snapshot, content, stored.decode_blob(facts))
            for snapshot, content, facts in rows
        ]

    # Containers

    async def put_container(self, name: str, facts: StoredContainer) -> None:
        self._run(
            "INSERT INTO container (name, facts) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET facts = excluded.facts",
            name,
            stored.encode(facts),
        )

    async def drop_container(self, row: ContainerRow) -> None:
        self._run("DELETE FROM container WHERE id = ?", row.id)
        self._run("INSERT INTO dropped_container VALUES (?)", row.id)
        self.has_dropped = True

    async def rename_container(self, row: ContainerRow, name: str, facts: StoredContainer) -> None:
        self._run(
            "UPDATE container SET name = ?, facts = ? WHERE id = ?",
            name,
            stored.encode(facts),
            row.id,
        )

    # Blobs

    async def put_blob(self, row: BlobRow, before: BlobRow | None = None) -> None:
        """Write a row; `before` is the row that it replaces."""
        self._run(
            _PUT,
            row.container,
            row.name,
            row.snapshot,
            row.facts.is_committed,
            row.content,
            stored.encode(row.facts),
            stored.state_of(row.snapshot, row.facts),
            stored.expiry_of(row.facts),
        )
        if before is not None and before.content != row.content:
            self._drop_if_unused(before.content)

    async def remove_blob(self, row: BlobRow) -> None:
        self._run(
            "DELETE FROM blob WHERE container = ? AND name = ? AND snapshot = ?",
            row.container,
            row.name,
            row.snapshot,
        )
        self._drop_if_unused(row.content)

    # Content

    async def new_content(self) -> int:
        return self.stamp()

    async def add_content(self, received: Received) -> int:
        """Make a content of one piece."""
        if received.size == 0:
            return EMPTY
        content = self.stamp()
        self._add_received(content, 0, received)
        return content

    async def write_content(self, content: int, place: int, received: Received) -> None:
        await self.cut(content, place, place + received.size)
        self._add_received(content, place, received)

    def _add_received(self, content: int, place: int, received: Received) -> None:
        self._add_piece(content, PieceRow(place, received.size, 0, self._add_extent(received)))

    def _add_extent(self, received: Received) -> int:
        assert isinstance(received, StoredContent)
        self._run(
            "INSERT INTO extent (size, hash, checks, bytes) VALUES (?, ?, ?, ?)",
            received.size,
            received.digest,
            received.checks,
            received.inline,
        )
        return self.connection.last_insert_rowid()

    def _add_piece(self, content: int, piece: PieceRow) -> None:
        self._run("INSERT INTO piece VALUES (?, ?, ?, ?, ?, NULL)", content, *piece)

    async def add_blocks(self, blocks: Iterable[BlockRow]) -> tuple[int, int]:
        """Make a content of blocks, in order; return it and its length."""
        content, place = self.stamp(), 0
        rows: list[tuple[int, int, int, int, int, str]] = []
        for block in blocks:
            rows.append((content, place, block.size, block.start, block.extent, block.id))
            place += block.size
        if not rows:
            return EMPTY, 0
        self.connection.executemany("INSERT INTO piece VALUES (?, ?, ?, ?, ?, ?)", rows)
        return content, place

    async def fork(self, row: BlobRow) -> int:
        """Make a content with the same pieces, to be changed independently."""
        if row.content == EMPTY:
            return EMPTY
        self.touch(self._count("piece WHERE content = ?", row.content))
        forked = self.stamp()
        self._run(
            "INSERT INTO piece SELECT ?1, place, min(size, ?3 - place), start, extent, block"
            " FROM piece WHERE content = ?2 AND place < ?3",
            forked,
            row.content,
            row.facts.length,
        )
        return forked

    async def cut(self, content: int, first: int, end: int) -> None:
        """Remove the bytes of a range from a content: it reads as zeros."""
        gone = self.pieces(content, first, end, self._limit)
        self.touch(len(gone))
        if not gone:
            return
        dropped = self.stamp()
        for piece in gone:
            self._run("DELETE FROM piece WHERE content = ? AND place = ?", content, piece.place)
            self._add_piece(dropped, piece)
            for part in remains(piece, first, end):
                self._add_piece(content, part)
        self._drop(dropped, content)

    # Blocks

    async def has_room_for_block(self, row: BlobRow) -> bool:
        """Return whether one more block may be staged."""
        key = row.container, row.name
        if self._staged.get(key, limits.BLOCKS_STAGED_MAX) >= limits.BLOCKS_STAGED_MAX:
            self._staged[key] = self._rows(
                "SELECT count(*) FROM block WHERE container = ? AND name = ?", *key
            )[0][0]
        return self._staged[key] < limits.BLOCKS_STAGED_MAX

    async def put_block(self, row: BlobRow, block_id: str, received: Received) -> None:
        """Stage a block; replace a staged one with the same id."""
        self._discard_blocks(
            "container = ? AND name = ? AND id = ?", row.container, row.name, block_id
        )
        self._run(
            "INSERT INTO block VALUES (?, ?, ?, ?, ?, ?)",
            row.container,
            row.name,
            block_id,
            self._add_extent(received),
            received.size,
            self._clock.now(),
        )
        key = row.container, row.name
        if key in self._staged:
            self._staged[key] += 1

    async def discard_blocks(self, container: int, name: str) -> None:
        """Remove the staged blocks of a blob."""
        self.touch(self._count("block WHERE container = ? AND name = ?", container, name))
        self._staged.pop((container, name), None)
        self._discard_blocks("container = ? AND name = ?", container, name)

    def _discard_blocks(self, where: str, *parameters: object) -> None:
        """Remove staged blocks; extents that a content uses stay, the others are dropped."""
        dropped = self.stamp()
        self._run(
            "INSERT INTO piece SELECT ?, row_number() OVER (), size, 0, extent, NULL"  # noqa: S608 - only our own text
            f" FROM block WHERE {where}"
            " AND NOT EXISTS (SELECT 1 FROM piece WHERE piece.extent = block.extent)",
            dropped,
            *parameters,
        )
        if self.connection.changes():
            self._drop(dropped, dropped)
        self._run(f"DELETE FROM block WHERE {where}", *parameters)  # noqa: S608 - the same

    # For the collector

    async def remove_expired(self, now: int, limit: int) -> int:
        """Remove some deleted blobs whose time is over; return how many."""
        rows = self._rows(
            "SELECT container, name, snapshot, content, facts FROM blob INDEXED BY blob_expires"
            " WHERE expires_at <= ? LIMIT ?",
            now,
            limit,
        )
        for container, name, snapshot, content, facts in rows:
            blob = stored.decode_blob(facts)
            await self.remove_blob(BlobRow(container, name, snapshot, content, blob))
        return len(rows)

    async def drop_expired(self, now: int) -> None:
        """Drop the deleted containers whose time is over."""
        found = self._rows(
            f"SELECT id, name, facts FROM container WHERE instr(name, '{DELETED_MARK}') > 0"  # noqa: S608 - only our own text
        )
        for identity, name, facts in found:
            row = ContainerRow(identity, name, stored.decode_container(facts))
            if (row.facts.expires_at or 0) <= now:
                await self.drop_container(row)

    async def purge_container(self, container: int, limit: int) -> None:
        """Remove some blobs or blocks of a dropped container, or its row if none are left."""
        contents = self._rows(
            "DELETE FROM blob WHERE container = ?1 AND (name, snapshot) IN"
            " (SELECT name, snapshot FROM blob WHERE container = ?1 LIMIT ?2) RETURNING content",
            container,
            limit,
        )
        for (content,) in contents:
            self._drop_if_unused(content)
        if contents:
            return
        if self._rows("SELECT 1 FROM block WHERE container = ? LIMIT 1", container):
            self._discard_blocks(
                "container = ? AND (name, id) IN"
                " (SELECT name, id FROM block WHERE container = ? ORDER BY name, id LIMIT ?)",
                container,
                container,
                limit,
            )
            return
        self._run("DELETE FROM dropped_container WHERE id = ?", container)

    def purge(self, content: int, limit: int) -> tuple[int, list[bytes]]:
        """Remove some pieces of a dropped content, and its extents that are not used elsewhere.

        Return the number of pieces, and the hashes of these extents: their files may have no
        row any more.
        """
        extents = self._rows(
            "DELETE FROM piece WHERE content = ?1 AND place IN"
            " (SELECT place FROM piece WHERE content = ?1 ORDER BY place LIMIT ?2)"
            " RETURNING extent",
            content,
            limit,
        )
        digests: list[bytes] = []
        for (extent,) in extents:
            removed = self._rows(
                "DELETE FROM extent WHERE id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM piece WHERE extent = ?1)"
                " AND NOT EXISTS (SELECT 1 FROM block WHERE extent = ?1) RETURNING hash",
                extent,
            )
            digests += [digest for (digest,) in removed if digest is not None]
        if len(extents) < limit:
            self._run("DELETE FROM dropped_content WHERE content = ?", content)
        return len(extents), digests

    def _drop_if_unused(self, content: int) -> None:
        if content != EMPTY and not self._rows(
            "SELECT 1 FROM blob WHERE content = ? LIMIT 1", content
        ):
            self._drop(content, content)

    def _drop(self, content: int, origin: int) -> None:
        self._run("INSERT OR IGNORE INTO dropped_content VALUES (?, ?)", content, origin)
        self.has_dropped = True

    def _run(self, statement: str, *parameters: object) -> None:
        self.connection.execute(statement, parameters)
