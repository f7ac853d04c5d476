"""Alembic on one database: a revision is whole or not there, and env.py uses what it is given."""

import sqlite3
import threading
from pathlib import Path

import pytest
from alembic.config import Config
from sqlalchemy import inspect, make_url, text

from partita.errors import (
    ConfigurationError,
    OperationPendingError,
    SchemaMismatchError,
    ShardError,
)
from partita.shards.fleet.drift import list_tables
from partita.shards.fleet.migrations import ENVIRONMENT_TEMPLATE, LOCK_NUMBER, Migrations
from shards.conftest import NewDatabase
from support.alembic_projects import PROJECT, a_project, add_revision, connected, run_sql

IGNORES_THE_CONNECTION = """
from alembic import context
from sqlalchemy import NullPool, create_engine

engine = create_engine({url!r}, poolclass=NullPool)
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
"""
WITHOUT_TRANSACTION = """
from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
"""
ALL_IN_ONE_TRANSACTION_EACH = """
from alembic import context

context.configure(
    connection=context.config.attributes["connection"], transaction_per_migration=True
)
with context.begin_transaction():
    context.run_migrations()
"""


def tables_of(url: str) -> list[str]:
    with connected(url) as connection:
        return list_tables(connection)


def revision_of(url: str, project: Path = PROJECT) -> str:
    with connected(url) as connection:
        return str(Migrations(project).read(connection))


def upgrade(url: str, project: Path = PROJECT, target: str = "head") -> tuple[str, ...]:
    with connected(url) as connection:
        return Migrations(project).upgrade(connection, target)


def test_reading_the_revision_of_an_empty_database_writes_nothing(
    database_urls: NewDatabase,
) -> None:
    url = database_urls("empty")

    assert revision_of(url) == "base"
    assert tables_of(url) == []


def test_an_upgrade_goes_to_head(database_urls: NewDatabase) -> None:
    url = database_urls("one")

    assert upgrade(url) == ("three",)
    assert revision_of(url) == "three"
    assert tables_of(url) == ['Order "Lines"', "alembic_version", "blog"]


def test_an_upgrade_stops_at_the_revision_that_was_named(database_urls: NewDatabase) -> None:
    url = database_urls("one")

    assert upgrade(url, target="one") == ("one",)
    assert tables_of(url) == ["alembic_version", "blog"]
    assert upgrade(url, target="+1") == ("two",)


def test_an_upgrade_at_the_target_changes_nothing(database_urls: NewDatabase) -> None:
    url = database_urls("one")
    upgrade(url)

    assert upgrade(url) == ("three",)


@pytest.mark.parametrize("target", ["one", "two", "base"])
def test_a_target_older_than_the_database_is_refused(
    database_urls: NewDatabase, target: str
) -> None:
    url = database_urls("one")
    upgrade(url)

    with pytest.raises(SchemaMismatchError) as caught:
        upgrade(url, target=target)

    assert caught.value.code == "RevisionNewer"
    assert caught.value.facts == {"revision": "three", "target": target}
    assert revision_of(url) == "three"


def test_a_branch_that_is_ahead_of_another_is_not_newer(
    new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    add_revision(project, "left", "three")
    add_revision(project, "right", "three")
    url = new_sqlite("one")
    upgrade(url, project, "heads")

    assert sorted(upgrade(url, project, "left")) == ["left", "right"]
    with pytest.raises(SchemaMismatchError, match="RevisionNewer"):
        upgrade(url, project, "three")


@pytest.mark.parametrize("env", [None, WITHOUT_TRANSACTION, ALL_IN_ONE_TRANSACTION_EACH])
def test_a_failing_revision_leaves_the_one_before_it_whole(
    database_urls: NewDatabase, tmp_path: Path, env: str | None
) -> None:
    project = a_project(tmp_path / "project", env=env)
    add_revision(
        project,
        "four",
        "three",
        "op.create_table('half', sa.Column('id', sa.Integer))",
        "op.execute('INSERT INTO half VALUES (1)')",
        "op.execute('SELECT * FROM nowhere')",
    )
    url = database_urls("one")

    with pytest.raises(ShardError) as caught:
        upgrade(url, project)

    assert caught.value.code == "MigrationFailed"
    assert caught.value.facts["revision"] == "four"
    assert revision_of(url, project) == "three"
    assert "half" not in tables_of(url)


def test_a_repaired_revision_is_run_by_the_next_upgrade(
    database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    add_revision(project, "four", "three", "raise ZeroDivisionError")
    url = database_urls("one")
    with pytest.raises(ShardError, match="ZeroDivisionError"):
        upgrade(url, project)

    add_revision(project, "four", "three", "op.create_table('whole', sa.Column('id', sa.Integer))")

    assert upgrade(url, project) == ("four",)
    assert "whole" in tables_of(url)


def test_branches_are_upgraded_to_all_heads_and_joined(
    database_urls: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    add_revision(project, "left", "three")
    add_revision(project, "right", "three")
    url = database_urls("one")

    with pytest.raises(SchemaMismatchError, match="RevisionUnknown"):
        upgrade(url, project, "head")
    assert sorted(upgrade(url, project, "heads")) == ["left", "right"]

    add_revision(project, "joined", ("left", "right"))  # type: ignore[arg-type]
    assert upgrade(url, project) == ("joined",)


def test_an_unknown_target_is_refused_before_anything_is_written(
    database_urls: NewDatabase,
) -> None:
    url = database_urls("one")

    with pytest.raises(SchemaMismatchError) as caught:
        upgrade(url, target="nowhere")

    assert caught.value.code == "RevisionUnknown"
    assert tables_of(url) == []


def test_a_database_of_other_scripts_is_refused(database_urls: NewDatabase) -> None:
    url = database_urls("one")
    run_sql(
        url,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)",
        "INSERT INTO alembic_version VALUES ('foreign')",
    )

    with pytest.raises(SchemaMismatchError, match="RevisionUnknown"):
        upgrade(url)


def test_an_environment_that_ignores_the_connection_is_found_before_it_changes_anything(
    database_urls: NewDatabase, tmp_path: Path
) -> None:
    url, other = database_urls("one"), database_urls("other")
    project = a_project(tmp_path / "project", env=IGNORES_THE_CONNECTION.format(url=other))

    with pytest.raises(ConfigurationError) as caught:
        upgrade(url, project)

    assert caught.value.code == "MigrationConnectionIgnored"
    assert "ENVIRONMENT_TEMPLATE" in caught.value.hint
    assert tables_of(url) == []
    assert tables_of(other) == []


def test_an_environment_that_runs_nothing_is_an_error(
    new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project", env="from alembic import context\n")

    with pytest.raises(ConfigurationError) as caught:
        upgrade(new_sqlite("one"), project)

    assert caught.value.code == "MigrationsNotRun"


def test_an_environment_that_fails_says_where(new_sqlite: NewDatabase, tmp_path: Path) -> None:
    project = a_project(tmp_path / "project", env="import no_such_module\n")

    with pytest.raises(ConfigurationError, match="no_such_module") as caught:
        upgrade(new_sqlite("one"), project)

    assert caught.value.code == "MigrationEnvironmentFailed"


def test_a_folder_without_env_is_not_a_project(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Migrations(tmp_path)

    assert caught.value.code == "MigrationsNotFound"


def test_the_template_works(database_urls: NewDatabase, tmp_path: Path) -> None:
    template = ENVIRONMENT_TEMPLATE.replace(
        "from my_application.models import Base",
        "from support.migrations_project import models as Base",
    )
    project = a_project(tmp_path / "project", env=template)
    url = database_urls("one")

    assert upgrade(url, project) == ("three",)
    assert "CREATE TABLE blog" in Migrations(project).script((), "head", url=url)


def test_a_config_and_an_ini_file_are_taken_too(new_sqlite: NewDatabase, tmp_path: Path) -> None:
    ini = tmp_path / "alembic.ini"
    ini.write_text(f"[alembic]\nscript_location = {PROJECT}\npath_separator = os\n")

    projects: list[str | Config] = [str(ini), Config(str(ini))]

    for number, project in enumerate(projects):
        with connected(new_sqlite(f"shard{number}")) as connection:
            assert Migrations(project).upgrade(connection) == ("three",)


def test_a_second_upgrade_waits_for_the_first(database_urls: NewDatabase, tmp_path: Path) -> None:
    project = a_project(tmp_path / "project")
    marks = tmp_path / "marks"
    add_revision(
        project,
        "four",
        "three",
        "import pathlib, time",
        f"with pathlib.Path({str(marks)!r}).open('a') as marks: marks.write('ran ')",
        "time.sleep(0.3)",
    )
    url = database_urls("one")
    results: list[tuple[str, ...]] = []
    threads = [
        threading.Thread(target=lambda: results.append(upgrade(url, project))) for _ in range(3)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [("four",)] * 3
    assert marks.read_text() == "ran "


def test_an_upgrade_gives_up_while_another_process_upgrades_on_sqlite(
    new_sqlite: NewDatabase,
) -> None:
    url = new_sqlite("one")
    other = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")

    with connected(url) as connection, pytest.raises(OperationPendingError) as caught:
        Migrations(PROJECT).upgrade(connection, lock_timeout=0.05)

    assert caught.value.code == "UpgradeUnderWay"
    other.execute("COMMIT")
    other.close()
    assert upgrade(url) == ("three",)


def test_an_upgrade_gives_up_while_another_process_upgrades_on_postgresql(
    new_postgres: NewDatabase,
) -> None:
    url = new_postgres("one")

    with connected(url) as other, connected(url) as connection:
        other.execute(text("select pg_advisory_lock(:key)"), {"key": LOCK_NUMBER})
        with pytest.raises(OperationPendingError) as caught:
            Migrations(PROJECT).upgrade(connection, lock_timeout=0.05)

    assert caught.value.code == "UpgradeUnderWay"
    assert upgrade(url) == ("three",)


def test_an_upgrade_leaves_no_lock_and_no_setting_behind(new_postgres: NewDatabase) -> None:
    url = new_postgres("one")

    with connected(url) as connection:
        Migrations(PROJECT).upgrade(connection)

        held = "select count(*) from pg_locks where locktype = 'advisory'"
        assert connection.execute(text(held)).scalar_one() == 0
        assert connection.execute(text("show lock_timeout")).scalar_one() == "0"


def test_an_index_can_be_built_concurrently(new_postgres: NewDatabase, tmp_path: Path) -> None:
    project = a_project(tmp_path / "project")
    add_revision(
        project,
        "four",
        "three",
        "with op.get_context().autocommit_block():",
        "    op.create_index('by_name', 'blog', ['name'], postgresql_concurrently=True)",
    )
    url = new_postgres("one")

    assert upgrade(url, project) == ("four",)
    with connected(url) as connection:
        assert [index["name"] for index in inspect(connection).get_indexes("blog")] == ["by_name"]


REBUILDS_BLOG = (
    "with op.batch_alter_table('blog', recreate='always') as blog:",
    "    blog.alter_column('name', type_=sa.String(90))",
)


def sqlite_with_foreign_keys(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(str(make_url(url).database))
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def test_a_table_rebuilt_on_sqlite_keeps_what_refers_to_it(
    new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    add_revision(
        project,
        "four",
        "three",
        "op.execute('CREATE TABLE post (t INT, b INT, FOREIGN KEY (t, b) '",
        "           'REFERENCES blog (tenant_id, id) ON DELETE CASCADE)')",
    )
    url = new_sqlite("one")
    upgrade(url, project)
    run_sql(
        url,
        "INSERT INTO blog (tenant_id, id, name) VALUES (1, 1, 'a')",
        "INSERT INTO post VALUES (1, 1)",
    )
    add_revision(project, "five", "four", *REBUILDS_BLOG)

    with connected(url) as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        connection.rollback()
        Migrations(project).upgrade(connection)

        assert connection.exec_driver_sql("SELECT count(*) FROM post").scalar_one() == 1
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


def test_a_revision_that_breaks_foreign_keys_is_rolled_back_on_sqlite(
    new_sqlite: NewDatabase, tmp_path: Path
) -> None:
    project = a_project(tmp_path / "project")
    url = new_sqlite("one")
    upgrade(url, project)
    run_sql(
        url,
        "INSERT INTO blog (tenant_id, id, name) VALUES (1, 1, 'a')",
        'INSERT INTO "Order ""Lines""" VALUES (1, 1, NULL, 1)',
    )
    add_revision(project, "four", "three", "op.execute('DELETE FROM blog')")

    with connected(url) as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        connection.rollback()
        with pytest.raises(SchemaMismatchError) as caught:
            Migrations(project).upgrade(connection)

    assert caught.value.code == "ForeignKeysBroken"
    assert revision_of(url, project) == "three"
    with connected(url) as connection:
        assert connection.execute(text("SELECT count(*) FROM blog")).scalar_one() == 1


def test_a_script_does_what_an_upgrade_does(database_urls: NewDatabase) -> None:
    url = database_urls("one")
    upgrade(url, target="one")

    script = Migrations(PROJECT).script(("one",), "head", url=url)

    assert "CREATE TABLE blog" not in script
    run_script(url, script)
    assert revision_of(url) == "three"
    assert tables_of(url) == ['Order "Lines"', "alembic_version", "blog"]


def test_a_script_begins_with_an_empty_database(database_urls: NewDatabase) -> None:
    url = database_urls("one")

    run_script(url, Migrations(PROJECT).script((), "head", url=url))

    assert revision_of(url) == "three"


def test_a_script_that_fails_changes_nothing(database_urls: NewDatabase, tmp_path: Path) -> None:
    project = a_project(tmp_path / "project")
    add_revision(project, "four", "three", "op.execute('SELECT * FROM nowhere')")
    url = database_urls("one")

    with pytest.raises(Exception, match="nowhere"):
        run_script(url, Migrations(project).script((), "head", url=url))

    assert tables_of(url) == []


def test_there_is_no_script_when_nothing_is_pending(new_sqlite: NewDatabase) -> None:
    url = new_sqlite("one")

    assert Migrations(PROJECT).script(("three",), "head", url=url) == ""


def run_script(url: str, script: str) -> None:
    """Run a script as psql or sqlite3 would: as it stands, over the driver."""
    with connected(url) as connection:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        if connection.dialect.name == "sqlite":
            driver.executescript(script)
        else:
            driver.autocommit = True
            driver.execute(script)
            driver.autocommit = False
