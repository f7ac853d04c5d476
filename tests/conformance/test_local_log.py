import asyncio
import contextlib
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from conformance.log import LogConformance, RecordChain, read, take
from partita.clock import ManualClock
from partita.errors import (
    ChainBrokenError,
    ChecksumError,
    DamageError,
    FormatVersionError,
    NotReadableError,
    StateClosedError,
    StoreFullError,
    StoreStoppedError,
    UsageError,
)
from partita.reliable.state.records import FRAME_START
from partita.reliable.storage.disk import Disk
from partita.reliable.storage.local_log import MARKS_BYTES_MAX, MARKS_FILE, Durability, LocalLog
from partita.reliable.storage.log import Log
from partita.reliable.storage.os_disk import OsDisk
from partita.reliable.storage.segment import HEADING_BYTES, MARK_BYTES
from partita.simulation.disk import Drop, SimDisk, Sync


class TestLocalLogOnTheMachine(LogConformance):
    disk: OsDisk
    segment_bytes = 64 * 1024 * 1024
    durability: Durability = "full"

    async def open_log(self) -> Log:
        self.disk = OsDisk(self.folder / "state")
        return await self.open_on(self.disk)

    async def reopen(self, log: Log) -> Log:
        await log.close()
        self.disk.close()
        return await self.open_log()

    async def open_on(self, disk: Disk) -> Log:
        return await LocalLog.open(
            disk, durability=self.durability, segment_bytes=self.segment_bytes
        )


class TestLocalLogInSmallSegments(TestLocalLogOnTheMachine):
    segment_bytes = 5000


class TestFastLocalLog(TestLocalLogOnTheMachine):
    segment_bytes = 20_000
    durability: Durability = "fast"


class TestLocalLogOnASimulatedDisk(LogConformance):
    segment_bytes = 5000
    disk: SimDisk

    async def open_log(self) -> Log:
        self.disk = SimDisk(ManualClock(seed=3))
        self.disk.sync_seconds = 0.0001
        return await self.open_on_disk()

    async def reopen(self, log: Log) -> Log:
        await log.close()
        self.disk = self.disk.restart()
        return await self.open_on_disk()

    async def open_on_disk(self) -> Log:
        return await LocalLog.open(self.disk, segment_bytes=self.segment_bytes)


class TestLocalLogAfterPowerCuts(TestLocalLogOnASimulatedDisk):
    """Every reopening comes after a power cut, without a close."""

    async def reopen(self, log: Log) -> Log:
        self.disk = self.disk.power_cut("mixed")
        with contextlib.suppress(StoreStoppedError):
            await log.close()
        return await self.open_on_disk()


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(ManualClock(seed=1))


async def a_closed_log(disk: SimDisk, count: int, *, segment_bytes: int = 1 << 20) -> SimDisk:
    log = await LocalLog.open(disk, segment_bytes=segment_bytes)
    await RecordChain().append_to(log, count)
    await log.close()
    return disk.restart()


def segments(disk: Disk) -> list[str]:
    return [name for name in disk.names() if name.endswith(".part")]


async def test_an_append_that_is_alone_is_as_durable(disk: SimDisk) -> None:
    log = await LocalLog.open(disk)
    sequence, raw = RecordChain().next()

    await log.append(sequence, raw, alone=True)

    log = await LocalLog.open(disk.power_cut("lost"))
    assert await read(log, 1) == [(sequence, raw)]
    await log.close()


async def test_the_tip_tells_what_the_next_record_continues(disk: SimDisk) -> None:
    chain = RecordChain(epoch=4)
    log = await LocalLog.open(disk)
    await chain.append_to(log, 3)
    await log.close()

    log = await LocalLog.open(disk.restart())

    assert log.tip == (3, chain.previous, 4)
    await log.close()


async def test_a_full_disk_refuses_one_append_and_the_log_goes_on_when_there_is_room(
    disk: SimDisk,
) -> None:
    log = await LocalLog.open(disk)
    chain = RecordChain()
    appended = await chain.append_to(log, 2)
    sequence, raw = chain.next()

    disk.room = 10
    for _ in range(2):
        with pytest.raises(StoreFullError):
            await log.append(sequence, raw)
    assert await read(log, 1) == appended
    disk.room = None
    await log.append(sequence, raw)

    log = await LocalLog.open(disk.power_cut("lost"))
    assert await read(log, 1) == [*appended, (sequence, raw)]
    await log.close()


async def test_a_disk_that_fills_up_when_a_segment_begins_refuses_one_append(
    disk: SimDisk,
) -> None:
    log = await LocalLog.open(disk, segment_bytes=400)
    chain = RecordChain()
    appended = await chain.append_to(log, 3)
    sequence, raw = chain.next(bytes(300))

    disk.room = 10
    with pytest.raises(StoreFullError):
        await log.append(sequence, raw)
    disk.room = 60
    with pytest.raises(StoreFullError):
        await log.append(sequence, raw)
    disk.room = None
    await log.append(sequence, raw)
    await log.close()

    log = await LocalLog.open(disk.restart())
    assert await read(log, 1) == [*appended, (sequence, raw)]
    await log.close()


async def test_a_full_disk_can_be_truncated(disk: SimDisk) -> None:
    log = await LocalLog.open(disk, segment_bytes=400)
    await RecordChain().append_to(log, 20)

    disk.room = 0
    await log.truncate(21)

    assert log.first > 15
    await log.close()


@pytest.mark.parametrize("alone", [False, True])
async def test_after_a_failed_sync_nothing_is_acknowledged_and_reads_go_on(
    disk: SimDisk, alone: bool
) -> None:
    log = await LocalLog.open(disk)
    chain = RecordChain()
    appended = await chain.append_to(log, 3)
    sequence, raw = chain.next()

    disk.fail_sync()
    for _ in range(3):
        with pytest.raises(StoreStoppedError):
            await log.append(sequence, raw, alone=alone)
    with pytest.raises(StoreStoppedError):
        await log.truncate(3)
    assert await read(log, 1) == appended
    assert log.last == 3
    await log.close()

    log = await LocalLog.open(disk.power_cut("lost"))
    assert await read(log, 1) == appended
    await log.append(sequence, raw)
    await log.close()


async def test_a_cancelled_append_whose_sync_fails_stops_the_log(disk: SimDisk) -> None:
    log = await LocalLog.open(disk)
    chain = RecordChain()
    disk.sync_seconds = 0.001
    disk.fail_sync()
    append = asyncio.create_task(log.append(*chain.next()))
    await asyncio.sleep(0)
    append.cancel()

    with pytest.raises(StoreStoppedError):
        await log.append(*RecordChain().next())

    assert log.last == 0
    await log.close()


@pytest.mark.parametrize("after", range(6))
async def test_a_failed_sync_of_a_new_segment_stops_the_log(disk: SimDisk, after: int) -> None:
    log = await LocalLog.open(disk, segment_bytes=400)
    chain = RecordChain()
    appended = await chain.append_to(log, 3)

    disk.fail_sync(after)
    is_stopped = False
    while not is_stopped:
        appended += [chain.next()]
        try:
            await log.append(*appended[-1])
        except StoreStoppedError:
            is_stopped = True
    assert len(appended) < 10
    await log.close()

    log = await LocalLog.open(disk.power_cut("lost"))
    assert await read(log, 1) == appended[:-1]
    await log.close()


async def test_appends_that_are_cancelled_at_a_new_segment_leave_a_log_that_opens(
    disk: SimDisk,
) -> None:
    disk.sync_seconds = 0.0005
    log = await LocalLog.open(disk, segment_bytes=400)
    chain = RecordChain()
    for number in range(30):
        # A small record after a large one that was cancelled would fit where the large one did not.
        sequence, raw = chain.next(bytes(10 if number % 2 else 200))
        append = asyncio.create_task(log.append(sequence, raw))
        await asyncio.sleep(0.0004 * (number % 5))
        append.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await append
        with contextlib.suppress(UsageError):
            await log.append(sequence, raw)
        assert log.last == sequence
    await log.close()

    log = await LocalLog.open(disk.restart())
    assert log.last == 30
    assert len(await read(log, 1)) == 30
    await log.close()


async def test_a_record_that_does_not_continue_the_last_is_never_written(disk: SimDisk) -> None:
    log = await LocalLog.open(disk)
    chain = RecordChain(epoch=5)
    await chain.append_to(log, 2)

    for stranger in (RecordChain(2, bytes(16), 5), RecordChain(2, chain.previous, 4)):
        with pytest.raises(ChainBrokenError):
            await log.append(*stranger.next())
    with pytest.raises(UsageError):
        await log.append(3, b"no record at all")

    await chain.append_to(log, 1)
    await log.close()


async def test_a_reader_in_the_middle_of_a_large_segment_finds_its_record(disk: SimDisk) -> None:
    log = await LocalLog.open(disk)
    appended = await RecordChain().append_to(log, 300, bytes(10_000))

    for sequence in (1, 26, 27, 150, 299, 300):
        assert await anext(log.read_from(sequence)) == appended[sequence - 1]
    await log.close()
    log = await LocalLog.open(disk.restart())
    for sequence in (1, 26, 27, 150, 299, 300):
        assert await anext(log.read_from(sequence)) == appended[sequence - 1]
    await log.close()


async def test_a_reader_whose_segment_goes_is_told(disk: SimDisk) -> None:
    log = await LocalLog.open(disk, segment_bytes=400)
    await RecordChain().append_to(log, 20)
    records = log.read_from(1)
    await anext(records)

    await log.truncate(15)

    with pytest.raises(NotReadableError):
        _ = [found async for found in records]
    await log.close()


async def test_a_closed_log_is_not_readable(disk: SimDisk) -> None:
    log = await LocalLog.open(disk)
    await RecordChain().append_to(log, 1)
    await log.close()

    with pytest.raises(StateClosedError):
        await anext(log.read_from(1))


class TestDamage:
    async def test_a_missing_segment_is_named(self) -> None:
        for number in range(3):
            found = await a_closed_log(SimDisk(ManualClock()), 60, segment_bytes=1000)
            names = segments(found)
            assert len(names) > 3
            gone = names[number + 1]
            found.remove(gone)

            with pytest.raises(ChainBrokenError) as refused:
                await LocalLog.open(found)

            assert refused.value.facts["file"] == names[number + 2]
            assert "backup" in refused.value.hint

    async def test_the_last_segment_does_not_vanish_unseen(self, disk: SimDisk) -> None:
        disk = await a_closed_log(disk, 30, segment_bytes=1000)
        disk.remove(segments(disk)[-1])

        with pytest.raises(ChainBrokenError):
            await LocalLog.open(disk)

    async def test_a_log_does_not_vanish_unseen(self, disk: SimDisk) -> None:
        disk = await a_closed_log(disk, 3)
        disk.remove(segments(disk)[0])

        with pytest.raises(ChainBrokenError):
            await LocalLog.open(disk)
        assert segments(disk) == []

    async def test_a_checkpoint_remembers_a_log_that_vanished(self, disk: SimDisk) -> None:
        with pytest.raises(ChainBrokenError):
            await LocalLog.open(disk, chain=(7, bytes(16)))

    async def test_a_file_that_lost_its_end_after_a_close_is_refused(self, disk: SimDisk) -> None:
        disk = await a_closed_log(disk, 5)
        (name,) = segments(disk)
        for size in range(HEADING_BYTES, disk.size(name)):
            short = disk.restart()
            whole = short.read(name)
            file = short.grow(name, size)

            with pytest.raises(DamageError):
                await LocalLog.open(short)

            assert short.read(name) == whole[:size]
            file.write(whole[size:])
            disk = short

    async def test_damage_says_where_and_changes_nothing(self, disk: SimDisk) -> None:
        disk = await a_closed_log(disk, 10)
        (name,) = segments(disk)
        place = disk.read(name).index(b"key-4")
        disk.flip(name, place, 3)
        before = {name: disk.read(name) for name in disk.names()}

        with pytest.raises(ChecksumError) as refused:
            await LocalLog.open(disk)

        assert refused.value.facts["file"] == name
        assert refused.value.facts["sequence"] == 4
        assert HEADING_BYTES < int(str(refused.value.facts["offset"])) < place
        assert "partita state verify" in refused.value.hint
        assert {name: disk.read(name) for name in disk.names()} == before

    async def test_damage_that_comes_while_the_log_is_open_is_not_read(self, disk: SimDisk) -> None:
        log = await LocalLog.open(disk)
        await RecordChain().append_to(log, 10)
        (name,) = segments(disk)
        disk.flip(name, disk.read(name).index(b"key-4"))

        records = log.read_from(1)
        assert [sequence for sequence, _ in await take(records, 3)] == [1, 2, 3]
        with pytest.raises(ChecksumError):
            await anext(records)
        await log.close()

    async def test_frames_inside_a_value_are_no_witnesses(self, disk: SimDisk) -> None:
        log = await LocalLog.open(disk)
        chain = RecordChain()
        await chain.append_to(log, 3)
        (name,) = segments(disk)
        await chain.append_to(log, 1, disk.read(name) + FRAME_START * 100)

        cut = disk.power_cut("lost")
        cut.grow(name, cut.size(name) - 1)  # as if the last sync had not been

        log = await LocalLog.open(cut)
        assert log.last == 3
        await log.close()

    async def test_a_segment_of_another_log_is_refused(self, disk: SimDisk) -> None:
        other = SimDisk(ManualClock())
        log = await LocalLog.open(other, segment_bytes=1000)
        await RecordChain(epoch=2).append_to(log, 30)
        await log.close()
        other = other.restart()
        disk = await a_closed_log(disk, 30, segment_bytes=1000)
        assert segments(disk) == segments(other)
        name = segments(disk)[1]
        file = disk.create(name)
        file.write(other.read(name))

        with pytest.raises(ChainBrokenError):
            await LocalLog.open(disk)

    async def test_a_checkpoint_of_another_log_is_refused(self, disk: SimDisk) -> None:
        disk = await a_closed_log(disk, 10)
        log = await LocalLog.open(disk)
        tip = log.tip
        await log.close()

        for chain in ((4, bytes(16)), (10, bytes(16)), (11, tip.hash)):
            with pytest.raises(ChainBrokenError):
                await LocalLog.open(disk.restart(), chain=chain)
        log = await LocalLog.open(disk.restart(), chain=(10, tip.hash))
        await log.close()

    async def test_a_hole_between_checkpoint_and_log_is_refused(self, disk: SimDisk) -> None:
        log = await LocalLog.open(disk, segment_bytes=400)
        chain = RecordChain()
        await chain.append_to(log, 1)
        hash_of_first = chain.previous
        await chain.append_to(log, 20)
        await log.truncate(15)
        await log.close()

        with pytest.raises(ChainBrokenError):
            await LocalLog.open(disk.restart(), chain=(1, hash_of_first))

    async def test_an_invalid_segment_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        name = f"log-{1:020}.part"
        (tmp_path / name).write_bytes(b"dear diary, today I wrote a log of my own")
        disk = OsDisk(tmp_path)

        with pytest.raises(ChecksumError):
            await LocalLog.open(disk)

        disk.close()
        assert (tmp_path / name).read_bytes().startswith(b"dear diary")

    async def test_a_newer_format_is_refused_by_name(self, disk: SimDisk) -> None:
        body = struct.pack(">8sIQQ16s", b"PARTLOG\n", 2, 1, 0, bytes(16))
        file = disk.create(f"log-{1:020}.part")
        file.write(body + crc32c(body).to_bytes(4))

        with pytest.raises(FormatVersionError, match="format 2"):
            await LocalLog.open(disk)

    async def test_lost_marks_lose_no_record(self, disk: SimDisk) -> None:
        disk = await a_closed_log(disk, 10)
        disk.remove(MARKS_FILE)

        log = await LocalLog.open(disk)

        assert log.last == 10
        await log.close()


async def test_a_restored_state_begins_its_log_after_the_checkpoint(disk: SimDisk) -> None:
    chain = RecordChain(41, bytes([7]) * 16)
    log = await LocalLog.begin(disk, chain=(41, bytes([7]) * 16))
    assert (log.first, log.last) == (42, 41)
    appended = await chain.append_to(log, 3)
    await log.close()

    log = await LocalLog.open(disk.restart(), chain=(41, bytes([7]) * 16))

    assert await read(log, 42) == appended
    await log.close()
    with pytest.raises(UsageError):
        await LocalLog.begin(disk.restart())


async def test_marks_are_written_as_time_goes_on_and_stay_few(disk: SimDisk) -> None:
    log = await LocalLog.open(disk)
    chain = RecordChain()
    sizes = []
    for _ in range(MARKS_BYTES_MAX // MARK_BYTES + 10):
        await chain.append_to(log, 1)
        log._mark()
        sizes.append(disk.size(MARKS_FILE))

    assert max(sizes) >= MARKS_BYTES_MAX
    assert max(sizes) < MARKS_BYTES_MAX + MARK_BYTES
    assert sizes[-1] < 20 * MARK_BYTES
    await log.close()


async def test_fast_appends_are_synced_in_the_background(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.reliable.storage.local_log.FAST_SYNC_SECONDS", 0.001)
    log = await LocalLog.open(disk, durability="fast")
    appended = await RecordChain().append_to(log, 10)
    before = len(disk.events)
    while not isinstance(disk.events[-1], Sync):  # noqa: ASYNC110 - the disk knows no waiters
        await asyncio.sleep(0.001)

    assert len(disk.events) == before + 1
    log = await LocalLog.open(disk.power_cut("lost"))
    assert await read(log, 1) == appended
    await log.close()


async def test_fast_appends_are_durable_when_that_is_asked_for(disk: SimDisk) -> None:
    log = await LocalLog.open(disk, durability="fast")
    appended = await RecordChain().append_to(log, 10)

    await log.sync()

    log = await LocalLog.open(disk.power_cut("lost"))
    assert await read(log, 1) == appended
    await log.close()


async def test_a_failed_sync_in_the_background_stops_the_fast_log(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.reliable.storage.local_log.FAST_SYNC_SECONDS", 0.001)
    log = await LocalLog.open(disk, durability="fast")
    chain = RecordChain()
    disk.fail_sync()
    await chain.append_to(log, 1)
    while not isinstance(disk.events[-1], Drop):  # noqa: ASYNC110 - the disk knows no waiters
        await asyncio.sleep(0.001)

    with pytest.raises(StoreStoppedError):
        await log.append(*chain.next())
    await log.close()
