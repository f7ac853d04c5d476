"""The guide's "Implementation considerations", as Partita does them: one test for each claim."""

import asyncio
import datetime as dt
import operator
from collections.abc import Callable
from datetime import UTC, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import EdmType, EntityProperty, TableClient
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import (
    ContinuationError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    InvalidPropertyError,
    PartitaError,
    StoreBusyError,
    TableNotFoundError,
    UnavailableError,
    UnknownTypeError,
    UsageError,
)
from partita.patterns import (
    Database,
    Int32,
    Named,
    NewerVersionError,
    RawEntity,
    connect,
    entity,
    entity_type,
    evolve,
    starting_with,
    upcast,
)
from partita.patterns.faults import Faults
from partita.patterns.sync import Database as SyncDatabase
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import TABLES, ServiceKind
from partita.service.http.request import Request, Response

if TYPE_CHECKING:
    from partita.patterns.protocol.values import Value


@entity(table="notes", partition="{topic}", row="{number:06d}")
class Note:
    topic: str
    number: int
    text: str = ""
    stars: int = 0


@entity(table="staff", partition="{dept}", row="{last}")
class Person:
    dept: str
    last: str


class Grade(StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="values", partition="{group}", row="{number:06d}")
class Sample:
    group: str
    number: int
    whole: int
    small: Int32
    real: float
    text: str
    raw: bytes
    yes: bool
    at: dt.datetime
    id: UUID
    grade: Grade
    amount: Decimal
    maybe: int | None = None


@entity(table="company", partition="{dept}", row="EMPLOYEE_{id:06d}", name="Employee")
class Employee:
    dept: str
    id: int
    first: Annotated[str, Named("FirstName")] = ""


@entity(table="company", partition="{dept}", row="DEPARTMENT", name="Department")
class Department:
    dept: str
    count: Annotated[int, Named("EmployeeCount")] = 0


ALL = (Note, Person, Sample, Employee, Department)


@pytest.fixture
async def db(partita_db: Database) -> Database:
    for cls in ALL:
        partita_db.table(cls)
    await partita_db.create_tables()
    return partita_db


def notes(*numbers: int, topic: str = "tables") -> list[Note]:
    return [Note(topic=topic, number=number) for number in numbers]


class TestExecutingAPointQuery:
    async def test_an_entity_that_is_not_there_is_none_or_an_error(self, db: Database) -> None:
        with pytest.raises(EntityNotFoundError):
            await db.table(Note).get(topic="tables", number=1)

        assert await db.table(Note).get_or_none(topic="tables", number=1) is None

    async def test_a_table_that_is_not_there_is_never_taken_for_an_entity_that_is_not(
        self, partita_db: Database
    ) -> None:
        with pytest.raises(TableNotFoundError):
            await partita_db.table(Note).get_or_none(topic="tables", number=1)
        with pytest.raises(TableNotFoundError):
            await partita_db.table(Note).get(topic="tables", number=1)

    async def test_the_entity_is_of_the_expected_type(self, db: Database) -> None:
        await db.table(Note).save(Note(topic="tables", number=212, text="kept", stars=2**40))

        found = await db.table(Note).get(topic="tables", number=212)

        assert found == Note(topic="tables", number=212, text="kept", stars=2**40)
        assert type(found) is Note


COMPARISONS: list[Callable[[Any, Any], Any]] = [
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]


class TestRetrievingMultipleEntities:
    async def test_last_names_from_b_to_c_are_one_range(self, db: Database) -> None:
        people = db.table(Person)
        for last in ("Adams", "Baker", "Byrne", "Cao"):
            await people.save(Person(dept="Sales", last=last))

        with db.measuring() as cost:
            found = await people.partition(dept="Sales").range(last=starting_with("B")).list()

        assert [each.last for each in found] == ["Baker", "Byrne"]
        assert cost.requests == 1

    async def test_every_comparison_of_every_type_means_what_python_means(
        self, db: Database
    ) -> None:
        samples = db.table(Sample)
        made = [_sample(number) for number in range(6)]
        await samples.save_all(made)
        group = samples.partition(group="a")

        for name in ("whole", "small", "real", "text", "raw", "at"):
            for compare in COMPARISONS:
                for middle in made[1:4:2]:
                    value = getattr(middle, name)
                    found = await group.where(compare(getattr(samples.c, name), value)).list()
                    wanted = [each for each in made if compare(getattr(each, name), value)]
                    assert found == wanted, (name, compare)
        for name in ("yes", "id", "grade", "amount"):
            for compare in COMPARISONS[:2]:
                value = getattr(made[2], name)
                found = await group.where(compare(getattr(samples.c, name), value)).list()
                assert found == [e for e in made if compare(getattr(e, name), value)], name

    async def test_conditions_are_joined_by_and_or_and_not(self, db: Database) -> None:
        await db.table(Note).save_all(
            [Note(topic="t", number=n, stars=n % 4, text="x" * n) for n in range(12)]
        )
        c = db.table(Note).c
        condition = (c.stars == 1) & ~((c.text == "x") | (c.text > "xxxxxxx"))

        found = await db.table(Note).partition(topic="t").where(condition).list()

        assert [each.number for each in found] == [5]

    async def test_quotes_in_a_value_stay_in_the_value(self, db: Database) -> None:
        hostile = "' or PartitionKey ne '"
        await db.table(Note).save_all(
            [Note(topic="t", number=1, text=hostile), *notes(2, topic="t")]
        )

        found = (
            await db.table(Note).partition(topic="t").where(db.table(Note).c.text == hostile).list()
        )

        assert [each.number for each in found] == [1]


def _sample(number: int) -> Sample:
    return Sample(
        group="a",
        number=number,
        whole=(number - 2) * 2**40,
        small=Int32(number - 2),
        real=(number - 2) / 3,
        text="abcdef"[number] * 2,
        raw=bytes([number * 40]),
        yes=number % 2 == 0,
        at=dt.datetime(2024, 1, 1 + number, 12, 30, 15, 123456, tzinfo=UTC),
        id=UUID(int=number << 100),
        grade=Grade.SENIOR if number > 2 else Grade.JUNIOR,
        amount=Decimal(number) / 4,
        maybe=number if number % 2 else None,
    )


class TestRetrievingLargeNumbersOfEntities:
    async def test_more_than_a_page_holds_is_read_on_by_itself(self, db: Database) -> None:
        await db.table(Note).save_all(notes(*range(2_100)))
        query = db.table(Note).partition(topic="tables").all()

        found = [each.number async for each in query]

        assert found == list(range(2_100))
        assert query.cost.requests == 3  # pages of a thousand

    @pytest.mark.parametrize("seed", range(5))
    async def test_every_entity_comes_once_however_the_service_pages(
        self, db: Database, partita_faults: Faults, seed: int
    ) -> None:
        await db.table(Note).save_all(notes(*range(30)))
        partita_faults.hostile_paging(seed)  # short pages, and empty ones that are not the end
        query = db.table(Note).partition(topic="tables").all()

        assert [each.number async for each in query] == list(range(30))
        assert [each.number async for each in query.limit(17)] == list(range(17))
        assert await query.count() == 30
        gathered, continuation = [], None
        while True:
            page = await query.page(size=7, continuation=continuation)
            gathered += [each.number for each in page.entities]
            if (continuation := page.continuation) is None:
                break
            assert len(page.entities) == 7  # full pages, whatever the service sends
        assert gathered == list(range(30))

    async def test_a_continuation_outlives_the_process(
        self, db: Database, partita_account: LocalAccount
    ) -> None:
        await db.table(Note).save_all(notes(*range(25)))
        first = await db.table(Note).partition(topic="tables").page(size=10)
        stored = str(first.continuation)

        async with connect(partita_account) as later:
            rest = (
                await later.table(Note)
                .partition(topic="tables")
                .page(size=100, continuation=stored)
            )

        assert [each.number for each in first.entities + rest.entities] == list(range(25))
        assert rest.continuation is None

    async def test_a_continuation_of_another_query_is_refused(self, db: Database) -> None:
        await db.table(Note).save_all([*notes(*range(5)), *notes(*range(5), topic="other")])
        page = await db.table(Note).partition(topic="tables").page(size=2)

        with pytest.raises(ContinuationError) as refused:
            await db.table(Note).partition(topic="other").page(continuation=page.continuation)
        assert refused.value.code == "ContinuationMismatch"
        with pytest.raises(ContinuationError):
            await db.table(Note).partition(topic="tables").page(continuation="nonsense")

    async def test_a_limit_is_exact_and_reads_no_more_than_it_needs(self, db: Database) -> None:
        await db.table(Note).save_all(notes(*range(50)))

        with db.measuring() as cost:
            found = await db.table(Note).partition(topic="tables").all().limit(10).list()

        assert len(found) == 10
        assert (cost.requests, cost.entities) == (1, 10)


class TestServerSideProjection:
    async def test_the_keys_come_along(self, db: Database) -> None:
        await db.table(Note).save(Note(topic="tables", number=7, text="x" * 1000, stars=3))

        [part] = (
            await db.table(Note).partition(topic="tables").all().select("stars", "number").list()
        )

        assert (part.number, part.stars) == (7, 3)

    async def test_a_smaller_class_is_a_projection_too(self, db: Database) -> None:
        class Stars:
            number: int
            stars: int

            def __init__(self, number: int, stars: int) -> None:
                self.number, self.stars = number, stars

        await db.table(Note).save(Note(topic="tables", number=7, stars=3))

        [part] = await db.table(Note).partition(topic="tables").all().select(Stars).list()

        assert isinstance(part, Stars)
        assert (part.number, part.stars) == (7, 3)


class TestModifyingEntities:
    async def test_a_failed_group_names_the_entity_that_made_it_fail(self, db: Database) -> None:
        table = db.table(Note)
        taken = await table.save(Note(topic="tables", number=500, text="first"))

        for place in range(100):
            group_of = notes(*range(place), 500, *range(place + 1, 100))
            with pytest.raises(EntityExistsError) as refused:
                await _save_together(db, group_of)
            assert refused.value.facts["index"] == place
            assert refused.value.entity is group_of[place]

        assert await table.partition(topic="tables").all().list() == [taken]

    async def test_a_new_entity_must_be_new(self, db: Database) -> None:
        await db.table(Note).save(Note(topic="tables", number=1))

        with pytest.raises(EntityExistsError):
            await db.table(Note).save(Note(topic="tables", number=1))


async def _save_together(db: Database, members: list[Note]) -> None:
    async with db.table(Note).partition(topic="tables").atomic() as group:
        for note in members:
            group.save(note)


class TestManagingConcurrency:
    async def test_a_lost_update_is_impossible_unless_it_is_asked_for(self, db: Database) -> None:
        table = db.table(Note)
        mine = await table.save(Note(topic="tables", number=1))
        theirs = await table.get(topic="tables", number=1)
        await table.save(evolve(theirs, text="theirs"))

        for attempt in (
            table.save(evolve(mine, text="mine")),
            table.patch(mine, text="mine"),
            table.delete(mine),
        ):
            with pytest.raises(ETagMismatchError):
                await attempt
        assert (await table.get(topic="tables", number=1)).text == "theirs"

        await table.save(evolve(mine, text="mine"), force=True)
        assert (await table.get(topic="tables", number=1)).text == "mine"

    async def test_two_writers_who_retry_come_one_after_the_other(self, db: Database) -> None:
        table = db.table(Note)
        await table.save(Note(topic="tables", number=1))

        async def add(letter: str) -> None:
            for _ in range(10):
                await table.update(
                    lambda note: evolve(note, text=note.text + letter, stars=note.stars + 1),
                    topic="tables",
                    number=1,
                )

        await asyncio.gather(add("a"), add("b"), add("c"))

        found = await table.get(topic="tables", number=1)
        assert found.stars == 30
        assert sorted(found.text) == sorted("a" * 10 + "b" * 10 + "c" * 10)

    async def test_a_writer_who_never_wins_gives_up_and_says_so(
        self, partita_account: LocalAccount
    ) -> None:
        async with connect(partita_account, attempts_max=3) as db:
            table = db.table(Note)
            await db.create_tables()
            await table.save(Note(topic="tables", number=1))
            calls: list[int] = []

            async def interfere() -> None:
                calls.append(1)
                await table.upsert(Note(topic="tables", number=1, stars=len(calls)))

            def decide(note: Note) -> Any:
                async def slowly() -> Note:
                    await interfere()
                    return evolve(note, text="mine")

                return slowly()

            with pytest.raises(StoreBusyError) as refused:
                await table.update(decide, topic="tables", number=1)

        assert (refused.value.code, len(calls)) == ("TooManyConflicts", 3)

    async def test_an_answer_that_was_lost_is_not_taken_for_a_conflict(
        self, db: Database, partita_faults: Faults
    ) -> None:
        saved = await db.table(Note).save(Note(topic="tables", number=1))

        partita_faults.lose_answers()
        saved = await db.table(Note).save(evolve(saved, text="once"))
        saved = await db.table(Note).save(evolve(saved, text="twice"))

        assert (await db.table(Note).get(topic="tables", number=1)).text == "twice"


class TestMergeOrReplace:
    async def test_a_replace_by_an_older_program_keeps_what_it_does_not_know(
        self, db: Database, partita_account: LocalAccount
    ) -> None:
        @entity(table="notes", partition="{topic}", row="{number:06d}", name="Note")
        class NewerNote:
            topic: str
            number: int
            text: str = ""
            stars: int = 0
            colour: str = "white"

        async with connect(partita_account) as newer:
            await newer.table(NewerNote).save(NewerNote(topic="t", number=1, colour="red"))
            older = await db.table(Note).get(topic="t", number=1)
            await db.table(Note).save(evolve(older, text="changed"))

            found = await newer.table(NewerNote).get(topic="t", number=1)

        assert (found.text, found.colour) == ("changed", "red")

    async def test_a_merge_sends_what_changed_and_nothing_else(
        self, db: Database, partita_account: LocalAccount
    ) -> None:
        saved = await db.table(Note).save(Note(topic="t", number=1, text="x" * 500, stars=1))
        bodies: list[bytes] = []

        async def watch(_: ServiceKind, request: Request, respond: Respond) -> Response:
            bodies.append(request.body)
            return await respond(request)

        partita_account.around = watch
        await db.table(Note).patch(saved, stars=2)

        assert b"Stars" in bodies[0]
        assert b"Text" not in bodies[0]
        assert (await db.table(Note).get(topic="t", number=1)).text == "x" * 500

    async def test_replace_and_merge_fail_if_the_entity_is_not_there(self, db: Database) -> None:
        saved = await db.table(Note).save(Note(topic="t", number=1))
        await db.table(Note).delete(await db.table(Note).get(topic="t", number=1))

        with pytest.raises(EntityNotFoundError):
            await db.table(Note).save(evolve(saved, text="late"))
        with pytest.raises(EntityNotFoundError):
            await db.table(Note).patch(saved, text="late")

    async def test_an_upsert_makes_it_or_takes_its_place(self, db: Database) -> None:
        table = db.table(Note)
        await table.upsert(Note(topic="t", number=1, text="made"))
        stored = await db.raw("notes").get("t", "000001")
        await db.raw("notes").save(
            RawEntity("t", "000001", {**stored.properties, "Foreign": "x"}, stored.etag)
        )

        await table.upsert(Note(topic="t", number=1, text="merged"), merge=True)
        assert "Foreign" in (await db.raw("notes").get("t", "000001")).properties

        await table.upsert(Note(topic="t", number=1, text="replaced"))
        assert "Foreign" not in (await db.raw("notes").get("t", "000001")).properties


class TestHeterogeneousEntityTypes:
    async def test_prefix_and_property_both_tell_the_type(self, db: Database) -> None:
        await db.table(Employee).save(Employee(dept="Sales", id=123))
        await db.table(Department).save(Department(dept="Sales"))

        stored = {
            row.row_key: row.properties["EntityType"]
            async for row in db.raw("company").query("PartitionKey eq 'Sales'")
        }

        assert stored == {"DEPARTMENT": "Department", "EMPLOYEE_000123": "Employee"}

    async def test_an_entity_that_says_another_type_than_its_key_is_refused(
        self, db: Database
    ) -> None:
        await db.raw("company").save(
            RawEntity("Sales", "EMPLOYEE_000001", {"EntityType": "Department"})
        )

        with pytest.raises(UnknownTypeError):
            await db.table(Employee).get(dept="Sales", id=1)

    async def test_the_property_can_have_another_name(self, partita_db: Database) -> None:
        @entity(table="things", partition="{box}", row="{id:04d}", type_property="Kind")
        class Thing:
            box: str
            id: int

        await _created(partita_db, Thing)
        await partita_db.table(Thing).save(Thing(box="a", id=1))

        assert (await partita_db.raw("things").get("a", "0001")).properties["Kind"] == "Thing"

    async def test_three_ways_to_read_the_same_entities(self, db: Database) -> None:
        await db.table(Employee).save(Employee(dept="Sales", id=1, first="Ken"))
        await db.table(Department).save(Department(dept="Sales", count=1))

        known = await db.table(Employee).get(dept="Sales", id=1)
        bags = [row async for row in db.raw("company").query("PartitionKey eq 'Sales'")]
        mixed = [each async for each in db.mixed(Employee, Department).partition("Sales")]

        assert known == Employee(dept="Sales", id=1, first="Ken")
        assert [bag.properties.get("FirstName") for bag in bags] == [None, "Ken"]
        assert mixed == [Department(dept="Sales", count=1), known]

    async def test_a_table_that_net_wrote_is_read_as_it_is(
        self, partita_db: Database, partita_account: LocalAccount
    ) -> None:
        @entity(table="foreign", partition="{dept}", row="{id:05d}", type_property=None)
        class Clerk:
            dept: str
            id: int
            first_name: str
            age: int

        foreign = partita_account.tables.create_table("foreign")
        foreign.create_entity(
            {
                "PartitionKey": "Sales",
                "RowKey": "00010",
                "FirstName": "Ken",
                "Age": EntityProperty(23, EdmType.INT32),
                "Hired": dt.datetime(2014, 8, 22, tzinfo=UTC),
            }
        )

        ken = await partita_db.table(Clerk).get(dept="Sales", id=10)
        await partita_db.table(Clerk).save(evolve(ken, age=24))

        stored = foreign.get_entity("Sales", "00010")
        assert (ken.first_name, ken.age) == ("Ken", 23)
        assert "EntityType" not in stored
        assert stored["Hired"] == dt.datetime(2014, 8, 22, tzinfo=UTC)

    async def test_a_resolver_tells_the_types_of_entities_that_do_not(
        self, partita_db: Database
    ) -> None:
        @entity(table="old", partition="{dept}", row="{id:05d}", type_property=None)
        class Clerk:
            dept: str
            id: int
            first_name: str

        @entity(table="old", partition="{dept}", row="Department", type_property=None)
        class Office:
            dept: str
            employee_count: int

        def resolve(stored: RawEntity) -> type[Any] | None:
            if "FirstName" in stored.properties:
                return Clerk
            return Office if "EmployeeCount" in stored.properties else None

        await _created(partita_db, Clerk, Office)
        old = partita_db.raw("old")
        await old.save(RawEntity("Sales", "00010", {"FirstName": "Ken"}))
        await old.save(RawEntity("Sales", "Department", {"EmployeeCount": Int32(42)}))
        await old.save(RawEntity("Sales", "What", {"Else": True}))

        read = partita_db.mixed(Clerk, Office, resolve=resolve)
        kept = partita_db.mixed(Clerk, Office, resolve=resolve, keep_unknown=True)

        found = [each async for each in read.partition("Sales")]
        assert found == [
            Clerk(dept="Sales", id=10, first_name="Ken"),
            Office(dept="Sales", employee_count=42),
        ]
        everything = [each async for each in kept.partition("Sales")]
        assert [type(each) for each in everything] == [Clerk, Office, RawEntity]

    async def test_a_resolver_can_refuse(self, db: Database) -> None:
        def refuse(stored: RawEntity) -> type[Any] | None:
            message = f"unrecognized entity {stored.row_key}"
            raise ValueError(message)

        await db.raw("company").save(RawEntity("Sales", "What", {}))

        with pytest.raises(ValueError, match="unrecognized entity What"):
            [each async for each in db.mixed(Employee, resolve=refuse).partition("Sales")]


async def _created(db: Database, *classes: type[Any]) -> None:
    for cls in classes:
        db.table(cls)
    await db.create_tables()


class TestVersionInTheEntityType:
    async def test_an_older_entity_is_brought_up_when_it_is_read_and_not_before(
        self, partita_db: Database
    ) -> None:
        @entity(table="versions", partition="{dept}", row="{id:04d}", version=3, name="Worker")
        class Worker:
            dept: str
            id: int
            first: str
            last: str
            full_time: bool

        @upcast(Worker, from_version=1)
        def split(old: dict[str, Any]) -> dict[str, Any]:
            first, _, last = old.pop("name").partition(" ")
            return old | {"first": first, "last": last}

        @upcast(Worker, from_version=2)
        def assume(old: dict[str, Any]) -> dict[str, Any]:
            return {"full_time": True, **old}

        await _created(partita_db, Worker)
        stored = await partita_db.raw("versions").save(
            RawEntity("Sales", "0001", {"EntityType": "Worker", "Name": "Jun Cao"})
        )

        read = await partita_db.table(Worker).get(dept="Sales", id=1)
        assert (read.first, read.last, read.full_time) == ("Jun", "Cao", True)
        assert await partita_db.raw("versions").get("Sales", "0001") == stored

        await partita_db.table(Worker).save(evolve(read, full_time=False))
        row = await partita_db.raw("versions").get("Sales", "0001")
        assert (row.properties["EntityVersion"], "Name" in row.properties) == (3, False)

    async def test_a_newer_entity_is_refused_or_read_raw(self, db: Database) -> None:
        newer: dict[str, Value] = {
            "EntityType": "Employee",
            "EntityVersion": Int32(9),
            "Given": "Ken",
        }
        await db.raw("company").save(RawEntity("Sales", "EMPLOYEE_000001", dict(newer)))

        with pytest.raises(NewerVersionError, match="version 9, newer than version 1"):
            await db.table(Employee).get(dept="Sales", id=1)
        with pytest.raises(NewerVersionError):
            [each async for each in db.mixed(Employee).partition("Sales")]

        [raw] = [each async for each in db.mixed(Employee, keep_unknown=True).partition("Sales")]
        assert isinstance(raw, RawEntity)
        assert raw.properties == newer

    @given(name=st.text(max_size=20), age=st.integers(-(2**63), 2**63 - 1))
    def test_whatever_is_stored_by_the_old_version_is_read_by_the_new(
        self, name: str, age: int
    ) -> None:
        @entity(table="versions", partition="{id:04d}", row="one", version=2)
        class Aged:
            id: int
            first: str
            last: str
            age: int

        @upcast(Aged, from_version=1)
        def split(old: dict[str, Any]) -> dict[str, Any]:
            first, _, last = old.pop("name").partition(" ")
            return old | {"first": first, "last": last}

        stored: dict[str, Value] = {"Name": name, "Age": age}

        now = entity_type(Aged).upcast(stored, {"id": 1}, 1)

        first, _, last = name.partition(" ")
        assert (now["First"], now["Last"]) == (first, last)
        assert now["Age"] == age
        assert stored == {"Name": name, "Age": age}


class TestModifyingHeterogeneousEntityTypes:
    async def test_an_entity_is_changed_without_knowing_its_type(self, db: Database) -> None:
        await db.table(Department).save(Department(dept="Sales", count=41))
        company = db.raw("company")
        department = await company.get("Sales", "DEPARTMENT")

        await company.patch(department, {"EmployeeCount": 42})

        assert (await db.table(Department).get(dept="Sales")).count == 42

    async def test_a_property_that_is_not_there_is_not_made_by_mistake(self, db: Database) -> None:
        await db.table(Department).save(Department(dept="Sales"))
        department = await db.raw("company").get("Sales", "DEPARTMENT")

        with pytest.raises(UsageError, match="has no property 'EmployeeCounts'"):
            await db.raw("company").patch(department, {"EmployeeCounts": 1})
        with pytest.raises(UsageError, match="is of type int"):
            await db.raw("company").patch(department, {"EmployeeCount": "1"})

    async def test_every_type_goes_back_as_it_came_to_the_last_digit(
        self, partita_db: Database, partita_account: LocalAccount
    ) -> None:
        foreign = partita_account.tables.create_table("foreign")
        foreign.create_entity(
            {
                "PartitionKey": "a",
                "RowKey": "b",
                "Small": EntityProperty(7, EdmType.INT32),
                "Whole": EntityProperty(7, EdmType.INT64),
                "Real": 7.0,
                "Text": "7",
                "Raw": b"\x07",
                "Yes": True,
                "Id": UUID(int=7),
                "At": EntityProperty("2014-07-31T18:00:00.1234567Z", EdmType.DATETIME),
            }
        )
        rows = partita_db.raw("foreign")
        before = await rows.get("a", "b")

        await rows.save(RawEntity("a", "copy", before.properties))

        after = await rows.get("a", "copy")
        assert after.properties == before.properties
        assert isinstance(after.properties["Small"], Int32)
        assert type(after.properties["Whole"]) is int
        copied: Any = foreign.get_entity("a", "copy")
        assert copied["At"].tables_service_value == "2014-07-31T18:00:00.1234567Z"
        assert copied["Whole"] == EntityProperty(7, EdmType.INT64)

    async def test_an_entity_is_deleted_without_knowing_its_type(self, db: Database) -> None:
        await db.table(Employee).save(Employee(dept="Sales", id=1))

        await db.raw("company").delete(RawEntity("Sales", "EMPLOYEE_000001", {}))

        assert await db.table(Employee).get_or_none(dept="Sales", id=1) is None


class TestControllingAccess:
    async def test_a_user_reaches_that_user_s_entities_and_no_neighbour_s(
        self, partita_db: Database, partita_account: LocalAccount
    ) -> None:
        @entity(table="files", partition="{dept}", row="{owner:esc}_{name}")
        class File:
            dept: str
            owner: str
            name: str

        await _created(partita_db, File)
        for owner in ("user", "user1", "user10", "user2"):
            await partita_db.table(File).save(File(dept="Sales", owner=owner, name="plan"))
        grant = partita_db.grant(
            File, permissions="rd", ttl=timedelta(minutes=5), dept="Sales", owner="user1"
        )

        arguments: dict[str, Any] = partita_account.client_arguments(TABLES)
        arguments["credential"] = AzureSasCredential(grant.token)
        with TableClient(table_name="files", **arguments) as holder:
            assert [each["RowKey"] for each in holder.list_entities()] == ["user1_plan"]
            for other in ("user", "user10", "user2"):
                with pytest.raises(ResourceNotFoundError):
                    holder.get_entity("Sales", f"{other}_plan")
                with pytest.raises(HttpResponseError):
                    holder.delete_entity("Sales", f"{other}_plan")
        assert await partita_db.table(File).partition(dept="Sales").all().count() == 4


class TestAsynchronousAndParallelOperations:
    async def test_partitions_are_read_at_once_and_answered_in_their_order(
        self, db: Database, partita_account: LocalAccount
    ) -> None:
        topics = [f"t{n}" for n in range(9)]
        for topic in topics:
            await db.table(Note).save_all(notes(1, 2, topic=topic))
        under_way, most = [0], [0]
        has_met_limit = asyncio.Event()

        async def watch(_: ServiceKind, request: Request, respond: Respond) -> Response:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            if under_way[0] == 3:
                has_met_limit.set()
            await has_met_limit.wait()
            await asyncio.sleep(0.005)  # time for one too many
            try:
                return await respond(request)
            finally:
                under_way[0] -= 1

        partita_account.around = watch
        partitions = db.table(Note).partitions([{"topic": t} for t in reversed(topics)], limit=3)
        found = await partitions.list()

        assert [each[0].topic for each in found] == list(reversed(topics))
        assert [len(each) for each in found] == [2] * 9
        assert most[0] == 3

    async def test_the_first_error_stops_the_others(
        self, db: Database, partita_faults: Faults
    ) -> None:
        topics = [{"topic": f"t{n}"} for n in range(50)]
        partita_faults.fail_next("t3'")
        before = partita_faults.count

        with pytest.raises(UnavailableError):
            await db.table(Note).partitions(topics, limit=2).list()

        assert partita_faults.count - before < 10

    async def test_many_saves_go_at_once(self, db: Database, partita_faults: Faults) -> None:
        partita_faults.latency(0.05)

        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.gather(*(db.table(Note).save(note) for note in notes(*range(20))))

        assert loop.time() - start < 20 * 0.05
        assert await db.table(Note).partition(topic="tables").all().count() == 20

    def test_programs_without_a_loop_have_the_same_verbs(
        self, partita_db_sync: SyncDatabase
    ) -> None:
        table = partita_db_sync.table(Note)
        partita_db_sync.create_tables()
        saved = table.save(Note(topic="tables", number=1))
        table.save(evolve(saved, text="changed"))

        assert [each.text for each in table.partition(topic="tables").all()] == ["changed"]
        with partita_db_sync.measuring() as cost:
            assert table.get(topic="tables", number=1).text == "changed"
        assert cost.requests == 1


class TestStoredValues:
    """What the guide takes from C# for granted, and Python does not give."""

    async def test_a_value_that_is_not_of_its_type_is_refused_unsent(self, db: Database) -> None:
        wrong: Any = "seven"

        with db.measuring() as cost, pytest.raises(InvalidPropertyError, match=r"Note\.stars"):
            await db.table(Note).save(Note(topic="t", number=1, stars=wrong))

        assert cost.requests == 0

    async def test_a_time_without_a_zone_is_refused(self, db: Database) -> None:
        sample = evolve(_sample(1), at=dt.datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point

        with pytest.raises(PartitaError, match="zone"):
            await db.table(Sample).save(sample)
