"""The async twin of fan-out: the same rows, errors and limits on async engines."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import event, func, select
from sqlalchemy.orm import selectinload

from partita.errors import (
    InvalidRequestError,
    NotSupportedError,
    OperationPendingError,
    SchemaMismatchError,
    ShardError,
)
from partita.shards.fan_out.gathering import FanOutEvent
from partita.shards.fan_out.tasks import AsyncFanOutResult
from shards.conftest import NewDatabase
from support.shop import Blog, Shop, a_shared_shop, a_shop, nap


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    """Give one whose rows and views the test may change, but not its tables."""
    with a_shared_shop(request.param) as made:
        yield made
        assert _tasks() == []
        await made.manager.aclose()


@pytest.fixture
async def fresh_shop(database_urls: NewDatabase) -> AsyncIterator[Shop]:
    """Give one whose tables the test may change."""
    with a_shop(database_urls) as made:
        yield made
        await made.manager.aclose()


def _tasks() -> list[str]:
    return [
        repr(task)
        for task in asyncio.all_tasks()
        if "_follow" in repr(task.get_coro()) and not task.done()
    ]


async def _until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


async def _tenants(rows: AsyncFanOutResult) -> list[int]:
    return sorted([row.tenant_id async for row in rows])


async def test_rows_of_all_shards_come_once(shop: Shop) -> None:
    rows = shop.afan_out(select(Blog.tenant_id, Blog.name))

    assert await _tenants(rows) == [1, 42, 150, 201]
    assert rows.errors == {}
    rows.raise_if_incomplete()


async def test_a_fan_out_reads_the_shards_once_per_epoch(shop: Shop) -> None:
    await shop.afan_out(select(Blog.tenant_id)).all()
    asked: list[str] = []
    engine = shop.manager.executor.engine

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        asked.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    await shop.afan_out(select(Blog.tenant_id)).all()
    event.remove(engine, "before_cursor_execute", note)
    assert asked == []


async def test_few_rows_need_no_cursor_on_the_server(shop: Shop) -> None:
    seen: list[bool] = []

    def look(*arguments: Any) -> None:
        seen.append(bool(arguments[4]._is_server_side))

    engines = [shop.manager.engines.async_for_location(each.location) for each in shop.shards]
    for engine in engines:
        event.listen(engine.sync_engine, "before_cursor_execute", look)
    assert len(await shop.afan_out(select(Blog.tenant_id)).all()) == 4
    for engine in engines:
        event.remove(engine.sync_engine, "before_cursor_execute", look)
    assert seen
    assert not any(seen)


async def test_rows_are_merged_in_one_order(shop: Shop) -> None:
    rows = shop.afan_out(select(Blog.tenant_id), order_by=Blog.tenant_id.desc(), limit=3, workers=1)

    assert [row.tenant_id async for row in rows] == [201, 150, 42]


async def test_counts_are_added_over_the_shards(shop: Shop) -> None:
    assert await shop.afan_out(select(func.count(Blog.id)), reduce="count").scalar() == 4


async def test_many_rows_stream(shop: Shop) -> None:
    for number in range(3):
        with shop.shards[number].connect() as connection:
            connection.execute(
                sa.insert(Blog),
                [{"tenant_id": 100 * number + 99, "id": i, "name": "x"} for i in range(3_000)],
            )
            connection.commit()

    rows = await shop.afan_out(select(Blog.tenant_id, Blog.id)).all()

    assert len({tuple(row) for row in rows}) == 9_004
    ordered = await shop.afan_out(select(Blog.id), order_by=Blog.id).all()
    assert [row.id for row in ordered] == sorted(row.id for row in ordered)


async def test_entities_come_detached(shop: Shop) -> None:
    rows = shop.afan_out(select(Blog).options(selectinload(Blog.posts)), order_by=Blog.tenant_id)

    blogs = [row.Blog async for row in rows]

    assert [blog.tenant_id for blog in blogs] == [1, 42, 150, 201]
    assert all(sa.inspect(blog).detached and blog.posts == [] for blog in blogs)


async def test_a_refused_statement_is_refused_at_once(shop: Shop) -> None:
    with pytest.raises(NotSupportedError):
        shop.afan_out(sa.delete(Blog))
    with pytest.raises(InvalidRequestError):
        shop.afan_out(select(Blog.id), workers=0)


async def test_a_dead_shard_fails_a_complete_fan_out(shop: Shop) -> None:
    shop.kill(1)

    with pytest.raises(ExceptionGroup) as raised:
        await shop.afan_out(select(Blog.tenant_id)).all()

    (error,) = raised.value.exceptions
    assert isinstance(error, ShardError)
    assert error.shard == shop.shards[1]


async def test_a_dead_shard_leaves_the_rows_of_the_others(shop: Shop) -> None:
    shop.kill(1)

    rows = shop.afan_out(select(Blog.tenant_id), policy="partial")

    assert await _tenants(rows) == [1, 42, 201]
    assert set(rows.errors) == {shop.shards[1]}
    with pytest.raises(ExceptionGroup):
        rows.raise_if_incomplete()


async def test_a_slow_shard_is_cancelled_and_named(shop: Shop) -> None:
    shop.make_naps(1)
    limit_begins = shop.hold_time_until_success_of(0, 2)

    rows = shop.afan_out(
        select(nap.c.n), shard_timeout=1.0, policy="partial", on_event=limit_begins
    )

    assert [row.n async for row in rows] == [1, 1]
    assert {shard: error.code for shard, error in rows.errors.items()} == {
        shop.shards[1]: "ShardTimedOut"
    }
    assert await _until(shop.is_quiet)


async def test_the_whole_fan_out_has_a_time_limit(shop: Shop) -> None:
    shop.make_naps(0, 2)
    limit_begins = shop.hold_time_until_success_of(1)

    with pytest.raises(ExceptionGroup) as raised:
        await shop.afan_out(select(nap.c.n), timeout=1.0, on_event=limit_begins).all()

    assert len(raised.value.exceptions) == 2
    assert await _until(shop.is_quiet)


async def test_the_first_row_does_not_wait_for_the_slowest_shard(shop: Shop) -> None:
    shop.make_naps(1)

    async with shop.afan_out(select(nap.c.n)) as rows:
        assert (await anext(rows)).n == 1

    assert rows.errors == {}


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_server_that_never_answers_holds_nobody_up(driver: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, a_shared_shop(driver) as shop:
        location = msgspec.structs.replace(shop.shards[1].location, port=silent.getsockname()[1])
        mute = msgspec.structs.replace(shop.shards[1], id="0" * 32, location=location)

        rows = shop.afan_out(
            select(Blog.tenant_id),
            shards=[shop.shards[0], mute],
            shard_timeout=1.0,
            policy="partial",
            on_event=shop.hold_time_until_success_of(0),
        )

        assert await _tenants(rows) == [1, 42]
        assert rows.errors[mute].code == "ShardTimedOut"
        assert _tasks() == []
        await shop.manager.aclose()


async def test_a_cancelled_caller_cancels_what_runs(shop: Shop) -> None:
    shop.make_naps(0, 1, 2)
    began = asyncio.Event()
    caller = asyncio.create_task(
        shop.afan_out(select(nap.c.n), on_event=lambda _: began.set()).all()
    )
    await began.wait()
    await asyncio.sleep(0.05)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    assert _tasks() == []
    assert await _until(shop.is_quiet)
    assert await _tenants(shop.afan_out(select(Blog.tenant_id))) == [1, 42, 150, 201]


async def test_a_shard_with_another_schema_is_listed(fresh_shop: Shop) -> None:
    shop = fresh_shop
    shop.run(
        2,
        "DROP TABLE post",
        "DROP TABLE blog",
        "CREATE TABLE blog (tenant_id INTEGER, id INTEGER, name INTEGER)",
    )

    rows = shop.afan_out(
        select(Blog.tenant_id, Blog.name),
        policy="partial",
        workers=1,
        order_by="tenant_id",
        shards=shop.shards,
    )

    assert [row.tenant_id async for row in rows] == [1, 42, 150]
    assert isinstance(rows.errors[shop.shards[2]].cause, SchemaMismatchError)


async def test_events_tell_what_happened_to_each_shard(shop: Shop) -> None:
    shop.kill(0)
    ends: dict[object, str] = {}

    def listen(event: FanOutEvent) -> None:
        ends[event.shard] = event.kind

    await shop.afan_out(select(Blog.id), policy="partial", on_event=listen).all()

    assert ends == {
        shop.shards[0]: "failed",
        shop.shards[1]: "succeeded",
        shop.shards[2]: "succeeded",
    }


async def test_each_shard_receives_its_own_keys(shop: Shop) -> None:
    mine = Blog.tenant_id.in_(sa.bindparam("keys", expanding=True))

    rows = shop.afan_out(select(Blog.tenant_id).where(mine), keys=[1, 201])

    assert await _tenants(rows) == [1, 201]


async def test_rows_left_behind_by_a_move_are_seen_once(shop: Shop) -> None:
    await asyncio.to_thread(shop.carry, shop.map.get(1), to=shop.shards[2], leave_behind=True)

    assert len(await shop.afan_out(select(Blog.tenant_id)).all()) == 6
    assert await _tenants(shop.afan_out(select(Blog.tenant_id), consistent=True)) == [
        1,
        42,
        150,
        201,
    ]


async def test_each_row_is_seen_once_while_ranges_bounce(shop: Shop) -> None:
    stop = threading.Event()

    def bounce() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            shop.carry(
                shop.map.get(42, lookup="store"),
                to=shop.shards[turn % 3],
                leave_behind=turn % 2 == 0,
            )

    mover = asyncio.create_task(asyncio.to_thread(bounce))
    try:
        for _ in range(10):
            rows = shop.afan_out(select(Blog.tenant_id), consistent=True)
            assert await _tenants(rows) == [1, 42, 150, 201]
    finally:
        stop.set()
        await mover


async def test_a_change_that_nobody_finishes_ends_in_a_typed_error(shop: Shop) -> None:
    shop.run(0, "DELETE FROM partita_local_mappings")
    shop.hold_time()  # only the pauses between looks at the map count

    with pytest.raises(ExceptionGroup) as raised:
        await shop.afan_out(select(Blog.tenant_id), consistent=True, timeout=1.0).all()

    causes = {type(error.__cause__) for error in raised.value.exceptions}
    assert OperationPendingError in causes
