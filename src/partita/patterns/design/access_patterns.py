"""Access patterns: the queries that a type is designed for, declared with it and planned.

The guide's first rule is to design for queries before choosing keys. `check_access` returns the
plan of each declared query. A query that reads more than it returns must be declared with
`allow="scan"`.

    @entity(table="staff", partition="{dept}", row="emp_{id:06d}", access=[
        access("one employee", get=("dept", "id")),
        access("employees of a department", partition=("dept",)),
        access("by age, for the yearly report", where=("age",), allow="scan"),
    ])
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from partita.errors import DefinitionError, PartitaError
from partita.patterns.design.explain import explain
from partita.patterns.keys.intervals import at_least
from partita.patterns.planning.columns import Condition, all_of, compare, find_field, is_sortable
from partita.patterns.planning.plans import QueryPlan, plan_query
from partita.patterns.planning.requests import QueryKind
from partita.patterns.planning.sample_values import sample
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.entity_types import type_of_given
from partita.patterns.types.indexes import AnyIndex


class Access(msgspec.Struct, frozen=True):
    """One query, without its values. Made by `access`."""

    name: str
    given: tuple[str, ...] = ()
    """Key fields that are given as one value each."""
    ranges: tuple[str, ...] = ()
    """Key fields that are given as an interval."""
    where: tuple[str, ...] = ()
    via: str = ""
    allow: Literal["", "scan"] = ""
    is_single: bool = False
    """Whether it was declared with `get`: it returns one entity."""


class AccessPlan(msgspec.Struct, frozen=True):
    """An access pattern and its plan."""

    access: Access
    plan: QueryPlan

    @property
    def is_scan(self) -> bool:
        """Whether it reads entities that it does not return, without a limit by row key."""
        plan = self.plan
        if plan.is_refused:
            return True
        if plan.residual is None or plan.kind in (QueryKind.POINT, QueryKind.POINTS):
            return False
        return not {*plan.bound} & {*plan.asked.templates[0][1].fields}

    @property
    def is_refused(self) -> bool:
        return self.is_scan and self.access.allow != "scan"

    def __str__(self) -> str:
        mark = "REFUSED " if self.is_refused else ""
        return f"{mark}{self.access.name}: {self.plan.summary}"


def access(  # noqa: PLR0913 - keyword-only, each with a plain default
    name: str,
    *,
    get: Sequence[str] = (),
    partition: Sequence[str] = (),
    range: Sequence[str] = (),  # noqa: A002 - named like the query method
    where: Sequence[str] = (),
    via: str = "",
    allow: Literal["", "scan"] = "",
) -> Access:
    """Declare a query by the names of its fields.

    The fields of `get` and `partition` are given as one value each, those of `range` as an
    interval; `where` has conditions on any field. `via` is the name of an index.
    """
    given = (*_names(partition), *_names(get))
    return Access(name, given, _names(range), _names(where), via, allow, bool(get))


def _names(given: Sequence[str]) -> tuple[str, ...]:
    # A str is a Sequence[str] too: treat it as one name.
    return (given,) if isinstance(given, str) else tuple(given)


def check_access(given: type[Any] | EntityType[Any]) -> list[AccessPlan]:
    """Plan the access patterns of a type; unknown fields or indexes raise DefinitionError."""
    model = type_of_given(given)
    return [AccessPlan(each, _plan(model, each)) for each in declared_access(model)]


def require_access(*given: type[Any] | EntityType[Any]) -> None:
    """Raise if a declared access pattern is a scan without `allow="scan"`."""
    for model in map(type_of_given, given):
        for each in check_access(model):
            if each.is_refused:
                raise DefinitionError(
                    "AccessScans",
                    f"{model.name}: {each.access.name!r} reads more than it returns.",
                    facts={"type": model.name, "access": each.access.name},
                    hint=f'Change the keys, or set allow="scan".\n{explain(each.plan)}',
                )


def declared_access(model: EntityType[Any]) -> Iterable[Access]:
    """Return the access patterns of a type."""
    declared: Any = model.access
    if isinstance(declared, Mapping):
        return [_from_options(model, name, options) for name, options in declared.items()]
    found = list(declared)
    for each in found:
        if not isinstance(each, Access):
            raise _refused(model, each, "it is not an access pattern.", _HOW)
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _refused(model, twice, "the name is used twice.", "Use distinct names.")
    return found


_HOW = 'Use access("...", get=..., partition=..., range=..., where=..., via=...).'


def _from_options(model: EntityType[Any], name: str, options: Mapping[str, Any]) -> Access:
    try:
        return access(name, **options)
    except TypeError as error:
        raise _refused(model, name, "an option is not an argument of access().", _HOW) from error


def _plan(model: EntityType[Any], pattern: Access) -> QueryPlan:
    via = _index(model, pattern) if pattern.via else None
    try:
        given = {name: sample(find_field(model, name)) for name in pattern.given}
        given |= {name: at_least(sample(find_field(model, name))) for name in pattern.ranges}
        conditions = [_condition(model, name) for name in pattern.where]
        return plan_query(model, given, all_of(*conditions) if conditions else None, via=via)
    except DefinitionError:
        raise
    except PartitaError as error:
        raise _refused(model, pattern.name, error.message, error.hint) from error


def _condition(model: EntityType[Any], name: str) -> Condition:
    field = find_field(model, name)
    # Of both comparisons, an order costs more: an equality can be part of a key.
    return compare(field, "ge" if is_sortable(field) else "eq", sample(field))


def _index(model: EntityType[Any], pattern: Access) -> AnyIndex:
    known: dict[str | None, AnyIndex] = {each.name: each for each in model.followers.indexes}
    if pattern.via in known:
        return known[pattern.via]
    names = ", ".join(each.name for each in model.followers.indexes) or "none"
    hint = f"Set via= to one of its indexes: {names}."
    raise _refused(model, pattern.name, f"there is no index {pattern.via!r}.", hint)


def _refused(model: EntityType[Any], name: object, reason: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "AccessRefused",
        f"{model.name}: the access pattern {name!r} is invalid: {reason}",
        facts={"type": model.name, "access": name},
        hint=hint,
    )
