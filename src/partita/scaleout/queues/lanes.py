"""Calls on messages, gathered: puts, claims, updates and deletes of all accounts on one shard.

Each kind has a lane, so a trip is one statement with arrays. Claims of one queue are claimed
together: claims that look at the same messages at the same time only skip each other's locks.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from partita.errors import PartitaError
from partita.queues.message import (
    MessagePlace,
    StoredMessage,
    message_damaged,
    pack_text,
    print_id,
)
from partita.queues.refusals import beyond_expiry, message_not_found, receipt_mismatch
from partita.scaleout.catalog.staleness import STALE, Stale
from partita.scaleout.connections.lane import Lane
from partita.scaleout.connections.link import Connector, Link, Rows, busy
from partita.scaleout.queues import statements
from partita.scaleout.queues.dealing import Claim, Dealing, stored_message
from partita.scaleout.queues.places import QueuePlace
from partita.scaleout.queues.writing import write
from partita.ticks import TICKS_PER_SECOND

logger = logging.getLogger("partita.queues")

CLAIM_BYTES_ASSUMED = 4096
"""Of each message that a claim may return: it decides how many claims fit into a trip."""
MET_MESSAGES_MAX = 500
"""Messages of a queue that a claim searches for expired ones when it met some."""

Now = Callable[[], int | None]
"""The time of a statement in ticks; None: by the clock of the database."""
Fence = tuple[int, int]
"""The number and epoch of a range."""


class Put(NamedTuple):
    """A message to add."""

    queue: QueuePlace
    nonce: int
    text: str
    hidden_seconds: int
    lifetime_seconds: int | None


class Receipted(NamedTuple):
    """A message to delete or update, with the receipt that the caller has."""

    queue: QueuePlace
    place: MessagePlace
    receipt: bytes
    hidden_seconds: int = 0
    text: str | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.queue.tid, self.place.sequence


class _Placed(Protocol):
    @property
    def queue(self) -> QueuePlace: ...


Item = TypeVar("Item", bound=_Placed)
Result = TypeVar("Result")
Answers = Sequence[Result | Stale | PartitaError]


class StaleRangesError(Exception):
    """A statement changed nothing, because the shard does not serve some of its ranges."""

    def __init__(self, fences: Collection[Fence]) -> None:
        super().__init__("the shard does not serve some ranges")
        self.fences = fences


class MessageLanes:
    """The lanes of one shard. `may_expire` tells whether expired messages may be removed.

    The answer of a call whose range the shard does not serve is STALE: nothing was changed.
    """

    def __init__(self, connector: Connector, now: Now, may_expire: Callable[[], bool]) -> None:
        self._now = now
        self._may_expire = may_expire
        self._puts = Lane[Put, StoredMessage | Stale](connector, self._put)
        self._claims = Lane[Claim, list[StoredMessage] | Stale](connector, self._claim)
        self._updates = Lane[Receipted, StoredMessage | Stale](connector, self._update)
        self._deletes = Lane[Receipted, Stale | None](connector, self._delete)

    async def put(self, put: Put) -> StoredMessage | Stale:
        return await self._puts.ask(put, keys=(put.nonce,), size=len(put.text))

    async def claim(self, claim: Claim) -> list[StoredMessage] | Stale:
        return await self._claims.ask(claim, size=claim.limit * CLAIM_BYTES_ASSUMED)

    async def update(self, held: Receipted) -> StoredMessage | Stale:
        return await self._updates.ask(held, keys=(held.key,), size=len(held.text or ""))

    async def delete(self, held: Receipted) -> Stale | None:
        return await self._deletes.ask(held, keys=(held.key,))

    async def close(self) -> None:
        """Finish what was accepted, then close the connections."""
        await self._puts.close()
        await self._claims.close()
        await self._updates.close()
        await self._deletes.close()

    async def _put(self, link: Link, puts: Sequence[Put]) -> Answers[StoredMessage]:
        return await _fenced(link, puts, self._put_owned)

    async def _put_owned(
        self, link: Link, puts: Sequence[Put]
    ) -> Sequence[StoredMessage | PartitaError]:
        rows = await self._write(
            link,
            statements.PUT,
            [put.queue for put in puts],
            [put.queue.tid for put in puts],
            [put.nonce for put in puts],
            [put.hidden_seconds * TICKS_PER_SECOND for put in puts],
            [_ticks(put.lifetime_seconds) for put in puts],
            [pack_text(put.nonce, put.text) for put in puts],
        )
        stored = {row[2]: row for row in rows}
        return [_stored(put, stored[put.nonce]) for put in puts]

    async def _claim(self, link: Link, claims: Sequence[Claim]) -> Answers[list[StoredMessage]]:
        return await _fenced(link, claims, self._claim_owned)

    async def _claim_owned(
        self, link: Link, claims: Sequence[Claim]
    ) -> Sequence[list[StoredMessage]]:
        dealing, removes, is_first = Dealing(claims), self._may_expire(), True
        while (asked := dealing.next_round()) is not None:
            arrays = dealing.arrays(asked)
            try:
                rows = await self._write(link, statements.CLAIM, asked.queues, *arrays, removes)
            except StaleRangesError:
                if is_first:
                    raise
                break  # the messages of earlier rounds are claimed: they are the answer
            is_first = False
            met = dealing.deal(asked, rows)
            for queue, message in met.damaged:
                await self._hide(link, queue, message)
            if met.expired:
                # The next round skips the rest of them, which the sweep removes.
                removes = False
                tids = [queue.tid for queue in met.expired]
                values = tids, MET_MESSAGES_MAX
                await self._tidy(link, statements.REMOVE_MET, met.expired, *values)
        return dealing.outcomes()

    async def _hide(self, link: Link, queue: QueuePlace, message: StoredMessage) -> None:
        """Hide a damaged message: an error would keep all after it from being received."""
        identifier = print_id(MessagePlace(message.sequence, message.nonce))
        logger.error("message %s of queue %s is damaged and hidden", identifier, queue.name)
        values = queue.tid, message.sequence, message.receipt
        await self._tidy(link, statements.HIDE, [queue], *values)

    async def _update(self, link: Link, asked: Sequence[Receipted]) -> Answers[StoredMessage]:
        return await _fenced(link, asked, self._update_owned)

    async def _update_owned(self, link: Link, asked: Sequence[Receipted]) -> Answers[StoredMessage]:
        outcomes: dict[int, StoredMessage | Stale | PartitaError] = {}
        order = _order(asked)
        sent = [asked[index] for index in order]
        texts = [
            None if held.text is None else pack_text(held.place.nonce, held.text) for held in sent
        ]
        hidden = [held.hidden_seconds * TICKS_PER_SECOND for held in sent]
        rows = await self._write(
            link, statements.UPDATE, [held.queue for held in sent], *_receipts(sent), hidden, texts
        )
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
        values = held.queue.tid, message.sequence, message.receipt, held.receipt
        await self._tidy(link, statements.TAKE_BACK, [held.queue], *values)

    async def _delete(self, link: Link, asked: Sequence[Receipted]) -> Answers[None]:
        return await _fenced(link, asked, self._delete_owned)

    async def _delete_owned(self, link: Link, asked: Sequence[Receipted]) -> Answers[None]:
        order = _order(asked)
        sent = [asked[index] for index in order]
        rows = await self._write(
            link, statements.DELETE, [held.queue for held in sent], *_receipts(sent)
        )
        done = {order[row[0] - 1] for row in rows}
        refused = await self._judge(link, asked, [i for i in order if i not in done])
        return [refused.get(index) for index in range(len(asked))]

    async def _judge(
        self, link: Link, asked: Sequence[Receipted], indexes: Sequence[int]
    ) -> Mapping[int, PartitaError | Stale]:
        """Return why messages were not found, by index."""
        if not indexes:
            return {}
        sent = [asked[index] for index in indexes]
        range_ids, epochs = zip(*(held.queue.fence for held in sent), strict=True)
        tids, sequences, nonces, _ = _receipts(sent)
        rows = await link.read(
            statements.JUDGE, self._now(), range_ids, epochs, tids, sequences, nonces
        )
        judged: dict[int, PartitaError | Stale] = dict.fromkeys(indexes, STALE)
        for position, *columns in rows:
            judged[indexes[position - 1]] = _refusal(sent[position - 1], *columns)
        return judged

    async def _write(
        self, link: Link, statement: str, queues: Sequence[QueuePlace], *values: object
    ) -> Rows:
        """Run one statement that changes messages; raise StaleRangesError if it may not."""
        fences = list(dict.fromkeys(queue.fence for queue in queues))
        range_ids, epochs = zip(*fences, strict=True)
        rows = await write(link, statement, self._now(), range_ids, epochs, *values)
        if rows and rows[0][0] < 0:
            raise StaleRangesError([fences[-row[0] - 1] for row in rows])
        return rows

    async def _tidy(
        self, link: Link, statement: str, queues: Sequence[QueuePlace], *values: object
    ) -> None:
        """Run a statement that follows another one; skip it if the range was changed meanwhile."""
        fences = list(dict.fromkeys(queue.fence for queue in queues))
        range_ids, epochs = zip(*fences, strict=True)
        await write(link, statement, self._now(), range_ids, epochs, *values)


async def _fenced(
    link: Link, items: Sequence[Item], send: Callable[[Link, Sequence[Item]], Awaitable[Any]]
) -> list[Any]:
    """Send a trip; answer STALE to the items whose ranges are, and send the others again."""
    answers: dict[int, Any] = {}
    while left := [index for index in range(len(items)) if index not in answers]:
        try:
            outcomes = await send(link, [items[index] for index in left])
        except StaleRangesError as error:
            found = [index for index in left if items[index].queue.fence in error.fences]
            answers.update(dict.fromkeys(found, STALE))
        else:
            answers.update(zip(left, outcomes, strict=True))
    return [answers[index] for index in range(len(items))]


def _stored(put: Put, row: Sequence[Any]) -> StoredMessage:
    _, sequence, nonce, inserted_at, expires_at, visible_at, receipt = row
    return StoredMessage(sequence, nonce, put.text, inserted_at, expires_at, visible_at, 0, receipt)


def _refusal(held: Receipted, receipt: bytes | None, expires_at: int, now: int) -> PartitaError:
    name = held.queue.name
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
        [held.queue.tid for held in asked],
        [held.place.sequence for held in asked],
        [held.place.nonce for held in asked],
        [held.receipt for held in asked],
    )


def _ticks(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * TICKS_PER_SECOND
