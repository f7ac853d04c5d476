"""Entities as the pages show them: each value as text with the letter of its type. Pure.

JSON numbers lose their type in a browser (`3750.0`, a Double, becomes `3750`, an Int32), so every
value travels as text beside its type and is read again by the rules of `partita.tables.edm`.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from partita.console.errors import invalid
from partita.tables import edm
from partita.tables.filters import PARTITION_KEY, ROW_KEY, TIMESTAMP

LETTERS = {
    edm.STRING: "s",
    edm.INT32: "i",
    edm.INT64: "l",
    edm.DOUBLE: "d",
    edm.BOOLEAN: "b",
    edm.DATETIME: "t",
    edm.GUID: "g",
    edm.BINARY: "x",
}
TYPES = {letter: name for name, letter in LETTERS.items()}
_ETAG = "odata.etag"
_SYSTEM = {PARTITION_KEY, ROW_KEY, TIMESTAMP}

TypedText = tuple[str, str]
"""The letter of a type, and the value as text."""


class Shown(msgspec.Struct, frozen=True):
    """One entity for the pages."""

    partition_key: str
    row_key: str
    timestamp: str
    etag: str
    properties: dict[str, TypedText]


def shown_of(raw: bytes | msgspec.Raw, etag: str = "") -> Shown:
    """Read an entity in minimal metadata."""
    members: dict[str, Any] = msgspec.json.decode(raw)
    return Shown(
        partition_key=str(members.get(PARTITION_KEY, "")),
        row_key=str(members.get(ROW_KEY, "")),
        timestamp=str(members.get(TIMESTAMP, "")),
        etag=str(members.get(_ETAG, "")) or etag,
        properties={
            name: _typed(name, value, members)
            for name, value in members.items()
            if name not in _SYSTEM and not _is_annotation(name) and value is not None
        },
    )


def _is_annotation(name: str) -> bool:
    return "@" in name or name.startswith("odata.")


def _typed(name: str, value: object, members: dict[str, Any]) -> TypedText:
    annotation = members.get(name + edm.TYPE_SUFFIX)
    letter = LETTERS.get(str(annotation), "s") if annotation else _letter_of(value)
    if isinstance(value, bool):
        return letter, "true" if value else "false"
    if isinstance(value, float) or (letter == "d" and isinstance(value, int)):
        return letter, double_text(float(value))
    return letter, str(value)


def _letter_of(value: object) -> str:
    match value:
        case bool():
            return "b"
        case int():
            return "i" if edm.INT32_MIN <= value <= edm.INT32_MAX else "l"
        case float():
            return "d"
        case _:
            return "s"


def double_text(value: float) -> str:
    """Return a Double as text that its type reads back."""
    return repr(value) if math.isfinite(value) else str(value)


def page_of(entities: Iterable[Shown]) -> tuple[list[str], list[list[object]]]:
    """Return the names of all properties in the order seen, and one row for each entity."""
    listed = list(entities)
    names = list(dict.fromkeys(name for each in listed for name in each.properties))
    rows: list[list[object]] = [
        [
            each.partition_key,
            each.row_key,
            each.timestamp,
            each.etag,
            *(each.properties.get(name) for name in names),
        ]
        for each in listed
    ]
    return names, rows


class Property(msgspec.Struct, forbid_unknown_fields=True):
    """One property as the editor sends it."""

    name: str
    type: str
    value: str


def document_of(partition_key: str, row_key: str, properties: Sequence[Property]) -> bytes:
    """Return an entity as JSON for the wire; every type is named.

    Raises InvalidPropertyError if a value does not fit its type.
    """
    members: dict[str, object] = {PARTITION_KEY: partition_key, ROW_KEY: row_key}
    for each in properties:
        if each.type not in TYPES:
            message = f"{each.type!r} is not the letter of a type."
            raise invalid(message)
        if each.name in members or each.name in _SYSTEM or _is_annotation(each.name):
            message = f"The property name {each.name!r} is not valid or appears twice."
            raise invalid(message, "Give every property another name.")
        type_name = TYPES[each.type]
        _, value = edm.canonical(each.name, each.value, type_name)
        if type_name != edm.STRING:
            members[each.name + edm.TYPE_SUFFIX] = type_name
        members[each.name] = value
    return msgspec.json.encode(members)
