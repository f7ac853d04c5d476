"""Mappings of single keys: their statuses, their locks, and the transactions inside of them."""

import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from partita.errors import (
    ConflictError,
    MappingLockedError,
    MappingOfflineError,
    OperationPendingError,
    ShardOfflineError,
    UsageError,
)
from partita.shards import (
    ListShardMap,
    Mapping,
    MappingStatus,
    Shard,
    ShardMapManager,
    ShardStatus,
)
from support import catalogs
from support.catalogs import OFFLINE, ONLINE, NewDatabase, a_catalog, assert_catalogs_agree
from support.repeats import repeat

both_urls, catalog_urls = catalogs.both_urls, catalogs.catalog_urls
CHANGES = repeat(20, 100, 2_000)
SELECT_ONE = text("SELECT 1")


class Blogs(NamedTuple):
    """A list map with the keys 1 and 2 on the first of two shards."""

    map: ListShardMap
    one: Shard
    two: Shard
    first: Mapping
    second: Mapping
    url: str


@contextmanager
def some_blogs(urls: NewDatabase) -> Iterator[Blogs]:
    with a_catalog(urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=int)
        one, two = (blogs.create_shard(shard.location) for shard in (catalog.one, catalog.two))
        first, second = blogs.create_mappings([1, 2], one)
        yield Blogs(blogs, one, two, first, second, catalog.url)
        assert_catalogs_agree(blogs)


def test_only_an_offline_point_is_deleted(catalog_urls: NewDatabase) -> None:
    with some_blogs(catalog_urls) as blogs:
        with pytest.raises(UsageError) as refused:
            blogs.map.delete_mapping(blogs.first)

        assert refused.value.code == "MappingOnline"
        blogs.map.delete_mapping(blogs.map.set_offline(blogs.first))
        assert blogs.map.keys() == [2]


def test_offline_ends_open_transactions_of_the_point_only(both_urls: NewDatabase) -> None:
    with some_blogs(both_urls) as blogs:
        ended, neighbour = blogs.map.connect(1), blogs.map.connect(2)

        blogs.map.set_offline(blogs.first, grace=0)

        with pytest.raises((DBAPIError, MappingOfflineError)):
            ended.execute(SELECT_ONE)
        assert neighbour.scalar(SELECT_ONE) == 1
        ended.close()
        neighbour.close()


def test_a_point_goes_offline_without_ending_those_inside(both_urls: NewDatabase) -> None:
    with some_blogs(both_urls) as blogs, blogs.map.connect(1) as inside:
        offline = blogs.map.set_offline(blogs.first, grace=0, terminate=False)

        assert inside.scalar(SELECT_ONE) == 1
        with pytest.raises(MappingOfflineError):
            blogs.map.connect(1)
        with pytest.raises(OperationPendingError, match="MappingInUse"):
            blogs.map.set_offline(offline, grace=0, terminate=False)


@pytest.mark.parametrize("status", [ONLINE, OFFLINE])
def test_an_update_that_is_repeated_changes_nothing_more(
    catalog_urls: NewDatabase, status: MappingStatus
) -> None:
    with some_blogs(catalog_urls) as blogs:
        once = blogs.map.update_mapping(blogs.first, shard=blogs.two, status=status)
        twice = blogs.map.update_mapping(once, shard=blogs.two, status=status)

        assert twice == once
        assert (twice.shard, twice.status) == (blogs.two, status)


def test_a_locked_point_is_taken_offline_and_online_with_its_token_only(
    catalog_urls: NewDatabase,
) -> None:
    with some_blogs(catalog_urls) as blogs, blogs.map.lock(blogs.first) as token:
        for wrong in (None, "another"):
            with pytest.raises(MappingLockedError):
                blogs.map.set_offline(blogs.first, token=wrong)
        offline = blogs.map.set_offline(blogs.first, token=token)
        for wrong in (None, "another"):
            with pytest.raises(MappingLockedError):
                blogs.map.set_online(offline, token=wrong)

        online = blogs.map.set_online(offline, token=token)

        assert (online.is_online, online.lock_owner) == (True, token)


def test_a_point_that_is_not_cached_is_read_from_the_catalog(catalog_urls: NewDatabase) -> None:
    with some_blogs(catalog_urls) as blogs:
        blogs.map.cache.clear()

        assert blogs.map.get(1, lookup="cache") == blogs.first
        assert blogs.map.find_cached(1) == blogs.first
        assert blogs.map.find_cached(2) is None


@pytest.mark.repeated
def test_points_and_shards_that_two_managers_change_at_random_agree_in_both_catalogs(
    both_urls: NewDatabase,
) -> None:
    with some_blogs(both_urls) as blogs, ShardMapManager.open(blogs.url) as second:
        other = second.get_map("blogs", kind="list")
        writers = [RandomWriter(blogs.map, 10), RandomWriter(other, 20)]

        threads = [threading.Thread(target=writer.write) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [writer.failure for writer in writers] == [None, None]
        expected = {1: blogs.one, 2: blogs.one, **writers[0].owners, **writers[1].owners}
        assert {one.key: one.shard for one in blogs.map.mappings()} == expected
        for key, shard in expected.items():
            with other.connect(key) as connection:
                assert connection.engine.url.database == shard.location.database


class RandomWriter:
    """Creates, moves and deletes ten keys of its own, and takes shards offline and online."""

    def __init__(self, shard_map: ListShardMap, first: int) -> None:
        self.map = shard_map
        self.keys = range(first, first + 10)
        self.chance = random.Random(first)
        self.owners: dict[int, Shard] = {}
        self.failure: BaseException | None = None

    def write(self) -> None:
        try:
            for _ in range(CHANGES):
                # The other writer may have taken the shard offline, or changed it just before.
                with contextlib.suppress(ShardOfflineError, ConflictError):
                    self.change()
            for key in self.owners:  # a move that was refused in the middle leaves it offline
                self.map.set_online(key)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            self.failure = error

    def change(self) -> None:
        key, shard = self.chance.choice(self.keys), self.chance.choice(self.map.shards())
        kind = self.chance.choice(["create or move", "delete", "change the shard"])
        if kind == "change the shard":
            self.map.update_shard(shard, status=self.chance.choice(list(ShardStatus)))
        elif key not in self.owners:
            self.map.create_mapping(key, shard)
            self.owners[key] = shard
        elif kind == "delete":
            self.map.delete_mapping(self.map.update_mapping(key, status=OFFLINE))
            del self.owners[key]
        else:
            self.map.update_mapping(key, shard=shard, status=ONLINE)
            self.owners[key] = shard
