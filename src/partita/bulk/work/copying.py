"""Copy: the entities of a query from one account into another; and the comparison of both."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from partita.bulk.batches import Change
from partita.bulk.canonical import Digest, canonical
from partita.bulk.checkpoint import Checkpoint
from partita.bulk.entities import Keys, decode_keys, without_etag
from partita.bulk.formats.rows import Reject
from partita.bulk.grouping import Planned
from partita.bulk.pace import Pace
from partita.bulk.scanning import Scan
from partita.bulk.wire import EVERYTHING, Page, Query, TableClient
from partita.bulk.work.observing import SILENT, Observer
from partita.bulk.work.writing import (
    WINDOW_BYTES_MAX,
    WINDOW_ROWS_MAX,
    Mode,
    Tally,
    Window,
    Writer,
)
from partita.ticks import Clock

DIFFERENCES_MAX = 100
SAVE_SECONDS = 1.0


class CopyTask(msgspec.Struct, frozen=True):
    """What is copied, and how."""

    table: str
    to_table: str
    query: Query = Query()
    mode: Mode = Mode.REPLACE
    concurrency: int = 8
    rate_max: float | None = None
    restart: bool = False
    progress_file: str = ""


class Copied(msgspec.Struct, frozen=True):
    """What a copy did."""

    tally: Tally
    rejects: list[Reject]
    is_resumed: bool = False
    throttled: int = 0


async def copy_table(
    source: TableClient,
    target: TableClient,
    task: CopyTask,
    clock: Clock,
    observer: Observer = SILENT,
) -> Copied:
    """Copy a query into a table, which is created; a run that was killed is continued."""
    checkpoint = Checkpoint(
        Path(task.progress_file),
        {
            "verb": "copy",
            "from": source.endpoint,
            "to": target.endpoint,
            "table": task.table,
            "to_table": task.to_table,
            "filter": task.query.filter,
            "on_existing": task.mode.value,
        },
    )
    state = checkpoint.load(restart=task.restart)
    parts = None if state is None else Scan.parts_of(state["parts"])
    tally = Tally() if state is None else msgspec.convert(state["tally"], Tally)
    if state is not None:
        observer.tell(f"Continuing after {tally.total:,} entities.")
        observer.advance(tally.total)
    rejects: list[Reject] = []
    scan = Scan(source, task.table, task.query, concurrency=4, parts=parts)
    await source.query(task.table, Query(top=1))  # a missing source must not create the target
    await target.create_table(task.to_table)
    saved_at = clock.monotonic()
    checkpoint.save({"parts": scan.state(), "tally": msgspec.to_builtins(tally)})

    def done(window: Window, found: Tally, refused: list[Reject]) -> None:
        nonlocal saved_at
        tally.add(found)
        rejects.extend(refused[: DIFFERENCES_MAX - len(rejects)])
        if clock.monotonic() - saved_at >= SAVE_SECONDS:
            checkpoint.save(
                {"parts": window.position["parts"], "tally": msgspec.to_builtins(tally)}
            )
            saved_at = clock.monotonic()

    pace = Pace(clock, task.concurrency, task.rate_max)
    writer = Writer(target, task.to_table, task.mode, pace, is_resumed=state is not None)
    await writer.write(
        _windows(scan, task.mode), done, observer.advance, concurrency=task.concurrency
    )
    checkpoint.remove()
    throttled = source.throttled_count + target.throttled_count
    return Copied(tally, rejects, state is not None, throttled)


async def _windows(scan: Scan, mode: Mode) -> AsyncIterator[Window]:
    changes: list[Planned] = []
    size = 0
    async for part, page in scan.pages():
        for entity in page.entities:
            keys = decode_keys(entity)
            document = without_etag(entity)
            size += len(document)
            changes.append(Planned(Change(mode.kind, keys.partition_key, keys.row_key, document)))
        part.advance(page)
        if len(changes) >= WINDOW_ROWS_MAX or size >= WINDOW_BYTES_MAX:
            yield Window(changes, [], {"parts": scan.state()})
            changes, size = [], 0
    if changes:
        yield Window(changes, [], {"parts": scan.state()})


# --- comparison


class Difference(msgspec.Struct, frozen=True):
    """One entity that two tables do not have in common."""

    partition_key: str
    row_key: str
    what: str


class Compared(msgspec.Struct, frozen=True):
    """What a comparison found; `differences` are the first hundred."""

    source_entities: int
    target_entities: int
    source_sum: str
    target_sum: str
    different: int
    differences: list[Difference]


async def compare(
    source: TableClient,
    target: TableClient,
    tables: tuple[str, str],
    query: Query = EVERYTHING,
    observer: Observer = SILENT,
) -> Compared:
    """Compare a query of two tables, entity by entity, in the order of keys."""
    one = _Side(source.pages(tables[0], query))
    other = _Side(target.pages(tables[1], query))
    found: list[Difference] = []
    different = 0
    left, right = await one.next(), await other.next()
    while left is not None or right is not None:
        place = _order(left, right)
        what = ""
        if place < 0:
            what = "only in the source"
        elif place > 0:
            what = "only in the target"
        elif left is not None and right is not None and left[1] != right[1]:
            what = _differing(left[1], right[1])
        if what:
            different += 1
            shown = left if place <= 0 else right
            assert shown is not None
            if len(found) < DIFFERENCES_MAX:
                found.append(Difference(shown[0].partition_key, shown[0].row_key, what))
        if place <= 0:
            observer.advance(1)
            left = await one.next()
        if place >= 0:
            right = await other.next()
    return Compared(
        one.digest.count,
        other.digest.count,
        one.digest.text,
        other.digest.text,
        different,
        found,
    )


Item = tuple[Keys, bytes]


class _Side:
    """The entities of one side, one at a time."""

    def __init__(self, pages: AsyncIterator[Page]) -> None:
        self._pages = pages
        self._entities: list[msgspec.Raw] = []
        self._at = 0
        self.digest = Digest()

    async def next(self) -> Item | None:
        while self._at >= len(self._entities):
            page = await anext(self._pages, None)
            if page is None:
                return None
            self._entities, self._at = page.entities, 0
        entity = self._entities[self._at]
        self._at += 1
        self.digest.add(entity)
        return decode_keys(entity), canonical(entity)


def _order(left: Item | None, right: Item | None) -> int:
    if left is None or right is None:
        return 1 if left is None else -1
    one = left[0].partition_key, left[0].row_key
    other = right[0].partition_key, right[0].row_key
    return (one > other) - (one < other)


def _differing(one: bytes, other: bytes) -> str:
    first: dict[str, Any] = msgspec.json.decode(one)
    second: dict[str, Any] = msgspec.json.decode(other)
    names = sorted(
        {
            name.partition("@")[0]
            for name in {*first, *second}
            if first.get(name) != second.get(name)
            or type(first.get(name)) is not type(second.get(name))
        }
    )
    return "differs in " + ", ".join(names)
