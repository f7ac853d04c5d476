"""The first step of a request runs outside of a task: see `HttpProtocol._answer`."""

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, NamedTuple

import pytest

from partita.errors import StoreBusyError
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.storage.durability import Durability
from support.front_ends import installed_url


def a_pool(*, wait_seconds_max: float = 60.0) -> Pool:
    connector = Connector(Location.parse(installed_url()), Durability.FAST)
    return Pool(connector, links_max=1, wait_seconds_max=wait_seconds_max)


async def answered(request: Coroutine[Any, Any, Any]) -> Any:
    """Take the first step in a callback of the event loop, the others in this task."""
    loop = asyncio.get_running_loop()
    stepped: asyncio.Future[Any] = loop.create_future()

    def step() -> None:
        try:
            stepped.set_result([request.send(None)])
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            stepped.set_exception(error)

    loop.call_soon(step)
    (awaited,) = await stepped
    return await Rest(request, awaited)


class Rest(NamedTuple):
    """What is left of a coroutine that was started by hand."""

    coroutine: Coroutine[Any, Any, Any]
    awaited: Any

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self.awaited
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - a cancellation
                step = partial(self.coroutine.throw, error)
            else:
                step = partial(self.coroutine.send, sent)
            try:
                awaited = step()
            except StopIteration as finished:
                return finished.value


async def test_the_first_request_connects() -> None:
    pool = a_pool()

    rows = await answered(pool.read("SELECT 1 AS one"))

    assert [row["one"] for row in rows] == [1]
    await pool.close()


async def test_a_request_waits_for_a_connection() -> None:
    pool = a_pool()
    async with pool.link() as link:
        waiting = asyncio.ensure_future(answered(pool.read("SELECT 1 AS one")))
        await link.read("SELECT 1")
        assert not waiting.done()

    rows = await waiting

    assert [row["one"] for row in rows] == [1]
    await pool.close()


async def test_a_request_that_waits_too_long_is_refused() -> None:
    pool = a_pool(wait_seconds_max=0.0)
    async with pool.link():
        with pytest.raises(StoreBusyError):
            await answered(pool.read("SELECT 1"))
    await pool.close()


async def test_a_request_that_is_cancelled_leaves_its_place_to_others() -> None:
    pool = a_pool()
    async with pool.link():
        waiting = asyncio.ensure_future(pool.read("SELECT 1"))
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.wait((waiting,))

    assert waiting.cancelled()
    assert len(await pool.read("SELECT 1")) == 1
    await pool.close()
