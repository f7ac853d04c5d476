"""The record of a move in the global catalog (`partita_jobs`), read and written by its mover.

Rule: a write requires the version that was read before (`changed_at` grows with every write), so
that a mover that counted as dead cannot overwrite the progress of its successor.
"""

import msgspec
from sqlalchemy import and_, delete, insert, select, update

from partita.errors import OperationPendingError, ShardMapNotFoundError
from partita.shards.catalog.change_plans import decode_known
from partita.shards.catalog.executor import Executor
from partita.shards.catalog.global_catalog import jobs
from partita.shards.moving.move_plan import STEPS, UNFINISHED, MovePlan, Progress, State, Step

KIND = "move"


class MoveRecord:
    """One job: its plan and its progress."""

    def __init__(  # noqa: PLR0913 - one row of the table
        self,
        executor: Executor,
        job_id: str,
        plan: MovePlan,
        *,
        map_id: str,
        changed_at: int,
        step: Step = "plan",
        state: State = "running",
        progress: Progress | None = None,
    ) -> None:
        self._executor = executor
        self.id = job_id
        self.map_id = map_id
        self.plan = plan
        self.step = step
        self.state = state
        self.progress = progress or Progress()
        self._changed_at = changed_at
        """The version that this process read or wrote last."""

    @classmethod
    def start(cls, executor: Executor, map_id: str, plan: MovePlan, job_id: str) -> "MoveRecord":
        """Write the record; from then on the job can be resumed."""
        now = executor.clock.ticks()
        record = cls(executor, job_id, plan, map_id=map_id, changed_at=now)
        values = record._values() | {
            "id": record.id,
            "map_id": map_id,
            "kind": KIND,
            "plan": msgspec.json.encode(plan).decode(),
            "made_at": now,
            "changed_at": now,
        }
        with executor.engine.begin() as connection:
            connection.execute(insert(jobs).values(values))
        return record

    def save(
        self, *, step: Step | None = None, state: State | None = None, **progress: object
    ) -> None:
        """Write changes; OperationPendingError if another process took over the job."""
        self.step = step or self.step
        self.state = state or self.state
        self.progress = msgspec.structs.replace(self.progress, **progress)
        now = max(self._executor.clock.ticks(), self._changed_at + 1)
        mine = and_(jobs.c.id == self.id, jobs.c.changed_at == self._changed_at)
        with self._executor.engine.begin() as connection:
            written = connection.execute(
                update(jobs).where(mine).values(self._values() | {"changed_at": now})
            )
            if not written.rowcount:
                raise running_elsewhere(self.id)
        self._changed_at = now

    def forget(self) -> None:
        """Delete the record of a job that did not start."""
        with self._executor.engine.begin() as connection:
            connection.execute(delete(jobs).where(jobs.c.id == self.id))

    def _values(self) -> dict[str, object]:
        return {
            "step": self.step,
            "state": self.state,
            "progress": msgspec.json.encode(self.progress).decode(),
        }


def list_unfinished(executor: Executor, map_id: str | None = None) -> list[str]:
    """Return the ids of unfinished moves, of one map or all, the oldest first."""
    query = select(jobs.c.id).where(jobs.c.kind == KIND, jobs.c.state.in_(UNFINISHED))
    if map_id is not None:
        query = query.where(jobs.c.map_id == map_id)
    with executor.engine.connect() as connection:
        return list(connection.scalars(query.order_by(jobs.c.made_at)))


def read(executor: Executor, job_id: str) -> MoveRecord:
    """Return the record of a job, or raise ShardMapNotFoundError."""
    query = select(jobs).where(jobs.c.id == job_id, jobs.c.kind == KIND)
    with executor.engine.connect() as connection:
        row = connection.execute(query).one_or_none()
    if row is None or row.step not in STEPS:
        raise ShardMapNotFoundError(
            "MoveNotFound",
            "The move does not exist.",
            facts={"job": job_id},
            hint="The report of a move contains its id.",
        )
    return MoveRecord(
        executor,
        job_id,
        decode_known(row.plan, MovePlan),
        map_id=row.map_id,
        changed_at=row.changed_at,
        step=row.step,
        state=row.state,
        progress=decode_known(row.progress, Progress),
    )


def running_elsewhere(job_id: str) -> OperationPendingError:
    return OperationPendingError(
        "MoveRunning",
        "Another process is running this move.",
        facts={"job": job_id},
        hint="Wait for that process, or stop it first.",
    )
