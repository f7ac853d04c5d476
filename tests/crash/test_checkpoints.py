import asyncio
import random
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import apsw
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


class LogTrace:
    """What a database did to its log, in order: commits and checkpoints, each with its figures."""

    def __init__(self, opened: Database) -> None:
        self.events: list[tuple[str, int]] = []
        self._commit_ended, self._checkpoint_ended = opened._commit_ended, opened._checkpoint_ended
        self._opened = opened
        opened._commit_ended = self._note_commit  # type: ignore[method-assign]
        opened._checkpoint_ended = self._note_checkpoint  # type: ignore[method-assign]

    def _note_commit(self, error: BaseException | None) -> None:
        self.events.append(("commit", self._opened.wal_bytes))
        self._commit_ended(error)

    def _note_checkpoint(self, ended: "asyncio.Future[tuple[int, int]]") -> None:
        pages, carried = ended.result()
        self.events.append(("checkpoint", pages - carried))
        self._checkpoint_ended(ended)

    def unheld(self) -> list[int]:
        """Return the sizes of logs beyond twice the bound that grew without a checkpoint."""
        return [
            size
            for (kind, size), (later, _) in pairwise(self.events)
            if kind == later == "commit" and size >= 2 * database.WAL_HOLD_BYTES
        ]


def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", 256 * KIBIBYTE)
    monkeypatch.setattr(database, "WAL_HOLD_BYTES", 1024 * KIBIBYTE)


@pytest.mark.parametrize("has_reader", [False, True])
async def test_no_write_follows_a_long_log_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_reader: bool
) -> None:
    small_log(monkeypatch)
    opened = await Database.open(tmp_path)
    trace = LogTrace(opened)
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)
    scanning = [asyncio.create_task(keep_scanning(engine)) for _ in range(2 * has_reader)]

    await asyncio.gather(*(keep_writing(engine, partition, 20) for partition in range(8)))

    for task in scanning:
        task.cancel()
    await asyncio.gather(*scanning, return_exceptions=True)
    size = (tmp_path / DATABASE_FILE).stat().st_size
    await engine.close()
    assert size > 100 * KIBIBYTE  # checkpoints have carried pages over
    assert trace.unheld() == []


async def test_the_log_is_held_when_checkpoints_do_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_log(monkeypatch)
    opened = await Database.open(tmp_path)
    trace = LogTrace(opened)
    checkpoint, may_go_on = opened._checkpoint, threading.Event()

    def stopped_checkpoint(gives_space: bool) -> tuple[int, int]:
        assert may_go_on.wait(60)
        return checkpoint(gives_space)

    monkeypatch.setattr(opened, "_checkpoint", stopped_checkpoint)
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)
    writing = asyncio.gather(*(keep_writing(engine, partition, 20) for partition in range(8)))
    while not opened._is_held and not writing.done():  # noqa: ASYNC110 - a flag has no events
        await asyncio.sleep(0.001)
    held = list(trace.events)

    for _ in range(100):
        await asyncio.sleep(0)
    assert trace.events == held
    sizes = [size for _, size in held]
    assert sizes[-2] < 2 * database.WAL_HOLD_BYTES <= sizes[-1]
    may_go_on.set()
    await writing
    await engine.close()
    assert trace.unheld() == []


async def test_a_log_that_nothing_holds_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the check: no checkpoint ever runs."""
    small_log(monkeypatch)
    opened = await Database.open(tmp_path)
    trace = LogTrace(opened)
    monkeypatch.setattr(opened, "_checkpoint_if_due", lambda: None)
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)

    await asyncio.gather(*(keep_writing(engine, partition, 20) for partition in range(8)))

    await engine.close()
    assert len(trace.unheld()) > 1


async def test_a_reader_lets_the_log_grow_by_one_commit_for_each_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that a reader uses cannot be restarted; it is as soon as the reader has ended."""
    small_log(monkeypatch)
    opened = await Database.open(tmp_path)
    trace = LogTrace(opened)
    engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
    await engine.create_table(TABLE)
    reader = apsw.Connection(str(tmp_path / DATABASE_FILE), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entity").fetchall()

    number = 0
    while opened.wal_bytes < 3 * database.WAL_HOLD_BYTES:
        number += 1
        await engine.run(TABLE, a_group(number % 8, number))
    assert trace.unheld() == []
    assert all(left > 0 for kind, left in trace.events if kind == "checkpoint")

    reader.close()
    await engine.run(TABLE, a_group(0, 0))  # its checkpoint carries everything
    await engine.run(TABLE, a_group(0, 1))
    assert opened.wal_bytes < database.WAL_HOLD_BYTES
    await engine.close()


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
