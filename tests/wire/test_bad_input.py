"""Bad input over raw sockets: each row gets its answer, soon, and changes nothing.

The rows are in `bad_rows.py`; those that need more than one request have a test of their own.
"""

import base64
import http.client
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.live import ANY_PORTS, LiveServer
from support.repeats import repeat
from wire.bad_rows import (
    ENTITY,
    INPUT,
    OWN_ACCOUNT,
    OWN_KEY,
    PATIENCE_SECONDS,
    TABLE,
    Row,
    an_entity,
    batched,
    of_unknown_account,
    query,
    with_headers,
    with_lines,
)
from wire.hostile import (
    JSON,
    Answer,
    Service,
    a_part,
    in_seconds,
    read_answer,
)

ENTITIES = 12


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("bad-input")
    accounts = "".join(
        f'[[accounts]]\nname = "{each.account}"\nkey = "{each.key}"\n'
        for each in (Service(0), Service(0, OWN_ACCOUNT, OWN_KEY))
    )
    folder.joinpath("partita.toml").write_text(accounts)
    server = LiveServer(folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def service(live: LiveServer) -> Service:
    service = Service(live.announced["addresses"][-1][1])
    for name in ("Witness", "Other"):
        must(service, "201", service.signed("POST", "/Tables", JSON, f'{{"TableName":"{name}"}}'))
    for number in range(ENTITIES):
        must(
            service,
            "201",
            service.signed("POST", "/Witness", JSON, an_entity("abcd"[number // 3], number)),
        )
    return service


def must(service: Service, expected: str, data: bytes) -> Answer:
    answer = service.exchange(data)
    assert answer.told == expected, answer.body
    return answer


def everything(service: Service) -> list[bytes]:
    """Read all that a bad request could have changed."""
    entities = ["/Tables", "/Witness()", "/Other()"]
    targets = [*entities, "/Witness?comp=acl", "/?restype=service&comp=properties"]
    return [must(service, "200", service.signed("GET", target)).body for target in targets]


@pytest.fixture
def witness(service: Service) -> Iterator[Service]:
    """The service, on the promise that the test changes nothing."""
    before = everything(service)
    yield service
    assert everything(service) == before


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.number}-{row.title}") for row in TABLE]
)
def test_bad_input_gets_its_answer_soon_and_changes_nothing(
    row: Row, witness: Service, live: LiveServer
) -> None:
    request = row.build(witness)
    before = live.cpu_seconds()
    answer = witness.exchange(request)

    assert answer.told == row.expected
    assert live.cpu_seconds() - before < row.cpu_seconds_max
    assert answer.status < 500 or answer.status in (501, 503, 507)
    assert answer.is_closing or not row.is_closing


def test_well_known_key_is_not_served_on_the_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "partita.cli.main", "serve", *ANY_PORTS]

    refused = subprocess.run(
        [*command, "--host", "0.0.0.0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert refused.returncode == 2
    assert "well-known development key" in refused.stderr
    assert refused.stdout == ""


def test_refused_query_options_leave_an_empty_page(witness: Service) -> None:
    answer = witness.exchange(query(**{"$top": "0"})(witness))

    assert json.loads(answer.body)["value"] == []
    assert not [name for name in answer.headers if "continuation" in name]


def test_query_by_a_range_shows_nothing_outside_it(witness: Service) -> None:
    sas = witness.table_sas("Witness", sp="r", spk="b", epk="c")
    seen: list[dict[str, Any]] = []
    more = ""
    while True:
        filter_ = quote("PartitionKey ge ''")
        target = f"/Witness()?$filter={filter_}&$top=2{more}&{sas}"
        answer = witness.exchange(witness.unsigned("GET", target))
        assert answer.status == 200
        seen += json.loads(answer.body)["value"]
        token = [
            (name.removeprefix("x-ms-continuation-"), value)
            for name, value in answer.headers.items()
            if "continuation" in name
        ]
        if not token:
            break
        assert decoded(dict(token)["nextpartitionkey"]) in "bc"
        names = {"nextpartitionkey": "NextPartitionKey", "nextrowkey": "NextRowKey"}
        more = "".join(f"&{names[name]}={value}" for name, value in token)

    assert [(each["PartitionKey"], each["RowKey"]) for each in seen] == [
        *(("b", row) for row in "345"),
        *(("c", row) for row in "678"),
    ]


def decoded(token: str) -> str:
    _, _, text = token.split("!")
    return base64.b64decode(text.replace("-", "=")).decode()


def test_continuation_from_outside_grants_nothing(witness: Service) -> None:
    sas = witness.table_sas("Witness", sp="r", spk="b", epk="b")
    before = f"/Witness()?NextPartitionKey=1!4!YQ--&NextRowKey=1!4!MA--&{sas}"
    behind = f"/Witness()?NextPartitionKey=1!4!ZA--&NextRowKey=1!4!OQ--&{sas}"

    from_before = witness.exchange(witness.unsigned("GET", before))
    from_behind = witness.exchange(witness.unsigned("GET", behind))

    assert [each["RowKey"] for each in json.loads(from_before.body)["value"]] == ["3", "4", "5"]
    assert from_behind.told == "200"
    assert json.loads(from_behind.body)["value"] == []


def test_keys_of_a_body_never_move_a_write(witness: Service) -> None:
    elsewhere = "/Other(PartitionKey='z',RowKey='z')"
    body = json.dumps({"PartitionKey": "a", "RowKey": "0", "X": 1})

    must(witness, "204", witness.signed("PUT", elsewhere, JSON, body))

    written = json.loads(must(witness, "200", witness.signed("GET", "/Other()")).body)["value"]
    assert [(each["PartitionKey"], each["RowKey"]) for each in written] == [("z", "z")]
    must(witness, "204", witness.signed("DELETE", elsewhere, {"If-Match": "*"}))


def test_deleted_policy_ends_its_tokens_at_once(service: Service) -> None:
    policy = (
        "<SignedIdentifiers><SignedIdentifier><Id>p</Id><AccessPolicy>"
        f"<Expiry>{in_seconds(3600)}</Expiry><Permission>r</Permission>"
        "</AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    )
    must(service, "204", service.signed("PUT", "/Other?comp=acl", {}, policy))
    target = f"/Other()?{service.table_sas('Other', si='p', se='')}"
    must(service, "200", service.unsigned("GET", target))

    must(service, "204", service.signed("PUT", "/Other?comp=acl", {"Content-Length": "0"}))

    must(service, "403 AuthenticationFailed", service.unsigned("GET", target))


def test_token_and_key_together_are_refused(witness: Service) -> None:
    target = f"{ENTITY}?{witness.table_sas('Witness', sp='r')}"

    must(witness, "400 InvalidAuthenticationInfo", witness.signed("GET", target))


# Row 38: slow clients


@pytest.mark.proof
def test_slow_clients_are_let_go_and_disturb_nobody(witness: Service) -> None:
    # How long they have is shown in test_http.py, by a clock that no busy machine holds up.
    started = time.monotonic()
    address = ("127.0.0.1", witness.port)
    slow = [socket.create_connection(address, PATIENCE_SECONDS) for _ in range(300)]
    try:
        for connection in slow:
            connection.sendall(b"GET /devstoreaccount1/Witness HTTP/1.1\r\n")
        must(witness, "200", witness.signed("GET", ENTITY))
        assert select.select(slow, [], [], 0)[0] == [], "others were served after them"
        while time.monotonic() - started < 5:
            must(witness, "200", witness.signed("GET", ENTITY))
            time.sleep(0.1)
        for connection in slow:
            connection.sendall(b"X")
        while slow:
            must(witness, "200", witness.signed("GET", ENTITY))
            answered, _, _ = select.select(slow, [], [], 0.2)
            for connection in answered:
                assert connection.recv(64).startswith(b"HTTP/1.1 408 ")
                connection.close()
                slow.remove(connection)
    finally:
        for connection in slow:
            connection.close()


# Row 39: requests that a web page could make


EVIL = {"Origin": "http://evil.example"}
FROM_PAGES: list[tuple[dict[str, str], str]] = [
    (EVIL, "403 AuthorizationFailure"),
    ({"Sec-Fetch-Site": "cross-site"}, "403 AuthorizationFailure"),
    (EVIL | {"Content-Type": "text/plain"}, "403 AuthorizationFailure"),
    ({"Origin": "null"}, "403 AuthorizationFailure"),
    ({"Host": "evil.example"}, "400 InvalidHeaderValue"),
    ({"Host": "127.0.0.1.evil.example"}, "400 InvalidHeaderValue"),
    ({"Host": "devstoreaccount1.table.evil.example"}, "400 InvalidHeaderValue"),
    ({"Host": "localhost@evil.example"}, "400 InvalidHeaderValue"),
]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "MERGE", "OPTIONS"])
@pytest.mark.parametrize(("headers", "expected"), FROM_PAGES)
def test_page_of_another_origin_cannot_use_the_development_account(
    method: str, headers: dict[str, str], expected: str, witness: Service
) -> None:
    target = f"/Witness?{witness.account_sas()}"
    if method == "OPTIONS":
        expected = expected.replace("AuthorizationFailure", "CorsPreflightFailure")

    data = witness.unsigned(method, target, JSON | headers, an_entity("z", "z"))
    if headers.get("Host", "").startswith("devstoreaccount1."):
        data = data.replace(b" /devstoreaccount1/", b" /", 1)

    assert witness.exchange(data).told == expected


def test_page_of_this_machine_may_use_the_development_account(witness: Service) -> None:
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Host": f"localhost:{witness.port}"}):
        must(witness, "200", witness.signed("GET", ENTITY, headers))


@pytest.fixture
def own(service: Service) -> Iterator[Service]:
    """An account with a key that web pages do not know, and one CORS rule."""
    own = Service(service.port, OWN_ACCOUNT, OWN_KEY)
    rule = (
        "<CorsRule><AllowedMethods>GET</AllowedMethods>"
        "<AllowedOrigins>http://good.example</AllowedOrigins><AllowedHeaders>*</AllowedHeaders>"
        "<ExposedHeaders>*</ExposedHeaders><MaxAgeInSeconds>5</MaxAgeInSeconds></CorsRule>"
    )
    target = "/?restype=service&comp=properties"
    front, back = "<StorageServiceProperties><Cors>", "</Cors></StorageServiceProperties>"
    must(own, "202", own.signed("PUT", target, {}, front + rule + back))
    yield own
    must(own, "202", own.signed("PUT", target, {}, front + back))


def test_account_with_its_own_key_follows_its_cors_rules_only(own: Service) -> None:
    for headers in (EVIL, {"Sec-Fetch-Site": "cross-site"}, {"Host": "tables.example"}):
        answer = must(own, "200", own.signed("GET", "/Tables", headers))
        assert "access-control-allow-origin" not in answer.headers

    good = must(own, "200", own.signed("GET", "/Tables", {"Origin": "http://good.example"}))
    assert good.headers["access-control-allow-origin"] == "http://good.example"

    asked = {"Access-Control-Request-Method": "GET"}
    must(own, "403 CorsPreflightFailure", own.unsigned("OPTIONS", "/Tables", EVIL | asked))
    allowed = own.unsigned("OPTIONS", "/Tables", {"Origin": "http://good.example"} | asked)
    must(own, "200", allowed)


# Row 40: bodies that nobody wants


def test_body_that_is_too_large_is_refused_before_it_is_sent(witness: Service) -> None:
    head = with_lines(f"Content-Length: {10 * 2**30}\r\nExpect: 100-continue\r\n")(witness)
    with socket.create_connection(("127.0.0.1", witness.port), PATIENCE_SECONDS) as connection:
        connection.sendall(head)
        first = connection.recv(64)

    assert first.startswith(b"HTTP/1.1 413 ")


def test_client_that_sends_13_mib_first_hears_why_not(witness: Service) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", witness.port, timeout=PATIENCE_SECONDS)
    connection.request("POST", "/devstoreaccount1/Witness", bytes(13 * 2**20), JSON)
    response = connection.getresponse()
    body = response.read()
    connection.close()

    assert response.status == 413
    assert json.loads(body)["odata.error"]["code"] == "RequestBodyTooLarge"


def test_client_that_sends_too_much_slowly_hears_why_not(witness: Service) -> None:
    piece = bytes(2**18)
    with socket.create_connection(("127.0.0.1", witness.port), PATIENCE_SECONDS) as connection:
        connection.sendall(with_lines(f"Content-Length: {20 * len(piece)}\r\n")(witness))
        for _ in range(20):
            connection.sendall(piece)
            time.sleep(repeat(0.03, 0.2, 0.2))
        answer = read_answer(connection)

    assert answer.told == "413 RequestBodyTooLarge"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_bodies_of_clients_that_left_or_rest_are_let_go(live: LiveServer, witness: Service) -> None:
    size = 4 * 2**20
    before = memory_bytes(live)
    address = ("127.0.0.1", witness.port)
    clients = [socket.create_connection(address, PATIENCE_SECONDS) for _ in range(40)]
    for connection in clients[:20]:
        connection.sendall(with_lines(f"Content-Length: {size}\r\n", bytes(size - 1))(witness))
        connection.close()
    for connection in clients[20:]:
        connection.sendall(witness.unsigned("POST", "/Witness", JSON, bytes(size)))
        assert read_answer(connection).told == "401 NoAuthenticationInformation"

    deadline = time.monotonic() + PATIENCE_SECONDS
    while memory_bytes(live) - before > 10 * size and time.monotonic() < deadline:
        time.sleep(0.1)
    grown = memory_bytes(live) - before
    for connection in clients[20:]:
        connection.close()

    assert grown < 10 * size


def memory_bytes(live: LiveServer) -> int:
    status = Path(f"/proc/{live.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_what_follows_a_refused_request_is_not_served(witness: Service) -> None:
    smuggled = witness.signed("DELETE", ENTITY, {"If-Match": "*"})
    lines = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"
    with socket.create_connection(("127.0.0.1", witness.port), PATIENCE_SECONDS) as connection:
        connection.sendall(with_lines(lines, b"0\r\n\r\n")(witness) + smuggled)
        assert read_answer(connection).told == INPUT
        assert connection.recv(1) == b""


# Values that are given back


def test_client_request_id_is_given_back_only_if_it_is_plain(witness: Service) -> None:
    plain = must(witness, "200", with_headers(**{"x-ms-client-request-id": "a b;c"})(witness))
    assert plain.headers["x-ms-client-request-id"] == "a b;c"

    for text in ("\xe9", "a\tb", "a" * 1025):
        answer = must(witness, "200", with_headers(**{"x-ms-client-request-id": text})(witness))
        assert "x-ms-client-request-id" not in answer.headers


def test_version_that_was_refused_is_not_given_back(witness: Service) -> None:
    answer = witness.exchange(with_headers(**{"x-ms-version": "<newest>"})(witness))

    assert answer.headers["x-ms-version"] == "2019-02-02"


def test_key_with_a_line_end_cannot_be_addressed(witness: Service) -> None:
    """Location and continuation print keys, so none may hold what ends a line."""
    for escape in ("%0D%0A", "%00", "%7F", "%C2%85"):
        target = f"/Witness(PartitionKey='a{escape}X-Evil:1',RowKey='0')"
        answer = witness.exchange(witness.signed("PUT", target, JSON, "{}"))
        assert answer.status == 400
        assert "x-evil" not in answer.headers


def test_content_id_of_a_part_cannot_start_another_header(witness: Service) -> None:
    body = {"PartitionKey": "z", "RowKey": "z"}
    for evil in ("1\rX-Evil: 1", "1\nX-Evil\x00: 1", "1\x0bX-Evil: 1"):
        part = a_part("POST", "/Witness", body, {"Content-ID": evil})
        assert witness.exchange(batched(part)(witness)).told == INPUT


def test_same_answer_for_a_wrong_signature_and_an_unknown_account(witness: Service) -> None:
    wrong = witness.exchange(witness.signed("GET", ENTITY, key=OWN_KEY))
    unknown = witness.exchange(of_unknown_account(witness))

    assert wrong.headers.keys() == unknown.headers.keys()
    assert first_line(wrong) == first_line(unknown)


def first_line(answer: Answer) -> str:
    text: str = json.loads(answer.body)["odata.error"]["message"]["value"]
    return text.partition("\n")[0]
