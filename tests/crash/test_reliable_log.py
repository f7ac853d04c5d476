import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conformance.log import Kept, RecordChain, read
from partita.clock import ManualClock
from partita.errors import ChecksumError, DamageError, PartitaError, StoreStoppedError
from partita.reliable.storage.local_log import Durability, LocalLog
from partita.reliable.storage.os_disk import OsDisk
from partita.simulation.disk import (
    Cut,
    Event,
    Medium,
    SimDisk,
    SimFile,
    Sync,
    SyncFolder,
    boundaries,
)
from support.repeats import repeat

APPENDS = 200
SEGMENT_BYTES = 6000
MIXED_CUTS = repeat(2, 2, 20)
"""How often chance decides at each boundary, beside the cuts that are the same every time."""
CUTS: list[Cut] = ["lost", "kept", "torn", "reversed", *(["mixed"] * MIXED_CUTS)]  # type: ignore[list-item]


@dataclass
class Run:
    """What a run wrote, and how many events there were when each record was acknowledged."""

    appended: Kept = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    truncated: list[tuple[int, int]] = field(default_factory=list)
    """Events, and the sequence below which records were given free from then on."""
    events: list[Event] = field(default_factory=list)

    def acknowledged_at(self, number: int) -> int:
        return sum(position <= number for position in self.acknowledged)

    def free_below(self, number: int) -> int:
        return max((below for position, below in self.truncated if position <= number), default=1)


async def a_run(
    disk: SimDisk,
    *,
    count: int = APPENDS,
    durability: Durability = "full",
    append: Callable[[LocalLog, int, bytes], "asyncio.Future[None]"] | None = None,
) -> Run:
    """Append records of many sizes, in many segments, truncated now and then."""
    log = await LocalLog.open(disk, durability=durability, segment_bytes=SEGMENT_BYTES)
    chain, run = RecordChain(), Run()
    for number in range(count):
        value = bytes([number % 251]) * (number * 37 % 900)
        sequence, raw = chain.next(value)
        run.appended.append((sequence, raw))
        if append:
            await append(log, sequence, raw)
        else:
            await log.append(sequence, raw, alone=number % 3 == 0)
        run.acknowledged.append(len(disk.events))
        if number % 7 == 0:
            log._mark()  # as the timer would
        if number % 60 == 59:
            run.truncated.append((len(disk.events), sequence - 20))
            await log.truncate(sequence - 20)
    await log.close()
    run.events = disk.events
    return run


async def findings(run: Run, number: int, medium: Medium, cut: Cut, seed: int = 0) -> list[str]:
    """Open what a power cut leaves, and say what is wrong with it."""
    chance = ManualClock(seed=seed)
    disk = SimDisk(chance, medium.after_power_cut(cut, chance))
    acknowledged = run.acknowledged_at(number)
    try:
        log = await LocalLog.open(disk, segment_bytes=SEGMENT_BYTES)
        found = await read(log, log.first)
        wrong = []
        if log.last < acknowledged:
            wrong.append(f"{acknowledged} were acknowledged, {log.last} are there")
        if log.last > acknowledged + 1:
            wrong.append(f"{log.last} are there, {acknowledged + 1} were begun")
        if log.first > run.free_below(number):
            wrong.append(f"{log.first} is the first, {run.free_below(number)} was asked for")
        if found != run.appended[log.first - 1 : log.last]:
            wrong.append("it holds other records than were appended")
        if not wrong:
            appended = await RecordChain(log.last, log.tip.hash).append_to(log, 2)
            after = await LocalLog.open(disk.power_cut("lost"), segment_bytes=SEGMENT_BYTES)
            if await read(after, appended[0][0]) != appended:
                wrong.append("it does not go on")
    except PartitaError as error:
        return [f"event {number}, {cut}, seed {seed}: {error}"]
    return [f"event {number}, {cut}, seed {seed}: {fault}" for fault in wrong]


async def cut_everywhere(run: Run, cuts: list[Cut], step: int = 1) -> list[str]:
    wrong: list[str] = []
    for number, medium in boundaries(run.events):
        if number % step == 0:
            for kind, cut in enumerate(cuts):
                seed = number * len(cuts) + kind
                wrong += await findings(run, number, medium, cut, seed)
    return wrong


@pytest.mark.repeated
async def test_a_power_cut_at_any_boundary_loses_nothing_that_was_acknowledged() -> None:
    run = await a_run(SimDisk(ManualClock()))
    assert sum(isinstance(event, SyncFolder) for event in run.events) > 15
    assert sum(isinstance(event, Sync) for event in run.events) > APPENDS

    assert await cut_everywhere(run, CUTS, step=repeat(7, 1, 1)) == []


async def test_a_log_that_recovers_from_a_power_cut_survives_the_next_one() -> None:
    first = await a_run(SimDisk(ManualClock()), count=40)
    wrong: list[str] = []
    for number, medium in boundaries(first.events):
        chance = ManualClock(seed=number)
        disk = SimDisk(chance, medium.after_power_cut("mixed", chance))
        again = disk._medium.after_power_cut("kept", chance)
        log = await LocalLog.open(disk, segment_bytes=SEGMENT_BYTES)
        recovered = log.last
        for seed, event in enumerate([None, *disk.events]):
            if event is not None:
                again.apply(event)
            wrong += await findings(first, number, again, "mixed", seed)
        assert recovered >= first.acknowledged_at(number)
    assert wrong == []


async def test_what_a_killed_process_left_unsynced_is_durable_once_it_was_read() -> None:
    disk = SimDisk(ManualClock())
    log = await LocalLog.open(disk)
    chain = RecordChain()
    await chain.append_to(log, 3)
    disk.sync_seconds = 60.0
    append = asyncio.create_task(log.append(*chain.next()))
    await asyncio.sleep(0)
    disk = disk.restart()
    append.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await append
    assert log._work is not None
    log._work.cancel()

    log = await LocalLog.open(disk)
    assert log.last == 4

    log = await LocalLog.open(disk.power_cut("lost"))
    assert log.last == 4


# The same cuts must find logs that are broken on purpose.


class _TooEarly(LocalLog):
    """Acknowledges before it syncs."""

    async def _sync_and_acknowledge(self, tip):  # type: ignore[no-untyped-def]
        self._acknowledge(tip)


class _LazyFolderDisk(SimDisk):
    """Forgets to sync the names of new segments."""

    async def sync_folder(self) -> None:
        await asyncio.sleep(0)


class _RetryingFile:
    """Takes a failed sync for a passing trouble and tries again, as many programs did."""

    def __init__(self, file: SimFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    async def sync(self) -> None:
        try:
            await self._file.sync()
        except StoreStoppedError:
            await self._file.sync()


class _RetryingDisk(SimDisk):
    def grow(self, name: str, size: int) -> SimFile:
        return _RetryingFile(super().grow(name, size))  # type: ignore[return-value]


async def test_a_log_that_acknowledges_before_its_sync_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LocalLog, "_sync_and_acknowledge", _TooEarly._sync_and_acknowledge)
    run = await a_run(SimDisk(ManualClock()), count=60)
    monkeypatch.undo()

    wrong = await cut_everywhere(run, ["lost"])

    assert any("were acknowledged" in fault for fault in wrong)


async def test_a_log_that_does_not_sync_its_folder_is_found_out() -> None:
    run = await a_run(_LazyFolderDisk(ManualClock()), count=60)

    wrong = await cut_everywhere(run, ["lost"])

    assert any("are missing" in fault or "were acknowledged" in fault for fault in wrong)


async def test_a_log_that_tries_a_failed_sync_again_is_found_out() -> None:
    disk = _RetryingDisk(ManualClock())
    log = await LocalLog.open(disk)
    chain = RecordChain()
    await chain.append_to(log, 3)
    disk.fail_sync()
    await chain.append_to(log, 3)

    with pytest.raises(DamageError):
        await LocalLog.open(disk.power_cut("lost"))


@pytest.mark.proof
async def test_a_fast_log_is_found_losing_the_newest_and_never_in_the_middle() -> None:
    run = await a_run(SimDisk(ManualClock()), durability="fast")

    wrong = await cut_everywhere(run, CUTS, step=3)

    assert any("were acknowledged" in fault for fault in wrong)
    assert [fault for fault in wrong if "were acknowledged" not in fault] == []


# Damage


async def opened_after_flip(disk: SimDisk, name: str, place: int, bit: int) -> Kept | None:
    """Return what the log holds after a flip, or None when it refuses; the flip is undone."""
    disk = disk.restart()
    disk.flip(name, place, bit)
    images = {name: disk.read(name) for name in disk.names()}
    log: LocalLog | None = None
    try:
        log = await LocalLog.open(disk, segment_bytes=SEGMENT_BYTES)
        return await read(log, log.first)
    except DamageError:
        assert {name: disk.read(name) for name in disk.names()} == images
        return None
    finally:
        if log is not None:
            await log.close()


async def test_a_bit_that_flips_in_a_closed_log_is_never_read_and_nothing_is_cut() -> None:
    disk = SimDisk(ManualClock())
    log = await LocalLog.open(disk, segment_bytes=SEGMENT_BYTES)
    appended = await RecordChain().append_to(log, 50, bytes(300))
    await log.close()
    images = {name: disk.restart().read(name) for name in disk.restart().names()}
    assert len(images) > 3

    for name, image in images.items():
        for number, place in enumerate(range(0, len(image), 37)):
            copy = SimDisk(ManualClock())
            for other, content in images.items():
                copy.create(other).write(content)
            found = await opened_after_flip(copy, name, place, number % 8)
            if name.endswith(".part"):
                assert found is None, (name, place)
            else:
                assert found in (None, appended), (name, place)


async def test_after_a_crash_only_the_last_record_can_be_taken_for_a_torn_one() -> None:
    disk = SimDisk(ManualClock())
    log = await LocalLog.open(disk)
    appended = await RecordChain().append_to(log, 20, bytes(100))
    disk = disk.power_cut("lost")
    (name,) = [name for name in disk.names() if name.endswith(".part")]
    image = disk.read(name)
    marks = disk.read("log-marks")
    last = image.index(b"tx-20") - 100

    for place in range(0, len(image), 37):
        copy = SimDisk(ManualClock())
        copy.create(name).write(image)
        copy.create("log-marks").write(marks)
        found = await opened_after_flip(copy, name, place, place % 8)
        assert found in (None, appended[:-1]), place
        assert found is None or place > last, place


async def test_a_mark_protects_the_last_record_after_a_crash() -> None:
    disk = SimDisk(ManualClock())
    log = await LocalLog.open(disk)
    await RecordChain().append_to(log, 20)
    log._mark()  # as the timer does within a second
    disk = disk.power_cut("kept")
    (name,) = [name for name in disk.names() if name.endswith(".part")]

    disk.flip(name, disk.size(name) - 1)

    with pytest.raises(ChecksumError) as refused:
        await LocalLog.open(disk)

    assert refused.value.facts["file"] == name
    assert refused.value.facts["sequence"] == 20


# A process of its own

WORKER = Path(__file__).with_name("append_records.py")


def acknowledged_in(output: str) -> list[int]:
    return [int(line) for line in output.split("\n") if line.isdigit()]


async def last_of(folder: Path) -> int:
    disk = OsDisk(folder)
    log = await LocalLog.open(disk, segment_bytes=4000)
    assert [sequence for sequence, _ in await read(log, 1)] == [*range(1, log.last + 1)]
    await log.close()
    disk.close()
    return log.last


@pytest.mark.skipif(shutil.which("strace") is None, reason="only strace can fail a real sync")
@pytest.mark.parametrize(("when", "alone"), [(12, False), (31, False), (47, True)])
async def test_a_process_whose_disk_fails_to_sync_acknowledges_nothing_more(
    tmp_path: Path, when: int, alone: bool
) -> None:
    faults = f"inject=fsync,fdatasync:error=EIO:when={when}"  # only once: the next would succeed
    trace = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=fsync,fdatasync"]
    command = [sys.executable, str(WORKER), str(tmp_path / "state"), "400"]
    ended = await asyncio.to_thread(
        subprocess.run,
        [*trace, "-e", faults, *command, *(["alone"] if alone else [])],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    lines = ended.stdout.split()
    told = acknowledged_in(ended.stdout)
    assert lines[-6:] == ["stopped", "StoreStoppedError"] * 3
    assert len(told) == len(lines) - 6
    assert len(told) > when / 2
    assert "EIO" in (tmp_path / "trace").read_text()
    assert told[-1] <= await last_of(tmp_path / "state") <= told[-1] + 1


@pytest.mark.repeated
@pytest.mark.skipif(shutil.which("strace") is None, reason="only strace can kill at a sync")
async def test_a_process_that_is_killed_in_a_sync_loses_nothing_that_it_acknowledged(
    tmp_path: Path,
) -> None:
    told = 0
    for when in repeat((11,), (5, 11, 16, 30), (5, 11, 16, 30)):
        faults = f"inject=fsync,fdatasync:signal=KILL:when={when}"
        trace = ["strace", "-f", "-qq", "-o", str(tmp_path / "t"), "-e", "trace=fsync,fdatasync"]
        ended = await asyncio.to_thread(
            subprocess.run,
            [*trace, "-e", faults, sys.executable, str(WORKER), str(tmp_path / "state"), "9999"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert ended.returncode != 0
        told = max([told, *acknowledged_in(ended.stdout)])
        assert told <= await last_of(tmp_path / "state") <= told + 1
