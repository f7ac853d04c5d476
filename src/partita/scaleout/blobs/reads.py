"""The committed state of the blobs of an account: each call borrows a connection."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from partita.blobs.rules import stored_format as stored
from partita.blobs.rules.listing import FoundPlace, Place, end_of, shown_blob, states_shown
from partita.blobs.rules.model import Blob, BlobPrefix, Block
from partita.blobs.rules.names import DELETED_MARK, LIVE
from partita.blobs.rules.stored_format import DELETED, TAGGED, VERSION
from partita.blobs.store.contract import (
    BlobRow,
    Choose,
    ContainerRow,
    PieceRow,
    Scan,
    TaggedRow,
)
from partita.blobs.store.rows import InlineRow
from partita.scaleout.blobs.texts import UNUSED_NAME, findable, first_from, is_text
from partita.scaleout.connections.link import Rows, busy
from partita.scaleout.connections.pool import Pool
from partita.scaleout.schema.blobs import IS_LAST

READ_ATTEMPTS_MAX = 100
"""How often a read of two statements is repeated because the blob changed between them."""

ROWS_PER_TURN = 1000
"""Pieces or blocks that are converted on the event loop."""

_FIND_CONTAINER = (
    "SELECT c.id, c.facts FROM partita.container c WHERE c.account_id = $1 AND c.name = $2"
)
_LIST_CONTAINERS = """
SELECT c.id, c.name, c.facts FROM partita.container c
 WHERE c.account_id = $1 AND c.name >= $2
"""
_NOT_DELETED = f" AND strpos(c.name, '{DELETED_MARK}') = 0"
_IN_ORDER = " ORDER BY c.name LIMIT $3"
_TAGGED = f"""
SELECT c.name, c.id, b.name AS blob, b.facts FROM partita.container c CROSS JOIN LATERAL (
  SELECT b.name, b.facts FROM partita.blob b
   WHERE b.container = c.id AND b.state = {TAGGED}
     AND b.name >= CASE c.id WHEN $2 THEN $4 ELSE '' END
   ORDER BY b.name LIMIT $5) b
 WHERE c.account_id = $1 AND c.id BETWEEN $2 AND $3{_NOT_DELETED} ORDER BY c.id, b.name LIMIT $5
"""  # noqa: S608 - only our own text
_FIND = """
SELECT c.id, b.content, b.facts FROM partita.container c
  LEFT JOIN partita.blob b ON b.container = c.id AND b.name = $3 AND b.snapshot = $4
 WHERE c.account_id = $1 AND c.name = $2
"""
_FIND_WITH_BYTES = """
SELECT c.id, b.content, b.facts, p.size AS piece_size, e.size, e.checks, e.bytes
  FROM partita.container c
  LEFT JOIN partita.blob b ON b.container = c.id AND b.name = $3 AND b.snapshot = $4
  LEFT JOIN partita.piece p ON p.content = b.content AND p.place = 0
  LEFT JOIN partita.extent e ON e.id = p.extent AND e.object IS NULL
 WHERE c.account_id = $1 AND c.name = $2
"""
OVERLAPPING = """
SELECT p.place, p.size, p.start, p.extent FROM partita.piece p
 WHERE p.content = $1 AND p.place < $3 AND p.place >=
   (SELECT coalesce(max(q.place), 0) FROM partita.piece q WHERE q.content = $1 AND q.place <= $2)
 ORDER BY p.place
"""
# No row: the blob has changed. A row of nulls: it has none of what is read.
_VERSION = (
    "(SELECT b.content FROM partita.blob b WHERE b.container = $1 AND b.name = $2"
    " AND b.snapshot = $3 AND b.content = $4 AND b.facts = $5) version"
)
_PIECES_OF_VERSION = f"""
SELECT p.place, p.size, p.start, p.extent FROM {_VERSION} LEFT JOIN LATERAL (
  SELECT p.* FROM partita.piece p WHERE p.content = $4 AND p.place < $7
     AND p.place + p.size > $6 AND p.place >= (
       SELECT coalesce(max(q.place), 0) FROM partita.piece q
        WHERE q.content = $4 AND q.place <= $6)) p ON true
 ORDER BY p.place
"""  # noqa: S608 - only our own text
_BLOCKS_OF_VERSION = f"""
SELECT k.id, k.size, k.is_staged FROM {_VERSION} LEFT JOIN LATERAL (
  SELECT p.block AS id, p.size, p.place, false AS is_staged FROM partita.piece p
   WHERE p.content = $4 AND p.block IS NOT NULL
   UNION ALL
  SELECT k.id, k.size, 0, true FROM partita.block k
   WHERE k.container = $1 AND k.name = $2 AND $3 = {LIVE}) k ON true
 ORDER BY k.is_staged, k.place, k.id
"""  # noqa: S608 - only our own text
_LIST = f"""
SELECT b.name, b.snapshot, b.facts,
       b.state IN ({VERSION}, {DELETED}) AND {IS_LAST} AS is_last FROM partita.blob b
 WHERE b.container = $1 AND (b.name, b.snapshot) >= ($2, $3) AND ($4 OR b.is_committed)
   AND (b.snapshot = {LIVE} OR (b.state = ANY ($5::int[])
        OR b.state = ANY ($6::int[]) AND {IS_LAST})
        AND (b.expires_at IS NULL OR b.expires_at > $7))
 ORDER BY b.name, b.snapshot LIMIT $8
"""  # noqa: S608 - only our own text
_LIST_TO = _LIST.replace(" ORDER BY", " AND b.name < $9 ORDER BY", 1)
_LIST_BY_DELIMITER = (
    "SELECT name, snapshot, facts, is_last FROM partita.list_blobs_2("
    "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
)

T = TypeVar("T")


class FoundBlob(NamedTuple):
    """A blob with the version that its row had, and its content if that is one piece in a row."""

    container: int | None
    row: BlobRow | None
    facts: bytes | None = None
    inline: InlineRow | None = None


class CommittedBlobs:
    """The BlobReads of one account."""

    def __init__(self, pool: Pool, account: int) -> None:
        self._pool = pool
        self._account = account

    async def find_container(self, name: str) -> ContainerRow | None:
        for identity, facts in await self._read(_FIND_CONTAINER, self._account, findable(name)):
            return ContainerRow(identity, name, stored.decode_container(facts))
        return None

    async def find_blob(
        self, container: str, name: str, snapshot: int = LIVE
    ) -> tuple[int | None, BlobRow | None]:
        found = await self.find_version(container, name, snapshot)
        return found.container, found.row

    async def find_version(
        self, container: str, name: str, snapshot: int, *, with_bytes: bool = False
    ) -> FoundBlob:
        """Find a blob, and on demand its content if that is one piece in a row."""
        statement = _FIND_WITH_BYTES if with_bytes else _FIND
        rows = await self._read(
            statement, self._account, findable(container), findable(name), snapshot
        )
        if not rows:
            return FoundBlob(None, None)
        identity, content, facts, *rest = rows[0]
        row = blob_row(identity, name, snapshot, content, facts)
        if row is None or not with_bytes:
            return FoundBlob(identity, row, facts)
        piece_size, size, checks, inline = rest
        is_whole = inline is not None and piece_size == row.facts.length == size
        found = InlineRow(size, checks, inline) if is_whole else None
        return FoundBlob(identity, row, facts, found)

    async def list_containers(
        self, start: str, end: str | None, limit: int, *, with_deleted: bool = False
    ) -> Sequence[ContainerRow]:
        if not is_text(start):
            return []
        shown = "" if with_deleted else _NOT_DELETED
        statement = _LIST_CONTAINERS + shown + _IN_ORDER
        rows = await self._read(statement, self._account, first_from(start), limit)
        return [
            ContainerRow(identity, name, stored.decode_container(facts))
            for identity, name, facts in rows
            if end is None or name < end
        ]

    async def list_tagged(
        self, container: int | None, start: FoundPlace, limit: int
    ) -> list[TaggedRow]:
        first = start if container is None else max(start, (container, ""))
        last = LIVE if container is None else container
        if not is_text(first[1]):
            return []
        found: list[TaggedRow] = []
        name = first_from(first[1])
        for shown, identity, blob_name, facts in await self._read(
            _TAGGED, self._account, first[0], last, name, limit
        ):
            blob = stored.decode_blob(facts)
            found.append(
                TaggedRow(shown, (identity, blob_name), blob.tags, stored.version_of(blob))
            )
        return found

    async def list_blobs(self, scan: Scan) -> tuple[list[Blob | BlobPrefix], Place | None]:
        if findable(scan.prefix) == UNUSED_NAME != scan.prefix or not is_text(scan.start[0]):
            return [], None
        rows = await self._list(scan)
        asks_for_last = states_shown(scan.include).asks_for_last
        shown = [
            BlobPrefix(name)
            if facts is None
            else shown_blob(
                (name, snapshot),
                stored.decode_blob(facts),
                scan.now,
                is_last=is_last and asks_for_last,
            )
            for name, snapshot, facts, is_last in rows[: scan.limit]
        ]
        following = rows[scan.limit][:2] if len(rows) > scan.limit else None
        return shown, None if following is None else (following[0], following[1])

    async def _list(self, scan: Scan) -> Rows:
        name, snapshot = max(scan.start, (scan.prefix, 0))
        name, end, rows_max = first_from(name), end_of(scan.prefix), scan.limit + 1
        shown = states_shown(scan.include)
        kept = (
            "uncommittedblobs" in scan.include,
            list(shown.always),
            list(shown.if_last),
            scan.now,
        )
        # No name contains a delimiter that cannot be stored.
        delimiter = findable(scan.delimiter)
        if delimiter:
            parts = scan.prefix, end, delimiter, end_of(delimiter), name, snapshot
            return await self._read(
                _LIST_BY_DELIMITER, scan.container, *parts, rows_max, LIVE, *kept
            )
        values = scan.container, name, snapshot, *kept, rows_max
        if end is None:
            return await self._read(_LIST, *values)
        return await self._read(_LIST_TO, *values, end)

    async def read_pages(
        self,
        container: str,
        name: str,
        snapshot: int,
        choose: Choose,
        use: Callable[[BlobRow, list[PieceRow]], T],
    ) -> T:
        def bounds(found: FoundBlob) -> tuple[int, int]:
            return choose(found.container, found.row)

        row, rows = await self._read_version(container, name, snapshot, bounds, _PIECES_OF_VERSION)
        return await _in_turns(
            lambda: use(row, [PieceRow(*each) for each in rows if each[0] is not None]), rows
        )

    async def read_blocks(
        self, container: str, name: str, snapshot: int, check: Callable[..., object]
    ) -> tuple[BlobRow, list[Block], list[Block]]:
        def checked(found: FoundBlob) -> tuple[()]:
            check(found.container, found.row)
            return ()

        row, rows = await self._read_version(container, name, snapshot, checked, _BLOCKS_OF_VERSION)
        committed, staged = await _in_turns(lambda: _split(rows), rows)
        return row, committed, staged

    async def _read_version(
        self,
        container: str,
        name: str,
        snapshot: int,
        choose: Callable[[FoundBlob], tuple[int, ...]],
        statement: str,
    ) -> tuple[BlobRow, Rows]:
        """Find a blob, then read more of the same version."""
        for _ in range(READ_ATTEMPTS_MAX):
            found = await self.find_version(container, name, snapshot)
            values = choose(found)
            row = found.row
            assert row is not None
            rows = await self._read(
                statement, row.container, name, snapshot, row.content, found.facts, *values
            )
            if rows:
                return row, rows
        raise busy("changing")

    async def _read(self, statement: str, *values: object) -> Rows:
        return await self._pool.read(statement, *values)


def blob_row(
    container: int, name: str, snapshot: int, content: int | None, facts: bytes | None
) -> BlobRow | None:
    """Return the row of a blob; None if nothing was found."""
    if content is None or facts is None:
        return None
    return BlobRow(container, name, snapshot, content, stored.decode_blob(facts))


async def _in_turns(work: Callable[[], T], rows: Rows) -> T:
    """Run what many rows need in a thread: it must not hold the event loop."""
    return work() if len(rows) <= ROWS_PER_TURN else await asyncio.to_thread(work)


def _split(rows: Rows) -> tuple[list[Block], list[Block]]:
    committed, staged = (
        [Block(block, size) for block, size, found in rows if found is is_staged]
        for is_staged in (False, True)
    )
    return committed, staged
