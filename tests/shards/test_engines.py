"""Engines: login errors, forked processes, event loops."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from partita.errors import ConfigurationError
from partita.shards import Fleet, ShardMapManager
from partita.shards.connections.locations import location_of
from partita.shards.keys.mapping import Location
from support.routed import Base, Routed, a_shared_map


@pytest.fixture
def routed() -> Iterator[Routed]:
    with a_shared_map("sqlite") as made:
        yield made


@pytest.fixture
def on_postgres() -> Iterator[Routed]:
    with a_shared_map() as made:
        yield made


def test_the_users_of_a_server_are_put_into_no_error(on_postgres: Routed) -> None:
    def credentials(location: Location) -> str | None:
        is_shard = location != location_of(on_postgres.urls[0])
        return "postgresql://nobody_here@host/" if is_shard else None

    with ShardMapManager.open(on_postgres.urls[0], credentials=credentials) as manager:
        looked = Fleet(manager, metadata=Base.metadata).status().shards
        assert all("cannot be reached" in str(each.error) for each in looked)
        assert "nobody_here" not in "".join(str(each.error) for each in looked)


def test_a_login_that_cannot_be_read_is_not_repeated(on_postgres: Routed) -> None:
    def credentials(_location: object) -> str:
        return "postgresql://app:hidden:thing@host:not-a-port/"

    url = on_postgres.urls[0]
    with pytest.raises(ConfigurationError) as caught:
        ShardMapManager.open(url, credentials=credentials)
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_forked_child_opens_connections_of_its_own(on_postgres: Routed) -> None:
    def backend(key: int) -> int:
        with on_postgres.tenants.connect(key) as connection:
            return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)

    mine, (reading, writing) = backend(5), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(backend(5)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)

    with os.fdopen(reading) as told:
        assert int(told.read()) != mine
    assert backend(5) == mine


def test_closing_in_one_event_loop_leaves_the_engines_of_another(routed: Routed) -> None:
    engines = routed.manager.engines
    location = routed.one.location
    may_end, made = threading.Event(), threading.Event()
    kept: list[bool] = []

    async def live() -> None:
        engine = engines.async_for_location(location)
        made.set()
        await asyncio.to_thread(may_end.wait)
        kept.append(engines.async_for_location(location) is engine)
        await engines.adispose()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    made.wait()
    asyncio.run(engines.adispose())
    may_end.set()
    thread.join()
    assert kept == [True]
