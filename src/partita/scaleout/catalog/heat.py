"""The heat of accounts on PostgreSQL: what each front end stores, merged when it is read."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import ConfigurationError
from partita.heat.axes import COUNTERS, merge, total
from partita.heat.kept import Column, Retention, TableTotal, chosen, ten_of, with_open
from partita.heat.limits import LIVE_KEPT_SECONDS, MINUTE_SECONDS, TEN_SECONDS
from partita.heat.minutes import Axes, TableAxis, merged
from partita.heat.packing import pack, unpack
from partita.scaleout.connections.link import Link
from partita.scaleout.connections.pool import Pool
from partita.scaleout.schema.locks import HEAT_JOB, JOB_LOCKS

SETTLE_SECONDS = 60
"""How long after ten minutes their axis is made: all front ends have stored their minutes then."""

_EVERYONE = uuid.UUID(int=0)
_ACCOUNT = "SELECT id FROM partita.account WHERE name = $1"
_SUMS = ", ".join(COUNTERS)
_ARRAYS = ", ".join(f"${place}::bigint[]" for place in range(7, 7 + len(COUNTERS)))

_WRITE_LIVE = """
WITH gone AS (
  DELETE FROM partita.heat_live WHERE (front_end, at) IN (
    SELECT front_end, at FROM partita.heat_live WHERE at < $2 - $5::bigint
     ORDER BY front_end, at FOR UPDATE SKIP LOCKED))
INSERT INTO partita.heat_live VALUES ($1, $2, $3, $4)
ON CONFLICT (front_end, at) DO NOTHING
"""
_READ_LIVE = "SELECT front_end, at, heat FROM partita.heat_live WHERE at > $1 AND at <= $2"
_KNOWN = """
SELECT folded, axis FROM partita.heat
 WHERE account_id = $1 AND folded = ANY ($2) AND seconds = $3 AND start = $4 AND front_end = $5
"""
_PUT = f"""
INSERT INTO partita.heat
  (account_id, seconds, start, front_end, folded, name, {_SUMS}, axis)
SELECT $1, $2, $3, $4, q.* FROM unnest(
  $5::text[], $6::text[], {_ARRAYS}, ${7 + len(COUNTERS)}::bytea[]) q
ON CONFLICT (account_id, folded, seconds, start, front_end) DO UPDATE SET name = excluded.name,
  {", ".join(f"{counter} = excluded.{counter}" for counter in COUNTERS)}, axis = excluded.axis
"""  # noqa: S608 - the names of counters
_LOCK = f"SELECT pg_catalog.pg_try_advisory_xact_lock({JOB_LOCKS}, {HEAT_JOB}) AS is_mine"
_OPEN_AGAIN = "DELETE FROM partita.heat WHERE account_id = $1 AND seconds = $2 AND start = $3"
_UNSETTLED = f"""
SELECT DISTINCT account_id, folded, start - start % {TEN_SECONDS} AS ten FROM partita.heat m
 WHERE seconds = {MINUTE_SECONDS} AND start < $1 AND NOT EXISTS (
   SELECT FROM partita.heat t WHERE t.account_id = m.account_id AND t.folded = m.folded
      AND t.seconds = {TEN_SECONDS} AND t.start = m.start - m.start % {TEN_SECONDS})
"""  # noqa: S608 - only numbers
_MINUTES = f"""
SELECT name, axis FROM partita.heat
 WHERE account_id = $1 AND folded = $2 AND seconds = {MINUTE_SECONDS}
   AND start >= $3 AND start < $3 + {TEN_SECONDS} ORDER BY start
"""  # noqa: S608 - only numbers
_FORGET = "DELETE FROM partita.heat WHERE seconds = $1 AND (start < $2 OR start > $3)"
_READ = """
SELECT start, seconds, front_end, axis FROM partita.heat
 WHERE account_id = $1 AND folded = $2 AND start + seconds > $3 AND start < $4
"""
_TABLES = f"""
SELECT max(name) AS name, {", ".join(f"sum({each})::bigint AS {each}" for each in COUNTERS)}
  FROM partita.heat f
 WHERE account_id = $1 AND start + seconds > $2 AND start < $3 AND (seconds = {MINUTE_SECONDS}
   OR NOT EXISTS (
     SELECT FROM partita.heat m WHERE m.account_id = $1 AND m.folded = f.folded
        AND m.seconds = {MINUTE_SECONDS} AND m.start >= f.start
        AND m.start < f.start + {TEN_SECONDS}))
 GROUP BY folded
"""  # noqa: S608 - the names of counters


class LiveTable(msgspec.Struct, frozen=True, array_like=True):
    """The load of one table in a row of `heat_live`, which is a MessagePack array of them."""

    account: str
    table: str
    axis: bytes


class FleetHeat:
    """What the heat of all accounts shares: the connections, and the load of the last seconds."""

    def __init__(self, pool: Pool, front_end: uuid.UUID) -> None:
        self.pool = pool
        self.front_end = front_end

    async def of_account(self, account: str) -> "PostgresHeat":
        """Return the heat of an account that front ends have used."""
        rows = await self.pool.read(_ACCOUNT, account)
        if not rows:
            raise ConfigurationError(
                "AccountNotFound",
                f"The database has no account {account}.",
                hint="Give the name of an account that a server has used.",
            )
        return PostgresHeat(self, account, rows[0]["id"])

    async def write(self, axes: Mapping[str, Axes], seconds: float, now: int) -> None:
        packed = await asyncio.to_thread(_packed, axes)
        await self.pool.write(_WRITE_LIVE, self.front_end, now, seconds, packed, LIVE_KEPT_SECONDS)

    async def read_live(self, since: int, to: int) -> list[tuple[uuid.UUID, int, list[LiveTable]]]:
        """Return the front end, the minute and the tables of what was stored in a time."""
        return [
            (
                row["front_end"],
                (row["at"] - 1) // MINUTE_SECONDS * MINUTE_SECONDS,
                msgspec.msgpack.decode(row["heat"], type=list[LiveTable]),
            )
            for row in await self.pool.read(_READ_LIVE, since, to)
        ]


class PostgresHeat:
    """The axes of one account."""

    is_shared = True

    def __init__(self, fleet: FleetHeat, account: str, account_id: int) -> None:
        self._fleet = fleet
        self._pool = fleet.pool
        self._account = account
        self._account_id = account_id
        self._retention = Retention()

    async def add(self, start: int, axes: Axes, now: int) -> None:
        known = await self._pool.read(
            _KNOWN, self._account_id, [*axes], MINUTE_SECONDS, start, self._fleet.front_end
        )
        arrays = await asyncio.to_thread(_arrays, axes, known)
        values = [self._account_id, MINUTE_SECONDS, start, self._fleet.front_end, *arrays]
        await self._pool.write(_PUT, *values)
        async with self._pool.link() as link, link.transaction():
            (lock,) = await link.read(_LOCK)
            if lock["is_mine"]:
                await link.read(_OPEN_AGAIN, self._account_id, TEN_SECONDS, ten_of(start))
                await self._settle(link, ten_of(now - SETTLE_SECONDS))
                for seconds in (MINUTE_SECONDS, TEN_SECONDS):
                    await link.read(_FORGET, seconds, *self._retention.bounds(seconds, now))

    async def _settle(self, link: Link, end: int) -> None:
        """Add the axes of ten minutes that are over, of all accounts."""
        for row in await link.read(_UNSETTLED, end):
            account_id, folded, ten = row["account_id"], row["folded"], row["ten"]
            minutes = await link.read(_MINUTES, account_id, folded, ten)
            axis = await asyncio.to_thread(
                lambda found: merge(unpack(each["axis"]) for each in found), minutes
            )
            arrays = _arrays({folded: TableAxis(minutes[-1]["name"], axis)})
            await link.read(_PUT, account_id, TEN_SECONDS, ten, _EVERYONE, *arrays)

    async def read(self, folded: str, since: int, to: int) -> list[Column]:
        rows = await self._pool.read(_READ, self._account_id, folded, since, to)
        stored = {(row["front_end"], row["start"]) for row in rows}
        columns = await asyncio.to_thread(
            lambda: [Column(row["start"], row["seconds"], unpack(row["axis"])) for row in rows]
        )
        for front_end, minute, tables in await self._fleet.read_live(since, to):
            columns += [
                Column(minute, MINUTE_SECONDS, unpack(table.axis), is_open=True)
                for table in tables
                if table.account == self._account
                and table.table.lower() == folded
                and (front_end, minute) not in stored
            ]
        return await asyncio.to_thread(chosen, columns)

    async def tables(self, since: int, to: int) -> list[TableTotal]:
        rows = await self._pool.read(_TABLES, self._account_id, since, to)
        found = [TableTotal(row["name"], tuple(row[each] for each in COUNTERS)) for row in rows]
        newest = max((await self._newest()), since)
        opened = [
            {table.table.lower(): TableAxis(table.table, unpack(table.axis))}
            for _front_end, minute, tables in await self._fleet.read_live(since, to)
            for table in tables
            if table.account == self._account and minute > newest
        ]
        return with_open(found, merged(opened))

    async def _newest(self) -> int:
        """Return the start of the last minute that a front end has stored."""
        rows: Sequence[Any] = await self._pool.read(
            "SELECT max(start) AS newest FROM partita.heat WHERE seconds = $1", MINUTE_SECONDS
        )
        return rows[0]["newest"] or 0

    async def close(self) -> None:
        """Do nothing: the fleet closes its connections."""


def _packed(axes: Mapping[str, Axes]) -> bytes:
    return msgspec.msgpack.encode(
        [
            LiveTable(account, table.name, pack(table.axis))
            for account, found in axes.items()
            for table in found.values()
        ]
    )


def _arrays(axes: Axes, known: Sequence[Any] = ()) -> list[list[Any]]:
    """Return the values of rows as one array per column, with the load of `known` rows."""
    if known:
        before = {
            row["folded"]: TableAxis(axes[row["folded"]].name, unpack(row["axis"])) for row in known
        }
        axes = merged([before, axes])
    rows = [
        (folded, table.name, *total(table.axis), pack(table.axis)) for folded, table in axes.items()
    ]
    return [list(column) for column in zip(*rows, strict=True)]
