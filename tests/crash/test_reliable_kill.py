"""kill -9 again and again, of a process whose clients commit, and a ledger that outlives it.

Between two lives the folder is opened here and compared with the ledger.
"""

import asyncio
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import partita
from crash.commit_transactions import CLIENTS, Desk
from crash.state_ledger import WORKER, Ledger, a_worker
from partita.errors import StoreLockedError
from support.repeats import IS_PROOF, repeat

ROUNDS = repeat(4, 12, 30)
"""Kills of one folder."""
FOLDERS = repeat(1, 1, 10)


@pytest.mark.repeated
@pytest.mark.parametrize("folder", range(FOLDERS))
@pytest.mark.timeout(1800)
def test_a_killed_process_has_kept_every_acknowledged_transaction_exactly_once(
    tmp_path: Path, folder: int
) -> None:
    chance = random.Random(folder)
    ledger = Ledger(tmp_path)
    life = 0
    # A busy machine may need more of them until a kill has come between a commit and its answer.
    while life < ROUNDS or len(ledger.told) <= ROUNDS * CLIENTS or (IS_PROOF and ledger.kept == 0):
        life += 1
        with a_worker(tmp_path, ["checkpoints"] if life % 3 else []) as worker:
            if life % 6 == 5:
                time.sleep(chance.uniform(0.1, 0.4))  # it may not even be open
            else:
                worker.wait_until_open()
                time.sleep(chance.uniform(0.0, 0.3))
            worker.kill()

        assert asyncio.run(ledger.faults()) == [], f"folder {folder}, life {life}"

    print(f"{life} kills, {len(ledger.told)} told, {ledger.kept} there and not told")


@pytest.mark.repeated
def test_the_fast_mode_loses_nothing_to_a_kill(tmp_path: Path) -> None:
    """Only a power cut takes from it: the kernel still holds what a dead process has written."""
    chance = random.Random(1)
    ledger = Ledger(tmp_path)
    for life in range(repeat(2, 6, 6)):
        with a_worker(tmp_path, ["fast", "checkpoints"] if life % 2 else ["fast"]) as worker:
            worker.wait_until_told(2 * CLIENTS)
            time.sleep(chance.uniform(0.0, 0.1))
            worker.kill()

        assert asyncio.run(ledger.faults()) == [], f"life {life}"


@pytest.mark.repeated
@pytest.mark.skipif(shutil.which("strace") is None, reason="only strace can kill at a system call")
@pytest.mark.parametrize("calls", ["rename", "unlink,unlinkat", "fsync,fdatasync"])
def test_a_process_that_is_killed_while_it_replaces_files_has_lost_nothing(
    tmp_path: Path, calls: str
) -> None:
    ledger = Ledger(tmp_path)
    times = (1, 2, 3, 5, 8, 13) if "," in calls else (2, 3, 4, 5, 6, 7)
    for when in repeat(times[3:4], times, times):
        faults = ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={when}"]
        prefix = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), *faults]
        with a_worker(tmp_path, ["checkpoints"], prefix) as worker:
            worker.wait()

        assert worker.process.returncode != 0
        assert "killed by SIGKILL" in (tmp_path / "trace").read_text()
        assert asyncio.run(ledger.faults()) == [], f"{calls} {when}"


def test_a_second_process_is_told_who_holds_the_state_until_that_is_killed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with a_worker(tmp_path) as first:
        first.wait_until_open()

        with pytest.raises(StoreLockedError) as refused:
            asyncio.run(ledger.faults())
        second = subprocess.run(
            [sys.executable, str(WORKER), str(tmp_path / "state")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        first.kill()

    assert refused.value.facts["holder"] == str(first.process.pid)
    assert refused.value.facts["program"] == WORKER.name
    assert refused.value.hint
    assert second.stdout == ""
    assert f"StoreLocked: The folder {tmp_path / 'state'} is in use by process" in second.stderr
    assert f"{first.process.pid} ({WORKER.name}" in second.stderr
    assert asyncio.run(ledger.faults()) == []


# The same ledger must find processes that are broken on purpose.


@pytest.mark.parametrize(
    ("variant", "fault"),
    [("early", "told, "), ("halves", "account "), ("twice", "account ")],
    ids=["tells before it commits", "moves money in two transactions", "does work again"],
)
def test_a_broken_process_is_found_out(tmp_path: Path, variant: str, fault: str) -> None:
    ledger = Ledger(tmp_path)
    with a_worker(tmp_path, [variant]) as worker:
        if variant == "twice":
            worker.wait_until_told(10 * CLIENTS)
            worker.kill()
        worker.wait()

    wrong = asyncio.run(ledger.faults())

    assert any(fault in line for line in wrong), wrong


def test_the_ledger_finds_an_item_that_was_taken_and_not_noted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)

    async def lose_one() -> bool:
        """Take an item, if the kill has left one."""
        async with partita.open_state(tmp_path / "state") as state:
            desk = await Desk(state).open()
            async with state.transaction() as tx:
                return await desk.outbox.dequeue(tx, None) is not None

    is_lost = False
    while not is_lost:
        with a_worker(tmp_path) as worker:
            worker.wait_until_told(CLIENTS)
            worker.kill()
        is_lost = asyncio.run(lose_one())

    (wrong,) = asyncio.run(ledger.faults())
    assert "the queue lost" in wrong
