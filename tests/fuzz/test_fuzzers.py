"""The coverage-guided fuzzers themselves, for `make soak`: each target for some minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

SECONDS = 180


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzer_finds_nothing(target: str) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel for this platform")

    script = Path(__file__).with_name("run.py")
    ended = subprocess.run(
        [sys.executable, str(script), target, "--seconds", str(SECONDS)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
