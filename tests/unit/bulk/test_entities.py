"""Documents, canonical forms and digests of entities."""

import json

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from partita.bulk.canonical import MISSES_MAX, CanonicalForms, Digest, canonical
from partita.bulk.entities import (
    Typed,
    cut_lines,
    decode_keys,
    lines_of,
    parse_entity,
    print_entity,
    without_etag,
)
from partita.bulk.wire import Page
from partita.errors import InvalidPropertyError
from support.bulk_strategies import documents, entities


@given(entities())
def test_a_document_is_read_back_as_the_same_entity(entity: Typed) -> None:
    found = parse_entity(print_entity(entity))

    assert found == entity
    assert [type(value) for value in found.properties.values()] == [
        type(value) for value in entity.properties.values()
    ]


@given(entities())
def test_the_canonical_form_ignores_order_etag_and_timestamp(entity: Typed) -> None:
    document = print_entity(entity)
    members = json.loads(document)
    turned = {"odata.etag": "W/1", "Timestamp": "2026-01-01T00:00:00Z"}
    turned |= dict(reversed(list(members.items())))

    assert canonical(msgspec.json.encode(turned)) == canonical(document)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'"A":-0.0', b'"A":0.0'),
        (b'"A@odata.type":"Edm.Double","A":"3"', b'"A":3.0'),
        (b'"A@odata.type":"Edm.Int64","A":"+07"', b'"A@odata.type":"Edm.Int64","A":"7"'),
        (
            b'"A@odata.type":"Edm.DateTime","A":"2024-01-01T00:00:00.1000000Z"',
            b'"A@odata.type":"Edm.DateTime","A":"2024-01-01T02:00:00.1+02:00"',
        ),
        (
            b'"A@odata.type":"Edm.Guid","A":"ABCDEF00-0000-4000-8000-00000000000F"',
            b'"A@odata.type":"Edm.Guid","A":"abcdef00-0000-4000-8000-00000000000f"',
        ),
        (b'"A@odata.type":"Edm.String","A":"x"', b'"A":"x","B":null'),
        (b'"A@odata.type":"Edm.Binary","A":"AA=="', b'"A":"AA==","A@odata.type":"Edm.Binary"'),
    ],
)
def test_two_spellings_of_a_value_have_one_canonical_form(one: bytes, other: bytes) -> None:
    keys = b'{"PartitionKey":"p","RowKey":"r",%s}'

    assert canonical(keys % one) == canonical(keys % other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'"A":3', b'"A":3.0'),
        (b'"A":3', b'"A@odata.type":"Edm.Int64","A":"3"'),
        (b'"A":"NaN"', b'"A@odata.type":"Edm.Double","A":"NaN"'),
        (b'"A":""', b'"B":""'),
        (b'"A":true', b'"A":1'),
    ],
)
def test_values_of_two_types_have_two_canonical_forms(one: bytes, other: bytes) -> None:
    keys = b'{"PartitionKey":"p","RowKey":"r",%s}'

    assert canonical(keys % one) != canonical(keys % other)


@given(entities(), entities())
def test_forms_of_many_documents_are_those_of_each(one: Typed, other: Typed) -> None:
    forms = CanonicalForms()

    for entity in (one, other, one, other, other, one):
        document = print_entity(entity)
        assert forms.of(document) == canonical(document)


@given(st.lists(entities(), max_size=4))
def test_forms_of_lines_are_those_of_each_line(found: list[Typed]) -> None:
    forms = CanonicalForms()
    for page in (found, found[:1] * 3, found):
        lines = [print_entity(entity) for entity in page]

        assert forms.of_lines(b"".join(line + b"\n" for line in lines)) == [
            canonical(line) for line in lines
        ]


@pytest.mark.parametrize(
    "odd",
    [
        b'"A@odata.type":"Edm.Int64","A":"+07"',
        b'"A@odata.type":"Edm.Int64","A":"-7"',
        b'"A@odata.type":"Edm.String","A":"7"',
        b'"A@odata.type":"Edm.DateTime","A":"2024-01-01T00:00:00Z"',
        b'"A":"7"',
        b'"A":"7","A@odata.type":"Edm.Int64"',
        b'"A@odata.type":"Edm.Int64","A":"7","B":null',
        b'"A@odata.type":"Edm.Int64","A":"7","odata.id":"x"',
        b'"A@odata.type":"Edm.Int64","A":"7","Timestamp":"2024-01-01T00:00:00Z"',
    ],
)
def test_a_document_of_another_spelling_has_its_own_form(odd: bytes) -> None:
    keys = b'{"PartitionKey":"p","RowKey":"r",%s}'
    forms = CanonicalForms()
    for _ in range(2):
        forms.of(keys % b'"A@odata.type":"Edm.Int64","A":"7"')

    assert forms.of(keys % odd) == canonical(keys % odd)


@pytest.mark.parametrize("number", [b"-0.0", b"1e5", b"0.10", b"123456789012345678901234", b"1E-7"])
def test_a_number_has_one_form_whatever_was_seen_before(number: bytes) -> None:
    keys = b'{"PartitionKey":"p","RowKey":"r","A":%s}'
    forms = CanonicalForms()
    forms.of(keys % b"0.5")

    assert forms.of(keys % number) == canonical(keys % number)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'"A":null', b'"A":"x"'),
        (b'"A@odata.type":"Edm.String","A":"7"', b'"A@odata.type":"Edm.Int64","A":"7"'),
        (b'"A@odata.type":"Edm.Int64","A":null', b'"A@odata.type":"Edm.Int64","A":"7"'),
        (b'"A":0.5', b'"A":3'),
        (b'"A":3', b'"A":3.0'),
        (b'"A":3', b'"A":-0.0'),
        (b'"A":true', b'"A":1'),
        (b'"A":"1"', b'"A":1'),
        (b'"A":"x","Timestamp":"y"', b'"A":"x","Timestamp":null'),
    ],
)
def test_documents_of_the_same_members_have_their_own_forms(one: bytes, other: bytes) -> None:
    keys = b'{"PartitionKey":"p","RowKey":"r",%s}'
    for found in ((one, other, one), (other, one, other)):
        lines = [keys % each for each in found]

        forms = CanonicalForms()
        assert [forms.of(line) for line in lines] == [canonical(line) for line in lines]
        text = b"".join(line + b"\n" for line in lines)
        assert forms.of_lines(text) == [canonical(line) for line in lines]


_SPELLINGS = st.sampled_from(
    [
        *(b'"%%s":%s' % each for each in (b"null", b"0", b"-0.0", b"0.0", b"3", b"3.0", b"1e2")),
        *(b'"%%s":%s' % each for each in (b"true", b'"x"', b'"-0.0"', rb'"\u0041\n\/"')),
        *(
            b'"%%s@odata.type":"Edm.%s","%%s":%s' % each
            for each in (
                (b"Int64", b'"7"'),
                (b"Int64", b'"07"'),
                (b"Int64", b"null"),
                (b"String", b'"7"'),
                (b"Int32", b"7"),
                (b"Double", b'"NaN"'),
                (b"DateTime", b'"2024-01-01T00:00:00Z"'),
                (b"DateTime", b'"2024-01-01T00:00:00.10Z"'),
                (b"Binary", b'"AB=="'),
            )
        ),
    ]
)


@given(st.lists(st.tuples(_SPELLINGS, _SPELLINGS), max_size=8), st.integers(1, 4))
def test_any_spellings_in_any_order_have_their_own_forms(
    found: list[tuple[bytes, bytes]], size: int
) -> None:
    lines = [
        b'{"PartitionKey":"p","RowKey":"r",%s,%s}'
        % (one.replace(b"%s", b"A"), other.replace(b"%s", b"B"))
        for one, other in found
    ]
    forms = CanonicalForms()

    for first in range(0, len(lines), size):
        part = lines[first : first + size]
        text = b"".join(line + b"\n" for line in part)
        assert forms.of_lines(text) == [canonical(line) for line in part]


def test_entities_of_too_many_shapes_have_their_forms() -> None:
    forms = CanonicalForms()
    for number in range(2 * MISSES_MAX):
        document = b'{"PartitionKey":"p","RowKey":"r","A%d":%d}' % (number, number)
        assert forms.of(document) == canonical(document)


@given(st.lists(documents(), max_size=6), st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_the_order(found: list[bytes], random: object) -> None:
    one, other = Digest(), Digest()
    for document in found:
        one.add(document)
    for document in reversed(found):
        part = Digest()
        part.add(document)
        other.merge(part)

    assert one == other
    assert Digest.parse(one.count, one.text) == one


def test_an_etag_is_cut_without_decoding_the_rest() -> None:
    quoted = rb'{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":"r","A":"\",\""}'

    assert without_etag(quoted) == rb'{"PartitionKey":"p","RowKey":"r","A":"\",\""}'
    assert without_etag(b'{"A":1,"odata.etag":"x"}') == b'{"A":1}'
    assert without_etag(b'{"odata.etag":"x","odata.id":"y","A":1}') == b'{"A":1}'


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [rb'{"odata.etag":"W/\"1\"","A":"x"}'] * 2,
        [rb'{"odata.etag":"W/\"1\"","A":"\n{\"odata.etag\":\""}', b'{"odata.etag":"2","A":1}'],
        [b'{"odata.etag":"1","A":1}', b'{"A":1,"odata.etag":"1"}', b'{"A":1}'],
        [b'{"odata.etag":"1"}', b'{"odata.etag":"1","odata.id":"x","A":1}'],
        [b'{"odata.etag":"1","A":1}', b'{"odata.etag":"1","odata.id":"x","A":1}'],
        [b'{"odata.etag":"1","A":1,"odata.id":"x"}'],
    ],
)
def test_lines_of_a_page_are_its_documents_without_etags(documents: list[bytes]) -> None:
    found = lines_of([msgspec.Raw(document) for document in documents])

    assert found == b"".join(without_etag(document) + b"\n" for document in documents)


_HEADS = st.sampled_from(
    [b"", b'"odata.metadata":"http://h/$metadata#T",', b'"odata.metadata":"",']
)
_ETAGS = st.sampled_from(["W/\"datetime'2026'\"", "1", "", "a\\", 'a",', '","', "},{"])


@given(_HEADS, st.lists(st.tuples(_ETAGS, documents()), max_size=5))
def test_the_lines_of_a_page_are_cut_as_they_are_decoded(
    head: bytes, found: list[tuple[str, bytes]]
) -> None:
    texts = [b'{"odata.etag":%s,%s' % (json.dumps(one).encode(), text[1:]) for one, text in found]
    body = b'{%s"value":[%s]}' % (head, b",".join(texts))

    lines = lines_of(Page(body).entities)

    assert cut_lines(body) in (None, lines)
    if found and not any(set(etag) & set("\\,") for etag, _ in found):
        assert cut_lines(body) == lines
    last = decode_keys(found[-1][1]) if found else None
    assert Page(body).last_keys() == (last and (last.partition_key, last.row_key))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"value":[]}',
        b'{"value":[{"PartitionKey":"p"}]}',
        b'{"value":[{"odata.etag":"1","A":1}]}',
        b'{"value":[{"odata.etag":"1","odata.id":"x","PartitionKey":"p"}]}',
        b'{"value":[{"odata.etag":"1" ,"A":"x","PartitionKey":"p"}]}',
        b'{"value":[{"odata.etag":"1","PartitionKey":"p"}, {"odata.etag":"1","PartitionKey":"q"}]}',
        b'{"value":[{"odata.etag":"1","PartitionKey":\n"p"}]}',
        b'{"value":[{"odata.etag":"1","PartitionKey":"p"}],"odata.count":1}',
        b'{"other":1,"value":[{"odata.etag":"1","PartitionKey":"p"}]}',
    ],
)
def test_a_page_of_another_form_is_not_cut(body: bytes) -> None:
    lines = cut_lines(body)

    # With a space between two documents both are on one line, which is not one document.
    assert lines is None or b"}, {" in lines


def test_lines_of_another_shape_are_not_added() -> None:
    line = b'{"PartitionKey":"p","RowKey":"r","A":1}\n'
    digest = Digest()

    assert not digest.add_equal_lines(line)  # the first shape is not known yet
    digest.add_lines(line)
    for odd in (b'{"PartitionKey":"p"}\n', line + b"{", line[:-2], line[:-1] + b", {}\n"):
        assert not digest.add_equal_lines(odd)
    assert digest.add_equal_lines(line * 2)
    assert digest.count == 3


def test_a_document_without_keys_is_refused() -> None:
    for document in (b"{}", b'{"PartitionKey":"p"}', b'{"PartitionKey":null,"RowKey":"r"}'):
        with pytest.raises(InvalidPropertyError):
            parse_entity(document)
        with pytest.raises(msgspec.ValidationError):
            decode_keys(document)
