"""`partita fleet up`: real servers, real front ends, in a folder that other users cannot enter."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables import TableClient, TableServiceClient

pytestmark = [pytest.mark.proof, pytest.mark.timeout(480)]

PATIENCE_SECONDS = 120
COMMAND = (sys.executable, "-m", "partita.cli.main", "fleet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private / "fleet"


@contextlib.contextmanager
def started(folder: Path, *flags: str) -> Iterator[Any]:
    """Run a fleet; yield what it prints at the start, with its process as `process`."""
    flags = ("--path", os.fspath(folder), "--json", *flags)
    with (
        (folder.parent / "up.log").open("ab") as log,
        subprocess.Popen([*COMMAND, "up", *flags], stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder.parent / "up.log").read_text("utf-8")
            yield {**msgspec.json.decode(line), "process": process}
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()


def run(started: Any, *words: str) -> Any:
    """Run a verb of `partita fleet` on a fleet; return what it prints."""
    done = subprocess.run(
        [*COMMAND, *words, "--json"],
        env={**os.environ, "PARTITA_CONNECT": started["catalog"]},
        capture_output=True,
        check=True,
    )
    return msgspec.json.decode(done.stdout)


def table_of(started: Any, front_end: int = 0) -> TableClient:
    account = TableServiceClient.from_connection_string(
        started["connection_string"].replace(
            started["front_ends"][0]["table"], started["front_ends"][front_end]["table"]
        )
    )
    return account.create_table_if_not_exists("Staff")


def keys_of(table: TableClient) -> list[str]:
    return [entity["PartitionKey"] for entity in table.list_entities()]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_fleet_serves_and_finds_its_data_again(folder: Path) -> None:
    keys = [f"{number:03}" for number in range(40)]
    with started(folder, "--shards", "2", "--front-ends", "2") as fleet:
        assert [shard["name"] for shard in fleet["shards"]] == ["shard-1", "shard-2"]
        table = table_of(fleet)
        for key in keys:
            table.create_entity({"PartitionKey": key, "RowKey": ""})

        (whole,) = run(fleet, "ranges")
        assert (whole["lower"], whole["upper"]) == ("", None)
        assert whole["shard"] != "catalog"
        low, high = run(fleet, "split", "Staff", "--at", "020")["ranges"]
        other = {"shard-1": "shard-2", "shard-2": "shard-1"}[whole["shard"]]
        moved = run(fleet, "move", str(high), "--to", other)
        assert moved["entities"] == 20
        assert {each["id"]: each["shard"] for each in run(fleet, "ranges")} == {
            low: whole["shard"],
            high: other,
        }

        assert keys_of(table) == keys_of(table_of(fleet, 1)) == keys
        pids = [each["pid"] for each in fleet["front_ends"] + fleet["shards"]]
    assert not any(map(is_running, pids))

    with started(folder, "--shards", "1", "--front-ends", "1") as again:
        assert again["connection_string"] == fleet["connection_string"]
        assert [shard["name"] for shard in again["shards"]] == ["shard-1", "shard-2"]
        assert keys_of(table_of(again)) == keys


def test_children_that_die_are_named_and_started_again(folder: Path) -> None:
    with started(folder, "--shards", "1", "--front-ends", "1") as fleet:
        table = table_of(fleet)
        table.create_entity({"PartitionKey": "kept", "RowKey": ""})
        os.kill(fleet["front_ends"][0]["pid"], signal.SIGKILL)
        os.kill(fleet["shards"][0]["pid"], signal.SIGKILL)

        def serves() -> bool:
            with contextlib.suppress(HttpResponseError, OSError):
                return keys_of(table) == ["kept"]
            return False

        log = folder.parent / "up.log"
        until(lambda: log.read_text("utf-8").count("was restarted") == 2)
        until(serves)
        assert "shard-1 has ended" in log.read_text("utf-8")
        assert "front-end-1 has ended with status -9" in log.read_text("utf-8")


def test_a_killed_fleet_leaves_no_process_and_starts_again(folder: Path) -> None:
    with contextlib.suppress(AssertionError), started(folder, "--shards", "1") as fleet:
        table_of(fleet).create_entity({"PartitionKey": "kept", "RowKey": ""})
        pids = [each["pid"] for each in fleet["front_ends"] + fleet["shards"]]
        fleet["process"].kill()
    until(lambda: not any(map(is_running, pids)))

    with started(folder, "--shards", "1") as again:
        assert keys_of(table_of(again)) == ["kept"]


@pytest.mark.parametrize("moment", ["starting shard-1", "waiting for front-end-1"])
def test_a_fleet_that_is_stopped_while_it_starts_leaves_no_process(
    folder: Path, moment: str
) -> None:
    log = folder.parent / "up.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*COMMAND, "up", "--shards", "1", "--path", folder, "--json"],
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        try:
            until(lambda: moment in log.read_text("utf-8"))
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
    assert children.split()
    assert not any(is_running(int(pid)) for pid in children.split())


def test_a_folder_has_one_fleet(folder: Path) -> None:
    with started(folder, "--shards", "1", "--front-ends", "1"):
        second = subprocess.run(
            [*COMMAND, "up", "--path", folder],
            capture_output=True,
            check=False,
        )
        assert second.returncode == 2
        assert b"is in use by process" in second.stderr
