"""Questions that an index answers alone: they cost a request for each page of index rows."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from partita.patterns import (
    Database,
    Table,
    connect,
    entity,
    evolve,
    index,
    less_than,
    list_index,
    sync,
)
from partita.service.hosting.in_process import LocalAccount
from support.staff import KEYRING, Department, Employee, by_last, person

MEMBERS = 50


@entity(table="guests", partition="{hotel}", row="guest_{id:06d}")
class Guest:
    hotel: str
    id: int
    last: str = "Cao"
    floor: int = 0
    note: str = ""


in_rows = list_index(Guest, row="last_{last}")
in_partition = list_index(Guest, row="name_{last}", store="partition")
in_table = list_index(
    Guest, table="guestlists", partition="{last}", row="list_{hotel}", store="table"
)
in_blob = list_index(Guest, row="blob_{last}", store="blob")
in_far_rows = list_index(Guest, table="guestrows", partition="{last}", row="{hotel}")
partial = index(
    Guest, table="guestcopies", partition="{last}", row="{hotel:esc}_{id:06d}", copy=["floor"]
)

LISTS = (in_rows, in_partition, in_table, in_blob, in_far_rows)
EVERY = (*LISTS, partial)
EVENTUAL = (in_table, in_blob, in_far_rows, partial)


@pytest_asyncio.fixture
async def database(partita_account: LocalAccount) -> AsyncIterator[Database]:
    """A database without the SDK: 50 guests and their indexes are made for every test."""
    async with connect(partita_account, keyring=KEYRING, direct=True) as opened:
        yield opened


@pytest.fixture
async def guests(database: Database) -> Table[Guest]:
    table = database.table(Guest)
    await database.create_tables()
    await table.save_all([Guest(hotel="Ritz", id=number) for number in range(MEMBERS)])
    await database.drain()
    return table


async def test_a_count_reads_index_rows_alone(database: Database, guests: Table[Guest]) -> None:
    for via in EVERY:
        query = guests.via(via).range(hotel="Ritz", last="Cao")
        await query.first()  # the state of the index is read once

        with database.measuring() as cost:
            counted = await query.count()

        assert (counted, cost.requests) == (MEMBERS, 1)


async def test_a_selection_of_covered_fields_reads_index_rows_alone(
    database: Database, guests: Table[Guest]
) -> None:
    for via in EVERY:
        query = guests.via(via).range(hotel="Ritz", last="Cao")
        await query.first()

        with database.measuring() as cost:
            found = await query.select("id", "last", "hotel").list()

        assert [(each.id, each.last, each.hotel) for each in found] == [
            (number, "Cao", "Ritz") for number in range(MEMBERS)
        ]
        assert cost.requests == 1


async def test_a_limit_costs_no_more_members_than_it_asks_for(
    database: Database, guests: Table[Guest]
) -> None:
    for via in EVERY:
        query = guests.via(via).range(hotel="Ritz", last="Cao").limit(3)
        await query.first()

        with database.measuring() as whole:
            entities = await query.list()
        with database.measuring() as selected:
            parts = await query.select("id").list()
        with database.measuring() as counting:
            counted = await query.count()

        assert [each.id for each in entities] == [each.id for each in parts] == [0, 1, 2]
        assert counted == 3
        assert (whole.requests, selected.requests, counting.requests) == (4, 1, 1)


async def test_pages_of_covered_fields_hold_every_member_once(
    database: Database, guests: Table[Guest]
) -> None:
    for via in EVERY:
        query = guests.via(via).range(hotel="Ritz", last="Cao").select("id")
        found: list[int] = []
        continuation = None
        while True:
            page = await query.page(size=20, continuation=continuation)
            found += [each.id for each in page.entities]
            continuation = page.continuation
            assert page.cost.requests <= 2
            if continuation is None:
                break

        assert found == list(range(MEMBERS))


async def test_a_condition_on_covered_fields_is_decided_on_index_rows(
    database: Database, guests: Table[Guest]
) -> None:
    for via in EVERY:
        query = guests.via(via).range(hotel="Ritz", last="Cao").where(guests.c.id < 7)
        await query.first()

        with database.measuring() as cost:
            counted = await query.count()

        assert (counted, cost.requests) == (7, 1)


async def test_what_the_index_does_not_hold_is_read_from_the_members(
    database: Database, guests: Table[Guest]
) -> None:
    await guests.save(evolve(await guests.get(hotel="Ritz", id=3), note="late"))
    for via in LISTS:
        query = guests.via(via).range(hotel="Ritz", last="Cao")

        with database.measuring() as cost:
            found = await query.select("note").list()
            counted = await query.where(guests.c.note == "late").count()

        assert [each.note for each in found].count("late") == counted == 1
        assert cost.requests > MEMBERS


async def test_an_eventual_index_answers_as_it_is_unless_it_is_verified(
    database: Database, guests: Table[Guest]
) -> None:
    await guests.delete(await guests.get(hotel="Ritz", id=0))
    await guests.save(evolve(await guests.get(hotel="Ritz", id=1), last="Jones"))

    for via in EVENTUAL:
        as_it_is = guests.via(via).range(hotel="Ritz", last="Cao")
        verified = guests.via(via, verify=True).range(hotel="Ritz", last="Cao")
        assert (await as_it_is.count(), await verified.count()) == (MEMBERS, MEMBERS - 2)
        assert len(await as_it_is.select("id").list()) == MEMBERS
        assert len(await verified.select("id").list()) == MEMBERS - 2
    await database.drain()
    for via in EVENTUAL:
        assert await guests.via(via).range(hotel="Ritz", last="Cao").count() == MEMBERS - 2


async def test_an_index_of_the_same_partition_counts_what_is_stored(
    database: Database, guests: Table[Guest]
) -> None:
    await guests.delete(await guests.get(hotel="Ritz", id=0))
    await guests.save(evolve(await guests.get(hotel="Ritz", id=1), last="Jones"))

    for via in (in_rows, in_partition):
        assert await guests.via(via).range(hotel="Ritz", last="Cao").count() == MEMBERS - 2
        assert await guests.via(via).range(hotel="Ritz", last="Jones").count() == 1


async def test_a_count_over_several_lists_reads_their_rows_alone(
    database: Database, guests: Table[Guest]
) -> None:
    await guests.save(Guest(hotel="Ritz", id=100, last="Adams"))
    await guests.save(Guest(hotel="Ritz", id=101, last="Zeno"))
    query = guests.via(in_rows).range(hotel="Ritz", last=less_than("D"))
    await query.first()

    with database.measuring() as cost:
        found = await query.select("last", "id").list()

    assert [(each.last, each.id) for each in found][:2] == [("Adams", 100), ("Cao", 0)]
    assert (len(found), cost.requests) == (MEMBERS + 1, 1)


async def test_rows_of_an_older_version_are_not_believed(database: Database) -> None:
    employees, _ = database.table(Employee), database.table(Department)
    await database.create_tables()
    await employees.save(person(1, last="Cao"))
    [row] = [
        each
        async for each in database.raw("staff").query("RowKey ge 'last_' and RowKey lt 'last`'")
    ]
    query = employees.via(by_last).range(dept="Sales", last="Cao")
    await query.first()

    with database.measuring() as now:
        assert await query.count() == 1
    del row.properties["EntityVersion"]
    await database.raw("staff").save(row)
    with database.measuring() as before:
        assert await query.count() == 1

    assert now.requests == 1
    assert before.requests > 1


def test_the_synchronous_face_counts_index_rows_alone(partita_account: LocalAccount) -> None:
    with sync.connect(partita_account) as db:
        guests = db.table(Guest)
        db.create_tables()
        guests.save_all([Guest(hotel="Ritz", id=number) for number in range(5)])
        db.drain()
        for via in EVERY:
            query = guests.via(via).range(hotel="Ritz", last="Cao")
            query.first()
            with db.measuring() as cost:
                counted = query.count()
            assert (counted, cost.requests) == (5, 1)
