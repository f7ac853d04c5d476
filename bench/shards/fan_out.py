"""What a fan-out costs: waiting queries over eight PostgreSQL databases against the slowest alone.

    python bench/shards/fan_out.py [--rounds 20] [--sleep-ms 100] [--shards 8] [--json FILE]

Each database waits a little longer than the one before; the plain side asks the last one with
SQLAlchemy alone. Both sides are interleaved and compared by their medians.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, select

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from partita.shards.async_fan_out import afan_out
from partita.shards.fan_out import fan_out
from partita.shards.manager import ShardMapManager
from partita.shards.ranges import Range
from partita.shards.shard_map import RangeShardMap
from shards import postgres

RATIO_MAX = 1.3
FIRST_ROW_RATIO_MAX = 1.2
SPREAD = 0.3
"""How much shorter the fastest database waits than the slowest, in parts."""
nap = Table("nap", MetaData(), Column("n", Integer))


def build(manager: ShardMapManager, shards: int, sleep_seconds: float) -> tuple[RangeShardMap, str]:
    waiting = manager.create_range_map("waiting", key=int)
    url = ""
    for number in range(shards):
        url = postgres.postgres_url(f"shard{number}")
        shard = waiting.create_shard(url)
        seconds = sleep_seconds * (1 - SPREAD * (shards - 1 - number) / max(1, shards - 1))
        with shard.connect() as connection:
            connection.exec_driver_sql(
                f"CREATE VIEW nap AS SELECT {number} AS n FROM pg_sleep({seconds})"
            )
            connection.commit()
        waiting.create_mapping(Range(number, number + 1), shard)
    return waiting, url


def timed_rows(waiting: RangeShardMap) -> tuple[float, float]:
    began = time.perf_counter()
    rows = fan_out(waiting, select(nap.c.n))
    next(rows)
    first = time.perf_counter() - began
    list(rows)
    return first, time.perf_counter() - began


async def timed_async(waiting: RangeShardMap, rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        await afan_out(waiting, select(nap.c.n)).all()
        seconds.append(time.perf_counter() - began)
    await waiting.engines.adispose()
    return seconds[1:]


def measure(shards: int, rounds: int, sleep_seconds: float) -> dict[str, object]:
    with ShardMapManager.create(postgres.postgres_url("catalog")) as manager:
        waiting, slowest_url = build(manager, shards, sleep_seconds)
        engine = create_engine(slowest_url)
        slowest: list[float] = []
        first: list[float] = []
        whole: list[float] = []
        timed_rows(waiting)
        for _ in range(rounds):
            began = time.perf_counter()
            with engine.connect() as connection:
                connection.execute(select(nap.c.n)).all()
            slowest.append(time.perf_counter() - began)
            first_row, all_rows = timed_rows(waiting)
            first.append(first_row)
            whole.append(all_rows)
        engine.dispose()
        in_tasks = asyncio.run(timed_async(waiting, rounds))
    base = statistics.median(slowest)
    fastest = base * (1 - SPREAD)
    return {
        "shards": shards,
        "rounds": rounds,
        "slowest_alone_ms": round(1e3 * base, 2),
        "fan_out_ms": round(1e3 * statistics.median(whole), 2),
        "afan_out_ms": round(1e3 * statistics.median(in_tasks), 2),
        "first_row_ms": round(1e3 * statistics.median(first), 2),
        "ratio": round(statistics.median(whole) / base, 3),
        "async_ratio": round(statistics.median(in_tasks) / base, 3),
        "first_row_ratio": round(statistics.median(first) / fastest, 3),
        "ratio_max": RATIO_MAX,
        "first_row_ratio_max": FIRST_ROW_RATIO_MAX,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sleep-ms", type=float, default=100.0)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        figures = measure(given.shards, given.rounds, given.sleep_ms / 1e3)
    finally:
        postgres.stop_server()
    written = json.dumps(figures, indent=2)
    print(written)
    if given.json is not None:
        given.json.write_text(written + "\n")


if __name__ == "__main__":
    main()
