"""The server: sockets, TLS, start and graceful stop.

`/healthz`, `/readyz` and `/metrics` are not part of an account and need no signature. The one
rule: stopping first refuses new requests, then answers received ones, then closes.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.loop_thread import new_event_loop
from partita.service.http.connections import ByteBudget, Connection, Connections
from partita.service.http.handshakes import TlsListener
from partita.service.http.message_bytes import TABLE_DIALECT, Dialect, HttpLimits
from partita.service.http.protocol import Fixed, HttpProtocol, RespondAtOnce, Turn
from partita.service.http.request import Observer, Response
from partita.service.http.watchdog import LoopWatchdog
from partita.ticks import Clock

METRICS_PATH = "/metrics"
_FREE_PORT_ATTEMPTS_MAX = 20

logger = logging.getLogger(__name__)


class TlsFiles(msgspec.Struct, frozen=True):
    """The paths of the certificate chain and of its private key, both in PEM."""

    certificate: Path
    key: Path


class Server:
    """Serves one `respond` on one port of one or more addresses."""

    def __init__(  # noqa: PLR0913 - what a server is built from, by name
        self,
        respond: RespondAtOnce,
        *,
        hosts: Sequence[str] = ("127.0.0.1",),
        port: int = 0,
        limits: HttpLimits | None = None,
        tls: TlsFiles | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        why_not_ready: Callable[[], str] = lambda: "",
        dialect: Dialect = TABLE_DIALECT,
        budget: ByteBudget | None = None,
        has_fixed: bool = True,
    ) -> None:
        self._respond = respond
        self._hosts = tuple(hosts)
        self._port = port
        self._limits = limits or HttpLimits()
        self._tls = tls
        self._clock = clock or SystemClock()
        self._observer = observer
        self._dialect = dialect
        self._budget = budget
        self._context: ssl.SSLContext | None = None
        self._why_not_ready = why_not_ready
        self._connections: Connections | None = None
        self._turn = Turn(self._limits.write_buffer_bytes_max, self._clock)
        self._fixed: Fixed = {}
        """Empty without `has_fixed`: then `respond` answers these paths, too."""
        if has_fixed:
            self._fixed = {
                "/healthz": _alive,
                "/readyz": self._readiness,
                METRICS_PATH: lambda: plain(200, self._turn.watchdog.metrics()),
            }
        self._listeners: list[asyncio.Server | TlsListener] = []

    @property
    def port(self) -> int:
        """The listening port: never 0 after `start`."""
        return self._port

    @property
    def is_started(self) -> bool:
        return self._connections is not None

    @property
    def scheme(self) -> str:
        return "http" if self._tls is None else "https"

    @property
    def connection_count(self) -> int:
        return 0 if self._connections is None else len(self._connections)

    @property
    def watchdog(self) -> LoopWatchdog:
        return self._turn.watchdog

    @property
    def lag_seconds(self) -> float:
        """How late the event loop ran the last sweep."""
        return 0.0 if self._connections is None else self._connections.lag_seconds

    async def start(self) -> int:
        """Listen on every host and return the port.

        Raises ConfigurationError if an address or the TLS files cannot be used.
        """
        assert self._connections is None, "a server starts once"
        self._context = None if self._tls is None else tls_context(self._tls)
        sockets = _bind_all(self._hosts, self._port)
        self._port = int(sockets[0].getsockname()[1])
        self._connections = Connections(
            self._limits, self._clock, self._observer, dialect=self._dialect, budget=self._budget
        )
        self._connections.start_sweeping()
        for bound in sockets:
            self._listeners.append(await self._listen(bound, self._connections))
        return self._port

    async def _listen(
        self, bound: socket.socket, connections: Connections
    ) -> asyncio.Server | TlsListener:
        if self._tls is not None:
            return TlsListener(bound, connections, self._get_context, self._new_connection)
        return await asyncio.get_running_loop().create_server(
            self._new_connection, sock=bound, backlog=self._limits.backlog_connections_max
        )

    def set_context(self, context: ssl.SSLContext) -> None:
        """Use another certificate for new connections of a server with TLS."""
        assert self._tls is not None
        self._context = context

    def _get_context(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    def _new_connection(self, accepted: Connection | None = None) -> HttpProtocol:
        assert self._connections is not None
        return HttpProtocol(
            self._respond,
            self._limits,
            self._connections,
            turn=self._turn,
            scheme=self.scheme,
            fixed=self._fixed,
            accepted=accepted,
        )

    async def stop(self, grace_seconds: float = 10) -> bool:
        """Stop accepting, answer received requests, close; return whether all were answered."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._connections is None:
            return True
        was_all_answered = await self._connections.drain(grace_seconds)
        self._connections.stop_sweeping()
        return was_all_answered

    def hurry(self) -> None:
        """End the grace period of a running `stop`."""
        if self._connections is not None:
            self._connections.hurry()

    def _readiness(self) -> Response:
        if self._connections is not None and self._connections.is_stopping:
            return _not_ready("The server is stopping.")
        try:
            reason = self._why_not_ready()
        except Exception:
            logger.exception("Readiness could not be determined.")
            reason = "Readiness could not be determined."
        return _not_ready(reason) if reason else plain(200, b"ready\n")


class Servers:
    """Several servers that start and stop together."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = tuple(servers)

    @property
    def is_started(self) -> bool:
        return all(server.is_started for server in self._servers)

    async def start(self) -> None:
        """Listen with all of them, or with none."""
        for server in self._servers:
            try:
                await server.start()
            except BaseException:
                await self.stop(0)
                raise

    async def stop(self, grace_seconds: float = 10) -> bool:
        """Stop all at the same time; return whether all received requests were answered."""
        stopped = await asyncio.gather(*(server.stop(grace_seconds) for server in self._servers))
        return all(stopped)

    def hurry(self) -> None:
        for server in self._servers:
            server.hurry()


def _alive() -> Response:
    return plain(200, b"ok\n")


def _not_ready(reason: str) -> Response:
    return plain(503, f"not ready: {reason}\n".encode())


def plain(status: int, body: bytes) -> Response:
    headers = [("Content-Type", "text/plain;charset=utf-8"), ("Cache-Control", "no-store")]
    return Response(status, headers, body)


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Load a certificate; raises ConfigurationError if it cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            "TlsFilesUnusable",
            "The TLS certificate or its key cannot be used.",
            facts={"certificate": str(files.certificate), "reason": str(error)},
            hint="Check that both files are readable, in PEM, and belong together.",
        ) from error
    return context


def _bind_all(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Bind every host to one port; port 0 chooses one that is free on all of them."""
    attempts = 1 if port else _FREE_PORT_ATTEMPTS_MAX
    for attempt in range(attempts):
        with contextlib.ExitStack() as opened:
            try:
                sockets = _bind_each(opened, hosts, port)
            except OSError as error:
                # The port was free on the first host and in use on another: try the next.
                if error.errno == errno.EADDRINUSE and attempt + 1 < attempts:
                    continue
                raise _unusable_address(hosts, port, error) from error
            opened.pop_all()
            return sockets
    raise AssertionError("the last attempt returns or raises")


def _bind_each(
    opened: contextlib.ExitStack, hosts: Sequence[str], port: int
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    for host in hosts:
        for family, kind, protocol, _, address in _addresses(host, port):
            bound = opened.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((address[0], port, *address[2:]))
            port = port or bound.getsockname()[1]
            sockets.append(bound)
    return sockets


def _addresses(host: str, port: int) -> list[tuple[Any, Any, int, str, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))


def _unusable_address(hosts: Sequence[str], port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        "AddressUnusable",
        "The server cannot listen on this address.",
        facts={"hosts": ", ".join(hosts), "port": port, "reason": error.strerror or str(error)},
        hint="Stop the process that uses the port, or choose another one (0 for any free port) with"
        " --blob-port, --queue-port, --table-port, --console-port or --metrics-port.",
    )


async def serve_until_stopped(
    server: Server | Servers, stopping: asyncio.Event | None = None, *, grace_seconds: float = 10
) -> int:
    """Serve until SIGTERM, SIGINT or `stopping`, stop gracefully, return the exit status.

    A second signal ends the grace period. The status is 1 if a request was not answered. A server
    that is not started yet is started.
    """
    stopping = stopping or asyncio.Event()
    with _signals_caught(server, stopping):
        if not server.is_started:
            await server.start()
        await stopping.wait()
        return 0 if await server.stop(grace_seconds) else 1


@contextlib.contextmanager
def _signals_caught(server: Server | Servers, stopping: asyncio.Event) -> Iterator[None]:
    def stop_or_hurry() -> None:
        if stopping.is_set():
            server.hurry()
        stopping.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_hurry)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a program on the fastest event loop and return its exit status."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())
