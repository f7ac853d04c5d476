"""Drift: what a database really is, against what it should be, whatever its stamp says."""

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table

from partita.shards.fleet.drift import Difference, find_differences, list_tables
from partita.shards.fleet.migrations import Migrations
from shards.conftest import NewDatabase
from support.alembic_projects import PROJECT, connected, run_sql
from support.migrations_project.models import metadata


def a_database(url: str) -> str:
    with connected(url) as connection:
        Migrations(PROJECT).upgrade(connection)
    return url


def drift_of(url: str, schema: MetaData = metadata, *ignored: str) -> list[str]:
    with connected(url) as connection:
        return [str(each) for each in find_differences(connection, schema, ignore_tables=ignored)]


def test_a_database_at_head_has_no_drift(database_urls: NewDatabase) -> None:
    assert drift_of(a_database(database_urls("one"))) == []


def test_a_database_made_from_the_metadata_has_no_drift(database_urls: NewDatabase) -> None:
    url = database_urls("one")
    with connected(url) as connection:
        metadata.create_all(connection)
        connection.commit()

    assert drift_of(url) == []


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("ALTER TABLE blog ADD COLUMN by_hand INTEGER", "extra column blog.by_hand"),
        ("ALTER TABLE blog DROP COLUMN motto", "missing column blog.motto"),
        ("CREATE TABLE by_hand (id INTEGER)", "extra table by_hand"),
        ('DROP TABLE "Order ""Lines"""', 'missing table Order "Lines"'),
        ('CREATE INDEX "by hand" ON blog (name)', "extra index blog.by hand (name)"),
    ],
)
def test_each_change_by_hand_is_named(
    database_urls: NewDatabase, statement: str, named: str
) -> None:
    url = a_database(database_urls("one"))

    run_sql(url, statement)

    assert named in drift_of(url)
    with connected(url) as connection:
        assert str(Migrations(PROJECT).read(connection)) == "three"


def test_a_missing_index_is_named(database_urls: NewDatabase) -> None:
    url = a_database(database_urls("one"))

    run_sql(url, 'DROP INDEX "by 100%"')

    assert drift_of(url) == ['missing index Order "Lines".by 100% (tenant id, 100%)']


def test_another_type_and_another_null_rule_are_named(new_postgres: NewDatabase) -> None:
    url = a_database(new_postgres("one"))

    run_sql(
        url,
        "ALTER TABLE blog ALTER COLUMN motto TYPE INTEGER USING NULL",
        "ALTER TABLE blog ALTER COLUMN name DROP NOT NULL",
    )

    assert drift_of(url) == [
        "other type blog.motto (is INTEGER(), not String(length=200))",
        "other nullable blog.name (is True, not False)",
    ]


def test_another_primary_key_is_named(database_urls: NewDatabase) -> None:
    url = database_urls("one")
    run_sql(url, "CREATE TABLE pair (a INTEGER NOT NULL, b INTEGER NOT NULL, PRIMARY KEY (a))")
    wanted = MetaData()
    Table(
        "pair",
        wanted,
        Column("a", Integer, primary_key=True, autoincrement=False),
        Column("b", Integer, primary_key=True, autoincrement=False),
    )

    assert drift_of(url, wanted) == ["other primary key pair (is a, not a, b)"]


def test_a_foreign_key_that_was_dropped_is_named(new_postgres: NewDatabase) -> None:
    url = a_database(new_postgres("one"))

    run_sql(url, 'ALTER TABLE "Order ""Lines""" DROP CONSTRAINT "of blog"')

    assert drift_of(url) == ['missing foreign key Order "Lines".of blog (tenant id, blog)']


def test_tables_of_the_catalogs_are_no_drift_and_no_tables(database_urls: NewDatabase) -> None:
    url = a_database(database_urls("one"))

    run_sql(url, "CREATE TABLE partita_something (id INTEGER)")

    assert drift_of(url) == []
    with connected(url) as connection:
        assert "partita_something" not in list_tables(connection)


def test_tables_that_were_named_are_left_alone(database_urls: NewDatabase) -> None:
    url = a_database(database_urls("one"))

    run_sql(url, "CREATE TABLE spatial_ref_sys (id INTEGER)")

    assert drift_of(url, metadata, "spatial_ref_sys") == []


def test_what_the_environment_leaves_alone_is_left_alone(database_urls: NewDatabase) -> None:
    url = a_database(database_urls("one"))
    run_sql(url, "CREATE TABLE not_ours (id INTEGER)")
    options = {"include_name": lambda name, kind, parents: name != "not_ours"}

    with connected(url) as connection:
        assert find_differences(connection, metadata, options=options) == []


def test_comparing_writes_nothing(new_sqlite: NewDatabase) -> None:
    url = new_sqlite("one")

    assert "missing table blog" in drift_of(url)
    with connected(url) as connection:
        assert list_tables(connection) == []


def test_several_metadata_are_compared_as_one(database_urls: NewDatabase) -> None:
    url = a_database(database_urls("one"))
    more = MetaData()
    Table("note", more, Column("id", Integer, primary_key=True), Column("text", String))

    with connected(url) as connection:
        found = find_differences(connection, [metadata, more])

    assert found == [Difference("missing table", "note")]
