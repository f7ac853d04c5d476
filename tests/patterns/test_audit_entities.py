"""What a user tried who had read the guide and the issue, and no code: each was wrong once."""

import asyncio
import copy
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar
from uuid import UUID

import msgspec
import pydantic
import pytest
import pytest_asyncio

from partita.errors import UnknownTypeError
from partita.patterns import (
    CountOf,
    Database,
    DefinitionError,
    EntityNotFoundError,
    InBlob,
    Partial,
    PartitaError,
    ProjectionError,
    RawEntity,
    ScanRefusedError,
    ScanWarning,
    Series,
    access,
    check_access,
    connect,
    entity,
    entity_type,
    evolve,
    list_index,
    measure,
    sync,
    upcast,
)
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.protocol.values import Row, RowKey
from partita.service.hosting.in_process import LocalAccount

GUID = UUID("00000000-0000-0000-0000-00000000002a")


class Grade(Enum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="auditstaff", partition="{name}", row="dept")
class Team:
    name: str
    size: Annotated[int, CountOf("Member", where={"team": "name"})] = 0


@entity(table="auditstaff", partition="{team}", row="m_{id:06d}")
class Member:
    team: str
    id: int
    email: str = ""
    age: int = 0


same_age = list_index(Member, table="auditages", partition="{email}", row="a_{age:03d}")


@entity(table="auditwide", partition="{house}", row="y_{year:04d}")
class Meter:
    house: str
    year: int
    text: str = ""
    plan: Annotated[bytes | None, InBlob] = None
    days: Annotated[dict[int, int], Series("d{:03d}", slots=365)] = field(default_factory=dict)


TYPES = (Team, Member, Meter)


def member(number: int, **fields: Any) -> Member:
    return Member(**{"team": "Sales", "id": number, "email": f"m{number}@x", **fields})


@pytest_asyncio.fixture(params=["sdk", "direct"])
async def db(
    request: pytest.FixtureRequest, partita_account: LocalAccount
) -> AsyncIterator[Database]:
    async with connect(partita_account, direct=request.param == "direct") as opened:
        for cls in TYPES:
            opened.table(cls)
        await opened.create_tables()
        yield opened


# ---------------------------------------------------------------------------------------------
# Declarations


def test_a_template_may_say_that_a_field_is_an_enum_or_a_uuid() -> None:
    annotations: dict[str, object] = {"grade": Grade, "of": UUID}

    said = KeyTemplate.compile("{grade:enum}_{of:uuid}", annotations, role="row", owner="X")
    plain = KeyTemplate.compile("{grade}_{of}", annotations, role="row", owner="X")

    values = {"grade": Grade.SENIOR, "of": GUID}
    assert said.format(values) == plain.format(values) == f"s_{GUID}"
    assert said.parse(said.format(values)) == values


@pytest.mark.parametrize("text", ["{name:enum}", "{grade:uuid}", "{of:enum}"])
def test_a_template_cannot_say_what_a_field_is_not(text: str) -> None:
    annotations: dict[str, object] = {"grade": Grade, "of": UUID, "name": str}

    with pytest.raises(DefinitionError) as refused:
        KeyTemplate.compile(text, annotations, role="row", owner="X")

    assert refused.value.code == "TemplateSpec"


def test_a_literal_that_is_too_long_is_told_from_one_that_is_not_legal() -> None:
    with pytest.raises(DefinitionError) as long:
        KeyTemplate.compile("x" * 513, {}, role="row", owner="X")
    with pytest.raises(DefinitionError) as illegal:
        KeyTemplate.compile("a/b", {}, role="row", owner="X")

    assert (long.value.code, illegal.value.code) == ("TemplateTooLong", "TemplateCharacter")
    assert "513" in long.value.message
    assert "too long" not in illegal.value.message


def test_the_version_of_an_upcaster_may_be_given_by_place() -> None:
    @entity(table="auditversions", partition="{team}", row="{id:04d}", version=2)
    class Versioned:
        team: str
        id: int

    @upcast(Versioned, 1)
    def keep(old: dict[str, Any]) -> dict[str, Any]:
        return old

    assert entity_type(Versioned).upcasters == {1: keep}


def test_a_list_index_in_a_store_that_there_is_not_is_refused_where_it_is_declared() -> None:
    store: Any = "file"

    with pytest.raises(DefinitionError) as refused:
        list_index(Member, row="x_{age:03d}", store=store)

    assert refused.value.code == "IndexRefused"
    assert "rows, partition, table, blob" in refused.value.hint


def test_one_name_of_a_field_need_not_be_put_into_a_list() -> None:
    @entity(
        table="auditaccess",
        partition="{team}",
        row="{id:06d}",
        access=[
            access("all of a team", partition="team"),
            access("from a number on", partition="team", range="id"),
            access("one of an age", partition="team", where="age"),
        ],
    )
    class Accessed:
        team: str
        id: int
        age: int = 0

    assert [each.plan.summary for each in check_access(Accessed)] == [
        "partition auditaccess by team",
        "range auditaccess by team, id",
        "partition auditaccess by team residual age",
    ]


@pytest.mark.parametrize("wrong", [["all of a team"], {"all": {"give": "team"}}, {"all": "team"}])
def test_an_access_pattern_that_is_none_is_refused(wrong: Any) -> None:
    @entity(table="auditaccess", partition="{team}", row="{id:06d}", access=wrong)
    class Wrong:
        team: str
        id: int

    with pytest.raises(DefinitionError) as refused:
        check_access(Wrong)

    assert refused.value.code == "AccessRefused"
    assert "access(" in refused.value.hint


# ---------------------------------------------------------------------------------------------
# What an entity measures


async def test_an_entity_measures_what_the_service_counts_for_it(db: Database) -> None:
    meters = db.table(Meter)
    meter = Meter(house="a", year=2024, text="é😀", plan=b"plan", days={0: 1, 364: 2})
    before = measure(meter)

    await meters.save(meter)
    rows = [each async for each in db.raw("auditwide").query("PartitionKey eq 'a'")]

    assert len(rows) == 2
    assert before == sum(map(measure, rows))


def test_a_row_and_a_raw_entity_are_measured_alike() -> None:
    row = Row(RowKey("a", "b"), {"Age": 7})

    assert measure(row) == measure(RawEntity("a", "b", {"Age": 7})) == 30
    with pytest.raises(DefinitionError, match="no entity class"):
        measure(7)


# ---------------------------------------------------------------------------------------------
# Reading


async def test_a_smaller_class_may_inherit_its_fields(db: Database) -> None:
    members = db.table(Member)
    await members.save(member(1, age=40))

    @dataclass
    class Named:
        email: str

    @dataclass
    class Aged(Named):
        age: int
        unit: ClassVar[str] = "years"

    class Struct(msgspec.Struct):
        age: int

    class Model(pydantic.BaseModel):
        age: int

    here = members.partition(team="Sales").all()
    assert await here.select(Aged).list() == [Aged(email="m1@x", age=40)]
    assert await here.select(Struct).list() == [Struct(age=40)]
    assert await here.select(Model).list() == [Model(age=40)]


async def test_a_class_without_fields_selects_nothing(db: Database) -> None:
    class Empty:
        pass

    with pytest.raises(PartitaError) as refused:
        db.table(Member).partition(team="Sales").all().select(Empty)

    assert refused.value.code == "NotSelectable"


async def test_a_tuple_in_a_range_is_told_to_be_between(db: Database) -> None:
    with pytest.raises(PartitaError) as refused:
        await db.table(Member).partition(team="Sales").range(id=(1, 5)).list()

    assert refused.value.code == "KeyValueType"
    assert "between(first, last)" in refused.value.hint


async def test_the_name_of_an_index_is_no_index(db: Database) -> None:
    name: Any = "by_email"

    with pytest.raises(PartitaError) as refused:
        db.table(Member).via(name)

    assert refused.value.code == "IndexOfAnother"
    assert "index() or list_index() returned" in refused.value.hint


@pytest.mark.parametrize("column", ["name", "size"])
async def test_a_condition_on_columns_of_another_table_is_refused(
    db: Database, column: str
) -> None:
    @entity(table="auditstaff", partition="{team}", row="n_{id:06d}")
    class Nicknamed:
        team: str
        id: int
        name: str = ""

    foreign = getattr(db.table(Team).c, column)
    here = db.table(Nicknamed).partition(team="Sales")

    with pytest.raises(PartitaError) as refused:
        await here.where(foreign == ("x" if column == "name" else 3)).list()

    assert refused.value.code == {"name": "ColumnOfAnother", "size": "UnknownField"}[column]


async def test_a_condition_on_columns_of_the_parent_holds_for_the_child(db: Database) -> None:
    @entity(table="auditfamily", partition="{zoo}", row="{id:04d}")
    class Animal:
        zoo: str
        id: int
        age: int = 0

    @entity()
    class Dog(Animal):
        breed: str = ""

    animals, dogs = db.table(Animal), db.table(Dog)
    await db.create_tables()
    await dogs.save(Dog(zoo="a", id=1, age=3))

    assert len(await dogs.partition(zoo="a").where(animals.c.age == 3).list()) == 1
    assert len(await animals.partition(zoo="a").where(animals.c.age == 3).list()) == 1
    with pytest.raises(PartitaError, match="UnknownField"):
        await animals.partition(zoo="a").where(dogs.c.breed == "x").list()


async def test_an_entity_that_says_no_type_is_told_so(db: Database) -> None:
    await db.raw("auditstaff").save(RawEntity("Sales", "m_000001", {"Age": 7}))

    with pytest.raises(UnknownTypeError) as unknown:
        await db.table(Member).get(team="Sales", id=1)

    assert "has no EntityType" in unknown.value.message
    assert "resolve" in unknown.value.hint


async def test_an_empty_text_can_be_the_partition_of_a_list(db: Database) -> None:
    members = db.table(Member)

    await members.save(member(1, email="", age=3))
    await db.drain()

    assert [each.id async for each in members.via(same_age).range(email="", age=3)] == [1]


async def test_several_types_are_read_by_the_fields_of_either(db: Database) -> None:
    await db.table(Team).save(Team(name="Sales"))
    await db.table(Member).save(member(1))
    both = db.mixed(Team, Member)

    found = [
        [type(each) async for each in partition]
        for partition in (
            both.partition(name="Sales"),
            both.partition(team="Sales"),
            both.partition("Sales"),
        )
    ]

    assert found == [[Team, Member]] * 3
    for wrong in (both.partition(id=1), both.partition(), both.partition("Sales", name="Sales")):
        with pytest.raises(PartitaError) as refused:
            [each async for each in wrong]
        assert refused.value.code == "KeyFields"


# ---------------------------------------------------------------------------------------------
# Projections and groups


async def test_a_projection_is_refused_by_a_group_and_by_evolve(db: Database) -> None:
    members = db.table(Member)
    await members.save(member(1))
    part: Any = await members.partition(team="Sales").all().select("id", "team").first()
    group = members.partition(team="Sales").atomic()

    for give in (group.save, group.delete, evolve):
        with pytest.raises(ProjectionError) as refused:
            give(part)
        assert refused.value.code == "PartialEntity"
    with pytest.raises(TypeError):
        await members.save(part)


def test_a_projection_can_be_copied_and_sent_to_another_process() -> None:
    part: Partial[Member] = Partial("Member", {"id": 1})

    for twin in (copy.copy(part), copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert twin == part
        assert twin.id == 1


def test_a_projection_has_no_field_that_was_not_selected() -> None:
    part: Partial[Member] = Partial("Member", {"id": 1})

    assert hasattr(part, "id")
    assert not hasattr(part, "age")
    assert getattr(part, "_repr_html_", None) is None
    with pytest.raises(ProjectionError, match="FieldNotSelected: 'age' was not selected"):
        part.age  # noqa: B018 - asking for it is the test


async def test_what_is_put_into_a_group_after_its_end_is_not_lost_in_silence(
    db: Database,
) -> None:
    members = db.table(Member)
    async with members.partition(team="Sales").atomic() as group:
        group.save(member(1))

    late: list[Callable[[], None]] = [
        lambda: group.save(member(2)),
        lambda: group.delete(member(1)),
        lambda: group.delete_if_exists(id=1),
    ]
    for give in late:
        with pytest.raises(PartitaError) as refused:
            give()
        assert refused.value.code == "GroupEnded"

    assert [each.id for each in group.entities] == [1]


async def test_a_required_field_that_nothing_is_stored_for_tells_what_to_do(
    db: Database,
) -> None:
    @entity(table="auditstaff", partition="{team}", row="r_{id:06d}")
    class Required:
        team: str
        id: int
        age: int

    table = db.table(Required)
    await db.raw("auditstaff").save(RawEntity("Sales", "r_000001", {"EntityType": "Required"}))

    with pytest.raises(PartitaError) as refused:
        await table.get(team="Sales", id=1)

    assert "Required.age" in refused.value.message
    assert "default" in refused.value.hint


# ---------------------------------------------------------------------------------------------
# Scans


async def test_scans_can_be_let_happen_with_a_warning(partita_account: LocalAccount) -> None:
    async with connect(partita_account, scans="warn") as db:
        members = db.table(Member)
        await db.create_tables()
        await members.save(member(1, age=50))
        old = members.where(members.c.age > 40)

        with pytest.warns(ScanWarning, match="TABLE SCAN") as told:
            found = await old.list()
        with warnings.catch_warnings(action="error"):
            meant = await old.allow_scan().list()

    assert [each.id for each in found] == [each.id for each in meant] == [1]
    assert [warning.filename for warning in told] == [__file__]
    assert "ALLOWED" in str(told[0].message)


async def test_scans_can_be_allowed_and_are_refused_otherwise(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, scans="allow") as db:
        members = db.table(Member)
        await db.create_tables()
        with warnings.catch_warnings(action="error"):
            assert await members.all().list() == []
    async with connect(partita_account) as db:
        with pytest.raises(ScanRefusedError):
            await db.table(Member).all().list()
    with pytest.raises(PartitaError) as refused:
        connect(partita_account, scans="off")
    assert refused.value.code == "UnknownOption"


# ---------------------------------------------------------------------------------------------
# What calls cost


async def test_what_many_writes_cost_is_on_their_result(db: Database) -> None:
    members = db.table(Member)

    with db.measuring() as saving:
        saved = await members.save_all([member(number) for number in range(3)])
    query = members.partition(team="Sales").all()
    with db.measuring() as deleting:
        deleted = await query.delete()

    assert saving.requests > 0
    assert saved.cost == saving
    assert deleting.requests > 1
    assert deleted.cost == query.cost == deleting


async def test_what_a_group_and_several_partitions_cost_is_on_them(db: Database) -> None:
    members = db.table(Member)

    with db.measuring() as writing:
        async with members.partition(team="Sales").atomic() as group:
            group.save(member(1))
            group.save(member(2))
    teams = members.partitions([{"team": "Sales"}, {"team": "Other"}])
    with db.measuring() as reading:
        await teams.list()

    assert writing.requests > 0
    assert group.cost == writing
    assert reading.requests == 2
    assert teams.cost == reading


# ---------------------------------------------------------------------------------------------
# The cache


async def test_tasks_that_miss_the_same_entity_at_once_ask_for_it_once(db: Database) -> None:
    teams = db.table(Team)
    await teams.save(Team(name="Sales"))
    cached = teams.cached(ttl=60)

    with db.measuring() as cost:
        found = await asyncio.gather(*(cached.get_or_none(name="Sales") for _ in range(20)))
        absent = await asyncio.gather(*(cached.get_or_none(name="None") for _ in range(20)))
        joined = await asyncio.gather(
            *(cached.join([1, 2], lambda n: {"name": f"team {n}"}) for _ in range(20)),
            *(cached.join([2, 1], lambda n: {"name": f"team {n}"}) for _ in range(20)),
        )

    assert {each is not None for each in found} == {True}
    assert set(absent) == {None}
    assert len(joined) == 40
    assert cost.requests == 1 + 1 + 2


def test_threads_that_miss_the_same_entity_at_once_ask_for_it_once(
    partita_account: LocalAccount,
) -> None:
    with sync.connect(partita_account) as db:
        teams = db.table(Team)
        db.create_tables()
        teams.save(Team(name="Sales"))
        cached = teams.cached(ttl=60)
        together = threading.Barrier(4)

        def read(_: int) -> Team:
            together.wait()
            return cached.get(name="Sales")

        before = db.cost.requests
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(read, range(4)))

        assert db.cost.requests - before == 1
        assert {each.name for each in found} == {"Sales"}


async def test_who_waits_for_a_read_that_fails_reads_itself(db: Database) -> None:
    @entity(table="auditlater", partition="{name}", row="x")
    class Later:
        name: str

    cached = db.table(Later).cached(ttl=60)

    tries = await asyncio.gather(
        *(cached.get_or_none(name="a") for _ in range(3)), return_exceptions=True
    )
    await db.create_tables()

    assert [getattr(each, "code", each) for each in tries] == ["TableNotFound"] * 3
    assert await cached.get_or_none(name="a") is None


async def test_a_cache_gets_and_deletes_as_its_table_does(db: Database) -> None:
    teams = db.table(Team)
    cached = teams.cached(ttl=60)
    await cached.save(Team(name="Sales"))

    loaded = await cached.get(name="Sales")
    await cached.delete(loaded)
    with db.measuring() as cost, pytest.raises(EntityNotFoundError):
        await cached.get(name="Sales")

    assert cost.requests == 0
    assert await teams.get_or_none(name="Sales") is None


# ---------------------------------------------------------------------------------------------
# Types, as a user's checker sees them

RIGHT = """
from dataclasses import dataclass

from partita.patterns import (
    BulkOutcome, Cost, Index, Page, Partial, Query, Table,
    between, connect, entity, evolve, index, list_index, measure, reference, sync, upcast,
)


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str


@entity(table="staff", partition="{dept}", row="emp_{id:06d}", version=2)
class Employee:
    dept: str
    id: int
    email: str = ""
    age: int = 0


@upcast(Employee, 1)
def keep(old: dict[str, object]) -> dict[str, object]:
    return old


by_email: Index[Employee] = index(Employee, row="email_{email}", unique=True)
by_age = list_index(Employee, row="age_{age:03d}")
of_name = index(Department, row="n_{name}")
works_in = reference(Employee, Department, where={"name": "dept"})


@dataclass
class Small:
    id: int


async def use() -> None:
    async with connect("partita::memory:") as db:
        employees: Table[Employee] = db.table(Employee)
        one: Employee = await employees.save(evolve(Employee(dept="S", id=1), age=3))
        one = await employees.via(by_email).get(dept="S", email="x")
        one = await employees.update(lambda old: evolve(old, age=old.age + 1), dept="S", id=1)
        maybe: Employee | None = await employees.get_or_none(dept="S", id=1)
        async for each in employees.via(by_age).range(dept="S", age=between(1, 2)):
            print(each.email.upper())
        c = employees.c
        query: Query[Employee] = employees.where((c.age > 40) & ~(c.email == "x") | c.id.in_([1]))
        found: list[Employee] = await query.allow_scan().list()
        some: list[Partial[Employee]] = await query.select("id", "age").list()
        small: list[Small] = await query.select(Small).list()
        page: Page[Employee] = await employees.partition(dept="S").page(size=8)
        with db.measuring() as spent:
            cost: Cost = spent
        async with employees.partition(dept="S").atomic() as group:
            group.save(one)
        outcome: BulkOutcome = await employees.save_all([one])
        cost = outcome.cost
        bosses: list[Department | None] = await db.load(works_in, found)
        cached = db.table(Department).cached(60)
        boss: Department = await cached.get(name="S")
        pairs: list[tuple[Employee, Department | None]] = await cached.join(found, works_in)
        print(maybe, some, small, page, cost, bosses, boss, pairs, measure(one))


def use_without_loop() -> None:
    with sync.connect("partita::memory:") as db:
        employees: sync.Table[Employee] = db.table(Employee)
        one: Employee = employees.via(by_email).get(dept="S", email="x")
        found: list[Employee] = [each for each in employees.partition(dept="S")]
        with db.measuring() as spent:
            cost: Cost = spent
        print(one, found, cost)
"""

WRONG = """
from partita.patterns import Partial, Table

from right import Department, Employee, of_name


async def use(employees: Table[Employee], part: Partial[Employee]) -> None:
    await employees.save(Department(name="x"))
    await employees.save(part)
    employees.via(of_name)
    employees.where("Age gt 40")
    employees.where(employees.c.age)
    await employees.get("S", 1)
    found: Employee = await employees.get_or_none(dept="S", id=1)
    await employees.update(lambda old: None, dept="S", id=1)
    for each in employees.partition(dept="S"):
        print(each)
    Employee("S", 1)
    Employee(dept="S", id="1")
    print(found.agee)
"""


def test_right_use_passes_a_strict_checker_and_each_wrong_line_is_an_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    lines = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert not [line for line in lines if line.startswith("right.py")], checked.stdout
    wrong = {int(line.split(":")[1]) for line in lines if line.startswith("wrong.py")}
    assert wrong == {*range(8, 17), 18, 19, 20}
