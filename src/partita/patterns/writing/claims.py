"""Unique values across partitions: a row of the index is claimed before the entity is written.

    reserve   insert the row of the value in the index, with the entity's key and the key of the
              outbox entry that the write will have (`_Claim`)
    write     the entity and that entry, in one group
    confirm   a worker replaces the claim by the copy of the entity

A second writer finds the row. If its entity has the value, the value is taken. Otherwise the first
writer failed, or is between the steps: the second writer inserts a fence under the key of the first
writer's entry, so that the first group can no longer be committed, and replaces the claim under its
etag. No clock decides this. A fence is removed when no request can be as old as it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import msgspec

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    UniqueViolationError,
)
from partita.patterns.protocol.calls import GetRow, RowOperation, Steps, Verb, WriteRows, ask
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.indexes import AnyIndex, Index
from partita.patterns.types.row_layout import COPY_MARK, GENERATION
from partita.patterns.writing import index_rows
from partita.patterns.writing.context import Context
from partita.patterns.writing.index_rows import Version
from partita.patterns.writing.load import load
from partita.patterns.writing.outbox_entry import fence_operation
from partita.patterns.writing.rows import Stored, marks_of

CLAIM = "_Claim"
"""In a row of a unique index elsewhere: the row key of the outbox entry of the write that claimed
the value. A confirmed copy does not have it."""


class Claim(msgspec.Struct):
    """A value that a write needs, and the row that holds it once it is reserved."""

    index: Index[Any]
    key: RowKey
    """The key of the row in the index."""
    member: RowKey
    """The key of the entity."""
    entity: object
    etag: str = ""


def is_claimed_elsewhere(index: AnyIndex) -> TypeGuard[Index[Any]]:
    """Return whether uniqueness is kept by claims: the index is unique, in another partition."""
    return isinstance(index, Index) and index.is_unique and not index.is_local


def claims_of(context: Context, changes: Sequence[Any]) -> list[Claim]:
    """Return the values that entities get by these changes; raise if two get the same."""
    found: dict[tuple[str, RowKey], Claim] = {}
    for claim in _claims_of(context, changes):
        if found.setdefault((claim.index.table, claim.key), claim) is not claim:
            raise unique_violation(claim.index, claim.key, claim.entity)
    return list(found.values())


def _claims_of(context: Context, changes: Sequence[Any]) -> Iterator[Claim]:
    for change in changes:
        if change.after is None:
            continue
        for index in context.live_indexes(change.model):
            if not is_claimed_elsewhere(index):
                continue
            key = index.key(change.after)
            before = None if change.before is None else index.key(change.before.values)
            if key is not None and key != before:
                yield Claim(index, key, change.key, change.entity)


def reserve(context: Context, claims: Sequence[Claim], entry: RowKey) -> Steps[None]:
    """Reserve values for a write with this outbox entry, or raise UniqueViolationError."""
    for claim in claims:
        while not claim.etag or (yield from _is_lost(claim, entry)):
            claim.etag = ""
            if (yield from _reserve(context, claim, entry)):
                break


def _is_lost(claim: Claim, entry: RowKey) -> Steps[bool]:
    """Renew a claim of an earlier attempt for another entry; return whether it was taken."""
    operation = RowOperation(Verb.REPLACE, _row_of(claim, entry), claim.etag)
    try:
        [claim.etag] = yield from ask(WriteRows(claim.index.table, (operation,)))
    except (EntityNotFoundError, ETagMismatchError):
        return True
    return False


def _reserve(context: Context, claim: Claim, entry: RowKey) -> Steps[bool]:
    """Insert or take over the row of a value; False: it changed, read it again."""
    table, row = claim.index.table, _row_of(claim, entry)
    operation = RowOperation(Verb.INSERT, row)
    there = None
    try:
        [claim.etag] = yield from ask(WriteRows(table, (operation,)))
    except EntityExistsError:
        there = yield from ask(GetRow(table, claim.key))
        if there is None:
            return False
    else:
        return True
    has_value = yield from is_held(context, claim.index, there)
    if has_value and index_rows.member_of(there, is_local=False) != claim.member:
        raise unique_violation(claim.index, claim.key, claim.entity)
    operation = RowOperation(Verb.REPLACE, row, there.etag)
    try:
        [claim.etag] = yield from ask(WriteRows(table, (operation,)))
    except (EntityNotFoundError, ETagMismatchError):
        return False
    return True


def _row_of(claim: Claim, entry: RowKey) -> Row:
    index = claim.index
    marks = marks_of(index.owner, COPY_MARK + index.name)
    member = {
        index_rows.MEMBER_PARTITION: claim.member.partition,
        index_rows.MEMBER_ROW: claim.member.row,
    }
    return Row(claim.key, {**marks, **member, CLAIM: entry.row})


def is_held(context: Context, index: Index[Any], row: Row) -> Steps[bool]:
    """Return whether the entity of a row in the index has the value.

    If not, a claim in the row can no longer succeed afterwards: its outbox entry is fenced, unless
    the claim did succeed and the entity was changed since. The row may be written under its etag.
    """
    member = index_rows.member_of(row, is_local=False)
    if (yield from _has_value(context, index, member, row.key)):
        return True
    entry = row.properties.get(CLAIM)
    if not isinstance(entry, str):
        return False  # a copy whose entity has changed since: no worker has removed it yet
    fence = fence_operation(RowKey(member.partition, entry), context.clock)
    try:
        yield from ask(WriteRows(index.owner.table, (fence,)))
    except EntityExistsError:  # the write was performed after all, or there is a fence already
        return (yield from _has_value(context, index, member, row.key))
    return False


def _has_value(context: Context, index: Index[Any], member: RowKey, key: RowKey) -> Steps[bool]:
    stored = yield from _load(context, index, member)
    return stored is not None and index.key(stored.values) == key


def _load(context: Context, index: Index[Any], member: RowKey) -> Steps[Stored | None]:
    *_, root = index.owner.lineage()
    return (yield from load(context, root, member))


def release(context: Context, claims: Sequence[Claim]) -> Steps[None]:
    """Give back the claims of a write that was refused; one that was taken over is kept.

    If the stored entity has the value, because another write of it succeeded, its copy is written.
    """
    for claim in claims:
        if not claim.etag:
            continue
        operation = RowOperation(Verb.DELETE, Row(claim.key, {}), claim.etag)
        stored = yield from _load(context, claim.index, claim.member)
        if stored is not None and claim.index.key(stored.values) == claim.key:
            generation = stored.origin.system.get(GENERATION, 0)
            version = Version(
                claim.member, stored.values, stored.references(), int(str(generation))
            )
            copy = index_rows.row_of(claim.index, version, context.sealing)
            assert copy is not None
            operation = RowOperation(Verb.REPLACE, copy, claim.etag)
        try:
            yield from ask(WriteRows(claim.index.table, (operation,)))
        except ConflictError:
            continue  # because another writer has taken it over


def unique_violation(index: AnyIndex, key: RowKey, entity: object) -> UniqueViolationError:
    error = UniqueViolationError(
        "UniqueViolation",
        f"Another {index.owner.name} already has this value.",
        facts={"index": index.name, **key.facts},
        hint="Choose another value, or change the other entity first.",
    )
    error.index = index
    error.entity = entity
    return error
