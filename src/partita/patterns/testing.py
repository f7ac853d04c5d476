"""The pytest plugin: a fresh account in memory for each test, and faults to try it with.

Loaded by every pytest run where Partita is installed, so that nothing but pytest is imported
before a fixture is used.

    async def test_hiring(partita_db):
        await partita_db.create_tables()
        ...
"""

import importlib.util
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from partita.patterns.aio import Database
    from partita.patterns.faults import Faults
    from partita.patterns.sync import Database as SyncDatabase
    from partita.service.in_process import LocalAccount

F = TypeVar("F", bound="Callable[..., Any]")


def _async_fixture(function: F) -> F:
    if importlib.util.find_spec("pytest_asyncio") is None:
        return cast("F", pytest.fixture(function))  # anyio's plugin takes plain ones
    from pytest_asyncio import fixture  # noqa: PLC0415 - not everybody has it

    return cast("F", fixture(function))


@pytest.fixture
def partita_account() -> "Iterator[LocalAccount]":
    """Open an account of its own for the test, in memory, with the SDK's retries made short."""
    from partita.service.in_process import open_account  # noqa: PLC0415 - see above

    with open_account(None) as account:
        from partita.patterns.faults import SHORT_RETRIES  # noqa: PLC0415 - the SDK is there

        account.client_options = SHORT_RETRIES
        yield account


@pytest.fixture
def partita_faults(partita_account: "LocalAccount") -> "Faults":
    """Return what can go wrong between the test's clients and its account."""
    from partita.patterns.faults import Faults  # noqa: PLC0415

    return Faults(partita_account)


@_async_fixture
async def partita_db(partita_account: "LocalAccount") -> "AsyncIterator[Database]":
    """Connect to the account of the test."""
    from partita.patterns.aio import connect  # noqa: PLC0415

    async with connect(partita_account) as db:
        yield db


@pytest.fixture
def partita_db_sync(partita_account: "LocalAccount") -> "Iterator[SyncDatabase]":
    """Connect to the account of the test, without a loop."""
    from partita.patterns.sync import connect  # noqa: PLC0415

    with connect(partita_account) as db:
        yield db


@pytest.fixture
def partita_worker(partita_db: "Database") -> "Callable[[], Coroutine[Any, Any, Any]]":
    """Return what lets the outbox of the test's database catch up; await its call."""
    drain: Callable[[], Coroutine[Any, Any, Any]] = partita_db.drain
    return drain
