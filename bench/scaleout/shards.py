"""A front end on one shard beside the same front end on four, with equal load on each shard.

Each shard is a server of its own; the first has the catalog, too. 16 clients for each shard read
and write random entities through the store, without HTTP: one table has all its entities on one
shard, the other has a range of the same size on each. What four shards add to the processor time
of a request is what routing and spreading cost.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop
from bench.scaleout import database, store
from bench.scaleout.figures import Slice
from bench.tables import workload

from partita.local_postgres import LocalPostgres
from partita.scaleout.control.control import Control
from partita.scaleout.fleet import Fleet

COUNTS = (1, 4)
CLIENTS_PER_SHARD = 16
WRITES_SHARE = 0.1
"""Of the mix: nine reads to one upsert, as in W8."""
KINDS = ("get", "upsert", "mix")
JUDGED = "mix"
RATIO_MAX = 1.15
"""CPU of a request on four shards over that on one."""

Slices = dict[tuple[str, int], list[Slice]]
"""By kind and number of shards, one of each round."""


def measure(folder: Path, *, entities: int, rounds: int, seconds: float) -> Slices:
    """Let one and four shards take turns; `entities` is for each shard."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(database.started(folder / f"shard-{number}"))
            for number in range(max(COUNTS))
        ]
        return uvloop.run(_measure(servers, entities, rounds, seconds))


async def _measure(
    servers: Sequence[LocalPostgres], entities: int, rounds: int, seconds: float
) -> Slices:
    await _join(servers)
    fleet = await Fleet.open(servers[0].url())
    slices: Slices = {}
    try:
        requests = {count: await _requests(fleet, servers, count, entities) for count in COUNTS}
        for turn in range(rounds):
            for kind in KINDS:
                for count in COUNTS if turn % 2 == 0 else COUNTS[::-1]:
                    ones = requests[count]
                    found = await _run(servers, ones, kind, count, entities, seconds)
                    slices.setdefault((kind, count), []).append(found)
                    print(
                        f"  {kind:6} {count} shard(s) {found.rate:7.0f}/s  cpu"
                        f" {found.client_us:.0f} + {found.store_us:.0f} = {found.us:.0f} us each",
                        flush=True,
                    )
                    await asyncio.sleep(store.PAUSE_SECONDS)
    finally:
        await fleet.close()
    return slices


async def _join(servers: Sequence[LocalPostgres]) -> None:
    control = await Control.open(servers[0].url())
    for number, server in enumerate(servers[1:], 1):
        await control.add_shard(server.url(), name=f"shard-{number}")
    await control.close()


async def _requests(
    fleet: Fleet, servers: Sequence[LocalPostgres], count: int, entities: int
) -> dict[str, store.One]:
    """Make a table with a range on each of some shards; return the requests for it."""
    name = f"on{count}"
    tables = (await fleet.stores("bench")).tables
    table = await tables.create_table(name)
    control = await Control.open(servers[0].url())
    try:
        for number in range(1, count):
            await control.split(name, store.key_of(number * entities).partition_key)
        shards = [shard.name for shard in await control.shards()]
        for place, each in enumerate(await control.ranges(name)):
            await control.move(each.id, shards[place])
    finally:
        await control.close()
    await fleet.catalog.refresh()
    await store.fill(tables, table, count * entities)
    for server in servers:
        await store.vacuum(server)
    return {
        "get": store.get_of(tables, table, count * entities),
        "upsert": store.upsert_of(tables, table, count * entities),
    }


async def _run(
    servers: Sequence[LocalPostgres],
    ones: dict[str, store.One],
    kind: str,
    count: int,
    entities: int,
    seconds: float,
) -> Slice:
    requests = 0

    async def client(until: float) -> None:
        nonlocal requests
        while time.perf_counter() < until:
            if kind == JUDGED:
                one = ones["upsert" if random.random() < WRITES_SHARE else "get"]
            else:
                one = ones[kind]
            await one(int(random.random() * count * entities))
            requests += 1

    def of_servers() -> float:
        return sum(map(database.cpu_seconds, servers))

    own, theirs, started = time.process_time(), of_servers(), time.perf_counter()
    clients = CLIENTS_PER_SHARD * count
    await asyncio.gather(*(client(started + seconds) for _ in range(clients)))
    elapsed = time.perf_counter() - started
    return Slice(requests, elapsed, time.process_time() - own, of_servers() - theirs)


def rounded(entities: int) -> int:
    """Return a number of entities that fills whole partitions: ranges end between them."""
    return max(1, entities // workload.PARTITION_ENTITIES) * workload.PARTITION_ENTITIES
