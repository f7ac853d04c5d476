"""Unique values that are exchanged or handed over in one group."""

import itertools

import pytest

from partita.patterns import Database, UniqueViolationError, evolve
from support.entities import User, by_login


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


async def users_of(db: Database, *logins: str) -> list[User]:
    db.table(User)
    await db.create_tables()
    found = [User(org="o", id=n, login=login) for n, login in enumerate(logins)]
    return [await db.table(User).save(each) for each in found]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_unique_values_go_round_in_one_group(db: Database, order: tuple[int, ...]) -> None:
    users = await users_of(db, "a", "b", "c")
    wanted = {0: "b", 1: "c", 2: "a"}

    async with db.table(User).partition(org="o").atomic() as group:
        for number in order:
            group.save(evolve(users[number], login=wanted[number]))
    await db.drain()

    for number, login in wanted.items():
        assert (await db.table(User).via(by_login).get(org="o", login=login)).id == number
    assert await db.verify(User) == []


async def test_a_value_is_handed_over_in_a_group_and_not_taken_twice(db: Database) -> None:
    one, two, three = await users_of(db, "a", "b", "c")
    users = db.table(User)

    async def sent(*changed: User) -> None:
        async with users.partition(org="o").atomic() as group:
            for each in changed:
                group.save(each)

    with pytest.raises(UniqueViolationError):
        await sent(evolve(one, login="x"), evolve(two, login="a"), evolve(three, login="a"))
    with pytest.raises(UniqueViolationError):
        await sent(evolve(one, age=1), evolve(two, login="a"))
    assert await db.verify(User) == []

    async with users.partition(org="o").atomic() as group:
        group.delete(one)
        group.save(evolve(two, login="a"))
        group.save(User(org="o", id=9, login="b"))
    assert await db.verify(User) == []
    assert (await users.via(by_login).get(org="o", login="a")).id == 1


async def test_a_move_and_a_new_value_in_one(db: Database) -> None:
    one, _, _ = await users_of(db, "a", "b", "c")

    moved = await db.table(User).move(one, id=7, login="d")

    assert await db.verify(User) == []
    assert (await db.table(User).via(by_login).get(org="o", login="d")) == moved
    with pytest.raises(UniqueViolationError):
        await db.table(User).move(moved, id=8, login="b")
    assert await db.verify(User) == []
