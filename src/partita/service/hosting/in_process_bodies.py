"""Bodies between a client in this process and the service, without a socket.

The two sides may be on different threads and event loops: a reader requests each piece, and its
owner produces it in the owner's thread. The one rule: a streamed body is never collected.
"""

import asyncio
import inspect
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from partita.service.http.request import PIECE_BYTES_MAX, Response
from partita.service.http.streams import body_too_long, client_gone, slices

Ask = Callable[["asyncio.Future[bytes]"], None]
"""Requests the next piece from the client's side; empty bytes are the end."""


class KeptBody:
    """An Upload in the client's memory."""

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        self.length: int | None = len(content)
        self.received_bytes = len(content)
        self._rest = memoryview(content)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        piece = bytes(self._rest[:PIECE_BYTES_MAX])
        self._rest = self._rest[PIECE_BYTES_MAX:]
        return piece


class AskedBody:
    """An Upload whose pieces the client's side produces on request; used on the service's loop."""

    def __init__(self, length: int | None, ask: Ask) -> None:
        self.length = length
        self._ask = ask
        self._asked: asyncio.Future[bytes] | None = None
        self._error: Exception | None = None
        self._pieces: list[bytes] = []
        """The rest of a longer piece, in reverse order."""
        self.received_bytes = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._pieces:
            self._pieces = slices(await self._next_part())[::-1]
        return self._pieces.pop()

    async def _next_part(self) -> bytes:
        if self._error is not None:
            raise self._error
        self._asked = asyncio.get_running_loop().create_future()
        try:
            self._ask(self._asked)
            part = await self._asked
        except RuntimeError as error:
            # The client's loop is closed.
            raise client_gone() from error
        finally:
            self._asked = None
        self.received_bytes += len(part)
        if self.length is not None and self.received_bytes > self.length:
            raise body_too_long()
        if part:
            return part
        if self.length is not None and self.received_bytes < self.length:
            raise client_gone()
        raise StopAsyncIteration

    def fail(self) -> None:
        """Let the reader fail: the client produces no more pieces."""
        self._error = client_gone()
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(self._error)


def give(asked: "asyncio.Future[bytes]", part: bytes) -> None:
    """Deliver a requested piece, on the loop of its reader."""
    if not asked.done():
        asked.set_result(part)


def parts_of(content: Any) -> Iterator[bytes]:
    """Yield the pieces of a synchronous client's content: a file-like object or an iterable."""
    if not hasattr(content, "read"):
        return (_as_bytes(part) for part in content if part)
    return iter(lambda: _as_bytes(content.read(PIECE_BYTES_MAX)), b"")


async def async_parts_of(content: Any) -> AsyncIterator[bytes]:
    """Yield the pieces of an asynchronous client's content, which may be synchronous itself."""
    if hasattr(content, "read"):
        while part := await _read(content.read):
            yield _as_bytes(part)
    elif hasattr(content, "__aiter__"):
        async for part in content:
            if part:
                yield _as_bytes(part)
    else:
        parts = parts_of(content)
        while part := await asyncio.to_thread(next, parts, b""):
            yield part


async def _read(read: Callable[[int], Any]) -> Any:
    if inspect.iscoroutinefunction(read):
        return await read(PIECE_BYTES_MAX)
    part = await asyncio.to_thread(read, PIECE_BYTES_MAX)
    return await part if isinstance(part, Awaitable) else part


def _as_bytes(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else bytes(part)


class Answered:
    """The body of an answer: in memory, or in pieces on the service's loop; closed exactly once."""

    def __init__(self, answer: Response, *, is_silent: bool) -> None:
        self._kept = b"" if is_silent else answer.body
        self._download = answer.download
        self._left_bytes = 0 if is_silent else answer.length
        self._stream: AsyncIterator[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """Return whether there are pieces to request, and a download to close."""
        return self._download is not None

    def next_kept(self) -> bytes:
        """Return the body in memory once, then nothing."""
        piece, self._kept = self._kept, b""
        return piece

    async def next_piece(self) -> bytes:
        """Return the next piece of a download; empty after the last one, when it is closed.

        Raises the error of the download, or RuntimeError if it does not have its declared length.
        """
        try:
            piece = await self._pull() if self._left_bytes else b""
        except BaseException:
            await self.close()
            raise
        if not piece:
            await self.close()
        return piece

    async def _pull(self) -> bytes:
        if self._stream is None:
            assert self._download is not None
            self._stream = aiter(self._download)
        piece = await anext(self._stream, b"")
        self._left_bytes -= len(piece)
        if self._left_bytes < 0 or (self._left_bytes and not piece):
            raise RuntimeError("the download does not have its declared length")
        return piece

    async def close(self) -> None:
        download, self._download = self._download, None
        stream, self._stream = self._stream, None
        if download is None:
            return
        try:
            if stream is not None and hasattr(stream, "aclose"):
                await stream.aclose()
        finally:
            await download.close()


_ANY_HEADER = zlib.MAX_WBITS | 32


def inflater_of(encoding: str | None) -> Callable[[bytes], bytes] | None:
    """Return a decoder of a Content-Encoding that HTTP clients decode, piece by piece."""
    if (encoding or "").lower() not in ("gzip", "deflate"):
        return None
    return zlib.decompressobj(_ANY_HEADER).decompress
