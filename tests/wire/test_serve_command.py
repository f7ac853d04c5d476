"""`partita serve` as a process: what it announces is there, and a signal ends it cleanly."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azure.data.tables import TableServiceClient


@contextmanager
def a_server(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "partita.cli.main", "serve", "--table-port", "0", "--json"]
    with subprocess.Popen(
        [*command, *flags], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_the_announced_connection_string_works_and_data_outlives_the_process(
    tmp_path: Path,
) -> None:
    with a_server(tmp_path) as (process, start):
        with TableServiceClient.from_connection_string(start["connection_string"]) as tables:
            staff = tables.create_table("Staff")
            staff.create_entity({"PartitionKey": "Sales", "RowKey": "00010", "Age": 23})
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0

    with (
        a_server(tmp_path) as (_, start),
        TableServiceClient.from_connection_string(start["connection_string"]) as tables,
    ):
        staff = tables.get_table_client("Staff")
        assert staff.get_entity("Sales", "00010")["Age"] == 23


def test_a_second_server_on_the_same_folder_is_told_who_holds_it(tmp_path: Path) -> None:
    with a_server(tmp_path) as (process, _):
        second = subprocess.run(
            [sys.executable, "-m", "partita.cli.main", "serve", "--table-port", "0"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    assert second.returncode == 2
    assert str(process.pid) in second.stderr
    assert second.stderr.count("\n") == 1


def test_health_needs_no_signature(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory") as (_, start):
        host, port = start["addresses"][0]
        for path in ("healthz", "readyz"):
            with urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=5) as answer:
                assert answer.status == 200


def test_a_server_in_memory_leaves_no_files(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory") as (process, start):
        with TableServiceClient.from_connection_string(start["connection_string"]) as tables:
            tables.create_table("Staff")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0

    assert list(tmp_path.iterdir()) == []


def test_the_request_log_has_one_line_a_request_and_no_signature(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory", "--request-log") as (process, start):
        with TableServiceClient.from_connection_string(start["connection_string"]) as tables:
            tables.create_table("Staff")
        with urllib.request.urlopen(f"{start['table_endpoint'].rsplit('/', 1)[0]}/healthz"):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr is not None
        log = process.stderr.read().splitlines()

    assert len([line for line in log if " POST /devstoreaccount1/Tables 201 " in line]) == 1
    assert not any("sig=" in line or "SharedKey" in line for line in log)
