"""Advice for queries that read more entities than they return. Pure.

It knows only the filter and its plan; `partita.patterns` also knows the types and their indexes.
"""

import re

from partita.tables import edm
from partita.tables.filters import (
    PARTITION_KEY,
    ROW_KEY,
    And,
    Comparison,
    Filter,
    Not,
    Or,
    names_in,
)
from partita.tables.plan import Plan, PlanKind

EXAMINED_FACTOR = 10
"""A query that reads more than this many entities for each one that it returns gets advice."""
NAMES_MAX = 3
"""How many properties of a filter are named."""


def advise(plan: Plan, examined: int, returned: int) -> str:
    """Return what would make a query cheaper, in one line; empty if nothing is wrong.

    >>> from partita.tables.filters import parse
    >>> from partita.tables.plan import plan
    >>> advise(plan(parse("Age gt 40")), 100_000, 3)
    'It reads the whole table: give PartitionKey, or keep a second entity with Age in its key.'
    """
    if plan.span.is_empty or examined <= EXAMINED_FACTOR * max(returned, 1):
        return ""
    second = _second_entity(plan.residual)
    match plan.kind:
        case PlanKind.TABLE:
            return f"It reads the whole table: give PartitionKey{second}."
        case PlanKind.MULTI_PARTITION:
            return f"It reads many partitions: give one PartitionKey{second}."
        case PlanKind.PARTITION:
            return f"It reads the whole partition: give a range of RowKey{second}."
        case PlanKind.RANGE:
            return f"It reads a long range: give a shorter range of RowKey{second}."
        case PlanKind.POINT:
            return ""


_KEYS = frozenset({PARTITION_KEY, ROW_KEY})
_OTHER_TYPES = (
    (re.compile(r"\d{4}-\d{2}-\d{2}"), "DateTime", "datetime'{}T00:00:00Z'"),
    (re.compile(r"\d{4}-\d{2}-\d{2}T[0-9:.]+Z"), "DateTime", "datetime'{}'"),
    (re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), "Guid", "guid'{}'"),
    (re.compile(r"-?\d{1,9}(?:\.\d+)?"), "number", "{}"),
    (re.compile("true|false"), "Boolean", "{}"),
)
"""Texts that are probably meant as a value of another type, and how this is written."""


def advise_on_types(node: Filter | None) -> str:
    """Return how a text that looks like another type is written; empty if there is none.

    >>> from partita.tables.filters import parse
    >>> advise_on_types(parse("Placed gt '2026-03-01'"))
    "If Placed is a DateTime, write datetime'2026-03-01T00:00:00Z': texts equal only texts."
    """
    match node:
        case Comparison() if node.literal.type == edm.STRING and node.name not in _KEYS:
            text = str(node.literal.value)
            for pattern, kind, written in _OTHER_TYPES:
                if pattern.fullmatch(text):
                    return (
                        f"If {node.name} is a {kind}, write {written.format(text)}: "
                        "texts equal only texts."
                    )
            return ""
        case Not():
            return advise_on_types(node.child)
        case And() | Or():
            return next(filter(None, map(advise_on_types, node.children)), "")
        case _:
            return ""


def _second_entity(residual: Filter | None) -> str:
    names = [] if residual is None else sorted(names_in(residual) - {PARTITION_KEY, ROW_KEY})
    if not names:
        return ""
    more = ", ..." if len(names) > NAMES_MAX else ""
    return f", or keep a second entity with {', '.join(names[:NAMES_MAX])}{more} in its key"
