"""The guard of the console over real sockets: each line of its rules is a test."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.api import Api
from partita.console.guard import FAILURES_PER_MINUTE_MAX
from support.live import LiveServer, needs_folder

SESSION = "/api/v1/session"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
    " blob: data:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)


@pytest.fixture
def api(console: LiveServer) -> Api:
    return Api.of(console)


@pytest.mark.parametrize("path", ["/", "/static/app.js", SESSION, "/healthz", "/metrics"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:10003", "127.0.0.1.evil.example"])
def test_a_name_that_resolves_to_this_machine_is_refused(api: Api, path: str, host: str) -> None:
    answer = api.send("GET", path, api.own_headers | {"Host": host})

    assert (answer.status, answer.code) == (403, "ConsoleHostRefused")


def test_health_and_metrics_are_not_answered_on_this_port(api: Api) -> None:
    page = api.send("GET", "/").body

    assert api.send("GET", "/metrics").body == page
    assert api.send("GET", "/healthz").body == page


@pytest.mark.parametrize("path", ["/", SESSION])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_that_another_site_caused_is_refused(api: Api, path: str, site: str) -> None:
    answer = api.send("GET", path, api.own_headers | {"Sec-Fetch-Site": site})

    assert (answer.status, answer.code) == (403, "ConsoleOriginRefused")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"]
)
def test_another_origin_is_refused(api: Api, origin: str) -> None:
    headers = api.own_headers | {"Origin": origin, "Content-Type": "application/json"}

    answer = api.send("POST", "/api/v1/a/devstoreaccount1/tables", headers, b'{"name":"Evil"}')

    assert (answer.status, answer.code) == (403, "ConsoleOriginRefused")
    assert "Evil" not in api.get("~/tables").json["tables"]


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_write_with_the_type_of_a_form_is_refused(api: Api, kind: str) -> None:
    headers = api.own_headers | ({"Content-Type": kind} if kind else {})

    answer = api.send("POST", "/api/v1/a/devstoreaccount1/tables", headers, b'{"name":"Evil"}')

    assert (answer.status, answer.code) == (415, "ConsoleContentType")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Cookie": "token={token}; partita.token={token}"},
        {"Authorization": "Basic {token}"},
    ],
)
def test_the_token_counts_only_in_its_header(api: Api, headers: dict[str, str]) -> None:
    sent = {name: value.format(token=api.token) for name, value in headers.items()}

    answer = api.send("GET", f"{SESSION}?token={api.token}", sent)

    assert (answer.status, answer.code) == (401, "ConsoleTokenInvalid")
    assert "set-cookie" not in answer.headers


def test_unknown_paths_of_the_api_need_the_token_too(api: Api) -> None:
    assert api.send("GET", "/api/v1/nothing").status == 401
    assert api.get("/nothing").status == 404
    assert api.send("GET", "/api/v2/session", api.own_headers).status == 404


def test_too_many_wrong_tokens_are_answered_with_429(tmp_path: Path) -> None:
    with served(tmp_path) as api:
        wrong = {"Authorization": "Bearer wrong"}
        statuses = [api.send("GET", SESSION, wrong).status for _ in range(12)]

        assert statuses == [401] * FAILURES_PER_MINUTE_MAX + [429, 429]
        assert api.get("/session").status == 200


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/static/nothing.js", SESSION, "/t/Staff"])
def test_every_answer_has_the_headers(api: Api, path: str) -> None:
    headers = api.send("GET", path, api.own_headers).headers

    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


def test_a_malformed_request_gets_the_headers_too(api: Api) -> None:
    answer = api.send("BREW", "/")

    assert answer.status == 501
    assert answer.headers["content-security-policy"] == POLICY


def test_no_answer_has_a_cors_header(api: Api) -> None:
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}

    answers = [
        api.send("OPTIONS", SESSION, preflight),
        api.send("GET", SESSION, {"Origin": "http://evil.example"}),
        api.get("/session"),
        api.send("GET", "/"),
    ]

    assert answers[0].status in (403, 415)
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path", ["/static/../guard.py", "/static/%2e%2e/guard.py", "/static//etc/passwd", "/static/"]
)
def test_only_the_static_files_are_served(api: Api, path: str) -> None:
    assert api.send("GET", path).status == 404


def test_pages_cannot_be_written(api: Api) -> None:
    headers = {"Content-Type": "application/json"}

    assert api.send("POST", "/", headers, b"{}").status in (400, 404, 501)


def test_no_answer_contains_the_key_of_the_account(api: Api) -> None:
    assert b"Eby8vdM02xNOcqFlqUw" not in api.get("/session").body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"name": 1}', b'{"nome": "X"}', b"\xff"])
def test_a_body_that_pages_would_not_send_is_a_clear_error(api: Api, body: bytes) -> None:
    headers = api.own_headers | {"Content-Type": "application/json"}

    answer = api.send("POST", "/api/v1/a/devstoreaccount1/tables", headers, body)

    assert (answer.status, answer.code) == (400, "ConsoleInput")


@pytest.mark.parametrize(
    "path",
    [
        "~/containers/..%2Fother/blobs",
        "~/containers/%2E%2E/blobs",
        "~/containers/docs%2F..%2Fother/blobs",
        "~/containers/docs/blob?name=a%2F..%2Fb",
        "~/containers/docs/preview?name=..%2Fother%2Fb",
        "~/containers//blobs",
        "~/queues/..%2Fother",
        "~/queues/",
        "~/policies?name=..%2Fother",
    ],
)
def test_a_name_cannot_leave_its_place_in_an_address(api: Api, path: str) -> None:
    answer = api.get(path)

    assert (answer.status, answer.code) == (400, "ConsoleInput")


def test_a_ticket_is_valid_once(api: Api) -> None:
    answer = api.send("GET", "/api/v1/downloads/unknown")

    assert (answer.status, answer.code) == (403, "ConsoleTicketInvalid")


# --- accounts that are not the development one


class served:  # noqa: N801 - used as a function
    """A server with its console, for tests that change the state of its guard."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.server = LiveServer(folder, "--in-memory", "--console", "--console-port", "0", *flags)

    def __enter__(self) -> Api:
        return Api.of(self.server)

    def __exit__(self, *_: object) -> None:
        self.server.stop()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "keys").write_text("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWM=\n")
    (folder / "keys").chmod(0o600)
    flags = ("--account", "shop", "--account-key-file", "keys")
    server = LiveServer(folder, "--in-memory", "--console", "--console-port", "0", *flags)
    yield server
    server.stop()


def test_another_account_is_read_only_until_it_is_unlocked(shop: LiveServer) -> None:
    api = Api(shop.announced["console"], "shop")

    refused = api.post("~/tables", {"name": "Orders"})
    wrong = api.post("~/unlock", {"name": "Shop"})
    api.unlock = api.post("~/unlock", {"name": "shop"}).json["unlock"]
    done = api.post("~/tables", {"name": "Orders"})
    api.post("~/lock", {})
    locked = api.post("~/tables", {"name": "Others"})

    assert (refused.status, refused.code) == (403, "ConsoleReadOnly")
    assert (wrong.status, wrong.code) == (403, "ConsoleUnlockRefused")
    assert done.status == 200
    assert (locked.status, locked.code) == (403, "ConsoleReadOnly")
    assert api.get("~/tables").json == {"tables": ["Orders"]}


def test_a_secret_of_another_tab_is_not_guessed(shop: LiveServer) -> None:
    api = Api(shop.announced["console"], "shop")
    api.unlock = "A" * 43

    assert api.post("~/tables", {"name": "Others"}).code == "ConsoleReadOnly"


def test_read_only_cannot_be_unlocked(tmp_path: Path) -> None:
    with served(tmp_path, "--console-read-only") as api:
        assert api.post("~/unlock", {"name": "devstoreaccount1"}).code == "ConsoleReadOnly"
        assert api.post("~/tables", {"name": "Orders"}).code == "ConsoleReadOnly"
        assert api.get("/session").json["read_only"] is True


@needs_folder
def test_the_token_is_in_a_file_of_the_owner_and_kept(tmp_path: Path) -> None:
    server = LiveServer(tmp_path, "--path", "data", "--console", "--console-port", "0")
    token = Api.of(server).token
    file = tmp_path / "data" / "console.token"

    server.restart()
    try:
        assert Api.of(server).token == token == file.read_text("utf-8").strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(token) == 43
    finally:
        server.stop()


def test_the_access_log_shows_what_the_console_changed(tmp_path: Path) -> None:
    with served(tmp_path, "--access-log", "access.log") as api:
        api.post("~/tables", {"name": "Orders"})

    lines = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    (created,) = [line for line in lines if line["operation"] == "CreateTable"]
    assert created["agent"].startswith("partita-console/")


def test_the_session_names_accounts_without_secrets(shop: LiveServer) -> None:
    session = Api(shop.announced["console"], "shop").get("/session").json

    (account,) = session["accounts"]
    assert account["name"] == "shop"
    assert account["is_development"] is False
    assert set(account) == {"name", "is_development", "endpoints", "has_key"}
    assert "c2VjcmV0" not in json.dumps(session)
