"""Take a mapping offline: refuse new transactions, wait for open ones, terminate the rest.

Rule: the status changes before the drain, or new transactions would start during it. The result is
a fence: while it is held, no transaction of the mapping can be open on its shard. Other mappings of
the shard are not affected.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from partita.errors import OperationPendingError
from partita.shards.catalog.executor import unreachable
from partita.shards.connections import revocable
from partita.shards.connections.engines import Engines
from partita.shards.connections.validation import LOCK_CLASS, lock_number
from partita.shards.keys.mapping import Location, Mapping
from partita.ticks import Clock

GRACE_SECONDS = 2.0
"""How long open transactions may continue before they are terminated."""
TERMINATE_SECONDS_MAX = 15.0
"""How long terminated sessions may take to end."""
_PAUSE_SECONDS = 0.01
_entered_as: dict[str, str] = {}
"""On SQLite, the former online id of an offline mapping that still has open transactions."""

# The sessions that may still write to the mapping: those that hold its lock, and those that hold a
# lock of a mapping that is no longer in the local catalog. The latter entered before a split or a
# merge gave the keys other mappings.
_HOLDERS = f"""
SELECT held.pid FROM pg_catalog.pg_locks AS held
JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = held.pid
WHERE held.locktype = 'advisory' AND held.mode = 'ShareLock' AND held.granted
  AND held.classid = {LOCK_CLASS} AND held.objsubid = 2
  AND held.database = (
    SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND (held.objid = CAST(:number AS pg_catalog.oid) OR NOT EXISTS (
    SELECT FROM partita_local_mappings AS mapping WHERE held.objid = CAST(
      CAST(CAST('x' AS pg_catalog.text) || pg_catalog.substr(mapping.id, 1, 8)
        AS pg_catalog.bit(32))::pg_catalog.int8 AS pg_catalog.oid)))
  AND (:busy_too OR activity.state = 'idle')
"""  # noqa: S608 - constants only
_LOCK = text(f"SELECT pg_catalog.pg_try_advisory_xact_lock({LOCK_CLASS}, :number)")
_NO_TIMEOUT = text("SET LOCAL idle_in_transaction_session_timeout = 0")
_TERMINATE = text("SELECT pg_catalog.pg_terminate_backend(:pid)")


class Fence:
    """Prevents all transactions of a mapping until it is closed.

    Its lock belongs to an open transaction: a lock of the session would belong to others if a
    pooler gave them the session.
    """

    def __init__(self, mapping_id: str, connection: Connection | None, terminated: int) -> None:
        self.mapping_id = mapping_id
        self.terminated = terminated
        """The number of terminated sessions."""
        self._connection = connection

    @property
    def is_held(self) -> bool:
        """Return whether the lock is still held: its session may have been terminated."""
        if self._connection is None:
            return True
        try:
            self._connection.scalar(text("SELECT 1"))
        except SQLAlchemyError:
            return False
        return True

    def close(self) -> None:
        """Release the fence; further calls do nothing."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # The transaction ends with it. The connection may be broken; then the lock is released.
        with contextlib.suppress(DBAPIError):
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def set_offline(
    engines: Engines,
    clock: Clock,
    mapping: Mapping,
    change: Callable[[], Mapping],
    *,
    grace: float = GRACE_SECONDS,
    terminate: bool = True,
) -> tuple[Mapping, Fence]:
    """Take the mapping offline by `change()`, drain it, and return the new mapping and the fence.

    OperationPendingError means that the mapping is offline, but transactions are still open after
    the grace period and were not terminated.
    """
    location = mapping.shard.location
    if location.backend != "sqlite":
        # Connected before the change, because clients wait from the change on.
        with _closed_on_error(_connect(engines, location)) as connection:
            changed = change()
            return changed, _fence(connection, clock, mapping.id, grace, terminate=terminate)
    # On SQLite an open writer would block the change itself, so until the status has changed this
    # process refuses entries by `closing`. SQLite refuses the writers of other processes.
    revocable.closing.add(mapping.id)
    try:
        fence = drain(engines, clock, location, mapping.id, grace=grace, terminate=terminate)
        return change(), fence
    except OperationPendingError:
        _entered_as[change().id] = mapping.id
        raise
    finally:
        revocable.closing.discard(mapping.id)


def drain(
    engines: Engines,
    clock: Clock,
    location: Location,
    mapping_id: str,
    *,
    grace: float = GRACE_SECONDS,
    terminate: bool = True,
) -> Fence:
    """Wait until no transaction of the mapping is open, and return the fence.

    `mapping_id` is the id that was online: open transactions hold the lock of that id. With the id
    of the offline mapping, the drain waits for transactions of all ids that the local catalog no
    longer has; on SQLite for those of this process.
    """
    if location.backend == "sqlite":
        entered_as = _entered_as.get(mapping_id, mapping_id)
        fence = _drain_sqlite(clock, entered_as, grace, terminate=terminate)
        _entered_as.pop(mapping_id, None)
        return fence
    with _closed_on_error(_connect(engines, location)) as connection:
        return _fence(connection, clock, mapping_id, grace, terminate=terminate)


def _connect(engines: Engines, location: Location) -> Connection:
    try:
        connection = engines.admin(location).connect()
    except DBAPIError as error:
        raise unreachable(location.text) from error
    return connection.execution_options(isolation_level="READ COMMITTED")


@contextlib.contextmanager
def _closed_on_error(connection: Connection) -> Iterator[Connection]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def _fence(
    connection: Connection, clock: Clock, mapping_id: str, grace: float, *, terminate: bool
) -> Fence:
    terminated = _drain_postgres(connection, clock, mapping_id, grace, terminate=terminate)
    return Fence(mapping_id, connection, terminated)


def _drain_postgres(
    connection: Connection, clock: Clock, mapping_id: str, grace: float, *, terminate: bool
) -> int:
    number, terminated = lock_number(mapping_id), set[int]()
    started = clock.monotonic()
    # Each attempt is a transaction, because the states of sessions do not change within one. That
    # of the last attempt stays open and holds the lock.
    while not _is_locked(connection, number):
        waited = clock.monotonic() - started
        if waited > grace and (not terminate or waited > grace + TERMINATE_SECONDS_MAX):
            raise _still_held(mapping_id)
        # An idle session holds only a lease: it is terminated without grace.
        ended = _holders(connection, number, busy_too=terminate and waited > grace)
        for pid in ended:
            _end(connection, pid, mapping_id)
        connection.rollback()
        terminated |= ended
        time.sleep(_PAUSE_SECONDS)
    return len(terminated)


def _is_locked(connection: Connection, number: int) -> bool:
    """Lock the mapping if it has no transactions; the lock ends with the transaction."""
    connection.execute(_NO_TIMEOUT)
    if not _holders(connection, number) and connection.scalar(_LOCK, {"number": number}):
        return True
    connection.rollback()
    return False


def _end(connection: Connection, pid: int, mapping_id: str) -> None:
    try:
        connection.scalar(_TERMINATE, {"pid": pid})
    except ProgrammingError as error:  # the role has no permission
        raise _still_held(mapping_id) from error


def _holders(connection: Connection, number: int, *, busy_too: bool = True) -> set[int]:
    words = {"number": number % (1 << 32), "busy_too": busy_too}
    return set(connection.scalars(text(_HOLDERS), words))


def _drain_sqlite(clock: Clock, mapping_id: str, grace: float, *, terminate: bool) -> Fence:
    end = clock.monotonic() + grace
    while (holders := revocable.serving(mapping_id)) and clock.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)
    if holders and not terminate:
        raise _still_held(mapping_id)
    for holder in holders:
        holder.revoke(mapping_id)
    return Fence(mapping_id, None, len(holders))


def _still_held(mapping_id: str) -> OperationPendingError:
    return OperationPendingError(
        "MappingInUse",
        "Transactions that began before the mapping went offline are still open.",
        facts={"mapping": mapping_id},
        hint="The mapping is offline. Call set_offline() again on the mapping that get() returns; "
        "terminate=True needs the role of those sessions or pg_signal_backend.",
    )
