"""Batches to the byte: clients match on the text of the answer."""

import json
import re

import pytest

from wire.raw import GUID, KEYS, MINIMAL, TIME, Answer, RawClient, insert


def a_part(request: str, *headers: str, body: str = "") -> str:
    return (
        "--changeset_c\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
        "\r\n" + "\r\n".join([f"{request} HTTP/1.1", *headers]) + f"\r\n\r\n{body}\r\n"
    )


def an_insert(raw: RawClient, table: str, row: str, *headers: str) -> str:
    body = json.dumps({"PartitionKey": "p", "RowKey": row})
    return a_part(f"POST {raw.root}/{table}", "Content-Type: application/json", *headers, body=body)


def send_batch(raw: RawClient, *parts: str) -> Answer:
    body = (
        "--batch_b\r\nContent-Type: multipart/mixed; boundary=changeset_c\r\n\r\n"
        + "".join(parts)
        + "--changeset_c--\r\n--batch_b--\r\n"
    )
    return raw.send("POST", "/$batch", body, {"Content-Type": "multipart/mixed; boundary=batch_b"})


def send_query(raw: RawClient, request: str) -> Answer:
    body = (
        "--batch_b\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
        f"{request} HTTP/1.1\r\nAccept: application/json;odata=minimalmetadata\r\n\r\n\r\n"
        "--batch_b--\r\n"
    )
    return raw.send("POST", "/$batch", body, {"Content-Type": "multipart/mixed; boundary=batch_b"})


def boundary_of(answer: Answer) -> str:
    assert (answer.status, answer.reason) == (202, "Accepted")
    front = "multipart/mixed; boundary="
    assert answer["Content-Type"].startswith(f"{front}batchresponse_")
    return answer["Content-Type"].removeprefix(front)


def changeset_of(answer: Answer) -> str:
    found = re.search(rf"boundary=(changesetresponse_{GUID})\r\n", answer.body.decode())
    assert found is not None
    return found[1]


def parts_of(answer: Answer) -> list[bytes]:
    return answer.body.split(f"--{changeset_of(answer)}".encode())[1:-1]


PART = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
FRONT = "X-Content-Type-Options: nosniff\r\nCache-Control: no-cache\r\n"


def test_the_answer_to_a_batch_is_byte_exact(raw: RawClient, table: str) -> None:
    insert(raw, table, RowKey="old")
    insert(raw, table, RowKey="gone")

    answer = send_batch(
        raw,
        an_insert(raw, table, "new", "Prefer: return-no-content"),
        a_part(
            f"PATCH {raw.root}/{table}(PartitionKey='p',RowKey='old')",
            "Content-Type: application/json",
            "If-Match: *",
            body='{"A":1}',
        ),
        a_part(f"DELETE {raw.root}/{table}(PartitionKey='p',RowKey='gone')", "If-Match: *"),
    )

    batch, changeset = boundary_of(answer), changeset_of(answer)
    new = f"{raw.root}/{table}(PartitionKey='p',RowKey='new')"
    etags = [
        raw.send("GET", f"/{table}(PartitionKey='p',RowKey='{row}')")["ETag"]
        for row in ("new", "old")
    ]
    assert answer.body.decode() == (
        f"--{batch}\r\nContent-Type: multipart/mixed; boundary={changeset}\r\n\r\n"
        f"--{changeset}\r\n{PART}HTTP/1.1 204 No Content\r\n{FRONT}"
        "Preference-Applied: return-no-content\r\nDataServiceVersion: 3.0;\r\n"
        f"Location: {new}\r\nDataServiceId: {new}\r\nETag: {etags[0]}\r\n\r\n\r\n"
        f"--{changeset}\r\n{PART}HTTP/1.1 204 No Content\r\n{FRONT}"
        f"DataServiceVersion: 1.0;\r\nETag: {etags[1]}\r\n\r\n\r\n"
        f"--{changeset}\r\n{PART}HTTP/1.1 204 No Content\r\n{FRONT}"
        "DataServiceVersion: 1.0;\r\n\r\n\r\n"
        f"--{changeset}--\r\n--{batch}--\r\n"
    )


def test_an_insert_in_a_batch_is_echoed_unless_told_otherwise(raw: RawClient, table: str) -> None:
    answer = send_batch(raw, an_insert(raw, table, "new"))

    shown = raw.send("GET", f"/{table}(PartitionKey='p',RowKey='new')")
    location = f"{raw.root}/{table}(PartitionKey='p',RowKey='new')"
    (part,) = parts_of(answer)
    assert part.decode() == (
        f"\r\n{PART}HTTP/1.1 201 Created\r\n{FRONT}Content-Type: {MINIMAL}\r\n"
        f"DataServiceVersion: 3.0;\r\nLocation: {location}\r\nETag: {shown['ETag']}\r\n\r\n"
        f"{shown.body.decode()}\r\n"
    )


@pytest.mark.parametrize("condition", [["If-Match: *"], []], ids=["update", "upsert"])
@pytest.mark.parametrize("verb", ["PUT", "MERGE", "PATCH"])
def test_a_part_that_prefers_content_is_answered_with_the_entity(
    raw: RawClient, table: str, verb: str, condition: list[str]
) -> None:
    insert(raw, table)

    answer = send_batch(
        raw,
        a_part(
            f"{verb} {raw.root}/{table}{KEYS}",
            "Content-Type: application/json",
            "Accept: application/json;odata=minimalmetadata",
            "Prefer: return-content",
            *condition,
            body='{"A":1}',
        ),
    )

    shown = raw.send("GET", f"/{table}{KEYS}")
    (part,) = parts_of(answer)
    assert part.decode() == (
        f"\r\n{PART}HTTP/1.1 200 OK\r\n{FRONT}Content-Type: {MINIMAL}\r\n"
        "Preference-Applied: return-content\r\nDataServiceVersion: 3.0;\r\n"
        f"ETag: {shown['ETag']}\r\n\r\n{shown.body.decode()}\r\n"
    )


def test_a_failed_batch_answers_with_its_one_failure(raw: RawClient, table: str) -> None:
    insert(raw, table, RowKey="b")

    quiet = "Prefer: return-no-content"
    answer = send_batch(raw, *[an_insert(raw, table, row, quiet) for row in "acbd"])

    batch, changeset = boundary_of(answer), changeset_of(answer)
    assert re.fullmatch(
        re.escape(
            f"--{batch}\r\nContent-Type: multipart/mixed; boundary={changeset}\r\n\r\n"
            f"--{changeset}\r\n{PART}HTTP/1.1 409 Conflict\r\n{FRONT}"
            "Preference-Applied: return-no-content\r\nDataServiceVersion: 3.0;\r\n"
            f"Content-Type: {MINIMAL}\r\n\r\n"
        )
        + r'\{"odata\.error":\{"code":"EntityAlreadyExists","message":\{"lang":"en-US","value":'
        rf'"2:The specified entity already exists\.\\nRequestId:{GUID}\\nTime:{TIME}"\}}\}}\}}'
        + re.escape(f"\r\n--{changeset}--\r\n--{batch}--\r\n"),
        answer.body.decode(),
    )
    shown = raw.send("GET", f"/{table}()").json["value"]
    assert [entity["RowKey"] for entity in shown] == ["b"]


@pytest.mark.parametrize(
    ("rows", "status", "prefix"),
    [(["b"], "409 Conflict", ""), (["a", "a"], "400 Bad Request", "1:")],
)
def test_a_lone_operation_fails_without_an_index(
    raw: RawClient, table: str, rows: list[str], status: str, prefix: str
) -> None:
    insert(raw, table, RowKey="b")

    answer = send_batch(raw, *[an_insert(raw, table, row) for row in rows])

    assert f"HTTP/1.1 {status}\r\n".encode() in answer.body
    assert f'"value":"{prefix}The '.encode() in answer.body


def test_a_content_id_is_echoed_where_it_belongs_to_the_request(raw: RawClient, table: str) -> None:
    quiet = "Prefer: return-no-content"

    answer = send_batch(
        raw, an_insert(raw, table, "a", quiet, "Content-ID: 7"), an_insert(raw, table, "b", quiet)
    )

    assert [b"Content-ID: 7\r\n" in part for part in parts_of(answer)] == [True, False]


def test_a_part_with_an_empty_if_match_is_unconditional(raw: RawClient, table: str) -> None:
    kind = "Content-Type: application/json"
    address = f"{raw.root}/{table}{KEYS}"

    upsert = send_batch(raw, a_part(f"PUT {address}", kind, "If-Match:", body='{"A":1}'))
    delete = send_batch(raw, a_part(f"DELETE {address}", "If-Match: "))

    assert b"HTTP/1.1 204" in parts_of(upsert)[0]
    assert b"HTTP/1.1 400" in parts_of(delete)[0]
    assert b"MissingRequiredHeader" in parts_of(delete)[0]
    assert raw.send("GET", f"/{table}{KEYS}").json["A"] == 1


@pytest.mark.parametrize("verb", ["MERGE {}", "POST {}"])
def test_merge_has_both_spellings_in_a_batch(raw: RawClient, table: str, verb: str) -> None:
    insert(raw, table, Kept=1)
    tunnel = ["X-HTTP-Method: MERGE"] if verb.startswith("POST") else []
    address = f"{raw.root}/{table}{KEYS}"

    answer = send_batch(
        raw, a_part(verb.format(address), "If-Match: *", *tunnel, body='{"Added":2}')
    )

    assert b"HTTP/1.1 204 No Content\r\n" in answer.body
    shown = raw.send("GET", f"/{table}{KEYS}").json
    assert (shown["Kept"], shown["Added"]) == (1, 2)


@pytest.mark.parametrize(
    "address",
    [
        "{root}/{table}{keys}?$format=application%2Fjson%3Bodata%3Dminimalmetadata",
        "http://elsewhere.example/devstoreaccount1/{table}{keys}",
        "/devstoreaccount1/{table}{keys}",
        "{table}{keys}",
    ],
)
def test_a_part_may_be_addressed_in_several_ways(raw: RawClient, table: str, address: str) -> None:
    target = address.format(root=raw.root, table=table, keys=KEYS)

    answer = send_batch(raw, a_part(f"PUT {target}", body='{"A":"100%25"}'))

    assert b"HTTP/1.1 204 No Content\r\n" in answer.body
    assert raw.send("GET", f"/{table}{KEYS}").json["A"] == "100%25"


def test_a_batch_in_the_spelling_of_the_javascript_sdk_is_read(raw: RawClient, table: str) -> None:
    body = (
        "--batch_1\r\ncontent-type: multipart/mixed; boundary=changeset_1\r\n\r\n\r\n"
        "--changeset_1\r\ncontent-type: application/http\r\n"
        "content-transfer-encoding: binary\r\n\r\n"
        f"PUT {raw.root}/{table}{KEYS} HTTP/1.1\r\naccept: application/json\r\n"
        'content-type: application/json\r\n\r\n\r\n{"A":1}\r\n'
        "--changeset_1\r\ncontent-type: application/http\r\n"
        "content-transfer-encoding: binary\r\n\r\n"
        f"DELETE {raw.root}/{table}(PartitionKey='p',RowKey='x') HTTP/1.1\r\nif-match: *\r\n\r\n"
        "\r\n\r\n--changeset_1--\r\n--batch_1\r\n"
    )
    insert(raw, table, RowKey="x")

    answer = raw.send(
        "POST", "/%24batch", body, {"Content-Type": 'multipart/mixed; boundary="batch_1"'}
    )

    assert answer.body.count(b"HTTP/1.1 204 No Content\r\n") == 2
    assert raw.send("GET", f"/{table}{KEYS}").json["A"] == 1


def test_a_lone_get_in_a_batch_has_no_change_set(raw: RawClient, table: str) -> None:
    insert(raw, table, Age=3)

    answer = send_query(raw, f"GET {raw.root}/{table}{KEYS}")

    batch = boundary_of(answer)
    shown = raw.send("GET", f"/{table}{KEYS}")
    head, _, body = answer.body.decode().partition("\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert head == f"--{batch}\r\n{PART.strip()}"
    headers, _, body = body.partition("\r\n\r\n")
    assert body == f"{shown.body.decode()}\r\n--{batch}--\r\n"
    lines = headers.split("\r\n")
    assert {"DataServiceVersion: 3.0;", f"ETag: {shown['ETag']}"} <= set(lines)
    assert b"changesetresponse" not in answer.body


def test_a_lone_get_of_a_missing_entity_is_a_part_with_404(raw: RawClient, table: str) -> None:
    answer = send_query(raw, f"GET {raw.root}/{table}{KEYS}")

    assert boundary_of(answer)
    assert b"HTTP/1.1 404 Not Found\r\n" in answer.body
    assert b'"value":"0:The specified resource does not exist.' in answer.body


def test_a_lone_get_may_read_an_entity_set(raw: RawClient, table: str) -> None:
    insert(raw, table)

    answer = send_query(raw, f"GET {raw.root}/{table}()?$filter=RowKey%20eq%20'r'")

    assert b"HTTP/1.1 200 OK\r\n" in answer.body
    assert b'"RowKey":"r"' in answer.body


def test_operations_on_two_partitions_are_told_at_the_first_that_deviates(
    raw: RawClient, table: str
) -> None:
    answer = send_batch(
        raw,
        *[
            a_part(f"PUT {raw.root}/{table}(PartitionKey='{key}',RowKey='{row}')", body="{}")
            for row, key in enumerate("aab")
        ],
    )

    assert b"HTTP/1.1 400 Bad Request\r\n" in answer.body
    assert b'"code":"CommandsInBatchActOnDifferentPartitions"' in answer.body
    assert b'"2:All commands in a batch must operate on same entity group.' in answer.body
    assert raw.send("GET", f"/{table}()").json["value"] == []


def test_a_key_with_a_slash_in_a_batch_names_its_operation(raw: RawClient, table: str) -> None:
    answer = send_batch(
        raw,
        an_insert(raw, table, "a"),
        a_part(f"PUT {raw.root}/{table}(PartitionKey='p',RowKey='a%2Fb')", body="{}"),
    )

    assert b'"code":"InvalidInput"' in answer.body
    assert b'"1:Bad Request - Error in query syntax.' in answer.body


@pytest.mark.parametrize("blank", ["", "--changeset_c\r\n\r\n"])
def test_an_empty_change_set_is_answered_by_an_empty_one(raw: RawClient, blank: str) -> None:
    answer = send_batch(raw, blank)

    batch, changeset = boundary_of(answer), changeset_of(answer)
    assert answer.body.decode() == (
        f"--{batch}\r\nContent-Type: multipart/mixed; boundary={changeset}\r\n\r\n"
        f"--{changeset}--\r\n--{batch}--\r\n"
    )


def test_the_secondary_takes_no_batch(raw: RawClient) -> None:
    headers = {"Content-Type": "multipart/mixed; boundary=batch_b"}

    answer = raw.send_to("POST", "/devstoreaccount1-secondary/$batch", "--batch_b--", headers)

    assert (answer.status, answer.code) == (403, "InsufficientAccountPermissions")


def test_a_batch_too_large_is_refused_as_a_whole(raw: RawClient, table: str) -> None:
    body = "x" * (4 * 1024 * 1024 + 1)

    answer = raw.send("POST", "/$batch", body, {"Content-Type": "multipart/mixed; boundary=b"})

    assert (answer.status, answer.code) == (413, "RequestBodyTooLarge")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "--batch_b--\r\n",
        "--other\r\nContent-Type: application/http\r\n\r\nGET / HTTP/1.1\r\n\r\n--other--\r\n",
        "--batch_b\r\nContent-Type: text/plain\r\n\r\nhello\r\n--batch_b--\r\n",
    ],
)
def test_a_malformed_batch_is_refused_as_a_whole(raw: RawClient, body: str) -> None:
    headers = {"Content-Type": "multipart/mixed; boundary=batch_b"}

    answer = raw.send("POST", "/$batch", body, headers)

    assert (answer.status, answer.code) == (400, "InvalidInput")
