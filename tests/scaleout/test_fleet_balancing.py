"""The balancer on databases: what it sees, what it does, and which process may do it."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from partita.cli.main import main
from partita.clock import SystemClock
from partita.heat.axes import Bucket, fold
from partita.heat.minutes import TableAxis
from partita.scaleout.balancing.deciding import Decision, MoveRange, SplitRange
from partita.scaleout.balancing.running import Balancer, Done, Election, balance_forever
from partita.storage.durability import Durability
from support.many_shards import execute, new_fleet, open_front_end

CAPACITY = 1000.0
"""Point reads per second of a shard."""


@cache
def urls() -> list[str]:
    """Return the URLs of a fleet whose tables are on two shards beside the catalog."""
    found = new_fleet(3)
    execute(found[0], "UPDATE partita.shard SET state = 'd' WHERE id = 0")
    return found


async def load(table: str, per_second: Mapping[str, int]) -> None:
    """Let a front end store five seconds of reads of partitions, in place of all earlier heat."""
    execute(urls()[0], "DELETE FROM partita.heat_live")
    fleet = await open_front_end(urls()[0])
    try:
        axis = fold(
            Bucket(f"{key}\0", f"{key}\0", (5 * rate, 0, 0, 0, 0))
            for key, rate in per_second.items()
        )
        now = SystemClock().ticks() // 10_000_000
        await fleet.heat.write({"devaccount": {table.lower(): TableAxis(table, axis)}}, 5.0, now)
    finally:
        await fleet.close()


async def a_table() -> str:
    """Create a table of the account `devaccount`."""
    name = f"T{uuid.uuid4().hex[:8]}"
    fleet = await open_front_end(urls()[0])
    try:
        await (await fleet.stores("devaccount")).tables.create_table(name)
    finally:
        await fleet.close()
    return name


async def opened() -> Balancer:
    return await Balancer.open(
        urls()[0], SystemClock(), durability=Durability.FAST, capacity=CAPACITY
    )


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    flags = ["--connect", urls()[0], "--durability", "fast", "--json"]
    assert main(["fleet", *words, *flags]) == 0
    return json.loads(capsys.readouterr().out)


async def test_a_hot_range_is_split_and_a_half_is_moved() -> None:
    table = await a_table()
    await load(table, {f"k{number}": 95 for number in range(10)})
    balancer = await opened()
    try:
        _picture, found = await balancer.decide_once()
        (split,) = found.actions
        assert isinstance(split, SplitRange)
        assert (split.table, split.at) == (table, "k5")
        assert await balancer.perform(found) == [Done(split)]

        picture, found = await balancer.decide_once()
        (move,) = found.actions
        assert isinstance(move, MoveRange)
        assert {move.source, move.to} == {"shard-1", "shard-2"}
        assert await balancer.perform(found) == [Done(move)]

        picture, found = await balancer.decide_once()
        ranges = [each for each in picture.ranges if each.table == table]
        assert found.actions == []
        assert {each.shard: round(each.load) for each in ranges} == {"shard-1": 475, "shard-2": 475}
    finally:
        await balancer.close()


def test_a_round_is_dry_unless_it_is_applied(capsys: pytest.CaptureFixture[str]) -> None:
    table = asyncio.run(a_table())
    asyncio.run(load(table, {"a": 300, "m": 300}))

    planned = run(capsys, "balance", "--capacity", "1000")
    assert not planned["is_applied"]
    assert [each["type"] for each in planned["actions"]] == ["split"]
    assert len(run(capsys, "ranges", table)) == 1

    run(capsys, "balance", "--capacity", "1000", "--apply")
    assert [each["lower"] for each in run(capsys, "ranges", table)] == ["", "m"]


def test_a_hot_partition_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    table = asyncio.run(a_table())
    asyncio.run(load(table, {"quiet": 20, "loud": 500}))

    (hot,) = run(capsys, "hot", "--capacity", "1000")

    assert (hot["table"], hot["partition_key"]) == (table, "loud")
    assert hot["part"] == pytest.approx(0.5)


@pytest.mark.proof
async def test_one_of_two_balancers_is_elected_and_the_other_takes_over() -> None:
    told = {"one": asyncio.Queue[str](), "two": asyncio.Queue[str]()}
    rounds = {"one": asyncio.Event(), "two": asyncio.Event()}

    def runs(name: str) -> asyncio.Task[None]:
        def report(_done: list[Done], _found: Decision) -> None:
            rounds[name].set()

        return asyncio.create_task(
            balance_forever(
                urls()[0],
                SystemClock(),
                told[name].put_nowait,
                report,
                durability=Durability.FAST,
            )
        )

    one = runs("one")
    await rounds["one"].wait()
    two = runs("two")
    assert await told["two"].get() == "another process balances this fleet; standing by"
    assert not rounds["two"].is_set()

    one.cancel()
    await asyncio.wait([one])
    await rounds["two"].wait()
    two.cancel()
    await asyncio.wait([two])


async def test_an_election_is_lost_with_its_session() -> None:
    one, two = (Election(urls()[0], Durability.FAST) for _ in range(2))
    assert await one.is_won()
    assert not await two.is_won()

    await one.lose()

    assert await two.is_won()
    assert not await one.is_won()
    await two.lose()
