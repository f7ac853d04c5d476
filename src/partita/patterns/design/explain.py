"""Explanations of query plans, with advice to make them cheaper.

    TABLE SCAN   staff   residual EntityType eq 'Employee' and Age gt 40   REFUSED
    help: give dept=... (range over 'emp_'), or give dept=... and add
          index(Employee, row="age_{age:08d}_{id:06d}") (range)

Every piece of advice was planned as a query; the words in parentheses are the kind of that plan.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence

import msgspec

from partita.errors import UsageError
from partita.patterns.design.index_advice import compared_in, propose_elsewhere, propose_near
from partita.patterns.planning.columns import (
    Compare,
    Condition,
    StartsWith,
    all_of,
    compare,
    conjuncts,
    fields_in,
)
from partita.patterns.planning.filter_text import bounds_text, to_text
from partita.patterns.planning.plans import QueryPlan, conditions_of, plan_query, worse
from partita.patterns.planning.requests import QueryKind, RangeRead, ScanRead
from partita.patterns.planning.sample_values import sample
from partita.patterns.types.indexes import AnyIndex, Index

SHOWN_CHARACTERS_MAX = 200
"""The maximum length of a condition or a range in an explanation."""
ADVICE_MAX = 3

_TITLES = {
    QueryKind.POINT: "POINT",
    QueryKind.POINTS: "POINTS",
    QueryKind.RANGE: "RANGE",
    QueryKind.PARTITION: "PARTITION SCAN",
    QueryKind.SPREAD: "FAN-IN",
    QueryKind.MULTI_PARTITION: "MULTI-PARTITION SCAN",
    QueryKind.TABLE: "TABLE SCAN",
}


class Advice(msgspec.Struct, frozen=True):
    """A change, and the plan that the query would have with it."""

    text: str
    plan: QueryPlan

    def __str__(self) -> str:
        return f"{self.text} ({describe_kind(self.plan)})"


def explain(
    plan: QueryPlan, *, is_allowed: bool = False, limit: int | None = None, is_latest: bool = False
) -> str:
    """Return how a query is read, whether it is refused, and what would make it cheaper.

    `limit` is the number of entities to read; `is_latest` means that they are the newest ones.
    """
    lines = [headline(plan, is_allowed=is_allowed, limit=limit, is_latest=is_latest)]
    lines += [f"help: {', or '.join(map(str, advice))}"] if (advice := advise(plan)) else []
    return "\n".join(lines)


def headline(
    plan: QueryPlan, *, is_allowed: bool = False, limit: int | None = None, is_latest: bool = False
) -> str:
    """Return in one line how a query is read."""
    via = plan.asked.via
    parts = [_TITLES[plan.kind], plan.table, "" if via is None else f"via {via.name}"]
    parts.append(_place(plan))
    if plan.filter:
        parts.append(f"residual {_cut(plan.filter)}")
    if plan.client is not None and plan.client != plan.served:
        parts.append(f"then {_cut(to_text(plan.client))}")
    if limit is not None:
        parts.append(f"{'latest' if is_latest else 'limit'} {limit}")
    if plan.is_refused:
        parts.append("ALLOWED" if is_allowed else "REFUSED")
    return "   ".join(filter(None, parts))


def describe_kind(plan: QueryPlan) -> str:
    """Return the kind of a plan, with the prefix if it only limits the range by a prefix."""
    words = _TITLES[plan.kind].lower()
    row = plan.asked.templates[0][1]
    is_prefix = row.literal_prefix and not set(plan.bound) & set(row.fields)
    if plan.kind is QueryKind.RANGE and is_prefix:
        return f"{words} over {row.literal_prefix!r}"
    return words


def _place(plan: QueryPlan) -> str:
    if not plan.requests:
        return "nothing can match"
    first, more = plan.requests[0], len(plan.requests) - 1
    if plan.kind is QueryKind.SPREAD:
        partitions = {each.partition for each in plan.requests if isinstance(each, RangeRead)}
        return f"{len(partitions)} partitions"
    if plan.kind is QueryKind.POINTS:
        return f"{len(plan.requests)} keys"
    if isinstance(first, ScanRead):
        return _cut(bounds_text("PartitionKey", first.lower, first.upper))
    return _cut(first.bounds_text()) + (f" and {more} more" if more else "")


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS_MAX:
        return text
    return text[: SHOWN_CHARACTERS_MAX - 3] + "..."


# ---------------------------------------------------------------------------------------------
# Advice


def advise(plan: QueryPlan) -> list[Advice]:
    """Return the changes that would make a query cheaper, the simplest first."""
    if not plan.requests or (not plan.is_refused and plan.residual is None):
        return []
    wanted = (*conditions_of(plan.asked), *conjuncts(plan.asked.condition))
    whole = all_of(*wanted)
    missing = _missing(plan, wanted)
    declared = _better(plan, _declared(plan, whole))
    ideas = [*declared, *_better(plan, _given(plan, wanted, missing))]
    if not declared:
        ideas += _better(plan, _proposed(plan, wanted, missing))
    return ideas[:ADVICE_MAX]


def _better(plan: QueryPlan, ideas: Iterator[Advice]) -> list[Advice]:
    # A sample value may contradict a condition; a plan without requests proves nothing.
    return [
        each
        for each in ideas
        if each.plan.requests and not each.plan.is_refused and worse(plan, each.plan)
    ]


def _given(
    plan: QueryPlan, wanted: Sequence[Condition], missing: Sequence[str]
) -> Iterator[Advice]:
    if missing:
        narrowed = all_of(*wanted, *(_sampled(plan, wanted, name) for name in missing))
        made = plan_query(plan.asked.model, {}, narrowed, via=plan.asked.via)
        yield Advice(_give(missing), made)


def _give(missing: Sequence[str]) -> str:
    return f"give {', '.join(f'{name}=...' for name in missing)}"


def _proposed(
    plan: QueryPlan, wanted: Sequence[Condition], missing: Sequence[str]
) -> Iterator[Advice]:
    model = plan.asked.model
    compared = compared_in(plan.residual, frozenset(model.key_fields))
    if missing:
        for proposal in propose_elsewhere(model, compared):
            yield Advice(f"add {proposal.text}", _via(plan, all_of(*wanted), proposal.index))
    narrowed = all_of(*wanted, *(_sampled(plan, wanted, name) for name in missing))
    for proposal in propose_near(model, compared):
        text = f"{_give(missing)} and add {proposal.text}" if missing else f"add {proposal.text}"
        yield Advice(text, _via(plan, narrowed, proposal.index))


def _declared(plan: QueryPlan, whole: Condition) -> Iterator[Advice]:
    for index in plan.asked.model.followers.indexes:
        if index is plan.asked.via or not _holds_all(index, whole):
            continue
        with contextlib.suppress(UsageError):  # lists in blobs have no ranges
            yield Advice(f"read .via({_variable(index)})", _via(plan, whole, index))


def _holds_all(index: AnyIndex, whole: Condition) -> bool:
    """Return whether an index has a row for every entity that the query can return."""
    if isinstance(index, Index) and index.condition is not None:
        return False
    asked = {field.name for each in conjuncts(whole) for field in fields_in(each)}
    fields = index.owner.fields
    return all(name in asked or not fields[name].codec.is_optional for name in index.key_fields)


def _via(plan: QueryPlan, condition: Condition, index: AnyIndex) -> QueryPlan:
    return plan_query(plan.asked.model, {}, condition, via=index)


def _variable(index: AnyIndex) -> str:
    """Return the variable of an index in the module of its entity, or its name."""
    module = sys.modules.get(index.owner.cls.__module__)
    names = [name for name, value in vars(module).items() if value is index] if module else []
    return names[0] if names else index.name


def _missing(plan: QueryPlan, wanted: Sequence[Condition]) -> list[str]:
    """Return the fields of the partition key that a refused query does not give."""
    if not plan.is_refused:
        return []
    known = {
        each.field.name for each in wanted if isinstance(each, Compare) and each.operator == "eq"
    }
    return [name for name in plan.asked.templates[0][0].fields if name not in known]


def _sampled(plan: QueryPlan, wanted: Sequence[Condition], name: str) -> Condition:
    """Return an equality with a value that the query allows, as far as possible."""
    field = plan.asked.model.fields[name]
    value = sample(field)
    for each in wanted:
        match each:
            case StartsWith(limited, text) if limited.name == name:
                value = text
            case Compare(limited, "ge" | "le", limit) if limited.name == name:
                value = limit
            case _:
                pass
    return compare(field, "eq", value)
