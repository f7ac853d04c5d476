"""The examples of shards run as they stand, on SQLite and on PostgreSQL."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shards.conftest import NewDatabase

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def three(new: NewDatabase) -> list[str]:
    return [new(name) for name in ("catalog", "one", "two")]


def test_the_example_of_shards_runs(database_urls: NewDatabase, tmp_path: Path) -> None:
    run("shards.py", *three(database_urls), folder=tmp_path)


def check_the_blogs(said: str) -> None:
    assert "blogs: Answers (42), Cucina (150), Seven seas (7)\n" in said
    assert "languages: {'en': 2, 'it': 1}\n" in said
    assert "upgraded: 0001 to 0002, 0001 to 0002\n" in said
    assert "Range(40, 100) is on the second shard: True\n" in said
    assert re.search(r"^\d+ of \d+ comments are there, .*: True$", said, re.MULTILINE)
    assert "rows left behind: 0\n" in said
    assert "all shards are current and without drift: True\n" in said


@pytest.mark.proof
def test_the_blogs_run_on_postgresql(new_postgres: NewDatabase, tmp_path: Path) -> None:
    check_the_blogs(run("blogs/app.py", *three(new_postgres), folder=tmp_path))


def test_the_blogs_run_on_sqlite_without_an_argument(tmp_path: Path) -> None:
    check_the_blogs(run("blogs/app.py", folder=tmp_path))
