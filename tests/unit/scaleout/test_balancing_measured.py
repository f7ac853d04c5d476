"""The load of ranges, from the heat of a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.heat.axes import Axis, Bucket, fold
from partita.scaleout.balancing.limits import WRITE_COST
from partita.scaleout.balancing.measuring import Sample, cost_of, measure, shortest_between


def an_axis(**loads: int) -> Axis:
    """Return an axis with reads of single partitions."""
    return fold(Bucket(f"{key}\0", f"{key}\0", (load, 0, 0, 0, 0)) for key, load in loads.items())


def test_rates_of_front_ends_are_added() -> None:
    samples = [
        Sample("one", 5, 5.0, an_axis(a=50)),
        Sample("one", 10, 5.0, an_axis(a=50)),
        Sample("two", 10, 10.0, an_axis(a=30, z=10)),
    ]

    low, high = measure(samples, ["", "m"])

    assert low.load == pytest.approx(13.0)
    assert high.load == pytest.approx(1.0)


def test_the_middle_leaves_even_halves_and_is_short() -> None:
    axis = an_axis(customer100=40, customer204=10, customer209=50)

    (heat,) = measure([Sample("one", 5, 1.0, axis)], [""])

    assert heat.middle == "customer209"
    assert (heat.hot_key, heat.hot_share) == ("customer209", 0.5)
    assert shortest_between("customer100", "customer204") == "customer2"


def test_one_partition_alone_has_no_middle() -> None:
    (heat,) = measure([Sample("one", 5, 1.0, an_axis(a=1000))], [""])

    assert heat.middle is None
    assert heat.hot_share == 1.0


def test_writes_beyond_all_earlier_keys_are_appends() -> None:
    samples = [
        Sample("one", second, 5.0, [Bucket(f"{second:04}\0a", f"{second:04}\0b", (0, 0, 90, 0, 0))])
        for second in range(5, 35, 5)
    ]

    (heat,) = measure(samples, [""])

    assert heat.is_appending
    assert heat.load == pytest.approx(90 / 5 * WRITE_COST)


keys = st.text("abc", max_size=3)


@given(
    st.lists(st.tuples(keys, keys, st.integers(0, 99), st.integers(0, 99)), max_size=20),
    st.sets(st.text("abc", min_size=1, max_size=2), max_size=4),
)
def test_no_load_is_lost_and_every_middle_is_inside_its_range(
    found: list[tuple[str, str, int, int]], bounds: set[str]
) -> None:
    buckets = [
        Bucket(f"{min(pair)}\0", f"{max(pair)}\0", (reads, 0, writes, 0, 0))
        for *pair, reads, writes in found
    ]
    axis, starts = fold(buckets), ["", *sorted(bounds)]

    heats = measure([Sample("one", 5, 1.0, axis)], starts)

    assert sum(each.load for each in heats) == pytest.approx(sum(cost_of(b.counts) for b in axis))
    for heat, lower, upper in zip(heats, starts, [*starts[1:], None], strict=True):
        if heat.middle is not None:
            assert lower < heat.middle
            assert upper is None or heat.middle < upper
