"""The observer of a partition on NATS: it never takes the lease and writes nothing.

Status comes from the registers, the stream and the files; locks from the primary, which is asked.
For rows it follows the log into a copy of the state, which is made when rows are first asked for:
without a heartbeat, so that it does not prevent the truncation of the log.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from partita.addresses import without_password
from partita.clock import SystemClock
from partita.errors import (
    ChecksumError,
    DamageError,
    NotReadableError,
    PartitaError,
    QuorumLostError,
    UnavailableError,
    UsageError,
)
from partita.reliable.nats.api import StreamAnswer
from partita.reliable.nats.jetstream import JetStream, list_partitions
from partita.reliable.nats.request_transport import NatsRequestTransport
from partita.reliable.observing.answering import (
    Question,
    Refusal,
    Reply,
    decode_reply,
    encode,
    subject_of,
)
from partita.reliable.observing.facts import (
    BackupFacts,
    CheckpointFacts,
    CollectionFacts,
    LeaseFacts,
    LockReport,
    LogFacts,
    NodeFacts,
    ReplicaFacts,
    RowPage,
    StateFacts,
)
from partita.reliable.observing.observers import (
    LOCKS_PER_PAGE,
    ROWS_PER_PAGE,
    replica_facts,
    seconds_since,
)
from partita.reliable.observing.views import chosen, collection_facts, row_page
from partita.reliable.replication.quorum_log import QuorumLog
from partita.reliable.replication.replica import (
    BACKUP_FILE,
    CHECKPOINT_FILE,
    LEASE_KEY,
    REPLICA_PREFIX,
    BackupNote,
    Heartbeat,
    Lease,
)
from partita.reliable.replication.stream import NoAnswer
from partita.reliable.state.records import decode_record, record_hash
from partita.reliable.state.state import State
from partita.reliable.storage.checkpoint import COPY, Reader
from partita.ticks import Clock, moment

__all__ = ["Moved", "NatsObserver", "list_partitions", "observe_partition"]

ANSWER_SECONDS = 5.0
FILE_SECONDS = 60.0
COPY_SECONDS = 60.0
"""How long the first request for rows waits until the copy has reached the end of the log."""
STEP_DOWN_SECONDS = 10.0
"""How long the primary may take to finish the record in flight and give up the lease."""
MOVE_SECONDS = 30.0
"""How long to wait for the next primary after the last one has stepped down."""
LOOK_SECONDS = 0.1
AGAIN_SECONDS = 0.5
RECORDS_AT_ONCE = 64
"""Records that the copy applies before other tasks run."""


class Moved(msgspec.Struct, frozen=True):
    """A primary that was moved to another replica."""

    partition: str
    before: ReplicaFacts
    after: ReplicaFacts
    epoch_before: int
    epoch: int
    sequence: int
    """The last record of the old primary."""
    seconds: float
    """From the request until the next primary was elected."""


class NatsObserver:
    """Implements `observers.Observer` for a partition; open it with `observe_partition`."""

    def __init__(self, stream: JetStream, where: str, clock: Clock) -> None:
        self._stream = stream
        self._where = where
        self._clock = clock
        self._asking = NatsRequestTransport(stream.link, is_member=False)
        self._copy: _Copy | None = None

    @property
    def partition(self) -> str:
        return self._stream.partition

    async def status(self) -> StateFacts:
        with _answered(self.partition):
            described, held, beats = await asyncio.gather(
                self._stream.describe(timeout=ANSWER_SECONDS),
                self._stream.read_register(LEASE_KEY, timeout=ANSWER_SECONDS),
                self._stream.list_registers(REPLICA_PREFIX, timeout=ANSWER_SECONDS),
            )
            first, last = _bounds(described)
            raw = await self._stream.get(last, timeout=ANSWER_SECONDS) if last >= first else None
            checkpoint = await self._checkpoint()
            backup = await self._backup()
        record = None if raw is None else decode_record(raw)
        replicas = [
            replica_facts(key.removeprefix(REPLICA_PREFIX), _beat(beat.value), last)
            for key, beat in sorted(beats.items())
        ]
        facts = StateFacts(
            where=self._where,
            kind="nats",
            partition=self.partition,
            sequence=last,
            epoch=record.epoch if record is not None else _sealed(described),
            last_commit=None if record is None else moment(record.ticks),
            lease=None if held is None else _lease(held.value),
            replicas=replicas,
            nodes=_nodes(described),
            log=LogFacts(first, last, described.state.bytes),
            checkpoint=checkpoint,
            backup=backup,
            notes=[],
        )
        return msgspec.structs.replace(facts, notes=_notes(facts))

    async def collections(self) -> list[CollectionFacts]:
        state = await self._state()
        return [collection_facts(state, each) for each in chosen(state)]

    async def rows(
        self,
        collection: str,
        *,
        after: str | None = None,
        start: object = None,
        limit: int = ROWS_PER_PAGE,
    ) -> RowPage:
        state = await self._state()
        now = self._clock.ticks()
        return row_page(state, collection, now, after=after, start=start, limit=limit)

    async def locks(self, *, limit: int = LOCKS_PER_PAGE) -> LockReport:
        primary = _primary(await self.status())
        reply = await self._ask(primary, Question("locks", limit=limit))
        return reply.locks or LockReport(primary.replica, [], 0, 0, 0)

    async def refresh(self) -> None:
        """Do nothing: the copy follows the log."""

    async def close(self) -> None:
        if self._copy is not None:
            await self._copy.close()
        await self._stream.close()

    # --- moving the primary ---------------------------------------------------------------

    async def step_down(self) -> Moved:
        """Let the primary hand over to another replica, and wait for the next one.

        It gives the lease to the replica that has applied most, since a lease that is merely
        released can be taken back by the same replica if the others are slow to ask. The replicas
        of a service are left to the service, which places its primaries.
        """
        before = await self.status()
        primary = _primary(before)
        if len(before.replicas) < 2:
            raise UsageError(
                "NoOtherReplica",
                f"{primary.address} is the only running replica of {self.partition!r}; it stays"
                " primary.",
                facts={"partition": self.partition},
                hint="Start another replica, then repeat the command.",
            )
        others = [
            each
            for each in before.replicas
            if each.replica != primary.replica and not each.is_placed
        ]
        if others:
            furthest = max(others, key=lambda each: each.applied)
            try:
                return await self._move(before, primary, furthest.replica)
            except UsageError as error:
                if error.code != "SuccessorRefused":
                    raise
        return await self._move(before, primary, "")

    async def promote(self, replica: str) -> Moved:
        """Make a replica, named by its id or its address, the primary."""
        before = await self.status()
        primary = _primary(before)
        target = _chosen_replica(before, replica)
        if target.is_placed:
            raise UsageError(
                "PrimaryIsPlaced",
                f"The service that {self.partition!r} belongs to decides which replica is primary.",
                facts={"partition": self.partition},
                hint="Stop the process of the primary: the service moves its partitions.",
            )
        if target.replica == primary.replica:
            raise UsageError(
                "SuccessorRefused",
                f"The replica {replica!r} is the primary already; nothing was changed.",
                facts={"partition": self.partition, "replica": target.replica},
                hint="Choose another replica.",
            )
        moved = await self._move(before, primary, target.replica)
        if moved.after.replica != target.replica:
            raise _another_won(self.partition, target.replica, moved.after)
        return moved

    async def _move(self, before: StateFacts, primary: ReplicaFacts, to: str) -> Moved:
        began = self._clock.monotonic()
        reply = await self._ask(primary, Question("step_down", to=to), STEP_DOWN_SECONDS)
        after = None
        while after is None:
            if self._clock.monotonic() - began > MOVE_SECONDS:
                raise _none_won(before, primary)
            await asyncio.sleep(LOOK_SECONDS)
            after = await self._find_next(reply.epoch)
        seconds = round(self._clock.monotonic() - began, 2)
        return Moved(
            self.partition,
            primary,
            after,
            reply.epoch,
            after.epoch or 0,
            reply.sequence,
            seconds,
        )

    async def _find_next(self, epoch: int) -> ReplicaFacts | None:
        """Return the primary of an epoch after this one; None while there is none."""
        with contextlib.suppress(UnavailableError):  # NATS may be electing a leader
            found = await self.status()
            after = found.primary
            if after is not None and (after.epoch or 0) > epoch:
                return after
        return None

    async def _ask(
        self, replica: ReplicaFacts, question: Question, timeout: float = ANSWER_SECONDS
    ) -> Reply:
        subject = subject_of(self.partition, replica.replica)
        try:
            raw = await self._asking.ask(subject, encode(question), timeout=timeout)
            reply = decode_reply(raw)
        except (NoAnswer, msgspec.MsgspecError) as error:
            raise UnavailableError(
                "ReplicaNotAnswering",
                f"The primary {replica.address} does not answer observers.",
                facts={"partition": self.partition, "replica": replica.replica},
                hint="Upgrade it if its version is below 0.2; otherwise check that its process and"
                " event loop run, and repeat the command.",
            ) from error
        if reply.refusal is not None:
            raise _refused(reply.refusal)
        return reply

    # --- files ----------------------------------------------------------------------------

    async def _checkpoint(self) -> CheckpointFacts | None:
        head = await self._stream.file_head(CHECKPOINT_FILE, timeout=ANSWER_SECONDS)
        if head is None:
            return None
        first = head.first
        reader = Reader(COPY, head.size, lambda start, count: first[start : start + count])
        try:
            heading = reader.read_heading()
        except DamageError:
            return CheckpointFacts(0, head.size, None, head.stored_at)
        return CheckpointFacts(
            heading.sequence,
            head.size,
            moment(heading.ticks),
            head.stored_at,
            self._age(head.stored_at),
        )

    async def _backup(self) -> BackupFacts | None:
        try:
            raw = await self._stream.get_file(BACKUP_FILE, timeout=ANSWER_SECONDS)
        except ChecksumError:
            return None
        if raw is None:
            return None
        note = msgspec.msgpack.decode(raw, type=BackupNote)
        age = seconds_since(self._clock, note.made_at)
        return BackupFacts(note.last_sequence, note.kind, moment(note.made_at), age, note.address)

    def _age(self, stored_at: str) -> float | None:
        try:
            stored = msgspec.convert(stored_at, datetime, strict=False)
        except msgspec.ValidationError:
            return None
        return seconds_since(self._clock, round(stored.timestamp() * 1e7))

    # --- the copy -------------------------------------------------------------------------

    async def _state(self) -> State:
        if self._copy is None:
            self._copy = _Copy(self._stream, self._clock)
        return await self._copy.current()


class _Copy:
    """A copy of the state that follows the log."""

    def __init__(self, stream: JetStream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._state = State()
        self._log = QuorumLog(stream, clock)
        self._failure: PartitaError | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def current(self) -> State:
        """Return the state when it has reached what is now the end of the log."""
        last = await self._log.refresh()
        deadline = self._clock.monotonic() + COPY_SECONDS
        while self._state.sequence < last:
            if self._failure is not None:
                raise self._failure
            if self._clock.monotonic() > deadline:
                raise NotReadableError(
                    "NotReadable",
                    f"The observer has applied sequence {self._state.sequence}, not yet {last}.",
                    facts={"sequence": last, "applied": self._state.sequence},
                    hint="Repeat the request: the copy continues to be read.",
                )
            await asyncio.sleep(0.01)
        return self._state

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except NotReadableError:
                await self._load()
            except UnavailableError:
                await asyncio.sleep(AGAIN_SECONDS)
            except PartitaError as error:
                self._failure = error
                return

    async def _follow(self) -> None:
        await self._log.refresh()
        records = self._log.follow(self._state.sequence + 1)
        async with contextlib.aclosing(records):
            async for sequence, raw in records:
                self._state.apply(decode_record(raw), record_hash(raw))
                if sequence % RECORDS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _load(self) -> None:
        """Load the published checkpoint: the log starts after this state."""
        try:
            content = await self._stream.get_file(CHECKPOINT_FILE, timeout=FILE_SECONDS)
        except NoAnswer:
            content = None
        if content is not None:
            state = State()
            found = content
            reader = Reader(COPY, len(found), lambda start, count: found[start : start + count])
            (await reader.read_all()).fill(state)
            if state.sequence > self._state.sequence:
                self._state = state
                return
        await asyncio.sleep(AGAIN_SECONDS)


@contextlib.asynccontextmanager
async def observe_partition(
    where: str | Sequence[str],
    partition: str,
    *,
    timeout: float = 30.0,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[NatsObserver]:
    """Observe one partition on NATS; ConfigurationError (PartitionNotFound) if there is none."""
    clock = clock or SystemClock()
    stream = await JetStream.attach(
        where, partition=partition, timeout=timeout, connect_options=connect_options, clock=clock
    )
    addresses = [where] if isinstance(where, str) else where
    observer = NatsObserver(stream, ",".join(map(without_password, addresses)), clock)
    try:
        yield observer
    finally:
        await observer.close()


def _bounds(described: StreamAnswer) -> tuple[int, int]:
    state = described.state
    return (state.first_seq if state.messages else state.last_seq + 1), state.last_seq


def _sealed(described: StreamAnswer) -> int:
    return int(described.config["subjects"][0].rpartition(".e")[2])


def _beat(raw: bytes) -> Heartbeat:
    return msgspec.msgpack.decode(raw, type=Heartbeat)


def _lease(raw: bytes) -> LeaseFacts:
    lease = msgspec.msgpack.decode(raw, type=Lease)
    return LeaseFacts(lease.replica, lease.address)


def _nodes(described: StreamAnswer) -> list[NodeFacts]:
    peers = described.cluster
    leader = [NodeFacts(peers.leader, True, True, False, 0)] if peers.leader else []  # noqa: FBT003
    others = [
        NodeFacts(peer.name, False, peer.current, peer.offline, peer.lag)  # noqa: FBT003
        for peer in peers.replicas
    ]
    return sorted([*leader, *others], key=lambda node: node.name)


def _notes(facts: StateFacts) -> list[str]:
    notes = []
    if not facts.replicas:
        notes.append("No replica is running: nothing can be committed.")
    elif facts.primary is None:
        notes.append("There is no primary at the moment; one is elected within seconds.")
    down = [node.name for node in facts.nodes if node.is_offline or not node.is_current]
    if down:
        notes.append(f"NATS nodes that are down or behind: {', '.join(down)}.")
    if facts.log is not None and facts.checkpoint is None and facts.log.first > 1:
        notes.append("There is no published checkpoint, and the log does not begin at record 1.")
    if facts.backup is None:
        notes.append("No replica has taken a backup with this version; see state.backup().")
    return notes


def _primary(facts: StateFacts) -> ReplicaFacts:
    if facts.primary is not None:
        return facts.primary
    raise UnavailableError(
        "NoPrimary",
        f"The partition {facts.partition!r} has no primary: "
        + ("no replica is running." if not facts.replicas else "one is being elected."),
        facts={"partition": facts.partition, "replicas": len(facts.replicas)},
        hint="Start a process that opens the partition."
        if not facts.replicas
        else "Repeat the command in some seconds.",
    )


def _chosen_replica(facts: StateFacts, name: str) -> ReplicaFacts:
    found = [each for each in facts.replicas if name in (each.replica, each.address)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{each.replica} ({each.address})" for each in facts.replicas)
    problem = "is not a running replica" if not found else "is the address of several replicas"
    raise UsageError(
        "SuccessorRefused",
        f"{name!r} {problem} of {facts.partition!r}; the primary was not changed.",
        facts={"partition": facts.partition},
        hint=f"Name one of these by its id: {known}.",
    )


def _none_won(before: StateFacts, primary: ReplicaFacts) -> UnavailableError:
    return UnavailableError(
        "NoPrimary",
        f"{primary.address} has stepped down, and no replica of {before.partition!r} became"
        f" primary within {MOVE_SECONDS:.3g} s.",
        facts={"partition": before.partition},
        hint="Run `partita state status` and check the logging output of the replicas.",
    )


def _another_won(partition: str, wanted: str, after: ReplicaFacts) -> UnavailableError:
    return UnavailableError(
        "SuccessorFailed",
        f"The replica {wanted!r} did not take over; {after.address} is the primary of"
        f" {partition!r} now.",
        facts={"partition": partition, "primary": after.replica, "wanted": wanted},
        hint="Check that the chosen replica runs, then repeat the command.",
    )


def _refused(refusal: Refusal) -> PartitaError:
    kind = UsageError if refusal.code == "SuccessorRefused" else UnavailableError
    return kind(refusal.code, refusal.message, hint=refusal.hint)


@contextlib.contextmanager
def _answered(partition: str) -> Iterator[None]:
    try:
        yield
    except NoAnswer as error:
        raise QuorumLostError(
            "QuorumLost",
            f"The NATS cluster does not answer for the partition {partition!r}.",
            facts={"partition": partition, "cause": str(error)},
            hint="Start the NATS nodes that are down; a majority is needed.",
        ) from error
