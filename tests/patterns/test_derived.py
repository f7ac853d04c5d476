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
    NewerVersionError,
    RawEntity,
    Table,
    connect,
    entity,
    evolve,
    index,
    sync,
)
from partita.patterns.faults import Faults
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.operations import verbs
from partita.patterns.protocol.values import Int32
from partita.patterns.types.decorators import entity_type
from partita.patterns.types.row_layout import VERSION
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import ServiceKind
from partita.service.http.request import Request, Response
from support.fake_world import FakeWorld
from support.simulated import begin, drain, ignore
from support.staff import Department, Employee, person, rows_of


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


# ---------------------------------------------------------------------------------------------
# From one into many of the same partition


@entity(table="crews", partition="{ship}", row="watch_{code}")
class Watch:
    ship: str
    code: str
    officer: str = ""


@entity(table="crews", partition="{ship}", row="sailor_{id:04d}", name="Sailor")
class Sailor:
    ship: str
    id: int
    watch: str | None = None
    rank: str = ""
    officer: Annotated[
        str | None, CopiedFrom(Watch, "officer", where={"ship": "ship", "code": "watch"})
    ] = None


by_officer = index(Sailor, row="officer_{officer:esc}_{id:04d}")


class Ship:
    """The watches of a ship, and the sailors that copy their officers."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.watches, self.sailors = db.table(Watch), db.table(Sailor)

    async def officers(self, watch: str = "a") -> set[str | None]:
        sailors = await self.sailors.partition(ship="s").all().list()
        return {sailor.officer for sailor in sailors if sailor.watch == watch}

    async def enlist(self, *numbers: int, watch: str | None = "a") -> None:
        for number in numbers:
            await self.sailors.save(Sailor(ship="s", id=number, watch=watch))
        await self.db.drain()

    async def outbox(self) -> list[str]:
        keys = [row.row_key for row in await rows_of(self.db, "crews")]
        return [key for key in keys if key.startswith("~o_")]


@pytest.fixture
async def ship(any_db: Database) -> Ship:
    made = Ship(any_db)
    await any_db.create_tables()
    await made.watches.save(Watch(ship="s", code="a", officer="Ann"))
    await made.watches.save(Watch(ship="s", code="b", officer="Bob"))
    await made.enlist(1, 2, 3)
    await made.enlist(4, watch="b")
    await made.enlist(5, watch=None)
    return made


async def test_a_copy_in_many_of_the_same_partition_changes_in_one_group(ship: Ship) -> None:
    watch = await ship.watches.get(ship="s", code="a")
    other = await ship.sailors.get(ship="s", id=4)

    with ship.db.measuring() as cost:
        await ship.watches.save(evolve(watch, officer="Amy"))

    assert cost.requests == 2  # a query for the sailors, and the group
    assert await ship.outbox() == []
    assert await ship.officers() == {"Amy"}
    found = await ship.sailors.via(by_officer).range(ship="s", officer="Amy").list()
    assert [sailor.id for sailor in found] == [1, 2, 3]
    await ship.sailors.save(evolve(other, rank="cook"))  # its row was left alone
    assert await ship.officers("b") == {"Bob"}

    await ship.watches.delete_if_exists(ship="s", code="a")
    assert await ship.officers() == {None}
    await ship.watches.save(Watch(ship="s", code="a", officer="Eve"))
    assert await ship.officers() == {"Eve"}
    assert await ship.db.verify(Sailor) == []


def test_a_copy_in_many_of_the_same_partition_changes_in_one_group_without_a_loop(
    partita_account: LocalAccount,
) -> None:
    with sync.connect(partita_account) as db:
        watches, sailors = db.table(Watch), db.table(Sailor)
        db.create_tables()
        watch = watches.save(Watch(ship="s", code="a", officer="Ann"))
        for number in range(32):  # three operations each, with the index
            sailors.save(Sailor(ship="s", id=number, watch="a"))
        db.drain()

        watches.save(evolve(watch, officer="Amy"))

        assert {each.officer for each in sailors.partition(ship="s").all()} == {"Amy"}
        assert db.drain().is_idle


async def test_many_copies_and_their_source_in_one_group_of_the_caller(ship: Ship) -> None:
    watch = await ship.watches.get(ship="s", code="a")
    first = await ship.sailors.get(ship="s", id=1)
    second = await ship.sailors.get(ship="s", id=2)

    async with ship.watches.partition(ship="s").atomic() as group:
        group.save(evolve(watch, officer="Amy"))
        group.save(Sailor(ship="s", id=9, watch="a"))
        group.save(evolve(first, rank="mate"))
        group.delete(second)

    assert await ship.officers() == {"Amy"}
    saved = {sailor.id: sailor.officer for sailor in group.entities if isinstance(sailor, Sailor)}
    assert saved == {9: "Amy", 1: "Amy"}
    await ship.db.drain()
    assert await ship.db.verify(Sailor) == []


async def test_sources_of_one_group_look_for_their_copies_once(ship: Ship) -> None:
    watches = [await ship.watches.get(ship="s", code=code) for code in ("a", "b")]

    with ship.db.measuring() as cost:
        changed = [evolve(watch, officer=watch.officer.upper()) for watch in watches]
        outcome = await ship.watches.save_all(changed)

    assert outcome.failures == []
    assert cost.requests == 2
    assert (await ship.officers("a"), await ship.officers("b")) == ({"ANN"}, {"BOB"})


async def test_copies_that_do_not_fit_into_one_group_follow_by_the_outbox(ship: Ship) -> None:
    sailors = [Sailor(ship="s", id=number, watch="a") for number in range(10, 130)]
    await ship.sailors.save_all(sailors)
    await ship.db.drain()
    watch = await ship.watches.get(ship="s", code="a")

    await ship.watches.save(evolve(watch, officer="Amy"))

    assert await ship.officers() == {"Ann"}
    assert len(await ship.outbox()) == 1
    await ship.db.drain()
    assert await ship.officers() == {"Amy"}
    assert await ship.db.verify(Sailor) == []


async def test_an_owner_of_a_newer_version_does_not_prevent_a_change_of_its_source(
    ship: Ship,
) -> None:
    raw = ship.db.raw("crews")
    stored = await raw.get("s", "sailor_0002")
    newer = stored.properties | {VERSION: Int32(2)}
    await raw.save(RawEntity("s", "sailor_0002", newer, stored.etag))
    watch = await ship.watches.get(ship="s", code="a")

    await ship.watches.save(evolve(watch, officer="Amy"))

    assert len(await ship.outbox()) == 1
    with pytest.raises(NewerVersionError):
        await ship.db.drain()
    assert (await ship.sailors.get(ship="s", id=1)).officer == "Amy"
    assert (await ship.sailors.get(ship="s", id=3)).officer == "Amy"


@pytest.mark.parametrize("seed", range(40))
def test_many_copies_agree_with_their_source_after_concurrent_writes(seed: int) -> None:
    world = FakeWorld(seed=seed)
    models = (entity_type(Watch), entity_type(Sailor))
    contexts = [begin(world, models=models) for _ in range(4)]
    watch_model, sailor_model = models
    key = {"ship": "s", "id": 1}
    world.run(lifecycle.create_tables(contexts[0]))
    watch = Watch(ship="s", code="a", officer="Ann")
    world.run(verbs.save(contexts[0], watch_model, watch))
    for number in range(4):
        sailor = Sailor(ship="s", id=number, watch="a")
        world.run(verbs.save(contexts[0], sailor_model, sailor))
    drain(world, contexts[0])
    made = Sailor(ship="s", id=9, watch="a")

    outcomes = world.run_all(
        verbs.update_by(
            contexts[0],
            watch_model,
            {"ship": "s", "code": "a"},
            lambda old: evolve(old, officer="Amy"),
        ),
        verbs.save(contexts[1], sailor_model, made),
        verbs.update_by(contexts[2], sailor_model, key, lambda old: evolve(old, rank="cook")),
        verbs.delete_key(contexts[3], sailor_model, sailor_model.key({"ship": "s", "id": 2})),
    )

    assert [each for each in outcomes if isinstance(each, Exception)] == []
    stored = {
        row.properties["Officer"]
        for row in world.rows("crews")
        if row.properties["EntityType"] == "Sailor" and row.key.row != "sailor_0009"
    }
    assert stored == {"Amy"}
    drain(world, contexts[0])
    assert world.run(lifecycle.verify(contexts[0], sailor_model, ignore)) == []
