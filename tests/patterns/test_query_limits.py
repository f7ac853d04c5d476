"""Queries with a limit or a page size and a condition that the client decides."""

import asyncio

import pytest

from partita.patterns import Database, connect, entity, list_index
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


@entity(table="logs", partition="{day}", row="{number:06d}", encrypt=lambda _p, _r, _n: False)
class Line:
    """A resolver might encrypt any property, so that conditions are decided here."""

    day: str
    number: int
    weight: int = 0


async def test_a_limit_with_a_condition_that_is_decided_here_reads_whole_pages(
    db: Database,
) -> None:
    lines = db.table(Line)
    await db.create_tables()
    await lines.save_all([Line(day="d", number=n, weight=n) for n in range(300)])
    heavy = lines.partition(day="d").where(lines.c.weight >= 298)
    assert heavy.plan.client is not None

    with db.measuring() as cost:
        found = await heavy.limit(1).list()

    assert [each.number for each in found] == [298]
    assert cost.requests == 1


@entity(table="tagged", partition="{owner}", row="t_{id:04d}")
class Tagged:
    owner: str
    id: int
    tag: str


in_tag = list_index(Tagged, table="bytag", partition="{tag}", row="{owner}", store="table")


async def test_a_limit_over_lists_ends(db: Database) -> None:
    tagged = db.table(Tagged)
    await db.create_tables()
    await tagged.save_all([Tagged(owner=f"o{n % 4}", id=n, tag=f"t{n % 3}") for n in range(48)])
    await db.drain()

    query = tagged.via(in_tag).all().allow_scan()
    async with asyncio.timeout(60):
        for limit in (1, 2, 5, 47, 48, 100):
            assert len(await query.limit(limit).list()) == min(limit, 48)


@entity(table="spread", partition="{hash_of:hash4}", row="{at:06d}_{hash_of:esc}")
class Spread:
    hash_of: str
    at: int
    weight: int = 0


async def test_pages_of_a_spread_partition_leave_nothing_out_and_repeat_nothing(
    partita_account: LocalAccount, partita_faults: Faults
) -> None:
    async with connect(partita_account) as db:
        spread = db.table(Spread)
        await db.create_tables()
        words = ["a", "b", "\ufffd", "\U0001f600", "~", "' or '1' eq '1", "k"]
        await spread.save_all(
            [Spread(hash_of=words[n % 7], at=n // 3, weight=n) for n in range(60)]
        )
        partita_faults.hostile_paging(7)
        everything = spread.all().allow_scan()
        assert everything.plan.is_merged
        wanted = sorted(range(60))
        for size in (2, 7, 60):
            found: list[int] = []
            continuation = None
            while True:
                page = await everything.page(size=size, continuation=continuation)
                found += [each.weight for each in page.entities]
                continuation = page.continuation
                if continuation is None:
                    break
            assert sorted(found) == wanted, size


async def test_a_page_of_what_is_decided_here_takes_few_requests(db: Database) -> None:
    lines = db.table(Line)
    await db.create_tables()
    await lines.save_all([Line(day="d", number=n, weight=n) for n in range(100)])

    page = await lines.partition(day="d").where(lines.c.weight >= 99).page(size=1)

    assert [each.number for each in page.entities] == [99]
    assert page.cost.requests <= 10
