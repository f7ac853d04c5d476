"""Keys and ranges as people type them."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cli.shards.keys import (
    key_text,
    parse_bound,
    parse_key,
    parse_key_type,
    parse_keys,
    parse_range,
    plain_key,
    range_of_key,
    range_text,
)
from partita.errors import InvalidShardKeyError, RangeError
from partita.shards.keys.ranges import Range
from partita.shards.keys.shard_key import KeyType, key_type


class AMap(msgspec.Struct):
    key_type: KeyType
    kind: str = "range"
    name: str = "tenants"

    def encode_key(self, key: Any) -> bytes:
        return (5).to_bytes(4) if self.kind == "hash" else self.key_type.encode(key)


def a_map(declared: object, kind: str = "range") -> AMap:
    return AMap(key_type(declared), kind)


@pytest.mark.parametrize(
    ("declared", "text", "key"),
    [
        (int, "-42", -42),
        (str, "eu", "eu"),
        (str, "a:b", "a:b"),
        (str, '"a \\"b\\""', 'a "b"'),
        (str, '""', ""),
        (bytes, "hex:00ff", b"\x00\xff"),
        (bytes, "hex:", b""),
        (
            UUID,
            "12345678-1234-5678-1234-567812345678",
            UUID("12345678-1234-5678-1234-567812345678"),
        ),
        (date, "2026-01-31", date(2026, 1, 31)),
        (datetime, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (datetime, "2026-01-31T12:00+00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (timedelta, "1.5", timedelta(seconds=1.5)),
        (timedelta, "-0.000001", timedelta(microseconds=-1)),
        (Decimal, "12.50", Decimal("12.50")),
        ((str, int), '["eu", 7]', ("eu", 7)),
        ((str, date), '["a:b", "2026-01-31"]', ("a:b", date(2026, 1, 31))),
        ((bytes, Decimal), '["hex:ff", 1.50]', (b"\xff", Decimal("1.50"))),
    ],
)
def test_a_key_is_read_as_the_map_s_type(declared: object, text: str, key: object) -> None:
    assert parse_key(text, a_map(declared)) == key


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (int, "forty"),
        (int, ""),
        (int, str(2**63)),
        (int, "1.0"),
        (str, '"open'),
        (bytes, "00ff"),
        (bytes, "hex:0"),
        (UUID, "1234"),
        (date, "31.01.2026"),
        (datetime, "2026-01-31T12:00:00"),
        (timedelta, "0.0000001"),
        (timedelta, "nan"),
        (timedelta, "1e99"),
        (Decimal, "infinity"),
        ((str, int), "eu"),
        ((str, int), '["eu"]'),
        ((str, int), '["eu", 7, 8]'),
        ((str, int), "[7, 7]"),
        ((str, int), '["eu", true]'),
        ((str, int), '["eu", 7.5]'),
        ((str, int), '{"eu": 7}'),
    ],
)
def test_an_invalid_key_is_refused(declared: object, text: str) -> None:
    with pytest.raises(InvalidShardKeyError):
        parse_key(text, a_map(declared))


@pytest.mark.parametrize(
    ("declared", "text", "expected"),
    [
        (int, "0:100", Range(0, 100)),
        (int, "-10:-5", Range(-10, -5)),
        (int, ":100", Range(None, 100)),
        (int, "100:", Range(100, None)),
        (int, ":", Range(None, None)),
        (str, "a:m", Range("a", "m")),
        (str, '"a:b":"c"', Range("a:b", "c")),
        (str, '"":m', Range("", "m")),
        (bytes, "hex:00:hex:ff", Range(b"\x00", b"\xff")),
        (bytes, ":hex:ff", Range(None, b"\xff")),
        (bytes, "hex:00:", Range(b"\x00", None)),
        (
            datetime,
            "2026-01-01T00:00+00:00:2026-02-01T00:00+00:00",
            Range(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)),
        ),
        (datetime, "2026-01-01T00:00:00Z:", Range(datetime(2026, 1, 1, tzinfo=UTC), None)),
        ((str, int), '["a:b", 1]:["c"]', Range(("a:b", 1), ("c",))),
    ],
)
def test_a_range_is_cut_where_both_sides_can_be_read(
    declared: object, text: str, expected: Range
) -> None:
    assert parse_range(text, a_map(declared)) == expected


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (int, "5"),
        (int, "a:b"),
        (str, "a"),
        (str, "a:b:c"),
        (int, "1:2:3"),
        (int, ""),
        (bytes, "::"),
    ],
)
def test_an_invalid_range_is_refused(declared: object, text: str) -> None:
    with pytest.raises(RangeError):
        parse_range(text, a_map(declared))


def test_a_move_takes_a_key_or_a_range() -> None:
    assert parse_keys("42", a_map(int)) == 42
    assert parse_keys("40:100", a_map(int)) == Range(40, 100)
    assert parse_keys("eu:de", a_map(str, "list")) == "eu:de"
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_keys("2026-01-31T12:00:00Z", a_map(datetime)) == moment


def test_ranges_of_a_hash_map_are_of_buckets_and_its_keys_are_keys() -> None:
    hashed = a_map(str, "hash")

    assert parse_range("0:512", hashed) == Range(0, 512)
    assert parse_bound("256", hashed) == 256
    assert parse_key("eu", hashed) == "eu"


def test_a_bound_may_be_the_first_parts_of_a_composite_key() -> None:
    assert parse_bound('["eu"]', a_map((str, int))) == ("eu",)
    with pytest.raises(InvalidShardKeyError):
        parse_bound("[]", a_map((str, int)))


KEYS: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    UUID: st.uuids(),
    date: st.dates(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    timedelta: st.timedeltas(),
    Decimal: st.decimals(-(10**6), 10**6, allow_nan=False, places=3),
    (str, int): st.tuples(st.text(max_size=9), st.integers(-9, 9)),
    (bytes, timedelta, date): st.tuples(st.binary(max_size=9), st.timedeltas(), st.dates()),
}


@given(st.sampled_from(list(KEYS)), st.data())
def test_what_is_printed_can_be_typed_again(declared: object, draw: st.DataObject) -> None:
    keyed = a_map(declared)
    low, high = draw.draw(KEYS[declared]), draw.draw(KEYS[declared])

    assert parse_key(key_text(low), keyed) == low
    if low != high:
        assert parse_range(range_text(Range(low, high)), keyed) == Range(low, high)
    assert parse_range(range_text(Range(low, None)), keyed) == Range(low, None)
    assert parse_range(range_text(Range(None, high)), keyed) == Range(None, high)
    msgspec.json.encode(plain_key(low))


def test_a_key_type_is_named_with_commas_for_its_parts() -> None:
    assert parse_key_type("int") == key_type(int)
    assert parse_key_type("str, UUID") == key_type((str, UUID))
    for text in ("float", "str,", ""):
        with pytest.raises(InvalidShardKeyError):
            parse_key_type(text)


@pytest.mark.parametrize(
    ("declared", "key", "following"),
    [
        (int, 42, 43),
        (int, 2**63 - 1, None),
        (str, "eu", "eu\x01"),
        (bytes, b"\xff", b"\xff\x00"),
        (UUID, UUID(int=7), UUID(int=8)),
        (UUID, UUID(int=2**128 - 1), None),
        (date, date(2026, 1, 31), date(2026, 2, 1)),
        (date, date.max, None),
        (
            datetime,
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 1, microsecond=1, tzinfo=UTC),
        ),
        (timedelta, timedelta(0), timedelta(microseconds=1)),
        ((str, int), ("eu", 7), ("eu", 8)),
        ((str, int), ("eu", 2**63 - 1), ("eu\x01",)),
        ((int, int), (2**63 - 1, 2**63 - 1), None),
    ],
)
def test_the_range_of_a_key_ends_before_the_next_one(
    declared: object, key: Any, following: Any
) -> None:
    shard_map = a_map(declared)

    found = range_of_key(key, shard_map)

    assert found == Range(key, following)
    assert following is None or shard_map.key_type.encode(key) < shard_map.key_type.encode_bound(
        following
    )


def test_the_range_of_a_key_in_a_hash_map_is_its_bucket() -> None:
    assert range_of_key("eu", a_map(str, "hash")) == Range(5, 6)


def test_a_decimal_key_has_no_next_one() -> None:
    with pytest.raises(RangeError, match="cannot be split off"):
        range_of_key(Decimal("1.5"), a_map(Decimal))
