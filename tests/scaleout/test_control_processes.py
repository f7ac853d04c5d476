"""Real processes: a mover that is killed, a front end that is stopped, a shard that restarts."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partita.errors import PartitaError, UnavailableError
from partita.local_postgres import LocalPostgres
from partita.scaleout.control import moving
from partita.scaleout.control.control import Control
from partita.scaleout.schema.install import install
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, InsertOrReplace
from support.catalog_databases import empty_url
from support.control_fleets import HERE, THERE, Session, session, urls
from support.fleet_processes import FENCED, RECORDED, REPLACEMENT_STEPS
from support.front_ends import OwningStore
from support.many_shards import execute, new_fleet, open_front_end
from support.range_ledger import PARTITIONS, Ledger, change_ranges
from support.repeats import repeat

__all__ = ["session"]

pytestmark = pytest.mark.proof

TESTS = str(Path(__file__).resolve().parents[1])
KILLS = repeat(1, 1, 5)
FREEZES = repeat(1, 3, 20)
RESTARTS = repeat(1, 2, 10)
CATALOG_AWAY_SECONDS = repeat(2, 6, 60)
MOVED = """
UPDATE partita.shard SET url = %s, version = partita.catalog_changed_1() WHERE name = 'restarts'
"""


@contextlib.asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.fleet_processes", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": TESTS},
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.communicate()


@pytest.mark.parametrize("step", [*moving.STEPS, FENCED])
async def test_a_range_has_one_owner_after_its_mover_was_killed(
    session: Session, step: str
) -> None:
    for key in "abcdef":
        await session.put(key, [f"{number}" for number in range(20)])
    for kill in range(KILLS):
        before = await session.only()
        to = THERE if before.shard == HERE else HERE
        async with process("move", urls()[0], str(before.id), to, step) as mover:
            assert await mover.wait() == -signal.SIGKILL
        await resumed(session.control)

        owner = (await session.only()).shard
        assert owner == (to if step in moving.COMPLETED_ONLY else before.shard)
        await session.put("a", ["0"], age=kill)
        assert len(await session.keys()) == 120
        here, there = (0, 1) if owner == HERE else (1, 0)
        assert (session.rows(here), session.rows(there)) == (120, 0)
        assert (session.owned(here), session.owned(there)) == (["o"], [])


@pytest.mark.parametrize("step", REPLACEMENT_STEPS)
async def test_each_key_has_one_owner_after_a_split_and_a_merge_were_killed(
    session: Session, step: str
) -> None:
    for key in "abcdef":
        await session.put(key)
    for kill in range(KILLS):
        async with process("split", urls()[0], session.account, "d", step) as splitter:
            assert await splitter.wait() == -signal.SIGKILL
        await resumed(session.control)
        assert len(await session.ranges()) == (1 if step == RECORDED else 2)
        if step == RECORDED:
            await session.split("d")

        low, high = (str(each.id) for each in await session.ranges())
        async with process("merge", urls()[0], low, high, step) as merger:
            assert await merger.wait() == -signal.SIGKILL
        await resumed(session.control)
        if step == RECORDED:
            await session.control.merge(int(low), int(high))

        only = await session.only()
        await session.put("a", age=kill)
        assert "".join(await session.keys()) == "abcdef"
        here = 0 if only.shard == HERE else 1
        assert (session.owned(here), session.owned(1 - here)) == (["o"], [])


async def test_a_front_end_that_sleeps_through_a_move_writes_and_reads_nothing_old(
    session: Session,
) -> None:
    """It is stopped with its map, and continued when another shard has the range."""
    key, engine = EntityKey("a", "count"), TableEngine(session.store)
    await engine.run("Staff", EntityGroup([InsertOrReplace(key, {"N": 0})]))
    acknowledged = here = 0

    async def count_here() -> None:
        nonlocal here
        entity = await engine.get("Staff", key)
        number = int(entity.properties()["N"]) + 1
        await engine.run("Staff", EntityGroup([InsertOrReplace(key, {"N": number})]))
        here += 1

    async with process("count", urls()[0], session.account) as counter:
        assert counter.stdout is not None
        assert counter.stdin is not None
        for _ in range(FREEZES):
            for _ in range(20):
                acknowledged = int(await counter.stdout.readline())
            counter.send_signal(signal.SIGSTOP)
            only = await session.only()
            await session.control.move(only.id, THERE if only.shard == HERE else HERE)
            for _ in range(5):
                await count_here()
            assert (session.rows(0), session.rows(1)) in ((1, 0), (0, 1))
            counter.send_signal(signal.SIGCONT)
        counter.stdin.close()
        lines = (await counter.stdout.read()).split()
        acknowledged = int(lines[-1]) if lines else acknowledged

    found = int((await engine.get("Staff", key)).properties()["N"])
    # One increment may have been under way, and overwritten, each time that it was stopped.
    assert acknowledged + here - FREEZES <= found <= acknowledged + here + FREEZES
    assert (session.rows(0), session.rows(1)) in ((1, 0), (0, 1))


async def test_nothing_is_lost_while_a_shard_restarts_at_once(tmp_path: Path) -> None:
    """The server of one shard stops without a checkpoint, again and again, while ranges move."""
    server = LocalPostgres(tmp_path / "shard", settings={"max_connections": "100"})
    server.start()
    home = new_fleet(1)[0]
    control = await Control.open(home, durability=Durability.FAST)
    fleets = [await open_front_end(home) for _ in range(2)]
    try:
        await control.add_shard(server.url(), name="restarts")
        stores = [
            OwningStore(fleet, await fleet.catalog.account_id("restarted")) for fleet in fleets
        ]
        table = await stores[0].create_table("Staff")
        ledger = Ledger(stores, table, seed=7, may_fail=True)
        chance, moves = random.Random(7), 0
        async with ledger.running():
            for _ in range(RESTARTS):
                moving_on = asyncio.ensure_future(change_often(control, chance))
                await asyncio.sleep(0.3 + chance.random())
                await asyncio.to_thread(server.stop, immediately=True)
                await asyncio.to_thread(server.start)
                execute(home, MOVED, server.url())  # at another port
                moves += await moving_on
            await resumed(control)
            moves += await change_often(control, chance)

        assert ledger.violations == []
        assert moves > 0
        assert (await control.verify()).problems == ()
    finally:
        await control.close()
        for fleet in fleets:
            await fleet.close()
        server.stop(immediately=True)


async def test_no_request_of_a_known_table_fails_while_the_catalog_is_away(tmp_path: Path) -> None:
    server = LocalPostgres(tmp_path / "catalog", settings={"max_connections": "100"})
    server.start()
    await install(server.url())
    control = await Control.open(server.url(), durability=Durability.FAST)
    fleets = []
    try:
        for number in range(2):
            await control.add_shard(empty_url("fleet"), name=f"shard-{number}")
        await control.drain("catalog")
        fleets += [await open_front_end(server.url()) for _ in range(2)]
        account_id = await fleets[0].catalog.account_id("known")
        stores = [OwningStore(fleet, account_id) for fleet in fleets]
        table = await stores[0].create_table("Staff")
        low, _high = await control.split("Staff", PARTITIONS[8])
        only = await control.ranges("Staff")
        await control.move(low, next(s for s in ("shard-0", "shard-1") if s != only[0].shard))
        assert await stores[1].find_table("Staff") == table
        ledger = Ledger(stores, table, seed=9)
        async with ledger.running():
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.stop, immediately=True)
            before = sum(ledger.done.values())
            await asyncio.sleep(CATALOG_AWAY_SECONDS)
            done = sum(ledger.done.values()) - before
            with pytest.raises(UnavailableError):
                await stores[0].create_table("New")
            await asyncio.to_thread(server.start)
        assert ledger.violations == []
        assert done > 0
        assert (await control.verify()).problems == ()
    finally:
        await control.close()
        for fleet in fleets:
            await fleet.close()
        server.stop(immediately=True)


async def resumed(control: Control) -> None:
    """Wait until nothing is left of processes that were killed."""
    async with asyncio.timeout(60):
        while await control.resume():  # noqa: ASYNC110 - a server ends the sessions
            await asyncio.sleep(0.05)


async def change_often(control: Control, chance: random.Random, times: int = 8) -> int:
    """Change ranges several times, some of them in vain; return how often it was done."""
    done = 0
    for _ in range(times):
        try:
            done += await change_ranges(control, "restarted", chance) is not None
        except PartitaError:
            await asyncio.sleep(0.2)
    return done
