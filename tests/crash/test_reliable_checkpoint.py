"""Power cuts at every event of checkpoints, backups and restores on a simulated disk."""

import asyncio
from typing import get_args

import pytest

from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.reliable.manager import backup as backup_module
from partita.reliable.manager.backup import restore, write_backup
from partita.reliable.state import blocks as blocks_module
from partita.reliable.state.state import State
from partita.reliable.storage import checkpoint as checkpoint_module
from partita.reliable.storage import local_log
from partita.reliable.storage.backup_chain import read_chain
from partita.reliable.storage.checkpoint import RESTORE_FILE, name_of, verify_file
from partita.reliable.storage.disk import Disk, GrowingFile
from partita.reliable.storage.local_log import Durability, LocalLog
from partita.simulation.disk import Cut, Medium, SimDisk, boundaries
from support.histories import History
from support.repeats import repeat

SEEDS = range(repeat(1, 2, 30))
MIXED_CUTS = repeat(1, 2, 10)
CUTS: list[Cut] = [*get_args(Cut), *get_args(Cut)[-1:] * (MIXED_CUTS - 1)]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "FULL_ROWS", 8)
    monkeypatch.setattr(blocks_module, "FULL_BYTES", 500)
    monkeypatch.setattr(checkpoint_module, "ROWS_AT_ONCE", 8)
    monkeypatch.setattr(checkpoint_module, "BLOCK_BYTES", 500)
    monkeypatch.setattr(checkpoint_module, "OWN_SHARE", 1.0)
    monkeypatch.setattr(checkpoint_module, "SYNC_BYTES", 2000)
    monkeypatch.setattr(checkpoint_module, "CUT_BYTES", 900)


class Run:
    """A history with checkpoints on one disk, and how many events there were at each commit."""

    def __init__(self, seed: int, durability: Durability = "full") -> None:
        self.seed = seed
        self.durability = durability
        # Where segments are short, rotation syncs them before a checkpoint is done.
        self.segment_bytes = 1500 if durability == "full" else 2**20
        self.disk = SimDisk(ManualClock(seed=seed))
        self.acknowledged: list[tuple[int, int]] = []
        self.digests: dict[int, str] = {}

    async def play(self, checkpoints: int = 4) -> None:
        history = await History.open(
            self.disk,
            seed=self.seed,
            segment_bytes=self.segment_bytes,
            durability=self.durability,
        )
        self.digests = history.digests
        for _ in range(checkpoints):
            await self._commits(history, 8)
            working = asyncio.create_task(history.checkpoint())
            while not working.done():
                await self._commits(history, 1)
                await asyncio.sleep(0)
            await working
        await self._commits(history, 4)
        await history.close()

    async def _commits(self, history: History, count: int) -> None:
        for _ in range(count):
            sequence = await history.commit()
            self.acknowledged.append((len(self.disk.events), sequence))

    def acknowledged_at(self, number: int) -> int:
        return max((sequence for at, sequence in self.acknowledged if at <= number), default=0)

    async def faults(self) -> list[str]:
        """Cut the power at every event, in every way, and tell what was not recovered."""
        found: list[str] = []
        for number, medium in boundaries(self.disk.events):
            for cut in CUTS:
                fault = await self._fault(number, medium, cut)
                found += [f"seed {self.seed}, event {number}, {cut}: {fault}"] if fault else []
        return found

    async def _fault(self, number: int, medium: Medium, cut: Cut) -> str:
        clock = ManualClock(seed=number)
        disk = SimDisk(clock, medium.after_power_cut(cut, clock))
        try:
            history = await History.open(disk, segment_bytes=1500)
        except PartitaError as error:
            return str(error)
        sequence, digest = history.state.sequence, history.state.digest()
        await history.close()
        if self.durability == "full" and sequence < self.acknowledged_at(number):
            return f"recovered {sequence}, acknowledged {self.acknowledged_at(number)}"
        return "" if digest == self.digests[sequence] else f"another state at {sequence}"


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_power_cut_at_any_event_loses_nothing(seed: int) -> None:
    run = Run(seed)
    await run.play()

    assert await run.faults() == []


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_log_that_syncs_later_never_ends_before_its_checkpoint(seed: int) -> None:
    run = Run(seed, "fast")
    await run.play(checkpoints=2)

    assert await run.faults() == []


@pytest.mark.proof
async def test_a_checkpoint_of_records_that_were_not_synced_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def write_at_once(history: History) -> None:
        await history.checkpoints.write(history.state)

    monkeypatch.setattr(History, "checkpoint", write_at_once)
    monkeypatch.setattr(local_log, "FAST_SYNC_SECONDS", 3600.0)  # not before the checkpoint ends
    run = Run(0, "fast")
    await run.play(checkpoints=2)

    assert await run.faults() != []


async def _named_before_its_sync(disk: Disk, file: GrowingFile, name: str) -> None:
    file.close()
    disk.rename(file.name, name)
    await disk.sync_folder()


async def _never_synced_by_name(disk: Disk, file: GrowingFile, name: str) -> None:
    await file.sync()
    file.close()
    disk.rename(file.name, name)


@pytest.mark.proof
async def test_a_checkpoint_that_is_named_before_its_sync_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_module, "put_in_place", _named_before_its_sync)
    run = Run(0)
    await run.play()

    assert await run.faults() != []


@pytest.mark.proof
async def test_a_checkpoint_whose_name_is_never_synced_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_module, "put_in_place", _never_synced_by_name)
    run = Run(0)
    await run.play()

    assert await run.faults() != []


@pytest.mark.proof
async def test_a_log_that_is_cut_before_the_checkpoint_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut_first(history: History) -> None:
        await history.log.truncate(history.state.sequence + 1)
        await history.checkpoints.write(history.state)

    monkeypatch.setattr(History, "checkpoint", cut_first)
    run = Run(0)
    await run.play()

    assert await run.faults() != []


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_power_cut_during_a_backup_leaves_a_chain(seed: int) -> None:
    history = await History.open(SimDisk(ManualClock(seed=seed)), seed=seed)
    folder = SimDisk(ManualClock(seed=seed))
    ends: list[int] = []
    for incremental in (False, True, True, False, True):
        await history.commits(10)
        await write_backup(history, folder, incremental=incremental)
        ends.append(len(folder.events))

    for number, medium in boundaries(folder.events):
        made = sum(end <= number for end in ends)
        for cut in CUTS if made else []:
            clock = ManualClock(seed=number)
            chain = await read_chain(SimDisk(clock, medium.after_power_cut(cut, clock)))
            assert chain[-1].number in (made, made + 1), f"seed {seed}, event {number}, {cut}"


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_power_cut_during_a_restore_leaves_one_of_two_states(seed: int) -> None:
    assert await restore_faults(seed) == []


@pytest.mark.proof
async def test_a_restore_that_is_named_before_the_old_log_is_gone_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def name_first(target: Disk) -> bool:
        if RESTORE_FILE not in target.names():
            return False
        found = await verify_file(target, RESTORE_FILE)
        target.rename(RESTORE_FILE, name_of(found.sequence))
        await target.sync_folder()
        for name in target.names():
            if name != name_of(found.sequence):
                target.remove(name)
        await target.sync_folder()
        log = await LocalLog.begin(target, chain=(found.sequence, found.hash))
        await log.close()
        return True

    monkeypatch.setattr(backup_module, "finish_restore", name_first)

    assert await restore_faults(0) != []


async def restore_faults(seed: int) -> list[str]:
    """Restore over another state, cut the power at every event, and tell what was found mixed."""
    folder = SimDisk(ManualClock(seed=seed))
    backed_up = await History.open(SimDisk(ManualClock(seed=seed)), seed=seed)
    await backed_up.commits(30)
    await write_backup(backed_up, folder, incremental=False)
    await backed_up.commits(10)
    await write_backup(backed_up, folder, incremental=True)
    target = SimDisk(ManualClock(seed=seed))
    before = (await a_longer_history(target, seed)).digest()
    first = len(target.events)
    restored = await restore(folder, target, ManualClock(), force=True)
    backed_up.state.epoch = restored.epoch
    after = backed_up.state.digest()

    faults: list[str] = []
    allowed = [before, after]
    for number, medium in boundaries(target.events):
        for cut in CUTS if number >= first else []:
            clock = ManualClock(seed=number)
            found = await reopened(medium.after_power_cut(cut, clock), clock)
            faults += [f"seed {seed}, event {number}, {cut}"] if found not in allowed else []
            if cut == "lost" and found == after:
                allowed = [after]  # it was decided: nothing brings the old state back
    return [*faults, *(["never decided"] if before in allowed else [])]


async def a_longer_history(target: SimDisk, seed: int) -> State:
    history = await History.open(target, seed=seed + 1000, segment_bytes=1500)
    await history.commits(50)
    await history.checkpoint()
    await history.commits(20)
    await history.close()
    return history.state


async def reopened(medium: Medium, clock: ManualClock) -> str:
    """Recover, and once more after a second power cut: what was recovered stays."""
    disk = SimDisk(clock, medium)
    try:
        found = await History.open(disk, segment_bytes=1500)
        again = await History.open(disk.power_cut("mixed"), segment_bytes=1500)
    except PartitaError as error:
        return str(error)
    is_same = found.state.digest() == again.state.digest()
    return found.state.digest() if is_same else "another state after the second power cut"
