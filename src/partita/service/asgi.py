"""The same `respond` as an ASGI application, for uvicorn, granian or httpx.

The host owns connections, framing and time-outs; we take the raw path and the raw query, never
the decoded path (signatures are made over what was sent), and keep the limit of the body.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from partita.clock import Clock, SystemClock
from partita.service.http import Respond
from partita.service.http_wire import (
    BAD_HEADER,
    BAD_TARGET,
    BODY_TOO_LARGE,
    FAILED,
    LENGTH_DIGITS_MAX,
    SERVER,
    HttpLimits,
    Refusal,
    RefusedError,
    join_repeated,
    refusal_response,
    sanitised_headers,
)
from partita.service.request import Request, Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)


class _ClientGoneError(Exception):
    """The client left before its request was whole."""


def asgi_app(
    respond: Respond, *, limits: HttpLimits | None = None, clock: Clock | None = None
) -> AsgiApp:
    """Return an ASGI application that answers as our own server does."""
    bounds = limits or HttpLimits()
    time = clock or SystemClock()

    def refuse(refusal: Refusal) -> Response:
        return refusal_response(refusal, time.new_id(), time.ticks())

    async def answer(scope: Scope, receive: Receive) -> Response:
        try:
            request = await _request_of(scope, receive, bounds.body_bytes_max)
        except RefusedError as refused:
            return refuse(refused.refusal)
        try:
            return await respond(request)
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            return refuse(FAILED)

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
        await _send_response(send, response, is_head=scope["method"] == "HEAD")

    return app


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _decline(scope: Scope, send: Send) -> None:
    assert scope["type"] == "websocket", f"ASGI has no {scope['type']}"
    await send({"type": "websocket.close", "code": 1003})


async def _request_of(scope: Scope, receive: Receive, body_bytes_max: int) -> Request:
    headers, repeated = join_repeated(scope["headers"])
    path = _raw_path(scope)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
        raise RefusedError(BAD_HEADER)
    if int(length) > body_bytes_max:
        raise RefusedError(BODY_TOO_LARGE)
    client = scope.get("client")
    return Request(
        method=scope["method"],
        path=path,
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        body=await _read_body(receive, body_bytes_max),
        peer=client[0] if client else "",
        scheme=scope.get("scheme", "http"),
        repeated=repeated,
    )


def _raw_path(scope: Scope) -> str:
    raw = scope.get("raw_path")
    if raw is None:
        # Without it every escaped key would be signed wrongly: better to fail at once.
        raise RuntimeError("this ASGI server hands in no raw_path")
    try:
        path: str = raw.partition(b"?")[0].decode("ascii")
    except UnicodeDecodeError:
        raise RefusedError(BAD_TARGET) from None
    return path


async def _read_body(receive: Receive, body_bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        body += message.get("body", b"")
        if len(body) > body_bytes_max:
            raise RefusedError(BODY_TOO_LARGE)
        if not message.get("more_body", False):
            return bytes(body)


async def _send_response(send: Send, response: Response, *, is_head: bool) -> None:
    headers = [
        (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
        for name, value in sanitised_headers(response.headers)
    ]
    headers.append((b"server", SERVER.encode()))
    if response.status != 304:
        headers.append((b"content-length", b"%d" % len(response.body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    body = b"" if is_head else response.body
    await send({"type": "http.response.body", "body": body})
