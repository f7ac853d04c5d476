"""The size of an entity as the service counts it, before it is sent.

This is the public `measure`; `values.measure` counts one row and is on the path of every call.
"""

from typing import Any

from partita.patterns.fields.large_values import LargeValue
from partita.patterns.operations.raw import RawEntity
from partita.patterns.protocol import values
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.blob_values import folder_of, reference_to, to_content
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.entity_types import entity_type
from partita.patterns.types.row_layout import (
    PART_MARK,
    PARTS,
    STAMP,
    WRITE,
    part_key,
    print_manifest,
)
from partita.patterns.writing.rows import encode, marks_of, note_write, split_rows

_SOME_WRITE = "0" * 16
"""As long as a write id."""
_SOME_STAMP = 10**16
"""With as many digits as a current time in ticks."""


def measure(stored: object) -> int:
    """Return how many bytes the service counts for an entity, a raw entity, or a row.

    An entity is counted as `save` would write it, with bookkeeping properties and all its rows. The
    overhead of encryption, index rows and blobs are not counted. The limit is 1 MiB per row.

    >>> from partita.patterns import entity, measure
    >>> @entity(table="staff", partition="{dept}", row="{id:05d}")
    ... class Porter:
    ...     dept: str
    ...     id: int
    ...     age: int = 0
    >>> measure(Porter(dept="Sales", id=1))
    146
    """
    if isinstance(stored, Row):
        return values.measure(stored)
    if isinstance(stored, RawEntity):
        return values.measure(Row(stored.key, stored.properties))
    model = entity_type(type(stored))
    return sum(map(values.measure, _rows_of(model, stored)))


def _rows_of(model: EntityType[Any], entity: object) -> list[Row]:
    entity_values, before = model.values(entity), model.origin(entity)
    key = model.key(entity_values)
    kept = {} if before is None else before.number_types
    first, *rest = split_rows(
        model, encode(model, entity_values, _references(model, key, entity_values), kept), before
    )
    ours = marks_of(model)
    if model.type_property is not None and not model.is_single_row:
        ours[WRITE] = note_write(_SOME_WRITE, {} if before is None else before.system)
    if rest:
        stamps = dict.fromkeys(range(1, len(rest) + 1), _SOME_STAMP)
        ours[PARTS] = print_manifest(stamps, len(rest) + 1)
    further = {**marks_of(model, PART_MARK), STAMP: _SOME_STAMP}
    return [
        Row(key, first | ours),
        *(Row(part_key(key, place), part | further) for place, part in enumerate(rest, start=1)),
    ]


def _references(
    model: EntityType[Any], key: RowKey, entity_values: dict[str, Any]
) -> dict[str, LargeValue | None]:
    references: dict[str, LargeValue | None] = {}
    for field in model.fields.values():
        if field.blob is None:
            continue
        content = to_content(field, entity_values[field.name])
        references[field.name] = (
            None
            if content is None
            else reference_to(
                content,
                folder=folder_of(model.table, key),
                property_name=field.property,
                container=field.blob.container,
                write_id=_SOME_WRITE,
            )
        )
    return references
