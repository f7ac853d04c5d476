"""The queue store on PostgreSQL, for any number of front ends.

`QueueDatabase` is what all accounts of a front end share: lanes, sweep, kept counts. Time is that
of the database, for all front ends the same. If its clock is set back, hidden messages stay hidden
for so much longer; if it leaps ahead, they are visible early, and expired ones are hidden but not
removed (see `sweep`). So front ends whose clocks disagree with the database's must not serve.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from partita.policies import Policy
from partita.queues.message import NONCE_BYTES, Message, MessagePlace, nonce_of
from partita.queues.refusals import queue_exists, queue_not_found
from partita.queues.store import Queue, is_same_metadata
from partita.scaleout.connections.link import Connector, Link, Rows, busy
from partita.scaleout.connections.pool import Pool
from partita.scaleout.queues import statements
from partita.scaleout.queues.counts import Counts
from partita.scaleout.queues.dealing import Claim, stored_message
from partita.scaleout.queues.lanes import MessageLanes, Now, Put, Receipted
from partita.scaleout.queues.sweep import Sweep
from partita.scaleout.queues.writing import WRITE_ATTEMPTS_MAX, write
from partita.ticks import Clock

COUNT_MESSAGES = 100_000
"""Messages that one statement counts."""

_decode_policies = msgspec.json.Decoder(list[Policy]).decode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class QueueDatabase:
    """What the queue stores of one front end share.

    `clock` gives randomness and the age of kept counts. `may_expire` tells whether the clock of
    this front end agrees with that of the database.
    """

    _sweeping: "asyncio.Task[None] | None" = None

    def __init__(
        self,
        connector: Connector,
        pool: Pool,
        clock: Clock,
        *,
        may_expire: Callable[[], bool],
        now: Now = lambda: None,
    ) -> None:
        self.pool = pool
        self.clock = clock
        self.now = now
        self.lanes = MessageLanes(connector, now, may_expire)
        self.counts = Counts(clock)
        self.sweep = Sweep(pool, now, may_expire)

    def start(self) -> None:
        """Begin to sweep from time to time."""
        self._sweeping = asyncio.get_running_loop().create_task(self.sweep.keep_running())

    def store(self, account_id: int) -> "PostgresQueueStore":
        return PostgresQueueStore(self, account_id)

    async def close(self) -> None:
        """Stop to sweep, and finish what was accepted. The pool belongs to the caller."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self.lanes.close()


class PostgresQueueStore:
    """A QueueStore of one account; see partita.queues.store for the contract."""

    def __init__(self, database: QueueDatabase, account_id: int) -> None:
        self._database = database
        self._account_id = account_id

    async def sweep(self) -> None:
        await self._database.sweep.run()

    async def close(self) -> None:
        """Do nothing: the database belongs to all accounts."""

    # Queues

    async def create_queue(self, name: str, metadata: Mapping[str, str]) -> bool:
        return await _unbroken(self._create_queue(name, metadata))

    async def _create_queue(self, name: str, metadata: Mapping[str, str]) -> bool:
        address = self._account_id, name
        async with self._database.pool.link() as link:
            for _ in range(WRITE_ATTEMPTS_MAX):
                if await write(link, statements.CREATE_QUEUE, *address, _encode(metadata)):
                    return True
                for row in await link.read(statements.FIND_QUEUE, *address):
                    if is_same_metadata(_decode_metadata(row["metadata"]), metadata):
                        return False
                    raise queue_exists(name)
        raise busy("changed")  # created and dropped by others each time

    async def delete_queue(self, name: str) -> None:
        await self._change(statements.DELETE_QUEUE, name, self._database.now())
        self._database.sweep.hasten()

    async def clear(self, name: str) -> None:
        await self._change(statements.CLEAR_QUEUE, name, self._database.now())
        self._database.sweep.hasten()

    async def get_queue(self, name: str) -> Queue:
        address, counts = (self._account_id, name), self._database.counts
        async with self._database.pool.link() as link:
            rows = await link.read(statements.FIND_QUEUE, *address)
            if not rows:
                raise queue_not_found(name)
            ((identity, metadata),) = rows
            number = counts.find(address, identity)
            if number is None:
                count = counts.begin(address, identity)
                number = counts.complete(count, await _count(link, identity))
        return Queue(name, _decode_metadata(metadata), number)

    async def list_queues(self, prefix: str, start: str, limit: int) -> list[Queue]:
        bounds = _bound(prefix), _bound(start)
        rows = await self._read(statements.LIST_QUEUES, self._account_id, *bounds, limit)
        return [Queue(name, _decode_metadata(metadata), None) for name, metadata in rows]

    async def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        await self._change(statements.SET_METADATA, name, _encode(metadata))

    async def get_policies(self, name: str) -> list[Policy]:
        rows = await self._read(statements.FIND_POLICIES, self._account_id, name)
        if not rows:
            raise queue_not_found(name)
        return _decode_policies(rows[0]["policies"])

    async def set_policies(self, name: str, policies: Sequence[Policy]) -> None:
        await self._change(statements.SET_POLICIES, name, _encode(policies))

    # Messages

    async def put(
        self, name: str, text: str, *, hidden_seconds: int, lifetime_seconds: int | None
    ) -> Message:
        queue = self._account_id, name
        nonce = nonce_of(self._database.clock.random_bytes(NONCE_BYTES))
        put = Put(queue, nonce, text, hidden_seconds, lifetime_seconds)
        stored = await self._database.lanes.put(put)
        self._database.counts.added(queue)
        return stored.message()

    async def claim(self, name: str, limit: int, *, hidden_seconds: int) -> list[Message]:
        claim = Claim((self._account_id, name), limit, hidden_seconds)
        return [stored.message() for stored in await self._database.lanes.claim(claim)]

    async def peek(self, name: str, limit: int) -> list[Message]:
        now = self._database.now()
        rows = await self._read(statements.PEEK, now, self._account_id, name, limit)
        if not rows:
            raise queue_not_found(name)
        found = [stored_message(row) for row in rows if row["sequence"] is not None]
        return [stored.message() for stored in found if stored.text is not None]

    async def update(
        self,
        name: str,
        place: MessagePlace,
        receipt: bytes,
        *,
        hidden_seconds: int,
        text: str | None,
    ) -> Message:
        held = Receipted((self._account_id, name), place, receipt, hidden_seconds, text)
        return (await self._database.lanes.update(held)).message()

    async def delete(self, name: str, place: MessagePlace, receipt: bytes) -> None:
        queue = self._account_id, name
        count = self._database.counts.find_complete(queue)
        await self._database.lanes.delete(Receipted(queue, place, receipt))
        if count is not None:
            count.number -= 1

    async def _read(self, statement: str, *values: object) -> Rows:
        async with self._database.pool.link() as link:
            return await link.read(statement, *values)

    async def _change(self, statement: str, name: str, value: object) -> None:
        """Run a statement that changes one queue and returns a row if the queue exists."""

        async def change() -> Rows:
            async with self._database.pool.link() as link:
                return await write(link, statement, self._account_id, name, value)

        if not await _unbroken(change()):
            raise queue_not_found(name)


async def _count(link: Link, queue_id: int) -> int:
    total, number, last = 0, COUNT_MESSAGES, 0
    while number == COUNT_MESSAGES:
        ((number, last),) = await link.read(statements.COUNT, queue_id, last, COUNT_MESSAGES)
        total += number
    return total


def _bound(text: str) -> str:
    """Return a bound that separates names in the same way and that PostgreSQL accepts."""
    return text.replace("\0", "\1")


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even if the caller is cancelled: a cancelled write ends its connection."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieve)
    return await asyncio.shield(task)


def _retrieve(task: "asyncio.Future[Any]") -> None:
    """Take the outcome, which nothing waits for if the caller was cancelled."""
    if not task.cancelled():
        task.exception()
