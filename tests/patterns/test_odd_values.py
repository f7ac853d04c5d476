"""Odd texts, odd numbers and keys that are too long are stored or refused before they are sent."""

import pytest

from partita.errors import PartitaError, UsageError
from partita.patterns import Database, connect
from partita.service.hosting.in_process import LocalAccount
from support.entities import PlainNew, Todo, User
from support.staff import KEYRING


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    "text", ["\ud800", "\udfff\ud800", "a\0b", "\U0010ffff", "'", "%41", "\ufffe"]
)
async def test_odd_texts_are_stored_or_refused_by_us(
    partita_account: LocalAccount, text: str, direct: bool
) -> None:
    async with connect(partita_account, direct=direct, keyring=KEYRING) as db:
        todos, people = db.table(Todo), db.table(PlainNew)
        await db.create_tables()
        try:
            await people.save(PlainNew(team="a", id=1, email=text, nick=text))
            assert (await people.get(team="a", id=1)).nick == text
            found = await people.where(people.c.nick == text).allow_scan().list()
            assert [each.nick for each in found] == [text]
            page = await people.where(people.c.nick == text).allow_scan().page(size=1)
            assert len(page.entities) == 1
        except PartitaError:
            pass
        try:
            await todos.save(Todo(owner=text, id=1))
            assert [each.owner for each in await todos.partition(owner=text).all().list()] == [text]
        except PartitaError:
            pass


async def test_odd_numbers_are_refused_by_us(db: Database) -> None:
    todos = db.table(Todo)
    await db.create_tables()
    here = todos.partition(owner="o")

    for wrong in (
        lambda: here.page(size=0),
        lambda: here.page(size=-1),
        lambda: here.all().limit(-1).list(),
        lambda: todos.save_all([Todo(owner="o", id=1)], max_rate=0),
        lambda: todos.save_all([Todo(owner="o", id=1)], max_rate=-1),
        lambda: here.page(size=1, continuation="x" * 1_000_000),
        lambda: here.page(size=1, continuation=""),
        lambda: here.page(size=1, continuation="Ω"),
        lambda: here.page(size=1, continuation=7),  # type: ignore[arg-type]
        lambda: todos.increment(Todo(owner="o", id=1), "tags"),
        lambda: todos.get(owner="o", id=10**9),
        lambda: todos.get(owner="o", id=-1),
        lambda: todos.get(owner="o", id="1"),
    ):
        with pytest.raises(PartitaError):
            await wrong()


@pytest.mark.parametrize("verb", ["save", "save_all", "group"])
async def test_a_row_of_ours_whose_key_would_be_too_long_is_refused_before_it_is_sent(
    db: Database, verb: str
) -> None:
    users = db.table(User)
    await db.create_tables()
    user = User(org="o", id=1, login="x" * 507)

    async def sent() -> None:
        if verb == "save":
            await users.save(user)
        elif verb == "group":
            async with users.partition(org="o").atomic() as group:
                group.save(user)
        else:
            raise (await users.save_all([user])).failures[0].error

    with pytest.raises(UsageError):
        await sent()
