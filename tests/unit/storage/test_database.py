"""The tables of a system are created, upgraded in order, or refused."""

import contextlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from partita.errors import FormatVersionError
from partita.storage.database import Database, Upgrades

FIRST = "CREATE TABLE number (value INTEGER)"
THIRD = "CREATE TABLE number (value INTEGER, unit TEXT, place TEXT)"


def add_unit(connection: apsw.Connection) -> None:
    connection.execute("ALTER TABLE number ADD COLUMN unit TEXT")
    connection.execute("UPDATE number SET unit = 'metre'")


def add_place(connection: apsw.Connection) -> None:
    connection.execute("ALTER TABLE number ADD COLUMN place TEXT")
    connection.execute("UPDATE number SET place = 'of ' || unit")


def fail(_connection: apsw.Connection) -> None:
    raise OSError("the power went")


UPGRADES: Upgrades = {1: add_unit, 2: add_place}


def state_of(folder: Path) -> tuple[Any, list[Any]]:
    with contextlib.closing(apsw.Connection(str(folder / "account.sqlite"))) as database:
        version = database.execute("SELECT version FROM format WHERE system = 'test'").get
        return version, database.execute("SELECT * FROM number").fetchall()


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Return a folder with format 1."""
    database = await Database.open(tmp_path)
    database.prepare("test", 1, FIRST)
    async with database.change() as connection:
        connection.execute("INSERT INTO number VALUES (7)")
    await database.close()
    return tmp_path


async def test_tables_of_an_earlier_format_are_upgraded_step_by_step(folder: Path) -> None:
    database = await Database.open(folder)
    database.prepare("test", 3, THIRD, UPGRADES)
    await database.close()

    assert state_of(folder) == (3, [(7, "metre", "of metre")])


async def test_failed_upgrade_leaves_the_earlier_format(folder: Path) -> None:
    database = await Database.open(folder)
    with pytest.raises(OSError, match="the power went"):
        database.prepare("test", 3, THIRD, {1: add_unit, 2: fail})
    await database.close()

    assert state_of(folder) == (1, [(7,)])


@pytest.mark.parametrize(("version", "upgrades"), [(2, {}), (3, {2: add_place})])
async def test_format_without_an_upgrade_is_refused_and_nothing_is_changed(
    folder: Path, version: int, upgrades: Upgrades
) -> None:
    database = await Database.open(folder)
    with pytest.raises(FormatVersionError, match=f"format 1 of test; this Partita reads {version}"):
        database.prepare("test", version, THIRD, upgrades)
    await database.close()

    assert state_of(folder) == (1, [(7,)])


async def test_format_of_a_newer_version_is_refused_and_nothing_is_changed(folder: Path) -> None:
    database = await Database.open(folder)
    database.prepare("test", 3, THIRD, UPGRADES)
    with pytest.raises(FormatVersionError, match="format 3 of test; this Partita reads 2"):
        database.prepare("test", 2, FIRST, {1: add_unit})
    await database.close()

    assert state_of(folder) == (3, [(7, "metre", "of metre")])
