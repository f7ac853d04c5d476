"""Jobs: work that outlives a request, with progress and a way to stop it.

A job belongs to the process: it ends with the console, and its result is kept until newer jobs
replace it. The one rule: a job that is cancelled says what it had already done.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from partita.errors import PartitaError, UnavailableError, UsageError
from partita.ticks import TICKS_PER_SECOND, Clock

RUNNING_MAX: Final = 4
KEPT_MAX: Final = 64
"""Finished jobs beyond this number are forgotten, the oldest first."""

logger = logging.getLogger(__name__)


class Job:
    """One job. Its function changes `counts`, `note` and `result`; the others are read-only."""

    def __init__(self, identity: str, kind: str, account: str, title: str, started: float) -> None:
        self.identity = identity
        self.kind = kind
        self.account = account
        self.title = title
        self.started = started
        self.ended: float | None = None
        self.state = "running"
        """running, done, failed or cancelled."""
        self.counts: dict[str, int | float] = {}
        """Progress: `entities`, `bytes`, `requests`; `total` where it is known."""
        self.note = ""
        self.result: dict[str, Any] = {}
        self.error: PartitaError | None = None
        self.task: asyncio.Task[None] | None = None

    def shown(self, now: float) -> dict[str, Any]:
        """Return the job for the pages."""
        error = self.error
        return {
            "id": self.identity,
            "kind": self.kind,
            "account": self.account,
            "title": self.title,
            "state": self.state,
            "started": self.started,
            "seconds": round((self.ended or now) - self.started, 3),
            "counts": self.counts,
            "note": self.note,
            "result": self.result,
            "error": error and {"code": error.code, "message": error.message, "hint": error.hint},
        }


class Jobs:
    """The jobs of a console, the newest last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[str, Job] = {}

    def start(
        self, kind: str, account: str, title: str, function: Callable[[Job], Awaitable[None]]
    ) -> Job:
        """Start a job; UnavailableError if too many are running."""
        if sum(job.state == "running" for job in self._jobs.values()) >= RUNNING_MAX:
            raise UnavailableError(
                "ConsoleJobsBusy",
                f"{RUNNING_MAX} jobs are running.",
                hint="Wait for one of them to end, or cancel one.",
            )
        job = Job(self._clock.new_id(), kind, account, title, self.now())
        self._jobs[job.identity] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, function))
        self._forget_old()
        return job

    async def _run(self, job: Job, function: Callable[[Job], Awaitable[None]]) -> None:
        try:
            await function(job)
            job.state = "done"
        except asyncio.CancelledError:
            job.state = "cancelled"
        except PartitaError as error:
            job.state, job.error = "failed", error
        except Exception as error:
            logger.exception("A job of the console failed.")
            job.state = "failed"
            job.error = UsageError("InternalError", f"The job failed: {type(error).__name__}.")
        finally:
            job.ended = self.now()

    def _forget_old(self) -> None:
        ended = [job.identity for job in self._jobs.values() if job.ended is not None]
        for identity in ended[: max(0, len(self._jobs) - KEPT_MAX)]:
            del self._jobs[identity]

    def now(self) -> float:
        """Return the seconds since 1970, for the pages."""
        return self._clock.ticks() / TICKS_PER_SECOND

    def find(self, identity: str) -> Job | None:
        return self._jobs.get(identity)

    def list_jobs(self) -> list[Job]:
        """Return all jobs, the newest first."""
        return list(reversed(self._jobs.values()))

    async def cancel(self, job: Job) -> None:
        """Stop a job and wait for its end."""
        if job.task is not None and not job.task.done():
            job.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([job.task])

    async def close(self) -> None:
        for job in self._jobs.values():
            await self.cancel(job)
