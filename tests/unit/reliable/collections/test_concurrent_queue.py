import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from partita.clock import ManualClock
from partita.errors import (
    LimitExceededError,
    LockTimeoutError,
    StoreStoppedError,
    UsageError,
)
from partita.reliable import Delivery, ReliableConcurrentQueue
from partita.reliable.collections.enumeration import SCAN_ROWS
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_local
from partita.simulation.loop import running_loop
from support.states import Machine, a_state, settle, simulate

Jobs = ReliableConcurrentQueue[int]

ITEMS = 100_000
CONSUMERS = 64


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def state(clock: ManualClock) -> AsyncIterator[StateManager]:
    async with a_state(clock) as opened:
        yield opened


@pytest.fixture
async def jobs(state: StateManager) -> Jobs:
    return await open_jobs(state)


async def open_jobs(state: StateManager, *numbers: int) -> Jobs:
    jobs = await state.concurrent_queue("jobs", value=int)
    async with state.transaction() as tx:
        for number in numbers:
            await jobs.enqueue(tx, number)
    return jobs


async def take_all(state: StateManager, jobs: Jobs) -> list[int]:
    async with state.transaction() as tx:
        return await jobs.dequeue_many(tx, 1_000)


async def receive(state: StateManager, jobs: Jobs, visibility: float) -> list[Delivery[int]]:
    async with state.transaction() as tx:
        return await jobs.receive(tx, 10, visibility=visibility)


class TestDequeue:
    async def test_items_come_in_the_order_of_commits_when_nobody_competes(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        await open_jobs(state, 1, 2)
        await open_jobs(state, 3)

        assert await take_all(state, jobs) == [1, 2, 3]
        assert await take_all(state, jobs) == []

    async def test_consumers_do_not_wait_for_each_other(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        await open_jobs(state, 1, 2, 3)
        async with state.transaction() as one, state.transaction() as two:
            assert await jobs.dequeue(one) == 1
            assert await jobs.dequeue(two, timeout=0) == 2
            assert await jobs.dequeue(one) == 3
            assert await jobs.dequeue(two, default=9) == 9

        assert await take_all(state, jobs) == []

    async def test_an_abort_returns_the_item_to_the_front(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        await open_jobs(state, 1, 2, 3)
        tx = state.transaction()
        assert await jobs.dequeue_many(tx, 2) == [1, 2]
        await tx.abort()

        assert jobs.returned(0) == 1
        assert await take_all(state, jobs) == [1, 2, 3]
        assert jobs.returned(0) == 0

    async def test_own_items_are_not_seen_before_the_commit(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        async with state.transaction() as tx:
            await jobs.enqueue(tx, 1)
            assert await jobs.dequeue(tx) is None
            assert await jobs.count(tx) == 0

        assert await take_all(state, jobs) == [1]

    async def test_who_waits_wakes_on_a_commit(self, state: StateManager, jobs: Jobs) -> None:
        async def consume() -> list[int]:
            async with state.transaction() as tx:
                return await jobs.dequeue_many(tx, 1, wait=3600)

        tasks = [asyncio.create_task(consume()) for _ in range(3)]
        await settle()
        await open_jobs(state, 1, 2, 3)

        assert sorted(await asyncio.gather(*tasks)) == [[1], [2], [3]]

    async def test_who_waits_wakes_on_an_abort(self, state: StateManager, jobs: Jobs) -> None:
        await open_jobs(state, 1)
        holder = state.transaction()
        assert await jobs.dequeue(holder) == 1

        async def consume() -> int | None:
            async with state.transaction() as tx:
                return await jobs.dequeue(tx, wait=3600)

        task = asyncio.create_task(consume())
        await settle()
        await holder.abort()

        assert await task == 1

    async def test_items_survive_a_restart(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            jobs = await open_jobs(state, 1, 2, 3)
            async with state.transaction() as tx:
                await jobs.dequeue(tx)
            never_committed = state.transaction()
            await jobs.dequeue(never_committed)
        async with machine.open() as state:
            jobs = await open_jobs(state)
            assert await take_all(state, jobs) == [2, 3]

    async def test_a_dequeue_that_is_too_large_takes_nothing(
        self, state: StateManager, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(4):
            await open_jobs(state, number)
        monkeypatch.setattr(state.core, "transaction_operations_max", 3)
        async with state.transaction() as tx:
            with pytest.raises(LimitExceededError):
                await jobs.dequeue_many(tx, 4)
        async with state.transaction() as tx:
            with pytest.raises(LimitExceededError):
                await jobs.receive(tx, 4, visibility=9)
        monkeypatch.undo()

        assert await take_all(state, jobs) == [0, 1, 2, 3]


class TestReading:
    async def test_peek_and_items_show_what_could_be_taken(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        await open_jobs(state, 1, 2, 3)
        async with state.transaction() as tx, state.snapshot() as snapshot:
            assert await jobs.peek(snapshot) == 1
            await jobs.dequeue(tx)

            assert await jobs.peek(snapshot) == 2
            assert [number async for number in jobs.items(snapshot)] == [2, 3]
            assert [number async for number in jobs.items(tx, limit=1)] == [2]
            assert await jobs.count(snapshot) == 3

    @pytest.mark.parametrize("view", ["transaction", "snapshot"])
    @pytest.mark.parametrize("count", [3, SCAN_ROWS * 2])
    async def test_an_iterator_sees_what_is_taken_after_its_start(
        self, state: StateManager, jobs: Jobs, view: str, count: int
    ) -> None:
        await open_jobs(state, *range(count))
        async with state.transaction() as tx, state.transaction() as other:
            await jobs.dequeue(other)
            async with state.snapshot() as snapshot:
                iterator = jobs.items(tx if view == "transaction" else snapshot)
                seen = [await anext(iterator)]
                await jobs.dequeue(tx)
                await jobs.dequeue_many(other, count)
                seen += [number async for number in iterator]

        assert seen == list(range(1, count))

    async def test_peek_of_nothing_gives_the_default(self, state: StateManager, jobs: Jobs) -> None:
        async with state.snapshot() as snapshot:
            assert await jobs.peek(snapshot) is None
            assert await jobs.peek(snapshot, default=3) == 3

    async def test_clear_removes_hidden_items_too(self, state: StateManager, jobs: Jobs) -> None:
        await open_jobs(state, 1, 2)
        await receive(state, jobs, 30)
        await open_jobs(state, 3)
        await jobs.clear()

        assert await take_all(state, jobs) == []
        async with state.snapshot() as snapshot:
            assert await jobs.count(snapshot) == 0

    async def test_clear_waits_for_consumers(self, state: StateManager, jobs: Jobs) -> None:
        await open_jobs(state, 1)
        async with state.transaction() as tx:
            await jobs.dequeue(tx)
            with pytest.raises(LockTimeoutError):
                await jobs.clear(timeout=0)

    async def test_an_aborted_clear_brings_back_what_was_taken_before(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        await open_jobs(state, 1, 2)
        tx = state.transaction()
        await jobs.dequeue(tx)
        await jobs.clear(tx)
        assert await jobs.dequeue(tx) is None
        await tx.abort()

        assert await take_all(state, jobs) == [1, 2]

    async def test_a_committed_clear_leaves_nothing_behind(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        await open_jobs(state, 1, 2)
        async with state.transaction() as tx:
            await jobs.dequeue(tx)
            await jobs.clear(tx)

        assert await take_all(state, jobs) == []
        assert not jobs._taken


class TestVisibility:
    async def test_a_received_item_is_hidden_for_its_time(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        [delivery] = await receive(state, jobs, 30)

        assert (delivery.value, delivery.position, delivery.deliveries) == (7, 0, 1)
        assert await take_all(state, jobs) == []
        clock.advance(29.9)
        assert await take_all(state, jobs) == []
        clock.advance(0.1)
        assert await take_all(state, jobs) == [7]

    async def test_deliveries_are_counted_durably(self) -> None:
        machine = Machine()
        for number in range(1, 4):
            async with machine.open() as state:
                jobs = await open_jobs(state, *([7] if number == 1 else []))
                [delivery] = await receive(state, jobs, 30)
                assert delivery.deliveries == number
            machine.advance(30)

    async def test_hidden_items_stay_hidden_across_a_restart(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            jobs = await open_jobs(state, 7)
            [delivery] = await receive(state, jobs, 30)
        async with machine.open() as state:
            jobs = await open_jobs(state)
            assert await take_all(state, jobs) == []
            async with state.transaction() as tx:
                assert await jobs.complete(tx, delivery)
            machine.advance(60)
            assert await take_all(state, jobs) == []

    async def test_complete_removes_the_item(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        [delivery] = await receive(state, jobs, 30)
        async with state.transaction() as tx:
            assert await jobs.complete(tx, delivery)
            assert not await jobs.complete(tx, delivery)
        clock.advance(60)

        async with state.transaction() as tx:
            assert not await jobs.complete(tx, delivery)
        assert await take_all(state, jobs) == []

    async def test_complete_of_an_item_that_another_received_since_is_refused(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        [first] = await receive(state, jobs, 30)
        clock.advance(30)
        [second] = await receive(state, jobs, 30)
        async with state.transaction() as tx:
            assert not await jobs.complete(tx, first)
            assert not await jobs.release(tx, first)
            assert await jobs.complete(tx, second)

        assert second.deliveries == 2

    async def test_a_late_complete_succeeds_while_nobody_else_has_the_item(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        [delivery] = await receive(state, jobs, 30)
        clock.advance(31)
        async with state.transaction() as tx:
            assert await jobs.complete(tx, delivery)
            assert await take_all(state, jobs) == []  # it is ours until we end

        assert await take_all(state, jobs) == []

    async def test_an_aborted_complete_changes_nothing(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        [delivery] = await receive(state, jobs, 30)
        tx = state.transaction()
        await jobs.complete(tx, delivery)
        await tx.abort()

        assert await take_all(state, jobs) == []
        clock.advance(30)
        assert await take_all(state, jobs) == [7]

    async def test_complete_in_an_aborted_transaction_after_the_time_was_over(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        [delivery] = await receive(state, jobs, 30)
        tx = state.transaction()
        await jobs.complete(tx, delivery)
        clock.advance(31)
        assert await take_all(state, jobs) == []
        await tx.abort()

        assert await take_all(state, jobs) == [7]

    async def test_release_gives_the_item_back(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        [delivery] = await receive(state, jobs, 30)
        async with state.transaction() as tx:
            assert await jobs.release(tx, delivery, delay=5)
        assert await receive(state, jobs, 30) == []
        clock.advance(5)

        [again] = await receive(state, jobs, 30)
        assert again.deliveries == 2

    async def test_an_aborted_receive_counts_nothing(self, state: StateManager, jobs: Jobs) -> None:
        await open_jobs(state, 7)
        tx = state.transaction()
        await jobs.receive(tx, visibility=30)
        await tx.abort()
        [delivery] = await receive(state, jobs, 30)

        assert delivery.deliveries == 1

    async def test_received_and_completed_in_one_transaction(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 1, 2, 3)
        async with state.transaction() as tx:
            one, two, _ = await jobs.receive(tx, 3, visibility=30)
            assert await jobs.complete(tx, one)
            assert await jobs.release(tx, two)

        [again] = await receive(state, jobs, 5)
        assert (again.value, again.deliveries) == (2, 2)
        clock.advance(31)
        assert sorted(await take_all(state, jobs)) == [2, 3]

    async def test_a_delayed_item_comes_later(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        async with state.transaction() as tx:
            await jobs.enqueue(tx, 1, delay=10)
            await jobs.enqueue(tx, 2)
        assert await take_all(state, jobs) == [2]
        async with state.snapshot() as snapshot:
            assert (await jobs.peek(snapshot), await jobs.count(snapshot)) == (None, 1)
        clock.advance(10)

        assert await take_all(state, jobs) == [1]

    def test_who_waits_wakes_when_an_item_becomes_visible(self) -> None:
        async def scenario(state: StateManager) -> tuple[int | None, float]:
            jobs = await open_jobs(state, 7)
            await receive(state, jobs, 12.5)
            async with state.transaction() as tx:
                found = await jobs.dequeue(tx, wait=60)
            return found, round(running_loop().time(), 1)

        assert simulate(scenario) == (7, 12.5)

    @pytest.mark.parametrize("seconds", [-1, float("nan"), "1"])
    async def test_a_time_that_is_none_is_refused(
        self, state: StateManager, jobs: Jobs, seconds: float
    ) -> None:
        await open_jobs(state, 7)
        async with state.transaction() as tx:
            with pytest.raises(UsageError):
                await jobs.receive(tx, visibility=seconds)
            with pytest.raises(UsageError):
                await jobs.enqueue(tx, 1, delay=seconds)

        assert await take_all(state, jobs) == [7]

    async def test_hidden_for_ever(
        self, state: StateManager, jobs: Jobs, clock: ManualClock
    ) -> None:
        await open_jobs(state, 7)
        await receive(state, jobs, float("inf"))
        clock.advance(10**9)

        assert await take_all(state, jobs) == []


@pytest.mark.timeout(300)
async def test_many_consumers_with_aborts_lose_nothing_and_double_nothing() -> None:
    machine = Machine()
    chance = random.Random(7)
    done: list[int] = []
    aborted = 0
    async with machine.open("fast") as state:
        jobs = await state.concurrent_queue("jobs", value=int)

        async def produce(first: int) -> None:
            for start in range(first, ITEMS, CONSUMERS * 50):
                async with state.transaction() as tx:
                    for number in range(start, min(start + 50, ITEMS)):
                        await jobs.enqueue(tx, number)

        async def consume() -> None:
            nonlocal aborted
            while len(done) < ITEMS:
                tx = state.transaction()
                taken = await jobs.dequeue_many(tx, 20, wait=0.05)
                if chance.random() < 0.1:
                    aborted += len(taken)
                    await tx.abort()
                    continue
                await tx.commit()
                done.extend(taken)

        producers = [produce(place * 50) for place in range(CONSUMERS)]
        consumers = [consume() for _ in range(CONSUMERS)]
        await asyncio.gather(*producers, *consumers)
        async with state.snapshot() as snapshot:
            assert await jobs.count(snapshot) == 0
        assert not jobs._taken
    assert aborted > ITEMS / 20
    assert len(done) == ITEMS
    assert set(done) == set(range(ITEMS))
    async with machine.open() as state:
        jobs = await state.concurrent_queue("jobs", value=int)
        async with state.snapshot() as snapshot:
            assert await jobs.count(snapshot) == 0


class TestBetweenTransactions:
    async def test_an_aborted_enqueue_is_never_delivered(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        tx = state.transaction()
        await jobs.enqueue(tx, 1)
        await tx.abort()
        await open_jobs(state, 2)

        assert await take_all(state, jobs) == [2]

    async def test_an_item_counts_until_the_transaction_that_takes_it_commits(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        await open_jobs(state, 1, 2)
        async with state.transaction() as tx:
            assert await jobs.dequeue(tx) == 1
            async with state.snapshot() as snapshot:
                assert await jobs.count(snapshot) == 2

        async with state.snapshot() as snapshot:
            assert await jobs.count(snapshot) == 1

    async def test_an_empty_dequeue_keeps_no_producer_waiting(
        self, state: StateManager, jobs: Jobs
    ) -> None:
        async with state.transaction() as consumer:
            assert await jobs.dequeue(consumer) is None
            async with state.transaction() as producer:
                await jobs.enqueue(producer, 1, timeout=0)

            assert await jobs.dequeue(consumer) == 1

    async def test_an_item_that_an_unfinished_transaction_took_is_there_after_a_crash(
        self,
    ) -> None:
        machine = Machine()
        state = await open_local(machine.disk, machine.clock)
        jobs = await open_jobs(state, 1, 2)
        tx = state.transaction()
        assert await jobs.dequeue(tx) == 1

        restarted = await open_local(machine.disk.power_cut("lost"), machine.clock)
        assert await take_all(restarted, await open_jobs(restarted)) == [1, 2]

        await restarted.close()
        await tx.abort()
        with pytest.raises(StoreStoppedError):  # its disk is that of the next process
            await state.close()
