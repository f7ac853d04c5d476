"""A state on a disk that fails, fills, forgets and lies, and in folders that are not its own."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import partita
from crash.state_ledger import Ledger, a_worker
from partita.clock import ManualClock
from partita.errors import (
    ConfigurationError,
    DamageError,
    PartitaError,
    StoreFullError,
    StoreLockedError,
    StoreStoppedError,
)
from partita.reliable import ReliableDictionary
from partita.reliable.manager.backup import RestoreContext
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_local
from partita.reliable.storage.local_log import LocalLog
from partita.simulation.disk import CUTS, SimDisk, SimFile
from support.repeats import repeat
from support.states import Machine, simulate

NEVER = 2**40


@dataclass
class Told:
    """What was told about the numbers that a script wrote."""

    acknowledged: list[int] = field(default_factory=list)
    refused: dict[int, PartitaError] = field(default_factory=dict)
    checkpoints: list[PartitaError] = field(default_factory=list)
    syncs: int = 0

    @property
    def kinds(self) -> set[type[PartitaError]]:
        return {type(error) for error in self.refused.values()}


async def opened(disk: SimDisk) -> tuple[StateManager, ReliableDictionary[int, str]]:
    state = await open_local(disk, ManualClock(), checkpoint_bytes=NEVER)
    assert isinstance(state.log, LocalLog)
    state.log.segment_bytes = 700
    return state, await state.dictionary("numbers", key=int, value=str)


async def write(state: StateManager, numbers: ReliableDictionary[int, str], number: int) -> None:
    async with state.transaction() as tx:
        await numbers.set(tx, number, f"{number}" * 9)


async def rows_of(state: StateManager) -> set[int]:
    numbers = await state.dictionary("numbers", key=int, value=str)
    async with state.snapshot() as snapshot:
        rows = {key: value async for key, value in numbers.items(snapshot)}
    assert all(value == f"{key}" * 9 for key, value in rows.items())
    return set(rows)


async def rows_on(disk: SimDisk) -> set[int]:
    state = await open_local(disk, ManualClock(), checkpoint_bytes=NEVER)
    try:
        return await rows_of(state)
    finally:
        await state.close()


async def a_script(
    state: StateManager, numbers: ReliableDictionary[int, str], *, start: int = 0, count: int = 24
) -> Told:
    """Write numbers, alone and in groups of three, with a checkpoint now and then."""
    told = Told()

    async def one(number: int) -> None:
        try:
            await write(state, numbers, number)
        except PartitaError as error:
            told.refused[number] = error
        else:
            told.acknowledged.append(number)

    for first in range(start, start + count, 6):
        for number in range(first, first + 3):
            await one(number)
        await asyncio.gather(*(one(number) for number in range(first + 3, first + 6)))
        try:
            await state.checkpoint()
        except PartitaError as error:
            told.checkpoints.append(error)
    return told


# A sync that fails


class _CountingDisk(SimDisk):
    """Counts its syncs, and fails one of them."""

    def __init__(self, failing: int | None) -> None:
        super().__init__(ManualClock())
        if failing is not None:
            self.fail_sync(after=failing)
        self.syncs = 0

    def _sync_fails(self) -> bool:
        self.syncs += 1
        return super()._sync_fails()


async def a_script_with_failing_sync(failing: int | None) -> tuple[_CountingDisk, Told]:
    disk = _CountingDisk(failing)
    try:
        state, numbers = await opened(disk)
    except StoreStoppedError:
        return disk, Told()
    told = await a_script(state, numbers)
    assert await rows_of(state) == set(told.acknowledged), "reads go on, of what is committed"
    with contextlib.suppress(StoreStoppedError):
        await state.close()
    told.syncs = disk.syncs
    return disk, told


async def test_whichever_sync_fails_nothing_more_is_acknowledged_and_nothing_is_lost() -> None:
    _, honest = await a_script_with_failing_sync(None)
    assert len(honest.acknowledged) == 24
    assert not honest.checkpoints
    assert honest.syncs > 40
    stopped = 0
    for failing in range(honest.syncs):
        disk, told = await a_script_with_failing_sync(failing)

        stopped += bool(told.refused)
        assert told.kinds <= {StoreStoppedError}, failing
        assert {type(error) for error in told.checkpoints} <= {StoreStoppedError}, failing
        if told.refused:
            assert max(told.acknowledged, default=-1) < min(told.refused), failing
            assert told.acknowledged == [*range(len(told.acknowledged))], failing

        # The next process, on the same machine: its memory may show what the disk never got.
        state, numbers = await opened(disk.restart())
        again = await rows_of(state)
        assert set(told.acknowledged) <= again, failing
        await write(state, numbers, 99)
        for cut in CUTS:
            kept = SimDisk(ManualClock(), disk._medium.after_power_cut(cut, ManualClock()))
            assert await rows_on(kept) == {*again, 99}, (failing, cut)
        more = await a_script(state, numbers, start=100)
        assert len(more.acknowledged) == 24, failing
        await state.close()
    assert stopped > 20


async def test_a_process_that_trusts_the_memory_after_a_failed_sync_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimFile, "renew", lambda _file, _start: None)
    disk = SimDisk(ManualClock())
    state, numbers = await opened(disk)
    disk.fail_sync()
    with pytest.raises(StoreStoppedError):
        await write(state, numbers, 1)
    await state.close()
    disk = disk.restart()
    state, numbers = await opened(disk)
    await write(state, numbers, 2)

    with pytest.raises(DamageError):
        await rows_on(disk.power_cut("lost"))


@pytest.mark.parametrize("cut", CUTS)
async def test_a_power_cut_after_a_failed_sync_loses_nothing_acknowledged(cut: str) -> None:
    for failing in range(4, 40, 3):
        disk, told = await a_script_with_failing_sync(failing)

        found = await rows_on(disk.power_cut(cut))  # type: ignore[arg-type]

        assert set(told.acknowledged) <= found <= {*told.acknowledged, *told.refused}


async def test_all_transactions_of_a_group_whose_sync_failed_are_refused() -> None:
    machine = Machine()
    async with machine.open() as state:
        numbers = await state.dictionary("numbers", key=int, value=str)
        machine.disk.fail_sync()

        ended = await asyncio.gather(
            *(write(state, numbers, number) for number in range(50)), return_exceptions=True
        )

        assert {type(error) for error in ended} == {StoreStoppedError}
        with pytest.raises(StoreStoppedError):
            await state.dictionary("others", key=int, value=str)
        with pytest.raises(StoreStoppedError):
            await state.drop("numbers")
        with pytest.raises(StoreStoppedError):
            await state.run(lambda tx: numbers.set(tx, 1, "1"))
        assert await rows_of(state) == set()


@pytest.mark.skipif(shutil.which("strace") is None, reason="only strace can fail a real sync")
@pytest.mark.parametrize("when", [12, 30, 55])
def test_a_process_whose_disk_fails_to_sync_stops_and_has_lost_nothing(
    tmp_path: Path, when: int
) -> None:
    calls = "fsync,fdatasync"
    faults = f"inject={calls}:error=EIO:when={when}"  # only once: the next would succeed
    prefix = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", f"trace={calls}"]
    with a_worker(tmp_path, [], [*prefix, "-e", faults]) as worker:
        _, errors = worker.process.communicate(timeout=60)

    assert worker.process.returncode == 1
    assert b"StoreStopped: The disk failed (Input/output error)" in errors
    assert "EIO" in (tmp_path / "trace").read_text()
    ledger = Ledger(tmp_path)
    assert asyncio.run(ledger.faults()) == []
    assert len(ledger.told) > when / 2


# A disk that is full


async def test_wherever_the_room_ends_the_refused_are_undone_and_the_rest_is_kept() -> None:
    full = 0
    for room in range(0, 2600, repeat(39, 13, 1)):
        disk = SimDisk(ManualClock())
        state, numbers = await opened(disk)
        await write(state, numbers, -1)
        disk.room = room
        told = await a_script(state, numbers, count=12)
        full += bool(told.refused)
        assert told.kinds <= {StoreFullError}, room
        assert {type(error) for error in told.checkpoints} <= {StoreFullError}, room
        assert await rows_of(state) == {-1, *told.acknowledged}, room
        assert not any(name.startswith("checkpoint") and ".new" in name for name in disk.names())

        disk.room = None
        await write(state, numbers, -2)
        await state.checkpoint()
        await write(state, numbers, -3)

        kept = {-1, -2, -3, *told.acknowledged}
        assert await rows_of(state) == kept, room
        for cut in CUTS:
            found = SimDisk(ManualClock(), disk._medium.after_power_cut(cut, ManualClock()))
            assert await rows_on(found) == kept, (room, cut)
        await state.close()
        assert await rows_on(disk.restart()) == kept, room
    assert full > 20


async def test_a_refused_transaction_lets_go_of_its_locks_and_items() -> None:
    machine = Machine()
    async with machine.open() as state:
        numbers = await state.dictionary("numbers", key=int, value=str)
        queue = await state.queue("queue", value=str)
        jobs = await state.concurrent_queue("jobs", value=str)
        async with state.transaction() as tx:
            await queue.enqueue(tx, "item")
            await jobs.enqueue(tx, "job")
        machine.disk.room = 0

        tx = state.transaction()
        await numbers.set(tx, 1, "1")
        assert await queue.dequeue(tx) == "item"
        assert await jobs.dequeue(tx) == "job"
        with pytest.raises(StoreFullError) as refused:
            await tx.commit()
        machine.disk.room = None

        assert refused.value.code == "StoreFull"
        async with state.transaction(timeout=0) as tx:
            assert await numbers.get(tx, 1, None) is None
            await numbers.set(tx, 1, "2")
            assert await queue.dequeue(tx) == "item"
            assert await jobs.dequeue(tx) == "job"


def test_a_checkpoint_that_finds_no_room_is_made_when_there_is_some() -> None:
    async def scenario(state: StateManager) -> None:
        disk = state.log._disk  # type: ignore[attr-defined]
        numbers = await state.dictionary("numbers", key=int, value=str)
        state.checkpoint_writer._checkpoint_bytes = 100
        async with state.transaction() as tx:
            for number in range(100):
                await numbers.set(tx, number, f"{number}" * 9)
        disk.room = 500
        await asyncio.sleep(5.2)  # between two attempts
        assert not any(name.startswith("checkpoint-") for name in disk.names())
        assert not any(".new" in name for name in disk.names())

        disk.room = None
        await asyncio.sleep(1)

        assert state.checkpoints.newest is not None
        assert state.log.first == state.sequence + 1, "the log behind it was cut"

    simulate(scenario)


async def test_a_state_opens_and_reads_on_a_disk_without_a_byte_left() -> None:
    disk = SimDisk(ManualClock())
    state, numbers = await opened(disk)
    told = await a_script(state, numbers)
    await state.close()
    disk = disk.restart()
    disk.room = 0

    state, numbers = await opened(disk)

    assert await rows_of(state) == set(told.acknowledged)
    with pytest.raises(StoreFullError):
        await write(state, numbers, 100)
    disk.room = None
    await write(state, numbers, 101)
    await state.close()
    assert await rows_on(disk.power_cut("lost")) == {*told.acknowledged, 101}


class SmallDisk:
    """A folder on a real file system of a few mebibytes."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self.folder = mount / "state"

    def fill(self) -> None:
        with (self.mount / "junk").open("ab", buffering=0) as junk, contextlib.suppress(OSError):
            while True:
                junk.write(bytes(4096))

    def give_room(self) -> None:
        (self.mount / "junk").unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root and a kernel that lets it")
    yield SmallDisk(tmp_path)
    subprocess.run(["umount", "-l", str(tmp_path)], capture_output=True, check=True)


async def fill(state: StateManager, start: int = 0) -> int:
    """Write until the disk is full; return the number of the first that was refused."""
    texts = await state.dictionary("texts", key=int, value=str)
    number = start
    while True:
        try:
            async with state.transaction() as tx:
                await texts.set(tx, number, f"{number:6}" * 3000)
        except StoreFullError:
            return number
        number += 1


async def count(state: StateManager) -> int:
    texts = await state.dictionary("texts", key=int, value=str)
    async with state.snapshot() as snapshot:
        async for number, text in texts.items(snapshot):
            assert text == f"{number:6}" * 3000
        return await texts.count(snapshot)


async def test_a_real_disk_that_is_full_refuses_writes_and_nothing_else(
    small_disk: SmallDisk,
) -> None:
    async with partita.open_state(small_disk.folder) as state:
        refused = await fill(state)
        assert refused > 100
        for _ in range(5):
            assert await fill(state, refused) == refused
        with pytest.raises(StoreFullError):
            await state.checkpoint()
        assert await count(state) == refused
    small_disk.fill()

    async with partita.open_state(small_disk.folder) as state:
        assert await count(state) == refused
        assert await fill(state, refused) == refused


async def test_a_real_disk_that_gets_room_takes_writes_again(small_disk: SmallDisk) -> None:
    async with partita.open_state(small_disk.folder) as state:
        for number in range(50):
            async with state.transaction() as tx:
                texts = await state.dictionary("texts", key=int, value=str)
                await texts.set(tx, number, f"{number:6}" * 3000)
        small_disk.fill()
        refused = await fill(state, 50)

        small_disk.give_room()

        more = await fill(state, refused)
        assert more > refused + 100

    async with partita.open_state(small_disk.folder) as state:
        assert await count(state) == more


# Damage


@contextlib.asynccontextmanager
async def a_folder(place: Path) -> AsyncIterator[Path]:
    """Keep twenty numbers with a checkpoint in the middle, and a backup of the first ten."""
    async with partita.open_state(place / "state") as state:
        numbers = await state.dictionary("numbers", key=int, value=str)
        for number in range(20):
            await write(state, numbers, number)
            if number == 9:
                await state.backup(place / "backups")
                await state.checkpoint()
    yield place / "state"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def the_file(folder: Path, prefix: str) -> Path:
    return max(path for path in folder.iterdir() if path.name.startswith(prefix))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def damage_log(folder: Path) -> None:
    path = the_file(folder, "log-0")
    flip(path, path.stat().st_size // 2)


def damage_last_record(folder: Path) -> None:
    path = the_file(folder, "log-0")
    flip(path, path.stat().st_size - 3)


def shorten_log(folder: Path) -> None:
    path = the_file(folder, "log-0")
    path.write_bytes(path.read_bytes()[:-3])


def damage_checkpoint(folder: Path) -> None:
    path = the_file(folder, "checkpoint-")
    flip(path, path.stat().st_size // 2)


def lose_checkpoint(folder: Path) -> None:
    the_file(folder, "checkpoint-").unlink()


def lose_log(folder: Path) -> None:
    the_file(folder, "log-0").unlink()


DAMAGES = [
    damage_log,
    damage_last_record,
    shorten_log,
    damage_checkpoint,
    lose_checkpoint,
    lose_log,
]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_state_refuses_to_open_says_what_to_do_and_changes_nothing(
    tmp_path: Path, damage: object
) -> None:
    async with a_folder(tmp_path) as folder:
        assert callable(damage)
        damage(folder)
        before = contents(folder)

        for _ in range(2):
            refused = await refusal(folder)
            assert isinstance(refused, DamageError)
            assert "restore a backup" in refused.hint.lower()
            assert refused.facts
        assert contents(folder) == before


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_data_loss_is_answered_by_a_backup_and_opening_goes_on(
    tmp_path: Path, damage: object
) -> None:
    causes: list[PartitaError] = []

    async def on_data_loss(context: RestoreContext) -> None:
        causes.append(context.cause)
        await context.restore(tmp_path / "backups")

    async with a_folder(tmp_path) as folder:
        assert callable(damage)
        damage(folder)

        async with partita.open_state(folder, on_data_loss=on_data_loss) as state:
            assert await rows_of(state) == {*range(10)}
            numbers = await state.dictionary("numbers", key=int, value=str)
            await write(state, numbers, 100)

        assert len(causes) == 1
        assert isinstance(causes[0], DamageError)
        async with partita.open_state(folder) as state:
            assert await rows_of(state) == {*range(10), 100}


async def test_a_data_loss_that_is_not_answered_is_told_and_the_folder_is_given_free(
    tmp_path: Path,
) -> None:
    async def shrug(_: RestoreContext) -> None:
        await asyncio.sleep(0)

    async def fail(_: RestoreContext) -> None:
        raise LookupError("no backup at hand")

    async with a_folder(tmp_path) as folder:
        damage_log(folder)

        with pytest.raises(DamageError):
            async with partita.open_state(folder, on_data_loss=shrug):
                pass
        with pytest.raises(LookupError):
            async with partita.open_state(folder, on_data_loss=fail):
                pass
        with pytest.raises(DamageError):
            async with partita.open_state(folder):
                pass


@pytest.mark.parametrize("tail", [b"\x00" * 5000, b"\xf6REC\x00\x00", b"torn " * 7])
async def test_a_torn_tail_is_cut_and_nothing_is_lost(tmp_path: Path, tail: bytes) -> None:
    async with a_folder(tmp_path) as folder:
        path = the_file(folder, "log-0")
        path.write_bytes(path.read_bytes() + tail)

        async with partita.open_state(folder) as state:
            assert await rows_of(state) == {*range(20)}
            numbers = await state.dictionary("numbers", key=int, value=str)
            await write(state, numbers, 20)
        async with partita.open_state(folder) as state:
            assert await rows_of(state) == {*range(21)}


# Folders that are not its own


async def refusal(folder: Path) -> PartitaError:
    with pytest.raises(PartitaError) as refused:
        async with partita.open_state(folder):
            pass
    assert refused.value.hint
    return refused.value


def test_the_folder_of_a_table_account_is_refused(tmp_path: Path) -> None:
    with partita.open_account(tmp_path):
        (folder,) = tmp_path.iterdir()
        assert isinstance(asyncio.run(refusal(folder)), StoreLockedError)
    before = contents(folder)

    refused = asyncio.run(refusal(folder))

    assert isinstance(refused, ConfigurationError)
    assert "table account" in refused.message
    assert contents(folder) == before


async def test_a_folder_of_backups_is_refused(tmp_path: Path) -> None:
    async with a_folder(tmp_path):
        before = contents(tmp_path / "backups")

        refused = await refusal(tmp_path / "backups")

        assert isinstance(refused, ConfigurationError)
        assert "backups" in refused.message
        assert contents(tmp_path / "backups") == before


async def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        assert isinstance(await refusal(place), ConfigurationError)

    assert (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    for place in (tmp_path, tmp_path / "below"):
        assert isinstance(asyncio.run(refusal(place)), ConfigurationError)


async def test_a_place_where_no_folder_can_be_is_refused() -> None:
    for place in (Path("/proc/partita"), Path("/dev/null")):
        assert isinstance(await refusal(place), ConfigurationError)


@pytest.mark.parametrize("name", ["log-00000000000000000001.part", "checkpoint-1.part"])
async def test_a_file_of_another_program_under_our_name_is_refused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("the diary of somebody else")

    refused = await refusal(tmp_path)

    assert isinstance(refused, DamageError)
    assert refused.code in ("LogDamaged", "CheckpointDamaged")
    assert (tmp_path / name).read_text() == "the diary of somebody else"
