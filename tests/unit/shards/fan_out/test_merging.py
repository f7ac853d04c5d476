"""Merging and reducing rows of many shards."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidRequestError, LimitExceededError, SchemaMismatchError
from partita.shards.fan_out import merging
from partita.shards.fan_out.merging import Fold, OrderedMerge, Ordering, Reduce, UnionAll, sort_key

Pair = tuple[int, int]


def test_rows_come_as_the_shards_deliver_them() -> None:
    merge = UnionAll[Pair](2)

    merge.offer(1, [(5, 0), (6, 0)])
    merge.offer(0, [(1, 0)])

    assert merge.take(10) == [(5, 0), (6, 0), (1, 0)]


def test_only_as_many_rows_are_taken_as_were_asked_for() -> None:
    merge = UnionAll[Pair](1)
    merge.offer(0, [(1, 0), (2, 0), (3, 0)])

    assert merge.take(2) == [(1, 0), (2, 0)]
    assert merge.held(0) == 1
    assert merge.take(2) == [(3, 0)]
    assert merge.held(0) == 0


def test_an_ended_stream_still_gives_what_it_delivered() -> None:
    merge = UnionAll[Pair](1)
    merge.offer(0, [(1, 0)])

    merge.end(0)

    assert merge.take(10) == [(1, 0)]


def test_no_row_is_given_out_before_every_stream_has_delivered() -> None:
    merge = OrderedMerge[Pair](2, sort_key([Ordering(0)]))
    merge.offer(0, [(1, 0), (2, 0)])

    assert merge.take(10) == []
    assert merge.held(0) == 2


def test_a_stream_that_ran_dry_is_waited_for() -> None:
    merge = OrderedMerge[Pair](2, sort_key([Ordering(0)]))
    merge.offer(0, [(1, 0)])
    merge.offer(1, [(2, 0), (9, 0)])

    assert merge.take(10) == [(1, 0)]
    merge.offer(0, [(3, 0)])
    assert merge.take(10) == [(2, 0), (3, 0)]
    merge.end(0)
    assert merge.take(10) == [(9, 0)]


def test_a_stream_that_ends_without_a_row_does_not_delay_the_others() -> None:
    merge = OrderedMerge[Pair](3, sort_key([Ordering(0)]))
    merge.offer(1, [(1, 0)])
    merge.end(0)
    merge.end(2)

    assert merge.take(10) == [(1, 0)]


def test_equal_rows_come_in_the_order_of_their_streams() -> None:
    merge = OrderedMerge[Pair](3, sort_key([Ordering(0)]))
    for stream in (2, 0, 1):
        merge.offer(stream, [(7, stream)])
        merge.end(stream)

    assert merge.take(9) == [(7, 0), (7, 1), (7, 2)]


def test_values_that_cannot_be_compared_are_a_mismatch_of_schemas() -> None:
    merge = OrderedMerge[tuple[object]](2, sort_key([Ordering(0)]))
    merge.offer(0, [(1,)])

    with pytest.raises(SchemaMismatchError) as raised:
        merge.offer(1, [(object(),)])

    assert raised.value.code == "OrderNotComparable"


@given(
    st.lists(st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(0, 5)), max_size=12)),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_merged_streams_equal_the_sorted_whole(
    streams: list[list[tuple[int | None, int]]], descending: bool, nulls_last: bool, batch: int
) -> None:
    key = sort_key([Ordering(0, descending, nulls_last), Ordering(1)])
    ordered = [sorted(stream, key=key) for stream in streams]
    merge = OrderedMerge[tuple[int | None, int]](len(streams), key)
    given_out: list[tuple[int | None, int]] = []

    while any(ordered) or any(merge.held(stream) for stream in range(len(streams))):
        for number, stream in enumerate(ordered):
            if stream and not merge.held(number):
                merge.offer(number, stream[:batch])
                del stream[:batch]
            elif not stream:
                merge.end(number)
        given_out += merge.take(batch)

    assert given_out == sorted((row for stream in streams for row in stream), key=key)


@pytest.mark.parametrize(
    ("descending", "nulls_last", "expected"),
    [
        (False, True, [1, 2, None]),
        (False, False, [None, 1, 2]),
        (True, True, [2, 1, None]),
        (True, False, [None, 2, 1]),
    ],
)
def test_nulls_stand_at_the_end_that_was_named(
    descending: bool, nulls_last: bool, expected: list[int | None]
) -> None:
    key = sort_key([Ordering(0, descending, nulls_last)])

    assert sorted([(2,), (None,), (1,)], key=key) == [(value,) for value in expected]


def test_nan_is_above_all_numbers() -> None:
    key = sort_key([Ordering(0)])

    ordered = sorted([(math.nan,), (1e300,), (Decimal("NaN"),), (Decimal(3),)], key=key)

    assert [row[0] for row in ordered[:2]] == [Decimal(3), 1e300]


def test_numbers_come_before_text_and_text_before_bytes() -> None:
    key = sort_key([Ordering(0)])
    expected: list[tuple[object]] = [(1,), ("a",), (b"a",)]

    assert sorted([(b"a",), ("a",), (1,)], key=key) == expected


def test_counts_and_sums_are_added() -> None:
    fold = Fold(["posts", "bytes"], Reduce.count("posts") & Reduce.sum("bytes"))

    fold.add([(1, 10), (2, None), (3, 5)])

    assert list(fold.rows()) == [(6, 15)]


def test_the_minimum_of_minima_and_the_maximum_of_maxima_are_taken() -> None:
    fold = Fold(["low", "high"], Reduce.min("low") & Reduce.max("high"))

    fold.add([(None, None), (3, 4), (2, 9), (5, 1)])

    assert list(fold.rows()) == [(2, 9)]


def test_rows_of_one_group_become_one_row() -> None:
    fold = Fold(["status", "n"], Reduce.sum("n"))

    fold.add([("new", 1), ("old", 2)])
    fold.add([("new", 3), (None, 4)])

    assert list(fold.rows()) == [("new", 4), ("old", 2), (None, 4)]


def test_nothing_counts_as_zero_and_sums_to_nothing() -> None:
    fold = Fold(["n", "total"], Reduce.count("n") & Reduce.sum("total"))

    assert list(fold.rows()) == [(0, None)]


def test_no_groups_are_no_rows() -> None:
    assert list(Fold(["status", "n"], Reduce.sum("n")).rows()) == []


def test_a_reduction_of_one_column_needs_no_name() -> None:
    fold = Fold(["count_1"], merging.as_reduce("count"))

    fold.add([(2,), (3,)])

    assert list(fold.rows()) == [(5,)]


def test_a_column_that_is_not_there_cannot_be_reduced() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Fold(["a", "b"], Reduce.sum("c"))

    assert raised.value.code == "ReduceColumnUnknown"


def test_of_several_columns_one_must_be_named() -> None:
    with pytest.raises(InvalidRequestError, match="several columns"):
        Fold(["a", "b"], Reduce.sum())


@pytest.mark.parametrize("given", ["avg", {}, {"n": "median"}])
def test_an_unknown_reduction_is_refused(given: object) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        merging.as_reduce(given)  # type: ignore[arg-type]

    assert raised.value.code == "ReduceUnknown"


def test_a_reduction_holds_a_bounded_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "REDUCED_GROUPS_MAX", 2)
    fold = Fold(["group", "n"], Reduce.sum("n"))

    with pytest.raises(LimitExceededError) as raised:
        fold.add([(1, 1), (2, 1), (3, 1)])

    assert raised.value.code == "TooManyGroups"


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-9, 9)))))
def test_folding_per_shard_equals_folding_the_whole(
    shards: list[list[tuple[int, int | None]]],
) -> None:
    fold = Fold(["group", "n"], Reduce.sum("n"))
    for rows in shards:
        fold.add(rows)

    whole: dict[int, list[int]] = {}
    for rows in shards:
        for group, n in rows:
            whole.setdefault(group, []).extend([] if n is None else [n])
    expected = {group: sum(values) if values else None for group, values in whole.items()}
    assert dict(fold.rows()) == expected
