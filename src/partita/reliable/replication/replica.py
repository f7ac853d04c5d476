"""A replica of a partition on a quorum log: its roles, and the changes between them.

A secondary follows the log and applies it. The replica that holds the lease reads to the end of
the log and appends a record that opens its epoch; when that is stored, it is primary, and every
replica ignores later records of older epochs. It renews the lease in a task of its own meanwhile,
so that slow answers do not let it expire. The lease decides which replica tries to become
primary; only a fenced append proves that it is. A primary that cannot renew its lease in time,
whose append is refused, or that loses the quorum, stops at once and follows the log again.
"""

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING

import msgspec

from partita.errors import (
    ChainBrokenError,
    DamageError,
    InDoubtError,
    NotPrimaryError,
    NotReadableError,
    PartitaError,
    QuorumLostError,
    SchemaError,
    StateClosedError,
    UnavailableError,
    UsageError,
)
from partita.reliable.manager.backup import Backup
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.replication.quorum_log import QuorumLog
from partita.reliable.replication.stream import NoAnswer, Stream
from partita.reliable.state.records import (
    FORMAT,
    Record,
    decode_record,
    encode_record,
    record_hash,
)
from partita.reliable.state.state import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

VERSION: str = sys.modules["partita"].__version__
"""Read and not imported: the package itself is above all its folders."""
LEASE_KEY = "lease"
REPLICA_PREFIX = "replica."
CHECKPOINT_FILE = "checkpoint"
BACKUP_FILE = "backup"
"""A BackupNote: when the newest backup was made."""

ANSWER_SECONDS = 2.0
RENEW_SECONDS_MIN = 0.01
"""The shortest pause between two renewals of the lease."""
FILE_SECONDS = 60.0
SHORT_ANSWERS_MAX = 40
"""Consecutive answers with a log shorter than the state, after which a replica stops."""
BEHIND_SECONDS = 15.0
"""How long a log may seem shorter than the state: a node that was down lags for a while."""
DRAIN_SECONDS = 1.0
"""How long a primary that steps down waits for the record in flight, which then is not in doubt."""
HAND_OVER_LAG_MAX = 10_000
"""Records that the chosen replica may be behind: it applies them before it is primary."""
HAND_OVER_ATTEMPTS = 5
"""Attempts to write the lease of the next primary; a renewal on its way makes one fail."""


class Timing(msgspec.Struct, frozen=True):
    """The times of the lease; the register's time to live is `lease_seconds`.

    A renewal must be answered within half of `lease_seconds` less `margin_seconds`: the next one
    is sent only then, since it names the revision of the one before.
    """

    lease_seconds: float = 3.0
    renew_seconds: float = 0.8
    margin_seconds: float = 0.7
    """A lease counts as lost this long before it expires, because of clock drift."""

    def pause(self, left: float, round_trip: float) -> float:
        """Return how long to wait before a renewal of a lease that is valid for `left` seconds.

        >>> Timing().pause(2.3, 0.1), Timing().pause(1.3, 1.0)
        (0.8, 0.01)
        """
        return min(self.renew_seconds, max(left - 2 * round_trip, RENEW_SECONDS_MIN))


class Lease(msgspec.Struct, frozen=True):
    """The content of the lease: its holder."""

    replica: str
    address: str
    is_given: bool = False
    """Whether the primary before wrote it, to hand over to this replica."""


class Heartbeat(msgspec.Struct, frozen=True):
    """The state of a live replica, which it writes regularly."""

    applied: int
    checkpoint: int
    """The replica does not need the log up to this sequence."""
    readable: dict[str, int]
    is_primary: bool
    address: str
    version: str = ""
    """The version of Partita; empty for versions before 0.2."""
    epoch: int = 0
    is_placed: bool = False
    """Whether a service decides which replica is primary."""


class BackupNote(msgspec.Struct, frozen=True):
    """The newest backup of the partition, as far as replicas have taken it."""

    made_at: int
    """In ticks."""
    last_sequence: int
    kind: str
    number: int
    address: str
    """The replica that took it."""


_encode = msgspec.msgpack.Encoder().encode


class Replica:
    """Decides the role of one StateManager, until `close` or damage."""

    def __init__(
        self,
        manager: StateManager,
        log: QuorumLog,
        stream: Stream,
        *,
        address: str,
        timing: Timing,
    ) -> None:
        self._manager = manager
        self._log = log
        self._stream = stream
        self._clock: Clock = manager.clock
        self._id = manager.replica_id
        self._address = address
        self._timing = timing
        self._lease_revision = 0
        self._lease_until = 0.0
        self._round_trip = 0.0
        """Seconds from the last write of the lease to its answer."""
        self._has_no_answer = False
        """Whether renewals got no answer while the lease was valid: the nodes do not answer."""
        self._heartbeat_revision = 0
        self._knows_primary = False
        self._tried_epoch = 0
        self._short_answers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._deposed = asyncio.Event()
        self._changed = asyncio.Event()
        self._has_new_role = asyncio.Event()  # the next heartbeat must not wait
        self.copies = 0
        """The number of full copies, because the log was truncated before it was read."""
        self.wants_primary = True
        """False keeps the replica secondary."""
        self.patience = 0.0
        """Seconds for which a free lease is left to preferred replicas."""
        self._free_since: float | None = None
        self._has_stepped_down = False
        self.failure: PartitaError | None = None
        """Why the replica has stopped; None while it works."""
        self.on_role: Callable[[bool], Awaitable[None]] | None = None
        """Called with True after a promotion, with False after its end."""
        log.on_quorum_lost = self._quorum_lost
        manager.on_stopped = self._stopped
        manager.checkpoint_writer.purge_limit = self._purge_limit
        manager.checkpoint_writer.after_checkpoint = self._publish_checkpoint
        manager.backups.after_backup = self._publish_backup
        manager.descriptions.check_promotion = self._check_promotion

    # --- life cycle -----------------------------------------------------------------------

    def _spawn(self, work: "Coroutine[None, None, None]") -> "asyncio.Task[None]":
        """Start a task that `close` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        return task

    def start(self) -> None:
        self._spawn(self._run())
        self._spawn(self._beat())

    async def check_place(self) -> None:
        """Raise if the local state does not belong to this log."""
        state = self._manager.state
        if not state.sequence:
            return
        deadline = self._clock.monotonic() + BEHIND_SECONDS
        while await self._log.refresh() < state.sequence:
            if self._clock.monotonic() > deadline:
                raise _log_behind(state.sequence, self._log.last)
            await asyncio.sleep(self._timing.renew_seconds)
        try:
            stored = await self._stream.get(state.sequence, timeout=ANSWER_SECONDS)
        except NoAnswer:
            return  # the records that follow are verified anyway
        # A record of an older epoch was ignored, so its hash is not in the state.
        if stored is None or decode_record(stored).epoch < state.epoch:
            return
        if record_hash(stored) != state.hash:
            raise _another_log(state.sequence)

    async def ready(self, timeout: float) -> None:
        """Return when the log was read to its end and a primary is known."""
        last = self._log.last
        deadline = self._clock.monotonic() + timeout
        while self._manager.sequence < last or not (self._knows_primary or self.is_primary):
            if self.failure is not None:
                raise self.failure
            if self._clock.monotonic() > deadline:
                raise QuorumLostError(
                    "QuorumLost",
                    f"No primary was found within {timeout:.3g} s.",
                    facts={"applied": self._manager.sequence, "last": last},
                    hint="Check the NATS nodes: a majority must run and be connected.",
                )
            await asyncio.sleep(0.01)
        if self._manager.sequence > self._log.last:
            await self._log.refresh()

    @property
    def is_primary(self) -> bool:
        return self._manager.is_primary

    async def wait_primary(self, timeout: float) -> bool:
        """Wait until this replica is primary; return False after the time-out."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._manager.is_primary and self.failure is None:
                    self._changed.clear()
                    await self._changed.wait()
        return self._manager.is_primary

    async def step_down(self, to: str = "") -> None:
        """Stop being primary and release the lease, or give it to the replica `to`.

        The record in flight is waited for; later commits are refused with NotPrimaryError.
        """
        successor = await self._find_successor(to) if to else None
        self._is_giving_lease = successor is not None
        self._has_stepped_down = True
        if self._manager.is_primary:
            self._depose(_not_primary("", "This replica is handing over to another."))
            await self._drain()
        try:
            if successor is not None:
                await self._give_lease(successor)
            else:
                await self._release_lease()
        except NoAnswer:
            pass  # the lease then expires
        finally:
            self._is_giving_lease = False

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._manager.committer_idle()

    async def _find_successor(self, replica_id: str) -> Lease:
        """Return the lease of another replica; raise if it cannot become primary now."""
        try:
            found = (await self.heartbeats()).get(replica_id)
        except NoAnswer:
            raise _no_quorum() from None
        lag = None if found is None else self._manager.sequence - found.applied
        if found is None or lag is None or lag > HAND_OVER_LAG_MAX or replica_id == self._id:
            raise _successor_refused(replica_id, lag, is_primary=replica_id == self._id)
        return Lease(replica_id, found.address, is_given=True)

    async def _give_lease(self, successor: Lease) -> None:
        """Write the lease in the name of another replica, which renews it when it reads it.

        If that replica does not, the lease expires, and any replica takes it.
        """
        self._lease_revision = 0
        for _ in range(HAND_OVER_ATTEMPTS):
            found = await self._stream.read_register(LEASE_KEY, timeout=ANSWER_SECONDS)
            if found is not None:
                lease = msgspec.msgpack.decode(found.value, type=Lease)
                if lease.replica != self._id:
                    return  # another replica has taken it meanwhile
            given = await self._stream.write_register(
                LEASE_KEY,
                _encode(successor),
                revision=0 if found is None else found.revision,
                timeout=ANSWER_SECONDS,
            )
            if given is not None:
                return

    async def close(self) -> None:
        """Stop all tasks, release the lease and remove the heartbeat."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(NoAnswer):
            await self._release_lease()
            key = REPLICA_PREFIX + self._id
            await self._stream.remove_register(
                key, revision=self._heartbeat_revision, timeout=ANSWER_SECONDS
            )

    # --- the two roles --------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                leasing = await self._be_secondary()
                await self._be_primary(leasing)
        except PartitaError as error:
            self._fail(error)
        except Exception:
            self._fail(
                StateClosedError("StateClosed", "The replica stopped because of an internal error.")
            )
            raise

    def _fail(self, error: PartitaError) -> None:
        logger.error("replica %s stopped: %s", self._id, error)
        self.failure = error
        self._manager.depose(error)
        self._changed.set()

    async def _be_secondary(self) -> "asyncio.Task[None]":
        """Follow the log until this replica has opened an epoch; return the task of its lease."""
        following = self._spawn(self._follow())
        try:
            while True:
                trying = self._spawn(self._obtain_lease())
                await asyncio.wait((following, trying), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    trying.cancel()
                    following.result()
                    raise StateClosedError("StateClosed", "The stream was closed.")
                leasing = self._spawn(self._keep_lease())
                try:
                    if await self._catch_up(leasing):
                        following.cancel()
                        await asyncio.wait((following,))
                        if await self._open_epoch() and not leasing.done():
                            return leasing
                        following = self._spawn(self._follow())
                except BaseException:
                    leasing.cancel()
                    raise
                await _end(leasing)
        finally:
            following.cancel()

    async def _follow(self) -> None:
        manager = self._manager
        while True:
            try:
                async for sequence, raw in self._log.follow(manager.sequence + 1):
                    if sequence > manager.sequence:
                        manager.apply(sequence, raw)
                        if sequence % 64 == 0:
                            await asyncio.sleep(0)
            except NotReadableError:
                await self._copy()
            else:
                return

    async def _copy(self) -> None:
        """Load the checkpoint that the primary published: the log starts after this state."""
        state = State()
        try:
            content = await self._stream.get_file(CHECKPOINT_FILE, timeout=FILE_SECONDS)
        except NoAnswer:
            await asyncio.sleep(self._timing.renew_seconds)
            return
        if content is None:
            await asyncio.sleep(self._timing.renew_seconds)
            return
        await self._manager.checkpoints.install(content, state)
        if state.sequence <= self._manager.sequence:
            await asyncio.sleep(self._timing.renew_seconds)
            return
        self._manager.replace(state)
        self.copies += 1
        logger.info("replica %s loaded a full copy at sequence %d", self._id, state.sequence)

    async def _obtain_lease(self) -> None:
        """Return when this replica holds the lease."""
        while True:
            if self.wants_primary and await self._take_lease():
                return
            jitter = self._clock.random_bytes(1)[0] / 512
            await asyncio.sleep(self._timing.renew_seconds * (0.5 + jitter))

    async def _take_lease(self) -> bool:
        try:
            found = await self._stream.read_register(LEASE_KEY, timeout=ANSWER_SECONDS)
            if found is not None:
                lease = msgspec.msgpack.decode(found.value, type=Lease)
                if lease.replica != self._id:
                    self._free_since = None
                    self._has_stepped_down = False
                    self._note_primary(lease.address)
                    return False
                if self._has_stepped_down and not lease.is_given:
                    # It was renewed while it was released.
                    if not self._is_giving_lease:
                        self._lease_revision = found.revision
                        await self._release_lease()
                    return False
            elif self._leaves_lease(self._clock.monotonic()):
                return False
            asked = self._clock.monotonic()
            revision = await self._stream.write_register(
                LEASE_KEY,
                _encode(Lease(self._id, self._address)),
                revision=0 if found is None else found.revision,
                timeout=ANSWER_SECONDS,
            )
        except NoAnswer:
            return False
        if revision is None:
            return False
        self._free_since = None
        self._has_stepped_down = False
        self._note_lease(revision, asked)
        return True

    def _note_lease(self, revision: int, asked: float) -> None:
        """Note a write of the lease that was sent at `asked`: it was stored after that."""
        self._lease_revision = revision
        self._lease_until = asked + self._timing.lease_seconds - self._timing.margin_seconds
        self._round_trip = self._clock.monotonic() - asked

    async def _keep_lease(self) -> None:
        """Renew the lease; return when it is lost."""
        is_held = True
        while is_held:
            left = self._lease_until - self._clock.monotonic()
            await asyncio.sleep(self._timing.pause(left, self._round_trip))
            is_held = await self._renew()

    def _leaves_lease(self, now: float) -> bool:
        """Return whether a free lease is still left to other replicas."""
        if self._free_since is None:
            self._free_since = now
        at_least = 2 * self._timing.renew_seconds if self._has_stepped_down else 0.0
        return now - self._free_since < max(self.patience, at_least)

    async def _catch_up(self, leasing: "asyncio.Task[None]") -> bool:
        """Apply the log up to its current end; return False if the lease was lost meanwhile."""
        try:
            last = await self._log.refresh()
        except (QuorumLostError, StateClosedError):
            return False
        while self._manager.sequence < last and not leasing.done():
            with contextlib.suppress(NotReadableError):
                await self._manager.read_at_least(last, timeout=self._timing.renew_seconds)
        return not leasing.done()

    async def _open_epoch(self) -> bool:
        """Append the record that makes this replica primary; return False if that failed."""
        state = self._manager.state
        # Above all epochs tried so far: a candidate may have sealed one and never opened it.
        epoch = self._tried_epoch = max(state.epoch, self._tried_epoch) + 1
        self._log.epoch = epoch
        record = Record(
            FORMAT,
            epoch,
            state.sequence + 1,
            state.hash,
            max(self._clock.ticks(), state.ticks),
            self._id,
            (),
        )
        raw = encode_record(record)
        try:
            await self._log.seal(epoch)
            async with asyncio.timeout(self._timing.lease_seconds * 4):
                await self._log.append(record.sequence, raw)
        except (UnavailableError, TimeoutError) as error:
            # A full stream or a node that does not sync may recover; a closed log is noticed
            # where it is followed.
            self._log.abandon()
            if not isinstance(error, NotPrimaryError | QuorumLostError | InDoubtError):
                logger.warning("replica %s cannot become primary: %s", self._id, error)
                await asyncio.sleep(self._timing.renew_seconds)
            return False
        self._manager.apply(record.sequence, raw)
        return True

    async def _be_primary(self, leasing: "asyncio.Task[None]") -> None:
        """Commit until the lease or the quorum is lost, or the log refuses a record."""
        self._deposed.clear()
        leasing.add_done_callback(lambda _: self._deposed.set())
        self._manager.promote()
        self.promotions += 1
        logger.info("replica %s is primary of epoch %d", self._id, self._manager.epoch)
        self._changed.set()
        self._has_new_role.set()
        notifying = self._spawn(self._notify(is_primary=True))
        await self._deposed.wait()
        if leasing.done():
            self._depose(self._lease_lost())
        await _end(leasing)
        self._depose(_not_primary("", "This replica is a secondary."))
        if self._has_stepped_down:
            await self._drain()
        self._log.abandon()
        await self._manager.committer_idle()
        if self.failure is not None:
            raise self.failure
        self._changed.set()
        self._has_new_role.set()
        await asyncio.wait((notifying,))
        await self._notify(is_primary=False)

    async def _renew(self) -> bool:
        """Renew the lease; return False if another replica may hold it."""
        asked = self._clock.monotonic()
        try:
            async with asyncio.timeout(max(self._lease_until - asked, 0.01)):
                revision = await self._stream.write_register(
                    LEASE_KEY,
                    _encode(Lease(self._id, self._address)),
                    revision=self._lease_revision,
                    timeout=ANSWER_SECONDS,
                )
        except (NoAnswer, TimeoutError):
            # The write may have happened: its revision is not known, so the next one is refused
            # and the lease expires. It is valid until then.
            self._has_no_answer = self._has_no_answer or asked < self._lease_until
            return self._clock.monotonic() < self._lease_until
        self._has_no_answer = False
        if revision is None:
            return await self._is_own_lease(asked)
        self._note_lease(revision, asked)
        return True

    async def _is_own_lease(self, asked: float) -> bool:
        """Return whether a renewal was refused only because an earlier one had succeeded."""
        try:
            found = await self._stream.read_register(LEASE_KEY, timeout=ANSWER_SECONDS)
        except NoAnswer:
            return self._clock.monotonic() < self._lease_until
        if found is None:
            return False
        if msgspec.msgpack.decode(found.value, type=Lease).replica != self._id:
            return False
        self._lease_revision = found.revision
        return asked < self._lease_until

    async def _release_lease(self) -> None:
        if self._lease_revision:
            revision, self._lease_revision = self._lease_revision, 0
            await self._stream.remove_register(LEASE_KEY, revision=revision, timeout=ANSWER_SECONDS)

    # --- called by the manager and the log ------------------------------------------------

    def _stopped(self, error: PartitaError) -> None:
        """Stop being primary because the committer has stopped."""
        if isinstance(error, DamageError):
            self.failure = error
        self._deposed.set()

    def _quorum_lost(self) -> None:
        self._depose(_no_quorum())

    def _lease_lost(self) -> PartitaError:
        """Return why: the nodes did not answer, or this process was suspended too long."""
        return _no_quorum() if self._has_no_answer else _not_primary("", "The lease was lost.")

    def _depose(self, error: PartitaError) -> None:
        if self._manager.is_primary:
            logger.warning("replica %s is no longer primary: %s", self._id, error)
            self._manager.depose(error)
        self._deposed.set()

    def _note_primary(self, address: str) -> None:
        """Name the primary in the errors of refused writes."""
        self._knows_primary = True
        self._manager.name_primary(_not_primary(address, "This replica is a secondary."))

    async def _notify(self, *, is_primary: bool) -> None:
        if self.on_role is None:
            return
        try:
            await self.on_role(is_primary)
        except Exception:  # the role does not depend on the callback
            logger.exception("on_role failed")

    # --- heartbeats -----------------------------------------------------------------------

    async def _beat(self) -> None:
        """Write heartbeats until the replica stops: a stopped one must not keep the log."""
        while self.failure is None:
            with contextlib.suppress(NoAnswer):
                await self._write_heartbeat()
                await self._check_log_length()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.renew_seconds):
                    await self._has_new_role.wait()
            self._has_new_role.clear()

    async def _check_log_length(self) -> None:
        """Stop if the log is shorter than the state for too long: it was created again.

        A node that is cut off may report a shorter log, but not for this long.
        """
        _, last = await self._stream.bounds(timeout=ANSWER_SECONDS)
        self.log_last = last
        if last >= self._manager.sequence:
            self._short_answers = 0
            return
        self._short_answers += 1
        if self._short_answers > SHORT_ANSWERS_MAX:
            self._fail(
                ChainBrokenError(
                    "LogLost",
                    f"The log ends at {last}; this replica has applied {self._manager.sequence}.",
                    facts={"last": last, "applied": self._manager.sequence},
                    hint="Stop all replicas and restore a backup as a new partition: the cluster "
                    "has lost its streams.",
                )
            )

    async def _write_heartbeat(self) -> None:
        newest = self._manager.checkpoints.newest
        beat = Heartbeat(
            self._manager.sequence,
            0 if newest is None else newest.sequence,
            self._manager.readable_versions(),
            self._manager.is_primary,
            self._address,
            VERSION,
            self._manager.epoch,
            self.is_placed,
        )
        key = REPLICA_PREFIX + self._id
        revision = await self._stream.write_register(
            key, _encode(beat), revision=self._heartbeat_revision, timeout=ANSWER_SECONDS
        )
        if revision is None:
            found = await self._stream.read_register(key, timeout=ANSWER_SECONDS)
            revision = 0 if found is None else found.revision
        self._heartbeat_revision = revision

    async def heartbeats(self) -> dict[str, Heartbeat]:
        """Return the heartbeats of the live replicas, by replica."""
        found = await self._stream.list_registers(REPLICA_PREFIX, timeout=ANSWER_SECONDS)
        return {
            key.removeprefix(REPLICA_PREFIX): msgspec.msgpack.decode(beat.value, type=Heartbeat)
            for key, beat in sorted(found.items())
        }

    async def _purge_limit(self) -> int:
        """Return the sequence below which no live replica needs the log; 0 on a secondary."""
        if not self._manager.is_primary:
            return 0
        try:
            beats = await self.heartbeats()
        except NoAnswer:
            return 0
        return min([self._published + 1, *(beat.checkpoint + 1 for beat in beats.values())])

    log_last = 0
    """The end of the log at the last heartbeat, as one node reported it."""
    promotions = 0
    """How often this replica has become primary."""
    _is_giving_lease = False
    """Whether the lease is about to be written in the name of another replica."""
    is_placed = False
    """Whether a service decides which replica is primary."""
    _published = 0
    """The sequence of the checkpoint that this replica has published last."""

    async def _publish_checkpoint(self) -> None:
        """Store the checkpoint beside the stream, for replicas without one."""
        newest = self._manager.checkpoints.newest
        if newest is None or not self._manager.is_primary:
            return
        content = self._manager.checkpoints.read(newest)
        try:
            await self._stream.put_file(CHECKPOINT_FILE, content, timeout=FILE_SECONDS)
        except NoAnswer:
            # The log is truncated only up to the published checkpoint, so nothing is lost.
            logger.warning("the checkpoint at %d could not be stored on NATS", newest.sequence)
            return
        self._published = newest.sequence

    async def _publish_backup(self, backup: Backup) -> None:
        """Note a backup beside the stream, for observers."""
        note = BackupNote(
            backup.made_at, backup.last_sequence, backup.kind, backup.number, self._address
        )
        try:
            await self._stream.put_file(BACKUP_FILE, _encode(note), timeout=ANSWER_SECONDS)
        except NoAnswer:  # the backup itself is complete
            logger.warning("the time of backup %d could not be stored on NATS", backup.number)

    async def _check_promotion(self, name: str, version: int) -> None:
        try:
            beats = await self.heartbeats()
        except NoAnswer as error:
            raise QuorumLostError(
                "QuorumLost", "The heartbeats of the replicas cannot be read."
            ) from error
        behind = [
            replica
            for replica, beat in beats.items()
            if replica != self._id and beat.readable.get(name, 0) < version
        ]
        if behind:
            raise SchemaError(
                "SchemaNotPromoted",
                f"{len(behind)} live replicas cannot read version {version} of {name!r}.",
                facts={"collection": name, "version": version, "replicas": behind},
                hint="Deploy code that opens it with Schema(version=...) on every replica.",
            )


async def _end(task: "asyncio.Task[None]") -> None:
    """Cancel a task, wait for its end, and raise its error."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()


def _log_behind(sequence: int, last: int) -> ChainBrokenError:
    return ChainBrokenError(
        "LogBehind",
        f"The log ends at {last}; the folder of this replica has the state at {sequence}.",
        facts={"sequence": sequence, "last": last},
        hint="Use the folder of this partition, or restore a backup if the stream was created "
        "again.",
    )


def _another_log(sequence: int) -> ChainBrokenError:
    return ChainBrokenError(
        "ChainBroken",
        f"The record at {sequence} of the log differs from that in the folder of this replica.",
        facts={"sequence": sequence},
        hint="Use the folder of this partition, or an empty one.",
    )


def _no_quorum() -> QuorumLostError:
    return QuorumLostError(
        "QuorumLost",
        "Too few nodes of the log answer; nothing can be committed.",
        hint="Start the nodes that are down; no restart of this process is needed.",
    )


def _successor_refused(replica_id: str, lag: int | None, *, is_primary: bool) -> UsageError:
    """Return why a replica cannot become primary now."""
    if is_primary:
        message, hint = "is the primary already", "Choose another replica."
    elif lag is None:
        message = "is not running"
        hint = "Choose a replica that `partita state status` prints."
    else:
        message = f"is {lag} records behind the primary"
        hint = "Wait until its lag is lower, or choose another replica."
    return UsageError(
        "SuccessorRefused",
        f"The replica {replica_id!r} {message}; the primary was not changed.",
        facts={"replica": replica_id, "lag": lag},
        hint=hint,
    )


def _not_primary(address: str, message: str) -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        message + (f" The primary is {address}." if address else ""),
        facts={"primary": address} if address else {},
        hint="Send the work to the primary; a new one is elected within seconds.",
    )
    error.primary = address
    return error
