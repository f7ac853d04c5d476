"""The daily and hourly work of Storage Analytics: old logs and rows, and the capacity."""

import contextlib
from collections.abc import Iterator
from typing import Final

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.model import Blob, BlobName
from partita.blobs.rules.names import LOGS
from partita.errors import ConflictError
from partita.service.accounts.account import Account
from partita.service.analytics.log_blobs import folder_of
from partita.service.analytics.metric_rows import capacity_members, day_key, period_key
from partita.service.analytics.recording import Recording
from partita.tables.entity import EntityKey, build
from partita.tables.paging import FIRST, KeyRange
from partita.tables.store import Decide, TableStore
from partita.tables.system_tables import CAPACITY_TABLE
from partita.ticks import TICKS_PER_DAY

REMOVED_PER_SWEEP_MAX: Final = 200
"""Logs, and rows of a table, that a sweep removes; the rest is left to the next one."""


async def remove_old(account: Account, recording: Recording) -> bool:
    """Remove what is older than the retention of a service; return whether nothing is left.

    The clock of the store tells the age: it does not follow a sudden leap of the system clock.
    """
    now, is_complete = account.blobs.store.now(), True
    days = recording.logging.retention_days
    if days is not None:
        before = folder_of(recording.service, now - days * TICKS_PER_DAY)
        is_complete = await _remove_logs(account.blobs, recording.service, before)
    for table, days, length in _tables_of(recording):
        if days is not None:
            cutoff = now - days * TICKS_PER_DAY
            end = period_key(cutoff - cutoff % length)  # a period ages from its end
            is_complete = await _remove_rows(account.tables.store, table, end) and is_complete
    return is_complete


def _tables_of(recording: Recording) -> Iterator[tuple[str, int | None, int]]:
    """Yield the tables of a service, with their retention and the length of a period."""
    for each in (recording.hours, recording.minutes):
        yield each.table, each.settings.retention_days, each.length
    if recording.service == "blob":
        yield CAPACITY_TABLE, recording.hours.settings.retention_days, TICKS_PER_DAY


async def _remove_logs(blobs: BlobEngine, service: str, before: str) -> bool:
    if await blobs.containers.find_container(LOGS) is None:
        return True
    listing = await blobs.containers.list_blobs(
        LOGS, prefix=f"{service}/", limit=REMOVED_PER_SWEEP_MAX
    )
    old = [each.name for each in listing.items if each.name < before]
    removed = 0
    for name in old:
        with contextlib.suppress(ConflictError):  # another front end, or a client, deleted it
            await blobs.delete_blob(BlobName(LOGS, name), snapshots="include")
            removed += 1
    return not removed or len(old) < len(listing.items) or listing.next_marker is None


async def _remove_rows(store: TableStore, name: str, end: str) -> bool:
    table = await store.find_table(name)
    if table is None:
        return True
    span = KeyRange(FIRST, EntityKey(end, ""))
    page = await store.scan(table, span, None, REMOVED_PER_SWEEP_MAX)
    by_partition: dict[str, list[str]] = {}
    for entity in page.entities:
        by_partition.setdefault(entity.partition_key, []).append(entity.row_key)
    for partition_key, row_keys in by_partition.items():
        await store.change(
            table, partition_key, row_keys, _removing(len(row_keys)), frees_space=True
        )
    return page.continuation is None


def _removing(count: int) -> Decide:
    return lambda _before, _now: [None] * count


async def write_capacity(account: Account, ticks: int) -> None:
    """Write the capacity of the blobs on this day, unless it is written already."""
    store, day = account.tables.store, day_key(ticks)
    table = await store.find_table(CAPACITY_TABLE)
    if table is None or await store.get(table, EntityKey(day, "data")) is not None:
        return
    rows = {"data": [0, 0, 0], "analytics": [0, 0, 0]}
    marker: str | None = ""
    while marker is not None:
        containers = await account.blobs.containers.list_containers(marker=marker, with_system=True)
        for container in containers.items:
            sums = rows["analytics" if container.name == LOGS else "data"]
            size, objects = await _size_of(account.blobs, container.name)
            sums[0] += size
            sums[1] += 1
            sums[2] += objects
        marker = containers.next_marker
    await store.change(
        table,
        day,
        list(rows),
        lambda _before, now: [
            build(EntityKey(day, row_key), now, capacity_members(*sums))
            for row_key, sums in rows.items()
        ],
    )


async def _size_of(blobs: BlobEngine, container: str) -> tuple[int, int]:
    """Return the bytes and the number of the blobs and blob snapshots of a container."""
    size = objects = 0
    marker: str | None = ""
    while marker is not None:
        try:
            listing = await blobs.containers.list_blobs(
                container, marker=marker, include={"snapshots", "uncommittedblobs"}
            )
        except ConflictError:
            return 0, 0  # it was deleted
        objects += len(listing.items)
        size += sum(each.length for each in listing.items if isinstance(each, Blob))
        marker = listing.next_marker
    return size, objects
