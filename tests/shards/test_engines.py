"""Engines: login errors, forked processes, event loops, the files of SQLite."""

import asyncio
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from partita.errors import ConfigurationError
from partita.shards import Fleet, Range, ShardedSchema, ShardMapManager
from partita.shards.connections import engines
from partita.shards.connections.locations import location_of
from partita.shards.keys.mapping import Location
from partita.shards.moving.move import MoveProgress
from support.routed import Base, Routed, a_shared_map


@pytest.fixture
def routed() -> Iterator[Routed]:
    with a_shared_map("sqlite") as made:
        yield made


@pytest.fixture
def on_postgres() -> Iterator[Routed]:
    with a_shared_map() as made:
        yield made


def test_the_users_of_a_server_are_put_into_no_error(on_postgres: Routed) -> None:
    def credentials(location: Location) -> str | None:
        is_shard = location != location_of(on_postgres.urls[0])
        return "postgresql://nobody_here@host/" if is_shard else None

    with ShardMapManager.open(on_postgres.urls[0], credentials=credentials) as manager:
        looked = Fleet(manager, metadata=Base.metadata).status().shards
        assert all("cannot be reached" in str(each.error) for each in looked)
        assert "nobody_here" not in "".join(str(each.error) for each in looked)


def test_a_login_that_cannot_be_read_is_not_repeated(on_postgres: Routed) -> None:
    def credentials(_location: object) -> str:
        return "postgresql://app:hidden:thing@host:not-a-port/"

    url = on_postgres.urls[0]
    with pytest.raises(ConfigurationError) as caught:
        ShardMapManager.open(url, credentials=credentials)
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_forked_child_opens_connections_of_its_own(on_postgres: Routed) -> None:
    def backend(key: int) -> int:
        with on_postgres.tenants.connect(key) as connection:
            return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)

    mine, (reading, writing) = backend(5), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(backend(5)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)

    with os.fdopen(reading) as told:
        assert int(told.read()) != mine
    assert backend(5) == mine


def test_closing_in_one_event_loop_leaves_the_engines_of_another(routed: Routed) -> None:
    engines = routed.manager.engines
    location = routed.one.location
    may_end, made = threading.Event(), threading.Event()
    kept: list[bool] = []

    async def live() -> None:
        engine = engines.async_for_location(location)
        made.set()
        await asyncio.to_thread(may_end.wait)
        kept.append(engines.async_for_location(location) is engine)
        await engines.adispose()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    made.wait()
    asyncio.run(engines.adispose())
    may_end.set()
    thread.join()
    assert kept == [True]


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_the_files_of_catalogs_and_shards_are_read_by_their_owner_only(
    tmp_path: Path, umask: int
) -> None:
    tmp_path.chmod(0o777)
    was = os.umask(umask)
    modes: dict[str, int] = {}

    def look(_progress: MoveProgress) -> None:
        for file in tmp_path.iterdir():
            modes[re.sub("[0-9a-f]{12}", "JOB", file.name)] = file.stat().st_mode & 0o777

    try:
        with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
            schema = ShardedSchema(Base.metadata, keys={"note": "tenant_id"})
            tenants = manager.create_range_map("tenants", key=int, schema=schema)
            fleet = Fleet(manager, metadata=Base.metadata)
            fleet.add_shard(tenants, f"sqlite:///{tmp_path}/one.db", mappings=[Range(0, 100)])
            two = fleet.add_shard(tenants, f"sqlite:///{tmp_path}/two.db")
            fleet.move(tenants.get(5), to=two, on_progress=look)
    finally:
        os.umask(was)

    databases = ("catalog.db", "one.db", "two.db")
    files = [name + end for name in databases for end in ("", "-shm", "-wal")]
    assert modes == dict.fromkeys([*files, "one.db-partita-JOB"], 0o600)


def test_a_version_of_sqlite_that_may_damage_files_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "partita.shards")
    engines.warn_of_wal_reset.cache_clear()

    for version in ((3, 51, 2), (3, 51, 2), (3, 51, 3)):
        engines.warn_of_wal_reset(version)

    (record,) = caplog.records
    assert (record.name, record.levelname) == ("partita.shards", "WARNING")
    assert record.getMessage().startswith("SQLite 3.51.2 of this Python may damage a database")
    assert "Use a Python whose sqlite3 module has SQLite 3.51.3" in record.getMessage()


def test_a_damaging_version_of_sqlite_is_checked_at_the_first_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "partita.shards")
    engines.warn_of_wal_reset.cache_clear()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 50, 4))

    with ShardMapManager.create(f"sqlite:///{tmp_path}/catalog.db") as manager:
        manager.create_range_map("tenants", key=int)

    assert [record.args for record in caplog.records] == [(3, 50, 4)]


def test_on_macos_sqlite_asks_the_disk_to_empty_its_cache(tmp_path: Path) -> None:
    assert "fullfsync = ON" not in engines.sqlite_pragmas("linux")
    with closing(sqlite3.connect(tmp_path / "any.db")) as connection:
        for pragma in engines.sqlite_pragmas("darwin"):
            connection.execute(f"PRAGMA {pragma}")
        found = [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "foreign_keys", "fullfsync", "checkpoint_fullfsync")
        ]
    assert found == ["wal", 1, 1, 1]
