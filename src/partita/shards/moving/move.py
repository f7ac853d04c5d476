"""Move a mapping and its rows to another shard while readers and writers continue.

A move has ten recorded steps (move_plan.py), each of which may run twice. resume() continues the
job of a mover that died or was stopped. The mapping is offline only between `fence` and `switch`,
for at most FENCE_SECONDS_MAX: after that the source comes online again, under a new mapping id, and
the job returns to `catch_up`. Rule: the mapping in the catalog decides at which step a job is; the
record only holds the progress within the step.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from partita.errors import (
    CatalogMismatchError,
    MoveRefusedError,
    PartitaError,
    StaleMappingError,
    UnavailableError,
)
from partita.shards.catalog import local_catalog
from partita.shards.catalog.change_plans import MappingRow, stale_mapping
from partita.shards.catalog.executor import unreachable
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.keys.mapping import Location, Mapping, MappingStatus, Shard
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from partita.shards.moving import move_record
from partita.shards.moving.blockers import Blocker
from partita.shards.moving.copying import Batch, RowCopy, Shardlet, Side, rows_dangle
from partita.shards.moving.move_plan import (
    FENCED,
    STEPS,
    UNFINISHED,
    MovePlan,
    Position,
    State,
    Step,
    TableShape,
    is_past,
    next_step,
    obstacles,
    resumed_step,
)
from partita.shards.moving.move_record import MoveRecord, running_elsewhere
from partita.shards.moving.open_copy import open_copy
from partita.shards.routing import offline
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.shards.routing.offline import Fence

BATCH_ROWS = 20_000
GRACE_SECONDS = 2.0
FENCE_SECONDS_MAX = 5.0
"""How long the mapping may be offline before the move brings it online and tries again."""
FENCE_TRIES = 3
CATCH_UP_ROWS = 500
"""With at most this many changed rows left, the move goes on to the fence."""
CATCH_UP_PASSES_MAX = 200
COMPARED_ROWS = 20_000
"""The number of rows compared in one snapshot."""
FENCED_ROWS_MAX = 20_000
"""Ranges of at most this many rows are compared again as a whole behind the fence."""
DELETED_ROWS = 2_000
RECORD_SECONDS = 0.5
"""The pause between two records of progress: how much copying a crash can lose."""


class StopMove(Exception):  # noqa: N818 - a request, not an error
    """Raise this from on_progress to pause the move; resume() continues it."""


class MoveProgress(msgspec.Struct, frozen=True):
    """The argument of on_progress: which of the ten steps, and its progress."""

    job_id: str
    step: Step
    number: int
    """From 1 to 10."""
    rows: int
    rows_total: int
    """As counted in the step plan; the number may change during the move."""
    seconds: float
    """Since the call began."""
    table: str = ""
    """The table or file that is processed or waited for."""
    blockers: tuple[Blocker, ...] = ()
    """The sessions that block the move."""


class MoveReport(msgspec.Struct, frozen=True):
    """The state of a move."""

    job_id: str
    map_name: str
    range: Range
    source: Location
    target: Location
    state: State
    step: Step
    rows: int
    seconds: float
    """The duration of the call."""
    fence_seconds: float
    """How long transactions were refused; 0.0 if the move did not reach the fence."""
    terminated: int
    """The number of sessions terminated after the grace period or because they blocked the move."""
    error: str = ""


OnProgress = Callable[[MoveProgress], object]


def move(  # noqa: PLR0913 - options by name
    manager: ShardMapManager,
    mapping: Mapping,
    to: Shard,
    *,
    on_progress: OnProgress | None = None,
    batch_rows: int = BATCH_ROWS,
    rate: float | None = None,
    grace: float = GRACE_SECONDS,
    verify: bool = True,
    terminate_blockers: bool = False,
    clock: Clock | None = None,
) -> MoveReport:
    """Move a mapping and its rows to another shard, online.

    `rate` is the maximum number of rows per second. MoveRefusedError lists all obstacles before
    anything is changed. A later error leaves the job paused: call resume() or cancel(). With
    `terminate_blockers`, sessions that block the move for longer than `grace` are terminated;
    `on_progress` is called with them.
    """
    shard_map = manager.get_map(mapping.map_name)
    _check_ends(shard_map, mapping, to)
    job_id = manager.executor.new_id()
    plan = MovePlan(
        map_name=shard_map.name,
        source_id=mapping.shard.id,
        source=mapping.shard.location.text,
        target_id=to.id,
        target=to.location.text,
        low=mapping.key_range.low,
        high=mapping.key_range.high,
        mapping_id=mapping.id,
        status=mapping.status.value,
        token=f"move:{job_id}",
        batch_rows=max(1, batch_rows),
        rate=rate,
        grace=grace,
        verify=verify,
    )
    record = MoveRecord.start(manager.executor, shard_map.id, plan, job_id)
    mover = Mover(manager, shard_map, record, on_progress=on_progress, clock=clock)
    mover.terminates_blockers = terminate_blockers
    try:
        return mover.run()
    except StaleMappingError:
        shard_map.forget(mapping)
        raise


def resume(
    manager: ShardMapManager,
    *,
    on_progress: OnProgress | None = None,
    terminate_blockers: bool = False,
    clock: Clock | None = None,
) -> list[MoveReport]:
    """Continue every unfinished move that no other process is running.

    A move that fails again is reported with its error; the others continue.
    """
    reports: list[MoveReport] = []
    for job_id in move_record.list_unfinished(manager.executor):
        mover = _mover(manager, job_id, on_progress, clock)
        mover.terminates_blockers = terminate_blockers
        try:
            reports.append(mover.run())
        except PartitaError as error:
            if error.code != "MoveRunning":
                reports.append(mover.report(error=str(error)))
    return reports


def cancel(manager: ShardMapManager, job_id: str) -> MoveReport:
    """Undo a move that has not switched.

    After the switch it raises MoveRefusedError: the move can only be completed with resume().
    """
    return _mover(manager, job_id, None, None).cancel()


def list_moves(manager: ShardMapManager) -> list[MoveReport]:
    """Return the unfinished moves, from their records."""
    unfinished = move_record.list_unfinished(manager.executor)
    return [_mover(manager, job_id, None, None).report() for job_id in unfinished]


def _mover(
    manager: ShardMapManager, job_id: str, on_progress: OnProgress | None, clock: Clock | None
) -> "Mover":
    record = move_record.read(manager.executor, job_id)
    shard_map = manager.get_map(record.plan.map_name)
    return Mover(manager, shard_map, record, on_progress=on_progress, clock=clock)


class Mover:
    """Runs one job in this process."""

    def __init__(
        self,
        manager: ShardMapManager,
        shard_map: AnyShardMap,
        record: MoveRecord,
        *,
        on_progress: OnProgress | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._manager = manager
        self._map = shard_map
        self._record = record
        self._plan = record.plan
        self._on_progress = on_progress
        self.terminates_blockers = False
        self._clock = clock or manager.clock
        self._key_range = KeyRange(self._plan.low, self._plan.high)
        self._tables: list[TableShape] = []
        self._references: list[TableShape] = []
        self._copy: RowCopy
        self._fence: Fence | None = None
        self._fenced: Mapping
        """The mapping behind the fence."""
        self._to: Shard
        """The shard to which it moves."""
        self._fenced_at = 0.0
        self._fence_tries = 0
        self._started = self._clock.monotonic()
        self._paced_from = self._started
        self._paced_rows = 0
        self._counted_rows = record.progress.rows
        self._steps: dict[Step, Callable[[], None]] = {
            "plan": self._look,
            "lock": self._lock,
            "capture": self._capture,
            "reference": self._copy_references,
            "copy": self._copy_rows,
            "catch_up": self._catch_up,
            "fence": self._close,
            "verify": self._verify,
            "switch": self._switch,
            "clean_up": self._clean_up,
        }

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> MoveReport:
        """Run the remaining steps."""
        if self._record.state not in UNFINISHED:
            return self.report()
        if self._record.state == "cancelling":
            return self.cancel()
        with self._taken():
            try:
                self._begin()
                self._go()
            except StopMove:
                self._pause("")
            except PartitaError as error:
                if not self._has_begun():
                    self._forget()
                self._pause(str(error))
                raise
            except BaseException as error:
                self._pause(repr(error))
                raise
            finally:
                self._count_rows()
                self._manager.executor.moves.steps.pop(self._record.id, None)
        return self.report()

    def _count_rows(self) -> None:
        """Add the rows that were copied since the last call to the counters of the process."""
        rows = self._record.progress.rows
        self._manager.executor.counters.move_rows += max(rows - self._counted_rows, 0)
        self._counted_rows = rows

    def _has_begun(self) -> bool:
        """Return whether the move has changed anything that must be undone."""
        return is_past(self._record.step, "lock")

    def _forget(self) -> None:
        # Whether the step "lock" took the lock is not known; unlocking is harmless.
        self._map.unlock(self._plan.token)
        self._record.forget()
        self._record.state = "failed"

    def report(self, *, error: str = "") -> MoveReport:
        progress = self._record.progress
        return MoveReport(
            self._record.id,
            self._plan.map_name,
            self._map.decode_range(self._key_range),
            Location.from_text(self._plan.source),
            Location.from_text(self._plan.target),
            self._record.state,
            self._record.step,
            progress.rows,
            self._clock.monotonic() - self._started,
            progress.fence_seconds,
            progress.terminated,
            error or progress.error,
        )

    @contextlib.contextmanager
    def _taken(self) -> Iterator[None]:
        """Connect to both shards and lock the job for this process."""
        source, target = (Location.from_text(one) for one in (self._plan.source, self._plan.target))
        try:
            self._copy = open_copy(self._map.engines, source, target, self._shardlet())
        except DBAPIError as error:
            raise unreachable(" or ".join((source.text, target.text))) from error
        except MoveRefusedError:
            if not self._has_begun():
                self._record.forget()
            raise
        self._copy.watch(self._held_up)
        try:
            if not self._copy.take(self._record.id):
                raise running_elsewhere(self._record.id)
            with self._translated():
                yield
            if self._record.state not in UNFINISHED:
                self._copy.release()
        finally:
            self._drop_fence()
            self._copy.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._copy.driver_error as error:
            raise UnavailableError(
                "MoveInterrupted",
                f"A statement of the step {self._record.step} failed on a shard.",
                facts={"job": self._record.id, "reason": str(error).splitlines()[0]},
                hint="The job is paused: continue it with resume(), or undo it with cancel().",
            ) from error

    def _shardlet(self) -> Shardlet:
        schema = self._map.read_schema()
        return Shardlet(
            key_range=self._key_range,
            range=None if self._map.kind == "hash" else self._map.decode_range(self._key_range),
            key_type=self._map.key_type,
            encode_key=self._map.encode_key,
            schema=schema if schema is not None else _NO_SCHEMA,
        )

    def _begin(self) -> None:
        """Find the step of the job; an earlier mover may have died at any time."""
        self._record.save(state="running", error="")
        if self._record.progress.is_cleaned:
            return
        self._use_tables()
        row = self._current_row()
        step = resumed_step(
            self._record.step,
            on_target=row.shard_id == self._plan.target_id,
            is_online=row.status == MappingStatus.ONLINE.value,
        )
        if step != self._record.step:
            self._record.save(step=step)

    def _go(self) -> None:
        step: Step | None = self._record.step
        while step is not None:
            try:
                step = self._do(step)
            except BaseException as error:
                if step not in FENCED:
                    raise
                step = self._after_failure(error)
        self._record.save(state="done", error="")
        self._manager.executor.counters.moves += 1

    def _do(self, step: Step) -> Step | None:
        self._manager.executor.moves.steps[self._record.id] = step
        self._tell()
        self._fault(f"{step} begins")
        with self._translated():
            self._steps[step]()
        self._fault(f"{step} done")
        following = next_step(step)
        if following is not None:
            self._record.save(step=following)
        return following

    def _after_failure(self, error: BaseException) -> Step:
        """Bring the source online again; return the step to continue with, or raise."""
        self._drop_fence()
        row = self._current_row()
        if row.shard_id == self._plan.target_id:
            # The catalog has switched, so the move can only be completed.
            self._copy.bound_time(None)
            self._record.save(step="clean_up")
            return "clean_up"
        self._reopen(row)
        self._record.save(step="catch_up")
        self._fence_tries += 1
        if self._fence_tries >= FENCE_TRIES or not isinstance(error, UnavailableError):
            raise error
        return "catch_up"

    def _reopen(self, row: MappingRow) -> None:
        """Bring the source online under a new mapping id; the old id must not be entered."""
        self._copy.bound_time(None)
        if row.status != self._plan.status:
            mapping = self._current(row)
            status = MappingStatus(self._plan.status)
            self._map.update_mapping(mapping, status=status, token=self._plan.token)

    def _pause(self, error: str) -> None:
        if self._record.state == "running":
            # Suppressed because the catalog may be what failed; a job that is still marked as
            # running can be resumed as well.
            with contextlib.suppress(PartitaError, DBAPIError):
                self._record.save(state="paused", error=error)

    # --- the catalogs -----------------------------------------------------------------------------

    def _current_row(self) -> MappingRow:
        """Return the mapping from the catalog, after ending an unfinished change of it."""

        def read(locked: LockedMap) -> list[MappingRow]:
            return locked.overlapping(self._plan.low, self._plan.high)

        rows = self._manager.executor.decide(self._map.id, self._map.name, read)
        if len(rows) != 1 or (rows[0].low, rows[0].high) != (self._plan.low, self._plan.high):
            raise stale_mapping(self._map.name, self._plan.mapping_id)
        if is_past(self._record.step, "lock") and rows[0].lock_owner != self._plan.token:
            raise StaleMappingError(
                "MoveLockLost",
                "The mapping is no longer locked by the move.",
                facts={"map": self._map.name, "job": self._record.id},
                hint="The lock was forced open; check the mapping before you continue.",
            )
        return rows[0]

    def _current(self, row: MappingRow | None = None) -> Mapping:
        row = row or self._current_row()
        mapping = self._map.find_encoded(self._plan.low, lookup="store")
        if mapping is None or mapping.id != row.id:
            raise stale_mapping(self._map.name, row.id)
        return mapping

    def _target(self) -> Shard:
        for shard in self._map.shards():
            if shard.id == self._plan.target_id:
                return shard
        self._refuse(["the target is no longer a shard of the map"])
        raise AssertionError

    def _check_not_owner(self, location: str) -> None:
        """Check, before rows are deleted, that the local catalog does not map them to the shard."""
        table = local_catalog.mappings
        with self._manager.executor.on_shard(location) as connection:
            rows = connection.execute(
                select(table.c.low, table.c.high).where(table.c.map_id == self._map.id)
            ).all()
        if any(KeyRange(row.low, row.high).intersects(self._key_range) for row in rows):
            raise CatalogMismatchError(
                "MoveWouldDeleteOwned",
                "The shard owns rows that the move is about to delete.",
                facts={"job": self._record.id, "location": location},
                hint="Compare the catalogs with `partita shards recover` before any change.",
            )

    # --- 1 to 4 -----------------------------------------------------------------------------------

    def _use_tables(self) -> None:
        schema = self._map.schema
        if schema is None or not schema.sharded_tables():
            self._refuse(["the map has no schema: call set_schema()"])
            return
        sharded, reference = self._copy.look(schema.sharded_tables(), schema.reference_tables())
        found = [shape for shape in sharded.source if shape is not None]
        if self._record.step == "plan":
            reasons = [*obstacles(sharded, reference), *self._copy.obstacles(sharded)]
            self._refuse(reasons)
        self._tables = found
        self._references = [shape for shape in reference.source if shape is not None]
        self._copy.use(found, self._record.id)

    def _refuse(self, reasons: list[str]) -> None:
        """Raise MoveRefusedError if there are reasons."""
        plan = self._plan
        if reasons:
            facts: dict[str, object] = {
                "map": plan.map_name,
                "source": plan.source,
                "target": plan.target,
            }
            raise _refused(reasons, facts, "Resolve the listed obstacles and move again.")

    def _look(self) -> None:
        reasons = []
        if self._copy.has_rows("target"):
            reasons.append("the target already has rows of the range")
        dangling = self._copy.find_open_reference("source")
        if dangling is not None:
            reasons.append(f"rows refer to rows outside the shardlet: {dangling}")
        self._refuse(reasons)
        self._record.save(rows_total=self._copy.count("source"))

    def _lock(self) -> None:
        row = self._current_row()
        if row.lock_owner == self._plan.token:
            return
        if row.id != self._plan.mapping_id:
            raise stale_mapping(self._map.name, self._plan.mapping_id)
        self._map.lock(self._current(row), token=self._plan.token)

    def _capture(self) -> None:
        self._copy.install_capture(lambda number: self._fault(f"capture table {number}"))

    def _copy_references(self) -> None:
        for number, shape in enumerate(self._references):
            self._copy.copy_reference(shape)
            self._fault(f"reference table {number}")

    # --- 5 copy -----------------------------------------------------------------------------------

    def _copy_rows(self) -> None:
        self._check_not_owner(self._plan.target)
        self._paced_from, self._paced_rows = self._clock.monotonic(), 0
        progress = self._record.progress
        position, rows = progress.position, progress.rows
        for number in range(progress.table, len(self._tables)):
            # Rows after the recorded position were copied by a mover that died.
            self._copy.delete_after(number, position)
            rows = self._copy_table(number, position, rows)
            position = None
            self._record.save(table=number + 1, position=None, rows=rows)

    def _copy_table(self, number: int, position: Position | None, rows: int) -> int:
        recorded_at = self._clock.monotonic()
        while True:
            batch = self._copy.copy_batch(number, position, self._batch_rows)
            self._fault(f"copy batch of {number}")
            rows += batch.rows
            position = batch.end
            if position is None:
                return rows
            if self._clock.monotonic() - recorded_at > RECORD_SECONDS:
                self._record.save(table=number, position=position, rows=rows)
                recorded_at = self._clock.monotonic()
            self._tell(self._tables[number].name, rows)
            self._pace(batch.rows)

    @property
    def _batch_rows(self) -> int:
        """The size of a batch: at most what the rate allows per second."""
        most = self._plan.batch_rows
        return most if self._plan.rate is None else max(1, min(most, int(self._plan.rate)))

    def _pace(self, rows: int) -> None:
        if self._plan.rate is None:
            return
        self._paced_rows += rows
        due = self._paced_from + self._paced_rows / self._plan.rate
        pause = due - self._clock.monotonic()
        if pause > 0:
            time.sleep(pause)

    # --- 6 catch up -------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        self._replay_until_few()
        if not self._plan.verify:
            return
        self._walk(self._copy.compare_batch, COMPARED_ROWS, "catch_up compared")
        self._check_references()
        self._replay_until_few()

    def _replay_until_few(self) -> None:
        for _ in range(CATCH_UP_PASSES_MAX):
            # After the rows were compared once, every pass compares what it copies. So both sides
            # stay equal, and the fence need not wait for another comparison of all rows.
            replay = self._copy.replay(
                lambda: self._fault("catch_up applied"), verify=self._plan.verify
            )
            self._tell()
            if replay.rows <= CATCH_UP_ROWS:
                return
        raise UnavailableError(
            "MoveOutrun",
            "Rows change faster than they can be copied.",
            facts={"job": self._record.id},
            hint="Resume the job when there are fewer writes.",
        )

    def _walk(
        self, batch_of: Callable[[int, Position | None, int], Batch], limit: int, point: str
    ) -> None:
        for number in range(len(self._tables)):
            position: Position | None = None
            while True:
                batch = batch_of(number, position, limit)
                self._fault(point)
                position = batch.end
                if position is None:
                    break
                self._tell(self._tables[number].name)

    # --- 7 to 9: behind the fence -----------------------------------------------------------------

    def _close(self) -> None:
        mapping, self._to = self._current(), self._target()
        grace = min(self._plan.grace, FENCE_SECONDS_MAX / 2)
        engines = self._map.engines
        # Before the fence, while the mapping is still online.
        self._copy.wait_for_writers()
        self._copy.bound_time(FENCE_SECONDS_MAX)
        self._fenced_at = self._clock.monotonic()
        if mapping.is_online:
            # Recorded first: after a crash, resume() must drain transactions of this id.
            self._record.save(online_id=mapping.id)
            self._fault("fence recorded")
            self._fenced_at = self._clock.monotonic()
            self._fenced, self._fence = offline.set_offline(
                engines, self._clock, mapping, lambda: self._take_offline(mapping), grace=grace
            )
        else:
            online_id = self._record.progress.online_id or mapping.id
            location = mapping.shard.location
            self._fence = offline.drain(engines, self._clock, location, online_id, grace=grace)
            self._fenced = mapping
        self._check_time()

    def _take_offline(self, mapping: Mapping) -> Mapping:
        token = self._plan.token
        return self._map.update_mapping(mapping, status=MappingStatus.OFFLINE, token=token)

    def _verify(self) -> None:
        is_small = self._record.progress.rows_total <= FENCED_ROWS_MAX
        self._copy.replay(
            lambda: self._fault("verify applied"),
            verify=self._plan.verify,
            whole=self._plan.verify and is_small,
        )
        if self._copy.pending():
            raise _too_long(self._record.id, "The source was written to behind the fence.")
        self._check_time()

    def _check_references(self) -> None:
        dangling = self._copy.find_open_reference("target")
        if dangling is not None:
            raise rows_dangle(dangling)

    def _switch(self) -> None:
        if self._fence is None or not self._fence.is_held:
            raise _too_long(self._record.id, "The fence was lost: its session was terminated.")
        self._check_time()
        self._map.update_mapping(
            self._fenced,
            shard=self._to,
            status=MappingStatus(self._plan.status),
            token=self._plan.token,
        )
        seconds = self._clock.monotonic() - self._fenced_at
        self._manager.executor.moves.fence_seconds.observe(seconds)
        terminated = self._record.progress.terminated + self._fence.terminated
        self._drop_fence()
        self._copy.bound_time(None)
        self._fault("switch committed")
        self._record.save(fence_seconds=seconds, terminated=terminated)

    def _time_left(self) -> float:
        return self._fenced_at + FENCE_SECONDS_MAX - self._clock.monotonic()

    def _check_time(self) -> None:
        if self._time_left() <= 0:
            raise _too_long(self._record.id, "The mapping was offline for too long.")

    def _drop_fence(self) -> None:
        fence, self._fence = self._fence, None
        if fence is not None:
            fence.close()

    # --- 10 clean up, and cancel ------------------------------------------------------------------

    def _clean_up(self) -> None:
        if not self._record.progress.is_cleaned:
            self._clean_source()
            self._record.save(is_cleaned=True)
            self._fault("clean_up recorded")
        self._map.unlock(self._plan.token)

    def _clean_source(self) -> None:
        row = self._current_row()
        if row.shard_id != self._plan.target_id:
            raise stale_mapping(self._map.name, row.id)
        self._copy.remove_capture()
        self._fault("clean_up capture removed")
        self._check_not_owner(self._plan.source)
        self._delete_rows("source", "clean_up batch")

    def _delete_rows(self, side: Side, point: str) -> None:
        self._paced_from, self._paced_rows = self._clock.monotonic(), 0
        rows = min(self._batch_rows, DELETED_ROWS)
        for number in reversed(range(len(self._tables))):
            position: Position | None = None
            while True:
                batch = self._copy.delete_batch(side, number, position, rows)
                self._fault(point)
                position = batch.end
                if position is None:
                    break
                self._tell(self._tables[number].name)
                self._pace(batch.rows)

    def cancel(self) -> MoveReport:
        """Undo the move."""
        if self._record.state not in UNFINISHED:
            raise _only_forward(self._record.id, "The move has already ended.")
        with self._taken():
            if not self._record.progress.is_cleaned:
                self._undo()
                self._record.save(is_cleaned=True)
                self._fault("cancel recorded")
            self._map.unlock(self._plan.token)
            self._fault("cancel unlocked")
            self._record.save(state="cancelled")
        return self.report()

    def _row_to_cancel(self) -> MappingRow | None:
        try:
            return self._current_row()
        except StaleMappingError:
            if is_past(self._record.step, "lock"):
                raise
            return None  # the mapping was changed before it was locked: nothing to undo

    def _undo(self) -> None:
        row = self._row_to_cancel()
        if row is not None and row.shard_id == self._plan.target_id:
            raise _only_forward(self._record.id, "The mapping already belongs to the target.")
        self._record.save(state="cancelling")
        self._fault("cancel begins")
        if row is None or not is_past(self._record.step, "lock"):
            return
        self._use_tables()
        self._reopen(row)
        self._fault("cancel reopened")
        self._copy.remove_capture()
        self._fault("cancel capture removed")
        if is_past(self._record.step, "reference"):
            self._check_not_owner(self._plan.target)
            self._delete_rows("target", "cancel batch")

    # --- progress ---------------------------------------------------------------------------------

    def _held_up(self, what: str, blockers: Sequence[Blocker], seconds: float) -> Sequence[Blocker]:
        """Report the sessions that block the move; return those to terminate."""
        self._tell(what, blockers=tuple(blockers))
        if not self.terminates_blockers:
            return ()
        grace = self._plan.grace
        late = [
            each
            for each in blockers
            if (seconds if each.age_seconds is None else each.age_seconds) >= grace
        ]
        if late:
            progress = self._record.progress
            self._record.save(terminated=progress.terminated + len(late))
        return late

    def _tell(
        self, table: str = "", rows: int | None = None, blockers: tuple[Blocker, ...] = ()
    ) -> None:
        self._count_rows()
        if self._on_progress is None:
            return
        progress, step = self._record.progress, self._record.step
        self._on_progress(
            MoveProgress(
                self._record.id,
                step,
                STEPS.index(step) + 1,
                progress.rows if rows is None else rows,
                progress.rows_total,
                self._clock.monotonic() - self._started,
                table,
                blockers,
            )
        )

    def _fault(self, point: str) -> None:
        self._manager.executor.fault(f"move {point}")


_NO_SCHEMA = ShardedSchema.from_json('{"version":1,"sharded":[],"reference":[]}')


def _check_ends(shard_map: AnyShardMap, mapping: Mapping, to: Shard) -> None:
    reasons = []
    if to.id == mapping.shard.id:
        reasons.append("the mapping is already on this shard")
    elif to.location.identity == mapping.shard.location.identity:
        reasons.append("source and target are the same database")
    if to not in shard_map.shards():
        reasons.append("the target is not a shard of the map")
    if reasons:
        facts: dict[str, object] = {
            "map": shard_map.name,
            "target": to.location.text,
            "reasons": reasons,
        }
        raise _refused(reasons, facts, "Choose another shard of the map.")


def _refused(reasons: list[str], facts: dict[str, object], hint: str) -> MoveRefusedError:
    listed = "; ".join(sorted(reasons))
    return MoveRefusedError("MoveRefused", f"Cannot move: {listed}.", facts=facts, hint=hint)


def _only_forward(job_id: str, message: str) -> MoveRefusedError:
    return MoveRefusedError(
        "MoveSwitched",
        message,
        facts={"job": job_id},
        hint="Complete it with resume(); then you can move the mapping back.",
    )


def _too_long(job_id: str, message: str) -> UnavailableError:
    return UnavailableError(
        "MoveFenceFailed",
        message,
        facts={"job": job_id, "seconds_max": FENCE_SECONDS_MAX},
        hint="The source is online again and the job is paused: call resume() to try again.",
    )
