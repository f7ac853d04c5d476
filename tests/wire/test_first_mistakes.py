"""The mistakes that newcomers make first, and what they are told."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import HttpResponseError
from azure.data.tables import (
    AccountSasPermissions,
    ResourceTypes,
    TableServiceClient,
    generate_account_sas,
)
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

import partita
from partita.errors import ConfigurationError, StoreLockedError, UsageError
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.hosting.services import TABLES
from support.live import ANY_PORTS, LiveServer
from wire.conftest import StartServer


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a folder")

    with pytest.raises(ConfigurationError) as caught:
        partita.open_account(file)

    assert caught.value.code == "FolderUnusable"
    assert "notes.txt" in caught.value.message


def test_serve_refuses_an_unusable_folder_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a folder")

    ended = subprocess.run(
        [sys.executable, "-m", "partita.cli.main", "serve", *ANY_PORTS, "--path", file],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


def test_the_folder_of_an_account_is_not_taken_for_its_parent(tmp_path: Path) -> None:
    partita.open_account(tmp_path).close()

    with pytest.raises(ConfigurationError) as caught:
        partita.open_account(tmp_path / "devstoreaccount1")

    assert str(tmp_path) in caught.value.hint
    assert not (tmp_path / "devstoreaccount1" / "devstoreaccount1").exists()


def test_a_second_account_in_this_process_is_told_so(tmp_path: Path) -> None:
    with partita.open_account(tmp_path), pytest.raises(StoreLockedError) as caught:
        partita.open_account(tmp_path)

    assert "this process" in caught.value.hint


def test_a_closed_account_says_that_it_is_closed() -> None:
    account = partita.open_account(None)
    tables = account.tables
    account.close()

    with pytest.raises(UsageError) as caught:
        tables.create_table("Staff")

    assert caught.value.code == "AccountClosed"


def test_a_refusal_carries_its_hint_in_a_header() -> None:
    with partita.open_account(None) as account:
        staff = account.tables.create_table("Staff")
        with pytest.raises(HttpResponseError) as caught:
            list(staff.query_entities("Name eq Ken"))

    headers = getattr(caught.value.response, "headers", {})
    assert headers["x-partita-hint"] == "Compare a property with a constant."


STRANGE_HOST = {"Host": "storage.test"}


def refused_by_tables(server: LiveServer) -> str:
    client = TableServiceClient.from_connection_string(server.connection_string)
    with client, pytest.raises(HttpResponseError) as caught:
        list(client.list_tables(headers=STRANGE_HOST))
    return str(caught.value)


def refused_by_queues(server: LiveServer) -> str:
    client = QueueServiceClient.from_connection_string(server.connection_string)
    with client, pytest.raises(HttpResponseError) as caught:
        client.create_queue("work", headers=STRANGE_HOST)
    return str(caught.value)


def refused_by_blobs(server: LiveServer) -> str:
    client = BlobServiceClient.from_connection_string(server.connection_string)
    with client, pytest.raises(HttpResponseError) as caught:
        client.create_container("photos", headers=STRANGE_HOST)
    return str(caught.value)


@pytest.mark.parametrize("refused_by", [refused_by_tables, refused_by_queues, refused_by_blobs])
def test_a_host_that_is_not_allowed_is_told_in_the_error_of_the_sdk(
    server: LiveServer, refused_by: Callable[[LiveServer], str]
) -> None:
    shown = refused_by(server)

    assert "InvalidHeaderValue" in shown
    assert "Host 'storage.test' is not allowed" in shown
    assert "--allowed-host storage.test" in shown


def test_an_allowed_host_is_served(start_server: StartServer) -> None:
    server = start_server("--allowed-host", "storage.test")

    with TableServiceClient.from_connection_string(server.connection_string) as client:
        assert list(client.list_tables(headers=STRANGE_HOST)) == []


def test_a_token_for_https_only_is_told_how_to_get_it() -> None:
    token = generate_account_sas(
        AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY),
        ResourceTypes(service=True, object=True),
        AccountSasPermissions(list=True),
        datetime.now(UTC) + timedelta(hours=1),
        protocol="https",
    )
    with partita.open_account(None) as account:
        arguments = account.client_arguments(TABLES) | {"credential": AzureSasCredential(token)}
        with TableServiceClient(**arguments) as client, pytest.raises(HttpResponseError) as caught:
            list(client.list_tables())

    assert "--tls-cert" in str(caught.value)


def test_an_unknown_durability_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        partita.open_account(None, durability="slow")

    assert "full, fast" in caught.value.hint
