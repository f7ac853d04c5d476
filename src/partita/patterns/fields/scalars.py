"""The stored form of each scalar type, and how it is read. Pure, strict in both directions."""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from partita.patterns.protocol.values import Instant, Int32, Value
from partita.tables import edm, limits
from partita.ticks import TICKS_PER_MICROSECOND

_DECIMAL_DIGITS_MAX = 64
"""Decimals with up to this many digits before and after the point are written without exponent."""
_YEARS = "the value is not within the years 1601 to 9999"


class UnfitError(ValueError):
    """A value does not fit; the codec that catches it adds the name of the field."""

    def __init__(
        self, code: str = "PropertyTypeMismatch", reason: str = "", hint: str = ""
    ) -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason
        self.hint = hint


class Scalar(msgspec.Struct, frozen=True):
    """How values of one type are stored."""

    expected: str
    """The expected type, in words. Part of the format of partita.lock: never change it."""
    edm: str
    to_stored: Callable[[Any], Value]
    from_stored: Callable[[Value], Any]
    is_ordered: bool = True


def scalar_for(kind: type, bytes_max: int | None) -> Scalar | None:
    """Return how a type is stored; None if it is not a scalar."""
    if kind is str:
        return Scalar("text", edm.STRING, partial(_text, bytes_max), partial(_text, None))
    if kind is bytes:
        return Scalar("bytes", edm.BINARY, partial(_octets, bytes_max), partial(_octets, None))
    return _SCALARS.get(kind)


def _exact(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise UnfitError
    return value


def _whole(low: int, high: int, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnfitError
    if not low <= value <= high:
        raise UnfitError("PropertyOutOfRange", f"the value is not within {low} to {high}")
    return int(value)


_int64 = partial(_whole, edm.INT64_MIN, edm.INT64_MAX)


def _int32(value: Any) -> Int32:
    try:
        return Int32(_whole(edm.INT32_MIN, edm.INT32_MAX, value))
    except UnfitError as error:
        if error.code == "PropertyOutOfRange":
            error.hint = "Annotate the field as int, which is stored in 64 bits."
        raise


def _double(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnfitError
    try:
        made = float(value)
    except OverflowError:
        made = math.inf
    if made != value:
        raise UnfitError("PropertyOutOfRange", "the int has no exact float value")
    return made


def _text(bytes_max: int | None, value: Any) -> str:
    if not isinstance(value, str):
        raise UnfitError
    if type(value) is not str:
        value = str.__str__(value)  # str() of an Enum member would return its name
    return fitting_text(bytes_max, value)


def fitting_text(bytes_max: int | None, text: str) -> str:
    """Return a text that the service can store, or raise UnfitError."""
    if (
        bytes_max is not None
        and len(text) * 4 > bytes_max
        and 2 * edm.utf16_length(text) > bytes_max
    ):
        raise _too_large(bytes_max)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnfitError("PropertyOutOfRange", "the text has a lone surrogate") from error
    return text


def _too_large(bytes_max: int) -> UnfitError:
    return UnfitError(
        "PropertyTooLarge",
        f"the value takes more than {bytes_max} bytes when it is stored",
        "Declare the field InBlob.",
    )


def _octets(bytes_max: int | None, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise UnfitError
    if bytes_max is not None and len(value) > bytes_max:
        raise _too_large(bytes_max)
    return bytes(value)


def _guid(value: Any) -> UUID:
    if not isinstance(value, UUID):
        raise UnfitError
    return value


def _moment(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise UnfitError
    if value.tzinfo is None or value.utcoffset() is None:
        raise UnfitError(
            "NaiveDatetime",
            "the value has no time zone",
            "Add one: datetime(..., tzinfo=UTC).",
        )
    # An Instant that was computed from another one has no text: it is stored by its value.
    if isinstance(value, Instant) and hasattr(value, "text"):
        return value
    try:
        moment = value.astimezone(UTC)
    except OverflowError as error:
        raise UnfitError("PropertyOutOfRange", _YEARS) from error
    if moment.year < 1601:
        raise UnfitError("PropertyOutOfRange", _YEARS)
    return datetime.combine(moment.date(), moment.timetz())


def _read_moment(stored: Any) -> datetime:
    if not isinstance(stored, datetime):
        raise UnfitError
    return stored


def _date_text(value: Any) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise UnfitError
    return value.isoformat()


def _read_date(stored: Any) -> date:
    try:
        found = date.fromisoformat(stored)
    except (TypeError, ValueError) as error:
        raise UnfitError from error
    if found.isoformat() != stored:
        raise UnfitError  # not the canonical text, which filters compare with
    return found


def _time_text(value: Any) -> str:
    if not isinstance(value, time):
        raise UnfitError
    if value.tzinfo is not None:
        raise UnfitError(reason="the value has a time zone", hint="Use a datetime instead.")
    return value.isoformat()


def _read_time(stored: Any) -> time:
    try:
        found = time.fromisoformat(stored)
    except (TypeError, ValueError) as error:
        raise UnfitError from error
    if found.tzinfo is not None or found.isoformat() != stored:
        raise UnfitError
    return found


def _ticks(value: Any) -> int:
    if not isinstance(value, timedelta):
        raise UnfitError
    return _int64((value // timedelta(microseconds=1)) * TICKS_PER_MICROSECOND)


def _read_ticks(stored: Any) -> timedelta:
    microseconds, rest = divmod(_int64(stored), TICKS_PER_MICROSECOND)
    if rest:
        raise UnfitError(reason="the stored value has a fraction of a microsecond")
    return timedelta(microseconds=microseconds)


def _number_text(value: Any) -> str:
    """Format equal numbers as equal text, so that `eq` on the service finds them."""
    if not isinstance(value, Decimal):
        raise UnfitError
    if not value.is_finite():
        raise UnfitError("PropertyOutOfRange", "the value is not finite")
    if not value:
        return "0"
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    kept = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(kept)
    shortest = Decimal((sign, tuple(map(int, kept)), exponent))
    if exponent >= -_DECIMAL_DIGITS_MAX and exponent + len(kept) <= _DECIMAL_DIGITS_MAX:
        return f"{shortest:f}"
    return fitting_text(limits.PROPERTY_BYTES_MAX, str(shortest))


def _read_number(stored: Any) -> Decimal:
    if not isinstance(stored, str):
        raise UnfitError
    try:
        found = Decimal(stored)
    except InvalidOperation as error:
        raise UnfitError(reason="the stored text is not a number") from error
    if not found.is_finite():
        raise UnfitError(reason="the stored number is not finite")
    return found


_SCALARS: dict[type, Scalar] = {
    bool: Scalar("a bool", edm.BOOLEAN, partial(_exact, bool), partial(_exact, bool)),
    int: Scalar("an int of 64 bits", edm.INT64, _int64, _int64),
    Int32: Scalar("an int of 32 bits", edm.INT32, _int32, _int32),
    float: Scalar("a float", edm.DOUBLE, _double, _double),
    UUID: Scalar("a UUID", edm.GUID, _guid, _guid),
    datetime: Scalar("a datetime with a zone", edm.DATETIME, _moment, _read_moment),
    Instant: Scalar("a datetime with a zone", edm.DATETIME, _moment, _read_moment),
    date: Scalar("a date", edm.STRING, _date_text, _read_date),
    time: Scalar("a time without zone", edm.STRING, _time_text, _read_time),
    timedelta: Scalar("a timedelta", edm.INT64, _ticks, _read_ticks),
    Decimal: Scalar("a Decimal", edm.STRING, _number_text, _read_number, is_ordered=False),
}
