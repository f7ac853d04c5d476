"""One server for all tests of a worker; each test uses tables of its own."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bulk.shell import Shell
from partita.bulk.connecting import connected
from partita.bulk.wire import TableClient
from support.live import LiveServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("bulk-server"))
    yield live
    live.stop()


@pytest.fixture
def name() -> str:
    """A table name that no other test uses."""
    return f"T{uuid.uuid4().hex}"


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[TableClient]:
    async with connected(server.connection_string) as client:
        yield client


@pytest.fixture
async def table(client: TableClient, name: str) -> str:
    await client.create_table(name)
    return name


@pytest.fixture
def shell(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARTITA_CONNECT", server.connection_string)
    return Shell(tmp_path, server.connection_string)
