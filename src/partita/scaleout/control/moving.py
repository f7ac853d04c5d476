"""Move a range to another shard while front ends read and write it.

    prepare     T notes that the range arrives; what an earlier attempt left there is deleted
    capture     S notes the keys that are written from here on
    copy        COPY of all entities, in intervals of keys
    catch_up    carry over what was written, until that is little; compare both sides once
    fence       S refuses the range; the last of what was written
                catalog: the range belongs to T: the commit point
    own         T serves the range
    clean       S forgets the range and deletes its entities

S is the source, T the target; each step is recorded before it begins, and may run twice. Until the
commit point a move that fails is taken back: S serves the range again, with an epoch that no front
end knows yet, so that no transaction from before can act. After it a move is only completed. From
`fence` to `own` no request of the range is answered; front ends try again meanwhile.
"""

import asyncio
from collections.abc import Callable
from typing import Final, get_args

import msgspec

from partita.errors import MoveRefusedError, UnavailableError
from partita.scaleout.catalog.kinds import Kind
from partita.scaleout.connections.link import Link
from partita.scaleout.control.exclusive import Exclusive
from partita.scaleout.control.jobs import HeldJob
from partita.scaleout.control.range_copy import Interval, RangeCopy, erase, written
from partita.scaleout.control.row_kinds import ROW_KINDS, RowKind
from partita.scaleout.control.states import MoveOutcome, MoveProgress, MoveStep
from partita.scaleout.schema.locks import JOB_LOCKS, MARK_JOB

STEPS: Final[tuple[MoveStep, ...]] = get_args(MoveStep)
FIRST_STEP: Final[MoveStep] = "prepare"
COMPLETED_ONLY: Final = ("own", "clean")
"""The steps after the commit point."""
UNDOING: Final = "undo"

KEYS_BEFORE_FENCE = 500
"""How many keys the last pass may have to carry over, about."""
PASSES_MAX = 50
"""If then more are written than are carried over, the move is given up."""
CLOSED_SECONDS_MAX = 4.0
"""How long the range may be closed before the move is given up: front ends try for 5 s."""
MARK_WAIT_SECONDS_MAX = 60.0
MARK_PAUSE_SECONDS = 0.1
"""How long a fence waits for restore points that are being made, and how often it looks."""

_IMPORT = 'SELECT partita.import_range_2($1, $2, $3, $4, $5, $6::text::"char") AS is_done'
_CAPTURE = "SELECT partita.capture_range_1($1, $2) AS is_done"
_FENCE = "SELECT partita.fence_range_1($1, $2, $3) AS is_done"
_IS_AWAITED = "SELECT FROM partita.range_own WHERE id = $1 AND epoch = $2 AND state = 'i'"
_OWN = "SELECT partita.own_imported_1($1, $2) AS is_done"
_REOPEN = "SELECT partita.reopen_range_1($1, $2) AS is_done"
_LEAVE = "SELECT partita.leave_range_1($1)"
_CHANGE = "SELECT partita.change_ranges_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS version"
_EPOCH = "SELECT nextval('partita.epoch') AS epoch"
_TRY_MARK = f"SELECT pg_try_advisory_lock_shared({JOB_LOCKS}, {MARK_JOB}) AS is_taken"
_END_MARK = f"SELECT pg_advisory_unlock_shared({JOB_LOCKS}, {MARK_JOB})"

Report = Callable[[MoveProgress], None]


class MoveFacts(msgspec.Struct, frozen=True):
    """What a move does."""

    ranges: list[int]
    """Only one."""
    shards: list[int]
    """From, to."""
    tid: int
    lo: str
    hi: str | None
    epoch: int
    next_epoch: int
    """Of the range on the target."""
    kind: Kind = Kind.TABLE

    @property
    def rows(self) -> RowKind:
        return ROW_KINDS[self.kind]

    @property
    def interval(self) -> Interval:
        return self.tid, self.lo, self.hi


class Move:
    """One move, by the sessions that hold its job."""

    def __init__(
        self, held: HeldJob, report: Report | None = None, rate: float | None = None
    ) -> None:
        self._held = held
        self._facts = msgspec.convert(held.job.facts, MoveFacts)
        self._report = report or (lambda _: None)
        self._rate = rate
        (self._range_id,) = self._facts.ranges
        self._total: int | None = None
        self._has_mark_lock = False
        self.outcome = MoveOutcome(0, 0, 0.0, 0.0, 0)

    @property
    def _source(self) -> Link:
        return self._held.shard(self._facts.shards[0])

    @property
    def _target(self) -> Link:
        return self._held.shard(self._facts.shards[1])

    async def run(self) -> bool:
        """Run all steps; return False if the table was dropped, so that the move must be undone."""
        facts, exclusive, loop = self._facts, Exclusive(self._source), asyncio.get_running_loop()
        await self._prepare()
        await self._begin("capture")
        rows = await exclusive.run(facts.ranges, _CAPTURE, self._range_id, facts.epoch)
        if not rows[0]["is_done"]:
            return False
        copy = RangeCopy(self._source, self._target, self._range_id, facts.interval, facts.rows)
        await self._begin("copy")
        begun = loop.time()
        self._total = await copy.estimate()
        await copy.copy(lambda entities: self._show("copy", entities), self._rate)
        copied = loop.time()
        await self._begin("catch_up")
        await self._catch_up(copy)
        await self._wait_for_marks()
        await self._begin("fence")
        closed_seconds = await self._switch(copy, exclusive)
        if closed_seconds is None:
            return False
        self.outcome = MoveOutcome(
            *(copy.entities, copy.changed, copied - begun, closed_seconds, exclusive.terminated)
        )
        await self.complete()
        return True

    async def complete(self) -> None:
        """Run the steps after the commit point."""
        facts = self._facts
        if self._held.job.step == "own":
            # It does nothing if the table was dropped since, and closed there.
            await self._own()
            if self._has_mark_lock:
                await self._held.catalog.read(_END_MARK)
            await self._begin("clean")
        await Exclusive(self._source).run(facts.ranges, _LEAVE, self._range_id)
        await erase(
            self._source,
            facts.rows,
            facts.interval,
            lambda entities: self._show("clean", entities),
        )
        await self._held.finish()

    async def take_back(self) -> None:
        """Let the source serve the range again, then forget what is on the target."""
        facts = self._facts
        await self._held.advance(UNDOING)
        ((epoch,),) = await self._held.write(_EPOCH)
        rows = await Exclusive(self._source).run(facts.ranges, _REOPEN, self._range_id, epoch)
        if rows[0]["is_done"]:
            await self._give(facts.shards[0], epoch, UNDOING)
        # Else the target has refused the range, perhaps because it serves some of these keys.
        if await self._target.read(_IS_AWAITED, self._range_id, facts.next_epoch):
            await erase(self._target, facts.rows, facts.interval, lambda _: None)
        await Exclusive(self._target).run(facts.ranges, _LEAVE, self._range_id)
        await self._held.finish()

    async def _prepare(self) -> None:
        facts = self._facts
        self._show("prepare")
        values = self._range_id, *facts.interval, facts.next_epoch, facts.kind
        if not (await written(self._target, _IMPORT, *values))[0]["is_done"]:
            raise MoveRefusedError(
                "MoveRefused",
                "The target has a range with some of these keys, which the catalog does not know.",
                facts={"range": self._range_id, "shards": facts.shards},
                hint="Run `partita fleet reconcile`, then move again.",
            )
        await erase(self._target, facts.rows, facts.interval, lambda _: None)

    async def _catch_up(self, copy: RangeCopy) -> None:
        is_compared = False
        for _ in range(PASSES_MAX):
            keys = await copy.carry_changes()
            if keys > KEYS_BEFORE_FENCE:
                continue
            if is_compared:
                return
            await copy.carry_changes(compares=True)
            is_compared = True
        raise UnavailableError(
            "MoveOutrun",
            "Entities are written faster than they can be carried over.",
            facts={"range": self._range_id, "passes": PASSES_MAX},
            hint="Move the range when there are fewer writers, or split it first.",
        )

    async def _switch(self, copy: RangeCopy, exclusive: Exclusive) -> float | None:
        """Close the range, carry over the rest, and give it to the target.

        Return for how many seconds it was closed; None if the table was dropped.
        """
        facts, loop = self._facts, asyncio.get_running_loop()
        # Attempts to get the lock are not limited here: writers pass between them.
        rows = await exclusive.run(
            facts.ranges, _FENCE, self._range_id, facts.epoch, facts.next_epoch
        )
        closed = loop.time()
        if not rows[0]["is_done"]:
            return None
        try:
            async with asyncio.timeout(CLOSED_SECONDS_MAX):
                await copy.carry_changes()
                await copy.carry_order()
                # Also if nothing had to be carried: the target and our lock there must be alive.
                is_awaited = await self._target.read(_IS_AWAITED, self._range_id, facts.next_epoch)
        except TimeoutError as error:
            raise UnavailableError(
                "MoveFenceFailed",
                f"The last changes were not carried over within {CLOSED_SECONDS_MAX:g} s.",
                facts={"range": self._range_id},
                hint="The range stays where it was. Try again when the shards are less busy.",
            ) from error
        if not is_awaited or not await self._give(facts.shards[1], facts.next_epoch, "own"):
            return None
        self._show("own")
        await self._own()
        return loop.time() - closed

    async def _own(self) -> None:
        facts = self._facts
        values = self._range_id, facts.next_epoch
        await Exclusive(self._target).run(facts.ranges, _OWN, *values)

    async def _give(self, shard: int, epoch: int, next_step: str) -> bool:
        """Let the catalog name a shard as the owner; return False if the table was dropped."""
        facts, job = self._facts, self._held.job
        _, lo, hi = facts.interval
        new = [self._range_id], [lo], [hi], [epoch]
        rows = await self._held.write(
            _CHANGE, job.id, job.version, next_step, facts.tid, facts.ranges, *new, shard
        )
        if (version := rows[0]["version"]) is None:
            return False
        self._held.went_on(next_step, version)
        return True

    async def _wait_for_marks(self) -> None:
        """Let no restore point be made while the range changes its owner."""
        loop = asyncio.get_running_loop()
        until = loop.time() + MARK_WAIT_SECONDS_MAX
        while not (await self._held.catalog.read(_TRY_MARK))[0]["is_taken"]:
            if loop.time() >= until:
                raise UnavailableError(
                    "MoveFenceFailed",
                    "Restore points are being made, and moves wait for them.",
                    facts={"range": self._range_id},
                    hint="The range stays where it was. Try again when `partita fleet mark` ended.",
                )
            await asyncio.sleep(MARK_PAUSE_SECONDS)
        self._has_mark_lock = True

    async def _begin(self, step: MoveStep) -> None:
        await self._held.advance(step)
        self._show(step)

    def _show(self, step: MoveStep, entities: int = 0) -> None:
        self._report(MoveProgress(step, entities, self._total))


async def settle_move(held: HeldJob) -> bool:
    """Complete a move that was left after its commit point, or take it back; return which."""
    move = Move(held)
    if held.job.step in COMPLETED_ONLY:
        await move.complete()
        return True
    await move.take_back()
    return False
