"""Owners of derived fields: optional, wide, indexed, with long keys."""

from dataclasses import field
from typing import Annotated

import pytest

from partita.patterns import (
    CopiedFrom,
    CountOf,
    Database,
    ETagMismatchError,
    Series,
    entity,
    evolve,
)
from support.entities import Guest, Hall, shown_halls


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


@entity(table="crew", partition="{ship}", row="ship")
class Ship:
    ship: str
    home: str | None = None
    locals: Annotated[int, CountOf("Sailor", where={"ship": "ship", "port": "home"})] = 0


@entity(table="ports", partition="{ship}", row="port_{name}")
class Port:
    ship: str
    name: str
    sailors: Annotated[int, CountOf("Sailor", where={"ship": "ship", "port": "name"})] = 0


@entity(table="crew", partition="{ship}", row="s_{id:04d}")
class Sailor:
    ship: str
    id: int
    port: str | None = None


async def test_an_owner_may_have_none_where_it_counts_by(db: Database) -> None:
    ships, sailors = db.table(Ship), db.table(Sailor)
    await db.create_tables()
    await sailors.save(Sailor(ship="Argo", id=1, port=None))
    await sailors.save(Sailor(ship="Argo", id=2, port="Iolcus"))

    await ships.save(Ship(ship="Argo"))
    await db.drain()
    await sailors.save(Sailor(ship="Argo", id=3, port=None))
    await db.drain()

    stored = await ships.get(ship="Argo")
    assert await db.verify(Ship) == []
    await ships.save(evolve(stored, home="Iolcus"))
    await db.drain()
    assert (await ships.get(ship="Argo")).locals == 1
    assert await db.verify(Ship) == []


@entity(table="wide", partition="{dept}", row="v_{id:04d}", name="Voter")
class Voter:
    dept: str
    id: int
    votes: Annotated[dict[int, int], Series("v{:03d}", slots=300)] = field(default_factory=dict)
    party: str = "none"
    nick: str = ""


@entity(table="wide", partition="{dept}", row="tally", name="Tally")
class Tally:
    dept: str
    party: str = "green"
    chief: int = 1
    count: Annotated[int, CountOf("Voter", where={"dept": "dept", "party": "party"})] = 0
    nick: Annotated[
        str | None, CopiedFrom("Voter", "nick", where={"dept": "dept", "id": "chief"})
    ] = None


async def test_what_lies_in_a_further_row_of_a_source_is_counted_and_copied(db: Database) -> None:
    voters, tallies = db.table(Voter), db.table(Tally)
    await db.create_tables()
    for number, party in enumerate(["green", "red", "green"], start=1):
        await voters.save(Voter(dept="d", id=number, party=party, nick=f"n{number}"))

    saved = await tallies.save(Tally(dept="d"))

    assert (saved.count, saved.nick) == (2, "n1")
    assert await db.verify(Tally) == []


@entity(table="tree", partition="{space}", row="f_{id:04d}")
class Folder:
    space: str
    id: int
    parent: int = 0
    children: Annotated[int, CountOf("Folder", where={"space": "space", "parent": "id"})] = 0


async def test_a_type_counts_its_own_kind_also_in_one_group(db: Database) -> None:
    folders = db.table(Folder)
    await db.create_tables()
    async with folders.partition(space="s").atomic() as group:
        for number, parent in ((1, 0), (2, 1), (3, 1), (4, 2)):
            group.save(Folder(space="s", id=number, parent=parent))
    two, three = [await folders.get(space="s", id=number) for number in (2, 3)]
    async with folders.partition(space="s").atomic() as group:
        group.save(evolve(three, parent=2))
        group.delete(two)
    await folders.delete_if_exists(space="s", id=1)

    assert await db.verify(Folder) == []
    async with folders.partition(space="s").atomic() as group:
        group.save(Folder(space="s", id=2, parent=2))
    assert (await folders.get(space="s", id=2)).children == 3
    assert await db.verify(Folder) == []


async def test_derived_fields_in_a_further_row_of_a_wide_owner_are_kept_and_followed(
    db: Database,
) -> None:
    halls, guests = db.table(Hall), db.table(Guest)
    await db.create_tables()
    one = await guests.save(Guest(hall="h", id=1, name="Ann"))
    hall = await halls.save(Hall(hall="h", days={299: 1}))
    assert (hall.guests, hall.host) == (1, "Ann")

    two = await guests.save(Guest(hall="h", id=2, name="Bob"))
    one = await guests.save(evolve(one, name="Amy"))
    with pytest.raises(ETagMismatchError):
        await halls.save(evolve(hall, days={1: 1}))
    hall = await halls.get(hall="h")
    hall = await halls.save(evolve(hall, days={299: 2}, host_id=2))
    async with halls.partition(hall="h").atomic() as group:
        group.save(evolve(hall, days={298: 2}))
        group.delete(one)
        group.save(evolve(two, name="Ben"))
        group.save(Guest(hall="h", id=3, name="Cat"))
    await db.drain()

    stored = await halls.get(hall="h")
    assert (stored.guests, stored.host, stored.days) == (2, "Ben", {298: 2})
    assert await db.verify(Hall) == []
    assert shown_halls["h"] == 2
    await guests.delete_all(await guests.partition(hall="h").all().list())
    await db.drain()
    assert await db.verify(Hall) == []
    stored = await halls.get(hall="h")
    assert (stored.guests, stored.host, shown_halls["h"]) == (0, None, 0)


@entity(table="owners", partition="{name}", row="{name}")
class LongOwner:
    name: str
    count: Annotated[int, CountOf("LongSource", where={"name": "name"})] = 0


@entity(table="owners", partition="{name}", row="{id:04d}")
class LongSource:
    name: str
    id: int


async def test_an_owner_may_have_the_longest_key(db: Database) -> None:
    owners, sources = db.table(LongOwner), db.table(LongSource)
    await db.create_tables()
    name = "n" * 512

    await sources.save(LongSource(name=name, id=1))
    await owners.save(LongOwner(name=name))
    await sources.save(LongSource(name=name, id=2))

    assert (await owners.get(name=name)).count == 2
