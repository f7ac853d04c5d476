"""Databases for the tests of shards: SQLite files and a real PostgreSQL."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from support import postgres

NewDatabase = Callable[[str], str]


@pytest.fixture(scope="session", autouse=True)
def _postgres_is_stopped() -> Iterator[None]:
    yield
    postgres.stop_server()


@pytest.fixture(scope="session", autouse=True)
def _sqlite_does_not_wait_for_the_disk() -> Iterator[None]:
    """Let SQLite leave its writes to the system: tests kill processes, never the machine."""

    def set_up(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        if "sqlite" in type(connection).__module__ or isinstance(connection, sqlite3.Connection):
            cursor = connection.cursor()
            cursor.execute("PRAGMA synchronous = OFF")
            cursor.close()

    event.listen(Pool, "connect", set_up)
    yield
    event.remove(Pool, "connect", set_up)


@pytest.fixture
def new_sqlite(tmp_path: Path) -> NewDatabase:
    """Give `new(name) -> url` for fresh SQLite files."""
    return lambda name: f"sqlite:///{tmp_path / name}.db"


@pytest.fixture
def new_postgres() -> Iterator[NewDatabase]:
    """Give `new(name) -> url` for empty databases on the real PostgreSQL."""
    running = postgres.server()
    taken: list[str] = []

    def new(name: str) -> str:
        taken.append(running.take_database(name))
        return running.url(taken[-1])

    yield new
    for name in taken:
        running.give_back(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_urls(request: pytest.FixtureRequest) -> NewDatabase:
    """Give `new(name) -> url` on SQLite and, in a second run of the test, on PostgreSQL."""
    new: NewDatabase = request.getfixturevalue(
        "new_sqlite" if request.param == "sqlite" else "new_postgres"
    )
    return new
