"""The worker: processes hints and started transactions from queues, and sweeps for lost hints.

A message is deleted after its work is done, and its claim is renewed while the work is in progress.
Work that keeps failing is moved to the poison queue with the reason. All work may be done twice.

Each message has its own outcome. `work` claims a message immediately before it is processed, so
that the delivery count of a message is the number of attempts, even if the process ends.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from partita.errors import (
    DamageError,
    EntityExistsError,
    NewerVersionError,
    PartitaError,
    QueueNotFoundError,
    TableNotFoundError,
    UniqueViolationError,
    UnknownTypeError,
    UsageError,
)
from partita.patterns.following.bring_up_to_date import settle
from partita.patterns.following.eventual_transactions import Started, find_transaction
from partita.patterns.following.moving import finish_move
from partita.patterns.following.unknown_work import unknown_names, unknown_of
from partita.patterns.protocol.calls import (
    Beside,
    CreateQueue,
    DeleteMessage,
    GetRow,
    Invoke,
    Message,
    PutMessage,
    QueryRows,
    ReceiveMessages,
    RenewMessage,
    RowOperation,
    Sleep,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import Row
from partita.patterns.types.row_layout import SWEPT_KEY
from partita.patterns.writing import outbox_entry
from partita.patterns.writing.context import Context, OutboxReference
from partita.patterns.writing.load import read_all_rows
from partita.patterns.writing.write import put_message
from partita.queues.limits import MESSAGE_BYTES_MAX
from partita.ticks import TICKS_PER_SECOND

RENEWAL_WAIT_SECONDS = 0.01
"""The interval at which a finished message waits for the answer to its renewal."""
RECEIVED_MAX = 16
"""The most messages of one queue that `work` processes, one after the other."""
TROUBLES_MAX = 100
"""The failures that a long report keeps."""
PAUSE_SECONDS_MAX = 30.0
"""The longest pause after a service that does not answer."""
HINT_SECONDS_MAX = 3600.0
"""The longest delay of the hint of an entry that was left to a newer program."""
STARTED_SECONDS_MAX = 7 * 86_400.0
"""How long a started transaction is left to a newer program before it is poison."""
REASON_CHARACTERS_MAX = 2048
CUT_CHARACTERS = MESSAGE_BYTES_MAX // 8
"""Characters that are kept of a poison message that is too long to add its reason. In JSON a
character takes at most six bytes."""

_SWEPT_BEFORE = "Before"
_LEFT = (UnknownTypeError, NewerVersionError)
"""These errors mean that a newer program wrote an entry or a message, and can process it."""


class Pace(msgspec.Struct, frozen=True):
    """How much the workers of a process do at a time, and how often they look for work."""

    tasks: int = 4
    poll: float = 0.5
    """Seconds that a worker waits after it found nothing."""
    sweep_every: float = 60.0
    """Seconds between two sweeps; 0 is never."""

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.poll <= 0 or self.sweep_every < 0:
            raise UsageError(
                "OptionRefused",
                "A worker needs at least one task, and a poll of more than 0 seconds.",
                hint="Use db.worker(tasks=4).",
            )


class Trouble(msgspec.Struct, frozen=True):
    """Work that failed: it is retried, left to a newer program, or moved to the poison queue."""

    queue: str
    """Empty for an outbox entry that a sweep found."""
    text: str
    """The message, or a hint of the entry."""
    deliveries: int
    is_poison: bool
    error: Exception
    is_left: bool = False
    """Skipped: it needs a newer version of this program."""

    @property
    def reason(self) -> str:
        """The error with its code or class."""
        error = self.error
        return str(error) if isinstance(error, PartitaError) else f"{type(error).__name__}: {error}"


class Report(msgspec.Struct):
    """What a worker did."""

    entries: int = 0
    transactions: int = 0
    failures: int = 0
    poisoned: int = 0
    troubles: list[Trouble] = []
    left: int = 0
    """Entries and messages that were skipped: they need a newer version of this program."""

    @property
    def is_idle(self) -> bool:
        done = self.entries or self.transactions
        return not (done or self.failures or self.poisoned or self.left)


def do_entry(context: Context, reference: OutboxReference) -> Steps[bool]:
    """Do the work of an outbox entry, then remove the entry. False: it was done before.

    Work that this program does not know stays in the entry, and UnknownTypeError is raised. A part
    that fails stays in the entry and does not prevent the other parts.
    """
    row = yield from ask(GetRow(reference.table, reference.key))
    if row is None or outbox_entry.is_fence(row, context.clock):
        context.forget(reference)
        return False
    whole = outbox_entry.read_entry(row)
    unknown = yield from unknown_of(context, outbox_entry.names_in(whole))
    entry = outbox_entry.without(whole, unknown) if unknown else whole
    rest = outbox_entry.only(whole, unknown) if unknown else outbox_entry.Entry()
    errors: list[Exception] = []
    for part, steps in _parts_of(context, reference, entry):
        try:
            yield from steps
        except Exception as error:  # noqa: BLE001 - users' functions raise anything
            errors.append(error)
            rest = outbox_entry.joined(rest, part)
    if errors:
        if rest != whole and not rest.moves:  # a move keeps notes in the entry
            yield from outbox_entry.entry_shortening(reference.table, row, rest)
        raise errors[0]
    if unknown:
        if not entry.is_empty:  # else nothing was done
            yield from outbox_entry.entry_shortening(reference.table, row, rest)
        raise unknown_names(reference, unknown)
    yield from outbox_entry.entry_removal(reference)
    context.forget(reference)
    return True


def _parts_of(
    context: Context, reference: OutboxReference, entry: outbox_entry.Entry
) -> Iterator[tuple[outbox_entry.Entry, Steps[None]]]:
    followers = entry.followers
    for touched in entry.touched:
        yield outbox_entry.Entry([touched], followers=followers), settle(context, touched)
    for move in entry.moves:
        part = outbox_entry.Entry(moves=[move], followers=followers)
        yield part, _move(context, move, reference)
    for step in entry.started:
        started = Started(step.transaction, step.arguments)
        yield outbox_entry.Entry(started=[step]), do_transaction(context, started)


def _move(context: Context, move: outbox_entry.Move, reference: OutboxReference) -> Steps[None]:
    with contextlib.suppress(EntityExistsError, UniqueViolationError):
        # The target exists: the entity stays at its source, without a mark.
        yield from finish_move(context, move, reference)


def do_transaction(context: Context, started: Started) -> Steps[None]:
    """Run all steps of an eventually consistent transaction in order."""
    transaction = find_transaction(context, started.transaction)
    arguments = _arguments_of(started)
    for step in transaction.steps:
        yield from ask(Invoke(step, (context.database, arguments)))


def _arguments_of(started: Started) -> dict[str, Any]:
    try:
        return decode(started.arguments, dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(
            "MessageNotUnderstood",
            f"The arguments of {started.transaction!r} cannot be read.",
            hint="Start transactions with db.start() or group.start().",
        ) from error


# ---------------------------------------------------------------------------------------------
# Messages


def work(context: Context, queue: str, report: Report, count: int = RECEIVED_MAX) -> Steps[int]:
    """Process up to `count` messages of one queue; return how many there were.

    Errors of the application are raised after the last message.
    """
    start = len(report.troubles)
    taken = yield from _take(context, queue, report, count)
    _raise_application_error(report, start)
    return taken


def work_queues(context: Context, queues: Sequence[str], report: Report) -> Steps[None]:
    """Process messages of several queues, as `work` does for one."""
    start = len(report.troubles)
    for queue in queues:
        yield from _take(context, queue, report, RECEIVED_MAX)
    _raise_application_error(report, start)


def work_turn(context: Context, pace: Pace, report: Report) -> Steps[float]:
    """Process waiting messages for a worker in this process; return when to look again.

    Failures are in the report: the message is retried, or was moved to the poison queue.
    """
    done = report.entries + report.transactions
    if context.capabilities.has_queues:
        for queue in context.options.queues:
            yield from _take(context, queue, report, RECEIVED_MAX)
    else:
        yield from _do_all(context, list(context.pending), report)
    del report.troubles[:-TROUBLES_MAX]
    return 0.0 if report.entries + report.transactions > done else pace.poll


def sweep_turn(context: Context, pace: Pace, report: Report) -> Steps[float]:
    """Sweep for a worker in this process; return when to sweep again."""
    yield from sweep(context, report, unless_within=pace.sweep_every)
    return pace.sweep_every


def wait_for(context: Context, entries: Collection[OutboxReference], report: Report) -> Steps[None]:
    """Wait until entries of this process are done, or fail."""
    while True:
        failed = {trouble.text for trouble in report.troubles}
        left = [
            each
            for each in entries
            if each in context.pending and outbox_entry.hint(each) not in failed
        ]
        if not left:
            return
        yield from ask(Sleep(RENEWAL_WAIT_SECONDS))


def _take(context: Context, queue: str, report: Report, count: int) -> Steps[int]:
    """Claim messages one at a time, and process each before the next is claimed."""
    for taken in range(count):
        messages = yield from receive(context, queue, 1)
        if not messages:
            return taken
        yield from do_messages(context, queue, messages, report)
    return count


def _raise_application_error(report: Report, start: int) -> None:
    """Raise the first error of the application's functions that will be retried."""
    for trouble in report.troubles[start:]:
        if not trouble.is_poison and not isinstance(trouble.error, PartitaError):
            raise trouble.error


def receive(context: Context, queue: str, count: int) -> Steps[tuple[Message, ...]]:
    """Claim messages of a queue; create the queue if it does not exist."""
    try:
        return (yield from ask(ReceiveMessages(queue, count, context.options.visibility)))
    except QueueNotFoundError:
        yield from ask(CreateQueue(queue))
        return ()


def do_messages(
    context: Context, queue: str, messages: Sequence[Message], report: Report
) -> Steps[None]:
    """Process claimed messages in turn, and record failures in the report.

    The claims of waiting messages are renewed as well.
    """
    claims = _Claims({message.id: message for message in messages})
    if claims.held:
        doing = _do_held(context, queue, claims, report)
        yield from ask(Beside(doing, _renew_claims(context, queue, claims)))


class _Claims(msgspec.Struct):
    """The claimed messages of a worker: one task processes them, another renews the claims."""

    held: dict[str, Message]
    """The messages still to be processed, by id, with the newest receipts."""
    renewing: set[str] = set()
    """Messages whose renewal was sent and not answered: the valid receipt is unknown."""
    renewed: dict[str, Message] = {}
    """The newest receipts, including those of finished messages."""


def _do_held(context: Context, queue: str, claims: _Claims, report: Report) -> Steps[None]:
    held = claims.held
    for name in list(held):
        message = held.get(name)
        if message is None:
            continue  # because its claim was lost while it waited: another worker processes it
        try:
            if (yield from _is_finished(context, queue, message, report)):
                yield from _delete(queue, message, claims)
        except Exception as error:  # noqa: BLE001 - not deleted: it is delivered again
            _note(context, report, _trouble_of(queue, message, error))
        held.pop(name, None)


def _is_finished(context: Context, queue: str, message: Message, report: Report) -> Steps[bool]:
    """Process one message. False: it failed, and is delivered again when its claim ends."""
    try:
        _check_deliveries(context, message)
        yield from _do_text(context, queue, message, report)
    except Exception as error:  # noqa: BLE001 - users' functions raise anything
        is_last = message.dequeue_count >= context.options.deliveries_max
        trouble = _trouble_of(queue, message, error, is_poison=is_last)
        _note(context, report, trouble)
        if not is_last:
            return False
        yield from _poison(context, message, trouble.reason)
        _note_poison(context, report)
    return True


def _delete(queue: str, message: Message, claims: _Claims) -> Steps[None]:
    claims.held.pop(message.id, None)
    while message.id in claims.renewing:
        yield from ask(Sleep(RENEWAL_WAIT_SECONDS))
    yield from ask(DeleteMessage(queue, claims.renewed.get(message.id, message)))


def _trouble_of(
    queue: str,
    message: Message,
    error: Exception,
    *,
    is_poison: bool = False,
    is_left: bool = False,
) -> Trouble:
    return Trouble(queue, message.text, message.dequeue_count, is_poison, error, is_left)


def _note(context: Context, report: Report, trouble: Trouble) -> None:
    for counted in (report, context.work):
        if trouble.is_left:
            counted.left += 1
        else:
            counted.failures += 1
    report.troubles.append(trouble)


def _note_entry(context: Context, report: Report) -> None:
    report.entries += 1
    context.work.entries += 1


def _note_poison(context: Context, report: Report) -> None:
    report.poisoned += 1
    context.work.poisoned += 1


def _check_deliveries(context: Context, message: Message) -> None:
    if message.dequeue_count > context.options.deliveries_max:
        raise UsageError(
            "DeliveriesExceeded",
            "The message was delivered more often than allowed and never finished.",
            facts={"taken": message.dequeue_count},
        )


def _do_text(context: Context, queue: str, message: Message, report: Report) -> Steps[None]:
    started = _started(message.text)
    if started is not None:
        try:
            yield from do_transaction(context, started)
        except _LEFT as error:
            yield from _leave_started(context, queue, message, started, error, report)
            return
        report.transactions += 1
        context.work.transactions += 1
        return
    try:
        reference = outbox_entry.read_hint(message.text)
    except msgspec.DecodeError as error:
        raise UsageError(
            "MessageNotUnderstood",
            "The message is neither an outbox hint nor a started transaction.",
            hint="Use this queue for nothing else.",
        ) from error
    try:
        if (yield from do_entry(context, reference)):
            _note_entry(context, report)
    except _LEFT as error:
        # Put the new hint before the message is deleted. Its deliveries are not counted: the entry
        # is not poison to a newer program.
        yield from ask(PutMessage(queue, message.text, _hint_delay(context, reference)))
        _note(context, report, _trouble_of(queue, message, error, is_left=True))


def _leave_started(
    context: Context,
    queue: str,
    message: Message,
    started: Started,
    error: UnknownTypeError | NewerVersionError,
    report: Report,
) -> Steps[None]:
    """Put a message back for a newer program; after `STARTED_SECONDS_MAX` it is poison.

    The message is put anew, so that its deliveries are not counted.
    """
    since = started.waiting_since or context.clock.ticks()
    waited = _seconds_since(context, since)
    if waited >= STARTED_SECONDS_MAX:
        error.message += f" It waited {waited / 86_400:.0f} days for a worker that can run it."
        trouble = _trouble_of(queue, message, error, is_poison=True)
        # Without the time, so that it waits again if an operator puts it back.
        text = _started_text(msgspec.structs.replace(started, waiting_since=0))
        yield from _poison(context, msgspec.structs.replace(message, text=text), trouble.reason)
        _note(context, report, trouble)
        _note_poison(context, report)
        return
    text = _started_text(msgspec.structs.replace(started, waiting_since=since))
    if len(text.encode()) > MESSAGE_BYTES_MAX:
        text = message.text  # without the time it fits, and waits without a limit
    yield from ask(PutMessage(queue, text, _delay_after(context, waited)))
    _note(context, report, _trouble_of(queue, message, error, is_left=True))


def _started_text(started: Started) -> str:
    return msgspec.json.encode(started).decode()


def _hint_delay(context: Context, reference: OutboxReference) -> float:
    """Return the delay before the next attempt to process an entry."""
    return _delay_after(context, _seconds_since(context, outbox_entry.written_at(reference.key)))


def _delay_after(context: Context, waited: float) -> float:
    """Return the next delay of what has waited for a time: as long again, so that it doubles."""
    return min(max(waited, context.options.visibility), HINT_SECONDS_MAX)


def _seconds_since(context: Context, ticks: int) -> float:
    """Return the seconds since a moment; 0 for one in the future."""
    return max(context.clock.ticks() - ticks, 0) / TICKS_PER_SECOND


def _started(text: str) -> Started | None:
    try:
        return decode(text, Started)
    except msgspec.DecodeError:
        return None


def _renew_claims(context: Context, queue: str, claims: _Claims) -> Steps[None]:
    """Renew the claims of messages until they are lost or finished."""
    while True:
        yield from ask(Sleep(context.options.visibility / 2))
        for name in list(claims.held):
            # Mark it before reading `held`: a thread that removes the message must see the renewal.
            claims.renewing.add(name)
            try:
                yield from _renew(context, queue, claims, name)
            finally:
                claims.renewing.discard(name)


def _renew(context: Context, queue: str, claims: _Claims, name: str) -> Steps[None]:
    message = claims.held.get(name)
    if message is None:
        return
    renewed = yield from ask(RenewMessage(queue, message, context.options.visibility))
    if renewed is None:
        claims.held.pop(name, None)
        return
    claims.renewed[name] = renewed
    if name in claims.held:  # else it was finished during the renewal
        claims.held[name] = renewed


def _poison(context: Context, message: Message, reason: str) -> Steps[None]:
    described: dict[str, object] = {
        "text": message.text,
        "deliveries": message.dequeue_count,
        "reason": reason[:REASON_CHARACTERS_MAX],
    }
    text = msgspec.json.encode(described)
    if len(text) > MESSAGE_BYTES_MAX:
        # The queue would refuse it and it would be delivered again: store a part of it instead.
        text = msgspec.json.encode(
            described | {"text": message.text[:CUT_CHARACTERS], "is_cut": True}
        )
    yield from put_message(PutMessage(context.options.poison_queue, text.decode()))


# ---------------------------------------------------------------------------------------------
# Sweeping and draining


def outbox_tables(context: Context) -> list[str]:
    """Return the tables that may hold outbox entries."""
    return sorted({model.table for model in context.models.values()})


def find_entries(table: str, *, before: int | None = None) -> Steps[list[OutboxReference]]:
    """List the outbox entries of a table that were written before a tick. Scans the table."""
    rows = yield from entry_rows(table, before=before, select=("PartitionKey", "RowKey"))
    return [OutboxReference(table, row.key) for row in rows]


def entry_rows(
    table: str, *, before: int | None = None, select: tuple[str, ...] | None = None
) -> Steps[list[Row]]:
    """Read the outbox entries of a table that were written before a tick."""
    end = outbox_entry.OUTBOX_END if before is None else outbox_entry.first_at(before)
    query = QueryRows(
        table, f"RowKey ge '{outbox_entry.OUTBOX_PREFIX}' and RowKey lt '{end}'", select
    )
    try:
        return (yield from read_all_rows(query))
    except TableNotFoundError:
        return []


def count_unknown(context: Context, rows: Sequence[Row]) -> Steps[dict[str, int]]:
    """Return the names in entries that this program does not know, with the number of entries."""
    named: list[frozenset[str]] = []
    for row in rows:
        with contextlib.suppress(DamageError, UnknownTypeError):  # a worker reports it
            named.append(outbox_entry.names_in(outbox_entry.read_entry(row)))
    unknown = yield from unknown_of(context, frozenset[str]().union(*named))
    return {name: sum(name in names for names in named) for name in sorted(unknown)}


def forget(context: Context, names: Collection[str]) -> Steps[int]:
    """Remove unknown names from all waiting entries; return how many entries had them.

    The caller knows that they are not declared any more, not even by a newer program.
    """
    done = 0
    for table in outbox_tables(context):
        for row in (yield from entry_rows(table)):
            with contextlib.suppress(DamageError, UnknownTypeError):
                done += yield from _forget_in(context, table, row, frozenset(names))
    return done


def _forget_in(context: Context, table: str, row: Row, names: frozenset[str]) -> Steps[bool]:
    """Remove names from one entry in its current form: a worker may have shortened it."""
    found: Row | None = row
    while found is not None:
        entry = outbox_entry.read_entry(found)
        gone = yield from unknown_of(context, outbox_entry.names_in(entry) & names)
        if not gone:
            return False
        if (
            yield from outbox_entry.entry_shortening(
                table, found, outbox_entry.forgotten(entry, gone)
            )
        ):
            return True
        found = yield from ask(GetRow(table, row.key))
    return False


def sweep(
    context: Context, report: Report, *, age: float = 60.0, unless_within: float = 0.0
) -> Steps[None]:
    """Process every outbox entry that is older than `age` seconds, because hints may be lost.

    An entry that fails is reported and left for the next sweep, so that it does not block later
    entries. A table is skipped if another worker swept it without failures within the last
    `unless_within` seconds: many workers then cost the scans of one. All tables are swept, because
    moves and transactions also exist for types without followers.
    """
    before = context.clock.ticks() - round(age * TICKS_PER_SECOND)
    for table in outbox_tables(context):
        if unless_within and (yield from _is_swept(table, before, unless_within)):
            continue
        entries = yield from find_entries(table, before=before)
        failed = yield from _do_all(context, entries, report)
        if unless_within and not failed:
            yield from _note_sweep(table, before)


def _is_swept(table: str, before: int, unless_within: float) -> Steps[bool]:
    """Return whether the last clean sweep of a table was recent enough.

    A mark from a clock that is further ahead than that is ignored.
    """
    with contextlib.suppress(TableNotFoundError):
        row = yield from ask(GetRow(table, SWEPT_KEY))
        swept = None if row is None else row.properties.get(_SWEPT_BEFORE)
        if isinstance(swept, int):
            return abs(before - swept) < unless_within * TICKS_PER_SECOND
    return False


def _note_sweep(table: str, before: int) -> Steps[None]:
    """Record that all entries written before a tick are done."""
    noted = Row(SWEPT_KEY, {outbox_entry.TYPE_PROPERTY: "~sweep", _SWEPT_BEFORE: before})
    with contextlib.suppress(TableNotFoundError):
        yield from ask(WriteRows(table, (RowOperation(Verb.UPSERT_REPLACE, noted),)))


def drain(context: Context, report: Report, *, with_sweep: bool = True) -> Steps[None]:
    """Process everything that waits: own entries, messages, and the entries that a sweep finds.

    Entries and messages that fail do not prevent the others. At the end the first error of an entry
    is raised, or of a message if it is an error of the application.
    """
    start = len(report.troubles)
    failed: dict[OutboxReference, Exception] = {}
    while True:
        done = report.entries + report.transactions
        entries = [each for each in list(context.pending) if each not in failed]
        failed |= yield from _do_all(context, entries, report)
        if context.capabilities.has_queues:
            for queue in context.options.queues:
                while (yield from _take(context, queue, report, RECEIVED_MAX)):
                    pass
        if with_sweep:
            for table in outbox_tables(context):
                found = yield from find_entries(table)
                entries = [each for each in found if each not in failed]
                failed |= yield from _do_all(context, entries, report)
        if report.entries + report.transactions == done and failed.keys() >= set(context.pending):
            break
    for error in failed.values():
        raise error
    _raise_application_error(report, start)


def _do_all(
    context: Context, entries: Sequence[OutboxReference], report: Report
) -> Steps[dict[OutboxReference, Exception]]:
    """Process entries, and return those that failed."""
    failed: dict[OutboxReference, Exception] = {}
    for reference in entries:
        try:
            if (yield from do_entry(context, reference)):
                _note_entry(context, report)
        except Exception as error:  # noqa: BLE001 - users' functions raise anything
            failed[reference] = error
            described, is_left = outbox_entry.hint(reference), isinstance(error, _LEFT)
            _note(
                context,
                report,
                Trouble("", described, 0, is_poison=False, error=error, is_left=is_left),
            )
    return failed
