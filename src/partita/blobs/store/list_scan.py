"""Listing blobs by name: a range scan; with a delimiter a skip scan from prefix to prefix."""

from partita.blobs.rules import stored_format as stored
from partita.blobs.rules.listing import (
    Place,
    Shown,
    end_of,
    shared_prefix,
    shown_blob,
    states_shown,
)
from partita.blobs.rules.model import Blob, BlobPrefix
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import DELETED, VERSION
from partita.blobs.store.contract import Scan
from partita.blobs.store.rows import BlobRows


def read_listing(scan: Scan, rows: BlobRows) -> tuple[list[Blob | BlobPrefix], Place | None]:
    """Return the items of a listing, and the place of the next one."""
    items: list[Blob | BlobPrefix] = []
    place: Place | None = max(scan.start, (scan.prefix, 0))
    while place is not None:
        place, is_full = _read_to_prefix(scan, rows, place, items)
        if is_full:
            return items, place
    return items, None


def _read_to_prefix(
    scan: Scan, rows: BlobRows, start: Place, items: list[Blob | BlobPrefix]
) -> tuple[Place | None, bool]:
    """Collect up to the next prefix; return where to continue, and whether the page is full."""
    statement, end = listing_statement(scan)
    parameters = (scan.container, *start, end)
    for name, snapshot, facts, is_last in rows.connection.execute(statement, parameters):
        if len(items) == scan.limit:
            return (name, snapshot), True
        prefix = shared_prefix(name, scan.prefix, scan.delimiter)
        if prefix is not None:
            items.append(BlobPrefix(prefix))
            after = end_of(prefix)
            return None if after is None else (after, 0), False
        blob = stored.decode_blob(facts)
        items.append(shown_blob((name, snapshot), blob, scan.now, is_last=is_last))
    return None, False


def listing_statement(scan: Scan) -> tuple[str, str | None]:
    """Return the statement of a scan and the end of its prefix, its fourth parameter."""
    end = end_of(scan.prefix)
    conditions = ["container = ?1", "(name, snapshot) >= (?2, ?3)"]
    # The end is bound in any case: SQLite refuses a parameter that is not used.
    conditions.append("?4 IS NULL" if end is None else "name < ?4")
    shown = states_shown(scan.include)
    conditions.append(_shown_condition(shown, scan.now))
    if "uncommittedblobs" not in scan.include:
        conditions.append("is_committed")
    where = " AND ".join(conditions)
    is_last = _IS_LAST if shown.asks_for_last else "0"
    return (
        f"SELECT name, snapshot, facts, {is_last} FROM blob WHERE {where} ORDER BY name, snapshot",  # noqa: S608 - only our own text
        end,
    )


_IS_LAST = (
    f"state IN ({VERSION}, {DELETED}) AND NOT EXISTS (SELECT 1 FROM blob l WHERE"  # noqa: S608 - only our own text
    " l.container = blob.container AND l.name = blob.name AND l.snapshot > blob.snapshot"
    f" AND l.is_committed AND l.state <= {DELETED})"
)
"""Whether no later row is the blob, an earlier version of it, or the deleted blob."""


def _shown_condition(shown: Shown, now: int) -> str:
    if shown == Shown():
        return f"snapshot = {LIVE}"
    kept = [f"state IN ({', '.join(map(str, shown.always))})"] if shown.always else []
    if shown.if_last:
        kept.append(f"state IN ({', '.join(map(str, shown.if_last))}) AND {_IS_LAST}")
    is_due = f"(expires_at IS NULL OR expires_at > {now})"
    return f"(snapshot = {LIVE} OR ({' OR '.join(kept)}) AND {is_due})"
