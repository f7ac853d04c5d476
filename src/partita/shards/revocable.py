"""An SQLite connection that another thread can take back: what ends transactions at a move.

SQLite knows no sessions that could be terminated from outside, so each connection carries a gate.
Rule: a statement or a commit starts only inside the gate and only if the connection was not
revoked. A rollback from outside can therefore never turn the next statement into one that
commits on its own.
"""

import sqlite3
import threading
import weakref
from typing import Any, Self

from partita.errors import MappingOfflineError

_INTERRUPT_SECONDS = 0.005
"""How often a statement that runs too long is interrupted again."""


class RevocableConnection(sqlite3.Connection):
    """A connection that serves one mapping at a time and can lose its transaction."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gate = threading.Lock()
        self.mapping_id: str | None = None
        """The mapping that was validated last; set by the router, cleared when it is released."""
        self.is_revoked = False
        self._control = sqlite3.Cursor(self)
        """For what routing itself does between two transactions: it need not pass the gate."""
        _alive.add(self)

    def begin(self) -> None:
        if self.is_revoked:
            self.check()
        self._control.execute("BEGIN")

    def find_one(self, query: str, values: tuple[object, ...]) -> Any:
        """Return the only row of a query of routing, or None."""
        rows = self._control.execute(query, values).fetchall()
        return rows[0] if rows else None

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or RevocableCursor)

    def commit(self) -> None:
        with self.gate:
            self.check()
            super().commit()

    def check(self) -> None:
        if self.is_revoked:
            raise MappingOfflineError(
                "MappingOffline",
                "The mapping was taken offline while this transaction was open: it is rolled back.",
                facts={"mapping": self.mapping_id},
                hint="Run the whole transaction again: map.run() does it, through routing.",
            )

    def release(self) -> None:
        """Forget the mapping; the pool does this between two users."""
        with self.gate:
            self.mapping_id = None
            self.is_revoked = False

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
        finally:
            self.gate.release()


class RevocableCursor(sqlite3.Cursor):
    """A cursor whose statements start inside the gate of their connection."""

    connection: RevocableConnection

    def execute(self, *arguments: Any) -> Self:
        connection = self.connection
        with connection.gate:
            if connection.is_revoked:
                connection.check()
            super().execute(*arguments)
        return self

    def executemany(self, *arguments: Any) -> Self:
        with self.connection.gate:
            self.connection.check()
            super().executemany(*arguments)
        return self

    def executescript(self, *arguments: Any) -> Self:
        with self.connection.gate:
            self.connection.check()
            super().executescript(*arguments)
        return self


_alive: weakref.WeakSet[RevocableConnection] = weakref.WeakSet()


def serving(mapping_id: str) -> list[RevocableConnection]:
    """Return this process's connections with an open transaction of the mapping."""
    return [
        connection
        for connection in list(_alive)
        if connection.mapping_id == mapping_id and _is_open(connection)
    ]


def _is_open(connection: RevocableConnection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # because it was closed meanwhile
        return False
