"""The guide's "Design for querying", as Partita does it: one test for each claim.

What the service itself makes of each filter is in test_patterns_query_classes.
"""

import datetime as dt
from typing import Any

import pytest

from partita.errors import InvalidKeyError
from partita.patterns import (
    Database,
    ScanRefusedError,
    at_least,
    between,
    entity,
    index,
    less_than,
    list_index,
    starting_with,
)
from partita.patterns.faults import Faults
from partita.patterns.planning.plans import QueryKind
from partita.patterns.planning.requests import POINTS_MAX


@entity(table="staff", partition="{dept}", row="{id:06d}")
class Employee:
    dept: str
    id: int
    first: str
    last: str
    age: int
    joined: dt.date


by_joined = index(Employee, row="joined_{joined:asc}_{id:06d}")
newest = index(Employee, row="newest_{joined:desc}_{id:06d}")
by_last = list_index(Employee, row="last_{last}")


@entity(table="people", partition="{dept}", row="{last}")
class Named:
    dept: str
    last: str


@entity(table="spreads", partition="{name:hash4}", row="{name}")
class Spread:
    name: str


STAFF = [
    ("Marketing", 1, "Don", "Hall", 34, 2011),
    ("Marketing", 2, "Jun", "Cao", 47, 2009),
    ("Sales", 9, "Ann", "Smith", 51, 2013),
    ("Sales", 10, "Ken", "Kwok", 23, 2014),
    ("Sales", 121, "Eva", "Jones", 38, 2009),
    ("Sales", 322, "Max", "Smith", 60, 2009),
]


@pytest.fixture
async def db(partita_db: Database) -> Database:
    for cls in (Employee, Named, Spread):
        partita_db.table(cls)
    await partita_db.create_tables()
    made = [
        Employee(dept=dept, id=number, first=first, last=last, age=age, joined=dt.date(year, 1, 2))
        for dept, number, first, last, age, year in STAFF
    ]
    await partita_db.table(Employee).save_all(made)
    return partita_db


class TestHowKeysImpactQueryPerformance:
    async def test_a_point_query_names_both_keys(self, db: Database) -> None:
        employees = db.table(Employee)
        query = employees.where((employees.c.dept == "Sales") & (employees.c.id == 10))

        assert query.plan.kind is QueryKind.POINT
        with db.measuring() as cost:
            assert [each.first for each in await query.list()] == ["Ken"]
        assert cost.requests == 1

    async def test_a_range_query_names_the_partition_and_a_range_of_rows(
        self, db: Database, partita_faults: Faults
    ) -> None:
        query = db.table(Employee).partition(dept="Sales").range(id=between(10, 199))

        assert query.plan.kind is QueryKind.RANGE
        assert [each.id for each in await query.list()] == [10, 121]
        sent = partita_faults.requests[-1]
        assert "PartitionKey eq 'Sales' and RowKey ge '000010' and RowKey lt '00019:'" in sent

    async def test_a_partition_scan_filters_on_another_property(self, db: Database) -> None:
        employees = db.table(Employee)
        query = employees.partition(dept="Sales").where(employees.c.last == "Smith")

        assert "residual EntityType eq 'Employee' and Last eq 'Smith'" in query.explain()
        assert [each.id for each in await query.list()] == [9, 322]

    async def test_a_table_scan_is_refused_and_the_index_that_helps_is_named(
        self, db: Database
    ) -> None:
        employees = db.table(Employee)
        query = employees.where(employees.c.last == "Jones")

        with db.measuring() as cost, pytest.raises(ScanRefusedError) as refused:
            await query.list()

        assert cost.requests == 0
        assert "TABLE SCAN" in refused.value.hint
        assert "give dept=... (" in refused.value.hint
        assert [each.id for each in await query.allow_scan().list()] == [121]

    async def test_a_row_key_alone_is_a_table_scan(self, db: Database) -> None:
        employees = db.table(Employee)
        query = employees.where(employees.c.id == 10)

        assert query.plan.kind is QueryKind.TABLE
        assert query.explain().endswith("help: give dept=... (point)")

    async def test_a_range_of_partitions_is_a_class_of_its_own_and_refused(
        self, db: Database
    ) -> None:
        employees = db.table(Employee)
        query = employees.where((employees.c.dept >= "M") & (employees.c.dept < "S"))

        assert query.plan.kind is QueryKind.MULTI_PARTITION
        with pytest.raises(ScanRefusedError):
            await query.list()
        assert [each.id for each in await query.allow_scan().list()] == [1, 2]

    async def test_results_come_sorted_by_partition_key_and_row_key(self, db: Database) -> None:
        found = await db.table(Employee).all().allow_scan().list()

        assert [(each.dept, each.id) for each in found] == [row[:2] for row in STAFF]


class TestOrOnRowKeys:
    async def test_an_or_on_row_keys_becomes_point_reads(self, db: Database) -> None:
        employees = db.table(Employee)
        c = employees.c
        query = employees.where((c.dept == "Sales") & ((c.id == 322) | (c.id == 121)))

        assert query.explain() == "POINTS   staff   2 keys"
        with db.measuring() as cost:
            found = await query.list()

        assert [each.id for each in found] == [121, 322]
        assert (cost.requests, cost.entities) == (2, 2)

    async def test_the_point_reads_find_what_the_scan_would_find_in_its_order(
        self, db: Database
    ) -> None:
        employees = db.table(Employee)
        wanted = [322, 7, 9, 121, 9]

        points = employees.where((employees.c.dept == "Sales") & employees.c.id.in_(wanted))
        scan = await employees.partition(dept="Sales").all().list()

        assert points.plan.kind is QueryKind.POINTS
        assert await points.list() == [each for each in scan if each.id in wanted]

    async def test_too_many_points_become_one_range(self, db: Database) -> None:
        employees = db.table(Employee)
        wanted = range(9, 9 + 2 * (POINTS_MAX + 1), 2)
        query = employees.where((employees.c.dept == "Sales") & employees.c.id.in_(wanted))

        assert query.plan.kind is QueryKind.RANGE
        with db.measuring() as cost:
            found = await query.list()

        assert [each.id for each in found] == [9, 121]
        assert cost.requests == 1


class TestChoosingAnAppropriatePartitionKey:
    async def test_everything_in_one_partition_is_pointed_out(self, db: Database) -> None:
        people = [Named(dept="Sales", last=f"n{number}") for number in range(40)]
        await db.table(Named).save_all(people)

        balance = await db.balance(Named)

        assert (balance.entities, balance.partitions, balance.grouped) == (40, 1, 40)
        assert [each.code for each in balance.advice] == ["SinglePartition"]

    async def test_one_entity_in_each_partition_is_pointed_out(self, db: Database) -> None:
        people = [Named(dept=f"d{number}", last="x") for number in range(40)]
        await db.table(Named).save_all(people)

        balance = await db.balance(Named)

        assert (balance.partitions, balance.grouped, balance.histogram) == (40, 0, {1: 40})
        assert [each.code for each in balance.advice] == ["OneEntityPerPartition"]

    async def test_a_partition_with_most_of_the_entities_is_pointed_out(self, db: Database) -> None:
        people = [Named(dept="Sales" if n % 4 else f"d{n}", last=f"{n:03}") for n in range(40)]
        await db.table(Named).save_all(people)

        balance = await db.balance(Named)

        assert balance.largest[0] == ("Sales", 30)
        assert [each.code for each in balance.advice] == ["LopsidedPartitions"]
        assert "30 of the 40" in str(balance)

    async def test_a_balanced_key_gets_no_advice(self, db: Database) -> None:
        people = [Named(dept=f"d{number % 8}", last=f"{number:03}") for number in range(40)]
        await db.table(Named).save_all(people)

        balance = await db.balance(Named)

        assert balance.advice == []
        assert str(balance).startswith("Named: 40 entities in 8 partitions")


class TestOptimizingQueries:
    async def test_a_list_of_entities_by_another_property_needs_no_scan(self, db: Database) -> None:
        query = db.table(Employee).via(by_last).range(dept="Sales", last="Smith")

        with db.measuring() as cost:
            found = await query.list()

        assert [each.id for each in found] == [9, 322]
        assert cost.requests == 3  # the index rows, and each of the two

    async def test_explain_names_the_declared_index_that_would_do_better(
        self, db: Database
    ) -> None:
        employees = db.table(Employee)
        query = employees.partition(dept="Sales").where(employees.c.joined == dt.date(2009, 1, 2))

        assert "read .via(by_joined) (range)" in query.explain()


class TestSortingData:
    async def test_numbers_sort_as_numbers(self, db: Database) -> None:
        found = await db.table(Employee).partition(dept="Sales").all().list()

        assert [each.id for each in found] == [9, 10, 121, 322]

    async def test_a_number_that_outgrows_its_padding_is_refused(self, db: Database) -> None:
        with pytest.raises(InvalidKeyError):
            await db.table(Employee).get(dept="Sales", id=1_000_000)
        with pytest.raises(InvalidKeyError):
            await db.table(Employee).get(dept="Sales", id=-1)

    async def test_an_index_gives_another_order_and_ties_fall_to_the_key(
        self, db: Database
    ) -> None:
        employees = db.table(Employee)

        with db.measuring() as cost:
            found = await employees.via(by_joined).range(dept="Sales").list()

        ordered = sorted(
            await employees.partition(dept="Sales").all().list(), key=lambda e: (e.joined, e.id)
        )
        assert found == ordered
        assert cost.requests == 1

    async def test_an_index_gives_the_newest_first(self, db: Database) -> None:
        employees = db.table(Employee)

        found = await employees.via(newest).range(dept="Sales").limit(2).list()
        since = (
            await employees.via(newest)
            .range(dept="Sales", joined=at_least(dt.date(2013, 6, 1)))
            .list()
        )

        assert [each.id for each in found] == [10, 9]
        assert [each.id for each in since] == [10]

    @pytest.mark.parametrize(
        ("interval", "expected"),
        [
            (starting_with("B"), ["Baker", "Byrne"]),
            (between("B", "Byrne"), ["Baker", "Byrne"]),
            (less_than("Byrne"), ["Adams", "Baker"]),
        ],
    )
    async def test_texts_sort_by_code_point(
        self, db: Database, interval: Any, expected: list[str]
    ) -> None:
        people = db.table(Named)
        for last in ("Byrne", "Adams", "aaron", "Baker"):
            await people.save(Named(dept="Sales", last=last))

        found = await people.partition(dept="Sales").range(last=interval).list()

        assert [each.last for each in found] == expected

    async def test_a_fan_in_keeps_the_order_of_the_service(self, db: Database) -> None:
        names = ["a", "z", "\ue000", "\uff5e", "\U00010000", "\U0001f600"]
        for name in names:
            await db.table(Spread).save(Spread(name=name))
            await db.table(Named).save(Named(dept="x", last=name))

        spread = await db.table(Spread).all().list()
        whole = await db.table(Named).partition(dept="x").all().list()

        assert [each.name for each in spread] == [each.last for each in whole]
