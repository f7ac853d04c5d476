"""Fleets of several shards: databases of the test server, of which one has the catalog."""

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import sql

from partita.scaleout.fleet import Fleet
from partita.scaleout.schema.install import install
from partita.storage.durability import Durability
from partita.tables.store import Table
from partita.ticks import Clock
from support import postgres
from support.catalog_databases import empty_url
from support.front_ends import OwningStore

BOUNDS = ("b", "k", "p", "r", "z")
"""Where `SplitStore` cuts new tables: their ranges are on the shards in turn."""
_OWN = """
UPDATE partita.shard_own SET id = %s, identity = gen_random_uuid() RETURNING identity
"""
_ADD = """
INSERT INTO partita.shard (id, name, url, identity, version)
VALUES (%s, %s, %s, %s, partita.catalog_changed_1())
"""


def new_fleet(shards: int) -> list[str]:
    """Create a fleet; return the URLs of the catalog and of the shards beside it."""
    urls = [empty_url("fleet") for _ in range(shards)]
    server = postgres.server()
    for url in urls:
        server.execute(postgres.DO_NOT_WAIT.format(sql.Identifier(url.rpartition("/")[2])))

        def prepare(url: str = url) -> None:
            asyncio.run(install(url))

        with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
            thread.submit(prepare).result()
    join_fleet(urls)
    return urls


def join_fleet(urls: Sequence[str]) -> None:
    """Make databases with the schema one fleet; the first has the catalog."""
    for number, url in enumerate(urls[1:], 1):
        ((identity,),) = execute(url, _OWN, number)
        execute(urls[0], _ADD, number, f"shard-{number}", url, identity)


def execute(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Run one statement in a transaction of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def cut_table(urls: Sequence[str], tid: int, bounds: Sequence[str]) -> None:
    """Replace the only range of a new, empty table by several, on the shards in turn."""
    for url in urls:
        execute(url, "DELETE FROM partita.range_own WHERE tid = %s", tid)
    execute(urls[0], "DELETE FROM partita.range WHERE tid = %s", tid)
    for number, (lo, hi) in enumerate(itertools.pairwise(["", *bounds, None])):
        shard = number % len(urls)
        ((range_id, epoch),) = execute(
            urls[0],
            "INSERT INTO partita.range (tid, lo, hi, shard, epoch)"
            " VALUES (%s, %s, %s, %s, nextval('partita.epoch')) RETURNING id, epoch",
            *(tid, lo, hi, shard),
        )
        own = "SELECT partita.own_range_1(%s, %s, %s, %s, %s)"
        execute(urls[shard], own, range_id, tid, lo, hi, epoch)
    execute(
        urls[0],
        "WITH changed AS (SELECT partita.catalog_changed_1() AS version)"
        " UPDATE partita.tables SET version = changed.version FROM changed WHERE id = %s",
        tid,
    )


async def open_front_end(url: str, clock: Clock | None = None) -> Fleet:
    """Open a front end of a fleet whose commits do not wait for disks."""
    return await Fleet.open(
        url,
        durability=Durability.FAST,
        clock=clock,
        checks_clock=False,
        follows_catalog=clock is None,
    )


class SplitStore(OwningStore):
    """A store whose tables have their ranges on all shards."""

    urls: Sequence[str]

    @classmethod
    async def open_on(
        cls, urls: Sequence[str], account_name: str, clock: Clock | None = None
    ) -> "SplitStore":
        fleet = await open_front_end(urls[0], clock)
        store = cls(fleet, await fleet.catalog.account_id(account_name))
        store.urls = urls
        return store

    async def create_table(self, name: str) -> Table:
        table = await super().create_table(name)
        await asyncio.to_thread(cut_table, self.urls, table.id, BOUNDS)
        await self.fleet.catalog.refresh()
        return table
