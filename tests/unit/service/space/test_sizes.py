"""Sizes of tables, queues and containers: exact or estimated, also of a served account."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import partita
from partita.cli.main import main
from partita.service.hosting.in_process import LocalAccount
from partita.service.space import measuring
from partita.service.space.measuring import measure
from partita.storage.sizes import PartSize

ACCOUNT = "devstoreaccount1"
ENTITIES = 300


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def account(data: Path) -> Iterator[LocalAccount]:
    """An account that is open, with something of each kind in it."""
    with partita.open_account(data) as account:
        staff = account.tables.create_table("Staff")
        for first in range(0, ENTITIES, 100):
            staff.submit_transaction(
                [
                    (
                        "upsert",
                        {"PartitionKey": "p", "RowKey": f"{row:05}", "Text": "x" * 500},
                    )
                    for row in range(first, first + 100)
                ]
            )
        account.tables.create_table("Empty")
        photos = account.blobs.create_container("photos")
        photos.upload_blob("long", b"l" * 200_000)
        photos.upload_blob("short", b"s" * 10)
        photos.get_blob_client("staged").stage_block("00", b"b" * 7)
        work = account.queues.create_queue("work")
        work.send_message("m" * 11)
        work.send_message("n" * 11)
        yield account


def parts_of(data: Path, *, is_exact: bool) -> dict[str, PartSize]:
    return {part.name: part for part in measure(data / ACCOUNT, is_exact=is_exact).parts}


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("is_exact", [True, False])
def test_small_parts_are_exact(data: Path, *, is_exact: bool) -> None:
    found = parts_of(data, is_exact=is_exact)

    assert found["Empty"] == PartSize("table", "Empty", 0, 0, is_exact=True)
    assert found["photos"].items == 3  # a blob that is only staged is counted too
    assert found["photos"].bytes == 200_000 + 10 + 7
    assert (found["work"].items, found["work"].bytes) == (2, 2 * (11 + 4))  # with their checksums
    assert found["Staff"].items == ENTITIES
    assert ENTITIES * 500 < found["Staff"].bytes < ENTITIES * 1000
    assert all(part.is_exact for part in found.values())


def test_large_parts_are_estimated_from_the_tree(
    account: LocalAccount, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.close()  # which leaves no log
    exact = parts_of(data, is_exact=True)
    monkeypatch.setattr(measuring, "COUNTED_MAX", 2)

    found = parts_of(data, is_exact=False)

    assert found["Staff"].items == pytest.approx(ENTITIES, rel=0.2)
    assert found["Staff"].bytes == pytest.approx(exact["Staff"].bytes, rel=0.2)
    assert found["photos"].items == 3
    assert not found["Staff"].is_exact
    assert found["Empty"].is_exact


@pytest.mark.usefixtures("account")
def test_rows_that_are_only_in_the_log_are_not_lost(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "COUNTED_MAX", 200)

    assert parts_of(data, is_exact=False)["Staff"].items >= 200


@pytest.mark.usefixtures("account")
def test_command_shows_sizes_of_a_served_folder(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables", "size", "--path", str(data), "--json"]) == 0
    assert main(["tables", "size", "--path", str(data), "--account", ACCOUNT]) == 0
    assert main(["tables", "list", "--path", str(data)]) == 0
    first, text = capsys.readouterr().out.split("\n", 1)

    (found,) = json.loads(first)["accounts"]
    assert [part["kind"] for part in found["parts"]] == ["table", "table", "queue", "container"]
    assert (found["files"], found["file_bytes"]) == (1, 200_000)
    assert found["is_vacuumed"]
    assert "container  photos  3 blobs" in text
    rows = [line.split()[:3] for line in text.splitlines()]
    assert [ACCOUNT, "Staff", f"{ENTITIES}"] in rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--path", "x", "--store", "postgresql://h/d"], "Give --path or --store, not both"),
        (["--path", "postgresql://h/d"], "Give --store postgresql://"),
        (["--store", "sqlite:///x"], "--store needs the URL of a PostgreSQL database"),
        (["--path", "nowhere"], "holds no account"),
        (["--path", ".", "--account", "absent"], "does not contain an account"),
    ],
)
def test_command_refuses_what_it_cannot_measure(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables", "size", *words]) == 2

    assert message in capsys.readouterr().err
