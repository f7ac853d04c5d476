"""Requests of single rows and pages: the same as the SDK's, and their answers."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.data.tables import TableClient
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import GroupRuleError, UnavailableError
from partita.patterns.ports.row_requests import RowCall, read_one, read_page, request_of
from partita.patterns.protocol.calls import (
    Continuation,
    GetRow,
    QueryRows,
    RowOperation,
    RowPage,
    Verb,
    WriteRows,
)
from partita.patterns.protocol.values import Row, RowKey, Value
from support.sdk_oracle import request_of as as_the_sdk_takes_it
from support.sdk_requests import sent_by
from unit.patterns.ports.test_group_body import UNSAID
from unit.patterns.protocol.test_wire_size import KEY_TEXT, NAMES, VALUES

ROOT = "http://127.0.0.1:10002/devstoreaccount1"
KEY = RowKey("Sales", "1")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SAID = ("accept", "content-type", "dataserviceversion", "if-match", "prefer")


def meaning(method: str, url: str, headers: Any, body: Any) -> tuple[object, ...]:
    """Return what matters of a request, however it is spelled."""
    split = urlsplit(url)
    sent = {name.lower(): value for name, value in headers.items()}
    members = json.loads(body) if body else {}
    said = {
        name: value
        for name, value in members.items()
        if not (name.endswith("@odata.type") and value in UNSAID)
    }
    query = parse_qs(split.query, keep_blank_values=True, strict_parsing=bool(split.query))
    return method, split.path, query, {name: sent.get(name) for name in SAID}, said


def ours(call: RowCall) -> tuple[object, ...]:
    made = request_of(call, ROOT, "")
    return meaning(made.method, made.url, made.headers, made.body)


def of_the_sdk(use: Any) -> tuple[object, ...]:
    sent = sent_by(ROOT, "staff", "devstoreaccount1", use)
    return meaning(sent.method, sent.url, sent.headers, sent.content)


@settings(max_examples=100)
@given(
    key=st.builds(RowKey, KEY_TEXT, KEY_TEXT),
    verb=st.sampled_from(Verb),
    etag=st.sampled_from(["*", "W/\"datetime'2014'\""]),
    properties=st.dictionaries(NAMES, VALUES, max_size=8),
)
def test_writes_say_what_the_official_client_says(
    key: RowKey, verb: Verb, etag: str, properties: dict[str, Value]
) -> None:
    operation = RowOperation(verb, Row(key, properties), etag)
    method, entity, options = as_the_sdk_takes_it(operation)

    theirs = of_the_sdk(lambda client: getattr(client, method)(entity, **options))

    assert without_taste(ours(WriteRows("staff", (operation,)))) == without_taste(theirs)


def without_taste(request: tuple[object, ...]) -> tuple[object, ...]:
    """Leave out what a client may ask for or not: whether it hears what it has sent."""
    method, path, query, headers, members = request
    assert isinstance(headers, dict)
    kept = {name: headers[name] for name in ("if-match", "dataserviceversion")}
    return method, path, query, kept, members


@settings(max_examples=100)
@given(
    key=st.builds(RowKey, KEY_TEXT, KEY_TEXT),
    select=st.none() | st.lists(NAMES, unique=True, max_size=3).map(tuple),
)
def test_a_read_says_what_the_official_client_says(
    key: RowKey, select: tuple[str, ...] | None
) -> None:
    named = None if select is None else ["PartitionKey", "RowKey", *select]

    theirs = of_the_sdk(lambda client: client.get_entity(key.partition, key.row, select=named))

    assert ours(GetRow("staff", key, select)) == theirs


@settings(max_examples=100)
@given(
    filter_=TEXT,
    select=st.none() | st.lists(NAMES, unique=True, max_size=3).map(tuple),
    size=st.none() | st.integers(1, 1000),
    start=st.none() | st.builds(Continuation, TEXT.filter(bool), st.none() | TEXT.filter(bool)),
)
def test_a_page_is_asked_for_as_the_official_client_does(
    filter_: str, select: tuple[str, ...] | None, size: int | None, start: Continuation | None
) -> None:
    named = None if select is None else ["PartitionKey", "RowKey", *select]

    def ask(client: TableClient) -> None:
        options: dict[str, Any] = {"select": named, "results_per_page": size}
        items: Any = (
            client.query_entities(filter_, **options)
            if filter_
            else client.list_entities(**options)
        )
        token = start and {"PartitionKey": start.partition, "RowKey": start.row}
        next(items.by_page(token))

    assert ours(QueryRows("staff", filter_, select, size, start)) == of_the_sdk(ask)


def test_groups_are_checked_before_they_are_sent() -> None:
    with pytest.raises(GroupRuleError) as caught:
        request_of(WriteRows("staff", ()), ROOT, "")
    assert caught.value.code == "InvalidInput"

    with pytest.raises(GroupRuleError) as caught:
        request_of(
            WriteRows(
                "staff",
                (
                    RowOperation(Verb.INSERT, Row(KEY, {})),
                    RowOperation(Verb.INSERT, Row(RowKey("Other", "1"), {})),
                ),
            ),
            ROOT,
            "",
        )
    assert caught.value.code == "CommandsInBatchActOnDifferentPartitions"
    assert caught.value.facts == {"index": 1, "table": "staff"}


def test_a_page_has_its_rows_and_where_the_next_starts() -> None:
    body = b'{"value":[{"PartitionKey":"a","RowKey":"1","Name":"Jun"}]}'
    headers = {"x-ms-continuation-NextPartitionKey": "1!4!YQ--"}

    page = read_page(body, headers)

    assert page == RowPage(
        (Row(RowKey("a", "1"), {"Name": "Jun"}),), Continuation("1!4!YQ--", None)
    )
    assert read_page(body, {}).continuation is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"value":7}',
        b'{"value":[7]}',
        b'{"value":[{}]}',
        b'{"value":[{"PartitionKey":"a","RowKey":"1","P":[]}]}',
        b"[" * 2000,
        b'{"PartitionKey":"\\ud800","RowKey":"1","P":{}}',
        b"\xff\xff",
    ],
)
def test_an_answer_that_is_not_of_a_table_service_is_reported(body: bytes) -> None:
    for read in (lambda: read_page(body, {}), lambda: read_one(body + b"]")):
        with pytest.raises(UnavailableError) as caught:
            read()
        assert caught.value.code == "AnswerUnreadable"
        assert "address" in caught.value.hint
