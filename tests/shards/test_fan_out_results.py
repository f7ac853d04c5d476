"""What callers take from a fan-out, as from a result of SQLAlchemy."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.exc import MultipleResultsFound, NoResultFound

from partita.errors import MappingOfflineError, NotSupportedError, ShardError
from partita.shards import RetryPolicy
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
