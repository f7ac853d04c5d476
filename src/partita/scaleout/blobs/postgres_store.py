"""The blob store of an account in a PostgreSQL database that several front ends share.

A change is a transaction (READ COMMITTED) that locks the blobs it looks up: see `changes`. Content
up to 64 KiB is in the database; longer content is in an object store, see `claims`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from partita.blobs.rules import limits
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
from partita.blobs.store.contract import (
    BlobChange,
    BlobRow,
    Choose,
    ContainerRow,
    PieceRow,
    Scan,
    TaggedRow,
)
from partita.blobs.store.download import StoredDownload, verified
from partita.blobs.store.upload import Receiver
from partita.errors import PartitaError, StoreBusyError
from partita.scaleout.blobs.changes import BlobTransaction, OutOfOrderError
from partita.scaleout.blobs.claims import SALT_BYTES, ClaimedContent, abandon, claim_object
from partita.scaleout.blobs.contents import Contents
from partita.scaleout.blobs.locks import Held
from partita.scaleout.blobs.objects import store_missing
from partita.scaleout.blobs.reads import CommittedBlobs
from partita.scaleout.connections.link import busy
from partita.scaleout.connections.session import may_repeat

CHANGE_ATTEMPTS_MAX = 5
"""How often a change is repeated that others have kept from its locks."""

T = TypeVar("T")


class PostgresBlobStore:
    """Containers, blobs and content of one account."""

    def __init__(self, contents: Contents, account: int) -> None:
        self.contents = contents
        self._account = account
        self._reads = CommittedBlobs(contents.pool, account)

    async def close(self) -> None:
        """Do nothing: what runs in the background belongs to `Contents`."""

    def now(self) -> int:
        return self.contents.clock.now()

    def new_id(self) -> str:
        return self.contents.clock.clock.new_id()

    # Rows

    def reads(self) -> CommittedBlobs:
        return self._reads

    async def list_containers(
        self, start: str, end: str | None, limit: int, *, with_deleted: bool = False
    ) -> Sequence[ContainerRow]:
        return await self._reads.list_containers(start, end, limit, with_deleted=with_deleted)

    async def list_tagged(
        self, container: int | None, start: FoundPlace, limit: int
    ) -> list[TaggedRow]:
        return await self._reads.list_tagged(container, start, limit)

    async def list_blobs(self, scan: Scan) -> tuple[list[Blob | BlobPrefix], Place | None]:
        return await self._reads.list_blobs(scan)

    async def read_pages(
        self,
        container: str,
        name: str,
        snapshot: int,
        choose: Choose,
        use: Callable[[BlobRow, list[PieceRow]], T],
    ) -> T:
        return await self._reads.read_pages(container, name, snapshot, choose, use)

    async def read_blocks(
        self, container: str, name: str, snapshot: int, check: Callable[..., object]
    ) -> tuple[BlobRow, list[Block], list[Block]]:
        return await self._reads.read_blocks(container, name, snapshot, check)

    @contextlib.asynccontextmanager
    async def change(
        self,
        *,
        frees_space: bool = False,  # noqa: ARG002 - PostgreSQL has no reserve for deletes
        locks: Held | None = None,
    ) -> AsyncIterator[BlobTransaction]:
        async with self.contents.pool.link() as link, link.transaction():
            tx = BlobTransaction(link, self.contents.shared, self._account)
            if locks is not None:
                await tx.lock(locks)
            yield tx
        for received in tx.used:
            received.is_recorded = True

    async def run(
        self, work: Callable[[BlobChange], Coroutine[Any, Any, T]], *, frees_space: bool = False
    ) -> T:
        locks: Held | None = None
        for attempt in range(1, CHANGE_ATTEMPTS_MAX + 1):
            try:
                async with self.change(frees_space=frees_space, locks=locks) as tx:
                    return await work(tx)
            except OutOfOrderError as error:
                locks = error.locks
            except StoreBusyError as error:
                cause = error.__cause__
                if cause is None or not may_repeat(cause) or attempt == CHANGE_ATTEMPTS_MAX:
                    raise
        raise busy("locks")

    # Content

    @contextlib.asynccontextmanager
    async def receive(
        self, content: Content, *, bytes_max: int, wants_md5: bool
    ) -> AsyncIterator["UploadReceipt"]:
        contents = self.contents
        if contents.objects is None:
            content = _only_inline(content)
        receiver = Receiver(
            contents.files,
            self.new_id,
            contents.threads,
            bytes_max=bytes_max,
            wants_md5=wants_md5,
        )
        receipt = UploadReceipt(contents, ClaimedContent(await receiver.receive(content)))
        try:
            yield receipt
        finally:
            if receipt.received.stored.incoming is not None:
                # In its own task: a cancelled caller must not leave a claim.
                await asyncio.shield(asyncio.ensure_future(receipt.end()))

    async def open_blob(
        self, container: str, name: str, snapshot: int, choose: Choose
    ) -> tuple[BlobRow, Download]:
        found = await self._reads.find_version(container, name, snapshot, with_bytes=True)
        row = found.row
        if row is not None and row.facts.kind == "PageBlob":
            return await self._open_pages(container, row, choose)
        first, end = choose(found.container, row)
        assert row is not None
        if found.inline is not None:
            return row, BytesDownload(verified(found.inline)[first:end])
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
            self.contents.pins.pin(content)
            try:
                row, pieces = await self.read_pages(
                    container,
                    row.name,
                    row.snapshot,
                    chosen,
                    lambda row, pieces: (row, deque(pieces)),
                )
                if row.content == content:
                    return row, await self._open_content(row, first, end, pieces)
            finally:
                self.contents.pins.unpin(content)

    async def _open_content(
        self, row: BlobRow, first: int, end: int, pieces: deque[PieceRow] | None = None
    ) -> Download:
        if first == end:
            return BytesDownload(b"")
        source = self.contents.downloads
        download = StoredDownload(row.content, first, end, source=source, pieces=pieces)
        await download.start()
        return download

    async def quarantine(self, digest: bytes) -> bool:
        """Move a damaged object aside.

        An upload may replace it at this moment: a sound object in quarantine can be read, too.
        """
        return await self.contents.threads.run(self.contents.files.quarantine, digest)

    async def sums_of(self, content: bytes, *, wants_md5: bool) -> Declared:
        return await self.contents.threads.run(partial(sums_of, wants_md5=wants_md5), content)


class UploadReceipt:
    """Received content, and the claim on its object."""

    _placing: "asyncio.Future[None] | None" = None

    def __init__(self, contents: Contents, received: ClaimedContent) -> None:
        self.received = received
        self._contents = contents

    async def settle(self) -> None:
        """Make the content durable: from then on records may refer to it."""
        contents, received = self._contents, self.received
        stored = received.stored
        if stored.incoming is None or stored.digest is None:
            return
        salt = contents.clock.clock.random_bytes(SALT_BYTES)
        received.claim, name = await claim_object(
            contents.pool, stored.digest, salt, contents.clock.now()
        )
        await contents.pause("claimed")
        self._placing = contents.threads.start(contents.files.place, stored.incoming, name)
        await asyncio.shield(self._placing)
        await contents.pause("placed")

    async def end(self) -> None:
        """Abandon the claim if there is no record, and remove the temporary file."""
        contents, received = self._contents, self.received
        incoming = received.stored.incoming
        assert incoming is not None
        if self._placing is not None:
            await asyncio.wait([self._placing])
        try:
            await contents.threads.run(contents.files.discard, incoming)
        finally:
            if received.claim is not None and not received.is_recorded:
                # Because a claim that cannot be abandoned now expires later.
                with contextlib.suppress(PartitaError):
                    await abandon(contents.pool, received.claim)


def _only_inline(content: Content) -> Content:
    """Return the content up to the size of a row; longer content is refused while it arrives."""
    if isinstance(content, bytes):
        if len(content) > limits.INLINE_BYTES_MAX:
            raise store_missing()
        return content

    async def parts() -> AsyncIterator[bytes]:
        size = 0
        async for part in content:
            size += len(part)
            if size > limits.INLINE_BYTES_MAX:
                raise store_missing()
            yield part

    return parts()
