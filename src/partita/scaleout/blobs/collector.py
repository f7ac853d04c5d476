"""Reclaims space: dropped contents, their objects, stale blocks, objects that no row names.

Every front end has a collector; each transaction of it takes a lock, so that one works at a time.
Contents are purged some time after they were dropped, because other front ends may be reading
them; the readers of this front end also pin them. `claims` says when an object may be removed.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from partita.blobs.rules import limits
from partita.blobs.rules import stored_format as stored
from partita.blobs.rules.names import DELETED_MARK, LIVE
from partita.blobs.store.content_claims import Claims
from partita.blobs.store.contract import ContainerRow
from partita.blobs.store.garbage_collector import Pause, no_pause
from partita.blobs.store.threads import ContentThreads
from partita.errors import PartitaError, UnavailableError
from partita.scaleout.blobs.changes import BlobTransaction
from partita.scaleout.blobs.claims import HASH_BYTES
from partita.scaleout.blobs.locks import object_lock
from partita.scaleout.blobs.objects import Objects, SharedFolder
from partita.scaleout.blobs.shared import Shared
from partita.scaleout.connections.link import Link
from partita.scaleout.connections.pool import Pool
from partita.scaleout.schema.locks import JOB_LOCKS, PURGE_BLOBS_JOB
from partita.ticks import SECONDS_PER_DAY, TICKS_PER_SECOND

logger = logging.getLogger("partita.blobs")

DROPPED_SECONDS_KEPT = 3600
"""How long a replaced or deleted content is kept: a download of another front end may be reading
it. The objects of a database that is restored to an earlier moment must be kept longer."""
CLAIM_SECONDS_MAX = SECONDS_PER_DAY
"""How long an upload may take from its last byte to its record."""
STRAY_SECONDS_MIN = SECONDS_PER_DAY
"""How old an object must be that no row names before it is removed."""
INCOMING_SECONDS_MAX = SECONDS_PER_DAY
"""How long an unfinished upload in a shared folder is kept after the last byte was written."""
SWEEP_EVERY_SECONDS = SECONDS_PER_DAY
"""How often all objects are listed, by one front end."""
STALE_EVERY_SECONDS = 3600.0
"""How often staged blocks are checked for stale ones."""
COLLECT_EVERY_SECONDS = 60.0
PURGE_ROWS = 200
"""Blobs, pieces or objects that one transaction removes or checks."""
PAUSE_SECONDS = 0.005

_IS_MINE = "SELECT pg_try_advisory_xact_lock($1, $2)"
_DROPPED_CONTAINER = "SELECT id FROM partita.dropped_container ORDER BY id LIMIT 1"
_PURGE_BLOBS = """
WITH gone AS (
  DELETE FROM partita.blob WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM partita.blob WHERE container = $1 LIMIT $2)) RETURNING content),
     dropped AS (
  INSERT INTO partita.dropped_content (content, origin, dropped_at)
  SELECT DISTINCT content, content, $3::bigint FROM gone WHERE content <> 0)
SELECT count(*) FROM gone
"""
_PURGE_BLOCKS = """
WITH gone AS (
  DELETE FROM partita.block WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM partita.block WHERE container = $1 LIMIT $2)) RETURNING extent, size),
     unused AS (
  INSERT INTO partita.piece (content, place, size, start, extent)
  SELECT $4::bigint, row_number() OVER (), size, 0, extent FROM gone),
     dropped AS (
  INSERT INTO partita.dropped_content (content, origin, dropped_at)
  SELECT $4::bigint, $4::bigint, $3::bigint WHERE EXISTS (SELECT FROM gone))
SELECT count(*) FROM gone
"""
_FORGET_CONTAINER = "DELETE FROM partita.dropped_container WHERE id = $1"
_DROPPED = """
SELECT id, content FROM partita.dropped_content
 WHERE dropped_at <= $1 AND origin <> ALL ($2::bigint[]) ORDER BY dropped_at LIMIT $3
"""
_IN_USE = "SELECT DISTINCT content FROM partita.blob WHERE content = ANY ($1::bigint[])"
_PURGE_PIECES = """
DELETE FROM partita.piece WHERE ctid = ANY (ARRAY (
  SELECT ctid FROM partita.piece WHERE content = ANY ($1::bigint[]) LIMIT $2)) RETURNING extent
"""
_PURGE_EXTENTS = """
WITH gone AS (
  DELETE FROM partita.extent e WHERE e.id = ANY ($1::bigint[])
     AND NOT EXISTS (SELECT FROM partita.piece p WHERE p.extent = e.id)
     AND NOT EXISTS (SELECT FROM partita.block b WHERE b.extent = e.id)
  RETURNING e.object)
INSERT INTO partita.dropped_object (object, is_leaving)
SELECT DISTINCT object, false FROM gone WHERE object IS NOT NULL ON CONFLICT DO NOTHING
"""
_FORGET_CONTENTS = """
DELETE FROM partita.dropped_content d WHERE d.id = ANY ($1::bigint[])
   AND NOT EXISTS (SELECT FROM partita.piece p
                    WHERE p.content = d.content AND d.content <> ALL ($2::bigint[]))
"""
_EXPIRED = """
WITH expired AS (
  DELETE FROM partita.upload_claim WHERE id = ANY (ARRAY (
    SELECT id FROM partita.upload_claim WHERE claimed_at < $1
     ORDER BY claimed_at LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING object),
     suspects AS (
  INSERT INTO partita.dropped_object (object, is_leaving)
  SELECT DISTINCT object, false FROM expired ON CONFLICT DO NOTHING)
SELECT count(*) FROM expired
"""
_SUSPECTS = "SELECT object FROM partita.dropped_object WHERE NOT is_leaving LIMIT $1"
_LOCK = "SELECT pg_advisory_xact_lock(l) FROM unnest($1::bigint[]) l"
# A statement of its own, after the locks: it sees the claims that were added before.
_MARK = """
UPDATE partita.dropped_object d SET is_leaving = true WHERE d.object = ANY ($1::bytea[])
   AND NOT EXISTS (SELECT FROM partita.extent e WHERE e.object = d.object)
   AND NOT EXISTS (SELECT FROM partita.upload_claim c WHERE c.object = d.object)
"""
_ACQUIT = "DELETE FROM partita.dropped_object WHERE object = ANY ($1::bytea[]) AND NOT is_leaving"
_LEAVING = "SELECT object FROM partita.dropped_object WHERE is_leaving LIMIT $1"
_GONE = "DELETE FROM partita.dropped_object WHERE object = ANY ($1::bytea[])"
_BEGIN_SWEEP = """
UPDATE partita.object_store SET swept_at = $1 WHERE id = 1 AND swept_at <= $2 RETURNING id
"""
_SUSPECT_STRAYS = """
INSERT INTO partita.dropped_object (object, is_leaving)
SELECT n, false FROM unnest($1::bytea[]) n
 WHERE NOT EXISTS (SELECT FROM partita.extent e WHERE e.object = n)
   AND NOT EXISTS (SELECT FROM partita.upload_claim c WHERE c.object = n)
ON CONFLICT DO NOTHING
"""
_REMOVE_EXPIRED = """
WITH gone AS (
  DELETE FROM partita.blob WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM partita.blob WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
  RETURNING content),
     dropped AS (
  INSERT INTO partita.dropped_content (content, origin, dropped_at)
  SELECT content, content, $1 FROM gone WHERE content <> 0)
SELECT count(*) FROM gone
"""
_DELETED_CONTAINERS = f"""
SELECT account_id, id, name, facts FROM partita.container WHERE strpos(name, '{DELETED_MARK}') > 0
"""  # noqa: S608 - only our own text
_STALE = """
SELECT c.account_id, c.name AS container, b.name FROM partita.block b
  JOIN partita.container c ON c.id = b.container
 GROUP BY c.account_id, c.name, b.name HAVING max(b.staged_at) < $1
"""


class Collector:
    """The background task of a front end."""

    _task: "asyncio.Task[None] | None" = None

    def __init__(
        self,
        pool: Pool,
        shared: Shared,
        objects: Objects | None,
        threads: ContentThreads,
        pins: Claims,
    ) -> None:
        self._pool = pool
        self._shared = shared
        self._objects = objects
        self._threads = threads
        self._pins = pins
        self.seconds_kept = float(DROPPED_SECONDS_KEPT)
        self.pause: Pause = no_pause

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def collect(self) -> None:
        """Do all pending work, unless another front end does it."""
        while await self._step():  # noqa: ASYNC110 - a pause, so that requests come first
            await asyncio.sleep(PAUSE_SECONDS)

    async def sweep(self) -> None:
        """List all objects, and check old ones that no row names."""
        objects = self._objects
        if objects is None:
            return
        oldest = self._since(STRAY_SECONDS_MIN)
        if isinstance(objects, SharedFolder):
            await self._threads.run(objects.clear_stale, self._since(INCOMING_SECONDS_MAX))
        names = iter(objects.listed())
        while (found := await self._threads.run(next, names, None)) is not None:
            if strays := [name for name, stored_at in found if stored_at < oldest]:
                await self._pool.write(_SUSPECT_STRAYS, strays)

    async def forget_stale(self) -> None:
        """Remove what was kept long enough: staged blocks, and what was deleted."""
        await self._forget_blocks()
        await self.forget_expired()

    async def forget_expired(self) -> None:
        """Remove deleted blobs and containers whose time is over."""
        now, is_more = self._shared.clock.now(), True
        while is_more:
            ((count,),) = await self._pool.write(_REMOVE_EXPIRED, now, PURGE_ROWS)
            is_more = count == PURGE_ROWS
            await asyncio.sleep(PAUSE_SECONDS)
        for account, identity, name, facts in await self._pool.read(_DELETED_CONTAINERS):
            found = ContainerRow(identity, name, stored.decode_container(facts))
            if (found.facts.expires_at or 0) <= now:
                async with self._pool.link() as link, link.transaction():
                    tx = BlobTransaction(link, self._shared, account)
                    # Unless it was restored since the read.
                    if await tx.find_container(name) is not None:
                        await tx.drop_container(found)

    async def _forget_blocks(self) -> None:
        """Remove blocks that were staged too long ago, and blobs that have only such blocks."""
        oldest = self._since(limits.STAGED_SECONDS_MAX)
        for account, container, name in await self._pool.read(_STALE, oldest):
            async with self._pool.link() as link, link.transaction():
                tx = BlobTransaction(link, self._shared, account)
                identity, row = await tx.find_blob(container, name, LIVE)
                if identity is None or await tx.staged_since(identity, name) >= oldest:
                    continue  # another block was staged since the read
                await tx.discard_blocks(identity, name)
                if row is not None and not row.facts.is_committed:
                    await tx.remove_blob(row)

    async def _run(self) -> None:
        turns_left = 0.0
        while True:
            if turns_left <= 0 and await self._try(self.forget_stale):
                turns_left = STALE_EVERY_SECONDS / COLLECT_EVERY_SECONDS
            turns_left -= 1
            await self._try(self._sweep_if_due)
            await self._try(self.collect)
            await asyncio.sleep(COLLECT_EVERY_SECONDS)

    async def _sweep_if_due(self) -> None:
        now, before = self._shared.clock.now(), self._since(SWEEP_EVERY_SECONDS)
        if self._objects is not None and await self._pool.write(_BEGIN_SWEEP, now, before):
            await self.sweep()

    async def _try(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run some work; return whether it completed."""
        try:
            await work()
        except UnavailableError:
            return False  # because a database that is away only delays the work
        except PartitaError:
            logger.exception("the collector of blobs failed; it will retry")
            return False
        return True

    async def _step(self) -> bool:
        """Do the work of one transaction; return whether there may be more."""
        for work in (
            self._purge_container,
            self._purge_contents,
            self._expire_claims,
            self._check_objects,
        ):
            async with self._alone() as link:
                if link is None:
                    return False
                if await work(link):
                    return True
        return await self._remove_objects()

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[Link | None]:
        """Open a transaction as the only collector; None if another one is working."""
        async with self._pool.link() as link, link.transaction():
            ((is_mine,),) = await link.read(_IS_MINE, JOB_LOCKS, PURGE_BLOBS_JOB)
            yield link if is_mine else None

    async def _purge_container(self, link: Link) -> bool:
        """Remove some blobs or blocks of a dropped container, or its row if none are left."""
        for (container,) in await link.read(_DROPPED_CONTAINER):
            values = container, PURGE_ROWS, self._shared.clock.now()
            ((blobs,),) = await link.read(_PURGE_BLOBS, *values)
            if not blobs:
                dropped = await self._shared.numbers.take(link)
                ((blocks,),) = await link.read(_PURGE_BLOCKS, *values, dropped)
                if not blocks:
                    await link.read(_FORGET_CONTAINER, container)
            return True
        return False

    async def _purge_contents(self, link: Link) -> bool:
        """Remove some pieces of dropped contents that no blob has, and extents without pieces."""
        oldest = self._since(self.seconds_kept)
        dropped = await link.read(_DROPPED, oldest, self._pins.pinned(), PURGE_ROWS)
        if not dropped:
            return False
        contents = {content for _, content in dropped}
        # A blob that leaves it later drops it again, so that what is in use is forgotten here.
        used = {content for (content,) in await link.read(_IN_USE, list(contents))}
        rows = await link.read(_PURGE_PIECES, list(contents - used), PURGE_ROWS)
        await link.read(_PURGE_EXTENTS, list({extent for (extent,) in rows}))
        await link.read(_FORGET_CONTENTS, [each for each, _ in dropped], list(used))
        return True

    async def _expire_claims(self, link: Link) -> bool:
        ((count,),) = await link.read(_EXPIRED, self._since(CLAIM_SECONDS_MAX), PURGE_ROWS)
        return bool(count)

    async def _check_objects(self, link: Link) -> bool:
        """Decide which dropped objects are removed; the others are in use."""
        names = [name for (name,) in await link.read(_SUSPECTS, PURGE_ROWS)]
        if not names:
            return False
        await link.read(_LOCK, sorted({object_lock(name[:HASH_BYTES]) for name in names}))
        await link.read(_MARK, names)
        await link.read(_ACQUIT, names)
        return True

    async def _remove_objects(self) -> bool:
        """Remove objects after the decision is durable."""
        if self._objects is None:
            return False
        names = [name for (name,) in await self._pool.read(_LEAVING, PURGE_ROWS)]
        await self.pause("checked")
        for name in names:
            await self._threads.run(self._objects.remove, name)
        if names:
            await self._pool.write(_GONE, names)
        return bool(names)

    def _since(self, seconds: float) -> int:
        return self._shared.clock.now() - int(seconds * TICKS_PER_SECOND)
