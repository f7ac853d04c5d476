import asyncio
import gc
import logging
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from partita.errors import (
    DeadlockError,
    LockTimeoutError,
    PartitaError,
    StateClosedError,
    TransactionUseError,
    UsageError,
)
from partita.reliable import LockMode, ReliableDictionary, ReliableQueue, Transaction, sync
from partita.reliable.collections.transaction import Status
from partita.reliable.manager.state_manager import StateManager
from partita.simulation.loop import running_loop
from support.states import Machine, User, a_state, key_locks_of, settle, simulate

Numbers = ReliableDictionary[str, int]
T = TypeVar("T")


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    async with a_state() as opened:
        yield opened


@pytest.fixture
async def numbers(state: StateManager) -> Numbers:
    return await open_numbers(state)


async def open_numbers(state: StateManager) -> Numbers:
    """Hold a = 1 and b = 2."""
    numbers = await state.dictionary("numbers", key=str, value=int)
    async with state.transaction() as tx:
        await numbers.set(tx, "a", 1)
        await numbers.set(tx, "b", 2)
    return numbers


async def content(state: StateManager, numbers: Numbers) -> dict[str, int]:
    async with state.snapshot() as snapshot:
        return {key: value async for key, value in numbers.items(snapshot)}


class TestEnds:
    async def test_leaving_the_block_commits(self, state: StateManager, numbers: Numbers) -> None:
        async with state.transaction() as tx:
            await numbers.set(tx, "c", 3)
            assert (tx.status, tx.commit_sequence) == (Status.ACTIVE, None)

        assert tx.status is Status.COMMITTED
        assert tx.commit_sequence == state.sequence
        assert (await content(state, numbers))["c"] == 3

    async def test_an_exception_aborts_and_is_raised(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        before = state.sequence
        with pytest.raises(RuntimeError, match="never mind"):  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                await numbers.set(tx, "c", 3)
                raise RuntimeError("never mind")

        assert tx.status is Status.ABORTED
        assert state.sequence == before
        assert await content(state, numbers) == {"a": 1, "b": 2}

    async def test_a_cancelled_block_aborts(self, state: StateManager, numbers: Numbers) -> None:
        async def work() -> None:
            async with state.transaction() as tx:
                await numbers.set(tx, "c", 3)
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await content(state, numbers) == {"a": 1, "b": 2}
        assert state._core.locks.is_empty()

    async def test_an_explicit_commit_inside_the_block(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async with state.transaction() as tx:
            await numbers.set(tx, "c", 3)
            await tx.commit()
            assert (await content(state, numbers))["c"] == 3

    async def test_an_explicit_abort_inside_the_block(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async with state.transaction() as tx:
            await numbers.set(tx, "c", 3)
            await tx.abort()

        assert await content(state, numbers) == {"a": 1, "b": 2}
        assert state._core.locks.is_empty()

    async def test_an_error_after_the_commit_undoes_nothing(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                await numbers.set(tx, "c", 3)
                await tx.commit()
                raise RuntimeError

        assert (await content(state, numbers))["c"] == 3

    async def test_a_transaction_that_wrote_nothing_writes_no_record(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        before = state.sequence
        async with state.transaction() as tx:
            await numbers.get(tx, "a")
            await numbers.delete(tx, "nobody")

        assert (state.sequence, tx.commit_sequence) == (before, None)
        assert tx.status is Status.COMMITTED

    async def test_a_transaction_spans_any_collections(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        queue = await state.queue("queue", value=int)
        jobs = await state.concurrent_queue("jobs", value=int)
        before = state.sequence
        async with state.transaction() as tx:
            await numbers.set(tx, "c", 3)
            await queue.enqueue(tx, 1)
            await jobs.enqueue(tx, 1)

        assert state.sequence == before + 1
        async with state.snapshot() as snapshot:
            counts = [await one.count(snapshot) for one in (numbers, queue, jobs)]
        assert counts == [3, 1, 1]

    async def test_an_abort_leaves_no_trace_in_any_collection(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        queue = await state.queue("queue", value=int)
        jobs = await state.concurrent_queue("jobs", value=int)
        async with state.transaction() as tx:
            await queue.enqueue(tx, 1)
            await jobs.enqueue(tx, 1)
        digest = state.state.digest()

        tx = state.transaction()
        await numbers.clear(tx)
        await numbers.set(tx, "z", 1)
        await queue.dequeue(tx)
        await queue.enqueue(tx, 2)
        await jobs.dequeue(tx)
        await tx.abort()

        assert state.state.digest() == digest
        async with state.transaction() as tx:
            assert (await queue.peek(tx), await jobs.dequeue(tx)) == (1, 1)

    async def test_identifiers_differ(self, state: StateManager) -> None:
        opened = [state.transaction() for _ in range(10)]

        assert len({tx.id for tx in opened}) == 10
        for tx in opened:
            await tx.abort()

    async def test_commits_in_one_group_share_a_record_and_keep_their_order(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def put(number: int) -> int | None:
            async with state.transaction() as tx:
                await numbers.set(tx, f"k{number}", number)
            return tx.commit_sequence

        before = state.sequence
        sequences = await asyncio.gather(*(put(number) for number in range(50)))

        assert sequences == sorted(sequences, key=lambda sequence: sequence or 0)
        assert state.sequence - before < 50
        assert len(await content(state, numbers)) == 52


class TestMisuse:
    async def test_use_after_the_end_is_refused(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        queue = await state.queue("queue", value=int)
        jobs = await state.concurrent_queue("jobs", value=int)
        async with state.transaction() as tx:
            await numbers.get(tx, "a")

        async def enumerate_all(rows: Any) -> None:
            async for _ in rows:
                pass

        for use in (
            numbers.get(tx, "a"),
            numbers.get_many(tx, ["a"]),
            numbers.contains(tx, "a"),
            numbers.set(tx, "a", 1),
            numbers.add(tx, "c", 1),
            numbers.try_add(tx, "c", 1),
            numbers.upsert(tx, "a", 1, lambda old: old),
            numbers.get_or_add(tx, "a", 1),
            numbers.compare_and_set(tx, "a", 1, expected=1),
            numbers.pop(tx, "a"),
            numbers.delete(tx, "a"),
            numbers.clear(tx),
            numbers.count(tx),
            enumerate_all(numbers.items(tx)),
            enumerate_all(numbers.keys(tx)),
            enumerate_all(numbers.values(tx)),
            queue.enqueue(tx, 1),
            queue.dequeue(tx),
            queue.dequeue_many(tx, 2),
            queue.peek(tx),
            queue.count(tx),
            queue.clear(tx),
            enumerate_all(queue.items(tx)),
            jobs.enqueue(tx, 1),
            jobs.dequeue(tx),
            jobs.receive(tx, visibility=1),
            jobs.peek(tx),
            jobs.count(tx),
            jobs.clear(tx),
            enumerate_all(jobs.items(tx)),
            tx.commit(),
            tx.abort(),
        ):
            with pytest.raises(TransactionUseError) as refused:
                await use
            assert refused.value.code == "TransactionEnded"
            assert refused.value.facts["transaction"] == tx.id
        with pytest.raises(TransactionUseError):
            tx.after_commit(print)
        with pytest.raises(TransactionUseError):
            async with tx:
                pass
        assert state._core.locks.is_empty()
        assert not state.state._snapshots

    async def test_a_second_task_is_refused(self, state: StateManager, numbers: Numbers) -> None:
        async with state.transaction() as tx:
            await numbers.get(tx, "a")
            for use in (numbers.get(tx, "a"), numbers.set(tx, "a", 5), tx.commit(), tx.abort()):
                with pytest.raises(TransactionUseError) as refused:
                    await asyncio.create_task(use)
                assert refused.value.code == "TransactionInUse"

            assert await numbers.get(tx, "a") == 1

    async def test_gather_on_one_transaction_is_refused_at_once(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async with state.transaction() as tx:
            with pytest.raises(TransactionUseError):
                await asyncio.gather(numbers.set(tx, "x", 1), numbers.set(tx, "y", 1))

        assert await content(state, numbers) == {"a": 1, "b": 2}

    async def test_commit_twice_is_refused(self, state: StateManager, numbers: Numbers) -> None:
        async with state.transaction() as tx:
            await numbers.set(tx, "a", 5)
            await tx.commit()
            with pytest.raises(TransactionUseError):
                await tx.commit()

    async def test_a_write_in_a_snapshot_is_refused(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        queue = await state.queue("queue", value=int)
        jobs = await state.concurrent_queue("jobs", value=int)
        async with state.snapshot() as snapshot:
            view: Any = snapshot
            for use in (
                numbers.set(view, "a", 1),
                numbers.add(view, "c", 1),
                numbers.try_add(view, "c", 1),
                numbers.upsert(view, "a", 1, lambda old: old),
                numbers.get_or_add(view, "a", 1),
                numbers.compare_and_set(view, "a", 1, expected=1),
                numbers.pop(view, "a"),
                numbers.delete(view, "a"),
                numbers.clear(view),
                queue.enqueue(view, 1),
                queue.dequeue(view),
                queue.dequeue_many(view, 2),
                queue.clear(view),
                jobs.enqueue(view, 1),
                jobs.dequeue(view),
                jobs.receive(view, visibility=1),
                jobs.clear(view),
            ):
                with pytest.raises(UsageError) as refused:
                    await use
                assert "transaction" in refused.value.hint

        assert await content(state, numbers) == {"a": 1, "b": 2}

    @pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "1", True, [1]])
    async def test_an_invalid_time_out_is_refused(
        self, state: StateManager, numbers: Numbers, timeout: Any
    ) -> None:
        with pytest.raises(UsageError) as refused:
            state.transaction(timeout=timeout)
        assert refused.value.code == "InvalidTimeout"

        queue = await state.queue("queue", value=int)
        async with state.transaction() as tx:
            for use in (
                numbers.get(tx, "a", timeout=timeout),
                numbers.contains(tx, "a", timeout=timeout),
                numbers.set(tx, "a", 9, timeout=timeout),
                numbers.clear(tx, timeout=timeout),
                queue.enqueue(tx, 1, timeout=timeout),
                queue.dequeue(tx, timeout=timeout),
                queue.dequeue(tx, wait=timeout),
                numbers.get_many(tx, ["a"], timeout=timeout),
                numbers.count(tx, timeout=timeout),
                anext(numbers.items(tx, timeout=timeout)),
                anext(numbers.keys(tx, timeout=timeout)),
                anext(numbers.values(tx, timeout=timeout)),
                queue.count(tx, timeout=timeout),
                anext(queue.items(tx, timeout=timeout)),
            ):
                with pytest.raises(UsageError) as refused:
                    await use
                assert refused.value.code == "InvalidTimeout"

        assert await content(state, numbers) == {"a": 1, "b": 2}

    async def test_a_transaction_of_another_state_is_refused(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async with a_state() as other:
            theirs = await open_numbers(other)
            async with state.transaction() as tx:
                with pytest.raises(PartitaError):
                    await theirs.set(tx, "a", 100)
                await numbers.get(tx, "a")
                with pytest.raises(PartitaError):
                    await theirs.set(tx, "a", 100)
                with pytest.raises(PartitaError):
                    await theirs.get(tx, "a")
            async with state.snapshot() as snapshot:
                with pytest.raises(PartitaError):
                    await theirs.get(snapshot, "a")

        assert await content(state, numbers) == {"a": 1, "b": 2}

    async def test_nested_transactions_are_independent(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as outer:
                await numbers.set(outer, "a", 5)
                async with state.transaction() as inner:
                    await numbers.set(inner, "b", 6)
                raise RuntimeError

        assert await content(state, numbers) == {"a": 1, "b": 6}

    def test_nested_transactions_on_one_key_end_by_time_out(self) -> None:
        async def scenario(state: StateManager) -> float:
            numbers = await open_numbers(state)
            async with state.transaction() as outer:
                await numbers.set(outer, "a", 5)
                with pytest.raises(LockTimeoutError) as refused:
                    async with state.transaction() as inner:
                        await numbers.set(inner, "a", 6)
                assert refused.value.holder == outer.id
            return running_loop().time()

        assert simulate(scenario) == 4.0


class TestLocks:
    def test_a_wait_ends_after_four_seconds_and_names_what_it_waited_for(self) -> None:
        async def scenario(state: StateManager) -> None:
            numbers = await open_numbers(state)
            async with state.transaction() as holder, state.transaction() as tx:
                await numbers.set(holder, "a", 5)
                with pytest.raises(LockTimeoutError) as refused:
                    await numbers.get(tx, "a")

                error = refused.value
                assert isinstance(error, TimeoutError)
                assert not isinstance(error, DeadlockError)
                assert (error.holder, error.collection, error.key) == (holder.id, "numbers", "a")
                assert error.waited == 4.0
                assert holder.id in str(error)

        simulate(scenario)

    @pytest.mark.parametrize("whose", ["call", "transaction"])
    def test_the_time_out_of_a_call_comes_before_that_of_the_transaction(self, whose: str) -> None:
        async def scenario(state: StateManager) -> float:
            numbers = await open_numbers(state)
            async with state.transaction() as holder, state.transaction(timeout=2.5) as tx:
                await numbers.set(holder, "a", 5)
                with pytest.raises(LockTimeoutError) as refused:
                    await numbers.get(tx, "a", timeout=0.75 if whose == "call" else None)
            return refused.value.waited

        assert simulate(scenario) == (0.75 if whose == "call" else 2.5)

    def test_both_locks_of_an_operation_share_one_time_out(self) -> None:
        async def scenario(state: StateManager) -> float:
            numbers = await open_numbers(state)
            clearer, holder = state.transaction(), state.transaction()
            await numbers.clear(clearer)
            await holder.lock(numbers, numbers._keys.encode("a"), LockMode.EXCLUSIVE, None)

            async def read() -> float:
                async with state.transaction() as tx:
                    with pytest.raises(LockTimeoutError):
                        await numbers.get(tx, "a")
                return running_loop().time()

            reader = asyncio.create_task(read())
            await asyncio.sleep(3)
            await clearer.commit()
            read_at = await reader
            await holder.abort()
            return read_at

        assert simulate(scenario) == 4.0

    @pytest.mark.parametrize("whose", ["call", "transaction"])
    def test_all_keys_of_get_many_share_one_time_out(self, whose: str) -> None:
        async def scenario(state: StateManager) -> tuple[float, float, object]:
            numbers = await open_numbers(state)
            holders = {key: state.transaction() for key in "abcd"}
            for key, holder in holders.items():
                await numbers.set(holder, key, 5)

            async def read() -> tuple[float, float, object]:
                timeout, own = (2.5, 4.0) if whose == "call" else (None, 2.5)
                async with state.transaction(timeout=own) as tx:
                    started = running_loop().time()
                    with pytest.raises(LockTimeoutError) as refused:
                        await numbers.get_many(tx, "dcba", timeout=timeout)
                    spent = running_loop().time() - started
                    await numbers.get(tx, "a", timeout=0)  # what was locked stays locked
                    return spent, refused.value.waited, refused.value.key

            reader = asyncio.create_task(read())
            for key in "ab":
                await asyncio.sleep(1)
                await holders[key].commit()
            waited = await reader
            for key in "cd":
                await holders[key].abort()
            return waited

        assert simulate(scenario) == (2.5, 2.5, "c")

    def test_get_many_waits_for_each_key_while_there_is_time(self) -> None:
        async def scenario(state: StateManager) -> dict[str, int]:
            numbers = await open_numbers(state)
            holders = {key: state.transaction() for key in "ab"}
            for key, holder in holders.items():
                await numbers.set(holder, key, 5)

            async def read() -> dict[str, int]:
                async with state.transaction() as tx:
                    return await numbers.get_many(tx, "abx", timeout=3)

            reader = asyncio.create_task(read())
            for key in "ab":
                await asyncio.sleep(1)
                await holders[key].commit()
            return await reader

        assert simulate(scenario) == {"a": 5, "b": 5}

    def test_both_locks_of_get_or_add_share_one_time_out(self) -> None:
        async def scenario(state: StateManager) -> float:
            numbers = await open_numbers(state)
            is_over = asyncio.Event()

            async def read() -> float:
                async with state.transaction() as tx:
                    with pytest.raises(LockTimeoutError):
                        await numbers.get_or_add(tx, "a", 7)
                is_over.set()
                return running_loop().time()

            async def stay() -> None:
                async with state.transaction() as tx:
                    await numbers.get(tx, "a", None)
                    await is_over.wait()

            async with state.transaction() as deleter:
                await numbers.delete(deleter, "a")
                reader = asyncio.create_task(read())
                await asyncio.sleep(1)
                other = asyncio.create_task(stay())
                await asyncio.sleep(2)
            await other
            return await reader

        assert simulate(scenario) == 4.0

    @pytest.mark.parametrize("given", [0, 0.75])
    def test_enumerations_and_counts_wait_no_longer_than_they_are_told(self, given: float) -> None:
        async def scenario(state: StateManager) -> list[float]:
            numbers = await state.dictionary(
                "numbers", key=str, value=int, indexes={"parity": lambda number: number % 2}
            )
            queue = await state.queue("queue", value=int)
            jobs = await state.concurrent_queue("jobs", value=int)
            clearer, tx = state.transaction(), state.transaction()
            for collection in (numbers, queue, jobs):
                await collection.clear(clearer)
            waited = []
            for use in (
                numbers.count(tx, timeout=given),
                numbers.get_many(tx, ["a", "b"], timeout=given),
                anext(numbers.items(tx, timeout=given)),
                anext(numbers.keys(tx, timeout=given)),
                anext(numbers.values(tx, timeout=given)),
                anext(numbers.find(tx, parity=0, timeout=given)),
                queue.count(tx, timeout=given),
                queue.peek(tx, timeout=given),
                anext(queue.items(tx, timeout=given)),
                jobs.count(tx, timeout=given),
                jobs.peek(tx, timeout=given),
                anext(jobs.items(tx, timeout=given)),
            ):
                with pytest.raises(LockTimeoutError) as refused:
                    await use
                assert refused.value.holder == clearer.id
                waited.append(refused.value.waited)
            await tx.abort()
            await clearer.abort()
            return waited

        assert simulate(scenario) == [given] * 12

    async def test_no_time_means_an_answer_at_once(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async with state.transaction() as holder, state.transaction() as tx:
            await numbers.set(holder, "a", 5)
            steps = numbers.get(tx, "a", timeout=0).__await__()
            with pytest.raises(LockTimeoutError):
                next(steps)

    def test_after_a_time_out_the_transaction_may_go_on(self) -> None:
        async def scenario(state: StateManager) -> dict[str, int]:
            numbers = await open_numbers(state)
            async with state.transaction() as holder, state.transaction() as tx:
                await numbers.set(holder, "a", 5)
                await numbers.set(tx, "b", 6)
                with pytest.raises(LockTimeoutError):
                    await numbers.set(tx, "a", 7)
                await tx.commit()
            return await content(state, numbers)

        assert simulate(scenario) == {"a": 5, "b": 6}

    def test_who_gave_up_is_passed_by_those_behind(self) -> None:
        async def scenario(state: StateManager) -> None:
            numbers = await open_numbers(state)
            async with state.transaction() as holder:
                await numbers.get(holder, "a")

                async def write() -> None:
                    async with state.transaction() as tx:
                        with pytest.raises(LockTimeoutError):
                            await numbers.set(tx, "a", 2, timeout=1.0)

                async def read() -> float:
                    async with state.transaction() as tx:
                        await asyncio.sleep(0.5)  # behind the writer: fairness makes it wait
                        await numbers.get(tx, "a")
                        return running_loop().time()

                _, read_at = await asyncio.gather(write(), read())
                assert read_at == 1.0

        simulate(scenario)

    async def test_a_deadlock_is_found_at_once_and_the_youngest_is_told(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async with state.transaction() as old:
            await numbers.set(old, "a", 5)
            told: list[DeadlockError] = []

            async def young() -> None:
                async with state.transaction() as tx:
                    await numbers.set(tx, "b", 6)
                    with pytest.raises(DeadlockError) as refused:
                        await numbers.set(tx, "a", 6, timeout=3600)
                    told.append(refused.value)
                    await tx.abort()

            task = asyncio.create_task(young())
            await settle()
            await numbers.set(old, "b", 7, timeout=3600)
            await task

            assert (told[0].holder, told[0].key, told[0].code) == (old.id, "a", "Deadlock")
        assert await content(state, numbers) == {"a": 5, "b": 7}

    async def test_two_readers_who_both_write_are_a_deadlock(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def add_one() -> bool:
            async with state.transaction() as tx:
                number = await numbers.get(tx, "a")
                await asyncio.sleep(0)
                try:
                    await numbers.set(tx, "a", number + 1, timeout=3600)
                except DeadlockError:
                    await tx.abort()
                    return False
            return True

        assert sorted(await asyncio.gather(add_one(), add_one())) == [False, True]
        assert (await content(state, numbers))["a"] == 2

    async def test_update_locks_prevent_that_deadlock(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def add_one() -> None:
            async with state.transaction() as tx:
                number = await numbers.get(tx, "a", lock=LockMode.UPDATE)
                await asyncio.sleep(0)
                await numbers.set(tx, "a", number + 1, timeout=3600)

        await asyncio.gather(*(add_one() for _ in range(20)))

        assert (await content(state, numbers))["a"] == 21

    async def test_read_locks_go_when_the_commit_begins_and_the_others_when_it_ends(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        tx = state.transaction()
        await numbers.get(tx, "a")
        await numbers.get(tx, "c", None, lock=LockMode.UPDATE)
        await numbers.set(tx, "b", 3)
        steps = tx.commit().__await__()
        next(steps)

        assert tx.status.value == "committing"
        assert key_locks_of(tx) == [LockMode.EXCLUSIVE]
        await settle()
        assert tx.status.value == "committed"
        assert state._core.locks.is_empty()

    async def test_a_waiter_that_is_cancelled_leaves_the_queue(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async with state.transaction() as holder:
            await numbers.set(holder, "a", 5)

            async def wait() -> None:
                async with state.transaction() as tx:
                    await numbers.get(tx, "a", timeout=3600)

            task = asyncio.create_task(wait())
            await settle()
            assert state._core.locks.waiting_count() == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert state._core.locks.waiting_count() == 0

        assert state._core.locks.is_empty()


class TestCancelledCommits:
    @pytest.mark.parametrize("form", ["explicit", "on leaving"])
    async def test_a_cancelled_commit_goes_on(self, form: str) -> None:
        machine = Machine()
        async with machine.open() as state:
            numbers = await open_numbers(state)
            machine.disk.sync_seconds = 0.01
            opened: list[Transaction] = []

            async def work() -> None:
                async with state.transaction() as tx:
                    opened.append(tx)
                    await numbers.set(tx, "a", 5)
                    if form == "explicit":
                        await tx.commit()

            # Two at once: one alone would sync without leaving the loop.
            other = asyncio.create_task(self._put(state, numbers))
            task = asyncio.create_task(work())
            while not (opened and opened[0].status.value == "committing"):  # noqa: ASYNC110 - a turn of the loop is what is waited for
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await other
            while opened[0].status.value == "committing":  # noqa: ASYNC110 - a turn of the loop is what is waited for
                await asyncio.sleep(0)

            assert opened[0].status.value == "committed"
            assert (await content(state, numbers))["a"] == 5
            assert state._core.locks.is_empty()
        async with machine.open() as state:
            numbers = await state.dictionary("numbers", key=str, value=int)
            assert (await content(state, numbers))["a"] == 5

    async def _put(self, state: StateManager, numbers: Numbers) -> None:
        async with state.transaction() as tx:
            await numbers.set(tx, "other", 1)

    async def test_closing_waits_for_a_commit_that_was_cancelled(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            numbers = await open_numbers(state)
            machine.disk.sync_seconds = 0.01
            tasks = [asyncio.create_task(self._put(state, numbers)) for _ in range(3)]
            await settle()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        async with machine.open() as state:
            numbers = await state.dictionary("numbers", key=str, value=int)
            assert (await content(state, numbers)).get("other") == 1


class TestAfterCommit:
    async def test_callbacks_run_in_order_with_the_sequence(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        told: list[tuple[str, int, int]] = []
        async with state.transaction() as tx:
            tx.after_commit(lambda sequence: told.append(("first", sequence, state.sequence)))
            tx.after_commit(lambda sequence: told.append(("second", sequence, state.sequence)))
            await numbers.set(tx, "a", 5)
            assert not told

        sequence = tx.commit_sequence
        assert told == [("first", sequence, sequence), ("second", sequence, sequence)]

    async def test_no_callback_runs_after_an_abort(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        told: list[int] = []
        tx = state.transaction()
        tx.after_commit(told.append)
        await numbers.set(tx, "a", 5)
        await tx.abort()

        assert not told

    async def test_a_callback_that_raises_is_logged_and_stops_nothing(
        self, state: StateManager, numbers: Numbers, caplog: pytest.LogCaptureFixture
    ) -> None:
        told: list[int] = []

        def fail(_sequence: int) -> None:
            raise ZeroDivisionError

        with caplog.at_level(logging.ERROR, "partita.reliable"):
            async with state.transaction() as tx:
                tx.after_commit(fail)
                tx.after_commit(told.append)
                await numbers.set(tx, "a", 5)

        assert told == [tx.commit_sequence]
        assert "callback" in caplog.text
        async with state.transaction() as tx:
            assert await numbers.get(tx, "a") == 5

    async def test_a_callback_may_open_the_next_transaction(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        tasks: list[asyncio.Task[None]] = []

        async def follow_up() -> None:
            async with state.transaction() as tx:
                await numbers.set(tx, "b", await numbers.get(tx, "a") + 1)

        async with state.transaction() as tx:
            tx.after_commit(lambda _: tasks.append(asyncio.create_task(follow_up())))
            await numbers.set(tx, "a", 5)
        await tasks[0]

        assert await content(state, numbers) == {"a": 5, "b": 6}


class TestTheSystemEndsTransactions:
    async def test_closing_ends_those_that_wait_and_those_that_are_open(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            numbers = await open_numbers(state)
            holder = state.transaction()
            await numbers.set(holder, "a", 5)

            async def wait() -> None:
                async with state.transaction() as tx:
                    await numbers.set(tx, "a", 6, timeout=3600)

            task = asyncio.create_task(wait())
            await settle()
        with pytest.raises(StateClosedError):
            await task
        with pytest.raises(StateClosedError):
            await numbers.set(holder, "b", 7)
        with pytest.raises(StateClosedError):
            await holder.commit()

        async with machine.open() as state:
            numbers = await state.dictionary("numbers", key=str, value=int)
            assert await content(state, numbers) == {"a": 1, "b": 2}

    async def test_a_block_that_the_system_ended_says_so_on_leaving(self) -> None:
        machine = Machine()
        with pytest.raises(StateClosedError):  # noqa: PT012 - the block as a whole is what fails
            async with machine.open() as state:
                numbers = await open_numbers(state)
                async with state.transaction() as tx:
                    await numbers.set(tx, "a", 5)
                    await state.close()

    async def test_waiting_for_a_queue_ends_with_the_state(self) -> None:
        async with a_state() as state:
            queue: ReliableQueue[User] = await state.queue("queue", value=User)

            async def wait() -> None:
                async with state.transaction() as tx:
                    await queue.dequeue(tx, wait=3600)

            task = asyncio.create_task(wait())
            await settle()
        with pytest.raises(StateClosedError):
            await task


def collected(work: Callable[[], T]) -> T:
    """Return what a function returns, after all that it lost was collected."""
    value = work()
    gc.collect()
    return value


class TestNeverEnded:
    """A transaction that its program lost sight of: it is aborted, with a warning."""

    async def lose(self, state: StateManager, counts: ReliableDictionary[int, int]) -> str:
        tx = state.transaction()
        await counts.set(tx, 1, 10)
        return tx.id

    async def test_its_locks_are_released_with_a_warning_that_names_it(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            with pytest.warns(ResourceWarning) as warned:
                lost = await self.lose(state, counts)
            await settle()

            assert f"Transaction {lost}, opened at {__file__}:" in str(warned[0].message)
            async with state.transaction() as tx:
                assert await counts.get(tx, 1, None, lock=LockMode.EXCLUSIVE, timeout=0) is None

    async def test_what_it_took_from_a_queue_comes_back(self) -> None:
        async with a_state() as state:
            jobs = await state.concurrent_queue("jobs", value=int)
            async with state.transaction() as tx:
                await jobs.enqueue(tx, 7)

            async def lose() -> None:
                assert await jobs.dequeue(state.transaction()) == 7

            with pytest.warns(ResourceWarning):
                await lose()
            await settle()

            async with state.transaction() as tx:
                assert await jobs.dequeue(tx) == 7

    async def test_it_keeps_no_old_versions(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)

            async def lose() -> None:
                assert await counts.count(state.transaction()) == 0

            with pytest.warns(ResourceWarning):
                await lose()
            await settle()
            async with state.transaction() as tx:
                await counts.set(tx, 1, 1)

            assert not counts.collection.rows.history

    async def test_one_that_has_ended_or_that_the_state_has_ended_is_let_go_in_silence(
        self,
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with a_state() as state:
                counts = await state.dictionary("counts", key=int, value=int)
                for end in ("commit", "abort"):
                    tx = state.transaction()
                    await counts.set(tx, 1, 1)
                    await getattr(tx, end)()
                tx = state.transaction()
                await counts.set(tx, 1, 2)
            del tx
            gc.collect()

    async def test_a_refused_one_is_let_go_in_silence(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with a_state() as state:
                with pytest.raises(UsageError):
                    state.transaction(timeout=-1)
            with pytest.raises(StateClosedError):
                state.transaction()
            gc.collect()

    def test_a_lost_transaction_of_the_synchronous_face_is_ended_from_its_loop(
        self, tmp_path: Path
    ) -> None:
        with sync.open_state(tmp_path / "state") as state:
            counts = state.dictionary("counts", key=int, value=int)

            def lose() -> str:
                tx = state.transaction()
                counts.set(tx, 1, 10)
                return tx.id

            with pytest.warns(ResourceWarning) as warned:
                lost = collected(lose)

            assert f"Transaction {lost}, opened at {__file__}:" in str(warned[0].message)
            with state.transaction() as tx:  # behind the release in the line of the loop
                assert counts.get(tx, 1, None, lock=LockMode.EXCLUSIVE, timeout=0) is None

    async def test_a_lost_snapshot_keeps_no_old_versions(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            with pytest.warns(ResourceWarning, match="snapshot of sequence"):
                assert await counts.count(state.snapshot()) == 0
            await settle()
            async with state.transaction() as tx:
                await counts.set(tx, 1, 1)

            assert not counts.collection.rows.history

    def test_a_lost_snapshot_of_the_synchronous_face_is_closed_from_its_loop(
        self, tmp_path: Path
    ) -> None:
        with sync.open_state(tmp_path / "state") as state:
            counts = state.dictionary("counts", key=int, value=int)
            with pytest.warns(ResourceWarning) as warned:
                assert collected(lambda: counts.count(state.snapshot())) == 0

            assert f"opened at {__file__}:" in str(warned[0].message)
            with state.transaction() as tx:
                counts.set(tx, 1, 1)
            assert not counts.inner.collection.rows.history
