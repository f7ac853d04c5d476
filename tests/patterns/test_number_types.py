"""Numbers in tables that other programs write too: Int32, Int64 and Double for the same field."""

import dataclasses
import datetime as dt
import enum
from typing import Annotated, Any

import pytest

from partita.errors import DefinitionError, InvalidPropertyError
from partita.patterns import (
    CountOf,
    Database,
    Encrypted,
    Int32,
    RawEntity,
    Series,
    Table,
    entity,
    entity_type,
    evolve,
    index,
    sync,
)
from partita.patterns.design.schema_lock import compare_lock, write_lock
from partita.patterns.fields.codecs import edm_of
from partita.patterns.protocol.values import Value
from partita.service.hosting.in_process import LocalAccount
from partita.tables import edm
from support.staff import KEYRING, rows_of


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@entity(table="readings", partition="{place}", row="{id:04d}", type_property=None)
class Reading:
    place: str
    id: int
    count: int = 0
    ratio: float = 0.0
    level: Level | None = None
    lasted: dt.timedelta | None = None
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = dataclasses.field(
        default_factory=dict
    )


@entity(table="shorts", partition="{place}", row="{id:04d}")
class Short:
    place: str
    id: Annotated[int, Int32]
    age: Annotated[int, Int32] = 0
    size: Annotated[int | None, Int32] = None
    hours: Annotated[dict[int, Annotated[int, Int32]], Series("h{:02d}", slots=24)] = (
        dataclasses.field(default_factory=dict)
    )


@entity(table="shorts", partition="{name}", row="owner")
class ShortOwner:
    name: str
    shorts: Annotated[int, Int32, CountOf(Short, where={"place": "name"})] = 0


@entity(table="sealed", partition="{place}", row="{id:04d}", type_property=None)
class SealedReading:
    place: str
    id: int
    count: Annotated[int, Encrypted] = 0
    other: int = 0


@entity(table="movable", partition="{place}", row="{id:04d}")
class Movable:
    place: str
    id: int
    count: int = 0


by_count = index(Movable, row="count_{count:08d}_{id:04d}")


async def readings_of(db: Database, *rows: dict[str, Value]) -> Table[Reading]:
    """Return a table that another program has filled."""
    table = db.table(Reading)
    await db.create_tables()
    for number, properties in enumerate(rows):
        await db.raw("readings").save(RawEntity("Oslo", f"{number:04d}", dict(properties)))
    return table


async def types_of(db: Database, table: str, row: str = "0000") -> dict[str, str]:
    [found] = [each for each in await rows_of(db, table) if each.row_key == row]
    return {name: edm_of(value) for name, value in found.properties.items()}


async def test_where_finds_the_numbers_that_get_reads(any_db: Database) -> None:
    numbers = [3, 5, 7, -(2**31), 2**31 - 1]
    rows: list[dict[str, Value]] = [{"Count": Int32(each)} for each in numbers]
    rows += [{"Count": each} for each in (*numbers, 2**40, -(2**40))]
    readings = await readings_of(any_db, *rows)
    loaded = [await readings.get(place="Oslo", id=number) for number in range(len(rows))]
    c, oslo = readings.c, readings.partition(place="Oslo")

    for value in (*numbers, 0, 2**31, 2**40, -(2**40), -(2**40) - 1):
        for condition, expected in (
            (c.count == value, [each.id for each in loaded if each.count == value]),
            (c.count != value, [each.id for each in loaded if each.count != value]),
            (c.count < value, [each.id for each in loaded if each.count < value]),
            (c.count <= value, [each.id for each in loaded if each.count <= value]),
            (c.count > value, [each.id for each in loaded if each.count > value]),
            (c.count >= value, [each.id for each in loaded if each.count >= value]),
            (~(c.count < value), [each.id for each in loaded if each.count >= value]),
            (c.count.in_([value, 5]), [each.id for each in loaded if each.count in (value, 5)]),
        ):
            assert [each.id for each in await oslo.where(condition).list()] == expected
            assert await oslo.where(condition).count() == len(expected)


async def test_where_finds_whole_numbers_that_are_read_as_float(any_db: Database) -> None:
    rows: list[dict[str, Value]] = [
        {"Ratio": Int32(2)},
        {"Ratio": 2},
        {"Ratio": 2.0},
        {"Ratio": 1.5},
        {"Ratio": Int32(1)},
        {"Ratio": 2**40},
    ]
    readings = await readings_of(any_db, *rows)
    c, oslo = readings.c, readings.partition(place="Oslo")

    for condition, expected in (
        (c.ratio == 2.0, [0, 1, 2]),
        (c.ratio != 2.0, [3, 4, 5]),
        (c.ratio > 1.5, [0, 1, 2, 5]),
        (c.ratio >= 1.5, [0, 1, 2, 3, 5]),
        (c.ratio < 1.75, [3, 4]),
        (c.ratio <= 2.0, [0, 1, 2, 3, 4]),
        (c.ratio.between(1.25, 2.5), [0, 1, 2, 3]),
        (c.ratio == 2.0**40, [5]),
    ):
        assert [each.id for each in await oslo.where(condition).list()] == expected


async def test_where_finds_the_choices_and_durations_that_get_reads(any_db: Database) -> None:
    readings = await readings_of(
        any_db, {"Level": Int32(2), "Lasted": Int32(600)}, {"Level": 2, "Lasted": 600}
    )
    c, oslo = readings.c, readings.partition(place="Oslo")

    assert await oslo.where(c.level == Level.HIGH).count() == 2
    assert await oslo.where(c.lasted < dt.timedelta(microseconds=60)).count() == 0
    assert await oslo.where(c.lasted == dt.timedelta(microseconds=60)).count() == 2


async def test_a_saved_entity_keeps_the_number_types_it_was_loaded_with(any_db: Database) -> None:
    before: dict[str, Value] = {
        "Count": Int32(5),
        "Ratio": 3,
        "Level": Int32(1),
        "Lasted": Int32(600),
        "h03": Int32(4),
        "Other": Int32(9),
    }
    readings = await readings_of(any_db, before)
    loaded = await readings.get(place="Oslo", id=0)

    saved = await readings.save(evolve(loaded, count=6, hours={3: 5, 4: 1}))

    kept = {name: edm_of(value) for name, value in before.items()}
    assert await types_of(any_db, "readings") == kept | {"h04": edm.INT64}
    await readings.save(evolve(saved, count=7, ratio=4.0))
    assert await types_of(any_db, "readings") == kept | {"h04": edm.INT64}
    again = await readings.get(place="Oslo", id=0)
    assert (again.count, again.ratio, again.hours) == (7, 4.0, {3: 5, 4: 1})


async def test_a_number_that_its_stored_type_cannot_hold_takes_the_declared_type(
    any_db: Database,
) -> None:
    readings = await readings_of(any_db, {"Count": Int32(5), "Ratio": Int32(2)})
    loaded = await readings.get(place="Oslo", id=0)

    await readings.save(evolve(loaded, count=2**31, ratio=2.5))

    assert await types_of(any_db, "readings") == {"Count": edm.INT64, "Ratio": edm.DOUBLE}
    again = await readings.get(place="Oslo", id=0)
    assert (again.count, again.ratio) == (2**31, 2.5)


@pytest.mark.parametrize("verb", ["patch", "increment", "upsert", "update", "group", "bulk"])
async def test_every_verb_keeps_the_number_types(any_db: Database, verb: str) -> None:
    readings = await readings_of(any_db, {"Count": Int32(5), "Ratio": Int32(1)})
    loaded = await readings.get(place="Oslo", id=0)

    match verb:
        case "patch":
            await readings.patch(loaded, count=6)
        case "increment":
            assert await readings.increment(loaded, "count") == 6
        case "upsert":
            await readings.upsert(evolve(loaded, count=6))
        case "update":
            await readings.update(lambda each: evolve(each, count=6), place="Oslo", id=0)
        case "group":
            async with readings.partition(place="Oslo").atomic() as group:
                group.save(evolve(loaded, count=6))
        case _:
            await readings.save_all([evolve(loaded, count=6)])

    types = await types_of(any_db, "readings")
    assert (types["Count"], types["Ratio"]) == (edm.INT32, edm.INT32)
    assert (await readings.get(place="Oslo", id=0)).count == 6


@pytest.mark.parametrize("target", [{"id": 7}, {"place": "Bonn"}])
async def test_a_move_keeps_the_number_types(any_db: Database, target: dict[str, Any]) -> None:
    movable = any_db.table(Movable)
    await any_db.create_tables()
    stored: dict[str, Value] = {"EntityType": "Movable", "Count": Int32(5)}
    await any_db.raw("movable").save(RawEntity("Oslo", "0001", stored))
    await any_db.rebuild(by_count)
    loaded = await movable.get(place="Oslo", id=1)

    await movable.move(loaded, **target)
    await any_db.drain()

    row = f"{target.get('id', 1):04d}"
    assert (await types_of(any_db, "movable", row))["Count"] == edm.INT32
    assert await any_db.verify(Movable) == []


async def test_an_entity_read_from_an_index_is_saved_with_its_own_number_types(
    any_db: Database,
) -> None:
    movable = any_db.table(Movable)
    await any_db.create_tables()
    stored: dict[str, Value] = {"EntityType": "Movable", "Count": Int32(5)}
    await any_db.raw("movable").save(RawEntity("Oslo", "0001", stored))
    await any_db.rebuild(by_count)
    oslo = movable.via(by_count).range(place="Oslo")
    [copied] = await oslo.where(movable.c.count == 5).list()

    await movable.save(evolve(copied, count=6))

    assert (await types_of(any_db, "movable", "0001"))["Count"] == edm.INT32
    assert [each.count for each in await oslo.list()] == [6]


async def test_a_sealed_number_keeps_its_type(any_db: Database) -> None:
    sealed = any_db.table(SealedReading)
    await any_db.create_tables()
    saved = await sealed.save(SealedReading(place="Oslo", id=0, count=5))

    again = await sealed.save(evolve(saved, count=6))

    assert (again.count, (await sealed.get(place="Oslo", id=0)).count) == (6, 6)


async def test_a_declared_int32_is_stored_and_found_as_one(any_db: Database) -> None:
    shorts = any_db.table(Short)
    await any_db.create_tables()
    await shorts.save(Short(place="Oslo", id=0, age=5, size=6, hours={3: 4}))

    types = await types_of(any_db, "shorts")

    assert [types[name] for name in ("Age", "Size", "h03")] == [edm.INT32] * 3
    assert (await shorts.get(place="Oslo", id=0)).hours == {3: 4}
    query = shorts.partition(place="Oslo").where(shorts.c.age == 5)
    assert query.plan.filter == "EntityType eq 'Short' and Age eq 5"
    assert await query.count() == 1
    assert await shorts.increment(await shorts.get(place="Oslo", id=0), "age") == 6
    assert (await types_of(any_db, "shorts"))["Age"] == edm.INT32


async def test_a_declared_int32_is_stored_as_one_whatever_was_there(any_db: Database) -> None:
    shorts = any_db.table(Short)
    await any_db.create_tables()
    stored: dict[str, Value] = {"EntityType": "Short", "Age": 5}
    await any_db.raw("shorts").save(RawEntity("Oslo", "0000", stored))
    assert await shorts.partition(place="Oslo").where(shorts.c.age == 5).count() == 1

    await shorts.save(evolve(await shorts.get(place="Oslo", id=0), size=1))

    assert (await types_of(any_db, "shorts"))["Age"] == edm.INT32


async def test_a_count_that_is_declared_int32_is_stored_as_one(any_db: Database) -> None:
    shorts, owners = any_db.table(Short), any_db.table(ShortOwner)
    await any_db.create_tables()
    await owners.save(ShortOwner(name="Oslo"))

    await shorts.save(Short(place="Oslo", id=0))

    assert (await owners.get(name="Oslo")).shorts == 1
    assert (await types_of(any_db, "shorts", "owner"))["Shorts"] == edm.INT32


def test_a_number_beyond_a_declared_int32_is_refused_with_the_way_to_go() -> None:
    field = entity_type(Short).fields["age"]

    with pytest.raises(InvalidPropertyError) as caught:
        field.codec.encode(2**31)

    assert caught.value.code == "PropertyOutOfRange"
    assert "Short.age" in caught.value.message
    assert "int" in caught.value.hint


def test_int32_declares_nothing_but_an_int() -> None:
    with pytest.raises(DefinitionError) as caught:

        @entity(table="shorts", partition="{place}", row="text")
        class _Text:
            place: str
            text: Annotated[str, Int32] = ""

    assert caught.value.code == "FieldRefused"
    assert "Annotated[int, Int32]" in caught.value.hint


def test_a_lock_tells_when_an_int_becomes_an_int32() -> None:
    @entity(table="shorts", partition="{place}", row="{id:04d}", name="Changed")
    class Before:
        place: str
        id: int
        age: int = 0

    @entity(table="shorts", partition="{place}", row="{id:04d}", name="Changed")
    class After:
        place: str
        id: int
        age: Annotated[int, Int32] = 0

    before, after = entity_type(Before), entity_type(After)

    assert [each.code for each in compare_lock(write_lock([before]), [after])] != []
    assert compare_lock(write_lock([after]), [before]) == []


def test_the_synchronous_face_finds_and_keeps_the_number_types(
    partita_account: LocalAccount,
) -> None:
    with sync.connect(partita_account, keyring=KEYRING) as db:
        readings = db.table(Reading)
        db.create_tables()
        db.raw("readings").save(RawEntity("Oslo", "0000", {"Count": Int32(5)}))
        [found] = readings.partition(place="Oslo").where(readings.c.count == 5).list()

        readings.save(evolve(found, count=6))

        assert edm_of(db.raw("readings").get("Oslo", "0000").properties["Count"]) == edm.INT32
