"""What SDKs hide: the exact bytes and headers of answers about tables and entities."""

import json
import re
from urllib.parse import urlsplit

import pytest

from support.live import LiveServer
from wire.hostile import Service
from wire.raw import GUID, JSON, KEYS, MINIMAL, RawClient, accepting, insert

LEVELS = ("nometadata", "minimalmetadata", "fullmetadata")


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
def test_a_path_that_is_not_a_table_is_not_found(raw: RawClient, method: str, missing: str) -> None:
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


WRITES_OF_ONE_ENTITY = {
    "update": ("PUT", {"If-Match": "*"}, {"Added"}),
    "merge": ("MERGE", {"If-Match": "*"}, {"Kept", "Added"}),
    "merge by PATCH": ("PATCH", {"If-Match": "*"}, {"Kept", "Added"}),
    "merge by a tunnel": ("POST", {"If-Match": "*", "X-HTTP-Method": "MERGE"}, {"Kept", "Added"}),
    "insert or replace": ("PUT", {}, {"Added"}),
    "insert or merge": ("MERGE", {}, {"Kept", "Added"}),
}


@pytest.mark.parametrize("write", WRITES_OF_ONE_ENTITY)
@pytest.mark.parametrize("level", LEVELS)
def test_a_write_that_prefers_content_is_answered_with_the_entity(
    raw: RawClient, table: str, write: str, level: str
) -> None:
    insert(raw, table, Kept=1)
    method, condition, names = WRITES_OF_ONE_ENTITY[write]
    headers = accepting(level) | condition | {"Prefer": "return-content"}

    answer = raw.send(method, f"/{table}{KEYS}", '{"Added":2}', headers)

    shown = raw.send("GET", f"/{table}{KEYS}", headers=accepting(level))
    assert (answer.status, answer.body) == (200, shown.body)
    assert answer["Content-Type"] == shown["Content-Type"]
    assert (answer["ETag"], answer["Preference-Applied"]) == (shown["ETag"], "return-content")
    assert not {"Location", "DataServiceId"} & set(answer.names)
    assert {"Kept", "Added"} & answer.json.keys() == names


def test_an_upsert_that_inserts_is_answered_with_the_entity_too(raw: RawClient, table: str) -> None:
    headers = JSON | {"Prefer": "return-content"}

    answer = raw.send("PUT", f"/{table}{KEYS}", '{"A":1}', headers)

    assert (answer.status, answer.json["A"]) == (200, 1)


@pytest.mark.parametrize("write", WRITES_OF_ONE_ENTITY)
def test_a_write_that_prefers_no_content_is_told_so(raw: RawClient, table: str, write: str) -> None:
    insert(raw, table, Kept=1)
    method, condition, _ = WRITES_OF_ONE_ENTITY[write]

    answer = raw.send(
        method, f"/{table}{KEYS}", "{}", JSON | condition | {"Prefer": "return-no-content"}
    )

    assert (answer.status, answer.body) == (204, b"")
    assert answer["Preference-Applied"] == "return-no-content"
    assert "DataServiceId" not in answer.names


def test_a_failed_update_says_that_its_preference_was_seen(raw: RawClient, table: str) -> None:
    headers = JSON | {"If-Match": "*", "Prefer": "return-content"}

    answer = raw.send("PUT", f"/{table}{KEYS}", "{}", headers)

    assert (answer.status, answer.code) == (404, "ResourceNotFound")
    assert answer["Preference-Applied"] == "return-content"


def test_a_token_that_may_not_read_gets_no_entity_from_a_merge(
    server: LiveServer, raw: RawClient, table: str
) -> None:
    insert(raw, table, Secret=1)
    hostile = Service(urlsplit(server.endpoint).port or 0)
    headers = JSON | {"If-Match": "*", "Prefer": "return-content"}

    def merge(letters: str) -> tuple[int, bool]:
        token = hostile.table_sas(table, sp=letters)
        answer = raw.send("MERGE", f"/{table}{KEYS}?{token}", "{}", headers, is_signed=False)
        return answer.status, b"Secret" in answer.body

    assert merge("u") == (204, False)
    assert merge("ru") == (200, True)


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


def test_an_empty_key_in_a_continuation_is_not_an_empty_header(raw: RawClient, table: str) -> None:
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
