"""The account, filter and plan that a bulk verb works with."""

from contextlib import AbstractAsyncContextManager

from partita.bulk.connecting import FORMS, connected, place_text
from partita.bulk.wire import TableClient
from partita.cli.kit.commands import Given
from partita.cli.kit.target import get_target
from partita.errors import PartitaError
from partita.tables import filters, plan
from partita.tables.advice import advise_on_types
from partita.tables.plan import Plan, PlanKind

MEANINGS = {
    PlanKind.POINT: "It reads one entity by its key: the cheapest query.",
    PlanKind.RANGE: "It reads a range of row keys in one partition.",
    PlanKind.PARTITION: "It reads all entities of one partition.",
    PlanKind.MULTI_PARTITION: "It reads all entities of several partitions.",
    PlanKind.TABLE: "It reads every entity of the table.",
}


def get_where(given: Given) -> str:
    """Return WHERE as the flag or the variable says."""
    return get_target(given.connect, subject="The account", forms=FORMS)


def open_client(
    where: str, *, is_new_allowed: bool = False
) -> AbstractAsyncContextManager[TableClient]:
    return connected(where, is_new_allowed=is_new_allowed)


def place_of(where: str) -> str:
    return place_text(where)


def plan_of(condition: str) -> Plan | None:
    """Return the plan of a filter; None if only the service understands it."""
    try:
        return plan.plan(filters.parse(condition))
    except PartitaError:
        return None


def plan_text(condition: str) -> str:
    found = plan_of(condition)
    return "unknown" if found is None else plan.describe(found)


def type_advice(condition: str) -> str:
    """Return how a text of a filter is written if another type is meant; empty if it is clear."""
    try:
        return advise_on_types(filters.parse(condition)) if condition else ""
    except PartitaError:
        return ""


def advice_on(found: Plan, condition: str) -> str:
    """Return what would make a query cheaper, or find more; empty if nothing would."""
    return " ".join(filter(None, (_cost_advice(found, condition), type_advice(condition))))


def _cost_advice(found: Plan, condition: str) -> str:
    if found.span.is_empty:
        return "The conditions on the keys exclude each other: nothing is read."
    residual = "" if found.residual is None else filters.to_text(found.residual)
    match found.kind:
        case PlanKind.TABLE if not condition:
            return "Add a filter on PartitionKey to read less."
        case PlanKind.TABLE:
            return (
                f"Every entity is compared with: {residual}. Add PartitionKey eq '...', or keep "
                "an index: entities with this property as their key."
            )
        case PlanKind.PARTITION | PlanKind.MULTI_PARTITION if residual:
            return f"Every entity of the range is compared with: {residual}. Put it into the keys."
        case _:
            return ""


def names_of(text: str | None) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
