"""A damaged entity is never served or merged; it can be replaced or deleted."""

import contextlib
from pathlib import Path
from typing import Any

import apsw
import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import TableClient, UpdateMode

import partita
from partita.service.hosting.in_process import LocalAccount
from partita.tables.entity import pack_document, unpack_document

ACCOUNT = "devstoreaccount1"
SECRET = b"a value that is longer than the short values of a row, and then some"
TICKS = 17_000_000_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return data in which one bit of a stored value has flipped."""
    with partita.open_account(tmp_path) as account:
        table = account.tables.create_table("Staff")
        for key in ("damaged", "sound"):
            entity = {"PartitionKey": "Sales", "RowKey": key, "Text": SECRET.decode(), "Age": 47}
            table.create_entity(entity)
    path = tmp_path / ACCOUNT / "account.sqlite"
    content = path.read_bytes()
    at = content.index(b"some", content.index(b'"RowKey":"damaged"'))
    path.write_bytes(content[:at] + b"sole" + content[at + 4 :])
    return tmp_path


def staff(account: LocalAccount) -> TableClient:
    return account.tables.get_table_client("Staff")


def test_damaged_entity_is_refused_and_its_neighbour_is_served(data: Path) -> None:
    with partita.open_account(data) as account:
        table = staff(account)
        for read in (
            lambda: table.get_entity("Sales", "damaged", retry_total=0),
            lambda: list(table.list_entities(retry_total=0)),
            lambda: list(table.query_entities("Age eq 47", retry_total=0)),
            lambda: table.update_entity(
                {"PartitionKey": "Sales", "RowKey": "damaged", "Age": 48},
                mode=UpdateMode.MERGE,
                retry_total=0,
            ),
        ):
            with pytest.raises(HttpResponseError, match=r"EntityDamaged|is damaged"):
                read()
        assert table.get_entity("Sales", "sound")["Text"] == SECRET.decode()


def test_damaged_entity_can_be_replaced(data: Path) -> None:
    entity = {"PartitionKey": "Sales", "RowKey": "damaged", "Text": "again"}
    with partita.open_account(data) as account:
        staff(account).upsert_entity(entity, mode=UpdateMode.REPLACE)
        assert dict(staff(account).get_entity("Sales", "damaged")) == entity


def test_damaged_entity_can_be_deleted(data: Path) -> None:
    with partita.open_account(data) as account:
        staff(account).delete_entity("Sales", "damaged")
        with pytest.raises(ResourceNotFoundError):
            staff(account).get_entity("Sales", "damaged")


@pytest.mark.parametrize("place", range(10))
def test_every_flipped_bit_of_a_stored_document_is_found(place: int) -> None:
    stored = pack_document(TICKS, b"1234}")
    assert unpack_document(TICKS, stored) == b"1234}"

    for bit in range(8):
        damaged = bytearray(stored)
        damaged[place] ^= 1 << bit
        assert unpack_document(TICKS, bytes(damaged)) is None


def test_document_of_another_version_of_the_entity_is_found() -> None:
    assert unpack_document(TICKS + 1, pack_document(TICKS, b"1234}")) is None


def test_document_without_a_checksum_gets_one_when_it_is_written(tmp_path: Path) -> None:
    with partita.open_account(tmp_path) as account:
        account.tables.create_table("Staff").create_entity({"PartitionKey": "p", "RowKey": "r"})
    database = tmp_path / ACCOUNT / "account.sqlite"
    with contextlib.closing(apsw.Connection(str(database))) as connection:
        connection.execute("UPDATE entity SET document = substr(document, 1, length(document) - 5)")
        connection.execute("DROP INDEX blob_tagged; DROP INDEX blob_expires")
        connection.execute("ALTER TABLE blob DROP COLUMN state")
        connection.execute("ALTER TABLE blob DROP COLUMN expires_at")
        connection.execute("UPDATE format SET version = 1")
        connection.pragma("user_version", 0)  # no checksum of the format numbers either

    with partita.open_account(tmp_path) as account:
        assert dict(staff(account).get_entity("p", "r")) == {"PartitionKey": "p", "RowKey": "r"}
        staff(account).update_entity({"PartitionKey": "p", "RowKey": "r", "Age": 1})

    with contextlib.closing(apsw.Connection(str(database))) as connection:
        rows: list[Any] = connection.execute("SELECT ticks, document FROM entity").fetchall()
        [(ticks, stored)] = rows
        assert (stored[-1], unpack_document(ticks, stored)) == (2, stored[:-5])
        assert connection.execute("SELECT version FROM format WHERE system = 'tables'").get == 2
