"""The collector against uploads and readers, in orders that the test decides."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName, Conditions, Terms
from partita.blobs.store.content_claims import Claims
from partita.blobs.store.files import FileSystem, FolderFiles
from partita.blobs.store.garbage_collector import Pause, no_pause
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import ManualClock
from partita.errors import DamageError, PartitaError, StoreFullError, StoreStoppedError
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from support.repeats import repeat
from support.sqlite_blobs import store_of

SEEDS = repeat(16, 40, 400)
CONTENT = b"0123456789abcdef" * 8192
OTHER = b"fedcba9876543210" * 8192


class Pauses:
    """Holds whoever comes to a place until the test lets go."""

    def __init__(self, *places: str) -> None:
        self._places = set(places)
        self.arrived = asyncio.Event()
        self._go_on = asyncio.Event()

    async def __call__(self, place: str) -> None:
        if place in self._places:
            self._places.discard(place)
            self.arrived.set()
            await self._go_on.wait()

    def go_on(self) -> None:
        self._go_on.set()


@asynccontextmanager
async def opened(folder: Path | None, pause: Pause = no_pause) -> AsyncIterator[BlobEngine]:
    database = await Database.open(folder)
    clock = StoreClock(database, ManualClock())
    store = await SqliteBlobStore.open(database, clock, pause=pause)
    engine = BlobEngine(store)
    try:
        if await engine.containers.find_container("here") is None:
            await engine.containers.create_container("here")
        yield engine
    finally:
        await engine.close()
        await database.close()


def blob(name: str) -> BlobName:
    return BlobName("here", name)


async def read(engine: BlobEngine, name: str) -> bytes:
    opened = await engine.open_blob(blob(name))
    try:
        return b"".join([part async for part in opened.content])
    finally:
        await opened.content.close()


async def turns() -> None:
    """Give what must not happen some time to happen."""
    for _ in range(50):
        await asyncio.sleep(0.001)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what a thread beside this loop does."""
    while not is_so():  # noqa: ASYNC110 - the collector tells nobody
        await asyncio.sleep(0.001)


def files_of(engine: BlobEngine) -> list[bytes]:
    return [digest for part in store_of(engine).files.digests() for digest in part]


@pytest.mark.parametrize("place", ["claimed", "placed"])
async def test_an_upload_under_way_keeps_its_file(tmp_path: Path, place: str) -> None:
    pauses = Pauses()
    async with opened(tmp_path, pauses) as engine:
        await engine.put_blob(blob("old"), CONTENT)
        pauses._places.add(place)
        upload = asyncio.ensure_future(engine.put_blob(blob("new"), CONTENT))
        await pauses.arrived.wait()

        await engine.delete_blob(blob("old"))
        await store_of(engine).collector.collect()
        await store_of(engine).collector.sweep()
        pauses.go_on()
        await upload
        await store_of(engine).collector.collect()

        assert await read(engine, "new") == CONTENT
        assert len(files_of(engine)) == 1


@pytest.mark.parametrize("place", ["purged", "checked"])
async def test_an_upload_waits_for_a_file_of_its_hash_to_go(tmp_path: Path, place: str) -> None:
    pauses = Pauses()
    async with opened(tmp_path, pauses) as engine:
        await engine.put_blob(blob("old"), CONTENT)
        pauses._places.add(place)
        if place == "purged":
            await engine.delete_blob(blob("old"))
        else:
            refused = engine.put_blob(
                blob("old"), OTHER, terms=Terms(conditions=Conditions(if_none_match=("*",)))
            )
            with pytest.raises(PartitaError):
                await refused
        await pauses.arrived.wait()
        content = CONTENT if place == "purged" else OTHER

        upload = asyncio.ensure_future(engine.put_blob(blob("new"), content))
        await turns()
        assert not upload.done()
        pauses.go_on()
        await upload
        await store_of(engine).collector.collect()

        assert await read(engine, "new") == content


async def test_a_refused_upload_of_a_content_that_others_have_takes_nothing_away(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as engine:
        await engine.put_blob(blob("a"), CONTENT)

        for name in ("a", "a"):
            with pytest.raises(PartitaError):
                await engine.put_blob(
                    blob(name), CONTENT, terms=Terms(conditions=Conditions(if_none_match=("*",)))
                )
        await store_of(engine).collector.collect()

        assert await read(engine, "a") == CONTENT


async def test_a_reader_keeps_what_was_deleted_until_it_closes(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.put_blob(blob("a"), CONTENT * 8)
        reader = await engine.open_blob(blob("a"))

        await engine.delete_blob(blob("a"))
        await store_of(engine).collector.collect()

        assert len(files_of(engine)) == 1
        assert b"".join([part async for part in reader.content]) == CONTENT * 8
        await reader.content.close()
        await until(lambda: files_of(engine) == [])


async def test_the_collector_goes_on_when_a_reader_ends(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.put_blob(blob("a"), CONTENT)
        reader = await engine.open_blob(blob("a"))
        await engine.delete_blob(blob("a"))
        await turns()

        await reader.content.close()

        await until(lambda: files_of(engine) == [])


async def test_a_start_sweeps_what_no_row_names(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.put_blob(blob("a"), CONTENT)
    stray = tmp_path / "blobs" / "00" / "11" / ("0011" + "ab" * 30)
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"left by a crash")
    half = tmp_path / "blobs" / "incoming" / "half"
    half.write_bytes(b"left by a crash, too")
    foreign = tmp_path / "blobs" / "00" / "11" / "notes.txt"
    foreign.write_bytes(b"not ours")

    async with opened(tmp_path) as engine:
        await until(lambda: not (stray.exists() or half.exists()))

        assert foreign.exists()
        assert await read(engine, "a") == CONTENT


async def work_at_random(engine: BlobEngine, chance: random.Random) -> None:
    """Put, copy, read and delete blobs of two contents, so that hashes come and go."""
    for _ in range(6):
        name = f"b{chance.randrange(3)}"
        content = chance.choice((CONTENT, OTHER))
        try:
            match chance.randrange(5):
                case 0 | 1:
                    await engine.put_blob(blob(name), content)
                case 2:
                    await engine.delete_blob(blob(name))
                case 3:
                    await engine.copies.copy_blob(blob(name), blob(f"b{chance.randrange(3)}"))
                case _:
                    await read(engine, name)
        except DamageError:
            raise
        except PartitaError as error:
            assert error.code == "BlobNotFound"  # noqa: PT017 - only this one is expected
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)


async def run_at_random(seed: int, folder: Path | None = None) -> None:
    """Let several work at once, everybody held for some turns at every place."""
    chance = random.Random(seed)

    async def pause(_place: str) -> None:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)

    async with opened(folder, pause) as engine:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(work_at_random(engine, chance))
            for _ in range(10):
                await asyncio.sleep(0)
                await store_of(engine).collector.sweep()
        await store_of(engine).collector.collect()
        listing = await engine.containers.list_blobs("here")
        contents = {await read(engine, item.name) for item in listing.items}
        assert contents <= {CONTENT, OTHER}
        assert len(files_of(engine)) == len(contents)


async def test_no_order_of_uploads_deletes_and_sweeps_loses_a_content() -> None:
    for seed in range(SEEDS):
        await run_at_random(seed)


async def test_no_order_on_a_real_disk_loses_a_content(tmp_path: Path) -> None:
    for seed in range(SEEDS // 8):
        await run_at_random(seed, tmp_path / str(seed))


class CarelessClaims(Claims):
    """Lets the collector have a hash that an upload holds."""

    def begin_leaving(self, digest: bytes) -> bool:
        if digest in self._leaving:
            return False
        self._leaving[digest] = asyncio.get_running_loop().create_future()
        return True


class ImpatientClaims(Claims):
    """Does not wait for a file that is about to go."""

    async def claim(self, digest: bytes) -> None:
        self._claimed[digest] += 1


async def test_an_upload_whose_claim_does_not_hold_loses_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.blobs.store.sqlite_store.Claims", CarelessClaims)
    pauses = Pauses()
    async with opened(tmp_path, pauses) as engine:
        await engine.put_blob(blob("old"), CONTENT)
        pauses._places.add("placed")
        upload = asyncio.ensure_future(engine.put_blob(blob("new"), CONTENT))
        await pauses.arrived.wait()

        await engine.delete_blob(blob("old"))
        await store_of(engine).collector.collect()
        pauses.go_on()
        await upload

        with pytest.raises(DamageError):
            await read(engine, "new")


async def test_an_upload_that_does_not_wait_loses_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.blobs.store.sqlite_store.Claims", ImpatientClaims)
    pauses = Pauses()
    async with opened(tmp_path, pauses) as engine:
        await engine.put_blob(blob("old"), CONTENT)
        pauses._places.add("purged")
        await engine.delete_blob(blob("old"))
        await pauses.arrived.wait()

        await engine.put_blob(blob("new"), CONTENT)
        pauses.go_on()
        await store_of(engine).collector.collect()

        with pytest.raises(DamageError):
            await read(engine, "new")


class PinlessClaims(Claims):
    """Lets the collector have what somebody reads."""

    def is_pinned(self, content: int) -> bool:
        return False


async def test_a_reader_whose_pin_does_not_hold_loses_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.blobs.store.sqlite_store.Claims", PinlessClaims)
    async with opened(tmp_path) as engine:
        await engine.append_blobs.create_append_blob(blob("log"))
        for _ in range(12):
            await engine.append_blobs.append_block(blob("log"), CONTENT)
        reader = await engine.open_blob(blob("log"))

        await engine.delete_blob(blob("log"))
        await store_of(engine).collector.collect()

        with pytest.raises(DamageError):
            _ = [part async for part in reader.content]
        await reader.content.close()


def named_in(engine: BlobEngine) -> list[bytes]:
    rows = store_of(engine).database.reader.execute(
        "SELECT hash FROM extent WHERE hash IS NOT NULL"
    )
    return [digest for (digest,) in rows]


async def test_an_upload_cancelled_at_any_moment_leaves_no_claim_and_no_stray(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    async with opened(tmp_path) as engine:
        for number in range(SEEDS):
            content = CONTENT + bytes([number % 256])
            name = blob(f"b{number}")
            upload = asyncio.ensure_future(engine.put_blob(name, content))
            await asyncio.sleep(chance.random() / 100)
            upload.cancel()
            try:
                await upload
            except asyncio.CancelledError:
                pass
            else:
                assert await read(engine, name.name) == content
        claims = store_of(engine).claims
        await until(lambda: not claims._claimed)
        await store_of(engine).collector.collect()

        await until(lambda: not claims._leaving)
        assert sorted(files_of(engine)) == sorted(named_in(engine))


async def test_a_download_cancelled_at_any_moment_leaves_no_pin(tmp_path: Path) -> None:
    chance = random.Random(4)
    async with opened(tmp_path) as engine:
        await engine.put_blob(blob("a"), CONTENT * 24)
        for _ in range(SEEDS):
            download = asyncio.ensure_future(read(engine, "a"))
            await asyncio.sleep(chance.random() / 200)
            download.cancel()
            await asyncio.wait([download])
        await until(lambda: not store_of(engine).claims._pinned)

        await engine.delete_blob(blob("a"))
        await store_of(engine).collector.collect()
        assert files_of(engine) == []


async def test_a_dropped_container_is_purged_in_steps(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        for number in range(30):
            await engine.put_blob(blob(f"b{number}"), CONTENT if number % 2 else b"small")

        await engine.containers.delete_container("here")
        await store_of(engine).collector.collect()

        assert files_of(engine) == []
        assert store_of(engine).database.reader.execute("SELECT count(*) FROM extent").get == 0


def test_a_file_that_cannot_be_synced_ends_uploads(tmp_path: Path) -> None:
    class Failing(FileSystem):
        def sync(self, descriptor: int) -> None:
            raise OSError(5, "Input/output error")

    files = FolderFiles(tmp_path, Failing())
    incoming = files.begin("a")
    incoming.write(b"1")
    with pytest.raises(StoreStoppedError):
        files.place(incoming, bytes(32))
    files.discard(incoming)

    with pytest.raises(StoreStoppedError):
        files.begin("b")
    assert list(files.digests()) == []
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []


def test_a_full_disk_refuses_an_upload_and_no_more(tmp_path: Path) -> None:
    class Full(FileSystem):
        def write(self, descriptor: int, chunk: bytes) -> None:
            raise OSError(28, "No space left on device")

    files = FolderFiles(tmp_path, Full())
    incoming = files.begin("a")
    with pytest.raises(StoreFullError):
        incoming.write(b"1")
    files.discard(incoming)

    files.discard(files.begin("b"))
