"""Conditions as `$filter` text, and their evaluation in Python with the semantics of the service.

A comparison with an absent property is false, whatever its operator. A property is less than every
literal of a type that does not match its own. An Int32 literal matches Int64 and Double
properties, and an Int64 literal Double properties; nothing else is widened.

Numbers are compared by value, whichever number type a property has: another program may have
stored an Int32 where this one stores an Int64 or a Double.
"""

import math
import operator
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard
from uuid import UUID

from partita.errors import LimitExceededError
from partita.keys import prefix_range
from partita.patterns.fields.codecs import edm_of
from partita.patterns.fields.fields import Field
from partita.patterns.keys.intervals import comparable
from partita.patterns.planning.columns import (
    AllOf,
    AnyOf,
    Compare,
    Condition,
    IsIn,
    IsPresent,
    Negated,
    Operator,
    StartsWith,
)
from partita.patterns.protocol.values import Int32, Value
from partita.tables import edm, limits
from partita.ticks import TICKS_PER_MICROSECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# ---------------------------------------------------------------------------------------------
# Text


def to_text(condition: Condition) -> str:  # noqa: PLR0911 - one honest switch
    """Return a condition on properties as filter text (OData v3)."""
    match condition:
        case Compare():
            return _comparison(condition.field, condition.operator, condition.stored)
        case IsIn():
            return " or ".join(
                [_comparison(condition.field, "eq", stored) for stored in condition.stored]
            )
        case StartsWith():
            lower, upper = prefix_range(condition.text)
            first = _comparison(condition.field, "ge", lower)
            last = "" if upper is None else f" and {_comparison(condition.field, 'lt', upper)}"
            return first + last
        case IsPresent():
            # If the property is present, one of the two is true, whatever its type.
            constant = _CONSTANTS[condition.field.codec.edm]
            name = condition.field.property
            return f"{name} eq {constant} or {name} ne {constant}"
        case Negated():
            return f"not ({to_text(condition.condition)})"
        case AllOf():
            return " and ".join([grouped(each) for each in condition.conditions]) or "true"
        case AnyOf():
            return " or ".join([to_text(each) for each in condition.conditions]) or "false"
        case _:
            raise AssertionError(condition)


def grouped(condition: Condition) -> str:
    """Return a condition as filter text, in parentheses if `and` would bind tighter."""
    is_choice = isinstance(condition, AnyOf | IsPresent) or (
        isinstance(condition, IsIn) and len(condition.values) > 1
    )
    return f"({to_text(condition)})" if is_choice else to_text(condition)


def _comparison(field: Field, comparison: Operator, stored: Value) -> str:
    if _is_number(stored):
        return _number_text(field.property, comparison, stored)
    return f"{field.property} {comparison} {literal(stored)}"


def _is_number(stored: object) -> TypeGuard[int | float]:
    return isinstance(stored, int | float) and not isinstance(stored, bool)


def _number_text(name: str, comparison: Operator, value: float) -> str:
    """Return the comparison of a property of any number type with a value.

    The literal has the narrowest type for the value, because the service widens it to the type of
    the property. A property of a narrower type than the literal counts as less than the literal,
    so an order comparison needs a bound in each narrower type.
    """
    main = _narrowest(value)
    text = f"{name} {comparison} {literal(main)}"
    bounds = [] if comparison in ("eq", "ne") else _bounds_below(value, edm_of(main))
    if not bounds:
        return text
    is_upper = comparison in ("lt", "le")
    bounding, joining = ("lt", " and ") if is_upper else ("ge", " or ")
    texts = [text, *(f"{name} {bounding} {literal(bound)}" for bound in bounds)]
    return f"({joining.join(dict.fromkeys(texts))})"


def _narrowest(value: float) -> int | float:
    """Return a number in the narrowest type of the service that can represent it."""
    if isinstance(value, int) or value.is_integer():
        if edm.INT32_MIN <= value <= edm.INT32_MAX:
            return Int32(value)
        if edm.INT64_MIN <= value <= edm.INT64_MAX:
            return int(value)
    return float(value)


def _bounds_below(value: float, kind: str) -> list[int]:
    """Return the least number not below a value, in each type narrower than the literal's.

    A type whose numbers are all below the value needs none.
    """
    narrower = [] if kind == edm.INT32 else [(edm.INT32_MIN, edm.INT32_MAX)]
    if kind == edm.DOUBLE:
        narrower.append((edm.INT64_MIN, edm.INT64_MAX))
    found: list[int] = []
    for lowest, highest in narrower:
        if value <= highest:
            least = lowest if value < lowest else math.ceil(value)
            bound = _narrowest(least)
            assert isinstance(bound, int)
            found.append(bound)
    return found


def literal(stored: Value) -> str:
    """Return a stored value as a filter literal.

    >>> literal(40), literal("O'Brien"), literal(1.5e300), literal(b"hi")
    ('40L', "'O''Brien'", '1.5e300', "X'6869'")
    """
    return _WRITERS[edm_of(stored)](stored)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _double(value: float) -> str:
    # OData uses INF; the exponent has no +, which some clients would send as a blank.
    return repr(value).replace("inf", "INF").replace("e+", "e")


_WRITERS: dict[str, Callable[[Any], str]] = {
    edm.STRING: quoted,
    edm.INT32: str,
    edm.INT64: lambda value: f"{value}L",
    edm.DOUBLE: _double,
    edm.BOOLEAN: lambda value: "true" if value else "false",
    edm.DATETIME: lambda value: f"datetime'{edm.text_of(ticks(value))}'",
    edm.GUID: lambda value: f"guid'{value}'",
    edm.BINARY: lambda value: f"X'{value.hex()}'",
}

_CONSTANTS = {
    edm.STRING: "''",
    edm.INT32: "0",
    edm.INT64: "0L",
    edm.DOUBLE: "0.0",
    edm.BOOLEAN: "false",
    edm.DATETIME: "datetime'1601-01-01T00:00:00Z'",
    edm.GUID: f"guid'{UUID(int=0)}'",
    edm.BINARY: "X'00'",
}
"""An arbitrary literal of each type."""


def ticks(moment: datetime) -> int:
    """Return a time in ticks; an Instant by its text, which has one more digit."""
    text = getattr(moment, "text", None)
    exact = edm.ticks_of(text) if isinstance(text, str) else None
    if exact is not None:
        return exact
    return (moment - _EPOCH) // timedelta(microseconds=1) * TICKS_PER_MICROSECOND


def bounds_text(name: str, lower: str, upper: str | None) -> str:
    """Return the filter for keys from `lower` to `upper` (exclusive); empty for all keys."""
    parts = [f"{name} ge {quoted(lower)}"] if lower else []
    if upper is not None:
        parts.append(f"{name} lt {quoted(upper)}")
    return " and ".join(parts)


def check_length(text: str) -> str:
    """Return a filter; raise if it is too long for the service."""
    if len(text) > limits.FILTER_CHARACTERS_MAX:
        raise LimitExceededError(
            "FilterTooLong",
            f"The filter has {len(text)} characters; the limit is {limits.FILTER_CHARACTERS_MAX}.",
            facts={"characters": len(text)},
            hint="Give in_() fewer values, and query several times.",
        )
    return text


# ---------------------------------------------------------------------------------------------
# Evaluation

_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_TRUE_ON_MISMATCH = frozenset({"ne", "lt", "le"})
_Leaf = Callable[[Field, Operator, Any, Value], bool]
"""Evaluates one comparison, given the value and its stored form."""


def evaluate(
    condition: Condition,
    properties: Mapping[str, Value],
    fields: Mapping[str, Any] | None = None,
) -> bool:
    """Evaluate a condition on a stored entity as the service would.

    `fields` are known values, such as those read from the keys; they take precedence over
    properties.
    """
    known = {} if fields is None else fields

    def decide(field: Field, comparison: Operator, value: Any, stored: Value) -> bool:
        if field.name in known:
            return _compare_values(comparison, known[field.name], value)
        return _compare_stored(comparison, properties.get(field.property), stored)

    def is_present(field: Field) -> bool:
        if field.name in known:
            return known[field.name] is not None
        return field.property in properties

    return _holds(condition, decide, is_present)


def evaluate_values(condition: Condition, values: Mapping[str, Any]) -> bool:
    """Evaluate a condition on field values as the service would on their stored forms.

    A field that is None or missing is an absent property.
    """

    def decide(field: Field, comparison: Operator, value: Any, stored: Value) -> bool:
        held = values.get(field.name)
        if field.is_key:
            return _compare_values(comparison, held, value)
        found = None if held is None else field.codec.encode(held)
        return _compare_stored(comparison, found, stored)

    return _holds(condition, decide, lambda field: values.get(field.name) is not None)


def _holds(  # noqa: PLR0911 - the same switch
    condition: Condition, decide: _Leaf, is_present: Callable[[Field], bool]
) -> bool:
    match condition:
        case Compare(field, comparison, value, stored):
            return decide(field, comparison, value, stored)
        case IsIn():
            pairs = zip(condition.values, condition.stored, strict=True)
            return any(decide(condition.field, "eq", value, stored) for value, stored in pairs)
        case StartsWith(field, text):
            lower, upper = prefix_range(text)
            return decide(field, "ge", lower, lower) and (
                upper is None or decide(field, "lt", upper, upper)
            )
        case IsPresent(field):
            return is_present(field)
        case Negated():
            return not _holds(condition.condition, decide, is_present)
        case AllOf():
            return all(_holds(each, decide, is_present) for each in condition.conditions)
        case AnyOf():
            return any(_holds(each, decide, is_present) for each in condition.conditions)
        case _:
            raise AssertionError(condition)


def _compare_values(comparison: Operator, held: Any, given: Any) -> bool:
    if held is None:
        return False
    return bool(_TESTS[comparison](comparable(held), comparable(given)))


def _compare_stored(comparison: Operator, held: Value | None, given: Value) -> bool:
    if held is None:
        return False
    if _is_number(held) and _is_number(given):
        # The service widens a whole literal to a Double property, which may round it.
        return _TESTS[comparison](held, float(given) if isinstance(held, float) else given)
    if edm_of(held) != edm_of(given):
        return comparison in _TRUE_ON_MISMATCH
    if isinstance(held, datetime) and isinstance(given, datetime):
        return _TESTS[comparison](ticks(held), ticks(given))
    return _TESTS[comparison](held, given)
