"""The pytest plugin: a new in-memory account, server or state for each test, and fault injection.

Every pytest run loads it where Partita is installed, so it imports only pytest until a fixture is
used.

    async def test_hiring(partita_db):
        await partita_db.create_tables()
        ...
"""

from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager

    from partita.patterns.aio import Database
    from partita.patterns.faults import Faults
    from partita.patterns.following.worker import Report
    from partita.patterns.sync import Database as SyncDatabase
    from partita.reliable.manager.state_manager import StateManager
    from partita.reliable.sync import StateManager as SyncStateManager
    from partita.service.hosting.in_process import LocalAccount
    from partita.service.hosting.listening import Listening

T = TypeVar("T")


def _run(awaited: "Coroutine[Any, Any, T]") -> T:
    """Run a coroutine in its own thread and event loop, because the test's may be running."""
    import asyncio  # noqa: PLC0415
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, awaited).result()


@pytest.fixture
def _partita_opened() -> "Iterator[LocalAccount]":
    """Open an in-memory account for the test; it needs no SDK until its clients are used."""
    from partita.clock import SystemClock  # noqa: PLC0415 - see above
    from partita.service.hosting.in_process import LocalAccount  # noqa: PLC0415
    from partita.service.hosting.opening import Place  # noqa: PLC0415

    with LocalAccount(Place(None), SystemClock()) as account:
        yield account


@pytest.fixture
def partita_account(_partita_opened: "LocalAccount") -> "LocalAccount":
    """Return the account of the test, with short delays between retries of the SDK.

    `connection_string` is for clients that need a socket.
    """
    from partita.service.hosting.in_process import require_sdk  # noqa: PLC0415

    require_sdk()
    from partita.patterns.faults import SHORT_RETRIES  # noqa: PLC0415 - needs the SDK

    _partita_opened.client_options = SHORT_RETRIES
    return _partita_opened


@pytest.fixture
def partita_server(_partita_opened: "LocalAccount") -> "Listening":
    """Serve the account of the test on free ports of 127.0.0.1: what `partita serve` serves.

    `partita_server.connection_string` is for any client, in any process and language.
    """
    return _partita_opened.listen()


@pytest.fixture
def partita_faults(partita_account: "LocalAccount") -> "Faults":
    """Return the fault injection of the account of the test."""
    from partita.patterns.faults import Faults  # noqa: PLC0415

    return Faults(partita_account)


@pytest.fixture
def partita_db(partita_account: "LocalAccount") -> "Iterator[Database]":
    """Connect to the account of the test; works with any asynchronous pytest plugin."""
    from partita.patterns.aio import connect  # noqa: PLC0415

    db = _run(connect(partita_account).open())
    yield db
    _run(db.close())


@pytest.fixture
def partita_db_sync(partita_account: "LocalAccount") -> "Iterator[SyncDatabase]":
    """Connect to the account of the test with the synchronous API."""
    from partita.patterns.sync import connect  # noqa: PLC0415

    with connect(partita_account) as db:
        yield db


@pytest.fixture
def partita_worker(partita_db: "Database") -> "Callable[[], Coroutine[Any, Any, Report]]":
    """Return a coroutine function that processes the outbox of `partita_db`."""
    return partita_db.drain


@pytest.fixture
def partita_worker_sync(partita_db_sync: "SyncDatabase") -> "Callable[[], Report]":
    """Return a function that processes the outbox of `partita_db_sync`."""
    return partita_db_sync.drain


@pytest.fixture
def partita_state() -> "AbstractAsyncContextManager[StateManager]":
    """Return a reliable state in memory, to be opened by the test: `async with partita_state`.

    The test opens it because a state belongs to the event loop that runs the test.
    """
    from partita.reliable.opening import open_state  # noqa: PLC0415

    return open_state(":memory:")


@pytest.fixture
def partita_state_sync() -> "Iterator[SyncStateManager]":
    """Open a reliable state in memory with the synchronous API."""
    from partita.reliable.sync import open_state  # noqa: PLC0415

    with open_state(":memory:") as state:
        yield state
