"""Declared collections, and collections that are created and dropped inside a transaction."""

import asyncio
import json
import pickle

import msgspec
import pytest

from partita.errors import (
    CollectionMismatchError,
    CollectionNotFoundError,
    LockTimeoutError,
    SchemaError,
    UsageError,
)
from partita.reliable import ConcurrentQueue, Dictionary, Queue, sync
from support.states import Machine, User, a_state

USERS = Dictionary("users", key=str, value=User, ttl=60, indexes={"age": lambda user: user.age})
OUTBOX = Queue("outbox", value=User)
JOBS = ConcurrentQueue("jobs", value=int)
ADA = User("ada@example.org", 36)


async def test_a_declaration_opens_the_same_collection_everywhere() -> None:
    async with a_state() as state:
        users, outbox, jobs = (
            await state.open(USERS),
            await state.open(OUTBOX),
            await state.open(JOBS),
        )

        assert await state.open(USERS) is users
        assert (
            await state.dictionary(
                "users",
                key=str,
                value=User,
                ttl=60,
                indexes={"age": USERS.declaration.indexes["age"].function},
            )
            is users
        )
        assert [one.kind for one in state.collections()] == [
            "concurrent_queue",
            "queue",
            "dictionary",
        ]
        assert (outbox.name, jobs.name) == ("outbox", "jobs")


async def test_another_declaration_of_an_open_collection_is_refused() -> None:
    async with a_state() as state:
        await state.open(USERS)

        with pytest.raises(CollectionMismatchError, match="ttl=60"):
            await state.open(Dictionary("users", key=str, value=User))


async def test_only_declarations_can_be_opened() -> None:
    async with a_state() as state:
        with pytest.raises(UsageError, match="Dictionary"):
            await state.open("users")  # type: ignore[call-overload]


def test_a_wrong_declaration_is_refused_where_it_stands() -> None:
    with pytest.raises(UsageError):
        Dictionary("", key=str, value=User)


class TestInsideATransaction:
    async def test_a_new_collection_is_there_at_once_and_for_others_after_the_commit(self) -> None:
        async with a_state() as state:
            async with state.transaction() as tx:
                users = await state.open(USERS, tx=tx)
                assert await state.open(USERS, tx=tx) is users
                await users.set(tx, "ada", ADA)
                assert await users.count(tx) == 1
                assert [key async for key, _ in users.items(tx)] == ["ada"]
                assert [key async for key, _ in users.find(tx, age=36)] == ["ada"]
                assert state.collections() == []

            assert await state.open(USERS) is users
            assert await users.auto.get("ada") == ADA
            async with state.snapshot() as snapshot:
                assert [key async for key, _ in users.find(snapshot, age=36)] == ["ada"]

    async def test_an_abort_leaves_nothing(self) -> None:
        async with a_state() as state:
            tx = state.transaction()
            users = await state.open(USERS, tx=tx)
            await users.set(tx, "ada", ADA)
            await tx.abort()

            assert state.collections() == []
            with pytest.raises(CollectionNotFoundError):
                await users.auto.set("ada", ADA)
            assert await (await state.open(USERS)).auto.count() == 0

    async def test_creation_and_rows_are_one_record(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            before = state.sequence
            async with state.transaction() as tx:
                await (await state.open(OUTBOX, tx=tx)).enqueue(tx, ADA)
                await (await state.open(JOBS, tx=tx)).enqueue(tx, 1)
            assert state.sequence == before + 1

        async with machine.open() as state:
            assert await (await state.open(OUTBOX)).auto.dequeue() == ADA
            assert await (await state.open(JOBS)).auto.dequeue() == 1

    async def test_a_drop_takes_effect_with_the_commit(self) -> None:
        async with a_state() as state:
            users = await state.open(USERS)
            await users.auto.set("ada", ADA)
            async with state.transaction() as tx:
                await state.drop("users", tx=tx)
                with pytest.raises(CollectionNotFoundError):
                    await users.get(tx, "ada")
                async with state.snapshot() as snapshot:
                    assert await users.count(snapshot) == 1

            with pytest.raises(CollectionNotFoundError):
                await users.auto.get("ada")

    async def test_an_aborted_drop_changes_nothing(self) -> None:
        async with a_state() as state:
            users = await state.open(USERS)
            await users.auto.set("ada", ADA)
            tx = state.transaction()
            await state.drop("users", tx=tx)
            await tx.abort()

            assert await users.auto.get("ada") == ADA

    async def test_a_collection_can_be_replaced_in_one_transaction(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            old = await state.open(USERS)
            await old.auto.set("ada", ADA)
            async with state.transaction() as tx:
                await state.drop("users", tx=tx)
                new = await state.open(Dictionary("users", key=int, value=int), tx=tx)
                await new.set(tx, 7, 8)

            assert await new.auto.get(7) == 8
            assert old.collection.is_dropped

        async with machine.open() as state:
            again = await state.open(Dictionary("users", key=int, value=int))
            assert await again.auto.get(7) == 8

    async def test_what_was_created_can_be_dropped_again(self) -> None:
        async with a_state() as state:
            async with state.transaction() as tx:
                users = await state.open(USERS, tx=tx)
                await users.set(tx, "ada", ADA)
                await state.drop("users", tx=tx)
                await (await state.open(JOBS, tx=tx)).enqueue(tx, 1)

            assert [one.name for one in state.collections()] == ["jobs"]

    async def test_one_creation_waits_for_another(self) -> None:
        async with a_state() as state:
            tx = state.transaction()
            await state.open(USERS, tx=tx)
            async with state.transaction(timeout=0) as other:
                with pytest.raises(LockTimeoutError):
                    await state.open(USERS, tx=other)
            waiting = asyncio.create_task(state.open(USERS))
            await tx.commit()

            assert await (await waiting).auto.count() == 0

    def test_the_synchronous_state_does_the_same(self) -> None:
        with sync.open_state(":memory:") as state:
            with state.transaction() as tx:
                users = state.open(USERS, tx=tx)
                users.set(tx, "ada", ADA)
            assert users.auto.get("ada") == ADA
            with state.transaction() as tx:
                state.drop("users", tx=tx)
            assert state.collections() == []


class Point:
    """A class that nobody but its own serializer can store."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    __hash__ = None  # type: ignore[assignment]


class PointSerializer:
    name = "point:json"

    def dump(self, value: Point) -> bytes:
        return json.dumps([value.x, value.y]).encode()

    def load(self, raw: bytes) -> Point:
        return Point(*json.loads(raw))


class PickleSerializer(PointSerializer):
    name = "point:pickle"

    def dump(self, value: Point) -> bytes:
        return pickle.dumps((value.x, value.y))


class TestSerializers:
    POINTS = Dictionary("points", key=str, value=Point, serializer=PointSerializer())

    async def test_values_of_any_class_are_stored_as_the_bytes_of_their_serializer(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            points = await state.open(self.POINTS)
            await points.auto.set("a", Point(1, 2))
            queue = await state.open(Queue("q", value=Point, serializer=PointSerializer()))
            await queue.auto.enqueue(Point(3, 4))
            await state.checkpoint()

        async with machine.open() as state:
            points = await state.open(self.POINTS)
            assert await points.auto.get("a") == Point(1, 2)
            assert points.collection.rows.values.popitem()[1] == b"\x00\x01\xc4\x06[1, 2]"

    async def test_another_serializer_is_refused_after_a_restart(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await (await state.open(self.POINTS)).auto.set("a", Point(1, 2))

        async with machine.open() as state:
            with pytest.raises(SchemaError, match="point:json"):
                await state.open(
                    Dictionary("points", key=str, value=Point, serializer=PickleSerializer())
                )

    async def test_a_value_of_another_class_and_a_wrong_result_are_refused(self) -> None:
        class Wrong(PointSerializer):
            def dump(self, value: Point) -> bytes:
                return "text"  # type: ignore[return-value]

        async with a_state() as state:
            points = await state.open(self.POINTS)
            with pytest.raises(SchemaError, match="not a Point"):
                await points.auto.set("a", "b")  # type: ignore[arg-type]
            wrong = await state.open(Dictionary("w", key=str, value=Point, serializer=Wrong()))
            with pytest.raises(SchemaError, match="returned str"):
                await wrong.auto.set("a", Point(1, 2))

    def test_versions_are_for_the_types_of_this_library(self) -> None:
        with pytest.raises(SchemaError, match="serializer"):
            Dictionary("points", key=str, value=Point, version=2, serializer=PointSerializer())


class Old(msgspec.Struct, frozen=True):
    name: str


class New(msgspec.Struct, frozen=True):
    name: str
    phone: str = ""


class TestMovedValues:
    """Older code moves a value that newer code wrote: the field that it does not know is kept."""

    async def written_by_new_code(self) -> Machine:
        machine = Machine()
        async with machine.open() as state:
            people = await state.open(Dictionary("people", key=str, value=New))
            await people.auto.set("ada", New("Ada", "123"))
            await state.open(Queue("queue", value=New))
        return machine

    async def test_to_another_key(self) -> None:
        machine = await self.written_by_new_code()
        async with machine.open() as state:
            people = await state.open(Dictionary("people", key=str, value=Old))
            async with state.transaction() as tx:
                await people.set(tx, "countess", await people.pop(tx, "ada"))
            async with state.transaction() as tx:
                async for _, person in people.items(tx):
                    await people.set(tx, "copy", person)

        async with machine.open() as state:
            newer = await state.open(Dictionary("people", key=str, value=New))
            assert await newer.auto.get("countess") == New("Ada", "123")
            assert await newer.auto.get("copy") == New("Ada", "123")

    async def test_to_a_queue_and_back(self) -> None:
        machine = await self.written_by_new_code()
        async with machine.open() as state:
            people = await state.open(Dictionary("people", key=str, value=Old))
            queue = await state.open(Queue("queue", value=Old))
            async with state.transaction() as tx:
                await queue.enqueue(tx, await people.get(tx, "ada"))
            async with state.transaction() as tx:
                found = await queue.dequeue(tx)
                assert found is not None
                await people.set(tx, "bob", found)

        async with machine.open() as state:
            newer = await state.open(Dictionary("people", key=str, value=New))
            assert await newer.auto.get("bob") == New("Ada", "123")
