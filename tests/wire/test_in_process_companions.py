"""Queues and blobs in one process: the official clients of an account, without a socket."""

from pathlib import Path

import pytest
from azure.core.exceptions import ResourceExistsError

import partita
from partita.errors import UsageError


def test_the_three_clients_of_an_account_share_its_folder(tmp_path: Path) -> None:
    with partita.open_account(tmp_path) as account:
        account.blobs.create_container("photos").upload_blob("1.png", b"PNG", metadata={"Of": "1"})
        account.queues.create_queue("work").send_message("archive 1")
        account.tables.create_table("Staff").create_entity({"PartitionKey": "p", "RowKey": "1"})

    with partita.open_account(tmp_path) as account:
        blob = account.blobs.get_blob_client("photos", "1.png")
        assert blob.download_blob().readall() == b"PNG"
        assert blob.get_blob_properties().metadata == {"Of": "1"}
        (message,) = account.queues.get_queue_client("work").receive_messages()
        assert message.content == "archive 1"
        assert account.tables.get_table_client("Staff").get_entity("p", "1")["RowKey"] == "1"


async def test_each_client_has_an_asynchronous_twin() -> None:
    with partita.open_account(None) as account:
        async with account.aio.queues as queues, account.aio.blobs as blobs:
            queue = await queues.create_queue("work")
            await queue.send_message("archive 1")
            container = await blobs.create_container("photos")
            await container.upload_blob("1.png", b"PNG")
            stream = await container.download_blob("1.png")

            assert await stream.readall() == b"PNG"
            assert [message.content async for message in queue.receive_messages()] == ["archive 1"]
            with pytest.raises(ResourceExistsError):
                await container.upload_blob("1.png", b"other")


def test_a_client_is_the_same_at_every_call() -> None:
    with partita.open_account(None) as account:
        assert account.queues is account.queues
        assert account.blobs is account.blobs


def test_a_client_of_a_closed_account_says_so() -> None:
    with partita.open_account(None) as account:
        queues, blobs = account.queues, account.blobs

    with pytest.raises(UsageError, match="AccountClosed"):
        queues.create_queue("work")
    with pytest.raises(UsageError, match="AccountClosed"):
        blobs.create_container("photos")


def test_a_condition_without_a_value_sets_none() -> None:
    empty = {"If-Match": "", "x-ms-lease-id": ""}
    with partita.open_account(None) as account:
        blob = account.blobs.create_container("photos").get_blob_client("1.png")
        blob.upload_blob(b"old", headers=empty)
        blob.upload_blob(b"new", overwrite=True, headers=empty)
        staff = account.tables.create_table("Staff")
        staff.upsert_entity({"PartitionKey": "p", "RowKey": "1"}, headers={"If-Match": ""})

        assert blob.download_blob().readall() == b"new"
        assert staff.get_entity("p", "1")["RowKey"] == "1"
