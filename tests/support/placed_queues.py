"""A fleet of two shards for tests of queues: an administrative session and two front ends."""

import uuid
from collections.abc import AsyncIterator, Sequence

import pytest

from conformance.queue_store import texts_of
from partita.queues.message import Message
from partita.scaleout.catalog.kinds import Kind
from partita.scaleout.control.control import Control
from partita.scaleout.control.states import RangeState
from partita.scaleout.fleet import Fleet
from partita.scaleout.queues.postgres_store import PostgresQueueStore
from partita.storage.durability import Durability
from support.control_fleets import HERE, THERE, urls
from support.many_shards import execute, open_front_end
from support.queue_ledger import QUEUE


class Placed:
    """The queue `QUEUE` of a new account, as two front ends see it."""

    control: Control
    account: str
    fleets: Sequence[Fleet]
    stores: Sequence[PostgresQueueStore]
    earlier: Sequence[str]
    """What other tests have left in the fleet: some break it."""

    @property
    def store(self) -> PostgresQueueStore:
        return self.stores[0]

    async def range(self, name: str = QUEUE) -> RangeState:
        """Return the only range of a queue."""
        ranges = await self.control.ranges(account=self.account)
        (found,) = [each for each in ranges if each.queue == name]
        return found

    async def move(self, to: str = THERE) -> None:
        await self.control.move((await self.range()).id, to)

    async def put(self, *texts: str, front_end: int = 0, lives: int | None = None) -> None:
        store = self.stores[front_end]
        for text in texts:
            await store.put(QUEUE, text, hidden_seconds=0, lifetime_seconds=lives)

    async def claim(
        self, limit: int = 32, *, front_end: int = 0, hidden: int = 30
    ) -> list[Message]:
        return await self.stores[front_end].claim(QUEUE, limit, hidden_seconds=hidden)

    async def texts(self, front_end: int = 0) -> list[str]:
        """Return the texts of all visible messages, in order."""
        return texts_of(await self.stores[front_end].peek(QUEUE, 32))

    async def tid(self) -> int:
        found = await self.fleets[0].catalog._look_up(Kind.QUEUE, self.account_id, QUEUE)
        assert found is not None
        return found.id

    @property
    def account_id(self) -> int:
        return self.store._account_id

    async def problems(self) -> list[str]:
        """Verify the fleet; return what has been wrong only since this test began."""
        found = (await self.control.verify()).problems
        return [text for text in found if text not in self.earlier]

    def rows(self) -> tuple[int, ...]:
        """Return how many messages of all queues of the account each shard has."""
        named = "SELECT tid FROM partita.queue WHERE account_id = %s"
        tids = [row[0] for row in execute(urls()[0], named, self.account_id)]
        count = "SELECT count(*)::int FROM partita.message WHERE queue_id = ANY (%s)"
        found = [execute(url, count, tids)[0][0] for url in urls()]
        assert all(isinstance(number, int) for number in found)
        return tuple(int(str(number)) for number in found)


def open_shards(*names: str) -> None:
    """Let these shards get new ranges, and no others."""
    execute(
        urls()[0],
        "UPDATE partita.shard SET state = CASE WHEN name = ANY (%s) THEN 'o' ELSE 'd' END,"
        " version = partita.catalog_changed_1()",
        list(names),
    )


@pytest.fixture
async def placed() -> AsyncIterator[Placed]:
    opened = Placed()
    open_shards(HERE)
    opened.control = await Control.open(urls()[0], durability=Durability.FAST)
    opened.earlier = (await opened.control.verify()).problems
    opened.fleets = [await open_front_end(urls()[0]) for _ in range(2)]
    opened.account = f"queues{uuid.uuid4().hex[:12]}"
    stores = [(await fleet.stores(opened.account)).queues for fleet in opened.fleets]
    opened.stores = [store for store in stores if isinstance(store, PostgresQueueStore)]
    await opened.store.create_queue(QUEUE, {})
    yield opened
    for fleet in opened.fleets:
        await fleet.close()
    await opened.control.close()
    execute(urls()[0], "DELETE FROM partita.job")
