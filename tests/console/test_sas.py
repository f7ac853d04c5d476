"""Signatures in the console: what the page gets is what the services accept."""

from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables import TableAccessPolicy, TableClient, TableServiceClient

from support.browser import THEMES, Watch, picture, use_theme, violations
from support.console_api import ask
from support.live import LiveServer


@pytest.fixture
def staff(console: LiveServer) -> str:
    with TableServiceClient.from_connection_string(console.connection_string) as client:
        table = client.create_table_if_not_exists("Staff")
        for partition in ("HR", "Sales"):
            table.upsert_entity({"PartitionKey": partition, "RowKey": "1"})
    return "Staff"


def test_a_signature_permits_exactly_its_range(console: LiveServer, staff: str) -> None:
    terms = {"table": staff, "permissions": "r", "from_partition": "HR", "to_partition": "HR"}
    status, made = ask(console, "POST", "sas", terms)

    assert status == 200
    assert made["grants"].startswith(
        "Permits to read entities of the table Staff in partition 'HR',"
    )
    endpoint = made["url"].partition("?")[0].removesuffix(f"/{staff}")
    with TableClient(f"{endpoint}?{made['token']}", staff) as client:
        assert client.get_entity("HR", "1")["RowKey"] == "1"
        for refused in (
            lambda: client.get_entity("Sales", "1"),
            lambda: client.upsert_entity({"PartitionKey": "HR", "RowKey": "2"}),
        ):
            with pytest.raises(HttpResponseError):
                refused()


def test_a_signature_of_a_policy_leaves_permissions_and_times_to_it(
    console: LiveServer, staff: str
) -> None:
    ends = datetime.now(UTC) + timedelta(hours=1)
    policy = TableAccessPolicy(permission="r", expiry=ends)
    with TableServiceClient.from_connection_string(console.connection_string) as service:
        service.get_table_client(staff).set_table_access_policy({"readers": policy})

    _, made = ask(console, "POST", "sas", {"table": staff, "policy": "readers"})

    assert made["grants"].startswith("Permits what the policy readers permits")
    assert "sp=" not in made["token"]
    assert "se=" not in made["token"]
    endpoint = made["url"].partition("?")[0].removesuffix(f"/{staff}")
    with TableClient(f"{endpoint}?{made['token']}", staff) as client:
        assert client.get_entity("HR", "1")["RowKey"] == "1"
        with pytest.raises(HttpResponseError):
            client.upsert_entity({"PartitionKey": "HR", "RowKey": "2"})


@pytest.mark.parametrize(
    "terms",
    [
        {"table": "Staff", "permissions": "x"},
        {"table": "Staff", "permissions": ""},
        {"table": "Staff", "queue": "work"},
        {"table": "Staff", "from_row": "1"},
        {"queue": "work", "from_partition": "A"},
        {"table": "Staff", "expires": "soon"},
        {"table": "Staff", "expires": "2000-01-01T00:00:00Z"},
        {"services": "x"},
        {"resource_types": ""},
        {"unknown": 1},
    ],
)
def test_terms_that_contradict_each_other_are_refused(
    console: LiveServer, terms: dict[str, object]
) -> None:
    status, found = ask(console, "POST", "sas", terms)

    assert (status, bool(found["error"]["message"])) == (400, True)


def test_the_key_of_the_account_is_in_no_answer(console: LiveServer, staff: str) -> None:
    key = console.connection_string.partition("AccountKey=")[2].partition(";")[0]
    assert len(key) > 40

    for method, path, body in (
        ("POST", "sas", {"table": staff}),
        ("GET", "/session", None),
        ("GET", "tables", None),
    ):
        status, found = ask(console, method, path, body)
        assert status == 200
        assert key not in str(found)


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_the_screen_of_signatures(
    watch: Watch, console: LiveServer, staff: str, axe: str, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)
    page.goto(console.announced["console"])
    page.get_by_role("link", name="Signatures").click()
    page.get_by_label("Table", exact=True).fill(staff)
    page.get_by_label("From partition key").fill("HR")
    page.get_by_label("To partition key").fill("HR")
    page.get_by_role("button", name="Make the signature").click()
    page.get_by_text("Permits to read entities of the table Staff in partition").wait_for()

    assert violations(page, axe) == []
    picture(page, f"sas-{theme}")

    page.get_by_role("button", name="Account").click()
    page.get_by_role("button", name="Make the signature").click()
    page.get_by_text("Permits to read in the tables of the account").wait_for()
    assert violations(page, axe) == []
