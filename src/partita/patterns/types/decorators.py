"""The public declarations of typed entities: `entity`, `evolve`, `upcast`.

>>> @entity(table="staff", partition="{dept}", row="emp_{id:06d}")
... class Clerk:
...     dept: str
...     id: int
...     age: int = 0
>>> entity_type(Clerk).key({"dept": "Sales", "id": 7})
RowKey(partition='Sales', row='emp_000007')
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, dataclass_transform

import msgspec

from partita.errors import DefinitionError, UsageError
from partita.patterns.fields.class_adapters import adopt
from partita.patterns.fields.fields import Field
from partita.patterns.fields.load_state import Origin
from partita.patterns.fields.naming import did_you_mean, pascal_case
from partita.patterns.types.derived_links import check_derived, register
from partita.patterns.types.entity_types import (
    PLACE,
    Declaration,
    Dependent,
    EntityType,
    Resolver,
    Upcaster,
    entity_type,
)
from partita.patterns.types.projections import refuse_partial

__all__ = [
    "Dependent",
    "EntityType",
    "Field",
    "Origin",
    "entity",
    "entity_type",
    "evolve",
    "upcast",
]

T = TypeVar("T")
U = TypeVar("U", bound=Upcaster)


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field, msgspec.field))
def entity(  # noqa: PLR0913 - a declaration: keyword-only, each with a plain default
    *,
    table: str | None = None,
    partition: str | None = None,
    row: str | None = None,
    version: int = 1,
    name: str | None = None,
    type_property: str | None = "EntityType",
    naming: Callable[[str], str] | None = None,
    encrypt: Resolver | None = None,
    access: Sequence[Any] | Mapping[str, Any] = (),
    allow_hot: bool = False,
    abstract: bool = False,
    frozen: bool = False,
    single_row: bool = False,
) -> Callable[[type[T]], type[T]]:
    """Make a class an entity of a table; `partition` and `row` are its key templates.

    A plain annotated class becomes a dataclass with keyword arguments, frozen with `frozen=True`.
    Dataclasses, msgspec Structs (with weakref=True), pydantic models and attrs classes are used
    unchanged. A class derived from an entity class inherits its table, templates, naming and type
    property unless it gives its own; reading the parent also returns the children. `abstract=True`
    is for a parent that is never stored. `single_row=True` keeps up to 252 properties in one row,
    as other programs store them; the library then has no room for properties of its own.

    An invalid declaration raises DefinitionError here, not when the first entity is saved.

    >>> @entity(table="expenses", partition="{employee:06d}", row="{number:04d}")
    ... class Claim:
    ...     employee: int
    ...     number: int
    ...     paid: bool = False
    >>> Claim(employee=123, number=1)
    Claim(employee=123, number=1, paid=False)
    """

    def declare(cls: type[T]) -> type[T]:
        frame = inspect.currentframe()
        scope = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}
        parent = _parent_of(cls)
        above = None if parent is None else parent.declaration
        shape = adopt(cls, scope, is_frozen=frozen)
        own_name = name or shape.cls.__name__
        if parent is not None:
            _check_family(parent, own_name, table, type_property)
        declaration = Declaration(
            table=_given("table", table, above, own_name),
            partition=_given("partition", partition, above, own_name),
            row=_given("row", row, above, own_name),
            name=own_name,
            version=version,
            type_property=type_property if above is None else above.type_property,
            naming=naming or (pascal_case if above is None else above.naming),
            encrypt=encrypt or (None if above is None else above.encrypt),
            access=access,
            allow_hot=allow_hot or (above is not None and above.allow_hot),
            is_abstract=abstract,
            is_single_row=single_row or (above is not None and above.is_single_row),
        )
        model = EntityType(shape, declaration, parent)
        check_derived(model)
        setattr(shape.cls, PLACE, model)
        if parent is not None:
            _adopt_child(parent, model)
        register(model)
        return shape.cls

    return declare


def _parent_of(cls: Any) -> EntityType[Any] | None:
    for above in getattr(cls, "__mro__", (cls,))[1:]:
        found = above.__dict__.get(PLACE)
        if isinstance(found, EntityType):
            return found
    return None


def _given(option: str, value: str | None, above: Declaration | None, name: str) -> str:
    if value is not None:
        return value
    if above is None:
        raise DefinitionError(
            "EntityRefused",
            f"{name}: {option}= is missing.",
            facts={"type": name},
            hint="Use @entity(table=..., partition=..., row=...).",
        )
    found: str = getattr(above, option)
    return found


def _check_family(
    parent: EntityType[Any], name: str, table: str | None, type_property: str | None
) -> None:
    reason = ""
    if table is not None and table != parent.table:
        reason = f"It is derived from {parent.name}, which is in the table {parent.table!r}."
    elif parent.type_property is None or type_property is None:
        reason = "Without a type property, the class of a stored entity is unknown."
    elif name in {each.name for each in parent.lineage()}:
        reason = f"It has the same name as {name}, from which it is derived."
    if reason:
        raise DefinitionError(
            "EntityRefused",
            f"{name}: {reason}",
            facts={"type": name},
            hint="Use the table, the type property and another name than the parent class.",
        )


def _adopt_child(parent: EntityType[Any], child: EntityType[Any]) -> None:
    # A class that is defined again, as in a notebook, replaces the earlier definition.
    parent.children[:] = [each for each in parent.children if each.name != child.name]
    parent.children.append(child)


def evolve(entity: T, /, **changes: Any) -> T:
    """Return a copy of an entity with changed values that is still the same stored entity.

    The class validates the copy. Copies made in any other way are new entities.

    >>> @entity(table="staff", partition="{dept}", row="{id:06d}")
    ... class Guard:
    ...     dept: str
    ...     id: int
    ...     age: int = 0
    >>> evolve(Guard(dept="Gate", id=1), age=47)
    Guard(dept='Gate', id=1, age=47)
    """
    refuse_partial(entity)
    model = entity_type(type(entity))
    unknown = [name for name in changes if name not in model.fields]
    if unknown:
        raise UsageError(
            "UnknownField",
            f"{model.name} has no field {unknown[0]!r}.",
            facts={"type": model.name, "field": unknown[0]},
            hint=f"It has {', '.join(model.fields)}.{did_you_mean(unknown[0], model.fields)}",
        )
    changed = model.rebuild(entity, changes)
    origin = model.origin(entity)
    if origin is not None:
        model.set_origin(changed, origin)
    return changed


def upcast(cls: type[Any], from_version: int) -> Callable[[U], U]:
    """Register a function that converts stored entities from one version to the next.

    It receives the stored properties by field name, including the key fields, and returns those
    of the next version. It must be pure, because reading does not write.

    >>> @entity(table="staff", partition="{dept}", row="{id:06d}", version=2)
    ... class Driver:
    ...     dept: str
    ...     id: int
    ...     first: str
    ...     last: str
    >>> @upcast(Driver, from_version=1)
    ... def split_name(old: dict[str, Any]) -> dict[str, Any]:
    ...     first, _, last = old.pop("name").partition(" ")
    ...     return old | {"first": first, "last": last}
    >>> entity_type(Driver).upcast({"Name": "Jun Cao"}, {"dept": "Sales", "id": 7}, 1)
    {'First': 'Jun', 'Last': 'Cao'}
    """
    model = entity_type(cls)

    def register_upcaster(function: U) -> U:
        reason = ""
        if not 1 <= from_version < model.version:
            reason = f"Upcasters to version {model.version} begin at 1 to {model.version - 1}."
        elif from_version in model.upcasters:
            reason = f"There is already an upcaster from version {from_version}."
        if reason:
            raise DefinitionError(
                "UpcasterRefused",
                f"{model.name}: {reason}",
                facts={"type": model.name, "version": from_version},
                hint="Raise version= of the entity, and declare one upcaster for each version.",
            )
        model.upcasters[from_version] = function
        return function

    return register_upcaster
