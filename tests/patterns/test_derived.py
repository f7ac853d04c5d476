"""Fields kept from other entities: counts and copies, in the same partition and elsewhere."""

import asyncio
import random
from typing import Annotated, Any
from urllib.parse import unquote

import pytest

from partita.patterns import (
    CopiedFrom,
    CountOf,
    Database,
    EntityExistsError,
    Table,
    connect,
    entity,
    evolve,
)
from partita.patterns.faults import Faults
from partita.service.in_process import LocalAccount, Respond
from partita.service.request import Request, Response
from partita.service.services import ServiceKind
from patterns.staff import Department, Employee, person, rows_of


async def told(db: Database, name: str = "Sales") -> tuple[int, str | None]:
    """Return what a department says of its employees."""
    found = await db.table(Department).get(name=name)
    return found.headcount, found.manager_email


# ---------------------------------------------------------------------------------------------
# In the same partition


async def test_a_department_counts_its_employees_and_knows_its_manager(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    await departments.save(Department(name="Sales", manager_id=3))
    assert await told(any_db) == (0, None)

    for number in (1, 2, 3, 4):
        await employees.save(person(number))
    assert await told(any_db) == (4, "e3@contoso.com")
    manager = await employees.get(dept="Sales", id=3)
    manager = await employees.save(evolve(manager, email="boss@contoso.com"))
    assert await told(any_db) == (4, "boss@contoso.com")
    await employees.delete_if_exists(dept="Sales", id=1)
    assert await told(any_db) == (3, "boss@contoso.com")
    await employees.delete(manager)

    assert await told(any_db) == (2, None)
    assert await any_db.verify(Department) == []


async def test_a_refused_change_counts_nothing(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await any_db.table(Department).save(Department(name="Sales", manager_id=1))
    await employees.save(person(1))

    with pytest.raises(EntityExistsError):
        await employees.save(person(1))

    assert await told(any_db) == (1, "e1@contoso.com")


async def test_a_department_that_comes_after_its_employees_finds_them(any_db: Database) -> None:
    await any_db.table(Employee).save_all([person(n) for n in range(5)])

    saved = await any_db.table(Department).save(Department(name="Sales", manager_id=2))

    assert (saved.headcount, saved.manager_email) == (5, "e2@contoso.com")
    assert await told(any_db) == (5, "e2@contoso.com")


async def test_a_department_that_is_deleted_and_made_again_counts_anew(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    saved = await departments.save(Department(name="Sales", manager_id=1))
    await employees.save_all([person(1), person(2)])
    await departments.delete(await departments.get(name="Sales"))
    await employees.save(person(3))
    await employees.delete_if_exists(dept="Sales", id=1)

    again = await departments.save(Department(name="Sales", manager_id=saved.manager_id))

    assert (again.headcount, again.manager_email) == (2, None)


async def test_another_manager_brings_another_address(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    await employees.save_all([person(1), person(2)])
    sales = await departments.save(Department(name="Sales", manager_id=1))

    patched = await departments.patch(sales, manager_id=2)
    assert patched.manager_email == "e2@contoso.com"
    assert await told(any_db) == (2, "e2@contoso.com")
    saved = await departments.save(evolve(patched, manager_id=9))

    assert saved.manager_email is None
    assert await told(any_db) == (2, None)


async def test_nobody_sets_a_derived_field(db: Database, departments: Table[Department]) -> None:
    await db.table(Employee).save(person(1))

    saved = await departments.save(
        Department(name="Sales", manager_id=1, manager_email="x@y", headcount=77)
    )
    changed = await departments.save(evolve(saved, headcount=88, manager_email=None))
    patched = await departments.patch(changed, headcount=99)
    await departments.upsert(Department(name="Sales", manager_id=1, headcount=111))

    for each in (saved, changed, patched):
        assert (each.headcount, each.manager_email) == (1, "e1@contoso.com")
    assert await told(db) == (1, "e1@contoso.com")


async def test_a_move_inside_the_partition_keeps_the_count(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await any_db.table(Department).save(Department(name="Sales", manager_id=7))
    saved = await employees.save(person(1))

    await employees.move(saved, id=7)

    assert await told(any_db) == (1, "e1@contoso.com")


async def test_a_move_to_another_department_is_counted_there(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    for name in ("Sales", "Marketing"):
        await departments.save(Department(name=name, manager_id=1))
    saved = await employees.save(person(1))

    await employees.move(saved, dept="Marketing")

    assert await told(any_db, "Sales") == (0, None)
    assert await told(any_db, "Marketing") == (1, "e1@contoso.com")


async def test_a_stale_department_does_not_bring_an_old_count_back(any_db: Database) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)
    stale = await departments.save(Department(name="Sales", manager_id=1))
    await employees.save(person(1))

    await departments.save(evolve(stale, manager_id=2), force=True)

    assert await told(any_db) == (1, None)


async def test_20_inserts_at_once_are_counted_exactly(any_db: Database) -> None:
    employees = any_db.table(Employee)
    await any_db.table(Department).save(Department(name="Sales", manager_id=7))

    await asyncio.gather(*(employees.save(person(n)) for n in range(20)))

    assert await told(any_db) == (20, "e7@contoso.com")


async def test_inserts_beside_the_making_of_their_department_are_counted(
    any_db: Database,
) -> None:
    employees, departments = any_db.table(Employee), any_db.table(Department)

    await asyncio.gather(
        *(employees.save(person(n)) for n in range(4)),
        departments.save(Department(name="Sales", manager_id=2)),
        *(employees.save(person(n)) for n in range(4, 8)),
    )

    assert await told(any_db) == (8, "e2@contoso.com")


async def test_a_department_made_between_two_looks_counts_who_looked(
    partita_account: LocalAccount,
) -> None:
    """The employee finds no department, it is made, then the guard is read."""
    loop = asyncio.get_running_loop()
    async with connect(partita_account) as db, connect(partita_account) as other:
        employees, departments = db.table(Employee), other.table(Department)
        await db.create_tables()
        made: list[str] = []

        async def around(_: ServiceKind, request: Request, respond: Respond) -> Response:
            if request.method == "GET" and "~g_dept" in unquote(request.path) and not made:
                made.append(request.path)
                steps = departments.save(Department(name="Sales", manager_id=1))
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(steps, loop))
            return await respond(request)

        partita_account.around = around
        await employees.save(person(1))

        assert len(made) == 1
        assert await told(db) == (1, "e1@contoso.com")


async def test_changes_of_owner_and_sources_in_one_group(
    db: Database, employees: Table[Employee], departments: Table[Department]
) -> None:
    async with departments.partition(name="Sales").atomic() as group:
        group.save(Department(name="Sales", manager_id=2))
        for number in (1, 2, 3):
            group.save(person(number))
    saved = group.entities[0]
    assert (saved.headcount, saved.manager_email) == (3, "e2@contoso.com")
    assert await told(db) == (3, "e2@contoso.com")

    manager = await employees.get(dept="Sales", id=2)
    async with departments.partition(name="Sales").atomic() as group:
        group.save(evolve(saved))
        group.delete(manager)
        group.save(person(4))
    saved = group.entities[0]
    assert (saved.headcount, saved.manager_email) == (3, None)
    saved = await departments.save(evolve(saved, manager_id=2))

    assert (saved.headcount, saved.manager_email) == (3, None)
    assert await told(db) == (3, None)
    assert await db.verify(Department) == []


async def test_deleting_a_department_with_its_employees_in_one_group(
    db: Database, employees: Table[Employee], departments: Table[Department]
) -> None:
    await departments.save(Department(name="Sales", manager_id=1))
    await employees.save_all([person(1), person(2)])

    async with departments.partition(name="Sales").atomic() as group:
        group.delete_if_exists(name="Sales")
        group.delete_if_exists(Employee, dept="Sales", id=1)
    again = await departments.save(Department(name="Sales", manager_id=2))

    assert (again.headcount, again.manager_email) == (1, "e2@contoso.com")


async def test_a_change_that_no_count_depends_on_leaves_the_owner_alone(
    db: Database, employees: Table[Employee], departments: Table[Department]
) -> None:
    await departments.save(Department(name="Sales", manager_id=1))
    saved = await employees.save(person(1))
    before = next(row.etag for row in await rows_of(db) if row.row_key == "dept")

    await employees.save(evolve(saved, age=50))

    assert next(row.etag for row in await rows_of(db) if row.row_key == "dept") == before


async def test_a_lost_answer_does_not_count_twice(
    db: Database, employees: Table[Employee], departments: Table[Department], partita_faults: Faults
) -> None:
    await departments.save(Department(name="Sales", manager_id=1))
    partita_faults.lose_answers(times=1, match="$batch")

    await employees.save(person(1))

    assert await told(db) == (1, "e1@contoso.com")


@pytest.mark.parametrize("seed", range(3))
async def test_the_count_is_the_number_of_members_whatever_happens_at_once(
    partita_account: LocalAccount, seed: int
) -> None:
    chance = random.Random(seed)
    async with connect(partita_account, direct=True) as db:
        employees, departments = db.table(Employee), db.table(Department)
        await db.create_tables()
        names = ("Sales", "Marketing")
        for name in names:
            await departments.save(Department(name=name, manager_id=1))

        async def act() -> None:
            number, name = chance.randrange(6), chance.choice(names)
            match chance.randrange(5):
                case 0 | 1:
                    await employees.upsert(person(number, dept=name))
                case 2:
                    await employees.delete_if_exists(dept=name, id=number)
                case 3:
                    found = await employees.get_or_none(dept=name, id=number)
                    if found is not None:
                        await employees.move(found, id=number + 10)
                case _:
                    await departments.update(lambda old: evolve(old, manager_id=number), name=name)

        for _ in range(12):
            await asyncio.gather(*(act() for _ in range(5)), return_exceptions=True)
            for name in names:
                members = await employees.partition(dept=name).all().list()
                sales = await departments.get(name=name)
                manager = [each.email for each in members if each.id == sales.manager_id]
                assert sales.headcount == len(members)
                assert sales.manager_email == (manager[0] if manager else None)


# ---------------------------------------------------------------------------------------------
# Elsewhere


@entity(table="leads", partition="{country}", row="{name}")
class Lead:
    country: str
    name: str
    city: str = ""


@entity(table="projects", partition="{country}", row="project_{code}")
class Project:
    country: str
    code: str
    title: str = ""
    lead: str | None = None
    bookings: Annotated[
        int, CountOf("Booking", where={"country": "country", "project": "code"})
    ] = 0
    lead_city: Annotated[
        str | None, CopiedFrom(Lead, "city", where={"country": "country", "name": "lead"})
    ] = None


@entity(table="bookings", partition="{country}", row="{project:esc}_{day:04d}")
class Booking:
    country: str
    project: str
    day: int
    title: Annotated[
        str | None,
        CopiedFrom(Project, "title", where={"country": "country", "code": "project"}),
    ] = None


class Office:
    """The tables of projects, their bookings, and who leads them."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.projects, self.bookings = db.table(Project), db.table(Booking)
        self.leads = db.table(Lead)

    async def told(self, code: str = "a") -> tuple[int, str | None]:
        found = await self.projects.get(country="de", code=code)
        return found.bookings, found.lead_city

    async def titles(self, code: str = "a") -> set[str | None]:
        query = self.bookings.partition(country="de").range(project=code)
        return {each.title async for each in query}

    async def check(self) -> None:
        assert await self.db.verify(Project) == []
        assert await self.db.verify(Booking) == []


def booking(day: int, **other: Any) -> Booking:
    return Booking(**{"country": "de", "project": "a", "day": day, **other})


@pytest.fixture
async def office(any_db: Database) -> Office:
    made = Office(any_db)
    await any_db.create_tables()
    return made


async def test_an_owner_elsewhere_counts_after_a_drain(office: Office) -> None:
    project = await office.projects.save(Project(country="de", code="a", title="A"))
    await office.projects.save(Project(country="de", code="b"))
    for day in range(4):
        await office.bookings.save(booking(day))
    await office.bookings.save(booking(1, project="b"))
    await office.db.drain()
    assert await office.told() == (4, None)
    assert await office.told("b") == (1, None)

    await office.bookings.delete_if_exists(country="de", project="a", day=2)
    await office.db.drain()
    assert await office.told() == (3, None)
    saved = await office.projects.save(
        evolve(await office.projects.get(country="de", code="a"), title="A2")
    )
    assert (saved.bookings, project.bookings) == (3, 0)
    await office.db.drain()
    await office.check()


async def test_an_owner_elsewhere_finds_what_was_there_before_it(office: Office) -> None:
    await office.leads.save(Lead(country="de", name="ann", city="Bonn"))
    await office.bookings.save_all([booking(day) for day in range(3)])
    await office.db.drain()

    saved = await office.projects.save(Project(country="de", code="a", lead="ann"))

    assert (saved.bookings, saved.lead_city) == (3, "Bonn")


async def test_a_change_of_one_reaches_all_that_copied_it(office: Office) -> None:
    project = await office.projects.save(Project(country="de", code="a", title="old"))
    await office.bookings.save_all([booking(day) for day in range(12)])
    await office.bookings.save(booking(1, project="b"))
    assert await office.titles() == {"old"}

    await office.projects.save(evolve(project, title="new"))
    await office.db.drain()

    assert await office.titles() == {"new"}
    assert await office.titles("b") == {None}
    await office.projects.delete_if_exists(country="de", code="a")
    await office.db.drain()
    assert await office.titles() == {None}
    await office.check()


async def test_changes_at_once_end_in_what_is_stored(office: Office) -> None:
    await office.leads.save(Lead(country="de", name="ann", city="Bonn"))
    await office.projects.save(Project(country="de", code="a", title="t", lead="ann"))

    await asyncio.gather(
        *(office.bookings.save(booking(day)) for day in range(8)),
        office.leads.update(lambda old: evolve(old, city="Köln"), country="de", name="ann"),
        office.projects.update(lambda old: evolve(old, title="u"), country="de", code="a"),
        *(office.bookings.delete_if_exists(country="de", project="a", day=day) for day in (1, 2)),
        office.db.drain(),
    )
    await office.db.drain()

    left = await office.bookings.partition(country="de").range(project="a").list()
    assert await office.told() == (len(left), "Köln")
    assert await office.titles() == {"u"}
    await office.check()


async def test_an_owner_that_is_made_while_its_source_changes_is_put_right(
    partita_account: LocalAccount,
) -> None:
    """The owner reads its source, the source changes and is settled, then the owner is stored."""
    loop = asyncio.get_running_loop()
    async with connect(partita_account) as db, connect(partita_account) as other:
        office, theirs = Office(db), Office(other)
        await db.create_tables()
        await theirs.leads.save(Lead(country="de", name="ann", city="Bonn"))
        interleaved: list[str] = []

        async def relocate() -> None:
            await theirs.leads.update(
                lambda old: evolve(old, city="Köln"), country="de", name="ann"
            )
            await other.drain()

        async def around(_: ServiceKind, request: Request, respond: Respond) -> Response:
            is_write = request.method == "POST" and b"project_a" in bytes(request.body)
            if is_write and not interleaved:
                interleaved.append(request.path)
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(relocate(), loop))
            return await respond(request)

        partita_account.around = around
        saved = await office.projects.save(Project(country="de", code="a", lead="ann"))
        await db.drain()

        assert len(interleaved) == 1
        assert saved.lead_city == "Bonn"
        assert (await office.told())[1] == "Köln"
