"""Moves of ranges between shards: what arrives, what is left behind, what a failure leaves."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from psycopg import sql

from partita.errors import (
    CatalogMismatchError,
    MoveRefusedError,
    OperationPendingError,
    ShardNotFoundError,
    UnavailableError,
)
from partita.scaleout.catalog.shards import Shard
from partita.scaleout.catalog.staleness import STALE
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.control import exclusive, moving, range_copy
from partita.scaleout.control.control import Control
from partita.scaleout.control.jobs import open_session, opened_together
from partita.scaleout.control.states import MoveOutcome, MoveProgress, MoveStep
from partita.scaleout.schema.locks import RANGE_LOCKS
from partita.scaleout.tables.trips import Change, Read, Row
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.expectations import ANYTHING
from partita.tables.operations import Delete, EntityGroup, Insert
from support import postgres
from support.control_fleets import HERE, THERE, Pause, Session, other, session, urls
from support.many_shards import execute
from support.repeats import sample

__all__ = ["other", "session"]

KEYS = ["", "a", "b\u4e2d", "k", "m", "z\U0001f600"]


async def fill(session: Session) -> None:
    for key in KEYS:
        await session.put(key, ["", "r", "s"])


async def test_a_moved_range_has_the_same_entities(session: Session) -> None:
    await fill(session)
    engine = TableEngine(session.store)
    before = [await engine.get("Staff", EntityKey(key, "r")) for key in KEYS]
    steps: list[MoveProgress] = []

    outcome = await session.control.move((await session.only()).id, THERE, progress=steps.append)

    assert [await engine.get("Staff", EntityKey(key, "r")) for key in KEYS] == before
    assert await session.keys() == sorted(KEYS * 3)
    assert (await session.only()).shard == THERE
    assert (session.rows(0), session.rows(1)) == (0, len(KEYS) * 3)
    assert (outcome.entities, outcome.changed, outcome.terminated) == (len(KEYS) * 3, 0, 0)
    assert tuple(dict.fromkeys(each.step for each in steps)) == moving.STEPS
    assert await session.control.jobs() == []


async def test_only_the_keys_of_the_range_are_moved(session: Session) -> None:
    await fill(session)
    await session.split("b")
    _, last = await session.split("m")
    middle = (await session.ranges())[1]

    await session.control.move(middle.id, THERE)

    assert (session.rows(0), session.rows(1)) == (12, 6)
    assert [each.shard for each in await session.ranges()] == [HERE, THERE, HERE]
    assert await session.keys() == sorted(KEYS * 3)
    await session.control.move(last, THERE)
    merged = await session.control.merge(middle.id, last)
    await session.control.move(merged, HERE)
    assert (session.rows(0), session.rows(1)) == (18, 0)
    assert await session.keys() == sorted(KEYS * 3)


@pytest.mark.proof
async def test_a_move_copies_in_intervals(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_copy, "INTERVAL_ENTITIES_MAX", 4)
    monkeypatch.setattr(range_copy, "INTERVAL_ENTITIES_MIN", 2)
    monkeypatch.setattr(range_copy, "INTERVAL_BYTES", 1000)
    monkeypatch.setattr(range_copy, "ERASED_ENTITIES", 5)
    await fill(session)
    copied: list[int] = []

    await session.control.move(
        (await session.only()).id,
        THERE,
        progress=lambda each: copied.append(each.entities) if each.step == "copy" else None,
        rate=10_000,
    )

    assert len(copied) > 4
    assert copied == sorted(copied)
    assert (session.rows(0), session.rows(1)) == (0, 18)
    assert await session.keys() == sorted(KEYS * 3)


async def test_etags_rise_though_the_entity_was_removed_before_the_move(session: Session) -> None:
    engine, key = TableEngine(session.store), EntityKey("p", "r")
    await engine.run("Staff", EntityGroup([Insert(key, {})]))
    await engine.run("Staff", EntityGroup([Delete(key)]))
    future = 10**17  # ticks of a removed entity that no clock has reached
    execute(
        urls()[0], "UPDATE partita.removed SET ticks = %s WHERE tid = %s", future, session.table.id
    )

    await session.control.move((await session.only()).id, THERE)
    await engine.run("Staff", EntityGroup([Insert(key, {})]))

    assert (await engine.get("Staff", key)).ticks > future


async def test_a_move_to_where_the_range_is_does_nothing(session: Session) -> None:
    await fill(session)
    before = await session.only()

    await session.control.move(before.id, HERE)

    assert await session.only() == before


async def test_an_unknown_shard_is_refused(session: Session) -> None:
    with pytest.raises(ShardNotFoundError):
        await session.control.move((await session.only()).id, "nowhere")


# What changes the same range


@pytest.mark.parametrize("change", ["moved", "split"])
async def test_a_move_of_a_range_that_was_changed_since_it_was_looked_up_is_refused(
    session: Session, other: Control, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Another session is faster, and gives the keys to the target."""
    await fill(session)
    only, find = await session.only(), other._looking.shard
    looked, go = asyncio.Event(), asyncio.Event()

    async def find_later(name: str) -> Shard:
        looked.set()
        await go.wait()
        return await find(name)

    monkeypatch.setattr(other._looking, "shard", find_later)
    late = asyncio.ensure_future(other.move(only.id, THERE))
    await looked.wait()
    changed = only.id if change == "moved" else (await session.split("m"))[1]
    await session.control.move(changed, THERE)
    go.set()
    with pytest.raises(OperationPendingError) as refused:
        await late

    assert refused.value.code == "RangeChanged"
    assert await other.jobs() == []
    assert await session.keys() == sorted(KEYS * 3)
    back = await other.move(changed, HERE)
    assert back.entities == (18 if change == "moved" else 6)


async def test_a_target_that_has_some_of_the_keys_is_left_as_it_is(session: Session) -> None:
    """As after a restore of the target: the catalog does not know of the range there."""
    await fill(session)
    unknown = "SELECT partita.own_range_1(%s, %s, 'k', 'l', 1)"
    execute(urls()[1], unknown, 2**31 - 1, session.table.id)

    with pytest.raises(MoveRefusedError) as refused:
        await session.control.move((await session.only()).id, THERE)

    assert refused.value.code == "MoveRefused"
    assert await session.control.jobs() == []
    assert session.owned(1) == ["o"]
    await session.put("a", ["r"], age=2)
    execute(urls()[1], "DELETE FROM partita.range_own WHERE tid = %s", session.table.id)


# What is written meanwhile


def started(session: Session, number: int) -> "asyncio.Task[MoveOutcome]":
    return asyncio.ensure_future(session.control.move(number, THERE))


@pytest.mark.parametrize("step", sample(["catch_up", "copy"], 2))
async def test_what_is_written_during_a_move_arrives(
    session: Session, monkeypatch: pytest.MonkeyPatch, step: MoveStep
) -> None:
    await fill(session)
    pause = Pause(monkeypatch, step)
    task = started(session, (await session.only()).id)
    await pause.reach(task)
    engine = TableEngine(session.store)

    await session.put("a", ["r"], age=2)
    await session.put("new", ["r"], age=2)
    for row_key in ("r", "s"):
        await engine.run("Staff", EntityGroup([Delete(EntityKey("k", row_key))]))
    await engine.run("Staff", EntityGroup([Delete(EntityKey("z\U0001f600", "r"))]))
    await session.put("z\U0001f600", ["r"], age=3)
    pause.go.set()
    outcome = await task

    assert outcome.changed == (5 if step == "catch_up" else outcome.changed)
    keys = [*KEYS * 3, "new"]
    keys.remove("k")
    keys.remove("k")
    assert await session.keys() == sorted(keys)
    for key, age in (("a", 2), ("new", 2), ("z\U0001f600", 3), ("m", 1)):
        entity = await engine.get("Staff", EntityKey(key, "r"))
        assert entity.properties() == {"Age": age}
    assert (session.rows(0), session.rows(1)) == (0, len(keys))


async def test_a_front_end_with_the_old_map_neither_writes_nor_reads(session: Session) -> None:
    """As if it had slept through the move: its trip has the range and epoch from before."""
    await fill(session)
    old = session.store.fleet.catalog.range_of(session.table.id, "a")
    assert old is not None

    await session.control.move(old.id, THERE)

    trips = session.store.fleet.places.of(old).trips
    stamp = session.store.fleet.clock.stamp()
    change = Change(old, session.table.id, "a", stamp, [Row("late", ANYTHING, 0, None, b"{}\x00")])
    assert await trips.write(change, [("a", "late")]) is STALE
    assert await trips.read(Read(old, session.table.id, "a", ("r",))) is STALE
    assert session.rows(0) == 0


async def test_requests_wait_while_the_range_is_closed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(session)
    pause = Pause(monkeypatch, "own")
    task = started(session, (await session.only()).id)
    await pause.reach(task)

    requests = [
        asyncio.ensure_future(session.put("a", ["new"])),
        asyncio.ensure_future(session.store.get(session.table, EntityKey("a", "r"))),
        asyncio.ensure_future(session.keys()),
    ]
    done, _ = await asyncio.wait(requests, timeout=0.3)
    assert not done
    pause.go.set()
    await task
    await asyncio.gather(*requests)

    assert len(await session.keys()) == len(KEYS) * 3 + 1


# A transaction that keeps the lock


async def test_the_session_that_keeps_the_range_for_long_is_ended_and_no_other(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(session)
    await session.split("m")
    first, other = await session.ranges()
    monkeypatch.setattr(exclusive, "BLOCKER_SECONDS_MAX", 0.3)
    lock = "SELECT pg_advisory_xact_lock_shared($1, $2)"
    pool = session.store.fleet.pool
    async with pool.link() as blocker, pool.link() as bystander:
        with contextlib.suppress(UnavailableError):
            async with bystander.transaction(), blocker.transaction():
                await blocker.read(lock, RANGE_LOCKS, first.id)
                await bystander.read(lock, RANGE_LOCKS, other.id)

                outcome = await session.control.move(first.id, THERE)

                assert outcome.terminated == 1
                await bystander.read("SELECT 1")
                with pytest.raises(UnavailableError):
                    await blocker.read("SELECT 1")
        assert not bystander.is_closed
    assert (await session.ranges())[0].shard == THERE


@pytest.mark.proof
async def test_a_move_that_is_blocked_for_too_long_is_taken_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(session)
    only = await session.only()
    monkeypatch.setattr(exclusive, "BLOCKED_SECONDS_MAX", 0.3)
    monkeypatch.setattr(exclusive, "BLOCKER_SECONDS_MAX", 0.8)
    async with session.store.fleet.pool.link() as link:
        with contextlib.suppress(UnavailableError):
            async with link.transaction():
                await link.read("SELECT pg_advisory_xact_lock_shared($1, $2)", RANGE_LOCKS, only.id)
                with pytest.raises(UnavailableError) as refused:
                    await session.control.move(only.id, THERE)
                assert refused.value.code == "MoveTableBusy"

    await session.control.resume()
    assert (await session.only()).shard == HERE
    await session.put("a", ["r"], age=2)


# What ends a move, and what is left then


@contextlib.contextmanager
def away(url: str) -> Iterator[None]:
    """Refuse connections to a database, and end those that it has."""
    name, server = url.rpartition("/")[2], postgres.server()
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    server.execute(allow.format(sql.Identifier(name), sql.Literal(False)))
    server.execute(postgres.END_SESSIONS.format(sql.Literal(name)))
    try:
        yield
    finally:
        server.execute(allow.format(sql.Identifier(name), sql.Literal(True)))


BEFORE_COMMIT: tuple[MoveStep, ...] = ("prepare", "capture", "copy", "catch_up", "fence")
AFTER_COMMIT: tuple[MoveStep, ...] = ("own", "clean")


async def assert_whole(session: Session, shard: str) -> None:
    """The range has one owner with all entities, the other shard has nothing, no job is left."""
    assert (await session.only()).shard == shard
    assert (await session.only()).state == "open"
    assert await session.keys() == sorted(KEYS * 3)
    await session.put("a", ["r"], age=7)
    entity = await TableEngine(session.store).get("Staff", EntityKey("a", "r"))
    assert entity.properties() == {"Age": 7}
    here, there = (0, 1) if shard == HERE else (1, 0)
    assert (session.rows(here), session.rows(there)) == (len(KEYS) * 3, 0)
    assert (session.owned(here), session.owned(there)) == (["o"], [])
    assert await session.control.jobs() == []


@pytest.mark.parametrize("step", sample(moving.STEPS, 4))
async def test_a_cancelled_move_is_taken_back_or_completed(
    session: Session, monkeypatch: pytest.MonkeyPatch, step: MoveStep
) -> None:
    await fill(session)
    pause = Pause(monkeypatch, step)
    task = started(session, (await session.only()).id)
    await pause.reach(task)

    task.cancel()
    pause.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    await assert_whole(session, THERE if step in AFTER_COMMIT else HERE)


@pytest.mark.parametrize("step", sample(moving.STEPS, 4))
async def test_what_a_dead_mover_leaves_is_ended_by_another(
    session: Session, other: Control, monkeypatch: pytest.MonkeyPatch, step: MoveStep
) -> None:
    """Its sessions end and it does nothing more, as after SIGKILL."""
    await fill(session)
    pause = Pause(monkeypatch, step)
    task = started(session, (await session.only()).id)
    await pause.reach(task)

    async def dead(*_: object, **__: object) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Control, "_settle", dead)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    pause.go.set()
    (job,) = await session.control.jobs()
    assert (job.kind, job.is_running) == ("move", False)

    async with asyncio.timeout(60):
        while await other.resume():  # noqa: ASYNC110 - a server ends the sessions
            await asyncio.sleep(0.05)

    await assert_whole(session, THERE if step in AFTER_COMMIT else HERE)


async def test_the_jobs_of_a_mover_that_is_alive_are_left_alone(
    session: Session, other: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(session)
    only = await session.only()
    pause = Pause(monkeypatch, "catch_up")
    task = started(session, only.id)
    await pause.reach(task)

    (job,) = await other.resume()

    assert (job.kind, job.step, job.is_running) == ("move", "catch_up", True)
    assert (await session.only()).state == "move"
    for refused in (
        other.move(only.id, THERE),
        other.split("Staff", "m", account=session.account),
    ):
        with pytest.raises(OperationPendingError) as caught:
            await refused
        assert caught.value.code == "RangeBusy"
    pause.go.set()
    await task
    await assert_whole(session, THERE)


@pytest.mark.parametrize("step", sample(["fence", "copy"], 2))
async def test_while_the_target_is_away_the_source_serves_again(
    session: Session, monkeypatch: pytest.MonkeyPatch, step: MoveStep
) -> None:
    await fill(session)
    pause = Pause(monkeypatch, step)
    task = started(session, (await session.only()).id)
    await pause.reach(task)
    with away(urls()[1]):
        pause.go.set()
        with pytest.raises(UnavailableError):
            await task

        assert await session.keys() == sorted(KEYS * 3)
        await session.put("a")
        (job,) = await session.control.resume()
        assert (job.step, job.is_running) == ("undo", False)
        assert job.error

    await session.control.resume()
    await assert_whole(session, HERE)


@pytest.mark.proof
async def test_while_the_source_is_away_the_target_serves(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is not the catalog's database: the range goes back."""
    await fill(session)
    only = await session.only()
    await session.control.move(only.id, THERE)
    pause = Pause(monkeypatch, "own")
    task = asyncio.ensure_future(session.control.move(only.id, HERE))
    await pause.reach(task)
    with away(urls()[1]):
        pause.go.set()
        with contextlib.suppress(UnavailableError):
            await task
        assert await session.keys() == sorted(KEYS * 3)

    await session.control.resume()
    await assert_whole(session, HERE)


@pytest.mark.proof
async def test_a_difference_between_both_sides_ends_the_move(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(session)
    pause = Pause(monkeypatch, "catch_up")
    task = started(session, (await session.only()).id)
    await pause.reach(task)
    execute(
        urls()[1],
        "UPDATE partita.entity SET ticks = ticks + 1 WHERE tid = %s AND pk = 'k' AND rk = 's'",
        session.table.id,
    )
    pause.go.set()

    with pytest.raises(CatalogMismatchError) as refused:
        await task

    assert refused.value.code == "MoveRowsDiffer"
    await assert_whole(session, HERE)


@pytest.mark.proof
async def test_a_move_that_writers_outrun_is_taken_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(session)
    monkeypatch.setattr(moving, "KEYS_BEFORE_FENCE", -1)

    with pytest.raises(UnavailableError) as refused:
        await session.control.move((await session.only()).id, THERE)

    assert refused.value.code == "MoveOutrun"
    await assert_whole(session, HERE)


@pytest.mark.proof
async def test_a_range_that_is_closed_for_too_long_is_opened_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(session)
    monkeypatch.setattr(moving, "CLOSED_SECONDS_MAX", 0.05)
    carry = range_copy.RangeCopy.carry_order

    async def slow(self: range_copy.RangeCopy) -> None:
        await carry(self)
        await asyncio.Event().wait()

    monkeypatch.setattr(range_copy.RangeCopy, "carry_order", slow)
    with pytest.raises(UnavailableError) as refused:
        await session.control.move((await session.only()).id, THERE)

    assert refused.value.code == "MoveFenceFailed"
    await assert_whole(session, HERE)


@pytest.mark.parametrize("step", sample(moving.STEPS, 4))
async def test_a_table_that_is_dropped_during_a_move_leaves_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch, step: MoveStep
) -> None:
    await fill(session)
    pause = Pause(monkeypatch, step)
    task = started(session, (await session.only()).id)
    await pause.reach(task)

    await session.store.delete_table("Staff")
    pause.go.set()
    with contextlib.suppress(OperationPendingError):
        await task

    assert await session.control.jobs() == []
    assert (session.owned(0), session.owned(1)) == ([], [])
    await session.store.purge()
    for shard in session.store.fleet.shards:
        await session.store.fleet._purge(shard)
    assert (session.rows(0), session.rows(1)) == (0, 0)


async def test_sessions_that_were_open_when_the_caller_was_cancelled_are_closed(
    session: Session,
) -> None:
    connector = Connector(Location.parse(urls()[0]), Durability.FAST)
    opened: list[Link] = []
    never = asyncio.Event()

    async def open_one() -> Link:
        opened.append(await open_session(connector))
        return opened[0]

    async def wait() -> Link:
        await never.wait()
        raise AssertionError

    opening = asyncio.ensure_future(opened_together([open_one(), wait()]))
    while not opened:  # noqa: ASYNC110 - a list, not an event
        await asyncio.sleep(0.01)
    opening.cancel()
    await asyncio.wait([opening])

    assert opening.cancelled()
    assert opened[0].is_closed
