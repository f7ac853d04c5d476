import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from crash.shim_vfs import Watcher, registered
from partita.clock import SystemClock
from partita.errors import EntityExistsError, EntityNotFoundError, StoreBusyError
from partita.storage.database import Database
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Insert
from partita.tables.sqlite_store import SqliteTableStore

TABLE = "Work"


class SlowSync(Watcher):
    """Holds every sync of the log while the gate is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.is_waiting = threading.Event()
        self.syncs = 0

    def before_sync(self, file: str) -> int:
        if file == "log":
            self.is_waiting.set()
            assert self.gate.wait(60)
            self.syncs += 1
        return 0

    def shut(self) -> None:
        self.gate.clear()
        self.is_waiting.clear()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.is_waiting.wait, 60)


@pytest.fixture
def disk() -> Iterator[tuple[SlowSync, str]]:
    watcher = SlowSync()
    with registered(watcher) as vfs:
        yield watcher, vfs


@pytest.fixture
async def engine(tmp_path: Path, disk: tuple[SlowSync, str]) -> AsyncIterator[TableEngine]:
    opened = await Database.open(tmp_path / "a", vfs=disk[1])
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)
    yield engine
    disk[0].gate.set()
    await engine.close()


async def insert(engine: TableEngine, number: int) -> None:
    await engine.run(TABLE, EntityGroup([Insert(EntityKey("p", f"{number}"), {"N": number})]))


async def is_there(engine: TableEngine, number: int) -> bool:
    try:
        await engine.get(TABLE, EntityKey("p", f"{number}"))
    except EntityNotFoundError:
        return False
    return True


async def turns() -> None:
    """Let tasks go on as far as they can while the disk is held; no time decides how far."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_write_is_neither_acknowledged_nor_seen_before_its_sync(
    engine: TableEngine, disk: tuple[SlowSync, str]
) -> None:
    disk[0].shut()
    writing = asyncio.create_task(insert(engine, 1))
    await disk[0].reached()

    assert not await is_there(engine, 1)
    assert not writing.done()

    disk[0].gate.set()
    await writing
    assert await is_there(engine, 1)


async def test_a_refusal_that_rests_on_another_write_waits_for_its_sync(
    engine: TableEngine, disk: tuple[SlowSync, str]
) -> None:
    disk[0].shut()
    first = asyncio.create_task(insert(engine, 1))
    second = asyncio.create_task(insert(engine, 1))
    await disk[0].reached()

    assert not second.done()

    disk[0].gate.set()
    await first
    with pytest.raises(EntityExistsError):
        await second


async def test_writes_that_wait_share_one_sync(
    engine: TableEngine, disk: tuple[SlowSync, str]
) -> None:
    disk[0].shut()
    first = asyncio.create_task(insert(engine, 0))
    await disk[0].reached()
    before = disk[0].syncs
    others = [asyncio.create_task(insert(engine, number)) for number in range(1, 50)]
    await turns()

    disk[0].gate.set()
    await asyncio.gather(first, *others)

    assert disk[0].syncs - before == 2


async def test_a_cancelled_writer_leaves_its_group_whole(
    engine: TableEngine, disk: tuple[SlowSync, str]
) -> None:
    disk[0].shut()
    writing = [asyncio.create_task(insert(engine, number)) for number in range(5)]
    await disk[0].reached()

    writing[2].cancel()
    await asyncio.sleep(0)
    disk[0].gate.set()
    await asyncio.gather(*writing, return_exceptions=True)

    assert writing[2].cancelled()
    assert [await is_there(engine, number) for number in range(5)] == [True] * 5


async def test_a_writer_cancelled_before_its_turn_writes_nothing(
    engine: TableEngine, disk: tuple[SlowSync, str]
) -> None:
    disk[0].shut()
    first = asyncio.create_task(insert(engine, 1))
    await disk[0].reached()
    second = asyncio.create_task(insert(engine, 2))
    third = asyncio.create_task(insert(engine, 3))
    await turns()

    second.cancel()
    disk[0].gate.set()
    await asyncio.gather(first, third)

    assert not await is_there(engine, 2)
    assert await is_there(engine, 3)


async def test_closing_finishes_the_commit_under_way_and_refuses_the_rest(
    tmp_path: Path, disk: tuple[SlowSync, str]
) -> None:
    opened = await Database.open(tmp_path / "b", vfs=disk[1])
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)
    disk[0].shut()
    accepted = asyncio.create_task(insert(engine, 1))
    await disk[0].reached()
    closing = asyncio.create_task(engine.close())
    await turns()

    with pytest.raises(StoreBusyError):
        await insert(engine, 2)
    disk[0].gate.set()
    await asyncio.gather(accepted, closing)

    opened = await Database.open(tmp_path / "b")
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    assert await is_there(engine, 1)
    await engine.close()
