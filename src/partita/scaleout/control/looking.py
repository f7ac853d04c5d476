"""What the catalog says of shards, ranges and jobs, and how large the shards are."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import (
    ConfigurationError,
    ConflictError,
    PartitaError,
    ShardNotFoundError,
    TableNotFoundError,
)
from partita.refusals import not_found
from partita.scaleout.catalog.kinds import Kind, folded_name
from partita.scaleout.catalog.shards import Shard, connector_of, read_shards
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.pool import Pool
from partita.scaleout.control.jobs import Jobs
from partita.scaleout.control.states import JobKind, JobState, RangeState, ShardState

_NAMED = """
SELECT id, account_id, folded, name FROM partita.tables
UNION ALL
SELECT tid, account_id, name, name FROM partita.queue
"""
_RANGES = f"""
SELECT r.id, r.tid, r.kind::text AS kind, a.name AS account, t.name AS table, r.lo, r.hi, r.shard,
       r.epoch,
       (SELECT j.kind FROM partita.job j
         WHERE EXISTS (SELECT FROM jsonb_array_elements(j.facts->'ranges') e
                        WHERE e.value = to_jsonb(r.id)) ORDER BY j.id LIMIT 1) AS job
  FROM partita.range r JOIN ({_NAMED}) t ON t.id = r.tid
  JOIN partita.account a ON a.id = t.account_id
 WHERE r.state = 'o' AND ($1::bigint IS NULL OR r.tid = $1) AND ($2::int IS NULL OR r.id = $2)
 ORDER BY a.name, r.kind DESC, t.folded, r.lo
"""  # noqa: S608 - our own
_TABLES = """
SELECT t.id, a.name AS account FROM partita.tables t JOIN partita.account a ON a.id = t.account_id
 WHERE t.folded = $1 ORDER BY a.name
"""
_NAMES = f"""
SELECT t.id, t.name AS table, a.name AS account
  FROM ({_NAMED}) t JOIN partita.account a ON a.id = t.account_id WHERE t.id = ANY ($1)
"""  # noqa: S608 - our own
_COUNTS = "SELECT shard, count(*) AS ranges FROM partita.range WHERE state = 'o' GROUP BY shard"
_TIMES = "SELECT id, started_at, changed_at, coalesce(error, '') AS error FROM partita.job"
_SIZE = "SELECT pg_database_size(current_database()) AS bytes"


class OwnedRange(msgspec.Struct, frozen=True):
    """A range as the catalog lists it."""

    id: int
    tid: int
    kind: Kind
    account: str
    name: str
    lo: str
    hi: str | None
    shard: int
    epoch: int
    job: JobKind | None


class Looking:
    """Reads the catalog for one session of `Control`."""

    def __init__(self, home: Connector, catalog: Pool) -> None:
        self._home = home
        self._catalog = catalog
        self._connectors: dict[Shard, Connector] = {}
        """By what the catalog says of a shard: each first connection is checked most."""

    async def shards(self) -> list[Shard]:
        async with self._catalog.link() as link:
            return await read_shards(link)

    async def shard(self, name: str) -> Shard:
        """Return the shard with a name; raise if there is none."""
        known = await self.shards()
        for shard in known:
            if shard.name == name:
                return shard
        raise ShardNotFoundError(
            "ShardNotFound",
            "The fleet has no shard of this name.",
            facts={"shard": name, "shards": [shard.name for shard in known]},
            hint="`partita fleet status` lists them.",
        )

    async def those(self, shard_ids: Sequence[int]) -> list[Shard]:
        """Return shards by number, in that order; without those that do not exist any more."""
        known = {shard.id: shard for shard in await self.shards()}
        return [known[number] for number in shard_ids if number in known]

    def connector(self, shard: Shard) -> Connector:
        """Return what opens connections to a shard."""
        if (found := self._connectors.get(shard)) is None:
            found = self._connectors[shard] = connector_of(shard, self._home)
        return found

    async def owned(self, tid: int | None = None, range_id: int | None = None) -> list[OwnedRange]:
        rows = await self._catalog.read(_RANGES, tid, range_id)
        return [OwnedRange(row[0], row[1], Kind(row[2]), *row[3:]) for row in rows]

    async def range(self, range_id: int) -> OwnedRange:
        """Return a range; raise if there is none with this number."""
        found = await self.owned(range_id=range_id)
        if not found:
            raise ConflictError(
                "RangeNotFound",
                "The fleet has no range of this number.",
                facts={"range": range_id},
                hint="`partita fleet ranges` lists them; a split or a merge gives new numbers.",
            )
        return found[0]

    async def tables(self, table: str, account: str | None) -> list[int]:
        """Return the ids of the tables with a name, in one account or in all."""
        rows = await self._catalog.read(_TABLES, _storable(folded_name(table)))
        return [row["id"] for row in rows if account in (None, row["account"])]

    async def table(self, table: str, account: str | None) -> int:
        """Return the id of a table; without an account, only one may have the table."""
        rows = await self._catalog.read(_TABLES, _storable(folded_name(table)))
        found = [row for row in rows if account in (None, row["account"])]
        if not found:
            raise not_found(TableNotFoundError, {"table": table})
        if len(found) > 1:
            raise ConfigurationError(
                "TableAmbiguous",
                "Several accounts have a table of this name.",
                facts={"table": table, "accounts": [row["account"] for row in found]},
                hint="Name the account with account= (`--account`).",
            )
        return int(found[0]["id"])

    # What is reported

    async def range_states(self, table: str | None, account: str | None) -> list[RangeState]:
        names = {shard.id: shard.name for shard in await self.shards()}
        tids = None if table is None else set(await self.tables(table, account))
        return [
            RangeState(
                each.id,
                each.account,
                each.name if each.kind is Kind.TABLE else "",
                each.lo,
                each.hi,
                names.get(each.shard, str(each.shard)),
                each.epoch,
                each.job if each.job in ("split", "merge", "move") else "open",
                each.name if each.kind is Kind.QUEUE else "",
            )
            for each in await self.owned()
            if account in (None, each.account) and (tids is None or each.tid in tids)
        ]

    async def shard_states(self) -> list[ShardState]:
        shards = await self.shards()
        rows = await self._catalog.read(_COUNTS)
        ranges = {row["shard"]: row["ranges"] for row in rows}
        return await asyncio.gather(
            *(self._shard_state(shard, ranges.get(shard.id, 0)) for shard in shards)
        )

    async def _shard_state(self, shard: Shard, ranges: int) -> ShardState:
        connector = self.connector(shard)
        size, problem = None, ""
        try:
            link = await connector.connect()
            try:
                size = (await link.read(_SIZE))[0]["bytes"]
            finally:
                await link.close()
        except PartitaError as error:
            problem = f"{error.code}: {error.message}"
        return ShardState(
            shard.id,
            shard.name,
            str(connector.location),
            "open" if shard.is_open else "draining",
            ranges,
            not problem,
            size,
            problem,
        )

    async def job_states(self, jobs: Jobs) -> list[JobState]:
        found = await jobs.all()
        if not found:
            return []
        times = {row["id"]: row for row in await self._catalog.read(_TIMES)}
        tids = [job.facts["tid"] for job in found if "tid" in job.facts]
        names: Mapping[int, Any] = {
            row["id"]: row for row in await self._catalog.read(_NAMES, tids)
        }
        states = []
        for job in found:
            if (time := times.get(job.id)) is None:
                continue  # it was completed meanwhile
            name = names.get(job.facts.get("tid", 0), {"account": "", "table": ""})
            states.append(
                JobState(
                    *(job.id, job.kind, job.step, tuple(job.facts["ranges"]), tuple(job.shards)),
                    *(name["account"], name["table"], time["started_at"], time["changed_at"]),
                    *(await jobs.is_held(job), time["error"]),
                )
            )
        return states


def _storable(text: str) -> str:
    """Return a text that PostgreSQL accepts; one that it does not names no table."""
    return text.replace("\0", "\1").encode(errors="replace").decode()
