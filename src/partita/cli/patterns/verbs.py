"""The verbs of `partita patterns` on stored entities: tables, indexes, keys, blobs, the outbox."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from partita.cli.kit.application import choose_index, choose_models, choose_series, is_series
from partita.cli.kit.commands import Given
from partita.cli.kit.progress import Bar
from partita.cli.patterns.design_facts import Adopted
from partita.cli.patterns.facts import (
    Collected,
    Created,
    Disabled,
    DriftFacts,
    Forgotten,
    IndexesVerified,
    IndexFacts,
    OutboxFacts,
    PatternsStatus,
    Poison,
    PoisonFacts,
    QueueFacts,
    Rebuilt,
    Rotated,
    Worked,
    drift_counts,
    index_facts,
)
from partita.cli.patterns.opening import Session
from partita.cli.patterns.worker import find_hint, message_text, worked_facts
from partita.errors import EncryptionKeyError, TableNotFoundError
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import rotate_keys as rotating
from partita.patterns.following import worker
from partita.patterns.following.index_lifecycle import Drift
from partita.patterns.following.worker import Report
from partita.patterns.protocol.calls import (
    CountMessages,
    CreateQueue,
    DeleteMessage,
    PeekMessages,
    PutMessage,
    ReceiveMessages,
    Steps,
    ask,
)
from partita.patterns.types.decorators import EntityType
from partita.patterns.writing import outbox_entry as outbox
from partita.patterns.writing.context import Context, IndexState
from partita.ticks import TICKS_PER_SECOND

CLAIM_SECONDS = 30.0
"""How long a poison message is claimed while it is put back."""

_SETTLED = (IndexState.READABLE.value, IndexState.DISABLED.value)


# Tables and indexes


async def adopt(session: Session, given: Given) -> Adopted:
    with _progress(given, "rows", given.rows) as progress:
        found = await session.db.adopt(given.table, rows=given.rows, report=progress)
    return Adopted(**msgspec.structs.asdict(found))


async def create(session: Session, _given: Given) -> Created:
    made = await session.db.create_tables()
    return Created(session.place, made, await _indexes(session))


async def _indexes(session: Session) -> list[IndexFacts]:
    found = []
    for index in session.indexes:
        try:
            state = await session.run(lifecycle.read_state(session.context, index))
        except TableNotFoundError:
            state = None
        found.append(index_facts(index, None if state is None else state.value))
    return found


async def rebuild(session: Session, given: Given) -> Rebuilt:
    index = choose_index(given.index, session.application)
    await session.db.create_tables()
    with _progress(given, "entities") as progress:
        count = await session.run(lifecycle.rebuild(session.context, index, progress))
    state = session.context.state_of(index)
    return Rebuilt(index.owner.name, index.name, count, state.value)


async def disable(session: Session, given: Given) -> Disabled:
    index = choose_index(given.index, session.application)
    with _progress(given, "rows") as progress:
        count = await session.run(lifecycle.disable(session.context, index, progress))
    return Disabled(index.owner.name, index.name, count)


async def verify(session: Session, given: Given) -> IndexesVerified:
    models = choose_models(given.targets, session.application)
    await session.read_states()
    entities: dict[str, int] = {}
    drifts: list[DriftFacts] = []
    repaired = left = 0
    for model in models:
        entities[model.name], found = await _verify(session, model, given)
        drifts += [_drift_facts(model, drift) for drift in found]
        if found and given.repair:
            with _progress(given, "repairs") as progress:
                steps = lifecycle.repair(session.context, model, found, progress)
                repaired += await session.run(steps)
            # The outbox entries of repaired derived fields are done before comparing again.
            await session.run(worker.drain(session.context, Report(), with_sweep=False))
            left += len((await _verify(session, model, given))[1])
    is_sound = not left if given.repair else not drifts
    return IndexesVerified(is_sound, entities, drift_counts(drifts), drifts, repaired, left)


async def _verify(
    session: Session, model: EntityType[Any], given: Given
) -> tuple[int, list[Drift]]:
    seen = [0]
    with _progress(given, f"{model.name} entities") as progress:

        def count(done: int) -> None:
            seen[0] = done
            progress(done)

        found = await session.run(lifecycle.verify(session.context, model, count))
    return seen[0], found


def _drift_facts(model: EntityType[Any], drift: Drift) -> DriftFacts:
    return DriftFacts(
        model.name, drift.kind, drift.what, drift.table, drift.key.partition, drift.key.row
    )


# Blobs and keys


async def collect_blobs(session: Session, given: Given) -> Collected:
    found = {
        field.blob.container
        for model in session.models
        for field in model.fields.values()
        if field.blob is not None
    }
    blobs: dict[str, int] = {}
    for container in given.container or sorted(found):
        with _progress(given, "blobs") as progress:
            steps = lifecycle.collect_blobs(session.context, container, progress)
            blobs[container] = await session.run(steps)
    return Collected(blobs)


async def rotate(session: Session, given: Given) -> Rotated:
    keyring = session.context.keyring
    if keyring is None:
        raise EncryptionKeyError(
            "KeyringMissing",
            "Keys cannot be rotated without a keyring.",
            hint="Give --keyring MODULE:NAME, one that holds the old key and the new.",
        )
    rows: dict[str, int] = {}
    series = choose_series(given.targets)
    types = [name for name in given.targets if not is_series(name)]
    for model in choose_models(types, session.application):
        with _progress(given, "rows") as progress:
            rows[model.name] = await session.run(rotating.rotate(session.context, model, progress))
    periods: dict[str, int] = {}
    for each in series:
        with _progress(given, "rows") as progress:
            steps = rotating.rotate_series(session.context, each, progress)
            periods[each.name] = await session.run(steps)
    return Rotated(keyring.current, rows, periods)


# The outbox


async def drain(session: Session, _given: Given) -> Worked:
    await session.read_states()
    report = Report()
    try:
        await session.run(worker.drain(session.context, report))
    except Exception:
        if not report.troubles:
            raise
        # The failures are in the report, with the reasons.
    return worked_facts(report)


async def sweep(session: Session, given: Given) -> Worked:
    await session.read_states()
    report = Report()
    await session.run(worker.sweep(session.context, report, age=given.age))
    return worked_facts(report)


async def forget(session: Session, given: Given) -> Forgotten:
    count = await session.run(worker.forget(session.context, given.name))
    return Forgotten(sorted(given.name), count)


async def status(session: Session, given: Given) -> PatternsStatus:
    context = session.context
    indexes = await _indexes(session)
    tables = worker.outbox_tables(context)
    waiting = [await _waiting(session, table, is_read=not given.quick) for table in tables]
    queues, poison = [], None
    if context.capabilities.has_queues:
        queues = [await _queue_facts(session, name) for name in context.options.queues]
        poison = await _queue_facts(session, context.options.poison_queue)
    ages = [each.oldest_seconds for each in waiting if each.oldest_seconds is not None]
    is_healthy = (
        all(each.state in _SETTLED for each in indexes)
        and max(ages, default=0.0) <= given.late
        and not (poison is not None and poison.messages)
    )
    return PatternsStatus(session.place, is_healthy, indexes, waiting, queues, poison, given.late)


async def _waiting(session: Session, table: str, *, is_read: bool) -> OutboxFacts:
    if not is_read:
        return OutboxFacts(table, None, None, {})
    entries = await session.run(worker.entry_rows(table))
    if not entries:
        return OutboxFacts(table, 0, None, {})
    oldest = min(outbox.written_at(entry.key) for entry in entries)
    age = (session.context.clock.ticks() - oldest) / TICKS_PER_SECOND
    unknown = await session.run(worker.count_unknown(session.context, entries))
    return OutboxFacts(table, len(entries), round(max(age, 0.0), 1), unknown)


async def _queue_facts(session: Session, queue: str) -> QueueFacts:
    return QueueFacts(queue, await session.run(ask(CountMessages(queue))))


# Poison


class _Poisoned(msgspec.Struct):
    """A message of the poison queue, as the worker writes it."""

    text: str
    deliveries: int
    reason: str
    is_cut: bool = False


async def poison(session: Session, given: Given) -> Poison:
    """Read work that failed too often, or put it back on the queues."""
    context = session.context
    context.capabilities.require_queues("The poison queue")
    queue = context.options.poison_queue
    retried = await session.run(_retry(context)) if given.retry else 0
    messages = await session.run(ask(PeekMessages(queue)))
    count = await session.run(ask(CountMessages(queue)))
    return Poison(queue, [_poison_facts(each.text) for each in messages], count or 0, retried)


def _poison_facts(text: str) -> PoisonFacts:
    found = _read_poison(text)
    if found is None:
        return PoisonFacts(message_text(text), None, "")
    return PoisonFacts(message_text(found.text), found.deliveries, found.reason)


def _read_poison(text: str) -> _Poisoned | None:
    try:
        return msgspec.json.decode(text, type=_Poisoned)
    except msgspec.DecodeError:
        return None


def _retry(context: Context) -> Steps[int]:
    """Put the present messages back; foreign and truncated messages stay."""
    queue, count = context.options.poison_queue, 0
    there = (yield from ask(CountMessages(queue))) or 0
    for _ in range(there):
        received = yield from ask(ReceiveMessages(queue, 1, CLAIM_SECONDS))
        if not received:
            break
        found = _read_poison(received[0].text)
        if found is not None and not found.is_cut:
            back = context.queue_of(_partition_of(found.text))
            yield from ask(CreateQueue(back))
            yield from ask(PutMessage(back, found.text))
            yield from ask(DeleteMessage(queue, received[0]))
            count += 1
    return count


def _partition_of(text: str) -> str:
    """Return the partition that determines the queue of a message."""
    reference = find_hint(text)
    return text if reference is None else reference.key.partition


# Progress


@contextmanager
def _progress(
    given: Given, unit: str, total: int | None = None
) -> Iterator[Callable[[int], object]]:
    """Draw a count; its end is usually not known."""
    with Bar(given.verb, is_hidden=given.json or given.quiet) as bar:
        bar.begin(total, unit)
        yield bar.update
