"""Making, opening and upgrading catalogs, and their shard maps."""

import datetime
import threading
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, select, text, update

from partita.errors import (
    CatalogMismatchError,
    ConfigurationError,
    DamageError,
    FormatVersionError,
    InvalidShardKeyError,
    PartitaError,
    RangeError,
    SchemaError,
    ShardInUseError,
    ShardMapExistsError,
    ShardMapNotFoundError,
    ShardOfflineError,
    UsageError,
)
from partita.shards import Fleet
from partita.shards.catalog import global_catalog, local_catalog
from partita.shards.connections.locations import location_of
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import HashShardMap, ListShardMap, RangeShardMap
from support import catalogs
from support.catalogs import NewDatabase, a_catalog
from support.routed import Base, count_notes

if TYPE_CHECKING:
    from collections.abc import Callable

both_urls, catalog_urls = catalogs.both_urls, catalogs.catalog_urls


def test_create_over_an_existing_catalog_fails(catalog_urls: NewDatabase) -> None:
    url = catalog_urls("catalog")
    ShardMapManager.create(url).close()

    with pytest.raises(ShardMapExistsError) as refused:
        ShardMapManager.create(url)

    assert refused.value.code == "CatalogExists"


def test_create_with_keep_opens_what_is_there(catalog_urls: NewDatabase) -> None:
    url = catalog_urls("catalog")
    with ShardMapManager.create(url) as first:
        first.create_range_map("tenants", key=int)

    with ShardMapManager.create(url, if_exists="keep") as kept:
        assert [shard_map.name for shard_map in kept.list_maps()] == ["tenants"]


def test_many_can_create_with_keep_at_once(both_urls: NewDatabase) -> None:
    url = both_urls("catalog")
    start, outcomes = threading.Barrier(8), list[object]()

    def create() -> None:
        start.wait()
        try:
            with ShardMapManager.create(url, if_exists="keep") as manager:
                outcomes.append(manager.list_maps())
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            outcomes.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes == [[]] * 8


def test_create_with_replace_starts_anew(both_urls: NewDatabase) -> None:
    url = both_urls("catalog")
    with ShardMapManager.create(url) as first:
        first.create_range_map("tenants", key=int)

    with ShardMapManager.create(url, if_exists="replace") as second:
        assert second.list_maps() == []


def test_open_gives_an_existing_catalog(catalog_urls: NewDatabase) -> None:
    url = catalog_urls("catalog")
    with ShardMapManager.create(url) as first:
        made = first.create_list_map("tenants", key=str)

    with ShardMapManager.open(url) as second:
        found = second.get_map("tenants")

    assert isinstance(found, ListShardMap)
    assert (found.id, found.key_type) == (made.id, made.key_type)


def test_open_without_a_catalog_is_refused(both_urls: NewDatabase) -> None:
    with pytest.raises(ShardMapNotFoundError) as refused:
        ShardMapManager.open(both_urls("empty"))

    assert refused.value.code == "CatalogNotFound"


def test_open_leaves_no_file_behind(tmp_path: Path) -> None:
    assert ShardMapManager.try_open(f"sqlite:///{tmp_path}/none.db") is None
    assert list(tmp_path.iterdir()) == []


def test_try_open_gives_none_where_nothing_is(catalog_urls: NewDatabase) -> None:
    assert ShardMapManager.try_open(catalog_urls("empty")) is None


def test_try_open_gives_the_catalog_that_is_there(both_urls: NewDatabase) -> None:
    url = both_urls("catalog")
    ShardMapManager.create(url).close()

    manager = ShardMapManager.try_open(url)

    assert manager is not None
    manager.close()


def test_eager_load_fills_the_cache(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one)
        catalog.tenants.create_mapping(Range(10, 20), catalog.two)
        url = catalog.manager.engines.for_location(catalog.manager.location).url

        with ShardMapManager.open(url, load="eager") as eager:
            tenants = eager.get_map("tenants")
            assert len(tenants.cache) == 2
            assert tenants.get(5).shard == catalog.one
            assert eager.counters["misses"] == 0

        with ShardMapManager.open(url) as lazy:
            assert len(lazy.get_map("tenants").cache) == 0


@pytest.mark.parametrize(
    "key",
    [
        int,
        str,
        bytes,
        uuid.UUID,
        datetime.date,
        datetime.datetime,
        datetime.timedelta,
        Decimal,
        (str, int),
    ],
)
def test_maps_of_every_key_type_come_back(new_sqlite: NewDatabase, key: object) -> None:
    url = new_sqlite("catalog")
    with ShardMapManager.create(url) as first:
        first.create_range_map("ranges", key=key)
        first.create_list_map("lists", key=key)
        first.create_hash_map("hashes", key=key, buckets=16)

    with ShardMapManager.open(url) as second:
        kinds = {shard_map.name: type(shard_map) for shard_map in second.list_maps()}
        second.get_map("ranges", kind="range", key=key)

    assert kinds == {"ranges": RangeShardMap, "lists": ListShardMap, "hashes": HashShardMap}


def test_a_name_is_taken_once_whatever_the_kind(catalog_urls: NewDatabase) -> None:
    with ShardMapManager.create(catalog_urls("catalog")) as manager:
        manager.create_list_map("tenants", key=int)

        with pytest.raises(ShardMapExistsError) as refused:
            manager.create_range_map("tenants", key=int)

        assert refused.value.code == "ShardMapExists"
        assert refused.value.facts == {"map": "tenants"}
        assert [type(one) for one in manager.list_maps()] == [ListShardMap]


def test_an_unknown_map_is_refused(catalog_urls: NewDatabase) -> None:
    with ShardMapManager.create(catalog_urls("catalog")) as manager:
        assert manager.find_map("tenants") is None
        with pytest.raises(ShardMapNotFoundError):
            manager.get_map("tenants")


def test_a_map_of_another_kind_or_key_is_refused(catalog_urls: NewDatabase) -> None:
    with ShardMapManager.create(catalog_urls("catalog")) as manager:
        manager.create_list_map("tenants", key=int)

        for asked in ({"kind": "range"}, {"key": str}, {"kind": "list", "key": (int, int)}):
            with pytest.raises(UsageError) as refused:
                manager.get_map("tenants", **asked)
            assert refused.value.code == "ShardMapMismatch"


def test_a_deleted_map_is_gone(catalog_urls: NewDatabase) -> None:
    with ShardMapManager.create(catalog_urls("catalog")) as manager:
        manager.create_list_map("tenants", key=int)

        manager.delete_map("tenants")

        assert manager.list_maps() == []
        manager.create_range_map("tenants", key=str)
        assert manager.get_map("tenants").kind == "range"


def test_deleting_a_missing_map_is_silent(catalog_urls: NewDatabase) -> None:
    with ShardMapManager.create(catalog_urls("catalog")) as manager:
        manager.delete_map("tenants")


def test_maps_that_another_manager_creates_and_deletes_are_seen_at_once(
    both_urls: NewDatabase,
) -> None:
    url = both_urls("catalog")
    with ShardMapManager.create(url) as ours, ShardMapManager.open(url) as theirs:
        assert theirs.list_maps() == []

        made = ours.create_list_map("tenants", key=int)
        assert theirs.get_map("tenants").id == made.id

        ours.delete_map("tenants")
        again = ours.create_range_map("tenants", key=str)
        found = theirs.get_map("tenants")
        assert (found.id, found.kind) == (again.id, "range")


def test_a_database_of_two_maps_is_one_location(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=int)
        blogs.create_shard(catalog.one.location)

        locations = catalog.manager.list_locations()

        assert locations == [catalog.one.location, catalog.two.location]


def test_a_map_with_shards_cannot_be_deleted(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        with pytest.raises(ShardInUseError) as refused:
            catalog.manager.delete_map("tenants")

        assert refused.value.code == "ShardMapHasShards"
        assert len(catalog.tenants.shards()) == 2


@pytest.mark.parametrize("name", ["", "x" * 51, "two\nlines", " led", "trailed ", "nul\0", 7, None])
def test_bad_names_are_refused(tmp_path: Path, name: object) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        with pytest.raises(UsageError) as refused:
            manager.create_range_map(name, key=int)  # type: ignore[arg-type]

        assert refused.value.code == "InvalidShardMapName"
        assert manager.list_maps() == []


NAMES = ["x" * 50, 'sem"i;--', "'quoted'", "名簿", "%s {0} :x", "a.b c"]


def test_names_that_need_quoting_work(both_urls: NewDatabase) -> None:
    with ShardMapManager.create(both_urls("catalog")) as manager:
        url = both_urls("one")
        for name in NAMES:
            made = manager.create_range_map(name, key=int)
            made.create_mapping(Range(0, 1), made.create_shard(url))

            assert manager.get_map(name).get(0).map_name == name
        assert sorted(one.name for one in manager.list_maps()) == sorted(NAMES)


@pytest.mark.parametrize("key", [float, list, None, "int", (), (int,), (int, float), object()])
def test_bad_key_types_are_refused(tmp_path: Path, key: object) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        with pytest.raises(InvalidShardKeyError):
            manager.create_range_map("tenants", key=key)
        assert manager.list_maps() == []


@pytest.mark.parametrize("buckets", [0, -1, 2**31 + 1, "8", None])
def test_bad_numbers_of_buckets_are_refused(tmp_path: Path, buckets: object) -> None:
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        with pytest.raises(UsageError) as refused:
            manager.create_hash_map("tenants", key=int, buckets=buckets)  # type: ignore[arg-type]
        assert refused.value.code == "InvalidBuckets"


@pytest.mark.parametrize("options", [{"if_exists": "maybe"}, {"load": "now"}])
def test_unknown_options_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refused:
        ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db", **options)  # type: ignore[arg-type]
    assert refused.value.code == "UnknownOption"


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "postgresql+psycopg://host", "sqlite://host/x.db"]
)
def test_urls_that_cannot_be_a_catalog_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        ShardMapManager.create(url)


def test_a_catalog_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    with pytest.raises(ShardOfflineError) as refused:
        ShardMapManager.create(f"sqlite:///{tmp_path}/no/folder/catalog.db")
    assert refused.value.code == "CatalogUnreachable"


def test_the_schema_is_stored_with_the_map(both_urls: NewDatabase) -> None:
    metadata = MetaData()
    Table("blog", metadata, Column("tenant_id", Integer, primary_key=True))
    schema = ShardedSchema(metadata, keys={"blog": "tenant_id"})
    url = both_urls("catalog")
    with ShardMapManager.create(url) as first:
        made = first.create_range_map("tenants", key=int, schema=schema)
        assert made.schema is schema

    with ShardMapManager.open(url) as second:
        found = second.get_map("tenants")
        assert found.schema == schema
        found.set_schema(None)

    with ShardMapManager.open(url) as third:
        assert third.get_map("tenants").schema is None


def test_the_schema_of_one_map_is_replaced_and_those_of_others_are_not(
    catalog_urls: NewDatabase,
) -> None:
    metadata = MetaData()
    for name in ("blog", "post"):
        Table(name, metadata, Column("tenant_id", Integer, primary_key=True))
    blog, post = (ShardedSchema(metadata, keys={name: "tenant_id"}) for name in ("blog", "post"))
    url = catalog_urls("catalog")
    with ShardMapManager.create(url) as first:
        for name in ("tenants", "others"):
            first.create_range_map(name, key=int, schema=blog)
        first.create_list_map("bare", key=int)

        first.get_map("tenants").set_schema(post)

    with ShardMapManager.open(url) as second:
        schemas = {one.name: one.schema for one in second.list_maps()}
    assert schemas == {"tenants": post, "others": blog, "bare": None}


def test_a_schema_that_another_process_stores_is_read_with_the_map(
    catalog_urls: NewDatabase,
) -> None:
    metadata = MetaData()
    Table("blog", metadata, Column("tenant_id", Integer, primary_key=True))
    schema = ShardedSchema(metadata, keys={"blog": "tenant_id"})
    url = catalog_urls("catalog")
    with ShardMapManager.create(url) as first, ShardMapManager.open(url) as second:
        made = first.create_range_map("tenants", key=int)
        other = second.get_map("tenants")
        other.set_schema(schema)

        assert first.get_map("tenants") is made
        assert made.schema == schema

        other.set_schema(None)
        assert made.read_schema() is None
        other.set_schema(schema)
        assert other.read_schema() is schema


def test_a_schema_that_does_not_fit_the_key_is_refused(tmp_path: Path) -> None:
    metadata = MetaData()
    Table("blog", metadata, Column("tenant_id", Integer, primary_key=True))
    schema = ShardedSchema(metadata, keys={"blog": "tenant_id"})
    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        with pytest.raises(SchemaError):
            manager.create_range_map("tenants", key=(int, int), schema=schema)
        assert manager.list_maps() == []


@pytest.mark.parametrize("work", ["create range", "create list", "delete"])
def test_a_map_operation_that_is_cut_off_changes_nothing(both_urls: NewDatabase, work: str) -> None:
    works: dict[str, Callable[[ShardMapManager], object]] = {
        "create range": lambda manager: manager.create_range_map("new", key=int),
        "create list": lambda manager: manager.create_list_map("new", key=int),
        "delete": lambda manager: manager.delete_map("there"),
    }
    with ShardMapManager.create(both_urls("catalog")) as manager:
        manager.create_list_map("there", key=int)
        before = [shard_map.name for shard_map in manager.list_maps()]

        def cut(_point: str) -> None:
            raise KeyboardInterrupt

        manager.executor.fault = cut
        with pytest.raises(KeyboardInterrupt):
            works[work](manager)

        assert [shard_map.name for shard_map in manager.list_maps()] == before


# --- versions -------------------------------------------------------------------------------------


def test_another_minor_version_is_welcome(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        _set_version(catalog.manager, minor=7)
        url = catalog.manager.engines.for_location(catalog.manager.location).url

        with ShardMapManager.open(url) as second:
            second.get_map("tenants").create_mapping(Range(0, 1), catalog.one)


def test_a_damaged_version_is_not_taken_for_another_one(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        with catalog.one.connect() as connection:
            connection.execute(update(local_catalog.store).values(major=3))
            connection.commit()
        with pytest.raises(DamageError) as local:
            catalog.tenants.create_mapping(Range(0, 1), catalog.one)
        _set_version(catalog.manager, major=3)
        url = catalog.manager.engines.for_location(catalog.manager.location).url

        with pytest.raises(DamageError) as refused:
            ShardMapManager.open(url)

        assert (local.value.code, refused.value.code) == ("StoreDamaged", "StoreDamaged")


def test_another_major_version_is_refused(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        _set_version(catalog.manager, id=2, major=2)
        url = catalog.manager.engines.for_location(catalog.manager.location).url

        with pytest.raises(FormatVersionError) as refused:
            ShardMapManager.open(url)
        assert refused.value.code == "CatalogVersion"
        with pytest.raises(FormatVersionError):  # who opened it before the upgrade, too
            catalog.tenants.create_mapping(Range(0, 1), catalog.one)


def test_a_shard_of_another_major_version_is_refused(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        with catalog.one.connect() as connection:
            connection.execute(update(local_catalog.store).values(id=2, major=2))
            connection.commit()
        other = catalog.manager.create_range_map("others", key=int)

        with pytest.raises(FormatVersionError) as refused:
            other.create_shard(catalog.one.location)

        assert refused.value.code == "LocalCatalogVersion"
        assert other.shards() == []
        with pytest.raises(FormatVersionError):
            catalog.tenants.create_mapping(Range(0, 1), catalog.one)
        assert catalog.tenants.mappings() == []


def test_upgrade_brings_all_catalogs_to_this_version(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        _set_version(catalog.manager, minor=-1)
        with catalog.two.connect() as connection:
            connection.execute(update(local_catalog.store).values(minor=-1))
            connection.commit()

        catalog.manager.upgrade_store()
        catalog.manager.upgrade_store()

        with catalog.manager.executor.engine.connect() as connection:
            assert connection.scalar(select(global_catalog.store.c.minor)) == global_catalog.MINOR
        with catalog.two.connect() as connection:
            assert connection.scalar(select(local_catalog.store.c.minor)) == local_catalog.MINOR


def test_no_catalog_holds_a_secret(new_sqlite: NewDatabase, tmp_path: Path) -> None:
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        tenants = manager.create_range_map("tenants", key=int)
        with pytest.raises(PartitaError):
            tenants.create_shard("postgresql+psycopg://scott:tiger@127.0.0.1:1/db?password=lion")

    for file in tmp_path.iterdir():
        for secret in (b"scott", b"tiger", b"lion"):
            assert secret not in file.read_bytes()


def _set_version(manager: ShardMapManager, **values: int) -> None:
    with manager.executor.engine.begin() as connection:
        connection.execute(update(global_catalog.store).values(**values))


def test_engine_options_hold_for_every_connection() -> None:
    url = catalogs.an_empty_database("catalog")
    options = {"pool_size": 2, "max_overflow": 0, "connect_args": {"application_name": "shop"}}
    with ShardMapManager.create(url, engine_options=options) as manager:
        engines, location = manager.engines, manager.location

        for engine in (engines.for_location(location), engines.admin(location)):
            with engine.connect() as connection:
                assert connection.scalar(text("SHOW application_name")) == "shop"
        manager.create_range_map("tenants", key=int).create_shard(location)


def test_a_login_is_found_for_the_server_that_it_was_given_for(new_sqlite: NewDatabase) -> None:
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        location = manager.engines.remember("postgresql+psycopg://scott:tiger@host/one")
        sibling = location_of("postgresql+psycopg://host/two")

        login = manager.engines.login(sibling)

        assert login is not None
        assert (login.username, login.password) == ("scott", "tiger")
        assert "tiger" not in repr(location)
        assert manager.engines.login(location_of("postgresql+psycopg://other/one")) is None


def test_counters_show_what_was_done(new_sqlite: NewDatabase) -> None:
    with a_catalog(new_sqlite) as catalog:
        tenants, before = catalog.tenants, catalog.manager.counters["operations"]
        tenants.create_mapping(Range(0, 10), catalog.one)
        tenants.split(at=5)
        tenants.cache.clear()

        tenants.get(1, lookup="cache")
        tenants.get(2, lookup="cache")
        tenants.get(7, lookup="cache")

        counters = catalog.manager.counters
        assert counters["operations"] - before == 2
        assert (counters["hits"], counters["misses"]) == (1, 2)
        assert counters["lookups"] == counters["hits"] + counters["misses"]


def test_a_declarative_base_is_taken_for_its_metadata() -> None:
    schema = ShardedSchema(Base, keys={"note": "tenant_id"})  # type: ignore[arg-type]
    assert schema == ShardedSchema(Base.metadata, keys={"note": "tenant_id"})


def test_one_range_or_one_text_is_not_a_list_of_mappings(new_sqlite: NewDatabase) -> None:
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        names = manager.create_list_map("names", key=str)
        fleet = Fleet(manager, metadata=Base.metadata)
        with pytest.raises(RangeError, match="InvalidRange"):
            fleet.add_shard(names, new_sqlite("one"), mappings="acme")
        with pytest.raises(RangeError, match="InvalidRange"):
            fleet.add_shard(names, new_sqlite("one"), mappings=Range("a", "b"))  # type: ignore[arg-type]
        assert names.shards() == []


def test_a_shard_may_be_named_by_its_url_where_one_is_wanted(new_sqlite: NewDatabase) -> None:
    schema = ShardedSchema(Base.metadata, keys={"note": "tenant_id"})
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        fleet = Fleet(manager, metadata=Base.metadata)
        fleet.add_shard(tenants, new_sqlite("one"))
        two = fleet.add_shard(tenants, new_sqlite("two"))
        mapping = tenants.create_mapping(Range(0, 10), new_sqlite("one"))
        assert fleet.move(mapping, to=new_sqlite("two")).state == "done"
        assert tenants.get(5).shard == two


def test_an_empty_database_in_the_place_of_a_shard_is_told(new_sqlite: NewDatabase) -> None:
    with ShardMapManager.create(new_sqlite("catalog")) as manager:
        tenants = manager.create_range_map("tenants", key=int)
        fleet = Fleet(manager, metadata=Base)  # type: ignore[arg-type]
        shard = fleet.add_shard(tenants, new_sqlite("one"), mappings=[Range(0, 10)])
        with shard.connect() as connection:
            connection.exec_driver_sql("DROP TABLE partita_local_mappings")
            connection.commit()
        with pytest.raises(CatalogMismatchError, match="LocalCatalogDiffers"):
            tenants.run(5, lambda session: session.scalar(count_notes))
