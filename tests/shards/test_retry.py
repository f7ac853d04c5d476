"""run(): what is tried again, how often, and what is not."""

import sqlite3
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from partita.clock import ManualClock
from partita.errors import (
    InDoubtError,
    MappingNotFoundError,
    MappingOfflineError,
    OperationPendingError,
    ShardOfflineError,
    StaleMappingError,
    UsageError,
)
from partita.shards.routing.retry import Retry, is_transient
from partita.shards.routing.session import RoutedSession
from support.routed import (
    ASYNC,
    SYNC,
    NewDatabase,
    Note,
    Routed,
    a_routed_map,
    a_shared_map,
    another_client,
    count_notes,
)

FAST = Retry(first=0.001, longest=0.01)


@pytest.fixture(params=SYNC)
def routed(request: pytest.FixtureRequest) -> Iterator[Routed]:
    with a_shared_map(request.param) as made:
        yield made


@pytest.fixture(params=ASYNC)
def arouted(request: pytest.FixtureRequest) -> Iterator[Routed]:
    with a_shared_map(request.param) as made:
        yield made


@pytest.fixture
def on_postgres() -> Iterator[Routed]:
    with a_shared_map() as made:
        yield made


class Failing:
    """Fails so many times, then adds a note."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self, session: RoutedSession) -> str:
        self.calls += 1
        session.add(Note(tenant_id=5, id=self.calls))
        session.flush()
        if self.calls <= self.times:
            raise self.error
        return "done"


def test_run_commits_and_returns_the_value(routed: Routed) -> None:
    assert routed.tenants.run(5, Failing(KeyError(), 0)) == "done"
    assert routed.notes(routed.one) == [(5, 1)]


def test_run_passes_its_arguments_after_the_session(routed: Routed) -> None:
    def write(session: RoutedSession, number: int, said: str) -> int:
        session.add(Note(tenant_id=5, id=number, said=said))
        return number

    assert routed.tenants.run(5, write, 3, "hello", retry=FAST) == 3
    assert routed.notes(routed.one) == [(5, 3)]


def test_a_transient_error_is_tried_again_with_a_session_of_its_own(routed: Routed) -> None:
    failing = Failing(MappingOfflineError("MappingOffline", "It is."), 2)
    assert routed.tenants.run(5, failing, retry=FAST) == "done"
    assert routed.notes(routed.one) == [(5, 3)]
    assert routed.manager.counters["retries"] == 2


def test_an_error_of_the_user_is_not_tried_again(routed: Routed) -> None:
    failing = Failing(KeyError("mine"), 1)
    with pytest.raises(KeyError):
        routed.tenants.run(5, failing, retry=FAST)
    assert failing.calls == 1
    assert routed.notes(routed.one) == []


def test_an_error_that_the_caller_knows_is_tried_again(routed: Routed) -> None:
    policy = Retry(first=0.001, also=lambda error: isinstance(error, KeyError))
    assert routed.tenants.run(5, Failing(KeyError("mine"), 1), retry=policy) == "done"


def test_the_last_error_is_raised_when_the_tries_are_used_up(routed: Routed) -> None:
    failing = Failing(MappingOfflineError("MappingOffline", "It is."), 99)
    with pytest.raises(MappingOfflineError):
        routed.tenants.run(5, failing, retry=Retry.fixed(3, 0.0))
    assert failing.calls == 3


def test_never_means_one_try(routed: Routed) -> None:
    failing = Failing(MappingOfflineError("MappingOffline", "It is."), 99)
    with pytest.raises(MappingOfflineError):
        routed.tenants.run(5, failing, retry=Retry.never())
    assert failing.calls == 1


def test_a_missing_mapping_is_not_waited_for(routed: Routed) -> None:
    with pytest.raises(MappingNotFoundError):
        routed.tenants.run(300, Failing(KeyError(), 0))


def test_the_default_pauses_double_from_50_ms_to_5_s_within_30_s() -> None:
    clock, pauses = ManualClock(), []
    for pause in Retry().pauses(clock):
        pauses.append(pause)
        clock.advance(pause)
    whole = [min(0.05 * 2**number, 5.0) for number in range(len(pauses))]
    assert all(half / 2 <= pause <= half for pause, half in zip(pauses, whole, strict=True))
    assert 20 < sum(pauses) <= 30


def test_the_jitter_differs_from_client_to_client() -> None:
    first, second = (list(islice(Retry().pauses(ManualClock(seed=seed)), 5)) for seed in (1, 2))
    assert first != second


def test_the_classic_is_ten_tries_five_seconds_apart() -> None:
    assert list(Retry.fixed(10, 5.0).pauses(ManualClock())) == [5.0] * 9


@pytest.mark.parametrize(
    "error",
    [
        MappingOfflineError("MappingOffline", ""),
        StaleMappingError("StaleMapping", ""),
        ShardOfflineError("ShardUnreachable", ""),
        OperationPendingError("OperationPending", ""),
        OperationalError("s", None, psycopg.errors.AdminShutdown()),
        OperationalError("s", None, psycopg.errors.CrashShutdown()),
        OperationalError("s", None, psycopg.errors.CannotConnectNow()),
        OperationalError("s", None, psycopg.errors.ConnectionFailure()),
        OperationalError("s", None, psycopg.errors.SerializationFailure()),
        OperationalError("s", None, psycopg.errors.DeadlockDetected()),
        OperationalError("s", None, Exception("lost"), connection_invalidated=True),
    ],
    ids=lambda error: type(getattr(error, "orig", error)).__name__,
)
def test_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        MappingNotFoundError("MappingNotFound", ""),
        IntegrityError("s", None, psycopg.errors.UniqueViolation()),
        OperationalError("s", None, psycopg.errors.QueryCanceled()),
        OperationalError("s", None, sqlite3.OperationalError("no such table")),
        InDoubtError("CommitInDoubt", ""),
        KeyError(),
    ],
    ids=lambda error: type(getattr(error, "orig", error)).__name__,
)
def test_not_transient(error: Exception) -> None:
    assert not is_transient(error)


def test_a_writer_that_lost_the_race_on_sqlite_is_tried_again(new_sqlite: NewDatabase) -> None:
    with a_routed_map(new_sqlite) as routed:
        tries: list[int] = []

        def write(session: RoutedSession) -> None:
            session.scalar(count_notes)
            tries.append(1)
            if len(tries) == 1:
                with routed.tenants.connect(5) as other:
                    other.execute(text("INSERT INTO note VALUES (5, 1, '')"))
                    other.commit()
            session.add(Note(tenant_id=5, id=2))

        routed.tenants.run(5, write, retry=FAST)
        assert len(tries) == 2
        assert routed.notes(routed.one) == [(5, 1), (5, 2)]


def test_a_unit_of_work_that_a_move_ends_is_done_on_the_new_shard(routed: Routed) -> None:
    with another_client(routed) as other:
        tries: list[int] = []

        def write(session: RoutedSession) -> None:
            session.scalar(count_notes)
            tries.append(1)
            if len(tries) == 1:
                routed.move(5, grace=0.0)
            session.add(Note(tenant_id=5, id=1))

        other.tenants.run(5, write, retry=FAST)
        assert len(tries) == 2
    assert routed.notes(routed.two) == [(5, 1)]
    assert routed.notes(routed.one) == []


def lose_the_answer(session: Any) -> None:
    """Let the commit of the session take place and its answer get lost."""
    pooled = session.connection().connection
    driver = pooled.driver_connection
    commit = driver.commit

    def commit_and_die() -> None:
        commit()
        driver.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    driver.commit = commit_and_die


def lossy(times: int, calls: list[int]) -> Callable[[RoutedSession], None]:
    def write(session: RoutedSession) -> None:
        calls.append(1)
        session.merge(Note(tenant_id=5, id=1, said=str(len(calls))))
        if len(calls) <= times:
            lose_the_answer(session)

    return write


def test_a_commit_of_unknown_outcome_is_not_repeated(on_postgres: Routed) -> None:
    calls: list[int] = []
    with pytest.raises(InDoubtError, match="CommitInDoubt") as raised:
        on_postgres.tenants.run(5, lossy(1, calls), retry=FAST)
    assert isinstance(raised.value.__cause__, DBAPIError)
    assert len(calls) == 1
    assert on_postgres.notes(on_postgres.one) == [(5, 1)]


def test_an_idempotent_unit_of_work_is_repeated(on_postgres: Routed) -> None:
    calls: list[int] = []
    on_postgres.tenants.run(5, lossy(1, calls), retry=FAST, idempotent=True)
    assert len(calls) == 2
    assert on_postgres.notes(on_postgres.one) == [(5, 1)]


def test_a_connection_lost_before_the_commit_is_not_in_doubt(on_postgres: Routed) -> None:
    calls: list[int] = []

    def write(session: RoutedSession) -> None:
        calls.append(1)
        session.add(Note(tenant_id=5, id=len(calls)))
        session.flush()
        if len(calls) == 1:
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            with on_postgres.two.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            session.scalar(count_notes)

    on_postgres.tenants.run(5, write, retry=FAST)
    assert on_postgres.notes(on_postgres.one) == [(5, 2)]


def test_routed_functions_get_a_session_by_their_key(routed: Routed) -> None:
    @routed.tenants.routed("tenant_id")
    def add(session: RoutedSession, tenant_id: int, number: int = 1) -> int:
        """Add a note."""
        session.add(Note(tenant_id=tenant_id, id=number))
        return number

    assert add(5) == 1
    assert add(tenant_id=250, number=2) == 2
    assert add.__doc__ == "Add a note."
    assert (routed.notes(routed.one), routed.notes(routed.two)) == ([(5, 1)], [(250, 2)])


def test_a_routed_function_without_the_argument_is_refused_at_once(routed: Routed) -> None:
    with pytest.raises(UsageError, match="RoutedArgumentMissing"):

        @routed.tenants.routed("tenant_id")
        def add(session: RoutedSession, tenant: int) -> None: ...


async def test_arun_tries_again_and_commits(arouted: Routed) -> None:
    calls: list[int] = []

    async def write(session: AsyncSession) -> int:
        calls.append(1)
        session.add(Note(tenant_id=5, id=len(calls)))
        await session.flush()
        if len(calls) == 1:
            raise StaleMappingError("StaleMapping", "It is.")
        return len(calls)

    assert await arouted.tenants.arun(5, write, retry=FAST) == 2
    assert arouted.notes(arouted.one) == [(5, 2)]
    await arouted.manager.aclose()


async def test_the_async_run_passes_its_arguments_after_the_session(arouted: Routed) -> None:
    async def write(session: AsyncSession, number: int) -> int:
        session.add(Note(tenant_id=5, id=number))
        return number

    assert await arouted.tenants.aio.run(5, write, 3, retry=FAST) == 3
    assert await arouted.tenants.arun(5, write, 4) == 4
    assert arouted.notes(arouted.one) == [(5, 3), (5, 4)]
    await arouted.manager.aclose()


DIES_AT_COMMIT = """
CREATE OR REPLACE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON note DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.said = 'last words') EXECUTE FUNCTION die()
"""


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_commit_of_unknown_outcome_is_not_repeated(driver: str) -> None:
    calls: list[int] = []

    async def write(session: AsyncSession) -> None:
        calls.append(1)
        said = "last words" if len(calls) == 1 else ""
        session.add(Note(tenant_id=5, id=len(calls), said=said))

    with a_shared_map(driver) as routed:
        with routed.one.connect() as admin:
            admin.exec_driver_sql(DIES_AT_COMMIT)
            admin.commit()
        with pytest.raises(InDoubtError, match="CommitInDoubt"):
            await routed.tenants.arun(5, write, retry=FAST)
        assert len(calls) == 1
        calls.clear()
        await routed.tenants.arun(5, write, retry=FAST, idempotent=True)
        assert len(calls) == 2
        assert routed.notes(routed.one) == [(5, 2)]
        with routed.one.connect() as admin:
            admin.exec_driver_sql("DROP TRIGGER dies ON note")
            admin.commit()
        await routed.manager.aclose()


async def test_routed_coroutines_get_an_async_session(arouted: Routed) -> None:
    @arouted.tenants.routed("tenant_id", retry=FAST)
    async def add(session: AsyncSession, tenant_id: int) -> None:
        session.add(Note(tenant_id=tenant_id, id=1))

    await add(5)
    assert arouted.notes(arouted.one) == [(5, 1)]
    await arouted.manager.aclose()
