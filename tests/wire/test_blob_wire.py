"""The blob protocol without an SDK: the exact bytes, headers and codes of single answers."""

import re
import socket
import uuid
from email.utils import formatdate
from urllib.parse import urlsplit

import pytest

from support.live import LiveServer
from wire.raw_blob import APPEND, BLOCK, PAGE, RawBlobClient
from wire.raw_queue import VERSION, QueueAnswer

PATIENCE_SECONDS = 60


@pytest.fixture
def blobs(server: LiveServer) -> RawBlobClient:
    return RawBlobClient(server.blob_endpoint)


@pytest.fixture
def container(blobs: RawBlobClient) -> str:
    """A container of the test's own."""
    name = f"c{uuid.uuid4().hex}"
    assert blobs.send("PUT", f"/{name}?restype=container").status == 201
    return name


def put(
    blobs: RawBlobClient, container: str, name: str = "b", content: bytes = b"0123456789"
) -> str:
    """Write a blob and return its etag."""
    answer = blobs.send("PUT", f"/{container}/{name}", content, BLOCK)
    assert answer.status == 201
    return answer["ETag"]


def a_delete(blobs: RawBlobClient, target: str, number: int, **headers: str) -> str:
    """Return one signed part of a batch."""
    whole = f"/{blobs.account}{target}"
    fields = {"x-ms-date": formatdate(usegmt=True), **headers}
    fields["Authorization"] = blobs.authorization("DELETE", whole, fields)
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return (
        f"--x\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
        f"DELETE {whole} HTTP/1.1\r\n{lines}\r\n\r\n"
    )


# Batches


def test_a_batch_answer_ends_with_its_closing_delimiter(
    server: LiveServer, blobs: RawBlobClient, container: str
) -> None:
    put(blobs, container)
    body = (a_delete(blobs, f"/{container}/b", 0) + "--x--\r\n").encode()
    fields = {
        "Host": blobs.host,
        "Connection": "close",
        "Content-Type": "multipart/mixed; boundary=x",
        "Content-Length": str(len(body)),
        "x-ms-date": formatdate(usegmt=True),
        "x-ms-version": VERSION,
    }
    target = f"/{blobs.account}/?comp=batch"
    fields["Authorization"] = blobs.authorization("POST", target, fields)
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    port = urlsplit(server.blob_endpoint).port
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        received = b"".join(iter(lambda: connection.recv(65536), b""))

    head, _, answered = received.partition(b"\r\n\r\n")
    named = re.search(rb"boundary=(batchresponse_[-0-9a-f]+)\r\n", head)
    assert named is not None
    assert answered.startswith(b"--" + named[1] + b"\r\n")
    assert b"HTTP/1.1 202 Accepted\r\n" in answered
    assert answered.endswith(b"\r\n--" + named[1] + b"--")
    assert f"Content-Length: {len(answered)}\r\n".encode() in head + b"\r\n"


# Conditions


CONDITIONS = (
    "If-Match",
    "If-None-Match",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "x-ms-if-tags",
    "x-ms-lease-id",
)


@pytest.mark.parametrize("name", CONDITIONS)
def test_an_empty_condition_is_not_a_condition(
    blobs: RawBlobClient, container: str, name: str
) -> None:
    put(blobs, container)
    target = f"/{container}/b"

    written = blobs.send("PUT", target, b"again", BLOCK | {name: ""})
    read = blobs.send("GET", target, headers={name: ""})
    deleted = blobs.send("DELETE", target, headers={name: ""})

    assert (written.told, read.told, read.body, deleted.told) == ("201", "200", b"again", "202")


@pytest.mark.parametrize("name", ["If-Modified-Since", "If-Unmodified-Since", "x-ms-lease-id"])
def test_an_empty_condition_on_a_container_is_not_a_condition(
    blobs: RawBlobClient, container: str, name: str
) -> None:
    target = f"/{container}?restype=container"

    described = blobs.send("PUT", f"{target}&comp=metadata", headers={name: ""})
    deleted = blobs.send("DELETE", target, headers={name: ""})

    assert (described.told, deleted.told) == ("200", "202")


@pytest.mark.parametrize(
    "name", ["match", "none-match", "modified-since", "unmodified-since", "tags"]
)
def test_an_empty_condition_on_a_source_is_not_a_condition(
    blobs: RawBlobClient, container: str, name: str
) -> None:
    put(blobs, container)
    headers = {
        "x-ms-copy-source": f"{blobs.root}/{container}/b",
        f"x-ms-source-if-{name}": "",
        "x-ms-source-lease-id": "",
    }

    copied = blobs.send("PUT", f"/{container}/copy", headers=headers)

    assert copied.told == "202"


@pytest.mark.parametrize(
    "name", ["le", "lt", "eq"], ids=lambda name: f"x-ms-if-sequence-number-{name}"
)
def test_an_empty_condition_on_the_sequence_number_is_not_a_condition(
    blobs: RawBlobClient, container: str, name: str
) -> None:
    created = PAGE | {"x-ms-blob-content-length": "512"}
    assert blobs.send("PUT", f"/{container}/p", headers=created).status == 201
    pages = {"x-ms-range": "bytes=0-511", "x-ms-page-write": "clear"}

    cleared = blobs.send(
        "PUT",
        f"/{container}/p?comp=page",
        headers=pages | {f"x-ms-if-sequence-number-{name}": ""},
    )

    assert cleared.told == "201"


@pytest.mark.parametrize("name", ["x-ms-blob-condition-appendpos", "x-ms-blob-condition-maxsize"])
def test_an_empty_condition_on_an_append_is_not_a_condition(
    blobs: RawBlobClient, container: str, name: str
) -> None:
    assert blobs.send("PUT", f"/{container}/a", headers=APPEND).status == 201

    appended = blobs.send("PUT", f"/{container}/a?comp=appendblock", b"x", {name: ""})

    assert appended.told == "201"


def test_an_empty_lease_id_does_not_open_a_lease(blobs: RawBlobClient, container: str) -> None:
    put(blobs, container)
    lease = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "-1"}
    assert blobs.send("PUT", f"/{container}/b?comp=lease", headers=lease).status == 201

    written = blobs.send("PUT", f"/{container}/b", b"x", BLOCK | {"x-ms-lease-id": ""})
    renewed = blobs.send(
        "PUT",
        f"/{container}/b?comp=lease",
        headers={"x-ms-lease-action": "renew", "x-ms-lease-id": ""},
    )

    assert written.told == "412 LeaseIdMissing"
    assert renewed.told == "400 MissingRequiredHeader"


def test_a_quoted_etag_without_text_is_a_condition(blobs: RawBlobClient, container: str) -> None:
    put(blobs, container)

    answer = blobs.send("PUT", f"/{container}/b", b"x", BLOCK | {"If-Match": '""'})

    assert answer.told == "412 ConditionNotMet"


def test_an_empty_condition_in_a_part_of_a_batch_is_not_a_condition(
    blobs: RawBlobClient, container: str
) -> None:
    put(blobs, container)
    conditions = {"If-Match": "", "x-ms-lease-id": "", "x-ms-if-tags": ""}
    body = a_delete(blobs, f"/{container}/b", 0, **conditions) + "--x--\r\n"

    answer = blobs.send(
        "POST", "/?comp=batch", body, {"Content-Type": "multipart/mixed; boundary=x"}
    )

    assert answer.status == 202
    assert b"HTTP/1.1 202 Accepted" in answer.body
    assert blobs.send("GET", f"/{container}/b").status == 404


# Checksums of ranges

MD5 = "x-ms-range-get-content-md5"
CRC64 = "x-ms-range-get-content-crc64"
FOUR_MIB = 4 * 1024 * 1024


def checksums_of(answer: QueueAnswer) -> dict[str, str]:
    names = ("content-md5", "x-ms-content-crc64")
    return {name.lower(): value for name, value in answer.fields if name.lower() in names}


@pytest.mark.parametrize("header", ["Range", "x-ms-range"])
def test_a_range_is_answered_with_the_checksum_that_is_asked_for(
    blobs: RawBlobClient, container: str, header: str
) -> None:
    put(blobs, container, content=b"<hello world>")
    ranged = {header: "bytes=1-11"}

    plain = blobs.send("GET", f"/{container}/b", headers=ranged)
    md5 = blobs.send("GET", f"/{container}/b", headers=ranged | {MD5: "true"})
    crc64 = blobs.send("GET", f"/{container}/b", headers=ranged | {CRC64: "true"})
    neither = blobs.send("GET", f"/{container}/b", headers=ranged | {CRC64: "false"})

    assert {answer.body for answer in (plain, md5, crc64, neither)} == {b"hello world"}
    assert {answer.status for answer in (plain, md5, crc64, neither)} == {206}
    assert checksums_of(plain) == checksums_of(neither) == {}
    assert checksums_of(md5) == {"content-md5": "XrY7u+Ae7tCTyyK7j1rNww=="}
    assert checksums_of(crc64) == {"x-ms-content-crc64": "vo7q9sPVKY0="}


@pytest.mark.parametrize("name", [MD5, CRC64])
@pytest.mark.parametrize(
    "ranged", [{}, {"Range": ""}, {"Range": "bytes=-5"}, {"Range": "lines=0-1"}]
)
def test_a_checksum_needs_a_range(
    blobs: RawBlobClient, container: str, name: str, ranged: dict[str, str]
) -> None:
    put(blobs, container)

    answer = blobs.send("GET", f"/{container}/b", headers=ranged | {name: "true"})

    assert answer.told == "400 InvalidHeaderValue"
    assert answer.elements() == {"HeaderName": name, "HeaderValue": "true"}


@pytest.mark.parametrize(("md5", "crc64"), [("true", "true"), ("true", "false"), ("false", "true")])
def test_a_range_has_one_checksum(
    blobs: RawBlobClient, container: str, md5: str, crc64: str
) -> None:
    put(blobs, container)
    headers = {"Range": "bytes=0-4", MD5: md5, CRC64: crc64}

    answer = blobs.send("GET", f"/{container}/b", headers=headers)

    assert answer.told == "400 InvalidHeaderValue"


@pytest.mark.parametrize("name", [MD5, CRC64])
def test_a_checksum_is_of_four_mebibytes_at_most(
    blobs: RawBlobClient, container: str, name: str
) -> None:
    put(blobs, container, content=bytes(FOUR_MIB + 1))

    def told(given: str) -> str:
        headers = {"x-ms-range": given, name: "true"}
        return blobs.send("GET", f"/{container}/b", headers=headers).told

    assert told(f"bytes=0-{FOUR_MIB - 1}") == told("bytes=1-") == "206"
    assert told(f"bytes=0-{FOUR_MIB}") == told("bytes=0-") == "400 OutOfRangeInput"


@pytest.mark.parametrize("name", [MD5, CRC64])
def test_a_checksum_is_true_or_false(blobs: RawBlobClient, container: str, name: str) -> None:
    put(blobs, container)

    answer = blobs.send("GET", f"/{container}/b", headers={"Range": "bytes=0-4", name: "1"})

    assert answer.told == "400 InvalidHeaderValue"
