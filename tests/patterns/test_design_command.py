"""`partita patterns design`: files in, text, JSON and a page out."""

import json
import sys
from pathlib import Path

import pytest

from partita.cli.main import main

MODELS = """
from partita.patterns import access, entity


@entity(
    table="staff",
    partition="{dept}",
    row="{id:06d}",
    access=[
        access("one", get=("dept", "id")),
        access("by last name", where=("last",), allow="scan"),
    ],
)
class Employee:
    dept: str
    id: int
    last: str
"""
LOADS = """
[Employee]
entities = 1_000
partitions = 10
[Employee.access]
one = { rate = 5 }
"by last name" = { rate = %s, returns = 3 }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "designed_models.py").write_text(MODELS)
    (tmp_path / "loads.toml").write_text(LOADS % "0.1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


def run(*flags: str) -> int:
    return main(["patterns", "design", "designed_models:Employee", "--loads", "loads.toml", *flags])


def test_a_type_without_accesses_is_told_to_declare_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = MODELS[: MODELS.index("    access=[")] + MODELS[MODELS.index(")\nclass") :]
    (folder / "designed_without.py").write_text(models)
    (folder / "loads.toml").write_text("[Employee]\nentities = 10\npartitions = 2\n")

    assert main(["patterns", "design", "designed_without", "--loads", "loads.toml"]) == 0

    told = capsys.readouterr().out
    assert "declare accesses with @entity(access=[access(...)])" in told
    assert "From the accesses alone" not in told


@pytest.mark.usefixtures("folder")
def test_the_design_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0

    told = capsys.readouterr().out
    assert "entities per second" in told
    assert "Scan: Employee: by last name" in told
    assert "guide: Inter-partition secondary index pattern" in told
    assert "at prices of 20" in told


def test_the_design_is_one_line_of_json_with_the_page_beside_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--json", "--html", "design.html") == 0

    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["traffic"]] == ["one", "by last name"]
    assert found["page"] == "design.html"
    assert "<svg" in (folder / "design.html").read_text("utf-8")


def test_the_status_is_1_above_a_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "loads.toml").write_text(LOADS % "50")

    assert run() == 1
    assert "HotPartition" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("flags", [("--prices", "none.toml"), ("--html", "no/where.html")])
def test_a_file_that_cannot_be_used_is_named(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 2

    told = capsys.readouterr().err
    assert flags[1] in told
    assert flags[0] in told
