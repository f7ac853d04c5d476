"""The same `respond` as an ASGI application, for uvicorn, granian or httpx.

The host owns connections, framing and time-outs. This module uses the raw path and query
(signatures cover what was sent) and enforces the limit of the body. Hosts pass header names in
lower case: metadata names keep their case only if the host does.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from partita.clock import SystemClock
from partita.service.hosting.server import METRICS_PATH, plain
from partita.service.http.message_bytes import (
    BAD_HEADER,
    BAD_TARGET,
    BODY_TOO_LARGE,
    FAILED,
    LENGTH_DIGITS_MAX,
    TABLE_DIALECT,
    Dialect,
    HeaderNames,
    HttpLimits,
    Refusal,
    RefusedError,
    join_repeated,
    refusal_error,
    sanitised_headers,
)
from partita.service.http.protocol import Respond, Turn, resumed
from partita.service.http.request import Download, Observer, Request, Response
from partita.service.http.streams import body_too_long, client_gone, pour, slices
from partita.ticks import Clock

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)

FOLD_REQUESTS = 1024
"""After so many requests the observer sums up what it noted."""


class _ClientGoneError(Exception):
    """The client disconnected before its request was complete."""


def asgi_app(  # noqa: PLR0915 - one application, of three closures
    respond: Respond,
    *,
    limits: HttpLimits | None = None,
    clock: Clock | None = None,
    dialect: Dialect = TABLE_DIALECT,
    observer: Observer | None = None,
) -> AsgiApp:
    """Return an ASGI application that answers like the server.

    Its `/metrics` measures the turns of the loop that it takes in this process. `observer` is told
    about each answer, before it is sent, such as `partita.service.observing.ServiceMeter`.
    """
    bounds = limits or HttpLimits()
    time = clock or SystemClock()
    turn = Turn(bounds.write_buffer_bytes_max, time)
    notes = None if observer is None else _Notes(observer)

    def refuse(refusal: Refusal) -> Response:
        return dialect.refuse(refusal, time.new_id(), time.ticks())

    async def answer(scope: Scope, receive: Receive) -> Response:
        try:
            request = await _request_of(scope, receive, bounds)
        except RefusedError as refused:
            return refuse(refused.refusal)
        if request.path == METRICS_PATH:
            return plain(200, turn.watchdog.metrics())
        started = turn.now()
        try:
            response = await _measured(respond, request, turn)
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            response = refuse(FAILED)
        if notes is not None:
            notes.note(request, response, turn.now() - started)
        return response

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await _decline(scope, send)
            return
        try:
            response = await answer(scope, receive)
        except _ClientGoneError:
            return
        is_silent = scope["method"] == "HEAD" or response.status == 304
        headers = _headers_of(response, dialect)
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        if response.download is None:
            await send(start)
            await send(_piece(b"" if is_silent else response.body))
            return
        try:
            await send(start)
            if not is_silent:
                await _send_download(response.download, receive, send)
            await send(_piece(b""))
        finally:
            await response.download.close()

    return app


class _Notes:
    """Tells an observer about answers, and to sum up, which a server does every second."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._count = 0

    def note(self, request: Request, response: Response, seconds: float) -> None:
        self._observer.answered(request, response, seconds, False)  # noqa: FBT003 - see Observer
        self._count += 1
        if self._count % FOLD_REQUESTS == 0:
            self._observer.fold()


async def _measured(respond: Respond, request: Request, turn: Turn) -> Response:
    """Answer a request, and measure each turn of the loop that it takes."""
    started = turn.now()
    coroutine = respond(request)
    try:
        awaited = coroutine.send(None)
    except StopIteration as finished:
        response: Response = finished.value
        return response
    finally:
        turn.measure(request, started)
    return await resumed(coroutine, awaited, request, turn)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _decline(scope: Scope, send: Send) -> None:
    assert scope["type"] == "websocket", f"unsupported ASGI scope: {scope['type']}"
    await send({"type": "websocket.close", "code": 1003})


async def _request_of(scope: Scope, receive: Receive, limits: HttpLimits) -> Request:
    names = HeaderNames()
    headers, repeated = join_repeated(scope["headers"], names)
    path = _raw_path(scope)
    client = scope.get("client")
    body, upload = await _body_of(headers, receive, limits)
    return Request(
        method=scope["method"],
        path=path,
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        body=body,
        peer=client[0] if client else "",
        scheme=scope.get("scheme", "http"),
        repeated=repeated,
        upload=upload,
        spelled=names.take_spelled(),
    )


async def _body_of(
    headers: dict[str, str], receive: Receive, limits: HttpLimits
) -> tuple[bytes, "_ReceivedBody | None"]:
    length = _length_of(headers)
    if length is not None and length > limits.body_bytes_max:
        raise RefusedError(BODY_TOO_LARGE)
    above = limits.stream_above_bytes
    is_short = above is None or (length is not None and length <= above)
    if not is_short and (length is not None or "transfer-encoding" in headers):
        return b"", _ReceivedBody(length, receive, limits.body_bytes_max)
    # The rest of a body is received after the credentials are checked. HTTP/2 declares no length:
    # only the first message shows whether there is a body.
    first = await _next_message(receive)
    part: bytes = first.get("body", b"")
    if len(part) > limits.body_bytes_max:
        raise RefusedError(BODY_TOO_LARGE)
    if not first.get("more_body", False):
        return part, None
    return b"", _ReceivedBody(length, receive, limits.body_bytes_max, part)


def _length_of(headers: dict[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > LENGTH_DIGITS_MAX:
        raise RefusedError(BAD_HEADER)
    return int(text)


def _raw_path(scope: Scope) -> str:
    raw = scope.get("raw_path")
    if raw is None:
        # Without it the signature of every escaped key would be wrong: fail at once.
        raise RuntimeError("this ASGI server does not pass raw_path")
    try:
        path: str = raw.partition(b"?")[0].decode("ascii")
    except UnicodeDecodeError:
        raise RefusedError(BAD_TARGET) from None
    return path


async def _next_message(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _ClientGoneError
    return message


class _ReceivedBody:
    """An Upload that receives its messages from the host."""

    def __init__(
        self, length: int | None, receive: Receive, bytes_max: int, first: bytes = b""
    ) -> None:
        self.length = length
        self._receive = receive
        self._bytes_max = bytes_max
        self.received_bytes = len(first)
        self._pieces = slices(first)[::-1] if first else []
        """In reverse order."""
        self._is_whole = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._pieces:
            if self._is_whole:
                raise StopAsyncIteration
            part = await self._next_part()
            self._pieces = slices(part)[::-1] if part else []
        return self._pieces.pop()

    async def _next_part(self) -> bytes:
        try:
            message = await _next_message(self._receive)
        except _ClientGoneError:
            raise client_gone() from None
        part: bytes = message.get("body", b"")
        self.received_bytes += len(part)
        self._is_whole = not message.get("more_body", False)
        self._check_length()
        return part

    def _check_length(self) -> None:
        if self.length is None:
            if self.received_bytes > self._bytes_max:
                raise refusal_error(BODY_TOO_LARGE)
        elif self.received_bytes > self.length:
            raise body_too_long()
        elif self._is_whole and self.received_bytes < self.length:
            raise client_gone()


def _headers_of(response: Response, dialect: Dialect) -> list[tuple[bytes, bytes]]:
    headers = [
        (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
        for name, value in sanitised_headers(response.headers)
    ]
    headers.append((b"server", dialect.server.encode()))
    if response.status != 304:
        headers.append((b"content-length", b"%d" % response.length))
    return headers


def _piece(body: bytes, *, has_more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": has_more}


async def _send_download(download: Download, receive: Receive, send: Send) -> None:
    """Send the pieces until the end or until the client disconnects.

    An error leaves the answer incomplete: the host then closes the connection.
    """
    leaving = asyncio.ensure_future(_disconnected(receive))

    async def send_piece(piece: bytes) -> bool:
        if leaving.done():
            return False
        await send(_piece(piece, has_more=True))
        return True

    try:
        await pour(download, send_piece)
    finally:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
