import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from partita.errors import PartitaError, UsageError
from partita.reliable import Index, ReliableDictionary
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.values import limits
from partita.simulation.loop import running_loop
from support.states import Machine, User, a_state, simulate

Users = ReliableDictionary[str, User]


def by_age(user: User) -> int:
    return user.age


def by_tags(user: User) -> list[str]:
    return list(user.tags)


@pytest.fixture
async def state() -> AsyncIterator[StateManager]:
    async with a_state() as opened:
        yield opened


@pytest.fixture
async def users(state: StateManager) -> Users:
    return await open_users(state)


async def open_users(state: StateManager, **indexes: Any) -> Users:
    """Hold three users; the indexes are of age and tags unless others are given."""
    users = await state.dictionary(
        "users", key=str, value=User, indexes=indexes or {"age": by_age, "tag": by_tags}
    )
    async with state.transaction() as tx:
        await users.try_add(tx, "ada", User("a", 30, ("x", "y")))
        await users.try_add(tx, "bob", User("b", 20, ("y",)))
        await users.try_add(tx, "eve", User("e", 30))
    return users


async def found(tx: Any, users: Users, **wanted: Any) -> list[str]:
    return [key async for key, _ in users.find(tx, **wanted)]


async def found_now(state: StateManager, users: Users, **wanted: Any) -> list[str]:
    async with state.snapshot() as snapshot:
        return await found(snapshot, users, **wanted)


async def check_against_rows(state: StateManager, users: Users) -> None:
    """Demand that every index finds exactly what a walk over the rows finds."""
    async with state.snapshot() as snapshot:
        rows = [row async for row in users.items(snapshot)]
        for age in {user.age for _, user in rows} | {-1, 5}:
            expected = [key for key, user in rows if user.age == age]
            assert await found(snapshot, users, age=age) == expected
        for tag in {tag for _, user in rows for tag in user.tags} | {"none"}:
            expected = [key for key, user in rows if tag in user.tags]
            assert await found(snapshot, users, tag=tag) == expected
    entries = sum(1 + len(set(user.tags)) for _, user in rows)
    kept = sum(len(view.collection.rows.values) for view in users.indexes.values())
    assert kept == entries


class TestFind:
    async def test_pairs_come_in_key_order(self, state: StateManager, users: Users) -> None:
        async with state.snapshot() as snapshot:
            pairs = [pair async for pair in users.find(snapshot, age=30)]

        assert pairs == [("ada", User("a", 30, ("x", "y"))), ("eve", User("e", 30))]

    async def test_a_row_may_have_many_index_keys_or_none(
        self, state: StateManager, users: Users
    ) -> None:
        assert await found_now(state, users, tag="x") == ["ada"]
        assert await found_now(state, users, tag="y") == ["ada", "bob"]
        assert await found_now(state, users, tag="z") == []

    async def test_reverse_and_limit(self, state: StateManager, users: Users) -> None:
        assert await found_now(state, users, age=30, reverse=True) == ["eve", "ada"]
        assert await found_now(state, users, age=30, limit=1) == ["ada"]
        assert await found_now(state, users, age=30, reverse=True, limit=1) == ["eve"]
        assert await found_now(state, users, age=30, limit=0) == []

    async def test_own_writes_are_found(self, state: StateManager, users: Users) -> None:
        async with state.transaction() as tx:
            await users.set(tx, "ada", User("a", 31, ("x",)))
            await users.set(tx, "zoe", User("z", 30, ("y",)))
            await users.delete(tx, "eve")

            assert await found(tx, users, age=30) == ["zoe"]
            assert await found(tx, users, age=31) == ["ada"]
            assert await found(tx, users, tag="y") == ["bob", "zoe"]
            await users.clear(tx)
            assert await found(tx, users, age=30) == []
            await users.set(tx, "new", User("n", 30))
            assert await found(tx, users, age=30) == ["new"]
            pairs = [pair async for pair in users.find(tx, age=30)]
            assert pairs == [("new", User("n", 30))]

        await check_against_rows(state, users)

    async def test_others_find_a_write_after_the_commit(
        self, state: StateManager, users: Users
    ) -> None:
        async with state.snapshot() as before:
            async with state.transaction() as tx:
                await users.set(tx, "ada", User("a", 31))
                assert await found_now(state, users, age=31) == []

            assert await found(before, users, age=30) == ["ada", "eve"]
            assert [user.age async for _, user in users.find(before, age=30)] == [30, 30]
        assert await found_now(state, users, age=30) == ["eve"]
        assert await found_now(state, users, age=31) == ["ada"]

    async def test_an_abort_leaves_the_index_alone(self, state: StateManager, users: Users) -> None:
        tx = state.transaction()
        await users.clear(tx)
        await users.set(tx, "zoe", User("z", 30))
        await tx.abort()

        await check_against_rows(state, users)

    @pytest.mark.parametrize("wanted", [{}, {"age": 1, "tag": "x"}, {"unknown": 1}])
    async def test_one_known_index_must_be_named(
        self, state: StateManager, users: Users, wanted: dict[str, Any]
    ) -> None:
        async with state.snapshot() as snapshot:
            with pytest.raises(UsageError) as refused:
                await found(snapshot, users, **wanted)

        assert refused.value.code == "IndexUnknown"
        assert refused.value.facts["indexes"] == ["age", "tag"]

    async def test_index_keys_of_many_types(self, state: StateManager) -> None:
        users = await open_users(
            state,
            pair=lambda user: (user.age, user.email),
            some=lambda user: user.email if user.age > 20 else None,
            made=lambda user: (tag.upper() for tag in user.tags),
            members=lambda user: frozenset(user.tags),
        )
        assert await found_now(state, users, pair=(30, "e")) == ["eve"]
        assert await found_now(state, users, some="a") == ["ada"]
        assert await found_now(state, users, some="b") == []
        assert await found_now(state, users, made="Y") == ["ada", "bob"]
        assert await found_now(state, users, members="x") == ["ada"]

    async def test_a_text_is_never_found_by_another_that_it_begins_with(
        self, state: StateManager
    ) -> None:
        users = await open_users(state, mail=lambda user: user.email)
        async with state.transaction() as tx:
            for email in ("", "a\x00", "ab", "a\xff"):
                await users.set(tx, f"key of {email!r}", User(email))

        assert await found_now(state, users, mail="a") == ["ada"]
        assert await found_now(state, users, mail="") == ["key of ''"]
        assert await found_now(state, users, mail="a\x00") == ["key of 'a\\x00'"]


class TestKeeping:
    async def test_random_writes_keep_the_index_equal_to_the_rows(
        self, state: StateManager, users: Users
    ) -> None:
        chance = random.Random(11)
        for _ in range(150):
            tx = state.transaction()
            for _ in range(chance.randrange(1, 6)):
                key = chance.choice("abcdefgh")
                match chance.randrange(12):
                    case 0 if chance.random() < 0.3:
                        await users.clear(tx)
                    case 0 | 1 | 2:
                        await users.delete(tx, key)
                    case _:
                        tags = tuple(chance.choices("xyz", k=chance.randrange(3)))
                        await users.set(tx, key, User(key, chance.randrange(4), tags))
            if chance.random() < 0.2:
                await tx.abort()
            else:
                await tx.commit()
            await check_against_rows(state, users)

    async def test_the_index_is_kept_across_a_restart_without_building_it_again(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await open_users(state)
            before = state.sequence
        async with machine.open() as state:
            users = await open_users(state)
            assert state.sequence == before
            await check_against_rows(state, users)

    async def test_the_index_is_part_of_the_same_record(
        self, state: StateManager, users: Users
    ) -> None:
        before = state.sequence
        async with state.transaction() as tx:
            await users.set(tx, "zoe", User("z", 99, ("x", "y", "z")))

        assert state.sequence == before + 1

    async def test_a_function_that_raises_aborts(self, state: StateManager) -> None:
        def fail(user: User) -> int:
            return 1 // (user.age - 99)

        users = await open_users(state, age=fail)
        with pytest.raises(UsageError) as refused:  # noqa: PT012 - the block as a whole is what fails
            async with state.transaction() as tx:
                await users.set(tx, "fine", User("f", 1))
                await users.set(tx, "bad", User("b", 99))

        assert refused.value.code == "IndexFailed"
        assert refused.value.facts == {"collection": "users", "index": "age"}
        async with state.snapshot() as snapshot:
            assert not await users.contains(snapshot, "fine")

    async def test_a_function_that_returns_no_key_aborts(self, state: StateManager) -> None:
        users = await open_users(state, odd=lambda user: object() if user.age == 99 else 1)
        with pytest.raises(PartitaError):
            async with state.transaction() as tx:
                await users.set(tx, "bad", User("b", 99))

        async with state.snapshot() as snapshot:
            assert await users.count(snapshot) == 3

    async def test_entries_that_make_the_record_too_large_abort_one_transaction_only(
        self, state: StateManager
    ) -> None:
        wide = ["x" * 1000 + str(number) for number in range(10_000)]
        users = await open_users(state, wide=lambda user: wide if user.age == 99 else None)
        with pytest.raises(PartitaError) as refused:
            async with state.transaction() as tx:
                await users.set(tx, "bad", User("b", 99))

        assert refused.value.code == "TransactionTooLarge"
        async with state.transaction() as tx:
            await users.set(tx, "fine", User("f", 1))
        async with state.snapshot() as snapshot:
            assert await users.count(snapshot) == 4


async def build_again(state: StateManager, users: Users, version: int) -> None:
    """Build the indexes as newer code would that became primary here."""
    for view in users.indexes.values():
        view.index = msgspec.structs.replace(view.index, version=version)
        await state.build_index(users, view)


class TestBuilding:
    async def test_an_index_is_built_for_rows_that_exist(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            plain = await state.dictionary("users", key=str, value=User)
            async with state.transaction() as tx:
                for number in range(1_300):
                    await plain.set(tx, f"{number:04}", User("x", number % 7, (str(number % 3),)))
        async with machine.open() as state:
            users = await open_users(state)

            await check_against_rows(state, users)

    async def test_a_writer_that_does_not_know_the_index_makes_the_next_build_it(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await open_users(state)
        async with machine.open() as state:
            plain = await state.dictionary("users", key=str, value=User)
            async with state.transaction() as tx:
                await plain.set(tx, "ada", User("a", 31))
                await plain.delete(tx, "bob")
        async with machine.open() as state:
            users = await open_users(state)
            await check_against_rows(state, users)
            assert await found_now(state, users, age=31) == ["ada"]

    async def test_a_reader_that_does_not_know_the_index_leaves_it_ready(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await open_users(state)
        async with machine.open() as state:
            plain = await state.dictionary("users", key=str, value=User)
            async with state.transaction() as tx:
                await plain.get(tx, "ada")
            before = state.sequence
        async with machine.open() as state:
            await open_users(state)
            assert state.sequence == before

    async def test_a_new_version_is_built_again(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await open_users(state, age=Index(by_age))
        async with machine.open() as state:
            users = await open_users(state, age=Index(lambda user: user.age * 10, version=2))
            assert await found_now(state, users, age=300) == ["ada", "eve"]
            assert await found_now(state, users, age=30) == []

    async def test_an_index_that_is_given_twice_is_one(
        self, state: StateManager, users: Users
    ) -> None:
        before = state.sequence
        again = await open_users(state)

        assert again is users
        assert state.sequence == before
        assert [one.indexes for one in state.collections()] == [("age", "tag")]

    @pytest.mark.parametrize("name", ["", "two words", "reverse", "limit", "timeout", "tx", 7])
    async def test_an_index_is_named_like_a_keyword(self, state: StateManager, name: Any) -> None:
        with pytest.raises(UsageError) as refused:
            await state.dictionary("users", key=str, value=User, indexes={name: by_age})

        assert refused.value.code == "InvalidName"

    async def test_an_old_snapshot_is_searched_rightly_by_a_new_index(
        self, state: StateManager
    ) -> None:
        users = await state.dictionary("users", key=str, value=User, indexes={"age": by_age})
        async with state.transaction() as tx:
            await users.set(tx, "ada", User("a", 30))
        async with state.snapshot() as before:
            async with state.transaction() as tx:
                await users.set(tx, "bob", User("b", 30))
            await build_again(state, users, version=2)

            assert await found(before, users, age=30) == ["ada"]
            assert await found_now(state, users, age=30) == ["ada", "bob"]

    @pytest.mark.parametrize("timeout", [0, 1.5])
    def test_a_find_in_a_snapshot_does_not_wait_longer_for_its_index(self, timeout: float) -> None:
        async def scenario(state: StateManager) -> tuple[list[str], float]:
            users = await open_users(state)
            index = users.indexes["age"].collection
            stale = msgspec.structs.replace(index.description, is_ready=False)
            index.description = stale  # as a writer leaves it that does not know the index
            async with state.transaction() as holder, state.snapshot() as snapshot:
                await users.get(holder, "ada")  # whoever builds the index waits for it
                started = running_loop().time()
                names = await found(snapshot, users, age=30, timeout=timeout)
                return names, running_loop().time() - started

        assert simulate(scenario) == (["ada", "eve"], timeout)

    @pytest.mark.parametrize("seed", range(3))
    def test_an_index_is_built_beside_writers(self, seed: int) -> None:
        async def scenario(state: StateManager) -> None:
            users = await open_users(state)
            stop = asyncio.Event()

            async def write(place: int) -> None:
                chance = random.Random(f"{seed}/{place}")
                while not stop.is_set():
                    await asyncio.sleep(0.00001)
                    async with state.transaction() as tx:
                        key = f"{place}{chance.choice('abc')}"
                        if chance.random() < 0.001:
                            await users.clear(tx)
                        elif chance.random() < 0.2:
                            await users.delete(tx, key)
                        else:
                            tags = tuple(chance.choices("xyz", k=2))
                            await users.set(tx, key, User(key, chance.randrange(500), tags))

            writers = [asyncio.create_task(write(place)) for place in range(30)]
            for version in range(2, 6):
                await asyncio.sleep(0.001)
                await build_again(state, users, version)
            stop.set()
            await asyncio.gather(*writers)
            await check_against_rows(state, users)

        simulate(scenario, seed=seed, sync_seconds=0.0003)


async def test_too_many_collections_and_indexes_are_refused(
    state: StateManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COLLECTIONS_MAX", 4)
    await state.queue("one", value=int)
    with pytest.raises(PartitaError) as refused:
        await open_users(state, age=by_age, tag=by_tags, more=by_age)

    assert refused.value.code == "TooManyCollections"


def lazily(user: User) -> Iterator[str]:
    yield from user.tags


async def test_a_generator_gives_many_keys(state: StateManager) -> None:
    users = await open_users(state, tag=lazily)

    assert await found_now(state, users, tag="y") == ["ada", "bob"]
