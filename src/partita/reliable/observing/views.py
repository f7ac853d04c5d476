"""Pages over a state in memory: collections, rows, locks. Nothing is changed, and nothing waits."""

import base64
import binascii
import itertools
import struct

import msgspec

from partita.errors import CollectionNotFoundError, DamageError, UsageError
from partita.keys import Key, decode_key, encode_key
from partita.reliable.collections.queue import HEAD
from partita.reliable.collections.snapshot import Origin
from partita.reliable.collections.transaction import CREATIONS, OUTCOMES, Core, Transaction
from partita.reliable.observing.facts import (
    KEY_CHARACTERS_MAX,
    LOCKS_PER_PAGE_MAX,
    ROW_BYTES_MAX,
    ROW_PAGE_BYTES_MAX,
    ROWS_PER_PAGE_MAX,
    WAITERS_PER_LOCK_MAX,
    CollectionFacts,
    IndexFacts,
    LockFacts,
    LockOwnerFacts,
    LockReport,
    RowFacts,
    RowPage,
)
from partita.reliable.observing.plain_rows import plain_key, row_fields
from partita.reliable.state.locks import LockMode, Resource, Waiter
from partita.reliable.state.state import POSITION_BYTES, Collection, State

POSITIONS = ("queue", "concurrent_queue")
"""Collections whose keys are positions."""


# Collections and rows


def chosen(state: State, names: tuple[str, ...] | list[str] | None = None) -> list[Collection]:
    """Return the named collections, or all, by name; indexes are left out."""
    found = {
        collection.description.name: collection
        for collection in state.collections.values()
        if collection.description.kind != "index"
    }
    for name in names or ():
        if name not in found:
            raise CollectionNotFoundError(
                "CollectionNotFound",
                f"There is no collection {name!r}.",
                facts={"collection": name},
                hint=f"Choose one of: {', '.join(sorted(found)) or 'none'}.",
            )
    return [found[name] for name in sorted(found) if not names or name in names]


def collection_facts(
    state: State, collection: Collection, *, counts_bytes: bool = False
) -> CollectionFacts:
    """Describe a collection; counting its bytes reads every row."""
    description = collection.description
    return CollectionFacts(
        name=description.name,
        kind=description.kind,
        key=description.key,
        value=description.value,
        written_version=description.written_version,
        count=len(collection.rows.values),
        bytes=_bytes_of(collection) if counts_bytes else None,
        indexes=[
            IndexFacts(
                index.description.name.rpartition("\x00")[2],
                index.description.is_ready,
                len(index.rows.values),
                _bytes_of(index) if counts_bytes else None,
            )
            for index in state.indexes_of(collection)
        ],
    )


def _bytes_of(collection: Collection) -> int:
    return sum(len(key) + len(value) for key, value in collection.rows.values.items())


def row_page(
    state: State,
    name: str,
    now: int,
    *,
    after: str | None = None,
    start: object = None,
    limit: int = 200,
) -> RowPage:
    """Return the rows after a place, or from the key `start` on, in the order of their keys.

    `start` is a key as JSON has it: text, a number, or a list for a tuple. Expired rows are left
    out, so that a page may have fewer rows than `limit` and still have a next one.
    """
    (collection,) = chosen(state, [name])
    limit = max(1, min(limit, ROWS_PER_PAGE_MAX))
    lower = _place(collection, after, start)
    pairs, last = collection.scan(state.sequence, lower, None, limit=limit)
    rows: list[RowFacts] = []
    spent, before = 0, lower
    for key, row in pairs:
        spent += min(len(row), ROW_BYTES_MAX) + len(key)
        if rows and spent > ROW_PAGE_BYTES_MAX:
            last = before
            break
        before = key
        found = _row_facts(collection.description.kind, key, row, now)
        if found is not None:
            rows.append(found)
    continuation = None if last is None else base64.urlsafe_b64encode(last).decode()
    return RowPage(name, state.sequence, rows, continuation)


def _place(collection: Collection, after: str | None, start: object) -> bytes:
    if after is not None:
        try:
            return base64.b64decode(after, b"-_", validate=True) + b"\x00"
        except (binascii.Error, ValueError) as error:
            raise UsageError(
                "InvalidContinuation",
                "The place to continue at is not one that a page has returned.",
                hint="Pass `next` of the page before as `after`.",
            ) from error
    if start is None:
        return b""
    if collection.description.kind in POSITIONS and isinstance(start, int) and start >= 0:
        return start.to_bytes(POSITION_BYTES) if start < 2 ** (8 * POSITION_BYTES) else b"\xff" * 9
    try:
        return encode_key(_key_of(start))
    except (TypeError, UsageError) as error:
        raise UsageError(
            "InvalidKey",
            f"{str(start)[:KEY_CHARACTERS_MAX]!r} is not a key of {collection.description.name!r}.",
            hint="Give text, a number, or a list of them for a tuple.",
        ) from error


def _key_of(plain: object) -> Key:
    if isinstance(plain, list):
        return tuple(_key_of(each) for each in plain)
    if isinstance(plain, str | int):
        return plain
    raise TypeError


def _row_facts(kind: str, key: bytes, row: bytes, now: int) -> RowFacts | None:
    """Return a row for a page; None if it has expired."""
    size = len(key) + len(row)
    if size > ROW_BYTES_MAX:
        return RowFacts(_shown_key(kind, key), bytes=size, is_cut=True)
    try:
        fields = row_fields(kind, key, row, now)
    except (DamageError, msgspec.MsgspecError, struct.error):
        return RowFacts(_shown_key(kind, key), bytes=size, is_unreadable=True)
    return None if fields is None else msgspec.convert(fields | {"bytes": size}, RowFacts)


def _shown_key(kind: str, key: bytes) -> object:
    """Return a key for people: cut if it is long, hexadecimal if it cannot be decoded."""
    if kind in POSITIONS:
        return "the head" if key == HEAD else int.from_bytes(key[-POSITION_BYTES:])
    try:
        plain = plain_key(decode_key(key))
    except DamageError:
        return key.hex()[:KEY_CHARACTERS_MAX]
    text = msgspec.json.encode(plain).decode()
    return plain if len(text) <= KEY_CHARACTERS_MAX else f"{text[:KEY_CHARACTERS_MAX]}…"


# Locks


def lock_report(core: Core, replica: str, *, limit: int = 100) -> LockReport:
    """Return the locks of an open state, those that are waited for first."""
    locks = core.locks
    limit = max(0, min(limit, LOCKS_PER_PAGE_MAX))
    listed = itertools.islice(locks.resources(), limit)
    return LockReport(
        replica,
        [_lock_facts(core, resource) for resource in listed],
        locks.count(),
        len(core.active),
        locks.waiting_count(),
    )


def _lock_facts(core: Core, resource: Resource) -> LockFacts:
    identifier, key = resource
    now = core.clock.monotonic()
    holders = itertools.islice(core.locks.holders(resource).items(), WAITERS_PER_LOCK_MAX)
    waiters = core.locks.queue(resource)[:WAITERS_PER_LOCK_MAX]
    collection = core.state.collections.get(identifier)
    kind = "" if collection is None else collection.description.kind
    names = {OUTCOMES: "idempotency keys", CREATIONS: "new collections"}
    return LockFacts(
        names.get(identifier, "") if collection is None else collection.description.name,
        None if key is None else _locked_key(kind, key),
        [_owner_facts(core, owner, mode, now) for owner, mode in holders],
        [_waiter_facts(core, waiter, now) for waiter in waiters],
    )


def _locked_key(kind: str, key: bytes) -> object:
    return _shown_key(kind, key) if kind else key.decode(errors="replace")[:KEY_CHARACTERS_MAX]


def _waiter_facts(core: Core, waiter: Waiter, now: float) -> LockOwnerFacts:
    waited = max(now - waiter.since, 0.0) if waiter.since else 0.0
    found = _owner_facts(core, waiter.owner, waiter.mode, now)
    return msgspec.structs.replace(found, waited_seconds=round(waited, 3))


def _owner_facts(core: Core, owner: str, mode: LockMode, now: float) -> LockOwnerFacts:
    held = core.active.get(owner)
    tx: Transaction | None = None if held is None else held()
    if tx is None:
        return LockOwnerFacts(owner, mode.name.lower(), None)
    age = round(max(now - tx.began, 0.0), 3)
    return LockOwnerFacts(owner, mode.name.lower(), age, origin=_place_text(tx.origin))


def _place_text(origin: Origin) -> str:
    _, code, position = origin
    if code is None:
        return ""
    lines = (line for start, end, line in code.co_lines() if start <= position < end)
    return f"{code.co_filename}:{next(lines, None)}"
