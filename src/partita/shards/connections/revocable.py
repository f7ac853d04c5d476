"""An SQLite connection whose transaction another thread can end, as moves require.

SQLite has no sessions that could be terminated, so each connection has a lock, its gate. Rule: a
statement or COMMIT starts only while the gate is held and only if the connection was not revoked.
So after a rollback by another thread the next statement fails instead of committing on its own.
"""

import re
import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeVar

from partita.errors import MappingOfflineError, StaleMappingError
from partita.shards.connections import writing_turns

T = TypeVar("T")

BEGIN_IMMEDIATE = "BEGIN IMMEDIATE"
STATUS = "SELECT status FROM partita_local_mappings WHERE id = ?"
closing: set[str] = set()
"""Mappings that this process is taking offline; entering them is refused already."""
_BUSY_SECONDS = 5.0
"""The driver's default of `timeout`."""
_INTERRUPT_SECONDS = 0.005
"""The pause between two attempts to interrupt a statement."""

_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(\w*)", re.DOTALL)
_CHANGES = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_READING = frozenset(
    ("SELECT", "VALUES", "PRAGMA", "EXPLAIN", "ATTACH", "DETACH", "COMMIT", "END", "ROLLBACK")
)


def writes(statement: str) -> bool:
    """Return whether the statement needs the write lock.

    True for SAVEPOINT: a transaction that has one cannot be restarted.
    """
    found = _FIRST_WORD.match(statement)
    word = found[1].upper() if found else ""
    if word == "WITH":
        return _CHANGES.search(statement) is not None
    return word not in _READING


class RevocableConnection(sqlite3.Connection):
    """A connection that serves one mapping at a time and whose transaction can be revoked."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.busy_seconds = float(options.pop("timeout", _BUSY_SECONDS))
        # Waiting is done here: SQLite's own cannot be interrupted, and its growing pauses put the
        # longest waiter at a disadvantage.
        super().__init__(*arguments, timeout=0, **options)  # type: ignore[misc]
        self.gate = threading.Lock()
        self.mapping_id: str | None = None
        """The mapping that was validated last; cleared when the connection is released."""
        self.entered_id: str | None = None
        """The mapping that must still be online when the transaction restarts as a writer."""
        self.is_revoked = False
        self.is_untouched = False
        """Whether a transaction is open in which no statement was executed yet."""
        self.is_ended = False
        """Whether a move ended the transaction because it blocked the file."""
        self.began_at = 0.0
        self.last_statement = ""
        self.columns_at = -1
        self.columns: dict[str, dict[str, str]] = {}
        """The declared columns of tables at schema version `columns_at`; for fan-outs."""
        self.turns = writing_turns.turns_of(str(arguments[0] if arguments else options["database"]))
        self._has_turn = False
        self._control = sqlite3.Cursor(self)
        """For the statements of routing itself, which do not need the gate."""
        _alive.add(self)

    def begin(self) -> None:
        if self.is_revoked:
            self.check()
        self.began_at = writing_turns.CLOCK.monotonic()
        self._control.execute("BEGIN")

    def begin_to_write(self) -> None:
        """Wait for the turn to write, then begin a transaction with the write lock of the file."""
        self.is_untouched = False
        self._has_turn = self.turns.take(self, self.busy_seconds)
        self.began_at = writing_turns.CLOCK.monotonic()
        # Without a turn, one attempt is made, so that SQLite reports the error.
        seconds = self.busy_seconds if self._has_turn else 0.0
        try:
            writing_turns.retry_while_busy(self._try_to_begin, seconds)
        except BaseException:
            self._give_turn_back()
            raise

    def start(self, statement: str) -> bool:
        """Prepare the first statement of a transaction; return True if it needs no execution.

        Before a write, a transaction that has only been validated is restarted with the write
        lock: its snapshot may be too old to write, and a transaction that has read cannot wait.
        """
        self.is_untouched = False
        if statement is BEGIN_IMMEDIATE:
            self.begin_to_write()
            return True
        if self.in_transaction and writes(statement):
            with self.gate:
                self.check()
                self._control.execute("ROLLBACK")
            self.begin_to_write()
            self._enter_again()
        return False

    def _try_to_begin(self) -> None:
        with self.gate:
            self.check()
            self._control.execute(BEGIN_IMMEDIATE)

    def _enter_again(self) -> None:
        mapping_id = self.entered_id
        if mapping_id is None:
            return
        row = None if mapping_id in closing else self.find_one(STATUS, (mapping_id,))
        if row is None and mapping_id not in closing:
            raise StaleMappingError(
                "StaleMapping",
                "The mapping has changed since the transaction began.",
                facts={"mapping": mapping_id},
                hint="Connect again, or use map.run(), which retries: the key may have moved.",
            )
        if row is None or row[0] != "online":
            raise _taken_offline(mapping_id)

    def _give_turn_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self.turns.give_back(self)

    def find_one(self, query: str, values: tuple[object, ...]) -> Any:
        """Return the first row of a query of routing, or None."""
        rows = self.waiting(lambda: self._control.execute(query, values)).fetchall()
        return rows[0] if rows else None

    def waiting(self, execute: Callable[[], T]) -> T:
        """Call `execute`, waiting for a lock if SQLite is busy.

        Only for the first statement of a transaction: after a read, the snapshot would be too old.
        """
        try:
            return execute()
        except sqlite3.OperationalError as error:
            if not writing_turns.is_busy(error):
                raise
        return writing_turns.retry_while_busy(execute, self.busy_seconds)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or RevocableCursor)

    def commit(self) -> None:
        self.waiting(self._commit)
        self._give_turn_back()

    def _commit(self) -> None:
        with self.gate:
            self.check()
            super().commit()

    def rollback(self) -> None:
        super().rollback()
        self._give_turn_back()

    def close(self) -> None:
        super().close()
        self._give_turn_back()

    @property
    def is_writing(self) -> bool:
        """Whether the open transaction holds the write lock of the file, as far as is known."""
        if not _is_open(self):
            return False
        return self._has_turn or writes(self.last_statement)

    def check(self) -> None:
        if self.is_ended:
            raise MappingOfflineError(
                "TransactionTerminated",
                "A move ended this transaction because it blocked the SQLite file.",
                hint="Repeat the whole transaction, or use map.run(), which retries it.",
            )
        if self.is_revoked:
            raise _taken_offline(self.mapping_id)

    def release(self) -> None:
        """Clear the mapping; called when the connection returns to its pool."""
        with self.gate:
            self.mapping_id = self.entered_id = None
            self.is_revoked = self.is_ended = False

    def end(self) -> None:
        """Roll back the open transaction and refuse statements until release()."""
        while not self.gate.acquire(timeout=_INTERRUPT_SECONDS):
            self.interrupt()
        try:
            self.is_revoked = self.is_ended = True
            super().rollback()
            self._give_turn_back()
        finally:
            self.gate.release()

    def revoke(self, mapping_id: str) -> None:
        """Roll back the open transaction and refuse statements until release().

        Does nothing if the connection serves another mapping now.
        """
        while not self.gate.acquire(timeout=_INTERRUPT_SECONDS):
            if self.mapping_id == mapping_id:
                self.interrupt()
        try:
            if self.mapping_id != mapping_id:
                return
            self.is_revoked = True
            super().rollback()
            self._give_turn_back()
        finally:
            self.gate.release()


class RevocableCursor(sqlite3.Cursor):
    """A cursor that starts its statements while it holds the gate of the connection."""

    connection: RevocableConnection

    def execute(self, *arguments: Any) -> Self:
        connection = self.connection
        is_first = connection.is_untouched
        if is_first and connection.start(arguments[0]):
            return self
        if is_first or not connection.in_transaction:
            return connection.waiting(lambda: self._execute(*arguments))
        return self._execute(*arguments)

    def _execute(self, *arguments: Any) -> Self:
        connection = self.connection
        with connection.gate:
            if connection.is_revoked:
                connection.check()
            connection.last_statement = arguments[0]
            super().execute(*arguments)
        return self

    def executemany(self, *arguments: Any) -> Self:
        if self.connection.is_untouched:
            self.connection.start(arguments[0])
        with self.connection.gate:
            self.connection.check()
            self.connection.last_statement = arguments[0]
            super().executemany(*arguments)
        return self

    def executescript(self, *arguments: Any) -> Self:
        with self.connection.gate:
            self.connection.check()
            super().executescript(*arguments)
        return self


def _taken_offline(mapping_id: str | None) -> MappingOfflineError:
    return MappingOfflineError(
        "MappingOffline",
        "The mapping was taken offline during this transaction, which was rolled back.",
        facts={"mapping": mapping_id},
        hint="Repeat the whole transaction, or use map.run(), which retries it.",
    )


_alive: weakref.WeakSet[RevocableConnection] = weakref.WeakSet()


def serving(mapping_id: str) -> list[RevocableConnection]:
    """Return the connections of this process with an open transaction of the mapping."""
    return [
        connection
        for connection in list(_alive)
        if connection.mapping_id == mapping_id and _is_open(connection)
    ]


def writers_of(turns: writing_turns.WritingTurns) -> list[RevocableConnection]:
    """Return the connections of this process that write to the file of the queue."""
    return [each for each in list(_alive) if each.turns is turns and each.is_writing]


def _is_open(connection: RevocableConnection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # it was closed meanwhile
        return False
