"""The body of an entity group transaction: the same requests as the SDK's, and its answers."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.bulk.batches import Part, content_type
from partita.errors import InvalidPropertyError, UnavailableError
from partita.patterns.ports.group_body import etag_of, print_group, read_answer
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.values import Instant, Int32, Row, RowKey, Value
from partita.patterns.protocol.wire_size import ENVELOPE_BYTES, wire_bytes
from partita.service.formats.multipart import batch_content_type, print_batch, read_batch
from partita.service.http.request import Request, Response
from support.sdk_requests import sent_for
from unit.patterns.protocol.test_wire_size import KEY_TEXT, NAMES, VALUES

URL = "http://127.0.0.1:10002/devstoreaccount1/staff"


def requests_of_the_sdk(operations: list[RowOperation]) -> list[Request]:
    sent = sent_for(URL.removesuffix("/staff"), "staff", "devstoreaccount1", operations)
    return read_batch(sent.data, sent.headers["Content-Type"]).parts


def our_requests(operations: list[RowOperation]) -> list[Request]:
    return read_batch(print_group(URL, operations, "7"), content_type("7")).parts


UNSAID = {"Edm.String", "Edm.Boolean", "Edm.Int32", "Edm.Double"}
"""Types that JSON says by itself; whether a client names them too is a matter of taste."""


def meaning(request: Request) -> tuple[object, ...]:
    members = json.loads(request.body) if request.body.strip() else {}
    said = {
        name: value
        for name, value in members.items()
        if not (name.endswith("@odata.type") and value in UNSAID)
    }
    headers = [request.headers.get(name) for name in ("if-match", "content-type")]
    return request.method, request.path, headers, said


def an_operation(verb: Verb = Verb.INSERT, **properties: Value) -> RowOperation:
    etag = "W/\"datetime'2014-07-31T18%3A00%3A00.1234567Z'\""
    return RowOperation(verb, Row(RowKey("Sä'les %", "1"), properties), etag)


@settings(max_examples=50)
@given(
    partition=KEY_TEXT,
    rows=st.lists(KEY_TEXT, min_size=2, max_size=6, unique=True),
    verbs=st.lists(st.sampled_from(Verb), min_size=6, max_size=6),
    etag=st.sampled_from(["*", "W/\"datetime'2014'\""]),
    properties=st.dictionaries(NAMES, VALUES, max_size=8),
)
def test_the_same_is_said_as_the_official_client_says(
    partition: str, rows: list[str], verbs: list[Verb], etag: str, properties: dict[str, Value]
) -> None:
    operations = [
        RowOperation(verb, Row(RowKey(partition, row), properties), etag)
        for row, verb in zip(rows, verbs, strict=False)
    ]

    ours = [meaning(request) for request in our_requests(operations)]

    assert ours == [meaning(request) for request in requests_of_the_sdk(operations)]
    size = ENVELOPE_BYTES + sum(map(wire_bytes, operations))
    assert len(print_group(URL, operations, "7" * 36)) <= size


def test_every_type_is_written_with_its_name() -> None:
    (request,) = our_requests(
        [
            an_operation(
                S="é",
                T=True,
                I=Int32(7),
                L=2**40,
                D=1.0,
                N=float("nan"),
                P=float("inf"),
                M=float("-inf"),
                B=b"abc",
                W=datetime(2014, 7, 31, tzinfo=UTC),
                O=Instant.of(datetime(2014, 7, 31, tzinfo=UTC), "2014-07-31T00:00:00.1234567Z"),
                G=UUID(int=1),
            )
        ]
    )

    assert json.loads(request.body) == {
        "PartitionKey": "Sä'les %",
        "RowKey": "1",
        "S": "é",
        "T": True,
        "I@odata.type": "Edm.Int32",
        "I": 7,
        "L@odata.type": "Edm.Int64",
        "L": "1099511627776",
        "D@odata.type": "Edm.Double",
        "D": 1.0,
        "N@odata.type": "Edm.Double",
        "N": "NaN",
        "P@odata.type": "Edm.Double",
        "P": "Infinity",
        "M@odata.type": "Edm.Double",
        "M": "-Infinity",
        "B@odata.type": "Edm.Binary",
        "B": "YWJj",
        "W@odata.type": "Edm.DateTime",
        "W": "2014-07-31T00:00:00Z",
        "O@odata.type": "Edm.DateTime",
        "O": "2014-07-31T00:00:00.1234567Z",
        "G@odata.type": "Edm.Guid",
        "G": "00000000-0000-0000-0000-000000000001",
    }
    assert request.headers["prefer"] == "return-no-content"


def test_keys_are_escaped_in_the_address() -> None:
    (request,) = our_requests([an_operation(Verb.DELETE)])

    assert request.method == "DELETE"
    assert request.path.endswith("/staff(PartitionKey='S%C3%A4%27%27les%20%25',RowKey='1')")
    assert request.headers["if-match"] == an_operation().etag
    assert request.body.strip() == b""


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidPropertyError):
        print_group(URL, [an_operation(N=2**63)], "7")


# ---------------------------------------------------------------------------------------------
# Answers

WRITTEN = Response(204, [("ETag", "W/\"datetime'2014'\""), ("DataServiceVersion", "3.0;")])
DELETED = Response(204, [("DataServiceVersion", "3.0;")])
REFUSED = Response(
    409, [("Content-Type", "application/json")], b'{"odata.error":{"code":"EntityAlreadyExists"}}'
)


def answered(*parts: Response, changeset_id: str | None = "c") -> tuple[bytes, str]:
    return print_batch(parts, "b", changeset_id), batch_content_type("b")


def test_the_etags_are_read_in_order() -> None:
    parts = read_answer(*answered(WRITTEN, DELETED, WRITTEN))

    assert [part.status for part in parts] == [204] * 3
    assert [etag_of(part) for part in parts] == ["W/\"datetime'2014'\"", "", "W/\"datetime'2014'\""]


def test_a_refusal_is_one_part_with_its_body() -> None:
    headers = {"content-type": "application/json"}

    assert read_answer(*answered(REFUSED)) == (Part(409, headers, REFUSED.body),)
    assert read_answer(*answered(REFUSED, changeset_id=None)) == (Part(409, headers, REFUSED.body),)


def test_lines_may_end_in_a_line_feed_alone() -> None:
    body, kind = answered(WRITTEN, REFUSED)

    parts = read_answer(body.replace(b"\r\n", b"\n"), kind)

    assert [part.status for part in parts] == [204, 409]


def test_a_boundary_may_be_quoted() -> None:
    body, _ = answered(WRITTEN)

    assert len(read_answer(body, 'multipart/mixed; boundary="batchresponse_b"')) == 1


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/mixed; boundary=x"),
        (b"{}", "application/json"),
        (b"--x\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 204 OK\r\n", "a; boundary=x"),
        (b"--x\r\n\r\nnonsense\r\n--x--", "a; boundary=x"),
        (b"--x\r\nno blank line\r\n--x--", "a; boundary=x"),
    ],
)
def test_an_invalid_answer_is_reported_as_unknown(body: bytes, kind: str) -> None:
    with pytest.raises(UnavailableError) as unknown:
        read_answer(body, kind)

    assert unknown.value.code == "AnswerUnreadable"


@given(st.binary(max_size=200))
def test_hostile_answers_raise_nothing_else(noise: bytes) -> None:
    body = answered(WRITTEN, REFUSED)[0]
    for hostile in (noise, body[: len(noise)] + noise, noise + body):
        try:
            read_answer(hostile, batch_content_type("b"))
        except UnavailableError:
            continue
