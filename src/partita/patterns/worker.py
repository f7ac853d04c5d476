"""The worker: takes hints and started transactions from queues, and sweeps for lost hints.

A message is deleted only after its work is done, and renewed while it goes on; work that keeps
failing goes to the poison queue with the reason. Everything it does may be done twice.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from partita.clock import TICKS_A_SECOND
from partita.errors import (
    EntityExistsError,
    PartitaError,
    QueueNotFoundError,
    TableNotFoundError,
    UniqueViolationError,
    UsageError,
)
from partita.patterns import outbox
from partita.patterns.calls import (
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
    Sleep,
    Steps,
    ask,
)
from partita.patterns.context import Context, OutboxReference
from partita.patterns.eventual_transactions import EventualTransaction, Started, find_transaction
from partita.patterns.foreign_json import decode
from partita.patterns.moving import finish_move
from partita.patterns.settling import settle
from partita.queues.limits import MESSAGE_BYTES_MAX

RENEWAL_LOOK_SECONDS = 0.01
"""How often who has done a message looks whether its renewal was answered."""
RECEIVED_MAX = 16
"""Messages that one worker claims at once."""
REASON_CHARACTERS_MAX = 2048
CUT_CHARACTERS = MESSAGE_BYTES_MAX // 8
"""What is kept of a poisonous message that leaves no room for its reason: as JSON a character
takes six bytes at most."""


class Trouble(msgspec.Struct, frozen=True):
    """Work that failed: it is tried again, or it was put aside."""

    queue: str
    """Empty for an outbox entry that a sweep found."""
    text: str
    """The message, or a hint of the entry."""
    deliveries: int
    is_poison: bool
    error: Exception

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

    @property
    def is_idle(self) -> bool:
        return not (self.entries or self.transactions or self.failures or self.poisoned)


def do_entry(context: Context, reference: OutboxReference) -> Steps[bool]:
    """Do what an outbox entry asks for, then remove it. False: it was done before."""
    row = yield from ask(GetRow(reference.table, reference.key))
    if row is None:
        context.forget(reference)
        return False
    entry = outbox.read_entry(row)
    for touched in entry.touched:
        yield from settle(context, touched)
    for move in entry.moves:
        with contextlib.suppress(EntityExistsError, UniqueViolationError):
            # Its target is taken: the entity stays where it was, without a mark.
            yield from finish_move(context, move, reference)
    for step in entry.started:
        yield from do_transaction(context, Started(step.transaction, step.arguments))
    yield from outbox.entry_removal(reference)
    context.forget(reference)
    return True


def do_transaction(context: Context, started: Started) -> Steps[None]:
    """Run the steps of an eventually consistent transaction, in order, from the first."""
    transaction: EventualTransaction = find_transaction(context, started.transaction)
    arguments = _arguments_of(started)
    for step in transaction.steps:
        yield from ask(Invoke(step, (context.face, arguments)))


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
    """Take messages of one queue once, and do them; return how many there were."""
    messages = yield from receive(context, queue, count)
    yield from do_messages(context, queue, messages, report)
    return len(messages)


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
    """Do claimed messages in turn; the claims of those that wait are renewed as well."""
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
            _check_deliveries(context, message)
            yield from _do_text(context, message.text, report)
        except Exception as error:
            is_last = message.dequeue_count >= context.options.deliveries_max
            trouble = Trouble(queue, message.text, message.dequeue_count, is_last, error)
            _note(report, trouble)
            if not is_last and isinstance(error, PartitaError):
                held.pop(name, None)
                continue  # because it is seen again when its claim ends
            if not is_last:
                raise
            yield from _poison(context, message, trouble.reason)
            report.poisoned += 1
        held.pop(name, None)
        while name in claims.renewing:
            yield from ask(Sleep(RENEWAL_LOOK_SECONDS))
        yield from ask(DeleteMessage(queue, claims.renewed.get(name, message)))


def _note(report: Report, trouble: Trouble) -> None:
    report.failures += 1
    report.troubles.append(trouble)


def _check_deliveries(context: Context, message: Message) -> None:
    if message.dequeue_count > context.options.deliveries_max:
        raise UsageError(
            "DeliveriesExceeded",
            "The message was taken more often than allowed, and never finished.",
            facts={"taken": message.dequeue_count},
        )


def _do_text(context: Context, text: str, report: Report) -> Steps[None]:
    started = _started(text)
    if started is not None:
        yield from do_transaction(context, started)
        report.transactions += 1
        return
    try:
        reference = outbox.read_hint(text)
    except msgspec.DecodeError as error:
        raise UsageError(
            "MessageNotUnderstood",
            "The message is neither a hint of the outbox nor a started transaction.",
            hint="Let nothing else use this queue.",
        ) from error
    if (yield from do_entry(context, reference)):
        report.entries += 1


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
    query = QueryRows(
        table,
        f"RowKey ge '{outbox.OUTBOX_PREFIX}' and RowKey lt '{outbox.OUTBOX_END}'",
        ("PartitionKey", "RowKey"),
    )
    found: list[OutboxReference] = []
    while True:
        try:
            page = yield from ask(query)
        except TableNotFoundError:
            return found  # because who has no table has nothing left to do
        found += [
            OutboxReference(table, row.key)
            for row in page.rows
            if before is None or outbox.written_at(row.key) < before
        ]
        if page.continuation is None:
            return found
        query = msgspec.structs.replace(query, continuation=page.continuation)


def sweep(context: Context, report: Report, *, age: float = 60.0) -> Steps[None]:
    """Do every outbox entry that is older than `age` seconds: hints may have been lost.

    An entry that fails is reported and left for the next sweep: it must not keep those behind
    it from being done.
    """
    before = context.clock.ticks() - round(age * TICKS_A_SECOND)
    for table in outbox_tables(context):
        entries = yield from find_entries(table, before=before)
        yield from _do_all(context, entries, report, Exception)  # users' functions raise anything


def drain(context: Context, report: Report, *, with_sweep: bool = True) -> Steps[None]:
    """Do everything that is to be done now: own entries, messages, and what a sweep finds.

    An entry that fails keeps no other from being done; the first such error is raised at last.
    """
    failed: dict[OutboxReference, Exception] = {}
    while True:
        done = report.entries + report.transactions
        entries = [each for each in list(context.pending) if each not in failed]
        failed |= yield from _do_all(context, entries, report)
        if context.capabilities.has_queues:
            for queue in context.options.queues:
                while (yield from work(context, queue, report)):
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


def _do_all(
    context: Context,
    entries: Sequence[OutboxReference],
    report: Report,
    caught: type[Exception] = PartitaError,
) -> Steps[dict[OutboxReference, Exception]]:
    """Do entries, and return those that failed."""
    failed: dict[OutboxReference, Exception] = {}
    for reference in entries:
        try:
            if (yield from do_entry(context, reference)):
                report.entries += 1
        except caught as error:
            failed[reference] = error
            _note(report, Trouble("", outbox.hint(reference), 0, False, error))  # noqa: FBT003
    return failed
