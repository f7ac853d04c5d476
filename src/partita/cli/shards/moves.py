"""The verbs of `partita shards` on moves: begin, go on, take back, list the jobs.

Rule: a move that is stopped, by Ctrl-C too, stays as a job that `resume` goes on with.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
from sqlalchemy import RowMapping, func, select
from tqdm import tqdm

from partita.cli.shards.facts import JobFacts, Jobs, MoveFacts, Moves
from partita.cli.shards.keys import parse_keys, range_text
from partita.cli.shards.opening import choose_map, choose_shard
from partita.cli.state.facts import moment
from partita.errors import MappingLockedError, MappingNotFoundError, MoveRefusedError, RangeError
from partita.shards.catalog.global_catalog import jobs
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.mapping import Mapping, Shard
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from partita.shards.moving.move import MoveProgress, MoveReport, OnProgress
from partita.shards.moving.move_plan import UNFINISHED


def move(manager: ShardMapManager, given: argparse.Namespace) -> Moves:
    shard_map = choose_map(manager, given.map)
    to = choose_shard(shard_map.shards(), given.to)
    asked = parse_keys(given.keys, shard_map)
    chosen = [one for one in _chosen(shard_map, asked) if one.shard.id != to.id]
    if given.dry_run:
        _check_movable(shard_map, chosen)
        return Moves(dry_run=True, moves=[_planned(one, to) for one in chosen])
    fleet = Fleet(manager)
    done = []
    for one in chosen:
        with _progress(given) as on_progress:
            report = fleet.move(
                one,
                to=to,
                rate=given.rate,
                grace=given.grace,
                terminate_blockers=given.terminate_blockers,
                on_progress=on_progress,
            )
        done.append(_move_facts(report))
    return Moves(dry_run=False, moves=done)


def resume(manager: ShardMapManager, given: argparse.Namespace) -> Moves:
    with _progress(given) as on_progress:
        reports = Fleet(manager).resume(
            on_progress=on_progress, terminate_blockers=given.terminate_blockers
        )
    return Moves(dry_run=False, moves=[_move_facts(one) for one in reports])


def cancel(manager: ShardMapManager, given: argparse.Namespace) -> Moves:
    return Moves(dry_run=False, moves=[_move_facts(Fleet(manager).cancel(given.job))])


def list_jobs(manager: ShardMapManager, given: argparse.Namespace) -> Jobs:
    query = select(jobs).order_by(jobs.c.made_at)
    if not given.all:
        query = query.where(jobs.c.state.in_(UNFINISHED))
    maps = {one.id: one for one in manager.list_maps()}
    with manager.executor.engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    return Jobs([_job_facts(row, maps.get(row["map_id"])) for row in rows])


def count_unfinished(manager: ShardMapManager) -> int:
    """Count the jobs that wait for somebody to go on with them, or are at work now."""
    query = select(func.count()).select_from(jobs).where(jobs.c.state.in_(UNFINISHED))
    with manager.executor.engine.connect() as connection:
        return connection.scalar(query) or 0


# What is to be moved


def _chosen(shard_map: AnyShardMap, asked: Any) -> list[Mapping]:
    if not isinstance(asked, Range):
        return [shard_map.get(asked, lookup="store")]
    wanted = shard_map.encode_range(asked)
    found = shard_map.mappings(asked)
    if not found:
        raise MappingNotFoundError(
            "MappingNotFound",
            f"No mapping holds keys of {range_text(asked)}.",
            facts={"map": shard_map.name},
            hint="`partita shards mappings` lists what is mapped.",
        )
    for one in found:
        if not wanted.covers(one.key_range):
            raise RangeError(
                "RangeCutsMapping",
                f"Only a part of the mapping {range_text(one.range)} lies in {range_text(asked)}.",
                facts={"map": shard_map.name},
                hint=f"Split it first: partita shards split --at {_cut(shard_map, one, wanted)}.",
            )
    return found


def _cut(shard_map: AnyShardMap, mapping: Mapping, wanted: KeyRange) -> str:
    both = mapping.key_range.intersection(wanted)
    assert both is not None
    inside = shard_map.decode_range(both)
    at = inside.low if both.low != mapping.key_range.low else inside.high
    return range_text(Range(at, None)).removesuffix(":")


def _check_movable(shard_map: AnyShardMap, chosen: list[Mapping]) -> None:
    schema = shard_map.schema
    if schema is None or not schema.sharded_tables():
        raise MoveRefusedError(
            "MoveRefused",
            "The map does not know which tables are sharded.",
            facts={"map": shard_map.name},
            hint="Store it with set_schema(), or make the map with --sharded.",
        )
    for one in chosen:
        if one.lock_owner is not None:
            raise MappingLockedError(
                "MappingLocked",
                f"Another token holds the lock of the mapping {range_text(one.range)}.",
                facts={"map": shard_map.name},
                hint="A move is at work on it, perhaps: `partita shards jobs`.",
            )


# Telling


def _planned(mapping: Mapping, to: Shard) -> MoveFacts:
    return MoveFacts(
        map=mapping.map_name,
        range=range_text(mapping.range),
        source=mapping.shard.location.text,
        target=to.location.text,
        state="planned",
        step="plan",
    )


def _move_facts(report: MoveReport) -> MoveFacts:
    return MoveFacts(
        map=report.map_name,
        range=range_text(report.range),
        source=report.source.text,
        target=report.target.text,
        state=report.state,
        step=report.step,
        job=report.job_id,
        rows=report.rows,
        seconds=round(report.seconds, 3),
        fence_seconds=round(report.fence_seconds, 3),
        terminated=report.terminated,
        error=report.error,
    )


class _Plan(msgspec.Struct, frozen=True):
    """What plans of several kinds of jobs may say about their subject."""

    subject: str = ""
    source: str = ""
    target: str = ""
    low: bytes = b""
    high: bytes | None = None


class _Progress(msgspec.Struct, frozen=True):
    rows: int = 0
    rows_total: int = 0
    error: str = ""


def _job_facts(row: RowMapping, shard_map: AnyShardMap | None) -> JobFacts:
    plan = msgspec.json.decode(row["plan"], type=_Plan)
    progress = msgspec.json.decode(row["progress"], type=_Progress)
    subject = plan.subject
    if not subject and shard_map is not None:
        keys = shard_map.decode_range(KeyRange(plan.low, plan.high))
        subject = f"{range_text(keys)} from {plan.source} to {plan.target}"
    return JobFacts(
        id=row["id"],
        map=row["map_id"] if shard_map is None else shard_map.name,
        kind=row["kind"],
        state=row["state"],
        step=row["step"],
        subject=subject,
        rows=progress.rows,
        rows_total=progress.rows_total,
        made_at=moment(row["made_at"]),
        changed_at=moment(row["changed_at"]),
        error=progress.error,
    )


@contextmanager
def _progress(given: argparse.Namespace) -> Iterator[OnProgress | None]:
    """Draw a bar for people, if standard error is a terminal; say in any case who is waited for."""
    if given.json or given.quiet:
        yield None
        return
    told: set[int] = set()

    def name_blockers(progress: MoveProgress) -> None:
        for each in progress.blockers:
            if each.pid not in told:
                told.add(each.pid)
                tqdm.write(f"waiting for {progress.table}, held by {each}", file=sys.stderr)

    if not sys.stderr.isatty():
        yield name_blockers
        return
    bar: tqdm[NoReturn]
    with tqdm(unit=" rows", unit_scale=True, leave=False, file=sys.stderr) as bar:

        def show(progress: MoveProgress) -> None:
            name_blockers(progress)
            bar.total = max(progress.rows_total, progress.rows) or None
            title = f"{progress.step} ({progress.number} of 10)"
            # A new step is drawn at once: a short move would end before the bar's next turn.
            bar.set_description(title, refresh=bar.desc != f"{title}: ")
            # A new job of `resume` begins at its own place.
            bar.update(progress.rows - bar.n)

        yield show
