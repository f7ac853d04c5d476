"""Reads: smaller classes, ranges, indexes by name, conditions on other types."""

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from partita.errors import UnknownTypeError
from partita.patterns import Database, PartitaError, RawEntity, entity
from support.teams import Member, Team, member, same_age


@pytest.fixture
def db(team_db: Database) -> Database:
    return team_db


async def test_a_smaller_class_may_inherit_its_fields(db: Database) -> None:
    members = db.table(Member)
    await members.save(member(1, age=40))

    @dataclass
    class Named:
        email: str

    @dataclass
    class Aged(Named):
        age: int
        unit: ClassVar[str] = "years"

    class Struct(msgspec.Struct):
        age: int

    class Model(pydantic.BaseModel):
        age: int

    here = members.partition(team="Sales").all()
    assert await here.select(Aged).list() == [Aged(email="m1@x", age=40)]
    assert await here.select(Struct).list() == [Struct(age=40)]
    assert await here.select(Model).list() == [Model(age=40)]


async def test_a_class_without_fields_selects_nothing(db: Database) -> None:
    class Empty:
        pass

    with pytest.raises(PartitaError) as refused:
        db.table(Member).partition(team="Sales").all().select(Empty)

    assert refused.value.code == "NotSelectable"


async def test_a_tuple_in_a_range_is_told_to_be_between(db: Database) -> None:
    with pytest.raises(PartitaError) as refused:
        await db.table(Member).partition(team="Sales").range(id=(1, 5)).list()

    assert refused.value.code == "KeyValueType"
    assert "between(first, last)" in refused.value.hint


async def test_the_name_of_an_index_is_not_an_index(db: Database) -> None:
    name: Any = "by_email"

    with pytest.raises(PartitaError) as refused:
        db.table(Member).via(name)

    assert refused.value.code == "IndexOfAnother"
    assert "the result of index() or list_index()" in refused.value.hint


@pytest.mark.parametrize("column", ["name", "size"])
async def test_a_condition_on_columns_of_another_table_is_refused(
    db: Database, column: str
) -> None:
    @entity(table="auditstaff", partition="{team}", row="n_{id:06d}")
    class Nicknamed:
        team: str
        id: int
        name: str = ""

    foreign = getattr(db.table(Team).c, column)
    here = db.table(Nicknamed).partition(team="Sales")

    with pytest.raises(PartitaError) as refused:
        await here.where(foreign == ("x" if column == "name" else 3)).list()

    assert refused.value.code == {"name": "ColumnOfAnother", "size": "UnknownField"}[column]


async def test_a_condition_on_columns_of_the_parent_holds_for_the_child(db: Database) -> None:
    @entity(table="auditfamily", partition="{zoo}", row="{id:04d}")
    class Animal:
        zoo: str
        id: int
        age: int = 0

    @entity()
    class Dog(Animal):
        breed: str = ""

    animals, dogs = db.table(Animal), db.table(Dog)
    await db.create_tables()
    await dogs.save(Dog(zoo="a", id=1, age=3))

    assert len(await dogs.partition(zoo="a").where(animals.c.age == 3).list()) == 1
    assert len(await animals.partition(zoo="a").where(animals.c.age == 3).list()) == 1
    with pytest.raises(PartitaError, match="UnknownField"):
        await animals.partition(zoo="a").where(dogs.c.breed == "x").list()


async def test_an_entity_that_says_no_type_is_told_so(db: Database) -> None:
    await db.raw("auditstaff").save(RawEntity("Sales", "m_000001", {"Age": 7}))

    with pytest.raises(UnknownTypeError) as unknown:
        await db.table(Member).get(team="Sales", id=1)

    assert "has no EntityType" in unknown.value.message
    assert "resolve" in unknown.value.hint


async def test_an_empty_text_can_be_the_partition_of_a_list(db: Database) -> None:
    members = db.table(Member)

    await members.save(member(1, email="", age=3))
    await db.drain()

    assert [each.id async for each in members.via(same_age).range(email="", age=3)] == [1]


async def test_several_types_are_read_by_the_fields_of_either(db: Database) -> None:
    await db.table(Team).save(Team(name="Sales"))
    await db.table(Member).save(member(1))
    both = db.mixed(Team, Member)

    found = [
        [type(each) async for each in partition]
        for partition in (
            both.partition(name="Sales"),
            both.partition(team="Sales"),
            both.partition("Sales"),
        )
    ]

    assert found == [[Team, Member]] * 3
    for wrong in (both.partition(id=1), both.partition(), both.partition("Sales", name="Sales")):
        with pytest.raises(PartitaError) as refused:
            [each async for each in wrong]
        assert refused.value.code == "KeyFields"
