"""The guide's eventually consistent transactions, denormalization and materialised views.

Each on an account in this process. Hidden messages come back when the account's clock is moved,
so that nothing waits.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import partita
from guide.stored import hidden_in, keys_in, opened
from partita.clock import ManualClock, SystemClock
from partita.errors import DefinitionError, UnavailableError, UsageError
from partita.patterns import (
    CopiedFrom,
    CountOf,
    Database,
    ETagMismatchError,
    Table,
    connect,
    entity,
    eventual,
    evolve,
    idempotent,
    index,
    view,
)
from partita.patterns.faults import SHORT_RETRIES, Faults
from partita.service.hosting.in_process import LocalAccount

VISIBILITY = 30.0
OUTBOX = "partita-outbox"


class CrashError(Exception):
    """The process ends here."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().ticks())


@pytest.fixture
def account(clock: ManualClock) -> Iterator[LocalAccount]:
    with partita.open_account(None, clock=clock) as opened_account:
        opened_account.client_options = SHORT_RETRIES
        yield opened_account


@pytest.fixture
def faults(account: LocalAccount) -> Faults:
    return Faults(account)


def messages_in(account: LocalAccount, queue: str = OUTBOX) -> int:
    found = account.queues.get_queue_client(queue).get_queue_properties()
    return found.approximate_message_count or 0


# ---------------------------------------------------------------------------------------------
# Eventually consistent transactions pattern


@entity(table="Current", partition="{dept}", row="{id:06d}")
class Current:
    dept: str
    id: int
    name: str


@entity(table="Archive", partition="{dept}", row="{id:06d}")
class Archived:
    dept: str
    id: int
    name: str


@idempotent
async def insert_into_archive(db: Database, who: dict[str, Any]) -> None:
    employee = await db.table(Current).get_or_none(**who)
    if employee is not None:
        await db.table(Archived).upsert(Archived(**who, name=employee.name))


@idempotent
async def delete_from_current(db: Database, who: dict[str, Any]) -> None:
    await db.table(Current).delete_if_exists(**who)


archive = eventual("archive an employee", insert_into_archive, delete_from_current)

STEPS: dict[str, Callable[[str], bool]] = {
    "2 receive the message": lambda line: line.startswith("GET") and "/messages" in line,
    "3 read from Current": lambda line: line.startswith("GET") and "/Current(" in line,
    "4 insert into Archive": lambda line: not line.startswith("GET") and "/Archive(" in line,
    "5 delete from Current": lambda line: line.startswith("DELETE") and "/Current(" in line,
    "6 delete the message": lambda line: line.startswith("DELETE") and "/messages/" in line,
}


async def worker(account: LocalAccount, **options: Any) -> AsyncIterator[Database]:
    async with connect(account, visibility=VISIBILITY, **options) as db:
        await opened(db, Current, Archived)
        db.know(archive)
        yield db


@pytest.fixture
async def db(account: LocalAccount) -> AsyncIterator[Database]:
    async for each in worker(account):
        yield each


@pytest.fixture
async def other(account: LocalAccount, db: Database) -> AsyncIterator[Database]:
    """Another process on the same account, which knows of nothing but what is stored."""
    async for each in worker(account):
        yield each


async def homes(db: Database) -> tuple[bool, bool]:
    """Whether employee 456 is in Current, and in Archive."""
    who = {"dept": "Sales", "id": 456}
    return (
        await db.table(Current).get_or_none(**who) is not None,
        await db.table(Archived).get_or_none(**who) is not None,
    )


@pytest.fixture
async def started(db: Database) -> Database:
    """A client has put the message to archive employee 456."""
    await db.table(Current).save(Current(dept="Sales", id=456, name="Ken"))
    await db.start(archive, dept="Sales", id=456)
    return db


class TestEventuallyConsistentTransactionsPattern:
    async def test_a_client_initiates_the_operation_by_one_message(
        self, account: LocalAccount, started: Database
    ) -> None:
        (message,) = account.queues.get_queue_client(OUTBOX).peek_messages()

        assert json.loads(json.loads(message.content)["arguments"]) == {"dept": "Sales", "id": 456}
        assert await homes(started) == (True, False)

    async def test_the_worker_archives_the_employee_and_deletes_the_message(
        self, account: LocalAccount, started: Database
    ) -> None:
        report = await started.work_once()

        assert (report.transactions, report.failures) == (1, 0)
        assert await homes(started) == (False, True)
        assert messages_in(account) == 0

    async def test_the_steps_are_those_of_the_guide_in_their_order(
        self, started: Database, faults: Faults
    ) -> None:
        await started.work_once()

        met = [name for line in faults.requests for name, is_it in STEPS.items() if is_it(line)]
        # A message is claimed when it is tried: the last request finds that there are no more.
        assert met == [*STEPS, "2 receive the message"]

    @pytest.mark.parametrize("step", STEPS, ids=[f"before {name}" for name in STEPS])
    async def test_after_a_crash_the_employee_ends_in_exactly_one_table(
        self,
        step: str,
        account: LocalAccount,
        clock: ManualClock,
        started: Database,
        other: Database,
        faults: Faults,
    ) -> None:
        faults.fail_next(STEPS[step], error=CrashError())
        with pytest.raises(CrashError):
            await started.work_once()
        in_between = await homes(other)
        assert in_between != (False, False)

        clock.advance(VISIBILITY + 1)
        await other.work_once()

        assert await homes(other) == (False, True)
        assert messages_in(account) == 0

    @pytest.mark.parametrize("step", list(STEPS)[2:])
    async def test_an_answer_that_is_lost_changes_nothing(
        self, step: str, account: LocalAccount, started: Database, faults: Faults
    ) -> None:
        faults.lose_answers(match=STEPS[step])

        await started.work_once()

        assert await homes(started) == (False, True)

    async def test_a_message_that_is_worked_on_is_hidden_from_other_workers(
        self, account: LocalAccount, started: Database, other: Database, faults: Faults
    ) -> None:
        faults.fail_next(STEPS["4 insert into Archive"], error=CrashError())
        with pytest.raises(CrashError):
            await started.work_once()

        assert (await other.work_once()).is_idle
        assert messages_in(account) == 1

    async def test_steps_must_be_declared_idempotent(self) -> None:
        async def charge_the_card(db: Database, arguments: dict[str, Any]) -> None:
            raise AssertionError

        with pytest.raises(DefinitionError) as refused:
            eventual("pay", charge_the_card)

        assert refused.value.code == "StepNotIdempotent"

    async def test_a_transaction_that_was_started_twice_does_no_more_than_once(
        self, started: Database
    ) -> None:
        await started.start(archive, dept="Sales", id=456)

        await started.drain()

        assert await homes(started) == (False, True)
        assert await keys_in(started, "Archive") == ["Sales/000456"]

    async def test_a_message_that_keeps_failing_goes_to_the_poison_queue_with_the_reason(
        self, account: LocalAccount, clock: ManualClock, db: Database
    ) -> None:
        @idempotent
        async def fail(_db: Database, _arguments: dict[str, Any]) -> None:
            raise UnavailableError("SearchDown", "The search service is down.")

        await db.start(eventual("index for search", fail), id=456)
        for _ in range(db.context.options.deliveries_max):
            await db.work_once()
            clock.advance(VISIBILITY + 1)

        assert messages_in(account) == 0
        (poison,) = account.queues.get_queue_client("partita-poison").peek_messages()
        told = json.loads(poison.content)
        assert told["deliveries"] == 5
        assert "The search service is down." in told["reason"]
        assert "index for search" in told["text"]

    async def test_transient_errors_are_retried(self, started: Database, faults: Faults) -> None:
        faults.answer_503(match=STEPS["4 insert into Archive"])

        report = await started.work_once()

        assert (report.transactions, report.failures) == (1, 0)

    async def test_steps_are_not_isolated(self, db: Database) -> None:
        seen: list[tuple[bool, bool]] = []

        @idempotent
        async def look(db: Database, _arguments: dict[str, Any]) -> None:
            seen.append(await homes(db))

        watched = eventual("watched", look, insert_into_archive, look, delete_from_current, look)
        await db.table(Current).save(Current(dept="Sales", id=456, name="Ken"))
        await db.start(watched, dept="Sales", id=456)
        await db.work_once()

        assert seen == [(True, False), (True, True), (False, True)]

    async def test_a_claim_is_renewed_while_the_work_goes_on(
        self, account: LocalAccount, faults: Faults
    ) -> None:
        def renewals() -> int:
            return sum(line.startswith("PUT") and "/messages/" in line for line in faults.requests)

        @idempotent
        async def take_long(_db: Database, _arguments: dict[str, Any]) -> None:
            while renewals() < 2:  # noqa: ASYNC110 - the worker sends them beside
                await asyncio.sleep(0.01)

        async with connect(account, visibility=0.2) as db:
            await db.start(eventual("long", take_long))
            report = await db.work_once()

        assert report.transactions == 1
        assert messages_in(account) == 0

    async def test_several_queues_and_workers_share_the_load(self, account: LocalAccount) -> None:
        done: list[int] = []

        @idempotent
        async def note(_db: Database, arguments: dict[str, Any]) -> None:
            done.append(arguments["id"])

        many = eventual("many", note)
        queues = ("work-a", "work-b", "work-c")
        async with (
            connect(account, queues=queues) as first,
            connect(account, queues=queues) as second,
        ):
            for number in range(24):
                await first.start(many, id=number)
            second.know(many)
            assert all(messages_in(account, queue) > 0 for queue in queues)
            await asyncio.gather(first.drain(sweep=False), second.drain(sweep=False))

        assert sorted(done) == list(range(24))

    async def test_steps_may_write_to_a_file_a_blob_and_another_account(
        self, account: LocalAccount, db: Database, tmp_path: Path
    ) -> None:
        elsewhere = partita.open_account(None)
        await db.table(Current).save(Current(dept="Sales", id=456, name="Ken"))

        @idempotent
        async def to_file(_db: Database, who: dict[str, Any]) -> None:
            (tmp_path / f"{who['id']}.json").write_text(json.dumps(who))

        @idempotent
        async def to_blob(_db: Database, who: dict[str, Any]) -> None:
            container = account.blobs.get_container_client("archive")
            if not container.exists():
                container.create_container()
            container.upload_blob(f"{who['id']}.json", json.dumps(who), overwrite=True)

        @idempotent
        async def to_another_account(db: Database, who: dict[str, Any]) -> None:
            employee = await db.table(Current).get(**who)
            async with connect(elsewhere) as far:
                table = (await opened(far, Archived)).table(Archived)
                await table.upsert(Archived(**who, name=employee.name))

        with elsewhere:
            await db.start(
                eventual("everywhere", to_file, to_blob, to_another_account), dept="Sales", id=456
            )
            report = await db.drain()
            async with connect(elsewhere) as far:
                assert await keys_in(far, "Archive") == ["Sales/000456"]

        assert report.transactions == 1
        assert (tmp_path / "456.json").exists()
        blob = account.blobs.get_blob_client("archive", "456.json")
        assert json.loads(blob.download_blob().readall())["id"] == 456

    async def test_a_transaction_can_be_started_together_with_a_change_or_not_at_all(
        self, db: Database, other: Database
    ) -> None:
        table = db.table(Current)
        ken = await table.save(Current(dept="Sales", id=456, name="Ken"))
        stale = evolve(ken, name="Kenneth")
        await table.patch(ken, name="Kenny")

        group = table.partition(dept="Sales").atomic()
        group.save(stale)
        group.start(archive, dept="Sales", id=456)
        with pytest.raises(ETagMismatchError):
            await group.__aexit__(None, None, None)
        await db.drain()
        assert await homes(db) == (True, False)

        ken = await table.get(dept="Sales", id=456)
        async with table.partition(dept="Sales").atomic() as group:
            group.save(evolve(ken, name="Ken K."))
            group.start(archive, dept="Sales", id=456)
        await other.sweep(age=0)  # as if the message had been lost
        assert await homes(db) == (False, True)

    async def test_arguments_are_plain_values(self, db: Database) -> None:
        with pytest.raises(UsageError) as refused:
            await db.start(archive, who=object())

        assert refused.value.code == "ArgumentsRefused"

    async def test_a_worker_that_does_not_know_the_transaction_leaves_it_to_others(
        self, account: LocalAccount, clock: ManualClock, started: Database
    ) -> None:
        async with connect(account, visibility=VISIBILITY) as stranger:
            report = await stranger.work_once()
        assert (report.transactions, report.failures, report.left) == (0, 0, 1)

        clock.advance(VISIBILITY + 1)
        assert (await started.work_once()).transactions == 1


# ---------------------------------------------------------------------------------------------
# Denormalization pattern


@entity(table="Staff", partition="{name}", row="dept")
class Department:
    name: str
    manager_id: int
    manager_name: Annotated[
        str | None, CopiedFrom("Worker", "name", where={"dept": "name", "id": "manager_id"})
    ] = None
    manager_email: Annotated[
        str | None, CopiedFrom("Worker", "email", where={"dept": "name", "id": "manager_id"})
    ] = None
    headcount: Annotated[int, CountOf("Worker", where={"dept": "name"})] = 0


@entity(table="Staff", partition="{dept}", row="emp_{id:06d}")
class Worker:
    dept: str
    id: int
    name: str
    email: str
    age: int = 0


@entity(table="Agents", partition="{dept}", row="{id:06d}")
class Agent:
    dept: str
    id: int
    email: str


@entity(table="Offices", partition="{dept}", row="{city}")
class Office:
    dept: str
    city: str
    head_id: int
    head_email: Annotated[
        str | None, CopiedFrom(Agent, "email", where={"dept": "dept", "id": "head_id"})
    ] = None


@pytest.fixture
async def staff(partita_db: Database) -> Table[Worker]:
    db = await opened(partita_db, Department, Worker)
    await db.table(Department).save(Department(name="Sales", manager_id=123))
    workers = db.table(Worker)
    await workers.save(Worker(dept="Sales", id=123, name="Jun Cao", email="junc@contoso.com"))
    await workers.save(Worker(dept="Sales", id=124, name="Ann", email="ann@contoso.com"))
    return workers


class TestDenormalizationPattern:
    async def test_the_details_of_a_department_are_one_point_query(
        self, partita_db: Database, staff: Table[Worker]
    ) -> None:
        with partita_db.measuring() as cost:
            sales = await partita_db.table(Department).get(name="Sales")

        assert (sales.manager_name, sales.manager_email) == ("Jun Cao", "junc@contoso.com")
        assert cost.requests == 1

    async def test_the_copy_changes_in_the_same_group_as_its_source(
        self, partita_db: Database, staff: Table[Worker], partita_faults: Faults
    ) -> None:
        jun = await staff.get(dept="Sales", id=123)
        partita_faults.requests.clear()

        await staff.patch(jun, email="cao@contoso.com")

        assert [line.split(" ")[0] for line in partita_faults.requests] == ["GET", "POST"]
        sales = await partita_db.table(Department).get(name="Sales")
        assert sales.manager_email == "cao@contoso.com"

    async def test_a_change_that_is_not_copied_does_not_touch_the_department(
        self, partita_db: Database, staff: Table[Worker]
    ) -> None:
        jun = await staff.get(dept="Sales", id=123)

        with partita_db.measuring() as cost:
            await staff.patch(jun, age=48)

        assert cost.requests == 1

    async def test_another_manager_brings_other_details(
        self, partita_db: Database, staff: Table[Worker]
    ) -> None:
        departments = partita_db.table(Department)
        sales = await departments.get(name="Sales")

        changed = await departments.save(evolve(sales, manager_id=124))

        assert changed.manager_email == "ann@contoso.com"
        assert (await departments.get(name="Sales")).manager_name == "Ann"

    async def test_a_manager_who_leaves_takes_the_details_along(
        self, partita_db: Database, staff: Table[Worker]
    ) -> None:
        await staff.delete(await staff.get(dept="Sales", id=123))

        sales = await partita_db.table(Department).get(name="Sales")
        assert (sales.manager_name, sales.headcount) == (None, 1)

    async def test_a_counter_equals_its_members_after_concurrent_changes(
        self, partita_db: Database, staff: Table[Worker]
    ) -> None:
        await asyncio.gather(
            *(
                staff.save(Worker(dept="Sales", id=number, name="x", email=f"{number}@x"))
                for number in range(200, 208)
            ),
            staff.delete_if_exists(dept="Sales", id=124),
        )

        sales = await partita_db.table(Department).get(name="Sales")
        assert sales.headcount == await staff.partition(dept="Sales").all().count() == 9

    async def test_a_write_whose_answer_was_lost_is_not_counted_twice(
        self, partita_db: Database, staff: Table[Worker], partita_faults: Faults
    ) -> None:
        partita_faults.lose_answers(match="$batch")

        await staff.save(Worker(dept="Sales", id=300, name="Eva", email="eva@contoso.com"))

        assert (await partita_db.table(Department).get(name="Sales")).headcount == 3

    async def test_nobody_sets_a_derived_field(
        self, partita_db: Database, staff: Table[Worker]
    ) -> None:
        departments = partita_db.table(Department)
        sales = await departments.get(name="Sales")

        saved = await departments.save(evolve(sales, headcount=1_000))

        assert saved.headcount == 2

    async def test_a_copy_in_another_table_follows_eventually(self, partita_db: Database) -> None:
        db = await opened(partita_db, Agent, Office)
        agents, offices = db.table(Agent), db.table(Office)
        bond = await agents.save(Agent(dept="Q", id=7, email="bond@contoso.com"))
        await offices.save(Office(dept="Q", city="London", head_id=7))

        await agents.patch(bond, email="007@contoso.com")
        before = await offices.get(dept="Q", city="London")
        await db.drain()
        after = await offices.get(dept="Q", city="London")

        assert (before.head_email, after.head_email) == ("bond@contoso.com", "007@contoso.com")

    async def test_copies_whose_partitions_cannot_be_told_are_refused(self) -> None:
        with pytest.raises(DefinitionError) as refused:

            @entity(table="Cities", partition="{city}", row="{dept}")
            class City:
                city: str
                dept: str
                head_id: int
                email: Annotated[
                    str | None, CopiedFrom(Agent, "email", where={"dept": "dept", "id": "head_id"})
                ] = None

        assert refused.value.code == "DerivedRefused"

    async def test_drift_that_a_stranger_made_is_found_and_repaired(
        self, partita_db: Database, staff: Table[Worker]
    ) -> None:
        raw = partita_db.raw("Staff")
        sales = await raw.get("Sales", "dept")
        await raw.patch(sales, {"Headcount": 77})

        drifts = await partita_db.verify(Department)
        await partita_db.repair(Department, drifts)

        assert [each.what for each in drifts] == ["headcount"]
        assert (await partita_db.table(Department).get(name="Sales")).headcount == 2


# ---------------------------------------------------------------------------------------------
# Materialised views (the guide names them as a key scenario)


@entity(table="Orders", partition="{customer}", row="{number:06d}")
class Order:
    customer: str
    number: int
    shop: str
    amount: int


@entity(table="Totals", partition="{customer}", row="total")
class Total:
    customer: str
    amount: int = 0
    orders: int = 0


@view(Order)
async def totals(db: Database, key: dict[str, Any], _order: Order | None) -> None:
    """Kept from what is there, not from what changed: a second call changes nothing."""
    customer = key["customer"]
    found = [each async for each in db.table(Order).partition(customer=customer)]
    amount = sum(each.amount for each in found)
    await db.table(Total).upsert(Total(customer=customer, amount=amount, orders=len(found)))


@pytest.fixture
async def orders(partita_db: Database) -> Table[Order]:
    db = await opened(partita_db, Order, Total)
    table = db.table(Order)
    for number, amount in ((1, 10), (2, 20), (3, 30)):
        await table.save(Order(customer="Ann", number=number, shop="Oslo", amount=amount))
    return table


class TestMaterialisedViews:
    async def test_a_view_follows_eventually_and_is_read_in_one_request(
        self, partita_db: Database, orders: Table[Order]
    ) -> None:
        assert await partita_db.table(Total).get_or_none(customer="Ann") is None
        await partita_db.drain()

        with partita_db.measuring() as cost:
            total = await partita_db.table(Total).get(customer="Ann")

        assert (total.amount, total.orders, cost.requests) == (60, 3, 1)

    async def test_a_view_is_told_of_deletions(
        self, partita_db: Database, orders: Table[Order]
    ) -> None:
        await orders.delete_if_exists(customer="Ann", number=2)
        await partita_db.drain()

        assert (await partita_db.table(Total).get(customer="Ann")).amount == 40

    async def test_a_view_that_is_called_again_and_late_says_the_same(
        self, partita_db: Database, orders: Table[Order]
    ) -> None:
        await partita_db.drain()

        await totals(partita_db, {"customer": "Ann", "number": 1}, None)

        assert (await partita_db.table(Total).get(customer="Ann")).amount == 60

    async def test_a_view_that_is_rebuilt_equals_the_one_that_followed(
        self, partita_db: Database, orders: Table[Order]
    ) -> None:
        await orders.update(lambda order: evolve(order, amount=5), customer="Ann", number=1)
        await partita_db.drain()
        followed = await partita_db.table(Total).get(customer="Ann")
        await partita_db.table(Total).delete(followed)

        async for order in orders.all().allow_scan():
            await totals(partita_db, {"customer": order.customer, "number": order.number}, order)

        assert await partita_db.table(Total).get(customer="Ann") == followed

    async def test_a_view_that_fails_is_called_again(
        self, partita_db: Database, orders: Table[Order], partita_faults: Faults
    ) -> None:
        partita_faults.fail_next(match="/Totals")

        with pytest.raises(UnavailableError):
            await partita_db.drain()
        await partita_db.drain()

        assert (await partita_db.table(Total).get(customer="Ann")).amount == 60


# ---------------------------------------------------------------------------------------------
# The protocol below: outbox, hint, worker, sweep


@entity(table="Cards", partition="{owner}", row="card_{id:06d}")
class Card:
    owner: str
    id: int
    code: str


by_code = index(Card, table="CardsByCode", partition="{code}", row="{owner:esc}_{id:06d}")


class TestTheCrossPartitionProtocol:
    @pytest.fixture
    async def cards(self, account: LocalAccount, db: Database) -> Table[Card]:
        return (await opened(db, Card)).table(Card)

    async def test_the_intent_is_written_in_the_group_of_the_change(
        self, db: Database, cards: Table[Card], faults: Faults
    ) -> None:
        faults.requests.clear()

        await cards.save(Card(owner="Ann", id=1, code="A"))

        assert ["$batch" in line for line in faults.requests].count(True) == 1
        assert len(await hidden_in(db, "Cards")) == 1

    async def test_hidden_rows_are_not_seen_by_typed_queries(
        self, db: Database, cards: Table[Card]
    ) -> None:
        await cards.save(Card(owner="Ann", id=1, code="A"))

        assert await cards.partition(owner="Ann").all().count() == 1
        assert [each.id async for each in cards.all().allow_scan()] == [1]

    async def test_the_intent_and_the_hint_are_gone_when_the_work_is_done(
        self, account: LocalAccount, db: Database, cards: Table[Card]
    ) -> None:
        await cards.save(Card(owner="Ann", id=1, code="A"))

        await db.work_once()

        assert await hidden_in(db, "Cards") == []
        assert messages_in(account) == 0
        assert await keys_in(db, "CardsByCode") == ["A/Ann_000001"]

    async def test_a_worker_writes_what_is_true_now_not_what_was_asked_for_then(
        self, account: LocalAccount, db: Database, cards: Table[Card], other: Database
    ) -> None:
        card = await cards.save(Card(owner="Ann", id=1, code="A"))
        card = await cards.patch(card, code="B")
        await cards.patch(card, code="C")
        await opened(other, Card)
        hints = [each.content for each in account.queues.get_queue_client(OUTBOX).peek_messages(3)]

        for hint in reversed(hints):
            await do_hint(other, hint)
            assert await keys_in(db, "CardsByCode") == ["C/Ann_000001"]

    async def test_a_sweep_does_what_no_hint_tells_and_leaves_the_young(
        self, account: LocalAccount, clock: ManualClock, faults: Faults
    ) -> None:
        async with connect(account, clock=clock) as first:
            cards = (await opened(first, Card)).table(Card)
            await cards.save(Card(owner="Ann", id=1, code="A"))
        account.queues.get_queue_client(OUTBOX).clear_messages()

        async with connect(account, clock=clock) as second:
            await opened(second, Card)
            assert (await second.sweep(age=60)).is_idle
            clock.advance(61)
            assert (await second.sweep(age=60)).entries == 1
            assert await keys_in(second, "CardsByCode") == ["A/Ann_000001"]

    @pytest.mark.parametrize("place", range(1, 9))
    async def test_a_worker_that_dies_after_any_request_leaves_nothing_undone(
        self,
        place: int,
        account: LocalAccount,
        clock: ManualClock,
        db: Database,
        cards: Table[Card],
        faults: Faults,
    ) -> None:
        card = await cards.save(Card(owner="Ann", id=1, code="A"))
        await cards.patch(card, code="B")
        async with connect(account, visibility=VISIBILITY) as dying:
            await opened(dying, Card)
            limit = faults.count + place
            faults.fail_next(lambda _: faults.count >= limit, error=CrashError())
            with pytest.raises(CrashError):
                await dying.drain(sweep=False)
            faults.stop()

        clock.advance(VISIBILITY + 1)
        async with connect(account) as heir:
            await opened(heir, Card)
            await heir.drain()
            assert await heir.verify(Card) == []
            assert await hidden_in(heir, "Cards") == []
        assert messages_in(account) == 0

    async def test_three_workers_with_every_hint_twice_end_with_the_truth(
        self, account: LocalAccount, db: Database, cards: Table[Card]
    ) -> None:
        saved = [await cards.save(Card(owner="Ann", id=n, code=f"A{n}")) for n in range(6)]
        for card in saved[:4]:
            await cards.patch(card, code=f"B{card.id}")
        await cards.delete(saved[5])
        queue = account.queues.get_queue_client(OUTBOX)
        for message in list(queue.peek_messages(32)):
            queue.send_message(message.content)

        async def work() -> None:
            async with connect(account) as one:
                await opened(one, Card)
                while not (await one.work_once()).is_idle:
                    pass

        await asyncio.gather(work(), work(), work())
        await db.drain()

        assert await db.verify(Card) == []
        codes = [key.split("/")[0] for key in await keys_in(db, "CardsByCode")]
        assert codes == ["A4", "B0", "B1", "B2", "B3"]


async def do_hint(db: Database, text: str) -> None:
    """Let a database do one outbox entry, in whatever order the test likes."""
    from partita.patterns.following.worker import do_entry
    from partita.patterns.writing.context import OutboxReference

    await db.run(do_entry(db.context, msgspec.json.decode(text, type=OutboxReference)))
