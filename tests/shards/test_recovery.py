"""Differences between the catalogs: found, shown and resolved; shards lost and found."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url, update

from partita.errors import (
    CatalogMismatchError,
    MappingOfflineError,
    OperationPendingError,
    ShardExistsError,
    ShardMapNotFoundError,
    ShardNotFoundError,
    ShardOfflineError,
    UsageError,
)
from partita.shards.catalog import executor as execution
from partita.shards.catalog import local_catalog, reconciliation
from partita.shards.catalog.change_plans import MappingRow
from partita.shards.connections.locations import create_file, location_of
from partita.shards.keys.mapping import Shard
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import ShardMap
from support import catalogs
from support.catalogs import (
    OFFLINE,
    Catalog,
    NewDatabase,
    a_catalog,
    assert_catalogs_agree,
    local_rows,
    pending,
    ranges_of,
)

both_urls, catalog_urls = catalogs.both_urls, catalogs.catalog_urls


@contextmanager
def two_shards(urls: NewDatabase) -> Iterator[Catalog]:
    """[0, 100) on the first shard, [100, 200) on the second."""
    with a_catalog(urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 100), catalog.one)
        catalog.tenants.create_mapping(Range(100, 200), catalog.two)
        yield catalog


def put_local(shard_map: ShardMap, shard: Shard, *keys: object) -> None:
    """Make the shard say that it owns exactly these keys, as an old backup would."""
    with shard.connect() as connection:
        (local,) = [
            one for one in local_catalog.list_shards(connection) if one.map.name == shard_map.name
        ]
    rows = []
    for one in keys:
        key_range = shard_map.encode_range(one)
        known = [
            row for row in local.mappings if (row.low, row.high) == (key_range.low, key_range.high)
        ]
        fresh = MappingRow(
            shard_map.executor.new_id(),
            shard_map.id,
            shard.id,
            key_range.low,
            key_range.high,
            "online",
        )
        rows.append(known[0] if known else fresh)
    with shard_map.executor.on_shard(shard.location.text) as connection:
        local_catalog.replace(connection, shard_map.row(), local.row, tuple(rows))


def shown(catalog: Catalog, shard: Shard) -> list[tuple[Range, str]]:
    found = catalog.manager.recovery.differences(shard)
    return [(difference.range, difference.where) for difference in found]


# --- differences ----------------------------------------------------------------------------------


def test_catalogs_that_agree_have_no_differences(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        assert shown(catalog, catalog.one) == []
        assert shown(catalog, catalog.two) == []


def test_mappings_of_another_time_are_shown(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        with catalog.one.connect() as connection:
            connection.execute(update(local_catalog.mappings).values(id="0" * 32))
            connection.commit()

        (difference,) = catalog.manager.recovery.differences(catalog.one)

        assert (difference.map_name, difference.range) == ("tenants", Range(0, 100))
        assert difference.where == "both"
        assert difference.in_global == catalog.tenants.get(5)
        assert difference.in_local is not None
        assert difference.in_local.id == "0" * 32
        assert difference.location == catalog.one.location


def test_another_status_is_shown(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        with catalog.one.connect() as connection:
            connection.execute(update(local_catalog.mappings).values(status="offline"))
            connection.commit()

        assert shown(catalog, catalog.one) == [(Range(0, 100), "both")]


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ([], [(Range(0, 100), "global")]),
        (
            [Range(-50, 150)],
            [(Range(-50, 0), "local"), (Range(0, 100), "both"), (Range(100, 150), "local")],
        ),
        (
            [Range(20, 30)],
            [(Range(0, 20), "global"), (Range(20, 30), "both"), (Range(30, 100), "global")],
        ),
        ([Range(0, 100), Range(500, 600)], [(Range(500, 600), "local")]),
        ([Range(500, 600)], [(Range(0, 100), "global"), (Range(500, 600), "local")]),
        (
            [Range(0, 100), Range(150, None)],
            [(Range(150, 200), "local"), (Range(200, None), "local")],
        ),
        ([Range(0, 50), Range(50, 100)], [(Range(0, 50), "both"), (Range(50, 100), "both")]),
    ],
    ids=["nothing", "wider", "narrower", "extra", "disjoint", "of another shard", "split"],
)
def test_differences_are_cut_at_all_bounds(
    new_sqlite: NewDatabase, local: list[Range], expected: list[tuple[Range, str]]
) -> None:
    with two_shards(new_sqlite) as catalog:
        put_local(catalog.tenants, catalog.one, *local)

        assert shown(catalog, catalog.one) == expected
        assert shown(catalog, catalog.two) == []


def test_keys_that_another_shard_owns_name_it(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        put_local(catalog.tenants, catalog.one, Range(0, 100), Range(150, 160))

        (difference,) = catalog.manager.recovery.differences(catalog.one)

        assert difference.in_global is not None
        assert difference.in_global.shard == catalog.two


def test_points_are_compared(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=str)
        shard = blogs.create_shard(catalog.one.location)
        blogs.create_mappings(["a", "b"], shard)
        put_local(blogs, shard, "b", "c")

        found = catalog.manager.recovery.differences(shard, shard_map=blogs)

        assert [(one.range.low, one.where) for one in found] == [("a", "global"), ("c", "local")]


def test_a_database_that_is_not_a_shard_is_refused(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        recovery = catalog.manager.recovery
        for work in (recovery.differences, recovery.rebuild_local):
            with pytest.raises(ShardNotFoundError):
                work(catalog.manager.location)


# --- resolving ------------------------------------------------------------------------------------

LOCALS = [
    [],
    [Range(-50, 150)],
    [Range(20, 30)],
    [Range(0, 100), Range(500, 600)],
    [Range(50, None)],
    [Range(None, None)],
]


@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_the_global_side_is_kept(new_sqlite: NewDatabase, local: list[Range]) -> None:
    with two_shards(new_sqlite) as catalog:
        before = catalog.tenants.mappings()
        put_local(catalog.tenants, catalog.one, *local)

        catalog.manager.recovery.resolve(catalog.one, keep="global")

        assert catalog.tenants.mappings() == before
        assert shown(catalog, catalog.one) == []
        assert_catalogs_agree(catalog.tenants)
        catalog.tenants.split(at=50)


@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_the_local_side_is_kept_and_others_lose_the_keys(
    catalog_urls: NewDatabase, local: list[Range]
) -> None:
    with two_shards(catalog_urls) as catalog:
        put_local(catalog.tenants, catalog.one, *local)
        claimed = [catalog.tenants.encode_range(one) for one in local]

        catalog.manager.recovery.resolve(catalog.one, keep="local")

        mine = [mapping.key_range for mapping in catalog.tenants.mappings(shard=catalog.one)]
        assert mine == claimed
        for key in (100, 120, 149, 150, 199):
            lost = any(one.contains(catalog.tenants.encode_key(key)) for one in claimed)
            owner = catalog.tenants.get(key).shard
            assert owner == (catalog.one if lost else catalog.two)
        assert_catalogs_agree(catalog.tenants)


def test_local_ranges_are_kept_only_where_asked(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        put_local(catalog.tenants, catalog.one, Range(-50, 150))

        catalog.manager.recovery.resolve(catalog.one, keep="local", only=[Range(-10, 10)])

        assert ranges_of(catalog.tenants) == [
            (Range(-10, 10), catalog.one, True),
            (Range(10, 100), catalog.one, True),
            (Range(100, 200), catalog.two, True),
        ]
        assert_catalogs_agree(catalog.tenants)


def test_the_global_side_is_kept_only_where_asked(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        before = ranges_of(catalog.tenants)
        recovery = catalog.manager.recovery
        put_local(catalog.tenants, catalog.one, Range(-50, -20), Range(20, 150))
        claimed = [(Range(-50, -20), "local"), (Range(100, 150), "local")]

        recovery.resolve(catalog.one, keep="global", only=[Range(0, 20), Range(20, 100)])

        assert shown(catalog, catalog.one) == claimed
        assert [(r, s) for r, s, _ in ranges_of(catalog.tenants)] == [(r, s) for r, s, _ in before]
        with catalog.tenants.connect(5), pytest.raises(CatalogMismatchError):
            catalog.tenants.split(at=50)
        recovery.resolve(catalog.one, keep="global")
        assert shown(catalog, catalog.one) == []
        assert_catalogs_agree(catalog.tenants)
        catalog.tenants.split(at=50)


def test_a_mapping_is_cut_where_only_a_part_of_it_is_resolved(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        recovery = catalog.manager.recovery
        put_local(catalog.tenants, catalog.one)

        recovery.resolve(catalog.one, keep="global", only=[Range(0, 40)])

        assert shown(catalog, catalog.one) == [(Range(40, 100), "global")]
        with catalog.tenants.connect(39):
            pass
        with pytest.raises(MappingOfflineError, match="MappingChanging"):
            catalog.tenants.connect(40)


def test_keys_that_agree_are_left_alone_by_a_resolution_of_others(
    catalog_urls: NewDatabase,
) -> None:
    with two_shards(catalog_urls) as catalog:
        before = catalog.tenants.get(5)
        put_local(catalog.tenants, catalog.one, Range(0, 100), Range(300, 400))

        catalog.manager.recovery.resolve(catalog.one, keep="global", only=[Range(0, 40)])

        assert catalog.tenants.get(5) == before
        assert shown(catalog, catalog.one) == [(Range(300, 400), "local")]


def test_only_may_be_an_iterator_though_the_shard_is_in_two_maps(
    catalog_urls: NewDatabase,
) -> None:
    with two_shards(catalog_urls) as catalog:
        others = catalog.manager.create_range_map("others", key=int)
        others.create_mapping(Range(0, 100), others.create_shard(catalog.one.location))
        for shard_map in (catalog.tenants, others):
            put_local(shard_map, shard_map.get_shard(catalog.one.location))

        catalog.manager.recovery.resolve(catalog.one, keep="global", only=iter([Range(0, 100)]))

        assert shown(catalog, catalog.one) == []


def test_points_are_recovered_from_either_side(both_urls: NewDatabase) -> None:
    with a_catalog(both_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=int)
        one, two = (blogs.create_shard(shard.location) for shard in (catalog.one, catalog.two))
        blogs.create_mappings([1, 2, 3], one)
        blogs.create_mappings([10, 20], two)

        put_local(blogs, one, 1, 10)
        catalog.manager.recovery.resolve(one, keep="global", shard_map=blogs)
        assert [mapping.key for mapping in blogs.mappings(shard=one)] == [1, 2, 3]

        put_local(blogs, one, 1, 10)
        catalog.manager.recovery.resolve(one, keep="local", shard_map=blogs)
        assert [mapping.key for mapping in blogs.mappings(shard=one)] == [1, 10]
        assert [mapping.key for mapping in blogs.mappings(shard=two)] == [20]
        assert_catalogs_agree(blogs)


def test_only_known_sides_can_be_kept(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog, pytest.raises(UsageError):
        catalog.manager.recovery.resolve(catalog.one, keep="newest")  # type: ignore[arg-type]


def test_a_stale_client_is_refused_after_a_resolution(both_urls: NewDatabase) -> None:
    with two_shards(both_urls) as catalog, ShardMapManager.open(catalog.url) as second:
        tenants = second.get_map("tenants")
        assert tenants.get(120).shard == catalog.two
        put_local(catalog.tenants, catalog.one, Range(0, 150))

        catalog.manager.recovery.resolve(catalog.one, keep="local")

        with tenants.connect(120) as connection:
            assert connection.engine.url.database == catalog.one.location.database


def test_a_resolution_that_is_cut_off_is_repeated(
    both_urls: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_shards(both_urls) as catalog:
        put_local(catalog.tenants, catalog.one, Range(0, 150))

        def cut(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(local_catalog, "replace", cut)
            with pytest.raises(KeyboardInterrupt):
                catalog.manager.recovery.resolve(catalog.one, keep="local")

        mapping = catalog.tenants.get(5, lookup="store")
        with pytest.raises(CatalogMismatchError):
            catalog.tenants.update_mapping(mapping, status=OFFLINE)
        catalog.manager.recovery.rebuild_local(catalog.one, catalog.two)
        assert catalog.tenants.get(120, lookup="store").shard == catalog.one
        assert_catalogs_agree(catalog.tenants)


def test_a_restored_shard_is_brought_up_to_date(tmp_path: Path, new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite) as catalog:
        old = Path(catalog.one.location.database)
        backup = tmp_path / "backup"
        catalog.manager.close()
        shutil.copy(old, backup)
        catalog.tenants.split(at=50)
        catalog.manager.close()
        shutil.copy(backup, old)

        with pytest.raises(CatalogMismatchError):
            catalog.tenants.split(at=25)
        catalog.manager.recovery.resolve(catalog.one, keep="global")

        catalog.tenants.split(at=25)
        assert_catalogs_agree(catalog.tenants)


# --- detach and attach ----------------------------------------------------------------------------


def test_a_detached_shard_is_gone_and_comes_back_with_its_mappings(
    both_urls: NewDatabase,
) -> None:
    with two_shards(both_urls) as catalog:
        recovery = catalog.manager.recovery
        recovery.detach(catalog.one)
        assert ranges_of(catalog.tenants) == [(Range(100, 200), catalog.two, True)]
        assert catalog.tenants.find(5) is None

        (attached,) = recovery.attach(catalog.one.location)

        assert attached == catalog.one
        assert shown(catalog, attached) == [(Range(0, 100), "local")]
        recovery.resolve(attached, keep="local")
        assert catalog.tenants.get(5).shard == catalog.one
        assert_catalogs_agree(catalog.tenants)


def test_a_detached_shard_refuses_nobody_who_knows_it_no_more(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        catalog.manager.recovery.detach(catalog.one)
        catalog.tenants.create_mapping(Range(0, 100), catalog.two)
        (attached,) = catalog.manager.recovery.attach(catalog.one.location)

        catalog.manager.recovery.resolve(attached, keep="global")

        assert local_rows(catalog.tenants, catalog.one) == []
        assert_catalogs_agree(catalog.tenants)


def test_a_lost_shard_is_detached_with_its_unfinished_changes(
    tmp_path: Path, new_sqlite: NewDatabase
) -> None:
    with two_shards(new_sqlite) as catalog:
        mapping = catalog.tenants.update_mapping(catalog.tenants.get(150), status=OFFLINE)

        def crash(point: str) -> None:
            if point == "local 0 applied":
                raise KeyboardInterrupt

        catalog.manager.executor.fault = crash
        with pytest.raises(KeyboardInterrupt):
            catalog.tenants.update_mapping(mapping, shard=catalog.one)
        catalog.manager.executor.fault = execution.no_fault
        catalog.manager.close()
        lost = Path(catalog.one.location.database)
        for file in tmp_path.glob(lost.name + "*"):
            file.unlink()
        lost.mkdir()

        with pytest.raises(ShardOfflineError):
            catalog.manager.repair()
        catalog.manager.recovery.detach(catalog.one)

        assert pending(catalog.manager) == []
        assert ranges_of(catalog.tenants) == [(Range(100, 200), catalog.two, False)]
        assert_catalogs_agree(catalog.tenants)


def test_detaching_what_is_not_there_is_silent(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.manager.recovery.detach(catalog.manager.location)

        assert len(catalog.tenants.shards()) == 2


def test_a_shard_that_failed_over_is_attached_under_its_new_name(
    tmp_path: Path, new_sqlite: NewDatabase
) -> None:
    with two_shards(new_sqlite) as catalog:
        catalog.manager.close()
        shutil.copy(catalog.one.location.database, tmp_path / "standby.db")

        (attached,) = catalog.manager.recovery.attach(f"sqlite:///{tmp_path}/standby.db")

        assert attached == catalog.one
        assert catalog.tenants.get(5).shard.location.database.endswith("standby.db")
        assert len(catalog.tenants.shards()) == 2
        with catalog.tenants.connect(5) as connection:
            assert str(connection.engine.url.database).endswith("standby.db")
        catalog.tenants.split(at=50)
        assert_catalogs_agree(catalog.tenants)


def test_only_a_database_with_a_local_catalog_is_attached(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        url = catalog_urls("other")
        create_file(location_of(url))
        for work in (catalog.manager.recovery.attach, catalog.manager.recovery.rebuild_global):
            with pytest.raises(ShardNotFoundError) as refused:
                work(url)
            assert refused.value.code == "LocalCatalogNotFound"


def test_a_location_has_one_shard(new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite) as catalog:
        catalog.manager.close()
        shutil.copy(catalog.one.location.database, catalog.two.location.database)

        with pytest.raises(ShardExistsError):
            catalog.manager.recovery.attach(catalog.two.location)


def test_a_shard_of_an_unknown_map_is_not_attached(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        with ShardMapManager.create(catalog_urls("other")) as other:
            with pytest.raises(ShardMapNotFoundError):
                other.recovery.attach(catalog.one.location)
            other.create_list_map("tenants", key=str)
            with pytest.raises(CatalogMismatchError) as refused:
                other.recovery.attach(catalog.one.location)
        assert refused.value.code == "ShardMapsDiffer"


# --- rebuilding the global catalog ----------------------------------------------------------------


def test_a_lost_catalog_is_rebuilt_from_the_shards(both_urls: NewDatabase) -> None:
    with two_shards(both_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=str)
        blogs.create_mapping("a", blogs.create_shard(catalog.one.location))
        buckets = catalog.manager.create_hash_map("buckets", key=str, buckets=8)
        buckets.create_mapping(Range(0, 8), buckets.create_shard(catalog.two.location))
        catalog.tenants.split(at=50)
        maps = (catalog.tenants, blogs, buckets)
        before = {one.name: (one.id, ranges_of(one), one.mappings()) for one in maps}

        with ShardMapManager.create(make_url(catalog.url), if_exists="replace") as rebuilt:
            rebuilt.recovery.rebuild_global(catalog.one.location, catalog.two.location)

            found = {
                one.name: (one.id, ranges_of(one), one.mappings()) for one in rebuilt.list_maps()
            }
            assert found == before
            for one in rebuilt.list_maps():
                assert_catalogs_agree(one)
            assert rebuilt.get_map("tenants").get(5).shard == catalog.one


def test_a_map_that_was_made_again_takes_its_old_shards_back(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        before = ranges_of(catalog.tenants)
        with ShardMapManager.create(make_url(catalog.url), if_exists="replace") as rebuilt:
            tenants = rebuilt.create_range_map("tenants", key=int)

            rebuilt.recovery.rebuild_global(catalog.one.location, catalog.two.location)

            assert ranges_of(tenants) == before
            assert_catalogs_agree(tenants)


def test_garbage_in_the_catalog_gives_way_to_the_shards(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        before = ranges_of(catalog.tenants)
        recovery = catalog.manager.recovery
        recovery.detach(catalog.two)
        catalog.tenants.create_mapping(Range(100, 130), catalog.one)
        catalog.tenants.create_mapping(Range(190, 300), catalog.one)
        put_local(catalog.tenants, catalog.one, Range(0, 100))

        recovery.rebuild_global(catalog.one.location, catalog.two.location)

        assert ranges_of(catalog.tenants) == before
        assert_catalogs_agree(catalog.tenants)


def test_garbage_points_in_the_catalog_give_way_to_the_shards(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        blogs = catalog.manager.create_list_map("blogs", key=str)
        one, two = (blogs.create_shard(shard.location) for shard in (catalog.one, catalog.two))
        blogs.create_mappings(["a", "b"], one)
        blogs.create_mapping("c", two)
        before = ranges_of(blogs)
        recovery = catalog.manager.recovery
        recovery.detach(two, shard_map=blogs)
        blogs.create_mappings(["c", "d"], one)
        put_local(blogs, one, "a", "b")

        recovery.rebuild_global(catalog.one.location, catalog.two.location)

        assert ranges_of(blogs) == before
        assert_catalogs_agree(blogs)


def test_a_shard_of_a_map_that_was_replaced_is_not_taken_by_its_successor(
    catalog_urls: NewDatabase,
) -> None:
    with two_shards(catalog_urls) as catalog:
        with ShardMapManager.create(make_url(catalog.url), if_exists="replace") as replaced:
            tenants = replaced.create_range_map("tenants", key=int)

            with pytest.raises(CatalogMismatchError) as refused:
                tenants.create_shard(catalog.one.location)
            assert refused.value.code == "ShardHoldsMappings"
            assert tenants.shards() == []

            (shard,) = replaced.recovery.attach(catalog.one.location)
            replaced.recovery.resolve(shard, keep="global")
            tenants.create_mapping(Range(500, 600), shard)
            assert_catalogs_agree(tenants)
        with pytest.raises(ShardMapNotFoundError):  # who still knows the old map
            catalog.tenants.connect(5)


def test_a_shard_without_mappings_is_free_for_a_map_of_the_same_name(
    catalog_urls: NewDatabase,
) -> None:
    with (
        a_catalog(catalog_urls) as catalog,
        ShardMapManager.create(make_url(catalog.url), if_exists="replace") as replaced,
    ):
        tenants = replaced.create_range_map("tenants", key=int)

        tenants.create_mapping(Range(0, 10), tenants.create_shard(catalog.one.location))

        assert replaced.recovery.differences(catalog.one.location) == []
        assert_catalogs_agree(tenants)


def test_shards_that_claim_the_same_keys_stop_a_rebuild(catalog_urls: NewDatabase) -> None:
    with two_shards(catalog_urls) as catalog:
        before = ranges_of(catalog.tenants)
        put_local(catalog.tenants, catalog.one, Range(0, 150))

        with pytest.raises(CatalogMismatchError) as refused:
            catalog.manager.recovery.rebuild_global(catalog.one.location, catalog.two.location)

        assert refused.value.code == "ShardsDisagree"
        assert ranges_of(catalog.tenants) == before


def test_a_live_change_is_not_recovered_from(both_urls: NewDatabase) -> None:
    with two_shards(both_urls) as catalog, ShardMapManager.open(catalog.url) as other:
        refusals: list[str] = []

        def compare(point: str) -> None:
            if point == "local 0 applied":
                with pytest.raises(OperationPendingError) as refused:
                    other.recovery.differences(catalog.one)
                refusals.append(refused.value.code)

        catalog.manager.executor.fault = compare
        catalog.tenants.split(at=50)

        assert refusals == ["OperationPending"]


# --- the rules, without databases -----------------------------------------------------------------

KEYS = range(12)


def _rows(owner: str, bounds: list[int], held: list[bool]) -> list[MappingRow]:
    ordered = sorted(set(bounds))
    return [
        MappingRow(f"{owner}{low}", "map", owner, bytes([low]), bytes([high]), "online")
        for low, high, is_held in zip(ordered, ordered[1:], held, strict=False)
        if is_held
    ]


BOUNDS = st.lists(st.sampled_from(KEYS), max_size=8)
HELD = st.lists(st.booleans(), min_size=12, max_size=12)


def _owner(rows: list[MappingRow], key: int) -> str | None:
    held = [row.id for row in rows if row.low <= bytes([key]) and bytes([key]) < (row.high or b"")]
    assert len(held) <= 1
    return held[0] if held else None


@given(BOUNDS, HELD, HELD, BOUNDS, HELD, st.sampled_from(["global", "local"]))
def test_a_resolution_gives_every_key_the_owner_that_was_chosen(
    bounds: list[int],
    held: list[bool],
    others: list[bool],
    local_bounds: list[int],
    local_held: list[bool],
    keep: reconciliation.CatalogName,
) -> None:
    mine = _rows("mine", bounds, held)
    taken = {row.low for row in mine}
    other = [row for row in _rows("other", bounds, others) if row.low not in taken]
    local = [
        MappingRow(f"local{row.id}", "map", "mine", row.low, row.high, "online")
        for row in _rows("mine", local_bounds, local_held)
    ]
    numbers = iter(range(1_000))

    found = reconciliation.pieces([*mine, *other], local)
    wanted = reconciliation.reconcile(
        "mine", found, lambda _keys: keep, lambda: f"new{next(numbers)}"
    )

    untouched = [row for row in other if row.id not in wanted.removed]
    chosen = local if keep == "local" else mine
    for key in KEYS:
        is_mine = _owner(list(wanted.kept), key) is not None
        assert is_mine == (_owner(chosen, key) is not None)
        is_other = _owner([*untouched, *wanted.left_over], key) is not None
        assert is_other == (_owner(other, key) is not None and not is_mine)
    assert all(KeyRange(row.low, row.high) for row in wanted.left_over)


@given(BOUNDS, HELD)
def test_a_catalog_compared_with_itself_has_no_differences(
    bounds: list[int], held: list[bool]
) -> None:
    rows = _rows("mine", bounds, held)

    assert reconciliation.differences("mine", rows, rows) == []
