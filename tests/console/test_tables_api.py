"""The API of tables: types, pages, plans, groups, jobs; over real sockets."""

import csv
import io
import json
import uuid
from typing import Any

import pytest
from azure.data.tables import TableClient, TableServiceClient

from console.api import Api
from support.live import LiveServer

TYPED = [
    ("Text", "s", "3750.0"),
    ("Whole", "i", "-2147483648"),
    ("Long", "l", "9223372036854775807"),
    ("Price", "d", "3750.0"),
    ("Odd", "d", "NaN"),
    ("Flag", "b", "true"),
    ("Time", "t", "2026-01-31T12:00:00.1234567Z"),
    ("Id", "g", "01234567-89ab-cdef-0123-456789abcdef"),
    ("Bytes", "x", "AAECAw=="),
]


@pytest.fixture
def api(console: LiveServer) -> Api:
    return Api.of(console)


@pytest.fixture
def table(console: LiveServer) -> TableClient:
    service = TableServiceClient.from_connection_string(console.connection_string)
    return service.create_table(f"T{uuid.uuid4().hex}")


def change(partition_key: str, row_key: str, kind: str = "insert", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "partition_key": partition_key, "row_key": row_key, **more}


def properties(*given: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind, "value": value} for name, kind, value in given]


def test_a_table_is_created_and_dropped_by_its_name(api: Api) -> None:
    name = f"T{uuid.uuid4().hex}"

    assert api.post("~/tables", {"name": name}).status == 200
    assert api.post("~/tables", {"name": name}).code == "TableAlreadyExists"
    assert api.post(f"~/tables/{name}/drop", {"confirm": name.lower()}).code == "ConsoleInput"
    assert name in api.get("~/tables").json["tables"]
    assert api.post(f"~/tables/{name}/drop", {"confirm": name}).status == 200
    assert name not in api.get("~/tables").json["tables"]


@pytest.mark.parametrize("name", ["1st", "a", "with space", "x" * 64, "tables"])
def test_a_name_that_is_not_one_of_a_table_is_refused(api: Api, name: str) -> None:
    assert api.post("~/tables", {"name": name}).status == 400


def test_every_type_survives_the_page_and_back(api: Api, table: TableClient) -> None:
    path = f"~/tables/{table.table_name}"

    api.post(f"{path}/entity", change("A", "1", properties=properties(*TYPED)))
    shown = api.get(f"{path}/entity", pk="A", rk="1").json

    assert [tuple(each) for each in shown["properties"]] == TYPED
    assert '"Price": 3750.0' in shown["raw"]
    stored = table.get_entity("A", "1")
    assert isinstance(stored["Price"], float)
    assert stored["Long"] == (9223372036854775807, "Edm.Int64")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("i", "2147483648"), ("i", "1.0"), ("l", "x"), ("b", "yes"), ("t", "noon"), ("g", "1")],
)
def test_a_value_that_does_not_fit_its_type_is_refused(
    api: Api, table: TableClient, kind: str, value: str
) -> None:
    sent = change("A", "1", properties=properties(("P", kind, value)))

    answer = api.post(f"~/tables/{table.table_name}/entity", sent)

    assert answer.status == 400
    assert list(table.list_entities()) == []


@pytest.mark.parametrize("name", ["RowKey", "Timestamp", "a@odata.type", "odata.etag"])
def test_a_property_cannot_have_the_name_of_a_system_property(
    api: Api, table: TableClient, name: str
) -> None:
    sent = change("A", "1", properties=properties((name, "s", "x")))

    assert api.post(f"~/tables/{table.table_name}/entity", sent).code == "ConsoleInput"


def test_pages_continue_where_the_last_one_ended(api: Api, table: TableClient) -> None:
    table.submit_transaction(
        [("create", {"PartitionKey": "A", "RowKey": f"{n:03}"}) for n in range(5)]
    )
    path = f"~/tables/{table.table_name}/entities"

    first = api.get(path, top="3").json
    rest = api.get(path, top="3", next_pk=first["next"][0], next_rk=first["next"][1]).json
    jumped = api.get(path, from_pk="A", from_rk="003").json

    assert [row[1] for row in first["rows"]] == ["000", "001", "002"]
    assert [row[1] for row in rest["rows"]] == ["003", "004"]
    assert rest["next"] is None
    assert [row[1] for row in jumped["rows"]] == ["003", "004"]


def test_columns_are_the_union_in_the_order_seen(api: Api, table: TableClient) -> None:
    table.create_entity({"PartitionKey": "A", "RowKey": "1", "X": 1})
    table.create_entity({"PartitionKey": "A", "RowKey": "2", "Y": "text", "X": 2.5})

    page = api.get(f"~/tables/{table.table_name}/entities").json

    assert page["names"] == ["X", "Y"]
    assert [row[4:] for row in page["rows"]] == [[["i", "1"], None], [["d", "2.5"], ["s", "text"]]]


def test_a_filter_is_planned_without_reading(api: Api) -> None:
    plan = api.get(
        "~/tables/Nothing/plan", filter="PartitionKey eq 'A' and RowKey ge '5' and Age gt 30"
    ).json

    assert plan["kind"] == "range"
    assert plan["residual"] == "Age gt 30"
    assert plan["is_scan"] is False
    assert "Age" in plan["advice"][0]["title"]


@pytest.mark.parametrize(
    ("text", "kind", "is_scan"),
    [
        ("", "table", False),
        ("Age gt 30", "table", True),
        ("RowKey eq '1'", "table", True),
        ("PartitionKey ge 'A' and PartitionKey lt 'B'", "multi-partition", False),
        ("PartitionKey ge 'A' and Age gt 3", "multi-partition", True),
        ("PartitionKey eq 'A' and RowKey eq '1'", "point", False),
        ("PartitionKey eq 'A' and PartitionKey eq 'B'", "nothing", False),
    ],
)
def test_only_a_search_over_partitions_is_a_scan(
    api: Api, text: str, kind: str, is_scan: bool
) -> None:
    plan = api.get("~/tables/Nothing/plan", filter=text).json

    assert (plan["kind"], plan["is_scan"]) == (kind, is_scan)


def test_a_filter_with_an_error_says_where(api: Api) -> None:
    plan = api.get("~/tables/Nothing/plan", filter="Age gt").json

    assert plan["kind"] == ""
    assert "position" in plan["error"]


def test_a_scan_must_be_asked_for(api: Api, table: TableClient) -> None:
    table.create_entity({"PartitionKey": "A", "RowKey": "1", "Age": 40})
    path = f"~/tables/{table.table_name}/entities"

    refused = api.get(path, filter="Age gt 30")
    asked = api.get(path, filter="Age gt 30", scan="1")

    assert refused.code == "ConsoleScanUnasked"
    assert len(asked.json["rows"]) == 1


def test_a_change_of_another_version_is_refused(api: Api, table: TableClient) -> None:
    path = f"~/tables/{table.table_name}/entity"
    etag = api.post(path, change("A", "1", properties=properties(("X", "i", "1")))).json["etag"]
    table.upsert_entity({"PartitionKey": "A", "RowKey": "1", "X": 2})

    answer = api.post(path, change("A", "1", "replace", etag=etag))

    assert (answer.status, answer.code) == (412, "UpdateConditionNotSatisfied")
    assert api.get(path, pk="A", rk="1").json["properties"] == [["X", "i", "2"]]


@pytest.mark.parametrize("etag", ["\u20ac", "*\r\nX-Other: 1", "*\x00"])
def test_an_etag_that_cannot_be_a_header_is_refused(
    api: Api, table: TableClient, etag: str
) -> None:
    table.create_entity({"PartitionKey": "p", "RowKey": "r"})
    changed = change("p", "r", "replace", etag=etag, properties=[])

    one = api.post(f"~/tables/{table.table_name}/entity", changed)
    group = api.post(f"~/tables/{table.table_name}/groups", {"changes": [changed]})

    assert (one.status, one.code) == (400, "ConsoleInput")
    assert (group.status, group.code) == (400, "ConsoleInput")


def test_staged_changes_are_divided_by_partition_and_size(api: Api, table: TableClient) -> None:
    staged = [change("AB"[n % 2], f"{n:03}") for n in range(210)]

    groups = api.post(
        f"~/tables/{table.table_name}/groups", {"changes": staged, "preview": True}
    ).json["groups"]

    assert [(each["partition_key"], len(each["indices"])) for each in groups] == [
        *(("A", 100), ("B", 100)),
        *(("A", 5), ("B", 5)),
    ]
    assert list(table.list_entities()) == []


def test_the_change_that_fails_is_named_and_its_group_undone(api: Api, table: TableClient) -> None:
    table.create_entity({"PartitionKey": "B", "RowKey": "2"})
    staged = [change("A", "1"), change("B", "1"), change("B", "2"), change("C", "1")]

    groups = api.post(f"~/tables/{table.table_name}/groups", {"changes": staged}).json["groups"]

    assert [each["state"] for each in groups] == ["done", "failed", "skipped"]
    assert groups[1]["failed_index"] == 2
    assert groups[1]["error"]["code"] == "EntityAlreadyExists"
    assert {(e["PartitionKey"], e["RowKey"]) for e in table.list_entities()} == {
        ("A", "1"),
        ("B", "2"),
    }


def fill(table: TableClient, count: int = 300) -> None:
    for start in range(0, count, 100):
        table.submit_transaction(
            [
                ("create", {"PartitionKey": "A", "RowKey": f"{n:05}", "Age": n % 50})
                for n in range(start, start + 100)
            ]
        )


def test_entities_are_counted_by_a_job(api: Api, table: TableClient) -> None:
    fill(table)
    path = f"~/tables/{table.table_name}/count"

    everything = api.finish(api.post(path, {"filter": ""}))
    some = api.finish(api.post(path, {"filter": "Age lt 10"}))

    assert (everything["state"], everything["counts"]["entities"]) == ("done", 300)
    assert some["counts"]["entities"] == 60
    assert some["id"] in {job["id"] for job in api.get("/jobs").json["jobs"]}


def test_entities_are_deleted_by_a_filter(api: Api, table: TableClient) -> None:
    fill(table)
    path = f"~/tables/{table.table_name}/delete-where"

    refused = api.post(path, {"filter": "Age lt 10", "confirm": "other"})
    job = api.finish(api.post(path, {"filter": "Age lt 10", "confirm": table.table_name}))

    assert refused.code == "ConsoleInput"
    assert job["counts"]["entities"] == 60
    assert len(list(table.list_entities())) == 240


def test_an_export_is_downloaded_once_and_imported_again(api: Api, table: TableClient) -> None:
    fill(table, 100)
    path = f"~/tables/{table.table_name}"

    exported = api.finish(api.post(f"{path}/export", {"format": "jsonl"}))
    ticket = api.post(f"/jobs/{exported['id']}/download", {}).json["ticket"]
    answer = api.send("GET", f"/api/v1/downloads/{ticket}")
    again = api.send("GET", f"/api/v1/downloads/{ticket}")

    assert answer.status == 200
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert len(answer.body.splitlines()) == 100
    assert again.code == "ConsoleTicketInvalid"

    other = f"T{uuid.uuid4().hex}"
    api.post("~/tables", {"name": other})
    kept = api.upload(f"~/tables/{other}/uploads", answer.body, name="staff.jsonl").json
    job = api.finish(api.post(f"~/tables/{other}/import", {"upload": kept["upload"]}))

    assert (job["state"], job["counts"]["entities"]) == ("done", 100)
    assert api.finish(api.post(f"~/tables/{other}/count", {}))["counts"]["entities"] == 100


def test_the_types_of_a_plain_csv_are_guessed_before_anything_is_written(
    api: Api, table: TableClient
) -> None:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["PartitionKey", "RowKey", "Age", "Name"])
    rows.writerows([["A", "1", "42", "Ken"], ["A", "2", "x", "Ana"]])
    path = f"~/tables/{table.table_name}"

    kept = api.upload(f"{path}/uploads", text.getvalue().encode(), name="staff.csv").json
    assert [(each["name"], each["kind"]) for each in kept["columns"]] == [
        *(("PartitionKey", "Edm.String"), ("RowKey", "Edm.Int32")),
        *(("Age", "Edm.String"), ("Name", "Edm.String")),
    ]
    given = {"upload": kept["upload"], "types": {"Age": "Edm.Int32", "Name": "Edm.String"}}
    checked = api.finish(api.post(f"{path}/import", {**given, "is_dry": True}))
    assert list(table.list_entities()) == []
    job = api.finish(api.post(f"{path}/import", given))

    assert checked["counts"]["rejected"] == job["counts"]["rejected"] == 1
    assert [entity["Name"] for entity in table.list_entities()] == ["Ken"]
    ticket = api.post(f"/jobs/{job['id']}/download", {}).json["ticket"]
    reject = json.loads(api.send("GET", f"/api/v1/downloads/{ticket}").body.splitlines()[0])
    assert "Age" in json.dumps(reject)


def test_columns_of_a_csv_become_the_keys(api: Api, table: TableClient) -> None:
    path, text = f"~/tables/{table.table_name}", b"country,id,total\nCH,7,3.5\nIT,8,4\n"

    kept = api.upload(f"{path}/uploads", text, name="orders.csv").json
    assert kept["columns"][2] == {"name": "total", "kind": "Edm.Double", "first": ["3.5", "4"]}
    keys = {"partition_key": "country", "row_key": "id"}
    given = {"upload": kept["upload"], "types": {"total": "Edm.Double"}, **keys}
    job = api.finish(api.post(f"{path}/import", given))

    assert job["counts"]["entities"] == 2
    assert dict(table.get_entity("CH", "7"))["total"] == 3.5


@pytest.mark.parametrize("name", [".csv", "....csv"])
def test_a_file_without_a_name_is_an_error_of_the_page(
    api: Api, table: TableClient, name: str
) -> None:
    rows = b"PartitionKey,RowKey\r\np,r\r\n"
    found = api.upload(f"~/tables/{table.table_name}/uploads", rows, name=name)
    if found.status == 200:
        wanted = {"upload": found.json["upload"]}
        found = api.post(f"~/tables/{table.table_name}/import", wanted)

    assert (found.status, found.code) == (400, "ConsoleInput")


def test_a_file_whose_name_tells_no_format_is_refused(api: Api, table: TableClient) -> None:
    answer = api.upload(f"~/tables/{table.table_name}/uploads", b"x", name="../../etc/passwd")

    assert (answer.status, answer.code) == (400, "ConsoleInput")


def test_the_error_of_an_unknown_table_has_its_code_and_hint(api: Api) -> None:
    answer = api.get("~/tables/Nothing/entities")

    assert (answer.status, answer.code) == (404, "TableNotFound")
    assert answer.json["error"]["hint"]
