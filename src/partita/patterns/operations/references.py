"""References: fields of an entity that are the key of another one, in any partition or table.

A reference stores nothing. It declares which fields of one type are the key fields of another,
so that the targets can be loaded together and dangling references can be found. The service
does not keep two partitions consistent.

>>> from partita.patterns import entity, reference
>>> @entity(table="departments", partition="{name}", row="dept")
... class Department:
...     name: str
>>> @entity(table="staff", partition="{id:06d}", row="emp")
... class Employee:
...     id: int
...     dept: str | None = None
>>> works_in = reference(Employee, Department, where={"name": "dept"})
>>> works_in(Employee(id=7, dept="Sales"))
{'name': 'Sales'}
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from partita.errors import DefinitionError
from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.following.index_lifecycle import Drift
from partita.patterns.operations.joins import aim, join
from partita.patterns.protocol.calls import Steps
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find, in_parallel

S = TypeVar("S")
T = TypeVar("T")


class Reference(Generic[S, T]):
    """A reference from entities of one type to those of another. Made by `reference`."""

    def __init__(
        self, owner: EntityType[S], target: EntityType[T], where: Mapping[str, str], name: str
    ) -> None:
        self.owner = owner
        self.target = target
        self.where = dict(where)
        """A key field of the target → a field of the owner."""
        self.name = name

    def __call__(self, entity: S) -> dict[str, Any] | None:
        """Return the key fields of the target; None if a field is None."""
        given = {theirs: getattr(entity, ours) for theirs, ours in self.where.items()}
        return None if any(value is None for value in given.values()) else given

    @property
    def needed_fields(self) -> tuple[str, ...]:
        """The fields of the owner that determine its own key and the target's."""
        return tuple(dict.fromkeys((*self.owner.key_fields, *self.where.values())))

    def __repr__(self) -> str:
        return f"<reference {self.name!r} of {self.owner.name} to {self.target.name}>"


def reference(
    cls: type[S], target: type[T], *, where: Mapping[str, str], name: str | None = None
) -> Reference[S, T]:
    """Declare that fields of one type are the keys of another.

    `where` maps every key field of the target to a field of `cls`, as in `CopiedFrom`.
    """
    owner, aim = entity_type(cls), entity_type(target)
    made = Reference(owner, aim, where, name or "_".join(where.values()) or aim.name)
    _check(made)
    return made


def load_targets(
    context: Context, reference: Reference[Any, Any], entities: Iterable[Any]
) -> Steps[list[Any]]:
    """Return the target of each entity, or None; every distinct target is read once."""
    context.know(reference.target)
    aimed = aim(entities, reference.target, reference)
    pairs = yield from join(context, aimed, reference.target)
    return [target for _, target in pairs]


def suspects(
    context: Context, reference: Reference[Any, Any], entities: Sequence[Any]
) -> Steps[list[RowKey]]:
    """Return the keys of the entities whose target does not exist."""
    targets = yield from load_targets(context, reference, entities)
    return [
        reference.owner.key({name: getattr(entity, name) for name in reference.owner.key_fields})
        for entity, target in zip(entities, targets, strict=True)
        if target is None and reference(entity) is not None
    ]


def still_named(
    context: Context, reference: Reference[Any, Any], keys: Sequence[RowKey]
) -> Steps[list[Any]]:
    """Read suspects again: one that was changed or deleted in between is not dangling."""
    found = yield from in_parallel(context, (find(context, reference.owner, key) for key in keys))
    return [entity for entity in found if entity is not None]


def drifts(reference: Reference[Any, Any], keys: Iterable[RowKey]) -> list[Drift]:
    table = reference.owner.table
    return [Drift("dangling", reference.name, table, key) for key in keys]


def _check(made: Reference[Any, Any]) -> None:
    owner, target = made.owner, made.target
    missing = [name for name in target.key_fields if name not in made.where]
    unknown = [name for name in made.where if name not in target.key_fields]
    if missing or unknown:
        raise _refused(
            made,
            f"The key field {missing[0]!r} of {target.name} is missing in where=."
            if missing
            else f"{unknown[0]!r} is not a key field of {target.name}.",
            f"Map each of {', '.join(target.key_fields) or '(no fields)'} to a field of "
            f"{owner.name} in where=.",
        )
    for theirs, ours in made.where.items():
        field = owner.fields.get(ours)
        if field is None or field.is_in_blob or field.series is not None:
            raise _refused(
                made,
                f"{owner.name} has no field {ours!r} that can hold a key.",
                f"Fields: {', '.join(owner.fields)}.",
            )
        if _core(field.annotation) != _core(target.fields[theirs].annotation):
            raise _refused(
                made,
                f"{target.name}.{theirs} and {owner.name}.{ours} differ in type.",
                "Use fields of the same type, apart from None.",
            )


def _core(annotation: Any) -> frozenset[Any]:
    return frozenset(plain(member) for member in union_members(plain(annotation)))


def _refused(made: Reference[Any, Any], reason: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "ReferenceRefused",
        f"Invalid reference from {made.owner.name} to {made.target.name}: {reason}",
        facts={"type": made.owner.name, "reference": made.name},
        hint=hint,
    )
