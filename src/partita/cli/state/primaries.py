"""`partita state status`, `promote` and `step-down`: partitions on NATS, seen by an observer."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec

from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table, show
from partita.cli.kit.target import get_target
from partita.cli.kit.text import count_text, size_text
from partita.errors import ConfigurationError, PartitaError
from partita.reliable.observing.facts import (
    BackupFacts,
    CheckpointFacts,
    LogFacts,
    NodeFacts,
    ReplicaFacts,
    StateFacts,
)
from partita.reliable.observing.nats_observer import (
    Moved,
    NatsObserver,
    list_partitions,
    observe_partition,
)

T = TypeVar("T")

# Without a handler Python prints the warnings of a connection; the error of the verb says the same.
logging.getLogger("partita.reliable").addHandler(logging.NullHandler())

CONNECT_SECONDS = 10.0
SERVICE_SUFFIX = "-service"
"""The log of a service's record has no replicas."""


class PartitionStatus(msgspec.Struct, frozen=True):
    """One partition; see StateFacts."""

    partition: str
    sequence: int
    epoch: int
    last_commit: str | None
    primary: str | None
    """The id of the primary; None while there is none."""
    replicas: list[ReplicaFacts]
    nodes: list[NodeFacts]
    log: LogFacts | None
    checkpoint: CheckpointFacts | None
    backup: BackupFacts | None
    notes: list[str]


class StatesOnNats(Facts, frozen=True):
    """The partitions of a cluster."""

    where: str
    partitions: list[PartitionStatus]

    @property
    def exit_status(self) -> int:
        return int(any(one.primary is None for one in self.partitions))

    def lines(self) -> Iterator[Line]:
        if not self.partitions:
            yield f"{self.where} has no partitions."
        for one in self.partitions:
            yield from _partition_lines(one)


class PrimaryMoved(Facts, frozen=True):
    """A primary that was moved."""

    partition: str
    before: ReplicaFacts
    after: ReplicaFacts
    epoch_before: int
    epoch: int
    sequence: int
    seconds: float

    def lines(self) -> Iterator[Line]:
        yield (
            f"{self.after.address} ({self.after.replica}) is the primary of {self.partition} in"
            f" epoch {self.epoch}, after {self.seconds:.1f} s."
        )
        yield (
            f"{self.before.address} ({self.before.replica}) was primary of epoch"
            f" {self.epoch_before} up to record {self.sequence}; it is a secondary now."
        )


def status(given: Given) -> int:
    """Print the partitions, once or again and again."""
    url = _url(given)
    if given.watch is None:
        found = asyncio.run(_look(url, given.partition))
        show(found, is_json=given.json)
        return found.exit_status
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(url, given))
    return 0


def promote(given: Given) -> int:
    return _move(given, lambda observer: observer.promote(given.replica))


def step_down(given: Given) -> int:
    return _move(given, NatsObserver.step_down)


def _move(given: Given, order: Callable[[NatsObserver], Awaitable[Moved]]) -> int:
    async def work() -> Moved:
        async with observe_partition(url, given.partition, timeout=CONNECT_SECONDS) as observer:
            return await order(observer)

    url = _url(given)
    moved = asyncio.run(work())
    show(PrimaryMoved(*msgspec.structs.astuple(moved)), is_json=given.json)
    return 0


def _url(given: Given) -> str:
    text = get_target(
        given.url or given.connect, subject="The NATS cluster", forms="nats://host:4222"
    )
    if not text.startswith(("nats://", "tls://")):
        raise ConfigurationError(
            "Configuration",
            f"`partita state {given.verb}` is for partitions on NATS.",
            hint="Give --connect nats://host:4222; `partita state inspect` reads a folder.",
        )
    return text


async def _look(url: str, partition: str | None) -> StatesOnNats:
    names = [partition] if partition else await list_partitions(url, timeout=CONNECT_SECONDS)
    found: list[PartitionStatus] = []
    where = ""
    for name in names:
        if partition is None and name.endswith(SERVICE_SUFFIX):
            continue
        try:
            async with observe_partition(url, name, timeout=CONNECT_SECONDS) as observer:
                facts = await observer.status()
        except PartitaError as error:
            if partition is not None:
                raise
            found.append(_unreadable(name, error))  # the others are shown all the same
            continue
        where = facts.where
        found.append(_status_of(facts))
    return StatesOnNats(where or "The cluster", found)


async def _watch(url: str, given: Given) -> None:
    while True:
        show(await _look(url, given.partition), is_json=given.json)
        await asyncio.sleep(given.watch)


def _status_of(facts: StateFacts) -> PartitionStatus:
    return PartitionStatus(
        facts.partition or "",
        facts.sequence,
        facts.epoch,
        facts.last_commit,
        None if facts.primary is None else facts.primary.replica,
        facts.replicas,
        facts.nodes,
        facts.log,
        facts.checkpoint,
        facts.backup,
        facts.notes,
    )


def _unreadable(name: str, error: PartitaError) -> PartitionStatus:
    note = f"It cannot be read: {error.message} ({error.code})"
    return PartitionStatus(name, 0, 0, None, None, [], [], None, None, None, [note])


def _partition_lines(one: PartitionStatus) -> Iterator[Line]:
    primary = next((each for each in one.replicas if each.replica == one.primary), None)
    yield f"{one.partition}"
    yield f"  primary     {'none' if primary is None else f'{primary.address} ({one.primary})'}"
    yield f"  sequence    {one.sequence}, epoch {one.epoch}, last commit {one.last_commit or '-'}"
    if one.log is not None:
        yield (
            f"  log         records {one.log.first} to {one.log.last},"
            f" {size_text(one.log.bytes or 0)}"
        )
    if one.checkpoint is not None:
        age = _age(one.checkpoint.age_seconds)
        size = size_text(one.checkpoint.bytes)
        yield f"  checkpoint  record {one.checkpoint.sequence}, {size}, {age}"
    if one.backup is not None:
        age = _age(one.backup.age_seconds)
        yield f"  backup      record {one.backup.sequence} ({one.backup.kind}), {age}"
    for node in one.nodes:
        yield f"  node        {_node_text(node)}"
    if one.replicas:
        yield Table(
            ("  replica", "address", "role", "applied", "lag", "checkpoint", "version", "schemas"),
            (
                (
                    f"  {each.replica}",
                    each.address,
                    each.role,
                    each.applied,
                    each.lag,
                    each.checkpoint,
                    each.version,
                    ", ".join(f"{name} {number}" for name, number in sorted(each.schemas.items())),
                )
                for each in one.replicas
            ),
        )
    for note in one.notes:
        yield f"  note        {note}"


def _node_text(node: NodeFacts) -> str:
    if node.is_leader:
        return f"{node.name}, leader of the log"
    if node.is_offline:
        return f"{node.name}, offline"
    if not node.is_current:
        return f"{node.name}, behind by {count_text(node.lag, 'message')}"
    return f"{node.name}, current"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "age unknown"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} old"
    return f"{seconds:.0f} s old"
