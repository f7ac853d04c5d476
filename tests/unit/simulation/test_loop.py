import asyncio
import contextlib
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from partita.simulation.loop import (
    DeadlockedError,
    LeakedTaskError,
    Ran,
    SimClock,
    SpinningError,
    UnseenFailureError,
    run,
    running_loop,
)


async def a_busy_system() -> list[int]:
    """Ten tasks that pass numbers around, sleep and race."""
    queues: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(10)]
    seen: list[int] = []

    async def pass_on(place: int) -> None:
        for number in range(20):
            await queues[place].put(number)
            seen.append(await queues[place - 1].get() + 100 * place)
            if number % 5 == place % 5:
                await asyncio.sleep(0.01 * place)

    await asyncio.gather(*(pass_on(place) for place in range(10)))
    return seen


def test_time_jumps_to_the_next_timer() -> None:
    async def scenario() -> float:
        await asyncio.sleep(86_400.0)
        return running_loop().time()

    ran = run(scenario(), seed=0)

    assert ran.value == ran.seconds == 86_400.0


def test_time_stands_still_while_something_is_ready() -> None:
    async def scenario() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return running_loop().time()

    assert run(scenario(), seed=0).value == 0.0


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def scenario() -> list[float]:
        fired: list[float] = []
        for delay in (3.0, 1.0, 2.0):
            running_loop().call_later(delay, fired.append, delay)
        await asyncio.sleep(5.0)
        return fired

    assert run(scenario(), seed=0).value == [1.0, 2.0, 3.0]


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = (run(a_busy_system(), seed=7) for _ in range(2))

    assert first == second


def test_other_seeds_give_other_histories() -> None:
    ran = [run(a_busy_system(), seed=seed) for seed in range(10)]

    assert len({one.trace_hash for one in ran}) == 10
    assert len({tuple(one.value) for one in ran}) == 10


def test_what_ran_before_does_not_change_a_history() -> None:
    before = run(a_busy_system(), seed=3)
    run(a_busy_system(), seed=4)
    kept = [object() for _ in range(1_000)]

    assert run(a_busy_system(), seed=3) == before
    assert len(kept) == 1_000


def test_the_order_of_sets_does_not_change_a_history() -> None:
    async def scenario() -> list[int]:
        ended: list[int] = []

        async def wait_for_ever(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(number)

        # A failing TaskGroup cancels its tasks in the order of a set, which is by address.
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(wait_for_ever(number))
                await asyncio.sleep(1.0)
                raise RuntimeError
        return ended

    histories: list[Ran[list[int]]] = []
    for padding in range(10):
        kept = [bytearray(100 + place) for place in range(37 * padding)]
        histories.append(run(scenario(), seed=1))
        del kept

    assert all(history == histories[0] for history in histories)
    assert histories[0].value != list(range(20))


def test_what_is_traced_belongs_to_the_history() -> None:
    async def scenario(text: str) -> None:
        running_loop().trace(text)

    assert run(scenario("a"), seed=0).trace_hash == run(scenario("a"), seed=0).trace_hash
    assert run(scenario("a"), seed=0).trace_hash != run(scenario("b"), seed=0).trace_hash


def test_the_seed_decides_who_comes_first() -> None:
    async def scenario() -> str:
        order: list[str] = []

        async def come(name: str) -> None:
            order.append(name)

        await asyncio.gather(come("a"), come("b"), come("c"))
        return "".join(order)

    assert len({run(scenario(), seed=seed).value for seed in range(100)}) == 6


def test_a_wait_for_ever_is_told_with_its_seed_and_tasks() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockedError, match=r"seed 42, .*wait_for_nothing-1"):
        run(wait_for_nothing(), seed=42)


def test_a_spin_is_told_with_its_seed() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - the mistake itself
            await asyncio.sleep(0)

    with pytest.raises(SpinningError, match=r"seed 42, .*spin-1"):
        run(spin(), seed=42, steps_max=1_000)


def test_a_task_that_outlives_the_run_is_told() -> None:
    async def outlive() -> None:
        await asyncio.sleep(100.0)

    async def scenario() -> asyncio.Task[None]:
        task = asyncio.create_task(outlive())
        await asyncio.sleep(1.0)
        return task

    with pytest.raises(LeakedTaskError, match=r"seed 5, .*outlive-2"):
        run(scenario(), seed=5)


def test_a_failure_that_nobody_asked_for_is_told() -> None:
    async def scenario() -> None:
        nothing: dict[str, int] = {}
        running_loop().call_soon(nothing.__getitem__, "missing")
        await asyncio.sleep(1.0)

    with pytest.raises(UnseenFailureError, match="seed 6") as raised:
        run(scenario(), seed=6)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_task_that_failed_unseen_is_told() -> None:
    async def fail() -> None:
        raise ValueError

    async def scenario() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1.0)
        del task

    with pytest.raises(UnseenFailureError, match="never retrieved"):
        run(scenario(), seed=6)


def test_the_error_of_the_main_task_comes_first() -> None:
    async def scenario() -> None:
        left = asyncio.create_task(asyncio.sleep(100.0))
        await asyncio.sleep(1.0)
        assert not left.done()
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        run(scenario(), seed=0)


def test_the_collector_is_on_again_after_a_run() -> None:
    run(asyncio.sleep(1.0), seed=0)
    assert gc.isenabled()

    with contextlib.suppress(ValueError):
        run(_fail(), seed=0)
    assert gc.isenabled()


async def _fail() -> None:
    raise ValueError


async def _tick(ticks: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        ticks.append(running_loop().time())


def test_a_paused_node_stands_still_and_wakes_late() -> None:
    async def scenario() -> tuple[list[float], list[float]]:
        paused: list[float] = []
        awake: list[float] = []
        loop = running_loop()
        tasks = [loop.spawn("paused", _tick(paused)), loop.spawn("awake", _tick(awake))]
        await asyncio.sleep(2.5)
        loop.pause("paused", 10.0)
        await asyncio.sleep(13.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return paused, awake

    paused, awake = run(scenario(), seed=0).value

    assert paused == [1.0, 2.0, 12.5, 13.5, 14.5]
    assert awake == [float(second) for second in range(1, 16)]


def test_what_a_node_starts_is_paused_with_it() -> None:
    async def scenario() -> list[float]:
        ticks: list[float] = []

        async def start() -> None:
            child = asyncio.create_task(_tick(ticks))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child, 100.0)

        loop = running_loop()
        task = loop.spawn("a", start())
        await asyncio.sleep(1.5)
        loop.pause("a", 50.0)
        await asyncio.sleep(40.0)
        seen = list(ticks)
        await task
        return seen

    assert run(scenario(), seed=0).value == [1.0]


def test_the_longer_of_two_pauses_counts() -> None:
    async def scenario() -> float:
        loop = running_loop()
        loop.pause("a", 10.0)
        loop.pause("a", 5.0)
        await loop.spawn("a", asyncio.sleep(0))
        return loop.time()

    assert run(scenario(), seed=0).value == 10.0


def test_a_killed_node_runs_nothing_more_not_even_its_finally() -> None:
    ran_finally: list[str] = []
    checked: list[list[str]] = []

    async def live() -> None:
        try:
            await asyncio.sleep(10.0)
        finally:
            ran_finally.append("finally")

    async def scenario() -> None:
        loop = running_loop()
        loop.spawn("a", live())
        await asyncio.sleep(1.0)
        loop.kill("a")
        await asyncio.sleep(100.0)
        checked.append(list(ran_finally))

    run(scenario(), seed=0)

    assert checked == [[]]


def test_a_name_lives_again_after_a_kill() -> None:
    async def scenario() -> str:
        loop = running_loop()
        loop.spawn("a", asyncio.sleep(10.0))
        await asyncio.sleep(1.0)
        loop.kill("a")
        return await loop.spawn("a", asyncio.sleep(1.0, "again"))

    assert run(scenario(), seed=0).value == "again"


def test_there_is_no_network_and_no_thread() -> None:
    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises((NotImplementedError, AttributeError)):
        run(connect(), seed=0)


def _with_clock(seed: int, name: str) -> tuple[bytes, str]:
    async def scenario() -> tuple[bytes, str]:
        clock = SimClock(running_loop(), name)
        return clock.random_bytes(8), clock.new_id()

    return run(scenario(), seed=seed).value


def test_a_clock_draws_by_seed_and_name() -> None:
    assert _with_clock(1, "a") == _with_clock(1, "a")
    assert len({_with_clock(1, "a"), _with_clock(1, "b"), _with_clock(2, "a")}) == 3


def test_a_clock_may_stand_wrong_run_wrong_and_jump() -> None:
    async def scenario() -> tuple[int, float, int]:
        right = SimClock(running_loop())
        wrong = SimClock(running_loop(), skew_seconds=5.0, drift=0.1)
        await asyncio.sleep(10.0)
        before = wrong.ticks() - right.ticks()
        wrong.jump(-60.0)
        return before, wrong.monotonic(), wrong.ticks() - right.ticks()

    assert run(scenario(), seed=0).value == (60_000_000, 11.0, -540_000_000)


def _runs(coroutine: Coroutine[Any, Any, object]) -> int:
    return run(coroutine, seed=0).steps


def test_steps_are_counted() -> None:
    async def scenario() -> None:
        for _ in range(1_000):
            await asyncio.sleep(0)

    assert 1_000 <= _runs(scenario()) < 1_010
