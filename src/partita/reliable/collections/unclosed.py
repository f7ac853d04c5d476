"""What a program opened, lost and never ended: it is ended from its loop, with a warning."""

import asyncio
import contextlib
import itertools
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType

_PACKAGE = str(Path(__file__).parents[2])

Origin = tuple[int, CodeType | None, int]
"""The process, by the number of forks that led to it, and the place in the code."""

_forks = itertools.count(1)
_process = 0


def _note_fork() -> None:
    global _process  # noqa: PLW0603 - cheaper than to ask the system for each transaction
    _process = next(_forks)


os.register_at_fork(after_in_child=_note_fork)


def origin() -> Origin:
    """Return the place from which this package was called; every transaction asks for it."""
    frame = sys._getframe(1)  # noqa: SLF001 - a whole stack would be slow
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return _process, None, 0
        frame = frame.f_back
    return _process, frame.f_code, frame.f_lasti


def end_lost(
    loop: asyncio.AbstractEventLoop,
    opened: Origin,
    what: str,
    end: Callable[[], None],
    source: object,
) -> None:
    """Have the loop end what is lost, and warn; called by a finalizer in any thread.

    The loop of a parent process is not ours. With its loop, or with the program, all has ended.
    """
    if sys.is_finalizing() or opened[0] != _process or loop.is_closed():
        return
    with contextlib.suppress(RuntimeError):  # the loop was closed just now
        loop.call_soon_threadsafe(end)
    warnings.warn(
        f"{what}{_told(opened)} was never ended. It is ended now.",
        ResourceWarning,
        source=source,
        stacklevel=3,
    )


def _told(opened: Origin) -> str:
    _, code, position = opened
    if code is None:
        return ""
    lines = (line for start, end, line in code.co_lines() if start <= position < end)
    return f", opened at {code.co_filename}:{next(lines, None)},"
