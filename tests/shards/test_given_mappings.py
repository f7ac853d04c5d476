"""A mapping is given itself, by its range, or by one of its keys, in every change of a map."""

import pytest

from partita.errors import (
    MappingNotFoundError,
    ShardNotFoundError,
    ShardOfflineError,
    UsageError,
)
from partita.shards import MappingStatus, Range, ShardStatus
from support import catalogs
from support.catalogs import OFFLINE, ONLINE, NewDatabase, a_catalog, assert_catalogs_agree

catalog_urls = catalogs.catalog_urls


@pytest.mark.parametrize("given", [5, Range(0, 10)])
def test_a_mapping_is_taken_offline_and_online_by_key_or_range(
    catalog_urls: NewDatabase, given: object
) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        assert not catalog.tenants.set_offline(given).is_online
        assert catalog.tenants.set_online(given).is_online
        assert_catalogs_agree(catalog.tenants)


def test_a_mapping_is_locked_split_merged_and_deleted_by_key(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        tenants.create_mapping(Range(0, 10), catalog.one)

        with tenants.lock(5) as token:
            assert tenants.lock_owner(Range(0, 10)) == token
        tenants.split(5, at=4)
        merged = tenants.merge(0, Range(4, 10))
        tenants.set_offline(9)
        tenants.delete_mapping(3)

        assert merged.range == Range(0, 10)
        assert tenants.mappings() == []


def test_a_range_that_no_mapping_has_is_refused_with_those_that_it_touches(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        with pytest.raises(MappingNotFoundError) as refused:
            catalog.tenants.set_offline(Range(0, 5))

        assert refused.value.facts["mappings"] == [Range(0, 10)]


def test_two_mappings_are_merged_under_two_tokens(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        left, right = tenants.create_mappings([Range(0, 5), Range(5, 10)], catalog.one)
        tokens = tenants.lock(left).token, tenants.lock(right).token

        merged = tenants.merge(left, right, token=tokens)

        assert (merged.range, tenants.lock_owner(merged)) == (Range(0, 10), tokens[0])


@pytest.mark.parametrize("status", [ONLINE, OFFLINE])
def test_shard_and_status_of_an_online_mapping_change_in_one_call(
    catalog_urls: NewDatabase, status: MappingStatus
) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        moved = catalog.tenants.update_mapping(5, shard=catalog.two, status=status)

        assert (moved.shard, moved.status) == (catalog.two, status)
        assert_catalogs_agree(catalog.tenants)


def test_the_shard_of_an_online_mapping_alone_is_not_changed(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        with pytest.raises(UsageError) as refused:
            catalog.tenants.update_mapping(5, shard=catalog.two)

        assert refused.value.code == "MappingOnline"


def test_a_change_to_a_shard_that_refuses_it_leaves_an_online_mapping_online(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)
        others = catalog.manager.create_range_map("others", key=int)
        foreign = others.create_shard(catalog.two.location)
        offline = catalog.tenants.update_shard(catalog.two, status=ShardStatus.OFFLINE)

        with pytest.raises(ShardOfflineError):
            catalog.tenants.update_mapping(5, shard=offline, status=ONLINE)
        with pytest.raises(ShardNotFoundError):
            catalog.tenants.update_mapping(5, shard=foreign, status=ONLINE)

        assert catalog.tenants.mappings() == [mapping]
        assert_catalogs_agree(catalog.tenants)


def test_mappings_are_listed_by_a_key_a_mapping_and_the_url_of_their_shard(
    catalog_urls: NewDatabase,
) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        left = tenants.create_mapping(Range(0, 10), catalog.one)
        right = tenants.create_mapping(Range(10, 20), catalog.two)

        assert tenants.mappings(5) == tenants.mappings(left) == [left]
        assert tenants.mappings(shard=catalog_urls("two")) == [right]
        assert tenants.mappings(30) == []
        with pytest.raises(ShardNotFoundError):
            tenants.mappings(shard="sqlite:////nowhere.db")


@pytest.mark.parametrize("given", [5, Range(2, 3)])
def test_a_mapping_is_forgotten_by_key_or_range(catalog_urls: NewDatabase, given: object) -> None:
    with a_catalog(catalog_urls) as catalog:
        tenants = catalog.tenants
        tenants.create_mappings([Range(0, 10), Range(10, 20)], catalog.one)

        tenants.forget(given)

        assert tenants.find_cached(5) is None
        assert tenants.find_cached(15) is not None


def test_a_mapping_changes_to_the_shard_at_a_url(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        catalog.tenants.create_mapping(Range(0, 10), catalog.one, status=OFFLINE)

        changed = catalog.tenants.update_mapping(5, shard=catalog_urls("two"))

        assert changed.shard == catalog.two
        assert_catalogs_agree(catalog.tenants)


def test_a_local_catalog_is_rebuilt_for_a_mapping(catalog_urls: NewDatabase) -> None:
    with a_catalog(catalog_urls) as catalog:
        mapping = catalog.tenants.create_mapping(Range(0, 10), catalog.one)

        catalog.manager.recovery.rebuild_local(catalog.one, only=[mapping])

        assert_catalogs_agree(catalog.tenants)
