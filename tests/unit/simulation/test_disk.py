import asyncio

import pytest

from partita.clock import ManualClock
from partita.errors import StoreFullError, StoreStoppedError
from partita.simulation.disk import (
    CUTS,
    SECTOR_BYTES,
    Create,
    SimDisk,
    Sync,
    SyncFolder,
    Write,
    boundaries,
)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(ManualClock(seed=5))


async def a_durable_file(disk: SimDisk, content: bytes = b"") -> None:
    file = disk.create("a")
    file.write(content)
    await file.sync()
    await disk.sync_folder()


async def test_what_was_synced_survives_every_cut(disk: SimDisk) -> None:
    await a_durable_file(disk, b"one")

    for cut in CUTS:
        disk = disk.power_cut(cut)
        assert disk.names() == ["a"]
        assert disk.read("a") == b"one"


async def test_a_cut_loses_or_keeps_what_was_not_synced(disk: SimDisk) -> None:
    await a_durable_file(disk, b"one")
    disk.grow("a", 3).write(b"two")
    disk.create("b").write(b"new")
    medium = disk._medium

    lost = disk.power_cut("lost")
    kept = SimDisk(ManualClock(), medium.after_power_cut("kept", ManualClock()))

    assert (lost.names(), lost.read("a")) == (["a"], b"one")
    assert (kept.names(), kept.read("a"), kept.read("b")) == (["a", "b"], b"onetwo", b"new")


async def test_a_synced_file_without_a_synced_name_is_lost(disk: SimDisk) -> None:
    file = disk.create("a")
    file.write(b"one")
    await file.sync()

    assert disk.power_cut("lost").names() == []


async def test_a_torn_write_ends_at_a_sector(disk: SimDisk) -> None:
    await a_durable_file(disk, b"a" * 100)
    disk.grow("a", 100).write(b"b" * 4 * SECTOR_BYTES)

    torn = disk.power_cut("torn").read("a")

    assert len(torn) == 2 * SECTOR_BYTES
    assert torn == b"a" * 100 + b"b" * (len(torn) - 100)


async def test_a_later_write_may_be_kept_without_an_earlier_one(disk: SimDisk) -> None:
    await a_durable_file(disk)
    file = disk.grow("a", 0)
    file.write(b"one")
    file.write(b"two")

    assert disk.power_cut("reversed").read("a") == b"\0\0\0two"


async def test_chance_decides_every_way_and_the_same_seed_the_same(disk: SimDisk) -> None:
    await a_durable_file(disk)
    file = disk.grow("a", 0)
    for letter in b"xyz":
        file.write(bytes([letter]) * SECTOR_BYTES)
    disk.create("b")

    def outcomes() -> list[tuple[list[str], bytes]]:
        found = []
        for seed in range(200):
            clock = ManualClock(seed=seed)
            cut = SimDisk(clock, disk._medium.after_power_cut("mixed", clock))
            found.append((cut.names(), cut.read("a").replace(b"\0", b"-")[::SECTOR_BYTES]))
        return found

    assert outcomes() == outcomes()
    assert {content for _, content in outcomes()} == {
        *(b"", b"x", b"-y", b"--z", b"xy", b"x-z", b"-yz", b"xyz")
    }
    assert {len(names) for names, _ in outcomes()} == {1, 2}


async def test_renames_and_removals_wait_for_the_sync_of_the_folder(disk: SimDisk) -> None:
    await a_durable_file(disk, b"one")
    disk.rename("a", "b")
    medium = disk._medium
    assert disk.names() == ["b"]
    assert SimDisk(ManualClock(), medium.after_power_cut("lost", ManualClock())).names() == ["a"]

    await disk.sync_folder()

    disk.remove("b")
    assert disk.power_cut("lost").read("b") == b"one"


async def test_a_sync_covers_what_was_written_before_it_began(disk: SimDisk) -> None:
    await a_durable_file(disk)
    disk.sync_seconds = 0.001
    file = disk.grow("a", 0)
    file.write(b"one")
    sync = asyncio.create_task(file.sync())
    await asyncio.sleep(0)
    file.write(b"two")
    await sync

    assert disk.power_cut("lost").read("a") == b"one"


async def test_a_failed_sync_drops_and_the_next_one_says_nothing_of_it(disk: SimDisk) -> None:
    await a_durable_file(disk, b"one")
    file = disk.grow("a", 3)
    file.write(b"two")
    disk.fail_sync()
    with pytest.raises(StoreStoppedError):
        await file.sync()
    await file.sync()

    assert disk.read("a") == b"onetwo"
    assert disk.power_cut("kept").read("a") == b"one"


async def test_what_a_failed_sync_dropped_is_carried_by_the_next_one_when_it_was_renewed(
    disk: SimDisk,
) -> None:
    await a_durable_file(disk, b"one")
    file = disk.grow("a", 3)
    file.write(b"two")
    disk.fail_sync()
    with pytest.raises(StoreStoppedError):
        await file.sync()
    disk.room = 0
    file.renew(3)
    await file.sync()

    assert disk.power_cut("lost").read("a") == b"onetwo"


async def test_syncs_fail_after_so_many_good_ones(disk: SimDisk) -> None:
    file = disk.create("a")
    disk.fail_sync(2)
    await file.sync()
    await disk.sync_folder()

    with pytest.raises(StoreStoppedError):
        file.sync_now()


async def test_a_full_disk_writes_nothing(disk: SimDisk) -> None:
    file = disk.create("a")
    disk.room = 5
    file.write(b"one")
    assert disk.free_bytes() == 2

    with pytest.raises(StoreFullError):
        file.write(b"two")

    assert (file.size, disk.read("a")) == (3, b"one")


async def test_a_flipped_bit_is_on_the_medium(disk: SimDisk) -> None:
    await a_durable_file(disk, b"one")

    disk.flip("a", 1, 5)

    assert disk.read("a") == b"oNe"
    assert disk.power_cut("lost").read("a") == b"oNe"


async def test_a_restart_finds_what_was_not_synced_and_a_cut_may_still_take_it(
    disk: SimDisk,
) -> None:
    await a_durable_file(disk)
    file = disk.grow("a", 0)
    file.write(b"one")

    next_disk = disk.restart()

    with pytest.raises(StoreStoppedError):
        file.write(b"two")
    with pytest.raises(StoreStoppedError):
        disk.names()
    assert next_disk.read("a") == b"one"
    assert next_disk.power_cut("lost").read("a") == b""


async def test_events_build_the_disk_again_at_every_boundary(disk: SimDisk) -> None:
    await a_durable_file(disk, b"one")

    assert disk.events == [Create("a"), Write("a", 0, b"one"), Sync("a", 1), SyncFolder(1)]
    found = []
    for number, medium in boundaries(disk.events):
        cut = SimDisk(ManualClock(), medium.after_power_cut("lost", ManualClock()))
        found.append((number, cut.names()))
    assert found == [(0, []), (1, []), (2, []), (3, []), (4, ["a"])]
