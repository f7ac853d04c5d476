"""The logs of a live server: lines with time and level, requests, slow requests, never blocking."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables import TableServiceClient

from support.live import ANY_PORTS, PATIENCE_SECONDS

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@contextmanager
def a_server(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start a server whose standard error is a pipe."""
    command = [sys.executable, "-m", "partita.cli.main", "serve", "--json", "--in-memory"]
    process = subprocess.Popen(
        [*command, *ANY_PORTS, *flags],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def stopped(process: subprocess.Popen[str]) -> list[str]:
    """Stop a server and return the lines of its standard error."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    return log.splitlines()


def a_staff_table(start: dict[str, Any]) -> Any:
    service = TableServiceClient.from_connection_string(start["connection_string"])
    table = service.create_table("Staff")
    for number in range(3):
        table.create_entity({"PartitionKey": "a", "RowKey": str(number), "Age": 40 + number})
    return table


def asked(start: dict[str, Any], path: str) -> Any:
    headers = {"Authorization": f"Bearer {start['metrics_token']}"}
    request = urllib.request.Request(start["metrics_endpoint"] + path, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())


def test_start_and_stop_are_logged_with_time_and_level(tmp_path: Path) -> None:
    with a_server(tmp_path) as (process, _):
        lines = stopped(process)

    assert re.fullmatch(rf"{TIME} INFO partita\.serve: Partita \S+ started, .*", lines[0])
    assert re.fullmatch(rf"{TIME} INFO partita\.serve: Stopped\.", lines[-1])


def test_with_json_every_line_is_an_object(tmp_path: Path) -> None:
    with a_server(tmp_path, "--log-format", "json", "--durability", "fast") as (process, start):
        foreign = urllib.request.Request(start["table_endpoint"], headers={"Host": "storage.test"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(foreign)
        refused.value.close()
        lines = [json.loads(line) for line in stopped(process)]

    assert all(re.fullmatch(TIME, line["time"]) for line in lines)
    assert [line["level"] for line in lines] == ["info", "warning", "info", "info"]
    assert "--allowed-host storage.test" in lines[1]["message"]


def test_access_log_has_operation_table_and_decoded_filter(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with a_server(tmp_path, "--access-log", str(log)) as (process, start):
        table = a_staff_table(start)
        table.submit_transaction([("create", {"PartitionKey": "b", "RowKey": "1"})])
        list(table.query_entities("PartitionKey eq 'a' and Age gt 41"))
        with pytest.raises(HttpResponseError):
            table.create_entity({"PartitionKey": "a", "RowKey": "1"})
        stopped(process)
    lines = [json.loads(line) for line in log.read_text().splitlines()]

    assert [line["operation"] for line in lines] == [
        "CreateTable",
        *["InsertEntity"] * 3,
        "EntityGroupTransaction",
        "QueryEntities",
        "InsertEntity",
    ]
    batch, query, conflict = lines[-3:]
    assert batch["object"] == "Staff"
    assert query["filter"] == "PartitionKey eq 'a' and Age gt 41"
    assert (conflict["status"], conflict["code"]) == (409, "EntityAlreadyExists")
    assert (query["account"], query["auth"], query["in"]) == ("devstoreaccount1", "key", 0)
    assert query["out"] > 0
    assert query["request_id"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_request_log_names_the_hint_of_a_refusal(tmp_path: Path) -> None:
    with a_server(tmp_path, "--request-log") as (process, start):
        table = a_staff_table(start)
        with pytest.raises(HttpResponseError):
            table.create_entity({"PartitionKey": "a", "RowKey": "9", "1": "x"})
        table.submit_transaction([("create", {"PartitionKey": "b", "RowKey": "1"})])
        lines = stopped(process)

    refused = next(line for line in lines if " 400 " in line)
    assert "POST /devstoreaccount1/Staff" in refused
    assert "hint=" in refused
    assert any("EntityGroupTransaction table=Staff" in line for line in lines)


def test_hangup_opens_the_access_log_again(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with a_server(tmp_path, "--access-log", str(log)) as (process, start):
        table = a_staff_table(start)
        while log.read_text().count("\n") < 4:
            pass
        log.rename(tmp_path / "access.log.1")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert any("reloaded" in line for line in iter(process.stderr.readline, ""))
        table.get_entity("a", "1")
        stopped(process)

    assert [json.loads(line)["operation"] for line in log.read_text().splitlines()] == [
        "QueryEntity"
    ]
    assert (tmp_path / "access.log.1").read_text().count("\n") == 4


def test_slow_requests_are_kept_with_plan_and_advice(tmp_path: Path) -> None:
    with a_server(tmp_path, "--slow-ms", "1", "--metrics-port", "0") as (process, start):
        table = a_staff_table(start)
        hard = " and ".join(f"(Age ne {1_000_000 + n} or Age eq {n})" for n in range(14))
        slow: list[dict[str, Any]] = []
        while not slow:  # a fast machine may answer within a millisecond
            assert len(list(table.query_entities(f"Age eq 41 and {hard}"))) == 1
            asked_slow = asked(start, "/api/v1/slow?limit=200")["slow"]
            slow = [each for each in asked_slow if each["operation"] == "QueryEntities"]
        lines = stopped(process)

    entry = slow[0]
    assert entry["object"] == "Staff"
    assert entry["filter"].startswith("Age eq 41 and (Age ne 1000000 or Age eq 0)")
    assert entry["plan"].startswith("table residual: Age eq 41")
    assert (entry["examined"], entry["returned"]) == (1, 1)
    assert entry["ms"] > 1
    assert any("WARNING partita.slow: slow request:" in line for line in lines)


def test_a_pipe_that_nobody_reads_does_not_hold_the_server(tmp_path: Path) -> None:
    count = 12_000  # requests, with two lines each: more than the pipe and the queue hold
    flags = ["--request-log", "--metrics-port", "0"]
    with a_server(tmp_path, *flags) as (process, start):
        host, port = start["addresses"][-1]
        request = b"GET /devstoreaccount1/Tables HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        address = (host, port)
        with (
            socket.create_connection(address, PATIENCE_SECONDS) as client,
            client.makefile("rb") as answers,
        ):
            for _ in range(count // 16):
                client.sendall(request * 16)
                for _ in range(16):
                    assert read_answer(answers) == 401
        dropped = asked(start, "/api/v1/now")["log_dropped_total"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0

    assert dropped > 0


def read_answer(answers: Any) -> int:
    status = int(answers.readline().split()[1])
    length = 0
    while (line := answers.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    answers.read(length)
    return status
