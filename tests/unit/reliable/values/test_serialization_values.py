import dataclasses
import enum
import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import GenericAlias
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DamageError, LimitExceededError, SchemaError
from partita.reliable.values import limits
from partita.reliable.values.serialization import (
    Schema,
    ValueCodec,
    decode_result,
    encode_result,
    stored_expiry,
    stored_version,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Bid(msgspec.Struct, frozen=True):
    seller: str
    item: str


class User(msgspec.Struct, frozen=True):
    email: str
    bids: tuple[Bid, ...] = ()


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclasses.dataclass(frozen=True)
class Day:
    when: date
    labels: frozenset[str] = frozenset()
    raw: bytes = b""


class Tree(msgspec.Struct, frozen=True):
    name: str
    children: "tuple[Tree, ...]" = ()


def codec(value_type: object) -> ValueCodec[Any]:
    return ValueCodec(value_type, schema=Schema())


def copying(value_type: object) -> ValueCodec[Any]:
    return ValueCodec(value_type, schema=Schema(), mutable="copy")


# Layout


def test_a_value_is_its_version_and_a_map() -> None:
    stored = codec(Bid).encode(Bid("ada", "lamp"), version=1)

    assert stored == b"\x00\x01\x82\xa6seller\xa3ada\xa4item\xa4lamp"


def test_an_expiry_follows_the_header() -> None:
    stored = codec(int).encode(7, version=1, expires=0x0102030405060708)

    assert stored == b"\x80\x01\x01\x02\x03\x04\x05\x06\x07\x08\x07"
    assert stored_expiry(stored) == 0x0102030405060708
    assert stored_version(stored) == 1
    assert codec(int).decode(stored) == 7
    assert codec(int).mutated_path(7, stored) is None


def test_a_value_without_expiry_never_expires() -> None:
    assert stored_expiry(codec(int).encode(7, version=1)) == 0


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x80", b"\x80\x01", b"\x80\x01" + b"\x00" * 7])
def test_a_cut_header_is_damage(raw: bytes) -> None:
    with pytest.raises(DamageError):
        codec(int).decode(raw)


def test_an_expiry_of_zero_under_its_bit_is_read_as_never() -> None:
    stored = b"\x80\x01" + bytes(8) + b"\x07"

    assert stored_expiry(stored) == 0
    assert codec(int).decode(stored) == 7


# Round trips

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS: list[tuple[object, st.SearchStrategy[Any]]] = [
    (str, TEXTS),
    (int, st.integers(-(2**63), 2**64 - 1)),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (None, st.none()),
    (bytes, st.binary(max_size=8)),
    (Decimal, st.decimals(allow_nan=False)),
    (datetime, st.datetimes(timezones=st.just(UTC)).map(lambda one: one.replace(fold=0))),
    (date, st.dates()),
    (time, st.times().map(lambda one: one.replace(fold=0))),
    (timedelta, st.timedeltas(timedelta(-9999), timedelta(9999))),
    (UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (Point, st.builds(Point, st.integers(0, 9), st.floats(0, 1))),
    (Bid, st.builds(Bid, TEXTS, TEXTS)),
    (Day, st.builds(Day, st.dates(), st.frozensets(TEXTS, max_size=3), st.binary(max_size=3))),
]


def around(
    inner: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    def structs(
        fields: list[tuple[Any, st.SearchStrategy[Any]]],
    ) -> tuple[Any, st.SearchStrategy[Any]]:
        names = [f"field_{index}" for index in range(len(fields))]
        kind = msgspec.defstruct(
            "Drawn", [(name, one[0]) for name, one in zip(names, fields, strict=True)], frozen=True
        )
        return kind, st.builds(kind, *(one[1] for one in fields))

    return st.one_of(
        inner.map(
            lambda one: (
                GenericAlias(tuple, (one[0], ...)),
                st.lists(one[1], max_size=3).map(tuple),
            )
        ),
        st.tuples(inner, inner).map(
            lambda two: (
                GenericAlias(tuple, (two[0][0], two[1][0])),
                st.tuples(two[0][1], two[1][1]),
            )
        ),
        inner.map(lambda one: (one[0] | None if one[0] else None, st.none() | one[1])),
        st.lists(inner, min_size=1, max_size=4).map(structs),
    )


TYPES = st.recursive(st.sampled_from(SCALARS), around, max_leaves=5)
TYPE_AND_VALUE = TYPES.flatmap(lambda one: st.tuples(st.just(one[0]), one[1]))


@given(TYPES.flatmap(lambda one: st.tuples(st.just(one[0]), st.lists(one[1], max_size=4))))
def test_many_values_are_read_as_each_is(drawn: tuple[object, list[object]]) -> None:
    value_type, values = drawn
    one = codec(value_type)
    stored = [one.encode(value, version=1) for value in values]

    found = one.decode_many(stored)

    assert found == values
    assert list(map(type, found)) == [type(one.decode(each)) for each in stored]


def test_values_with_an_expiry_or_of_another_version_are_left_to_decode() -> None:
    one = codec(int)
    usual = one.encode(1, version=1)

    assert one.decode_many([usual, usual]) == [1, 1]
    assert one.decode_many([usual, one.encode(1, version=1, expires=5)]) is None
    assert one.decode_many([usual, b"\x00\x07\x01"]) is None
    assert one.decode_many([usual, b""]) is None
    assert codec(bytes).decode_many([codec(bytes).encode(bytes(300_000), version=1)]) is None


@given(TYPE_AND_VALUE)
def test_what_is_read_is_what_was_written(drawn: tuple[object, object]) -> None:
    value_type, value = drawn
    one = codec(value_type)

    stored = one.encode(value, version=1)
    again = one.decode(stored)

    assert one.encode(again, version=1) == stored
    assert again == value
    assert type(again) is type(value)
    assert one.mutated_path(value, stored) is None
    assert one.mutated_path(again, stored) is None
    assert one.encode(again, version=1, stored=stored) == stored


def test_sets_and_maps_are_written_in_one_order_in_every_process() -> None:
    program = (
        "import enum, msgspec\n"
        "from partita.reliable.values.serialization import Schema, ValueCodec\n"
        "C = enum.Enum('C', [(f'M{n}', f'm{n}') for n in range(9)])\n"
        "B = msgspec.defstruct('B', [('c', C), ('f', float)], frozen=True)\n"
        "T = msgspec.defstruct('T', [\n"
        "    ('a', frozenset[str]), ('b', frozenset[B]), ('c', dict[int, frozenset[C]]),\n"
        "    ('d', frozenset[int | None]), ('e', dict[str, int])], frozen=True)\n"
        "names = {f'k{n}' for n in range(9)}\n"
        "value = T(frozenset(names), frozenset(B(c, 1.5) for c in C),\n"
        "    {hash(n) % 97: frozenset(C) for n in range(9)}, frozenset({None, 1, 2}),\n"
        "    {name: 1 for name in names})\n"
        "codec = ValueCodec(T, schema=Schema(), mutable='copy')\n"
        "stored = codec.encode(value, version=1)\n"
        "assert codec.decode(stored) == value\n"
        "assert codec.mutated_path(codec.decode(stored), stored) is None\n"
        "print(stored.hex())"
    )

    written = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(written) == 1


def test_copies_are_fresh_on_each_read() -> None:
    lists = copying(list[int])
    stored = lists.encode([1, 2], version=1)

    first, second = lists.decode(stored), lists.decode(stored)
    first.append(3)

    assert second == [1, 2]
    assert lists.decode(stored) == [1, 2]


def test_maps_whose_keys_are_no_texts_are_stored() -> None:
    anything = copying(Any)
    value = {3: {"b": 1, "a": [1.5, None]}, 1: {2: b"x"}}

    assert anything.decode(anything.encode(value, version=1)) == value


# Wrong values


@pytest.mark.parametrize(
    ("value_type", "value", "path"),
    [
        (User, 5, ""),
        (User, None, ""),
        (User, {"email": "a"}, ""),
        (User, Bid("a", "b"), ""),
        (User, User(5), "email"),  # type: ignore[arg-type]
        (User, User("a", [Bid("a", "b")]), "bids"),  # type: ignore[arg-type]
        (User, User("a", (Bid("a", "b"), Bid("a", None))), "bids[1].item"),  # type: ignore[arg-type]
        (User, User("a", ({"seller": "a", "item": "b"},)), "bids[0]"),  # type: ignore[arg-type]
        (User, User("a", (Bid,)), ""),  # type: ignore[arg-type]
        (str, "\ud800", ""),
        (str, 5, ""),
        (str, UUID(int=1), ""),
        (int, True, ""),
        (int, 1.5, ""),
        (bool, 1, ""),
        (float, "1", ""),
        (bytes, bytearray(b"a"), ""),
        (bytes, "YQ==", ""),
        (Decimal, Decimal("sNaN"), ""),
        (datetime, "2024-01-01T00:00:00Z", ""),
        (Colour, "red", ""),
        (Colour, "green", ""),
        (Day, Day(date(2024, 1, 1), {"a"}), "labels"),  # type: ignore[arg-type]
        (Day, Day(date(2024, 1, 1), raw=bytearray(b"a")), "raw"),  # type: ignore[arg-type]
        (frozenset[int], {1, 2}, ""),
        (tuple[int, ...], [1, 2], ""),
        (tuple[int, str], (1, "a", 2), ""),
        (tuple[frozenset[int], ...], (frozenset({1}), {2}), "[1]"),
        (object, object(), ""),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_path(
    value_type: object, value: object, path: str
) -> None:
    if value_type is object:
        value_type = User

    with pytest.raises(SchemaError) as error:
        codec(value_type).encode(value, version=1)

    assert error.value.code == "WrongValueType"
    where = str(error.value.facts["path"])
    assert where.replace("[...]", "[1]") == path


def test_a_subclass_with_more_than_its_parent_is_refused() -> None:
    class Admin(User, frozen=True):
        rights: list[str] = []

    with pytest.raises(SchemaError) as error:
        codec(User).encode(Admin("a"), version=1)

    assert error.value.code == "WrongValueType"


def test_an_integer_where_a_float_is_declared_is_the_same_number() -> None:
    point = codec(Point)

    assert point.decode(point.encode(Point(1, 2), version=1)) == Point(1, 2.0)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_an_integer_beyond_64_bits_is_refused(number: int) -> None:
    with pytest.raises(LimitExceededError) as error:
        codec(tuple[int, ...]).encode((1, number), version=1)

    assert error.value.code == "IntegerTooLarge"


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_integers_of_64_bits_are_stored(number: int) -> None:
    assert codec(int).decode(codec(int).encode(number, version=1)) == number


def test_the_largest_value_fits_and_the_next_does_not() -> None:
    blobs = codec(bytes)
    largest = bytes(limits.VALUE_BYTES_MAX - 5)

    assert blobs.decode(blobs.encode(largest, version=1)) == largest
    with pytest.raises(LimitExceededError) as error:
        blobs.encode(largest + b"x", version=1)
    assert error.value.code == "ValueTooLarge"


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(LimitExceededError) as error:
        copying(list[Any]).encode(loop, version=1)

    assert error.value.code == "ValueTooDeep"


def test_a_deep_tree_is_stored_and_a_bottomless_one_refused() -> None:
    deep = Tree("leaf")
    for _ in range(50):
        deep = Tree("branch", (deep,))
    assert codec(Tree).decode(codec(Tree).encode(deep, version=1)) == deep

    for _ in range(5000):
        deep = Tree("branch", (deep,))
    with pytest.raises(LimitExceededError):
        codec(Tree).encode(deep, version=1)
    while deep.children:  # so that no destructor runs out of stack
        deep = deep.children[0]


def test_rules_of_the_type_hold_when_a_value_is_written() -> None:
    class Account(msgspec.Struct, frozen=True):
        cents: int

        def __post_init__(self) -> None:
            if self.cents == 13:
                raise ZeroDivisionError

    one = codec(Account)
    stored = one.encode(Account(12), version=1)
    with pytest.raises(DamageError):
        one.decode(stored.replace(b"\x0c", b"\x0d"))


def test_values_compared_by_identity_are_stored() -> None:
    class Marker(msgspec.Struct, frozen=True, eq=False):
        name: str
        score: float = 0.0

    markers = codec(tuple[Marker, ...])

    assert markers.decode(markers.encode((Marker("a"),), version=1))[0].name == "a"
    with pytest.raises(SchemaError):
        markers.encode([Marker("a")], version=1)


# Hostile bytes

HOSTILE = st.binary(max_size=40) | TYPE_AND_VALUE.flatmap(
    lambda drawn: st.just(codec(drawn[0]).encode(drawn[1], version=1)).flatmap(
        lambda raw: st.tuples(st.integers(0, len(raw)), st.binary(max_size=3)).map(
            lambda change: raw[: change[0]] + change[1] + raw[change[0] + len(change[1]) :]
        )
    )
)
READERS = [codec(one) for one in (User, Day, Point, Tree, int, Colour, datetime, Decimal)]
READERS += [copying(one) for one in (Any, dict[int, str], set[float], list[Any])]


@given(st.sampled_from(READERS[:8]), HOSTILE)
def test_hostile_bytes_among_others_are_left_to_decode(reader: ValueCodec[Any], raw: bytes) -> None:
    found = reader.decode_many([raw])

    if found is not None:
        assert found == [reader.decode(raw)]


@given(st.sampled_from(READERS), HOSTILE)
def test_hostile_bytes_are_damage_or_no_such_type(reader: ValueCodec[Any], raw: bytes) -> None:
    try:
        reader.decode(raw)
        stored_expiry(raw)
        stored_version(raw)
    except (DamageError, SchemaError):
        pass


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff\x01",
        b"\xa1\xff",
        b"\xc1",
        b"\x81\x80\x01",
        b"\x07\x07",
    ],
)
def test_bytes_that_are_no_messagepack_are_damage(payload: bytes) -> None:
    with pytest.raises(DamageError) as error:
        copying(Any).decode(b"\x00\x01" + payload)

    assert error.value.code == "ValueUnreadable"


def test_a_stored_value_of_another_type_says_where() -> None:
    stored = b"\x00\x01" + msgspec.msgpack.encode({"email": "a", "bids": [{"seller": "b"}]})

    with pytest.raises(SchemaError, match=r"not a User at bids\[0\]: Object missing") as error:
        codec(User).decode(stored)

    assert error.value.code == "ValueMismatch"


# Results


@pytest.mark.parametrize(
    ("value", "result_type"),
    [
        (None, None),
        (5, int),
        ("text", str),
        (User("a", (Bid("b", "c"),)), User),
        ((1, "a"), tuple[int, str]),
        ([1, {"a": None}], Any),
        (Day(date(2024, 1, 1)), Day),
    ],
)
def test_a_result_is_kept_as_it_was(value: object, result_type: object) -> None:
    assert decode_result(encode_result(value, result_type), result_type) == value


@pytest.mark.parametrize("value", [object(), 2**70, "\ud800", lambda: None, {1: 2, "a": object()}])
def test_a_result_that_cannot_be_kept_is_refused(value: object) -> None:
    with pytest.raises(SchemaError) as error:
        encode_result(value)

    assert error.value.code == "ResultNotEncodable"


def test_a_result_of_another_type_than_declared_is_refused() -> None:
    with pytest.raises(SchemaError) as error:
        encode_result("5", int)

    assert error.value.code == "ResultMismatch"


def test_a_large_result_is_refused() -> None:
    with pytest.raises(LimitExceededError) as error:
        encode_result("x" * limits.RESULT_BYTES_MAX)

    assert error.value.code == "ResultTooLarge"


def test_a_damaged_result_is_damage() -> None:
    with pytest.raises(DamageError):
        decode_result(b"\xa5ab", str)
