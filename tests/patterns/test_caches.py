"""Caches: one read for simultaneous misses, and what a write removes from them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import pytest_asyncio

from partita.clock import ManualClock
from partita.errors import ConflictError, ProjectionError
from partita.patterns import Database, EntityNotFoundError, Table, entity, sync
from partita.patterns.operations.joins import Cache
from partita.patterns.protocol.values import RowKey
from partita.service.hosting.in_process import LocalAccount
from support.entities import Room
from support.teams import Team


@pytest.fixture
def db(team_db: Database) -> Database:
    return team_db


@pytest_asyncio.fixture
async def rooms(db: Database) -> AsyncIterator[Table[Room]]:
    table = db.table(Room)
    await db.create_tables()
    await table.save(Room(house="h", id=1))
    yield table


@pytest.mark.parametrize("verb", ["save", "delete"])
async def test_a_cache_forgets_what_a_write_found_to_be_old(rooms: Table[Room], verb: str) -> None:
    cached = rooms.cached(ttl=3600)
    known = await cached.get(house="h", id=1)
    other = await rooms.get(house="h", id=1)
    other.color = "red"
    await rooms.save(other)
    known.color = "blue"

    with pytest.raises(ConflictError):
        await getattr(cached, verb)(known)

    assert (await cached.get(house="h", id=1)).color == "red"
    await getattr(cached, verb)(await cached.get(house="h", id=1))


@pytest.mark.parametrize("verb", ["save", "delete"])
async def test_a_cache_refuses_a_projection_as_a_table_does(rooms: Table[Room], verb: str) -> None:
    [part] = await rooms.partition(house="h").all().select("color").list()

    with pytest.raises(ProjectionError, match="PartialEntity"):
        await getattr(rooms.cached(ttl=60), verb)(part)


async def test_who_is_cancelled_in_its_turn_leaves_it_to_the_next(rooms: Table[Room]) -> None:
    cached = rooms.cached(ttl=60)
    asking = [asyncio.create_task(cached.get(house="h", id=1)) for _ in range(4)]
    await asyncio.sleep(0)
    asking[0].cancel()
    asking[2].cancel()

    found = await asyncio.gather(*asking, return_exceptions=True)

    assert [isinstance(each, asyncio.CancelledError) for each in found] == [True, False] * 2
    assert found[1] == found[3] == Room(house="h", id=1)


def test_threads_may_find_that_an_entry_is_over_at_the_same_moment() -> None:
    clock = ManualClock()
    cache = Cache(clock, 1.0, 4)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def use(number: int) -> None:
        start.wait()
        try:
            for step in range(3000):
                key = RowKey("p", str((step + number) % 6))
                cache.find(key)
                cache.put(key, step, cache.now() - (step % 2))
        except (KeyError, RuntimeError, StopIteration) as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert failures == []


async def test_tasks_that_miss_the_same_entity_at_once_ask_for_it_once(db: Database) -> None:
    teams = db.table(Team)
    await teams.save(Team(name="Sales"))
    cached = teams.cached(ttl=60)

    with db.measuring() as cost:
        found = await asyncio.gather(*(cached.get_or_none(name="Sales") for _ in range(20)))
        absent = await asyncio.gather(*(cached.get_or_none(name="None") for _ in range(20)))
        joined = await asyncio.gather(
            *(cached.join([1, 2], lambda n: {"name": f"team {n}"}) for _ in range(20)),
            *(cached.join([2, 1], lambda n: {"name": f"team {n}"}) for _ in range(20)),
        )

    assert {each is not None for each in found} == {True}
    assert set(absent) == {None}
    assert len(joined) == 40
    assert cost.requests == 1 + 1 + 2


def test_threads_that_miss_the_same_entity_at_once_ask_for_it_once(
    partita_account: LocalAccount,
) -> None:
    with sync.connect(partita_account) as db:
        teams = db.table(Team)
        db.create_tables()
        teams.save(Team(name="Sales"))
        cached = teams.cached(ttl=60)
        together = threading.Barrier(4)

        def read(_: int) -> Team:
            together.wait()
            return cached.get(name="Sales")

        before = db.cost.requests
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(read, range(4)))

        assert db.cost.requests - before == 1
        assert {each.name for each in found} == {"Sales"}


async def test_who_waits_for_a_read_that_fails_reads_itself(db: Database) -> None:
    @entity(table="auditlater", partition="{name}", row="x")
    class Later:
        name: str

    cached = db.table(Later).cached(ttl=60)

    tries = await asyncio.gather(
        *(cached.get_or_none(name="a") for _ in range(3)), return_exceptions=True
    )
    await db.create_tables()

    assert [getattr(each, "code", each) for each in tries] == ["TableNotFound"] * 3
    assert await cached.get_or_none(name="a") is None


async def test_a_cache_gets_and_deletes_as_its_table_does(db: Database) -> None:
    teams = db.table(Team)
    cached = teams.cached(ttl=60)
    await cached.save(Team(name="Sales"))

    loaded = await cached.get(name="Sales")
    await cached.delete(loaded)
    with db.measuring() as cost, pytest.raises(EntityNotFoundError):
        await cached.get(name="Sales")

    assert cost.requests == 0
    assert await teams.get_or_none(name="Sales") is None
