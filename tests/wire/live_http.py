"""A server of our own `respond` on a loop in a thread, and raw sockets that talk to it."""

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.service.formats.error_wire import status_of
from partita.service.hosting.server import Server
from partita.service.http.connections import Connection, Connections
from partita.service.http.message_bytes import (
    TABLE_DIALECT,
    HttpLimits,
    Refusal,
)
from partita.service.http.protocol import HttpProtocol
from partita.service.http.request import Request, Response
from partita.service.http.streams import with_whole_body
from partita.service.observing.log_lines import AccessEntry, access_entry

PATIENCE_SECONDS = 60
"""Far beyond what anything here takes, also on a busy machine."""
QUICK_SWEEP = HttpLimits(sweep_seconds=0.02)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def echo(self) -> Any:
        return json.loads(self.body)

    @property
    def error_code(self) -> str:
        code: str = json.loads(self.body)["odata.error"]["code"]
        return code


class Client:
    """A raw socket that can read answers one by one."""

    def __init__(self, address: tuple[str, int], *, context: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_SECONDS)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._stream = self.socket.makefile("rb")
        self.sent_bytes = 0

    def send(self, *parts: bytes) -> "Client":
        for part in parts:
            self.socket.sendall(part)
            self.sent_bytes += len(part)
        return self

    def send_until_blocked(self, part: bytes, *, times: int) -> int:
        """Send the part again and again until the server reads no more; return the bytes sent."""
        sent = 0
        try:
            while sent < times * len(part):
                sent += self.socket.send(part[sent % len(part) :])
        except TimeoutError:
            return sent
        raise AssertionError("the server read everything")

    def send_until_cut_off(self, part: bytes, *, times: int) -> None:
        for _ in range(times):
            self.send(part)

    def read(self, *, is_head: bool = False) -> Answer:
        status, headers, length = self.read_head()
        return Answer(status, headers, b"" if is_head else self._stream.read(length))

    def read_head(self) -> tuple[int, dict[str, str], int]:
        """Return the status, the headers and the length of the body, which is left unread."""
        status_line = self._stream.readline().decode()
        assert status_line.startswith("HTTP/1.1 "), f"no answer but {status_line!r}"
        headers: dict[str, str] = {}
        while (line := self._stream.readline().decode("latin-1")) != "\r\n":
            name, _, value = line.rstrip("\r\n").partition(": ")
            assert name.lower() not in headers, f"{name} was sent twice"
            headers[name.lower()] = value
        return int(status_line.split()[1]), headers, int(headers.get("content-length", "0"))

    def read_some(self, count: int) -> bytes:
        """Read so many bytes, or all until the server closes."""
        return self._stream.read(count)

    def read_until_closed(self) -> bytes:
        """Return what came before the server closed, or broke off."""
        received = bytearray()
        try:
            while part := self.socket.recv(65_536):
                received += part
        except ConnectionResetError:
            pass
        return bytes(received)

    def read_rest(self) -> bytes:
        return self._stream.read()

    def is_closed_by_server(self) -> bool:
        try:
            return self._stream.read(1) == b""
        except ConnectionResetError:
            return True

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._stream.close()
        self.socket.close()


class Behaviour:
    """What `respond` does here, by path; and what it saw."""

    streams = False
    """Whether bodies that have not arrived are read by the verbs."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.notes: list[str] = []
        self.release = asyncio.Event()
        self.response = Response(200, [], b"")

    async def respond(self, request: Request) -> Response:
        if request.upload is not None and not self.streams:
            try:
                request = await with_whole_body(request)
            except PartitaError as error:
                refusal = Refusal(status_of(error), error.code, error.message)
                return TABLE_DIALECT.refuse(refusal, "42", 0)
        self.requests.append(request)
        verb: Callable[[Request], Any] = getattr(self, request.path.strip("/").partition("/")[0])
        response: Response = await verb(request)
        return response

    async def echo(self, request: Request) -> Response:
        seen = {
            "method": request.method,
            "path": request.path,
            "query": request.query,
            "headers": request.headers,
            "body": request.body.decode("latin-1"),
            "peer": request.peer,
            "scheme": request.scheme,
            "repeated": sorted(request.repeated),
        }
        return Response(200, [("Content-Type", "application/json")], json.dumps(seen).encode())

    async def known(self, request: Request) -> Response:
        if request.stranger is not None:
            request.stranger.authenticated()
        return Response(200, [], b"")

    async def given(self, _: Request) -> Response:
        return self.response

    async def wait(self, request: Request) -> Response:
        self.notes.append("began")
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.notes.append("cancelled")
            raise
        self.notes.append("finished")
        return Response(200, [], request.query.encode())

    async def large(self, _: Request) -> Response:
        return Response(200, [], b"x" * 1024 * 1024)

    async def boom(self, _: Request) -> Response:
        raise ValueError("a secret detail")

    async def late_boom(self, _: Request) -> Response:
        await asyncio.sleep(0)
        raise ValueError("a secret detail")

    async def recover(self, _: Request) -> Response:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.get_loop().call_soon(future.set_exception, KeyError("first"))
        try:
            await future
        except KeyError:
            return Response(200, [], await asyncio.sleep(0, b"recovered"))
        return Response(200, [], b"the error was lost")

    async def tasks(self, _: Request) -> Response:
        before = asyncio.current_task()
        await asyncio.sleep(0)
        after = asyncio.current_task()
        return Response(200, [], f"{before is None} {after is not None}".encode())

    async def no_task(self, _: Request) -> Response:
        return Response(200, [], str(asyncio.current_task() is None).encode())


class CountingProtocol(HttpProtocol):
    """A connection that counts what it has taken in."""

    __slots__ = ("taken_bytes",)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.taken_bytes = getattr(self, "taken_bytes", 0) + len(data)

    @property
    def is_left(self) -> bool:
        return self._transport is None or self._has_eof

    def is_of(self, client: Client) -> bool:
        """Say whether it is this client's, and still open."""
        transport = self._transport
        return transport is not None and (
            transport.get_extra_info("peername") == client.socket.getsockname()
        )


class CountingServer(Server):
    """A server of which a test can ask how far it is."""

    def _new_connection(self, accepted: Connection | None = None) -> CountingProtocol:
        return CountingProtocol(
            self._respond,
            self._limits,
            self.connections,
            scheme=self.scheme,
            fixed=self._fixed,
            accepted=accepted,
        )

    @property
    def connections(self) -> Connections:
        assert self._connections is not None
        return self._connections

    @property
    def open_connections(self) -> list[CountingProtocol]:
        return [each for each in self.connections if isinstance(each, CountingProtocol)]


class LiveServer:
    """A server on a loop of its own, in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, behaviour: Behaviour | None = None) -> None:
        self.loop = loop
        self.clock = ManualClock()
        self.behaviour = behaviour or Behaviour()
        self.logged: list[AccessEntry] = []
        self.why_not_ready = ""
        self.server: CountingServer | None = None
        self._thread = threading.Thread(target=loop.run_forever)
        self._thread.start()
        self._clients: list[Client] = []

    def answered(
        self, request: Request, response: Response, seconds: float, is_lost: bool, /
    ) -> None:
        self.logged.append(access_entry("tables", request, response, seconds, 0))

    def refused(self, response: Response) -> None:
        pass

    def fold(self) -> None:
        pass

    def call(self, coroutine: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(PATIENCE_SECONDS)

    def start(self, **options: Any) -> int:
        options.setdefault("limits", QUICK_SWEEP)
        options.setdefault("why_not_ready", lambda: self.why_not_ready)
        self.server = CountingServer(self.behaviour.respond, clock=self.clock, **options)
        port: int = self.call(self.server.start())
        return port

    def client(self, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> Client:
        if self.server is None:
            self.start()
        assert self.server is not None
        client = Client((host, self.server.port), context=context)
        self._clients.append(client)
        return client

    def stop(self, grace_seconds: float) -> Any:
        assert self.server is not None
        return self.call(self.server.stop(grace_seconds))

    def release(self) -> None:
        self.loop.call_soon_threadsafe(self.behaviour.release.set)

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, "it never became so"
            time.sleep(0.005)

    # Where a test waits for the server and not for the time

    def until_taken_in(self, client: Client) -> None:
        """Wait until the server has read all that this client has sent."""
        self.until(lambda: self._taken_bytes(client) == client.sent_bytes)

    def until_left(self) -> None:
        """Wait until the server has noticed that every client went away, or sends no more."""
        self.until(lambda: all(each.is_left for each in self._protocols()))

    def until_cut_off(self, after_seconds: float) -> None:
        """Let so much time pass, again and again, until the server has no connection.

        What the kernel still takes in meanwhile is progress, and begins the time anew.
        """

        def is_cut_off() -> bool:
            self.advance(after_seconds)
            return self._protocols() == []

        self.until(is_cut_off)

    def until_stopping(self) -> None:
        self.until(lambda: self.server is not None and self.server.connections.is_stopping)

    def advance(self, seconds: float) -> None:
        """Let time pass, and the server look at it."""
        self.clock.advance(seconds)
        self.until(lambda: self.call(self._now()) == self.clock.monotonic())

    async def _now(self) -> float:
        """Return the time of the last sweep, which is over when this runs on the loop."""
        assert self.server is not None
        return self.server.connections.now

    def _protocols(self) -> list[CountingProtocol]:
        assert self.server is not None
        return self.server.open_connections

    def _taken_bytes(self, client: Client) -> int:
        found = [each for each in self._protocols() if each.is_of(client)]
        return sum(getattr(each, "taken_bytes", 0) for each in found)

    def tear_down(self) -> None:
        self.release()
        for client in self._clients:
            client.close()
        if self.server is not None:
            self.stop(PATIENCE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
