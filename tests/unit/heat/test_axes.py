"""Axes keep the load of their parts, stay within the limit, and are cut where the load is."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.heat.axes import (
    COUNTERS,
    END,
    START,
    ZERO,
    Axis,
    Bucket,
    fold,
    merge,
    shared_prefix,
    total,
)
from partita.heat.limits import BUCKETS_MAX

KEYS = st.text(max_size=6) | st.text("ab\0", max_size=8)
COUNTS = st.tuples(*[st.integers(0, 10**9)] * len(COUNTERS))


@st.composite
def parts(draw: st.DrawFn) -> list[Bucket]:
    ends = draw(st.lists(st.tuples(KEYS, KEYS, COUNTS), max_size=60))
    return [Bucket(min(one, other), max(one, other), counts) for one, other, counts in ends]


def reads(count: int) -> tuple[int, ...]:
    return (count, *ZERO[1:])


def point(key: str, count: int = 1) -> Bucket:
    return Bucket(key, key, reads(count))


def assert_is_axis(axis: Axis, limit: int) -> None:
    assert len(axis) <= limit
    assert all(bucket.first <= bucket.last for bucket in axis)
    assert all(one.last < other.first for one, other in pairwise(axis))


@given(parts(), st.integers(1, 20))
def test_folding_keeps_every_count_and_the_limit(found: list[Bucket], limit: int) -> None:
    axis = fold(found, limit)

    assert_is_axis(axis, limit)
    assert total(axis) == total(found)


@given(st.lists(parts(), max_size=5), st.integers(1, 20))
def test_merging_keeps_every_count_and_the_limit(several: list[list[Bucket]], limit: int) -> None:
    merged = merge([fold(each) for each in several], limit)

    assert_is_axis(merged, limit)
    assert total(merged) == total(part for each in several for part in each)


@given(parts())
def test_the_bounds_of_buckets_are_keys_that_were_seen(found: list[Bucket]) -> None:
    seen = {key for part in found for key in (part.first, part.last)}

    assert {key for bucket in fold(found) for key in (bucket.first, bucket.last)} <= seen


@given(st.dictionaries(st.text(max_size=4), st.integers(1, 99), max_size=100))
def test_few_single_keys_without_ranges_are_exact_when_they_are_alone(
    counts: dict[str, int],
) -> None:
    axis = fold([point(key, count) for key, count in counts.items()], len(counts) + 1)

    for bucket in axis:
        inside = [counts[key] for key in counts if bucket.first <= key <= bucket.last]
        assert bucket.load == sum(inside)


def test_a_hot_key_has_a_bucket_of_its_own() -> None:
    found = [point(f"tenant{number:05}\0row", 1) for number in range(5000)]

    axis = fold([*found, point("tenant02500\0row", 999)])

    (hot,) = [bucket for bucket in axis if bucket.load >= 1000]
    assert hot == point("tenant02500\0row", 1000)
    assert len(axis) > BUCKETS_MAX * 0.9


def test_many_tenants_do_not_take_the_bucket_of_a_hot_key() -> None:
    found = [point(f"tenant{number % 1000:04}\0row{number:06}", 1) for number in range(10_000)]

    axis = fold([*found, point("tenant0500\0row000500", 999)])

    assert point("tenant0500\0row000500", 1000) in axis


def test_equal_keys_share_the_buckets_evenly() -> None:
    axis = fold([point(f"{number:06}") for number in range(25_600)])

    assert len(axis) == BUCKETS_MAX
    assert {bucket.load for bucket in axis} == {100}


def test_a_gap_between_keys_is_in_no_bucket() -> None:
    near = [point(f"a{number:04}") for number in range(500)]
    far = [point(f"z{number:04}") for number in range(500)]

    axis = fold([*near, *far], 10)

    assert not any(bucket.first < "b" < bucket.last for bucket in axis)


def test_a_scan_is_spread_over_the_keys_in_its_range() -> None:
    found = [point(f"{number:03}") for number in range(100)]

    axis = fold([*found, Bucket("000", "099", reads(1000))], 100)

    assert {bucket.load for bucket in axis} == {11}


def test_a_range_of_unknown_ends_is_spread_over_all_known_keys() -> None:
    found = [point(f"{number:03}") for number in range(100)]

    axis = fold([*found, Bucket(START, END, reads(1000)), Bucket("050", END, reads(50))], 100)

    assert [bucket.load for bucket in axis] == [11] * 50 + [12] * 50
    assert (axis[0].first, axis[-1].last) == ("000", "099")


def test_a_range_of_unknown_ends_without_known_keys_is_at_the_start() -> None:
    assert fold([Bucket(START, END, reads(7))]) == [Bucket(START, START, reads(7))]


def test_what_nothing_is_known_of_stays_at_the_start_beside_other_ranges() -> None:
    axis = fold([Bucket(START, START, reads(7)), Bucket(START, "a", reads(1))])

    assert total(axis) == reads(8)
    assert axis[0].first == START


def test_equal_axes_keep_their_buckets_when_they_are_merged() -> None:
    axis = fold([point(f"{number:06}") for number in range(25_600)])

    merged = merge([axis] * 10)

    assert [(each.first, each.last) for each in merged] == [
        (each.first, each.last) for each in axis
    ]
    assert {bucket.load for bucket in merged} == {1000}


def test_a_hot_key_of_one_minute_is_alone_in_the_sum_of_ten() -> None:
    quiet = fold([point(f"{number:06}") for number in range(10_000)])
    hot = fold([*(point(f"{number:06}") for number in range(10_000)), point("005000", 100_000)])

    merged = merge([quiet] * 9 + [hot])

    (found,) = [bucket for bucket in merged if bucket.first == bucket.last == "005000"]
    assert found.load == pytest.approx(100_010, rel=0.01)


def test_nothing_has_no_buckets() -> None:
    assert fold([]) == merge([]) == merge([[], []]) == []


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_the_shared_prefix_is_as_long_as_it_can_be(start: str, one: str, other: str) -> None:
    length = shared_prefix(start + one, start + other)

    assert length >= len(start)
    assert (start + one)[:length] == (start + other)[:length]
    assert (start + one)[: length + 1] != (start + other)[
        : length + 1
    ] or start + one == start + other
