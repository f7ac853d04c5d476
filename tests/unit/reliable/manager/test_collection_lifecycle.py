"""Creation, dropping and reopening of collections, also at the same time."""

import asyncio

import msgspec
import pytest

from partita.errors import PartitaError, UsageError
from partita.reliable import Index, ReliableDictionary
from partita.reliable.collections.indexes import IndexView
from partita.reliable.manager.state_manager import StateManager
from support.states import Machine, User, put, simulate


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
