"""`partita account copy` beside a live server, and what it prints."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from partita.cli.main import main
from partita.local_postgres import CLUSTER_FOLDER, POSTGRES_FOLDER
from partita.scaleout.copying.copier import Copier
from partita.storage.folder import FolderLock
from support.copying import Place
from support.live import LiveServer
from support.whole_accounts import described, fill, folder_account, opened

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place() -> Place:
    return Place.in_database()


@pytest.fixture
def folder(tmp_path: Path, place: Place) -> Path:
    """The folder of the data, with an account of a name that the database does not have."""

    async def make() -> None:
        async with folder_account(tmp_path / "data" / place.account) as engines:
            await fill(engines)

    asyncio.run(make())
    return tmp_path / "data"


def described_in(place: Place) -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        async with opened(place) as engines:
            return await described(engines)

    return asyncio.run(read())


def copy(source: object, target: object, place: Place, *flags: str) -> int:
    words = ["account", "copy", str(source), "--to", str(target), "--durability", "fast"]
    return main([*words, "--blob-store", place.objects, *flags])


def account_flags(place: Place, folder: Path) -> list[str]:
    key = folder / "key"
    key.write_text(base64.b64encode(os.urandom(64)).decode())
    key.chmod(0o600)
    return ["--account", place.account, "--account-key-file", str(key)]


def test_a_dry_run_counts_and_changes_nothing(folder: Path, place: Place, capsys: Capture) -> None:
    assert copy(folder, place.url, place, "--dry-run", "--json") == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["account"], found["tables"], found["entities"]) == (place.account, 2, 159)
    assert (found["queues"], found["messages"], found["containers"]) == (2, 12, 3)
    assert found["content_bytes"] > 0
    assert copy(place.url, folder, place, "--account", place.account) == 2
    assert "has no such account" in capsys.readouterr().err


@pytest.mark.proof
def test_an_account_is_copied_there_and_back(
    folder: Path, place: Place, tmp_path: Path, capsys: Capture
) -> None:
    back = tmp_path / "back"

    assert copy(folder, place.url, place, "--json") == 0
    there = json.loads(capsys.readouterr().out)
    assert copy(place.url, back, place, "--account", place.account) == 0

    assert "Copied and verified" in capsys.readouterr().out
    assert there["is_complete"]
    assert {part["name"] for part in there["parts"] if part["kind"] == "queue"} == {"jobs", "empty"}
    before = described_in(Place(folder=str(folder / place.account)))
    assert described_in(Place(folder=str(back / place.account))) == before


@pytest.mark.proof
def test_an_incomplete_copy_is_not_served_and_can_be_abandoned(
    folder: Path, place: Place, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> tuple[list[object], dict[object, str]]:
        return [], {"part": "table 'x': differs at 'a'"}

    back = tmp_path / "back"
    with monkeypatch.context() as broken:
        broken.setattr(Copier, "_compare_all", lost)
        assert copy(folder, back, place) == 1
    told = capsys.readouterr().out
    serve = [sys.executable, "-m", "partita.cli.main", "serve", "--path", str(back)]
    served = subprocess.run(
        [*serve, *account_flags(place, tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "Not complete" in told
    assert "table 'x': differs at 'a'" in told
    assert served.returncode == 2
    assert "the copy is not complete" in served.stderr
    assert copy(folder, back, place, "--abandon") == 0
    assert "it is empty again" in capsys.readouterr().out
    assert copy(folder, back, place) == 0


def copy_local(source: object, target: object, *flags: str) -> int:
    return main(["account", "copy", str(source), "--to", str(target), "--quiet", *flags])


@pytest.mark.proof
def test_an_account_is_copied_to_the_database_of_a_local_server_and_back(
    folder: Path, place: Place, tmp_path: Path, capsys: Capture
) -> None:
    local, back, again = tmp_path / "local", tmp_path / "back", tmp_path / "again"

    assert copy_local(folder, f"local:{local}") == 0
    flags = ["--path", str(local), "--store", "postgres", "--local"]
    server = LiveServer(tmp_path, *flags, *account_flags(place, tmp_path))
    try:
        assert copy_local(f"local:{local}", back, "--account", place.account) == 0
    finally:
        server.stop()
    assert copy_local(f"local:{local}", again, "--account", place.account) == 0

    assert f"local:{local}, account {place.account} to folder" in capsys.readouterr().out
    before = described_in(Place(folder=str(folder / place.account)))
    assert described_in(Place(folder=str(back / place.account))) == before
    assert described_in(Place(folder=str(again / place.account))) == before


@pytest.mark.proof
def test_an_account_is_copied_to_a_local_server_that_runs(
    folder: Path, place: Place, tmp_path: Path
) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    server = LiveServer(tmp_path, "--path", str(local), "--store", "postgres", "--local")
    try:
        assert copy_local(folder, f"local:{local}") == 0
        assert copy_local(f"local:{local}", back, "--account", place.account) == 0
    finally:
        server.stop()

    before = described_in(Place(folder=str(folder / place.account)))
    assert described_in(Place(folder=str(back / place.account))) == before


def test_a_local_database_that_is_starting_is_in_use(tmp_path: Path, capsys: Capture) -> None:
    cluster = tmp_path / POSTGRES_FOLDER / CLUSTER_FOLDER
    cluster.mkdir(parents=True)
    (cluster / "postmaster.pid").write_text("17\n/data\n1\n5432\n\n127.0.0.1\n  1\nstarting\n")
    lock = FolderLock(tmp_path / POSTGRES_FOLDER, "database")
    try:
        assert copy_local(f"local:{tmp_path}", tmp_path / "back") == 2
    finally:
        lock.release()

    assert "in use" in capsys.readouterr().err


def test_a_folder_without_a_database_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert copy_local(f"local:{tmp_path}", tmp_path / "back") == 2

    assert "holds no database of serve --local" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("account", "backup", "--to", "backup", "--connect"),
        ("verify", "--connect"),
        ("tables", "list", "--path"),
        ("heat", "--connect"),
        ("query", "--connect"),
        ("import", "Orders", "orders.jsonl", "--connect"),
    ],
)
def test_the_folder_of_a_local_database_is_told_from_one_of_accounts(
    words: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / POSTGRES_FOLDER / CLUSTER_FOLDER).mkdir(parents=True)

    assert main([*words, str(tmp_path)]) == 2

    assert f"partita account copy local:{tmp_path} --to FOLDER" in capsys.readouterr().err


@pytest.mark.proof
def test_the_folder_of_a_live_server_is_copied(
    folder: Path, place: Place, tmp_path: Path, capsys: Capture
) -> None:
    server = LiveServer(tmp_path, "--path", str(folder), *account_flags(place, tmp_path))
    try:
        assert copy(folder, place.url, place) == 0
    finally:
        server.stop()

    assert "Copied and verified" in capsys.readouterr().out


def test_places_that_are_not_accounts_are_refused(
    tmp_path: Path, place: Place, capsys: Capture
) -> None:
    assert copy(tmp_path, place.url, place) == 2
    assert copy("https://example.org/data", place.url, place) == 2
    assert copy(place.url, "s3://bucket/x", place, "--account", "none") == 2

    told = capsys.readouterr().err
    assert "no account" in told
    assert "An account is in a folder or in a PostgreSQL database" in told
