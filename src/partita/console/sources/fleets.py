"""A fleet of PostgreSQL shards: what it looks like now, and the changes that a page asks for.

What is read from the shards themselves is kept for `SHARDS_SECONDS`, so that open pages cost them
little. Bars show the ranges of a table in key order, every range as wide as the others.
"""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from partita.console.jobs import Job
from partita.errors import ConfigurationError
from partita.storage.durability import Durability
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.scaleout.balancing.deciding import Decision
    from partita.scaleout.balancing.picture import Picture, RangeLoad
    from partita.scaleout.balancing.running import Balancer
    from partita.scaleout.control.control import Control
    from partita.scaleout.control.states import JobState, MoveProgress, RangeState, ShardState

SHARDS_SECONDS: Final = 5.0
"""How long the state of the shards and the decision of the balancer are shown."""
SHOWN: Final = Durability.FAST
"""Front ends refuse servers that may lose writes; pages show these fleets, too."""
RANGES_MAX: Final = 2_000
"""Ranges that are shown; the counts are of all."""


class FleetShardShown(msgspec.Struct, frozen=True):
    name: str
    url: str
    state: str
    ranges: int
    bytes: int | None
    problem: str
    load: float
    """Point reads per second."""
    part: float
    """Of its capacity."""


class RangeShown(msgspec.Struct, frozen=True):
    id: int
    lower: str
    upper: str | None
    shard: str
    state: str
    load: float
    part: float
    """Of the capacity of a shard."""
    hot_key: str | None


class TableShown(msgspec.Struct, frozen=True):
    account: str
    kind: str
    """table, or queue: a queue is one range."""
    name: str
    ranges: list[RangeShown]


class ChangeShown(msgspec.Struct, frozen=True):
    """A split, merge or move that is under way."""

    id: int
    kind: str
    table: str
    ranges: tuple[int, ...]
    shards: list[str]
    step: str
    step_number: int | None
    """Of a move: from 1 to the number of steps."""
    is_running: bool
    entities: int | None
    """Copied so far; only of a move of this console."""
    entities_total: int | None
    error: str


class AdviceShown(msgspec.Struct, frozen=True):
    """What the balancer would do, or why it does nothing."""

    kind: str
    title: str
    reason: str


class FleetShown(msgspec.Struct, frozen=True):
    catalog: str
    shards: list[FleetShardShown]
    tables: list[TableShown]
    ranges_count: int
    changes: list[ChangeShown]
    steps: tuple[str, ...]
    advice: list[AdviceShown]


class _Seen(msgspec.Struct, frozen=True):
    at: float
    shards: "list[ShardState]"
    picture: "Picture"
    decision: "Decision"


class ShardFleet:
    """The fleet of one catalog; it is opened when it is first shown."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._turn = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._control: Control | None = None
        self._balancer: Balancer | None = None
        self._seen: _Seen | None = None
        self._progress: dict[int, MoveProgress] = {}
        """Of the moves of this console, by range."""

    async def read(self) -> FleetShown:
        """Return shards, ranges, changes that are under way, and what the balancer would do."""
        async with self._turn:
            control = await self.control()
            seen = await self._look(control)
            ranges, jobs = await control.ranges(), await control.jobs()
        from partita.scaleout.control.moving import STEPS  # noqa: PLC0415 - an extra

        loads = {each.id: each for each in seen.picture.ranges}
        names = {shard.id: shard.name for shard in seen.shards}
        return FleetShown(
            control.location,
            [_shard_shown(each, seen.picture) for each in seen.shards],
            _tables(ranges[:RANGES_MAX], loads, seen.picture.capacity),
            len(ranges),
            [self._change_shown(each, names, STEPS) for each in jobs],
            STEPS,
            _advice(seen.decision),
        )

    async def control(self) -> "Control":
        """Return the administrative session; open it at first."""
        async with self._opening:
            if self._control is None:
                self._control = await _opened(self._url, self._clock)
        return self._control

    # Changes

    async def split(self, table: str, account: str, at: str) -> tuple[int, int]:
        halves = await (await self.control()).split(table, at, account=account)
        self._seen = None
        return halves

    async def merge(self, first: int, second: int) -> int:
        merged = await (await self.control()).merge(first, second)
        self._seen = None
        return merged

    async def move(self, job: Job, range_id: int, to: str) -> None:
        """Move a range, as a job of the console."""

        def note(progress: "MoveProgress") -> None:
            self._progress[range_id] = progress
            _note(job, progress)

        try:
            done = await (await self.control()).move(range_id, to, progress=note)
        finally:
            self._progress.pop(range_id, None)
            self._seen = None
        job.counts["entities"] = done.entities
        job.note = f"closed for {done.closed_seconds * 1000:.0f} ms"

    async def drain(self, job: Job, shard: str) -> None:
        """Drain a shard, as a job of the console."""

        def note(moved: "RangeState", progress: "MoveProgress") -> None:
            self._progress[moved.id] = progress
            _note(job, progress)
            job.note = f"range {moved.id} of {moved.title}: {progress.step}"

        try:
            await (await self.control()).drain(shard, progress=note)
        finally:
            self._progress.clear()
            self._seen = None
        job.note = f"{shard} has no ranges"

    async def close(self) -> None:
        if self._balancer is not None:
            await self._balancer.close()
        if self._control is not None:
            await self._control.close()

    # Looking

    async def _look(self, control: "Control") -> _Seen:
        from partita.scaleout.balancing.running import Balancer  # noqa: PLC0415 - an extra

        now = self._clock.monotonic()
        if self._seen is None or now - self._seen.at > SHARDS_SECONDS:
            if self._balancer is None:
                self._balancer = await Balancer.open(self._url, self._clock, durability=SHOWN)
            picture, decision = await self._balancer.decide_once()
            self._seen = _Seen(now, await control.shards(), picture, decision)
        return self._seen

    def _change_shown(
        self, job: "JobState", names: dict[int, str], steps: Sequence[str]
    ) -> ChangeShown:
        progress = self._progress.get(job.ranges[0]) if job.ranges else None
        return ChangeShown(
            job.id,
            job.kind,
            job.table,
            job.ranges,
            [names.get(number, str(number)) for number in job.shards],
            job.step,
            steps.index(job.step) + 1 if job.kind == "move" and job.step in steps else None,
            job.is_running,
            None if progress is None else progress.entities,
            None if progress is None else progress.entities_total,
            job.error,
        )


async def _opened(url: str, clock: Clock) -> "Control":
    try:
        from partita.scaleout.control.control import Control  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Configuration",
            "What PostgreSQL stores need is not installed.",
            hint='Run: pip install "./partita[scaleout]"',
        ) from error
    return await Control.open(url, durability=SHOWN, clock=clock)


def _note(job: Job, progress: "MoveProgress") -> None:
    job.note = progress.step.replace("_", " ")
    if progress.entities:
        job.counts["entities"] = progress.entities
    if progress.entities_total is not None:
        job.counts["total"] = max(progress.entities_total, progress.entities)


def _shard_shown(shard: "ShardState", picture: "Picture") -> FleetShardShown:
    load = sum(each.load for each in picture.ranges if each.shard == shard.name)
    return FleetShardShown(
        shard.name,
        shard.url,
        shard.state,
        shard.ranges,
        shard.bytes,
        shard.problem,
        round(load, 1),
        round(load / picture.capacity, 4),
    )


def _tables(
    ranges: "Sequence[RangeState]", loads: "dict[int, RangeLoad]", capacity: float
) -> list[TableShown]:
    tables = []
    for (account, table, queue), found in groupby(ranges, attrgetter("account", "table", "queue")):
        shown = []
        for each in found:
            load = loads.get(each.id)
            rate = 0.0 if load is None else load.load
            hot = load.hot_key if load is not None and load.hot_share > 0.5 and rate else None
            shown.append(
                RangeShown(
                    *(each.id, each.lower, each.upper, each.shard, each.state),
                    *(round(rate, 1), round(rate / capacity, 4), hot),
                )
            )
        tables.append(TableShown(account, "queue" if queue else "table", queue or table, shown))
    return tables


def _advice(decision: "Decision") -> list[AdviceShown]:
    actions = [AdviceShown("action", each.title, each.reason) for each in decision.actions]
    return actions + [AdviceShown(each.kind, "", each.text) for each in decision.notices]
