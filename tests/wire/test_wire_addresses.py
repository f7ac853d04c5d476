"""The addresses that clients write, old ones included, and what they reach."""

import json
import re
import ssl
import urllib.request

import pytest

from support.live import LiveServer
from wire.conftest import Certificate, StartServer
from wire.raw import JSON, KEYS, RawClient, insert


@pytest.mark.parametrize(
    "keys",
    [
        "(PartitionKey='p',RowKey='r')",
        "(PartitionKey='p',%20RowKey='r')",
        "(RowKey='r',PartitionKey='p')",
        "(PartitionKey=%27p%27,RowKey=%27r%27)",
        "(PartitionKey%3D'p'%2CRowKey%3D'r')",
    ],
)
def test_an_entity_is_found_under_every_spelling(raw: RawClient, table: str, keys: str) -> None:
    insert(raw, table)

    assert raw.send("GET", f"/{table}{keys}").status == 200
    assert raw.send("GET", f"/{table.upper()}{keys}").status == 200


def test_a_key_is_decoded_once(raw: RawClient, table: str) -> None:
    insert(raw, table, RowKey="foo%25 +,';=&$")

    literal = "foo%2525%20+,%27%27;=&$"
    answer = raw.send("GET", f"/{table}(PartitionKey='p',RowKey='{literal}')")

    assert answer.json["RowKey"] == "foo%25 +,';=&$"


def test_empty_keys_are_keys(raw: RawClient, table: str) -> None:
    target = f"/{table}(PartitionKey='',RowKey='')"

    assert raw.send("PUT", target, "{}", JSON).status == 204
    shown = raw.send("GET", target).json
    assert (shown["PartitionKey"], shown["RowKey"]) == ("", "")


def test_the_address_wins_over_the_keys_in_the_body(raw: RawClient, table: str) -> None:
    raw.send("PUT", f"/{table}{KEYS}", '{"PartitionKey":"x","RowKey":"y"}', JSON)

    shown = raw.send("GET", f"/{table}()").json["value"]
    assert [(each["PartitionKey"], each["RowKey"]) for each in shown] == [("p", "r")]


def test_a_wrong_number_of_keys_is_told(raw: RawClient, table: str) -> None:
    answer = raw.send("GET", f"/{table}('x')")

    assert (answer.status, answer.code) == (400, "InvalidInput")
    assert answer.first_line == (
        "The number of keys specified in the URI does not match number of key properties for the"
        f" resource 'devstoreaccount1.{table}'."
    )


@pytest.mark.parametrize("host", ["devstoreaccount1.localhost", "devstoreaccount1.localhost:80"])
def test_the_host_may_name_the_account(raw: RawClient, table: str, host: str) -> None:
    answer = raw.send_to("GET", f"/Tables('{table}')", headers={"Host": host})

    assert answer.status == 200
    assert answer.json["odata.metadata"] == f"http://{host}/$metadata#Tables/@Element"


def test_the_secondary_reads_and_never_writes(raw: RawClient, table: str) -> None:
    path = "/devstoreaccount1-secondary"
    insert(raw, table)

    read = raw.send_to("GET", f"{path}/{table}{KEYS}")
    write = raw.send_to("PUT", f"{path}/{table}{KEYS}", "{}", JSON)
    by_host = raw.send_to(
        "GET", f"/{table}{KEYS}", headers={"Host": "devstoreaccount1-secondary.localhost"}
    )

    assert (read.status, by_host.status) == (200, 200)
    assert (write.status, write.code) == (403, "InsufficientAccountPermissions")


def test_statistics_are_the_secondarys(raw: RawClient) -> None:
    query = "?restype=service&comp=stats"

    here = raw.send("GET", f"/{query}")
    there = raw.send_to("GET", f"/devstoreaccount1-secondary/{query}")

    assert (here.status, here["x-ms-error-code"]) == (400, "InvalidQueryParameterValue")
    assert there.status == 200
    assert re.search(
        r"<StorageServiceStats><GeoReplication><Status>live</Status><LastSyncTime>"
        r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT</LastSyncTime></GeoReplication>"
        r"</StorageServiceStats>$",
        there.body.decode(),
    )


def test_an_unknown_account_and_a_wrong_key_look_the_same(server: LiveServer) -> None:
    stranger = RawClient(f"{server.origin}/nobody")
    impostor = RawClient(server.endpoint, key="bm90IHRoZSBrZXk=")

    answers = [client.send("GET", "/Tables") for client in (stranger, impostor)]

    assert [(answer.status, answer.code) for answer in answers] == [
        (403, "AuthenticationFailed")
    ] * 2
    assert len({answer.first_line for answer in answers}) == 1


# What old .NET clients send


def test_a_query_of_an_old_client_is_served(raw: RawClient, table: str) -> None:
    insert(raw, table, Age=7)
    headers = {
        "Accept": "application/json; odata=minimalmetadata",
        "Accept-Charset": "UTF-8",
        "MaxDataServiceVersion": "3.0;NetFx",
        "DataServiceVersion": "3.0;",
        "x-ms-version": "2014-02-14",
    }

    answer = raw.send(
        "GET", f"/{table}?$filter=Age%20ge%207&$select=Age,RowKey&timeout=90", headers=headers
    )

    assert answer.status == 200
    assert [entity["Age"] for entity in answer.json["value"]] == [7]


def test_service_properties_need_no_slash_behind_the_account(raw: RawClient) -> None:
    answers = [raw.send("GET", f"{end}?restype=service&comp=properties") for end in ("", "/")]

    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body


def test_api_version_counts_where_the_header_is_absent(raw: RawClient) -> None:
    sas = "sv=2019-02-02&ss=t&srt=sco&sp=rl&se=2030-01-01T00:00:00Z"
    signature = "6atERsp82qDGsajntf9Es3ucADuU%2B5Mh/vk0jf0U1tw%3D"
    target = f"{raw.root}/Tables?api-version=2014-02-14&{sas}&sig={signature}"

    with urllib.request.urlopen(target, timeout=60) as answer:
        assert (answer.status, answer.headers["x-ms-version"]) == (200, "2014-02-14")


def test_a_body_in_chunks_is_taken(raw: RawClient, table: str) -> None:
    body = b'21\r\n{"PartitionKey":"p","RowKey":"r"}\r\n0\r\n\r\n'

    answer = raw.send("POST", f"/{table}", body, JSON | {"Transfer-Encoding": "chunked"})

    assert answer.status == 201


def test_a_path_below_a_table_is_the_table(raw: RawClient, table: str, name: str) -> None:
    body = json.dumps({"TableName": "x"})

    known = raw.send("POST", f"/{table}/Tables", body, JSON)
    unknown = raw.send("POST", "/Unknown/Tables", body, JSON)

    assert (known.status, known.code) == (400, "PropertiesNeedValue")
    assert (unknown.status, unknown.code) == (404, "TableNotFound")


# Beside the accounts


@pytest.mark.parametrize(("path", "text"), [("/healthz", b"ok\n"), ("/readyz", b"ready\n")])
def test_health_lies_outside_the_accounts(raw: RawClient, path: str, text: bytes) -> None:
    answer = raw.send_to("GET", path, is_signed=False)

    assert (answer.status, answer.body) == (200, text)


def test_metrics_lie_outside_the_accounts(raw: RawClient) -> None:
    answer = raw.send_to("GET", "/metrics", is_signed=False)

    assert answer.status == 200
    assert b"\npartita_loop_turn_seconds_max " in answer.body


def test_https_prints_https_addresses(start_server: StartServer, self_signed: Certificate) -> None:
    flags = ("--tls-cert", str(self_signed.certificate), "--tls-key", str(self_signed.key))
    live = start_server("--in-memory", *flags)
    context = ssl.create_default_context(cafile=str(self_signed.certificate))

    answer = RawClient(live.endpoint, context=context).send(
        "POST", "/Tables", '{"TableName":"Staff"}', JSON
    )

    assert live.endpoint.startswith("https://127.0.0.1:")
    assert answer["Location"] == f"{live.endpoint}/Tables('Staff')"
