"""Conditions on one field that are a stretch of its order: the values of a range query.

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
    """A stretch of values; an end that is None is open. Absent values lie in no interval.

    `prefix` stands alone: the texts that begin with it. Enums compare by value, texts by code
    point, times as moments. An interval whose ends are turned around is empty.
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
                "An interval that has a prefix has no other ends.",
                hint="Make it with starting_with().",
            )

    def holds(self, value: Any) -> bool:
        """Tell whether a value lies inside, as the service would."""
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
    """The values from `lower` to `upper`, both inside."""
    return Interval(_end(lower), _end(upper))


def at_least(lower: Any) -> Interval:
    """The values from `lower` on, itself inside."""
    return Interval(lower=_end(lower))


def more_than(lower: Any) -> Interval:
    """The values behind `lower`."""
    return Interval(lower=_end(lower), has_lower_inside=False)


def at_most(upper: Any) -> Interval:
    """The values up to `upper`, itself inside."""
    return Interval(upper=_end(upper))


def less_than(upper: Any) -> Interval:
    """The values before `upper`."""
    return Interval(upper=_end(upper), has_upper_inside=False)


def starting_with(text: str) -> Interval:
    """The texts that begin with `text`."""
    return Interval(prefix=_text(text))


def comparable(value: Any) -> Any:
    """Return what stands for a value where order matters.

    Two times in one zone are compared by their clocks in Python, even where the clock was set
    back between them: the distance from a fixed moment has no such hour.
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
            hint="Use between() for anything else.",
        )
    return value


def _end(value: Any) -> Any:
    if value is None:
        raise RangeError(
            "IntervalEnd",
            "The end of an interval is a value, not None.",
            hint="Leave the end open with at_least(), more_than(), at_most() or less_than().",
        )
    return value
