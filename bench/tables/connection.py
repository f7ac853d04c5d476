"""Two small HTTP/1.1 clients, blocking and asyncio, that send ready bytes.

They decode nothing but the frame of an answer (length or chunks), one answer at a time,
so that the client costs little beside the server. Neither reconnects nor retries: in a
benchmark a broken connection is a finding.
"""

import asyncio
import re
import socket
from dataclasses import dataclass
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_ENCODED = re.compile(rb"\r\ncontent-encoding: *(?!identity)", re.IGNORECASE)
_RECEIVE_BYTES = 1 << 20


class BrokenExchangeError(Exception):
    """The server closed the connection, or sent what these clients do not read."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str:
        """Return the value of a header, or an empty string."""
        found = re.search(rb"\r\n%s: *([^\r\n]*)" % name.encode(), self.head, re.IGNORECASE)
        return found[1].decode() if found else ""


class AnswerReader:
    """Cut one answer after the other out of received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: bytes | None = None
        self._length: int | None = 0  # None while the body comes in chunks
        self._at = 0  # where the next chunk begins
        self._chunks: list[bytes] = []

    def feed(self, received: bytes) -> Answer | None:
        self._buffer += received
        if self._head is None and not self._read_head():
            return None
        body = self._chunked_body() if self._length is None else self._counted_body(self._length)
        if body is None:
            return None
        assert self._head is not None
        head, self._head = self._head, None
        return Answer(int(head[9:12]), head, body)

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 4]
        if _ENCODED.search(head):
            raise BrokenExchangeError("the answer is compressed; these clients count plain bytes")
        self._head = head
        length = _LENGTH.search(head)
        self._length = int(length[1]) if length else None if _CHUNKED.search(head) else 0
        self._at, self._chunks = 0, []
        return True

    def _counted_body(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _chunked_body(self) -> bytes | None:
        while True:
            line_end = self._buffer.find(b"\r\n", self._at)
            if line_end < 0:
                return None
            size = int(self._buffer[self._at : line_end].split(b";")[0], 16)
            start, end = line_end + 2, line_end + 2 + size
            if len(self._buffer) < end + 2:
                return None
            self._at = end + 2
            if size == 0:
                del self._buffer[: self._at]
                return b"".join(self._chunks)
            self._chunks.append(bytes(self._buffer[start:end]))


class BlockingConnection:
    """One connection for a client that does one thing after the other."""

    def __init__(self, port: int, timeout: float = 60.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = AnswerReader()

    def __enter__(self) -> "BlockingConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def exchange(self, request: bytes) -> Answer:
        self._socket.sendall(request)
        while True:
            received = self._socket.recv(_RECEIVE_BYTES)
            if not received:
                raise BrokenExchangeError("the server closed the connection")
            answer = self._reader.feed(received)
            if answer is not None:
                return answer


class Connection(asyncio.Protocol):
    """One asyncio connection; at most one exchange at a time."""

    def __init__(self) -> None:
        self._reader = AnswerReader()
        self._waiting: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> "Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, "127.0.0.1", port)
        return connection

    async def exchange(self, request: bytes) -> Answer:
        assert self._transport is not None
        assert self._waiting is None
        if self._transport.is_closing():
            raise BrokenExchangeError("the connection is closed")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        answer = self._reader.feed(data)
        if answer is not None and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            if not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(BrokenExchangeError(f"connection lost: {exc or 'closed'}"))
