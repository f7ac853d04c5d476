"""The code in README and tutorial runs as it stands."""

import json
import subprocess
import sys
from pathlib import Path

from docs.sources import PROJECT, code_blocks
from support.live import ANY_PORTS


def run(code: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_runs_in_one_process(tmp_path: Path) -> None:
    blocks = code_blocks(PROJECT / "README.md", "python")

    assert blocks
    for block in blocks:
        run(block, tmp_path)


def test_the_readme_runs_against_a_server(tmp_path: Path) -> None:
    blocks = code_blocks(PROJECT / "README.md", "python server")
    command = [sys.executable, "-m", "partita.cli.main", "serve", *ANY_PORTS, "--json"]

    assert blocks
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            start = json.loads(server.stdout.readline())
            for block in blocks:
                assert '"UseDevelopmentStorage=true"' in block
                connection_string = json.dumps(start["connection_string"])
                run(block.replace('"UseDevelopmentStorage=true"', connection_string), tmp_path)
        finally:
            server.kill()


def test_the_tutorial_is_one_program_that_runs(tmp_path: Path) -> None:
    blocks = code_blocks(PROJECT / "docs" / "tutorial.md", "python")

    assert len(blocks) > 5
    run("\n".join(blocks), tmp_path)


def test_the_program_that_shows_its_state_runs(tmp_path: Path) -> None:
    (block,) = code_blocks(PROJECT / "docs" / "operations" / "console.md", "python")

    run(block, tmp_path)


def test_the_example_of_tables_runs(tmp_path: Path) -> None:
    run((PROJECT / "examples" / "tables.py").read_text("utf-8"), tmp_path)


def test_the_example_of_queues_and_blobs_runs(tmp_path: Path) -> None:
    run((PROJECT / "examples" / "companions.py").read_text("utf-8"), tmp_path)
