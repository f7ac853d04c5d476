"""The ceiling of a large download: read a file, write it to the socket, and nothing else.

uvloop, httptools, no sendfile, no limits, no hashes. What Partita's blobs do is measured against
this: `python -m bench.blobs.copy_loop` compares it with Partita's HTTP protocol around the same
loop; `serve FILE` prints a port and serves the file to any GET; `fetch PORT PATH` times downloads.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import httptools
import uvloop

MEBIBYTE = 1024 * 1024
PIECE_BYTES = 256 * 1024
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"


class CopyProtocol(asyncio.Protocol):
    """Answers every GET with the file, piece by piece, as fast as the client takes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writable = asyncio.Event()
        self._writable.set()
        self._parser = httptools.HttpRequestParser(self)
        self._copying: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=PIECE_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._copying = asyncio.get_running_loop().create_task(self._copy())

    async def _copy(self) -> None:
        with self._path.open("rb", buffering=0) as file:
            self._transport.write(HEAD % self._path.stat().st_size)
            while (piece := file.read(PIECE_BYTES)) and not self._transport.is_closing():
                self._transport.write(piece)
                await self._writable.wait()


async def serve_bare(path: Path) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CopyProtocol(path), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class FileDownload:
    """The same loop behind Partita's protocol."""

    def __init__(self, path: Path) -> None:
        self.length = path.stat().st_size
        self._file: BinaryIO = path.open("rb", buffering=0)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    async def close(self) -> None:
        self._file.close()


async def serve_partita(path: Path) -> None:
    from partita.service.hosting.server import Server  # noqa: PLC0415
    from partita.service.http.message_bytes import STREAMING_LIMITS  # noqa: PLC0415 - the bare loop needs none
    from partita.service.http.request import Request, Response  # noqa: PLC0415

    async def respond(_: Request) -> Response:
        return Response(200, download=FileDownload(path))

    print(await Server(respond, limits=STREAMING_LIMITS).start(), flush=True)
    await asyncio.Event().wait()


def fetch(connection: socket.socket, path: str, headers: bytes = b"") -> float:
    """Download once and return the mebibytes a second."""
    buffer = bytearray(MEBIBYTE)
    started = time.perf_counter()
    connection.sendall(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n" % (path.encode(), headers))
    received = bytearray()
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 206")):
        raise SystemExit(head.decode("latin-1"))
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    left = length - len(body)
    while left:
        left -= connection.recv_into(buffer, min(left, MEBIBYTE))
    return length / MEBIBYTE / (time.perf_counter() - started)


def fetch_often(port: int, path: str, times: int) -> list[float]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return [fetch(connection, path) for _ in range(times)]


@contextlib.contextmanager
def serving(kind: str, path: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "bench.blobs.copy_loop", kind, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def compare(mebibytes: int, rounds: int) -> None:
    """Take the two in turns, so that a noisy machine is noisy to both."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "content"
        path.write_bytes(os.urandom(MEBIBYTE) * mebibytes)
        with serving("serve", path) as bare, serving("serve-partita", path) as ours:
            for port in (bare, ours):
                fetch_often(port, "/", 3)
            rates: dict[int, list[float]] = {bare: [], ours: []}
            for _ in range(rounds):
                for port, seen in rates.items():
                    seen.extend(fetch_often(port, "/", 3))
            plain, partita = (statistics.median(rates[port]) for port in (bare, ours))
            print(
                f"{mebibytes} MiB: copy loop {plain:.0f} MiB/s, Partita's HTTP {partita:.0f} MiB/s"
            )
            print(f"ratio {partita / plain:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb")
    for verb in ("serve", "serve-partita"):
        verbs.add_parser(verb).add_argument("path", type=Path)
    fetching = verbs.add_parser("fetch")
    fetching.add_argument("port", type=int)
    fetching.add_argument("path")
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    if asked.verb == "serve":
        uvloop.run(serve_bare(asked.path))
    elif asked.verb == "serve-partita":
        uvloop.run(serve_partita(asked.path))
    elif asked.verb == "fetch":
        print(f"{statistics.median(fetch_often(asked.port, asked.path, 10)):.0f} MiB/s")
    else:
        compare(asked.mebibytes, asked.rounds)


if __name__ == "__main__":
    main()
