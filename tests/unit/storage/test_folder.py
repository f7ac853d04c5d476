"""One process has a folder, also after its lock file was removed by accident."""

import asyncio
import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from partita.blobs.store.files import FileSystem
from partita.errors import StoreLockedError, StoreStoppedError
from partita.storage import database as database_module
from partita.storage.database import DATABASE_FILE, Database
from partita.storage.folder import LOCK_FILE, FolderLock, sync_names


def remove_the_lock(folder: Path) -> None:
    (folder / LOCK_FILE).unlink()


def replace_the_lock(folder: Path) -> None:
    remove_the_lock(folder)
    (folder / LOCK_FILE).write_text("1\n")


def replace_the_database(folder: Path) -> None:
    shutil.copy(folder / DATABASE_FILE, folder / "copy")
    (folder / "copy").rename(folder / DATABASE_FILE)


def move_the_folder(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def replace_the_folder(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    move_the_folder(folder)
    folder.with_name("copy").rename(folder)


LOSSES = [
    remove_the_lock,
    replace_the_lock,
    replace_the_database,
    move_the_folder,
    replace_the_folder,
]


def test_a_drive_with_a_cache_is_told_to_flush_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda _, command: commands.append(command))

    sync_names(tmp_path)
    FileSystem().sync(0)
    FileSystem().sync_folder(tmp_path)

    assert commands == [51, 51, 51]


async def write(database: Database) -> None:
    async with database.change() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS written (id)")


async def test_a_second_process_is_refused_after_the_lock_file_was_removed(tmp_path: Path) -> None:
    database = await Database.open(tmp_path)
    remove_the_lock(tmp_path)

    with pytest.raises(StoreLockedError) as refused:
        await Database.open(tmp_path)

    assert refused.value.message == f"The folder {tmp_path} is in use by process unknown."
    await database.close()
    await (await Database.open(tmp_path)).close()


async def test_a_version_that_locks_only_the_file_excludes_and_is_excluded(tmp_path: Path) -> None:
    with (tmp_path / LOCK_FILE).open("w") as earlier_version:
        fcntl.flock(earlier_version, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(StoreLockedError):
            await Database.open(tmp_path)
        fcntl.flock(earlier_version, fcntl.LOCK_UN)

        database = await Database.open(tmp_path)

        with pytest.raises(BlockingIOError):
            fcntl.flock(earlier_version, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await database.close()


def test_a_refused_process_leaves_the_folder_unlocked(tmp_path: Path) -> None:
    with (tmp_path / LOCK_FILE).open("w") as earlier_version:
        fcntl.flock(earlier_version, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(StoreLockedError):
            FolderLock(tmp_path, "account")

    FolderLock(tmp_path, "account").release()


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_process_that_lost_its_lock_acknowledges_nothing(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    folder = tmp_path / "account"
    database = await Database.open(folder)
    failures: list[BaseException] = []
    database.on_failure = failures.append
    await write(database)

    lose(folder)

    for _ in range(2):
        with pytest.raises(StoreStoppedError) as refused:
            await write(database)
        assert (refused.value.code, refused.value.facts) == (
            "StoreLockLost",
            {"folder": str(folder)},
        )
    assert [getattr(error, "code", None) for error in failures] == ["StoreLockLost"]
    assert not database.is_writable
    await database.close()


async def test_a_process_without_writes_finds_that_its_lock_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "LOCK_CHECK_SECONDS", 0.001)
    database = await Database.open(tmp_path)
    failed = asyncio.get_running_loop().create_future()
    database.on_failure = failed.set_result

    remove_the_lock(tmp_path)

    assert isinstance(await failed, StoreStoppedError)
    await database.close()


def modes_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()}


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)
    for path in folder.iterdir():
        path.chmod(0o644)


async def test_the_files_of_an_account_are_for_their_owner_alone(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    names = ["account.sqlite", "account.sqlite-shm", "account.sqlite-wal", "lock", "reserve"]
    database = await Database.open(tmp_path)
    await write(database)
    assert modes_of(tmp_path) == dict.fromkeys(names, 0o600)
    await database.close()
    open_to_all(tmp_path)

    database = await Database.open(tmp_path)
    await write(database)

    assert {modes_of(tmp_path)[name] for name in names if name != "lock"} == {0o600}
    await database.close()
