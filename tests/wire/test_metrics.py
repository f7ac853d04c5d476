"""The operations endpoint of a live server: exact counts after known requests, and its guard."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

from support.live import FRONT_ENDS, LiveServer

pytestmark = pytest.mark.skipif(FRONT_ENDS > 1, reason="it counts the requests of one process")

ACCOUNT = "devstoreaccount1"
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    yield from serving(tmp_path)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    yield from serving(tmp_path_factory.mktemp("guarded"))


def serving(folder: Path) -> Iterator[LiveServer]:
    flags = ["--metrics-port", "0", "--metrics-token-file", str(folder / "token")]
    live = LiveServer(folder, *flags)
    yield live
    live.stop()


def token_of(server: LiveServer) -> str:
    return (server.folder / "token").read_text().strip()


def ask(server: LiveServer, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(server.announced["metrics_endpoint"] + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def now(server: LiveServer) -> dict[str, Any]:
    status, body = ask(server, "/api/v1/now", Authorization=f"Bearer {token_of(server)}")
    assert status == 200
    found: dict[str, Any] = json.loads(body)
    return found


def samples(server: LiveServer, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a metric by the values of their labels."""
    _, text = ask(server, "/metrics")
    found = {}
    for labels, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
        found[tuple(re.findall(r'="((?:[^"\\]|\\.)*)"', labels))] = float(value)
    return found


def test_requests_are_counted_by_operation_and_outcome(server: LiveServer) -> None:
    service = TableServiceClient.from_connection_string(server.announced["connection_string"])
    table = service.create_table("Staff")
    for number in range(5):
        table.create_entity({"PartitionKey": "a", "RowKey": str(number)})
    for number in range(3):
        table.get_entity("a", str(number))
    with pytest.raises(ResourceNotFoundError):
        table.get_entity("a", "missing")
    with pytest.raises(HttpResponseError):
        list(table.query_entities("no such ("))

    counted = samples(server, "partita_requests_total")

    assert counted == {
        ("tables", ACCOUNT, "CreateTable", "Success"): 1,
        ("tables", ACCOUNT, "InsertEntity", "Success"): 5,
        ("tables", ACCOUNT, "QueryEntity", "Success"): 3,
        ("tables", ACCOUNT, "QueryEntity", "ClientOtherError"): 1,
        ("tables", ACCOUNT, "Unknown", "ClientOtherError"): 1,
    }
    assert samples(server, "partita_responses_total") == {
        ("blobs", "2xx"): 0,
        ("queues", "2xx"): 0,
        ("tables", "2xx"): 9,
        ("tables", "400"): 1,
        ("tables", "404"): 1,
    }


def test_a_batch_is_one_request_and_counts_its_error(server: LiveServer) -> None:
    service = TableServiceClient.from_connection_string(server.announced["connection_string"])
    table = service.create_table("Staff")
    table.submit_transaction(
        [("create", {"PartitionKey": "a", "RowKey": str(n)}) for n in range(9)]
    )
    with pytest.raises(HttpResponseError):
        table.submit_transaction([("create", {"PartitionKey": "a", "RowKey": "1"})])

    counted = samples(server, "partita_requests_total")

    assert counted["tables", ACCOUNT, "EntityGroupTransaction", "Success"] == 1
    assert counted["tables", ACCOUNT, "EntityGroupTransaction", "ClientOtherError"] == 1


def test_queues_and_blobs_are_counted_with_their_bytes(server: LiveServer) -> None:
    text = server.announced["connection_string"]
    queue = QueueServiceClient.from_connection_string(text).create_queue("tasks")
    queue.send_message("hello")
    assert queue.receive_message() is not None
    container = BlobServiceClient.from_connection_string(text).create_container("photos")
    container.upload_blob("long", b"x" * 200_000)
    assert container.download_blob("long").readall() == b"x" * 200_000

    counted = samples(server, "partita_requests_total")
    while ("blobs", ACCOUNT, "GetBlob", "Success") not in counted:  # counted after the last byte
        counted = samples(server, "partita_requests_total")

    assert counted["queues", ACCOUNT, "CreateQueue", "Success"] == 1
    assert counted["queues", ACCOUNT, "PutMessage", "Success"] == 1
    assert counted["queues", ACCOUNT, "GetMessages", "Success"] == 1
    assert counted["blobs", ACCOUNT, "CreateContainer", "Success"] == 1
    assert counted["blobs", ACCOUNT, "PutBlob", "Success"] == 1
    assert counted["blobs", ACCOUNT, "GetBlob", "Success"] == 1
    assert samples(server, "partita_request_bytes_total")[("blobs",)] == 200_000
    assert samples(server, "partita_response_bytes_total")[("blobs",)] == 200_000


def test_refused_signatures_are_counted(server: LiveServer) -> None:
    wrong = re.sub("AccountKey=[^;]*", "AccountKey=d3Jvbmc=", server.announced["connection_string"])
    service = TableServiceClient.from_connection_string(wrong)
    with pytest.raises(HttpResponseError):
        service.create_table("Staff")
    anonymous = urllib.request.Request(server.announced["blob_endpoint"] + "/photos/a.png")
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(anonymous, timeout=30)

    counted = samples(server, "partita_requests_total")

    assert counted["tables", ACCOUNT, "Unknown", "AuthorizationError"] == 1
    assert counted["blobs", ACCOUNT, "GetBlob", "AnonymousClientOtherError"] == 1
    assert samples(server, "partita_refused_signatures_total")[("tables",)] == 1


def test_queries_are_counted_by_plan(server: LiveServer) -> None:
    service = TableServiceClient.from_connection_string(server.announced["connection_string"])
    table = service.create_table("Staff")
    for partition in ("a", "b"):
        table.submit_transaction(
            [
                ("create", {"PartitionKey": partition, "RowKey": f"{n:03}", "N": n})
                for n in range(50)
            ]
        )
    assert len(list(table.query_entities("PartitionKey eq 'a' and N gt 40"))) == 9
    assert len(list(table.query_entities("N gt 40"))) == 18
    assert len(list(table.query_entities("PartitionKey eq 'a' and RowKey lt '010'"))) == 10

    plans = now(server)["services"]["tables"]["plans"]

    assert plans == {
        "range": {"queries_total": 1, "examined_total": 10, "returned_total": 10},
        "partition": {"queries_total": 1, "examined_total": 9, "returned_total": 9},
        "table": {"queries_total": 1, "examined_total": 18, "returned_total": 18},
    }


def test_an_explained_query_tells_how_many_entities_it_read(server: LiveServer) -> None:
    service = TableServiceClient.from_connection_string(server.announced["connection_string"])
    table = service.create_table("Staff")
    rows = [{"PartitionKey": "a", "RowKey": f"{number:03}", "N": number} for number in range(50)]
    table.submit_transaction([("create", row) for row in rows])
    told: dict[str, str] = {}

    list(
        table.query_entities(
            "N gt 40",
            headers={"x-partita-explain": "true"},
            raw_response_hook=lambda response: told.update(response.http_response.headers),
        )
    )

    assert told["x-partita-plan"] == "table residual: N gt 40"
    assert told["x-partita-examined"] == "50"


def test_durations_and_commits_are_measured(server: LiveServer) -> None:
    service = TableServiceClient.from_connection_string(server.announced["connection_string"])
    table = service.create_table("Staff")
    for number in range(5):
        table.create_entity({"PartitionKey": "a", "RowKey": str(number)})

    found = now(server)
    tables, store = found["services"]["tables"], found["store"]

    assert tables["requests_total"] == sum(tables["latency"]["counts"]) == 6
    assert tables["operations"]["InsertEntity"]["requests_total"] == 5
    assert tables["connections"] == 1
    assert store["commit_changes"]["sum"] >= 5
    assert sum(store["commit_seconds"]["counts"]) >= 5
    assert store["store_bytes"] > 0
    assert found["accounts"] == [ACCOUNT]


# The guard


def test_the_token_is_in_a_private_file(guarded: LiveServer) -> None:
    path = Path(guarded.folder / "token")

    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_text().strip()) == 43
    assert guarded.announced["metrics_token"] is None


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic {token}", "{token}"]
)
def test_api_needs_the_token(guarded: LiveServer, authorization: str) -> None:
    token = token_of(guarded)

    status, body = ask(guarded, "/api/v1/now", Authorization=authorization.format(token=token))

    assert status == 401
    assert json.loads(body)["error"]["code"] == "AuthenticationFailed"
    assert ask(guarded, "/api/v1/now")[0] == 401


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/api/v1/now"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_is_refused(guarded: LiveServer, host: str, path: str) -> None:
    token = token_of(guarded)

    status, body = ask(guarded, path, Host=host, Authorization=f"Bearer {token}")

    assert status == 400
    assert "partita" not in body


def test_health_is_answered_without_a_token(guarded: LiveServer) -> None:
    assert ask(guarded, "/healthz") == (200, "ok\n")
    assert ask(guarded, "/readyz") == (200, "ready\n")


def test_other_paths_and_verbs_are_refused(guarded: LiveServer) -> None:
    token = token_of(guarded)
    post = urllib.request.Request(guarded.announced["metrics_endpoint"] + "/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(post, timeout=30)
    refused.value.close()

    assert refused.value.code == 405
    assert ask(guarded, "/api/v1/../now", Authorization=f"Bearer {token}")[0] == 404
    assert ask(guarded, "/api/v1/now")[0] == 401


def test_beyond_loopback_metrics_need_the_token(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    flags = ["--metrics-port", "0", "--metrics-host", "0.0.0.0"]
    live = LiveServer(tmp_path, *flags, "--metrics-token-file", str(token_file))
    try:
        token = token_file.read_text().strip()

        assert ask(live, "/metrics")[0] == 401
        assert ask(live, "/metrics", Authorization=f"Bearer {token}")[0] == 200
        assert ask(live, "/healthz")[0] == 200
    finally:
        live.stop()


# What the documents and the dashboard name


def test_every_metric_of_the_dashboard_exists(guarded: LiveServer) -> None:
    board = json.loads((PROJECT / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = {name for text in texts for name in re.findall(r"\bpartita_\w+", text)}

    _, rendered = ask(guarded, "/metrics")

    printed = set(re.findall(r"^(\w+)(?:\{| )", rendered, re.MULTILINE))
    described = set(re.findall(r"^# TYPE (\w+) ", rendered, re.MULTILINE))
    assert len(named) > 20
    assert {name for name in named if name not in printed | described} == set()


def test_every_metric_is_in_the_document_and_no_other(guarded: LiveServer) -> None:
    page = (PROJECT / "docs" / "operations" / "metrics.md").read_text("utf-8")
    table = page.split("\n## Metrics\n")[1].split("\n### ")[0]

    _, rendered = ask(guarded, "/metrics")

    described = set(re.findall(r"^# TYPE (\w+) ", rendered, re.MULTILINE))
    assert set(re.findall(r"`(partita_\w+)`", table)) == described
