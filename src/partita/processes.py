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
