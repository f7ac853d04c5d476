"""Entities of an older version: read by copies, counted, selected, incremented."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from partita.errors import PartitaError
from partita.patterns import Database, RawEntity, connect, entity, evolve, index, upcast
from partita.service.hosting.in_process import LocalAccount
from support.entities import ScoreV2


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


@entity(table="members", partition="{club}", row="m_{id:04d}", name="Member", version=1)
class MemberV1:
    club: str
    id: int
    name: str
    email: str


MEMBER_V1_EMAIL = index(MemberV1, row="email_{email}", unique=True, name="by_email")


@entity(table="members", partition="{club}", row="m_{id:04d}", name="Member", version=2)
class MemberV2:
    club: str
    id: int
    first: str
    email: str
    points: int = 10


MEMBER_V2_EMAIL = index(MemberV2, row="email_{email}", unique=True, name="by_email")


@upcast(MemberV2, from_version=1)
def _first(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "first": old.pop("name").split()[0]} if "name" in old else _missing(old)


def _missing(old: dict[str, Any]) -> dict[str, Any]:
    raise KeyError(str(sorted(old)))


@pytest_asyncio.fixture
async def upgraded(partita_account: LocalAccount) -> AsyncIterator[Database]:
    """A database in which version 1 of a program left two members, opened by version 2."""
    async with connect(partita_account, direct=True) as old:
        table = old.table(MemberV1)
        await old.create_tables()
        await table.save(MemberV1(club="c", id=1, name="Jun Cao", email="jun@x"))
        await table.save(MemberV1(club="c", id=2, name="Ken Kwok", email="ken@x"))
    async with connect(partita_account, direct=True) as new:
        new.table(MemberV2)
        await new.create_tables()
        yield new


JUN = MemberV2(club="c", id=1, first="Jun", email="jun@x")


async def test_a_copy_of_an_older_version_is_read_by_its_entity(upgraded: Database) -> None:
    members = upgraded.table(MemberV2)

    found = await members.via(MEMBER_V2_EMAIL).get(club="c", email="jun@x")

    assert found == JUN
    await members.save(evolve(found, points=11))


async def test_older_versions_are_counted_and_selected(upgraded: Database) -> None:
    everybody = upgraded.table(MemberV2).partition(club="c").all()

    assert await everybody.count() == 2
    assert [each.first for each in await everybody.select("first").list()] == ["Jun", "Ken"]
    assert [each.id for each in await everybody.select("id").list()] == [1, 2]


async def test_selected_by_an_index_of_an_older_version(upgraded: Database) -> None:
    via = upgraded.table(MemberV2).via(MEMBER_V2_EMAIL).range(club="c")

    assert [each.first for each in await via.select("first").list()] == ["Jun", "Ken"]


@entity(table="scores", partition="{game}", row="{id:04d}", name="Score", version=1)
class ScoreV1:
    game: str
    id: int
    count: int = 0


async def test_increment_of_an_older_version_is_not_lost(partita_account: LocalAccount) -> None:
    async with connect(partita_account, direct=True) as old:
        table = old.table(ScoreV1)
        await old.create_tables()
        await table.save(ScoreV1(game="g", id=1, count=5))
    async with connect(partita_account, direct=True) as new:
        scores = new.table(ScoreV2)
        loaded = await scores.get(game="g", id=1)

        assert await scores.increment(loaded, "total") == 6
        assert (await scores.get(game="g", id=1)).total == 6


async def test_increment_starts_from_the_default_of_a_field_that_is_new(db: Database) -> None:
    scores = db.table(ScoreV2)
    await db.create_tables()
    await db.raw("scores").save(
        RawEntity("g", "0001", {"EntityType": "Score", "EntityVersion": 2, "Total": 1})
    )
    loaded = await scores.get(game="g", id=1)
    assert loaded.lives == 3

    assert await scores.increment(loaded, "lives") == 4


async def test_damaged_versions_are_an_error_of_ours(db: Database) -> None:
    members = db.table(MemberV2)
    await db.create_tables()
    await db.raw("members").save(
        RawEntity("c", "m_0001", {"EntityType": "Member", "EntityVersion": "two"})
    )

    with pytest.raises(PartitaError):
        await members.get(club="c", id=1)
