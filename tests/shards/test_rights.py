"""PostgreSQL with a role for the application and one for the administrator: the least rights."""

from collections.abc import Iterator

import pytest
from psycopg import sql
from sqlalchemy import URL, func, make_url, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from partita.errors import OperationPendingError
from partita.shards import (
    Fleet,
    Location,
    Range,
    RangeShardMap,
    Retry,
    ShardedSchema,
    ShardMapManager,
)
from shards.conftest import NewDatabase
from support import postgres

ROLES = ("partita_test_application", "partita_test_administrator")
OF_THE_CATALOG = """
GRANT SELECT ON partita_store, partita_maps, partita_shards, partita_mappings TO {application}"""
OF_ONE_SHARD = """
GRANT SELECT ON partita_local_mappings TO {application};
GRANT SELECT, INSERT, UPDATE, DELETE ON note TO {application}"""


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True)


count = select(func.count()).select_from(Note)


@pytest.fixture
def roles() -> Iterator[tuple[str, str]]:
    for role in ROLES:
        postgres.server().execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    yield ROLES
    for role in ROLES:
        postgres.server().execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def grant(url: str, statements: str) -> None:
    database = make_url(url).database
    assert database is not None
    named = dict(zip(("application", "administrator"), map(sql.Identifier, ROLES), strict=True))
    with postgres.server()._connect(database) as connection:
        connection.execute(sql.SQL(statements).format(**named))


@pytest.fixture
def urls(roles: tuple[str, str], new_postgres: NewDatabase) -> list[str]:
    made = [new_postgres(name) for name in ("catalog", "one", "two")]
    for url in made:
        grant(url, "GRANT USAGE, CREATE ON SCHEMA public TO {administrator}")
        grant(url, "GRANT USAGE ON SCHEMA public TO {application}")
    return made


@pytest.fixture
def administrator(urls: list[str]) -> Iterator[ShardMapManager]:
    def login(location: Location) -> URL:
        return make_url(location.text).set(username=ROLES[1])

    with ShardMapManager.create(urls[0], credentials=login) as manager:
        schema = ShardedSchema(Base.metadata, keys={"note": "tenant_id"})
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        fleet = Fleet(manager, metadata=Base.metadata)
        fleet.add_shard(tenants, urls[1], mappings=[Range(0, 100)])
        fleet.add_shard(tenants, urls[2], mappings=[Range(100, 200)])
        grant(urls[0], OF_THE_CATALOG)
        for url in urls[1:]:
            grant(url, OF_ONE_SHARD)
        yield manager


@pytest.fixture
def tenants(urls: list[str], administrator: ShardMapManager) -> Iterator[RangeShardMap]:
    """Give the map as the application sees it."""

    def login(location: Location) -> URL:
        return make_url(location.text).set(username=ROLES[0])

    with ShardMapManager.open(urls[0], credentials=login) as manager:
        found = manager.get_map("tenants")
        assert isinstance(found, RangeShardMap)
        yield found


def test_the_application_needs_to_read_the_catalogs_only(tenants: RangeShardMap) -> None:
    with tenants.sessionmaker().begin(5) as session:
        assert session.scalar(select(func.current_user())) == ROLES[0]
        session.add(Note(tenant_id=5, id=1))
    with tenants.sessionmaker(validate="lease")(5) as session:
        assert session.scalar(count) == 1
    assert tenants.fan_out(count, reduce="sum", consistent=True).scalar() == 1


def test_the_owner_of_plain_tables_can_move_them(
    administrator: ShardMapManager, tenants: RangeShardMap
) -> None:
    with tenants.sessionmaker().begin(5) as session:
        session.add(Note(tenant_id=5, id=1))
    at_home = administrator.get_map("tenants")

    Fleet(administrator).move(at_home.get(5), to=at_home.get(150).shard)

    assert tenants.run(5, lambda session: session.scalar(count)) == 1
    assert tenants.get(5).shard == tenants.get(150).shard


def test_who_may_not_terminate_is_told_so_and_who_may_does(
    administrator: ShardMapManager, tenants: RangeShardMap
) -> None:
    at_home = administrator.get_map("tenants")
    with tenants.connect(5) as held, pytest.raises(OperationPendingError, match="MappingInUse"):
        at_home.set_offline(at_home.get(5), grace=0.1)
    assert held.closed
    at_home.set_online(at_home.get(5, lookup="store"))

    postgres.server().execute(
        sql.SQL("GRANT pg_signal_backend TO {}").format(sql.Identifier(ROLES[1]))
    )
    with pytest.raises(OperationalError, match="AdminShutdown"), tenants.connect(5):
        offline = at_home.set_offline(at_home.get(5), grace=0.1)
    at_home.set_online(offline)

    assert tenants.run(5, lambda session: session.scalar(count), retry=Retry()) == 0
