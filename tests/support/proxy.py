"""A TCP proxy with faults: delays, blackholes of one direction, and dropped connections.

A blackhole keeps the bytes of its direction and the connections: the peers see a network that
loses packets, and after `heal` TCP delivers what was held, as its retransmissions would. `drop`
resets the connections and every new one. A proxy runs on the loop thread of `Proxies`, so that
tests of blocking code can use it too.
"""

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

CHUNK_BYTES = 64 * 1024
HELD_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that one direction of one connection holds before the sender has to wait."""


class Direction(enum.Enum):
    """The directions of a connection, as its client sees them."""

    REQUESTS = "requests"
    ANSWERS = "answers"


BOTH = (Direction.REQUESTS, Direction.ANSWERS)


class _Way:
    """The fault of one direction; all connections of a proxy share it."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.is_open = asyncio.Event()
        self.is_open.set()


class Proxy:
    """Forwards the connections to `address` to the port `target` of this machine."""

    def __init__(self, proxies: "Proxies", target: int) -> None:
        self.target = target
        self.port = 0
        self._proxies = proxies
        self._ways = {direction: _Way() for direction in Direction}
        self._is_dropping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- faults, callable from any thread ---------------------------------------------------

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Deliver every byte this much later; without directions, in both."""
        for direction in directions or BOTH:
            self._ways[direction].delay = seconds

    def blackhole(self, *directions: Direction) -> None:
        """Deliver nothing until `heal`; without directions, in neither."""

        def close() -> None:
            for direction in directions or BOTH:
                self._ways[direction].is_open.clear()

        self._proxies.call(close)

    def drop(self) -> None:
        """Reset all connections, and each new one, until `heal`."""

        def reset() -> None:
            self._is_dropping = True
            for writer in list(self._writers):
                _reset(writer)

        self._proxies.call(reset)

    def heal(self) -> None:
        """End all faults; deliver what a blackhole holds."""

        def end() -> None:
            self._is_dropping = False
            for way in self._ways.values():
                way.delay = 0.0
                way.is_open.set()

        self._proxies.call(end)

    # --- on the loop ------------------------------------------------------------------------

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            _reset(writer)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self._is_dropping:
                _reset(writer)
            else:
                await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            _reset(writer)
        finally:
            writer.close()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward in both directions until both peers have closed, or one has failed."""
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers.add(far_writer)
        requests = _Pump(self._ways[Direction.REQUESTS])
        answers = _Pump(self._ways[Direction.ANSWERS])
        work = (
            requests.receive(reader),
            requests.deliver(far_writer),
            answers.receive(far_reader),
            answers.deliver(writer),
        )
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            _reset(far_writer)
            raise
        finally:
            for task in tasks:
                task.cancel()
            far_writer.close()
            self._writers.discard(far_writer)


class _Pump:
    """Delivers the bytes of one direction of one connection, in order, when they are due."""

    def __init__(self, way: _Way) -> None:
        self._way = way
        self._held: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def receive(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while True:
            chunk = await reader.read(CHUNK_BYTES)
            async with self._changed:
                self._held.append((loop.time() + self._way.delay, chunk))
                self._bytes += len(chunk)
                self._changed.notify_all()
                if not chunk:
                    return
                await self._changed.wait_for(lambda: self._bytes < HELD_BYTES_MAX)

    async def deliver(self, writer: asyncio.StreamWriter) -> None:
        """Return when the end of the input was delivered."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._held))
                due, chunk = self._held.popleft()
                self._bytes -= len(chunk)
                self._changed.notify_all()
            await asyncio.sleep(due - loop.time())
            await self._way.is_open.wait()
            if not chunk:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()


class Proxies:
    """Proxies on a loop in a thread of their own; use it in a `with` statement."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._proxies: list[Proxy] = []

    def __enter__(self) -> "Proxies":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies:
            self._run(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def to(self, target: int, *, port: int = 0) -> Proxy:
        """Return a proxy to a port of this machine, listening on `port` or on a free one."""

        async def start() -> Proxy:
            proxy = Proxy(self, target)
            await proxy.start(port)
            return proxy

        proxy = self._run(start())
        self._proxies.append(proxy)
        return proxy

    def call(self, change: Callable[[], None]) -> None:
        """Make a change on the loop and return when it is made."""

        async def run() -> None:
            change()

        self._run(run())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)


@contextlib.contextmanager
def faults(*proxies: Proxy) -> Iterator[None]:
    """Heal the proxies at the end of the block."""
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.heal()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, without delivering what is pending."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
