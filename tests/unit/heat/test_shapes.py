"""Shapes are recognised in made-up columns, and not where there are none."""

import random

from hypothesis import given
from hypothesis import strategies as st

from partita.heat.axes import Bucket, fold
from partita.heat.kept import Column
from partita.heat.shapes import Kind, recognise


def reads(count: int) -> tuple[int, ...]:
    return count, 0, 0, 100 * count, 0


def writes(count: int) -> tuple[int, ...]:
    return 0, 0, count, 0, 100 * count


def columns_of(minutes: list[list[Bucket]]) -> list[Column]:
    return [Column(60 * number, 60, fold(parts)) for number, parts in enumerate(minutes)]


def kinds(columns: list[Column]) -> list[Kind]:
    return [shape.kind for shape in recognise(columns)]


def written(keys: list[str]) -> list[Bucket]:
    return [Bucket(key, key, writes(1)) for key in keys]


def test_a_log_is_append_only() -> None:
    log = [written([f"{60 * minute + each:08}\0" for each in range(60)]) for minute in range(8)]

    assert kinds(columns_of(log)) == [Kind.APPEND]


def test_a_log_tail_is_prepend_only() -> None:
    log = [
        written([f"{10**6 - 60 * minute - each:08}\0" for each in range(60)]) for minute in range(8)
    ]

    assert kinds(columns_of(log)) == [Kind.PREPEND]


def test_inserts_all_over_the_keys_are_no_appends() -> None:
    chance = random.Random(1)
    log = [written([f"{chance.randrange(10**8):08}\0" for _ in range(60)]) for _ in range(8)]

    assert kinds(columns_of(log)) == []


def test_appends_within_many_tenants_are_no_appends_to_the_table() -> None:
    log = [
        written(
            [
                f"tenant{tenant:02}\0{60 * minute + each:08}"
                for tenant in range(20)
                for each in range(9)
            ]
        )
        for minute in range(8)
    ]

    assert kinds(columns_of(log)) == []


def test_a_partition_that_is_alone_in_quiet_minutes_is_not_hot() -> None:
    busy = [Bucket(f"t{n:02}\0", f"t{n:02}\0", reads(1000)) for n in range(50)]
    quiet = [Bucket("t07\0", "t07\0", reads(60)), Bucket("t08\0", "t08\0", reads(40))]

    assert kinds(columns_of([busy, quiet, quiet, quiet])) == []


def test_one_partition_with_most_of_the_load_is_hot() -> None:
    minute = [
        Bucket(f"t{tenant:02}\0{row}", f"t{tenant:02}\0{row}", reads(5))
        for tenant in range(50)
        for row in range(9)
    ]
    hot = [Bucket(f"t07\0{row}", f"t07\0{row}", reads(500)) for row in range(9)]

    (shape,) = recognise(columns_of([[*minute, *hot]] * 3))

    assert (shape.kind, shape.partition) == (Kind.HOT_PARTITION, "t07")
    assert 0.6 < shape.share < 0.7
    assert "4% of the target of 2,000" in shape.evidence


def test_a_table_with_one_partition_is_hot_only_above_half_of_the_target() -> None:
    def minute(count: int) -> list[Bucket]:
        return [Bucket(f"p\0{row:03}", f"p\0{row:03}", reads(count)) for row in range(100)]

    assert kinds(columns_of([minute(10)] * 3)) == []
    assert kinds(columns_of([minute(1000)] * 3)) == [Kind.HOT_PARTITION]


def test_queries_over_many_partitions_are_scans() -> None:
    minute = [Bucket(f"t{tenant:02}\0", f"t{tenant:02}\0", reads(1)) for tenant in range(50)]
    scan = [Bucket("t00\0", "t49\0", (1000, 1000, 0, 10**5, 0))]

    assert kinds(columns_of([minute, minute, [*minute, *scan], minute])) == [Kind.SCAN]
    assert kinds(columns_of([minute] * 4)) == []


def test_nothing_and_little_load_have_no_shape() -> None:
    assert recognise([]) == []
    assert kinds(columns_of([written([f"{minute}"]) for minute in range(9)])) == []


@given(
    st.lists(
        st.lists(
            st.tuples(st.text(max_size=4), st.text(max_size=4), st.integers(0, 500)), max_size=20
        ),
        max_size=6,
    )
)
def test_any_columns_can_be_judged(minutes: list[list[tuple[str, str, int]]]) -> None:
    columns = columns_of(
        [
            [
                Bucket(min(a, b), max(a, b), (count, count // 2, count, 1, 1))
                for a, b, count in parts
            ]
            for parts in minutes
        ]
    )

    for shape in recognise(columns):
        assert 0 <= shape.share <= 1
