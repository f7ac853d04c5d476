"""Downloads: content is read in pieces by threads, verified, one step ahead of its reader.

The content is pinned from `open` to `close`, so that it is not purged.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import apsw

from partita.blobs.rules import limits
from partita.blobs.rules.checksums import CHECK_BYTES, check_chunks, damaged
from partita.blobs.store.content_claims import Claims
from partita.blobs.store.contract import PieceRow
from partita.blobs.store.files import ContentFile, ContentFiles
from partita.blobs.store.pieces import needed
from partita.blobs.store.rows import BlobRows, InlineRow
from partita.blobs.store.threads import ContentThreads
from partita.storage.database import Database

FETCH_PIECES_MAX = 256
"""Pieces whose rows are read at once, ..."""
FETCH_BYTES_MAX = limits.MIB
"""... unless their bytes and checks exceed this."""

_EXTENT = "SELECT size, hash, bytes, substr(checks, ?2, ?3) FROM extent WHERE id = ?1"


class Segment(NamedTuple):
    """Bytes that a download needs of one extent.

    `place` is their position in the blob, `start` and `end` in the extent; `checks` are those of
    the chunks that contain them.
    """

    place: int
    start: int
    end: int
    size: int
    digest: bytes | None
    inline: bytes | None
    checks: bytes


class Wanted(NamedTuple):
    """Bytes of a content that a download needs next."""

    content: int
    first: int
    end: int
    pieces: deque[PieceRow] | None
    """Given for page blobs, whose pieces change in place and have gaps: `Fetch` removes those that
    it returns. None: they are looked up."""


Fetch = Callable[[Wanted], Awaitable[list[Segment]]]
"""Reads the rows of the next pieces, as many as fit the budget."""


class StoredDownload:
    """Content that is read in pieces. Call `start` first, `close` at the end."""

    def __init__(
        self,
        content: int,
        first: int,
        end: int,
        *,
        source: "Source",
        pieces: deque[PieceRow] | None = None,
    ) -> None:
        self.length = end - first
        self._content = content
        self._place = first
        self._end = end
        self._source = source
        self._pieces = pieces
        """Those of the range, for page blobs: they change in place and have gaps."""
        self._segments: deque[Segment] = deque()
        self._file: ContentFile | None = None
        self._ahead: asyncio.Task[bytes] | None = None
        self._is_open = True
        source.claims.pin(content)

    async def start(self) -> None:
        """Read the first part, so that its damage is known before the answer starts."""
        try:
            self._read_ahead()
            if self._ahead is not None:
                await asyncio.wait([self._ahead])
                self._ahead.result()
        except BaseException:
            await self.close()
            raise

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._ahead is None:
            raise StopAsyncIteration
        part = await asyncio.shield(self._ahead)
        self._read_ahead()
        return part

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            # In its own task: a cancelled reader must not leave its pin.
            await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        if self._ahead is not None:
            await asyncio.wait([self._ahead])
            self._ahead.exception()  # this part is not needed any more
        if self._file is not None:
            self._file.close()
        self._source.claims.unpin(self._content)

    def _read_ahead(self) -> None:
        is_more = self._is_open and self._place < self._end
        self._ahead = asyncio.ensure_future(self._read()) if is_more else None

    async def _read(self) -> bytes:
        if not self._segments:
            wanted = Wanted(self._content, self._place, self._end, self._pieces)
            self._segments.extend(await self._source.fetch(wanted))
        if not self._segments or self._segments[0].place > self._place:
            return self._read_hole()
        if self._segments[0].digest is None:
            return self._read_inline()
        return await self._source.threads.run(self._read_file)

    def _read_hole(self) -> bytes:
        if self._pieces is None:
            raise damaged("a part of it is missing")
        border = self._segments[0].place if self._segments else self._end
        count = min(border - self._place, limits.READ_BYTES)
        self._place += count
        return bytes(count)

    def _read_inline(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while size < limits.READ_BYTES and self._segments:
            segment = self._segments[0]
            if segment.digest is not None or segment.place != self._place + size:
                break
            parts.append(inline_bytes(segment))
            size += len(parts[-1])
            self._segments.popleft()
        self._place += size
        return b"".join(parts)

    def _read_file(self) -> bytes:
        segment = self._segments[0]
        assert segment.digest is not None
        if self._file is None:
            self._file = self._source.files.open(segment.digest)
        start = segment.start + self._place - segment.place
        first_chunk = start // limits.CHUNK_BYTES
        window = first_chunk * limits.CHUNK_BYTES
        end = min(window + limits.READ_BYTES, _up_to_chunk(segment.end), segment.size)
        content = self._file.read(window, end - window)
        if len(content) != end - window:
            raise damaged("its file is too short")
        skipped = (first_chunk - segment.start // limits.CHUNK_BYTES) * CHECK_BYTES
        count = _up_to_chunk(len(content)) // limits.CHUNK_BYTES * CHECK_BYTES
        check_chunks(content, segment.checks[skipped : skipped + count], first_chunk)
        part = content[start - window : min(end, segment.end) - window]
        self._place += len(part)
        if end >= segment.end:
            self._segments.popleft()
            self._file.close()
            self._file = None
        return part


class Source(NamedTuple):
    """The sources of downloads."""

    fetch: Fetch
    files: ContentFiles
    threads: ContentThreads
    claims: Claims


def fetch_from(database: Database) -> Fetch:
    """Return a `Fetch` that reads the rows of a database in its reader threads."""

    async def fetch(wanted: Wanted) -> list[Segment]:
        return await database.in_reader(partial(_read_segments, wanted))

    return fetch


def _read_segments(wanted: Wanted, connection: apsw.Connection) -> list[Segment]:
    found = _looked_up(wanted, connection) if wanted.pieces is None else _given(wanted, connection)
    return within_budget(found)


def within_budget(found: Iterable[Segment]) -> list[Segment]:
    """Return the first segments, up to a number and a size."""
    segments: list[Segment] = []
    size = 0
    for segment in found:
        segments.append(segment)
        size += len(segment.inline or b"") + len(segment.checks)
        if len(segments) == FETCH_PIECES_MAX or size >= FETCH_BYTES_MAX:
            break
    return segments


def _given(wanted: Wanted, connection: apsw.Connection) -> Iterator[Segment]:
    assert wanted.pieces is not None
    while wanted.pieces:
        yield _segment_of(connection, wanted.pieces.popleft(), wanted.first, wanted.end)


def _looked_up(wanted: Wanted, connection: apsw.Connection) -> Iterator[Segment]:
    content, first, end, _ = wanted
    for piece, inline in BlobRows(connection).pieces_with_bytes(content, first, end):
        if inline is None:
            yield _segment_of(connection, piece, first, end)
        else:
            place, start, stop = needed(piece, first, end)
            yield Segment(place, start, stop, inline.size, None, inline.bytes, inline.checks)


def _segment_of(connection: apsw.Connection, piece: PieceRow, first: int, end: int) -> Segment:
    """Read the part of an extent that a range of the blob needs."""
    place, start, stop = needed(piece, first, end)
    parameters = (piece.extent, *needed_checks(start, stop))
    for size, digest, inline, checks in connection.execute(_EXTENT, parameters):
        return Segment(place, start, stop, size, digest, inline, checks)
    raise damaged("a part of it is missing")


def needed_checks(start: int, end: int) -> tuple[int, int]:
    """Return which checks a range of an extent needs: their place, from 1 on, and their length."""
    first_chunk = start // limits.CHUNK_BYTES
    chunks = -(-end // limits.CHUNK_BYTES) - first_chunk
    return first_chunk * CHECK_BYTES + 1, chunks * CHECK_BYTES


def _up_to_chunk(size: int) -> int:
    """Round up to the end of a chunk."""
    return -(-size // limits.CHUNK_BYTES) * limits.CHUNK_BYTES


def inline_bytes(segment: Segment) -> bytes:
    """Return the bytes of a segment in a row, verified."""
    whole = verified(InlineRow(segment.size, segment.checks, segment.inline))
    return whole[segment.start : segment.end]


def verified(row: InlineRow) -> bytes:
    """Return the bytes of a row, verified."""
    if row.bytes is None or len(row.bytes) != row.size:
        raise damaged("its row has another length")
    check_chunks(row.bytes, row.checks)
    return row.bytes
