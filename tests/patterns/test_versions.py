"""Versions of a type, types of a family, and what older code does with newer data."""

import datetime as dt
from typing import Any

import pytest

from partita.errors import InvalidPropertyError, SchemaError, UnknownTypeError, UsageError
from partita.patterns import (
    Database,
    DefinitionError,
    EntityExistsError,
    NewerVersionError,
    RawEntity,
    Table,
    UniqueViolationError,
    connect,
    entity,
    evolve,
    index,
    upcast,
)
from partita.service.hosting.in_process import LocalAccount
from support.staff import Employee, Grade, Note, anywhere, by_email, by_last, person, rows_of


def stored_v1(number: int, name: str = "Jun Cao", **other: Any) -> RawEntity:
    """Return an employee as version 1 stored it: one name, and no version."""
    properties = {"EntityType": "Employee", "Name": name, "Email": f"e{number}@contoso.com"}
    return RawEntity("Sales", f"emp_{number:06d}", {**properties, "Grade": "s", **other})


# ---------------------------------------------------------------------------------------------
# Upcasting


async def test_an_old_entity_is_read_as_a_new_one(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await any_db.raw("staff").save(stored_v1(1))

    found = await employees.get(dept="Sales", id=1)

    assert (found.first, found.last, found.grade) == ("Jun", "Cao", Grade.SENIOR)
    assert [each.id async for each in employees.partition(dept="Sales")] == [1]


async def test_reading_does_not_write(any_db: Database) -> None:
    await any_db.raw("staff").save(stored_v1(1))
    before = await rows_of(any_db)

    await any_db.table(Employee).get(dept="Sales", id=1)

    assert await rows_of(any_db) == before


@pytest.mark.parametrize("verb", ["save", "patch", "update", "increment"])
async def test_an_old_entity_that_is_changed_becomes_a_new_one(
    db: Database, employees: Table[Employee], verb: str
) -> None:
    await db.raw("staff").save(stored_v1(1, Color="red"))
    loaded = await employees.get(dept="Sales", id=1)

    match verb:
        case "save":
            await employees.save(evolve(loaded, age=40))
        case "patch":
            await employees.patch(loaded, age=40)
        case "update":
            await employees.update(lambda old: evolve(old, age=40), dept="Sales", id=1)
        case _:
            await employees.increment(loaded, "age", by=40)

    found = await employees.get(dept="Sales", id=1)
    assert (found.first, found.last, found.age) == ("Jun", "Cao", 40)
    properties = (await db.raw("staff").get("Sales", "emp_000001")).properties
    assert properties["EntityVersion"] == 2
    assert properties["Color"] == "red"
    assert "Name" not in properties


async def test_an_old_entity_comes_into_the_indexes_when_it_is_saved(
    db: Database, employees: Table[Employee]
) -> None:
    await db.raw("staff").save(stored_v1(1))
    await employees.save(evolve(await employees.get(dept="Sales", id=1), age=40))
    await db.drain()
    for each in (by_email, anywhere, by_last):
        await db.rebuild(each)

    assert (await employees.via(by_email).get(dept="Sales", email="e1@contoso.com")).age == 40
    assert [e.id async for e in employees.via(by_last).range(dept="Sales", last="Cao")] == [1]
    assert await db.verify(Employee) == []


async def test_old_entities_are_rebuilt_into_indexes(
    db: Database, employees: Table[Employee]
) -> None:
    for number in range(5):
        await db.raw("staff").save(stored_v1(number))

    for each in (by_email, anywhere, by_last):
        await db.rebuild(each)
    await db.drain()

    via = employees.via(by_last)
    assert [e.id async for e in via.range(dept="Sales", last="Cao")] == list(range(5))
    assert (await employees.via(anywhere).get(dept="Sales", email="e3@contoso.com")).id == 3
    assert await db.verify(Employee) == []


async def test_conditions_see_old_entities_as_new_ones(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await any_db.raw("staff").save(stored_v1(1, "Jun Cao"))
    await any_db.raw("staff").save(stored_v1(2, "Ann Smith"))
    await employees.save(person(3, last="Cao"))
    await employees.save(person(4, last="Smith"))
    sales = employees.partition(dept="Sales")

    found = await sales.where(employees.c.last == "Cao").list()
    some = await sales.where(employees.c.last == "Smith").select("first", "id").list()

    assert [each.id for each in found] == [1, 3]
    assert [(each.id, each.first) for each in some] == [(2, "Ann"), (4, "First4")]


async def test_an_old_entity_moves_and_goes(db: Database, employees: Table[Employee]) -> None:
    await db.raw("staff").save(stored_v1(1))
    await db.raw("staff").save(stored_v1(2))

    moved = await employees.move(await employees.get(dept="Sales", id=1), dept="Marketing")
    await employees.delete_if_exists(dept="Sales", id=2)
    await db.drain()

    assert (moved.first, moved.last) == ("Jun", "Cao")
    assert [each.dept for each in await employees.all().allow_scan().list()] == ["Marketing"]


async def test_upcasters_are_chained(partita_account: LocalAccount) -> None:
    @entity(table="things", partition="{kind}", row="{id:04d}", version=3)
    class Thing:
        kind: str
        id: int
        weight: float
        unit: str

    @upcast(Thing, from_version=1)
    def grams(old: dict[str, Any]) -> dict[str, Any]:
        return old | {"weight": float(old["weight"]), "unit": "g"}

    @upcast(Thing, from_version=2)
    def kilograms(old: dict[str, Any]) -> dict[str, Any]:
        is_grams = old["unit"] == "g"
        return old | {"weight": old["weight"] / 1000, "unit": "kg"} if is_grams else old

    async with connect(partita_account) as db:
        things = db.table(Thing)
        await db.create_tables()
        raw = db.raw("things")
        await raw.save(RawEntity("a", "0001", {"EntityType": "Thing", "Weight": 500}))
        second: dict[str, Any] = {
            "EntityType": "Thing",
            "EntityVersion": 2,
            "Weight": 250.0,
            "Unit": "g",
        }
        await raw.save(RawEntity("a", "0002", second))
        await things.save(Thing(kind="a", id=3, weight=2.0, unit="kg"))

        found = [each async for each in things.partition(kind="a")]

    assert [(each.weight, each.unit) for each in found] == [(0.5, "kg"), (0.25, "kg"), (2.0, "kg")]


async def test_a_chain_with_a_hole_and_a_changed_key_are_refused(
    partita_account: LocalAccount,
) -> None:
    @entity(table="things", partition="{kind}", row="{id:04d}", version=3, name="Holed")
    class Holed:
        kind: str
        id: int

    @entity(table="things", partition="{kind}", row="{id:04d}", version=2, name="Moved")
    class Moved:
        kind: str
        id: int

    upcast(Holed, from_version=1)(lambda old: old)
    upcast(Moved, from_version=1)(lambda old: old | {"id": 9})

    async with connect(partita_account) as db:
        with pytest.raises(DefinitionError, match="none from version 2"):
            db.table(Holed)
        moved = db.table(Moved)
        await db.create_tables()
        await db.raw("things").save(RawEntity("a", "0001", {"EntityType": "Moved"}))
        with pytest.raises(SchemaError, match="the key field 'id'"):
            await moved.get(kind="a", id=1)


# ---------------------------------------------------------------------------------------------
# Newer than we are


async def test_a_newer_entity_is_refused_and_stays_as_it_is(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await any_db.raw("staff").save(stored_v1(1, EntityVersion=3, Nickname="J"))
    before = await rows_of(any_db)

    with pytest.raises(NewerVersionError, match="stored by version 3") as refused:
        await employees.get(dept="Sales", id=1)
    assert "raw()" in refused.value.hint
    with pytest.raises(NewerVersionError):
        await employees.partition(dept="Sales").all().list()
    with pytest.raises(EntityExistsError):
        await employees.save(person(1))
    for attempt in (
        employees.upsert(person(1)),
        employees.delete_if_exists(dept="Sales", id=1),
        employees.update(lambda old: old, dept="Sales", id=1),
    ):
        with pytest.raises(NewerVersionError):
            await attempt

    assert await rows_of(any_db) == before


async def test_a_newer_entity_is_read_raw(any_db: Database) -> None:
    await any_db.raw("staff").save(stored_v1(1, EntityVersion=3, Nickname="J"))

    raw = await any_db.raw("staff").get("Sales", "emp_000001")
    mixed = [e async for e in any_db.mixed(Employee, keep_unknown=True).partition("Sales")]

    assert raw.properties["Nickname"] == "J"
    assert mixed == [raw]


async def test_a_class_that_does_not_take_what_is_stored_says_so(db: Database) -> None:
    await db.raw("notes").save(RawEntity("tables", "000001", {"EntityType": "Note", "Text": 5}))

    with pytest.raises(InvalidPropertyError):
        await db.table(Note).get(topic="tables", number=1)


# ---------------------------------------------------------------------------------------------
# Families


@entity(table="zoo", partition="{cage}", row="animal_{id:04d}", abstract=True)
class Animal:
    cage: str
    id: int
    name: str = ""


@entity()
class Cat(Animal):
    lives: int = 9


@entity()
class Dog(Animal):
    tricks: int = 0


@entity()
class Puppy(Dog):
    born: dt.datetime | None = None


by_name = index(Animal, row="name_{name}", unique=True)
by_tricks = index(Dog, row="tricks_{tricks:04d}_{id:04d}")


@pytest.fixture
async def animals(any_db: Database) -> Table[Animal]:
    table = any_db.table(Animal)
    await any_db.create_tables()
    await any_db.table(Cat).save(Cat(cage="a", id=1, name="Tom"))
    await any_db.table(Dog).save(Dog(cage="a", id=2, name="Rex", tricks=3))
    await any_db.table(Puppy).save(Puppy(cage="a", id=3, name="Bo", tricks=1))
    return table


async def test_a_query_on_the_parent_returns_the_children(
    any_db: Database, animals: Table[Animal]
) -> None:
    found = [each async for each in animals.partition(cage="a")]

    assert [type(each).__name__ for each in found] == ["Cat", "Dog", "Puppy"]
    assert [type(e) for e in await any_db.table(Dog).partition(cage="a").all().list()] == [
        Dog,
        Puppy,
    ]
    assert await any_db.table(Cat).partition(cage="a").all().list() == [found[0]]


async def test_get_returns_the_class_that_was_saved(
    any_db: Database, animals: Table[Animal]
) -> None:
    assert isinstance(await animals.get(cage="a", id=1), Cat)
    assert isinstance(await any_db.table(Dog).get(cage="a", id=3), Puppy)
    with pytest.raises(UnknownTypeError, match="'Cat'"):
        await any_db.table(Dog).get(cage="a", id=1)


async def test_children_are_saved_by_the_table_of_the_parent(
    any_db: Database, animals: Table[Animal]
) -> None:
    found = await animals.get(cage="a", id=2)
    assert isinstance(found, Dog)

    await animals.save(evolve(found, tricks=7))
    await animals.save(Cat(cage="a", id=9, name="Kitty"))

    assert (await any_db.table(Dog).get(cage="a", id=2)).tricks == 7
    assert (await any_db.table(Cat).get(cage="a", id=9)).lives == 9
    with pytest.raises(UsageError, match="abstract"):
        await animals.save(Animal(cage="a", id=5))
    with pytest.raises(UsageError, match="was passed to the table of Dog"):
        await any_db.table(Dog).save(Cat(cage="a", id=6))  # type: ignore[arg-type]


async def test_indexes_of_the_parent_hold_the_children(
    any_db: Database, animals: Table[Animal]
) -> None:
    tom = await animals.via(by_name).get(cage="a", name="Tom")
    rex = await any_db.table(Dog).via(by_name).get(cage="a", name="Rex")

    assert isinstance(tom, Cat)
    assert tom.lives == 9
    assert isinstance(rex, Dog)
    assert rex.tricks == 3
    dogs = await any_db.table(Dog).via(by_tricks).range(cage="a").list()
    assert [(type(each), each.tricks) for each in dogs] == [(Puppy, 1), (Dog, 3)]
    assert await any_db.verify(Animal) == []


async def test_a_unique_value_is_unique_in_the_family(
    any_db: Database, animals: Table[Animal]
) -> None:

    with pytest.raises(UniqueViolationError):
        await any_db.table(Cat).save(Cat(cage="a", id=7, name="Rex"))


async def test_a_child_of_another_program_is_refused_or_raw(
    any_db: Database, animals: Table[Animal]
) -> None:
    bird = RawEntity("a", "animal_0008", {"EntityType": "Bird", "Name": "Polly"})
    await any_db.raw("zoo").save(bird)

    with pytest.raises(UnknownTypeError, match="'Bird'"):
        await animals.get(cage="a", id=8)
    assert len([each async for each in animals.partition(cage="a")]) == 3
    mixed = [each async for each in any_db.mixed(Animal, keep_unknown=True).partition("a")]
    assert [type(each) for each in mixed] == [Cat, Dog, Puppy, RawEntity]
