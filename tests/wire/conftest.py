"""Servers for the wire tests: one for all tests of a worker, special ones on request."""

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from wire.live import LiveServer
from wire.raw import RawClient

StartServer = Callable[..., LiveServer]


class Certificate(NamedTuple):
    certificate: Path
    key: Path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server on disk. Tests share it: each uses tables of its own and leaves the account be."""
    live = LiveServer(tmp_path_factory.mktemp("server"))
    yield live
    live.stop()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start special servers with these flags; they are stopped whatever happens."""
    started: list[LiveServer] = []

    def start(*flags: str) -> LiveServer:
        folder = tmp_path / f"server{len(started)}"
        folder.mkdir()
        started.append(LiveServer(folder, *flags))
        return started[-1]

    yield start
    for live in started:
        live.stop()


@pytest.fixture
def raw(server: LiveServer) -> RawClient:
    return RawClient(server.endpoint)


@pytest.fixture
def name() -> str:
    """A table name that no other test uses."""
    return f"T{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate for 127.0.0.1 that nobody trusts yet."""
    folder = tmp_path_factory.mktemp("tls")
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    return made
