"""Connections to real servers: what is refused, what is in doubt, what never hangs."""

import asyncio
import getpass
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

import partita.local_postgres
from partita.errors import (
    ConfigurationError,
    InDoubtError,
    NotDurableError,
    PartitaError,
    StoreBusyError,
    UnavailableError,
)
from partita.local_postgres import LocalPostgres
from partita.scaleout.connections import link as links
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import SETTINGS
from partita.storage.durability import Durability
from support import postgres
from support.catalog_databases import empty_url
from support.pooler import TransactionPooler
from support.weak_server import own_server, run_sql

RELOADED = ("SELECT pg_reload_conf()",)


@pytest.fixture(scope="module")
def weak() -> Iterator[LocalPostgres]:
    with own_server({"max_connections": "20"}) as server:
        yield server


@pytest.fixture(scope="module")
def url() -> str:
    return empty_url("connections")


@pytest.fixture(params=[True, False], ids=["shielded", "of a lane"])
async def link(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Link]:
    link = await connector(url).connect()
    link.is_shielded = request.param
    yield link
    link.terminate()


def connector(url: str, durability: Durability = Durability.FULL) -> Connector:
    return Connector(Location.parse(url), durability)


async def refusal(url: str, durability: Durability = Durability.FULL) -> PartitaError:
    with pytest.raises(PartitaError) as caught:
        await connector(url, durability).connect()
    return caught.value


async def until_true(server_url: str, condition: str) -> None:
    while run_sql(server_url, f"SELECT {condition}") != [(True,)]:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


# What is refused


@pytest.mark.parametrize(
    "setting", ["fsync", pytest.param("full_page_writes", marks=pytest.mark.proof)]
)
async def test_a_server_that_does_not_sync_needs_fast_durability(
    weak: LocalPostgres, setting: str
) -> None:
    url = weak.url()
    run_sql(url, f"ALTER SYSTEM SET {setting} = off", *RELOADED)
    try:
        await until_true(url, f"current_setting('{setting}') = 'off'")
        error = await refusal(url)
        assert isinstance(error, NotDurableError)
        assert error.facts == {"setting": setting, "found": "off"}
        await (await connector(url, Durability.FAST).connect()).close()
    finally:
        run_sql(url, f"ALTER SYSTEM RESET {setting}", *RELOADED)
        await until_true(url, f"current_setting('{setting}') = 'on'")


@pytest.mark.parametrize(
    "value",
    ["off", *(pytest.param(each, marks=pytest.mark.proof) for each in ("local", "remote_write"))],
)
async def test_commits_that_do_not_wait_need_fast_durability(
    weak: LocalPostgres, value: str
) -> None:
    run_sql(weak.url(), f"CREATE DATABASE weak_{value}")
    url = weak.url(f"weak_{value}")
    run_sql(url, f"ALTER DATABASE weak_{value} SET synchronous_commit = {value}")

    assert (await refusal(url)).code == "StoreNotDurable"
    await (await connector(url, Durability.FAST).connect()).close()


async def test_a_reload_does_not_weaken_a_session(weak: LocalPostgres) -> None:
    link = await connector(weak.url()).connect()
    run_sql(weak.url(), "ALTER SYSTEM SET synchronous_commit = off", *RELOADED)
    try:
        await until_true(weak.url(), "current_setting('synchronous_commit') = 'off'")
        rows = await link.read("SELECT current_setting('synchronous_commit') AS found")
        assert rows[0]["found"] == "on"
    finally:
        run_sql(weak.url(), "ALTER SYSTEM RESET synchronous_commit", *RELOADED)
        link.terminate()


@pytest.mark.parametrize(
    ("create", "alter", "setting"),
    [
        ("TEMPLATE template0 ENCODING 'SQL_ASCII'", "", "encoding"),
        ("", "SET default_transaction_isolation = serializable", "transaction_isolation"),
        ("", "SET default_transaction_read_only = on", "transaction_read_only"),
    ],
)
async def test_an_unfit_database_is_refused_also_with_fast_durability(
    weak: LocalPostgres, create: str, alter: str, setting: str
) -> None:
    name = f"unfit_{setting}"
    run_sql(weak.url(), f"CREATE DATABASE {name} {create}")
    if alter:
        run_sql(weak.url(), f"ALTER DATABASE {name} {alter}")

    error = await refusal(weak.url(name), Durability.FAST)

    assert error.code == "StoreUnfit"
    assert error.facts["setting"] == setting


@pytest.mark.proof
async def test_an_old_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partita.local_postgres, "INSTALLATION", "pginstall")  # 16, in the wheel
    with own_server() as server:
        error = await refusal(server.url(), Durability.FAST)

    assert (error.code, error.facts["setting"]) == ("StoreUnfit", "server_version")


async def test_a_wrong_role_database_or_option_is_a_configuration_error(url: str) -> None:
    assert (await refusal(url + "x")).code == "StoreNotPermitted"
    as_another = url.replace(f"//{getpass.getuser()}@", "//missing_role@")
    assert (await refusal(as_another)).code == "StoreNotPermitted"
    for option in ("sslmode=wrong", "target_session_attrs=wrong"):
        assert isinstance(await refusal(f"{url}?{option}"), ConfigurationError)


async def test_an_address_where_nothing_listens_is_named_without_its_password() -> None:
    error = await refusal("postgresql://root:secret@127.0.0.1:1/partita")

    assert error.code == "StoreUnreachable"
    assert "127.0.0.1:1/partita" in error.message
    assert "secret" not in f"{error} {error.facts} {error.hint}"
    assert error.hint.startswith("Check the URL")


async def test_a_server_that_has_answered_before_is_busy_when_it_is_away() -> None:
    with own_server() as server:
        connector = Connector(Location.parse(server.url()), Durability.FAST)
        await (await connector.connect()).close()

    with pytest.raises(StoreBusyError) as away:
        await connector.connect()
    assert away.value.facts["retry_after"] == 1


async def test_a_server_that_accepts_and_says_nothing_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "CONNECT_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        error = await refusal(f"postgresql://root@127.0.0.1:{port}/x")
    assert (error.code, error.facts["reason"]) == ("StoreUnreachable", "TimeoutError")


async def test_a_session_has_its_settings(link: Link) -> None:
    for name in SETTINGS:
        rows = await link.read("SELECT setting, source FROM pg_settings WHERE name = $1", name)
        assert rows[0]["source"] == "session", name
    assert not link.is_pooled


# Writes whose outcome is not known


async def test_a_connection_that_is_lost_during_a_write_is_in_doubt(url: str, link: Link) -> None:
    writing = asyncio.ensure_future(link.write("SELECT pg_sleep(60)"))
    await until_true(url, f"pg_terminate_backend({link.facts.pid})")

    with pytest.raises(InDoubtError) as caught:
        await writing
    assert caught.value.code == "OperationTimedOut"
    assert link.is_closed


async def test_a_write_beyond_its_time_is_in_doubt_and_is_not_cancelled(
    url: str, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(url, "CREATE TABLE IF NOT EXISTS slow (n int)")
    monkeypatch.setattr(links, "WRITE_SECONDS_MAX", 0.1)
    with pytest.raises(InDoubtError):
        await link.write("INSERT INTO public.slow SELECT 1 FROM pg_sleep(0.5)")

    assert link.is_closed
    await until_true(url, "EXISTS (SELECT FROM slow)")


async def test_an_error_of_the_statement_is_not_in_doubt(link: Link) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await link.write("SELECT 1 / 0")

    assert not link.is_closed


async def test_a_transaction_that_lost_its_connection_before_commit_is_undone(
    url: str, link: Link
) -> None:
    run_sql(url, "CREATE TABLE IF NOT EXISTS undone (n int)")

    async def insert() -> None:
        async with link.transaction():
            await link.read("INSERT INTO public.undone VALUES (1)")
            run_sql(url, f"SELECT pg_terminate_backend({link.facts.pid})")
            await link.read("SELECT 1")

    with pytest.raises(UnavailableError) as caught:
        await insert()

    assert not isinstance(caught.value, InDoubtError)
    assert run_sql(url, "SELECT count(*) FROM undone") == [(0,)]


async def test_a_connection_that_is_lost_at_commit_is_in_doubt(url: str, link: Link) -> None:
    async def commit() -> None:
        async with link.transaction():
            await link.read("SELECT 1")
            run_sql(url, f"SELECT pg_terminate_backend({link.facts.pid})")

    with pytest.raises(InDoubtError):
        await commit()


async def test_a_cancelled_wait_for_a_standby_is_in_doubt(weak: LocalPostgres) -> None:
    url = weak.url()
    run_sql(url, "CREATE TABLE IF NOT EXISTS waited (n int)")
    link = await connector(url).connect()
    run_sql(url, "ALTER SYSTEM SET synchronous_standby_names = 'missing'", *RELOADED)
    try:
        await until_true(url, "current_setting('synchronous_standby_names') = 'missing'")
        writing = asyncio.ensure_future(link.write("INSERT INTO public.waited VALUES (1)"))
        waits = f"EXISTS (SELECT FROM pg_stat_activity WHERE pid = {link.facts.pid}"
        await until_true(url, f"{waits} AND wait_event = 'SyncRep')")
        run_sql(url, f"SELECT pg_cancel_backend({link.facts.pid})")

        with pytest.raises(InDoubtError) as caught:
            await writing
        assert caught.value.facts["reason"] == "01000"
        assert run_sql(url, "SELECT count(*) FROM waited") == [(1,)]  # it is there, and only here
    finally:
        run_sql(url, "ALTER SYSTEM RESET synchronous_standby_names", *RELOADED)
        link.terminate()


# What never hangs


async def test_a_read_beyond_its_time_is_busy(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "READ_SECONDS_MAX", 0.1)
    with pytest.raises(StoreBusyError):
        await link.read("SELECT pg_sleep(60)")

    assert link.is_closed


async def test_a_frozen_server_does_not_hold_a_request(
    weak: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CONNECT_SECONDS_MAX", 0.5)
    assert weak.pid is not None
    os.kill(weak.pid, signal.SIGSTOP)
    try:
        assert (await refusal(weak.url())).code == "StoreUnreachable"
    finally:
        os.kill(weak.pid, signal.SIGCONT)


async def test_a_full_pool_queues_and_then_is_busy(url: str) -> None:
    pool = Pool(connector(url), links_max=1, wait_seconds_max=0.2)
    async with pool.link() as borrowed:
        with pytest.raises(StoreBusyError) as caught:
            async with pool.link():
                pass
        waiting = asyncio.ensure_future(pool.read("SELECT pg_backend_pid() AS pid"))
        await asyncio.sleep(0)

    assert caught.value.facts["retry_after"] == 1
    assert (await waiting)[0]["pid"] == borrowed.facts.pid
    await pool.close()
    with pytest.raises(StoreBusyError):
        await pool.read("SELECT 1")


async def test_a_pool_does_not_lend_a_lost_connection(url: str) -> None:
    pool = Pool(connector(url))
    async with pool.link() as first:
        pass
    run_sql(url, f"SELECT pg_terminate_backend({first.facts.pid})")
    while not first.is_closed:  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    assert (await pool.read("SELECT 1 AS one"))[0]["one"] == 1
    await pool.close()


async def test_a_server_without_free_connections_is_busy(weak: LocalPostgres) -> None:
    run_sql(weak.url(), "CREATE ROLE crowd LOGIN CONNECTION LIMIT 2")
    url = weak.url().replace(f"//{weak.superuser}@", "//crowd@")
    one = await connector(url).connect()
    two = await connector(url, Durability.FULL).connect_unchecked()

    assert isinstance(await refusal(url), StoreBusyError)
    one.terminate()
    two.terminate()


# Behind a pooler in transaction mode


async def test_a_pooler_is_noticed_and_statements_work_on_any_session(url: str) -> None:
    with TransactionPooler(postgres.server().port, rotates=True) as pooler:
        opened = connector(url.replace(f":{postgres.server().port}/", f":{pooler.port}/"))
        link = await opened.connect()
        assert link.is_pooled
        found = {
            (await link.read("SELECT pg_backend_pid() AS pid, $1::int AS n", n))[0]["pid"]
            for n in range(20)
        }
        async with link.transaction():
            same = {(await link.read("SELECT pg_backend_pid() AS p"))[0]["p"] for _ in range(5)}
        await link.close()

    assert len(found) > 1
    assert len(same) == 1
