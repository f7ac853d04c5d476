"""Order-preserving keys: values as bytes, and the text keys that the table guide builds.

`encode_key(a) < encode_key(b)` exactly when `a < b`, for values of one type and for tuples whose
places hold one type each. An encoding is never the prefix of another, so that keys may be
joined. Every key is drawn as a tag byte and what follows it:

    bool      04 | 00 or 01
    int       08 | sign and length | magnitude, big-endian (all inverted below zero)
    Decimal   0c | 80 zero, c0 or 40 sign | exponent as int | digits | 00 (inverted below zero)
    str       10 | UTF-8, 00 written as 00 ff | 00 00
    bytes     14 | the same
    UUID      18 | 16 bytes
    date      1c | ordinal day, 4 bytes
    datetime  20 | microseconds since 1970 UTC, as int
    tuple     24 | its keys | 00
    float     28 | IEEE 754 double: sign bit inverted, or all bits below zero
    timedelta 2c | microseconds, as int
    time      30 | microseconds since midnight, as int
    datetime  34 | without a time zone: microseconds since 1970 on its own clock, as int

Aware datetimes sort by the moment and before all naive ones. A time has no time zone. A float is a
number or an infinity; -0.0 is written as 0.0, to which it is equal.
"""

import struct
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from partita.errors import DamageError, InvalidKeyError

Key = (
    bool
    | int
    | float
    | Decimal
    | str
    | bytes
    | UUID
    | date
    | datetime
    | time
    | timedelta
    | tuple["Key", ...]
)

_BOOL, _INT, _DECIMAL, _STR, _BYTES, _UUID, _DATE, _DATETIME, _TUPLE = range(0x04, 0x28, 4)
_FLOAT, _TIMEDELTA, _TIME, _NAIVE = range(0x28, 0x38, 4)
_END = b"\x00"
_TEXT_END = b"\x00\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone on purpose
_MICROSECOND = timedelta(microseconds=1)
_INVERTED = bytes(255 - byte for byte in range(256))
_SHORT_MAX = 0x7E
"""Magnitudes up to this many bytes have their length in the sign byte."""

DOTNET_EPOCH_TICKS = 621_355_968_000_000_000
"""DateTime ticks of 1970-01-01."""
DOTNET_TICKS_MAX = 3_155_378_975_999_999_999
"""DateTime.MaxValue.Ticks."""


def encode_key(value: Key) -> bytes:  # noqa: PLR0911, PLR0912 - one switch
    """Return bytes that sort as the value does.

    Decimals must be finite, floats not NaN, times without a time zone; equal values of one type
    have equal bytes (the decimals 1.0 and 1.00, the floats 0.0 and -0.0).
    """
    match value:
        case bool():
            return bytes((_BOOL, value))
        case int():
            return bytes((_INT,)) + _encode_int(value)
        case str():
            return bytes((_STR,)) + _encode_text(_utf8(value))
        case bytes():
            return bytes((_BYTES,)) + _encode_text(value)
        case datetime():
            return _encode_datetime(value)
        case date():
            return bytes((_DATE,)) + value.toordinal().to_bytes(4)
        case UUID():
            return bytes((_UUID,)) + value.bytes
        case Decimal():
            return bytes((_DECIMAL,)) + _encode_decimal(value)
        case float():
            return bytes((_FLOAT,)) + _encode_float(value)
        case timedelta():
            return bytes((_TIMEDELTA,)) + _encode_int(value // _MICROSECOND)
        case time():
            return bytes((_TIME,)) + _encode_int(_since_midnight(value) // _MICROSECOND)
        case tuple():
            return bytes((_TUPLE,)) + b"".join(map(encode_key, value)) + _END
        case _:
            raise _unsupported("A key cannot contain a value of this type.")


def decode_key(encoded: bytes) -> Key:
    """Return the value of an encoded key; datetimes are returned in UTC."""
    try:
        value, end = _decode(encoded, 0)
    except (IndexError, ValueError, ArithmeticError) as error:
        raise _malformed() from error
    if end != len(encoded):
        raise _malformed()
    return value


def pad(number: int, width: int) -> str:
    """Print a number so that the order of texts is the order of numbers."""
    text = f"{number:0{width}d}"
    if number < 0 or len(text) > width:
        raise InvalidKeyError(
            "OutOfRangeInput",
            f"{number} does not fit a key of {width} digits.",
            facts={"number": number, "width": width},
            hint="Choose a width for the largest number; negative numbers need an offset.",
        )
    return text


def inverted_ticks(ticks: int) -> str:
    """Print a time so that later times sort first (the log tail pattern of the guide).

    `ticks` count 100 ns since 1970; the text is DateTime.MaxValue minus the time, 19 digits, as
    .NET programs on the same table write it.
    """
    return pad(DOTNET_TICKS_MAX - DOTNET_EPOCH_TICKS - ticks, 19)


def prefix_range(prefix: str) -> tuple[str, str | None]:
    """Return the half-open range of all texts that start with `prefix` (None: no end)."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return prefix, None
    following = ord(stem[-1]) + 1
    if following == 0xD800:  # surrogates are not characters
        following = 0xE000
    return prefix, stem[:-1] + chr(following)


def _encode_int(number: int) -> bytes:
    magnitude = abs(number)
    count = (magnitude.bit_length() + 7) // 8
    if count <= _SHORT_MAX:
        encoded = bytes((0x80 + count,)) + magnitude.to_bytes(count)
    else:
        encoded = b"\xff" + count.to_bytes(4) + magnitude.to_bytes(count)
    return encoded.translate(_INVERTED) if number < 0 else encoded


def _encode_text(raw: bytes) -> bytes:
    return raw.replace(b"\x00", b"\x00\xff") + _TEXT_END


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _unsupported("A key cannot contain an unpaired surrogate.") from error


def _encode_datetime(moment: datetime) -> bytes:
    if moment.utcoffset() is None:
        local = moment.replace(tzinfo=None) - _NAIVE_EPOCH
        return bytes((_NAIVE,)) + _encode_int(local // _MICROSECOND)
    return bytes((_DATETIME,)) + _encode_int((moment - _EPOCH) // _MICROSECOND)


def _since_midnight(clock: time) -> timedelta:
    if clock.tzinfo is not None:
        raise _unsupported(
            "A key cannot contain a time with a time zone.",
            "Give a time without tzinfo, or a datetime.",
        )
    return datetime.combine(_NAIVE_EPOCH, clock) - _NAIVE_EPOCH


def _encode_float(number: float) -> bytes:
    if number != number:  # noqa: PLR0124 - NaN
        raise _unsupported(
            "A key cannot contain NaN.",
            "Give a number or an infinity, and keep NaN in the value.",
        )
    raw = struct.pack(">d", number + 0.0)  # the sum of -0.0 and 0.0 is 0.0
    if raw[0] & 0x80:
        return raw.translate(_INVERTED)
    return bytes((raw[0] | 0x80,)) + raw[1:]


def _decode_float(raw: bytes) -> float:
    plain = bytes((raw[0] & 0x7F,)) + raw[1:] if raw[0] & 0x80 else raw.translate(_INVERTED)
    try:
        number: float = struct.unpack(">d", plain)[0]
    except struct.error as error:
        raise _malformed() from error
    return number


def _encode_decimal(number: Decimal) -> bytes:
    if not number.is_finite():
        raise _unsupported("A key cannot contain a decimal that is not finite.")
    if not number:
        return b"\x80"
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0").encode()
    encoded = b"\xc0" + _encode_int(number.adjusted()) + digits + _END
    return _invert_decimal(encoded) if number < 0 else encoded


def _invert_decimal(encoded: bytes) -> bytes:
    return b"\x40" + encoded[1:].translate(_INVERTED)


def _decode(encoded: bytes, start: int) -> tuple[Key, int]:  # noqa: PLR0911 - the same switch
    tag, start = encoded[start], start + 1
    match tag:
        case 0x04:
            return (False, True)[encoded[start]], start + 1
        case 0x08:
            return _decode_int(encoded, start)
        case 0x0C:
            return _decode_decimal(encoded, start)
        case 0x10:
            raw, end = _decode_text(encoded, start)
            return raw.decode(), end
        case 0x14:
            return _decode_text(encoded, start)
        case 0x18:
            return UUID(bytes=encoded[start : start + 16]), start + 16
        case 0x1C:
            return date.fromordinal(int.from_bytes(encoded[start : start + 4])), start + 4
        case 0x20:
            microseconds, end = _decode_int(encoded, start)
            return _EPOCH + microseconds * _MICROSECOND, end
        case 0x24:
            return _decode_tuple(encoded, start)
        case 0x28:
            return _decode_float(encoded[start : start + 8]), start + 8
        case 0x2C | 0x30 | 0x34:
            microseconds, end = _decode_int(encoded, start)
            return _of_microseconds(tag, microseconds * _MICROSECOND), end
        case _:
            raise _malformed()


def _of_microseconds(tag: int, since: timedelta) -> Key:
    if tag == _TIMEDELTA:
        return since
    moment = _NAIVE_EPOCH + since
    if tag == _NAIVE:
        return moment
    if moment.date() != _NAIVE_EPOCH.date():
        raise _malformed()
    return moment.time()


def _decode_int(encoded: bytes, start: int) -> tuple[int, int]:
    is_negative = encoded[start] < 0x80
    plain = encoded[start : start + 5]
    if is_negative:
        plain = plain.translate(_INVERTED)
    count, body = plain[0] - 0x80, start + 1
    if count > _SHORT_MAX:
        count, body = int.from_bytes(plain[1:5]), start + 5
    raw = encoded[body : body + count]
    if len(raw) != count:
        raise _malformed()
    magnitude = int.from_bytes(raw.translate(_INVERTED) if is_negative else raw)
    return -magnitude if is_negative else magnitude, body + count


def _decode_decimal(encoded: bytes, start: int) -> tuple[Decimal, int]:
    if encoded[start] == 0x80:
        return Decimal(0), start + 1
    is_negative = encoded[start] == 0x40
    plain = encoded.translate(_INVERTED) if is_negative else encoded
    adjusted, digits_start = _decode_int(plain, start + 1)
    end = plain.index(_END, digits_start)
    digits = tuple(digit - ord("0") for digit in plain[digits_start:end])
    return Decimal((int(is_negative), digits, adjusted - len(digits) + 1)), end + 1


def _decode_text(encoded: bytes, start: int) -> tuple[bytes, int]:
    end = encoded.index(_END, start)
    while encoded[end + 1] == 0xFF:
        end = encoded.index(_END, end + 2)
    return encoded[start:end].replace(b"\x00\xff", b"\x00"), end + 2


def _decode_tuple(encoded: bytes, start: int) -> tuple[tuple[Key, ...], int]:
    values: list[Key] = []
    while encoded[start] != 0:
        value, start = _decode(encoded, start)
        values.append(value)
    return tuple(values), start + 1


def _unsupported(message: str, hint: str = "") -> InvalidKeyError:
    return InvalidKeyError("InvalidInput", message, hint=hint)


def _malformed() -> DamageError:
    return DamageError("StoreDamaged", "The stored key was not made by encode_key.")
