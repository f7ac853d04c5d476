"""Adopted tables: every entity is loaded by the printed classes and saved again."""

import json
from typing import Any

from partita.errors import InvalidPropertyError, UnknownTypeError
from partita.patterns import entity_type
from partita.patterns.adoption.proof import import_text
from partita.patterns.sync import Database


def save_all(db: Database, module: str, table: str) -> int:
    """Load every entity by the printed classes and save it again; return how many changed."""
    declared = vars(import_text(module))
    classes = [
        each
        for each in declared.values()
        if isinstance(each, type) and each.__module__ == "adopted"
    ]
    before = {row.key: row.properties for row in db.raw(table).query()}
    for key in before:
        assert any(_save(db, cls, key.partition, key.row) for cls in classes), key
    after = {row.key: row.properties for row in db.raw(table).query()}
    return sum(_as_json(before[key]) != _as_json(after[key]) for key in before)


def _save(db: Database, cls: Any, partition_key: str, row_key: str) -> bool:
    """Load and save an entity if it is of this class."""
    model = entity_type(cls)
    if not (model.partition.matches(partition_key) and model.row.matches(row_key)):
        return False
    key = {**model.partition.parse(partition_key), **model.row.parse(row_key)}
    try:
        entity = db.table(cls).get(**key)
    except (InvalidPropertyError, UnknownTypeError):  # classes can have equal keys
        return False
    db.table(cls).save(entity)
    return True


def _as_json(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        name: json.loads(value) if isinstance(value, str) and value[:1] in "[{" else value
        for name, value in properties.items()
        if name != "_Write"  # which the typed layer adds, to recognise its own write
    }
