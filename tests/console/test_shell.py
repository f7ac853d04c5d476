"""The shell of the console in a real browser."""

import pytest

from support.browser import Watch, use_theme, violations
from support.live import LiveServer


def test_the_token_moves_from_the_address_into_the_tab(watch: Watch, console: LiveServer) -> None:
    address = console.announced["console"]
    page = watch.page

    page.goto(address)

    page.get_by_role("heading", name="Tables", exact=True).wait_for()
    assert "token" not in page.url
    assert page.context.cookies() == []
    assert page.evaluate("Object.keys(localStorage)") == []


def test_a_tab_without_the_token_says_where_it_is(watch: Watch, console: LiveServer) -> None:
    address, _, token = console.announced["console"].partition("#token=")
    page = watch.page

    page.goto(address)
    page.get_by_role("button", name="Enter the token").click()
    page.get_by_label("Token or address").fill(f"{address}#token={token}")
    page.get_by_role("button", name="Open", exact=True).click()

    page.get_by_role("navigation").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_shell_is_accessible(watch: Watch, console: LiveServer, axe: str, theme: str) -> None:
    page = watch.page
    use_theme(page, theme)

    page.goto(console.announced["console"])
    page.get_by_role("heading", name="Tables", exact=True).wait_for()

    assert violations(page, axe) == []


def test_the_question_mark_shows_the_keys(watch: Watch, console: LiveServer) -> None:
    page = watch.page
    page.goto(console.announced["console"])
    page.get_by_role("heading", name="Tables", exact=True).wait_for()

    page.keyboard.press("?")

    page.get_by_role("dialog", name="Keys").get_by_text("Show the keys").wait_for()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


def test_an_address_that_is_not_a_screen_says_so(watch: Watch, console: LiveServer) -> None:
    address, _, token = console.announced["console"].partition("#")
    watch.page.goto(f"{address}a/devstoreaccount1/nothing#{token}")

    watch.page.get_by_text("The screen does not exist").wait_for()


def test_a_screen_that_cannot_be_loaded_leaves_the_others(
    watch: Watch, console: LiveServer
) -> None:
    address, _, token = console.announced["console"].partition("#")
    page = watch.page
    watch.expect(503)
    page.route("**/screens/jobs.js", lambda route: route.fulfill(status=503))

    page.goto(f"{address}a/devstoreaccount1/jobs#{token}")
    page.get_by_role("button", name="Try again").wait_for()
    page.get_by_role("link", name="Tables", exact=True).click()

    page.get_by_role("heading", name="Tables", exact=True).wait_for()
    assert page.get_by_role("button", name="Try again").count() == 0


def test_a_long_list_of_tables_shows_the_first_and_finds_the_others(
    watch: Watch, console: LiveServer
) -> None:
    page = watch.page
    names = [f"Tenant{number:06}" for number in range(2_000)]
    page.route("**/api/v1/a/*/tables", lambda route: route.fulfill(json={"tables": names}))

    page.goto(console.announced["console"])
    page.get_by_text("The first 500 of 2,000 tables are shown.").wait_for()
    rows = page.get_by_role("row").count()
    page.get_by_label("Search in the names").fill("tenant001999")

    page.get_by_role("link", name="Tenant001999").wait_for()
    assert rows == 501
    assert page.get_by_role("row").count() == 2
