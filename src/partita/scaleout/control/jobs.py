"""Jobs: recorded in the catalog, and held by the sessions that write.

    catalog       the row in `job`, with its step and a version; a session holds the job's lock
    each shard    the very session that writes holds the lock there, too

Every step is recorded before it begins, over the version that was read: who is too late is refused.
A process that was taken for dead, but only sleeps, still has its sessions, so that its locks keep
others away; one whose sessions ended cannot write.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import MoveRefusedError, OperationPendingError, PartitaError, UnavailableError
from partita.scaleout.connections.link import Connector, Link, Rows
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import DriverError, sqlstate_of, translated
from partita.scaleout.control.states import JobKind
from partita.scaleout.schema.control import TAKEN_OVER
from partita.scaleout.schema.locks import LOCK_NUMBERS, RECORDED_JOB_LOCKS, WRITING_JOB_LOCKS

logger = logging.getLogger("partita.scaleout.control")

TAKE_SECONDS_MAX = 10.0
"""How long a job waits for the sessions of its former process to end."""
TAKE_PAUSE_SECONDS = 0.1
LOCK_TIMEOUT_MS = 250
"""On a shard: a waiting exclusive lock refuses writers, so it waits briefly and often."""
CATALOG_LOCK_TIMEOUT_MS = 2_000
"""In the catalog, where jobs and front ends wait for the commits of each other only."""

_SETTINGS = """
SET lock_timeout = {lock_timeout_ms};
SET idle_in_transaction_session_timeout = '60s';
SET statement_timeout = 0;
SET tcp_keepalives_idle = 10;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3
"""
"""A process on a machine that is gone must not hold its locks for hours."""
_TAKE = "SELECT pg_try_advisory_lock($1, $2) AS is_taken"
_HELD = """
SELECT EXISTS (SELECT FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.classid = $1::bigint::oid AND l.objid = $2::bigint::oid
    AND l.objsubid = 2 AND l.granted AND l.database = (
      SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) AS is_held
"""
_START = "SELECT job, blocker FROM partita.start_job_1($1, $2, $3)"
_ADVANCE = "SELECT partita.advance_job_1($1, $2, $3) AS version"
_FINISH = "DELETE FROM partita.job WHERE id = $1 AND version = $2 RETURNING id"
_NOTE = "UPDATE partita.job SET error = $2, changed_at = partita.ticks_1() WHERE id = $1"
_JOBS = "SELECT id, kind, step, facts, version FROM partita.job WHERE $1::bigint IS NULL OR id = $1"


class Job(msgspec.Struct):
    """A recorded job; `step` and `version` follow the record."""

    id: int
    kind: JobKind
    step: str
    facts: Mapping[str, Any]
    version: int

    @property
    def shards(self) -> Sequence[int]:
        """The shards on which it writes."""
        found: Sequence[int] = self.facts["shards"]
        return found

    @property
    def lock_number(self) -> int:
        """The number of its advisory locks."""
        return self.id % LOCK_NUMBERS


class Jobs:
    """The records of all jobs."""

    def __init__(self, catalog: Pool) -> None:
        self._catalog = catalog

    async def all(self) -> list[Job]:
        """Return the jobs that are not complete, oldest first."""
        rows = await self._catalog.read(f"{_JOBS} ORDER BY id", None)
        return [_job(row) for row in rows]

    async def find(self, number: int) -> Job | None:
        rows = await self._catalog.read(_JOBS, number)
        return _job(rows[0]) if rows else None

    async def is_held(self, job: Job) -> bool:
        """Return whether a process is at work on a job."""
        rows = await self._catalog.read(_HELD, RECORDED_JOB_LOCKS, job.lock_number)
        return bool(rows[0]["is_held"])

    async def note(self, job: Job, error: PartitaError) -> None:
        """Note why a job could not be ended."""
        await self._catalog.write(_NOTE, job.id, str(error))


class HeldJob:
    """A job with the sessions that work on it."""

    def __init__(self, job: Job, catalog: Link) -> None:
        self.job = job
        self.catalog = catalog
        self._links: dict[int, Link] = {}
        self._away: dict[int, PartitaError] = {}
        """Why the others have no session."""

    def shard(self, number: int) -> Link:
        """Return the session on a shard; raise if the shard is away."""
        if (error := self._away.get(number)) is not None:
            raise error
        return self._links[number]

    def add(self, number: int, link: Link) -> None:
        """Note the session on a shard."""
        self._links[number] = link

    def miss(self, number: int, error: PartitaError) -> None:
        """Note that a shard is away."""
        self._away[number] = error

    async def advance(self, step: str) -> None:
        """Record that a step begins."""
        job = self.job
        rows = await self.write(_ADVANCE, job.id, job.version, step)
        self.went_on(step, rows[0]["version"])

    def went_on(self, step: str, version: int) -> None:
        """Follow the record."""
        self.job.step, self.job.version = step, version

    async def finish(self) -> None:
        """Remove the record."""
        if not await self.write(_FINISH, self.job.id, self.job.version):
            raise _taken_over()

    async def write(self, statement: str, *values: object) -> Rows:
        """Run a statement on the catalog."""
        try:
            return await self.catalog.write(statement, *values)
        except DriverError as error:
            if sqlstate_of(error) == TAKEN_OVER:
                raise _taken_over() from error
            raise translated(error) from error


class Sessions:
    """Sessions on the catalog and on shards, which one job will hold."""

    def __init__(self, catalog: Link, shards: Mapping[int, Link | UnavailableError]) -> None:
        self.catalog = catalog
        self._shards = shards

    async def start(self, kind: JobKind, step: str, facts: msgspec.Struct) -> Job:
        """Record a job; raise if another one has a range or, for moves, a shard of it.

        Raise also if another job has changed a range since the facts were read: the target of a
        move may be its owner now.

        The lock in the catalog is taken with the record: no other process sees a job without it.
        """
        text = msgspec.json.encode(facts).decode()
        record = msgspec.json.decode(text)
        try:
            rows = await self.catalog.write(_START, kind, step, text)
        except DriverError as error:
            raise translated(error) from error
        ((number, blocker),) = rows
        if blocker is not None:
            raise OperationPendingError(
                "RangeBusy",
                f"Job {blocker} changes the range, or moves another range from or to the shard.",
                facts={"job": blocker},
                hint="Wait until it is complete; `partita fleet status` shows it.",
            )
        if number is None:
            raise ranges_changed(record["ranges"])
        return Job(number, kind, step, record, 1)

    async def hold(self, job: Job, patience: float) -> HeldJob:
        """Take the locks of a job; raise if another process has them."""
        held = HeldJob(job, self.catalog)
        await _take(self.catalog, RECORDED_JOB_LOCKS, job, patience)
        for number, link in self._shards.items():
            if isinstance(link, UnavailableError):
                held.miss(number, link)
            else:
                await _take(link, WRITING_JOB_LOCKS, job, patience)
                held.add(number, link)
        return held


@contextlib.asynccontextmanager
async def open_sessions(
    home: Connector, shards: Mapping[int, Connector], *, may_be_away: bool = False
) -> AsyncIterator[Sessions]:
    """Open sessions on the catalog and on shards, all at once.

    With `may_be_away`, a shard that does not answer is missed only by a step that needs it.
    """
    opening = [
        open_session(home, CATALOG_LOCK_TIMEOUT_MS),
        *(open_session(connector) for connector in shards.values()),
    ]
    opened = await opened_together(opening)
    links = [link for link in opened if isinstance(link, Link)]
    try:
        for place, outcome in enumerate(opened):
            is_missed = may_be_away and place > 0 and isinstance(outcome, UnavailableError)
            if isinstance(outcome, BaseException) and not is_missed:
                raise outcome
        catalog, *others = opened
        assert isinstance(catalog, Link)
        found = {
            number: other
            for number, other in zip(shards, others, strict=True)
            if isinstance(other, Link | UnavailableError)
        }
        yield Sessions(catalog, found)
    finally:
        # At once: a statement that still runs is not worth waiting for, and keeps the locks itself.
        for link in links:
            link.terminate()


async def opened_together(
    opening: Iterable[Coroutine[Any, Any, Link]],
) -> list[Link | BaseException]:
    """Open sessions at the same time; return each, or why it could not be opened.

    If the caller is cancelled meanwhile, those that are open are closed.
    """
    tasks = [asyncio.ensure_future(each) for each in opening]
    try:
        await asyncio.wait(tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Link):
                outcome.terminate()
        raise
    return await asyncio.gather(*tasks, return_exceptions=True)


async def _take(link: Link, kind: int, job: Job, patience: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    while not (await link.read(_TAKE, kind, job.lock_number))[0]["is_taken"]:
        if loop.time() >= until:
            raise OperationPendingError(
                "MoveRunning",
                f"Another process is at work on job {job.id}.",
                facts={"job": job.id},
                hint="Wait for it, or end that process; then try again.",
            )
        await asyncio.sleep(TAKE_PAUSE_SECONDS)


async def open_session(connector: Connector, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> Link:
    """Open a session for jobs: it keeps locks, and waits for none for long."""
    link = await connector.connect()
    if link.is_pooled:
        link.terminate()
        raise MoveRefusedError(
            "TransactionPooler",
            "A change of ranges needs a session of its own, and a pooler in transaction mode is"
            " between it and the database.",
            facts={"database": str(connector.location)},
            hint="Give the URL of the server itself.",
        )
    try:
        await link.connection.execute(_SETTINGS.format(lock_timeout_ms=lock_timeout_ms))
    except DriverError as error:
        link.terminate()
        raise translated(error) from error
    return link


def _job(row: Any) -> Job:
    return Job(
        row["id"], row["kind"], row["step"], msgspec.json.decode(row["facts"]), row["version"]
    )


def ranges_changed(ranges: Sequence[int]) -> OperationPendingError:
    return OperationPendingError(
        "RangeChanged",
        "The ranges were changed, or their table was dropped, at the same time.",
        facts={"ranges": list(ranges)},
        hint="Look at `partita fleet ranges`, then try again.",
    )


def _taken_over() -> OperationPendingError:
    return OperationPendingError(
        "MoveRunning",
        "Another process has ended this job, because its sessions were lost.",
        hint="Look at `partita fleet ranges`, then try again.",
    )
