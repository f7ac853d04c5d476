"""Sources of copies on other servers: which hosts and addresses, and what their answers may be."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from partita.blobs.rules.model import Conditions, Opened, Terms
from partita.errors import PartitaError
from partita.service.blobs import external_source as module
from partita.service.blobs.external_source import (
    ExternalSource,
    external_source,
    is_public,
    opened_external,
    resolve,
)
from partita.service.blobs.wire import CopySource
from partita.service.formats.byte_ranges import ByteRange

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"


@asynccontextmanager
async def answering(*parts: bytes) -> AsyncIterator[tuple[ExternalSource, list[bytes]]]:
    """Serve one answer, and remember the requests."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        for part in parts:
            writer.write(part)
            await writer.drain()
        if parts:
            writer.close()
        else:
            await reader.read()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield external_source(f"http://127.0.0.1:{port}/a%20b?c=d", [f"127.0.0.1:{port}"]), requests
    finally:
        server.close()


async def read(source: ExternalSource, wanted: CopySource | None = None) -> tuple[Opened, bytes]:
    async with opened_external(source, wanted or CopySource("")) as opened:
        return opened, b"".join([part async for part in opened.content])


async def refusal_of(*parts: bytes, wanted: CopySource | None = None) -> tuple[str, object]:
    async with answering(*parts) as (source, _):
        with pytest.raises(PartitaError) as refused:
            await read(source, wanted)
    return refused.value.code, refused.value.facts.get("status")


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("http://data.example/a", "data.example"),
        ("https://DATA.example./a?sig=x", "data.example"),
        ("https://data.example:443/a", "data.example"),
        ("http://data.example:8080/a", "data.example:8080"),
        ("http://[2001:db8::1]:8080/a", "[2001:db8::1]:8080"),
        ("http://[2001:db8::1]/a", "2001:db8::1"),
    ],
)
def test_a_host_is_allowed_by_its_name_and_port(address: str, allowed: str) -> None:
    assert external_source(address, ["other.example", allowed]).host in allowed


@pytest.mark.parametrize(
    "address",
    [
        "http://other.example/a",
        "http://data.example:8080/a",
        "http://data.example.other/a",
        "http://data.example@other.example/a",
        "http://data.example:port/a",
        "ftp://data.example/a",
        "http:///a",
    ],
)
def test_other_hosts_and_ports_are_refused_with_the_setting(address: str) -> None:
    with pytest.raises(PartitaError) as refused:
        external_source(address, ["data.example"])

    assert (refused.value.code, refused.value.facts["status"]) == ("CannotVerifyCopySource", 403)
    assert "--copy-from-host" in refused.value.hint


def test_without_the_setting_no_host_is_allowed() -> None:
    with pytest.raises(PartitaError, match="CannotVerifyCopySource"):
        external_source("http://data.example/a", [])


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1"),
        *("::", "::1", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:7f00:1::"),
        *("::10.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b:1::a00:1", "2002:c0a8:101::", "100::1"),
        *(
            "192.0.0.8",
            "192.88.99.1",
            "198.18.0.1",
            "2001:2::1",
            "2001:20::1",
            "3fff::1",
            "5f00::1",
        ),
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)
def test_addresses_that_are_not_of_the_public_internet(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_addresses_of_the_public_internet(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


async def test_a_name_of_this_machine_is_refused_though_it_is_allowed() -> None:
    source = external_source("http://localhost:8080/a", ["localhost:8080"])

    with pytest.raises(PartitaError) as refused:
        await resolve(source)

    assert (refused.value.code, refused.value.facts["status"]) == ("CannotVerifyCopySource", 403)


@pytest.mark.parametrize(
    "spelling", ["127.1", "2130706433", "0x7f000001", "017700000001", "0x7f.0.0.1", "0"]
)
async def test_other_spellings_of_this_machine_are_refused_though_they_are_allowed(
    spelling: str,
) -> None:
    source = external_source(f"http://{spelling}:8080/a", [f"{spelling}:8080"])

    with pytest.raises(PartitaError) as refused:
        await resolve(source)

    assert (refused.value.code, refused.value.facts["status"]) == ("CannotVerifyCopySource", 403)


async def test_a_name_with_a_private_and_a_public_address_leads_to_the_public_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(monkeypatch, ["169.254.169.254", "::1", "8.8.8.8"])

    assert await resolve(external_source("http://data.example/a", ["data.example"])) == "8.8.8.8"


async def test_a_name_that_changes_its_address_after_the_check_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions = answers(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    connected: list[object] = []

    async def open_connection(host: str, port: int, **_: object) -> None:
        connected.append(host)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)

    with pytest.raises(PartitaError):
        await read(external_source("http://data.example/a", ["data.example"]))

    assert (connected, questions) == (["8.8.8.8"], ["data.example"])


def answers(monkeypatch: pytest.MonkeyPatch, *each: list[str]) -> list[str]:
    """Let the resolver answer with these addresses, one list after the other; return the names."""
    questions: list[str] = []
    rest = iter(each)

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        questions.append(host)
        return [(2, 1, 6, "", (address, port)) for address in next(rest)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return questions


async def test_a_source_is_read_with_its_headers() -> None:
    head = b"x-ms-meta-k: v\r\nx-ms-blob-type: AppendBlob\r\n\r\n"
    async with answering(OK.replace(b"\r\n\r\n", b"\r\n" + head, 1)) as (source, requests):
        opened, content = await read(source)

    assert content == b"hello"
    assert (opened.blob.headers.content_type, opened.blob.kind) == ("text/plain", "AppendBlob")
    assert opened.blob.metadata == {"k": "v"}
    assert requests[0].startswith(b"GET /a%20b?c=d HTTP/1.1\r\nHost: 127.0.0.1:")
    assert source.address == f"http://127.0.0.1:{source.port}/a%20b"


async def test_conditions_and_the_range_are_sent() -> None:
    conditions = Conditions(if_match=("1",), if_none_match=("*",), if_modified_since=0)
    wanted = CopySource("", ByteRange(0, 4), Terms(conditions=conditions))
    async with answering(OK.replace(b"200 OK", b"206 Partial Content")) as (source, requests):
        opened, content = await read(source, wanted)

    assert (content, opened.first, opened.last) == (b"hello", 0, 4)
    for line in (b'If-Match: "1"', b"If-None-Match: *", b"Range: bytes=0-4"):
        assert line + b"\r\n" in requests[0]
    assert b"If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n" in requests[0]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404),
        (b"HTTP/1.1 412 No\r\nContent-Length: 0\r\n\r\n", 412),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", 304),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", 400),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", 400),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", 400),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"HTTP/1.1 200 OK\r\nContent-Le", 400),
        (b"not HTTP\r\n\r\n", 400),
    ],
)
async def test_an_answer_that_cannot_be_copied_is_refused(answer: bytes, status: int) -> None:
    assert await refusal_of(answer) == ("CannotVerifyCopySource", status)


async def test_a_server_that_ignores_the_range_is_refused() -> None:
    wanted = CopySource("", ByteRange(0, 2))

    assert await refusal_of(OK, wanted=wanted) == ("CannotVerifyCopySource", 400)


async def test_headers_without_an_end_are_refused() -> None:
    line = b"x: " + b"y" * 8000 + b"\r\n"

    code = await refusal_of(b"HTTP/1.1 200 OK\r\n", *[line] * 200)

    assert code == ("CannotVerifyCopySource", 400)


async def test_a_source_that_is_too_large_is_refused_before_it_is_read() -> None:
    size = module.EXTERNAL_COPY_BYTES_MAX + 1

    code, _ = await refusal_of(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)

    assert code == "RequestBodyTooLarge"


@pytest.mark.parametrize(
    "limit",
    [
        lambda patch: patch.setattr(module, "EXTERNAL_SILENCE_SECONDS_MAX", 0.02),
        lambda patch: patch.setattr(module, "EXTERNAL_COPY_SECONDS_MAX", 0.02),
    ],
)
async def test_a_server_that_stays_silent_is_left(
    monkeypatch: pytest.MonkeyPatch, limit: Callable[[pytest.MonkeyPatch], None]
) -> None:
    limit(monkeypatch)
    hang = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK[:-2])
        await hang.wait()
        writer.close()
        await reader.read()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = external_source(f"http://127.0.0.1:{port}/a", [f"127.0.0.1:{port}"])
    with pytest.raises(PartitaError, match="CannotVerifyCopySource") as refused:
        await read(source)
    hang.set()
    server.close()

    assert "took too long" in refused.value.hint


async def test_a_server_that_is_not_there_is_refused() -> None:
    async with answering(OK) as (source, _):
        pass

    with pytest.raises(PartitaError) as refused:
        await read(source)

    assert "cannot be reached" in refused.value.hint
