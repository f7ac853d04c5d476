"""A transaction on the blobs of an account.

A blob is locked when it is looked up, with its snapshots and blocks, and its container is locked
against being dropped. A transaction that needs a lock out of order (only copies lock two blobs)
does not wait for it: if the lock is taken, `OutOfOrderError` tells the locks with which to start
again.

A removed or replaced content becomes a dropped content, whether or not another blob has it: two
transactions that remove the last two references do not see each other. The collector checks it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice

from partita.blobs.rules import limits
from partita.blobs.rules import stored_format as stored
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import DELETED, PLAIN, StoredContainer
from partita.blobs.store.contract import (
    EMPTY,
    BlobRow,
    BlockRow,
    ContainerRow,
    PieceRow,
    Received,
)
from partita.blobs.store.pieces import remains
from partita.scaleout.blobs.claims import ClaimedContent, claim_lost
from partita.scaleout.blobs.locks import Held, blob_lock, container_lock, name_lock
from partita.scaleout.blobs.reads import OVERLAPPING, blob_row
from partita.scaleout.blobs.shared import Shared
from partita.scaleout.blobs.texts import check_storable, findable
from partita.scaleout.connections.link import Link, Rows

TURN_ROWS = 4096
"""Rows that one turn of the event loop converts: about 10 ms."""

_LOCK_SHARED = "SELECT pg_advisory_xact_lock_shared(l) FROM unnest($1::bigint[]) l"
_LOCK = "SELECT pg_advisory_xact_lock(l) FROM unnest($1::bigint[]) l"
_FIND = "SELECT * FROM partita.find_blob_1($1, $2, $3, $4, $5, $6, $7)"
_FIND_CONTAINER = "SELECT id, facts FROM partita.find_container_1($1, $2, $3)"
_PUT_CONTAINER = """
INSERT INTO partita.container (account_id, name, facts) VALUES ($1, $2, $3)
ON CONFLICT (account_id, name) DO UPDATE SET facts = excluded.facts
"""
_DROP_CONTAINER = "SELECT partita.drop_container_1($1, $2)"
_RENAME_CONTAINER = "SELECT partita.rename_container_1($1, $2, $3, $4)"
_PUT = """
WITH dropped AS (
  INSERT INTO partita.dropped_content (content, origin, dropped_at)
  SELECT $7::bigint, $7::bigint, $8::bigint WHERE $7::bigint IS NOT NULL)
INSERT INTO partita.blob VALUES ($1, $2, $3, $4, $5, $6, $9, $10)
ON CONFLICT (container, name, snapshot) DO UPDATE SET
  is_committed = excluded.is_committed, content = excluded.content, facts = excluded.facts,
  state = excluded.state, expires_at = excluded.expires_at
"""
_REMOVE = """
WITH removed AS (
  DELETE FROM partita.blob WHERE container = $1 AND name = $2 AND snapshot = $3 RETURNING content)
INSERT INTO partita.dropped_content (content, origin, dropped_at)
SELECT content, content, $4 FROM removed WHERE content <> 0
"""
_SNAPSHOTS = f"""
SELECT snapshot, content, facts FROM partita.blob
 WHERE container = $1 AND name = $2 AND snapshot < {LIVE} AND state = {PLAIN} ORDER BY snapshot
"""  # noqa: S608 - only our own text
_DELETED = f"""
SELECT snapshot, content, facts FROM partita.blob
 WHERE container = $1 AND name = $2 AND state >= {DELETED} ORDER BY snapshot
"""  # noqa: S608 - only our own text
_COMMITTED = """
SELECT block, size, start, extent FROM partita.piece
 WHERE content = $1 AND block IS NOT NULL ORDER BY place
"""
_STAGED = """
SELECT id, size, 0::bigint, extent FROM partita.block
 WHERE container = $1 AND name = $2 ORDER BY id
"""
_SOME_BLOCK = """
(SELECT id FROM partita.block WHERE container = $1 AND name = $2 LIMIT 1)
 UNION ALL
(SELECT block FROM partita.piece WHERE content = $3 AND block IS NOT NULL LIMIT 1)
 LIMIT 1
"""
# The record takes the place of the claim: no row is returned if the claim has expired.
_EXTENT = """
WITH claimed AS (DELETE FROM partita.upload_claim WHERE id = $5::bigint RETURNING object),
     added AS (
  INSERT INTO partita.extent (id, size, object, checks, bytes)
  SELECT $1::bigint, $2::bigint, (SELECT object FROM claimed), $3::bytea, $4::bytea
   WHERE $5::bigint IS NULL OR EXISTS (SELECT FROM claimed)
  RETURNING id, size)
"""
_ADD_PIECE = f"""
{_EXTENT}
INSERT INTO partita.piece (content, place, size, start, extent)
SELECT $6, $7, size, 0, id FROM added RETURNING extent
"""  # noqa: S608 - only our own text
_ADD_BLOCK = f"""
{_EXTENT}
INSERT INTO partita.block (container, name, id, extent, size, staged_at)
SELECT $6, $7, $8, id, size, $9 FROM added RETURNING extent
"""  # noqa: S608 - only our own text
_ADD_PIECES = """
INSERT INTO partita.piece (content, place, size, start, extent, block)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
                     $6::text[])
"""
_FORK = """
INSERT INTO partita.piece (content, place, size, start, extent, block)
SELECT $1::bigint, place, least(size, $3::bigint - place), start, extent, block
  FROM partita.piece WHERE content = $2 AND place < $3::bigint
"""
_REMOVE_PIECES = "DELETE FROM partita.piece WHERE content = $1 AND place = ANY ($2::bigint[])"
_DROP = "INSERT INTO partita.dropped_content (content, origin, dropped_at) VALUES ($1, $2, $3)"
_COUNT_STAGED = "SELECT count(*) FROM partita.block WHERE container = $1 AND name = $2"
_STAGED_SINCE = (
    "SELECT coalesce(max(staged_at), 0) FROM partita.block WHERE container = $1 AND name = $2"
)
# Extents that a content uses stay; the others become a dropped content.
_DISCARD = """
WITH gone AS (
  DELETE FROM partita.block WHERE container = $1 AND name = $2 RETURNING extent, size),
     unused AS (
  INSERT INTO partita.piece (content, place, size, start, extent)
  SELECT $3::bigint, row_number() OVER (), g.size, 0, g.extent FROM gone g
   WHERE NOT EXISTS (SELECT FROM partita.piece p WHERE p.extent = g.extent)
  RETURNING content)
INSERT INTO partita.dropped_content (content, origin, dropped_at)
SELECT $3, $3, $4 WHERE EXISTS (SELECT FROM unused)
"""
_DISCARD_ONE = _DISCARD.replace("name = $2", "name = $2 AND id = $5")


class OutOfOrderError(Exception):
    """A transaction needs a lock that is taken, and may not wait for it."""

    def __init__(self, locks: Held) -> None:
        super().__init__("a lock out of order is taken")
        self.locks = locks


class BlobTransaction:
    """A change of the rows of one account."""

    def __init__(self, link: Link, shared: Shared, account: int) -> None:
        self._link = link
        self._shared = shared
        self._account = account
        self._held = Held()
        self._key: tuple[str, ...] = ()
        """What was looked up last: stamps are of it."""
        self.used: list[ClaimedContent] = []
        """The contents that have records when the transaction commits."""

    async def lock(self, locks: Held) -> None:
        """Take these locks in order, before anything is looked up."""
        if locks.shared:
            await self._link.read(_LOCK_SHARED, sorted(locks.shared))
        if locks.exclusive:
            await self._link.read(_LOCK, sorted(locks.exclusive))
        self._held = locks

    def stamp(self) -> int:
        return self._shared.clock.stamp(self._key)

    def touch(self, count: int) -> None:
        """Do nothing: a change of many rows does not hold the event loop."""

    # Containers

    async def find_container(self, name: str) -> ContainerRow | None:
        lock = name_lock(self._account, name)
        ((identity, facts),) = await self._link.read(
            _FIND_CONTAINER, self._account, findable(name), lock
        )
        self._key = (name,)
        if identity is None:
            return None
        row = ContainerRow(identity, name, stored.decode_container(facts))
        self._shared.clock.observe(row.facts.changed_at, self._key)
        return row

    async def put_container(self, name: str, facts: StoredContainer) -> None:
        await self._link.read(_PUT_CONTAINER, self._account, name, stored.encode(facts))

    async def drop_container(self, row: ContainerRow) -> None:
        lock = container_lock(self._account, row.name)
        await self._link.read(_DROP_CONTAINER, row.id, lock)

    async def rename_container(self, row: ContainerRow, name: str, facts: StoredContainer) -> None:
        lock = container_lock(self._account, row.name)
        await self._link.read(_RENAME_CONTAINER, row.id, name, stored.encode(facts), lock)

    # Blobs

    async def find_blob(
        self, container: str, name: str, snapshot: int = LIVE
    ) -> tuple[int | None, BlobRow | None]:
        shared = container_lock(self._account, container)
        exclusive = blob_lock(self._account, container, name)
        waits = self._held.may_wait_for(shared, exclusive)
        names = findable(container), findable(name)
        ((is_locked, identity, content, facts),) = await self._link.read(
            _FIND, self._account, *names, snapshot, shared, exclusive, waits
        )
        self._held = self._held.also(shared, exclusive)
        if not is_locked:
            raise OutOfOrderError(self._held)
        self._key = container, name
        row = blob_row(identity, name, snapshot, content, facts)
        if row is not None:
            self._shared.clock.observe(row.facts.changed_at, self._key)
        return identity, row

    async def put_blob(self, row: BlobRow, before: BlobRow | None = None) -> None:
        check_storable(row.name)
        is_replaced = before is not None and before.content not in (EMPTY, row.content)
        await self._link.read(
            _PUT,
            row.container,
            row.name,
            row.snapshot,
            row.facts.is_committed,
            row.content,
            stored.encode(row.facts),
            before.content if before is not None and is_replaced else None,
            self._now(),
            stored.state_of(row.snapshot, row.facts),
            stored.expiry_of(row.facts),
        )

    async def remove_blob(self, row: BlobRow) -> None:
        await self._link.read(_REMOVE, row.container, row.name, row.snapshot, self._now())

    async def snapshots(self, container: int, name: str) -> list[BlobRow]:
        return await self._kept(_SNAPSHOTS, container, name)

    async def deleted_blobs(self, container: int, name: str) -> list[BlobRow]:
        return await self._kept(_DELETED, container, name)

    async def _kept(self, statement: str, container: int, name: str) -> list[BlobRow]:
        return [
            BlobRow(container, name, snapshot, content, stored.decode_blob(facts))
            for snapshot, content, facts in await self._link.read(statement, container, name)
        ]

    # Content

    async def new_content(self) -> int:
        return await self._shared.numbers.take(self._link)

    async def add_content(self, received: Received) -> int:
        if received.size == 0:
            return EMPTY
        content = await self.new_content()
        await self._add_received(content, 0, received)
        return content

    async def write_content(self, content: int, place: int, received: Received) -> None:
        await self.cut(content, place, place + received.size)
        await self._add_received(content, place, received)

    async def _add_received(self, content: int, place: int, received: Received) -> None:
        await self._add_extent(_ADD_PIECE, received, content, place)

    async def _add_extent(self, statement: str, received: Received, *values: object) -> None:
        assert isinstance(received, ClaimedContent)
        kept = received.stored
        rows = await self._link.read(
            statement,
            await self.new_content(),
            kept.size,
            kept.checks,
            kept.inline,
            received.claim,
            *values,
        )
        if not rows:
            raise claim_lost()
        self.used.append(received)

    async def add_blocks(self, blocks: Iterable[BlockRow]) -> tuple[int, int]:
        content, place = await self.new_content(), 0
        rest = iter(blocks)
        while some := list(islice(rest, TURN_ROWS)):
            places = list(accumulate((block.size for block in some), initial=place))
            place = places.pop()
            pieces = [
                PieceRow(start, block.size, block.start, block.extent)
                for start, block in zip(places, some, strict=True)
            ]
            await self._add_pieces([content] * len(some), pieces, [block.id for block in some])
        return (content, place) if place else (EMPTY, 0)

    async def _add_pieces(
        self, contents: Sequence[int], pieces: Sequence[PieceRow], blocks: Sequence[str | None]
    ) -> None:
        columns = zip(*pieces, strict=True)
        await self._link.read(_ADD_PIECES, contents, *map(list, columns), blocks)

    async def fork(self, row: BlobRow) -> int:
        if row.content == EMPTY:
            return EMPTY
        forked = await self.new_content()
        await self._link.read(_FORK, forked, row.content, row.facts.length)
        return forked

    async def cut(self, content: int, first: int, end: int) -> None:
        rows = await self._link.read(OVERLAPPING, content, first, end)
        pieces = [PieceRow(*row) for row in rows]
        gone = [piece for piece in pieces if piece.place + piece.size > first]
        if not gone:
            return
        dropped = await self.new_content()
        kept = [part for piece in gone for part in remains(piece, first, end)]
        await self._link.read(_REMOVE_PIECES, content, [piece.place for piece in gone])
        owners = [dropped] * len(gone) + [content] * len(kept)
        await self._add_pieces(owners, [*gone, *kept], [None] * len(owners))
        await self._link.read(_DROP, dropped, content, self._now())

    # Blocks

    async def committed_blocks(self, content: int) -> list[BlockRow]:
        return await _block_rows(await self._link.read(_COMMITTED, content))

    async def staged_blocks(self, container: int, name: str) -> list[BlockRow]:
        return await _block_rows(await self._link.read(_STAGED, container, name))

    async def some_block_id(self, row: BlobRow) -> str | None:
        for (found,) in await self._link.read(_SOME_BLOCK, row.container, row.name, row.content):
            return str(found)
        return None

    async def has_room_for_block(self, row: BlobRow) -> bool:
        key = row.container, row.name
        if self._shared.rooms.take(key):
            return True
        ((count,),) = await self._link.read(_COUNT_STAGED, *key)
        self._shared.rooms.counted(key, count)
        return bool(count < limits.BLOCKS_STAGED_MAX)

    async def put_block(self, row: BlobRow, block_id: str, received: Received) -> None:
        await self._discard(_DISCARD_ONE, row.container, row.name, block_id)
        values = row.container, row.name, block_id, self._now()
        await self._add_extent(_ADD_BLOCK, received, *values)

    async def discard_blocks(self, container: int, name: str) -> None:
        await self._discard(_DISCARD, container, name)

    async def staged_since(self, container: int, name: str) -> int:
        """Return when the last block was staged; 0 if there is none."""
        ((found,),) = await self._link.read(_STAGED_SINCE, container, name)
        return int(found)

    async def _discard(self, statement: str, container: int, name: str, *block_id: str) -> None:
        dropped = await self.new_content()
        await self._link.read(statement, container, name, dropped, self._now(), *block_id)

    def _now(self) -> int:
        return self._shared.clock.now()


async def _block_rows(rows: Rows) -> list[BlockRow]:
    """Convert rows: many of them not in one turn of the event loop."""
    blocks: list[BlockRow] = []
    for start in range(0, len(rows), TURN_ROWS):
        blocks += [BlockRow(*row) for row in rows[start : start + TURN_ROWS]]
        await asyncio.sleep(0)
    return blocks
