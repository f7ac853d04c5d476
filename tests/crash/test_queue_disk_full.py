"""A full disk takes no more messages, but consumers drain it, and then puts go on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crash.shim_vfs import registered
from crash.test_disk_full import MEBIBYTE, SmallDisk
from partita.clock import SystemClock
from partita.errors import StoreFullError
from partita.queues.engine import QueueEngine
from partita.queues.sqlite_store import SqliteQueueStore
from partita.storage.database import Database
from partita.storage.disk_reserve import DiskReserve
from partita.storage.store_clock import StoreClock

TEXT = "x" * 60_000


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueEngine]:
    disk = SmallDisk(tmp_path / "account", 20 * MEBIBYTE)
    monkeypatch.setattr(DiskReserve, "free_bytes", lambda _database: disk.free)
    with registered(disk) as vfs:
        database = await Database.open(disk.folder, vfs=vfs)
        store = await SqliteQueueStore.open(database, StoreClock(database, SystemClock()))
        engine = QueueEngine(store)
        await engine.create_queue("work", {})
        yield engine
        await engine.close()
        await database.close()


async def fill(engine: QueueEngine) -> int:
    """Put until the disk is full; return how many were taken."""
    for number in range(10_000):
        try:
            await engine.put("work", TEXT)
        except StoreFullError:
            return number
    raise AssertionError("the small disk has room without end")


async def test_a_full_disk_takes_no_message_and_shows_all_that_it_took(engine: QueueEngine) -> None:
    taken = await fill(engine)

    with pytest.raises(StoreFullError):
        await engine.put("work", TEXT)
    assert taken > 20
    assert (await engine.get_queue("work")).message_count == taken
    assert len(await engine.peek("work", limit=32)) == min(taken, 32)


async def test_consumers_drain_a_full_disk_until_puts_go_on(engine: QueueEngine) -> None:
    taken = await fill(engine)

    drained = 0
    while messages := await engine.get("work", limit=32, hidden_seconds=3600):
        for message in messages:
            await engine.delete("work", message.id, message.receipt)
            drained += 1
    assert drained == taken
    await engine.put("work", "again")
    assert [message.text for message in await engine.get("work")] == ["again"]


async def test_a_clear_empties_a_full_disk(engine: QueueEngine) -> None:
    await fill(engine)

    await engine.clear("work")
    await engine.store.sweep()

    await engine.put("work", "again")
    assert [message.text for message in await engine.get("work")] == ["again"]
