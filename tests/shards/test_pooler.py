"""PostgreSQL behind a pooler in transaction mode: what is refused, and what holds."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, make_url, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from partita.errors import (
    ConfigurationError,
    MappingOfflineError,
    MoveRefusedError,
    TransactionUseError,
)
from partita.shards import (
    Fleet,
    Location,
    Range,
    ShardedSchema,
    ShardMapManager,
)
from partita.shards.moving.move import MoveProgress, StopMove, list_moves
from shards.conftest import NewDatabase
from support import postgres
from support.pooler import TransactionPooler

UNPREPARED = {"connect_args": {"prepare_threshold": None}}
"""A prepared statement belongs to a session on the server."""


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


notes = select(Note.id).order_by(Note.id)


@pytest.fixture(params=["last", "rotating", "rotating two"])
def pooler(request: pytest.FixtureRequest) -> Iterator[TransactionPooler]:
    """Give poolers that lend the session used last, and that rotate all sessions, or two."""
    sessions_max = 2 if request.param == "rotating two" else 20
    with TransactionPooler(
        postgres.server().port, rotates=request.param != "last", sessions_max=sessions_max
    ) as pooler:
        yield pooler


@pytest.fixture
def rotating() -> Iterator[TransactionPooler]:
    with TransactionPooler(postgres.server().port, rotates=True) as pooler:
        yield pooler


class Pooled:
    """A map on two shards whose locations are the address of the pooler."""

    def __init__(self, pooler: TransactionPooler, new_postgres: NewDatabase) -> None:
        self.pooler = pooler
        urls = [pooler.url(new_postgres(name)) for name in ("catalog", "one", "two")]
        self.catalog_url = urls[0]
        self.manager = ShardMapManager.create(urls[0], engine_options=UNPREPARED)
        schema = ShardedSchema(Base.metadata, keys={"note": "tenant_id"})
        self.tenants = self.manager.create_range_map("tenants", key=int, schema=schema)
        self.one, self.two = (self.tenants.create_shard(url) for url in urls[1:])
        for shard in (self.one, self.two):
            with shard.connect() as connection:
                Base.metadata.create_all(connection)
                connection.commit()
        for mapped in (Range(0, 50), Range(50, 100)):
            self.tenants.create_mapping(mapped, self.one)

    def direct(self) -> ShardMapManager:
        """Open a manager that connects past the pooler; the catalog names the pooler."""

        def credentials(location: Location) -> URL:
            return make_url(location.text).set(port=postgres.server().port)

        return ShardMapManager.open(self.catalog_url, credentials=credentials)

    def write(self, tenant: int, number: int) -> None:
        with self.tenants.sessionmaker().begin(tenant) as session:
            session.add(Note(tenant_id=tenant, id=number))


@pytest.fixture
def pooled(pooler: TransactionPooler, new_postgres: NewDatabase) -> Iterator[Pooled]:
    found = Pooled(pooler, new_postgres)
    yield found
    found.manager.close()


@pytest.fixture
def rotated(rotating: TransactionPooler, new_postgres: NewDatabase) -> Iterator[Pooled]:
    found = Pooled(rotating, new_postgres)
    yield found
    found.manager.close()


def settings_of(found: Pooled) -> list[tuple[str, str]]:
    """Return what the next clients of the pooler find in the sessions of the source."""
    query = text(
        "SELECT current_setting('session_replication_role'), current_setting('search_path')"
    )
    held = [found.one.connect() for _ in range(2)]
    rows = [tuple(connection.execute(query).one()) for connection in held]
    for connection in held:
        connection.close()
    return rows


def test_a_move_through_the_pooler_is_refused_and_leaves_nothing(pooled: Pooled) -> None:
    pooled.write(5, 1)

    with pytest.raises(MoveRefusedError, match="TransactionPooler") as refused:
        Fleet(pooled.manager).move(pooled.tenants.get(5), to=pooled.two)

    assert refused.value.facts == {"shard": pooled.one.location.text}
    assert list_moves(pooled.manager) == []
    mapping = pooled.tenants.get(5, lookup="store")
    assert (mapping.shard, mapping.is_online) == (pooled.one, True)
    with pooled.tenants.lock(mapping):
        pass
    assert set(settings_of(pooled)) == {("origin", '"$user", public')}


def test_a_mover_with_a_direct_url_moves_what_pooled_sessions_write(rotated: Pooled) -> None:
    written = iter(range(1, 1000))
    rotated.write(5, 0)

    def write(progress: MoveProgress) -> None:
        if progress.step not in {"fence", "verify", "switch"}:
            rotated.write(5, next(written))

    with rotated.direct() as direct:
        at_home = direct.get_map("tenants")
        with at_home.get(5).shard.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.info.port == postgres.server().port != rotated.one.location.port
        report = Fleet(direct).move(at_home.get(5), to=rotated.two.location.text, on_progress=write)

    assert report.state == "done"
    expected = list(range(next(written)))
    with rotated.tenants.sessionmaker()(5) as session:
        assert session.scalars(notes).all() == expected
    with rotated.two.connect() as two, rotated.one.connect() as one:
        assert (two.scalars(notes).all(), one.scalars(notes).all()) == (expected, [])


def test_a_job_that_began_directly_is_not_resumed_through_the_pooler(rotated: Pooled) -> None:
    def stop(progress: MoveProgress) -> None:
        if progress.step == "copy":
            raise StopMove

    rotated.write(5, 1)
    with rotated.direct() as direct:
        at_home = direct.get_map("tenants")
        target = rotated.two.location.text
        job = Fleet(direct).move(at_home.get(5), to=target, on_progress=stop).job_id

        (report,) = Fleet(rotated.manager).resume()
        assert (report.job_id, report.state) == (job, "paused")
        assert "TransactionPooler" in report.error

        (report,) = Fleet(direct).resume()
        assert (report.job_id, report.state) == (job, "done")


def test_a_fan_out_through_the_pooler_reads_every_shard(rotated: Pooled) -> None:
    rotated.tenants.create_mapping(Range(100, 200), rotated.two)
    for tenant in (5, 55, 105):
        rotated.write(tenant, tenant)

    found = rotated.tenants.fan_out(select(Note.id), order_by="id")

    assert [row.id for row in found] == [5, 55, 105]


def test_pooled_transactions_are_admitted_and_refused_one_by_one(rotated: Pooled) -> None:
    tenants = rotated.tenants
    rotated.write(5, 1)
    with tenants.connect(5) as held:
        waiting = tenants.set_offline(tenants.get(5), grace=0.0, terminate=False)
        assert held.scalars(notes).all() == [1]
        with pytest.raises(MappingOfflineError):
            tenants.connect(5)
        rotated.write(50, 2)
    offline = tenants.set_offline(waiting, grace=5.0, terminate=False)

    tenants.set_online(offline)

    with tenants.connect(5) as connection:
        assert connection.scalars(notes).all() == [1, 2]


def test_an_upgrade_through_the_pooler_is_refused(
    rotated: Pooled, new_postgres: NewDatabase
) -> None:
    url = rotated.pooler.url(new_postgres("three"))
    with pytest.raises(ConfigurationError, match="TransactionPooler"):
        Fleet(rotated.manager, metadata=Base.metadata).add_shard(rotated.tenants, url)


def move(found: Pooled, tenant: int) -> None:
    with found.direct() as direct:
        at_home = direct.get_map("tenants")
        Fleet(direct).move(at_home.get(tenant), to=found.two.location.text)


def test_a_lease_through_the_pooler_is_validated_in_every_transaction(rotated: Pooled) -> None:
    rotated.write(5, 1)
    leased = rotated.tenants.sessionmaker(validate="lease")
    with leased(5) as session:
        assert session.scalars(notes).all() == [1]
        session.commit()

        move(rotated, 5)

        assert session.scalars(notes).all() == [1]
        assert session.connection().engine.url.database == rotated.two.location.database


def test_an_isolation_level_that_needs_a_session_is_refused(rotated: Pooled) -> None:
    rotated.write(5, 1)
    with rotated.one.connect() as one, rotated.one.connect() as two:
        for connection in (one, two):
            connection.execute(text("SELECT 1"))  # so that there are several sessions

    with pytest.raises(TransactionUseError, match="TransactionPooler"):
        rotated.tenants.connect(5, isolation_level="REPEATABLE READ")

    rotated.write(5, 2)
    move(rotated, 5)
    with rotated.tenants.connect(5) as connection:
        assert connection.scalars(notes).all() == [1, 2]
