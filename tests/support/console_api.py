"""Requests that the pages of a console send, without a browser."""

import json
import urllib.request
from typing import Any
from urllib.error import HTTPError

from support.live import LiveServer

PATIENCE_SECONDS = 60


def ask(
    console: LiveServer, method: str, path: str, body: object = None, *, block: bytes | None = None
) -> tuple[int, Any]:
    """Send a request for the development account; return its status and its JSON.

    A path that starts with a slash is not one of an account.
    """
    address, _, token = console.announced["console"].partition("#token=")
    scope = "api/v1" if path.startswith("/") else "api/v1/a/devstoreaccount1/"
    kind = "application/json" if block is None else "application/octet-stream"
    sent = json.dumps(body or {}).encode() if block is None else block
    request = urllib.request.Request(
        f"{address}{scope}{path}",
        method=method,
        data=None if method == "GET" else sent,
        headers={"Authorization": f"Bearer {token}", "Content-Type": kind},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def ended_job(console: LiveServer, job: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a job."""
    while job["state"] == "running":
        _, job = ask(console, "GET", f"/jobs/{job['id']}")
    return job
