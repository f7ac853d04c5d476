"""Findings of a hostile reading of the blob store, one test each."""

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import BlobName
from partita.blobs.store.files import FileSystem, FolderFiles
from partita.blobs.store.contract import PieceRow
from partita.blobs.store.rows import BlobRows
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import ManualClock
from partita.errors import InvalidRequestError, StoreBusyError, StoreStoppedError
from partita.storage.database import Database, Durability
from partita.storage.store_clock import StoreClock
from support.sqlite_blobs import store_of

LONG = b"0123456789abcdef" * 8192
_DROPPED = "SELECT 1 FROM dropped_content"
NAME = BlobName("box", "b")


class FaultyFileSystem(FileSystem):
    """Fails when told, with these numbers."""

    creating: int | None = None
    syncing: int | None = None
    removing: int | None = None

    def create(self, path: Path) -> int:
        if self.creating is not None:
            raise OSError(self.creating, "told to")
        return super().create(path)

    def sync(self, descriptor: int) -> None:
        if self.syncing is not None:
            raise OSError(self.syncing, "told to")
        super().sync(descriptor)

    def remove(self, path: Path) -> None:
        if self.removing is not None:
            raise OSError(self.removing, "told to")
        super().remove(path)


@asynccontextmanager
async def opened(
    folder: Path, system: FileSystem | None = None, durability: Durability = Durability.FULL
) -> AsyncIterator[BlobEngine]:
    database = await Database.open(folder, durability=durability)
    clock = StoreClock(database, ManualClock())
    files = FolderFiles(folder, system)
    engine = BlobEngine(await SqliteBlobStore.open(database, clock, files=files))
    await engine.containers.create_container("box")
    yield engine
    await engine.close()
    await database.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_too_many_open_files_only_delay_an_upload(tmp_path: Path, number: int) -> None:
    system = FaultyFileSystem()
    async with opened(tmp_path, system) as engine:
        system.creating = number
        with pytest.raises(StoreBusyError):
            await engine.put_blob(NAME, LONG)
        system.creating = None
        await engine.put_blob(NAME, LONG)


async def test_an_upload_whose_file_cannot_be_removed_still_lets_go_of_its_hash(
    tmp_path: Path,
) -> None:
    system = FaultyFileSystem()
    async with opened(tmp_path, system) as engine:
        system.syncing = system.removing = errno.EIO
        with pytest.raises(StoreStoppedError):
            await engine.put_blob(NAME, LONG)
        system.removing = None
        assert not store_of(engine).claims.is_claimed(hashlib.sha256(LONG).digest())


async def test_a_failed_sync_of_a_content_file_stops_the_account(tmp_path: Path) -> None:
    system = FaultyFileSystem()
    async with opened(tmp_path, system) as engine:
        database, failures = store_of(engine).database, list[BaseException]()
        database.on_failure = failures.append
        system.syncing = errno.EIO
        with pytest.raises(StoreStoppedError):
            await engine.put_blob(NAME, LONG)
        with pytest.raises(StoreStoppedError):
            await engine.put_blob(NAME, b"short")
        assert not database.is_writable
        assert len(failures) == 1


async def test_with_fast_durability_a_file_goes_only_when_its_drop_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync = os.fsync

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        seen.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    class NotedFileSystem(FileSystem):
        def remove(self, path: Path) -> None:
            seen.append("remove")
            super().remove(path)

    async with opened(tmp_path, NotedFileSystem(), Durability.FAST) as engine:
        await engine.put_blob(NAME, LONG)
        monkeypatch.setattr(os, "fsync", noted_fsync)
        await engine.delete_blob(NAME)
        await store_of(engine).collector.collect()
        assert seen == ["sync account.sqlite-wal", "remove"]


async def test_who_drops_content_does_not_make_the_collector_read_every_staged_block(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as engine:
        store, looks = store_of(engine), 0
        forget_stale = store.collector.forget_stale

        async def noted() -> None:
            nonlocal looks
            looks += 1
            await forget_stale()

        store.collector.forget_stale = noted  # type: ignore[method-assign]
        for _ in range(5):
            await engine.put_blob(NAME, b"short")
            while store.reads().connection.execute(_DROPPED).get:  # noqa: ASYNC110 - rare
                await asyncio.sleep(0.001)
        assert looks <= 1


async def test_a_page_blob_is_listed_from_a_place_that_no_blob_can_reach(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.page_blobs.create_page_blob(NAME, 1024)
        pages = await engine.page_blobs.page_ranges(NAME, first=10**19, last=10**20)
        assert (pages.ranges, pages.next_first) == ([], None)


async def test_a_short_range_of_a_page_blob_reads_only_the_rows_of_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[PieceRow] = []
    pieces = BlobRows.pieces

    def noted(rows: BlobRows, content: int, first: int, end: int, limit: int = -1) -> object:
        found.extend(pieces(rows, content, first, end, limit))
        return pieces(rows, content, first, end, limit)

    async with opened(tmp_path) as engine:
        await engine.page_blobs.create_page_blob(NAME, 512 * 20)
        for page in range(0, 20, 2):
            await engine.page_blobs.put_pages(NAME, 512 * page, b"x" * 512, last=512 * page + 511)
        monkeypatch.setattr(BlobRows, "pieces", noted)
        got = await engine.open_blob(NAME, first=500, last=1030)
        content = b"".join([part async for part in got.content])
        await got.content.close()
        assert content == b"x" * 12 + bytes(512) + b"x" * 7
        assert [piece.place for piece in found] == [0, 1024]


async def test_a_page_blob_has_a_sequence_number_from_its_beginning_that_fits(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as engine:
        with pytest.raises(InvalidRequestError, match="InvalidHeaderValue"):
            await engine.page_blobs.create_page_blob(NAME, 512, sequence_number=2**63)
