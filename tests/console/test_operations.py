"""Overview and heat: the API by plain HTTP, the screens in a real browser."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables import TableServiceClient

from console.api import Api
from console.consoles import live_console
from console.seeded_heat import HOT, seed
from support.browser import THEMES, Watch, picture, use_theme, violations
from support.live import LiveServer, needs_folder

ACCOUNT = "devstoreaccount1"
MINUTES = 40
SLOW = "Total ge 0"
LONG = {"Note": "x" * 10_000}
"""A page of such entities has 3 MB: on any machine it takes more than 1 ms."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose requests are all slow, with an hour of heat."""
    folder = tmp_path_factory.mktemp("operations")
    flags = ("--console", "--console-port", "0", "--metrics-port", "0", "--slow-ms", "1")
    started = LiveServer(folder, "--path", "data", *flags)
    started.stop()
    seed(folder / "data" / ACCOUNT, int(time.time()), MINUTES)
    started.start()
    send_requests(started)
    yield started
    started.stop()


def send_requests(server: LiveServer) -> None:
    with TableServiceClient.from_connection_string(server.connection_string) as service:
        table = service.create_table_if_not_exists("Orders")
        for start in range(0, 300, 100):
            table.submit_transaction(
                [
                    ("upsert", {"PartitionKey": HOT, "RowKey": f"order-{n:05}", "Total": n} | LONG)
                    for n in range(start, start + 100)
                ]
            )
        assert len(list(table.query_entities(SLOW))) == 300
        with pytest.raises(ResourceNotFoundError):
            table.get_entity("none", "none")


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api.of(server)


@needs_folder
def test_a_console_beside_the_server_has_its_totals(api: Api) -> None:
    assert api.get("/session").json["has_operations"] is True

    now = api.get("/operations/now").json

    tables = now["services"]["tables"]
    assert tables["requests_total"] >= 6
    assert tables["operations"]["QueryEntity"]["errors_total"] == 1
    assert sum(tables["latency"]["counts"]) == tables["requests_total"]
    assert now["accounts"] == [ACCOUNT]


@needs_folder
def test_slow_requests_have_their_plan_and_advice(api: Api) -> None:
    slow = api.get("/operations/slow", limit="200").json["slow"]

    (query,) = [each for each in slow if each["operation"] == "QueryEntities" and each["filter"]]
    assert query["filter"] == SLOW
    assert "table" in query["plan"]
    assert {"examined", "returned", "commit_ms", "queue_ms", "advice"} <= query.keys()
    assert api.get("/operations/slow", limit="1").json["slow"] == slow[:1]


@needs_folder
def test_heat_has_the_stored_axes_and_what_they_show(api: Api) -> None:
    tables = api.get("~/heat").json["tables"]
    found = api.get("~/heat/columns", table="Orders").json

    assert [each["name"] for each in tables][:2] == ["Orders", "Events"]
    assert len(found["columns"]) >= MINUTES - 1
    assert {each["kind"] for each in found["shapes"]} >= {"hot partition"}
    first = found["columns"][0]
    assert first["seconds"] == 60
    assert all(low <= high for low, high, _ in first["axis"])


@needs_folder
def test_questions_that_are_not_valid_are_refused(api: Api) -> None:
    assert api.get("~/heat/columns").code == "ConsoleInput"
    assert api.get("~/heat", **{"from": "yesterday"}).status == 400
    assert api.get("/operations/slow", limit="x").status == 400
    assert api.send("GET", "/api/v1/operations/now").status == 401


@needs_folder
def test_a_console_asks_a_remote_endpoint_with_its_token(
    server: LiveServer, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.token"
    wrong.write_text("x" * 43)
    flags = (
        "--connect",
        server.connection_string,
        "--metrics",
        server.announced["metrics_endpoint"],
    )
    right = server.folder / "data" / "operations.token"

    with live_console(tmp_path, *flags, "--metrics-token-file", str(right)) as address:
        api = Api(address)
        assert api.get("/operations/now").json["accounts"] == [ACCOUNT]
        assert api.get("~/heat").json["tables"]
    with live_console(tmp_path, *flags, "--metrics-token-file", str(wrong)) as address:
        refused = Api(address).get("/operations/now")

    # Not 401, which a page would take for its own token.
    assert (refused.status, refused.code) == (502, "ConsoleOperationsRefused")
    assert right.read_text().strip() not in refused.body.decode()


def test_a_console_without_an_endpoint_says_so(console: LiveServer, tmp_path: Path) -> None:
    with live_console(tmp_path, "--connect", console.connection_string) as address:
        api = Api(address)

        assert api.get("/session").json["has_operations"] is False
        assert api.get("/operations/now").code == "ConsoleOperationsMissing"
        assert api.get("~/heat").code == "ConsoleOperationsMissing"


# The screens


def at(address: str, path: str) -> str:
    page, _, token = address.partition("#")
    return f"{page}a/{ACCOUNT}/{path}#{token}"


@needs_folder
@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_the_overview_is_live_and_accessible(
    watch: Watch, server: LiveServer, axe: str, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)

    page.goto(at(server.announced["console"], "overview"))
    page.get_by_role("img", name="Requests per second").wait_for()
    page.locator("live-curve canvas").first.wait_for()
    for _ in range(10):
        send_requests(server)
        page.wait_for_timeout(300)
    page.get_by_text(SLOW).first.wait_for()

    assert page.locator("live-curve canvas").count() == 6
    assert page.locator("dl.tiles").get_by_text("Latency p99").count() == 1
    assert violations(page, axe) == []
    picture(page, f"console-overview-{theme}")


@needs_folder
@pytest.mark.proof
def test_the_overview_opens_in_a_browser_without_a_locale(watch: Watch, server: LiveServer) -> None:
    page = watch.page
    # What Chromium reports where LANG is not set.
    page.add_init_script(
        "Object.defineProperty(navigator, 'language', {value: 'en-US@posix', configurable: true})"
    )

    page.goto(at(server.announced["console"], "overview"))

    page.get_by_role("img", name="Requests per second").wait_for()


@needs_folder
@pytest.mark.proof
def test_the_overview_keeps_its_window_in_the_address(watch: Watch, server: LiveServer) -> None:
    page = watch.page
    page.goto(at(server.announced["console"], "overview"))

    page.get_by_role("button", name="10 min").click()
    assert page.url.endswith("overview?window=10m")
    page.keyboard.press("p")

    page.get_by_role("button", name="Paused").wait_for()


@needs_folder
@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_the_heat_map_is_drawn_and_accessible(
    watch: Watch, server: LiveServer, axe: str, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)

    page.goto(at(server.announced["console"], "heat/Orders"))
    page.get_by_role("img", name="The peak is").wait_for()

    hottest = page.locator("table.list").last
    assert HOT in hottest.locator("tbody tr").first.inner_text()
    assert page.get_by_text("hot partition").count() == 1
    assert violations(page, axe) == []
    colours = page.evaluate(COLOURS)
    assert colours > 50
    picture(page, f"console-heat-{theme}")


COLOURS = """() => {
  const canvas = document.querySelector("heat-map canvas");
  const context = canvas.getContext("2d");
  const {data} = context.getImageData(176, 0, canvas.width - 176, canvas.height - 22);
  return new Set(new Uint32Array(data.buffer)).size;
}"""
"""Counts the colours of the cells."""


@needs_folder
@pytest.mark.proof
def test_a_cell_has_counts_a_key_its_query_and_a_time_its_slow_requests(
    watch: Watch, server: LiveServer
) -> None:
    page = watch.page
    page.goto(at(server.announced["console"], "heat/Orders"))
    page.get_by_role("img", name="The peak is").wait_for()
    canvas = page.locator("heat-map canvas")
    size = canvas.bounding_box()
    assert size is not None

    canvas.hover(position={"x": size["width"] * 0.6, "y": size["height"] * 0.5})
    page.locator(".heat-tip").get_by_text("Entities read").wait_for()
    canvas.click(position={"x": size["width"] * 0.6, "y": size["height"] * 0.5})
    cell = page.get_by_role("region", name="The chosen cell")
    cell.get_by_text("tenant-").first.wait_for()
    assert "PartitionKey" in (cell.get_by_role("link").get_attribute("href") or "")

    canvas.click(position={"x": size["width"] - 8, "y": size["height"] - 8})
    page.get_by_role("heading", name="Slow requests").wait_for()
    canvas.click(position={"x": 100, "y": 120})
    page.wait_for_url("**/t/Orders?filter=*")


@needs_folder
@pytest.mark.proof
def test_zooming_shows_fewer_keys_and_asks_the_server_nothing(
    watch: Watch, server: LiveServer
) -> None:
    page = watch.page
    page.goto(at(server.announced["console"], "heat/Orders"))
    page.get_by_role("img", name="The peak is").wait_for()
    everything = page.get_by_role("button", name="Show everything")
    assert everything.is_disabled()
    shown = "document.querySelector('heat-map').bounds"
    before = page.evaluate(shown)

    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("ArrowUp")
    after = page.evaluate(shown)

    assert after["to"] - after["from"] < before["to"] - before["from"]
    everything.click()
    assert page.evaluate(shown) == before


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_screens_without_an_endpoint_say_how_to_get_one(
    watch: Watch, console: LiveServer, axe: str, theme: str, tmp_path: Path
) -> None:
    page = watch.page
    use_theme(page, theme)
    with live_console(tmp_path, "--connect", console.connection_string) as address:
        for screen in ("overview", "heat"):
            page.goto(at(address, screen))
            page.get_by_text("partita serve --console").first.wait_for()
            page.get_by_text("--metrics-port").wait_for()
            assert violations(page, axe) == []


@pytest.mark.proof
def test_a_server_without_requests_has_no_heat_yet(watch: Watch, console: LiveServer) -> None:
    watch.page.goto(at(console.announced["console"], "heat"))

    watch.page.get_by_text("No table had requests").wait_for()
