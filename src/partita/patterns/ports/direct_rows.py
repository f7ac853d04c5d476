"""Rows ↔ entities of the table engine, for accounts in this process. Pure.

Rows are checked like a request body; entities are converted as a client would read them.
"""

import binascii
import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from partita.errors import InvalidPropertyError
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.values import (
    Instant,
    Int32,
    Row,
    RowKey,
    Value,
    check_integer,
    text_of_moment,
)
from partita.tables import edm
from partita.tables.edm import Members
from partita.tables.entity import Entity, EntityKey, check_key, check_property_name
from partita.tables.operations import (
    Delete,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def key_of(key: RowKey) -> EntityKey:
    """Return the key, checked as the service does."""
    return EntityKey(check_key("PartitionKey", key.partition), check_key("RowKey", key.row))


def operation_of(operation: RowOperation) -> Operation:
    """Return the engine's operation for a change of a row."""
    key = key_of(operation.row.key)
    if operation.verb is Verb.DELETE:
        return Delete(key, operation.etag)
    members = members_of(operation.row.properties)
    match operation.verb:
        case Verb.INSERT:
            return Insert(key, members)
        case Verb.REPLACE:
            return Replace(key, members, operation.etag)
        case Verb.MERGE:
            return Merge(key, members, operation.etag)
        case Verb.UPSERT_REPLACE:
            return InsertOrReplace(key, members)
        case Verb.UPSERT_MERGE:
            return InsertOrMerge(key, members)


def members_of(properties: dict[str, Value]) -> Members:
    """Return properties in the engine's stored form."""
    members: Members = {}
    for name, value in properties.items():
        check_property_name(name)
        printed = _PRINTERS.get(type(value)) or _printer_of(name, value)
        annotation, stored = edm.canonical(name, *printed(name, value))
        if annotation is not None:
            members[name + edm.TYPE_SUFFIX] = annotation
        members[name] = stored
    return members


Printed = tuple[object, str | None]
"""A value as in JSON, and its type annotation."""


def _printer_of(name: str, value: object) -> Callable[[str, Any], Printed]:
    for kind in type(value).__mro__:
        if kind in _PRINTERS:
            return _PRINTERS[kind]
    raise InvalidPropertyError(
        "PropertyTypeMismatch",
        f"The property {name!r} cannot hold a {type(value).__name__}.",
        facts={"property": name},
    )


def _print_int(name: str, value: int) -> Printed:
    check_integer(name, value)
    return int(value), edm.INT64


def _print_int32(name: str, value: Int32) -> Printed:
    check_integer(name, value)
    return int(value), None


_PRINTERS: dict[type, Callable[[str, Any], Printed]] = {
    bool: lambda _, value: (value, None),
    str: lambda _, value: (str.__str__(value), None),
    Int32: _print_int32,
    int: _print_int,
    float: lambda _, value: _finite_or_text(float(value)),
    bytes: lambda _, value: (binascii.b2a_base64(value, newline=False).decode(), edm.BINARY),
    datetime: lambda name, value: (text_of_moment(name, value), edm.DATETIME),
    UUID: lambda _, value: (str(value), edm.GUID),
}


def _finite_or_text(value: float) -> tuple[object, str | None]:
    if math.isfinite(value):
        return value, None
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity", edm.DOUBLE


def row_of(entity: Entity, select: Iterable[str] | None = None) -> Row:
    """Return an entity as a client reads it, or the selected properties of it."""
    members = entity.properties()
    chosen = select if select is not None else members
    properties: dict[str, Value] = {}
    for name in chosen:
        if name in members and not name.endswith(edm.TYPE_SUFFIX):
            properties[name] = _read(members, name)
    text = edm.text_of(entity.ticks)
    moment = _EPOCH + timedelta(microseconds=entity.ticks // 10)
    return Row(
        RowKey(entity.partition_key, entity.row_key),
        properties,
        entity.etag,
        Instant.of(moment, text) if select is None or "Timestamp" in chosen else None,
    )


def _read(members: Members, name: str) -> Value:
    stored: Any = members[name]
    annotation = members.get(name + edm.TYPE_SUFFIX)
    if annotation is None:
        plain: Value = Int32(stored) if type(stored) is int else stored
        return plain
    value: Value = _READERS[str(annotation)](stored)
    return value


_READERS: dict[str, Any] = {
    edm.INT64: int,
    edm.DOUBLE: float,
    edm.DATETIME: Instant.read,
    edm.GUID: UUID,
    edm.BINARY: binascii.a2b_base64,
}
