"""Continuations: where the next page of a query starts, as text that can be stored.

A position says where the next page starts, and nothing else: another process can use it after a
restart. It carries a fingerprint of its query, so that it cannot be used with another one.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from partita.errors import ContinuationError, UsageError
from partita.patterns.protocol.calls import Continuation, Steps
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import RowKey

PAGE_SIZE_MAX = 1000
_FORMAT = 1
_FORMAT_CUT = 2
"""The version of a position in a cut page, which older programs cannot read."""


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which request of the plan is next, and where in it."""

    request: int = 0
    partition: str | None = None
    row: str | None = None
    member: int | None = None
    """The place in an index entity at which the next page starts."""
    left: int | None = None
    """The number of entities left of the query's limit."""
    parts: dict[int, str] = {}
    """For a merged query: the last row key that was returned of each of its parts."""
    passed: RowKey | None = None
    """The last row that was returned of a cut page; for a list, the next member."""
    seen: int = 0
    """The number of rows before the cut, if the page must be read again."""
    listed: RowKey | None = None
    """The index entity in which a page was cut."""


class Kept(msgspec.Struct, frozen=True):
    """The content of a continuation."""

    version: int
    query: str
    position: Position


class Slice(msgspec.Struct, frozen=True):
    """Part of an answer; without a position it is the last part."""

    entities: list[Any]
    position: Position | None = None
    has_misses: bool = False
    """Some rows did not match, so that more rows must be read than entities are wanted."""


def position_after(continuation: Continuation | None) -> Position | None:
    """Return the position where a service continues."""
    if continuation is None:
        return None
    return Position(partition=continuation.partition, row=continuation.row)


def continuation_at(position: Position) -> Continuation | None:
    """Return where a service continues from a position; None at the start."""
    if position.partition is None:
        return None
    return Continuation(position.partition, position.row)


def fingerprint(described: Iterable[str]) -> str:
    """Return the fingerprint of a query, from the texts that describe it."""
    return hashlib.blake2b("\0".join(described).encode(), digest_size=8).hexdigest()


def print_continuation(query: str, position: Position | None) -> str | None:
    """Return a position of the query with this fingerprint as text."""
    if position is None:
        return None
    version = _FORMAT if position.passed is None else _FORMAT_CUT
    kept = msgspec.json.encode(Kept(version, query, position))
    return base64.urlsafe_b64encode(kept).decode().rstrip("=")


def parse_continuation(query: str, text: str | None) -> Position:
    """Read a continuation that was handed out for the query with this fingerprint."""
    if text is None:
        return Position()
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        kept = decode(raw, Kept)
    except (ValueError, AttributeError, TypeError) as error:
        raise ContinuationError(
            "ContinuationDamaged",
            "The continuation cannot be read.",
            hint="Pass the value of page.continuation unchanged.",
        ) from error
    if kept.version not in (_FORMAT, _FORMAT_CUT) or kept.query != query:
        raise ContinuationError(
            "ContinuationMismatch",
            "The continuation belongs to another query.",
            hint="Use the same type, keys, conditions and selection as for the previous page.",
        )
    return kept.position


class Reader(msgspec.Struct, frozen=True):
    """How a query is read, whatever its kind."""

    read: Callable[[Position, int | None], Steps[Slice]]
    """Reads up to a number of entities (None: one page of the service) from a position on."""
    fingerprint: Callable[[], str]
    count_max: int | None = None
    """The limit of the query."""
    is_counted: bool = True
    """Whether a small page has as many matches as rows; else iteration reads full pages."""


def read_page(reader: Reader, continuation: str | None, size: int) -> Steps[Slice]:
    """Read up to `size` entities from a continuation on; the limit bounds all pages together."""
    if size < 1:
        raise UsageError("InvalidPageSize", "The size of a page must be at least 1.")
    start = parse_continuation(reader.fingerprint(), continuation)
    left = reader.count_max if continuation is None else start.left
    if left == 0:
        return Slice([])
    found = yield from reader.read(start, size if left is None else min(size, left))
    if left is None or found.position is None:
        return found
    left -= len(found.entities)
    following = msgspec.structs.replace(found.position, left=left)
    return Slice(found.entities, following if left > 0 else None)
