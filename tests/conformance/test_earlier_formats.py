"""What earlier versions stored is opened, upgraded, and written to by this one.

`fixtures/<version>` has what each version stored. The account `release_account` was made by the
code of release 0.1.0, which had tables only; the others by the last code before a format changed.
"""

import ast
import asyncio
import contextlib
import importlib
import json
import os
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import partita
import partita.reliable.sync as reliable
from fixtures.make_fixtures import ACCOUNT, LONG
from fixtures.typed import Employee, anywhere, by_email
from partita.cli.main import main
from partita.clock import SystemClock
from partita.patterns import evolve
from partita.patterns.sync import connect
from partita.reliable.restoring import restore_state
from partita.service.backup.restoring import check_backup, restore
from partita.service.backup.taking import back_up_changes
from partita.shards import RangeShardMap, ShardMapManager

FIXTURES = Path(__file__).parent.parent / "fixtures"
VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if path.name[0].isdigit())
NUMBERS = ("FORMAT", "FORMAT_VERSION", "SCHEMA_FORMAT_VERSION")
"""The names of format numbers."""
SOURCE = Path(partita.__file__).parent


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def unpack(version: str, name: str, target: Path) -> Path:
    with tarfile.open(FIXTURES / version / f"{name}.tar.xz") as archive:
        # Python before 3.11.4 has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
        archive.extractall(target)
    return target


# Accounts


def assert_account(data: Path) -> None:
    with partita.open_account(data) as account:
        plain = account.tables.get_table_client("Plain")
        assert dict(plain.get_entity("Sales", "1")) == {
            "PartitionKey": "Sales",
            "RowKey": "1",
            "Name": "Ken",
            "Age": 47,
            "Share": 0.5,
        }
        [message] = account.queues.get_queue_client("work").peek_messages()
        assert message.content == "archive 1"
        photos = account.blobs.get_container_client("photos")
        assert photos.get_container_properties().metadata == {"kind": "test"}
        contents = {name: photos.download_blob(name).readall() for name in ("long", "short", "log")}
        assert contents == {"long": LONG, "short": b"in its row", "log": b"one"}
        assert photos.download_blob("pages").readall() == bytes(512) + b"p" * 512
        short = photos.get_blob_client("short")
        assert short.get_blob_properties().metadata == {"a": "b"}
        assert short.get_blob_tags() == {"c": "d"}
        assert len(list(photos.list_blobs(name_starts_with="short", include=["snapshots"]))) == 2
        staged = photos.get_blob_client("staged").get_block_list("uncommitted")[1]
        assert [block.id for block in staged] == ["MQ=="]


def write_to(data: Path) -> None:
    """Write to everything that the fixture has."""
    with partita.open_account(data) as account:
        plain = account.tables.get_table_client("Plain")
        plain.update_entity({"PartitionKey": "Sales", "RowKey": "1", "Age": 48})
        account.queues.get_queue_client("work").send_message("archive 2")
        photos = account.blobs.get_container_client("photos")
        photos.get_blob_client("short").set_blob_metadata({"a": "c"})
        photos.get_blob_client("log").append_block(b"two")
    with partita.open_account(data) as account:
        plain = account.tables.get_table_client("Plain")
        assert [(one["Name"], one["Age"]) for one in plain.query_entities("Age eq 48")] == [
            ("Ken", 48)
        ]
        photos = account.blobs.get_container_client("photos")
        assert photos.download_blob("log").readall() == b"onetwo"


def test_account_is_opened_verified_and_written_to(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = unpack(version, "account", tmp_path) / "data"

    assert_account(data)
    write_to(data)

    assert main(["verify", "--connect", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damage"] == []


def test_backup_of_an_account_is_restored_and_continued(version: str, tmp_path: Path) -> None:
    unpack(version, "account", tmp_path)

    assert check_backup(tmp_path / "backup").account == ACCOUNT
    restore(tmp_path / "backup", tmp_path / "again", clock=SystemClock())
    assert_account(tmp_path / "again")
    write_to(tmp_path / "again")
    back_up_changes(tmp_path / "again" / ACCOUNT, tmp_path / "backup", clock=SystemClock())
    restore(tmp_path / "backup", tmp_path / "first", up_to=1, clock=SystemClock())
    assert_account(tmp_path / "first")


def test_account_of_the_release_gets_queues_and_blobs(tmp_path: Path) -> None:
    data = unpack("0.1.0", "release_account", tmp_path) / "data"

    with partita.open_account(data) as account:
        plain = account.tables.get_table_client("Plain")
        assert plain.get_entity("Sales", "1")["Name"] == "Ken"
        account.queues.create_queue("work").send_message("archive 1")
        account.blobs.create_container("photos").upload_blob("short", b"in its row")
    with partita.open_account(data) as account:
        photos = account.blobs.get_container_client("photos")
        assert photos.download_blob("short").readall() == b"in its row"


# Typed entities


def test_typed_entities_are_read_changed_and_followed(version: str, tmp_path: Path) -> None:
    data = unpack(version, "entities", tmp_path) / "data"

    with connect(f"partita:{data}") as db:
        employees = db.table(Employee)
        jun = employees.get(dept="Sales", id=123)
        assert jun == Employee(dept="Sales", id=123, last="Cao", email="junc@contoso.com")
        assert employees.via(by_email).get(dept="Sales", email="ken@contoso.com").id == 124
        employees.save(evolve(jun, email="jun@contoso.com"))
        db.drain()
        assert [one.id for one in employees.via(anywhere).range(email="jun@contoso.com")] == [123]
        assert [one.id for one in employees.via(anywhere).range(email="ken@contoso.com")] == [124]
        assert db.verify(Employee) == []


# Reliable state


def users_of(folder: Path) -> dict[str, int]:
    with reliable.open_state(folder) as state:
        users = state.dictionary("users", key=str, value=int)
        jobs = state.queue("jobs", value=str)
        with state.transaction() as tx:
            assert jobs.peek(tx) == "first"
            return dict(users.items(tx))


def test_state_is_opened_verified_and_written_to(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpack(version, "state", tmp_path) / "state"

    assert users_of(folder) == {"ada": 1, "bob": 2}
    with reliable.open_state(folder) as state:
        users = state.dictionary("users", key=str, value=int)
        with state.transaction() as tx:
            users.set(tx, "cyd", 3)
        state.checkpoint()
    assert users_of(folder) == {"ada": 1, "bob": 2, "cyd": 3}
    assert main(["state", "verify", "--connect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_sound"] is True


def test_backups_of_a_state_are_restored_and_continued(version: str, tmp_path: Path) -> None:
    unpack(version, "state", tmp_path)

    asyncio.run(restore_state(tmp_path / "backups", tmp_path / "again"))
    assert users_of(tmp_path / "again") == {"ada": 1, "bob": 2}
    with reliable.open_state(tmp_path / "state") as state:
        users = state.dictionary("users", key=str, value=int)
        with state.transaction() as tx:
            users.set(tx, "cyd", 3)
        assert state.backup(tmp_path / "backups", incremental=True).number == 3


# Catalogs


@contextlib.contextmanager
def relocated(folder: Path) -> Iterator[ShardMapManager]:
    """Open a catalog after its shards were moved to another folder."""
    for name, column in (
        ("catalog.db", "partita_shards SET location"),
        ("catalog.db", "partita_shards SET identity"),
        ("one.db", "partita_local_shards SET location"),
        ("two.db", "partita_local_shards SET location"),
    ):
        with contextlib.closing(sqlite3.connect(folder / name, isolation_level=None)) as database:
            old = column.rpartition(" ")[2]
            database.execute(
                f"UPDATE {column} = replace({old}, '/fixture', ?)", (os.fspath(folder),)
            )
    manager = ShardMapManager.open(f"sqlite:///{folder / 'catalog.db'}")
    try:
        yield manager
    finally:
        manager.close()


def test_catalogs_are_opened_upgraded_and_changed(version: str, tmp_path: Path) -> None:
    with relocated(unpack(version, "catalogs", tmp_path)) as manager:
        tenants = manager.get_map("tenants", key=int)
        for tenant in (7, 150):
            with tenants.connect(tenant) as connection:
                assert connection.exec_driver_sql("SELECT count(*) FROM blog").scalar() == 0
        manager.upgrade_store()
        assert isinstance(tenants, RangeShardMap)
        tenants.split(at=50)
        assert [(one.range.low, one.range.high) for one in tenants.mappings()] == [
            (0, 50),
            (50, 100),
            (100, None),
        ]
        with tenants.connect(60) as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM blog").scalar() == 0


# The rule


def format_numbers() -> Iterator[tuple[str, str, int]]:
    """Yield the module, name and value of every format number in the source."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
                continue
            for target in node.targets:
                name = target.id if isinstance(target, ast.Name) else ""
                if name in NUMBERS and isinstance(node.value.value, int):
                    module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
                    yield module, name, node.value.value


def test_every_format_number_has_an_upgrade_from_each_earlier_one() -> None:
    numbers = list(format_numbers())
    assert len(numbers) >= 11, "the names of format numbers have changed"

    missing = [
        (module, name, earlier)
        for module, name, number in numbers
        for earlier in range(1, number)
        if earlier not in getattr(importlib.import_module(module), "UPGRADES", {})
    ]

    assert missing == []
