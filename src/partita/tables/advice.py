"""Advice for queries that read more entities than they return. Pure.

It knows only the filter and its plan; `partita.patterns` also knows the types and their indexes.
"""

from partita.tables.filters import PARTITION_KEY, ROW_KEY, Filter, names_in
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


def _second_entity(residual: Filter | None) -> str:
    names = [] if residual is None else sorted(names_in(residual) - {PARTITION_KEY, ROW_KEY})
    if not names:
        return ""
    more = ", ..." if len(names) > NAMES_MAX else ""
    return f", or keep a second entity with {', '.join(names[:NAMES_MAX])}{more} in its key"
