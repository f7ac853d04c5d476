"""Types without a type property, or with different ones, in one table."""

import pytest

from partita.errors import UsageError
from partita.patterns import Database, RawEntity, connect, entity
from partita.service.hosting.in_process import LocalAccount
from support.entities import Stranger, rows, strangers_anywhere


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


async def test_hidden_rows_are_none_of_a_type_that_says_no_type(db: Database) -> None:
    strangers = db.table(Stranger)
    await db.create_tables()
    await strangers.save(Stranger(city="Rome", name="Ann", age=40))
    assert any(row.row_key.startswith("~o_") for row in await rows(db, "strange"))

    in_rome = strangers.partition(city="Rome").all()
    assert [each.name for each in await in_rome.list()] == ["Ann"]
    assert await in_rome.count() == 1
    assert await strangers.all().allow_scan().count() == 1
    assert [each.name for each in await strangers.all().allow_scan().list()] == ["Ann"]
    outcome = await in_rome.delete()
    assert outcome.failures == []


async def test_a_rebuild_reaches_partitions_behind_the_tilde(partita_account: LocalAccount) -> None:
    async with connect(partita_account, direct=True) as db:
        db.table(Stranger)
        await db.create_tables()
        await db.raw("strange").save(RawEntity("Žilina", "Ann", {"Age": 40}))
        await db.raw("strange").save(RawEntity("Rome", "~o_0000000000000000001_00", {"X": 1}))

        await db.rebuild(strangers_anywhere)
        found = await db.table(Stranger).via(strangers_anywhere).range(age=40).list()

        assert [each.city for each in found] == ["Žilina"]


async def test_types_that_say_their_type_differently_are_not_read_together(db: Database) -> None:
    @entity(table="zoo", partition="{house}", row="l_{id:04d}")
    class Lion:
        house: str
        id: int

    @entity(table="zoo", partition="{house}", row="t_{id:04d}", type_property="Kind")
    class Tiger:
        house: str
        id: int

    lions, tigers = db.table(Lion), db.table(Tiger)
    await db.create_tables()
    await lions.save(Lion(house="h", id=1))
    await tigers.save(Tiger(house="h", id=1))

    try:
        found = [type(each) async for each in db.mixed(Lion, Tiger).partition("h")]
    except UsageError:
        return

    assert found == [Lion, Tiger]
