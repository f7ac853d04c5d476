"""The transport of azure-core's synchronous clients to services in this process.

Generated from azure_transport.py by tools/make_sync.py. Do not edit: change the source instead.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from azure.core.pipeline.transport import HttpTransport
from azure.core.rest import HttpRequest
from azure.core.rest._http_response_impl import HttpResponseImpl

from partita.loop_thread import LoopThread
from partita.service.hosting.in_process_bodies import AskedBody, KeptBody, give, parts_of
from partita.service.hosting.in_process_exchange import (
    Answer,
    Asks,
    InProcessService,
    Pieces,
    Respond,
    broken_off,
    content_of,
    discard,
    in_memory,
    length_of,
    request_of,
    uploading,
)
from partita.service.http.request import Request
from partita.ticks import Clock


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
        self._service = InProcessService(respond, thread, stream_above_bytes, clock)

    def send(self, request: HttpRequest, *, stream: bool = False, **_: Any) -> HttpResponseImpl:
        answer = self._exchange(request_of(request), content_of(request))
        response = HttpResponseImpl(**answer.arguments(request, _Opened(answer), _Download))
        if not stream:
            response.read()
        return response

    def _exchange(self, request: Request, content: Any) -> Answer:
        length = length_of(request)
        body = in_memory(content)
        if not self._service.streams(content, length):
            if body is None:
                body = b"".join(list(parts_of(content)))
            whole = msgspec.structs.replace(request, body=bytes(body))
        elif body is not None:
            whole = uploading(request, KeptBody(body))
        else:
            return self._feed(request, length, parts_of(content))
        return self._service.submit(whole).result()

    def _feed(self, request: Request, length: int | None, parts: Iterator[bytes]) -> Answer:
        """Read pieces of the content when the service asks for them, until it has answered."""
        asks = Asks()
        upload = AskedBody(length, asks.put)
        submitted = self._service.submit(uploading(request, upload))
        submitted.add_done_callback(asks.end)
        try:
            while (asked := asks.get()) is not None:
                self._service.thread.post(give, asked, next(parts, b""))
        except BaseException:
            self._service.thread.post(upload.fail)
            discard(submitted)
            raise
        return submitted.result()

    def open(self) -> None:
        """Do nothing: the account is open."""

    def close(self) -> None:
        """Do nothing: the account outlives its clients."""

    def __exit__(self, *_: object) -> None:
        """Do nothing, as `close`."""


class _Opened:
    """Takes the place of the response of an HTTP library in azure-core."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def close(self) -> None:
        body = self._answer.body
        if body.is_open:
            self._answer.service.thread.submit(body.close()).result()


class _Download(Pieces):
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
            return self._thread.submit(self._body.next_piece()).result()
        except Exception as error:
            raise broken_off(error) from error
