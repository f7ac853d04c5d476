import dataclasses
import enum
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NewType
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DamageError, InvalidKeyError, LimitExceededError, SchemaError
from partita.keys import Key, encode_key
from partita.reliable.values import limits
from partita.reliable.values.key_codec import encode_index_key, key_codec


class Place(NamedTuple):
    shelf: str
    box: int


class Lot(msgspec.Struct, frozen=True):
    seller: str
    item: int


@dataclasses.dataclass(frozen=True)
class Day:
    when: date
    who: UUID


class Nested(msgspec.Struct, frozen=True):
    lot: Lot
    tags: tuple[str, ...] = ()


TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("a\x00\x01\xff", max_size=4)
INTEGERS = st.integers() | st.integers(-300, 300) | st.sampled_from([2**63, 2**64, 2**64 - 1])
MOMENTS = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))]),
)
BLOBS = st.binary(max_size=20) | st.binary(max_size=3).map(lambda raw: b"\x00" + raw)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
CASES: list[tuple[object, str, st.SearchStrategy[Any]]] = [
    (bool, "bool", st.booleans()),
    (int, "int", INTEGERS),
    (str, "str", TEXTS),
    (bytes, "bytes", BLOBS),
    (UUID, "UUID", st.uuids()),
    (date, "date", st.dates()),
    (datetime, "datetime", MOMENTS),
    (Decimal, "Decimal", DECIMALS),
    (tuple[str, int], "tuple[str,int]", st.tuples(TEXTS, INTEGERS)),
    (tuple[int, ...], "tuple[int,...]", st.lists(INTEGERS, max_size=3).map(tuple)),
    (tuple[()], "tuple[()]", st.just(())),
    (
        tuple[bytes, tuple[str, ...], bool],
        "tuple[bytes,tuple[str,...],bool]",
        st.tuples(BLOBS, st.lists(TEXTS, max_size=2).map(tuple), st.booleans()),
    ),
    (Place, "tuple[str,int]", st.builds(Place, TEXTS, INTEGERS)),
]
ONE_CASE = st.sampled_from(CASES)
CASE_AND_KEY = ONE_CASE.flatmap(lambda case: st.tuples(st.just(case), case[2]))
CASE_AND_KEYS = ONE_CASE.flatmap(lambda case: st.tuples(st.just(case), case[2], case[2]))


@given(CASE_AND_KEY)
def test_the_bytes_are_those_of_keys(drawn: tuple[tuple[object, str, object], Key]) -> None:
    (key_type, name, _), key = drawn

    codec = key_codec(key_type)

    assert codec.name == name
    assert codec.encode(key) == encode_key(key)


@given(CASE_AND_KEY)
def test_a_key_reads_back_with_its_type(drawn: tuple[tuple[object, str, object], Key]) -> None:
    (key_type, _, _), key = drawn
    codec = key_codec(key_type)

    again = codec.decode(codec.encode(key))

    assert again == key
    assert type(again) is type(key)


@given(ONE_CASE.flatmap(lambda case: st.tuples(st.just(case), st.lists(case[2], max_size=6))))
def test_many_keys_are_read_as_each_is(drawn: tuple[tuple[object, str, object], list[Any]]) -> None:
    (key_type, _, _), keys = drawn
    codec = key_codec(key_type)

    assert codec.decode_many([codec.encode(key) for key in keys]) == keys


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\x10a", b"\x10a\0", b"\x10a\0\0\x10b\0\0", b"\x14a\0\0", b"\x10\xff\0\0", b"a\0\0"],
)
def test_a_damaged_key_among_others_is_refused(damaged: bytes) -> None:
    codec = key_codec(str)
    sound = [codec.encode(key) for key in ("a", "b")]

    for place in range(3):
        with pytest.raises(DamageError):
            codec.decode_many([*sound[:place], damaged, *sound[place:]])


@given(CASE_AND_KEYS)
def test_bytes_order_as_keys_do(drawn: tuple[tuple[object, str, object], Any, Any]) -> None:
    (key_type, _, _), first, second = drawn
    encode = key_codec(key_type).encode

    assert (encode(first) < encode(second)) == (first < second)
    assert (encode(first) == encode(second)) == (first == second)


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (Lot("ada", 7), ("ada", 7)),
        (Day(date(2024, 2, 29), UUID(int=5)), (date(2024, 2, 29), UUID(int=5))),
        (Nested(Lot("a", 1), ("x", "y")), (("a", 1), ("x", "y"))),
    ],
)
def test_a_struct_is_the_tuple_of_its_fields(key: object, fields: Key) -> None:
    codec = key_codec(type(key))

    assert codec.encode(key) == encode_key(fields)
    assert codec.decode(codec.encode(key)) == key


def test_a_renamed_key_class_keeps_its_name_for_the_store() -> None:
    assert key_codec(Lot).name == key_codec(tuple[str, int]).name == "tuple[str,int]"


def test_annotations_and_new_types_are_what_they_annotate() -> None:
    assert key_codec(Annotated[str, msgspec.Meta(min_length=1)]).name == "str"
    assert key_codec(NewType("UserName", str)).name == "str"


def test_a_subclass_of_str_is_the_same_key() -> None:
    class Name(str):
        __slots__ = ()

        def __format__(self, spec: str) -> str:
            return "other"

    assert key_codec(str).encode(Name("ada")) == encode_key("ada")


@pytest.mark.parametrize(
    ("key_type", "key", "expected", "given_name"),
    [
        (str, 5, "str", "int"),
        (str, b"a", "str", "bytes"),
        (str, None, "str", "NoneType"),
        (int, True, "int", "bool"),
        (int, "5", "int", "str"),
        (int, 5.0, "int", "float"),
        (bool, 1, "bool", "int"),
        (bytes, "a", "bytes", "str"),
        (bytes, bytearray(b"a"), "bytes", "bytearray"),
        (UUID, "0", "UUID", "str"),
        (date, datetime(2024, 1, 1, tzinfo=UTC), "date", "datetime"),
        (datetime, date(2024, 1, 1), "datetime", "date"),
        (Decimal, 5, "Decimal", "int"),
        (tuple[str, int], ["a", 1], "tuple[str,int]", "list"),
        (tuple[str, int], ("a", True), "int", "bool"),
        (tuple[int, ...], (1, "a"), "int", "str"),
        (tuple[int, ...], [1], "tuple[int,...]", "list"),
        (Lot, ("ada", 7), "Lot", "tuple"),
        (Lot, Place("ada", 7), "Lot", "Place"),
        (Place, ("ada", 7), "Place", "tuple"),
    ],
)
def test_a_key_of_another_type_is_refused(
    key_type: object, key: object, expected: str, given_name: str
) -> None:
    with pytest.raises(InvalidKeyError) as error:
        key_codec(key_type).encode(key)

    assert error.value.code == "WrongKeyType"
    assert error.value.facts == {"expected": expected, "given": given_name}


def test_the_refusal_names_the_place_in_the_key() -> None:
    with pytest.raises(InvalidKeyError, match=r"at \.lot\.item is str"):
        key_codec(Nested).encode(Nested(Lot("a", "b")))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [("a",), ("a", 1, 2), ()])
def test_a_tuple_of_another_length_is_refused(key: tuple[object, ...]) -> None:
    with pytest.raises(InvalidKeyError) as error:
        key_codec(tuple[str, int]).encode(key)

    assert error.value.facts == {"expected": "tuple[str,int]", "places": len(key)}


@pytest.mark.parametrize(
    ("key_type", "key"),
    [(str, "\ud800"), (float, float("nan")), (Decimal, Decimal("NaN"))],
)
def test_keys_without_an_order_are_refused(key_type: object, key: object) -> None:
    with pytest.raises(InvalidKeyError):
        key_codec(key_type).encode(key)


@pytest.mark.parametrize(
    ("key_type", "longest"),
    [
        (str, "x" * (limits.KEY_BYTES_MAX - 3)),
        (str, "é" * 2046),
        (str, "\0" * 2046),
        (bytes, b"x" * (limits.KEY_BYTES_MAX - 3)),
        (bytes, b"\0" * 2046),
        (tuple[str], ("x" * (limits.KEY_BYTES_MAX - 5),)),
    ],
)
def test_the_longest_key_fits_and_the_next_does_not(key_type: object, longest: Any) -> None:
    codec = key_codec(key_type)
    longer = (longest[0] + "xx",) if isinstance(longest, tuple) else longest + longest[:2]

    assert codec.decode(codec.encode(longest)) == longest
    with pytest.raises(LimitExceededError) as error:
        codec.encode(longer)
    assert error.value.code == "KeyTooLarge"


def test_a_huge_integer_is_too_large_for_a_key() -> None:
    with pytest.raises(LimitExceededError):
        key_codec(int).encode(1 << 40_000)


class Loose(msgspec.Struct):
    name: str


@dataclasses.dataclass
class LooseDay:
    when: date


class Loop(msgspec.Struct, frozen=True):
    inner: "tuple[Loop, ...]" = ()


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("key_type", "path"),
    [
        (complex, "complex"),
        (list[str], "list[str]"),
        (str | None, "str | None"),
        (int | str, "int | str"),
        (object, "object"),
        (Any, "Any"),
        (Colour, "Colour"),
        (frozenset[str], "frozenset[str]"),
        (tuple[str, complex], "tuple[str, complex][1]: complex"),
        (tuple[tuple[int, list[int]], ...], "tuple[tuple[int, list[int]], ...][...][1]: list[int]"),
        (Loose, "Loose"),
        (LooseDay, "LooseDay"),
        (tuple[Loose, int], "tuple[Loose, int][0]: Loose"),
        (Loop, "Loop.inner[...]: Loop"),
    ],
)
def test_types_that_cannot_be_keys_are_refused_with_their_path(key_type: object, path: str) -> None:
    with pytest.raises(SchemaError) as error:
        key_codec(key_type)

    assert error.value.code == "UnsupportedKeyType"
    assert error.value.facts == {"path": path}


@given(TEXTS, TEXTS)
def test_a_text_prefix_is_a_range(prefix: str, key: str) -> None:
    codec = key_codec(str)
    first, end = codec.prefix_range(prefix)
    assert end is not None

    for one in (key, prefix + key):
        assert (first <= codec.encode(one) < end) == one.startswith(prefix)


@given(BLOBS, BLOBS)
def test_a_bytes_prefix_is_a_range(prefix: bytes, key: bytes) -> None:
    codec = key_codec(bytes)
    first, end = codec.prefix_range(prefix)
    assert end is not None

    for one in (key, prefix + key):
        assert (first <= codec.encode(one) < end) == one.startswith(prefix)


@given(
    st.lists(INTEGERS | st.sampled_from([254, 255, 256]), max_size=2).map(tuple),
    st.lists(INTEGERS, max_size=3).map(tuple),
)
def test_leading_places_are_a_range(prefix: tuple[int, ...], key: tuple[int, ...]) -> None:
    codec = key_codec(tuple[int, ...])
    first, end = codec.prefix_range(prefix)
    assert end is not None

    for one in (key, (*prefix, *key)):
        assert (first <= codec.encode(one) < end) == (one[: len(prefix)] == prefix)


def test_a_struct_key_takes_a_prefix_of_leading_fields() -> None:
    codec = key_codec(Lot)
    first, end = codec.prefix_range(("ada",))
    assert end is not None

    inside = [Lot("ada", number) for number in (-5, 0, 9**9)]
    outside = [Lot("ad", 1), Lot("adam", 1), Lot("eve", 1)]

    assert all(first <= codec.encode(key) < end for key in inside)
    assert not any(first <= codec.encode(key) < end for key in outside)


@pytest.mark.parametrize(
    ("key_type", "prefix"),
    [
        (int, 5),
        (UUID, UUID(int=1)),
        (str, 5),
        (tuple[str, int], "ada"),
        (tuple[str, int], ("ada", "eve")),
        (tuple[str, int], ("ada", 1, 2)),
        (Lot, Lot("a", 1)),
    ],
)
def test_a_prefix_that_no_key_can_have_is_refused(key_type: object, prefix: object) -> None:
    with pytest.raises(InvalidKeyError):
        key_codec(key_type).prefix_range(prefix)


HOSTILE = st.binary(max_size=24) | st.one_of(
    *(case[2].map(encode_key) for case in CASES if case[0] is not datetime)
).flatmap(
    lambda raw: st.integers(0, len(raw)).flatmap(
        lambda at: st.binary(max_size=2).map(lambda noise: raw[:at] + noise + raw[at + 1 :])
    )
)


@given(ONE_CASE, HOSTILE)
def test_hostile_keys_are_damage_and_nothing_else(
    case: tuple[object, str, object], raw: bytes
) -> None:
    codec = key_codec(case[0])

    try:
        key = codec.decode(raw)
    except DamageError:
        return
    assert codec.decode(codec.encode(key)) == key


def test_a_deeply_nested_stored_key_is_damage() -> None:
    with pytest.raises(DamageError):
        key_codec(str).decode(b"\x24" * 4000)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ("lamp", "lamp"),
        (5, 5),
        (("a", 1), ("a", 1)),
        (Lot("ada", 7), ("ada", 7)),
        (Nested(Lot("a", 1), ("x",)), (("a", 1), ("x",))),
        (Day(date(2024, 1, 1), UUID(int=1)), (date(2024, 1, 1), UUID(int=1))),
    ],
)
def test_an_index_key_is_written_as_a_key(value: object, fields: Key) -> None:
    assert encode_index_key(value) == encode_key(fields)


@pytest.mark.parametrize("value", [None, 1.5j, ["a"], Colour.RED, Loose("a"), LooseDay, object()])
def test_what_cannot_be_a_key_cannot_be_an_index_key(value: object) -> None:
    with pytest.raises(InvalidKeyError) as error:
        encode_index_key(value)

    assert error.value.code == "WrongKeyType"


def test_an_index_key_has_the_limit_of_keys() -> None:
    with pytest.raises(LimitExceededError):
        encode_index_key("x" * limits.KEY_BYTES_MAX)
