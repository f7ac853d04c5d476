"""Request → Call of the queue protocol."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidRequestError, LimitExceededError, PartitaError
from partita.queues import limits
from partita.service.auth.delegation import KeyTerms
from partita.service.formats.address import parse_query
from partita.service.formats.xml_text import escape, is_legal, parse_xml, text_of
from partita.service.http.request import Request
from partita.service.queues import wire
from partita.ticks import TICKS_PER_SECOND

VERSION = "2026-10-06"
TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(is_legal)


def decoded(
    method: str,
    path: str,
    query: str = "",
    *,
    body: bytes = b"",
    version: str = VERSION,
    **headers: str,
) -> wire.QueueCall:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(method, f"/acct/{path}", query, named, body)
    return wire.decode(request, path, parse_query(query), version)


def refusal(*args: Any, **options: Any) -> tuple[str, dict[str, str]]:
    with pytest.raises(PartitaError) as refused:
        decoded(*args, **options)
    elements = refused.value.facts.get("elements", [])
    assert isinstance(elements, list)
    return refused.value.code, dict(elements)


@pytest.mark.parametrize(
    ("method", "path", "query", "call"),
    [
        ("GET", "", "comp=list", wire.ListQueues("", "", 5000, False, False)),
        (
            "GET",
            "/",
            "comp=list&prefix=a&marker=/acct/b&maxresults=3&include=metadata",
            wire.ListQueues("a", "/acct/b", 3, True, True),
        ),
        ("GET", "", "comp=list&include=", wire.ListQueues("", "", 5000, False, False)),
        ("GET", "", "comp=list&maxresults=9999", wire.ListQueues("", "", 5000, True, False)),
        ("GET", "", "restype=service&comp=properties", wire.GetQueueProperties()),
        ("PUT", "", "restype=service&comp=properties", wire.SetQueueProperties()),
        ("GET", "", "COMP=stats&RESTYPE=service", wire.GetQueueStatistics()),
        ("PUT", "work", "", wire.CreateQueue("work", {})),
        ("DELETE", "work", "timeout=30", wire.DeleteQueue("work")),
        ("GET", "work", "comp=metadata", wire.GetMetadata("work")),
        ("HEAD", "/work", "comp=metadata", wire.GetMetadata("work")),
        ("PUT", "work", "comp=metadata", wire.SetMetadata("work", {})),
        ("GET", "work", "comp=acl", wire.GetQueuePolicies("work")),
        ("HEAD", "work", "comp=acl", wire.GetQueuePolicies("work")),
        ("PUT", "work", "comp=acl", wire.SetQueuePolicies("work", b"")),
        (
            "POST",
            "work/messages",
            "",
            wire.PutMessage("work", b"", 0, limits.LIFETIME_SECONDS_DEFAULT),
        ),
        (
            "POST",
            "work/messages",
            "visibilitytimeout=5&messagettl=-1",
            wire.PutMessage("work", b"", 5, None),
        ),
        (
            "POST",
            "work/messages",
            "visibilitytimeout=604800&messagettl=604801",
            wire.PutMessage("work", b"", 604800, 604801),
        ),
        ("GET", "work/messages", "", wire.GetMessages("work", 1, 30)),
        (
            "GET",
            "work/messages",
            "numofmessages=32&visibilitytimeout=604800",
            wire.GetMessages("work", 32, 604800),
        ),
        ("GET", "work/messages", "peekonly=True&numofmessages=2", wire.PeekMessages("work", 2)),
        ("GET", "work/messages", "peekonly=false", wire.GetMessages("work", 1, 30)),
        ("DELETE", "work/messages", "", wire.ClearMessages("work")),
        (
            "DELETE",
            "work/messages/7",
            "popreceipt=a%2Bb%3D",
            wire.DeleteMessage("work", "7", "a+b="),
        ),
        (
            "PUT",
            "work/messages/7",
            "popreceipt=a&visibilitytimeout=0",
            wire.UpdateMessage("work", "7", "a", 0, b""),
        ),
        ("PUT", "w%6Frk", "", wire.CreateQueue("work", {})),
    ],
)
def test_a_request_is_the_call_that_verb_path_and_query_say(
    method: str, path: str, query: str, call: wire.QueueCall
) -> None:
    assert decoded(method, path, query) == call


def test_metadata_come_from_the_headers_in_their_case() -> None:
    request = Request(
        "PUT",
        "/acct/work",
        headers={"x-ms-meta-up": " x ", "x-ms-meta": "{}"},
        spelled={"x-ms-meta-up": "x-ms-meta-UP"},
    )

    assert wire.decode(request, "work", [], VERSION) == wire.CreateQueue("work", {"UP": "x"})


@pytest.mark.parametrize(
    ("method", "path", "query", "code", "about"),
    [
        ("GET", "", "", "InvalidQueryParameterValue", "comp"),
        ("GET", "", "comp=what", "InvalidQueryParameterValue", "comp"),
        ("GET", "", "restype=service&comp=what", "InvalidQueryParameterValue", "comp"),
        ("GET", "work", "comp=what", "InvalidQueryParameterValue", "comp"),
        ("GET", "work", "", "MissingRequiredQueryParameter", "comp"),
        ("GET", "", "comp=list&include=deleted", "InvalidQueryParameterValue", "include"),
        ("GET", "", "comp=list&maxresults=0", "OutOfRangeQueryParameterValue", "maxresults"),
        ("GET", "", "comp=list&maxresults=x", "InvalidQueryParameterValue", "maxresults"),
        ("GET", "w/messages", "numofmessages=0", "OutOfRangeQueryParameterValue", "numofmessages"),
        ("GET", "w/messages", "numofmessages=33", "OutOfRangeQueryParameterValue", "numofmessages"),
        ("GET", "w/messages", "numofmessages=1.5", "InvalidQueryParameterValue", "numofmessages"),
        (
            "GET",
            "w/messages",
            "numofmessages=%D9%A1",
            "InvalidQueryParameterValue",
            "numofmessages",
        ),
        (
            "GET",
            "w/messages",
            "peekonly=1",
            "InvalidQueryParameterValue",
            "peekonly",
        ),
        (
            "GET",
            "w/messages",
            "visibilitytimeout=0",
            "OutOfRangeQueryParameterValue",
            "visibilitytimeout",
        ),
        (
            "GET",
            "w/messages",
            "visibilitytimeout=604801",
            "OutOfRangeQueryParameterValue",
            "visibilitytimeout",
        ),
        (
            "POST",
            "w/messages",
            "visibilitytimeout=-1",
            "OutOfRangeQueryParameterValue",
            "visibilitytimeout",
        ),
        (
            "POST",
            "w/messages",
            "visibilitytimeout=10&messagettl=10",
            "InvalidQueryParameterValue",
            "visibilitytimeout",
        ),
        ("POST", "w/messages", "messagettl=0", "OutOfRangeQueryParameterValue", "messagettl"),
        ("POST", "w/messages", "messagettl=-2", "OutOfRangeQueryParameterValue", "messagettl"),
        (
            "POST",
            "w/messages",
            "messagettl=9999999999",
            "OutOfRangeQueryParameterValue",
            "messagettl",
        ),
        (
            "PUT",
            "w/messages/7",
            "popreceipt=a",
            "MissingRequiredQueryParameter",
            "visibilitytimeout",
        ),
        (
            "PUT",
            "w/messages/7",
            "visibilitytimeout=1",
            "MissingRequiredQueryParameter",
            "popreceipt",
        ),
        ("DELETE", "w/messages/7", "", "MissingRequiredQueryParameter", "popreceipt"),
        ("DELETE", "w/messages/7", "popreceipt=", "MissingRequiredQueryParameter", "popreceipt"),
        (
            "DELETE",
            "w/messages/7",
            "popreceipt=a&PopReceipt=b",
            "InvalidQueryParameterValue",
            "popreceipt",
        ),
    ],
)
def test_a_wrong_parameter_is_named(
    method: str, path: str, query: str, code: str, about: str
) -> None:
    found, elements = refusal(method, path, query)

    assert (found, elements["QueryParameterName"]) == (code, about)


def test_a_value_out_of_range_is_told_its_range() -> None:
    _, elements = refusal("GET", "w/messages", "numofmessages=33")

    assert elements == {
        "QueryParameterName": "numofmessages",
        "QueryParameterValue": "33",
        "MinimumAllowed": "1",
        "MaximumAllowed": "32",
    }


@pytest.mark.parametrize("query", ["messagettl=604801", "messagettl=-1"])
def test_old_versions_know_no_longer_lifetime_than_seven_days(query: str) -> None:
    decoded("POST", "w/messages", query, version="2017-07-29")

    code, elements = refusal("POST", "w/messages", query, version="2016-05-31")

    assert code == "OutOfRangeQueryParameterValue"
    assert elements["MaximumAllowed"] == "604800"


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("POST", "", "comp=list"),
        ("DELETE", "", "restype=service&comp=properties"),
        ("POST", "w", ""),
        ("DELETE", "w", "comp=metadata"),
        ("PUT", "w/messages", ""),
        ("PATCH", "w/messages", ""),
        ("GET", "w/messages/7", ""),
        ("POST", "w/messages/7", "popreceipt=a"),
        ("MERGE", "w", ""),
    ],
)
def test_other_verbs_are_refused(method: str, path: str, query: str) -> None:
    assert refusal(method, path, query)[0] == "UnsupportedHttpVerb"


@pytest.mark.parametrize("path", ["w/x", "w/messages/7/8", "w/Messages", "w%zz", "w%ff", "a//b"])
def test_other_paths_name_nothing(path: str) -> None:
    assert refusal("GET", path)[0] == "InvalidUri"


def test_a_user_delegation_key_is_asked_for_with_its_times() -> None:
    body = b"<KeyInfo><Start></Start><Expiry>1970-01-01T00:00:02Z</Expiry></KeyInfo>"

    call = decoded("POST", "", "restype=service&comp=userdelegationkey", body=body)

    assert call == wire.GetQueueDelegationKey(KeyTerms(2 * TICKS_PER_SECOND))


@pytest.mark.parametrize(
    "body",
    [b"", b"<KeyInfo/>", b"<KeyInfo><Expiry>soon</Expiry></KeyInfo>", b"<Other/>"],
)
def test_a_user_delegation_key_without_an_expiry_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decoded("POST", "", "restype=service&comp=userdelegationkey", body=body)


@pytest.mark.parametrize(
    "media_type", ["text/plain", "Text/Plain; charset=utf-8", "multipart/form-data; boundary=x"]
)
def test_what_a_web_page_can_send_unasked_is_refused(media_type: str) -> None:
    code, _ = refusal("POST", "w/messages", content_type=media_type)

    assert code == "MediaTypeNotSupported"


def test_compressed_bodies_are_refused() -> None:
    code, _ = refusal("POST", "w/messages", content_encoding="gzip")

    assert code == "MediaTypeNotSupported"


@pytest.mark.parametrize(
    "media_type", ["application/xml", "text/xml", "application/xml; charset=utf-8"]
)
def test_xml_by_any_name_is_taken(media_type: str) -> None:
    decoded("POST", "w/messages", content_type=media_type)


# What operations need of a SAS


@pytest.mark.parametrize(
    ("method", "path", "query", "resource", "permissions", "scope"),
    [
        ("GET", "", "comp=list", "s", ("l",), None),
        ("PUT", "", "restype=service&comp=properties", "s", ("w",), None),
        ("PUT", "work", "", "c", ("c", "w"), None),
        ("DELETE", "work", "", "c", ("d",), None),
        ("GET", "work", "comp=metadata", "c", ("r",), "work"),
        ("PUT", "work", "comp=metadata", "c", ("w",), None),
        ("POST", "work/messages", "", "o", ("a",), "work"),
        ("GET", "work/messages", "", "o", ("p",), "work"),
        ("GET", "work/messages", "peekonly=true", "o", ("r",), "work"),
        ("PUT", "work/messages/7", "popreceipt=a&visibilitytimeout=1", "o", ("u",), "work"),
        ("DELETE", "work/messages/7", "popreceipt=a", "o", ("p",), "work"),
        ("DELETE", "work/messages", "", "o", ("d",), None),
    ],
)
def test_each_call_says_what_it_needs(
    method: str,
    path: str,
    query: str,
    resource: str,
    permissions: tuple[str, ...],
    scope: str | None,
) -> None:
    need = decoded(method, path, query).need()

    assert (need.resource, need.permissions, need.scope) == (resource, permissions, scope)
    assert not need.by_key_only


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_access_policies_need_the_account_key(method: str) -> None:
    assert decoded(method, "work", "comp=acl").need().by_key_only


# Bodies


def wrapped(text: str, front: str = "<?xml version='1.0' encoding='utf-8'?>\n") -> bytes:
    return f"{front}<QueueMessage><MessageText>{text}</MessageText></QueueMessage>".encode()


@pytest.mark.parametrize(
    "front",
    [
        "",
        "\n",
        "<?xml version='1.0' encoding='utf-8'?>\n",
        '<?xml version="1.0" encoding="utf-8"?>',
        '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>',
        '\ufeff<?xml version="1.0"?>\r\n',
        "<!-- hello -->",
    ],
)
def test_a_body_may_begin_as_any_client_begins_it(front: str) -> None:
    assert wire.parse_message(wrapped("hello", front)) == "hello"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<QueueMessage><MessageText/></QueueMessage>", ""),
        (b"<QueueMessage><MessageText></MessageText></QueueMessage>", ""),
        (b"<QueueMessage><MessageText>  \t\n </MessageText></QueueMessage>", "  \t\n "),
        (
            b"<QueueMessage><MessageText>&lt;a&gt; &amp;&#xD;&#10;</MessageText></QueueMessage>",
            "<a> &\r\n",
        ),
        (b"<QueueMessage><MessageText><![CDATA[<x>&]]></MessageText></QueueMessage>", "<x>&"),
        (b"<QueueMessage a='1'> <MessageText b='2'>x</MessageText>\n</QueueMessage>\n", "x"),
        (b'<QueueMessage xmlns="urn:x"><MessageText>x</MessageText></QueueMessage>', "x"),
        (
            "<QueueMessage><MessageText>é\U0001f600</MessageText></QueueMessage>".encode(),
            "é\U0001f600",
        ),
        (
            '<?xml version="1.0" encoding="utf-16"?>'
            "<QueueMessage><MessageText>é</MessageText></QueueMessage>".encode("utf-16"),
            "é",
        ),
    ],
)
def test_the_text_is_what_xml_says_it_is(body: bytes, text: str) -> None:
    assert wire.parse_message(body) == text


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"<QueueMessage>",
        b"<QueueMessage><MessageText>a</MessageText></QueueMessage><x/>",
        b"<queuemessage><messagetext>a</messagetext></queuemessage>",
        b"<QueueMessage><MessageText>a<b/></MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>a</MessageText><MessageText>b</MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>a]]></MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>&nobody;</MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>\x00</MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>\x01</MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>\xff</MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>&#1;</MessageText></QueueMessage>",
        "<QueueMessage><MessageText>\uffff</MessageText></QueueMessage>".encode(),
        b'<!DOCTYPE x [<!ENTITY a "b">]><QueueMessage><MessageText/></QueueMessage>',
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><QueueMessage><MessageText/></QueueMessage>',
        b"\x0b<QueueMessage><MessageText>a</MessageText></QueueMessage>",
        b" <?xml version='1.0'?><QueueMessage><MessageText>a</MessageText></QueueMessage>",
        b"<?xml version='1.0' encoding='nobody'?><QueueMessage><MessageText/></QueueMessage>",
    ],
)
def test_what_is_not_plain_xml_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        wire.parse_message(body)

    assert refused.value.code == "InvalidXmlDocument"


@pytest.mark.parametrize(
    "body", [b"", b"<QueueMessage/>", b"<QueueMessage><Other/></QueueMessage>"]
)
def test_a_put_needs_a_text(body: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        wire.parse_message(body)

    assert refused.value.code == "MissingRequiredXmlNode"


def test_a_body_beyond_all_texts_is_too_large() -> None:
    with pytest.raises(LimitExceededError) as refused:
        wire.parse_message(wrapped("x" * wire.BODY_BYTES_MAX))

    assert refused.value.code == "RequestBodyTooLarge"
    assert refused.value.facts["elements"] == [("MaxLimit", "65536")]


def test_a_text_of_the_largest_size_fits_however_it_is_written() -> None:
    text = "&#x10FFFF;" * (limits.MESSAGE_BYTES_MAX // 4)

    assert len(wire.parse_message(wrapped(text)).encode()) == limits.MESSAGE_BYTES_MAX


@given(TEXTS)
def test_every_text_comes_through_escaped(text: str) -> None:
    assert wire.parse_message(wrapped(escape(text))) == text


@given(
    st.one_of(
        TEXTS.map(wrapped),
        st.binary().map(
            lambda text: b"<QueueMessage><MessageText>%b</MessageText></QueueMessage>" % text
        ),
        st.tuples(st.binary(max_size=3), TEXTS).map(lambda pair: pair[0] + wrapped(pair[1], "")),
    )
)
def test_the_short_cut_reads_what_the_parser_reads(body: bytes) -> None:
    short = wire._plain_text(body)

    if short is not None:
        assert short == text_of(parse_xml(body, "QueueMessage")[0])
