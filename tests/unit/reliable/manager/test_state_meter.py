"""The metrics of an open state in `partita.metrics.render()`."""

import asyncio
from pathlib import Path

import pytest

import partita
from partita.errors import DeadlockError, LockTimeoutError
from partita.metrics import render
from partita.reliable import StateManager, Transaction


def values(name: str) -> dict[str, float]:
    label = f'{{state="{name}"}}'
    lines = (line.rpartition(" ") for line in render().splitlines() if label in line)
    return {left.replace(label, ""): float(value) for left, _, value in lines}


async def test_commits_records_and_files_are_measured(tmp_path: Path) -> None:
    name = str(tmp_path / "state")
    async with partita.open_state(name) as state:
        counts = await state.dictionary("counts", key=int, value=int)
        before = values(name)

        async def put(key: int) -> None:
            async with state.transaction() as tx:
                await counts.set(tx, key, key)

        await asyncio.gather(*map(put, range(20)))
        await state.checkpoint()
        await state.backup(tmp_path / "backups")
        async with state.transaction() as tx:
            await counts.set(tx, 1, 2)
            while_open = values(name)
        after = values(name)
        sequence, size = state.sequence, state.log_bytes

    grown = {each: after[each] - before.get(each, 0) for each in after}
    assert grown["partita_state_commits_total"] == 21
    assert 1 < grown["partita_state_records_total"] < 21, "transactions share records"
    assert (
        grown["partita_state_commit_duration_seconds_count"] == grown["partita_state_records_total"]
    )
    assert after["partita_state_replica_role"] == 1
    assert after["partita_state_sequence"] == sequence
    assert after["partita_state_replica_lag_records"] == 0
    assert after["partita_state_log_bytes"] == size
    assert after["partita_state_checkpoint_duration_seconds_count"] == 1
    assert after["partita_state_checkpoint_sequence"] == sequence - 1
    assert after["partita_state_backup_age_seconds"] >= 0
    assert (while_open["partita_state_transactions_open"], while_open["partita_state_locks"]) == (
        1,
        2,
    )
    assert (after["partita_state_transactions_open"], after["partita_state_locks"]) == (0, 0)
    assert values(name) == {}, "a closed state is not printed"


async def test_waits_time_outs_and_deadlocks_are_counted(tmp_path: Path) -> None:
    name = str(tmp_path / "state")
    async with partita.open_state(name) as state:
        counts = await state.dictionary("counts", key=int, value=int)

        async with state.transaction() as tx:
            await counts.set(tx, 1, 1)
            await _refused(state, LockTimeoutError, 0.0)
            await _refused(state, LockTimeoutError, 0.01)
        both = asyncio.Event()

        async def lock(first: int, second: int) -> str:
            try:
                async with state.transaction() as tx:
                    await counts.set(tx, first, 1)
                    if len(state.core.active) == 2:
                        both.set()
                    await both.wait()
                    await counts.set(tx, second, 1)
            except DeadlockError:
                return "deadlock"
            return "done"

        outcomes = await asyncio.gather(lock(1, 2), lock(2, 1))
        found = values(name)

    assert sorted(outcomes) == ["deadlock", "done"]
    assert found["partita_state_deadlocks_total"] == 1
    assert found["partita_state_lock_timeouts_total"] == 2
    assert found["partita_state_lock_wait_seconds_count"] == 3, "one did not wait at all"


async def test_states_of_the_same_name_have_labels_of_their_own(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path / "one") as one:
        one.measure("twin")
        async with partita.open_state(tmp_path / "two") as two:
            two.measure("twin")
            shown = [values("twin"), values("twin#2"), values(str(tmp_path / "two"))]
        left = values("twin#2")

    assert [bool(each) for each in shown] == [True, True, False]
    assert left == values("twin") == {}


async def _refused(state: StateManager, expected: type[Exception], timeout: float) -> None:
    counts = await state.dictionary("counts", key=int, value=int)

    async def work(tx: Transaction) -> None:
        await counts.set(tx, 1, 2)

    async def attempt() -> None:
        async with state.transaction(timeout=timeout) as tx:
            await work(tx)

    with pytest.raises(expected):
        await asyncio.create_task(attempt())
