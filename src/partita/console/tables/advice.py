"""What a filter costs before it runs, and how to make it cheaper. Pure.

The plan is that of `partita.tables.plan`: the range of keys that is read, and the residual that
is checked for each entity. Other table services read the same ranges.
"""

import base64
from typing import Any

import msgspec

from partita.console.tables.typed_rows import LETTERS, double_text
from partita.errors import FilterSyntaxError, NotSupportedError, UsageError
from partita.tables import edm
from partita.tables import plan as plans
from partita.tables.filters import (
    PARTITION_KEY,
    ROW_KEY,
    And,
    Comparison,
    Filter,
    Literal,
    Or,
    names_in,
    parse,
    to_text,
)
from partita.tables.plan import Plan, PlanKind, describe

_RANGE = frozenset({"lt", "le", "gt", "ge"})
_KEYS = "{PartitionKey}_{RowKey}"
_MAINTAINED = "partita.patterns maintains such copies: index(…)."


class Advice(msgspec.Struct, frozen=True):
    """One way to read less."""

    title: str
    text: str
    kind: str = ""
    """The kind of the plan with it; empty if that depends on the filter."""


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """One comparison of a filter, for the query builder."""

    name: str
    operator: str
    type: str
    """The letter of the type of the constant."""
    value: str


class Described(msgspec.Struct, frozen=True):
    """A filter as the pages show it while it is typed."""

    kind: str = ""
    """point, range, partition, multi-partition, table or nothing; empty for an error."""
    text: str = ""
    span: str = ""
    """The keys that are read, in words."""
    residual: str = ""
    """What is checked for each entity of the span."""
    is_scan: bool = False
    """Whether it may read every partition to find a few entities: the page asks first."""
    advice: list[Advice] = []
    conditions: list[Condition] | None = None
    """The filter as comparisons joined by `and`; None if it is not only that."""
    error: str = ""
    hint: str = ""


def describe_filter(text: str) -> Described:
    """Plan a filter without running it; a syntax error is part of the answer."""
    try:
        node = parse(text)
    except (FilterSyntaxError, NotSupportedError, UsageError) as error:
        return Described(error=error.message, hint=error.hint)
    chosen = plans.plan(node)
    conditions = conditions_of(node)
    if chosen.span.is_empty:
        span = "No key fulfils these conditions."
        return Described("nothing", "nothing", span, conditions=conditions)
    return Described(
        kind=chosen.kind.value,
        text=describe(chosen),
        span=_span_in_words(chosen),
        residual="" if chosen.residual is None else to_text(chosen.residual),
        is_scan=is_scan(chosen),
        advice=advise(node, chosen),
        conditions=conditions,
    )


def conditions_of(node: Filter | None) -> list[Condition] | None:
    """Return the comparisons of a filter; None if it has more than those joined by `and`."""
    found = [] if node is None else _conjuncts(node)
    if not all(isinstance(each, Comparison) for each in found):
        return None
    return [
        Condition(each.name, each.operator, LETTERS[each.literal.type], _value_text(each.literal))
        for each in found
        if isinstance(each, Comparison)
    ]


def _value_text(literal: Literal) -> str:
    """Return a constant as the pages show a value of its type."""
    value: Any = literal.value
    match literal.type:
        case edm.DATETIME:
            return edm.text_of(value)
        case edm.BINARY:
            return base64.b64encode(value).decode()
        case edm.BOOLEAN:
            return "true" if value else "false"
        case edm.DOUBLE:
            return double_text(value)
        case _:
            return str(value)


def is_scan(chosen: Plan) -> bool:
    """Return whether a query may read much more than it returns, over several partitions."""
    is_wide = chosen.kind in (PlanKind.TABLE, PlanKind.MULTI_PARTITION)
    return is_wide and chosen.residual is not None


def _span_in_words(chosen: Plan) -> str:
    match chosen.kind:
        case PlanKind.POINT:
            return "Reads one entity."
        case PlanKind.RANGE:
            return "Reads a range of row keys in one partition."
        case PlanKind.PARTITION:
            return "Reads one partition."
        case PlanKind.MULTI_PARTITION:
            return "Reads a range of partitions."
        case PlanKind.TABLE:
            return "Reads the whole table."


def advise(node: Filter | None, chosen: Plan) -> list[Advice]:
    """Return what would make a query cheaper, the best first."""
    if node is None or chosen.residual is None:
        return []
    found = []
    names = names_in(node)
    has_partition = chosen.span.single_partition() is not None
    if not has_partition and PARTITION_KEY not in names:
        found.append(
            Advice(
                "Name the partition",
                "With a condition PartitionKey eq '…' the query reads one partition instead of the"
                " whole table.",
                PlanKind.PARTITION.value,
            )
        )
    if not has_partition and ROW_KEY in names_in(chosen.residual):
        found.append(
            Advice(
                "RowKey alone does not narrow a query",
                "Entities are ordered by PartitionKey first: a condition on RowKey is a range only"
                " within one partition.",
            )
        )
    if isinstance(node, Or) and PARTITION_KEY in names:
        found.append(
            Advice(
                "Send one query for each partition",
                "A filter with `or` reads everything between the first and the last key.",
            )
        )
    return found + _indexes_for(_conjuncts(chosen.residual), has_partition=has_partition)


def _indexes_for(conditions: list[Filter], *, has_partition: bool) -> list[Advice]:
    """Propose index entities: equal properties first, then one that is compared by order."""
    compared = [
        each
        for each in conditions
        if isinstance(each, Comparison) and each.name not in (PARTITION_KEY, ROW_KEY)
    ]
    equal = list(dict.fromkeys(each.name for each in compared if each.operator == "eq"))
    ordered = [each.name for each in compared if each.operator in _RANGE and each.name not in equal]
    key = [*equal, *ordered[:1]]
    if not key:
        return []
    sorts = ""
    if ordered:
        sorts = (
            f" Write {ordered[0]} so that texts sort as its values do (numbers with leading zeros)."
        )
    by = ", ".join(key)
    here = (
        f"A copy with the same PartitionKey and RowKey '{_template(key)}_{{RowKey}}' answers this"
        f" filter as a range of one partition.{sorts}"
    )
    kind = PlanKind.RANGE.value
    if has_partition:
        return [Advice(f"Keep index entities by {by}", f"{here} {_MAINTAINED}", kind)]
    near = Advice(
        f"Keep index entities by {by} in each partition",
        f"{here} The filter must name the partition then.",
        kind,
    )
    if not equal:
        elsewhere = (
            f"Copies with PartitionKey '{key[0]}' and RowKey '{_template(key)}_{_KEYS}' answer this"
            " filter as a range of one partition, which then receives all writes of the table."
            f"{sorts}"
        )
    elif len(key) == 1:
        kind = PlanKind.PARTITION.value
        elsewhere = (
            f"A copy with PartitionKey '{{{key[0]}}}' and RowKey '{_KEYS}' answers this filter as"
            " one partition."
        )
    else:
        elsewhere = (
            f"A copy with PartitionKey '{{{key[0]}}}' and RowKey '{_template(key[1:])}_{_KEYS}'"
            f" answers this filter as a range of one partition.{sorts}"
        )
    far = Advice(f"Keep index entities by {by}", f"{elsewhere} {_MAINTAINED}", kind)
    return [far, near]


def _template(names: list[str]) -> str:
    return "_".join(f"{{{name}}}" for name in names)


def _conjuncts(node: Filter) -> list[Filter]:
    return list(node.children) if isinstance(node, And) else [node]
