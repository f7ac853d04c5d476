"""Strict type checkers know the classes of sessions, the kinds of maps and the routed functions."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.type_checkers import mypy, pyright, wrong_lines

RIGHT = """
from typing import assert_type

from sqlalchemy import desc, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from partita.shards import (
    HashShardMap, ListShardMap, RangeShardMap, RoutedSession, ShardMapManager
)


class Base(DeclarativeBase):
    pass


class Blog(Base):
    __tablename__ = "blog"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    posts: Mapped[int]


class Polite(Session):
    def greet(self) -> str:
        return "good morning"


class AsyncPolite(AsyncSession):
    def greet(self) -> str:
        return "good morning"


def greet(session: Polite) -> str:
    return session.greet()


def count(session: RoutedSession, least: int) -> int:
    return least


async def agreet(session: AsyncPolite) -> str:
    return session.greet()


def find_maps(manager: ShardMapManager) -> None:
    ranges = manager.get_map("ranges", kind="range")
    assert_type(ranges, RangeShardMap)
    left, right = ranges.split(at=40)
    ranges.merge(left, right)
    assert_type(manager.get_map("buckets", kind="hash", key=str), HashShardMap)
    assert_type(manager.get_map("keys", kind="list"), ListShardMap)
    found = manager.get_map("tenants")
    if isinstance(found, RangeShardMap):
        found.split(at=40)
    found.fan_out(select(Blog), order_by=["posts", desc("posts"), Blog.posts.desc()], limit=3)
    found.fan_out(select(Blog), order_by=Blog.posts)


def use_sessions(tenants: RangeShardMap) -> None:
    with tenants.sessionmaker()(5) as routed:
        assert_type(routed, RoutedSession)
    with tenants.begin(5) as routed:
        assert_type(routed, RoutedSession)
    with tenants.sessionmaker(class_=Polite)(5) as polite:
        assert_type(polite, Polite)
    with tenants.begin(5, class_=Polite) as polite:
        assert_type(polite, Polite)
    assert_type(tenants.scoped_session(None, lambda: 5, class_=Polite)(), Polite)
    assert_type(tenants.run(5, greet, class_=Polite), str)
    assert_type(tenants.run(5, lambda session: session.get_one(Blog, 5).posts), int)
    assert_type(tenants.run(5, count, 3), int)


def use_routed(tenants: RangeShardMap) -> None:
    @tenants.routed("tenant_id")
    def add(session: RoutedSession, tenant_id: int, posts: int = 3) -> Blog:
        return Blog(tenant_id=tenant_id, posts=posts)

    @tenants.routed("tenant_id", class_=Polite)
    def welcome(session: Polite, tenant_id: int) -> str:
        return session.greet()

    assert_type(add(5), Blog)
    assert_type(add(tenant_id=5, posts=2), Blog)
    assert_type(welcome(5), str)


async def use_async(tenants: RangeShardMap) -> None:
    @tenants.routed("tenant_id", idempotent=True)
    async def add(session: AsyncSession, tenant_id: int) -> Blog:
        return Blog(tenant_id=tenant_id, posts=0)

    assert_type(await add(5), Blog)
    assert_type(await tenants.arun(5, agreet, class_=AsyncPolite), str)
    assert_type(await tenants.aio.run(5, agreet, class_=AsyncPolite), str)
    async with tenants.aio.sessionmaker(class_=AsyncPolite)(5) as polite:
        assert_type(polite, AsyncPolite)
    async with tenants.aio.begin(5, class_=AsyncPolite) as polite:
        assert_type(polite, AsyncPolite)
    async with tenants.aio.fan_out(select(Blog), order_by=Blog.posts) as rows:
        print(await rows.scalars().all())
"""

WRONG = """
from sqlalchemy import select

from partita.shards import ShardMapManager
from right import Blog, greet


def use(manager: ShardMapManager) -> None:
    tenants = manager.get_map("tenants", kind="range")
    manager.get_map("tenants").split(at=40)
    tenants.run(5, greet)
    tenants.run(5, lambda session: session.greet())
    tenants.routed("tenant_id")(greet)("5", 6)
    tenants.fan_out(select(Blog), order_by=3)
    tenants.fan_out(select(Blog), order="posts")
    tenants.connect(5, validate="sometimes")
"""
FIRST, LAST = 10, 17
"""The lines of the mistakes."""


@pytest.mark.proof
@pytest.mark.parametrize("check", [mypy, pyright], ids=["mypy", "pyright"])
def test_right_use_passes_a_strict_checker_and_each_wrong_line_is_an_error(
    check: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)

    printed = check(tmp_path, "right.py", "wrong.py")

    assert wrong_lines(printed, "right.py") == set(), printed
    assert wrong_lines(printed, "wrong.py") == {*range(FIRST, LAST)}, printed
