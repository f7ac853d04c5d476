import pickle
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import DamageError, InvalidShardKeyError
from partita.shards.keys.shard_key import (
    BUCKET,
    BUCKETS_MAX,
    KEY_BYTES_MAX,
    KeyType,
    bucket_of,
    key_type,
    key_type_named,
)
from support.repeats import repeat

PAIRS = repeat(100, 400, 20_000)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    "a\x00\x01\xffé", max_size=4
)
RAW = st.binary(max_size=12) | st.binary(max_size=3).map(lambda raw: b"\x00" + raw)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)
DECIMALS = (
    st.decimals(allow_nan=False, allow_infinity=False)
    | st.decimals(-3, 3, places=2)
    | st.builds(
        lambda digits, places: Decimal(digits).scaleb(places),
        st.integers(-999, 999),
        st.integers(-4, 4),
    )
)
MOMENTS = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from(
        [UTC, timezone(timedelta(hours=-5)), timezone(timedelta(minutes=345))]
    ),
)
SPANS = st.timedeltas() | st.timedeltas(timedelta(seconds=-2), timedelta(seconds=2))
VALUES: dict[type, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    str: TEXTS,
    bytes: RAW,
    UUID: st.uuids(),
    date: st.dates(),
    datetime: MOMENTS,
    timedelta: SPANS,
    Decimal: DECIMALS,
}
DECLARED: list[object] = [
    *VALUES,
    (str, int),
    (bytes, str),
    (Decimal, Decimal),
    (Decimal, str, timedelta),
    (str, bytes, UUID, date, datetime, int),
]


def values_of(declared: object) -> st.SearchStrategy[Any]:
    if isinstance(declared, tuple):
        return st.tuples(*(VALUES[part] for part in declared))
    assert isinstance(declared, type)
    return VALUES[declared]


def named(declared: object) -> str:
    return key_type(declared).name


GOLDEN: list[tuple[object, object, str]] = [
    (int, 0, "8000000000000000"),
    (int, 1, "8000000000000001"),
    (int, -1, "7fffffffffffffff"),
    (int, -(2**63), "0000000000000000"),
    (int, 2**63 - 1, "ffffffffffffffff"),
    (str, "", ""),
    (str, "é", "c3a9"),
    (str, "a\x00", "6100"),
    (bytes, b"\x01\x00", "0100"),
    (UUID, UUID("00112233-4455-6677-8899-aabbccddeeff"), "00112233445566778899aabbccddeeff"),
    (date, date(1, 1, 1), "00000001"),
    (date, date(2026, 7, 1), "000b49d6"),
    (datetime, datetime(1, 1, 1, tzinfo=UTC), "0000000000000000"),
    (datetime, datetime(1970, 1, 1, tzinfo=UTC), "00dcbffeff2bc000"),
    (datetime, datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "00dcbffeff2bc000"),
    (timedelta, timedelta(0), "80000000000000000000"),
    (timedelta, timedelta(microseconds=-1), "7fffffffffffffffffff"),
    (timedelta, timedelta.max, "8004af0a763bb1bfffff"),
    (timedelta, timedelta.min, "7ffb50f589d86c176000"),
    (Decimal, Decimal(0), "80"),
    (Decimal, Decimal("-0.00"), "80"),
    (Decimal, Decimal("1.50"), "818000000206" + "00"),
    (Decimal, Decimal("-1.5"), "7f7ffffffdf9" + "ff"),
    (Decimal, Decimal("0.01"), "817ffffe02" + "00"),
    ((str, int), ("eu", 1), "65750001" + "8000000000000001"),
    ((bytes, str), (b"\x00", "\x00"), "00ff0001" + "00ff0001"),
    ((Decimal, date), (Decimal(1), date(1, 1, 1)), "8180000002" + "00" + "00000001"),
]


@pytest.mark.parametrize(("declared", "value", "expected"), GOLDEN)
def test_encoded_bytes_never_change(declared: object, value: object, expected: str) -> None:
    assert key_type(declared).encode(value).hex() == expected


@pytest.mark.repeated
@pytest.mark.parametrize("declared", DECLARED, ids=named)
def test_bytes_order_as_values_do_and_come_back(declared: object) -> None:
    key = key_type(declared)

    @settings(max_examples=PAIRS)
    @given(values_of(declared), values_of(declared))
    def check(left: Any, right: Any) -> None:
        first, second = key.encode(left), key.encode(right)

        assert (first < second, first == second) == (left < right, left == right)
        assert key.decode(first) == left

    check()


@pytest.mark.repeated
@pytest.mark.parametrize("declared", [(str, int), (Decimal, Decimal), (bytes, str)], ids=named)
def test_bounds_order_as_tuples_of_different_lengths_do(declared: tuple[type, ...]) -> None:
    key = key_type(declared)
    whole = values_of(declared)
    bounds = whole | whole.map(lambda value: value[:1])

    @settings(max_examples=PAIRS // 4)
    @given(bounds, bounds)
    def check(left: Any, right: Any) -> None:
        first, second = key.encode_bound(left), key.encode_bound(right)

        assert (first < second, first == second) == (left < right, left == right)
        assert key.decode_bound(first) == left

    check()


@pytest.mark.parametrize("declared", DECLARED, ids=named)
def test_no_key_has_smaller_bytes_than_the_lowest(declared: object) -> None:
    key = key_type(declared)

    @given(values_of(declared))
    def check(value: Any) -> None:
        assert key.lowest <= key.encode(value)

    check()


def test_the_lowest_bytes_are_those_of_the_smallest_values() -> None:
    assert key_type(int).lowest == key_type(int).encode(-(2**63))
    assert key_type(date).lowest == key_type(date).encode(date.min)
    assert key_type(datetime).lowest == key_type(datetime).encode(datetime.min.replace(tzinfo=UTC))
    assert key_type(timedelta).lowest == key_type(timedelta).encode(timedelta.min)
    assert key_type((str, int)).lowest == key_type((str, int)).encode(("", -(2**63)))


@pytest.mark.parametrize("declared", DECLARED, ids=named)
def test_a_name_gives_the_key_type_back(declared: object) -> None:
    key = key_type(declared)

    assert key_type_named(key.name) == key
    assert hash(key_type_named(key.name)) == hash(key)
    assert key_type(key) is key
    assert pickle.loads(pickle.dumps(key)) == key


def test_names_are_those_that_catalogs_hold() -> None:
    assert [key_type(declared).name for declared in VALUES] == [
        "int",
        "str",
        "bytes",
        "uuid",
        "date",
        "datetime",
        "timedelta",
        "decimal",
    ]
    assert key_type((str, UUID, Decimal)).name == "tuple[str,uuid,decimal]"
    assert key_type((str, UUID)).parts == (str, UUID)
    assert key_type((str, UUID)).is_composite
    assert not key_type(str).is_composite
    assert repr(key_type(int)) == "key_type_named('int')"
    assert key_type(int) != "int"


class Colour(IntEnum):
    RED = 1


class Region(StrEnum):
    EU = "eu"


class Text(str):
    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"something else"


class Raw(bytes):
    __slots__ = ()


def test_values_of_subclasses_are_encoded_as_their_base() -> None:
    assert key_type(int).encode(Colour.RED) == key_type(int).encode(1)
    assert key_type(str).encode(Region.EU) == b"eu"
    assert key_type(str).encode(Text("eu")) == b"eu"
    assert type(key_type(bytes).encode(Raw(b"eu"))) is bytes


class NoZone(tzinfo):
    """A time zone that does not say which."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
AWARE = NAIVE.replace(tzinfo=UTC)
WRONG: list[tuple[object, object, str, str]] = [
    (int, True, "int", "bool"),
    (int, False, "int", "bool"),
    (int, 1.0, "int", "float"),
    (int, "1", "int", "str"),
    (int, None, "int", "NoneType"),
    (int, Decimal(1), "int", "Decimal"),
    (int, 2**63, "int", "int"),
    (int, -(2**63) - 1, "int", "int"),
    (int, 10**400, "int", "int"),
    (str, 1, "str", "int"),
    (str, b"a", "str", "bytes"),
    (str, "\ud800", "str", "str"),
    (bytes, "a", "bytes", "str"),
    (bytes, bytearray(b"a"), "bytes", "bytearray"),
    (UUID, "00112233-4455-6677-8899-aabbccddeeff", "uuid", "str"),
    (date, AWARE, "date", "datetime"),
    (date, "2026-01-01", "date", "str"),
    (datetime, NAIVE, "datetime", "datetime"),
    (datetime, NAIVE.replace(tzinfo=NoZone()), "datetime", "datetime"),
    (datetime, date(2026, 1, 1), "datetime", "date"),
    (datetime, datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "datetime", "datetime"),
    (datetime, datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "datetime", "datetime"),
    (timedelta, 1.5, "timedelta", "float"),
    (Decimal, 1, "decimal", "int"),
    (Decimal, 1.5, "decimal", "float"),
    (Decimal, Decimal("NaN"), "decimal", "Decimal"),
    (Decimal, Decimal("sNaN"), "decimal", "Decimal"),
    (Decimal, Decimal("-Infinity"), "decimal", "Decimal"),
    (Decimal, Decimal("1e9000000"), "decimal", "Decimal"),
    (Decimal, Decimal("1e-9000000"), "decimal", "Decimal"),
    ((str, int), ("eu", "1"), "int", "str"),
    ((str, int), ("eu",), "tuple[str,int]", "tuple[str]"),
    ((str, int), ("eu", 1, 2), "tuple[str,int]", "tuple[str,int,int]"),
    ((str, int), ["eu", 1], "tuple[str,int]", "list"),
    ((str, int), "eu", "tuple[str,int]", "str"),
    ((str, int), ("eu", True), "int", "bool"),
]


@pytest.mark.parametrize(("declared", "value", "expected", "given_type"), WRONG)
def test_a_wrong_value_is_refused_with_both_types(
    declared: object, value: object, expected: str, given_type: str
) -> None:
    with pytest.raises(InvalidShardKeyError) as caught:
        key_type(declared).encode(value)

    assert caught.value.code == "InvalidShardKey"
    assert caught.value.facts == {"expected": expected, "given": given_type}
    assert caught.value.hint


@pytest.mark.parametrize("value", [(), ("eu", 1, 2), "eu", None])
def test_a_wrong_bound_is_refused(value: object) -> None:
    with pytest.raises(InvalidShardKeyError):
        key_type((str, int)).encode_bound(value)


TOO_LONG: list[tuple[object, object]] = [
    (str, "é" * (KEY_BYTES_MAX // 2) + "a"),
    (bytes, bytes(KEY_BYTES_MAX + 1)),
    (Decimal, Decimal("1" * KEY_BYTES_MAX)),
    (Decimal, Decimal("-" + "1" * KEY_BYTES_MAX)),
    ((str, int), ("a" * (KEY_BYTES_MAX - 9), 1)),
    ((bytes, int), (bytes(KEY_BYTES_MAX // 2), 1)),
]


@pytest.mark.parametrize(("declared", "value"), TOO_LONG)
def test_a_key_that_is_too_long_is_refused(declared: object, value: object) -> None:
    with pytest.raises(InvalidShardKeyError) as caught:
        key_type(declared).encode(value)

    assert caught.value.code == "ShardKeyTooLong"
    assert caught.value.facts["bytes_max"] == KEY_BYTES_MAX


def test_the_longest_keys_fit() -> None:
    assert len(key_type(str).encode("a" * KEY_BYTES_MAX)) == KEY_BYTES_MAX
    assert len(key_type(bytes).encode(bytes(KEY_BYTES_MAX))) == KEY_BYTES_MAX
    assert len(key_type((str, int)).encode(("a" * (KEY_BYTES_MAX - 10), 1))) == KEY_BYTES_MAX


@pytest.mark.parametrize(
    "declared",
    [bool, float, None, "int", (), (int,), (int, bool), (int, (str, int)), [int], (int,) * 17],
)
def test_a_type_that_no_key_can_have_is_refused(declared: object) -> None:
    with pytest.raises(InvalidShardKeyError) as caught:
        key_type(declared)

    assert caught.value.code == "UnknownKeyType"


@pytest.mark.parametrize(
    "name", ["", "float", "tuple[]", "tuple[int]", "tuple[int,]", "tuple[", "Int"]
)
def test_a_name_of_no_key_type_is_refused(name: str) -> None:
    with pytest.raises(InvalidShardKeyError):
        key_type_named(name)


DAMAGED: list[tuple[object, bytes]] = [
    (int, b""),
    (int, bytes(7)),
    (int, bytes(9)),
    (str, b"\xff"),
    (UUID, bytes(15)),
    (date, bytes(4)),
    (date, b"\xff" * 4),
    (date, bytes(3)),
    (datetime, b"\xff" * 8),
    (timedelta, b"\xff" * 10),
    (timedelta, bytes(9)),
    (Decimal, b""),
    (Decimal, b"\x81"),
    (Decimal, b"\x81\x80\x00\x00\x00"),
    (Decimal, b"\x81\x80\x00\x00\x0b\x00"),
    (Decimal, b"\x81\x80\x00\x00\x02"),
    (Decimal, b"\x05\x80\x00\x00\x02\x00"),
    ((str, int), b""),
    ((str, int), b"eu"),
    ((str, int), b"eu\x00"),
    ((str, int), b"eu\x00\x02"),
    ((str, int), b"eu\x00\x01"),
    ((str, int), b"eu\x00\x01" + bytes(7)),
    ((str, int), b"eu\x00\x01" + bytes(9)),
    ((Decimal, int), b"\x81\x80\x00\x00\x02"),
    ((Decimal, int), b"\x05" + b"\xff" * 9),
]


@pytest.mark.parametrize(("declared", "encoded"), DAMAGED)
def test_bytes_that_no_key_has_are_damage(declared: object, encoded: bytes) -> None:
    with pytest.raises(DamageError) as caught:
        key_type(declared).decode(encoded)

    assert caught.value.code == "StoreDamaged"


@pytest.mark.parametrize("declared", DECLARED, ids=named)
def test_any_bytes_are_a_key_or_damage(declared: object) -> None:
    key = key_type(declared)

    @given(st.binary(max_size=40))
    def check(encoded: bytes) -> None:
        try:
            value = key.decode(encoded)
        except DamageError:
            return
        # Decimals may have been stored with zeroes at their ends by nobody but a vandal.
        assert key.decode(key.encode(value)) == value

    check()


def test_datetimes_come_back_in_utc() -> None:
    key = key_type(datetime)
    moment = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert key.decode(key.encode(moment)) == moment
    assert key.decode(key.encode(moment)).utcoffset() == timedelta(0)


def test_buckets_are_the_same_for_every_client() -> None:
    key = key_type(str)

    assert bucket_of(key.encode("tenant-1"), 1024).hex() == "000002f3"
    assert bucket_of(key.encode(""), 1024).hex() == "000002b4"
    assert bucket_of(key_type(int).encode(42), 7).hex() == "00000006"


@given(st.binary(max_size=64), st.integers(1, BUCKETS_MAX))
def test_a_bucket_lies_below_their_number(key: bytes, buckets: int) -> None:
    assert 0 <= BUCKET.decode(bucket_of(key, buckets)) < buckets


def test_buckets_share_keys_out_evenly() -> None:
    key = key_type(int)
    counts = [0] * 16
    for number in range(16_000):
        counts[BUCKET.decode(bucket_of(key.encode(number), 16))] += 1

    assert min(counts) > 850
    assert max(counts) < 1150


@pytest.mark.parametrize("value", [-1, BUCKETS_MAX + 1, True, "1", None])
def test_a_bucket_that_cannot_be_is_refused(value: object) -> None:
    with pytest.raises(InvalidShardKeyError):
        BUCKET.encode(value)


def test_the_bucket_type_has_a_name_but_cannot_be_declared() -> None:
    assert key_type_named("bucket") is BUCKET
    assert isinstance(BUCKET, KeyType)
    assert BUCKET.decode(BUCKET.encode(BUCKETS_MAX)) == BUCKETS_MAX
    with pytest.raises(InvalidShardKeyError):
        key_type("bucket")
