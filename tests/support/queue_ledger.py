"""Clients that put, claim and delete messages through several front ends, and their ledger.

A receipt begins with the time of its claim by the clock of the database, so claims of a message
can be put in order whatever front end they went through.
"""

import asyncio
import base64
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from conformance.queue_store import place_of, receipt_of
from partita.errors import MessageNotFoundError
from partita.queues.message import Message
from partita.queues.store import QueueStore

QUEUE = "work"
CLIENTS = 8
"""Putters, and as many getters."""
HIDDEN_SECONDS = 1
LATE_SECONDS = 1.1
"""How long some getters keep a message, until others may claim it."""
DRAIN_SECONDS = 60.0
BACKLOG_MAX = 60
"""Messages that putters leave to the getters, so that late messages are claimed again soon."""


@dataclass
class History:
    """What clients were told of one message; moments are positions in the ledger."""

    claims: list[Message] = field(default_factory=list)
    refused: list[Message] = field(default_factory=list)
    deleted: int | None = None


class Ledger:
    """The histories of all messages, by text."""

    def __init__(self) -> None:
        self.histories: dict[str, History] = {}
        self.wrong: list[str] = []
        self._moment = 0

    def moment(self) -> int:
        self._moment += 1
        return self._moment

    def put(self, text: str) -> None:
        self.histories.setdefault(text, History())

    def claimed(self, message: Message, asked: int) -> None:
        """`asked`: the moment before the claim was sent."""
        history = self.histories.setdefault(message.text, History())
        history.claims.append(message)
        if history.deleted is not None and history.deleted < asked:
            self.wrong.append(f"{message.text} was claimed after its delete")

    def deleted(self, message: Message, known: Sequence[Message]) -> None:
        """`known`: the claims of the message before the delete was sent."""
        history = self.histories[message.text]
        if history.deleted is not None:
            self.wrong.append(f"{message.text} was deleted twice")
        if any(claimed_at(claim) > claimed_at(message) for claim in known):
            self.wrong.append(f"{message.text} was deleted with an old receipt")
        history.deleted = self.moment()

    @property
    def left(self) -> list[str]:
        """The messages that should still be in the queue."""
        return [text for text, history in self.histories.items() if history.deleted is None]

    def judge(self) -> list[str]:
        """Return everything that is wrong so far."""
        wrong = list(self.wrong)
        for text, history in self.histories.items():
            claims = sorted(history.claims, key=claimed_at)
            for one, after in itertools.pairwise(claims):
                if claimed_at(after) < one.visible_at:
                    wrong.append(f"{text} was claimed while it was hidden")
            if [claim.dequeue_count for claim in claims] != list(range(1, len(claims) + 1)):
                wrong.append(f"{text} has wrong dequeue counts")
            refused = {message.receipt for message in history.refused}
            if history.deleted is None and claims and claims[-1].receipt in refused:
                wrong.append(f"{text} was refused with the receipt of its last claim")
        return wrong


def claimed_at(message: Message) -> int:
    return int.from_bytes(base64.b64decode(message.receipt)[:8], "big")


class Clients:
    """Putters and getters; `run` lets them work for some seconds."""

    def __init__(self, stores: Sequence[QueueStore], ledger: Ledger, *, name: str = "m") -> None:
        self.stores = stores
        self.ledger = ledger
        self.is_putting = True
        self.is_getting = True
        self._name = name
        self._outstanding = 0

    async def run(self, seconds: float, until: Callable[[], bool]) -> None:
        """Put and get for some seconds; then get on, until something is true or it takes too long.

        What `until` says may also end the work earlier.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                store = self.stores[number % len(self.stores)]
                group.create_task(self._put(store, number))
                group.create_task(self._get(store, number))
            await _wait(seconds, until)
            self.is_putting = False
            await _wait(DRAIN_SECONDS, until)
            self.is_getting = False

    async def _put(self, store: QueueStore, putter: int) -> None:
        number = 0
        while self.is_putting:
            if self._outstanding > BACKLOG_MAX:
                await asyncio.sleep(0.005)
                continue
            text = f"{self._name}-{putter}-{number}"
            number += 1
            self._outstanding += 1
            await store.put(QUEUE, text, hidden_seconds=0, lifetime_seconds=None)
            self.ledger.put(text)

    async def _get(self, store: QueueStore, number: int) -> None:
        chance = random.Random(number)
        async with asyncio.TaskGroup() as late:
            while self.is_getting:
                asked = self.ledger.moment()
                limit = chance.randint(1, 4)
                got = await store.claim(QUEUE, limit, hidden_seconds=HIDDEN_SECONDS)
                for message in got:
                    self.ledger.claimed(message, asked)
                for message in got:
                    choice = chance.random()
                    if choice < 0.8:
                        await self._delete(store, message, 0)
                    elif choice < 0.9:
                        late.create_task(self._delete(store, message, LATE_SECONDS))
                if not got:
                    await asyncio.sleep(0.01)

    async def _delete(self, store: QueueStore, message: Message, seconds: float) -> None:
        await asyncio.sleep(seconds)
        history = self.ledger.histories[message.text]
        known = list(history.claims)
        try:
            await store.delete(QUEUE, place_of(message), receipt_of(message))
        except MessageNotFoundError:
            history.refused.append(message)
            return
        self.ledger.deleted(message, known)
        self._outstanding -= 1


async def _wait(seconds: float, until: Callable[[], bool]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not until():  # noqa: ASYNC110 - tasks of the same loop change it
                await asyncio.sleep(0.1)
