"""A map of three shards with blogs in them: what the tests of fan-out ask."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Column, Integer, MetaData, Table, make_url, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from partita.clock import SystemClock
from partita.shards.fan_out.fan_out import FanOutResult, fan_out
from partita.shards.fan_out.gathering import FanOutEvent, OnEvent
from partita.shards.fan_out.tasks import AsyncFanOutResult, afan_out
from partita.shards.keys.mapping import Mapping, Shard
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap
from shards.conftest import NewDatabase
from support import postgres
from support.shared_databases import SharedDatabases, shared_databases

LONG_SECONDS = 60.0
"""What a statement takes that must be cancelled; tests end long before."""
TENANTS = (1, 42, 150, 201)
KEYS = {"blog": "tenant_id", "post": "tenant_id"}


class Base(DeclarativeBase):
    pass


class Blog(Base):
    __tablename__ = "blog"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str | None]
    posts: Mapped[list["Post"]] = relationship(viewonly=True)


class Post(Base):
    __tablename__ = "post"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True)
    blog_id: Mapped[int]
    __table_args__ = (
        sa.ForeignKeyConstraint(["tenant_id", "blog_id"], ["blog.tenant_id", "blog.id"]),
    )


nap = Table("nap", MetaData(), Column("n", Integer))
"""A view that some shards take long to answer."""


class HeldClock(SystemClock):
    """Time stands still until it is let go: what a busy machine takes before does not count."""

    def __init__(self) -> None:
        self._held = super().monotonic()
        self._let_go_at: float | None = None

    def monotonic(self) -> float:
        if self._let_go_at is None:
            return self._held
        return self._held + super().monotonic() - self._let_go_at

    def let_go(self) -> None:
        self._let_go_at = self._let_go_at or super().monotonic()


class Shop:
    """Ranges of a hundred tenants, one a shard, and one blog a tenant."""

    def __init__(self, manager: ShardMapManager, urls: Sequence[str]) -> None:
        self.manager = manager
        self.urls = urls
        found = manager.get_map("tenants")
        assert isinstance(found, RangeShardMap)
        self.map = found
        self.map.adopt_schema(ShardedSchema(Base.metadata, keys=KEYS))
        self.shards = [found.get_shard(url) for url in urls]
        self._dead: list[str] = []

    @property
    def is_sqlite(self) -> bool:
        return self.urls[0].startswith("sqlite")

    def revive(self) -> None:
        for name in self._dead:
            _allow_connections(name, allowed=True)

    def fan_out(self, statement: Any, **options: Any) -> FanOutResult:
        return fan_out(self.map, statement, **options)

    def afan_out(self, statement: Any, **options: Any) -> AsyncFanOutResult:
        return afan_out(self.map, statement, **options)

    def hold_time(self) -> HeldClock:
        """Let no time pass for what this client does from now on."""
        self.manager.executor.clock = clock = HeldClock()
        return clock

    def hold_time_until_success_of(self, *numbers: int) -> OnEvent:
        """Let the limits of a fan-out with this listener begin when these shards have answered."""
        clock = self.hold_time()
        left = {self.shards[number] for number in numbers}

        def listen(event: FanOutEvent) -> None:
            if event.kind == "succeeded":
                left.discard(event.shard)
                if not left:
                    clock.let_go()

        return listen

    def run(self, number: int, *statements: str) -> None:
        with self.shards[number].connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
            connection.commit()

    def kill(self, number: int) -> None:
        """Take the shard's database away."""
        if self.is_sqlite:
            self.manager.engines.dispose()
            database = make_url(self.urls[number]).database
            assert database is not None
            for path in Path(database).parent.glob(f"{Path(database).name}*"):
                path.unlink()
            Path(database).mkdir()
            return
        name = self.shards[number].location.database
        self._dead.append(name)
        _allow_connections(name, allowed=False)
        _end_sessions(name)

    def make_naps(self, *slow: int) -> None:
        endless = (
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1e12)"
            " SELECT count(*) AS n FROM c"
            if self.is_sqlite
            else f"SELECT 1 AS n FROM pg_sleep({LONG_SECONDS})"
        )
        for number in range(3):
            self.run(number, f"CREATE VIEW nap AS {endless if number in slow else 'SELECT 1 AS n'}")

    def is_quiet(self) -> bool:
        """Say whether no server works on a nap any more."""
        if self.is_sqlite:
            return True
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%nap%' AND state <> 'idle'"
            " AND pid <> pg_backend_pid()"
        )
        with self.shards[0].connect() as connection:
            return bool(connection.scalar(sa.text(query)) == 0)

    def carry(self, mapping: Mapping, to: Shard, *, leave_behind: bool = False) -> Mapping:
        """Move a range as a mover does: copy, take offline, switch, take online, delete."""
        if to == mapping.shard:
            return mapping
        assert isinstance(mapping.range.low, int)
        inside = sa.and_(
            Blog.tenant_id >= mapping.range.low, Blog.tenant_id < (mapping.range.high or 10**9)
        )
        with mapping.shard.connect() as source:
            rows = source.execute(select(Blog.__table__).where(inside)).mappings().all()
        with to.connect() as target:
            target.execute(sa.delete(Blog).where(inside))
            if rows:
                target.execute(sa.insert(Blog), [dict(row) for row in rows])
            target.commit()
        offline = self.map.set_offline(mapping)
        moved = self.map.set_online(self.map.update_mapping(offline, shard=to))
        if not leave_behind:
            with mapping.shard.connect() as source:
                source.execute(sa.delete(Blog).where(inside))
                source.commit()
        return moved


@contextmanager
def a_shop(new: NewDatabase) -> Iterator[Shop]:
    """Give one on new databases."""
    catalog, *urls = (new(name) for name in ("catalog", "shard0", "shard1", "shard2"))
    with ShardMapManager.create(catalog) as manager:
        _build(manager, urls)
        shop = Shop(manager, urls)
        try:
            yield shop
        finally:
            shop.revive()


@contextmanager
def a_shared_shop(driver: str = "psycopg") -> Iterator[Shop]:
    """Give one whose rows are put back after the test, and whose views go."""
    with _shared_databases(driver).lent() as urls, ShardMapManager.open(urls[0]) as manager:
        shop = Shop(manager, urls[1:])
        try:
            yield shop
        finally:
            shop.revive()


@functools.cache
def _shared_databases(driver: str) -> SharedDatabases:
    shared = shared_databases(driver)
    with a_shop(shared.new):
        pass
    shared.keep()
    return shared


def _build(manager: ShardMapManager, urls: Sequence[str]) -> None:
    tenants = manager.create_range_map("tenants", key=int)
    for number, url in enumerate(urls):
        shard = tenants.create_shard(url)
        tenants.create_mapping(Range(100 * number, 100 * number + 100), shard)
        with shard.connect() as connection:
            Base.metadata.create_all(connection)
            rows = [
                {"tenant_id": tenant, "id": 1, "name": f"blog of {tenant}"}
                for tenant in TENANTS
                if tenant // 100 == number
            ]
            connection.execute(sa.insert(Blog), rows)
            connection.commit()


def _allow_connections(name: str, *, allowed: bool) -> None:
    change = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    postgres.server().execute(change.format(sql.Identifier(name), sql.Literal(allowed)))


def _end_sessions(name: str) -> None:
    end = sql.SQL("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}")
    postgres.server().execute(end.format(sql.Literal(name)))
