import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import pytest

from partita.errors import (
    KeyExistsError,
    KeyNotFoundError,
    LockTimeoutError,
    TransactionUseError,
    UsageError,
)
from partita.reliable import MISSING, Dictionary, LockMode, ReliableDictionary
from partita.reliable.collections.enumeration import SCAN_ROWS
from partita.reliable.manager.state_manager import StateManager
from support.states import User, a_state, key_locks_of, locks_of, settle

Users = ReliableDictionary[str, User]
K = TypeVar("K")
V = TypeVar("V")

ADA, BOB, EVE = User("ada@x"), User("bob@x"), User("eve@x")


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    async with a_state() as opened:
        yield opened


@pytest.fixture
async def users(state: StateManager) -> Users:
    """Holds ada and bob."""
    users = await state.dictionary("users", key=str, value=User)
    async with state.transaction() as tx:
        await users.set(tx, "ada", ADA)
        await users.set(tx, "bob", BOB)
    return users


async def content(state: StateManager, users: ReliableDictionary[K, V]) -> dict[K, V]:
    async with state.snapshot() as snapshot:
        return {key: value async for key, value in users.items(snapshot)}


class TestGet:
    async def test_a_present_key_gives_its_value(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            assert await users.get(tx, "ada") == ADA

    async def test_an_absent_key_raises_a_key_error_that_names_it(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            with pytest.raises(KeyNotFoundError) as refused:
                await users.get(tx, "eve")

        assert refused.value.facts == {"collection": "users", "key": "eve"}
        assert isinstance(refused.value, KeyError)

    async def test_an_absent_key_gives_the_default(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            assert await users.get(tx, "eve", None) is None
            assert await users.get(tx, "eve", default=3) == 3

    async def test_missing_tells_an_absent_key_from_a_stored_none(
        self, state: StateManager
    ) -> None:
        nullable: Any = str | None
        notes = await state.dictionary("notes", key=str, value=nullable)
        async with state.transaction() as tx:
            await notes.set(tx, "empty", None)
            assert await notes.get(tx, "empty", MISSING) is None
            assert await notes.get(tx, "absent", MISSING) is MISSING
            assert await notes.get(tx, "absent", default=MISSING) is MISSING
        async with state.snapshot() as snapshot:
            assert await notes.get(snapshot, "empty", MISSING) is None
            assert await notes.get(snapshot, "absent", MISSING) is MISSING
            with pytest.raises(KeyNotFoundError):
                await notes.get(snapshot, "absent")
        async with state.transaction() as tx:
            assert await notes.pop(tx, "empty", MISSING) is None
            assert await notes.pop(tx, "empty", MISSING) is MISSING
            with pytest.raises(KeyNotFoundError):
                await notes.pop(tx, "empty")

    async def test_own_writes_and_deletes_are_read(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "ada", EVE)
            await users.delete(tx, "bob")

            assert await users.get(tx, "ada") == EVE
            assert await users.get(tx, "bob", None) is None

    async def test_what_another_has_written_is_waited_for(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as writer:
            await users.set(writer, "ada", EVE)
            async with state.transaction() as reader:
                with pytest.raises(LockTimeoutError):
                    await users.get(reader, "ada", timeout=0)

    async def test_a_shared_lock_is_held_to_the_end(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.get(tx, "ada")
            await users.get(tx, "eve", None)

            assert key_locks_of(tx) == [LockMode.SHARED, LockMode.SHARED]
        assert state._core.locks.is_empty()

    @pytest.mark.parametrize("mode", list(LockMode))
    async def test_the_lock_that_was_asked_for_is_taken(
        self, state: StateManager, users: Users, mode: LockMode
    ) -> None:
        async with state.transaction() as tx:
            await users.get(tx, "ada", lock=mode)

            assert key_locks_of(tx) == [mode]

    async def test_a_read_is_repeatable(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as reader:
            first = await users.get(reader, "ada")
            async with state.transaction() as writer:
                with pytest.raises(LockTimeoutError):
                    await users.set(writer, "ada", EVE, timeout=0)

            assert await users.get(reader, "ada") == first

    async def test_an_absent_key_stays_absent_for_its_reader(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as reader:
            assert not await users.contains(reader, "eve")
            async with state.transaction() as writer:
                with pytest.raises(LockTimeoutError):
                    await users.add(writer, "eve", EVE, timeout=0)

    async def test_a_snapshot_is_read_without_locks(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as writer, state.snapshot() as snapshot:
            await users.set(writer, "ada", EVE)

            assert await users.get(snapshot, "ada") == ADA
            assert await users.get(snapshot, "eve", None) is None
            with pytest.raises(KeyNotFoundError):
                await users.get(snapshot, "eve")


class TestGetManyAndContains:
    async def test_those_that_exist_are_given(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "eve", EVE)
            found = await users.get_many(tx, ["eve", "nobody", "ada", "ada"])

        assert found == {"ada": ADA, "eve": EVE}

    async def test_locks_are_taken_in_key_order(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as one, state.transaction() as two:
            await users.set(one, "bob", EVE)
            with pytest.raises(LockTimeoutError) as refused:
                await users.get_many(two, ["zoe", "bob", "ada"], timeout=0)

            assert refused.value.key == "bob"
            assert len(key_locks_of(two)) == 1  # ada's, not zoe's

    async def test_a_snapshot_gives_many(self, state: StateManager, users: Users) -> None:
        async with state.snapshot() as snapshot:
            assert await users.get_many(snapshot, ["bob", "eve"]) == {"bob": BOB}

    async def test_contains_takes_the_lock_of_get(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            assert await users.contains(tx, "ada")
            assert not await users.contains(tx, "eve", lock=LockMode.UPDATE)

            assert sorted(key_locks_of(tx)) == [LockMode.SHARED, LockMode.UPDATE]

    async def test_contains_sees_own_writes(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "eve", EVE)
            await users.delete(tx, "ada")

            assert await users.contains(tx, "eve")
            assert not await users.contains(tx, "ada")
        async with state.snapshot() as snapshot:
            assert await users.contains(snapshot, "eve")
            assert not await users.contains(snapshot, "ada")


class TestSetAndAdd:
    async def test_set_writes_new_and_old_keys(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "ada", EVE)
            await users.set(tx, "eve", EVE)

        assert await content(state, users) == {"ada": EVE, "bob": BOB, "eve": EVE}

    async def test_every_write_takes_the_exclusive_lock(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "a", ADA)
            await users.add(tx, "b", ADA)
            await users.try_add(tx, "ada", ADA)
            await users.upsert(tx, "c", ADA, lambda user: user)
            await users.get_or_add(tx, "d", ADA)
            await users.compare_and_set(tx, "e", ADA, expected=BOB)
            await users.pop(tx, "f", None)
            await users.delete(tx, "g")

            assert key_locks_of(tx) == [LockMode.EXCLUSIVE] * 8

    async def test_others_see_a_write_after_the_commit(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "eve", EVE)
            assert "eve" not in await content(state, users)

        assert (await content(state, users))["eve"] == EVE

    async def test_add_refuses_a_key_that_exists(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            with pytest.raises(KeyExistsError) as refused:
                await users.add(tx, "ada", EVE)

            assert "set()" in refused.value.hint
        assert (await content(state, users))["ada"] == ADA

    async def test_try_add_says_whether_it_wrote(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            assert await users.try_add(tx, "eve", EVE)
            assert not await users.try_add(tx, "eve", ADA)
            await users.delete(tx, "ada")
            assert await users.try_add(tx, "ada", EVE)

        assert await content(state, users) == {"ada": EVE, "bob": BOB, "eve": EVE}

    async def test_of_two_who_add_one_key_the_second_waits_and_is_told(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as first:
            await users.add(first, "eve", EVE)

            async def second() -> bool:
                async with state.transaction() as tx:
                    return await users.try_add(tx, "eve", ADA)

            task = asyncio.create_task(second())
            await asyncio.sleep(0)
            assert not task.done()

        assert await task is False

    async def test_the_second_may_add_after_the_first_aborted(
        self, state: StateManager, users: Users
    ) -> None:
        first = state.transaction()
        await users.add(first, "eve", EVE)

        async def second() -> bool:
            async with state.transaction() as tx:
                return await users.try_add(tx, "eve", ADA)

        task = asyncio.create_task(second())
        await asyncio.sleep(0)
        await first.abort()

        assert await task is True


class TestUpsertAndGetOrAdd:
    async def test_upsert_writes_the_default_or_the_update(
        self, state: StateManager, users: Users
    ) -> None:
        def older(user: User) -> User:
            return User(user.email, user.age + 1)

        async with state.transaction() as tx:
            assert await users.upsert(tx, "eve", EVE, older) == EVE
            assert await users.upsert(tx, "eve", EVE, older) == User("eve@x", 1)
            assert await users.upsert(tx, "ada", EVE, older) == User("ada@x", 1)

        assert (await content(state, users))["eve"].age == 1

    async def test_upsert_refuses_a_coroutine(self, state: StateManager, users: Users) -> None:
        async def later(user: User) -> User:
            return user

        update: Any = later
        async with state.transaction() as tx:
            with pytest.raises(UsageError) as refused:
                await users.upsert(tx, "ada", EVE, update)

        assert refused.value.code == "UpdateSuspends"
        assert (await content(state, users))["ada"] == ADA

    async def test_an_update_that_raises_writes_nothing(
        self, state: StateManager, users: Users
    ) -> None:
        def fail(user: User) -> User:
            raise ZeroDivisionError

        async with state.transaction() as tx:
            with pytest.raises(ZeroDivisionError):
                await users.upsert(tx, "ada", EVE, fail)

        assert (await content(state, users))["ada"] == ADA

    async def test_get_or_add_reads_what_is_there_under_a_shared_lock(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            assert await users.get_or_add(tx, "ada", EVE) == ADA

            assert key_locks_of(tx) == [LockMode.SHARED]

    async def test_get_or_add_writes_what_is_not_there(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            assert await users.get_or_add(tx, "eve", EVE) == EVE
            assert await users.get_or_add(tx, "eve", ADA) == EVE
            assert await users.get_or_add(tx, "zoe", lambda: ADA) == ADA

        assert await content(state, users) == {"ada": ADA, "bob": BOB, "eve": EVE, "zoe": ADA}

    async def test_two_who_add_the_same_key_agree(self, state: StateManager, users: Users) -> None:
        async def ask(mine: User) -> User:
            async with state.transaction() as tx:
                await asyncio.sleep(0)
                return await users.get_or_add(tx, "eve", mine)

        found = await asyncio.gather(*(ask(User(f"{n}@x")) for n in range(5)))

        assert len(set(found)) == 1
        assert (await content(state, users))["eve"] == found[0]


class TestCompareAndSet:
    @pytest.mark.parametrize(
        ("key", "expected", "is_written"),
        [
            ("ada", ADA, True),
            ("ada", BOB, False),
            ("ada", MISSING, False),
            ("eve", MISSING, True),
            ("eve", ADA, False),
        ],
    )
    async def test_it_writes_what_was_expected(
        self, state: StateManager, users: Users, key: str, expected: Any, is_written: bool
    ) -> None:
        before = await content(state, users)
        async with state.transaction() as tx:
            assert await users.compare_and_set(tx, key, EVE, expected=expected) is is_written

        assert await content(state, users) == (before | {key: EVE} if is_written else before)

    async def test_own_writes_are_compared(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "ada", BOB)
            await users.delete(tx, "bob")

            assert await users.compare_and_set(tx, "ada", EVE, expected=BOB)
            assert await users.compare_and_set(tx, "bob", EVE, expected=MISSING)
            assert not await users.compare_and_set(tx, "ada", ADA, expected=BOB)


class TestRemoving:
    async def test_pop_gives_and_removes(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "eve", EVE)

            assert await users.pop(tx, "ada") == ADA
            assert await users.pop(tx, "eve") == EVE
            assert await users.pop(tx, "ada", None) is None
            with pytest.raises(KeyNotFoundError):
                await users.pop(tx, "ada")

        assert await content(state, users) == {"bob": BOB}

    async def test_delete_says_whether_there_was_something(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "eve", EVE)

            assert await users.delete(tx, "ada")
            assert await users.delete(tx, "eve")
            assert not await users.delete(tx, "ada")

        assert await content(state, users) == {"bob": BOB}

    async def test_a_key_may_come_back_in_the_transaction_that_removed_it(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.delete(tx, "ada")
            await users.add(tx, "ada", EVE)

        assert await content(state, users) == {"ada": EVE, "bob": BOB}

    async def test_clear_removes_all_and_what_follows_stays(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "zoe", EVE)
            await users.clear(tx)
            assert await users.get(tx, "ada", None) is None
            assert await users.count(tx) == 0
            await users.set(tx, "eve", EVE)
            assert await users.count(tx) == 1
            assert [key async for key in users.keys(tx)] == ["eve"]

        assert await content(state, users) == {"eve": EVE}

    async def test_an_aborted_clear_leaves_everything(
        self, state: StateManager, users: Users
    ) -> None:
        tx = state.transaction()
        await users.clear(tx)
        await tx.abort()

        assert await content(state, users) == {"ada": ADA, "bob": BOB}

    async def test_clear_in_its_own_transaction(self, state: StateManager, users: Users) -> None:
        await users.clear()

        assert await content(state, users) == {}

    async def test_clear_waits_for_every_user_of_the_dictionary(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as reader:
            await users.get(reader, "nobody", None)
            with pytest.raises(LockTimeoutError) as refused:
                await users.clear(timeout=0)

            assert (refused.value.holder, refused.value.key) == (reader.id, None)

    async def test_nobody_enters_a_dictionary_that_is_being_cleared(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as clearer:
            await users.clear(clearer)
            async with state.transaction() as reader:
                with pytest.raises(LockTimeoutError):
                    await users.get(reader, "ada", timeout=0)

            async with state.snapshot() as snapshot:
                assert await users.get(snapshot, "ada") == ADA


class TestCount:
    async def test_own_writes_count(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            assert await users.count(tx) == 2
            await users.set(tx, "eve", EVE)
            await users.set(tx, "ada", EVE)
            assert await users.count(tx) == 3
            await users.delete(tx, "ada")
            await users.delete(tx, "eve")
            assert await users.count(tx) == 1

    async def test_a_count_is_as_of_the_snapshot(self, state: StateManager, users: Users) -> None:
        async with state.snapshot() as before:
            async with state.transaction() as tx:
                await users.set(tx, "eve", EVE)
            async with state.snapshot() as between:
                async with state.transaction() as tx:
                    await users.delete(tx, "ada")
                    await users.delete(tx, "bob")
                async with state.snapshot() as after:
                    counts = [await users.count(view) for view in (before, between, after)]

        assert counts == [2, 3, 1]

    async def test_counts_survive_clears(self, state: StateManager, users: Users) -> None:
        async with state.snapshot() as before:
            await users.clear()
            async with state.transaction() as tx:
                await users.set(tx, "eve", EVE)

            assert await users.count(before) == 2
            assert [key async for key in users.keys(before)] == ["ada", "bob"]
        async with state.snapshot() as after:
            assert await users.count(after) == 1

    async def test_counting_locks_no_key(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.count(tx)

            assert list(locks_of(tx).values()) == [LockMode.SHARED]
            assert key_locks_of(tx) == []


class TestEnumerations:
    async def test_keys_come_in_order(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            for name in ("zoe", "eve", "abe"):
                await users.set(tx, name, EVE)

            assert [key async for key in users.keys(tx)] == ["abe", "ada", "bob", "eve", "zoe"]

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, "aa ab b ba c"),
            ({"prefix": "a"}, "aa ab"),
            ({"prefix": ""}, "aa ab b ba c"),
            ({"prefix": "x"}, ""),
            ({"start": "ab"}, "ab b ba c"),
            ({"end": "b"}, "aa ab"),
            ({"start": "ab", "end": "ba"}, "ab b"),
            ({"start": "c", "end": "a"}, ""),
            ({"start": "b", "end": "b"}, ""),
            ({"prefix": "b", "start": "ba"}, "ba"),
            ({"prefix": "a", "end": "zz"}, "aa ab"),
            ({"reverse": True}, "c ba b ab aa"),
            ({"reverse": True, "limit": 2}, "c ba"),
            ({"start": "ab", "end": "c", "reverse": True}, "ba b ab"),
            ({"prefix": "a", "reverse": True}, "ab aa"),
            ({"limit": 0}, ""),
            ({"limit": 3}, "aa ab b"),
        ],
    )
    @pytest.mark.parametrize("own", ["none", "some", "all", "after_clear"])
    async def test_a_range_does_not_depend_on_the_writer(
        self, state: StateManager, arguments: dict[str, Any], expected: str, own: str
    ) -> None:
        letters = await state.dictionary("letters", key=str, value=int)
        names = ["aa", "ab", "b", "ba", "c"]
        mine = {"none": [], "some": ["ab", "c"], "all": names, "after_clear": names}[own]
        async with state.transaction() as tx:
            for name in [*(n for n in names if n not in mine), "deleted"]:
                await letters.set(tx, name, 1)

        async with state.transaction() as tx:
            if own == "after_clear":
                await letters.clear(tx)
            await letters.delete(tx, "deleted")
            for name in mine:
                await letters.set(tx, name, 1)
            keys = [key async for key in letters.keys(tx, **arguments)]
            items = [key async for key, _ in letters.items(tx, **arguments)]
            values = [value async for value in letters.values(tx, **arguments)]
        async with state.snapshot() as snapshot:
            after = [key async for key in letters.keys(snapshot, **arguments)]

        assert keys == items == after == expected.split()
        assert values == [1] * len(keys)

    async def test_where_is_asked_for_own_and_committed_rows(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "bob", User("new", 7))
            await users.set(tx, "eve", User("new", 3))

            found = [key async for key, _ in users.items(tx, where=lambda _, u: u.age > 5)]
            first = [v async for v in users.values(tx, where=lambda k, _: k > "ada", limit=1)]

        assert found == ["bob"]
        assert first == [User("new", 7)]

    async def test_own_writes_cover_what_is_committed(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "ada", EVE)
            await users.delete(tx, "bob")
            await users.set(tx, "eve", EVE)

            assert [row async for row in users.items(tx)] == [("ada", EVE), ("eve", EVE)]

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_own_writes_fall_into_their_step(
        self, state: StateManager, reverse: bool
    ) -> None:
        numbers = await state.dictionary("numbers", key=int, value=int)
        count = SCAN_ROWS * 3
        async with state.transaction() as tx:
            for number in range(0, count, 2):
                await numbers.set(tx, number, 0)
        async with state.transaction() as tx:
            for number in range(1, count, 2):
                await numbers.set(tx, number, 0)
            for number in range(0, count, 6):
                await numbers.delete(tx, number)

            keys = [key async for key in numbers.keys(tx, reverse=reverse)]

        expected = [n for n in range(count) if n % 2 or n % 6]
        assert keys == (expected[::-1] if reverse else expected)

    async def test_an_enumeration_is_stable_for_its_whole_life(self, state: StateManager) -> None:
        numbers = await state.dictionary("numbers", key=int, value=int)
        count = SCAN_ROWS * 2 + 10
        async with state.transaction() as tx:
            for number in range(count):
                await numbers.set(tx, number, 0)

        async with state.snapshot() as snapshot:
            seen = []
            async for key, value in numbers.items(snapshot):
                if key in (0, SCAN_ROWS + 1):
                    async with state.transaction() as tx:
                        await numbers.delete(tx, count - 1 - key)
                        await numbers.set(tx, count - 2 - key, 9)
                        await numbers.set(tx, -key, 9)
                        await numbers.set(tx, count + 5 + key, 9)
                seen.append((key, value))

        assert seen == [(number, 0) for number in range(count)]

    async def test_limits_hold_across_steps(self, state: StateManager) -> None:
        texts = await state.dictionary("texts", key=str, value=User)
        keys = [f"{number:04}" for number in range(SCAN_ROWS * 2 + 10)]
        async with state.transaction() as tx:
            for key in keys:
                await texts.set(tx, key, User(key))
        async with state.snapshot() as snapshot, state.transaction() as tx:
            for limit in (0, 1, SCAN_ROWS, SCAN_ROWS + 1, len(keys), len(keys) + 1):
                rows = [(key, User(key)) for key in keys[:limit]]
                even = [key for key in keys if not int(key) % 2][:limit]
                for view in (snapshot, tx):
                    assert [row async for row in texts.items(view, limit=limit)] == rows
                    assert [key async for key in texts.keys(view, limit=limit)] == keys[:limit]
                    found = texts.items(view, limit=limit, where=lambda key, _: not int(key) % 2)
                    assert [key async for key, _ in found] == even

    async def test_a_row_that_was_read_before_is_the_same_object(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            read = await users.get(tx, "ada")
        async with state.snapshot() as snapshot:
            rows = {key: value async for key, value in users.items(snapshot)}

        assert rows == {"ada": ADA, "bob": BOB}
        assert rows["ada"] is read

    async def test_an_ended_transaction_yields_no_further_row(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            rows = users.items(tx)
            assert await anext(rows) == ("ada", ADA)
        with pytest.raises(TransactionUseError):
            await anext(rows)

    async def test_an_enumeration_survives_a_clear(self, state: StateManager) -> None:
        numbers = await state.dictionary("numbers", key=int, value=int)
        async with state.transaction() as tx:
            for number in range(SCAN_ROWS * 2):
                await numbers.set(tx, number, 0)
        async with state.snapshot() as snapshot:
            seen = 0
            async for _ in numbers.items(snapshot):
                if seen == 5:
                    await numbers.clear()
                seen += 1

        assert seen == SCAN_ROWS * 2

    async def test_a_transaction_enumerates_a_snapshot_with_its_own_writes(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            assert await users.count(tx) == 2  # takes the snapshot
            async with state.transaction() as other:
                await users.set(other, "other", EVE)
            await users.set(tx, "mine", EVE)

            assert [key async for key in users.keys(tx)] == ["ada", "bob", "mine"]
            assert await users.count(tx) == 3
            # A single read is not of the snapshot: two read points, as the isolation table says.
            assert await users.get(tx, "other") == EVE

    async def test_a_phantom_appears_between_enumerations_of_two_transactions_only(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            first = [key async for key in users.keys(tx)]
            async with state.transaction() as other:
                await users.set(other, "phantom", EVE)  # nothing protects the range
            second = [key async for key in users.keys(tx)]
        async with state.transaction() as tx:
            third = [key async for key in users.keys(tx)]

        assert first == second == ["ada", "bob"]
        assert third == ["ada", "bob", "phantom"]

    async def test_prefixes_of_tuples_are_their_first_places(self, state: StateManager) -> None:
        rows = await state.dictionary("rows", key=tuple[str, int], value=int)
        async with state.transaction() as tx:
            for key in (("a", 1), ("a", 2), ("ab", 1), ("b", 0)):
                await rows.set(tx, key, 0)

            assert [key async for key in rows.keys(tx, prefix=("a",))] == [("a", 1), ("a", 2)]

    async def test_an_enumeration_that_is_left_early_leaves_nothing_behind(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.snapshot() as snapshot:
            async for _ in users.items(snapshot):
                break
        async with state.transaction() as tx:
            async for _ in users.items(tx):
                break

        assert state._core.locks.is_empty()
        assert not state.state._snapshots


ITERATED_ROWS = SCAN_ROWS * 2 + 10


async def open_iterated(state: StateManager, count: int) -> ReliableDictionary[int, User]:
    """Hold `count` users of age 0, indexed by age."""
    numbers = await state.dictionary(
        "numbers", key=int, value=User, indexes={"age": lambda user: user.age}
    )
    async with state.transaction() as tx:
        for number in range(count):
            await numbers.set(tx, number, User("x"))
    return numbers


class TestWhatAnIteratorSees:
    """The rows of an iterator are those that there are when it starts."""

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("count", [3, ITERATED_ROWS])
    @pytest.mark.parametrize("over", ["items", "find"])
    async def test_a_loop_that_moves_keys_ahead_meets_each_row_once(
        self, state: StateManager, over: str, count: int, reverse: bool
    ) -> None:
        numbers = await open_iterated(state, count)
        step = -count if reverse else count
        async with state.transaction() as tx:
            pairs = (
                numbers.items(tx, reverse=reverse)
                if over == "items"
                else numbers.find(tx, age=0, reverse=reverse)
            )
            async for key, user in pairs:
                await numbers.delete(tx, key)
                await numbers.set(tx, key + step, User("x", user.age + (over == "items")))

        rows = await content(state, numbers)
        moved = [number + step for number in range(count)]
        assert {key: user.age for key, user in rows.items()} == dict.fromkeys(
            moved, int(over == "items")
        )

    @pytest.mark.parametrize("over", ["items", "keys", "values", "find"])
    @pytest.mark.parametrize("change", ["set", "delete", "add", "clear", "clear and set"])
    @pytest.mark.parametrize("reverse", [False, True])
    async def test_later_writes_of_the_transaction_are_not_seen(
        self, state: StateManager, over: str, change: str, reverse: bool
    ) -> None:
        numbers = await open_iterated(state, ITERATED_ROWS)
        order = range(ITERATED_ROWS - 1, -1, -1) if reverse else range(ITERATED_ROWS)
        last = order[-1]
        beyond = -1 if reverse else ITERATED_ROWS
        async with state.transaction() as tx:
            iterators: dict[str, AsyncIterator[Any]] = {
                "items": numbers.items(tx, reverse=reverse),
                "keys": numbers.keys(tx, reverse=reverse),
                "values": numbers.values(tx, reverse=reverse),
                "find": numbers.find(tx, age=0, reverse=reverse),
            }
            iterator = iterators[over]
            seen = [await anext(iterator)]
            match change:
                case "set":
                    await numbers.set(tx, last, User("y", 7))
                case "delete":
                    await numbers.delete(tx, last)
                case "add":
                    await numbers.set(tx, beyond, User("x"))
                case "clear":
                    await numbers.clear(tx)
                case _:
                    await numbers.clear(tx)
                    await numbers.set(tx, last, User("y", 7))
            seen += [one async for one in iterator]

        expected: dict[str, list[Any]] = {
            "items": [(number, User("x")) for number in order],
            "keys": list(order),
            "values": [User("x")] * ITERATED_ROWS,
            "find": [(number, User("x")) for number in order],
        }
        assert seen == expected[over]

    @pytest.mark.parametrize("over", ["items", "find"])
    async def test_earlier_writes_of_the_transaction_are_seen_as_they_were(
        self, state: StateManager, over: str
    ) -> None:
        numbers = await open_iterated(state, ITERATED_ROWS)
        last = ITERATED_ROWS - 1
        async with state.transaction() as tx:
            await numbers.delete(tx, 1)
            await numbers.set(tx, last, User("early"))
            await numbers.set(tx, last + 1, User("early"))
            pairs = numbers.items(tx) if over == "items" else numbers.find(tx, age=0)
            seen = [await anext(pairs)]
            await numbers.set(tx, 1, User("late"))
            await numbers.set(tx, last, User("late"))
            await numbers.delete(tx, last + 1)
            seen += [pair async for pair in pairs]

        assert [key for key, _ in seen] == [0, *range(2, last + 2)]
        assert [user.email for _, user in seen[-3:]] == ["x", "early", "early"]

    async def test_two_iterators_of_a_transaction_see_what_there_was_at_their_own_start(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            first = users.keys(tx)
            seen = [await anext(first)]
            await users.set(tx, "eve", EVE)
            second = [key async for key in users.keys(tx)]
            seen += [key async for key in first]

        assert seen == ["ada", "bob"]
        assert second == ["ada", "bob", "eve"]

    async def test_a_find_that_looks_at_every_row_sees_no_later_write(
        self, state: StateManager
    ) -> None:
        numbers = await open_iterated(state, 3)
        index = numbers.indexes["age"].collection
        index.ready_since = state.sequence + 1  # as if it were built after the snapshot
        async with state.transaction() as tx:
            found = numbers.find(tx, age=0)
            seen = [await anext(found)]
            await numbers.delete(tx, 1)
            await numbers.set(tx, 3, User("x"))
            seen += [pair async for pair in found]

        assert [key for key, _ in seen] == [0, 1, 2]

    async def test_an_iterator_does_not_outlive_its_transaction(self, state: StateManager) -> None:
        numbers = await open_iterated(state, ITERATED_ROWS)
        tx = state.transaction()
        iterator = numbers.keys(tx)
        await anext(iterator)
        await tx.commit()
        with pytest.raises(TransactionUseError) as refused:
            async for _ in iterator:
                pass

        assert refused.value.code == "TransactionEnded"


class TestSnapshots:
    async def test_a_snapshot_is_consistent_over_three_collections_while_writers_run(
        self, state: StateManager
    ) -> None:
        one = await state.dictionary("one", key=int, value=int)
        two = await state.dictionary("two", key=int, value=int)
        log = await state.queue("log", value=int)
        async with state.transaction() as tx:
            for account in range(4):
                await one.set(tx, account, 100)
                await two.set(tx, account, 100)

        async def move(first: int) -> None:
            for number in range(25):
                async with state.transaction() as tx:
                    key = (first + number) % 4
                    await one.set(tx, key, await one.get(tx, key, lock=LockMode.UPDATE) - 1)
                    await two.set(tx, key, await two.get(tx, key, lock=LockMode.UPDATE) + 1)
                    await log.enqueue(tx, 1)

        async def look() -> None:
            for _ in range(60):
                async with state.snapshot() as snapshot:
                    left = sum([value async for value in one.values(snapshot)])
                    await asyncio.sleep(0)
                    right = sum([value async for value in two.values(snapshot)])
                    await asyncio.sleep(0)
                    moves = await log.count(snapshot)

                    assert (left, right) == (400 - moves, 400 + moves)
                    assert moves == len([item async for item in log.items(snapshot)])

        await asyncio.gather(*(move(number) for number in range(4)), look(), look())

        async with state.snapshot() as snapshot:
            assert await log.count(snapshot) == 100
        assert not state.state._snapshots

    async def test_nothing_of_old_versions_is_left_after_the_last_snapshot(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.snapshot():
            for _ in range(3):
                async with state.transaction() as tx:
                    await users.set(tx, "ada", EVE)
                    await users.set(tx, "eve", EVE)
                async with state.transaction() as tx:
                    await users.delete(tx, "eve")
            assert users.collection.rows.history

        rows = users.collection.rows
        assert (rows.history, rows.counts, users.collection.generations) == ({}, [], [])
        assert not rows.departed


class TestBetweenTransactions:
    async def test_add_refuses_a_key_that_its_own_transaction_added(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.add(tx, "eve", EVE)
            with pytest.raises(KeyExistsError):
                await users.add(tx, "eve", ADA)

        assert (await content(state, users))["eve"] == EVE

    async def test_a_refused_add_leaves_the_other_writes_of_its_transaction(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "eve", EVE)
            with pytest.raises(KeyExistsError):
                await users.add(tx, "ada", EVE)
            await users.delete(tx, "bob")

        assert await content(state, users) == {"ada": ADA, "eve": EVE}

    async def test_an_update_gets_the_value_of_the_transaction_that_it_waited_for(
        self, state: StateManager, users: Users
    ) -> None:
        def older(user: User) -> User:
            return User(user.email, user.age + 1)

        async def increment() -> User:
            async with state.transaction() as tx:
                return await users.upsert(tx, "ada", ADA, older)

        async with state.transaction() as first:
            await users.upsert(first, "ada", ADA, older)
            second = asyncio.create_task(increment())
            await settle()
            assert not second.done()

        assert (await second).age == 2
        assert (await content(state, users))["ada"].age == 2

    async def test_an_update_is_called_after_the_lock_is_held(
        self, state: StateManager, users: Users
    ) -> None:
        calls: list[User] = []

        def note(user: User) -> User:
            calls.append(user)
            return user

        async with state.transaction() as first, state.transaction() as second:
            await users.set(first, "ada", EVE)
            with pytest.raises(LockTimeoutError):
                await users.upsert(second, "ada", EVE, note, timeout=0)

        assert calls == []

    async def test_a_refused_write_keeps_the_lock_of_its_key(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as first, state.transaction() as second:
            assert not await users.try_add(first, "ada", EVE)
            assert not await users.delete(first, "eve")

            for key in ("ada", "eve"):
                with pytest.raises(LockTimeoutError) as refused:
                    await users.set(second, key, EVE, timeout=0)
                assert refused.value.holder == first.id

    async def test_one_key_in_two_dictionaries_has_two_locks(
        self, state: StateManager, users: Users
    ) -> None:
        others = await state.dictionary("others", key=str, value=User)
        async with state.transaction() as first, state.transaction() as second:
            await users.set(first, "ada", EVE)
            await others.set(second, "ada", BOB, timeout=0)

        assert (await content(state, users))["ada"] == EVE
        assert await content(state, others) == {"ada": BOB}

    async def test_a_write_does_not_wait_for_a_snapshot_or_an_enumeration(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.snapshot() as snapshot, state.transaction() as reader:
            assert await users.get(snapshot, "ada") == ADA
            assert await anext(users.items(reader)) == ("ada", ADA)
            async with state.transaction() as writer:
                await users.set(writer, "ada", EVE, timeout=0)

            assert await users.get(snapshot, "ada") == ADA

    async def test_a_lock_protects_no_key_beside_the_one_that_was_read(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.transaction() as reader:
            assert await users.get(reader, "ca", None) is None
            async with state.transaction() as writer:
                await users.add(writer, "cb", EVE, timeout=0)
                with pytest.raises(LockTimeoutError):
                    await users.add(writer, "ca", EVE, timeout=0)

        assert sorted(await content(state, users)) == ["ada", "bob", "cb"]


class CountedLoads:
    """Count how many values are decoded."""

    name = "counted"

    def __init__(self) -> None:
        self.loads = 0

    def dump(self, value: int) -> bytes:
        return str(value).encode()

    def load(self, raw: bytes) -> int:
        self.loads += 1
        return int(raw)


async def test_an_enumeration_of_keys_and_a_count_decode_no_value(state: StateManager) -> None:
    counted = CountedLoads()
    numbers = await state.open(Dictionary("numbers", key=str, value=int, serializer=counted))
    await numbers.auto.set("a", 1)
    await numbers.auto.set("b", 2)
    counted.loads = 0

    async with state.snapshot() as snapshot:
        assert [key async for key in numbers.keys(snapshot)] == ["a", "b"]
        assert await numbers.count(snapshot) == 2
        assert await numbers.contains(snapshot, "a")
        assert counted.loads == 0

        assert [value async for value in numbers.values(snapshot)] == [1, 2]
        assert counted.loads == 2
