"""Blob and queue requests at their limits: pages, copies, markers, batches, tags, signed names."""

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from azure.storage.blob import (
    AccountSasPermissions,
    ResourceTypes,
    generate_account_sas,
    generate_blob_sas,
)

from partita.service.accounts.account import DEVELOPMENT_KEY
from support.live import LiveServer
from wire.raw_blob import APPEND, BLOCK, PAGE, RawBlobClient
from wire.raw_queue import RawQueueClient

NUMBERS_TOO_LARGE = ["9" * 19, "9" * 30, "9" * 5000]
OTHER_MD5 = base64.b64encode(hashlib.md5(b"other", usedforsecurity=False).digest()).decode()
PUBLIC = {"x-ms-blob-public-access": "blob"}
VERSION_ID = "2026-01-01T00:00:00.0000000Z"


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def blob_sas(blobs: RawBlobClient, blob: str, permission: str) -> str:
    return generate_blob_sas(
        blobs.account,
        "box",
        blob,
        account_key=DEVELOPMENT_KEY,
        permission=permission,
        expiry=soon(),
    )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("review"))
    yield live
    live.stop()


@pytest.fixture(scope="module")
def blobs(live: LiveServer) -> RawBlobClient:
    blobs = RawBlobClient(live.blob_endpoint)
    sized = PAGE | {"x-ms-blob-content-length": "1024"}
    assert blobs.send("PUT", "/box?restype=container").status == 201
    assert blobs.send("PUT", "/box/b", b"hello", BLOCK).status == 201
    assert blobs.send("PUT", "/box/p", b"", sized).status == 201
    assert blobs.send("PUT", "/box/a", b"", APPEND).status == 201
    return blobs


@pytest.fixture(scope="module")
def queues(live: LiveServer) -> RawQueueClient:
    queues = RawQueueClient(live.queue_endpoint)
    assert queues.send("PUT", "/work").status == 201
    return queues


@pytest.fixture(scope="module")
def source(blobs: RawBlobClient) -> str:
    """The address of /box/b with a SAS that reads it."""
    return f"{blobs.root}/box/b?{blob_sas(blobs, 'b', 'r')}"


@pytest.mark.parametrize("marker", NUMBERS_TOO_LARGE)
def test_a_marker_of_pages_beyond_every_blob_is_not_a_fault_of_the_server(
    blobs: RawBlobClient, marker: str
) -> None:
    assert blobs.send("GET", f"/box/p?comp=pagelist&marker={marker}").status in (200, 400)


def test_a_range_of_pages_beyond_every_blob_is_not_a_fault_of_the_server(
    blobs: RawBlobClient,
) -> None:
    asked = {"x-ms-range": f"bytes={'9' * 18}0-{'9' * 19}"}
    assert blobs.send("GET", "/box/p?comp=pagelist", headers=asked).status in (200, 416)


def test_a_page_blob_begins_with_no_sequence_number_that_it_could_not_reach(
    blobs: RawBlobClient,
) -> None:
    sized = PAGE | {"x-ms-blob-content-length": "512"}
    answer = blobs.send("PUT", "/box/n", b"", sized | {"x-ms-blob-sequence-number": "9" * 19})
    assert answer.told == "400 InvalidHeaderValue"
    assert blobs.send("HEAD", "/box/n").status == 404


def test_a_copy_that_waits_has_the_checksum_that_was_asked_for(
    blobs: RawBlobClient, source: str
) -> None:
    wanted = {"x-ms-copy-source": source, "x-ms-requires-sync": "true"}
    answer = blobs.send("PUT", "/box/c1", b"", wanted | {"x-ms-source-content-md5": OTHER_MD5})
    assert answer.told == "400 Md5Mismatch"
    assert blobs.send("HEAD", "/box/c1").status == 404


def test_a_version_of_the_source_is_never_taken_for_the_source_itself(blobs: RawBlobClient) -> None:
    wanted = {"x-ms-copy-source": f"{blobs.root}/box/b?versionid={VERSION_ID}"}
    assert blobs.send("PUT", "/box/c2", b"", wanted).status == 404
    assert blobs.send("HEAD", "/box/c2").status == 404


@pytest.mark.parametrize("text", ["bytes=4-1", "bytes=-3", "0-3", "bytes=0-1,3-4"])
def test_a_source_range_that_cannot_be_read_is_not_the_whole_source(
    blobs: RawBlobClient, source: str, text: str
) -> None:
    wanted = {"x-ms-copy-source": source, "x-ms-source-range": text}
    answer = blobs.send("PUT", "/box/a?comp=appendblock", b"", wanted)
    assert answer.told == "400 InvalidHeaderValue"
    assert blobs.send("GET", "/box/a").body == b""


@pytest.mark.parametrize("name", ["a%0d%0aX-Evil:%201", "%E2%82%AC", "%00"])
def test_the_name_of_a_parameter_writes_no_header(queues: RawQueueClient, name: str) -> None:
    answer = queues.send("GET", f"/?comp=list&{name}=1&{name}=2")
    assert answer.told == "400 InvalidQueryParameterValue"
    assert "x-evil" not in {header.lower() for header, _ in answer.fields}


@pytest.mark.parametrize("time", [2**63, 2**64 - 1])
def test_a_forged_marker_is_refused(blobs: RawBlobClient, time: int) -> None:
    marker = base64.urlsafe_b64encode(msgspec.msgpack.encode(("b", time))).decode()
    answer = blobs.send("GET", f"/box?restype=container&comp=list&marker={marker}")
    assert answer.told == "400 InvalidQueryParameterValue"


def test_a_batch_deletes_blobs_and_no_container(blobs: RawBlobClient) -> None:
    assert blobs.send("PUT", "/doomed?restype=container").status == 201
    token = generate_account_sas(
        blobs.account,
        DEVELOPMENT_KEY,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(delete=True),
        soon(),
    )
    part = f"DELETE /{blobs.account}/doomed?restype=container&{token} HTTP/1.1\r\n\r\n"
    body = f"--x\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n{part}\r\n--x--\r\n"
    kind = {"Content-Type": "multipart/mixed; boundary=x"}
    assert blobs.send("POST", "/?comp=batch", body, kind).told == "400 InvalidInput"
    assert blobs.send("GET", "/doomed?restype=container").status == 200


def test_tags_are_written_and_asked_about_only_with_the_permission_for_tags(
    blobs: RawBlobClient,
) -> None:
    tagged = BLOCK | {"x-ms-tags": "k=v"}

    def put(permission: str) -> str:
        target = f"/box/t?{blob_sas(blobs, 't', permission)}"
        return blobs.send("PUT", target, b"", tagged, is_signed=False).told

    def read(permission: str) -> str:
        target, asked = f"/box/t?{blob_sas(blobs, 't', permission)}", {"x-ms-if-tags": "k = 'v'"}
        return blobs.send("GET", target, b"", asked, is_signed=False).told

    assert put("w") == "403 AuthorizationPermissionMismatch"
    assert put("wt") == "201"
    assert read("r") == "403 AuthorizationPermissionMismatch"
    assert read("rt") == "200"


def test_who_is_anonymous_sees_no_staged_blocks_and_asks_nothing_about_tags(
    blobs: RawBlobClient,
) -> None:
    assert blobs.send("PUT", "/open?restype=container", b"", PUBLIC).status == 201
    assert blobs.send("PUT", "/open/b", b"hello", BLOCK).status == 201

    def ask(target: str, headers: dict[str, str] | None = None) -> str:
        return blobs.send("GET", target, headers=headers, is_signed=False).told

    assert ask("/open/b?comp=blocklist") == "200"
    assert ask("/open/b?comp=blocklist&blocklisttype=all") == "401 NoAuthenticationInformation"
    assert ask("/open/b", {"x-ms-if-tags": "k = 'v'"}) == "401 NoAuthenticationInformation"


@pytest.mark.parametrize("name", ["Comp", "COMP", "%43omp"])
def test_what_is_asked_of_a_resource_is_signed_however_its_name_is_written(
    blobs: RawBlobClient, queues: RawQueueClient, name: str
) -> None:
    assert blobs.send("GET", f"/box?restype=container&{name}=list").status == 403
    assert queues.send("GET", f"/work?{name}=metadata").status == 403
