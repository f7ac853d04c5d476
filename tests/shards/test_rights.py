"""PostgreSQL with a role for the application and one for the administrator: the least rights."""

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, func, make_url, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from partita.errors import MoveRefusedError, OperationPendingError
from partita.shards import (
    Fleet,
    Location,
    Range,
    RangeShardMap,
    Retry,
    ShardedSchema,
    ShardMapManager,
)
from partita.shards.moving.move import MoveProgress
from shards.conftest import NewDatabase
from support import postgres

ROLES = ("partita_test_application", "partita_test_administrator")
OF_THE_CATALOG = """
GRANT SELECT ON partita_store, partita_maps, partita_shards, partita_mappings TO {application}"""
OF_ONE_SHARD = """
GRANT SELECT ON partita_local_mappings TO {application};
GRANT SELECT, INSERT, UPDATE, DELETE ON note, part, deed TO {application}"""
LOOT = """
CREATE TABLE {schema}.loot (who text);
GRANT INSERT ON {schema}.loot TO PUBLIC;
CREATE FUNCTION {schema}.steal() RETURNS boolean LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO {schema}.loot VALUES (current_user); RETURN true; END $$;
"""
"""What an attacker wants: that its function runs with the permissions of another role."""
TYPES_OF_KEYS = ("uuid", "int4", "text", "bytea", "date", "timestamptz", "interval", "numeric")
OVERLOADS = """
CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE sql
  AS 'SELECT public.steal()::int::bigint';
CREATE FUNCTION public.starts_with(name, text) RETURNS boolean LANGUAGE sql
  AS 'SELECT public.steal()';
CREATE FUNCTION public.pg_try_advisory_lock(integer) RETURNS boolean LANGUAGE sql
  AS 'SELECT public.steal()';
CREATE FUNCTION public.pg_terminate_backend(smallint) RETURNS boolean LANGUAGE sql
  AS 'SELECT public.steal()';
CREATE FUNCTION public.joined(name, name) RETURNS text LANGUAGE sql
  AS 'SELECT public.steal()::text';
CREATE OPERATOR public.|| (LEFTARG = name, RIGHTARG = name, FUNCTION = public.joined);
CREATE FUNCTION public.is_less(oid, integer) RETURNS boolean LANGUAGE sql
  AS 'SELECT public.steal()';
CREATE OPERATOR public.< (LEFTARG = oid, RIGHTARG = integer, FUNCTION = public.is_less);
"""
"""Functions and operators that fit the arguments of a query better than PostgreSQL's own."""


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True)


class Part(Base):
    __tablename__ = "part"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)


class Deed(Base):
    __tablename__ = "deed"
    owner: Mapped[UUID] = mapped_column(primary_key=True)


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
        keys = {"note": "tenant_id", "part": "tenant_id"}
        schema = ShardedSchema(Base.metadata, keys=keys)
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


def log_in(url: str) -> psycopg.Connection:
    """Connect as the application, past routing."""
    address = make_url(url)
    assert address.port is not None
    return psycopg.connect(
        host=address.host,
        port=address.port,
        dbname=address.database,
        user=ROLES[0],
        autocommit=True,
    )


def test_a_writer_cannot_run_its_code_as_the_mover_by_types_in_pg_temp(
    administrator: ShardMapManager, urls: list[str]
) -> None:
    schema = ShardedSchema(Base.metadata, keys={"deed": "owner"})
    owners = administrator.create_range_map("owners", key=UUID, schema=schema)
    one, two = (owners.create_shard(url) for url in urls[1:])
    mapping = owners.create_mapping(Range(UUID(int=0), None), one)
    found: list[object] = []

    def attack(progress: MoveProgress) -> None:
        if progress.step != "copy" or found:
            return
        with log_in(urls[1]) as attacker:
            attacker.execute(sql.SQL(LOOT).format(schema=sql.SQL("pg_temp")))
            for name in TYPES_OF_KEYS:
                attacker.execute(
                    f"CREATE DOMAIN pg_temp.{name} AS pg_catalog.{name} CHECK (pg_temp.steal())"
                )
            attacker.execute("INSERT INTO deed VALUES (%s)", (UUID(int=7),))
            attacker.execute("UPDATE deed SET owner = %s", (UUID(int=8),))
            found.append(attacker.execute("SELECT DISTINCT who FROM pg_temp.loot").fetchall())

    Fleet(administrator).move(mapping, to=two, on_progress=attack)

    assert found == [[]]
    with owners.sessionmaker()(UUID(int=8)) as session:
        assert session.scalars(select(Deed.owner)).all() == [UUID(int=8)]


def test_every_function_that_a_shard_gets_searches_pg_temp_last(
    administrator: ShardMapManager, urls: list[str]
) -> None:
    at_home = administrator.get_map("tenants")
    settings: dict[str, list[str] | None] = {}

    def look(progress: MoveProgress) -> None:
        if progress.step == "copy":
            with log_in(urls[1]) as connection:
                settings.update(
                    connection.execute(
                        "SELECT regexp_replace(proname, '[0-9a-f]{12}', 'JOB'), proconfig "
                        "FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
                    ).fetchall()
                )

    Fleet(administrator).move(at_home.get(5), to=at_home.get(150).shard, on_progress=look)

    safe = ["search_path=pg_catalog, pg_temp"]
    assert settings == {
        "partita_enter": safe,
        "partita_outbox_JOB_0": safe,
        "partita_outbox_JOB_1": safe,
    }


def test_who_may_create_functions_in_the_schema_does_not_run_them_as_the_mover(
    administrator: ShardMapManager, tenants: RangeShardMap, urls: list[str]
) -> None:
    at_home = administrator.get_map("tenants")
    with tenants.sessionmaker().begin(5) as session:
        session.add_all([Note(tenant_id=5, id=1), Part(tenant_id=5, name="a")])
    for url in urls:
        grant(url, "GRANT CREATE ON SCHEMA public TO {application}")
        with log_in(url) as attacker:
            attacker.execute(sql.SQL(LOOT).format(schema=sql.SQL("public")))
            attacker.execute(OVERLOADS)

    Fleet(administrator).move(at_home.get(5), to=at_home.get(150).shard)

    for url in urls:
        with log_in(url) as attacker:
            assert attacker.execute("SELECT DISTINCT who FROM public.loot").fetchall() == []


def test_an_outbox_that_another_role_has_created_stops_the_move(
    administrator: ShardMapManager, urls: list[str]
) -> None:
    at_home = administrator.get_map("tenants")
    grant(urls[1], "GRANT CREATE ON SCHEMA public TO {application}")

    def attack(point: str) -> None:
        if point != "move capture table 0":
            return
        with log_in(urls[1]) as attacker:
            query = "SELECT tgname FROM pg_trigger WHERE tgname ~ '^partita_outbox_.*_0$'"
            (first,) = attacker.execute(query).fetchall()
            name = sql.Identifier(first[0][:-1] + "1")
            attacker.execute(
                sql.SQL("CREATE VIEW {} AS SELECT 1 AS partita_tx, 1 AS tenant_id").format(name)
            )

    administrator.executor.fault = attack
    with pytest.raises(MoveRefusedError, match="belongs to another role"):
        Fleet(administrator).move(at_home.get(5), to=at_home.get(150).shard)
    assert at_home.get(5, lookup="store").shard.location.text == urls[1]
