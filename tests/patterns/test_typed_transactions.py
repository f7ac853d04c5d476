"""Transactions of one function with annotated parameters."""

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from partita.errors import DefinitionError, UsageError
from partita.patterns import Database, entity, sync, transaction

ROW = UUID(int=7)
seen: list[Any] = []


@entity(table="payments", partition="{topic}", row="{number:06d}")
class Payment:
    topic: str
    number: int


@transaction
async def pay(
    db: Database,
    day: dt.date,
    amount: Decimal,
    account: UUID,
    shares: dict[int, float] | None = None,
) -> None:
    await db.table(Payment).upsert(Payment(topic="paid", number=1))
    seen.append((day, amount, account, shares))


@transaction(name="pay without a loop")
def pay_now(db: sync.Database, day: dt.date) -> None:
    db.table(Payment).upsert(Payment(topic="paid", number=2))
    seen.append(day)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


async def test_arguments_arrive_as_their_annotations_say(db: Database) -> None:
    db.table(Payment)
    await db.create_tables()

    await db.start(pay, dt.date(2026, 3, 31), amount=Decimal("1.50"), account=ROW, shares={1: 0.5})
    report = await db.work_once()

    assert report.transactions == 1
    assert seen == [(dt.date(2026, 3, 31), Decimal("1.50"), ROW, {1: 0.5})]
    assert str(seen[0][1]) == "1.50"


async def test_a_group_starts_it_with_the_change(db: Database) -> None:
    payments = db.table(Payment)
    await db.create_tables()

    async with payments.partition(topic="tables").atomic() as group:
        group.save(Payment(topic="tables", number=1))
        group.start(pay, dt.date(2026, 3, 31), Decimal(1), ROW)
    await db.drain()

    assert seen == [(dt.date(2026, 3, 31), Decimal(1), ROW, None)]


def test_a_plain_function_is_a_transaction_of_the_synchronous_api() -> None:
    with sync.connect("partita::memory:") as db:
        db.table(Payment)
        db.create_tables()
        db.start(pay_now, day=dt.date(2026, 3, 31))
        db.drain()

    assert pay_now.name == "pay without a loop"
    assert seen == [dt.date(2026, 3, 31)]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"day": dt.date(2026, 3, 31), "amuont": 1, "account": ROW}, "Did you mean 'amount'?"),
        ({"day": dt.date(2026, 3, 31)}, "by name"),
        ({"day": 3, "amount": Decimal(1), "account": ROW}, "annotated types"),
        ({"day": dt.date(2026, 3, 31), "amount": object(), "account": ROW}, "annotated types"),
    ],
)
async def test_wrong_arguments_are_refused_at_the_start(
    db: Database, arguments: dict[str, Any], hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        await db.start(pay, **arguments)

    assert caught.value.code == "ArgumentsRefused"
    assert hint in caught.value.hint
    assert (await db.work_once()).is_idle


async def test_a_message_that_does_not_fit_the_function_fails(db: Database) -> None:
    @transaction(name="pay")
    async def older(db: Database, day: dt.date) -> None: ...

    db.table(Payment)
    await db.create_tables()
    await db.start(older, dt.date(2026, 3, 31))
    db.know(pay)
    report = await db.work_once()

    assert [each.reason[:20] for each in report.troubles] == ["MessageNotUnderstood"]


def without_annotation(db, day): ...  # type: ignore[no-untyped-def]


def without_database() -> None: ...


def with_any_number(db: Database, *days: dt.date) -> None: ...


@pytest.mark.parametrize("wrong", [without_annotation, without_database, with_any_number])
def test_a_function_whose_arguments_cannot_be_stored_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError) as caught:
        transaction(wrong)

    assert caught.value.code == "TransactionRefused"
