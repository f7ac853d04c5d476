import base64
import json
from pathlib import Path

import pytest

from partita.cli.config import load
from partita.cli.serve import as_line, as_text, start_of
from partita.service.accounts.account import DEVELOPMENT_KEY

DEFAULT_PORTS = {"blobs": 10000, "queues": 10001, "tables": 10002}
KEY = base64.b64encode(b"a key of our own").decode()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_usual_start_needs_no_more_than_the_short_connection_string() -> None:
    start = start_of(load({}, {}), DEFAULT_PORTS)

    assert start.connection_string == "UseDevelopmentStorage=true"
    assert start.blob_endpoint == "http://127.0.0.1:10000/devstoreaccount1"
    assert start.queue_endpoint == "http://127.0.0.1:10001/devstoreaccount1"
    assert start.table_endpoint == "http://127.0.0.1:10002/devstoreaccount1"
    assert start.path == str(Path("partita-data").absolute())
    assert start.durability == "full"


def test_another_port_is_spelled_out_with_the_well_known_key() -> None:
    start = start_of(load({"table_port": "0"}, {}), {**DEFAULT_PORTS, "tables": 40123})

    assert start.connection_string == (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={DEVELOPMENT_KEY};"
        "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;"
        "QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;"
        "TableEndpoint=http://127.0.0.1:40123/devstoreaccount1"
    )


def test_a_service_that_is_turned_off_is_not_announced() -> None:
    start = start_of(load({"queues": False, "blobs": False}, {}), {"tables": 10002})

    assert (start.blob_endpoint, start.queue_endpoint) == (None, None)
    assert start.connection_string == "UseDevelopmentStorage=true"
    assert start.addresses == [("127.0.0.1", 10002)]
    assert "serves tables\n" in as_text(start)


@pytest.mark.parametrize(
    ("served", "client"),
    [
        ("tables", "TableServiceClient"),
        ("queues", "QueueServiceClient"),
        ("blobs", "BlobServiceClient"),
    ],
)
def test_the_lines_to_type_are_for_a_service_that_is_there(served: str, client: str) -> None:
    text = as_text(start_of(load({}, {}), {served: 10000}))

    code = text.split("\n\n")[1]
    assert client in code
    compile("\n".join(line.strip() for line in code.splitlines()), "banner", "exec")


def test_a_key_of_one_s_own_is_not_announced() -> None:
    start = start_of(load({}, {"PARTITA_ACCOUNTS": f"mine:{KEY}"}), DEFAULT_PORTS)

    assert KEY not in as_text(start) + as_line(start)
    assert "AccountName=mine;AccountKey=<your key>;" in start.connection_string


@pytest.mark.parametrize(
    ("bound", "typed"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("localhost", "127.0.0.1"),
        ("192.0.2.7", "192.0.2.7"),
    ],
)
def test_the_endpoint_is_an_address_that_can_be_typed(bound: str, typed: str) -> None:
    start = start_of(load({"host": bound}, {}), DEFAULT_PORTS)

    assert start.table_endpoint == f"http://{typed}:10002/devstoreaccount1"


def test_tls_is_announced_as_https() -> None:
    config = load({"tls_cert": "cert.pem", "tls_key": "key.pem"}, {})

    start = start_of(config, DEFAULT_PORTS)

    assert start.connection_string.startswith("DefaultEndpointsProtocol=https;")
    assert str(start.table_endpoint).startswith("https://")
    assert str(start.blob_endpoint).startswith("https://")


def test_the_text_says_where_data_lives_and_what_to_type() -> None:
    text = as_text(start_of(load({"host": ["127.0.0.1", "::1"]}, {}), DEFAULT_PORTS))

    assert "127.0.0.1:10002, [::1]:10002" in text
    assert "partita-data (durability full: a success answer is on disk)" in text
    code = [line.strip() for line in text.split("\n\n")[1].splitlines()]
    assert len(code) == 4
    compile("\n".join(code), "banner", "exec")


def test_a_server_in_memory_says_that_nothing_survives() -> None:
    start = start_of(load({"in_memory": True}, {}), DEFAULT_PORTS)

    assert start.path is None
    assert "nothing is kept" in as_text(start)


def test_further_accounts_are_named() -> None:
    config = load({}, {"PARTITA_ACCOUNTS": f"one:{KEY};two:{KEY}"})

    assert "further accounts   two" in as_text(start_of(config, DEFAULT_PORTS))


def test_the_json_start_is_one_line() -> None:
    line = as_line(start_of(load({}, {}), DEFAULT_PORTS))

    assert "\n" not in line
    assert json.loads(line)["addresses"] == [
        ["127.0.0.1", 10000],
        ["127.0.0.1", 10001],
        ["127.0.0.1", 10002],
    ]
