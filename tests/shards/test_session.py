"""Routed sessions: lazy, validated at every transaction, released at its end."""

import asyncio
import contextvars
from collections.abc import Iterator

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from partita.errors import (
    MappingNotFoundError,
    MappingOfflineError,
    PartitaError,
    StaleMappingError,
    TransactionUseError,
    UsageError,
)
from partita.shards.routing.session import RoutedSession
from support.routed import (
    ASYNC,
    SYNC,
    Note,
    Routed,
    a_shared_map,
    another_client,
    count_notes,
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


def checked_out(routed: Routed) -> int:
    pool = routed.manager.engines.for_location(routed.one.location, is_routed=True).pool
    return int(pool.status().rpartition(": ")[2])


def test_a_session_that_did_nothing_holds_no_connection(routed: Routed) -> None:
    with routed.tenants.sessionmaker()(5) as session:
        session.add(Note(tenant_id=5, id=1))
        assert checked_out(routed) == 0
        session.flush()
        assert checked_out(routed) == 1
        session.commit()
        assert checked_out(routed) == 0


def test_a_session_is_made_for_a_key_that_may_not_be_mapped_yet(routed: Routed) -> None:
    session = routed.tenants.sessionmaker()(500)
    with pytest.raises(MappingNotFoundError):
        session.execute(select_one)
    session.close()


def test_commit_writes_and_rollback_does_not(routed: Routed) -> None:
    make = routed.tenants.sessionmaker()
    with make(5) as session:
        session.add(Note(tenant_id=5, id=1))
        session.commit()
        session.add(Note(tenant_id=5, id=2))
        session.flush()
        session.rollback()
    assert routed.notes(routed.one) == [(5, 1)]


def test_a_block_that_fails_is_rolled_back_and_its_connection_released(routed: Routed) -> None:
    make = routed.tenants.sessionmaker()
    with pytest.raises(KeyError), make.begin(5) as session:  # noqa: PT012 - the block is tested
        session.add(Note(tenant_id=5, id=1))
        session.flush()
        raise KeyError
    assert routed.notes(routed.one) == []
    assert checked_out(routed) == 0


def test_a_failed_flush_leaves_a_usable_session(routed: Routed) -> None:
    with routed.tenants.sessionmaker()(5) as session:
        session.add(Note(tenant_id=5, id=1))
        session.commit()
        session.expunge_all()
        session.add(Note(tenant_id=5, id=1))
        with pytest.raises(IntegrityError):
            session.flush()
        session.rollback()
        assert session.scalar(count_notes) == 1


def test_savepoints_stay_on_the_validated_connection(routed: Routed) -> None:
    with routed.tenants.sessionmaker()(5) as session, session.begin():
        session.add(Note(tenant_id=5, id=1))
        with session.begin_nested() as savepoint:
            session.add(Note(tenant_id=5, id=2))
            session.flush()
            savepoint.rollback()
        assert checked_out(routed) == 1
    assert routed.notes(routed.one) == [(5, 1)]


def test_a_session_that_slept_through_a_move_is_rerouted_at_its_next_transaction(
    routed: Routed,
) -> None:
    with another_client(routed) as other:
        make = other.tenants.sessionmaker()
        with make(5) as untouched, make(5) as used:
            used.add(Note(tenant_id=5, id=1))
            used.commit()
            routed.move(5)
            assert untouched.scalars(select(Note.id)).all() == [1]
            used.add(Note(tenant_id=5, id=2))
            used.commit()
    assert routed.notes(routed.two) == [(5, 1), (5, 2)]
    assert routed.notes(routed.one) == []


def test_an_object_loaded_before_a_move_is_refreshed_from_the_new_shard(routed: Routed) -> None:
    with routed.tenants.sessionmaker()(5) as session:
        note = Note(tenant_id=5, id=1, said="before")
        session.add(note)
        session.commit()
        routed.move(5)
        with routed.two.connect() as unrouted:
            unrouted.execute(text("UPDATE note SET said = 'after'"))
            unrouted.commit()
        assert note.said == "after"


def test_a_session_whose_mapping_goes_offline_is_refused_and_works_again_later(
    routed: Routed,
) -> None:
    with routed.tenants.sessionmaker()(5) as session:
        offline = routed.tenants.set_offline(routed.tenants.get(5))
        with pytest.raises(MappingOfflineError):
            session.execute(select_one)
        session.rollback()
        routed.tenants.set_online(offline)
        assert session.scalar(select_one) == 1


def test_options_of_a_sessionmaker_are_handed_on(routed: Routed) -> None:
    make = routed.tenants.sessionmaker(expire_on_commit=False, info={"of": "all"})
    make.configure(autoflush=False)
    with make(5) as session:
        note = Note(tenant_id=5, id=1)
        session.add(note)
        assert session.scalar(count_notes) == 0
        session.commit()
        assert checked_out(routed) == 0
        assert note.id == 1
        assert checked_out(routed) == 0
        assert session.info == {"of": "all"}


async def test_options_of_an_async_sessionmaker_can_be_changed(arouted: Routed) -> None:
    make = arouted.tenants.async_sessionmaker(info={"of": "all"})
    make.configure(autoflush=False)
    async with make(5) as session:
        session.add(Note(tenant_id=5, id=1))
        assert await session.scalar(count_notes) == 0
        assert session.info == {"of": "all"}
    await arouted.manager.aclose()


def test_options_that_no_session_takes_are_refused_by_configure(routed: Routed) -> None:
    for make in (routed.tenants.sessionmaker(), routed.tenants.async_sessionmaker()):
        with pytest.raises(TransactionUseError, match="BindRefused"):
            make.configure(bind=routed.one)
        with pytest.raises(UsageError, match="UnknownValidation"):
            make.configure(validate="sometimes")
        assert make.options == {}


def test_an_adopted_session_has_the_key_of_its_connection(routed: Routed) -> None:
    with routed.tenants.connect(5) as connection:
        for session in (
            routed.tenants.sessionmaker().adopt(connection),
            RoutedSession.adopt(routed.tenants, connection),
        ):
            with session:
                assert session.key == 5


async def test_an_async_session_adopts_a_routed_connection(arouted: Routed) -> None:
    make = arouted.tenants.async_sessionmaker(info={"of": "all"})
    async with arouted.tenants.aconnect(5) as connection:
        async with make.adopt(connection, expire_on_commit=False) as session:
            assert isinstance(session.sync_session, RoutedSession)
            assert session.sync_session.key == 5
            assert session.info == {"of": "all"}
            assert not session.sync_session.expire_on_commit
            session.add(Note(tenant_id=5, id=1))
            await session.commit()
            assert await session.scalar(count_notes) == 1
        assert not connection.closed
        assert await connection.scalar(count_notes) == 1
    await arouted.manager.aclose()


async def test_an_async_session_closes_an_adopted_connection_when_asked_to(
    arouted: Routed,
) -> None:
    make = arouted.tenants.async_sessionmaker()
    async with arouted.tenants.aconnect(5) as connection:
        async with make.adopt(connection, close_connection=True) as session:
            await session.execute(select_one)
        assert connection.closed
    await arouted.manager.aclose()


async def test_an_async_session_adopts_no_connection_but_a_routed_one(arouted: Routed) -> None:
    engine = arouted.manager.engines.async_for_location(arouted.one.location, is_routed=False)
    make = arouted.tenants.async_sessionmaker()
    with pytest.raises(TransactionUseError, match="BindRefused"):
        make.adopt(engine.connect())
    async with engine.connect() as unrouted:
        with pytest.raises(TransactionUseError, match="BindRefused"):
            make.adopt(unrouted)
    await arouted.manager.aclose()


async def test_an_adopted_async_session_is_refused_once_its_mapping_is_offline(
    arouted: Routed,
) -> None:
    tenants = arouted.tenants
    make = tenants.async_sessionmaker()
    async with tenants.aconnect(5) as connection, make.adopt(connection) as session:
        await session.execute(select_one)
        await session.commit()
        await asyncio.to_thread(tenants.set_offline, tenants.get(5), grace=0)
        with pytest.raises((MappingOfflineError, StaleMappingError)):
            await session.execute(select_one)
    await arouted.manager.aclose()


def test_a_session_asks_for_its_isolation_level(routed: Routed) -> None:
    with routed.tenants.sessionmaker(isolation_level="SERIALIZABLE")(5) as session:
        assert session.connection().get_isolation_level() == "SERIALIZABLE"


def test_a_scope_gets_the_session_of_its_key(routed: Routed) -> None:
    tenant: contextvars.ContextVar[int] = contextvars.ContextVar("tenant")
    scope: contextvars.ContextVar[int] = contextvars.ContextVar("scope")
    registry = routed.tenants.scoped_session(scope.get, tenant.get)
    for number, key in ((1, 5), (2, 250)):
        scope.set(number)
        tenant.set(key)
        registry.add(Note(tenant_id=key, id=1))
        registry.commit()
        assert registry() is registry()
        registry.remove()
    assert (routed.notes(routed.one), routed.notes(routed.two)) == ([(5, 1)], [(250, 1)])


def test_a_scope_whose_key_changes_under_its_session_is_refused(routed: Routed) -> None:
    tenant: contextvars.ContextVar[int] = contextvars.ContextVar("tenant")
    registry = routed.tenants.scoped_session(lambda: 1, tenant.get)
    tenant.set(5)
    registry.execute(select_one)
    registry.rollback()
    tenant.set(250)
    with pytest.raises(TransactionUseError, match="SessionKeyChanged"):
        registry.execute(select_one)
    registry.remove()
    assert registry.scalar(select_one) == 1
    registry.remove()


async def test_async_sessions_write_to_the_shards_of_their_keys(arouted: Routed) -> None:
    make = arouted.tenants.async_sessionmaker()
    for tenant in (5, 150, 250):
        async with make(tenant) as session, session.begin():
            session.add(Note(tenant_id=tenant, id=1))
    async with make.begin(5) as session:
        assert await session.scalar(count_notes) == 2
    assert arouted.notes(arouted.one) == [(5, 1), (150, 1)]
    assert arouted.notes(arouted.two) == [(250, 1)]
    await arouted.manager.aclose()


async def test_an_async_session_that_slept_through_a_move_is_rerouted(arouted: Routed) -> None:
    with another_client(arouted) as other:
        async with other.tenants.async_sessionmaker()(5) as session:
            session.add(Note(tenant_id=5, id=1))
            await session.commit()
            arouted.move(5)
            session.add(Note(tenant_id=5, id=2))
            await session.commit()
        await other.manager.aclose()
    assert arouted.notes(arouted.two) == [(5, 1), (5, 2)]


async def test_an_async_unit_of_work_of_a_moved_key_fails_and_changes_nothing(
    arouted: Routed,
) -> None:
    async with arouted.tenants.async_sessionmaker()(5) as session:
        session.add(Note(tenant_id=5, id=1))
        await session.flush()
        arouted.move(5, grace=0.0)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the driver's or ours
            await session.commit()
        assert isinstance(raised.value, PartitaError) or raised.value.connection_invalidated  # type: ignore[attr-defined]
    assert arouted.notes(arouted.one) == arouted.notes(arouted.two) == []
    await arouted.manager.aclose()
