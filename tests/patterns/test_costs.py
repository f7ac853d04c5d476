"""The cost of bulk writes, groups and partitions is on their result."""

import pytest

from partita.patterns import Database
from support.teams import Member, member


@pytest.fixture
def db(team_db: Database) -> Database:
    return team_db


async def test_what_many_writes_cost_is_on_their_result(db: Database) -> None:
    members = db.table(Member)

    with db.measuring() as saving:
        saved = await members.save_all([member(number) for number in range(3)])
    query = members.partition(team="Sales").all()
    with db.measuring() as deleting:
        deleted = await query.delete()

    assert saving.requests > 0
    assert saved.cost == saving
    assert deleting.requests > 1
    assert deleted.cost == query.cost == deleting


async def test_what_a_group_and_several_partitions_cost_is_on_them(db: Database) -> None:
    members = db.table(Member)

    with db.measuring() as writing:
        async with members.partition(team="Sales").atomic() as group:
            group.save(member(1))
            group.save(member(2))
    teams = members.partitions([{"team": "Sales"}, {"team": "Other"}])
    with db.measuring() as reading:
        await teams.list()

    assert writing.requests > 0
    assert group.cost == writing
    assert reading.requests == 2
    assert teams.cost == reading
