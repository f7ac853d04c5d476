"""Processor time of the table store on PostgreSQL, beside plain asyncpg, per request.

    python bench/scaleout/store_costs.py --clients 16 --seconds 2 --rounds 5

Each round runs the variants one after the other; printed are medians of microseconds of processor
time per request: this process, all processes of PostgreSQL, and both.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg

from partita.local_postgres import LocalPostgres
from partita.scaleout.fleet import Fleet
from partita.scaleout.schema.install import install
from partita.tables.edm import Members
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey, pack_document
from partita.tables.filters import parse
from partita.tables.operations import EntityGroup, Insert, InsertOrReplace, Merge, Replace
from partita.tables.paging import KeyRange
from partita.tables.pushdown import describe, marks_of

ENTITIES = 10_000
PARTITIONS = 100
PROPERTIES: Members = {
    **{f"Text{n}": f"{n}" + "some text of an entity " * 2 for n in range(8)},
    "Number": 12345,
    "Other@odata.type": "Edm.Int64",
    "Other": "1234567890123",
    "Price": 12.5,
    "IsActive": True,
    "Bucket": 7,
}
GET = "SELECT ticks, document FROM partita.entity WHERE tid = $1 AND pk = $2 AND rk = $3"
PUT = (
    "INSERT INTO partita.entity VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tid, pk, rk)"
    " DO UPDATE SET ticks = excluded.ticks, marks = excluded.marks, short = excluded.short,"
    " document = excluded.document"
)

Request = Callable[[], Awaitable[object]]


def cpu_of_children(pid: int) -> float:
    """Return the processor seconds of a server and its processes, also of those that ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == pid:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == pid:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def key_of(number: int) -> EntityKey:
    return EntityKey(f"p{number % PARTITIONS:03}", f"{number:06}")


class Costs:
    def __init__(self, server: LocalPostgres, fleet: Fleet, engine: TableEngine, tid: int) -> None:
        self.server = server
        self.fleet = fleet
        self.engine = engine
        self.tid = tid
        self.chance = random.Random(3)
        self.found: dict[str, list[tuple[float, float, float]]] = {}

    def any_key(self) -> EntityKey:
        return key_of(self.chance.randrange(ENTITIES))

    async def measure(self, name: str, request: Request, clients: int, seconds: float) -> None:
        count = 0
        end = time.monotonic() + seconds

        async def client() -> None:
            nonlocal count
            while time.monotonic() < end:
                await request()
                count += 1

        here, there, start = (
            time.process_time(),
            cpu_of_children(self.server.pid or 0),
            time.monotonic(),
        )
        await asyncio.gather(*(client() for _ in range(clients)))
        here, there = time.process_time() - here, cpu_of_children(self.server.pid or 0) - there
        elapsed = time.monotonic() - start
        self.found.setdefault(name, []).append(
            (here / count * 1e6, there / count * 1e6, count / elapsed)
        )

    def report(self) -> None:
        print(f"{'':28} {'FE':>8} {'PG':>8} {'both':>8}  requests/s")
        for name, rounds in self.found.items():
            here, there, rate = (statistics.median(each) for each in zip(*rounds, strict=True))
            both = statistics.median([a + b for a, b, _ in rounds])
            print(f"{name:28} {here:8.0f} {there:8.0f} {both:8.0f}  {rate:.0f}")


async def run(clients: int, seconds: float, rounds: int, only: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = LocalPostgres(folder, settings={"shared_buffers": "128MB", "max_wal_size": "4GB"})
        server.start()
        try:
            await run_on(server, clients, seconds, rounds, only)
        finally:
            server.stop(immediately=True)


async def run_on(
    server: LocalPostgres, clients: int, seconds: float, rounds: int, only: str
) -> None:
    await install(server.url())
    fleet = await Fleet.open(server.url())
    store = (await fleet.stores("bench")).tables
    engine = TableEngine(store)
    table = await engine.create_table("Bench")
    costs = Costs(server, fleet, engine, table.id)
    for start in range(0, ENTITIES, 100 * PARTITIONS):
        for p in range(PARTITIONS):
            numbers = range(start + p, start + 100 * PARTITIONS, PARTITIONS)
            inserts = [Insert(key_of(n), {**PROPERTIES, "Bucket": n % 100}) for n in numbers]
            await engine.run("Bench", EntityGroup(inserts))
    pool = await asyncpg.create_pool(server.url(), min_size=clients, max_size=clients)
    async with fleet.pool.link() as link:
        await link.connection.execute("VACUUM ANALYZE partita.entity")

    async def get() -> None:
        await engine.get("Bench", costs.any_key())

    async def plain_get() -> None:
        await pool.fetch(GET, table.id, *costs.any_key())

    async def upsert() -> None:
        await engine.run("Bench", EntityGroup([InsertOrReplace(costs.any_key(), PROPERTIES)]))

    async def plain_upsert() -> None:
        key, ticks = costs.any_key(), fleet.clock.stamp(0)
        entity = InsertOrReplace(key, PROPERTIES).apply(None, ticks)
        values = (ticks, marks_of(PROPERTIES), describe(PROPERTIES))
        await pool.execute(PUT, table.id, *key, *values, pack_document(ticks, entity.document))

    async def merge() -> None:
        await engine.run("Bench", EntityGroup([Merge(costs.any_key(), {"Bucket": 1})]))

    async def replace() -> None:
        await engine.run("Bench", EntityGroup([Replace(costs.any_key(), PROPERTIES)]))

    async def group() -> None:
        p = costs.chance.randrange(PARTITIONS)
        keys = [EntityKey(f"g{p}", f"{n:03}") for n in range(100)]
        await engine.run("Bench", EntityGroup([InsertOrReplace(k, PROPERTIES) for k in keys]))

    async def range_of_100() -> None:
        p = f"p{costs.chance.randrange(PARTITIONS):03}"
        await store.scan(table, KeyRange.of_partition(p), None, 1000)

    async def page_of_1000() -> None:
        await store.scan(table, KeyRange(), None, 1000)

    async def filtered() -> None:
        residual = parse(f"Bucket eq {costs.chance.randrange(100)}")
        await store.scan(table, KeyRange(EntityKey("p", "")), residual, 1000)

    variants: dict[str, Request] = {
        "get": get,
        "get, asyncpg": plain_get,
        "upsert": upsert,
        "upsert, asyncpg": plain_upsert,
        "replace": replace,
        "merge": merge,
        "group of 100": group,
        "range of 100": range_of_100,
        "page of 1000": page_of_1000,
        "filter, 1 % of 10,000": filtered,
    }
    for _ in range(rounds):
        for name, request in variants.items():
            if only in name:
                await costs.measure(name, request, clients, seconds)
    costs.report()
    await pool.close()
    await fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="a part of the name of a variant")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.clients, arguments.seconds, arguments.rounds, arguments.only))


if __name__ == "__main__":
    main()
