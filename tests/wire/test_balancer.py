"""The balancer of the tests on several front ends: it alternates by request and changes nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from support.balancer import Balancer

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
HEAD = b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"


async def _front_end(name: bytes) -> asyncio.Server:
    """Answer requests with the name of the front end, and what is not HTTP with itself."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1000):
            for part in filter(None, chunk.split(b"HTTP/1.1\r\nHost: a\r\n")[:-1] or [chunk]):
                body = b"" if part.startswith(b"HEAD") else name
                interim = b"HTTP/1.1 100 Continue\r\n\r\n" if part.startswith(b"POST") else b""
                is_http = part.partition(b" ")[0] in (b"GET", b"HEAD", b"POST", b"\r\nGET")
                answer = interim + b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + body
                writer.write(answer if is_http else name + chunk)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.fixture
async def ports() -> AsyncIterator[list[int]]:
    servers = [await _front_end(b"1"), await _front_end(b"2")]
    yield [server.sockets[0].getsockname()[1] for server in servers]
    for server in servers:
        server.close()


@pytest.fixture
def balancer(ports: list[int]) -> Iterator[Balancer]:
    made = Balancer(ports)
    yield made
    made.close()


async def answers(balancer: Balancer, *sent: bytes) -> list[bytes]:
    """Return the last byte of the answer to each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
    found = []
    for each in sent:
        writer.write(each)
        answer = await reader.readuntil(b"200 OK\r\nContent-Length: 1\r\n\r\n")
        assert (b"100 Continue" in answer) == each.startswith(b"POST")
        found.append(b"" if each.startswith(b"HEAD") else await reader.readexactly(1))
    writer.close()
    return found


async def test_requests_of_one_connection_alternate(balancer: Balancer) -> None:
    assert await answers(balancer, GET, GET, GET, POST, GET) == [b"1", b"2", b"1", b"2", b"1"]


async def test_an_answer_to_head_has_no_body(balancer: Balancer) -> None:
    assert await answers(balancer, GET, HEAD, GET, HEAD, GET) == [b"1", b"", b"1", b"", b"1"]


async def test_requests_sent_together_stay_together(balancer: Balancer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)

    writer.write(GET + GET)

    first = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(1)
    second = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(1)
    assert first == second
    writer.close()


async def test_what_is_not_http_stays_with_one_front_end(balancer: Balancer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)

    for sent in (b"\x16\x03\x01", b"\x00\x01", b"more"):
        writer.write(sent)
        assert await reader.readexactly(len(sent) + 1) == b"1" + sent
    writer.close()


async def test_the_end_of_a_front_end_ends_the_connection(balancer: Balancer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)

    writer.write(b"\x16")
    assert await reader.readexactly(2) == b"1\x16"
    writer.write_eof()

    assert await reader.read() == b""
    writer.close()
