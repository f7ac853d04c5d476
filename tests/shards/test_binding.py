"""Sessions and connections cannot be bound past the router."""

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, insert, select

from partita.errors import TransactionUseError
from partita.shards import ShardMapManager
from partita.shards.connections import revocable
from support.routed import Note, Routed, a_shared_map, count_notes


@pytest.fixture
def routed() -> Iterator[Routed]:
    with a_shared_map("sqlite") as made:
        yield made


@pytest.fixture
def on_postgres() -> Iterator[Routed]:
    with a_shared_map() as made:
        yield made


def test_a_session_is_given_no_other_connection_by_its_bind_arguments(routed: Routed) -> None:
    elsewhere = create_engine(routed.two.location.text)
    with routed.tenants.sessionmaker()(5) as session:
        with pytest.raises(TransactionUseError, match="BindRefused"):
            session.connection(bind_arguments={"bind": elsewhere})
        with pytest.raises(TransactionUseError, match="BindRefused"):
            session.execute(select(1), bind_arguments={"bind": elsewhere})
        assert session.scalar(count_notes, bind_arguments={"mapper": Note}) == 0
    elsewhere.dispose()


def test_autocommit_is_refused_however_it_is_asked_for(on_postgres: Routed) -> None:
    with on_postgres.tenants.connect(5) as connection:
        connection.commit()
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(TransactionUseError, match="AutocommitRefused"):
            connection.execute(insert(Note).values(tenant_id=5, id=1))
    options = {"isolation_level": "AUTOCOMMIT"}
    with ShardMapManager.open(on_postgres.urls[0], engine_options=options) as manager:
        for validate in ("always", "lease"):
            with pytest.raises(TransactionUseError, match="AutocommitRefused"):
                manager.get_map("tenants").connect(5, validate=validate)
    assert on_postgres.notes(on_postgres.one) == []


def test_a_connection_of_another_map_is_not_adopted(routed: Routed) -> None:
    others = routed.manager.create_range_map("others", key=int)
    with routed.tenants.connect(5) as connection:
        with pytest.raises(TransactionUseError, match="BindRefused"):
            others.sessionmaker().adopt(connection)
        assert routed.tenants.sessionmaker().adopt(connection).scalar(count_notes) == 0


def test_a_connection_that_serves_another_mapping_by_now_is_not_revoked(routed: Routed) -> None:
    with routed.tenants.connect(5) as connection:
        (holder,) = revocable.serving(routed.tenants.get(5).id)
        connection.rollback()
    with routed.tenants.connect(150) as neighbour:
        assert neighbour.connection.driver_connection is holder
        holder.revoke(routed.tenants.get(5).id)
        assert neighbour.scalar(count_notes) == 0
