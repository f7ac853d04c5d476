"""`partita serve` as a process: what it announces is there, and a signal ends it cleanly."""

import base64
import hashlib
import hmac
import http.client
import io
import json
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

from partita.cli.main import main
from partita.cli.serve import connections_that_fit
from support.live import ANY_PORTS


@contextmanager
def a_server(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "partita.cli.main", "serve", *ANY_PORTS, "--json"]
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
        assert process.wait(60) == 0

    with (
        a_server(tmp_path) as (_, start),
        TableServiceClient.from_connection_string(start["connection_string"]) as tables,
    ):
        staff = tables.get_table_client("Staff")
        assert staff.get_entity("Sales", "00010")["Age"] == 23


def test_one_connection_string_opens_all_three_services(tmp_path: Path) -> None:
    with a_server(tmp_path) as (process, start):
        with BlobServiceClient.from_connection_string(start["connection_string"]) as blobs:
            blobs.create_container("photos").upload_blob("1.png", b"PNG")
        with QueueServiceClient.from_connection_string(start["connection_string"]) as queues:
            queues.create_queue("work").send_message("archive 1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0

    with a_server(tmp_path) as (_, start):
        with BlobServiceClient.from_connection_string(start["connection_string"]) as blobs:
            assert blobs.get_blob_client("photos", "1.png").download_blob().readall() == b"PNG"
        with QueueServiceClient.from_connection_string(start["connection_string"]) as queues:
            (message,) = queues.get_queue_client("work").peek_messages()
            assert message.content == "archive 1"


@pytest.mark.parametrize("off", ["blobs", "queues", "tables"])
def test_a_service_that_is_turned_off_has_no_socket(tmp_path: Path, off: str) -> None:
    with a_server(tmp_path, "--in-memory", f"--no-{off}") as (_, start):
        assert start[f"{off[:-1]}_endpoint"] is None
        assert len(start["addresses"]) == 2


def test_a_port_that_is_taken_ends_the_start_of_all(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory") as (_, start):
        taken = str(start["addresses"][1][1])
        command = [sys.executable, "-m", "partita.cli.main", "serve", "--in-memory", *ANY_PORTS]
        second = subprocess.run(
            [*command, "--table-port", taken],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr.count("\n") == 1
    assert "--queue-port" in second.stderr


def test_a_second_server_on_the_same_folder_is_told_who_holds_it(tmp_path: Path) -> None:
    with a_server(tmp_path) as (process, _):
        second = subprocess.run(
            [sys.executable, "-m", "partita.cli.main", "serve", *ANY_PORTS],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert second.returncode == 2
    assert str(process.pid) in second.stderr
    assert second.stderr.count("\n") == 1


def test_health_needs_no_signature(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory") as (_, start):
        host, port = start["addresses"][-1]
        for path in ("healthz", "readyz"):
            with urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=60) as answer:
                assert answer.status == 200


def test_a_server_in_memory_leaves_no_files(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory") as (process, start):
        with TableServiceClient.from_connection_string(start["connection_string"]) as tables:
            tables.create_table("Staff")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0

    assert list(tmp_path.iterdir()) == []


def test_the_request_log_has_one_line_a_request_and_no_signature(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory", "--request-log") as (process, start):
        with TableServiceClient.from_connection_string(start["connection_string"]) as tables:
            tables.create_table("Staff")
        with urllib.request.urlopen(f"{start['table_endpoint'].rsplit('/', 1)[0]}/healthz"):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        log = process.stderr.read().splitlines()

    assert len([line for line in log if " POST /devstoreaccount1/Tables 201 " in line]) == 1
    assert not any("sig=" in line or "SharedKey" in line for line in log)


def test_the_log_names_the_setting_that_cures_a_refusal(tmp_path: Path) -> None:
    with a_server(tmp_path, "--no-request-log") as (process, start):
        request = urllib.request.Request(
            f"{start['table_endpoint']}/Tables", headers={"Host": "storage.test"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as answer:
            assert answer.code == 400
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        log = process.stderr.read()

    assert "WARNING" in log
    assert "--allowed-host storage.test" in log


UNSIGNED = {
    "table_endpoint": "POST /devstoreaccount1/Staff",
    "queue_endpoint": "POST /devstoreaccount1/orders/messages",
    "blob_endpoint": "PUT /devstoreaccount1/photos/a",
}


def test_a_wrong_signature_is_refused_before_a_body_is_sent(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory") as (_, start):
        for service, line in UNSIGNED.items():
            for length in ("Content-Length: 4000000", "Content-Length: 9"):
                host, port = urllib.parse.urlsplit(start[service]).netloc.split(":")
                with socket.create_connection((host, int(port)), 60) as connection:
                    head = f"{line} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n"
                    credentials = "Authorization: SharedKey devstoreaccount1:AAAA\r\n"
                    connection.sendall(f"{head}{credentials}\r\n".encode())

                    assert connection.recv(16) == b"HTTP/1.1 403 For", (service, length)


def test_unsigned_connections_do_not_take_the_slots_of_the_others(tmp_path: Path) -> None:
    with a_server(tmp_path, "--in-memory", "--connections-max", "10") as (_, start):
        host, port = urllib.parse.urlsplit(start["table_endpoint"]).netloc.split(":")
        with ExitStack() as opened:
            for _ in range(50):
                opened.enter_context(socket.create_connection((host, int(port)), 60))

            service = TableServiceClient.from_connection_string(start["connection_string"])
            assert [table.name for table in service.list_tables()] == []
            with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=60) as answer:
                assert answer.read() == b"ok\n"


def new_certificate(folder: Path) -> bytes:
    """Write another certificate for 127.0.0.1; return it in DER."""
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *kind]
    files = ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, *files], check=True, capture_output=True, cwd=folder)
    return ssl.PEM_cert_to_DER_cert((folder / "cert.pem").read_text())


class Ran(NamedTuple):
    status: int
    out: str
    err: str


def partita_run(*words: str) -> Ran:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(words)
    return Ran(status, out.getvalue(), err.getvalue())


def test_keys_and_certificates_are_renewed_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    key_file = tmp_path / "orders.key"
    key_file.write_text(base64.b64encode(b"1" * 64).decode() + "\n")
    key_file.chmod(0o600)
    first_certificate = new_certificate(tmp_path)
    flags = ["--account", "orders", "--account-key-file", "orders.key"]
    files = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"]
    with a_server(tmp_path, *flags, *files) as (process, start):
        host, port = urllib.parse.urlsplit(start["table_endpoint"]).netloc.split(":")
        context = ssl._create_unverified_context()
        (old,) = key_file.read_text().split()
        kept = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)

        def status(key: str, connection: http.client.HTTPSConnection | None = None) -> int:
            used = connection or http.client.HTTPSConnection(
                host, int(port), timeout=60, context=context
            )
            date = formatdate(usegmt=True)
            text = f"{date}\n/orders/orders/Tables".encode()
            digest = hmac.new(base64.b64decode(key), text, hashlib.sha256).digest()
            signature = f"SharedKeyLite orders:{base64.b64encode(digest).decode()}"
            headers = {"x-ms-date": date, "Authorization": signature, "x-ms-version": "2019-02-02"}
            used.request("GET", "/orders/Tables", headers=headers)
            answer = used.getresponse()
            answer.read()
            if used is not kept:
                used.close()
            return answer.status

        def certificate() -> bytes:
            with (
                socket.create_connection((host, int(port)), 60) as connection,
                context.wrap_socket(connection) as secured,
            ):
                return secured.getpeercert(binary_form=True) or b""

        assert status(old, kept) == 200
        rotated = partita_run(
            "account", "keys", "rotate", "--account-key-file", "orders.key", "--key", "2"
        )
        assert (rotated.status, rotated.err) == (0, "")
        same, new = key_file.read_text().split()
        assert same == old
        assert new not in rotated.out
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        assert [status(old), status(new)] == [200, 403]

        second_certificate = new_certificate(tmp_path)
        assert certificate() == first_certificate
        done = partita_run("reload", "--connect", "partita-data")
        assert (done.status, done.err) == (0, "")
        assert [status(old), status(new), status(new, kept)] == [200, 200, 200]
        assert certificate() == second_certificate != first_certificate

        key_file.write_text(f"{new}\n")
        (tmp_path / "key.pem").write_text("no key")
        refused = partita_run("reload", "--connect", "partita-data")
        assert refused.status == 2
        assert "Nothing was reloaded. The TLS certificate or its key cannot be used." in (
            refused.err
        )
        assert [status(old), certificate()] == [200, second_certificate]

        new_certificate(tmp_path)
        assert partita_run("reload", "--connect", "partita-data").status == 0
        assert [status(old, kept), status(new, kept)] == [403, 200]
        kept.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    ended = partita_run("reload", "--connect", "partita-data")
    assert (ended.status, ended.out) == (2, "")
    assert "No server serves the folder partita-data." in ended.err


def test_hangup_reloads_a_server_in_memory_and_names_what_needs_a_restart(tmp_path: Path) -> None:
    (tmp_path / "partita.toml").write_text("connections_max = 100\n")
    with a_server(tmp_path, "--in-memory") as (process, _):
        (tmp_path / "partita.toml").write_text("connections_max = 200\n")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        said = next(line for line in lines if "WARNING" in line)
        assert said.endswith("partita.serve: Restart the server to apply: connections_max\n")
        assert process.poll() is None


def test_connections_are_limited_to_the_open_files() -> None:
    assert [connections_that_fit(files, 3) for files in (1_048_576, 65_536, 1024, 64)] == [
        279_556,
        17_412,
        209,
        1,
    ]


def test_a_server_may_open_as_many_files_as_the_system_lets_it() -> None:
    program = (
        "import resource as r; from partita.cli.serve import raise_open_files;"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 512)); raise_open_files();"
        "print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.split() == [b"(512,", b"512)"]
