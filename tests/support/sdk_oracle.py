"""Rows through the official client: what it sends for them, and how it reads answers.

Our own requests must say the same. The SDK infers Edm.Int32 for every int and answers Edm.Int64 as
a pair, so that types are always said here.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from azure.core import MatchConditions
from azure.data.tables import EdmType, EntityProperty, TableEntity, UpdateMode

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

KEYS = ("PartitionKey", "RowKey")
ANY_ETAG = "*"

SdkEntity = dict[str, Any]


def entity_of(row: Row) -> SdkEntity:
    """Return a row as the SDK sends it, each value with its type."""
    entity: SdkEntity = {"PartitionKey": row.key.partition, "RowKey": row.key.row}
    for name, value in row.properties.items():
        entity[name] = _sent(name, value)
    return entity


def row_of(entity: TableEntity, key: RowKey | None = None) -> Row:
    """Return what the SDK answered; `key` where the answer may not hold it."""
    properties: dict[str, Value] = {}
    for name, value in entity.items():
        if name not in KEYS and value is not None:  # null: selected, but not there
            properties[name] = _received(value)
    metadata = entity.metadata
    moment = metadata["timestamp"]
    return Row(
        key or RowKey(entity["PartitionKey"], entity["RowKey"]),
        properties,
        metadata["etag"] or "",
        None if moment is None else _instant(moment),
    )


def _sent(name: str, value: Any) -> object:
    """Return a value of exactly a type that the SDK looks for: it knows no subclasses."""
    send = _SENDERS.get(type(value))
    if send is None:
        send = next((_SENDERS[kind] for kind in type(value).__mro__ if kind in _SENDERS), _as_is)
    return send(name, value)


def _as_is(_name: str, value: Any) -> object:
    return value  # of an unknown type that was read: it goes back as it came


def _sent_text(_name: str, value: str) -> str:
    return str.__str__(value)  # of a member of an Enum, not its name


def _sent_int(name: str, value: int) -> EntityProperty:
    check_integer(name, value)
    return EntityProperty(int(value), EdmType.INT64)


def _sent_int32(name: str, value: Int32) -> int:
    check_integer(name, value)
    return int(value)


def _sent_moment(name: str, value: datetime) -> EntityProperty:
    return EntityProperty(text_of_moment(name, value), EdmType.DATETIME)


_SENDERS: dict[type, Callable[[str, Any], object]] = {
    bool: _as_is,
    str: _sent_text,
    Int32: _sent_int32,
    int: _sent_int,
    float: lambda _, value: float(value),
    bytes: lambda _, value: bytes(value),
    datetime: _sent_moment,
    UUID: lambda _, value: value if type(value) is UUID else UUID(int=value.int),
}


def _received(value: Any) -> Value:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return Int32(value)
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, EntityProperty):
        if value.edm_type == EdmType.INT64:
            return cast("int", value.value)
        if value.value == EdmType.BOOLEAN:  # the SDK turns pairs of other types around
            return str(value.edm_type).lower() == "true"
    return cast("Value", value)


def _instant(moment: datetime) -> Instant:
    text: str = getattr(moment, "tables_service_value", "")
    return Instant.of(moment, text or moment.isoformat().replace("+00:00", "Z"))


# Writes


def condition_of(etag: str) -> Mapping[str, Any]:
    """Return the condition of a write as the SDK takes it."""
    if etag == ANY_ETAG:
        return {"match_condition": MatchConditions.Unconditionally}
    return {"match_condition": MatchConditions.IfNotModified, "etag": etag}


def request_of(operation: RowOperation) -> tuple[str, SdkEntity, dict[str, Any]]:
    """Return a write as a request of its own: the client's method and what it is called with."""
    if operation.verb is Verb.DELETE:
        return "delete_entity", _keys(operation.row), dict(condition_of(operation.etag))
    entity = entity_of(operation.row)
    method, options = _SENT_ALONE[operation.verb]
    if method == "update_entity":
        return method, entity, {**options, **condition_of(operation.etag)}
    return method, entity, dict(options)


_SENT_ALONE: dict[Verb, tuple[str, dict[str, Any]]] = {
    Verb.INSERT: ("create_entity", {}),
    Verb.REPLACE: ("update_entity", {"mode": UpdateMode.REPLACE}),
    Verb.MERGE: ("update_entity", {"mode": UpdateMode.MERGE}),
    Verb.UPSERT_REPLACE: ("upsert_entity", {"mode": UpdateMode.REPLACE}),
    Verb.UPSERT_MERGE: ("upsert_entity", {"mode": UpdateMode.MERGE}),
}


def _keys(row: Row) -> SdkEntity:
    return {"PartitionKey": row.key.partition, "RowKey": row.key.row}
