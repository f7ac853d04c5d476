import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import partita
import partita.reliable
from partita.errors import (
    DamageError,
    KeyNotFoundError,
    LockTimeoutError,
    MutatedValueError,
    StateClosedError,
    StoreLockedError,
    TransactionAbortedError,
    TransactionUseError,
    UsageError,
)
from partita.reliable import MISSING, LockMode, Schema
from partita.reliable.collections.transaction import Status
from partita.reliable.sync import (
    ReliableConcurrentQueue,
    ReliableDictionary,
    ReliableQueue,
    RestoreContext,
    Snapshot,
    StateManager,
    Transaction,
    open_state,
)


class User(msgspec.Struct, frozen=True):
    email: str
    age: int = 0


class Cart(msgspec.Struct):
    items: list[str]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateManager]:
    with open_state(tmp_path / "state", durability="fast") as state:
        yield state


def counters(state: StateManager) -> ReliableDictionary[str, int]:
    return state.dictionary("counters", key=str, value=int)


def fill(state: StateManager, count: int) -> ReliableDictionary[int, int]:
    numbers = state.dictionary("numbers", key=int, value=int)
    with state.transaction() as tx:
        for number in range(count):
            numbers.set(tx, number, number * number)
    return numbers


def write_and_raise(
    state: StateManager,
    numbers: ReliableDictionary[str, int],
    error: Exception,
    also: Callable[[Transaction], None] = lambda _: None,
) -> Transaction:
    """Leave a transaction by an error, after a write; it must come out."""
    tx = state.transaction()

    def work() -> None:
        with tx:
            numbers.set(tx, "written", 1)
            also(tx)
            raise error

    with pytest.raises(type(error)) as raised:
        work()
    assert raised.value is error
    return tx


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


def open_snapshots(state: StateManager) -> int:
    return sum(state._inner.state._snapshots.values())


def locks_held(state: StateManager) -> int:
    return len(state._inner._core.locks._locks)


class TestCollections:
    def test_what_was_committed_is_found_in_the_next_life(self, tmp_path: Path) -> None:
        with open_state(tmp_path) as state:
            users = state.dictionary("users", key=str, value=User)
            with state.transaction() as tx:
                users.set(tx, "ada", User("ada@example.org"))

        with open_state(tmp_path) as state:
            users = state.dictionary("users", key=str, value=User)
            with state.snapshot() as snapshot:
                assert users.get(snapshot, "ada") == User("ada@example.org")

    def test_a_dictionary_has_all_its_operations(self, state: StateManager) -> None:
        users = state.dictionary("users", key=str, value=User)
        ada, bob = User("ada@example.org"), User("bob@example.org", 7)

        with state.transaction() as tx:
            users.add(tx, "ada", ada)
            assert not users.try_add(tx, "ada", bob)
            assert users.get(tx, "ada", lock=LockMode.UPDATE) == ada
            assert users.get(tx, "bob", None) is None
            assert users.get_or_add(tx, "bob", lambda: bob) == bob
            assert users.upsert(tx, "bob", ada, lambda user: User(user.email, 8)).age == 8
            assert users.compare_and_set(tx, "ada", bob, expected=ada)
            assert users.get_many(tx, ["ada", "bob", "eve"]).keys() == {"ada", "bob"}
            assert users.contains(tx, "ada")
            assert users.pop(tx, "ada") == bob
            assert users.pop(tx, "ada", "none") == "none"
            assert users.delete(tx, "bob")
            assert users.count(tx) == 0
            with pytest.raises(KeyNotFoundError):
                users.get(tx, "ada")
        assert users.name == "users"

    def test_enumerations_take_their_arguments(self, state: StateManager) -> None:
        users = state.dictionary("users", key=str, value=User, indexes={"age": lambda u: u.age})
        with state.transaction() as tx:
            for name, age in (("ada", 1), ("al", 2), ("bob", 2)):
                users.set(tx, name, User(name, age))

        with state.snapshot() as snapshot:
            assert [name for name, _ in users.items(snapshot, prefix="a")] == ["ada", "al"]
            assert list(users.keys(snapshot, start="al", reverse=True)) == ["bob", "al"]
            assert [u.age for u in users.values(snapshot, limit=2)] == [1, 2]
            assert [n for n, _ in users.items(snapshot, where=lambda _, u: u.age > 1)] == [
                "al",
                "bob",
            ]
            assert [n for n, _ in users.find(snapshot, age=2, reverse=True)] == ["bob", "al"]

    def test_queues_have_all_their_operations(self, state: StateManager) -> None:
        queue = state.queue("queue", value=str)
        jobs = state.concurrent_queue("jobs", value=str)
        with state.transaction() as tx:
            for text in ("a", "b", "c"):
                queue.enqueue(tx, text)
                jobs.enqueue(tx, text)

        with state.transaction() as tx:
            assert queue.peek(tx) == "a"
            assert queue.dequeue(tx) == "a"
            assert queue.dequeue_many(tx, 5) == ["b", "c"]
            assert queue.dequeue(tx, "none", wait=0.001) == "none"
            assert jobs.dequeue(tx) == "a"
            [delivery] = jobs.receive(tx, visibility=60)
        with state.transaction() as tx:
            assert jobs.release(tx, delivery)
        with state.transaction() as tx:
            [again] = jobs.receive(tx, visibility=60)
            assert (again.value, again.deliveries) == ("b", 2)
        with state.transaction() as tx:
            assert jobs.complete(tx, again)
        with state.snapshot() as snapshot:
            assert (queue.count(snapshot), jobs.count(snapshot)) == (0, 1)
            assert (list(queue.items(snapshot)), list(jobs.items(snapshot))) == ([], ["c"])
            assert jobs.peek(snapshot) == "c"
        assert jobs.returned(delivery.position) == 0

    def test_clearing_takes_a_transaction_or_its_own(self, state: StateManager) -> None:
        numbers, queue = fill(state, 3), state.queue("queue", value=str)
        jobs = state.concurrent_queue("jobs", value=str)

        with state.transaction() as tx:
            numbers.clear(tx)
            queue.enqueue(tx, "a")
            jobs.enqueue(tx, "a")
        queue.clear()
        jobs.clear()

        with state.snapshot() as snapshot:
            assert numbers.count(snapshot) == queue.count(snapshot) == jobs.count(snapshot) == 0

    def test_collections_are_listed_dropped_and_rewritten(self, state: StateManager) -> None:
        numbers = fill(state, 10)

        assert [(one.name, one.count) for one in state.collections()] == [("numbers", 10)]
        assert state.rewrite(numbers) == 0
        state.drop("numbers")
        assert state.collections() == []

    def test_a_schema_is_promoted(self, state: StateManager) -> None:
        state.dictionary("users", key=str, value=User, version=Schema(2, write=1))

        state.promote_schema("users", 2)

        assert [one.written_version for one in state.collections()] == [2]

    def test_a_changed_value_is_found(self, state: StateManager) -> None:
        carts = state.dictionary("carts", key=str, value=Cart, mutable="copy")
        cart = Cart(["lamp"])

        def change() -> None:
            with state.transaction() as tx:
                carts.set(tx, "ada", cart)
                cart.items.append("chair")

        with pytest.raises(MutatedValueError):
            change()
        state.set_mutation_check("off")
        change()


class TestTransactions:
    def test_an_exception_aborts(self, state: StateManager) -> None:
        numbers = counters(state)

        used = write_and_raise(state, numbers, ZeroDivisionError())

        assert used.status is Status.ABORTED
        with state.snapshot() as snapshot:
            assert numbers.count(snapshot) == 0

    def test_explicit_ends_are_taken(self, state: StateManager) -> None:
        numbers = counters(state)

        with state.transaction() as tx:
            numbers.set(tx, "a", 1)
            tx.commit()
            assert tx.commit_sequence == state.sequence
        with state.transaction() as tx:
            numbers.set(tx, "a", 2)
            tx.abort()
        with pytest.raises(TransactionUseError, match="TransactionEnded"):
            numbers.get(tx, "a")
        with pytest.raises(TransactionUseError, match="TransactionEnded"):
            tx.__enter__()

    def test_another_thread_may_go_on_with_a_transaction(self, state: StateManager) -> None:
        numbers = counters(state)

        with state.transaction() as tx:
            in_thread(lambda: numbers.set(tx, "a", 1))
            assert numbers.get(tx, "a") == 1

    def test_two_threads_at_once_are_refused(self, state: StateManager) -> None:
        numbers = counters(state)

        with state.transaction() as holder, state.transaction() as tx:
            numbers.set(holder, "a", 1)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(numbers.get, tx, "a", 0)
                until(lambda: tx.inner._woken is not None)
                with pytest.raises(TransactionUseError, match="two threads"):
                    numbers.get(tx, "b", 0)
                with pytest.raises(TransactionUseError, match="two threads"):
                    tx.after_commit(print)
                holder.abort()
                assert waiting.result() == 0

    def test_a_lock_that_is_held_times_out(self, state: StateManager) -> None:
        numbers = counters(state)

        with state.transaction() as holder, state.transaction(timeout=0.01) as tx:
            numbers.set(holder, "a", 1)
            with pytest.raises(LockTimeoutError) as raised:
                numbers.set(tx, "a", 2)

        assert raised.value.holder == holder.id

    def test_callbacks_come_in_the_thread_that_commits_and_may_use_the_state(
        self, state: StateManager, caplog: pytest.LogCaptureFixture
    ) -> None:
        numbers = counters(state)
        heard: list[object] = []

        def hear(sequence: int) -> None:
            heard.append((sequence, threading.current_thread(), state.collections()[0].count))
            raise ZeroDivisionError

        with state.transaction() as tx:
            tx.after_commit(hear)
            numbers.set(tx, "a", 1)
        write_and_raise(state, numbers, KeyError(), lambda aborted: aborted.after_commit(hear))

        assert heard == [(tx.commit_sequence, threading.current_thread(), 1)]
        assert "a callback after commit failed" in caplog.text

    def test_a_snapshot_stands_still_and_any_thread_reads_it(self, state: StateManager) -> None:
        numbers = counters(state)
        with state.transaction() as tx:
            numbers.set(tx, "a", 1)

        with state.snapshot() as snapshot:
            with state.transaction() as tx:
                numbers.set(tx, "a", 2)
            assert in_thread(lambda: numbers.get(snapshot, "a")) == 1
            assert snapshot.sequence == state.sequence - 1
        with pytest.raises(TransactionUseError, match="SnapshotClosed"):
            numbers.get(snapshot, "a")

    def test_a_transaction_of_another_state_or_type_is_refused(
        self, state: StateManager, tmp_path: Path
    ) -> None:
        numbers = counters(state)
        wrong: Any

        with open_state(tmp_path / "other") as other, other.transaction() as tx:
            for wrong in (tx, None, tx.inner):
                with pytest.raises(UsageError, match="TransactionExpected"):
                    numbers.get(wrong, "a")
                with pytest.raises(UsageError, match="TransactionExpected"):
                    numbers.items(wrong)
        with state.snapshot() as snapshot:
            wrong = snapshot
            with pytest.raises(UsageError, match="TransactionExpected"):
                numbers.set(wrong, "a", 1)


class TestIteration:
    def test_all_rows_come_in_order(self, state: StateManager) -> None:
        numbers = fill(state, 1_000)

        with state.snapshot() as snapshot:
            assert list(numbers.items(snapshot)) == [(n, n * n) for n in range(1_000)]

    def test_a_thousand_rows_need_few_hand_overs(
        self, state: StateManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        numbers, posts = fill(state, 1_000), 0
        post = state._thread.post

        def counted(*arguments: Any) -> bool:
            nonlocal posts
            posts += 1
            return post(*arguments)

        with state.snapshot() as snapshot:
            monkeypatch.setattr(state._thread, "post", counted)
            assert sum(1 for _ in numbers.keys(snapshot)) == 1_000

        assert posts <= 6  # the end of the snapshot is one

    def test_an_iteration_given_up_early_keeps_nothing(self, state: StateManager) -> None:
        numbers = fill(state, 1_000)

        with state.transaction() as tx:
            for number in numbers.keys(tx):
                if number == 300:
                    break
            assert open_snapshots(state) == 1
        with state.snapshot() as snapshot:
            rows = numbers.items(snapshot)
            next(rows)
            del rows
            gc.collect()

        state.collections()  # behind what the collector posted
        assert open_snapshots(state) == 0
        assert locks_held(state) == 0

    def test_rows_may_be_changed_while_they_are_read(self, state: StateManager) -> None:
        numbers = fill(state, 600)

        with state.transaction() as tx:
            for number, _ in numbers.items(tx):
                numbers.delete(tx, number)
            assert numbers.count(tx) == 0

    def test_reads_take_missing_as_a_default_and_a_time_out(self, state: StateManager) -> None:
        nullable: Any = str | None
        notes = state.dictionary(
            "notes", key=str, value=nullable, indexes={"text": lambda text: text}
        )
        queue = state.queue("queue", value=int)
        jobs = state.concurrent_queue("jobs", value=int)
        with state.transaction() as tx:
            notes.set(tx, "empty", None)
            assert notes.get(tx, "empty", MISSING) is None
            assert notes.get(tx, "absent", MISSING) is MISSING
            assert notes.pop(tx, "empty", MISSING) is None
            assert notes.pop(tx, "empty", MISSING) is MISSING
            assert queue.dequeue(tx, MISSING) is MISSING
            assert queue.peek(tx, MISSING) is MISSING
            assert jobs.dequeue(tx, MISSING) is MISSING
            assert jobs.peek(tx, MISSING) is MISSING

        clearer = state.transaction()
        for collection in (notes, queue, jobs):
            collection.clear(clearer)
        with state.transaction() as tx:
            for use in (
                lambda: notes.count(tx, timeout=0),
                lambda: notes.get_many(tx, ["a"], timeout=0),
                lambda: next(notes.items(tx, timeout=0)),
                lambda: next(notes.keys(tx, timeout=0)),
                lambda: next(notes.values(tx, timeout=0)),
                lambda: next(notes.find(tx, text="x", timeout=0)),
                lambda: queue.count(tx, timeout=0),
                lambda: next(queue.items(tx, timeout=0)),
                lambda: jobs.count(tx, timeout=0),
                lambda: jobs.peek(tx, timeout=0),
                lambda: next(jobs.items(tx, timeout=0)),
            ):
                with pytest.raises(LockTimeoutError):
                    use()
        clearer.abort()

    def test_a_loop_that_moves_keys_ahead_meets_each_row_once(self, state: StateManager) -> None:
        numbers = state.dictionary(
            "numbers", key=int, value=int, indexes={"bonus": lambda value: value}
        )
        with state.transaction() as tx:
            for number in range(1_000):
                numbers.set(tx, number, 0)

        with state.transaction() as tx:
            for number, bonus in numbers.items(tx):
                numbers.delete(tx, number)
                numbers.set(tx, number + 1_000, bonus + 1)
            found = 0
            for number, _ in numbers.find(tx, bonus=1):
                numbers.delete(tx, number)
                numbers.set(tx, number + 1_000, 1)
                found += 1
        with state.snapshot() as snapshot:
            assert list(numbers.items(snapshot)) == [(n, 1) for n in range(2_000, 3_000)]
        assert found == 1_000

    @pytest.mark.parametrize("count", [3, 1_000])
    def test_a_loop_over_a_queue_does_not_see_what_it_enqueues_or_takes(
        self, state: StateManager, count: int
    ) -> None:
        queue = state.queue("queue", value=int)
        jobs = state.concurrent_queue("jobs", value=int)
        with state.transaction() as tx:
            for number in range(count):
                queue.enqueue(tx, number)
                jobs.enqueue(tx, number)

        seen, seen_jobs = [], []
        with state.transaction() as tx:
            for number in queue.items(tx):
                queue.enqueue(tx, number)
                seen.append(number)
            for number in jobs.items(tx):
                jobs.dequeue(tx)
                seen_jobs.append(number)

        assert seen == seen_jobs == list(range(count))

    def test_what_a_condition_raises_reaches_the_caller(self, state: StateManager) -> None:
        numbers = fill(state, 3)

        def leave(*_: object) -> bool:
            sys.exit(7)

        with state.snapshot() as snapshot:
            with pytest.raises(SystemExit):
                list(numbers.items(snapshot, where=leave))
            assert numbers.count(snapshot) == 3

    def test_a_function_that_uses_the_state_inside_an_operation_is_refused(
        self, state: StateManager
    ) -> None:
        numbers = fill(state, 3)

        with state.transaction() as tx, pytest.raises(UsageError, match="LoopIsRunning"):
            numbers.upsert(tx, 1, 0, lambda _: numbers.get(tx, 2))


class TestRun:
    def test_the_function_runs_in_the_callers_thread_with_its_arguments(
        self, state: StateManager
    ) -> None:
        numbers = counters(state)

        def add(tx: Transaction, key: str, count: int) -> str:
            numbers.set(tx, key, numbers.get(tx, key, 0) + count)
            return threading.current_thread().name

        done = state.run(add, "a", 3)

        assert (done.value, done.commit_sequence) == (
            threading.current_thread().name,
            state.sequence,
        )

    def test_an_idempotency_key_makes_it_exactly_once_across_lives(self, tmp_path: Path) -> None:
        def join(tx: Transaction, users: ReliableDictionary[str, User]) -> User:
            users.add(tx, "ada", User("ada@example.org"))
            return users.get(tx, "ada")

        outcomes = []
        for _ in range(2):
            with open_state(tmp_path) as state:
                users = state.dictionary("users", key=str, value=User)
                outcomes += [state.run(join, users, idempotency_key="k") for _ in range(2)]
                assert state.outcome("k", User) == outcomes[0]
                assert state.outcome("other") is None

        assert outcomes == [outcomes[0]] * 4
        assert outcomes[0].value == User("ada@example.org")

    def test_what_is_worth_another_try_is_tried_again(self, state: StateManager) -> None:
        numbers, calls = counters(state), 0

        def work(tx: Transaction) -> int:
            nonlocal calls
            calls += 1
            numbers.set(tx, "a", calls)
            if calls < 3:
                raise TransactionAbortedError("TransactionAborted", "Again.")
            return calls

        done = state.run(work, first_delay=0.001)

        assert (done.value, calls) == (3, 3)

    def test_other_errors_and_the_last_attempts_are_raised(self, state: StateManager) -> None:
        calls = 0

        def work(_tx: Transaction, error: BaseException) -> None:
            nonlocal calls
            calls += 1
            raise error

        aborted = TransactionAbortedError("TransactionAborted", "Again.")
        with pytest.raises(TransactionAbortedError):
            state.run(work, aborted, attempts=2, first_delay=0.001)
        for error in (ZeroDivisionError(), SystemExit(3), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                state.run(work, error)

        assert calls == 5
        assert locks_held(state) == 0
        assert state.collections() == []

    def test_a_coroutine_function_is_refused(self, state: StateManager) -> None:
        async def work(_tx: Transaction) -> None: ...

        with pytest.raises(UsageError, match="FunctionSuspends"):
            state.run(work)

    def test_callbacks_of_the_transaction_come_once(self, state: StateManager) -> None:
        numbers = counters(state)
        heard: list[int] = []

        def work(tx: Transaction) -> None:
            numbers.set(tx, "a", 1)
            tx.after_commit(heard.append)

        assert heard == [state.run(work).commit_sequence]

    def test_attempts_go_on_until_one_commits(self, state: StateManager) -> None:
        numbers, tries = counters(state), 0

        for attempt in state.attempts(first_delay=0.001):
            with attempt as tx:
                tries += 1
                numbers.set(tx, "a", tries)
                if tries < 3:
                    raise TransactionAbortedError("TransactionAborted", "Again.")
            assert attempt.is_done is (tries == 3)
            assert (attempt.failure is None) is (tries == 3)

        with state.snapshot() as snapshot:
            assert numbers.get(snapshot, "a") == tries == 3

    def test_the_last_attempt_raises(self, state: StateManager) -> None:
        tries = 0

        def hopeless() -> None:
            nonlocal tries
            for attempt in state.attempts(attempts=2, first_delay=0.001):
                with attempt:
                    tries += 1
                    raise TransactionAbortedError("TransactionAborted", "Again.")

        with pytest.raises(TransactionAbortedError):
            hopeless()
        assert tries == 2

    def test_no_update_of_many_threads_is_lost(self, state: StateManager) -> None:
        numbers, threads, rounds = counters(state), 8, 25

        def count(tx: Transaction) -> int:
            before = numbers.get(tx, "a", 0, lock=LockMode.UPDATE)
            numbers.set(tx, "a", before + 1)
            return before

        def hammer(_: int) -> list[int]:
            return [state.run(count).value for _ in range(rounds)]

        with ThreadPoolExecutor(threads) as pool:
            seen = [value for values in pool.map(hammer, range(threads)) for value in values]

        assert sorted(seen) == list(range(threads * rounds))

    def test_deadlocks_of_threads_are_resolved(self, state: StateManager) -> None:
        numbers = counters(state)

        def swap(tx: Transaction, first: str, second: str) -> None:
            for key in (first, second):
                numbers.set(tx, key, numbers.get(tx, key, 0) + 1)

        def hammer(order: tuple[str, str]) -> None:
            for _ in range(10):
                state.run(swap, *order, attempts=100, first_delay=0.001, max_delay=0.01)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(hammer, [("a", "b"), ("b", "a")] * 2))

        with state.snapshot() as snapshot:
            assert dict(numbers.items(snapshot)) == {"a": 40, "b": 40}


class TestChanges:
    def test_a_feed_tells_what_was_committed_and_ends_after_its_time(
        self, state: StateManager
    ) -> None:
        numbers = fill(state, 600)
        told = []

        with numbers.changes(since=0, wait=5) as feed:
            for change in feed:
                told.append(change.key)
                if len(told) == 600:
                    break
        with numbers.changes(since=state.sequence, wait=0.01) as feed:
            rest = list(feed)

        assert (told, rest) == (list(range(600)), [])
        assert state._inner._feeds == []

    def test_a_feed_waits_for_what_comes(self, state: StateManager) -> None:
        numbers = counters(state)

        def write() -> None:
            with state.transaction() as tx:
                numbers.set(tx, "a", 1)

        with numbers.changes(since=state.sequence) as feed, ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, feed)
            write()
            assert first.result().new == 1

    def test_closing_ends_the_iteration_of_another_thread(self, state: StateManager) -> None:
        numbers = counters(state)

        with numbers.changes(since=state.sequence) as feed, ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, feed)
            until(lambda: feed._inner._woken is not None)
            feed.close()
            assert rest.result() == []

    def test_closing_the_state_ends_the_iteration(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(1) as pool:
            with open_state(tmp_path) as state:
                feed = counters(state).changes().__enter__()
                rest = pool.submit(list, feed)
                until(lambda: feed._inner._woken is not None)
            assert rest.result() == []

    def test_a_feed_outside_its_block_and_two_readers_are_refused(
        self, state: StateManager
    ) -> None:
        numbers = counters(state)

        with pytest.raises(UsageError, match="FeedNotOpen"):
            next(numbers.changes())
        with pytest.raises(UsageError, match="InvalidTimeout"):
            numbers.changes(wait=-1)
        with numbers.changes(since=state.sequence) as feed, ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, feed)
            until(lambda: feed._inner._woken is not None and not feed._arrived.is_set())
            until(lambda: in_use(feed._turn))
            with pytest.raises(UsageError, match="FeedInUse"):
                next(feed)
            feed.close()
            rest.result()


@pytest.mark.parametrize(
    ("face", "core"),
    [
        (StateManager, partita.reliable.StateManager),
        (Transaction, partita.reliable.Transaction),
        (Snapshot, partita.reliable.Snapshot),
        (ReliableDictionary, partita.reliable.ReliableDictionary),
        (ReliableQueue, partita.reliable.ReliableQueue),
        (ReliableConcurrentQueue, partita.reliable.ReliableConcurrentQueue),
    ],
)
def test_methods_take_the_arguments_of_the_asynchronous_ones(face: type, core: type) -> None:
    def methods(one: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [
                (p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()
            ]
            for name, member in inspect.getmembers(one, callable)
            if not name.startswith("_")
        }

    found, wanted = methods(face), methods(core)

    found.get("changes", [])[2:] = []  # how long an iteration waits is said here alone
    own = {"call_back", "finish", "perform", "run"} - wanted.keys()
    assert found == {name: wanted.get(name) for name in found} | {
        name: found[name] for name in own & found.keys()
    }


def test_opening_takes_the_same_arguments() -> None:
    wanted, found = (inspect.signature(one).parameters for one in (partita.open_state, open_state))

    assert [(p.name, p.default) for p in found.values()] == [
        (p.name, p.default) for p in wanted.values()
    ]


def in_use(lock: Any) -> bool:
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


class TestFiles:
    def test_a_backup_is_restored_where_the_state_is_damaged(self, tmp_path: Path) -> None:
        home, backups, causes = tmp_path / "state", tmp_path / "backups", []
        with open_state(home) as state:
            fill(state, 300)
            assert state.backup(backups).last_sequence == state.sequence
            assert state.checkpoint() == state.sequence
        for path in home.glob("*checkpoint*"):
            path.write_bytes(b"\x00" * path.stat().st_size)

        def restore(context: RestoreContext) -> None:
            causes.append(context.cause)
            context.restore(backups)

        with pytest.raises(DamageError):
            open_state(home)
        with open_state(home, on_data_loss=restore) as state:
            numbers = state.dictionary("numbers", key=int, value=int)
            with state.snapshot() as snapshot:
                assert numbers.count(snapshot) == 300
        assert len(causes) == 1

    def test_a_local_state_is_primary(self, state: StateManager) -> None:
        assert state.is_primary
        assert state.wait_primary(timeout=0)
        state.step_down()
        state.read_at_least(state.sequence)
        assert (state.epoch, len(state.replica_id)) == (1, 8)


class TestLife:
    def test_nothing_runs_after_the_close(self, tmp_path: Path) -> None:
        before = threading.active_count()

        with open_state(tmp_path) as state:
            fill(state, 300)
            assert threading.active_count() > before

        assert threading.active_count() == before

    def test_a_failed_opening_leaves_no_thread(self, state: StateManager, tmp_path: Path) -> None:
        before = threading.active_count()

        with pytest.raises(StoreLockedError):
            open_state(tmp_path / "state")
        with pytest.raises(UsageError, match="InvalidStateAddress"):
            open_state("http://example.org")

        assert threading.active_count() == before

    def test_a_closed_state_says_so(self, tmp_path: Path) -> None:
        with open_state(tmp_path) as state:
            numbers = fill(state, 600)
            snapshot, tx = state.snapshot(), state.transaction()
            rows = numbers.items(snapshot)
            next(rows)

        for use in (
            state.collections,
            state.transaction,
            lambda: numbers.get(tx, 1),
            lambda: numbers.count(snapshot),
            lambda: list(rows),
            lambda: state.run(lambda _: None),
            lambda: next(state.attempts()),
            state.__enter__,
            tx.commit,
            lambda: tx.__exit__(None, None, None),
        ):
            with pytest.raises(StateClosedError):
                use()
        state.close()
        snapshot.close()

    def test_closing_ends_those_who_wait_in_other_threads(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(2) as pool:
            with open_state(tmp_path) as state:
                numbers, queue = counters(state), state.queue("queue", value=int)
                holder, one, two = (state.transaction() for _ in range(3))
                numbers.set(holder, "a", 1)
                waiting: list[Future[Any]] = [
                    pool.submit(numbers.get, one, "a", timeout=60),
                    pool.submit(queue.dequeue, two, wait=60),
                ]
                until(lambda: None not in (one.inner._woken, two.inner._woken))
            for future in waiting:
                with pytest.raises(StateClosedError):
                    future.result()

    def test_an_error_is_not_hidden_by_a_state_that_was_closed(self, tmp_path: Path) -> None:
        state = open_state(tmp_path)

        write_and_raise(state, counters(state), ZeroDivisionError(), lambda _: state.close())
        with pytest.raises(StateClosedError), state.transaction():
            pass

    def test_a_thread_that_died_is_said_and_not_waited_for(self, tmp_path: Path) -> None:
        state = open_state(tmp_path)
        numbers = counters(state)
        tx, holder = state.transaction(), state.transaction()
        numbers.set(holder, "a", 1)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(numbers.get, tx, "a", timeout=60)
            until(lambda: tx.inner._woken is not None)
            state._thread.loop.call_soon_threadsafe(state._thread.loop.stop)
            with pytest.raises(StateClosedError):
                waiting.result()
        with pytest.raises(StateClosedError):
            numbers.get(holder, "a")
        state.close()
        assert state._inner.on_close is not None
        state._inner.on_close()

    def test_a_call_that_the_thread_never_began_ends_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = open_state(tmp_path)
        lost = threading.Event()

        def lose(*_: object) -> bool:
            lost.set()
            return True

        with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
            patched.setattr(state._thread, "post", lose)
            waiting = pool.submit(state.collections)
            lost.wait()
            state._thread.loop.call_soon_threadsafe(state._thread.loop.stop)
            with pytest.raises(StateClosedError):
                waiting.result()
        state.close()
        assert state._inner.on_close is not None
        state._inner.on_close()

    async def test_a_thread_that_runs_a_loop_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="LoopIsRunning"):
            open_state(tmp_path)

        state = await asyncio.to_thread(open_state, tmp_path)
        for use in (state.collections, state.close, lambda: state.run(lambda _: None)):
            with pytest.raises(UsageError, match="LoopIsRunning"):
                use()
        await asyncio.to_thread(state.close)

        async with partita.open_state(tmp_path):  # and nothing was left behind
            pass


@pytest.fixture
def interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when(condition: Callable[[], bool]) -> threading.Thread:
    """Interrupt the main thread, as Ctrl-C does, once a condition holds."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(condition)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.usefixtures("interrupts")
class TestInterrupts:
    def test_an_interrupted_wait_lets_go_of_its_locks(self, state: StateManager) -> None:
        numbers = counters(state)
        holder = state.transaction()
        numbers.set(holder, "a", 1)

        tx = state.transaction()
        numbers.set(tx, "b", 1)
        thread = interrupt_when(lambda: tx.inner._woken is not None)
        with pytest.raises(KeyboardInterrupt), tx:
            numbers.get(tx, "a", timeout=60)
        thread.join()

        assert tx.status is Status.ABORTED
        holder.commit()
        assert locks_held(state) == 0

    def test_an_interrupted_run_leaves_nothing(self, state: StateManager) -> None:
        queue, used = state.queue("queue", value=int), []

        def work(tx: Transaction) -> int | None:
            used.append(tx)
            return queue.dequeue(tx, wait=60)

        thread = interrupt_when(lambda: bool(used) and used[0].inner._woken is not None)
        with pytest.raises(KeyboardInterrupt):
            state.run(work)
        thread.join()

        assert used[0].status is Status.ABORTED
        assert locks_held(state) == 0

    def test_an_interrupted_feed_loses_nothing(self, state: StateManager) -> None:
        numbers = counters(state)

        with numbers.changes(since=state.sequence) as feed:
            thread = interrupt_when(
                lambda: feed._inner._woken is not None and bool(feed._arrived._waiters)
            )
            with pytest.raises(KeyboardInterrupt):
                next(feed)
            thread.join()
            with state.transaction() as tx:
                numbers.set(tx, "a", 1)
            assert next(feed).new == 1

    def test_what_must_be_finished_is_waited_for(
        self, state: StateManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended, go_on, begun = [], asyncio.Event(), threading.Event()
        until_interrupted = threading.Event()

        async def slow() -> None:
            begun.set()
            await go_on.wait()
            ended.append(True)

        def release() -> None:
            until_interrupted.wait()
            state._thread.post(go_on.set)

        thread = interrupt_when(begun.is_set)
        post = state._thread.post

        def noticed(*arguments: Any) -> bool:
            if arguments[0].__name__ == "_cancel":
                until_interrupted.set()
            return post(*arguments)

        monkeypatch.setattr(state._thread, "post", noticed)
        releasing = threading.Thread(target=release)
        releasing.start()
        with pytest.raises(KeyboardInterrupt):
            state._thread.finish(slow())
        thread.join()
        releasing.join()

        assert ended == [True]


def run_script(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    # In development mode asyncio warns of steps that took long on a busy machine.
    quiet = "import logging\nlogging.getLogger('asyncio').setLevel(logging.ERROR)\n"
    path.write_text(quiet + textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(path), str(folder / "state")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ},
    )


class TestProcesses:
    def test_a_forked_child_is_told_to_open_its_own(self, tmp_path: Path) -> None:
        done = run_script(
            tmp_path,
            """
            import os, sys
            from partita.errors import UsageError
            from partita.reliable.sync import open_state

            state = open_state(sys.argv[1])
            numbers = state.dictionary("numbers", key=int, value=int)
            with state.transaction() as tx:
                numbers.set(tx, 1, 1)
            child = os.fork()
            if child == 0:
                for use in (state.transaction, state.collections, state.__enter__):
                    try:
                        use()
                    except UsageError as error:
                        assert error.code == "StateForked", error
                        assert "after the fork" in error.hint
                    else:
                        raise AssertionError("a forked child used the state")
                state.close()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            with state.transaction() as tx:
                assert numbers.get(tx, 1) == 1
            print("parent goes on")
            """,
        )

        assert (done.stdout, done.stderr, done.returncode) == ("parent goes on\n", "", 0)

    def test_a_script_that_never_closes_ends_and_loses_nothing(self, tmp_path: Path) -> None:
        done = run_script(
            tmp_path,
            """
            import atexit, sys, threading
            from partita.reliable.sync import open_state

            # Called last, because it is the first that was registered.
            atexit.register(lambda: print("closed", state._inner._closing.done()))
            state = open_state(sys.argv[1])
            numbers = state.dictionary("numbers", key=int, value=int)
            with state.transaction() as tx:
                numbers.set(tx, 1, 7)
            left = state.transaction()
            numbers.set(left, 2, 8)
            feed = numbers.changes(since=state.sequence).__enter__()
            waiting = threading.Thread(target=lambda: list(feed), daemon=True)
            waiting.start()
            """,
        )

        assert (done.stdout, done.stderr, done.returncode) == ("closed True\n", "", 0)
        with open_state(tmp_path / "state") as state:
            numbers = state.dictionary("numbers", key=int, value=int)
            with state.snapshot() as snapshot:
                assert dict(numbers.items(snapshot)) == {1: 7}

    def test_an_uncaught_error_ends_the_script(self, tmp_path: Path) -> None:
        done = run_script(
            tmp_path,
            """
            import sys
            from partita.reliable.sync import open_state

            state = open_state(sys.argv[1])
            numbers = state.dictionary("numbers", key=int, value=int)
            tx = state.transaction()
            numbers.get(tx, 1)
            """,
        )

        assert done.returncode == 1
        assert (
            done.stderr.rstrip()
            .rpartition("\n")[2]
            .startswith("partita.errors.KeyNotFoundError: KeyNotFound")
        )

    def test_the_example_runs(self) -> None:
        example = Path(__file__).parents[3] / "examples" / "reliable_sync.py"

        done = subprocess.run(
            [sys.executable, "-W", "error", str(example)],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

        assert (done.stdout, done.stderr) == ("all is well\n", "")
