"""`partita top` against a live server: once, as JSON, and the live view driven by its keys."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables import TableClient, TableServiceClient
from textual.widgets import DataTable, Static

from partita.cli.main import main
from partita.cli.top.app import TopApp
from partita.cli.top.endpoint import Endpoint
from support.live import FRONT_ENDS, PATIENCE_SECONDS, LiveServer

pytestmark = pytest.mark.skipif(FRONT_ENDS > 1, reason="it shows the requests of one process")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("top")
    flags = ["--metrics-port", "0", "--metrics-token-file", str(folder / "token"), "--slow-ms", "1"]
    live = LiveServer(folder, *flags)
    yield live
    live.stop()


@pytest.fixture
def table(server: LiveServer, request: pytest.FixtureRequest) -> TableClient:
    service = TableServiceClient.from_connection_string(server.announced["connection_string"])
    return service.create_table_if_not_exists("Staff")


def endpoint_of(server: LiveServer) -> Endpoint:
    token = (server.folder / "token").read_text().strip()
    return Endpoint(server.announced["metrics_endpoint"], token)


def write(table: TableClient, count: int) -> None:
    for number in range(count):
        table.upsert_entity({"PartitionKey": "a", "RowKey": str(number)})


def test_rates_are_those_of_the_requests_between_two_answers(
    server: LiveServer, table: TableClient
) -> None:
    endpoint = endpoint_of(server)
    write(table, 5)
    endpoint.start()
    write(table, 8)

    reading = endpoint.read()

    tables = next(each for each in reading.services if each.name == "tables")
    assert [each.name for each in tables.operations] == ["InsertOrMergeEntity"]
    assert tables.requests * reading.seconds == pytest.approx(8)
    assert reading.store.commits * reading.seconds == pytest.approx(8, abs=4)
    assert 0 < tables.p50_ms <= tables.p99_ms
    assert tables.connections >= 1


def test_once_prints_json(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--metrics", server.announced["metrics_endpoint"]]
    token = ["--token-file", str(server.folder / "token")]

    assert main(["top", *where, *token, "--once", "--json", "--interval", "0.2"]) == 0

    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [service["name"] for service in shown["services"]] == ["blobs", "queues", "tables"]
    assert shown["store"]["store_bytes"] > 0


def test_once_prints_a_table(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--metrics", server.announced["metrics_endpoint"]]
    token = ["--token", (server.folder / "token").read_text().strip()]

    assert main(["top", *where, *token, "--once", "--interval", "0.2"]) == 0

    out = capsys.readouterr().out
    assert "req/s" in out
    assert "commits/s" in out
    assert "tables" in out


def test_without_the_token_the_hint_names_the_flag(
    server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--metrics", server.announced["metrics_endpoint"], "--once"]) == 2

    assert "--token-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:1", "cannot be read: Connection refused."),
        ("nonsense", "is not the address"),
    ],
)
def test_a_wrong_address_is_told_in_one_line(
    url: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--metrics", url, "--once"]) == 2

    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_once_needs_no_extra(server: LiveServer) -> None:
    code = (
        "import sys; sys.modules['textual'] = None\n"
        "from partita.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    where = ["--metrics", server.announced["metrics_endpoint"], "--interval", "0.2"]
    words = ["top", *where, "--token-file", str(server.folder / "token")]

    once = subprocess.run(
        [sys.executable, "-c", code, *words, "--once", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    live = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (once.returncode, once.stderr) == (0, "")
    assert live.returncode == 2
    assert "partita[ops]" in live.stderr


async def test_the_live_view_shows_sorts_filters_and_pauses(
    server: LiveServer, table: TableClient
) -> None:
    endpoint = endpoint_of(server)
    endpoint.start()
    write(table, 3)
    table.get_entity("a", "1")
    app = TopApp(endpoint, 3600)
    async with app.run_test(size=(160, 60)) as pilot:
        await app.refresh_reading()
        operations: DataTable[str] = app.query_one("#operations", DataTable)
        names = [operations.get_row_at(at)[1] for at in range(operations.row_count)]
        assert names == ["all", "all", "all", "InsertOrMergeEntity", "QueryEntity"]
        assert "req/s" in str(app.query_one("#head", Static).render())

        await pilot.press("slash", *"query")
        await pilot.pause()
        assert app.wanted == "query"
        assert operations.row_count == 1
        assert operations.get_row_at(0)[1] == "QueryEntity"

        await pilot.press("escape")
        await pilot.pause()
        assert operations.row_count == 5

        await pilot.press("p")
        await pilot.pause()
        write(table, 1)
        before = app.reading
        await app.refresh_reading()
        assert app.reading is before
        assert "PAUSED" in str(app.query_one("#head", Static).render())

        await pilot.press("p", "s")
        await app.refresh_reading()
        p99 = [float(operations.get_row_at(at)[5]) for at in range(operations.row_count)]
        assert p99 == sorted(p99, reverse=True)


async def test_an_unreachable_server_is_told_and_tried_again(tmp_path: Path) -> None:
    endpoint = Endpoint("http://127.0.0.1:1", "x" * 43)
    endpoint._before = {}
    app = TopApp(endpoint, 3600)
    async with app.run_test():
        await app.refresh_reading()

        assert "cannot be read" in str(app.query_one("#told", Static).render())
