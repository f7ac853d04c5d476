import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest

from crash.shim_vfs import Watcher, registered
from partita.clock import SystemClock
from partita.errors import StoreFullError
from partita.storage import database, vacuum
from partita.storage.database import Database
from partita.storage.disk_reserve import RESERVE_FILE, DiskReserve
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import Delete, EntityGroup, Insert
from partita.tables.paging import KeyRange
from partita.tables.sqlite_store import SqliteTableStore

TABLE = "Work"
MEBIBYTE = 1024 * 1024
TEXT = "x" * 20_000


class SmallDisk(Watcher):
    """A disk with room for so many bytes, the reserve among them."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder = folder
        self.capacity = capacity
        self._sizes: dict[str, int] = {}

    @property
    def free(self) -> int:
        reserve = self.folder / RESERVE_FILE
        kept = reserve.stat().st_size if reserve.exists() else 0
        return max(0, self.capacity - kept - sum(self._sizes.values()))

    def before_write(self, file: str, end: int) -> None:
        if end - self._sizes.get(file, 0) > self.free and end > self._sizes.get(file, 0):
            raise apsw.FullError("no room on this small disk")

    def after_write(self, file: str, offset: int, content: bytes) -> None:
        self._sizes[file] = max(self._sizes.get(file, 0), offset + len(content))

    def after_truncate(self, file: str, size: int) -> None:
        self._sizes[file] = size

    def after_delete(self, file: str) -> None:
        self._sizes.pop(file, None)


class Place:
    """A folder on a disk that is soon full, and a way to give it more room."""

    def __init__(self, folder: Path, vfs: str | None, give_room: Callable[[], None]) -> None:
        self.folder = folder
        self.vfs = vfs
        self.give_room = give_room

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[TableEngine]:
        opened = await Database.open(self.folder, vfs=self.vfs)
        engine = TableEngine(await SqliteTableStore.open(opened, SystemClock()))
        try:
            yield engine
        finally:
            await engine.close()


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    disk = SmallDisk(tmp_path / "account", 20 * MEBIBYTE)
    monkeypatch.setattr(DiskReserve, "free_bytes", lambda self: disk.free)

    def give_room() -> None:
        disk.capacity += 40 * MEBIBYTE

    with registered(disk) as vfs:
        yield Place(disk.folder, vfs, give_room)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Place]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root and a kernel that lets it")

    def give_room() -> None:
        larger = ["mount", "-o", "remount,size=60m", str(tmp_path)]
        subprocess.run(larger, capture_output=True, check=True)

    yield Place(tmp_path / "account", None, give_room)
    subprocess.run(["umount", "-l", str(tmp_path)], capture_output=True, check=True)


@pytest.fixture(params=["small_disk", pytest.param("tmpfs", marks=pytest.mark.proof)])
def place(request: pytest.FixtureRequest) -> Place:
    chosen: Place = request.getfixturevalue(request.param)
    return chosen


def a_key(number: int) -> EntityKey:
    return EntityKey("p", f"{number:06}")


async def insert(engine: TableEngine, number: int) -> None:
    await engine.run(TABLE, EntityGroup([Insert(a_key(number), {"Text": TEXT})]))


async def fill(engine: TableEngine, start: int = 0) -> int:
    """Insert until the disk is full; return the number of the first that was refused."""
    number = start
    while True:
        try:
            await insert(engine, number)
        except StoreFullError:
            return number
        number += 1


async def count(engine: TableEngine) -> int:
    table = await engine.get_table(TABLE)
    return (await engine.store.statistics(table, KeyRange())).entities


async def test_reads_go_on_when_the_disk_is_full(place: Place) -> None:
    async with place.engine() as engine:
        await engine.create_table(TABLE)
        refused = await fill(engine)

        assert refused > 100
        for number in range(refused):
            await engine.get(TABLE, a_key(number))
        assert await count(engine) == refused


async def test_writes_stay_refused_while_the_disk_is_full(place: Place) -> None:
    async with place.engine() as engine:
        await engine.create_table(TABLE)
        refused = await fill(engine)

        for _ in range(20):
            with pytest.raises(StoreFullError):
                await insert(engine, refused)
        assert await count(engine) == refused


async def test_every_entity_can_be_deleted_on_a_full_disk(place: Place) -> None:
    async with place.engine() as engine:
        await engine.create_table(TABLE)
        refused = await fill(engine)

        for number in range(refused):
            await engine.run(TABLE, EntityGroup([Delete(a_key(number))]))

        assert await count(engine) == 0


@pytest.mark.proof
async def test_deleted_entities_make_room_for_others(place: Place) -> None:
    async with place.engine() as engine:
        await engine.create_table(TABLE)
        refused = await fill(engine)
        for number in range(refused):
            await engine.run(TABLE, EntityGroup([Delete(a_key(number))]))

        again = await fill(engine)

        assert again > refused // 2
        for number in range(again):
            await engine.run(TABLE, EntityGroup([Delete(a_key(number))]))


async def test_a_table_can_be_dropped_on_a_full_disk(place: Place) -> None:
    async with place.engine() as engine:
        await engine.create_table(TABLE)
        await fill(engine)

        await engine.delete_table(TABLE)

        assert await engine.store.find_table(TABLE) is None


@pytest.mark.proof
async def test_a_dropped_table_gives_its_space_back_to_a_full_disk(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("START_BYTES", "KEEP_BYTES"):
        monkeypatch.setattr(vacuum, name, 0)
    monkeypatch.setattr(vacuum, "LOOK_SECONDS", 0.02)
    file = place.folder / database.DATABASE_FILE
    async with place.engine() as engine:
        await engine.create_table("Kept")
        await engine.create_table(TABLE)
        await fill(engine)
        before = file.stat().st_size
        await engine.delete_table(TABLE)
        while file.stat().st_size > before // 2:  # noqa: ASYNC110 - a timer and threads do it
            await asyncio.sleep(0.02)
        await engine.run("Kept", EntityGroup([Insert(a_key(1), {"Text": TEXT})]))

        assert [each.name for each in (await engine.list_tables(None)).tables] == ["Kept"]


@pytest.mark.proof
async def test_writes_resume_without_a_restart_when_there_is_room(place: Place) -> None:
    async with place.engine() as engine:
        await engine.create_table(TABLE)
        refused = await fill(engine)

        place.give_room()

        await insert(engine, refused)
        more = await fill(engine, refused + 1)
        assert more > 2 * refused


async def test_nothing_acknowledged_is_lost_on_a_full_disk(place: Place) -> None:
    async with place.engine() as engine:
        await engine.create_table(TABLE)
        refused = await fill(engine)

    async with place.engine() as engine:
        assert isinstance(engine.store, SqliteTableStore)
        assert engine.store.database.reader.pragma("integrity_check") == "ok"
        assert await count(engine) == refused


async def test_a_store_opens_and_deletes_on_a_disk_without_a_byte_left(tmpfs: Place) -> None:
    async with tmpfs.engine() as engine:
        await engine.create_table(TABLE)
        for number in range(200):
            await insert(engine, number)
    fill_with_junk(tmpfs.folder.parent / "junk")

    async with tmpfs.engine() as engine:
        with pytest.raises(StoreFullError):
            await fill_strictly(engine)
        for number in range(200):
            await engine.run(TABLE, EntityGroup([Delete(a_key(number))]))
        assert await count(engine) == 0


def fill_with_junk(path: Path) -> None:
    with path.open("wb", buffering=0) as junk, contextlib.suppress(OSError):
        while True:
            junk.write(bytes(4096))


async def fill_strictly(engine: TableEngine) -> None:
    for number in range(1000, 2000):
        await insert(engine, number)


async def test_a_full_disk_found_by_a_checkpoint_is_not_a_failed_sync(
    small_disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ROOM_SHORT_BYTES", 0)
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", MEBIBYTE)
    async with small_disk.engine() as engine:
        await engine.create_table(TABLE)
        refused = await fill(engine)
        for number in range(refused):
            await engine.run(TABLE, EntityGroup([Delete(a_key(number))]))

        small_disk.give_room()

        await insert(engine, 0)
