import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from crash.power_cut import Choose, Disk
from crash.recording_vfs import Trace
from crash.shim_vfs import registered
from crash.workload import write_image
from partita.clock import ManualClock, SystemClock
from partita.errors import StoreLockedError
from partita.storage import database
from partita.storage.database import DATABASE_FILE, Database
from partita.tables import sqlite_store
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.filters import parse
from partita.tables.operations import EntityGroup, Insert, InsertOrReplace
from partita.tables.paging import KeyRange
from partita.tables.sqlite_store import SqliteTableStore

TABLE = "Work"
KIBIBYTE = 1024


def a_group(partition: int, number: int) -> EntityGroup:
    return EntityGroup(
        [
            InsertOrReplace(EntityKey(f"p{partition}", f"{row}"), {"N": number, "T": "x" * 2000})
            for row in range(20)
        ]
    )


async def keep_writing(engine: TableEngine, partition: int, rounds: int) -> None:
    for number in range(rounds):
        await engine.run(TABLE, a_group(partition, number))


async def keep_scanning(engine: TableEngine) -> None:
    wanted = parse("N lt 0")
    while True:
        await engine.query(TABLE, wanted, within=KeyRange())


async def largest_log(folder: Path) -> int:
    largest = 0
    while True:
        largest = max(largest, (folder / (DATABASE_FILE + "-wal")).stat().st_size)
        try:
            await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            return largest


@pytest.mark.parametrize("has_reader", [False, True])
async def test_the_log_stays_bounded_under_sustained_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_reader: bool
) -> None:
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", 1024 * KIBIBYTE)
    monkeypatch.setattr(database, "WAL_HOLD_BYTES", 4096 * KIBIBYTE)
    opened = await Database.open(tmp_path)
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)
    watching = asyncio.create_task(largest_log(tmp_path))
    scanning = [asyncio.create_task(keep_scanning(engine)) for _ in range(2 * has_reader)]

    await asyncio.gather(*(keep_writing(engine, partition, 60) for partition in range(8)))

    for task in (*scanning, watching):
        task.cancel()
    largest = await watching
    await asyncio.gather(*scanning, return_exceptions=True)
    size = (tmp_path / DATABASE_FILE).stat().st_size
    await engine.close()
    assert size > 100 * KIBIBYTE  # checkpoints have carried pages over
    # Twice the bound, and what readers that overlap the restart let through; without it over 50 MiB.
    assert largest < 16 * 1024 * KIBIBYTE


async def test_the_log_is_held_when_checkpoints_do_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", 256 * KIBIBYTE)
    monkeypatch.setattr(database, "WAL_HOLD_BYTES", 1024 * KIBIBYTE)
    opened = await Database.open(tmp_path)
    checkpoint = opened._checkpoint

    def slow_checkpoint(gives_space: bool) -> tuple[int, int]:
        asyncio.run(asyncio.sleep(0.2))
        return checkpoint(gives_space)

    monkeypatch.setattr(opened, "_checkpoint", slow_checkpoint)
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)
    watching = asyncio.create_task(largest_log(tmp_path))

    await asyncio.gather(*(keep_writing(engine, partition, 20) for partition in range(8)))

    watching.cancel()
    largest = await watching
    await engine.close()
    assert largest < 5 * 1024 * KIBIBYTE


async def test_a_closed_store_has_an_empty_log(tmp_path: Path) -> None:
    engine = TableEngine(await SqliteTableStore.open(await Database.open(tmp_path), SystemClock()))
    await engine.create_table(TABLE)
    await engine.run(TABLE, a_group(0, 0))

    await engine.close()

    log = tmp_path / (DATABASE_FILE + "-wal")
    assert not log.exists() or log.stat().st_size == 0


async def test_the_purge_of_a_dropped_table_goes_on_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "PURGE_ENTITIES", 20)
    monkeypatch.setattr(sqlite_store, "PURGE_PAUSE_SECONDS", 0)
    trace = Trace()
    with registered(trace) as vfs:
        opened = await Database.open(tmp_path / "run", vfs=vfs)
        store = await SqliteTableStore.open(opened, SystemClock())
        engine = TableEngine(store)
        await engine.create_table(TABLE)
        for partition in range(20):
            await engine.run(TABLE, a_group(partition, partition))
        await engine.delete_table(TABLE)
        dropped = trace.position
        await engine.create_table(TABLE)
        await engine.run(TABLE, EntityGroup([Insert(EntityKey("new", "1"), {"N": 1})]))
        told = trace.position
        await purged(opened)
        await engine.close()

    disk = Disk()
    left_to_purge = []
    for position, event in enumerate(trace.events, start=1):
        disk.advance(event)
        if position < dropped or position % 20:
            continue
        folder = tmp_path / f"cut{position}"
        write_image(folder, disk.after_cut(Choose(random.Random(0), share=0.0)))
        left_to_purge.append(await check_purge(folder, is_told=position >= told))
    assert max(left_to_purge) > 100
    assert min(left_to_purge) == 0


async def purged(opened: Database) -> None:
    while opened.reader.execute("SELECT count(*) FROM dropped").get:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def check_purge(folder: Path, *, is_told: bool) -> int:
    """Return how many entities of the dropped table the crash had left."""
    opened = await Database.open(folder)
    left: int = opened.reader.execute("SELECT count(*) FROM entity WHERE pk <> 'new'").get
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    if is_told:
        _, page = await engine.query(TABLE, None, within=KeyRange())
        assert [entity.partition_key for entity in page.entities] == ["new"]
    await purged(opened)
    assert opened.reader.execute("SELECT count(*) FROM entity WHERE pk <> 'new'").get == 0
    await engine.close()
    return left


async def test_etags_rise_when_the_clock_goes_back_across_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    ticks: list[int] = []
    for _ in range(5):
        engine = TableEngine(await SqliteTableStore.open(await Database.open(tmp_path), clock))
        if not ticks:
            await engine.create_table(TABLE)
        for _ in range(3):
            clock.advance(0.3)
            ticks.append(await write_once(engine))
        clock.jump(-3600)
        ticks.append(await write_once(engine))
        await engine.close()

    assert ticks == sorted(set(ticks))


async def test_etags_rise_when_the_clock_jumps_inside_a_transaction(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = TableEngine(await SqliteTableStore.open(await Database.open(tmp_path), clock))
    await engine.create_table(TABLE)

    async def write_later() -> int:
        clock.advance(3600)
        return await write_once(engine, "later")

    written = await asyncio.gather(write_once(engine), write_later())
    await engine.close()
    clock.jump(-7200)
    engine = TableEngine(await SqliteTableStore.open(await Database.open(tmp_path), clock))
    again = await write_once(engine, "later")
    await engine.close()

    assert again > max(written)


async def write_once(engine: TableEngine, row: str = "r") -> int:
    outcome = await engine.run(TABLE, EntityGroup([InsertOrReplace(EntityKey("p", row), {})]))
    (entity,) = outcome.entities
    assert entity is not None
    return entity.ticks


HOLDER = """
import asyncio, os, sys
from pathlib import Path
from partita.storage.database import Database

async def hold():
    opened = await Database.open(Path(sys.argv[1]))
    print(os.getpid(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await opened.close()

asyncio.run(hold())
"""


async def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    pid = holder.stdout.readline().strip()

    with pytest.raises(StoreLockedError) as refused:
        await Database.open(tmp_path)

    assert pid in refused.value.message
    assert refused.value.facts["holder"] == pid
    holder.communicate("")
    await (await Database.open(tmp_path)).close()
