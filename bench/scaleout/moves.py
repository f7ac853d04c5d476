"""Moves of a range between two servers while clients read and write it: how fast, how long closed.

One PostgreSQL server has the catalog, another is a second shard. The mover is a process of its own.
While clients run W8's mix (nine reads to one upsert) through a front end in this process, the range
goes to the other shard and back, again and again; then one large range is copied, and ranges are
split. The clients check what they read: an entity never goes back.
"""

import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
from bench.scaleout import database, store

from partita.local_postgres import LocalPostgres
from partita.scaleout.control.control import Control
from partita.scaleout.control.states import MoveOutcome
from partita.scaleout.fleet import Fleet
from partita.tables.engine import TableEngine
from partita.tables.operations import EntityGroup, Insert, InsertOrReplace

CLIENTS = 16
READS = 0.9
SHARDS = ("catalog", "other")
SMALL_ENTITIES = 2_000
"""Of the range that is moved again and again."""
SPLITS = 20
TARGETS = {
    "closed, p50 s": 0.1,
    "closed, p99 s": 1.0,
    "split, p50 s": 0.1,
    "entities/s copied": 50_000,
}
"""At most; of the last one, at least."""

# Copies of one entity: what a copy costs does not depend on what is in them.
_FILL = """
INSERT INTO partita.entity
SELECT e.tid, lpad((n / 1000)::text, 6, '0'), lpad(n::text, 9, '0'), e.ticks + n, e.marks, e.short,
       e.document
  FROM partita.entity e, generate_series(1, $2::int) n WHERE e.tid = $1
"""


@dataclass
class MoveFigures:
    """What the moves of one run took."""

    closed: list[float] = field(default_factory=list)
    """Seconds, of each move."""
    splits: list[float] = field(default_factory=list)
    copied: int = 0
    copy_seconds: float = 0.0
    """Of the large range."""
    requests: int = 0
    """Of the clients, while ranges moved."""
    slowest: float = 0.0
    """Seconds, of one request."""
    violations: int = 0

    def found(self) -> Mapping[str, float]:
        """Return the figures that have targets."""
        ordered = sorted(self.closed)
        return {
            "closed, p50 s": statistics.median(ordered),
            "closed, p99 s": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
            "split, p50 s": statistics.median(self.splits),
            "entities/s copied": self.copied / self.copy_seconds,
        }


def is_met(name: str, found: float) -> bool:
    """Return whether a figure meets its target."""
    return found >= TARGETS[name] if name.startswith("entities") else found <= TARGETS[name]


def measure(folder: Path, *, moves: int, entities: int) -> MoveFigures:
    """Move a small range many times, then a large one once."""
    with database.started(folder / "catalog") as home, database.started(folder / "other") as other:
        return asyncio.run(_measure(home, other, moves, entities))


async def _measure(
    home: LocalPostgres, other: LocalPostgres, moves: int, entities: int
) -> MoveFigures:
    control = await Control.open(home.url())
    await control.add_shard(other.url(), name=SHARDS[1])
    fleet = await Fleet.open(home.url())
    figures = MoveFigures()
    try:
        clients = Clients(fleet, figures)
        await clients.start("Small", SMALL_ENTITIES, home.url())
        closed = await _in_process(move_often, home.url(), "Small", moves)
        figures.closed = [outcome.closed_seconds for outcome in closed]
        await clients.start("Large", entities, home.url())
        (outcome,) = await _in_process(move_often, home.url(), "Large", 1)
        figures.copied, figures.copy_seconds = outcome.entities, outcome.copy_seconds
        await clients.stop()
        for number in range(1, SPLITS + 1):
            began = time.monotonic()
            await control.split("Small", f"{number}")
            figures.splits.append(time.monotonic() - began)
    finally:
        await fleet.close()
        await control.close()
    return figures


async def _in_process(
    work: Callable[[str, str, int], list[MoveOutcome]], url: str, table: str, times: int
) -> list[MoveOutcome]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return await asyncio.to_thread(pool.apply, work, (url, table, times))


def move_often(url: str, table: str, times: int) -> list[MoveOutcome]:
    """Move the range of a table to the other shard and back."""

    async def run() -> list[MoveOutcome]:
        control = await Control.open(url)
        outcomes = []
        for _ in range(times):
            (only,) = await control.ranges(table)
            to = SHARDS[1 - SHARDS.index(only.shard)]
            outcomes.append(await control.move(only.id, to))
        await control.close()
        return outcomes

    return asyncio.run(run())


class Clients:
    """Reads and upserts of a table, through one front end."""

    def __init__(self, fleet: Fleet, figures: MoveFigures) -> None:
        self._fleet = fleet
        self._figures = figures
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    async def start(self, name: str, entities: int, url: str) -> None:
        """Fill a new table on the first shard, then read and write it, and no other one."""
        await self.stop()
        tables = (await self._fleet.stores("bench")).tables
        table, engine = await tables.create_table(name), TableEngine(tables)
        control = await Control.open(url)
        (only,) = await control.ranges(name)
        await control.move(only.id, SHARDS[0])
        await control.close()
        await engine.run(name, EntityGroup([Insert(store.key_of(0), dict(store.properties_of(0)))]))
        connection = await asyncpg.connect(url)
        await connection.execute("SET statement_timeout = 0")
        await connection.execute(
            _FILL.replace("$1", str(table.id)).replace("$2", str(entities - 1))
        )
        await connection.execute("VACUUM ANALYZE partita.entity")
        await connection.close()
        self._is_over = False
        self._tasks = [
            asyncio.ensure_future(self._work(engine, name, number)) for number in range(CLIENTS)
        ]

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        self._tasks = []

    async def _work(self, engine: TableEngine, table: str, client: int) -> None:
        """Read and write the entities of this client."""
        chance, figures = random.Random(client), self._figures
        versions: dict[int, int] = {}
        properties = dict(store.properties_of(0))
        while not self._is_over:
            number = chance.randrange(64)
            key = store.key_of(1_000_000 + client * 64 + number)
            began = time.monotonic()
            if number in versions and chance.random() < READS:
                found = await engine.get(table, key)
                figures.violations += found.ticks != versions[number]
            else:
                outcome = await engine.run(table, EntityGroup([InsertOrReplace(key, properties)]))
                assert outcome.entities[0] is not None
                versions[number] = outcome.entities[0].ticks
            figures.slowest = max(figures.slowest, time.monotonic() - began)
            figures.requests += 1
