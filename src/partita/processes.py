"""Child processes: servers that are started for development and tests.

A child does not outlive its parent, even if the parent is killed.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
RESTART_SECONDS_MIN = 0.5
"""The pause before the first restart of a process; doubles with each restart that did not last."""
RESTART_SECONDS_MAX = 30.0
STABLE_SECONDS = 60.0
"""A process that has run for this time starts with the shortest pause again."""
FAILURES_MAX = 10
"""Restarts in a row that did not last, after which a process is given up."""


class Restarts:
    """When to restart one process; pure."""

    def __init__(self, began: float) -> None:
        self.count = 0
        self.last_exit: int | None = None
        self.is_given_up = False
        self._failures = 0
        self._began = began
        self.due: float | None = None
        """When the process is started again; None while it runs."""

    def end(self, now: float, exit_status: int | None) -> float | None:
        """Note the end; return the pause before the restart, None if it is given up."""
        self.last_exit = exit_status
        self._failures = 0 if now - self._began >= STABLE_SECONDS else self._failures + 1
        if self._failures > FAILURES_MAX:
            self.is_given_up = True
            return None
        doublings = min(max(self._failures - 1, 0), 10)
        pause = min(RESTART_SECONDS_MIN * 2.0**doublings, RESTART_SECONDS_MAX)
        self.due = now + pause
        return pause

    def start(self, now: float) -> None:
        """Note a restart."""
        self.count += 1
        self.due = None
        self._began = now


def end_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a `preexec_fn` that asks the kernel to signal the child when its parent dies.

    The kernel watches the thread that started the child, not the process: start children from a
    thread that lives long enough. Returns None on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def send_signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    if process.poll() is None:
        process.send_signal(number)


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the process to end; kill it after the time-out."""
    try:
        process.wait(max(0.1, seconds))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
