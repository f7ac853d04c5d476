"""The verbs of `partita shards` on moves: start, resume, cancel, list the jobs.

Rule: a move that is stopped, also by Ctrl-C, stays as a job that `resume` continues.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec
from sqlalchemy import RowMapping, func, select

from partita.cli.kit.commands import Given
from partita.cli.kit.progress import Bar
from partita.cli.kit.terminal import is_interactive
from partita.cli.kit.text import count_text
from partita.cli.shards.counting import Part, count_rows
from partita.cli.shards.facts import JobFacts, Jobs, MoveFacts, Moves
from partita.cli.shards.keys import parse_keys, range_of_key, range_text
from partita.cli.shards.mappings import refuse_locked
from partita.cli.shards.names import Names
from partita.cli.shards.opening import choose_map, choose_shard
from partita.errors import MappingNotFoundError, MoveRefusedError, RangeError
from partita.shards.catalog.global_catalog import jobs
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.mapping import Mapping, Shard
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap
from partita.shards.moving.move import MoveProgress, MoveReport, OnProgress
from partita.shards.moving.move_plan import UNFINISHED
from partita.ticks import moment


def move(manager: ShardMapManager, given: Given) -> Moves:
    shard_map = choose_map(manager, given.map)
    to = choose_shard(shard_map.shards(), given.to)
    chosen = [one for one in _chosen(shard_map, given.keys) if one.mapping.shard.id != to.id]
    _check_movable(shard_map, chosen)
    is_asked = not (given.yes or given.json or given.dry_run) and is_interactive()
    if given.dry_run or is_asked:
        planned = [_planned(manager, one, to) for one in chosen]
        if given.dry_run:
            return Moves(dry_run=True, moves=planned)
        _ask(planned, Names(manager.list_locations()).of(to.location.text))
    fleet, done = Fleet(manager), []
    for one in chosen:
        with _progress(given) as on_progress:
            report = fleet.move(
                _split_off(one),
                to=to,
                rate=given.rate,
                grace=given.grace,
                terminate_blockers=given.terminate_blockers,
                on_progress=on_progress,
            )
        done.append(_move_facts(report))
    return Moves(dry_run=False, moves=done)


def resume(manager: ShardMapManager, given: Given) -> Moves:
    with _progress(given) as on_progress:
        reports = Fleet(manager).resume(
            on_progress=on_progress, terminate_blockers=given.terminate_blockers
        )
    return Moves(dry_run=False, moves=[_move_facts(one) for one in reports])


def cancel(manager: ShardMapManager, given: Given) -> Moves:
    return Moves(dry_run=False, moves=[_move_facts(Fleet(manager).cancel(given.job))])


def list_jobs(manager: ShardMapManager, given: Given) -> Jobs:
    query = select(jobs).order_by(jobs.c.made_at)
    if not given.all:
        query = query.where(jobs.c.state.in_(UNFINISHED))
    maps = {one.id: one for one in manager.list_maps()}
    with manager.executor.engine.connect() as connection:
        rows = connection.execute(query).mappings().all()
    return Jobs([_job_facts(row, maps.get(row["map_id"])) for row in rows])


def count_unfinished(manager: ShardMapManager) -> int:
    """Count the jobs that are stopped or running."""
    query = select(func.count()).select_from(jobs).where(jobs.c.state.in_(UNFINISHED))
    with manager.executor.engine.connect() as connection:
        return connection.scalar(query) or 0


# What is to be moved


def _chosen(shard_map: AnyShardMap, text: str) -> list[Part]:
    asked = parse_keys(text, shard_map)
    if not isinstance(asked, Range):
        mapping = shard_map.get(asked, lookup="store")
        keys = mapping.key_range
        if isinstance(shard_map, RangeShardMap):
            wanted = shard_map.encode_range(range_of_key(asked, shard_map))
            keys = keys.intersection(wanted) or keys
        return [Part(shard_map, mapping, keys, asked)]
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
                f"Only a part of the mapping {range_text(one.range)} is in {range_text(asked)}.",
                facts={"map": shard_map.name},
                hint=f"Split it first: partita shards split --at {_cut(shard_map, one, wanted)}.",
            )
    return [Part(shard_map, one, one.key_range) for one in found]


def _cut(shard_map: AnyShardMap, mapping: Mapping, wanted: KeyRange) -> str:
    both = mapping.key_range.intersection(wanted)
    assert both is not None
    inside = shard_map.decode_range(both)
    at = inside.low if both.low != mapping.key_range.low else inside.high
    return range_text(Range(at, None)).removesuffix(":")


def _check_movable(shard_map: AnyShardMap, chosen: list[Part]) -> None:
    schema = shard_map.schema
    if schema is None or not schema.sharded_tables():
        raise MoveRefusedError(
            "MoveRefused",
            "The map does not know which tables are sharded.",
            facts={"map": shard_map.name},
            hint="Store it with `partita shards set-schema`.",
        )
    for one in chosen:
        refuse_locked(one.mapping)


def _split_off(part: Part) -> Mapping:
    """Return a mapping of exactly the part; split the mapping that holds more."""
    found = part.mapping
    if not isinstance(part.shard_map, RangeShardMap):
        return found
    inside = part.shard_map.decode_range(part.keys)
    if found.key_range.low != part.keys.low:
        _, found = part.shard_map.split(found, at=inside.low)
    if found.key_range.high != part.keys.high:
        found, _ = part.shard_map.split(found, at=inside.high)
    return found


def _ask(planned: list[MoveFacts], to: str) -> None:
    """Ask before more than one key is moved; a refusal ends the command."""
    keys, rows = sum(one.keys or 0 for one in planned), sum(one.rows for one in planned)
    if keys <= 1:
        return
    moved = f"{count_text(keys, 'key')} with {count_text(rows, 'row')}"
    if not click.confirm(f"Move {moved} to {to}?", err=True):
        raise click.Abort


# Results


def _planned(manager: ShardMapManager, part: Part, to: Shard) -> MoveFacts:
    keys, rows = count_rows(manager, part)
    return MoveFacts(
        map=part.mapping.map_name,
        range=range_text(part.shard_map.decode_range(part.keys)),
        source=part.mapping.shard.location.text,
        target=to.location.text,
        state="planned",
        step="plan",
        keys=keys,
        rows=rows,
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
    """The parts of a stored plan that say what a job is about."""

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
def _progress(given: Given) -> Iterator[OnProgress | None]:
    """Draw the steps of a move, and name the sessions that it waits for, once each."""
    if given.json or given.quiet:
        yield None
        return
    named: set[int] = set()
    with Bar("move") as bar:

        def show(progress: MoveProgress) -> None:
            for each in progress.blockers:
                if each.pid not in named:
                    named.add(each.pid)
                    bar.tell(f"waiting for {progress.table}, held by {each}")
            total = max(progress.rows_total, progress.rows) or None
            title = f"{progress.step} ({progress.number} of 10)"
            bar.step(title, progress.rows, total, "rows")

        yield show
