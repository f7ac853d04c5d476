"""Uploads: small content stays in memory, longer content is written to a file.

Memory is bounded: one slab is written and hashed in a thread while the next one arrives.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable

from partita.blobs.rules import limits
from partita.blobs.rules.checksums import Sums, checks_of
from partita.blobs.rules.model import Content, Declared
from partita.blobs.store.files import ContentFiles, IncomingFile
from partita.blobs.store.threads import ContentThreads
from partita.refusals import body_too_large


class StoredContent:
    """Content that has arrived complete.

    Small content is in `inline`; other content is in `incoming`, which has no final name yet,
    and `digest` will be its name.
    """

    def __init__(
        self,
        size: int,
        sums: Declared,
        checks: bytes,
        *,
        inline: bytes | None = None,
        incoming: IncomingFile | None = None,
        digest: bytes | None = None,
    ) -> None:
        self.size = size
        self.sums = sums
        self.checks = checks
        self.inline = inline
        self.incoming = incoming
        self.digest = digest


class Receiver:
    """Receives one upload."""

    def __init__(
        self,
        files: ContentFiles,
        new_id: Callable[[], str],
        threads: ContentThreads,
        *,
        bytes_max: int,
        wants_md5: bool,
    ) -> None:
        self._files = files
        self._new_id = new_id
        self._threads = threads
        self._bytes_max = bytes_max
        self._sums = Sums(wants_md5=wants_md5)
        self._hash = hashlib.sha256()
        self._checks: list[bytes] = []
        self._incoming: IncomingFile | None = None
        self._written = 0
        self._buffer = bytearray()
        self._writing: asyncio.Future[None] | None = None

    async def receive(self, content: Content) -> StoredContent:
        """Receive the whole content; a failure leaves no file."""
        if isinstance(content, bytes):
            self._refuse_if_long(len(content))
            if len(content) <= limits.INLINE_BYTES_MAX:
                return self._in_hand(content)
        size = 0
        try:
            async for part in _parts(content):
                size += len(part)
                self._refuse_if_long(size)
                self._buffer += part
                if len(self._buffer) >= limits.SLAB_BYTES:
                    await self._written_so_far()
                    # Complete chunks only: a chunk must not extend over two slabs.
                    self._start_writing(len(self._buffer) // limits.CHUNK_BYTES)
            if self._writing is None and size <= limits.INLINE_BYTES_MAX:
                return self._in_hand(bytes(self._buffer))
            await self._written_so_far()
            self._start_writing()
            await self._written_so_far()
        except BaseException:
            # In its own task: a second cancellation must not leave the file.
            await asyncio.shield(asyncio.ensure_future(self._abandon()))
            raise
        return StoredContent(
            size,
            self._sums.digest(),
            b"".join(self._checks),
            incoming=self._incoming,
            digest=self._hash.digest(),
        )

    def _in_hand(self, content: bytes) -> StoredContent:
        self._sums.update(content)
        return StoredContent(len(content), self._sums.digest(), checks_of(content), inline=content)

    def _start_writing(self, chunks: int | None = None) -> None:
        end = len(self._buffer) if chunks is None else chunks * limits.CHUNK_BYTES
        slab = bytes(memoryview(self._buffer)[:end])
        del self._buffer[:end]
        self._writing = self._threads.start(self._write, slab)

    async def _written_so_far(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _abandon(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._writing.exception()  # the first error is raised
        if self._incoming is not None:
            await self._threads.run(self._files.discard, self._incoming)

    def _write(self, slab: bytes) -> None:
        if self._incoming is None:
            self._incoming = self._files.begin(self._new_id())
        self._incoming.write(slab)
        self._hash.update(slab)
        self._sums.update(slab)
        self._checks.append(checks_of(slab, self._written // limits.CHUNK_BYTES))
        self._written += len(slab)

    def _refuse_if_long(self, size: int) -> None:
        if size > self._bytes_max:
            raise body_too_large(self._bytes_max, "Send the content in blocks.")


async def _parts(content: Content) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        for place in range(0, len(content), limits.SLAB_BYTES):
            yield content[place : place + limits.SLAB_BYTES]
        return
    async for part in content:
        yield part
