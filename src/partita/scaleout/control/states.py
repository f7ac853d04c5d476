"""What a session of `Control` reports: shards, ranges, jobs, the progress of a move. No I/O."""

from typing import Literal

import msgspec

JobKind = Literal["split", "merge", "move", "add"]
RangeActivity = Literal["open", "split", "merge", "move"]
MoveStep = Literal["prepare", "capture", "copy", "catch_up", "fence", "own", "clean"]


class ShardState(msgspec.Struct, frozen=True):
    """One shard as the catalog lists it, and as it answers."""

    id: int
    name: str
    url: str
    """Without secrets."""
    state: Literal["open", "draining"]
    """A shard that is draining gets no new ranges."""
    ranges: int
    is_reachable: bool
    bytes: int | None = None
    """The size of its database; None if it did not answer."""
    problem: str = ""
    """Why it cannot be used; empty if it can."""


class RangeState(msgspec.Struct, frozen=True):
    """One range of partition keys, from `lower` on, before `upper`; or the one of a queue."""

    id: int
    account: str
    table: str
    """Empty for a queue."""
    lower: str
    upper: str | None
    """None: no end."""
    shard: str
    epoch: int
    state: RangeActivity
    """The job that changes the range at present, or open."""
    queue: str = ""
    """Empty for a table."""

    @property
    def title(self) -> str:
        """What a line for people calls the table or queue."""
        return self.table or f"queue {self.queue}"


class JobState(msgspec.Struct, frozen=True):
    """A recorded change that is not complete."""

    id: int
    kind: JobKind
    step: str
    ranges: tuple[int, ...]
    shards: tuple[int, ...]
    """Of a move: from, to."""
    account: str
    table: str
    """The table or queue; empty for jobs without one, and if it was dropped."""
    started_at: int
    changed_at: int
    """Ticks."""
    is_running: bool
    """Whether a process is at work on it."""
    error: str = ""
    """Why it could not be ended, if that was tried."""


class MoveProgress(msgspec.Struct, frozen=True):
    """How far a move is."""

    step: MoveStep
    entities: int = 0
    """Entities that were copied in this step; in the last one, deleted."""
    entities_total: int | None = None
    """An estimate by the statistics of the source; None if there is none."""


class MoveOutcome(msgspec.Struct, frozen=True):
    """What a move did."""

    entities: int
    """Entities that were copied before the range was closed."""
    changed: int
    """Keys that were written meanwhile, and carried over."""
    copy_seconds: float
    closed_seconds: float
    """How long the range answered no request."""
    terminated: int
    """Sessions that were ended because they kept the range for too long."""


class ThrottleState(msgspec.Struct, frozen=True):
    """A partition whose rate is limited."""

    account: str
    table: str
    partition_key: str
    rate: float
    """Entities per second, of all front ends together."""


class Verification(msgspec.Struct, frozen=True):
    """What a comparison of the catalog with all shards found."""

    ranges: int
    entities: int
    """Entities in ranges that their shard serves as the catalog lists them."""
    messages: int
    """The same of messages."""
    problems: tuple[str, ...]
    """Empty if every key has exactly one owner, with the same epoch in both places."""


class Reconciliation(msgspec.Struct, frozen=True):
    """What was corrected after a restore or a failover."""

    changes: tuple[str, ...]
    problems: tuple[str, ...]
    """What needs a decision: ranges that no shard has, claims that do not fit together."""
