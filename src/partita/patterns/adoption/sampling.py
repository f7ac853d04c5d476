"""A bounded sample of the rows of a table, which shows as many kinds of rows as possible.

A request begins where other rows are to be expected: at row keys of another form in the same
partition, then at the next partition. Ranges that were skipped in this way are read last.
"""

import re
from collections.abc import Callable

import msgspec

from partita.patterns.planning.filter_text import quoted
from partita.patterns.protocol.calls import QueryRows, Steps, ask
from partita.patterns.protocol.values import Row, RowKey
from partita.tables import limits

SAMPLE_ROWS = 10_000
"""The rows of a sample, unless another number is given."""
PLACES = 40
"""The ranges that a sample reads at least, if the table has so many."""
PAGE_ROWS_MIN = 50

_TOKEN = re.compile("[A-Za-z]+[_|:;-]")


class _Sample(msgspec.Struct):
    """The rows so far, and the filters of ranges that were skipped."""

    table: str
    rows_max: int
    report: Callable[[int], object]
    rows: dict[RowKey, Row] = {}
    skipped: list[str] = []

    @property
    def room(self) -> int:
        return self.rows_max - len(self.rows)

    def read(self, condition: str, size: int) -> Steps[RowKey | None]:
        """Read the first rows of a range; return the key of the last one if more may follow."""
        continuation = None
        while True:
            size = min(size, self.room, limits.PAGE_ENTITIES_MAX)
            query = QueryRows(self.table, condition, size=size, continuation=continuation)
            page = yield from ask(query)
            self.rows.update((row.key, row) for row in page.rows)
            self.report(len(self.rows))
            continuation = page.continuation
            if continuation is None or page.rows:  # a page without rows may have a continuation
                return page.rows[-1].key if page.rows and continuation is not None else None


def sample_rows(
    table: str, rows_max: int, *, report: Callable[[int], object] = lambda _: None
) -> Steps[list[Row]]:
    """Return up to `rows_max` rows in key order; `report` is called with the number so far."""
    sample = _Sample(table, rows_max, report)
    size = max(rows_max // PLACES, PAGE_ROWS_MIN)
    last = yield from sample.read("", size)
    while last is not None and sample.room > 0:
        yield from _read_other_forms(sample, last, size)
        if sample.room > 0:
            last = yield from sample.read(f"PartitionKey gt {quoted(last.partition)}", size)
    for condition in sample.skipped:
        rest: str | None = condition
        while rest is not None and sample.room > 0:
            last = yield from sample.read(rest, limits.PAGE_ENTITIES_MAX)
            rest = None if last is None else f"{condition} and RowKey gt {quoted(last.row)}"
    return sorted(sample.rows.values(), key=lambda row: row.key)


def _read_other_forms(sample: _Sample, last: RowKey, size: int) -> Steps[None]:
    """Read rows of the same partition whose keys begin in another way."""
    partition = f"PartitionKey eq {quoted(last.partition)}"
    while sample.room > 0:
        rest = f"{partition} and RowKey gt {quoted(last.row)}"
        bound = _after_form(last.row)
        if bound is None:
            sample.skipped.append(rest)
            return
        sample.skipped.append(f"{rest} and RowKey lt {quoted(bound)}")
        found = yield from sample.read(f"{partition} and RowKey ge {quoted(bound)}", size)
        if found is None:
            return
        last = found


def _after_form(row_key: str) -> str | None:
    """Return the first row key after those that begin with digits, or with the same word.

    >>> _after_form("000123"), _after_form("emp_000123"), _after_form("Jones")
    (':', 'emp`', None)
    """
    if re.match("[0-9]", row_key):
        return ":"  # which follows 9
    match = _TOKEN.match(row_key)
    return match[0][:-1] + chr(ord(match[0][-1]) + 1) if match else None
