"""Requests and answers of the official clients in this process, for both of their transports.

Needs the `azure` extra. A request that was submitted is never cancelled: a client that gives up
loses only the answer.
"""

import asyncio
import queue
import weakref
import zlib
from collections.abc import Callable, Coroutine
from concurrent import futures
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec
from azure.core.exceptions import DecodeError, IncompleteReadError
from azure.core.rest import HttpRequest
from azure.core.rest._http_response_impl_async import AsyncHttpResponseImpl
from requests.structures import CaseInsensitiveDict
from yarl import URL

from partita.clock import SystemClock
from partita.loop_thread import LoopThread
from partita.service.hosting.in_process_bodies import Answered, inflater_of
from partita.service.http.message_bytes import METADATA_PREFIX, http_date
from partita.service.http.request import Request, Response, Upload
from partita.ticks import Clock

Respond = Callable[[Request], Coroutine[Any, Any, Response]]
AskedPiece = asyncio.Future[bytes]
"""A piece of an upload that the service asks for; empty bytes mark the end."""

_BLOCK_BYTES = 64 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class InProcessService:
    """A service and the thread that it runs in."""

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

    def submit(self, request: Request) -> futures.Future["Answer"]:
        """Start a request."""
        return self.thread.submit(self._answer(request))

    async def _answer(self, request: Request) -> "Answer":
        response = await self._respond(request)
        is_silent = request.method == "HEAD" or response.status == 304
        body = Answered(response, is_silent=is_silent)
        if is_silent:
            await body.close()
        return Answer(response, body, http_date(self._clock.ticks()), self)

    def streams(self, content: Any, length: int | None) -> bool:
        """Return whether a content is sent in pieces."""
        above = self._stream_above_bytes
        if above is None or content is None or isinstance(content, str):
            return False
        if isinstance(content, bytes | bytearray | memoryview):
            return len(content) > above
        return length is None or length > above


class Answer:
    """An answer whose body may still be open; the body is closed with the last reference."""

    def __init__(
        self, response: Response, body: Answered, date: str, service: InProcessService
    ) -> None:
        self._response = response
        self._date = date
        self.service = service
        self.body = body
        if body.is_open:
            weakref.finalize(self, _close_later, body, service).atexit = False

    def arguments(self, request: HttpRequest, internal: object, download: type) -> dict[str, Any]:
        """Return the arguments of azure-core's response classes."""
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
            "stream_download_generator": self._downloading(download),
        }

    def _downloading(self, download: type) -> Callable[..., Any]:
        def start(_pipeline: object = None, response: Any = None, **options: Any) -> Any:
            return download(self, response, is_decoded=options.get("decompress", True))

        return start


def _close_later(body: Answered, service: InProcessService) -> None:
    if body.is_open and not service.thread.is_stopping:
        service.thread.submit(body.close())


def discard(submitted: futures.Future[Answer]) -> None:
    """Ignore the answer of a request: its body is closed with it."""
    submitted.add_done_callback(lambda done: None if done.cancelled() else done.exception())


class Asks(queue.SimpleQueue[AskedPiece | None]):
    """The pieces that a service asks a thread for; None is the end of the request."""

    def end(self, _submitted: object) -> None:
        """End the request, as a callback of its future."""
        self.put(None)


class AsyncAsks:
    """The pieces that a service asks a task for; None is the end of the request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asks: asyncio.Queue[AskedPiece | None] = asyncio.Queue()
        self.get = self._asks.get

    def put(self, asked: AskedPiece | None) -> None:
        """Pass a question to the loop of the client; raises RuntimeError if that was closed."""
        self._loop.call_soon_threadsafe(self._asks.put_nowait, asked)

    def end(self, _submitted: object) -> None:
        """End the request, as a callback of its future."""
        if not self._loop.is_closed():
            self.put(None)


# --- requests -----------------------------------------------------------------------------


def request_of(request: HttpRequest) -> Request:
    """Return a request of azure-core as the services take it, without its body."""
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


def aiohttp_request_of(request: HttpRequest) -> Request:
    """Return a request as `request_of` does, with its path as aiohttp would send it.

    The asynchronous clients sign that form of the path, which quotes fewer characters.
    """
    made = request_of(request)
    if "%" not in made.path:
        return made
    return msgspec.structs.replace(made, path=str(URL(made.path)))


def uploading(request: Request, upload: Upload) -> Request:
    return msgspec.structs.replace(request, upload=upload)


def content_of(request: Any) -> Any:
    # Batches still use the older request class of azure-core, with the attribute `body`.
    return request.content if hasattr(request, "content") else request.body


def length_of(request: Request) -> int | None:
    text = request.headers.get("content-length")
    return None if text is None else int(text)


def in_memory(content: Any) -> bytes | bytearray | memoryview | None:
    """Return a content that is in memory; None if it must be read."""
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    return content if isinstance(content, bytes | bytearray | memoryview) else None


# --- responses ----------------------------------------------------------------------------


class AsyncResponse(AsyncHttpResponseImpl):
    """The asynchronous response of azure-core, without a defect of its `body`."""

    def body(self) -> bytes:
        """Return the content that was read; azure-core's own does not await a second read."""
        return self.content


class Pieces:
    """A body in pieces; the SDK reads `response` and the length from it."""

    def __init__(self, answer: Answer, response: Any, *, is_decoded: bool) -> None:
        self.response = response
        self.content_length = int(response.headers.get("Content-Length", 0))
        self._body = answer.body
        self._thread = answer.service.thread
        encoding = response.headers.get("Content-Encoding")
        self._inflate = inflater_of(encoding) if is_decoded else None

    def __len__(self) -> int:
        return self.content_length

    def _decoded(self, piece: bytes) -> bytes:
        try:
            return piece if self._inflate is None else self._inflate(piece)
        except zlib.error as error:
            raise DecodeError(str(error), error=error) from error


def broken_off(error: Exception) -> Exception:
    """Return the error of a connection that broke off: the SDK then requests the rest."""
    return IncompleteReadError(str(error), error=error)
