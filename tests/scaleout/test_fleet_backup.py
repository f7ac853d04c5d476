"""Backups of a fleet: restored as a whole to a mark, and one lost shard beside the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from partita.scaleout.control.control import Control
from partita.scaleout.fleet import Fleet
from partita.scaleout.schema.install import install
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, InsertOrReplace
from support.backed_up import BackedUpPostgres, backed_up_servers

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

PARTITIONS = [f"p{number:02}" for number in range(8)]
MIDDLE = PARTITIONS[4]
WRITES = 40
"""Groups that are written between two steps."""


class Writer:
    """Writes groups of two entities to all partitions, and notes what was acknowledged."""

    def __init__(self, engine: TableEngine) -> None:
        self._engine = engine
        self.told: dict[str, int] = {}
        """The last number of each partition that was acknowledged."""
        self.number = 0
        self.is_over = False

    async def write(self) -> None:
        while not self.is_over:
            await self.write_one()

    async def write_one(self) -> None:
        self.number += 1
        partition = PARTITIONS[self.number % len(PARTITIONS)]
        pair = [
            InsertOrReplace(EntityKey(partition, row_key), {"N": self.number}) for row_key in "ab"
        ]
        await self._engine.run("Orders", EntityGroup(pair))
        self.told[partition] = self.number

    async def pass_by(self, count: int = WRITES) -> None:
        """Wait until some more groups were written."""
        until = self.number + count
        while self.number < until:  # noqa: ASYNC110 - a counter, not an event
            await asyncio.sleep(0.01)


async def engine_of(fleet: Fleet) -> TableEngine:
    return TableEngine((await fleet.stores("devaccount")).tables)


async def numbers(engine: TableEngine) -> dict[str, int]:
    """Return the number in each partition; both entities of a group have the same."""
    found = {}
    for partition in PARTITIONS:
        one, other = [
            int((await engine.get("Orders", EntityKey(partition, row_key))).properties()["N"])
            for row_key in "ab"
        ]
        assert one == other, partition
        found[partition] = one
    return found


@contextlib.asynccontextmanager
async def a_fleet(servers: Sequence[BackedUpPostgres]) -> AsyncIterator[tuple[Control, Fleet]]:
    """Open a session and a front end; the first server has the catalog."""
    catalog = servers[0].url()
    control = await Control.open(catalog, durability=Durability.FAST)
    try:
        fleet = await Fleet.open(catalog, durability=Durability.FAST, checks_clock=False)
        try:
            yield control, fleet
        finally:
            await fleet.close()
    finally:
        await control.close()


async def build(servers: Sequence[BackedUpPostgres]) -> None:
    """Make a fleet of a catalog and two shards, and a table with a half on each."""
    await install(servers[0].url())
    async with a_fleet(servers) as (control, fleet):
        for name, server in zip(("one", "two"), servers[1:], strict=True):
            await control.add_shard(server.url(), name=name)
        await control.drain("catalog")
        await fleet.catalog.refresh()
        await (await engine_of(fleet)).create_table("Orders")
        low, high = await control.split("Orders", MIDDLE)
        await control.move(low, "one")
        await control.move(high, "two")


async def test_a_fleet_is_restored_to_a_mark(tmp_path: Path) -> None:
    """Every server has a backup of another moment; ranges move before and after the mark."""
    with backed_up_servers(tmp_path, "catalog", "one", "two") as servers:
        await build(servers)
        async with a_fleet(servers) as (control, fleet):
            writer = Writer(await engine_of(fleet))
            writing = asyncio.ensure_future(writer.write())
            for server in servers:
                await writer.pass_by()
                await asyncio.to_thread(server.back_up)
                low, _high = await control.ranges("Orders")
                await control.move(low.id, "two" if low.shard == "one" else "one")
            await writer.pass_by()
            before, owners = dict(writer.told), await control.ranges("Orders")
            await control.mark("monday")
            after = writer.number
            for each in await control.ranges("Orders"):
                await control.move(each.id, "one" if each.shard == "two" else "two")
            await writer.pass_by()
            writer.is_over = True
            await writing

        for server in servers:
            await asyncio.to_thread(server.lose)
            await asyncio.to_thread(server.restore, "monday")

        async with a_fleet(servers) as (control, fleet):
            assert await control.ranges("Orders") == owners
            assert (await control.verify()).problems == ()
            engine = await engine_of(fleet)
            found = await numbers(engine)
            assert all(before[key] <= number <= after for key, number in found.items())
            again = Writer(engine)
            again.number = after
            for _ in PARTITIONS:
                await again.write_one()
            assert await numbers(engine) == again.told


@pytest.mark.parametrize("with_log", [True, False])
async def test_a_lost_shard_is_restored_and_reconciled(tmp_path: Path, *, with_log: bool) -> None:
    """Since its backup one range has left it, and another has come to it.

    With the log nothing is missing. Without it the range that left is not served there again, and
    the one that came is reported.
    """
    with backed_up_servers(tmp_path, "catalog", "one", "two") as servers:
        await build(servers)
        async with a_fleet(servers) as (control, fleet):
            writer = Writer(await engine_of(fleet))
            for _ in PARTITIONS:
                await writer.write_one()
            await asyncio.to_thread(servers[2].back_up)
            low, high = await control.ranges("Orders")
            await control.move(high.id, "one")
            await control.move(low.id, "two")
            for _ in PARTITIONS:
                await writer.write_one()

        await asyncio.to_thread(servers[2].lose)
        await asyncio.to_thread(servers[2].restore, with_log=with_log)

        async with a_fleet(servers) as (control, fleet):
            reconciled = await control.reconcile("two")
            problems = (await control.verify()).problems
            engine = await engine_of(fleet)
            kept = PARTITIONS if with_log else PARTITIONS[4:]
            for partition in kept:
                entity = await engine.get("Orders", EntityKey(partition, "a"))
                assert entity.properties()["N"] == writer.told[partition]
            if with_log:
                assert (reconciled.problems, problems) == ((), ())
            else:
                (missing,) = reconciled.problems
                assert "is missing on" in missing
                assert len(problems) == 1
