"""Intervals of the values of one field, for range queries.

>>> between(100, 199).holds(123)
True
>>> starting_with("Sm").holds("Jones")
False
"""

from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec

from partita.errors import RangeError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Interval(msgspec.Struct, frozen=True):
    """An interval of values; None for `lower` or `upper` means unbounded.

    `prefix` excludes both ends: it selects the texts that begin with it. Enums compare by value,
    texts by code point, times in UTC. An interval with `lower` above `upper` is empty. None is in
    no interval.
    """

    lower: Any = None
    upper: Any = None
    has_lower_inside: bool = True
    has_upper_inside: bool = True
    prefix: str | None = None

    def __post_init__(self) -> None:
        if self.prefix is not None and (self.lower, self.upper) != (None, None):
            raise RangeError(
                "IntervalEnd",
                "An interval with a prefix cannot have other ends.",
                hint="Use starting_with().",
            )

    def holds(self, value: Any) -> bool:
        """Return whether a value is in the interval, as the service would decide."""
        if value is None:
            return False
        if self.prefix is not None:
            text = comparable(value)
            return isinstance(text, str) and text.startswith(self.prefix)
        return self._is_above(comparable(value)) and self._is_below(comparable(value))

    def _is_above(self, value: Any) -> bool:
        if self.lower is None:
            return True
        lower = comparable(self.lower)
        return bool(lower <= value if self.has_lower_inside else lower < value)

    def _is_below(self, value: Any) -> bool:
        if self.upper is None:
            return True
        upper = comparable(self.upper)
        return bool(value <= upper if self.has_upper_inside else value < upper)


def between(lower: Any, upper: Any) -> Interval:
    """Return the interval from `lower` to `upper`, both inclusive."""
    return Interval(_end(lower), _end(upper))


def at_least(lower: Any) -> Interval:
    """Return the interval of values greater than or equal to `lower`."""
    return Interval(lower=_end(lower))


def more_than(lower: Any) -> Interval:
    """Return the interval of values greater than `lower`."""
    return Interval(lower=_end(lower), has_lower_inside=False)


def at_most(upper: Any) -> Interval:
    """Return the interval of values less than or equal to `upper`."""
    return Interval(upper=_end(upper))


def less_than(upper: Any) -> Interval:
    """Return the interval of values less than `upper`."""
    return Interval(upper=_end(upper), has_upper_inside=False)


def starting_with(text: str) -> Interval:
    """Return the interval of texts that begin with `text`."""
    return Interval(prefix=_text(text))


def comparable(value: Any) -> Any:
    """Return a value that sorts as the service sorts this one.

    Python compares two times in the same time zone by their local time, even if the clock was set
    back between them; the distance from the epoch avoids that.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value - _EPOCH
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise RangeError(
            "IntervalEnd",
            f"starting_with() takes a text, not {type(value).__name__}.",
            hint="Use between() for other types.",
        )
    return value


def _end(value: Any) -> Any:
    if value is None:
        raise RangeError(
            "IntervalEnd",
            "The end of an interval cannot be None.",
            hint="Use at_least(), more_than(), at_most() or less_than() for an open end.",
        )
    return value
