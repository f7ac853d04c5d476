"""Free pages are returned to the disk in small steps, while the database is used."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from partita.storage import vacuum
from partita.storage.database import DATABASE_FILE, PAGE_BYTES, Database
from partita.storage.disk_reserve import DiskReserve
from partita.storage.format_numbers import APPLICATION_ID
from partita.storage.vacuum import INCREMENTAL, KEEP_BYTES, START_BYTES, surplus_pages

MIB = 1024 * 1024
ROW_BYTES = 4096
DROPPED_ROWS = 24 * MIB // ROW_BYTES
START_PAGES, KEEP_PAGES = START_BYTES // PAGE_BYTES, KEEP_BYTES // PAGE_BYTES
SCHEMA = "CREATE TABLE item (owner TEXT, number INTEGER, value BLOB, PRIMARY KEY (owner, number))"


async def put(database: Database, owner: str, rows: int) -> None:
    async with database.change() as connection:
        connection.executemany(
            "INSERT INTO item VALUES (?, ?, randomblob(?))",
            [(owner, number, ROW_BYTES) for number in range(rows)],
        )


async def drop(database: Database, owner: str) -> None:
    async with database.change() as connection:
        connection.execute("DELETE FROM item WHERE owner = ?", (owner,))


def size_of(folder: Path) -> int:
    return (folder / DATABASE_FILE).stat().st_size


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():  # noqa: ASYNC110 - a thread and a timer make it true
        await asyncio.sleep(0.01)


@pytest.fixture
async def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(vacuum, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(vacuum, "PAUSE_SECONDS", 0.001)
    opened = await Database.open(tmp_path)
    opened.prepare("test", 1, SCHEMA)
    # The rows that stay come last, so that their pages must be moved.
    await put(opened, "dropped", DROPPED_ROWS)
    await put(opened, "kept", 1000)
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("free", "surplus"),
    [
        ([], 0),
        ([9000, 9000], 0),
        ([9000, START_PAGES - 1, 9000], 0),
        ([9000, START_PAGES, 9000], START_PAGES - KEEP_PAGES),
        ([9000, 8000, 9000], 8000 - KEEP_PAGES),
    ],
)
def test_only_pages_that_stay_free_are_surplus(free: list[int], surplus: int) -> None:
    assert surplus_pages(free, PAGE_BYTES) == surplus


async def test_dropped_rows_make_the_file_shorter_while_it_is_used(
    database: Database, tmp_path: Path
) -> None:
    database.checkpoint_soon()
    await until(lambda: size_of(tmp_path) > DROPPED_ROWS * ROW_BYTES)
    await drop(database, "dropped")
    before = size_of(tmp_path)

    await until(lambda: size_of(tmp_path) < before // 2)

    found: Any = database.reader.execute("SELECT owner, count(*) FROM item GROUP BY owner")
    assert found.fetchall() == [("kept", 1000)]
    assert database.reader.pragma("integrity_check") == "ok"
    assert database.reader.pragma("freelist_count") <= KEEP_PAGES


async def test_changes_and_reads_continue_during_a_vacuum(
    database: Database, tmp_path: Path
) -> None:
    await drop(database, "dropped")
    free = database.reader.pragma("freelist_count")
    written = 0
    while database.reader.pragma("freelist_count") > free // 2:
        async with database.change() as connection:
            connection.execute("INSERT INTO item VALUES ('new', ?, 'x')", (written,))
        written += 1
        count = await database.in_reader(
            lambda reader: reader.execute("SELECT count(*) FROM item WHERE owner = 'kept'").get
        )
        assert count == 1000

    found = database.reader.execute("SELECT count(*) FROM item WHERE owner = 'new'").get
    assert found == written > 0


async def test_a_step_ends_after_its_time_also_if_pages_are_left(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await drop(database, "dropped")
    monkeypatch.setattr(vacuum, "STEP_SECONDS_MAX", 0.0)
    assert database._vacuum is not None
    free = database.reader.pragma("freelist_count")

    removed = await database._vacuum._step(50)

    assert removed == 1
    assert database.reader.pragma("freelist_count") == free - 1


async def test_there_is_no_vacuum_on_a_full_disk(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database._became_full()
    monkeypatch.setattr(DiskReserve, "free_bytes", lambda _self: 0)
    assert database._vacuum is not None

    assert await database._vacuum.vacuum(100) == 0


async def test_a_file_of_an_earlier_version_is_used_as_it_is(tmp_path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(tmp_path / DATABASE_FILE))) as old:
        old.pragma("page_size", PAGE_BYTES)
        old.pragma("application_id", APPLICATION_ID)
        old.execute("CREATE TABLE item (name TEXT)")

    database = await Database.open(tmp_path)
    mode = database.reader.pragma("auto_vacuum")
    assert database._vacuum is not None
    is_possible = database._vacuum.is_possible
    await database.close()

    assert (mode, is_possible) == (0, False)


async def test_a_new_file_is_made_for_the_vacuum(database: Database, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    await database.close()
    shutil.copy(tmp_path / DATABASE_FILE, copy)

    with contextlib.closing(apsw.Connection(str(copy))) as opened:
        assert opened.pragma("auto_vacuum") == INCREMENTAL
