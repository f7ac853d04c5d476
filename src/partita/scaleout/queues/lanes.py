"""Calls on messages, gathered: puts, claims, updates and deletes of all accounts of a front end.

Each kind has a lane, so a trip is one statement with arrays. Claims of one queue are claimed
together: claims that look at the same messages at the same time only skip each other's locks.
"""

import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from partita.errors import PartitaError
from partita.queues.message import (
    MessagePlace,
    StoredMessage,
    message_damaged,
    pack_text,
    print_id,
)
from partita.queues.refusals import (
    beyond_expiry,
    message_not_found,
    queue_not_found,
    receipt_mismatch,
)
from partita.scaleout.connections.lane import Lane
from partita.scaleout.connections.link import Connector, Link, busy
from partita.scaleout.queues import statements
from partita.scaleout.queues.dealing import Claim, Dealing, Queue, stored_message
from partita.scaleout.queues.writing import write
from partita.ticks import TICKS_PER_SECOND

logger = logging.getLogger("partita.queues")

CLAIM_BYTES_ASSUMED = 4096
"""Of each message that a claim may return: it decides how many claims fit into a trip."""
MET_MESSAGES_MAX = 500
"""Messages of a queue that a claim searches for expired ones when it met some."""

Now = Callable[[], int | None]
"""The time of a statement in ticks; None: by the clock of the database."""


class Put(NamedTuple):
    """A message to add."""

    queue: Queue
    nonce: int
    text: str
    hidden_seconds: int
    lifetime_seconds: int | None


class Receipted(NamedTuple):
    """A message to delete or update, with the receipt that the caller has."""

    queue: Queue
    place: MessagePlace
    receipt: bytes
    hidden_seconds: int = 0
    text: str | None = None

    @property
    def key(self) -> tuple[Queue, int]:
        return self.queue, self.place.sequence


class MessageLanes:
    """The lanes of one front end. `may_expire` tells whether expired messages may be removed."""

    def __init__(self, connector: Connector, now: Now, may_expire: Callable[[], bool]) -> None:
        self._now = now
        self._may_expire = may_expire
        self._puts = Lane[Put, StoredMessage](connector, self._put)
        self._claims = Lane[Claim, list[StoredMessage]](connector, self._claim)
        self._updates = Lane[Receipted, StoredMessage](connector, self._update)
        self._deletes = Lane[Receipted, None](connector, self._delete)

    async def put(self, put: Put) -> StoredMessage:
        return await self._puts.ask(put, keys=(put.nonce,), size=len(put.text))

    async def claim(self, claim: Claim) -> list[StoredMessage]:
        return await self._claims.ask(claim, size=claim.limit * CLAIM_BYTES_ASSUMED)

    async def update(self, held: Receipted) -> StoredMessage:
        return await self._updates.ask(held, keys=(held.key,), size=len(held.text or ""))

    async def delete(self, held: Receipted) -> None:
        await self._deletes.ask(held, keys=(held.key,))

    async def close(self) -> None:
        """Finish what was accepted, then close the connections."""
        await self._puts.close()
        await self._claims.close()
        await self._updates.close()
        await self._deletes.close()

    async def _put(self, link: Link, puts: Sequence[Put]) -> Sequence[StoredMessage | PartitaError]:
        rows = await write(
            link,
            statements.PUT,
            self._now(),
            *_addresses(puts),
            [put.nonce for put in puts],
            [put.hidden_seconds * TICKS_PER_SECOND for put in puts],
            [_ticks(put.lifetime_seconds) for put in puts],
            [pack_text(put.nonce, put.text) for put in puts],
        )
        stored = {row[1]: row for row in rows}
        return [_stored(put, stored.get(put.nonce)) for put in puts]

    async def _claim(
        self, link: Link, claims: Sequence[Claim]
    ) -> Sequence[list[StoredMessage] | PartitaError]:
        dealing, now, removes = Dealing(claims), self._now(), self._may_expire()
        while (asked := dealing.next_round()) is not None:
            arrays = dealing.arrays(asked)
            rows = await write(link, statements.CLAIM, now, *arrays, removes)
            met = dealing.deal(asked, rows)
            for queue, message in met.damaged:
                await self._hide(link, queue, message)
            if met.expired:
                # The next round skips the rest of them, which the sweep removes.
                removes = False
                addresses = _columns(met.expired)
                await write(link, statements.REMOVE_MET, now, *addresses, MET_MESSAGES_MAX)
        return dealing.outcomes()

    async def _hide(self, link: Link, queue: Queue, message: StoredMessage) -> None:
        """Hide a damaged message: an error would keep all after it from being received."""
        identifier = print_id(MessagePlace(message.sequence, message.nonce))
        logger.error("message %s of queue %s is damaged and hidden", identifier, queue[1])
        await write(link, statements.HIDE, *queue, message.sequence, message.receipt)

    async def _update(
        self, link: Link, asked: Sequence[Receipted]
    ) -> Sequence[StoredMessage | PartitaError]:
        outcomes: dict[int, StoredMessage | PartitaError] = {}
        order = _order(asked)
        sent = [asked[index] for index in order]
        texts = [
            None if held.text is None else pack_text(held.place.nonce, held.text) for held in sent
        ]
        hidden = [held.hidden_seconds * TICKS_PER_SECOND for held in sent]
        rows = await write(link, statements.UPDATE, self._now(), *_receipts(sent), hidden, texts)
        for position, *columns in rows:
            index, message = order[position - 1], stored_message(columns)
            outcomes[index] = message
            if message.text is None:
                outcomes[index] = message_damaged(asked[index].place)
                await self._take_back(link, asked[index], message)
        outcomes |= await self._judge(link, asked, [i for i in order if i not in outcomes])
        return [outcomes[index] for index in range(len(asked))]

    async def _take_back(self, link: Link, held: Receipted, message: StoredMessage) -> None:
        """Make the old receipt valid again: the caller needs it to replace a damaged text."""
        values = (*held.queue, message.sequence, message.receipt, held.receipt)
        await write(link, statements.TAKE_BACK, *values)

    async def _delete(
        self, link: Link, asked: Sequence[Receipted]
    ) -> Sequence[PartitaError | None]:
        order = _order(asked)
        sent = [asked[index] for index in order]
        rows = await write(link, statements.DELETE, self._now(), *_receipts(sent))
        done = {order[row[0] - 1] for row in rows}
        refused = await self._judge(link, asked, [i for i in order if i not in done])
        return [refused.get(index) for index in range(len(asked))]

    async def _judge(
        self, link: Link, asked: Sequence[Receipted], indexes: Sequence[int]
    ) -> dict[int, PartitaError]:
        """Return why messages were not found, by index."""
        if not indexes:
            return {}
        sent = [asked[index] for index in indexes]
        rows = await link.read(statements.JUDGE, self._now(), *_receipts(sent))
        return {
            indexes[position - 1]: _refusal(sent[position - 1], *columns)
            for position, *columns in rows
        }


def _stored(put: Put, row: Sequence[Any] | None) -> StoredMessage | PartitaError:
    if row is None:
        return queue_not_found(put.queue[1])
    sequence, nonce, inserted_at, expires_at, visible_at, receipt = row
    return StoredMessage(sequence, nonce, put.text, inserted_at, expires_at, visible_at, 0, receipt)


def _refusal(
    held: Receipted, queue_id: int | None, receipt: bytes | None, expires_at: int, now: int
) -> PartitaError:
    _, name = held.queue
    if queue_id is None:
        return queue_not_found(name)
    if receipt is None:
        return message_not_found(name, held.place)
    if not hmac.compare_digest(receipt, held.receipt):
        return receipt_mismatch(name, held.place)
    if now + held.hidden_seconds * TICKS_PER_SECOND > expires_at:
        return beyond_expiry(held.hidden_seconds)
    return busy("changed")


def _order(asked: Sequence[Receipted]) -> list[int]:
    return sorted(range(len(asked)), key=lambda index: asked[index].key)


def _receipts(asked: Sequence[Receipted]) -> tuple[Sequence[object], ...]:
    return (
        *_addresses(asked),
        [held.place.sequence for held in asked],
        [held.place.nonce for held in asked],
        [held.receipt for held in asked],
    )


def _addresses(asked: Sequence[Put] | Sequence[Receipted]) -> tuple[list[int], list[str]]:
    return _columns([item.queue for item in asked])


def _columns(queues: Sequence[Queue]) -> tuple[list[int], list[str]]:
    return [account_id for account_id, _ in queues], [name for _, name in queues]


def _ticks(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * TICKS_PER_SECOND
