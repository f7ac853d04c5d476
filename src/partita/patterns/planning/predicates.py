"""Functions of an entity that are called with its columns: `where(lambda e: e.age > 40)`.

For a type checker the argument is an entity and the result a bool, so that a misspelled field or a
wrong operand is an error in the editor. At run time the argument is `table.c`.

>>> from partita.patterns.types.decorators import entity, entity_type
>>> @entity(table="staff", partition="{dept}", row="{id:06d}")
... class Person:
...     dept: str
...     id: int
...     age: int | None = None
>>> condition_of(entity_type(Person), lambda e: (present(e.age) > 40) & (e.dept == "Sales"))
<condition (age gt 40 and dept eq 'Sales')>
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any, TypeVar, cast

from partita.errors import UsageError
from partita.patterns.fields.fields import Field
from partita.patterns.planning.columns import (
    Column,
    Columns,
    Compare,
    Condition,
    conjuncts,
    fields_in,
)
from partita.patterns.types.decorators import EntityType

T = TypeVar("T")
V = TypeVar("V")

Predicate = Callable[[T], int]
"""A function that compares fields of an entity. `~` of a bool is an int for type checkers."""


def condition_of(
    model: EntityType[Any], given: Condition | Predicate[Any], method: str = "where"
) -> Condition:
    """Return the condition that was passed to where(), or that the passed function returns."""
    found: object = given
    what = ""
    if callable(given) and not isinstance(given, Column):
        found = given(Columns(model))
        what = "a function that returns "
    if isinstance(found, Condition):
        return found
    if isinstance(found, Column):
        if what and found.is_bool:
            return found.as_condition()
        what, hint = f"{what}the field {found!r}", "Compare the field with a value."
    else:
        what, hint = (
            f"{what}a value of type {type(found).__name__}",
            f"Omit {method}() to read all.",
        )
    raise UsageError(
        "NotACondition",
        f"{method}() takes a condition on the columns of a table, not {what}.",
        hint=f"Write {method}(table.c.age > 40) or {method}(lambda e: e.age > 40). {hint}",
    )


def key_condition(
    model: EntityType[Any], keys: Collection[str], given: Predicate[Any], method: str
) -> Condition:
    """Return the condition of a function that may use only these key fields."""
    condition = condition_of(model, given, method)
    for field in fields_in(condition):
        if field.name not in keys:
            raise UsageError(
                "NotAKeyField",
                f"{field.name!r} is not a key field that {method}() can use.",
                facts={"type": model.name, "field": field.name},
                hint=f"Use {', '.join(keys) or 'none'} in {method}(), and where() for conditions "
                "on other fields.",
            )
    return condition


def key_values(
    model: EntityType[Any], keys: Collection[str], given: Predicate[Any], method: str
) -> dict[str, Any]:
    """Return the values of key fields that a function compares with `==`."""
    found: dict[str, Any] = {}
    for each in conjuncts(key_condition(model, keys, given, method)):
        if not isinstance(each, Compare) or each.operator != "eq" or each.field.name in found:
            raise UsageError(
                "KeyFields",
                f"{method}() takes one value for each key field, not {each!r}.",
                facts={"type": model.name},
                hint=f"Compare each of {', '.join(keys)} once, with ==, and join with &. Use "
                "where() for other conditions.",
            )
        found[each.field.name] = each.value
    return found


def projection_of(
    model: EntityType[Any], choose: Callable[[Any], Any]
) -> tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Any]]:
    """Return the fields that a function chooses, and how to make its result of their values."""
    chosen = choose(Columns(model))
    if not isinstance(chosen, tuple):
        name = _chosen(model, chosen).name
        return (name,), itemgetter(name)
    names = tuple(_chosen(model, each).name for each in chosen)
    return names, lambda values: tuple(values[name] for name in names)


def chosen_field(model: EntityType[Any], choose: Callable[[Any], Any]) -> Field:
    """Return the field that a function such as `lambda e: e.age` chooses."""
    return _chosen(model, choose(Columns(model)))


def _chosen(model: EntityType[Any], chosen: object) -> Field:
    if isinstance(chosen, Column):
        return chosen.field
    raise UsageError(
        "NotAField",
        f"The function returned a value of type {type(chosen).__name__}, not a field.",
        facts={"type": model.name},
        hint="Return a field: lambda e: e.email. For select() also a tuple of fields.",
    )


# What a function that is passed to where() uses where Python has no operator for it. For a type
# checker the fields are values of the entity, and conditions are bools.


def is_in(field: V, values: Iterable[V]) -> bool:
    """Return the condition that a field equals one of the values.

    `where(lambda e: is_in(e.dept, ["Sales", "Support"]))`.
    """
    return cast("bool", _column(field).in_(values))


def is_present(field: object) -> bool:
    """Return the condition that a field is not None."""
    return cast("bool", _column(field).is_present())


def is_absent(field: object) -> bool:
    """Return the condition that a field is None."""
    return cast("bool", _column(field).is_absent())


def present(field: V | None) -> V:
    """Return an optional field for a comparison, which is false for entities without a value.

    `where(lambda e: present(e.age) > 40)`: `e.age > 40` is an error for a type checker if the age
    may be None.
    """
    return cast("V", _column(field))


def _column(field: object) -> Column:
    if isinstance(field, Column):
        return field
    raise UsageError(
        "NotAField",
        f"A value of type {type(field).__name__} was passed, not a field.",
        hint="Pass a field of the argument: where(lambda e: is_in(e.dept, values)).",
    )
