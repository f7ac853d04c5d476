"""Several types in one range, raw queries with parameters, and pages of every kind of query."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from partita.errors import (
    ContinuationError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    GroupRuleError,
    UsageError,
)
from partita.patterns import Database, RawEntity, at_least, connect, entity, sync
from partita.service.hosting.in_process import LocalAccount


@entity(table="firm", partition="{dept}", row="{id:06d}")
class Employee:
    dept: str
    id: int
    name: str = "-"


@entity(table="firm", partition="{dept}", row="{id:06d}_{year:04d}")
class Review:
    dept: str
    id: int
    year: int
    rating: int = 0


@entity(table="firm", partition="{dept}", row="x_{name}")
class Room:
    dept: str
    name: str


@pytest_asyncio.fixture
async def firm(partita_account: LocalAccount) -> AsyncIterator[Database]:
    async with connect(partita_account) as db:
        for cls in (Employee, Review, Room):
            db.table(cls)
        await db.create_tables()
        for number in (1, 2):
            await db.table(Employee).save(Employee(dept="Sales", id=number))
            for year in range(2009, 2014):
                rating = year % 5
                review = Review(dept="Sales", id=number, year=year, rating=rating)
                await db.table(Review).save(review)
        for name in ("blue", "black", "green"):
            await db.table(Room).save(Room(dept="Sales", name=name))
        yield db


async def test_an_employee_and_the_reviews_of_the_last_years_are_one_request(
    firm: Database,
) -> None:
    query = firm.mixed(Employee, Review).range(dept="Sales", id=1, year=at_least(2012))

    found = await query.list()

    assert found == [
        Employee(dept="Sales", id=1),
        Review(dept="Sales", id=1, year=2012, rating=2),
        Review(dept="Sales", id=1, year=2013, rating=3),
    ]
    assert query.cost.requests == 1


async def test_a_condition_limits_the_type_of_its_columns(firm: Database) -> None:
    reviews = firm.table(Review)

    query = firm.mixed(Employee, Review).range(dept="Sales", id=2).where(reviews.c.rating >= 3)

    assert [type(each).__name__ for each in await query.list()] == ["Employee", "Review", "Review"]
    assert query.cost.entities == 3


async def test_a_condition_on_a_column_of_another_type_is_refused(firm: Database) -> None:
    rooms = firm.table(Room)

    with pytest.raises(UsageError) as caught:
        await firm.mixed(Employee, Review).range(dept="Sales").where(rooms.c.name == "x").list()

    assert caught.value.code == "ColumnOfAnother"


async def test_a_field_of_no_type_is_refused(firm: Database) -> None:
    with pytest.raises(UsageError) as caught:
        await firm.mixed(Employee, Review).range(dept="Sales", age=3).list()

    assert caught.value.code == "KeyFields"


async def test_a_prefix_of_several_types(firm: Database) -> None:
    found = await firm.mixed(Room, Employee).prefix(dept="Sales", name="bl").list()

    assert [each.name for each in found if isinstance(each, Room)] == ["black", "blue"]


async def test_pages_of_several_types_continue_in_another_process(firm: Database) -> None:
    query = firm.mixed(Employee, Review).range(dept="Sales").limit(7)

    first = await query.page(size=3)
    rest = await query.page(size=100, continuation=first.continuation)

    assert [len(first.entities), len(rest.entities)] == [3, 4]
    assert first.entities + rest.entities == await query.list()
    other = firm.mixed(Employee, Review).range(dept="Sales", id=1)
    with pytest.raises(ContinuationError):
        await other.page(continuation=first.continuation)


async def test_pages_are_an_iterator(firm: Database) -> None:
    reviews = firm.table(Review).partition(dept="Sales")

    sizes = [len(page.entities) async for page in reviews.range(id=1).pages(size=2)]
    whole = [len(page.entities) async for page in reviews.pages(size=50)]
    none = [page async for page in reviews.range(id=99).pages()]

    assert (sizes, whole, none) == ([2, 2, 1], [10], [])


def test_the_synchronous_api_has_the_same_pages(partita_account: LocalAccount) -> None:
    with sync.connect(partita_account) as db:
        rooms = db.table(Room)
        db.create_tables()
        for name in ("blue", "black", "green"):
            rooms.save(Room(dept="Sales", name=name))

        pages = [len(page.entities) for page in rooms.partition(dept="Sales").pages(size=2)]
        raws = db.raw("firm").query("RowKey ge @row", row="x_bl").select("Name").limit(2).list()
        both = db.mixed(Employee, Room).range(dept="Sales", name="green").list()

    assert pages == [2, 1]
    assert [(raw.row_key, raw.properties) for raw in raws] == [("x_black", {}), ("x_blue", {})]
    assert both == [Room(dept="Sales", name="green")]


# ---------------------------------------------------------------------------------------------
# Raw tables


async def test_a_raw_query_takes_parameters(firm: Database) -> None:
    raw = firm.raw("firm")

    query = raw.query("PartitionKey eq @p and Rating ge @least", p="Sales", least=3)

    assert len(await query.list()) == 4
    assert len(await query.limit(3).list()) == 3
    assert [set(each.properties) for each in await query.select("Rating").limit(1).list()] == [
        {"Rating"}
    ]


async def test_a_parameter_inside_quotes_is_text(firm: Database) -> None:
    raw = firm.raw("firm")
    await raw.save(RawEntity("Mail", "1", {"To": "@p"}))

    found = await raw.query("To eq '@p' and PartitionKey eq @p", p="Mail").first()

    assert found is not None


@pytest.mark.parametrize(("text", "given"), [("A eq @a", {}), ("A eq 'x'", {"a": 1})])
async def test_parameters_and_values_must_match(
    firm: Database, text: str, given: dict[str, int]
) -> None:
    with pytest.raises(UsageError) as caught:
        firm.raw("firm").query(text, **given)

    assert caught.value.code == "ParameterMissing"


async def test_raw_pages_continue(firm: Database) -> None:
    query = firm.raw("firm").query("PartitionKey eq @p", p="Sales")

    first = await query.page(size=10)
    rest = await query.page(continuation=first.continuation)

    assert (len(first.entities), len(rest.entities)) == (10, 5)
    assert rest.continuation is None


async def test_a_raw_upsert_replaces_or_merges(firm: Database) -> None:
    raw = firm.raw("firm")

    await raw.upsert(RawEntity("p", "r", {"A": 1, "B": 2}))
    await raw.upsert(RawEntity("p", "r", {"B": 3}), merge=True)
    merged = await raw.get("p", "r")
    await raw.upsert(RawEntity("p", "r", {"C": 4}))

    assert merged.properties == {"A": 1, "B": 3}
    assert (await raw.get("p", "r")).properties == {"C": 4}


async def test_a_raw_group_is_applied_completely_or_not_at_all(firm: Database) -> None:
    raw = firm.raw("firm")
    kept = await raw.save(RawEntity("p", "old", {"A": 1}))

    async with raw.atomic("p") as group:
        group.save(RawEntity("p", "new", {"A": 2}))
        group.delete(kept)
    failing = raw.atomic("p")
    failing.upsert(RawEntity("p", "other", {}))
    failing.save(RawEntity("p", "new", {}))
    with pytest.raises(EntityExistsError):
        await failing.__aexit__(None)

    assert [each.row_key for each in await raw.query("PartitionKey eq 'p'").list()] == ["new"]
    with pytest.raises(ETagMismatchError):
        await raw.save(RawEntity("p", "new", {}, etag=kept.etag))
    [written] = group.entities
    await raw.save(written)


async def test_a_raw_group_has_one_partition(firm: Database) -> None:
    with pytest.raises(GroupRuleError):
        async with firm.raw("firm").atomic("p") as group:
            group.save(RawEntity("q", "r", {}))


async def test_a_raw_entity_that_does_not_exist_cannot_be_deleted(firm: Database) -> None:
    with pytest.raises(EntityNotFoundError):
        await firm.raw("firm").delete(RawEntity("p", "r", {}))


# ---------------------------------------------------------------------------------------------
# Projections and caches


async def test_a_projection_has_the_keys_that_were_sent(firm: Database) -> None:
    [partial] = (
        await firm.table(Review)
        .partition(dept="Sales")
        .range(id=1)
        .limit(1)
        .select("rating")
        .list()
    )

    assert (partial.rating, partial.dept, partial.id, partial.year) == (4, "Sales", 1, 2009)
    assert partial.as_dict() == {"rating": 4}
    assert (await firm.table(Review).get(**partial.as_key())).rating == 4


async def test_a_small_table_is_read_into_the_cache_with_one_request(firm: Database) -> None:
    rooms = firm.table(Room).cached(60.0, preload=True)

    with firm.measuring() as cost:
        assert (await rooms.get(dept="Sales", name="blue")).name == "blue"
        assert await rooms.get_or_none(dept="Sales", name="red") is None
        pairs = await rooms.join(["green", "none"], lambda name: {"dept": "Sales", "name": name})
        assert [room is not None for _, room in pairs] == [True, False]
    assert cost.requests == 1


async def test_writes_through_a_preloaded_cache_are_seen(firm: Database) -> None:
    rooms = firm.table(Room).cached(60.0, preload=True, entries_max=3)
    blue = await rooms.get(dept="Sales", name="blue")

    await rooms.delete(blue)
    await rooms.save(Room(dept="Sales", name="red"))

    assert await rooms.get_or_none(dept="Sales", name="blue") is None
    assert await rooms.get_or_none(dept="Sales", name="red") is not None
    assert await rooms.get_or_none(dept="Sales", name="green") is not None


async def test_a_table_that_is_too_large_for_the_cache_is_refused(firm: Database) -> None:
    rooms = firm.table(Room).cached(60.0, preload=True, entries_max=2)

    with pytest.raises(UsageError) as caught:
        await rooms.get(dept="Sales", name="blue")

    assert caught.value.code == "CacheTooSmall"
