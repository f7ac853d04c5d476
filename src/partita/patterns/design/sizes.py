"""The estimated size of the rows of a type and of its indexes, before anything is stored."""

from typing import Any

from partita.patterns.fields.fields import Field
from partita.patterns.keys.fixed_width_parts import CodePart
from partita.patterns.keys.key_parts import Bucket, KeyPart
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.planning.columns import plain_type
from partita.patterns.planning.sample_values import sample
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, Index
from partita.tables import edm

TEXT_CHARACTERS = 16
"""The assumed length of a text."""

_SIZES = {
    edm.BOOLEAN: 1,
    edm.INT32: 4,
    edm.INT64: 8,
    edm.DOUBLE: 8,
    edm.DATETIME: 8,
    edm.GUID: 16,
    edm.BINARY: 4 + TEXT_CHARACTERS,
    edm.STRING: 4 + 2 * TEXT_CHARACTERS,
}


def entity_bytes(model: EntityType[Any]) -> int:
    """Return the size of an entity as the service counts it, with texts of 16 characters."""
    fields = [field for field in model.fields.values() if not field.is_key]
    size = _row_bytes(model, model.partition, model.row)
    return size + sum(_field_bytes(field) for field in fields)


def index_bytes(index: AnyIndex, owner_bytes: int) -> int:
    """Return the size of one row of an index."""
    model = index.owner
    size = _row_bytes(model, index.partition, index.row)
    if not isinstance(index, Index):
        return size + _property_bytes("_Row", edm.STRING)
    if set(index.copied) | set(index.key_fields) >= set(model.fields):
        return max(size, owner_bytes)
    return size + sum(_field_bytes(model.fields[name]) for name in index.copied)


def _row_bytes(model: EntityType[Any], partition: KeyTemplate, row: KeyTemplate) -> int:
    type_bytes = 0
    if model.type_property is not None:
        type_bytes = 8 + 2 * len(model.type_property) + 4 + 2 * len(model.name)
    return 4 + 2 * (_key_length(model, partition) + _key_length(model, row)) + type_bytes


def _key_length(model: EntityType[Any], template: KeyTemplate) -> int:
    return sum(
        len(piece) if isinstance(piece, str) else _part_length(model, piece)
        for piece in template.pieces
    )


def _part_length(model: EntityType[Any], part: KeyPart) -> int:
    if isinstance(part, CodePart | Bucket):
        return part.length_min
    field = model.fields[part.field]
    if field.codec.edm == edm.STRING and plain_type(field) is str:
        return TEXT_CHARACTERS
    return max(part.length_min, len(part.encode(sample(field))))


def _field_bytes(field: Field) -> int:
    names = field.property_names
    return sum(_property_bytes(name, field.codec.edm) for name in names)


def _property_bytes(name: str, kind: str) -> int:
    return 8 + 2 * len(name) + _SIZES.get(kind, 8)
