"""The meter samples what the requests touch: exactly if there are few, fairly if there are many."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.clock import ManualClock
from partita.heat.limits import KEY_CHARACTERS_MAX, SAMPLES_MAX, SAMPLES_PER_SECOND, TABLES_MAX
from partita.heat.meter import READ, SCAN, WRITE, Meter, text_of
from partita.heat.minutes import OTHERS, close, merged


def read_one(meter: Meter, table: str, row_key: str) -> None:
    """As the table service does it inline."""
    meter.left -= 1
    if meter.left <= 0:
        meter.take(table, ("p", row_key), READ, 100)


def busy_meter(clock: ManualClock, *, seconds: int, per_second: int) -> Meter:
    meter = Meter(clock)
    for _ in range(seconds):
        for number in range(per_second):
            read_one(meter, "T", f"{number % 10}")
        clock.advance(1)
        meter.adapt()
    return meter


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["read", "group", "scan"]), st.integers(0, 99), st.integers(1, 50)
        ),
        max_size=200,
    )
)
def test_a_quiet_account_is_counted_exactly(requests: list[tuple[str, int, int]]) -> None:
    meter = Meter(ManualClock())
    reads = writes = scanned = 0
    for kind, start, count in requests:
        first, last = ("p", f"{start:03}"), ("p", f"{start + count:03}")
        if kind == "read":
            read_one(meter, "Staff", f"{start:03}")
            reads += 1
        elif kind == "group":
            meter.span("staff", first, last, WRITE, count, 10 * count)
            writes += count
        else:
            meter.span("STAFF", first, last, SCAN, count, 0)
            reads += count
            scanned += count

    axes = close(meter.cut())

    assert meter.stride == 1
    counts = axes["staff"].total if requests else (0, 0, 0, 0, 0)
    assert counts[:3] == (reads, scanned, writes)
    assert counts[4] == 10 * writes


def test_the_stride_follows_the_rate() -> None:
    clock = ManualClock()
    meter = busy_meter(clock, seconds=2, per_second=60 * SAMPLES_PER_SECOND)
    assert meter.stride == 60

    clock.advance(1)
    meter.adapt()

    assert meter.stride == 1
    assert meter.left == 1


def test_samples_are_bounded_and_their_load_stays_near_the_truth() -> None:
    clock = ManualClock()

    meter = busy_meter(clock, seconds=30, per_second=5120)

    assert len(meter.samples) <= 5120 + 29 * SAMPLES_PER_SECOND * 1.1
    (counts,) = [table.total for table in close(meter.cut()).values()]
    assert counts[0] == pytest.approx(30 * 5120, rel=0.03)


def test_requests_in_turn_do_not_hide_between_samples() -> None:
    clock = ManualClock()
    meter = busy_meter(clock, seconds=40, per_second=5120)

    axis = close(meter.cut())["t"].axis

    assert len(axis) == 10
    for bucket in axis:
        assert bucket.load == pytest.approx(40 * 512, rel=0.12)


def test_a_burst_keeps_the_limit_of_samples() -> None:
    meter = Meter(ManualClock())
    for number in range(4 * SAMPLES_MAX):
        read_one(meter, "T", str(number % 100))

    assert len(meter.samples) <= SAMPLES_MAX
    assert close(meter.cut())["t"].total[0] == pytest.approx(4 * SAMPLES_MAX, rel=0.05)


def test_large_groups_among_many_small_ones_are_measured_exactly() -> None:
    clock = ManualClock()
    meter = busy_meter(clock, seconds=2, per_second=100 * SAMPLES_PER_SECOND)
    meter.cut()

    for _ in range(5):
        meter.span("T", ("q", "0"), ("q", "9"), WRITE, 100, 1000)

    assert meter.stride == 100
    assert close(meter.cut())["t"].total == (0, 0, 500, 0, 5000)


def test_small_groups_are_measured_fairly() -> None:
    clock = ManualClock()
    meter = busy_meter(clock, seconds=2, per_second=100 * SAMPLES_PER_SECOND)
    meter.cut()

    for _ in range(10_000):
        meter.span("T", ("q", "0"), ("q", "9"), WRITE, 10, 100)

    counts = close(meter.cut())["t"].total
    assert counts[2] == pytest.approx(100_000, rel=0.08)
    assert counts[4] == pytest.approx(1_000_000, rel=0.08)


def test_a_meter_that_is_off_takes_no_samples() -> None:
    meter = Meter(None)
    read_one(meter, "T", "1")
    meter.span("T", ("p", "1"), ("p", "2"), SCAN, 10, 10)
    meter.count("T", ("p", "1"), READ)
    meter.adapt()

    assert meter.samples == []
    assert meter.left == math.inf


def test_a_stopped_meter_takes_no_samples() -> None:
    meter = Meter(ManualClock())
    meter.stop()
    read_one(meter, "T", "1")
    meter.adapt()

    assert meter.samples == []


def test_keys_of_one_kibibyte_are_cut() -> None:
    meter = Meter(ManualClock())
    meter.count("T", ("p" * 512, "r" * 512), READ)

    meter.span("T", ("p", "r" * 512), ("p", "s" * 512), READ, 2, 0)
    assert [sample[1:3] for sample in meter.samples] == [
        (("p" * KEY_CHARACTERS_MAX, ""),) * 2,
        (("p", "r" * (KEY_CHARACTERS_MAX - 1)), ("p", "s" * (KEY_CHARACTERS_MAX - 1))),
    ]


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_texts_have_the_order_of_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    without_zero = [tuple(part.replace("\0", "") for part in key) for key in (one, other)]
    first, second = sorted(without_zero)

    assert text_of((first[0], first[1])) <= text_of((second[0], second[1]))


def test_a_hundred_thousand_tables_have_a_bounded_number_of_axes() -> None:
    meter = Meter(ManualClock())
    meter.span("hot", ("p", "1"), ("p", "2"), SCAN, 1000, 0)
    for number in range(100_000):
        meter.count(f"t{number}", ("p", "r"), WRITE)

    axes = close(meter.cut())

    assert len(axes) == TABLES_MAX + 1
    counts = [table.total for table in axes.values()]
    assert axes["hot"].total[0] == 1000
    assert sum(each[2] for each in counts) == pytest.approx(100_000, rel=0.05)
    assert axes[OTHERS].axis[0].first.startswith("t")
    assert len(merged([axes, axes])) <= TABLES_MAX + 1
