"""Enumerations in key order: bounded steps over a snapshot and the transaction's own writes.

An enumeration sees the state at the time it starts: a snapshot, and a copy of the writes that its
transaction had made by then.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from partita.reliable.collections.snapshot import Snapshot
from partita.reliable.collections.transaction import Transaction, Workspace
from partita.reliable.state.state import Collection

SCAN_ROWS = 256
"""Keys read in one step; other tasks run between steps."""

Writes = Mapping[bytes, bytes | None]


class ReadView(msgspec.Struct, frozen=True):
    """What one enumeration of one collection sees.

    `writes` must not change while the view is used. `check` raises when the enumeration must
    end, `is_cleared` hides the rows of the snapshot.
    """

    snapshot: Snapshot
    check: Callable[[], None]
    writes: Writes = {}
    is_cleared: bool = False

    def find(self, collection: Collection, key: bytes) -> bytes | None:
        """Return the row of a key."""
        if key in self.writes:
            return self.writes[key]
        return None if self.is_cleared else self.snapshot.find(collection, key)


def snapshot_view(snapshot: Snapshot) -> ReadView:
    """Return the view of an enumeration in a snapshot."""
    return ReadView(snapshot, snapshot.check)


def transaction_view(tx: Transaction, space: Workspace) -> ReadView:
    """Return the view of an enumeration that starts now in a transaction."""
    return ReadView(tx.snapshot, tx.check, dict(space.writes), space.is_cleared)


async def scan(
    view: ReadView, collection: Collection, lower: bytes, upper: bytes | None, *, reverse: bool
) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """Yield rows of a half-open range, step by step."""
    own = sorted(
        row for row in view.writes.items() if lower <= row[0] and (upper is None or row[0] < upper)
    )
    first, end = 0, len(own)  # own writes that no step has returned yet
    while True:
        view.check()
        view.snapshot.check_collection(collection)
        rows, last = (
            ([], None) if view.is_cleared else _rows(view, collection, lower, upper, reverse)
        )
        if last is None:
            yield _overlaid(rows, own[first:end], reverse=reverse)
            return
        if reverse:
            upper, place = last, bisect_left(own, (last,), first, end)
            covered, end = own[place:end], place
        else:
            lower = last + b"\x00"
            place = bisect_left(own, (lower,), first, end)
            covered, first = own[first:place], place
        yield _overlaid(rows, covered, reverse=reverse)
        await asyncio.sleep(0)


async def count(tx: Transaction, space: Workspace) -> int:
    """Return the number of rows that a transaction sees: its snapshot and its own writes."""
    view = transaction_view(tx, space)
    collection, sequence = space.collection, view.snapshot.sequence
    found = 0 if view.is_cleared else collection.count(sequence)
    for number, (key, value) in enumerate(view.writes.items(), start=1):
        before = None if view.is_cleared else collection.find(key, sequence)
        found += (value is not None) - (before is not None)
        if number % SCAN_ROWS == 0:
            await asyncio.sleep(0)
            view.check()
    return found


def _rows(
    view: ReadView,
    collection: Collection,
    lower: bytes,
    upper: bytes | None,
    reverse: bool,  # noqa: FBT001 - passed through
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    sequence = view.snapshot.sequence
    return collection.scan(sequence, lower, upper, limit=SCAN_ROWS, reverse=reverse)


def _overlaid(
    rows: list[tuple[bytes, bytes]], writes: list[tuple[bytes, bytes | None]], *, reverse: bool
) -> list[tuple[bytes, bytes]]:
    if not writes:
        return rows
    merged: dict[bytes, bytes | None] = dict(rows)
    merged.update(writes)
    return [
        (key, value) for key, value in sorted(merged.items(), reverse=reverse) if value is not None
    ]
