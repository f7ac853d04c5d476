"""The official SDKs with a TokenCredential over https, and an issuer whose keys are served."""

import http.server
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.data.tables import TableServiceClient
from azure.storage.blob import (
    BlobClient,
    BlobServiceClient,
    ContainerClient,
    generate_blob_sas,
    generate_container_sas,
)
from azure.storage.blob.aio import BlobServiceClient as AsyncBlobServiceClient
from azure.storage.queue import QueueClient, QueueServiceClient, generate_queue_sas

from partita.cli.main import main
from support import issuers
from support.live import LiveServer

ACCOUNT = "devstoreaccount1"


def code_of(error: HttpResponseError) -> object:
    return vars(error)["error_code"]  # set by the clients of the services


EVERY_ROLE = (
    "Storage Table Data Contributor",
    "Storage Queue Data Contributor",
    "Storage Blob Data Owner",
)


class Credential:
    """A TokenCredential: a token of the test's issuer for each audience that a client asks for."""

    def __init__(self, *roles: str, key: str = "first", **changed: Any) -> None:
        self.roles, self.key, self.changed = roles, key, changed

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        audience = scopes[0].removesuffix("/.default")
        content = issuers.claims(time.time(), *self.roles, **{"aud": audience, **self.changed})
        return AccessToken(issuers.token(content, self.key), content["exp"])


class AsyncCredential(Credential):
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:  # type: ignore[override]
        return super().get_token(*scopes)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> "AsyncCredential":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    assert main(["certificate", "make", "--to", str(folder), "--json"]) == 0
    return folder / "certificate.pem"


@pytest.fixture(scope="module")
def key_server() -> Iterator[str]:
    """The address of an issuer that describes itself and serves its keys."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith("/openid-configuration"):
                body = json.dumps({"issuer": url, "jwks_uri": f"{url}/keys"}).encode()
            else:
                body = issuers.key_set("first")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, certificate: Path, key_server: str
) -> Iterator[LiveServer]:
    flags = ["--tls-cert", str(certificate), "--tls-key", str(certificate.parent / "key.pem")]
    live = LiveServer(
        tmp_path_factory.mktemp("oauth"), "--in-memory", "--oauth-issuer", key_server, *flags
    )
    yield live
    live.stop()


@pytest.fixture
def options(certificate: Path) -> dict[str, Any]:
    return {"connection_verify": str(certificate), "retry_total": 0}


def test_tables_by_the_sdk_with_a_token(
    served: LiveServer, key_server: str, options: dict[str, Any]
) -> None:
    endpoint = served.endpoint
    owner = Credential(*EVERY_ROLE, iss=key_server)
    with TableServiceClient(endpoint, credential=owner, **options) as service:
        staff = service.create_table("Staff")
        staff.create_entity({"PartitionKey": "Sales", "RowKey": "00010", "Name": "Ken"})
        staff.submit_transaction(
            [("upsert", {"PartitionKey": "Sales", "RowKey": str(n)}) for n in range(3)]
        )
        assert len(list(staff.query_entities("PartitionKey eq 'Sales'"))) == 4

    reader = Credential("Storage Table Data Reader", iss=key_server)
    with TableServiceClient(endpoint, credential=reader, **options) as service:
        staff = service.get_table_client("Staff")
        assert staff.get_entity("Sales", "00010")["Name"] == "Ken"
        with pytest.raises(HttpResponseError) as refused:
            staff.delete_entity("Sales", "00010")
        assert code_of(refused.value) == "AuthorizationPermissionMismatch"


@pytest.mark.parametrize(
    "credential",
    [
        Credential(*EVERY_ROLE, key="stranger"),
        Credential(*EVERY_ROLE, iss="https://login.test/another"),
        Credential(*EVERY_ROLE, exp=int(time.time()) + 10, nbf=int(time.time()) + 3600),
    ],
    ids=["wrong key", "wrong issuer", "not yet valid"],
)
def test_a_wrong_token_is_an_authentication_error_of_the_sdk(
    served: LiveServer, key_server: str, options: dict[str, Any], credential: Credential
) -> None:
    credential.changed.setdefault("iss", key_server)
    with (
        BlobServiceClient(served.blob_endpoint, credential=credential, **options) as service,
        pytest.raises(ClientAuthenticationError),
    ):
        list(service.list_containers())


def test_the_sdk_gets_a_token_for_the_audience_of_the_challenge(
    served: LiveServer, key_server: str, options: dict[str, Any]
) -> None:
    owner = Credential(*EVERY_ROLE, iss=key_server)
    with QueueServiceClient(
        served.queue_endpoint, credential=owner, audience="https://bad.test", **options
    ) as service:
        assert list(service.list_queues()) == []

    deaf = Credential(*EVERY_ROLE, iss=key_server, aud="https://bad.test")
    with (
        QueueServiceClient(served.queue_endpoint, credential=deaf, **options) as service,
        pytest.raises(ClientAuthenticationError),
    ):
        list(service.list_queues())


def test_queues_by_the_sdk_with_a_token_and_a_delegated_sas(
    served: LiveServer, key_server: str, options: dict[str, Any]
) -> None:
    owner = Credential(*EVERY_ROLE, iss=key_server)
    now = datetime.now(UTC)
    with QueueServiceClient(served.queue_endpoint, credential=owner, **options) as service:
        queue = service.create_queue("work")
        queue.send_message("archive")
        key = service.get_user_delegation_key(expiry=now + timedelta(hours=1), start=now)

    sas = generate_queue_sas(
        ACCOUNT, "work", permission="p", expiry=now + timedelta(hours=1), user_delegation_key=key
    )
    with QueueClient(served.queue_endpoint, "work", credential=sas, **options) as queue:
        [message] = queue.receive_messages()
        assert message.content == "archive"
        with pytest.raises(HttpResponseError) as refused:
            queue.send_message("another")
    assert code_of(refused.value) == "AuthorizationPermissionMismatch"


def test_blobs_by_the_sdk_with_a_token_and_a_delegated_sas(
    served: LiveServer, key_server: str, options: dict[str, Any]
) -> None:
    now = datetime.now(UTC)
    owner = Credential(*EVERY_ROLE, iss=key_server)
    with BlobServiceClient(served.blob_endpoint, credential=owner, **options) as service:
        photos = service.create_container("photos")
        photos.upload_blob("a/1.png", b"content")
        photos.get_blob_client("copy").start_copy_from_url(photos.get_blob_client("a/1.png").url)
    reader = Credential("Storage Blob Data Reader", iss=key_server)
    with BlobServiceClient(served.blob_endpoint, credential=reader, **options) as service:
        key = service.get_user_delegation_key(now, now + timedelta(hours=1))

    of_blob = generate_blob_sas(
        ACCOUNT, "photos", "a/1.png", user_delegation_key=key, permission="rw",
        expiry=now + timedelta(hours=1), content_type="text/plain", correlation_id="c" * 8,
    )  # fmt: skip
    with BlobClient(
        served.blob_endpoint, "photos", "a/1.png", credential=of_blob, **options
    ) as blob:
        downloaded = blob.download_blob()
        assert downloaded.readall() == b"content"
        assert downloaded.properties.content_settings.content_type == "text/plain"
        with pytest.raises(HttpResponseError) as refused:
            blob.upload_blob(b"other", overwrite=True)
        assert code_of(refused.value) == "AuthorizationPermissionMismatch"
    of_container = generate_container_sas(
        ACCOUNT, "photos", user_delegation_key=key, permission="rl",
        expiry=now + timedelta(hours=1),
    )  # fmt: skip
    with ContainerClient(
        served.blob_endpoint, "photos", credential=of_container, **options
    ) as container:
        assert [each.name for each in container.list_blobs()] == ["a/1.png", "copy"]


async def test_blobs_by_the_asynchronous_sdk_with_a_token(
    served: LiveServer, key_server: str, certificate: Path
) -> None:
    async with AsyncBlobServiceClient(
        served.blob_endpoint,
        credential=AsyncCredential(*EVERY_ROLE, iss=key_server),
        connection_verify=str(certificate),
        retry_total=0,
    ) as service:
        container = await service.create_container("written")
        await container.upload_blob("a", b"content")
        assert await (await container.download_blob("a")).readall() == b"content"


# Development


def test_development_takes_tokens_of_any_issuer_by_the_sdk(
    tmp_path: Path, certificate: Path, options: dict[str, Any]
) -> None:
    flags = ["--tls-cert", str(certificate), "--tls-key", str(certificate.parent / "key.pem")]
    live = LiveServer(tmp_path, "--in-memory", "--oauth", "development", *flags)
    try:
        credential = Credential(key="stranger", iss="https://sts.windows.net/any/")
        endpoint = live.queue_endpoint
        with QueueServiceClient(endpoint, credential=credential, **options) as service:
            assert list(service.list_queues()) == []
            assert service.get_service_properties()
        audience = f"https://{ACCOUNT}.queue.core.windows.net"
        with QueueServiceClient(
            endpoint, credential=credential, audience=audience, **options
        ) as service:
            assert list(service.list_queues()) == []
    finally:
        live.stop()


def test_a_file_of_keys_that_is_missing_ends_the_start(tmp_path: Path) -> None:
    flags = ["--oauth-issuer", "https://login.test", "--oauth-jwks", "missing.json"]
    command = [sys.executable, "-m", "partita.cli.main", "serve", "--in-memory", *flags]

    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 2
    assert "Check --oauth-jwks" in ended.stderr


def test_clients_that_check_strictly_accept_a_certificate(
    served: LiveServer, certificate: Path
) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    port = int(served.blob_endpoint.rpartition("/")[0].rpartition(":")[2])

    for name in ("127.0.0.1", "localhost", f"{ACCOUNT}.blob.localhost"):
        with (
            socket.create_connection(("127.0.0.1", port)) as connection,
            context.wrap_socket(connection, server_hostname=name) as tls,
        ):
            assert tls.version() == "TLSv1.3"


def test_a_certificate_is_not_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = ["certificate", "make", "--to", str(tmp_path), "--host", "db.internal"]

    assert [main(make), main(make), main([*make, "--renew"])] == [0, 2, 0]
    assert "--renew" in capsys.readouterr().err
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
