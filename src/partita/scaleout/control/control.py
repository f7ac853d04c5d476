"""One administrative session on a fleet: split, merge and move ranges, add and remove shards.

    control = await Control.open("postgresql://partita@catalog/partita")
    left, right = await control.split("orders", at="m")
    await control.move(right, to="east")
    await control.close()

Front ends need no such session: while there is none, the fleet serves as it is. Every verb first
ends what a session that died has left.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

from partita.clock import SystemClock
from partita.errors import (
    ConflictError,
    OperationPendingError,
    PartitaError,
    RangeError,
    UnavailableError,
)
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.control.jobs import (
    TAKE_SECONDS_MAX,
    HeldJob,
    Job,
    Jobs,
    open_sessions,
    ranges_changed,
)
from partita.scaleout.control.looking import Looking, OwnedRange
from partita.scaleout.control.membership import AddedShard, Membership
from partita.scaleout.control.moving import FIRST_STEP, Move, MoveFacts, settle_move
from partita.scaleout.control.reconciling import Reconciling
from partita.scaleout.control.splitting import (
    BEGUN,
    Replacement,
    replace_ranges,
    settle_replacement,
)
from partita.scaleout.control.states import (
    JobKind,
    JobState,
    MoveOutcome,
    MoveProgress,
    RangeState,
    Reconciliation,
    ShardState,
    ThrottleState,
    Verification,
)
from partita.scaleout.control.throttling import read_throttles, set_throttle
from partita.scaleout.schema.install import Installed
from partita.storage.durability import Durability
from partita.tables.entity import check_key, check_key_length
from partita.ticks import Clock

logger = logging.getLogger("partita.scaleout.control")

DRAIN_ATTEMPTS_MAX = 50
DRAIN_PAUSE_SECONDS = 0.5
"""How often a drain is refused because other sessions change the same ranges."""

_NEW_RANGES = "SELECT range_id, range_epoch FROM partita.new_ranges_1($1)"


class Control:
    """One administrative session; build it with `open`. Verbs may run at the same time.

    >>> async def halve(url: str) -> None:
    ...     control = await Control.open(url)
    ...     left, right = await control.split("orders", at="m")
    ...     await control.move(right, to="east")
    ...     await control.close()
    """

    def __init__(self, connector: Connector, clock: Clock) -> None:
        self._home = connector
        self._clock = clock
        self._catalog = Pool(connector)
        self._jobs = Jobs(self._catalog)
        self._looking = Looking(connector, self._catalog)
        self._reconciling = Reconciling(connector, self._catalog, self._looking, self._jobs)
        self._membership = Membership(connector, self._catalog, self._looking, clock)

    @classmethod
    async def open(
        cls, url: str, *, durability: Durability = Durability.FULL, clock: Clock | None = None
    ) -> "Control":
        """Connect to the catalog; the role must own the schema."""
        control = cls(Connector(Location.parse(url), durability), clock or SystemClock())
        try:
            await control._looking.shards()
        except BaseException:
            await control.close()
            raise
        return control

    async def close(self) -> None:
        """Close the connections."""
        await self._catalog.close()

    @property
    def location(self) -> str:
        """The URL of the catalog, without secrets."""
        return str(self._home.location)

    # Looking

    async def shards(self) -> list[ShardState]:
        """Return all shards, also those that do not answer."""
        return await self._looking.shard_states()

    async def ranges(
        self, table: str | None = None, account: str | None = None
    ) -> list[RangeState]:
        """Return the ranges of all tables, or of those with a name, in key order."""
        return await self._looking.range_states(table, account)

    async def jobs(self) -> list[JobState]:
        """Return the changes that are not complete."""
        return await self._looking.job_states(self._jobs)

    # Split and merge

    async def split(self, table: str, at: str, *, account: str | None = None) -> tuple[int, int]:
        """Split the range of a table that has a partition key: `at` is the first key of the right.

        Return the numbers of the new ranges. No entity is moved.
        """
        check_key("PartitionKey", at)
        check_key_length(at)
        await self._end_left()
        tid = await self._looking.table(table, account)
        found = _range_with(await self._looking.owned(tid), at)
        if found.lo == at:
            raise RangeError(
                "InvalidSplit",
                "A range can be split only at a key inside it that is not its first.",
                facts={"table": table, "at": at, "range": found.id},
                hint="Choose a greater key; `partita fleet ranges` shows the bounds.",
            )
        left, right = await self._replace("split", [found], [found.lo, at], [at, found.hi])
        return left, right

    async def merge(self, first: int, second: int) -> int:
        """Merge two neighbouring ranges of one shard; return the number of the new range."""
        await self._end_left()
        pair = [await self._looking.range(number) for number in (first, second)]
        pair.sort(key=lambda each: each.lo)
        lower, upper = pair
        if lower.tid != upper.tid or lower.hi != upper.lo:
            raise RangeError(
                "NotAdjacent",
                "Only neighbouring ranges of one table can be merged.",
                facts={"ranges": [first, second]},
                hint="Merge the neighbours one after the other; `partita fleet ranges` shows them.",
            )
        if lower.shard != upper.shard:
            raise RangeError(
                "RangesApart",
                "Only ranges on the same shard can be merged.",
                facts={"ranges": [first, second]},
                hint="Move one of them to the shard of the other first.",
            )
        (merged,) = await self._replace("merge", [lower, upper], [lower.lo], [upper.hi])
        return merged

    async def _replace(
        self,
        kind: Literal["split", "merge"],
        old: Sequence[OwnedRange],
        lowers: list[str],
        uppers: list[str | None],
    ) -> list[int]:
        numbers = await self._catalog.write(_NEW_RANGES, len(lowers))
        facts = Replacement(
            [each.id for each in old],
            [each.epoch for each in old],
            [old[0].shard],
            old[0].tid,
            [row["range_id"] for row in numbers],
            [row["range_epoch"] for row in numbers],
            lowers,
            uppers,
        )
        if not await self._run(kind, BEGUN, facts, replace_ranges):
            raise ranges_changed(facts.ranges)
        return facts.new

    # Move

    async def move(
        self,
        range_id: int,
        to: str,
        *,
        progress: Callable[[MoveProgress], None] | None = None,
        rate: float | None = None,
    ) -> MoveOutcome:
        """Move a range to the shard with a name while front ends use it.

        `rate` limits how many entities are copied in a second. A move that fails or is cancelled
        before its commit point is taken back, a later one is completed.
        """
        await self._end_left()
        found = await self._looking.range(range_id)
        target = await self._looking.shard(to)
        if found.shard == target.id:
            return MoveOutcome(0, 0, 0.0, 0.0, 0)
        ((_, epoch),) = await self._catalog.write(_NEW_RANGES, 1)
        facts = MoveFacts(
            [found.id],
            [found.shard, target.id],
            *(found.tid, found.lo, found.hi, found.epoch, epoch, found.kind),
        )
        moves: list[Move] = []

        async def run(held: HeldJob) -> bool:
            moves.append(Move(held, progress, rate))
            return await moves[0].run()

        if not await self._run("move", FIRST_STEP, facts, run):
            raise ranges_changed(facts.ranges)
        return moves[0].outcome

    # Shards

    async def add_shard(self, url: str, *, name: str | None = None) -> ShardState:
        """Make an empty database a shard: install the schema, check the server, list it.

        The catalog keeps the URL without a password; front ends use their own credentials where it
        has no user.
        """
        await self._end_left()
        facts = await self._membership.prepare(url, name)
        await self._run("add", BEGUN, facts, self._membership.add)
        for state in await self.shards():
            if state.id == facts.id:
                return state
        raise ranges_changed([])

    async def drain(
        self, name: str, *, progress: Callable[[RangeState, MoveProgress], None] | None = None
    ) -> None:
        """Give a shard no new ranges, and move those that it has to the other open shards."""
        await self._end_left()
        shard = await self._looking.shard(name)
        await self._membership.start_draining(shard)
        refused = 0
        while ranges := [each for each in await self.ranges() if each.shard == name]:
            target = _emptiest(await self.shards())
            for each in ranges[:1]:
                try:
                    await self.move(each.id, target, progress=_of_range(each, progress))
                except (OperationPendingError, ConflictError):
                    # Another session is faster: look again, but not for ever.
                    refused += 1
                    if refused > DRAIN_ATTEMPTS_MAX:
                        raise
                    await asyncio.sleep(DRAIN_PAUSE_SECONDS)

    async def remove(self, name: str) -> None:
        """Forget a shard that was drained; its database is left as it is."""
        await self._end_left()
        await self._membership.remove(await self._looking.shard(name))

    async def mark(self, name: str) -> Mapping[str, str]:
        """Make a restore point on the catalog and all shards; return where each is in the log.

        The role must be allowed to call `pg_create_restore_point`.
        """
        await self._end_left()
        return await self._membership.mark(name)

    async def upgrade(
        self, *, role: str | None = None, progress: Callable[[str, str], None] | None = None
    ) -> Mapping[str, Installed]:
        """Bring the schema of the catalog, then of each shard, up to date; run it again any time.

        `role` is the role of front ends, as for `install`. `progress` gets the name of the shard
        and what is done there.
        """
        return await self._membership.upgrade(role, progress)

    async def verify(self) -> Verification:
        """Check that each key has exactly one owner, and count all entities.

        It reads every entity's key. Ranges of running jobs are not judged.
        """
        return await self._reconciling.verify()

    async def reconcile(self, name: str | None = None) -> Reconciliation:
        """Let catalog and shards agree again after a restore or a failover: the latest epoch wins.

        Run it before front ends use a shard that was restored. `name` limits it to the tables of
        one shard. A range that its shard does not have is reported and stays closed.
        """
        await self._end_left()
        return await self._reconciling.reconcile(name)

    # Hot partitions

    async def throttle(
        self, table: str, partition_key: str, rate: float | None, *, account: str | None = None
    ) -> None:
        """Limit the entities per second of one partition; None ends the limit.

        Front ends follow within seconds; what is above the rate is answered with 503.
        """
        check_key("PartitionKey", partition_key)
        check_key_length(partition_key)
        tid = await self._looking.table(table, account)
        await set_throttle(self._catalog, tid, partition_key, rate)

    async def throttles(self) -> list[ThrottleState]:
        """Return the partitions whose rate is limited."""
        return await read_throttles(self._catalog)

    # Jobs

    async def resume(self) -> list[JobState]:
        """Complete or take back what sessions that died have left; return what is left then.

        Jobs of sessions that are alive are left alone, as are those of shards that are away.
        """
        await self._end_left()
        return await self.jobs()

    async def _end_left(self) -> None:
        for job in await self._jobs.all():
            if await self._jobs.is_held(job):
                continue
            try:
                await self._settle(job.id, patience=0.0)
            except OperationPendingError:
                continue  # another session is faster
            except PartitaError as error:
                logger.warning("job %s cannot be ended yet: %s", job.id, error)
                await self._jobs.note(job, error)

    async def _run(
        self,
        kind: JobKind,
        step: str,
        facts: AddedShard | MoveFacts | Replacement,
        work: Callable[[HeldJob], Awaitable[bool]],
    ) -> bool:
        """Record and run a job; if the work fails, complete the job or take it back.

        Return whether it has taken effect.
        """
        job: Job | None = None
        try:
            shards = await self._connectors(facts.shards)
            async with open_sessions(self._home, shards) as sessions:
                job = await sessions.start(kind, step, facts)
                if await work(await sessions.hold(job, TAKE_SECONDS_MAX)):
                    return True
            return await self._settle(job.id, patience=TAKE_SECONDS_MAX)
        except BaseException as error:
            if job is None:
                raise
            # In a task of its own: the range must not stay closed because the caller was cancelled.
            settling = asyncio.ensure_future(self._settle(job.id, patience=TAKE_SECONDS_MAX))
            try:
                is_done = await asyncio.shield(settling)
            except PartitaError as left:
                logger.warning("job %s is ended by the next command: %s", job.id, left)
                is_done = False
            if is_done and isinstance(error, PartitaError):
                return True  # only the answer was lost
            raise

    async def _settle(self, number: int, *, patience: float) -> bool:
        """End a job whose sessions are gone: complete it if it has taken effect, or take it back.

        Return whether it is complete; False if another session has ended it.
        """
        job = await self._jobs.find(number)
        if job is None:
            return False
        shards = await self._connectors(job.shards)
        async with open_sessions(self._home, shards, may_be_away=True) as sessions:
            held = await sessions.hold(job, patience)
            # As it is now: another session may have been at work until we had the locks.
            current = await self._jobs.find(number)
            if current is None:
                return False
            held.job = current
            match current.kind:
                case "add":
                    return await self._membership.add(held)
                case "move":
                    return await settle_move(held)
                case _:
                    return await settle_replacement(held)

    async def _connectors(self, shard_ids: Sequence[int]) -> Mapping[int, Connector]:
        shards = await self._looking.those(shard_ids)
        return {shard.id: self._looking.connector(shard) for shard in shards}


def _emptiest(shards: Sequence[ShardState]) -> str:
    """Return the open shard with the fewest ranges."""
    candidates = [shard for shard in shards if shard.state == "open" and shard.is_reachable]
    if not candidates:
        raise UnavailableError(
            "StoreShardsDraining",
            "No shard of the fleet takes new ranges.",
            hint="Add a shard with `partita fleet add`.",
        )
    return min(candidates, key=lambda shard: (shard.ranges, shard.bytes or 0, shard.id)).name


def _of_range(
    moved: RangeState, progress: Callable[[RangeState, MoveProgress], None] | None
) -> Callable[[MoveProgress], None] | None:
    return None if progress is None else functools.partial(progress, moved)


def _range_with(ranges: Sequence[OwnedRange], key: str) -> OwnedRange:
    for each in ranges:
        if each.lo <= key and (each.hi is None or key < each.hi):
            return each
    raise ranges_changed([])
