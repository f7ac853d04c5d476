"""Increments: opening by a checkpoint and what has changed since, without the log between them."""

import asyncio
from pathlib import Path

import pytest

import partita
from partita.clock import ManualClock
from partita.errors import StoreFullError
from partita.reliable import Dictionary, restore_state
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.state import blocks as blocks_module
from partita.reliable.state import state as state_module
from partita.reliable.state.records import (
    Alter,
    Clear,
    Create,
    Delete,
    Drop,
    Operation,
    Outcome,
    Put,
    decode_record,
    record_hash,
)
from partita.reliable.state.state import Description, State, encode_description
from partita.reliable.storage import checkpoint as checkpoint_module
from partita.reliable.storage import increments as increments_module
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.increments import IncrementalCheckpoints
from partita.simulation.disk import SimDisk
from support.histories import History
from support.repeats import repeat

SEEDS = range(repeat(3, 12, 200))


def a_disk(seed: int = 0) -> SimDisk:
    return SimDisk(ManualClock(seed=seed))


async def a_history(
    disk: SimDisk, count: int = 40, *, seed: int = 0
) -> tuple[History, IncrementalCheckpoints]:
    """Return a history with a checkpoint, after which changes are noted."""
    history = await History.open(disk, seed=seed)
    history.checkpoints = checkpoints = IncrementalCheckpoints(disk)
    await history.commits(count)
    await checkpoints.write(history.state)
    return history, checkpoints


async def loaded(disk: SimDisk) -> tuple[State, IncrementalCheckpoints]:
    state, checkpoints = State(), IncrementalCheckpoints(disk)
    await checkpoints.load(state)
    return state, checkpoints


def increments_of(disk: SimDisk) -> list[str]:
    return [name for name in disk.names() if name.startswith("increment-")]


async def write(history: History, checkpoints: IncrementalCheckpoints, log_bytes: int = 1) -> None:
    assert await checkpoints.write_increment(history.state, log_bytes) is not None


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small state take many blocks, syncs and turns of the loop."""
    monkeypatch.setattr(blocks_module, "FULL_ROWS", 3)
    monkeypatch.setattr(blocks_module, "FULL_BYTES", 200)
    monkeypatch.setattr(state_module, "GATHERED_ROWS", 3)
    monkeypatch.setattr(state_module, "PASSED_BLOCKS", 2)
    monkeypatch.setattr(increments_module, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(checkpoint_module, "TURN_BYTES", 1)
    monkeypatch.setattr(checkpoint_module, "OWN_SHARE", 1.0)
    monkeypatch.setattr(checkpoint_module, "SYNC_BYTES", 600)


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("small_steps")
async def test_a_checkpoint_and_its_increments_are_the_state(seed: int) -> None:
    disk = a_disk(seed)
    history, checkpoints = await a_history(disk, seed=seed)

    for _ in range(4):
        await history.commits(25)
        await write(history, checkpoints)
        state, found = await loaded(disk)
        assert state.digest() == history.state.digest()
        assert found.increments == checkpoints.increments

    state, _ = await loaded(disk)
    assert list(state.outcomes.items()) == list(history.state.outcomes.items())
    assert state.names == history.state.names
    assert len(increments_of(disk)) == 4


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("small_steps")
async def test_a_loaded_state_is_continued_by_the_log_and_by_more_increments(seed: int) -> None:
    disk = a_disk(seed)
    history, checkpoints = await a_history(disk, seed=seed)
    await history.commits(20)
    await write(history, checkpoints)
    await history.commits(30)

    state, found = await loaded(disk)
    async for _, raw in history.log.read_from(state.sequence + 1):
        state.apply(decode_record(raw), record_hash(raw))
    assert state.digest() == history.state.digest()
    await found.write_increment(state, 2)

    assert (await loaded(disk))[0].digest() == history.state.digest()
    assert len(increments_of(disk)) == 2


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("small_steps")
async def test_an_increment_holds_the_moment_it_began_at(seed: int) -> None:
    disk = a_disk(seed)
    history, checkpoints = await a_history(disk, 60, seed=seed)
    await history.commits(40)
    began = history.state.sequence

    writing = asyncio.create_task(write(history, checkpoints))
    await asyncio.sleep(0)
    while not writing.done():
        await history.commit()
        await asyncio.sleep(0)

    assert (await loaded(disk))[0].digest() == history.digests[began]
    assert history.state.sequence > began
    await write(history, checkpoints)
    assert (await loaded(disk))[0].digest() == history.state.digest()


@pytest.mark.usefixtures("small_steps")
async def test_versions_of_rows_are_kept() -> None:
    disk = a_disk()
    history = await History.open(disk)
    checkpoints = IncrementalCheckpoints(disk)

    async def commit(*operations: Operation) -> None:
        await history.commit(operations)

    plain, kept = (
        Description("rows", "dictionary"),
        Description("rows", "dictionary", is_versioned=True),
    )
    await commit(Create(1, encode_description(kept)))
    await commit(*(Put(1, b"%02d" % number, b"old") for number in range(20)))
    await checkpoints.write(history.state)
    await commit(Put(1, b"03", b"new"), Delete(1, b"04"))
    await checkpoints.write_increment(history.state, 1)
    await commit(Alter(1, encode_description(plain)))
    await commit(Alter(1, encode_description(kept)))
    await commit(Put(1, b"05", b"new"))
    await checkpoints.write_increment(history.state, 2)

    state, _ = await loaded(disk)

    rows, old = state.collections[1], history.state.collections[1]
    assert state.digest() == history.state.digest()
    versions = {key: rows.version(key, state.sequence) for key in rows.rows.values}
    assert versions == {key: old.version(key, state.sequence) for key in old.rows.values}
    assert (versions[b"05"], versions[b"03"], b"04" in versions) == (6, 5, False)


@pytest.mark.usefixtures("small_steps")
async def test_cleared_dropped_and_new_collections_are_those_of_the_moment() -> None:
    disk = a_disk()
    history = await History.open(disk)
    checkpoints = IncrementalCheckpoints(disk)
    dictionary = [encode_description(Description(name, "dictionary")) for name in "abc"]
    await history.commit([Create(1, dictionary[0]), Create(2, dictionary[1])])
    await history.commit([Put(number, b"%d" % key, b"") for number in (1, 2) for key in range(9)])
    await checkpoints.write(history.state)

    await history.commit([Clear(1), Put(1, b"1", b"again")])
    await history.commit([Drop(2), Create(3, dictionary[2]), Put(3, b"1", b"")])
    await write(history, checkpoints)

    state, _ = await loaded(disk)
    assert state.digest() == history.state.digest()
    assert state.names == {"a": 1, "c": 3}


async def test_an_outcome_under_a_key_that_was_used_before_is_the_later_one() -> None:
    disk = a_disk()
    history = await History.open(disk)
    checkpoints = IncrementalCheckpoints(disk)
    await history.commit([Outcome("once", b"first", 10**18), Outcome("other", b"", 10**18)])
    await checkpoints.write(history.state)

    await history.commit([Outcome("once", b"second", 10**18)])
    await write(history, checkpoints)

    state, _ = await loaded(disk)
    assert [kept.result for kept in state.outcomes.values()] == [b"", b"second"]


async def test_nothing_is_written_if_nothing_has_changed() -> None:
    history, checkpoints = await a_history(a_disk())

    assert await checkpoints.write_increment(history.state, 1) is None

    await history.commits(1)
    await write(history, checkpoints)
    assert await checkpoints.write_increment(history.state, 1) is None


async def test_only_the_rows_that_were_written_are_in_the_file() -> None:
    disk = a_disk()
    history = await History.open(disk)
    checkpoints = IncrementalCheckpoints(disk)
    await history.commit([Create(1, encode_description(Description("rows", "dictionary")))])
    await history.commit([Put(1, b"%05d" % number, b"v" * 50) for number in range(5_000)])
    whole = await checkpoints.write(history.state)

    await history.commit([Put(1, b"00007", b"new"), Delete(1, b"00008")])
    written = await checkpoints.write_increment(history.state, 1)

    assert written is not None
    assert written.size < 500 < whole.size


async def test_a_checkpoint_replaces_the_increments() -> None:
    disk = a_disk()
    history, checkpoints = await a_history(disk)
    await history.commits(5)
    await write(history, checkpoints)
    await history.commits(5)

    await checkpoints.write(history.state)

    assert (increments_of(disk), checkpoints.increments) == ([], [])
    assert checkpoints.log_bytes == 0
    await history.commits(5)
    await write(history, checkpoints)
    assert (await loaded(disk))[0].digest() == history.state.digest()


async def test_increments_of_another_checkpoint_are_removed() -> None:
    disk = a_disk()
    history, checkpoints = await a_history(disk)
    await history.commits(5)
    await write(history, checkpoints)
    name = increments_of(disk)[0]
    content = disk.read(name)
    await history.commits(5)
    await checkpoints.write(history.state)
    disk.create(name).write(content)  # as a crash leaves it that comes before its removal
    disk.create(f"increment-{99:020}.part.new").write(b"PARTINC\nhalf")

    state, found = await loaded(disk)

    assert state.digest() == history.state.digest()
    assert (increments_of(disk), found.increments) == ([], [])


@pytest.mark.usefixtures("small_steps")
async def test_every_flipped_byte_is_found_and_the_log_is_used_instead() -> None:
    disk = a_disk()
    history, checkpoints = await a_history(disk, 12)
    base = history.state.sequence
    await history.commits(6)
    await write(history, checkpoints)
    name = increments_of(disk)[0]
    content, clock = disk.read(name), ManualClock()

    for place in range(0, len(content), 7):
        disk.flip(name, place, clock.random_bytes(1)[0] % 8)
        state, found = await loaded(disk)
        assert state.digest() == history.digests[base]
        assert (increments_of(disk), found.increments) == ([], [])
        disk.create(name).write(content)

    assert (await loaded(disk))[0].digest() == history.state.digest()


async def test_an_increment_that_finds_no_room_is_part_of_the_next() -> None:
    disk = a_disk()
    history, checkpoints = await a_history(disk)
    await history.commits(10)

    disk.room = 100
    with pytest.raises(StoreFullError):
        await checkpoints.write_increment(history.state, 1)
    disk.room = None

    assert (increments_of(disk), checkpoints.increments) == ([], [])
    assert not history.state._snapshots
    await history.commits(10)
    await write(history, checkpoints)
    assert (await loaded(disk))[0].digest() == history.state.digest()


async def test_a_checkpoint_that_finds_no_room_leaves_the_increments() -> None:
    disk = a_disk()
    history, checkpoints = await a_history(disk)
    await history.commits(10)
    await write(history, checkpoints)
    await history.commits(10)

    disk.room = 100
    with pytest.raises(StoreFullError):
        await checkpoints.write(history.state)
    disk.room = None

    await write(history, checkpoints)
    assert len(increments_of(disk)) == 2
    assert (await loaded(disk))[0].digest() == history.state.digest()


async def test_one_is_due_beside_a_large_checkpoint_after_a_part_of_it_in_log() -> None:
    history, checkpoints = await a_history(a_disk(), 60)
    newest, state = checkpoints.newest, history.state
    assert newest is not None
    few = newest.size // 10

    assert not checkpoints.is_increment_due(state, few - 1, few)
    assert checkpoints.is_increment_due(state, few, few)
    await history.commit([])
    await write(history, checkpoints, log_bytes=few)
    assert not checkpoints.is_increment_due(state, 2 * few - 1, few)
    assert checkpoints.is_increment_due(state, 2 * few, few)


async def test_none_is_due_beside_a_small_checkpoint_and_no_keys_are_noted() -> None:
    history, checkpoints = await a_history(a_disk())
    assert checkpoints.newest is not None
    await history.commits(5)

    size = checkpoints.newest.size
    assert not checkpoints.is_increment_due(history.state, size, size // 3)

    assert all(one.rows.touched is None for one in history.state.collections.values())


async def test_none_is_due_before_a_checkpoint_or_where_most_rows_would_be_in_it() -> None:
    disk = a_disk()
    history = await History.open(disk)
    checkpoints = IncrementalCheckpoints(disk)
    await history.commit([Create(1, encode_description(Description("rows", "dictionary")))])
    await history.commit([Put(1, b"%03d" % number, b"v" * 50) for number in range(100)])
    assert not checkpoints.is_increment_due(history.state, 10**9, 10)

    await checkpoints.write(history.state)
    await history.commit([Put(1, b"%03d" % number, b"new") for number in range(49)])
    assert checkpoints.is_increment_due(history.state, 10**9, 10)
    await history.commit([Put(1, b"099", b"new")])
    assert not checkpoints.is_increment_due(history.state, 10**9, 10)


async def test_no_more_keys_are_noted_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments_module, "TOUCHED_MAX", 10)
    history, checkpoints = await a_history(a_disk())
    await history.commits(40)

    assert not checkpoints.is_increment_due(history.state, 10**9, 10)

    assert all(one.rows.touched is None for one in history.state.collections.values())


async def test_a_replica_notes_no_keys() -> None:
    disk = a_disk()
    history = await History.open(disk)
    await history.commits(40)
    await history.checkpoints.write(history.state)
    await history.commits(40)
    state = State()
    await Checkpoints(disk).load(state)

    for one in (history.state, state):
        assert all(each.rows.touched is None for each in one.collections.values())


ROWS = Dictionary("rows", key=int, value=bytes)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the housekeeping of a small state write increments."""
    monkeypatch.setattr(increments_module, "CHECKPOINT_SHARE", 0)


async def fill(state: StateManager, numbers: range) -> None:
    rows = await state.open(ROWS)
    async with state.transaction() as tx:
        for number in numbers:
            await rows.set(tx, number, b"v" * 100)


@pytest.mark.usefixtures("eager")
async def test_opening_applies_only_the_log_after_the_increment(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path, checkpoint_bytes=1_000) as state:
        await fill(state, range(1_000))
        await state.checkpoint()
        await fill(state, range(100))
        await state.checkpoint_writer.write_if_due()
        at = state.sequence
        log_bytes = state.log_bytes_since_checkpoint
        await fill(state, range(2))
        last, digest = state.sequence, state.state.digest()

    applied: list[int] = []
    apply = State.apply

    def counted(state: State, record: object, new_hash: bytes) -> bool:
        applied.append(record.sequence)  # type: ignore[attr-defined]
        return apply(state, record, new_hash)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "apply", counted)
        async with partita.open_state(tmp_path, checkpoint_bytes=1_000) as state:
            assert (state.sequence, state.state.digest()) == (last, digest)
            assert applied == list(range(at + 1, last + 1))
            assert state.log_bytes_since_checkpoint > log_bytes


@pytest.mark.usefixtures("eager")
async def test_the_log_reaches_back_to_the_checkpoint(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path, checkpoint_bytes=1_000) as state:
        await fill(state, range(1_000))
        checkpoint = await state.checkpoint()
        await fill(state, range(100))
        await state.checkpoint_writer.write_if_due()

        rows = await state.open(ROWS)
        async with rows.changes(since=checkpoint) as feed:
            assert (await anext(feed)).kind == "update"
        assert state.log.first <= checkpoint + 1
        assert isinstance(state.checkpoints, IncrementalCheckpoints)
        assert len(state.checkpoints.increments) == 1


@pytest.mark.usefixtures("eager")
async def test_a_restore_removes_the_increments_of_the_old_state(tmp_path: Path) -> None:
    folder, backups = tmp_path / "state", tmp_path / "backups"
    async with partita.open_state(folder, checkpoint_bytes=1_000) as state:
        await fill(state, range(1_000))
        await state.backup(backups)
        await state.checkpoint()
        await fill(state, range(1_000, 1_100))
        await state.checkpoint_writer.write_if_due()
        assert increments_in(folder)

    await restore_state(backups, folder, force=True)

    assert not increments_in(folder)
    async with partita.open_state(folder) as state:
        assert await (await state.open(ROWS)).auto.count() == 1_000


def increments_in(folder: Path) -> list[Path]:
    return list(folder.glob("increment-*"))
