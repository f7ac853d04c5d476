"""Five common operations cross few files; docs/architecture.md has the table."""

import subprocess
import sys

import pytest

from docs.sources import PROJECT


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    """The table that the tool prints: path, files, calls, limit. A profiler needs a process."""
    done = subprocess.run(
        [sys.executable, PROJECT / "tools" / "trace_paths.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()[2:]
    ]


def test_a_path_crosses_no_more_files_than_it_may(rows: list[list[str]]) -> None:
    assert len(rows) == 5
    assert {path: int(files) for path, files, _, _ in rows} == {
        path: min(int(files), int(most.split()[0])) for path, files, _, most in rows
    }


def test_the_document_has_the_figures(rows: list[list[str]]) -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text("utf-8")

    for path, files, _, most in rows:
        assert f"| {path} | {files} |" in text, f"{path} crosses {files} files, at most {most}"
