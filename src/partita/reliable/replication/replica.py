"""A replica of a partition on a quorum log: secondary, primary, and the ways between them.

A secondary follows the log and applies it. Who holds the lease reads to the end of the log and
appends a record that opens its epoch; once that is stored it is primary, and every replica
ignores what an older epoch may still append. The lease decides who tries, never who is right:
only a fenced append proves that. A primary that cannot renew its lease in time, whose append is
refused, or that loses the quorum, stops at once and follows again.
"""

import asyncio
import contextlib
import logging
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
)
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

LEASE_KEY = "lease"
REPLICA_PREFIX = "replica."
CHECKPOINT_FILE = "checkpoint"

ANSWER_SECONDS = 2.0
FILE_SECONDS = 60.0
SHORT_ANSWERS_MAX = 40
"""Answers in a row by which the log is shorter than the state before a replica stops."""
BEHIND_SECONDS = 15.0
"""How long a log may seem shorter than what is applied: a node that was down lags for a while."""


class Timing(msgspec.Struct, frozen=True):
    """How patient a replica is; the register's time to live is `lease_seconds`."""

    lease_seconds: float = 3.0
    renew_seconds: float = 0.8
    margin_seconds: float = 0.7
    """A lease counts as lost this long before others may take it: clocks drift, answers travel."""


class Lease(msgspec.Struct, frozen=True):
    """What the holder of the lease says about itself."""

    replica: str
    address: str


class Heartbeat(msgspec.Struct, frozen=True):
    """What every replica says about itself once in a while."""

    applied: int
    checkpoint: int
    """Below this sequence it needs nothing of the log any more."""
    readable: dict[str, int]
    is_primary: bool
    address: str


_encode = msgspec.msgpack.Encoder().encode


class Replica:
    """Drives the role of one StateManager. `run` ends with `close` or with damage."""

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
        self._is_unheard = False
        """Renewals got no answer while the lease lasted: the nodes are silent, we did not sleep."""
        self._heartbeat_revision = 0
        self._knows_primary = False
        self._tried_epoch = 0
        self._short_answers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._deposed = asyncio.Event()
        self._changed = asyncio.Event()
        self.copies = 0
        """How often the log had been cut before this replica had read it."""
        self.wants_primary = True
        """False keeps the replica secondary, and lets a primary hand over."""
        self.patience = 0.0
        """For how many seconds a free lease is left to replicas that are preferred."""
        self._free_since: float | None = None
        self._has_stepped_down = False
        self.failure: PartitaError | None = None
        """Why the replica stopped for good; None while it works."""
        self.on_role: Callable[[bool], Awaitable[None]] | None = None
        """Told True after becoming primary, False after ceasing to be."""
        log.on_quorum_lost = self._quorum_lost
        manager.on_stopped = self._stopped
        manager.checkpoint_writer.purge_limit = self._purge_limit
        manager.checkpoint_writer.after_checkpoint = self._publish_checkpoint
        manager.descriptions.check_promotion = self._check_promotion

    # --- life -----------------------------------------------------------------------------

    def _spawn(self, work: "Coroutine[None, None, None]") -> "asyncio.Task[None]":
        """Start a task that `close` ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        return task

    def start(self) -> None:
        self._spawn(self._run())
        self._spawn(self._beat())

    async def check_place(self) -> None:
        """Refuse a state that is no part of this log, before anything is built on it."""
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
            return  # because the records that follow are checked anyway
        # A record of an older epoch was passed over: it left no trace to compare.
        if stored is None or decode_record(stored).epoch < state.epoch:
            return
        if record_hash(stored) != state.hash:
            raise _another_log(state.sequence)

    async def ready(self, timeout: float) -> None:
        """Return when the log is read to its end and a primary is known."""
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
                    hint="Look at the nodes: a majority of them must run and reach each other.",
                )
            await asyncio.sleep(0.01)
        if self._manager.sequence > self._log.last:
            await self._log.refresh()

    @property
    def is_primary(self) -> bool:
        return self._manager.is_primary

    async def wait_primary(self, timeout: float) -> bool:
        """Wait until this replica is primary; False if it is not by then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._manager.is_primary and self.failure is None:
                    self._changed.clear()
                    await self._changed.wait()
        return self._manager.is_primary

    async def step_down(self) -> None:
        """Hand over: stop, and give the lease free at once."""
        self._has_stepped_down = True
        if self._manager.is_primary:
            self._depose(_not_primary("", "This replica hands over."))
        with contextlib.suppress(NoAnswer):  # because the lease runs out by itself
            await self._give_lease_free()

    async def close(self) -> None:
        """Stop, give the lease free, and leave."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(NoAnswer):
            await self._give_lease_free()
            key = REPLICA_PREFIX + self._id
            await self._stream.remove_register(
                key, revision=self._heartbeat_revision, timeout=ANSWER_SECONDS
            )

    # --- the two roles --------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._be_secondary()
                await self._be_primary()
        except PartitaError as error:
            self._fail(error)
        except Exception:
            self._fail(StateClosedError("StateClosed", "The replica met an error of its own."))
            raise

    def _fail(self, error: PartitaError) -> None:
        logger.error("replica %s stops: %s", self._id, error)
        self.failure = error
        self._manager.depose(error)
        self._changed.set()

    async def _be_secondary(self) -> None:
        """Follow the log until the epoch is ours."""
        following = self._spawn(self._follow())
        try:
            while True:
                trying = self._spawn(self._obtain_lease())
                await asyncio.wait((following, trying), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    trying.cancel()
                    following.result()
                    raise StateClosedError("StateClosed", "The stream was closed.")
                if not await self._catch_up():
                    continue
                following.cancel()
                await asyncio.wait((following,))
                if await self._open_epoch():
                    return
                following = self._spawn(self._follow())
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
        """Take the state of a checkpoint that the primary left, since the log begins later."""
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
        logger.info("replica %s took a full copy at %d", self._id, state.sequence)

    async def _obtain_lease(self) -> None:
        """Return once the lease is ours."""
        while True:
            if self.wants_primary and await self._take_lease():
                return
            jitter = self._clock.random_bytes(1)[0] / 512
            await asyncio.sleep(self._timing.renew_seconds * (0.5 + jitter))

    async def _take_lease(self) -> bool:
        asked = self._clock.monotonic()
        try:
            found = await self._stream.read_register(LEASE_KEY, timeout=ANSWER_SECONDS)
            if found is not None:
                lease = msgspec.msgpack.decode(found.value, type=Lease)
                if lease.replica != self._id:
                    self._free_since = None
                    self._has_stepped_down = False
                    self._say_primary(lease.address)
                    return False
                if self._has_stepped_down:  # our own, renewed while we gave it free
                    self._lease_revision = found.revision
                    await self._give_lease_free()
                    return False
            elif self._is_patient(asked):
                return False
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
        self._lease_revision = revision
        self._lease_until = asked + self._timing.lease_seconds - self._timing.margin_seconds
        return True

    def _is_patient(self, now: float) -> bool:
        """Whether a lease that is free now is left to others a little longer."""
        if self._free_since is None:
            self._free_since = now
        at_least = 2 * self._timing.renew_seconds if self._has_stepped_down else 0.0
        return now - self._free_since < max(self.patience, at_least)

    async def _catch_up(self) -> bool:
        """Read to the end of the log as it is now; False: the lease went meanwhile."""
        try:
            last = await self._log.refresh()
        except (QuorumLostError, StateClosedError):
            return False
        while self._manager.sequence < last:
            if not await self._renew():
                return False
            with contextlib.suppress(NotReadableError):
                await self._manager.read_at_least(last, timeout=self._timing.renew_seconds)
        return await self._renew()

    async def _open_epoch(self) -> bool:
        """Append the record that makes this replica primary; False: somebody else wrote."""
        state = self._manager.state
        # One above all that was tried: a candidate may have sealed an epoch and died before it.
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
            # A full stream or a node that does not sync may be mended; what is closed shows
            # where the log is followed.
            self._log.abandon()
            if not isinstance(error, NotPrimaryError | QuorumLostError | InDoubtError):
                logger.warning("replica %s cannot become primary: %s", self._id, error)
                await asyncio.sleep(self._timing.renew_seconds)
            return False
        self._manager.apply(record.sequence, raw)
        return await self._renew()

    async def _be_primary(self) -> None:
        """Commit until the lease, the log or the quorum says otherwise."""
        self._deposed.clear()
        self._manager.promote()
        logger.info("replica %s is primary of epoch %d", self._id, self._manager.epoch)
        self._changed.set()
        telling = self._spawn(self._tell(is_primary=True))
        while not self._deposed.is_set():
            left = max(self._lease_until - self._clock.monotonic(), 0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._timing.renew_seconds, left)):
                    await self._deposed.wait()
            if not self._deposed.is_set() and not await self._renew():
                self._depose(self._lease_lost())
        self._depose(_not_primary("", "This replica is a secondary."))
        self._log.abandon()
        await self._manager.committer_idle()
        if self.failure is not None:
            raise self.failure
        self._changed.set()
        await asyncio.wait((telling,))
        await self._tell(is_primary=False)

    async def _renew(self) -> bool:
        """Keep the lease; False once it may belong to another."""
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
            # and the lease runs out. Until then it is ours.
            self._is_unheard = self._is_unheard or asked < self._lease_until
            return self._clock.monotonic() < self._lease_until
        self._is_unheard = False
        if revision is None:
            return await self._is_own_lease(asked)
        self._lease_revision = revision
        self._lease_until = asked + self._timing.lease_seconds - self._timing.margin_seconds
        return True

    async def _is_own_lease(self, asked: float) -> bool:
        """A refused renewal may be refused by our own, whose answer was lost: look."""
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

    async def _give_lease_free(self) -> None:
        if self._lease_revision:
            revision, self._lease_revision = self._lease_revision, 0
            await self._stream.remove_register(LEASE_KEY, revision=revision, timeout=ANSWER_SECONDS)

    # --- what the manager and the log say -------------------------------------------------

    def _stopped(self, error: PartitaError) -> None:
        """The committer can go no further."""
        if isinstance(error, DamageError):
            self.failure = error
        self._deposed.set()

    def _quorum_lost(self) -> None:
        self._depose(_no_quorum())

    def _lease_lost(self) -> PartitaError:
        """Say why: nobody answered, or another may have taken it while this process slept."""
        return _no_quorum() if self._is_unheard else _not_primary("", "The lease was lost.")

    def _depose(self, error: PartitaError) -> None:
        if self._manager.is_primary:
            logger.warning("replica %s is not primary any more: %s", self._id, error)
            self._manager.depose(error)
        self._deposed.set()

    def _say_primary(self, address: str) -> None:
        """Let refused writes name the primary."""
        self._knows_primary = True
        self._manager.name_primary(_not_primary(address, "This replica is a secondary."))

    async def _tell(self, *, is_primary: bool) -> None:
        if self.on_role is None:
            return
        try:
            await self.on_role(is_primary)
        except Exception:  # a role does not depend on who hears of it
            logger.exception("on_role failed")

    # --- heartbeats -----------------------------------------------------------------------

    async def _beat(self) -> None:
        """Say that we live; a replica that stopped for good must not hold the log."""
        while self.failure is None:
            with contextlib.suppress(NoAnswer):
                await self._write_heartbeat()
                await self._look_for_loss()
            await asyncio.sleep(self._timing.renew_seconds)

    async def _look_for_loss(self) -> None:
        """Stop when the log has long been shorter than what was applied: it was made anew.

        A node that is cut off may say less for a while; it does not say so for so long.
        """
        _, last = await self._stream.bounds(timeout=ANSWER_SECONDS)
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
                    hint="The cluster lost its streams: stop all replicas and restore a backup "
                    "as a new partition.",
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
        """Return what the live replicas say, by replica."""
        found = await self._stream.list_registers(REPLICA_PREFIX, timeout=ANSWER_SECONDS)
        return {
            key.removeprefix(REPLICA_PREFIX): msgspec.msgpack.decode(beat.value, type=Heartbeat)
            for key, beat in sorted(found.items())
        }

    async def _purge_limit(self) -> int:
        """Only the primary cuts the log, and never above what a live replica still needs."""
        if not self._manager.is_primary:
            return 0
        try:
            beats = await self.heartbeats()
        except NoAnswer:
            return 0
        return min([self._published + 1, *(beat.checkpoint + 1 for beat in beats.values())])

    _published = 0
    """The sequence of the checkpoint that lies beside the stream, as far as we know."""

    async def _publish_checkpoint(self) -> None:
        """Leave the checkpoint beside the stream, for replicas that come without one."""
        newest = self._manager.checkpoints.newest
        if newest is None or not self._manager.is_primary:
            return
        content = self._manager.checkpoints.read(newest)
        try:
            await self._stream.put_file(CHECKPOINT_FILE, content, timeout=FILE_SECONDS)
        except NoAnswer:
            # The log is cut only behind what was published, so nothing is lost but room.
            logger.warning("the checkpoint at %d could not be left on NATS", newest.sequence)
            return
        self._published = newest.sequence

    async def _check_promotion(self, name: str, version: int) -> None:
        try:
            beats = await self.heartbeats()
        except NoAnswer as error:
            raise QuorumLostError(
                "QuorumLost", "The replicas cannot be asked what they read."
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
                hint="Deploy code that opens it with Schema(version=..., write=...) everywhere.",
            )


def _log_behind(sequence: int, last: int) -> ChainBrokenError:
    return ChainBrokenError(
        "LogBehind",
        f"The log ends at {last}; the folder of this replica holds the state at {sequence}.",
        facts={"sequence": sequence, "last": last},
        hint="The stream was made anew, or the folder is of another partition: give the right"
        " folder, or restore a backup.",
    )


def _another_log(sequence: int) -> ChainBrokenError:
    return ChainBrokenError(
        "ChainBroken",
        f"The log holds another record at {sequence} than the folder of this replica has applied.",
        facts={"sequence": sequence},
        hint="The folder is of another partition: give the right one, or an empty one.",
    )


def _no_quorum() -> QuorumLostError:
    return QuorumLostError(
        "QuorumLost",
        "Too few nodes of the log answer: nothing can be committed.",
        hint="Bring the nodes back: the replica goes on by itself.",
    )


def _not_primary(address: str, message: str) -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        message + (f" The primary is {address}." if address else ""),
        facts={"primary": address} if address else {},
        hint="Send the work to the primary; a new one is found within seconds.",
    )
    error.primary = address
    return error
