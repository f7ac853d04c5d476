"""The screens of tables in a real browser."""

import re
import uuid

import pytest
from azure.data.tables import TableClient, TableServiceClient, UpdateMode
from playwright.sync_api import Locator, Page, expect

from console.models import Resident
from console.staff import fill_staff
from partita.patterns.sync import connect
from support.browser import THEMES, Watch, picture, use_theme, violations
from support.live import LiveServer

OTHERS = ("AuditLog", "Invoices", "Orders", "Sessions")
proof = pytest.mark.proof


@pytest.fixture(scope="module")
def staff(console: LiveServer) -> TableClient:
    return fill_staff(console.connection_string, others=OTHERS)


@pytest.fixture
def page(watch: Watch, console: LiveServer, staff: TableClient) -> Page:
    """A page that has the token."""
    watch.page.goto(console.announced["console"])
    watch.page.get_by_role("link", name="Staff").wait_for()
    return watch.page


def show(page: Page, console: LiveServer, path: str) -> None:
    origin = console.announced["console"].partition("/#")[0]
    page.goto(f"{origin}/a/devstoreaccount1/{path}")


def cell(page: Page, text: str) -> Locator:
    return page.get_by_role("gridcell", name=text, exact=True)


def is_whole(shown: Locator) -> bool:
    """Return whether the text of an element is not cut off by its box."""
    sizes = "each => each.scrollWidth <= each.clientWidth && each.scrollHeight <= each.clientHeight"
    return bool(shown.evaluate(sizes))


def table_of(console: LiveServer, name: str) -> TableClient:
    """A table of its own with three entities."""
    service = TableServiceClient.from_connection_string(console.connection_string)
    table = service.create_table(name)
    for number in range(3):
        table.create_entity(
            {"PartitionKey": "A", "RowKey": str(number), "Name": f"n{number}", "Price": 3750.0}
        )
    return table


def test_an_edit_conflict_is_resolved_by_property(
    page: Page, watch: Watch, console: LiveServer, staff: TableClient
) -> None:
    watch.expect(412)
    table = table_of(console, "Parts")
    show(page, console, f"e/{table.table_name}?pk=A&rk=1")
    page.get_by_label("Value of Name").fill("mine")
    table.update_entity(
        {"PartitionKey": "A", "RowKey": "1", "Name": "theirs", "Price": 4000.5},
        mode=UpdateMode.MERGE,
    )

    page.get_by_role("button", name="Save", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("1 to decide")).to_be_visible()
    dialog.get_by_role("radio", name="mine of Name").check()
    picture(page, "console-conflict")
    dialog.get_by_role("button", name="Save with the new etag").click()

    expect(page.get_by_text("The entity was saved.")).to_be_visible()
    stored = table.get_entity("A", "1")
    assert (stored["Name"], stored["Price"]) == ("mine", 4000.5)
    assert isinstance(stored["Price"], float)


@proof
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_screens_of_tables_are_accessible(
    page: Page, console: LiveServer, axe: str, theme: str
) -> None:
    use_theme(page, theme)

    assert violations(page, axe) == []
    picture(page, f"console-tables-{theme}")

    show(page, console, "t/Staff")
    cell(page, "00003").first.wait_for()
    assert violations(page, axe) == []
    assert is_whole(cell(page, "00003").first)
    picture(page, f"console-table-{theme}")

    show(page, console, "e/Staff?pk=Finance&rk=00003")
    page.get_by_label("Value of Salary").wait_for()
    assert violations(page, axe) == []
    picture(page, f"console-entity-{theme}")

    show(page, console, "t/Staff?filter=Age gt 30")
    page.get_by_text("This filter may read the whole table").wait_for()
    assert violations(page, axe) == []

    show(page, console, "t/Orders")
    page.get_by_text("The table is empty").wait_for()
    assert violations(page, axe) == []

    show(page, console, "jobs")
    page.get_by_role("heading", name="Jobs", exact=True).wait_for()
    assert violations(page, axe) == []


@proof
def test_a_table_is_created_and_dropped_after_typing_its_name(page: Page) -> None:
    name = f"T{uuid.uuid4().hex}"

    page.get_by_role("button", name="Create a table").click()
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_text("The table is empty").wait_for()
    page.get_by_role("link", name="Tables").first.click()
    page.get_by_role("button", name=f"Drop {name}").click()
    drop = page.get_by_role("button", name="Drop", exact=True)
    expect(drop).to_be_disabled()
    page.get_by_role("textbox").fill(name)
    drop.click()

    expect(page.get_by_text(f"Table {name} was dropped.")).to_be_visible()
    expect(page.get_by_role("link", name=name)).to_have_count(0)


@proof
def test_the_plan_is_shown_while_typing_and_a_scan_asks(page: Page, console: LiveServer) -> None:
    show(page, console, "t/Staff")
    cell(page, "00003").first.wait_for()
    field = page.get_by_role("combobox", name="Filter")

    field.fill("PartitionKey eq 'Sales' and Age gt 50")
    expect(page.locator(".plan")).to_contain_text("Checks for each entity: Age gt 50")
    picture(page, "console-plan")
    field.press("Enter")
    expect(page.locator(".status")).to_contain_text(re.compile(r"\d+ entities"))
    assert "filter=" in page.url

    field.fill("Age gt 55")
    field.press("Escape")
    field.press("Enter")
    page.get_by_text("This filter may read the whole table").wait_for()
    picture(page, "console-scan")
    page.get_by_role("button", name="Read it anyway").click()
    expect(page.locator(".status")).to_contain_text(re.compile(r"[1-9]\d* entities"))
    assert page.locator(".grid-row .type-i").first.inner_text() > "55"


@proof
def test_a_filter_is_completed(page: Page, console: LiveServer) -> None:
    show(page, console, "t/Staff")
    cell(page, "00003").first.wait_for()
    field = page.get_by_role("combobox", name="Filter")

    field.press_sequentially("Sal")
    page.get_by_role("option", name="Salary Double").wait_for()
    field.press("ArrowDown")
    field.press("Enter")
    expect(field).to_have_value("Salary ")
    page.get_by_role("option", name=re.compile("^eq")).wait_for()
    field.press_sequentially("ge ")
    page.get_by_role("option", name=re.compile("4200.0")).wait_for()
    picture(page, "console-completion")


@proof
@pytest.mark.parametrize("theme", THEMES)
def test_conditions_are_edited_as_fields_beside_the_text_by_keys(
    page: Page, console: LiveServer, axe: str, theme: str
) -> None:
    use_theme(page, theme)
    show(page, console, "t/Staff")
    cell(page, "00003").first.wait_for()
    text = page.get_by_role("combobox", name="Filter")

    page.keyboard.press("b")
    expect(page.get_by_label("Property of condition 1")).to_be_focused()
    page.keyboard.type("PartitionKey")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("Sales")
    expect(text).to_have_value("PartitionKey eq 'Sales'")
    page.get_by_role("button", name="Add a condition").press("Enter")
    expect(page.get_by_label("Property of condition 2")).to_be_focused()
    page.keyboard.type("Salary")
    page.get_by_label("Operator of condition 2").select_option("gt")
    page.get_by_label("Value of condition 2").fill("5000")
    expect(text).to_have_value("PartitionKey eq 'Sales' and Salary gt 5000.0")
    expect(page.locator("plan-line")).to_contain_text("Checks for each entity: Salary gt 5000.0")
    assert violations(page, axe) == []
    picture(page, f"console-conditions-{theme}")
    page.get_by_label("Value of condition 2").press("Enter")
    expect(page.locator(".status")).to_contain_text(re.compile(r"[1-9]\d* entities"))

    text.fill("Age ge 30 and Active eq true")
    expect(page.get_by_label("Value of condition 1")).to_have_value("30")
    expect(page.get_by_label("Type of condition 2")).to_have_value("b")
    text.fill("Age ge 30 or Age lt 25")
    expect(page.get_by_text("This filter has more than conditions joined by")).to_be_visible()
    assert violations(page, axe) == []


@proof
def test_a_query_has_its_cost_before_and_after_and_a_price(page: Page, console: LiveServer) -> None:
    show(page, console, "t/Staff?filter=PartitionKey eq 'Sales' and RowKey eq '00007'")
    plan, status = page.locator("plan-line"), page.locator(".status")
    expect(plan).to_contain_text("Cost: 1 request")

    page.get_by_role("button", name="Set prices").click()
    page.get_by_label("10,000 requests of tables").fill("0.00036")
    page.get_by_label("Currency").fill("EUR")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(plan).to_contain_text("Cost: 1 request, 0.036 EUR per million runs")
    expect(status).to_contain_text("1 page, 1 examined, 1 returned")
    expect(status).to_contain_text("0.036 EUR per million runs")

    show(page, console, "t/Staff?filter=Name eq 'Ken Kwok' and Age gt 30")
    page.get_by_text("3 ways to read less").click()
    advice = page.locator(".advice .panel")
    expect(advice).to_contain_text("Keep index entities by Name, Age")
    expect(advice).to_contain_text("1 request for up to 1,000 entities")
    picture(page, "console-advice")


@proof
def test_the_grid_is_used_by_keys(page: Page, console: LiveServer) -> None:
    show(page, console, "t/Staff")
    cell(page, "00003").first.wait_for()
    grid = page.get_by_role("grid")

    grid.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        grid.press(key)
    # A key is shown in the next frame: what names the cell before it is not yet this key's.
    active = page.locator(".grid-cell.active")
    expect(active).to_have_text("00002")
    expect(grid).to_have_attribute("aria-activedescendant", active.get_attribute("id") or "")
    grid.press("Enter")

    page.get_by_label("Value of Name").wait_for()
    assert "pk=Finance&rk=00002" in page.url
    page.go_back()
    expect(page.locator("entity-editor")).to_have_count(0)


@proof
def test_g_goes_to_a_key_and_the_address_has_it(page: Page, console: LiveServer) -> None:
    show(page, console, "t/Staff")
    cell(page, "00003").first.wait_for()

    page.keyboard.press("g")
    page.get_by_label("PartitionKey").fill("Sales")
    page.get_by_label("RowKey (may be empty)").fill("00042")
    page.get_by_role("button", name="Go", exact=True).click()

    expect(page.locator(".grid-row[aria-rowindex='2'] .key").nth(1)).to_have_text("00042")
    assert "from_pk=Sales&from_rk=00042" in page.url
    page.reload()
    expect(cell(page, "00042").first).to_be_visible()


@proof
def test_changes_are_staged_reviewed_and_applied_by_partition(
    page: Page, watch: Watch, console: LiveServer, staff: TableClient
) -> None:
    table = table_of(console, "Parcels")
    show(page, console, f"t/{table.table_name}")
    cell(page, "n0").wait_for()
    grid = page.get_by_role("grid")

    grid.focus()
    grid.press("Space")
    grid.press("ArrowDown")
    grid.press("Space")
    page.get_by_role("button", name="Stage deletion").click()
    expect(page.get_by_text("2 staged changes")).to_be_visible()
    table.delete_entity("A", "1")
    page.get_by_role("button", name="Review and apply").click()
    page.get_by_role("button", name="Apply", exact=True).click()
    expect(page.get_by_text("this one was refused")).to_be_visible()
    picture(page, "console-groups")
    page.get_by_role("button", name="Close", exact=True).last.click()

    assert len(list(table.list_entities())) == 2
    expect(page.get_by_text("2 staged changes")).to_be_visible()


@proof
def test_an_entity_is_inserted_cloned_and_deleted(
    page: Page, console: LiveServer, staff: TableClient
) -> None:
    table = table_of(console, "Rooms")
    show(page, console, f"t/{table.table_name}")
    cell(page, "n0").wait_for()

    page.get_by_role("button", name="New entity").click()
    page.get_by_label("PartitionKey").fill("B")
    page.get_by_label("RowKey").fill("1")
    page.get_by_role("button", name="Add a property").click()
    page.get_by_label("Name of the property").fill("Total")
    page.get_by_label("Type of Total").select_option("Int64")
    page.get_by_label("Value of Total").fill("x")
    expect(page.get_by_role("button", name="Insert")).to_be_disabled()
    page.get_by_label("Value of Total").fill("9007199254740993")
    page.get_by_role("button", name="Insert").click()
    page.get_by_role("button", name="Clone").click()
    page.get_by_label("RowKey").fill("2")
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("entity-editor h2")).to_contain_text("2")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("The entity was deleted.")).to_be_visible()

    assert table.get_entity("B", "1")["Total"] == (9007199254740993, "Edm.Int64")
    assert [e["RowKey"] for e in table.query_entities("PartitionKey eq 'B'")] == ["1"]


@proof
def test_entities_are_counted_deleted_and_exported(
    page: Page, console: LiveServer, staff: TableClient
) -> None:
    table = table_of(console, "Orders2025")
    show(page, console, f"t/{table.table_name}")
    cell(page, "n0").wait_for()

    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text("count: 3")).to_be_visible()

    page.get_by_role("button", name="Export").first.click()
    with page.expect_download() as download:
        page.get_by_role("dialog").get_by_role("button", name="Export").click()
    assert download.value.path().read_text("utf-8").count("\n") == 3
    picture(page, "console-export")
    page.get_by_role("button", name="Close", exact=True).last.click()

    page.get_by_role("button", name="Delete where").click()
    page.get_by_role("dialog").get_by_role("textbox").fill(table.table_name)
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("The table is empty")).to_be_visible()
    show(page, console, "jobs")
    expect(page.get_by_text("Delete entities of")).to_be_visible()
    picture(page, "console-jobs")


@proof
def test_a_csv_is_imported_after_its_keys_are_chosen_and_its_types_are_shown(
    page: Page, console: LiveServer, staff: TableClient, axe: str
) -> None:
    table = table_of(console, "Readers")
    show(page, console, f"t/{table.table_name}")
    page.get_by_role("button", name="Import").click()
    text = "country,number,Name,Age\nC,1,Ken,42\nC,2,Ana,31\n"

    page.get_by_label("File:").set_input_files(
        {"name": "staff.csv", "mimeType": "text/csv", "buffer": text.encode()}
    )
    expect(page.get_by_label("Type of Age")).to_have_value(re.compile("Edm.Int"))
    page.get_by_label("PartitionKey is the column").select_option("country")
    page.get_by_label("RowKey is the column").select_option("number")
    expect(page.get_by_label("Type of number")).to_have_count(0)
    assert violations(page, axe) == []
    picture(page, "console-import")
    assert [entity["PartitionKey"] for entity in table.list_entities()] == ["A", "A", "A"]
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    expect(page.get_by_text("2 entities written.")).to_be_visible()
    page.get_by_role("button", name="Close", exact=True).last.click()

    expect(cell(page, "Ana")).to_be_visible()


@proof
def test_a_read_only_account_offers_no_changes_until_it_is_unlocked(
    watch: Watch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "keys").write_text("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWM=\n")
    (folder / "keys").chmod(0o600)
    flags = ("--account", "shop", "--account-key-file", "keys")
    server = LiveServer(folder, "--in-memory", "--console", "--console-port", "0", *flags)
    try:
        page = watch.page
        page.goto(server.announced["console"])
        create = page.get_by_role("button", name="Create a table").first
        expect(create).to_be_disabled()
        picture(page, "console-read-only")

        page.get_by_role("button", name="Unlock").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("shop")
        page.get_by_role("dialog").get_by_role("button", name="Unlock").click()
        expect(create).to_be_enabled()
        page.get_by_role("button", name="Lock", exact=True).click()
        expect(create).to_be_disabled()
    finally:
        server.stop()


@proof
def test_rows_of_patterns_are_named_and_lead_to_their_entity(
    page: Page, console: LiveServer, axe: str
) -> None:
    with connect(console.connection_string) as db:
        residents = db.table(Resident)
        db.create_tables()
        for number in range(6):
            residents.save(Resident(town="Bern", number=number, last=f"Last{number % 3}"))

    show(page, console, "t/People")
    kinds = page.locator(".patterns")
    expect(kinds).to_contain_text("Resident 6")
    expect(kinds).to_contain_text("outbox")
    assert violations(page, axe) == []
    picture(page, "console-patterns")
    page.locator(".grid-row.kept", has_text="last_Last1").first.click()
    page.get_by_role("grid").press("Enter")
    expect(page.locator(".note-panel")).to_contain_text("index rows")
    page.get_by_role("button", name="Open its entity").click()
    expect(page.get_by_label("Value of last")).to_have_value("Last1")
