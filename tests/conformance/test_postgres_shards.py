"""The stores over three shards: tables have ranges on all of them, queues are on two in turn."""

import asyncio
from functools import cache

import pytest

from conformance import test_postgres_queue_store, test_postgres_store
from partita.scaleout.catalog.purge import purge_tables
from partita.tables.store import Table
from support.many_shards import SplitStore, execute, new_fleet

pytestmark = pytest.mark.proof
SHARDS = 3


@cache
def urls() -> list[str]:
    return new_fleet(SHARDS)


class TestShards(test_postgres_store.TestPostgres):
    @pytest.fixture(autouse=True)
    def slots(self) -> None:
        execute(urls()[0], "DELETE FROM partita.slot")

    async def open_store(self) -> SplitStore:
        return await SplitStore.open_on(urls(), self.account_name, self.clock)

    async def space_is_reclaimed(self, table: Table) -> None:
        statement = "SELECT FROM partita.entity WHERE tid = $1"
        pools = self.store.fleet.shards.pools()
        async with asyncio.timeout(60):  # the fleet's own purge may be at work on it
            while any([await pool.read(statement, table.id) for pool in pools]):
                for pool in pools:
                    await purge_tables(pool)


class TestQueuesOnShards(test_postgres_queue_store.TestPostgres):
    def url(self) -> str:
        execute(urls()[0], "UPDATE partita.shard SET state = CASE id WHEN 0 THEN 'd' ELSE 'o' END")
        return urls()[0]
