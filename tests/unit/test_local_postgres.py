"""A local PostgreSQL server: in folders that other users cannot enter, restarted, missing."""

import importlib.util
import shutil
import sys
from pathlib import Path

import psycopg
import pytest

from partita.errors import ConfigurationError, UnavailableError
from partita.local_postgres import INSTALLATION, LIBRARIES, WHEEL, LocalPostgres


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder of mode 0700 that holds the wheel, as an environment in a home folder does."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    specification = importlib.util.find_spec(WHEEL)
    assert specification is not None
    assert specification.origin is not None
    installed = Path(specification.origin).parent.parent
    for part in (Path(WHEEL, INSTALLATION), Path(LIBRARIES)):
        shutil.copytree(installed / part, folder / part, symlinks=True)
    (folder / WHEEL / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, WHEEL, raising=False)
    return folder


def test_a_server_runs_from_and_in_a_folder_that_other_users_cannot_enter(private: Path) -> None:
    server = LocalPostgres(private / "data")
    server.start()
    try:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
            # The server names its files anew when it reads its settings again.
            connection.execute("ALTER SYSTEM SET work_mem = '7MB'")
            connection.execute("SELECT pg_reload_conf()")
    finally:
        server.stop()
    assert server.pid is None

    again = LocalPostgres(private / "data")
    again.start()
    try:
        with psycopg.connect(again.url()) as connection:
            assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]
            assert connection.execute("SHOW work_mem").fetchall() == [("7MB",)]
    finally:
        again.stop()


def test_a_missing_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigurationError, match=r"pip install '\./partita\[fleet\]'"):
        LocalPostgres(tmp_path).start()


def test_a_setting_that_the_server_refuses_is_quoted(tmp_path: Path) -> None:
    server = LocalPostgres(tmp_path, settings={"no_such_setting": "1"})

    with pytest.raises(UnavailableError, match="no_such_setting"):
        server.start()
    assert server.pid is None
