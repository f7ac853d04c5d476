"""`table.c`: conditions on the fields of an entity, written as Python comparisons.

A condition is a frozen value with the semantics of the service, which are two-valued logic: a
comparison with an absent property is false. Therefore `c.age != 40` excludes entities without an
age, and `~(c.age == 40)` includes them.

>>> from partita.patterns.types.decorators import entity, entity_type
>>> @entity(table="staff", partition="{dept}", row="{id:06d}")
... class Person:
...     dept: str
...     id: int
...     age: int
>>> c = Columns(entity_type(Person))
>>> isinstance((c.age > 40) & (c.dept == "Sales"), Condition)
True
"""

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, Literal, NoReturn, TypeVar, get_origin

import msgspec

from partita.errors import UnknownFieldError, UsageError
from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.fields.fields import Field
from partita.patterns.fields.naming import did_you_mean
from partita.patterns.protocol.values import Value
from partita.patterns.types.decorators import EntityType
from partita.tables import edm

T = TypeVar("T")

Operator = Literal["eq", "ne", "lt", "le", "gt", "ge"]
"""The comparison operators of the service."""


class Condition(msgspec.Struct, frozen=True):
    """A condition on entities. Combine with `&`, `|` and `~`, each side in parentheses."""

    def __and__(self, other: "Condition") -> "Condition":
        return all_of(self, _checked(other))

    def __or__(self, other: "Condition") -> "Condition":
        return any_of(self, _checked(other))

    def __invert__(self) -> "Condition":
        if self in (ALWAYS, NEVER):
            return NEVER if self == ALWAYS else ALWAYS
        return self.condition if isinstance(self, Negated) else Negated(self)

    def __bool__(self) -> NoReturn:
        message = (
            "a condition is neither true nor false: use & for and, | for or, ~ for not, each side "
            "in parentheses, between() instead of a < c.x < b, and is_in() instead of in"
        )
        raise TypeError(message)

    def __repr__(self) -> str:
        return f"<condition {_shown(self)}>"


class Compare(Condition, frozen=True):
    """A field on the left, a value on the right."""

    field: Field
    operator: Operator
    value: Any
    stored: Value
    """The value as the service stores it."""


class IsIn(Condition, frozen=True):
    """The field equals one of the values. `stored` has the same order."""

    field: Field
    values: tuple[Any, ...]
    stored: tuple[Value, ...]


class StartsWith(Condition, frozen=True):
    """The text in the field begins with this one."""

    field: Field
    text: str


class IsPresent(Condition, frozen=True):
    """The field has a value."""

    field: Field


class Negated(Condition, frozen=True):
    condition: Condition


class AllOf(Condition, frozen=True):
    """All conditions hold; always true if there are none. Made by `all_of`."""

    conditions: tuple[Condition, ...]


class AnyOf(Condition, frozen=True):
    """At least one condition holds; never true if there are none. Made by `any_of`."""

    conditions: tuple[Condition, ...]


ALWAYS = AllOf(())
NEVER = AnyOf(())


def all_of(*conditions: Condition) -> Condition:
    """Join conditions with `and`, without nesting."""
    flat: list[Condition] = []
    for each in conditions:
        flat.extend(each.conditions if isinstance(each, AllOf) else (each,))
    if NEVER in flat:
        return NEVER
    return flat[0] if len(flat) == 1 else AllOf(tuple(flat))


def any_of(*conditions: Condition) -> Condition:
    """Join conditions with `or`, without nesting."""
    flat: list[Condition] = []
    for each in conditions:
        flat.extend(each.conditions if isinstance(each, AnyOf) else (each,))
    if ALWAYS in flat:
        return ALWAYS
    return flat[0] if len(flat) == 1 else AnyOf(tuple(flat))


def conjuncts(condition: Condition | None) -> tuple[Condition, ...]:
    """Return the conditions that must all hold."""
    if condition is None:
        return ()
    return condition.conditions if isinstance(condition, AllOf) else (condition,)


def fields_in(condition: Condition) -> Iterator[Field]:
    """Yield the fields of a condition; a field can occur several times."""
    match condition:
        case Compare() | IsIn() | StartsWith() | IsPresent():
            yield condition.field
        case Negated():
            yield from fields_in(condition.condition)
        case AllOf() | AnyOf():
            for each in condition.conditions:
                yield from fields_in(each)
        case _:
            raise AssertionError(condition)


def _shown(condition: Condition) -> str:  # noqa: PLR0911 - one honest switch
    """Return a condition as text that is the same in every process."""
    match condition:
        case Compare(field, operator, _, stored):
            return f"{field.name} {operator} {stored!r}"
        case IsIn(field, _, stored_values):
            return f"{field.name} in {stored_values!r}"
        case StartsWith(field, text):
            return f"{field.name} starts with {text!r}"
        case IsPresent(field):
            return f"{field.name} is present"
        case Negated():
            return f"not ({_shown(condition.condition)})"
        case AllOf():
            return f"({' and '.join(map(_shown, condition.conditions))})"
        case AnyOf():
            return f"({' or '.join(map(_shown, condition.conditions))})"
        case _:
            raise AssertionError(condition)


def _checked(other: object) -> Condition:
    if isinstance(other, Column) and other.is_bool:
        return other.as_condition()
    if not isinstance(other, Condition):
        message = (
            f"a condition cannot be joined with a value of type {type(other).__name__}: put each "
            "comparison in parentheses, as in (c.age > 40) & (c.grade == Grade.SENIOR)"
        )
        raise TypeError(message)
    return other


# ---------------------------------------------------------------------------------------------
# Columns


class Columns(Generic[T]):
    """The fields of an entity type, each as an attribute."""

    __slots__ = ("_model",)

    def __init__(self, model: EntityType[T]) -> None:
        self._model = model

    def __getattr__(self, name: str) -> "Column":
        if name.startswith("__"):  # copy and inspect look these up; never a field
            raise AttributeError(name)
        return Column(find_field(self._model, name))

    def __dir__(self) -> list[str]:
        return sorted(self._model.fields)

    def __repr__(self) -> str:
        return f"<fields of {self._model.name}: {', '.join(self._model.fields)}>"


def find_field(model: EntityType[Any], name: str) -> Field:
    """Return a field of a type, or raise UnknownFieldError."""
    field = model.fields.get(name)
    if field is None:
        raise UnknownFieldError(
            "UnknownField",
            f"{model.name} has no field {name!r}.",
            facts={"type": model.name, "field": name},
            hint=f"Use one of {', '.join(model.fields)}.{did_you_mean(name, model.fields)}",
        )
    return field


class Column:
    """One field on the left side of a comparison."""

    __slots__ = ("_field",)

    __hash__ = None  # type: ignore[assignment]  # == returns a condition, so sets cannot work

    def __init__(self, field: Field) -> None:
        self._field = field

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # copy and inspect look these up
            raise AttributeError(name)
        raise UnknownFieldError(
            "NotFilterable",
            f"{self._field.name!r} has no {name!r} that the service can compare.",
            facts={"field": self._field.name},
            hint="Compare the field itself, or filter the entities in Python.",
        )

    @property
    def field(self) -> Field:
        return self._field

    @property
    def is_bool(self) -> bool:
        """Whether the field alone is a condition in a function that is passed to where()."""
        return plain_type(self._field) is bool

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compare("eq", value)

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compare("ne", value)

    def __lt__(self, value: Any) -> Condition:
        return self._order("lt", value)

    def __le__(self, value: Any) -> Condition:
        return self._order("le", value)

    def __gt__(self, value: Any) -> Condition:
        return self._order("gt", value)

    def __ge__(self, value: Any) -> Condition:
        return self._order("ge", value)

    def in_(self, values: Iterable[Any]) -> Condition:
        """The field equals one of the values; never true for no values."""
        _check_filterable(self._field)
        values = tuple(values)
        if not values:
            return NEVER
        return IsIn(self._field, values, tuple(stored_form(self._field, each) for each in values))

    def between(self, lower: Any, upper: Any) -> Condition:
        """The field is between `lower` and `upper`, both inclusive."""
        return all_of(self._order("ge", lower), self._order("le", upper))

    def startswith(self, text: str) -> Condition:
        """The text in the field begins with `text`."""
        _check_filterable(self._field)
        if plain_type(self._field) is not str:
            raise _not_filterable(
                self._field, "startswith() requires a text field.", "Use between()."
            )
        stored_form(self._field, text)
        return StartsWith(self._field, text)

    def is_present(self) -> Condition:
        """The field has a value; None is not stored."""
        _check_filterable(self._field)
        return ALWAYS if self._field.is_key else IsPresent(self._field)

    def is_absent(self) -> Condition:
        """The field is None: the entity does not have the property."""
        _check_filterable(self._field)
        return NEVER if self._field.is_key else Negated(IsPresent(self._field))

    def _order(self, operator: Operator, value: object) -> Condition:
        if not is_sortable(self._field):
            raise _not_filterable(
                self._field,
                "its stored form does not sort as its values do.",
                "Compare with ==, != or in_(), or store a number or a text that sorts.",
            )
        return self._compare(operator, value)

    def _compare(self, operator: Operator, value: object) -> Condition:
        return compare(self._field, operator, value)

    def __and__(self, other: object) -> Condition:
        return self.as_condition() & _checked(other)

    def __or__(self, other: object) -> Condition:
        return self.as_condition() | _checked(other)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Condition:
        return ~self.as_condition()

    def as_condition(self) -> Condition:
        """Return the condition that a field is true."""
        if not self.is_bool:
            message = (
                f"& and | bind tighter than comparisons: put each one in parentheses, as in "
                f"(c.{self._field.name} == ...) & (...)"
            )
            raise TypeError(message)
        return self._compare("eq", value=True)

    def __bool__(self) -> NoReturn:
        message = (
            f"c.{self._field.name} is not a condition: compare it with a value, and use & for and, "
            "| for or, ~ for not"
        )
        raise TypeError(message)

    def __repr__(self) -> str:
        return f"<field {self._field.name}>"


def compare(field: Field, operator: Operator, value: object) -> Condition:
    """Return a comparison, or raise if the field cannot be compared with the value."""
    _check_filterable(field)
    return Compare(field, operator, value, stored_form(field, value))


def stored_form(field: Field, value: object) -> Value:
    """Return the stored form of a value; raise if no comparison with it can be true."""
    if isinstance(value, Column):
        raise _not_filterable(
            field, "the service does not compare two fields.", "Compare it with a value."
        )
    stored = None if value is None else field.codec.encode(value)
    if stored is None:
        raise UsageError(
            "NeverMatches",
            f"{field.name!r} is compared with None, which is never true: None is not stored.",
            facts={"field": field.name},
            hint=f"Use c.{field.name}.is_absent() or c.{field.name}.is_present().",
        )
    if isinstance(stored, float) and math.isnan(stored):
        raise UsageError(
            "NeverMatches",
            f"{field.name!r} is compared with NaN, which equals nothing.",
            facts={"field": field.name},
            hint="Compare with a number.",
        )
    return stored


# ---------------------------------------------------------------------------------------------
# What can be compared


def plain_type(field: Field) -> Any:
    """Return the annotated type of a field, without `| None`."""
    members = union_members(plain(field.annotation))
    return plain(members[0]) if len(members) == 1 else field.annotation


def is_sortable(field: Field) -> bool:
    """Return whether `<` has the same meaning in Python and on the service."""
    # Key fields that do not sort in the key are compared here, as values.
    return field.codec.is_ordered or (field.is_key and plain_type(field) is Decimal)


def refusal(field: Field) -> str:
    """Return why a field cannot be compared at all; empty if it can be."""
    reasons: tuple[tuple[bool, str], ...] = (
        (field.is_encrypted, "it is encrypted."),
        (field.is_in_blob, "its value is in a blob."),
        (field.series is not None, "it is a series of many properties."),
        (_is_nested(field), "it is stored as JSON, which the service cannot filter."),
    )
    return next((reason for holds, reason in reasons if holds), "")


def _is_nested(field: Field) -> bool:
    kind = plain_type(field)
    is_choice = get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))
    return (
        field.codec.edm == edm.STRING
        and not field.codec.is_ordered
        and not is_choice
        and kind is not Decimal
    )


def _check_filterable(field: Field) -> None:
    reason = refusal(field)
    if reason:
        raise _not_filterable(
            field, reason, "Filter by another field, or filter the entities in Python."
        )


def _not_filterable(field: Field, reason: str, hint: str) -> UsageError:
    return UsageError(
        "NotFilterable",
        f"{field.name!r} cannot be compared like this: {reason}",
        facts={"field": field.name},
        hint=hint,
    )
