import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from partita.clock import LEAP_CONFIRM_SECONDS, ManualClock
from partita.errors import KeyNotFoundError, UsageError
from partita.reliable import MISSING, Index, ReliableDictionary
from partita.reliable.collections.indexes import IndexView
from partita.reliable.manager import housekeeping
from partita.reliable.manager.housekeeping import HOUSEKEEPING_SECONDS
from partita.reliable.manager.state_manager import StateManager
from support.states import Machine, User, a_state, simulate

Sessions = ReliableDictionary[str, User]
ADA, EVE = User("ada@x"), User("eve@x")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def state(clock: ManualClock) -> AsyncIterator[StateManager]:
    async with a_state(clock) as opened:
        yield opened


@pytest.fixture
async def sessions(state: StateManager) -> Sessions:
    """Ada expires after 60 seconds."""
    return await open_sessions(state)


async def open_sessions(state: StateManager, ttl: float | None = 60) -> Sessions:
    sessions = await state.dictionary("sessions", key=str, value=User, ttl=ttl)
    async with state.transaction() as tx:
        await sessions.try_add(tx, "ada", ADA)
    return sessions


class TestLeapOfTheWallClock:
    async def test_a_leap_that_is_corrected_expires_nothing(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        clock.jump(30 * 86_400)
        async with state.transaction() as tx:
            assert await sessions.get(tx, "ada") == ADA
            await sessions.set(tx, "eve", EVE)
        clock.jump(-30 * 86_400)
        clock.advance(59)

        async with state.transaction() as tx:
            assert await sessions.get_many(tx, ["ada", "eve"]) == {"ada": ADA, "eve": EVE}

    async def test_a_leap_that_lasts_is_followed(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        async with state.transaction() as tx:
            await sessions.set(tx, "eve", EVE, ttl=2 * LEAP_CONFIRM_SECONDS)
        clock.jump(30 * 86_400)
        async with state.transaction() as tx:
            assert await sessions.get(tx, "eve") == EVE
        clock.advance(LEAP_CONFIRM_SECONDS)

        async with state.transaction() as tx:
            assert await sessions.get(tx, "eve", None) is None


class TestVisibility:
    async def test_a_value_is_there_until_its_time_is_over(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        clock.advance(59.9)
        async with state.transaction() as tx:
            assert await sessions.get(tx, "ada") == ADA
        clock.advance(0.1)
        async with state.transaction() as tx:
            assert await sessions.get(tx, "ada", None) is None
            assert not await sessions.contains(tx, "ada")
            assert await sessions.get_many(tx, ["ada"]) == {}
            with pytest.raises(KeyNotFoundError):
                await sessions.get(tx, "ada")
            assert [key async for key in sessions.keys(tx)] == []
            assert await sessions.pop(tx, "ada", None) is None
            assert not await sessions.delete(tx, "ada")
            assert not await sessions.compare_and_set(tx, "ada", EVE, expected=ADA)

    async def test_an_expired_key_may_be_added_again(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        clock.advance(60)
        async with state.transaction() as tx:
            assert await sessions.try_add(tx, "ada", EVE)
        clock.advance(59)

        async with state.snapshot() as snapshot:
            assert await sessions.get(snapshot, "ada") == EVE
            assert await sessions.count(snapshot) == 1

    @pytest.mark.parametrize("how", ["upsert", "get_or_add", "compare_and_set"])
    async def test_an_expired_key_counts_as_absent(
        self, state: StateManager, sessions: Sessions, clock: ManualClock, how: str
    ) -> None:
        clock.advance(60)
        async with state.transaction() as tx:
            match how:
                case "upsert":
                    assert await sessions.upsert(tx, "ada", EVE, lambda old: old) == EVE
                case "get_or_add":
                    assert await sessions.get_or_add(tx, "ada", EVE) == EVE
                case _:
                    assert await sessions.compare_and_set(tx, "ada", EVE, expected=MISSING)

        async with state.snapshot() as snapshot:
            assert await sessions.get(snapshot, "ada") == EVE

    async def test_a_snapshot_sees_by_the_time_it_was_opened(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        async with state.snapshot() as snapshot:
            clock.advance(60)
            assert await sessions.get(snapshot, "ada") == ADA
            assert [key async for key in sessions.keys(snapshot)] == ["ada"]
        async with state.snapshot() as snapshot:
            assert await sessions.get(snapshot, "ada", None) is None
            assert [key async for key in sessions.keys(snapshot)] == []

    async def test_writing_again_begins_the_time_again(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        clock.advance(40)
        async with state.transaction() as tx:
            await sessions.set(tx, "ada", ADA)
        clock.advance(40)
        async with state.snapshot() as snapshot:
            assert await sessions.get(snapshot, "ada") == ADA

    async def test_a_single_write_may_have_its_own_time(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        async with state.transaction() as tx:
            await sessions.set(tx, "short", ADA, ttl=5)
            await sessions.set(tx, "long", ADA, ttl=500)
        clock.advance(60)
        async with state.snapshot() as snapshot:
            assert [key async for key in sessions.keys(snapshot)] == ["long"]

    async def test_without_a_time_nothing_expires(
        self, state: StateManager, clock: ManualClock
    ) -> None:
        sessions = await open_sessions(state, ttl=None)
        async with state.transaction() as tx:
            await sessions.set(tx, "short", ADA, ttl=5)
        clock.advance(10**6)
        async with state.snapshot() as snapshot:
            assert [key async for key in sessions.keys(snapshot)] == ["ada"]

    async def test_a_write_without_a_time_removes_the_earlier_expiry(
        self, state: StateManager, clock: ManualClock
    ) -> None:
        sessions = await open_sessions(state, ttl=None)
        async with state.transaction() as tx:
            await sessions.set(tx, "eve", ADA, ttl=5)
        async with state.transaction() as tx:
            await sessions.set(tx, "eve", ADA)
        clock.advance(60)
        async with state.snapshot() as snapshot:
            assert await sessions.contains(snapshot, "eve")

    async def test_an_own_write_expires_too(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        async with state.transaction() as tx:
            await sessions.set(tx, "eve", EVE, ttl=5)
            clock.advance(5)
            assert await sessions.get(tx, "eve", None) is None

    async def test_the_clock_that_is_set_back_brings_nothing_back(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        clock.advance(60)
        async with state.transaction() as tx:
            await sessions.set(tx, "eve", EVE)
        clock.jump(-3600)
        async with state.snapshot() as snapshot:
            assert [key async for key in sessions.keys(snapshot)] == ["eve"]

    async def test_find_does_not_see_what_expired(
        self, state: StateManager, clock: ManualClock
    ) -> None:
        sessions = await state.dictionary(
            "sessions", key=str, value=User, ttl=60, indexes={"email": lambda user: user.email}
        )
        async with state.transaction() as tx:
            await sessions.set(tx, "ada", ADA)
        clock.advance(60)
        async with state.snapshot() as snapshot:
            assert [key async for key, _ in sessions.find(snapshot, email="ada@x")] == []


class TestSweeping:
    async def test_expired_rows_are_removed(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        async with state.transaction() as tx:
            for number in range(1_200):
                await sessions.set(tx, f"{number}", ADA)
            await sessions.set(tx, "long", ADA, ttl=500)
        clock.advance(60)
        async with state.snapshot() as snapshot:
            assert await sessions.count(snapshot) == 1_202  # until they are swept
        await state._housekeeping.sweep()

        async with state.snapshot() as snapshot:
            assert await sessions.count(snapshot) == 1
        assert not sessions.collection.rows.departed

    async def test_what_was_written_again_is_not_swept(
        self, state: StateManager, sessions: Sessions, clock: ManualClock
    ) -> None:
        clock.advance(59)
        async with state.transaction() as tx:
            await sessions.set(tx, "ada", EVE)
        clock.advance(1)
        await state._housekeeping.sweep()

        async with state.snapshot() as snapshot:
            assert await sessions.get(snapshot, "ada") == EVE

    async def test_index_entries_go_with_the_rows(
        self, state: StateManager, clock: ManualClock
    ) -> None:
        sessions = await state.dictionary(
            "sessions", key=str, value=User, ttl=60, indexes={"email": lambda user: user.email}
        )
        async with state.transaction() as tx:
            await sessions.set(tx, "ada", ADA)
        clock.advance(60)
        await state._housekeeping.sweep()

        assert not sessions.indexes["email"].collection.rows.values

    async def test_rows_that_expired_while_the_state_was_closed_are_swept(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await open_sessions(state)
        machine.advance(60)
        async with machine.open() as state:
            sessions = await state.dictionary("sessions", key=str, value=User)
            await state._housekeeping.sweep()
            async with state.snapshot() as snapshot:
                assert await sessions.count(snapshot) == 0

    async def test_a_sweep_changes_nothing_that_a_snapshot_sees(
        self, state: StateManager, clock: ManualClock
    ) -> None:
        sessions = await open_sessions(state, ttl=None)
        async with state.transaction() as tx:
            await sessions.set(tx, "short", ADA, ttl=5)
        async with state.snapshot() as early:
            clock.advance(5)
            async with state.snapshot() as late:
                for _ in range(2):
                    assert [key async for key in sessions.keys(early)] == ["ada", "short"]
                    assert [key async for key in sessions.keys(late)] == ["ada"]
                    assert await sessions.get(late, "short", None) is None
                    assert (await sessions.count(early), await sessions.count(late)) == (2, 2)
                    await state._housekeeping.sweep()

    def test_a_sweep_that_could_not_lock_is_made_up_for(self) -> None:
        async def scenario(state: StateManager) -> list[int]:
            sessions = await open_sessions(state)
            counts = []
            async with state.transaction() as holder:
                await sessions.get(holder, "ada")
                await asyncio.sleep(300)
                async with state.snapshot() as snapshot:
                    counts.append(await sessions.count(snapshot))
            await asyncio.sleep(100)
            async with state.snapshot() as snapshot:
                return [*counts, await sessions.count(snapshot)]

        assert simulate(scenario) == [1, 0]

    async def test_housekeeping_follows_the_clock_of_the_state_and_not_the_machine(
        self, state: StateManager, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A state whose clock stands still is not changed, however long it is open."""
        monkeypatch.setattr(housekeeping, "HOUSEKEEPING_SECONDS", 0.001)
        swept = asyncio.Event()

        async def sweep() -> None:
            swept.set()

        monkeypatch.setattr(state._housekeeping, "sweep", sweep)
        await state._housekeeping.stop()
        state._housekeeping.task = None
        state._housekeeping.start()

        await asyncio.sleep(0.05)
        is_swept_while_it_stands = swept.is_set()
        clock.advance(0.001)
        async with asyncio.timeout(60):
            await swept.wait()

        assert not is_swept_while_it_stands

    def test_sweeping_is_part_of_housekeeping(self) -> None:
        async def scenario(state: StateManager) -> list[int]:
            sessions = await open_sessions(state)
            async with state.snapshot() as snapshot:
                before = await sessions.count(snapshot)
            await asyncio.sleep(60 + 2 * HOUSEKEEPING_SECONDS)
            async with state.snapshot() as snapshot:
                return [before, await sessions.count(snapshot)]

        assert simulate(scenario) == [1, 0]


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "60", True])
async def test_a_time_to_live_that_is_none_is_refused(state: StateManager, ttl: Any) -> None:
    with pytest.raises(UsageError) as refused:
        await state.dictionary("sessions", key=str, value=User, ttl=ttl)
    assert refused.value.code == "InvalidTimeout"

    plain = await state.dictionary("plain", key=str, value=User)
    async with state.transaction() as tx:
        with pytest.raises(UsageError):
            await plain.set(tx, "ada", ADA, ttl=ttl)
        assert await plain.count(tx) == 0


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
