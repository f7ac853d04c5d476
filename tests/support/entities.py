"""Entity types that several tests of the typed layer share."""

from dataclasses import field
from typing import Annotated, Any

from partita.patterns import (
    CopiedFrom,
    CountOf,
    Database,
    Encrypted,
    RawEntity,
    Series,
    entity,
    index,
    list_index,
    upcast,
    view,
)


async def rows(db: Database, table: str) -> list[RawEntity]:
    return [row async for row in db.raw(table).query() if row.partition_key != "~partita"]


@entity(table="scores", partition="{game}", row="{id:04d}", name="Score", version=2)
class ScoreV2:
    game: str
    id: int
    total: int = 0
    lives: int = 3


@upcast(ScoreV2, from_version=1)
def _total(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "total": old.pop("count", 0)}


@entity(table="wide", partition="{site}", row="w_{id:04d}")
class Wide:
    site: str
    id: int
    minutes: Annotated[dict[int, int], Series("m{:04d}", slots=3000)] = field(default_factory=dict)
    name: str = ""


@entity(table="strange", partition="{city}", row="{name}", type_property=None)
class Stranger:
    city: str
    name: str
    age: int = 0


strangers_anywhere = index(
    Stranger, table="strangebyage", partition="{age:04d}", row="{city:esc}_{name:esc}"
)


@entity(table="plainpeople", partition="{team}", row="p_{id:04d}", name="Person")
class PlainNew:
    team: str
    id: int
    email: str
    pin: Annotated[int | None, Encrypted] = None
    nick: str = ""


@entity(table="lists", partition="{owner}", row="{id:04d}")
class Todo:
    owner: str
    id: int
    tags: list[str] = field(default_factory=list)
    done: int = 0


@entity(table="users", partition="{org}", row="u_{id:04d}")
class User:
    org: str
    id: int
    login: str
    age: int = 0


by_login = index(User, row="login_{login}", unique=True)


login_copies = index(User, row="copy_{login}", copy=["age"])


login_members = list_index(User, row="member_{login}")


login_lists = list_index(User, row="list_{login}", store="partition")


@entity(table="halls", partition="{hall}", row="hall")
class Hall:
    hall: str
    days: Annotated[dict[int, int], Series("d{:03d}", slots=300)] = field(default_factory=dict)
    guests: Annotated[int, CountOf("Guest", where={"hall": "hall"})] = 0
    host: Annotated[
        str | None, CopiedFrom("Guest", "name", where={"hall": "hall", "id": "host_id"})
    ] = None
    host_id: int = 1


@entity(table="halls", partition="{hall}", row="g_{id:04d}")
class Guest:
    hall: str
    id: int
    name: str


halls_by_guests = index(Hall, table="hallsbyguests", partition="{guests:06d}", row="{hall}")


halls_by_host = index(Hall, row="host_{host}")


shown_halls: dict[str, int] = {}


@view(Hall)
def show_hall(_db: Any, key: dict[str, Any], hall: Hall | None) -> None:
    shown_halls[key["hall"]] = -1 if hall is None else hall.guests


@entity(table="rooms", partition="{house}", row="{id:04d}")
class Room:
    house: str
    id: int
    color: str = ""


@entity(table="files", partition="{dept}", row="{owner:esc}_{name}")
class File:
    dept: str
    owner: str
    name: str
