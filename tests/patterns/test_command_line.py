"""The commands of the typed layer: connection strings, modules, workers, rebuilds."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from partita.cli.kit.facts import as_text
from partita.cli.main import main
from partita.cli.patterns.facts import DriftFacts, IndexesVerified, drift_counts
from partita.cli.patterns.worker import Pace, Worker, _stopping
from partita.clock import ManualClock
from partita.errors import UnavailableError
from support.terminal import run_on_terminal


def test_the_example_of_a_connection_string_is_told_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["patterns", "poison", "--connect", "AccountKey=c2VjcmV0"])

    told = capsys.readouterr().err
    assert status == 2
    assert "AccountKey=...;" in told
    assert "c2VjcmV0" not in told


def test_a_module_that_is_refused_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = MODELS.replace(", unique=True", "")  # two employees could share an address
    (tmp_path / "refused_models.py").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])

    status = main(["patterns", "check", "refused_models"])

    told = capsys.readouterr().err
    assert status == 2
    assert "IndexRefused" in told
    assert told.endswith("Check line 10 of refused_models.py.\n")


def test_a_worker_for_encrypted_fields_is_not_started_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed = MODELS.replace(
        "    email: str", "    email: str\n    pay: Annotated[int, Encrypted] = 0"
    )
    imports = "from typing import Annotated\nfrom partita.patterns import Encrypted, Keyring"
    keys = "keyring = Keyring({'2025': bytes(32)})"
    (tmp_path / "sealed_models.py").write_text(f"{imports}\n{sealed}\n{keys}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    command = ["patterns", "worker", "sealed_models", "--once", "--connect", "partita:./kept"]

    assert main(command) == 2
    assert "Give --keyring MODULE:NAME." in capsys.readouterr().err
    assert main([*command, "--keyring", "sealed_models:keyring"]) == 0


def test_of_many_differences_people_are_shown_some_and_told_of_the_rest() -> None:
    drifts = [
        DriftFacts("Employee", "missing", "by_email", "staff", "Sales", f"emp_{number:06d}")
        for number in range(1_200)
    ]
    drifts += [DriftFacts("Employee", "stale", "total", "staff", "Sales", "emp")] * 50

    facts = IndexesVerified(False, {"Employee": 1_250}, drift_counts(drifts), drifts, 0, 0)
    lines = as_text(facts.lines()).splitlines()

    assert [line.split() for line in lines[:4]] == [
        ["Employee:", "1,250", "read."],
        ["type", "index", "or", "field", "wrong", "count"],
        ["Employee", "by_email", "missing", "1,200"],
        ["Employee", "total", "stale", "50"],
    ]
    assert len([line for line in lines if "emp_" in line]) == 100
    assert lines[-2:] == [
        "... and 1,150 more; --json has them all.",
        "1,250 differences: repair them with --repair.",
    ]


async def test_after_a_signal_to_a_worker_the_next_one_waits_for_no_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = asyncio.Event()

    with _stopping(asyncio.get_running_loop(), stop):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 10)
        actions = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    assert actions == [signal.SIG_DFL, signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) == before


class Late:
    """A session whose service is down for the first attempts, and then up."""

    place = "http://127.0.0.1:10002"

    def __init__(self, failures: int) -> None:
        self.db = self
        self.attempts = 0
        self._failures = failures

    async def read_states(self) -> None:
        self.attempts += 1
        if self.attempts <= self._failures:
            raise UnavailableError("ServiceUnreachable", "The service did not answer.")

    create_tables = read_states


def waiting_worker(session: Any, stop: asyncio.Event, *, is_once: bool = False) -> Worker:
    pace = Pace(tasks=1, poll=0.0, sweep_every=0.0, sweep_age=60.0, is_once=is_once)
    return Worker(session, pace, ManualClock(), stop)


@pytest.mark.parametrize("creates", [False, True])
async def test_a_worker_that_is_started_before_the_server_waits_and_says_so(
    creates: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    late = Late(failures=1)

    await waiting_worker(late, asyncio.Event()).prepare(creates=creates)

    assert late.attempts == 2
    assert capsys.readouterr().err == (
        "partita worker: waiting for http://127.0.0.1:10002, which cannot be used: "
        "ServiceUnreachable: The service did not answer.\n"
    )


async def test_a_worker_that_waits_for_the_server_stops_on_a_signal() -> None:
    late, stop = Late(failures=1000), asyncio.Event()
    waiting = asyncio.ensure_future(waiting_worker(late, stop).prepare(creates=False))
    await asyncio.sleep(0)

    stop.set()

    await asyncio.wait_for(waiting, 10)


async def test_a_worker_that_runs_once_does_not_wait_for_the_server() -> None:
    worker = waiting_worker(Late(failures=1), asyncio.Event(), is_once=True)

    with pytest.raises(UnavailableError):
        await worker.prepare(creates=False)


MODELS = """
from partita.patterns import entity, index

@entity(table="staff", partition="{dept}", row="emp_{id:06d}", name="Employee")
class Employee:
    dept: str
    id: int
    email: str

by_email = index(Employee, row="email_{email}", unique=True, name="by_email")
"""


@pytest.mark.parametrize("size", [(0, 0), (24, 80)])
def test_a_rebuild_draws_its_progress_on_a_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    partita = str(Path(sys.executable).parent / "partita")

    done = run_on_terminal(
        [partita, "patterns", "rebuild", "models:by_email", "--connect", "partita:./kept"],
        cwd=tmp_path,
        size=size,
    )

    assert done.status == 0
    assert "rebuild: 0 entities" in done.drawn
    assert "by_email of Employee: 0 entities; it is readable." in done.out
