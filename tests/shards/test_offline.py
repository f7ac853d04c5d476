"""Taking a mapping offline ends exactly its transactions; everybody else goes on."""

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from partita.errors import (
    MappingOfflineError,
    OperationPendingError,
    PartitaError,
    StaleMappingError,
)
from partita.shards.connections import revocable
from partita.shards.keys.mapping import MappingStatus
from partita.shards.routing import offline
from support.routed import NewDatabase, Note, Routed, a_routed_map, another_client, select_one


@pytest.fixture
def routed(database_urls: NewDatabase) -> Iterator[Routed]:
    with a_routed_map(database_urls) as made:
        yield made


@pytest.fixture
def on_postgres(new_postgres: NewDatabase) -> Iterator[Routed]:
    with a_routed_map(new_postgres) as made:
        yield made


@pytest.fixture
def on_sqlite(new_sqlite: NewDatabase) -> Iterator[Routed]:
    with a_routed_map(new_sqlite) as made:
        yield made


def fenced(routed: Routed, *, grace: float = 0.0, terminate: bool = True) -> offline.Fence:
    mapping = routed.tenants.get(5)
    return offline.set_offline(
        routed.manager.engines,
        routed.manager.clock,
        mapping,
        lambda: routed.tenants.update_mapping(mapping, status=MappingStatus.OFFLINE),
        grace=grace,
        terminate=terminate,
    )[1]


def is_ended(error: BaseException) -> bool:
    return isinstance(error, MappingOfflineError) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


def test_exactly_the_holders_are_ended_and_neighbours_live(routed: Routed) -> None:
    holder, neighbour = routed.tenants.connect(5), routed.tenants.connect(150)
    holder.execute(select_one)
    neighbour.execute(select_one)

    with fenced(routed) as fence:
        assert fence.terminated == 1
        with pytest.raises((PartitaError, DBAPIError)) as raised:
            holder.execute(insert(Note).values(tenant_id=5, id=1))
        assert is_ended(raised.value)
        assert neighbour.execute(select_one).scalar() == 1

    if routed.is_sqlite:
        # The catalogs were written under it: on SQLite a snapshot that is old cannot write.
        neighbour.rollback()
    neighbour.execute(insert(Note).values(tenant_id=150, id=1))
    neighbour.commit()
    holder.close()
    neighbour.close()
    assert routed.notes(routed.one) == [(150, 1)]


def test_what_a_holder_had_written_is_rolled_back(routed: Routed) -> None:
    with routed.tenants.sessionmaker()(5) as session:
        session.add(Note(tenant_id=5, id=1))
        session.flush()
        fenced(routed).close()
        with pytest.raises((PartitaError, DBAPIError)) as raised:
            session.commit()
        assert is_ended(raised.value)
    assert routed.notes(routed.one) == []


def test_a_holder_that_ends_within_the_grace_is_not_ended(routed: Routed) -> None:
    holder = routed.tenants.connect(5)
    holder.execute(insert(Note).values(tenant_id=5, id=1))
    fences: list[offline.Fence] = []
    mover = threading.Thread(target=lambda: fences.append(fenced(routed, grace=60)))
    mover.start()
    # The mover has begun as soon as new entries are refused.
    while True:
        try:
            routed.tenants.connect(5).close()
        except MappingOfflineError:
            break
    holder.commit()
    holder.close()
    mover.join()
    assert fences[0].terminated == 0
    fences[0].close()
    assert routed.notes(routed.one) == [(5, 1)]


def test_with_nobody_inside_offline_does_not_wait_for_the_grace(routed: Routed) -> None:
    fence = fenced(routed, grace=600)
    assert fence.terminated == 0
    fence.close()


def test_without_leave_to_terminate_the_holders_stay_and_are_reported(routed: Routed) -> None:
    with routed.tenants.connect(5) as holder:
        holder.execute(select_one)
        with pytest.raises(OperationPendingError, match="MappingInUse"):
            fenced(routed, terminate=False)
        holder.execute(select_one)
    with pytest.raises(MappingOfflineError):
        routed.tenants.connect(5)


def test_a_mapping_goes_offline_without_ending_those_inside(routed: Routed) -> None:
    tenants = routed.tenants
    with tenants.connect(5) as holder:
        holder.execute(select_one)

        offline = tenants.set_offline(tenants.get(5), grace=0, terminate=False)

        assert not offline.is_online
        assert tenants.get(5) == offline
        assert holder.execute(select_one).scalar() == 1
        with pytest.raises(MappingOfflineError):
            tenants.connect(5)


def test_a_second_call_reports_those_that_stayed_inside(routed: Routed) -> None:
    tenants = routed.tenants
    with tenants.connect(5) as holder:
        holder.execute(select_one)
        offline = tenants.set_offline(tenants.get(5), grace=0, terminate=False)

        with pytest.raises(OperationPendingError, match="MappingInUse"):
            tenants.set_offline(offline, grace=0, terminate=False)
        assert holder.execute(select_one).scalar() == 1

    assert tenants.set_offline(offline, grace=0, terminate=False) == offline


def test_a_second_call_can_end_those_that_stayed_inside(routed: Routed) -> None:
    tenants = routed.tenants
    with tenants.connect(5) as holder, tenants.connect(150) as neighbour:
        holder.execute(select_one)
        neighbour.execute(select_one)
        offline = tenants.set_offline(tenants.get(5), grace=0, terminate=False)

        assert tenants.set_offline(offline, grace=0) == offline

        with pytest.raises((PartitaError, DBAPIError)) as raised:
            holder.execute(select_one)
        assert is_ended(raised.value)
        assert neighbour.execute(select_one).scalar() == 1


def test_a_standing_fence_refuses_a_client_that_ignores_the_status(on_postgres: Routed) -> None:
    mapping = on_postgres.tenants.get(5)
    with fenced(on_postgres) as fence, on_postgres.one.connect() as forger:
        assert fence.is_held
        forger.execute(
            text("UPDATE partita_local_mappings SET id = :id, status = 'online' WHERE low = :low"),
            {"id": mapping.id, "low": mapping.key_range.low},
        )
        forger.commit()
        assert forger.scalar(text("SELECT partita_enter(:id)"), {"id": mapping.id}) == "locked"
        forger.rollback()
        fence.close()
        assert forger.scalar(text("SELECT partita_enter(:id)"), {"id": mapping.id}) == "online"


def test_a_closed_fence_leaves_no_lock_behind(on_postgres: Routed) -> None:
    fence = fenced(on_postgres)
    fence.close()
    fence.close()
    with on_postgres.one.connect() as connection:
        query = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert connection.scalar(query) == 0


def test_a_fence_whose_session_was_ended_says_so(on_postgres: Routed) -> None:
    fence = fenced(on_postgres)
    with on_postgres.one.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE mode = 'ExclusiveLock'"
                " AND locktype = 'advisory'"
            )
        )
    assert not fence.is_held
    fence.close()


def test_locks_of_the_application_are_left_alone(on_postgres: Routed) -> None:
    mapping = on_postgres.tenants.get(5)
    with on_postgres.one.connect() as stranger:
        stranger.execute(
            text("SELECT pg_advisory_lock_shared(1, :number), pg_advisory_lock_shared(:number)"),
            {"number": int(mapping.id[:7], 16)},
        )
        fence = fenced(on_postgres)
        assert fence.terminated == 0
        assert stranger.scalar(select_one) == 1
        stranger.execute(text("SELECT pg_advisory_unlock_all()"))
        fence.close()


def test_two_movers_cannot_both_hold_the_fence(on_postgres: Routed) -> None:
    mapping, manager = on_postgres.tenants.get(5), on_postgres.manager
    with fenced(on_postgres), pytest.raises(OperationPendingError):
        offline.drain(
            manager.engines,
            manager.clock,
            mapping.shard.location,
            mapping.id,
            grace=0.0,
            terminate=False,
        )


@pytest.mark.parametrize(
    ("has_read", "refusal"), [(True, "database is locked"), (False, "StaleMapping")]
)
def test_another_process_that_was_inside_cannot_write_any_more(
    on_sqlite: Routed, has_read: bool, refusal: str
) -> None:
    with another_client(on_sqlite) as other, other.tenants.connect(5) as holder:
        # As in another process: this one's registry does not know the connection.
        pooled = holder.connection.driver_connection
        assert isinstance(pooled, revocable.RevocableConnection)
        pooled.mapping_id = None
        if has_read:
            holder.execute(select_one)
        assert fenced(on_sqlite).terminated == 0
        with pytest.raises((DBAPIError, StaleMappingError), match=refusal):
            holder.execute(insert(Note).values(tenant_id=5, id=1))
    assert on_sqlite.notes(on_sqlite.one) == []


def test_a_running_statement_is_interrupted(on_sqlite: Routed) -> None:
    endless = text(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers)"
        " SELECT count(*) FROM numbers"
    )
    errors: list[Exception] = []
    with on_sqlite.tenants.connect(5) as holder:

        def run() -> None:
            try:
                holder.execute(endless)
            except (DBAPIError, PartitaError) as error:
                errors.append(error)

        runner = threading.Thread(target=run)
        runner.start()
        assert fenced(on_sqlite, grace=0.2).terminated == 1
        runner.join()
    assert len(errors) == 1


def test_a_revoked_connection_is_sound_again_in_the_pool(on_sqlite: Routed) -> None:
    with on_sqlite.tenants.connect(5) as holder:
        holder.execute(select_one)
        fenced(on_sqlite).close()
        with pytest.raises(MappingOfflineError):
            holder.execute(select_one)
    with on_sqlite.tenants.connect(150) as connection:
        connection.execute(insert(Note).values(tenant_id=150, id=1))
        connection.commit()
    assert on_sqlite.notes(on_sqlite.one) == [(150, 1)]
