"""Entities without a type: property bags, for foreign tables and tables of many types.

Values are kept exactly as stored: an Int32 stays an Int32, a time keeps its seventh digit. (The
guide's second way to work with heterogeneous types.)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import EntityNotFoundError, NewerVersionError, UsageError
from partita.patterns.planning.filter_text import quoted
from partita.patterns.protocol.calls import (
    Continuation,
    GetRow,
    Invoke,
    QueryRows,
    RowOperation,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find, to_entity
from partita.patterns.writing.rows import from_rows


class RawEntity(msgspec.Struct):
    """One stored entity: two keys, properties, an etag."""

    partition_key: str
    row_key: str
    properties: dict[str, Value]
    etag: str = ""

    @property
    def key(self) -> RowKey:
        return RowKey(self.partition_key, self.row_key)


Resolve = Callable[[RawEntity], type[Any] | None]
"""Returns the class of an entity without a type property; None if it is of no known class."""


class RawSlice(msgspec.Struct, frozen=True):
    entities: list[RawEntity]
    continuation: Continuation | None = None


def to_raw(row: Row) -> RawEntity:
    return RawEntity(row.key.partition, row.key.row, dict(row.properties), row.etag)


def get_raw(table: str, key: RowKey) -> Steps[RawEntity]:
    row = yield from ask(GetRow(table, key))
    if row is None:
        raise EntityNotFoundError(
            "ResourceNotFound",
            "The entity does not exist.",
            facts={"table": table, **key.facts},
        )
    return to_raw(row)


def query_raw(
    table: str, filter_text: str, continuation: Continuation | None = None
) -> Steps[RawSlice]:
    page = yield from ask(QueryRows(table, filter_text, continuation=continuation))
    return RawSlice([to_raw(row) for row in page.rows], page.continuation)


def patch_raw(table: str, raw: RawEntity, changes: Mapping[str, Value]) -> Steps[RawEntity]:
    """Merge properties into an entity of unknown type; the properties must exist."""
    missing = [name for name in changes if name not in raw.properties]
    if missing:
        raise UsageError(
            "PropertyMissing",
            f"The entity has no property {missing[0]!r}.",
            facts={"table": table, "partition_key": raw.partition_key, "row_key": raw.row_key},
            hint=f"Properties: {', '.join(raw.properties)}.",
        )
    for name, value in changes.items():
        if type(value) is not type(raw.properties[name]):
            raise UsageError(
                "PropertyTypeMismatch",
                f"The property {name!r} is of type {type(raw.properties[name]).__name__}.",
                hint="Pass a value of the same type; Int32(...) for a 32-bit number.",
            )
    operation = RowOperation(Verb.MERGE, Row(raw.key, dict(changes)), raw.etag or "*")
    [etag] = yield from ask(WriteRows(table, (operation,)))
    return RawEntity(raw.partition_key, raw.row_key, {**raw.properties, **changes}, etag)


def save_raw(table: str, raw: RawEntity) -> Steps[RawEntity]:
    """Insert a raw entity without an etag, replace one with an etag."""
    row = Row(raw.key, dict(raw.properties))
    verb = Verb.REPLACE if raw.etag else Verb.INSERT
    [etag] = yield from ask(WriteRows(table, (RowOperation(verb, row, raw.etag or "*"),)))
    return RawEntity(raw.partition_key, raw.row_key, dict(raw.properties), etag)


def delete_raw(table: str, raw: RawEntity) -> Steps[None]:
    operation = RowOperation(Verb.DELETE, Row(raw.key, {}), raw.etag or "*")
    yield from ask(WriteRows(table, (operation,)))


# ---------------------------------------------------------------------------------------------
# Several types at once


class MixedSlice(msgspec.Struct, frozen=True):
    entities: list[Any]
    continuation: Continuation | None = None


def partition_of(
    models: Sequence[EntityType[Any]], partition_key: str | None, given: Mapping[str, Any]
) -> str:
    """Return the given partition key, or the one that the fields have in one of the types."""
    if partition_key is not None and not given:
        return partition_key
    for model in models:
        if partition_key is None and set(model.partition.fields) == set(given):
            return model.partition.format(given)
    made = " or ".join(dict.fromkeys(", ".join(each.partition.fields) for each in models))
    raise UsageError(
        "KeyFields",
        "The fields are not those of a partition key of these types.",
        facts={"types": [model.name for model in models], "given": sorted(given)},
        hint=f"Pass the fields {made or '(none)'}, or the text of a partition key.",
    )


def read_mixed(
    context: Context,
    models: Sequence[EntityType[Any]],
    partition: str,
    continuation: Continuation | None,
    *,
    keeps_unknown: bool,
    resolve: Resolve | None = None,
) -> Steps[MixedSlice]:
    """Read a partition with entities of several types, each as its own (the guide's third way).

    `resolve` decides the class of entities without a type. With `keeps_unknown` all others are
    returned raw, including entities of newer versions.
    """
    name = models[0].type_property or "EntityType"
    known = {each.name: each for model in models for each in model.family()}
    condition = f"PartitionKey eq {quoted(partition)}"
    if not keeps_unknown and resolve is None:
        types = " or ".join(f"{name} eq {quoted(each)}" for each in known)
        condition += f" and ({types})"
    page = yield from ask(QueryRows(models[0].table, condition, continuation=continuation))
    entities: list[Any] = []
    for row in page.rows:
        stored_type = row.properties.get(name)
        model = known.get(stored_type) if isinstance(stored_type, str) else None
        if model is None and _is_ours(row, stored_type):
            continue
        if model is None and resolve is not None:
            model = _resolved(models, (yield from ask(Invoke(resolve, (to_raw(row),)))))
            row = _marked(row, model)  # noqa: PLW2901 - with the resolved type
        entity: Any = None
        if model is not None:
            try:
                entity = yield from _typed(context, model, row)
            except NewerVersionError:
                if not keeps_unknown:
                    raise
        if entity is None and keeps_unknown:
            entity = to_raw(row)
        if entity is not None:
            entities.append(entity)
    return MixedSlice(entities, page.continuation)


def _resolved(models: Sequence[EntityType[Any]], cls: type[Any] | None) -> EntityType[Any] | None:
    if cls is None:
        return None
    model = entity_type(cls)
    if not any(model in each.family() for each in models):
        raise UsageError(
            "TypeMismatch",
            f"resolve() returned {model.name}, which is not one of the types to read.",
            facts={"type": model.name},
            hint=f"The types are {', '.join(each.name for each in models)}.",
        )
    return model


def _marked(row: Row, model: EntityType[Any] | None) -> Row:
    """Return a row with the type property of the resolved type."""
    if model is None or model.type_property is None:
        return row
    properties = {**row.properties, model.type_property: model.name}
    return msgspec.structs.replace(row, properties=properties)


def _typed(context: Context, model: EntityType[Any], row: Row) -> Steps[Any]:
    if model.is_wide or any(field.is_in_blob for field in model.fields.values()):
        return (yield from find(context, model, row.key))
    stored = from_rows(model, [row], context.sealing)
    return to_entity(stored, stored.values)


def _is_ours(row: Row, stored_type: object) -> bool:
    """Return whether a row belongs to the library: hidden, a copy, or a further row."""
    is_marked = isinstance(stored_type, str) and (
        "@" in stored_type or stored_type.endswith("~") or "~" in stored_type[:1]
    )
    return row.key.row.startswith("~") or is_marked


def check_together(models: Sequence[EntityType[Any]], resolve: Resolve | None) -> None:
    """Refuse types that one query cannot read and distinguish."""
    tables = {model.table for model in models}
    if len(tables) != 1:
        raise UsageError(
            "TablesDiffer",
            "Types that are read together must be in one table.",
            facts={"tables": sorted(tables)},
        )
    names = {model.type_property for model in models if model.type_property or resolve is None}
    if len(names) > 1:
        raise UsageError(
            "TypePropertiesDiffer",
            "Types that are read together must have the same type property.",
            facts={"properties": sorted(map(str, names))},
            hint="Declare the same type_property= for all, or use mixed(..., resolve=...).",
        )
