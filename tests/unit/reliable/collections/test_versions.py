"""Versions of rows: get_versioned, and writes with if_version."""

import pytest

from partita.errors import KeyNotFoundError, NotReadableError, VersionConflictError
from partita.reliable import ReliableDictionary
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_replicated
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.simulation.stream import SimCluster
from support.states import Machine, a_state

Numbers = ReliableDictionary[str, int]


async def opened(state: StateManager) -> Numbers:
    return await state.dictionary("numbers", key=str, value=int)


async def test_the_version_is_the_sequence_of_the_commit_that_wrote_the_row() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        await numbers.auto.get_versioned("a")
        async with state.transaction() as tx:
            await numbers.set(tx, "a", 2)

        found = await numbers.auto.get_versioned("a")

        assert (found.value, found.version) == (2, tx.commit_sequence)


async def test_a_row_that_has_not_changed_is_written_and_a_changed_one_is_not() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        version = (await numbers.auto.get_versioned("a")).version

        await numbers.auto.set("a", 2, if_version=version)
        with pytest.raises(VersionConflictError) as caught:
            await numbers.auto.set("a", 3, if_version=version)

        assert caught.value.facts["key"] == "a"
        assert await numbers.auto.get("a") == 2


async def test_a_row_that_was_removed_and_added_again_has_another_version() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        version = (await numbers.auto.get_versioned("a")).version
        await numbers.auto.delete("a")
        await numbers.auto.set("a", 1)

        with pytest.raises(VersionConflictError):
            await numbers.auto.delete("a", if_version=version)

        assert await numbers.auto.contains("a")


async def test_an_absent_row_has_no_version() -> None:
    async with a_state() as state:
        numbers = await opened(state)

        assert await numbers.auto.get_versioned("a", None) is None
        with pytest.raises(KeyNotFoundError):
            await numbers.auto.get_versioned("a")
        with pytest.raises(VersionConflictError, match="does not exist"):
            await numbers.auto.delete("a", if_version=1)


async def test_a_row_of_the_transaction_itself_has_version_0() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        async with state.transaction() as tx:
            await numbers.set(tx, "a", 1)

            assert (await numbers.get_versioned(tx, "a")).version == 0

            await numbers.set(tx, "a", 2, if_version=0)


async def test_a_snapshot_shows_the_version_of_its_time() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        before = await numbers.auto.get_versioned("a")
        async with state.snapshot() as snapshot:
            await numbers.auto.set("a", 2)
            await numbers.auto.clear()

            assert await numbers.get_versioned(snapshot, "a") == before


async def test_a_snapshot_from_before_versions_never_matches_a_changed_row() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        async with state.snapshot() as snapshot:
            await numbers.auto.set("a", 2)
            old = await numbers.get_versioned(snapshot, "a")

            with pytest.raises(VersionConflictError):
                await numbers.auto.set("a", 3, if_version=old.version)

        assert old.value == 1


@pytest.mark.parametrize("has_checkpoint", [False, True])
async def test_versions_survive_a_restart(has_checkpoint: bool) -> None:
    machine = Machine()
    async with machine.open() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        await numbers.auto.get_versioned("a")
        await numbers.auto.set("b", 2)
        found = [await numbers.auto.get_versioned(key) for key in "ab"]
        if has_checkpoint:
            await state.checkpoint()

    async with machine.open() as state:
        numbers = await opened(state)

        assert [await numbers.auto.get_versioned(key) for key in "ab"] == found
        await numbers.auto.set("a", 3, if_version=found[0].version)


async def test_a_transaction_reads_a_version_and_writes_by_it() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        async with state.transaction() as tx:
            version = (await numbers.get_versioned(tx, "a")).version
            await numbers.set(tx, "a", 2, if_version=version)

        assert await numbers.auto.get("a") == 2


def test_secondaries_know_the_versions_that_the_primary_keeps() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)

        async def replica(name: str) -> StateManager:
            clock = SimClock(running_loop(), name)
            return await open_replicated(cluster.connect(name), SimDisk(clock), clock)

        primary = await replica("a")
        await primary.wait_primary()
        numbers = await opened(primary)
        await numbers.auto.set("a", 1)
        secondary = await replica("b")
        same = await opened(secondary)
        with pytest.raises(NotReadableError):
            await same.auto.get_versioned("a")
        found = await numbers.auto.get_versioned("a")
        await secondary.read_at_least(primary.sequence)

        assert await same.auto.get_versioned("a") == found

        await secondary.close()
        await primary.close()

    run(scenario(), seed=1)


async def test_a_row_that_was_changed_and_changed_back_has_another_version() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        version = (await numbers.auto.get_versioned("a")).version
        await numbers.auto.set("a", 2)
        await numbers.auto.set("a", 1)

        with pytest.raises(VersionConflictError):
            await numbers.auto.set("a", 3, if_version=version)
        async with state.transaction() as tx:
            assert await numbers.compare_and_set(tx, "a", 3, expected=1)


async def test_a_refused_version_leaves_the_other_writes_of_its_transaction() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 1)
        version = (await numbers.auto.get_versioned("a")).version
        await numbers.auto.set("a", 2)

        async with state.transaction() as tx:
            await numbers.set(tx, "b", 1)
            with pytest.raises(VersionConflictError):
                await numbers.set(tx, "a", 3, if_version=version)

        assert await numbers.auto.get_many(["a", "b"]) == {"a": 2, "b": 1}


async def test_rows_of_one_commit_have_one_version() -> None:
    async with a_state() as state:
        numbers = await opened(state)
        await numbers.auto.set("a", 0)
        await numbers.auto.get_versioned("a")
        async with state.transaction() as tx:
            await numbers.set(tx, "a", 1)
            await numbers.set(tx, "b", 1)

        versions = {(await numbers.auto.get_versioned(key)).version for key in "ab"}

        assert versions == {tx.commit_sequence}
