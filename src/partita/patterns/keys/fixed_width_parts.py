"""Key parts of fixed width: numbers, times, dates, UUIDs.

Each value has a code, an integer from 0, and codes sort as the values do. The ends of an interval
need not be valid values (they may be too large or too precise); values to be written must be.
"""

import re
from abc import abstractmethod
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from partita.errors import InvalidKeyError
from partita.keys import DOTNET_TICKS_MAX
from partita.patterns.keys.intervals import Interval
from partita.patterns.keys.key_parts import KeyPart
from partita.patterns.keys.key_text import Bounds, nothing, successor
from partita.patterns.protocol.values import Instant
from partita.ticks import TICKS_PER_MICROSECOND

_YEAR_ONE = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SEVENTH_DIGIT = re.compile(r"\.[0-9]{6}([0-9])")
_LAST_DAY = 9999_12_31


class CodePart(KeyPart, frozen=True):
    """A part whose values have codes up to `code_max`, written in `width` characters."""

    code_max: int
    width: int
    domain: str
    """The valid values, in words."""
    descends: bool = False

    is_ordered: ClassVar[bool] = True
    is_prefix_free: ClassVar[bool] = True
    grain: ClassVar[int] = 1
    """The number of codes per Python value."""

    @property
    def is_descending(self) -> bool:
        return self.descends

    @property
    def length_min(self) -> int:
        return self.width

    @property
    def letters(self) -> str:
        """The characters of the written values."""
        return "0123456789"

    @property
    def pattern(self) -> str:
        return f"[0-9]{{{self.width}}}"

    @abstractmethod
    def code(self, value: Any) -> tuple[int, bool]:
        """Return the greatest code not above the value, and whether it is exact."""

    @abstractmethod
    def value(self, code: int) -> Any: ...

    def own_code(self, value: Any) -> tuple[int, bool]:
        """Return the code to write, which may be more precise than a Python value."""
        return self.code(value)

    def write(self, code: int) -> str:
        return f"{code:0{self.width}d}"

    def read(self, text: str) -> int:
        return int(text)

    def encode(self, value: Any) -> str:
        code, is_exact = self.own_code(value)
        if not is_exact or not 0 <= code <= self.code_max:
            raise InvalidKeyError(
                "KeyOutOfRange",
                f"The value of the key field {self.field!r} is not {self.domain}.",
                facts={"field": self.field},
                hint="Choose a template that fits the largest value before storing anything.",
            )
        return self.write(self.code_max - code if self.descends else code)

    def decode(self, text: str) -> Any:
        code = self.read(text)
        if code > self.code_max:
            raise ValueError(text)
        return self.value(self.code_max - code if self.descends else code)

    def narrow(self, prefix: str, interval: Interval) -> Bounds:
        if interval.prefix is not None:
            self.refuse_type(f"{self.domain} and not starting_with()", interval.prefix)
        low, high = max(self._least(interval), 0), min(self._most(interval), self.code_max)
        if low > high:
            return nothing(prefix, self.field)
        if self.descends:
            low, high = self.code_max - high, self.code_max - low
        lower, upper = prefix + self.write(low), successor(prefix + self.write(high))
        return Bounds(lower, upper, frozenset((self.field,)))

    def _least(self, interval: Interval) -> int:
        if interval.lower is None:
            return 0
        code, is_exact = self.code(interval.lower)
        return code if is_exact and interval.has_lower_inside else code + self.grain

    def _most(self, interval: Interval) -> int:
        if interval.upper is None:
            return self.code_max
        code, is_exact = self.code(interval.upper)
        return code - 1 if is_exact and not interval.has_upper_inside else code + self.grain - 1


class PaddedInt(CodePart, frozen=True, kw_only=True):
    """`{id:06d}`; with an offset, which makes the codes of negative numbers positive, `{n:+06d}`.

    Code 0 of signed numbers is not used, so that the greatest number has a counterpart.
    """

    kind: type[int]
    offset: int = 0

    def code(self, value: Any) -> tuple[int, bool]:
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse_type("an int", value)
        code = int(value) + self.offset
        return code, code >= bool(self.offset)

    def value(self, code: int) -> Any:
        if self.offset and not code:
            raise ValueError(code)
        return self.kind(code - self.offset)


class FixedPoint(CodePart, frozen=True, kw_only=True):
    """`{amount:D12.2}`: 12 digits in total, 2 of them after the point. Code 0 is not used."""

    places: int

    @property
    def _offset(self) -> int:
        return (self.code_max + 1) // 2

    def code(self, value: Any) -> tuple[int, bool]:
        if isinstance(value, int) and not isinstance(value, bool):
            units, is_exact = value * 10**self.places, True
        elif isinstance(value, Decimal) and value.is_finite():
            units, is_exact = self._units(value)
        else:
            self.refuse_type("a finite Decimal", value)
        return max(units + self._offset, 0), is_exact and units > -self._offset

    def _units(self, value: Decimal) -> tuple[int, bool]:
        # With integers, because decimal arithmetic rounds to the precision of the context.
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int), "the value is finite"
        if not value:
            return 0, True
        if value.adjusted() + self.places >= self.width:
            return (-self._offset if sign else self._offset), True
        shift = exponent + self.places
        magnitude, rest = int("".join(map(str, digits))), 0
        if shift >= 0:
            magnitude *= 10**shift
        elif -shift > len(digits):
            magnitude, rest = 0, magnitude
        else:
            magnitude, rest = divmod(magnitude, 10**-shift)
        return (-magnitude - bool(rest) if sign else magnitude), not rest

    def value(self, code: int) -> Decimal:
        if code == 0:
            raise ValueError(code)
        units = code - self._offset
        return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -self.places))


class Truth(CodePart, frozen=True):
    """A bool."""

    def code(self, value: Any) -> tuple[int, bool]:
        if not isinstance(value, bool):
            self.refuse_type("a bool", value)
        return int(value), True

    def value(self, code: int) -> bool:
        return bool(code)


class Moment(CodePart, frozen=True):
    """`{at:desc}`, in the format of .NET programs.

    Their keys may have a seventh digit of a second. Such a key is read as an Instant, which keeps
    that digit when it is written and ignores it in comparisons.
    """

    grain: ClassVar[int] = TICKS_PER_MICROSECOND

    def code(self, value: Any) -> tuple[int, bool]:
        if not isinstance(value, datetime):
            self.refuse_type("a datetime with a time zone", value)
        if value.utcoffset() is None:
            raise InvalidKeyError(
                "NaiveDatetime",
                f"The datetime in the key field {self.field!r} has no time zone.",
                facts={"field": self.field},
                hint="Add one: datetime(..., tzinfo=UTC).",
            )
        return (value - _YEAR_ONE) // _MICROSECOND * TICKS_PER_MICROSECOND, True

    def own_code(self, value: Any) -> tuple[int, bool]:
        code, is_exact = self.code(value)
        digit = _SEVENTH_DIGIT.search(getattr(value, "text", ""))
        return code + (int(digit[1]) if digit else 0), is_exact

    def value(self, code: int) -> datetime:
        microseconds, ticks = divmod(code, TICKS_PER_MICROSECOND)
        moment = _YEAR_ONE + microseconds * _MICROSECOND
        if not ticks:
            return moment
        seconds = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
        return Instant.of(moment, f"{seconds}{ticks}Z")


class Day(CodePart, frozen=True):
    """`{day:asc}`."""

    def code(self, value: Any) -> tuple[int, bool]:
        if not isinstance(value, date) or isinstance(value, datetime):
            self.refuse_type("a date", value)
        return value.year * 10_000 + value.month * 100 + value.day, True

    def value(self, code: int) -> date:
        return date(code // 10_000, code // 100 % 100, code % 100)


class Guid(CodePart, frozen=True):
    """A UUID, whose text sorts as its number does."""

    @property
    def letters(self) -> str:
        return "0123456789abcdef-"

    @property
    def pattern(self) -> str:
        return "-".join(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12))

    def code(self, value: Any) -> tuple[int, bool]:
        if not isinstance(value, UUID):
            self.refuse_type("a UUID", value)
        return value.int, True

    def value(self, code: int) -> UUID:
        return UUID(int=code)

    def write(self, code: int) -> str:
        return str(UUID(int=code))

    def read(self, text: str) -> int:
        return UUID(text).int


def padded_int(field: str, digits: int, kind: type[int], *, descends: bool = False) -> CodePart:
    domain = f"an int of up to {digits} digits, not negative"
    return PaddedInt(field, 10**digits - 1, digits, domain, descends, kind=kind)


def signed_int(field: str, digits: int, kind: type[int], *, descends: bool) -> CodePart:
    domain = f"an int of up to {digits} digits"
    offset = 10**digits
    return PaddedInt(field, 2 * offset - 1, digits + 1, domain, descends, kind=kind, offset=offset)


def complement(field: str, bits: int, kind: type[int]) -> CodePart:
    """Return the greatest int of so many bits minus the number, as .NET programs write it."""
    code_max = 2 ** (bits - 1) - 1
    domain = f"an int of {bits} bits, not negative"
    return PaddedInt(field, code_max, len(str(code_max)), domain, True, kind=kind)  # noqa: FBT003


def fixed_point(field: str, digits: int, places: int) -> CodePart:
    domain = f"a number of up to {digits} digits, {places} of them after the point"
    return FixedPoint(field, 2 * 10**digits - 1, digits + 1, domain, places=places)


def truth(field: str) -> CodePart:
    return Truth(field, 1, 1, "a bool")


def moment(field: str, *, descends: bool) -> CodePart:
    return Moment(field, DOTNET_TICKS_MAX, 19, "a time in the years 1 to 9999 in UTC", descends)


def day(field: str, *, descends: bool) -> CodePart:
    return Day(field, _LAST_DAY, 8, "a date", descends)


def guid(field: str) -> CodePart:
    return Guid(field, 2**128 - 1, 36, "a UUID")
