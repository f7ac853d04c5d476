"""A strict type checker accepts correct use and reports each wrong line."""

from pathlib import Path

import pytest

from support.type_checkers import mypy, pyright, wrong_lines

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


TYPED = """
import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated

import attrs
import msgspec
import pydantic
from partita.patterns import (
    Database, Query, Series, Table, entity, index, is_absent, is_in, present, sync, transaction,
)


@entity(table="staff", partition="{dept}", row="{id:06d}")
class Employee:
    dept: str
    id: int
    email: str = ""
    age: int | None = None
    active: bool = True
    hours: Decimal = Decimal(0)
    visits: int = 0
    days: Annotated[dict[int, int], Series("d{:02d}", 31)] = field(default_factory=dict[int, int])


@entity(table="data", partition="{dept}", row="{id:06d}")
@dataclass
class Data:
    dept: str
    id: int


@entity(table="structs", partition="{dept}", row="{id:06d}")
class Struct(msgspec.Struct, weakref=True):
    dept: str
    id: int


@entity(table="models", partition="{dept}", row="{id:06d}")
class Model(pydantic.BaseModel):
    dept: str
    id: int


@entity(table="attributes", partition="{dept}", row="{id:06d}")
@attrs.define
class Attributes:
    dept: str
    id: int


@entity(table="staff", partition="{dept}", row="rev_{year:04d}")
class Review:
    dept: str
    year: int


@dataclass(kw_only=True)
class EmployeeKey:
    dept: str
    id: int


by_email = index(Employee, row="email_{email}", unique=True)


@transaction
async def archive(db: Database, dept: str, id: int, day: dt.date = dt.date(2026, 1, 1)) -> None:
    await db.table(Employee).delete_if_exists(dept=dept, id=id)


@transaction(name="without a loop")
def archive_now(db: sync.Database, dept: str, id: int) -> None:
    db.table(Employee).delete_if_exists(dept=dept, id=id)


async def use(db: Database) -> None:
    employees: Table[Employee] = db.table(Employee)
    keyed = db.table(Employee, key=EmployeeKey)
    employees = keyed
    one: Employee = await keyed.get(dept="Sales", id=7)
    one = await keyed.update(lambda e: e, dept="Sales", id=7)
    query: Query[Employee] = employees.where(lambda e: (present(e.age) > 40) & (e.dept == "S"))
    query = employees.where(lambda e: e.active | is_in(e.id, [1, 2]))
    query = query.where(lambda e: e.email.startswith("x") & is_absent(e.age))
    query = employees.partition(dept="Sales").where(lambda e: e.id > 3)
    query = employees.partition(lambda e: e.dept == "Sales").range(lambda e: e.id > 3)
    query = employees.via(by_email).range(lambda e: (e.dept == "S") & e.email.startswith("x"))
    one = await employees.via(by_email).get(lambda e: (e.dept == "S") & (e.email == "x"))
    emails: list[str] = await query.select(lambda e: e.email).list()
    pairs: list[tuple[int, str]] = await query.select(lambda e: (e.id, e.email)).list()
    total: Decimal = await employees.increment(one, lambda e: e.hours, by=Decimal("1.5"))
    count: int = await employees.increment(one, lambda e: e.visits)
    slot: int = await employees.increment(one, lambda e: e.days, 3, by=2)
    age: int = await employees.increment(one, lambda e: e.age)
    async for each in db.mixed(Employee, Review).partition(dept="Sales"):
        print(each.email if isinstance(each, Employee) else each.year)
    await db.start(archive, "Sales", 7)
    await db.start(archive, dept="Sales", id=7, day=dt.date(2026, 1, 1))
    async with employees.partition(dept="Sales").atomic() as group:
        group.start(archive, dept="Sales", id=7)
    ids: list[int] = await db.table(Data).where(lambda e: e.id > 1).select(lambda e: e.id).list()
    ids = await db.table(Struct).where(lambda e: e.id > 1).select(lambda e: e.id).list()
    ids = await db.table(Model).where(lambda e: e.id > 1).select(lambda e: e.id).list()
    ids = await db.table(Attributes).where(lambda e: e.id > 1).select(lambda e: e.id).list()
    print(emails, pairs, total, count, slot, age, ids)


def use_without_loop(db: sync.Database) -> None:
    db.start(archive_now, dept="Sales", id=7)
    one: Employee = db.table(Employee, key=EmployeeKey).get(dept="Sales", id=7)
    query = db.table(Employee).where(lambda e: e.id == 3)
    emails: list[str] = query.select(lambda e: e.email).list()
    print(one, emails)
"""

MISTAKES = """
from partita.patterns import Database, present

from typed import Employee, EmployeeKey, Review, archive


async def use(db: Database, employee: Employee) -> None:
    employees = db.table(Employee, key=EmployeeKey)
    employees.where(lambda e: e.agee == 40)
    employees.where(lambda e: present(e.age) > "40")
    employees.where(lambda e: e.dept == 40)
    employees.all().select(lambda e: e.emial)
    await employees.get(dep="Sales", id=7)
    await employees.get(dept="Sales", id="7")
    await employees.increment(employee, lambda e: e.hours, by="1")
    await employees.increment(employee, lambda e: e.email)
    await db.start(archive, dept="Sales", number=7)
    await db.start(archive, dept="Sales", id=7, day="2026-11-18")
    [print(each.email) async for each in db.mixed(Employee, Review).partition(dept="Sales")]
    employees.where(lambda e: (e.id > 3) and (e.dept == "Sales"))
"""
KEY_MISTAKES = """
from partita.patterns import Database, sync

from typed import Employee, by_email


async def use(db: Database, without_loop: sync.Database) -> None:
    employees = db.table(Employee)
    employees.partition(lambda e: e.dep == "Sales")
    employees.partition(lambda e: e.dept == 40)
    employees.partition(dept="Sales").range(lambda e: e.idd > 3)
    employees.partition(dept="Sales").range(lambda e: e.id > "3")
    employees.via(by_email).range(lambda e: e.emial.startswith("x"))
    await employees.via(by_email).get(lambda e: (e.dept == "S") & (e.email == 3))
    without_loop.table(Employee).partition(lambda e: e.dep == "Sales")
    without_loop.table(Employee).partition(dept="Sales").range(lambda e: e.id > "3")
"""
FIRST, LAST = 9, 20
"""The lines of the 12 mistakes. That of the last one, `and`, no checker can find; it raises an
error when the query is made."""


@pytest.mark.proof
def test_right_use_passes_a_strict_checker_and_each_wrong_line_is_an_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)

    printed = mypy(tmp_path, "right.py", "wrong.py")

    assert not wrong_lines(printed, "right.py"), printed
    assert wrong_lines(printed, "wrong.py") == {*range(8, 17), 18, 19, 20}


@pytest.mark.proof
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_finds_11_of_12_planted_mistakes(tmp_path: Path, checker: str) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    (tmp_path / "keys.py").write_text(KEY_MISTAKES)

    check = {"mypy": mypy, "pyright": pyright}[checker]
    printed = check(tmp_path, "typed.py", "mistakes.py", "keys.py")

    assert not wrong_lines(printed, "typed.py"), printed
    assert wrong_lines(printed, "mistakes.py") == {*range(FIRST, LAST)}, printed
    assert wrong_lines(printed, "keys.py") == {*range(9, 17)}, printed
