"""What the verbs of `partita shards` found and did, as values that are one JSON line.

Rule: nothing here holds a URL as it was given; locations have no user and no password.
"""

from typing import Any

import msgspec


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


class Maps(msgspec.Struct, frozen=True):
    """The shard maps of a catalog."""

    catalog: str
    maps: list[MapFacts]


class ShardFacts(msgspec.Struct, frozen=True):
    """One shard of a map."""

    map: str
    location: str
    id: str
    status: str
    mappings: int


class Shards(msgspec.Struct, frozen=True):
    """The shards of one map, or of all."""

    shards: list[ShardFacts]


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


class Mappings(msgspec.Struct, frozen=True):
    """The mappings of a map, in the order of their keys."""

    mappings: list[MappingFacts]


class Found(msgspec.Struct, frozen=True):
    """The mapping that holds a key."""

    key: Any
    bucket: int | None
    mapping: MappingFacts


class Initialized(msgspec.Struct, frozen=True):
    """A catalog that is there now."""

    catalog: str
    is_new: bool


class Changed(msgspec.Struct, frozen=True):
    """A change of mappings or shards, done or only planned."""

    what: str
    dry_run: bool
    removed: list[MappingFacts]
    added: list[MappingFacts]
    shard: str | None = None
    steps: list[str] = []
    """What is done besides, in order."""


class MoveFacts(msgspec.Struct, frozen=True):
    """One mapping that moves, moved, or stopped on its way."""

    map: str
    range: str
    source: str
    target: str
    state: str
    step: str
    job: str | None = None
    rows: int = 0
    seconds: float = 0.0
    fence_seconds: float = 0.0
    terminated: int = 0
    error: str = ""


class Moves(msgspec.Struct, frozen=True):
    """What became of moves, each of which can be resumed by its job."""

    dry_run: bool
    moves: list[MoveFacts]

    @property
    def is_complete(self) -> bool:
        return all(not one.error for one in self.moves)


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


class Jobs(msgspec.Struct, frozen=True):
    """Work that was begun."""

    jobs: list[JobFacts]


class UpgradeFacts(msgspec.Struct, frozen=True):
    """What became of one shard, or would become of it."""

    location: str
    state: str
    before: str | None
    after: str | None
    seconds: float = 0.0
    script: str | None = None
    pending: list[str] = []
    error: str = ""


class Upgraded(msgspec.Struct, frozen=True):
    """What became of each shard."""

    target: str
    dry_run: bool
    is_complete: bool
    shards: list[UpgradeFacts]


class StatusFacts(msgspec.Struct, frozen=True):
    """How one shard is; `is_current` is None where no schema was given to compare with."""

    map: str
    location: str
    revision: str | None
    is_current: bool | None
    drift: list[str]
    mappings: int
    size_bytes: int | None
    error: str


class Status(msgspec.Struct, frozen=True):
    """How all shards are, and what was left unfinished."""

    is_healthy: bool
    shards: list[StatusFacts]
    unfinished: int
    """Moves and other jobs that wait for somebody to go on with them."""


class Drift(msgspec.Struct, frozen=True):
    """Shards that differ from the schema, and those that could not be asked."""

    is_clean: bool
    shards: list[StatusFacts]


class Rows(msgspec.Struct, frozen=True):
    """The rows of a fan-out."""

    columns: list[str]
    rows: list[list[Any]]
    is_cut: bool
    """Whether there were more rows than were asked for."""
    errors: dict[str, str]


class DifferenceFacts(msgspec.Struct, frozen=True):
    """Keys about which the global catalog and a shard disagree."""

    map: str
    shard: str
    range: str
    where: str
    in_global: str | None
    """The shard that the global catalog gives the keys to."""
    in_local: str | None


class Recovered(msgspec.Struct, frozen=True):
    """Differences between the catalogs, and which side was kept."""

    dry_run: bool
    kept: str | None
    differences: list[DifferenceFacts]
    ended: dict[str, str]
    """Unfinished changes of the catalogs and how each ended."""
    errors: dict[str, str]


Facts = (
    Maps
    | Shards
    | Mappings
    | Found
    | Initialized
    | Changed
    | Moves
    | Jobs
    | Upgraded
    | Status
    | Drift
    | Rows
    | Recovered
)


def exit_status(facts: Facts) -> int:
    """Return 1 for what an operator must look at, else 0."""
    match facts:
        case Upgraded() | Moves():
            is_good = facts.is_complete or facts.dry_run
        case Status():
            is_good = facts.is_healthy
        case Drift():
            is_good = facts.is_clean
        case Rows():
            is_good = not facts.errors
        case Recovered():
            is_kept = facts.kept is not None and not facts.dry_run
            is_good = not facts.errors and (is_kept or not facts.differences)
        case _:
            is_good = True
    return 0 if is_good else 1
