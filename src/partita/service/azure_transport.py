"""azure-core transports that hand requests to `respond` instead of a socket.

Needs the `azure` extra. The service runs on one loop in a thread of its own, so that clients of
any thread and any loop can share it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent import futures
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from azure.core.pipeline.transport import AsyncHttpTransport, HttpTransport
from azure.core.rest import HttpRequest
from azure.core.rest._http_response_impl import HttpResponseImpl
from azure.core.rest._http_response_impl_async import AsyncHttpResponseImpl
from requests.structures import CaseInsensitiveDict

from partita.errors import UsageError
from partita.service.request import Request, Response

Respond = Callable[[Request], Coroutine[Any, Any, Response]]

_BLOCK_BYTES = 64 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class InProcessTransport(HttpTransport[HttpRequest, HttpResponseImpl]):
    """The transport of the synchronous clients."""

    def __init__(self, respond: Respond, loop: asyncio.AbstractEventLoop) -> None:
        self._respond = respond
        self._loop = loop

    def send(self, request: HttpRequest, *, stream: bool = False, **_: Any) -> HttpResponseImpl:
        future = _submit(self._respond, request, self._loop)
        response = HttpResponseImpl(**_facts(request, future.result(), _Ended(), _Download))
        if not stream:
            response.read()
        return response

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close: the account outlives its clients."""

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


class AsyncInProcessTransport(AsyncHttpTransport[HttpRequest, AsyncHttpResponseImpl]):
    """The transport of the asynchronous clients, on whichever loop they run."""

    def __init__(self, respond: Respond, loop: asyncio.AbstractEventLoop) -> None:
        self._respond = respond
        self._loop = loop

    async def send(
        self, request: HttpRequest, *, stream: bool = False, **_: Any
    ) -> AsyncHttpResponseImpl:
        future = _submit(self._respond, request, self._loop)
        answer = await asyncio.wrap_future(future)
        response = AsyncHttpResponseImpl(**_facts(request, answer, _AsyncEnded(), _AsyncDownload))
        if not stream:
            await response.read()
        return response

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close: the account outlives its clients."""

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


def _submit(
    respond: Respond, request: HttpRequest, loop: asyncio.AbstractEventLoop
) -> futures.Future[Response]:
    if loop.is_closed():
        raise UsageError("AccountClosed", "This account is closed.", hint="Open it again.")
    return asyncio.run_coroutine_threadsafe(respond(_request_of(request)), loop)


def _request_of(request: HttpRequest) -> Request:
    parts = urlsplit(request.url)
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers.setdefault("host", parts.netloc)
    return Request(
        request.method,
        parts.path,
        parts.query,
        headers,
        _body_of(request.content),
        peer="127.0.0.1",
        scheme=parts.scheme,
    )


def _body_of(content: Any) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray):
        return bytes(content)
    if hasattr(content, "read"):
        return bytes(content.read())
    return b"".join(content)


def _facts(
    request: HttpRequest, answer: Response, internal: object, download: type
) -> dict[str, Any]:
    headers: CaseInsensitiveDict[str] = CaseInsensitiveDict(answer.headers)
    headers.setdefault("Content-Length", str(len(answer.body)))
    return {
        "request": request,
        "internal_response": internal,
        "block_size": _BLOCK_BYTES,
        "status_code": answer.status,
        "reason": _REASONS.get(answer.status, ""),
        "content_type": headers.get("Content-Type"),
        "headers": headers,
        "stream_download_generator": _downloading(download, answer.body),
    }


def _downloading(download: type, body: bytes) -> Callable[..., Any]:
    def start(**arguments: Any) -> Any:
        return download(body, arguments.get("response"))

    return start


class _Ended:
    """Stands where azure-core expects the response of an HTTP library."""

    def close(self) -> None:
        """Nothing to close."""


class _AsyncEnded:
    async def close(self) -> None:
        """Nothing to close."""


class _Download:
    """The body in one piece; the SDKs read `response` and the length from it."""

    def __init__(self, body: bytes, response: Any) -> None:
        self.response = response
        self.content_length = len(body)
        self._pieces = iter([body])

    def __len__(self) -> int:
        return self.content_length

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)


class _AsyncDownload(_Download):
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration
