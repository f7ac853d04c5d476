"""Large contents of a copy to PostgreSQL: objects, claimed until their extents are written."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from partita.blobs.store.files import ContentFiles
from partita.errors import ChecksumError
from partita.scaleout.blobs.claims import SALT_BYTES, claim_lost, claim_object
from partita.scaleout.connections.pool import Pool
from partita.scaleout.copying.contract import Pieces
from partita.scaleout.copying.parts import EXTENT_HASH, Row
from partita.scaleout.copying.postgres_rows import DIGEST_BYTES
from partita.scaleout.copying.postgres_source import fetch, hash_object
from partita.ticks import Clock

_OBJECTS = """
SELECT DISTINCT e.object FROM partita.extent e JOIN partita.copy_id m
    ON m.account_id = $3 AND m.kind = 'e' AND m.target = e.id
 WHERE e.object BETWEEN $1::bytea AND $2::bytea
"""
_TAKE = "DELETE FROM partita.upload_claim WHERE id = ANY ($1::bigint[]) RETURNING id"


class CopiedObjects:
    """The objects of one copy."""

    def __init__(self, pool: Pool, objects: ContentFiles, clock: Clock) -> None:
        self._pool = pool
        self._objects = objects
        self._clock = clock
        self._claims: dict[bytes, tuple[int, bytes]] = {}
        """By hash: the claim of an object whose extent is not written yet, and its name."""

    async def put(self, digest: bytes, size: int, pieces: Pieces) -> None:
        """Store a content durably, unless it is there, and claim it."""
        salt = self._clock.random_bytes(SALT_BYTES)
        ((now,),) = await self._pool.read("SELECT partita.ticks_1()")
        claim, name = await claim_object(self._pool, digest, salt, now)
        if not await asyncio.to_thread(self._is_stored, name, size):
            if (content := await pieces()) is None:
                return
            await self._store(name, content)
        self._claims[digest] = claim, name

    async def _store(self, name: bytes, content: AsyncIterator[bytes]) -> None:
        incoming = await asyncio.to_thread(self._objects.begin, self._clock.new_id())
        try:
            async for piece in content:
                await asyncio.to_thread(incoming.write, piece)
            await asyncio.to_thread(self._objects.place, incoming, name)
        finally:
            await asyncio.to_thread(self._objects.discard, incoming)

    def _is_stored(self, name: bytes, size: int) -> bool:
        """Return whether an object is complete: an upload that was interrupted leaves none."""
        try:
            opened = self._objects.open(name)
            try:
                return len(opened.read(size - 1, 2)) == 1
            finally:
                opened.close()
        except ChecksumError:
            return False

    def name_of(self, digest: bytes | None) -> bytes | None:
        """Return the name of the object that was claimed for a content."""
        if digest is None:
            return None
        claimed = self._claims.get(digest)
        # Without a claim the content left the source during the copy: the comparison finds that.
        return digest + bytes(SALT_BYTES) if claimed is None else claimed[1]

    async def take_claims(self, connection: Any, extents: Sequence[Row]) -> None:
        """Remove the claims of objects, in the transaction that writes their extents."""
        used = {row[EXTENT_HASH] for row in extents} & self._claims.keys()
        claims = [self._claims[digest][0] for digest in used]
        if len(await fetch(connection, _TAKE, claims)) != len(claims):
            raise claim_lost()

    def forget_claims(self) -> None:
        self._claims.clear()

    async def digest_of(self, digest: bytes, account_id: int) -> bytes | None:
        """Read the objects of a content; return their SHA-256, None if one is missing."""
        highest = digest + b"\xff" * DIGEST_BYTES
        rows = await self._pool.read(_OBJECTS, digest, highest, account_id)
        found = {await hash_object(self._objects, name) for (name,) in rows}
        return found.pop() if len(found) == 1 else None
