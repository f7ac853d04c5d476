"""An SQLite connection that another thread can take back: what ends transactions at a move.

SQLite knows no sessions that could be terminated from outside, so each connection carries a gate.
Rule: a statement or a commit starts only inside the gate and only if the connection was not
revoked. A rollback from outside can therefore never turn the next statement into one that
commits on its own.
"""

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
"""Mappings that this process is taking offline: entries are refused before the catalog says so."""
_BUSY_SECONDS = 5.0
"""The driver's own default of `timeout`."""
_INTERRUPT_SECONDS = 0.005
"""How often a statement that runs too long is interrupted again."""


class RevocableConnection(sqlite3.Connection):
    """A connection that serves one mapping at a time and can lose its transaction."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.busy_seconds = float(options.pop("timeout", _BUSY_SECONDS))
        # The waiting is done here: SQLite's cannot be interrupted, and its pauses grow, so that
        # the longest waiter would ask most seldom.
        super().__init__(*arguments, timeout=0, **options)  # type: ignore[misc]
        self.gate = threading.Lock()
        self.mapping_id: str | None = None
        """The mapping that was validated last; set by the router, cleared when it is released."""
        self.entered_id: str | None = None
        """The mapping that a transaction must still find online when it begins again to write."""
        self.is_revoked = False
        self.is_untouched = False
        """Whether a transaction has begun in which the application has executed nothing yet."""
        self.is_ended = False
        """Whether a move ended the transaction because it kept the file locked."""
        self.began_at = 0.0
        self.last_statement = ""
        self.columns_at = -1
        self.columns: dict[str, dict[str, str]] = {}
        """The declared columns of tables, as of the schema version `columns_at`; for fan-outs."""
        self.turns = writing_turns.turns_of(str(arguments[0] if arguments else options["database"]))
        self._has_turn = False
        self._control = sqlite3.Cursor(self)
        """For what routing itself does between two transactions: it need not pass the gate."""
        _alive.add(self)

    def begin(self) -> None:
        if self.is_revoked:
            self.check()
        self.began_at = writing_turns.CLOCK.monotonic()
        self._control.execute("BEGIN")

    def begin_to_write(self) -> None:
        """Begin a transaction that holds the file's write lock, when its turn has come."""
        self.is_untouched = False
        self._has_turn = self.turns.take(self, self.busy_seconds)
        self.began_at = writing_turns.CLOCK.monotonic()
        # Where the turn does not come in time, SQLite's answer is the error.
        seconds = self.busy_seconds if self._has_turn else 0.0
        try:
            writing_turns.patiently(self._try_to_begin, seconds)
        except BaseException:
            self._give_turn_back()
            raise

    def start(self, statement: str) -> bool:
        """Prepare for the first statement of a transaction; return whether it is done by that.

        A transaction that has only been validated begins again as one that writes: its snapshot
        may be too old to write, and SQLite does not let a transaction wait that has read.
        """
        self.is_untouched = False
        if statement is BEGIN_IMMEDIATE:
            self.begin_to_write()
            return True
        if self.in_transaction and writing_turns.writes(statement):
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
                "The mapping was changed since the transaction began.",
                facts={"mapping": mapping_id},
                hint="Connect again: the key may be on another shard by now. map.run() does it.",
            )
        if row is None or row[0] != "online":
            raise _taken_offline(mapping_id)

    def _give_turn_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self.turns.give_back(self)

    def find_one(self, query: str, values: tuple[object, ...]) -> Any:
        """Return the only row of a query of routing, or None."""
        rows = self.waiting(lambda: self._control.execute(query, values)).fetchall()
        return rows[0] if rows else None

    def waiting(self, execute: Callable[[], T]) -> T:
        """Execute what may wait for a lock: the first statement of a transaction, or its only one.

        A transaction that has read cannot wait: the snapshot is old when the writer is done.
        """
        try:
            return execute()
        except sqlite3.OperationalError as error:
            if not writing_turns.is_busy(error):
                raise
        return writing_turns.patiently(execute, self.busy_seconds)

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
        """Whether the open transaction holds the file's write lock, as far as can be known."""
        if not _is_open(self):
            return False
        return self._has_turn or writing_turns.writes(self.last_statement)

    def check(self) -> None:
        if self.is_ended:
            raise MappingOfflineError(
                "TransactionTerminated",
                "A move ended this transaction because it kept the file locked.",
                hint="Run the whole transaction again: map.run() does it, through routing.",
            )
        if self.is_revoked:
            raise _taken_offline(self.mapping_id)

    def release(self) -> None:
        """Forget the mapping; the pool does this between two users."""
        with self.gate:
            self.mapping_id = self.entered_id = None
            self.is_revoked = self.is_ended = False

    def end(self) -> None:
        """Roll the open transaction back and refuse everything until it is released."""
        while not self.gate.acquire(timeout=_INTERRUPT_SECONDS):
            self.interrupt()
        try:
            self.is_revoked = self.is_ended = True
            super().rollback()
            self._give_turn_back()
        finally:
            self.gate.release()

    def revoke(self, mapping_id: str) -> None:
        """Roll the open transaction back and refuse everything until it is released.

        Nothing happens if the connection serves another mapping by now.
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
    """A cursor whose statements start inside the gate of their connection."""

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
        "The mapping was taken offline while this transaction was open: it is rolled back.",
        facts={"mapping": mapping_id},
        hint="Run the whole transaction again: map.run() does it, through routing.",
    )


_alive: weakref.WeakSet[RevocableConnection] = weakref.WeakSet()


def serving(mapping_id: str) -> list[RevocableConnection]:
    """Return this process's connections with an open transaction of the mapping."""
    return [
        connection
        for connection in list(_alive)
        if connection.mapping_id == mapping_id and _is_open(connection)
    ]


def writers_of(turns: writing_turns.WritingTurns) -> list[RevocableConnection]:
    """Return this process's connections that write to the file of the queue."""
    return [each for each in list(_alive) if each.turns is turns and each.is_writing]


def _is_open(connection: RevocableConnection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # because it was closed meanwhile
        return False
