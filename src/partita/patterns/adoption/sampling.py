"""A bounded sample of the rows of a table.

Every request begins at a new partition, so that one large partition does not fill the sample.
"""

from collections.abc import Callable

from partita.patterns.planning.filter_text import quoted
from partita.patterns.protocol.calls import QueryRows, Steps, ask
from partita.patterns.protocol.values import Row
from partita.tables import limits

SAMPLE_ROWS = 10_000
"""The rows of a sample, unless another number is given."""


def sample_rows(
    table: str, rows_max: int, *, report: Callable[[int], object] = lambda _: None
) -> Steps[list[Row]]:
    """Return up to `rows_max` rows in key order; `report` is called with the number so far."""
    found: list[Row] = []
    condition, continuation = "", None
    while len(found) < rows_max:
        size = min(limits.PAGE_ENTITIES_MAX, rows_max - len(found))
        page = yield from ask(QueryRows(table, condition, size=size, continuation=continuation))
        found += page.rows
        report(len(found))
        if page.continuation is None:
            break
        # A page without rows still has a continuation; else go on after the last partition.
        continuation = page.continuation if not page.rows else None
        if page.rows:
            condition = f"PartitionKey gt {quoted(page.rows[-1].key.partition)}"
    return found
