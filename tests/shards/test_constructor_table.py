"""How a plain session's constructor becomes a routed one: a test for each row of the table.

The rule of all rows: the connection is a function of map and key, and nobody hands one in.
"""

import contextvars
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from partita.errors import TransactionUseError
from partita.shards.routing.session import RoutedSession
from support.routed import (
    ASYNC,
    SYNC,
    Base,
    Note,
    Routed,
    a_shared_map,
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


def test_session_of_an_engine_becomes_session_of_map_and_key(routed: Routed) -> None:
    with RoutedSession(routed.tenants, 5) as session, session.begin():
        session.add(Note(tenant_id=5, id=1))
    with routed.tenants.sessionmaker()(5) as session:
        assert session.scalar(count_notes) == 1


def test_session_of_a_url_has_no_routed_form(routed: Routed) -> None:
    engine = create_engine(routed.urls[1])
    with pytest.raises(TransactionUseError, match="BindRefused"):
        routed.tenants.sessionmaker(bind=engine)
    with pytest.raises(TransactionUseError, match="BindRefused"):
        routed.tenants.sessionmaker(binds={Note: engine})
    with pytest.raises(TransactionUseError, match="BindRefused"):
        routed.tenants.sessionmaker()(5, bind=engine)
    with pytest.raises(TransactionUseError, match="BindRefused") as raised:
        RoutedSession(routed.tenants, 5, bind=engine)
    assert "adopt" in raised.value.hint
    engine.dispose()


def test_a_session_without_a_map_is_refused() -> None:
    with pytest.raises(TransactionUseError, match="BindRefused"):
        RoutedSession()


def test_model_and_configuration_are_passed_through(routed: Routed) -> None:
    class Polite(Session):
        def greet(self) -> str:
            return "good morning"

    make = routed.tenants.sessionmaker(class_=Polite, info={"a": 1}, expire_on_commit=False)
    with make(5) as session:
        assert isinstance(session, Polite)
        assert isinstance(session, RoutedSession)
        assert session.greet() == "good morning"
        assert session.info == {"a": 1}
        assert not session.expire_on_commit
        Base.metadata.create_all(session.connection())


def test_two_phases_and_join_modes_are_refused(routed: Routed) -> None:
    for option in ({"twophase": True}, {"join_transaction_mode": "create_savepoint"}):
        with pytest.raises(TransactionUseError, match="BindRefused"):
            routed.tenants.sessionmaker(**option)


def test_a_connection_that_routing_did_not_make_is_refused(routed: Routed) -> None:
    with routed.one.connect() as unrouted, pytest.raises(TransactionUseError, match="BindRefused"):
        RoutedSession.adopt(routed.tenants, unrouted)


def test_a_routed_connection_is_adopted_and_stays_open_for_its_owner(routed: Routed) -> None:
    with routed.tenants.connect(5) as connection:
        with routed.tenants.sessionmaker().adopt(connection) as session:
            session.add(Note(tenant_id=5, id=1))
            session.commit()
        assert not connection.closed
        assert connection.scalar(count_notes) == 1


def test_a_routed_connection_is_closed_by_the_session_that_owns_it(routed: Routed) -> None:
    connection = routed.tenants.connect(5)
    with RoutedSession.adopt(routed.tenants, connection, close_connection=True) as session:
        session.add(Note(tenant_id=5, id=1))
        session.commit()
        session.add(Note(tenant_id=5, id=2))
        session.commit()
    assert connection.closed
    assert routed.notes(routed.one) == [(5, 1), (5, 2)]


def test_a_framework_session_becomes_a_scope_with_a_key(routed: Routed) -> None:
    request: contextvars.ContextVar[int] = contextvars.ContextVar("request")
    request.set(5)
    scoped = routed.tenants.scoped_session(request.get, request.get)
    scoped.add(Note(tenant_id=5, id=1))
    scoped.commit()
    scoped.remove()
    assert routed.notes(routed.one) == [(5, 1)]


async def test_an_async_session_of_an_engine_becomes_one_of_map_and_key(arouted: Routed) -> None:
    async with arouted.tenants.async_sessionmaker()(5) as session:
        assert isinstance(session, AsyncSession)
        assert isinstance(session.sync_session, RoutedSession)
        assert await session.scalar(select_one) == 1
    await arouted.manager.aclose()


async def test_an_async_session_takes_no_bind_either(arouted: Routed) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(TransactionUseError, match="BindRefused"):
        arouted.tenants.async_sessionmaker(bind=engine)
    with pytest.raises(TransactionUseError, match="BindRefused"):
        arouted.tenants.async_sessionmaker()(5, bind=engine)
    await engine.dispose()


async def test_a_subclass_of_the_async_session_is_passed_through(arouted: Routed) -> None:
    class Polite(AsyncSession):
        async def greet(self) -> str:
            return "good morning"

    async with arouted.tenants.async_sessionmaker(class_=Polite)(5) as session:
        assert isinstance(session, Polite)
        assert await session.greet() == "good morning"
        assert isinstance(session.sync_session, RoutedSession)


def test_schema_deployment_is_the_one_way_past_routing(routed: Routed) -> None:
    with routed.one.connect() as unrouted:
        Base.metadata.create_all(unrouted)
        unrouted.commit()
        assert unrouted.scalar(count_notes) == 0
