import asyncio

import pytest

from partita.errors import StateClosedError
from partita.loop_thread import LoopThread


def closed() -> StateClosedError:
    return StateClosedError("StateClosed", "The thread was stopped.")


async def never_ends() -> None:
    await asyncio.Event().wait()


async def test_work_that_waits_when_the_thread_stops_ends_with_the_error_of_closing() -> None:
    thread = LoopThread("a loop", closed)
    waiting = asyncio.wrap_future(thread.submit(never_ends()))
    assert await asyncio.wrap_future(thread.submit(asyncio.sleep(0, "begun"))) == "begun"

    await asyncio.to_thread(thread.stop)

    with pytest.raises(StateClosedError):
        await waiting


async def test_work_that_is_cancelled_before_that_is_cancelled() -> None:
    thread = LoopThread("a loop", closed)
    future = thread.submit(never_ends())

    future.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wrap_future(future)
    await asyncio.to_thread(thread.stop)


def test_work_after_the_end_is_refused() -> None:
    thread = LoopThread("a loop", closed)
    thread.stop()

    with pytest.raises(StateClosedError):
        thread.submit(never_ends())
