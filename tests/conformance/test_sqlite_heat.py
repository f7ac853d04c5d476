"""The suite of heat on heat.sqlite and in memory; damage, full disks, other versions."""

import logging
import os
from pathlib import Path

import apsw
import pytest

from conformance.kept_heat import EVER, HOUR, KeptHeatConformance, axes_of
from partita.errors import DamageError, FormatVersionError, UnavailableError
from partita.heat.kept import KeptHeat
from partita.heat.limits import MINUTES_KEPT_SECONDS, TENS_KEPT_SECONDS
from partita.heat.sqlite_heat import HEAT_FILE, SqliteHeat


class TestInMemory(KeptHeatConformance):
    async def open_heat(self) -> KeptHeat:
        return await SqliteHeat.open(None)


class TestInFolder(KeptHeatConformance):
    minutes_kept, tens_kept = MINUTES_KEPT_SECONDS, TENS_KEPT_SECONDS
    folder: Path

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    async def open_heat(self) -> KeptHeat:
        return await SqliteHeat.open(self.folder)


async def test_a_closed_file_is_read_again_and_by_others_beside_a_server(tmp_path: Path) -> None:
    first = await SqliteHeat.open(tmp_path)
    await first.add(HOUR, axes_of("Staff", ("a", 1)), HOUR + 60)
    await first.close()
    server = await SqliteHeat.open(tmp_path)
    beside = SqliteHeat.beside(tmp_path)

    await server.add(HOUR + 60, axes_of("Staff", ("b", 1)), HOUR + 120)

    assert len(await beside.read("staff", *EVER)) == 2
    with pytest.raises(UnavailableError):
        await beside.add(HOUR, axes_of("Staff", ("a", 1)), HOUR)
    await beside.close()
    await server.close()
    assert (tmp_path / HEAT_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"SQLite format 3\0" + b"x" * 8192])
async def test_a_damaged_file_is_put_aside_with_one_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / HEAT_FILE).write_bytes(content)

    with caplog.at_level(logging.WARNING):
        heat = await SqliteHeat.open(tmp_path)

    await heat.add(HOUR, axes_of("Staff", ("a", 1)), HOUR + 60)
    assert len(await heat.read("staff", *EVER)) == 1
    assert (tmp_path / "heat.damaged").read_bytes() == content
    assert len(caplog.records) == 1
    await heat.close()


async def test_a_damaged_axis_is_an_error_of_heat(tmp_path: Path) -> None:
    heat = await SqliteHeat.open(tmp_path)
    await heat.add(HOUR, axes_of("Staff", ("a", 1)), HOUR + 60)
    other = apsw.Connection(os.fspath(tmp_path / HEAT_FILE))
    other.execute("UPDATE heat SET axis = x'01ff'")
    other.close()

    with pytest.raises(DamageError):
        await heat.read("staff", *EVER)
    await heat.close()
    with pytest.raises(DamageError):
        SqliteHeat.beside(tmp_path)
    again = await SqliteHeat.open(tmp_path)
    assert (tmp_path / "heat.damaged").exists()
    assert await again.read("staff", *EVER) == []
    await again.close()


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    other = apsw.Connection(os.fspath(tmp_path / HEAT_FILE))
    other.pragma("user_version", 2)
    other.close()

    with pytest.raises(FormatVersionError):
        await SqliteHeat.open(tmp_path)
    with pytest.raises(FormatVersionError):
        SqliteHeat.beside(tmp_path)


async def test_a_full_disk_is_an_error_of_heat(tmp_path: Path) -> None:
    heat = await SqliteHeat.open(tmp_path)
    await heat.add(HOUR, axes_of("Staff", ("a", 1)), HOUR + 60)
    heat._connection.pragma("max_page_count", 1)

    many = axes_of("Staff", *sorted((os.urandom(128).hex(), 1) for _ in range(256)))
    with pytest.raises(UnavailableError):
        await heat.add(HOUR + 60, many, HOUR)
    await heat.close()
