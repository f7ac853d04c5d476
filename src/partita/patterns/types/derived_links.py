"""Derived fields find the types that they follow, whichever of the two is defined first.

A source that is given by name is looked for in the module of its owner, from the scope that the
owner stands in outwards. A class that is defined anew under the same name (a notebook cell run
again) takes the place of the old one.
"""

import weakref
from collections.abc import Iterator
from typing import Any

from partita.errors import DefinitionError
from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.fields.fields import Field
from partita.patterns.fields.markers import CopiedFrom, CountOf
from partita.patterns.types.entity_types import Dependent, EntityType, entity_type

_defined: weakref.WeakValueDictionary[tuple[str, str], EntityType[Any]] = (
    weakref.WeakValueDictionary()
)
"""Entity types by module and qualified name; the latest definition counts."""
_followers: list[weakref.ref[EntityType[Any]]] = []
"""Types with derived fields whose sources are given by name, in order of definition."""


def register(model: EntityType[Any]) -> None:
    """Make a type known, and link it with those it follows and those that follow it."""
    _defined[model.cls.__module__, model.cls.__qualname__] = model
    for field in model.fields.values():
        if field.derived is not None:
            source = _find_source(model, field.derived.source)
            if source is not None:
                link(model, field, source)
    if any(isinstance(each.source, str) for each in _markers(model)):
        _followers.append(weakref.ref(model))
    for owner in _living_followers():
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
    """Refuse a type whose keys hide it from those that copy from a type above it."""
    for above in model.lineage():
        for dependent in above.dependents:
            if isinstance(dependent.marker, CopiedFrom):
                _check_keys(dependent.owner, dependent.field, above, model)


def _markers(model: EntityType[Any]) -> list[CopiedFrom | CountOf]:
    return [field.derived for field in model.fields.values() if field.derived is not None]


def _living_followers() -> list[EntityType[Any]]:
    living = [(reference, reference()) for reference in _followers]
    _followers[:] = [reference for reference, model in living if model is not None]
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
    """Yield what a name could mean inside a scope, innermost first."""
    while qualified:
        qualified = qualified.rpartition(".")[0]
        yield f"{qualified}.{name}" if qualified else name


# ---------------------------------------------------------------------------------------------
# Links


def link(owner: EntityType[Any], field: Field, source: EntityType[Any]) -> None:
    """Let a derived field of `owner` follow `source`, if it can."""
    marker = field.derived
    assert marker is not None
    _check_where(owner, field, marker, source)
    if isinstance(marker, CopiedFrom):
        _check_copy(owner, field, marker, source)
    else:
        _check_count(owner, field, marker)
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
    """Tell whether one is the other, perhaps as it was before its module was run again."""
    return (one.cls.__module__, one.cls.__qualname__) == (
        other.cls.__module__,
        other.cls.__qualname__,
    )


def _check_where(
    owner: EntityType[Any],
    field: Field,
    marker: CopiedFrom | CountOf,
    source: EntityType[Any],
) -> None:
    if not marker.where:
        raise _refused(owner, field, "where= is empty.", "Say which fields are equal.")
    for source_name, owner_name in marker.where.items():
        theirs = _field(source, source_name, owner, field)
        ours = _field(owner, owner_name, owner, field)
        if _core(theirs.annotation) != _core(ours.annotation):
            raise _refused(
                owner,
                field,
                f"{source.name}.{source_name} and {owner.name}.{owner_name} differ in type.",
                "Fields that are compared have the same type.",
            )


def _field(model: EntityType[Any], name: str, owner: EntityType[Any], field: Field) -> Field:
    found = model.fields.get(name)
    if found is None:
        raise _refused(
            owner,
            field,
            f"{model.name} has no field {name!r}.",
            f"It has {', '.join(model.fields)}; where= maps fields of the source to ours.",
        )
    if found.is_encrypted or found.is_in_blob or found.series is not None or found.derived:
        raise _refused(
            owner,
            field,
            f"{model.name}.{name} is encrypted, derived, or lies outside the entity.",
            "Use a field that lies in the entity in the clear.",
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
            "Give it the type of the source, with `| None`.",
        )
    if not field.codec.is_optional:
        raise _refused(
            owner,
            field,
            "There may be no source to copy from.",
            "Annotate it `| None`.",
        )
    for each in source.family():
        _check_keys(owner, field, source, each)
    missing = sorted(set(source.key_fields) - set(marker.where))
    if missing:
        raise _refused(
            owner,
            field,
            f"where= does not say which {source.name} is meant: {', '.join(missing)} is open.",
            "Map every field of the source's keys to one of ours.",
        )
    hidden = [name for name in owner.partition.fields if name not in marker.where.values()]
    if hidden:
        raise _refused(
            owner,
            field,
            f"Which partitions hold those that copy from a {source.name} cannot be told: "
            f"{hidden[0]!r} of the partition key is not in where=.",
            f"Put {', '.join(marker.where.values())} into the partition template, or follow a "
            "reference() when reading.",
        )


def _check_keys(
    owner: EntityType[Any], field: Field, source: EntityType[Any], below: EntityType[Any]
) -> None:
    """Refuse a source of which several can be stored: which of them is copied, nobody could say.

    A type with keys of its own may have an entity with the same fields beside that of the source.
    """
    if (below.partition.text, below.row.text) != (source.partition.text, source.row.text):
        raise _refused(
            owner,
            field,
            f"It is copied from a {source.name}, and {below.name}, which is derived from it, has "
            "keys of its own: two entities could be meant.",
            f"Copy from {below.name} itself, or give it the keys of {source.name}.",
        )


def _check_count(owner: EntityType[Any], field: Field, marker: CountOf) -> None:
    missing = sorted(set(owner.key_fields) - set(marker.where.values()))
    if missing:
        raise _refused(
            owner,
            field,
            f"where= does not say which {owner.name} counts: {', '.join(missing)} is open.",
            "Map fields of the source to every field of our keys.",
        )


def _core(annotation: Any) -> Any:
    return frozenset(plain(member) for member in union_members(plain(annotation)))


def _refused(owner: EntityType[Any], field: Field, reason: str, hint: str) -> DefinitionError:
    where = f"{owner.name}.{field.name}"
    return DefinitionError(
        "DerivedRefused", f"{where}: {reason}", facts={"field": where}, hint=hint
    )
