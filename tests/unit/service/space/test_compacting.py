"""A compact database has no free pages, the same rows, and takes the old one's place at once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import partita
from partita.cli.main import main
from partita.clock import SystemClock
from partita.errors import StoreLockedError
from partita.service.space import compacting
from partita.service.space.compacting import COMPACT_FILE, compact
from partita.storage.database import DATABASE_FILE
from support.repeats import sample

ACCOUNT = "devstoreaccount1"
KEPT = {"PartitionKey": "p", "RowKey": "r", "Text": "kept"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an account with free pages, as an earlier version created it."""
    with partita.open_account(tmp_path) as account:
        account.tables.create_table("Kept").create_entity(KEPT)
        blobs = account.blobs.create_container("photos")
        for number in range(3):
            blobs.upload_blob(f"{number}", os.urandom(60_000))
            blobs.delete_blob(f"{number}")
        blobs.upload_blob("long", b"l" * 200_000)
    folder = tmp_path / ACCOUNT
    with contextlib.closing(apsw.Connection(str(folder / DATABASE_FILE))) as database:
        database.pragma("journal_mode", "delete")
        database.pragma("auto_vacuum", 0)
        database.execute("VACUUM")
        database.execute("CREATE TABLE filler (value BLOB)")
        database.execute("INSERT INTO filler VALUES (randomblob(3000000))")
        database.execute("DROP TABLE filler")
    (folder / "blobs" / "ab" / "cd").mkdir(parents=True)
    return folder


def rows_of(folder: Path) -> list[object]:
    with contextlib.closing(apsw.Connection(str(folder / DATABASE_FILE))) as database:
        assert database.pragma("integrity_check") == "ok"
        assert database.pragma("application_id") == 0x50415254
        return [
            database.execute(f"SELECT * FROM {table}").fetchall()
            for table in ("entity", "catalog", "extent", "format")
        ]


def test_free_pages_are_removed_and_all_rows_stay(folder: Path) -> None:
    before = rows_of(folder)

    done = compact(folder, SystemClock())

    assert done.before_bytes - done.after_bytes >= 2_900_000
    assert done.after_bytes == (folder / DATABASE_FILE).stat().st_size
    assert done.is_converted
    assert done.folders == 2
    assert rows_of(folder) == before
    assert (folder / DATABASE_FILE).stat().st_mode & 0o077 == 0
    with partita.open_account(folder.parent) as account:
        kept = account.tables.get_table_client("Kept").get_entity("p", "r")
        assert kept["Text"] == "kept"
        blob = account.blobs.get_blob_client("photos", "long")
        assert blob.download_blob().readall() == b"l" * 200_000
    assert not compact(folder, SystemClock()).is_converted


def test_account_in_use_is_refused(folder: Path) -> None:
    with partita.open_account(folder.parent), pytest.raises(StoreLockedError):
        compact(folder, SystemClock())


def test_failed_compaction_leaves_the_database_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / DATABASE_FILE).read_bytes()

    def fail(*_anything: object) -> None:
        raise OSError("the disk does not answer")

    monkeypatch.setattr(compacting, "check_database", fail)
    with pytest.raises(partita.errors.PartitaError):
        compact(folder, SystemClock())

    assert (folder / DATABASE_FILE).read_bytes() == before
    assert not list(folder.glob(f"{COMPACT_FILE}*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from partita.clock import SystemClock
from partita.service.space import compacting
calls = 0
def dies(function):
    def call(*given, **named):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return call
for name in ("_write_copy", "check_database", "sync_file", "sync_names", "_remove_empty_folders"):
    setattr(compacting, name, dies(getattr(compacting, name)))
Path.rename = dies(Path.rename)
compacting.compact(Path(sys.argv[1]), SystemClock())
"""


@pytest.mark.parametrize("step", sample(range(1, 8), 7))
def test_killed_compaction_loses_nothing(folder: Path, step: int) -> None:
    before = rows_of(folder)

    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(step)], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert rows_of(folder) == before
    compact(folder, SystemClock())
    assert rows_of(folder) == before
    assert not list(folder.glob(f"{COMPACT_FILE}*"))


def test_command_shows_what_was_freed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", str(folder.parent), "--json"]) == 0
    assert main(["compact", str(folder.parent), "--account", ACCOUNT]) == 0
    first, text = capsys.readouterr().out.split("\n", 1)

    (done,) = json.loads(first)["accounts"]
    assert done["before_bytes"] > done["after_bytes"]
    assert text.startswith(f"Compacted {ACCOUNT}: ")


@pytest.mark.usefixtures("folder")
def test_command_refuses_a_served_folder_and_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with partita.open_account(tmp_path):
        assert main(["compact", str(tmp_path)]) == 2
    assert "is in use by process" in capsys.readouterr().err
    assert main(["compact", "postgresql://ada:secret@db/x"]) == 2
    refused = capsys.readouterr().err
    assert "VACUUM (FULL)" in refused
    assert "pg_repack" in refused
    assert "secret" not in refused
