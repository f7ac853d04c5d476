"""`partita console`, and a console beside services that use TLS."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.data.tables import TableServiceClient

from console.api import Api
from partita.cli.main import main
from support.live import PATIENCE_SECONDS, LiveServer

COMMAND = [sys.executable, "-m", "partita.cli.main", "console"]


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        extras = ("cryptography", "aiohttp", "nats", "pyarrow", "sqlalchemy")
        sdk = ("azure.core", "azure.data", "azure.storage.blob", "azure.storage.queue")
        if name.startswith((*extras, *sdk)):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import partita.cli.console.verbs
import partita.console.showing
"""


def test_a_console_starts_without_the_packages_of_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def started(folder: Path, where: str, *flags: str) -> Iterator[Api]:
    """A console of its own process, connected to an account by its connection string."""
    process = subprocess.Popen(
        [*COMMAND, "--json", "--port", "0", "--token-file", "token", *flags],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PARTITA_CONNECT": where},
    )
    assert process.stdout is not None
    yield Api(json.loads(process.stdout.readline())["console"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0
    process.stdout.close()


@pytest.fixture
def alone(console: LiveServer, tmp_path: Path) -> Iterator[Api]:
    with started(tmp_path, console.connection_string) as api:
        yield api


@pytest.mark.proof
def test_an_account_that_cannot_be_reached_is_an_error_and_no_wait(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    kinds = ("Table", "Queue", "Blob")
    where = ";".join(f"{kind}Endpoint=http://127.0.0.1:{port}/shop" for kind in kinds)

    with started(tmp_path, f"AccountName=shop;AccountKey=c2VjcmV0;{where}") as api:
        api.account = "shop"
        # Each answer arrives before the time-out of the client.
        answers = {path: api.get(f"~/{path}") for path in ("tables", "queues", "containers")}

    assert {answer.status for answer in answers.values()} == {503}
    assert answers["queues"].code == "ConsoleServiceUnreachable"


@pytest.mark.proof
def test_states_on_a_cluster_that_cannot_be_reached_are_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        where = f"nats://127.0.0.1:{closed.getsockname()[1]}"

    with started(tmp_path, "", "--state", where) as api:
        listed = api.get("/state")
        rows = api.get("/state/rows", partition="p", start="[" * 5000)

    assert (listed.status, listed.code) == (503, "NatsUnreachable")
    assert (rows.status, rows.code) == (400, "ConsoleInput")


def test_a_console_alone_shows_an_account_over_the_wire(
    alone: Api, console: LiveServer, tmp_path: Path
) -> None:
    TableServiceClient.from_connection_string(console.connection_string).create_table("Alone")

    assert "Alone" in alone.get("~/tables").json["tables"]
    assert (tmp_path / "token").read_text("utf-8").strip() == alone.token


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--connect", "partita:./data"], "shows an account that is served"),
        (["--connect", "nonsense"], "shows an account that is served"),
        (
            ["--connect", "UseDevelopmentStorage=true", "--host", "0.0.0.0"],
            "must not be served on 0.0.0.0 without TLS",
        ),
        (
            ["--connect", "UseDevelopmentStorage=true", "--tls-cert", "x"],
            "TLS needs a certificate and a key",
        ),
        (
            [
                *("--connect", "UseDevelopmentStorage=true", "--host", "0.0.0.0"),
                *("--tls-cert", "x", "--tls-key", "x"),
            ],
            "must not serve the well-known account",
        ),
    ],
)
def test_a_console_that_must_not_be_served_is_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["console", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--console-host", "0.0.0.0"], "must not be served on 0.0.0.0 without TLS"),
        (
            ["--console-host", "0.0.0.0", "--tls-cert", "x", "--tls-key", "x"],
            "must not serve the well-known account",
        ),
        (["--console-port", "10002"], "The console and a service have the same port"),
    ],
)
def test_a_console_beside_the_services_is_refused_likewise(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["serve", "--in-memory", "--console", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_token_file_that_others_can_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("A" * 43)
    file.chmod(0o644)

    connect = ["--connect", "UseDevelopmentStorage=true"]
    assert main(["console", *connect, "--token-file", str(file)]) == 2

    assert "Other users can read it" in capsys.readouterr().err


@pytest.mark.proof
def test_a_console_reaches_services_with_tls(tmp_path: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=example"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    (tmp_path / "key.pem").chmod(0o600)
    flags = ("--in-memory", "--console", "--console-port", "0")
    server = LiveServer(tmp_path, *flags, "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    try:
        assert server.endpoint.startswith("https://")
        assert Api.of(server).post("~/tables", {"name": "Orders"}).status == 200
    finally:
        server.stop()
