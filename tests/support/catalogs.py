"""Builders for tests of shard maps: a catalog with shards, and what both catalogs hold.

Databases of PostgreSQL are made once and emptied for each test: dropping one takes seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import select

from partita.shards.catalog import global_catalog, local_catalog
from partita.shards.keys.mapping import Mapping, MappingStatus, Shard
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap, ShardMap
from support import postgres

NewDatabase = Callable[[str], str]
OFFLINE, ONLINE = MappingStatus.OFFLINE, MappingStatus.ONLINE

EMPTY = """
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('DROP TABLE %I CASCADE', name);
  END LOOP;
  DROP FUNCTION IF EXISTS partita_enter(text);
END $$
"""


@cache
def _database(name: str) -> str:
    server = postgres.server()
    made = server.create_database(f"catalogs_{name}")
    # These tests kill clients, never the server: commits need not wait for the disk.
    server.execute(
        sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(sql.Identifier(made))
    )
    return server.url(made)


def an_empty_database(name: str) -> str:
    url = _database(name)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(EMPTY)
    return url


def _urls(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    if request.param == "sqlite":
        return lambda name: f"sqlite:///{tmp_path / name}.db"
    return an_empty_database


@pytest.fixture(params=["sqlite", "postgresql"])
def both_urls(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    """Give `new(name) -> url`; a database of PostgreSQL is emptied when it is asked for again."""
    return _urls(request, tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def catalog_urls(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    """Give the same for what the databases do alike: PostgreSQL's turn comes in the soak."""
    return _urls(request, tmp_path)


Row = tuple[str, bytes, bytes | None, str]


class Catalog:
    """A catalog with the range map `tenants` on two shards."""

    def __init__(self, manager: ShardMapManager, urls: NewDatabase) -> None:
        self.manager = manager
        self.urls = urls
        self.tenants = manager.create_range_map("tenants", key=int)
        self.one = self.tenants.create_shard(urls("one"))
        self.two = self.tenants.create_shard(urls("two"))

    @property
    def url(self) -> str:
        return str(self.manager.engines.for_location(self.manager.location).url)


@contextmanager
def a_catalog(urls: NewDatabase) -> Iterator[Catalog]:
    with ShardMapManager.create(urls("catalog")) as manager:
        yield Catalog(manager, urls)


def ranges_of(shard_map: ShardMap) -> list[tuple[Range, Shard, bool]]:
    return [(m.range, m.shard, m.is_online) for m in shard_map.mappings()]


def an_offline_mapping(shard_map: RangeShardMap, range_: Range, shard: Shard) -> Mapping:
    return shard_map.create_mapping(range_, shard, status=OFFLINE)


def global_rows(shard_map: ShardMap, shard: Shard) -> list[Row]:
    with shard_map.executor.engine.connect() as connection:
        rows = global_catalog.list_mappings(connection, shard_map.id, shard_id=shard.id)
        return [(row.id, row.low, row.high, row.status) for row, _ in rows]


def local_rows(shard_map: ShardMap, shard: Shard) -> list[Row]:
    with shard.connect() as connection:
        table = local_catalog.mappings
        rows = connection.execute(
            select(table).where(table.c.map_id == shard_map.id).order_by(table.c.low)
        )
        return [(row.id, row.low, row.high, row.status) for row in rows]


def pending(manager: ShardMapManager) -> list[str]:
    with manager.executor.engine.connect() as connection:
        return global_catalog.list_pending(connection)


def assert_catalogs_agree(shard_map: ShardMap) -> None:
    """Global and local mappings and marks are the same, nothing is stamped, nothing overlaps."""
    with shard_map.executor.engine.connect() as connection:
        assert global_catalog.list_pending(connection) == []
        for table in (global_catalog.shards, global_catalog.mappings):
            rows = list(connection.execute(select(table)))
            assert all(row.operation_id is None and row.is_readable for row in rows)
    end: bytes | None = b""
    for mapping in shard_map.mappings():
        assert end is not None
        assert mapping.key_range.low >= end
        end = mapping.key_range.high
    for shard in shard_map.shards():
        assert global_rows(shard_map, shard) == local_rows(shard_map, shard)
        with shard.connect() as connection:
            locals_ = {one.map.id: one.row for one in local_catalog.list_shards(connection)}
        with shard_map.executor.engine.connect() as connection:
            row = global_catalog.find_shard(connection, shard_map.id, shard.location.identity)
        assert locals_[shard_map.id] == row
