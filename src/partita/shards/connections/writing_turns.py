"""Decide whose turn it is to write to an SQLite file.

SQLite admits one writer per file and lets the others poll with growing pauses, so a writer that
begins again at once can keep all others out. Within a process the writers of a file therefore queue
here, first come, first served. Between processes, a process that has written for `SLICE_SECONDS`
leaves the file free for `GAP_SECONDS`, and every waiting process polls twice in such a gap.
"""

import os
import re
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
"""How long the writers of one process may follow each other without a gap."""
GAP_SECONDS = 0.001
"""How long a process then leaves the file to the writers of other processes."""
POLL_SECONDS = GAP_SECONDS / 2
"""How often a waiting writer tries again."""
_SQLITE_BUSY = 5
CLOCK = SystemClock()
"""SQLite drivers make the connections, and have no clock to hand on."""

_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(\w*)", re.DOTALL)
_CHANGES = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_READING = frozenset(
    ("SELECT", "VALUES", "PRAGMA", "EXPLAIN", "ATTACH", "DETACH", "COMMIT", "END", "ROLLBACK")
)


def writes(statement: str) -> bool:
    """Return whether the statement needs the write lock.

    SAVEPOINT counts: a transaction that has one cannot be begun again.
    """
    found = _FIRST_WORD.match(statement)
    word = found[1].upper() if found else ""
    if word == "WITH":
        return _CHANGES.search(statement) is not None
    return word not in _READING


def is_busy(error: BaseException | None) -> bool:
    """Return whether SQLite refused a lock; extended codes have the code in their low byte."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY


class WritingTurns:
    """The queue of this process's writers of one file."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # because the collector may call _pass_on anywhere
        self._holder: weakref.ref[object] | None = None
        self._waiting: deque[tuple[object, threading.Lock]] = deque()
        self._freed_at = self._slice_began_at = CLOCK.monotonic()

    @property
    def waiting(self) -> int:
        """How many writers wait for their turn."""
        return len(self._waiting)

    def take(self, holder: object, seconds: float) -> bool:
        """Wait for the turn of `holder`; return False if it did not come in time."""
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
        """End the turn of `holder`; nothing happens if it has none."""
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
        # A connection that is collected without being closed must not keep the turn.
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


def patiently(attempt: Callable[[], T], seconds: float) -> T:
    """Call `attempt` until SQLite gives it the lock, for at most so many seconds."""
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
    """Return the queue of the file; all connections of the process share it."""
    with _turns_lock:
        found = _turns.get(file)
        if found is None:
            found = _turns[file] = WritingTurns()
        return found


def _forget_all() -> None:
    global _turns_lock  # noqa: PLW0603 - a thread that the child does not have may have held it
    _turns_lock = threading.Lock()
    _turns.clear()


os.register_at_fork(after_in_child=_forget_all)
