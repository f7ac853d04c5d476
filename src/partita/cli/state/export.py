"""Rows of a state as lines of JSON without loss, for other programs and databases.

    {"collection": "users", "kind": "dictionary", "key": "ada", "value": {...}, "version": 1}

Values are as stored, in the schema version that `version` gives; structs are objects. A type that
JSON does not have is an object with one name that begins with "$": $bytes (base64), $datetime,
$date, $time, $seconds (of a timedelta), $uuid, $decimal, $float (nan, inf, -inf), $ext (a code and
base64), and $map, a list of pairs, for a map with a key that is not text or begins with "$" itself.
"""

import base64
import json
import math
import struct
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec

from partita.cli.kit.text import moment
from partita.errors import CollectionNotFoundError, DamageError
from partita.keys import decode_key
from partita.reliable.state.state import Collection, State
from partita.reliable.values.serialization import stored_expiry, stored_version

ROWS_AT_ONCE = 256

_DELIVERY = struct.Struct(">QI")
"""The header of a value of a concurrent queue: visible from, deliveries."""
_EXPIRY_BYTES = 8
_HEADER_BYTES = 2
_decode = msgspec.msgpack.Decoder().decode
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def chosen(state: State, names: Sequence[str] | None) -> list[Collection]:
    """Return the named collections, or all, by name; indexes are left out."""
    found = {
        collection.description.name: collection
        for collection in state.collections.values()
        if collection.description.kind != "index"
    }
    for name in names or ():
        if name not in found:
            raise CollectionNotFoundError(
                "CollectionNotFound",
                f"There is no collection {name!r}.",
                facts={"collection": name},
                hint=f"Choose one of: {', '.join(sorted(found)) or 'none'}.",
            )
    return [found[name] for name in sorted(found) if not names or name in names]


def lines(collection: Collection, sequence: int, now: int) -> Iterator[str]:
    """Yield one line per row in key order, without rows that have expired."""
    description = collection.description
    for step in collection.pairs(sequence, limit=ROWS_AT_ONCE):
        for key, row in step:
            try:
                fields = _fields(description.kind, key, row, now)
            except (DamageError, msgspec.MsgspecError, struct.error) as error:
                raise _unreadable(description.name) from error
            if fields is not None:
                named = {"collection": description.name, "kind": description.kind}
                yield _encode(named | fields)


def _fields(kind: str, key: bytes, row: bytes, now: int) -> dict[str, object] | None:
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


def _unreadable(name: str) -> DamageError:
    return DamageError(
        "ValueUnreadable",
        f"A row of {name!r} cannot be read.",
        facts={"collection": name},
        hint="Run `partita state verify`, then restore a backup if it is damaged.",
    )
