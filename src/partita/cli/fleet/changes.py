"""The verbs of `partita fleet` that list and change ranges and shards.

Rule: a verb that is stopped, also by Ctrl-C, leaves a job that the next verb completes or takes
back; requests of clients go on meanwhile.
"""

from collections.abc import Callable, Iterator

from partita.cli.fleet.opening import run_on
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.progress import Bar
from partita.cli.kit.text import count_text, size_text
from partita.errors import ConfigurationError
from partita.scaleout.control.control import Control
from partita.scaleout.control.states import (
    JobState,
    MoveOutcome,
    MoveProgress,
    RangeState,
    ShardState,
)


class Ranges(Facts, frozen=True):
    """The ranges of tables, in key order, and those of queues."""

    ranges: list[RangeState]

    @property
    def as_value(self) -> object:
        return self.ranges

    def lines(self) -> Iterator[Line]:
        if not self.ranges:
            yield "No table and no queue has been created yet."
            return
        yield Table(
            ("range", "account", "table", "from", "before", "shard", "state"),
            [
                (
                    *(each.id, each.account, each.title),
                    *(each.lower, each.upper, each.shard, each.state),
                )
                for each in self.ranges
            ],
        )


class Divided(Facts, frozen=True):
    """A range that was split."""

    table: str
    at: str
    ranges: tuple[int, int]

    def lines(self) -> Iterator[Line]:
        low, high = self.ranges
        yield f"{self.table} has the ranges {low} before {self.at!r}, and {high} from it on."


class Merged(Facts, frozen=True):
    """Two ranges that are one."""

    ranges: tuple[int, int]
    range: int

    def lines(self) -> Iterator[Line]:
        yield f"Ranges {self.ranges[0]} and {self.ranges[1]} are range {self.range} now."


class Moved(Facts, frozen=True):
    """A range on another shard."""

    range: int
    to: str
    entities: int
    changed: int
    """Keys that were written during the copy, and carried over."""
    copy_seconds: float
    closed_seconds: float
    terminated: int
    """Sessions that were ended because they kept the range from being closed."""

    def lines(self) -> Iterator[Line]:
        yield (
            f"Range {self.range} is on {self.to}: {count_text(self.entities, 'entity', 'entities')}"
            f" in {self.copy_seconds:.1f} s, closed for {self.closed_seconds * 1000:.0f} ms."
        )
        if self.terminated:
            ended = count_text(self.terminated, "session")
            yield f"{ended} with a long transaction had to be ended."


class Added(Facts, frozen=True):
    """A shard that gets ranges from now on."""

    shard: ShardState

    def lines(self) -> Iterator[Line]:
        yield f"{self.shard.name} ({self.shard.url}) is a shard of the fleet now."
        yield "New tables and queues go to it; `partita fleet balance --apply` moves ranges to it."


class Drained(Facts, frozen=True):
    """A shard that gets no ranges any more."""

    shard: str
    ranges: int
    """Those that it still has."""

    @property
    def exit_status(self) -> int:
        return 1 if self.ranges else 0

    def lines(self) -> Iterator[Line]:
        if self.ranges:
            yield f"{self.shard} is draining and still has {count_text(self.ranges, 'range')}."
        else:
            yield f"{self.shard} has no ranges and gets none."


class Removed(Facts, frozen=True):
    """A shard that the fleet has no more."""

    shard: str

    def lines(self) -> Iterator[Line]:
        yield f"{self.shard} is not a shard of the fleet any more. Its database was not dropped."


class Throttled(Facts, frozen=True):
    """A partition whose rate is limited, or is not any more."""

    table: str
    partition_key: str
    rate: float | None

    def lines(self) -> Iterator[Line]:
        what = f"Partition {self.partition_key!r} of {self.table}"
        if self.rate is None:
            yield f"{what} is not limited."
        else:
            yield f"{what} is limited to {self.rate:g} entities per second; above, it answers 503."


class Verified(Facts, frozen=True):
    """The ranges of the catalog, compared with those of all shards."""

    ranges: int
    entities: int
    messages: int
    problems: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        return 1 if self.problems else 0

    def lines(self) -> Iterator[Line]:
        yield (
            f"{count_text(self.ranges, 'range')} with"
            f" {count_text(self.entities, 'entity', 'entities')} and"
            f" {count_text(self.messages, 'message')}: "
            + (
                count_text(len(self.problems), "problem")
                if self.problems
                else "all keys have one owner."
            )
        )
        yield from self.problems


class Reconciled(Facts, frozen=True):
    """What was corrected, and what needs a decision."""

    changes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        return 1 if self.problems else 0

    def lines(self) -> Iterator[Line]:
        yield from self.changes
        yield from self.problems
        if not self.changes and not self.problems:
            yield "The catalog and the shards agree; nothing was changed."


class Marked(Facts, frozen=True):
    """A restore point of the whole fleet."""

    name: str
    places: dict[str, str]
    """By shard: where the restore point is in its log."""

    def lines(self) -> Iterator[Line]:
        yield Table(("shard", "restore point", "place in the log"), self._rows())
        yield "Restore the catalog and all shards to this point (recovery_target_name)."

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(shard, self.name, place) for shard, place in self.places.items()]


class FleetUpgraded(Facts, frozen=True):
    """The schemas of a fleet, up to date."""

    versions: dict[str, str]
    """By shard."""

    def lines(self) -> Iterator[Line]:
        yield Table(("shard", "version"), [*self.versions.items()])


class JobList(Facts, frozen=True):
    """Changes that are not complete."""

    jobs: list[JobState]

    @property
    def as_value(self) -> object:
        return self.jobs

    def lines(self) -> Iterator[Line]:
        if not self.jobs:
            yield "No job is under way."
            return
        yield job_table(self.jobs)


def job_table(jobs: list[JobState]) -> Table:
    """Return jobs for people."""
    return Table(
        ("job", "kind", "table", "ranges", "step", "running", "error"),
        [
            (
                each.id,
                each.kind,
                each.table,
                ", ".join(map(str, each.ranges)),
                each.step,
                each.is_running,
                each.error,
            )
            for each in jobs
        ],
    )


def shard_table(shards: list[ShardState]) -> Table:
    """Return shards for people."""
    return Table(
        ("shard", "url", "state", "ranges", "reachable", "size", "problem"),
        [
            (
                each.name,
                each.url,
                each.state,
                each.ranges,
                each.is_reachable,
                None if each.bytes is None else size_text(each.bytes),
                each.problem,
            )
            for each in shards
        ],
    )


def ranges(given: Given) -> Ranges:
    return Ranges(run_on(given, lambda control: control.ranges(given.table, given.account)))


def split(given: Given) -> Divided:
    made = run_on(
        given, lambda control: control.split(given.table, given.at, account=given.account)
    )
    return Divided(given.table, given.at, made)


def merge(given: Given) -> Merged:
    pair = given.first, given.second
    return Merged(pair, run_on(given, lambda control: control.merge(*pair)))


def move(given: Given) -> Moved:
    with Bar(f"move range {given.range_id}", is_hidden=given.json or given.quiet) as bar:

        async def work(control: Control) -> MoveOutcome:
            return await control.move(given.range_id, given.to, progress=_drawn(bar))

        done = run_on(given, work)
    return Moved(
        given.range_id,
        given.to,
        done.entities,
        done.changed,
        round(done.copy_seconds, 3),
        round(done.closed_seconds, 4),
        done.terminated,
    )


def _drawn(bar: Bar) -> Callable[[MoveProgress], None]:
    def draw(progress: MoveProgress) -> None:
        total = progress.entities_total
        # The total is an estimate: a bar does not go back.
        shown = None if total is None else max(total, progress.entities)
        bar.step(progress.step.replace("_", " "), progress.entities, shown, "entities")

    return draw


def add(given: Given) -> Added:
    return Added(run_on(given, lambda control: control.add_shard(given.shard, name=given.name)))


def drain(given: Given) -> Drained:
    def draw(moved: RangeState, progress: MoveProgress) -> None:
        bar.step(f"range {moved.id} of {moved.title}", progress.entities, None, "entities")

    async def work(control: Control) -> int:
        await control.drain(given.shard, progress=draw)
        return sum(each.ranges for each in await control.shards() if each.name == given.shard)

    with Bar(f"drain {given.shard}", is_hidden=given.json or given.quiet) as bar:
        return Drained(given.shard, run_on(given, work))


def remove(given: Given) -> Removed:
    run_on(given, lambda control: control.remove(given.shard))
    return Removed(given.shard)


def throttle(given: Given) -> Throttled:
    if (given.rate is None) != given.off:
        raise ConfigurationError(
            "Configuration",
            "Either a rate or the end of the limit is to be given.",
            hint="Give --rate N or --off.",
        )
    table, key, rate = given.table, given.partition, given.rate
    run_on(given, lambda control: control.throttle(table, key, rate, account=given.account))
    return Throttled(table, key, rate)


def verify(given: Given) -> Verified:
    found = run_on(given, lambda control: control.verify())
    return Verified(found.ranges, found.entities, found.messages, found.problems)


def reconcile(given: Given) -> Reconciled:
    found = run_on(given, lambda control: control.reconcile(given.shard))
    return Reconciled(found.changes, found.problems)


def mark(given: Given) -> Marked:
    return Marked(given.name, dict(run_on(given, lambda control: control.mark(given.name))))


def upgrade(given: Given) -> FleetUpgraded:
    with Bar("upgrade", is_hidden=given.json or given.quiet) as bar:

        async def work(control: Control) -> dict[str, tuple[int, int]]:
            done = await control.upgrade(
                role=given.role, progress=lambda shard, step: bar.tell(f"{shard}: {step}")
            )
            return {name: each.version for name, each in done.items()}

        found = run_on(given, work)
    return FleetUpgraded({name: f"{major}.{minor}" for name, (major, minor) in found.items()})


def resume(given: Given) -> JobList:
    return JobList(run_on(given, lambda control: control.resume()))
