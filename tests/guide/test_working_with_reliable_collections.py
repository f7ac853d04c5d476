"""Claims of the guide's article "Working with Reliable Collections", in its order.

Where the article's platform differs from what Partita does on purpose, the test says so.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import partita
from partita.errors import (
    KeyExistsError,
    LockTimeoutError,
    MutableTypeError,
    MutatedValueError,
    SchemaError,
)
from partita.reliable import LockMode, ReliableDictionary, Schema, Transaction, downcast, upcast
from partita.reliable.manager.state_manager import StateManager


class ItemId(msgspec.Struct, frozen=True):
    seller: str
    item_name: str


class UserInfo(msgspec.Struct, frozen=True):
    """The article's immutable type, with its way to add to a collection."""

    email: str
    items_bidding: tuple[ItemId, ...] = ()

    def add_item_bidding(self, item: ItemId) -> "UserInfo":
        return UserInfo(self.email, (*self.items_bidding, item))


class User(msgspec.Struct):
    """The article's careless type."""

    name: str
    last_login: int = 0


Users = ReliableDictionary[str, UserInfo]
Careless = ReliableDictionary[str, User]

ADA = UserInfo("ada@example.org")
LAMP = ItemId("bob", "lamp")


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[StateManager]:
    async with partita.open_state(tmp_path) as opened:
        yield opened


@pytest.fixture
async def users(state: StateManager) -> Users:
    return await state.dictionary("users", key=str, value=UserInfo)


@pytest.fixture
async def careless(state: StateManager) -> Careless:
    return await state.dictionary("careless", key=str, value=User, mutable="copy")


class TestWorkingWithReliableCollections:
    async def test_a_transaction_spans_dictionaries_and_queues_of_one_partition(
        self, state: StateManager, users: Users
    ) -> None:
        outbox = await state.queue("outbox", value=ItemId)
        async with state.transaction() as tx:
            await users.add(tx, "ada", ADA)
            await outbox.enqueue(tx, LAMP)

        async with state.snapshot() as snapshot:
            assert await users.get(snapshot, "ada") == ADA
            assert await outbox.peek(snapshot) == LAMP

    async def test_add_takes_the_write_lock_of_the_key(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as one, state.transaction() as two:
            await users.add(one, "ada", ADA)
            with pytest.raises(TimeoutError):
                await users.get(two, "ada", timeout=0)
            await users.add(two, "eve", ADA, timeout=0)  # another key, another lock

    async def test_a_read_takes_a_read_lock_which_readers_share_and_writers_do_not(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as one, state.transaction() as two:
            await users.get(one, "ada", None)
            await users.get(two, "ada", None, timeout=0)
            async with state.transaction() as three:
                with pytest.raises(LockTimeoutError):
                    await users.set(three, "ada", ADA, timeout=0)

    async def test_of_two_who_add_one_key_one_goes_on_and_the_other_waits(
        self, state: StateManager, users: Users
    ) -> None:
        async def add() -> str:
            async with state.transaction() as tx:
                try:
                    await users.add(tx, "ada", ADA)
                except KeyExistsError:
                    return "exists"
                await asyncio.sleep(0)
                return "added"

        assert sorted(await asyncio.gather(add(), add(), add())) == ["added", "exists", "exists"]

    async def test_a_lock_is_waited_for_four_seconds_unless_a_time_out_is_given(
        self, state: StateManager, users: Users
    ) -> None:
        assert partita.reliable.values.limits.LOCK_TIMEOUT_SECONDS == 4.0
        async with state.transaction() as one, state.transaction() as two:
            await users.add(one, "ada", ADA)
            with pytest.raises(LockTimeoutError) as refused:
                await users.add(two, "ada", ADA, timeout=0.01)

        assert refused.value.holder == one.id
        assert isinstance(refused.value, TimeoutError)

    async def test_the_whole_operation_is_tried_again_after_a_time_out(
        self, state: StateManager, users: Users
    ) -> None:
        """The article's `goto retry`, with a delay that grows, is state.run()."""
        holder = state.transaction()
        await users.set(holder, "ada", ADA)
        calls = 0

        async def bid(tx: Transaction) -> int:
            nonlocal calls
            calls += 1
            if calls == 3:
                await holder.abort()
            user = await users.get(tx, "ada", ADA, lock=LockMode.UPDATE, timeout=0.001)
            await users.set(tx, "ada", user.add_item_bidding(LAMP))
            return len(user.items_bidding) + 1

        done = await state.run(bid, first_delay=0.001)

        assert (done.value, calls) == (1, 3)

    async def test_a_transaction_reads_its_own_writes(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.add(tx, "ada", ADA)
            assert await users.get(tx, "ada") == ADA

    async def test_a_write_is_not_part_of_the_dictionary_before_the_commit(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.add(tx, "ada", ADA)
            async with state.snapshot() as snapshot:
                assert not await users.contains(snapshot, "ada")
                assert await users.count(snapshot) == 0

    async def test_the_commit_makes_it_lasting_and_releases_the_locks(self, tmp_path: Path) -> None:
        async with partita.open_state(tmp_path) as state:
            users = await state.dictionary("users", key=str, value=UserInfo)
            async with state.transaction() as tx:
                await users.add(tx, "ada", ADA)
                await tx.commit()
                async with state.transaction() as other:
                    assert await users.get(other, "ada", timeout=0) == ADA
        async with partita.open_state(tmp_path) as state:
            users = await state.dictionary("users", key=str, value=UserInfo)
            async with state.snapshot() as snapshot:
                assert await users.get(snapshot, "ada") == ADA

    async def test_a_transaction_that_is_left_by_an_exception_aborts_and_releases_its_locks(
        self, state: StateManager, users: Users
    ) -> None:
        before = state.sequence
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                await users.add(tx, "ada", ADA)
                raise RuntimeError

        assert state.sequence == before  # an abort needs no record here: nothing was sent
        async with state.transaction() as tx:
            assert not await users.contains(tx, "ada", timeout=0)

    async def test_clear_can_be_undone_here_where_the_platform_cannot(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.add(tx, "ada", ADA)
        tx = state.transaction()
        await users.clear(tx)
        await tx.abort()

        async with state.snapshot() as snapshot:
            assert await users.count(snapshot) == 1


class TestCommonPitfallsAndHowToAvoidThem:
    async def test_changing_a_value_after_adding_it_is_an_error_not_a_corruption(
        self, state: StateManager, careless: Careless
    ) -> None:
        user = User("ada")
        with pytest.raises(MutatedValueError) as refused:  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                await careless.add(tx, "ada", user)
                user.last_login = 1
                await tx.commit()

        assert (refused.value.key, refused.value.path) == ("ada", "last_login")
        async with state.snapshot() as snapshot:
            assert await careless.count(snapshot) == 0

    async def test_changing_it_before_adding_it_is_right(
        self, state: StateManager, careless: Careless
    ) -> None:
        user = User("ada")
        async with state.transaction() as tx:
            user.last_login = 1
            await careless.add(tx, "ada", user)
            await tx.commit()

        async with state.snapshot() as snapshot:
            assert (await careless.get(snapshot, "ada")).last_login == 1

    async def test_changing_a_value_that_was_read_is_an_error_not_a_corruption(
        self, state: StateManager, careless: Careless
    ) -> None:
        async with state.transaction() as tx:
            await careless.add(tx, "ada", User("ada"))
        with pytest.raises(MutatedValueError):  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                user = await careless.get(tx, "ada")
                user.last_login = 1
                await tx.commit()

        async with state.transaction() as tx:
            assert (await careless.get(tx, "ada")).last_login == 0

    async def test_the_right_way_is_to_change_a_copy_and_set_it(
        self, state: StateManager, careless: Careless
    ) -> None:
        async with state.transaction() as tx:
            await careless.add(tx, "ada", User("ada"))
        async with state.transaction() as tx:
            current = await careless.get(tx, "ada")
            await careless.set(tx, "ada", msgspec.structs.replace(current, last_login=1))

        async with state.snapshot() as snapshot:
            assert (await careless.get(snapshot, "ada")).last_login == 1


class TestDefineImmutableTypesToPreventProgrammerError:
    async def test_a_type_that_can_be_changed_is_refused_when_the_collection_is_opened(
        self, state: StateManager
    ) -> None:
        """What the article's compiler cannot do: the field is named."""

        class Bids(msgspec.Struct, frozen=True):
            items: list[str]

        for careless in (User, Bids):
            with pytest.raises(MutableTypeError) as refused:
                await state.dictionary("refused", key=str, value=careless)
            assert "copy" in refused.value.hint or "tuple" in refused.value.hint

    async def test_the_articles_immutable_type_is_taken_and_added_to_by_a_new_object(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.add(tx, "ada", ADA)
        async with state.transaction() as tx:
            user = await users.get(tx, "ada", lock=LockMode.UPDATE)
            await users.set(tx, "ada", user.add_item_bidding(LAMP))

        async with state.snapshot() as snapshot:
            assert await users.get(snapshot, "ada") == UserInfo("ada@example.org", (LAMP,))

    async def test_an_immutable_value_cannot_be_changed(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.add(tx, "ada", ADA)
            user = await users.get(tx, "ada")
            with pytest.raises(AttributeError):
                user.email = "other"  # type: ignore[misc]


class UserV2(msgspec.Struct, frozen=True):
    """The next version: a field more, with a default."""

    email: str
    items_bidding: tuple[ItemId, ...] = ()
    country: str = "?"


class UserV3(msgspec.Struct, frozen=True):
    """A version whose change needs a step."""

    address: str
    items_bidding: tuple[ItemId, ...] = ()
    country: str = "?"


@upcast(from_=2, to=3)
def rename_email(fields: dict[str, object]) -> dict[str, object]:
    fields["address"] = fields.pop("email")
    return fields


@downcast(from_=3, to=2)
def rename_address(fields: dict[str, object]) -> dict[str, object]:
    fields["email"] = fields.pop("address")
    return fields


class TestSchemaVersioning:
    async def test_old_values_are_read_for_ever(self, tmp_path: Path) -> None:
        async with partita.open_state(tmp_path) as state:
            users = await state.dictionary("users", key=str, value=UserInfo)
            async with state.transaction() as tx:
                await users.add(tx, "ada", ADA)
        async with partita.open_state(tmp_path) as state:
            newest = await state.dictionary(
                "users", key=str, value=UserV3, version=3, upcasts=[rename_email]
            )
            async with state.snapshot() as snapshot:
                assert await newest.get(snapshot, "ada") == UserV3("ada@example.org")

    async def test_code_of_an_older_version_keeps_what_it_does_not_know(
        self, tmp_path: Path
    ) -> None:
        async with partita.open_state(tmp_path) as state:
            newer = await state.dictionary("users", key=str, value=UserV2)
            async with state.transaction() as tx:
                await newer.add(tx, "ada", UserV2("ada@example.org", (), "it"))
        async with partita.open_state(tmp_path) as state:
            older = await state.dictionary("users", key=str, value=UserInfo)
            async with state.transaction() as tx:
                user = await older.get(tx, "ada")
                await older.set(tx, "ada", user.add_item_bidding(LAMP))
        async with partita.open_state(tmp_path) as state:
            newer = await state.dictionary("users", key=str, value=UserV2)
            async with state.snapshot() as snapshot:
                found = await newer.get(snapshot, "ada")
        assert found == UserV2("ada@example.org", (LAMP,), "it")

    async def test_a_key_is_found_again_by_its_value_in_every_process(self, tmp_path: Path) -> None:
        number = -1
        for _ in range(2):
            async with partita.open_state(tmp_path) as state:
                bids = await state.dictionary("bids", key=ItemId, value=int)
                async with state.transaction() as tx:
                    number = await bids.get(tx, ItemId("bob", "lamp"), 0)
                    await bids.set(tx, ItemId("bob", "lamp"), number + 1)
        assert number == 1

    async def test_two_phases_first_everyone_reads_then_everyone_writes(
        self, tmp_path: Path
    ) -> None:
        steps = [rename_email, rename_address]
        async with partita.open_state(tmp_path) as state:
            await state.dictionary("users", key=str, value=UserV2, version=2)
        async with partita.open_state(tmp_path) as state:  # phase one: reads 3, writes 2
            users = await state.dictionary(
                "users", key=str, value=UserV3, version=Schema(3, write=2), upcasts=steps
            )
            async with state.transaction() as tx:
                await users.add(tx, "ada", UserV3("ada@example.org"))
        async with partita.open_state(tmp_path) as state:  # the older code still reads it
            old = await state.dictionary("users", key=str, value=UserV2, version=2)
            async with state.snapshot() as snapshot:
                assert await old.get(snapshot, "ada") == UserV2("ada@example.org")
        async with partita.open_state(tmp_path) as state:  # phase two: the switch is a record
            users = await state.dictionary(
                "users", key=str, value=UserV3, version=Schema(3, write=2), upcasts=steps
            )
            await state.promote_schema("users", 3)
            async with state.transaction() as tx:
                await users.add(tx, "eve", UserV3("eve@example.org"))
        async with partita.open_state(tmp_path) as state:
            with pytest.raises(SchemaError):
                await state.dictionary("users", key=str, value=UserV2, version=2)
