"""Serves a console: on the running event loop, or in a thread with a loop of its own.

Beside `partita serve` the console runs in a thread: what it decodes and encodes never delays the
requests of the services.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from partita.clock import SystemClock
from partita.console.accounts import ConsoleAccount
from partita.console.server import DIALECT, LIMITS, Console
from partita.console.services import Services, Sources
from partita.console.sources.operations import Operations
from partita.errors import UnavailableError
from partita.loop_thread import LoopThread
from partita.service.hosting.locations import Remote
from partita.service.hosting.server import Server, TlsFiles
from partita.service.http.request import Response

CONSOLE_PORT = 10003


class ConsoleSettings(msgspec.Struct, frozen=True):
    """How a console is served."""

    token: str
    host: str = "127.0.0.1"
    port: int = CONSOLE_PORT
    tls: TlsFiles | None = None
    allowed_hosts: tuple[str, ...] = ()
    is_read_only: bool = False

    def __repr__(self) -> str:
        return f"ConsoleSettings({self.host!r}, {self.port!r})"  # without the token


@contextlib.asynccontextmanager
async def open_console(
    remotes: Sequence[Remote], settings: ConsoleSettings, sources: Sources | None = None
) -> AsyncIterator[Server]:
    """Build a console on the running loop; the server is started by the caller."""
    clock = SystemClock()
    accounts = [ConsoleAccount(remote, clock) for remote in remotes]
    services = Services(accounts, clock, is_read_only=settings.is_read_only, sources=sources)
    console = Console(services, settings.token, allowed_hosts=settings.allowed_hosts)
    server = Server(
        console.respond,
        hosts=[settings.host],
        port=settings.port,
        limits=LIMITS,
        tls=settings.tls,
        clock=clock,
        dialect=DIALECT,
        has_fixed=False,
    )
    try:
        yield server
    finally:
        await server.stop(0)
        await services.close()


@contextlib.asynccontextmanager
async def console_beside(
    remotes: Sequence[Remote], settings: ConsoleSettings, operations: Operations | None = None
) -> AsyncIterator[str]:
    """Serve a console in a thread while the services run on this loop; yield its address."""
    home = asyncio.get_running_loop()
    sources = Sources(None if operations is None else _asked_at(home, operations))
    thread = LoopThread("partita-console", _closed)
    opened = contextlib.AsyncExitStack()

    async def start() -> Server:
        server = await opened.enter_async_context(open_console(remotes, settings, sources))
        await server.start()
        return server

    try:
        server = await asyncio.wrap_future(thread.submit(start()))
        yield address_of(server, settings)
    finally:
        await asyncio.to_thread(thread.stop, opened.aclose())


def _asked_at(home: asyncio.AbstractEventLoop, operations: Operations) -> Operations:
    """Return a function that asks the operations endpoint of another event loop."""

    async def ask(path: str, query: str) -> Response:
        future = asyncio.run_coroutine_threadsafe(_asked(operations, path, query), home)
        return await asyncio.wrap_future(future)

    return ask


async def _asked(operations: Operations, path: str, query: str) -> Response:
    return await operations(path, query)


def _closed() -> Exception:
    return UnavailableError("ConsoleClosed", "The console is closed.")


def address_of(server: Server, settings: ConsoleSettings) -> str:
    """Return the address to open, with the token in the fragment, which browsers do not send."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{server.scheme}://{host}:{server.port}/#token={settings.token}"
