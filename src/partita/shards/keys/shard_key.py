"""The encoding of sharding keys: one KeyType for each kind of key.

`encode(a) < encode(b)` exactly if `a < b`, and equal keys have equal bytes: catalogs, caches and
ranges compare bytes only. The bytes are stored in catalogs and never change:

    int        8 bytes, the number + 2**63
    str        UTF-8
    bytes      as they are
    UUID       16 bytes, as PostgreSQL orders them
    date       4 bytes, days since 0001-01-01 (which is day 1)
    datetime   8 bytes, microseconds since 0001-01-01 UTC
    timedelta  10 bytes, microseconds + 2**79
    Decimal    80 zero | 81, exponent + 2**23 in 3 bytes, each digit + 1, 00 | 7f and the
               complement of the rest below zero
    tuple      its parts; str and bytes parts write 00 as 00 ff and end with 00 01
    bucket     4 bytes: the range of a hash map
"""

import struct
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from partita.errors import DamageError, InvalidShardKeyError

KEY_BYTES_MAX = 512
"""The maximum length of an encoded key."""
BUCKETS_MAX = 2**31
"""The maximum number of buckets of a hash map."""
TUPLE_PARTS_MAX = 16
"""The maximum number of parts of a composite key."""

_INT_BIAS = 2**63
_TIMEDELTA_BIAS = 2**79
_EXPONENT_BIAS = 2**23
_MICROSECOND = timedelta(microseconds=1)
_FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECONDS_MAX = (datetime.max.replace(tzinfo=UTC) - _FIRST_MOMENT) // _MICROSECOND
_INVERTED = bytes(255 - byte for byte in range(256))
_PART_END = b"\x00\x01"
_pack_int = struct.Struct(">Q").pack
_unpack_int = struct.Struct(">Q").unpack


class KeyType(msgspec.Struct, frozen=True, eq=False):
    """One kind of sharding key, identified by its name.

    `encode` raises InvalidShardKeyError for other values. A bound of a range is a key, or the first
    parts of a composite key: `("eu",)` sorts before `("eu", anything)`.
    """

    name: str
    parts: tuple[type, ...]
    """The Python types of the key: one, or one per part of a composite key."""
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    encode_bound: Callable[[Any], bytes]
    decode_bound: Callable[[bytes], Any]
    lowest: bytes
    """A lower limit of all encoded keys of this type."""

    @property
    def is_composite(self) -> bool:
        return self.name.startswith("tuple[")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyType) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"key_type_named({self.name!r})"

    def __reduce__(self) -> tuple[Callable[[str], "KeyType"], tuple[str]]:
        return key_type_named, (self.name,)


def key_type(declared: object) -> KeyType:
    """Return the key type for `key=int`, `key=(str, int)` and so on."""
    if isinstance(declared, KeyType):
        return declared
    if isinstance(declared, tuple):
        return _composite(tuple(_name_of(part) for part in declared))
    return _SCALARS[_name_of(declared)]


def key_type_named(name: str) -> KeyType:
    """Return the key type with a name from a catalog: `int`, `tuple[str,int]`."""
    if name.startswith("tuple[") and name.endswith("]"):
        return _composite(tuple(name[6:-1].split(",")))
    if name == BUCKET.name:
        return BUCKET
    if name not in _SCALARS:
        raise _unknown_type(name)
    return _SCALARS[name]


def bucket_of(key: bytes, buckets: int) -> bytes:
    """Return the encoded bucket of an encoded key; it must be the same for every client."""
    digest = blake2b(key, digest_size=8).digest()
    return (int.from_bytes(digest) % buckets).to_bytes(4)


def _name_of(declared: object) -> str:
    if not isinstance(declared, type) or declared not in _NAMES:
        raise _unknown_type(getattr(declared, "__name__", type(declared).__name__))
    return _NAMES[declared]


@lru_cache(maxsize=256)
def _composite(names: tuple[str, ...]) -> KeyType:
    if not 2 <= len(names) <= TUPLE_PARTS_MAX or not _SCALARS.keys() >= set(names):
        raise _unknown_type(_tuple_name(names))
    shape = _Composite(tuple(_SCALARS[name] for name in names))
    return KeyType(
        name=shape.name,
        parts=tuple(part.parts[0] for part in shape.parts),
        encode=shape.encode,
        decode=shape.decode,
        encode_bound=shape.encode_bound,
        decode_bound=shape.decode_bound,
        lowest=b"".join(
            part.lowest + _PART_END if part.name in _ESCAPED else part.lowest
            for part in shape.parts
        ),
    )


def _tuple_name(names: Iterable[str]) -> str:
    return f"tuple[{','.join(names)}]"


class _Composite:
    """The codec of one composite key; no encoded part is a prefix of another value."""

    def __init__(self, parts: tuple[KeyType, ...]) -> None:
        self.parts = parts
        self.name = _tuple_name(part.name for part in parts)

    def encode(self, value: object) -> bytes:
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            _refuse(self.name, value)
        return self._join(value)

    def encode_bound(self, value: object) -> bytes:
        if not isinstance(value, tuple) or not 1 <= len(value) <= len(self.parts):
            _refuse(self.name, value)
        return self._join(value)

    def decode(self, encoded: bytes) -> tuple[object, ...]:
        values = self.decode_bound(encoded)
        if len(values) != len(self.parts):
            raise _damaged(self.name)
        return values

    def decode_bound(self, encoded: bytes) -> tuple[object, ...]:
        values: list[object] = []
        start = 0
        for part in self.parts:
            if start == len(encoded):
                break
            end = _part_end(part.name, encoded, start)
            raw = encoded[start:end]
            if part.name in _ESCAPED:
                raw = raw[:-2].replace(b"\x00\xff", b"\x00")
            values.append(part.decode(raw))
            start = end
        if start != len(encoded) or not values:
            raise _damaged(self.name)
        return tuple(values)

    def _join(self, values: tuple[object, ...]) -> bytes:
        encoded = b"".join(
            part.encode(value).replace(b"\x00", b"\x00\xff") + _PART_END
            if part.name in _ESCAPED
            else part.encode(value)
            for part, value in zip(self.parts, values, strict=False)
        )
        return encoded if len(encoded) <= KEY_BYTES_MAX else _refuse_long(encoded)


def _part_end(name: str, encoded: bytes, start: int) -> int:
    if name in _WIDTHS:
        return start + _WIDTHS[name]
    if name == "decimal":
        return _decimal_end(encoded, start)
    end = encoded.find(b"\x00", start)
    while encoded[end : end + 2] == b"\x00\xff":
        end = encoded.find(b"\x00", end + 2)
    if end < 0 or encoded[end : end + 2] != _PART_END:
        raise _damaged(name)
    return end + 2


def _decimal_end(encoded: bytes, start: int) -> int:
    sign = encoded[start]
    if sign == 0x80:
        return start + 1
    end = encoded.find(b"\x00" if sign == 0x81 else b"\xff", start + 4)
    if end < 0:
        raise _damaged("decimal")
    return end + 1


def _encode_int(value: object) -> bytes:
    # The exact type first, because every routed call executes this.
    if type(value) is not int and (not isinstance(value, int) or isinstance(value, bool)):
        _refuse("int", value)
    try:
        return _pack_int(value + _INT_BIAS)
    except struct.error:
        _refuse("int", value, "The number does not fit into 64 bits.")


def _decode_int(encoded: bytes) -> int:
    _expect(encoded, "int")
    (biased,) = _unpack_int(encoded)
    return int(biased) - _INT_BIAS


def _encode_str(value: object) -> bytes:
    if not isinstance(value, str):
        _refuse("str", value)
    try:
        # A subclass may override encode().
        encoded = str.encode(value)
    except UnicodeEncodeError:
        _refuse("str", value, "The text contains an unpaired surrogate.")
    return encoded if len(encoded) <= KEY_BYTES_MAX else _refuse_long(encoded)


def _decode_str(encoded: bytes) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise _damaged("str") from error


def _encode_bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        _refuse("bytes", value)
    return bytes(value) if len(value) <= KEY_BYTES_MAX else _refuse_long(value)


def _decode_bytes(encoded: bytes) -> bytes:
    return encoded


def _encode_uuid(value: object) -> bytes:
    if not isinstance(value, UUID):
        _refuse("uuid", value)
    return value.bytes


def _decode_uuid(encoded: bytes) -> UUID:
    _expect(encoded, "uuid")
    return UUID(bytes=encoded)


def _encode_date(value: object) -> bytes:
    if not isinstance(value, date) or isinstance(value, datetime):
        _refuse("date", value)
    return value.toordinal().to_bytes(4)


def _decode_date(encoded: bytes) -> date:
    _expect(encoded, "date")
    try:
        return date.fromordinal(int.from_bytes(encoded))
    except (ValueError, OverflowError) as error:
        raise _damaged("date") from error


def _encode_datetime(value: object) -> bytes:
    if not isinstance(value, datetime):
        _refuse("datetime", value)
    if value.utcoffset() is None:
        _refuse("datetime", value, "The datetime has no time zone.")
    microseconds = (value - _FIRST_MOMENT) // _MICROSECOND
    if not 0 <= microseconds <= _MICROSECONDS_MAX:
        _refuse("datetime", value, "The datetime is outside the years 1 to 9999 in UTC.")
    return microseconds.to_bytes(8)


def _decode_datetime(encoded: bytes) -> datetime:
    _expect(encoded, "datetime")
    try:
        return _FIRST_MOMENT + timedelta(microseconds=int.from_bytes(encoded))
    except OverflowError as error:
        raise _damaged("datetime") from error


def _encode_timedelta(value: object) -> bytes:
    if not isinstance(value, timedelta):
        _refuse("timedelta", value)
    return (value // _MICROSECOND + _TIMEDELTA_BIAS).to_bytes(10)


def _decode_timedelta(encoded: bytes) -> timedelta:
    _expect(encoded, "timedelta")
    try:
        return (int.from_bytes(encoded) - _TIMEDELTA_BIAS) * _MICROSECOND
    except OverflowError as error:
        raise _damaged("timedelta") from error


def _encode_decimal(value: object) -> bytes:
    if not isinstance(value, Decimal):
        _refuse("decimal", value)
    if not value.is_finite():
        _refuse("decimal", value, "The decimal is not finite.")
    if not value:
        return b"\x80"
    exponent = value.adjusted() + _EXPONENT_BIAS
    if not 0 <= exponent < 2 * _EXPONENT_BIAS:
        _refuse("decimal", value, "The exponent of the decimal does not fit into 24 bits.")
    sign, digits, _ = value.as_tuple()
    raw = bytes(digit + 1 for digit in digits).rstrip(b"\x01")
    encoded = b"\x81" + exponent.to_bytes(3) + raw + b"\x00"
    if len(encoded) > KEY_BYTES_MAX:
        _refuse_long(encoded)
    return b"\x7f" + encoded[1:].translate(_INVERTED) if sign else encoded


def _decode_decimal(encoded: bytes) -> Decimal:
    if encoded == b"\x80":
        return Decimal(0)
    is_negative = encoded[:1] == b"\x7f"
    plain = b"\x81" + encoded[1:].translate(_INVERTED) if is_negative else encoded
    raw = plain[4:-1]
    if plain[:1] != b"\x81" or plain[-1:] != b"\x00" or not raw or not _DIGITS.issuperset(raw):
        raise _damaged("decimal")
    exponent = int.from_bytes(plain[1:4]) - _EXPONENT_BIAS - len(raw) + 1
    return Decimal((int(is_negative), tuple(byte - 1 for byte in raw), exponent))


def _encode_bucket(value: object) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse("bucket", value)
    if not 0 <= value <= BUCKETS_MAX:
        _refuse("bucket", value, "The bucket number is out of range.")
    return value.to_bytes(4)


def _decode_bucket(encoded: bytes) -> int:
    _expect(encoded, "bucket")
    return int.from_bytes(encoded)


def _scalar(
    declared: type,
    encode: Callable[[object], bytes],
    decode: Callable[[bytes], object],
    *,
    name: str,
    lowest: bytes,
) -> KeyType:
    return KeyType(
        name=name,
        parts=(declared,),
        encode=encode,
        decode=decode,
        encode_bound=encode,
        decode_bound=decode,
        lowest=lowest,
    )


_DIGITS = frozenset(range(1, 11))
_ESCAPED = frozenset(("str", "bytes"))
_WIDTHS = {"int": 8, "uuid": 16, "date": 4, "datetime": 8, "timedelta": 10, "bucket": 4}
BUCKET = _scalar(int, _encode_bucket, _decode_bucket, name="bucket", lowest=bytes(4))
"""The key type of the ranges of a hash map; the number of buckets is the last bound."""
_SCALARS = {
    scalar.name: scalar
    for scalar in (
        _scalar(int, _encode_int, _decode_int, name="int", lowest=bytes(8)),
        _scalar(str, _encode_str, _decode_str, name="str", lowest=b""),
        _scalar(bytes, _encode_bytes, _decode_bytes, name="bytes", lowest=b""),
        _scalar(UUID, _encode_uuid, _decode_uuid, name="uuid", lowest=bytes(16)),
        _scalar(date, _encode_date, _decode_date, name="date", lowest=b"\x00\x00\x00\x01"),
        _scalar(datetime, _encode_datetime, _decode_datetime, name="datetime", lowest=bytes(8)),
        _scalar(
            timedelta,
            _encode_timedelta,
            _decode_timedelta,
            name="timedelta",
            lowest=_encode_timedelta(timedelta.min),
        ),
        _scalar(Decimal, _encode_decimal, _decode_decimal, name="decimal", lowest=b"\x7f"),
    )
}
_NAMES = {scalar.parts[0]: name for name, scalar in _SCALARS.items()}


def _expect(encoded: bytes, name: str) -> None:
    if len(encoded) != _WIDTHS[name]:
        raise _damaged(name)


def _refuse(expected: str, value: object, message: str = "") -> NoReturn:
    given = _described(value)
    raise InvalidShardKeyError(
        "InvalidShardKey",
        message or f"The sharding key must be {expected}, not {given}.",
        facts={"expected": expected, "given": given},
        hint="Pass the key in the key type of the shard map.",
    )


def _refuse_long(encoded: bytes) -> NoReturn:
    raise InvalidShardKeyError(
        "ShardKeyTooLong",
        f"The sharding key has {len(encoded)} bytes; the maximum is {KEY_BYTES_MAX}.",
        facts={"bytes": len(encoded), "bytes_max": KEY_BYTES_MAX},
        hint="Use a shorter key, such as a hash of this one.",
    )


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return _tuple_name(type(part).__name__ for part in value)
    return type(value).__name__


def _unknown_type(name: str) -> InvalidShardKeyError:
    return InvalidShardKeyError(
        "UnknownKeyType",
        f"A sharding key cannot be of type {name}.",
        facts={"given": name, "expected": sorted(_SCALARS)},
        hint=f"Use int, str, bytes, UUID, date, datetime, timedelta, Decimal, or a tuple of 2 to "
        f"{TUPLE_PARTS_MAX} of them.",
    )


def _damaged(name: str) -> DamageError:
    return DamageError(
        "StoreDamaged",
        f"A stored sharding key is not a valid encoding of {name}.",
        facts={"expected": name},
        hint="Compare the catalogs with `partita shards recover` before any change.",
    )
