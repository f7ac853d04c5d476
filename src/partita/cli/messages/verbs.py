"""The verbs of `partita messages`.

A message is sent to the target before it is deleted from the source: after a failure it may be in
both, but it is never lost.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from partita.cli.kit.commands import Given
from partita.cli.kit.companions import opened_queues
from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.progress import Bar
from partita.cli.kit.text import count_text
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.ticks import TICKS_PER_SECOND

if TYPE_CHECKING:
    from azure.storage.queue import QueueClient, QueueServiceClient

PAGE_MESSAGES = 32
"""The most that one request receives or peeks."""
HIDDEN_SECONDS = 120
"""How long a message is hidden from other consumers while it is moved."""
LAST_YEAR = 9999
"""The year of expiry of a message that never expires."""
POISON_SUFFIX = "-poison"
SHOWN_CHARACTERS_MAX = 100


class QueuesFacts(Facts, frozen=True):
    """The queues of an account."""

    queues: list["QueueCount"]

    def lines(self) -> Iterator[Line]:
        if self.queues:
            yield Table(("QUEUE", "MESSAGES"), [(each.name, each.messages) for each in self.queues])
        else:
            yield "There are no queues."


class QueueCount(msgspec.Struct, frozen=True):
    """A queue, and the messages that it has, hidden ones included."""

    name: str
    messages: int


class Peeked(msgspec.Struct, frozen=True):
    """One message."""

    id: str
    text: str
    dequeued: int
    inserted: str
    expires: str


class PeekFacts(Facts, frozen=True):
    """The first messages of a queue."""

    queue: str
    messages: int
    peeked: list[Peeked]

    def lines(self) -> Iterator[Line]:
        if self.peeked:
            rows = [
                (each.inserted, each.dequeued, each.text[:SHOWN_CHARACTERS_MAX])
                for each in self.peeked
            ]
            yield Table(("INSERTED", "DEQUEUED", "TEXT"), rows)
        hidden = "" if self.peeked or not self.messages else " All are hidden at the moment."
        yield f"{self.queue} has about {count_text(self.messages, 'message')}.{hidden}"


class MessagesMoved(Facts, frozen=True):
    """Messages that were moved."""

    source: str
    target: str
    is_dry: bool
    moved: int
    left: int

    def lines(self) -> Iterator[Line]:
        if self.is_dry:
            found = count_text(self.left, "message")
            yield f"About {found} of {self.source} would be moved to {self.target}."
            return
        yield f"{count_text(self.moved, 'message')} moved from {self.source} to {self.target}."
        if self.left:
            yield f"About {count_text(self.left, 'message')} left, perhaps hidden."


def list_queues(given: Given) -> QueuesFacts:
    with opened_queues(given) as service:
        names = [str(queue.name) for queue in service.list_queues()]
        return QueuesFacts(
            [QueueCount(name, _count(service.get_queue_client(name))) for name in names]
        )


def peek(given: Given) -> PeekFacts:
    with opened_queues(given) as service:
        queue = service.get_queue_client(given.queue)
        found = queue.peek_messages(max_messages=min(int(given.count), PAGE_MESSAGES))
        return PeekFacts(given.queue, _count(queue), [_peeked(message) for message in found])


def move(given: Given) -> MessagesMoved:
    with opened_queues(given) as service:
        return _moved(service, given.source, given.target, given)


def requeue(given: Given) -> MessagesMoved:
    with opened_queues(given) as service:
        return _moved(service, given.poison or given.queue + POISON_SUFFIX, given.queue, given)


def _moved(service: "QueueServiceClient", source: str, target: str, given: Given) -> MessagesMoved:
    if source == target:
        raise ConfigurationError(
            "Configuration", "The source and the target are one queue.", hint="Name another queue."
        )
    one, other = service.get_queue_client(source), service.get_queue_client(target)
    waiting = _count(one)
    if given.dry_run:
        return MessagesMoved(source, target, is_dry=True, moved=0, left=waiting)
    _ensure(other)
    most = int(given.max) if given.max else None
    moved = 0
    with Bar(f"Move {source}", is_hidden=given.quiet) as bar:
        bar.begin(waiting or None, "messages")
        while most is None or moved < most:
            room = PAGE_MESSAGES if most is None else min(PAGE_MESSAGES, most - moved)
            found = list(one.receive_messages(max_messages=room, visibility_timeout=HIDDEN_SECONDS))
            if not found:
                break
            for message in found[:room]:
                other.send_message(message.content, time_to_live=_seconds_left(message))
                one.delete_message(message)
                moved += 1
            bar.advance(len(found))
            if waiting and moved >= waiting and most is None:
                break  # a consumer that fails may put messages back as fast as they are moved
    return MessagesMoved(source, target, is_dry=False, moved=moved, left=_count(one))


def _ensure(queue: "QueueClient") -> None:
    from azure.core.exceptions import ResourceExistsError  # noqa: PLC0415 - an extra

    try:
        queue.create_queue()
    except ResourceExistsError:
        return


def _count(queue: "QueueClient") -> int:
    return int(queue.get_queue_properties().approximate_message_count or 0)


def _seconds_left(message: Any) -> int:
    """Return the time to live that a message still has; -1 is for ever."""
    expires = message.expires_on
    if expires is None or expires.year >= LAST_YEAR:
        return -1
    return max(1, int(expires.timestamp() - SystemClock().ticks() / TICKS_PER_SECOND))


def _peeked(message: Any) -> Peeked:
    def shown(when: datetime | None) -> str:
        return "" if when is None else when.isoformat().replace("+00:00", "Z")

    return Peeked(
        str(message.id),
        str(message.content),
        int(message.dequeue_count or 0),
        shown(message.inserted_on),
        shown(message.expires_on),
    )
