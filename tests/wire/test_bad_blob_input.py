"""Bad input to the blob service over sockets: each row gets its answer, and changes nothing."""

from collections.abc import Iterator

import pytest

from support.live import IS_ON_POSTGRESQL, LiveServer
from wire.bad_blob_rows import LEASE, TABLE, Row
from wire.raw_blob import APPEND, BLOCK, PAGE, RawBlobClient

CPU_SECONDS_MAX = 5
"""Far from what any row takes; what others compute meanwhile does not count."""
LETTERS = b"abcdefghijklmnopqrstuvwxyz"
LISTED = "snapshots,metadata,uncommittedblobs,copy,tags"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("bad-blobs"))
    yield live
    live.stop()


@pytest.fixture(scope="module")
def blobs(live: LiveServer) -> RawBlobClient:
    blobs = RawBlobClient(live.blob_endpoint)
    leased = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "-1"}
    must(blobs, "201", "PUT", "/witness?restype=container")
    must(blobs, "201", "PUT", "/witness/w", LETTERS, BLOCK | {"x-ms-tags": "k=v"})
    must(blobs, "201", "PUT", "/witness/w?comp=snapshot")
    must(blobs, "201", "PUT", "/witness/a", b"", APPEND)
    must(blobs, "201", "PUT", "/witness/a?comp=appendblock", b"ab")
    must(blobs, "201", "PUT", "/witness/p", b"", PAGE | {"x-ms-blob-content-length": "1024"})
    must(blobs, "201", "PUT", "/witness/staged?comp=block&blockid=QQ%3D%3D", b"block")
    must(blobs, "201", "PUT", "/witness/l", b"leased", BLOCK)
    must(
        blobs,
        "201",
        "PUT",
        "/witness/l?comp=lease",
        b"",
        leased | {"x-ms-proposed-lease-id": LEASE},
    )
    return blobs


def must(
    blobs: RawBlobClient,
    expected: str,
    method: str,
    target: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> bytes:
    answer = blobs.send(method, target, body, headers)
    assert answer.told == expected, answer.body
    return answer.body


def everything(blobs: RawBlobClient) -> list[bytes]:
    """Read all that a bad request could have changed."""
    targets = [
        "/?comp=list&include=metadata",
        "/?restype=service&comp=properties",
        f"/witness?restype=container&comp=list&include={LISTED}",
        "/witness?restype=container&comp=acl",
        "/witness/w",
        "/witness/a",
        "/witness/p",
        "/witness/l",
        "/witness/staged?comp=blocklist&blocklisttype=all",
    ]
    return [must(blobs, "200", "GET", target) for target in targets]


@pytest.fixture
def witness(blobs: RawBlobClient) -> Iterator[RawBlobClient]:
    """The service, on the promise that the test changes nothing."""
    before = everything(blobs)
    yield blobs
    assert everything(blobs) == before


@pytest.mark.parametrize("row", [pytest.param(row, id=row.title) for row in TABLE])
def test_bad_input_gets_its_answer_soon_and_changes_nothing(
    row: Row, witness: RawBlobClient, live: LiveServer
) -> None:
    before = live.cpu_seconds()
    answer = witness.send(row.method, row.target, row.body, row.headers)

    assert answer.told == row.expected, answer.body
    assert live.cpu_seconds() - before < CPU_SECONDS_MAX


def test_a_range_of_nothing_says_how_much_there_is(witness: RawBlobClient) -> None:
    answer = witness.send("GET", "/witness/w", headers={"Range": "bytes=26-"})

    assert answer["Content-Range"] == f"bytes */{len(LETTERS)}"


@pytest.mark.parametrize("length", [100, 1_000_000])
def test_an_upload_that_ends_early_leaves_nothing(witness: RawBlobClient, length: int) -> None:
    headers = BLOCK | {"Content-Length": str(length)}

    answer = witness.exchange("PUT", "/witness/n", headers, bytes(length // 2), ends=True)

    assert answer.status == 400
    assert answer.is_closing


def test_an_upload_in_chunks_that_are_none_leaves_nothing(witness: RawBlobClient) -> None:
    headers = BLOCK | {"Transfer-Encoding": "chunked"}

    answer = witness.exchange("PUT", "/witness/n", headers, b"5\r\nabcde\r\nzz\r\n")

    assert answer.status == 400
    assert answer.is_closing


@pytest.mark.parametrize(
    "lines",
    [
        {"Transfer-Encoding": "chunked", "Content-Length": "5"},
        {"Transfer-Encoding": "xchunked"},
        {"Content-Length": "5, 6"},
        {"Content-Length": "-5"},
        {"Content-Length": "+5"},
    ],
)
def test_a_body_of_two_lengths_is_refused(witness: RawBlobClient, lines: dict[str, str]) -> None:
    answer = witness.exchange("PUT", "/witness/n", BLOCK | lines, b"0\r\n\r\n")

    assert answer.status in (400, 501)
    assert answer.is_closing


def test_a_body_beyond_all_limits_is_refused_before_it_is_sent(witness: RawBlobClient) -> None:
    headers = BLOCK | {"Content-Length": str(10 * 2**30), "Expect": "100-continue"}

    answer = witness.exchange("PUT", "/witness/n", headers, b"")

    assert answer.status == 413
    assert answer.is_closing


@pytest.mark.parametrize(
    ("target", "size"),
    [("/witness/a?comp=appendblock", 101 * 2**20), ("/witness/p?comp=page", 5 * 2**20)],
)
def test_a_body_beyond_the_limit_of_its_operation_is_refused_unread(
    witness: RawBlobClient, target: str, size: int
) -> None:
    headers = {"x-ms-range": "bytes=0-511", "x-ms-page-write": "update"}
    declared = {"Content-Length": str(size), "Expect": "100-continue"}

    answer = witness.exchange("PUT", target, headers | declared, b"")

    assert answer.status == 413


def test_a_name_that_no_xml_can_hold_is_listed_in_its_code(blobs: RawBlobClient) -> None:
    must(blobs, "201", "PUT", "/odd?restype=container")
    must(blobs, "201", "PUT", "/odd/a%01%EF%BF%BF&%3Cb%3E", b"x", BLOCK)

    listed = must(blobs, "200", "GET", "/odd?restype=container&comp=list")

    assert b'<Name Encoded="true">a%01%EF%BF%BF%26%3Cb%3E</Name>' in listed
    # PostgreSQL cannot store U+0000.
    must(blobs, "400 InvalidUri" if IS_ON_POSTGRESQL else "201", "PUT", "/odd/a%00", b"x", BLOCK)
    must(blobs, "202", "DELETE", "/odd?restype=container")


def test_a_header_of_a_blob_never_becomes_two(blobs: RawBlobClient) -> None:
    """What a SAS or a blob says of its content goes back as one line or not at all."""
    must(blobs, "201", "PUT", "/split?restype=container")
    odd = BLOCK | {
        "x-ms-blob-content-disposition": "a\x85b",
        "x-ms-blob-content-type": "t/\xe9",
    }
    must(blobs, "201", "PUT", "/split/b", b"x", odd)

    answer = blobs.send("GET", "/split/b")

    assert answer["Content-Disposition"].startswith("a")
    assert answer["Content-Type"] == "t/\xe9"
    assert len([name for name in answer.names if name.lower() == "content-length"]) == 1
    must(blobs, "202", "DELETE", "/split?restype=container")
