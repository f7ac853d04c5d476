"""SQLite connections that are kept open between fan-outs.

Checking a connection out of its pool, BEGIN, ROLLBACK and checking it in cost more than a small
query. A connection here is in no pool and has no open transaction: each SELECT on it has a snapshot
of its own.
"""

import threading

from sqlalchemy import Connection, Engine, QueuePool

IDLE_CONNECTIONS_MAX = 4
"""The maximum per database."""


class IdleConnections:
    """Idle connections by engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Engine, list[Connection]] = {}

    def take(self, engine: Engine) -> Connection | None:
        """Return an idle connection, or None."""
        idle = self._idle.get(engine)
        if not idle:
            return None
        try:
            return idle.pop()
        except IndexError:  # another thread took it
            return None

    def keep(self, connection: Connection) -> bool:
        """Keep a connection for reuse; return False if the caller must close it."""
        engine = connection.engine
        is_usual = isinstance(engine.pool, QueuePool)  # other pools do not keep connections
        if not is_usual or connection.invalidated:
            return False
        with self._lock:
            idle = self._idle.setdefault(engine, [])
            if len(idle) >= IDLE_CONNECTIONS_MAX:
                return False
            if not connection.connection.is_detached:
                connection.detach()
            idle.append(connection)
        return True

    def close(self, *engines: Engine) -> None:
        """Close the connections of these engines."""
        with self._lock:
            closed = [each for engine in engines for each in self._idle.pop(engine, ())]
        for connection in closed:
            connection.close()
