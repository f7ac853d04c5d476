"""Servers for the wire tests: one for all tests of a worker, special ones on request."""

import json
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.live import LiveServer
from wire.raw import JSON, RawClient
from wire.sdk import CREDENTIAL, HALVES, open_service

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


@pytest.fixture
def table(raw: RawClient, name: str) -> str:
    """A table that exists and is empty."""
    assert raw.send("POST", "/Tables", json.dumps({"TableName": name}), JSON).status == 201
    return name


@pytest.fixture(params=HALVES)
def half(request: pytest.FixtureRequest) -> str:
    """Which half of the Python SDK a test runs on: each runs on both."""
    chosen: str = request.param
    return chosen


@pytest.fixture
async def service(half: str, server: LiveServer) -> AsyncIterator[Any]:
    async with open_service(half, server.endpoint, CREDENTIAL) as client:
        yield client


@pytest.fixture
async def client(service: Any, table: str) -> Any:
    """A TableClient for an empty table."""
    return service.get_table_client(table)


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
