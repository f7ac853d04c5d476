"""Sharding keys and ranges as text: what is printed can be typed again.

A key is written as its map's key type requires: `42`, `eu`, `2026-01-31`, `hex:00ff`, `["eu", 7]`.
A range is `LOW:HIGH`; an empty side is unbounded. Keys may contain colons, so a range is divided at
the one colon where both sides can be read; text with a colon is put in quotes.
"""

import json
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol
from uuid import UUID

from partita.errors import InvalidShardKeyError, RangeError
from partita.shards.keys.ranges import Range
from partita.shards.keys.shard_key import BUCKET, KeyType, key_type

HEX = "hex:"
WRITTEN: dict[type, str] = {
    int: "a whole number",
    str: 'text, in double quotes (JSON) if it has a colon or begins with "',
    bytes: "hex:00ff",
    UUID: "a UUID",
    date: "a date such as 2026-01-31",
    datetime: "a time with its zone such as 2026-01-31T12:00:00Z",
    timedelta: "seconds such as 1.5",
    Decimal: "a decimal number",
}


class Keyed(Protocol):
    """A shard map as far as it is needed here: its name, its kind and the type of its keys."""

    name: str
    kind: str
    key_type: KeyType


class Encoding(Keyed, Protocol):
    """A shard map that can say which bytes a key has."""

    def encode_key(self, key: Any) -> bytes: ...


def parse_key(text: str, shard_map: Keyed) -> Any:
    """Return the key that a text is; InvalidShardKeyError if the map has no such keys."""
    return _checked(text, shard_map.key_type)


def parse_bound(text: str, shard_map: Keyed) -> Any:
    """Return the bound of a split or a range: a key, its first parts, or a bucket."""
    found = _try_bound(text, range_type(shard_map))
    if found is None:
        raise _no_key(text, range_type(shard_map))
    return found


def parse_range(text: str, shard_map: Keyed) -> Range:
    """Return the range that a text LOW:HIGH is; RangeError if it is not a range."""
    of = range_type(shard_map)
    found = _ranges(text, of)
    if len(found) == 1:
        return found[0]
    raise RangeError(
        "InvalidRange",
        f"{text!r} is not a range of the map's keys.",
        facts={"map": shard_map.name, "key": of.name},
        hint=f"Write LOW:HIGH, each {_how(of)}; leave out a bound that is not needed.",
    )


def parse_keys(text: str, shard_map: Keyed) -> Any:
    """Return the key or the Range that a text is; a list map has keys only."""
    if shard_map.kind != "list":
        found = _ranges(text, range_type(shard_map))
        if len(found) == 1:
            return found[0]
    return parse_key(text, shard_map)


def range_type(shard_map: Keyed) -> KeyType:
    """Return the type of the bounds of ranges: that of the keys, or buckets of a hash map."""
    return BUCKET if shard_map.kind == "hash" else shard_map.key_type


def range_of_key(key: Any, shard_map: Encoding) -> Range:
    """Return the smallest range that holds a key, or its bucket in a hash map.

    The next text is the text with a character 1 added: databases cannot store a character 0.
    """
    if shard_map.kind == "hash":
        bucket = int.from_bytes(shard_map.encode_key(key))
        return Range(bucket, bucket + 1)
    parts = key if isinstance(key, tuple) else (key,)
    for count in range(len(parts), 0, -1):
        try:
            high = (*parts[: count - 1], _following(parts[count - 1]))
            bound = high if isinstance(key, tuple) else high[0]
            shard_map.key_type.encode_bound(bound)
        except (OverflowError, ValueError, InvalidShardKeyError):
            continue  # it is the last value of this part
        return Range(key, bound)
    return Range(key, None)


def _following(key: Any) -> Any:
    """Return the next possible value; a decimal has none."""
    match key:
        case int():
            return key + 1
        case str():
            return key + "\x01"
        case bytes():
            return key + b"\x00"
        case UUID():
            return UUID(int=key.int + 1)
        case datetime() | timedelta():
            return key + timedelta(microseconds=1)
        case date():
            return key + timedelta(days=1)
        case _:
            raise RangeError(
                "InvalidRange",
                f"A single key of type {type(key).__name__} cannot be split off.",
                hint="Name the range of a whole mapping: LOW:HIGH.",
            )


def key_text(key: object) -> str:
    """Write a key so that it can be typed again."""
    if isinstance(key, str):
        is_plain = key and ":" not in key and not key.startswith('"') and key.isprintable()
        return key if is_plain else json.dumps(key, ensure_ascii=False)
    found = plain_key(key)
    return json.dumps(found, ensure_ascii=False) if isinstance(found, list) else str(found)


def range_text(keys: Range) -> str:
    """Write a range as LOW:HIGH, and a mapping of a list map as its key."""
    if keys.is_point:
        return key_text(keys.low)
    return ":".join("" if bound is None else key_text(bound) for bound in (keys.low, keys.high))


def plain_key(key: object) -> object:
    """Return a key for JSON: numbers and text as they are, other keys as text."""
    match key:
        case None | int() | str():
            return key
        case tuple():
            return [plain_key(part) for part in key]
        case bytes():
            return HEX + key.hex()
        case timedelta():
            return _seconds_text(key)
        case date():
            return key.isoformat().replace("+00:00", "Z")
        case _:
            return str(key)


def _seconds_text(key: timedelta) -> str:
    microseconds = key // timedelta(microseconds=1)
    return format(Decimal(microseconds).scaleb(-6).normalize(), "f")


def _ranges(text: str, of: KeyType) -> list[Range]:
    found = []
    for place, letter in enumerate(text):
        if letter != ":":
            continue
        low, high = text[:place], text[place + 1 :]
        bounds = [None if not side else _try_bound(side, of) for side in (low, high)]
        if (bounds[0] is not None or not low) and (bounds[1] is not None or not high):
            found.append(Range(*bounds))
    return found


def _try_bound(text: str, of: KeyType) -> Any:
    # Unquoted text with a colon could be a range: it is never a bound.
    if of.parts == (str,) and ":" in text and not text.startswith('"'):
        return None
    try:
        value = _value(text, of)
        of.encode_bound(value)
    except (ValueError, InvalidOperation, OverflowError, InvalidShardKeyError):
        return None
    return value


def _checked(text: str, of: KeyType) -> Any:
    try:
        value = _value(text, of)
        of.encode(value)
    except (ValueError, InvalidOperation, OverflowError, InvalidShardKeyError) as error:
        raise _no_key(text, of) from error
    return value


def _value(text: str, of: KeyType) -> Any:
    if not of.is_composite:
        return _PARSERS[of.parts[0]](text)
    parts = json.loads(text, parse_float=Decimal)
    if not isinstance(parts, list) or len(parts) > len(of.parts):
        raise ValueError(text)
    return tuple(_part(part, kind) for part, kind in zip(parts, of.parts, strict=False))


def _part(part: object, kind: type) -> Any:
    if isinstance(part, bool) or not isinstance(part, str | int | Decimal):
        raise ValueError(part)  # noqa: TRY004 - one error for everything that cannot be read
    if kind is str:
        return part  # a number stays a number, and the key type refuses it
    return _PARSERS[kind](str(part))


def _parse_text(text: str) -> str:
    if not text.startswith('"'):
        return text
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError(text)  # noqa: TRY004 - as above
    return value


def _parse_bytes(text: str) -> bytes:
    if not text.startswith(HEX):
        raise ValueError(text)
    return bytes.fromhex(text.removeprefix(HEX))


def _parse_seconds(text: str) -> timedelta:
    microseconds = Decimal(text).scaleb(6)
    if microseconds != int(microseconds):
        raise ValueError(text)
    return timedelta(microseconds=int(microseconds))


_PARSERS: dict[type, Callable[[str], Any]] = {
    int: int,
    str: _parse_text,
    bytes: _parse_bytes,
    UUID: UUID,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    timedelta: _parse_seconds,
    Decimal: Decimal,
}


def parse_key_type(text: str) -> KeyType:
    """Return the key type that `--key-type` names: `int`, or `str,int` for a composite key."""
    by_name = {key_type(declared).name: declared for declared in _PARSERS}
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise InvalidShardKeyError(
            "UnknownKeyType",
            f"A sharding key cannot be of type {unknown[0]!r}.",
            facts={"types": ", ".join(sorted(by_name))},
            hint="Give one of those, or several for a composite key: --key-type str,int.",
        )
    return key_type(by_name[names[0]] if len(names) == 1 else tuple(by_name[n] for n in names))


def _no_key(text: str, of: KeyType) -> InvalidShardKeyError:
    return InvalidShardKeyError(
        "InvalidShardKey", f"{text!r} is not a key of type {of.name}.", hint=f"Write {_how(of)}."
    )


def _how(of: KeyType) -> str:
    if not of.is_composite:
        return WRITTEN[of.parts[0]]
    parts = ", ".join(WRITTEN[kind] for kind in of.parts)
    return f'a JSON array such as ["eu", 7] of: {parts}'
