"""The guide's data series, wide entities and large entities patterns, claim by claim."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import field
from typing import Annotated

import pytest

from guide.stored import keys_in, opened
from partita.clock import ManualClock, SystemClock
from partita.errors import ChecksumError, DefinitionError, InvalidPropertyError, TornReadError
from partita.patterns import (
    Database,
    EntityNotFoundError,
    ETagMismatchError,
    InBlob,
    Series,
    Table,
    connect,
    entity,
    entity_type,
    evolve,
)
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount


class CrashError(Exception):
    """The process ends here."""


# ---------------------------------------------------------------------------------------------
# Data series pattern


@entity(table="Messages", partition="{dept}", row="{id:06d}_{day}")
class Activity:
    dept: str
    id: int
    day: str
    note: str = ""
    hours: Annotated[dict[int, int], Series("Hour{:02d}", slots=24)] = field(default_factory=dict)


@entity(table="Readings", partition="{site}", row="{sensor:06d}")
class Readings:
    site: str
    sensor: int
    minutes: Annotated[dict[int, float], Series("m{:04d}", slots=1440, store="blob")] = field(
        default_factory=dict
    )


@pytest.fixture
async def activity(partita_db: Database) -> Table[Activity]:
    table = (await opened(partita_db, Activity)).table(Activity)
    await table.save(Activity(dept="Sales", id=123, day="20140731", hours={9: 4, 10: 7}))
    return table


KEY = {"dept": "Sales", "id": 123, "day": "20140731"}


class TestDataSeriesPattern:
    async def test_a_property_holds_the_count_of_each_hour(
        self, partita_db: Database, activity: Table[Activity]
    ) -> None:
        stored = await partita_db.raw("Messages").get("Sales", "000123_20140731")

        hours = {name: n for name, n in stored.properties.items() if name.startswith("Hour")}
        assert hours == {"Hour09": 4, "Hour10": 7}

    async def test_all_values_of_a_chart_are_one_request_for_one_entity(
        self, partita_db: Database, activity: Table[Activity]
    ) -> None:
        with partita_db.measuring() as cost:
            found = await activity.get(**KEY)

        assert found.hours == {9: 4, 10: 7}
        assert (cost.requests, cost.entities) == (1, 1)

    async def test_one_hour_is_counted_by_a_merge_of_one_property(
        self, partita_db: Database, activity: Table[Activity], partita_faults: Faults
    ) -> None:
        entity = await activity.get(**KEY)
        partita_faults.requests.clear()

        assert await activity.increment(entity, "hours", 9) == 5
        assert await activity.increment(entity, "hours", 23, by=3) == 3

        assert [line.split(" ")[0] for line in partita_faults.requests] == ["GET", "PATCH"] * 2
        assert (await activity.get(**KEY)).hours == {9: 5, 10: 7, 23: 3}

    async def test_a_merge_leaves_every_other_property_as_it_is(
        self, activity: Table[Activity]
    ) -> None:
        loaded = await activity.get(**KEY)
        await activity.patch(loaded, note="changed by another")

        await activity.increment(loaded, "hours", 9)

        found = await activity.get(**KEY)
        assert (found.note, found.hours[9]) == ("changed by another", 5)

    async def test_24_writers_of_different_hours_lose_nothing(
        self, activity: Table[Activity]
    ) -> None:
        loaded = await activity.get(**KEY)

        await asyncio.gather(*(activity.increment(loaded, "hours", hour) for hour in range(24)))

        expected = dict.fromkeys(range(24), 1) | {9: 5, 10: 8}
        assert (await activity.get(**KEY)).hours == expected

    async def test_writers_of_the_same_hour_need_the_etag_and_lose_nothing_either(
        self, activity: Table[Activity]
    ) -> None:
        loaded = await activity.get(**KEY)

        await asyncio.gather(*(activity.increment(loaded, "hours", 9) for _ in range(8)))

        assert (await activity.get(**KEY)).hours[9] == 12

    async def test_a_count_whose_answer_was_lost_is_counted_once(
        self, activity: Table[Activity], partita_faults: Faults
    ) -> None:
        loaded = await activity.get(**KEY)
        partita_faults.lose_answers(match="PATCH")

        assert await activity.increment(loaded, "hours", 9) == 5
        assert (await activity.get(**KEY)).hours[9] == 5

    async def test_a_whole_series_is_saved_under_the_etag_it_was_read_with(
        self, activity: Table[Activity]
    ) -> None:
        first, second = await activity.get(**KEY), await activity.get(**KEY)
        await activity.save(evolve(first, hours={9: 100}))

        with pytest.raises(ETagMismatchError):
            await activity.save(evolve(second, hours={9: 200}))

        assert (await activity.get(**KEY)).hours == {9: 100}

    async def test_an_hour_that_is_not_there_is_refused(self, activity: Table[Activity]) -> None:
        loaded = await activity.get(**KEY)

        with pytest.raises(InvalidPropertyError):
            await activity.increment(loaded, "hours", 24)

    async def test_a_series_that_fits_into_no_entity_lies_in_a_blob(
        self, partita_account: LocalAccount, partita_db: Database
    ) -> None:
        readings = (await opened(partita_db, Readings)).table(Readings)
        day = {minute: minute / 10 for minute in range(1440)}

        await readings.save(Readings(site="Oslo", sensor=7, minutes=day))
        with partita_db.measuring() as cost:
            found = await readings.get(site="Oslo", sensor=7)

        assert found.minutes == day
        assert cost.requests == 2
        container = partita_account.blobs.get_container_client("partita-large")
        assert len(list(container.list_blob_names())) == 1


# ---------------------------------------------------------------------------------------------
# Wide entities pattern


@entity(table="Years", partition="{dept}", row="{id:06d}")
class Year:
    dept: str
    id: int
    name: str = ""
    days: Annotated[dict[int, int], Series("Day{:03d}", slots=365)] = field(default_factory=dict)


FULL = {day: day + 1 for day in range(365)}


@pytest.fixture
async def years(partita_db: Database) -> Table[Year]:
    table = (await opened(partita_db, Year)).table(Year)
    await table.save(Year(dept="Sales", id=123, name="Jun", days=FULL))
    await table.save(Year(dept="Sales", id=124, name="Ken", days={1: 1}))
    return table


class TestWideEntitiesPattern:
    async def test_an_entity_of_365_days_is_two_rows_that_lie_together(
        self, partita_db: Database, years: Table[Year]
    ) -> None:
        assert await keys_in(partita_db, "Years") == [
            "Sales/000123",
            "Sales/000123~1",
            "Sales/000124",
            "Sales/000124~1",
        ]

    async def test_no_row_has_more_than_252_properties(
        self, partita_db: Database, years: Table[Year]
    ) -> None:
        rows = [each async for each in partita_db.raw("Years").query("PartitionKey eq 'Sales'")]

        assert all(len(row.properties) <= 252 for row in rows)

    async def test_the_whole_entity_is_one_range_query_where_the_guide_needs_two_requests(
        self, partita_db: Database, years: Table[Year]
    ) -> None:
        with partita_db.measuring() as cost:
            found = await years.get(dept="Sales", id=123)

        assert (found.name, found.days) == ("Jun", FULL)
        assert (cost.requests, cost.entities) == (1, 2)

    async def test_one_day_is_changed_by_one_merge_of_the_row_that_holds_it(
        self, partita_db: Database, years: Table[Year], partita_faults: Faults
    ) -> None:
        jun = await years.get(dept="Sales", id=123)
        partita_faults.requests.clear()

        assert await years.increment(jun, "days", 364) == 366

        merges = [line for line in partita_faults.requests if line.startswith("PATCH")]
        assert len(partita_faults.requests) == 2
        assert len(merges) == 1
        assert "000123~1" in merges[0]
        assert (await years.get(dept="Sales", id=123)).days == FULL | {364: 366}

    async def test_a_change_of_both_rows_is_one_group(
        self, partita_db: Database, years: Table[Year]
    ) -> None:
        jun = await years.get(dept="Sales", id=123)

        with partita_db.measuring() as cost:
            await years.save(evolve(jun, days={0: 1, 364: 1}))

        assert cost.requests == 1
        assert (await years.get(dept="Sales", id=123)).days == {0: 1, 364: 1}

    async def test_a_change_behind_the_back_of_either_row_is_noticed(
        self, years: Table[Year]
    ) -> None:
        jun = await years.get(dept="Sales", id=123)
        await years.increment(jun, "days", 364)

        with pytest.raises(ETagMismatchError):
            await years.save(evolve(jun, days={}))

    async def test_a_read_between_two_writes_is_never_half_of_each(
        self, years: Table[Year]
    ) -> None:
        stop = False

        async def write() -> None:
            nonlocal stop
            for number in range(12):
                await years.update(
                    lambda year, n=number: evolve(year, days={0: n, 364: n}),  # type: ignore[misc]
                    dept="Sales",
                    id=123,
                )
            stop = True

        async def read() -> list[tuple[int, int]]:
            seen: list[tuple[int, int]] = []
            while not stop:
                found = await years.get(dept="Sales", id=123)
                seen.append((found.days[0], found.days[364]))
            return seen

        await years.update(lambda year: evolve(year, days={0: 0, 364: 0}), dept="Sales", id=123)
        _, seen = await asyncio.gather(write(), read())

        assert seen
        assert all(first == last for first, last in seen)

    async def test_a_row_that_a_stranger_removed_is_reported_and_not_made_up(
        self, partita_db: Database, years: Table[Year]
    ) -> None:
        raw = partita_db.raw("Years")
        await raw.delete(await raw.get("Sales", "000123~1"))

        with pytest.raises(TornReadError):
            await years.get(dept="Sales", id=123)

    async def test_wide_entities_come_whole_from_ranges_cut_anywhere_by_pages(
        self, years: Table[Year], partita_faults: Faults
    ) -> None:
        partita_faults.hostile_paging(seed=3)

        found = await years.partition(dept="Sales").all().list()

        assert [(each.id, len(each.days)) for each in found] == [(123, 365), (124, 1)]

    async def test_deleting_the_entity_deletes_all_its_rows(
        self, partita_db: Database, years: Table[Year]
    ) -> None:
        await years.delete(await years.get(dept="Sales", id=123))

        assert await keys_in(partita_db, "Years") == ["Sales/000124", "Sales/000124~1"]

    async def test_more_rows_than_a_group_holds_are_refused_when_declared(self) -> None:
        with pytest.raises(DefinitionError) as refused:

            @entity(table="Decades", partition="{dept}", row="{id:06d}")
            class Decades:
                dept: str
                id: int
                sent: Annotated[dict[int, int], Series("s{:04d}", slots=5_000)]
                received: Annotated[dict[int, int], Series("r{:04d}", slots=5_000)]
                missed: Annotated[dict[int, int], Series("m{:04d}", slots=5_000)]
                deleted: Annotated[dict[int, int], Series("d{:04d}", slots=5_000)]
                answered: Annotated[dict[int, int], Series("a{:04d}", slots=5_000)]

        assert refused.value.code == "EntityTooWide"
        assert 'store="blob"' in refused.value.hint

    async def test_room_is_left_for_what_the_library_itself_stores(self) -> None:
        @entity(table="Brims", partition="{dept}", row="{id:06d}")
        class Brim:
            dept: str
            id: int
            days: Annotated[dict[int, int], Series("d{:05d}", slots=252)]

        # The guide counts 252 properties; type, version and seals need some of them.
        assert entity_type(Brim).layout.rows == 2


# ---------------------------------------------------------------------------------------------
# Large entities pattern


@entity(table="People", partition="{dept}", row="{id:06d}")
class Person:
    dept: str
    id: int
    name: str
    photo: Annotated[bytes | None, InBlob] = None
    essay: Annotated[str | None, InBlob("essays")] = None


PHOTO = bytes(range(256)) * 8 * 1024
"""Two MiB: more than an entity may hold."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().ticks())


@pytest.fixture
def account(partita_account: LocalAccount) -> LocalAccount:
    return partita_account


@pytest.fixture
async def db(account: LocalAccount, clock: ManualClock) -> AsyncIterator[Database]:
    async with connect(account, clock=clock) as opened_db:
        yield await opened(opened_db, Person)


@pytest.fixture
async def people(db: Database) -> Table[Person]:
    return db.table(Person)


@pytest.fixture
def faults(account: LocalAccount) -> Faults:
    return Faults(account)


def blobs_in(account: LocalAccount, container: str = "partita-large") -> list[str]:
    return list(account.blobs.get_container_client(container).list_blob_names())


class TestLargeEntitiesPattern:
    async def test_a_property_above_1_mib_lies_in_a_blob_that_the_entity_names(
        self, account: LocalAccount, db: Database, people: Table[Person]
    ) -> None:
        await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        stored = await db.raw("People").get("Sales", "000007")
        (name,) = blobs_in(account)
        assert name in str(stored.properties["Photo"])
        assert name.startswith("people/Sales/000007/Photo/")
        assert (await people.get(dept="Sales", id=7)).photo == PHOTO

    async def test_a_complete_entity_is_two_requests(
        self, db: Database, people: Table[Person]
    ) -> None:
        await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        with db.measuring() as whole:
            await people.get(dept="Sales", id=7)
        with db.measuring() as name_only:
            await people.partition(dept="Sales").all().select("name").list()

        assert (whole.requests, name_only.requests) == (2, 1)

    async def test_the_blob_is_written_before_the_entity(
        self, people: Table[Person], faults: Faults
    ) -> None:
        await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        services = ["blob" if "partita-large" in line else "table" for line in faults.requests]
        assert services == ["blob", "table"]

    async def test_a_crash_between_blob_and_entity_leaves_an_orphan_and_no_broken_entity(
        self, account: LocalAccount, clock: ManualClock, db: Database, faults: Faults
    ) -> None:
        faults.fail_next("/People", error=CrashError())
        with pytest.raises(CrashError):
            await db.table(Person).save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        assert await db.table(Person).get_or_none(dept="Sales", id=7) is None
        assert len(blobs_in(account)) == 1

    async def test_orphans_are_collected_after_a_grace_and_named_blobs_never(
        self, account: LocalAccount, clock: ManualClock, db: Database, faults: Faults
    ) -> None:
        people = db.table(Person)
        await people.save(Person(dept="Sales", id=1, name="Ann", photo=PHOTO))
        faults.fail_next("/People", error=CrashError())
        with pytest.raises(CrashError):
            await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        assert await db.collect_blobs() == 0
        clock.advance(3601)  # the clock of the database: the services have their own
        assert await db.collect_blobs() == 1

        assert (await people.get(dept="Sales", id=1)).photo == PHOTO
        assert [name.split("/")[2] for name in blobs_in(account)] == ["000001"]

    async def test_a_changed_value_is_a_new_blob_and_the_old_one_goes_later(
        self, account: LocalAccount, db: Database, people: Table[Person]
    ) -> None:
        jun = await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        await people.save(evolve(jun, photo=b"small"))
        assert len(blobs_in(account)) == 2
        await db.drain()

        assert len(blobs_in(account)) == 1
        assert (await people.get(dept="Sales", id=7)).photo == b"small"

    async def test_a_value_that_did_not_change_is_not_sent_again(
        self, db: Database, people: Table[Person]
    ) -> None:
        jun = await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        with db.measuring() as cost:
            await people.save(evolve(jun, name="Jun Cao"))

        assert cost.requests == 1

    async def test_a_deletion_removes_the_entity_first_and_the_blob_eventually(
        self, account: LocalAccount, db: Database, people: Table[Person]
    ) -> None:
        jun = await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))

        await people.delete(jun)
        with pytest.raises(EntityNotFoundError):
            await people.get(dept="Sales", id=7)
        assert len(blobs_in(account)) == 1
        await db.drain()

        assert blobs_in(account) == []

    async def test_a_refused_save_leaves_the_stored_value_alone(
        self, account: LocalAccount, db: Database, people: Table[Person]
    ) -> None:
        jun = await people.save(Person(dept="Sales", id=7, name="Jun", photo=b"first"))
        await people.patch(jun, name="Jun Cao")

        with pytest.raises(ETagMismatchError):
            await people.save(evolve(jun, photo=b"second"))
        await db.drain()

        assert (await people.get(dept="Sales", id=7)).photo == b"first"

    async def test_content_that_is_not_what_was_written_is_refused(
        self, account: LocalAccount, people: Table[Person]
    ) -> None:
        await people.save(Person(dept="Sales", id=7, name="Jun", photo=PHOTO))
        (name,) = blobs_in(account)
        account.blobs.get_blob_client("partita-large", name).upload_blob(b"forged", overwrite=True)

        with pytest.raises(ChecksumError):
            await people.get(dept="Sales", id=7)

    async def test_a_reader_during_a_replacement_gets_the_old_or_the_new_value(
        self, db: Database, people: Table[Person]
    ) -> None:
        await people.save(Person(dept="Sales", id=7, name="Jun", photo=b"0" * 1000))

        async def write() -> None:
            for number in range(1, 8):
                content = str(number).encode() * 1000
                await people.update(
                    lambda jun, photo=content: evolve(jun, photo=photo),  # type: ignore[misc]
                    dept="Sales",
                    id=7,
                )
                await db.drain(sweep=False)

        async def read() -> list[int]:
            found = [(await people.get(dept="Sales", id=7)).photo or b"" for _ in range(20)]
            return [len(set(photo)) for photo in found]

        _, seen = await asyncio.gather(write(), read())
        assert set(seen) == {1}

    async def test_text_may_lie_in_a_container_of_its_own(
        self, account: LocalAccount, people: Table[Person]
    ) -> None:
        await people.save(Person(dept="Sales", id=7, name="Jun", essay="Ł" * 600_000))

        assert len(blobs_in(account, "essays")) == 1
        assert (await people.get(dept="Sales", id=7)).essay == "Ł" * 600_000

    async def test_any_key_is_a_name_for_a_blob(
        self, account: LocalAccount, people: Table[Person]
    ) -> None:
        for dept in ("R&D", "..", "a b%2F", "Łódź"):
            await people.save(Person(dept=dept, id=7, name="Jun", photo=b"x"))
            assert (await people.get(dept=dept, id=7)).photo == b"x"
