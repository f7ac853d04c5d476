"""Queue the writers of an SQLite file, first come, first served.

SQLite allows one writer per file and makes the others poll with growing pauses, so that one busy
writer can starve all others. Therefore the writers of a process queue here. Between processes, a
process that has written for `SLICE_SECONDS` leaves the file free for `GAP_SECONDS`, and each
waiting process polls twice in such a gap.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from partita.clock import SystemClock

T = TypeVar("T")

SLICE_SECONDS = 0.02
"""How long the writers of one process may write without a gap."""
GAP_SECONDS = 0.001
"""How long the process then leaves the file to other processes."""
POLL_SECONDS = GAP_SECONDS / 2
"""The pause between two attempts of a waiting writer."""
_SQLITE_BUSY = 5
CLOCK = SystemClock()
"""Connections are created by SQLite drivers, which cannot pass a clock."""


def is_busy(error: BaseException | None) -> bool:
    """Return whether SQLite refused a lock; the low byte of an extended code is the code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY


class WritingTurns:
    """The queue of the writers of one file in this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may call _pass_on anywhere
        self._holder: weakref.ref[object] | None = None
        self._waiting: deque[tuple[object, threading.Lock]] = deque()
        self._freed_at = self._slice_began_at = CLOCK.monotonic()

    @property
    def waiting(self) -> int:
        """The number of queued writers."""
        return len(self._waiting)

    def take(self, holder: object, seconds: float) -> bool:
        """Wait for the turn of `holder`; return False on time-out."""
        with self._lock:
            if self._holder is None:
                self._holder = self._reference(holder)
                woken = None
            else:
                woken = threading.Lock()
                woken.acquire()
                self._waiting.append((holder, woken))
        if woken is not None and not woken.acquire(timeout=max(seconds, 0.0)):
            with self._lock:
                if (holder, woken) in self._waiting:
                    self._waiting.remove((holder, woken))
                    return False
        self._leave_a_gap()
        return True

    def give_back(self, holder: object) -> None:
        """End the turn of `holder`, if it has one."""
        if self._holder is not None and self._holder() is holder:
            self._pass_on()

    def _leave_a_gap(self) -> None:
        now = CLOCK.monotonic()
        if now - self._freed_at >= GAP_SECONDS:
            self._slice_began_at = now
        elif now - self._slice_began_at >= SLICE_SECONDS:
            time.sleep(GAP_SECONDS)
            self._slice_began_at = CLOCK.monotonic()

    def _reference(self, holder: object) -> "weakref.ref[object]":
        # A connection that is garbage-collected without close() must not keep the turn.
        return weakref.ref(holder, lambda gone: self._pass_on() if self._holder is gone else None)

    def _pass_on(self) -> None:
        with self._lock:
            self._freed_at = CLOCK.monotonic()
            if not self._waiting:
                self._holder = None
                return
            holder, woken = self._waiting.popleft()
            self._holder = self._reference(holder)
        woken.release()


def retry_while_busy(attempt: Callable[[], T], seconds: float) -> T:
    """Call `attempt` until SQLite grants the lock, for at most `seconds`."""
    end = CLOCK.monotonic() + seconds
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or CLOCK.monotonic() >= end:
                raise
        time.sleep(POLL_SECONDS)


_turns: weakref.WeakValueDictionary[str, WritingTurns] = weakref.WeakValueDictionary()
_turns_lock = threading.Lock()


def turns_of(file: str) -> WritingTurns:
    """Return the queue of the file, shared by all connections of the process."""
    with _turns_lock:
        found = _turns.get(file)
        if found is None:
            found = _turns[file] = WritingTurns()
        return found


def _forget_all() -> None:
    global _turns_lock  # noqa: PLW0603 - it may be held by a thread of the parent
    _turns_lock = threading.Lock()
    _turns.clear()


os.register_at_fork(after_in_child=_forget_all)
