"""The tests themselves: where their files are, what they are called, and how they are compared."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from docs.sources import PACKAGE, PROJECT

UNIT = PROJECT / "tests" / "unit"
DATA = {"golden"}
"""Folders of stored bytes, beside the tests that read them."""
ORIGINS = ("review", "audit", "issue", "finding")
"""How a test arose says nothing about what it tests."""

count_assertions: Any = runpy.run_path(str(PROJECT / "tools" / "count_assertions.py"))


def test_unit_tests_have_the_folders_of_the_package() -> None:
    folders = {
        path.relative_to(UNIT).as_posix()
        for path in UNIT.rglob("*")
        if path.is_dir() and path.name not in DATA | {"__pycache__"} and any(path.glob("*.py"))
    }

    assert {"tables", "patterns/keys", "reliable/storage"} <= folders
    assert {folder for folder in folders if not (PACKAGE / folder).is_dir()} == set()


def test_no_test_file_is_named_by_how_it_arose() -> None:
    names = [path.name for path in (PROJECT / "tests").rglob("test_*.py")]

    assert len(names) > 300
    assert [name for name in names if any(word in name for word in ORIGINS)] == []


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before", tmp_path / "after"
    for tree in (before, after):
        (tree / "tests" / "unit").mkdir(parents=True)
    write(before, "test_a.py", "def test_a():\n    assert 1 == 1  # so\n    assert (2 == 2)\n")
    return before, after


def write(tree: Path, name: str, text: str) -> None:
    (tree / "tests" / name).write_text(text, "utf-8")


def test_an_assertion_that_moves_is_not_missing(
    trees: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write(trees[1], "unit/test_b.py", "def test_a():\n    assert 2 == 2\n    assert 1 == 1\n")

    assert count_assertions["main"]([str(tree) for tree in trees]) == 0

    assert capsys.readouterr().out == (
        f"{trees[0]}: 1 test functions and 2 assertions in 1 files\n"
        f"{trees[1]}: 1 test functions and 2 assertions in 1 files\n"
    )


def test_assertions_and_tests_that_are_lost_are_listed(
    trees: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        trees[0], "test_b.py", "def test_b():\n    with pytest.raises(ValueError):\n        f()\n"
    )
    write(trees[1], "test_a.py", "def test_a():\n    assert 2 == 2\n")

    assert count_assertions["main"]([str(tree) for tree in trees]) == 1

    assert capsys.readouterr().out.splitlines()[:3] == [
        "missing test: test_b",
        "missing assertion: assert 1 == 1",
        "missing assertion: pytest.raises(ValueError)",
    ]
