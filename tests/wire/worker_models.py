"""An application for workers: the process of a test imports it, and so does the worker's."""

import asyncio
import time
from pathlib import Path
from typing import Any

from partita.patterns import entity, eventual, idempotent, index, view


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    email: str


anywhere = index(
    Employee, table="byemail", partition="{email}", row="{id:06d}_{dept}", name="anywhere"
)


@idempotent
def take(_db: Any, arguments: dict[str, Any]) -> None:
    """Leave a mark, then wait for the test."""
    with Path(f"taken-{arguments['name']}").open("a") as file:
        file.write("x")
    while not Path(f"go-{arguments['name']}").exists():
        time.sleep(0.02)


@idempotent
async def finish(db: Any, arguments: dict[str, Any]) -> None:
    person = await db.table(Employee).get(dept="Sales", id=arguments["id"])
    mark = Path(f"done-{arguments['name']}")
    await asyncio.to_thread(mark.write_text, person.email)


@idempotent
def fail(_db: Any, _arguments: dict[str, Any]) -> None:
    message = "no such printer"
    raise ValueError(message)


working = eventual("working", take, finish)
failing = eventual("failing", fail)


@view(Employee)
def printed(_db: Any, key: dict[str, Any], employee: Employee | None) -> None:
    """Write to another place than a table: what search indexes and files are fed by."""
    Path(f"view-{key['id']}").write_text("-" if employee is None else employee.email)
