"""A generated reader returns what the general parser returns, or leaves the body to it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import PartitaError
from partita.service.tables.wire import read_body
from partita.tables import body_readers, edm
from partita.tables.body_readers import READERS, make_reader
from partita.tables.entity import decode_flat, parse_body
from partita.tables.pushdown import Described, columns_of

USUAL: dict[str, list[tuple[str | None, object]]] = {
    "text": [(None, "a"), (edm.STRING, "Zoë"), (None, "x" * 40), (None, 'q"\\')],
    "number": [(None, 7), (None, 2.5), (None, 1e300), (None, 12.0)],
    "int": [(edm.INT32, -5)],
    "double": [(edm.DOUBLE, 0.5)],
    "boolean": [(None, True), (edm.BOOLEAN, False)],
    "long": [(edm.INT64, "12345678901")],
    "time": [(edm.DATETIME, "2024-03-01T10:00:00Z"), (edm.DATETIME, "2024-03-01T10:00:00.5Z")],
    "guid": [(edm.GUID, "00000000-0000-4000-8000-0000000000aB")],
    "binary": [(edm.BINARY, "AAECAwQFBgcICQoLDA0ODxAREhM=")],
}
ODD: list[object] = [
    *("", "\x00", "\x01t", "a\nb", "007", "-1", "0", "1e3", "NaN", "Infinity", "\x7f", "²"),
    *("2024-02-30T00:00:00Z", "1600-01-01T00:00:00Z", "2024-03-01", "2024-03-01T10:00:00.100Z"),
    *(
        "2024-03-01 10:00:00Z",
        "2024-W09-5T10:00:00Z",
        "20240301T101000+01:00",
        "AAE",
        "AA==",
        "A A=",
    ),
    *("9" * 18, "9" * 19, "x" * 16_384, "x" * 16_385, "x" * 32_769, "y" * 36, "y" * 37, "\ufffe"),
    *(0, -0.0, 2**31, -(2**31), 2**31 - 1, 2**53, 2**63, 1.5e308, 9007199254740993.0),
    *(True, False, None, [], {"a": 1}),
]
annotations = st.sampled_from([None, *edm._PARSERS, "Edm.Other"])
texts = st.text(max_size=45)
odd_values = st.one_of(st.sampled_from(ODD), texts, st.integers(), st.floats(allow_nan=False))
kinds = st.lists(st.sampled_from(sorted(USUAL)), max_size=5)


@pytest.fixture(autouse=True)
def no_readers() -> Iterator[None]:
    kept = dict(READERS)
    READERS.clear()
    body_readers._bodies_seen.clear()
    yield
    READERS.clear()
    READERS.update(kept)


def body_of(pairs: list[tuple[str | None, object]], *keys: object) -> bytes:
    members: dict[str, object] = dict(zip(("PartitionKey", "RowKey"), keys, strict=True))
    for number, (annotation, value) in enumerate(pairs):
        if annotation is not None:
            members[f"P{number}{edm.TYPE_SUFFIX}"] = annotation
        members[f"P{number}"] = value
    return json.dumps(members).encode("utf-8", "surrogatepass")


def outcome(body: bytes, *, is_insert: bool, reads: Any = parse_body) -> object:
    try:
        found = reads(body, is_insert=is_insert)
    except PartitaError as error:
        return error.code, error.message, error.facts
    properties = found.properties
    typed = [(name, type(value), repr(value)) for name, value in properties.items()]
    return found.partition_key, found.row_key, typed, columns_of(properties)


@given(kinds, st.data(), st.booleans())
def test_a_reader_agrees_with_the_parser(
    kinds: list[str], data: st.DataObject, is_insert: bool
) -> None:
    first = [data.draw(st.sampled_from(USUAL[kind])) for kind in kinds]
    reader = make_reader(decode_flat(body_of(first, "p", "r")))
    assert reader is not None

    second = [
        (annotation, data.draw(st.one_of(st.just(value), odd_values)))
        for annotation, value in first
    ]
    keys = [
        data.draw(st.sampled_from(["p", "", "a/b", "é" * 300, "x" * 513, "\x81"])) for _ in "pr"
    ]
    body = body_of(second, *keys)
    READERS[tuple(json.loads(body))] = reader

    assert outcome(body, is_insert=is_insert, reads=read_body) == outcome(body, is_insert=is_insert)


@given(st.lists(st.tuples(annotations, odd_values), max_size=4), st.data())
def test_a_reader_of_any_valid_body_agrees_with_the_parser(
    pairs: list[tuple[str | None, object]], data: st.DataObject
) -> None:
    body = body_of(pairs, "p", "r")
    if isinstance(outcome(body, is_insert=True), tuple) and len(outcome(body, is_insert=True)) == 3:  # type: ignore[arg-type]
        return  # it is refused, and readers are made of valid bodies only
    reader = make_reader(decode_flat(body))
    if reader is not None:
        READERS[tuple(json.loads(body))] = reader
    other = body_of([(a, data.draw(st.one_of(st.just(v), odd_values))) for a, v in pairs], "p", "r")

    for each in (body, other):
        assert outcome(each, is_insert=True, reads=read_body) == outcome(each, is_insert=True)


@pytest.mark.parametrize(
    "body",
    [
        b'{"PartitionKey":"p","RowKey":"r","P0":1,"P0":2}',
        b'{"PartitionKey":"p","RowKey":"r","P0":"a","P0":"a"}',
        b'{"PartitionKey":"p","RowKey":"r","P0":"\\ud800"}',
        b'{"PartitionKey":"p","RowKey":"r","P0":"a\\"b"}',
        b'{"PartitionKey":"p", "RowKey":"r" ,\n "P0":"\\u0041"}',
        b'{"PartitionKey":"p","RowKey":"r","P0":"a"}x',
        b'{"PartitionKey":"p","RowKey":"r","P0":1e999}',
        b'{"PartitionKey":null,"RowKey":"r","P0":"a"}',
        b'{"PartitionKey":5,"RowKey":"r","P0":"a"}',
        b'{"RowKey":"r","PartitionKey":"p","P0":"a"}',
        b"[]",
    ],
)
@pytest.mark.parametrize("value", ["a", 1])
def test_repeated_escaped_and_broken_members_are_left_to_the_parser(
    body: bytes, value: object
) -> None:
    reader = make_reader({"PartitionKey": "p", "RowKey": "r", "P0": value})
    assert reader is not None
    READERS["PartitionKey", "RowKey", "P0"] = reader

    for is_insert in (True, False):
        parsed = outcome(body, is_insert=is_insert)
        assert outcome(body, is_insert=is_insert, reads=read_body) == parsed


def test_a_shape_gets_a_reader_after_some_bodies() -> None:
    body = body_of([(None, "a"), (edm.INT64, "7")], "p", "r")

    read = [read_body(body) for _ in range(body_readers.BODIES_BEFORE + 1)]

    assert type(read[-2].properties) is dict
    assert type(read[-1].properties) is Described
    assert read[-1] == read[0]


def test_many_shapes_make_a_bounded_number_of_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_readers, "BODIES_BEFORE", 1)
    monkeypatch.setattr(body_readers, "READERS_MAX", 5)
    monkeypatch.setattr(body_readers, "_SHAPES_COUNTED_MAX", 8)

    for number in range(40):
        body = json.dumps({"PartitionKey": "p", "RowKey": "r", f"P{number}": 1}).encode()
        assert read_body(body).properties == {f"P{number}": 1}

    assert len(READERS) == 5
    assert len(body_readers._bodies_seen) <= 8


def test_names_of_hostile_bodies_are_not_code() -> None:
    members = {"PartitionKey": "p", "RowKey": "r", "odata.x'+exit()+'": "a", "P@odata.{v}": "b"}

    body = json.dumps(members).encode()
    reader = make_reader(decode_flat(body))

    assert reader is not None
    assert reader(decode_flat(body), body.count(b'"'), True) == parse_body(body)


@pytest.mark.parametrize("other", [edm.STRING, edm.INT32, None])
def test_keys_may_have_the_annotation_that_the_python_sdk_sends(other: str | None) -> None:
    members = {"PartitionKey": "p", "PartitionKey@odata.type": edm.STRING, "RowKey": "r", "N": 1}
    reader = make_reader(members)
    assert reader is not None
    READERS[tuple(members)] = reader

    body = json.dumps(members | {"PartitionKey@odata.type": other}).encode()

    assert outcome(body, is_insert=True, reads=read_body) == outcome(body, is_insert=True)
    assert make_reader(members | {"PartitionKey@odata.type": edm.INT32}) is None


def test_an_empty_body_is_left_to_the_parser() -> None:
    for _ in range(body_readers.BODIES_BEFORE + 1):
        assert outcome(b"{}", is_insert=False, reads=read_body) == outcome(b"{}", is_insert=False)

    assert READERS == {}
