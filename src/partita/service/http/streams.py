"""Streamed bodies: pieces from a connection to a reader, and from a source to a client.

Nothing here depends on HTTP. The one rule: buffers are bounded, so that a body of any length
takes the memory of a few pieces.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Protocol

import msgspec

from partita.errors import InvalidRequestError, PartitaError, UnavailableError
from partita.service.http.request import PIECE_BYTES_MAX, Download, Request

_SMALL_PIECE_BYTES = 16 * 1024
"""Smaller pieces are joined: a body of single bytes must not take fifty times its size."""


def client_gone() -> PartitaError:
    """Return the error of a body whose sender disconnected or stopped sending."""
    return UnavailableError(
        "ClientGone",
        "The request ended before its body was complete.",
        hint="Send the complete request again; nothing was changed.",
    )


def body_too_long() -> PartitaError:
    """Return the error of a body that is longer than declared."""
    return InvalidRequestError(
        "InvalidInput",
        "The request body is longer than its Content-Length.",
        hint="Declare the exact length, or none.",
    )


class Feeding(Protocol):
    """The connection that a body arrives on."""

    def body_wanted(self) -> None:
        """Handle that a reader waits for bytes that have not arrived."""

    def body_taken(self, count: int) -> None:
        """Handle that a reader has taken this many bytes."""


class ArrivingBody:
    """An Upload that a connection feeds and one reader consumes."""

    __slots__ = (
        "_arrival",
        "_error",
        "_feeding",
        "_is_whole",
        "_pieces",
        "_small",
        "_waiting_bytes",
        "length",
        "received_bytes",
        "was_read",
    )

    def __init__(self, length: int | None, feeding: Feeding) -> None:
        self.length = length
        self.received_bytes = 0
        self.was_read = False
        """Whether a reader has asked for it: its request is authenticated."""
        self._feeding = feeding
        self._pieces: deque[bytes] = deque()
        self._small = bytearray()
        """Small pieces, all after `_pieces`."""
        self._waiting_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._error: PartitaError | None = None
        self._is_whole = False

    @property
    def is_awaited(self) -> bool:
        """Return whether a reader waits for bytes that the client has not sent."""
        return self._arrival is not None

    def feed(self, part: bytes) -> int:
        """Add received bytes; return how many of them now wait for the reader."""
        self.received_bytes += len(part)
        if self._error is not None:
            return 0
        self._waiting_bytes += len(part)
        if len(part) < _SMALL_PIECE_BYTES:
            self._small += part
            if len(self._small) >= _SMALL_PIECE_BYTES:
                self._gather()
        else:
            self._gather()
            self._pieces.extend(slices(part))
        self._wake()
        return len(part)

    def end(self) -> None:
        """Mark the body complete."""
        self._is_whole = True
        self._wake()

    def fail(self, error: PartitaError) -> None:
        """Let the reader fail at once; a complete body stays complete."""
        if not self._is_whole and self._error is None:
            self._give_up(error)

    def drop(self) -> None:
        """Discard buffered and further bytes: the answer is decided."""
        self._give_up(client_gone())

    def _give_up(self, error: PartitaError) -> None:
        self._error = error
        self._pieces.clear()
        self._small.clear()
        count, self._waiting_bytes = self._waiting_bytes, 0
        self._feeding.body_taken(count)
        self._wake()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self.was_read = True
        while True:
            if self._error is not None:
                raise self._error
            piece = self._take()
            if piece:
                return piece
            if self._is_whole:
                raise StopAsyncIteration
            await self._arrived()

    async def _arrived(self) -> None:
        assert self._arrival is None, "a body has one reader"
        self._feeding.body_wanted()
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _take(self) -> bytes:
        if not self._pieces:
            self._gather()
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self._waiting_bytes -= len(piece)
        self._feeding.body_taken(len(piece))
        return piece

    def _gather(self) -> None:
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small.clear()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


async def with_whole_body(request: Request) -> Request:
    """Return the request with its body as bytes; the sender of the body enforces its limit."""
    upload = request.upload
    if upload is None:
        return request
    body = b"".join([piece async for piece in upload])
    return msgspec.structs.replace(request, body=body, upload=None)


def slices(part: bytes) -> list[bytes]:
    """Split bytes that are longer than the maximal piece."""
    if len(part) <= PIECE_BYTES_MAX:
        return [part]
    starts = range(0, len(part), PIECE_BYTES_MAX)
    return [part[start : start + PIECE_BYTES_MAX] for start in starts]


async def pour(download: Download, send: Callable[[bytes], Awaitable[bool]]) -> None:
    """Pass every piece to `send` until it returns False.

    Raises RuntimeError if the download does not have its declared length.
    """
    left = download.length
    pieces = aiter(download)
    try:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise RuntimeError("the download is longer than declared")
            if not await send(piece):
                return
    finally:
        # Without this, an abandoned generator would be closed at some later time.
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
    if left:
        raise RuntimeError("the download is shorter than declared")
