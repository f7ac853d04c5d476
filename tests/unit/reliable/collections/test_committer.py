"""Group commit over a log that can be held up and that can fail."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from partita.clock import ManualClock
from partita.errors import (
    DamageError,
    InDoubtError,
    NotPrimaryError,
    PartitaError,
    StateClosedError,
    StoreFullError,
    StoreStoppedError,
)
from partita.reliable.collections.committer import Committer, LogProgress
from partita.reliable.collections.transaction import Status
from partita.reliable.state.records import Create, Entry, Operation, Put, decode_record, record_hash
from partita.reliable.state.state import Description, State, encode_description
from support.states import Machine, settle


class HeldLog:
    """Keeps records in memory; an append returns when it is let go, or fails as told."""

    record_bytes_max = 100_000

    def __init__(self) -> None:
        self.first, self.last = 1, 0
        self.records: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[PartitaError] = []
        self.under_way = 0

    async def append(self, sequence: int, raw: bytes, *, alone: bool = False) -> bytes:
        assert self.under_way == 0, "one append at a time"
        assert sequence == self.last + 1
        self.under_way += 1
        try:
            await self.gate.wait()
            if self.failures:
                raise self.failures.pop(0)
            self.records.append(raw)
            self.last = sequence
            return record_hash(raw)
        finally:
            self.under_way -= 1

    async def read_from(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        for number, raw in enumerate(self.records[sequence - 1 :], sequence):
            yield number, raw

    async def follow(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        async for pair in self.read_from(sequence):
            yield pair

    async def truncate(self, below: int) -> None:
        self.first = below

    async def sync(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def groups(self) -> list[list[str]]:
        return [
            [entry.transaction_id for entry in decode_record(raw).entries] for raw in self.records
        ]


class Waiting:
    """A transaction as the committer sees it; notes what the state held when it was told."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.sequence: int | None = None
        self.error: PartitaError | None = None
        self.was_applied = False

    def committed(self, sequence: int) -> None:
        self.sequence = sequence
        self.was_applied = self.name.encode() in self.world.rows()

    def failed(self, error: PartitaError) -> None:
        self.error = error


class World:
    def __init__(self) -> None:
        self.log = HeldLog()
        self.state = State()
        self.state.epoch = 1
        self.stops: list[PartitaError] = []
        self.progress = LogProgress()
        self.committer = Committer(
            self.log,
            self.state,
            ManualClock(),
            progress=self.progress,
            on_stop=self.stops.append,
        )

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.state.collections[1].rows.values) if self.state.collections else {}

    def submit(self, name: str, *, size: int = 10) -> Waiting:
        waiting = Waiting(self, name)
        operations: list[Operation] = [Put(1, name.encode(), b"")]
        self.committer.submit(Entry(name, operations), size, waiting)
        return waiting


@pytest.fixture
async def world() -> World:
    world = World()
    described = encode_description(Description("users", "dictionary"))
    world.committer.submit(Entry("create", [Create(1, described)]), 10, Waiting(world, "create"))
    await world.committer.idle()
    return world


async def test_a_transaction_is_told_after_its_record_is_durable_and_applied(world: World) -> None:
    world.log.gate.clear()
    one = world.submit("one")
    await settle()
    assert one.sequence is None
    assert world.rows() == {}
    world.log.gate.set()
    await world.committer.idle()

    assert one.was_applied
    assert world.log.last == 2


async def test_what_waits_meanwhile_goes_into_the_next_record_in_its_order(world: World) -> None:
    world.log.gate.clear()
    first = world.submit("first")
    await settle()
    others = [world.submit(f"tx{number}") for number in range(5)]
    await settle()
    world.log.gate.set()
    await world.committer.idle()

    assert world.log.groups()[1:] == [["first"], [f"tx{number}" for number in range(5)]]
    assert first.sequence == 2
    assert {other.sequence for other in others} == {3}


async def test_a_group_is_cut_at_the_size_of_a_record(world: World) -> None:
    world.log.gate.clear()
    for name in "abcdef":
        world.submit(name, size=30_000)
    await settle()
    world.log.gate.set()
    await world.committer.idle()

    assert world.log.groups()[1:] == [["a", "b", "c"], ["d", "e", "f"]]


async def test_records_are_chained_and_their_times_never_go_back(world: World) -> None:
    clock = world.committer._clock
    assert isinstance(clock, ManualClock)
    world.submit("one")
    await world.committer.idle()
    clock.jump(-3600)
    world.submit("two")
    await world.committer.idle()

    records = [decode_record(raw) for raw in world.log.records]
    assert [record.sequence for record in records] == [1, 2, 3]
    assert records[2].ticks >= records[1].ticks
    replayed = State()
    replayed.epoch = 1
    for raw in world.log.records:
        replayed.apply(decode_record(raw), record_hash(raw))
    assert replayed.digest() == world.state.digest()


async def test_a_full_disk_fails_the_group_and_no_more(world: World) -> None:
    world.log.failures.append(StoreFullError("StoreFull", "No space."))
    one = world.submit("one")
    await world.committer.idle()
    two = world.submit("two")
    await world.committer.idle()

    assert isinstance(one.error, StoreFullError)
    assert (two.sequence, world.stops) == (2, [])
    assert list(world.rows()) == [b"two"]


@pytest.mark.parametrize(
    "error",
    [
        NotPrimaryError("NotPrimary", "Another is."),
        StoreStoppedError("StoreStopped", "A sync failed."),
        DamageError("Damage", "Stop."),
        InDoubtError("InDoubt", "Closed while the answer was open."),
    ],
)
async def test_any_other_failure_is_the_end(world: World, error: PartitaError) -> None:
    world.log.gate.clear()
    world.log.failures.append(error)
    one = world.submit("one")
    await settle()
    two = world.submit("two")
    world.log.gate.set()
    await world.committer.idle()
    three = world.submit("three")

    assert type(one.error) is type(error)
    assert two.error is not None
    assert three.error is not None
    assert not isinstance(two.error, InDoubtError), "it was never sent"
    assert len(world.stops) == 1
    assert world.rows() == {}


async def test_stopping_refuses_what_waits_and_lets_what_is_under_way_end(world: World) -> None:
    world.log.gate.clear()
    one = world.submit("one")
    await settle()
    two = world.submit("two")
    closed = StateClosedError("StateClosed", "Closed.")
    world.committer.stop(closed)
    world.log.gate.set()
    await world.committer.idle()

    assert one.sequence == 2
    assert two.error is closed
    assert world.submit("three").error is closed
    assert world.stops == [closed]


async def test_a_full_disk_is_told_and_writing_goes_on_when_there_is_room() -> None:
    machine = Machine()
    async with machine.open() as state:
        numbers = await state.dictionary("numbers", key=str, value=int)
        machine.disk.room = 0
        with pytest.raises(StoreFullError):
            async with state.transaction() as tx:
                await numbers.set(tx, "a", 1)
        assert tx.status is Status.ABORTED
        async with state.snapshot() as snapshot:
            assert await numbers.get(snapshot, "a", None) is None
        machine.disk.room = None
        async with state.transaction() as tx:
            await numbers.set(tx, "b", 2)
    async with machine.open() as state:
        numbers = await state.dictionary("numbers", key=str, value=int)
        async with state.snapshot() as snapshot:
            assert [row async for row in numbers.items(snapshot)] == [("b", 2)]


async def test_after_a_failed_sync_nothing_is_acknowledged_and_reads_go_on() -> None:
    machine = Machine()
    async with machine.open() as state:
        numbers = await state.dictionary("numbers", key=str, value=int)
        async with state.transaction() as tx:
            await numbers.set(tx, "a", 1)
        opened = state.transaction()
        await numbers.set(opened, "open", 1)
        machine.disk.fail_sync()
        with pytest.raises(StoreStoppedError):
            async with state.transaction() as tx:
                await numbers.set(tx, "b", 2)
        with pytest.raises(PartitaError):
            async with state.transaction() as tx:
                await numbers.set(tx, "c", 3)
        with pytest.raises(PartitaError):
            await opened.commit()
        async with state.snapshot() as snapshot:
            assert [row async for row in numbers.items(snapshot)] == [("a", 1)]
    async with machine.open() as state:
        numbers = await state.dictionary("numbers", key=str, value=int)
        async with state.snapshot() as snapshot:
            assert await numbers.get(snapshot, "a") == 1
            assert await numbers.get(snapshot, "c", None) is None


async def test_a_lost_answer_names_the_transaction() -> None:
    machine = Machine()
    async with machine.open() as state:
        numbers = await state.dictionary("numbers", key=str, value=int)

        async def lose(*_: object, **__: object) -> bytes:
            raise InDoubtError("InDoubt", "The log was closed.")

        state.log.append = lose  # type: ignore[method-assign]
        with pytest.raises(InDoubtError) as lost:
            async with state.transaction() as tx:
                await numbers.set(tx, "a", 1)

        assert lost.value.transaction_id == tx.id
