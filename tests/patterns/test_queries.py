"""Queries: how they are read, in which order, how much, and which are refused."""

import datetime as dt
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from partita.errors import ContinuationError, UsageError
from partita.patterns import (
    Database,
    Query,
    ScanRefusedError,
    Table,
    at_least,
    at_most,
    between,
    connect,
    entity,
    evolve,
    less_than,
    more_than,
    starting_with,
)
from partita.patterns.faults import Faults
from partita.patterns.planning.plans import QueryKind
from partita.service.hosting.in_process import LocalAccount
from support.staff import Employee, Expense, Grade, Note, by_email, note, person

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@entity(table="people", partition="{dept}", row="{last:esc}_{first:esc}_{id:04d}")
class Person:
    dept: str
    last: str
    first: str
    id: int
    age: int = 0
    city: str | None = None


PEOPLE = [
    ("Sales", "Cao", "Jun", 1, 47, "Bonn"),
    ("Sales", "Cao", "Li", 2, 23, None),
    ("Sales", "Carter", "Ann", 3, 51, "Bonn"),
    ("Sales", "Jones", "Eva", 4, 38, "Köln"),
    ("Marketing", "Cao", "Ken", 5, 29, "Bonn"),
    ("Marketing", "Hall", "Don", 6, 34, None),
]


@pytest.fixture
async def people(any_db: Database) -> Table[Person]:
    table = any_db.table(Person)
    await any_db.create_tables()
    await table.save_all(
        [
            Person(dept=dept, last=last, first=first, id=number, age=age, city=city)
            for dept, last, first, number, age, city in PEOPLE
        ]
    )
    return table


def ids(entities: list[Any]) -> list[int]:
    return [each.id for each in entities]


async def pages(query: Query[Any], size: int) -> list[list[Any]]:
    found: list[list[Any]] = []
    continuation = None
    while True:
        page = await query.page(size=size, continuation=continuation)
        found.append(page.entities)
        continuation = page.continuation
        if continuation is None:
            return found


# ---------------------------------------------------------------------------------------------
# Ranges and prefixes


async def test_ranges_of_row_keys(people: Table[Person]) -> None:
    sales = people.partition(dept="Sales")

    for given, expected in (
        ({}, [1, 2, 3, 4]),
        ({"last": "Cao"}, [1, 2]),
        ({"last": "Cao", "first": "Li"}, [2]),
        ({"last": "Cao", "first": at_least("K")}, [2]),
        ({"last": between("Cao", "Carter")}, [1, 2, 3]),
        ({"last": more_than("Cao")}, [3, 4]),
        ({"last": at_least("Carter")}, [3, 4]),
        ({"last": less_than("Carter")}, [1, 2]),
        ({"last": at_most("Carter")}, [1, 2, 3]),
        ({"last": starting_with("Ca")}, [1, 2, 3]),
        ({"last": "Nobody"}, []),
    ):
        assert ids(await sales.range(**given).list()) == expected
    assert ids(await sales.prefix(last="C").list()) == [1, 2, 3]
    assert ids(await sales.prefix(last="Cao", first="J").list()) == [1]


async def test_numbers_in_keys_are_ranges_too(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save_all([person(n) for n in (1, 99, 100, 150, 199, 200)])
    sales = employees.partition(dept="Sales")

    assert ids(await sales.range(id=between(100, 199)).list()) == [100, 150, 199]
    assert ids(await sales.range(id=more_than(199)).list()) == [200]
    assert ids(await sales.all().list()) == [1, 99, 100, 150, 199, 200]


async def test_a_prefix_is_not_a_neighbour(any_db: Database) -> None:
    notes = any_db.table(Note)
    for topic in ("user1", "user10", "user2", "user"):
        await notes.save(note(1, topic=topic))

    found = await notes.where(notes.c.topic.startswith("user1")).allow_scan().list()

    assert [each.topic for each in found] == ["user1", "user10"]
    assert len(await notes.partition(topic="user1").all().list()) == 1


async def test_a_range_names_fields_of_the_keys_only(people: Table[Person]) -> None:
    with pytest.raises(UsageError, match="not a key field"):
        await people.partition(dept="Sales").range(age=3).list()
    with pytest.raises(UsageError, match="needs a field"):
        people.partition(dept="Sales").prefix()


# ---------------------------------------------------------------------------------------------
# Conditions


async def test_conditions_are_joined(people: Table[Person]) -> None:
    c = people.c
    sales = people.partition(dept="Sales")

    for condition, expected in (
        (c.age > 40, [1, 3]),
        ((c.age > 40) & (c.city == "Bonn"), [1, 3]),
        ((c.age < 30) | (c.city == "Köln"), [2, 4]),
        (~(c.age > 40), [2, 4]),
        (c.city.is_absent(), [2]),
        (c.city.is_present(), [1, 3, 4]),
        (c.city != "Bonn", [4]),
        (~(c.city == "Bonn"), [2, 4]),
        (c.age.in_([23, 38, 99]), [2, 4]),
        (c.city.in_([]), []),
        (c.age.between(38, 47), [1, 4]),
        (c.city.startswith("B"), [1, 3]),
        ((c.last == "Cao") & (c.age < 40), [2]),
        ((c.last == "Cao") | (c.last == "Jones"), [1, 2, 4]),
    ):
        assert ids(await sales.where(condition).list()) == expected, condition
    assert ids(await sales.range(last="Cao").where(c.age > 30).where(c.city == "Bonn").list()) == [
        1
    ]


async def test_a_choice_of_keys_is_read_by_points(any_db: Database) -> None:
    notes = any_db.table(Note)
    await notes.save_all([note(n) for n in range(20)])
    c = notes.c
    query = notes.where((c.topic == "tables") & c.number.in_([3, 17, 99, 3, 5]))

    with any_db.measuring() as cost:
        found = await query.list()

    assert [each.number for each in found] == [3, 5, 17]
    assert query.plan.kind is QueryKind.POINTS
    assert cost.requests == 4
    chosen = notes.where((c.topic == "tables") & ((c.number == 1) | (c.number == 2)))
    assert chosen.plan.kind is QueryKind.POINTS
    assert [each.number for each in await chosen.list()] == [1, 2]


async def test_points_are_read_in_pages(any_db: Database) -> None:
    notes = any_db.table(Note)
    await notes.save_all([note(n) for n in range(12)])
    query = notes.where(
        (notes.c.topic == "tables") & notes.c.number.in_([*range(0, 30, 2)]) & (notes.c.text == "")
    )

    found = await pages(query, 4)

    assert [each.number for page in found for each in page] == [0, 2, 4, 6, 8, 10]
    assert all(len(page) <= 4 for page in found)
    assert len(await query.limit(3).list()) == 3


async def test_a_point_with_a_condition_is_checked(people: Table[Person]) -> None:
    point = people.partition(dept="Sales").range(last="Cao", first="Jun", id=1)

    assert point.plan.kind is QueryKind.POINT
    assert ids(await point.where(people.c.age == 47).list()) == [1]
    assert await point.where(people.c.age == 48).list() == []
    with pytest.raises(TypeError, match="parentheses"):
        _ = (people.c.age > 3) and (people.c.age < 9)


# ---------------------------------------------------------------------------------------------
# Order, limit, pages


async def test_the_newest_entities_cost_one_request(any_db: Database) -> None:
    claims = any_db.table(Expense)
    await claims.save_all(
        [
            Expense(employee=7, at=START + dt.timedelta(seconds=n), number=n, amount=Decimal(n))
            for n in range(30)
        ]
    )
    mine = claims.partition(employee=7)

    with any_db.measuring() as cost:
        found = [each.number async for each in mine.latest(10)]

    assert found == list(range(29, 19, -1))
    assert (cost.requests, cost.entities) == (1, 10)
    assert [each.number async for each in mine.latest(100)] == list(range(29, -1, -1))
    assert [each async for each in mine.latest(0)] == []


async def test_the_tail_of_keys_that_do_not_begin_with_the_newest_is_refused(
    employees: Table[Employee],
) -> None:
    with pytest.raises(UsageError) as caught:
        employees.partition(dept="Sales").latest(3)

    assert caught.value.code == "NotALogTail"
    assert ":desc" in caught.value.hint
    assert "limit" in caught.value.hint


async def test_limit_is_exact_and_the_size_of_a_page_is_not_a_limit(any_db: Database) -> None:
    notes = any_db.table(Note)
    await notes.save_all([note(n, stars=n % 5) for n in range(40)])
    query = notes.partition(topic="tables").where(notes.c.stars == 0)

    assert [each.number for each in await query.limit(3).list()] == [0, 5, 10]
    assert len(await query.list()) == 8
    assert [len(page) for page in await pages(query, 3)] == [3, 3, 2]
    assert [len(page) for page in await pages(query.limit(5), 3)] == [3, 2]
    assert [len(page) for page in await pages(query.limit(3), 3)] == [3]
    assert await pages(query.limit(0), 3) == [[]]
    first = await query.first()
    assert first is not None
    assert first.number == 0
    with pytest.raises(UsageError, match="must not be negative"):
        query.limit(-1)
    with pytest.raises(UsageError, match="must be at least 1"):
        await query.page(size=0)


async def test_more_than_a_thousand_entities_take_several_pages(notes: Table[Note]) -> None:
    await notes.save_all([note(n) for n in range(1100)])
    query = notes.partition(topic="tables").all()

    found = await query.list()
    with_pages = await pages(query, 600)

    assert [each.number for each in found] == list(range(1100))
    assert [len(page) for page in with_pages] == [600, 500]
    assert await query.count() == 1100


@pytest.mark.parametrize("seed", range(3))
async def test_short_and_empty_pages_lose_nothing(
    db: Database, notes: Table[Note], employees: Table[Employee], partita_faults: Faults, seed: int
) -> None:
    await notes.save_all([note(n) for n in range(25)])
    await employees.save_all([person(n, last="Cao" if n % 2 else "Li") for n in range(12)])
    partita_faults.hostile_paging(seed)
    query = notes.partition(topic="tables").all()

    assert [each.number for each in await query.list()] == list(range(25))
    assert [each.number for page in await pages(query, 4) for each in page] == list(range(25))
    assert [each.number for each in await query.limit(7).list()] == list(range(7))
    assert await query.count() == 25
    assert ids(await employees.partition(dept="Sales").all().list()) == list(range(12))
    assert ids(await employees.via(by_email).range(dept="Sales").list()) == [
        0, 10, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9,
    ]  # fmt: skip
    assert (await employees.get(dept="Sales", id=3)).id == 3
    assert ids(await employees.where(employees.c.age == 0).allow_scan().list()) == list(range(12))
    await db.drain()
    assert await db.verify(Employee) == []


async def test_a_continuation_goes_on_in_another_database(
    partita_account: LocalAccount, notes: Table[Note]
) -> None:
    await notes.save_all([note(n) for n in range(9)])
    page = await notes.partition(topic="tables").page(size=4)

    async with connect(partita_account) as other:
        rest = (
            await other.table(Note)
            .partition(topic="tables")
            .page(size=100, continuation=page.continuation)
        )

    assert [each.number for each in page.entities + rest.entities] == list(range(9))


async def test_a_continuation_goes_on_in_another_process(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from partita.patterns import connect, entity

@entity(table="notes", partition="{topic}", row="{number:06d}")
class Note:
    topic: str
    number: int

async def main(folder, continuation):
    async with connect(f"partita:{folder}") as db:
        notes = db.table(Note)
        if not continuation:
            await db.create_tables()
            await notes.save_all([Note(topic="t", number=n) for n in range(9)])
        page = await notes.partition(topic="t").page(size=4, continuation=continuation or None)
        print(page.continuation or "", *[each.number for each in page.entities])

asyncio.run(main(*sys.argv[1:]))
"""

    def run(continuation: str) -> tuple[str, list[int]]:
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), continuation],
            check=True,
            capture_output=True,
            text=True,
            timeout=200,
        )
        following, _, numbers = done.stdout.strip().partition(" ")
        return following, [int(each) for each in numbers.split()]

    following, first = run("")
    following, second = run(following)

    assert (first, second) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert following


async def test_a_continuation_of_another_query_is_refused(people: Table[Person]) -> None:
    sales = people.partition(dept="Sales")
    continuation = (await sales.page(size=1)).continuation
    assert continuation is not None

    for other in (
        people.partition(dept="Marketing").all(),
        sales.range(last="Cao"),
        sales.where(people.c.age > 3),
        sales.where(people.c.age > 4),
        sales.all().select("age"),
    ):
        with pytest.raises(ContinuationError, match="another query"):
            await other.page(continuation=continuation)
    for damaged in ("", "x", continuation[:-3], continuation + "AA", "ü", "{}"):
        with pytest.raises(ContinuationError):
            await sales.page(continuation=damaged)


# ---------------------------------------------------------------------------------------------
# Scans


async def test_a_scan_is_refused_with_what_would_help(
    people: Table[Person], any_db: Database
) -> None:
    query = people.where(people.c.age > 40)

    for attempt in (query.list(), query.page(), query.first(), query.count(), query.delete()):
        with any_db.measuring() as cost, pytest.raises(ScanRefusedError) as refused:
            await attempt
        assert cost.requests == 0
        assert "allow_scan()" in refused.value.hint
    assert "TABLE SCAN" in query.explain()
    assert "index(" in query.explain()
    assert ids(await query.allow_scan().list()) == [1, 3]
    with pytest.raises(ScanRefusedError):
        await people.all().list()
    assert len(await people.all().allow_scan().list()) == 6


async def test_a_scan_leaves_out_what_is_not_of_the_type(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save_all([person(n, dept=f"D{n % 3}") for n in range(9)])

    found = await employees.all().allow_scan().list()

    assert sorted(ids(found)) == list(range(9))


async def test_partitions_are_read_at_once_and_in_the_order_given(
    any_db: Database, people: Table[Person]
) -> None:
    given = [{"dept": "Marketing"}, {"dept": "Nowhere"}, {"dept": "Sales"}]

    found = await people.partitions(given, limit=2).list()

    assert [ids(each) for each in found] == [[5, 6], [], [1, 2, 3, 4]]
    assert await people.partitions([]).list() == []


# ---------------------------------------------------------------------------------------------
# Projections, counts, deletes


async def test_select_reads_some_fields(any_db: Database, people: Table[Person]) -> None:
    sales = people.partition(dept="Sales")

    @dataclass
    class Named:
        first: str
        city: str | None

    partial = await sales.range(last="Cao").select("id", "city").list()
    named = await sales.range(last="Cao").select(Named).list()
    filtered = await sales.where(people.c.age > 40).select("first").list()

    assert [(each.id, each.city) for each in partial] == [(1, "Bonn"), (2, None)]
    assert [(each.first, each.city) for each in named] == [("Jun", "Bonn"), ("Li", None)]
    assert [each.first for each in filtered] == ["Jun", "Ann"]
    with pytest.raises(UsageError, match="no field 'color'"):
        sales.all().select("color")


async def test_select_carries_less(db: Database, notes: Table[Note]) -> None:
    await notes.save_all([note(n, text="long " * 2000) for n in range(5)])
    query = notes.partition(topic="tables").all()

    with db.measuring() as whole:
        await query.list()
    with db.measuring() as some:
        await query.select("number").list()

    assert some.bytes * 20 < whole.bytes


async def test_select_of_fields_of_a_wide_and_sealed_type(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save(person(1, salary=70_000, age=47, grade=Grade.SENIOR))
    sales = employees.partition(dept="Sales")

    [partial] = await sales.all().select("salary", "grade", "id").list()

    assert (partial.salary, partial.grade, partial.id) == (70_000, Grade.SENIOR, 1)
    with pytest.raises(UsageError, match="no field 'photo'"):
        sales.all().select("photo")


async def test_selecting_a_series_reads_all_its_slots(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await employees.save(person(1, messages={0: 1, 364: 2}))

    [partial] = await employees.partition(dept="Sales").all().select("messages").list()

    assert partial.messages == {0: 1, 364: 2}


async def test_projections_by_an_index_that_lacks_a_field_read_the_entity(
    any_db: Database,
) -> None:
    employees = any_db.table(Employee)
    await employees.save_all([person(n, age=n) for n in range(4)])
    via = employees.via(by_email)

    some = via.range(dept="Sales").where(employees.c.age > 1).select("first")
    series = via.range(dept="Sales").select("messages", "id")

    assert [each.first for each in await some.list()] == ["First2", "First3"]
    assert [(each.id, each.messages) for each in await series.list()] == [(n, {}) for n in range(4)]


async def test_count_counts_what_the_query_finds(any_db: Database, people: Table[Person]) -> None:
    employees = any_db.table(Employee)
    await employees.save_all([person(n) for n in range(5)])
    sales = people.partition(dept="Sales")

    assert await sales.all().count() == 4
    assert await sales.where(people.c.city.is_absent()).count() == 1
    assert await people.where(people.c.age > 30).allow_scan().count() == 4
    assert await sales.all().limit(2).count() == 2
    assert await employees.partition(dept="Sales").all().count() == 5
    assert await employees.via(by_email).range(dept="Sales").count() == 5


async def test_delete_deletes_what_the_query_finds_and_no_more(any_db: Database) -> None:
    notes, employees = any_db.table(Note), any_db.table(Employee)
    await notes.save_all([note(n, stars=n % 4) for n in range(40)])
    await employees.save_all([person(n) for n in range(6)])

    outcome = await notes.partition(topic="tables").where(notes.c.stars == 0).delete()
    assert len(outcome.entities) == 10
    assert await notes.partition(topic="tables").all().count() == 30
    await notes.partition(topic="tables").all().limit(7).delete()
    assert await notes.partition(topic="tables").all().count() == 23
    await employees.via(by_email).range(dept="Sales", email=less_than("e3")).delete()
    await any_db.drain()

    assert ids(await employees.partition(dept="Sales").all().list()) == [3, 4, 5]
    assert await any_db.verify(Employee) == []


async def test_delete_of_more_than_a_page(notes: Table[Note]) -> None:
    await notes.save_all([note(n) for n in range(1050)])
    seen: list[int] = []

    outcome = await notes.partition(topic="tables").all().delete(progress=seen.append)

    assert (len(outcome.entities), outcome.failures) == (1050, [])
    assert await notes.partition(topic="tables").all().list() == []
    assert seen[-1] == 1050


async def test_the_cost_of_a_query_is_on_it(any_db: Database, people: Table[Person]) -> None:
    query = people.partition(dept="Sales").all()
    page = await query.page(size=2)
    await query.list()

    assert (page.cost.requests, page.cost.entities) == (1, 2)
    assert (query.cost.requests, query.cost.entities) == (2, 6)
    assert query.cost.bytes > 0


async def test_explain_shows_the_type_the_limit_and_the_latest(any_db: Database) -> None:
    notes, expenses = any_db.table(Note), any_db.table(Expense)
    tables = notes.partition(topic="tables")

    assert tables.all().limit(3).explain() == (
        "PARTITION SCAN   notes   PartitionKey eq 'tables'"
        "   residual EntityType eq 'Note'   limit 3"
    )
    assert tables.where(notes.c.stars > 2).limit(3).explain().splitlines()[0] == (
        "PARTITION SCAN   notes   PartitionKey eq 'tables'"
        "   residual EntityType eq 'Note' and Stars gt 2   limit 3"
    )
    assert expenses.partition(employee=7).latest(10).explain() == (
        "PARTITION SCAN   expenses   PartitionKey eq '000007'"
        "   residual EntityType eq 'Expense'   latest 10"
    )


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (True, "a value of type bool"),
        (None, "a value of type NoneType"),
        ("Age gt 40", "a value of type str"),
        (lambda each: True, "a function"),
    ],
)
async def test_where_takes_conditions_alone(db: Database, wrong: Any, what: str) -> None:
    notes = db.table(Note)
    tables = notes.partition(topic="tables")

    for ask in (
        notes.where,
        tables.where,
        tables.all().where,
        tables.where(notes.c.stars > 1).where,
    ):
        with pytest.raises(UsageError) as caught:
            ask(wrong)
        assert caught.value.code == "NotACondition"
        assert what in caught.value.message
        assert "where(table.c.age > 40)" in caught.value.hint


async def test_a_column_alone_is_not_a_condition(db: Database) -> None:
    notes = db.table(Note)
    column: Any = notes.c.stars

    with pytest.raises(UsageError) as caught:
        notes.where(column)

    assert caught.value.code == "NotACondition"
    assert "<field stars>" in caught.value.message


async def test_an_entity_that_a_query_found_can_be_saved(people: Table[Person]) -> None:
    [found] = await people.partition(dept="Sales").where(people.c.age == 23).list()

    await people.save(evolve(found, age=24))

    assert (await people.get(dept="Sales", last="Cao", first="Li", id=2)).age == 24
