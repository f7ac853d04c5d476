"""Values that are unique across partitions: reserve, write, confirm, and a crash at every step."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from partita.errors import (
    EntityExistsError,
    ETagMismatchError,
    PartitaError,
    UniqueViolationError,
    UsageError,
)
from partita.patterns import Database, connect, entity, evolve, index
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import worker
from partita.patterns.operations import verbs
from partita.patterns.types.decorators import entity_type
from partita.patterns.writing import outbox_entry
from partita.patterns.writing.claims import CLAIM
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import CRASHES, ERRORS, Crashed, FakeWorld, Fault
from support.repeats import repeat
from support.simulated import begin, drain


@entity(table="users", partition="{dept}", row="{id:04d}")
class User:
    dept: str
    id: int
    email: str | None = None
    name: str = "-"


by_email = index(User, table="usersbyemail", partition="{email}", row="is", unique=True)
USER = entity_type(User)


@pytest_asyncio.fixture(params=["sdk", "direct"])
async def db(
    request: pytest.FixtureRequest, partita_account: LocalAccount
) -> AsyncIterator[Database]:
    async with connect(partita_account, direct=request.param == "direct") as opened:
        opened.table(User)
        await opened.create_tables()
        yield opened


async def test_an_address_is_taken_once_in_all_partitions(db: Database) -> None:
    users = db.table(User)
    ann = await users.save(User(dept="Sales", id=1, email="ann@x"))

    with pytest.raises(UniqueViolationError) as caught:
        await users.save(User(dept="Legal", id=2, email="ann@x"))

    assert caught.value.index is by_email
    assert await users.get_or_none(dept="Legal", id=2) is None
    assert await users.via(by_email).get(email="ann@x") == ann  # found before it is confirmed
    await db.drain()
    with db.measuring() as cost:
        assert await users.via(by_email).get(email="ann@x") == ann
    assert cost.requests == 1
    assert await db.verify(User) == []


async def test_an_address_is_free_again_after_a_change_or_a_delete(db: Database) -> None:
    users = db.table(User)
    ann = await users.save(User(dept="Sales", id=1, email="ann@x"))
    await db.drain()

    ann = await users.save(evolve(ann, email="eve@x"))
    await users.save(User(dept="Legal", id=2, email="ann@x"))  # before a worker came
    await users.delete(ann)
    await users.save(User(dept="Legal", id=3, email="eve@x"))
    await db.drain()

    assert (await users.via(by_email).get(email="ann@x")).id == 2
    assert (await users.via(by_email).get(email="eve@x")).id == 3
    assert await db.verify(User) == []


async def test_a_refused_write_gives_its_claim_back(db: Database) -> None:
    users = db.table(User)
    ann = await users.save(User(dept="Sales", id=1, email="ann@x"))
    await users.save(evolve(ann, name="Ann"))
    await db.drain()

    with pytest.raises(ETagMismatchError):
        await users.save(evolve(ann, email="new@x"))
    with pytest.raises(EntityExistsError):
        await users.save(User(dept="Sales", id=1, email="ann@x"))

    assert (await users.save(User(dept="Legal", id=2, email="new@x"))).id == 2
    await db.drain()
    assert (await users.via(by_email).get(email="ann@x")).name == "Ann"
    assert await db.verify(User) == []


async def test_two_entities_of_a_group_cannot_have_one_address(db: Database) -> None:
    group = db.table(User).partition(dept="Sales").atomic()
    group.save(User(dept="Sales", id=1, email="ann@x"))
    group.save(User(dept="Sales", id=2, email="ann@x"))

    with pytest.raises(UniqueViolationError):
        await group.__aexit__(None)


async def test_none_is_not_claimed(db: Database) -> None:
    users = db.table(User)

    await users.save(User(dept="Sales", id=1))
    await users.save(User(dept="Sales", id=2))

    assert await users.partition(dept="Sales").all().count() == 2


async def test_a_user_with_a_claimed_address_is_not_moved(db: Database) -> None:
    ann = await db.table(User).save(User(dept="Sales", id=1, email="ann@x"))

    with pytest.raises(UsageError) as caught:
        await db.table(User).move(ann, dept="Legal")

    assert caught.value.code == "UniqueMove"


async def test_a_rebuild_over_two_equal_addresses_is_refused(db: Database) -> None:
    users = db.table(User)
    await db.disable(by_email)
    await users.save(User(dept="Sales", id=1, email="ann@x"))
    await users.save(User(dept="Legal", id=2, email="ann@x"))

    with pytest.raises(UniqueViolationError):
        await db.rebuild(by_email)


# ---------------------------------------------------------------------------------------------
# Every crash, every lost answer, every order


def holders(world: FakeWorld) -> list[tuple[str, str]]:
    rows = [row for row in world.rows("users") if row.properties.get("Email") == "ann@x"]
    return [(row.key.partition, row.key.row) for row in rows]


def settled(world: FakeWorld) -> None:
    """Check that one entity at most has the address, and that the index says which."""
    context = begin(world, models=(USER,))
    drain(world, context)
    having = holders(world)
    assert len(having) <= 1
    drifts = world.run(lifecycle.verify(context, USER, lambda _: None))
    if drifts:  # a claim without an entity, which the next writer takes over
        [row] = world.rows("usersbyemail")
        assert CLAIM in row.properties
        assert not having
        world.run(lifecycle.repair(context, USER, drifts, lambda _: None))
    assert world.run(lifecycle.verify(context, USER, lambda _: None)) == []
    assert len(world.rows("usersbyemail")) == len(having)


def save(world: FakeWorld, dept: str, number: int) -> Any:
    context = begin(world, models=(USER,))
    return verbs.save(context, USER, User(dept=dept, id=number, email="ann@x"))


@pytest.mark.parametrize("fault", [*CRASHES, *ERRORS], ids=lambda fault: fault.name)
def test_a_fault_at_any_step_leaves_the_address_to_one_user_or_free(fault: Fault) -> None:
    for call in range(1, 9):
        world = FakeWorld()
        begin(world, models=(USER,))
        first = save(world, "Sales", 1)
        world.fail(call, fault)
        with contextlib.suppress(Crashed, PartitaError):
            world.run(first)
        world.restart()

        before = holders(world)
        second = save(world, "Legal", 2)
        try:
            world.run(second)
        except UniqueViolationError:
            assert before == [("Sales", "0001")]
        else:
            assert before == []

        settled(world)
        assert len(holders(world)) == 1


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(repeat(60, 600, 5000)))
def test_of_writers_at_the_same_time_one_gets_the_address(seed: int) -> None:
    world = FakeWorld(seed=seed)
    begin(world, models=(USER,))
    writers = [save(world, dept, number) for dept, number in (("A", 1), ("B", 2), ("A", 1))]
    outcomes: list[Any] = []

    def kept(steps: Any) -> Any:
        try:
            outcomes.append((yield from steps))
        except PartitaError as error:
            outcomes.append(error)

    beside = begin(world, models=(USER,))
    world.run_all(*(kept(each) for each in writers), kept(_drained(beside)))

    saved = [each for each in outcomes if isinstance(each, User)]
    assert len(saved) <= 1
    settled(world)
    assert len(holders(world)) == len(saved)


def _drained(context: Any) -> Any:
    yield from worker.drain(context, worker.Report())


def test_a_fence_is_removed_after_a_day() -> None:
    world = FakeWorld()
    context = begin(world, models=(USER,))
    first = save(world, "Sales", 1)
    world.fail(2, Fault.CRASH_BEFORE)  # after the claim, before the group
    with pytest.raises(Crashed):
        world.run(first)
    world.restart()
    world.run(save(world, "Legal", 2))
    drain(world, context)
    [fence] = [row for row in world.rows("users") if row.key.row.startswith("~o_")]

    world.clock.advance(outbox_entry.FENCE_SECONDS + 1)
    drain(world, context)

    assert fence.key.partition == "Sales"
    assert not [row for row in world.rows("users") if row.key.row.startswith("~o_")]
