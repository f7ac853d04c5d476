"""Clients of two front ends of a fleet whose ranges are split, merged and moved all the time.

The SDKs for Python and JavaScript by the tests of `wire`, the example of typed entities, and
writers and workers of an outbox: they pass as on one folder.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.outbox import NEWER, OLDER, GuestLedger, Hotel, settle
from chaos.scenario import RECOVERY_SECONDS_MAX
from chaos.services import SERVICES, World
from support.repeats import repeat

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

PROJECT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PARTITA_")},
    "PYTHONPATH": str(PROJECT / "tests"),
    "PARTITA_TEST_STORE": "postgresql",
    "PARTITA_TEST_FRONT_ENDS": "2",
    "PARTITA_TEST_SHARDS": "3",
}
SUITES = ("test_javascript_sdk.py", "test_python_sdk.py", "test_python_sdk_transactions.py")
SUITE_SECONDS_MAX = 600
OUTBOX_SECONDS = repeat(4, 8, 60)


class MovingFleet:
    """What a live server announced, and at its end how often ranges were changed."""

    def __init__(self, announced: dict[str, Any]) -> None:
        self.announced = announced
        self.changes: dict[str, int] = {}


@contextlib.contextmanager
def moving_fleet(folder: Path) -> Iterator[MovingFleet]:
    with subprocess.Popen(
        [sys.executable, "-m", "support.live"],
        env=ENVIRONMENT,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            fleet = MovingFleet(json.loads(process.stdout.readline()))
            yield fleet
            process.send_signal(signal.SIGTERM)
            fleet.changes = json.loads(process.stdout.readline())
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


@pytest.mark.parametrize("suite", SUITES)
def test_the_tests_of_the_sdks_pass_while_ranges_move(suite: str, tmp_path: Path) -> None:
    changes = tmp_path / "changes"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-m", "not soak and not proof", f"tests/wire/{suite}"),
        ],
        env=ENVIRONMENT | {"PARTITA_TEST_CHANGES": os.fspath(changes)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    found = [json.loads(line) for line in changes.read_text("utf-8").splitlines()]
    print(done.stdout.splitlines()[-1], found)
    assert sum(each.get("moves", 0) for each in found) > 0


def test_the_example_of_typed_entities_passes_while_ranges_move(tmp_path: Path) -> None:
    with moving_fleet(tmp_path) as fleet:
        example = PROJECT / "examples" / "patterns.py"
        subprocess.run(
            [sys.executable, example, fleet.announced["connection_string"]],
            env=ENVIRONMENT,
            check=True,
            timeout=SUITE_SECONDS_MAX,
        )

    assert fleet.changes["moves"] > 0


def test_writers_and_workers_of_an_outbox_lose_nothing_while_ranges_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of two programs, one of them killed; then the newer one does all waiting work."""
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    with moving_fleet(tmp_path) as fleet:
        ports = {
            name: SimpleNamespace(port=_port_of(fleet.announced[f"{name}_endpoint"]))
            for name in SERVICES
        }
        told = threading.Event()
        world = SimpleNamespace(proxies=ports, told=lambda *_: told.set())
        hotel = Hotel(cast("World", world), GuestLedger(), random.Random(19))
        with contextlib.closing(hotel):
            hotel.create()
            for module in (NEWER, OLDER):
                hotel.start_worker(module)
            for _ in range(2):
                hotel.start_writer()
            assert told.wait(RECOVERY_SECONDS_MAX)
            time.sleep(OUTBOX_SECONDS / 2)
            hotel.workers[NEWER].kill()
            hotel.workers[NEWER].wait()
            hotel.start_worker(NEWER)
            time.sleep(OUTBOX_SECONDS / 2)
            assert settle(hotel, RECOVERY_SECONDS_MAX) == []
            assert hotel.ledger.acknowledged > 0

    assert fleet.changes["moves"] > 0


def _port_of(endpoint: str) -> int:
    return int(endpoint.split("/")[2].rpartition(":")[2])
