"""What the verbs of `partita patterns` found and did."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.text import count_text, listed

SHOWN_MAX = 100
"""Differences that are printed for people: an index that was never built has millions."""


class IndexFacts(msgspec.Struct, frozen=True):
    """An index and its state; None if it has not been made yet."""

    type: str
    name: str
    table: str
    partition: str
    row: str
    way: str
    """copy, or the storage of a list."""
    is_unique: bool
    is_local: bool
    """Whether it is in the partition of the entity and written in the same group."""
    state: str | None = None


class Created(Facts, frozen=True):
    """Tables that were missing."""

    place: str
    tables: list[str]
    indexes: list[IndexFacts]

    def lines(self) -> Iterator[Line]:
        if self.tables:
            yield f"Made in {self.place}: {listed(self.tables)}."
        else:
            yield f"Every table is in {self.place} already."
        yield from _index_lines(self.indexes)


class Rebuilt(Facts, frozen=True):
    type: str
    index: str
    entities: int
    state: str

    def lines(self) -> Iterator[Line]:
        count = count_text(self.entities, "entity", "entities")
        yield f"{self.index} of {self.type}: {count}; it is {self.state}."


class Disabled(Facts, frozen=True):
    type: str
    index: str
    rows: int

    def lines(self) -> Iterator[Line]:
        yield f"{self.index} of {self.type} is disabled, {count_text(self.rows, 'row')} removed."


class DriftFacts(msgspec.Struct, frozen=True):
    """One difference."""

    type: str
    kind: str
    what: str
    table: str
    partition_key: str
    row_key: str


class DriftCount(msgspec.Struct, frozen=True):
    """How many differences of one kind one index or field has."""

    type: str
    what: str
    kind: str
    count: int


class IndexesVerified(Facts, frozen=True):
    """Indexes and derived fields, compared with their entities."""

    is_sound: bool
    entities: dict[str, int]
    """The number of entities that were read, by type."""
    counts: list[DriftCount]
    """By index or field and kind, the most frequent first."""
    drifts: list[DriftFacts]
    repaired: int
    left: int
    """Differences that remain after the repair."""

    @property
    def exit_status(self) -> int:
        return int(not self.is_sound)

    def lines(self) -> Iterator[Line]:
        for name, count in self.entities.items():
            yield f"{name}: {count:,} read."
        if self.drifts:
            yield Table(
                ("type", "index or field", "wrong", "count"),
                ((one.type, one.what, one.kind, f"{one.count:,}") for one in self.counts),
            )
            yield ""
            yield Table(
                ("type", "wrong", "what", "table", "partition key", "row key"),
                (
                    (one.type, one.kind, one.what, one.table, one.partition_key, one.row_key)
                    for one in self.drifts[:SHOWN_MAX]
                ),
            )
        if len(self.drifts) > SHOWN_MAX:
            yield f"... and {len(self.drifts) - SHOWN_MAX:,} more; --json has them all."
        if not self.drifts:
            yield "There are no differences."
        elif self.repaired:
            rest = "no differences remain" if self.is_sound else f"{self.left} remain"
            yield f"{count_text(self.repaired, 'repair')}, {rest}."
        else:
            yield f"{count_text(len(self.drifts), 'difference')}: repair them with --repair."


class Collected(Facts, frozen=True):
    """Blobs that were removed because no entity names them, by container."""

    blobs: dict[str, int]

    def lines(self) -> Iterator[Line]:
        if not self.blobs:
            yield "No type keeps values in blobs."
        for container, count in self.blobs.items():
            yield f"{container}: {count_text(count, 'blob')} that no entity names, removed."


class Rotated(Facts, frozen=True):
    """Rows whose content keys were wrapped again, by type."""

    key: str
    rows: dict[str, int]
    periods: dict[str, int]
    """By the names of series of tables."""

    def lines(self) -> Iterator[Line]:
        for name, count in self.rows.items():
            yield f"{name}: {count_text(count, 'row')} wrapped with the key {self.key!r}."
        for name, count in self.periods.items():
            rows = count_text(count, "row")
            yield f"{name}, by period: {rows} wrapped with the key {self.key!r}."


class WorkerStarted(Facts, frozen=True):
    """A worker that has started."""

    place: str
    queues: list[str]
    types: list[str]
    transactions: list[str]
    views: list[str]
    tasks: int
    process: int
    health: str | None = None
    """The address of /healthz, /readyz and /metrics."""

    def lines(self) -> Iterator[Line]:
        yield f"Working for {self.place}, process {self.process}"
        yield f"  queues        {listed(self.queues) if self.queues else 'none: sweeps only'}"
        yield f"  types         {listed(self.types)}"
        if self.transactions:
            yield f"  transactions  {listed(self.transactions)}"
        if self.views:
            yield f"  views         {listed(self.views)}"
        yield f"  tasks         {self.tasks}"
        if self.health:
            yield f"  health        {self.health}/readyz, {self.health}/metrics"
        yield "  Ctrl-C stops it after the messages in progress."


class WorkerProgress(Facts, frozen=True):
    """Rate, backlog and age of a running worker; None where there are no queues."""

    entries_per_second: float
    transactions_per_second: float
    busy: int
    tasks: int
    waiting: int | None
    oldest_seconds: float | None
    """The age of the oldest entry that waits or is worked on."""
    failures: int
    """Since the start."""
    poison: int | None

    def lines(self) -> Iterator[Line]:
        rate = f"{self.entries_per_second:,.1f} entries/s"
        if self.transactions_per_second:
            rate += f", {self.transactions_per_second:,.1f} transactions/s"
        waiting = ""
        if self.waiting is not None:
            waiting = f"; {self.waiting:,} messages wait, the oldest for {self.oldest_seconds:g} s"
        poison = "" if self.poison is None else f", {self.poison:,} in the poison queue"
        yield (
            f"partita worker: {rate}, {self.busy} of {self.tasks} tasks busy{waiting};"
            f" {count_text(self.failures, 'failure')}{poison}"
        )


class Worked(Facts, frozen=True):
    """Work that was done, and work that failed."""

    entries: int
    transactions: int
    failures: int
    poisoned: int
    left: int
    """Entries that were skipped: they need a newer version of the program."""
    troubles: list[str]
    """The reasons of failures, each once."""

    @property
    def exit_status(self) -> int:
        return int(bool(self.failures or self.left))

    def lines(self) -> Iterator[Line]:
        left = f", {self.left:,} skipped: need a newer version" if self.left else ""
        yield (
            f"{_entries(self.entries)} of the outbox, "
            f"{count_text(self.transactions, 'transaction')} done; "
            f"{count_text(self.failures, 'failure')}, {self.poisoned:,} to the poison queue{left}."
        )
        yield from (f"  {trouble}" for trouble in self.troubles)


class Forgotten(Facts, frozen=True):
    """Outbox entries from which undeclared names were removed."""

    names: list[str]
    entries: int

    def lines(self) -> Iterator[Line]:
        yield f"{listed(self.names)}: removed from {_entries(self.entries)}."


class OutboxFacts(msgspec.Struct, frozen=True):
    """Outbox entries that wait in a table; None if the table was not read."""

    table: str
    entries: int | None
    oldest_seconds: float | None
    unknown: dict[str, int]
    """Names that these modules do not declare, and the number of entries that need them."""


class QueueFacts(msgspec.Struct, frozen=True):
    """The approximate number of messages in a queue; None if it does not exist."""

    queue: str
    messages: int | None


class PatternsStatus(Facts, frozen=True):
    """The state of indexes, outbox and queues."""

    place: str
    is_healthy: bool
    indexes: list[IndexFacts]
    outbox: list[OutboxFacts]
    queues: list[QueueFacts]
    poison: QueueFacts | None
    late_seconds: float

    @property
    def exit_status(self) -> int:
        return int(not self.is_healthy)

    def lines(self) -> Iterator[Line]:
        yield from _index_lines(self.indexes)
        yield Table(
            ("outbox of", "entries", "oldest"),
            ((one.table, one.entries, _age(one.oldest_seconds)) for one in self.outbox),
        )
        unknown: Counter[str] = Counter()
        for one in self.outbox:
            unknown.update(one.unknown)
        if unknown:
            yield Table(("not declared here", "entries"), sorted(unknown.items()))
            yield "They need a newer worker; `partita patterns forget` removes undeclared names."
        if self.queues:
            rows = [(one.queue, one.messages) for one in self.queues]
            if self.poison is not None:
                rows.append((f"{self.poison.queue} (poison)", self.poison.messages))
            yield Table(("queue", "messages (about)"), rows)
        if self.poison is not None and self.poison.messages:
            yield "`partita patterns poison` prints work that failed too often."
        if any((one.oldest_seconds or 0) > self.late_seconds for one in self.outbox):
            yield f"Entries are older than {self.late_seconds:g} s: check that a worker runs."


class PoisonFacts(msgspec.Struct, frozen=True):
    """Work that failed too often."""

    what: str
    deliveries: int | None
    reason: str


class Poison(Facts, frozen=True):
    """The first messages of the poison queue, and how many were put back."""

    queue: str
    messages: list[PoisonFacts]
    count: int
    retried: int

    @property
    def exit_status(self) -> int:
        return int(bool(self.messages))

    def lines(self) -> Iterator[Line]:
        if self.retried:
            yield f"{count_text(self.retried, 'message')} put back on the queues."
        if self.messages:
            yield Table(
                ("what", "attempts", "reason"),
                ((one.what, one.deliveries, one.reason) for one in self.messages),
            )
            more = self.count - len(self.messages)
            if more > 0:
                yield f"About {more:,} more."
            yield "Remove the reason, then run `partita patterns poison --retry`."
        elif not self.retried:
            yield f"{self.queue} is empty."


class AccessFacts(msgspec.Struct, frozen=True):
    """A declared access pattern and its plan."""

    name: str
    plan: str
    is_refused: bool


class LintFacts(msgspec.Struct, frozen=True):
    code: str
    message: str
    hint: str


class TypeFacts(msgspec.Struct, frozen=True):
    """One entity type as it is declared."""

    name: str
    table: str
    partition: str
    row: str
    version: int
    fields: dict[str, str]
    indexes: list[IndexFacts]
    views: list[str]
    access: list[AccessFacts]
    lints: list[LintFacts]


class LockFacts(msgspec.Struct, frozen=True):
    """The lock file and its state: written, current, outdated, or broken."""

    file: str
    state: str
    differences: list[LintFacts]


class Checked(Facts, frozen=True):
    """Definitions, the plans of their access patterns, and lints."""

    is_good: bool
    types: list[TypeFacts]
    transactions: list[str]
    lock: LockFacts | None

    @property
    def exit_status(self) -> int:
        return int(not self.is_good)

    def lines(self) -> Iterator[Line]:
        for one in self.types:
            yield from _type_lines(one)
        if self.transactions:
            yield f"transactions: {listed(self.transactions)}"
        if self.lock is not None:
            yield from _lock_lines(self.lock)
        refused = sum(access.is_refused for one in self.types for access in one.access)
        if refused:
            yield (
                f"{count_text(refused, 'access pattern')} would scan: "
                "change the keys, add an index, or "
                'say allow="scan".'
            )


class Explained(Facts, frozen=True):
    """The plan of a query."""

    type: str
    plan: str
    table: str
    is_refused: bool
    requests: int
    summary: str
    text: str

    @property
    def exit_status(self) -> int:
        return int(self.is_refused)

    def lines(self) -> Iterator[Line]:
        yield self.text


def drift_counts(drifts: list[DriftFacts]) -> list[DriftCount]:
    """Count differences by type, index or field, and kind."""
    found = Counter((one.type, one.what, one.kind) for one in drifts)
    return [DriftCount(*key, count) for key, count in found.most_common()]


def index_facts(index: Any, state: str | None = None) -> IndexFacts:
    storage = getattr(index, "storage", None)
    return IndexFacts(
        type=index.owner.name,
        name=index.name,
        table=index.table,
        partition=index.partition.text,
        row=index.row.text,
        way="copy" if storage is None else storage.value,
        is_unique=bool(getattr(index, "is_unique", False)),
        is_local=index.is_local,
        state=state,
    )


def _entries(count: int) -> str:
    return count_text(count, "entry", "entries")


def _index_lines(indexes: list[IndexFacts]) -> Iterator[Line]:
    if indexes:
        yield Table(
            ("type", "index", "table", "way", "state"),
            ((one.type, one.name, one.table, _way(one), one.state) for one in indexes),
        )
    if any(one.state == "write-only" for one in indexes):
        yield "A write-only index becomes readable with `partita patterns rebuild`."


def _way(one: IndexFacts) -> str:
    words = [one.way if one.way == "copy" else f"list in {one.way}"]
    words += ["unique"] if one.is_unique else []
    words.append("same group" if one.is_local else "by worker")
    return ", ".join(words)


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:g} s"


def _type_lines(one: TypeFacts) -> Iterator[Line]:
    version = f", version {one.version}" if one.version > 1 else ""
    yield f"{one.name}{version}: {one.table}, {one.partition!r} and {one.row!r}"
    yield f"  fields  {listed(one.fields)}"
    for index in one.indexes:
        place = "" if index.is_local else f"{index.table}, {index.partition!r} and "
        yield f"  index   {index.name}: {place}{index.row!r} ({_way(index)})"
    for view in one.views:
        yield f"  view    {view}"
    for access in one.access:
        yield f"  access  {'REFUSED ' if access.is_refused else ''}{access.name}: {access.plan}"
    for lint in one.lints:
        yield f"  lint    {lint.code}: {lint.message} {lint.hint}"


def _lock_lines(lock: LockFacts) -> Iterator[Line]:
    told = {
        "written": f"{lock.file} was written: keep it with the code.",
        "current": f"{lock.file} is current.",
        "outdated": f"{lock.file} lacks new definitions: run with --update to write it.",
        "broken": f"{lock.file} and the code differ: stored entities no longer fit.",
    }
    yield told[lock.state]
    yield from (f"  {each.code} {each.message} {each.hint}" for each in lock.differences)
