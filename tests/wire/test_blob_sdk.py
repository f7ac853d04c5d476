"""The official Python SDK of blobs against a live server, synchronous and asynchronous."""

import base64
import hashlib
import io
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import requests
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import (
    AccountSasPermissions,
    BlobBlock,
    BlobClient,
    BlobLeaseClient,
    BlobSasPermissions,
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    ContentSettings,
    RehydratePriority,
    ResourceTypes,
    StandardBlobTier,
    generate_account_sas,
    generate_blob_sas,
    generate_container_sas,
)
from azure.storage.blob.aio import BlobServiceClient as AsyncBlobServiceClient

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.live import LiveServer

CREDENTIAL = {"account_name": DEVELOPMENT_ACCOUNT, "account_key": DEVELOPMENT_KEY}
SOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    running = LiveServer(tmp_path_factory.mktemp("blobs"))
    yield running
    running.stop()


@pytest.fixture
def service(server: LiveServer) -> Iterator[BlobServiceClient]:
    with BlobServiceClient(server.blob_endpoint, CREDENTIAL, retry_total=0) as client:
        yield client


@pytest.fixture
def container(service: BlobServiceClient) -> ContainerClient:
    return service.create_container(f"c{uuid.uuid4().hex}")


@pytest.fixture
async def async_service(server: LiveServer) -> AsyncIterator[AsyncBlobServiceClient]:
    async with AsyncBlobServiceClient(server.blob_endpoint, CREDENTIAL, retry_total=0) as client:
        yield client


def _code(raised: pytest.ExceptionInfo[Any]) -> str:
    code = raised.value.error_code
    return str(getattr(code, "value", code))


# Containers


def test_a_container_is_created_once(service: BlobServiceClient) -> None:
    name = f"c{uuid.uuid4().hex}"
    service.create_container(name, metadata={"Of": "staff"})
    with pytest.raises(ResourceExistsError) as raised:
        service.create_container(name)
    assert _code(raised) == "ContainerAlreadyExists"
    assert service.get_container_client(name).get_container_properties().metadata == {"Of": "staff"}


def test_a_deleted_container_is_gone_with_its_blobs(container: ContainerClient) -> None:
    container.upload_blob("b", b"x")
    container.delete_container()

    assert not container.exists()
    container.create_container()
    assert not list(container.list_blobs())


def test_containers_are_listed_by_prefix_and_in_pages(service: BlobServiceClient) -> None:
    front = f"p{uuid.uuid4().hex}"
    names = [f"{front}-{number}" for number in range(5)]
    for name in names:
        service.create_container(name)
    pages = [
        [each.name for each in page]
        for page in service.list_containers(
            name_starts_with=front, results_per_page=2, include_metadata=True
        ).by_page()
    ]

    assert pages == [names[:2], names[2:4], names[4:]]


@pytest.mark.parametrize("name", ["ab", "Upper", "a--b", "-ab", "a_b"])
def test_a_container_name_that_is_none_is_refused(service: BlobServiceClient, name: str) -> None:
    with pytest.raises(HttpResponseError) as raised:
        service.create_container(name)
    assert raised.value.status_code == 400


# Blobs


def test_a_blob_comes_back_as_it_was_written(container: ContainerClient) -> None:
    settings = ContentSettings("image/png", "identity", "de", "inline", "no-cache")
    container.upload_blob("a/b c?.png", b"\x89PNG", metadata={"UP": "v"}, content_settings=settings)
    found = container.get_blob_client("a/b c?.png").get_blob_properties()

    assert container.download_blob("a/b c?.png").readall() == b"\x89PNG"
    assert found.size == 4
    assert found.metadata == {"UP": "v"}
    assert found.content_settings.content_type == "image/png"
    assert found.content_settings.cache_control == "no-cache"
    assert bytes(found.content_settings.content_md5 or b"") == hashlib.md5(b"\x89PNG").digest()


@pytest.mark.parametrize(
    "name",
    [
        "C:\\x",
        "ends.",
        "ends/",
        "你好",
        "%2e%2e%2f",
        "a+b&c=d",
        "x" * 1024,
    ],
)
def test_a_name_is_only_a_name(container: ContainerClient, name: str) -> None:
    container.upload_blob(name, name.encode())

    assert container.download_blob(name).readall() == name.encode()
    assert [each.name for each in container.list_blobs()] == [name]


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "a/../b", "%2e%2e/%2e%2e/x"])
def test_a_name_that_climbs_stays_a_name(
    container: ContainerClient, name: str, server: LiveServer
) -> None:
    # Clients of HTTP tidy such paths up before they send them, so this one speaks plainly.
    path = f"{container.url.removeprefix(server.blob_endpoint.rpartition('/')[0])}/{name}"
    token = _blob_sas(container, unquote(name), "cr")
    connection = HTTPConnection(urlsplit(server.blob_endpoint).netloc, timeout=60)
    connection.request("PUT", f"{path}?{token}", b"x", {"x-ms-blob-type": "BlockBlob"})
    created = connection.getresponse()
    created.read()
    connection.close()

    assert created.status == 201
    assert [each.name for each in container.list_blobs()] == [unquote(name)]


def test_an_upload_does_not_overwrite_unless_told_to(container: ContainerClient) -> None:
    container.upload_blob("b", b"1")
    with pytest.raises(ResourceExistsError) as raised:
        container.upload_blob("b", b"2")
    assert _code(raised) == "BlobAlreadyExists"
    container.upload_blob("b", b"2", overwrite=True)
    assert container.download_blob("b").readall() == b"2"


def test_an_empty_blob_is_a_blob(container: ContainerClient) -> None:
    container.upload_blob("b", b"")

    assert container.download_blob("b").readall() == b""


def test_parts_are_read_by_range(container: ContainerClient) -> None:
    content = bytes(range(256)) * 1000
    container.upload_blob("b", content)

    assert container.download_blob("b", offset=1000, length=70_000).readall() == content[1000:71000]
    assert container.download_blob("b", offset=255_999).readall() == content[-1:]
    with pytest.raises(HttpResponseError) as raised:
        container.download_blob("b", offset=256_000, length=1).readall()
    assert raised.value.status_code == 416


def test_a_large_upload_goes_in_blocks(container: ContainerClient, server: LiveServer) -> None:
    content = hashlib.shake_128(b"content").digest(3 * 1024 * 1024 + 7)
    client = BlobClient(
        server.blob_endpoint,
        container.container_name,
        "big",
        credential=CREDENTIAL,
        max_single_put_size=1024 * 1024,
        max_block_size=256 * 1024,
        max_single_get_size=700_000,
        max_chunk_get_size=300_000,
    )
    with client:
        client.upload_blob(io.BytesIO(content), max_concurrency=4)
        committed, uncommitted = client.get_block_list("all")

        assert len(committed) == 13
        assert not uncommitted
        assert client.download_blob(max_concurrency=4).readall() == content


def test_a_change_between_chunks_ends_the_download(
    container: ContainerClient, server: LiveServer
) -> None:
    container.upload_blob("b", b"1" * 4000)
    client = BlobClient(
        server.blob_endpoint,
        container.container_name,
        "b",
        credential=CREDENTIAL,
        max_single_get_size=1000,
        max_chunk_get_size=1000,
    )
    with client:
        download = client.download_blob()
        container.upload_blob("b", b"2" * 4000, overwrite=True)
        with pytest.raises(ResourceModifiedError):
            download.readall()


def test_blocks_become_a_blob_when_they_are_listed(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    client.stage_block("1", b"one")
    client.stage_block("2", b"two")

    assert not client.exists()
    client.commit_block_list([BlobBlock("2"), BlobBlock("1")], metadata={"a": "b"})
    assert client.download_blob().readall() == b"twoone"
    with pytest.raises(HttpResponseError) as raised:
        client.commit_block_list([BlobBlock("3")])
    assert _code(raised) == "InvalidBlockList"
    assert client.download_blob().readall() == b"twoone"


def test_appends_land_one_after_the_other(container: ContainerClient) -> None:
    client = container.get_blob_client("log")
    client.create_append_blob()
    offsets = [client.append_block(f"line {n}\n".encode())["blob_append_offset"] for n in range(3)]

    assert offsets == ["0", "7", "14"]
    with pytest.raises(HttpResponseError) as raised:
        client.append_block(b"x", appendpos_condition=3)
    assert _code(raised) == "AppendPositionConditionNotMet"
    client.seal_append_blob()
    with pytest.raises(HttpResponseError):
        client.append_block(b"x")
    assert client.download_blob().readall() == b"line 0\nline 1\nline 2\n"


def test_pages_are_written_and_cleared(container: ContainerClient) -> None:
    client = container.get_blob_client("disk")
    client.create_page_blob(2048)
    client.upload_page(b"p" * 512, 512, 512)
    ranges = [(each.start, each.end) for each in client.list_page_ranges()]

    assert ranges == [(512, 1023)]
    assert client.download_blob().readall() == b"\0" * 512 + b"p" * 512 + b"\0" * 1024
    client.clear_page(512, 512)
    assert not list(client.list_page_ranges())


def test_damaged_bodies_are_refused(container: ContainerClient) -> None:
    with pytest.raises(HttpResponseError) as raised:
        container.upload_blob(
            "b", b"x", headers={"Content-MD5": base64.b64encode(b"0" * 16).decode()}
        )
    assert _code(raised) == "Md5Mismatch"
    container.upload_blob("b", b"x", validate_content=True)
    assert container.download_blob("b", validate_content=True).readall() == b"x"


# Conditions, leases, snapshots, copies


def test_etags_guard_against_lost_updates(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    etag = client.upload_blob(b"1")["etag"]
    client.upload_blob(
        b"2", overwrite=True, etag=etag, match_condition=MatchConditions.IfNotModified
    )
    with pytest.raises(ResourceModifiedError):
        client.upload_blob(
            b"3", overwrite=True, etag=etag, match_condition=MatchConditions.IfNotModified
        )
    assert client.download_blob().readall() == b"2"


def test_a_condition_without_a_value_sets_none(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    empty = {"If-Match": "", "x-ms-lease-id": "", "x-ms-if-tags": ""}
    client.upload_blob(b"1", overwrite=True, headers=empty)
    client.upload_blob(b"2", overwrite=True, headers=empty)
    assert client.download_blob(headers=empty).readall() == b"2"


def test_a_lease_keeps_others_from_writing(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    client.upload_blob(b"1")
    lease = BlobLeaseClient(client)
    lease.acquire(60)
    with pytest.raises(HttpResponseError) as raised:
        client.upload_blob(b"2", overwrite=True)
    assert _code(raised) == "LeaseIdMissing"
    client.upload_blob(b"2", overwrite=True, lease=lease)
    assert client.get_blob_properties().lease.state == "leased"
    with pytest.raises(HttpResponseError) as raised:
        BlobLeaseClient(client).acquire(15)
    assert _code(raised) == "LeaseAlreadyPresent"
    lease.release()
    client.delete_blob()


def test_a_snapshot_stays_as_it_was(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    client.upload_blob(b"old", metadata={"a": "1"})
    taken = client.create_snapshot()
    client.upload_blob(b"new", overwrite=True)
    snapshot = container.get_blob_client("b", snapshot=str(taken["snapshot"]))

    assert snapshot.download_blob().readall() == b"old"
    assert [each.snapshot for each in container.list_blobs(include=["snapshots"])] == [
        taken["snapshot"],
        None,
    ]
    with pytest.raises(HttpResponseError) as raised:
        client.delete_blob()
    assert _code(raised) == "SnapshotsPresent"
    client.delete_blob(delete_snapshots="include")
    assert not snapshot.exists()


def test_a_copy_has_content_and_metadata_of_its_source(container: ContainerClient) -> None:
    source = container.get_blob_client("source")
    source.upload_blob(b"content" * 20_000, metadata={"a": "1"})
    target = container.get_blob_client("target")
    copied = target.start_copy_from_url(source.url)
    found = target.get_blob_properties()

    assert copied["copy_status"] == "success"
    assert target.download_blob().readall() == b"content" * 20_000
    assert found.metadata == {"a": "1"}
    assert found.copy.status == "success"
    with pytest.raises(ResourceNotFoundError):
        target.start_copy_from_url(source.url + "-missing")


def test_blocks_come_from_another_blob(container: ContainerClient) -> None:
    source = container.get_blob_client("source")
    source.upload_blob(b"0123456789")
    signed = f"{source.url}?{_blob_sas(container, 'source', 'r')}"
    target = container.get_blob_client("target")
    target.stage_block_from_url("1", signed, source_offset=2, source_length=3)
    target.commit_block_list([BlobBlock("1")])

    assert target.download_blob().readall() == b"234"
    with pytest.raises(HttpResponseError) as raised:
        target.stage_block_from_url("2", source.url)
    assert _code(raised) == "CannotVerifyCopySource"


def test_tags_and_tiers_are_kept(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    client.upload_blob(b"x", tags={"year": "2026"})
    client.set_standard_blob_tier(StandardBlobTier.COOL)

    assert client.get_blob_tags() == {"year": "2026"}
    assert client.get_blob_properties().blob_tier == "Cool"
    with pytest.raises(ResourceModifiedError):
        client.download_blob(if_tags_match_condition="\"year\"='2025'").readall()


def test_an_archived_blob_comes_back_by_and_by(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    client.upload_blob(b"x", standard_blob_tier=StandardBlobTier.ARCHIVE)
    client.set_standard_blob_tier(StandardBlobTier.COOL, rehydrate_priority=RehydratePriority.HIGH)

    found, (listed,) = client.get_blob_properties(), container.list_blobs()
    assert (found.blob_tier, found.archive_status) == ("Archive", "rehydrate-pending-to-cool")
    assert found.rehydrate_priority == listed.rehydrate_priority == "High"
    with pytest.raises(ResourceExistsError) as raised:
        client.download_blob()
    assert _code(raised) == "BlobArchived"


def test_a_copy_can_ask_what_its_source_is_tagged(container: ContainerClient) -> None:
    source, target = container.get_blob_client("source"), container.get_blob_client("target")
    source.upload_blob(b"x", tags={"year": "2026"})

    with pytest.raises(ResourceModifiedError):
        target.start_copy_from_url(source.url, source_if_tags_match_condition="\"year\"='2025'")
    target.start_copy_from_url(source.url, source_if_tags_match_condition="\"year\"='2026'")
    assert target.exists()


def test_tags_can_depend_on_the_version_of_their_blob(container: ContainerClient) -> None:
    client = container.get_blob_client("b")
    old = client.upload_blob(b"x")["etag"]
    new = client.upload_blob(b"y", overwrite=True)["etag"]
    same = MatchConditions.IfNotModified

    client.set_blob_tags({"year": "2026"}, etag=new, match_condition=same)
    with pytest.raises(ResourceModifiedError):
        client.set_blob_tags({"year": "2025"}, etag=old, match_condition=same)
    with pytest.raises(ResourceModifiedError):
        client.get_blob_tags(etag=old, match_condition=same)
    assert client.get_blob_tags(etag=new, match_condition=same) == {"year": "2026"}


def test_many_blobs_are_deleted_in_one_request(container: ContainerClient) -> None:
    for number in range(3):
        container.upload_blob(str(number), b"x")
    answers = list(container.delete_blobs("0", "1", "missing", raise_on_any_failure=False))

    assert [answer.status_code for answer in answers] == [202, 202, 404]
    assert [each.name for each in container.list_blobs()] == ["2"]


# Listing


def test_blobs_are_listed_by_prefix_page_and_level(container: ContainerClient) -> None:
    for name in ("a/1", "a/2", "a/b/3", "c"):
        container.upload_blob(name, b"x", metadata={"k": name.replace("/", "_")})
    pages = [[each.name for each in page] for page in _pages(container)]
    walked = [each.name for each in container.walk_blobs()]
    below = sorted(each.name for each in container.walk_blobs("a/", delimiter="/"))

    assert pages == [["a/1", "a/2"], ["a/b/3", "c"]]
    assert walked == ["a/", "c"]
    assert below == ["a/1", "a/2", "a/b/"]
    assert [each.metadata for each in container.list_blobs("c", include=["metadata"])] == [
        {"k": "c"}
    ]


def test_a_list_starts_where_it_is_told(container: ContainerClient) -> None:
    for name in ("a", "b", "b/1", "c"):
        container.upload_blob(name, b"x")

    pages = container.list_blobs(start_from="b", results_per_page=2).by_page()
    assert [[each.name for each in page] for page in pages] == [["b", "b/1"], ["c"]]
    assert [each.name for each in container.list_blobs("b", start_from="a")] == ["b", "b/1"]


def test_a_version_is_never_taken_for_its_blob(container: ContainerClient) -> None:
    client = container.upload_blob("b", b"x")

    with pytest.raises(ResourceNotFoundError):
        client.delete_blob(version_id="2024-01-01T00:00:00.0000000Z")
    assert client.exists()


def _pages(container: ContainerClient) -> Any:
    return container.list_blobs(results_per_page=2).by_page()


# Who may


def _blob_sas(container: ContainerClient, blob: str, permission: str, **more: Any) -> str:
    return generate_blob_sas(
        DEVELOPMENT_ACCOUNT,
        container.container_name,
        blob,
        account_key=DEVELOPMENT_KEY,
        permission=BlobSasPermissions.from_string(permission),
        expiry=SOON,
        **more,
    )


def test_a_blob_sas_reads_its_blob_and_nothing_else(container: ContainerClient) -> None:
    container.upload_blob("mine", b"1")
    container.upload_blob("other", b"2")
    token = _blob_sas(container, "mine", "r")
    url = container.url

    assert requests.get(f"{url}/mine?{token}", timeout=60).content == b"1"
    assert requests.get(f"{url}/other?{token}", timeout=60).status_code == 403
    assert requests.delete(f"{url}/mine?{token}", timeout=60).status_code == 403
    listing = f"{url}?restype=container&comp=list&{token}"
    assert requests.get(listing, timeout=60).status_code == 403


def test_a_sas_sets_the_headers_of_the_answer(container: ContainerClient) -> None:
    container.upload_blob("b", b"1")
    token = _blob_sas(
        container, "b", "r", content_type="text/plain", content_disposition="attachment"
    )
    answer = requests.get(f"{container.url}/b?{token}", timeout=60)

    assert answer.headers["Content-Type"] == "text/plain"
    assert answer.headers["Content-Disposition"] == "attachment"


def test_a_sas_that_creates_does_not_overwrite(container: ContainerClient) -> None:
    container.upload_blob("old", b"1")
    headers = {"x-ms-blob-type": "BlockBlob"}
    url = container.url

    def put(name: str, **more: str) -> requests.Response:
        token = _blob_sas(container, name, "c")
        return requests.put(f"{url}/{name}?{token}", b"2", headers=headers | more, timeout=60)

    assert put("new").status_code == 201
    refused = put("old")
    assert (refused.status_code, refused.headers["x-ms-error-code"]) == (
        403,
        "UnauthorizedBlobOverwrite",
    )
    assert container.download_blob("old").readall() == b"1"


def test_a_sas_that_creates_commits_blocks_of_new_blobs_only(container: ContainerClient) -> None:
    blocks = [BlobBlock(f"{number}") for number in range(3)]

    def create(name: str) -> None:
        url = f"{container.url}/{name}?{_blob_sas(container, name, 'c')}"
        with BlobClient.from_blob_url(url) as blob:
            for block in blocks:
                blob.stage_block(block.id, b"1")
            blob.commit_block_list(blocks)

    create("new")
    with pytest.raises(HttpResponseError) as refused:
        create("new")

    assert _code(refused) == "UnauthorizedBlobOverwrite"
    assert container.download_blob("new").readall() == b"111"


def test_a_container_sas_lists_but_does_not_delete_the_container(
    container: ContainerClient, server: LiveServer
) -> None:
    container.upload_blob("b", b"1")
    token = generate_container_sas(
        DEVELOPMENT_ACCOUNT,
        container.container_name,
        account_key=DEVELOPMENT_KEY,
        permission=ContainerSasPermissions(read=True, list=True, delete=True),
        expiry=SOON,
    )
    with ContainerClient(server.blob_endpoint, container.container_name, token) as granted:
        assert [each.name for each in granted.list_blobs()] == ["b"]
        with pytest.raises(HttpResponseError) as raised:
            granted.delete_container()
    assert raised.value.status_code == 403


def test_an_account_sas_lists_containers(service: BlobServiceClient, server: LiveServer) -> None:
    token = generate_account_sas(
        DEVELOPMENT_ACCOUNT,
        DEVELOPMENT_KEY,
        ResourceTypes(service=True),
        AccountSasPermissions(list=True),
        SOON,
    )
    with BlobServiceClient(server.blob_endpoint, token) as granted:
        assert isinstance(list(granted.list_containers()), list)
        with pytest.raises(HttpResponseError):
            granted.create_container("never")


def test_a_public_container_is_read_without_credentials(container: ContainerClient) -> None:
    container.upload_blob("b", b"public")
    url = f"{container.url}/b"
    assert requests.get(url, timeout=60).status_code == 404
    container.set_container_access_policy({}, public_access="blob")
    listing = f"{container.url}?restype=container&comp=list"

    assert requests.get(url, timeout=60).content == b"public"
    assert requests.get(listing, timeout=60).status_code == 404
    assert requests.put(url, b"x", timeout=60).status_code in (401, 403, 404)
    container.set_container_access_policy({}, public_access="container")
    assert requests.get(listing, timeout=60).status_code == 200


# Odds and ends


@pytest.mark.parametrize(
    ("method", "query"),
    [("PUT", "comp=incrementalcopy"), ("POST", "comp=query"), ("PUT", "comp=expiry")],
)
def test_what_is_not_built_says_so(container: ContainerClient, method: str, query: str) -> None:
    token = _blob_sas(container, "b", "racwd")
    answer = requests.request(method, f"{container.url}/b?{query}&{token}", timeout=60)

    assert (answer.status_code, answer.headers["x-ms-error-code"]) == (501, "NotImplemented")


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    server = LiveServer(tmp_path)
    try:
        with BlobServiceClient(server.blob_endpoint, CREDENTIAL) as client:
            container = client.create_container("kept")
            container.upload_blob("small", b"s")
            container.upload_blob("large", b"l" * 500_000)
            container.get_blob_client("staged").stage_block("1", b"half")
        server.restart()
        with BlobServiceClient(server.blob_endpoint, CREDENTIAL) as client:
            container = client.get_container_client("kept")
            staged = container.get_blob_client("staged")
            staged.commit_block_list([BlobBlock("1")])

            assert container.download_blob("small").readall() == b"s"
            assert container.download_blob("large").readall() == b"l" * 500_000
            assert staged.download_blob().readall() == b"half"
    finally:
        server.stop()


async def test_the_asynchronous_client_does_the_same(
    async_service: AsyncBlobServiceClient,
) -> None:
    container = await async_service.create_container(f"c{uuid.uuid4().hex}")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"piece" * 1000

    await container.upload_blob("streamed", pieces(), length=50_000, metadata={"UP": "v"})
    download = await container.download_blob("streamed")

    assert await download.readall() == b"piece" * 10_000
    assert [each.name async for each in container.list_blobs()] == ["streamed"]
    with pytest.raises(ResourceExistsError):
        await container.upload_blob("streamed", b"x")
    await container.delete_blob("streamed")
    with pytest.raises(ResourceNotFoundError):
        await container.download_blob("streamed")
