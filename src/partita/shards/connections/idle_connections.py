"""SQLite connections that are kept ready between fan-outs.

To check a connection out of its pool, begin, roll back and check it in costs more than a small
query. A connection here belongs to no pool and has no transaction open in the database: each SELECT
on it has a snapshot of its own.
"""

import threading

from sqlalchemy import Connection, Engine, QueuePool

IDLE_CONNECTIONS_MAX = 4
"""The most that are kept of one database."""


class IdleConnections:
    """Connections by their engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Engine, list[Connection]] = {}

    def take(self, engine: Engine) -> Connection | None:
        """Return a connection that was kept, None if there is none."""
        idle = self._idle.get(engine)
        if not idle:
            return None
        try:
            return idle.pop()
        except IndexError:  # because another thread took it
            return None

    def keep(self, connection: Connection) -> bool:
        """Keep a connection whose work is done; False: close it as usual."""
        engine = connection.engine
        is_usual = isinstance(engine.pool, QueuePool)  # others were chosen not to keep any
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
