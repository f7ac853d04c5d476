"""Compare a mapping with the local catalog, on the connection that will be handed out.

Rule on PostgreSQL: first the shared lock of the mapping, then the read of its status, never both
under one snapshot. A snapshot that is older than the lock could show the mapping online after a
mover had switched it. On SQLite the transaction's own snapshot is the fence: a writer whose
snapshot is older than the mover's commit is refused by SQLite.
"""

import select
from typing import Any, Literal, cast

from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import PoolProxiedConnection as Pooled

from partita.shards.connections import revocable
from partita.shards.connections.engines import LEASE, SPOILED, sqlite_connection

Entry = Literal["online", "offline", "gone", "locked"]

LOCK_CLASS = 0x5061_7274
"""The first number of all advisory locks of mappings: it tells them from the application's."""
_SNAPSHOT = "snapshot"
"""The answer of partita_enter where one snapshot serves the whole transaction."""
_PLACEHOLDERS = {"qmark": "?", "numeric_dollar": "$1"}
_STATUS = "SELECT status FROM partita_local_mappings WHERE id = {}"
_LOCK_SESSION = f"SELECT pg_try_advisory_lock_shared({LOCK_CLASS}, {{}})"
_UNLOCK_SESSION = f"SELECT pg_advisory_unlock_shared({LOCK_CLASS}, {{}})"
_LOCK_TRANSACTION = f"SELECT pg_try_advisory_xact_lock_shared({LOCK_CLASS}, {{}})"


def enter_sql() -> str:
    """Return the DDL of the function that every shard on PostgreSQL has.

    It is VOLATILE, so under READ COMMITTED each statement inside has a snapshot of its own. Under
    the other isolation levels it answers 'snapshot': there the lock must come before the
    transaction, and the caller sees to it.
    """
    return f"""
CREATE OR REPLACE FUNCTION partita_enter(mapping_id text) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  found text;
  admitted boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN '{_SNAPSHOT}';
  END IF;
  admitted := pg_try_advisory_xact_lock_shared(
    {LOCK_CLASS}, ('x' || substr(mapping_id, 1, 8))::bit(32)::int);
  SELECT status INTO found FROM partita_local_mappings WHERE id = mapping_id;
  RETURN CASE WHEN found IS NULL THEN 'gone' WHEN admitted THEN found ELSE 'locked' END;
END $$
"""  # noqa: S608 - constants only


def lock_number(mapping_id: str) -> int:
    """Return the number of the mapping's advisory lock: its first four bytes, signed.

    Two mappings with the same number are fenced together, which is rare and harmless.
    """
    return int.from_bytes(bytes.fromhex(mapping_id[:8]), "big", signed=True)


def validate(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Entry:
    """Enter the mapping, and say how its status is; only 'online' admits.

    To be called where SQLAlchemy begins a transaction: on PostgreSQL before the driver's BEGIN,
    on SQLite right after it.
    """
    if dialect.name == "sqlite":
        return _validate_sqlite(dialect, pooled, mapping_id)
    drop_lease(dialect, pooled)
    answer = _begin_and_enter(dialect, pooled, mapping_id)
    if answer is None:
        answer = _scalar(dialect, pooled, "SELECT partita_enter({})", mapping_id)
    if answer == _SNAPSHOT:
        answer = _enter_before_the_snapshot(dialect, pooled, mapping_id)
    return cast("Entry", answer)


def lease(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Entry:
    """Admit by the lock that the session holds since it was validated; take it if it has none.

    The lock outlives the transaction and goes to the pool with the connection. A mover ends
    sessions that hold it.
    """
    if dialect.name == "sqlite":
        return _validate_sqlite(dialect, pooled, mapping_id)
    if pooled.info.get(LEASE) == mapping_id and _is_quiet(dialect, pooled):
        return "online"
    drop_lease(dialect, pooled)
    number = lock_number(mapping_id)
    with _Autocommit(pooled):
        admitted = _scalar(dialect, pooled, _LOCK_SESSION, number)
        status = _status(dialect, pooled, mapping_id)
        if admitted and status != "online":
            _scalar(dialect, pooled, _UNLOCK_SESSION, number)
    if not admitted:
        return "locked" if status == "online" else status
    if status == "online":
        pooled.info[LEASE] = mapping_id
    return status


def drop_lease(dialect: Dialect, pooled: Pooled) -> None:
    """Give back the session lock of another mapping, so that its mover does not end this one."""
    held = pooled.info.get(LEASE)
    if held is None:
        return
    with _Autocommit(pooled):
        _scalar(dialect, pooled, _UNLOCK_SESSION, lock_number(held))
    del pooled.info[LEASE]


def _validate_sqlite(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Entry:
    driver: Any = sqlite_connection(pooled) if dialect.is_async else pooled.dbapi_connection
    # First the mark, then the look at `closing`: who closes does it the other way round.
    driver.mapping_id = driver.entered_id = mapping_id
    if mapping_id in revocable.closing:
        return "offline"
    if dialect.is_async:
        return _status(dialect, pooled, mapping_id)
    row = driver.find_one(revocable.STATUS, (mapping_id,))
    return "gone" if row is None else row[0]


def _begin_and_enter(dialect: Dialect, pooled: Pooled, mapping_id: str) -> str | None:
    """Send BEGIN and the entry as one message; None where that cannot be done, or failed.

    A second round trip would cost as much as the user's own statement. Whatever is unusual is left
    to the ordinary way, which also reports errors.
    """
    if dialect.is_async or dialect.driver != "psycopg":
        return None
    driver: Any = pooled.dbapi_connection
    if driver.autocommit or driver.isolation_level or driver.read_only or driver.deferrable:
        return None
    message = f"BEGIN; SELECT partita_enter('{mapping_id}')"
    result = driver.pgconn.exec_(message.encode())
    value = result.get_value(0, 0) if result.ntuples else None
    if value is None:
        driver.rollback()
        return None
    return cast("bytes", value).decode()


def _enter_before_the_snapshot(dialect: Dialect, pooled: Pooled, mapping_id: str) -> str:
    # The session lock is held before the transaction's only snapshot is taken, and given back
    # when the transaction holds the lock itself.
    number = lock_number(mapping_id)
    pooled.rollback()
    with _Autocommit(pooled):
        if not _scalar(dialect, pooled, _LOCK_SESSION, number):
            status = _status(dialect, pooled, mapping_id)
            return "locked" if status == "online" else status
    try:
        _scalar(dialect, pooled, _LOCK_TRANSACTION, number)
        status = _status(dialect, pooled, mapping_id)
        _scalar(dialect, pooled, _UNLOCK_SESSION, number)
    except BaseException:
        # Because a session lock survives the pool's reset, this session must not go back.
        pooled.info[SPOILED] = True
        raise
    return status


class _Autocommit:
    """Statements outside a transaction, on a driver connection that is not in one.

    After an error the session is given up: it may hold a lock that nobody knows of, and neither
    that nor the autocommit would be undone by the pool's reset.
    """

    def __init__(self, pooled: Pooled) -> None:
        self._pooled = pooled
        self._driver: Any = pooled.dbapi_connection

    def __enter__(self) -> None:
        self._driver.autocommit = True

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is None:
            self._driver.autocommit = False
        else:
            self._pooled.info[SPOILED] = True


def _is_quiet(dialect: Dialect, pooled: Pooled) -> bool:
    """Tell whether the server has said nothing since the last answer, such as good-bye."""
    driver: Any = pooled.driver_connection
    if dialect.driver == "asyncpg":
        # The event loop has read what the server said, and closed what it ended.
        return not driver.is_closed()
    if dialect.driver != "psycopg":
        return True
    if driver.closed:
        return False
    poll = select.poll()
    poll.register(driver.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def _status(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Entry:
    found = _scalar(dialect, pooled, _STATUS, mapping_id)
    return "gone" if found is None else found


def _scalar(dialect: Dialect, pooled: Pooled, template: str, value: object) -> Any:
    # Straight on the driver's cursor: SQLAlchemy's own way would cost more than the check.
    cursor = pooled.cursor()
    try:
        cursor.execute(template.format(_PLACEHOLDERS.get(dialect.paramstyle, "%s")), (value,))
        row = cursor.fetchone()
    finally:
        cursor.close()
    return None if row is None else row[0]
