"""Find out whether a connection keeps its server session between transactions.

A pooler in transaction mode (PgBouncer, `pool_mode = transaction`) gives each transaction any free
session, so that session settings and session locks belong to the next client of that session. An
idle pooler may give back the same session by chance. Therefore a second connection begins a
transaction between two of the first: it gets the session that the first has just left, or the first
gets another one afterwards.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy.pool import PoolProxiedConnection as Pooled

PROBE_CLASS = 0x5061_7275
"""The first number of the advisory locks of probes; the second is the id of the server process."""
_SETTING = "partita.session"
_MARK = f"""
SELECT pg_catalog.pg_backend_pid(),
  pg_catalog.set_config('{_SETTING}', pg_catalog.gen_random_uuid()::pg_catalog.text, false),
  pg_catalog.pg_try_advisory_lock({PROBE_CLASS}, pg_catalog.pg_backend_pid())
"""
_LOOK = f"SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('{_SETTING}', true)"
_UNMARK = f"""
SELECT pg_catalog.pg_advisory_unlock({PROBE_CLASS}, pg_catalog.pg_backend_pid()),
  pg_catalog.set_config('{_SETTING}', '', false)
"""
POOLER_HINT = (
    "Let credentials= (--credentials) return a URL with the host and port of the server itself, or "
    "use a pooler in session mode."
)


def keeps_session(session: Pooled, connect: Callable[[], Pooled]) -> bool:
    """Return whether a setting and a lock of the session survive the end of a transaction.

    `session` is a PostgreSQL connection without an open transaction; `connect` opens another one to
    the same address.
    """
    pid, mark, _ = _read(session, _MARK)
    session.commit()
    if not _is_marked(session, pid, mark):
        return False
    other = connect()
    try:
        # Its transaction stays open, so that the session of it is not free.
        is_taken = _read(other, _LOOK) == (pid, mark)
        if is_taken:
            _read(other, _UNMARK)
            other.commit()
        return not is_taken and _is_marked(session, pid, mark) and _unmark(session)
    finally:
        other.invalidate()
        other.close()


def tells_own_pid(driver: Any, pid: int) -> bool:
    """Return whether the server process told its own id when the driver connected.

    A pooler of any mode tells another number.
    """
    told = getattr(driver, "get_server_pid", None)  # asyncpg
    return bool((driver.info.backend_pid if told is None else told()) == pid)


def _is_marked(session: Pooled, pid: int, mark: str) -> bool:
    found = _read(session, _LOOK)
    session.commit()
    return bool(found == (pid, mark))


def _unmark(session: Pooled) -> bool:
    """Release the lock of the probe; return whether this session held it."""
    is_held, _ = _read(session, _UNMARK)
    session.commit()
    return bool(is_held)


def _read(connection: Pooled, query: str) -> Any:
    cursor = connection.cursor()
    try:
        cursor.execute(query)
        return cursor.fetchone()
    finally:
        cursor.close()
