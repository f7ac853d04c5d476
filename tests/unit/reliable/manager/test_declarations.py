"""Opening a collection a second time: in one process, after a restart, and on a secondary."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from partita.errors import CollectionMismatchError, SchemaError
from partita.reliable import Index, Schema, downcast, sync, upcast
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_replicated
from partita.reliable.state.records import Alter
from partita.reliable.state.state import Description, encode_description
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.simulation.stream import SimCluster
from support.states import Machine, User, a_state


class V2(msgspec.Struct, frozen=True):
    amount: int


class X(msgspec.Struct, frozen=True):
    total: int = 0


class V2WithNote(msgspec.Struct, frozen=True):
    amount: int
    note: str = ""


class Renamed(msgspec.Struct, frozen=True):
    sum: int = 0
    note: str = ""


class Place(NamedTuple):
    row: int
    seat: str


@upcast(from_=1, to=2)
def rename(value: dict[str, Any]) -> dict[str, Any]:
    value["total"] = value.pop("amount")
    return value


@downcast(from_=2, to=1)
def rename_back(value: dict[str, Any]) -> dict[str, Any]:
    value["amount"] = value.pop("total")
    return value


@upcast(from_=1, to=2)
def rename_otherwise(value: dict[str, Any]) -> dict[str, Any]:
    value["total"] = value.pop("amount", 1)
    return value


def by_age(user: User) -> int:
    return user.age


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    async with a_state() as opened:
        yield opened


BASE: dict[str, Any] = {
    "key": str,
    "value": User,
    "ttl": 60.0,
    "indexes": {"age": by_age},
    "version": 1,
    "mutable": "refuse",
    "preserve_unknown": True,
}


class TestInOneProcess:
    @pytest.mark.parametrize(
        ("option", "other", "both"),
        [
            ("value", V2, ("states.User", "test_declarations.V2")),
            ("ttl", None, ("ttl=60.0", "ttl=None")),
            ("ttl", 61.0, ("ttl=60.0", "ttl=61.0")),
            ("indexes", None, ("by_age", "None")),
            ("indexes", {"age": lambda user: -user.age}, ("by_age", "<lambda>")),
            ("indexes", {"age": Index(by_age, version=2)}, ("version=1", "version=2")),
            ("indexes", {"age": by_age, "more": by_age}, ("indexes['more']=None", "by_age")),
            ("version", 2, ("version=1", "version=2")),
            ("version", Schema(2, write=1), ("version=1", "write=1")),
            ("mutable", "copy", ("'refuse'", "'copy'")),
            ("preserve_unknown", False, ("True", "False")),
        ],
    )
    async def test_another_option_than_the_open_one_is_refused_and_both_are_named(
        self, state: StateManager, option: str, other: object, both: tuple[str, str]
    ) -> None:
        users = await state.dictionary("users", **BASE)
        before = state.sequence

        with pytest.raises(CollectionMismatchError) as refused:
            await state.dictionary("users", **{**BASE, option: other})

        assert refused.value.code == "CollectionOptionsDiffer"
        assert all(text in refused.value.message for text in both)
        assert option in str(refused.value.facts["options"])
        assert state.sequence == before
        assert await state.dictionary("users", **BASE) is users

    async def test_another_class_with_the_same_bytes_is_another_type(
        self, state: StateManager
    ) -> None:
        twin = msgspec.defstruct("V2", [("amount", int)], frozen=True)
        await state.dictionary("values", key=str, value=V2)

        with pytest.raises(CollectionMismatchError):
            await state.dictionary("values", key=str, value=twin)

    async def test_another_key_type_with_the_same_bytes_is_refused(
        self, state: StateManager
    ) -> None:
        await state.dictionary("seats", key=Place, value=int)

        with pytest.raises(CollectionMismatchError) as refused:
            await state.dictionary("seats", key=tuple[int, str], value=int)

        assert "Place" in refused.value.message
        assert "tuple[int, str]" in refused.value.message

    async def test_the_first_holder_keeps_its_type_and_its_ttl(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            values = await state.dictionary("values", key=str, value=V2, ttl=60.0)
            for options in ({"value": X, "ttl": 60.0}, {"value": V2}):
                with pytest.raises(CollectionMismatchError):
                    await state.dictionary("values", key=str, **options)
            async with state.transaction() as tx:
                await values.set(tx, "a", V2(7))
            async with state.snapshot() as snapshot:
                assert await values.get(snapshot, "a") == V2(7)
            machine.advance(3600.0)
            async with state.snapshot() as snapshot:
                assert await values.get(snapshot, "a", None) is None

    @pytest.mark.parametrize("kind", ["queue", "concurrent_queue"])
    @pytest.mark.parametrize("other", [{"value": X}, {"mutable": "copy"}, {"version": 2}])
    async def test_a_queue_is_opened_again_as_it_is_open(
        self, state: StateManager, kind: str, other: dict[str, Any]
    ) -> None:
        opening = getattr(state, kind)
        first = await opening("work", value=V2)

        with pytest.raises(CollectionMismatchError) as refused:
            await opening("work", **{"value": V2, **other})

        assert refused.value.code == "CollectionOptionsDiffer"
        assert await opening("work", value=V2) is first

    @pytest.mark.parametrize(
        "make",
        [
            lambda: lambda user: user.age,
            lambda: functools.partial(lambda factor, user: factor * user.age, 2),
            lambda: Index(lambda user, factor=3: user.age * factor),
        ],
    )
    async def test_a_function_that_is_made_again_by_the_same_code_is_the_same(
        self, state: StateManager, make: Callable[[], Any]
    ) -> None:
        first = await state.dictionary("users", key=str, value=User, indexes={"age": make()})
        again = await state.dictionary("users", key=str, value=User, indexes={"age": make()})

        assert again is first

    async def test_a_function_that_holds_another_value_is_another(
        self, state: StateManager
    ) -> None:
        def times(factor: int) -> Callable[[User], int]:
            return lambda user: user.age * factor

        await state.dictionary("users", key=str, value=User, indexes={"age": times(2)})

        with pytest.raises(CollectionMismatchError):
            await state.dictionary("users", key=str, value=User, indexes={"age": times(3)})

    async def test_other_upcasts_are_refused(self, state: StateManager) -> None:
        await state.dictionary("values", key=str, value=X, version=2, upcasts=[rename])

        with pytest.raises(CollectionMismatchError) as refused:
            await state.dictionary(
                "values", key=str, value=X, version=2, upcasts=[rename_otherwise]
            )

        assert "rename_otherwise" in refused.value.message

    async def test_a_dropped_collection_is_opened_in_any_way(self, state: StateManager) -> None:
        await state.dictionary("values", key=str, value=V2)
        await state.drop("values")

        values = await state.dictionary("values", key=int, value=X, ttl=1.0)

        async with state.transaction() as tx:
            await values.set(tx, 1, X(2))

    async def test_a_failed_opening_binds_nobody(self) -> None:
        machine = Machine()
        async with machine.open() as first:
            users = await first.dictionary("users", key=str, value=User)
            async with first.transaction() as tx:
                await users.set(tx, "ada", User("a", 30))
        async with machine.open() as second:
            with pytest.raises(Exception, match="absent"):
                await second.dictionary(
                    "users", key=str, value=User, indexes={"age": lambda user: user.absent}
                )
            users = await second.dictionary("users", key=str, value=User, indexes={"age": by_age})
            async with second.snapshot() as snapshot:
                assert [key async for key, _ in users.find(snapshot, age=30)] == ["ada"]

    def test_the_synchronous_face_refuses_the_same(self, tmp_path: Path) -> None:
        with sync.open_state(tmp_path / "state") as state:
            state.dictionary("values", key=str, value=V2, ttl=60.0)
            with pytest.raises(CollectionMismatchError):
                state.dictionary("values", key=str, value=X, ttl=60.0)
            with pytest.raises(CollectionMismatchError):
                state.dictionary("values", key=str, value=V2)
            state.dictionary("values", key=str, value=V2, ttl=60.0)


async def write_as(machine: Machine, value: Any, *, kind: str = "dictionary") -> None:
    async with machine.open() as state:
        if kind == "dictionary":
            values = await state.dictionary("values", key=str, value=type(value))
            async with state.transaction() as tx:
                await values.set(tx, "a", value)
        else:
            queue = await getattr(state, kind)("values", value=type(value))
            async with state.transaction() as tx:
                await queue.enqueue(tx, value)


async def open_as(machine: Machine, value: Any, *, kind: str = "dictionary", **more: Any) -> None:
    async with machine.open() as state:
        key = {"key": str} if kind == "dictionary" else {}
        await getattr(state, kind)("values", value=value, **key, **more)


KINDS = pytest.mark.parametrize("kind", ["dictionary", "queue", "concurrent_queue"])


class TestAfterARestart:
    @KINDS
    @pytest.mark.parametrize("value", [X, Renamed, int, tuple[V2, ...]])
    async def test_a_type_that_does_not_fit_what_is_stored_is_refused(
        self, kind: str, value: Any
    ) -> None:
        machine = Machine()
        await write_as(machine, V2(7), kind=kind)

        with pytest.raises(SchemaError) as refused:
            await open_as(machine, value, kind=kind)

        assert refused.value.code == "ValueTypeChanged"
        assert refused.value.facts["stored"] == "V2"
        assert "V2" in refused.value.message
        assert str(refused.value.facts["given"]) in refused.value.message
        await open_as(machine, V2, kind=kind)

    @KINDS
    async def test_following_the_hint_opens_it(self, kind: str) -> None:
        machine = Machine()
        await write_as(machine, V2(7), kind=kind)
        with pytest.raises(SchemaError) as refused:
            await open_as(machine, X, kind=kind)

        assert "version=2" in (refused.value.hint or "")
        await open_as(machine, X, kind=kind, version=2, upcasts=[rename])

    async def test_a_new_version_reads_old_values_by_its_upcast(self) -> None:
        machine = Machine()
        await write_as(machine, V2(7))

        async with machine.open() as state:
            values = await state.dictionary("values", key=str, value=X, version=2, upcasts=[rename])
            async with state.snapshot() as snapshot:
                assert await values.get(snapshot, "a") == X(7)

    async def test_a_type_is_held_against_the_new_version_from_then_on(self) -> None:
        machine = Machine()
        await write_as(machine, V2(7))
        await open_as(machine, X, version=2, upcasts=[rename])

        with pytest.raises(SchemaError) as refused:
            await open_as(machine, Renamed, version=2, upcasts=[rename])

        assert refused.value.code == "ValueTypeChanged"
        await open_as(machine, X, version=2, upcasts=[rename])

    async def test_a_field_with_a_default_is_added_and_left_out_by_older_code(self) -> None:
        machine = Machine()
        await write_as(machine, V2(7))
        for value in (V2WithNote, V2, V2WithNote, V2):
            await open_as(machine, value)

    async def test_a_field_keeps_its_type_while_older_code_does_not_know_it(self) -> None:
        other = msgspec.defstruct("Other", [("amount", int), ("note", int, 0)], frozen=True)
        machine = Machine()
        await write_as(machine, V2WithNote(7, "seven"))
        await open_as(machine, V2)

        with pytest.raises(SchemaError) as refused:
            await open_as(machine, other)

        assert refused.value.facts["path"] == "note"

    async def test_the_same_type_again_changes_nothing(self) -> None:
        machine = Machine()
        await write_as(machine, V2(7))
        async with machine.open() as state:
            before = state.sequence
            await state.dictionary("values", key=str, value=V2)
            assert state.sequence == before

    async def test_both_sides_of_a_two_phase_upgrade_open_in_turn(self) -> None:
        machine = Machine()
        await write_as(machine, V2(7))
        release_a: dict[str, Any] = {
            "version": Schema(2, write=1),
            "upcasts": [rename, rename_back],
        }
        for _ in range(2):
            await open_as(machine, X, **release_a)
            await open_as(machine, V2WithNote)
        with pytest.raises(SchemaError):
            await open_as(machine, X)
        with pytest.raises(SchemaError):
            await open_as(machine, Renamed, **release_a)


async def forget_layouts(state: StateManager, name: str) -> None:
    """Describe a collection as the release before layouts did: by a fingerprint alone."""
    collection = state.state.find(name)
    assert collection is not None
    described = msgspec.structs.replace(collection.description, layouts={})
    async with state.transaction() as tx:
        tx.stage_operations([Alter(collection.id, encode_description(described))])


class TestStoresOfAnOlderRelease:
    async def a_store(self, kind: str = "dictionary") -> Machine:
        machine = Machine()
        await write_as(machine, V2(7), kind=kind)
        async with machine.open() as state:
            await forget_layouts(state, "values")
        return machine

    @KINDS
    @pytest.mark.parametrize("value", [V2, V2WithNote])
    async def test_the_same_type_and_an_added_field_open(self, kind: str, value: Any) -> None:
        machine = await self.a_store(kind)

        await open_as(machine, value, kind=kind)

        with pytest.raises(SchemaError):  # from here on a layout is kept
            await open_as(machine, Renamed, kind=kind)

    @KINDS
    @pytest.mark.parametrize("value", [X, int])
    async def test_a_type_that_reads_no_row_is_refused(self, kind: str, value: Any) -> None:
        machine = await self.a_store(kind)

        with pytest.raises(SchemaError) as refused:
            await open_as(machine, value, kind=kind)

        assert refused.value.code == "ValueTypeChanged"

    async def test_a_new_version_opens(self) -> None:
        machine = await self.a_store()

        await open_as(machine, X, version=2, upcasts=[rename])

    async def test_an_empty_collection_opens(self) -> None:
        machine = Machine()
        await open_as(machine, V2)
        async with machine.open() as state:
            await forget_layouts(state, "values")

        await open_as(machine, X)

    def test_a_description_without_layouts_has_the_bytes_that_it_had(self) -> None:
        description = msgspec.msgpack.decode(
            b"\x84\xa4name\xa1u\xa4kind\xaadictionary\xa3key\xa3str\xabfingerprint\xa2ab"
        )
        assert msgspec.msgpack.decode(encode_description(Description(**description))) == description


def test_a_secondary_refuses_a_type_that_does_not_fit() -> None:
    async def main() -> None:
        cluster = SimCluster(seed=0)

        async def replica(name: str) -> StateManager:
            clock = SimClock(running_loop(), name)
            return await open_replicated(cluster.connect(name), SimDisk(clock), clock)

        first = await replica("a")
        assert await first.wait_primary()
        values = await first.dictionary("values", key=str, value=V2)
        async with first.transaction() as tx:
            await values.set(tx, "a", V2(7))
        second = await replica("b")
        assert not second.is_primary
        await second.read_at_least(first.sequence)

        with pytest.raises(SchemaError) as refused:
            await second.dictionary("values", key=str, value=X)
        assert refused.value.code == "ValueTypeChanged"

        await second.dictionary("values", key=str, value=V2WithNote)
        await first.close()
        assert await second.wait_primary()
        before = second.sequence
        await asyncio.sleep(2.0)  # of the simulated clock: one round of housekeeping
        assert second.sequence > before
        found = second.state.find("values")
        assert found is not None
        assert found.description.layouts[1][0].names == ("amount", "note")
        await second.close()

    run(main(), seed=1)
