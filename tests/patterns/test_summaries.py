"""Summary entities: counts with a condition, sums, least and greatest values of other entities."""

import random
from collections.abc import AsyncIterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
import pytest_asyncio

from partita.errors import DefinitionError
from partita.patterns import (
    CountOf,
    Database,
    MaxOf,
    MinOf,
    SumOf,
    connect,
    entity,
    evolve,
)
from partita.service.hosting.in_process import LocalAccount
from support.repeats import repeat

WHERE = {"customer": "customer"}


@entity(table="orders", partition="{customer}", row="summary")
class Summary:
    customer: str
    orders: Annotated[int, CountOf("Order", where=WHERE)] = 0
    open: Annotated[int, CountOf("Order", WHERE, lambda order: order.status == "open")] = 0
    total: Annotated[Decimal, SumOf("Order", "amount", where=WHERE)] = Decimal(0)
    open_pieces: Annotated[
        int, SumOf("Order", "pieces", where=WHERE, when=lambda order: order.status == "open")
    ] = 0
    first: Annotated[date | None, MinOf("Order", "day", where=WHERE)] = None
    largest: Annotated[int | None, MaxOf("Order", "pieces", where=WHERE)] = None


@entity(table="orders", partition="{customer}", row="o_{id:04d}")
class Order:
    customer: str
    id: int
    amount: Decimal
    day: date
    pieces: int | None = 1
    status: str = "open"


@entity(table="years", partition="{customer}", row="of_all")
class Elsewhere:
    customer: str
    total: Annotated[Decimal, SumOf(Order, "amount", where=WHERE)] = Decimal(0)
    smallest: Annotated[
        int | None, MinOf(Order, "pieces", where=WHERE, when=lambda order: order.pieces > 1)
    ] = None


DAY = date(2026, 11, 18)


def order(number: int, **fields: Any) -> Order:
    given: dict[str, Any] = {"amount": Decimal("1.10") * number}
    given |= {"day": DAY + timedelta(days=number)} | fields
    return Order(customer="ann", id=number, **given)


@pytest_asyncio.fixture(params=["sdk", "direct"])
async def db(
    request: pytest.FixtureRequest, partita_account: LocalAccount
) -> AsyncIterator[Database]:
    async with connect(partita_account, direct=request.param == "direct") as opened:
        for cls in (Summary, Order, Elsewhere):
            opened.table(cls)
        await opened.create_tables()
        await opened.table(Summary).save(Summary(customer="ann"))
        await opened.table(Elsewhere).save(Elsewhere(customer="ann"))
        yield opened


def expected(orders: list[Order]) -> Summary:
    pieces = [each.pieces for each in orders if each.pieces is not None]
    are_open = [each for each in orders if each.status == "open"]
    return Summary(
        customer="ann",
        orders=len(orders),
        open=len(are_open),
        total=sum((each.amount for each in orders), Decimal(0)),
        open_pieces=sum(each.pieces or 0 for each in are_open),
        first=min((each.day for each in orders), default=None),
        largest=max(pieces, default=None),
    )


async def test_a_summary_changes_in_the_group_of_its_source(db: Database) -> None:
    orders = db.table(Order)

    one = await orders.save(order(1, pieces=5))
    await orders.save(order(2, pieces=None, status="done"))

    summary = await db.table(Summary).get(customer="ann")
    assert summary == expected([one, order(2, pieces=None, status="done")])
    assert (summary.first, summary.largest, summary.open) == (DAY + timedelta(days=1), 5, 1)


async def test_the_next_value_follows_when_the_greatest_is_removed(db: Database) -> None:
    orders, summaries = db.table(Order), db.table(Summary)
    saved = [await orders.save(order(number, pieces=number)) for number in (1, 2, 3)]

    await orders.delete(saved[2])
    after_delete = (await summaries.get(customer="ann")).largest
    await orders.save(evolve(saved[1], pieces=0))
    after_change = (await summaries.get(customer="ann")).largest
    await orders.delete(saved[0])

    assert (after_delete, after_change) == (2, 1)
    assert (await summaries.get(customer="ann")).largest == 0


async def test_the_greatest_is_removed_and_another_added_in_one_group(db: Database) -> None:
    orders = db.table(Order)
    saved = [await orders.save(order(number, pieces=number)) for number in (1, 5, 3)]

    async with orders.partition(customer="ann").atomic() as group:
        group.delete(saved[1])
        group.save(evolve(saved[2], pieces=2))
        group.save(order(7, pieces=4))

    summary = await db.table(Summary).get(customer="ann")
    assert (summary.largest, summary.orders) == (4, 3)


async def test_a_summary_that_is_created_later_reads_its_sources(db: Database) -> None:
    summaries = db.table(Summary)
    await summaries.delete_if_exists(customer="ann")
    saved = [await db.table(Order).save(order(number)) for number in (3, 1)]

    assert await summaries.save(Summary(customer="ann")) == expected(saved)


async def test_a_condition_moves_an_entity_in_and_out_of_a_summary(db: Database) -> None:
    orders, summaries = db.table(Order), db.table(Summary)
    one = await orders.save(order(1, pieces=5))

    done = await orders.patch(one, status="done")
    without = await summaries.get(customer="ann")
    await orders.patch(done, status="open")

    assert (without.open, without.open_pieces) == (0, 0)
    assert (await summaries.get(customer="ann")).open_pieces == 5


async def test_an_increment_of_a_summed_field_reaches_the_sum(db: Database) -> None:
    orders = db.table(Order)
    one = await orders.save(order(1, pieces=5))

    await orders.increment(one, "pieces", by=2)

    summary = await db.table(Summary).get(customer="ann")
    assert (summary.open_pieces, summary.largest) == (7, 7)


async def test_summaries_elsewhere_follow_through_the_outbox(db: Database) -> None:
    orders = db.table(Order)
    saved = [await orders.save(order(number, pieces=number)) for number in (1, 2, 3)]
    await db.drain()
    before = await db.table(Elsewhere).get(customer="ann")
    await orders.delete(saved[1])
    await db.drain()

    after = await db.table(Elsewhere).get(customer="ann")
    assert (before.total, before.smallest) == (Decimal("6.60"), 2)
    assert (after.total, after.smallest) == (Decimal("4.40"), 3)
    assert await db.verify(Elsewhere) == []


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(repeat(2, 20, 100)))
async def test_summaries_equal_a_count_of_all_sources_after_any_changes(
    partita_account: LocalAccount, seed: int
) -> None:
    chance = random.Random(seed)
    async with connect(partita_account, direct=True) as db:
        orders, summaries = db.table(Order), db.table(Summary)
        await db.create_tables()
        await summaries.save(Summary(customer="ann"))
        kept: dict[int, Order] = {}
        for _ in range(30):
            number = chance.randrange(6)
            if number in kept and chance.random() < 0.4:
                await orders.delete(kept.pop(number))
                continue
            fields = {
                "pieces": chance.choice([None, 1, 2, 3]),
                "status": chance.choice(["open", "done"]),
                "day": DAY + timedelta(days=chance.randrange(4)),
            }
            made = order(number, **fields)
            if number in kept:
                made = evolve(kept[number], **fields)
            kept[number] = await orders.save(made)
            assert await summaries.get(customer="ann") == expected(list(kept.values()))
        assert await db.verify(Summary) == []


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Annotated[float, SumOf(Order, "pieces", where=WHERE)], "floats"),
        (Annotated[int, MinOf(Order, "pieces", where=WHERE)], "None"),
        (Annotated[int, SumOf(Order, "amount", where=WHERE)], "differs in type"),
        (Annotated[int, SumOf(Order, "nothing", where=WHERE)], "no field"),
    ],
)
def test_a_summary_that_cannot_be_kept_is_refused(annotation: Any, reason: str) -> None:
    space = {"__annotations__": {"customer": str, "value": annotation}, "value": 0}

    with pytest.raises(DefinitionError, match=reason):
        entity(table="orders", partition="{customer}", row="bad")(type("Bad", (), space))


async def test_a_condition_must_compare_columns(partita_account: LocalAccount) -> None:
    @entity(table="orders", partition="{customer}", row="r_{id:04d}")
    class Return:
        customer: str
        id: int

    @entity(table="orders", partition="{customer}", row="wrong")
    class Wrong:
        customer: str
        count: Annotated[int, CountOf(Return, WHERE, when=lambda _: True)] = 0

    async with connect(partita_account) as opened:
        table = opened.table(Wrong)
        await opened.create_tables()
        with pytest.raises(DefinitionError, match="does not return a condition"):
            await table.save(Wrong(customer="ann"))
