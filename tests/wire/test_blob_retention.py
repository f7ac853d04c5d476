"""Versions, deleted blobs and containers, searches by tags, by the official SDK."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob import (
    BlobClient,
    BlobSasPermissions,
    BlobServiceClient,
    ContainerClient,
    ContainerEncryptionScope,
    ContainerSasPermissions,
    RetentionPolicy,
    StandardBlobTier,
    generate_blob_sas,
    generate_container_sas,
)

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.live import LiveServer, on_every_front_end

CREDENTIAL = {"account_name": DEVELOPMENT_ACCOUNT, "account_key": DEVELOPMENT_KEY}
SOON = datetime.now(UTC) + timedelta(hours=1)
PROPERTIES = (
    "<StorageServiceProperties><IsVersioningEnabled>{}</IsVersioningEnabled>"
    "<ContainerDeleteRetentionPolicy><Enabled>true</Enabled><Days>3</Days>"
    "</ContainerDeleteRetentionPolicy></StorageServiceProperties>"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    running = LiveServer(tmp_path_factory.mktemp("blobs"))
    yield running
    running.stop()


@pytest.fixture
def service(server: LiveServer) -> Iterator[BlobServiceClient]:
    with BlobServiceClient(server.blob_endpoint, CREDENTIAL, retry_total=0) as client:
        client.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=7))
        keep_versions(client, "false")
        yield client


def keep_versions(client: BlobServiceClient, value: str) -> None:
    """Set what the SDK has no parameters for: the Azure service has it in its management API."""

    def send(request: Any) -> None:
        request.http_request.set_text_body(PROPERTIES.format(value))

    # The client refuses a call without parameters; its body is replaced.
    client.set_service_properties(cors=[], raw_request_hook=send)
    found: list[str] = []

    def is_known() -> bool:
        client.get_service_properties(
            raw_response_hook=lambda answer: found.append(answer.http_response.text())
        )
        return ("<IsVersioningEnabled>true" in found[-1]) == (value == "true")

    assert on_every_front_end(is_known)


@pytest.fixture
def container(service: BlobServiceClient) -> ContainerClient:
    return service.create_container(f"c{uuid.uuid4().hex}")


@pytest.fixture
def versioned(service: BlobServiceClient, container: ContainerClient) -> ContainerClient:
    keep_versions(service, "true")
    return container


def read(blob: BlobClient, **which: Any) -> bytes:
    content: bytes = blob.download_blob(**which).readall()
    return content


def sas_of(container: ContainerClient, permissions: str, name: str = "") -> str:
    token: str
    if name:
        token = generate_blob_sas(
            DEVELOPMENT_ACCOUNT,
            container.container_name,
            name,
            account_key=DEVELOPMENT_KEY,
            permission=BlobSasPermissions.from_string(permissions),
            expiry=SOON,
        )
    else:
        token = generate_container_sas(
            DEVELOPMENT_ACCOUNT,
            container.container_name,
            DEVELOPMENT_KEY,
            permission=ContainerSasPermissions.from_string(permissions),
            expiry=SOON,
        )
    return token


def code_of(raised: pytest.ExceptionInfo[Any]) -> str:
    code = raised.value.error_code
    return str(getattr(code, "value", code))


# Deleted blobs


def test_a_deleted_blob_is_listed_and_restored(container: ContainerClient) -> None:
    blob = container.upload_blob("a", b"content", metadata={"k": "v"}, tags={"t": "1"})

    blob.delete_blob()

    assert not blob.exists()
    assert list(container.list_blobs()) == []
    [shown] = container.list_blobs(include=["deleted", "metadata"])
    assert (shown.deleted, shown.snapshot, shown.metadata) == (True, None, {"k": "v"})
    assert shown.remaining_retention_days == 7
    assert shown.deleted_time is not None
    assert abs(shown.deleted_time - datetime.now(UTC)) < timedelta(minutes=5)
    blob.undelete_blob()
    assert read(blob) == b"content"
    assert blob.get_blob_tags() == {"t": "1"}
    [shown] = container.list_blobs(include=["deleted"])
    assert not shown.deleted


def test_an_overwritten_blob_is_a_deleted_snapshot(container: ContainerClient) -> None:
    blob = container.upload_blob("a", b"1")
    container.upload_blob("a", b"2", overwrite=True)

    kept, current = container.list_blobs(include=["deleted", "snapshots"])

    assert (kept.deleted, current.deleted) == (True, None)
    with pytest.raises(ResourceNotFoundError):
        container.get_blob_client("a", snapshot=kept.snapshot).get_blob_properties()
    blob.undelete_blob()
    assert read(container.get_blob_client("a", snapshot=kept.snapshot)) == b"1"


def test_delete_says_whether_it_is_permanent(
    service: BlobServiceClient, container: ContainerClient
) -> None:
    kinds: list[str] = []

    def note(response: Any) -> None:
        kinds.append(response.http_response.headers["x-ms-delete-type-permanent"])

    container.upload_blob("a", b"1").delete_blob(raw_response_hook=note)
    service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))
    container.upload_blob("b", b"1").delete_blob(raw_response_hook=note)

    assert kinds == ["false", "true"]
    with pytest.raises(ResourceNotFoundError):
        container.get_blob_client("b").undelete_blob()


def test_a_sas_restores_blobs_only_if_it_writes(container: ContainerClient) -> None:
    container.upload_blob("a", b"1").delete_blob()
    url = container.get_blob_client("a").url

    with pytest.raises(HttpResponseError) as refused:
        BlobClient.from_blob_url(f"{url}?{sas_of(container, 'rd', 'a')}").undelete_blob()
    assert code_of(refused) == "AuthorizationPermissionMismatch"
    BlobClient.from_blob_url(f"{url}?{sas_of(container, 'w', 'a')}").undelete_blob()

    assert read(container.get_blob_client("a")) == b"1"


# Versions


def test_versions_are_written_listed_read_and_promoted(versioned: ContainerClient) -> None:
    first = versioned.get_blob_client("a").upload_blob(b"1")
    blob = versioned.get_blob_client("a")
    second = blob.upload_blob(b"2", overwrite=True)
    third = blob.set_blob_metadata({"k": "v"})

    assert [each.version_id for each in versioned.list_blobs(include=["versions"])] == [
        first["version_id"],
        second["version_id"],
        third["version_id"],
    ]
    currents = [each.is_current_version for each in versioned.list_blobs(include=["versions"])]
    assert currents == [None, None, True]
    assert read(blob, version_id=first["version_id"]) == b"1"
    found = blob.get_blob_properties()
    assert (found.version_id, found.is_current_version) == (third["version_id"], True)
    old = blob.get_blob_properties(version_id=first["version_id"])
    assert (old.version_id, old.is_current_version) == (first["version_id"], None)
    blob.start_copy_from_url(f"{blob.url}?versionid={first['version_id']}")
    assert read(blob) == b"1"
    assert len(list(versioned.list_blobs(include=["versions"]))) == 4


def test_a_version_is_deleted_tagged_and_restored(versioned: ContainerClient) -> None:
    blob = versioned.get_blob_client("a")
    first = blob.upload_blob(b"1")["version_id"]
    current = blob.upload_blob(b"2", overwrite=True)["version_id"]
    blob.set_blob_tags({"t": "1"}, version_id=first)
    assert blob.get_blob_tags(version_id=first) == {"t": "1"}
    assert blob.get_blob_tags() == {}
    blob.set_standard_blob_tier(StandardBlobTier.COOL, version_id=first)

    with pytest.raises(HttpResponseError) as refused:
        blob.delete_blob(version_id=current)
    assert (refused.value.status_code, code_of(refused)) == (403, "OperationNotAllowedOnRootBlob")
    blob.delete_blob(version_id=first)

    with pytest.raises(ResourceNotFoundError):
        blob.get_blob_properties(version_id=first)
    blob.undelete_blob()
    assert read(blob, version_id=first) == b"1"


def test_a_deleted_blob_has_only_versions(versioned: ContainerClient) -> None:
    blob = versioned.upload_blob("a", b"1")
    blob.delete_blob()

    assert list(versioned.list_blobs()) == []
    [shown] = versioned.list_blobs(include=["deletedwithversions"])
    assert (shown.deleted, shown.has_versions_only) == (True, True)
    [version] = versioned.list_blobs(include=["versions"])
    assert read(blob, version_id=version.version_id) == b"1"


def test_a_sas_deletes_versions_only_with_its_own_permission(versioned: ContainerClient) -> None:
    blob = versioned.get_blob_client("a")
    first = blob.upload_blob(b"1")["version_id"]
    blob.upload_blob(b"2", overwrite=True)

    limited = BlobClient.from_blob_url(f"{blob.url}?{sas_of(versioned, 'd')}")
    with pytest.raises(HttpResponseError) as refused:
        limited.delete_blob(version_id=first)
    assert code_of(refused) == "AuthorizationPermissionMismatch"
    BlobClient.from_blob_url(f"{blob.url}?{sas_of(versioned, 'x')}").delete_blob(version_id=first)

    assert [each.version_id == first for each in versioned.list_blobs(include=["versions"])] == [
        False
    ]


def test_the_sas_of_a_version_reads_only_that_version(versioned: ContainerClient) -> None:
    blob = versioned.get_blob_client("a")
    first = blob.upload_blob(b"1")["version_id"]
    second = blob.upload_blob(b"2", overwrite=True)["version_id"]
    token = generate_blob_sas(
        DEVELOPMENT_ACCOUNT,
        versioned.container_name,
        "a",
        account_key=DEVELOPMENT_KEY,
        permission=BlobSasPermissions(read=True),
        expiry=SOON,
        version_id=first,
    )

    one = requests.get(f"{blob.url}?versionid={first}&{token}", timeout=60)
    other = requests.get(f"{blob.url}?versionid={second}&{token}", timeout=60)
    current = requests.get(f"{blob.url}?{token}", timeout=60)

    assert (one.status_code, one.content) == (200, b"1")
    assert (other.status_code, current.status_code) == (403, 403)


def test_a_deleted_version_is_deleted_for_good_where_that_is_allowed(
    service: BlobServiceClient, versioned: ContainerClient
) -> None:
    blob = versioned.get_blob_client("a")
    first = blob.upload_blob(b"1")["version_id"]
    blob.upload_blob(b"2", overwrite=True)
    blob.delete_blob(version_id=first)
    url = f"{blob.url}?versionid={first}&deletetype=permanent&{sas_of(versioned, 'y')}"
    assert requests.delete(url, timeout=60).status_code == 403
    service.set_service_properties(
        delete_retention_policy=RetentionPolicy(enabled=True, days=7),
        raw_request_hook=_allow_permanent_delete,
    )

    denied = url.replace(sas_of(versioned, "y"), sas_of(versioned, "xd"))
    assert requests.delete(denied, timeout=60).status_code == 403
    answer = requests.delete(url, timeout=60)

    assert (answer.status_code, answer.headers["x-ms-delete-type-permanent"]) == (202, "true")
    blob.undelete_blob()
    [shown] = versioned.list_blobs(include=["versions", "deleted"])
    assert shown.is_current_version


def _allow_permanent_delete(request: Any) -> None:
    request.http_request.set_text_body(
        "<StorageServiceProperties><DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days>"
        "<AllowPermanentDelete>true</AllowPermanentDelete></DeleteRetentionPolicy>"
        "</StorageServiceProperties>"
    )


# Containers


def test_a_deleted_container_is_restored(
    service: BlobServiceClient, container: ContainerClient
) -> None:
    name = container.container_name
    container.upload_blob("a", b"1")
    container.delete_container()
    assert not container.exists()

    [shown] = [
        each
        for each in service.list_containers(name_starts_with=name, include_deleted=True)
        if each.deleted
    ]
    restored = service.undelete_container(shown.name, shown.version or "")

    assert shown.name == name
    assert read(restored.get_blob_client("a")) == b"1"
    assert not any(
        each.deleted
        for each in service.list_containers(name_starts_with=name, include_deleted=True)
    )


# Searches


def test_blobs_are_found_by_tags_in_the_account_and_in_a_container(
    service: BlobServiceClient, container: ContainerClient
) -> None:
    tag = f"v{uuid.uuid4().hex}"
    for number in range(5):
        tags = {"search": tag, "number": str(number)}
        container.upload_blob(f"b {number}", b"", tags=tags)
    other = service.create_container(f"c{uuid.uuid4().hex}")
    other.upload_blob("other", b"", tags={"search": tag, "number": "9"})

    everywhere = list(service.find_blobs_by_tags(f"\"search\" = '{tag}'", results_per_page=2))
    assert [each.name for each in everywhere] == [*(f"b {number}" for number in range(5)), "other"]
    assert everywhere[0].container_name == container.container_name
    assert everywhere[0].tags == {"search": tag}
    here = f"@container = '{other.container_name}' AND search = '{tag}'"
    assert [each.name for each in service.find_blobs_by_tags(here)] == ["other"]
    some = container.find_blobs_by_tags(f"search = '{tag}' AND number >= '3'")
    assert [(each.name, each.tags) for each in some] == [
        ("b 3", {"search": tag, "number": "3"}),
        ("b 4", {"search": tag, "number": "4"}),
    ]


def test_a_sas_searches_only_with_its_permission(container: ContainerClient) -> None:
    container.upload_blob("a", b"", tags={"t": "1"})

    url = container.url
    limited = ContainerClient.from_container_url(f"{url}?{sas_of(container, 'rlt')}")
    with pytest.raises(HttpResponseError) as refused:
        list(limited.find_blobs_by_tags("t = '1'"))
    assert code_of(refused) == "AuthorizationPermissionMismatch"
    allowed = ContainerClient.from_container_url(f"{url}?{sas_of(container, 'f')}")
    assert [each.name for each in allowed.find_blobs_by_tags("t = '1'")] == ["a"]


# Pages and encryption scopes


def test_page_ranges_differ_from_a_snapshot(container: ContainerClient) -> None:
    pages = container.get_blob_client("p")
    pages.create_page_blob(2048)
    pages.upload_page(b"1" * 1024, 0, 1024)
    snapshot = pages.create_snapshot()
    pages.upload_page(b"2" * 512, 0, 512)
    pages.clear_page(512, 512)

    listed = list(pages.list_page_ranges(previous_snapshot=snapshot, results_per_page=1))
    assert [(each.start, each.end, each.cleared) for each in listed] == [
        (0, 511, False),
        (512, 1023, True),
    ]


def test_encryption_scopes_are_returned(service: BlobServiceClient) -> None:
    scope = ContainerEncryptionScope("scope1", prevent_encryption_scope_override=True)
    container = service.create_container(f"c{uuid.uuid4().hex}", container_encryption_scope=scope)

    written = container.get_blob_client("a").upload_blob(b"1", encryption_scope="scope2")

    found = container.get_container_properties().encryption_scope
    assert found is not None
    assert found.default_encryption_scope == "scope1"
    assert found.prevent_encryption_scope_override is True
    assert written["encryption_scope"] == "scope2"
    assert container.get_blob_client("a").get_blob_properties().encryption_scope == "scope2"
    [shown] = container.list_blobs()
    assert shown.encryption_scope == "scope2"


# Settings


def test_what_is_kept_is_set_and_lasts(tmp_path: Path) -> None:
    server = LiveServer(tmp_path)
    try:
        with BlobServiceClient(server.blob_endpoint, CREDENTIAL) as client:
            keep_versions(client, "true")
            blob = client.create_container("kept").get_blob_client("a")
            first = blob.upload_blob(b"1")["version_id"]
        server.restart()
        with BlobServiceClient(server.blob_endpoint, CREDENTIAL) as client:
            blob = client.get_blob_client("kept", "a")
            second = blob.upload_blob(b"2", overwrite=True)["version_id"]
            assert read(blob, version_id=first) == b"1"
            assert second not in (None, first)
    finally:
        server.stop()
