"""Clients that were not written here, each with a program of its own, against a live server.

`make clients` installs them from their lock into an environment of their own and runs this. A
program asserts what it read, and ends with another status if a client failed.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.sources import PROJECT
from support.live import LiveServer

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
INSTALLED = os.environ.get("PARTITA_CLIENTS", "")
"""The folder of the environment that `make clients` creates."""
NEEDS = {"az_command": "az", "restic_backup": "restic", "azcopy_transfers": "azcopy"}
"""Programs that are not in the lock, because of their size or because no index has them."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not INSTALLED, reason="run `make clients`: it installs the clients"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with tempfile.TemporaryDirectory() as folder:
        live = LiveServer(Path(folder), "--in-memory")
        yield live
        live.stop()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_client_works(program: Path, server: LiveServer, tmp_path: Path) -> None:
    needed = NEEDS.get(program.stem)
    path = f"{Path(INSTALLED) / 'bin'}:{os.environ['PATH']}"
    if needed is not None and shutil.which(needed, path=path) is None:
        pytest.skip(f"{needed} is not installed")
    _save_recipe("web-shards.md", tmp_path)

    done = subprocess.run(
        [Path(INSTALLED) / "bin" / "python", program],
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": path,
            "PYTHONPATH": str(tmp_path),
            "AZURE_STORAGE_CONNECTION_STRING": server.connection_string,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def _save_recipe(page: str, folder: Path) -> None:
    """Save the programs of a recipe, for those that import them."""
    text = (PROJECT / "docs" / "recipes" / page).read_text("utf-8")
    blocks = re.findall(r"^```python (\S+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for name, block in blocks:
        (folder / name).write_text(block, "utf-8")
