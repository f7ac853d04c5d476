"""The guide's compound key and log tail patterns, claim by claim."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from guide.stored import keys_in, opened
from partita.errors import DefinitionError, EntityExistsError, InvalidKeyError
from partita.patterns import (
    Database,
    NotOrderedError,
    Table,
    at_least,
    between,
    connect,
    entity,
    entity_type,
    evolve,
    lint,
)
from partita.patterns.planning.requests import QueryKind

# ---------------------------------------------------------------------------------------------
# Compound key pattern


@entity(table="Employees", partition="{dept}", row="empid_{id:06d}")
class Employee:
    dept: str
    id: int
    first: str
    last: str


@entity(table="Employees", partition="{dept}", row="empid_{id:06d}_{year:04d}")
class Review:
    dept: str
    id: int
    year: int
    manager_rating: int = 0
    peer_rating: int = 0
    comments: str = ""


@pytest.fixture
async def reviews(partita_db: Database) -> Table[Review]:
    db = await opened(partita_db, Employee, Review)
    for number in (122, 123, 124):
        await db.table(Employee).save(Employee(dept="Sales", id=number, first="A", last="B"))
    table = db.table(Review)
    for number, year in ((122, 2012), (123, 2011), (123, 2012), (123, 2013), (124, 2012)):
        await table.save(Review(dept="Sales", id=number, year=year, manager_rating=4))
    return table


class TestCompoundKeyPattern:
    async def test_reviews_lie_in_the_table_and_partition_of_their_employees(
        self, partita_db: Database, reviews: Table[Review]
    ) -> None:
        assert await keys_in(partita_db, "Employees") == [
            "Sales/empid_000122",
            "Sales/empid_000122_2012",
            "Sales/empid_000123",
            "Sales/empid_000123_2011",
            "Sales/empid_000123_2012",
            "Sales/empid_000123_2013",
            "Sales/empid_000124",
            "Sales/empid_000124_2012",
        ]

    async def test_one_years_review_is_one_point_query(
        self, partita_db: Database, reviews: Table[Review]
    ) -> None:
        with partita_db.measuring() as cost:
            review = await reviews.get(dept="Sales", id=123, year=2012)

        assert (review.manager_rating, cost.requests) == (4, 1)

    async def test_all_reviews_of_an_employee_are_one_range(
        self, partita_db: Database, reviews: Table[Review]
    ) -> None:
        query = reviews.partition(dept="Sales").range(id=123)

        assert query.plan.kind is QueryKind.RANGE
        with partita_db.measuring() as cost:
            assert [each.year async for each in query] == [2011, 2012, 2013]
        assert cost.requests == 1

    async def test_the_years_of_an_employee_can_be_bounded_too(
        self, reviews: Table[Review]
    ) -> None:
        query = reviews.partition(dept="Sales").range(id=123, year=at_least(2012))

        assert [each.year async for each in query] == [2012, 2013]

    async def test_the_guides_projection_has_names_that_a_service_takes(
        self, reviews: Table[Review]
    ) -> None:
        query = reviews.partition(dept="Sales").range(id=123)

        found = await query.select("year", "manager_rating", "peer_rating", "comments").list()

        assert [(each.year, each.manager_rating) for each in found] == [
            (2011, 4),
            (2012, 4),
            (2013, 4),
        ]

    async def test_an_employee_and_a_review_change_in_one_group(
        self, partita_db: Database, reviews: Table[Review]
    ) -> None:
        employee = await partita_db.table(Employee).get(dept="Sales", id=123)

        with partita_db.measuring() as cost:
            async with reviews.partition(dept="Sales").atomic() as group:
                group.save(evolve(employee, last="Cao"))
                group.save(Review(dept="Sales", id=123, year=2014))

        assert cost.requests == 1
        assert (await partita_db.table(Employee).get(dept="Sales", id=123)).last == "Cao"
        assert (await reviews.get(dept="Sales", id=123, year=2014)).id == 123

    async def test_a_group_with_a_review_that_is_there_changes_nothing(
        self, partita_db: Database, reviews: Table[Review]
    ) -> None:
        employee = await partita_db.table(Employee).get(dept="Sales", id=123)
        group = reviews.partition(dept="Sales").atomic()
        group.save(evolve(employee, last="Cao"))
        group.save(Review(dept="Sales", id=123, year=2012))

        with pytest.raises(EntityExistsError):
            await group.__aexit__(None, None, None)

        assert (await partita_db.table(Employee).get(dept="Sales", id=123)).last == "B"

    async def test_both_types_of_an_employee_are_read_by_one_query(
        self, partita_db: Database, reviews: Table[Review]
    ) -> None:
        both = partita_db.mixed(Employee, Review)

        found = [each async for each in both.partition("Sales")]

        assert [type(each) for each in found[2:6]] == [Employee, Review, Review, Review]

    async def test_neighbours_with_longer_numbers_do_not_get_into_the_range(
        self, reviews: Table[Review]
    ) -> None:
        # Without a width, 123 would be the beginning of 1234.
        await reviews.save(Review(dept="Sales", id=1234, year=2012))

        found = await reviews.partition(dept="Sales").range(id=123).list()

        assert {each.id for each in found} == {123}
        with pytest.raises(InvalidKeyError):
            await reviews.get(dept="Sales", id=1_234_567, year=2012)

    async def test_the_separator_makes_the_key_readable_again(self) -> None:
        row = entity_type(Review).row

        assert row.parse("empid_000123_2012") == {"id": 123, "year": 2012}

    async def test_parts_that_could_run_into_each_other_are_refused_when_declared(self) -> None:
        with pytest.raises(DefinitionError):

            @entity(table="Names", partition="{dept}", row="{first}_{last}")
            class Name:
                dept: str
                first: str
                last: str

    async def test_text_before_a_separator_is_escaped(self, partita_db: Database) -> None:
        @entity(table="Names", partition="{dept}", row="{first:esc}_{last}")
        class Name:
            dept: str
            first: str
            last: str

        names = (await opened(partita_db, Name)).table(Name)
        await names.save(Name(dept="Sales", first="Anne_Marie", last="_Berg"))

        assert await keys_in(partita_db, "Names") == ["Sales/Anne=5FMarie__Berg"]
        (found,) = await names.partition(dept="Sales").range(first="Anne_Marie").list()
        assert (found.first, found.last) == ("Anne_Marie", "_Berg")

    async def test_what_is_rarely_read_together_stays_a_type_of_its_own(
        self, partita_db: Database, reviews: Table[Review]
    ) -> None:
        with partita_db.measuring() as cost:
            employee = await partita_db.table(Employee).get(dept="Sales", id=123)

        assert (employee.first, cost.entities) == ("A", 1)


# ---------------------------------------------------------------------------------------------
# Log tail pattern


@entity(table="EmployeeExpense", partition="{employee}", row="{at:desc}_{number:04d}")
class Expense:
    employee: str
    at: datetime
    number: int
    amount: Decimal = Decimal(0)


START = datetime(2014, 7, 31, 18, tzinfo=UTC)


@pytest.fixture
async def expenses(partita_db: Database) -> Table[Expense]:
    table = (await opened(partita_db, Expense)).table(Expense)
    outcome = await table.save_all(
        Expense(employee="empid", at=START + timedelta(hours=number % 24), number=number)
        for number in range(30)
    )
    assert not outcome.failures
    return table


class TestLogTailPattern:
    async def test_the_ten_most_recent_claims_are_one_request(
        self, partita_db: Database, expenses: Table[Expense]
    ) -> None:
        with partita_db.measuring() as cost:
            latest = await expenses.partition(employee="empid").latest(10).list()

        everything = await expenses.partition(employee="empid").all().list()
        newest = sorted(everything, key=lambda each: each.at, reverse=True)
        assert [each.at for each in latest] == [each.at for each in newest[:10]]
        assert (cost.requests, cost.entities) == (1, 10)

    async def test_the_row_key_is_the_inverted_ticks_of_dotnet_padded_to_19_digits(
        self, expenses: Table[Expense]
    ) -> None:
        key = entity_type(Expense).key({"employee": "empid", "at": START, "number": 7})

        assert key.row == "2519954711999999999_0007"

    async def test_leading_zeroes_keep_the_order_up_to_the_end_of_time(
        self, expenses: Table[Expense]
    ) -> None:
        last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        await expenses.save(Expense(employee="empid", at=last, number=1))

        newest = await expenses.partition(employee="empid").latest(1).first()

        assert newest is not None
        assert newest.at == last
        assert entity_type(Expense).row.format({"at": last, "number": 1}).startswith("000000000000")

    async def test_the_time_comes_back_to_the_microsecond(self, expenses: Table[Expense]) -> None:
        at = datetime(2014, 7, 31, 18, 4, 5, 123_456, tzinfo=UTC)
        await expenses.save(Expense(employee="other", at=at, number=1))

        (found,) = await expenses.partition(employee="other").all().list()
        assert found.at == at

    async def test_two_claims_of_one_tick_are_told_apart_by_a_number(
        self, expenses: Table[Expense]
    ) -> None:
        for number in (2, 1):
            await expenses.save(Expense(employee="other", at=START, number=number))

        found = await expenses.partition(employee="other").latest(10).list()
        assert [each.number for each in found] == [1, 2]

    async def test_a_clock_that_goes_back_only_changes_the_place_of_the_claim(
        self, expenses: Table[Expense]
    ) -> None:
        for number, minutes in enumerate((0, 10, 5)):
            at = START + timedelta(minutes=minutes)
            await expenses.save(Expense(employee="other", at=at, number=number))

        found = await expenses.partition(employee="other").latest(10).list()
        assert [each.number for each in found] == [1, 2, 0]

    async def test_a_range_of_times_is_one_range_of_keys(
        self, partita_db: Database, expenses: Table[Expense]
    ) -> None:
        hours = between(START + timedelta(hours=10), START + timedelta(hours=12))
        query = expenses.partition(employee="empid").range(at=hours)

        assert query.plan.kind is QueryKind.RANGE
        assert [each.number async for each in query] == [12, 11, 10]

    async def test_older_claims_come_page_by_page(self, expenses: Table[Expense]) -> None:
        partition = expenses.partition(employee="empid")

        page = await partition.page(size=8)
        rest = await partition.page(size=100, continuation=page.continuation)

        assert (len(page.entities), len(rest.entities)) == (8, 22)
        assert page.entities[-1].at >= rest.entities[0].at

    async def test_claims_of_each_employee_have_a_partition_of_their_own(self) -> None:
        assert lint(entity_type(Expense)) == []

    async def test_without_order_there_is_no_tail(self) -> None:
        cosmos = (
            "AccountName=contoso;AccountKey=a2V5;"
            "TableEndpoint=https://contoso.table.cosmos.azure.com:443/"
        )
        async with connect(cosmos) as db:
            partition = db.table(Expense).partition(employee="empid")
            with pytest.raises(NotOrderedError):
                partition.latest(10)
