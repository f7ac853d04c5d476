"""Transactions with isolation="snapshot": the first committer wins."""

import asyncio
from typing import Any, cast

import pytest

from partita.errors import LockTimeoutError, UsageError, WriteConflictError
from partita.reliable import LockMode, ReliableDictionary, Transaction
from partita.reliable.manager.state_manager import StateManager
from support.states import a_state, key_locks_of, settle, simulate

Numbers = ReliableDictionary[str, int]


async def opened(state: StateManager, **rows: int) -> Numbers:
    numbers = await state.dictionary("numbers", key=str, value=int)
    for key, number in rows.items():
        await numbers.auto.set(key, number)
    return numbers


async def test_reads_see_the_state_at_the_beginning_and_take_no_key_locks() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        async with state.transaction(isolation="snapshot") as tx:
            await numbers.auto.set("a", 2)
            await numbers.auto.set("b", 2)

            assert await numbers.get(tx, "a") == 1
            assert await numbers.get_many(tx, ["a", "b"]) == {"a": 1}
            assert not await numbers.contains(tx, "b")
            assert [row async for row in numbers.items(tx)] == [("a", 1)]
            assert key_locks_of(tx) == []


async def test_own_writes_are_seen_at_once() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        async with state.transaction(isolation="snapshot") as tx:
            await numbers.set(tx, "a", 5)
            assert await numbers.upsert(tx, "a", 0, lambda number: number + 1) == 6
            assert await numbers.pop(tx, "a") == 6
            assert not await numbers.contains(tx, "a")

        assert await numbers.auto.count() == 0


async def test_the_first_committer_wins() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        first = state.transaction(isolation="snapshot")
        second = state.transaction(isolation="snapshot")
        await numbers.set(second, "a", await numbers.get(second, "a") + 10)
        await numbers.set(first, "a", await numbers.get(first, "a") + 100)

        await first.commit()
        with pytest.raises(WriteConflictError) as caught:
            await second.commit()

        assert caught.value.facts["key"] == "a"
        assert await numbers.auto.get("a") == 101
        assert state.core.locks.is_empty()


async def test_a_write_to_another_row_does_not_conflict() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1, b=1)
        async with state.transaction(isolation="snapshot") as tx:
            await numbers.set(tx, "a", await numbers.get(tx, "b") + 1)
            await numbers.auto.set("b", 7)

        assert await numbers.auto.get("a") == 2


async def test_a_row_that_was_read_for_update_must_not_change() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1, b=1)
        tx = state.transaction(isolation="snapshot")
        await numbers.set(tx, "a", await numbers.get(tx, "b", lock=LockMode.UPDATE) + 1)
        await numbers.auto.set("b", 7)

        with pytest.raises(WriteConflictError):
            await tx.commit()


@pytest.mark.parametrize("change", ["clear", "delete"])
async def test_a_row_that_was_removed_is_a_conflict(change: str) -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        tx = state.transaction(isolation="snapshot")
        if change == "clear":
            await numbers.auto.clear()
        else:
            await numbers.auto.delete("a")
        await numbers.set(tx, "a", 2)

        with pytest.raises(WriteConflictError):
            await tx.commit()


async def test_a_clear_conflicts_with_every_write_since() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        tx = state.transaction(isolation="snapshot")
        await numbers.auto.set("b", 2)
        await numbers.clear(tx)

        with pytest.raises(WriteConflictError):
            await tx.commit()

        assert await numbers.auto.count() == 2


async def test_the_commit_waits_for_a_lock_and_then_finds_the_conflict() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        locking = state.transaction()
        await numbers.set(locking, "a", 2)

        async def write() -> None:
            async with state.transaction(isolation="snapshot") as tx:
                await numbers.set(tx, "a", 3)

        waiting = asyncio.create_task(write())
        await settle()
        await locking.commit()

        with pytest.raises(WriteConflictError):
            await waiting


async def test_a_lock_that_is_not_free_in_time_aborts_the_commit() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        async with state.transaction() as locking:
            await numbers.set(locking, "a", 2)
            tx = state.transaction(isolation="snapshot", timeout=0)
            await numbers.set(tx, "a", 3)

            with pytest.raises(LockTimeoutError):
                await tx.commit()

            assert tx.status.value == "aborted"


async def test_queues_work_as_in_other_transactions() -> None:
    async with a_state() as state:
        queue = await state.queue("queue", value=int)
        await queue.auto.enqueue(1)
        async with state.transaction(isolation="snapshot") as tx:
            await queue.auto.enqueue(2)

            assert await queue.dequeue_many(tx, 5) == [1, 2]


def test_run_repeats_after_a_conflict_so_that_no_increment_is_lost() -> None:
    async def scenario(state: StateManager) -> int:
        numbers = await opened(state, a=0)

        async def increment(tx: Transaction) -> None:
            await numbers.set(tx, "a", await numbers.get(tx, "a") + 1)
            await asyncio.sleep(0.01)

        work = (state.run(increment, isolation="snapshot", attempts=100) for _ in range(8))
        await asyncio.gather(*work)
        return await numbers.auto.get("a")

    assert simulate(scenario) == 8


async def test_another_word_for_the_isolation_is_refused() -> None:
    async with a_state() as state:
        with pytest.raises(UsageError, match="neither 'locks' nor 'snapshot'"):
            state.transaction(isolation=cast("Any", "serializable"))


async def test_two_transactions_may_each_read_what_the_other_writes() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1, b=1)
        first = state.transaction(isolation="snapshot")
        second = state.transaction(isolation="snapshot")
        await numbers.set(first, "a", await numbers.get(first, "b") - 1)
        await numbers.set(second, "b", await numbers.get(second, "a") - 1)

        await first.commit()
        await second.commit()

        assert await numbers.auto.get_many(["a", "b"]) == {"a": 0, "b": 0}


async def test_locks_do_not_let_two_transactions_each_read_what_the_other_writes() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1, b=1)
        async with state.transaction() as first, state.transaction() as second:
            await numbers.get(first, "b")
            await numbers.get(second, "a")

            with pytest.raises(LockTimeoutError) as refused:
                await numbers.set(first, "a", 0, timeout=0)
            assert refused.value.holder == second.id
            with pytest.raises(LockTimeoutError):
                await numbers.set(second, "b", 0, timeout=0)


async def test_an_absent_row_that_was_read_for_update_must_stay_absent() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        tx = state.transaction(isolation="snapshot")
        assert await numbers.get(tx, "b", None, lock=LockMode.UPDATE) is None
        await numbers.set(tx, "a", 2)
        await numbers.auto.set("b", 1)

        with pytest.raises(WriteConflictError) as caught:
            await tx.commit()

        assert caught.value.facts["key"] == "b"
        assert await numbers.auto.get("a") == 1


async def test_a_row_that_was_changed_and_changed_back_is_a_conflict() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        tx = state.transaction(isolation="snapshot")
        await numbers.set(tx, "a", await numbers.get(tx, "a") + 1)
        await numbers.auto.set("a", 7)
        await numbers.auto.set("a", 1)

        with pytest.raises(WriteConflictError):
            await tx.commit()


async def test_a_conflict_discards_every_write_of_the_transaction() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1, b=1)
        queue = await state.queue("queue", value=int)
        tx = state.transaction(isolation="snapshot")
        await numbers.set(tx, "a", 2)
        await numbers.set(tx, "b", 2)
        await queue.enqueue(tx, 2)
        await numbers.auto.set("b", 9)

        with pytest.raises(WriteConflictError):
            await tx.commit()

        assert await numbers.auto.get_many(["a", "b"]) == {"a": 1, "b": 9}
        assert await queue.auto.count() == 0


async def test_a_transaction_that_only_reads_never_conflicts() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        async with state.transaction(isolation="snapshot") as tx:
            assert await numbers.get(tx, "a") == 1
            await numbers.auto.set("a", 2)

        assert tx.commit_sequence is None


async def test_a_write_of_the_transaction_itself_does_not_conflict_with_its_reads() -> None:
    async with a_state() as state:
        numbers = await opened(state, a=1)
        async with state.transaction(isolation="snapshot") as tx:
            found = await numbers.get(tx, "a", lock=LockMode.UPDATE)
            await numbers.set(tx, "a", found + 1)
            await numbers.set(tx, "a", found + 2)

        assert await numbers.auto.get("a") == 3
