"""The wire tests of the core, with a front end behind PgBouncer in transaction mode."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.pgbouncer import PATHS

TESTS = Path(__file__).parent.parent
CORE = (
    *("test_wire_batches.py", "test_wire_conditions.py", "test_wire_service.py"),
    *("test_queue_wire.py", "test_blob_wire.py", "test_python_sdk_transactions.py"),
)
POOLED = {
    "PARTITA_TEST_STORE": "postgresql",
    # Two would notice changed properties later, by polling: a pooler passes on no announcement.
    "PARTITA_TEST_FRONT_ENDS": "1",
    "PARTITA_TEST_POOLER": "pgbouncer",
}


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    shutil.which("pgbouncer", path=PATHS) is None,
    reason="PgBouncer is not installed: apt-get install pgbouncer",
)
def test_the_wire_tests_of_the_core_pass() -> None:
    files = [str(TESTS / "wire" / name) for name in CORE]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not soak", *files],
        check=False,
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        env=os.environ | POOLED,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
