"""The clock of an account's database does not go back, whatever the wall clock does."""

from pathlib import Path

import pytest

from partita.clock import ManualClock
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
