from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DamageError, InvalidShardKeyError, RangeError
from partita.shards.keys.ranges import (
    FULL,
    KeyRange,
    Range,
    decode_point,
    decode_range,
    encode_range,
    first_overlap,
)
from partita.shards.keys.shard_key import BUCKET, key_type

INT = key_type(int)
BOUNDS = st.binary(max_size=2)
RANGES = (
    st.builds(lambda low, more: (low, more), BOUNDS, st.none() | BOUNDS)
    .filter(lambda pair: pair[1] is None or pair[0] < pair[1])
    .map(lambda pair: KeyRange(*pair))
)
ALL_KEYS = [b""] + [bytes((a,)) for a in range(0, 256, 15)]


def test_a_range_is_shown_as_it_is_written() -> None:
    assert repr(Range(0, 100)) == "Range(0, 100)"
    assert repr(Range(None, "m")) == "Range(None, 'm')"
    assert repr(Range()) == "Range(None, None)"
    assert Range(1, 2) == Range(1, 2)
    assert len({Range(1, 2), Range(1, 2), Range(1)}) == 2


@pytest.mark.parametrize(
    ("range_", "expected"),
    [
        (Range(0, 100), Range(0, 100)),
        (Range(None, 0), Range(None, 0)),
        (Range(0, None), Range(0, None)),
        (Range(), Range()),
        (Range(-(2**63), 0), Range(-(2**63), 0)),
    ],
)
def test_a_range_comes_back_from_its_bytes(range_: Range, expected: Range) -> None:
    assert decode_range(encode_range(range_, INT), INT) == expected


@given(st.integers(-(2**63), 2**63 - 2), st.integers(1, 1000))
def test_ranges_of_numbers_come_back(low: int, width: int) -> None:
    range_ = Range(low, min(low + width, 2**63 - 1))

    assert decode_range(encode_range(range_, INT), INT) == range_


def test_the_bytes_of_a_range_are_those_of_its_ends() -> None:
    encoded = encode_range(Range(0, 100), INT)

    assert (encoded.low, encoded.high) == (INT.encode(0), INT.encode(100))
    assert encode_range(Range(), INT) == FULL == KeyRange(b"", None)


def test_the_empty_text_as_a_low_end_is_not_a_bound() -> None:
    text = key_type(str)

    assert decode_range(encode_range(Range("", "m"), text), text) == Range(None, "m")


@pytest.mark.parametrize(
    "range_", [Range(5, 5), Range(6, 5), Range(None, -(2**63)), Range(-(2**63), -(2**63))]
)
def test_a_range_without_keys_is_refused(range_: Range) -> None:
    with pytest.raises(RangeError) as caught:
        encode_range(range_, INT)

    assert caught.value.code == "InvalidRange"
    assert caught.value.hint


def test_ends_that_are_equal_in_value_make_no_range() -> None:
    with pytest.raises(RangeError):
        encode_range(Range(Decimal("1.0"), Decimal("1.00")), key_type(Decimal))
    with pytest.raises(RangeError):
        encode_range(Range(None, ""), key_type(str))
    with pytest.raises(RangeError):
        encode_range(Range(None, date.min), key_type(date))
    with pytest.raises(RangeError):
        encode_range(Range(None, 0), BUCKET)


def test_an_end_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidShardKeyError):
        encode_range(Range(0, "100"), INT)
    with pytest.raises(InvalidShardKeyError):
        encode_range(Range(False, 100), INT)


def test_a_composite_range_may_end_at_the_first_parts() -> None:
    key = key_type((str, int))
    europe = encode_range(Range(("eu",), ("ev",)), key)

    assert europe.contains(key.encode(("eu", -(2**63))))
    assert europe.contains(key.encode(("eu", 2**63 - 1)))
    assert europe.contains(key.encode(("eu\x00", 0)))
    assert not europe.contains(key.encode(("et", 2**63 - 1)))
    assert not europe.contains(key.encode(("ev", -(2**63))))
    assert decode_range(europe, key) == Range(("eu",), ("ev",))


def test_ranges_of_a_hash_map_are_over_its_buckets() -> None:
    encoded = encode_range(Range(0, 512), BUCKET)

    assert encoded == KeyRange(bytes(4), b"\x00\x00\x02\x00")
    assert decode_range(encoded, BUCKET) == Range(0, 512)


@pytest.mark.parametrize(("low", "high"), [(b"b", b"a"), (b"a", b"a"), (b"", b"")])
def test_an_empty_key_range_cannot_be_made(low: bytes, high: bytes) -> None:
    with pytest.raises(RangeError) as caught:
        KeyRange(low, high)

    assert caught.value.code == "InvalidRange"


def test_a_point_holds_one_key() -> None:
    point = KeyRange.point(b"key")

    assert point.is_point
    assert point.contains(b"key")
    assert not point.contains(b"key\x00")
    assert not point.contains(b"ke\xff")
    assert not KeyRange(b"a", b"b").is_point
    assert not FULL.is_point


def test_a_point_is_shown_with_its_key_at_both_ends() -> None:
    point = decode_point(KeyRange.point(INT.encode(7)), INT)

    assert point == Range(7, 7)
    assert point.is_point
    assert not Range(7, 8).is_point
    assert not Range().is_point


def test_the_empty_text_can_be_a_point() -> None:
    text = key_type(str)

    assert decode_point(KeyRange.point(text.encode("")), text) == Range("", "")


def test_a_range_in_a_list_map_is_damage() -> None:
    with pytest.raises(DamageError):
        decode_point(encode_range(Range(1, 5), INT), INT)


@given(RANGES, RANGES)
def test_ranges_agree_with_the_sets_of_their_keys(left: KeyRange, right: KeyRange) -> None:
    ends = [left.low, right.low, left.high or b"", right.high or b""]
    keys = {*ALL_KEYS, *ends, *(end + b"\x00" for end in ends)}
    ours = {key for key in keys if left.contains(key)}
    theirs = {key for key in keys if right.contains(key)}
    both = left.intersection(right)

    assert left.intersects(right) == right.intersects(left) == bool(ours & theirs)
    assert (set() if both is None else {key for key in keys if both.contains(key)}) == ours & theirs
    assert left.covers(right) == (theirs <= ours and (right.high is not None or left.high is None))
    rest = left.minus(right)
    assert {key for key in keys if any(part.contains(key) for part in rest)} == ours - theirs
    assert sum(part.contains(key) for part in rest for key in keys) == len(ours - theirs)


@given(RANGES, BOUNDS)
def test_a_split_shares_the_keys_out(whole: KeyRange, at: bytes) -> None:
    if at <= whole.low or not whole.contains(at):
        with pytest.raises(RangeError, match="InvalidSplit"):
            whole.split(at)
        return

    low, high = whole.split(at)

    assert (low.low, low.high, high.low, high.high) == (whole.low, at, at, whole.high)
    assert low.touches(high)
    assert high.touches(low)
    assert not low.intersects(high)
    assert low.join(high) == high.join(low) == whole


def test_a_split_at_the_ends_is_refused() -> None:
    whole = KeyRange(b"b", b"d")

    for at in (b"b", b"d", b"a", b"e", b""):
        with pytest.raises(RangeError):
            whole.split(at)


def test_ranges_apart_or_overlapping_cannot_be_joined() -> None:
    for other in (KeyRange(b"c", b"d"), KeyRange(b"a", b"c"), KeyRange(b"a", b"b"), FULL):
        with pytest.raises(RangeError) as caught:
            KeyRange(b"a", b"b").join(other)
        assert caught.value.code == "RangesApart"


def test_ranges_that_leave_a_gap_do_not_touch() -> None:
    assert KeyRange(b"a", b"b").touches(KeyRange(b"b", None))
    assert KeyRange(b"b", None).touches(KeyRange(b"", b"b"))
    assert not KeyRange(b"a", b"b").touches(KeyRange(b"b\x00", None))
    assert not FULL.touches(FULL)
    assert not KeyRange(b"b", None).touches(KeyRange(b"", b"a"))


def test_ranges_sort_by_their_ends_and_no_bound_is_last() -> None:
    ranges = [KeyRange(b"b", b"c"), FULL, KeyRange(b"", b"a"), KeyRange(b"b", None)]

    assert sorted(ranges) == [
        KeyRange(b"", b"a"),
        FULL,
        KeyRange(b"b", b"c"),
        KeyRange(b"b", None),
    ]


@given(RANGES, RANGES)
def test_comparisons_of_ranges_agree(left: KeyRange, right: KeyRange) -> None:
    assert (left < right) + (left == right) + (left > right) == 1
    assert (left <= right) == (left < right or left == right)
    assert (left >= right) == (left > right or left == right)


@given(st.lists(RANGES, max_size=6))
def test_the_first_overlap_is_found(ranges: list[KeyRange]) -> None:
    pairs = [(a, b) for i, a in enumerate(ranges) for b in ranges[:i] if a.intersects(b)]
    found = first_overlap(ranges)

    assert (found is not None) == bool(pairs)
    assert found is None or found[0].intersects(found[1])
