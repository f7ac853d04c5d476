"""Rows of a collection as values that JSON can hold without loss, by their bytes alone; pure.

Values are as stored, in the schema version that `version` gives; structs are objects. A type that
JSON does not have is an object with one name that begins with "$": $bytes (base64), $datetime,
$date, $time, $seconds (of a timedelta), $uuid, $decimal, $float (nan, inf, -inf), $ext (a code and
base64), and $map, a list of pairs, for a map with a key that is not text or begins with "$" itself.
"""

import base64
import math
import struct
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec

from partita.keys import decode_key
from partita.reliable.values.serialization import stored_expiry, stored_version
from partita.ticks import moment

_DELIVERY = struct.Struct(">QI")
"""The header of a value of a concurrent queue: visible from, deliveries."""
_EXPIRY_BYTES = 8
_HEADER_BYTES = 2
_decode = msgspec.msgpack.Decoder().decode


def row_fields(kind: str, key: bytes, row: bytes, now: int) -> dict[str, object] | None:
    """Return the fields of a row; None if it has expired."""
    if kind == "dictionary":
        expires = stored_expiry(row)
        if expires and expires <= now:
            return None
        fields = {"key": plain_key(decode_key(key)), **_value(row)}
        return fields | ({"expires": moment(expires)} if expires else {})
    position = {"key": int.from_bytes(key)}
    if kind == "queue":
        return position | _value(row)
    visible, deliveries = _DELIVERY.unpack_from(row)
    return {
        **position,
        **_value(row[_DELIVERY.size :]),
        "visible_from": moment(visible),
        "deliveries": deliveries,
    }


def _value(stored: bytes) -> dict[str, object]:
    start = _HEADER_BYTES + (_EXPIRY_BYTES if stored[:1] >= b"\x80" else 0)
    return {"value": plain_value(_decode(stored[start:])), "version": stored_version(stored)}


def plain_key(key: object) -> object:  # noqa: PLR0911 - one switch
    """Return a key for JSON; tuples become lists."""
    match key:
        case bool() | int() | str():
            return key
        case tuple():
            return [plain_key(place) for place in key]
        case Decimal():
            return {"$decimal": str(key)}
        case UUID():
            return {"$uuid": str(key)}
        case date() if not isinstance(key, datetime):
            return {"$date": key.isoformat()}
        case time():
            return {"$time": key.isoformat()}
        case timedelta():
            microseconds = key // timedelta(microseconds=1)
            return {"$seconds": format(Decimal(microseconds).scaleb(-6).normalize(), "f")}
        case _:
            return plain_value(key)


def plain_value(value: object) -> object:  # noqa: PLR0911 - one switch
    """Return decoded MessagePack for JSON."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case list() | tuple():
            return [plain_value(item) for item in value]
        case dict():
            return _plain_map(value)
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case datetime():
            return {"$datetime": value.isoformat()}
        case msgspec.msgpack.Ext():
            return {"$ext": [value.code, base64.b64encode(value.data).decode()]}
        case _:
            raise AssertionError(type(value))


def _plain_map(value: dict[object, object]) -> object:
    pairs = [(plain_value(key), plain_value(item)) for key, item in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return dict(pairs)
    return {"$map": pairs}
