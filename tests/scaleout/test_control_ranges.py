"""Splits and merges: other ranges for the same keys, and what they refuse."""

import asyncio

import pytest

from partita.errors import (
    ConfigurationError,
    ConflictError,
    InvalidKeyError,
    OperationPendingError,
    RangeError,
    StoreBusyError,
    TableNotFoundError,
    UnavailableError,
)
from partita.scaleout.connections.link import Link
from partita.scaleout.control import splitting
from partita.scaleout.control.exclusive import Exclusive
from partita.scaleout.control.states import RangeState
from partita.tables.entity import EntityKey
from support.control_fleets import Session, session, urls
from support.front_ends import OwningStore
from support.many_shards import execute

__all__ = ["session"]


def bounds(ranges: list[RangeState]) -> list[tuple[str, str | None]]:
    return [(each.lower, each.upper) for each in ranges]


async def test_a_split_gives_two_ranges_that_meet_at_the_key(session: Session) -> None:
    left, right = await session.split("m")

    ranges = await session.ranges()
    assert [each.id for each in ranges] == [left, right]
    assert bounds(ranges) == [("", "m"), ("m", None)]
    assert {(each.shard, each.state, each.account) for each in ranges} == {
        ("catalog", "open", session.account)
    }
    assert await session.control.jobs() == []


async def test_a_merge_undoes_a_split(session: Session) -> None:
    left, right = await session.split("m")

    merged = await session.control.merge(right, left)

    (only,) = await session.ranges()
    assert (only.id, only.lower, only.upper) == (merged, "", None)


async def test_front_ends_with_the_old_map_ask_again(session: Session) -> None:
    await session.put("a")
    left, right = await session.split("m")
    await session.put("a")
    await session.put("z")
    await session.control.merge(left, right)
    await session.put("a")

    found = [await session.store.get(session.table, EntityKey(key, "r")) for key in ("a", "z")]
    assert all(found)


async def test_what_cannot_be_split_is_refused(session: Session) -> None:
    await session.split("m")

    for at in ("m", ""):
        with pytest.raises(RangeError) as refused:
            await session.split(at)
        assert refused.value.code == "InvalidSplit"
    with pytest.raises(InvalidKeyError):
        await session.split("a\0")
    with pytest.raises(TableNotFoundError):
        await session.control.split("Nothing\0", "m", account=session.account)
    assert bounds(await session.ranges()) == [("", "m"), ("m", None)]


@pytest.mark.proof
async def test_a_table_of_several_accounts_is_named_with_its_account(session: Session) -> None:
    fleet = session.store.fleet
    other = OwningStore(fleet, await fleet.catalog.account_id(f"{session.account}two"))
    await other.create_table("Staff")

    with pytest.raises(ConfigurationError) as refused:
        await session.control.split("staff", "m")

    accounts = refused.value.facts["accounts"]
    assert isinstance(accounts, list)
    assert {session.account, f"{session.account}two"} <= set(accounts)
    await other.delete_table("Staff")


async def test_only_neighbours_on_one_shard_are_merged(session: Session) -> None:
    first, rest = await session.split("g")
    _, last = await session.split("p")

    with pytest.raises(RangeError) as refused:
        await session.control.merge(first, last)
    assert refused.value.code == "NotAdjacent"
    with pytest.raises(ConflictError) as gone:
        await session.control.merge(first, rest)
    assert gone.value.code == "RangeNotFound"


@pytest.mark.proof
async def test_two_changes_of_one_range_exclude_each_other(session: Session) -> None:
    outcomes = await asyncio.gather(*(session.split(at) for at in "cgkpt"), return_exceptions=True)

    done = [each for each in outcomes if isinstance(each, tuple)]
    refused = [each for each in outcomes if not isinstance(each, tuple)]
    assert done
    assert all(isinstance(each, OperationPendingError) for each in refused)
    assert len(await session.ranges()) == len(done) + 1


async def test_a_split_whose_catalog_was_lost_is_completed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends between the shard and the catalog, and cannot end the job itself."""

    async def lost(*_: object) -> None:
        raise StoreBusyError("ServerBusy", "The server is busy.")

    with monkeypatch.context() as patch:
        patch.setattr(splitting, "_commit", lost)
        with pytest.raises(StoreBusyError):
            await session.split("m")
        (job,) = await session.control.jobs()
        assert (job.kind, job.step, job.is_running) == ("split", "begun", False)
        assert (await session.ranges())[0].state == "split"

    assert await session.control.resume() == []

    assert bounds(await session.ranges()) == [("", "m"), ("m", None)]
    await session.put("a")


@pytest.mark.proof
async def test_a_split_that_the_shard_has_not_seen_is_forgotten(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(splitting, "_REPLACE", "SELECT 1/0 AS is_done")
        with pytest.raises(UnavailableError):
            await session.split("m")

    assert await session.control.jobs() == []
    assert bounds(await session.ranges()) == [("", None)]


async def test_a_split_whose_answer_is_lost_has_taken_effect(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Link.write

    async def lost(self: Link, statement: str, *values: object) -> object:
        outcome = await write(self, statement, *values)
        if "change_ranges_1" in statement:
            raise ConnectionResetError
        return outcome

    monkeypatch.setattr(Link, "write", lost)
    left, right = await session.split("m")

    assert [each.id for each in await session.ranges()] == [left, right]
    assert await session.control.jobs() == []


async def test_a_split_of_a_table_that_is_dropped_leaves_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Exclusive.run

    async def dropped(self: Exclusive, *values: object) -> object:
        outcome = await replace(self, *values)  # type: ignore[arg-type]
        await session.store.delete_table("Staff")
        return outcome

    monkeypatch.setattr(Exclusive, "run", dropped)
    with pytest.raises(OperationPendingError) as refused:
        await session.split("m")

    assert refused.value.code == "RangeChanged"
    assert await session.control.jobs() == []
    owned = "SELECT count(*) FROM partita.range_own WHERE tid = %s"
    assert execute(urls()[0], owned, session.table.id) == [(0,)]
