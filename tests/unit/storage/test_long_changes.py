"""Long changes run in the commit thread: reads go on, other changes wait, nothing is lost."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from partita.storage.database import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "account")
    opened.prepare("test", 1, "CREATE TABLE item (name TEXT PRIMARY KEY)")
    yield opened
    await opened.close()


async def add(database: Database, name: str) -> None:
    async with database.change() as connection:
        connection.execute("INSERT INTO item VALUES (?)", (name,))


def names(database: Database) -> list[str]:
    rows: list[Any] = database.reader.execute("SELECT name FROM item ORDER BY rowid").fetchall()
    return [name for (name,) in rows]


class Held:
    """A long change that waits in its thread until it is released."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.thread = 0

    async def work(self, connection: apsw.Connection) -> str:
        self.thread = threading.get_ident()
        connection.execute("INSERT INTO item VALUES ('long')")
        self.began.set()
        assert self.may_end.wait(60)
        return "done"


async def until(event: threading.Event) -> None:
    while not event.is_set():  # noqa: ASYNC110 - an event of another thread
        await asyncio.sleep(0.001)


async def test_a_long_change_lets_the_loop_read_and_other_changes_wait(database: Database) -> None:
    held = Held()
    long = asyncio.ensure_future(database.run_alone(held.work))
    await until(held.began)
    short = asyncio.ensure_future(add(database, "short"))
    for _ in range(20):
        await asyncio.sleep(0)

    assert names(database) == []  # a read sees what is committed
    assert not short.done()
    held.may_end.set()

    assert await long == "done"
    assert held.thread != threading.get_ident()
    await short
    assert names(database) == ["long", "short"]


async def test_a_long_change_is_not_overtaken_by_later_changes(database: Database) -> None:
    """It waits for the open transaction only: a stream of changes does not starve it."""
    held = Held()
    held.may_end.set()
    first = asyncio.ensure_future(add(database, "first"))
    await asyncio.sleep(0)
    long = asyncio.ensure_future(database.run_alone(held.work))
    await asyncio.sleep(0)
    later = [asyncio.ensure_future(add(database, f"later {n}")) for n in range(5)]

    await asyncio.gather(first, long, *later)

    assert names(database)[:2] == ["first", "long"]
    assert len(names(database)) == 7


async def test_a_long_change_that_fails_leaves_nothing(database: Database) -> None:
    async def fail(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO item VALUES ('lost')")
        raise LookupError

    with pytest.raises(LookupError):
        await database.run_alone(fail)
    await add(database, "kept")

    assert names(database) == ["kept"]
    assert database.is_writable


async def test_a_cancelled_caller_does_not_stop_a_long_change(database: Database) -> None:
    held = Held()
    long = asyncio.ensure_future(database.run_alone(held.work))
    await until(held.began)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    held.may_end.set()

    await add(database, "next")
    assert names(database) == ["long", "next"]


async def test_closing_waits_for_a_long_change(tmp_path: Path) -> None:
    opened = await Database.open(tmp_path / "account")
    opened.prepare("test", 1, "CREATE TABLE item (name TEXT PRIMARY KEY)")
    held = Held()
    long = asyncio.ensure_future(opened.run_alone(held.work))
    await until(held.began)
    closing = asyncio.ensure_future(opened.close())
    await asyncio.sleep(0)
    held.may_end.set()
    assert await long == "done"
    await closing

    again = await Database.open(tmp_path / "account")
    assert names(again) == ["long"]
    await again.close()


async def test_in_memory_a_long_change_runs_on_the_loop() -> None:
    opened = await Database.open(None)
    opened.prepare("test", 1, "CREATE TABLE item (name TEXT PRIMARY KEY)")
    held = Held()
    held.may_end.set()

    assert await opened.run_alone(held.work) == "done"
    assert held.thread == threading.get_ident()
    assert names(opened) == ["long"]
    await opened.close()
