"""Requests run outside any task until they first wait: connections must not need one before."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from partita.errors import StoreBusyError
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.storage.durability import Durability
from support.front_ends import installed_url


def connector() -> Connector:
    return Connector(Location.parse(installed_url()), Durability.FAST)


async def untasked(begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine as the HTTP protocol does: by hand, then in a task."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    tasks: list[asyncio.Task[None]] = []

    def drive() -> None:
        coroutine = begin()
        try:
            awaited = coroutine.send(None)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            done.set_exception(error)
            return

        async def finish() -> None:
            try:
                if awaited is not None:
                    awaited._asyncio_future_blocking = False
                    await asyncio.wait((awaited,))
                done.set_result(await _Rest(coroutine))
            except Exception as error:  # noqa: BLE001 - the test looks at it
                done.set_exception(error)

        tasks.append(loop.create_task(finish()))

    loop.call_soon(drive)
    return await done


class _Rest:
    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Any:
        return (yield from self._coroutine.__await__())


async def test_a_request_connects_before_it_has_a_task() -> None:
    pool = Pool(connector())

    (row,) = await untasked(lambda: pool.read("SELECT 1 AS one"))

    assert row["one"] == 1
    await pool.close()


async def test_a_request_waits_for_a_connection_before_it_has_a_task() -> None:
    pool = Pool(connector(), links_max=1, wait_seconds_max=0.05)

    async with pool.link():
        with pytest.raises(StoreBusyError):
            await untasked(lambda: pool.read("SELECT 1 AS one"))

    await pool.close()
