"""Conversion between rows and the JSON of the table protocol, without loss. Pure.

Types are always annotated, because JSON has only one kind of number. Times are kept as text:
Python stores six digits of a second, the service seven.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast
from urllib.parse import quote
from uuid import UUID

import msgspec

from partita.errors import UnavailableError
from partita.patterns.protocol.values import (
    Instant,
    Int32,
    Row,
    RowKey,
    Value,
    check_integer,
    text_of_moment,
)
from partita.tables.edm import INT32_MAX, INT32_MIN

KEYS = ("PartitionKey", "RowKey")
TYPE_SUFFIX = "@odata.type"

Members = Mapping[str, Any]
"""The members of a JSON object."""

MISREAD = (AttributeError, KeyError, TypeError, ValueError)
"""The exceptions that reading an invalid answer raises."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Foreign(msgspec.Struct, frozen=True):
    """A value of an unknown type: written back as it was read."""

    annotation: str
    stored: object


def row_path(key: RowKey) -> str:
    """Return the part of a row's address that follows the table name.

    >>> row_path(RowKey("O'Neil", "1"))
    "(PartitionKey='O%27%27Neil',RowKey='1')"
    """
    return f"(PartitionKey='{_in_address(key.partition)}',RowKey='{_in_address(key.row)}')"


def _in_address(key: str) -> str:
    return quote(key.replace("'", "''"), safe="")


def print_row(row: Row) -> str:
    """Return the request body of a row, in ASCII.

    >>> print_row(Row(RowKey("Sales", "1"), {"Age": 7}))
    '{"PartitionKey":"Sales","RowKey":"1","Age@odata.type":"Edm.Int64","Age":"7"}'
    """
    members: dict[str, object] = {"PartitionKey": row.key.partition, "RowKey": row.key.row}
    for name, value in row.properties.items():
        if type(value) is str:
            members[name] = value
            continue
        annotation, stored = _stored(name, value)
        if annotation is not None:
            members[name + TYPE_SUFFIX] = annotation
        members[name] = stored
    return _encode(members)


def _stored(name: str, value: Value | Foreign) -> tuple[str | None, object]:  # noqa: PLR0911 - one switch
    if isinstance(value, str):
        return None, str.__str__(value)  # str() of an Enum member would return its name
    if isinstance(value, bool):
        return None, bool(value)
    if isinstance(value, int):
        check_integer(name, value)
        if isinstance(value, Int32):
            return "Edm.Int32", int(value)
        return "Edm.Int64", str(int(value))
    if isinstance(value, float):
        return "Edm.Double", float(value) if math.isfinite(value) else _not_finite(value)
    if isinstance(value, bytes):
        return "Edm.Binary", base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return "Edm.DateTime", text_of_moment(name, value)
    if isinstance(value, Foreign):
        return value.annotation, value.stored
    assert isinstance(value, UUID)
    return "Edm.Guid", str(value)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# Answers


def read_row(members: Members) -> Row:
    """Return the row of an answer; an invalid answer raises one of `MISREAD`."""
    properties: dict[str, Value] = {}
    for name, stored in members.items():
        if stored is None or name in _NO_PROPERTIES or "." in name:
            continue  # null: selected but absent; a dot: an annotation
        annotation = members.get(name + TYPE_SUFFIX)
        if annotation is None:
            properties[name] = _plain(stored)
        else:
            properties[name] = _READERS.get(annotation, _unknown)(stored, annotation)
    text = members.get("Timestamp")
    etag = members.get("odata.etag") or (f"W/\"datetime'{quote(text)}'\"" if text else "")
    return Row(
        RowKey(_text(members["PartitionKey"]), _text(members["RowKey"])),
        properties,
        _text(etag),
        None if text is None else Instant.read(text),
    )


def unreadable() -> UnavailableError:
    """Return the error for an answer that is not one of a table service."""
    return UnavailableError(
        "AnswerUnreadable",
        "The answer is not one of a table service.",
        hint="Check the address: another server may listen there. A write may have been"
        " performed: read before repeating it.",
    )


_NO_PROPERTIES = frozenset({*KEYS, "Timestamp"})


def _text(stored: object) -> str:
    if not isinstance(stored, str):
        raise TypeError("expected text")
    return stored


def _plain(stored: object) -> Value:
    if type(stored) is int:
        return Int32(stored) if INT32_MIN <= stored <= INT32_MAX else stored
    if isinstance(stored, str | bool | float):
        return stored
    raise TypeError("an object or a list is not a property value")


def _truth(stored: object) -> bool:
    return stored if isinstance(stored, bool) else str(stored).lower() == "true"


def _unknown(stored: object, annotation: str) -> Value:
    return cast("Value", Foreign(annotation, stored))


_READERS: dict[str, Callable[[Any, str], Value]] = {
    "Edm.String": lambda stored, _: _text(stored),
    "Edm.Boolean": lambda stored, _: _truth(stored),
    "Edm.Int32": lambda stored, _: Int32(stored),
    "Edm.Int64": lambda stored, _: int(stored),
    "Edm.Double": lambda stored, _: float(stored),
    "Edm.Binary": lambda stored, _: base64.b64decode(stored),
    "Edm.DateTime": lambda stored, _: Instant.read(stored),
    "Edm.Guid": lambda stored, _: UUID(stored),
}
