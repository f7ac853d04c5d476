"""Slots of front ends in a real catalog."""

import uuid
from collections.abc import AsyncIterator

import pytest

from partita.clock import ManualClock, SystemClock
from partita.errors import StoreStoppedError, UnavailableError
from partita.scaleout.catalog import slots as slots_module
from partita.scaleout.catalog.fleet_clock import FleetClock
from partita.scaleout.catalog.slots import LEASE_SECONDS, QUARANTINE_TICKS, RENEW_SECONDS, Slots
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.ticks import TICKS_PER_SECOND
from support.catalog_databases import shared_url
from support.weak_server import run_sql


@pytest.fixture
async def url() -> str:
    return await shared_url()


@pytest.fixture
async def pool(url: str) -> AsyncIterator[Pool]:
    pool = Pool(Connector(Location.parse(url)))
    yield pool
    await pool.close()


class FrontEnd:
    """A front end's slot and clock."""

    def __init__(self, pool: Pool) -> None:
        self.real = ManualClock(SystemClock().ticks())
        self.clock = FleetClock(self.real)
        self.slots = Slots(pool, self.clock, uuid.uuid4())

    @property
    def slot(self) -> int | None:
        return None if self.clock.lease is None else self.clock.lease.slot


async def started(pool: Pool) -> FrontEnd:
    front_end = FrontEnd(pool)
    await front_end.slots.take()
    return front_end


async def test_front_ends_have_different_slots(pool: Pool) -> None:
    assert [(await started(pool)).slot for _ in range(3)] == [0, 1, 2]


async def test_a_slot_that_is_given_back_is_used_again_after_its_floor(pool: Pool) -> None:
    first = await started(pool)
    last = [first.clock.stamp("a") for _ in range(5)][-1]
    await first.slots.give_back()
    second = await started(pool)

    assert second.slot == 0
    assert second.clock.lease is not None
    assert second.clock.lease.floor >= last
    assert second.clock.stamp("a") > last
    with pytest.raises(StoreStoppedError):
        first.clock.stamp("a")


async def test_a_slot_is_in_quarantine_after_its_lease(pool: Pool, url: str) -> None:
    await started(pool)
    lease = "SELECT expires_at - partita.ticks_1(), free_at - expires_at FROM partita.slot"
    ((left, quarantine),) = run_sql(url, lease)
    assert int(str(left)) <= LEASE_SECONDS * TICKS_PER_SECOND
    assert quarantine == QUARANTINE_TICKS

    run_sql(url, "UPDATE partita.slot SET expires_at = 0, floor = 1")
    assert (await started(pool)).slot == 1
    run_sql(url, "UPDATE partita.slot SET free_at = 0 WHERE id = 0")
    assert (await started(pool)).slot == 0


async def test_a_slot_whose_floor_is_in_the_future_waits(pool: Pool, url: str) -> None:
    first = await started(pool)
    first.real.jump(3600.0)
    first.clock.stamp("a")
    await first.slots.give_back()

    assert (await started(pool)).slot == 1


async def test_a_crash_leaves_a_floor_after_all_stamps(pool: Pool, url: str) -> None:
    first = await started(pool)
    first.real.advance(LEASE_SECONDS - 1.0)
    last = first.clock.stamp("a")
    ((floor,),) = run_sql(url, "SELECT floor FROM partita.slot")

    assert int(str(floor)) > last


async def test_a_lease_is_renewed_each_hour(pool: Pool, url: str) -> None:
    front_end = await started(pool)
    before = front_end.slots.must_renew
    front_end.real.advance(RENEW_SECONDS)
    after = front_end.slots.must_renew
    await front_end.slots.renew()
    assert (before, after, front_end.slots.must_renew) == (False, True, False)

    front_end.real.advance(LEASE_SECONDS - 1.0)
    assert front_end.clock.stamp("a")
    front_end.real.advance(1.0)
    with pytest.raises(StoreStoppedError):
        front_end.clock.stamp("a")
    await front_end.slots.renew()  # no other front end has it yet
    assert front_end.slot == 0
    assert front_end.clock.stamp("a")


async def test_a_front_end_whose_slot_was_given_away_takes_another(pool: Pool, url: str) -> None:
    front_end = await started(pool)
    run_sql(url, "UPDATE partita.slot SET free_at = 0, floor = 0")
    other = await started(pool)
    assert other.slot == 0

    await front_end.slots.renew()

    assert front_end.slot == 1
    await front_end.slots.give_back()
    await other.slots.renew()
    assert other.slot == 0


async def test_all_slots_taken_is_a_clear_error(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "SLOTS_MAX", 2)
    await started(pool)
    await started(pool)

    with pytest.raises(UnavailableError) as caught:
        await started(pool)
    assert caught.value.code == "StoreSlotsTaken"
