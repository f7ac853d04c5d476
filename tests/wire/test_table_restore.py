"""One table of a backup is restored into an account, beside its other tables."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from azure.data.tables import TableAccessPolicy, TableServiceClient

import partita
from partita.cli.main import main
from partita.service.hosting.in_process import LocalAccount
from support.repeats import sample

ACCOUNT = "devstoreaccount1"
ROWS = 250
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def backup(made: Path, tmp_path: Path) -> Path:
    """A chain of two backups, and the account beside it; Staff has other entities in each."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "backup"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made")
    backup = str(made / "backup")
    words = ["account", "backup", "--connect", str(made / "data"), "--to", backup]
    with partita.open_account(made / "data") as account:
        put(account, "Staff", "first")
        put(account, "Other", "other")
        staff = account.tables.get_table_client("Staff")
        staff.set_table_access_policy({"reader": TableAccessPolicy(permission="r")})
        account.blobs.create_container("photos").upload_blob("long", b"l" * 200_000)
        assert main([*words, "--quiet", "--compress"]) == 0
        put(account, "Staff", "second")
        assert main([*words, "--quiet", "--incremental"]) == 0
    return made


def put(account: LocalAccount, name: str, text: str) -> None:
    table = account.tables.create_table_if_not_exists(name)
    rows = [{"PartitionKey": "p", "RowKey": f"{row:04}", "Text": text} for row in range(ROWS)]
    for first in range(0, ROWS, 100):
        table.submit_transaction([("upsert", row) for row in rows[first : first + 100]])


def rows_of(tables: TableServiceClient, name: str) -> list[tuple[str, str, str]]:
    found = tables.get_table_client(name).list_entities()
    return [(row["RowKey"], row["Text"], str(row.metadata["etag"])) for row in found]


def rows_in(data: Path, name: str) -> list[tuple[str, str, str]]:
    with partita.open_account(data) as account:
        return rows_of(account.tables, name)


def restore(backup: Path, data: Path, *words: str) -> int:
    return main(["account", "restore", str(backup), "--to", str(data), "--json", *words])


def test_dropped_table_comes_back_with_its_etags_and_policies(
    backup: Path, tmp_path: Path, capsys: Capture
) -> None:
    data = tmp_path / "data"
    before = rows_in(data, "Staff")
    with partita.open_account(data) as account:
        account.tables.delete_table("Staff")
        account.tables.create_table("Newer")
    capsys.readouterr()

    assert restore(backup, data, "--table", "Staff") == 0

    done: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (done["table"], done["restored_as"], done["entities"]) == ("Staff", "Staff", ROWS)
    assert (done["number"], done["account"]) == (2, ACCOUNT)
    with partita.open_account(data) as account:
        assert rows_of(account.tables, "Staff") == before
        assert {table.name for table in account.tables.list_tables()} == {"Newer", "Other", "Staff"}
        staff = account.tables.get_table_client("Staff")
        assert staff.get_table_access_policy().keys() == {"reader"}
        # Filters use what is computed from the values.
        assert len(list(staff.query_entities("Text eq 'second'"))) == ROWS
        later = staff.upsert_entity({"PartitionKey": "p", "RowKey": "0000", "Text": "new"})
        assert later["etag"] > max(etag for _, _, etag in before)
    assert not list((data / ACCOUNT).glob("restoring-*"))


def test_table_of_an_earlier_backup_comes_beside_the_present_one(
    backup: Path, tmp_path: Path, capsys: Capture
) -> None:
    data = tmp_path / "data"

    assert restore(backup, data, "--table", "staff", "--as", "Before", "--up-to", "1") == 0

    assert {text for _, text, _ in rows_in(data, "Before")} == {"first"}
    assert {text for _, text, _ in rows_in(data, "Staff")} == {"second"}
    assert capsys.readouterr().err == ""


def test_table_comes_into_an_account_of_its_own(backup: Path, tmp_path: Path) -> None:
    assert restore(backup, tmp_path / "again", "--table", "Staff", "--account", "rescued") == 0

    (tmp_path / "again" / "rescued").rename(tmp_path / "again" / ACCOUNT)
    with partita.open_account(tmp_path / "again") as account:
        assert len(rows_of(account.tables, "Staff")) == ROWS
        assert [table.name for table in account.tables.list_tables()] == ["Staff"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "Staff"], "has a table of this name"),
        (["--table", "Absent", "--as", "New"], "The backup has no table of this name"),
        (["--table", "Staff", "--as", "not a name"], "resource name"),
        (["--table", "Staff", "--as", "New", "--up-to", "7"], "contains the backups 1 to 2"),
        (["--as", "New"], "Give --table NAME too"),
    ],
)
def test_what_is_refused_changes_nothing(
    backup: Path, tmp_path: Path, words: list[str], message: str, capsys: Capture
) -> None:
    assert restore(backup, tmp_path / "data", *words) == 2

    assert message in capsys.readouterr().err
    with partita.open_account(tmp_path / "data") as account:
        assert {table.name for table in account.tables.list_tables()} == {"Other", "Staff"}
    assert restore(backup, tmp_path / "new", *words[:1], "Absent") == 2
    assert not (tmp_path / "new" / ACCOUNT).exists()


def test_served_account_is_refused_with_the_way_around(
    backup: Path, tmp_path: Path, capsys: Capture
) -> None:
    with partita.open_account(tmp_path / "data"):
        assert restore(backup, tmp_path / "data", "--table", "Staff", "--as", "Again") == 2

    refused = capsys.readouterr().err
    assert "Stop the server, or restore the table to another data folder" in refused


def test_damaged_backup_is_refused(backup: Path, tmp_path: Path, capsys: Capture) -> None:
    path = backup / "account.sqlite.zst"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])

    assert restore(backup, tmp_path / "data", "--table", "Staff", "--as", "Again") == 1

    assert "damaged" in capsys.readouterr().err


KILLED = """
import os, signal, sys
from partita.cli.main import main
from partita.service.backup import one_table
one_table.BATCH_ENTITIES = 60
calls = 0
def dies(function):
    def call(*given, **named):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return call
for name in ("take_database", "check_database", "put_entities", "Table"):
    setattr(one_table, name, dies(getattr(one_table, name)))
one_table.Database.close = dies(one_table.Database.close)
main(sys.argv[2:])
print("not killed")
"""


@pytest.mark.parametrize("step", sample(range(1, 10), 9))
def test_killed_restore_of_a_table_leaves_the_account_usable(
    backup: Path, tmp_path: Path, step: int
) -> None:
    data = tmp_path / "data"
    before = rows_in(data, "Other")
    words = ["account", "restore", str(backup), "--to", str(data), "--table", "Staff"]

    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(step), *words, "--as", "Again"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == -signal.SIGKILL, done.stderr
    with partita.open_account(data) as account:
        names = {table.name for table in account.tables.list_tables()}
        assert rows_of(account.tables, "Other") == before
    assert names - {"Again"} == {"Other", "Staff"}
    if "Again" in names:  # it has its name only when it is complete
        assert len(rows_in(data, "Again")) == ROWS
    else:
        assert restore(backup, data, "--table", "Staff", "--as", "Again") == 0
        assert len(rows_in(data, "Again")) == ROWS
    assert main(["account", "verify", str(backup), "--quiet"]) == 0


def test_entities_of_a_killed_restore_are_removed_by_the_next_server(
    backup: Path, tmp_path: Path
) -> None:
    words = ["account", "restore", str(backup), "--to", str(tmp_path / "data")]
    subprocess.run(
        [sys.executable, "-c", KILLED, "5", *words, "--table", "Staff", "--as", "Again"],
        check=False,
    )
    with contextlib.closing(
        apsw.Connection(str(tmp_path / "data" / ACCOUNT / "account.sqlite"))
    ) as file:
        left = file.execute("SELECT count(*) FROM entity WHERE tid IN (SELECT id FROM dropped)").get

    assert left > 0
    with partita.open_account(tmp_path / "data") as account:
        again = account.tables.create_table("Again")
        assert list(again.list_entities()) == []
