"""What a stranger tried and an adversary looked for: nothing goes round routing."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from typing import cast
from uuid import UUID, uuid5

import pytest
from sqlalchemy import (
    Column,
    Executable,
    Float,
    Integer,
    MetaData,
    Table,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.types import Uuid

from partita.errors import (
    CatalogMismatchError,
    ConfigurationError,
    InvalidRequestError,
    MappingOfflineError,
    RangeError,
    TransactionUseError,
    UsageError,
)
from partita.shards import Fleet, Range, Retry, ShardedSchema, ShardMapManager
from partita.shards.connections import revocable
from partita.shards.connections.engines import location_of
from partita.shards.fan_out.owned_rows import OwnedRows
from partita.shards.fan_out.plan import fan_out_plan
from partita.shards.fan_out.threads import _ThreadStream
from partita.shards.keys.mapping import Location
from partita.shards.keys.ranges import KeyRange, encode_range
from partita.shards.keys.schema import ShardedTable
from partita.shards.keys.shard_key import key_type
from shards.conftest import NewDatabase
from shards.routed import Base, Note, Routed, a_shared_map, count_notes
from shards.shop import Blog, Shop, a_shared_shop


@pytest.fixture
def routed() -> Iterator[Routed]:
    with a_shared_map("sqlite") as made:
        yield made


@pytest.fixture
def on_postgres() -> Iterator[Routed]:
    with a_shared_map() as made:
        yield made


@pytest.fixture
def shop() -> Iterator[Shop]:
    with a_shared_shop("sqlite") as made:
        yield made


# --- nothing goes round routing -------------------------------------------------------------------


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


# --- units of work --------------------------------------------------------------------------------


def test_what_a_unit_of_work_committed_by_itself_is_not_repeated(routed: Routed) -> None:
    tries = []

    def work(session: Session) -> None:
        tries.append(1)
        session.add(Note(tenant_id=5, id=len(tries)))
        session.commit()
        raise MappingOfflineError("MappingOffline", "between two commits")

    with pytest.raises(MappingOfflineError):
        routed.tenants.run(5, work, retry=Retry(first=0.001))

    assert routed.notes(routed.one) == [(5, 1)]
    with pytest.raises(MappingOfflineError):
        routed.tenants.run(5, work, retry=Retry(first=0.001, tries=2), idempotent=True)
    assert routed.notes(routed.one) == [(5, 1), (5, 2), (5, 3)]


def test_a_savepoint_is_no_commit_and_the_unit_of_work_is_repeated(routed: Routed) -> None:
    tries = []

    def work(session: Session) -> None:
        tries.append(1)
        with session.begin_nested():
            session.add(Note(tenant_id=5, id=1))
        if len(tries) < 2:
            raise MappingOfflineError("MappingOffline", "after a savepoint")

    routed.tenants.run(5, work, retry=Retry(first=0.001))

    assert routed.notes(routed.one) == [(5, 1)]


async def a_coroutine(_session: object) -> None: ...


def test_a_coroutine_function_is_no_unit_of_work_of_run(routed: Routed) -> None:
    with pytest.raises(UsageError, match="NotAUnitOfWork"):
        routed.tenants.run(5, a_coroutine)  # type: ignore[unused-coroutine]
    with pytest.raises(UsageError, match="NotAUnitOfWork"):
        routed.tenants.run(5, lambda session: (note for note in session.scalars(select(Note))))


async def test_a_plain_function_is_no_unit_of_work_of_arun(routed: Routed) -> None:
    def plain(_session: AsyncSession) -> int:
        return 1

    with pytest.raises(UsageError, match="NotAUnitOfWork"):
        await routed.tenants.arun(5, plain)  # type: ignore[arg-type]
    await routed.manager.aclose()


def test_routed_without_the_name_of_the_argument_is_refused(routed: Routed) -> None:
    def work(_session: Session, tenant_id: int) -> int:
        return tenant_id

    with pytest.raises(UsageError, match="RoutedArgumentMissing"):
        routed.tenants.routed(work)  # type: ignore[arg-type]


def test_a_wrong_way_to_validate_is_told_where_it_is_written(routed: Routed) -> None:
    with pytest.raises(UsageError, match="UnknownValidation"):
        routed.tenants.sessionmaker(validate="allways")


# --- fan-out --------------------------------------------------------------------------------------


def test_rows_are_ordered_by_floating_numbers(shop: Shop) -> None:
    tenth = (Blog.tenant_id / 10.0).cast(Float)
    rows = shop.fan_out(select(Blog.tenant_id), order_by=tenth.desc(), limit=3)
    assert [row.tenant_id for row in rows] == [201, 150, 42]


def test_shards_of_a_fan_out_may_be_named_by_their_urls(shop: Shop) -> None:
    rows = shop.fan_out(select(Blog.tenant_id), shards=[shop.urls[0], shop.shards[2].location])
    assert sorted(row.tenant_id for row in rows) == [1, 42, 201]


@pytest.mark.parametrize("options", [{"keys": "tenants"}, {"limit": "2"}, {"workers": 1.5}])
def test_an_option_of_another_type_is_refused(shop: Shop, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="InvalidFanOutOption"):
        shop.fan_out(select(Blog.tenant_id), **options)


def test_a_stream_that_is_interrupted_leaves_no_noise_in_the_log(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    stream = _ThreadStream(0, fan_out_plan(shop.map, select(Blog.tenant_id), {}))
    stream.open()
    stream.reader.execute()
    stream.interrupt()
    stream.release()
    assert caplog.records == []


def test_a_result_that_nobody_reads_gives_its_connections_back(shop: Shop) -> None:
    result = shop.fan_out(select(Blog.tenant_id))
    run = result._run
    del result
    gc.collect()
    while run._open or run._working:
        time.sleep(0.005)
    pool = shop.manager.engines.for_location(shop.shards[0].location).pool
    assert pool.status().endswith("connections: 0")


# --- whose rows are these -------------------------------------------------------------------------


def owned(table: Table, key: type, *ranges: Range) -> OwnedRows:
    kind = key_type(key)
    key_ranges = tuple(encode_range(each, kind) for each in ranges)
    sharded = ShardedTable(schema=None, table=table.name, columns=("k",))
    return OwnedRows((sharded,), kind, key_ranges, ranges, kind.encode, table.metadata)


def rows_of(table: Table, owned_rows: OwnedRows, keys: list[object]) -> list[object]:
    with create_engine("sqlite://").connect() as connection:
        table.create(connection)
        connection.execute(insert(table), [{"k": key} for key in keys])
        restricted = cast("Executable", owned_rows.restrict(select(table.c.k), connection))
        return list(connection.scalars(restricted))


def test_a_row_without_a_key_hides_no_others() -> None:
    table = Table("t", MetaData(), Column("k", Uuid))
    mine = uuid5(UUID(int=0), "mine")
    whole = owned(table, UUID, Range(None, None))
    hashed = OwnedRows(whole.tables, whole.key_type, (KeyRange(),), (), whole.position_of)
    assert rows_of(table, hashed, [mine, None]) == [mine]


@pytest.mark.parametrize("name", ['we"ird', "50%", "Select", "a b"])
def test_tables_with_odd_names_are_restricted_too(name: str) -> None:
    table = Table(name, MetaData(), Column("k", Integer))
    assert rows_of(table, owned(table, int, Range(0, 10)), [5, 50]) == [5]


def test_bounds_may_be_greater_than_the_column_holds() -> None:
    with a_shared_shop() as shop:
        mapping = shop.map.mappings()[2]
        shop.map.create_mapping(Range(mapping.range.high, 2**62), mapping.shard)
        found = shop.fan_out(select(Blog.tenant_id), consistent=True, order_by=Blog.tenant_id)
        assert [row.tenant_id for row in found] == [1, 42, 150, 201]


def test_a_statement_with_expressions_of_its_own_is_restricted_before_them(shop: Shop) -> None:
    named = select(Blog.tenant_id).cte("named")
    statement = select(named.c.tenant_id).add_cte(select(Blog.id).cte("unused"))
    view = shop.map.mappings()[0]
    restricted = OwnedRows(
        (ShardedTable(schema=None, table="blog", columns=("tenant_id",)),),
        key_type(int),
        (view.key_range,),
        (view.range,),
        shop.map.encode_key,
    )
    with shop.shards[0].connect() as connection:
        written = str(restricted.restrict(statement, connection))
    assert written.index("blog AS") < written.index("unused AS") < written.index("named AS")


# --- mistakes are told ----------------------------------------------------------------------------


def test_a_declarative_base_is_taken_for_its_metadata() -> None:
    schema = ShardedSchema(Base, keys={"note": "tenant_id"})  # type: ignore[arg-type]
    assert schema == ShardedSchema(Base.metadata, keys={"note": "tenant_id"})


def test_one_range_or_one_text_is_no_list_of_mappings(new_sqlite: NewDatabase) -> None:
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        names = manager.create_list_map("names", key=str)
        fleet = Fleet(manager, metadata=Base.metadata)
        with pytest.raises(RangeError, match="InvalidRange"):
            fleet.add_shard(names, new_sqlite("one"), mappings="acme")
        with pytest.raises(RangeError, match="InvalidRange"):
            fleet.add_shard(names, new_sqlite("one"), mappings=Range("a", "b"))  # type: ignore[arg-type]
        assert names.shards() == []


def test_a_shard_may_be_named_by_its_url_where_one_is_wanted(new_sqlite: NewDatabase) -> None:
    schema = ShardedSchema(Base.metadata, keys={"note": "tenant_id"})
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        fleet = Fleet(manager, metadata=Base.metadata)
        fleet.add_shard(tenants, new_sqlite("one"))
        two = fleet.add_shard(tenants, new_sqlite("two"))
        mapping = tenants.create_mapping(Range(0, 10), new_sqlite("one"))
        assert fleet.move(mapping, to=new_sqlite("two")).state == "done"
        assert tenants.get(5).shard == two


def test_an_empty_database_in_the_place_of_a_shard_is_told(new_sqlite: NewDatabase) -> None:
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        tenants = manager.create_range_map("tenants", key=int)
        fleet = Fleet(manager, metadata=Base)  # type: ignore[arg-type]
        shard = fleet.add_shard(tenants, new_sqlite("one"), mappings=[Range(0, 10)])
        with shard.connect() as connection:
            connection.exec_driver_sql("DROP TABLE partita_local_mappings")
            connection.commit()
        with pytest.raises(CatalogMismatchError, match="LocalCatalogDiffers"):
            tenants.run(5, lambda session: session.scalar(count_notes))


def test_the_users_of_a_server_are_put_into_no_error(on_postgres: Routed) -> None:
    def credentials(location: Location) -> str | None:
        is_shard = location != location_of(on_postgres.urls[0])
        return "postgresql://nobody_here@host/" if is_shard else None

    with ShardMapManager.open(on_postgres.urls[0], credentials=credentials) as manager:
        looked = Fleet(manager, metadata=Base.metadata).status().shards
        assert all("cannot be reached" in str(each.error) for each in looked)
        assert "nobody_here" not in "".join(str(each.error) for each in looked)


def test_a_login_that_cannot_be_read_is_not_repeated(on_postgres: Routed) -> None:
    def credentials(_location: object) -> str:
        return "postgresql://app:hidden:thing@host:not-a-port/"

    url = on_postgres.urls[0]
    with pytest.raises(ConfigurationError) as caught:
        ShardMapManager.open(url, credentials=credentials)
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- engines --------------------------------------------------------------------------------------


def test_a_forked_child_opens_connections_of_its_own(on_postgres: Routed) -> None:
    def backend(key: int) -> int:
        with on_postgres.tenants.connect(key) as connection:
            return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)

    mine, (reading, writing) = backend(5), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(backend(5)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)

    with os.fdopen(reading) as told:
        assert int(told.read()) != mine
    assert backend(5) == mine


def test_closing_in_one_event_loop_leaves_the_engines_of_another(routed: Routed) -> None:
    engines = routed.manager.engines
    location = routed.one.location
    may_end, made = threading.Event(), threading.Event()
    kept: list[bool] = []

    async def live() -> None:
        engine = engines.async_for_location(location)
        made.set()
        await asyncio.to_thread(may_end.wait)
        kept.append(engines.async_for_location(location) is engine)
        await engines.adispose()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    made.wait()
    asyncio.run(engines.adispose())
    may_end.set()
    thread.join()
    assert kept == [True]
