"""The guide's "About the Table service" and "Guidelines for table design", as Partita does them.

One test for each claim, through the public face on an account in this process.
"""

import asyncio
import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pytest

from partita.errors import (
    GroupRuleError,
    InvalidKeyError,
    LimitExceededError,
    ThrottledError,
    UsageError,
)
from partita.patterns import (
    CopiedFrom,
    Cost,
    CountOf,
    Database,
    DefinitionError,
    Options,
    Partial,
    Prices,
    ProjectionError,
    access,
    between,
    check_access,
    connect,
    entity,
    entity_type,
    evolve,
    index,
    lint,
    measure,
)
from partita.patterns.design.access_patterns import require_access
from partita.patterns.design.schema_lock import compare_lock, write_lock
from partita.patterns.faults import Faults
from partita.patterns.protocol.calls import Steps, WriteRows
from partita.patterns.protocol.capabilities import ORDERED
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.writing.context import Context
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import ServiceKind
from partita.service.http.request import Request, Response
from support.fake_world import FakeWorld
from support.live import LiveServer

T = TypeVar("T")


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str
    manager_id: int = 0
    manager_email: Annotated[
        str | None, CopiedFrom("Employee", "email", where={"dept": "name", "id": "manager_id"})
    ] = None
    headcount: Annotated[int, CountOf("Employee", where={"dept": "name"})] = 0


@entity(
    table="staff",
    partition="{dept}",
    row="emp_{id:06d}",
    access=[
        access("one employee", get=("dept", "id")),
        access("employees of a department", partition=("dept",)),
        access("by e-mail address", get=("dept", "email"), via="by_email"),
        access("by age, once a year", where=("age",), allow="scan"),
    ],
)
class Employee:
    dept: str
    id: int
    email: str
    age: int = 0
    note: str = ""


by_email = index(Employee, row="email_{email}", unique=True, name="by_email")


@entity(table="notes", partition="{topic}", row="{number:06d}")
class Note:
    topic: str
    number: int
    text: str = ""


@entity(table="visits", partition="{page:hash16}", row="{page:esc}_{at:asc}")
class Visit:
    page: str
    at: dt.datetime


@entity(table="readings", partition="{number:hash8}", row="{number:08d}")
class Reading:
    number: int


def person(number: int, **other: Any) -> Employee:
    return Employee(**{"dept": "Sales", "id": number, "email": f"e{number}@contoso.com", **other})


@pytest.fixture
async def db(partita_db: Database) -> Database:
    for cls in (Employee, Department, Note, Visit, Reading):
        partita_db.table(cls)
    await partita_db.create_tables()
    return partita_db


class TestDesignForQuerying:
    def test_every_declared_query_is_planned_before_anything_is_stored(self) -> None:
        plans = check_access(entity_type(Employee))

        assert [str(each) for each in plans] == [
            "one employee: point staff by dept, id",
            "employees of a department: range staff by dept",
            "by e-mail address: point staff via by_email by dept, email",
            "by age, once a year: table staff residual age",
        ]
        assert not any(each.is_refused for each in plans)

    def test_a_declared_query_that_scans_must_say_so(self) -> None:
        @entity(
            table="staff",
            partition="{dept}",
            row="{id:06d}",
            access=[access("by age", where=("age",))],
        )
        class Careless:
            dept: str
            id: int
            age: int = 0

        [plan] = check_access(entity_type(Careless))

        assert str(plan) == "REFUSED by age: table staff residual age"
        with pytest.raises(DefinitionError, match="reads more than it returns"):
            require_access(entity_type(Careless))

    def test_a_change_of_the_model_that_makes_a_query_dearer_is_found(self) -> None:
        kept = write_lock([entity_type(Employee)])

        @entity(
            table="staff",
            partition="{id:06d}",
            row="emp",
            name="Employee",
            access=[access("employees of a department", where=("dept",), allow="scan")],
        )
        class Changed:
            dept: str
            id: int
            email: str
            age: int = 0
            note: str = ""

        found = {each.code: each for each in compare_lock(kept, [entity_type(Changed)])}

        assert {"KeyTemplateChanged", "PlanWorse"} <= set(found)
        assert "'range staff by dept'" in found["PlanWorse"].message


class TestSpecifyBothKeys:
    async def test_a_point_query_is_one_request_for_one_entity(self, db: Database) -> None:
        await db.table(Employee).save(person(1))

        with db.measuring() as cost:
            found = await db.table(Employee).get(dept="Sales", id=1)

        assert found.email == "e1@contoso.com"
        assert (cost.requests, cost.entities) == (1, 1)

    async def test_a_point_query_that_finds_nothing_is_one_request_too(self, db: Database) -> None:
        with db.measuring() as cost:
            assert await db.table(Employee).get_or_none(dept="Sales", id=1) is None

        assert (cost.requests, cost.entities) == (1, 0)

    @pytest.mark.parametrize(
        "topic", ["O'Brien", "''", "50%", "%2F", "a b+c", "&=;,", "..", "", "\u00e9", "\U0001f600"]
    )
    async def test_no_key_needs_care(self, db: Database, topic: str) -> None:
        await db.table(Note).save(Note(topic=topic, number=1, text="kept"))

        assert (await db.table(Note).get(topic=topic, number=1)).text == "kept"
        assert [
            note.topic for note in await db.table(Note).partition(topic=topic).all().list()
        ] == [topic]

    async def test_a_key_that_lacks_a_field_or_has_a_wrong_one_is_refused_unsent(
        self, db: Database
    ) -> None:
        notes = db.table(Note)

        with db.measuring() as cost:
            with pytest.raises(UsageError, match="'number' is missing"):
                await notes.get(topic="tables")
            with pytest.raises(UsageError, match="'text' is not one of them"):
                await notes.get(topic="tables", number=1, text="x")
            with pytest.raises(InvalidKeyError):
                await notes.get(topic="tables", number="1")
            with pytest.raises(InvalidKeyError):
                await notes.get(topic="a/b", number=1)

        assert cost.requests == 0


class TestStoreDuplicateCopies:
    async def test_a_copy_holds_what_the_entity_holds(self, db: Database) -> None:
        employees = db.table(Employee)
        saved = await employees.save(person(1, age=30))
        await employees.save(evolve(saved, age=31, email="new@contoso.com"))

        with db.measuring() as cost:
            found = await employees.via(by_email).get(dept="Sales", email="new@contoso.com")

        assert found == person(1, age=31, email="new@contoso.com")
        assert cost.requests == 1
        assert (
            await employees.via(by_email).get_or_none(dept="Sales", email="e1@contoso.com") is None
        )
        assert await db.verify(Employee) == []

    async def test_a_copy_that_somebody_else_changed_is_found_and_put_right(
        self, db: Database
    ) -> None:
        await db.table(Employee).save(person(1, age=30))
        rows = db.raw("staff")
        copy = await rows.get("Sales", "email_e1@contoso.com")
        await rows.patch(copy, {"Age": 99})

        [drift] = found = await db.verify(Employee)

        assert (drift.kind, drift.what) == ("stale", "by_email")
        await db.repair(Employee, found)
        assert await db.verify(Employee) == []


class TestDenormalize:
    async def test_a_summary_entity_answers_with_one_point_query(self, db: Database) -> None:
        await db.table(Department).save(Department(name="Sales", manager_id=2))
        for number in (1, 2, 3):
            await db.table(Employee).save(person(number))

        with db.measuring() as cost:
            sales = await db.table(Department).get(name="Sales")

        assert (sales.headcount, sales.manager_email) == (3, "e2@contoso.com")
        assert cost.requests == 1

    async def test_the_summary_follows_when_its_source_is_changed_or_deleted(
        self, db: Database
    ) -> None:
        employees, departments = db.table(Employee), db.table(Department)
        await departments.save(Department(name="Sales", manager_id=1))
        manager = await employees.save(person(1))

        manager = await employees.save(evolve(manager, email="boss@contoso.com"))
        assert (await departments.get(name="Sales")).manager_email == "boss@contoso.com"

        await employees.delete(manager)
        sales = await departments.get(name="Sales")
        assert (sales.headcount, sales.manager_email) == (0, None)

    async def test_a_request_that_is_sent_again_counts_once(
        self, db: Database, partita_faults: Faults
    ) -> None:
        await db.table(Department).save(Department(name="Sales"))

        partita_faults.lose_answers(match="$batch")
        await db.table(Employee).save(person(1))

        assert (await db.table(Department).get(name="Sales")).headcount == 1


class TestUseCompoundKeyValues:
    async def test_a_compound_row_key_gives_two_ways_in(self, partita_db: Database) -> None:
        @entity(table="reviews", partition="{dept}", row="{employee:06d}_{year:04d}")
        class Review:
            dept: str
            employee: int
            year: int
            rating: int

        reviews = partita_db.table(Review)
        await partita_db.create_tables()
        for employee, year in ((122, 2013), (123, 2012), (123, 2013), (1234, 2012)):
            await reviews.save(Review(dept="Sales", employee=employee, year=year, rating=year % 10))
        sales = reviews.partition(dept="Sales")

        assert (await reviews.get(dept="Sales", employee=123, year=2012)).rating == 2
        found = await sales.range(employee=123).list()
        assert [(each.employee, each.year) for each in found] == [(123, 2012), (123, 2013)]
        later = await sales.range(employee=123, year=between(2013, 2020)).list()
        assert [each.year for each in later] == [2013]

    def test_parts_that_could_run_into_each_other_are_refused_at_definition(self) -> None:
        with pytest.raises(DefinitionError) as refused:

            @entity(table="reviews", partition="{dept}", row="{first}_{last}")
            class Ambiguous:
                dept: str
                first: str
                last: str

        assert "{first:esc}_{last}" in str(refused.value)


class TestUseQueryProjection:
    async def test_only_the_fields_that_are_needed_are_sent(
        self, db: Database, partita_faults: Faults
    ) -> None:
        for number in range(5):
            await db.table(Note).save(Note(topic="tables", number=number, text="x" * 5_000))
        everything = db.table(Note).partition(topic="tables").all()

        with db.measuring() as whole:
            await everything.list()
        with db.measuring() as some:
            found = await everything.select("number").list()

        assert [each.number for each in found] == [0, 1, 2, 3, 4]
        assert "$select=PartitionKey,RowKey" in partita_faults.requests[-1]
        assert some.bytes < whole.bytes / 50

    async def test_what_was_not_read_is_not_there(self, db: Database) -> None:
        await db.table(Note).save(Note(topic="tables", number=1, text="kept"))

        [part] = await db.table(Note).partition(topic="tables").all().select("number").list()

        with pytest.raises(ProjectionError, match="'text' was not selected"):
            _ = part.text

    async def test_a_projection_cannot_be_saved_back(self, db: Database) -> None:
        # Nor written in a program that a type checker has seen: hence the ignored complaint.
        notes = db.table(Note)
        await notes.save(Note(topic="tables", number=1, text="kept"))
        [part] = await notes.partition(topic="tables").all().select("number").list()
        assert isinstance(part, Partial)

        with pytest.raises(ProjectionError, match="would erase the others"):
            await notes.save(part)  # type: ignore[arg-type]

        assert (await notes.get(topic="tables", number=1)).text == "kept"


class TestDoNotCreateHotPartitions:
    async def test_a_spread_key_fills_its_partitions_evenly(self, db: Database) -> None:
        numbers = range(800)
        await db.table(Reading).save_all([Reading(number=number) for number in numbers])

        balance = await db.balance(Reading)

        assert balance.partitions == 8
        expected = len(numbers) / 8
        counts = Counter(entity_type(Reading).key({"number": n}).partition for n in numbers)
        chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi_square < 24.3  # 7 degrees of freedom, one chance in a thousand
        assert balance.advice == []

    async def test_the_reader_of_a_spread_partition_fans_in_in_order(self, db: Database) -> None:
        readings = db.table(Reading)
        await readings.save_all([Reading(number=number) for number in range(200)])

        query = readings.all().where(readings.c.number >= 100)
        assert query.explain().startswith("FAN-IN   readings   8 partitions")
        found = await query.list()

        assert [each.number for each in found] == list(range(100, 200))

    async def test_what_belongs_to_one_value_stays_in_one_partition(self, db: Database) -> None:
        visits = db.table(Visit)
        start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
        for minute in range(5):
            at = start + dt.timedelta(minutes=minute)
            await visits.save(Visit(page="/".join(("home", "news")).replace("/", "-"), at=at))

        with db.measuring() as cost:
            found = await visits.partition(page="home-news").all().list()

        assert [each.at.minute for each in found] == [0, 1, 2, 3, 4]
        assert cost.requests == 1

    def test_a_partition_key_that_only_grows_is_pointed_out(self) -> None:
        @entity(table="orders", partition="{placed:asc}", row="{customer}")
        class Order:
            placed: dt.datetime
            customer: str
            total: int

        [found] = lint(entity_type(Order))

        assert found.code == "MonotonePartition"
        assert 'partition="{customer}"' in found.hint


class VirtualDatabase(Database):
    """The public face over a world whose time passes only by sleeping."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__(
            "partita::memory:", keyring=None, direct=False, clock=world.clock, options=Options()
        )
        self._context = Context(world.clock, ORDERED)
        self._world = world

    async def run(self, steps: Steps[T], cost: Cost | None = None) -> T:
        return self._world.run(steps)


class TestAvoidSpikes:
    async def test_a_batch_of_writes_never_goes_above_its_rate(self) -> None:
        world = FakeWorld(latency=0.01)
        db = VirtualDatabase(world)
        notes = db.table(Note)
        await db.create_tables()
        sent: list[tuple[float, int]] = []

        def note_down(call: Any) -> None:
            if isinstance(call, WriteRows):
                sent.append((world.clock.monotonic(), len(call.operations)))

        world.before = note_down
        outcome = await notes.save_all(
            [Note(topic=f"t{number % 7}", number=number) for number in range(3_000)],
            max_rate=200,
        )

        assert len(outcome.entities) == 3_000  # slowed down, and none dropped
        assert world.clock.monotonic() > 13
        for start, _ in sent:
            within = sum(count for at, count in sent if start <= at < start + 1)
            assert within <= 200 + 200  # what one second brings, and what had been saved up

    async def test_a_busy_service_is_waited_for_as_long_as_it_says(self) -> None:
        world = FakeWorld()
        db = VirtualDatabase(world)
        notes = db.table(Note)
        await db.create_tables()
        left = [3]

        def refuse(call: Any) -> ThrottledError | None:
            if not isinstance(call, WriteRows) or not left[0]:
                return None
            left[0] -= 1
            error = ThrottledError("ServerBusy", "The server is busy.")
            error.retry_after = 7.0
            return error

        world.refuse = refuse
        outcome = await notes.save_all([Note(topic="tables", number=n) for n in range(10)])

        assert len(outcome.entities) == 10
        assert world.clock.monotonic() == pytest.approx(21, abs=1)

    async def test_a_busy_service_over_http_delays_and_loses_nothing(
        self, db: Database, partita_faults: Faults
    ) -> None:
        partita_faults.answer_503(times=5, retry_after=0.01, match="$batch")

        outcome = await db.table(Note).save_all([Note(topic="t", number=n) for n in range(30)])

        assert (len(outcome.entities), outcome.failures) == (30, [])
        assert await db.table(Note).partition(topic="t").all().count() == 30


class TestNoSeparateTableForEachTypeIsNeeded:
    async def test_one_group_changes_entities_of_two_types(self, db: Database) -> None:
        async with db.table(Employee).partition(dept="Sales").atomic() as group:
            group.save(Department(name="Sales", manager_id=1))
            group.save(person(1))

        sales = await db.table(Department).get(name="Sales")
        assert (sales.headcount, sales.manager_email) == (1, "e1@contoso.com")

    async def test_types_of_one_table_are_never_read_as_each_other(self, db: Database) -> None:
        await db.table(Department).save(Department(name="Sales"))
        await db.table(Employee).save(person(1))

        departments = await db.table(Department).partition(name="Sales").all().list()
        employees = await db.table(Employee).partition(dept="Sales").all().list()

        assert [type(each) for each in departments] == [Department]
        assert [type(each) for each in employees] == [Employee]


class TestMaximumThroughput:
    async def test_a_design_meets_the_published_targets_before_it_meets_the_cloud(
        self, tmp_path: Path
    ) -> None:
        server = LiveServer(tmp_path, "--enforce-targets")
        try:
            async with connect(server.announced["connection_string"]) as db:
                notes = db.table(Note)
                await db.create_tables()
                text = "x" * 10_180  # counts for 20 entities of 1 KiB
                hot = [Note(topic="one partition", number=n, text=text) for n in range(230)]

                with db.measuring() as cost:
                    outcome = await notes.save_all(hot)

                assert len(outcome.entities) == 230  # later, and all of them
                assert cost.requests > 3  # groups: some were answered 503 with Retry-After
        finally:
            server.stop()


async def save_together(db: Database, topic: str, notes: list[Note]) -> None:
    async with db.table(Note).partition(topic=topic).atomic() as group:
        for note in notes:
            group.save(note)


class TestCapacityConsiderations:
    async def test_a_group_takes_100_operations_and_no_more(self, db: Database) -> None:
        await save_together(db, "full", [Note(topic="full", number=n) for n in range(100)])
        assert await db.table(Note).partition(topic="full").all().count() == 100

        one_more = [Note(topic="over", number=n) for n in range(101)]
        with db.measuring() as cost, pytest.raises(LimitExceededError):
            await save_together(db, "over", one_more)

        assert cost.requests == 0

    async def test_a_group_updates_an_entity_once(self, db: Database) -> None:
        twice = [Note(topic="t", number=1), Note(topic="t", number=1, text="again")]

        with db.measuring() as cost, pytest.raises(GroupRuleError) as refused:
            await save_together(db, "t", twice)

        assert refused.value.code == "InvalidDuplicateRow"
        assert cost.requests == 0

    async def test_a_group_stays_in_one_partition(self, db: Database) -> None:
        with pytest.raises(GroupRuleError, match="one partition"):
            await save_together(db, "t", [Note(topic="another", number=1)])

    async def test_a_group_that_has_4_mib_is_refused_unsent(self, db: Database) -> None:
        notes = [Note(topic="t", number=n, text="\u20ac" * 30_000) for n in range(80)]

        with db.measuring() as cost, pytest.raises(LimitExceededError):
            await save_together(db, "t", notes)

        assert cost.requests == 0

    async def test_an_entity_above_1_mib_is_refused_unsent_with_advice(
        self, partita_db: Database
    ) -> None:
        text = "x" * 32_000

        @entity(table="large", partition="{name}", row="one")
        class Large:
            name: str
            a: str = text
            b: str = text
            c: str = text
            d: str = text
            e: str = text
            f: str = text
            g: str = text
            h: str = text
            i: str = text
            j: str = text
            k: str = text
            m: str = text
            n: str = text
            o: str = text
            p: str = text
            q: str = text
            r: str = text

        large = partita_db.table(Large)
        await partita_db.create_tables()

        with partita_db.measuring() as cost, pytest.raises(LimitExceededError) as refused:
            await large.save(Large(name="too much"))

        assert refused.value.code == "EntityTooLarge"
        assert "InBlob" in refused.value.hint
        assert cost.requests == 0

    def test_the_size_of_an_entity_is_known_before_it_is_sent(self) -> None:
        row = Row(RowKey("Sales", "00001"), {"Name": "Ken", "Age": 23})

        assert measure(row) == 4 + 2 * (5 + 5) + (8 + 8 + 4 + 6) + (8 + 6 + 8)

    def test_a_key_can_never_become_too_long(self) -> None:
        with pytest.raises(DefinitionError, match="longer than a key can be"):

            @entity(table="long", partition="{number:0600d}", row="one")
            class TooLong:
                number: int


class TestGroupsOnCommonEntities:
    async def test_two_groups_for_one_partition_are_never_under_way_together(
        self, partita_account: LocalAccount
    ) -> None:
        under_way: Counter[str] = Counter()
        most: Counter[str] = Counter()
        are_together = asyncio.Event()

        async def watch(kind: ServiceKind, request: Request, respond: Respond) -> Response:
            body = request.body
            topics = {f"t{n}" for n in range(4) if f"'t{n}'".encode() in body}
            topics |= {f"t{n}" for n in range(4) if f'"t{n}"'.encode() in body}
            under_way.update(topics)
            for topic in topics:
                most[topic] = max(most[topic], under_way[topic])
            if under_way.total() > 1:
                are_together.set()  # different partitions do go at once
            await are_together.wait()
            await asyncio.sleep(0.002)  # time for one too many
            try:
                return await respond(request)
            finally:
                under_way.subtract(topics)

        async with connect(partita_account) as db:
            notes = db.table(Note)
            await db.create_tables()
            partita_account.around = watch
            made = [Note(topic=f"t{n % 4}", number=n) for n in range(1_000)]
            outcome = await notes.save_all(made, concurrency=8)

        assert len(outcome.entities) == 1_000
        assert {topic: most[topic] for topic in ("t0", "t1", "t2", "t3")} == dict.fromkeys(
            ("t0", "t1", "t2", "t3"), 1
        )


class TestCostConsiderations:
    async def test_the_cost_of_every_call_is_what_was_sent(
        self, db: Database, partita_faults: Faults
    ) -> None:
        partita_faults.count = 0
        with db.measuring() as cost:
            saved = await db.table(Employee).save(person(1))
            await db.table(Employee).save(evolve(saved, age=40))
            await db.table(Employee).get(dept="Sales", id=1)
            await db.table(Employee).partition(dept="Sales").all().list()
            await db.table(Employee).get_or_none(dept="Sales", id=2)

        assert cost.requests == partita_faults.count

    async def test_retries_of_the_sdk_are_counted(
        self, db: Database, partita_faults: Faults
    ) -> None:
        partita_faults.answer_503(times=2)

        with db.measuring() as cost:
            assert await db.table(Note).get_or_none(topic="t", number=1) is None

        assert cost.requests == 3

    async def test_a_query_and_a_page_say_what_they_cost(self, db: Database) -> None:
        await db.table(Note).save_all([Note(topic="t", number=n) for n in range(30)])
        query = db.table(Note).partition(topic="t").all()

        page = await query.page(size=10)
        assert (page.cost.requests, page.cost.entities) == (1, 10)
        await query.list()

        assert (query.cost.requests, query.cost.entities) == (2, 40)

    def test_a_measured_cost_can_be_priced(self) -> None:
        prices = Prices(
            requests_10_000=Decimal("0.0004"),
            gib_month=Decimal("0.05"),
            gib_carried=Decimal("0.02"),
        )
        once = Cost(requests=2, entities=1, bytes=1024)

        assert prices.estimate(once, times=10_000_000) == Decimal("0.8") + Decimal("0.02") * (
            Decimal(1024 * 10_000_000) / 1024**3
        )
        assert prices.keep(10 * 1024**3) == Decimal("0.5")
