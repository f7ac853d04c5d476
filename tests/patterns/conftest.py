"""Databases for the tests of the typed layer: in this process by the SDK, direct, and by HTTP."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from partita.patterns import Database, Table, connect
from partita.patterns.protocol.calls import (
    CreateContainer,
    DeleteBlob,
    DeleteTable,
    ListBlobs,
    ListTables,
    Steps,
    ask,
)
from partita.service.hosting.in_process import LocalAccount
from support import teams
from support.live import LiveServer
from support.staff import KEYRING, Department, Employee, Expense, Note

TYPES = (Department, Employee, Expense, Note)
CONTAINERS = ("partita-large", "partita-indexes", "scans")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A `partita serve` for all tests of a worker; each of them empties it."""
    live = LiveServer(tmp_path_factory.mktemp("served"), "--in-memory")
    yield live
    live.stop()


async def prepare(db: Database) -> Database:
    for cls in TYPES:
        db.table(cls)
    await db.create_tables()
    return db


@pytest_asyncio.fixture
async def db(partita_account: LocalAccount) -> AsyncIterator[Database]:
    """A database of its own for the test, through the official SDK, with the tables made."""
    async with connect(partita_account, keyring=KEYRING) as opened:
        yield await prepare(opened)


@pytest_asyncio.fixture
async def direct_db(partita_account: LocalAccount) -> AsyncIterator[Database]:
    """A database of its own for the test, without the SDK in between and without tables."""
    async with connect(partita_account, keyring=KEYRING, direct=True) as opened:
        yield opened


@pytest_asyncio.fixture(params=["sdk", "direct"])
async def team_db(
    request: pytest.FixtureRequest, partita_account: LocalAccount
) -> AsyncIterator[Database]:
    """A database with the tables of teams, members and meters."""
    async with connect(partita_account, direct=request.param == "direct") as opened:
        for cls in teams.TYPES:
            opened.table(cls)
        await opened.create_tables()
        yield opened


@pytest_asyncio.fixture(params=["sdk", "direct", "served"])
async def any_db(
    request: pytest.FixtureRequest, partita_account: LocalAccount
) -> AsyncIterator[Database]:
    """The same database by each of its ports: what holds for one holds for all."""
    if request.param == "served":
        live: LiveServer = request.getfixturevalue("served")
        async with connect(live.connection_string, keyring=KEYRING) as opened:
            yield await prepare(opened)
            await opened.run(_empty())
        return
    is_direct = request.param == "direct"
    async with connect(partita_account, keyring=KEYRING, direct=is_direct) as opened:
        yield await prepare(opened)


def _empty() -> Steps[None]:
    for table in (yield from ask(ListTables())):
        yield from ask(DeleteTable(table))
    for container in CONTAINERS:
        yield from ask(CreateContainer(container))
        for blob in (yield from ask(ListBlobs(container))).blobs:
            yield from ask(DeleteBlob(container, blob.name))


@pytest.fixture
def employees(db: Database) -> Table[Employee]:
    return db.table(Employee)


@pytest.fixture
def departments(db: Database) -> Table[Department]:
    return db.table(Department)


@pytest.fixture
def notes(db: Database) -> Table[Note]:
    return db.table(Note)
