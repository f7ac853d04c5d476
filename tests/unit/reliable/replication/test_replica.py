"""Replicas: full copies, checkpoints, waiting for a sequence, stepping down."""

import asyncio

import pytest

from partita.errors import (
    CollectionNotFoundError,
    DamageError,
    InDoubtError,
    NotPrimaryError,
    NotReadableError,
    UnavailableError,
    UsageError,
)
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_replicated
from partita.reliable.replication.replica import Replica
from partita.reliable.state.state import State
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.simulation.stream import SimCluster
from support.states import Machine, a_state, put, settle, simulate


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

    def test_stepping_down_while_no_node_answers_is_not_an_error(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            state = await a_replica(cluster, "a")
            assert await state.wait_primary()
            cluster.leaderless_until = 1e9

            await state.step_down()

            assert not state.is_primary
            await state.close()

        run(main(), seed=0)

    @pytest.mark.parametrize(
        "seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(1, 10))]
    )
    def test_a_hand_over_reaches_the_chosen_replica_and_keeps_what_was_acknowledged(
        self, seed: int
    ) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=seed)
            states = [await a_replica(cluster, name) for name in "abc"]
            assert await states[0].wait_primary()
            counts = [await each.dictionary("counts", key=int, value=int) for each in states]
            done: list[int] = []
            refused: list[str] = []
            is_over = False

            async def commit(client: int) -> None:
                number = client
                while not is_over:
                    number += 10
                    for state, dictionary in zip(states, counts, strict=True):
                        try:
                            await put(state, dictionary, number)
                        except UnavailableError as error:
                            refused.append(error.code)
                        else:
                            done.append(number)
                            break
                    await asyncio.sleep(0.01)

            clients = [asyncio.create_task(commit(client)) for client in range(4)]
            for target in (1, 2, 0, 1, 0):
                await asyncio.sleep(2.0)
                primary = next(each for each in states if each.is_primary)
                assert isinstance(primary.replica, Replica)
                await primary.replica.step_down(states[target].replica_id)
                assert await states[target].wait_primary()
                assert [each.is_primary for each in states].count(True) == 1
            is_over = True
            await asyncio.gather(*clients)
            await asyncio.sleep(5.0)

            assert len(done) > 100
            for state, dictionary in zip(states, counts, strict=True):
                async with state.snapshot() as snapshot:
                    kept = {key async for key in dictionary.keys(snapshot)}
                assert kept >= set(done)
            assert "InDoubt" not in refused
            for state in states:
                await state.close()

        run(main(), seed=seed)

    def test_a_replica_that_is_unknown_or_primary_is_not_a_successor(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            state = await a_replica(cluster, "a")
            assert await state.wait_primary()
            assert isinstance(state.replica, Replica)

            for name in ("nobody", state.replica_id):
                with pytest.raises(UsageError, match="SuccessorRefused"):
                    await state.replica.step_down(name)

            assert state.is_primary
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

            async def lose(*_: object, **__: object) -> bytes:
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


class TestSecondaries:
    def test_every_write_on_a_secondary_is_refused_and_names_the_primary(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            primary = await a_replica(cluster, "a")
            assert await primary.wait_primary()
            await primary.dictionary("counts", key=int, value=int)
            await primary.queue("queue", value=int)
            await primary.concurrent_queue("jobs", value=int)
            before = primary.sequence
            secondary = await a_replica(cluster, "b")
            await secondary.read_at_least(before)
            counts = await secondary.dictionary("counts", key=int, value=int)
            queue = await secondary.queue("queue", value=int)
            jobs = await secondary.concurrent_queue("jobs", value=int)

            for write in (
                counts.auto.set(1, 1),
                counts.auto.delete(1),
                counts.clear(),
                queue.auto.enqueue(1),
                queue.auto.dequeue(),
                queue.clear(),
                jobs.auto.enqueue(1),
                jobs.auto.dequeue(),
                secondary.dictionary("new", key=int, value=int),
                secondary.drop("counts"),
            ):
                with pytest.raises(NotPrimaryError) as refused:
                    await write
                assert refused.value.primary == "a"
            assert primary.sequence == before
            await secondary.close()
            await primary.close()

        run(main(), seed=0)

    def test_a_transaction_on_a_secondary_reads_one_moment_of_all_collections(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            primary = await a_replica(cluster, "a")
            assert await primary.wait_primary()
            counts = await primary.dictionary("counts", key=int, value=int)
            queue = await primary.queue("queue", value=int)
            secondary = await a_replica(cluster, "b")
            await secondary.read_at_least(primary.sequence)
            same_counts = await secondary.dictionary("counts", key=int, value=int)
            same_queue = await secondary.queue("queue", value=int)

            async with secondary.transaction() as tx:
                assert await same_counts.count(tx) == 0
                async with primary.transaction() as writing:
                    await counts.set(writing, 1, 1)
                    await queue.enqueue(writing, 1)
                await secondary.read_at_least(primary.sequence)

                assert await same_counts.get(tx, 1, None) is None
                assert await same_queue.peek(tx) is None
                assert await same_queue.count(tx) == 0
            async with secondary.transaction() as tx:
                assert (await same_counts.get(tx, 1), await same_queue.peek(tx)) == (1, 1)
            await secondary.close()
            await primary.close()

        run(main(), seed=0)

    def test_a_secondary_lists_the_collections_of_the_primary(self) -> None:
        async def main() -> None:
            cluster = SimCluster(seed=0)
            primary = await a_replica(cluster, "a")
            assert await primary.wait_primary()
            counts = await primary.dictionary("counts", key=int, value=int)
            await put(primary, counts, 1)
            await primary.queue("queue", value=int)
            secondary = await a_replica(cluster, "b")
            await secondary.read_at_least(primary.sequence)

            assert secondary.collections() == primary.collections()
            await secondary.close()
            await primary.close()

        run(main(), seed=0)


async def a_replica(cluster: SimCluster, name: str) -> StateManager:
    clock = SimClock(running_loop(), name)
    return await open_replicated(cluster.connect(name), SimDisk(clock), clock, address=name)
