"""The texts of the blob protocol: addresses, ranges, headers, metadata and documents."""

import contextlib
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.blobs.rules.model import (
    Blob,
    BlobPrefix,
    Block,
    BlockChoice,
    BlockList,
    Container,
    ContainerListing,
    LeaseFacts,
    Listing,
    PageRange,
    PageRanges,
)
from partita.errors import InvalidRequestError, LimitExceededError, PartitaError
from partita.service.blobs import xml as blob_xml
from partita.service.blobs.address import (
    BlobServiceRoot,
    OneBlob,
    OneContainer,
    parse_blob_resource,
    parse_copy_source,
)
from partita.service.blobs.headers import (
    conditions_of,
    content_headers_of,
    declared_of,
    lease_request_of,
    tags_of,
)
from partita.service.formats import xml_text
from partita.service.formats.byte_ranges import ByteRange, parse_range, range_of
from partita.service.formats.metadata_wire import metadata_of
from partita.service.formats.xml_text import escape, is_legal, parse_xml, text_of
from partita.service.http.request import Request


def _request(**headers: str) -> Request:
    plain = {name.lower().replace("_", "-"): value for name, value in headers.items()}
    return Request("PUT", "/acct/c/b", headers=plain)


# Addresses


@pytest.mark.parametrize(
    ("path", "is_container", "found"),
    [
        ("", False, BlobServiceRoot()),
        ("/", False, BlobServiceRoot()),
        ("c1", True, OneContainer("c1")),
        ("c1/", True, OneContainer("c1")),
        ("c1/b", False, OneBlob("c1", "b")),
        ("c1/a%2Fb/c", False, OneBlob("c1", "a/b/c")),
        ("c1/a+b%2B", False, OneBlob("c1", "a+b+")),
        ("c1/%25", False, OneBlob("c1", "%")),
        ("c1/../../etc/passwd", False, OneBlob("c1", "../../etc/passwd")),
        ("c1/%E4%BD%A0", False, OneBlob("c1", "你")),
        ("b", False, OneBlob("$root", "b")),
        ("c1//b", False, OneBlob("c1", "/b")),
    ],
)
def test_a_path_names_a_container_and_a_blob(
    path: str,
    is_container: bool,
    found: object,
) -> None:
    assert parse_blob_resource(path, is_container=is_container) == found


@pytest.mark.parametrize("path", ["c1/", "c1/%", "c1/%zz", "c1/%ff"])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_blob_resource(path, is_container=False)


def test_a_container_has_no_path_below_it() -> None:
    with pytest.raises(InvalidRequestError):
        parse_blob_resource("c1/b", is_container=True)


def test_a_copy_source_is_a_whole_address() -> None:
    assert parse_copy_source("http://h:1/a/c/b?snapshot=x") == ("h:1", "/a/c/b", "snapshot=x")
    for bad in ("", "c/b", "ftp://h/a", "http:///a", "http://[::1/a", "http://h/a#b"):
        with pytest.raises(InvalidRequestError):
            parse_copy_source(bad)


# Ranges


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bytes=0-0", ByteRange(0, 0)),
        ("bytes=5-", ByteRange(5, None)),
        ("bytes=0-33554431", ByteRange(0, 33554431)),
        ("bytes=-5", None),
        ("bytes=5-4", None),
        ("bytes=0-1,3-4", None),
        ("bytes=٣-٤", None),
        ("octets=0-1", None),
        ("", None),
    ],
)
def test_a_range_is_one_pair_or_ignored(text: str, found: ByteRange | None) -> None:
    assert parse_range(text) == found


def test_the_range_of_the_service_beats_that_of_http() -> None:
    assert range_of({"x-ms-range": "bytes=1-2", "range": "bytes=3-4"}) == ByteRange(1, 2)


@given(st.text(max_size=40))
def test_no_text_breaks_the_range_parser(text: str) -> None:
    found = parse_range(text)
    assert found is None or found.last is None or found.first <= found.last


# Metadata


def test_metadata_keep_the_case_of_their_names() -> None:
    request = Request(
        "PUT",
        "/",
        headers={"x-ms-meta-up": " value ", "x-ms-meta": "{}"},
        spelled={"x-ms-meta-up": "x-ms-meta-UP"},
    )

    assert metadata_of(request) == {"UP": "value"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-ms-meta-": "v"}, "EmptyMetadataKey"),
        ({"x-ms-meta-1a": "v"}, "InvalidMetadata"),
        ({"x-ms-meta-a-b": "v"}, "InvalidMetadata"),
        ({"x-ms-meta-a": "é"}, "InvalidMetadata"),
        ({"x-ms-meta-a": "v" * 8193}, "MetadataTooLarge"),
    ],
)
def test_metadata_that_cannot_be_kept_are_refused(headers: dict[str, str], code: str) -> None:
    with pytest.raises(PartitaError) as refused:
        metadata_of(Request("PUT", "/", headers=headers))
    assert refused.value.code == code


# Headers


def test_etags_of_conditions_lose_their_quotes() -> None:
    conditions = conditions_of(_request(if_match='"0x8D1", 0x8D2', if_none_match="*"))

    assert conditions.if_match == ("0x8D1", "0x8D2")
    assert conditions.if_none_match == ("*",)


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        conditions_of(_request(if_modified_since="yesterday"))
    assert refused.value.facts["elements"] == [
        ("HeaderName", "if-modified-since"),
        ("HeaderValue", "yesterday"),
    ]


def test_the_blobs_own_headers_beat_those_of_http() -> None:
    headers = content_headers_of(
        _request(content_type="application/octet-stream", x_ms_blob_content_type="image/png")
    )

    assert headers.content_type == "image/png"


@pytest.mark.parametrize("md5", ["x", "AAAA", "====", "1B2M2Y8AsgTpgAmY7PhCfg"])
def test_an_md5_is_base64_of_sixteen_bytes(md5: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        declared_of(_request(content_md5=md5))
    assert refused.value.code == "InvalidMd5"


def test_one_checksum_is_enough() -> None:
    with pytest.raises(InvalidRequestError):
        declared_of(
            _request(content_md5="1B2M2Y8AsgTpgAmY7PhCfg==", x_ms_content_crc64="AAAAAAAAAAA=")
        )


def test_tags_are_written_as_a_query_string() -> None:
    assert tags_of(_request(x_ms_tags="a=1&b%20c=")) == {"a": "1", "b c": ""}
    with pytest.raises(InvalidRequestError):
        tags_of(_request(x_ms_tags="a=1&a=2"))


GUID = "0b1e6b5c-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-ms-lease-action": "steal"},
        {"x-ms-lease-action": "acquire"},
        {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "14"},
        {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "61"},
        {
            "x-ms-lease-action": "acquire",
            "x-ms-lease-duration": "15",
            "x-ms-proposed-lease-id": "mine",
        },
        {"x-ms-lease-action": "renew"},
        {"x-ms-lease-action": "change", "x-ms-lease-id": GUID},
        {"x-ms-lease-action": "break", "x-ms-lease-break-period": "61"},
    ],
)
def test_a_lease_request_that_lacks_something_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        lease_request_of(Request("PUT", "/", headers=headers))


# Documents


def test_a_block_list_keeps_its_order() -> None:
    body = b"<BlockList><Latest>MQ==</Latest><Committed>Mg==</Committed></BlockList>"

    assert list(blob_xml.parse_block_list(body)) == [
        BlockChoice("Latest", "MQ=="),
        BlockChoice("Committed", "Mg=="),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<BlockList>",
        b"<Blocks/>",
        b"<BlockList><First>MQ==</First></BlockList>",
        b"<BlockList><Latest><b/></Latest></BlockList>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><BlockList><Latest>&b;</Latest></BlockList>',
        b"<BlockList>\x01</BlockList>",
    ],
)
def test_a_block_list_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        list(blob_xml.parse_block_list(body))
    assert refused.value.code == "InvalidXmlDocument"


def test_a_block_list_has_a_length() -> None:
    block = b"<Latest>MQ==</Latest>"
    with pytest.raises((InvalidRequestError, LimitExceededError)):
        list(blob_xml.parse_block_list(b"<BlockList>" + block * 50_001 + b"</BlockList>"))


BLOCKS = [BlockChoice("Latest", "MQ=="), BlockChoice("Uncommitted", "")]


@pytest.mark.parametrize(
    "body",
    [
        b"<BlockList><Latest>MQ==</Latest><Uncommitted></Uncommitted></BlockList>",
        b"\xef\xbb\xbf<?xml version='1.0'?>\n<BlockList>\n <Latest>\tMQ== \n</Latest>\r\n %s"
        % b"<Uncommitted> </Uncommitted>\n</BlockList>\n",
        b'<BlockList xmlns:i="http://a" xmlns="http://b"><Latest>MQ==</Latest>%s</BlockList>'
        % b"<Uncommitted></Uncommitted>",
        b"<BlockList><Latest>MQ==</Latest><Uncommitted/></BlockList>",
        b"<BlockList><!-- one --><Latest>MQ=&#61;</Latest><Uncommitted a='b'/></BlockList>",
        "<?xml version='1.0' encoding='utf-16'?><BlockList><Latest>MQ==</Latest>"
        "<Uncommitted/></BlockList>".encode("utf-16"),
    ],
)
def test_a_block_list_has_the_same_blocks_however_it_is_written(body: bytes) -> None:
    assert list(blob_xml.parse_block_list(body)) == BLOCKS


@given(st.lists(st.sampled_from([
    b"<Latest>", b"</Latest>", b"<Committed>", b"</Committed>", b"MQ==", b" ", b"\n", b"&#61;",
    b"<Latest/>", b"<!---->", b"<![CDATA[a]]>", b"]]>", b"\x01", b"\xc3\xa9", b"</BlockList>",
])))  # fmt: skip
def test_the_short_way_reads_a_block_list_as_a_parser_does(parts: list[bytes]) -> None:
    body = b"<BlockList>" + b"".join(parts) + b"</BlockList>"

    def read(parse: Callable[[bytes], Iterable[BlockChoice]]) -> list[BlockChoice] | str:
        try:
            return list(parse(body))
        except InvalidRequestError as error:
            return error.code

    assert read(blob_xml.parse_block_list) == read(blob_xml._parse_unusual_list)


@pytest.mark.parametrize(
    "body",
    [
        b"<BlockList " + b" ".join(b'a%d=""' % n for n in range(20_000)) + b"></BlockList>",
        b"<BlockList " + b" ".join(b"a%d='>'" % n for n in range(33)) + b"></BlockList>",
        b"<BlockList>" * 99_990 + b"</BlockList>" * 99_990,
        b"<BlockList><!---->" + b"<Latest>MQ==</Latest>" * 3_000 + b"</BlockList>",
    ],
)
def test_unusual_xml_is_refused_before_it_is_parsed(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser would take a second for attributes or depth."""
    monkeypatch.setattr(xml_text, "fromstring", _must_not_be_called)

    with pytest.raises(LimitExceededError) as refused:
        list(blob_xml.parse_block_list(body))
    assert refused.value.code == "InvalidXmlDocument"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_attributes_have_a_limit_in_every_document(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = " ".join(f'a{n}="&lt;"' for n in range(xml_text.XML_ATTRIBUTES_MAX + 1))
    kept = attributes.rpartition(" ")[0]
    assert xml_text.parse_xml(f"<Tags {kept}/>".encode(encoding), "Tags").get("a1") == "<"

    monkeypatch.setattr(xml_text, "fromstring", _must_not_be_called)
    with pytest.raises(LimitExceededError):
        xml_text.parse_xml(f"<Tags><Tag {attributes}/></Tags>".encode(encoding), "Tags")


def _must_not_be_called(*_arguments: object, **_named: object) -> None:
    raise AssertionError("the document was parsed")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parsers(body: bytes) -> None:
    for parse in (blob_xml.parse_block_list, blob_xml.parse_tags):
        with contextlib.suppress(InvalidRequestError, LimitExceededError):
            list(parse(body))


def test_tags_survive_the_way_out_and_back() -> None:
    tags = {"b": "<&>", "a": ""}

    assert blob_xml.parse_tags(blob_xml.print_tags(tags)) == tags


def test_a_tag_given_twice_is_refused() -> None:
    tag = b"<Tag><Key>a</Key><Value>1</Value></Tag>"
    with pytest.raises(InvalidRequestError) as refused:
        blob_xml.parse_tags(b"<Tags><TagSet>" + tag * 2 + b"</TagSet></Tags>")
    assert refused.value.code == "DuplicateTagNames"


BLOB = Blob(
    name="a & b/ü",
    snapshot=None,
    kind="BlockBlob",
    created_at=17_000_000_000_000_000,
    changed_at=17_000_000_000_000_000,
    length=3,
    metadata={"UP": "<v>"},
    lease=LeaseFacts("leased", "infinite"),
)


def test_a_listing_says_what_was_asked_and_found() -> None:
    listing = Listing([BLOB, BlobPrefix("p/")], "next")
    body = blob_xml.print_blobs(
        listing, "http://h/acct", "c1", {"prefix": "a", "maxresults": "2", "include": "metadata"}
    )
    root = parse_xml(body, "EnumerationResults")
    texts = {each.tag: each.text for each in root.iter()}

    assert root.get("ServiceEndpoint") == "http://h/acct/"
    assert root.get("ContainerName") == "c1"
    assert [text_of(name) for name in root.iter("Name")] == ["a & b/ü", "p/"]
    assert texts["UP"] == "<v>"
    assert texts["LeaseDuration"] == "infinite"
    assert texts["NextMarker"] == "next"
    assert texts["Prefix"] == "a"
    assert texts["MaxResults"] == "2"
    assert texts["AccessTierInferred"] == "true"


def test_metadata_are_listed_only_when_asked_for() -> None:
    body = blob_xml.print_blobs(Listing([BLOB]), "http://h/acct", "c1", {})

    assert b"<Metadata" not in body


def test_a_name_that_xml_cannot_hold_is_listed_encoded() -> None:
    blob = Blob("a\uffff", None, "BlockBlob", 0, 0, 0)
    body = blob_xml.print_blobs(Listing([blob]), "http://h/acct", "c1", {})

    assert b'<Name Encoded="true">a%EF%BF%BF</Name>' in body


def test_containers_are_listed_with_quoted_etags() -> None:
    container = Container("c1", 17_000_000_000_000_000, access="blob")
    body = blob_xml.print_containers(
        ContainerListing([container]), "http://h/acct", {"include": "metadata"}, ""
    )
    texts = {each.tag: each.text for each in parse_xml(body, "EnumerationResults").iter()}

    assert texts["Etag"] == '"0x8DBE55EE8E40000"'
    assert texts["PublicAccess"] == "blob"
    assert texts["HasLegalHold"] == "false"
    assert b"<Metadata />" in body


def test_only_the_block_lists_that_were_asked_for_are_shown() -> None:
    blocks = BlockList(BLOB, [Block("MQ==", 3)], [Block("Mg==", 4)])

    assert b"Uncommitted" not in blob_xml.print_block_list(blocks, "committed")
    assert b"CommittedBlocks" in blob_xml.print_block_list(blocks, "all")
    assert b"<Name>MQ==</Name><Size>3</Size>" in blob_xml.print_block_list(blocks, "committed")


def test_page_ranges_say_where_to_go_on() -> None:
    body = blob_xml.print_page_list(PageRanges(BLOB, [PageRange(0, 511)], 1024))

    assert b"<PageRange><Start>0</Start><End>511</End></PageRange>" in body
    assert b"<NextMarker>1024</NextMarker>" in body


# What makes them fast must not change them


@given(st.text())
def test_text_that_needs_no_escaping_is_the_rule_and_the_rest_is_escaped(text: str) -> None:
    legal = "".join(letter for letter in text if is_legal(letter))

    printed = f"<a>{escape(text)}</a>"

    assert text_of(parse_xml(printed.encode(), "a")) == legal
    assert not set(escape(text)) & {"<", ">", "\r"}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("if-match", "if_match"),
        ("if-none-match", "if_none_match"),
        ("x-ms-if-tags", "if_tags"),
        ("if-modified-since", "if_modified_since"),
        ("if-unmodified-since", "if_unmodified_since"),
        ("x-ms-access-tier-if-modified-since", "if_tier_modified_since"),
        ("x-ms-access-tier-if-unmodified-since", "if_tier_unmodified_since"),
    ],
)
def test_each_condition_is_seen_also_when_it_is_the_only_one(name: str, field: str) -> None:
    date = "Mon, 01 Jan 2024 00:00:00 GMT"
    found = conditions_of(Request("GET", "/", headers={name: date}))

    assert getattr(found, field) not in ((), None)
    assert found != conditions_of(Request("GET", "/"))


@pytest.mark.parametrize("name", ["if-match", "if-none-match", "if-modified-since", "if-tags"])
def test_each_condition_on_a_source_is_seen_by_its_own_name(name: str) -> None:
    headers = {f"x-ms-source-{name}": "Mon, 01 Jan 2024 00:00:00 GMT"}
    request = Request("PUT", "/", headers=headers)

    assert conditions_of(request, "x-ms-source-") != conditions_of(Request("PUT", "/"))
    assert conditions_of(request) == conditions_of(Request("PUT", "/"))


@pytest.mark.parametrize("front", ["", "x-ms-source-", "x-ms-blob-"])
@pytest.mark.parametrize(
    "name", ["match", "none-match", "modified-since", "unmodified-since", "tags"]
)
def test_an_empty_condition_sets_none(front: str, name: str) -> None:
    bare = Request("PUT", "/")
    for header in (f"{front}if-{name}", f"x-ms-if-{name}", f"x-ms-access-tier-if-{name}"):
        request = Request("PUT", "/", headers={header: ""})
        assert conditions_of(request, front) == conditions_of(bare, front)
