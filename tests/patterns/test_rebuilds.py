"""Rebuild and verify of an index: another process, equal values, an upcaster."""

from typing import Any

import pytest

from partita.patterns import (
    Database,
    IndexNotReadableError,
    UniqueViolationError,
    connect,
    entity,
    evolve,
    index,
    upcast,
)
from partita.service.hosting.in_process import LocalAccount
from support.entities import User, by_login, rows


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


async def test_a_process_that_saw_an_index_disabled_follows_it_when_it_is_rebuilt_elsewhere(
    partita_account: LocalAccount,
) -> None:
    async with (
        connect(partita_account, direct=True) as here,
        connect(partita_account, direct=True) as there,
    ):
        for db in (here, there):
            db.table(User)
            await db.create_tables()
        await here.table(User).save(User(org="o", id=1, login="a"))
        await here.disable(by_login)
        await there.rebuild(by_login)

        await here.table(User).save(User(org="o", id=2, login="b"))
        with pytest.raises(UniqueViolationError):
            await here.table(User).save(User(org="o", id=3, login="a"))

        assert await there.verify(User) == []


async def test_a_rebuild_that_meets_the_same_value_twice_names_the_second(
    partita_account: LocalAccount,
) -> None:
    def declared() -> type[Any]:
        @entity(table="pupils", partition="{school}", row="p_{id:04d}")
        class Pupil:
            school: str
            id: int
            login: str

        return Pupil

    pupil = declared()
    async with connect(partita_account, direct=True) as db:
        pupils = db.table(pupil)
        await db.create_tables()
        for number in (1, 2, 3):
            await pupils.save(pupil(school="s", id=number, login="abx"[number - 1]))
        await pupils.save(pupil(school="s", id=4, login="b"))
    pupil = declared()
    unique = index(pupil, row="login_{login}", unique=True)
    async with connect(partita_account, direct=True) as db:
        pupils = db.table(pupil)
        await db.create_tables()
        with pytest.raises(UniqueViolationError) as refused:
            await db.rebuild(unique)
        assert refused.value.facts["entity"] == "p_0004"
        with pytest.raises(IndexNotReadableError):
            await pupils.via(unique).get(school="s", login="a")

        await pupils.save(evolve(await pupils.get(school="s", id=4), login="c"))
        await db.rebuild(unique)
        assert (await pupils.via(unique).get(school="s", login="c")).id == 4


async def test_an_upcaster_of_an_indexed_field_is_found_by_verify_and_put_right(
    partita_account: LocalAccount,
) -> None:
    @entity(table="subs", partition="{club}", row="m_{id:04d}", name="Sub")
    class SubV1:
        club: str
        id: int
        email: str

    index(SubV1, row="email_{email}", unique=True, name="by_email")

    @entity(table="subs", partition="{club}", row="m_{id:04d}", name="Sub", version=2)
    class SubV2:
        club: str
        id: int
        email: str

    by_email = index(SubV2, row="email_{email}", unique=True, name="by_email")

    @upcast(SubV2, from_version=1)
    def lower(old: dict[str, Any]) -> dict[str, Any]:
        return old | {"email": old["email"].lower()}

    async with connect(partita_account, direct=True) as db:
        old = db.table(SubV1)
        await db.create_tables()
        for number in (1, 2, 3):
            await old.save(SubV1(club="c", id=number, email=f"JUN{number}@X"))
    async with connect(partita_account, direct=True) as db:
        subs = db.table(SubV2)
        await db.create_tables()
        await subs.save(await subs.get(club="c", id=1))
        await subs.delete(await subs.get(club="c", id=2))
        await db.repair(SubV2, await db.verify(SubV2))

        assert await db.verify(SubV2) == []
        assert (await subs.via(by_email).get(club="c", email="jun3@x")).id == 3
        keys = [row.row_key for row in await rows(db, "subs")]
        assert keys == ["email_jun1@x", "email_jun3@x", "m_0001", "m_0003"]
