"""Collections of a state: created, listed, dropped; and the pure State below them."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import partita
from partita.errors import (
    ChainBrokenError,
    CollectionMismatchError,
    CollectionNotFoundError,
    DamageError,
    KeyNotFoundError,
    LimitExceededError,
    LockTimeoutError,
    MutableTypeError,
    MutatedValueError,
    PartitaError,
    SchemaError,
    StateClosedError,
    StoreLockedError,
    TransactionUseError,
    UsageError,
)
from partita.reliable import ReliableDictionary, ReliableQueue, Schema
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.state.blocks import Blocks
from partita.reliable.state.records import (
    FORMAT,
    NO_HASH,
    Clear,
    Create,
    Delete,
    Drop,
    Enqueue,
    Entry,
    Operation,
    Outcome,
    Put,
    Record,
)
from partita.reliable.state.state import (
    FORGET_AT_ONCE,
    PRUNE_AT_ONCE,
    Collection,
    Description,
    Rows,
    State,
    encode_description,
)
from partita.reliable.values import limits
from support.repeats import repeat
from support.states import Cart, Machine, User, a_state


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    async with a_state() as opened:
        yield opened


class TestCollections:
    async def test_a_collection_is_created_in_a_commit_of_its_own(
        self, state: StateManager
    ) -> None:
        before = state.sequence
        await state.dictionary("users", key=str, value=User)

        assert state.sequence == before + 1

    async def test_opening_again_gives_the_same_and_commits_nothing(
        self, state: StateManager
    ) -> None:
        for open_one in (
            lambda: state.dictionary("users", key=str, value=User),
            lambda: state.queue("outbox", value=User),
            lambda: state.concurrent_queue("jobs", value=User),
        ):
            first: object = await open_one()
            before = state.sequence
            assert await open_one() is first
            assert state.sequence == before

    async def test_they_are_listed_by_name_with_what_they_hold(self, state: StateManager) -> None:
        users = await state.dictionary(
            "users", key=tuple[str, int], value=User, version=3, indexes={"age": lambda u: u.age}
        )
        await state.queue("outbox", value=int)
        await state.concurrent_queue("jobs", value=str)
        async with state.transaction() as tx:
            await users.set(tx, ("a", 1), User("x"))

        listed = state.collections()
        assert [one.name for one in listed] == ["jobs", "outbox", "users"]
        assert [one.kind for one in listed] == ["concurrent_queue", "queue", "dictionary"]
        last = listed[-1]
        assert (last.count, last.written_version, last.indexes) == (1, 3, ("age",))

    async def test_what_was_created_is_there_after_a_restart(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await state.dictionary("users", key=str, value=User)
            await state.queue("outbox", value=int)
            before = state.collections()
        async with machine.open() as state:
            assert state.collections() == before

    @pytest.mark.parametrize("kind", ["queue", "concurrent_queue", "dictionary by int"])
    async def test_another_kind_or_key_is_refused(self, state: StateManager, kind: str) -> None:
        await state.dictionary("users", key=str, value=User)
        with pytest.raises(CollectionMismatchError) as refused:  # noqa: PT012 - the block as a whole is what fails
            match kind:
                case "queue":
                    await state.queue("users", value=User)
                case "concurrent_queue":
                    await state.concurrent_queue("users", value=User)
                case _:
                    await state.dictionary("users", key=int, value=User)

        assert refused.value.facts == {"collection": "users"}
        assert refused.value.hint

    async def test_a_version_that_this_code_cannot_read_is_refused(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await state.dictionary("users", key=str, value=User, version=2)
        async with machine.open() as state:
            with pytest.raises(SchemaError) as refused:
                await state.dictionary("users", key=str, value=User, version=1)
            assert refused.value.code == "SchemaTooNew"
            await state.dictionary("users", key=str, value=User, version=Schema(3, write=2))

    @pytest.mark.parametrize("name", ["", "x" * 129, 7, None, "a\nb", b"users"])
    async def test_a_name_that_is_none_is_refused(self, state: StateManager, name: Any) -> None:
        before = state.sequence
        for opening in (
            state.dictionary(name, key=str, value=int),
            state.queue(name, value=int),
            state.concurrent_queue(name, value=int),
        ):
            with pytest.raises(UsageError) as refused:
                await opening
            assert refused.value.code == "InvalidName"
        assert state.sequence == before

    async def test_there_is_a_limit_to_collections(
        self, state: StateManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "COLLECTIONS_MAX", 2)
        await state.queue("one", value=int)
        await state.queue("two", value=int)
        with pytest.raises(LimitExceededError) as refused:
            await state.queue("three", value=int)

        assert refused.value.code == "TooManyCollections"
        await state.drop("one")
        await state.queue("three", value=int)


class TestDrop:
    async def test_a_dropped_collection_is_gone_with_its_indexes(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            users = await state.dictionary(
                "users", key=str, value=User, indexes={"age": lambda user: user.age}
            )
            async with state.transaction() as tx:
                await users.set(tx, "a", User("x"))
            await state.drop("users")
            assert state.collections() == []
            assert not state.state.collections
        async with machine.open() as state:
            assert state.collections() == []

    async def test_the_name_may_be_used_for_something_else(self, state: StateManager) -> None:
        users = await state.dictionary("users", key=str, value=User)
        async with state.transaction() as tx:
            await users.set(tx, "a", User("x"))
        await state.drop("users")
        queue = await state.queue("users", value=int)
        async with state.snapshot() as snapshot:
            assert await queue.count(snapshot) == 0

    async def test_the_old_handle_says_so(self, state: StateManager) -> None:
        users = await state.dictionary("users", key=str, value=User)
        async with state.snapshot() as before:
            await state.drop("users")
            async with state.transaction() as tx:
                with pytest.raises(CollectionNotFoundError):
                    await users.set(tx, "a", User("x"))
            with pytest.raises(CollectionNotFoundError):
                await users.get(before, "a", None)
        again = await state.dictionary("users", key=str, value=User)

        assert again is not users
        async with state.transaction() as tx:
            with pytest.raises(PartitaError):
                await users.set(tx, "a", User("x"))
            await again.set(tx, "a", User("y"))

    async def test_it_waits_for_those_who_use_it(self, state: StateManager) -> None:
        users = await state.dictionary("users", key=str, value=User)
        async with state.transaction() as tx:
            await users.get(tx, "a", None)
            with pytest.raises(LockTimeoutError) as refused:
                await state.drop("users", timeout=0)
            assert (refused.value.holder, refused.value.collection) == (tx.id, "users")
            await users.set(tx, "a", User("x"))

        await state.drop("users")

    async def test_what_is_not_there_cannot_be_dropped(self, state: StateManager) -> None:
        await state.dictionary("users", key=str, value=User, indexes={"age": lambda u: u.age})
        for name in ("nobody", "users\x00age"):
            with pytest.raises(CollectionNotFoundError):
                await state.drop(name)


@dataclasses.dataclass
class Loose:
    name: str


class TestImmutability:
    @pytest.mark.parametrize("value", [Cart, list[int], dict[str, int], set[int], Loose])
    async def test_a_type_that_can_be_changed_in_place_is_refused_at_open(
        self, state: StateManager, value: Any
    ) -> None:
        before = state.sequence
        for opening in (
            state.dictionary("carts", key=str, value=value),
            state.queue("carts", value=value),
            state.concurrent_queue("carts", value=value),
        ):
            with pytest.raises(MutableTypeError):
                await opening
        assert state.sequence == before

    @pytest.mark.parametrize("write", ["add", "set", "upsert", "get_or_add", "compare_and_set"])
    async def test_a_value_changed_after_it_was_written_aborts(
        self, state: StateManager, write: str
    ) -> None:
        carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
        async with state.transaction() as tx:
            await carts.set(tx, "old", Cart(["lamp"]))
        cart = Cart(["lamp"])
        with pytest.raises(MutatedValueError) as refused:  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                await carts.set(tx, "beside", Cart([]))
                match write:
                    case "add":
                        await carts.add(tx, "ada", cart)
                    case "set":
                        await carts.set(tx, "ada", cart)
                    case "upsert":
                        await carts.upsert(tx, "ada", cart, lambda old: old)
                    case "get_or_add":
                        await carts.get_or_add(tx, "ada", cart)
                    case _:
                        await carts.compare_and_set(tx, "old", cart, expected=Cart(["lamp"]))
                cart.items.append("chair")

        error = refused.value
        assert error.collection == "carts"
        assert error.key == ("old" if write == "compare_and_set" else "ada")
        assert error.path == "items[1]"
        async with state.snapshot() as snapshot:
            assert [key async for key in carts.keys(snapshot)] == ["old"]
            assert await carts.get(snapshot, "old") == Cart(["lamp"])

    async def test_a_value_changed_after_it_was_read_aborts(self, state: StateManager) -> None:
        carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
        async with state.transaction() as tx:
            await carts.set(tx, "ada", Cart(["lamp"]))
        for _ in range(2):
            with pytest.raises(MutatedValueError):  # noqa: PT012 - the block as a whole is what fails
                async with state.transaction() as tx:
                    cart = await carts.get(tx, "ada")
                    cart.items.append("chair")

        async with state.snapshot() as snapshot:
            assert await carts.get(snapshot, "ada") == Cart(["lamp"])

    async def test_every_copy_that_was_read_is_checked(self, state: StateManager) -> None:
        carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
        async with state.transaction() as tx:
            await carts.set(tx, "ada", Cart(["lamp"]))
        with pytest.raises(MutatedValueError):  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                first = await carts.get(tx, "ada")
                await carts.get(tx, "ada")
                first.items.append("chair")

    async def test_changing_a_copy_and_setting_it_is_the_right_way(
        self, state: StateManager
    ) -> None:
        carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
        async with state.transaction() as tx:
            await carts.set(tx, "ada", Cart(["lamp"]))
        async with state.transaction() as tx:
            cart = await carts.get(tx, "ada")
            cart.items.append("chair")
            await carts.set(tx, "ada", cart)

        async with state.snapshot() as snapshot:
            assert (await carts.get(snapshot, "ada")).items == ["lamp", "chair"]

    async def test_a_copy_belongs_to_its_reader(self, state: StateManager) -> None:
        carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
        async with state.transaction() as tx:
            await carts.set(tx, "ada", Cart(["lamp"]))
        async with state.snapshot() as snapshot:
            (await carts.get(snapshot, "ada")).items.append("chair")
            assert await carts.get(snapshot, "ada") == Cart(["lamp"])
            async for cart in carts.values(snapshot):
                cart.items.append("chair")
            assert await carts.get(snapshot, "ada") == Cart(["lamp"])

    async def test_a_frozen_value_that_was_forced_is_caught_too(self, state: StateManager) -> None:
        @dataclasses.dataclass(frozen=True)
        class Point:
            x: int

        points = await state.dictionary("points", key=str, value=Point)
        async with state.transaction() as tx:
            await points.set(tx, "a", Point(1))
        with pytest.raises(MutatedValueError):
            async with state.transaction() as tx:
                object.__setattr__(await points.get(tx, "a"), "x", 2)
        async with state.transaction() as tx:
            assert await points.get(tx, "a") == Point(1)

    async def test_off_checks_nothing_and_stores_what_was_given_at_the_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PARTITA_CHECK_MUTATION", "off")
        async with a_state() as state:
            carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
            cart = Cart(["lamp"])
            async with state.transaction() as tx:
                await carts.set(tx, "ada", cart)
                cart.items.append("chair")
            async with state.snapshot() as snapshot:
                assert await carts.get(snapshot, "ada") == Cart(["lamp"])

    async def test_sample_checks_one_transaction_in_a_hundred(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PARTITA_CHECK_MUTATION", "sample")
        caught = 0
        async with a_state() as state:
            carts = await state.dictionary("carts", key=str, value=Cart, mutable="copy")
            for _ in range(300):
                cart = Cart(["lamp"])
                try:
                    async with state.transaction() as tx:
                        await carts.set(tx, "ada", cart)
                        cart.items.append("chair")
                except MutatedValueError:
                    caught += 1
        assert caught == 3

    async def test_another_setting_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PARTITA_CHECK_MUTATION", "perhaps")
        machine = Machine()
        with pytest.raises(UsageError) as refused:
            async with machine.open():
                pass
        assert refused.value.code == "InvalidMutationCheck"
        monkeypatch.delenv("PARTITA_CHECK_MUTATION")
        async with machine.open():
            pass


class TestClosing:
    async def test_a_closed_state_says_so_everywhere(self) -> None:
        async with a_state() as state:
            users = await state.dictionary("users", key=str, value=User)
            queue = await state.queue("queue", value=int)

        async def work(tx: partita.reliable.Transaction) -> None:
            await users.get(tx, "a", None)

        for use in (
            lambda: state.dictionary("users", key=str, value=User),
            lambda: state.queue("other", value=int),
            lambda: state.drop("users"),
            lambda: state.run(work),
            lambda: state.run(work, idempotency_key="request"),
            lambda: state.outcome("request"),
            lambda: state.checkpoint(),  # noqa: PLW0108 - called anew, in the loop
            lambda: state.read_at_least(10**6, timeout=0),
            lambda: users.clear(),  # noqa: PLW0108 - called anew, in the loop
            lambda: queue.clear(),  # noqa: PLW0108 - called anew, in the loop
            lambda: state.rewrite(users),
        ):
            with pytest.raises(StateClosedError) as refused:
                await use()
            assert "open" in refused.value.hint.lower()
        for at_once in (state.transaction, state.snapshot, state.collections):
            with pytest.raises(StateClosedError):
                at_once()
        await state.close()  # again: nothing happens

    async def test_a_snapshot_is_closed_with_its_block(self, state: StateManager) -> None:
        users = await state.dictionary("users", key=str, value=User)
        async with state.snapshot() as snapshot:
            pass
        with pytest.raises(TransactionUseError) as refused:
            await users.get(snapshot, "a", None)
        assert refused.value.code == "SnapshotClosed"
        with pytest.raises(TransactionUseError):
            await users.count(snapshot)
        with pytest.raises(TransactionUseError):
            async for _ in users.items(snapshot):
                pass


class TestOnDisk:
    async def test_what_was_committed_is_there_in_another_life(self, tmp_path: Path) -> None:
        async with partita.open_state(tmp_path) as state:
            users = await state.dictionary("users", key=str, value=User)
            async with state.transaction() as tx:
                await users.set(tx, "ada", User("a@x"))
            open_still = state.transaction()
            await users.set(open_still, "never", User("n@x"))
        async with partita.open_state(str(tmp_path)) as state:
            users = await state.dictionary("users", key=str, value=User)
            async with state.snapshot() as snapshot:
                assert [row async for row in users.items(snapshot)] == [("ada", User("a@x"))]

    async def test_a_second_holder_is_told_who_the_first_is(self, tmp_path: Path) -> None:
        async with partita.open_state(tmp_path):
            with pytest.raises(StoreLockedError) as refused:
                async with partita.open_state(tmp_path):
                    pass
            assert refused.value.facts
        async with partita.open_state(tmp_path):
            pass

    @pytest.mark.parametrize("where", ["http://x", [], ["nats://a", "b"], 7, None])
    async def test_an_address_that_is_none_is_refused(self, where: Any) -> None:
        with pytest.raises(UsageError) as refused:
            async with partita.open_state(where):
                pass
        assert refused.value.code == "InvalidStateAddress"

    async def test_arguments_of_a_replicated_state_are_refused_for_a_folder(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError):
            async with partita.open_state(tmp_path, partition="p0"):
                pass

    async def test_a_checkpoint_changes_nothing_that_is_seen(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            users = await state.dictionary("users", key=str, value=User)
            queue = await state.queue("queue", value=int)
            for number in range(20):
                async with state.transaction() as tx:
                    await users.set(tx, f"k{number % 7}", User("x", number))
                    await queue.enqueue(tx, number)
                    if number % 3 == 0:
                        await queue.dequeue(tx)
                if number == 12:
                    await state.checkpoint()
            digest = state.state.digest()
        async with machine.open() as state:
            assert state.state.digest() == digest

    async def test_reading_at_a_sequence_that_is_applied_returns(self, state: StateManager) -> None:
        await state.read_at_least(state.sequence, timeout=0)
        with pytest.raises(PartitaError) as refused:
            await state.read_at_least(state.sequence + 1, timeout=0)
        assert refused.value.code == "NotReadable"


USERS = encode_description(Description("users", "dictionary", "str"))


class Applied:
    """A State with a hand on its records."""

    def __init__(self, *operations: Operation) -> None:
        self.state = State()
        self.apply(Create(1, USERS))
        self.apply(*operations)

    def apply(self, *operations: Operation, **changed: Any) -> bool:
        state = self.state
        made = Record(
            FORMAT, 1, state.sequence + 1, state.hash, 10, "", [Entry("tx", list(operations))]
        )
        record = msgspec.structs.replace(made, **changed)
        return state.apply(record, record.sequence.to_bytes(16))


class TestApply:
    def test_equal_records_make_equal_states(self) -> None:
        operations = (Put(1, b"a", b"1"), Put(1, b"b", b"2"), Delete(1, b"a"))

        assert Applied(*operations).state.digest() == Applied(*operations).state.digest()
        assert Applied(*operations).state.digest() != Applied(*operations[:2]).state.digest()

    def test_a_record_that_does_not_follow_is_damage(self) -> None:
        one = Applied(Put(1, b"a", b"1"))
        for changed in ({"sequence": 9}, {"sequence": 2}, {"previous": NO_HASH}):
            digest = one.state.digest()
            with pytest.raises(ChainBrokenError):
                one.apply(Put(1, b"a", b"2"), **changed)
            assert one.state.digest() == digest

    def test_a_record_of_an_older_epoch_does_not_count(self) -> None:
        one = Applied(Put(1, b"a", b"1"))
        one.apply(epoch=3, primary="two")
        assert one.apply(Put(1, b"a", b"2"), epoch=2) is False
        assert one.state.collections[1].rows.values == {b"a": b"1"}
        assert one.state.primary == "two"
        assert one.apply(Put(1, b"a", b"3"), epoch=3) is True

    @pytest.mark.parametrize(
        "operation", [Delete(1, b"nothing"), Put(9, b"a", b"1"), Create(7, b"\xc1"), Drop(9)]
    )
    def test_a_record_without_meaning_is_damage(self, operation: Operation) -> None:
        with pytest.raises(DamageError) as refused:
            Applied(Put(1, b"a", b"1")).apply(operation)
        assert refused.value.code == "RecordMeaningless"

    def test_positions_go_on_behind_a_clear(self) -> None:
        one = Applied(Enqueue(1, b"x"), Enqueue(1, b"y"))
        one.apply(Clear(1))
        one.apply(Enqueue(1, b"z"))

        assert list(one.state.collections[1].rows.values) == [(2).to_bytes(8)]

    def test_expired_outcomes_go_at_the_same_record_however_they_came(self) -> None:
        late, early = Outcome("late", b"1", 200), Outcome("early", b"2", 100)
        live = Applied(late, early)
        copied = Applied()
        copied.apply()
        copied.state.sequence, copied.state.hash = live.state.sequence, live.state.hash
        copied.state.restore([], live.state.outcomes.items())
        for one in (live, copied):
            one.apply(ticks=150)

        assert list(live.state.outcomes) == list(copied.state.outcomes) == ["late"]

    def test_outcomes_that_expire_together_go_in_turns_and_count_no_more(self) -> None:
        many = [Outcome(f"{number}", b"1", 100) for number in range(5 * FORGET_AT_ONCE)]
        one, other = Applied(*many, Outcome("late", b"2", 900)), Applied(Outcome("late", b"2", 900))
        other.state.hash = one.state.hash
        left = []
        for _ in range(6):
            one.apply(ticks=150)
            other.apply(ticks=150)
            left.append(len(one.state.outcomes))
            assert one.state.digest() == other.state.digest()

        removed = FORGET_AT_ONCE + 1  # each record has one transaction
        assert left == [1 + max(len(many) - turn * removed, 0) for turn in range(1, 7)]

    def test_an_outcome_that_is_written_again_lives_on(self) -> None:
        one = Applied(Outcome("request", b"1", 100))
        one.apply(Outcome("request", b"2", 300), ticks=150)
        assert one.state.outcomes["request"].result == b"2"
        one.apply(ticks=300)
        assert not one.state.outcomes

    def test_old_versions_are_kept_while_a_snapshot_may_ask(self) -> None:
        one = Applied(Put(1, b"a", b"1"), Put(1, b"b", b"1"))
        collection = one.state.collections[1]
        first = one.state.open_snapshot()
        one.apply(Put(1, b"a", b"2"), Delete(1, b"b"), Put(1, b"c", b"2"))
        second = one.state.open_snapshot()
        one.apply(Clear(1), Put(1, b"d", b"3"))

        assert collection.scan(first, b"", None, limit=9)[0] == [(b"a", b"1"), (b"b", b"1")]
        assert collection.scan(second, b"", None, limit=9)[0] == [(b"a", b"2"), (b"c", b"2")]
        assert [collection.count(at) for at in (first, second, one.state.sequence)] == [2, 2, 1]
        one.state.close_snapshot(first)
        assert collection.scan(second, b"", None, limit=9)[0] == [(b"a", b"2"), (b"c", b"2")]
        one.state.close_snapshot(second)
        assert collection.generations == []
        assert not one.state._replaced

    def test_the_same_snapshot_may_be_open_twice(self) -> None:
        one = Applied(Put(1, b"a", b"1"))
        collection = one.state.collections[1]
        first, again = one.state.open_snapshot(), one.state.open_snapshot()
        assert first == again
        one.apply(Put(1, b"a", b"2"))
        one.state.close_snapshot(first)
        assert collection.find(b"a", again) == b"1"
        one.state.close_snapshot(again)
        assert collection.rows.history == {}


class Compared(int):
    """A sequence that counts what it is compared with."""

    comparisons = 0

    def __add__(self, other: int) -> "Compared":
        return Compared(int(self) + other)

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Compared.comparisons += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Compared.comparisons += 1
        return int(self) > other

    __hash__ = int.__hash__


def kept(state: State) -> int:
    """Return how many entries wait to be discarded, with the rows of a clear that is the next."""
    waiting = len(state._replaced)
    if waiting and isinstance(cleared := state._replaced.first().kept, Collection):
        waiting += len(cleared.generations[0][1].values)
    return waiting


async def discarded_a_turn(
    state: State, beside: Callable[[], object] = lambda: None, *, turns_max: int = 100_000
) -> list[int]:
    """Let the loop turn until nothing is kept; return how much each turn discarded."""
    discarded = []
    left = kept(state)
    while left:
        await asyncio.sleep(0)
        beside()
        before, left = left, kept(state)
        discarded.append(before - left)
        assert len(discarded) < turns_max
    return discarded


RECORDS = repeat(100_000, 1_000_000, 1_000_000)
HOT = bytes(8)


class TestManyRecordsBesideASnapshot:
    """What a snapshot costs when it is closed does not depend on what happened beside it."""

    def many(self, write: str) -> tuple[State, int]:
        """Return a state with an open snapshot, and its sequence, beside many records."""
        one = Applied()
        state, collection = one.state, one.state.collections[1]
        keys = [number.to_bytes(8) for number in range(RECORDS)] if write == "many keys" else [HOT]
        collection.rows = Rows(Blocks((key, b"0") for key in keys))
        opened = state.open_snapshot()
        before = 0
        for number in range(RECORDS if write != "one key, many snapshots" else RECORDS // 10):
            state.sequence += 1  # as apply() does it, without the cost of a record
            state._put(collection, keys[number % len(keys)], b"1", state.sequence)
            if write == "one key, many snapshots":
                between = state.open_snapshot()
                if before:
                    state.close_snapshot(before)
                before = between
        if before:
            state.close_snapshot(before)
        return state, opened

    @pytest.mark.repeated
    @pytest.mark.parametrize("write", ["one key", "many keys", "one key, many snapshots"])
    async def test_closing_it_discards_a_bounded_number_of_records_a_turn(self, write: str) -> None:
        state, opened = self.many(write)
        collection = state.collections[1]
        Compared.comparisons = 0
        newer = state.open_snapshot()
        for sequence, value in ((opened, b"0"), (newer, b"1")):
            assert collection.find(HOT, Compared(sequence)) == value
            assert collection.count(Compared(sequence)) == len(collection.rows.values)
        state.close_snapshot(newer)
        assert Compared.comparisons < 400

        state.call_soon = asyncio.get_running_loop().call_soon
        before = kept(state)
        state.close_snapshot(opened)
        discarded = [before - kept(state), *await discarded_a_turn(state)]

        assert max(discarded) <= PRUNE_AT_ONCE
        assert sum(discarded) == before
        assert before == {"one key": 2, "many keys": RECORDS + 1}.get(write, RECORDS // 5)
        rows = collection.rows
        assert (rows.history, rows.counts) == ({}, [])
        assert not rows.departed

    async def test_a_turn_has_one_bound_for_all_who_close_and_write_in_it(self) -> None:
        one = Applied()
        state = one.state
        opened = state.open_snapshot()
        for number in range(20 * PRUNE_AT_ONCE):
            one.apply(Put(1, number.to_bytes(4), b"1"))
        state.call_soon = asyncio.get_running_loop().call_soon

        def beside() -> None:
            for _ in range(10):
                state.close_snapshot(state.open_snapshot())
                state.prune()
                one.apply(epoch=1)

        before = kept(state)
        state.close_snapshot(opened)
        beside()
        discarded = [before - kept(state), *await discarded_a_turn(state, beside)]

        assert max(discarded) <= PRUNE_AT_ONCE

    @pytest.mark.parametrize("is_snapshot_open", [False, True])
    @pytest.mark.parametrize("operation", [Clear(1), Drop(1)])
    async def test_the_rows_of_a_clear_are_discarded_in_turns(
        self, operation: Operation, is_snapshot_open: bool
    ) -> None:
        count = 20 * PRUNE_AT_ONCE
        one = Applied(*(Put(1, number.to_bytes(4), b"1") for number in range(count)))
        state, collection = one.state, one.state.collections[1]
        state.call_soon = asyncio.get_running_loop().call_soon
        opened = state.open_snapshot()
        if not is_snapshot_open:
            state.close_snapshot(opened)
        one.apply(operation)
        if is_snapshot_open:
            assert len(collection.scan(opened, b"", None, limit=count)[0]) == count
            assert collection.count(opened) == count
            state.close_snapshot(opened)
        discarded = await discarded_a_turn(state)

        assert max(discarded) <= PRUNE_AT_ONCE
        assert sum(discarded) > count - PRUNE_AT_ONCE
        assert collection.generations == []

    def test_a_key_that_is_written_often_costs_one_version_for_each_snapshot(self) -> None:
        one = Applied(Put(1, b"a", b"0"))
        rows = one.state.collections[1].rows
        opened = []
        for number in range(4):
            opened.append(one.state.open_snapshot())
            for _ in range(10):
                one.apply(Put(1, b"a", b"%d" % number), Put(1, b"b", b"1"), Delete(1, b"b"))

        assert (len(rows.history[b"a"]), len(rows.history[b"b"]), len(rows.counts)) == (4, 4, 4)
        assert [rows.find(b"a", at) for at in opened] == [b"0", b"0", b"1", b"2"]
        assert [rows.count(at) for at in opened] == [1] * 4

    async def test_what_was_committed_beside_a_snapshot_is_discarded_in_turns(
        self, state: StateManager
    ) -> None:
        numbers = await state.dictionary("numbers", key=int, value=int)
        state._housekeeping.task.cancel()  # type: ignore[union-attr]
        async with state.snapshot() as snapshot:
            for first in range(0, 3_000, 100):
                async with state.transaction() as tx:
                    for number in range(first, first + 100):
                        await numbers.set(tx, number, 1)
            assert await numbers.count(snapshot) == 0
            before = kept(state.state)
        discarded = [before - kept(state.state), *await discarded_a_turn(state.state)]

        assert before > 3_000
        assert max(discarded) <= PRUNE_AT_ONCE

    async def test_a_full_copy_is_pruned_in_turns(self, state: StateManager) -> None:
        copy = Applied().state
        state.replace(copy)
        opened = copy.open_snapshot()
        collection = copy.collections[1]
        for number in range(3_000):
            copy.sequence += 1
            copy._put(collection, number.to_bytes(4), b"1", copy.sequence)
        copy.close_snapshot(opened)

        assert kept(copy)
        assert max(await discarded_a_turn(copy)) <= PRUNE_AT_ONCE

    async def test_a_queue_does_not_walk_over_values_that_left_beside_a_snapshot(
        self, state: StateManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = await state.queue("queue", value=int)
        looked, between = 0, Rows.between

        def counted(*arguments: Any, **options: Any) -> list[bytes]:
            nonlocal looked
            looked += 1
            return between(*arguments, **options)

        async with state.snapshot():
            async with state.transaction() as tx:
                for number in range(1_000):
                    await queue.enqueue(tx, number)
            async with state.transaction() as tx:
                await queue.dequeue_many(tx, 999)
            # As on a replica that opens the queue, or becomes primary, after that.
            opened: ReliableQueue[int] = ReliableQueue(state, queue.collection, values=queue.codec)
            monkeypatch.setattr(Rows, "between", counted)
            for expected in (999, None):
                for one in (opened, queue):
                    async with state.transaction() as tx:
                        assert await one.peek(tx) == expected
                async with state.transaction() as tx:
                    assert await queue.dequeue(tx) == expected
                opened = ReliableQueue(state, queue.collection, values=queue.codec)

        assert looked <= 6


async def test_a_handle_of_one_life_is_of_no_use_in_the_next() -> None:
    machine = Machine()
    async with machine.open() as state:
        old: ReliableDictionary[str, int] = await state.dictionary("n", key=str, value=int)
        async with state.transaction() as tx:
            await old.set(tx, "a", 1)
    async with machine.open() as state:
        new = await state.dictionary("n", key=str, value=int)
        async with state.transaction() as tx:
            with pytest.raises(PartitaError):
                await old.set(tx, "a", 2)
            with pytest.raises(KeyNotFoundError):
                await new.get(tx, "b")
        async with state.snapshot() as snapshot:
            assert await new.get(snapshot, "a") == 1


class TestOpeningAtOnce:
    async def test_tasks_that_open_one_new_name_share_one_collection(
        self, state: StateManager
    ) -> None:
        before = state.sequence
        opened = await asyncio.gather(
            *(state.dictionary("users", key=str, value=User) for _ in range(5))
        )

        assert all(one is opened[0] for one in opened)
        assert state.sequence == before + 1
        assert [one.name for one in state.collections()] == ["users"]

    async def test_of_two_kinds_under_one_new_name_one_is_refused(
        self, state: StateManager
    ) -> None:
        ends = await asyncio.gather(
            state.dictionary("users", key=str, value=User),
            state.queue("users", value=User),
            return_exceptions=True,
        )

        assert [type(end) for end in ends] == [ReliableDictionary, CollectionMismatchError]
        assert [one.kind for one in state.collections()] == ["dictionary"]

    async def test_names_differ_by_case(self, state: StateManager) -> None:
        lower = await state.dictionary("users", key=str, value=User)
        upper = await state.dictionary("Users", key=str, value=User)
        await lower.auto.set("ada", User("ada@x"))

        assert await upper.auto.count() == 0
        assert [one.name for one in state.collections()] == ["Users", "users"]

    async def test_a_collection_of_a_dropped_name_begins_empty(self, state: StateManager) -> None:
        users = await state.dictionary("users", key=str, value=User)
        await users.auto.set("ada", User("ada@x"))
        await state.drop("users")
        again = await state.dictionary("users", key=str, value=User)

        assert await again.auto.count() == 0
        assert await again.auto.get("ada", None) is None

    async def test_a_drop_is_kept_across_a_restart(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            users = await state.dictionary("users", key=str, value=User)
            await users.auto.set("ada", User("ada@x"))
            await state.drop("users")
        async with machine.open() as state:
            assert state.collections() == []
