import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import cast

import pytest

from partita.clock import ManualClock
from partita.errors import (
    BackupOrderError,
    ChecksumError,
    DamageError,
    FormatVersionError,
    PartitaError,
    StoreFullError,
    UnavailableError,
)
from partita.reliable import Transaction
from partita.reliable.manager import backup as backup_module
from partita.reliable.manager.backup import (
    LOG_BYTES_KEPT_MAX,
    Backups,
    RestoreContext,
    Restored,
    finish_restore,
    restore,
    write_backup,
)
from partita.reliable.opening import open_local, open_replicated
from partita.reliable.state import blocks as blocks_module
from partita.reliable.state.records import FORMAT, Record, decode_record, encode_record, record_hash
from partita.reliable.state.state import State
from partita.reliable.storage.backup_chain import Backup, check_of_format, read_chain
from partita.reliable.storage.log import Log
from partita.reliable.storage.os_disk import OsDisk
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.simulation.stream import SimCluster
from support.histories import History, digest_in_epoch
from support.repeats import repeat
from support.states import Machine, User

SEEDS = range(repeat(3, 10, 100))
CLOCK = ManualClock()


def a_disk(seed: int = 0) -> SimDisk:
    return SimDisk(ManualClock(seed=seed))


async def a_history(count: int = 20, *, seed: int = 0) -> History:
    history = await History.open(a_disk(seed), seed=seed)
    await history.commit([], epoch=1)
    await history.commits(count - 1)
    return history


async def a_chain(history: History, folder: SimDisk, increments: int = 3) -> list[Backup]:
    chain = [await write_backup(history, folder, incremental=False)]
    for _ in range(increments):
        await history.commits(5)
        chain.append(await write_backup(history, folder, incremental=True))
    return chain


async def opened(target: SimDisk) -> History:
    """Open what a restore left, as the next process would."""
    return await History.open(target.power_cut("lost"))


async def refusal(work: Awaitable[object]) -> str:
    with pytest.raises(PartitaError) as caught:
        await work
    assert caught.value.hint
    return caught.value.code


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_backup_of_a_random_chain_restores_its_own_sequence(seed: int) -> None:
    chance = random.Random(seed)
    history, folder = await a_history(seed=seed), a_disk(seed)
    made = [await write_backup(history, folder, incremental=False)]
    for _ in range(12):
        await history.commits(chance.randrange(1, 12))
        if chance.random() < 0.2:
            await history.commit([], epoch=history.state.epoch + 1)
        if chance.random() < 0.3:
            await history.checkpoint()
        made.append(await a_backup(history, folder, chance))

    for backup in made:
        target = a_disk(seed)
        restored = await restore(folder, target, CLOCK, up_to=backup.last_sequence)
        found = (await opened(target)).state
        assert restored.sequence == found.sequence == backup.last_sequence
        assert restored.epoch == found.epoch == backup.epoch + 1
        assert digest_in_epoch(found, backup.epoch) == history.digests[backup.last_sequence]


async def a_backup(history: History, folder: SimDisk, chance: random.Random) -> Backup:
    """Take a full or an incremental backup; where the log was cut, a full one."""
    if chance.random() < 0.2:
        return await write_backup(history, folder, incremental=False)
    try:
        return await write_backup(history, folder, incremental=True)
    except BackupOrderError:
        return await write_backup(history, folder, incremental=False)


async def test_any_sequence_between_two_backups_can_be_restored() -> None:
    history, folder = await a_history(), a_disk()
    chain = await a_chain(history, folder)

    for sequence in range(chain[0].last_sequence, chain[-1].last_sequence + 1):
        target = a_disk()
        await restore(folder, target, CLOCK, up_to=sequence)
        assert digest_in_epoch((await opened(target)).state, 1) == history.digests[sequence]


async def test_a_manifest_tells_what_its_part_holds() -> None:
    history, folder = await a_history(), a_disk()
    full, increment = await a_chain(history, folder, 1)

    manifest = json.loads(folder.read("backup-000002.json"))["backup"]

    assert (full.kind, full.first_sequence, full.last_sequence) == ("full", 0, 20)
    assert (increment.kind, increment.first_sequence, increment.last_sequence) == (
        "incremental",
        21,
        25,
    )
    assert increment.hash_before == full.hash_after
    assert increment.hash_after == history.state.hash.hex()
    assert manifest["sha256"] == increment.sha256
    assert manifest["path"] == "backup-000002.part"
    assert manifest["bytes"] == increment.bytes == folder.size("backup-000002.part")
    assert await read_chain(folder) == [full, increment]


async def test_a_backup_holds_the_moment_it_began_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "FULL_ROWS", 2)
    monkeypatch.setattr(backup_module, "SYNC_BYTES", 100)
    history, folder = await a_history(60), a_disk()

    for incremental in (False, True, False, True):
        await history.commits(10)
        began = history.state.sequence
        writing = asyncio.create_task(write_backup(history, folder, incremental=incremental))
        await asyncio.sleep(0)
        while not writing.done():
            await history.commit()
        assert history.state.sequence > began + 1
        assert writing.result().last_sequence == began
        target = a_disk()
        await restore(folder, target, CLOCK)
        assert digest_in_epoch((await opened(target)).state, 1) == history.digests[began]


# Increments that are refused


async def test_an_increment_needs_a_full_backup() -> None:
    history, folder = await a_history(), a_disk()

    assert await refusal(write_backup(history, folder, incremental=True)) == "FullBackupNeeded"
    assert folder.names() == []


async def test_an_increment_is_refused_when_the_log_was_truncated() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    await history.commits(5)
    await history.checkpoint()
    await history.commits(5)
    names = folder.names()

    assert await refusal(write_backup(history, folder, incremental=True)) == "FullBackupNeeded"
    assert folder.names() == names
    await write_backup(history, folder, incremental=False)


async def test_an_increment_of_another_state_is_refused() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder, 1)

    for count in (10, 25, 40):
        other = await a_history(count, seed=7)
        assert await refusal(write_backup(other, folder, incremental=True)) == "FullBackupNeeded"


@pytest.mark.parametrize("behind", [0, 3])
async def test_a_restored_state_begins_a_chain_of_its_own(behind: int) -> None:
    history, folder = await a_history(), a_disk()
    chain = await a_chain(history, folder)
    target = a_disk()
    await restore(folder, target, CLOCK, up_to=chain[-1].last_sequence - behind)
    restored = await opened(target)

    assert await refusal(write_backup(restored, folder, incremental=True)) == "FullBackupNeeded"
    await restored.commits(9)
    assert await refusal(write_backup(restored, folder, incremental=True)) == "FullBackupNeeded"

    await write_backup(restored, folder, incremental=False)
    await restored.commits(2)
    await write_backup(restored, folder, incremental=True)
    assert [backup.number for backup in await read_chain(folder)] == [5, 6]


async def test_an_increment_of_nothing_is_the_backup_before() -> None:
    history, folder = await a_history(), a_disk()
    chain = await a_chain(history, folder)
    names = folder.names()

    assert await write_backup(history, folder, incremental=True) == chain[-1]
    assert folder.names() == names


async def test_records_of_a_deposed_primary_pass_through_a_chain() -> None:
    quorum, folder = Quorum(), a_disk()
    quorum.append(2, "replica-2")
    await write_backup(quorum, folder, incremental=False)
    for epochs in ([1], [2, 1], [1, 2, 1, 3, 2], [2, 3]):
        for epoch in epochs:
            quorum.append(epoch, f"replica-{epoch}")
        await write_backup(quorum, folder, incremental=True)

    target = a_disk()
    await restore(folder, target, CLOCK)

    assert quorum.state.epoch == 3
    assert digest_in_epoch((await opened(target)).state, 3) == quorum.state.digest()


class Quorum:
    """A state with a log in which records of a deposed primary lie between the others."""

    record_bytes_max = 2**20

    def __init__(self) -> None:
        self.state, self.clock = State(), CLOCK
        self.first, self.last = 1, 0
        self._raws: list[bytes] = []

    @property
    def log(self) -> Log:
        return cast("Log", self)

    def append(self, epoch: int, primary: str) -> None:
        self.last += 1
        previous = self.state.hash if epoch >= self.state.epoch else bytes(16)
        raw = encode_record(Record(FORMAT, epoch, self.last, previous, 0, primary, []))
        self._raws.append(raw)
        self.state.apply(decode_record(raw), record_hash(raw))

    async def read_from(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        for at in range(sequence, self.last + 1):
            yield at, self._raws[at - 1]


async def test_one_backup_is_taken_at_a_time() -> None:
    history, folder = await a_history(), a_disk()
    backups = Backups(history)

    writing = asyncio.create_task(backups.write(folder))
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError) as caught:
        await backups.write(a_disk())
    await writing

    assert caught.value.code == "BackupInProgress"
    await history.commits(1)
    assert (await backups.write(folder, incremental=True)).number == 2


async def test_the_log_that_the_next_increment_needs_is_known_for_a_while() -> None:
    history, folder = await a_history(), a_disk()
    backups = Backups(history)
    assert backups.log_needed_from(100) is None

    backup = await backups.write(folder)

    assert backups.log_needed_from(LOG_BYTES_KEPT_MAX) == backup.last_sequence + 1
    assert backups.log_needed_from(1) is None
    await backups.write(folder)
    assert backups.log_needed_from(1) == backup.last_sequence + 1


async def test_the_log_behind_a_backup_is_needed_while_it_is_written() -> None:
    history, folder = await a_history(), a_disk()
    backups = Backups(history)

    writing = asyncio.create_task(backups.write(folder))
    await asyncio.sleep(0)
    assert backups.log_needed_from(1) == 21
    writing.cancel()
    await asyncio.wait([writing])

    assert writing.cancelled()
    assert backups.log_needed_from(1) is None


async def test_a_backup_that_finds_no_room_leaves_the_chain_as_it_was() -> None:
    history, folder = await a_history(), a_disk()
    chain = await a_chain(history, folder)
    await history.commits(5)
    names = folder.names()

    for incremental in (False, True):
        folder.room = 300
        with pytest.raises(StoreFullError):
            await write_backup(history, folder, incremental=incremental)
        assert folder.names() == names
    folder.room = None
    assert await read_chain(folder) == chain


# Chains that are refused


async def test_a_missing_link_is_refused_by_name() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    names = [name for name in folder.names() if name != "backup-000004.json"]

    for name in names:
        damaged = a_copy(folder)
        damaged.remove(name)
        target = a_disk()
        with pytest.raises(BackupOrderError) as caught:
            await restore(damaged, target, CLOCK, force=True)
        assert caught.value.code == "BackupChainBroken"
        assert caught.value.facts["missing"] == name
        assert target.events == []


async def test_a_part_that_no_manifest_names_is_not_a_backup() -> None:
    history, folder = await a_history(), a_disk()
    chain = await a_chain(history, folder)
    folder.remove("backup-000004.json")

    assert await read_chain(folder) == chain[:-1]
    await history.commits(2)
    again = await write_backup(history, folder, incremental=True)
    assert await read_chain(folder) == [*chain[:-1], again]


@pytest.mark.parametrize("ending", ["json", "part"])
@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 3), (3, 4), (2, 5)])
async def test_a_renamed_link_is_refused(one: int, other: int, ending: str) -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    first, second = f"backup-{one:06}.{ending}", f"backup-{other:06}.{ending}"
    folder.rename(first, "between")
    if second in folder.names():
        folder.rename(second, first)
    folder.rename("between", second)

    code = await refusal(restore(folder, a_disk(), CLOCK))

    assert code in ("BackupChainBroken", "BackupDamaged")


async def test_a_link_of_another_chain_is_refused() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    other_history, other = await a_history(seed=5), a_disk()
    await a_chain(other_history, other)
    for ending in ("json", "part"):
        put(folder, f"backup-000003.{ending}", other.read(f"backup-000003.{ending}"))

    assert await refusal(read_chain(folder)) == "BackupChainBroken"


async def test_every_flipped_byte_is_refused() -> None:
    history, folder = await a_history(5), a_disk()
    await a_chain(history, folder, 2)
    clock = ManualClock()

    for name in folder.names():
        content = folder.read(name)
        for place in range(len(content)):
            if name.endswith(".json") and content[place : place + 1].isspace():
                continue
            folder.flip(name, place, clock.random_bytes(1)[0] % 7)
            with pytest.raises((DamageError, BackupOrderError)):
                await read_chain(folder)
            put(folder, name, content)
        folder.events.clear()

    assert len(await read_chain(folder)) == 3


async def test_older_states_can_be_restored_from_before_the_damage() -> None:
    history, folder = await a_history(), a_disk()
    chain = await a_chain(history, folder)
    folder.flip(chain[2].path, 100)
    put(folder, "backup-000004.json", b"{}")

    assert await refusal(restore(folder, a_disk(), CLOCK)) == "BackupDamaged"
    target = a_disk()
    restored = await restore(folder, target, CLOCK, up_to=chain[1].last_sequence)

    assert restored.backups == (1, 2)
    state = (await opened(target)).state
    assert digest_in_epoch(state, 1) == history.digests[chain[1].last_sequence]


@pytest.mark.parametrize("up_to", [3, 999])
async def test_a_sequence_that_no_backup_holds_is_refused(up_to: int) -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)

    assert await refusal(restore(folder, a_disk(), CLOCK, up_to=up_to)) == "BackupNotFound"


async def test_a_folder_without_backups_is_refused() -> None:
    target = a_disk()

    assert await refusal(restore(a_disk(), target, CLOCK, force=True)) == "BackupNotFound"
    assert target.events == []


async def test_a_newer_manifest_is_refused_as_such() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder, 0)
    manifest = json.loads(folder.read("backup-000001.json"))
    backup = manifest["backup"] | {"colour": "red"}
    newer = {"format": 2, "backup": backup, "check": check_of_format(2, backup), "also": 1}
    put(folder, "backup-000001.json", json.dumps(newer).encode())

    with pytest.raises(FormatVersionError, match=r"format 2; this version reads 1.*pip install"):
        await read_chain(folder)


async def test_a_flipped_bit_of_a_manifest_is_never_taken_for_another_format() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder, 0)
    whole = folder.read("backup-000001.json")
    place = whole.index(b'"format": 1') + len(b'"format": ')
    codes = set()
    for bit in range(8):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        put(folder, "backup-000001.json", bytes(flipped))
        codes.add(await refusal(read_chain(folder)))

    assert codes == {"BackupDamaged"}


# What a restore may replace


async def test_a_restore_goes_forward_from_an_older_copy_of_the_state() -> None:
    history, folder = await a_history(), a_disk()
    await write_backup(history, folder, incremental=False)
    await history.commits(4)
    older = a_copy(disk_of(history))
    await history.commits(4)
    await write_backup(history, folder, incremental=True)

    restored = await restore(folder, older, CLOCK)

    assert (restored.sequence, restored.epoch) == (28, 2)
    assert digest_in_epoch((await opened(older)).state, 1) == history.state.digest()


@pytest.mark.parametrize("ahead", [0, 1, 10])
async def test_a_state_as_new_as_the_backup_is_not_replaced(ahead: int) -> None:
    history, folder = await a_history(), a_disk()
    await write_backup(history, folder, incremental=False)
    await history.commits(ahead)
    await history.close()
    disk = disk_of(history)

    assert await refusal(restore(folder, disk, CLOCK)) == "RestoreWouldGoBack"

    assert (await opened(disk)).state.digest() == history.state.digest()


async def test_a_state_of_another_history_is_not_replaced() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    other = await a_history(22, seed=3)
    await other.close()
    disk = disk_of(other)

    assert await refusal(restore(folder, disk, CLOCK)) == "RestoreWouldGoBack"

    assert (await opened(disk)).state.digest() == other.state.digest()


async def test_force_replaces_whatever_is_there() -> None:
    history, folder = await a_history(), a_disk()
    chain = await a_chain(history, folder)
    other = await a_history(60, seed=3)
    await other.checkpoint()
    await other.commits(5)
    await other.commit([], epoch=9)
    await other.close()
    disk = disk_of(other)

    restored = await restore(folder, disk, CLOCK, force=True)

    assert restored == Restored(35, 10, history.state.hash, (1, 2, 3, 4), CLOCK.ticks())
    found = await opened(disk)
    assert digest_in_epoch(found.state, 1) == history.digests[chain[-1].last_sequence]
    await found.commits(5)
    await found.checkpoint()
    await found.close()


async def test_a_damaged_state_is_replaced_only_by_force() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    await history.checkpoint()
    await history.close()
    disk = disk_of(history)
    assert history.checkpoints.newest is not None
    disk.flip(history.checkpoints.newest.name, 15)

    assert await refusal(restore(folder, disk, CLOCK)) == "RestoreWouldGoBack"
    await restore(folder, disk, CLOCK, force=True)

    assert digest_in_epoch((await opened(disk)).state, 1) == history.state.digest()


async def test_an_opened_and_unused_state_counts_as_empty() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    target = a_disk()
    unused = await History.open(target)
    await unused.close()

    await restore(folder, target, CLOCK)

    assert digest_in_epoch((await opened(target)).state, 1) == history.state.digest()


async def test_a_restore_that_was_decided_is_finished_by_the_next_one_to_open() -> None:
    history, folder = await a_history(), a_disk()
    await a_chain(history, folder)
    other = await a_history(60, seed=3)
    await other.checkpoint()
    await other.close()
    disk = disk_of(other)
    put(disk, "restore.part", folder.read("backup-000001.part"))
    put(disk, "restore.part.new", b"half")

    assert await finish_restore(disk)
    assert not await finish_restore(disk)

    assert (await opened(disk)).state.digest() == history.digests[20]


async def test_a_decided_restore_that_is_damaged_removes_nothing() -> None:
    other = await a_history(60, seed=3)
    await other.close()
    disk = disk_of(other)
    names = disk.names()
    put(disk, "restore.part", b"PARTCKP\n" + bytes(100))

    with pytest.raises(ChecksumError):
        await finish_restore(disk)

    assert disk.names() == sorted([*names, "restore.part"])


# Under an open state


async def test_an_open_state_is_backed_up_and_found_again() -> None:
    machine, folder = Machine(), a_disk()
    async with machine.open() as state:
        users = await state.dictionary("users", key=str, value=User)
        backups = Backups(state)
        async with state.transaction() as tx:
            await users.set(tx, "ada", User("ada@example.org"))
        await backups.write(folder)
        async with state.transaction() as tx:
            await users.set(tx, "bob", User("bob@example.org"))
        await backups.write(folder, incremental=True)
    other = Machine()

    await restore(folder, other.disk, CLOCK)

    async with other.open() as state:
        users = await state.dictionary("users", key=str, value=User)
        async with state.transaction() as tx:
            assert [name async for name in users.keys(tx)] == ["ada", "bob"]
            await users.set(tx, "eve", User("eve@example.org"))
        assert state.epoch == 2


async def test_a_damaged_state_is_opened_after_a_restore() -> None:
    machine, folder = Machine(), a_disk()
    async with machine.open() as state:
        users = await state.dictionary("users", key=str, value=User)
        async with state.transaction() as tx:
            await users.set(tx, "ada", User("ada@example.org"))
        await Backups(state).write(folder)
        await state.checkpoint()
    disk = machine.disk.restart()
    disk.flip(next(name for name in disk.names() if name.startswith("checkpoint-")), 40)
    causes: list[str] = []

    async def on_data_loss(context: RestoreContext) -> None:
        causes.append(context.cause.code)
        await context.restore(folder)

    state = await open_local(disk, CLOCK, on_data_loss=on_data_loss)

    assert causes == ["CheckpointDamaged"]
    assert [one.count for one in state.collections()] == [1]
    await state.close()


# Folders of the machine


async def test_a_data_loss_is_answered_with_a_folder(tmp_path: Path) -> None:
    history = await a_history()
    backups = Backups(history)
    await backups.write(str(tmp_path / "backups"))
    await history.commits(3)
    await backups.write(tmp_path / "backups", incremental=True)
    disk = OsDisk(tmp_path / "state")
    cause = ChecksumError("LogDamaged", "Damaged.")
    context = RestoreContext(disk, CLOCK, cause)

    restored = await context.restore(tmp_path / "backups")

    assert context.cause is cause
    assert context.restored is restored
    found = await History.open(disk)
    assert digest_in_epoch(found.state, 1) == history.state.digest()
    await found.close()
    disk.close()


def disk_of(history: History) -> SimDisk:
    disk = history.log._disk
    assert isinstance(disk, SimDisk)
    return disk


def put(disk: SimDisk, name: str, content: bytes) -> None:
    file = disk.create(name)
    file.write(content)
    file.sync_now()


def a_copy(disk: SimDisk) -> SimDisk:
    copy = a_disk()
    for name in disk.names():
        put(copy, name, disk.read(name))
    return copy


class TestWhatARestoreBringsBack:
    async def test_versions_idempotency_keys_and_places_in_queues_are_restored(self) -> None:
        folder, target = a_disk(), a_disk()
        async with Machine().open() as state:
            numbers = await state.dictionary("numbers", key=str, value=int)
            queue = await state.queue("queue", value=int)
            await numbers.auto.set("a", 1)
            version = (await numbers.auto.get_versioned("a")).version

            async def enqueue(tx: Transaction) -> int:
                await queue.enqueue(tx, 1)
                await queue.enqueue(tx, 2)
                return 7

            await state.run(enqueue, idempotency_key="request-1")
            await queue.auto.dequeue()
            await write_backup(state, folder, incremental=False)
        await restore(folder, target, CLOCK)
        state = await open_local(target, CLOCK)
        numbers = await state.dictionary("numbers", key=str, value=int)
        queue = await state.queue("queue", value=int)

        assert (await state.run(enqueue, idempotency_key="request-1")).value == 7
        await queue.auto.enqueue(3)
        async with state.snapshot() as snapshot:
            assert [number async for number in queue.items(snapshot)] == [2, 3]
        await numbers.auto.set("a", 2, if_version=version)
        await state.close()

    async def test_a_write_of_an_open_transaction_is_in_no_backup(self) -> None:
        folder, target = a_disk(), a_disk()
        async with Machine().open() as state:
            numbers = await state.dictionary("numbers", key=str, value=int)
            async with state.transaction() as tx:
                await numbers.set(tx, "a", 1)
                await write_backup(state, folder, incremental=False)
        await restore(folder, target, CLOCK)
        state = await open_local(target, CLOCK)
        numbers = await state.dictionary("numbers", key=str, value=int)

        assert await numbers.auto.count() == 0
        await state.close()

    def test_a_secondary_takes_a_backup_of_what_it_has_applied(self) -> None:
        async def scenario() -> list[int]:
            cluster = SimCluster(seed=0)
            clocks = [SimClock(running_loop(), name) for name in "ab"]
            primary, secondary = [
                await open_replicated(cluster.connect(name), SimDisk(clock), clock)
                for name, clock in zip("ab", clocks, strict=True)
            ]
            await primary.wait_primary()
            numbers = await primary.dictionary("numbers", key=str, value=int)
            await numbers.auto.set("a", 1)
            await secondary.read_at_least(primary.sequence)
            assert not secondary.is_primary
            folder, target = SimDisk(clocks[1]), SimDisk(clocks[1])
            made = await write_backup(secondary, folder, incremental=False)
            assert made.last_sequence == secondary.sequence
            await secondary.close()
            await primary.close()
            await restore(folder, target, clocks[1])
            state = await open_local(target, clocks[1])
            found = [one.count for one in state.collections()]
            await state.close()
            return found

        assert run(scenario(), seed=0).value == [1]
