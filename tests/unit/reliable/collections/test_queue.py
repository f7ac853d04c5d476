import asyncio
import functools
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from partita.errors import (
    DeadlockError,
    LimitExceededError,
    LockTimeoutError,
    MutatedValueError,
)
from partita.reliable import MISSING, LockMode, ReliableQueue
from partita.reliable.collections.enumeration import SCAN_ROWS
from partita.reliable.collections.queue import WAKE_AT_ONCE, Arrivals
from partita.reliable.manager.state_manager import StateManager
from partita.simulation.loop import running_loop
from support.states import Cart, Machine, a_state, key_locks_of, settle, simulate

Numbers = ReliableQueue[int]

ITEMS = 100_000
CONSUMERS = 64


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    async with a_state() as opened:
        yield opened


@pytest.fixture
async def queue(state: StateManager) -> Numbers:
    return await open_queue(state)


async def open_queue(state: StateManager, *numbers: int) -> Numbers:
    queue = await state.queue("queue", value=int)
    async with state.transaction() as tx:
        for number in numbers:
            await queue.enqueue(tx, number)
    return queue


async def content(state: StateManager, queue: Numbers) -> list[int]:
    async with state.snapshot() as snapshot:
        found = [number async for number in queue.items(snapshot)]
        assert await queue.count(snapshot) == len(found)
        return found


class TestOrder:
    async def test_first_in_first_out(self, state: StateManager, queue: Numbers) -> None:
        await open_queue(state, 1, 2, 3)
        await open_queue(state, 4)
        async with state.transaction() as tx:
            taken = [await queue.dequeue(tx) for _ in range(5)]

        assert taken == [1, 2, 3, 4, None]
        assert await content(state, queue) == []

    async def test_the_order_is_that_of_commits_not_of_calls(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async with state.transaction() as one, state.transaction() as two:
            await queue.enqueue(one, 1)
            await queue.enqueue(two, 2)  # producers do not wait for each other
            await queue.enqueue(one, 11)
            await two.commit()

        assert await content(state, queue) == [2, 1, 11]

    async def test_the_order_survives_a_restart(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            queue = await open_queue(state, 1, 2, 3)
            async with state.transaction() as tx:
                await queue.dequeue(tx)
        async with machine.open() as state:
            queue = await open_queue(state, 4)
            assert await content(state, queue) == [2, 3, 4]

    async def test_positions_are_never_used_again(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2)
        await queue.clear()
        await open_queue(state, 3)

        assert queue.collection.tail == 3
        assert await content(state, queue) == [3]

    async def test_producers_keep_their_own_order(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async def produce(producer: int) -> None:
            for number in range(20):
                async with state.transaction() as tx:
                    await queue.enqueue(tx, producer * 100 + number)
                    if number % 3 == 0:
                        await asyncio.sleep(0)

        await asyncio.gather(*(produce(producer) for producer in range(5)))

        found = await content(state, queue)
        assert len(found) == 100
        for producer in range(5):
            mine = [number for number in found if number // 100 == producer]
            assert mine == sorted(mine)


class TestDequeue:
    async def test_an_empty_queue_gives_the_default(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async with state.transaction() as tx:
            assert await queue.dequeue(tx) is None
            assert await queue.dequeue(tx, default="nothing") == "nothing"
            assert await queue.dequeue_many(tx, 5) == []

    async def test_an_empty_dequeue_does_not_block_producers(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async with state.transaction() as consumer:
            assert await queue.dequeue(consumer) is None
            async with state.transaction() as producer:
                await queue.enqueue(producer, 1, timeout=0)

            assert await queue.dequeue(consumer) == 1

    async def test_one_transaction_at_a_time_dequeues(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2)
        async with state.transaction() as one, state.transaction() as two:
            assert await queue.dequeue(one) == 1
            assert key_locks_of(one) == [LockMode.EXCLUSIVE]
            with pytest.raises(LockTimeoutError) as refused:
                await queue.dequeue(two, timeout=0)

            assert (refused.value.holder, refused.value.key) == (one.id, "the head")

    async def test_an_abort_returns_the_items_to_their_places(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2, 3)
        tx = state.transaction()
        assert await queue.dequeue_many(tx, 2) == [1, 2]
        await tx.abort()

        assert await content(state, queue) == [1, 2, 3]
        async with state.transaction() as tx:
            assert await queue.dequeue_many(tx, 9) == [1, 2, 3]

    async def test_own_items_follow_the_committed_ones(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1)
        async with state.transaction() as tx:
            await queue.enqueue(tx, 2)
            await queue.enqueue(tx, 3)
            assert [number async for number in queue.items(tx)] == [1, 2, 3]
            assert await queue.dequeue_many(tx, 2) == [1, 2]
            assert await queue.count(tx) == 1
            assert await queue.peek(tx) == 3

        assert await content(state, queue) == [3]

    async def test_what_was_enqueued_and_dequeued_at_once_leaves_nothing(
        self, state: StateManager, queue: Numbers
    ) -> None:
        before = state.sequence
        async with state.transaction() as tx:
            await queue.enqueue(tx, 1)
            assert await queue.dequeue(tx) == 1

        assert state.sequence == before

    async def test_none_are_taken_when_none_are_asked_for(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1)
        async with state.transaction() as tx:
            assert await queue.dequeue_many(tx, 0, wait=3600) == []

        assert await content(state, queue) == [1]


class TestWaiting:
    async def test_who_waits_wakes_on_the_commit(self, state: StateManager, queue: Numbers) -> None:
        async def consume() -> list[int]:
            async with state.transaction() as tx:
                return await queue.dequeue_many(tx, 10, wait=3600)

        task = asyncio.create_task(consume())
        await settle()
        async with state.transaction() as tx:
            await queue.enqueue(tx, 1)
            await queue.enqueue(tx, 2)
            await settle()
            assert not task.done()  # nothing is committed

        assert await task == [1, 2]
        assert await content(state, queue) == []

    def test_a_wait_ends_with_nothing_when_its_time_is_over(self) -> None:
        async def scenario(state: StateManager) -> float:
            queue = await open_queue(state)
            async with state.transaction() as tx:
                assert await queue.dequeue(tx, wait=7.5) is None
            return running_loop().time()

        assert simulate(scenario) == 7.5

    def test_a_wait_may_be_longer_than_the_time_out_of_locks(self) -> None:
        async def scenario(state: StateManager) -> int | None:
            queue = await open_queue(state)

            async def produce() -> None:
                await asyncio.sleep(20)
                await open_queue(state, 1)

            task = asyncio.create_task(produce())
            async with state.transaction() as tx:
                found = await queue.dequeue(tx, wait=60)
            await task
            return found

        assert simulate(scenario) == 1

    def test_waits_that_found_nothing_leave_nothing_behind(self) -> None:
        async def scenario(state: StateManager) -> int:
            queue = await open_queue(state)
            for _ in range(20):
                async with state.transaction() as tx:
                    await queue.dequeue(tx, wait=1)
            return len(queue._arrivals._waiting)

        assert simulate(scenario) <= 1

    async def test_a_transaction_is_used_by_nobody_else_while_it_waits(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async with state.transaction() as tx:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await queue.dequeue(tx, wait=3600)
            await queue.enqueue(tx, 1)  # the wait was given up: it is ours again

        assert await content(state, queue) == [1]


class TestArrivals:
    async def test_many_that_wait_are_woken_in_turns_and_in_order(self) -> None:
        arrivals = Arrivals()
        waiting = [arrivals.expect() for _ in range(3 * WAKE_AT_ONCE + 1)]

        arrivals.announce()
        woken = []
        while not all(future.done() for future in waiting):
            woken.append([future.done() for future in waiting].index(False))
            await asyncio.sleep(0)

        assert woken == [WAKE_AT_ONCE, 2 * WAKE_AT_ONCE, 3 * WAKE_AT_ONCE]

    async def test_who_waits_no_more_is_forgotten_without_a_walk_over_the_others(self) -> None:
        arrivals = Arrivals()
        first, second, third = (arrivals.expect() for _ in range(3))
        second.cancel()
        await asyncio.sleep(0)

        assert list(arrivals._waiting) == [first, third]


class TestPeek:
    async def test_peek_leaves_the_item(self, state: StateManager, queue: Numbers) -> None:
        await open_queue(state, 1, 2)
        async with state.transaction() as tx:
            assert await queue.peek(tx) == 1
            assert await queue.peek(tx) == 1
            assert key_locks_of(tx) == [LockMode.SHARED]
            assert await queue.dequeue(tx) == 1
            assert await queue.peek(tx) == 2

    async def test_peek_of_nothing_gives_the_default(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async with state.transaction() as tx:
            assert await queue.peek(tx) is None
            assert await queue.peek(tx, default=9) == 9
            await queue.enqueue(tx, 1)
            assert await queue.peek(tx) == 1
        async with state.snapshot() as snapshot:
            assert await queue.peek(snapshot) == 1

    async def test_missing_tells_an_empty_queue_from_a_stored_none(
        self, state: StateManager
    ) -> None:
        nullable: Any = str | None
        queue = await state.queue("notes", value=nullable)
        jobs = await state.concurrent_queue("jobs", value=nullable)
        async with state.transaction() as tx:
            await queue.enqueue(tx, None)
            await jobs.enqueue(tx, None)
        async with state.snapshot() as snapshot:
            assert await queue.peek(snapshot, MISSING) is None
            assert await jobs.peek(snapshot, MISSING) is None
        async with state.transaction() as tx:
            assert await queue.peek(tx, MISSING) is None
            assert await queue.dequeue(tx, MISSING) is None
            assert await jobs.dequeue(tx, MISSING) is None
            assert await queue.peek(tx, MISSING) is MISSING
            assert await queue.dequeue(tx, MISSING) is MISSING
            assert await jobs.dequeue(tx, MISSING) is MISSING
            assert await jobs.peek(tx, MISSING) is MISSING

    async def test_many_may_peek_and_nobody_dequeues_meanwhile(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1)
        async with state.transaction() as one, state.transaction() as two:
            assert await queue.peek(one) == await queue.peek(two) == 1
            async with state.transaction() as three:
                with pytest.raises(LockTimeoutError):
                    await queue.dequeue(three, timeout=0)

    async def test_two_who_peek_and_then_dequeue_are_a_deadlock_unless_they_lock_for_update(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2, 3, 4)

        async def take(lock: LockMode) -> int | None:
            async with state.transaction() as tx:
                await queue.peek(tx, lock=lock)
                await asyncio.sleep(0)
                return await queue.dequeue(tx, timeout=3600)

        both = await asyncio.gather(
            take(LockMode.SHARED), take(LockMode.SHARED), return_exceptions=True
        )
        assert {type(outcome) for outcome in both} == {int, DeadlockError}

        update = await asyncio.gather(take(LockMode.UPDATE), take(LockMode.UPDATE))
        assert list(update) == [2, 3]


class TestReadingMany:
    async def test_a_snapshot_shows_the_queue_as_it_was(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2, 3)
        async with state.snapshot() as before:
            async with state.transaction() as tx:
                await queue.dequeue(tx)
                await queue.enqueue(tx, 4)

            assert [number async for number in queue.items(before)] == [1, 2, 3]
            assert await queue.count(before) == 3
        assert await content(state, queue) == [2, 3, 4]

    async def test_items_may_be_limited(self, state: StateManager, queue: Numbers) -> None:
        await open_queue(state, 1, 2)
        async with state.transaction() as tx:
            await queue.enqueue(tx, 3)
            for limit in range(5):
                found = [number async for number in queue.items(tx, limit=limit)]
                assert found == [1, 2, 3][:limit]

    async def test_a_long_queue_is_enumerated_whole(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, *range(SCAN_ROWS * 2 + 3))

        assert await content(state, queue) == list(range(SCAN_ROWS * 2 + 3))

    @pytest.mark.parametrize("count", [3, SCAN_ROWS * 2])
    async def test_an_iterator_does_not_see_what_its_transaction_enqueues_later(
        self, state: StateManager, count: int
    ) -> None:
        queue = await open_queue(state, *range(count))
        async with state.transaction() as tx:
            await queue.enqueue(tx, count)
            seen = []
            async for number in queue.items(tx):
                await queue.enqueue(tx, number)
                seen.append(number)

        assert seen == list(range(count + 1))
        assert await content(state, queue) == [*range(count + 1), *range(count + 1)]

    @pytest.mark.parametrize("change", ["dequeue", "clear"])
    async def test_an_iterator_sees_what_its_transaction_removes_later(
        self, state: StateManager, change: str
    ) -> None:
        count = SCAN_ROWS * 2
        queue = await open_queue(state, *range(count))
        async with state.transaction() as tx:
            await queue.dequeue(tx)
            await queue.enqueue(tx, count)
            iterator = queue.items(tx)
            seen = [await anext(iterator)]
            if change == "clear":
                await queue.clear(tx)
            else:
                await queue.dequeue_many(tx, count)
            seen += [number async for number in iterator]

        assert seen == list(range(1, count + 1))
        assert await content(state, queue) == []

    async def test_a_count_never_goes_below_what_the_snapshot_saw(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async with state.transaction() as tx:
            assert await queue.count(tx) == 0  # takes the snapshot
            await open_queue(state, 1)
            assert await queue.dequeue(tx) == 1

            assert await queue.count(tx) == 0
            assert [number async for number in queue.items(tx)] == []

    async def test_clear_removes_all_but_what_follows(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2)
        async with state.transaction() as tx:
            await queue.enqueue(tx, 3)
            await queue.clear(tx)
            assert (await queue.count(tx), await queue.peek(tx)) == (0, None)
            await queue.enqueue(tx, 4)
            assert await queue.count(tx) == 1
            assert [number async for number in queue.items(tx)] == [4]

        assert await content(state, queue) == [4]

    async def test_clear_after_a_dequeue_that_is_aborted_brings_all_back(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2)
        tx = state.transaction()
        await queue.dequeue(tx)
        await queue.clear(tx)
        await tx.abort()

        assert await content(state, queue) == [1, 2]


async def test_a_value_changed_after_it_was_enqueued_is_caught(state: StateManager) -> None:
    carts = await state.queue("carts", value=Cart, mutable="copy")
    cart = Cart(["lamp"])
    with pytest.raises(MutatedValueError) as refused:  # noqa: PT012 - the block as a whole is what fails
        async with state.transaction() as tx:
            await carts.enqueue(tx, cart)
            cart.items.append("chair")

    assert (refused.value.collection, refused.value.path) == ("carts", "items[1]")
    async with state.snapshot() as snapshot:
        assert await carts.count(snapshot) == 0


async def test_what_was_dequeued_is_the_callers_own(state: StateManager) -> None:
    carts = await state.queue("carts", value=Cart, mutable="copy")
    async with state.transaction() as tx:
        await carts.enqueue(tx, Cart(["lamp"]))
    async with state.transaction() as tx:
        cart = await carts.dequeue(tx)
        assert cart is not None
        cart.items.append("chair")
        await carts.enqueue(tx, cart)

    async with state.snapshot() as snapshot:
        assert [cart.items async for cart in carts.items(snapshot)] == [["lamp", "chair"]]


async def test_a_snapshot_that_stays_open_hides_nothing_from_consumers(
    state: StateManager, queue: Numbers
) -> None:
    await open_queue(state, *range(1200))
    async with state.snapshot():
        for number in range(600):
            async with state.transaction() as tx:
                assert await queue.dequeue(tx) == number
        async with state.transaction() as tx:
            assert await queue.peek(tx) == 600
            assert await queue.dequeue_many(tx, 2) == [600, 601]
            assert await queue.dequeue(tx) == 602
            await tx.abort()
        async with state.transaction() as tx:
            assert await queue.dequeue_many(tx, 1000) == list(range(600, 1200))

    assert await content(state, queue) == []


async def test_a_dequeue_that_is_too_large_takes_nothing(
    state: StateManager, queue: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state.core, "transaction_operations_max", 3)
    for number in range(4):
        await open_queue(state, number)
    async with state.transaction() as tx:
        with pytest.raises(LimitExceededError):
            await queue.dequeue_many(tx, 4)

    assert await content(state, queue) == [0, 1, 2, 3]


async def test_a_dequeue_that_was_too_large_may_be_made_smaller(
    state: StateManager, queue: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_queue(state, 0, 1, 2, 3)
    monkeypatch.setattr(state.core, "transaction_operations_max", 3)
    async with state.transaction() as tx:
        with pytest.raises(LimitExceededError):
            await queue.dequeue_many(tx, 4)
        assert await queue.dequeue_many(tx, 3) == [0, 1, 2]

    assert await content(state, queue) == [3]


def _extend(done: list[int], taken: list[int], _sequence: int) -> None:
    done.extend(taken)


@pytest.mark.timeout(300)
async def test_many_consumers_with_aborts_keep_the_order_and_lose_nothing() -> None:
    machine = Machine()
    chance = random.Random(5)
    done: list[int] = []
    aborted = 0
    async with machine.open("fast") as state:
        queue = await state.queue("queue", value=int)

        async def produce() -> None:
            for start in range(0, ITEMS, 50):
                async with state.transaction() as tx:
                    for number in range(start, start + 50):
                        await queue.enqueue(tx, number)

        async def consume() -> None:
            nonlocal aborted
            while len(done) < ITEMS:
                tx = state.transaction(timeout=3600)
                taken = await queue.dequeue_many(tx, 40, wait=0.001)
                if chance.random() < 0.1:
                    aborted += len(taken)
                    await tx.abort()
                    continue
                keep = functools.partial(_extend, done, taken)
                tx.after_commit(keep)
                await tx.commit()

        await asyncio.gather(produce(), *(consume() for _ in range(CONSUMERS)))
        assert await content(state, queue) == []
    assert aborted > ITEMS / 20
    assert done == list(range(ITEMS))


class TestBetweenTransactions:
    async def test_peek_shows_an_own_item_of_an_empty_queue(
        self, state: StateManager, queue: Numbers
    ) -> None:
        async with state.transaction() as tx:
            await queue.enqueue(tx, 1)
            assert await queue.peek(tx) == 1
            assert await queue.count(tx) == 1
            assert await content(state, queue) == []

    async def test_an_aborted_enqueue_leaves_no_gap(
        self, state: StateManager, queue: Numbers
    ) -> None:
        tx = state.transaction()
        await queue.enqueue(tx, 1)
        await queue.enqueue(tx, 2)
        await tx.abort()
        await open_queue(state, 3)

        assert await content(state, queue) == [3]
        async with state.transaction() as tx:
            assert await queue.dequeue(tx) == 3

    async def test_dequeue_many_takes_no_more_than_there_are(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2)
        async with state.transaction() as tx:
            assert await queue.dequeue_many(tx, 5) == [1, 2]

        assert await content(state, queue) == []

    async def test_equal_values_are_separate_items(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 7, 7)
        await open_queue(state, 7)
        async with state.transaction() as tx:
            assert await queue.dequeue(tx) == 7

        assert await content(state, queue) == [7, 7]

    async def test_clear_waits_for_producers_and_consumers(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1)
        for use in (lambda tx: queue.enqueue(tx, 2), queue.dequeue, queue.peek):
            tx = state.transaction()
            await use(tx)
            with pytest.raises(LockTimeoutError) as refused:
                await queue.clear(timeout=0)
            assert refused.value.holder == tx.id
            await tx.abort()

        await queue.clear(timeout=0)
        assert await content(state, queue) == []

    async def test_the_next_consumer_gets_the_item_that_the_first_gave_back(
        self, state: StateManager, queue: Numbers
    ) -> None:
        await open_queue(state, 1, 2)

        async def consume() -> int | None:
            async with state.transaction() as tx:
                return await queue.dequeue(tx)

        first = state.transaction()
        assert await queue.dequeue(first) == 1
        second = asyncio.create_task(consume())
        await settle()
        assert not second.done()
        await first.abort()

        assert await second == 1
        assert await content(state, queue) == [2]
