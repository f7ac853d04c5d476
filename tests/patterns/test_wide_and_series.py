"""Series of slots, and entities that take several rows."""

import asyncio
from dataclasses import field
from typing import Annotated, Any

import pytest

from partita.errors import InvalidPropertyError, TornReadError
from partita.patterns import (
    Database,
    ETagMismatchError,
    RawEntity,
    Series,
    Table,
    connect,
    entity,
    evolve,
    index,
)
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import ServiceKind
from partita.service.http.request import Request, Response
from support.staff import Employee, person, rows_of

YEAR = {day: day + 1 for day in range(365)}


@entity(table="meters", partition="{house}", row="{year:04d}")
class Meter:
    """Two rows: 365 days do not fit into one."""

    house: str
    year: int
    owner: str = ""
    days: Annotated[dict[int, int], Series("d{:03d}", slots=365)] = field(default_factory=dict)


by_owner = index(Meter, row="owner_{owner:esc}_{year:04d}", copy=["owner"])


@entity(table="archive", partition="{house}", row="{year:04d}")
class Archived:
    house: str
    year: int
    hours: Annotated[dict[int, float], Series("h{:04d}", slots=5000, store="blob")] = field(
        default_factory=dict
    )


@entity(table="streams", partition="{name}", row="stream")
class Stream:
    """More than ten rows: as text the tenth comes before the second."""

    name: str
    title: str = ""
    ticks: Annotated[dict[int, int], Series("t{:04d}", slots=3000)] = field(default_factory=dict)


@pytest.fixture
async def meters(db: Database) -> Table[Meter]:
    for cls in (Archived, Stream):
        db.table(cls)
    table = db.table(Meter)
    await db.create_tables()
    return table


def meter(**other: Any) -> Meter:
    return Meter(**{"house": "h", "year": 2024, **other})


async def parts(db: Database, table: str = "meters") -> list[RawEntity]:
    """Return the rows of entities, without indexes and what is hidden."""
    rows = await rows_of(db, table)
    return [row for row in rows if row.row_key[:1].isdigit() or row.row_key.startswith("stream")]


# ---------------------------------------------------------------------------------------------
# Slots


async def test_a_year_of_days_lies_in_two_rows(db: Database, meters: Table[Meter]) -> None:
    await meters.save(meter(owner="Ann", days=YEAR))

    first, second = await parts(db)

    assert (first.row_key, second.row_key) == ("2024", "2024~1")
    assert first.properties["Owner"] == "Ann"
    days = [name for row in (first, second) for name in row.properties if name.startswith("d")]
    assert sorted(days) == [f"d{day:03d}" for day in range(365)]
    assert len(first.properties) <= 252
    with db.measuring() as cost:
        assert await meters.get(house="h", year=2024) == meter(owner="Ann", days=YEAR)
    assert cost.requests == 1


async def test_one_slot_is_one_merge_of_one_row(
    db: Database, meters: Table[Meter], partita_faults: Faults
) -> None:
    saved = await meters.save(meter(days=YEAR))
    before = {row.row_key: row for row in await parts(db)}
    count = len(partita_faults.requests)

    await meters.increment(saved, "days", 300, by=10)

    after = {row.row_key: row for row in await parts(db)}
    assert after["2024"] == before["2024"]
    assert after["2024~1"].properties["d300"] == 311
    assert partita_faults.requests[count + 1].startswith(("PATCH", "MERGE"))
    assert (await meters.get(house="h", year=2024)).days == {**YEAR, 300: 311}


async def test_a_save_writes_only_the_rows_that_changed(db: Database, meters: Table[Meter]) -> None:
    saved = await meters.save(meter(days=YEAR))
    before = {row.row_key: row.etag for row in await parts(db)}

    saved = await meters.save(evolve(saved, owner="Ann"))
    between = {row.row_key: row.etag for row in await parts(db)}
    await meters.save(evolve(saved, days={**YEAR, 364: 0}))
    after = {row.row_key: row.etag for row in await parts(db)}

    assert between["2024~1"] == before["2024~1"]
    assert between["2024"] != before["2024"]
    assert after["2024~1"] != between["2024~1"]
    assert await meters.get(house="h", year=2024) == meter(owner="Ann", days={**YEAR, 364: 0})


async def test_a_save_does_not_lose_a_slot_that_was_counted_meanwhile(
    any_db: Database,
) -> None:
    meters = any_db.table(Meter)
    await any_db.create_tables()
    saved = await meters.save(meter(days={0: 1, 364: 1}))
    for slot in (0, 364):
        stale = await meters.get(house="h", year=2024)
        await meters.increment(saved, "days", slot)
        with pytest.raises(ETagMismatchError):
            await meters.save(evolve(stale, days={**stale.days, slot: 100}))

    stale = await meters.get(house="h", year=2024)
    await meters.increment(saved, "days", 364)  # lies in the second row, which this leaves alone
    await meters.save(evolve(stale, owner="Ann"))

    assert await meters.get(house="h", year=2024) == meter(owner="Ann", days={0: 2, 364: 3})


async def test_updates_and_increments_at_once_lose_nothing(any_db: Database) -> None:
    meters = any_db.table(Meter)
    await any_db.create_tables()
    saved = await meters.save(meter())

    def count(old: Meter) -> Meter:
        days = {**old.days, 1: old.days.get(1, 0) + 1, 363: old.days.get(363, 0) + 1}
        return evolve(old, days=days)

    await asyncio.gather(
        *(meters.update(count, house="h", year=2024) for _ in range(5)),
        *(meters.increment(saved, "days", 1) for _ in range(5)),
        *(meters.increment(saved, "days", 363) for _ in range(5)),
    )

    assert (await meters.get(house="h", year=2024)).days == {1: 10, 363: 10}


async def test_slots_can_be_removed_and_emptied(db: Database, meters: Table[Meter]) -> None:
    saved = await meters.save(meter(days=YEAR))

    saved = await meters.save(evolve(saved, days={7: 1}))
    assert (await meters.get(house="h", year=2024)).days == {7: 1}
    saved = await meters.patch(saved, days={})
    assert (await meters.get(house="h", year=2024)).days == {}
    await meters.delete(saved)

    assert await rows_of(db, "meters", "PartitionKey eq 'h'") == []


async def test_slots_out_of_range_are_refused(meters: Table[Meter]) -> None:
    for days in ({365: 1}, {-1: 1}):
        with pytest.raises(InvalidPropertyError, match="slots 0 to 364"):
            await meters.save(meter(days=days))
    with pytest.raises(InvalidPropertyError, match="NoneType was given"):
        await meters.save(meter(days={1: None}))


async def test_a_wide_entity_is_found_by_its_indexes(db: Database, meters: Table[Meter]) -> None:
    saved = await meters.save(meter(owner="Ann", days=YEAR))
    await meters.increment(saved, "days", 5)

    [found] = await meters.via(by_owner).range(house="h", owner="Ann").list()

    assert found.days[5] == 7
    assert await db.verify(Meter) == []


async def test_wide_entities_are_read_whole_in_pages_of_any_size(meters: Table[Meter]) -> None:
    await meters.save_all([meter(year=year, days={0: year, 364: year}) for year in range(9)])
    in_house = meters.partition(house="h")

    for size in (1, 2, 3, 5, 100):
        years: list[int] = []
        continuation = None
        while True:
            page = await in_house.page(size=size, continuation=continuation)
            assert all(each.days == {0: each.year, 364: each.year} for each in page.entities)
            assert len(page.entities) <= size
            years += [each.year for each in page.entities]
            continuation = page.continuation
            if continuation is None:
                break
        assert years == list(range(9))
    assert [each.year async for each in in_house.all().limit(4)] == [0, 1, 2, 3]
    assert await in_house.all().count() == 9


async def test_wide_entities_are_filtered_by_fields_of_any_row(meters: Table[Meter]) -> None:
    await meters.save_all([meter(year=y, owner="Ann" if y % 2 else "Bob") for y in range(6)])

    found = await meters.partition(house="h").where(meters.c.owner == "Ann").list()

    assert [each.year for each in found] == [1, 3, 5]


async def test_more_than_ten_rows_stay_in_their_order(db: Database, meters: Table[Meter]) -> None:
    streams = db.table(Stream)
    full = {tick: tick for tick in range(3000)}

    saved = await streams.save(Stream(name="s", ticks=full))
    assert len(await parts(db, "streams")) == 13
    for tick in (2999, 500, 2500, 0):
        loaded = await streams.get(name="s")
        full[tick] = -1
        saved = await streams.save(evolve(loaded, ticks={**loaded.ticks, tick: -1}))
    await streams.save(evolve(saved, title="all"))
    await streams.increment(saved, "ticks", 2600)
    full[2600] += 1

    assert await streams.get(name="s") == Stream(name="s", title="all", ticks=full)
    assert [each async for each in streams.partition(name="s")] == [await streams.get(name="s")]
    await streams.delete(await streams.get(name="s"))
    assert await rows_of(db, "streams") == []


# ---------------------------------------------------------------------------------------------
# Torn reads


async def test_rows_that_do_not_belong_together_are_not_handed_out(
    db: Database, meters: Table[Meter]
) -> None:
    await meters.save(meter(days={0: 1, 364: 1}))
    part = await db.raw("meters").get("h", "2024~1")
    torn = {**part.properties, "d364": 2, "_Stamp": 12345}
    await db.raw("meters").save(RawEntity("h", "2024~1", torn, part.etag))

    with pytest.raises(TornReadError):
        await meters.get(house="h", year=2024)
    with pytest.raises(TornReadError):
        await meters.partition(house="h").all().list()


async def test_a_missing_row_is_seen(db: Database, meters: Table[Meter]) -> None:
    await meters.save(meter(days={0: 1, 364: 1}))
    await db.raw("meters").delete(await db.raw("meters").get("h", "2024~1"))

    with pytest.raises(TornReadError):
        await meters.get(house="h", year=2024)


async def test_a_read_that_met_a_write_is_made_again(
    partita_account: LocalAccount, db: Database, meters: Table[Meter]
) -> None:
    """The reader gets a first row from before the write and a second one from after it."""
    saved = await meters.save(meter(days={0: 1, 364: 1}))
    old = str((await db.raw("meters").get("h", "2024")).properties["_Parts"]).encode()
    await meters.save(evolve(saved, days={0: 2, 364: 2}))
    new = str((await db.raw("meters").get("h", "2024")).properties["_Parts"]).encode()
    torn: list[str] = []

    async def around(_: ServiceKind, request: Request, respond: Respond) -> Response:
        response = await respond(request)
        if torn or not request.path.endswith("meters()"):
            return response
        torn.append(request.path)
        body = bytes(response.body).replace(b'"_Parts":"' + new, b'"_Parts":"' + old)
        return Response(response.status, response.headers, body)

    partita_account.around = around

    found = await meters.get(house="h", year=2024)

    assert old != new
    assert len(torn) == 1
    assert found.days == {0: 2, 364: 2}


async def test_readers_beside_writers_never_see_half_of_a_write(any_db: Database) -> None:
    meters = any_db.table(Meter)
    await any_db.create_tables()
    saved = await meters.save(meter(days={0: 0, 364: 0}))
    seen: list[dict[int, int]] = []

    async def write() -> None:
        current = saved
        for value in range(1, 9):
            current = await meters.save(evolve(current, days={0: value, 364: value}))

    async def read() -> None:
        for _ in range(12):
            seen.append((await meters.get(house="h", year=2024)).days)
            seen.extend([each.days async for each in meters.partition(house="h")])

    await asyncio.gather(write(), read(), read())

    assert all(days[0] == days[364] for days in seen)


# ---------------------------------------------------------------------------------------------
# A series in a blob


async def test_a_series_can_lie_in_a_blob(any_db: Database) -> None:
    archive = any_db.table(Archived)
    await any_db.create_tables()
    hours = {hour: hour / 2 for hour in range(0, 5000, 7)}

    saved = await archive.save(Archived(house="h", year=2024, hours=hours))
    assert (await archive.get(house="h", year=2024)).hours == hours
    became = await archive.increment(saved, "hours", 3, by=1.5)
    await any_db.drain()

    assert became == 1.5
    assert (await archive.get(house="h", year=2024)).hours == {**hours, 3: 1.5}
    [row] = await rows_of(any_db, "archive")
    assert "Hours" in row.properties
    assert not any(name.startswith("h0") for name in row.properties)


async def test_increments_of_a_series_in_a_blob_lose_nothing(any_db: Database) -> None:
    archive = any_db.table(Archived)
    await any_db.create_tables()
    saved = await archive.save(Archived(house="h", year=2024))

    await asyncio.gather(*(archive.increment(saved, "hours", n % 3, by=1.0) for n in range(9)))

    assert (await archive.get(house="h", year=2024)).hours == {0: 3.0, 1: 3.0, 2: 3.0}


async def test_the_year_of_an_employee_survives_every_verb(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, direct=True) as db:
        employees = db.table(Employee)
        await db.create_tables()
        saved = await employees.save(person(1, messages=YEAR))
        patched = await employees.patch(saved, age=1)
        moved = await employees.move(patched, id=2)
        there = await employees.move(moved, dept="Marketing")
        await employees.upsert(evolve(there, age=2))

        assert (await employees.get(dept="Marketing", id=2)).messages == YEAR
