"""The embedded blob store: rows in the account's database, long content in files beside it.

For a database in memory, the files are in memory, too.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

import apsw

from partita.blobs.rules.checksums import sums_of
from partita.blobs.rules.listing import FoundPlace, Place
from partita.blobs.rules.model import (
    Blob,
    BlobPrefix,
    Block,
    BytesDownload,
    Content,
    Declared,
    Download,
)
from partita.blobs.rules.names import LIVE
from partita.blobs.store.content_claims import Claims
from partita.blobs.store.contract import (
    BlobChange,
    BlobRow,
    BlockRow,
    Choose,
    ContainerRow,
    LongChangeError,
    PieceRow,
    Scan,
    TaggedRow,
)
from partita.blobs.store.download import Source, StoredDownload, fetch_from, verified
from partita.blobs.store.files import ContentFiles, FolderFiles, MemoryFiles
from partita.blobs.store.garbage_collector import Collector, Pause, no_pause
from partita.blobs.store.list_scan import read_listing
from partita.blobs.store.pieces import pieces_within
from partita.blobs.store.rows import (
    FORMAT_VERSION,
    SCHEMA,
    UPGRADES,
    BlobRows,
    BlobTransaction,
    StagedCounts,
)
from partita.blobs.store.threads import READING_THREADS, WRITING_THREADS, ContentThreads
from partita.blobs.store.upload import Receiver, StoredContent
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock

CHANGE_ROWS_MAX = 1000
"""A change that touches more rows of blocks, pieces or snapshots runs in a thread."""

T = TypeVar("T")


class SqliteBlobStore:
    """Rows and content of one account; build it with `open`."""

    def __init__(
        self, database: Database, clock: StoreClock, files: ContentFiles, pause: Pause
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.database = database
        self.clock = clock
        self.files = files
        self.claims = Claims()
        self.threads = ContentThreads(WRITING_THREADS, "partita-content")
        self._reading = ContentThreads(READING_THREADS, "partita-download")
        self.pause = pause
        self._staged: StagedCounts = {}
        if isinstance(files, FolderFiles):
            files.on_failure = self._stop
        database.prepare("blobs", FORMAT_VERSION, SCHEMA, UPGRADES)
        self.collector = Collector(database, files, self.threads, self.claims, clock, pause)
        self._source = Source(fetch_from(database), files, self._reading, self.claims)

    @classmethod
    async def open(
        cls,
        database: Database,
        clock: StoreClock,
        *,
        files: ContentFiles | None = None,
        pause: Pause = no_pause,
    ) -> "SqliteBlobStore":
        """Open the blobs of an account; leftovers of a crash are removed in the background."""
        if files is None:
            files = FolderFiles(database.folder) if database.folder else MemoryFiles()
        store = cls(database, clock, files, pause)
        await store.threads.run(files.clear_incoming)
        store.collector.start()
        return store

    async def close(self) -> None:
        """Finish the work in the background. The database belongs to the account."""
        await self.collector.close()
        await self.threads.close()
        await self._reading.close()

    def _stop(self, error: OSError) -> None:
        """Stop the account: a failed sync of a file affects the database, too."""
        self._loop.call_soon_threadsafe(self.database.failed, error)

    def now(self) -> int:
        return self.clock.steady()

    def new_id(self) -> str:
        return self.clock.clock.new_id()

    # Rows

    def reads(self) -> BlobRows:
        """Return the committed state, for this turn of the event loop."""
        return BlobRows(self.database.reader_of_this_turn())

    async def list_containers(
        self, start: str, end: str | None, limit: int, *, with_deleted: bool = False
    ) -> list[ContainerRow]:
        return await self._in_reader(
            lambda rows: rows.list_containers(start, end, limit, with_deleted=with_deleted)
        )

    async def list_tagged(
        self, container: int | None, start: FoundPlace, limit: int
    ) -> list[TaggedRow]:
        return await self._in_reader(lambda rows: rows.list_tagged(container, start, limit))

    async def list_blobs(self, scan: Scan) -> tuple[list[Blob | BlobPrefix], Place | None]:
        return await self._in_reader(partial(read_listing, scan))

    async def read_pages(
        self,
        container: str,
        name: str,
        snapshot: int,
        choose: Choose,
        use: Callable[[BlobRow, list[PieceRow]], T],
    ) -> T:
        def read(rows: BlobRows) -> T:
            identity, row = rows.read_blob(container, name, snapshot)
            first, end = choose(identity, row)
            assert row is not None
            return use(row, rows.pieces(row.content, first, end))

        return await self._in_reader(read)

    async def read_blocks(
        self, container: str, name: str, snapshot: int, check: Callable[..., object]
    ) -> tuple[BlobRow, list[Block], list[Block]]:
        def read(rows: BlobRows) -> tuple[BlobRow, list[Block], list[Block]]:
            identity, row = rows.read_blob(container, name, snapshot)
            check(identity, row)
            assert row is not None
            staged = rows.list_staged(row.container, name) if snapshot == LIVE else []
            committed = rows.list_committed(row.content)
            return row, _as_blocks(committed), _as_blocks(staged)

        return await self._in_reader(read)

    async def _in_reader(self, read: Callable[[BlobRows], T]) -> T:
        """Run a long read in a thread, on one state of the database."""

        def read_one_state(connection: apsw.Connection) -> T:
            if connection.in_transaction:
                return read(BlobRows(connection))
            connection.execute("BEGIN")
            try:
                return read(BlobRows(connection))
            finally:
                connection.execute("COMMIT")

        return await self.database.in_reader(read_one_state)

    @contextlib.asynccontextmanager
    async def change(
        self, *, frees_space: bool = False, rows_max: int | None = None
    ) -> AsyncIterator[BlobTransaction]:
        async with self.database.change(frees_space=frees_space) as connection:
            tx = BlobTransaction(connection, self.clock, self._staged, rows_max)
            yield tx
        if tx.has_dropped:
            self.collector.wake()

    async def run(
        self, work: Callable[[BlobChange], Coroutine[Any, Any, T]], *, frees_space: bool = False
    ) -> T:
        rows_max = None if self.database.folder is None else CHANGE_ROWS_MAX
        with contextlib.suppress(LongChangeError):
            async with self.change(frees_space=frees_space, rows_max=rows_max) as tx:
                return await work(tx)

        async def run_here(connection: apsw.Connection) -> tuple[T, bool]:
            tx = BlobTransaction(connection, self.clock, self._staged)
            return await work(tx), tx.has_dropped

        result, has_dropped = await self.database.run_alone(run_here, frees_space=frees_space)
        if has_dropped:
            self.collector.wake()
        return result

    # Content

    @contextlib.asynccontextmanager
    async def receive(
        self, content: Content, *, bytes_max: int, wants_md5: bool
    ) -> AsyncIterator["StoredReceipt"]:
        receiver = Receiver(
            self.files, self.new_id, self.threads, bytes_max=bytes_max, wants_md5=wants_md5
        )
        receipt = StoredReceipt(self, await receiver.receive(content))
        try:
            yield receipt
        except BaseException:
            receipt.was_refused = True
            raise
        finally:
            if receipt.received.incoming is not None:
                # In its own task: a cancelled caller must not leave a claim.
                await asyncio.shield(asyncio.ensure_future(receipt.end()))

    async def open_blob(
        self, container: str, name: str, snapshot: int, choose: Choose
    ) -> tuple[BlobRow, Download]:
        identity, row, inline = self.reads().find_blob_with_bytes(container, name, snapshot)
        if row is not None and row.facts.kind == "PageBlob":
            return await self._open_pages(container, row, choose)
        first, end = choose(identity, row)
        assert row is not None
        if inline is not None:
            return row, BytesDownload(verified(inline)[first:end])
        return row, await self._open_content(row, first, end)

    async def _open_pages(
        self, container: str, row: BlobRow, choose: Choose
    ) -> tuple[BlobRow, Download]:
        """Open a page blob, its content pinned from before its row and pieces are read.

        Pages change in place: the pieces of an earlier row may be of another version.
        """
        first = end = 0

        def chosen(identity: int | None, found: BlobRow | None) -> tuple[int, int]:
            nonlocal first, end
            first, end = choose(identity, found)
            return first, end

        while True:
            content = row.content
            self.claims.pin(content)
            try:
                row, pieces = await self.read_pages(
                    container,
                    row.name,
                    row.snapshot,
                    chosen,
                    lambda row, pieces: (row, pieces_within(pieces, first, end)),
                )
                if row.content == content:
                    return row, await self._open_content(row, first, end, pieces)
            finally:
                self.claims.unpin(content)

    async def _open_content(
        self, row: BlobRow, first: int, end: int, pieces: deque[PieceRow] | None = None
    ) -> Download:
        """Open bytes of a content in the turn of the loop in which its row was read.

        `pieces` are those of a page blob, read in one state with the row.
        """
        if first == end:
            return BytesDownload(b"")
        download = StoredDownload(row.content, first, end, source=self._source, pieces=pieces)
        await download.start()
        return download

    async def quarantine(self, digest: bytes) -> bool:
        """Move the damaged file of a content aside; return False if an upload replaces it."""
        if not self.claims.begin_leaving(digest):
            return False
        try:
            return await self.threads.run(self.files.quarantine, digest)
        finally:
            self.claims.end_leaving(digest)

    async def sums_of(self, content: bytes, *, wants_md5: bool) -> Declared:
        return await self.threads.run(partial(sums_of, wants_md5=wants_md5), content)


def _as_blocks(rows: Iterable[BlockRow]) -> list[Block]:
    return [Block(row.id, row.size) for row in rows]


class StoredReceipt:
    """Received content, and the claim on its file."""

    was_refused = False
    """The content may have no row: the collector checks it."""
    _is_claimed = False
    _placing: "asyncio.Future[None] | None" = None

    def __init__(self, store: SqliteBlobStore, received: StoredContent) -> None:
        self.received = received
        self._store = store

    async def settle(self) -> None:
        """Make the content durable: from then on rows may refer to it."""
        received, store = self.received, self._store
        if received.incoming is None or received.digest is None:
            return
        await store.claims.claim(received.digest)
        self._is_claimed = True
        await store.pause("claimed")
        self._placing = store.threads.start(store.files.place, received.incoming, received.digest)
        await asyncio.shield(self._placing)
        await store.pause("placed")

    async def end(self) -> None:
        """Release the claim and remove the temporary file."""
        received, store = self.received, self._store
        assert received.incoming is not None
        assert received.digest is not None
        if self._placing is not None:
            await asyncio.wait([self._placing])
        try:
            await store.threads.run(store.files.discard, received.incoming)
        finally:
            if self._is_claimed:
                store.claims.release(received.digest)
            if self._is_claimed and self.was_refused:
                store.collector.suspect(received.digest)
