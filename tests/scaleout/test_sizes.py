"""`partita tables` of a database gives the same numbers as of a folder with the same account."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from partita.cli.main import main
from partita.scaleout.catalog import sizes
from support.copying import Place
from support.whole_accounts import fill, folder_account, opened

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place() -> Place:
    place = Place.in_database()

    async def make() -> None:
        async with opened(place) as engines:
            await fill(engines)

    asyncio.run(make())
    return place


def sizes_of(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main(["tables", "size", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_database_has_the_sizes_of_a_folder(
    place: Place, tmp_path: Path, capsys: Capture
) -> None:
    async def make() -> None:
        async with folder_account(tmp_path / place.account) as engines:
            await fill(engines)

    asyncio.run(make())

    database = sizes_of(capsys, "--store", place.url, "--account", place.account)
    folder = sizes_of(capsys, "--path", str(tmp_path))

    (there,), (here,) = database["accounts"], folder["accounts"]
    counts, expected = (
        # Deleted containers have a name with the time of the delete.
        [(part["kind"], part["name"].partition("!")[0], part["items"]) for part in each["parts"]]
        for each in (there, here)
    )
    assert ("table", "Orders", 159) in counts
    assert ("container", "deleted", 1) in counts
    assert counts == expected
    for one, other in zip(there["parts"], here["parts"], strict=True):
        assert one["bytes"] == pytest.approx(other["bytes"], rel=0.1)
    assert database["relations"]["entity"] > 0


def test_large_tables_are_estimated_from_statistics(
    place: Place, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "COUNTED_MAX", 10)

    found = sizes_of(capsys, "--store", place.url, "--account", place.account)

    (account,) = found["accounts"]
    orders = next(part for part in account["parts"] if part["name"] == "Orders")
    assert not orders["is_exact"]
    assert orders["items"] >= 10
    exact = sizes_of(capsys, "--store", place.url, "--account", place.account, "--exact")
    assert all(part["is_exact"] for part in exact["accounts"][0]["parts"])


def test_unknown_account_and_an_unprepared_database_are_refused(
    place: Place, capsys: Capture
) -> None:
    assert main(["tables", "size", "--store", place.url, "--account", "absent"]) == 2
    assert "has no account 'absent'" in capsys.readouterr().err
    nowhere = f"{place.url.rpartition('/')[0]}/postgres"
    assert main(["tables", "list", "--store", nowhere]) == 2
    assert "partita fleet init" in capsys.readouterr().err
