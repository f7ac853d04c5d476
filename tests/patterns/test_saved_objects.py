"""The state of a saved object: changes during a save, deletion, copies, equal values."""

import asyncio
import copy
import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from partita.patterns import Database, ETagMismatchError, connect, entity, evolve, index
from partita.patterns.fields.load_state import find_origin
from partita.patterns.operations import verbs
from partita.patterns.protocol.calls import WriteRows
from partita.patterns.types.decorators import entity_type
from partita.service.hosting.in_process import LocalAccount
from support.entities import Stranger, Todo
from support.fake_world import FakeWorld
from support.simulated import begin


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


def test_what_is_changed_while_a_save_is_under_way_is_a_change_for_the_next() -> None:
    world, model = FakeWorld(), entity_type(Todo)
    context = begin(world, models=(model,))
    todo = Todo(owner="o", id=1, tags=["a"])

    def append(call: Any) -> None:
        if isinstance(call, WriteRows) and len(todo.tags) == 1:
            todo.tags.append("b")

    world.before = append
    saved = world.run(verbs.save(context, model, todo))
    world.run(verbs.patch(context, model, saved, {"done": 1}))

    stored = world.run(verbs.get(context, model, {"owner": "o", "id": 1}))
    assert stored.tags == ["a", "b"]


async def test_a_deleted_object_is_a_new_one_however_it_was_deleted(db: Database) -> None:
    todos = db.table(Todo)
    await db.create_tables()
    todo = await todos.save(Todo(owner="o", id=1))

    await todos.delete(todo, force=True)
    await todos.save(todo)
    async with todos.partition(owner="o").atomic() as group:
        group.delete(todo)
    await todos.save(todo)
    await todos.delete_all([todo])
    await todos.save(todo)

    assert await todos.get(owner="o", id=1) == todo


async def test_a_database_that_is_opened_again_knows_its_types(
    partita_account: LocalAccount,
) -> None:
    db = connect(partita_account, direct=True)
    async with db:
        db.table(Stranger)
    async with db:
        strangers = db.table(Stranger)
        await db.create_tables()
        await strangers.save(Stranger(city="Rome", name="Ann", age=40))
        await db.drain()

        assert await db.verify(Stranger) == []


def test_a_copy_of_a_struct_that_keeps_its_origin_in_a_dict_is_a_new_entity() -> None:
    @entity(table="structs", partition="{a}", row="{b}")
    class Kept(msgspec.Struct, dict=True):
        a: str
        b: str

    world, model = FakeWorld(), entity_type(Kept)
    context = begin(world, models=(model,))
    saved = world.run(verbs.save(context, model, Kept("x", "y")))

    for made in (copy.copy(saved), copy.deepcopy(saved)):
        assert find_origin(made) is None


async def test_an_object_that_two_tasks_save_is_saved_by_one(db: Database) -> None:
    todos = db.table(Todo)
    await db.create_tables()
    todo = await todos.save(Todo(owner="o", id=1))
    todo.done = 5

    outcomes = await asyncio.gather(*(todos.save(todo) for _ in range(5)), return_exceptions=True)

    assert sum(not isinstance(each, Exception) for each in outcomes) >= 1
    assert all(isinstance(each, Todo | ETagMismatchError) for each in outcomes)
    assert (await todos.get(owner="o", id=1)).done == 5


@entity(table="prices", partition="{shop}", row="p_{id:04d}")
class Price:
    shop: str
    id: int
    amount: Decimal
    ratio: float = 0.0


prices_by_id = index(Price, row="copy_{id:04d}")


async def test_a_copy_follows_a_number_that_is_only_written_otherwise(db: Database) -> None:
    prices = db.table(Price)
    await db.create_tables()
    saved = await prices.save(Price(shop="s", id=1, amount=Decimal("1.0")))

    await prices.save(evolve(saved, amount=Decimal("1.00"), ratio=-0.0))

    assert await db.verify(Price) == []


async def test_an_entity_with_a_nan_can_be_saved(db: Database) -> None:
    prices = db.table(Price)
    await db.create_tables()
    await prices.save(Price(shop="s", id=1, amount=Decimal(1), ratio=math.nan))

    found = await prices.via(prices_by_id).get(shop="s", id=1)
    await prices.save(evolve(found, amount=Decimal(2)))

    assert (await prices.get(shop="s", id=1)).amount == 2
    assert await db.verify(Price) == []
