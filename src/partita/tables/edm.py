"""The eight property types: parse, print, compare.

A property has one form everywhere: the members of minimal-metadata JSON. `Edm.String`,
`Edm.Int32`, `Edm.Boolean` and finite `Edm.Double` are the JSON value alone; the other types
are text with a member `<name>@odata.type` before it. Equal values have equal text.
"""

import binascii
import math
import re
from datetime import date, datetime
from functools import lru_cache

from partita.errors import InvalidPropertyError, LimitExceededError
from partita.refusals import unprocessable
from partita.tables import limits
from partita.ticks import TICKS_PER_DAY, TICKS_PER_SECOND

STRING = "Edm.String"
INT32 = "Edm.Int32"
INT64 = "Edm.Int64"
DOUBLE = "Edm.Double"
BOOLEAN = "Edm.Boolean"
DATETIME = "Edm.DateTime"
GUID = "Edm.Guid"
BINARY = "Edm.Binary"

TYPE_SUFFIX = "@odata.type"

Scalar = str | int | float | bool
"""The type of a JSON member of an entity."""
Members = dict[str, Scalar]
"""Custom properties in stored form, annotations included, in their order."""

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

SHORT_TEXT = limits.PROPERTY_BYTES_MAX // 4
"""A code point is at most two units, so texts up to this length need not be counted."""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
TICKS_MIN = (date(1601, 1, 1).toordinal() - _EPOCH_DAY) * TICKS_PER_DAY
TICKS_MAX = (date(9999, 12, 31).toordinal() + 1 - _EPOCH_DAY) * TICKS_PER_DAY - 1

_DATETIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,20}))?)?)?"
    r"(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))?",
    re.ASCII,
)
_USUAL_DATETIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,7}))?Z", re.ASCII)
"""The format of most clients: it needs no conversion, only a check of the date."""
_FIRST_YEAR = "1601"
_INTEGER = re.compile(rf"[+-]?\d{{1,{limits.NUMBER_DIGITS_MAX}}}", re.ASCII)
_USUAL_INT64 = re.compile(r"[1-9]\d{0,17}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][+-]?\d{1,6})?", re.ASCII)
GUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOT_FINITE = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "INF": "Infinity",
    "-INF": "-Infinity",
}


def ticks_of(text: str) -> int | None:
    """Parse an ISO 8601 text into ticks; no zone means UTC. None if it is invalid."""
    match = _DATETIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = (
        match.groups()
    )
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    ticks = days * TICKS_PER_DAY + (hours * 3600 + minutes * 60 + seconds) * TICKS_PER_SECOND
    if fraction:
        ticks += int(fraction[:7].ljust(7, "0"))
    if sign:
        offset = (int(zone_hours) * 3600 + int(zone_minutes) * 60) * TICKS_PER_SECOND
        ticks += -offset if sign == "+" else offset
    return ticks


def text_of(ticks: int) -> str:
    """Print ticks as the service does: UTC, trailing zeros of the fraction trimmed."""
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    return text_of_second(seconds) + f".{fraction:07}".rstrip(".0") + "Z"


@lru_cache(maxsize=1024)
def text_of_second(seconds: int) -> str:
    """Print a second; the writes of one second share the result."""
    days, rest = divmod(seconds, 86_400)
    minutes, second = divmod(rest, 60)
    hour, minute = divmod(minutes, 60)
    day = date.fromordinal(days + _EPOCH_DAY)
    return f"{day.year:04}-{day.month:02}-{day.day:02}T{hour:02}:{minute:02}:{second:02}"


def utf16_length(text: str) -> int:
    """Count UTF-16 code units, the unit of the service's limits."""
    if text.isascii():
        return len(text)
    return len(text) + sum(character > "\uffff" for character in text)


def type_of(members: Members, name: str) -> str:
    """Return the type of an existing property."""
    annotation = members.get(name + TYPE_SUFFIX)
    if annotation is not None:
        return str(annotation)
    return _PLAIN_TYPES[type(members[name])]


_PLAIN_TYPES: dict[type, str] = {str: STRING, bool: BOOLEAN, int: INT32, float: DOUBLE}


def canonical(name: str, value: object, annotation: str | None) -> tuple[str | None, Scalar]:
    """Return the annotation to store (None if JSON implies it) and the value in stored form."""
    if annotation is None:
        if type(value) is int:
            if INT32_MIN <= value <= INT32_MAX:
                return None, value
        elif type(value) is float:
            return _double(name, value)
        elif type(value) is bool:
            return None, value
        elif type(value) is str:
            return None, value if len(value) <= SHORT_TEXT else _string(name, value)
        raise _bad_value(name)
    parse = _PARSERS.get(annotation)
    if parse is None:
        raise _bad_value(name)
    return parse(name, value)


def _bad_value(name: str) -> InvalidPropertyError:
    return unprocessable(
        InvalidPropertyError, {"property": name}, "Send a value that fits the type of the property."
    )


def _too_large(name: str) -> LimitExceededError:
    return LimitExceededError(
        "PropertyValueTooLarge",
        "The property value exceeds the maximum allowed size (64KB). If the property value is a"
        " string, it is UTF-16 encoded and the maximum number of characters should be 32K or less.",
        facts={"property": name},
    )


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _bad_value(name)
    if len(value) > SHORT_TEXT and utf16_length(value) * 2 > limits.PROPERTY_BYTES_MAX:
        raise _too_large(name)
    return value


def _integer(name: str, value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    raise _bad_value(name)


def _int32(name: str, value: object) -> int:
    number = _integer(name, value)
    if not INT32_MIN <= number <= INT32_MAX:
        raise _bad_value(name)
    return number


def _annotated_string(name: str, value: object) -> tuple[str | None, Scalar]:
    return None, _string(name, value)


def _annotated_int32(name: str, value: object) -> tuple[str | None, Scalar]:
    return None, _int32(name, value)


def _int64(name: str, value: object) -> tuple[str | None, Scalar]:
    if type(value) is str and _USUAL_INT64.fullmatch(value):
        return INT64, value  # as most clients print it
    number = _integer(name, value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise _bad_value(name)
    return INT64, str(number)


def _double(name: str, value: object) -> tuple[str | None, Scalar]:
    if type(value) is str:
        special = _NOT_FINITE.get(value)
        if special is not None:
            return DOUBLE, special
        if not _NUMBER.fullmatch(value):
            raise _bad_value(name)
    elif type(value) is float and math.isfinite(value):
        return None, value or 0.0  # -0.0 reads back as 0.0
    elif type(value) is not int:
        raise _bad_value(name)
    try:
        number = float(value)
    except OverflowError:
        raise _bad_value(name) from None
    if not math.isfinite(number):
        raise _bad_value(name)
    return None, number or 0.0


def _boolean(name: str, value: object) -> tuple[str | None, Scalar]:
    if type(value) is bool:
        return None, value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return None, value.lower() == "true"
    raise _bad_value(name)


def _datetime(name: str, value: object) -> tuple[str | None, Scalar]:
    if not isinstance(value, str):
        raise _bad_value(name)
    if usual := _USUAL_DATETIME.fullmatch(value):
        whole, fraction = usual.groups()
        if whole >= _FIRST_YEAR and _is_moment(whole):
            if fraction is None:
                return DATETIME, value
            digits = fraction.rstrip("0")
            return DATETIME, f"{whole}.{digits}Z" if digits else whole + "Z"
    ticks = ticks_of(value)
    if ticks is None:
        raise _bad_value(name)
    if not TICKS_MIN <= ticks <= TICKS_MAX:
        raise InvalidPropertyError(
            "OutOfRangeInput",
            f"The '{name}' parameter of value '{_us_date(str(value))}' is out of range.",
            facts={"property": name},
        )
    return DATETIME, text_of(ticks)


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _us_date(text: str) -> str:
    clock = (text[11:19] or "00:00:00").ljust(8, "0")
    return f"{text[5:7]}/{text[8:10]}/{text[:4]} {clock}"


def _guid(name: str, value: object) -> tuple[str | None, Scalar]:
    if not (isinstance(value, str) and GUID_TEXT.fullmatch(value)):
        raise _bad_value(name)
    return GUID, value.lower()


def _binary(name: str, value: object) -> tuple[str | None, Scalar]:
    if not isinstance(value, str):
        raise _bad_value(name)
    try:
        raw = binascii.a2b_base64(value.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise _bad_value(name) from None
    if len(raw) > limits.PROPERTY_BYTES_MAX:
        raise _too_large(name)
    return BINARY, binascii.b2a_base64(raw, newline=False).decode("ascii")


_PARSERS = {
    STRING: _annotated_string,
    INT32: _annotated_int32,
    INT64: _int64,
    DOUBLE: _double,
    BOOLEAN: _boolean,
    DATETIME: _datetime,
    GUID: _guid,
    BINARY: _binary,
}


def size_of(members: Members, name: str) -> int:
    """Return the bytes that the service counts for a value (the billing formula)."""
    value = members[name]
    kind = type_of(members, name)
    if kind == STRING:
        return 2 * utf16_length(str(value)) + 4
    if kind == BINARY:
        return len(binascii.a2b_base64(str(value))) + 4
    return _FIXED_SIZES[kind]


_FIXED_SIZES = {DATETIME: 8, GUID: 16, DOUBLE: 8, INT64: 8, INT32: 4, BOOLEAN: 1}
