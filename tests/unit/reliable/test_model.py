"""A state against a model of plain Python: transactions, snapshots held open, and restarts.

The model knows what is committed, what each open transaction has written, and what each snapshot
saw. A lock that is not free is no failure here: the operation then changes nothing. Some
transactions read a snapshot: the model knows which of their commits must be refused. The versions
of users are kept from the beginning. One collection, of notes, is created and dropped by
transactions.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from partita.clock import ManualClock
from partita.errors import (
    CollectionNotFoundError,
    LockTimeoutError,
    VersionConflictError,
    WriteConflictError,
)
from partita.reliable import Dictionary
from partita.reliable.collections import enumeration
from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import Isolation, Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_local
from partita.simulation.disk import SimDisk
from partita.ticks import TICKS_PER_SECOND
from support.repeats import repeat
from support.states import User

T = TypeVar("T")

TTL_SECONDS = 60
NOTES = Dictionary("notes", key=str, value=int)

keys = st.sampled_from("abcdef")
ages = st.integers(0, 3)
which = st.integers(0, 2)
enumerated = st.sampled_from(["items", "keys", "find", "sessions", "queue", "jobs"])


class Rows:
    """What is committed: rows by key, sessions with their expiry, queues by position."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.versions: dict[str, int] = {}
        self.sessions: dict[str, tuple[int, int]] = {}
        self.queue: dict[int, int] = {}
        self.jobs: dict[int, int] = {}
        self.notes: dict[str, int] | None = None


class Open:
    """A transaction and what the model says that it did."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.users: dict[str, User | None] = {}
        self.sessions: dict[str, tuple[int, int] | None] = {}
        self.users_cleared = False
        self.queue_cleared = False
        self.taken: set[int] = set()
        self.enqueued: list[int] = []
        self.jobs_taken: set[int] = set()
        self.jobs_enqueued: list[int] = []
        self.seen: tuple[Rows, int] | None = None
        self.since: tuple[Rows, int] | None = None
        """For snapshot isolation: what it reads, and the number of changes before it."""
        self.creates_notes: dict[str, int] | None = None
        self.drops_notes = False


class Iterating:
    """An iterator that has started, and what it has still to yield."""

    def __init__(
        self, view: Transaction | Snapshot, rows: AsyncIterator[Any], expected: list[Any]
    ) -> None:
        self.view = view
        self.rows = rows
        self.expected = expected


class StateMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.disk = SimDisk(self.clock)
        self.rows = Rows()
        self.changes: list[tuple[str, str]] = []
        """Collection and key of every committed change; the key "" means all of them."""
        self.tails = {"queue": 0, "jobs": 0}
        self.numbers = 0
        self.opened: list[Open] = []
        self.snapshots: list[tuple[Snapshot, Rows, int]] = []
        self.iterating: list[Iterating] = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(enumeration, "SCAN_ROWS", 2)  # an enumeration takes several steps
        self.run(self._open())
        self.run(self._keep_versions())

    async def _keep_versions(self) -> None:
        await self.users.auto.set("a", User("0"))
        await self.users.auto.get_versioned("a")
        await self.users.auto.delete("a")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _open(self) -> None:
        self.disk = self.disk.restart()
        self.state: StateManager = await open_local(self.disk, self.clock)
        assert self.state._housekeeping.task is not None
        # It would sweep at a time that the model does not know.
        self.state._housekeeping.task.cancel()
        self.users = await self.state.dictionary(
            "users", key=str, value=User, indexes={"age": lambda user: user.age}
        )
        self.sessions = await self.state.dictionary("sessions", key=str, value=int, ttl=TTL_SECONDS)
        self.queue = await self.state.queue("queue", value=int)
        self.jobs = await self.state.concurrent_queue("jobs", value=int)

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self._forget_iterators()
            self.run(self.state.close())
            self.loop.close()
            self.patch.undo()

    # Transactions

    @precondition(lambda self: len(self.opened) < 3)
    @rule()
    def open_transaction(self) -> None:
        # Each step is a task of its own here.
        self.opened.append(Open(self._begun()))

    @precondition(lambda self: len(self.opened) < 3)
    @rule()
    def open_snapshot_transaction(self) -> None:
        one = Open(self._begun("snapshot"))
        one.since = copy.deepcopy(self.rows), len(self.changes)
        one.seen = one.since[0], self.clock.ticks()
        self.opened.append(one)

    def _begun(self, isolation: Isolation = "locks") -> Transaction:
        tx: Transaction = self._in_loop(
            lambda: self.state.shared_transaction(timeout=0, isolation=isolation)
        )
        return tx

    def _in_loop(self, make: Any) -> Any:
        async def inside() -> Any:
            return make()

        return self.run(inside())

    @precondition(lambda self: self.opened)
    @rule(place=which)
    def commit(self, place: int) -> None:
        one = self.opened.pop(place % len(self.opened))
        self._forget_iterators(one.tx)
        if not self._is_committed(one):
            return
        rows, changes = self.rows, self.changes
        if one.users_cleared:
            rows.users.clear()
            rows.versions.clear()
            changes.append(("users", ""))
        for key, user in one.users.items():
            if user is not None or key in rows.users:
                changes.append(("users", key))
            _put(rows.users, key, user)
            _put(rows.versions, key, None if user is None else one.tx.commit_sequence)
        for key, session in one.sessions.items():
            if session is not None or key in rows.sessions:
                changes.append(("sessions", key))
            _put(rows.sessions, key, session)
        if one.creates_notes is not None or one.drops_notes:
            rows.notes = one.creates_notes
        if one.queue_cleared:
            rows.queue.clear()
        for position in one.taken:
            del rows.queue[position]
        for position in one.jobs_taken:
            del rows.jobs[position]
        for number in one.enqueued:
            rows.queue[self.tails["queue"]] = number
            self.tails["queue"] += 1
        for number in one.jobs_enqueued:
            rows.jobs[self.tails["jobs"]] = number
            self.tails["jobs"] += 1

    def _is_committed(self, one: Open) -> bool:
        """Commit; return False if a snapshot transaction has lost, or a lock is not free."""
        try:
            self.run(one.tx.commit())
        except LockTimeoutError:
            assert one.since is not None
            return False
        except WriteConflictError:
            assert self._is_too_old(one)
            return False
        assert one.since is None or not self._is_too_old(one)
        return True

    def _is_too_old(self, one: Open) -> bool:
        """Return whether a row that a snapshot transaction writes has changed since."""
        assert one.since is not None
        written = {("users", key) for key in one.users}
        written |= {("sessions", key) for key in one.sessions}
        if one.users:
            written.add(("users", ""))
        changed = self.changes[one.since[1] :]
        if one.users_cleared and any(collection == "users" for collection, _ in changed):
            return True
        return not written.isdisjoint(changed)

    @precondition(lambda self: self.opened)
    @rule(place=which)
    def abort(self, place: int) -> None:
        one = self.opened.pop(place % len(self.opened))
        self._forget_iterators(one.tx)
        self.run(one.tx.abort())

    # The dictionaries

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys, age=ages)
    def set_user(self, place: int, key: str, age: int) -> None:
        one, user = self._one(place), User(self._number(), age)
        if self._locked(self.users.set(one.tx, key, user, timeout=0)):
            one.users[key] = user

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys)
    def delete_user(self, place: int, key: str) -> None:
        one = self._one(place)
        before = self._user(one, key)
        if self._locked(self.users.delete(one.tx, key, timeout=0)):
            assert self.answer is (before is not None)
            if before is not None:
                one.users[key] = None

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys)
    def get_user(self, place: int, key: str) -> None:
        one = self._one(place)
        if self._locked(self.users.get(one.tx, key, None, timeout=0)):
            assert self.answer == self._user(one, key)

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys)
    def get_version(self, place: int, key: str) -> None:
        one = self._one(place)
        if self._locked(self.users.get_versioned(one.tx, key, None, timeout=0)):
            version = self._version(one, key)
            assert (None if self.answer is None else self.answer.version) == version

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys, is_stale=st.booleans())
    def set_if_version(self, place: int, key: str, is_stale: bool) -> None:
        one, user = self._one(place), User(self._number(), 1)
        version = self._version(one, key)
        wanted = 10**6 if is_stale or version is None else version
        work = self.users.set(one.tx, key, user, if_version=wanted, timeout=0)
        try:
            if self._locked(work):
                assert wanted == version
                one.users[key] = user
        except VersionConflictError:
            assert wanted != version

    # A collection that comes and goes

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys)
    def create_notes(self, place: int, key: str) -> None:
        one, number = self._one(place), int(self._number())
        is_new = self.rows.notes is None or one.drops_notes
        if one.creates_notes is None and is_new and self._locked(self._create(one, key, number)):
            one.creates_notes = {key: number}

    async def _create(self, one: Open, key: str, number: int) -> None:
        notes = await self.state.open(NOTES, tx=one.tx)
        await notes.set(one.tx, key, number)

    @precondition(lambda self: self.opened)
    @rule(place=which)
    def drop_notes(self, place: int) -> None:
        one = self._one(place)
        is_there = one.creates_notes is not None or (
            self.rows.notes is not None and not one.drops_notes
        )
        try:
            if self._locked(self.state.drop("notes", tx=one.tx, timeout=0)):
                assert is_there
                one.creates_notes, one.drops_notes = None, True
        except CollectionNotFoundError:
            assert not is_there

    @invariant()
    def notes_are_as_committed(self) -> None:
        if not hasattr(self, "state"):
            return

        async def look() -> dict[str, int] | None:
            if "notes" not in [one.name for one in self.state.collections()]:
                return None
            notes = await self.state.open(NOTES)
            async with self.state.snapshot() as snapshot:
                return {key: number async for key, number in notes.items(snapshot)}

        assert self.run(look()) == self.rows.notes

    @precondition(lambda self: self.opened)
    @rule(place=which)
    def clear_users(self, place: int) -> None:
        one = self._one(place)
        if self._locked(self.users.clear(one.tx, timeout=0)):
            one.users.clear()
            one.users_cleared = True

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys)
    def set_session(self, place: int, key: str) -> None:
        one, number = self._one(place), int(self._number())
        expires = self.clock.ticks() + TTL_SECONDS * TICKS_PER_SECOND
        if self._locked(self.sessions.set(one.tx, key, number, timeout=0)):
            one.sessions[key] = (number, expires)

    @precondition(lambda self: self.opened)
    @rule(place=which, key=keys)
    def pop_session(self, place: int, key: str) -> None:
        one = self._one(place)
        if self._locked(self.sessions.pop(one.tx, key, None, timeout=0)):
            rows = self.rows if one.since is None else one.since[0]
            found = one.sessions[key] if key in one.sessions else rows.sessions.get(key)
            is_there = found is not None and found[1] > self.clock.ticks()
            assert self.answer == (found[0] if found is not None and is_there else None)
            if is_there:
                one.sessions[key] = None

    @precondition(lambda self: self.opened)
    @rule(place=which, prefix=st.sampled_from(["", "a"]), reverse=st.booleans(), age=ages)
    def enumerate_transaction(self, place: int, prefix: str, reverse: bool, age: int) -> None:
        one = self._one(place)
        if not self._locked(self._enumerated(one.tx, prefix, reverse, age)):
            return
        users, sessions, queue, now = self._visible(one)
        expected = _expected(users, sessions, queue, now, (prefix, reverse, age))
        assert one.seen is not None
        assert self.answer == (*expected, len(one.seen[0].jobs))

    def _visible(
        self, one: Open
    ) -> tuple[dict[str, User], dict[str, tuple[int, int]], list[int], int]:
        """Return what an enumeration that starts now in a transaction sees."""
        if one.seen is None:
            one.seen = (copy.deepcopy(self.rows), self.clock.ticks())
        seen, now = one.seen
        users: dict[str, User] = {} if one.users_cleared else dict(seen.users)
        sessions = dict(seen.sessions)
        for key, user in one.users.items():
            _put(users, key, user)
        for key, session in one.sessions.items():
            _put(sessions, key, session)
        queue = [] if one.queue_cleared else _items(seen.queue, one.taken)
        return users, sessions, queue + one.enqueued, now

    # Iterators that other operations run beside

    @precondition(lambda self: self.opened and len(self.iterating) < 4)
    @rule(place=which, over=enumerated, reverse=st.booleans(), age=ages)
    def start_iterator(self, place: int, over: str, reverse: bool, age: int) -> None:
        one = self._one(place)
        if self._locked(self._entered(one.tx)):
            users, sessions, queue, now = self._visible(one)
            assert one.seen is not None
            expected = _expected(users, sessions, queue, now, ("", reverse, age))
            self._start(one.tx, over, expected, one.seen[0].jobs, (reverse, age))

    @precondition(lambda self: self.snapshots and len(self.iterating) < 4)
    @rule(place=which, over=enumerated, reverse=st.booleans(), age=ages)
    def start_iterator_of_snapshot(self, place: int, over: str, reverse: bool, age: int) -> None:
        snapshot, rows, now = self.snapshots[place % len(self.snapshots)]
        queue = _items(rows.queue, set())
        expected = _expected(rows.users, rows.sessions, queue, now, ("", reverse, age))
        self._start(snapshot, over, expected, rows.jobs, (reverse, age))

    def _start(
        self,
        view: Transaction | Snapshot,
        over: str,
        expected: tuple[Any, ...],
        jobs: dict[int, int],
        asked: tuple[bool, int],
    ) -> None:
        reverse, age = asked
        users, _, found, sessions, _, queue, _ = expected
        taken = {position for other in self.opened for position in other.jobs_taken}
        iterators: dict[str, tuple[AsyncIterator[Any], list[Any]]] = {
            "items": (self.users.items(view, reverse=reverse), users),
            "keys": (self.users.keys(view, reverse=reverse), [key for key, _ in users]),
            "find": (self.users.find(view, age=age, reverse=reverse), found),
            "sessions": (self.sessions.items(view, reverse=reverse), sessions),
            "queue": (self.queue.items(view), queue),
            "jobs": (self.jobs.items(view), _items(jobs, taken)),
        }
        iterating = Iterating(view, *iterators[over])
        self.iterating.append(iterating)
        self._go_on(iterating, 1)

    @precondition(lambda self: self.iterating)
    @rule(place=which, count=st.integers(1, 9))
    def continue_iterator(self, place: int, count: int) -> None:
        self._go_on(self.iterating[place % len(self.iterating)], count)

    def _go_on(self, iterating: Iterating, count: int) -> None:
        async def take() -> list[Any]:
            taken: list[Any] = []
            while len(taken) < count:
                try:
                    taken.append(await anext(iterating.rows))
                except StopAsyncIteration:
                    self.iterating.remove(iterating)
                    break
            return taken

        expected, iterating.expected = iterating.expected[:count], iterating.expected[count:]
        assert self.run(take()) == expected

    def _forget_iterators(self, view: Transaction | Snapshot | None = None) -> None:
        for iterating in list(self.iterating):
            if view is None or iterating.view is view:
                self.run(iterating.rows.aclose())  # type: ignore[attr-defined]
                self.iterating.remove(iterating)

    async def _entered(self, tx: Transaction) -> None:
        """Take the locks of the collections, which one who clears them may hold."""
        for collection in (self.users, self.sessions, self.queue, self.jobs):
            if tx.space(collection) is None:
                await tx.enter(collection, 0)

    async def _enumerated(
        self, view: Transaction | Snapshot, prefix: str, reverse: bool, age: int
    ) -> tuple[Any, ...]:
        users, sessions = self.users, self.sessions
        if isinstance(view, Transaction):
            await self._entered(view)
        return (
            [row async for row in users.items(view, prefix=prefix, reverse=reverse)],
            await users.count(view),
            [row async for row in users.find(view, age=age, reverse=reverse)],
            [row async for row in sessions.items(view, reverse=reverse)],
            await sessions.count(view),
            [number async for number in self.queue.items(view)],
            await self.queue.count(view),
            await self.jobs.count(view),
        )

    # The queues

    @precondition(lambda self: self.opened)
    @rule(place=which)
    def enqueue(self, place: int) -> None:
        one, number = self._one(place), int(self._number())
        if self._locked(self.queue.enqueue(one.tx, number, timeout=0)):
            one.enqueued.append(number)

    @precondition(lambda self: self.opened)
    @rule(place=which, count=st.integers(0, 3))
    def dequeue(self, place: int, count: int) -> None:
        one = self._one(place)
        if not self._locked(self.queue.dequeue_many(one.tx, count, timeout=0)):
            return
        rows = {} if one.queue_cleared else self.rows.queue
        taken = [position for position in sorted(rows) if position not in one.taken][:count]
        own = one.enqueued[: count - len(taken)]
        assert self.answer == [rows[position] for position in taken] + own
        one.taken.update(taken)
        del one.enqueued[: len(own)]

    @precondition(lambda self: self.opened)
    @rule(place=which)
    def clear_queue(self, place: int) -> None:
        one = self._one(place)
        if self._locked(self.queue.clear(one.tx, timeout=0)):
            one.queue_cleared = True
            one.taken.clear()
            one.enqueued.clear()

    @precondition(lambda self: self.opened)
    @rule(place=which)
    def enqueue_job(self, place: int) -> None:
        one, number = self._one(place), int(self._number())
        if self._locked(self.jobs.enqueue(one.tx, number, timeout=0)):
            one.jobs_enqueued.append(number)

    @precondition(lambda self: self.opened)
    @rule(place=which, count=st.integers(1, 3))
    def dequeue_jobs(self, place: int, count: int) -> None:
        one = self._one(place)
        taken = {position for other in self.opened for position in other.jobs_taken}
        free = [position for position in sorted(self.rows.jobs) if position not in taken]
        if self._locked(self.jobs.dequeue_many(one.tx, count, timeout=0)):
            assert self.answer == [self.rows.jobs[position] for position in free[:count]]
            one.jobs_taken.update(free[:count])

    # Whole transactions: what it takes to see an abort or a snapshot do harm

    @rule(count=st.integers(1, 4))
    def fill_queues(self, count: int) -> None:
        self.opened.append(Open(self._begun()))
        for _ in range(count):
            self.enqueue(-1)
            self.enqueue_job(-1)
        self.commit(-1)

    @rule(count=st.integers(1, 3), is_aborted=st.booleans())
    def empty_queues(self, count: int, is_aborted: bool) -> None:
        self.opened.append(Open(self._begun()))
        self.dequeue(-1, count)
        self.dequeue_jobs(-1, count)
        self.abort(-1) if is_aborted else self.commit(-1)

    @rule(written=st.lists(st.tuples(keys, ages), max_size=4))
    def write_users(self, written: list[tuple[str, int]]) -> None:
        self.opened.append(Open(self._begun()))
        for key, age in written:
            if age:
                self.set_user(-1, key, age)
            else:
                self.delete_user(-1, key)
        self.commit(-1)

    @precondition(lambda self: len(self.iterating) < 4)
    @rule(
        over=enumerated,
        reverse=st.booleans(),
        written=st.lists(st.tuples(keys, ages), max_size=4),
        count=st.integers(0, 2),
        is_cleared=st.booleans(),
    )
    def change_while_iterating(
        self,
        over: str,
        reverse: bool,
        written: list[tuple[str, int]],
        count: int,
        is_cleared: bool,
    ) -> None:
        self.opened.append(Open(self._begun()))
        started = len(self.iterating)
        self.start_iterator(-1, over, reverse, 1)
        for key, age in written:
            self.set_user(-1, key, age) if age else self.delete_user(-1, key)
            self.set_session(-1, key)
        for _ in range(count):
            self.enqueue(-1)
        self.dequeue(-1, count)
        self.dequeue_jobs(-1, count or 1)
        if is_cleared:
            self.clear_users(-1)
            self.clear_queue(-1)
        for iterating in self.iterating[started:]:
            self._go_on(iterating, len(iterating.expected) + 1)
        self.commit(-1)

    # Snapshots, time and restarts

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule()
    def open_snapshot(self) -> None:
        rows = copy.deepcopy(self.rows)
        self.snapshots.append((self.state.snapshot(), rows, self.clock.ticks()))

    @precondition(lambda self: self.snapshots)
    @rule(place=which, reverse=st.booleans(), age=ages)
    def look_at_snapshot(self, place: int, reverse: bool, age: int) -> None:
        snapshot, rows, now = self.snapshots[place % len(self.snapshots)]
        found = self.run(self._enumerated(snapshot, "", reverse, age))
        queue = _items(rows.queue, set())
        expected = _expected(rows.users, rows.sessions, queue, now, ("", reverse, age))
        assert found == (*expected, len(rows.jobs))

    @precondition(lambda self: self.snapshots)
    @rule(place=which)
    def close_snapshot(self, place: int) -> None:
        snapshot = self.snapshots.pop(place % len(self.snapshots))[0]
        self._forget_iterators(snapshot)
        snapshot.close()

    @rule(seconds=st.sampled_from([1, 30, TTL_SECONDS]))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: not self.opened)
    @rule()
    def sweep(self) -> None:
        self.run(self.state._housekeeping.sweep())
        now = self.clock.ticks()
        self.changes += [
            ("sessions", key) for key, row in self.rows.sessions.items() if row[1] <= now
        ]
        self.rows.sessions = {
            key: session for key, session in self.rows.sessions.items() if session[1] > now
        }

    @rule()
    def write_checkpoint(self) -> None:
        self.run(self.state.checkpoint())

    @rule(is_power_cut=st.booleans())
    def restart(self, is_power_cut: bool) -> None:
        self._forget_iterators()
        if is_power_cut:
            survivor = self.disk.power_cut("lost")  # all that was acknowledged was synced
            self.run(_closed_badly(self.state))
            self.disk = survivor
        else:
            self.run(self.state.close())
        self.opened.clear()
        self.snapshots.clear()
        self.run(self._open())

    @invariant()
    def what_is_committed_is_seen(self) -> None:
        if not hasattr(self, "state"):
            return

        async def look() -> tuple[Any, ...]:
            async with self.state.snapshot() as snapshot:
                return await self._enumerated(snapshot, "", False, 1)

        rows = self.rows
        queue = _items(rows.queue, set())
        expected = _expected(rows.users, rows.sessions, queue, self.clock.ticks(), ("", False, 1))
        assert self.run(look()) == (*expected, len(rows.jobs))

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if not hasattr(self, "state"):
            return
        if not self.opened:
            assert self.state._core.locks.is_empty()
        if not self.opened and not self.snapshots:
            assert not self.state.state._snapshots
            for collection in self.state.state.collections.values():
                assert not collection.rows.history
                assert not collection.generations
                assert not collection.rows.departed

    def _one(self, place: int) -> Open:
        return self.opened[place % len(self.opened)]

    def _user(self, one: Open, key: str) -> User | None:
        if key in one.users:
            return one.users[key]
        rows = self.rows if one.since is None else one.since[0]
        return None if one.users_cleared else rows.users.get(key)

    def _version(self, one: Open, key: str) -> int | None:
        if self._user(one, key) is None:
            return None
        rows = self.rows if one.since is None else one.since[0]
        return 0 if key in one.users else rows.versions[key]

    def _number(self) -> str:
        self.numbers += 1
        return str(self.numbers)

    def _locked(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Run an operation; False if its lock is not free."""
        try:
            self.answer: Any = self.run(work)
        except LockTimeoutError:
            return False
        return True


async def _closed_badly(state: StateManager) -> None:
    """Let the object go after its disk is gone."""
    try:
        await state.close()
    except Exception:  # noqa: BLE001 - a machine without power closes nothing
        return


def _put(rows: dict[str, T], key: str, row: T | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _items(rows: dict[int, int], taken: set[int]) -> list[int]:
    return [rows[position] for position in sorted(rows) if position not in taken]


def _expected(
    users: dict[str, User],
    sessions: dict[str, tuple[int, int]],
    queue: list[int],
    now: int,
    asked: tuple[str, bool, int],
) -> tuple[Any, ...]:
    prefix, reverse, age = asked
    ordered = sorted(users.items(), reverse=reverse)
    return (
        [row for row in ordered if row[0].startswith(prefix)],
        len(users),
        [row for row in ordered if row[1].age == age],
        [
            (key, number)
            for key, (number, expires) in sorted(sessions.items(), reverse=reverse)
            if expires > now
        ],
        len(sessions),
        queue,
        len(queue),
    )


TestModel = pytest.mark.repeated(StateMachine.TestCase)
TestModel.settings = settings(
    max_examples=repeat(30, 80, 2_000),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
