"""What a fan-out costs: waiting queries beside the slowest alone, small ones beside a thread pool.

Of eight PostgreSQL databases each waits a little longer than the one before; the plain side asks
the last one with SQLAlchemy alone. Small queries read a few rows of each database; the plain side
is a ThreadPoolExecutor (for the async side, asyncio.gather) with one engine per database, as a
program without Partita would have it. All sides take turns.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, Select, Table, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from partita.shards.fan_out.plan import WORKERS
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap

RATIO_MAX = 1.3
SMALL_RATIO_MAX = 1.5
"""Of a hand-written thread pool's time."""
SMALL_SHARDS = {"sqlite": 4, "postgresql": 32}
SMALL_BATCH = 5
SHARDS = 8
SLEEP_SECONDS = 0.1
SPREAD = 0.3
"""How much shorter the fastest database waits than the slowest, in parts."""
entry = Table("entry", MetaData(), Column("n", Integer))
COUNT = select(func.count()).select_from(entry)
NUMBERS = select(entry.c.n)
nap = Table("nap", MetaData(), Column("n", Integer))
NewDatabase = Callable[[str], str]


def measure(new: NewDatabase, driver: str, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds, one figure a round; `driver` is the one of the async side."""
    with ShardMapManager.create(new("catalog")) as manager, asyncio.Runner() as runner:
        waiting, urls = _build(manager, new, driver)
        engine = create_engine(urls[-1])
        seen: dict[str, list[float]] = {name: [] for name in ("slowest alone", "first row")}
        seen |= {"fan_out": [], "afan_out": []}
        for number in range(rounds + 1):
            began = time.perf_counter()
            with engine.connect() as connection:
                connection.execute(select(nap.c.n)).all()
            alone = time.perf_counter() - began
            first, whole = _timed_rows(waiting)
            in_tasks = runner.run(_timed_async(waiting))
            if number:  # the first one made the connections
                for name, seconds in zip(seen, (alone, first, whole, in_tasks), strict=True):
                    seen[name].append(1e3 * seconds)
        engine.dispose()
        runner.run(manager.aclose())
    return seen


def measure_small(new: NewDatabase, dialect: str, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds per query, one figure a round."""
    count = SMALL_SHARDS[dialect]
    urls = [new(f"small{number}") for number in range(count)]
    engines = [create_engine(url) for url in urls]
    with (
        ShardMapManager.create(new("catalog")) as manager,
        asyncio.Runner() as runner,
        ThreadPoolExecutor(min(count, WORKERS)) as pool,
    ):
        small = manager.create_range_map("small", key=int)
        for number, url in enumerate(urls):
            shard = small.create_shard(url)
            with shard.connect() as connection:
                entry.create(connection)
                connection.execute(entry.insert(), [{"n": each} for each in range(5)])
                connection.commit()
            small.create_mapping(Range(number, number + 1), shard)

        async def in_tasks(statement: Select[Any]) -> object:
            for _ in range(SMALL_BATCH):
                await small.afan_out(statement).all()
            return None

        aengines = [create_async_engine(_async_url(url)) for url in urls]

        async def gathered(statement: Select[Any]) -> object:
            for _ in range(SMALL_BATCH):
                await asyncio.gather(*(_ask_async(engine, statement) for engine in aengines))
            return None

        def plain(statement: Select[Any]) -> None:
            for _ in range(SMALL_BATCH):
                list(pool.map(lambda engine: _ask(engine, statement), engines))

        def fanned(statement: Select[Any]) -> None:
            for _ in range(SMALL_BATCH):
                small.fan_out(statement).all()

        seen: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            for name, statement in (("count", COUNT), ("rows", NUMBERS)):
                sides: dict[str, Callable[[], object]] = {
                    f"pool, {name}": partial(plain, statement),
                    f"fan_out, {name}": partial(fanned, statement),
                    f"gather, {name}": partial(_run, runner, gathered, statement),
                    f"afan_out, {name}": partial(_run, runner, in_tasks, statement),
                }
                for side, run in sides.items():
                    began = time.perf_counter()
                    run()
                    if number:  # the first one made the connections
                        took = (time.perf_counter() - began) / SMALL_BATCH
                        seen.setdefault(side, []).append(1e3 * took)
        for aengine in aengines:
            runner.run(aengine.dispose())
        runner.run(manager.aclose())
    for engine in engines:
        engine.dispose()
    return seen


def _run(
    runner: asyncio.Runner,
    work: Callable[[Select[Any]], Coroutine[Any, Any, object]],
    statement: Select[Any],
) -> object:
    return runner.run(work(statement))


def _ask(engine: Engine, statement: Select[Any]) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(statement))


async def _ask_async(engine: AsyncEngine, statement: Select[Any]) -> list[Any]:
    async with engine.connect() as connection:
        return list(await connection.execute(statement))


def _async_url(url: str) -> str:
    return url.replace("sqlite:", "sqlite+aiosqlite:")


def _build(
    manager: ShardMapManager, new: NewDatabase, driver: str
) -> tuple[RangeShardMap, list[str]]:
    waiting = manager.create_range_map("waiting", key=int)
    urls = [new(f"shard{number}") for number in range(SHARDS)]
    for number, url in enumerate(urls):
        shard = waiting.create_shard(url.replace("+psycopg", f"+{driver}"))
        seconds = SLEEP_SECONDS * (1 - SPREAD * (SHARDS - 1 - number) / (SHARDS - 1))
        with shard.connect() as connection:
            connection.exec_driver_sql(
                f"CREATE VIEW nap AS SELECT {number} AS n FROM pg_sleep({seconds})"
            )
            connection.commit()
        waiting.create_mapping(Range(number, number + 1), shard)
    return waiting, urls


def _timed_rows(waiting: RangeShardMap) -> tuple[float, float]:
    began = time.perf_counter()
    rows = waiting.fan_out(select(nap.c.n))
    next(rows)
    first = time.perf_counter() - began
    assert len(list(rows)) == SHARDS - 1
    return first, time.perf_counter() - began


async def _timed_async(waiting: RangeShardMap) -> float:
    began = time.perf_counter()
    rows = await waiting.afan_out(select(nap.c.n)).all()
    assert len(rows) == SHARDS
    return time.perf_counter() - began
