"""The facts of `partita shards` as aligned text for people."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from partita.cli.shards.facts import (
    Changed,
    Drift,
    Facts,
    Found,
    Initialized,
    Jobs,
    Mappings,
    Maps,
    MoveFacts,
    Moves,
    Recovered,
    Rows,
    Shards,
    Status,
    StatusFacts,
    Upgraded,
)
from partita.cli.state.facts import size_text


def as_text(facts: Facts) -> str:
    """Write the facts for people."""
    return "\n".join(_WRITERS[type(facts)](facts))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Align rows under their headings; nothing is shown as `-`."""
    cells = [tuple(headings), *(tuple(_cell(one) for one in row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(headings))]
    for row in cells:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "-" if value is None or value == "" else str(value)
    return text.replace("\n", " ")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _initialized_lines(facts: Initialized) -> Iterator[str]:
    made = "is a catalog now" if facts.is_new else "was a catalog already"
    yield f"{facts.catalog} {made}."


def _map_lines(facts: Maps) -> Iterator[str]:
    if not facts.maps:
        yield f"{facts.catalog} has no shard maps."
        return
    yield from table(
        ("map", "kind", "key", "shards", "mappings", "sharded tables"),
        (
            (
                one.name,
                one.kind if one.buckets is None else f"{one.kind} of {one.buckets}",
                one.key,
                one.shards,
                one.mappings,
                ", ".join(f"{name} by {'+'.join(by)}" for name, by in one.sharded.items()),
            )
            for one in facts.maps
        ),
    )


def _shard_lines(facts: Shards) -> Iterator[str]:
    if not facts.shards:
        yield "There are no shards."
        return
    yield from table(
        ("map", "shard", "status", "mappings", "id"),
        ((one.map, one.location, one.status, one.mappings, one.id) for one in facts.shards),
    )


def _mapping_lines(facts: Mappings) -> Iterator[str]:
    if not facts.mappings:
        yield "There are no mappings."
        return
    yield from table(
        ("range", "shard", "status", "locked by"),
        ((one.range, one.shard, one.status, one.locked_by) for one in facts.mappings),
    )


def _found_lines(facts: Found) -> Iterator[str]:
    one = facts.mapping
    if facts.bucket is not None:
        yield f"bucket   {facts.bucket}"
    yield f"shard    {one.shard}"
    yield f"range    {one.range}"
    yield f"status   {one.status}" + (f", locked by {one.locked_by}" if one.locked_by else "")
    yield f"mapping  {one.id}"


def _change_lines(facts: Changed) -> Iterator[str]:
    yield _planned(facts.what, dry_run=facts.dry_run)
    yield from (f"  {step}" for step in facts.steps)
    for one in facts.removed:
        yield f"  - {one.range}  {one.shard}  {one.status}"
    for one in facts.added:
        yield f"  + {one.range}  {one.shard}  {one.status}"


def _planned(what: str, *, dry_run: bool) -> str:
    return f"{what}: this would be done." if dry_run else f"{what}: done."


def _move_lines(facts: Moves) -> Iterator[str]:
    if not facts.moves:
        yield "There is nothing to move."
        return
    for one in facts.moves:
        yield f"{one.range} from {one.source} to {one.target}: {_move_text(one)}"
        if one.error:
            yield f"  {one.error}"
            yield f"  `partita shards resume` goes on; `partita shards cancel {one.job}` undoes it."


def _move_text(one: MoveFacts) -> str:
    if one.state == "planned":
        return "would be moved."
    if one.state != "done":
        return f"{one.state} at step {one.step}, {_count(one.rows, 'row')} copied."
    return (
        f"{_count(one.rows, 'row')} in {one.seconds:.1f} s, offline for {one.fence_seconds:.2f} s"
        + (f", {_count(one.terminated, 'session')} terminated." if one.terminated else ".")
    )


def _job_lines(facts: Jobs) -> Iterator[str]:
    if not facts.jobs:
        yield "There are no jobs."
        return
    yield from table(
        ("job", "map", "kind", "state", "step", "rows", "subject", "changed"),
        (
            (
                one.id,
                one.map,
                one.kind,
                one.state,
                one.step,
                f"{one.rows} of {one.rows_total}" if one.kind == "move" else None,
                one.subject,
                one.changed_at,
            )
            for one in facts.jobs
        ),
    )
    yield from (f"{one.id}: {one.error}" for one in facts.jobs if one.error)


def _upgrade_lines(facts: Upgraded) -> Iterator[str]:
    if not facts.shards:
        yield "There are no shards."
        return
    yield from table(
        ("shard", "state", "before", "after", "seconds", "script"),
        (
            (
                one.location,
                one.state,
                one.before,
                one.after,
                None if facts.dry_run else f"{one.seconds:.1f}",
                one.script,
            )
            for one in facts.shards
        ),
    )
    for one in facts.shards:
        yield from (f"{one.location}: {step}" for step in one.pending)
        if one.error:
            yield f"{one.location}: {one.error}"
    if facts.dry_run:
        yield "Nothing was run."
    elif not facts.is_complete:
        yield "The upgrade is not complete: the same command goes on where it stopped."


def _status_lines(facts: Status) -> Iterator[str]:
    if not facts.shards:
        yield "There are no shards."
    else:
        yield from table(
            ("map", "shard", "revision", "current", "drift", "mappings", "size"),
            (
                (
                    one.map,
                    one.location,
                    one.revision,
                    None if one.error else one.is_current,
                    None if one.error or one.is_current is None else len(one.drift),
                    one.mappings,
                    None if one.size_bytes is None else size_text(one.size_bytes),
                )
                for one in facts.shards
            ),
        )
    yield from _trouble(facts.shards)
    if facts.unfinished:
        yield f"{_count(facts.unfinished, 'job')} unfinished: `partita shards jobs` lists them."


def _drift_lines(facts: Drift) -> Iterator[str]:
    if facts.is_clean:
        yield "All shards have the schema."
        return
    yield from _trouble(facts.shards)


def _trouble(shards: Iterable[StatusFacts]) -> Iterator[str]:
    for one in shards:
        yield from (f"{one.location}: {difference}" for difference in one.drift)
        if one.error:
            yield f"{one.location}: {one.error}"


def _row_lines(facts: Rows) -> Iterator[str]:
    yield from table(facts.columns, facts.rows)
    if facts.is_cut:
        yield f"Only the first {_count(len(facts.rows), 'row')}: --limit asks for more."
    yield from (f"{shard}: {error}" for shard, error in facts.errors.items())


def _recovery_lines(facts: Recovered) -> Iterator[str]:
    for operation, ending in facts.ended.items():
        yield f"Unfinished change {operation}: {ending}."
    if facts.differences:
        yield from table(
            ("map", "shard", "range", "known to", "global catalog says", "shard says"),
            (
                (one.map, one.shard, one.range, one.where, one.in_global, one.in_local)
                for one in facts.differences
            ),
        )
    elif not facts.errors:
        yield "The catalogs agree."
    yield from (f"{shard}: {error}" for shard, error in facts.errors.items())
    if facts.kept is None:
        if facts.differences:
            yield "Decide which side is right: recover SHARD --keep global, or --keep local."
    elif facts.differences:
        verb = "would be kept" if facts.dry_run else "was kept"
        yield f"The {facts.kept} side {verb}."


_WRITERS: dict[type, Callable[[Any], Iterable[str]]] = {
    Initialized: _initialized_lines,
    Maps: _map_lines,
    Shards: _shard_lines,
    Mappings: _mapping_lines,
    Found: _found_lines,
    Changed: _change_lines,
    Moves: _move_lines,
    Jobs: _job_lines,
    Upgraded: _upgrade_lines,
    Status: _status_lines,
    Drift: _drift_lines,
    Rows: _row_lines,
    Recovered: _recovery_lines,
}
