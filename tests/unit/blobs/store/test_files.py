"""Content files: failing file systems, and when a dropped file is removed."""

import asyncio
import errno
import hashlib
import os
from pathlib import Path

import pytest

from partita.blobs.store.files import FileSystem
from partita.errors import StoreBusyError, StoreStoppedError
from partita.storage.durability import Durability
from support.blob_engines import LONG, NAME, FaultyFileSystem, opened
from support.sqlite_blobs import store_of

_DROPPED = "SELECT 1 FROM dropped_content"


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
            if path.exists():  # a file in quarantine is removed too, and there is none
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
