"""The SQLite that an account runs on, and how its connections are configured."""

from pathlib import Path

import apsw
import pytest

from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.backup.taking import back_up
from partita.storage.database import Database


@pytest.mark.parametrize("version", ["3.46.1", "3.50.6", "3.51.2"])
async def test_a_sqlite_with_the_wal_reset_bug_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    database = await Database.open(tmp_path / "made")
    await database.close()
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)

    with pytest.raises(ConfigurationError) as refused:
        await Database.open(tmp_path / "account")

    assert (refused.value.message, refused.value.hint) == (
        f"SQLite {version}, which apsw uses, can lose committed pages (the WAL-reset bug).",
        "Install apsw 3.51.3 or later: `pip install --upgrade apsw`.",
    )
    assert not (tmp_path / "account").exists()
    with pytest.raises(ConfigurationError, match="the WAL-reset bug"):
        back_up(tmp_path / "made", tmp_path / "backup", clock=SystemClock())


@pytest.mark.parametrize("version", ["3.44.6", "3.50.7", "3.51.3", "3.53.0"])
async def test_a_sqlite_with_the_fix_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)

    await (await Database.open(tmp_path)).close()


async def test_every_connection_flushes_the_cache_of_the_drive(tmp_path: Path) -> None:
    database = await Database.open(tmp_path)

    async with database.change() as writer:
        assert (writer.pragma("fullfsync"), writer.pragma("checkpoint_fullfsync")) == (1, 1)
    checkpointer = database._checkpointer
    assert checkpointer is not None
    for each in (checkpointer, database.reader):
        assert (each.pragma("fullfsync"), each.pragma("checkpoint_fullfsync")) == (1, 1)
    await database.close()
