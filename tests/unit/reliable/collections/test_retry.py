import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pytest

from partita.clock import ManualClock
from partita.errors import (
    DeadlockError,
    InDoubtError,
    KeyExistsError,
    LimitExceededError,
    LockTimeoutError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    SchemaError,
    StateClosedError,
    StoreBusyError,
    TransactionAbortedError,
    TransactionUseError,
    UsageError,
)
from partita.reliable import ReliableDictionary, Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.values import limits
from partita.retrying import RetryPolicy
from partita.simulation.loop import running_loop
from support.states import Machine, User, a_state, settle, simulate

Numbers = ReliableDictionary[str, int]
DAY = limits.OUTCOME_SECONDS_KEPT


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    async with a_state() as opened:
        yield opened


@pytest.fixture
async def numbers(state: StateManager) -> Numbers:
    return await open_numbers(state)


async def open_numbers(state: StateManager) -> Numbers:
    return await state.dictionary("numbers", key=str, value=int)


async def content(state: StateManager, numbers: Numbers) -> dict[str, int]:
    async with state.snapshot() as snapshot:
        return {key: value async for key, value in numbers.items(snapshot)}


class Adder:
    """Adds one to a number, after failing as often as it was told to."""

    def __init__(self, numbers: Numbers, *failures: BaseException) -> None:
        self.numbers = numbers
        self.failures = list(failures)
        self.calls = 0

    async def __call__(self, tx: Transaction, key: str = "n") -> int:
        self.calls += 1
        number = await self.numbers.upsert(tx, key, 1, lambda old: old + 1)
        if self.failures:
            raise self.failures.pop(0)
        return number


class TestRun:
    async def test_it_returns_the_value_and_the_sequence(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        done = await state.run(Adder(numbers), "x")

        assert (done.value, done.commit_sequence) == (1, state.sequence)
        assert await content(state, numbers) == {"x": 1}

    async def test_a_function_that_only_reads_has_no_sequence(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def read(tx: Transaction) -> int | None:
            return await numbers.get(tx, "x", None)

        done = await state.run(read)

        assert (done.value, done.commit_sequence) == (None, None)

    @pytest.mark.parametrize(
        "error",
        [
            LockTimeoutError.of("other", "numbers", "n", 4.0),
            DeadlockError.of("other", "numbers", "n", 0.0),
            TransactionAbortedError("TransactionAborted", "Too long."),
            NotReadableError("NotReadable", "Not yet."),
            StoreBusyError("StoreBusy", "Later."),
        ],
    )
    def test_what_may_pass_is_tried_again_on_a_new_transaction(self, error: PartitaError) -> None:
        async def scenario(state: StateManager) -> None:
            numbers = await open_numbers(state)
            adder = Adder(numbers, error, error)

            done = await state.run(adder)

            assert (done.value, adder.calls) == (1, 3)

        simulate(scenario)

    @pytest.mark.parametrize(
        "error",
        [
            NotPrimaryError("NotPrimary", "Elsewhere."),
            StateClosedError("StateClosed", "Closed."),
            InDoubtError("InDoubt", "Who knows."),
            KeyExistsError("KeyExists", "There."),
            UsageError("Usage", "Never."),
            ZeroDivisionError(),
        ],
    )
    async def test_what_cannot_pass_is_raised_at_once(
        self, state: StateManager, numbers: Numbers, error: Exception
    ) -> None:
        adder = Adder(numbers, error)
        with pytest.raises(type(error)):
            await state.run(adder)

        assert adder.calls == 1
        assert await content(state, numbers) == {}

    def test_the_last_error_is_raised_after_the_last_attempt(self) -> None:
        async def scenario(state: StateManager) -> int:
            numbers = await open_numbers(state)
            failures = [LockTimeoutError.of(f"tx{n}", "numbers", "n", 4.0) for n in range(9)]
            adder = Adder(numbers, *failures)
            with pytest.raises(LockTimeoutError) as raised:
                await state.run(adder, attempts=5)
            assert raised.value.holder == "tx4"
            assert await content(state, numbers) == {}
            return adder.calls

        assert simulate(scenario) == 5

    def test_the_deadline_ends_the_attempts(self) -> None:
        async def scenario(state: StateManager) -> float:
            numbers = await open_numbers(state)
            async with state.transaction() as holder:
                await numbers.set(holder, "n", 1)
                with pytest.raises(LockTimeoutError):
                    await state.run(Adder(numbers), attempts=10_000, deadline=30)
            return running_loop().time()

        assert 20 < simulate(scenario) <= 30 + limits.LOCK_TIMEOUT_SECONDS

    def test_a_real_lock_is_waited_out(self) -> None:
        async def scenario(state: StateManager) -> int:
            numbers = await open_numbers(state)

            async def hold() -> None:
                async with state.transaction() as tx:
                    await numbers.set(tx, "n", 10)
                    await asyncio.sleep(9)

            task = asyncio.create_task(hold())
            await asyncio.sleep(0.1)
            done = await state.run(Adder(numbers))
            await task
            return done.value

        assert simulate(scenario) == 11

    def test_deadlocks_are_tried_until_all_is_done(self) -> None:
        async def scenario(state: StateManager) -> dict[str, int]:
            numbers = await open_numbers(state)

            async def both(tx: Transaction, first: str, second: str) -> None:
                for key in (first, second):
                    number = await numbers.get(tx, key, 0)
                    await asyncio.sleep(0.01)
                    await numbers.set(tx, key, number + 1)

            await asyncio.gather(
                *(state.run(both, *order, attempts=100) for order in ("ab", "ba") * 5)
            )
            return await content(state, numbers)

        assert simulate(scenario) == {"a": 10, "b": 10}


class TestRetryPolicy:
    def test_delays_grow_from_the_first_to_the_longest_with_full_jitter(self) -> None:
        clock = ManualClock(seed=3)
        policy = RetryPolicy(attempts=20, first_delay=0.1, max_delay=1.0)
        ceilings = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        for failures, ceiling in enumerate(ceilings, 1):
            delays = [policy.delay(failures, clock) for _ in range(300)]
            assert 0 <= min(delays) < 0.1 * ceiling
            assert 0.9 * ceiling < max(delays) <= ceiling

    def test_a_thousand_failures_do_not_overflow(self) -> None:
        assert RetryPolicy().delay(10_000, ManualClock()) <= 2.0

    @pytest.mark.parametrize(
        "arguments",
        [
            {"attempts": 0},
            {"attempts": 1.5},
            {"attempts": "3"},
            {"first_delay": -1},
            {"max_delay": float("nan")},
            {"deadline": "soon"},
        ],
    )
    async def test_numbers_that_make_no_sense_are_refused(
        self, state: StateManager, numbers: Numbers, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(UsageError):
            await state.run(Adder(numbers), **arguments)
        with pytest.raises(UsageError):
            async for _ in state.attempts(**arguments):
                pass


class TestAttempts:
    def test_a_failure_worth_another_try_is_not_raised(self) -> None:
        async def scenario(state: StateManager) -> int:
            numbers = await open_numbers(state)
            adder = Adder(numbers, LockTimeoutError.of("other", "numbers", "n", 4.0))
            tries = 0
            async for attempt in state.attempts():
                tries += 1
                async with attempt as tx:
                    await adder(tx)
            assert attempt.is_done
            assert await content(state, numbers) == {"n": 1}
            return tries

        assert simulate(scenario) == 2

    async def test_another_failure_is_raised(self, state: StateManager, numbers: Numbers) -> None:
        adder = Adder(numbers, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block as a whole is what fails
            async for attempt in state.attempts():
                async with attempt as tx:
                    await adder(tx)

        assert await content(state, numbers) == {}

    def test_the_last_attempt_raises(self) -> None:
        async def scenario(state: StateManager) -> int:
            numbers = await open_numbers(state)
            adder = Adder(
                numbers, *(LockTimeoutError.of("other", "numbers", "n", 4.0) for _ in range(9))
            )
            with pytest.raises(LockTimeoutError):  # noqa: PT012 - the block as a whole is what fails
                async for attempt in state.attempts(attempts=3):
                    async with attempt as tx:
                        await adder(tx)
            return adder.calls

        assert simulate(scenario) == 3


class Receipt(msgspec.Struct, frozen=True):
    number: int
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Slip:
    number: int


class Pair(NamedTuple):
    left: int
    right: str


class TestIdempotency:
    async def test_the_work_is_done_once_and_its_result_given_again(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        adder = Adder(numbers)
        first = await state.run(adder, idempotency_key="request")
        await state.run(adder, "other")
        again = await state.run(adder, idempotency_key="request")

        assert first == again
        assert await content(state, numbers) == {"n": 1, "other": 1}

    async def test_the_result_survives_a_restart(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            first = await state.run(Adder(await open_numbers(state)), idempotency_key="request")
        async with machine.open() as state:
            numbers = await open_numbers(state)
            again = await state.run(Adder(numbers), idempotency_key="request")
            assert again == first
            assert await content(state, numbers) == {"n": 1}

    async def test_one_key_used_by_many_at_once_does_the_work_once(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        adder = Adder(numbers)
        runs = (state.run(adder, idempotency_key="request") for _ in range(20))
        done = await asyncio.gather(*runs)

        assert len(set(done)) == 1
        assert adder.calls == 1
        assert await content(state, numbers) == {"n": 1}

    async def test_an_abort_remembers_nothing(self, state: StateManager, numbers: Numbers) -> None:
        with pytest.raises(ZeroDivisionError):
            await state.run(Adder(numbers, ZeroDivisionError()), idempotency_key="request")

        assert await state.outcome("request") is None
        done = await state.run(Adder(numbers), idempotency_key="request")
        assert done.value == 1

    async def test_a_function_that_wrote_nothing_is_remembered_too(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def read(tx: Transaction) -> int | None:
            return await numbers.get(tx, "n", None)

        first = await state.run(read, idempotency_key="request")
        await state.run(Adder(numbers))

        assert first.commit_sequence is not None
        assert await state.run(read, idempotency_key="request") == first

    @pytest.mark.parametrize("is_restarted", [False, True])
    async def test_a_key_is_forgotten_after_a_day(self, is_restarted: bool) -> None:
        machine = Machine()
        async with machine.open() as state:
            numbers = await open_numbers(state)
            await state.run(Adder(numbers), idempotency_key="request")
            machine.advance(DAY - 1)
            assert (await state.run(Adder(numbers), idempotency_key="request")).value == 1
            if not is_restarted:
                machine.advance(1)
                done = await state.run(Adder(numbers), idempotency_key="request")
                assert done.value == 2
                return
        machine.advance(1)
        async with machine.open() as state:
            numbers = await open_numbers(state)
            done = await state.run(Adder(numbers), idempotency_key="request")
            assert done.value == 2
            assert (await state.run(Adder(numbers), idempotency_key="request")).value == 2
            machine.advance(DAY)
            assert await state.outcome("request") is None
            assert (await state.run(Adder(numbers), idempotency_key="request")).value == 3

    async def test_what_is_forgotten_takes_no_room(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            numbers = await open_numbers(state)
            for number in range(10):
                await state.run(Adder(numbers), idempotency_key=f"request {number}")
                machine.advance(60)
            machine.advance(DAY)
            await state.run(Adder(numbers))
            assert not state.state.outcomes

    async def test_results_come_back_as_the_declared_type(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def struct(_tx: Transaction) -> Receipt:
            return Receipt(3, ("a",))

        async def record(_tx: Transaction) -> Slip:
            return Slip(4)

        async def pair(_tx: Transaction) -> Pair:
            return Pair(1, "x")

        async def nothing(_tx: Transaction) -> None:
            return None

        async def many(_tx: Transaction) -> dict[str, tuple[int, ...]]:
            return {"a": (1, 2)}

        expected: dict[Any, object] = {
            struct: Receipt(3, ("a",)),
            record: Slip(4),
            pair: Pair(1, "x"),
            nothing: None,
            many: {"a": (1, 2)},
        }
        for function, value in expected.items():
            key = function.__name__
            first = await state.run(function, idempotency_key=key)
            again = await state.run(function, idempotency_key=key)
            assert first == again
            assert again.value == value
            assert type(again.value) is type(value)

    async def test_without_an_annotation_results_are_plain_both_times(
        self, state: StateManager
    ) -> None:
        async def give(_tx: Transaction):  # type: ignore[no-untyped-def]
            return Receipt(3, ("a",))

        first = await state.run(give, idempotency_key="request")
        again = await state.run(give, idempotency_key="request")

        assert first.value == again.value == {"number": 3, "tags": ["a"]}

    async def test_a_result_that_cannot_be_kept_aborts(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def unfit(tx: Transaction) -> object:
            await numbers.set(tx, "n", 1)
            return object()

        async def wrong(tx: Transaction) -> int:
            await numbers.set(tx, "n", 1)
            return "text"  # type: ignore[return-value]

        async def large(tx: Transaction) -> str:
            await numbers.set(tx, "n", 1)
            return "x" * (limits.RESULT_BYTES_MAX + 1)

        refusals: dict[Any, type[PartitaError]] = {
            unfit: SchemaError,
            wrong: SchemaError,
            large: LimitExceededError,
        }
        for function, error in refusals.items():
            with pytest.raises(error):
                await state.run(function, idempotency_key="request")

        assert await content(state, numbers) == {}
        assert await state.outcome("request") is None

    async def test_outcome_says_what_was_committed(
        self, state: StateManager, numbers: Numbers
    ) -> None:
        async def give(tx: Transaction) -> Receipt:
            await numbers.set(tx, "n", 1)
            return Receipt(3)

        assert await state.outcome("request") is None
        done = await state.run(give, idempotency_key="request")

        assert await state.outcome("request", Receipt) == done
        plain = await state.outcome("request")
        assert plain is not None
        assert plain.value == {"number": 3, "tags": []}

    @pytest.mark.parametrize("key", ["", "x" * 257, 7, b"bytes"])
    async def test_a_key_that_is_none_is_refused(
        self, state: StateManager, numbers: Numbers, key: Any
    ) -> None:
        with pytest.raises(UsageError) as refused:
            await state.run(Adder(numbers), idempotency_key=key)
        assert refused.value.code == "InvalidIdempotencyKey"
        with pytest.raises(UsageError):
            await state.outcome(key)

        assert await content(state, numbers) == {}

    def test_an_answer_that_was_lost_is_tried_again_under_a_key_only(self) -> None:
        async def scenario(state: StateManager) -> None:
            numbers = await open_numbers(state)
            lost = InDoubtError("InDoubt", "The answer was lost.")
            adder = Adder(numbers, lost)
            with pytest.raises(InDoubtError):
                await state.run(adder)

            again = Adder(numbers, lost)
            done = await state.run(again, idempotency_key="request")
            assert (done.value, adder.calls, again.calls) == (1, 1, 2)

        simulate(scenario)

    async def test_a_function_under_a_key_may_not_commit_by_itself(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=str, value=int)

            async def count(tx: Transaction) -> int:
                value = await counts.upsert(tx, "n", 1, lambda n: n + 1)
                await tx.commit()
                return value

            for _ in range(2):
                with contextlib.suppress(TransactionUseError):
                    await state.run(count, idempotency_key="k")

            async with state.snapshot() as snapshot:
                assert await counts.get(snapshot, "n", 0) <= 1


async def test_a_cancelled_run_aborts(state: StateManager, numbers: Numbers) -> None:
    async def work(tx: Transaction) -> None:
        await numbers.set(tx, "n", 1)
        await asyncio.Event().wait()

    task = asyncio.create_task(state.run(work))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await content(state, numbers) == {}
    assert state._core.locks.is_empty()


async def test_run_needs_a_coroutine_function(state: StateManager, numbers: Numbers) -> None:
    def plain(_tx: Transaction) -> User:
        return User("x")

    function: Any = plain
    with pytest.raises(UsageError):
        await state.run(function)
    with pytest.raises(UsageError):
        await state.run(function, idempotency_key="request")
