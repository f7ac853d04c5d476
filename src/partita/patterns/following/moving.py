"""Moving an entity to other keys.

Inside a partition a move is one group. Between partitions it is an eventually consistent
transaction, whose intent is stored with the source first:

    1 mark the source and write an outbox entry   (one group)
    2 write the target, marked with its source
    3 delete the source, and record in the entry which target it was moved to   (one group)
    4 remove the mark from the target
    5 delete the entry

A crash leaves the entity at the source, the target or both, never at neither; a worker continues
from any step. Until the move ends, the source has `_MovedTo` and the target has `_MovedFrom`. A
writer that changes either of them completes the move first (`complete_move_of`), so that no change
is lost. A target that is written late, after the move ended, differs from the target in the entry
and is removed.

The outbox of a period table is not swept, so entities in it cannot leave their partition.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
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
from partita.patterns.following.unknown_work import unknown_of
from partita.patterns.protocol.calls import GetRow, RowOperation, Steps, Verb, WriteRows, ask
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.types.decorators import EntityType, Origin
from partita.patterns.types.row_layout import WRITE
from partita.patterns.writing.context import Context, OutboxReference
from partita.patterns.writing.load import fill, load
from partita.patterns.writing.outbox_entry import (
    Entry,
    Move,
    entry_operation,
    followers_of_moved,
    names_in,
    new_key,
    read_entry,
)
from partita.patterns.writing.rows import Stored
from partita.patterns.writing.write import Change, too_many_conflicts, write

MOVED_TO = "_MovedTo"
MOVED_FROM = "_MovedFrom"
ADOPTED = "_Adopted"
"""In the entry: the version of the target for which the source was deleted."""
ROUNDS_MAX = 50


def start_move(
    context: Context, model: EntityType[Any], origin: Origin, target: RowKey
) -> Steps[tuple[OutboxReference, Move]]:
    """Mark the source and record the target in an outbox entry, in one group."""
    if model.table != model.declaration.table:
        raise UsageError(
            "PeriodHasNoOutbox",
            f"A {model.name} in a period table cannot be moved to another partition: workers do "
            "not complete an interrupted move there.",
            facts={"table": model.table, "partition_key": origin.key.partition},
            hint="Save a new entity through db.periods(...), then delete this one.",
        )
    there = yield from ask(GetRow(model.table, target))
    if there is not None:
        raise _target_exists(model, target)
    move = Move(model.name, _pair(origin.key), _pair(target))
    reference = OutboxReference(model.table, new_key(origin.key.partition, context.clock))
    intent = _Intent(target.partition, target.row, reference.key.row)
    mark: dict[str, Value] = {MOVED_TO: msgspec.json.encode(intent).decode()}
    group = WriteRows(
        model.table,
        (
            RowOperation(Verb.MERGE, Row(origin.key, mark), origin.etags[0]),
            entry_operation(
                reference.key, Entry(moves=[move], followers=followers_of_moved(context, model))
            ),
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
    """The mark of a source: the target, and the row key of the outbox entry."""

    partition: str
    row: str
    entry: str

    @property
    def target(self) -> RowKey:
        return RowKey(self.partition, self.row)


class _Descent(msgspec.Struct, frozen=True, array_like=True):
    """The mark of a target: the source, and the version it was made from."""

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
    """Complete a move, from any step at which an earlier attempt stopped.

    The target is read before the source: while the source exists, the move is not complete, and a
    target made from the current source is not written again.
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
                yield from _finish_target(context, model, target, source, entry, made)
            return
        entry = RowKey(source.partition, intent.entry)
        if isinstance(there, EntityExistsError) or (there and _source_of(there) != source):
            yield from _unmark_source(model, stored)
            raise _target_exists(model, target)
        try:
            if there is None or _descent_of(there.origin.extra) != _descent_from(stored):
                made = yield from _write_target(context, stored, there, target)
            else:
                yield from _delete_source(context, stored, there, entry)
        except UniqueViolationError:
            yield from _unmark_source(model, stored)
            raise
        except ConflictError:
            continue  # because the source changed, or another worker does the same
    raise _kept_changing(model, source)


def _delete_source(context: Context, stored: Stored, there: Stored, entry: RowKey) -> Steps[None]:
    noted = Row(entry, {ADOPTED: _identity(there)})
    leaving = Change(stored.model, stored.origin, None)
    yield from write(context, [leaving], beside=[RowOperation(Verb.MERGE, noted)])


def _identity(there: Stored) -> str:
    """Return what identifies a target among those of the same source: its write id, or its etag."""
    writes = there.origin.system.get(WRITE)
    return writes.split()[0] if isinstance(writes, str) and writes else there.origin.etags[0]


def _finish_target(
    context: Context,
    model: EntityType[Any],
    target: RowKey,
    source: RowKey,
    entry: RowKey,
    made: Origin | None,
) -> Steps[None]:
    """Remove the mark from a target whose source is deleted, or remove a late target."""
    noted = yield from ask(GetRow(model.table, entry))
    there = yield from _find_target(context, model, target)
    if not isinstance(there, Stored) or _source_of(there) != source:
        return
    if noted is None:
        # Marks are removed before the entry: a target that still has its mark is late.
        is_late = made is not None and made.etags == there.origin.etags
    else:
        is_late = noted.properties.get(ADOPTED, _identity(there)) != _identity(there)
    if is_late:
        with contextlib.suppress(ConflictError):
            yield from write(context, [Change(there.model, there.origin, None)])
        return
    yield from _unmark_target(model, target, source)


def complete_move_of(context: Context, model: EntityType[Any], origin: Origin) -> Steps[bool]:
    """Complete the move that a loaded entity is part of. True: the entity must be loaded again."""
    if (intent := _intent_of(origin.extra)) is not None:
        yield from _check_known(context, model, origin.key, intent)
        with contextlib.suppress(EntityExistsError, UniqueViolationError):
            # The entity stays at its source without a mark, and must be loaded again in any case.
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
        yield from _check_known(context, model, descent.source, intent)
        yield from finish_move(context, Move(model.name, _pair(descent.source), _pair(origin.key)))
        return True
    origin.extra = unmarked(origin.extra)
    return False


def _check_known(
    context: Context, model: EntityType[Any], source: RowKey, intent: _Intent
) -> Steps[None]:
    """Raise if the move was started by a program with followers that this one does not know."""
    entry = yield from ask(GetRow(model.table, RowKey(source.partition, intent.entry)))
    if entry is None:
        return
    unknown = yield from unknown_of(context, names_in(read_entry(entry)))
    if unknown:
        raise UnavailableError(
            "MovedByNewerProgram",
            f"The {model.name} is being moved by a newer version of this program, which also moves "
            f"what is not declared here: {', '.join(sorted(unknown))}.",
            facts={"table": model.table, **source.facts},
            hint="Try again when a worker of the newer version has completed the move: run "
            "partita patterns worker with it.",
        )


def load_unmoving(context: Context, model: EntityType[Any], key: RowKey) -> Steps[Stored | None]:
    """Read an entity for a change; complete its move first if there is one."""
    while True:
        stored = yield from load(context, model, key)
        if stored is None or not (
            yield from complete_move_of(context, stored.model, stored.origin)
        ):
            return stored


def _unmark_target(model: EntityType[Any], target: RowKey, source: RowKey) -> Steps[None]:
    def is_marked(properties: Mapping[str, Value]) -> bool:
        descent = _descent_of(properties)
        return descent is not None and descent.source == source

    # Only this mark: the target may be in another move already.
    yield from _remove_mark(model, target, MOVED_FROM, is_marked)


def _unmark_source(model: EntityType[Any], stored: Stored) -> Steps[None]:
    mark = stored.origin.extra[MOVED_TO]
    yield from _remove_mark(
        model, stored.origin.key, MOVED_TO, lambda properties: properties.get(MOVED_TO) == mark
    )


def _remove_mark(
    model: EntityType[Any],
    key: RowKey,
    name: str,
    is_marked: Callable[[Mapping[str, Value]], bool],
) -> Steps[None]:
    for _ in range(ROUNDS_MAX):
        row = yield from ask(GetRow(model.table, key))
        if row is None or not is_marked(row.properties):
            return
        kept = Row(row.key, unmarked(row.properties, [name]))
        try:
            yield from ask(WriteRows(model.table, (RowOperation(Verb.REPLACE, kept, row.etag),)))
        except ConflictError:
            continue  # because a derived field in it was written
        return
    raise _kept_changing(model, key)


def _find_target(
    context: Context, model: EntityType[Any], key: RowKey
) -> Steps[Stored | EntityExistsError | None]:
    try:
        return (yield from load(context, model, key))
    except UnknownTypeError:
        return _target_exists(model, key)


def _write_target(
    context: Context, stored: Stored, there: Stored | None, target: RowKey
) -> Steps[Origin | None]:
    """Write the target; return its origin."""
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


def unmarked(
    properties: Mapping[str, Value], marks: Sequence[str] = (MOVED_TO, MOVED_FROM)
) -> dict[str, Value]:
    """Return properties without the marks of a move."""
    return {name: value for name, value in properties.items() if name not in marks}


def _pair(key: RowKey) -> tuple[str, str]:
    return key.partition, key.row


def _kept_changing(model: EntityType[Any], key: RowKey) -> StoreBusyError:
    return too_many_conflicts(
        f"The {model.name} to be moved kept changing; gave up after {ROUNDS_MAX} attempts.",
        facts=key.facts,
    )


def _target_exists(model: EntityType[Any], target: RowKey) -> EntityExistsError:
    return EntityExistsError(
        "EntityAlreadyExists",
        f"Another {model.name} has the target keys.",
        facts=target.facts,
        hint="Delete it first, or move to other keys.",
    )
