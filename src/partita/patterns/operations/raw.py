"""Entities without a type: a property bag, for tables of strangers and of many types.

Everything is kept as it is stored, to the digit: an Int32 stays one, a time keeps its seventh
digit. (The guide's second way to work with heterogeneous types.)
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
from partita.patterns.writing.load import find
from partita.patterns.writing.rows import from_rows


class RawEntity(msgspec.Struct):
    """One stored entity as it is: two keys, properties, an etag."""

    partition_key: str
    row_key: str
    properties: dict[str, Value]
    etag: str = ""

    @property
    def key(self) -> RowKey:
        return RowKey(self.partition_key, self.row_key)


Resolve = Callable[[RawEntity], type[Any] | None]
"""Tells the class of an entity that does not say it; None: it is none of those."""


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
            "There is no such entity.",
            facts={"table": table, "partition_key": key.partition, "row_key": key.row},
        )
    return to_raw(row)


def query_raw(
    table: str, filter_text: str, continuation: Continuation | None = None
) -> Steps[RawSlice]:
    page = yield from ask(QueryRows(table, filter_text, continuation=continuation))
    return RawSlice([to_raw(row) for row in page.rows], page.continuation)


def patch_raw(table: str, raw: RawEntity, changes: Mapping[str, Value]) -> Steps[RawEntity]:
    """Merge properties into an entity whose type is not known, if they are there already."""
    missing = [name for name in changes if name not in raw.properties]
    if missing:
        raise UsageError(
            "PropertyMissing",
            f"The entity has no property {missing[0]!r}.",
            facts={"table": table, "partition_key": raw.partition_key, "row_key": raw.row_key},
            hint=f"It has {', '.join(raw.properties)}.",
        )
    for name, value in changes.items():
        if type(value) is not type(raw.properties[name]):
            raise UsageError(
                "PropertyTypeMismatch",
                f"{name!r} holds a {type(raw.properties[name]).__name__}.",
                hint="Give a value of the same type; Int32(...) for a number of 32 bits.",
            )
    operation = RowOperation(Verb.MERGE, Row(raw.key, dict(changes)), raw.etag or "*")
    [etag] = yield from ask(WriteRows(table, (operation,)))
    return RawEntity(raw.partition_key, raw.row_key, {**raw.properties, **changes}, etag)


def save_raw(table: str, raw: RawEntity) -> Steps[RawEntity]:
    """Insert a raw entity that has no etag, replace one that has."""
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
    """Return the partition key that fields of one of the types give, or the one that is given."""
    if partition_key is not None and not given:
        return partition_key
    for model in models:
        if partition_key is None and set(model.partition.fields) == set(given):
            return model.partition.format(given)
    made = " or of ".join(dict.fromkeys(", ".join(each.partition.fields) for each in models))
    raise UsageError(
        "KeyFields",
        "The fields do not name a partition of these types.",
        facts={"types": [model.name for model in models], "given": sorted(given)},
        hint=f"Partition keys are made of {made or 'no fields'}; or give the text of one.",
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
    """Read a partition that holds entities of several types, each as its own (the third way).

    `resolve` decides on what does not say of which type it is. With `keeps_unknown` the rest
    comes raw, entities of versions that this code does not know included.
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
        said = row.properties.get(name)
        model = known.get(said) if isinstance(said, str) else None
        if model is None and _is_ours(row, said):
            continue
        if model is None and resolve is not None:
            model = _resolved(models, (yield from ask(Invoke(resolve, (to_raw(row),)))))
            row = _marked(row, model)  # noqa: PLW2901 - as it would say
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
            f"resolve() returned {model.name}, which is not among the types that are read.",
            facts={"type": model.name},
            hint=f"These are: {', '.join(each.name for each in models)}.",
        )
    return model


def _marked(row: Row, model: EntityType[Any] | None) -> Row:
    """Let a row say the type that was found out."""
    if model is None or model.type_property is None:
        return row
    properties = {**row.properties, model.type_property: model.name}
    return msgspec.structs.replace(row, properties=properties)


def _typed(context: Context, model: EntityType[Any], row: Row) -> Steps[Any]:
    if model.is_wide or any(field.is_in_blob for field in model.fields.values()):
        return (yield from find(context, model, row.key))
    stored = from_rows(model, [row], context.sealing)
    entity = stored.model.build(dict(stored.values))
    stored.model.set_origin(entity, stored.origin)
    return entity


def _is_ours(row: Row, said: object) -> bool:
    """Tell whether a row is one of the library's own: hidden, a copy, or a further row."""
    is_marked = isinstance(said, str) and ("@" in said or said.endswith("~") or "~" in said[:1])
    return row.key.row.startswith("~") or is_marked


def check_together(models: Sequence[EntityType[Any]], resolve: Resolve | None) -> None:
    """Refuse types that one query cannot read and tell apart."""
    tables = {model.table for model in models}
    if len(tables) != 1:
        raise UsageError(
            "TablesDiffer",
            "Types that are read together lie in one table.",
            facts={"tables": sorted(tables)},
        )
    names = {model.type_property for model in models if model.type_property or resolve is None}
    if len(names) > 1:
        raise UsageError(
            "TypePropertiesDiffer",
            "Types that are read together say in one property of which type they are.",
            facts={"properties": sorted(map(str, names))},
            hint="Give them the same type_property=, or tell them apart: mixed(..., resolve=...).",
        )
