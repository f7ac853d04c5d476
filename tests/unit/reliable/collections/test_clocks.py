"""A clock that goes back loses no item."""

from partita.clock import ManualClock
from support.states import a_state


class TestClocks:
    async def test_a_clock_that_goes_back_loses_no_item(self) -> None:
        clock = ManualClock()
        async with a_state(clock) as state:
            jobs = await state.concurrent_queue("jobs", value=int)
            async with state.transaction() as tx:
                await jobs.enqueue(tx, 1, delay=10.0)
            clock.advance(11.0)
            tx = state.transaction()
            assert await jobs.dequeue(tx) == 1
            await tx.abort()

            clock.jump(-5.0)
            async with state.transaction() as tx:
                assert await jobs.dequeue(tx) is None
            clock.advance(6.0)

            async with state.transaction() as tx:
                assert await jobs.dequeue(tx) == 1
