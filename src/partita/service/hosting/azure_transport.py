"""azure-core transports that hand requests to `respond` instead of a socket.

Needs the `azure` extra. The service runs on one loop in a thread of its own, so that clients of
any thread and any loop can share it. A request that was handed over is never cancelled: a client
that gives up loses only the answer.
"""

import asyncio
import queue
import weakref
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent import futures
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from azure.core.exceptions import DecodeError, IncompleteReadError
from azure.core.pipeline.transport import AsyncHttpTransport, HttpTransport
from azure.core.rest import HttpRequest
from azure.core.rest._http_response_impl import HttpResponseImpl
from azure.core.rest._http_response_impl_async import AsyncHttpResponseImpl
from requests.structures import CaseInsensitiveDict
from yarl import URL

from partita.clock import SystemClock
from partita.loop_thread import LoopThread
from partita.service.hosting.in_process_bodies import (
    Answered,
    AskedBody,
    KeptBody,
    async_parts_of,
    give,
    inflater_of,
    parts_of,
)
from partita.service.http.message_bytes import METADATA_PREFIX, http_date
from partita.service.http.request import Request, Response, Upload
from partita.ticks import Clock

T = TypeVar("T")
Respond = Callable[[Request], Coroutine[Any, Any, Response]]

_BLOCK_BYTES = 64 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class _Service:
    """The service as both transports reach it."""

    def __init__(
        self,
        respond: Respond,
        thread: LoopThread,
        stream_above_bytes: int | None,
        clock: Clock | None,
    ) -> None:
        self._respond = respond
        self.thread = thread
        self._stream_above_bytes = stream_above_bytes
        self._clock = clock or SystemClock()

    def submit(self, request: Request) -> futures.Future["_Answer"]:
        return self.thread.submit(self._answer(request))

    async def _answer(self, request: Request) -> "_Answer":
        response = await self._respond(request)
        is_silent = request.method == "HEAD" or response.status == 304
        body = Answered(response, is_silent=is_silent)
        if is_silent:
            await body.close()
        return _Answer(response, body, http_date(self._clock.ticks()), self)

    def streams(self, content: Any, length: int | None) -> bool:
        above = self._stream_above_bytes
        if above is None or content is None or isinstance(content, str):
            return False
        if isinstance(content, bytes | bytearray | memoryview):
            return len(content) > above
        return length is None or length > above


class _Answer:
    """An answer whose body may still be open; whoever lets it fall closes it."""

    def __init__(self, response: Response, body: Answered, date: str, service: _Service) -> None:
        self._response = response
        self._date = date
        self.service = service
        self.body = body
        if body.is_open:
            weakref.finalize(self, _close_later, body, service).atexit = False

    def facts(self, request: HttpRequest, internal: object, download: type) -> dict[str, Any]:
        response = self._response
        headers: CaseInsensitiveDict[str] = CaseInsensitiveDict(response.headers)
        headers.setdefault("Date", self._date)
        if response.status != 304:
            headers.setdefault("Content-Length", str(response.length))
        return {
            "request": request,
            "internal_response": internal,
            "block_size": _BLOCK_BYTES,
            "status_code": response.status,
            "reason": _REASONS.get(response.status, ""),
            "content_type": headers.get("Content-Type"),
            "headers": headers,
            "stream_download_generator": _downloading(download, self),
        }


def _close_later(body: Answered, service: _Service) -> None:
    if body.is_open and not service.thread.is_stopping:
        service.thread.submit(body.close())


def _let_fall(submitted: futures.Future[_Answer]) -> None:
    """Forget an answer that nobody waits for: its body closes with it."""
    submitted.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def _downloading(download: type, answer: _Answer) -> Callable[..., Any]:
    def start(_pipeline: object = None, response: Any = None, **options: Any) -> Any:
        return download(answer, response, is_decoded=options.get("decompress", True))

    return start


class InProcessTransport(HttpTransport[HttpRequest, HttpResponseImpl]):
    """The transport of the synchronous clients."""

    def __init__(
        self,
        respond: Respond,
        thread: LoopThread,
        *,
        stream_above_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._service = _Service(respond, thread, stream_above_bytes, clock)

    def send(self, request: HttpRequest, *, stream: bool = False, **_: Any) -> HttpResponseImpl:
        answer = self._exchange(_request_of(request), _content_of(request))
        response = HttpResponseImpl(**answer.facts(request, _Opened(answer), _Download))
        if not stream:
            response.read()
        return response

    def _exchange(self, request: Request, content: Any) -> _Answer:
        service = self._service
        length = _length_of(request)
        if not service.streams(content, length):
            body = _kept(content)
            body = b"".join(parts_of(content)) if body is None else bytes(body)
            return service.submit(msgspec.structs.replace(request, body=body)).result()
        kept = _kept(content)
        if kept is not None:
            return service.submit(_uploading(request, KeptBody(kept))).result()
        return self._feed(request, length, parts_of(content))

    def _feed(self, request: Request, length: int | None, parts: Iterator[bytes]) -> _Answer:
        """Make pieces on this thread, when the service asks for them, until it has answered."""
        service = self._service
        asks: queue.SimpleQueue[asyncio.Future[bytes] | None] = queue.SimpleQueue()
        upload = AskedBody(length, asks.put)
        submitted = service.submit(_uploading(request, upload))
        submitted.add_done_callback(lambda _: asks.put(None))
        try:
            while (asked := asks.get()) is not None:
                service.thread.post(give, asked, next(parts, b""))
        except BaseException:
            service.thread.post(upload.fail)
            _let_fall(submitted)
            raise
        return submitted.result()

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close: the account outlives its clients."""

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


class AsyncInProcessTransport(AsyncHttpTransport[HttpRequest, AsyncHttpResponseImpl]):
    """The transport of the asynchronous clients, on whichever loop they run."""

    def __init__(
        self,
        respond: Respond,
        thread: LoopThread,
        *,
        stream_above_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._service = _Service(respond, thread, stream_above_bytes, clock)

    async def send(
        self, request: HttpRequest, *, stream: bool = False, **_: Any
    ) -> AsyncHttpResponseImpl:
        asked = _request_of(request)
        if "%" in asked.path:
            # The clients sign the path as aiohttp would send it: with fewer letters quoted.
            asked = msgspec.structs.replace(asked, path=str(URL(asked.path)))
        answer = await self._exchange(asked, _content_of(request))
        response = _AsyncResponse(**answer.facts(request, _AsyncOpened(answer), _AsyncDownload))
        if not stream:
            await response.read()
        return response

    async def _exchange(self, request: Request, content: Any) -> _Answer:
        service = self._service
        length = _length_of(request)
        if not service.streams(content, length):
            body = _kept(content)
            if body is None:
                body = b"".join([part async for part in async_parts_of(content)])
            return await _outlast(
                service.submit(msgspec.structs.replace(request, body=bytes(body)))
            )
        kept = _kept(content)
        if kept is not None:
            return await _outlast(service.submit(_uploading(request, KeptBody(kept))))
        return await self._feed(request, length, async_parts_of(content))

    async def _feed(
        self, request: Request, length: int | None, parts: AsyncIterator[bytes]
    ) -> _Answer:
        """Make pieces on this loop, when the service asks for them, until it has answered."""
        service = self._service
        loop = asyncio.get_running_loop()
        asks: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue()

        def ask(asked: asyncio.Future[bytes] | None) -> None:
            loop.call_soon_threadsafe(asks.put_nowait, asked)

        upload = AskedBody(length, ask)
        submitted = service.submit(_uploading(request, upload))
        submitted.add_done_callback(lambda _: None if loop.is_closed() else ask(None))
        try:
            while (asked := await asks.get()) is not None:
                service.thread.post(give, asked, await anext(parts, b""))
        except BaseException:
            service.thread.post(upload.fail)
            _let_fall(submitted)
            raise
        return submitted.result()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close: the account outlives its clients."""

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


async def _outlast(submitted: futures.Future[T]) -> T:
    """Wait for the answer; a wait that is cancelled does not cancel the request."""
    return await asyncio.shield(asyncio.wrap_future(submitted))


def _request_of(request: HttpRequest) -> Request:
    parts = urlsplit(request.url)
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers.setdefault("host", parts.netloc)
    spelled = {
        name.lower(): name for name in request.headers if name.lower().startswith(METADATA_PREFIX)
    }
    return Request(
        request.method,
        parts.path,
        parts.query,
        headers,
        peer="127.0.0.1",
        scheme=parts.scheme,
        spelled=spelled,
    )


def _uploading(request: Request, upload: Upload) -> Request:
    return msgspec.structs.replace(request, upload=upload)


def _content_of(request: Any) -> Any:
    # Batches are still made of azure-core's older requests, which say `body`.
    return request.content if hasattr(request, "content") else request.body


def _length_of(request: Request) -> int | None:
    text = request.headers.get("content-length")
    return None if text is None else int(text)


def _kept(content: Any) -> bytes | bytearray | memoryview | None:
    """Return a content that lies in memory; None if it must be read."""
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    return content if isinstance(content, bytes | bytearray | memoryview) else None


class _Opened:
    """Stands where azure-core expects the response of an HTTP library."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def close(self) -> None:
        body = self._answer.body
        if body.is_open:
            self._answer.service.thread.submit(body.close()).result()


class _AsyncOpened:
    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    async def close(self) -> None:
        body = self._answer.body
        if body.is_open:
            await asyncio.wrap_future(self._answer.service.thread.submit(body.close()))


class _AsyncResponse(AsyncHttpResponseImpl):
    def body(self) -> bytes:
        """Return what was read. azure-core's own, for batches, forgets to await a second read."""
        return self.content


class _Pieces:
    """The body in pieces; the SDKs read `response` and the length from it."""

    def __init__(self, answer: _Answer, response: Any, *, is_decoded: bool) -> None:
        self.response = response
        self.content_length = int(response.headers.get("Content-Length", 0))
        self._body = answer.body
        self._service = answer.service
        encoding = response.headers.get("Content-Encoding")
        self._inflate = inflater_of(encoding) if is_decoded else None

    def __len__(self) -> int:
        return self.content_length

    def _decoded(self, piece: bytes) -> bytes:
        try:
            return piece if self._inflate is None else self._inflate(piece)
        except zlib.error as error:
            raise DecodeError(str(error), error=error) from error


class _Download(_Pieces):
    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while piece := self._next_piece():
            if decoded := self._decoded(piece):
                return decoded
        raise StopIteration

    def _next_piece(self) -> bytes:
        if not self._body.is_open:
            return self._body.next_kept()
        try:
            return self._service.thread.submit(self._body.next_piece()).result()
        except Exception as error:
            raise _broken_off(error) from error


class _AsyncDownload(_Pieces):
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while piece := await self._next_piece():
            if decoded := self._decoded(piece):
                return decoded
        raise StopAsyncIteration

    async def _next_piece(self) -> bytes:
        if not self._body.is_open:
            return self._body.next_kept()
        try:
            return await asyncio.wrap_future(self._service.thread.submit(self._body.next_piece()))
        except Exception as error:
            raise _broken_off(error) from error


def _broken_off(error: Exception) -> Exception:
    """Return what the SDK sees when a connection breaks off: it asks again for the rest."""
    return IncompleteReadError(str(error), error=error)
