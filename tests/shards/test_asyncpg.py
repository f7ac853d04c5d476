"""Async sessions on asyncpg, for shards whose URLs name it; the rest of a manager uses psycopg."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from partita.shards import Fleet, Range, ShardedSchema, ShardMapManager
from shards.conftest import NewDatabase


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True)


count = select(func.count()).select_from(Note)


def with_asyncpg(url: str) -> str:
    return url.replace("+psycopg:", "+asyncpg:")


@pytest.mark.parametrize(
    "options",
    [{}, {"validate": "lease"}, {"isolation_level": "REPEATABLE READ"}],
    ids=["always", "lease", "one snapshot"],
)
async def test_a_session_on_asyncpg_follows_a_move(
    options: dict[str, Any], new_postgres: NewDatabase
) -> None:
    manager = ShardMapManager.create(new_postgres("catalog"))
    schema = ShardedSchema(Base.metadata, keys={"note": "tenant_id"})
    tenants = manager.create_range_map("tenants", key=int, schema=schema)
    fleet = Fleet(manager, metadata=Base.metadata)
    fleet.add_shard(tenants, with_asyncpg(new_postgres("one")), mappings=[Range(0, 100)])
    two = fleet.add_shard(tenants, with_asyncpg(new_postgres("two")), mappings=[Range(100, 200)])
    session = tenants.async_sessionmaker(**options)

    async with session(5) as writer, writer.begin():
        writer.add(Note(tenant_id=5, id=1))
        connection = await (await writer.connection()).get_raw_connection()
        assert type(connection.driver_connection).__module__ == "asyncpg.connection"
    await asyncio.to_thread(fleet.move, tenants.get(5), to=two)
    async with session(5) as reader:
        assert await reader.scalar(count) == 1
    async with tenants.afan_out(select(Note.id), consistent=True) as rows:
        assert [row.id async for row in rows] == [1]

    assert tenants.get(5).shard == two
    await manager.aclose()
