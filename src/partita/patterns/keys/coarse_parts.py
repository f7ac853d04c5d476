"""Key parts that write less than the value: periods of time, and text in lower case.

Such a part is coarse if the whole value is stored elsewhere: in the other key, or in a property of
an index row. Without that it is whole, and then accepts only values that it can give back: the
first moment of a period, text without capital letters.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from partita.errors import InvalidKeyError
from partita.patterns.keys.fixed_width_parts import CodePart, Day, Moment
from partita.patterns.keys.intervals import Interval
from partita.patterns.keys.key_parts import Text
from partita.patterns.keys.key_text import Bounds

PERIODS_MAX = 256
"""Periods that one query enumerates; more of them are read as a range of keys."""

_UNITS = "YmdHMS"
"""The directives of a period, from the longest to the shortest; each requires those before it."""
_STEPS = {"d": timedelta(days=1), "H": timedelta(hours=1), "M": timedelta(minutes=1),
          "S": timedelta(seconds=1)}  # fmt: skip
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_DIRECTIVE = re.compile("%(.)")


class Period(CodePart, frozen=True, kw_only=True):
    """`{at:%Y%m%d%H}`: the hour of a time, as strftime formats it in UTC."""

    format: str
    unit: str
    """The last directive of the format."""
    is_date: bool
    is_whole: bool = False

    @property
    def is_full(self) -> bool:
        return self.is_whole

    @property
    def letters(self) -> str:
        return "0123456789" + _DIRECTIVE.sub("", self.format)

    @property
    def pattern(self) -> str:
        pieces = re.split("(%.)", self.format)
        return "".join(
            (f"[0-9]{{{_width(each)}}}" if each.startswith("%") else re.escape(each))
            for each in pieces
        )

    def whole(self) -> "Period":
        return msgspec.structs.replace(self, is_whole=True)

    def code(self, value: Any) -> tuple[int, bool]:
        if self.is_date:
            day, _ = Day(self.field, 0, 0, "").code(value)
            moment = datetime(day // 10_000, day // 100 % 100, day % 100, tzinfo=UTC)
        else:
            Moment(self.field, 0, 0, "").code(value)  # raises for another type
            try:
                moment = value.astimezone(UTC)
            except OverflowError:  # just before the year 1 or after the year 9999
                return (self.code_max + 1 if value.year > 1 else -1), False
        if self.unit == "Y":
            code = moment.year - 1
        elif self.unit == "m":
            code = (moment.year - 1) * 12 + moment.month - 1
        else:
            code = (moment - _FIRST) // _STEPS[self.unit]
        return code, self._start(code) == moment

    def _start(self, code: int) -> datetime:
        if self.unit == "Y":
            return _FIRST.replace(year=code + 1)
        if self.unit == "m":
            return _FIRST.replace(year=code // 12 + 1, month=code % 12 + 1)
        return _FIRST + code * _STEPS[self.unit]

    def value(self, code: int) -> date:
        start = self._start(code)
        return start.date() if self.is_date else start

    def own_code(self, value: Any) -> tuple[int, bool]:
        code, is_exact = self.code(value)
        return code, is_exact or not self.is_whole

    def write(self, code: int) -> str:
        # strftime does not pad the years before 1000 on every system.
        start = self._start(code)
        return start.strftime(self.format.replace("%Y", f"{start.year:04d}"))

    def read(self, text: str) -> int:
        numbers = [int(each) for each in re.findall("[0-9]+", self._spaced(text))]
        found = dict(zip(_DIRECTIVE.findall(self.format), numbers, strict=True))
        year, month, day, hour, minute, second = (
            found.get(unit, int(unit in "md")) for unit in _UNITS
        )
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        return self.code(_value(moment, self.is_date))[0]

    def _spaced(self, text: str) -> str:
        """Return the numbers in a text, which may directly follow each other."""
        groups = re.sub("%(.)", lambda match: f"([0-9]{{{_width(match[0])}}})",
                        re.escape(self.format))  # fmt: skip
        found = re.fullmatch(groups, text)
        return "" if found is None else " ".join(found.groups())

    def narrow(self, prefix: str, interval: Interval) -> Bounds:
        found = super().narrow(prefix, interval)
        return found if self.is_whole else msgspec.structs.replace(found, expressed=frozenset())

    def forms_in(self, interval: Interval) -> list[str] | None:
        """Return the written periods of an interval in order; None for too many of them."""
        if interval.lower is None or interval.upper is None:
            return None
        first = max(self._least(interval), 0)
        last = min(self._most(interval), self.code_max)
        if last - first >= PERIODS_MAX:
            return None
        return [self.write(code) for code in range(first, last + 1)]

    def _least(self, interval: Interval) -> int:
        if self.is_whole or interval.lower is None:
            return super()._least(interval)
        return self.code(interval.lower)[0]


def _value(moment: datetime, is_date: bool) -> date:  # noqa: FBT001 - one of two types
    return moment.date() if is_date else moment


def _width(directive: str) -> int:
    return 4 if directive == "%Y" else 2


def period(field: str, form: str, *, is_date: bool) -> Period | None:
    """Return the part of a strftime format; None if its texts do not sort as the times do.

    >>> period("at", "%Y%m%d%H", is_date=False).encode(datetime(2014, 7, 31, 18, 5, tzinfo=UTC))
    '2014073118'
    """
    units = "".join(_DIRECTIVE.findall(form))
    allowed = _UNITS[:3] if is_date else _UNITS
    if not units or not allowed.startswith(units) or not form.startswith("%Y"):
        return None
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    kind = "a date" if is_date else "a time"
    domain = f"{kind} at the start of a period of the form {form}"
    made = Period(field, 0, len(last.strftime(form)), domain, format=form, unit=units[-1],
                  is_date=is_date)  # fmt: skip
    is_whole = is_date and units == allowed
    code, _ = made.code(_value(last, is_date))
    return msgspec.structs.replace(made, code_max=code, is_whole=is_whole)


class Lowered(Text, frozen=True):
    """`{email:lower}`: a text in lower case, which can only be the last part."""

    is_whole: bool = False

    @property
    def is_ordered(self) -> bool:
        return self.is_whole

    @property
    def is_full(self) -> bool:
        return self.is_whole

    def whole(self) -> "Lowered":
        return msgspec.structs.replace(self, is_whole=True)

    def encode(self, value: Any) -> str:
        text = super().encode(value)
        lowered = text.lower()
        if self.is_whole and lowered != text:
            raise InvalidKeyError(
                "KeyOutOfRange",
                f"The value of the key field {self.field!r} has capital letters, which the key "
                "cannot give back.",
                facts={"field": self.field},
                hint=f"Give {self.field}.lower(); keep the original in a field of its own.",
            )
        return lowered

    def decode(self, text: str) -> str:
        if text.lower() != text:
            raise ValueError(text)
        return text

    def narrow(self, prefix: str, interval: Interval) -> Bounds:
        if self.is_whole:
            return super().narrow(prefix, interval)
        # Capital letters sort elsewhere, so that only a prefix limits the keys.
        start = interval.prefix.lower() if interval.prefix is not None else ""
        found = self._starting_with(prefix, start)
        return msgspec.structs.replace(found, expressed=frozenset())
