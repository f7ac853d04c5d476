"""How much work waits for workers, and for how long: by the queues, without reading tables."""

from collections.abc import Iterable

import msgspec

from partita.patterns.protocol.calls import CountMessages, PeekMessages, Steps, ask
from partita.patterns.writing import outbox_entry
from partita.patterns.writing.context import Context
from partita.ticks import TICKS_PER_SECOND


class Backlog(msgspec.Struct, frozen=True):
    """Work that waits."""

    messages: int
    """In all queues of the outbox, about; messages that are worked on are included."""
    oldest_seconds: float
    """The age of the oldest entry among those at the front of the queues; 0 without one."""
    poison: int


def measure(context: Context, in_progress: Iterable[str] = ()) -> Steps[Backlog]:
    """Count the messages and find the oldest entry; `in_progress` are the texts of claimed ones.

    The front of a queue shows the oldest messages that are visible. The result is also kept in
    the metrics of the context.
    """
    messages, texts = 0, list(in_progress)
    for queue in context.options.queues:
        count = yield from ask(CountMessages(queue))
        if not count:
            continue
        messages += count
        texts += [each.text for each in (yield from ask(PeekMessages(queue)))]
    poison = (yield from ask(CountMessages(context.options.poison_queue))) or 0
    found = Backlog(messages, _oldest(context, texts), poison)
    work = context.work
    work.waiting, work.poison_waiting = found.messages, found.poison
    work.oldest_seconds = found.oldest_seconds
    return found


def _oldest(context: Context, texts: Iterable[str]) -> float:
    written = [ticks for text in texts if (ticks := _written_at(text))]
    if not written:
        return 0.0
    return round(max(context.clock.ticks() - min(written), 0) / TICKS_PER_SECOND, 1)


def _written_at(text: str) -> int:
    """Return the ticks at which the entry of a hint was written; 0 for other messages."""
    try:
        return outbox_entry.written_at(outbox_entry.read_hint(text).key)
    except msgspec.DecodeError:
        return 0
