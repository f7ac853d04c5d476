"""The queue store on PostgreSQL, for any number of front ends and shards.

A queue is one range: its messages are on one shard, its name and metadata in the catalog. A call
that the shard refuses as stale asks the catalog where the queue is now, and is sent again.

`QueueDatabase` is what all accounts of a front end share: lanes, sweep, kept counts. Time is that
of the shard, for all front ends the same. If its clock is set back, hidden messages stay hidden
for so much longer; if it leaps ahead, they are visible early, and expired ones are hidden but not
removed (see `sweep`). So front ends whose clocks disagree with the database's must not serve.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from partita.errors import StoreBusyError
from partita.policies import Policy
from partita.queues.message import NONCE_BYTES, Message, MessagePlace, StoredMessage, nonce_of
from partita.queues.refusals import queue_exists, queue_not_found
from partita.queues.store import Queue, is_same_metadata
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.catalog.kinds import Kind, Named
from partita.scaleout.catalog.staleness import STALE, Patience, Stale
from partita.scaleout.connections.link import Link, Rows, busy
from partita.scaleout.connections.pool import Pool, is_queueing
from partita.scaleout.queues import statements
from partita.scaleout.queues.counts import Counts
from partita.scaleout.queues.dealing import Claim, stored_message
from partita.scaleout.queues.lanes import MessageLanes, Now, Put, Receipted
from partita.scaleout.queues.places import QueuePlace
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

    `pool` leads to the catalog's database. `clock` gives randomness and the age of kept counts.
    `may_expire` tells whether the clock of this front end agrees with that of the database.
    """

    _sweeping: "asyncio.Task[None] | None" = None

    def __init__(
        self,
        catalog: Catalog,
        pool: Pool,
        clock: Clock,
        *,
        may_expire: Callable[[], bool],
        now: Now = lambda: None,
    ) -> None:
        self.catalog = catalog
        self.pool = pool
        self.clock = clock
        self.now = now
        self.counts = Counts(clock)
        self.known: dict[tuple[int, str], tuple[int, Mapping[str, str]]] = {}
        """Number and metadata of queues as they were read last: for when the catalog is away."""
        self.known_policies: dict[tuple[int, str], list[Policy]] = {}
        self.sweep = Sweep(catalog.shards, now, may_expire)
        self._may_expire = may_expire
        self._lanes: dict[int, MessageLanes] = {}
        """By shard."""

    def start(self) -> None:
        """Begin to sweep from time to time."""
        self._sweeping = asyncio.get_running_loop().create_task(self.sweep.keep_running())

    def lanes(self, shard_id: int) -> MessageLanes:
        """Return the lanes of a shard; they begin when they are first needed."""
        if (found := self._lanes.get(shard_id)) is None:
            connector = self.catalog.shards.connector(shard_id)
            found = self._lanes[shard_id] = MessageLanes(connector, self.now, self._may_expire)
        return found

    def store(self, account_id: int) -> "PostgresQueueStore":
        return PostgresQueueStore(self, account_id)

    async def close(self) -> None:
        """Stop to sweep, and finish what was accepted. The pool belongs to the caller."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        for lanes in self._lanes.values():
            await lanes.close()


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
        for _ in range(WRITE_ATTEMPTS_MAX):
            found = await self._find(name)
            if found is not None:
                if is_same_metadata(found[1], metadata):
                    return False
                raise queue_exists(name)
            if await self._database.catalog.create_queue(self._account_id, name, _encode(metadata)):
                return True
        raise busy("changed")  # created and dropped by others each time

    async def delete_queue(self, name: str) -> None:
        database = self._database
        if not await database.catalog.delete_queue(self._account_id, name, database.now()):
            raise queue_not_found(name)
        self._forget(name)
        database.sweep.hasten()

    async def clear(self, name: str) -> None:
        database = self._database
        if not await database.catalog.clear_queue(self._account_id, name, database.now()):
            raise queue_not_found(name)
        database.sweep.hasten()

    async def get_queue(self, name: str) -> Queue:
        address = self._account_id, name
        try:
            found = await self._find(name)
        except StoreBusyError as error:
            found = self._database.known.get(address)
            if is_queueing(error) or found is None:
                raise
        if found is None:
            raise queue_not_found(name)
        identity, metadata = found
        number = self._database.counts.find(address, identity)
        return Queue(name, metadata, await self._count(name) if number is None else number)

    async def _find(self, name: str) -> tuple[int, Mapping[str, str]] | None:
        """Read the number and the metadata of a queue."""
        address = self._account_id, name
        rows = await self._read(statements.FIND_QUEUE, *address)
        if not rows:
            self._forget(name)
            return None
        found = rows[0]["tid"], _decode_metadata(rows[0]["metadata"])
        self._database.known[address] = found
        return found

    def _forget(self, name: str) -> None:
        self._database.known.pop((self._account_id, name), None)
        self._database.known_policies.pop((self._account_id, name), None)

    async def _count(self, name: str) -> int:
        counts = self._database.counts

        async def count(queue: QueuePlace) -> int | Stale:
            begun = counts.begin((self._account_id, name), queue.tid)
            async with self._pool(queue).link() as link:
                found = await _count(link, queue)
            return STALE if found is None else counts.complete(begun, found)

        return await self._ask(name, count)

    async def list_queues(self, prefix: str, start: str, limit: int) -> list[Queue]:
        bounds = _bound(prefix), _bound(start)
        rows = await self._read(statements.LIST_QUEUES, self._account_id, *bounds, limit)
        return [Queue(name, _decode_metadata(metadata), None) for name, metadata in rows]

    async def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        await self._change(statements.SET_METADATA, name, _encode(metadata))

    async def get_policies(self, name: str) -> list[Policy]:
        """Read the policies; if the catalog is away, return those that were read last."""
        address = self._account_id, name
        known = self._database.known_policies
        try:
            rows = await self._read(statements.FIND_POLICIES, *address)
        except StoreBusyError as error:
            if is_queueing(error) or address not in known:
                raise
            return known[address]
        if not rows:
            self._forget(name)
            raise queue_not_found(name)
        known[address] = found = _decode_policies(rows[0]["policies"])
        return found

    async def set_policies(self, name: str, policies: Sequence[Policy]) -> None:
        await self._change(statements.SET_POLICIES, name, _encode(policies))

    # Messages

    async def put(
        self, name: str, text: str, *, hidden_seconds: int, lifetime_seconds: int | None
    ) -> Message:
        nonce = nonce_of(self._database.clock.random_bytes(NONCE_BYTES))

        async def put(queue: QueuePlace) -> StoredMessage | Stale:
            asked = Put(queue, nonce, text, hidden_seconds, lifetime_seconds)
            return await self._lanes(queue).put(asked)

        stored = await self._ask(name, put)
        self._database.counts.added((self._account_id, name))
        return stored.message()

    async def claim(self, name: str, limit: int, *, hidden_seconds: int) -> list[Message]:
        async def claim(queue: QueuePlace) -> list[StoredMessage] | Stale:
            return await self._lanes(queue).claim(Claim(queue, limit, hidden_seconds))

        return [stored.message() for stored in await self._ask(name, claim)]

    async def peek(self, name: str, limit: int) -> list[Message]:
        async def peek(queue: QueuePlace) -> Rows | Stale:
            now = self._database.now()
            rows = await self._pool(queue).read(statements.PEEK, *queue.fence, now, limit)
            return rows or STALE

        rows = await self._ask(name, peek)
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
        async def update(queue: QueuePlace) -> StoredMessage | Stale:
            held = Receipted(queue, place, receipt, hidden_seconds, text)
            return await self._lanes(queue).update(held)

        return (await self._ask(name, update)).message()

    async def delete(self, name: str, place: MessagePlace, receipt: bytes) -> None:
        async def delete(queue: QueuePlace) -> Stale | None:
            return await self._lanes(queue).delete(Receipted(queue, place, receipt))

        count = self._database.counts.find_complete((self._account_id, name))
        await self._ask(name, delete)
        if count is not None:
            count.number -= 1

    # Where the messages are

    async def _ask(self, name: str, ask: Callable[[QueuePlace], Awaitable[T | Stale]]) -> T:
        """Ask the shard of a queue; if it has another range by now, ask again."""
        catalog, patience = self._database.catalog, Patience()
        queue = await catalog.find_queue(self._account_id, name)
        while queue is not None:
            if (range_ := catalog.range_of(queue.id, "")) is not None:
                answer = await ask(QueuePlace(queue.id, range_, name))
                if answer is not STALE:
                    return answer
            await patience.wait("stale")
            queue = await self._renewed(queue)
        self._forget(name)
        raise queue_not_found(name)

    async def _renewed(self, queue: Named) -> Named | None:
        return await self._database.catalog.renewed(self._account_id, queue, Kind.QUEUE)

    def _lanes(self, queue: QueuePlace) -> MessageLanes:
        return self._database.lanes(queue.range.shard)

    def _pool(self, queue: QueuePlace) -> Pool:
        return self._database.catalog.shards.pool(queue.range.shard)

    # The catalog

    async def _read(self, statement: str, *values: object) -> Rows:
        return await self._database.pool.read(statement, *values)

    async def _change(self, statement: str, name: str, value: object) -> None:
        """Run a statement that changes one queue and returns a row if the queue exists."""

        async def change() -> Rows:
            async with self._database.pool.link() as link:
                return await write(link, statement, self._account_id, name, value)

        if not await _unbroken(change()):
            raise queue_not_found(name)


async def _count(link: Link, queue: QueuePlace) -> int | None:
    """Count the messages of a queue; None if its range is stale."""
    total, number, last = 0, COUNT_MESSAGES, 0
    while number == COUNT_MESSAGES:
        rows = await link.read(statements.COUNT, *queue.fence, last, COUNT_MESSAGES)
        if not rows:
            return None
        ((number, last),) = rows
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
