"""What callers take from a fan-out, as from a result of SQLAlchemy."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Time,
    Uuid,
    insert,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import (
    MultipleResultsFound,
    NoResultFound,
    OperationalError,
    ProgrammingError,
)

from partita.errors import MappingOfflineError, NotSupportedError, ShardError
from partita.shards import RetryPolicy, ShardMapManager, ShardStatus
from shards.conftest import NewDatabase
from support.shop import TENANTS, Blog, Shop, a_shared_shop, a_shop


@pytest.fixture(params=["sqlite", pytest.param("asyncpg", marks=pytest.mark.proof)])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    with a_shared_shop(request.param) as made:
        yield made
        await made.manager.aclose()


ALL = select(Blog.tenant_id, Blog.id)
ONE = ALL.where(Blog.tenant_id == 42)
NONE = ALL.where(Blog.tenant_id == 7)
VALUES: list[tuple[str, Any, object]] = [
    ("integer", Integer, 7),
    ("float", Float, 0.1),
    ("string", String, "Zoë"),
    ("bytes", LargeBinary, b"\x00\xff"),
    ("boolean", Boolean, True),
    ("date", Date, date(2024, 2, 29)),
    ("moment", DateTime, datetime(2024, 2, 29, 12, 30, 0, 5)),  # noqa: DTZ001 - without a zone
    ("time", Time, time(23, 59, 59)),
    ("uuid", Uuid, UUID(int=7)),
]


def test_scalars_are_the_values_of_one_column(shop: Shop) -> None:
    assert sorted(shop.fan_out(ALL).scalars()) == list(TENANTS)
    assert len(shop.fan_out(ALL).scalars(1).all()) == len(TENANTS)


def test_mappings_have_the_names_of_the_columns(shop: Shop) -> None:
    assert shop.fan_out(ONE).mappings().one()["tenant_id"] == 42


def test_first_returns_a_row_or_none_and_closes(shop: Shop) -> None:
    rows = shop.fan_out(ALL)

    assert rows.first() is not None
    assert rows.all() == []
    assert shop.fan_out(NONE).first() is None


def test_one_returns_the_only_row(shop: Shop) -> None:
    assert shop.fan_out(ONE).one().tenant_id == 42
    assert shop.fan_out(ONE).scalars().one() == 42
    assert shop.fan_out(NONE).one_or_none() is None


def test_one_refuses_no_row_and_several(shop: Shop) -> None:
    with pytest.raises(NoResultFound):
        shop.fan_out(NONE).one()
    for take in (shop.fan_out(ALL).one, shop.fan_out(ALL).one_or_none):
        with pytest.raises(MultipleResultsFound):
            take()


def test_plain_text_that_reads_is_fanned_out(shop: Shop) -> None:
    rows = shop.fan_out(
        text("SELECT tenant_id, id FROM blog WHERE tenant_id < :below").bindparams(below=100)
    )

    assert sorted(row.tenant_id for row in rows) == [1, 42]


@pytest.mark.parametrize("words", ["/* SELECT */ DELETE FROM blog", "DROP TABLE blog", ""])
def test_plain_text_that_writes_is_refused(shop: Shop, words: str) -> None:
    with pytest.raises(NotSupportedError) as refused:
        shop.fan_out(text(words))

    assert refused.value.code == "NotASelect"


async def test_the_same_names_await_the_rows(shop: Shop) -> None:
    tenants = shop.map.aio

    assert sorted([value async for value in tenants.fan_out(ALL).scalars()]) == list(TENANTS)
    assert (await tenants.fan_out(ONE).mappings().one())["tenant_id"] == 42
    assert await tenants.fan_out(NONE).one_or_none() is None
    assert await tenants.fan_out(NONE).first() is None
    with pytest.raises(NoResultFound):
        await tenants.fan_out(NONE).one()
    for take in (tenants.fan_out(ALL).one, tenants.fan_out(ALL).one_or_none):
        with pytest.raises(MultipleResultsFound):
            await take()


async def test_the_map_for_asyncio_has_the_names_of_the_map(shop: Shop) -> None:
    tenants = shop.map.aio

    async def count(session: object) -> int:
        return 1

    async with tenants.begin(42) as session:
        assert (await session.scalars(select(Blog.tenant_id))).all()
    async with tenants.connect(42) as connection:
        assert await connection.scalar(select(Blog.tenant_id))
    async with tenants.sessionmaker()(42) as session:
        assert await session.get(Blog, (42, 1)) is not None
    assert await tenants.run(42, count) == 1


def test_begin_commits_at_the_end_of_the_block(shop: Shop) -> None:
    with shop.map.begin(42) as session:
        session.add(Blog(tenant_id=42, id=99, name="new"))

    with shop.map.begin(42) as session:
        assert session.get(Blog, (42, 99)) is not None


def test_values_of_every_type_are_those_that_each_shard_returns(
    database_urls: NewDatabase,
) -> None:
    table = Table("thing", MetaData(), *(Column(name, kind) for name, kind, _ in VALUES))
    with ShardMapManager.create(database_urls("catalog")) as manager:
        things = manager.create_range_map("things", key=int)
        shards = [things.create_shard(database_urls(name)) for name in ("one", "two")]
        of_each = []
        for shard in shards:
            with shard.connect() as connection:
                table.create(connection)
                connection.execute(insert(table), {name: value for name, _, value in VALUES})
                connection.execute(insert(table), {name: None for name, _, _ in VALUES})
                of_each += connection.execute(select(table)).all()
                connection.commit()

        rows = things.fan_out(select(table)).all()

        assert sorted(map(tuple, rows), key=str) == sorted(map(tuple, of_each), key=str)
        assert tuple(value for _, _, value in VALUES) in {tuple(row) for row in rows}


def test_a_shard_without_new_mappings_is_still_read(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        shop.map.update_shard(shop.shards[1], status=ShardStatus.OFFLINE)

        assert sorted(shop.fan_out(ALL).scalars()) == list(TENANTS)


def test_errors_of_a_fan_out_come_back_from_another_process(shop: Shop) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        shop.fan_out(text("SELECT nothing FROM blog"), policy="partial").all()

    back = pickle.loads(pickle.dumps(raised.value))

    assert [str(each) for each in back.exceptions] == [str(e) for e in raised.value.exceptions]
    assert {each.shard for each in back.exceptions} == set(shop.shards)
    assert {type(each.cause) for each in back.exceptions} <= {OperationalError, ProgrammingError}


TWICE = RetryPolicy(attempts=2, first_delay=0)
PATIENT = RetryPolicy(attempts=10_000, first_delay=0.02, max_delay=0.02)


def _take_away(shop: Shop) -> Callable[[], object]:
    """Hide the file of a shard; return what brings it back."""
    file = Path(make_url(shop.urls[1]).database or "")
    shop.manager.engines.dispose()
    away = file.rename(file.with_name("away.db"))
    return lambda: away.rename(file)


def test_a_shard_that_comes_back_is_asked_again(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        bring_back = _take_away(shop)

        with pytest.raises(ExceptionGroup) as failed:
            shop.fan_out(ALL, retry=TWICE).all()
        with shop.fan_out(ALL, retry=PATIENT) as rows:
            bring_back()
            found = rows.scalars().all()

        assert failed.group_contains(ShardError)
        assert sorted(found) == list(TENANTS)


async def test_a_shard_that_comes_back_is_asked_again_in_a_loop(new_sqlite: NewDatabase) -> None:
    with a_shop(new_sqlite) as shop:
        bring_back = _take_away(shop)

        with pytest.raises(ExceptionGroup):
            await shop.map.aio.fan_out(ALL, retry=TWICE).all()
        asking = asyncio.create_task(shop.map.aio.fan_out(ALL, retry=PATIENT).all())
        await asyncio.sleep(0)
        bring_back()

        assert len(await asking) == len(TENANTS)
        await shop.manager.aclose()


def test_a_policy_of_both_systems_limits_the_attempts_of_a_unit_of_work(shop: Shop) -> None:
    attempts = 0

    def work(session: object) -> None:
        nonlocal attempts
        attempts += 1
        raise ConnectionAbortedError

    policy = RetryPolicy(attempts=3, first_delay=0)
    with pytest.raises(ConnectionAbortedError):
        shop.map.run(42, work, retry=policy)
    assert attempts == 1  # not transient

    def interrupted(session: object) -> None:
        nonlocal attempts
        attempts += 1
        raise MappingOfflineError("MappingOffline", "Interrupted.")

    with pytest.raises(MappingOfflineError):
        shop.map.run(42, interrupted, retry=policy)
    assert attempts == 1 + 3
