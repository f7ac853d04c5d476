"""The commands of the typed layer: connection strings, modules, workers, rebuilds."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from partita.cli.kit.facts import as_text
from partita.cli.main import main
from partita.cli.patterns.facts import DriftFacts, IndexesVerified
from partita.cli.patterns.worker import _stopping
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
        for number in range(1_250)
    ]

    facts = IndexesVerified(False, {"Employee": 1_250}, drifts, 0, 0)
    lines = as_text(facts.lines()).splitlines()

    assert len([line for line in lines if "missing" in line]) == 100
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
