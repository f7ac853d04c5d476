"""What a copy consists of: parts, and their rows in key order. Pure.

A part is copied, verified and, if it differs, copied again as a whole. Its head is what it has
besides rows.

    kind        head                      a row: its key, then the rest
    settings    name, value, name, ...    none
    extents     -                         id | size, hash, checks, bytes
    contents    -                         content, place | size, start, extent, block
    container   facts                     name, snapshot | is_committed, content, facts
    blocks      -                         name, id | extent, size, staged_at
    table       name, policies            partition key, row key | ticks, document
    queue       metadata, policies        sequence | nonce, inserted_at, expires_at, visible_at,
                                          dequeue_count, receipt, text

Documents and texts are without their stored checksums, which are verified when they are read. Ids
of extents and contents are those of the source. Times by which hidden messages and leases end are
shifted from the clock of the source to that of the target.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from partita.blobs.rules import stored_format
from partita.blobs.rules.leases import Lease
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import History
from partita.queues import limits as queue_limits
from partita.ticks import TICKS_PER_SECOND

Kind = Literal["settings", "extents", "contents", "container", "blocks", "table", "queue"]
Key = tuple[Any, ...]
Row = tuple[Any, ...]

KEY_COLUMNS: Mapping[Kind, int] = MappingProxyType(
    {
        "settings": 0,
        "extents": 1,
        "contents": 2,
        "container": 2,
        "blocks": 2,
        "table": 2,
        "queue": 1,
    }
)
VISIBLE_AT, EXPIRES_AT = 4, 3
"""Columns of a row of a queue."""
EXTENT_SIZE, EXTENT_HASH = 1, 2
"""Columns of a row of the extents."""

BATCH_ROWS_MAX = 5000
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""A batch is read, written and recorded together; one row may exceed it."""
BATCH_CONTENT_BYTES_MAX = 64 * 1024 * 1024
"""Large contents that are copied before their extents are recorded; one may exceed it."""
CLOCKS_AGREE_TICKS = 2 * TICKS_PER_SECOND
"""Clocks within this are taken as equal: a folder writes its clock up to a second ahead."""

_INT_BYTES = 8
_LABELS = {
    "settings": "service properties",
    "extents": "contents of blobs",
    "contents": "places of contents",
}
_encode = msgspec.msgpack.Encoder().encode


class CopyPart(msgspec.Struct, frozen=True, order=True):
    """A table, a queue, a container, or what all containers of the account share."""

    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else _LABELS[self.kind]


class Plan(msgspec.Struct, frozen=True):
    """A part of the source; the sizes are without the contents of large blobs."""

    part: CopyPart
    head: Row
    rows: int
    bytes: int


class State(msgspec.Struct, frozen=True):
    """How far a part is copied: what the target records with each batch."""

    target: int
    """The id of the table, queue or container in the target; 0 if the part has none."""
    head: Row = ()
    last: Key | None = None
    is_done: bool = False
    differs: bool = False
    """Whether a verification found another content: the part must be copied again."""


class Moment(msgspec.Struct, frozen=True):
    """The clocks of one side."""

    now: int
    """By which hidden messages and leases end."""
    stamp: int
    """At or after every stamp that was made."""


def key_of(part: CopyPart, row: Row) -> Key:
    return row[: KEY_COLUMNS[part.kind]]


def runs_of_contents(extents: Iterable[Row]) -> Iterator[list[Row]]:
    """Divide extents so that little is copied again after a crash."""
    run: list[Row] = []
    size = 0
    for row in extents:
        run.append(row)
        size += 0 if row[EXTENT_HASH] is None else row[EXTENT_SIZE]
        if size >= BATCH_CONTENT_BYTES_MAX:
            yield run
            run, size = [], 0
    if run:
        yield run


def stamp_of(part: CopyPart, row: Row) -> int:
    """Return the latest stamp in a row; 0 if it has none."""
    if part.kind == "table":
        return int(row[2])
    if part.kind == "queue":
        return int(row[2])
    if part.kind == "container":
        snapshot = 0 if row[1] == LIVE else row[1]
        facts = stored_format.decode_blob(row[-1])
        history = facts.history or History()
        return max(snapshot, facts.changed_at, history.version or 0, history.deleted_at or 0)
    return 0


def head_stamp_of(part: CopyPart, head: Row) -> int:
    """Return the stamp in the head of a part; 0 if it has none."""
    if part.kind != "container":
        return 0
    facts = stored_format.decode_container(head[0])
    return max(facts.changed_at, facts.deleted_at or 0)


def states_of(row: Row) -> tuple[int, int | None]:
    """Return the columns of a blob that follow from its facts."""
    facts = stored_format.decode_blob(row[-1])
    return stored_format.state_of(row[1], facts), stored_format.expiry_of(facts)


def bytes_of(row: Row) -> int:
    """Return about how many bytes a row has."""
    return sum(len(each) if isinstance(each, str | bytes) else _INT_BYTES for each in row)


def shift_between(source: Moment, target: Moment) -> int:
    """Return what to add to times of the source; 0 if the clocks agree.

    >>> shift_between(Moment(10_000_000, 0), Moment(12_000_000, 0))
    0
    """
    shift = target.now - source.now
    return 0 if abs(shift) <= CLOCKS_AGREE_TICKS else shift


def shifted_row(part: CopyPart, row: Row, shift: int) -> Row:
    """Return a row of the source with the times of the target's clock."""
    if shift == 0:
        return row
    if part.kind == "queue":
        visible_at = min(max(row[VISIBLE_AT] + shift, 0), queue_limits.NEVER)
        return (*row[:VISIBLE_AT], visible_at, *row[VISIBLE_AT + 1 :])
    if part.kind == "container":
        return (*row[:-1], _shifted_blob(row[-1], shift))
    return row


def shifted_head(part: CopyPart, head: Row, shift: int) -> Row:
    """Return the head of a part with the times of the target's clock."""
    if shift == 0 or part.kind != "container":
        return head
    facts = stored_format.decode_container(head[0])
    if facts.lease is None and facts.expires_at is None:
        return head
    moved = msgspec.structs.replace(
        facts,
        lease=None if facts.lease is None else _shifted_lease(facts.lease, shift),
        expires_at=None if facts.expires_at is None else facts.expires_at + shift,
    )
    return (stored_format.encode(moved),)


def _shifted_blob(stored: bytes, shift: int) -> bytes:
    facts = stored_format.decode_blob(stored)
    history = facts.history
    if history is not None and history.expires_at is not None:
        history = msgspec.structs.replace(history, expires_at=history.expires_at + shift)
    if facts.lease is None and facts.rehydrated_at is None and history is facts.history:
        return stored
    moved = msgspec.structs.replace(
        facts,
        lease=None if facts.lease is None else _shifted_lease(facts.lease, shift),
        rehydrated_at=None if facts.rehydrated_at is None else facts.rehydrated_at + shift,
        history=history,
    )
    return stored_format.encode(moved)


def _shifted_lease(lease: Lease, shift: int) -> Lease:
    return msgspec.structs.replace(
        lease,
        ends_at=None if lease.ends_at is None else lease.ends_at + shift,
        breaks_at=None if lease.breaks_at is None else lease.breaks_at + shift,
    )


class Digest:
    """A digest of a part: its head, then its rows in key order."""

    def __init__(self, head: Row) -> None:
        self._hash = hashlib.blake2b(_encode(head), digest_size=16)
        self.rows = 0

    def update(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._hash.update(_encode(row))
            self.rows += 1

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
