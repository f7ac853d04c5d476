"""Shards: added, drained, removed, upgraded, marked; verified, and reconciled after a restore."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from partita.errors import (
    ConfigurationError,
    OperationPendingError,
    ShardExistsError,
    ShardInUseError,
    StoreBusyError,
)
from partita.scaleout.connections.link import Link
from partita.scaleout.control import membership
from partita.scaleout.control.claims import RangeClaim, resolve
from partita.scaleout.control.control import Control
from partita.scaleout.control.states import MoveProgress, MoveStep, RangeState
from partita.scaleout.schema import versions
from partita.scaleout.schema.locks import JOB_LOCKS, MARK_JOB
from partita.storage.durability import Durability
from partita.tables.entity import EntityKey
from support.catalog_databases import TO_1_2, empty_url
from support.control_fleets import HERE, THERE, Pause, Session, session, urls
from support.front_ends import OwningStore
from support.many_shards import execute, new_fleet, open_front_end

__all__ = ["session"]


@pytest.fixture
async def alone() -> AsyncIterator[Control]:
    """A session on a fleet of one that no other test has."""
    control = await Control.open(new_fleet(1)[0], durability=Durability.FAST)
    yield control
    await control.close()


# Add, drain, remove


async def test_an_empty_database_becomes_a_shard(alone: Control) -> None:
    url = empty_url("added")

    added = await alone.add_shard(url)

    assert (added.id, added.name, added.state, added.is_reachable) == (1, "shard-1", "open", True)
    assert added.bytes
    home = alone._home.location.url
    ((kept,),) = execute(home, "SELECT url FROM partita.shard WHERE id = 1")
    assert kept == url
    fleet = await open_front_end(home)
    store = OwningStore(fleet, await fleet.catalog.account_id("devaccount"))
    await alone.drain("catalog")
    await fleet.catalog.refresh()
    await store.create_table("Staff")
    (only,) = await alone.ranges("Staff")
    assert only.shard == "shard-1"
    await store.close()


@pytest.mark.proof
async def test_what_cannot_be_a_shard_is_refused(alone: Control) -> None:
    url = empty_url("added")
    await alone.add_shard(url, name="east")

    for again in (url, alone._home.location.url):
        with pytest.raises(ShardExistsError):
            await alone.add_shard(again)
    with pytest.raises(ShardExistsError):
        await alone.add_shard(empty_url("added"), name="east")
    for name in ("", "East", "a b", "x" * 64, "-"):
        with pytest.raises(ConfigurationError):
            await alone.add_shard(url, name=name)
    other = new_fleet(1)[0]
    execute(other, "INSERT INTO partita.account (name) VALUES ('used')")
    with pytest.raises(ShardInUseError) as refused:
        await alone.add_shard(other)
    assert refused.value.code == "DatabaseNotEmpty"
    assert [shard.name for shard in await alone.shards()] == ["catalog", "east"]
    assert await alone.jobs() == []


@pytest.mark.proof
async def test_adding_that_was_interrupted_is_completed(
    alone: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has its number; the catalog does not list it yet."""
    write = Link.write

    async def lost(self: Link, statement: str, *values: object) -> object:
        if "list_shard_1" in statement:
            raise StoreBusyError("ServerBusy", "The server is busy.")
        return await write(self, statement, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Link, "write", lost)
        with pytest.raises(StoreBusyError):
            await alone.add_shard(empty_url("added"))
    assert [shard.name for shard in await alone.shards()] == ["catalog"]

    assert await alone.resume() == []

    assert [shard.name for shard in await alone.shards()] == ["catalog", "shard-1"]


def test_the_catalog_keeps_no_secret() -> None:
    kept = membership.without_password

    assert kept("postgresql://ada:secret@one:1,two:2/db") == "postgresql://one:1,two:2/db"
    assert kept("postgresql://ada@one/db?target_session_attrs=read-write") == (
        "postgresql://ada@one/db?target_session_attrs=read-write"
    )
    assert kept("postgresql://one/db?user=ada&password=secret") == "postgresql://one/db"


@pytest.mark.proof
async def test_a_drained_shard_has_no_ranges_and_can_be_removed(session: Session) -> None:
    execute(urls()[0], "UPDATE partita.shard SET state = 'o'")
    url = empty_url("added")
    name = f"s{uuid.uuid4().hex[:8]}"
    await session.control.add_shard(url, name=name)
    for key in ("a", "m", "z"):
        await session.put(key)
    await session.split("m")
    for each in await session.ranges():
        await session.control.move(each.id, name)
    with pytest.raises(ShardInUseError):
        await session.control.remove(name)
    steps: set[tuple[str, MoveStep]] = set()

    def note(moved: RangeState, progress: MoveProgress) -> None:
        steps.add((moved.lower, progress.step))

    await session.control.drain(name, progress=note)

    assert {("", "copy"), ("m", "clean")} <= steps
    assert name not in {each.shard for each in await session.ranges()}
    assert await session.keys() == ["a", "m", "z"]
    await session.control.remove(name)
    assert name not in {shard.name for shard in await session.control.shards()}
    for kept in (HERE, THERE):
        with pytest.raises(ShardInUseError):
            await session.control.remove(kept)


@pytest.mark.proof
async def test_all_shards_are_upgraded(session: Session) -> None:
    for statement in TO_1_2:
        execute(urls()[1], statement)
    execute(urls()[1], "UPDATE partita.schema_version SET minor = 2")
    ((identity,),) = execute(urls()[0], "SELECT identity FROM partita.shard WHERE id = 1")
    steps: list[tuple[str, str]] = []

    done = await session.control.upgrade(progress=lambda *step: steps.append(step))

    execute(urls()[1], "UPDATE partita.shard_own SET id = 1, identity = %s", identity)
    now = versions.MAJOR, versions.MINOR
    assert {name: each.version for name, each in done.items()} == {HERE: now, THERE: now}
    assert done[THERE].previous == (versions.MAJOR, 2)
    assert (THERE, "defining the functions") in steps


# Restore points


async def test_a_mark_waits_for_a_range_that_changes_its_owner(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("a")
    pause = Pause(monkeypatch, "own")
    move = asyncio.ensure_future(session.control.move((await session.only()).id, THERE))
    await pause.reach(move)
    mark = asyncio.ensure_future(session.control.mark("before-release"))
    done, _ = await asyncio.wait((mark,), timeout=0.3)
    assert not done

    pause.go.set()

    points = await mark
    await move
    assert set(points) == {HERE, THERE}
    with pytest.raises(ConfigurationError):
        await session.control.mark("Before Release")


@pytest.mark.proof
async def test_a_fence_waits_for_marks(session: Session) -> None:
    await session.put("a")
    async with session.store.fleet.pool.link() as link:
        await link.read("SELECT pg_advisory_lock($1, $2)", JOB_LOCKS, MARK_JOB)
        move = asyncio.ensure_future(session.control.move((await session.only()).id, THERE))
        done, _ = await asyncio.wait((move,), timeout=1.0)
        assert not done
        await session.put("b")
        await link.read("SELECT pg_advisory_unlock($1, $2)", JOB_LOCKS, MARK_JOB)
    await move
    assert await session.keys() == ["a", "b"]


# Verify


async def problems_of(session: Session) -> list[str]:
    """Return what is found wrong with the table of the session."""
    found = await session.control.verify()
    assert not any("does not answer" in text for text in found.problems), found.problems
    return [text for text in found.problems if f"table {session.table.id}" in text]


async def test_a_whole_fleet_has_no_problems(session: Session) -> None:
    for key in ("a", "m", "z"):
        await session.put(key)
    _, right = await session.split("m")
    await session.control.move(right, THERE)

    found = await session.control.verify()

    assert await problems_of(session) == []
    assert found.entities >= 3
    assert found.ranges >= 2


@pytest.mark.proof
async def test_what_is_wrong_is_found(session: Session) -> None:
    await session.put("a")
    tid, only = session.table.id, await session.only()

    execute(urls()[0], "UPDATE partita.range_own SET epoch = epoch + 1 WHERE tid = %s", tid)
    assert len(await problems_of(session)) == 2
    execute(urls()[0], "UPDATE partita.range_own SET epoch = epoch - 1 WHERE tid = %s", tid)
    own = "SELECT partita.own_range_1(%s, %s, '', NULL, %s)"
    execute(urls()[1], own, only.id, tid, only.epoch)
    assert [text.partition(" (")[0] for text in await problems_of(session)] == [
        f"{THERE} has range {only.id} of table {tid}"
    ]
    execute(urls()[1], "DELETE FROM partita.range_own WHERE tid = %s", tid)
    execute(urls()[0], "UPDATE partita.range_own SET hi = 'a' WHERE tid = %s", tid)
    assert any("1 entities" in text for text in await problems_of(session))
    execute(urls()[0], "UPDATE partita.range_own SET hi = NULL WHERE tid = %s", tid)
    assert await problems_of(session) == []


# Reconcile


def claim(lo: str, hi: str | None, epoch: int, shard: int = 0) -> RangeClaim:
    return RangeClaim(lo, hi, epoch, epoch, shard)


def test_of_two_owners_the_later_epoch_wins() -> None:
    old, new = claim("", None, 4), claim("", None, 7, shard=1)

    for listed in (old, new):
        found = resolve([listed], [old, new], [])
        assert (found.ranges, found.missing) == ((new,), ())


def test_a_shard_from_before_a_split_serves_the_halves() -> None:
    left, right = claim("", "m", 7), claim("m", None, 8)

    found = resolve([left, right], [claim("", None, 4)], [])

    assert (found.ranges, found.missing) == ((left, right), ())


def test_a_catalog_from_before_a_split_follows_the_shard() -> None:
    left, right = claim("", "m", 7), claim("m", None, 8)

    found = resolve([claim("", None, 4)], [left, right], [])

    assert (found.ranges, found.missing) == ((left, right), ())


def test_a_range_that_its_shard_does_not_have_is_missing_and_not_given_to_another() -> None:
    moved = claim("", None, 7, shard=1)

    assert resolve([moved], [claim("", None, 4)], []).missing == (moved,)
    assert resolve([moved], [], [1]).missing == ()


def test_claims_that_leave_a_gap_change_nothing() -> None:
    listed = claim("", None, 4)

    found = resolve([listed], [claim("", "g", 8), claim("m", None, 9, shard=1)], [])

    assert (found.contested, found.ranges) == (True, (listed,))


async def test_a_fence_that_a_failover_lost_is_made_good(session: Session) -> None:
    """The source serves the range as if it had never left, with a write that came too late."""
    for key in ("a", "m"):
        await session.put(key)
    before = await session.only()
    await session.control.move(before.id, THERE)
    execute(
        urls()[0],
        "SELECT partita.own_range_1(%s, %s, '', NULL, %s)",
        *(before.id, session.table.id, before.epoch),
    )
    execute(
        urls()[0],
        "INSERT INTO partita.entity VALUES (%s, 'a', 'late', 1, 0, NULL, '')",
        session.table.id,
    )

    done = await session.control.reconcile(HERE)

    assert f"{HERE} serves other ranges of table {session.table.id}" in done.changes
    assert await problems_of(session) == []
    assert (session.rows(0), session.rows(1)) == (0, 2)
    assert await session.keys() == ["a", "m"]


async def test_a_catalog_that_was_restored_follows_the_shards(session: Session) -> None:
    for key in ("a", "m"):
        await session.put(key)
    before = await session.only()
    await session.split("g")
    _, right = await session.ranges()
    await session.control.move(right.id, THERE)
    execute(urls()[0], "DELETE FROM partita.range WHERE tid = %s", session.table.id)
    execute(
        urls()[0],
        "INSERT INTO partita.range (id, tid, lo, epoch) OVERRIDING SYSTEM VALUE"
        " VALUES (%s, %s, '', %s)",
        *(before.id, session.table.id, before.epoch),
    )
    execute(urls()[0], "SELECT setval('partita.epoch', %s)", before.epoch)

    await session.control.reconcile()

    assert [each.shard for each in await session.ranges()] == [HERE, THERE]
    assert await problems_of(session) == []
    assert await session.keys() == ["a", "m"]
    left, _ = await session.ranges()
    await session.control.move(left.id, THERE)
    assert await session.keys() == ["a", "m"]


@pytest.mark.proof
async def test_a_range_that_is_missing_is_reported_and_nothing_is_deleted(
    session: Session,
) -> None:
    await session.put("a")
    await session.control.move((await session.only()).id, THERE)
    only = await session.only()
    execute(urls()[1], "DELETE FROM partita.range_own WHERE tid = %s", session.table.id)

    done = await session.control.reconcile(THERE)

    assert any(f"of table {session.table.id} " in text for text in done.problems)
    assert session.rows(1) == 1
    assert session.owned(1) == []
    own = "SELECT partita.own_range_1(%s, %s, '', NULL, %s)"
    execute(urls()[1], own, only.id, session.table.id, only.epoch)
    assert await problems_of(session) == []


@pytest.mark.proof
async def test_nothing_is_reconciled_beside_a_job(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("a")
    pause = Pause(monkeypatch, "catch_up")
    move = asyncio.ensure_future(session.control.move((await session.only()).id, THERE))
    await pause.reach(move)

    with pytest.raises(OperationPendingError):
        await session.control.reconcile()

    pause.go.set()
    await move
    assert await session.store.get(session.table, EntityKey("a", "r")) is not None
