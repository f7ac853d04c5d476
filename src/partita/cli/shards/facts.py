"""What the verbs of `partita shards` found and did.

Rule: nothing here holds a URL as it was given; locations have no user and no password.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.text import count_text, size_text


class MapFacts(msgspec.Struct, frozen=True):
    """One shard map."""

    name: str
    kind: str
    key: str
    buckets: int | None
    shards: int
    mappings: int
    sharded: dict[str, list[str]]
    """The sharding columns of each sharded table."""
    reference: list[str]


class Maps(Facts, frozen=True):
    """The shard maps of a catalog."""

    catalog: str
    maps: list[MapFacts]

    def lines(self) -> Iterator[Line]:
        if not self.maps:
            yield f"{self.catalog} has no shard maps."
            return
        yield Table(
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
                for one in self.maps
            ),
        )


class ShardFacts(msgspec.Struct, frozen=True):
    """One shard of a map."""

    map: str
    name: str
    """The short name, as tables show it and arguments take it."""
    location: str
    id: str
    status: str
    mappings: int


class Shards(Facts, frozen=True):
    """The shards of one map, or of all."""

    shards: list[ShardFacts]

    def lines(self) -> Iterator[Line]:
        if not self.shards:
            yield "There are no shards."
            return
        yield Table(
            ("map", "shard", "status", "mappings", "location", "id"),
            (
                (one.map, one.name, one.status, one.mappings, one.location, one.id)
                for one in self.shards
            ),
        )


class MappingFacts(msgspec.Struct, frozen=True):
    """One mapping; `range` can be typed again, `low` and `high` are for programs."""

    map: str
    range: str
    low: Any
    high: Any
    shard: str
    status: str
    locked_by: str | None
    id: str | None
    """None for a mapping that would be made."""


class Mappings(Facts, frozen=True):
    """The mappings of a map, in the order of their keys."""

    mappings: list[MappingFacts]

    def lines(self) -> Iterator[Line]:
        if not self.mappings:
            yield "There are no mappings."
            return
        yield Table(
            ("range", "shard", "status", "locked by"),
            ((one.range, one.shard, one.status, one.locked_by) for one in self.mappings),
        )


class FoundMapping(Facts, frozen=True):
    """The mapping that holds a key."""

    key: Any
    bucket: int | None
    mapping: MappingFacts

    def lines(self) -> Iterator[Line]:
        one = self.mapping
        if self.bucket is not None:
            yield f"bucket   {self.bucket}"
        yield f"shard    {one.shard}"
        yield f"range    {one.range}"
        yield f"status   {one.status}" + (f", locked by {one.locked_by}" if one.locked_by else "")
        yield f"mapping  {one.id}"


class Initialized(Facts, frozen=True):
    """A catalog that is there now."""

    catalog: str
    is_new: bool

    def lines(self) -> Iterator[Line]:
        made = "is a catalog now" if self.is_new else "was a catalog already"
        yield f"{self.catalog} {made}."


class Changed(Facts, frozen=True):
    """A change of mappings or shards, done or only planned."""

    what: str
    dry_run: bool
    removed: list[MappingFacts]
    added: list[MappingFacts]
    shard: str | None = None
    steps: list[str] = msgspec.field(default_factory=list)
    """What else is done, in order."""

    def lines(self) -> Iterator[Line]:
        yield f"{self.what}: {'this would be done' if self.dry_run else 'done'}."
        yield from (f"  {step}" for step in self.steps)
        for one in self.removed:
            yield f"  - {one.range}  {one.shard}  {one.status}"
        for one in self.added:
            yield f"  + {one.range}  {one.shard}  {one.status}"


class MoveFacts(msgspec.Struct, frozen=True):
    """One mapping that moves, moved, or stopped on its way."""

    map: str
    range: str
    source: str
    target: str
    state: str
    step: str
    job: str | None = None
    keys: int | None = None
    """Sharding keys that have rows; None if they were not counted."""
    rows: int = 0
    seconds: float = 0.0
    fence_seconds: float = 0.0
    terminated: int = 0
    error: str = ""


class Moves(Facts, frozen=True):
    """The outcome of moves; a paused one can be resumed."""

    dry_run: bool
    moves: list[MoveFacts]

    @property
    def exit_status(self) -> int:
        return int(any(one.error for one in self.moves) and not self.dry_run)

    def lines(self) -> Iterator[Line]:
        if not self.moves:
            yield "There is nothing to move."
            return
        for one in self.moves:
            yield f"{one.range} from {one.source} to {one.target}: {_move_text(one)}"
            if one.error:
                yield f"  {one.error}"
                yield (
                    "  `partita shards resume` continues it; "
                    f"`partita shards cancel {one.job}` undoes it."
                )


class JobFacts(msgspec.Struct, frozen=True):
    """A record of long work."""

    id: str
    map: str
    kind: str
    state: str
    step: str
    subject: str
    rows: int
    rows_total: int
    made_at: str | None
    changed_at: str | None
    error: str


class Jobs(Facts, frozen=True):
    """Long work that was started."""

    jobs: list[JobFacts]

    def lines(self) -> Iterator[Line]:
        if not self.jobs:
            yield "There are no jobs."
            return
        yield Table(
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
                for one in self.jobs
            ),
        )
        yield from (f"{one.id}: {one.error}" for one in self.jobs if one.error)


class UpgradeFacts(msgspec.Struct, frozen=True):
    """The upgrade of one shard, done or planned."""

    location: str
    state: str
    before: str | None
    after: str | None
    seconds: float = 0.0
    script: str | None = None
    pending: list[str] = []
    error: str = ""


class Upgraded(Facts, frozen=True):
    """The upgrade of each shard."""

    target: str
    dry_run: bool
    is_complete: bool
    shards: list[UpgradeFacts]

    @property
    def exit_status(self) -> int:
        return int(not (self.is_complete or self.dry_run))

    def lines(self) -> Iterator[Line]:
        if not self.shards:
            yield "There are no shards."
            return
        yield Table(
            ("shard", "state", "before", "after", "seconds", "script"),
            (
                (
                    one.location,
                    one.state,
                    one.before,
                    one.after,
                    None if self.dry_run else f"{one.seconds:.1f}",
                    one.script,
                )
                for one in self.shards
            ),
        )
        for one in self.shards:
            yield from (f"{one.location}: {step}" for step in one.pending)
            if one.error:
                yield f"{one.location}: {one.error}"
        if self.dry_run:
            yield "Nothing was run."
        elif not self.is_complete:
            yield "The upgrade is not complete: run the same command to continue."


class ExecutedFacts(msgspec.Struct, frozen=True):
    """A statement on one shard."""

    location: str
    state: str
    rows: int | None = None
    seconds: float = 0.0
    error: str = ""


class Executed(Facts, frozen=True):
    """A statement on each shard."""

    is_complete: bool
    shards: list[ExecutedFacts]

    @property
    def exit_status(self) -> int:
        return int(not self.is_complete)

    def lines(self) -> Iterator[Line]:
        if not self.shards:
            yield "There are no shards."
            return
        yield Table(
            ("shard", "state", "rows", "seconds"),
            ((one.location, one.state, one.rows, f"{one.seconds:.1f}") for one in self.shards),
        )
        yield from (f"{one.location}: {one.error}" for one in self.shards if one.error)
        if not self.is_complete:
            yield "Not all shards have executed it: run the same command to continue."


class StatusFacts(msgspec.Struct, frozen=True):
    """The status of one shard; `is_current` is None if no schema was given to compare with."""

    map: str
    location: str
    revision: str | None
    is_current: bool | None
    drift: list[str]
    mappings: int
    size_bytes: int | None
    error: str


class FleetStatus(Facts, frozen=True):
    """The status of all shards, and the number of unfinished jobs."""

    is_healthy: bool
    shards: list[StatusFacts]
    unfinished: int
    """Moves and other jobs that are stopped or running."""

    @property
    def exit_status(self) -> int:
        return int(not self.is_healthy)

    def lines(self) -> Iterator[Line]:
        if not self.shards:
            yield "There are no shards."
        else:
            yield Table(
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
                    for one in self.shards
                ),
            )
        yield from _trouble(self.shards)
        if self.unfinished:
            unfinished = count_text(self.unfinished, "job")
            yield f"{unfinished} unfinished: `partita shards jobs` lists them."


class Drift(Facts, frozen=True):
    """Shards that differ from the schema, and those that did not answer."""

    is_clean: bool
    shards: list[StatusFacts]

    @property
    def exit_status(self) -> int:
        return int(not self.is_clean)

    def lines(self) -> Iterator[Line]:
        if self.is_clean:
            yield "All shards have the schema."
            return
        yield from _trouble(self.shards)


class Rows(Facts, frozen=True):
    """The rows of a fan-out."""

    columns: list[str]
    rows: list[list[Any]]
    is_cut: bool
    """Whether there are more rows than the limit."""
    errors: dict[str, str]

    @property
    def exit_status(self) -> int:
        return int(bool(self.errors))

    def lines(self) -> Iterator[Line]:
        yield Table(self.columns, self.rows)
        if self.is_cut:
            yield f"Only the first {count_text(len(self.rows), 'row')}: --limit asks for more."
        yield from (f"{shard}: {error}" for shard, error in self.errors.items())


class DifferenceFacts(msgspec.Struct, frozen=True):
    """Keys for which the global catalog and a shard differ."""

    map: str
    shard: str
    range: str
    where: str
    in_global: str | None
    """The shard to which the global catalog maps the keys."""
    in_local: str | None


class Recovered(Facts, frozen=True):
    """Differences between the catalogs, and which side was kept."""

    dry_run: bool
    kept: str | None
    differences: list[DifferenceFacts]
    ended: dict[str, str]
    """Interrupted changes of the catalogs, and the outcome of each."""
    errors: dict[str, str]

    @property
    def exit_status(self) -> int:
        is_resolved = self.kept is not None and not self.dry_run
        return int(bool(self.errors) or (bool(self.differences) and not is_resolved))

    def lines(self) -> Iterator[Line]:
        for operation, ending in self.ended.items():
            yield f"Interrupted change {operation}: {ending}."
        if self.differences:
            yield Table(
                ("map", "shard", "range", "known to", "global catalog says", "shard says"),
                (
                    (one.map, one.shard, one.range, one.where, one.in_global, one.in_local)
                    for one in self.differences
                ),
            )
        elif not self.errors:
            yield "The catalogs agree."
        yield from (f"{shard}: {error}" for shard, error in self.errors.items())
        if self.kept is None:
            if self.differences:
                yield "Decide which side is right: recover SHARD --keep global, or --keep local."
        elif self.differences:
            verb = "would be kept" if self.dry_run else "was kept"
            yield f"The {self.kept} side {verb}."


def _trouble(shards: Iterable[StatusFacts]) -> Iterator[str]:
    for one in shards:
        yield from (f"{one.location}: {difference}" for difference in one.drift)
        if one.error:
            yield f"{one.location}: {one.error}"


def _move_text(one: MoveFacts) -> str:
    rows = count_text(one.rows, "row")
    if one.state == "planned":
        return f"{keys_and_rows(one)} would be moved."
    if one.state != "done":
        return f"{one.state} at step {one.step}, {rows} copied."
    ended = f", {count_text(one.terminated, 'session')} terminated" if one.terminated else ""
    return f"{rows} in {one.seconds:.1f} s, offline for {one.fence_seconds:.2f} s{ended}."


def keys_and_rows(one: MoveFacts) -> str:
    """Return how much a planned move would carry."""
    return f"{count_text(one.keys or 0, 'key')} with {count_text(one.rows, 'row')}"
