"""A body of any length costs a server the memory of a few pieces; any splitting gives the same."""

import asyncio
import contextlib
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.clock import ManualClock
from partita.service.http.connections import Connections
from partita.service.http.message_bytes import HttpLimits
from partita.service.http.protocol import HttpProtocol
from partita.service.http.request import Request, Response
from support.repeats import repeat
from wire.live_http import Client

MEBIBYTE = 1024 * 1024
BODY_BYTES = repeat(96, 256, 2048) * MEBIBYTE
GROWTH_BYTES_MAX = 16 * MEBIBYTE

SERVER = """
import hashlib, sys
from partita.service.http.message_bytes import BLOB_DIALECT, STREAMING_LIMITS
from partita.service.http.request import Response
from partita.service.hosting.server import Server, run, serve_until_stopped

class Zeros:
    def __init__(self, length):
        self.length = length
    async def __aiter__(self):
        for _ in range(self.length // 262144):
            yield bytes(262144)
    async def close(self):
        pass

async def respond(request):
    if request.upload is None:
        return Response(200, download=Zeros(int(request.query)))
    digest = hashlib.sha256()
    count = 0
    async for piece in request.upload:
        digest.update(piece)
        count += len(piece)
    return Response(200, body=f"{count} {digest.hexdigest()}".encode())

async def main():
    server = Server(respond, limits=STREAMING_LIMITS, dialect=BLOB_DIALECT)
    print(await server.start(), flush=True)
    return await serve_until_stopped(server)

sys.exit(run(main))
"""


class Watched:
    """A process whose greatest memory can be asked for."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._folder = Path("/proc") / str(process.pid)

    def memory_bytes(self, name: str) -> int:
        status = (self._folder / "status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    @contextlib.contextmanager
    def growth_bounded(self) -> Iterator[None]:
        (self._folder / "clear_refs").write_text("5")
        before = self.memory_bytes("VmRSS:")
        yield
        growth = self.memory_bytes("VmHWM:") - before
        print(f"grew by {growth / MEBIBYTE:.1f} MiB")
        assert growth < GROWTH_BYTES_MAX


@pytest.fixture
def server() -> Iterator[tuple[Watched, Client]]:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        client = Client(("127.0.0.1", int(process.stdout.readline())))
        # The first requests bring in what is loaded late.
        for length in (2, 16):
            upload(client, length * MEBIBYTE)
            assert download(client, length * MEBIBYTE) == length * MEBIBYTE
        yield Watched(process), client
        client.close()
        process.terminate()


def upload(client: Client, length: int) -> str:
    client.send(b"PUT /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length)
    piece = bytes(MEBIBYTE)
    client.send(*(piece for _ in range(length // MEBIBYTE)))
    return client.read().body.decode()


def download(client: Client, length: int) -> int:
    client.send(b"GET /down?%d HTTP/1.1\r\nHost: a\r\n\r\n" % length)
    _, _, declared = client.read_head()
    assert declared == length
    received = 0
    while received < length:
        received += len(client.read_some(min(MEBIBYTE, length - received)))
    return received


@pytest.mark.timeout(600)
def test_long_upload_holds_a_few_mebibytes(server: tuple[Watched, Client]) -> None:
    watched, client = server
    digest = hashlib.sha256()
    for _ in range(BODY_BYTES // MEBIBYTE):
        digest.update(bytes(MEBIBYTE))

    with watched.growth_bounded():
        seen = upload(client, BODY_BYTES)

    assert seen == f"{BODY_BYTES} {digest.hexdigest()}"


@pytest.mark.timeout(600)
def test_long_download_holds_a_few_mebibytes(server: tuple[Watched, Client]) -> None:
    watched, client = server

    with watched.growth_bounded():
        received = download(client, BODY_BYTES)

    assert received == BODY_BYTES


# Any splitting of the stream


class Wire(asyncio.Transport):
    """Collects what the protocol writes; the bytes come in as the test cuts them."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.written += part

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def take(request: Request) -> Response:
    if request.upload is None:
        return Response(200, body=b"buffered " + request.body)
    pieces = [piece async for piece in request.upload]
    return Response(200, body=b"streamed " + b"".join(pieces))


def a_chunked(body: bytes, sizes: list[int]) -> bytes:
    chunks = b""
    for size in sizes:
        part, body = body[:size], body[size:]
        chunks += b"%x\r\n%s\r\n" % (len(part), part) if part else b""
    chunks += b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return chunks + b"0\r\n\r\n"


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Return the bytes of some requests and the answers that they must have."""
    stream, answers = b"", []
    for _ in range(draw(st.integers(1, 4))):
        body = draw(st.binary(max_size=300))
        if draw(st.booleans()):
            sizes = draw(st.lists(st.integers(1, 100), max_size=5))
            stream += b"PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            stream += a_chunked(body, sizes)
            answers.append(b"streamed " + body)
        else:
            stream += b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            answers.append((b"streamed " if len(body) > 100 else b"") + body)
    return stream, answers


@settings(max_examples=repeat(40, 200, 2000), deadline=None)
@given(exchanges(), st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=60))
def test_any_splitting_of_the_stream_gives_the_same_bodies(
    exchange: tuple[bytes, list[bytes]], cuts: list[tuple[int, bool]]
) -> None:
    stream, answers = exchange

    written = asyncio.run(fed_in_parts(stream, cuts))

    # A short body is streamed if it arrives after its head, and buffered if it comes with it.
    bodies = [part.partition(b"\r\n\r\n")[2] for part in written]
    assert [
        body if answer.startswith(b"streamed ") else body.partition(b" ")[2]
        for body, answer in zip(bodies, answers, strict=True)
    ] == answers


async def fed_in_parts(stream: bytes, cuts: list[tuple[int, bool]]) -> list[bytes]:
    limits = HttpLimits(stream_above_bytes=100, upload_buffer_bytes_max=64)
    wire = Wire()
    protocol = HttpProtocol(take, limits, Connections(limits, ManualClock()))
    protocol.connection_made(wire)
    for length, has_turn in [*cuts, (len(stream), True)]:
        part, stream = stream[:length], stream[length:]
        if part:
            protocol.data_received(part)
        if has_turn:
            await asyncio.sleep(0)
    while protocol.owes_an_answer:  # noqa: ASYNC110 - it has no event, and needs few turns
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    return bytes(wire.written).split(b"HTTP/1.1 200 OK\r\n")[1:]
