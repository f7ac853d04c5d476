"""Rules that hold between two things that happen at once, or that went wrong in the middle."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

import partita
from partita.clock import ManualClock
from partita.errors import (
    CollectionMismatchError,
    CollectionNotFoundError,
    DamageError,
    InDoubtError,
    LimitExceededError,
    LockTimeoutError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    StateClosedError,
    TransactionUseError,
    UsageError,
)
from partita.reliable import Index, ReliableDictionary
from partita.reliable.collections.indexes import IndexView
from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_replicated
from partita.reliable.replication.replica import Replica
from partita.reliable.state.state import State
from partita.reliable.storage.local_log import LocalLog
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.simulation.stream import SimCluster
from unit.reliable.states import Machine, User, a_state, settle, simulate


class TestCreation:
    @pytest.mark.parametrize("turns", range(1, 9))
    def test_a_cancelled_creation_does_not_share_its_number_with_the_next(self, turns: int) -> None:
        async def scenario(state: StateManager) -> list[str]:
            counts = await state.dictionary("counts", key=int, value=int)
            await asyncio.gather(*(put(state, counts, key) for key in range(3)))
            first = asyncio.create_task(state.dictionary("a", key=str, value=int))
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])

            b = await state.dictionary("b", key=str, value=int)
            a = await state.dictionary("a", key=str, value=int)
            async with state.transaction() as tx:
                await a.set(tx, "in a", 1)
            async with state.snapshot() as snapshot:
                assert await b.count(snapshot) == 0
            return [one.name for one in state.collections()]

        assert simulate(scenario, sync_seconds=0.1) == ["a", "b", "counts"]

    def test_an_index_and_a_dictionary_that_are_created_at_once_are_two(self) -> None:
        async def scenario(state: StateManager) -> None:
            users = await state.dictionary("users", key=str, value=str)
            async with state.transaction() as tx:
                await users.set(tx, "ada", "lamp")
            view = declared(state, users)

            await asyncio.gather(
                state.build_index(users, view), state.dictionary("b", key=str, value=str)
            )

            numbers = sorted(one.id for one in state.state.collections.values())
            assert len(numbers) == len(set(numbers)) == 3
            async with state.snapshot() as snapshot:
                assert [key async for key, _ in users.find(snapshot, item="lamp")] == ["ada"]

        simulate(scenario, sync_seconds=0.1)


async def put(state: StateManager, counts: ReliableDictionary[int, int], key: int) -> None:
    async with state.transaction() as tx:
        await counts.set(tx, key, key)


def declared(state: StateManager, users: ReliableDictionary[str, str]) -> IndexView:
    """Declare an index as a secondary does: it is known, and not created."""
    index = Index(lambda value: value)
    view = IndexView("item", index, users, lambda: state.state.find("users\x00item"))
    users.indexes["item"] = view
    return view


class TestDropping:
    def test_a_schema_is_not_promoted_in_a_collection_that_is_being_dropped(self) -> None:
        async def main() -> None:
            machine = Machine()
            async with machine.open() as state:
                await state.dictionary("users", key=str, value=int)
                machine.disk.sync_seconds = 0.1
                await asyncio.gather(
                    state.drop("users"),
                    state.dictionary("users", key=str, value=int, version=2),
                    return_exceptions=True,
                )
                machine.disk.sync_seconds = 0.0
                await state.dictionary("others", key=str, value=int)
            async with machine.open() as state:
                assert [one.name for one in state.collections()] == ["others"]

        asyncio.run(main())

    @pytest.mark.parametrize("turns", range(0, 40, 2))
    def test_an_index_is_not_built_in_a_dictionary_that_is_being_dropped(self, turns: int) -> None:
        async def main() -> None:
            machine = Machine()
            async with machine.open() as state:
                users = await state.dictionary("users", key=str, value=str)
                async with state.transaction() as tx:
                    await users.set(tx, "ada", "lamp")
                opening = asyncio.create_task(
                    state.dictionary(
                        "users", key=str, value=str, indexes={"item": lambda value: value}
                    )
                )
                for _ in range(turns):
                    await asyncio.sleep(0)
                dropping = asyncio.create_task(state.drop("users"))
                ends = await asyncio.gather(opening, dropping, return_exceptions=True)
                for end in ends:
                    assert not isinstance(end, BaseException) or isinstance(end, PartitaError), end
                users = await state.dictionary(
                    "users", key=str, value=str, indexes={"item": lambda value: value}
                )
                async with state.transaction() as tx:
                    await users.set(tx, "eve", "lamp")
                async with state.snapshot() as snapshot:
                    assert [key async for key, _ in users.find(snapshot, item="lamp")] == ["eve"]
                assert len(state.state.collections) == 2
            async with machine.open() as state:
                assert [one.name for one in state.collections()] == ["users"]

        asyncio.run(main())


class TestSizes:
    async def test_entries_that_an_index_loses_count_for_the_size_of_a_transaction(self) -> None:
        async with a_state() as state:
            tagged = await state.dictionary(
                "tagged",
                key=int,
                value=int,
                indexes={"tag": lambda value: [f"{n}-{'x' * 1000}" for n in range(value)]},
            )
            for key in range(100):
                async with state.transaction() as tx:
                    await tagged.set(tx, key, 100)

            with pytest.raises(PartitaError) as caught:  # noqa: PT012 - the commit may fail
                async with state.transaction() as tx:
                    for key in range(100):
                        await tagged.delete(tx, key)

            assert caught.value.code == "TransactionTooLarge"
            async with state.transaction() as tx:
                assert await tagged.delete(tx, 0)

    async def test_an_index_with_many_entries_is_built_in_smaller_steps(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            tagged = await state.dictionary("tagged", key=int, value=int)
            async with state.transaction() as tx:
                for key in range(400):
                    await tagged.set(tx, key, key)

        async with machine.open() as state:
            tagged = await state.dictionary(
                "tagged",
                key=int,
                value=int,
                indexes={"tag": lambda _: [f"{n}-{'x' * 900}" for n in range(30)]},
            )

            async with state.snapshot() as snapshot:
                found = [key async for key, _ in tagged.find(snapshot, tag=f"29-{'x' * 900}")]
            assert found == list(range(400))

    async def test_a_record_that_the_log_cannot_take_is_not_the_end(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            assert isinstance(state.log, LocalLog)
            state.log.record_bytes_max = 10
            with pytest.raises(LimitExceededError):
                await put(state, counts, 1)
            state.log.record_bytes_max = 100_000

            await put(state, counts, 1)


class TestArguments:
    async def test_a_lock_mode_given_as_a_number_is_that_mode(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            async with state.transaction() as reader, state.transaction() as writer:
                await counts.get(reader, 1, None)

                with pytest.raises(LockTimeoutError):
                    await counts.get(writer, 1, None, lock=3, timeout=0)  # type: ignore[call-overload]
                await counts.get(writer, 1, None, lock=1, timeout=0)  # type: ignore[call-overload]

    @pytest.mark.parametrize("lock", [0, 7, "shared", None])
    async def test_a_lock_mode_that_is_none_is_refused(self, lock: object) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            async with state.transaction() as tx:
                with pytest.raises(UsageError, match="LockMode"):
                    await counts.get(tx, 1, None, lock=lock)  # type: ignore[call-overload]

    async def test_numbers_without_bounds_are_as_good_as_no_limit(self) -> None:
        async with a_state() as state:
            jobs = await state.queue("jobs", value=int)
            async with state.transaction() as tx:
                await jobs.enqueue(tx, 1)
            async with state.transaction() as tx:
                assert await jobs.dequeue_many(tx, 10**30, wait=10**400) == [1]

    async def test_a_rewrite_says_what_it_cannot_take(self) -> None:
        async with a_state() as state:
            jobs = await state.queue("jobs", value=int)
            counts = await state.dictionary("counts", key=int, value=int)
            for batch in (0, -1, "many"):
                with pytest.raises(UsageError):
                    await state.rewrite(counts, batch=batch)  # type: ignore[arg-type]
            with pytest.raises(CollectionMismatchError):
                await state.rewrite(jobs)  # type: ignore[arg-type]

    async def test_no_sequence_can_be_waited_for_where_nothing_was_written(self) -> None:
        async with a_state() as state:
            with pytest.raises(UsageError, match="sequence"):
                await state.read_at_least(None)  # type: ignore[arg-type]

    async def test_a_coroutine_function_is_no_callback(self) -> None:
        async with a_state() as state:

            async def later(_: int) -> None: ...

            async with state.transaction() as tx:
                with pytest.raises(TransactionUseError):
                    tx.after_commit(later)

    async def test_indexes_are_given_by_name(self) -> None:
        async with a_state() as state:
            with pytest.raises(UsageError):
                await state.dictionary("a", key=int, value=int, indexes=[len])  # type: ignore[arg-type]


class TestIdempotency:
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


class TestMemory:
    async def test_a_row_that_is_written_again_and_again_expires_once(self) -> None:
        async with a_state(ManualClock()) as state:
            sessions = await state.dictionary("sessions", key=str, value=int, ttl=3600)
            for number in range(5_000):
                async with state.transaction() as tx:
                    await sessions.set(tx, "ada", number)

            assert len(sessions._expiring) < 4_000

    async def test_items_that_others_took_are_forgotten_where_nobody_takes(self) -> None:
        async with a_state(ManualClock()) as state:
            jobs = await state.concurrent_queue("jobs", value=int)
            other = type(jobs)(state, jobs.collection, values=jobs.codec)
            jobs.collection.watchers.append(other.watch)
            for number in range(5_000):
                async with state.transaction() as tx:
                    await jobs.enqueue(tx, number)
                async with state.transaction() as tx:
                    assert await jobs.dequeue(tx) == number

            assert len(other._ready) + len(other._hidden) < 4_000


class TestClocks:
    async def test_a_clock_that_goes_back_loses_no_item(self) -> None:
        clock = ManualClock()
        async with a_state(clock) as state:
            jobs = await state.concurrent_queue("jobs", value=int)
            async with state.transaction() as tx:
                await jobs.enqueue(tx, 1, delay=10.0)
            clock.advance(11.0)
            tx = state.transaction()
            assert await jobs.dequeue(tx) == 1
            await tx.abort()

            clock.jump(-5.0)
            async with state.transaction() as tx:
                assert await jobs.dequeue(tx) is None
            clock.advance(6.0)

            async with state.transaction() as tx:
                assert await jobs.dequeue(tx) == 1


class Note(msgspec.Struct, frozen=True):
    text: str


class NoteWithColour(msgspec.Struct, frozen=True):
    text: str
    colour: str = "white"


class TestOpeningAgain:
    @pytest.mark.parametrize("kind", ["queue", "concurrent_queue"])
    async def test_a_queue_takes_the_types_of_a_later_opening(self, kind: str) -> None:
        machine = Machine()
        async with machine.open() as state:
            await getattr(state, kind)("notes", value=Note)
        async with machine.open() as state:
            notes = await getattr(state, kind)("notes", value=NoteWithColour, version=2)

            async with state.transaction() as tx:
                await notes.enqueue(tx, NoteWithColour("a", "red"))
            async with state.transaction() as tx:
                assert await notes.dequeue(tx) == NoteWithColour("a", "red")

    async def test_an_index_that_cannot_be_built_stays_in_nobodys_way(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            users = await state.dictionary("users", key=str, value=User)
            async with state.transaction() as tx:
                await users.set(tx, "ada", User("ada@example.org"))

        async with machine.open() as state:
            with pytest.raises(UsageError, match="failed"):
                await state.dictionary(
                    "users", key=str, value=User, indexes={"bad": lambda user: user.absent}
                )

            users = await state.dictionary("users", key=str, value=User)
            async with state.transaction() as tx:
                await users.set(tx, "eve", User("eve@example.org"))


class TestTheEnd:
    async def test_a_callback_that_was_cancelled_keeps_nobody_waiting(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)

            def cancelled(_: int) -> None:
                raise asyncio.CancelledError

            async with asyncio.timeout(60.0):
                async with state.transaction() as tx:
                    await counts.set(tx, 1, 1)
                    tx.after_commit(cancelled)
                await put(state, counts, 2)

    async def test_an_error_of_our_own_is_told_to_all_who_wait(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)

            def fails(*_: object) -> None:
                raise ZeroDivisionError

            counts.collection.watchers.append(fails)
            async with asyncio.timeout(60.0):
                ends = await asyncio.gather(
                    *(put(state, counts, key) for key in range(3)), return_exceptions=True
                )
                with pytest.raises(StateClosedError):
                    await put(state, counts, 4)

            assert [type(end) for end in ends] == [InDoubtError] * 3

    async def test_closing_waits_for_a_checkpoint_that_is_being_written(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            await put(state, counts, 1)
            machine.disk.sync_seconds = 0.05
            writing = asyncio.create_task(state.checkpoint())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await state.close()

            assert writing.done()

    async def test_a_cancelled_close_goes_on_and_a_second_waits_for_it(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            gone: list[object] = []
            let_go = state.on_close
            assert let_go is not None
            state.on_close = lambda: gone.append(let_go())
            await state.dictionary("counts", key=int, value=int)
            machine.disk.sync_seconds = 0.05
            closing = asyncio.create_task(state.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])

            await state.close()

            assert gone == [None]

    async def test_a_closed_state_stays_closed_when_its_log_fails_afterwards(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            machine.disk.sync_seconds = 0.05
            sent = [asyncio.create_task(put(state, counts, key)) for key in range(2)]
            await settle()

            async def refuse(*_: object, **__: object) -> None:
                raise NotPrimaryError("NotPrimary", "Another is.")

            state.log.append = refuse  # type: ignore[method-assign]
            sent += [asyncio.create_task(put(state, counts, key)) for key in range(2, 4)]
            await asyncio.sleep(0)
            await state.close()
            await asyncio.wait(sent)
            assert state._core.committer is None
            with pytest.raises(StateClosedError):
                state.transaction()

    async def test_a_wrong_mutation_check_leaves_the_folder_free(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PARTITA_CHECK_MUTATION", "perhaps")
        with pytest.raises(UsageError):
            async with partita.open_state(tmp_path):
                pass
        monkeypatch.setenv("PARTITA_CHECK_MUTATION", "on")
        async with partita.open_state(tmp_path) as state:
            assert state.is_primary


class TestHousekeeping:
    def test_rows_expire_while_the_index_of_others_cannot_be_built(self) -> None:
        async def scenario(state: StateManager) -> None:
            sessions = await state.dictionary("sessions", key=str, value=str, ttl=5.0)
            users = await state.dictionary("users", key=str, value=str)
            async with state.transaction() as tx:
                await sessions.set(tx, "ada", "lamp")
                await users.set(tx, "ada", "lamp")
            index = Index(lambda value: value.absent)
            users.indexes["bad"] = IndexView(
                "bad", index, users, lambda: state.state.find("users\x00bad")
            )

            await asyncio.sleep(20.0)

            async with state.snapshot() as snapshot:
                assert await sessions.count(snapshot) == 0

        simulate(scenario)


class TestReplicas:
    async def test_a_checkpoint_under_way_does_not_take_the_place_of_a_newer_copy(self) -> None:
        machine = Machine()
        async with machine.open() as one, a_state() as other:
            counts = await one.dictionary("counts", key=int, value=int)
            await put(one, counts, 1)
            others = await other.dictionary("counts", key=int, value=int)
            for key in range(5):
                await put(other, others, key)
            await other.checkpoint()
            content = other.checkpoints.read(other.checkpoints.newest)  # type: ignore[arg-type]
            machine.disk.sync_seconds = 0.05
            writing = asyncio.create_task(one.checkpoints.write(one.state))
            await settle()
            machine.disk.sync_seconds = 0.0

            copy = State()
            await one.checkpoints.install(content, copy)
            await writing

            newest = one.checkpoints.newest
            assert newest is not None
            assert newest.sequence == copy.sequence
            assert newest.name in machine.disk.names()

    def test_a_replica_that_stopped_for_good_does_not_hold_up_the_log(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            state = await a_replica(cluster, "a")
            assert await state.wait_primary()
            other = await a_replica(cluster, "b")
            replica = other.replica
            assert isinstance(replica, Replica)

            replica._fail(DamageError("Damage", "Stop."))
            await asyncio.sleep(10.0)

            assert isinstance(state.replica, Replica)
            assert list(await state.replica.heartbeats()) == [state.replica_id]
            await other.close()
            await state.close()

        run(main(), seed=0)

    def test_who_waits_for_a_sequence_is_told_by_a_full_copy(self) -> None:
        async def scenario(state: StateManager) -> float:
            copy = State()
            copy.sequence = 100
            waiting = asyncio.create_task(state.read_at_least(100))
            await settle()
            began = asyncio.get_running_loop().time()
            state.replace(copy)
            await waiting
            assert state._progress.waits == []
            return asyncio.get_running_loop().time() - began

        assert simulate(scenario) == 0.0

    def test_waiting_in_vain_leaves_nothing_behind(self) -> None:
        async def scenario(state: StateManager) -> None:
            for _ in range(3):
                with pytest.raises(NotReadableError):
                    await state.read_at_least(100, timeout=1.0)
            assert state._progress.waits == []

        simulate(scenario)

    async def test_a_full_copy_with_another_collection_of_that_name_ends_the_old_one(self) -> None:
        async with a_state() as one, a_state() as other:
            await other.dictionary("another", key=int, value=int)
            await other.queue("things", value=str)
            things = await one.dictionary("things", key=int, value=int)
            one.depose(NotPrimaryError("NotPrimary", "Another is."))

            one.replace(other.state)

            async with one.snapshot() as snapshot:
                with pytest.raises(CollectionNotFoundError):
                    await things.count(snapshot)

    async def test_a_transaction_over_a_full_copy_may_be_tried_again(self) -> None:
        machine = Machine()
        async with machine.open() as one:
            counts = await one.dictionary("counts", key=int, value=int)
            await put(one, counts, 1)
            one.depose(NotPrimaryError("NotPrimary", "Another is."))
            copy = State()
            await one.checkpoints.write(one.state)
            content = one.checkpoints.read(one.checkpoints.newest)  # type: ignore[arg-type]
            await one.checkpoints.install(content, copy)
            async with one.transaction() as tx:
                assert await counts.get(tx, 1) == 1
                one.replace(copy)
                with pytest.raises(NotReadableError):
                    await counts.get(tx, 1)

    def test_stepping_down_while_no_node_answers_is_no_error(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            state = await a_replica(cluster, "a")
            assert await state.wait_primary()
            cluster.leaderless_until = 1e9

            await state.step_down()

            assert not state.is_primary
            await state.close()

        run(main(), seed=0)

    def test_a_stream_that_is_full_for_a_while_stops_no_replica(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            state = await a_replica(cluster, "a")
            assert await state.wait_primary()
            cluster.is_full = True
            await state.step_down()
            await asyncio.sleep(60.0)
            cluster.is_full = False

            assert await state.wait_primary()
            await state.close()

        run(main(), seed=0)

    def test_a_replica_in_doubt_over_a_place_that_was_cut_goes_on_to_read(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            state = await a_replica(cluster, "a")
            assert await state.wait_primary()
            counts = await state.dictionary("counts", key=int, value=int)

            async def lose(*_: object, **__: object) -> None:
                raise InDoubtError("InDoubt", "Its place was truncated before it was read.")

            append, state.log.append = state.log.append, lose  # type: ignore[method-assign]
            replica = state.replica
            assert isinstance(replica, Replica)
            replica.wants_primary = False
            with pytest.raises(InDoubtError):
                await put(state, counts, 1)
            state.log.append = append  # type: ignore[method-assign]
            await asyncio.sleep(5.0)
            async with state.snapshot() as snapshot:
                assert await counts.count(snapshot) == 0
            await state.close()

        run(main(), seed=0)


async def a_replica(cluster: SimCluster, name: str) -> StateManager:
    clock = SimClock(running_loop(), name)
    return await open_replicated(cluster.connect(name), SimDisk(clock), clock, address=name)
