import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import (
    InvalidKeyError,
    InvalidPropertyError,
    LimitExceededError,
    PartitaError,
    UsageError,
)
from partita.tables import edm, limits
from partita.tables.edm import Members
from partita.tables.entity import (
    Entity,
    EntityBody,
    EntityKey,
    build,
    check_key,
    check_key_in_address,
    check_property_name,
    check_table_name,
    etag_of,
    parse_body,
    parse_object,
    printable,
    size_of,
)

TICKS = 16_517_972_818_204_980
"""2022-05-06T00:34:41.820498Z"""


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as error:
        call()
    return error.value.code


def body(**members: object) -> bytes:
    return json.dumps({"PartitionKey": "p", "RowKey": "r", **members}).encode()


# Etag and document


def test_an_etag_is_the_timestamp_in_a_weak_tag() -> None:
    assert etag_of(TICKS) == "W/\"datetime'2022-05-06T00%3A34%3A41.820498Z'\""


def test_a_document_starts_at_the_etag_and_keeps_the_order_of_properties() -> None:
    entity = build(
        ("p'", "r\u00e9"),
        TICKS,
        {"b": 5.0, "a@odata.type": "Edm.Int64", "a": "64", "C": True, "d": "x", "e": -1},
    )

    assert entity.document.decode() == (
        '"odata.etag":"W/\\"datetime\'2022-05-06T00%3A34%3A41.820498Z\'\\"",'
        '"PartitionKey":"p\'","RowKey":"r\u00e9","Timestamp":"2022-05-06T00:34:41.820498Z",'
        '"b":5.0,"a@odata.type":"Edm.Int64","a":"64","C":true,"d":"x","e":-1}'
    )
    assert entity.etag == etag_of(TICKS)
    assert entity.key == EntityKey("p'", "r\u00e9")


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("PartitionKey", "RowKey", "Timestamp")
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES: st.SearchStrategy[tuple[str | None, object]] = st.one_of(
    st.tuples(st.none(), TEXTS),
    st.tuples(st.none(), st.booleans()),
    st.tuples(st.none(), st.integers(edm.INT32_MIN, edm.INT32_MAX)),
    st.tuples(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(edm.INT64), st.integers(edm.INT64_MIN, edm.INT64_MAX).map(str)),
    st.tuples(st.just(edm.DOUBLE), st.sampled_from(["NaN", "Infinity", "-Infinity"])),
    st.tuples(st.just(edm.DATETIME), st.integers(edm.TICKS_MIN, edm.TICKS_MAX).map(edm.text_of)),
    st.tuples(st.just(edm.GUID), st.uuids().map(str)),
    st.tuples(st.just(edm.BINARY), st.sampled_from(["", "AQ==", "AQI=", "AQID"])),
)
KEYS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\#?"), max_size=20
)


def members_of(typed: dict[str, tuple[str | None, object]]) -> Members:
    members: Members = {}
    for name, (annotation, value) in typed.items():
        kept, scalar = edm.canonical(name, value, annotation)
        if kept is not None:
            members[name + edm.TYPE_SUFFIX] = kept
        members[name] = scalar
    return members


@given(KEYS, KEYS, st.dictionaries(NAMES, VALUES, max_size=8).map(members_of))
def test_a_built_document_decodes_to_what_it_was_built_from(
    partition_key: str, row_key: str, properties: Members
) -> None:
    built = build((partition_key, row_key), TICKS, properties)

    read = Entity(partition_key, row_key, TICKS, built.document).properties()

    assert list(read.items()) == list(properties.items())
    assert [type(value) for value in read.values()] == [type(v) for v in properties.values()]


@given(KEYS, KEYS, st.dictionaries(NAMES, VALUES, max_size=8).map(members_of))
def test_a_document_sent_back_as_a_body_is_the_same_entity(
    partition_key: str, row_key: str, properties: Members
) -> None:
    built = build((partition_key, row_key), TICKS, properties)

    assert parse_body(b"{" + built.document) == EntityBody(partition_key, row_key, properties)


# Size


def test_an_entity_counts_as_the_service_counts_it() -> None:
    properties: Members = {"Name": "Ann", "Big@odata.type": edm.INT64, "Big": "1", "Yes": True}

    assert size_of(("p", "\U0001f600"), properties) == (
        4 + 2 * (1 + 2) + (8 + 8 + 10) + (8 + 6 + 8) + (8 + 6 + 1)
    )


def an_entity_of(size: int) -> Members:
    """Return properties that make an entity with one-letter keys this large."""
    properties: Members = {f"T{n:02}": "x" * 32_000 for n in range(16)}
    rest = size - size_of(("p", "r"), {**properties, "Rest": ""})
    assert rest >= 0
    assert rest % 2 == 0
    properties["Rest"] = "x" * (rest // 2)
    assert size_of(("p", "r"), properties) == size
    return properties


def test_an_entity_may_have_1_mib() -> None:
    assert build(("p", "r"), TICKS, an_entity_of(limits.ENTITY_BYTES_MAX)).key == ("p", "r")


def test_an_entity_over_1_mib_is_refused() -> None:
    properties = an_entity_of(limits.ENTITY_BYTES_MAX)
    properties["Y"] = True

    with pytest.raises(LimitExceededError) as error:
        build(("p", "r"), TICKS, properties)

    assert error.value.code == "EntityTooLarge"
    assert error.value.message == "The entity is larger than the maximum allowed size (1MB)."


@given(st.dictionaries(NAMES, VALUES, max_size=8).map(members_of))
def test_no_entity_is_larger_than_twice_its_document_and_16_a_property(
    properties: Members,
) -> None:
    document = build(("p", "r"), TICKS, properties).document

    assert size_of(("p", "r"), properties) <= 2 * len(document) + 16 * len(properties)


# Number of properties


def test_an_entity_may_have_252_properties() -> None:
    properties = {f"P{n}": n for n in range(252)}

    assert parse_body(body(**properties)).properties == properties
    assert build(("p", "r"), TICKS, {**properties}).properties() == properties


def test_annotations_do_not_count_as_properties() -> None:
    members: dict[str, object] = {}
    for number in range(252):
        members[f"P{number}@odata.type"] = edm.INT64
        members[f"P{number}"] = str(number)

    properties = parse_body(body(**members)).properties

    assert len(properties) == 504
    assert build(("p", "r"), TICKS, properties).properties() == properties


def test_nulls_do_not_count_as_properties() -> None:
    nulls = {f"N{n}": None for n in range(300)}

    assert parse_body(body(**nulls, Name="x")).properties == {"Name": "x"}


def test_253_properties_are_refused() -> None:
    properties = {f"P{n}": n for n in range(253)}

    assert code_of(lambda: parse_body(body(**properties))) == "TooManyProperties"
    assert code_of(lambda: build(("p", "r"), TICKS, {**properties})) == "TooManyProperties"


# Names of properties


@pytest.mark.parametrize(
    "name",
    [
        "A",
        "_",
        "_1",
        "a1_",
        "Straße",
        "ꀕ",
        "中文",
        "Ж",
        "x\u0301",
        "\N{ROMAN NUMERAL ONE}",
        "n" * 255,
        "etag",
        "ETag",
        "partitionkey",
        "class",
    ],
)
def test_a_property_name_is_an_identifier(name: str) -> None:
    assert check_property_name(name) == name
    assert parse_body(body(**{name: 1})).properties == {name: 1}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "123",
        "1a",
        "a-b",
        "a b",
        " a",
        "a.b",
        "a'b",
        'a"b',
        "a$",
        "$a",
        "\u0301x",
        "a\u2028",
        "😀",
        "a@b",
        "@a",
        "a@odata",
        "a/b",
    ],
)
def test_a_property_name_must_be_an_identifier(name: str) -> None:
    assert code_of(lambda: parse_body(body(**{name: 1}))) == "PropertyNameInvalid"


def test_a_property_name_of_256_characters_is_refused() -> None:
    assert code_of(lambda: parse_body(body(**{"n" * 256: 1}))) == "PropertyNameTooLong"


def test_names_that_differ_in_case_are_different_properties() -> None:
    properties = parse_body(body(Birthday=1, birthday=2)).properties

    assert properties == {"Birthday": 1, "birthday": 2}


# Keys


@pytest.mark.parametrize(
    "key",
    [
        "",
        " ",
        "   ",
        "'",
        "''",
        "%",
        "%25",
        "+",
        ",;:@&=",
        '"<>',
        "!$*",
        "中",
        "�",
        "😀",
        "\xa0",
        "x" * 512,
        "é" * 512,
        "😀" * 256,
    ],
)
def test_keys_that_are_allowed(key: str) -> None:
    assert check_key("RowKey", key) == key
    assert check_key_in_address(key) == key


@pytest.mark.parametrize("key", ["x" * 513, "\u00e9" * 513, "\U0001f600" * 256 + "x", "x" * 2048])
def test_a_key_over_1_kib_of_utf16_is_refused(key: str) -> None:
    assert code_of(lambda: check_key("RowKey", key)) == "PropertyValueTooLarge"
    assert code_of(lambda: check_key_in_address(key)) == "PropertyValueTooLarge"


FORBIDDEN = ["/", "\\", "#", "?", *map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\ud800"]


@pytest.mark.parametrize("character", FORBIDDEN)
@pytest.mark.parametrize("name", ["PartitionKey", "RowKey"])
def test_a_forbidden_character_in_a_key_of_a_body_is_out_of_range(
    name: str, character: str
) -> None:
    with pytest.raises(InvalidKeyError) as error:
        check_key(name, f"a{character}b")

    assert error.value.code == "OutOfRangeInput"
    assert error.value.message.startswith(f"The '{name}' parameter of value 'a")
    assert error.value.message.endswith("b' is out of range.")
    error.value.message.encode()


@pytest.mark.parametrize("character", FORBIDDEN[:2])
def test_a_slash_in_a_key_of_an_address_is_a_syntax_error(character: str) -> None:
    with pytest.raises(InvalidKeyError) as error:
        check_key_in_address(f"a{character}b")

    assert error.value.code == "InvalidInput"
    assert error.value.message == "Bad Request - Error in query syntax."


@pytest.mark.parametrize("character", FORBIDDEN[2:])
def test_another_forbidden_character_in_an_address_is_out_of_range(character: str) -> None:
    with pytest.raises(InvalidKeyError) as error:
        check_key_in_address(f"a{character}b")

    assert error.value.code == "OutOfRangeInput"
    assert error.value.message == "One of the request inputs is out of range."


@pytest.mark.parametrize("value", [5, True, 0.5, [], {}])
def test_a_key_is_a_text(value: object) -> None:
    assert code_of(lambda: parse_body(body(RowKey=value))) == "InvalidInput"


def test_a_key_is_of_type_string() -> None:
    assert code_of(lambda: parse_body(body(**{"RowKey@odata.type": edm.INT32}))) == "InvalidInput"


def test_keys_in_the_body_of_an_update_are_not_read() -> None:
    for key in ("other", "a/b", "k" * 600):
        parsed = parse_body(body(PartitionKey=key, RowKey=5, Age=1), is_insert=False)
        assert parsed == EntityBody(None, None, {"Age": 1})


def test_a_key_that_is_null_or_absent_is_none() -> None:
    assert parse_body(b"{}") == EntityBody(None, None, {})
    assert parse_body(b'{"PartitionKey":null,"RowKey":null}') == EntityBody(None, None, {})


@given(st.text(st.characters()))
def test_every_printable_text_fits_a_message(text: str) -> None:
    shown = printable(text)

    shown.encode()
    assert len(shown) <= 513
    assert shown.isprintable()


# Table names


@pytest.mark.parametrize("name", ["abc", "A12", "Z" * 63, "Tables1", "tabl"])
def test_table_names_that_are_allowed(name: str) -> None:
    assert check_table_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1ab",
        "a-b",
        "a_b",
        "a b",
        "abc\n",
        "\u00e9ab",
        "\u212aabc",
        "ab/",
        "$Metrics",
        "ab\u0661",
    ],
)
def test_other_characters_in_a_table_name_are_refused(name: str) -> None:
    with pytest.raises(InvalidKeyError) as error:
        check_table_name(name)

    assert error.value.code == "InvalidResourceName"
    assert error.value.message == "The specifed resource name contains invalid characters."


@pytest.mark.parametrize("name", ["a", "ab", "Z" * 64])
def test_a_table_name_has_3_to_63_characters(name: str) -> None:
    assert code_of(lambda: check_table_name(name)) == "OutOfRangeInput"


@pytest.mark.parametrize("name", ["tables", "Tables", "TABLES"])
def test_the_name_of_the_table_of_tables_is_reserved(name: str) -> None:
    assert code_of(lambda: check_table_name(name)) == "InvalidInput"


# Bodies


def test_a_body_gives_keys_and_typed_properties() -> None:
    parsed = parse_body(
        body(
            **{
                "odata.metadata": "x",
                "odata.etag": "x",
                "PartitionKey@odata.type": edm.STRING,
                "Timestamp@odata.type": edm.DATETIME,
                "Timestamp": "0001-01-01T00:00:00Z",
                "Name@odata.type": edm.STRING,
                "Name": "Ann",
                "Big@odata.type": edm.INT64,
                "Big": 64,
                "Half": 0.5,
                "Gone": None,
                "GoneToo@odata.type": edm.INT32,
                "GoneToo": None,
                "Stray@odata.type": edm.INT32,
                "etag": "mine",
            }
        )
    )

    expected: Members = {"Name": "Ann", "Big@odata.type": edm.INT64, "Big": "64"}
    assert parsed == EntityBody("p", "r", {**expected, "Half": 0.5, "etag": "mine"})


def test_an_annotation_may_follow_its_property() -> None:
    parsed = parse_body(b'{"A":"5","B":"x","A@odata.type":"Edm.Int64"}')

    assert list(parsed.properties.items()) == [
        ("A@odata.type", edm.INT64),
        ("A", "5"),
        ("B", "x"),
    ]


@pytest.mark.parametrize("value", ["null", '"x"', "5", "[]", "0.5", "{}"])
def test_any_timestamp_is_dropped(value: str) -> None:
    assert parse_body(b'{"Timestamp":%s,"A":1}' % value.encode()).properties == {"A": 1}


@pytest.mark.parametrize("annotation", ["5", "true", "[]", "{}"])
def test_an_annotation_is_a_text(annotation: str) -> None:
    assert (
        code_of(lambda: parse_body(b'{"A":"5","A@odata.type":%s}' % annotation.encode()))
        == "InvalidInput"
    )


def test_a_null_annotation_is_none() -> None:
    assert parse_body(b'{"A":"5","A@odata.type":null}').properties == {"A": "5"}


@pytest.mark.parametrize(
    ("number", "value"),
    [("5", 5), ("5.0", 5.0), ("1e2", 100.0), ("1E2", 100.0), ("-0", 0), ("-0.0", 0.0)],
)
def test_the_form_of_a_number_decides_its_type(number: str, value: float) -> None:
    stored = parse_body(b'{"A":%s}' % number.encode()).properties["A"]

    assert stored == value
    assert type(stored) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"x"',
        b"5",
        b"{",
        b'{"A":1',
        b'{"A":1}}',
        b'{"A":1,}',
        b"{'A':1}",
        b'{"A":01}',
        b'{"A":.5}',
        b'{"A":NaN}',
        b'{"A":Infinity}',
        b'{"A":1e400}',
        b'{"A":2147483648}',
        b'{"A":100000000000000000000}',
        b'{"A":%s}' % (b"9" * 5000),
        b'{"A":"\x01"}',
        b'{"A":"\xff"}',
        b'{"A":"\xed\xa0\x80"}',
        b'{"A":"\\ud800"}',
        b'{"A":"\\ud800\\u0041"}',
        b'{"A":"\\x"}',
        b'{"A":{"B":1}}',
        b'{"A":[1]}',
        b'\xef\xbb\xbf{"A":1}',
        b'{"A":' * 300 + b"1" + b"}" * 300,
        b'{"A":' * 100_000,
        b"[" * 100_000,
    ],
)
def test_an_invalid_entity_in_json_is_refused(text: bytes) -> None:
    assert code_of(lambda: parse_body(text)) == "InvalidInput"


@given(st.binary(max_size=60))
def test_no_bytes_bring_the_reader_down(text: bytes) -> None:
    try:
        parse_body(b'{"A":' + text)
    except PartitaError as error:
        assert isinstance(error, UsageError)  # noqa: PT017 - most are refused, some are not


# Repeated members


@pytest.mark.parametrize(
    "text",
    [
        b'{"A":1,"A":1}',
        b'{"A":1,"A":2}',
        b'{"A" :1,"A":2}',
        b'{"A"\t\r\n :1,"A":2}',
        b'{"A":1, "\\u0041":2}',
        b'{"A":null,"A":null}',
        b'{"RowKey":"a","RowKey":"b"}',
        b'{"PartitionKey":"a","PartitionKey":"a"}',
        b'{"Timestamp":1,"Timestamp":2}',
        b'{"odata.etag":"a","odata.etag":"b"}',
        b'{"A@odata.type":"Edm.Int64","A":"1","A@odata.type":"Edm.Int32"}',
        b'{"":1,"":2}',
        b'{"A":"\\":","A":1}',
        b'{"B":"\\"","A":":","A":"x\\\\"}',
        b'{"A":{"B":1},"A":1}',
    ],
)
def test_a_repeated_member_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidPropertyError) as error:
        parse_body(text)

    assert error.value.code == "DuplicatePropertiesSpecified"
    assert error.value.message == "A property is specified more than one time."


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"A":"\\":"}', '":'),
        (b'{"A":"\\" :\\":"}', '" :":'),
        (b'{"A":"\\\\\\":1,\\"A\\":2"}', '\\":1,"A":2'),
        (b'{"A" \n:\t":"}', ":"),
        (b'{"A":":::"}', ":::"),
        (b'{"\\u0041":"\\u003a"}', ":"),
    ],
)
def test_a_colon_after_a_quote_inside_a_text_is_not_a_member(text: bytes, value: str) -> None:
    assert parse_body(text).properties == {"A": value}


JSON_TEXTS = st.text(st.sampled_from('A":\\ ,{}\u00e9'), max_size=6)


@given(st.lists(st.tuples(JSON_TEXTS, JSON_TEXTS), max_size=5), st.booleans(), st.booleans())
def test_members_are_refused_if_and_only_if_one_repeats(
    pairs: list[tuple[str, str]], are_escaped: bool, are_spaced: bool
) -> None:
    colon = " \n: " if are_spaced else ":"
    text = ",".join(
        json.dumps(name, ensure_ascii=are_escaped) + colon + json.dumps(value)
        for name, value in pairs
    )

    if len({name for name, _ in pairs}) == len(pairs):
        assert parse_object(f"{{{text}}}".encode()) == dict(pairs)
    else:
        assert code_of(lambda: parse_object(f"{{{text}}}".encode())) == (
            "DuplicatePropertiesSpecified"
        )
