"""The transport of azure-core that passes requests to services in this process.

The services run on an event loop in another thread; the clients may run on any loop. The transport
of the synchronous clients, `azure_transport_sync`, is generated from this module by
tools/make_sync.py.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.core.rest import HttpRequest

from partita.loop_thread import LoopThread
from partita.service.hosting.in_process_bodies import AskedBody, KeptBody, async_parts_of, give
from partita.service.hosting.in_process_exchange import (
    Answer,
    AsyncAsks,
    AsyncResponse,
    InProcessService,
    Pieces,
    Respond,
    aiohttp_request_of,
    broken_off,
    content_of,
    discard,
    in_memory,
    length_of,
    uploading,
)
from partita.service.http.request import Request
from partita.ticks import Clock


class AsyncInProcessTransport(AsyncHttpTransport[HttpRequest, AsyncResponse]):
    """The transport of the asynchronous clients."""

    def __init__(
        self,
        respond: Respond,
        thread: LoopThread,
        *,
        stream_above_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._service = InProcessService(respond, thread, stream_above_bytes, clock)

    async def send(self, request: HttpRequest, *, stream: bool = False, **_: Any) -> AsyncResponse:
        answer = await self._exchange(aiohttp_request_of(request), content_of(request))
        response = AsyncResponse(**answer.arguments(request, _Opened(answer), _Download))
        if not stream:
            await response.read()
        return response

    async def _exchange(self, request: Request, content: Any) -> Answer:
        length = length_of(request)
        body = in_memory(content)
        if not self._service.streams(content, length):
            if body is None:
                body = b"".join([part async for part in async_parts_of(content)])
            whole = msgspec.structs.replace(request, body=bytes(body))
        elif body is not None:
            whole = uploading(request, KeptBody(body))
        else:
            return await self._feed(request, length, async_parts_of(content))
        return await asyncio.shield(asyncio.wrap_future(self._service.submit(whole)))

    async def _feed(
        self, request: Request, length: int | None, parts: AsyncIterator[bytes]
    ) -> Answer:
        """Read pieces of the content when the service asks for them, until it has answered."""
        asks = AsyncAsks()
        upload = AskedBody(length, asks.put)
        submitted = self._service.submit(uploading(request, upload))
        submitted.add_done_callback(asks.end)
        try:
            while (asked := await asks.get()) is not None:
                self._service.thread.post(give, asked, await anext(parts, b""))
        except BaseException:
            self._service.thread.post(upload.fail)
            discard(submitted)
            raise
        return submitted.result()

    async def open(self) -> None:
        """Do nothing: the account is open."""

    async def close(self) -> None:
        """Do nothing: the account outlives its clients."""

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, as `close`."""


class _Opened:
    """Takes the place of the response of an HTTP library in azure-core."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def close(self) -> None:
        body = self._answer.body
        if body.is_open:
            await asyncio.wrap_future(self._answer.service.thread.submit(body.close()))


class _Download(Pieces):
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
            return await asyncio.wrap_future(self._thread.submit(self._body.next_piece()))
        except Exception as error:
            raise broken_off(error) from error
