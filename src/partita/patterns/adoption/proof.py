"""The proof of a drafted module: it is imported, and every row is read and written again.

A row fits if its class makes an entity of it, and the rows of that entity have the same keys and
properties. Texts with JSON are compared as JSON, because saving prints them anew.
"""

import types
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from partita.errors import PartitaError
from partita.patterns.protocol.values import Row, RowKey, Value, text_of_moment
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing.rows import Sealing, encode, from_rows, to_rows
from partita.ticks import Clock


class Misfit(msgspec.Struct, frozen=True):
    """A row that no class can read and write."""

    partition_key: str
    row_key: str
    type: str
    """The class that it was compared with."""
    reason: str


def import_text(source: str) -> types.ModuleType:
    """Execute the source of a drafted module; see `module_text.py` for what it can contain."""
    module = types.ModuleType("adopted")
    exec(compile(source, "<adopted>", "exec"), module.__dict__)  # noqa: S102 - printed by us
    return module


def prove(
    cls: type[Any], rows: Sequence[Row], json_properties: frozenset[str], clock: Clock
) -> list[Misfit]:
    """Return the rows that do not come back as they are stored."""
    model, sealing = entity_type(cls), Sealing(clock)
    return [
        Misfit(row.key.partition, row.key.row, model.cls.__name__, reason)
        for row in rows
        if (reason := _difference(model, row, json_properties, sealing))
    ]


def _difference(
    model: EntityType[Any], row: Row, json_properties: frozenset[str], sealing: Sealing
) -> str:
    """Return why a row does not fit; empty if it does."""
    try:
        stored = from_rows(model, [row], sealing)
        values = model.values(model.build(stored.values))
        properties = encode(model, values, {}, stored.origin.number_types)
        key = model.key(values)
        written = to_rows(
            model, key, properties, stored.origin, sealing, stamp=0, system=stored.origin.system
        )
    except PartitaError as error:
        return error.message
    if len(written) != 1:
        return "An entity of this class takes several rows."
    return _compare(row, written[0].key, written[0].properties, json_properties)


def _compare(
    row: Row, key: RowKey, written: Mapping[str, Value], json_properties: frozenset[str]
) -> str:
    if key != row.key:
        return f"Its keys would be written as {key.partition!r} and {key.row!r}."
    differing = [
        name
        for name in {**row.properties, **written}
        if _comparable(name, row.properties.get(name), json_properties)
        != _comparable(name, written.get(name), json_properties)
    ]
    return f"{differing[0]} would be written as another value." if differing else ""


def _comparable(name: str, value: Value | None, json_properties: frozenset[str]) -> object:
    if name in json_properties and isinstance(value, str):
        return msgspec.json.decode(value)
    if isinstance(value, datetime):
        return text_of_moment(name, value)
    return type(value).__name__, value
