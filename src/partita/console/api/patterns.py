"""Rows of partita.patterns in a table: states of indexes, outbox entries, drift.

States are read by one query of one partition. Looking for entries reads the whole table, and a
comparison reads a sample: both are jobs, which only a button starts.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from partita.bulk.wire import Query
from partita.console.calls import Answer, Call, Route
from partita.console.errors import invalid
from partita.console.jobs import Job
from partita.console.tables.typed_rows import Shown, shown_of
from partita.errors import DamageError, UnknownTypeError
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.row_layout import STATES_PARTITION
from partita.ticks import TICKS_PER_SECOND, Clock, moment

ENTRIES_MAX: Final = 200
"""Outbox entries that are shown; a look ends when it has found so many."""
SAMPLE_MAX: Final = 20_000
DRIFTS_MAX: Final = 200
"""Differences that are shown; the counts are of all."""
NAMES_SHOWN_MAX: Final = 20
"""Names of work that are shown of one entry."""
_STATE_KEY: Final = "~ix_"
_SWEEP_KEY: Final = "~sw"
_ENTRIES: Final = "RowKey ge '~o_' and RowKey lt '~p'"


class Comparison(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    sample: int = 1000
    """Entities that are compared at most, and rows of each index."""


async def show(call: Call) -> Answer:
    """Return the states of the indexes of a table, and which types are known for it."""
    query = Query(filter=f"PartitionKey eq '{STATES_PARTITION}'")
    table, types = call.arguments["table"], call.services.types
    page = await call.account.tables.query(table, query)
    rows = list(map(shown_of, page.entities))
    places = {} if types is None else types.index_tables()
    swept = next((row for row in rows if row.row_key == _SWEEP_KEY), None)
    return {
        "indexes": [
            _state(row, table, places) for row in rows if row.row_key.startswith(_STATE_KEY)
        ],
        "swept_before": None if swept is None else _time_in(swept, "Before"),
        "types": [] if types is None else types.names_in(table),
    }


def _state(row: Shown, table: str, places: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    owner, _, index = row.row_key.removeprefix(_STATE_KEY).partition("@")
    return {
        "type": owner,
        "index": index,
        "table": places.get((owner, index), table),
        "state": _text_in(row, "State"),
        "is_rebuilding": bool(_text_in(row, "Progress")),
    }


def _text_in(row: Shown, name: str) -> str:
    return row.properties.get(name, ("s", ""))[1]


def _time_in(row: Shown, name: str) -> str | None:
    text = _text_in(row, name)
    return moment(int(text)) if text.isascii() and text.isdecimal() else None


async def find_entries(call: Call) -> Answer:
    """Look for outbox entries; reads the keys of the whole table."""
    client, clock, table = call.account.tables, call.services.clock, call.arguments["table"]

    async def work(job: Job) -> None:
        entries: list[dict[str, Any]] = []
        examined, start = 0, None
        while True:
            page = await client.query(table, Query(filter=_ENTRIES), start, explain=True)
            examined += page.examined or 0
            entries += [_entry(shown_of(each), clock) for each in page.entities]
            job.counts |= {"entities": examined, "entries": len(entries)}
            start = page.continuation
            if start is None or len(entries) >= ENTRIES_MAX:
                break
        entries.sort(key=lambda each: -each["age_seconds"])
        job.result = {"entries": entries[:ENTRIES_MAX], "is_whole": start is None}

    return call.start_job("outbox", f"Look for outbox entries of {table}", work)


def _entry(row: Shown, clock: Clock) -> dict[str, Any]:
    from partita.patterns.writing import outbox_entry  # noqa: PLC0415 - an extra

    key = RowKey(row.partition_key, row.row_key)
    age = (clock.ticks() - outbox_entry.written_at(key)) / TICKS_PER_SECOND
    try:
        texts = {name: text for name, (_, text) in row.properties.items()}
        names = sorted(outbox_entry.names_in(outbox_entry.read_entry(Row(key, dict(texts)))))
        problem = ""
    except (DamageError, UnknownTypeError) as error:
        names, problem = [], error.message
    return {
        "partition_key": key.partition,
        "row_key": key.row,
        "age_seconds": round(max(age, 0.0), 1),
        "names": names[:NAMES_SHOWN_MAX],
        "problem": problem,
    }


async def compare(call: Call) -> Answer:
    """Compare a sample of a type with its index rows and derived fields."""
    given, types = call.decode(Comparison), call.services.types
    if not 1 <= given.sample <= SAMPLE_MAX:
        message = f"sample must be from 1 to {SAMPLE_MAX}."
        raise invalid(message)
    if types is None or given.type not in types.tables():
        message = f"The console does not know the type {given.type!r}."
        raise invalid(message, "Start it with `partita console --types MODULE`.")
    remote, clock = call.account.remote, call.services.clock

    async def work(job: Job) -> None:
        def advance(done: int) -> None:
            job.counts["entities"] = done

        found = await types.sample(given.type, remote, given.sample, clock, advance)
        counts: dict[tuple[str, str], int] = {}
        for drift in found.drifts:
            counts[drift.what, drift.kind] = counts.get((drift.what, drift.kind), 0) + 1
        job.counts = {"entities": found.entities, "rows": found.rows, "drifts": len(found.drifts)}
        job.result = {
            "is_whole": found.is_whole,
            "counts": [[what, kind, count] for (what, kind), count in sorted(counts.items())],
            "drifts": [
                [each.what, each.kind, each.table, each.key.partition, each.key.row]
                for each in found.drifts[:DRIFTS_MAX]
            ],
        }

    return call.start_job("compare", f"Compare {given.type} with its indexes", work)


_TABLE: Final = "/api/v1/a/{account}/tables/{table}"
ROUTES = (
    Route("GET", f"{_TABLE}/patterns", show),
    Route("POST", f"{_TABLE}/outbox", find_entries),
    Route("POST", f"{_TABLE}/compare", compare),
)
