"""The guide's "Modelling relationships", as Partita does it: one test for each option."""

from datetime import timedelta
from typing import Annotated, Any

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import HttpResponseError
from azure.data.tables import TableClient

from partita.clock import ManualClock
from partita.errors import (
    LimitExceededError,
    PartitaError,
    UnavailableError,
    UnknownTypeError,
)
from partita.patterns import (
    CopiedFrom,
    CountOf,
    Database,
    DefinitionError,
    RawEntity,
    Table,
    connect,
    entity,
    evolve,
    reference,
)
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount, Respond, open_account
from partita.service.hosting.services import TABLES, ServiceKind
from partita.service.http.request import Request, Response


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str
    headcount: Annotated[int, CountOf("Employee", where={"dept": "name"})] = 0


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    name: str = ""


@entity(table="offices", partition="{city}", row="office")
class Office:
    city: str
    phone: str = ""


@entity(table="trips", partition="{number:06d}", row="trip")
class Trip:
    number: int
    city: str | None = None


goes_to = reference(Trip, Office, where={"city": "city"})


@entity(table="desks", partition="{city}", row="{number:06d}")
class Desk:
    city: str
    number: int
    phone: Annotated[str | None, CopiedFrom(Office, "phone", where={"city": "city"})] = None


@entity(table="staff", partition="{dept}", row="empphoto_{id:06d}")
class Photo:
    dept: str
    id: int
    pixels: bytes = b""


photo_of = reference(Employee, Photo, where={"dept": "dept", "id": "id"})


@entity(table="salaries", partition="{dept}", row="emp_{id:06d}")
class Salary:
    dept: str
    id: int
    amount: int


@entity(table="people", partition="{town}", row="{id:06d}", abstract=True)
class Person:
    town: str
    id: int
    name: str


@entity()
class Customer(Person):
    credit: int = 0


@entity()
class Supplier(Person):
    goods: str = ""


ALL = (Department, Employee, Office, Trip, Desk, Photo, Salary, Person)


@pytest.fixture
async def db(partita_db: Database) -> Database:
    for cls in ALL:
        partita_db.table(cls)
    await partita_db.create_tables()
    return partita_db


async def rows(db: Database, table: str) -> list[RawEntity]:
    found = [row async for row in db.raw(table).query()]
    return [row for row in found if not row.row_key.startswith("~")]


class TestOneToManyInTheSamePartition:
    async def test_a_parent_and_its_children_are_read_by_one_request(self, db: Database) -> None:
        await db.table(Department).save(Department(name="Sales"))
        await db.table(Employee).save_all([Employee(dept="Sales", id=n) for n in (1, 2)])

        with db.measuring() as cost:
            found = [each async for each in db.mixed(Department, Employee).partition("Sales")]

        assert found == [
            Department(name="Sales", headcount=2),
            Employee(dept="Sales", id=1),
            Employee(dept="Sales", id=2),
        ]
        assert cost.requests == 1

    async def test_the_count_of_children_changes_in_the_group_that_changes_them(
        self, db: Database
    ) -> None:
        await db.table(Department).save(Department(name="Sales"))

        async with db.table(Employee).partition(dept="Sales").atomic() as group:
            group.save(Employee(dept="Sales", id=1))
            group.save(Employee(dept="Sales", id=2))

        stored = {row.row_key: row.etag for row in await rows(db, "staff")}
        assert stored["dept"] == stored["emp_000001"] == stored["emp_000002"]
        assert (await db.table(Department).get(name="Sales")).headcount == 2

    async def test_more_children_than_a_group_holds_are_refused_unsent(self, db: Database) -> None:
        async def hire(count: int) -> None:
            async with db.table(Employee).partition(dept="Sales").atomic() as group:
                for number in range(count):
                    group.save(Employee(dept="Sales", id=number))

        await db.table(Department).save(Department(name="Sales"))

        with pytest.raises(LimitExceededError, match="including indexes and counters"):
            await hire(100)

        await hire(99)
        assert (await db.table(Department).get(name="Sales")).headcount == 99


class TestOneToManyInAnotherPartition:
    async def test_parents_are_loaded_together_and_each_once(self, db: Database) -> None:
        for city in ("Bonn", "Oslo"):
            await db.table(Office).save(Office(city=city, phone=city[0]))
        cities = ["Oslo", "Bonn", None, "Oslo", "Rome", "Bonn"]
        trips = [Trip(number=n, city=city) for n, city in enumerate(cities)]

        with db.measuring() as cost:
            offices = await db.load(goes_to, trips)

        assert [each and each.phone for each in offices] == ["O", "B", None, "O", None, "B"]
        assert cost.requests == 3  # Oslo, Bonn, Rome

    async def test_references_that_lead_nowhere_are_found(self, db: Database) -> None:
        oslo = await db.table(Office).save(Office(city="Oslo"))
        await db.table(Office).save(Office(city="Bonn"))
        for number, city in enumerate(["Oslo", "Bonn", None, "Oslo"]):
            await db.table(Trip).save(Trip(number=number, city=city))
        assert await db.dangling(goes_to) == []

        await db.table(Office).delete(oslo)

        found = await db.dangling(goes_to)
        assert [(each.kind, each.what, each.key.partition) for each in found] == [
            ("dangling", "city", "000000"),
            ("dangling", "city", "000003"),
        ]

    async def test_parents_may_lie_in_another_account(self, db: Database) -> None:
        with open_account(None) as elsewhere:
            async with connect(elsewhere) as other:
                other.table(Office)
                await other.create_tables()
                await other.table(Office).save(Office(city="Oslo", phone="1"))
                await db.table(Trip).save(Trip(number=1, city="Oslo"))
                trip = await db.table(Trip).save(Trip(number=2, city="Rome"))

                assert await other.load(goes_to, [trip]) == [None]
                [found] = await db.dangling(goes_to, targets=other)

        assert found.key.partition == "000002"

    def test_a_reference_that_cannot_be_followed_is_refused_at_definition(self) -> None:
        with pytest.raises(DefinitionError, match="The key field 'id' of Employee is missing"):
            reference(Trip, Employee, where={"dept": "city"})
        with pytest.raises(DefinitionError, match="differ in type"):
            reference(Trip, Office, where={"city": "number"})


class TestOneToManyDenormalized:
    async def test_all_is_read_with_a_single_request(self, db: Database) -> None:
        await db.table(Office).save(Office(city="Oslo", phone="22 00"))
        await db.table(Desk).save(Desk(number=1, city="Oslo"))
        await db.drain()

        with db.measuring() as cost:
            desk = await db.table(Desk).get(city="Oslo", number=1)

        assert desk.phone == "22 00"
        assert cost.requests == 1

    async def test_a_change_of_the_parent_comes_to_its_children(
        self, db: Database, partita_faults: Faults
    ) -> None:
        @entity(table="teams", partition="{name}", row="team")
        class Team:
            name: str
            lead: str

        @entity(table="members", partition="{team}", row="{id:04d}")
        class Member:
            team: str
            id: int
            lead: Annotated[str | None, CopiedFrom(Team, "lead", where={"name": "team"})] = None

        teams, members = db.table(Team), db.table(Member)
        await db.create_tables()
        team = await teams.save(Team(name="red", lead="Ann"))
        await members.save_all([Member(team="red", id=n) for n in range(120)])
        await db.drain()

        await teams.save(evolve(team, lead="Bob"))
        partita_faults.fail_next(lambda line: "members" in line and line.startswith("P"))
        with pytest.raises(PartitaError):
            await db.drain()  # a worker that dies on the way
        await db.drain()

        assert {each.lead for each in await members.partition(team="red").all().list()} == {"Bob"}
        assert await db.verify(Member) == []

    def test_a_copy_whose_holders_cannot_be_found_is_refused_at_definition(self) -> None:
        with pytest.raises(DefinitionError, match="'number' of the partition key is not in where="):

            @entity(table="chairs", partition="{number:06d}", row="chair")
            class Chair:
                number: int
                city: str
                phone: Annotated[str | None, CopiedFrom(Office, "phone", where={"city": "city"})]


class TestMovingAChild:
    async def test_a_move_to_another_partition_keeps_everything(self, db: Database) -> None:
        for name in ("Sales", "Legal"):
            await db.table(Department).save(Department(name=name))
        jun = await db.table(Employee).save(Employee(dept="Sales", id=1, name="Jun"))

        moved = await db.table(Employee).move(jun, dept="Legal")

        assert moved == Employee(dept="Legal", id=1, name="Jun")
        assert (await db.table(Department).get(name="Sales")).headcount == 0
        assert (await db.table(Department).get(name="Legal")).headcount == 1

    async def test_a_move_that_stops_anywhere_ends_with_one_home(self) -> None:
        for requests in range(40):
            with open_account(None) as account:
                if await move_with(account, requests):
                    break
                async with connect(account) as db:
                    employees = await staff_of(db)
                    assert await employees.all().allow_scan().count() >= 1  # never in neither
                    await db.drain()
                    found = await employees.all().allow_scan().list()
                assert [each.name for each in found] == ["Jun"]

        assert 4 < requests < 40


async def staff_of(db: Database) -> Table[Employee]:
    employees = db.table(Employee)
    db.table(Department)
    await db.create_tables()
    return employees


async def move_with(account: LocalAccount, requests: int) -> bool:
    """Move an employee in a process that dies after so many requests; tell if it got through."""
    left = [requests]

    async def die(_: ServiceKind, request: Request, respond: Respond) -> Response:
        if not left[0]:
            raise UnavailableError("Died", "The process is no more.")
        left[0] -= 1
        return await respond(request)

    async with connect(account) as db:
        employees = await staff_of(db)
        jun = await employees.save(Employee(dept="Sales", id=1, name="Jun"))
        account.around = die
        try:
            await employees.move(jun, dept="Legal")
        except UnavailableError:
            return False
        finally:
            account.around = None
        return True


class TestOneToOne:
    async def test_an_implicit_link_is_a_convention_of_keys(self, db: Database) -> None:
        async with db.table(Employee).partition(dept="Sales").atomic() as group:
            group.save(Employee(dept="Sales", id=1, name="Jun"))
            group.save(Photo(dept="Sales", id=1, pixels=b"\x01"))

        jun = await db.table(Employee).get(dept="Sales", id=1)
        [photo] = await db.load(photo_of, [jun])

        assert photo is not None
        assert photo.pixels == b"\x01"
        assert [row.row_key for row in await rows(db, "staff")] == [
            "emp_000001",
            "empphoto_000001",
        ]

    async def test_both_sides_are_stored_or_none(self, db: Database) -> None:
        await db.table(Photo).save(Photo(dept="Sales", id=1))

        async def hire() -> None:
            async with db.table(Employee).partition(dept="Sales").atomic() as group:
                group.save(Employee(dept="Sales", id=1))
                group.save(Photo(dept="Sales", id=1))  # which is there already

        with pytest.raises(PartitaError):
            await hire()

        assert await db.table(Employee).get_or_none(dept="Sales", id=1) is None

    async def test_an_explicit_link_is_stored_and_checked(self, db: Database) -> None:
        await db.table(Office).save(Office(city="Oslo"))
        trip = await db.table(Trip).save(Trip(number=1, city="Oslo"))

        [office] = await db.load(goes_to, [trip])

        assert office == Office(city="Oslo")
        assert (await rows(db, "trips"))[0].properties["City"] == "Oslo"

    async def test_a_grant_for_the_first_half_does_not_grant_the_other(
        self, db: Database, partita_account: LocalAccount
    ) -> None:
        await db.table(Employee).save(Employee(dept="Sales", id=1))
        await db.table(Salary).save(Salary(dept="Sales", id=1, amount=70_000))
        grant = db.grant(Employee, permissions="r", ttl=timedelta(minutes=5), dept="Sales", id=1)

        arguments: dict[str, Any] = partita_account.client_arguments(TABLES)
        arguments["credential"] = AzureSasCredential(grant.token)
        with TableClient(table_name="staff", **arguments) as holder:
            assert holder.get_entity("Sales", "emp_000001")["EntityType"] == "Employee"
        with (
            TableClient(table_name="salaries", **arguments) as holder,
            pytest.raises(HttpResponseError) as refused,
        ):
            holder.get_entity("Sales", "emp_000001")

        assert refused.value.status_code in (401, 403)


class TestJoinInTheClient:
    async def test_each_distinct_key_costs_one_request(self, db: Database) -> None:
        await db.table(Office).save(Office(city="Oslo", phone="1"))
        offices = db.table(Office).cached(60)
        trips = [Trip(number=n, city=city) for n, city in enumerate(["Oslo", "Rome", "Oslo", None])]

        with db.measuring() as cost:
            pairs = await offices.join(trips, goes_to)
            await offices.join(trips, goes_to)

        assert [office and office.phone for _, office in pairs] == ["1", None, "1", None]
        assert cost.requests == 2  # that there is no Rome is remembered too

    async def test_what_is_remembered_is_never_older_than_its_ttl(
        self, partita_account: LocalAccount
    ) -> None:
        clock = ManualClock()
        async with connect(partita_account, clock=clock) as db:
            table = db.table(Office)
            await db.create_tables()
            oslo = await table.save(Office(city="Oslo", phone="1"))
            offices = table.cached(30)
            assert await offices.get_or_none(city="Oslo") == oslo
            await table.save(evolve(oslo, phone="2"))

            clock.advance(29.9)
            kept = await offices.get_or_none(city="Oslo")
            clock.advance(0.2)
            fresh = await offices.get_or_none(city="Oslo")

        assert kept is not None
        assert fresh is not None
        assert (kept.phone, fresh.phone) == ("1", "2")

    async def test_ones_own_write_is_seen_at_once(self, db: Database) -> None:
        offices = db.table(Office).cached(60)
        assert await offices.get_or_none(city="Oslo") is None

        await offices.save(Office(city="Oslo", phone="1"))

        with db.measuring() as cost:
            assert await offices.get_or_none(city="Oslo") == Office(city="Oslo", phone="1")
        assert cost.requests == 0


class TestInheritance:
    async def test_a_query_on_the_abstract_class_returns_the_concrete_ones(
        self, db: Database
    ) -> None:
        people = db.table(Person)
        await people.save(Customer(town="Bonn", id=1, name="Ann", credit=5))
        await people.save(Supplier(town="Bonn", id=2, name="Bob", goods="tea"))

        found = await people.partition(town="Bonn").all().list()

        assert found == [
            Customer(town="Bonn", id=1, name="Ann", credit=5),
            Supplier(town="Bonn", id=2, name="Bob", goods="tea"),
        ]
        assert isinstance(await people.get(town="Bonn", id=2), Supplier)

    async def test_a_query_on_a_concrete_class_returns_no_other(self, db: Database) -> None:
        await db.table(Person).save(Customer(town="Bonn", id=1, name="Ann"))
        await db.table(Person).save(Supplier(town="Bonn", id=2, name="Bob"))

        found = await db.table(Customer).partition(town="Bonn").all().list()

        assert [each.name for each in found] == ["Ann"]
        with pytest.raises(UnknownTypeError):
            await db.table(Customer).get(town="Bonn", id=2)

    async def test_a_class_that_this_program_does_not_know_is_refused_or_raw(
        self, db: Database
    ) -> None:
        await db.table(Person).save(Customer(town="Bonn", id=1, name="Ann"))
        await db.raw("people").save(
            RawEntity("Bonn", "000002", {"EntityType": "Courier", "Name": "Cem", "Van": "B-1"})
        )

        with pytest.raises(UnknownTypeError, match="'Courier', not 'Person'"):
            await db.table(Person).get(town="Bonn", id=2)
        known = [each async for each in db.mixed(Person).partition("Bonn")]
        everything = [each async for each in db.mixed(Person, keep_unknown=True).partition("Bonn")]

        assert [type(each) for each in known] == [Customer]
        assert [type(each) for each in everything] == [Customer, RawEntity]
        assert everything[1].properties["Van"] == "B-1"
