"""Jobs and downloads: list, follow, cancel; take a download by its ticket."""

from partita.console.calls import Answer, Call, Route
from partita.console.errors import not_found
from partita.console.guard import SANDBOX
from partita.console.jobs import Job
from partita.service.http.request import Response


async def list_jobs(call: Call) -> Answer:
    """Return all jobs, the newest first."""
    jobs = call.services.jobs
    return {"jobs": [job.shown(jobs.now()) for job in jobs.list_jobs()]}


async def show_job(call: Call) -> Answer:
    return _get(call).shown(call.services.jobs.now())


async def cancel_job(call: Call) -> Answer:
    """Stop a job; its counts say what it did before."""
    job = _get(call)
    await call.services.jobs.cancel(job)
    return job.shown(call.services.jobs.now())


def _get(call: Call) -> Job:
    job = call.services.jobs.find(call.arguments["job"])
    if job is None:
        raise not_found("The job")
    return job


async def download(call: Call) -> Answer:
    """Answer with the bytes of a ticket; the browser saves them and never shows them."""
    answer = await call.services.tickets.take(call.arguments["ticket"])()
    return Response(
        answer.status,
        [*answer.headers, ("Content-Security-Policy", SANDBOX)],
        answer.body,
        answer.download,
    )


ROUTES = (
    Route("GET", "/api/v1/jobs", list_jobs),
    Route("GET", "/api/v1/jobs/{job}", show_job),
    Route("POST", "/api/v1/jobs/{job}/cancel", cancel_job),
    Route("GET", "/api/v1/downloads/{ticket}", download, needs_token=False),
)
