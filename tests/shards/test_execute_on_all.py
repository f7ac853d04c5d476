"""Statements on all shards, downgrades, databases, and connections to a shard as a whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy import make_url, select, text

from partita.errors import ConfigurationError, ShardInUseError, StaleMappingError
from partita.shards import Fleet, Range, Shard, ShardMapManager
from partita.shards.fleet.drift import list_tables
from partita.shards.maps.shard_map import RangeShardMap
from support import postgres
from support.alembic_projects import a_project, run_sql

if TYPE_CHECKING:
    from shards.conftest import NewDatabase

METADATA = sa.MetaData()
note = sa.Table("note", METADATA, sa.Column("tenant_id", sa.Integer, primary_key=True))


class Two(NamedTuple):
    """A fleet of two shards."""

    fleet: Fleet
    tenants: RangeShardMap
    shards: list[Shard]
    urls: list[str]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.proof)])
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    new: NewDatabase = request.getfixturevalue(
        "new_sqlite" if request.param == "sqlite" else "new_postgres"
    )
    with ShardMapManager.create(new("catalog")) as manager:
        fleet = Fleet(manager, metadata=METADATA)
        tenants = manager.create_range_map("tenants", key=int)
        urls = [new("one"), new("two")]
        ranges = [Range(0, 10), Range(10, 20)]
        shards = [
            fleet.add_shard(tenants, url, mappings=[range_])
            for url, range_ in zip(urls, ranges, strict=True)
        ]
        yield Two(fleet, tenants, shards, urls)


def notes(shard: Shard) -> list[int]:
    with shard.connect() as connection:
        return sorted(connection.scalars(select(note.c.tenant_id)))


def test_a_statement_is_executed_and_committed_on_every_shard(two: Two) -> None:
    report = two.fleet.execute_on_all(sa.insert(note).values(tenant_id=7))

    assert [(each.state, each.rows) for each in report.shards] == [("executed", 1)] * 2
    assert report.is_complete
    assert [notes(shard) for shard in two.shards] == [[7], [7]]


def test_a_failure_is_reported_and_the_same_name_continues_after_it(two: Two) -> None:
    second = two.urls[1]
    run_sql(second, "ALTER TABLE note RENAME TO hidden")
    statement = "INSERT INTO note (tenant_id) VALUES (7)"

    first = two.fleet.execute_on_all(statement, name="add 7", stop_after=None)
    run_sql(second, "ALTER TABLE hidden RENAME TO note")
    again = two.fleet.execute_on_all(statement, name="add 7")

    assert sorted(each.state for each in first.shards) == ["executed", "failed"]
    assert list(first.errors) == [two.shards[1]]
    assert sorted(each.state for each in again.shards) == ["executed", "executed before"]
    assert [notes(shard) for shard in two.shards] == [[7], [7]]


def test_no_further_shard_is_visited_after_a_canary_has_failed(two: Two) -> None:
    report = two.fleet.execute_on_all("SELECT nothing", canary=[two.shards[0]])

    assert [each.state for each in report.shards] == ["failed", "not tried"]
    with pytest.raises(ExceptionGroup):
        report.raise_if_incomplete()


def test_maintenance_runs_outside_of_a_transaction(two: Two) -> None:
    report = two.fleet.execute_on_all("VACUUM", autocommit=True, parallel=2)

    assert report.is_complete, report.errors


def test_maintenance_has_the_values_of_its_parameters(two: Two) -> None:
    statement = sa.insert(note).values(tenant_id=7)

    report = two.fleet.execute_on_all(statement, autocommit=True)

    assert report.is_complete, report.errors
    assert [notes(shard) for shard in two.shards] == [[7], [7]]


def test_all_shards_are_downgraded_and_upgraded_again(two: Two, tmp_path: Path) -> None:
    fleet = Fleet(two.fleet.manager, alembic=a_project(tmp_path / "project"))
    two.fleet.execute_on_all("DROP TABLE note")
    fleet.upgrade().raise_if_incomplete()

    report = fleet.downgrade("base")
    again = fleet.downgrade("base")

    assert [(each.state, each.after) for each in report.shards] == [("downgraded", "base")] * 2
    assert [each.state for each in again.shards] == ["current"] * 2
    with two.shards[0].connect() as connection:
        assert "blog" not in list_tables(connection)
    fleet.upgrade().raise_if_incomplete()


def test_a_fleet_without_revisions_cannot_be_downgraded(two: Two) -> None:
    with pytest.raises(ConfigurationError) as refused:
        two.fleet.downgrade("base")

    assert refused.value.code == "SchemaNotVersioned"


def test_a_file_is_created_and_dropped(two: Two, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'third.db'}"

    assert two.fleet.create_database(url)
    assert not two.fleet.create_database(url)
    assert two.fleet.drop_database(url)
    assert not two.fleet.drop_database(url)
    assert not (tmp_path / "third.db").exists()


@pytest.mark.proof
def test_a_database_of_postgresql_is_created_and_dropped(two: Two) -> None:
    url = str(make_url(postgres.server().url("postgres")).set(database='new "shard"'))

    assert two.fleet.create_database(url)
    assert not two.fleet.create_database(url)
    shard = two.fleet.add_shard(two.tenants, url)
    with pytest.raises(ShardInUseError):
        two.fleet.drop_database(url)
    two.fleet.remove_shard(shard)
    two.fleet.manager.engines.dispose()
    assert two.fleet.drop_database(url)
    assert not two.fleet.drop_database(url)


def test_a_shard_is_not_dropped(two: Two) -> None:
    for url in (two.urls[0], str(two.fleet.manager.location.text)):
        with pytest.raises(ShardInUseError) as refused:
            two.fleet.drop_database(url)

        assert refused.value.code == "DatabaseIsShard"


def test_a_connection_to_a_shard_is_validated(two: Two) -> None:
    with two.tenants.connect_shard(two.shards[0]) as connection:
        connection.execute(sa.insert(note).values(tenant_id=1))
        connection.commit()

    assert notes(two.shards[0]) == [1]


async def test_a_database_that_is_not_the_shard_is_refused(two: Two) -> None:
    tenants, (first, second) = two.tenants, two.shards
    run_sql(two.urls[0], "DELETE FROM partita_local_shards")

    with pytest.raises(StaleMappingError) as refused:
        tenants.connect_shard(first)
    assert refused.value.code == "NotThisShard"
    with pytest.raises(StaleMappingError):
        async with tenants.aio.connect_shard(first):
            pass
    with tenants.connect_shard(first, validate=False) as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    for where in (second, second.location, two.urls[1]):
        async with tenants.aio.connect_shard(where) as other:
            assert await other.scalar(text("SELECT 1")) == 1
    await two.fleet.manager.aclose()


def test_a_local_catalog_is_rebuilt_for_some_keys(two: Two) -> None:
    tenants, fleet = two.tenants, two.fleet
    tenants.split(at=5)
    run_sql(two.urls[0], "DELETE FROM partita_local_mappings")

    fleet.manager.recovery.rebuild_local(two.shards[0], only=[Range(0, 5)])

    differing = fleet.manager.recovery.differences(two.shards[0])
    assert [each.range for each in differing] == [Range(5, 10)]
