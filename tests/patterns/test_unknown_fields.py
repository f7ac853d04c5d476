"""Stored properties that the class does not declare are kept."""

from typing import Annotated, Any

import pytest

from partita.patterns import Database, Encrypted, InBlob, connect, entity, evolve, index
from partita.service.hosting.in_process import LocalAccount
from support.entities import PlainNew, rows
from support.staff import KEYRING


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


@entity(table="people", partition="{team}", row="p_{id:04d}", name="Person")
class PersonOld:
    team: str
    id: int
    email: str


by_email_old = index(PersonOld, row="email_{email}", unique=True, name="by_email")


@entity(table="people", partition="{team}", row="p_{id:04d}", name="Person")
class PersonNew:
    team: str
    id: int
    email: str
    pin: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None


by_email_new = index(PersonNew, row="email_{email}", unique=True, name="by_email")


@entity(table="plainpeople", partition="{team}", row="p_{id:04d}", name="Person")
class PlainOld:
    team: str
    id: int
    email: str


async def stored_by(account: LocalAccount, cls: type[Any], **values: Any) -> None:
    async with connect(account, keyring=KEYRING, direct=True) as db:
        table = db.table(cls)
        await db.create_tables()
        await table.save(cls(**values))


async def test_an_entity_from_a_copy_keeps_what_its_class_does_not_know_when_it_is_moved(
    partita_account: LocalAccount,
) -> None:
    await stored_by(partita_account, PersonNew, team="a", id=1, email="x", pin=1234)

    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        people = db.table(PersonOld)
        found = await people.via(by_email_old).get(team="a", email="x")
        await people.move(found, id=2)
        assert "1234" not in repr(await rows(db, "people"))
    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        assert (await db.table(PersonNew).get(team="a", id=2)).pin == 1234


async def test_blobs_of_a_field_that_a_class_does_not_know_are_not_collected(
    partita_account: LocalAccount,
) -> None:
    await stored_by(partita_account, PersonNew, team="a", id=1, email="x", photo=b"face")

    async with connect(partita_account, keyring=KEYRING, direct=True, blob_grace=-10.0) as db:
        db.table(PersonOld)
        await db.collect_blobs()
    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        assert (await db.table(PersonNew).get(team="a", id=1)).photo == b"face"


@pytest.mark.parametrize("verb", ["force", "merge", "upsert_all", "merge all"])
async def test_a_forced_write_and_a_save_after_it_keep_what_the_class_does_not_know(
    partita_account: LocalAccount, verb: str
) -> None:
    await stored_by(partita_account, PlainNew, team="a", id=1, email="x", pin=1234, nick="n")

    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        people = db.table(PlainOld)
        loaded = await people.get(team="a", id=1)
        match verb:
            case "force":
                saved = await people.save(evolve(loaded, email="y"), force=True)
            case "merge":
                saved = await people.upsert(PlainOld(team="a", id=1, email="y"), merge=True)
            case "merge all":
                saved = await people.upsert(evolve(loaded, email="y"), merge=True)
            case _:
                [saved] = (await people.upsert_all([evolve(loaded, email="y")])).entities
        assert saved.email == "y"
        await people.save(evolve(saved, email="z"))
        assert "1234" not in repr(await rows(db, "plainpeople"))
    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        kept = await db.table(PlainNew).get(team="a", id=1)
        assert kept == PlainNew(team="a", id=1, email="z", pin=1234, nick="n")
