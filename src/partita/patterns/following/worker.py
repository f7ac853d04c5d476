"""The worker: takes hints and started transactions from queues, and sweeps for lost hints.

A message is deleted only after its work is done, and renewed while it goes on; work that keeps
failing goes to the poison queue with the reason. Everything it does may be done twice.

Each message has its own outcome. `work` claims a message only when it is about to be tried, so
that the delivery count of a message is the number of times that it was tried, also when the
process ends.
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
from partita.patterns.following.eventual_transactions import (
    EventualTransaction,
    Started,
    find_transaction,
)
from partita.patterns.following.moving import finish_move
from partita.patterns.following.unknown_work import left_to_others, unknown_of
from partita.patterns.protocol.calls import (
    Beside,
    Call,
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
from partita.patterns.writing import outbox_entry as outbox
from partita.patterns.writing.context import Context, OutboxReference
from partita.queues.limits import MESSAGE_BYTES_MAX
from partita.ticks import TICKS_PER_SECOND

RENEWAL_LOOK_SECONDS = 0.01
"""How often who has done a message looks whether its renewal was answered."""
RECEIVED_MAX = 16
"""Messages of one queue that `work` takes, one after the other."""
HINT_SECONDS_MAX = 3600.0
"""The longest time after which the hint of an entry comes back that was left to others."""
REASON_CHARACTERS_MAX = 2048
CUT_CHARACTERS = MESSAGE_BYTES_MAX // 8
"""What is kept of a poisonous message that leaves no room for its reason: as JSON a character
takes six bytes at most."""

_SWEPT_BEFORE = "Before"
_LEFT = (UnknownTypeError, NewerVersionError)
"""Of an entry these mean that a newer program has written it, and can do it."""


class Trouble(msgspec.Struct, frozen=True):
    """Work that failed: it is tried again, left to others, or was put aside."""

    queue: str
    """Empty for an outbox entry that a sweep found."""
    text: str
    """The message, or a hint of the entry."""
    deliveries: int
    is_poison: bool
    error: Exception
    is_left: bool = False
    """A newer program can do it, this one cannot."""

    @property
    def reason(self) -> str:
        """What was raised, by its code or its class."""
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
    """Entries with something that this program does not know: they wait for a newer one."""

    @property
    def is_idle(self) -> bool:
        done = self.entries or self.transactions
        return not (done or self.failures or self.poisoned or self.left)


def do_entry(context: Context, reference: OutboxReference) -> Steps[bool]:
    """Do what an outbox entry asks for, then remove it. False: it was done before.

    What this program does not know stays in the entry, and UnknownTypeError says so. A part that
    fails does not prevent the others from being done, and stays in the entry.
    """
    row = yield from ask(GetRow(reference.table, reference.key))
    if row is None:
        context.forget(reference)
        return False
    whole = outbox.read_entry(row)
    unknown = yield from unknown_of(context, outbox.names_in(whole))
    entry = outbox.without(whole, unknown) if unknown else whole
    rest = outbox.only(whole, unknown) if unknown else outbox.Entry()
    errors: list[Exception] = []
    for part, steps in _parts_of(context, reference, entry):
        try:
            yield from steps
        except Exception as error:  # noqa: BLE001 - users' functions raise anything
            errors.append(error)
            rest = outbox.joined(rest, part)
    if errors:
        if rest != whole and not rest.moves:  # a move has notes of its own in the entry
            yield from outbox.entry_shortening(reference.table, row, rest)
        raise errors[0]
    if unknown:
        if not entry.is_empty:  # else there is nothing that need not be done again
            yield from outbox.entry_shortening(reference.table, row, rest)
        raise left_to_others(reference, unknown)
    yield from outbox.entry_removal(reference)
    context.forget(reference)
    return True


def _parts_of(
    context: Context, reference: OutboxReference, entry: outbox.Entry
) -> Iterator[tuple[outbox.Entry, Steps[None]]]:
    for touched in entry.touched:
        yield outbox.Entry(touched=[touched]), settle(context, touched)
    for move in entry.moves:
        yield outbox.Entry(moves=[move]), _move(context, move, reference)
    for step in entry.started:
        started = Started(step.transaction, step.arguments)
        yield outbox.Entry(started=[step]), do_transaction(context, started)


def _move(context: Context, move: outbox.Move, reference: OutboxReference) -> Steps[None]:
    with contextlib.suppress(EntityExistsError, UniqueViolationError):
        # Its target is taken: the entity stays where it was, without a mark.
        yield from finish_move(context, move, reference)


def do_transaction(context: Context, started: Started) -> Steps[None]:
    """Run the steps of an eventually consistent transaction, in order, from the first."""
    transaction: EventualTransaction = find_transaction(context, started.transaction)
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
    """Take and do up to `count` messages of one queue; return how many there were.

    An error that is not one of Partita is raised after the last of them.
    """
    start = len(report.troubles)
    taken = yield from _take(context, queue, report, count)
    _raise_foreign(report, start)
    return taken


def work_queues(context: Context, queues: Sequence[str], report: Report) -> Steps[None]:
    """Take and do messages of several queues, as `work` does of one."""
    start = len(report.troubles)
    for queue in queues:
        yield from _take(context, queue, report, RECEIVED_MAX)
    _raise_foreign(report, start)


def _take(context: Context, queue: str, report: Report, count: int) -> Steps[int]:
    """Claim messages one at a time, and do each before the next is claimed."""
    for taken in range(count):
        messages = yield from receive(context, queue, 1)
        if not messages:
            return taken
        yield from do_messages(context, queue, messages, report)
    return count


def _raise_foreign(report: Report, start: int) -> None:
    """Raise the first error of the application's own functions that is to be tried again."""
    for trouble in report.troubles[start:]:
        if not trouble.is_poison and not isinstance(trouble.error, PartitaError):
            raise trouble.error


def receive(context: Context, queue: str, count: int) -> Steps[tuple[Message, ...]]:
    """Claim messages of a queue; one that is missing is made."""
    try:
        return (yield from ask(ReceiveMessages(queue, count, context.options.visibility)))
    except QueueNotFoundError:
        yield from ask(CreateQueue(queue))
        return ()


def do_messages(
    context: Context, queue: str, messages: Sequence[Message], report: Report
) -> Steps[None]:
    """Do claimed messages in turn, and note in the report those that fail.

    The claims of those that wait are renewed as well.
    """
    claims = _Claims({message.id: message for message in messages})
    if claims.held:
        doing = _do_held(context, queue, claims, report)
        yield from ask(Beside(doing, _keep(context, queue, claims)))


class _Claims(msgspec.Struct):
    """The messages of a worker. One part does them, another renews them beside it."""

    held: dict[str, Message]
    """What is still to be done, by id, with the newest receipts."""
    renewing: set[str] = set()
    """Those whose renewal was sent and not answered: which receipt is good is not known."""
    renewed: dict[str, Message] = {}
    """Their newest receipts, also of those that were done meanwhile."""


def _do_held(context: Context, queue: str, claims: _Claims, report: Report) -> Steps[None]:
    held = claims.held
    for name in list(held):
        message = held.get(name)
        if message is None:
            continue  # because its claim was lost while it waited: another worker has it
        try:
            if (yield from _is_finished(context, queue, message, report)):
                yield from _delete(queue, message, claims)
        except Exception as error:  # noqa: BLE001 - neither put aside nor deleted: it comes back
            _note(report, _trouble_of(queue, message, error))
        held.pop(name, None)


def _is_finished(context: Context, queue: str, message: Message, report: Report) -> Steps[bool]:
    """Do one message. False: it failed, and is seen again when its claim ends."""
    try:
        _check_deliveries(context, message)
        yield from _do_text(context, queue, message, report)
    except Exception as error:  # noqa: BLE001 - users' functions raise anything
        is_last = message.dequeue_count >= context.options.deliveries_max
        trouble = _trouble_of(queue, message, error, is_poison=is_last)
        _note(report, trouble)
        if not is_last:
            return False
        yield from _poison(context, message, trouble.reason)
        report.poisoned += 1
    return True


def _delete(queue: str, message: Message, claims: _Claims) -> Steps[None]:
    claims.held.pop(message.id, None)
    while message.id in claims.renewing:
        yield from ask(Sleep(RENEWAL_LOOK_SECONDS))
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


def _note(report: Report, trouble: Trouble) -> None:
    if trouble.is_left:
        report.left += 1
    else:
        report.failures += 1
    report.troubles.append(trouble)


def _check_deliveries(context: Context, message: Message) -> None:
    if message.dequeue_count > context.options.deliveries_max:
        raise UsageError(
            "DeliveriesExceeded",
            "The message was taken more often than allowed, and never finished.",
            facts={"taken": message.dequeue_count},
        )


def _do_text(context: Context, queue: str, message: Message, report: Report) -> Steps[None]:
    started = _started(message.text)
    if started is not None:
        yield from do_transaction(context, started)
        report.transactions += 1
        return
    try:
        reference = outbox.read_hint(message.text)
    except msgspec.DecodeError as error:
        raise UsageError(
            "MessageNotUnderstood",
            "The message is neither a hint of the outbox nor a started transaction.",
            hint="Let nothing else use this queue.",
        ) from error
    try:
        if (yield from do_entry(context, reference)):
            report.entries += 1
    except _LEFT as error:
        # Before the message goes. Its deliveries are not counted: it is no poison to others.
        yield from ask(PutMessage(queue, message.text, _hint_delay(context, reference)))
        _note(report, _trouble_of(queue, message, error, is_left=True))


def _hint_delay(context: Context, reference: OutboxReference) -> float:
    """Return after how long to look again: so long as the entry has waited, so that it doubles."""
    ticks = max(context.clock.ticks() - outbox.written_at(reference.key), 0)
    waited = ticks / TICKS_PER_SECOND  # a key may say any number: of the future it is none
    return min(max(waited, context.options.visibility), HINT_SECONDS_MAX)


def _started(text: str) -> Started | None:
    try:
        return decode(text, Started)
    except msgspec.DecodeError:
        return None


def _keep(context: Context, queue: str, claims: _Claims) -> Steps[None]:
    """Renew the claims of messages until they are lost or done."""
    while True:
        yield from ask(Sleep(context.options.visibility / 2))
        for name in list(claims.held):
            # Before the look: with threads, whoever takes it away must see that it is renewed.
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
    if name in claims.held:  # else it was done meanwhile
        claims.held[name] = renewed


def _poison(context: Context, message: Message, reason: str) -> Steps[None]:
    told: dict[str, object] = {
        "text": message.text,
        "deliveries": message.dequeue_count,
        "reason": reason[:REASON_CHARACTERS_MAX],
    }
    text = msgspec.json.encode(told)
    if len(text) > MESSAGE_BYTES_MAX:
        # It would be refused and come back for ever: better a part of it in the poison queue.
        text = msgspec.json.encode(told | {"text": message.text[:CUT_CHARACTERS], "is_cut": True})
    queue = context.options.poison_queue
    call: Call[Any] = PutMessage(queue, text.decode())
    try:
        yield from ask(call)
    except QueueNotFoundError:
        yield from ask(CreateQueue(queue))
        yield from ask(call)


# ---------------------------------------------------------------------------------------------
# Sweeping and draining


def outbox_tables(context: Context) -> list[str]:
    """Return the tables in which outbox entries may lie."""
    return sorted({model.table for model in context.models.values()})


def find_entries(table: str, *, before: int | None = None) -> Steps[list[OutboxReference]]:
    """List outbox entries of a table, those written before a tick only. It scans the table."""
    rows = yield from entry_rows(table, before=before, select=("PartitionKey", "RowKey"))
    return [OutboxReference(table, row.key) for row in rows]


def entry_rows(
    table: str, *, before: int | None = None, select: tuple[str, ...] | None = None
) -> Steps[list[Row]]:
    """Read the outbox entries of a table, those written before a tick only."""
    end = outbox.OUTBOX_END if before is None else outbox.first_at(before)
    query = QueryRows(table, f"RowKey ge '{outbox.OUTBOX_PREFIX}' and RowKey lt '{end}'", select)
    found: list[Row] = []
    while True:
        try:
            page = yield from ask(query)
        except TableNotFoundError:
            return found  # because who has no table has nothing left to do
        found += page.rows
        if page.continuation is None:
            return found
        query = msgspec.structs.replace(query, continuation=page.continuation)


def count_unknown(context: Context, rows: Sequence[Row]) -> Steps[dict[str, int]]:
    """Return what entries name and this program does not know, and how many entries do so."""
    named: list[frozenset[str]] = []
    for row in rows:
        with contextlib.suppress(DamageError):  # which a worker tells of
            named.append(outbox.names_in(outbox.read_entry(row)))
    unknown = yield from unknown_of(context, frozenset[str]().union(*named))
    return {name: sum(name in names for names in named) for name in sorted(unknown)}


def forget(context: Context, names: Collection[str]) -> Steps[int]:
    """Take names out of all waiting entries that this program does not know; return how many.

    Who says so knows that they are declared no more, and by no newer program either.
    """
    done = 0
    for table in outbox_tables(context):
        for row in (yield from entry_rows(table)):
            with contextlib.suppress(DamageError):
                done += yield from _forget_in(context, table, row, frozenset(names))
    return done


def _forget_in(context: Context, table: str, row: Row, names: frozenset[str]) -> Steps[bool]:
    """Take names out of one entry, as it is by then: a worker may have cut it down meanwhile."""
    found: Row | None = row
    while found is not None:
        entry = outbox.read_entry(found)
        gone = yield from unknown_of(context, outbox.names_in(entry) & names)
        if not gone:
            return False
        if (yield from outbox.entry_shortening(table, found, outbox.without(entry, gone))):
            return True
        found = yield from ask(GetRow(table, row.key))
    return False


def sweep(
    context: Context, report: Report, *, age: float = 60.0, unless_within: float = 0.0
) -> Steps[None]:
    """Do every outbox entry that is older than `age` seconds: hints may have been lost.

    An entry that fails is reported and left for the next sweep: it must not keep those behind
    it from being done. A table that another worker has swept clean up to `unless_within` seconds
    ago is passed over: many workers then cost the scans of one. Any table may hold entries, for
    moves and transactions need nothing that follows a type, so that none is left out for good.
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
    """Look whether at most so many seconds of entries came after a clean sweep.

    A mark of a clock that is ahead of ours by more than that is not believed.
    """
    with contextlib.suppress(TableNotFoundError):
        row = yield from ask(GetRow(table, SWEPT_KEY))
        swept = None if row is None else row.properties.get(_SWEPT_BEFORE)
        if isinstance(swept, int):
            return abs(before - swept) < unless_within * TICKS_PER_SECOND
    return False


def _note_sweep(table: str, before: int) -> Steps[None]:
    """Write down that no entry is left that was written before a tick."""
    noted = Row(SWEPT_KEY, {outbox.TYPE_PROPERTY: "~sweep", _SWEPT_BEFORE: before})
    with contextlib.suppress(TableNotFoundError):
        yield from ask(WriteRows(table, (RowOperation(Verb.UPSERT_REPLACE, noted),)))


def drain(context: Context, report: Report, *, with_sweep: bool = True) -> Steps[None]:
    """Do everything that is to be done now: own entries, messages, and what a sweep finds.

    Entries and messages that fail do not prevent the others from being done. At the end the
    first error of an entry is raised, or of a message if it is not an error of Partita.
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
    _raise_foreign(report, start)


def _do_all(
    context: Context, entries: Sequence[OutboxReference], report: Report
) -> Steps[dict[OutboxReference, Exception]]:
    """Do entries, and return those that failed."""
    failed: dict[OutboxReference, Exception] = {}
    for reference in entries:
        try:
            if (yield from do_entry(context, reference)):
                report.entries += 1
        except Exception as error:  # noqa: BLE001 - users' functions raise anything
            failed[reference] = error
            told, is_left = outbox.hint(reference), isinstance(error, _LEFT)
            _note(report, Trouble("", told, 0, is_poison=False, error=error, is_left=is_left))
    return failed
