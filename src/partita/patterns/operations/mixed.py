"""Several types of one table, read together: a parent and its children in one request.

The request covers the keys of all types: one range of row keys of one partition. A type whose
fields or conditions are narrower than the range is filtered by the service, and once more here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import NewerVersionError, UsageError
from partita.patterns.keys.intervals import Interval
from partita.patterns.keys.key_text import just_above
from partita.patterns.operations.continuations import (
    PAGE_SIZE_MAX,
    Position,
    Slice,
    continuation_at,
    fingerprint,
    position_after,
)
from partita.patterns.operations.raw import RawEntity, to_raw
from partita.patterns.planning.columns import Condition, all_of, fields_in
from partita.patterns.planning.filter_text import check_length, evaluate_values, quoted
from partita.patterns.planning.plans import QueryPlan, plan_query
from partita.patterns.planning.requests import PointRead, RangeRead, Read, ScanRead
from partita.patterns.protocol.calls import Invoke, QueryRows, Steps, ask
from partita.patterns.protocol.values import Row
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find, to_entity
from partita.patterns.writing.rows import from_rows

Resolve = Callable[[RawEntity], type[Any] | None]
"""Returns the class of an entity without a type property; None if it is of no known class."""


class MixedTypes(msgspec.Struct, frozen=True):
    """The types that are read together, and what happens to entities of other types."""

    models: tuple[EntityType[Any], ...]
    keeps_unknown: bool = False
    resolve: Resolve | None = None


class MixedTerms(msgspec.Struct, frozen=True):
    """What a query of several types was built from."""

    types: MixedTypes
    partition_key: str | None
    fields: Mapping[str, Any] = {}
    """The fields of the partition key of one of the types, if its text is not given."""
    given: Mapping[str, Any] = {}
    """Values or intervals of row key fields, each for the types that have the field."""
    conditions: tuple[Condition, ...] = ()
    count_max: int | None = None


class _Part(msgspec.Struct, frozen=True):
    """One type of a query: its key fields, its condition, and its plan."""

    model: EntityType[Any]
    given: Mapping[str, Any]
    condition: Condition | None
    plan: QueryPlan

    def holds(self, values: Mapping[str, Any]) -> bool:
        return all(
            limit.holds(values[name]) if isinstance(limit, Interval) else values[name] == limit
            for name, limit in self.given.items()
        ) and (self.condition is None or evaluate_values(self.condition, values))


class MixedPlan(msgspec.Struct, frozen=True):
    """One range of row keys, and what each type must satisfy."""

    terms: MixedTerms
    read: RangeRead | None
    """None: no entity can match."""
    filter: str
    parts: tuple[_Part, ...]

    @property
    def fingerprint(self) -> str:
        return fingerprint((self.parts[0].model.table, self.filter, repr(self.terms.conditions)))


def partition_fields(models: Sequence[EntityType[Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields of the partition key of one of the types."""
    for model in models:
        if set(model.partition.fields) <= set(given):
            return {name: given[name] for name in model.partition.fields}
    return {}


def plan_mixed(terms: MixedTerms) -> MixedPlan:
    """Return the request for several types. Raises if a field or column is of none of them."""
    models = terms.types.models
    partition = partition_of(models, terms.partition_key, terms.fields)
    _check_given(models, terms.given)
    used = [_conditions_of(terms.conditions, model) for model in models]
    for condition in terms.conditions:
        if not any(condition in each for each in used):
            raise _column_of_another(models, condition)
    parts = tuple(
        _part_of(terms, partition, model, conditions)
        for model, conditions in zip(models, used, strict=True)
    )
    read: RangeRead | None = RangeRead(partition)
    if terms.given:
        reads = [one for each in parts for one in each.plan.requests]
        read = _range_around(partition, reads)
    text = ""
    if read is not None:
        texts = [read.bounds_text()]
        if not terms.types.keeps_unknown and terms.types.resolve is None:
            texts.append("(" + " or ".join(_filter_of(each) for each in parts) + ")")
        text = check_length(" and ".join(texts))
    return MixedPlan(terms, read, text, parts)


def _part_of(
    terms: MixedTerms, partition: str, model: EntityType[Any], used: Sequence[Condition]
) -> _Part:
    condition = all_of(*used) if used else None
    given = {name: limit for name, limit in terms.given.items() if name in model.row.fields}
    known = given
    if model.partition.matches(partition):
        known = {**model.partition.parse(partition), **given}
    return _Part(model, given, condition, plan_query(model, known, condition))


def _filter_of(part: _Part) -> str:
    # The plan of points has no filter.
    names = [each for each in part.model.family() if not each.is_abstract]
    types = " or ".join(f"{each.type_property} eq {quoted(each.name)}" for each in names)
    return f"({part.plan.filter or types or 'false'})"


def _range_around(partition: str, reads: Sequence[Read]) -> RangeRead | None:
    spans = [_span_of(read) for read in reads]
    if not spans:
        return None
    uppers = [upper for _, upper in spans]
    last = None if None in uppers else max(upper for upper in uppers if upper is not None)
    return RangeRead(partition, min(lower for lower, _ in spans), last)


def _span_of(read: Read) -> tuple[str, str | None]:
    if isinstance(read, PointRead):
        return read.key.row, just_above(read.key.row)
    if isinstance(read, ScanRead):
        return read.row_lower, read.row_upper
    return read.lower, read.upper


def _conditions_of(conditions: Sequence[Condition], model: EntityType[Any]) -> list[Condition]:
    """Return the conditions on columns of a type or of a type it is derived from."""
    names = {each.name for each in model.lineage()}
    return [
        each
        for each in conditions
        if all(field.codec.where.rpartition(".")[0] in names for field in fields_in(each))
    ]


def _column_of_another(models: Sequence[EntityType[Any]], condition: Condition) -> UsageError:
    where = next((field.codec.where for field in fields_in(condition)), "")
    return UsageError(
        "ColumnOfAnother",
        f"The condition on {where} is not on columns of one of the types.",
        facts={"types": [model.name for model in models]},
        hint="Use the columns of one type in each where(): where(reviews.c.rating > 3).",
    )


def _check_given(models: Sequence[EntityType[Any]], given: Mapping[str, Any]) -> None:
    for name in given:
        if not any(name in model.row.fields for model in models):
            raise UsageError(
                "KeyFields",
                f"{name!r} is not in a row key of these types.",
                facts={"types": [model.name for model in models], "given": sorted(given)},
                hint="Pass the fields of the partition key and then fields of the row keys; "
                "use where(...) for other fields.",
            )


def read_mixed(
    context: Context, plan: MixedPlan, position: Position, size: int | None
) -> Steps[Slice]:
    """Read up to `size` entities (None: one page of the service) from a position on."""
    found: list[Any] = []
    at: Position | None = position
    while plan.read is not None and at is not None and (size is None or len(found) < size):
        wanted = None if size is None else min(size - len(found), PAGE_SIZE_MAX)
        table = plan.parts[0].model.table
        page = yield from ask(
            QueryRows(table, plan.filter, size=wanted, continuation=continuation_at(at))
        )
        for row in page.rows:
            entity = yield from _entity_of(context, plan, row)
            if entity is not None:
                found.append(entity)
        at = position_after(page.continuation)
        if size is None:
            break
    return Slice(found, at if plan.read is not None else None)


def _entity_of(context: Context, plan: MixedPlan, row: Row) -> Steps[Any]:
    """Return the entity of a row, each as its own type (the guide's third way).

    `resolve` decides the class of entities without a type. With `keeps_unknown` all others are
    returned raw, including entities of newer versions.
    """
    types = plan.terms.types
    known = {each.name: part for part in plan.parts for each in part.model.family()}
    name = types.models[0].type_property or "EntityType"
    stored_type = row.properties.get(name)
    model = None
    if isinstance(stored_type, str) and stored_type in known:
        family = known[stored_type].model.family()
        model = next(each for each in family if each.name == stored_type)
    if model is None and _is_ours(row, stored_type):
        return None
    if model is None and types.resolve is not None:
        model = _resolved(types.models, (yield from ask(Invoke(types.resolve, (to_raw(row),)))))
        row = _marked(row, model)
    entity: Any = None
    if model is not None:
        try:
            entity = yield from _typed(context, model, row)
        except NewerVersionError:
            if not types.keeps_unknown:
                raise
        if entity is not None:
            own = entity_type(type(entity))
            return entity if known[model.name].holds(own.values(entity)) else None
    return to_raw(row) if types.keeps_unknown else None


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
