import asyncio
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from partita.clock import ManualClock
from partita.errors import (
    ChecksumError,
    DamageError,
    FormatVersionError,
    StoreFullError,
    StoreStoppedError,
)
from partita.reliable.state import blocks as blocks_module
from partita.reliable.state.blocks import Blocks
from partita.reliable.state.records import (
    Clear,
    Create,
    Drop,
    Enqueue,
    Put,
    decode_record,
    record_hash,
)
from partita.reliable.state.state import (
    Collection,
    Description,
    KeptOutcome,
    Rows,
    State,
    encode_description,
)
from partita.reliable.storage import checkpoint as checkpoint_module
from partita.reliable.storage.checkpoint import (
    RESTORE_FILE,
    Checkpoints,
    describe_file,
    verify_file,
)
from partita.simulation.disk import SimDisk
from support.histories import History
from support.repeats import repeat

SEEDS = range(repeat(3, 12, 200))


def a_disk(seed: int = 0) -> SimDisk:
    return SimDisk(ManualClock(seed=seed))


async def a_history(disk: SimDisk, count: int = 40, *, seed: int = 0) -> History:
    history = await History.open(disk, seed=seed)
    await history.commits(count)
    return history


async def loaded(disk: SimDisk) -> State:
    state = State()
    await Checkpoints(disk).load(state)
    return state


def checkpoints_of(disk: SimDisk) -> list[str]:
    return [name for name in disk.names() if name.startswith("checkpoint-")]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small state take many blocks, syncs and turns of the loop."""
    monkeypatch.setattr(blocks_module, "FULL_ROWS", 3)
    monkeypatch.setattr(blocks_module, "FULL_BYTES", 200)
    monkeypatch.setattr(checkpoint_module, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(checkpoint_module, "BLOCK_BYTES", 200)
    monkeypatch.setattr(checkpoint_module, "TURN_BYTES", 1)
    monkeypatch.setattr(checkpoint_module, "OWN_SHARE", 1.0)
    monkeypatch.setattr(checkpoint_module, "SYNC_BYTES", 600)
    monkeypatch.setattr(checkpoint_module, "CUT_BYTES", 900)


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_loaded_state_is_the_one_that_was_written(seed: int) -> None:
    disk = a_disk(seed)
    history = await a_history(disk, 80, seed=seed)
    await history.commit([], epoch=3)
    written = await history.checkpoints.write(history.state)

    state = await loaded(disk)

    old = history.state
    assert state.digest() == old.digest()
    assert (state.primary, state.ticks) == ("replica-3", old.ticks)
    assert list(state.outcomes.items()) == list(old.outcomes.items())
    assert state.names == old.names
    for number, collection in old.collections.items():
        assert state.collections[number].rows.values == collection.rows.values
        assert state.indexes_of(state.collections[number]) == [
            state.collections[index.id] for index in old.indexes_of(collection)
        ]
    assert (written.sequence, written.epoch, written.hash) == (state.sequence, 3, state.hash)


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_checkpoint_and_the_log_behind_it_are_the_whole_log(seed: int) -> None:
    disk = a_disk(seed)
    history = await a_history(disk, 50, seed=seed)
    await history.checkpoints.write(history.state)
    await history.commits(60)

    state = await loaded(disk)
    async for _, raw in history.log.read_from(state.sequence + 1):
        state.apply(decode_record(raw), record_hash(raw))
        assert state.digest() == history.digests[state.sequence]

    assert state.sequence == history.state.sequence == 110


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("small_steps")
async def test_a_checkpoint_holds_the_moment_it_began_at(seed: int) -> None:
    disk = a_disk(seed)
    history = await a_history(disk, 60, seed=seed)
    older = history.state.open_snapshot()
    await history.commits(20)
    began = history.state.sequence

    writing = asyncio.create_task(history.checkpoints.write(history.state))
    await asyncio.sleep(0)
    while not writing.done():
        await history.commit()
        await asyncio.sleep(0)
    newer = history.state.open_snapshot()

    state = await loaded(disk)
    assert state.digest() == history.digests[began]
    assert history.state.sequence > began
    history.state.close_snapshot(older)
    history.state.close_snapshot(newer)


@pytest.mark.usefixtures("small_steps")
async def test_collections_may_come_and_go_while_a_checkpoint_is_written() -> None:
    disk = a_disk()
    history = await History.open(disk)
    for number, name in enumerate(["cleared", "dropped", "grown"], 1):
        kind = "queue" if name == "grown" else "dictionary"
        description = encode_description(Description(name, kind))
        await history.commit([Create(number, description)])
        if kind == "dictionary":
            await history.commit([Put(number, b"%03d" % key, b"old") for key in range(50)])
        else:
            await history.commit([Enqueue(number, b"old") for _ in range(50)])
    began = history.state.sequence

    writing = asyncio.create_task(history.checkpoints.write(history.state))
    await asyncio.sleep(0)
    description = encode_description(Description("dropped", "queue"))
    await history.commit([Clear(1), Put(1, b"001", b"new")])
    await history.commit([Drop(2), Create(4, description), Enqueue(4, b"new")])
    await history.commit([Enqueue(3, b"new")])
    assert not writing.done()
    await writing

    state = await loaded(disk)
    assert state.digest() == history.digests[began]
    grown = state.find("grown")
    assert grown is not None
    assert grown.tail == 50


async def test_nothing_is_kept_for_a_checkpoint_that_has_ended() -> None:
    disk = a_disk()
    history = await a_history(disk)

    await history.checkpoints.write(history.state)
    await history.commits(5)

    assert not history.state._snapshots
    assert not any(one.rows.history for one in history.state.collections.values())


@pytest.mark.usefixtures("small_steps")
async def test_a_cancelled_checkpoint_leaves_nothing_behind() -> None:
    disk = a_disk()
    history = await a_history(disk)

    writing = asyncio.create_task(history.checkpoints.write(history.state))
    for _ in range(5):
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])

    assert writing.cancelled()
    assert checkpoints_of(disk) == []
    assert not history.state._snapshots


@pytest.mark.usefixtures("small_steps")
async def test_a_checkpoint_that_finds_no_room_gives_back_what_it_took() -> None:
    disk = a_disk()
    history = await a_history(disk)
    first = await history.checkpoints.write(history.state)
    await history.commits(10)

    disk.room = 1500
    with pytest.raises(StoreFullError):
        await history.checkpoints.write(history.state)

    assert checkpoints_of(disk) == [first.name]
    assert history.checkpoints.newest == first
    assert not history.state._snapshots
    disk.room = None
    await history.checkpoints.write(history.state)
    assert (await loaded(disk)).digest() == history.state.digest()


@pytest.mark.usefixtures("small_steps")
async def test_a_checkpoint_whose_sync_fails_does_not_replace_the_one_before() -> None:
    disk = a_disk()
    history = await a_history(disk)
    first = await history.checkpoints.write(history.state)
    await history.commits(10)

    disk.fail_sync(after=2)
    with pytest.raises(StoreStoppedError):
        await history.checkpoints.write(history.state)

    assert history.checkpoints.newest == first
    assert (await loaded(disk.restart())).digest() == history.digests[first.sequence]


async def test_only_the_newest_checkpoint_is_kept() -> None:
    disk = a_disk()
    history = await a_history(disk)

    await history.checkpoints.write(history.state)
    await history.commits(3)
    newest = await history.checkpoints.write(history.state)

    assert checkpoints_of(disk) == [newest.name]
    assert newest.name == f"checkpoint-{43:020}.part"
    assert newest.size == disk.size(newest.name)


async def test_a_state_that_has_not_changed_is_not_written_again() -> None:
    disk = a_disk()
    history = await a_history(disk)
    first = await history.checkpoints.write(history.state)
    events = len(disk.events)

    assert await history.checkpoints.write(history.state) == first

    assert len(disk.events) == events


async def test_what_a_crash_left_unfinished_is_removed() -> None:
    disk = a_disk()
    history = await a_history(disk)
    first = await history.checkpoints.write(history.state)
    disk.create(f"checkpoint-{99:020}.part.new").write(b"PARTCKP\nhalf")
    disk.create(f"checkpoint-{7:020}.part").write(disk.read(first.name))

    state = await loaded(disk)

    assert state.digest() == history.state.digest()
    assert checkpoints_of(disk) == [first.name]


async def test_a_new_disk_has_no_checkpoint() -> None:
    state, checkpoints = State(), Checkpoints(a_disk())

    assert await checkpoints.load(state) is None
    assert checkpoints.newest is None
    assert state.digest() == State().digest()


async def test_an_empty_state_can_be_written() -> None:
    disk = a_disk()
    await Checkpoints(disk).write(State())

    assert (await loaded(disk)).digest() == State().digest()


@pytest.mark.usefixtures("small_steps")
async def test_every_flipped_byte_is_found_and_named() -> None:
    disk = a_disk()
    history = await a_history(disk)
    newest = await history.checkpoints.write(history.state)
    clock = ManualClock()

    for place in range(newest.size):
        disk.flip(newest.name, place, clock.random_bytes(1)[0] % 8)
        state = State()
        with pytest.raises(DamageError) as caught:
            await Checkpoints(disk).load(state)
        assert caught.value.facts["file"] == newest.name
        assert caught.value.hint
        assert state.digest() == State().digest()
        with pytest.raises(DamageError):
            await verify_file(disk, newest.name)
        disk = SimDisk(clock)
        disk.create(newest.name).write(history.checkpoints.read(newest))

    assert checkpoints_of(disk) == [newest.name]


@pytest.mark.usefixtures("small_steps")
async def test_every_cut_file_is_refused() -> None:
    disk = a_disk()
    history = await a_history(disk)
    newest = await history.checkpoints.write(history.state)

    for size in range(newest.size - 1, -1, -1):
        disk.grow(newest.name, size)
        with pytest.raises(DamageError):
            await loaded(disk)
        with pytest.raises(DamageError):
            await verify_file(disk, newest.name)


async def test_damage_is_named_with_its_place() -> None:
    disk = a_disk()
    history = await a_history(disk)
    newest = await history.checkpoints.write(history.state)
    disk.flip(newest.name, newest.size - 100)

    with pytest.raises(ChecksumError) as caught:
        await loaded(disk)

    assert caught.value.code == "CheckpointDamaged"
    offset = caught.value.facts["offset"]
    assert isinstance(offset, int)
    assert 0 < offset <= newest.size - 100


async def test_a_file_of_a_newer_format_is_refused_as_such() -> None:
    disk = a_disk()
    head = b"PARTCKP\n" + (3).to_bytes(4) + (40).to_bytes(4)
    checksum = crc32c(head + bytes(4) + bytes(40))
    file = disk.create(f"checkpoint-{1:020}.part")
    file.write(head + checksum.to_bytes(4) + bytes(40))

    with pytest.raises(FormatVersionError, match="written in format 3"):
        await loaded(disk)


@pytest.mark.parametrize("place", range(20))
async def test_a_flipped_byte_of_the_head_is_never_taken_for_another_format(place: int) -> None:
    disk = a_disk()
    history = await a_history(disk)
    newest = await history.checkpoints.write(history.state)
    disk.flip(newest.name, place)

    with pytest.raises(ChecksumError) as caught:
        await loaded(disk)

    assert caught.value.code == "CheckpointDamaged"


async def test_a_folder_with_an_unfinished_restore_is_not_read() -> None:
    disk = a_disk()
    history = await a_history(disk)
    newest = await history.checkpoints.write(history.state)
    disk.create(RESTORE_FILE).write(disk.read(newest.name))

    with pytest.raises(DamageError) as caught:
        await loaded(disk)

    assert caught.value.code == "RestoreUnfinished"


async def test_a_heading_can_be_read_alone() -> None:
    disk = a_disk()
    history = await a_history(disk)
    newest = await history.checkpoints.write(history.state)

    assert describe_file(disk, newest.name) == await verify_file(disk, newest.name) == newest


@pytest.mark.repeated
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_copy_of_another_replica_is_its_state(seed: int) -> None:
    history = await a_history(a_disk(seed), seed=seed)
    content = history.checkpoints.read(await history.checkpoints.write(history.state))
    disk, state = a_disk(seed), State()
    checkpoints = Checkpoints(disk)

    installed = await checkpoints.install(content, state)

    assert checkpoints.newest == installed == history.checkpoints.newest
    assert state.digest() == history.state.digest()
    assert (await loaded(disk.power_cut("lost"))).digest() == history.state.digest()


async def test_a_damaged_copy_changes_nothing() -> None:
    history = await a_history(a_disk())
    content = bytearray(history.checkpoints.read(await history.checkpoints.write(history.state)))
    content[len(content) // 2] ^= 1
    disk, state = a_disk(), State()
    checkpoints = Checkpoints(disk)

    with pytest.raises(ChecksumError):
        await checkpoints.install(bytes(content), state)

    assert disk.events == []
    assert checkpoints.newest is None
    assert state.digest() == State().digest()


@pytest.mark.parametrize("ahead", [-5, 0, 5])
async def test_a_copy_replaces_what_was_here(ahead: int) -> None:
    disk = a_disk()
    here = await a_history(disk, 40 + ahead, seed=1)
    await here.checkpoints.write(here.state)
    there = await a_history(a_disk(), 40)
    content = there.checkpoints.read(await there.checkpoints.write(there.state))

    await here.checkpoints.install(content, State())

    state = await loaded(disk.power_cut("lost"))
    assert state.digest() == there.state.digest()


async def test_a_checkpoint_is_due_behind_as_much_log_as_itself() -> None:
    disk = a_disk()
    checkpoints = Checkpoints(disk)
    history = await a_history(disk)

    assert not checkpoints.is_due(999, 1000)
    assert checkpoints.is_due(1000, 1000)
    newest = await checkpoints.write(history.state)
    assert newest.size > 1000
    assert not checkpoints.is_due(newest.size - 1, 1000)
    assert checkpoints.is_due(newest.size, 1000)
    assert not checkpoints.is_due(newest.size, newest.size + 1)


async def test_large_values_are_written_and_read_whole() -> None:
    disk = a_disk()
    history = await History.open(disk)
    await history.commit([Create(1, encode_description(Description("large", "dictionary")))])
    await history.commit([Put(1, b"%d" % size, bytes(size)) for size in (0, 1, 65_536, 300_000)])

    await history.checkpoints.write(history.state)

    assert (await loaded(disk)).digest() == history.state.digest()


@pytest.mark.usefixtures("small_steps")
async def test_progress_counts_every_row() -> None:
    disk = a_disk()
    history = await a_history(disk)
    rows = sum(len(one.rows.values) for one in history.state.collections.values())
    rows += len(history.state.outcomes)
    seen: list[tuple[int, int]] = []

    await history.checkpoints.write(history.state, progress=lambda *step: seen.append(step))
    await Checkpoints(disk).load(State(), progress=lambda *step: seen.append(step))

    assert seen == sorted(seen[: len(seen) // 2]) * 2
    assert seen[-1] == (rows, rows)


GOLDEN = (
    "50415254434b500a000000010000009f82808c9a88a873657175656e636506a565706f636802a468617368c4"
    "10000102030405060708090a0b0c0d0e0fa57469636b73cd03e8a77072696d617279a27231af6e6578745f63"
    "6f6c6c656374696f6e03ab636f6c6c656374696f6e7391940284a46e616d65a670656f706c65a46b696e64aa"
    "64696374696f6e617279a36b6579a3737472af7772697474656e5f76657273696f6e030702a86f7574636f6d"
    "657301000000020000001094d3006f94c403616461c40131c403626f62c40000000000000000156ec4398892"
    "c405a46f6e6365c40b9305cd07d0c404646f6e65f6454e44000000000000000200000000000000035422afa1"
    "d2a93ab646d713b5aa5d6eb586cc26d27c0ce4f6c8fa90ed7af08c54"
)
"""Format 1: what it says must be read for ever."""


async def test_the_format_stays_what_it_was() -> None:
    disk = a_disk()
    state = State()
    state.sequence, state.epoch, state.hash = 6, 2, bytes(range(16))
    state.primary, state.ticks, state.next_collection = "r1", 1000, 3
    people = Collection(2, Description("people", "dictionary", "str", written_version=3))
    people.rows, people.tail = Rows(Blocks([(b"ada", b"1"), (b"bob", b"")])), 7
    state.restore([people], [("once", KeptOutcome(5, 2000, b"done"))])

    written = await Checkpoints(disk).write(state)

    assert disk.read(written.name).hex() == GOLDEN
    assert (await loaded(disk)).digest() == state.digest()


@pytest.mark.parametrize("wrong", ["reversed", "twice"])
async def test_rows_that_are_not_in_order_are_refused(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Collection.pieces

    def disordered(collection: Collection, sequence: int) -> Iterator[dict[bytes, bytes]]:
        for piece in pieces(collection, sequence):
            yield dict(reversed(piece.items())) if wrong == "reversed" else piece
            if wrong == "twice":
                yield piece

    disk = a_disk()
    state = State()
    people = Collection(2, Description("people", "dictionary"))
    people.rows = Rows(Blocks([(b"ada", b"1"), (b"bob", b"2")]))
    state.restore([people], [])
    state.sequence = 1
    with monkeypatch.context() as broken:
        broken.setattr(Collection, "pieces", disordered)
        await Checkpoints(disk).write(state)

    found = State()
    with pytest.raises(ChecksumError, match="not in order"):
        await Checkpoints(disk).load(found)
    assert found.digest() == State().digest()


@pytest.mark.parametrize("count", [1, 15, 16, 17, 300, 40_000])
async def test_blocks_of_any_size_are_read(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "FULL_ROWS", 1_000_000)
    disk = a_disk()
    state = State()
    people = Collection(2, Description("people", "dictionary"))
    people.rows = Rows(Blocks((number.to_bytes(3), b"") for number in range(count)))
    state.restore([people], [])
    state.sequence = 1
    written = await Checkpoints(disk).write(state)
    monkeypatch.undo()

    assert (await loaded(disk)).digest() == state.digest()
    assert (await verify_file(disk, written.name)).sequence == 1
