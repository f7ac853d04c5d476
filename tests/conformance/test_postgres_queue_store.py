"""The contract of queue stores on PostgreSQL, with a clock moved by hand as that of the database.

All front ends follow the clock of the database as it is, so where that clock is set, the contract
is weaker than on SQLite: four tests are replaced by what holds instead.
"""

import pytest

from conformance.queue_store import QueueStoreConformance, texts_of
from partita.errors import ReceiptMismatchError
from partita.queues.store import QueueStore
from support.queue_databases import OpenQueues, TickingTime, queue_url


class TestPostgres(QueueStoreConformance):
    queues: OpenQueues
    account_id = 0
    time: TickingTime | None = None

    def url(self) -> str:
        return queue_url()

    async def open_store(self) -> QueueStore:
        self.time = self.time or TickingTime(self.clock)
        self.queues = OpenQueues(
            self.clock, now=self.time, account_id=self.account_id, url=self.url()
        )
        await self.queues.open()
        self.account_id = self.queues.account_id
        return self.queues.store

    async def close_store(self) -> None:
        await self.queues.close()

    async def test_a_wall_clock_that_went_back_hides_nothing_longer(self) -> None:
        """Messages stay hidden until the clock of the database has caught up."""
        queue = await self.a_queue()
        await self.put(queue, "x")
        await self.claim(queue, hidden=10)
        self.clock.jump(-3600)

        self.clock.advance(11)
        assert await self.claim(queue) == []
        self.clock.advance(3600)
        assert texts_of(await self.claim(queue)) == ["x"]

    async def test_a_hidden_message_is_hidden_after_a_restart_with_the_clock_set_back(self) -> None:
        queue = await self.a_queue()
        await self.put(queue, "x")
        await self.claim(queue, hidden=30)
        self.clock.jump(-3600)

        await self.reopen()

        assert await self.claim(queue) == []
        self.clock.advance(3600 + 31)
        assert texts_of(await self.claim(queue)) == ["x"]

    async def test_a_forward_leap_of_the_wall_clock_shows_no_hidden_message(self) -> None:
        """A leap does show them; the earlier receipt then does not match, as after any time-out."""
        queue = await self.a_queue()
        await self.put(queue, "x")
        (before,) = await self.claim(queue, hidden=30)

        self.clock.jump(60)

        assert texts_of(await self.claim(queue)) == ["x"]
        with pytest.raises(ReceiptMismatchError):
            await self.delete(queue, before)

    async def test_a_forward_leap_that_is_corrected_expires_no_message(self) -> None:
        """While the clocks disagree, expired messages are hidden and not removed."""
        assert self.time is not None
        queue = await self.a_queue()
        await self.put(queue, "1", "2", lives=7 * 86_400)

        self.clock.jump(30 * 86_400)
        self.queues.may_expire = False
        await self.store.sweep()
        assert await self.claim(queue) == []
        assert await self.store.peek(queue, 2) == []
        self.clock.jump(-30 * 86_400)
        self.time.follow()
        self.queues.may_expire = True
        await self.store.sweep()

        assert texts_of(await self.claim(queue)) == ["1", "2"]
