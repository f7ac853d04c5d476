"""Versions that leave the process: `etag_of`, `if_match`, and merges by key."""

import asyncio
import dataclasses
import pickle
from datetime import UTC, timedelta
from typing import Annotated, Any

import msgspec
import pytest

from partita.errors import (
    EntityNotFoundError,
    ETagMismatchError,
    ProjectionError,
    UsageError,
)
from partita.patterns import (
    Database,
    RawEntity,
    Series,
    Table,
    connect,
    entity,
    etag_of,
    evolve,
    index,
    sync,
    timestamp_of,
)
from partita.service.hosting.in_process import LocalAccount


@entity(table="pages", partition="{site}", row="{id:04d}")
@dataclasses.dataclass
class Page:
    site: str
    id: int
    title: str
    hits: int = 0
    note: str | None = None
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = dataclasses.field(
        default_factory=dict
    )


@entity(table="people", partition="{team}", row="is_{id:04d}")
class Person:
    team: str
    id: int
    email: str
    age: int = 0


by_email = index(Person, row="by_{email}", unique=True)


@entity(table="wide", partition="{site}", row="{id:04d}")
class Year:
    site: str
    id: int
    days: Annotated[dict[int, int], Series("d{:03d}", slots=366)] = dataclasses.field(
        default_factory=dict
    )


@pytest.fixture
def account(partita_account: LocalAccount) -> LocalAccount:
    return partita_account


async def opened(db: Database, *types: type[Any]) -> None:
    for cls in types:
        db.table(cls)
    await db.create_tables()


def through_json(page: Page) -> Page:
    return msgspec.json.decode(msgspec.json.encode(page), type=Page)


async def saved(db: Database) -> tuple[Table[Page], Page]:
    await opened(db, Page)
    pages = db.table(Page)
    return pages, await pages.save(Page("www", 1, "Start"))


@pytest.mark.parametrize("carry", [through_json, lambda page: pickle.loads(pickle.dumps(page))])
async def test_an_entity_from_outside_is_saved_with_its_etag(
    account: LocalAccount, carry: Any
) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)
        outside = carry(await pages.get(site="www", id=1))
        outside.title = "Home"

        after = await pages.save(outside, if_match=etag_of(page))

        assert (await pages.get(site="www", id=1)).title == "Home"
        assert etag_of(after) != etag_of(page)


async def test_an_old_version_is_not_saved(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)
        old = etag_of(page)
        await pages.save(evolve(page, title="Changed"))

        with pytest.raises(ETagMismatchError) as caught:
            await pages.save(through_json(page), if_match=old)

        assert caught.value.entity == page
        assert (await pages.get(site="www", id=1)).title == "Changed"


async def test_saving_a_version_keeps_properties_that_the_class_does_not_know(
    account: LocalAccount,
) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)
        await db.raw("pages").upsert(RawEntity("www", "0001", {"Colour": "red"}), merge=True)
        now = await pages.get(site="www", id=1)

        await pages.save(through_json(page), if_match=etag_of(now))

        assert (await db.raw("pages").get("www", "0001")).properties["Colour"] == "red"


async def test_saving_a_version_moves_its_index_rows(account: LocalAccount) -> None:
    async with connect(account) as db:
        await opened(db, Person)
        people = db.table(Person)
        person = await people.save(Person(team="a", id=1, email="old@x"))

        await people.save(Person(team="a", id=1, email="new@x"), if_match=etag_of(person))

        assert await people.via(by_email).get_or_none(team="a", email="old@x") is None
        assert (await people.via(by_email).get(team="a", email="new@x")).id == 1


async def test_any_version_must_exist(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)

        await pages.save(through_json(evolve(page, title="Any")), if_match="*")
        with pytest.raises(EntityNotFoundError):
            await pages.save(Page("www", 2, "New"), if_match="*")

        assert (await pages.get(site="www", id=1)).title == "Any"


async def test_a_version_is_deleted_once(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)
        old = etag_of(page)
        now = await pages.save(evolve(page, title="Changed"))

        with pytest.raises(ETagMismatchError):
            await pages.delete(through_json(page), if_match=old)
        await pages.delete(through_json(page), if_match=etag_of(now))

        assert await pages.get_or_none(site="www", id=1) is None


async def test_every_change_of_a_wide_entity_changes_its_etag(account: LocalAccount) -> None:
    async with connect(account) as db:
        await opened(db, Year)
        years = db.table(Year)
        year = await years.save(Year(site="www", id=1, days={0: 1, 365: 1}))
        before = etag_of(await years.get(site="www", id=1))

        await years.increment(year, "days", 365)

        now = await years.get(site="www", id=1)
        assert etag_of(now) != before
        await years.save(Year(site="www", id=1, days={7: 7}), if_match=etag_of(now))
        assert (await years.get(site="www", id=1)).days == {7: 7}


async def test_an_object_that_was_not_loaded_has_no_etag() -> None:
    with pytest.raises(UsageError) as caught:
        etag_of(Page("www", 1, "Start"))

    assert caught.value.code == "NotLoaded"
    assert timestamp_of(Page("www", 1, "Start")) is None


async def test_a_projection_has_no_etag(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, _ = await saved(db)
        partial = await pages.partition(site="www").all().select("title").first()

        with pytest.raises(ProjectionError):
            etag_of(partial)


@pytest.mark.parametrize("direct", [False, True])
async def test_the_timestamp_after_a_save_is_the_one_that_is_read(
    account: LocalAccount, direct: bool
) -> None:
    async with connect(account, direct=direct) as db:
        pages, page = await saved(db)

        read = timestamp_of(await pages.get(site="www", id=1))

        written = timestamp_of(page)
        assert read is not None
        assert written is not None
        assert read.tzinfo is not None
        assert abs(read.astimezone(UTC) - written) < timedelta(microseconds=1)


# ---------------------------------------------------------------------------------------------
# By key


@pytest.mark.parametrize("direct", [False, True])
async def test_a_patch_by_key_is_one_request(account: LocalAccount, direct: bool) -> None:
    async with connect(account, direct=direct) as db:
        pages, _ = await saved(db)

        with db.measuring() as cost:
            etag = await pages.patch_by_key({"site": "www", "id": 1}, note="seen")

        now = await pages.get(site="www", id=1)
        assert cost.requests == 1
        assert (now.title, now.note) == ("Start", "seen")
        assert etag_of(now) == etag


async def test_a_patch_by_key_with_an_old_etag_is_refused(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)
        old = etag_of(page)

        await pages.patch_by_key({"site": "www", "id": 1}, if_match=old, note="one")
        with pytest.raises(ETagMismatchError):
            await pages.patch_by_key({"site": "www", "id": 1}, if_match=old, note="two")

        assert (await pages.get(site="www", id=1)).note == "one"


async def test_a_patch_by_key_writes_one_slot_of_a_series(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)
        await pages.save(evolve(page, hours={3: 30, 4: 40}))

        with db.measuring() as cost:
            await pages.patch_by_key({"site": "www", "id": 1}, hours={4: 41})

        assert cost.requests == 1
        assert (await pages.get(site="www", id=1)).hours == {3: 30, 4: 41}


async def test_a_patch_by_key_of_a_missing_entity_creates_it_only_on_request(
    account: LocalAccount,
) -> None:
    async with connect(account) as db:
        pages, _ = await saved(db)
        key = {"site": "www", "id": 9}

        with pytest.raises(EntityNotFoundError):
            await pages.patch_by_key(key, title="New")
        with pytest.raises(UsageError, match="no default"):
            await pages.patch_by_key(key, create=True, hits=1)
        await pages.patch_by_key(key, create=True, title="New")

        assert await pages.get(site="www", id=9) == Page("www", 9, "New")


async def test_a_patch_by_key_removes_a_property(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, page = await saved(db)
        await pages.save(evolve(page, note="seen"))

        await pages.patch_by_key({"site": "www", "id": 1}, note=None)

        assert (await pages.get(site="www", id=1)).note is None


async def test_a_patch_by_key_updates_indexes(account: LocalAccount) -> None:
    async with connect(account) as db:
        await opened(db, Person)
        people = db.table(Person)
        person = await people.save(Person(team="a", id=1, email="old@x"))

        etag = await people.patch_by_key(
            {"team": "a", "id": 1}, if_match=etag_of(person), email="new@x"
        )

        found = await people.via(by_email).get(team="a", email="new@x")
        assert found.id == 1
        assert etag_of(await people.get(team="a", id=1)) == etag


async def test_a_patch_by_key_does_not_change_keys(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, _ = await saved(db)

        with pytest.raises(UsageError, match="key field"):
            await pages.patch_by_key({"site": "www", "id": 1}, site="other")


async def test_an_increment_creates_the_entity_on_request(account: LocalAccount) -> None:
    async with connect(account) as db:
        pages, _ = await saved(db)
        new = Page("www", 5, "New", hits=2)

        with pytest.raises(EntityNotFoundError):
            await pages.increment(new, "hits")
        first = await pages.increment(new, "hits", create=True)
        second = await pages.increment(new, "hits", create=True)
        slot = await pages.increment(Page("www", 6, "New"), "hours", 7, by=3, create=True)

        assert (first, second, slot) == (3, 4, 3)
        assert (await pages.get(site="www", id=6)).hours == {7: 3}


async def test_increments_that_create_at_the_same_time_are_all_counted(
    account: LocalAccount,
) -> None:
    async with connect(account) as db:
        pages, _ = await saved(db)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(pages.increment(Page("www", 7, "New"), "hits", create=True))

        assert (await pages.get(site="www", id=7)).hits == 8


def test_the_synchronous_api_has_the_same_conditions(account: LocalAccount) -> None:
    with sync.connect(account) as db:
        pages = db.table(Page)
        db.create_tables()
        page = pages.save(Page("www", 1, "Start"))

        etag = pages.patch_by_key({"site": "www", "id": 1}, note="seen")
        with pytest.raises(ETagMismatchError):
            pages.save(through_json(page), if_match=etag_of(page))
        pages.delete(through_json(page), if_match=etag)

        assert pages.get_or_none(site="www", id=1) is None
