"""Wide entities and series: merges, views, copies and projections of what takes several rows."""

import asyncio
from dataclasses import field
from typing import Annotated, Any

import pytest

from partita.errors import InvalidPropertyError
from partita.patterns import Database, Series, connect, entity, evolve, index, view
from partita.service.hosting.in_process import LocalAccount
from support.entities import Wide, rows


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


@entity(table="meters", partition="{site}", row="{id:04d}")
class Meter:
    site: str
    id: int
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


seen: list[Any] = []


@entity(table="watched", partition="{site}", row="{id:04d}")
class Watched:
    site: str
    id: int
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


@view(Watched)
def note_watched(_db: Any, _key: Any, entity: Any) -> None:
    seen.append(entity)


@entity(table="copied", partition="{site}", row="m_{id:04d}")
class Copied:
    site: str
    id: int
    name: str
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


copied_by_name = index(Copied, row="name_{name:esc}_{id:04d}", copy=["hours"])


async def test_upsert_with_merge_keeps_the_slots_that_it_does_not_name(db: Database) -> None:
    meters = db.table(Meter)
    await db.create_tables()
    await meters.save(Meter(site="s", id=1, hours={1: 1, 2: 2}))

    await meters.upsert(Meter(site="s", id=1, hours={2: 5}), merge=True)

    assert (await meters.get(site="s", id=1)).hours == {1: 1, 2: 5}


async def test_increment_of_a_series_is_shown_to_views(db: Database) -> None:
    watched = db.table(Watched)
    await db.create_tables()
    saved = await watched.save(Watched(site="s", id=1))
    await db.drain()

    await watched.increment(saved, "hours", 3)
    await db.drain()

    assert seen[-1].hours == {3: 1}


async def test_increment_of_a_series_that_an_index_copies_reaches_the_copy(db: Database) -> None:
    table = db.table(Copied)
    await db.create_tables()
    saved = await table.save(Copied(site="s", id=1, name="a"))

    await table.increment(saved, "hours", 3)

    assert await db.verify(Copied) == []


async def test_an_entity_of_more_than_ten_rows_is_read_and_written(db: Database) -> None:
    table = db.table(Wide)
    await db.create_tables()
    minutes = dict.fromkeys(range(0, 3000, 7), 1)
    await table.save(Wide(site="s", id=1, minutes=minutes, name="a"))

    loaded = await table.get(site="s", id=1)
    assert loaded.minutes == minutes
    for slot in (3, 300, 700, 2500, 2990):
        loaded = await table.save(evolve(loaded, minutes={**loaded.minutes, slot: 9}))
        loaded = await table.get(site="s", id=1)
        assert loaded.minutes[slot] == 9
    await table.delete(loaded)

    assert await rows(db, "wide") == []


async def test_a_projection_of_a_wide_entity_has_all_of_a_field(db: Database) -> None:
    table = db.table(Wide)
    await db.create_tables()
    await table.save(Wide(site="s", id=1, minutes={1: 1, 2999: 2}, name="a"))

    [found] = await table.partition(site="s").all().select("minutes", "name").list()

    assert (found.minutes, found.name) == ({1: 1, 2999: 2}, "a")


@entity(table="narrow", partition="{site}", row="n_{id:04d}", name="Reading")
class ReadingWide:
    site: str
    id: int
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=500)] = field(default_factory=dict)


@entity(table="narrow", partition="{site}", row="n_{id:04d}", name="Reading")
class ReadingNarrow:
    site: str
    id: int
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=100)] = field(default_factory=dict)


async def test_a_type_that_became_narrower_reads_and_writes_what_is_stored(
    partita_account: LocalAccount,
) -> None:
    filled = dict.fromkeys(range(500), 1)
    async with connect(partita_account, direct=True) as old:
        table = old.table(ReadingWide)
        await old.create_tables()
        await table.save(ReadingWide(site="s", id=1, slots=filled))
    async with connect(partita_account, direct=True) as new:
        narrow = new.table(ReadingNarrow)
        loaded = await narrow.get(site="s", id=1)
        assert loaded.slots == dict.fromkeys(range(100), 1)
        assert [each.id for each in await narrow.partition(site="s").all().list()] == [1]
        await narrow.save(evolve(loaded, slots={**loaded.slots, 5: 7}))
        assert (await narrow.get(site="s", id=1)).slots[5] == 7
    async with connect(partita_account, direct=True) as old:
        table = old.table(ReadingWide)
        assert (await table.get(site="s", id=1)).slots == {**filled, 5: 7}


@entity(table="shifted", partition="{site}", row="n_{id:04d}", name="Shifted")
class ShiftedBefore:
    site: str
    id: int
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=300)] = field(default_factory=dict)


@entity(table="shifted", partition="{site}", row="n_{id:04d}", name="Shifted")
class ShiftedAfter:
    site: str
    id: int
    name: str = ""
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=300)] = field(default_factory=dict)


async def test_increment_finds_a_slot_in_the_row_where_the_type_had_it_before(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, direct=True) as old:
        before = old.table(ShiftedBefore)
        await old.create_tables()
        await before.save(ShiftedBefore(site="s", id=1, slots=dict.fromkeys(range(300), 7)))
    async with connect(partita_account, direct=True) as new:
        after = new.table(ShiftedAfter)
        loaded = await after.get(site="s", id=1)

        for slot in (0, 245, 246, 299):
            assert await after.increment(loaded, "slots", slot) == 8

        stored = await after.get(site="s", id=1)
        assert stored.slots == dict.fromkeys(range(300), 7) | dict.fromkeys((0, 245, 246, 299), 8)


async def test_many_wide_entities_are_counted_by_keys_and_read_at_once(db: Database) -> None:
    table = db.table(Wide)
    await db.create_tables()
    for number in range(12):
        await table.save(Wide(site="s", id=number, minutes={2999: number}))

    with db.measuring() as cost:
        assert await table.partition(site="s").all().count() == 12
    assert cost.requests == 1
    found = await table.partition(site="s").all().list()
    assert [each.minutes[2999] for each in found] == list(range(12))


@entity(table="days", partition="{site}", row="{id:06d}_01", type_property=None, single_row=True)
class FullRow:
    site: str
    id: int
    days: Annotated[dict[int, int], Series("M{:03d}", slots=252, first=1)] = field(
        default_factory=dict
    )


async def test_a_single_row_has_all_properties_that_the_service_allows(any_db: Database) -> None:
    table = any_db.table(FullRow)
    await any_db.create_tables()
    full = dict.fromkeys(range(1, 253), 7)

    saved = await table.save(FullRow(site="s", id=1, days=full))
    saved = await table.save(evolve(saved, days={**full, 252: 8}))
    assert await table.increment(saved, "days", 252) == 9

    assert (await table.get(site="s", id=1)).days == {**full, 252: 9}
    [stored] = await any_db.raw("days").query().list()
    assert stored.properties == {f"M{day:03d}": 7 for day in range(1, 252)} | {"M252": 9}


async def test_a_conflicting_increment_of_a_single_row_is_counted(db: Database) -> None:
    table = db.table(FullRow)
    await db.create_tables()
    saved = await table.save(FullRow(site="s", id=1, days={1: 0}))

    await asyncio.gather(*(table.increment(saved, "days", 1) for _ in range(5)))

    assert (await table.get(site="s", id=1)).days == {1: 5}


@pytest.mark.parametrize("slot", [0, 253])
async def test_slots_are_numbered_from_the_first_one(db: Database, slot: int) -> None:
    table = db.table(FullRow)
    await db.create_tables()

    with pytest.raises(InvalidPropertyError, match="has slots 1 to 252"):
        await table.save(FullRow(site="s", id=1, days={slot: 1}))
