"""Entities without a type, and several types of one table read together."""

import datetime as dt
from typing import Any
from uuid import UUID

import pytest

from partita.errors import TableNotFoundError, UsageError
from partita.patterns import (
    Database,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    Int32,
    RawEntity,
    Table,
    entity,
)
from partita.patterns.protocol.values import Instant
from support.entities import Todo
from support.staff import Department, Employee, Note, note, person

EVERY_TYPE: dict[str, Any] = {
    "Text": "ä'\"\n😀",
    "Empty": "",
    "Small": Int32(-(2**31)),
    "Big": 2**63 - 1,
    "Negative": -5,
    "Double": 0.1,
    "Whole": 3.0,
    "Huge": 1e300,
    "Truth": True,
    "Bytes": bytes(range(256)),
    "NoBytes": b"",
    "Id": UUID("12345678-1234-5678-1234-567812345678"),
    "At": dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC),
}


async def test_every_type_comes_back_as_it_was(any_db: Database) -> None:
    raw = any_db.raw("notes")

    saved = await raw.save(RawEntity("p", "r", dict(EVERY_TYPE)))
    found = await raw.get("p", "r")

    assert found.properties == EVERY_TYPE
    assert {name: type(value) for name, value in found.properties.items() if name != "At"} == {
        name: type(value) for name, value in EVERY_TYPE.items() if name != "At"
    }
    assert found.etag == saved.etag


@pytest.mark.parametrize("way", ["save", "patch"])
async def test_a_change_elsewhere_keeps_types_and_digits(any_db: Database, way: str) -> None:
    text = "2024-02-29T12:00:00.1234567Z"
    raw = any_db.raw("notes")

    moment = Instant.of(dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC), text)
    await raw.save(RawEntity("p", "r", {"Small": Int32(7), "At": moment, "Name": "x"}))
    loaded = await raw.get("p", "r")

    if way == "save":
        loaded.properties["Name"] = "y"
        await raw.save(loaded)
    else:
        await raw.patch(loaded, {"Name": "y"})

    found = await raw.get("p", "r")
    assert type(found.properties["Small"]) is Int32
    assert getattr(found.properties["At"], "text", "") == text
    assert found.properties["Name"] == "y"


async def test_writes_are_conditional(any_db: Database) -> None:
    raw = any_db.raw("notes")
    first = await raw.save(RawEntity("p", "r", {"A": 1}))

    with pytest.raises(EntityExistsError):
        await raw.save(RawEntity("p", "r", {"A": 2}))
    second = await raw.save(RawEntity("p", "r", {"A": 3}, first.etag))
    for attempt in (raw.save(first), raw.patch(first, {"A": 4}), raw.delete(first)):
        with pytest.raises(ETagMismatchError):
            await attempt
    await raw.delete(second)

    with pytest.raises(EntityNotFoundError):
        await raw.get("p", "r")
    with pytest.raises(TableNotFoundError):
        await any_db.raw("nowhere").get("p", "r")


async def test_a_patch_takes_properties_of_their_own_type_only(any_db: Database) -> None:
    raw = any_db.raw("notes")
    loaded = await raw.save(RawEntity("p", "r", {"Small": Int32(7), "Name": "x"}))

    for wrong in ({"Other": 1}, {"Name": 5}, {"Small": 5}, {"Small": "5"}):
        with pytest.raises(UsageError):
            await raw.patch(loaded, wrong)
    patched = await raw.patch(loaded, {"Small": Int32(8)})

    assert patched.properties == {"Small": 8, "Name": "x"}


async def test_a_filter_of_ones_own(any_db: Database) -> None:
    await any_db.table(Note).save_all([note(n, stars=n % 3) for n in range(9)])

    found = [each async for each in any_db.raw("notes").query("Stars eq 2L and RowKey ge '000003'")]

    assert [each.row_key for each in found] == ["000005", "000008"]


async def test_raw_queries_read_every_page(db: Database, notes: Table[Note]) -> None:
    await notes.save_all([note(n) for n in range(1005)])

    assert len([each async for each in db.raw("notes").query()]) == 1005


# ---------------------------------------------------------------------------------------------
# Several types


@pytest.fixture
async def sales(any_db: Database) -> Database:
    await any_db.table(Department).save(Department(name="Sales", manager_id=1))
    await any_db.table(Employee).save_all(
        [person(1, photo=b"face", messages={300: 1}), person(2, salary=5)]
    )
    return any_db


async def test_one_partition_in_three_ways(sales: Database) -> None:
    """The guide's three ways to work with heterogeneous types: the same rows, three views."""
    typed = await sales.table(Employee).partition(dept="Sales").all().list()
    raw = [
        each
        async for each in sales.raw("staff").query("PartitionKey eq 'Sales'")
        if each.properties["EntityType"] == "Employee"
    ]
    mixed = [each async for each in sales.mixed(Department, Employee).partition("Sales")]

    assert [each.row_key for each in raw] == ["emp_000001", "emp_000002"]
    assert [each.properties["First"] for each in raw] == [each.first for each in typed]
    department, *employees = mixed
    assert isinstance(department, Department)
    assert department.headcount == 2
    assert employees == typed
    assert isinstance(employees[0], Employee)
    assert employees[0].messages == {300: 1}


async def test_entities_of_a_mixed_read_can_be_saved(sales: Database) -> None:
    found = [each async for each in sales.mixed(Department, Employee).partition("Sales")]

    async with sales.table(Department).partition(name="Sales").atomic() as group:
        for each in found:
            group.save(each)

    assert len(group.entities) == 3


async def test_types_that_were_not_asked_for_are_left_out_or_raw(sales: Database) -> None:
    stranger = await sales.raw("staff").save(RawEntity("Sales", "stranger", {"Color": "red"}))

    only = [each async for each in sales.mixed(Department).partition("Sales")]
    kept = [each async for each in sales.mixed(Department, keep_unknown=True).partition("Sales")]

    assert [type(each) for each in only] == [Department]
    assert [type(each) for each in kept] == [Department, RawEntity, RawEntity, RawEntity]
    assert kept[-1] == stranger


async def test_a_resolver_says_of_what_type_a_foreign_entity_is(any_db: Database) -> None:
    await any_db.raw("notes").save(RawEntity("tables", "000001", {"Text": "from elsewhere"}))
    await any_db.table(Note).save(note(2))

    mixed = any_db.mixed(Note, resolve=lambda _: Note)
    found = [each async for each in mixed.partition("tables")]

    assert found == [note(1, text="from elsewhere"), note(2)]


async def test_types_of_two_tables_are_not_read_together(db: Database) -> None:
    with pytest.raises(UsageError, match="one table"):
        db.mixed(Employee, Note)


async def test_a_table_of_strangers_is_read_and_written_without_marks(any_db: Database) -> None:
    @entity(table="foreign", partition="{country}", row="{code}", type_property=None)
    class City:
        country: str
        code: str
        name: str = ""

    cities = any_db.table(City)
    await any_db.create_tables()
    await any_db.raw("foreign").save(RawEntity("de", "bn", {"Name": "Bonn", "People": Int32(330)}))

    found = await cities.get(country="de", code="bn")
    found.name = "Beethoven"
    await cities.save(found)
    await cities.save(City(country="de", code="k", name="Köln"))

    stored = [each.properties async for each in any_db.raw("foreign").query()]
    assert stored == [{"Name": "Beethoven", "People": 330}, {"Name": "Köln"}]
    assert type(stored[0]["People"]) is Int32
    assert [each.code async for each in cities.partition(country="de")] == ["bn", "k"]


async def test_a_raw_entity_without_an_etag_is_patched_without_a_condition(db: Database) -> None:
    db.table(Todo)
    await db.create_tables()
    stored = await db.raw("lists").save(RawEntity("o", "0001", {"Done": 1}))

    patched = await db.raw("lists").patch(RawEntity("o", "0001", {"Done": 1}), {"Done": 2})

    assert patched.etag != stored.etag
    assert (await db.raw("lists").get("o", "0001")).properties["Done"] == 2
