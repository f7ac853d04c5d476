"""The clock of an account's database does not go back, whatever the wall clock does."""

from pathlib import Path

import pytest

from partita.clock import LEAP_CONFIRM_SECONDS, LEAP_SECONDS_MAX, ManualClock
from partita.errors import StoreStoppedError
from partita.storage.database import Database
from partita.storage.store_clock import TICKS_RESERVED, StoreClock
from partita.ticks import TICKS_PER_SECOND


async def a_stamp(database: Database, store_clock: StoreClock) -> int:
    async with database.change():
        return store_clock.next()


async def test_stamps_rise_though_time_stands_still() -> None:
    database = await Database.open(None)
    store_clock = StoreClock(database, ManualClock())

    stamps = [await a_stamp(database, store_clock) for _ in range(5)]

    assert stamps == sorted(set(stamps))
    await database.close()


async def test_reads_see_the_time_of_every_stamp() -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)

    for _ in range(5):
        stamp = await a_stamp(database, store_clock)
        clock.jump(-0.5)

        assert store_clock.now() >= stamp
    await database.close()


async def test_time_follows_the_wall_clock_forwards() -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)
    await a_stamp(database, store_clock)

    clock.advance(3600)

    assert store_clock.now() == clock.ticks()
    assert await a_stamp(database, store_clock) == clock.ticks()
    await database.close()


async def test_behind_its_back_the_wall_clock_slows_it_down_and_catches_up() -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)
    before = store_clock.now()

    clock.jump(-60)
    assert store_clock.now() == before
    clock.advance(60)
    assert store_clock.now() == before + 30 * TICKS_PER_SECOND
    clock.advance(60)
    assert store_clock.now() == clock.ticks() == before + 60 * TICKS_PER_SECOND
    await database.close()


async def test_a_leap_is_not_followed_until_it_has_lasted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)
    before = await a_stamp(database, store_clock)

    clock.jump(LEAP_SECONDS_MAX + 1)
    assert store_clock.now() == before
    clock.advance(LEAP_CONFIRM_SECONDS - 1)
    assert store_clock.now() == before + (LEAP_CONFIRM_SECONDS - 1) * TICKS_PER_SECOND
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    clock.advance(1)

    assert store_clock.now() == clock.ticks()
    noticed, confirmed = [record.message for record in caplog.records]
    assert noticed == (
        "the wall clock leapt 301 s ahead: nothing expires by it until it has kept this time"
        " for 3600 s; correct the clock, or restart to accept the time now"
    )
    assert confirmed == "the leap of the wall clock is confirmed: expiry follows it"
    await database.close()


async def test_a_leap_that_is_corrected_leaves_no_trace() -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)
    await a_stamp(database, store_clock)

    clock.jump(30 * 86_400)
    clock.advance(60)
    await a_stamp(database, store_clock)
    clock.jump(-30 * 86_400)

    assert await a_stamp(database, store_clock) <= clock.ticks() + 1
    clock.advance(1)
    assert store_clock.now() == clock.ticks()
    await database.close()


async def test_a_second_leap_is_confirmed_for_itself() -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)
    before = store_clock.now()

    clock.jump(30 * 86_400)
    store_clock.now()
    clock.advance(LEAP_CONFIRM_SECONDS - 1)
    clock.jump(30 * 86_400)
    assert store_clock.now() == before + (LEAP_CONFIRM_SECONDS - 1) * TICKS_PER_SECOND
    clock.advance(1)
    assert store_clock.now() == before + LEAP_CONFIRM_SECONDS * TICKS_PER_SECOND
    clock.advance(LEAP_CONFIRM_SECONDS)

    assert store_clock.now() == clock.ticks()
    await database.close()


async def test_a_leap_within_the_bound_is_followed_at_once() -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)

    clock.jump(LEAP_SECONDS_MAX)

    assert store_clock.now() == clock.ticks()
    await database.close()


@pytest.mark.parametrize("seconds", [-3600, 60, 30 * 86_400])
async def test_steady_time_follows_only_monotonic_time(seconds: int) -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)
    before = store_clock.steady()

    clock.jump(seconds)
    assert store_clock.steady() == before
    clock.advance(30)

    assert store_clock.steady() == before + 30 * TICKS_PER_SECOND
    await database.close()


async def test_a_restart_goes_on_after_every_stamp_though_the_wall_clock_went_back(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    database = await Database.open(tmp_path)
    stamp = await a_stamp(database, StoreClock(database, clock))
    await database.close()
    clock.jump(-86400)

    database = await Database.open(tmp_path)
    store_clock = StoreClock(database, clock)

    assert stamp <= store_clock.now() <= stamp + TICKS_RESERVED
    assert await a_stamp(database, store_clock) > stamp
    await database.close()


async def test_a_leap_inside_a_transaction_does_not_pass_the_written_mark(tmp_path: Path) -> None:
    clock = ManualClock()
    database = await Database.open(tmp_path)
    store_clock = StoreClock(database, clock)
    async with database.change():
        clock.jump(3600)
        stamp = store_clock.next()
    await database.close()

    database = await Database.open(tmp_path)

    assert database.reader.execute("SELECT mark FROM clock").get >= stamp
    await database.close()


async def lose_the_transaction(database: Database) -> None:
    async with database.change() as connection:
        connection.execute("ROLLBACK")


async def test_a_lost_transaction_takes_its_mark_with_it(tmp_path: Path) -> None:
    database = await Database.open(tmp_path)
    store_clock = StoreClock(database, ManualClock())
    with pytest.raises(StoreStoppedError):
        await lose_the_transaction(database)
    stamp = await a_stamp(database, store_clock)

    assert database.reader.execute("SELECT mark FROM clock").get >= stamp
    await database.close()


async def test_a_mark_that_was_kept_elsewhere_is_honoured() -> None:
    database = await Database.open(None)
    clock = ManualClock()
    store_clock = StoreClock(database, clock)

    store_clock.not_before(clock.ticks() + 100)

    assert store_clock.now() == clock.ticks() + 100
    assert await a_stamp(database, store_clock) == clock.ticks() + 101
    await database.close()
