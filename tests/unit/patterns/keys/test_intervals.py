from datetime import UTC, date, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import RangeError
from partita.patterns.keys.intervals import (
    Interval,
    at_least,
    at_most,
    between,
    less_than,
    more_than,
    starting_with,
)


class Grade(StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


class Level(Enum):
    LOW = 1
    HIGH = 2


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(-6, 6))
def test_an_interval_holds_what_comparisons_say(lower: int, upper: int, value: int) -> None:
    assert between(lower, upper).holds(value) == (lower <= value <= upper)
    assert at_least(lower).holds(value) == (value >= lower)
    assert more_than(lower).holds(value) == (value > lower)
    assert at_most(upper).holds(value) == (value <= upper)
    assert less_than(upper).holds(value) == (value < upper)


@given(st.text(max_size=3), st.text(max_size=5))
def test_a_prefix_holds_what_begins_with_it(prefix: str, value: str) -> None:
    assert starting_with(prefix).holds(value) == value.startswith(prefix)


def test_an_absent_value_lies_in_no_interval() -> None:
    assert not Interval().holds(None)
    assert not at_least(0).holds(None)
    assert not starting_with("").holds(None)


def test_only_texts_begin_with_something() -> None:
    assert not starting_with("1").holds(12)
    assert starting_with("j").holds(Grade.JUNIOR)


def test_enums_compare_by_value() -> None:
    assert more_than(Level.LOW).holds(Level.HIGH)
    assert not more_than(Level.LOW).holds(Level.LOW)
    assert between(Grade.JUNIOR, "r").holds(Grade.JUNIOR)
    assert not between(Grade.JUNIOR, "r").holds(Grade.SENIOR)


def test_dates_compare_as_dates() -> None:
    assert between(date(2014, 7, 1), date(2014, 7, 31)).holds(date(2014, 7, 31))


def test_times_in_one_zone_compare_as_moments() -> None:
    zone = ZoneInfo("Europe/Berlin")
    first = datetime(2014, 10, 26, 2, 30, tzinfo=zone)
    second = datetime(2014, 10, 26, 2, 15, tzinfo=zone, fold=1)

    assert more_than(first).holds(second)
    assert at_most(second).holds(first.astimezone(UTC))


def test_times_at_both_ends_of_the_calendar_compare() -> None:
    last = datetime.max.replace(tzinfo=UTC)

    assert at_least(datetime.min.replace(tzinfo=UTC)).holds(last)
    assert not less_than(last - timedelta(microseconds=1)).holds(last)


@pytest.mark.parametrize("make", [at_least, more_than, at_most, less_than])
def test_none_is_not_an_end(make: Any) -> None:
    with pytest.raises(RangeError, match="IntervalEnd"):
        make(None)


def test_between_needs_both_ends() -> None:
    with pytest.raises(RangeError, match=r"at_least\(\)"):
        between(1, None)
    with pytest.raises(RangeError, match="IntervalEnd"):
        between(None, 1)


def test_a_prefix_stands_alone_and_is_a_text() -> None:
    with pytest.raises(RangeError, match="IntervalEnd"):
        Interval(lower="a", prefix="b")
    wrong: Any = 7
    with pytest.raises(RangeError, match="not int"):
        starting_with(wrong)
