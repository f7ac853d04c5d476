"""HTTP/1.1 requests on kept connections: one exchange at a time on each.

Whether a request can be repeated is decided by the caller: an error says whether the server may
have received it.
"""

import asyncio
import ssl
from typing import cast
from urllib.parse import urlsplit

import httptools

from partita.errors import UnavailableError
from partita.service.http.request import Request, Response

CONNECT_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""A page has at most 4 MiB of entities; a longer answer is not one of a table service."""
IDLE_CONNECTIONS_MAX = 64
IDLE_SECONDS_MAX = 15.0
"""A connection that was idle longer is not used: a network may have dropped it without a word."""


class AnswerLostError(UnavailableError):
    """The connection ended after a request was sent: whether it was performed is unknown."""


class HttpSender:
    """Sends requests to one endpoint. A connection that an answer leaves open is used again."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._netloc = parts.netloc
        self._tls: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []

    async def respond(self, request: Request) -> Response:
        """Send a request and return its answer.

        Raises UnavailableError("ServerUnreachable") if it was not sent, AnswerLostError if it may
        have been performed.
        """
        connection = self._take() or await self._connect()
        try:
            response = await connection.exchange(_printed(request, self._netloc))
        except BaseException:
            connection.close()
            raise
        if connection.is_open and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def _take(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                return connection
            connection.close()
        return None

    async def _connect(self) -> "_Connection":
        if self._is_tls and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, connection = await loop.create_connection(
                    _Connection, self._host, self._port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:  # certificates are an OSError, too
            raise UnavailableError(
                "ServerUnreachable",
                f"The server at {self._host}:{self._port} cannot be reached: {_reason(error)}.",
                facts={"host": self._host, "port": self._port},
                hint="Check the address and that the server runs.",
            ) from error
        return connection

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """One connection, and the answer that is being received on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Response] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._used_at = 0.0
        self.is_open = False

    async def exchange(self, message: list[bytes]) -> Response:
        assert self._transport is not None
        assert self._waiting is None
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._pieces, self._bytes = [], [], 0
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.writelines(message)
        return await self._waiting

    @property
    def is_fresh(self) -> bool:
        """Whether the next request can be sent on it."""
        now = asyncio.get_running_loop().time()
        return self.is_open and now - self._used_at <= IDLE_SECONDS_MAX

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._parser is None:
            self.close()  # bytes that belong to no request: do not use this connection again
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._fail(str(exc or "the server closed the connection"))

    def _fail(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, None
        self.close()
        if waiting is not None and not waiting.done():
            waiting.set_exception(
                AnswerLostError(
                    "AnswerLost",
                    f"The connection ended before the answer: {reason}.",
                    hint="Repeat the command: entities that are already written stay as they are.",
                )
            )

    # --- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._bytes > ANSWER_BYTES_MAX:
            self._fail("the answer is too long for a table service")
        else:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        parser, waiting = self._parser, self._waiting
        if parser is None or waiting is None:
            return
        status = parser.get_status_code()
        if status < 200:  # 100 Continue: the answer follows
            self._headers, self._pieces = [], []
            return
        self._parser = self._waiting = None
        self._used_at = asyncio.get_running_loop().time()
        self.is_open = self.is_open and parser.should_keep_alive()
        if not waiting.done():
            waiting.set_result(Response(status, self._headers, b"".join(self._pieces)))


def _printed(request: Request, host: str) -> list[bytes]:
    target = f"{request.path}?{request.query}" if request.query else request.path
    lines = [f"{request.method} {target} HTTP/1.1\r\nHost: {host}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in request.headers.items()]
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(request.body)}\r\n")
    lines.append("\r\n")
    head = "".join(lines).encode("latin-1")
    # From Python 3.12 on, an empty piece stays in the buffer of asyncio's own transport: it wakes
    # the loop without end, and the connection is never closed.
    return [head, request.body] if request.body else [head]


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no connection within {CONNECT_SECONDS_MAX:g} s"
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
