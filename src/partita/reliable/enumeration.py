"""Walking through a collection in key order: bounded steps, own writes laid over a snapshot."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from partita.reliable.snapshot import Snapshot
from partita.reliable.state import Collection

SCAN_ROWS = 256
"""Keys looked at in one step; other tasks run between steps."""

Writes = Mapping[bytes, bytes | None]


async def scan(
    collection: Collection,
    snapshot: Snapshot,
    lower: bytes,
    upper: bytes | None,
    *,
    reverse: bool,
    own: Callable[[], tuple[Writes, bool]] | None = None,
) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """Yield rows of a half-open range, step by step.

    `own` returns the transaction's writes as they are now and whether it cleared all else.
    """
    while True:
        snapshot.check_collection(collection)
        writes, is_cleared = ({}, False) if own is None else own()
        rows, last = (
            ([], None) if is_cleared else _rows(collection, snapshot, lower, upper, reverse)
        )
        yield (
            _overlay(rows, writes, _range(lower, upper, last, reverse), reverse) if writes else rows
        )
        if last is None:
            return
        lower, upper = (lower, last) if reverse else (last + b"\x00", upper)
        await asyncio.sleep(0)


def _rows(
    collection: Collection,
    snapshot: Snapshot,
    lower: bytes,
    upper: bytes | None,
    reverse: bool,  # noqa: FBT001 - handed through
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    return collection.scan(snapshot.sequence, lower, upper, limit=SCAN_ROWS, reverse=reverse)


def _range(
    lower: bytes,
    upper: bytes | None,
    last: bytes | None,
    reverse: bool,  # noqa: FBT001 - handed through
) -> tuple[bytes, bytes | None]:
    """Return the range that a step has covered, when more follows."""
    if last is None:
        return lower, upper
    return (last, upper) if reverse else (lower, last + b"\x00")


def _overlay(
    rows: list[tuple[bytes, bytes]],
    writes: Writes,
    covered: tuple[bytes, bytes | None],
    reverse: bool,  # noqa: FBT001 - handed through
) -> list[tuple[bytes, bytes]]:
    lower, upper = covered
    merged = dict(rows)
    for key, value in writes.items():
        if key < lower or (upper is not None and key >= upper):
            continue
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return sorted(merged.items(), reverse=reverse)
