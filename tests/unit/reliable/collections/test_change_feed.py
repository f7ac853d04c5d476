import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from partita.clock import ManualClock
from partita.errors import (
    CollectionNotFoundError,
    PartitaError,
    SchemaError,
    UsageError,
)
from partita.keys import encode_key
from partita.reliable.collections import change_feed as notifications
from partita.reliable.collections.change_feed import Change, ChangeFeed
from partita.reliable.collections.dictionary import ReliableDictionary
from partita.reliable.collections.transaction import Transaction
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import open_local
from partita.reliable.state.records import Delete, Entry, Operation, Put
from partita.reliable.state.state import State
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.local_log import LocalLog
from partita.reliable.values.serialization import ValueCodec
from partita.simulation.disk import SimDisk
from support.repeats import repeat

SEEDS = range(repeat(2, 4, 30))
Users = ReliableDictionary[str, int]
Told = tuple[str, str | None, int | None, int | None, int]


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    manager = await a_state()
    yield manager
    await manager.close()


async def a_state() -> StateManager:
    return await open_local(SimDisk(ManualClock()), ManualClock())


async def users_of(state: StateManager) -> Users:
    return await state.dictionary("users", key=str, value=int)


async def put(state: StateManager, users: Users, **values: int) -> int:
    async with state.transaction() as tx:
        for key, value in values.items():
            await users.set(tx, key, value)
    assert tx.commit_sequence is not None
    return tx.commit_sequence


async def take(feed: ChangeFeed[str, int], count: int) -> list[Change[str, int]]:
    return [await anext(feed) for _ in range(count)]


async def take_until(feed: ChangeFeed[str, int], sequence: int) -> list[Change[str, int]]:
    """Read to the last change of a sequence."""
    changes = [await anext(feed)]
    while (changes[-1].sequence, changes[-1].is_last) != (sequence, True):
        changes.append(await anext(feed))
    return changes


async def assert_waits(feed: ChangeFeed[str, int]) -> None:
    """See that the feed has nothing more to give, and lose nothing by looking."""
    waiting = asyncio.ensure_future(anext(feed))
    await turns(50)
    assert not waiting.done()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cut_the_log(state: StateManager, users: Users) -> int:
    """Write and checkpoint until the log does not reach back to its start."""
    assert isinstance(state.log, LocalLog)
    state.log.segment_bytes = 500
    sequence = 0
    while sequence == 0 or state.log.first <= sequence:
        sequence = sequence or state.sequence
        await put(state, users, filler=state.sequence)
        await state.checkpoint()
    return sequence


def told(changes: list[Change[str, int]]) -> list[Told]:
    return [(one.kind, one.key, one.old, one.new, one.sequence) for one in changes]


def told_briefly(changes: list[Change[str, int]]) -> list[tuple[object, ...]]:
    return [(one.kind, one.key, one.old, one.new) for one in changes]


class Model:
    """What the feed must tell, worked out from what was committed in the order it was."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[str, int] = {}
        self.expected: list[Told] = []
        self.transactions: list[int] = []
        self._value = 0

    async def group(self, state: StateManager, users: Users, others: Users) -> None:
        """Run a few transactions at once, which mostly share a record."""
        if self.random.random() < 0.1:
            await self._transaction(state, users, others, range(60), clears=True)
            return
        shares = [range(start, 60, 5) for start in range(self.random.randint(1, 5))]
        await asyncio.gather(*(self._transaction(state, users, others, share) for share in shares))

    def tail(self, since: int) -> list[Told]:
        return [change for change in self.expected if change[-1] > since]

    async def _transaction(
        self,
        state: StateManager,
        users: Users,
        others: Users,
        share: range,
        *,
        clears: bool = False,
    ) -> None:
        writes: dict[str, int | None] = {}
        async with state.transaction() as tx:
            if clears:
                await users.clear(tx)
            for _ in range(self.random.randint(0, 4)):
                await self._write(tx, users, f"k{self.random.choice(share):02}", writes)
            await others.set(tx, f"k{share.start}", 0)
            if self.random.random() < 0.2:
                await tx.abort()
                return
            tx.after_commit(lambda sequence: self._committed(sequence, writes, clears=clears))

    async def _write(
        self, tx: Transaction, users: Users, key: str, writes: dict[str, int | None]
    ) -> None:
        if self.random.random() < 0.3:
            if await users.delete(tx, key):
                writes[key] = None
        else:
            self._value += 1
            await users.set(tx, key, self._value)
            writes[key] = self._value

    def _committed(self, sequence: int, writes: dict[str, int | None], *, clears: bool) -> None:
        self.transactions.append(sequence)
        if clears:
            self.rows.clear()
            self.expected.append(("clear", None, None, None, sequence))
        for key, new in writes.items():
            old = self.rows.pop(key, None)
            if new is not None:
                self.rows[key] = new
            elif old is None:
                continue
            kind = "add" if old is None else "delete" if new is None else "update"
            self.expected.append((kind, key, old, new, sequence))


@pytest.fixture(params=SEEDS)
def model(request: pytest.FixtureRequest) -> Model:
    print(f"seed {request.param}")
    return Model(request.param)


async def two_dictionaries(state: StateManager) -> tuple[Users, Users]:
    return await users_of(state), await state.dictionary("others", key=str, value=int)


# --- order and completeness ---------------------------------------------------------------


async def test_a_live_feed_tells_what_was_committed_in_order_and_once(
    state: StateManager, model: Model
) -> None:
    users, others = await two_dictionaries(state)

    async with users.changes(since=state.sequence) as feed:
        for _ in range(60):
            await model.group(state, users, others)
        changes = await take(feed, len(model.expected))
        await assert_waits(feed)

    assert told(changes) == model.expected
    assert len(set(model.transactions)) < len(model.transactions), "no record held two"


async def test_the_past_is_told_like_the_present(state: StateManager, model: Model) -> None:
    users, others = await two_dictionaries(state)
    for _ in range(60):
        await model.group(state, users, others)

    async with users.changes(since=0) as feed:
        changes = await take(feed, len(model.expected))
        await assert_waits(feed)

    assert told(changes) == model.expected


async def test_is_last_marks_the_end_of_each_sequence(state: StateManager, model: Model) -> None:
    users, others = await two_dictionaries(state)
    for _ in range(30):
        await model.group(state, users, others)

    async with users.changes(since=0) as feed:
        changes = await take(feed, len(model.expected))

    lasts = [one.sequence for one in changes if one.is_last]
    following = [one.sequence for one in changes[1:]] + [0]
    assert lasts == sorted({one.sequence for one in changes})
    assert [one.is_last for one in changes] == [
        one.sequence != after for one, after in zip(changes, following, strict=True)
    ]


async def test_resuming_at_any_sequence_gives_the_tail(state: StateManager, model: Model) -> None:
    users, others = await two_dictionaries(state)
    for _ in range(25):
        await model.group(state, users, others)

    for since in range(state.sequence + 1):
        async with users.changes(since=since) as feed:
            assert told(await take(feed, len(model.tail(since)))) == model.tail(since)
            await assert_waits(feed)


async def test_resuming_behind_a_checkpoint_begins_there(state: StateManager, model: Model) -> None:
    users, others = await two_dictionaries(state)
    for _ in range(25):
        await model.group(state, users, others)
    await cut_the_log(state, users)
    since = await state.checkpoint()
    before = len(model.expected)
    model.rows["filler"] = since - 1
    for _ in range(25):
        await model.group(state, users, others)

    for start in range(since, state.sequence + 1):
        async with users.changes(since=start) as feed:
            assert told(await take(feed, len(model.tail(start)))) == model.tail(start)
    assert len(model.tail(since)) == len(model.expected) - before


async def test_a_checkpoint_does_not_hide_what_the_log_still_holds(state: StateManager) -> None:
    async def another_replica_needs_all() -> int:
        return 1

    state.checkpoint_writer.purge_limit = another_replica_needs_all
    users = await users_of(state)
    await put(state, users, ada=1)
    await put(state, users, ada=2)
    await state.checkpoint()
    await put(state, users, ada=3)

    async with users.changes(since=0) as feed:
        changes = await take(feed, 3)

    assert state.log.first == 1
    assert told_briefly(changes) == [
        ("add", "ada", None, 1),
        ("update", "ada", 1, 2),
        ("update", "ada", 2, 3),
    ]


@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_a_feed_resumes_in_another_life(model: Model, has_checkpoint: bool) -> None:
    disk = SimDisk(ManualClock())
    state = await open_local(disk, ManualClock())
    users, others = await two_dictionaries(state)
    for _ in range(20):
        await model.group(state, users, others)
    since = await state.checkpoint() if has_checkpoint else state.sequence
    for _ in range(5):
        await model.group(state, users, others)
    await state.close()

    state = await open_local(disk.restart(), ManualClock())
    users, others = await two_dictionaries(state)
    async with users.changes(since=since) as feed:
        await model.group(state, users, others)
        changes = await take(feed, len(model.tail(since)))
        await assert_waits(feed)
    await state.close()

    assert told(changes) == model.tail(since)


async def test_a_feed_goes_on_from_the_past_into_the_present(
    state: StateManager, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "REPLAY_CHANGES", 3)
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 7)
    users, others = await two_dictionaries(state)
    changes: list[Change[str, int]] = []

    async with users.changes(since=0) as feed:
        for _ in range(60):
            await model.group(state, users, others)
            due = len(model.expected) - len(changes)
            changes += await take(feed, model.random.randint(0, due))
        changes += await take(feed, len(model.expected) - len(changes))
        await assert_waits(feed)

    assert told(changes) == model.expected


async def test_reading_while_others_write_misses_and_doubles_nothing(
    state: StateManager, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "REPLAY_CHANGES", 2)
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 4)
    users, others = await two_dictionaries(state)
    for _ in range(20):
        await model.group(state, users, others)
    changes: list[Change[str, int]] = []

    async def follow(feed: ChangeFeed[str, int]) -> None:
        async for change in feed:
            changes.append(change)
            await turns(model.random.randint(0, 3))

    async with users.changes(since=0) as feed:
        following = asyncio.ensure_future(follow(feed))
        for _ in range(60):
            await model.group(state, users, others)
            await turns(model.random.randint(0, 20))
        while len(changes) < len(model.expected):
            await turns(1)
    await following

    assert told(changes) == model.expected


async def test_transactions_of_one_record_that_touch_one_key_are_told_in_turn(
    state: StateManager,
) -> None:
    users = await users_of(state)
    since = await put(state, users, ada=1)
    key = users._keys.encode("ada")
    one, two = (users.codec.encode(value, version=1) for value in (1, 2))
    identifier = users.collection.id

    async with users.changes(since=since) as live:
        await submit(state, [Put(identifier, key, two)], [Delete(identifier, key)])
        await submit(state, [Put(identifier, key, one)])
        changes = await take(live, 3)
    async with users.changes(since=since) as past:
        assert await take(past, 3) == changes

    assert told_briefly(changes) == [
        ("update", "ada", 1, 2),
        ("delete", "ada", 2, None),
        ("add", "ada", None, 1),
    ]
    assert [change.sequence - since for change in changes] == [1, 1, 2]
    assert [change.is_last for change in changes] == [False, True, True]


async def submit(state: StateManager, *transactions: list[Operation]) -> None:
    """Commit operations as they stand, all in one record."""
    ended = asyncio.get_running_loop().create_future()

    class Ended:
        def committed(self, sequence: int) -> None:
            if not ended.done():
                ended.set_result(sequence)

        def failed(self, error: PartitaError) -> None:
            ended.set_exception(error)

    committer = state._core.writable()
    for operations in transactions:
        committer.submit(Entry("by-hand", operations), 100, Ended())
    await ended


# --- what a change says -------------------------------------------------------------------


async def test_a_change_has_the_old_and_the_new_value(state: StateManager) -> None:
    users = await users_of(state)

    async with users.changes(since=0) as feed:
        await put(state, users, ada=1)
        await put(state, users, ada=2)
        async with state.transaction() as tx:
            await users.delete(tx, "ada")
        changes = await take(feed, 3)

    assert told_briefly(changes) == [
        ("add", "ada", None, 1),
        ("update", "ada", 1, 2),
        ("delete", "ada", 2, None),
    ]


@pytest.mark.parametrize("is_past", [True, False])
async def test_a_clear_is_one_change_and_what_follows_is_new(
    state: StateManager, is_past: bool
) -> None:
    users = await users_of(state)
    since = await put(state, users, ada=1, bob=2)
    feed = users.changes(since=since)

    async with contextlib.AsyncExitStack() as stack:
        if not is_past:
            await stack.enter_async_context(feed)
        async with state.transaction() as tx:
            await users.clear(tx)
            await users.set(tx, "bob", 3)
        if is_past:
            await stack.enter_async_context(feed)
        changes = await take(feed, 2)
        await assert_waits(feed)

    assert told_briefly(changes) == [("clear", None, None, None), ("add", "bob", None, 3)]
    assert [change.is_last for change in changes] == [False, True]


async def test_the_empty_key_is_a_key_and_not_a_clear(state: StateManager) -> None:
    names = await state.dictionary("names", key=bytes, value=int)

    async with names.changes(since=0) as feed:
        for value in (1, 2):
            async with state.transaction() as tx:
                await names.set(tx, b"", value)
        async with state.transaction() as tx:
            await names.delete(tx, b"")
        kinds = [(await anext(feed)).kind for _ in range(3)]

    assert kinds == ["add", "update", "delete"]


async def test_an_aborted_transaction_leaves_no_trace(state: StateManager) -> None:
    users = await users_of(state)

    async with users.changes(since=0) as feed:
        with contextlib.suppress(RuntimeError):
            async with state.transaction() as tx:
                await users.set(tx, "ada", 1)
                raise RuntimeError
        await put(state, users, ada=2)
        changes = await take(feed, 1)
        await assert_waits(feed)

    assert told_briefly(changes) == [("add", "ada", None, 2)]


async def test_other_collections_are_not_told(state: StateManager) -> None:
    users, others = await two_dictionaries(state)
    jobs = await state.queue("jobs", value=int)

    async with users.changes(since=0) as feed:
        await put(state, others, ada=1)
        async with state.transaction() as tx:
            await jobs.enqueue(tx, 1)
        await put(state, users, bob=2)
        assert told_briefly(await take(feed, 1)) == [("add", "bob", None, 2)]


class Cart(msgspec.Struct):
    items: list[str]


async def test_values_are_fresh_and_changing_them_changes_nothing_else(
    state: StateManager,
) -> None:
    carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
    for items in (["lamp"], ["chair"]):
        async with state.transaction() as tx:
            await carts.set(tx, "ada", Cart(items))

    async with carts.changes(since=0) as feed:
        first, second = await anext(feed), await anext(feed)
    assert first.new is not None
    assert second.old is not None
    assert second.new is not None
    first.new.items.append("broken")
    second.new.items.append("broken")

    assert second.old.items == ["lamp"]
    async with state.snapshot() as snapshot:
        assert (await carts.get(snapshot, "ada")).items == ["chair"]
    async with carts.changes(since=0) as feed:
        assert (await anext(feed)).new == Cart(["lamp"])
        assert (await anext(feed)).new == Cart(["chair"])


class Point(msgspec.Struct, frozen=True):
    x: int


async def test_frozen_values_are_not_those_of_the_cache(state: StateManager) -> None:
    points = await state.dictionary("points", key=str, value=Point)
    given = Point(1)
    async with points.changes(since=0) as feed:
        async with state.transaction() as tx:
            await points.set(tx, "a", given)
        change = await anext(feed)

    assert change.new == given
    assert change.new is not given


async def test_a_value_that_cannot_be_read_is_not_skipped(state: StateManager) -> None:
    numbers: ReliableDictionary[str, Any] = await state.dictionary("names", key=str, value=int)
    async with state.transaction() as tx:
        space = await tx.enter(numbers, None)
        texts: ValueCodec[str] = ValueCodec(str)
        tx.stage(space, encode_key("ada"), texts.encode("text", version=1))
    async with state.transaction() as tx:
        await numbers.set(tx, "bob", 1)

    async with numbers.changes(since=0) as feed:
        for _ in range(2):
            with pytest.raises(SchemaError):
                await anext(feed)


# --- the buffer ---------------------------------------------------------------------------


async def test_a_reader_that_is_too_slow_goes_back_to_the_log(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 5)
    users = await users_of(state)
    async with users.changes(since=state.sequence) as feed:
        for number in range(3):
            await put(state, users, ada=number)
        changes = await take(feed, 1)
        for number in range(3, 40):
            await put(state, users, ada=number)
        assert feed._buffer is not None
        assert feed._buffer.lost_from is not None
        assert not feed._buffer.changes

        changes += await take(feed, 39)
        await put(state, users, ada=40)
        changes += await take(feed, 1)
        await assert_waits(feed)

    assert [change.new for change in changes] == list(range(41))
    assert [change.old for change in changes] == [None, *range(40)]


async def test_the_bytes_that_wait_are_limited_too(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "FEED_BUFFER_BYTES_MAX", 30)
    users = await users_of(state)
    async with users.changes(since=state.sequence) as feed:
        for number in range(10):
            await put(state, users, ada=number)
        assert feed._buffer is not None
        assert feed._buffer.lost_from is not None

        changes = await take(feed, 10)

    assert [change.new for change in changes] == list(range(10))


async def test_one_record_larger_than_the_buffer_needs_no_log(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 5)
    users = await users_of(state)
    async with users.changes(since=state.sequence) as feed:
        await put(state, users, **{f"k{number:02}": number for number in range(50)})
        monkeypatch.setattr(LocalLog, "read_from", None)
        changes = await take(feed, 50)

    assert [change.new for change in changes] == list(range(50))
    assert [change.is_last for change in changes] == [False] * 49 + [True]


async def test_a_quiet_dictionary_does_not_hold_the_feed_back(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 2)
    users, others = await two_dictionaries(state)
    async with users.changes(since=state.sequence) as feed:
        await cut_the_log(state, others)
        for number in range(10):
            await put(state, users, ada=number)
        changes = await take(feed, 10)

    assert [change.kind for change in changes] == ["add"] + ["update"] * 9


async def test_a_feed_at_the_end_reads_no_log(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = await users_of(state)
    since = await put(state, users, ada=1)
    monkeypatch.setattr(LocalLog, "read_from", None)

    async with users.changes(since=since) as feed:
        await put(state, users, ada=2)
        assert told_briefly(await take(feed, 1)) == [("update", "ada", 1, 2)]


async def test_other_tasks_run_while_a_long_past_is_read(state: StateManager) -> None:
    users = await users_of(state)
    for start in range(0, 3000, 1000):
        await put(
            state, users, **{f"k{number:04}": number for number in range(start, start + 1000)}
        )
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    async with users.changes(since=0) as feed:
        await take(feed, 3000)
    ticking.cancel()

    assert count >= 3000 // notifications.STEP_CHANGES


# --- rebuild ------------------------------------------------------------------------------


async def test_a_sequence_older_than_the_log_gives_a_rebuild_first(state: StateManager) -> None:
    users = await users_of(state)
    await put(state, users, bob=2, ada=1)
    await cut_the_log(state, users)

    async with users.changes(since=1) as feed:
        changes = await take(feed, 4)
        sequence = state.sequence
        later = await put(state, users, ada=5)
        changes += await take(feed, 1)
        await assert_waits(feed)

    filler = changes[3].new
    assert told(changes) == [
        ("rebuild", None, None, None, sequence),
        ("add", "ada", None, 1, sequence),
        ("add", "bob", None, 2, sequence),
        ("add", "filler", None, filler, sequence),
        ("update", "ada", 1, 5, later),
    ]
    assert [change.is_last for change in changes] == [False, False, False, True, True]


async def test_the_rebuild_of_an_empty_dictionary_is_one_change(state: StateManager) -> None:
    users, others = await two_dictionaries(state)
    await cut_the_log(state, others)

    async with users.changes(since=0) as feed:
        [change] = await take(feed, 1)
        await assert_waits(feed)

    assert (change.kind, change.sequence, change.is_last) == ("rebuild", state.sequence, True)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
async def test_only_the_last_row_of_a_rebuild_is_the_last(
    state: StateManager, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(notifications, "STEP_CHANGES", 4)
    users, others = await two_dictionaries(state)
    await put(state, users, **{f"k{number}": number for number in range(count)})
    await cut_the_log(state, others)

    async with users.changes(since=0) as feed:
        changes = await take(feed, count + 1)
        await assert_waits(feed)

    assert [change.new for change in changes] == [None, *range(count)]
    assert [change.is_last for change in changes] == [False] * count + [True]


async def test_a_rebuild_shows_one_moment_and_then_what_followed_it(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "STEP_CHANGES", 4)
    users, others = await two_dictionaries(state)
    await put(state, users, **{f"k{number:02}": number for number in range(20)})
    await cut_the_log(state, others)

    async with users.changes(since=0) as feed:
        changes = await take(feed, 2)
        sequence = await put(state, users, k19=100, k30=30)
        await users.clear()
        changes += await take(feed, 22)
    changed, clear = changes[21:23], changes[23]

    assert [change.new for change in changes[:21]] == [None, *range(20)]
    assert told(changed) == [
        ("update", "k19", 19, 100, sequence),
        ("add", "k30", None, 30, sequence),
    ]
    assert clear.kind == "clear"
    assert not state.state._snapshots


async def test_what_overflows_during_a_rebuild_comes_from_the_log(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "STEP_CHANGES", 4)
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 2)
    users, others = await two_dictionaries(state)
    await put(state, users, **{f"k{number}": number for number in range(9)})
    await cut_the_log(state, others)

    async with users.changes(since=0) as feed:
        changes = await take(feed, 2)
        for number in range(20):
            await put(state, users, k8=number)
        changes += await take(feed, 8 + 20)
        await assert_waits(feed)

    assert [change.kind for change in changes] == ["rebuild"] + ["add"] * 9 + ["update"] * 20
    assert [change.new for change in changes[10:]] == list(range(20))
    assert changes[10].old == 8


async def test_the_log_truncated_under_a_reader_gives_a_rebuild(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "REPLAY_CHANGES", 1)
    users, others = await two_dictionaries(state)
    await put(state, users, ada=1)
    await put(state, users, ada=2)

    async with users.changes(since=0) as feed:
        changes = await take(feed, 1)
        await cut_the_log(state, others)
        changes += await take(feed, 2)
        await assert_waits(feed)

    assert told_briefly(changes) == [
        ("add", "ada", None, 1),
        ("rebuild", None, None, None),
        ("add", "ada", None, 2),
    ]


async def test_a_full_copy_gives_a_rebuild(state: StateManager) -> None:
    users = await users_of(state)
    await put(state, users, ada=1)
    other = await a_state()
    their_users = await users_of(other)
    await put(other, their_users, bob=2)
    await put(other, their_users, cyd=3)

    async with users.changes(since=0) as feed:
        changes = await take(feed, 1)
        waiting = asyncio.ensure_future(take(feed, 3))
        await turns(5)
        old = users.collection
        state.replace(other.state)
        changes += await waiting
    await other.close()

    assert [change.kind for change in changes] == ["add", "rebuild", "add", "add"]
    assert [change.key for change in changes] == ["ada", None, "bob", "cyd"]
    assert {change.sequence for change in changes[1:]} == {other.sequence}
    assert len(old.watchers) == 1


async def test_a_copy_while_the_log_is_read_leaves_nothing_of_what_was(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "STEP_BYTES", 1)
    users = await users_of(state)
    for number in range(5):
        await put(state, users, ada=number)
    copied = await a_state()
    await put(copied, await users_of(copied), bob=1)

    async with users.changes(since=0) as feed:
        reading = asyncio.ensure_future(anext(feed))
        await turns(2)
        assert feed._scratch is not None
        assert feed._pending
        state.replace(copied.state)
        changes = [await reading, *await take(feed, 1)]
        await assert_waits(feed)
    await copied.close()

    assert told_briefly(changes) == [("rebuild", None, None, None), ("add", "bob", None, 1)]


async def test_a_copy_in_the_middle_of_a_rebuild_starts_it_over(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "STEP_CHANGES", 4)
    users, others = await two_dictionaries(state)
    await put(state, users, **{f"k{number:02}": number for number in range(20)})
    await cut_the_log(state, others)
    copied = await a_state()
    await put(copied, await users_of(copied), ada=1)

    async with users.changes(since=0) as feed:
        before = state.state
        await take(feed, 3)
        state.replace(copied.state)
        changes = await take(feed, 2)
        await assert_waits(feed)
    await copied.close()

    assert told_briefly(changes) == [("rebuild", None, None, None), ("add", "ada", None, 1)]
    assert not before._snapshots


async def test_a_copy_without_the_dictionary_ends_the_feed(state: StateManager) -> None:
    users = await users_of(state)

    async with users.changes(since=state.sequence) as feed:
        state.replace(State())
        with pytest.raises(CollectionNotFoundError):
            await anext(feed)


async def test_a_sequence_that_a_primary_never_wrote_gives_a_rebuild(state: StateManager) -> None:
    users = await users_of(state)
    sequence = await put(state, users, ada=1)

    async with users.changes(since=sequence + 100) as feed:
        changes = await take(feed, 2)

    assert [(change.kind, change.sequence) for change in changes] == [
        ("rebuild", sequence),
        ("add", sequence),
    ]


# --- on a secondary -----------------------------------------------------------------------


class Secondary:
    """A replica that applies what another's log holds."""

    def __init__(self, primary: StateManager) -> None:
        self._log = primary.log
        checkpoints = Checkpoints(SimDisk(ManualClock()))
        self.state = StateManager(State(), primary.log, ManualClock(), checkpoints, name="second")

    async def catch_up(self) -> None:
        async for sequence, raw in self._log.read_from(self.state.sequence + 1):
            self.state.apply(sequence, raw)


async def test_a_secondary_tells_the_same(state: StateManager, model: Model) -> None:
    users, others = await two_dictionaries(state)
    secondary = Secondary(state)
    await secondary.catch_up()
    copies = await users_of(secondary.state)

    async with copies.changes(since=0) as feed:
        changes: list[Change[str, int]] = []
        for _ in range(30):
            await model.group(state, users, others)
            await secondary.catch_up()
            changes += await take(feed, len(model.expected) - len(changes))

    assert told(changes) == model.expected


async def test_a_secondary_waits_for_a_sequence_that_has_not_come(state: StateManager) -> None:
    users = await users_of(state)
    secondary = Secondary(state)
    await secondary.catch_up()
    copies = await users_of(secondary.state)
    await put(state, users, ada=1)
    since = await put(state, users, ada=2)
    later = await put(state, users, ada=3)

    async with copies.changes(since=since) as feed:
        await assert_waits(feed)
        await secondary.catch_up()
        changes = await take(feed, 1)
        await assert_waits(feed)

    assert told(changes) == [("update", "ada", 2, 3, later)]


# --- the end ------------------------------------------------------------------------------


async def test_closing_the_feed_ends_those_who_wait(state: StateManager) -> None:
    users = await users_of(state)
    feed = users.changes(since=0)

    async with feed:
        waiting = asyncio.ensure_future(_all(feed))
        await turns(10)
        assert not waiting.done()

    assert await waiting == []


async def test_closing_the_feed_ends_those_who_read_the_log(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "STEP_BYTES", 1)
    users = await users_of(state)
    await put(state, users, ada=1)
    feed = users.changes(since=0)

    async with feed:
        waiting = asyncio.ensure_future(_all(feed))
        await asyncio.sleep(0)

    assert await waiting == []


async def test_closing_the_state_ends_the_feed() -> None:
    state = await a_state()
    users = await users_of(state)
    async with users.changes(since=state.sequence) as feed:
        waiting = asyncio.ensure_future(_all(feed))
        await turns(3)
        await state.close()

        async with asyncio.timeout(60):
            assert await waiting == []
        assert await _all(feed) == []


async def _all(feed: ChangeFeed[str, int]) -> list[Change[str, int]]:
    return [change async for change in feed]


async def test_a_closed_feed_leaves_nothing_behind(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "STEP_CHANGES", 2)
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 2)
    users = await users_of(state)
    await put(state, users, a=1, b=2, c=3, d=4, e=5)
    before = list(users.collection.watchers)

    for since in (0, 2, state.sequence):
        async with users.changes(since=since):
            pass
        async with users.changes(since=since) as feed:
            await put(state, users, a=since)
            await put(state, users, b=since)
            await put(state, users, c=since)
            await take(feed, 1)
    await cut_the_log(state, users)
    async with users.changes(since=0) as feed:
        await take(feed, 2)
        assert state.state._snapshots

    assert users.collection.watchers == before
    assert not state.state._snapshots
    assert not state._feeds


async def test_two_feeds_at_once_do_not_disturb_each_other(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 3)
    users = await users_of(state)

    async with users.changes(since=0) as slow:
        at_once = []
        async with users.changes(since=0) as quick:
            for number in range(20):
                await put(state, users, ada=number)
                at_once += await take(quick, 1)
        assert await take(slow, 20) == at_once
        await put(state, users, ada=20)
        assert [change.new for change in await take(slow, 1)] == [20]


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_dropping_the_dictionary_ends_the_feed(state: StateManager, is_waiting: bool) -> None:
    users = await users_of(state)
    await put(state, users, ada=1)

    async with users.changes(since=0) as feed:
        changes = await take(feed, 1) if is_waiting else []
        waiting = asyncio.ensure_future(anext(feed)) if is_waiting else None
        await turns(10)
        await state.drop("users")
        changes += [await waiting] if waiting is not None else await take(feed, 2)
        for _ in range(2):
            with pytest.raises(CollectionNotFoundError):
                await anext(feed)

    assert told_briefly(changes) == [("add", "ada", None, 1), ("clear", None, None, None)]


async def test_a_dictionary_of_the_same_name_is_another_one(state: StateManager) -> None:
    await put(state, await users_of(state), ada=1)
    await state.drop("users")
    users = await users_of(state)
    await put(state, users, bob=2)

    async with users.changes(since=0) as feed:
        changes = await take(feed, 1)
        await assert_waits(feed)

    assert told_briefly(changes) == [("add", "bob", None, 2)]


async def test_a_cancelled_wait_loses_nothing(
    state: StateManager, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "REPLAY_CHANGES", 5)
    monkeypatch.setattr(notifications, "FEED_BUFFER_MAX", 6)
    monkeypatch.setattr(notifications, "STEP_CHANGES", 2)
    monkeypatch.setattr(notifications, "STEP_BYTES", 1)
    users, others = await two_dictionaries(state)
    for _ in range(30):
        await model.group(state, users, others)
    changes: list[Change[str, int]] = []
    cancelled = 0

    async with users.changes(since=0) as feed:
        for _ in range(3):
            while len(changes) < len(model.expected):
                reading = asyncio.ensure_future(anext(feed))
                await turns(model.random.randint(1, 6))
                if reading.cancel():
                    cancelled += 1
                with contextlib.suppress(asyncio.CancelledError):
                    changes.append(await reading)
            for _ in range(5):
                await model.group(state, users, others)
        changes += await take(feed, len(model.expected) - len(changes))

    assert told(changes) == model.expected
    assert cancelled


# --- wrong use ----------------------------------------------------------------------------


@pytest.mark.parametrize("since", [-1, True, "1", 1.0, None])
async def test_a_start_that_is_not_a_sequence_is_refused(state: StateManager, since: Any) -> None:
    users = await users_of(state)

    with pytest.raises(UsageError) as caught:
        users.changes(since=since)

    assert caught.value.code == "InvalidSequence"


async def test_a_feed_is_read_inside_its_block_only(state: StateManager) -> None:
    users = await users_of(state)
    feed = users.changes(since=0)
    with pytest.raises(UsageError) as before:
        await anext(feed)
    async with feed:
        with pytest.raises(UsageError) as twice:
            await feed.__aenter__()

    assert {before.value.code, twice.value.code} == {"FeedNotOpen"}
    assert await _all(feed) == []


async def test_two_tasks_cannot_read_one_feed_at_once(state: StateManager) -> None:
    users = await users_of(state)
    async with users.changes(since=0) as feed:
        waiting = asyncio.ensure_future(anext(feed))
        await turns(10)

        with pytest.raises(UsageError) as caught:
            await anext(feed)
        await put(state, users, ada=1)

        assert (await waiting).new == 1
    assert caught.value.code == "FeedInUse"
