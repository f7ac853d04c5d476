"""The example of the design guide runs on Azurite as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from azurite.emulator import Emulator

PROJECT = Path(__file__).parents[2]


@pytest.mark.timeout(90)
def test_the_example_of_the_patterns_runs(emulator: Emulator) -> None:
    done = subprocess.run(
        [sys.executable, "examples/patterns.py", emulator.connection_string()],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "TABLE SCAN" in done.stdout
