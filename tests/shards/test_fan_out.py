"""One statement on many shards: SQLite files and real PostgreSQL databases."""

import gc
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, Integer, MetaData, String, Table, func, make_url, select
from sqlalchemy.orm import Mapped, mapped_column, selectinload

from partita.clock import ManualClock
from partita.errors import (
    InvalidRequestError,
    MappingNotFoundError,
    NotSupportedError,
    OperationPendingError,
    SchemaMismatchError,
    ShardError,
    ShardNotFoundError,
    UnknownOptionError,
)
from partita.shards.connections.idle_connections import IDLE_CONNECTIONS_MAX
from partita.shards.connections.worker_threads import WorkerThreads
from partita.shards.fan_out import gathering, owned_rows
from partita.shards.fan_out.fan_out import FanOutResult, fan_out
from partita.shards.fan_out.gathering import FanOutEvent
from partita.shards.fan_out.merging import Reduce
from partita.shards.fan_out.shard_reader import BATCH_ROWS
from partita.shards.fan_out.threads import ThreadRun
from partita.shards.keys.mapping import Shard
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import HashShardMap, ListShardMap, RangeShardMap
from shards.conftest import NewDatabase
from support import postgres
from support.repeats import repeat
from support.shop import Base, Blog, Post, Shop, a_shared_shop, a_shop, nap


@pytest.fixture(params=["sqlite", "psycopg"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Give one whose rows and views the test may change, but not its tables."""
    with a_shared_shop(request.param) as made:
        yield made
    assert _until(lambda: _threads() == [])


@pytest.fixture
def fresh_shop(database_urls: NewDatabase) -> Iterator[Shop]:
    """Give one whose tables the test may change."""
    with a_shop(database_urls) as made:
        yield made
    assert _until(lambda: _threads() == [])


@pytest.fixture
def postgres_shop() -> Iterator[Shop]:
    with a_shared_shop() as made:
        yield made
    assert _until(lambda: _threads() == [])


@pytest.fixture(scope="module")
def sqlite_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Give one that all tests share: they may not change it."""
    folder = tmp_path_factory.mktemp("sqlite_shop")
    with a_shop(lambda name: f"sqlite:///{folder / name}.db") as made:
        yield made


@pytest.fixture(scope="module")
def still_postgres_shop() -> Iterator[Shop]:
    with a_shop(postgres.postgres_url) as made:
        yield made


@pytest.fixture(params=["sqlite", "psycopg"])
def still_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Give one that all tests share: they may not change it."""
    made: Shop = request.getfixturevalue(
        "sqlite_shop" if request.param == "sqlite" else "still_postgres_shop"
    )
    yield made
    assert _until(lambda: _threads() == [])


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("partita-fan-out")]


def _until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def _rests(run: ThreadRun) -> bool:
    """Say whether no worker has anything to do before the caller takes rows."""
    with run._changed:
        is_running = any(stream.running_since is not None for stream in run._streams)
        return not (is_running or run._ready or run._unstarted)


def _only_error(group: ExceptionGroup[Any]) -> ShardError:
    (error,) = group.exceptions
    assert isinstance(error, ShardError)
    return error


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["complete", "partial"])
def test_rows_of_all_shards_come_once(still_shop: Shop, policy: str) -> None:
    rows = still_shop.fan_out(select(Blog.tenant_id, Blog.name), policy=policy)

    assert sorted((row.tenant_id, row.name) for row in rows) == [
        (1, "blog of 1"),
        (42, "blog of 42"),
        (150, "blog of 150"),
        (201, "blog of 201"),
    ]
    assert rows.errors == {}
    rows.raise_if_incomplete()


@pytest.mark.parametrize("policy", ["complete", "partial"])
def test_no_rows_are_no_failure(still_shop: Shop, policy: str) -> None:
    rows = still_shop.fan_out(select(Blog.name).where(Blog.tenant_id < 0), policy=policy)

    assert rows.all() == []
    assert rows.errors == {}


@pytest.mark.parametrize("wanted", [(1,), (150,), (201,), (1, 201), (150, 201)])
def test_shards_without_rows_may_stand_anywhere(still_shop: Shop, wanted: tuple[int, ...]) -> None:
    rows = still_shop.fan_out(select(Blog.tenant_id).where(Blog.tenant_id.in_(wanted)))

    assert sorted(row.tenant_id for row in rows) == list(wanted)


def test_rows_are_sqlalchemy_rows(still_shop: Shop) -> None:
    row = still_shop.fan_out(select(Blog.tenant_id, Blog.name).where(Blog.tenant_id == 42)).all()[0]

    tenant, name = row
    assert (tenant, name) == (42, "blog of 42")
    assert row._mapping["name"] == row[1] == row.name


def test_fan_outs_are_counted(still_shop: Shop) -> None:
    before = still_shop.manager.counters["fan_outs"]
    still_shop.fan_out(select(Blog.tenant_id)).all()
    still_shop.fan_out(select(Blog.tenant_id)).close()
    assert still_shop.manager.counters["fan_outs"] == before + 2


def test_rows_can_be_iterated_once(still_shop: Shop) -> None:
    rows = still_shop.fan_out(select(Blog.tenant_id))

    assert len(list(rows)) == 4
    assert list(rows) == []


def test_many_rows_stream_through_bounded_buffers(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        with shop.shards[number].connect() as connection:
            connection.execute(
                sa.insert(Blog),
                [{"tenant_id": 100 * number + 99, "id": i, "name": "x"} for i in range(3_000)],
            )
            connection.commit()
    most = 0
    offer = gathering.Gathering.offer

    def watched(self: gathering.Gathering, index: int, rows: list[Any]) -> None:
        nonlocal most
        offer(self, index, rows)
        most = max(most, self._merge.held(index))

    monkeypatch.setattr(gathering.Gathering, "offer", watched)
    rows = shop.fan_out(select(Blog.tenant_id, Blog.id))
    first = next(rows)
    time.sleep(0.2)

    seen = {tuple(first), *(tuple(row) for row in rows)}

    assert len(seen) == 9_004
    assert most <= gathering.BUFFERED_ROWS + BATCH_ROWS


def test_more_shards_than_workers_are_asked_one_after_the_other(still_shop: Shop) -> None:
    running, most = 0, 0

    def count(event: FanOutEvent) -> None:
        nonlocal running, most
        running += 1 if event.kind == "began" else -1
        most = max(most, running)

    rows = still_shop.fan_out(select(Blog.tenant_id), workers=1, on_event=count)

    assert len(rows.all()) == 4
    assert most == 1


def test_an_ordered_merge_needs_no_thread_for_each_shard(still_shop: Shop) -> None:
    rows = still_shop.fan_out(select(Blog.tenant_id), order_by=Blog.tenant_id, workers=1)

    assert [row.tenant_id for row in rows] == [1, 42, 150, 201]


def test_a_closed_result_gives_no_more_rows(still_shop: Shop) -> None:
    with still_shop.fan_out(select(Blog.tenant_id)) as rows:
        next(rows)

    assert list(rows) == []
    assert _until(lambda: _threads() == [])


def test_a_second_fan_out_starts_no_thread(
    fresh_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = fresh_shop.manager.engines.workers
    start = workers.start

    def start_beside_idle_threads(work: Callable[[], None], name: str) -> None:
        # A thread that has done its work becomes idle a moment later; without this wait the
        # second half of a fan-out may start a new one. The name counts the busy workers.
        busy = int(name.rpartition("-")[2])
        assert _until(lambda: workers.idle == workers.started - busy)
        start(work, name)

    monkeypatch.setattr(workers, "start", start_beside_idle_threads)

    for _ in range(4):
        fresh_shop.fan_out(select(Blog.tenant_id)).all()
        assert workers.started == 3


def test_idle_threads_end_with_their_manager(fresh_shop: Shop) -> None:
    before = set(threading.enumerate())
    with ShardMapManager.open(fresh_shop.manager.location.text) as manager:
        workers = manager.engines.workers
        manager.get_map("tenants").fan_out(select(Blog.tenant_id)).all()
        assert _until(lambda: workers.idle == workers.started)

    assert workers.idle == 0
    assert set(threading.enumerate()) <= before


def test_idle_threads_end_with_a_manager_that_nobody_closed() -> None:
    before = set(threading.enumerate())
    pools, done = [WorkerThreads()], threading.Event()
    pools[0].start(done.set, "partita-fan-out-0")
    assert done.wait(60)
    assert _until(lambda: pools[0].idle == 1)
    pools.clear()
    gc.collect()
    assert _until(lambda: set(threading.enumerate()) <= before)


def test_small_fan_outs_of_files_check_no_connection_out_of_a_pool(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        shop.fan_out(select(Blog.tenant_id)).all()
        checked_out: list[object] = []
        for shard in shop.shards:
            pool = shop.manager.engines.for_location(shard.location).pool
            sa.event.listen(pool, "checkout", lambda *_: checked_out.append(1))

        for _ in range(3):
            assert len(shop.fan_out(select(Blog.tenant_id)).all()) == 4

        assert checked_out == []


def test_a_connection_that_is_kept_sees_what_was_written_since(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        before = shop.fan_out(select(func.count()).select_from(Blog)).all()
        shop.run(0, "DELETE FROM blog")
        after = shop.fan_out(select(func.count()).select_from(Blog)).all()

    assert sorted(row[0] for row in before) == [1, 1, 2]
    assert sorted(row[0] for row in after) == [0, 1, 1]


def test_connections_that_are_kept_close_with_their_manager(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        engines = shop.manager.engines
        shop.fan_out(select(Blog.tenant_id)).all()
        engine = engines.for_location(shop.shards[0].location)
        kept = engines.idle.take(engine)
        assert kept is not None
        assert engines.idle.keep(kept)

        shop.manager.close()

        assert kept.closed
        assert engines.idle.take(engine) is None


def test_no_more_connections_are_kept_than_the_limit(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        engine = shop.manager.engines.for_location(shop.shards[0].location)
        idle, made = shop.manager.engines.idle, [engine.connect() for _ in range(5)]

        assert [idle.keep(each) for each in made] == [True] * IDLE_CONNECTIONS_MAX + [False]
        made[-1].close()


def test_a_program_that_wants_no_pool_keeps_no_connection(new_sqlite: NewDatabase) -> None:
    with (
        a_shop(new_sqlite) as shop,
        ShardMapManager.open(
            shop.manager.location.text, engine_options={"poolclass": sa.NullPool}
        ) as manager,
    ):
        manager.get_map("tenants").fan_out(select(Blog.tenant_id)).all()
        engine = manager.engines.for_location(shop.shards[0].location)

        assert manager.engines.idle.take(engine) is None


def test_a_fan_out_reads_the_shards_once_per_epoch(fresh_shop: Shop) -> None:
    with _statements(fresh_shop.manager.executor.engine) as asked:
        fresh_shop.fan_out(select(Blog.tenant_id)).all()
        first = len(asked)
        fresh_shop.fan_out(select(Blog.tenant_id)).all()

        assert first > 0
        assert len(asked) == first


def test_a_fan_out_asks_a_shard_that_another_process_added(
    fresh_shop: Shop, database_urls: NewDatabase
) -> None:
    assert len(fresh_shop.fan_out(select(Blog.tenant_id)).all()) == 4
    with ShardMapManager.open(fresh_shop.manager.location.text) as other:
        shard_map = other.get_map("tenants")
        assert isinstance(shard_map, RangeShardMap)
        added = shard_map.create_shard(database_urls("added"))
        with added.connect() as connection:
            Base.metadata.create_all(connection)
            connection.execute(sa.insert(Blog).values(tenant_id=900, id=1, name="new"))
            connection.commit()
        shard_map.create_mapping(Range(900, 1000), added)

    found = {row.tenant_id for row in fresh_shop.fan_out(select(Blog.tenant_id))}
    assert found == {1, 42, 150, 201, 900}


def test_declared_types_are_read_once_per_schema_of_a_connection(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        engine = shop.manager.engines.for_location(shop.shards[0].location)
        with _statements(engine) as asked:

            def read() -> int:
                asked.clear()
                shop.fan_out(select(Blog.tenant_id, Blog.name), shards=shop.shards[:1]).all()
                return sum("table_info" in statement for statement in asked)

            assert read() == 1
            assert read() == 0
            shop.run(0, "ALTER TABLE blog ADD COLUMN more TEXT")
            assert read() == 1
            assert read() == 0


@pytest.mark.parametrize(("rows", "has_cursor"), [(BATCH_ROWS, False), (BATCH_ROWS + 1, True)])
def test_only_more_rows_than_a_batch_need_a_cursor_on_the_server(
    postgres_shop: Shop, rows: int, has_cursor: bool
) -> None:
    series = select(func.generate_series(1, rows).label("n"))
    engine = postgres_shop.manager.engines.for_location(postgres_shop.shards[0].location)
    seen: list[bool] = []

    def look(*arguments: Any) -> None:
        seen.append(bool(arguments[4]._is_server_side))

    sa.event.listen(engine, "before_cursor_execute", look)
    found = postgres_shop.fan_out(series, shards=postgres_shop.shards[:1]).all()
    sa.event.remove(engine, "before_cursor_execute", look)

    assert [row.n for row in found] == list(range(1, rows + 1))
    assert any(seen) is has_cursor


@contextmanager
def _statements(engine: sa.Engine) -> Iterator[list[str]]:
    """Give the statements that SQLAlchemy executes on the engine."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        asked.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def test_a_result_that_nobody_holds_ends_its_threads(shop: Shop) -> None:
    shop.make_naps(0, 1, 2)

    rows = shop.fan_out(select(nap.c.n))
    assert len(_threads()) == 3
    del rows
    gc.collect()

    assert _until(lambda: _threads() == [])


def test_the_first_row_does_not_wait_for_the_slowest_shard(shop: Shop) -> None:
    shop.make_naps(1)

    with shop.fan_out(select(nap.c.n)) as rows:
        assert [next(rows).n, next(rows).n] == [1, 1]
        assert rows.errors == {}


def test_text_with_columns_can_be_fanned_out(still_shop: Shop) -> None:
    statement = sa.text("SELECT tenant_id, name FROM blog WHERE tenant_id < :most").columns(
        Column("tenant_id", Integer), Column("name", String)
    )

    rows = still_shop.fan_out(statement.bindparams(most=100), order_by=sa.desc("tenant_id"))

    assert [tuple(row) for row in rows] == [(42, "blog of 42"), (1, "blog of 1")]


def test_a_union_can_be_fanned_out(still_shop: Shop) -> None:
    low = select(Blog.tenant_id).where(Blog.tenant_id < 10)
    high = select(Blog.tenant_id).where(Blog.tenant_id > 200)

    rows = still_shop.fan_out(sa.union_all(low, high), shard_column="_shard")

    assert {(row.tenant_id, row._shard) for row in rows} == {
        (1, still_shop.shards[0].location.text),
        (201, still_shop.shards[2].location.text),
    }


# --- which shards ---------------------------------------------------------------------------------


def test_only_the_given_shards_are_asked_each_once(still_shop: Shop) -> None:
    given = (shard for shard in (still_shop.shards[0], still_shop.shards[2], still_shop.shards[0]))

    rows = still_shop.fan_out(select(Blog.tenant_id), shards=given)

    assert sorted(row.tenant_id for row in rows) == [1, 42, 201]


def test_only_the_shards_of_the_keys_are_asked(still_shop: Shop) -> None:
    rows = still_shop.fan_out(select(Blog.tenant_id), keys=[1, 42, 201])

    assert sorted(row.tenant_id for row in rows) == [1, 42, 201]


@pytest.mark.parametrize("count", [3, 40])
def test_each_shard_receives_its_own_keys(still_shop: Shop, count: int) -> None:
    keys = [1, 150, 201, *range(60, 60 + count - 3)]
    mine = Blog.tenant_id.in_(sa.bindparam("keys", expanding=True))
    asked: list[object] = []

    rows = still_shop.fan_out(
        select(Blog.tenant_id).where(mine), keys=keys, on_event=lambda e: asked.append(e.shard)
    )

    assert sorted(row.tenant_id for row in rows) == [1, 150, 201]
    assert set(asked) == set(still_shop.shards)


def test_keys_are_looked_up_in_the_catalog_not_in_the_cache(shop: Shop) -> None:
    other = ShardMapManager.open(shop.manager.location.text)
    stale = other.get_map("tenants")
    stale.get(42)
    shop.carry(shop.map.get(42), to=shop.shards[2])

    rows = fan_out(stale, select(Blog.tenant_id), keys=[42])

    assert 42 in {row.tenant_id for row in rows}
    other.close()


@pytest.mark.parametrize("keys", [[999], list(range(950, 999))])
def test_a_key_without_a_mapping_is_refused(still_shop: Shop, keys: list[int]) -> None:
    with pytest.raises(MappingNotFoundError):
        still_shop.fan_out(select(Blog.tenant_id), keys=keys)


@pytest.mark.parametrize("options", [{"shards": []}, {"keys": []}])
def test_a_fan_out_to_no_shard_is_refused(still_shop: Shop, options: dict[str, Any]) -> None:
    with pytest.raises(ShardNotFoundError) as raised:
        still_shop.fan_out(select(Blog.tenant_id), **options)

    assert raised.value.code == "NoShards"


def test_shards_and_keys_together_are_refused(sqlite_shop: Shop) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        sqlite_shop.fan_out(select(Blog.tenant_id), keys=[1], shards=sqlite_shop.shards)

    assert raised.value.code == "ShardsAndKeys"


# --- statements that are refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        sa.insert(Blog),
        sa.update(Blog),
        sa.delete(Blog),
        sa.text("DELETE FROM blog"),
        sa.insert(Blog).returning(Blog.id),
    ],
)
def test_only_a_select_can_be_fanned_out(sqlite_shop: Shop, statement: sa.Executable) -> None:
    with pytest.raises(NotSupportedError) as raised:
        sqlite_shop.fan_out(statement)

    assert raised.value.code == "NotASelect"


def test_rows_cannot_be_locked(sqlite_shop: Shop) -> None:
    with pytest.raises(NotSupportedError) as raised:
        sqlite_shop.fan_out(select(Blog.id).with_for_update())

    assert raised.value.code == "LocksInFanOut"


def test_a_select_that_writes_changes_nothing(postgres_shop: Shop) -> None:
    shop = postgres_shop
    removes = "FUNCTION removes() RETURNS int AS 'DELETE FROM blog; SELECT 1' LANGUAGE sql"
    for number in range(3):
        shop.run(number, f"CREATE OR REPLACE {removes}")

    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(select(func.removes())).all()

    assert "ReadOnly" in repr(raised.value.exceptions[0].__cause__)
    assert len(shop.fan_out(select(Blog.id)).all()) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "most"},
        {"workers": 0},
        {"limit": -1},
        {"timeout": 0},
        {"shard_timeout": -1},
    ],
)
def test_options_out_of_range_are_refused(sqlite_shop: Shop, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        sqlite_shop.fan_out(select(Blog.id), **options)

    assert raised.value.code == "InvalidFanOutOption"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"polcy": "partial"}, "Write policy=."),
        ({"params": {"tenant": 1}}, "statement.params("),
        ({"nonsense": True}, "Use one of "),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_an_unknown_option_is_refused(
    sqlite_shop: Shop, options: dict[str, Any], hint: str
) -> None:
    for ask in (sqlite_shop.map.fan_out, sqlite_shop.map.afan_out):
        with pytest.raises(UnknownOptionError, match=next(iter(options))) as raised:
            ask(select(Blog.id), **options)

        assert isinstance(raised.value, TypeError)
        assert raised.value.code == "UnknownOption"
        assert hint in raised.value.hint


# --- shard column, order, limit -------------------------------------------------------------------


def test_the_shard_column_is_the_last(still_shop: Shop) -> None:
    rows = still_shop.fan_out(
        select(Blog.tenant_id), shard_column="_shard", order_by=Blog.name.desc(), limit=2
    )

    assert [tuple(row) for row in rows] == [
        (42, still_shop.shards[0].location.text),
        (201, still_shop.shards[2].location.text),
    ]


def test_a_shard_column_cannot_hide_another(sqlite_shop: Shop) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        sqlite_shop.fan_out(select(Blog.name), shard_column="name")

    assert raised.value.code == "ShardColumnTaken"


def test_rows_are_merged_in_one_order(still_shop: Shop) -> None:
    rows = still_shop.fan_out(select(Blog.tenant_id, Blog.name), order_by=["tenant_id"])

    assert [row.tenant_id for row in rows] == [1, 42, 150, 201]


@pytest.mark.parametrize(
    "order_by",
    [sa.desc("tenant_id"), Blog.tenant_id.desc(), [Blog.id, Blog.tenant_id.desc()]],
)
def test_the_limit_holds_over_all_shards(still_shop: Shop, order_by: Any) -> None:
    rows = still_shop.fan_out(select(Blog.tenant_id), order_by=order_by, limit=3)

    assert [tuple(row) for row in rows] == [(201,), (150,), (42,)]


def test_a_limit_without_an_order_gives_any_rows(still_shop: Shop) -> None:
    assert len(still_shop.fan_out(select(Blog.tenant_id), limit=3).all()) == 3
    assert still_shop.fan_out(select(Blog.tenant_id), limit=0).all() == []


def test_rows_can_be_ordered_by_what_is_not_selected(still_shop: Shop) -> None:
    rows = still_shop.fan_out(select(Blog.name), order_by=-Blog.tenant_id)

    assert [tuple(row) for row in rows] == [(f"blog of {n}",) for n in (201, 150, 42, 1)]


def test_text_is_ordered_by_code_point_whatever_the_collation(shop: Shop) -> None:
    names = ["a", "B", "é", "Z", "\U0001f600", "\uffff", "b", ""]
    for number in range(3):
        with shop.shards[number].connect() as connection:
            connection.execute(sa.delete(Blog))
            connection.execute(
                sa.insert(Blog),
                [{"tenant_id": number, "id": i, "name": n} for i, n in enumerate(names)],
            )
            connection.commit()

    rows = shop.fan_out(select(Blog.name), order_by=Blog.name)

    assert [row.name for row in rows] == [name for name in sorted(names) for _ in range(3)]


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (Blog.name, False),
        (Blog.name.desc(), True),
        (Blog.name.nulls_first(), True),
        (Blog.name.desc().nulls_last(), False),
    ],
)
def test_nulls_are_greatest_unless_their_end_is_named(
    shop: Shop, order: sa.ColumnElement[Any], first: bool
) -> None:
    for number in range(3):
        with shop.shards[number].connect() as connection:
            connection.execute(sa.insert(Blog), [{"tenant_id": number, "id": 9, "name": None}])
            connection.commit()

    names = [row.name for row in shop.fan_out(select(Blog.name), order_by=order)]

    assert len(names) == 7
    assert (names[:3] if first else names[4:]) == [None, None, None]


def test_distinct_rows_can_be_ordered(still_shop: Shop) -> None:
    rows = still_shop.fan_out(select(Blog.name).distinct(), order_by="name", limit=2)

    assert [row.name for row in rows] == ["blog of 1", "blog of 150"]


@pytest.mark.parametrize(
    ("statement", "options", "code"),
    [
        (select(Blog.id).order_by(Blog.id), {"order_by": Blog.id}, "OrderGivenTwice"),
        (select(Blog.id).limit(3), {"limit": 3}, "OrderGivenTwice"),
        (select(Blog.id).offset(3), {"order_by": Blog.id}, "OrderGivenTwice"),
        (select(Blog.id), {"order_by": "age"}, "OrderColumnUnknown"),
        (select(Blog.id), {"order_by": 7}, "OrderNotAColumn"),
        (select(Blog.id), {"order_by": sa.cast(Blog.id, sa.JSON)}, "OrderNotMergeable"),
        (select(Blog.id), {"order_by": Blog.name.collate("C")}, "OrderNotMergeable"),
        (select(Blog.id).group_by(Blog.id), {"order_by": Blog.name}, "OrderNotSelected"),
        (select(Blog).distinct(), {"order_by": Blog.name}, "OrderedDistinctEntities"),
    ],
)
def test_orders_that_cannot_be_merged_are_refused(
    sqlite_shop: Shop, statement: Any, options: dict[str, Any], code: str
) -> None:
    with pytest.raises((InvalidRequestError, NotSupportedError)) as raised:
        sqlite_shop.fan_out(statement, **options)

    assert raised.value.code == code


# --- reducing -------------------------------------------------------------------------------------


def test_counts_are_added_over_the_shards(still_shop: Shop) -> None:
    assert still_shop.fan_out(select(func.count(Blog.id)), reduce="count").scalar() == 4


@pytest.mark.parametrize(("kind", "expected"), [("sum", 394), ("min", 1), ("max", 201)])
def test_sums_minima_and_maxima_hold_over_the_shards(
    still_shop: Shop, kind: str, expected: int
) -> None:
    aggregate = getattr(func, kind)(Blog.tenant_id)

    assert still_shop.fan_out(select(aggregate), reduce=kind).scalar() == expected


def test_groups_of_all_shards_become_one_row_each(still_shop: Shop) -> None:
    parity = (Blog.tenant_id % 2).label("odd")
    statement = select(
        parity, func.count().label("blogs"), func.max(Blog.tenant_id).label("last")
    ).group_by(parity)

    rows = still_shop.fan_out(statement, reduce=Reduce.count("blogs") & Reduce.max("last")).all()

    assert {(row.odd, row.blogs, row.last) for row in rows} == {(0, 2, 150), (1, 2, 201)}


def test_reduced_rows_are_ordered_and_cut_at_the_end(still_shop: Shop) -> None:
    ones = (Blog.tenant_id % 10).label("ones")
    statement = select(ones, func.count().label("n")).group_by(ones)

    rows = still_shop.fan_out(
        statement, reduce={"n": "sum"}, order_by=[sa.desc("n"), "ones"], limit=2
    )

    assert [tuple(row) for row in rows] == [(1, 2), (0, 1)]


def test_an_average_cannot_be_reduced(sqlite_shop: Shop) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        sqlite_shop.fan_out(select(func.avg(Blog.id)), reduce="avg")

    assert raised.value.code == "ReduceUnknown"


def test_a_reduction_of_an_unknown_column_is_the_callers_error(still_shop: Shop) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        still_shop.fan_out(select(Blog.id, Blog.name), reduce=Reduce.sum("total")).all()

    assert raised.value.code == "ReduceColumnUnknown"


# --- entities -------------------------------------------------------------------------------------


def test_entities_come_detached_with_their_shard_as_identity_token(still_shop: Shop) -> None:
    blogs = [row.Blog for row in still_shop.fan_out(select(Blog), order_by=Blog.tenant_id)]

    assert [blog.name for blog in blogs] == [f"blog of {n}" for n in (1, 42, 150, 201)]
    tokens = [sa.inspect(blog).identity_token for blog in blogs]
    assert tokens == [still_shop.shards[n].location.text for n in (0, 0, 1, 2)]
    assert all(sa.inspect(blog).detached for blog in blogs)


def test_relationships_are_loaded_in_the_statement(shop: Shop) -> None:
    for number, tenant in enumerate((42, 150, 201)):
        with shop.shards[number].connect() as connection:
            connection.execute(
                sa.insert(Post), [{"tenant_id": tenant, "id": i, "blog_id": 1} for i in range(2)]
            )
            connection.commit()

    rows = shop.fan_out(select(Blog).options(selectinload(Blog.posts)))

    posts = {row.Blog.tenant_id: len(row.Blog.posts) for row in rows}
    assert posts == {1: 0, 42: 2, 150: 2, 201: 2}


def test_many_entities_stream(shop: Shop) -> None:
    with shop.shards[1].connect() as connection:
        connection.execute(
            sa.insert(Blog), [{"tenant_id": 160, "id": i, "name": "x"} for i in range(1_200)]
        )
        connection.commit()

    rows = shop.fan_out(select(Blog))

    assert len({(row.Blog.tenant_id, row.Blog.id) for row in rows}) == 1_204


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_dead_shard_fails_a_complete_fan_out(shop: Shop, number: int) -> None:
    shop.kill(number)

    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(select(Blog.tenant_id)).all()

    error = _only_error(raised.value)
    assert error.code == "ShardFailed"
    assert error.shard == shop.shards[number]
    assert isinstance(error.cause, sa.exc.OperationalError)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_dead_shard_leaves_the_rows_of_the_others(shop: Shop, number: int) -> None:
    shop.kill(number)

    rows = shop.fan_out(select(Blog.tenant_id), policy="partial")

    expected = [tenant for tenant in (1, 42, 150, 201) if tenant // 100 != number]
    assert sorted(row.tenant_id for row in rows) == expected
    assert set(rows.errors) == {shop.shards[number]}
    with pytest.raises(ExceptionGroup) as raised:
        rows.raise_if_incomplete()
    assert _only_error(raised.value) is rows.errors[shop.shards[number]]


def test_an_ordered_merge_goes_on_without_a_dead_shard(shop: Shop) -> None:
    shop.kill(1)

    rows = shop.fan_out(select(Blog.tenant_id), policy="partial", order_by="tenant_id")

    assert [row.tenant_id for row in rows] == [1, 42, 201]
    assert set(rows.errors) == {shop.shards[1]}


def test_a_reduction_goes_on_without_a_dead_shard(shop: Shop) -> None:
    shop.kill(2)

    rows = shop.fan_out(select(func.count(Blog.id)), policy="partial", reduce="count")

    assert rows.scalar() == 3
    assert set(rows.errors) == {shop.shards[2]}


@pytest.mark.parametrize("policy", ["complete", "partial"])
def test_a_failure_on_all_shards_is_raised_in_both_policies(still_shop: Shop, policy: str) -> None:
    missing = Table("missing", MetaData(), Column("n", Integer))

    with pytest.raises(ExceptionGroup) as raised:
        still_shop.fan_out(select(missing.c.n), policy=policy).all()

    assert {type(error) for error in raised.value.exceptions} == {ShardError}
    if policy == "partial":
        assert len(raised.value.exceptions) == 3


def test_no_server_at_the_address_is_the_shards_error(postgres_shop: Shop) -> None:
    shop = postgres_shop
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shop.manager.engines.dispose()
    wrong = re.sub(r":\d+/", f":{port}/", shop.urls[1])
    dead = type(shop.shards[1])(
        id="0" * 32,
        map_name="tenants",
        location=type(shop.shards[1].location).from_url(make_url(wrong)),
    )

    rows = shop.fan_out(select(Blog.tenant_id), policy="partial", shards=[shop.shards[0], dead])

    assert sorted(row.tenant_id for row in rows) == [1, 42]
    assert set(rows.errors) == {dead}


def test_errors_name_the_shard_but_no_values(still_shop: Shop) -> None:
    statement: Any = select(sa.literal("secret-value").label("x"), sa.literal_column("nothing"))

    with pytest.raises(ExceptionGroup) as raised:
        still_shop.fan_out(statement).all()

    error = raised.value.exceptions[0]
    assert "secret-value" not in str(error)
    assert str(error).startswith("ShardFailed: The shard failed: ")


def test_an_error_in_the_middle_of_a_stream_is_found(shop: Shop) -> None:
    is_sqlite = shop.is_sqlite
    for number in range(3):
        bad = "abs(-9223372036854775808)" if is_sqlite else "1 / 0"
        worst = bad if number == 1 else "0"
        numbers = (
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 2000)"
            f" SELECT x, CASE WHEN x = 1500 THEN {worst} ELSE x END AS n FROM c"
            if is_sqlite
            else "SELECT x, CASE WHEN x = 1500 THEN "
            + ("1 / (x - 1500)" if number == 1 else "0")
            + " ELSE x END AS n FROM generate_series(1, 2000) AS x"
        )
        shop.run(number, f"CREATE VIEW nap AS {numbers}")

    rows = shop.fan_out(select(nap.c.n), policy="partial")

    assert 4_000 <= len(rows.all()) < 6_000
    assert set(rows.errors) == {shop.shards[1]}
    with pytest.raises(ExceptionGroup):
        shop.fan_out(select(nap.c.n)).all()


def test_a_connection_that_died_in_the_pool_is_replaced(postgres_shop: Shop) -> None:
    assert len(postgres_shop.fan_out(select(Blog.id)).all()) == 4
    for url in postgres_shop.urls:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    assert len(postgres_shop.fan_out(select(Blog.id)).all()) == 4


# --- other schemas --------------------------------------------------------------------------------


def _other_type(shop: Shop, number: int) -> None:
    shop.run(
        number,
        "DROP TABLE post",
        "DROP TABLE blog",
        "CREATE TABLE blog (tenant_id INTEGER, id INTEGER, name INTEGER)",
        f"INSERT INTO blog VALUES ({100 * number}, 1, 7)",
    )


def test_a_shard_with_other_column_types_is_refused(fresh_shop: Shop) -> None:
    shop = fresh_shop
    _other_type(shop, 1)

    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(select(Blog.tenant_id, Blog.name)).all()

    causes = [error.__cause__ for error in raised.value.exceptions]
    assert {type(cause) for cause in causes} == {SchemaMismatchError}


def test_a_shard_with_other_column_types_is_listed(fresh_shop: Shop) -> None:
    shop = fresh_shop
    _other_type(shop, 2)

    rows = shop.fan_out(
        select(Blog.tenant_id, Blog.name),
        policy="partial",
        workers=1,
        order_by="tenant_id",
        shards=shop.shards,
    )

    assert [row.tenant_id for row in rows] == [1, 42, 150]
    assert set(rows.errors) == {shop.shards[2]}
    assert isinstance(rows.errors[shop.shards[2]].cause, SchemaMismatchError)


def test_entities_of_another_schema_are_refused_too(fresh_shop: Shop) -> None:
    shop = fresh_shop
    _other_type(shop, 2)

    rows = shop.fan_out(select(Blog), policy="partial", workers=1, shards=shop.shards)

    assert sorted(row.Blog.tenant_id for row in rows) == [1, 42, 150]
    assert isinstance(rows.errors[shop.shards[2]].cause, SchemaMismatchError)


def test_a_shard_with_other_column_names_is_refused(fresh_shop: Shop) -> None:
    shop = fresh_shop
    statement = sa.text("SELECT * FROM blog").columns()
    shop.run(1, "ALTER TABLE blog RENAME COLUMN name TO title")

    rows = shop.fan_out(statement, policy="partial", workers=1, shards=shop.shards)

    assert len(rows.all()) == 3
    assert isinstance(rows.errors[shop.shards[1]].cause, SchemaMismatchError)


def test_a_shard_without_the_column_fails(fresh_shop: Shop) -> None:
    shop = fresh_shop
    shop.run(1, "ALTER TABLE blog RENAME COLUMN name TO title")

    rows = shop.fan_out(select(Blog.name), policy="partial")

    assert len(rows.all()) == 3
    assert set(rows.errors) == {shop.shards[1]}


# --- time -----------------------------------------------------------------------------------------


def test_a_slow_shard_is_cancelled_and_named(shop: Shop) -> None:
    shop.make_naps(1)
    limit_begins = shop.hold_time_until_success_of(0, 2)

    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(select(nap.c.n), shard_timeout=1.0, on_event=limit_begins).all()

    error = _only_error(raised.value)
    assert (error.code, error.shard) == ("ShardTimedOut", shop.shards[1])
    assert isinstance(error.cause, TimeoutError)
    assert _until(shop.is_quiet)


def test_a_slow_shard_leaves_the_rows_of_the_others(shop: Shop) -> None:
    shop.make_naps(1)
    limit_begins = shop.hold_time_until_success_of(0, 2)

    rows = shop.fan_out(select(nap.c.n), shard_timeout=1.0, policy="partial", on_event=limit_begins)

    assert [row.n for row in rows] == [1, 1]
    assert {shard: error.code for shard, error in rows.errors.items()} == {
        shop.shards[1]: "ShardTimedOut"
    }
    assert _until(shop.is_quiet)


def test_the_whole_fan_out_has_a_time_limit(shop: Shop) -> None:
    shop.make_naps(0, 2)
    limit_begins = shop.hold_time_until_success_of(1)

    rows = shop.fan_out(select(nap.c.n), timeout=1.0, policy="partial", on_event=limit_begins)

    assert [row.n for row in rows] == [1]
    assert set(rows.errors) == {shop.shards[0], shop.shards[2]}
    assert _until(shop.is_quiet)


def test_shards_that_never_had_their_turn_are_out_of_time_too(shop: Shop) -> None:
    shop.make_naps(0)

    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(select(nap.c.n), timeout=0.3, workers=1, shards=shop.shards).all()

    assert len(raised.value.exceptions) == 3
    assert all(str(error).startswith("ShardTimedOut") for error in raised.value.exceptions)


def test_the_callers_own_time_does_not_count(shop: Shop) -> None:
    with shop.shards[0].connect() as connection:
        connection.execute(
            sa.insert(Blog), [{"tenant_id": 50, "id": i, "name": "x"} for i in range(4_000)]
        )
        connection.commit()
    shop.manager.executor.clock = clock = ManualClock()
    rows = shop.fan_out(select(Blog.tenant_id), timeout=5.0, shard_timeout=5.0)

    next(rows)
    assert _until(lambda: _rests(rows._run))
    assert rows._run._streams[0] in rows._run._open, "it waits for the caller"
    clock.advance(10)

    assert len(rows.all()) == 4_003


def test_a_failure_cancels_the_shards_that_still_work(shop: Shop) -> None:
    shop.make_naps(0, 2)
    shop.run(1, "DROP VIEW nap")
    events: list[tuple[str, object]] = []

    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(select(nap.c.n), on_event=lambda e: events.append((e.kind, e.shard))).all()

    assert _only_error(raised.value).shard == shop.shards[1]
    assert ("failed", shop.shards[1]) in events
    assert {shard for kind, shard in events if kind == "cancelled"} == {
        shop.shards[0],
        shop.shards[2],
    }
    assert _until(shop.is_quiet)


def test_closing_cancels_what_runs(shop: Shop) -> None:
    shop.make_naps(0, 1, 2)

    rows = shop.fan_out(select(nap.c.n))
    assert len(_threads()) == 3
    rows.close()

    assert _until(lambda: _threads() == [])
    assert rows.errors == {}
    assert _until(shop.is_quiet)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT be heard, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_keyboard_interrupt_cancels_what_runs(shop: Shop) -> None:
    shop.make_naps(0, 1, 2)
    began = threading.Event()

    def interrupt() -> None:
        began.wait()
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()

    with pytest.raises(KeyboardInterrupt):
        shop.fan_out(select(nap.c.n), on_event=lambda _: began.set()).all()

    assert _until(lambda: _threads() == [])
    assert _until(shop.is_quiet)


def test_a_connection_that_was_cancelled_does_not_come_back_to_the_pool(shop: Shop) -> None:
    shop.make_naps(0, 1, 2)

    for _ in range(5):
        with pytest.raises(ExceptionGroup):
            shop.fan_out(select(nap.c.n), shard_timeout=0.05).all()
        assert len(shop.fan_out(select(Blog.id)).all()) == 4


@contextmanager
def _a_mute_shard(shop: Shop, connect_seconds: int) -> Iterator[Shard]:
    """Give a shard whose server takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = re.sub(r":\d+/", f":{port}/", shop.urls[1])
        url = f"{url}?connect_timeout={connect_seconds}"
        location = type(shop.shards[1].location).from_url(make_url(url))
        yield type(shop.shards[1])(id="0" * 32, map_name="tenants", location=location)


def test_a_server_that_never_answers_holds_nobody_up(postgres_shop: Shop) -> None:
    shop = postgres_shop
    limit_begins = shop.hold_time_until_success_of(0)
    with _a_mute_shard(shop, connect_seconds=100) as mute:
        rows = shop.fan_out(
            select(Blog.tenant_id),
            shards=[shop.shards[0], mute],
            shard_timeout=1.0,
            policy="partial",
            on_event=limit_begins,
        )

        assert sorted(next(rows).tenant_id for _ in range(2)) == [1, 42]
        with pytest.raises(StopIteration):
            next(rows)
        assert rows.errors[mute].code == "ShardTimedOut"
        assert _threads() != [], "it still tries to connect"


def test_a_thread_that_tries_to_connect_gives_up_by_itself(postgres_shop: Shop) -> None:
    shop = postgres_shop
    # The least that libpq knows; without it the default of the engines would hold.
    with _a_mute_shard(shop, connect_seconds=2) as mute:
        with pytest.raises(ExceptionGroup):
            shop.fan_out(select(Blog.tenant_id), shards=[mute], shard_timeout=0.1).all()

        assert _until(lambda: _threads() == [])


# --- events ---------------------------------------------------------------------------------------


def test_events_tell_who_began_and_who_succeeded(still_shop: Shop) -> None:
    events: list[FanOutEvent] = []

    still_shop.fan_out(select(Blog.id), on_event=events.append).all()

    kinds = [(event.kind, event.shard) for event in events]
    for shard in still_shop.shards:
        assert kinds.index(("began", shard)) < kinds.index(("succeeded", shard))
    assert {event.shard: event.rows for event in events if event.kind == "succeeded"} == {
        still_shop.shards[0]: 2,
        still_shop.shards[1]: 1,
        still_shop.shards[2]: 1,
    }


def test_events_tell_who_failed_and_why(shop: Shop) -> None:
    shop.kill(1)
    events: list[FanOutEvent] = []

    rows = shop.fan_out(select(Blog.id), policy="partial", on_event=events.append)
    rows.all()

    (event,) = [event for event in events if event.kind == "failed"]
    assert event.error is rows.errors[event.shard]


def test_an_error_of_the_listener_is_raised_to_the_caller(still_shop: Shop) -> None:
    def listen(event: FanOutEvent) -> None:
        raise LookupError(event.kind)

    with pytest.raises(LookupError):
        still_shop.fan_out(select(Blog.id), on_event=listen).all()


# --- while ranges move ----------------------------------------------------------------------------


def _tenants(rows: FanOutResult) -> list[int]:
    return sorted(row.tenant_id for row in rows)


def test_rows_left_behind_by_a_move_are_seen_twice_unless_consistent(shop: Shop) -> None:
    shop.carry(shop.map.get(1), to=shop.shards[2], leave_behind=True)

    assert _tenants(shop.fan_out(select(Blog.tenant_id))) == [1, 1, 42, 42, 150, 201]
    assert _tenants(shop.fan_out(select(Blog.tenant_id), consistent=True)) == [1, 42, 150, 201]


def test_rows_copied_ahead_of_a_move_are_seen_once(shop: Shop) -> None:
    with shop.shards[1].connect() as target:
        target.execute(sa.insert(Blog), [{"tenant_id": 42, "id": 1, "name": "copy"}])
        target.commit()

    rows = shop.fan_out(select(Blog.tenant_id, Blog.name), consistent=True)

    assert sorted(tuple(row) for row in rows if row.tenant_id == 42) == [(42, "blog of 42")]


def test_a_consistent_count_counts_each_row_once(shop: Shop) -> None:
    shop.carry(shop.map.get(1), to=shop.shards[2], leave_behind=True)

    count = shop.fan_out(select(func.count(Blog.id)), reduce="count", consistent=True)

    assert count.scalar() == 4


def test_consistency_reaches_into_joins_subqueries_and_entities(shop: Shop) -> None:
    with shop.shards[0].connect() as connection:
        connection.execute(sa.insert(Post), [{"tenant_id": 42, "id": 1, "blog_id": 1}])
        connection.commit()
    with shop.shards[2].connect() as connection:
        connection.execute(sa.insert(Blog), [{"tenant_id": 42, "id": 1, "name": "copy"}])
        connection.execute(sa.insert(Post), [{"tenant_id": 42, "id": 1, "blog_id": 1}])
        connection.commit()
    joined = select(Blog.tenant_id, func.count(Post.id).label("posts")).outerjoin(Blog.posts)
    nested = select(Blog.tenant_id).where(
        Blog.tenant_id.in_(select(Post.tenant_id).scalar_subquery())
    )
    inner = select(Blog.tenant_id).where(Blog.tenant_id == 42).cte("inner_blogs")

    grouped = shop.fan_out(joined.group_by(Blog.tenant_id), consistent=True)
    assert sorted(tuple(row) for row in grouped) == [(1, 0), (42, 1), (150, 0), (201, 0)]
    assert _tenants(shop.fan_out(nested, consistent=True)) == [42]
    assert _tenants(shop.fan_out(select(inner.c.tenant_id), consistent=True)) == [42]
    entities = shop.fan_out(select(Blog).options(selectinload(Blog.posts)), consistent=True)
    assert {row.Blog.tenant_id: len(row.Blog.posts) for row in entities} == {
        1: 0,
        42: 1,
        150: 0,
        201: 0,
    }


def _move_between(shop: Shop) -> Callable[[FanOutEvent], None]:
    """Move the range of tenant 42 once, after the first shard was read or before it is."""
    moved = threading.Event()

    def listen(event: FanOutEvent) -> None:
        if event.kind == "succeeded" and not moved.is_set():
            moved.set()
            shop.carry(shop.map.get(42, lookup="store"), to=shop.shards[2])

    return listen


def test_a_move_between_two_reads_doubles_rows_unless_consistent(shop: Shop) -> None:
    naive = shop.fan_out(
        select(Blog.tenant_id), workers=1, on_event=_move_between(shop), shards=shop.shards
    )
    assert _tenants(naive) == [1, 1, 42, 42, 150, 201]

    shop.carry(shop.map.get(42, lookup="store"), to=shop.shards[0])
    sound = shop.fan_out(
        select(Blog.tenant_id), workers=1, on_event=_move_between(shop), consistent=True
    )
    assert _tenants(sound) == [1, 42, 150, 201]


def test_a_snapshot_taken_before_a_move_is_taken_anew(shop: Shop) -> None:
    moved = threading.Event()

    def listen(event: FanOutEvent) -> None:
        if event.shard == shop.shards[2] and not moved.is_set():
            moved.set()
            shop.carry(shop.map.get(42, lookup="store"), to=shop.shards[2])

    rows = shop.fan_out(select(Blog.tenant_id), workers=1, on_event=listen, consistent=True)

    assert _tenants(rows) == [1, 42, 150, 201]
    assert moved.is_set()


def test_a_shard_that_joins_in_the_middle_is_asked_too(
    shop: Shop, new_sqlite: NewDatabase, new_postgres: NewDatabase
) -> None:
    fourth = shop.map.create_shard((new_sqlite if shop.is_sqlite else new_postgres)("fourth"))
    with fourth.connect() as connection:
        Base.metadata.create_all(connection)
        connection.commit()
    known = [*shop.shards]
    all_shards = shop.map.shards
    asked = iter([known])
    shop.map.shards = lambda: next(asked, None) or all_shards()  # type: ignore[method-assign]

    shop.carry(shop.map.get(42), to=fourth)
    rows = shop.fan_out(select(Blog.tenant_id), consistent=True)

    assert _tenants(rows) == [1, 42, 150, 201]


def test_keys_that_moved_in_the_middle_are_found(shop: Shop) -> None:
    rows = shop.fan_out(select(Blog.tenant_id), keys=[42], consistent=True)
    shop.carry(shop.map.get(42), to=shop.shards[2])

    assert 42 in _tenants(rows)


@pytest.mark.repeated
@pytest.mark.parametrize("seconds", [repeat(0.6, 2.0, 20.0)])
def test_each_row_is_seen_once_while_ranges_bounce(shop: Shop, seconds: float) -> None:
    stop = threading.Event()

    def bounce() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            for tenant in (42, 150):
                shop.carry(
                    shop.map.get(tenant, lookup="store"),
                    to=shop.shards[(turn + tenant) % 3],
                    leave_behind=turn % 2 == 0,
                )

    mover = threading.Thread(target=bounce)
    mover.start()
    end = time.monotonic() + seconds
    seen = 0
    try:
        while time.monotonic() < end:
            rows = shop.fan_out(select(Blog.tenant_id), consistent=True)
            assert _tenants(rows) == [1, 42, 150, 201]
            count = shop.fan_out(select(func.count(Blog.id)), consistent=True, reduce="count")
            assert count.scalar() == 4
            seen += 1
    finally:
        stop.set()
        mover.join()
    assert seen > 0


def test_a_change_that_nobody_finishes_ends_in_a_typed_error(shop: Shop) -> None:
    shop.run(0, "DELETE FROM partita_local_mappings")
    shop.hold_time()  # only the pauses between looks at the map count

    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(select(Blog.tenant_id), consistent=True, timeout=1.0).all()

    causes = {type(error.__cause__) for error in raised.value.exceptions}
    assert OperationPendingError in causes


def test_a_dead_shard_does_not_spoil_a_consistent_partial_fan_out(shop: Shop) -> None:
    shop.carry(shop.map.get(150), to=shop.shards[2], leave_behind=True)
    shop.kill(0)

    rows = shop.fan_out(select(Blog.tenant_id), consistent=True, policy="partial")

    assert _tenants(rows) == [150, 201]
    assert set(rows.errors) == {shop.shards[0]}


def test_consistency_needs_a_schema(sqlite_shop: Shop) -> None:
    bare = sqlite_shop.manager.create_range_map("bare", key=int)
    bare.create_shard(sqlite_shop.urls[0])

    with pytest.raises(InvalidRequestError) as raised:
        fan_out(bare, select(Blog.tenant_id), consistent=True)

    assert raised.value.code == "SchemaUnknown"


def test_text_cannot_be_made_consistent(still_shop: Shop) -> None:
    statement = sa.text("SELECT tenant_id FROM blog").columns(Blog.tenant_id)

    with pytest.raises(ExceptionGroup) as raised:
        still_shop.fan_out(statement, consistent=True).all()

    assert isinstance(raised.value.exceptions[0].__cause__, NotSupportedError)


# --- other kinds of maps and keys -----------------------------------------------------------------


class Item(Base):
    __tablename__ = "item"
    owner: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True)


OWNERS = ("Ada", "ada", "bob", "Zoë", "\U0001f600", "")


@pytest.fixture(params=["list", "range", "hash"])
def item_map(
    request: pytest.FixtureRequest, database_urls: NewDatabase
) -> Iterator[ListShardMap | RangeShardMap]:
    """Two shards with the same rows each: as after a copy; every row belongs to one of them."""
    manager = ShardMapManager.create(database_urls("catalog"))
    schema = ShardedSchema(Base.metadata, keys={"item": "owner"})
    made: ListShardMap | RangeShardMap | HashShardMap
    if request.param == "list":
        made = manager.create_list_map("items", key=str)
    elif request.param == "hash":
        made = manager.create_hash_map("items", key=str, buckets=8)
    else:
        made = manager.create_range_map("items", key=str)
    made.adopt_schema(schema)
    shards = [made.create_shard(database_urls(name)) for name in ("one", "two")]
    for shard in shards:
        with shard.connect() as connection:
            Base.metadata.create_all(connection)
            connection.execute(
                sa.insert(Item), [{"owner": owner, "id": i} for owner in OWNERS for i in range(2)]
            )
            connection.commit()
    if request.param == "list":
        for number, owner in enumerate(OWNERS):
            made.create_mapping(owner, shards[number % 2])
    elif request.param == "hash":
        made.create_mapping(Range(0, 4), shards[0])
        made.create_mapping(Range(4, 8), shards[1])
    else:
        made.create_mapping(Range(None, "a"), shards[0])
        made.create_mapping(Range("a", None), shards[1])
    yield made
    manager.close()


def test_rows_are_counted_where_their_key_belongs(item_map: ListShardMap | RangeShardMap) -> None:
    rows = fan_out(
        item_map, select(Item.owner, Item.id), consistent=True, shard_column="_shard"
    ).all()

    assert sorted((row.owner, row.id) for row in rows) == sorted(
        (owner, i) for owner in OWNERS for i in range(2)
    )
    for row in rows:
        assert row._shard == item_map.get(row.owner).shard.location.text
    total = fan_out(item_map, select(func.count(Item.id)), consistent=True, reduce="count")
    assert total.scalar() == 2 * len(OWNERS)


def test_many_ranges_are_looked_at_key_by_key(
    new_sqlite: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_rows, "OWNED_RANGES_MAX", 3)
    with a_shop(new_sqlite) as shop:
        shop.carry(shop.map.get(1), to=shop.shards[2], leave_behind=True)
        for at in (10, 20, 30, 110, 120, 210, 220, 230, 240):
            shop.map.split(at=at)

        rows = shop.fan_out(select(Blog.tenant_id), consistent=True)

        assert _tenants(rows) == [1, 42, 150, 201]
