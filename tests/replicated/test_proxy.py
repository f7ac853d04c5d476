"""The proxy of the network tests: what it delays, holds and resets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from support.proxy import BOTH, Direction, Proxies, Proxy


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies() as proxies:
        yield proxies


@pytest.fixture
async def proxy(proxies: Proxies) -> AsyncIterator[Proxy]:
    """A proxy to a server that answers every line with itself in capitals."""

    writers: list[asyncio.StreamWriter] = []

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                received.append(line)
                writer.write(line.upper())
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    proxy = proxies.to(server.sockets[0].getsockname()[1])
    yield proxy
    server.close()
    for writer in writers:
        writer.close()


received: list[bytes] = []


@pytest.fixture(autouse=True)
def nothing_received() -> None:
    received.clear()


async def connect(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def read_one(proxy: Proxy) -> None:
    reader, writer = await connect(proxy)
    try:
        await reader.readexactly(1)
    finally:
        writer.close()


@pytest.mark.parametrize("delay", [0.0, 0.05])
async def test_bytes_are_forwarded_in_order_and_ends_too(proxy: Proxy, delay: float) -> None:
    proxy.delay(delay)
    reader, writer = await connect(proxy)
    lines = [b"line %d\n" % number for number in range(100)]

    for line in lines:
        writer.write(line)
    writer.write_eof()

    assert await reader.read() == b"".join(lines).upper()
    writer.close()


async def test_a_delay_applies_in_each_direction(proxy: Proxy) -> None:
    proxy.delay(0.05)
    loop = asyncio.get_running_loop()
    reader, writer = await connect(proxy)
    began = loop.time()

    writer.write(b"hello\n")

    assert await reader.readline() == b"HELLO\n"
    assert loop.time() - began >= 0.1
    writer.close()


@pytest.mark.parametrize("direction", [*BOTH, None])
async def test_a_blackhole_holds_what_is_sent_until_it_is_healed(
    proxy: Proxy, direction: Direction | None
) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"before\n")
    assert await reader.readline() == b"BEFORE\n"
    proxy.blackhole(*((direction,) if direction else ()))

    writer.write(b"held\n")
    answer = asyncio.ensure_future(reader.readline())
    if direction is Direction.ANSWERS:
        while received[-1:] != [b"held\n"]:  # noqa: ASYNC110 - the server is on this loop
            await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    is_received = received == [b"before\n", b"held\n"]

    assert (is_received, answer.done()) == (direction is Direction.ANSWERS, False)
    proxy.heal()
    assert await answer == b"HELD\n"
    writer.close()


async def test_a_drop_resets_connections_and_new_ones_until_it_is_healed(proxy: Proxy) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"before\n")
    assert await reader.readline() == b"BEFORE\n"

    proxy.drop()

    with pytest.raises(ConnectionError):
        await reader.readexactly(1)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await read_one(proxy)
    proxy.heal()
    again, again_writer = await connect(proxy)
    again_writer.write(b"after\n")
    assert await again.readline() == b"AFTER\n"
    for each in (writer, again_writer):
        each.close()
