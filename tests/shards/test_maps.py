"""Shards, mappings, lookups and locks of shard maps."""

import datetime
import pickle
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import DBAPIError

from partita.errors import (
    ConfigurationError,
    ConflictError,
    InvalidShardKeyError,
    MappingExistsError,
    MappingLockedError,
    MappingNotFoundError,
    MappingOfflineError,
    RangeError,
    ShardExistsError,
    ShardInUseError,
    ShardMapNotFoundError,
    ShardNotFoundError,
    ShardOfflineError,
    StaleMappingError,
    TransactionUseError,
    UsageError,
)
from partita.shards.keys.mapping import Location, Mapping, ShardStatus
from partita.shards.keys.ranges import Range
from partita.shards.keys.shard_key import KEY_BYTES_MAX
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap, ShardMap
from support import catalogs, postgres
from support.catalogs import (
    OFFLINE,
    ONLINE,
    Catalog,
    NewDatabase,
    a_catalog,
    assert_catalogs_agree,
    ranges_of,
)

both_urls, catalog_urls = catalogs.both_urls, catalogs.catalog_urls


# --- shards ---------------------------------------------------------------------------------------


def test_a_shard_is_found_by_its_location(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        found = catalog.tenants.get_shard(catalog.one.location)

        assert found == catalog.one
        assert found.location == catalog.one.location
        assert catalog.tenants.shards() == [catalog.one, catalog.two]
        assert catalog.manager.list_locations() == [catalog.one.location, catalog.two.location]


def test_a_database_is_a_shard_of_a_map_once(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        with pytest.raises(ShardExistsError) as refused:
            catalog.tenants.create_shard(catalog.one.location)

        assert refused.value.code == "ShardExists"
        assert len(catalog.tenants.shards()) == 2


def test_another_way_to_write_a_location_is_the_same_shard(tmp_path: Path) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        shard = tenants.create_shard(f"sqlite:///{tmp_path}/one.db")
        (tmp_path / "folder").mkdir()
        (tmp_path / "link.db").symlink_to("one.db")
        (tmp_path / "linked").symlink_to(tmp_path)

        for url in (
            f"sqlite+pysqlite:///{tmp_path}/one.db",
            f"sqlite:///{tmp_path}//one.db?timeout=9",
            f"sqlite:///{tmp_path}/link.db",
            f"sqlite:///{tmp_path}/folder/../one.db",
            f"sqlite:///{tmp_path}/linked/one.db",
            f"sqlite:///file:{tmp_path}/linked/one.db?uri=true",
        ):
            with pytest.raises(ShardExistsError):
                tenants.create_shard(url)
            assert tenants.get_shard(url) == shard


def test_a_database_can_be_a_shard_of_many_maps_and_hold_the_catalog(
    both_urls: NewDatabase,
) -> None:
    with ShardMapManager.create(both_urls("catalog")) as manager:
        first = manager.create_range_map("first", key=int)
        second = manager.create_list_map("second", key=str)

        one = first.create_shard(manager.location)
        two = second.create_shard(manager.location)
        first.create_mapping(Range(0, 10), one)
        second.create_mapping("a", two)

        assert first.get(5).shard == one
        assert second.get("a").shard == two
        assert_catalogs_agree(first)
        assert_catalogs_agree(second)


def test_a_shard_connects_unrouted(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog, catalog.one.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1


def test_an_unknown_shard_is_refused(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        where = catalog.manager.location

        assert catalog.tenants.find_shard(where) is None
        with pytest.raises(ShardNotFoundError):
            catalog.tenants.get_shard(where)


def test_a_deleted_shard_is_gone_and_can_come_back(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        catalog.tenants.delete_shard(catalog.one)

        assert catalog.tenants.shards() == [catalog.two]
        again = catalog.tenants.create_shard(catalog.one.location)
        assert again != catalog.one
        assert_catalogs_agree(catalog.tenants)


def test_a_shard_is_deleted_once(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.delete_shard(catalog.one)

        with pytest.raises(ShardNotFoundError):
            catalog.tenants.delete_shard(catalog.one)


def test_a_shard_with_mappings_cannot_be_deleted(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one, status=OFFLINE)

        with pytest.raises(ShardInUseError) as refused:
            catalog.tenants.delete_shard(catalog.one)

        assert refused.value.facts["mappings"] == 1
        catalog.tenants.delete_mapping(mapping)
        catalog.tenants.delete_shard(catalog.one)


def test_a_shard_changes_its_status(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        changed = catalog.tenants.update_shard(catalog.one, status=ShardStatus.OFFLINE)

        assert changed.status is ShardStatus.OFFLINE
        assert catalog.tenants.get_shard(catalog.one).status is ShardStatus.OFFLINE
        assert catalog.tenants.get(5).shard.status is ShardStatus.OFFLINE
        assert_catalogs_agree(catalog.tenants)


def test_a_stale_shard_is_not_changed_or_deleted(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.update_shard(catalog.one, status=ShardStatus.OFFLINE)

        with pytest.raises(ConflictError) as refused:
            catalog.tenants.delete_shard(catalog.one)
        assert refused.value.code == "StaleShard"
        with pytest.raises(ConflictError):
            catalog.tenants.update_shard(catalog.one, status=ShardStatus.ONLINE)

        catalog.tenants.delete_shard(catalog.tenants.get_shard(catalog.one))


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("sqlite://", "InvalidLocation"),
        ("sqlite:///:memory:", "InvalidLocation"),
        ("sqlite:///one%00.db", "InvalidLocation"),
        ("sqlite:///one.db?nonsense=1", "InvalidLocation"),
        ("sqlite:///one.db?timeout=soon", "InvalidLocation"),
        ("postgresql+psycopg://h", "InvalidLocation"),
        ("postgresql+psycopg://h:65536/db", "InvalidLocation"),
        ("postgresql+psycopg://h:0/db", "InvalidLocation"),
        ("postgresql+psycopg://u:lion@h:port/db", "InvalidLocation"),
        ("postgresql+psycopg://a b/db", "InvalidLocation"),
        ("one.db", "InvalidLocation"),
        ("x://", "InvalidLocation"),
        ("", "InvalidLocation"),
        (None, "InvalidLocation"),
        (7, "InvalidLocation"),
        ("mysql+pymysql://h/db", "DialectNotSupported"),
        ("postgresql+nothing://h/db", "DriverNotInstalled"),
        ("postgresql+pg8000://h/db", "DriverNotInstalled"),
        (Location("oracle", "h", None, "db"), "DialectNotSupported"),
    ],
    ids=str,
)
def test_urls_that_cannot_be_a_shard_are_refused(tmp_path: Path, url: Any, code: str) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        epoch = tenants.epoch()

        with pytest.raises(ConfigurationError) as refused:
            tenants.create_shard(url)

        assert refused.value.code == code
        assert "lion" not in str(refused.value)
        assert (tenants.shards(), tenants.epoch()) == ([], epoch)


@pytest.mark.parametrize(
    "database", ['odd "name".db', "one two%25.db", "名簿.db", "a;b'c.db", "x?.db"]
)
def test_files_with_odd_names_are_shards(tmp_path: Path, database: str) -> None:
    url = URL.create("sqlite", database=f"{tmp_path}/{database}")
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)

        shard = tenants.create_shard(url)
        tenants.create_mapping(Range(0, 10), shard)

        assert (tmp_path / database).exists()
        assert tenants.get_shard(url) == shard
        with tenants.connect(5) as connection:
            assert connection.scalar(text("SELECT 1")) == 1
        assert_catalogs_agree(tenants)


def test_a_database_whose_name_needs_quoting_is_a_shard(new_sqlite: NewDatabase) -> None:
    server = postgres.server()
    name = 'Odd "name"; %20 名簿'
    server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = make_url(server.url("postgres")).set(database=name)
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        tenants = manager.create_range_map("tenants", key=int)

        shard = tenants.create_shard(url)
        tenants.create_mapping(Range(0, 10), shard)

        with tenants.connect(5) as connection:
            assert connection.scalar(text("SELECT current_database()")) == name
        assert tenants.get_shard(url) == shard
        assert_catalogs_agree(tenants)


def test_a_shard_whose_file_is_lost_does_not_come_back_empty(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/one.db"
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        shard = tenants.create_shard(url)
        mapping = tenants.create_mapping(Range(0, 10), shard)
        manager.close()
        for file in tmp_path.glob("one.db*"):
            file.unlink()

        for use in (
            lambda: tenants.connect(5),
            lambda: tenants.split(mapping, at=5),
            lambda: tenants.update_mapping(mapping, status=OFFLINE),
            lambda: manager.recovery.differences(shard),
            lambda: manager.recovery.attach(url),
            manager.upgrade_store,
        ):
            with pytest.raises(ShardOfflineError) as refused:
                use()
            assert refused.value.code == "ShardUnreachable"
        with pytest.raises(DBAPIError, match=r"one\.db does not exist"):
            shard.connect()

        assert not list(tmp_path.glob("one.db*"))
        manager.recovery.detach(shard)
        assert tenants.mappings() == []


def test_a_catalog_whose_file_is_lost_does_not_come_back_empty(tmp_path: Path) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        manager.close()
        for file in tmp_path.glob("catalog.db*"):
            file.unlink()

        for use in (
            lambda: tenants.get(5),
            tenants.shards,
            manager.list_maps,
            manager.repair,
            lambda: manager.create_list_map("more", key=int),
            lambda: tenants.create_shard(f"sqlite:///{tmp_path}/one.db"),
        ):
            with pytest.raises(ShardOfflineError) as refused:
                use()
            assert refused.value.code == "CatalogUnreachable"

    assert list(tmp_path.iterdir()) == []


def test_shards_compare_by_their_ids(tmp_path: Path) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        one = tenants.create_shard(f"sqlite:///{tmp_path}/one.db")
        two = tenants.create_shard(f"sqlite:///{tmp_path}/two.db")
        again = tenants.get_shard(one)

        assert (one == again, one != again, hash(one) == hash(again)) == (True, False, True)
        assert (one == two, one != two) == (False, True)
        assert one != one.id

        back = pickle.loads(pickle.dumps(one))
        assert (back, back.location, back.status) == (one, one.location, one.status)
        with pytest.raises(TransactionUseError):
            back.connect()


def test_an_offline_shard_gets_no_more_mappings_and_keeps_those_it_has(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        tenants.create_mapping(Range(0, 10), catalog.one)
        elsewhere = tenants.create_mapping(Range(10, 20), catalog.two, status=OFFLINE)
        offline = tenants.update_shard(catalog.one, status=ShardStatus.OFFLINE)

        works: list[Callable[[], object]] = [
            lambda: tenants.create_mapping(Range(20, 30), catalog.one),
            lambda: tenants.update_mapping(elsewhere, shard=catalog.one),
        ]
        for work in works:
            with pytest.raises(ShardOfflineError) as refused:
                work()
            assert refused.value.code == "ShardOffline"

        with tenants.connect(5) as connection:
            assert connection.scalar(text("SELECT 1")) == 1
        tenants.split(at=5)
        tenants.update_shard(offline, status=ShardStatus.ONLINE)
        tenants.create_mapping(Range(20, 30), catalog.one)
        assert_catalogs_agree(tenants)


def test_a_shard_that_cannot_be_reached_is_not_registered(tmp_path: Path) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)

        with pytest.raises(ShardOfflineError) as refused:
            tenants.create_shard(f"sqlite:///{tmp_path}/no/folder/one.db")

        assert refused.value.code == "ShardUnreachable"
        assert_catalogs_agree(tenants)
        assert tenants.shards() == []


# --- list maps ------------------------------------------------------------------------------------


def test_a_key_is_mapped_and_found(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=str)
        one, two = (blogs.create_shard(shard.location) for shard in (catalog.one, catalog.two))

        blogs.create_mapping("a", one)
        blogs.create_mappings(["", "aa", "b"], two)

        assert blogs.get("a").key == "a"
        assert blogs.get("a", lookup="store").shard == one
        assert {blogs.get(key).shard for key in ("", "aa", "b")} == {two}
        assert blogs.find("a\0") is None
        assert blogs.keys() == ["", "a", "aa", "b"]
        assert [mapping.key for mapping in blogs.mappings(Range("a", "b"))] == ["a", "aa"]
        assert [mapping.key for mapping in blogs.mappings(shard=one)] == ["a"]
        assert_catalogs_agree(blogs)


def test_a_key_is_mapped_once(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=datetime.date)
        shard = blogs.create_shard(catalog.one.location)
        day = datetime.date(2024, 2, 29)
        blogs.create_mapping(day, shard)

        with pytest.raises(MappingExistsError) as refused:
            blogs.create_mapping(day, shard)

        assert "2024, 2, 29" in refused.value.message
        assert len(blogs.mappings()) == 1


def test_a_list_map_takes_no_ranges(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=int)
        shard = blogs.create_shard(catalog.one.location)

        with pytest.raises(RangeError) as refused:
            blogs.create_mapping(Range(0, 10), shard)

        assert refused.value.code == "RangeInListMap"
        assert not hasattr(blogs, "split")


def test_a_point_is_moved_and_deleted(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=uuid.UUID)
        one, two = (blogs.create_shard(shard.location) for shard in (catalog.one, catalog.two))
        key = uuid.UUID(int=7)
        mapping = blogs.create_mapping(key, one)

        offline = blogs.update_mapping(mapping, status=OFFLINE)
        moved = blogs.update_mapping(offline, shard=two)
        assert (blogs.get(key).shard, blogs.get(key).is_online) == (two, False)

        blogs.delete_mapping(moved)
        assert blogs.find(key) is None
        assert_catalogs_agree(blogs)


def test_days_are_ranged_over_found_once_and_deleted_once(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        days = catalog.manager.create_list_map("days", key=datetime.date)
        shard = days.create_shard(catalog.one.location)
        first, *_, last = february = [datetime.date(2024, 2, day) for day in range(27, 30)]
        days.create_mappings(february, shard, status=OFFLINE)

        assert [one.key for one in days.mappings(Range(first, last))] == february[:2]
        assert [one.key for one in days.mappings(Range(last, None))] == [last]
        with pytest.raises(MappingExistsError):
            days.create_mapping(last, shard)

        mapping = days.get(last)
        days.delete_mapping(mapping)
        with pytest.raises(StaleMappingError):
            days.delete_mapping(mapping)
        with pytest.raises(MappingNotFoundError):
            days.get(last)
        assert_catalogs_agree(days)


def test_the_longest_keys_are_mapped_in_every_kind_of_map(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        longest = b"\xff" * KEY_BYTES_MAX
        lists = catalog.manager.create_list_map("lists", key=bytes)
        ranges = catalog.manager.create_range_map("ranges", key=bytes)
        one = lists.create_shard(catalog.one.location)
        other = ranges.create_shard(catalog.one.location)

        lists.create_mapping(longest, one)
        ranges.create_mapping(Range(None, longest), other)
        ranges.create_mapping(Range(longest, None), other)

        encoded = lists.get(longest, lookup="store").key_range
        assert (len(encoded.low), len(encoded.high or b"")) == (KEY_BYTES_MAX, KEY_BYTES_MAX + 1)
        assert ranges.get(longest, lookup="store").range == Range(longest, None)
        assert_catalogs_agree(lists)
        assert_catalogs_agree(ranges)


def test_locks_of_points_are_released_by_their_owner_alone(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=int)
        shard = blogs.create_shard(catalog.one.location)
        one, two, three = blogs.create_mappings([1, 2, 3], shard)
        blogs.lock(one, token="mine")
        blogs.lock(two, token="mine")
        blogs.lock(three, token="yours")

        with pytest.raises(MappingLockedError):
            blogs.lock(one, token="yours")
        with pytest.raises(MappingLockedError):
            blogs.unlock("yours", mapping=one)
        assert blogs.unlock("mine") == 2
        assert [blogs.lock_owner(each) for each in (one, two, three)] == [None, None, "yours"]
        blogs.force_unlock(three)
        assert blogs.lock_owner(three) is None


# --- range maps -----------------------------------------------------------------------------------


def test_keys_are_found_in_their_ranges(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        tenants.create_mapping(Range(0, 100), catalog.one)
        tenants.create_mapping(Range(100, 200), catalog.two)

        assert tenants.get(0).range == Range(0, 100)
        assert tenants.get(99).shard == catalog.one
        assert tenants.get(100).shard == catalog.two
        assert tenants.find(200) is None
        assert tenants.find(-1) is None
        with pytest.raises(MappingNotFoundError) as refused:
            tenants.get(200)
        assert refused.value.facts == {"map": "tenants", "key": 200}


def test_the_whole_domain_and_its_edges_are_found(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        tenants = catalog.tenants
        tenants.create_mapping(Range(None, 0), catalog.one)
        tenants.create_mapping(Range(0, None), catalog.two)

        assert tenants.get(-(2**63)).shard == catalog.one
        assert tenants.get(2**63 - 1).shard == catalog.two
        assert ranges_of(tenants) == [
            (Range(None, 0), catalog.one, True),
            (Range(0, None), catalog.two, True),
        ]


def test_one_mapping_may_hold_all_keys(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        everything = catalog.tenants.create_mapping(Range(None, None), catalog.one)

        for key in (-(2**63), 0, 2**63 - 1):
            assert catalog.tenants.get(key) == everything
            with catalog.tenants.connect(key) as connection:
                assert connection.engine.url.database == catalog.one.location.database


@pytest.mark.parametrize(
    "taken",
    [
        Range(100, 200),
        Range(100, 150),
        Range(150, 200),
        Range(120, 130),
        Range(50, 150),
        Range(150, 250),
        Range(0, 300),
        Range(None, 101),
        Range(199, None),
        Range(None, None),
    ],
)
def test_a_range_that_overlaps_is_refused(new_sqlite: NewDatabase, taken: Range) -> None:
    with a_catalog(new_sqlite) as catalog:
        catalog.tenants.create_mapping(Range(100, 200), catalog.one)

        with pytest.raises(MappingExistsError) as refused:
            catalog.tenants.create_mapping(taken, catalog.two)

        assert "Range(100, 200)" in refused.value.message
        assert ranges_of(catalog.tenants) == [(Range(100, 200), catalog.one, True)]
        assert_catalogs_agree(catalog.tenants)


def test_ranges_that_only_touch_are_welcome(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(100, 200), catalog.one)
        catalog.tenants.create_mapping(Range(200, 201), catalog.two)
        catalog.tenants.create_mapping(Range(99, 100), catalog.two)

        assert len(catalog.tenants.mappings()) == 3


def test_many_mappings_are_made_together_or_not_at_all(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        tenants = catalog.tenants
        first = tenants.create_mapping(Range(-5, 0), catalog.two)
        many = tenants.create_mappings([Range(n, n + 1) for n in range(49, -1, -1)], catalog.one)
        more = tenants.create_mappings([Range(n, n + 2) for n in range(100, 700, 2)], catalog.one)
        made = [first, *reversed(many), *more]

        assert tenants.mappings() == made
        assert tenants.cache.mappings() == made
        with pytest.raises(MappingExistsError, match=r"Range\(49, 50\)"):
            tenants.create_mappings([Range(60, 70), Range(49, 50)], catalog.two)
        with pytest.raises(MappingExistsError, match=r"Range\(-5, 0\)"):
            tenants.create_mappings([Range(n, n + 1) for n in range(-300, -4)], catalog.two)
        with pytest.raises(RangeError) as refused:
            tenants.create_mappings([Range(60, 70), Range(69, 71)], catalog.two)
        assert refused.value.code == "RangesOverlap"
        assert tenants.create_mappings([], catalog.two) == []
        assert tenants.mappings() == made


def test_mappings_are_listed_by_range_and_by_shard(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        low = tenants.create_mapping(Range(0, 10), catalog.one)
        middle = tenants.create_mapping(Range(10, 20), catalog.two)
        high = tenants.create_mapping(Range(20, None), catalog.one)

        assert tenants.mappings() == [low, middle, high]
        assert tenants.mappings(Range(9, 11)) == [low, middle]
        assert tenants.mappings(Range(10, 20)) == [middle]
        assert tenants.mappings(Range(None, 10)) == [low]
        assert tenants.mappings(Range(1_000, None)) == [high]
        assert tenants.mappings(shard=catalog.one) == [low, high]
        assert tenants.mappings(Range(5, 15), shard=catalog.one) == [low]


def test_only_an_offline_mapping_is_deleted(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        with pytest.raises(UsageError) as refused:
            catalog.tenants.delete_mapping(mapping)
        assert refused.value.code == "MappingOnline"

        catalog.tenants.delete_mapping(catalog.tenants.set_offline(mapping))
        assert catalog.tenants.mappings() == []
        assert catalog.tenants.find(5) is None
        assert_catalogs_agree(catalog.tenants)


def test_a_change_gives_a_new_id_and_makes_the_old_mapping_stale(
    both_urls: NewDatabase,
) -> None:
    with a_catalog(both_urls) as catalog:
        tenants = catalog.tenants
        old = tenants.create_mapping(Range(0, 10), catalog.one)
        new = tenants.update_mapping(old, status=OFFLINE)

        assert new.id != old.id
        for change in _changes(catalog):
            with pytest.raises(StaleMappingError) as refused:
                change(old)
            assert refused.value.code == "StaleMapping"
        tenants.delete_mapping(new)
        with pytest.raises(StaleMappingError):
            tenants.delete_mapping(new)


def _changes(catalog: Catalog) -> list[Callable[[Any], object]]:
    tenants = catalog.tenants
    return [
        tenants.delete_mapping,
        tenants.set_offline,
        tenants.set_online,
        tenants.lock,
        tenants.force_unlock,
        tenants.lock_owner,
        lambda mapping: tenants.update_mapping(mapping, shard=catalog.two),
        lambda mapping: tenants.split(mapping, at=5),
        lambda mapping: tenants.merge(mapping, mapping),
        lambda mapping: tenants.unlock("token", mapping=mapping),
    ]


def test_a_mapping_of_another_map_is_stale_here(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        others = catalog.manager.create_range_map("others", key=int)
        shard = others.create_shard(catalog.one.location)
        mapping = others.create_mapping(Range(0, 10), shard)

        with pytest.raises(StaleMappingError):
            catalog.tenants.split(mapping, at=5)
        with pytest.raises(ShardNotFoundError):
            catalog.tenants.create_mapping(Range(0, 10), shard)


def test_the_shard_of_an_online_mapping_stays(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        with pytest.raises(UsageError) as refused:
            catalog.tenants.update_mapping(mapping, shard=catalog.two)

        assert refused.value.code == "MappingOnline"
        assert catalog.tenants.get(5).shard == catalog.one


def test_an_offline_mapping_changes_its_shard(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one, status=OFFLINE)

        moved = catalog.tenants.update_mapping(mapping, shard=catalog.two, status=ONLINE)

        assert ranges_of(catalog.tenants) == [(Range(0, 10), catalog.two, True)]
        assert catalog.tenants.get(5, lookup="store") == moved
        assert_catalogs_agree(catalog.tenants)


def test_an_update_of_a_range_that_is_repeated_changes_nothing_more(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants, two = catalog.tenants, catalog.two
        mapping = tenants.create_mapping(Range(0, 10), catalog.one)

        for status in (OFFLINE, ONLINE):
            mapping = tenants.update_mapping(mapping, shard=two, status=status)
            assert tenants.update_mapping(mapping, shard=two, status=status) == mapping

        assert ranges_of(tenants) == [(Range(0, 10), two, True)]
        assert_catalogs_agree(tenants)


def test_an_update_that_changes_nothing_keeps_the_mapping(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        assert catalog.tenants.update_mapping(mapping) == mapping
        assert catalog.tenants.update_mapping(mapping, shard=catalog.one, status=ONLINE) == mapping
        assert catalog.tenants.set_online(mapping) == mapping


# --- split and merge ------------------------------------------------------------------------------


def test_a_split_cuts_a_mapping_on_its_shard(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 100), catalog.one)

        low, high = catalog.tenants.split(at=40)

        assert (low.range, high.range) == (Range(0, 40), Range(40, 100))
        assert catalog.tenants.mappings() == [low, high]
        assert catalog.tenants.get(40, lookup="store") == high
        assert_catalogs_agree(catalog.tenants)


@pytest.mark.parametrize("at", [0, 100, -1, 101])
def test_a_split_point_lies_strictly_inside(new_sqlite: NewDatabase, at: int) -> None:
    with a_catalog(new_sqlite) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 100), catalog.one)

        with pytest.raises(RangeError) as refused:
            catalog.tenants.split(mapping, at=at)

        assert refused.value.code == "SplitOutside"
        assert catalog.tenants.mappings() == [mapping]


def test_a_split_where_nothing_is_mapped_is_refused(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog, pytest.raises(MappingNotFoundError):
        catalog.tenants.split(at=5)


def test_halves_keep_the_status(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 100), catalog.one, status=OFFLINE)

        halves = catalog.tenants.split(at=40)

        assert [half.is_online for half in halves] == [False, False]


def test_a_merge_joins_neighbours(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, None), catalog.one)
        low, high = catalog.tenants.split(at=40)

        merged = catalog.tenants.merge(low, high)

        assert merged.range == Range(0, None)
        assert catalog.tenants.mappings() == [merged]
        assert catalog.tenants.get(40) == merged
        assert_catalogs_agree(catalog.tenants)


def test_what_does_not_touch_is_not_merged(new_sqlite: NewDatabase) -> None:
    with a_catalog(new_sqlite) as catalog:
        tenants = catalog.tenants
        low = tenants.create_mapping(Range(0, 10), catalog.one)
        high = tenants.create_mapping(Range(11, 20), catalog.one)
        last = tenants.create_mapping(Range(20, None), catalog.one)

        for pair in ((low, high), (high, low), (last, high), (last, low), (low, low)):
            with pytest.raises(RangeError) as refused:
                tenants.merge(*pair)
            assert refused.value.code == "NotAdjacent"
        assert tenants.mappings() == [low, high, last]


def test_mappings_of_two_shards_or_states_are_not_merged(new_sqlite: NewDatabase) -> None:
    with a_catalog(new_sqlite) as catalog:
        tenants = catalog.tenants
        first = tenants.create_mapping(Range(0, 10), catalog.one)
        second = tenants.create_mapping(Range(10, 20), catalog.two)
        third = tenants.create_mapping(Range(20, 30), catalog.two, status=OFFLINE)

        for pair in ((first, second), (second, third)):
            with pytest.raises(UsageError) as refused:
                tenants.merge(*pair)
            assert refused.value.code == "MergeMismatch"


# --- composite keys and hash maps -----------------------------------------------------------------


def test_composite_keys_are_ranged_by_their_first_parts(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        regions = catalog.manager.create_range_map("regions", key=(str, int))
        one, two = (regions.create_shard(shard.location) for shard in (catalog.one, catalog.two))
        regions.create_mapping(Range(("eu",), ("ev",)), one)
        regions.create_mapping(Range(("us", 0), ("us", 100)), two)

        assert regions.get(("eu", -5)).shard == one
        assert regions.get(("us", 99)).shard == two
        assert regions.find(("us", 100)) is None
        low, high = regions.split(at=("eu", 7))
        assert (low.range, high.range) == (
            Range(("eu",), ("eu", 7)),
            Range(("eu", 7), ("ev",)),
        )


def test_a_hash_map_spreads_keys_over_buckets(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        events = catalog.manager.create_hash_map("events", key=str, buckets=64)
        one, two = (events.create_shard(shard.location) for shard in (catalog.one, catalog.two))
        events.create_mapping(Range(0, 32), one)
        events.create_mapping(Range(32, None), two)

        shards = [events.get(f"key {n}").shard for n in range(400)]

        assert 120 < shards.count(one) < 280
        low, high = events.split(at=48)
        assert (low.range, high.range) == (Range(32, 48), Range(48, 64))
        assert events.merge(low, high).range == Range(32, 64)
        assert_catalogs_agree(events)


@pytest.mark.parametrize("given", [Range(0, 65), Range(-1, 5), Range("a", None), Range(5, 5), 5])
def test_buckets_outside_are_refused(tmp_path: Path, given: object) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        events = manager.create_hash_map("events", key=str, buckets=64)
        shard = events.create_shard(f"sqlite:///{tmp_path}/one.db")

        with pytest.raises((RangeError, InvalidShardKeyError)):
            events.create_mapping(given, shard)
        assert events.mappings() == []


# --- locks ----------------------------------------------------------------------------------------


def test_a_locked_mapping_is_changed_only_with_its_token(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        mapping = tenants.create_mapping(Range(0, 100), catalog.one)

        with tenants.lock(mapping) as token:
            assert tenants.lock_owner(mapping) == token
            for wrong in (None, "another"):
                for change in (tenants.set_offline, tenants.delete_mapping, tenants.update_mapping):
                    with pytest.raises(MappingLockedError) as refused:
                        change(mapping, token=wrong)
                    assert refused.value.code == "MappingLocked"
                with pytest.raises(MappingLockedError) as refused:
                    tenants.split(mapping, at=5, token=wrong)
                assert token not in str(refused.value)

            offline = tenants.set_offline(mapping, token=token)
            low, high = tenants.split(offline, at=5, token=token)
            assert {low.lock_owner, high.lock_owner} == {token}
            merged = tenants.merge(low, high, token=token)
            online = tenants.set_online(merged, token=token)

        assert tenants.lock_owner(online) is None
        assert tenants.get(5).lock_owner is None
        assert_catalogs_agree(tenants)


def test_an_unlocked_mapping_is_not_changed_with_a_token(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 100), catalog.one)

        with pytest.raises(MappingLockedError) as refused:
            catalog.tenants.split(mapping, at=5, token="mine")

        assert refused.value.code == "MappingNotLocked"


def test_a_lock_is_taken_once_and_released_by_its_owner(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        mapping = tenants.create_mapping(Range(0, 100), catalog.one)
        lock = tenants.lock(mapping, token="mine")

        with pytest.raises(MappingLockedError):
            tenants.lock(mapping)
        with pytest.raises(MappingLockedError):
            tenants.unlock("yours", mapping=mapping)
        assert tenants.unlock("yours") == 0
        assert tenants.lock_owner(mapping) == "mine"

        lock.release()
        assert tenants.lock_owner(mapping) is None


def test_a_lock_can_be_forced_open(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 100), catalog.one)
        catalog.tenants.lock(mapping, token="of somebody gone")

        catalog.tenants.force_unlock(mapping)

        catalog.tenants.split(mapping, at=5)


def test_all_locks_of_one_owner_are_released_and_no_others(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        tenants = catalog.tenants
        made = tenants.create_mappings([Range(n, n + 1) for n in range(3)], catalog.one)
        for mapping, token in zip(made, ("mine", "yours", "mine"), strict=True):
            tenants.lock(mapping, token=token)

        assert tenants.unlock("mine") == 2

        assert [mapping.lock_owner for mapping in tenants.mappings()] == [None, "yours", None]


def test_both_halves_of_a_merge_must_be_locked_alike(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        tenants.create_mapping(Range(0, 10), catalog.one)
        low, high = tenants.split(at=5)
        tenants.lock(low, token="mine")

        for token in (None, "mine"):
            with pytest.raises(MappingLockedError):
                tenants.merge(low, high, token=token)
        tenants.lock(high, token="mine")
        assert tenants.merge(low, high, token="mine").lock_owner == "mine"


def test_a_lock_does_not_stop_lookups(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        with catalog.tenants.lock(mapping), catalog.tenants.connect(5) as connection:
            assert connection.scalar(text("SELECT 1")) == 1


# --- status and routed connections ----------------------------------------------------------------


def test_offline_ends_open_transactions_of_the_mapping_only(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        tenants = catalog.tenants
        tenants.create_mapping(Range(0, 10), catalog.one)
        low, _high = tenants.split(at=5)

        with tenants.connect(7) as neighbour:
            ended = tenants.connect(1)
            tenants.set_offline(low, grace=0.05)
            with pytest.raises((DBAPIError, MappingOfflineError)):
                ended.scalar(text("SELECT 1"))
            ended.close()
            assert neighbour.scalar(text("SELECT 1")) == 1

        assert ranges_of(tenants) == [
            (Range(0, 5), catalog.one, False),
            (Range(5, 10), catalog.one, True),
        ]


def test_offline_and_online_again_routes_again(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        back = catalog.tenants.set_online(catalog.tenants.set_offline(mapping))

        assert back.id != mapping.id
        with catalog.tenants.connect(5) as connection:
            assert connection.scalar(text("SELECT 1")) == 1


def test_set_offline_twice_is_harmless(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        offline = catalog.tenants.set_offline(mapping)

        assert catalog.tenants.set_offline(offline) == offline


def test_a_wrong_token_ends_no_connection(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        tenants = catalog.tenants
        mapping = tenants.create_mapping(Range(0, 10), catalog.one)

        with tenants.lock(mapping), tenants.connect(1) as connection:
            with pytest.raises(MappingLockedError):
                tenants.set_offline(mapping, grace=0, token="wrong")
            assert connection.scalar(text("SELECT 1")) == 1


# --- cache and several managers -------------------------------------------------------------------


def test_a_cached_lookup_asks_nobody(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog, _second(catalog) as second:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one)
        tenants = second.get_map("tenants")
        assert tenants.find_cached(5) is None
        tenants.get(5, lookup="cache")
        tenants.get(6, lookup="cache")

        assert tenants.find_cached(7) is not None
        assert tenants.cache.counters()["hits"] == 2
        assert second.counters["lookups"] >= 3


def test_a_range_that_is_not_cached_is_read_from_the_catalog(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)
        catalog.tenants.cache.clear()

        assert catalog.tenants.get(5, lookup="cache") == mapping
        assert catalog.tenants.find_cached(9) == mapping


def test_another_manager_sees_changes_in_the_store(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog, _second(catalog) as second:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one, status=OFFLINE)
        tenants = second.get_map("tenants")
        assert tenants.get(5) == mapping
        before = tenants.epoch()

        moved = catalog.tenants.update_mapping(mapping, shard=catalog.two)

        # The cache is stale, and validation would tell.
        assert tenants.get(5, lookup="cache") == mapping
        assert tenants.get(5, lookup="store") == moved
        assert tenants.get(5, lookup="cache") == moved
        assert tenants.epoch() > before


def test_get_and_find_read_the_store_unless_the_cache_is_asked_for(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog, _second(catalog) as second:
        ours, theirs = catalog.tenants, second.get_map("tenants")
        before = ours.create_mapping(Range(0, 10), catalog.one)
        theirs.load()

        low, high = ours.split(before, at=5)

        assert theirs.get(3, lookup="cache") == theirs.find(7, lookup="cache") == before
        assert (theirs.get(3), theirs.find(7)) == (low, high)
        assert theirs.set_offline(theirs.get(3), grace=0).range == low.range


_CHANGES: dict[str, Callable[[RangeShardMap, Mapping], object]] = {
    "set_offline": lambda tenants, stale: tenants.set_offline(stale, grace=0),
    "set_online": lambda tenants, stale: tenants.set_online(stale),
    "update_mapping": lambda tenants, stale: tenants.update_mapping(stale, status=OFFLINE),
    "delete_mapping": lambda tenants, stale: tenants.delete_mapping(stale),
    "split": lambda tenants, stale: tenants.split(stale, at=3),
    "merge from the left": lambda tenants, stale: tenants.merge(stale, tenants.get(15)),
    "merge from the right": lambda tenants, stale: tenants.merge(tenants.get(-5), stale),
    "lock": lambda tenants, stale: tenants.lock(stale),
    "unlock": lambda tenants, stale: tenants.unlock("mine", mapping=stale),
    "force_unlock": lambda tenants, stale: tenants.force_unlock(stale),
    "lock_owner": lambda tenants, stale: tenants.lock_owner(stale),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
def test_a_change_that_is_refused_as_stale_drops_the_mapping_from_the_cache(
    catalog_urls: NewDatabase, change: Callable[[RangeShardMap, Mapping], object]
) -> None:
    with a_catalog(catalog_urls) as catalog, _second(catalog) as second:
        ours, theirs = catalog.tenants, second.get_map("tenants")
        assert isinstance(theirs, RangeShardMap)
        mapped = [Range(-10, 0), Range(0, 10), Range(10, 20), Range(20, 30)]
        _, stale, _, _ = ours.create_mappings(mapped, catalog.one)
        theirs.load()
        low, high = ours.split(stale, at=5)

        with pytest.raises(StaleMappingError):
            change(theirs, stale)

        assert theirs.find_cached(3) is theirs.find_cached(7) is None
        assert theirs.get(3, lookup="cache") == low
        assert theirs.get(7, lookup="cache") == high
        assert theirs.find_cached(25) is not None


def test_a_change_that_a_lock_refuses_drops_the_mapping_from_the_cache(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog, _second(catalog) as second:
        ours, theirs = catalog.tenants, second.get_map("tenants")
        mapping = ours.create_mapping(Range(0, 10), catalog.one)
        theirs.load()
        ours.lock(mapping, token="ours")

        with pytest.raises(MappingLockedError):
            theirs.set_offline(mapping, grace=0)

        assert theirs.get(5, lookup="cache").lock_owner == "ours"


def test_a_change_that_the_catalog_cannot_answer_leaves_the_cache_alone(tmp_path: Path) -> None:
    with a_catalog(lambda name: f"sqlite:///{tmp_path / name}.db") as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)
        catalog.manager.close()
        (tmp_path / "catalog.db").rename(tmp_path / "elsewhere.db")

        with pytest.raises(ShardOfflineError):
            catalog.tenants.set_offline(mapping, grace=0)

        assert catalog.tenants.find_cached(5) == mapping


def test_a_mapping_that_another_manager_deleted_leaves_the_cache(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog, _second(catalog) as second:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one, status=OFFLINE)
        tenants = second.get_map("tenants")
        tenants.get(5)

        catalog.tenants.delete_mapping(mapping)

        assert tenants.find(5, lookup="store") is None
        assert tenants.find(5, lookup="cache") is None


def test_another_manager_follows_moves_statuses_and_shards_that_come_back(
    both_urls: NewDatabase,
) -> None:
    with a_catalog(both_urls) as catalog, _second(catalog) as second:
        ours, theirs = catalog.tenants, second.get_map("tenants")
        mapping = ours.create_mapping(Range(0, 10), catalog.one)
        assert _database(theirs) == catalog.one.location.database

        moved = ours.update_mapping(ours.set_offline(mapping, grace=0), shard=catalog.two)
        with pytest.raises(MappingOfflineError):
            theirs.connect(5)
        online = ours.set_online(moved)
        assert _database(theirs) == catalog.two.location.database

        ours.delete_mapping(ours.set_offline(online, grace=0))
        with pytest.raises(MappingNotFoundError):
            theirs.connect(5)
        ours.delete_shard(catalog.two)
        again = ours.create_shard(catalog.two.location)
        ours.create_mapping(Range(0, 10), again)
        assert _database(theirs) == again.location.database


def _database(shard_map: ShardMap) -> str:
    with shard_map.connect(5) as connection:
        return str(connection.engine.url.database)


def test_a_map_that_another_manager_deleted_fails_cleanly(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog, _second(catalog) as second:
        tenants = second.get_map("tenants")
        catalog.tenants.delete_shard(catalog.one)
        catalog.tenants.delete_shard(catalog.two)
        catalog.manager.delete_map("tenants")

        for use in (
            lambda: tenants.get(5),
            tenants.mappings,
            tenants.shards,
            tenants.epoch,
            lambda: tenants.create_mapping(Range(0, 1), catalog.one),
            lambda: tenants.create_shard(catalog.one.location),
        ):
            with pytest.raises(ShardMapNotFoundError):
                use()
        assert second.find_map("tenants") is None


def test_managers_that_change_one_shard_together_take_turns(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog, _second(catalog) as second:
        others = second.get_map("tenants")
        failures: list[BaseException] = []

        def create(shard_map: Any, first: int) -> None:
            try:
                for number in range(first, 20, 2):
                    shard_map.create_mapping(Range(number, number + 1), catalog.one)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion
                failures.append(error)

        threads = [
            threading.Thread(target=create, args=(catalog.tenants, 0)),
            threading.Thread(target=create, args=(others, 1)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert [mapping.range.low for mapping in catalog.tenants.mappings()] == list(range(20))
        assert_catalogs_agree(catalog.tenants)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (Range(10, 0), RangeError),
        (Range(5, 5), RangeError),
        (Range("a", "b"), InvalidShardKeyError),
        (Range(0, 1.5), InvalidShardKeyError),
        (Range(True, 5), InvalidShardKeyError),
        (Range(0, 2**64), InvalidShardKeyError),
        (5, RangeError),
        (None, RangeError),
        ((0, 10), RangeError),
    ],
)
def test_bad_ranges_are_refused_and_nothing_is_written(
    tmp_path: Path, given: object, error: type[Exception]
) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        shard = tenants.create_shard(f"sqlite:///{tmp_path}/one.db")
        epoch = tenants.epoch()

        with pytest.raises(error):
            tenants.create_mapping(given, shard)

        assert tenants.epoch() == epoch
        assert_catalogs_agree(tenants)


@pytest.mark.parametrize("key", ["5", 5.0, None, True, 2**63, b"5"])
def test_bad_keys_are_refused(tmp_path: Path, key: object) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)

        with pytest.raises(InvalidShardKeyError):
            tenants.get(key)


def _second(catalog: Catalog) -> ShardMapManager:
    return ShardMapManager.open(catalog.url)
