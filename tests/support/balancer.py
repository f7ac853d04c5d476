"""A load balancer for HTTP/1.1: it gives each request of a connection to the next front end.

Bytes are forwarded as they are. They are parsed only to see when a request was answered, because
then the next one may go elsewhere; a connection that cannot be parsed (TLS, malformed HTTP) stays
with one front end.
"""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httptools

CHUNK_BYTES = 64 * 1024
LINGER_SECONDS = 5


class Balancer:
    """Listens on a free port of 127.0.0.1 and forwards to `ports` in turn, until `close`."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = itertools.cycle(ports)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await _Connection(reader, writer, self._ports).serve()
        except OSError:
            pass  # a peer has closed it
        finally:
            writer.close()
            self._tasks.discard(task)


class _Connection:
    """One connection of a client, and its present connection to a front end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ports: Iterator[int]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._ports = ports
        self._exchange = _Exchange()
        self._far: asyncio.StreamWriter | None = None
        self._answering: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        reading = asyncio.ensure_future(self._reader.read(CHUNK_BYTES))
        try:
            while True:
                waiting = {reading} if self._answering is None else {reading, self._answering}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._answering is not None and self._answering.done():
                    self._answering.result()
                    await self._linger(reading)
                    return
                chunk = reading.result()
                if self._far is None or (chunk and self._exchange.is_over):
                    await self._choose()
                await self._send(chunk)
                if not chunk:
                    assert self._answering is not None
                    await self._answering
                    return
                reading = asyncio.ensure_future(self._reader.read(CHUNK_BYTES))
        finally:
            reading.cancel()
            await self._leave()

    async def _linger(self, reading: asyncio.Future[bytes]) -> None:
        """End the connection as the front end did; discard what is still sent.

        Unread bytes would reset the connection, and the client might lose the answer.
        """
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(LINGER_SECONDS):
                while await reading:
                    reading = asyncio.ensure_future(self._reader.read(CHUNK_BYTES))

    async def _choose(self) -> None:
        await self._leave()
        far_reader, self._far = await asyncio.open_connection("127.0.0.1", next(self._ports))
        self._exchange = _Exchange()
        self._answering = asyncio.ensure_future(self._answer(far_reader, self._exchange))

    async def _send(self, chunk: bytes) -> None:
        assert self._far is not None
        if chunk:
            self._exchange.requests.feed(chunk)
            self._far.write(chunk)
            await self._far.drain()
        else:
            with contextlib.suppress(OSError):
                self._far.write_eof()

    async def _answer(self, far: asyncio.StreamReader, exchange: "_Exchange") -> None:
        while chunk := await far.read(CHUNK_BYTES):
            exchange.answers.feed(chunk)
            self._writer.write(chunk)
            await self._writer.drain()

    async def _leave(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
            self._answering = None
        if self._far is not None:
            self._far.close()
            self._far = None


class _Exchange:
    """What a front end was asked and has answered since the client was given to it."""

    def __init__(self) -> None:
        self.requests = _Messages(self, httptools.HttpRequestParser)
        self.answers = _Messages(self, httptools.HttpResponseParser)
        self.has_head = False

    @property
    def is_over(self) -> bool:
        """Whether each request was answered, and none has begun."""
        return (
            not self.requests.is_broken
            and not self.answers.is_broken
            and self.requests.begun == self.requests.done == self.answers.done > 0
        )


class _Messages:
    """Counts the messages of one direction."""

    def __init__(self, exchange: _Exchange, parser: Any) -> None:
        self._exchange = exchange
        self._parser = parser(self)
        self.begun = 0
        self.done = 0
        self.is_broken = False

    def feed(self, chunk: bytes) -> None:
        if self.is_broken:
            return
        try:
            self._parser.feed_data(chunk)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_broken = True

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_headers_complete(self) -> None:
        if isinstance(self._parser, httptools.HttpRequestParser):
            self._exchange.has_head |= self._parser.get_method() == b"HEAD"
        elif self._exchange.has_head and self._is_final:
            self.done += 1  # the length in an answer to HEAD is not that of a body

    def on_message_complete(self) -> None:
        is_request = isinstance(self._parser, httptools.HttpRequestParser)
        if is_request or (not self._exchange.has_head and self._is_final):
            self.done += 1

    @property
    def _is_final(self) -> bool:
        status: int = self._parser.get_status_code()
        return status >= 200
