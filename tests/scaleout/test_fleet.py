"""A front end with the catalog alone: readiness, heartbeats, start and end."""

import asyncio
from collections.abc import Callable

import pytest

from partita.clock import ManualClock, SystemClock
from partita.errors import StoreStoppedError
from partita.scaleout import fleet as fleets
from partita.scaleout.fleet import Fleet
from partita.storage.durability import Durability
from partita.ticks import TICKS_PER_SECOND
from support.catalog_databases import shared_url
from support.weak_server import run_sql


@pytest.fixture
async def url() -> str:
    return await shared_url()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_front_ends_count_each_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "BEAT_SECONDS", 0.05)
    one = await Fleet.open(url)
    assert (one.is_ready, one.front_ends) == (True, 1)
    two = await Fleet.open(url)
    await until(lambda: one.front_ends == two.front_ends == 2)

    await two.close()
    await until(lambda: one.front_ends == 1)
    await one.close()
    assert run_sql(url, "SELECT FROM partita.front_end") == []
    assert run_sql(url, "SELECT FROM partita.slot WHERE holder IS NOT NULL") == []


async def test_a_front_end_that_died_is_not_counted_and_then_forgotten(url: str) -> None:
    one, two = await Fleet.open(url), await Fleet.open(url)
    run_sql(url, f"UPDATE partita.front_end SET seen_at = seen_at - {fleets.ALIVE_TICKS}")
    await one._beat()
    assert one.front_ends == 1
    assert run_sql(url, "SELECT count(*) FROM partita.front_end") == [(2,)]

    run_sql(url, f"UPDATE partita.front_end SET seen_at = seen_at - {fleets.FORGET_TICKS}")
    await one._beat()
    assert run_sql(url, "SELECT count(*) FROM partita.front_end") == [(1,)]
    await one.close()
    await two.close()


async def test_a_clock_more_than_a_second_apart_is_not_ready(url: str) -> None:
    clock = ManualClock(SystemClock().ticks() + 3600 * TICKS_PER_SECOND)
    fleet = await Fleet.open(url, clock=clock)

    assert not fleet.is_ready
    assert fleet.why_not_ready.startswith("the clock is +")
    await fleet.close()

    unchecked = await Fleet.open(url, clock=clock, checks_clock=False)
    assert unchecked.is_ready
    # Its times are those of the database, whatever its own clock says.
    ahead = clock.ticks() - 1800 * TICKS_PER_SECOND
    assert unchecked.clock.now() < ahead
    assert unchecked.clock.stamp("key") < ahead
    await unchecked.close()


async def test_a_front_end_without_its_database_is_not_ready_until_it_is_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "BEAT_AGAIN_SECONDS", 0.05)
    fleet = await Fleet.open(url)
    name = url.rpartition("/")[2]
    admin = url.removesuffix(name) + "postgres"
    run_sql(
        admin,
        f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    await until(lambda: not fleet.is_ready)
    run_sql(admin, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    await until(lambda: fleet.is_ready)
    await fleet.close()


async def test_a_closed_front_end_makes_no_stamps(url: str) -> None:
    fleet = await Fleet.open(url, durability=Durability.FAST)
    fleet.clock.stamp("a")
    await fleet.close()

    with pytest.raises(StoreStoppedError):
        fleet.clock.stamp("a")
    assert fleet.why_not_ready == "this front end has no slot"


async def test_a_defect_of_the_background_work_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "BEAT_SECONDS", 0.05)
    fleet = await Fleet.open(url)
    failures: list[BaseException] = []
    fleet.on_failure = failures.append
    monkeypatch.setattr(fleet, "_beat", lambda: 1 / 0)
    await until(lambda: bool(failures))

    assert isinstance(failures[0], ZeroDivisionError)
    assert not fleet.is_ready
    await fleet.close()
