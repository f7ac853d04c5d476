"""The entity classes of the example, shared by the tests: a department and its employees.

`person` and `department` are builders: what a test does not name does not matter to it.
"""

import datetime as dt
from dataclasses import field
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

from partita.patterns import (
    CopiedFrom,
    CountOf,
    Database,
    Encrypted,
    InBlob,
    Keyring,
    RawEntity,
    Series,
    entity,
    index,
    list_index,
    upcast,
)

KEYRING = Keyring.from_bytes("test", bytes(range(32)))


class Grade(StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str
    manager_id: int
    manager_email: Annotated[
        str | None, CopiedFrom("Employee", "email", where={"dept": "name", "id": "manager_id"})
    ] = None
    headcount: Annotated[int, CountOf("Employee", where={"dept": "name"})] = 0


@entity(table="staff", partition="{dept}", row="emp_{id:06d}", version=2)
class Employee:
    dept: str
    id: int
    first: str
    last: str
    email: str
    age: int = 0
    grade: Grade = Grade.JUNIOR
    salary: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None
    messages: Annotated[dict[int, int], Series("m{:03d}", slots=365)] = field(default_factory=dict)


by_email = index(Employee, row="email_{email}", unique=True)
anywhere = index(Employee, table="staffbyemail", partition="{email}", row="{dept}")
by_last = list_index(Employee, row="last_{last}")


@upcast(Employee, from_version=1)
def split_name(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old.pop("name").partition(" ")
    return old | {"first": first, "last": last}


@entity(table="expenses", partition="{employee:06d}", row="{at:desc}_{number:04d}")
class Expense:
    employee: int
    at: dt.datetime
    number: int
    amount: Decimal


@entity(table="notes", partition="{topic}", row="{number:06d}")
class Note:
    """A plain type: one row, which nothing follows."""

    topic: str
    number: int
    text: str = ""
    stars: int | None = None


def person(number: int, **other: Any) -> Employee:
    """Return an employee of Sales whom nobody has saved."""
    given: dict[str, Any] = {
        "dept": "Sales",
        "first": f"First{number}",
        "last": f"Last{number}",
        "email": f"e{number}@contoso.com",
    }
    return Employee(id=number, **{**given, **other})


def note(number: int, **other: Any) -> Note:
    return Note(number=number, **{"topic": "tables", **other})


async def rows_of(db: Database, table: str = "staff", filter_text: str = "") -> list[RawEntity]:
    """Return everything that is stored in a table, hidden rows included."""
    return [row async for row in db.raw(table).query(filter_text)]


async def keys_of(db: Database, table: str = "staff") -> list[str]:
    """Return the row keys of a table, without states of indexes."""
    return [row.row_key for row in await rows_of(db, table) if row.partition_key != "~partita"]
