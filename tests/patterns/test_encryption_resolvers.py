"""Encryption by a resolver or a parent: blobs, index copies and key rotation."""

from typing import Annotated

import pytest

from partita.errors import UsageError
from partita.patterns import CopiedFrom, Database, Encrypted, InBlob, connect, entity, index
from partita.patterns.encryption.keyring import AesKey, Keyring
from partita.service.hosting.in_process import LocalAccount
from support.entities import rows
from support.staff import KEYRING


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


async def everything(db: Database, account: LocalAccount, tables: list[str]) -> str:
    """Return all that is stored, as one text: rows, and names and contents of blobs."""
    found = [repr(row) for table in tables for row in await rows(db, table)]
    for container in account.blobs.list_containers():
        client = account.blobs.get_container_client(container.name)
        found += [
            f"{blob.name} {client.download_blob(blob.name).readall()!r}"
            for blob in client.list_blobs()
        ]
    return "\n".join(found)


@entity(table="files", partition="{owner}", row="{id:04d}", encrypt=lambda _pk, _rk, _name: True)
class Secret:
    owner: str
    id: int
    title: str = ""
    body: Annotated[str | None, InBlob] = None


async def test_a_resolver_that_encrypts_everything_leaves_no_blob_in_the_clear(
    db: Database, partita_account: LocalAccount
) -> None:
    secrets = db.table(Secret)
    await db.create_tables()

    with pytest.raises(UsageError):
        await secrets.save(Secret(owner="o", id=1, title="t", body="the launch codes"))

    assert "launch codes" not in await everything(db, partita_account, ["files"])


@entity(
    table="patients", partition="{ward}", row="p_{id:04d}", encrypt=lambda _p, _r, n: n == "Name"
)
class Patient:
    ward: str
    id: int
    name: str


patients_by_name = index(Patient, row="name_{name:esc}_{id:04d}")


async def test_an_index_of_a_field_that_a_resolver_encrypts_is_refused(
    db: Database, partita_account: LocalAccount
) -> None:
    patients = db.table(Patient)
    await db.create_tables()

    with pytest.raises(UsageError):
        await patients.save(Patient(ward="w", id=1, name="Jekyll"))

    assert "Jekyll" not in await everything(db, partita_account, ["patients"])


async def test_a_copy_of_a_field_that_a_resolver_encrypts_is_refused(
    db: Database, partita_account: LocalAccount
) -> None:
    @entity(
        table="safe", partition="{ward}", row="p_{id:04d}", encrypt=lambda _p, _r, n: n == "Name"
    )
    class Inmate:
        ward: str
        id: int
        name: str

    try:

        @entity(table="safe", partition="{ward}", row="bed_{id:04d}")
        class Bed:
            ward: str
            id: int
            name: Annotated[
                str | None, CopiedFrom(Inmate, "name", where={"ward": "ward", "id": "id"})
            ] = None

        inmates, beds = db.table(Inmate), db.table(Bed)
        await db.create_tables()
        await beds.save(Bed(ward="w", id=1))
        await inmates.save(Inmate(ward="w", id=1, name="Jekyll"))
    except UsageError:
        pass

    assert "Jekyll" not in await everything(db, partita_account, ["safe"])


@entity(table="vaults", partition="{bank}", row="v_{id:04d}")
class Vault:
    bank: str
    id: int


@entity()
class DeepVault(Vault):
    name: str = ""
    code: Annotated[int | None, Encrypted] = None


deep_anywhere = index(DeepVault, table="deepvaults", partition="{name}", row="{bank:esc}_{id:04d}")


async def test_rotation_of_a_parent_reaches_the_copies_of_its_children(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, direct=True, keyring=KEYRING) as db:
        db.table(Vault)
        await db.create_tables()
        await db.table(Vault).save(DeepVault(bank="b", id=1, name="n", code=4711))
        await db.drain()
    both = KEYRING.add(AesKey("new", bytes(32))).with_current("new")
    async with connect(partita_account, direct=True, keyring=both) as db:
        db.table(Vault)
        await db.rotate(Vault)
    async with connect(
        partita_account, direct=True, keyring=Keyring.from_bytes("new", bytes(32))
    ) as db:
        [found] = await db.table(DeepVault).via(deep_anywhere).range(name="n").list()
        assert found.code == 4711
