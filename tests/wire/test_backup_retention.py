"""Backups of all accounts, and chains of backups of which the newest are kept."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import partita
from partita.cli.main import main
from partita.clock import ManualClock, SystemClock
from partita.errors import PartitaError
from partita.service.backup.restoring import check_backup, restore
from partita.service.backup.retention import (
    chains_in,
    new_chain,
    newest_chain,
    opened_chains,
    remove_old_chains,
)
from partita.service.backup.taking import back_up
from partita.service.hosting.in_process import LocalAccount
from support.repeats import sample

ACCOUNT = "devstoreaccount1"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[LocalAccount]:
    with partita.open_account(tmp_path / "data") as account:
        account.blobs.create_container("photos").upload_blob("long", b"l" * 200_000)
        account.tables.create_table("Staff")
        yield account


def back_up_now(tmp_path: Path, *words: str) -> int:
    words = ("--connect", str(tmp_path / "data"), "--to", str(tmp_path / "kept"), *words)
    return main(["account", "backup", *words, "--json"])


def names_in(folder: Path) -> list[str]:
    return [path.name for path in chains_in(folder)]


# Retention


@pytest.mark.usefixtures("account")
def test_newest_chains_are_kept_and_older_ones_removed(tmp_path: Path, capsys: Capture) -> None:
    for _ in range(4):
        assert back_up_now(tmp_path, "--keep", "2") == 0
    taken: list[dict[str, Any]] = [
        json.loads(line) for line in capsys.readouterr().out.splitlines()
    ]

    kept = chains_in(tmp_path / "kept")

    assert [str(path) for path in kept] == [taken[2]["path"], taken[3]["path"]]
    assert [each["removed"] for each in taken] == [[], [], [taken[0]["path"]], [taken[1]["path"]]]
    for path in kept:
        check_backup(path)


def test_increments_continue_the_newest_chain_and_a_chain_is_removed_whole(
    account: LocalAccount, tmp_path: Path, capsys: Capture
) -> None:
    assert back_up_now(tmp_path, "--keep", "1", "--incremental") == 2
    assert "it contains no backup. Take a full backup" in capsys.readouterr().err
    assert back_up_now(tmp_path, "--keep", "1") == 0
    account.tables.create_table("Later")
    assert back_up_now(tmp_path, "--keep", "1", "--incremental", "--compress") == 0
    (chain,) = chains_in(tmp_path / "kept")
    assert (chain / "backup-000002").is_dir()

    assert back_up_now(tmp_path, "--keep", "1") == 0

    assert len(chains_in(tmp_path / "kept")) == 1
    assert not chain.exists()


@pytest.mark.usefixtures("account")
def test_folder_of_chains_stands_for_its_newest(tmp_path: Path, capsys: Capture) -> None:
    assert back_up_now(tmp_path, "--keep", "3") == 0
    assert back_up_now(tmp_path, "--keep", "3") == 0
    assert main(["account", "verify", str(tmp_path / "kept"), "--json"]) == 0
    again = str(tmp_path / "again")
    assert main(["account", "restore", str(tmp_path / "kept"), "--to", again, "--json"]) == 0

    _, second, verified, restored = map(json.loads, capsys.readouterr().out.splitlines())

    assert verified["path"] == second["path"] == str(newest_chain(tmp_path / "kept"))
    assert restored["made_at"] == second["made_at"]


@pytest.mark.usefixtures("account")
def test_nothing_is_removed_if_the_new_backup_is_damaged(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert back_up_now(tmp_path, "--keep", "5") == 0
    assert back_up_now(tmp_path, "--keep", "5") == 0
    database = chains_in(kept)[-1] / "account.sqlite"
    database.write_bytes(database.read_bytes()[:-1] + b"!")

    with pytest.raises(PartitaError, match="BackupDamaged"):
        remove_old_chains(kept, 1)

    assert len(chains_in(kept)) == 2


@pytest.mark.usefixtures("account")
def test_chains_that_cannot_be_read_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for _ in range(3):
        assert back_up_now(tmp_path, "--keep", "5") == 0
    broken, good, newest = chains_in(kept)
    (broken / "manifest.json").write_text("{}")
    (kept / "20200101T000000Z").mkdir()
    (kept / "notes").mkdir()

    assert remove_old_chains(kept, 2) == []
    assert remove_old_chains(kept, 1) == [good]

    assert broken.exists()
    assert newest.exists()
    assert (kept / "20200101T000000Z").exists()
    assert (kept / "notes").exists()


def test_name_of_a_chain_is_later_than_all_others(tmp_path: Path) -> None:
    clock = ManualClock()
    first = new_chain(tmp_path, clock)
    first.mkdir()
    second = new_chain(tmp_path, clock)
    second.mkdir()
    clock.jump(-1000)

    assert first.name < second.name < new_chain(tmp_path, clock).name


@pytest.mark.usefixtures("account")
def test_two_backups_do_not_share_a_folder_of_chains(tmp_path: Path, capsys: Capture) -> None:
    with opened_chains(tmp_path / "kept"):
        assert back_up_now(tmp_path, "--keep", "1") == 2
    assert "is in use by process" in capsys.readouterr().err
    back_up(tmp_path / "data" / ACCOUNT, tmp_path / "one", clock=SystemClock())
    words = ["account", "backup", "--connect", str(tmp_path / "data"), "--keep", "1"]
    assert main([*words, "--to", str(tmp_path / "one")]) == 2
    assert "leave out --keep" in capsys.readouterr().err


@pytest.mark.parametrize("keep", ["0", "-1", "many", "1.5"])
def test_number_of_kept_chains_is_positive(tmp_path: Path, keep: str, capsys: Capture) -> None:
    assert back_up_now(tmp_path, "--keep", keep) == 2
    assert "is not a positive whole number" in capsys.readouterr().err


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from partita.cli.main import main
from partita.service.backup import files, retention, taking
from partita.storage import folder
calls = 0
def dies(function):
    def call(*given, **named):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            if function is rmtree:  # in the middle of it
                next(path for path in Path(given[0]).rglob("*") if path.is_file()).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return call
rmtree = shutil.rmtree
shutil.rmtree = dies(rmtree)
Path.rename = dies(Path.rename)
retention.check_backup = dies(retention.check_backup)
taking.write_new = dies(taking.write_new)
taking.check_database = dies(taking.check_database)
main(sys.argv[2:])
print("not killed")
"""


@pytest.mark.parametrize("compress", [[], ["--compress"]], ids=["plain", "compressed"])
@pytest.mark.parametrize("step", sample(range(1, 11), 10))
@pytest.mark.usefixtures("account")
def test_killed_backup_leaves_every_older_chain_usable(
    tmp_path: Path, step: int, compress: list[str], capsys: Capture
) -> None:
    kept = tmp_path / "kept"
    for _ in range(2):
        assert back_up_now(tmp_path, "--keep", "2", *compress) == 0
    before = names_in(kept)
    words = ["account", "backup", "--connect", str(tmp_path / "data"), "--to", str(kept)]

    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(step), *words, "--keep", "2", *compress],
        check=False,
        capture_output=True,
        text=True,
    )

    is_killed = done.returncode == -signal.SIGKILL
    assert is_killed or "not killed" in done.stdout, done.stderr
    left = names_in(kept)
    assert before[1] in left
    assert len(left) >= 2
    for path in chains_in(kept):
        check_backup(path)
    assert back_up_now(tmp_path, "--keep", "2", *compress) == 0
    assert len(chains_in(kept)) == 2
    assert {path.name for path in kept.iterdir()} == {*names_in(kept), "lock"}
    restore(newest_chain(kept), tmp_path / "again", clock=SystemClock())


# All accounts


def test_all_accounts_are_backed_up_each_in_its_folder(
    account: LocalAccount, tmp_path: Path, capsys: Capture
) -> None:
    account.close()
    shutil.copytree(tmp_path / "data" / ACCOUNT, tmp_path / "data" / "second")
    with partita.open_account(tmp_path / "data"):
        assert back_up_now(tmp_path, "--all", "--compress") == 0
        assert back_up_now(tmp_path, "--all", "--incremental") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[1])

    assert [each["account"] for each in found["backups"]] == [ACCOUNT, "second"]
    assert [each["number"] for each in found["backups"]] == [2, 2]
    assert found["failures"] == []
    for name in (ACCOUNT, "second"):
        assert check_backup(tmp_path / "kept" / name).account == name


def test_failure_of_one_account_does_not_stop_the_others(
    account: LocalAccount, tmp_path: Path, capsys: Capture
) -> None:
    account.close()
    shutil.copytree(tmp_path / "data" / ACCOUNT, tmp_path / "data" / "broken")
    (tmp_path / "data" / "broken" / "account.sqlite").write_bytes(b"no database" * 1000)

    assert back_up_now(tmp_path, "--all", "--keep", "3") == 1
    found = json.loads(capsys.readouterr().out)

    assert [each["account"] for each in found["backups"]] == [ACCOUNT]
    assert [each["account"] for each in found["failures"]] == ["broken"]
    assert len(chains_in(tmp_path / "kept" / ACCOUNT)) == 1
    assert back_up_now(tmp_path, "--all", "--account", ACCOUNT) == 2
    assert "not both" in capsys.readouterr().err


def test_a_database_is_refused_with_the_alternative(tmp_path: Path, capsys: Capture) -> None:
    words = ["account", "backup", "--connect", "postgresql://ada:secret@db/x"]

    assert main([*words, "--all", "--to", str(tmp_path / "kept"), "--keep", "2"]) == 2

    refused = capsys.readouterr().err
    assert "pg_dump" in refused
    assert "point in time" in refused
    assert "secret" not in refused
