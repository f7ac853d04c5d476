"""`partita patterns worker` as a process beside a real server: copies arrive, signals, kills."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from partita.patterns.protocol.calls import CountMessages, DeleteMessage, ReceiveMessages, ask
from partita.patterns.sync import Database, connect
from support.live import PATIENCE_SECONDS, LiveServer
from wire import worker_models
from wire.timed_server import TimedServer
from wire.worker_models import Employee, anywhere, failing, working


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("server"), "--in-memory")
    yield live
    live.stop()


@pytest.fixture
def db(server: LiveServer, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of the server whose queue belongs to one test."""
    name = request.node.name.replace("_", "-")[:50].rstrip("-")
    with connect(server.connection_string, queues=(name,), poison_queue=f"{name}-poison") as opened:
        opened.table(Employee)
        opened.create_tables()
        yield opened


@pytest.fixture
def timed() -> Iterator[TimedServer]:
    """A server for what depends on the time of a claim."""
    live = TimedServer()
    yield live
    live.stop()


@pytest.fixture
def timed_db(timed: TimedServer) -> Iterator[Database]:
    with connect(timed.connection_string, queues=("work",), poison_queue="poison") as opened:
        opened.table(Employee)
        opened.create_tables()
        yield opened


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """The folder of an application: the worker finds its modules in its own folder."""
    shutil.copy(worker_models.__file__, tmp_path)
    return tmp_path


@contextmanager
def a_worker(
    server: LiveServer | TimedServer, db: Database, folder: Path, *flags: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a worker of the test's queue, and wait until it says that it works."""
    command = [sys.executable, "-m", "partita.cli.main", "patterns", "worker", "worker_models"]
    options = db.context.options
    queues = ("--queue", options.queues[0], "--poison-queue", options.poison_queue)
    quick = ("--poll", "0.05", "--sweep-every", "0", "--report-every", "0", "--json")
    with subprocess.Popen(
        [*command, *queues, *quick, *flags],
        cwd=folder,
        env={**os.environ, "PARTITA_CONNECT": server.connection_string},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            assert json.loads(line)["process"] == process.pid
            yield process
        finally:
            process.kill()


def stop(process: subprocess.Popen[str]) -> dict[str, Any]:
    """End it as an operator does, and return what it says at the end."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def eventually(happened: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    for _ in range(PATIENCE_SECONDS * 50):
        if happened():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def test_copies_and_views_arrive_and_a_signal_ends_the_worker(
    server: LiveServer, db: Database, application: Path
) -> None:
    employees = db.table(Employee)
    with a_worker(server, db, application) as process:
        for each in range(5):
            employees.save(Employee(dept="Sales", id=each, email=f"{each}@contoso.com"))
        eventually(lambda: all((application / f"view-{each}").exists() for each in range(5)))
        worked = stop(process)

    assert (worked["entries"], worked["failures"]) == (5, 0)
    found = employees.via(anywhere).get(email="3@contoso.com", id=3, dept="Sales")
    assert found.id == 3
    assert (application / "view-3").read_text() == "3@contoso.com"


def test_the_message_in_hand_is_finished_after_a_signal(
    server: LiveServer, db: Database, application: Path
) -> None:
    db.table(Employee).upsert(Employee(dept="Sales", id=40, email="40@contoso.com"))
    db.start(working, name="a", id=40)
    with a_worker(server, db, application) as process:
        eventually((application / "taken-a").exists)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        (application / "go-a").touch()
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 0
    assert json.loads(out)["transactions"] == 1
    assert (application / "done-a").read_text() == "40@contoso.com"


@pytest.mark.proof
def test_a_second_worker_finishes_what_a_killed_one_began(
    timed: TimedServer, timed_db: Database, application: Path
) -> None:
    timed_db.table(Employee).upsert(Employee(dept="Sales", id=50, email="50@contoso.com"))
    with a_worker(timed, timed_db, application, "--visibility", "5") as first:
        timed_db.start(working, name="b", id=50)
        eventually((application / "taken-b").exists)
        first.kill()
        first.wait(PATIENCE_SECONDS)

    assert not (application / "done-b").exists()
    (application / "go-b").touch()
    timed.clock.advance(6)
    with a_worker(timed, timed_db, application, "--visibility", "5") as second:
        eventually((application / "done-b").exists)
        worked = stop(second)

    assert worked["transactions"] == 1
    assert (application / "taken-b").read_text() == "xx"


@pytest.mark.proof
def test_the_claim_of_slow_work_is_renewed(
    timed: TimedServer, timed_db: Database, application: Path
) -> None:
    timed_db.table(Employee).upsert(Employee(dept="Sales", id=60, email="60@contoso.com"))
    timed_db.start(working, name="c", id=60)
    with a_worker(timed, timed_db, application, "--visibility", "1", "--tasks", "2") as process:
        eventually((application / "taken-c").exists)
        for _ in range(2):  # together longer than a claim; the second task would take it again
            timed.wait_for_renewal()
            timed.clock.advance(0.75)
        (application / "go-c").touch()
        eventually((application / "done-c").exists)
        stop(process)

    assert (application / "taken-c").read_text() == "x"


def test_poison_is_one_line_and_the_worker_goes_on(
    timed: TimedServer, timed_db: Database, application: Path
) -> None:
    claims = ("--deliveries", "2", "--visibility", "60")
    with a_worker(timed, timed_db, application, *claims) as process:
        timed_db.start(failing)
        assert process.stderr is not None
        first = process.stderr.readline()
        timed.clock.advance(61)
        eventually(lambda: poisoned(timed_db) == 1)
        timed_db.table(Employee).save(Employee(dept="Sales", id=70, email="70@contoso.com"))
        eventually((application / "view-70").exists)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    worked = json.loads(out)
    assert (worked["entries"], worked["failures"], worked["poisoned"]) == (1, 2, 1)
    assert [first.rstrip(), *err.splitlines()] == [
        f"partita worker: {told}: transaction 'failing': ValueError: no such printer"
        for told in ("failed, attempt 1 of 2", "poison after 2 attempts")
    ]


def poisoned(db: Database) -> int:
    return db.run(ask(CountMessages(db.context.options.poison_queue))) or 0


@pytest.mark.proof
def test_two_workers_share_the_work_and_a_sweep_finds_lost_hints(
    server: LiveServer, db: Database, application: Path
) -> None:
    employees = db.table(Employee)
    for each in range(100, 110):
        employees.save(Employee(dept="Lost", id=each, email=f"{each}@contoso.com"))
    lose_hints(db)
    sweeping = ("--sweep-every", "60", "--sweep-age", "0")
    with (
        a_worker(server, db, application, *sweeping) as one,
        a_worker(server, db, application) as two,
    ):
        for each in range(110, 150):
            employees.save(Employee(dept="Kept", id=each, email=f"{each}@contoso.com"))
        eventually(lambda: all((application / f"view-{each}").exists() for each in range(100, 150)))
        worked = [stop(one), stop(two)]

    assert sum(each["failures"] for each in worked) == 0
    assert employees.via(anywhere).get(email="105@contoso.com", id=105, dept="Lost").id == 105
    assert employees.via(anywhere).get(email="149@contoso.com", id=149, dept="Kept").id == 149


def lose_hints(db: Database) -> None:
    (queue,) = db.context.options.queues
    while messages := db.run(ask(ReceiveMessages(queue, 32))):
        for message in messages:
            db.run(ask(DeleteMessage(queue, message)))


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Ask the health port."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_rate_backlog_and_age_are_printed_and_measured(
    server: LiveServer, db: Database, application: Path
) -> None:
    db.table(Employee).upsert(Employee(dept="Sales", id=80, email="80@contoso.com"))
    db.start(working, name="h", id=80)
    port = free_port()
    flags = ("--health-port", str(port), "--report-every", "0.2", "--tasks", "1")
    with a_worker(server, db, application, *flags) as process:
        eventually((application / "taken-h").exists)
        eventually(lambda: get(port, "/readyz")[0] == 200)
        for each in range(3):  # they wait: the only task is busy
            db.table(Employee).save(Employee(dept="Sales", id=81 + each, email=f"{each}@x.org"))
        assert process.stderr is not None
        lines: list[dict[str, Any]] = []
        while not lines or lines[-1]["waiting"] < 4 or not lines[-1]["oldest_seconds"]:
            lines.append(json.loads(process.stderr.readline()))
        metrics = get(port, "/metrics")[1]
        healthy, elsewhere = get(port, "/healthz"), get(port, "/metrics", "evil.example")
        unknown = get(port, "/api/v1/now")
        (application / "go-h").touch()
        eventually(lambda: 'partita_outbox_entries_total{queue="' in get(port, "/metrics")[1])
        eventually(lambda: all((application / f"view-{81 + each}").exists() for each in range(3)))
        worked = stop_with_lines(process)

    assert (lines[-1]["busy"], lines[-1]["tasks"], lines[-1]["poison"]) == (1, 1, 0)
    label = f'{{queue="{db.context.options.queues[0]}"}}'
    assert f"partita_outbox_messages{label} 4" in metrics
    assert f"partita_outbox_age_seconds{label}" in metrics
    assert f"partita_poison_total{label} 0" in metrics
    assert "partita_build_info" in metrics
    assert healthy == (200, "ok\n")
    assert (elsewhere[0], unknown[0]) == (400, 401)
    assert worked["transactions"] == 1


def stop_with_lines(process: subprocess.Popen[str]) -> dict[str, Any]:
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.proof
def test_a_worker_without_its_server_is_not_ready(
    tmp_path_factory: pytest.TempPathFactory, application: Path
) -> None:
    alone = LiveServer(tmp_path_factory.mktemp("alone"), "--in-memory")
    port = free_port()
    try:
        with (
            connect(alone.connection_string) as db,
            a_worker(alone, db, application, "--health-port", str(port)) as process,
        ):
            eventually(lambda: get(port, "/readyz")[0] == 200)
            alone.kill()
            eventually(lambda: get(port, "/readyz")[0] == 503)
            answers = get(port, "/readyz")[1], get(port, "/healthz")[0]
            stop(process)
    finally:
        alone.kill()

    assert answers[0].startswith("not ready: Messages cannot be received: ")
    assert answers[1] == 200


def test_a_worker_that_lost_its_server_still_stops(
    tmp_path_factory: pytest.TempPathFactory, application: Path
) -> None:
    alone = LiveServer(tmp_path_factory.mktemp("alone"), "--in-memory")
    try:
        with (
            connect(alone.connection_string) as db,
            a_worker(alone, db, application) as process,
        ):
            alone.kill()
            worked = stop(process)
    finally:
        alone.kill()

    assert worked["entries"] == 0


def test_a_wrong_key_is_refused_in_one_line_without_it(
    server: LiveServer, application: Path
) -> None:
    members = dict(part.split("=", 1) for part in server.connection_string.split(";"))
    members["AccountKey"] = "c2VjcmV0IHNlY3JldCBzZWNyZXQ="
    wrong = ";".join(f"{name}={value}" for name, value in members.items())

    done = subprocess.run(
        [sys.executable, "-m", "partita.cli.main", "patterns", "worker", "worker_models", "--once"],
        cwd=application,
        env={**os.environ, "PARTITA_CONNECT": wrong},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert members["AccountKey"] not in done.stderr
    assert "Check the account name, key or SAS" in done.stderr
