"""Entities that a scan has examined."""

from pathlib import Path

import pytest

from partita.storage.database import Database
from partita.tables import sqlite_scan
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.filters import parse
from partita.tables.operations import EntityGroup, Insert
from partita.tables.paging import KeyRange, Page
from partita.tables.sqlite_store import SqliteTableStore


async def a_page(folder: Path, text: str | None, limit: int = 1000) -> Page:
    """Query 100 entities whose N is their number."""
    engine = TableEngine(await SqliteTableStore.open(await Database.open(folder)))
    try:
        await engine.create_table("Staff")
        rows = [Insert(EntityKey("a", f"{number:03}"), {"N": number}) for number in range(100)]
        await engine.run("Staff", EntityGroup([*rows]))
        wanted = None if text is None else parse(text)
        _, page = await engine.query("Staff", wanted, within=KeyRange(), limit=limit)
        return page
    finally:
        await engine.close()


async def test_without_a_filter_it_is_what_is_returned(tmp_path: Path) -> None:
    page = await a_page(tmp_path, None, limit=7)

    assert (len(page.entities), page.examined) == (7, 7)


async def test_a_point_is_one_entity(tmp_path: Path) -> None:
    page = await a_page(tmp_path, "PartitionKey eq 'a' and RowKey eq '007'")

    assert (len(page.entities), page.examined) == (1, 1)


async def test_a_short_scan_with_a_filter_tells_that_it_does_not_count(tmp_path: Path) -> None:
    page = await a_page(tmp_path, "N gt 97")

    assert (len(page.entities), page.examined, page.is_counted) == (2, 2, False)


@pytest.mark.parametrize(
    ("chunk", "limit", "examined"), [(30, 1000, 100), (100, 2, 94), (30, 2, 94)]
)
async def test_a_long_scan_counts_what_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, limit: int, examined: int
) -> None:
    monkeypatch.setattr(sqlite_scan, "WHOLE_RANGE_SECONDS", -1.0)  # no range is read as a whole
    monkeypatch.setattr(sqlite_scan, "PROGRESS_INSTRUCTIONS", 1)
    monkeypatch.setattr(sqlite_scan, "CHUNK_ENTITIES", chunk)

    page = await a_page(tmp_path, "N gt 90", limit)

    assert len(page.entities) == min(limit, 9)
    assert (page.examined, page.is_counted) == (examined, True)
