"""Who keeps a move waiting: the sessions that hold a table of PostgreSQL or an SQLite file.

PostgreSQL says everything about its sessions. SQLite says nothing: the transactions of this process
are known by their connections, those of other processes by the lock that Linux lists for them.
"""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from partita.shards.connections import revocable
from partita.shards.connections.revocable import RevocableConnection
from partita.shards.connections.writing_turns import CLOCK, WritingTurns

STATEMENT_CHARACTERS_MAX = 200
"""How much of a statement is told."""
_WAL_WRITE_LOCK = 120
"""The byte of the `-shm` file whose lock is the write lock: https://sqlite.org/walformat.html."""
_LOCKS = Path("/proc/locks")


class Blocker(msgspec.Struct, frozen=True):
    """One session that holds what a move needs."""

    pid: int
    """Of the server's process on PostgreSQL, of the client's on SQLite."""
    application: str
    state: str
    age_seconds: float | None
    """Since its transaction began; None where it is not known."""
    statement: str = ""
    """The last one, shortened."""

    def __str__(self) -> str:
        parts = [f"pid {self.pid}", self.application, self.state]
        if self.age_seconds is not None:
            parts.append(f"transaction open for {self.age_seconds:.0f} s")
        if self.statement:
            parts.append(f"last statement: {self.statement}")
        return ", ".join(part for part in parts if part)


HeldUp = Callable[[str, Sequence[Blocker], float], Sequence[Blocker]]
"""Is told what is waited for, who holds it and how many seconds passed; returns whom to end."""


def nobody_is_ended(_what: str, _blockers: Sequence[Blocker], _seconds: float) -> Sequence[Blocker]:
    """Wait only."""
    return ()


def shortened(statement: str) -> str:
    text = " ".join(statement.split())
    if len(text) <= STATEMENT_CHARACTERS_MAX:
        return text
    return text[: STATEMENT_CHARACTERS_MAX - 1] + "…"


class SqliteBlocker:
    """A writer of an SQLite file, and how to end its transaction."""

    def __init__(self, blocker: Blocker, connection: RevocableConnection | None) -> None:
        self.blocker = blocker
        self._connection = connection

    def end(self) -> None:
        """Roll the transaction back; another process can only be asked to end itself."""
        if self._connection is not None:
            self._connection.end()
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.blocker.pid, signal.SIGTERM)


def find_sqlite_blockers(file: str, turns: WritingTurns) -> list[SqliteBlocker]:
    """Return who writes to the file now."""
    found = [_known(connection) for connection in revocable.writers_of(turns)]
    if found:
        return found
    pid = _lock_owner(file)
    if pid is None or pid == os.getpid():
        return []
    blocker = Blocker(pid, _command_of(pid), "in another process", None)
    return [SqliteBlocker(blocker, None)]


def _known(connection: RevocableConnection) -> SqliteBlocker:
    age = CLOCK.monotonic() - connection.began_at
    statement = shortened(connection.last_statement)
    blocker = Blocker(os.getpid(), "this process", "in a transaction", age, statement)
    return SqliteBlocker(blocker, connection)


def _lock_owner(file: str) -> int | None:
    # Listed, not asked for: to open and close the file would give up this process's own locks.
    try:
        found = Path(f"{file}-shm").stat()
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        # For example: 1: POSIX  ADVISORY  WRITE 1234 08:01:5678 120 120
        fields = line.split()
        is_writer = len(fields) == 8 and fields[1] == "POSIX" and fields[3] == "WRITE"
        if is_writer and fields[5] == inode and int(fields[6]) <= _WAL_WRITE_LOCK:
            last = fields[7]
            if last == "EOF" or int(last) >= _WAL_WRITE_LOCK:
                return int(fields[4])
    return None


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return shortened(" ".join(word.decode(errors="replace") for word in words if word))
