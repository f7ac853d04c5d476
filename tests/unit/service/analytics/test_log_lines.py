import csv
import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.service.analytics.log_lines import is_logged, log_line, type_of
from partita.service.http.observed import ANONYMOUSLY, BY_SAS, Observed
from partita.service.http.request import Request, Response
from partita.service.observing.outcomes import (
    AUTHORIZATION,
    CLIENT_OTHER,
    CLIENT_TIMEOUT,
    NETWORK,
    SERVER_OTHER,
    SERVER_TIMEOUT,
    SUCCESS,
    THROTTLING,
)
from partita.service.queues.wire import PeekMessages
from partita.service.tables.calls import Change, CreateTable, Level
from partita.tables.entity import EntityKey
from partita.tables.operations import Delete

ENDED = 16_412_420_944_617_505
"""2022-01-03T20:34:54.4617505Z"""


def a_request(**changes: object) -> Request:
    observed = Observed()
    observed.account, observed.operation = "acct", "PutBlob"
    observed.object = "container1/1.txt"
    for name, value in changes.items():
        setattr(observed, name, value)
    headers = {
        "host": "acct.blob.example.net",
        "content-length": "13",
        "content-md5": "bWQ1",
        "if-match": '"0x1"',
        "if-unmodified-since": "Mon, 03 Jan 2022 20:34:54 GMT",
        "user-agent": "AzCopy/10 (go1.15; Windows_NT)",
        "x-ms-client-request-id": "mine",
    }
    query = "se=2022-02-02&sig=secret%3D&sp=rwl"
    return Request(
        "PUT", "/container1/1.txt", query, headers, b"x" * 13, "10.0.0.1", observed=observed
    )


ANSWER = Response(
    201,
    [
        ("ETag", '"0x8D9"'),
        ("Last-Modified", "Mon, 03 Jan 2022 20:34:54 GMT"),
        ("Content-MD5", "c3Vt"),
        ("x-ms-version", "2020-04-08"),
        ("x-ms-request-id", "id-1"),
    ],
)


def line_of(
    request: Request, *, version: str = "1.0", outcome: int = SUCCESS, answer: Response = ANSWER
) -> str:
    return log_line(
        request,
        answer,
        service="blob",
        version=version,
        outcome=outcome,
        seconds=0.0071,
        ended=ENDED + 71_000,
    ).decode()


def test_a_line_of_format_1_0_has_thirty_fields_in_order() -> None:
    assert line_of(a_request()).split(";", 11)[:11] == [
        *("1.0", "2022-01-03T20:34:54.4617505Z", "PutBlob", "Success", "201", "7", "7"),
        *("authenticated", "acct", "acct", "blob"),
    ]
    [row] = csv.reader([line_of(a_request()).rstrip("\n")], delimiter=";")
    assert len(row) == 30
    assert row[13:23] == [
        "id-1",
        "0",
        "10.0.0.1",
        "2020-04-08",
        row[17],
        "13",
        row[19],
        "0",
        "13",
        "bWQ1",
    ]
    assert [html.unescape(field) for field in row[23:]] == [
        "c3Vt",
        '"0x8D9"',
        "Monday, 03-Jan-22 20:34:54 GMT",
        'If-Match="0x1";If-Unmodified-Since=Mon, 03 Jan 2022 20:34:54 GMT',
        "AzCopy/10 (go1.15; Windows_NT)",
        "",
        "mine",
    ]


def test_quoted_fields_are_encoded_as_html() -> None:
    line = line_of(a_request())
    url = (
        '"http://acct.blob.example.net/container1/1.txt?se=2022-02-02&amp;sig=REDACTED&amp;sp=rwl"'
    )
    assert f';{url};"/acct/container1/1.txt";' in line
    assert ';"&quot;0x8D9&quot;";' in line


def test_format_2_0_has_eight_more_empty_fields() -> None:
    line = line_of(a_request(), version="2.0")
    assert line.startswith("2.0;")
    assert line.endswith(';"mine";;;;;;;;\n')


def test_the_requester_of_a_sas_is_not_named() -> None:
    line = line_of(a_request(credentials=BY_SAS), outcome=BY_SAS + SUCCESS)
    assert ";SASSuccess;201;7;7;sas;;acct;blob;" in line


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (CreateTable("Staff", Level.MINIMAL, None), "/acct/Staff"),
        (Change("Staff", Delete(EntityKey("a", "b")), Level.MINIMAL), "/acct/Staff/a/b"),
        ([Change("Staff", Delete(EntityKey("a", "b")), Level.MINIMAL)], "/acct/Staff"),
        ([], "/acct"),
        (PeekMessages("work", 1), "/acct/work"),
        (None, "/acct"),
    ],
)
def test_the_object_of_a_request(call: object, expected: str) -> None:
    line = line_of(a_request(object="", call=call))
    assert f';"{expected}";id-1;' in line


@given(st.text(), st.text(), st.text())
def test_any_text_is_one_line_and_is_read_back(agent: str, name: str, tag: str) -> None:
    request = a_request(object=name or "x")
    request.headers["user-agent"] = agent
    line = line_of(request, answer=Response(200, [("ETag", tag)]))

    assert line.count("\n") == 1
    assert len(line.splitlines()) == 1
    [row] = csv.reader([line.rstrip("\n")], delimiter=";", strict=True)
    assert len(row) == 30
    assert "&" not in row[27].replace("&amp;", "").replace("&#", "").replace("&lt;", "").replace(
        "&gt;", ""
    ).replace("&quot;", "")
    if agent.isprintable():
        assert html.unescape(row[27]) == agent
    if name.isprintable() and name:
        assert html.unescape(row[12]) == f"/acct/{name}"


@pytest.mark.parametrize(
    ("operation", "method", "expected"),
    [
        ("QueryEntity", "GET", "read"),
        ("PeekMessages", "GET", "read"),
        ("TablePreflightRequest", "OPTIONS", "read"),
        ("InsertEntity", "POST", "write"),
        ("EntityGroupTransaction", "POST", "write"),
        ("ClearPage", "PUT", "write"),
        ("DeleteContainer", "DELETE", "delete"),
        ("ClearMessages", "DELETE", "delete"),
        ("Unknown", "GET", "read"),
        ("Unknown", "DELETE", "delete"),
        ("Unknown", "PUT", "write"),
    ],
)
def test_the_type_of_a_request(operation: str, method: str, expected: str) -> None:
    assert type_of(operation, method) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (SUCCESS, True),
        (CLIENT_TIMEOUT, True),
        (SERVER_TIMEOUT, True),
        (SERVER_OTHER, True),
        (THROTTLING, False),
        (CLIENT_OTHER, False),
        (AUTHORIZATION, False),
        (NETWORK, False),
    ],
)
def test_failed_anonymous_requests_are_logged_by_kind(kind: int, *, expected: bool) -> None:
    assert is_logged(ANONYMOUSLY + kind, 404) is expected
    assert is_logged(kind, 404)
    assert is_logged(BY_SAS + kind, 404)
    assert is_logged(ANONYMOUSLY + CLIENT_OTHER, 304)
