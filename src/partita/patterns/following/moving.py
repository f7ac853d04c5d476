"""Moving an entity to other keys.

Inside a partition it is one group. Between partitions it is an eventually consistent
transaction, whose intent is stored with the source first:

    1 the source is marked and an outbox entry written   (one group)
    2 the target is written, marked with its source
    3 the source is deleted, and the entry told which target that was done for   (one group)
    4 the mark is taken off the target
    5 the entry is deleted

A crash leaves the entity in one place or in both, never in neither; a worker goes on from
wherever it was. Who reads in between finds `_MovedTo` in the source and `_MovedFrom` in the
target. Who would change either of them finishes the move first (`come_to_rest`): else a change
of one place would be lost to the other. A target that is written late, when all is over and it
may have been moved on or deleted, is another one than the entry was told of, and is removed.

The table of a period has no outbox that anybody sweeps: there, entities stay in their partition.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import (
    ConflictError,
    EntityExistsError,
    StoreBusyError,
    UnavailableError,
    UniqueViolationError,
    UnknownTypeError,
    UsageError,
)
from partita.patterns.following.bring_up_to_date import model_of
from partita.patterns.protocol.calls import GetRow, RowOperation, Steps, Verb, WriteRows, ask
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.decorators import EntityType, Origin
from partita.patterns.types.row_layout import WRITE
from partita.patterns.writing.context import Context, OutboxReference
from partita.patterns.writing.load import fill, load
from partita.patterns.writing.outbox_entry import Entry, Move, entry_operation, new_key
from partita.patterns.writing.rows import Stored
from partita.patterns.writing.write import Change, write

MOVED_TO = "_MovedTo"
MOVED_FROM = "_MovedFrom"
ADOPTED = "_Adopted"
"""In the entry: for which version of the target the source was deleted."""
ROUNDS_MAX = 50


def start_move(
    context: Context, model: EntityType[Any], origin: Origin, target: RowKey
) -> Steps[tuple[OutboxReference, Move]]:
    """Mark the source and write down where it shall go, in one group."""
    if model.table != model.declaration.table:
        raise UsageError(
            "PeriodHasNoOutbox",
            f"A {model.name} in the table of a period cannot be moved to another partition: no "
            "worker looks there for a move that was stopped half-way.",
            facts={"table": model.table, "partition_key": origin.key.partition},
            hint="Save it as a new one through db.periods(...), then delete this one.",
        )
    there = yield from ask(GetRow(model.table, target))
    if there is not None:
        raise _taken(model, target)
    move = Move(model.name, _pair(origin.key), _pair(target))
    reference = OutboxReference(model.table, new_key(origin.key.partition, context.clock))
    intent = _Intent(target.partition, target.row, reference.key.row)
    mark: dict[str, Value] = {MOVED_TO: msgspec.json.encode(intent).decode()}
    group = WriteRows(
        model.table,
        (
            RowOperation(Verb.MERGE, Row(origin.key, mark), origin.etags[0]),
            entry_operation(reference.key, Entry(moves=[move])),
        ),
    )
    try:
        yield from ask(group)
    except (ConflictError, UnavailableError) as error:
        is_in_doubt = isinstance(error, UnavailableError) or "answer_lost" in error.facts
        entry = (yield from ask(GetRow(model.table, reference.key))) if is_in_doubt else None
        if entry is None:
            raise
    context.remember(reference)
    return reference, move


class _Intent(msgspec.Struct, frozen=True, array_like=True):
    """The mark of a source: where it shall go, and which outbox entry says so."""

    partition: str
    row: str
    entry: str

    @property
    def target(self) -> RowKey:
        return RowKey(self.partition, self.row)


class _Descent(msgspec.Struct, frozen=True, array_like=True):
    """The mark of a target: from which version of which source it was made."""

    partition: str
    row: str
    etags: tuple[str, ...]

    @property
    def source(self) -> RowKey:
        return RowKey(self.partition, self.row)


def _intent_of(properties: Mapping[str, Value]) -> _Intent | None:
    mark = properties.get(MOVED_TO)
    return None if mark is None else msgspec.json.decode(str(mark), type=_Intent)


def _descent_of(properties: Mapping[str, Value]) -> _Descent | None:
    mark = properties.get(MOVED_FROM)
    return None if mark is None else msgspec.json.decode(str(mark), type=_Descent)


def finish_move(
    context: Context, move: Move, reference: OutboxReference | None = None
) -> Steps[None]:
    """Carry a marked entity to its target, from wherever an earlier try stopped.

    The target is read before the source: as long as the source is there, nobody has finished,
    and a target that was made from this very version of it is not written again.
    """
    model = model_of(context, move.type)
    source, target = RowKey(*move.source), RowKey(*move.target)
    entry = None if reference is None else reference.key
    made: Origin | None = None
    for _ in range(ROUNDS_MAX):
        there = yield from _find_target(context, model, target)
        stored = yield from load(context, model, source)
        intent = None if stored is None else _intent_of(stored.origin.extra)
        if stored is None or intent is None or intent.target != target:
            if entry is not None:
                yield from _settle_target(context, model, target, source, entry, made)
            return
        entry = RowKey(source.partition, intent.entry)
        if isinstance(there, EntityExistsError) or (there and _source_of(there) != source):
            yield from _give_up(model, stored)
            raise _taken(model, target)
        try:
            if there is None or _descent_of(there.origin.extra) != _descent_from(stored):
                made = yield from _write_target(context, stored, there, target)
            else:
                yield from _delete_source(context, stored, there, entry)
        except UniqueViolationError:
            yield from _give_up(model, stored)
            raise
        except ConflictError:
            continue  # because the source was changed, or another worker is as far
    raise _restless(model, source)


def _delete_source(context: Context, stored: Stored, there: Stored, entry: RowKey) -> Steps[None]:
    told = Row(entry, {ADOPTED: _identity(there)})
    leaving = Change(stored.model, stored.origin, None)
    yield from write(context, [leaving], beside=[RowOperation(Verb.MERGE, told)])


def _identity(there: Stored) -> str:
    """Tell a target from another one of the same source: by who wrote it, or else by its etag."""
    writes = there.origin.system.get(WRITE)
    return writes.split()[0] if isinstance(writes, str) and writes else there.origin.etags[0]


def _settle_target(
    context: Context,
    model: EntityType[Any],
    target: RowKey,
    source: RowKey,
    entry: RowKey,
    made: Origin | None,
) -> Steps[None]:
    """Take the mark off a target whose source is gone, or remove one that came too late."""
    told = yield from ask(GetRow(model.table, entry))
    there = yield from _find_target(context, model, target)
    if not isinstance(there, Stored) or _source_of(there) != source:
        return
    if told is None:
        # Marks are taken before the entry goes: one that still has its own is nobody's.
        is_late = made is not None and made.etags == there.origin.etags
    else:
        is_late = told.properties.get(ADOPTED, _identity(there)) != _identity(there)
    if is_late:
        with contextlib.suppress(ConflictError):
            yield from write(context, [Change(there.model, there.origin, None)])
        return
    yield from _take_mark(model, target, source)


def come_to_rest(context: Context, model: EntityType[Any], origin: Origin) -> Steps[bool]:
    """Finish the move that a loaded entity is in the middle of. True: it must be loaded again."""
    if (intent := _intent_of(origin.extra)) is not None:
        with contextlib.suppress(EntityExistsError, UniqueViolationError):
            # It stays where it is, without the mark: to be loaded again all the same.
            yield from finish_move(
                context, Move(model.name, _pair(origin.key), _pair(intent.target))
            )
        return True
    descent = _descent_of(origin.extra)
    if descent is None:
        return False
    source = yield from ask(GetRow(model.table, descent.source, (MOVED_TO,)))
    intent = None if source is None else _intent_of(source.properties)
    if intent is not None and intent.target == origin.key:
        yield from finish_move(context, Move(model.name, _pair(descent.source), _pair(origin.key)))
        return True
    origin.extra = unmarked(origin.extra)
    return False


def load_at_rest(context: Context, model: EntityType[Any], key: RowKey) -> Steps[Stored | None]:
    """Read an entity that is to be changed: one that is being moved is moved first."""
    while True:
        stored = yield from load(context, model, key)
        if stored is None or not (yield from come_to_rest(context, stored.model, stored.origin)):
            return stored


def _take_mark(model: EntityType[Any], target: RowKey, source: RowKey) -> Steps[None]:
    """Let a target be an entity like any other."""
    for _ in range(ROUNDS_MAX):
        row = yield from ask(GetRow(model.table, target))
        descent = None if row is None else _descent_of(row.properties)
        if row is None or descent is None or descent.source != source:
            return
        kept = unmarked(row.properties, [MOVED_FROM])  # it may be on its way again
        operation = RowOperation(Verb.REPLACE, Row(row.key, kept), row.etag)
        try:
            yield from ask(WriteRows(model.table, (operation,)))
        except ConflictError:
            continue  # because a counter in it was written
        return
    raise _restless(model, target)


def _find_target(
    context: Context, model: EntityType[Any], key: RowKey
) -> Steps[Stored | EntityExistsError | None]:
    try:
        return (yield from load(context, model, key))
    except UnknownTypeError:
        return _taken(model, key)


def _write_target(
    context: Context, stored: Stored, there: Stored | None, target: RowKey
) -> Steps[Origin | None]:
    """Write the target; return how it is stored."""
    model = stored.model
    values = yield from fill(stored)
    values.update(model.partition.parse(target.partition))
    values.update(model.row.parse(target.row))
    mark = msgspec.json.encode(_descent_from(stored)).decode()
    change = Change(
        model,
        None if there is None else there.origin,
        values,
        extra={**unmarked(stored.origin.extra), MOVED_FROM: mark},
        sealed=stored.origin.sealed,
        number_types=stored.origin.number_types,
    )
    [written] = yield from write(context, [change])
    return written.origin


def _descent_from(stored: Stored) -> _Descent:
    key = stored.origin.key
    return _Descent(key.partition, key.row, stored.origin.etags)


def _source_of(there: Stored) -> RowKey | None:
    descent = _descent_of(there.origin.extra)
    return None if descent is None else descent.source


def _give_up(model: EntityType[Any], stored: Stored) -> Steps[None]:
    """Take the mark off a source whose target belongs to another entity."""
    mark = stored.origin.extra[MOVED_TO]
    for _ in range(ROUNDS_MAX):
        row = yield from ask(GetRow(model.table, stored.origin.key))
        if row is None or row.properties.get(MOVED_TO) != mark:
            return
        kept = unmarked(row.properties, [MOVED_TO])
        restored = RowOperation(Verb.REPLACE, Row(row.key, kept), row.etag)
        try:
            yield from ask(WriteRows(model.table, (restored,)))
        except ConflictError:
            continue  # because a counter in it was written
        return
    raise _restless(model, stored.origin.key)


def unmarked(
    properties: Mapping[str, Value], marks: Sequence[str] = (MOVED_TO, MOVED_FROM)
) -> dict[str, Value]:
    """Return properties without the marks of a move."""
    return {name: value for name, value in properties.items() if name not in marks}


def _pair(key: RowKey) -> tuple[str, str]:
    return key.partition, key.row


def _restless(model: EntityType[Any], key: RowKey) -> StoreBusyError:
    return StoreBusyError(
        "TooManyConflicts",
        f"The {model.name} to be moved did not stand still.",
        facts={"partition_key": key.partition, "row_key": key.row},
    )


def _taken(model: EntityType[Any], target: RowKey) -> EntityExistsError:
    return EntityExistsError(
        "EntityAlreadyExists",
        f"Under the target's keys there is another {model.name}.",
        facts={"partition_key": target.partition, "row_key": target.row},
        hint="Delete it first, or move to other keys.",
    )
