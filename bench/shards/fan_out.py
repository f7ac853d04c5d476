"""What a fan-out costs: waiting queries over eight PostgreSQL databases beside the slowest alone.

Each database waits a little longer than the one before; the plain side asks the last one with
SQLAlchemy alone. All sides take turns.
"""

import asyncio
import time
from collections.abc import Callable

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, select

from partita.shards.manager import ShardMapManager
from partita.shards.ranges import Range
from partita.shards.shard_map import RangeShardMap

RATIO_MAX = 1.3
SHARDS = 8
SLEEP_SECONDS = 0.1
SPREAD = 0.3
"""How much shorter the fastest database waits than the slowest, in parts."""
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
