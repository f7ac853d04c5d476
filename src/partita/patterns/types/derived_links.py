"""Links from derived fields to their source types, whichever of the two is defined first.

A source given by name is searched in the module of its owner, from the owner's scope outwards. A
class that is defined again under the same name (a notebook cell run twice) replaces the old one.
"""

import weakref
from collections.abc import Iterator
from typing import Any

from partita.errors import DefinitionError
from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.fields.fields import Field
from partita.patterns.fields.markers import CopiedFrom, CountOf, Derived, Summary
from partita.patterns.keys.key_parts import Bucket
from partita.patterns.types.entity_types import Dependent, EntityType, entity_type

_defined: weakref.WeakValueDictionary[tuple[str, str], EntityType[Any]] = (
    weakref.WeakValueDictionary()
)
"""Entity types by module and qualified name; the latest definition replaces earlier ones."""
_named_sources: list[weakref.ref[EntityType[Any]]] = []
"""Types with derived fields whose sources are given by name, in order of definition."""


def register(model: EntityType[Any]) -> None:
    """Register a type, and link its derived fields and the derived fields that read it."""
    _defined[model.cls.__module__, model.cls.__qualname__] = model
    for field in model.fields.values():
        if field.derived is not None:
            source = _find_source(model, field.derived.source)
            if source is not None:
                link(model, field, source)
    if any(isinstance(each.source, str) for each in _markers(model)):
        _named_sources.append(weakref.ref(model))
    for owner in _types_with_named_sources():
        if owner is model:
            continue
        for field in owner.fields.values():
            if (
                field.derived is not None
                and isinstance(field.derived.source, str)
                and _find_source(owner, field.derived.source) is model
            ):
                link(owner, field, model)


def check_derived(model: EntityType[Any]) -> None:
    """Raise if a type has other keys than the parent type from which fields are copied."""
    for above in model.lineage():
        for dependent in above.dependents:
            if isinstance(dependent.marker, CopiedFrom):
                _check_keys(dependent.owner, dependent.field, above, model)


def _markers(model: EntityType[Any]) -> list[Derived]:
    return [field.derived for field in model.fields.values() if field.derived is not None]


def _types_with_named_sources() -> list[EntityType[Any]]:
    living = [(reference, reference()) for reference in _named_sources]
    _named_sources[:] = [reference for reference, model in living if model is not None]
    return [model for _, model in living if model is not None]


def _find_source(owner: EntityType[Any], source: Any) -> EntityType[Any] | None:
    if not isinstance(source, str):
        return entity_type(source)
    for name in _names_from(owner.cls.__qualname__, source):
        found = _defined.get((owner.cls.__module__, name))
        if found is not None:
            return found
    return None


def _names_from(qualified: str, name: str) -> Iterator[str]:
    """Yield the qualified names that a name can have in a scope, innermost first."""
    while qualified:
        qualified = qualified.rpartition(".")[0]
        yield f"{qualified}.{name}" if qualified else name


# ---------------------------------------------------------------------------------------------
# Links


def link(owner: EntityType[Any], field: Field, source: EntityType[Any]) -> None:
    """Link a derived field of `owner` to `source`, or raise."""
    marker = field.derived
    assert marker is not None
    _check_where(owner, field, marker, source)
    if isinstance(marker, CopiedFrom):
        _check_copy(owner, field, marker, source)
    else:
        _check_summary(owner, field, marker, source)
    before = owner.sources.get(field.name)
    for each in {id(model): model for model in (before, source) if model is not None}.values():
        each.declare(
            dependents=[
                dependent
                for dependent in each.dependents
                if not (_is_same(dependent.owner, owner) and dependent.field.name == field.name)
            ]
        )
    owner.sources[field.name] = source
    source.declare(dependents=(*source.dependents, Dependent(owner, field, marker)))


def _is_same(one: EntityType[Any], other: EntityType[Any]) -> bool:
    """Return whether two types have the same module and qualified name."""
    return (one.cls.__module__, one.cls.__qualname__) == (
        other.cls.__module__,
        other.cls.__qualname__,
    )


def _check_where(
    owner: EntityType[Any],
    field: Field,
    marker: Derived,
    source: EntityType[Any],
) -> None:
    if not marker.where:
        raise _refused(owner, field, "where= is empty.", "Map at least one field.")
    for source_name, owner_name in marker.where.items():
        theirs = _field(source, source_name, owner, field)
        ours = _field(owner, owner_name, owner, field)
        if _core(theirs.annotation) != _core(ours.annotation):
            raise _refused(
                owner,
                field,
                f"{source.name}.{source_name} and {owner.name}.{owner_name} differ in type.",
                "Map fields of the same type.",
            )


def _field(model: EntityType[Any], name: str, owner: EntityType[Any], field: Field) -> Field:
    found = model.fields.get(name)
    if found is None:
        raise _refused(
            owner,
            field,
            f"{model.name} has no field {name!r}.",
            f"Map fields of the source to fields of {owner.name}. {model.name} has "
            f"{', '.join(model.fields)}.",
        )
    if found.is_encrypted or found.is_in_blob or found.series is not None or found.derived:
        raise _refused(
            owner,
            field,
            f"{model.name}.{name} is encrypted, derived, or stored outside the entity.",
            "Use an unencrypted field that is stored in the entity.",
        )
    return found


def _check_copy(
    owner: EntityType[Any], field: Field, marker: CopiedFrom, source: EntityType[Any]
) -> None:
    copied = _field(source, marker.field, owner, field)
    if _core(copied.annotation) != _core(field.annotation):
        raise _refused(
            owner,
            field,
            f"It differs in type from {source.name}.{marker.field}.",
            "Use the type of the source, with `| None`.",
        )
    if not field.codec.is_optional:
        raise _refused(owner, field, "The source may not exist.", "Annotate it `| None`.")
    for each in source.family():
        _check_keys(owner, field, source, each)
    missing = sorted(set(source.key_fields) - set(marker.where))
    if missing:
        raise _refused(
            owner,
            field,
            f"where= does not identify one {source.name}: it lacks {', '.join(missing)}.",
            f"Map every key field of the source to a field of {owner.name}.",
        )
    hidden = [name for name in owner.partition.fields if name not in marker.where.values()]
    if hidden:
        raise _refused(
            owner,
            field,
            f"The partitions with copies of a {source.name} cannot be found: {hidden[0]!r} of the "
            "partition key is not in where=.",
            f"Use {', '.join(marker.where.values())} in the partition template, or read the "
            "source through a reference().",
        )


def _check_keys(
    owner: EntityType[Any], field: Field, source: EntityType[Any], below: EntityType[Any]
) -> None:
    """Raise if a derived type has its own keys: then two entities can match `where`."""
    if (below.partition.text, below.row.text) != (source.partition.text, source.row.text):
        raise _refused(
            owner,
            field,
            f"The source is ambiguous: {below.name} is derived from {source.name} and has its own "
            "keys.",
            f"Copy from {below.name}, or give it the keys of {source.name}.",
        )


def _check_summary(
    owner: EntityType[Any], field: Field, marker: Summary, source: EntityType[Any]
) -> None:
    if not isinstance(marker, CountOf):
        summed = source.fields.get(marker.field)
        if summed is None or not summed.is_key:
            summed = _field(source, marker.field, owner, field)
        if _core(summed.annotation) - {type(None)} != _core(field.annotation) - {type(None)}:
            raise _refused(
                owner,
                field,
                f"It differs in type from {source.name}.{marker.field}.",
                "Use the type of the source.",
            )
    missing = sorted(set(owner.key_fields) - set(marker.where.values()))
    if missing:
        raise _refused(
            owner,
            field,
            f"where= does not identify one {owner.name}: it lacks {', '.join(missing)}.",
            f"Map fields of the source to every key field of {owner.name}.",
        )
    # The partitions of a hashed field can be enumerated; those of any other cannot.
    hidden = [
        part.field
        for part in source.partition.parts()
        if not isinstance(part, Bucket) and part.field not in marker.where
    ]
    if hidden:
        raise _refused(
            owner,
            field,
            f"Counting would read the whole table of {source.name}: {hidden[0]!r} of its partition "
            "key is not in where=.",
            f"Map {', '.join(hidden)} to a field of {owner.name}, or count with a view.",
        )


def _core(annotation: Any) -> Any:
    return frozenset(plain(member) for member in union_members(plain(annotation)))


def _refused(owner: EntityType[Any], field: Field, reason: str, hint: str) -> DefinitionError:
    where = f"{owner.name}.{field.name}"
    return DefinitionError(
        "DerivedRefused", f"{where}: {reason}", facts={"field": where}, hint=hint
    )
