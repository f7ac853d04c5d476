"""Count and delete-where: verbs over the keys of a query."""

from collections.abc import AsyncIterator

import msgspec

from partita.bulk.batches import Change, Kind
from partita.bulk.entities import decode_keys
from partita.bulk.formats.rows import Reject
from partita.bulk.grouping import Planned
from partita.bulk.pace import Pace
from partita.bulk.scanning import Scan
from partita.bulk.wire import Query, TableClient
from partita.bulk.work.observing import SILENT, Observer
from partita.bulk.work.writing import WINDOW_ROWS_MAX, Mode, Tally, Window, Writer
from partita.ticks import Clock

KEYS = ("PartitionKey", "RowKey")
REJECTS_SHOWN_MAX = 100


async def count_entities(
    client: TableClient,
    table: str,
    condition: str = "",
    *,
    concurrency: int = 4,
    observer: Observer = SILENT,
) -> int:
    """Count the entities that a filter selects."""
    query = Query(condition, KEYS, has_metadata=False)
    scan = Scan(client, table, query, concurrency=concurrency)
    total = 0
    async for _part, page in scan.pages():
        total += len(page.entities)
        observer.advance(len(page.entities))
    return total


class Deleted(msgspec.Struct, frozen=True):
    """What a delete did."""

    tally: Tally
    changed: list[str]
    """Keys of entities that were changed after they were read; the first hundred."""
    throttled: int = 0


async def delete_where(  # noqa: PLR0913 - the flags of the verb
    client: TableClient,
    table: str,
    condition: str,
    clock: Clock,
    *,
    force: bool = False,
    concurrency: int = 8,
    rate_max: float | None = None,
    observer: Observer = SILENT,
) -> Deleted:
    """Delete the entities that a filter selects, in the versions that were read unless forced.

    Run it again after it was killed: what is deleted is not found again.
    """
    scan = Scan(client, table, Query(condition, KEYS), concurrency=2)
    writer = Writer(client, table, Mode.DELETE, Pace(clock, concurrency, rate_max))
    tally, changed = Tally(), list[str]()

    def done(_window: Window, found: Tally, rejects: list[Reject]) -> None:
        tally.add(found)
        room = REJECTS_SHOWN_MAX - len(changed)
        changed.extend(reject.text for reject in rejects[:room])

    await writer.write(_deletes(scan, force=force), done, observer.advance, concurrency=concurrency)
    return Deleted(tally, changed, client.throttled_count)


async def _deletes(scan: Scan, *, force: bool) -> AsyncIterator[Window]:
    changes: list[Planned] = []
    async for _part, page in scan.pages():
        for entity in page.entities:
            keys = decode_keys(entity)
            etag = "*" if force else keys.etag
            changes.append(
                Planned(Change(Kind.DELETE, keys.partition_key, keys.row_key, etag=etag))
            )
        if len(changes) >= WINDOW_ROWS_MAX:
            yield Window(changes, [], {})
            changes = []
    if changes:
        yield Window(changes, [], {})
