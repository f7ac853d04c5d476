"""A fleet: shards are added in the right order, upgraded with care, and looked after."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from sqlalchemy import Column, Integer, MetaData, String, Table, make_url, text

from partita.errors import (
    ConfigurationError,
    MappingExistsError,
    MappingNotFoundError,
    OperationPendingError,
    RangeError,
    SchemaMismatchError,
    ShardError,
    ShardExistsError,
    ShardInUseError,
    ShardNotFoundError,
    ShardOfflineError,
    UsageError,
)
from partita.shards.fleet.drift import list_tables
from partita.shards.fleet.fleet import Fleet
from partita.shards.fleet.migrations import Migrations
from partita.shards.keys.mapping import Location, Shard, ShardStatus
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap
from partita.shards.moving.move import MoveProgress, StopMove
from shards.conftest import NewDatabase
from support.alembic_projects import PROJECT, a_project, add_revision, connected, run_sql
from support.migrations_project.models import metadata
from support.postgres import PASSWORD_ROLE

SCHEMA = ShardedSchema(metadata, keys={"blog": "tenant_id", 'Order "Lines"': "tenant id"})


WITH_OUR_PATH = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
UPGRADE = """
import sys
from partita.shards.fleet.fleet import Fleet
from partita.shards.maps.manager import ShardMapManager

with ShardMapManager.open(sys.argv[1]) as manager:
    report = Fleet(manager, alembic=sys.argv[2]).upgrade()
    report.raise_if_incomplete()
    assert report.shards[0].after == "five"
"""


def upgrade_command(manager: ShardMapManager, project: Path) -> list[str]:
    """Return the command of a process that upgrades the fleet to revision five."""
    return [sys.executable, "-c", UPGRADE, manager.location.text, str(project)]


class CrashError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def database_urls(request: pytest.FixtureRequest) -> NewDatabase:
    """Give `new(name) -> url`; where the databases do alike, PostgreSQL's turn is in the soak."""
    new: NewDatabase = request.getfixturevalue(
        "new_sqlite" if request.param == "sqlite" else "new_postgres"
    )
    return new


on_both = pytest.mark.parametrize("database_urls", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def manager(database_urls: NewDatabase) -> Iterator[ShardMapManager]:
    with ShardMapManager.create(database_urls("catalog")) as made:
        yield made


@pytest.fixture
def sqlite_manager(new_sqlite: NewDatabase) -> Iterator[ShardMapManager]:
    with ShardMapManager.create(new_sqlite("catalog")) as made:
        yield made


@pytest.fixture
def tenants(manager: ShardMapManager) -> RangeShardMap:
    return manager.create_range_map("tenants", key=int, schema=SCHEMA)


def tables_of(url: str) -> list[str]:
    with connected(url) as connection:
        return list_tables(connection)


def revisions(fleet: Fleet) -> list[str | None]:
    return [each.revision for each in fleet.status().shards]


def sqlite_fleet(
    manager: ShardMapManager,
    new: NewDatabase,
    count: int,
    project: Path = PROJECT,
) -> tuple[Fleet, list[Shard]]:
    """Make a fleet of SQLite shards, a hundred tenants each, in the order of their names."""
    shard_map = manager.create_range_map("tenants", key=int, schema=SCHEMA)
    fleet = Fleet(manager, alembic=project)
    shards = [
        fleet.add_shard(
            shard_map, new(f"shard{number:02}"), [Range(number * 100, number * 100 + 100)]
        )
        for number in range(count)
    ]
    return fleet, shards


# --- add_shard ------------------------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("schema", ["metadata", "alembic", "both"])
def test_a_new_shard_has_the_schema_and_its_mappings(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, schema: str
) -> None:
    fleet = Fleet(
        manager,
        metadata=None if schema == "alembic" else metadata,
        alembic=None if schema == "metadata" else PROJECT,
    )

    shard = fleet.add_shard(tenants, database_urls("one"), [Range(0, 100), Range(200, 300)])

    assert tenants.get(250).shard == shard
    assert [mapping.range for mapping in tenants.mappings()] == [Range(0, 100), Range(200, 300)]
    with shard.connect() as connection:
        assert connection.execute(text("select count(*) from blog")).scalar_one() == 0
    report = fleet.status()
    assert report.is_healthy
    assert report.shards[0].mappings == 2
    assert report.shards[0].size_bytes
    assert report.shards[0].revision == (None if schema == "metadata" else "three")


def test_keys_of_a_list_map_and_buckets_of_a_hash_map_are_mapped(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    fleet = Fleet(sqlite_manager, metadata=metadata)
    names = sqlite_manager.create_list_map("names", key=str)
    spread = sqlite_manager.create_hash_map("spread", key=str, buckets=16)

    one = fleet.add_shard(names, new_sqlite("one"), ["a", "b"])
    two = fleet.add_shard(spread, new_sqlite("two"), [Range(0, 16)])

    assert names.get("b").shard == one
    assert spread.get("anything").shard == two


def crash_at(number: int) -> tuple[Callable[[str], None], list[str]]:
    """Give a fault that ends the process at the n-th point, and the points that were passed."""
    points: list[str] = []

    def fault(point: str) -> None:
        points.append(point)
        if len(points) == number:
            raise CrashError(point)

    return fault, points


@pytest.mark.parametrize(
    ("database_urls", "schema"),
    [("sqlite", "metadata"), ("sqlite", "alembic"), ("postgresql", "alembic")],
    indirect=["database_urls"],
)
def test_add_shard_finishes_in_order_after_a_crash_at_any_point(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, schema: str
) -> None:
    fleet = Fleet(manager, **{schema: metadata if schema == "metadata" else PROJECT})  # type: ignore[arg-type]
    crashes, number = 0, 0
    while True:
        number += 1
        url, asked = database_urls(f"shard{number}"), Range(number * 100, number * 100 + 100)
        fleet.fault, points = crash_at(number)
        try:
            fleet.add_shard(tenants, url, [asked])
        except CrashError:
            crashes += 1
            if "mapped" not in points:
                # Nothing may be routed to it: it is not known to be ready.
                assert tenants.find(number * 100, lookup="store") is None

        fleet.fault, resumed = crash_at(0)
        shard = fleet.add_shard(tenants, url, [asked])

        assert tenants.get(number * 100, lookup="store").shard == shard
        assert "blog" in tables_of(url)
        assert resumed in ([], ["checked", "registered", "deployed", "verified", "mapped"])
        if len(points) < number:
            break
    assert crashes == 5
    assert fleet.status().is_healthy


def test_add_shard_finishes_after_a_crash_inside_any_change_of_the_catalogs(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet, number, crashes = Fleet(manager, metadata=metadata), 0, 0
    while True:
        number += 1
        url, low = database_urls(f"shard{number}"), number * 100
        manager.executor.fault, points = crash_at(number)
        try:
            fleet.add_shard(tenants, url, [Range(low, low + 100)])
        except CrashError:
            crashes += 1

        manager.executor.fault, _ = crash_at(0)
        shard = fleet.add_shard(tenants, url, [Range(low, low + 100)])

        assert tenants.get(low, lookup="store").shard == shard
        assert len(tenants.shards()) == number
        if len(points) < number:
            break
    assert crashes >= 10
    assert fleet.status().is_healthy


def test_nothing_is_routed_before_the_schema_is_verified(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, metadata=metadata)
    seen: dict[str, bool] = {}

    def fault(point: str) -> None:
        seen[point] = tenants.find(5, lookup="store") is not None

    fleet.fault = fault
    fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])

    assert seen == {
        "checked": False,
        "registered": False,
        "deployed": False,
        "verified": False,
        "mapped": True,
    }


def test_a_shard_whose_schema_drifts_is_never_mapped(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = database_urls("one")
    fleet = Fleet(manager, metadata=metadata)

    def fault(point: str) -> None:
        if point == "deployed":
            run_sql(url, "ALTER TABLE blog DROP COLUMN motto")

    fleet.fault = fault
    with pytest.raises(SchemaMismatchError) as caught:
        fleet.add_shard(tenants, url, [Range(0, 100)])

    assert caught.value.code == "SchemaDrift"
    assert "missing column blog.motto" in str(caught.value)
    with pytest.raises(MappingNotFoundError):
        tenants.get(5, lookup="store")


def test_tables_that_do_not_fit_together_are_not_made(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = database_urls("one")
    fleet = Fleet(manager, metadata=metadata)

    def fault(point: str) -> None:
        if point == "registered":
            run_sql(url, "CREATE TABLE blog (id INTEGER PRIMARY KEY)")

    fleet.fault = fault
    with pytest.raises(SchemaMismatchError, match=r"TablesNotCreated|ForeignKeysBroken"):
        fleet.add_shard(tenants, url, [Range(0, 100)])

    assert tables_of(url) == ["blog"]
    assert tenants.find(5, lookup="store") is None


@on_both
def test_a_failing_migration_leaves_a_shard_that_can_be_finished(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project, url = a_project(tmp_path / "project"), database_urls("one")
    add_revision(project, "four", "three", "raise ZeroDivisionError")
    fleet = Fleet(manager, alembic=project)
    with pytest.raises(ShardError, match="ZeroDivisionError"):
        fleet.add_shard(tenants, url, [Range(0, 100)])

    add_revision(project, "four", "three")
    shard = fleet.add_shard(tenants, url, [Range(0, 100)])

    assert tenants.get(5, lookup="store").shard == shard


def test_a_database_with_tables_is_refused_and_nothing_is_written(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = database_urls("one")
    run_sql(url, 'CREATE TABLE "some thing" (id INTEGER)')

    with pytest.raises(ShardInUseError) as caught:
        Fleet(manager, metadata=metadata).add_shard(tenants, url, [Range(0, 100)])

    assert caught.value.code == "DatabaseNotEmpty"
    assert "adopt" in caught.value.hint
    assert tenants.shards() == []
    assert tables_of(url) == ["some thing"]
    with connected(url) as connection:
        assert not connection.dialect.has_table(connection, "partita_local_shards")


def test_tables_of_an_extension_can_be_left_out_of_account(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = database_urls("one")
    run_sql(url, "CREATE TABLE spatial_ref_sys (id INTEGER)")
    fleet = Fleet(manager, metadata=metadata, ignore_tables=["spatial_ref_sys"])

    fleet.add_shard(tenants, url, [Range(0, 100)])

    assert fleet.status().is_healthy


def test_the_catalog_itself_can_be_a_shard(
    manager: ShardMapManager, tenants: RangeShardMap
) -> None:
    fleet = Fleet(manager, metadata=metadata)

    shard = fleet.add_shard(tenants, manager.location.text, [Range(0, 100)])

    assert tenants.get(5).shard == shard
    assert fleet.status().is_healthy


def test_keys_that_are_mapped_are_refused_before_anything_is_written(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, metadata=metadata)
    fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])
    url = database_urls("two")

    with pytest.raises(MappingExistsError):
        fleet.add_shard(tenants, url, [Range(99, 200)])
    with pytest.raises(RangeError):
        fleet.add_shard(tenants, url, [Range(300, 200)])

    assert len(tenants.shards()) == 1
    assert tables_of(url) == []


def test_adding_a_shard_twice_changes_nothing(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet, url = Fleet(manager, metadata=metadata), database_urls("one")
    shard = fleet.add_shard(tenants, url, [Range(0, 100)])
    before = tenants.mappings()

    assert fleet.add_shard(tenants, url, [Range(0, 100)]) == shard
    assert tenants.mappings() == before


def test_more_keys_for_a_finished_shard_are_not_the_fleets_affair(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet, url = Fleet(manager, metadata=metadata), database_urls("one")
    fleet.add_shard(tenants, url, [Range(0, 100)])

    with pytest.raises(ShardExistsError, match="create_mapping"):
        fleet.add_shard(tenants, url, [Range(100, 200)])


def test_a_fleet_without_a_schema_deploys_nothing(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    shard_map = sqlite_manager.create_range_map("tenants", key=int)
    fleet = Fleet(sqlite_manager)

    with pytest.raises(ConfigurationError) as caught:
        fleet.add_shard(shard_map, new_sqlite("one"), [Range(0, 100)])

    assert caught.value.code == "SchemaNotGiven"
    assert fleet.status().shards == []


def test_a_folder_without_env_is_refused_at_once(
    sqlite_manager: ShardMapManager, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="MigrationsNotFound"):
        Fleet(sqlite_manager, alembic=tmp_path)


@on_both
def test_a_database_that_cannot_be_reached_is_not_a_shard(
    manager: ShardMapManager, tenants: RangeShardMap, tmp_path: Path
) -> None:
    nowhere = {
        "sqlite": f"sqlite:///{tmp_path}/no/such/folder/file.db",
        "postgresql": "postgresql+psycopg://127.0.0.1:1/nowhere",
    }[manager.location.backend]

    with pytest.raises(ShardOfflineError) as caught:
        Fleet(manager, metadata=metadata).add_shard(tenants, nowhere, [Range(0, 100)])

    assert caught.value.code == "ShardUnreachable"
    assert tenants.shards() == []


def test_tables_in_a_schema_of_their_own_are_deployed(
    new_postgres: NewDatabase,
) -> None:
    sales = MetaData(schema="Sales & more")
    Table("order", sales, Column("tenant", Integer, primary_key=True))
    with ShardMapManager.create(new_postgres("catalog")) as manager:
        shard_map = manager.create_range_map("tenants", key=int)
        fleet = Fleet(manager, metadata=sales)

        shard = fleet.add_shard(shard_map, new_postgres("one"), [Range(0, 100)])

        with shard.connect() as connection:
            connection.execute(text('select * from "Sales & more"."order"'))


# --- adopt ----------------------------------------------------------------------------------------


def populated(url: str, *tenants_of_blogs: int) -> str:
    with connected(url) as connection:
        Migrations(PROJECT).upgrade(connection)
        for tenant in tenants_of_blogs:
            row = {"tenant": tenant}
            connection.execute(
                text("INSERT INTO blog (tenant_id, id, name) VALUES (:tenant, 1, 'a')"), row
            )
            connection.execute(
                text('INSERT INTO "Order ""Lines""" VALUES (:tenant, 1, NULL, 1)'), row
            )
        connection.commit()
    return url


@on_both
def test_a_populated_database_is_adopted_with_its_rows(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet, url = Fleet(manager, alembic=PROJECT), populated(database_urls("one"), 0, 50, 99)

    shard = fleet.adopt(tenants, url, [Range(0, 100)])

    assert tenants.get(50).shard == shard
    assert fleet.status().is_healthy
    with shard.connect() as connection:
        assert connection.execute(text("select count(*) from blog")).scalar_one() == 3
    assert fleet.adopt(tenants, url, [Range(0, 100)]) == shard


@on_both
def test_rows_outside_the_mappings_are_counted_and_refused(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = populated(database_urls("one"), 50, 100, -1)

    with pytest.raises(SchemaMismatchError) as caught:
        Fleet(manager, alembic=PROJECT).adopt(tenants, url, [Range(0, 100)])

    assert caught.value.code == "RowsOutsideMappings"
    assert caught.value.facts["rows"] == 4
    assert '2 in Order "Lines"' in str(caught.value)
    assert tenants.shards() == []


def test_rows_between_two_mappings_are_outside(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = populated(database_urls("one"), 5, 50, 95)

    with pytest.raises(SchemaMismatchError, match="1 in blog"):
        Fleet(manager, alembic=PROJECT).adopt(tenants, url, [Range(0, 10), Range(90, 100)])


def test_adopting_finishes_after_a_crash_at_any_point(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, alembic=PROJECT)
    for number in (1, 2, 3):
        low = number * 100
        url = populated(database_urls(f"shard{number}"), low)
        fleet.fault, _ = crash_at(number)
        with pytest.raises(CrashError):
            fleet.adopt(tenants, url, [Range(low, low + 100)])

        fleet.fault, _ = crash_at(0)
        shard = fleet.adopt(tenants, url, [Range(low, low + 100)])

        assert tenants.get(low, lookup="store").shard == shard


def test_an_old_or_different_schema_is_not_adopted(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    old, different = database_urls("old"), populated(database_urls("different"))
    with connected(old) as connection:
        Migrations(PROJECT).upgrade(connection, "one")
    run_sql(different, "ALTER TABLE blog ADD COLUMN by_hand INTEGER")
    fleet = Fleet(manager, alembic=PROJECT)

    with pytest.raises(SchemaMismatchError, match="ShardNotCurrent"):
        fleet.adopt(tenants, old, [Range(0, 100)])
    with pytest.raises(SchemaMismatchError, match=r"extra column blog\.by_hand"):
        fleet.adopt(tenants, different, [Range(0, 100)])

    assert tenants.shards() == []


def test_adopting_needs_to_know_the_sharded_tables(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    shard_map = sqlite_manager.create_range_map("tenants", key=int)
    url = populated(new_sqlite("one"))

    with pytest.raises(ConfigurationError, match="ShardedSchemaMissing"):
        Fleet(sqlite_manager, alembic=PROJECT).adopt(shard_map, url, [Range(0, 100)])


def test_a_null_key_and_a_foreign_name_are_outside(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    schema = MetaData()
    Table("note", schema, Column("id", Integer, primary_key=True), Column("owner", String))
    shard_map = sqlite_manager.create_list_map(
        "names", key=str, schema=ShardedSchema(schema, keys={"note": "owner"})
    )
    url = new_sqlite("one")
    with connected(url) as connection:
        schema.create_all(connection)
        connection.commit()
    run_sql(url, "INSERT INTO note (owner) VALUES ('a'), ('b'), (NULL)")

    with pytest.raises(SchemaMismatchError, match="2 in note"):
        Fleet(sqlite_manager, metadata=schema).adopt(shard_map, url, ["a"])


def test_rows_of_a_hash_map_are_checked_by_their_buckets(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    shard_map = sqlite_manager.create_hash_map(
        "spread", key=int, buckets=8, schema=ShardedSchema(metadata, keys={"blog": "tenant_id"})
    )
    url = populated(new_sqlite("one"), *range(40))
    fleet = Fleet(sqlite_manager, alembic=PROJECT)

    with pytest.raises(SchemaMismatchError, match="RowsOutsideMappings"):
        fleet.adopt(shard_map, url, [Range(0, 4)])
    shard = fleet.adopt(shard_map, url, [Range(0, 8)])

    assert shard_map.get(17).shard == shard


# --- remove_shard ---------------------------------------------------------------------------------


def test_a_shard_with_mappings_is_not_removed(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, metadata=metadata)
    shard = fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])

    with pytest.raises(ShardInUseError) as caught:
        fleet.remove_shard(shard)

    assert caught.value.code == "ShardHasMappings"
    assert tenants.shards() == [shard]


def test_a_shard_without_mappings_is_removed_and_can_be_adopted_again(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet, url = Fleet(manager, metadata=metadata), database_urls("one")
    shard = fleet.add_shard(tenants, url)

    fleet.remove_shard(shard)

    assert tenants.shards() == []
    with pytest.raises(ShardNotFoundError):
        fleet.remove_shard(shard)
    with pytest.raises(ShardInUseError, match="DatabaseNotEmpty"):
        fleet.add_shard(tenants, url, [Range(0, 100)])
    assert fleet.adopt(tenants, url, [Range(0, 100)]) == tenants.get(5).shard


def test_a_shard_is_emptied_by_moves_before_it_is_removed(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, alembic=PROJECT)
    one = fleet.adopt(
        tenants, populated(database_urls("one"), 1, 250), [Range(0, 100), Range(200, 300)]
    )
    two = fleet.adopt(tenants, populated(database_urls("two"), 150), [Range(100, 200)])

    fleet.remove_shard(one, moving_to=two)

    assert tenants.shards() == [two]
    assert {tenants.get(key, lookup="store").shard for key in (1, 150, 250)} == {two}
    assert blogs_of(two) == [1, 150, 250]
    assert blogs_of(one) == []


def test_a_removal_that_stopped_in_a_move_is_finished_by_the_next_call(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, alembic=PROJECT)
    one = fleet.adopt(tenants, populated(database_urls("one"), 1, 2), [Range(0, 100)])
    two = fleet.add_shard(tenants, database_urls("two"), [Range(100, 200)])

    def stop(progress: MoveProgress) -> None:
        if progress.step == "copy":
            raise StopMove

    fleet.move(tenants.get(1), to=two, on_progress=stop)
    assert [report.state for report in fleet.list_moves()] == ["paused"]
    with pytest.raises(ShardInUseError):
        fleet.remove_shard(one)

    fleet.remove_shard(one, moving_to=two)

    assert tenants.shards() == [two]
    assert blogs_of(two) == [1, 2]
    assert fleet.list_moves() == []


def test_the_schema_is_not_upgraded_while_rows_are_on_their_way(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet = Fleet(manager, alembic=project)
    one = fleet.adopt(tenants, populated(database_urls("one"), 1, 2), [Range(0, 100)])
    two = fleet.add_shard(tenants, database_urls("two"), [Range(100, 200)])
    add_revision(project, "four", "three", "op.add_column('blog', sa.Column('x', sa.Integer))")

    def stop(progress: MoveProgress) -> None:
        if progress.step == "copy":
            raise StopMove

    stopped = fleet.move(tenants.get(1), to=two, on_progress=stop)
    with pytest.raises(ShardInUseError) as refused:
        fleet.upgrade()

    assert refused.value.code == "MovesUnfinished"
    assert refused.value.facts == {"moves": [stopped.job_id]}
    assert revisions(fleet) == ["three", "three"]
    scripts = fleet.upgrade(sql_folder=tmp_path / "scripts")
    assert {each.state for each in scripts.shards} == {"written"}
    fleet.resume()
    assert fleet.upgrade().is_complete
    assert revisions(fleet) == ["four", "four"]
    assert (blogs_of(one), blogs_of(two)) == ([], [1, 2])


def test_nothing_is_moved_to_a_shard_that_was_taken_offline(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    fleet, (one, two) = sqlite_fleet(sqlite_manager, new_sqlite, 2)
    tenants = sqlite_manager.get_map("tenants")
    tenants.update_shard(two, status=ShardStatus.OFFLINE)

    with pytest.raises(ShardOfflineError) as refused:
        fleet.move(tenants.get(5), to=two)

    assert refused.value.code == "ShardOffline"
    assert fleet.list_moves() == []
    assert tenants.get(5, lookup="store").shard == one


def blogs_of(shard: Shard) -> list[int]:
    with shard.connect() as connection:
        return sorted(connection.execute(text("select tenant_id from blog")).scalars())


def test_mappings_are_moved_to_another_shard_of_the_same_map_only(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, metadata=metadata)
    one = fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])
    other = manager.create_range_map("other", key=int)
    foreign = fleet.add_shard(other, database_urls("two"))

    for target in (one, foreign):
        with pytest.raises(UsageError, match="InvalidTarget"):
            fleet.remove_shard(one, moving_to=target)


# --- upgrade --------------------------------------------------------------------------------------


@on_both
def test_every_shard_is_upgraded_and_reported(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet = Fleet(manager, alembic=project)
    shards = [
        fleet.add_shard(tenants, database_urls(f"s{number}"), [Range(number, number + 1)])
        for number in range(3)
    ]
    add_revision(project, "four", "three", "op.add_column('blog', sa.Column('four', sa.Integer))")
    assert [each.is_current for each in fleet.status().shards] == [False] * 3

    report = fleet.upgrade()

    assert report.is_complete
    assert {each.shard for each in report.shards} == set(shards)
    assert {(each.state, each.before, each.after) for each in report.shards} == {
        ("upgraded", "three", "four")
    }
    assert all(each.seconds > 0 for each in report.shards)
    assert revisions(fleet) == ["four"] * 3
    report.raise_if_incomplete()


def test_shards_at_the_target_are_passed_over(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    fleet, _ = sqlite_fleet(sqlite_manager, new_sqlite, 2)

    for resume in (True, False):
        report = fleet.upgrade(resume=resume)
        assert [each.state for each in report.shards] == ["current", "current"]


@pytest.mark.parametrize(
    "options",
    [{}, {"resume": False}, {"parallel": 2}, {"sql_folder": "scripts"}],
    ids=["here", "every shard", "processes", "scripts"],
)
def test_shards_that_are_past_the_target_are_failures(
    sqlite_manager: ShardMapManager,
    new_sqlite: NewDatabase,
    tmp_path: Path,
    options: dict[str, Any],
) -> None:
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 2)
    if "sql_folder" in options:
        options = {"sql_folder": tmp_path / "scripts"}

    report = fleet.upgrade("one", stop_after=None, **options)

    assert not report.is_complete
    assert [each.state for each in report.shards] == ["failed", "failed"]
    assert list(report.errors) == shards
    for error in report.errors.values():
        assert isinstance(error, ShardError)
        assert isinstance(error.cause, SchemaMismatchError)
        assert error.cause.code == "RevisionNewer"
    with pytest.raises(ExceptionGroup):
        report.raise_if_incomplete()
    assert revisions(fleet) == ["three", "three"]


def fails_on(shard: Shard) -> tuple[str, ...]:
    """Return a revision that fails on one SQLite shard only."""
    return (
        "path = op.get_bind().exec_driver_sql('PRAGMA database_list').fetchone()[2]",
        f"assert path != {shard.location.database!r}, 'a bad day'",
        "op.add_column('blog', sa.Column('four', sa.Integer))",
    )


def test_a_canary_that_fails_stops_the_rest(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 3, project)
    add_revision(project, "four", "three", *fails_on(shards[1]))

    report = fleet.upgrade(canary=[shards[1]], stop_after=None)

    assert [(each.shard, each.state) for each in report.shards] == [
        (shards[1], "failed"),
        (shards[0], "not tried"),
        (shards[2], "not tried"),
    ]
    assert "a bad day" in str(report.errors[shards[1]])
    assert revisions(fleet) == ["three"] * 3
    assert not report.is_complete
    with pytest.raises(ExceptionGroup):
        report.raise_if_incomplete()


def test_canaries_go_first_and_are_named_as_people_name_them(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 4)

    report = fleet.upgrade(canary=["shard02.db", shards[1].location.text, shards[2].id])

    assert [each.shard for each in report.shards] == [shards[i] for i in (2, 1, 0, 3)]
    with pytest.raises(ShardNotFoundError):
        fleet.upgrade(canary=["shard99.db"])


def test_failures_stop_the_upgrade_after_as_many_as_were_allowed(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, _ = sqlite_fleet(sqlite_manager, new_sqlite, 4, project)
    add_revision(project, "four", "three", "raise ZeroDivisionError")

    states = [
        [each.state for each in fleet.upgrade(stop_after=stop_after).shards]
        for stop_after in (1, 3, None)
    ]

    assert states == [
        ["failed", "not tried", "not tried", "not tried"],
        ["failed", "failed", "failed", "not tried"],
        ["failed", "failed", "failed", "failed"],
    ]


def test_an_upgrade_is_resumed_where_it_stopped(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 3, project)
    add_revision(project, "four", "three", *fails_on(shards[1]))
    first = fleet.upgrade()
    assert [each.state for each in first.shards] == ["upgraded", "failed", "not tried"]
    assert first.shards[1].after == "three"

    add_revision(project, "four", "three", "op.add_column('blog', sa.Column('four', sa.Integer))")
    second = fleet.upgrade()

    assert [each.state for each in second.shards] == ["current", "upgraded", "upgraded"]


def test_a_failure_says_how_far_the_shard_came(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet = Fleet(manager, alembic=project)
    fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])
    add_revision(project, "four", "three", "op.add_column('blog', sa.Column('a', sa.Integer))")
    add_revision(
        project,
        "five",
        "four",
        "op.add_column('blog', sa.Column('b', sa.Integer))",
        "raise ZeroDivisionError",
    )

    (done,) = fleet.upgrade().shards

    assert (done.state, done.before, done.after) == ("failed", "three", "four")
    assert isinstance(done.error, ShardError)
    assert done.error.shard == done.shard
    with done.shard.connect() as connection:
        assert "b" not in set(connection.execute(text("select * from blog")).keys())


@pytest.mark.parametrize("parallel", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_an_environment_that_ignores_the_connection_changes_nothing_anywhere(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path, parallel: int
) -> None:
    project = a_project(tmp_path / "project")
    fleet, _ = sqlite_fleet(sqlite_manager, new_sqlite, 2, project)
    elsewhere = new_sqlite("elsewhere")
    add_revision(project, "four", "three")
    (project / "env.py").write_text(
        "from alembic import context\nfrom sqlalchemy import NullPool, create_engine\n"
        f"engine = create_engine({elsewhere!r}, poolclass=NullPool)\n"
        "with engine.connect() as connection:\n"
        "    context.configure(connection=connection)\n"
        "    with context.begin_transaction():\n"
        "        context.run_migrations()\n"
    )

    report = fleet.upgrade(parallel=parallel, stop_after=None)

    assert [each.state for each in report.shards] == ["failed", "failed"]
    for error in report.errors.values():
        assert "MigrationConnectionIgnored" in str(error)
    assert tables_of(elsewhere) == []


@pytest.mark.proof
@on_both
def test_shards_are_upgraded_in_processes(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet = Fleet(manager, alembic=project)
    for number in range(3):
        fleet.add_shard(tenants, database_urls(f"s{number}"), [Range(number, number + 1)])
    add_revision(
        project,
        "four",
        "three",
        "print('chatter of a migration')",
        "op.add_column('blog', sa.Column('four', sa.Integer))",
    )
    done: list[Any] = []

    report = fleet.upgrade(parallel=2, progress=done.append)

    assert report.is_complete
    assert {(each.state, each.before, each.after) for each in done} == {
        ("upgraded", "three", "four")
    }
    assert revisions(fleet) == ["four"] * 3
    assert [each.state for each in fleet.upgrade(parallel=2).shards] == ["current"] * 3


def test_failures_in_processes_are_the_same_errors(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 3, project)
    add_revision(project, "four", "three", *fails_on(shards[1]))

    report = fleet.upgrade(parallel=2, stop_after=None)

    assert [each.state for each in report.shards] == ["upgraded", "failed", "upgraded"]
    error = report.errors[shards[1]]
    assert isinstance(error, ShardError)
    assert error.code == "MigrationFailed"
    assert (report.shards[1].before, report.shards[1].after) == ("three", "three")


@pytest.mark.proof
def test_a_process_that_dies_fails_its_shard_only(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 3, project)
    add_revision(
        project,
        "four",
        "three",
        "op.add_column('blog', sa.Column('four', sa.Integer))",
        "import os, sys",
        "path = op.get_bind().exec_driver_sql('PRAGMA database_list').fetchone()[2]",
        f"if path == {shards[0].location.database!r}:",
        "    os.write(2, b'killed on the way')",
        "    os._exit(9)",
    )

    report = fleet.upgrade(parallel=2, stop_after=None)

    assert [each.state for each in report.shards] == ["failed", "upgraded", "upgraded"]
    assert "MigrationProcessDied" in str(report.errors[shards[0]])
    assert "killed on the way" in str(report.errors[shards[0]])
    # The transaction died with the process: the shard is whole, at the revision before.
    assert revisions(fleet) == ["three", "four", "four"]
    with shards[0].connect() as connection:
        assert "four" not in set(connection.execute(text("select * from blog")).keys())


def test_a_config_with_attributes_is_not_for_processes(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase
) -> None:
    config = Config()
    config.set_main_option("script_location", str(PROJECT))
    config.set_main_option("path_separator", "os")
    config.attributes["tenant"] = object()
    fleet = Fleet(sqlite_manager, alembic=config)

    assert fleet.upgrade().is_complete
    with pytest.raises(ConfigurationError, match="MigrationConfigNotPortable"):
        fleet.upgrade(parallel=2)


@pytest.mark.proof
@on_both
def test_two_upgrades_at_once_run_each_revision_once(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet = Fleet(manager, alembic=project)
    fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])
    marks = tmp_path / "marks"
    for revision, after in (("four", "three"), ("five", "four")):
        add_revision(
            project,
            revision,
            after,
            "import pathlib, time",
            f"with pathlib.Path({str(marks)!r}).open('a') as marks: marks.write('{revision} ')",
            "time.sleep(0.2)",
        )
    command = upgrade_command(manager, project)

    processes = [subprocess.Popen(command, env=WITH_OUR_PATH) for _ in range(2)]

    assert [process.wait() for process in processes] == [0, 0]
    assert marks.read_text() == "four five "


@pytest.mark.proof
@on_both
def test_a_killed_upgrade_leaves_the_shard_whole_and_free(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet = Fleet(manager, alembic=project)
    shard = fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])
    mark = tmp_path / "mark"
    add_revision(project, "four", "three", "op.add_column('blog', sa.Column('a', sa.Integer))")
    add_revision(
        project,
        "five",
        "four",
        "import pathlib, time",
        "op.add_column('blog', sa.Column('b', sa.Integer))",
        f"pathlib.Path({str(mark)!r}).touch()",
        "time.sleep(100)",
    )
    with subprocess.Popen(
        upgrade_command(manager, project), env=WITH_OUR_PATH, stderr=subprocess.DEVNULL
    ) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.02)
        process.kill()

    (report,) = fleet.status().shards
    assert report.revision == "four"
    with shard.connect() as connection:
        columns = set(connection.execute(text("select * from blog")).keys())
        assert columns >= {"a"}
        assert "b" not in columns
    add_revision(project, "five", "four", "op.add_column('blog', sa.Column('b', sa.Integer))")
    assert [(each.before, each.after) for each in fleet.upgrade().shards] == [("four", "five")]


@contextmanager
def a_role_with_password(url: str, password: str) -> Iterator[None]:
    """Give the database to a role of its own, and take it back."""
    run_sql(
        url,
        f"DROP ROLE IF EXISTS {PASSWORD_ROLE}",
        f"CREATE ROLE {PASSWORD_ROLE} SUPERUSER LOGIN PASSWORD '{password}'",
    )
    try:
        yield
    finally:
        run_sql(
            url,
            f"REASSIGN OWNED BY {PASSWORD_ROLE} TO CURRENT_USER",
            f"DROP OWNED BY {PASSWORD_ROLE}",
            f"DROP ROLE {PASSWORD_ROLE}",
        )


def test_a_password_reaches_the_processes_and_nothing_else(
    new_postgres: NewDatabase, tmp_path: Path
) -> None:
    catalog, url = new_postgres("catalog"), new_postgres("one")
    project = a_project(tmp_path / "project")
    asked: list[str] = []

    def credentials(location: Location) -> str | None:
        if location.database != make_url(url).database:
            return None
        asked.append(location.text)
        return location.text.replace("//", f"//{PASSWORD_ROLE}:se%25cret@")

    with (
        a_role_with_password(url, "se%cret"),
        ShardMapManager.create(catalog, credentials=credentials) as manager,
    ):
        fleet = Fleet(manager, alembic=project)
        shard_map = manager.create_range_map("tenants", key=int)
        fleet.add_shard(shard_map, url, [Range(0, 1)])
        marks = tmp_path / "user"
        add_revision(
            project,
            "four",
            "three",
            "import pathlib",
            "user = op.get_bind().exec_driver_sql('select current_user').scalar()",
            f"pathlib.Path({str(marks)!r}).write_text(user)",
        )

        report = fleet.upgrade(parallel=2)
        add_revision(project, "five", "four")
        scripts = fleet.upgrade(sql_folder=tmp_path / "scripts").shards

    assert report.is_complete
    assert marks.read_text() == PASSWORD_ROLE
    assert asked
    assert "se%cret" not in repr(report) + str(scripts)
    for each in scripts:
        assert each.script is not None
        assert "cret@" not in each.script.read_text()


def test_a_shard_that_is_being_upgraded_is_left_alone(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 2, project)
    add_revision(project, "four", "three")
    other = sqlite3.connect(shards[0].location.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    report = fleet.upgrade(stop_after=None, lock_timeout=0.05)

    other.execute("COMMIT")
    other.close()
    assert [each.state for each in report.shards] == ["failed", "upgraded"]
    error = report.errors[shards[0]]
    assert isinstance(error, ShardError)
    assert isinstance(error.cause, OperationPendingError)


def test_a_database_of_two_maps_is_upgraded_once(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, _ = sqlite_fleet(sqlite_manager, new_sqlite, 1, project)
    other = sqlite_manager.create_list_map(
        "other", key=int, schema=ShardedSchema(metadata, keys={"blog": "tenant_id"})
    )
    fleet.adopt(other, new_sqlite("shard00"), [7])
    add_revision(project, "four", "three")

    assert len(fleet.upgrade().shards) == 1
    assert revisions(fleet) == ["four", "four"]


@on_both
def test_missing_tables_are_made_where_there_is_no_alembic(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = database_urls("one")
    Fleet(manager, metadata=metadata).add_shard(tenants, url, [Range(0, 100)])
    larger = MetaData()
    for table in metadata.sorted_tables:
        table.to_metadata(larger)
    Table("note", larger, Column("id", Integer, primary_key=True))
    fleet = Fleet(manager, metadata=larger)
    assert [str(each) for each in fleet.status().shards[0].drift] == ["missing table note"]

    assert [each.state for each in fleet.upgrade().shards] == ["upgraded"]
    assert [each.state for each in fleet.upgrade().shards] == ["current"]
    assert fleet.status().is_healthy


def test_metadata_alone_cannot_alter_and_says_so(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    url = database_urls("one")
    fleet = Fleet(manager, metadata=metadata)
    fleet.add_shard(tenants, url, [Range(0, 100)])
    run_sql(url, "ALTER TABLE blog DROP COLUMN motto")

    (done,) = fleet.upgrade().shards

    assert done.state == "failed"
    assert "missing column blog.motto" in str(done.error)
    with pytest.raises(ConfigurationError, match="SchemaNotVersioned"):
        fleet.upgrade(sql_folder="somewhere")


def test_counts_below_one_are_refused(sqlite_manager: ShardMapManager) -> None:
    fleet = Fleet(sqlite_manager, metadata=metadata)

    for wrong in ({"parallel": 0}, {"stop_after": 0}):
        with pytest.raises(UsageError, match="InvalidCount"):
            fleet.upgrade(**wrong)  # type: ignore[arg-type]


def test_a_bar_is_shown_when_it_is_asked_for(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, _ = sqlite_fleet(sqlite_manager, new_sqlite, 2)
    assert capsys.readouterr().err == ""

    fleet.upgrade(progress="bar")

    assert "2/2" in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if "Refresh" in type(thread).__name__]


# --- scripts --------------------------------------------------------------------------------------


@on_both
def test_pending_sql_is_written_for_each_shard_and_can_be_run(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet = Fleet(manager, alembic=project)
    urls = [database_urls("one"), database_urls("two")]
    for number, url in enumerate(urls):
        fleet.add_shard(tenants, url, [Range(number, number + 1)])
    add_revision(project, "four", "three", "op.add_column('blog', sa.Column('5%', sa.Integer))")

    report = fleet.upgrade(sql_folder=tmp_path / "scripts")

    assert [each.state for each in report.shards] == ["written", "written"]
    assert revisions(fleet) == ["three", "three"]
    scripts = [each.script for each in report.shards]
    assert sorted((tmp_path / "scripts").iterdir()) == sorted(filter(None, scripts))
    for each in report.shards:
        assert each.script is not None
        run_script(each.shard.location.text, each.script.read_text())
    assert revisions(fleet) == ["four", "four"]
    report = fleet.upgrade(sql_folder=tmp_path / "more")
    assert [each.state for each in report.shards] == ["current", "current"]
    assert list((tmp_path / "more").iterdir()) == []


def test_each_shard_gets_the_script_that_it_needs(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    fleet, shards = sqlite_fleet(sqlite_manager, new_sqlite, 2, project)
    add_revision(project, "four", "three")
    with shards[0].connect() as connection:
        Migrations(project).upgrade(connection)
    add_revision(project, "five", "four")

    texts = [
        (each.script or Path()).read_text()
        for each in fleet.upgrade(sql_folder=tmp_path / "scripts").shards
    ]

    assert ["three -> four" in each for each in texts] == [False, True]
    assert all("four -> five" in each for each in texts)
    assert all("BEGIN" in each and "COMMIT" in each for each in texts)


def run_script(url: str, script: str) -> None:
    with connected(url) as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        if connection.dialect.name == "sqlite":
            driver.executescript(script)
        else:
            driver.autocommit = True
            driver.execute(script)
            driver.autocommit = False


# --- status and drift -----------------------------------------------------------------------------


@on_both
def test_a_column_added_by_hand_is_found_though_the_shard_is_stamped_at_head(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, alembic=PROJECT)
    fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])
    url = database_urls("two")
    shard = fleet.add_shard(tenants, url, [Range(100, 200)])
    assert fleet.check_drift() == {}

    run_sql(url, "ALTER TABLE blog ADD COLUMN by_hand INTEGER")

    drift = fleet.check_drift()
    assert {found: [str(each) for each in named] for found, named in drift.items()} == {
        shard: ["extra column blog.by_hand"]
    }
    report = fleet.status()
    assert all(each.is_current and each.revision == "three" for each in report.shards)
    assert not report.is_healthy


@on_both
def test_a_shard_that_cannot_be_reached_is_an_error_of_its_own(
    manager: ShardMapManager, tenants: RangeShardMap, database_urls: NewDatabase
) -> None:
    fleet = Fleet(manager, metadata=metadata)
    well = fleet.add_shard(tenants, database_urls("one"), [Range(0, 100)])
    ill = fleet.add_shard(tenants, database_urls("two"), [Range(100, 200)])

    with unreachable(ill):
        report = {each.shard: each for each in fleet.status().shards}
        with pytest.raises(ExceptionGroup):
            fleet.check_drift()

    assert report[well].error is None
    assert isinstance(report[ill].error, ShardError)
    assert not report[ill].is_current
    assert report[ill].mappings == 1


def test_a_shard_whose_file_is_lost_is_reported_and_not_made_again(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    fleet, (one, two) = sqlite_fleet(sqlite_manager, new_sqlite, 2)
    sqlite_manager.close()
    lost = Path(two.location.database)
    for file in lost.parent.glob(lost.name + "*"):
        file.unlink()

    report = {each.shard: each for each in fleet.status().shards}
    upgraded = {each.shard: each for each in fleet.upgrade(stop_after=None).shards}
    in_processes = {each.shard: each for each in fleet.upgrade(parallel=2, stop_after=None).shards}
    written = fleet.upgrade(sql_folder=tmp_path / "scripts", stop_after=None)
    with pytest.raises(ExceptionGroup):
        fleet.check_drift()
    with pytest.raises(ShardOfflineError):
        fleet.adopt(sqlite_manager.create_range_map("more", key=int), two.location.text, [])

    assert report[one].error is None
    assert "does not exist" in str(report[two].error)
    assert (report[two].is_current, report[two].mappings) == (False, 1)
    assert [upgraded[shard].state for shard in (one, two)] == ["current", "failed"]
    assert [in_processes[shard].state for shard in (one, two)] == ["current", "failed"]
    assert list(written.errors) == [two]
    assert not lost.exists()


@contextmanager
def unreachable(shard: Shard) -> Iterator[None]:
    if shard.location.backend == "sqlite":
        path = Path(shard.location.database)
        for file in path.parent.glob(path.name + "*"):
            file.unlink()
        path.mkdir()
        yield
        return
    server = make_url(shard.location.text).set(database="postgres").render_as_string()
    alter = f'ALTER DATABASE "{shard.location.database}" ALLOW_CONNECTIONS'
    run_sql(server, f"{alter} false")
    yield
    run_sql(server, f"{alter} true")


def test_no_password_reaches_a_report_or_a_script(
    sqlite_manager: ShardMapManager, new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    shard_map = sqlite_manager.create_range_map("tenants", key=int)
    url = make_url("postgresql+psycopg://me:hidden@127.0.0.1:1/nowhere")

    with pytest.raises(ShardOfflineError) as caught:
        Fleet(sqlite_manager, metadata=metadata).add_shard(shard_map, url, [Range(0, 1)])

    assert "hidden" not in str(caught.value)
