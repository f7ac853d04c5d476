"""Teams, members and meters: the types of several tests of the typed layer."""

from dataclasses import field
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

from partita.patterns import (
    CountOf,
    InBlob,
    Series,
    entity,
    list_index,
)

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
