"""The sessions that block a move: they have locked a PostgreSQL table or an SQLite file.

PostgreSQL describes its sessions. SQLite does not: the transactions of this process are known from
their connections, those of other processes from the lock that Linux lists in /proc/locks.
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
"""The maximum length of a statement in a report."""
_WAL_WRITE_LOCK = 120
"""The byte of the `-shm` file whose lock is the write lock: https://sqlite.org/walformat.html."""
_LOCKS = Path("/proc/locks")


class Blocker(msgspec.Struct, frozen=True):
    """One session that blocks a move."""

    pid: int
    """The server process on PostgreSQL, the client process on SQLite."""
    application: str
    state: str
    age_seconds: float | None
    """Seconds since its transaction began; None if unknown."""
    statement: str = ""
    """The last statement, shortened."""

    def __str__(self) -> str:
        parts = [f"pid {self.pid}", self.application, self.state]
        if self.age_seconds is not None:
            parts.append(f"transaction open for {self.age_seconds:.0f} s")
        if self.statement:
            parts.append(f"last statement: {self.statement}")
        return ", ".join(part for part in parts if part)


HeldUp = Callable[[str, Sequence[Blocker], float], Sequence[Blocker]]
"""Called with the table or file, its blockers and the seconds waited; returns the blockers to
terminate."""


def terminate_none(_what: str, _blockers: Sequence[Blocker], _seconds: float) -> Sequence[Blocker]:
    """Terminate no blocker."""
    return ()


def shortened(statement: str) -> str:
    text = " ".join(statement.split())
    if len(text) <= STATEMENT_CHARACTERS_MAX:
        return text
    return text[: STATEMENT_CHARACTERS_MAX - 1] + "…"


class SqliteBlocker:
    """A writer of an SQLite file whose transaction can be ended."""

    def __init__(self, blocker: Blocker, connection: RevocableConnection | None) -> None:
        self.blocker = blocker
        self._connection = connection

    def end(self) -> None:
        """Roll back the transaction; send SIGTERM to another process."""
        if self._connection is not None:
            self._connection.end()
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.blocker.pid, signal.SIGTERM)


def find_sqlite_blockers(file: str, turns: WritingTurns) -> list[SqliteBlocker]:
    """Return the transactions that write to the file now."""
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
    # From /proc, because closing the file would release this process's own locks.
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
