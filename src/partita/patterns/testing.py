"""The pytest plugin: a fresh account in memory for each test, and faults to try it with.

Loaded by every pytest run where Partita is installed, so that nothing but pytest is imported
before a fixture is used.

    async def test_hiring(partita_db):
        await partita_db.create_tables()
        ...
"""

from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from partita.patterns.aio import Database
    from partita.patterns.faults import Faults
    from partita.patterns.following.worker import Report
    from partita.patterns.sync import Database as SyncDatabase
    from partita.service.hosting.in_process import LocalAccount

T = TypeVar("T")


def _run(awaited: "Coroutine[Any, Any, T]") -> T:
    """Run in a loop of its own, and in a thread of its own: that of the test may be running."""
    import asyncio  # noqa: PLC0415
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, awaited).result()


@pytest.fixture
def partita_account() -> "Iterator[LocalAccount]":
    """Open an account of its own for the test, in memory, with the SDK's retries made short."""
    from partita.service.hosting.in_process import open_account  # noqa: PLC0415 - see above

    with open_account(None) as account:
        from partita.patterns.faults import SHORT_RETRIES  # noqa: PLC0415 - the SDK is there

        account.client_options = SHORT_RETRIES
        yield account


@pytest.fixture
def partita_faults(partita_account: "LocalAccount") -> "Faults":
    """Return what can go wrong between the test's clients and its account."""
    from partita.patterns.faults import Faults  # noqa: PLC0415

    return Faults(partita_account)


@pytest.fixture
def partita_db(partita_account: "LocalAccount") -> "Iterator[Database]":
    """Connect to the account of the test. A plain fixture: whoever runs the test can use it."""
    from partita.patterns.aio import connect  # noqa: PLC0415

    db = _run(connect(partita_account).open())
    yield db
    _run(db.close())


@pytest.fixture
def partita_db_sync(partita_account: "LocalAccount") -> "Iterator[SyncDatabase]":
    """Connect to the account of the test, without a loop."""
    from partita.patterns.sync import connect  # noqa: PLC0415

    with connect(partita_account) as db:
        yield db


@pytest.fixture
def partita_worker(partita_db: "Database") -> "Callable[[], Coroutine[Any, Any, Report]]":
    """Return what lets the outbox of the test's database catch up; await its call."""
    return partita_db.drain


@pytest.fixture
def partita_worker_sync(partita_db_sync: "SyncDatabase") -> "Callable[[], Report]":
    """Return the same for `partita_db_sync`; call it."""
    return partita_db_sync.drain
