import asyncio
import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.errors import (
    ConfigurationError,
    StoreFullError,
    StoreLockedError,
    StoreStoppedError,
)
from partita.reliable.storage.os_disk import OsDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[OsDisk]:
    disk = OsDisk(tmp_path / "deep" / "state")
    yield disk
    disk.close()


def test_a_new_folder_is_for_its_owner_alone(disk: OsDisk) -> None:
    assert disk.folder.stat().st_mode & 0o777 == 0o700
    disk.create("a")
    assert (disk.folder / "a").stat().st_mode & 0o777 == 0o600


def test_a_folder_has_one_holder_who_is_named(disk: OsDisk) -> None:
    with pytest.raises(StoreLockedError) as refused:
        OsDisk(disk.folder)

    facts = refused.value.facts
    assert refused.value.code == "StoreLocked"
    assert facts["holder"] == str(os.getpid())
    assert facts["host"] == socket.gethostname()
    assert facts["program"] == Path(sys.argv[0]).name
    assert str(os.getpid()) in str(refused.value)
    assert "this process" in refused.value.hint


def test_another_process_is_told_who_holds_the_folder(disk: OsDisk) -> None:
    script = (
        "import pathlib, sys; from partita.reliable.storage.os_disk import OsDisk;"
        "OsDisk(pathlib.Path(sys.argv[1]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(disk.folder)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode != 0
    assert (
        f"StoreLocked: The folder {disk.folder} is in use by process {os.getpid()}" in ended.stderr
    )
    assert "Stop that process" in ended.stderr


def test_a_second_disk_is_refused_after_the_lock_file_was_removed(disk: OsDisk) -> None:
    (disk.folder / "lock").unlink()

    with pytest.raises(StoreLockedError):
        OsDisk(disk.folder)


@pytest.mark.parametrize("lost", ["lock", "folder"])
def test_a_disk_that_lost_its_lock_changes_nothing(disk: OsDisk, lost: str) -> None:
    file = disk.create("a")
    file.write(b"one")
    if lost == "lock":
        (disk.folder / "lock").unlink()
    else:
        disk.folder.rename(disk.folder.with_name("moved"))
        disk.folder.mkdir()

    for change in (
        lambda: file.write(b"two"),
        lambda: disk.create("b"),
        lambda: disk.grow("a", 0),
        lambda: disk.rename("a", "b"),
        lambda: disk.remove("a"),
    ):
        with pytest.raises(StoreStoppedError) as refused:
            change()
        assert refused.value.code == "StoreLockLost"


def test_a_closed_disk_gives_the_folder_free(disk: OsDisk) -> None:
    disk.close()
    disk.close()

    OsDisk(disk.folder).close()


def test_a_folder_that_cannot_be_made_is_a_matter_of_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ConfigurationError) as refused:
        OsDisk(tmp_path / "file" / "state")

    assert refused.value.code == "FolderUnusable"


def test_what_was_written_is_read(disk: OsDisk) -> None:
    file = disk.create("a")
    file.write(b"one")
    file.write(b"two")

    assert file.size == disk.size("a") == 6
    assert disk.read("a") == b"onetwo"
    assert disk.read("a", 2, 3) == b"etw"
    assert disk.read("a", 4) == b"wo"
    assert disk.read("a", 4, 100) == b"wo"
    assert disk.read("a", 100) == b""
    file.close()
    file.close()


def test_a_created_file_is_empty_even_if_it_was_there(disk: OsDisk) -> None:
    disk.create("a").write(b"old")

    disk.create("a").write(b"n")

    assert disk.read("a") == b"n"


def test_a_file_is_cut_before_it_grows(disk: OsDisk) -> None:
    disk.create("a").write(b"one-torn")

    file = disk.grow("a", 3)
    file.write(b"two")

    assert disk.read("a") == b"onetwo"


def test_names_are_sorted_and_leave_out_the_lock(disk: OsDisk) -> None:
    for name in ("b", "c", "a"):
        disk.create(name).close()
    disk.rename("c", "a")
    disk.remove("b")

    assert disk.names() == ["a"]


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "/etc/passwd", "../x", "lock"])
def test_names_are_no_paths(disk: OsDisk, name: str) -> None:
    with pytest.raises(AssertionError):
        disk.create(name)


def test_a_missing_file_is_not_an_oserror(disk: OsDisk) -> None:
    with pytest.raises(StoreStoppedError):
        disk.read("nothing")
    with pytest.raises(StoreStoppedError):
        disk.grow("nothing", 0)


async def test_syncs_run_one_by_one_in_a_thread_of_the_disk(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    real = os.fdatasync

    def seen(descriptor: int) -> None:
        threads.append(threading.current_thread())
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", seen)
    files = [disk.create(name) for name in "abc"]
    for file in files:
        file.write(b"x")
    await asyncio.gather(*(file.sync() for file in files))
    await disk.sync_folder()
    files[0].sync_now()

    assert len(set(threads[:3])) == 1
    assert threads[0] is not threading.main_thread()
    assert threads[3] is threading.main_thread()
    disk.close()
    assert not threads[0].is_alive()


async def test_other_tasks_go_on_during_a_sync(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: may_end.wait(60))
    sync = asyncio.create_task(disk.create("a").sync())
    for _ in range(5):
        await asyncio.sleep(0.001)
        assert not sync.done()

    may_end.set()

    await sync


async def test_a_cancelled_sync_leaves_the_thread_to_the_others(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: may_end.wait(60))
    file = disk.create("a")
    gone = asyncio.create_task(file.sync())
    await asyncio.sleep(0.001)
    gone.cancel()
    may_end.set()

    await file.sync()

    assert gone.cancelled()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_a_sync_that_fails_for_any_reason_stops(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    file = disk.create("a")
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(StoreStoppedError):
        await file.sync()
    with pytest.raises(StoreStoppedError):
        await disk.sync_folder()


@pytest.mark.parametrize("sync_first", ["sync", "sync_now"])
async def test_a_file_whose_sync_failed_is_of_no_more_use(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, sync_first: str
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file, other = disk.create("a"), disk.create("b")
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreStoppedError):
        await file.sync() if sync_first == "sync" else file.sync_now()
    monkeypatch.undo()

    for _ in range(2):
        with pytest.raises(StoreStoppedError):
            await file.sync()
        with pytest.raises(StoreStoppedError):
            file.sync_now()
        with pytest.raises(StoreStoppedError):
            file.write(b"x")
    await other.sync()


async def test_a_sync_that_fails_after_its_cancellation_is_not_forgotten(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_fail = threading.Event(), threading.Event()

    def fail_once(_: int) -> None:
        if not began.is_set():
            began.set()
            may_fail.wait(60)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail_once)
    file = disk.create("a")
    gone = asyncio.create_task(file.sync())
    await asyncio.to_thread(began.wait, 60)
    gone.cancel()
    await asyncio.sleep(0)
    may_fail.set()

    with pytest.raises(StoreStoppedError):
        await file.sync()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_file_as_it_was(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = disk.create("a")
    file.write(b"before")
    real, calls = os.pwrite, []

    def short_then_full(descriptor: int, chunk: bytes, place: int) -> int:
        calls.append(place)
        if len(calls) > 2:
            raise OSError(code, os.strerror(code))
        return real(descriptor, chunk[:2], place)

    monkeypatch.setattr(os, "pwrite", short_then_full)
    with pytest.raises(StoreFullError) as refused:
        file.write(b"0123456789")
    monkeypatch.undo()

    assert refused.value.code == "StoreFull"
    assert calls == [6, 8, 10]
    assert disk.read("a") == b"before"
    file.write(b" after")
    assert disk.read("a") == b"before after"


def test_short_writes_are_continued(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, chunk, place: real(file, chunk[:3], place))
    file = disk.create("a")

    file.write(b"0123456789")

    assert disk.read("a") == b"0123456789"


def test_short_reads_are_continued(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.create("a").write(b"0123456789")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, place: real(file, min(count, 3), place))

    assert disk.read("a") == b"0123456789"
    assert disk.read("a", 1, 7) == b"1234567"
    assert disk.read("a", 8, 70) == b"89"


def test_what_is_renewed_is_written_again_in_its_place(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.create("a")
    file.write(b"0123456789")
    written: list[tuple[bytes, int]] = []
    real = os.pwrite

    def record(descriptor: int, chunk: bytes, place: int) -> int:
        written.append((bytes(chunk[:4]), place))
        return real(descriptor, chunk[:4], place)

    monkeypatch.setattr(os, "pwrite", record)
    file.renew(3)
    file.write(b"!")

    assert written == [(b"3456", 3), (b"789", 7), (b"!", 10)]
    assert disk.read("a") == b"0123456789!"


def test_a_write_that_fails_otherwise_stops(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = disk.create("a")
    monkeypatch.setattr(os, "pwrite", fail)

    with pytest.raises(StoreStoppedError):
        file.write(b"x")


def test_a_drive_with_a_cache_is_asked_for_more_than_fsync(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def full_sync(_: int, command: int) -> int:
        asked.append(command)
        if len(asked) > 1:
            raise OSError(errno.ENOTSUP, "not on this file system")
        return 0

    synced: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", synced.append)
    file = disk.create("a")

    file.sync_now()
    assert (asked, synced) == ([51], [])
    file.sync_now()
    assert synced == [file.descriptor]


def test_free_room_is_told(disk: OsDisk) -> None:
    assert disk.free_bytes() > 0
