"""Compare the catalog with what the shards serve: to verify a fleet, and after a restore.

Nothing here runs beside a job: `reconcile` keeps new ones away and waits for none. Entities outside
the ranges of their shard are deleted only for ranges that another shard serves.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import OperationPendingError, PartitaError, UnavailableError
from partita.scaleout.catalog.kinds import Kind
from partita.scaleout.catalog.shards import Shard
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.pool import Pool
from partita.scaleout.control.claims import RangeClaim, Resolution, resolve
from partita.scaleout.control.exclusive import Exclusive
from partita.scaleout.control.jobs import Jobs, open_session
from partita.scaleout.control.looking import Looking
from partita.scaleout.control.range_copy import erase, fetched
from partita.scaleout.control.row_kinds import ROW_KINDS
from partita.scaleout.control.states import Reconciliation, Verification
from partita.scaleout.schema.locks import CONTROL_JOB, JOB_LOCKS

ATTEMPTS_MAX = 3
ATTEMPT_PAUSE_SECONDS = 0.1
"""A busy shard may refuse a session: it is away only if it refuses again."""
LOOKS_MAX = 5
"""How often a fleet is looked at until its map does not change meanwhile."""

_LISTED = "SELECT id, tid, lo, hi, shard, epoch FROM partita.range WHERE state = 'o'"
_OBJECTS = """
SELECT id, 't' AS kind FROM partita.tables UNION ALL SELECT tid, 'q' FROM partita.queue
"""
_SERVED = """
SELECT id, tid, kind::text AS kind, lo, hi, epoch, state::text AS state FROM partita.range_own
"""
_COUNTED = """
SELECT r.id, r.tid, r.kind::text AS kind, r.lo, r.hi, r.epoch, r.state::text AS state,
       CASE r.kind WHEN 'q' THEN (
         SELECT count(*) FROM partita.message m WHERE m.queue_id = r.tid)
       ELSE (
         SELECT count(*) FROM partita.entity e
          WHERE e.tid = r.tid AND e.pk >= r.lo AND (r.hi IS NULL OR e.pk < r.hi))
       END AS rows
  FROM partita.range_own r
"""
_STRAY = """
SELECT count(*) || ' entities of table ' || e.tid AS what FROM partita.entity e
 WHERE NOT EXISTS (SELECT FROM partita.dropped_table d WHERE d.tid = e.tid)
   AND NOT EXISTS (SELECT FROM partita.range_own r
                    WHERE r.tid = e.tid AND e.pk >= r.lo AND (r.hi IS NULL OR e.pk < r.hi))
 GROUP BY e.tid
UNION ALL
SELECT count(*) || ' messages of queue ' || m.queue_id FROM partita.message m
 WHERE NOT EXISTS (SELECT FROM partita.dropped_queue d WHERE d.id = m.queue_id)
   AND NOT EXISTS (SELECT FROM partita.range_own r WHERE r.tid = m.queue_id)
 GROUP BY m.queue_id
"""
_SORTS = {Kind.TABLE: "table", Kind.QUEUE: "queue"}
"""What a problem calls it."""
_LOCK = f"SELECT pg_try_advisory_lock({JOB_LOCKS}, {CONTROL_JOB}) AS is_taken"
_SET_OWN = 'SELECT partita.set_own_2($1, $2::text::"char", $3, $4, $5, $6)'
_SET_RANGES = "SELECT partita.set_ranges_1($1, $2, $3, $4, $5, $6)"
_SKIP = "SELECT partita.pass_numbers_1($1, $2)"


Object = tuple[int, Kind]
"""The number of a table or queue."""


class _Served(msgspec.Struct, frozen=True):
    claim: RangeClaim
    tid: int
    kind: Kind
    state: str
    rows: int = 0
    """Entities or messages."""


class Reconciling:
    """Verifies and reconciles for one session of `Control`."""

    def __init__(self, home: Connector, catalog: Pool, looking: Looking, jobs: Jobs) -> None:
        self._home = home
        self._catalog = catalog
        self._looking = looking
        self._jobs = jobs

    async def verify(self) -> Verification:
        """Compare every range, and count all entities."""
        for _ in range(LOOKS_MAX):
            before = await self._listed()
            jobs = await self._jobs.all()
            busy = {number for job in jobs for number in job.facts["ranges"]}
            busy |= {number for job in jobs for number in job.facts.get("new", ())}
            shards = await self._looking.shards()
            found = await asyncio.gather(*(self._look(shard, _COUNTED) for shard in shards))
            strays = await asyncio.gather(*(self._strays(shard) for shard in shards))
            if await self._listed() == before and not await self._has_changed(jobs):
                return _verification(before, dict(zip(shards, found, strict=True)), busy, strays)
        raise _changing()

    async def reconcile(self, name: str | None) -> Reconciliation:
        """Let the latest epochs win; `name` limits to what one shard has or should have."""
        guard = await open_session(self._home)
        try:
            if not (await guard.read(_LOCK))[0]["is_taken"] or await self._jobs.all():
                raise _changing()
            return await self._reconcile(name)
        finally:
            await guard.close()

    async def _reconcile(self, name: str | None) -> Reconciliation:
        listed = await self._listed()
        shards = await self._looking.shards()
        found = await asyncio.gather(*(self._look(shard, _SERVED) for shard in shards))
        away = [shard.id for shard, rows in zip(shards, found, strict=True) if rows is None]
        served: dict[int, list[RangeClaim]] = defaultdict(list)
        for each in (row for rows in found if rows is not None for row in rows):
            if each.state == "o":
                served[each.tid].append(each.claim)
        every = [claim for claims in served.values() for claim in claims]
        if every:
            last = max(claim.id for claim in every), max(claim.epoch for claim in every)
            await self._catalog.write(_SKIP, *last)
        kinds = {row["id"]: Kind(row["kind"]) for row in await self._catalog.read(_OBJECTS)}
        only = None if name is None else (await self._looking.shard(name)).id
        changes: list[str] = []
        problems: list[str] = []
        for tid, kind in sorted(kinds.items()):
            claims = [*listed.get(tid, ()), *served.get(tid, ())]
            if only is not None and only not in {claim.shard for claim in claims}:
                continue
            resolution = resolve(listed.get(tid, ()), served.get(tid, ()), away)
            if resolution.contested:
                problems.append(f"the ranges of {_SORTS[kind]} {tid} do not fit together")
                continue
            problems += [
                f"range {claim.id} of {_SORTS[kind]} {tid} [{claim.lo!r}, {claim.hi!r}) is missing"
                f" on shard {claim.shard}"
                for claim in resolution.missing
            ]
            object_ = tid, kind
            changes += await self._apply(
                object_, resolution, listed.get(tid, []), served.get(tid, []), away
            )
        problems += [
            f"{len(claims)} ranges of number {tid}, which the catalog does not list"
            for tid, claims in served.items()
            if tid not in kinds
        ]
        return Reconciliation(tuple(changes), tuple(problems))

    async def _apply(
        self,
        object_: Object,
        resolution: Resolution,
        listed: Sequence[RangeClaim],
        served: Sequence[RangeClaim],
        away: Sequence[int],
    ) -> list[str]:
        """Take ranges from shards that lost them, then tell the catalog, then the owners."""
        changes: list[str] = []
        tid, kind = object_
        named = f"{_SORTS[kind]} {tid}"
        by_id = {shard.id: shard for shard in await self._looking.shards()}
        present = [claim for claim in resolution.ranges if claim not in resolution.missing]
        wanted = {
            number: [claim for claim in present if claim.shard == number]
            for number in by_id
            if number not in away
        }
        links: dict[int, Link] = {}
        try:
            for number, claims in wanted.items():
                mine = sorted(claim for claim in served if claim.shard == number)
                if mine == claims:
                    continue
                links[number] = await open_session(self._looking.connector(by_id[number]))
                # First what it keeps as it is: no two shards serve a key.
                kept = [each for each in mine if each in claims]
                await self._serve(links[number], object_, kept, served)
            if sorted(listed) != sorted(resolution.ranges):
                values = _columns(resolution.ranges)
                shards = [claim.shard for claim in resolution.ranges]
                await self._catalog.write(_SET_RANGES, tid, *values, shards)
                changes.append(f"the catalog lists other ranges of {named}")
            for number, link in links.items():
                await self._serve(link, object_, wanted[number], served)
                for lo, hi in _left_out(number, served, resolution, away):
                    await erase(link, ROW_KINDS[kind], (tid, lo, hi), lambda _: None)
                changes.append(f"{by_id[number].name} serves other ranges of {named}")
        finally:
            for link in links.values():
                await link.close()
        return changes

    async def _serve(
        self,
        link: Link,
        object_: Object,
        claims: Sequence[RangeClaim],
        served: Sequence[RangeClaim],
    ) -> None:
        locked = [claim.id for claim in (*claims, *served)]
        await Exclusive(link).run(locked, _SET_OWN, *object_, *_columns(claims))

    # Looking

    async def _listed(self) -> Mapping[int, list[RangeClaim]]:
        found: dict[int, list[RangeClaim]] = defaultdict(list)
        for row in await self._catalog.read(_LISTED):
            found[row["tid"]].append(
                RangeClaim(row["lo"], row["hi"], row["epoch"], row["id"], row["shard"])
            )
        return found

    async def _has_changed(self, jobs: Sequence[Any]) -> bool:
        now = await self._jobs.all()
        return [(job.id, job.step) for job in now] != [(job.id, job.step) for job in jobs]

    async def _look(self, shard: Shard, statement: str) -> list[_Served] | None:
        """Return what a shard serves; None if it does not answer."""
        rows = await self._fetch(shard, statement)
        if rows is None:
            return None
        return [
            _Served(
                RangeClaim(row["lo"], row["hi"], row["epoch"], row["id"], shard.id),
                row["tid"],
                Kind(row["kind"]),
                row["state"],
                row.get("rows", 0),
            )
            for row in rows
        ]

    async def _strays(self, shard: Shard) -> list[str]:
        return [
            f"{shard.name} has {row['what']} outside its ranges"
            for row in await self._fetch(shard, _STRAY) or ()
        ]

    async def _fetch(self, shard: Shard, statement: str) -> Any:
        for _ in range(ATTEMPTS_MAX):
            try:
                link = await open_session(self._looking.connector(shard))
            except UnavailableError:
                await asyncio.sleep(ATTEMPT_PAUSE_SECONDS)
                continue
            try:
                return await fetched(link, statement)
            finally:
                await link.close()
        return None


def _verification(
    listed: Mapping[int, list[RangeClaim]],
    found: Mapping[Shard, list[_Served] | None],
    busy: set[int],
    strays: Sequence[Sequence[str]],
) -> Verification:
    problems = [f"{shard.name} does not answer" for shard, rows in found.items() if rows is None]
    away = {shard.id for shard, rows in found.items() if rows is None}
    names = {shard.id: shard.name for shard in found}
    rows = [each for some in found.values() if some is not None for each in some]
    served = {(each.claim, each.tid) for each in rows if each.state == "o"}
    expected = {(claim, tid) for tid, claims in listed.items() for claim in claims}
    kept = [each for each in rows if (each.claim, each.tid) in expected]
    kinds = {each.tid: each.kind for each in rows}
    sorts = defaultdict(lambda: "number", {tid: _SORTS[kind] for tid, kind in kinds.items()})
    problems += [
        f"{names.get(claim.shard)} does not serve range {claim.id} of {sorts[tid]} {tid}"
        for claim, tid in sorted(expected - served)
        if claim.id not in busy and claim.shard not in away
    ]
    problems += [
        f"{names.get(each.claim.shard)} has range {each.claim.id} of {sorts[each.tid]}"
        f" {each.tid} (state {each.state}), which is not listed there"
        for each in rows
        if (each.claim, each.tid) not in expected and each.claim.id not in busy
    ]
    if not busy:
        problems += [text for some in strays for text in some]
    return Verification(
        sum(len(claims) for claims in listed.values()),
        sum(each.rows for each in kept if each.kind is Kind.TABLE),
        sum(each.rows for each in kept if each.kind is Kind.QUEUE),
        tuple(problems),
    )


def _columns(
    claims: Sequence[RangeClaim],
) -> tuple[list[int], list[str], list[str | None], list[int]]:
    return (
        [claim.id for claim in claims],
        [claim.lo for claim in claims],
        [claim.hi for claim in claims],
        [claim.epoch for claim in claims],
    )


def _left_out(
    shard: int, served: Sequence[RangeClaim], resolution: Resolution, away: Sequence[int]
) -> list[tuple[str, str | None]]:
    """Return the intervals that a shard served and that another one is seen to serve now."""
    claims = [*served, *resolution.ranges]
    bounds = sorted(
        {claim.lo for claim in claims} | {claim.hi for claim in claims if claim.hi is not None}
    )
    left: list[tuple[str, str | None]] = []
    for lo, hi in zip(bounds, [*bounds[1:], None], strict=True):
        piece = RangeClaim(lo, hi, 0, 0, shard)
        (owner,) = (claim for claim in resolution.ranges if claim.overlaps(piece))
        is_safe = owner.shard not in (shard, *away) and owner not in resolution.missing
        if is_safe and any(claim.shard == shard and claim.overlaps(piece) for claim in served):
            left.append((lo, hi))
    return left


def _changing() -> PartitaError:
    return OperationPendingError(
        "RangeBusy",
        "Ranges are being changed.",
        hint="Wait until the jobs are complete; `partita fleet status` shows them.",
    )
