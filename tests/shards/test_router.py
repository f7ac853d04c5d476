"""connect(): the cache may be stale, the connection that is handed out never is."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, event, insert, select, text
from sqlalchemy.exc import DBAPIError

from partita.clock import ManualClock
from partita.errors import (
    CatalogMismatchError,
    InvalidShardKeyError,
    MappingNotFoundError,
    MappingOfflineError,
    ShardOfflineError,
    StaleMappingError,
    TransactionUseError,
    UsageError,
)
from partita.shards.connections import engines, validation
from partita.shards.connections.engines import LEASE, Engines
from partita.shards.connections.locations import create_file, location_of
from partita.shards.keys.mapping import Location
from partita.shards.maps.manager import ShardMapManager
from partita.shards.routing import router
from support.postgres import PASSWORD_ROLE
from support.routed import (
    ASYNC,
    SYNC,
    NewDatabase,
    Note,
    Routed,
    a_shared_map,
    another_client,
    select_one,
)


@pytest.fixture(params=SYNC)
def routed(request: pytest.FixtureRequest) -> Iterator[Routed]:
    with a_shared_map(request.param) as made:
        yield made


@pytest.fixture(params=ASYNC)
def arouted(request: pytest.FixtureRequest) -> Iterator[Routed]:
    with a_shared_map(request.param) as made:
        yield made


@pytest.fixture
def on_sqlite() -> Iterator[Routed]:
    with a_shared_map("sqlite") as made:
        yield made


@pytest.fixture
def on_postgres() -> Iterator[Routed]:
    with a_shared_map() as made:
        yield made


def pid_of(connection: Connection) -> int:
    pid = connection.scalar(text("SELECT pg_backend_pid()"))
    assert isinstance(pid, int)
    return pid


def terminate(routed: Routed, pid: int) -> None:
    with routed.manager.engines.admin(routed.one.location).connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})


def test_a_key_leads_to_the_shard_of_its_mapping(routed: Routed) -> None:
    for tenant, shard in ((5, routed.one), (150, routed.one), (250, routed.two)):
        with routed.tenants.connect(tenant) as connection:
            connection.execute(insert(Note).values(tenant_id=tenant, id=1))
            connection.commit()
        assert (tenant, 1) in routed.notes(shard)


def test_a_connection_is_handed_out_inside_its_validated_transaction(routed: Routed) -> None:
    with routed.tenants.connect(5) as connection:
        assert connection.in_transaction()
        entry = router.entry_of(connection)
        assert entry is not None
        assert entry.mapping.range.low == 0


def test_what_was_not_committed_is_rolled_back_at_the_end(routed: Routed) -> None:
    with routed.tenants.connect(5) as connection:
        connection.execute(insert(Note).values(tenant_id=5, id=1))
    assert routed.notes(routed.one) == []


def test_a_key_without_mapping_is_refused(routed: Routed) -> None:
    with pytest.raises(MappingNotFoundError):
        routed.tenants.connect(300)


def test_a_key_of_the_wrong_type_is_refused(routed: Routed) -> None:
    with pytest.raises(InvalidShardKeyError):
        routed.tenants.connect("five")


def test_an_unknown_validation_is_refused(routed: Routed) -> None:
    with pytest.raises(UsageError, match="UnknownValidation"):
        routed.tenants.connect(5, validate="sometimes")  # type: ignore[arg-type]


def test_autocommit_is_refused_because_it_has_no_transaction_to_validate(routed: Routed) -> None:
    with pytest.raises(TransactionUseError, match="AutocommitRefused"):
        routed.tenants.connect(5, isolation_level="AUTOCOMMIT")


@pytest.mark.parametrize("validate", ["always", "lease"])
def test_a_stale_cache_is_rerouted_once_and_then_right(
    routed: Routed, validate: router.Validate
) -> None:
    with another_client(routed) as other:
        other.tenants.get(5)
        routed.move(5)

        with other.tenants.connect(5, validate=validate) as connection:
            connection.execute(insert(Note).values(tenant_id=5, id=1))
            connection.commit()
        with other.tenants.connect(5, validate=validate):
            pass

        assert other.manager.counters["reroutes"] == 1
        assert routed.notes(routed.two) == [(5, 1)]
        assert routed.notes(routed.one) == []


def test_a_split_and_a_merge_reroute_to_the_same_shard(routed: Routed) -> None:
    with another_client(routed) as other:
        other.tenants.get(5)
        low, high = routed.tenants.split(at=50)
        with other.tenants.connect(5) as connection:
            entry = router.entry_of(connection)
            assert entry is not None
            assert entry.mapping.id == low.id
        routed.tenants.merge(low, high)
        with other.tenants.connect(5) as connection:
            assert connection.scalar(select_one) == 1
        assert other.manager.counters["reroutes"] == 2


def test_without_validation_a_stale_cache_leads_astray(routed: Routed) -> None:
    with another_client(routed) as other:
        other.tenants.get(5)
        routed.move(5)
        with other.tenants.connect(5, validate="never") as connection:
            assert connection.engine.url.database == routed.one.location.database


def test_an_offline_mapping_refuses_those_who_know_it_and_those_who_do_not(routed: Routed) -> None:
    with another_client(routed) as other:
        other.tenants.get(5)
        offline = routed.tenants.set_offline(routed.tenants.get(5))
        for client in (routed, other, other):
            with pytest.raises(MappingOfflineError):
                client.tenants.connect(5)

        routed.tenants.set_online(offline)
        for client in (routed, other):
            with client.tenants.connect(5) as connection:
                assert connection.scalar(select_one) == 1
        assert other.manager.counters["refused"] == 2


def test_a_mapping_that_only_the_global_catalog_has_is_changing(routed: Routed) -> None:
    with routed.one.connect() as connection:
        connection.execute(text("DELETE FROM partita_local_mappings"))
        connection.commit()
    with pytest.raises(MappingOfflineError, match="MappingChanging"):
        routed.tenants.connect(5)


def test_the_next_transaction_on_the_connection_is_validated_again(routed: Routed) -> None:
    with another_client(routed) as other, other.tenants.connect(5) as connection:
        connection.commit()
        routed.move(5)
        with pytest.raises(StaleMappingError):
            connection.execute(insert(Note).values(tenant_id=5, id=1))
    assert routed.notes(routed.one) == routed.notes(routed.two) == []


def test_a_refused_connection_goes_back_to_its_pool_clean(routed: Routed) -> None:
    with another_client(routed) as other:
        other.tenants.get(5)
        routed.tenants.set_offline(routed.tenants.get(5))
        engine = other.manager.engines.for_location(routed.one.location, is_routed=True)
        for _ in range(20):
            with pytest.raises(MappingOfflineError):
                other.tenants.connect(5)
        with other.tenants.connect(150) as connection:
            assert connection.scalar(select_one) == 1
        assert "Current Checked out connections: 0" in engine.pool.status()


def test_the_entry_is_validated_on_the_connection_that_is_handed_out(
    on_postgres: Routed,
) -> None:
    with on_postgres.tenants.connect(5) as connection:
        entry = router.entry_of(connection)
        assert entry is not None
        mapping = entry.mapping
        held = connection.scalars(
            text(
                "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory'"
                " AND mode = 'ShareLock' AND classid = :class AND pid = pg_backend_pid()"
            ),
            {"class": validation.LOCK_CLASS},
        ).all()
        assert held == [int(mapping.id[:8], 16)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("as_default", [False, True])
def test_under_one_snapshot_the_lock_is_taken_before_it(
    on_postgres: Routed, level: str, as_default: bool
) -> None:
    if as_default:
        with on_postgres.one.connect() as admin:
            database = on_postgres.one.location.database
            admin.execute(
                text(f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'")
            )
            admin.commit()
        on_postgres.manager.engines.dispose()
    asked = None if as_default else level
    try:
        with on_postgres.tenants.connect(5, isolation_level=asked) as connection:
            assert connection.scalar(text("SHOW transaction_isolation")) == level.lower()
            # The session's own lock was given back: only the transaction's is left.
            locks = connection.scalar(
                text(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                    " AND pid = pg_backend_pid()"
                )
            )
            assert locks == 1
            connection.rollback()
            on_postgres.tenants.set_offline(on_postgres.tenants.get(5), grace=5)
            with pytest.raises((StaleMappingError, MappingOfflineError)):
                connection.execute(select_one)
    finally:
        with on_postgres.one.connect() as admin:
            admin.execute(
                text(
                    f"ALTER DATABASE {on_postgres.one.location.database}"
                    " RESET default_transaction_isolation"
                )
            )
            admin.commit()


def test_the_isolation_level_does_not_stay_with_the_pooled_connection(routed: Routed) -> None:
    with routed.tenants.connect(5, isolation_level="SERIALIZABLE") as connection:
        connection.execute(select_one)
    with routed.tenants.connect(5) as connection:
        default = connection.engine.dialect.default_isolation_level
        assert connection.get_isolation_level() == default


def test_a_dead_pooled_connection_is_replaced_before_the_user_notices(
    on_postgres: Routed,
) -> None:
    with on_postgres.tenants.connect(5) as connection:
        pid = pid_of(connection)
    terminate(on_postgres, pid)
    with on_postgres.tenants.connect(5) as connection:
        assert pid_of(connection) != pid


def test_a_pool_of_dead_connections_is_replaced_before_the_user_notices(
    on_postgres: Routed,
) -> None:
    connections = [on_postgres.tenants.connect(5) for _ in range(5)]
    pids = [pid_of(connection) for connection in connections]
    for connection in connections:
        connection.close()
    for pid in pids:
        terminate(on_postgres, pid)
    with on_postgres.tenants.connect(5) as connection:
        assert pid_of(connection) not in pids


def test_one_terminated_session_leaves_the_rest_of_the_pool_alone(on_postgres: Routed) -> None:
    lost, kept = on_postgres.tenants.connect(5), on_postgres.tenants.connect(5)
    kept_pid = pid_of(kept)
    terminate(on_postgres, pid_of(lost))
    with pytest.raises(DBAPIError) as raised:
        lost.execute(select_one)
    assert raised.value.connection_invalidated
    lost.close()
    kept.close()
    with on_postgres.tenants.connect(5) as first, on_postgres.tenants.connect(5) as second:
        assert kept_pid in {pid_of(first), pid_of(second)}


def test_a_lost_connection_does_not_come_back_without_validation(on_postgres: Routed) -> None:
    with on_postgres.tenants.connect(5) as connection:
        terminate(on_postgres, pid_of(connection))
        with pytest.raises(DBAPIError):
            connection.execute(select_one)
        connection.rollback()
        with pytest.raises(StaleMappingError, match="ConnectionLost"):
            connection.execute(insert(Note).values(tenant_id=5, id=1))
    assert on_postgres.notes(on_postgres.one) == []


def test_a_shard_without_its_local_catalog_is_an_error_and_spoils_no_connection(
    routed: Routed,
) -> None:
    with routed.one.connect() as admin:
        admin.execute(text("ALTER TABLE partita_local_mappings RENAME TO hidden"))
        admin.commit()
    validations: tuple[router.Validate, ...] = ("always", "lease")
    try:
        for validate in validations:
            with pytest.raises(CatalogMismatchError):
                routed.tenants.connect(5, validate=validate)
    finally:  # the next tests use the same databases
        with routed.one.connect() as admin:
            admin.execute(text("ALTER TABLE hidden RENAME TO partita_local_mappings"))
            admin.commit()
    for validate in validations:
        with routed.tenants.connect(5, validate=validate) as connection:
            connection.execute(insert(Note).values(tenant_id=5, id=1))
    assert routed.notes(routed.one) == []


def test_a_lease_is_kept_by_the_pooled_connection_and_asks_nothing_again(
    on_postgres: Routed,
) -> None:
    statements: list[str] = []
    with on_postgres.tenants.connect(5, validate="lease") as connection:
        assert connection.info[LEASE] == on_postgres.tenants.get(5).id
        pid = pid_of(connection)
    with on_postgres.tenants.connect(5, validate="lease") as connection:
        event.listen(
            connection, "before_cursor_execute", lambda *given: statements.append(given[2])
        )
        assert pid_of(connection) == pid
    assert statements == ["SELECT pg_backend_pid()"]


def test_a_lease_for_one_mapping_is_given_back_when_another_is_served(
    on_postgres: Routed,
) -> None:
    with on_postgres.tenants.connect(5, validate="lease"):
        pass
    with on_postgres.tenants.connect(150) as connection:
        assert LEASE not in connection.info
        on_postgres.move(5, grace=0.0)
        connection.execute(insert(Note).values(tenant_id=150, id=1))
        connection.commit()
    assert on_postgres.notes(on_postgres.one) == [(150, 1)]


def test_a_mover_ends_an_idle_lease_at_once_and_its_client_does_not_notice(
    on_postgres: Routed,
) -> None:
    with another_client(on_postgres) as other:
        with other.tenants.connect(5, validate="lease") as connection:
            connection.execute(insert(Note).values(tenant_id=5, id=1))
            connection.commit()
        # A grace longer than the test: the idle lease must not need it.
        on_postgres.move(5, grace=600)
        with other.tenants.connect(5, validate="lease") as connection:
            connection.execute(insert(Note).values(tenant_id=5, id=2))
            connection.commit()
    assert on_postgres.notes(on_postgres.two) == [(5, 1), (5, 2)]


def test_an_unreachable_shard_is_said_to_be_so(routed: Routed, new_sqlite: NewDatabase) -> None:
    nowhere = (
        "sqlite:////no/such/folder/shard.db"
        if routed.is_sqlite
        else "postgresql+psycopg://127.0.0.1:1/nowhere"
    )
    point_shard(routed, nowhere)
    with (
        another_client_of_catalog(routed) as other,
        pytest.raises(ShardOfflineError, match="ShardUnreachable"),
    ):
        other.get_map("tenants").connect(5)


def test_an_unreachable_shard_sends_its_clients_to_the_store_only_now_and_then(
    routed: Routed,
) -> None:
    clock = ManualClock()
    point_shard(routed, "sqlite:////no/such/folder/shard.db")
    with ShardMapManager.open(routed.urls[0], clock=clock) as manager:
        tenants = manager.get_map("tenants")
        looked_up: list[object] = []
        ask = tenants.get

        def counting(key: object, *, lookup: str = "cache") -> object:
            looked_up.extend([key] if lookup == "store" else [])
            return ask(key, lookup=lookup)  # type: ignore[arg-type]

        tenants.get = counting  # type: ignore[assignment, method-assign]
        for seconds, times in ((0, 1), (1, 1), (5, 2), (9, 2), (2, 3)):
            clock.advance(seconds)
            with pytest.raises(ShardOfflineError):
                tenants.connect(5)
            assert len(looked_up) == times


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_the_pause_of_an_unreachable_shard_doubles_to_30_s_and_begins_anew_when_it_is_back(
    on_sqlite: Routed, *, is_async: bool
) -> None:
    routed, home, clock = on_sqlite, on_sqlite.one.location, ManualClock()
    with ShardMapManager.open(routed.urls[0], clock=clock) as manager:
        tenants, reads = manager.get_map("tenants"), list[object]()
        catalog = manager.executor.engine
        event.listen(catalog, "before_cursor_execute", lambda *given: reads.append(given))

        async def connect() -> None:
            if is_async:
                async with tenants.aconnect(5):
                    return
            tenants.connect(5).close()

        async def asks_again_after(seconds: int) -> bool:
            clock.advance(seconds)
            reads.clear()
            with pytest.raises(ShardOfflineError):
                await connect()
            return reads != []

        point_shard(routed, "sqlite:////no/such/folder/shard.db")
        assert await asks_again_after(0)
        for pause in (5, 10, 20, 30, 30):
            assert not await asks_again_after(pause - 1)
            assert await asks_again_after(1)

        point_shard(routed, home.text)
        clock.advance(30)
        await connect()
        point_shard(routed, "sqlite:////no/such/folder/shard.db")
        tenants.cache.clear()
        assert await asks_again_after(0)
        assert not await asks_again_after(4)
        assert await asks_again_after(1)
        await manager.aclose()


def test_a_shard_that_was_attached_elsewhere_is_found_there(routed: Routed) -> None:
    home = routed.one.location
    point_shard(routed, "sqlite:////no/such/folder/shard.db")
    with another_client_of_catalog(routed) as manager:
        tenants = manager.get_map("tenants")
        tenants.get(5)
        point_shard(routed, home.text)
        with tenants.connect(5) as connection:
            assert connection.scalar(select_one) == 1


def test_threads_share_a_map(routed: Routed) -> None:
    def write(number: int) -> None:
        def insert_one(session: object) -> None:
            session.add(Note(tenant_id=number % 300, id=number))  # type: ignore[attr-defined]

        routed.tenants.run(number % 300, insert_one)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(0, 600, 7)))
    found = routed.notes(routed.one) + routed.notes(routed.two)
    assert sorted(number for _, number in found) == list(range(0, 600, 7))
    assert all(tenant < 200 for tenant, _ in routed.notes(routed.one))


async def test_an_async_connection_is_routed_and_rerouted(arouted: Routed) -> None:
    with another_client(arouted) as other:
        other.tenants.get(5)
        arouted.move(5)
        async with other.tenants.aconnect(5) as connection:
            await connection.execute(insert(Note).values(tenant_id=5, id=1))
            await connection.commit()
            assert (await connection.execute(select(Note.id))).scalar() == 1
        assert arouted.notes(arouted.two) == [(5, 1)]
        with pytest.raises(MappingNotFoundError):
            await other.tenants.aconnect(300).__aenter__()
        await other.manager.aclose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_lease_is_validated_too(driver: str) -> None:
    with a_shared_map(driver) as routed, another_client(routed) as other:
        for number in (1, 2):
            async with other.tenants.aconnect(5, validate="lease") as connection:
                await connection.execute(insert(Note).values(tenant_id=5, id=number))
                await connection.commit()
        await asyncio.to_thread(routed.move, 5, grace=600)
        async with other.tenants.aconnect(5, validate="lease") as connection:
            await connection.execute(insert(Note).values(tenant_id=5, id=3))
            await connection.commit()
        assert len(routed.notes(routed.two)) == 3
        await other.manager.aclose()


async def test_an_offline_mapping_refuses_async_connections(arouted: Routed) -> None:
    with another_client(arouted) as other:
        other.tenants.get(5)
        arouted.tenants.set_offline(arouted.tenants.get(5))
        with pytest.raises(MappingOfflineError):
            await other.tenants.aconnect(5).__aenter__()
        async with other.tenants.aconnect(150) as connection:
            assert await connection.scalar(select_one) == 1
        await other.manager.aclose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_server_that_never_answers_is_unreachable_before_long(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "CONNECT_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent, a_shared_map(driver) as routed:
        port = silent.getsockname()[1]
        point_shard(routed, f"postgresql+{driver}://127.0.0.1:{port}/silent")
        with another_client_of_catalog(routed) as other:
            tenants = other.get_map("tenants")
            errors = await asyncio.gather(
                asyncio.to_thread(tenants.connect, 5),
                tenants.aconnect(5).__aenter__(),
                return_exceptions=True,
            )
            assert [type(error) for error in errors] == [ShardOfflineError, ShardOfflineError]
            await other.aclose()


def test_engines_beyond_the_limit_are_closed_but_not_under_their_users(
    new_sqlite: NewDatabase,
) -> None:
    few = Engines(engines_max=2)
    places = [location_of(new_sqlite(name)) for name in ("a", "b", "c")]
    for place in places:
        create_file(place)
    with few.for_location(places[0]).connect() as first:
        for place in places[1:]:
            few.for_location(place).connect().close()
        assert first.scalar(select_one) == 1
    assert few.for_location(places[2]) is few.for_location(places[2])
    assert few.for_location(places[0]) is not first.engine
    first.engine.dispose()
    few.dispose()


def test_credentials_come_from_the_resolver_at_every_new_connection(
    new_postgres: NewDatabase,
) -> None:
    url = new_postgres("secret")
    plain = Engines()
    with plain.admin(location_of(url)).begin() as connection:
        connection.execute(text(f"DROP ROLE IF EXISTS {PASSWORD_ROLE}"))
        connection.execute(text(f"CREATE ROLE {PASSWORD_ROLE} LOGIN PASSWORD 'right'"))
    plain.dispose()
    passwords = iter(["wrong", "right"])
    asked: list[Location] = []

    def resolve(location: Location) -> str:
        asked.append(location)
        return url.replace("//", f"//{PASSWORD_ROLE}:{next(passwords)}@")

    engines = Engines(credentials=resolve)
    engine = engines.for_location(location_of(url))
    with pytest.raises(DBAPIError, match="password"):
        engine.connect()
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT current_user")) == PASSWORD_ROLE
    assert asked == [location_of(url)] * 2
    engines.dispose()


def test_credentials_of_a_url_are_remembered_for_its_server(new_postgres: NewDatabase) -> None:
    url = new_postgres("secret")
    engines = Engines()
    location = engines.remember(url.replace("//", "//somebody:something@"))
    assert "something" not in repr(location)
    with pytest.raises(DBAPIError, match='role "somebody"'):
        engines.for_location(location).connect()
    engines.dispose()


def another_client_of_catalog(routed: Routed) -> ShardMapManager:
    return ShardMapManager.open(routed.urls[0])


def point_shard(routed: Routed, url: str) -> None:
    """Let the global catalog say that the first shard is elsewhere."""
    with routed.manager.executor.engine.begin() as connection:
        connection.execute(
            text("UPDATE partita_shards SET location = :location WHERE id = :id"),
            {"location": location_of(url).text, "id": routed.one.id},
        )
