"""A strict type checker accepts correct use and reports each wrong line."""

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.proof
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
