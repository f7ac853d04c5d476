"""`partita nats`, run as users run it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.cli.main import command, run
from partita.errors import ConfigurationError, NotAuthorizedError, StoreLockedError
from partita.reliable.nats.cluster import (
    LOCK_FILE,
    LocalCluster,
    cluster_config,
    find_server,
    is_free,
    nodes_of,
)
from partita.reliable.nats.jetstream import JetStream
from partita.storage.folder import FolderLock
from support.cluster import free_port

RUN = """
import sys
from partita.cli.main import command, run
from partita.errors import PartitaError
try:
    sys.exit(run(command(), sys.argv[1:]))
except PartitaError as error:
    sys.exit(str(error))
"""


@contextlib.contextmanager
def running_up(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-c", RUN, "nats", "up", "--json"]
    process = subprocess.Popen(
        [*command, "--path", str(folder), "--port", str(port)], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


def run_nats(*arguments: str) -> int:
    return run(command(), ["nats", *arguments])


def test_up_serves_a_durable_log_and_stops_all_nodes_when_told(tmp_path: Path) -> None:
    port = free_port()
    with running_up(tmp_path, port) as (process, started):
        asyncio.run(_open_and_close(started["url"]))

        second = subprocess.run(
            [sys.executable, "-c", RUN, "nats", "up", "--path", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

    assert [node["name"] for node in started["nodes"]] == ["node1", "node2", "node3"]
    assert second.returncode != 0
    assert "ClusterRunning" in second.stderr
    assert str(process.pid) in second.stderr
    assert started["url"] in second.stderr
    assert not any(is_running(node["pid"]) for node in started["nodes"])
    assert is_free("127.0.0.1", port)


def test_a_removed_lock_file_lets_no_second_cluster_in_and_stops_the_first(tmp_path: Path) -> None:
    port = free_port()
    with running_up(tmp_path, port) as (process, started):
        process.send_signal(signal.SIGSTOP)  # it cannot notice yet
        (tmp_path / LOCK_FILE).unlink()
        second = LocalCluster(tmp_path, port=port)

        with pytest.raises(StoreLockedError, match="ClusterRunning"):
            second.start()

        process.send_signal(signal.SIGCONT)
        assert process.wait(60) != 0
        wait_until_gone([node["pid"] for node in started["nodes"]])
    FolderLock(tmp_path, "cluster", LOCK_FILE).release()


def test_a_cluster_stops_when_its_folder_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with running_up(folder, free_port()) as (process, started):
        folder.rename(tmp_path / "other")
        folder.mkdir()

        assert process.wait(60) != 0
        wait_until_gone([node["pid"] for node in started["nodes"]])


def status_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = run_nats("status", *arguments, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, found


def test_a_killed_node_is_restarted_and_counted_until_the_cluster_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--path", str(tmp_path))
    with running_up(tmp_path, free_port()) as (process, started):
        before = status_of(capsys, *folder)
        killed = started["nodes"][1]["pid"]
        os.kill(killed, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while True:
            _, now = status_of(capsys, *folder)
            if now["nodes"][1]["restarts"] == 1 and all(node["is_up"] for node in now["nodes"]):
                break
            assert time.monotonic() < deadline, now
            time.sleep(0.1)
        connected = status_of(capsys, "--connect", started["url"])
        assert run_nats("down", *folder) == 0
        assert process.wait(60) == 0

    assert before[0] == 0
    assert [node["restarts"] for node in before[1]["nodes"]] == [0, 0, 0]
    assert [node["is_leader"] for node in before[1]["nodes"]].count(True) == 1
    assert before[1]["pid"] == process.pid
    assert now["nodes"][1]["last_exit"] == -signal.SIGKILL
    assert now["nodes"][1]["pid"] not in (killed, None)
    assert {node["syncs"] for node in connected[1]["nodes"]} == {True}
    assert connected[1]["pid"] is None
    wait_until_gone([node["pid"] for node in now["nodes"]])
    for verb in ("status", "down"):
        with pytest.raises(ConfigurationError) as caught:
            run_nats(verb, *folder)
        assert caught.value.code == "ClusterNotRunning"


def test_nodes_that_do_not_answer_are_down(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()

    status, found = status_of(capsys, "--connect", f"nats://127.0.0.1:{port}")
    assert run_nats("status", "--connect", f"nats://ada:secret@127.0.0.1:{port}") == 1

    assert status == 1
    assert [(node["is_up"], node["name"]) for node in found["nodes"]] == [(False, None)]
    text = capsys.readouterr().out
    assert "No leader answers" in text
    assert "secret" not in text


async def _open_and_close(url: str) -> None:
    stream = await JetStream.connect(url, partition="demo")
    await stream.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_no_node_outlives_a_killed_parent(tmp_path: Path) -> None:
    with running_up(tmp_path, free_port()) as (process, started):
        os.kill(started["nodes"][1]["pid"], signal.SIGSTOP)
        process.kill()
        process.wait(60)

    wait_until_gone([node["pid"] for node in started["nodes"]])


def test_up_refuses_a_port_in_use(tmp_path: Path) -> None:
    with running_up(tmp_path / "one", free_port()) as (_, started):
        port = started["url"].rpartition(":")[2]

        with pytest.raises(ConfigurationError) as caught:
            run_nats("up", "--path", str(tmp_path / "two"), "--port", port)

    assert caught.value.code == "AddressUnusable"
    assert port in caught.value.message


def test_config_writes_files_that_the_server_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--nodes", "db1,db2:5222,10.0.0.3", "--folder", "/srv/nats", "--out")
    assert run_nats("config", *arguments, str(tmp_path)) == 0
    assert run_nats("config", *arguments, str(tmp_path), "--json") == 0

    *lines, last = capsys.readouterr().out.splitlines()
    written = json.loads(last)
    assert written["url"] == "nats://db1:4222,db2:5222,10.0.0.3:4222"
    url = Path(written["url_file"]).read_text()
    password = url.partition("nats://partita:")[2].partition("@")[0]
    assert len(password) == 64
    assert url == f"nats://partita:{password}@db1:4222,db2:5222,10.0.0.3:4222\n"
    assert password not in "".join([*lines, last])
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    for file in written["files"].values():
        subprocess.run([find_server(), "-c", file, "-t"], check=True, capture_output=True)
    second = Path(written["files"]["db2:5222"]).read_text()
    assert "sync_interval: always" in second
    assert 'store_dir: "/srv/nats/node2"' in second
    assert 'listen: "0.0.0.0:5222"' in second
    assert 'http: "0.0.0.0:9222"' in second
    assert f'authorization {{ user: partita, password: "{password}" }}' in second
    assert re.search(r'"nats-route://partita-node:[0-9a-f]{64}@db1:6222"', second)


@pytest.mark.proof
def test_a_written_cluster_elects_a_leader_and_accepts_only_its_password(tmp_path: Path) -> None:
    port = free_port()
    nodes = [f"127.0.0.1:{port + n}" for n in range(3)]
    folder = ("--folder", str(tmp_path / "store"))
    run_nats("config", "--nodes", ",".join(nodes), *folder, "--out", str(tmp_path))
    url = (tmp_path / "nats-url").read_text().strip()
    servers = [
        subprocess.Popen(
            [find_server(), "-c", tmp_path / f"node{n}.conf"], stderr=subprocess.DEVNULL
        )
        for n in (1, 2, 3)
    ]
    try:
        asyncio.run(_open_and_close(url))
        with pytest.raises(NotAuthorizedError) as caught:
            asyncio.run(_open_and_close("nats://" + ",".join(nodes)))
    finally:
        for server in servers:
            server.kill()
            server.wait()
    assert caught.value.code == "NatsNotAuthorized"


def test_each_cluster_has_passwords_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_nats("config", "--nodes", "a,b,c", "--out", str(tmp_path / name))

    found = [
        password
        for name in ("one", "two")
        for password in re.findall(
            r'password: "(.*?)"', (tmp_path / name / "node1.conf").read_text()
        )
    ]

    assert len(set(found)) == 4, "clients and nodes of two clusters"


def test_a_cluster_that_others_can_reach_is_not_written_without_users() -> None:
    nodes = nodes_of(["db1", "db2", "db3"])

    with pytest.raises(ConfigurationError) as caught:
        cluster_config(nodes[0], nodes, "/x")

    assert "node1" in caught.value.message


def test_config_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "node2.conf").write_text("mine")

    with pytest.raises(ConfigurationError):
        run_nats("config", "--nodes", "a,b,c", "--out", str(tmp_path))

    assert [file.name for file in tmp_path.iterdir()] == ["node2.conf"]
    assert (tmp_path / "node2.conf").read_text() == "mine"


@pytest.mark.parametrize("nodes", ["a", "a,b", "a,b,c,d", "a,a,b", "a,b,c:x", "a,b,c d", "a,,b"])
def test_config_refuses_an_invalid_cluster(tmp_path: Path, nodes: str) -> None:
    with pytest.raises(ConfigurationError):
        run_nats("config", "--nodes", nodes, "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_local_node_is_not_reachable_from_elsewhere() -> None:
    nodes = nodes_of(["127.0.0.1:4222", "127.0.0.1:4223", "127.0.0.1:4224"])

    assert "0.0.0.0" not in cluster_config(nodes[0], nodes, "/x")


def test_a_missing_program_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITA_NATS_SERVER", "/nowhere/nats-server")

    with pytest.raises(ConfigurationError) as caught:
        find_server()
    assert "/nowhere/nats-server" in caught.value.message
