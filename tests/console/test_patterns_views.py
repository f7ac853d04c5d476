"""Rows of partita.patterns: states of indexes, the outbox and drift, by HTTP and in a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.data.tables import TableServiceClient
from playwright.sync_api import expect

from console.api import Api
from console.consoles import live_console
from console.models import Resident
from partita.patterns.sync import connect
from support.browser import THEMES, Watch, picture, use_theme, violations
from support.live import LiveServer

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def people(console: LiveServer) -> TableServiceClient:
    """Residents whose work for another table waits, and one whose row in an index is missing."""
    with connect(console.connection_string) as db:
        residents = db.table(Resident)
        db.create_tables()
        for number in range(6):
            residents.save(Resident(town="Bern", number=number, last=f"Last{number % 3}"))
        db.drain()
        residents.save(Resident(town="Bern", number=7, last="Last1"))
    service = TableServiceClient.from_connection_string(console.connection_string)
    service.get_table_client("People").delete_entity("Bern", "last_Last0~0000")
    return service


@pytest.fixture(scope="module")
def address(
    console: LiveServer, people: TableServiceClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A console that knows the class of the residents."""
    where = ("--connect", console.connection_string)
    with live_console(TESTS, *where, "--types", "console.models:Resident") as started:
        yield started


@pytest.fixture
def api(address: str) -> Api:
    return Api(address)


def test_states_of_indexes_are_read_without_classes(
    console: LiveServer, people: TableServiceClient
) -> None:
    found = Api.of(console).get("~/tables/People/patterns").json

    assert [(each["type"], each["state"]) for each in found["indexes"]] == [
        ("Resident", "readable"),
        ("Resident", "readable"),
    ]
    assert found["types"] == []


def test_outbox_entries_are_found_by_a_job_without_classes(
    console: LiveServer, people: TableServiceClient
) -> None:
    api = Api.of(console)

    job = api.finish(api.post("~/tables/People/outbox", {}))

    (entry,) = job["result"]["entries"]
    assert (entry["partition_key"], job["result"]["is_whole"]) == ("Bern", True)
    assert [name for name in entry["names"] if name.startswith("index:Resident@")]
    assert job["counts"]["entities"] > 7


def test_a_sample_of_a_type_is_compared_with_its_indexes(api: Api) -> None:
    assert api.get("/session").json["types"] == {"Resident": "People"}

    job = api.finish(api.post("~/tables/People/compare", {"type": "Resident", "sample": 500}))

    found = {(what, kind): count for what, kind, count in job["result"]["counts"]}
    assert found[next(key for key in found if key[1] == "missing" and "row" not in key)] >= 1
    assert sum(found.values()) == 2, "the deleted row, and the work that waits"
    assert job["result"]["is_whole"] is True
    assert ["People", "Bern", "0000"] in [each[2:] for each in job["result"]["drifts"]]


@pytest.mark.parametrize(
    "given",
    [{"type": "Nobody"}, {"type": "Resident", "sample": 0}, {"type": "Resident", "sample": 10**6}],
)
def test_a_comparison_is_bounded_and_of_a_known_type(api: Api, given: dict[str, object]) -> None:
    answer = api.post("~/tables/People/compare", given)

    assert (answer.status, answer.code) == (400, "ConsoleInput")


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_indexes_outbox_and_drift_have_a_screen(
    watch: Watch, address: str, axe: str, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)
    page.goto(address)
    page.get_by_role("link", name="People", exact=True).click()
    page.get_by_role("link", name="Indexes, outbox and drift").click()
    expect(page.get_by_role("cell", name="readable").first).to_be_visible()

    page.get_by_role("button", name="Look for entries").click()
    expect(page.get_by_text("the oldest has waited for")).to_be_visible()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("2 differences.")).to_be_visible()
    assert violations(page, axe) == []
    picture(page, f"console-drift-{theme}")
    page.get_by_role("link", name="People: Bern / 0000").click()

    expect(page.get_by_label("Value of Last")).to_have_value("Last0")


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_a_table_without_typed_rows_says_what_they_are(
    watch: Watch, console: LiveServer, people: TableServiceClient, axe: str, theme: str
) -> None:
    people.create_table_if_not_exists("Plain")
    page = watch.page
    use_theme(page, theme)
    origin, _, token = console.announced["console"].partition("#")

    page.goto(f"{origin}a/devstoreaccount1/p/Plain#{token}")
    expect(page.get_by_text("keeps no states of indexes in this table")).to_be_visible()
    assert violations(page, axe) == []
    page.goto(f"{origin}a/devstoreaccount1/p/People")

    expect(page.get_by_text("partita console --connect WHERE --types")).to_be_visible()
    assert violations(page, axe) == []
