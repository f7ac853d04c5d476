"""What SDKs hide: the exact bytes, headers and addresses of answers on a live server."""

import json
import re
import ssl
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from wire.conftest import Certificate, StartServer
from wire.live import LiveServer
from wire.raw import JSON, Answer, RawClient

GUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z"
MINIMAL = "application/json;odata=minimalmetadata;streaming=true;charset=utf-8"
LEVELS = ("nometadata", "minimalmetadata", "fullmetadata")
KEYS = "(PartitionKey='p',RowKey='r')"
STALE = "W/\"datetime'2001-02-03T04%3A05%3A06.7Z'\""


def accepting(level: str) -> dict[str, str]:
    return {"Accept": f"application/json;odata={level}", "Content-Type": "application/json"}


@pytest.fixture
def table(raw: RawClient, name: str) -> str:
    """A table that exists and is empty."""
    assert raw.send("POST", "/Tables", json.dumps({"TableName": name}), JSON).status == 201
    return name


def insert(raw: RawClient, table: str, **properties: Any) -> Answer:
    body = {"PartitionKey": "p", "RowKey": "r"} | properties
    answer = raw.send("POST", f"/{table}", json.dumps(body), JSON)
    assert answer.status == 201
    return answer


# Headers


def test_every_answer_has_the_common_headers(raw: RawClient) -> None:
    answer = raw.send("GET", "/Tables", headers={"x-ms-client-request-id": "mine 1"})

    assert re.fullmatch(GUID, answer["x-ms-request-id"])
    assert answer["x-ms-version"] == "2019-02-02"
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", answer["Date"])
    assert answer["Server"] == "Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Cache-Control"] == "no-cache"
    assert answer["x-ms-client-request-id"] == "mine 1"
    assert answer["Content-Type"] == MINIMAL
    assert "DataServiceVersion" not in answer.names


def test_each_request_has_an_id_of_its_own(raw: RawClient) -> None:
    first, second = raw.send("GET", "/Tables"), raw.send("GET", "/Tables")

    assert first["x-ms-request-id"] != second["x-ms-request-id"]


@pytest.mark.parametrize("target", ["/{}?comp=acl", "/?restype=service&comp=properties"])
def test_xml_answers_say_nothing_about_caches(raw: RawClient, table: str, target: str) -> None:
    answer = raw.send("GET", target.format(table))

    assert answer.status == 200
    assert answer["Content-Type"] == "application/xml"
    assert "Cache-Control" not in answer.names


@pytest.mark.parametrize("version", ["2009-09-19", "2014-02-14", "2020-12-06", "2099-12-31"])
def test_any_version_is_served_and_echoed(raw: RawClient, version: str) -> None:
    answer = raw.send("GET", "/Tables", headers={"x-ms-version": version})

    assert (answer.status, answer["x-ms-version"]) == (200, version)


def test_a_client_request_id_of_odd_characters_is_not_echoed(raw: RawClient) -> None:
    answer = raw.send("GET", "/Tables", headers={"x-ms-client-request-id": "é" * 3})

    assert answer.status == 200
    assert "x-ms-client-request-id" not in answer.names


def test_an_answer_without_content_has_a_length_of_zero(raw: RawClient, table: str) -> None:
    answer = raw.send("PUT", f"/{table}{KEYS}", "{}", JSON)

    assert (answer.status, answer["Content-Length"], answer.body) == (204, "0", b"")
    assert "Content-Type" not in answer.names


# Tables


@pytest.mark.parametrize("collection", ["/Tables", "/Tables()"])
def test_creating_a_table_answers_with_its_element(
    raw: RawClient, name: str, collection: str
) -> None:
    answer = raw.send("POST", collection, json.dumps({"TableName": name}), JSON)

    assert (answer.status, answer.reason) == (201, "Created")
    assert answer["Location"] == f"{raw.root}/Tables('{name}')"
    assert "DataServiceId" not in answer.names
    assert "Preference-Applied" not in answer.names
    metadata = f"{raw.root}/$metadata#Tables/@Element"
    assert answer.body == f'{{"odata.metadata":"{metadata}","TableName":"{name}"}}'.encode()


def test_creating_a_table_without_content_names_it_twice(raw: RawClient, name: str) -> None:
    headers = JSON | {"Prefer": "return-no-content"}

    answer = raw.send("POST", "/Tables", json.dumps({"TableName": name}), headers)

    assert (answer.status, answer.body) == (204, b"")
    assert answer["Location"] == answer["DataServiceId"] == f"{raw.root}/Tables('{name}')"
    assert answer["Preference-Applied"] == "return-no-content"


@pytest.mark.parametrize("collection", ["/Tables", "/Tables()"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_feed_of_tables_has_the_members_of_its_level(
    raw: RawClient, table: str, collection: str, level: str
) -> None:
    target = f"{collection}?$filter=TableName%20eq%20'{table}'"

    answer = raw.send("GET", target, headers=accepting(level))

    assert answer["Content-Type"] == f"application/json;odata={level};streaming=true;charset=utf-8"
    front = "" if level == "nometadata" else f'"odata.metadata":"{raw.root}/$metadata#Tables",'
    full = (
        f'"odata.type":"devstoreaccount1.Tables","odata.id":"{raw.root}/Tables(\'{table}\')",'
        f'"odata.editLink":"Tables(\'{table}\')",'
        if level == "fullmetadata"
        else ""
    )
    assert answer.body.decode() == f'{{{front}"value":[{{{full}"TableName":"{table}"}}]}}'


def test_one_table_is_an_element_and_no_feed(raw: RawClient, table: str) -> None:
    answer = raw.send("GET", f"/Tables('{table}')")

    metadata = f"{raw.root}/$metadata#Tables/@Element"
    assert answer.status == 200
    assert answer.body == f'{{"odata.metadata":"{metadata}","TableName":"{table}"}}'.encode()


def test_one_table_is_found_without_case_and_shown_with_its_own(raw: RawClient, table: str) -> None:
    assert raw.send("GET", f"/Tables('{table.lower()}')").json["TableName"] == table


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("missing", ["Nothing", "no-name", "tables", "ab"])
def test_what_is_no_table_is_not_found(raw: RawClient, method: str, missing: str) -> None:
    answer = raw.send(method, f"/Tables('{missing}')")

    assert (answer.status, answer.code) == (404, "ResourceNotFound")
    assert answer.first_line == "The specified resource does not exist."


# Entities at the three levels


ALL_TYPES = {
    "Text": 'é\u2028"\\/',
    "Small": -7,
    "Large@odata.type": "Edm.Int64",
    "Large": "64",
    "Whole@odata.type": "Edm.Double",
    "Whole": 5,
    "Endless@odata.type": "Edm.Double",
    "Endless": "Infinity",
    "Truth": True,
    "Moment@odata.type": "Edm.DateTime",
    "Moment": "2008-07-10T00:00:00.1200000Z",
    "Id@odata.type": "Edm.Guid",
    "Id": "C9DA6455-213D-42C9-9A79-3E9149A57833",
    "Bytes@odata.type": "Edm.Binary",
    "Bytes": "AAEC/w==",
}
ANNOTATED = {
    "Large": "Edm.Int64",
    "Endless": "Edm.Double",
    "Moment": "Edm.DateTime",
    "Id": "Edm.Guid",
    "Bytes": "Edm.Binary",
}
SHOWN = {
    "Text": 'é\u2028"\\/',
    "Small": -7,
    "Large": "64",
    "Whole": 5.0,
    "Endless": "Infinity",
    "Truth": True,
    "Moment": "2008-07-10T00:00:00.12Z",
    "Id": "c9da6455-213d-42c9-9a79-3e9149a57833",
    "Bytes": "AAEC/w==",
}


def members_of(level: str, front: list[str]) -> list[str]:
    names = [*front, "PartitionKey", "RowKey"]
    names += ["Timestamp@odata.type", "Timestamp"] if level == "fullmetadata" else ["Timestamp"]
    for name in SHOWN:
        if level != "nometadata" and name in ANNOTATED:
            names.append(f"{name}@odata.type")
        names.append(name)
    return names


FRONTS: dict[str, list[str]] = {
    "nometadata": [],
    "minimalmetadata": ["odata.etag"],
    "fullmetadata": ["odata.type", "odata.id", "odata.etag", "odata.editLink"],
}


@pytest.mark.parametrize("level", LEVELS)
def test_an_entity_has_its_members_in_the_order_of_the_service(
    raw: RawClient, table: str, level: str
) -> None:
    insert(raw, table, **ALL_TYPES)

    answer = raw.send("GET", f"/{table}{KEYS}", headers=accepting(level))

    shown = answer.json
    front = [] if level == "nometadata" else ["odata.metadata"]
    assert list(shown) == members_of(level, front + FRONTS[level])
    assert {name: shown[name] for name in SHOWN} == SHOWN
    assert b'"Whole":5.0' in answer.body
    if level != "nometadata":
        assert shown["odata.metadata"] == f"{raw.root}/$metadata#{table}/@Element"
        assert shown["odata.etag"] == answer["ETag"]
        annotations = {name: shown[f"{name}@odata.type"] for name in ANNOTATED}
        assert annotations == ANNOTATED
    if level == "fullmetadata":
        assert shown["odata.type"] == f"devstoreaccount1.{table}"
        assert shown["odata.id"] == f"{raw.root}/{table}{KEYS}"
        assert shown["odata.editLink"] == f"{table}{KEYS}"
        assert shown["Timestamp@odata.type"] == "Edm.DateTime"


@pytest.mark.parametrize("entity_set", ["{}", "{}()"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_feed_has_the_entities_of_its_level(
    raw: RawClient, table: str, level: str, entity_set: str
) -> None:
    insert(raw, table, **ALL_TYPES)

    shown = raw.send("GET", "/" + entity_set.format(table), headers=accepting(level)).json

    is_bare = level == "nometadata"
    assert list(shown) == (["value"] if is_bare else ["odata.metadata", "value"])
    assert is_bare or shown["odata.metadata"] == f"{raw.root}/$metadata#{table}"
    assert [list(entity) for entity in shown["value"]] == [members_of(level, FRONTS[level])]


def test_an_empty_feed_is_an_empty_list(raw: RawClient, table: str) -> None:
    answer = raw.send("GET", f"/{table}()", headers=accepting("nometadata"))

    assert answer.body == b'{"value":[]}'


@pytest.mark.parametrize("level", LEVELS)
def test_the_echo_of_an_insert_is_what_a_read_shows(raw: RawClient, table: str, level: str) -> None:
    body = json.dumps({"PartitionKey": "p", "RowKey": "r"} | ALL_TYPES)

    echo = raw.send("POST", f"/{table}", body, accepting(level))

    assert echo.body == raw.send("GET", f"/{table}{KEYS}", headers=accepting(level)).body


def test_the_etag_is_the_timestamp_in_other_letters(raw: RawClient, table: str) -> None:
    answer = insert(raw, table)

    timestamp = answer.json["Timestamp"].replace(":", "%3A")
    assert answer["ETag"] == answer.json["odata.etag"] == f"W/\"datetime'{timestamp}'\""


@pytest.mark.parametrize(
    ("level", "members"),
    [
        ("nometadata", ["Large", "Absent", "RowKey"]),
        (
            "minimalmetadata",
            ["odata.metadata", "odata.etag", "Large@odata.type", "Large", "Absent", "RowKey"],
        ),
    ],
)
def test_select_keeps_the_order_asked_for_and_shows_what_is_absent_as_null(
    raw: RawClient, table: str, level: str, members: list[str]
) -> None:
    insert(raw, table, **ALL_TYPES)

    target = f"/{table}{KEYS}?$select=Large,%20Absent,RowKey"
    shown = raw.send("GET", target, headers=accepting(level)).json

    assert list(shown) == members
    assert shown["Absent"] is None
    assert level == "nometadata" or shown["odata.metadata"] == (
        f"{raw.root}/$metadata#{table}/@Element&$select=Large,Absent,RowKey"
    )


def test_a_selected_feed_says_so_in_its_metadata(raw: RawClient, table: str) -> None:
    shown = raw.send("GET", f"/{table}()?$select=A,B").json

    assert shown == {"odata.metadata": f"{raw.root}/$metadata#{table}&$select=A,B", "value": []}


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        ("application/json;odata=fullmetadata", "fullmetadata"),
        ("application/json; odata=nometadata", "nometadata"),
        ("Application/JSON;ODATA=NoMetadata", "nometadata"),
        ("application/json", "minimalmetadata"),
        ("*/*", "minimalmetadata"),
        ("application/json;odata=minimalmetadata, application/json", "minimalmetadata"),
    ],
)
def test_accept_is_read_with_tolerance(raw: RawClient, asked: str, level: str) -> None:
    assert (
        f"odata={level};" in raw.send("GET", "/Tables", headers={"Accept": asked})["Content-Type"]
    )


@pytest.mark.parametrize("option", ["$format", "%24format"])
def test_format_rules_over_accept(raw: RawClient, table: str, option: str) -> None:
    target = f"/{table}()?{option}=application%2Fjson%3Bodata%3Dfullmetadata"

    answer = raw.send("GET", target, headers=accepting("nometadata"))

    assert "odata=fullmetadata;" in answer["Content-Type"]


@pytest.mark.parametrize(
    "headers", [{"Accept": "application/atom+xml"}, {"Content-Type": "application/atom+xml"}]
)
def test_atom_is_refused(raw: RawClient, table: str, headers: dict[str, str]) -> None:
    answer = raw.send("POST", f"/{table}", '{"PartitionKey":"p","RowKey":"r"}', headers)

    assert (answer.status, answer.code) == (415, "AtomFormatNotSupported")


def test_an_insert_names_the_address_of_the_entity(raw: RawClient, table: str) -> None:
    body = json.dumps({"PartitionKey": "A'aaa\"_bbbb2", "RowKey": "ü +%"})

    answer = raw.send("POST", f"/{table}?timeout=20", body, JSON)

    expected = f"{table}(PartitionKey='A''aaa%22_bbbb2',RowKey='%C3%BC%20%2B%25')"
    assert answer["Location"] == f"{raw.root}/{expected}"
    assert raw.send("GET", f"/{expected}").status == 200


@pytest.mark.parametrize(
    ("preference", "status", "is_echoed"),
    [("return-no-content", 204, False), ("return-content", 201, True)],
)
def test_a_preference_is_followed_and_said_so(
    raw: RawClient, table: str, preference: str, status: int, *, is_echoed: bool
) -> None:
    headers = JSON | {"Prefer": preference}

    answer = raw.send("POST", f"/{table}", '{"PartitionKey":"p","RowKey":"r"}', headers)

    assert (answer.status, bool(answer.body)) == (status, is_echoed)
    assert answer["Preference-Applied"] == preference
    assert ("DataServiceId" in answer.names) is not is_echoed
    assert answer["Location"] == f"{raw.root}/{table}{KEYS}"
    again = raw.send("POST", f"/{table}", '{"PartitionKey":"p","RowKey":"r"}', headers)
    assert (again.status, again["Preference-Applied"]) == (409, preference)


# Verbs


@pytest.mark.parametrize(
    ("method", "tunnelled"),
    [("PATCH", None), ("MERGE", None), ("POST", "MERGE"), ("POST", "PATCH")],
)
def test_every_way_of_writing_merge_merges(
    raw: RawClient, table: str, method: str, tunnelled: str | None
) -> None:
    insert(raw, table, Kept=1)
    headers = JSON | {"If-Match": "*"} | ({"X-HTTP-Method": tunnelled} if tunnelled else {})

    answer = raw.send(method, f"/{table}{KEYS}", '{"Added":2}', headers)

    shown = raw.send("GET", f"/{table}{KEYS}")
    assert (answer.status, answer["ETag"]) == (204, shown["ETag"])
    assert (shown.json["Kept"], shown.json["Added"]) == (1, 2)


@pytest.mark.parametrize("tunnelled", ["PUT", "DELETE"])
def test_other_verbs_go_through_the_tunnel_too(raw: RawClient, table: str, tunnelled: str) -> None:
    insert(raw, table, Dropped=1)
    headers = JSON | {"If-Match": "*", "X-HTTP-Method": tunnelled}

    assert raw.send("POST", f"/{table}{KEYS}", "{}", headers).status == 204

    shown = raw.send("GET", f"/{table}{KEYS}")
    assert shown.status == (200 if tunnelled == "PUT" else 404)
    assert b"Dropped" not in shown.body


@pytest.mark.parametrize(
    ("method", "tunnelled", "code"),
    [
        ("PUT", "MERGE", "XMethodNotUsingPost"),
        ("POST", "COPY", "XMethodIncorrectValue"),
        ("POST", "GET", "XMethodIncorrectValue"),
    ],
)
def test_a_misused_tunnel_is_refused(
    raw: RawClient, table: str, method: str, tunnelled: str, code: str
) -> None:
    headers = JSON | {"X-HTTP-Method": tunnelled}

    answer = raw.send(method, f"/{table}{KEYS}", "{}", headers)

    assert (answer.status, answer.code) == (400, code)


@pytest.mark.parametrize(
    ("method", "target"),
    [("HEAD", "/Tables"), ("PUT", "/Tables"), ("POST", "/Tables('abc')"), ("POST", "/{}" + KEYS)],
)
def test_a_verb_out_of_place_is_not_allowed(
    raw: RawClient, table: str, method: str, target: str
) -> None:
    answer = raw.send(method, target.format(table), b"" if method == "HEAD" else b"{}", JSON)

    assert (answer.status, answer["x-ms-error-code"]) == (405, "MethodNotAllowed")


# Conditions: the table of writes and etags


@pytest.mark.parametrize("method", ["PUT", "PATCH", "MERGE"])
@pytest.mark.parametrize(
    ("condition", "exists", "status", "code"),
    [
        ("none", True, 204, None),
        ("none", False, 204, None),
        ("any", True, 204, None),
        ("any", False, 404, "ResourceNotFound"),
        ("match", True, 204, None),
        ("stale", True, 412, "UpdateConditionNotSatisfied"),
        ("stale", False, 404, "ResourceNotFound"),
    ],
)
def test_a_write_is_conditional_on_what_it_names(
    raw: RawClient,
    table: str,
    method: str,
    condition: str,
    status: int,
    code: str | None,
    *,
    exists: bool,
) -> None:
    etag = insert(raw, table, Old=1)["ETag"] if exists else ""
    given = {"none": {}, "any": {"If-Match": "*"}, "match": {"If-Match": etag}}
    headers = JSON | given.get(condition, {"If-Match": STALE})

    answer = raw.send(method, f"/{table}{KEYS}", '{"New":2}', headers)

    assert answer.status == status
    shown = raw.send("GET", f"/{table}{KEYS}")
    if code is None:
        assert shown["ETag"] == answer["ETag"] != etag
        assert shown.json["New"] == 2
        assert ("Old" in shown.json) is (exists and method != "PUT")
    else:
        assert answer.code == code
        assert shown.status == (200 if exists else 404)
        assert b"New" not in shown.body


@pytest.mark.parametrize(
    ("condition", "exists", "status", "code"),
    [
        (None, True, 400, "MissingRequiredHeader"),
        (None, False, 400, "MissingRequiredHeader"),
        ("*", True, 204, None),
        ("*", False, 404, "ResourceNotFound"),
        ("match", True, 204, None),
        (STALE, True, 412, "UpdateConditionNotSatisfied"),
        (STALE, False, 404, "ResourceNotFound"),
    ],
)
def test_a_delete_needs_a_condition(
    raw: RawClient,
    table: str,
    condition: str | None,
    status: int,
    code: str | None,
    *,
    exists: bool,
) -> None:
    etag = insert(raw, table)["ETag"] if exists else ""
    given = etag if condition == "match" else condition
    headers = {} if given is None else {"If-Match": given}

    answer = raw.send("DELETE", f"/{table}{KEYS}", headers=headers)

    assert answer.status == status
    assert "ETag" not in answer.names
    assert code is None or answer.code == code
    survives = exists and code is not None
    assert raw.send("GET", f"/{table}{KEYS}").status == (200 if survives else 404)


@pytest.mark.parametrize("etag", ["Malformed", '""W/"', 'W/"a", W/"b"', "", "W/unquoted"])
@pytest.mark.parametrize("method", ["PUT", "MERGE", "DELETE"])
def test_a_malformed_etag_is_refused(raw: RawClient, table: str, method: str, etag: str) -> None:
    insert(raw, table)

    answer = raw.send(method, f"/{table}{KEYS}", "{}", JSON | {"If-Match": etag})

    assert (answer.status, answer.code) == (400, "InvalidInput")
    assert answer.first_line.startswith(f"The etag value '{etag}' specified in one of the")


@pytest.mark.parametrize("etag", ['"strong"', 'W/"else"', "W/\"datetime'never'\""])
def test_an_etag_that_is_not_ours_does_not_match(raw: RawClient, table: str, etag: str) -> None:
    insert(raw, table)

    answer = raw.send("PUT", f"/{table}{KEYS}", "{}", JSON | {"If-Match": etag})

    assert (answer.status, answer.code) == (412, "UpdateConditionNotSatisfied")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_a_write_if_none_match_is_refused(raw: RawClient, table: str, method: str) -> None:
    headers = JSON | {"If-None-Match": "*", "If-Match": "*"}

    answer = raw.send(method, f"/{table}{KEYS}", "{}", headers)

    assert (answer.status, answer.code) == (400, "InvalidInput")


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match"])
def test_a_read_ignores_conditions(raw: RawClient, table: str, header: str) -> None:
    etag = insert(raw, table)["ETag"]

    for value in (etag, "*", STALE):
        assert raw.send("GET", f"/{table}{KEYS}", headers={header: value}).status == 200


def test_an_insert_ignores_conditions(raw: RawClient, table: str) -> None:
    body = '{"PartitionKey":"p","RowKey":"r"}'

    first = raw.send("POST", f"/{table}", body, JSON | {"If-Match": STALE})
    second = raw.send("POST", f"/{table}", body, JSON | {"If-Match": "*"})

    assert (first.status, second.status, second.code) == (201, 409, "EntityAlreadyExists")


# Addresses


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

    with urllib.request.urlopen(target, timeout=20) as answer:
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


# Errors


def test_an_error_in_json_has_code_text_request_and_time(raw: RawClient, table: str) -> None:
    answer = raw.send("GET", f"/{table}{KEYS}", headers=accepting("fullmetadata"))

    assert (answer.status, answer.reason) == (404, "Not Found")
    assert answer["x-ms-error-code"] == "ResourceNotFound"
    assert answer["Content-Type"].startswith("application/json;odata=fullmetadata;")
    assert re.fullmatch(
        r'\{"odata\.error":\{"code":"ResourceNotFound","message":\{"lang":"en-US","value":'
        rf'"The specified resource does not exist\.\\nRequestId:{answer["x-ms-request-id"]}'
        rf'\\nTime:{TIME}"\}}\}}\}}',
        answer.body.decode(),
    )


def test_an_error_takes_its_level_from_format_too(raw: RawClient, table: str) -> None:
    answer = raw.send("GET", f"/{table}{KEYS}?$format=application/json;odata=nometadata")

    assert "odata=nometadata;" in answer["Content-Type"]


@pytest.mark.parametrize(
    ("target", "headers"),
    [("/Missing?comp=acl", {}), (f"/Missing{KEYS}", {"Accept": "application/xml"})],
)
def test_an_error_in_xml_has_the_same_facts(
    raw: RawClient, target: str, headers: dict[str, str]
) -> None:
    answer = raw.send("GET", target, headers=headers)

    assert (answer.status, answer["Content-Type"]) == (404, "application/xml")
    root = ElementTree.fromstring(answer.body)
    space = "{http://schemas.microsoft.com/ado/2007/08/dataservices/metadata}"
    assert root.tag == f"{space}error"
    assert [child.tag for child in root] == [f"{space}code", f"{space}message"]
    assert root[0].text == answer["x-ms-error-code"]
    assert re.search(rf"\.\nRequestId:{GUID}\nTime:{TIME}$", root[1].text or "")


def test_who_is_not_let_in_gets_plain_json(raw: RawClient) -> None:
    forged = {"Authorization": "SharedKeyLite devstoreaccount1:Zm9yZ2Vk", "x-ms-date": ""}

    unknown = raw.send("GET", "/Tables", is_signed=False)
    wrong = raw.send("POST", "/$batch", "x", forged, is_signed=False)

    assert (unknown.status, unknown.code) == (401, "NoAuthenticationInformation")
    assert (wrong.status, wrong.code) == (403, "AuthenticationFailed")
    assert unknown["Content-Type"] == wrong["Content-Type"] == "application/json"
    assert wrong["x-ms-error-code"] == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("version", "status", "code"),
    [("2020-12-06", 401, "InvalidAuthenticationInfo"), ("2019-07-07", 403, "AuthenticationFailed")],
)
def test_a_bearer_token_is_challenged_where_the_version_knows_challenges(
    raw: RawClient, version: str, status: int, code: str
) -> None:
    headers = {"Authorization": "Bearer a.b.c", "x-ms-version": version}

    answer = raw.send("GET", "/Tables", headers=headers, is_signed=False)

    assert (answer.status, answer.code) == (status, code)
    assert ("WWW-Authenticate" in answer.names) is (status == 401)


def test_a_malformed_authorization_is_told_apart(raw: RawClient) -> None:
    answer = raw.send("GET", "/Tables", headers={"Authorization": "Who knows"}, is_signed=False)

    assert (answer.status, answer.code) == (400, "InvalidAuthenticationInfo")


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code", "text"),
    [
        ("POST", "/Tables", '{"TableName":"{T}"}', 409, "TableAlreadyExists", "The table specified already exists."),
        ("POST", "/Tables", '{"TableName":"a-b"}', 400, "InvalidResourceName", "The specifed resource name contains invalid characters."),
        ("POST", "/Tables", '{"TableName":"ab"}', 400, "OutOfRangeInput", "The specified resource name length is not within the permissible limits."),
        ("POST", "/Tables", '{"TableName":"TABLES"}', 400, "InvalidInput", "One of the request inputs is not valid."),
        ("POST", "/Nothing", '{"PartitionKey":"","RowKey":""}', 404, "TableNotFound", "The table specified does not exist."),
        ("GET", "/Nothing()", "", 404, "TableNotFound", "The table specified does not exist."),
        ("PUT", "/Nothing" + KEYS, "{}", 404, "TableNotFound", "The table specified does not exist."),
        ("GET", "/a-b()", "", 400, "InvalidResourceName", "The specifed resource name contains invalid characters."),
        ("POST", "/{T}", '{"RowKey":""}', 400, "PropertiesNeedValue", "The values are not specified for all properties in the entity."),
        ("POST", "/{T}", '{"PartitionKey":"", "RowKey":"", "A":1, "A":2}', 400, "DuplicatePropertiesSpecified", "A property is specified more than one time."),
        ("POST", "/{T}", '{"PartitionKey":"a/b", "RowKey":""}', 400, "OutOfRangeInput", "The 'PartitionKey' parameter of value 'a/b' is out of range."),
        ("POST", "/{T}", '{"PartitionKey":"", "RowKey":"", "1":2}', 400, "PropertyNameInvalid", "The property name is invalid."),
        ("POST", "/{T}", "{not json", 400, "InvalidInput", "An error occurred while processing this request."),
        ("GET", "/{T}()?$filter=aaa%20bbb%20ccc", "", 400, "InvalidInput", "Syntax error at position 7 in 'aaa bbb ccc'."),
        ("GET", "/{T}()?$filter=A%20eq%20null", "", 400, "InvalidInput", "One of the request inputs is not valid."),
        ("GET", "/{T}()?$top=1001", "", 400, "InvalidInput", "One of the request inputs is not valid."),
        ("GET", "/{T}()?$orderby=A", "", 501, "NotImplemented", "The requested operation is not implemented on the specified resource."),
        ("GET", "/{T}()?$filter=A%20eq%20B", "", 501, "NotImplemented", "The requested operation is not implemented on the specified resource."),
        ("GET", "/{T}()?NextPartitionKey=bad", "", 400, "InvalidInput", "One of the request inputs is not valid."),
        ("GET", "/{T}(PartitionKey='a%2Fb',RowKey='')", "", 400, "InvalidInput", "Bad Request - Error in query syntax."),
        ("GET", "/{T}(PartitionKey='a%23b',RowKey='')", "", 400, "OutOfRangeInput", "One of the request inputs is out of range."),
        ("GET", "/$metadata", "", 501, "NotImplemented", "The requested operation is not implemented on the specified resource."),
    ],
)  # fmt: skip
def test_a_refusal_has_the_status_code_and_text_of_the_service(
    raw: RawClient,
    table: str,
    method: str,
    target: str,
    body: str,
    status: int,
    code: str,
    text: str,
) -> None:
    answer = raw.send(method, target.replace("{T}", table), body.replace("{T}", table), JSON)

    assert (answer.status, answer.code, answer.first_line) == (status, code, text)


@pytest.mark.parametrize(
    "target",
    ["/{}?restype=service&comp=properties", "/{}?comp=else", "/?restype=service&comp=else"],
)
def test_comp_out_of_place_is_refused(raw: RawClient, table: str, target: str) -> None:
    answer = raw.send("GET", target.format(table))

    assert (answer.status, answer["x-ms-error-code"]) == (400, "InvalidQueryParameterValue")


# Pages


def test_a_continuation_names_the_first_entity_of_the_next_page(raw: RawClient, table: str) -> None:
    for row in ("", "b", "pkadca2e0d"):
        insert(raw, table, PartitionKey="pkadca2e0d", RowKey=row)

    first = raw.send("GET", f"/{table}()?$top=2")
    assert first["x-ms-continuation-NextPartitionKey"] == "1!16!cGthZGNhMmUwZA--"
    assert first["x-ms-continuation-NextRowKey"] == "1!16!cGthZGNhMmUwZA--"

    last = raw.send("GET", f"/{table}()?$top=2&NextPartitionKey=1!16!cGthZGNhMmUwZA--")
    assert [entity["RowKey"] for entity in last.json["value"]] == ["", "b"]
    rest = "NextPartitionKey=1!16!cGthZGNhMmUwZA--&NextRowKey=1!16!cGthZGNhMmUwZA--"
    final = raw.send("GET", f"/{table}()?$top=2&{rest}")
    assert [entity["RowKey"] for entity in final.json["value"]] == ["pkadca2e0d"]
    assert not any("continuation" in name for name in final.names)


def test_an_empty_key_in_a_continuation_is_no_empty_header(raw: RawClient, table: str) -> None:
    insert(raw, table, PartitionKey="a")
    insert(raw, table, PartitionKey="b", RowKey="")

    answer = raw.send("GET", f"/{table}()?$top=1")

    assert answer["x-ms-continuation-NextRowKey"] == "1!0!"


def test_a_page_of_no_entities_is_empty_and_final(raw: RawClient, table: str) -> None:
    insert(raw, table)

    answer = raw.send("GET", f"/{table}()?$top=0")

    assert (answer.status, answer.json["value"]) == (200, [])
    assert not any("continuation" in name for name in answer.names)


def test_a_query_explains_its_plan_when_asked(raw: RawClient, table: str) -> None:
    point = "$filter=PartitionKey%20eq%20'p'%20and%20RowKey%20eq%20'r'"
    headers = {"x-partita-explain": "true"}

    plans = [
        raw.send("GET", f"/{table}()?{query}", headers=headers)["x-partita-plan"]
        for query in (point, "$filter=PartitionKey%20eq%20'p'", "$filter=Age%20eq%201")
    ]

    assert [plan.split()[0] for plan in plans] == ["point", "partition", "table"]
    assert "x-partita-plan" not in raw.send("GET", f"/{table}()").names


# Batches


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
    boundary: str = answer["Content-Type"].removeprefix(front)
    return boundary


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


# Access policies and service properties


def test_policies_come_back_as_they_are_defined(raw: RawClient, table: str) -> None:
    put = (
        "<?xml version='1.0' encoding='utf-8'?><SignedIdentifiers>"
        "<SignedIdentifier><Id>all</Id><AccessPolicy><Start>2021-06-08T02:05:09Z</Start>"
        "<Expiry>2031-06-08</Expiry><Permission>raud</Permission></AccessPolicy></SignedIdentifier>"
        "<SignedIdentifier><Id>none</Id><AccessPolicy /></SignedIdentifier>"
        "<SignedIdentifier><Id>bare</Id></SignedIdentifier>"
        "<SignedIdentifier><Id>part</Id><AccessPolicy><Permission>r</Permission></AccessPolicy>"
        "</SignedIdentifier></SignedIdentifiers>"
    )

    assert (
        raw.send("PUT", f"/{table}?comp=acl", put, {"Content-Type": "application/xml"}).status
        == 204
    )

    assert raw.send("GET", f"/{table}?comp=acl").body.decode().partition("?>")[2] == (
        "<SignedIdentifiers><SignedIdentifier><Id>all</Id><AccessPolicy>"
        "<Start>2021-06-08T02:05:09.0000000Z</Start><Expiry>2031-06-08T00:00:00.0000000Z</Expiry>"
        "<Permission>raud</Permission></AccessPolicy></SignedIdentifier>"
        "<SignedIdentifier><Id>none</Id></SignedIdentifier>"
        "<SignedIdentifier><Id>bare</Id></SignedIdentifier>"
        "<SignedIdentifier><Id>part</Id><AccessPolicy><Permission>r</Permission></AccessPolicy>"
        "</SignedIdentifier></SignedIdentifiers>"
    )


def test_an_empty_body_clears_the_policies(raw: RawClient, table: str) -> None:
    one = "<SignedIdentifiers><SignedIdentifier><Id>a</Id></SignedIdentifier></SignedIdentifiers>"
    raw.send("PUT", f"/{table}?comp=acl", one)

    cleared = raw.send("PUT", f"/{table}?comp=acl", "")

    assert (cleared.status, cleared.body) == (204, b"")
    assert raw.send("GET", f"/{table}?comp=acl").body.endswith(b"<SignedIdentifiers />")


def test_service_properties_have_the_order_of_the_service(raw: RawClient) -> None:
    root = ElementTree.fromstring(raw.send("GET", "/?restype=service&comp=properties").body)

    assert [child.tag for child in root] == ["Logging", "HourMetrics", "MinuteMetrics", "Cors"]
    logging, hour = root[0], root[1]
    assert [child.tag for child in logging] == [
        "Version",
        "Read",
        "Write",
        "Delete",
        "RetentionPolicy",
    ]
    assert [child.tag for child in hour] == ["Version", "Enabled", "RetentionPolicy"]


# Browsers


CORS = (
    "<StorageServiceProperties><Cors><CorsRule><AllowedMethods>GET,PUT</AllowedMethods>"
    "<AllowedOrigins>https://good.example</AllowedOrigins>"
    "<AllowedHeaders>x-ms-*,content-type</AllowedHeaders><ExposedHeaders>x-ms-*</ExposedHeaders>"
    "<MaxAgeInSeconds>60</MaxAgeInSeconds></CorsRule></Cors></StorageServiceProperties>"
)


@pytest.fixture
def with_cors(start_server: StartServer) -> RawClient:
    """A server of its own whose account lets pages of https://good.example in."""
    client = RawClient(start_server("--in-memory").endpoint)
    assert client.send("PUT", "/?restype=service&comp=properties", CORS).status == 202
    return client


def preflight(client: RawClient, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.send("OPTIONS", "/Any", headers=named, is_signed=False)


def test_cross_origin_rules_answer_preflights_and_dress_answers(with_cors: RawClient) -> None:
    good = {"Origin": "https://good.example"}

    allowed = preflight(
        with_cors,
        **good,
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers="x-ms-date,content-type",
    )
    assert allowed.status == 200
    assert allowed["Access-Control-Allow-Origin"] == "https://good.example"
    assert allowed["Access-Control-Allow-Methods"] == "PUT"
    assert allowed["Access-Control-Allow-Headers"] == "x-ms-date,content-type"
    assert allowed["Access-Control-Max-Age"] == "60"
    assert allowed["Access-Control-Allow-Credentials"] == "true"

    refused = [
        preflight(with_cors, **good, Access_Control_Request_Method="DELETE"),
        preflight(with_cors, Origin="https://bad.example", Access_Control_Request_Method="GET"),
        preflight(
            with_cors,
            **good,
            Access_Control_Request_Method="GET",
            Access_Control_Request_Headers="cookie",
        ),
    ]
    assert [(each.status, each.code) for each in refused] == [(403, "CorsPreflightFailure")] * 3
    assert preflight(with_cors, **good).status == 403
    assert preflight(with_cors).status == 400

    actual = with_cors.send("GET", "/Tables", headers=good)
    assert actual["Access-Control-Allow-Origin"] == "https://good.example"
    assert actual["Access-Control-Expose-Headers"] == "x-ms-*"
    assert actual["Access-Control-Allow-Credentials"] == "true"
    assert actual["Vary"] == "Origin"

    plain = with_cors.send("GET", "/Tables")
    assert plain["Vary"] == "Origin"
    assert "Access-Control-Allow-Origin" not in plain.names


def test_a_foreign_page_cannot_use_the_well_known_key(raw: RawClient) -> None:
    answers = [
        raw.send("GET", "/Tables", headers={"Origin": "https://evil.example"}),
        raw.send("GET", "/Tables", headers={"Sec-Fetch-Site": "cross-site"}),
        raw.send("GET", "/Tables", headers={"Host": "evil.example"}),
    ]

    assert [answer.status for answer in answers] == [403, 403, 400]


def test_accounts_have_their_own_keys_tables_and_rules(
    start_server: StartServer, tmp_path: Path
) -> None:
    settings = tmp_path / "two.toml"
    keys = {"first": "Zmlyc3Qga2V5", "second": "c2Vjb25kIGtleQ=="}
    lines = [f'[[accounts]]\nname = "{name}"\nkey = "{key}"\n' for name, key in keys.items()]
    settings.write_text("".join(lines))
    origin = start_server("--in-memory", "--config", str(settings)).origin
    first, second = [RawClient(f"{origin}/{name}", key=key) for name, key in keys.items()]

    assert first.send("POST", "/Tables", '{"TableName":"Staff"}', JSON).status == 201

    assert second.send("GET", "/Tables").json["value"] == []
    assert RawClient(f"{origin}/second", key=keys["first"]).send("GET", "/Tables").status == 403
    foreign = first.send("GET", "/Tables", headers={"Origin": "https://evil.example"})
    assert (foreign.status, "Access-Control-Allow-Origin" in foreign.names) == (200, False)


# Beside the accounts


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_lies_outside_the_accounts(raw: RawClient, path: str) -> None:
    answer = raw.send_to("GET", path, is_signed=False)

    assert (answer.status, answer.body) == (200, b"ok\n")


def test_https_prints_https_addresses(start_server: StartServer, self_signed: Certificate) -> None:
    flags = ("--tls-cert", str(self_signed.certificate), "--tls-key", str(self_signed.key))
    live = start_server("--in-memory", *flags)
    context = ssl.create_default_context(cafile=str(self_signed.certificate))

    answer = RawClient(live.endpoint, context=context).send(
        "POST", "/Tables", '{"TableName":"Staff"}', JSON
    )

    assert live.endpoint.startswith("https://127.0.0.1:")
    assert answer["Location"] == f"{live.endpoint}/Tables('Staff')"
