"""A fleet in the console: the API by plain HTTP, the screen in a real browser."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from console.api import Api
from console.consoles import live_console
from partita.clock import SystemClock
from partita.heat.axes import Bucket, fold
from partita.heat.minutes import TableAxis
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, InsertOrReplace
from support.browser import THEMES, Watch, picture, use_theme, violations
from support.live import LiveServer
from support.many_shards import execute, new_fleet, open_front_end

ACCOUNT = "devaccount"
LOADS = {"c010": 2_000, "c040": 1_500, "c070": 9_000}
"""Point reads per second of partitions, as a front end has measured them."""
LATER_SECONDS = 3600
"""The load is stored as of later, so that it is the present one throughout the tests."""


class Seeded(NamedTuple):
    address: str
    url: str


async def _seed(url: str) -> None:
    fleet = await open_front_end(url)
    try:
        tables = (await fleet.stores(ACCOUNT)).tables
        engine = TableEngine(tables)
        await engine.create_table("Orders")
        await engine.create_table("Customers")
        await (await fleet.stores(ACCOUNT)).queues.create_queue("to-ship", {})
        for number in range(100):
            key = EntityKey(f"c{number:03}", "1")
            await engine.run("Orders", EntityGroup([InsertOrReplace(key, {"Total": number})]))
        axis = fold(
            Bucket(f"{key}\0", f"{key}\0", (5 * rate, 0, 0, 0, 0)) for key, rate in LOADS.items()
        )
        later = SystemClock().ticks() // 10_000_000 + LATER_SECONDS
        await fleet.heat.write({ACCOUNT: {"orders": TableAxis("Orders", axis)}}, 5.0, later)
    finally:
        await fleet.close()


@pytest.fixture
def seeded(tmp_path: Path) -> Iterator[Seeded]:
    """A console of a fleet of two shards, and nothing else."""
    urls = new_fleet(3)
    execute(urls[0], "UPDATE partita.shard SET state = 'd' WHERE id = 0")
    with ThreadPoolExecutor(1) as thread:  # the loop of Playwright may run in this one
        thread.submit(lambda: asyncio.run(_seed(urls[0]))).result()
    with live_console(tmp_path, "--fleet", urls[0]) as address:
        yield Seeded(address, urls[0])


@pytest.fixture
def api(seeded: Seeded) -> Api:
    return Api(seeded.address)


def ranges_of(api: Api, table: str = "Orders") -> list[dict[str, Any]]:
    (found,) = [each for each in api.get("/fleet").json["tables"] if each["name"] == table]
    ranges: list[dict[str, Any]] = found["ranges"]
    return ranges


def test_a_fleet_has_shards_ranges_loads_and_advice(api: Api) -> None:
    assert api.get("/session").json["has_fleet"] is True

    fleet = api.get("/fleet").json

    shards = {each["name"]: each for each in fleet["shards"]}
    assert [shards[name]["state"] for name in ("catalog", "shard-1", "shard-2")] == [
        *("draining", "open", "open")
    ]
    assert sum(each["load"] for each in shards.values()) == pytest.approx(sum(LOADS.values()))
    (whole,) = ranges_of(api)
    assert (whole["lower"], whole["upper"], whole["hot_key"]) == ("", None, "c070")
    assert fleet["changes"] == []
    (advice,) = fleet["advice"]
    assert advice["kind"] == "hot-partition"


def test_ranges_are_split_moved_and_merged(api: Api) -> None:
    (whole,) = ranges_of(api)
    asked = {"account": ACCOUNT, "table": "Orders", "at": "c050"}

    low, high = api.post("/fleet/split", asked).json["ranges"]
    other = {"shard-1": "shard-2", "shard-2": "shard-1"}[whole["shard"]]
    moved = api.finish(api.post("/fleet/move", {"range": high, "to": other}))

    assert (moved["state"], moved["counts"]["entities"]) == ("done", 50)
    assert "closed for" in moved["note"]
    assert [(each["id"], each["shard"]) for each in ranges_of(api)] == [
        (low, whole["shard"]),
        (high, other),
    ]
    assert api.post("/fleet/merge", {"first": low, "second": high}).code == "RangesApart"
    api.finish(api.post("/fleet/move", {"range": low, "to": other}))
    api.post("/fleet/merge", {"first": low, "second": high})
    assert [each["shard"] for each in ranges_of(api)] == [other]


def test_a_shard_is_drained_after_its_name_was_typed(api: Api) -> None:
    source = ranges_of(api)[0]["shard"]

    refused = api.post(f"/fleet/shards/{source}/drain", {"confirm": "another"})
    done = api.finish(api.post(f"/fleet/shards/{source}/drain", {"confirm": source}))

    assert refused.code == "ConsoleInput"
    assert done["state"] == "done"
    assert {each["shard"] for each in ranges_of(api)}.isdisjoint({source})


def test_a_queue_is_one_range_that_can_be_moved(api: Api) -> None:
    tables = api.get("/fleet").json["tables"]
    (queue,) = [each for each in tables if each["kind"] == "queue"]
    (only,) = queue["ranges"]
    other = {"shard-1": "shard-2", "shard-2": "shard-1"}[only["shard"]]

    done = api.finish(api.post("/fleet/move", {"range": only["id"], "to": other}))

    assert (queue["name"], done["state"]) == ("to-ship", "done")
    assert ranges_of(api, "to-ship")[0]["shard"] == other


def test_a_move_that_fails_says_why(api: Api) -> None:
    (whole,) = ranges_of(api)

    failed = api.finish(api.post("/fleet/move", {"range": whole["id"], "to": "nowhere"}))

    assert failed["state"] == "failed"
    assert failed["error"]["code"] == "ShardNotFound"


def test_a_console_that_is_read_only_changes_no_fleet(seeded: Seeded, tmp_path: Path) -> None:
    with live_console(tmp_path, "--fleet", seeded.url, "--read-only") as address:
        api = Api(address)
        (whole,) = ranges_of(api)
        asked = {"account": ACCOUNT, "table": "Orders", "at": "c050"}
        answers = [
            api.post("/fleet/split", asked),
            api.post("/fleet/merge", {"first": 1, "second": 2}),
            api.post("/fleet/move", {"range": whole["id"], "to": "shard-2"}),
            api.post("/fleet/shards/shard-1/drain", {"confirm": "shard-1"}),
        ]

        assert [each.code for each in answers] == ["ConsoleReadOnly"] * 4
        assert ranges_of(api) == [whole]


def test_a_console_without_a_fleet_says_so(console: LiveServer) -> None:
    assert Api.of(console).get("/fleet").code == "ConsoleFleetMissing"


# The screen


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_ranges_are_split_moved_and_drained_in_the_browser(
    watch: Watch, seeded: Seeded, api: Api, axe: str, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)
    (whole,) = ranges_of(api)
    other = {"shard-1": "shard-2", "shard-2": "shard-1"}[whole["shard"]]
    ranges = page.get_by_role("table", name="Ranges")

    page.goto(seeded.address)
    page.get_by_role("heading", name="Fleet").wait_for()
    page.get_by_label("Table or queue", exact=True).select_option(label=f"Orders ({ACCOUNT})")
    page.get_by_role("heading", name="Ranges of Orders").wait_for()
    page.get_by_text("A partition is not divided").wait_for()
    assert violations(page, axe) == []

    page.get_by_role("button", name=f"Split range {whole['id']}").click()
    page.get_by_label("First partition key of the second range").fill("c050")
    page.get_by_role("button", name="Split", exact=True).click()
    ranges.get_by_role("cell", name="c050").first.wait_for()
    _low, high = (each["id"] for each in ranges_of(api))

    page.get_by_role("button", name=f"Move range {high}").click()
    assert violations(page, axe) == []
    page.get_by_label("Shard that gets it").select_option(other)
    page.get_by_role("button", name="Move", exact=True).click()
    page.get_by_text("closed for").wait_for()
    ranges.get_by_role("cell", name=other).wait_for()
    picture(page, f"console-fleet-{theme}")
    assert violations(page, axe) == []

    page.get_by_role("button", name=f"Drain {other}").click()
    page.get_by_label(f"Type {other} to confirm").fill(other)
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_text(f"{other} has no ranges").wait_for()
    assert {each["shard"] for each in ranges_of(api)} == {whole["shard"]}


@pytest.mark.proof
def test_a_console_without_a_fleet_says_how_to_show_one(
    watch: Watch, console: LiveServer, axe: str
) -> None:
    page, address = watch.page, console.announced["console"]
    origin, _, token = address.partition("#")
    page.goto(f"{origin}a/devstoreaccount1/fleet#{token}")

    page.get_by_text("partita console --fleet").wait_for()
    assert violations(page, axe) == []
