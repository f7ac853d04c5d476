"""A dropped table of many entities gives its space back to the disk, while others are used."""

import asyncio
from pathlib import Path

import pytest

from partita.clock import SystemClock
from partita.storage import vacuum
from partita.storage.database import DATABASE_FILE, Database
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Insert
from partita.tables.paging import KeyRange
from partita.tables.sqlite_store import SqliteTableStore

GROUPS = 40


def a_group(partition: int) -> EntityGroup:
    keys = [EntityKey(f"{partition:04}", f"{row:03}") for row in range(100)]
    return EntityGroup([Insert(key, {"Text": "x" * 1500}) for key in keys])


async def test_file_becomes_shorter_after_a_table_of_many_entities_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(vacuum, "START_BYTES", 256 * 1024)
    monkeypatch.setattr(vacuum, "KEEP_BYTES", 64 * 1024)
    file = tmp_path / DATABASE_FILE
    database = await Database.open(tmp_path)
    engine = TableEngine(await SqliteTableStore.open(database, SystemClock()))
    await engine.create_table("Dropped")
    await engine.create_table("Kept")
    for partition in range(GROUPS):
        await engine.run("Dropped", a_group(partition))
    await engine.run("Kept", a_group(0))
    database.checkpoint_soon()
    while file.stat().st_size < GROUPS * 150_000:  # noqa: ASYNC110 - a thread does it
        await asyncio.sleep(0.01)
    before = file.stat().st_size

    await engine.delete_table("Dropped")
    while file.stat().st_size > before // 4:  # noqa: ASYNC110 - timers and threads do it
        await asyncio.sleep(0.01)

    found = await engine.store.statistics(await engine.get_table("Kept"), KeyRange())
    assert found.entities == 100
    assert database.reader.pragma("integrity_check") == "ok"
    await engine.close()
