"""Who may do what with queues and blobs, and the services themselves, by the official SDKs."""

import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.storage.blob import (
    AccessPolicy,
    AccountSasPermissions,
    BlobAnalyticsLogging,
    BlobClient,
    BlobSasPermissions,
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    CorsRule,
    Metrics,
    ResourceTypes,
    RetentionPolicy,
    Services,
    StaticWebsite,
    generate_account_sas,
    generate_blob_sas,
    generate_container_sas,
)
from azure.storage.queue import AccessPolicy as QueueAccessPolicy
from azure.storage.queue import CorsRule as QueueCorsRule
from azure.storage.queue import (
    QueueClient,
    QueueSasPermissions,
    QueueServiceClient,
    generate_queue_sas,
)

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT as ACCOUNT
from partita.service.accounts.account import DEVELOPMENT_KEY as KEY
from support.live import LiveServer
from wire.conftest import StartServer

LATER = datetime.now(UTC) + timedelta(hours=1)
EARLIER = datetime.now(UTC) - timedelta(hours=1)
CREDENTIAL = {"account_name": ACCOUNT, "account_key": KEY}


@pytest.fixture
def blobs(server: LiveServer) -> Iterator[BlobServiceClient]:
    with BlobServiceClient(server.blob_endpoint, credential=CREDENTIAL, retry_total=0) as client:
        yield client


@pytest.fixture
def queues(server: LiveServer) -> Iterator[QueueServiceClient]:
    with QueueServiceClient(server.queue_endpoint, credential=CREDENTIAL, retry_total=0) as client:
        yield client


@pytest.fixture
def container(blobs: BlobServiceClient) -> str:
    name = f"c{uuid.uuid4().hex}"
    blobs.create_container(name).upload_blob("d/1.txt", b"hello")
    return name


@pytest.fixture
def queue(queues: QueueServiceClient) -> str:
    name = f"q{uuid.uuid4().hex}"
    queues.create_queue(name).send_message("hello")
    return name


def code_of(error: HttpResponseError) -> str:
    code: str = error.error_code  # type: ignore[attr-defined]
    return code


# Tokens


def test_a_blob_token_reads_its_blob_with_the_headers_it_sets(
    server: LiveServer, container: str
) -> None:
    token = generate_blob_sas(
        ACCOUNT,
        container,
        "d/1.txt",
        account_key=KEY,
        permission=BlobSasPermissions(read=True),
        expiry=LATER,
        cache_control="no-store",
        content_disposition="attachment; filename=x",
        content_encoding="identity",
        content_language="fr",
        content_type="text/plain",
    )
    with BlobClient(
        server.blob_endpoint, container, "d/1.txt", credential=AzureSasCredential(token)
    ) as blob:
        settings = blob.get_blob_properties().content_settings
        assert blob.download_blob().readall() == b"hello"
        with pytest.raises(HttpResponseError) as caught:
            blob.upload_blob(b"other", overwrite=True)

    assert settings.cache_control == "no-store"
    assert settings.content_disposition == "attachment; filename=x"
    assert settings.content_encoding == "identity"
    assert settings.content_language == "fr"
    assert settings.content_type == "text/plain"
    assert code_of(caught.value) == "AuthorizationPermissionMismatch"


def test_a_container_token_lists_and_reads_but_does_not_delete(
    server: LiveServer, container: str
) -> None:
    token = generate_container_sas(
        ACCOUNT,
        container,
        account_key=KEY,
        permission=ContainerSasPermissions(read=True, list=True, delete=True),
        expiry=LATER,
    )
    with ContainerClient(
        server.blob_endpoint, container, credential=AzureSasCredential(token)
    ) as client:
        assert list(client.list_blob_names()) == ["d/1.txt"]
        assert client.download_blob("d/1.txt").readall() == b"hello"
        with pytest.raises(HttpResponseError) as caught:
            client.delete_container()

    assert code_of(caught.value) == "AuthorizationFailure"


def test_a_queue_token_does_what_its_letters_say(server: LiveServer, queue: str) -> None:
    token = generate_queue_sas(
        ACCOUNT,
        queue,
        KEY,
        permission=QueueSasPermissions(read=True, add=True),
        expiry=LATER,
    )
    with QueueClient(server.queue_endpoint, queue, credential=AzureSasCredential(token)) as client:
        client.send_message("more")
        assert len(client.peek_messages(5)) == 2
        with pytest.raises(HttpResponseError) as caught:
            list(client.receive_messages())

    assert code_of(caught.value) == "AuthorizationPermissionMismatch"


def test_one_account_token_opens_both_services(
    server: LiveServer, queue: str, container: str
) -> None:
    token = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, list=True),
        LATER,
        services=_services("bq"),
    )
    sas = AzureSasCredential(token)
    with BlobServiceClient(server.blob_endpoint, credential=sas) as client:
        assert container in [each.name for each in client.list_containers()]
    with QueueServiceClient(server.queue_endpoint, credential=sas) as other:
        assert queue in [each.name for each in other.list_queues()]
        assert len(other.get_queue_client(queue).peek_messages()) == 1


def _services(letters: str) -> Any:
    return Services.from_string(letters)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("start", "expiry"), [(EARLIER, EARLIER), (LATER, LATER)])
def test_a_token_outside_its_time_is_refused(
    server: LiveServer, container: str, start: datetime, expiry: datetime
) -> None:
    token = generate_container_sas(
        ACCOUNT, container, account_key=KEY, permission="rl", start=start, expiry=expiry
    )
    with (
        ContainerClient(
            server.blob_endpoint, container, credential=AzureSasCredential(token), retry_total=0
        ) as client,
        pytest.raises(ClientAuthenticationError),
    ):
        list(client.list_blob_names())


def test_stored_policies_rule_tokens_of_both_services(
    server: LiveServer,
    blobs: BlobServiceClient,
    queues: QueueServiceClient,
    container: str,
    queue: str,
) -> None:
    policy = AccessPolicy(permission=ContainerSasPermissions(list=True), expiry=LATER)
    blobs.get_container_client(container).set_container_access_policy({"p": policy})
    of_queue = QueueAccessPolicy(permission=QueueSasPermissions(read=True), expiry=LATER)
    queues.get_queue_client(queue).set_queue_access_policy({"p": of_queue})

    by_blob = generate_container_sas(ACCOUNT, container, account_key=KEY, policy_id="p")
    by_queue = generate_queue_sas(ACCOUNT, queue, KEY, policy_id="p")
    with ContainerClient(
        server.blob_endpoint, container, credential=AzureSasCredential(by_blob), retry_total=0
    ) as client:
        assert list(client.list_blob_names()) == ["d/1.txt"]
        blobs.get_container_client(container).set_container_access_policy({})
        with pytest.raises(ClientAuthenticationError):
            list(client.list_blob_names())
    with QueueClient(
        server.queue_endpoint, queue, credential=AzureSasCredential(by_queue), retry_total=0
    ) as other:
        assert len(other.peek_messages()) == 1
        with pytest.raises(HttpResponseError):
            other.send_message("more")
        queues.get_queue_client(queue).set_queue_access_policy({})
        with pytest.raises(ClientAuthenticationError):
            other.peek_messages()


# Nobody


def test_a_public_container_is_read_without_credentials(
    server: LiveServer, blobs: BlobServiceClient, container: str
) -> None:
    address = f"{server.blob_endpoint}/{container}/d/1.txt"
    client = blobs.get_container_client(container)
    assert status_of(address) == 404

    client.set_container_access_policy({}, public_access="blob")
    assert status_of(address) == 200
    assert status_of(f"{server.blob_endpoint}/{container}?restype=container&comp=list") == 404

    client.set_container_access_policy({}, public_access="container")
    assert status_of(f"{server.blob_endpoint}/{container}?restype=container&comp=list") == 200
    assert status_of(address, method="DELETE") == 401
    assert status_of(f"{server.blob_endpoint}/?comp=list") == 404


def status_of(address: str, method: str = "GET") -> int:
    try:
        request = urllib.request.Request(address, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


# The service itself


def test_properties_of_the_blob_service_come_back(start_server: StartServer) -> None:
    server = start_server("--in-memory")
    with BlobServiceClient(server.blob_endpoint, credential=CREDENTIAL, retry_total=0) as client:
        client.set_service_properties(
            analytics_logging=BlobAnalyticsLogging(
                read=True, write=True, delete=True, retention_policy=RetentionPolicy(True, 5)
            ),
            hour_metrics=Metrics(enabled=True, include_apis=True),
            minute_metrics=Metrics(enabled=False),
            cors=[CorsRule(["https://app.test"], ["GET"], max_age_in_seconds=5)],
            target_version="2019-02-02",
            delete_retention_policy=RetentionPolicy(True, 7),
            static_website=StaticWebsite(enabled=True, index_document="index.html"),
        )

        found = client.get_service_properties()

        assert found["analytics_logging"].retention_policy.days == 5
        assert found["hour_metrics"].include_apis is True
        assert found["cors"][0].allowed_origins == "https://app.test"
        assert found["target_version"] == "2019-02-02"
        assert found["delete_retention_policy"].days == 7
        assert found["static_website"].index_document == "index.html"
        for days in (0, 366):
            with pytest.raises((HttpResponseError, ValueError)):
                client.set_service_properties(delete_retention_policy=RetentionPolicy(True, days))
        with pytest.raises(HttpResponseError) as caught:
            client.set_service_properties(cors=[CorsRule(["*"], ["GET"])] * 6)
        assert code_of(caught.value) == "InvalidXmlDocument"


def test_properties_of_the_queue_service_are_its_own(start_server: StartServer) -> None:
    server = start_server("--in-memory")
    with (
        QueueServiceClient(server.queue_endpoint, credential=CREDENTIAL, retry_total=0) as queues,
        BlobServiceClient(server.blob_endpoint, credential=CREDENTIAL, retry_total=0) as blobs,
    ):
        queues.set_service_properties(cors=[QueueCorsRule(["*"], ["GET"])])

        assert len(queues.get_service_properties()["cors"]) == 1
        assert blobs.get_service_properties()["cors"] == []


def test_an_impossible_version_is_told_with_a_hint(blobs: BlobServiceClient) -> None:
    blobs._client._config.version = "2099-11-05"

    with pytest.raises(HttpResponseError) as caught:
        blobs.get_service_properties()

    assert caught.value.status_code == 400
    assert "service version is not enabled" in str(caught.value)
