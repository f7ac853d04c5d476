"""Compare a mapping with the local catalog, on the connection that the caller will use.

Rule on PostgreSQL: take the shared lock of the mapping first, then read its status in a later
snapshot. A snapshot older than the lock could show the mapping online after a mover had switched
it. On SQLite the snapshot of the transaction is the fence: SQLite refuses a writer whose snapshot
is older than the commit of the mover.
"""

import select
from typing import Any, Literal, cast

from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import PoolProxiedConnection as Pooled

from partita.errors import TransactionUseError
from partita.shards.connections import revocable
from partita.shards.connections.engines import LEASE, SPOILED, sqlite_connection
from partita.shards.connections.session_probe import tells_own_pid

Admission = Literal["online", "offline", "gone", "locked"]
"""The status of a mapping on its shard: "gone" is not there, "locked" is held by a mover."""

LOCK_CLASS = 0x5061_7274
"""The first number of the advisory locks of mappings; applications use others."""
_SNAPSHOT = "snapshot"
"""The answer of partita_enter if the whole transaction has one snapshot."""
_DIRECT = "partita.direct"
"""Where a pooled connection keeps whether it reaches its server process without a pooler."""
_PLACEHOLDERS = {"qmark": "?", "numeric_dollar": "$1"}
_STATUS = "SELECT status FROM partita_local_mappings WHERE id = {}"
_LOCK_SESSION = f"SELECT pg_catalog.pg_try_advisory_lock_shared({LOCK_CLASS}, {{}})"
_UNLOCK_SESSION = f"SELECT pg_catalog.pg_advisory_unlock_shared({LOCK_CLASS}, {{}})"
_PID = "SELECT pg_catalog.pg_backend_pid()"
_LOCK_TRANSACTION = f"SELECT pg_catalog.pg_try_advisory_xact_lock_shared({LOCK_CLASS}, {{}})"


def enter_sql(schema: str = '"public"') -> str:
    """Return the DDL of the function partita_enter, which every PostgreSQL shard has.

    `schema` is the quoted schema of the local catalog. The function is VOLATILE, so under READ
    COMMITTED each of its statements has a snapshot of its own. Under other isolation levels it
    answers 'snapshot': the caller must take the lock before BEGIN.
    """
    return f"""
CREATE OR REPLACE FUNCTION {schema}.partita_enter(mapping_id pg_catalog.text)
RETURNS pg_catalog.text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found pg_catalog.text;
  admitted pg_catalog.bool;
BEGIN
  IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN '{_SNAPSHOT}';
  END IF;
  admitted := pg_catalog.pg_try_advisory_xact_lock_shared({LOCK_CLASS},
    ('x' || pg_catalog.substr(mapping_id, 1, 8))::pg_catalog.bit(32)::pg_catalog.int4);
  SELECT status INTO found FROM {schema}.partita_local_mappings WHERE id = mapping_id;
  RETURN CASE WHEN found IS NULL THEN 'gone' WHEN admitted THEN found ELSE 'locked' END;
END $$
"""  # noqa: S608 - constants and a quoted name


def lock_number(mapping_id: str) -> int:
    """Return the number of the mapping's advisory lock: its first four bytes, signed.

    Mappings with the same number are fenced together, which is rare and harmless.
    """
    return int.from_bytes(bytes.fromhex(mapping_id[:8]), "big", signed=True)


def validate(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Admission:
    """Enter the mapping and return its status; only "online" admits the transaction.

    Called where SQLAlchemy begins a transaction: on PostgreSQL before the driver's BEGIN, on SQLite
    after it.
    """
    if dialect.name == "sqlite":
        return _validate_sqlite(dialect, pooled, mapping_id)
    drop_lease(dialect, pooled)
    answer = _begin_and_enter(dialect, pooled, mapping_id)
    if answer is None:
        answer = _scalar(dialect, pooled, "SELECT partita_enter({})", mapping_id)
    if answer == _SNAPSHOT:
        answer = _enter_before_snapshot(dialect, pooled, mapping_id)
    return cast("Admission", answer)


def lease(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Admission:
    """Enter by the session lock of an earlier validation, or validate and take that lock.

    The lock outlives the transaction and stays with the pooled connection. A mover terminates the
    sessions that hold it. Behind a pooler the session may change with each transaction, so every
    transaction is validated there.
    """
    if dialect.name == "sqlite":
        return _validate_sqlite(dialect, pooled, mapping_id)
    if pooled.info.get(LEASE) == mapping_id and _is_quiet(dialect, pooled):
        return "online"
    if not _is_direct(dialect, pooled):
        return validate(dialect, pooled, mapping_id)
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


def _is_direct(dialect: Dialect, pooled: Pooled) -> bool:
    """Return whether no pooler is between this connection and its server process."""
    if _DIRECT not in pooled.info:
        with _Autocommit(pooled):
            pid = _scalar(dialect, pooled, _PID)
        pooled.info[_DIRECT] = tells_own_pid(pooled.driver_connection, pid)
    return bool(pooled.info[_DIRECT])


def drop_lease(dialect: Dialect, pooled: Pooled) -> None:
    """Release the session lock of another mapping, or its mover would end this session."""
    held = pooled.info.get(LEASE)
    if held is None:
        return
    with _Autocommit(pooled):
        _scalar(dialect, pooled, _UNLOCK_SESSION, lock_number(held))
    del pooled.info[LEASE]


def _validate_sqlite(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Admission:
    driver: Any = sqlite_connection(pooled) if dialect.is_async else pooled.dbapi_connection
    # Set the id before reading `closing`; set_offline() writes and reads in the other order.
    driver.mapping_id = driver.entered_id = mapping_id
    if mapping_id in revocable.closing:
        return "offline"
    if dialect.is_async:
        return _status(dialect, pooled, mapping_id)
    row = driver.find_one(revocable.STATUS, (mapping_id,))
    return "gone" if row is None else row[0]


def _begin_and_enter(dialect: Dialect, pooled: Pooled, mapping_id: str) -> str | None:
    """Send BEGIN and the validation in one message; None if that is impossible or failed.

    A second round trip would cost as much as the user's statement. After None the caller validates
    in the ordinary way, which also reports errors.
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


def _enter_before_snapshot(dialect: Dialect, pooled: Pooled, mapping_id: str) -> str:
    # The session lock is held before the transaction takes its only snapshot, and released when
    # the transaction holds the lock itself.
    number = lock_number(mapping_id)
    pooled.rollback()
    with _Autocommit(pooled):
        if not _scalar(dialect, pooled, _LOCK_SESSION, number):
            status = _status(dialect, pooled, mapping_id)
            return "locked" if status == "online" else status
    try:
        _scalar(dialect, pooled, _LOCK_TRANSACTION, number)
        status = _status(dialect, pooled, mapping_id)
        is_kept = _scalar(dialect, pooled, _UNLOCK_SESSION, number)
    except BaseException:
        # A session lock survives the pool's reset, so the session must not be reused.
        pooled.info[SPOILED] = True
        raise
    if not is_kept:
        # Another session holds that lock, so this transaction took its snapshot without it.
        pooled.info[SPOILED] = True
        raise _session_not_kept()
    return status


def _session_not_kept() -> TransactionUseError:
    return TransactionUseError(
        "TransactionPooler",
        "This isolation level needs a lock that is older than the transaction, and a pooler in "
        "transaction mode does not keep it.",
        hint="Omit isolation_level (READ COMMITTED), connect to the server itself, or use a pooler "
        "in session mode.",
    )


class _Autocommit:
    """Run statements in autocommit mode on a driver connection without an open transaction.

    After an error the session is not reused: it may hold a lock, and the pool's reset would undo
    neither the lock nor the autocommit mode.
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
    """Return whether the server has sent nothing since its last answer, such as a close."""
    driver: Any = pooled.driver_connection
    if dialect.driver == "asyncpg":
        # The event loop has already handled a close by the server.
        return not driver.is_closed()
    if dialect.driver != "psycopg":
        return True
    if driver.closed:
        return False
    poll = select.poll()
    poll.register(driver.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def _status(dialect: Dialect, pooled: Pooled, mapping_id: str) -> Admission:
    found = _scalar(dialect, pooled, _STATUS, mapping_id)
    return "gone" if found is None else found


def _scalar(dialect: Dialect, pooled: Pooled, template: str, *values: object) -> Any:
    # On the driver's cursor: an execution by SQLAlchemy would cost more than the query.
    cursor = pooled.cursor()
    try:
        cursor.execute(template.format(_PLACEHOLDERS.get(dialect.paramstyle, "%s")), values)
        row = cursor.fetchone()
    finally:
        cursor.close()
    return None if row is None else row[0]
