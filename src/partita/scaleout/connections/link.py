"""One connection to the database: time limits, and writes whose outcome is never guessed.

A statement is not cancelled: for a write that waits for a standby, a cancelled wait looks like
success. At its time limit, or when its caller is cancelled, the connection is terminated. A write
then has an unknown outcome (InDoubtError), and so has one during which the server warns (01000)
that it stopped to wait for standbys.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

import asyncpg

from partita.errors import PartitaError, StoreBusyError, UnavailableError
from partita.scaleout.connections import checks
from partita.scaleout.connections.checks import Facts
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.session import (
    SETTINGS,
    DriverError,
    ends_session,
    is_outcome_known,
    outcome_unknown,
    translated,
)
from partita.storage.durability import Durability

CONNECT_SECONDS_MAX = 3.0
"""To connect and to check the server."""
READ_SECONDS_MAX = 10.0
WRITE_SECONDS_MAX = 20.0
STATEMENTS_KEPT = 256
"""Prepared statements of each connection: those of filters have many shapes."""

_WARNING_CLASS = "01"
_SET = "SELECT pg_catalog.set_config('synchronous_commit', $1, false), " + ", ".join(
    f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in SETTINGS.items()
)

T = TypeVar("T")
Rows = Sequence[Any]


class Link:
    """A connection that passed the checks; build it with `Connector.connect`."""

    def __init__(self, connection: Any, facts: Facts, *, is_pooled: bool) -> None:
        self.connection = connection
        self.facts = facts
        self.is_pooled = is_pooled
        """Whether a pooler may give each transaction another session of the server."""
        self.is_shielded = True
        """Whether a task that calls may be cancelled. In a task that is not, a call costs less."""
        self._warning: str | None = None
        self._is_late = False
        connection.add_log_listener(self._heard)

    @property
    def is_closed(self) -> bool:
        closed: bool = self.connection.is_closed()
        return closed

    def terminate(self) -> None:
        """Close the connection at once, without a request to cancel."""
        self.connection.terminate()

    async def close(self) -> None:
        with contextlib.suppress(*DriverError):
            await self.connection.close(timeout=CONNECT_SECONDS_MAX)

    async def read(self, statement: str, *values: object) -> Rows:
        """Run a statement that changes nothing."""
        rows: Rows = await self._finish(self.connection.fetch(statement, *values), READ_SECONDS_MAX)
        return rows

    async def write(self, statement: str, *values: object) -> Rows:
        """Run one statement in a transaction of its own; return when it is durable.

        Driver errors of a statement that changed nothing are raised as they are, so that the
        caller can repeat it (`session.may_repeat`); wrap them with `session.translated`.
        """
        rows: Rows = await self._commit(self.connection.fetch(statement, *values))
        return rows

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator["Link"]:
        """Run several statements (with `read`) as one; leaving the block commits durably.

        An exception rolls back.
        """
        await self._finish(self.connection.execute("BEGIN"), READ_SECONDS_MAX)
        try:
            yield self
        except BaseException:
            await self._roll_back()
            raise
        try:
            done = await self._commit(self.connection.execute("COMMIT"))
        except asyncpg.PostgresError as error:
            raise translated(error) from error
        # PostgreSQL answers ROLLBACK if a statement failed, even if that error was caught.
        assert done == "COMMIT", done

    async def _roll_back(self) -> None:
        if self.is_closed:
            return
        try:
            await self._finish(self.connection.execute("ROLLBACK"), READ_SECONDS_MAX)
        except PartitaError:
            self.terminate()

    async def _commit(self, call: Coroutine[Any, Any, T]) -> T:
        self._warning = None
        if self.is_closed:
            call.close()
            raise translated(ConnectionResetError())
        try:
            result = await self._until(call, WRITE_SECONDS_MAX)
        except DriverError as error:
            if is_outcome_known(error):
                if ends_session(error):
                    self.terminate()
                raise
            self.terminate()
            raise outcome_unknown(type(error).__name__) from error
        if self._warning is not None:
            raise outcome_unknown(self._warning)
        return result

    async def _finish(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        try:
            return await self._until(call, seconds)
        except DriverError as error:
            raise translated(error) from error

    async def _until(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        """Await a call of the driver; beyond its time, or if cancelled, end the connection."""
        if not self.is_shielded:
            return await self._until_late(call, seconds)
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait((task,), timeout=seconds)
        except asyncio.CancelledError:
            self.terminate()
            task.add_done_callback(_retrieve)
            raise
        if not task.done():
            self.terminate()
            task.add_done_callback(_retrieve)
            raise TimeoutError
        return task.result()

    async def _until_late(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        """Await a call in this task; the end of the connection ends it."""
        timer = asyncio.get_running_loop().call_later(seconds, self._end_late)
        try:
            return await call
        except DriverError as error:
            if self._is_late:
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()

    def _end_late(self) -> None:
        self._is_late = True
        self.terminate()

    def _heard(self, _connection: object, message: Any) -> None:
        if (getattr(message, "sqlstate", None) or "").startswith(_WARNING_CLASS):
            self._warning = str(message.sqlstate)


class Connector:
    """Opens checked connections to one database."""

    def __init__(
        self,
        location: Location,
        durability: Durability = Durability.FULL,
        *,
        identity: uuid.UUID | None = None,
    ) -> None:
        self.location = location
        self.durability = durability
        self.identity = identity
        """What the database must say of itself: another one may have its address by mistake."""
        self._is_pooled: bool | None = None
        """Found out by the first connection."""
        self._locks_seen: str | None = None
        """The start time of the server on which advisory locks were seen to work."""

    async def connect(self) -> Link:
        """Open a connection and check the server; raise if it must not be used."""
        link = await self.connect_unchecked()
        try:
            checks.check(link.facts, self.durability)
            if self.identity is not None:
                await _check_identity(link, self.identity, self.location)
            if self._locks_seen != link.facts.started:
                await self.check_locks(link)
                self._locks_seen = link.facts.started
        except BaseException:
            link.terminate()
            raise
        return link

    async def connect_unchecked(self) -> Link:
        """Open a connection whose facts are not judged: to look at a server, not to use it."""
        if self._is_pooled is None:
            try:
                probe = await self._open(statements=0)
            except StoreBusyError as error:
                if isinstance(error.__cause__, OSError):
                    raise self._unreachable(error) from error
                raise
            self._is_pooled = probe.is_pooled
            if probe.is_pooled:
                return probe
            await probe.close()
        return await self._open(statements=0 if self._is_pooled else STATEMENTS_KEPT)

    def _unreachable(self, error: StoreBusyError) -> UnavailableError:
        """Return the error of a first connection: more often a wrong address than a busy server."""
        return UnavailableError(
            "StoreUnreachable",
            f"No PostgreSQL answers at {self.location}.",
            facts={"reason": error.facts["reason"]},
            hint="Check the URL, and that PostgreSQL runs and accepts connections from here.",
        )

    async def _open(self, *, statements: int) -> Link:
        connection: Any = None
        # A request starts outside of a task, which a time limit needs: see service.http.protocol.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                connection = await asyncpg.connect(
                    self.location.url,
                    timeout=CONNECT_SECONDS_MAX,
                    statement_cache_size=statements,
                    max_cached_statement_lifetime=0,
                )
                return await self._prepare(connection)
        except BaseException as error:
            if connection is not None:
                connection.terminate()
            if isinstance(error, (*DriverError, ValueError)):
                raise translated(error) from error
            raise

    async def _prepare(self, connection: Any) -> Link:
        checks.check_version(_number_of(connection.get_server_version()))
        (row,) = await connection.fetch(checks.FACTS)
        facts = Facts(**dict(row))
        # A pooler makes up the identifier that it sends when a client connects.
        is_pooled = connection.get_server_pid() != facts.pid
        if not is_pooled:
            # The present value is kept for the session: a reload cannot weaken it.
            await connection.fetch(_SET, facts.synchronous_commit)
        return Link(connection, facts, is_pooled=is_pooled)

    async def check_locks(self, link: Link) -> None:
        """Check that a shared lock is refused while another session has the exclusive one."""
        other = await self.connect_unchecked()
        keys = checks.LOCK_KEYS
        try:
            async with link.transaction():
                (row,) = await link.read("SELECT pg_try_advisory_xact_lock($1, $2) AS ok", *keys)
                if not row["ok"]:
                    return  # another front end is checking: that it has the lock is the proof
                (row,) = await other.read(
                    "SELECT pg_try_advisory_xact_lock_shared($1, $2) AS ok", *keys
                )
                if row["ok"]:
                    raise checks.locks_do_not_work()
        finally:
            await other.close()


async def _check_identity(link: Link, identity: uuid.UUID, location: Location) -> None:
    rows = await link.read("SELECT identity FROM partita.shard_own")
    if not rows or rows[0]["identity"] != identity:
        raise UnavailableError(
            "StoreShardUnknown",
            f"The database at {location} is not the shard that the catalog lists there.",
            hint="Compare `partita fleet status` with the databases; after a restore, run `partita"
            " fleet reconcile`.",
        )


def _number_of(version: Any) -> int:
    return int(version.major) * 10_000 + int(version.minor)


def _retrieve(task: "asyncio.Future[Any]") -> None:
    """Take the outcome of a call that nothing waits for any more."""
    if not task.cancelled():
        task.exception()


def busy(reason: str) -> StoreBusyError:
    """Return the refusal of a request for which there is no connection."""
    error = translated(ConnectionError())
    assert isinstance(error, StoreBusyError)
    error.facts["reason"] = reason
    return error
