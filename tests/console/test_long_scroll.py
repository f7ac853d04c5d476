"""A long table in a real browser."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from partita.bulk.connecting import connected
from partita.bulk.files import FileKind
from partita.bulk.work.importing import ImportTask, import_file
from partita.clock import SystemClock
from support.browser import Watch, picture
from support.live import LiveServer, needs_folder
from support.repeats import IS_SOAK

ENTITIES = 1_000_000 if IS_SOAK else 350_000
"""Above 310,000 rows the scroll bar is scaled; `make soak` scrolls over a million."""
PER_PARTITION = 1000
ROWS_MAX = 80
HEAP_BYTES_MAX = 64 * 1024 * 1024
PATIENCE_MS = 600_000

pytestmark = [pytest.mark.proof, needs_folder, pytest.mark.timeout(1500)]

TO_THE_END = """async wanted => {
  const grid = document.querySelector("entity-grid");
  while (!grid.pages.isComplete && grid.pages.known < wanted) {
    grid.moveTop(grid.lastTop);
    await new Promise(resolve => setTimeout(resolve, 5));
    if (grid.pages.error) throw grid.pages.error;
  }
  grid.moveTop(grid.lastTop);
  return grid.pages.known;
}"""


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose table Readings was filled by an import."""
    folder = tmp_path_factory.mktemp("million")
    flags = ("--path", "data", "--durability", "fast", "--console", "--console-port", "0")
    server = LiveServer(folder, *flags)
    with ThreadPoolExecutor(1) as thread:  # a loop of the browser may run in this one
        thread.submit(asyncio.run, fill(folder, server.connection_string)).result()
    yield server
    server.stop()


async def fill(folder: Path, connection_string: str) -> None:
    file = folder / "readings.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number in range(ENTITIES):
            partition, row = divmod(number, PER_PARTITION)
            entity = {
                "PartitionKey": f"sensor-{partition:04}",
                "RowKey": f"{row:06}",
                "Celsius": 20 + row % 17 / 4,
                "Count": row,
            }
            lines.write(json.dumps(entity) + "\n")
    async with connected(connection_string) as client:
        task = ImportTask("Readings", str(file), FileKind("jsonl"))
        done = await import_file(client, task, SystemClock())
    assert done.tally.written == ENTITIES
    file.unlink()


def test_a_long_table_is_scrolled_with_few_elements(watch: Watch, million: LiveServer) -> None:
    page = watch.page
    address = million.announced["console"].replace("/#", "/a/devstoreaccount1/t/Readings#")
    page.goto(address)
    page.get_by_role("gridcell", name="000003", exact=True).wait_for()
    page.set_default_timeout(PATIENCE_MS)

    assert page.evaluate(TO_THE_END, ENTITIES) == ENTITIES

    expect(row(page, ENTITIES)).to_contain_text(f"sensor-{ENTITIES // PER_PARTITION - 1:04}")
    expect(page.get_by_role("grid")).to_have_attribute("aria-rowcount", str(ENTITIES + 1))
    assert page.locator(".grid-row").count() <= ROWS_MAX
    assert page.evaluate("document.querySelector('entity-grid').pages.held.size") <= 24
    assert heap_bytes(page) <= HEAP_BYTES_MAX
    picture(page, "console-million")

    # The scroll bar is scaled: a notch of the wheel still moves by rows.
    page.get_by_role("grid").hover()
    before = top(page)
    page.mouse.wheel(0, -104)
    page.wait_for_function(
        "before => document.querySelector('entity-grid').top < before", arg=before
    )
    assert before - top(page) == pytest.approx(4)

    # A page that was dropped is read again by its start.
    page.evaluate("document.querySelector('entity-grid').moveTop(200_000)")
    expect(row(page, 200_001)).to_contain_text("sensor-0200")
    page.get_by_role("grid").press("Control+Home")
    expect(row(page, 1)).to_contain_text("sensor-0000")


def row(page: Page, number: int) -> Locator:
    return page.locator(f".grid-row[aria-rowindex='{number + 1}']")


def top(page: Page) -> float:
    found: float = page.evaluate("document.querySelector('entity-grid').top")
    return found


def heap_bytes(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    return used
