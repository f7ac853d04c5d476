"""Builders for tests of routing: a map `tenants` on two shards, with a table of notes in each.

Tenants below 100 and those from 100 on are two mappings of the first shard; those from 200 on
are on the second.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from partita.shards.keys.mapping import Mapping, MappingStatus, Shard
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap
from partita.shards.routing import offline
from support.shared_databases import SharedDatabases, shared_databases

NewDatabase = Callable[[str], str]
SYNC = ("sqlite", "psycopg")
ASYNC = ("sqlite", "psycopg", "asyncpg")


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    said: Mapped[str] = mapped_column(default="")


class Routed:
    """The map, its shards, and what is in them."""

    def __init__(self, manager: ShardMapManager, urls: list[str]) -> None:
        self.manager = manager
        self.urls = urls
        found = manager.get_map("tenants")
        assert isinstance(found, RangeShardMap)
        self.tenants = found
        self.one, self.two = (self.tenants.get_shard(url) for url in urls[1:])

    @property
    def is_sqlite(self) -> bool:
        return self.one.location.backend == "sqlite"

    def notes(self, shard: Shard) -> list[tuple[int, int]]:
        """Return the keys of all notes on one shard, past routing."""
        with shard.connect() as connection:
            rows = connection.execute(select(Note.tenant_id, Note.id).order_by(Note.id))
            return [(row.tenant_id, row.id) for row in rows]

    def move(self, tenant: int, *, grace: float = 0.05) -> Mapping:
        """Carry a tenant's mapping to the other shard: the smallest mover that is right."""
        tenants, mapping = self.tenants, self.tenants.get(tenant, lookup="store")
        target = self.two if mapping.shard == self.one else self.one
        changed, fence = offline.set_offline(
            self.manager.engines,
            self.manager.clock,
            mapping,
            lambda: tenants.update_mapping(mapping, status=MappingStatus.OFFLINE),
            grace=grace,
        )
        with fence:
            carry_rows(self.manager, mapping, target)
            changed = tenants.update_mapping(changed, shard=target)
        return tenants.set_online(changed)


def carry_rows(manager: ShardMapManager, mapping: Mapping, target: Shard) -> None:
    """Copy a mapping's notes to the target and delete them where they were."""
    held = Note.tenant_id.between(mapping.range.low, mapping.range.high - 1)
    source = manager.engines.admin(mapping.shard.location)
    with source.begin() as old, manager.engines.admin(target.location).begin() as new:
        rows = [row._asdict() for row in old.execute(select(Note.__table__).where(held))]
        if rows:
            new.execute(insert(Note), rows)
    with source.begin() as old:
        old.execute(delete(Note).where(held))


@contextmanager
def a_routed_map(new: NewDatabase) -> Iterator[Routed]:
    urls = [new("catalog"), new("one"), new("two")]
    with a_map_on(urls) as routed:
        yield routed


@contextmanager
def a_shared_map(driver: str = "psycopg") -> Iterator[Routed]:
    """Give the map on SQLite or PostgreSQL whose rows are put back after the test."""
    with _shared_databases(driver).lent() as urls, ShardMapManager.open(urls[0]) as manager:
        yield Routed(manager, urls)


@functools.cache
def _shared_databases(driver: str) -> SharedDatabases:
    shared = shared_databases(driver)
    urls = [shared.new(name) for name in ("catalog", "one", "two")]
    with a_map_on(urls):
        pass
    shared.keep()
    return shared


@contextmanager
def a_map_on(urls: list[str]) -> Iterator[Routed]:
    with ShardMapManager.create(urls[0]) as manager:
        tenants = manager.create_range_map("tenants", key=int)
        one, two = tenants.create_shard(urls[1]), tenants.create_shard(urls[2])
        for shard in (one, two):
            with shard.connect() as connection:
                Base.metadata.create_all(connection)
                connection.commit()
        tenants.create_mappings([Range(0, 100), Range(100, 200)], one)
        tenants.create_mapping(Range(200, 300), two)
        yield Routed(manager, urls)


@contextmanager
def another_client(routed: Routed) -> Iterator[Routed]:
    """Open the same map with a cache of its own, as another process would."""
    with ShardMapManager.open(routed.urls[0]) as manager:
        yield Routed(manager, routed.urls)


count_notes = select(func.count()).select_from(Note)
select_one = text("SELECT 1")
