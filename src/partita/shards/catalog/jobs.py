"""Records of long-running work in the global catalog (`partita_jobs`).

A job is identified by its map, its kind and its subject; the row of a finished job is kept.
"""

import msgspec
from sqlalchemy import ColumnElement, and_, delete, insert, select, update

from partita.shards.catalog.executor import Executor
from partita.shards.catalog.global_catalog import jobs

RUNNING, DONE = "running", "done"


def find(executor: Executor, map_id: str, kind: str, subject: str) -> str | None:
    """Return the id of the unfinished job with this subject."""
    query = select(jobs.c.id).where(_is(map_id, kind, subject), jobs.c.state == RUNNING)
    with executor.engine.connect() as connection:
        return connection.scalar(query)


def is_done(executor: Executor, map_id: str, kind: str, subject: str) -> bool:
    """Return whether a job with this subject has finished."""
    query = select(jobs.c.id).where(_is(map_id, kind, subject), jobs.c.state == DONE)
    with executor.engine.connect() as connection:
        return connection.scalar(query) is not None


def start(executor: Executor, map_id: str, kind: str, subject: str) -> str:
    """Record the start of a job and return its id."""
    job, now = executor.new_id(), executor.clock.ticks()
    values = {
        "id": job,
        "map_id": map_id,
        "kind": kind,
        "step": "begun",
        "plan": _plan(subject),
        "progress": "{}",
        "state": RUNNING,
        "made_at": now,
        "changed_at": now,
    }
    with executor.engine.begin() as connection:
        connection.execute(insert(jobs).values(values))
    return job


def finish(executor: Executor, job: str) -> None:
    """Record the end of a job."""
    values = {"state": DONE, "step": DONE, "changed_at": executor.clock.ticks()}
    with executor.engine.begin() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job).values(values))


def forget(executor: Executor, map_id: str, kind: str, subject: str) -> None:
    """Delete the records of a subject."""
    with executor.engine.begin() as connection:
        connection.execute(delete(jobs).where(_is(map_id, kind, subject)))


def is_busy(executor: Executor, map_id: str, shard_id: str, *, besides: str) -> bool:
    """Return whether an unfinished job of another kind names the shard in its plan."""
    query = select(jobs.c.plan).where(
        jobs.c.map_id == map_id, jobs.c.kind != besides, jobs.c.state.not_in(_ENDED)
    )
    with executor.engine.connect() as connection:
        return any(shard_id in plan for plan in connection.scalars(query))


_ENDED = (DONE, "cancelled", "failed")


def _is(map_id: str, kind: str, subject: str) -> ColumnElement[bool]:
    return and_(jobs.c.map_id == map_id, jobs.c.kind == kind, jobs.c.plan == _plan(subject))


def _plan(subject: str) -> str:
    return msgspec.json.encode({"subject": subject}).decode()
