"""Front ends over several shards: routing, scans, what goes on while a database is away."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from functools import cache

import pytest

from partita.errors import (
    ConfigurationError,
    StoreBusyError,
    TableNotFoundError,
    UnavailableError,
)
from partita.policies import Policy
from partita.scaleout import fleet as fleet_module
from partita.scaleout.catalog import staleness
from partita.scaleout.catalog.sizes import measure
from partita.scaleout.connections.location import Location
from partita.scaleout.copying.postgres_source import PostgresSource
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.filters import parse
from partita.tables.operations import EntityGroup, InsertOrReplace
from partita.tables.paging import KeyRange
from partita.tables.plan import plan
from partita.tables.store import Table
from support.many_shards import BOUNDS, SplitStore, cut_table, execute, new_fleet
from support.shards_away import away

KEYS = [EntityKey(text, "r") for text in ("", "a", "b", "c", "k", "m", "p", "q", "s", "z", "zz")]
ON_HOME = ("", "a", "p", "q")
"""Partition keys of `KEYS` whose ranges are on the catalog's own database."""


@cache
def urls() -> list[str]:
    return new_fleet(3)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, "REPEAT_SECONDS_MAX", 0.05)
    monkeypatch.setattr(fleet_module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(fleet_module, "BEAT_AGAIN_SECONDS", 0.05)


@pytest.fixture
async def store() -> AsyncIterator[SplitStore]:
    execute(urls()[0], "UPDATE partita.shard SET state = 'o'")
    opened = await SplitStore.open_on(urls(), f"shards{uuid.uuid4().hex[:12]}")
    yield opened
    await opened.close()


async def put(store: SplitStore, table: Table, *keys: EntityKey, age: int = 1) -> None:
    for key in keys:
        group = EntityGroup([InsertOrReplace(key, {"Age": age})])
        await TableEngine(store).run(table.name, group)


async def entities_on(url: str, table: Table) -> set[object]:
    rows = await asyncio.to_thread(
        execute, url, "SELECT pk FROM partita.entity WHERE tid = %s", table.id
    )
    return {row[0] for row in rows}


async def until_catalog(store: SplitStore, *, is_away: bool) -> None:
    async with asyncio.timeout(10):
        while store.fleet._is_catalog_away is not is_away:  # noqa: ASYNC110 - a private flag
            await asyncio.sleep(0.01)


async def test_each_entity_is_on_the_shard_of_its_range(store: SplitStore) -> None:
    table = await store.create_table("Staff")
    await put(store, table, *KEYS)

    assert await entities_on(urls()[0], table) == set(ON_HOME)
    assert await entities_on(urls()[1], table) == {"b", "c", "s"}
    assert await entities_on(urls()[2], table) == {"k", "m", "z", "zz"}


async def test_a_scan_reads_all_shards_in_key_order(store: SplitStore) -> None:
    table = await store.create_table("Staff")
    await put(store, table, *KEYS)

    whole = await store.scan(table, KeyRange(), None, 100)
    first = await store.scan(table, KeyRange(), parse("Age eq 1"), 5)
    assert first.continuation is not None
    rest = await store.scan(table, KeyRange(first.continuation), parse("Age eq 1"), 100)

    assert [entity.key for entity in whole.entities] == KEYS
    assert [entity.key for entity in [*first.entities, *rest.entities]] == KEYS
    assert (await store.statistics(table, KeyRange())).entities == len(KEYS)


async def test_a_new_table_is_on_the_open_shard_with_the_fewest_ranges(store: SplitStore) -> None:
    await store.create_table("Staff")  # it has two ranges on each shard
    execute(urls()[0], "UPDATE partita.shard SET state = 'd' WHERE id <> 2")
    execute(urls()[0], "UPDATE partita.shard SET version = partita.catalog_changed_1()")
    await store.fleet.catalog.refresh()

    table = await super(SplitStore, store).create_table("Other")

    ranges = store.fleet.catalog.ranges_of(table.id)
    assert ranges is not None
    assert [(each.lo, each.hi, each.shard) for each in ranges.ranges] == [("", None, 2)]
    await put(store, table, EntityKey("p", "r"))
    assert await entities_on(urls()[2], table) == {"p"}


async def test_a_fleet_without_an_open_shard_refuses_new_tables(store: SplitStore) -> None:
    execute(urls()[0], "UPDATE partita.shard SET state = 'd'")
    execute(urls()[0], "UPDATE partita.shard SET version = partita.catalog_changed_1()")
    await store.fleet.catalog.refresh()

    with pytest.raises(UnavailableError) as caught:
        await store.create_table("Staff")

    assert caught.value.code == "StoreShardsDraining"
    assert "partita fleet add" in caught.value.hint


async def test_while_a_shard_is_away_the_others_go_on(store: SplitStore) -> None:
    table = await store.create_table("Staff")
    await put(store, table, *KEYS)
    with away(urls()[1]):
        for key in KEYS:
            if key.partition_key in ("b", "c", "s"):
                with pytest.raises(UnavailableError):
                    await store.get(table, key)
            else:
                assert await store.get(table, key) is not None
                await put(store, table, key, age=2)
        assert store.fleet.is_ready

    assert len((await store.scan(table, KeyRange(), None, 100)).entities) == len(KEYS)
    await put(store, table, *KEYS, age=3)


async def test_while_the_catalog_is_away_known_tables_are_served(store: SplitStore) -> None:
    table = await store.create_table("Staff")
    await put(store, table, *KEYS)
    await store.set_policies(table, [Policy("reader")])
    assert await store.get_policies(table) == [Policy("reader")]
    await store.set_setting("properties", b"{}")
    elsewhere = [key for key in KEYS if key.partition_key not in ON_HOME]
    with away(urls()[0]):
        await until_catalog(store, is_away=True)

        assert await store.find_table("Staff") == table
        await put(store, table, *elsewhere, age=2)
        found = [await store.get(table, key) for key in elsewhere]
        assert all(found)
        assert await store.get_policies(table) == [Policy("reader")]
        assert await store.get_setting("properties") == b"{}"
        assert store.fleet.is_ready
        for refused in (store.create_table("New"), store.list_tables("", 10)):
            with pytest.raises(StoreBusyError):
                await refused

    await until_catalog(store, is_away=False)
    await put(store, table, *KEYS, age=3)


async def test_a_table_that_is_dropped_while_a_shard_is_away_is_closed_there_later(
    store: SplitStore,
) -> None:
    table = await store.create_table("Staff")
    await put(store, table, *KEYS)
    late = await SplitStore.open_on(urls(), "late")
    late._account_id = store._account_id
    assert await late.find_table("Staff") == table
    owned = "SELECT count(*) FROM partita.range_own WHERE tid = %s"
    with away(urls()[1]):
        await store.delete_table("Staff")
        assert await store.find_table("Staff") is None
    assert execute(urls()[1], owned, table.id) == [(2,)]
    assert execute(urls()[2], owned, table.id) == [(0,)]

    await store.fleet.catalog.close_dropped()

    assert execute(urls()[1], owned, table.id) == [(0,)]
    left = "SELECT count(*) FROM partita.range WHERE tid = %s"
    assert execute(urls()[0], left, table.id) == [(0,)]
    for key in KEYS:
        with pytest.raises(TableNotFoundError):
            await put(late, table, key)
    await late.close()


async def test_a_table_that_an_earlier_front_end_drops_is_closed_on_all_shards(
    store: SplitStore,
) -> None:
    table = await store.create_table("Staff")
    drop = "SELECT tid FROM partita.drop_table_1(%s, 'staff')"
    assert execute(urls()[0], drop, store._account_id) == [(table.id,)]
    assert execute(urls()[0], drop, store._account_id) == []

    await store.fleet.catalog.close_dropped()

    owned = "SELECT count(*) FROM partita.range_own WHERE tid = %s"
    assert [execute(url, owned, table.id) for url in urls()] == [[(0,)]] * 3


async def test_a_database_that_is_not_the_listed_shard_is_refused(store: SplitStore) -> None:
    table = await store.create_table("Staff")
    await put(store, table, *KEYS)
    identity = execute(urls()[1], "SELECT identity FROM partita.shard_own")[0][0]
    execute(urls()[1], "UPDATE partita.shard_own SET identity = gen_random_uuid()")
    try:
        other = await SplitStore.open_on(urls(), "other")
        other._account_id = store._account_id
        with pytest.raises(UnavailableError) as caught:
            await other.get(table, EntityKey("b", "r"))
        assert caught.value.code == "StoreShardUnknown"
        assert await other.get(table, EntityKey("k", "r")) is not None
        await other.close()
    finally:
        execute(urls()[1], "UPDATE partita.shard_own SET identity = %s", identity)


async def test_a_range_on_a_shard_that_was_added_since_is_found(store: SplitStore) -> None:
    table = await super(SplitStore, store).create_table("Staff")
    late = await SplitStore.open_on(urls(), "late")
    late._account_id = store._account_id
    assert await late.find_table("Staff") == table
    late.fleet.shards._known.pop(2)

    cut_table(urls(), table.id, BOUNDS)

    await put(late, table, *KEYS)
    assert await entities_on(urls()[2], table) == {"k", "m", "z", "zz"}
    await late.close()


async def test_an_explanation_names_the_ranges_that_are_read(store: SplitStore) -> None:
    table = await store.create_table("Staff")
    map_ = store.fleet.catalog.ranges_of(table.id)
    assert map_ is not None
    names = [f"{each.id}@{store.fleet.shards.name_of(each.shard)}" for each in map_.ranges]
    assert names[1].endswith("@shard-1")

    def places(condition: str) -> list[str]:
        return [*store.places(table, plan(parse(condition)).span)]

    assert places("Age eq 1") == names
    assert places("PartitionKey eq 'c'") == [names[1]]
    assert places("PartitionKey ge 'c' and PartitionKey lt 'p'") == names[1:3]
    assert places("PartitionKey ge 'c' and PartitionKey le 'p'") == names[1:4]
    assert places("PartitionKey eq 'p' and RowKey lt 'x'") == [names[3]]
    assert places("PartitionKey eq 'p' and PartitionKey eq 'q'") == []


async def test_the_size_of_a_table_is_that_on_all_shards(store: SplitStore) -> None:
    table = await store.create_table("Staff")
    await put(store, table, *KEYS)
    ((account,),) = execute(
        urls()[0], "SELECT name FROM partita.account WHERE id = %s", store._account_id
    )

    found = await measure(urls()[0], str(account))

    ((part,),) = [each.parts for each in found.accounts]
    assert (part.name, part.items, part.is_exact) == ("Staff", len(KEYS), True)


async def test_an_account_on_several_shards_is_not_copied_from_one(store: SplitStore) -> None:
    await store.create_table("Staff")
    statement = "SELECT name FROM partita.account WHERE id = %s"
    ((account,),) = execute(urls()[0], statement, store._account_id)
    location = Location.parse(urls()[0])
    source = PostgresSource(location, str(account), blob_store=None, durability=Durability.FAST)

    with pytest.raises(ConfigurationError) as caught:
        await source.open()

    assert caught.value.code == "CopyNotPossible"
    await source.close()
