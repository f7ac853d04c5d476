"""The key ranges that a condition implies.

A branch is one way to satisfy a condition: a value or an interval for each key field. The branches
of a condition together include every entity that satisfies it; unless `is_exact` is true, they
include others too, and the condition must be evaluated on the entities.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from partita.patterns.keys.intervals import Interval, comparable, starting_with
from partita.patterns.planning.columns import (
    AllOf,
    AnyOf,
    Compare,
    Condition,
    IsIn,
    Negated,
    StartsWith,
    fields_in,
)

BRANCHES_MAX = 10_000
"""Branches of one query; further conditions are evaluated on each entity instead."""

_OPPOSITES = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


class Branch(msgspec.Struct, frozen=True):
    """A value or an Interval for each key field that a condition limits."""

    limits: Mapping[str, Any]
    blurred: frozenset[str] = frozenset()
    """Fields whose limits are weaker than the conditions."""

    def values(self, names: Iterable[str]) -> dict[str, Any] | None:
        """Return the values of these fields; None unless each has exactly one value."""
        found = {name: self.limits.get(name) for name in names}
        if any(value is None or isinstance(value, Interval) for value in found.values()):
            return None
        return found


_ANYWHERE = Branch({})


class TooManyBranchesError(Exception):
    """Raised and caught in this module."""


def branches_of(
    conditions: Iterable[Condition], keys: frozenset[str]
) -> tuple[list[Branch], list[Condition]]:
    """Return the branches of conditions that must all hold, and the conditions not included."""
    found, left_out = [_ANYWHERE], list[Condition]()
    for condition in conditions:
        try:
            found = _product(found, _branches(condition, keys))
        except TooManyBranchesError:
            left_out.append(condition)
    return found, left_out


def is_exact(condition: Condition, keys: frozenset[str]) -> bool:
    """Return whether the branches of a condition express it completely."""
    match condition:
        case Compare():
            return condition.field.name in keys and condition.operator != "ne"
        case IsIn() | StartsWith():
            return condition.field.name in keys
        case Negated():
            turned = _negation(condition.condition, keys)
            return turned is not None and is_exact(turned, keys)
        case AllOf() | AnyOf():
            return all(is_exact(each, keys) for each in condition.conditions)
        case _:
            return False


def is_about(condition: Condition, keys: frozenset[str]) -> bool:
    """Return whether a condition is on key fields only."""
    return all(field.name in keys for field in fields_in(condition))


def _branches(  # noqa: PLR0911 - one honest switch
    condition: Condition, keys: frozenset[str]
) -> list[Branch]:
    match condition:
        case Compare(field) if field.name in keys:
            return [_branch_of(condition)]
        case IsIn(field, values) if field.name in keys:
            return [Branch({field.name: value}) for value in values]
        case StartsWith(field, text) if field.name in keys:
            return [Branch({field.name: starting_with(text)})]
        case Negated():
            turned = _negation(condition.condition, keys)
            return [_ANYWHERE] if turned is None else _branches(turned, keys)
        case AllOf():
            found = [_ANYWHERE]
            for each in condition.conditions:
                found = _product(found, _branches(each, keys))
            return found
        case AnyOf():
            found = []
            for each in condition.conditions:
                found += _branches(each, keys)
                _check_count(len(found))
            return found
        case _:
            return [_ANYWHERE]


def _branch_of(condition: Compare) -> Branch:
    name, value = condition.field.name, condition.value
    match condition.operator:
        case "eq":
            return Branch({name: value})
        case "ne":
            return _ANYWHERE
        case "gt" | "ge":
            interval = Interval(lower=value, has_lower_inside=condition.operator == "ge")
        case _:
            interval = Interval(upper=value, has_upper_inside=condition.operator == "le")
    return Branch({name: interval})


def _negation(condition: Condition, keys: frozenset[str]) -> Condition | None:
    """Return the opposite condition without a negation; None if there is none.

    Key fields are always present, so that exactly one of a comparison and its opposite is true.
    """
    match condition:
        case Compare(field) if field.name in keys:
            opposite: Any = _OPPOSITES[condition.operator]
            return msgspec.structs.replace(condition, operator=opposite)
        case AllOf():
            return AnyOf(tuple(~each for each in condition.conditions))
        case AnyOf():
            return AllOf(tuple(~each for each in condition.conditions))
        case _:
            return None


def _check_count(count: int) -> None:
    if count > BRANCHES_MAX:
        raise TooManyBranchesError


def _product(these: list[Branch], those: list[Branch]) -> list[Branch]:
    _check_count(len(these) * len(those))
    both = (_both(this, that) for this in these for that in those)
    return [branch for branch in both if branch is not None]


def _both(this: Branch, that: Branch) -> Branch | None:
    """Return the intersection of two branches; None if it is empty."""
    limits, blurred = dict(this.limits), set(this.blurred | that.blurred)
    for name, limit in that.limits.items():
        if name not in limits:
            limits[name] = limit
            continue
        joined, is_whole = _meet(limits[name], limit)
        if joined is None:
            return None
        limits[name] = joined
        if not is_whole:
            blurred.add(name)
    return Branch(limits, frozenset(blurred))


def _meet(this: Any, that: Any) -> tuple[Any, bool]:
    """Return the intersection of two limits (None if empty), and whether it is exact."""
    if isinstance(this, Interval) and isinstance(that, Interval):
        return _overlap(this, that)
    if isinstance(this, Interval):
        this, that = that, this
    if isinstance(that, Interval):
        return (this if that.holds(this) else None), True
    return (this if comparable(this) == comparable(that) else None), True


def _overlap(this: Interval, that: Interval) -> tuple[Interval | None, bool]:
    if this.prefix is not None and that.prefix is not None:
        longer, shorter = sorted((this.prefix, that.prefix), key=len, reverse=True)
        return (starting_with(longer) if longer.startswith(shorter) else None), True
    if this.prefix is not None or that.prefix is not None:
        # An interval has either a prefix or ends; the prefix is usually narrower.
        return (this if this.prefix is not None else that), False
    lower, has_lower = max(_lower(this), _lower(that), key=_as_lower)
    upper, has_upper = min(_upper(this), _upper(that), key=_as_upper)
    return Interval(lower, upper, has_lower, has_upper), True


_End = tuple[Any, bool]
"""A value, and whether it is inclusive."""


def _lower(interval: Interval) -> _End:
    return interval.lower, interval.has_lower_inside


def _upper(interval: Interval) -> _End:
    return interval.upper, interval.has_upper_inside


def _as_lower(end: _End) -> tuple[bool, Any, bool]:
    value, is_inside = end
    return (False, 0, False) if value is None else (True, comparable(value), not is_inside)


def _as_upper(end: _End) -> tuple[bool, Any, bool]:
    value, is_inside = end
    return (True, 0, False) if value is None else (False, comparable(value), is_inside)
