"""The queue protocol on the wire: statuses, headers, documents and refusals as they are sent."""

import re
import uuid
from typing import Any
from urllib.parse import quote

import pytest

from support.live import LiveServer, on_every_front_end
from wire.raw import GUID, TIME
from wire.raw_queue import MESSAGE, QueueAnswer, RawQueueClient

HTTP_DATE = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"
RECEIPT = "[A-Za-z0-9+/]{32}"


@pytest.fixture
def raw_queues(server: LiveServer) -> RawQueueClient:
    return RawQueueClient(server.queue_endpoint)


@pytest.fixture
def queue(raw_queues: RawQueueClient) -> str:
    """The name of a queue that exists and is empty."""
    name = f"q{uuid.uuid4().hex}"
    assert raw_queues.send("PUT", f"/{name}").told == "201"
    return name


def test_every_answer_says_who_answers(raw_queues: RawQueueClient, queue: str) -> None:
    answer = raw_queues.send(
        "GET", f"/{queue}?comp=metadata", headers={"x-ms-client-request-id": "mine"}
    )

    assert (answer.status, answer.body) == (200, b"")
    assert re.fullmatch(GUID, answer["x-ms-request-id"])
    assert re.fullmatch(HTTP_DATE, answer["Date"])
    assert answer["x-ms-version"] == "2026-10-06"
    assert answer["Cache-Control"] == "no-cache"
    assert answer["Content-Length"] == "0"
    assert answer["x-ms-client-request-id"] == "mine"
    assert answer["x-ms-approximate-messages-count"] == "0"


def test_a_put_message_is_told_with_receipt_and_times(
    raw_queues: RawQueueClient, queue: str
) -> None:
    answer = raw_queues.put(queue)

    assert answer.told == "201"
    assert answer["Content-Type"] == "application/xml"
    assert "Cache-Control" not in answer.names
    assert re.fullmatch(
        r'<\?xml version="1\.0" encoding="utf-8"\?><QueueMessagesList><QueueMessage>'
        f"<MessageId>{GUID}</MessageId><InsertionTime>{HTTP_DATE}</InsertionTime>"
        f"<ExpirationTime>{HTTP_DATE}</ExpirationTime><PopReceipt>{RECEIPT}</PopReceipt>"
        f"<TimeNextVisible>{HTTP_DATE}</TimeNextVisible></QueueMessage></QueueMessagesList>",
        answer.body.decode(),
    )


def test_got_and_peeked_messages_show_what_they_should(
    raw_queues: RawQueueClient, queue: str
) -> None:
    raw_queues.put(queue)
    peeked = raw_queues.send("GET", f"/{queue}/messages?peekonly=true").xml
    got = raw_queues.send("GET", f"/{queue}/messages").xml
    empty = raw_queues.send("GET", f"/{queue}/messages")

    front, end = ["MessageId", "InsertionTime", "ExpirationTime"], ["DequeueCount", "MessageText"]
    assert [child.tag for child in peeked[0]] == front + end
    assert [child.tag for child in got[0]] == [*front, "PopReceipt", "TimeNextVisible", *end]
    assert empty.status == 200
    assert len(empty.xml) == 0


def test_an_update_is_answered_in_headers(raw_queues: RawQueueClient, queue: str) -> None:
    message = raw_queues.put(queue).xml[0]
    receipt = quote(message.findtext("PopReceipt") or "", safe="")
    target = f"/{queue}/messages/{message.findtext('MessageId')}?popreceipt={receipt}"

    answer = raw_queues.send("PUT", f"{target}&visibilitytimeout=7", MESSAGE.format("y"))

    assert (answer.told, answer.body) == ("204", b"")
    assert re.fullmatch(RECEIPT, answer["x-ms-popreceipt"])
    assert re.fullmatch(HTTP_DATE, answer["x-ms-time-next-visible"])
    assert raw_queues.send("DELETE", target).told == "404 MessageNotFound"


def test_creating_twice_is_told_by_the_status(raw_queues: RawQueueClient, queue: str) -> None:
    assert raw_queues.send("PUT", f"/{queue}").told == "204"
    other = raw_queues.send("PUT", f"/{queue}", headers={"x-ms-meta-of": "me"})
    assert other.told == "409 QueueAlreadyExists"


def test_an_error_has_its_code_its_three_lines_and_its_elements(
    raw_queues: RawQueueClient, queue: str
) -> None:
    answer = raw_queues.send("GET", f"/{queue}/messages?numofmessages=33")

    assert answer.told == "400 OutOfRangeQueryParameterValue"
    assert answer["Content-Type"] == "application/xml"
    assert answer.body.startswith(b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?><Error>')
    text = (
        "One of the query parameters specified in the request URI is outside the permissible"
        rf" range\.\nRequestId:{GUID}\nTime:{TIME}"
    )
    assert re.fullmatch(text, answer.xml.findtext("Message") or "")
    assert answer.elements() == {
        "QueryParameterName": "numofmessages",
        "QueryParameterValue": "33",
        "MinimumAllowed": "1",
        "MaximumAllowed": "32",
    }


def test_an_error_to_head_has_no_body(raw_queues: RawQueueClient) -> None:
    answer = raw_queues.send("HEAD", "/nobody-has-it?comp=metadata")

    assert (answer.told, answer.body) == ("404 QueueNotFound", b"")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_head_asks_like_get(raw_queues: RawQueueClient, queue: str, method: str) -> None:
    assert raw_queues.send(method, f"/{queue}?comp=metadata").told == "200"
    assert raw_queues.send(method, f"/{queue}?comp=acl").told == "200"


def test_an_empty_body_clears_the_policies(raw_queues: RawQueueClient, queue: str) -> None:
    policies = (
        "<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy><Start>2026-01-01</Start>"
        "<Permission>raup</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    )
    assert raw_queues.send("PUT", f"/{queue}?comp=acl", policies).told == "204"
    kept = raw_queues.send("GET", f"/{queue}?comp=acl").body.decode()
    assert raw_queues.send("PUT", f"/{queue}?comp=acl").told == "204"
    cleared = raw_queues.send("GET", f"/{queue}?comp=acl").xml

    assert "<Start>2026-01-01T00:00:00.0000000Z</Start><Permission>raup</Permission>" in kept
    assert (cleared.tag, len(cleared)) == ("SignedIdentifiers", 0)


def test_old_versions_put_without_an_answer_and_list_all_the_same(
    raw_queues: RawQueueClient, queue: str
) -> None:
    old: dict[str, str | None] = {"x-ms-version": "2014-02-14"}

    answer = raw_queues.send("POST", f"/{queue}/messages", MESSAGE.format("x"), old)

    assert (answer.told, answer.body, answer["x-ms-version"]) == ("201", b"", "2014-02-14")
    assert len(raw_queues.send("GET", f"/{queue}/messages", headers=old).xml) == 1


@pytest.mark.parametrize("version", ["2099-11-05", "yesterday", "2026-13-01"])
def test_a_version_that_nobody_can_know_is_refused(
    raw_queues: RawQueueClient, queue: str, version: str
) -> None:
    answer = raw_queues.send("GET", f"/{queue}?comp=metadata", headers={"x-ms-version": version})

    assert answer.told == "400 InvalidHeaderValue"
    assert answer.elements() == {"HeaderName": "x-ms-version", "HeaderValue": version}


def test_the_secondary_endpoint_only_reads(raw_queues: RawQueueClient, queue: str) -> None:
    secondary = f"{raw_queues.account}-secondary"
    stats = raw_queues.send("GET", "/?restype=service&comp=stats", account=secondary)

    assert stats.xml.findtext("GeoReplication/Status") == "live"
    listed = raw_queues.send("GET", f"/?comp=list&prefix={queue}", account=secondary)
    assert [name.text for name in listed.xml.iter("Name")] == [queue]
    put = raw_queues.send("POST", f"/{queue}/messages", MESSAGE.format("x"), account=secondary)
    assert put.told == "403 InsufficientAccountPermissions"
    got = raw_queues.send("GET", f"/{queue}/messages", account=secondary)
    assert got.told == "403 InsufficientAccountPermissions"


def test_who_brings_nothing_is_not_let_in(raw_queues: RawQueueClient, queue: str) -> None:
    answer = raw_queues.send("GET", f"/{queue}?comp=metadata", is_signed=False)

    assert answer.told == "401 NoAuthenticationInformation"


def test_a_missing_queue_is_missed_before_its_message_is_read(raw_queues: RawQueueClient) -> None:
    answer = raw_queues.send("POST", "/nobody-has-it/messages", "no xml")

    assert answer.told == "404 QueueNotFound"


BAD_BODIES: list[tuple[str | bytes, str]] = [
    ("", "400 MissingRequiredXmlNode"),
    ("<QueueMessage/>", "400 MissingRequiredXmlNode"),
    ("hello", "400 InvalidXmlDocument"),
    ("<QueueMessage>", "400 InvalidXmlDocument"),
    ("<Other><MessageText/></Other>", "400 InvalidXmlDocument"),
    (MESSAGE.format("\x01"), "400 InvalidXmlDocument"),
    (MESSAGE.format("&#xFFFE;"), "400 InvalidXmlDocument"),
    (MESSAGE.format("<b/>"), "400 InvalidXmlDocument"),
    (b"\xff\xfe\x00", "400 InvalidXmlDocument"),
    (
        '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + MESSAGE.format("&b;"),
        "400 InvalidXmlDocument",
    ),
    (
        "<!DOCTYPE a ["
        '<!ENTITY b0 "lol">'
        + "".join(f'<!ENTITY b{n + 1} "{f"&b{n};" * 10}">' for n in range(9))
        + "]>"
        + MESSAGE.format("&b9;"),
        "400 InvalidXmlDocument",
    ),
    ("<a>" * 100_000, "400 InvalidXmlDocument"),
    ("<QueueMessage>" + "<a/>" * 100_000 + "</QueueMessage>", "400 InvalidXmlDocument"),
    (MESSAGE.format("x" * 65537), "413 RequestBodyTooLarge"),
    (MESSAGE.format("\u00e9" * 32769), "413 RequestBodyTooLarge"),
    (MESSAGE.format("x" * 660_000), "413 RequestBodyTooLarge"),
    (MESSAGE.format("x" * 5_000_000), "413 RequestBodyTooLarge"),
]


@pytest.mark.parametrize(("body", "expected"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_body_is_refused_and_leaves_no_message(
    raw_queues: RawQueueClient, queue: str, body: str | bytes, expected: str
) -> None:
    answer = raw_queues.send("POST", f"/{queue}/messages", body)

    assert answer.told == expected
    count = raw_queues.send("GET", f"/{queue}?comp=metadata")["x-ms-approximate-messages-count"]
    assert count == "0"


def test_a_message_that_is_too_large_is_told_the_limit(
    raw_queues: RawQueueClient, queue: str
) -> None:
    answer = raw_queues.put(queue, "x" * 87_000)

    assert answer.elements() == {"MaxLimit": "65536"}


def test_bad_xml_is_told_its_place(raw_queues: RawQueueClient, queue: str) -> None:
    answer = raw_queues.send("POST", f"/{queue}/messages", "<QueueMessage>\n<oops")

    assert answer.elements().keys() == {"LineNumber", "LinePosition", "Reason"}
    assert answer.elements()["LineNumber"] == "2"


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/", "400 InvalidQueryParameterValue"),
        ("GET", "/?comp=list&marker=nonsense", "400 InvalidMarker"),
        ("GET", "/?comp=list&maxresults=0", "400 OutOfRangeQueryParameterValue"),
        ("POST", "/{queue}", "405 UnsupportedHttpVerb"),
        ("PATCH", "/{queue}/messages", "405 UnsupportedHttpVerb"),
        ("GET", "/{queue}/other", "400 InvalidUri"),
        ("GET", "/{queue}/messages?numofmessages=many", "400 InvalidQueryParameterValue"),
        ("GET", "/{queue}/messages?visibilitytimeout=604801", "400 OutOfRangeQueryParameterValue"),
        ("DELETE", "/{queue}/messages/7", "400 MissingRequiredQueryParameter"),
        ("DELETE", "/{queue}/messages/7?popreceipt=" + "A" * 32, "404 MessageNotFound"),
        ("PUT", "/{queue}/messages/7?popreceipt=AAAA", "400 MissingRequiredQueryParameter"),
        ("PUT", "/UPPER", "400 InvalidResourceName"),
        ("PUT", "/a_b", "400 InvalidResourceName"),
        ("PUT", "/%C3%A4%C3%B6%C3%BC", "400 InvalidResourceName"),
        ("PUT", "/..", "400 OutOfRangeInput"),
        ("PUT", "/" + "a" * 64, "400 OutOfRangeInput"),
        ("PUT", "/%2e%2e%2f%2e%2e", "400 InvalidResourceName"),
        ("GET", "/%zz?comp=metadata", "400 InvalidUri"),
    ],
)
def test_bad_requests_get_their_code(
    raw_queues: RawQueueClient, queue: str, method: str, target: str, expected: str
) -> None:
    assert raw_queues.send(method, target.format(queue=queue)).told == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-ms-meta-", "x", "400 EmptyMetadataKey"),
        ("x-ms-meta-1a", "x", "400 InvalidMetadata"),
        ("x-ms-meta-a-b", "x", "400 InvalidMetadata"),
        ("x-ms-meta-a", "x" * 8192, "400 MetadataTooLarge"),
        ("x-ms-meta-a", "x" * 8191, "201"),
    ],
)
def test_metadata_are_checked(
    raw_queues: RawQueueClient, name: str, value: str, expected: str
) -> None:
    answer = raw_queues.send("PUT", f"/q{uuid.uuid4().hex}", headers={name: value})

    assert answer.told == expected


def test_a_foreign_page_cannot_put_messages(raw_queues: RawQueueClient, queue: str) -> None:
    cross: dict[str, str | None] = {
        "Sec-Fetch-Site": "cross-site",
        "Origin": "https://evil.example",
    }
    assert raw_queues.send("POST", f"/{queue}/messages", MESSAGE, cross).status == 403
    rebound = raw_queues.send("GET", f"/{queue}?comp=metadata", headers={"Host": "evil.example"})
    assert rebound.status == 400
    plain = raw_queues.send("POST", f"/{queue}/messages", MESSAGE, {"Content-Type": "text/plain"})
    assert plain.told == "415 MediaTypeNotSupported"


def test_a_preflight_asks_the_rules_of_the_queue_service(start_server: Any) -> None:
    live: LiveServer = start_server()
    client = RawQueueClient(live.queue_endpoint)
    rules = (
        "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>https://a.example</AllowedOrigins>"
        "<AllowedMethods>GET</AllowedMethods><MaxAgeInSeconds>60</MaxAgeInSeconds>"
        "<ExposedHeaders>*</ExposedHeaders><AllowedHeaders>*</AllowedHeaders></CorsRule></Cors>"
        "</StorageServiceProperties>"
    )
    asked: dict[str, str | None] = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "GET",
    }
    assert client.send("OPTIONS", "/work", headers=asked, is_signed=False).status == 403
    assert client.send("PUT", "/?restype=service&comp=properties", rules).told == "202"

    def preflight() -> QueueAnswer:
        return client.send("OPTIONS", "/work", headers=asked, is_signed=False)

    assert on_every_front_end(lambda: preflight().status == 200)
    assert preflight()["Access-Control-Allow-Origin"] == "https://a.example"


def test_a_page_of_queues_goes_on_where_the_marker_says(
    raw_queues: RawQueueClient, queue: str
) -> None:
    for number in range(3):
        raw_queues.send("PUT", f"/{queue}-{number}")

    first = raw_queues.send("GET", f"/?comp=list&prefix={queue}&maxresults=2").xml
    marker = first.findtext("NextMarker") or ""
    second = raw_queues.send("GET", f"/?comp=list&prefix={queue}&marker={quote(marker)}").xml

    assert first.get("ServiceEndpoint") == f"{raw_queues.root}/"
    assert marker == f"/{raw_queues.account}/{queue}-1"
    assert [name.text for name in first.iter("Name")] == [queue, f"{queue}-0"]
    assert [name.text for name in second.iter("Name")] == [f"{queue}-1", f"{queue}-2"]
    assert (second.findtext("Marker"), second.findtext("MaxResults")) == (marker, None)
    assert second.findtext("NextMarker") == ""
