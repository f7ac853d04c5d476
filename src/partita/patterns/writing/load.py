"""The only read path of single entities: rows → stored entity → large values → object.

A read that coincides with a write (rows of a wide entity that were not written together, a blob
that was replaced) is repeated; a half-written entity is never returned.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from partita.errors import (
    BlobMissingError,
    DefinitionError,
    InvalidKeyError,
    TornReadError,
    UsageError,
)
from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.fields.markers import CountOf, MaxOf, MinOf, Summary
from partita.patterns.planning.columns import Columns, Condition, all_of
from partita.patterns.planning.filter_text import evaluate_values, literal
from partita.patterns.planning.plans import QueryPlan, plan_query
from partita.patterns.protocol.calls import GetBlob, GetRow, Parallel, QueryRows, Steps, ask
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.blob_values import from_content
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.row_layout import (
    LAST_TEXT,
    PART_MARK,
    PARTS,
    parse_manifest,
    part_key,
    place_of,
)
from partita.patterns.writing import derived_fields
from partita.patterns.writing.context import Context
from partita.patterns.writing.rows import Stored, from_rows, peek

S = TypeVar("S")
T = TypeVar("T")

_KEYS = ("PartitionKey", "RowKey")

REREADS_MAX = 10
"""How often a read is repeated that coincides with a write."""


def find_rows(table: str, keys: Sequence[RowKey]) -> Steps[dict[RowKey, Row | None]]:
    """Read rows by their keys, in parallel."""
    if len(keys) == 1:
        return {keys[0]: (yield from ask(GetRow(table, keys[0])))}
    wanted = list(dict.fromkeys(keys))
    rows = yield from ask(Parallel(tuple(ask(GetRow(table, key)) for key in wanted)))
    return dict(zip(wanted, rows, strict=True))


def in_parallel(context: Context, steps: Iterable[Steps[T]]) -> Steps[Sequence[T]]:
    """Run steps in parallel, within the limit of the database; return their answers in order."""
    started = tuple(steps)
    if not started:
        return ()
    return (yield from ask(Parallel(started, context.options.parallel)))


def read_all_rows(query: QueryRows) -> Steps[list[Row]]:
    """Read all pages of a query."""
    rows: list[Row] = []
    while True:
        page = yield from ask(query)
        rows += page.rows
        if page.continuation is None:
            return rows
        query = msgspec.structs.replace(query, continuation=page.continuation)


def load(context: Context, model: EntityType[Any], key: RowKey) -> Steps[Stored | None]:
    """Read one entity without its large values."""
    for attempt in range(REREADS_MAX):
        rows = yield from _rows_of(model, key)
        if not rows:
            return None
        try:
            return from_rows(model, rows, context.sealing)
        except TornReadError:
            if attempt == REREADS_MAX - 1:
                raise
    raise AssertionError


def _rows_of(model: EntityType[Any], key: RowKey) -> Steps[list[Row]]:
    rows = yield from _rows_of_layout(model, key)
    manifest = parse_manifest(rows[0].properties.get(PARTS)) if rows else {}
    if rows and len(manifest) >= len(rows):
        # A wider type wrote the entity: it has more rows than this type.
        found = yield from find_rows(model.table, [part_key(key, place) for place in manifest])
        rows[1:] = [row for row in found.values() if row is not None]
    return rows


def _rows_of_layout(model: EntityType[Any], key: RowKey) -> Steps[list[Row]]:
    if model.layout.rows == 1:
        row = yield from ask(GetRow(model.table, key))
        return [] if row is None else [row]
    if not all(each.row.is_prefix_free for each in model.family()):
        # Other entities may be stored between the rows of this one: read the rows by their keys.
        keys = [part_key(key, place) for place in range(model.layout.rows)]
        found = yield from find_rows(model.table, keys)
        return [row for row in found.values() if row is not None] if found[key] else []
    rows = yield from read_all_rows(QueryRows(model.table, _rows_filter(key)))
    rows.sort(key=lambda row: place_of(row.key.row)[1])  # in text order row 10 precedes row 2
    return rows if rows and rows[0].key == key else []


def _rows_filter(key: RowKey) -> str:
    return (
        f"PartitionKey eq {literal(key.partition)} and RowKey ge {literal(key.row)} "
        f"and RowKey lt {literal(key.row + PART_MARK + LAST_TEXT)}"
    )


def fill(stored: Stored) -> Steps[dict[str, Any]]:
    """Return the values of an entity, with the contents of its blobs."""
    values = dict(stored.values)
    references = stored.unread()
    if not references:
        return values
    names = list(references)
    contents = yield from ask(Parallel(tuple(_content(references[name]) for name in names)))
    for name, content in zip(names, contents, strict=True):
        values[name] = from_content(stored.model.fields[name], content)
    return values


def _content(reference: LargeValue) -> Steps[bytes]:
    blob = yield from ask(GetBlob(reference.container, reference.name))
    if blob is None:
        raise BlobMissingError(
            "BlobMissing",
            "The blob of a large property does not exist.",
            facts={"container": reference.container, "blob": reference.name},
            hint="Load the entity again: it was replaced or deleted during the read.",
        )
    reference.check(blob.content)
    return blob.content


def find(context: Context, model: EntityType[T], key: RowKey) -> Steps[T | None]:
    """Read one entity with its large values; None if there is none."""
    for attempt in range(REREADS_MAX):
        stored = yield from load(context, model, key)
        if stored is None:
            return None
        try:
            values = yield from fill(stored)
        except BlobMissingError:
            if attempt == REREADS_MAX - 1:
                raise
            continue
        entity: T = to_entity(stored, values)
        return entity
    raise AssertionError


# ---------------------------------------------------------------------------------------------
# Derived types with other key templates


def find_any(context: Context, model: EntityType[T], key: RowKey) -> Steps[T | None]:
    """Read an entity of a type or of a derived type, by the key that its fields have in `model`."""
    if not model.children:
        return (yield from find(context, model, key))
    own, others = _keys_of_derived_types(model, key)
    entity: T | None = None
    if own is not None:
        entity = yield from find(context, model, own)
    if entity is None and others:
        finds: list[Steps[Any]] = [find(context, model, each) for each in others]
        found = yield from in_parallel(context, finds)
        return _only(model, key, [each for each in found if each is not None])
    return entity


def locate(model: EntityType[Any], key: RowKey) -> Steps[RowKey]:
    """Return the key under which `find_any` finds an entity; the type's own if there is none."""
    if not model.children:
        return key
    own, others = _keys_of_derived_types(model, key)
    if not others:
        return own or key
    if own is not None and (yield from ask(GetRow(model.table, own, _KEYS))) is not None:
        return own
    if own is None and len(others) == 1:
        return others[0]
    rows = yield from find_rows(model.table, others)
    there = [each for each, row in rows.items() if row is not None]
    return _only(model, key, there) or own or others[0]


def _keys_of_derived_types(
    model: EntityType[Any], key: RowKey
) -> tuple[RowKey | None, list[RowKey]]:
    """Return the key in `model` and the keys in derived types of the fields in a key.

    An abstract type has no key of its own.
    """
    given = {**model.partition.parse(key.partition), **model.row.parse(key.row)}
    keys: list[RowKey] = []
    for each in model.family():
        if each.is_abstract or set(each.key_fields) != set(model.key_fields):
            continue
        with contextlib.suppress(InvalidKeyError):  # the type cannot have such a value
            keys.append(each.key(given))
    own = None if model.is_abstract and keys else key
    return own, [each for each in dict.fromkeys(keys) if each != own]


def _only(model: EntityType[Any], key: RowKey, found: Sequence[S]) -> S | None:
    if len(found) > 1:
        raise UsageError(
            "KeyAmbiguous",
            f"Several types derived from {model.name} have an entity with these key fields.",
            facts={"type": model.name, **key.facts},
            hint="Use the table of the derived type: db.table(...).",
        )
    return found[0] if found else None


def to_entity(stored: Stored, values: Mapping[str, Any]) -> Any:
    """Create the object of a stored entity."""
    entity = stored.model.build(dict(values))
    stored.model.set_origin(entity, stored.origin)
    return entity


def summarise(
    context: Context, source: EntityType[Any], marker: Summary, owner: Mapping[str, Any]
) -> Steps[Any]:
    """Return a summary of the stored sources of an owner."""
    if isinstance(marker, CountOf):
        return (yield from count_sources(context, source, marker, owner))
    found = yield from values_of_sources(context, source, marker, owner)
    return summary_of(marker, source, found.values())


def summary_of(marker: Summary, source: EntityType[Any], values: Iterable[Any]) -> Any:
    """Return the sum or the extreme of values."""
    assert not isinstance(marker, CountOf)
    if isinstance(marker, MinOf | MaxOf):
        return derived_fields.extreme(marker, values)
    kind = plain(source.fields[marker.field].annotation)
    total = next(each for each in union_members(kind) if each is not type(None))()
    for value in values:
        total = derived_fields.added(total, value)
    return total


def count_sources(
    context: Context, source: EntityType[Any], marker: CountOf, owner: Mapping[str, Any]
) -> Steps[int]:
    """Count the sources of an owner, by their keys where the service can decide."""
    plan = _plan_of_sources(source, marker, owner)
    total = 0
    for read in plan.requests if plan else ():
        assert plan is not None
        rows = yield from read_all_rows(QueryRows(source.table, plan.filter_of(read), _KEYS))
        for row in rows:
            total += yield from _counts(context, source, row.key, plan.client)
    return total


def values_of_sources(
    context: Context, source: EntityType[Any], marker: Summary, owner: Mapping[str, Any]
) -> Steps[dict[RowKey, Any]]:
    """Return the values of the sources of an owner, by their keys."""
    assert not isinstance(marker, CountOf)
    plan = _plan_of_sources(source, marker, owner)
    found: dict[RowKey, Any] = {}
    for read in plan.requests if plan else ():
        assert plan is not None
        rows = yield from read_all_rows(QueryRows(source.table, plan.filter_of(read)))
        for row in rows:
            if source.type_property is None and not source.row.matches(row.key.row):
                continue  # because it is a hidden row
            stored = yield from _values_of(context, source, row)
            if stored is not None and (plan.client is None or evaluate_values(plan.client, stored)):
                found[row.key] = stored[marker.field]
    return found


def _values_of(
    context: Context, source: EntityType[Any], row: Row
) -> Steps[Mapping[str, Any] | None]:
    """Return the fields of an entity; one with several rows is loaded."""
    if PARTS not in row.properties:
        return peek(source, row, context.sealing)
    stored = yield from load(context, source, row.key)
    return None if stored is None else stored.values


def _plan_of_sources(
    source: EntityType[Any], marker: Summary, owner: Mapping[str, Any]
) -> QueryPlan | None:
    """Return the plan that reads the sources of an owner; None if there are none."""
    given = {source_field: owner[owner_field] for source_field, owner_field in marker.where.items()}
    if any(value is None and source.fields[name].is_key for name, value in given.items()):
        return None
    keys, condition = _as_query(source, given)
    when = derived_fields.condition_on(source, marker)
    if when is not None:
        condition = when if condition is None else condition & when
    plan = plan_query(source, keys, condition)
    if plan.is_refused:
        raise DefinitionError(
            "DerivedRefused",
            f"Counting {source.name} by {', '.join(given)} would read a whole table.",
            hint="Name every field of the source's partition key in where=.",
        )
    return plan


def _counts(
    context: Context, source: EntityType[Any], key: RowKey, condition: Condition | None
) -> Steps[int]:
    """Return 1 if an entity is to be counted; load it if the service cannot decide."""
    if source.type_property is None and not source.row.matches(key.row):
        return 0  # because it is a hidden row
    if condition is None:
        return 1
    stored = yield from load(context, source, key)
    return int(stored is not None and evaluate_values(condition, stored.values))


def _as_query(
    source: EntityType[Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], Condition | None]:
    """Split fields into those of the keys and a condition on the others."""
    keys = {name: value for name, value in given.items() if source.fields[name].is_key}
    columns = Columns(source)
    others: list[Condition] = []
    for name, value in given.items():
        if name not in keys:
            column = getattr(columns, name)
            others.append(column.is_absent() if value is None else column == value)
    return keys, all_of(*others) if others else None


def keys_between(
    model: EntityType[Any], partition: str, lower: str, upper: str | None
) -> Steps[list[RowKey]]:
    """Return the keys of a type's entities in a range of one partition."""
    rows = yield from read_all_rows(query_between(model, partition, lower, upper, _KEYS))
    return [row.key for row in rows if model.row.matches(row.key.row)]


def query_between(
    model: EntityType[Any],
    partition: str,
    lower: str,
    upper: str | None,
    select: tuple[str, ...] | None = None,
) -> QueryRows:
    """Return the query for the first rows of a type's entities in a range of one partition."""
    conditions = [f"PartitionKey eq {literal(partition)}"]
    if lower:
        conditions.append(f"RowKey ge {literal(lower)}")
    if upper is not None:
        conditions.append(f"RowKey lt {literal(upper)}")
    if model.type_property is not None:
        names = [f"{model.type_property} eq {literal(each.name)}" for each in model.family()]
        conditions.append(f"({' or '.join(names)})")
    return QueryRows(model.table, " and ".join(conditions), select)
