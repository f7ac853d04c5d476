"""How the messages that one statement claimed are dealt to the claims of a trip. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from partita.queues.message import StoredMessage, unpack_text
from partita.scaleout.queues.places import QueuePlace
from partita.ticks import TICKS_PER_SECOND


class Claim(NamedTuple):
    """A request for up to `limit` messages."""

    queue: QueuePlace
    limit: int
    hidden_seconds: int


class Round(NamedTuple):
    """What one statement asks: queues in order, and for each the claim of every message."""

    queues: Sequence[QueuePlace]
    slots: Sequence[Sequence[int]]


class Met(NamedTuple):
    """What a statement met besides messages that can be returned."""

    damaged: list[tuple[QueuePlace, StoredMessage]]
    expired: list[QueuePlace]


class Dealing:
    """The claims of one trip, until each has its messages."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self._claims = claims
        self._got: list[list[StoredMessage]] = [[] for _ in claims]
        self._open = {claim.queue for claim in claims}
        """Queues that may have more messages."""
        self._dealt = Counter[QueuePlace]()
        """Messages that the claims of a queue have got."""

    def next_round(self) -> Round | None:
        """Return what is still wanted; None if nothing is."""
        slots: dict[QueuePlace, list[int]] = {}
        for index, claim in enumerate(self._claims):
            wanted = claim.limit - len(self._got[index])
            if wanted and claim.queue in self._open:
                slots.setdefault(claim.queue, []).extend([index] * wanted)
        queues = sorted(slots)
        return Round(queues, [slots[queue] for queue in queues]) if queues else None

    def arrays(self, asked: Round) -> tuple[Sequence[object], ...]:
        """Return numbers, totals, where the hidden times of a queue begin, and those.

        The messages of a queue become visible again one tick apart, in their order.
        """
        totals: list[int] = []
        begins: list[int] = []
        hidden: list[int] = []
        for queue, slots in zip(asked.queues, asked.slots, strict=True):
            totals.append(len(slots))
            begins.append(len(hidden))
            hidden += [
                self._claims[index].hidden_seconds * TICKS_PER_SECOND + number
                for number, index in enumerate(slots, self._dealt[queue])
            ]
        return [queue.tid for queue in asked.queues], totals, begins, hidden

    def deal(self, asked: Round, rows: Iterable[Sequence[Any]]) -> Met:
        """Hand out the rows of the statement (position, number, message, removed)."""
        met = Met([], [])
        for position, number, *stored, removed in sorted(rows, key=lambda row: (row[0], row[1])):
            queue = asked.queues[position - 1]
            if number == 0:  # the row of the queue itself
                if removed:
                    met.expired.append(queue)
                continue
            message = stored_message(stored)
            if message.text is None:
                met.damaged.append((queue, message))
            else:
                self._got[asked.slots[position - 1][number - 1]].append(message)
                self._dealt[queue] += 1
        self._open = {queue for queue, _ in met.damaged}.union(met.expired)
        return met

    def outcomes(self) -> list[list[StoredMessage]]:
        """Return the messages of each claim."""
        return self._got


def stored_message(columns: Sequence[Any]) -> StoredMessage:
    """Return a message from its columns, its text checked."""
    sequence, nonce, text, *others = columns
    return StoredMessage(sequence, nonce, unpack_text(nonce, text), *others)
