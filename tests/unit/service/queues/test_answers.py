"""Outcome → Response of the queue protocol: the documents as clients read them."""

from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidRequestError
from partita.queues import limits
from partita.queues.engine import QueuePage
from partita.queues.message import Message
from partita.queues.store import Queue
from partita.service.formats.xml_text import is_legal
from partita.service.queues import answers
from partita.service.queues.wire import ListQueues

MESSAGE = Message(
    "00000000-0000-4000-8000-000000000007",
    "a & b",
    16_345_943_130_000_000,
    limits.NEVER,
    16_345_943_169_999_999,
    3,
    "AQID",
)
FRONT = (
    "<MessageId>00000000-0000-4000-8000-000000000007</MessageId>"
    "<InsertionTime>Mon, 18 Oct 2021 21:58:33 GMT</InsertionTime>"
    "<ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime>"
)
CLAIM = (
    "<PopReceipt>AQID</PopReceipt><TimeNextVisible>Mon, 18 Oct 2021 21:58:36 GMT</TimeNextVisible>"
)
CONTENT = "<DequeueCount>3</DequeueCount><MessageText>a &amp; b</MessageText>"


def listed(*messages: str) -> bytes:
    inner = "".join(f"<QueueMessage>{message}</QueueMessage>" for message in messages)
    return (
        '<?xml version="1.0" encoding="utf-8"?>'
        f"<QueueMessagesList>{inner}</QueueMessagesList>".encode()
    )


def test_a_put_is_answered_without_its_text() -> None:
    answer = answers.put_answer(MESSAGE)

    assert (answer.status, answer.body) == (201, listed(FRONT + CLAIM))


def test_a_get_is_answered_with_everything() -> None:
    answer = answers.got_answer([MESSAGE, MESSAGE])

    whole = FRONT + CLAIM + CONTENT
    assert (answer.status, answer.body) == (200, listed(whole, whole))


def test_a_peek_is_answered_without_receipt_and_time() -> None:
    answer = answers.peeked_answer([MESSAGE])

    assert (answer.status, answer.body) == (200, listed(FRONT + CONTENT))


def test_no_messages_are_an_empty_list() -> None:
    assert len(fromstring(answers.got_answer([]).body)) == 0


def test_an_update_is_answered_in_headers() -> None:
    answer = answers.updated_answer(MESSAGE)

    assert (answer.status, answer.body) == (204, b"")
    assert answer.header("x-ms-popreceipt") == "AQID"
    assert answer.header("x-ms-time-next-visible") == "Mon, 18 Oct 2021 21:58:36 GMT"


def test_metadata_and_count_are_headers() -> None:
    answer = answers.metadata_answer(Queue("work", {"UP": "x"}, 7))

    assert answer.headers == [("x-ms-approximate-messages-count", "7"), ("x-ms-meta-UP", "x")]


def test_a_page_repeats_what_was_asked_and_says_where_the_next_starts() -> None:
    page = QueuePage([Queue("a-1", {"Of": "<me>"}, 0), Queue("a-2", {}, 0)], "a-3")
    call = ListQueues("a", "/acct/a-1", 2, True, True)

    answer = answers.page_answer(page, call, "http://127.0.0.1:10001/acct", "acct")

    assert answer.body.decode() == (
        '<?xml version="1.0" encoding="utf-8"?>'
        '<EnumerationResults ServiceEndpoint="http://127.0.0.1:10001/acct/">'
        "<Prefix>a</Prefix><Marker>/acct/a-1</Marker><MaxResults>2</MaxResults><Queues>"
        "<Queue><Name>a-1</Name><Metadata><Of>&lt;me&gt;</Of></Metadata></Queue>"
        "<Queue><Name>a-2</Name><Metadata /></Queue></Queues>"
        "<NextMarker>/acct/a-3</NextMarker></EnumerationResults>"
    )


def test_a_page_says_nothing_of_metadata_that_nobody_asked_for() -> None:
    page = QueuePage([Queue("a-1", {"Of": "me"}, 0)])
    call = ListQueues("", "", 5000, False, False)

    answer = answers.page_answer(page, call, "http://h", "acct")

    assert answer.body.decode().endswith(
        "<Queues><Queue><Name>a-1</Name></Queue></Queues><NextMarker /></EnumerationResults>"
    )


def test_a_marker_names_the_next_queue_and_nothing_else() -> None:
    assert answers.parse_marker(answers.print_marker("a-3", "acct"), "acct") == "a-3"
    assert answers.parse_marker("", "acct") == ""


@pytest.mark.parametrize("marker", ["a-3", "/other/a-3", "/acct", "//"])
def test_another_marker_is_refused(marker: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        answers.parse_marker(marker, "acct")

    assert refused.value.code == "InvalidMarker"


@given(st.text(st.characters(exclude_categories=["Cs"])).filter(is_legal))
def test_every_text_survives_the_document(text: str) -> None:
    body = answers.got_answer([Message("i", text, 0, 0, 0, 1, "r")]).body

    assert (fromstring(body).findtext("QueueMessage/MessageText") or "") == text
