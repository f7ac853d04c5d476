"""The token bucket: guide, "Avoid spikes" in the number of requests."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import ConfigurationError, LimitExceededError
from partita.patterns.operations.rate_limit import Rate


def test_a_full_bucket_lets_a_burst_through_at_once() -> None:
    rate = Rate(10, burst=5)

    assert [rate.reserve(0.0) for _ in range(5)] == [0.0] * 5
    assert rate.reserve(0.0) == pytest.approx(0.1)


def test_those_who_come_later_wait_behind_those_who_wait() -> None:
    rate = Rate(10, burst=1)

    waits = [rate.reserve(100.0) for _ in range(4)]

    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    rate = Rate(10, burst=2)
    rate.reserve(0.0, 2)

    assert rate.reserve(1_000.0, 2) == 0.0
    assert rate.reserve(1_000.0, 1) == pytest.approx(0.1)


def test_the_burst_is_a_second_and_at_least_a_group_unless_it_is_given() -> None:
    assert Rate(2_000).burst == 2_000
    assert Rate(0.5).burst == 100
    assert Rate(2_000, burst=7).burst == 7


def test_more_than_the_burst_at_once_is_refused_and_takes_nothing() -> None:
    rate = Rate(10, burst=5)

    with pytest.raises(LimitExceededError) as refused:
        rate.reserve(0.0, 6)

    assert refused.value.code == "RateBurstExceeded"
    assert rate.reserve(0.0, 5) == 0.0


def test_a_pause_keeps_everybody_waiting_and_lets_go_slowly() -> None:
    rate = Rate(10, burst=5)

    rate.pause(0.0, 3.0)

    assert rate.reserve(0.0) == pytest.approx(3.1)
    assert rate.reserve(0.0) == pytest.approx(3.2)


def test_a_pause_never_shortens_a_wait() -> None:
    rate = Rate(1, burst=1)
    for _ in range(11):
        rate.reserve(0.0)

    rate.pause(0.0, 3.0)

    assert rate.reserve(0.0) == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("per_second", "burst"), [(0, 1), (-1, 1), (1, 0), (float("inf"), 1), (1, float("nan"))]
)
def test_a_rate_of_nothing_is_refused(per_second: float, burst: float) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Rate(per_second, burst)

    assert refused.value.code == "InvalidRate"


@given(
    per_second=st.integers(1, 50),
    burst=st.integers(1, 20),
    asked=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 20)), max_size=60),
    pauses=st.sets(st.integers(0, 59)),
)
def test_no_window_lets_more_through_than_burst_and_rate(
    per_second: int, burst: int, asked: list[tuple[int, int]], pauses: set[int]
) -> None:
    rate = Rate(per_second, burst)
    now = 0.0
    passed: list[tuple[Fraction, int]] = []
    for place, (milliseconds, amount) in enumerate(asked):
        now += milliseconds / 1000
        if place in pauses:
            rate.pause(now, 0.7)
        if amount <= burst:
            passed.append((Fraction(now + rate.reserve(now, amount)), amount))

    assert all(earlier[0] <= later[0] for earlier, later in pairwise(passed))
    for first in range(len(passed)):
        total = 0
        for moment, amount in passed[first:]:
            total += amount
            window = float(moment - passed[first][0])
            assert total <= burst + per_second * window + 1e-6


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 300))
def test_a_writer_that_is_always_ready_reaches_the_rate(
    per_second: int, burst: int, count: int
) -> None:
    rate = Rate(per_second, burst)
    now = 0.0

    for _ in range(count):
        now += rate.reserve(now)

    assert now == pytest.approx(max(count - burst, 0) / per_second)
