"""Reliable states and shard maps: the API by plain HTTP, the screens in a real browser."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import partita
from console.api import Api
from console.consoles import live_console
from console.seeded_sources import seed_catalog, seed_state
from support.browser import THEMES, Watch, picture, use_theme, violations
from support.live import LiveServer


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console that shows no account, but a state and a catalog."""
    folder = tmp_path_factory.mktemp("sources")
    seed_state(folder / "state")
    url = seed_catalog(folder)
    with live_console(folder, "--state", "state", "--shards", url) as started:
        yield started


@pytest.fixture
def api(address: str) -> Api:
    return Api(address)


def test_a_console_needs_no_account_to_show_a_state(api: Api) -> None:
    session = api.get("/session").json

    assert session["accounts"] == []
    assert (session["has_states"], session["has_shards"]) == (True, True)
    assert session["has_operations"] is False
    assert api.get("~/tables").status == 404


def test_the_collections_of_a_folder_are_counted(api: Api) -> None:
    assert api.get("/state").json == {"where": "state", "is_on_nats": False, "partitions": []}

    found = api.get("/state/status").json

    assert [(each["name"], each["kind"], each["count"]) for each in found["collections"]] == [
        ("orders", "dictionary", 250),
        ("stock", "dictionary", 12),
        ("to-ship", "queue", 28),
    ]
    assert found["status"]["log"]["last"] == found["status"]["sequence"]
    assert found["error"] is None


def test_rows_are_paged_in_the_order_of_their_keys(api: Api) -> None:
    first = api.get("/state/rows", collection="orders", limit="3").json
    second = api.get("/state/rows", collection="orders", limit="3", after=first["next"]).json
    jumped = api.get("/state/rows", collection="orders", start='"order-00248"').json

    keys = [row["key"] for row in first["rows"] + second["rows"]]
    assert keys == [f"order-{n:05}" for n in range(6)]
    # As text: 12.0 is not 12, and numbers of pages have 53 bits.
    assert first["rows"][0]["value"].startswith('{"customer":"customer-00","total":0.0')
    assert [row["key"] for row in jumped["rows"]] == ["order-00248", "order-00249"]
    assert jumped["next"] is None
    stock = api.get("/state/rows", collection="stock", start='["zurich", 11]').json
    assert [(row["key"], row["value"]) for row in stock["rows"]] == [('["zurich",11]', "77")]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"collection": "nothing"}, "CollectionNotFound"),
        ({"collection": "orders", "start": "order-1"}, "ConsoleInput"),
        ({"collection": "orders", "after": "???"}, "InvalidContinuation"),
        ({"collection": "orders", "limit": "0"}, "ConsoleInput"),
        ({"collection": "orders", "partition": "x"}, "InvalidStateAddress"),
    ],
)
def test_questions_about_rows_are_checked(api: Api, query: dict[str, str], code: str) -> None:
    answer = api.get("/state/rows", **query)

    assert 400 <= answer.status < 500
    assert answer.code == code


def test_a_folder_has_no_locks(api: Api) -> None:
    assert api.get("/state/locks").json["locks"] == []


async def test_a_folder_that_a_program_has_open_is_refused_and_read_later(tmp_path: Path) -> None:
    await asyncio.to_thread(seed_state, tmp_path / "state", 1)
    async with partita.open_state(tmp_path / "state"):
        with live_console(tmp_path, "--state", "state") as address:
            api = Api(address)
            locked = await asyncio.to_thread(api.get, "/state/status")
    assert locked.code == "StoreLocked"
    assert locked.json["error"]["hint"]


def test_maps_have_shards_mappings_and_jobs(api: Api) -> None:
    catalog = api.get("/shards").json

    regions, tenants = catalog["maps"]
    assert (tenants["kind"], tenants["key"], tenants["mappings_count"]) == ("range", "int", 5)
    assert [each["mappings"] for each in tenants["shards"]] == [1, 1, 1, 2]
    bars = [(each["range"], each["start"], each["end"]) for each in tenants["mappings"]]
    assert bars[1] == ("300 to 500", 0.25, 500 / 1200)
    assert {each["status"] for each in regions["mappings"]} == {"online", "offline"}
    (move,) = [each for each in catalog["jobs"] if each["kind"] == "move"]
    assert (move["state"], move["rows"], move["rows_total"]) == ("done", 40, 40)
    assert (move["subject"], move["step_number"]) == ("300 to 500", len(catalog["steps"]))


def test_a_catalog_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with live_console(tmp_path, "--shards", "sqlite:///nothing.db") as address:
        answer = Api(address).get("/shards")

    assert answer.status >= 400
    assert not (tmp_path / "nothing.db").exists()


def test_a_console_without_them_says_so(console: LiveServer) -> None:
    api = Api.of(console)

    assert api.get("/state").code == "ConsoleStateMissing"
    assert api.get("/shards").code == "ConsoleShardsMissing"


# The screens


def at(address: str, path: str, account: str = "-") -> str:
    page, _, token = address.partition("#")
    return f"{page}a/{account}/{path}#{token}"


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_a_state_is_shown_with_its_rows(watch: Watch, address: str, axe: str, theme: str) -> None:
    page = watch.page
    use_theme(page, theme)

    page.goto(address)
    page.get_by_role("heading", name="Reliable state").wait_for()
    page.get_by_role("cell", name="order-00000", exact=True).wait_for()
    assert violations(page, axe) == []
    page.get_by_role("button", name="Value of order-00001").click()
    page.get_by_text('"customer": "customer-01"').wait_for()
    picture(page, f"console-state-{theme}")
    page.get_by_role("button", name="Show more").click()
    page.get_by_text("200 rows shown").wait_for()

    page.get_by_label("Go to a key").fill("order-00249")
    page.keyboard.press("Enter")
    page.get_by_text("1 row shown, no more follow").wait_for()
    assert "start=order-00249" in page.url
    page.get_by_role("link", name="Replicas and log").click()
    page.get_by_text("there are no replicas").wait_for()
    assert violations(page, axe) == []
    page.get_by_role("link", name="Locks").click()
    page.get_by_text("No key is locked").wait_for()
    assert violations(page, axe) == []


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_shard_maps_are_bars_with_their_jobs(
    watch: Watch, address: str, axe: str, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)

    page.goto(at(address, "shards/tenants"))
    page.get_by_role("list", name="Mappings by shard").wait_for()
    assert page.locator(".shard-bar").count() == 4
    page.get_by_text("40 of 40").wait_for()
    assert violations(page, axe) == []
    picture(page, f"console-shards-{theme}")
    page.get_by_label("Shard map", exact=True).select_option("regions")

    page.get_by_text("1 mapping offline").wait_for()
    assert page.url.endswith("shards/regions")
    assert violations(page, axe) == []


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_consoles_without_them_say_how_to_show_them(
    watch: Watch, console: LiveServer, axe: str, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)
    for screen, text in (
        ("state", "partita console --state"),
        ("shards", "partita console --shards"),
    ):
        page.goto(at(console.announced["console"], screen, "devstoreaccount1"))
        page.get_by_text(text).first.wait_for()
        assert violations(page, axe) == []
