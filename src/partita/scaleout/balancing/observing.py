"""What the balancer sees: ranges and heat from the catalog, sizes from the shards.

Sizes are estimates of PostgreSQL's planner, which cost no scan; they are read again after
`SIZES_SECONDS`. A shard that does not answer keeps the last ones.
"""

import asyncio
import json
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from partita.errors import PartitaError
from partita.heat.packing import unpack
from partita.scaleout.balancing.limits import CAPACITY, SPLIT_BYTES, WINDOW_SECONDS
from partita.scaleout.balancing.measuring import RangeHeat, Sample, measure
from partita.scaleout.balancing.picture import Picture, RangeLoad, ShardLoad
from partita.scaleout.catalog.heat import LiveTable
from partita.scaleout.catalog.shards import Shard, Shards, read_shards
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.pool import Pool
from partita.scaleout.control.control import Control
from partita.ticks import Clock

SIZES_SECONDS = 300.0

_RANGES = """
SELECT r.id, r.tid, r.lo, r.hi, r.shard, a.name AS account, t.name AS "table",
       (partita.ticks_1() - r.changed_at) / 10000000.0::float8 AS rested
  FROM partita.range r
  JOIN partita.tables t ON t.id = r.tid JOIN partita.account a ON a.id = t.account_id
 ORDER BY a.name, t.name, r.lo
"""
_LIVE = """
SELECT front_end, at, seconds, heat FROM partita.heat_live
 WHERE at > extract(epoch FROM clock_timestamp())::bigint - $1
"""
_SIZE = "SELECT pg_catalog.pg_total_relation_size('partita.entity') AS bytes"
_ALL_ROWS = "EXPLAIN (FORMAT JSON) SELECT FROM partita.entity"
_WITHIN = "tid = $1 AND pk >= $2 AND ($3::text IS NULL OR pk < $3)"
_ROWS = f"EXPLAIN (FORMAT JSON) SELECT FROM partita.entity WHERE {_WITHIN}"
_MIDDLE = f"""
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY pk) AS pk
  FROM partita.entity TABLESAMPLE SYSTEM (0.1) WHERE {_WITHIN}
"""  # noqa: S608 - our own


class _Row(msgspec.Struct, frozen=True):
    id: int
    tid: int
    lo: str
    hi: str | None
    shard: int
    account: str
    table: str
    rested: float


class Observer:
    """Reads pictures of a fleet; it keeps connections to the catalog and the shards."""

    def __init__(
        self, connector: Connector, control: Control, clock: Clock, *, capacity: float = CAPACITY
    ) -> None:
        self._catalog = Pool(connector)
        self._shards = Shards(connector, self._catalog)
        self._control = control
        self._clock = clock
        self._capacity = capacity
        self._sizes: dict[int, int] = {}
        self._middles: dict[int, str] = {}
        """Of ranges with many bytes: the key in the middle of them."""
        self._measured = float("-inf")

    async def close(self) -> None:
        await self._shards.close()
        await self._catalog.close()

    async def look(self) -> Picture:
        """Return the fleet as it is now."""
        async with self._catalog.link() as link:
            shards = await read_shards(link)
            rows = [_Row(**dict(row)) for row in await link.read(_RANGES)]
            live = await link.read(_LIVE, WINDOW_SECONDS)
        self._shards.know(shards)
        jobs = await self._control.jobs()
        reached = await asyncio.gather(*(self._reach(each, rows) for each in shards))
        moves = [job for job in jobs if job.kind == "move"]
        busy_shards = {number for job in moves for number in job.shards}
        busy_ranges = {number for job in jobs for number in job.ranges}
        heats = await asyncio.to_thread(_heats, rows, live)
        return Picture(
            [
                ShardLoad(each.name, each.is_open, is_reached, each.id in busy_shards)
                for each, is_reached in zip(shards, reached, strict=True)
            ],
            [self._range(row, heats[row.id], is_busy=row.id in busy_ranges) for row in rows],
            self._capacity,
            len(moves),
        )

    def _range(self, row: _Row, heat: RangeHeat, *, is_busy: bool) -> RangeLoad:
        return RangeLoad(
            id=row.id,
            account=row.account,
            table=row.table,
            lower=row.lo,
            upper=row.hi,
            shard=self._shards.name_of(row.shard),
            load=heat.load,
            bytes=self._sizes.get(row.id, 0),
            middle=heat.middle or self._middles.get(row.id),
            hot_key=heat.hot_key,
            hot_share=heat.hot_share,
            is_appending=heat.is_appending,
            rested_seconds=row.rested,
            is_busy=is_busy,
        )

    async def _reach(self, shard: Shard, rows: Sequence[_Row]) -> bool:
        """Ask a shard for the sizes of its ranges, if it is time; return whether it answers."""
        pool, now = self._shards.pool(shard.id), self._clock.monotonic()
        try:
            if now - self._measured < SIZES_SECONDS:
                await pool.read("SELECT 1")
                return True
            ((size,),) = await pool.read(_SIZE)
            width = size / max(1, await _expected(pool, _ALL_ROWS))
            for row in rows:
                if row.shard == shard.id:
                    await self._measure(pool, row, width)
        except PartitaError:
            return False
        self._measured = now
        return True

    async def _measure(self, pool: Pool, row: _Row, width: float) -> None:
        keys = row.tid, row.lo, row.hi
        self._sizes[row.id] = round(await _expected(pool, _ROWS, *keys) * width)
        if self._sizes[row.id] > SPLIT_BYTES:
            ((middle,),) = await pool.read(_MIDDLE, *keys)
            if middle is not None and middle > row.lo:
                self._middles[row.id] = middle


async def _expected(pool: Pool, statement: str, *values: object) -> float:
    """Return how many rows the planner expects."""
    ((plan,),) = await pool.read(statement, *values)
    return float(json.loads(plan)[0]["Plan"]["Plan Rows"])


def _heats(rows: Sequence[_Row], live: Sequence[Any]) -> dict[int, RangeHeat]:
    """Return the heat of each range, by its number."""
    samples: dict[tuple[str, str], list[Sample]] = {}
    for row in live:
        for each in msgspec.msgpack.decode(row["heat"], type=list[LiveTable]):
            sample = Sample(str(row["front_end"]), row["at"], row["seconds"], unpack(each.axis))
            samples.setdefault((each.account, each.table.lower()), []).append(sample)
    heats: dict[int, RangeHeat] = {}
    for (account, table), ranges in groupby(rows, attrgetter("account", "table")):
        of_table = [*ranges]
        found = measure(samples.get((account, table.lower()), []), [each.lo for each in of_table])
        heats.update(zip((each.id for each in of_table), found, strict=True))
    return heats
