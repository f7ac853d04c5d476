"""Joins in the client, with a cache that is never older than it says."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from partita.clock import ManualClock
from partita.patterns import Database, EntityExistsError, Table, connect, evolve
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import ServiceKind
from partita.service.http.request import Request, Response
from support.staff import KEYRING, Department, Employee, Note, note, person


class Clocked:
    """A database on a clock that stands still until it is moved."""

    def __init__(self, db: Database, clock: ManualClock) -> None:
        self.db = db
        self.clock = clock
        self.notes: Table[Note] = db.table(Note)


@pytest.fixture
async def clocked(partita_account: LocalAccount) -> AsyncIterator[Clocked]:
    clock = ManualClock()
    async with connect(partita_account, clock=clock, keyring=KEYRING) as db:
        made = Clocked(db, clock)
        await db.create_tables()
        yield made


async def test_a_join_costs_one_request_for_each_distinct_key(any_db: Database) -> None:
    departments, employees = any_db.table(Department), any_db.table(Employee)
    for name in ("Sales", "Marketing"):
        await departments.save(Department(name=name, manager_id=1))
    staff = [person(n, dept=("Sales", "Marketing", "Nowhere")[n % 3]) for n in range(12)]
    await employees.save_all(staff)
    cached = departments.cached(ttl=60)

    with any_db.measuring() as cost:
        joined = await cached.join(staff, lambda each: {"name": each.dept})
    assert cost.requests == 3
    with any_db.measuring() as cost:
        again = await cached.join(staff, lambda each: {"name": each.dept})

    assert cost.requests == 0
    assert joined == again
    assert [None if right is None else right.name for _, right in joined] == [
        "Sales",
        "Marketing",
        None,
    ] * 4
    assert [left for left, _ in joined] == staff


async def test_a_key_that_is_none_joins_nothing(any_db: Database) -> None:
    departments = any_db.table(Department)
    await departments.save(Department(name="Sales", manager_id=1))

    joined = await departments.cached(ttl=60).join(
        ["Sales", ""], lambda name: {"name": name} if name else None
    )

    assert [right is not None for _, right in joined] == [True, False]


async def test_nothing_is_older_than_its_time_to_live(clocked: Clocked) -> None:
    notes, clock = clocked.notes, clocked.clock
    await notes.save(note(1, text="old"))
    cached = notes.cached(ttl=10)
    assert (await cached.get_or_none(topic="tables", number=1)) == note(1, text="old")
    await notes.update(lambda old: evolve(old, text="new"), topic="tables", number=1)

    clock.advance(9.999)
    kept = await cached.get_or_none(topic="tables", number=1)
    clock.advance(0.001)
    fresh = await cached.get_or_none(topic="tables", number=1)

    assert kept == note(1, text="old")
    assert fresh == note(1, text="new")


async def test_that_there_is_nothing_is_remembered_as_long(clocked: Clocked) -> None:
    cached = clocked.notes.cached(ttl=10)
    assert await cached.get_or_none(topic="tables", number=1) is None
    await clocked.notes.save(note(1))

    with clocked.db.measuring() as cost:
        remembered = await cached.get_or_none(topic="tables", number=1)
    clocked.clock.advance(10)

    assert (remembered, cost.requests) == (None, 0)
    assert await cached.get_or_none(topic="tables", number=1) == note(1)


async def test_the_wall_clock_does_not_matter(clocked: Clocked) -> None:
    await clocked.notes.save(note(1))
    cached = clocked.notes.cached(ttl=10)
    await cached.get_or_none(topic="tables", number=1)

    clocked.clock.jump(-86_400)
    with clocked.db.measuring() as cost:
        await cached.get_or_none(topic="tables", number=1)
    clocked.clock.advance(10)
    await clocked.notes.save(note(1, text="forced"), force=True)

    assert cost.requests == 0
    assert await cached.get_or_none(topic="tables", number=1) == note(1, text="forced")


async def test_what_is_saved_through_the_cache_is_remembered(clocked: Clocked) -> None:
    await clocked.notes.save(note(1))
    cached = clocked.notes.cached(ttl=10)
    loaded = await cached.get_or_none(topic="tables", number=1)
    assert loaded is not None

    await cached.save(evolve(loaded, text="mine"))
    with clocked.db.measuring() as cost:
        found = await cached.get_or_none(topic="tables", number=1)

    assert (found, cost.requests) == (note(1, text="mine"), 0)
    with pytest.raises(EntityExistsError):
        await cached.save(note(1))


async def test_a_slow_read_does_not_hide_what_was_saved_since(
    partita_account: LocalAccount,
) -> None:
    """A read is answered, its answer takes long, and the entity is saved through the cache."""
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    async with connect(partita_account, clock=clock) as db:
        notes = db.table(Note)
        await db.create_tables()
        saved = await notes.save(note(1, text="old"))
        cached = notes.cached(ttl=10)
        slow: list[str] = []

        async def write() -> None:
            clock.advance(1)
            await cached.save(evolve(saved, text="new"))

        async def around(_: ServiceKind, request: Request, respond: Respond) -> Response:
            response = await respond(request)
            if request.method == "GET" and not slow:
                slow.append(request.path)
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(write(), loop))
            return response

        partita_account.around = around
        await cached.get_or_none(topic="tables", number=1)

        assert len(slow) == 1
        assert await cached.get_or_none(topic="tables", number=1) == note(1, text="new")


async def test_a_cache_holds_so_many_entries_and_no_more(clocked: Clocked) -> None:
    await clocked.notes.save_all([note(n) for n in range(6)])
    cached = clocked.notes.cached(ttl=10, entries_max=3)

    for number in range(6):
        await cached.get_or_none(topic="tables", number=number)
    with clocked.db.measuring() as recent:
        for number in (3, 4, 5):
            await cached.get_or_none(topic="tables", number=number)
    with clocked.db.measuring() as forgotten:
        await cached.get_or_none(topic="tables", number=0)

    assert (recent.requests, forgotten.requests) == (0, 1)


async def test_two_caches_know_nothing_of_each_other(clocked: Clocked) -> None:
    await clocked.notes.save(note(1))
    one, other = clocked.notes.cached(ttl=10), clocked.notes.cached(ttl=10)
    loaded = await one.get_or_none(topic="tables", number=1)
    await other.get_or_none(topic="tables", number=1)
    assert loaded is not None

    await one.save(evolve(loaded, text="mine"))

    assert await other.get_or_none(topic="tables", number=1) == note(1)
    clocked.clock.advance(10)
    assert await other.get_or_none(topic="tables", number=1) == note(1, text="mine")
