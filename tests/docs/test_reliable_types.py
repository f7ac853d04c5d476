"""The programs of docs/reliable pass a strict type check, as their readers' editors do it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.sources import PROJECT, code_blocks
from docs.test_reliable_tutorial import DOCUMENTS, save

PAGES = ["tutorial.md", "testing.md"]
JOINED = ["semantics.md", "versioning.md"]
"""Pages whose blocks are one program."""


@pytest.mark.proof
def test_every_program_passes_mypy_in_strict_mode(tmp_path: Path) -> None:
    for page in PAGES:
        save(page, tmp_path)
    for page in JOINED:
        text = "\n\n".join(code_blocks(DOCUMENTS / page, "python"))
        (tmp_path / page.replace(".md", ".py")).write_text(text, "utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(PROJECT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )

    assert done.returncode == 0, done.stdout + done.stderr
