import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from crash.live import GoneError, Ledger, WireClient, serving
from crash.shim_vfs import Watcher, registered
from partita.clock import SystemClock
from partita.errors import PartitaError, StoreStoppedError
from partita.storage import database
from partita.storage.database import Database
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import Delete, EntityGroup, Insert
from partita.tables.sqlite_store import SqliteTableStore

TABLE = "Work"


class _SyncError(apsw.IOError):
    extendedresult = apsw.SQLITE_IOERR_FSYNC


class FailingSync(Watcher):
    """Fails the next sync of one file, once, when it is armed."""

    armed: str | None = None
    failed = 0

    def before_sync(self, file: str) -> int:
        if file == self.armed:
            self.armed = None
            self.failed += 1
            raise _SyncError("the disk does not answer")
        return 0


@pytest.fixture
def disk() -> Iterator[tuple[FailingSync, str]]:
    watcher = FailingSync()
    with registered(watcher) as vfs:
        yield watcher, vfs


async def an_engine(folder: Path, vfs: str | None = None) -> TableEngine:
    opened = await Database.open(folder, vfs=vfs)
    return TableEngine(await SqliteTableStore.open(opened, SystemClock()))


async def insert(engine: TableEngine, number: int) -> None:
    await engine.run(TABLE, EntityGroup([Insert(EntityKey("p", f"{number}"), {"N": number})]))


async def test_after_a_failed_sync_no_change_is_acknowledged_and_reads_go_on(
    tmp_path: Path, disk: tuple[FailingSync, str]
) -> None:
    watcher, vfs = disk
    engine = await an_engine(tmp_path / "a", vfs)
    assert isinstance(engine.store, SqliteTableStore)
    told: list[BaseException] = []
    engine.store.database.on_failure = told.append
    await engine.create_table(TABLE)
    await insert(engine, 1)

    watcher.armed = "log"
    with pytest.raises(StoreStoppedError):
        await insert(engine, 2)

    assert watcher.failed == 1
    assert len(told) == 1
    assert not engine.store.database.is_writable
    for number in (2, 3):
        with pytest.raises(StoreStoppedError):
            await insert(engine, number)
    with pytest.raises(StoreStoppedError):
        await engine.run(TABLE, EntityGroup([Delete(EntityKey("p", "1"))]))
    with pytest.raises(StoreStoppedError):
        await engine.create_table("Other")
    assert (await engine.get(TABLE, EntityKey("p", "1"))).properties() == {"N": 1}
    await engine.close()


async def test_all_changes_of_the_group_whose_sync_failed_are_refused(
    tmp_path: Path, disk: tuple[FailingSync, str]
) -> None:
    watcher, vfs = disk
    engine = await an_engine(tmp_path / "a", vfs)
    await engine.create_table(TABLE)

    watcher.armed = "log"
    outcomes = await asyncio.gather(
        *(insert(engine, number) for number in range(50)), return_exceptions=True
    )

    assert {type(outcome) for outcome in outcomes} == {StoreStoppedError}
    await engine.close()


async def test_a_restart_after_a_failed_sync_finds_what_was_acknowledged(
    tmp_path: Path, disk: tuple[FailingSync, str]
) -> None:
    watcher, vfs = disk
    engine = await an_engine(tmp_path / "a", vfs)
    await engine.create_table(TABLE)
    for number in range(10):
        await insert(engine, number)
    watcher.armed = "log"
    with pytest.raises(StoreStoppedError):
        await insert(engine, 10)
    await engine.close()

    engine = await an_engine(tmp_path / "a")
    for number in range(10):
        await engine.get(TABLE, EntityKey("p", f"{number}"))
    await insert(engine, 11)
    await engine.close()


async def test_closing_after_a_failed_sync_leaves_the_files_as_they_are(
    tmp_path: Path, disk: tuple[FailingSync, str]
) -> None:
    watcher, vfs = disk
    engine = await an_engine(tmp_path / "a", vfs)
    await engine.create_table(TABLE)
    await insert(engine, 1)
    watcher.armed = "log"
    with pytest.raises(StoreStoppedError):
        await insert(engine, 2)
    main, log = tmp_path / "a" / "account.sqlite", tmp_path / "a" / "account.sqlite-wal"
    before = main.read_bytes(), log.read_bytes()

    await engine.close()

    assert (main.read_bytes(), log.read_bytes()) == before


async def test_a_failed_sync_of_a_checkpoint_stops_the_store_too(
    tmp_path: Path, disk: tuple[FailingSync, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", 100_000)
    watcher, vfs = disk
    engine = await an_engine(tmp_path / "a", vfs)
    await engine.create_table(TABLE)

    watcher.armed = "main"
    acknowledged = await insert_until_stopped(engine)
    await engine.close()

    assert watcher.failed == 1
    engine = await an_engine(tmp_path / "a")
    for number in range(acknowledged):
        await engine.get(TABLE, EntityKey("p", f"{number}"))
    await engine.close()


async def insert_until_stopped(engine: TableEngine) -> int:
    for number in range(1000):
        try:
            await insert(engine, number)
        except StoreStoppedError:
            return number
    pytest.fail("the store goes on")


async def test_a_purge_that_meets_a_failed_sync_does_not_hinder_the_close(
    tmp_path: Path, disk: tuple[FailingSync, str]
) -> None:
    watcher, vfs = disk
    engine = await an_engine(tmp_path / "a", vfs)
    await engine.create_table(TABLE)
    await insert(engine, 1)
    await engine.delete_table(TABLE)
    watcher.armed = "log"
    while not watcher.failed:  # noqa: ASYNC110 - the watcher knows no loop
        await asyncio.sleep(0.01)

    await engine.close()


async def test_a_change_that_loses_the_open_transaction_does_not_stop_the_store(
    tmp_path: Path,
) -> None:
    opened = await Database.open(tmp_path / "a")
    opened.prepare("test", 1, "CREATE TABLE number (value INTEGER)")

    async def write(value: int) -> None:
        async with opened.change() as connection:
            connection.execute("INSERT INTO number VALUES (?)", (value,))

    async def lose() -> None:
        async with opened.change() as connection:
            connection.execute("ROLLBACK")
            raise apsw.FullError("as SQLite does when it cannot spill its cache")

    outcomes = await asyncio.gather(write(1), lose(), return_exceptions=True)
    assert all(isinstance(outcome, PartitaError) for outcome in outcomes)
    await write(2)

    assert opened.is_writable
    assert opened.reader.execute("SELECT value FROM number").fetchall() == [(2,)]
    await opened.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="only strace can fail a real sync")
@pytest.mark.parametrize("when", [24, 40])  # of each thread; creating the account takes 18
def test_a_server_whose_disk_fails_to_sync_stops_and_recovers(tmp_path: Path, when: int) -> None:
    faults = f"inject=fsync,fdatasync:error=EIO:when={when}+"
    trace = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=fsync,fdatasync"]
    ledger = Ledger()
    with serving(tmp_path / "store", [*trace, "-e", faults]) as server:
        client = WireClient(server.port)
        client.create_table()
        refused = acknowledged_later = 0
        try:
            while True:
                is_acknowledged = ledger.work(client, 0)
                refused += not is_acknowledged
                acknowledged_later += is_acknowledged and refused > 0
        except GoneError:
            client.close()
        deadline = time.monotonic() + 60
        while server.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.wait() not in (0, None)
    assert acknowledged_later == 0
    assert ledger.acknowledged > when / 2
    assert "EIO" in (tmp_path / "trace").read_text()

    with serving(tmp_path / "store") as server:
        client = WireClient(server.port)
        assert ledger.check(client) == []
        assert ledger.work(client, 0)
        client.close()
