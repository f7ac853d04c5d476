"""Storage Analytics, switched on and read back with the official SDKs."""

import csv
import html
import io
import logging
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import (
    TableAnalyticsLogging,
    TableMetrics,
    TableRetentionPolicy,
    TableSasPermissions,
    TableServiceClient,
    generate_table_sas,
)
from azure.storage import blob as blob_sdk
from azure.storage import queue as queue_sdk

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.accounts.system_places import SERVICES
from partita.service.analytics import recording
from support.live import LiveServer, needs_folder
from wire.recorded_server import RecordedServer

FIELDS = (
    *("version", "start", "operation", "status", "code", "latency", "server_latency"),
    *("authentication", "requester", "owner", "service", "url", "object", "request_id", "count"),
    *("address", "api_version", "header_size", "packet_size", "answer_header_size"),
    *("answer_size", "content_length", "md5", "server_md5", "etag", "modified", "conditions"),
    *("agent", "referrer", "client_request_id"),
)
HOUR = 3600
DAY = 24 * HOUR
LOGS = "$logs"
ALL = {"read": True, "write": True, "delete": True}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.proof)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "data"
    from support.fleet_databases import create_fleet_database

    return create_fleet_database(tmp_path.name)


@pytest.fixture
def server(where: Path | str) -> Iterator[RecordedServer]:
    running = RecordedServer(where)
    yield running
    running.stop()


@pytest.fixture
def in_memory() -> Iterator[RecordedServer]:
    running = RecordedServer()
    yield running
    running.stop()


def switch_on(
    server: RecordedServer,
    letters: str = "bqt",
    *,
    logs: bool = False,
    metrics: bool = False,
    days: int | None = None,
    version: str = "1.0",
    apis: bool = True,
) -> None:
    kept: dict[str, Any] = {"enabled": days is not None, **({"days": days} if days else {})}
    for letter in letters:
        client: Any
        if letter == "t":
            client = server.tables
            policy: Any = TableRetentionPolicy(**kept)
            log: Any = TableAnalyticsLogging(version=version, retention_policy=policy, **ALL)
            metric: Any = TableMetrics(
                version="1.0", enabled=True, include_apis=apis, retention_policy=policy
            )
        else:
            client = server.blobs if letter == "b" else server.queues
            sdk: Any = blob_sdk if letter == "b" else queue_sdk
            policy = sdk.RetentionPolicy(**kept)
            name = "BlobAnalyticsLogging" if letter == "b" else "QueueAnalyticsLogging"
            log = getattr(sdk, name)(version=version, retention_policy=policy, **ALL)
            metric = sdk.Metrics(enabled=True, include_apis=apis, retention_policy=policy)
        with client:
            client.set_service_properties(
                analytics_logging=log if logs else None,
                hour_metrics=metric if metrics else None,
                minute_metrics=metric if metrics else None,
            )


def log_lines(server: RecordedServer, service: str) -> list[dict[str, str]]:
    """Read all lines of a service, as a program that knows the format does."""
    container = server.blobs.get_container_client(LOGS)
    texts = [
        container.download_blob(each.name).readall().decode()
        for each in container.list_blobs(name_starts_with=f"{service}/")
    ]
    return [entry for text in texts for entry in parse(text)]


def parse(text: str) -> list[dict[str, str]]:
    assert text.endswith("\n")
    rows = list(csv.reader(io.StringIO(text), delimiter=";", strict=True))
    assert len(rows) == text.count("\n"), "a line is a request"
    return [
        {name: html.unescape(value) for name, value in zip(FIELDS, row, strict=False)}
        for row in rows
    ]


def rows_of(server: RecordedServer, table: str) -> dict[tuple[str, str], dict[str, Any]]:
    with server.tables as service:
        entities = list(service.get_table_client(table).list_entities())
    return {(each["PartitionKey"], each["RowKey"]): dict(each) for each in entities}


def use_tables(server: RecordedServer) -> None:
    with server.tables as service:
        staff = service.create_table("Staff")
        for number in range(3):
            staff.upsert_entity({"PartitionKey": "Sales", "RowKey": str(number)})
        staff.submit_transaction(
            [("upsert", {"PartitionKey": "Sales", "RowKey": key}) for key in ("7", "8")]
        )
        assert len(list(staff.list_entities())) == 5
        staff.get_entity("Sales", "1")
        with pytest.raises(ResourceNotFoundError):
            staff.get_entity("Sales", "none")
        staff.delete_entity("Sales", "1")


def use_queues(server: RecordedServer) -> None:
    work = server.queues.create_queue("work")
    work.send_message("archive")
    message = next(iter(work.receive_messages()))
    work.delete_message(message)
    assert list(work.peek_messages()) == []


def use_blobs(server: RecordedServer) -> None:
    photos = server.blobs.create_container("photos")
    photos.upload_blob("staff/1.png", b"PNG" * 100)
    assert photos.download_blob("staff/1.png").readall() == b"PNG" * 100
    photos.delete_blob("staff/1.png")


TABLE_CALLS = {
    "CreateTable": 1,
    "InsertOrMergeEntity": 3,
    "EntityGroupTransaction": 1,
    "QueryEntities": 1,
    "QueryEntity": 2,
    "DeleteEntity": 1,
}
QUEUE_CALLS = {
    "CreateQueue": 1,
    "PutMessage": 1,
    "GetMessages": 1,
    "DeleteMessage": 1,
    "PeekMessages": 1,
}
BLOB_CALLS = {"CreateContainer": 1, "PutBlob": 1, "GetBlob": 1, "DeleteBlob": 1}
CALLS = {"table": TABLE_CALLS, "queue": QUEUE_CALLS, "blob": BLOB_CALLS}


def test_each_request_is_one_line_of_the_log_of_its_service(server: RecordedServer) -> None:
    switch_on(server, logs=True)
    use_tables(server)
    use_queues(server)
    use_blobs(server)
    server.pass_time(300)

    for service, calls in CALLS.items():
        lines = log_lines(server, service)
        counted = Counter(each["operation"] for each in lines)
        switched = f"Set{service.capitalize()}ServiceProperties"
        assert counted == {**calls, switched: 1}
        for each in lines:
            assert list(each) == list(FIELDS)
            assert each["version"] == "1.0"
            assert each["service"] == service
            assert each["authentication"] == "authenticated"
            assert each["requester"] == each["owner"] == DEVELOPMENT_ACCOUNT
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z", each["start"])
            assert each["address"] == "127.0.0.1"
            assert each["count"] == "0"
            assert each["url"].startswith("http://127.0.0.1:")
            assert "azsdk-python" in each["agent"]
            assert each["request_id"]
            assert each["client_request_id"]


def test_the_fields_of_a_line_say_what_was_asked_and_answered(in_memory: RecordedServer) -> None:
    switch_on(in_memory, logs=True)
    use_tables(in_memory)
    use_blobs(in_memory)
    in_memory.pass_time(300)

    lines = {each["operation"]: each for each in log_lines(in_memory, "blob")}
    put = lines["PutBlob"]
    assert (put["status"], put["code"]) == ("Success", "201")
    assert put["object"] == f"/{DEVELOPMENT_ACCOUNT}/photos/staff/1.png"
    assert put["content_length"] == put["packet_size"] == "300"
    assert put["conditions"] == "If-None-Match=*"
    assert re.fullmatch(r'"0x[0-9A-F]+"', put["etag"])
    assert re.fullmatch(
        r"[A-Z][a-z]+day, \d\d-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d GMT", put["modified"]
    )
    assert put["server_md5"].endswith("==")
    assert int(put["header_size"]) > 300
    assert lines["GetBlob"]["answer_size"] == "300"
    entities = [
        each for each in log_lines(in_memory, "table") if each["operation"] == "QueryEntity"
    ]
    assert [(each["status"], each["code"]) for each in entities] == [
        ("Success", "200"),
        ("ClientOtherError", "404"),
    ]
    assert entities[1]["object"] == f"/{DEVELOPMENT_ACCOUNT}/Staff/Sales/none"


def test_a_log_is_named_by_its_hour_and_described_by_its_metadata(
    in_memory: RecordedServer,
) -> None:
    switch_on(in_memory, "q", logs=True)
    in_memory.queues.create_queue("first")
    in_memory.pass_time(300)
    in_memory.queues.delete_queue("first")
    in_memory.pass_time(300)
    list(in_memory.queues.list_queues())
    in_memory.pass_time(HOUR)

    start = datetime.fromtimestamp(in_memory.clock.ticks() / 1e7, UTC) - timedelta(hours=1)
    container = in_memory.blobs.get_container_client(LOGS)
    found = list(container.list_blobs(include=["metadata"]))
    folder = f"queue/{start:%Y/%m/%d/%H}00/"
    assert [each.name for each in found] == [f"{folder}{number:06}.log" for number in range(3)]
    types = [each.metadata["LogType"] for each in found]
    assert types == ["write", "delete", "read"]
    for each in found:
        assert each.metadata["LogVersion"] == "1.0"
        assert each.metadata["StartTime"] <= each.metadata["EndTime"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", each.metadata["StartTime"])
        assert each.metadata["StartTime"].startswith(f"{start:%Y-%m-%dT%H}")


def test_format_2_0_adds_eight_empty_fields_and_tables_refuse_it(
    in_memory: RecordedServer,
) -> None:
    switch_on(in_memory, "bq", logs=True, version="2.0")
    with pytest.raises(HttpResponseError) as caught:
        switch_on(in_memory, "t", logs=True, version="2.0")
    assert caught.value.status_code == 400

    list(in_memory.queues.list_queues())
    in_memory.pass_time(300)

    container = in_memory.blobs.get_container_client(LOGS)
    [log] = container.list_blobs(name_starts_with="queue/", include=["metadata"])
    assert log.metadata["LogVersion"] == "2.0"
    for line in container.download_blob(log.name).readall().decode().splitlines():
        [row] = csv.reader([line], delimiter=";")
        assert row[0] == "2.0"
        assert row[30:] == [""] * 8
    logging_ = in_memory.blobs.get_service_properties()["analytics_logging"]
    assert logging_.version == "2.0"


def test_only_the_chosen_types_of_requests_are_logged(in_memory: RecordedServer) -> None:
    in_memory.tables.set_service_properties(
        analytics_logging=TableAnalyticsLogging(
            delete=True, retention_policy=TableRetentionPolicy(enabled=False)
        )
    )
    use_tables(in_memory)
    in_memory.pass_time(300)

    assert [each["operation"] for each in log_lines(in_memory, "table")] == ["DeleteEntity"]


def test_a_hostile_request_is_one_line_with_its_text_intact(in_memory: RecordedServer) -> None:
    switch_on(in_memory, "b", logs=True)
    photos = in_memory.blobs.create_container("photos")
    name = "a\n2.0;\"x\"&<b>'c'\r\u2028;é.log"
    agent = 'agent "quoted"; with; &quot; and \t tab'
    photos.upload_blob(name, b"x")
    headers = {"User-Agent": agent, "Referer": 'http://x/";'}
    photos.download_blob(name, headers=headers, client_request_id='";x').readall()
    in_memory.pass_time(300)

    [line] = [each for each in log_lines(in_memory, "blob") if each["operation"] == "GetBlob"]
    assert line["object"] == f"/{DEVELOPMENT_ACCOUNT}/photos/{name}"
    assert line["agent"] == agent
    assert line["referrer"] == 'http://x/";'
    assert line["client_request_id"] == '";x'
    assert "%0A2.0" in line["url"]


def test_a_request_by_sas_is_logged_without_its_signature(in_memory: RecordedServer) -> None:
    switch_on(in_memory, "t", logs=True, metrics=True)
    use_tables(in_memory)
    token = generate_table_sas(
        AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY),
        "Staff",
        permission=TableSasPermissions(read=True),
        expiry=datetime.now(UTC) + timedelta(days=365),
    )
    endpoint = in_memory.tables.url.partition("?")[0]
    with TableServiceClient(f"{endpoint}?{token}") as limited:
        staff = limited.get_table_client("Staff")
        staff.get_entity("Sales", "2")
        with pytest.raises(HttpResponseError):
            staff.delete_entity("Sales", "2")
    in_memory.pass_time(HOUR)

    lines = [each for each in log_lines(in_memory, "table") if each["authentication"] == "sas"]
    assert [each["status"] for each in lines] == ["SASSuccess", "SASAuthorizationError"]
    for each in lines:
        assert each["requester"] == ""
        assert each["owner"] == DEVELOPMENT_ACCOUNT
        assert "sig=REDACTED" in each["url"]
    hours = rows_of(in_memory, "$MetricsHourPrimaryTransactionsTable")
    [everything] = [row for (_, key), row in hours.items() if key == "user;All"]
    assert everything["SASSuccess"][0] == everything["SASAuthorizationError"][0] == 1


def test_failed_anonymous_requests_are_counted_but_not_logged(in_memory: RecordedServer) -> None:
    switch_on(in_memory, "b", logs=True, metrics=True)
    photos = in_memory.blobs.create_container("photos", public_access="blob")
    photos.upload_blob("1.png", b"PNG")
    anonymous = blob_sdk.BlobServiceClient(in_memory.blobs.url, retry_total=0)
    anonymous.get_blob_client("photos", "1.png").download_blob().readall()
    with pytest.raises(HttpResponseError):
        list(anonymous.get_container_client("photos").list_blobs())
    in_memory.pass_time(HOUR)

    lines = log_lines(in_memory, "blob")
    assert [each["status"] for each in lines if each["authentication"] == "anonymous"] == [
        "AnonymousSuccess"
    ]
    [everything] = _rows(in_memory, "$MetricsHourPrimaryTransactionsBlob", "user;All")
    failed = [
        name for name, value in everything.items() if name.startswith("Anonymous") and value[0]
    ]
    assert len(failed) == 2


def _rows(server: RecordedServer, table: str, row_key: str) -> list[dict[str, Any]]:
    return [row for (_, key), row in rows_of(server, table).items() if key == row_key]


@pytest.mark.parametrize("period", ["Hour", "Minute"])
def test_metrics_count_every_request_exactly(server: RecordedServer, period: str) -> None:
    switch_on(server, metrics=True)
    use_tables(server)
    use_queues(server)
    use_blobs(server)
    start = datetime.fromtimestamp(server.clock.ticks() / 1e7, UTC)
    server.pass_time(HOUR)

    key = f"{start:%Y%m%dT%H}00" if period == "Hour" else f"{start:%Y%m%dT%H%M}"
    for service, calls in CALLS.items():
        table = f"$Metrics{period}PrimaryTransactions{service.capitalize()}"
        rows = {row: entity for (pk, row), entity in rows_of(server, table).items() if pk == key}
        expected = {**calls, f"Set{service.capitalize()}ServiceProperties": 1}
        assert rows.keys() == {
            "user;All",
            "system;All",
            *(f"user;{operation}" for operation in expected),
        }
        for operation, count in expected.items():
            assert rows[f"user;{operation}"]["TotalRequests"].value == count
        everything = rows["user;All"]
        total = sum(expected.values())
        assert everything["TotalRequests"].value == total
        assert everything["TotalBillableRequests"].value == total
        failed = 1 if service == "table" else 0
        assert everything["Success"].value == total - failed
        assert everything["ClientOtherError"].value == failed
        assert everything["Availability"] == 100.0
        assert everything["PercentSuccess"] == pytest.approx(100 * (total - failed) / total)
        assert everything["PercentClientOtherError"] == pytest.approx(100 * failed / total)
        assert everything["AverageE2ELatency"] == everything["AverageServerLatency"] > 0
    blobs = _rows(server, f"$Metrics{period}PrimaryTransactionsBlob", "user;PutBlob")
    assert blobs[0]["TotalIngress"].value == 300
    blobs = _rows(server, f"$Metrics{period}PrimaryTransactionsBlob", "user;GetBlob")
    assert blobs[0]["TotalEgress"].value == 300


def test_each_period_has_a_row_also_without_requests(in_memory: RecordedServer) -> None:
    switch_on(in_memory, "q", metrics=True, apis=False)
    in_memory.pass_time(60)
    in_memory.pass_time(60)
    list(in_memory.queues.list_queues())
    in_memory.pass_time(60)

    rows = _rows(in_memory, "$MetricsMinutePrimaryTransactionsQueue", "user;All")
    assert [row["TotalRequests"].value for row in rows] == [1, 0, 1]
    assert [row["Availability"] for row in rows] == [100.0] * 3
    keys = {key for _, key in rows_of(in_memory, "$MetricsMinutePrimaryTransactionsQueue")}
    assert keys == {"user;All", "system;All"}


def test_the_names_before_2013_show_the_hours(in_memory: RecordedServer) -> None:
    switch_on(in_memory, "bqt", metrics=True)
    in_memory.pass_time(HOUR)

    for service in SERVICES.values():
        old = rows_of(in_memory, f"$MetricsTransactions{service}")
        assert old
        assert old == rows_of(in_memory, f"$metricshourprimarytransactions{service}")


def test_nothing_is_recorded_before_it_is_switched_on_and_after_it_is_switched_off(
    in_memory: RecordedServer,
) -> None:
    assert not any(meter.listeners for meter in in_memory.meters.values())
    use_tables(in_memory)
    switch_on(in_memory, "t", logs=True, metrics=True)
    assert len(in_memory.meters["tables"].listeners) == 1
    list(in_memory.tables.list_tables())
    off = TableRetentionPolicy(enabled=False)
    in_memory.tables.set_service_properties(
        analytics_logging=TableAnalyticsLogging(retention_policy=off),
        hour_metrics=TableMetrics(retention_policy=off),
        minute_metrics=TableMetrics(retention_policy=off),
    )
    assert not any(meter.listeners for meter in in_memory.meters.values())
    use_queues(in_memory)
    list(in_memory.tables.list_tables())
    in_memory.pass_time(HOUR)

    operations = [each["operation"] for each in log_lines(in_memory, "table")]
    assert operations == ["SetTableServiceProperties", "QueryTables"]
    [hour] = _rows(in_memory, "$MetricsHourPrimaryTransactionsTable", "user;All")
    assert hour["TotalRequests"].value == 2


def test_the_recorder_does_not_log_itself_and_counts_itself_as_system(
    in_memory: RecordedServer,
) -> None:
    switch_on(in_memory, logs=True, metrics=True)
    in_memory.pass_time(300)
    in_memory.pass_time(HOUR)
    in_memory.pass_time(HOUR)

    for service in CALLS:
        operations = [each["operation"] for each in log_lines(in_memory, service)]
        assert operations[0] == f"Set{service.capitalize()}ServiceProperties"
        assert set(operations[1:]) <= {"GetBlob", "ListBlobs"}, "those of this test"
    own = _rows(in_memory, "$MetricsHourPrimaryTransactionsBlob", "system;All")
    assert sum(row["TotalRequests"].value for row in own) >= 3
    own = _rows(in_memory, "$MetricsHourPrimaryTransactionsTable", "system;All")
    assert sum(row["TotalRequests"].value for row in own) >= 3


def test_capacity_is_written_once_a_day(server: RecordedServer) -> None:
    switch_on(server, "b", logs=True, metrics=True)
    use_blobs(server)
    server.blobs.get_container_client("photos").upload_blob("2.png", b"PNG" * 1000)
    server.pass_time(300)
    server.pass_time(DAY)
    server.pass_time(HOUR)

    rows = rows_of(server, "$MetricsCapacityBlob")
    days = sorted({day for day, _ in rows})
    assert len(days) == 2
    assert all(re.fullmatch(r"\d{8}T0000", day) for day in days)
    data, analytics = rows[days[1], "data"], rows[days[1], "analytics"]
    assert data["Capacity"].value == 3000
    assert data["ContainerCount"].value == data["ObjectCount"].value == 1
    assert analytics["ContainerCount"].value == 1
    assert analytics["ObjectCount"].value >= 1
    assert analytics["Capacity"].value > 0


def test_what_is_older_than_the_retention_is_removed(server: RecordedServer) -> None:
    switch_on(server, logs=True, metrics=True, days=2)
    use_queues(server)
    server.pass_time(HOUR)
    first = {name: rows_of(server, name) for name in METRICS}
    assert all(first.values())
    assert log_lines(server, "queue")

    server.pass_time(2 * DAY - 2 * HOUR)
    for name in METRICS:
        assert first[name].keys() <= rows_of(server, name).keys()
    server.pass_time(3 * HOUR + DAY)

    for name in METRICS:
        assert not first[name].keys() & rows_of(server, name).keys()
    names = list(server.blobs.get_container_client(LOGS).list_blob_names())
    oldest = datetime.fromtimestamp(server.clock.ticks() / 1e7, UTC) - timedelta(days=2)
    assert all(name.partition("/")[2] >= f"{oldest:%Y/%m/%d/%H}" for name in names)


METRICS = [
    *(f"$MetricsHourPrimaryTransactions{each}" for each in SERVICES.values()),
    *(f"$MetricsMinutePrimaryTransactions{each}" for each in SERVICES.values()),
    "$MetricsCapacityBlob",
]


def test_without_a_retention_everything_is_kept(in_memory: RecordedServer) -> None:
    switch_on(in_memory, "q", logs=True, metrics=True)
    in_memory.pass_time(HOUR)
    in_memory.pass_time(400 * DAY)
    in_memory.pass_time(HOUR)

    assert len(_rows(in_memory, "$MetricsHourPrimaryTransactionsQueue", "user;All")) == 3
    assert log_lines(in_memory, "queue")


def test_a_stop_writes_what_was_recorded_and_a_restart_continues(tmp_path: Path) -> None:
    first = RecordedServer(tmp_path)
    switch_on(first, "t", logs=True, metrics=True)
    use_tables(first)
    first.stop()
    second = RecordedServer(tmp_path, first.clock)
    try:
        list(second.tables.list_tables())
        second.pass_time(HOUR)

        operations = Counter(each["operation"] for each in log_lines(second, "table"))
        expected = {**TABLE_CALLS, "SetTableServiceProperties": 1, "QueryTables": 1}
        assert operations == expected
        [row] = _rows(second, "$MetricsHourPrimaryTransactionsTable", "user;All")
        assert row["TotalRequests"].value == sum(expected.values())
        assert row["Success"].value == sum(expected.values()) - 1
        assert row["AverageE2ELatency"] > 0
    finally:
        second.stop()


def test_two_front_ends_write_logs_of_their_own_and_add_up_their_metrics(tmp_path: Path) -> None:
    from support.fleet_databases import create_fleet_database

    url = create_fleet_database(tmp_path.name)
    first = RecordedServer(url)
    second = RecordedServer(url, first.clock)
    try:
        switch_on(first, "t", logs=True, metrics=True)
        second.run(second.account.refresh_properties())
        with first.tables as one, second.tables as other:
            one.create_table("Staff")
            for number in range(20):
                for service in (one, other):
                    staff = service.get_table_client("Staff")
                    staff.upsert_entity({"PartitionKey": "Sales", "RowKey": str(number)})
                if number % 5 == 4:
                    let_pass(300, first, second)
        let_pass(HOUR, first, second)

        lines = log_lines(first, "table")
        assert Counter(each["operation"] for each in lines)["InsertOrMergeEntity"] == 40
        assert len({each["request_id"] for each in lines}) == len(lines) == 42
        names = list(first.blobs.get_container_client(LOGS).list_blob_names())
        assert [name.rpartition("/")[2] for name in names] == [
            f"{number:06}.log" for number in range(8)
        ]
        minutes = _rows(first, "$MetricsMinutePrimaryTransactionsTable", "user;InsertOrMergeEntity")
        assert [row["TotalRequests"].value for row in minutes] == [10] * 4
        [row] = _rows(second, "$MetricsHourPrimaryTransactionsTable", "user;InsertOrMergeEntity")
        assert row["TotalRequests"].value == row["Success"].value == 40
        [row] = _rows(second, "$MetricsHourPrimaryTransactionsTable", "user;All")
        assert row["TotalRequests"].value == 42
    finally:
        second.stop()
        first.stop()


@pytest.mark.proof
def test_a_long_log_is_written_on_postgresql_without_a_blob_store(tmp_path: Path) -> None:
    from support.fleet_databases import create_fleet_database

    server = RecordedServer(create_fleet_database(tmp_path.name))
    try:
        switch_on(server, "q", logs=True)
        for _ in range(10):
            list(server.queues.list_queues(headers={"User-Agent": "x" * 15_000}))
        server.pass_time(300)

        [log] = server.blobs.get_container_client(LOGS).list_blobs()
        assert log.size > 150_000
        assert len(log_lines(server, "queue")) == 11
    finally:
        server.stop()


def test_a_full_log_is_written_at_once(
    in_memory: RecordedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "LOG_BYTES_MAX", 2000)
    switch_on(in_memory, "q", logs=True)
    for _ in range(10):
        list(in_memory.queues.list_queues())

    container = in_memory.blobs.get_container_client(LOGS)
    while len(list(container.list_blob_names())) < 2:
        pass  # the clock stands still: nothing but its size lets a log be written
    sizes = [each.size for each in container.list_blobs()]
    assert all(2000 <= size < 3000 for size in sizes)


def let_pass(seconds: int, *servers: RecordedServer) -> None:
    """Let time pass on front ends with one clock, which then write at the same time."""
    servers[0].clock.advance(seconds)
    with ThreadPoolExecutor(len(servers)) as together:
        for ended in [together.submit(each.pass_time, 0) for each in servers]:
            ended.result()


def test_switching_logging_on_warns_of_the_volume(
    in_memory: RecordedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "partita.analytics"):
        switch_on(in_memory, "q", logs=True, days=7)
        in_memory.queues.get_service_properties()

    [record] = caplog.records
    assert "kept for 7 days" in record.getMessage()


def test_a_failing_recorder_is_logged_once_and_answers_stay(
    in_memory: RecordedServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_on(in_memory, "q", logs=True, metrics=True)

    async def fail(*_: object, **__: object) -> None:
        raise OSError("no space")

    caplog.clear()
    with monkeypatch.context() as patched:
        patched.setattr(in_memory.account.blobs, "put_blob", fail)
        patched.setattr(in_memory.account.tables.store, "change", fail)
        use_queues(in_memory)
        in_memory.pass_time(HOUR)
        in_memory.pass_time(1)
    assert [each.levelname for each in caplog.records] == ["WARNING"]

    in_memory.pass_time(HOUR)

    counted = Counter(each["operation"] for each in log_lines(in_memory, "queue"))
    assert counted == {**QUEUE_CALLS, "SetQueueServiceProperties": 1}
    rows = _rows(in_memory, "$MetricsHourPrimaryTransactionsQueue", "user;All")
    assert rows[0]["TotalRequests"].value == sum(QUEUE_CALLS.values()) + 1


# What clients may do with logs and metrics


def test_logs_are_hidden_readable_and_their_blobs_can_be_deleted(server: RecordedServer) -> None:
    with pytest.raises(ResourceNotFoundError):
        list(server.blobs.get_container_client(LOGS).list_blobs())
    switch_on(server, "q", logs=True)
    logs = server.blobs.get_container_client(LOGS)
    assert list(logs.list_blobs()) == []
    server.blobs.create_container("photos")
    server.pass_time(300)

    shown = [each.name for each in server.blobs.list_containers()]
    assert shown == ["photos"]
    with_system = [each.name for each in server.blobs.list_containers(include_system=True)]
    assert with_system == [LOGS, "photos"]
    [name] = logs.list_blob_names()
    for refused in (
        logs.delete_container,
        lambda: logs.upload_blob("mine", b"x"),
        lambda: logs.get_blob_client(name).set_blob_metadata({"a": "b"}),
        lambda: logs.set_container_metadata({"a": "b"}),
        lambda: server.blobs.create_container(LOGS),
    ):
        with pytest.raises(HttpResponseError) as caught:
            refused()
        assert caught.value.status_code == 403
        assert "InsufficientAccountPermissions" in str(caught.value)
    logs.delete_blobs(name)
    assert list(logs.list_blobs()) == []


def test_a_page_of_containers_is_full_although_one_is_hidden(in_memory: RecordedServer) -> None:
    switch_on(in_memory, "q", logs=True)
    for number in range(4):
        in_memory.blobs.create_container(f"photos{number}")

    pages = in_memory.blobs.list_containers(results_per_page=2).by_page()
    assert [[each.name for each in page] for page in pages] == [
        ["photos0", "photos1"],
        ["photos2", "photos3"],
    ]


def test_metrics_tables_are_hidden_readable_and_their_entities_can_be_deleted(
    server: RecordedServer,
) -> None:
    with server.tables as service:
        hours = service.get_table_client("$MetricsHourPrimaryTransactionsTable")
        with pytest.raises(ResourceNotFoundError):
            list(hours.list_entities())
        switch_on(server, "t", metrics=True)
        assert list(hours.list_entities()) == []
        service.create_table("Staff")
        server.pass_time(HOUR)

        assert [each.name for each in service.list_tables()] == ["Staff"]
        found = list(hours.query_entities("RowKey eq 'user;All'", select=["TotalRequests"]))
        assert [each["TotalRequests"].value for each in found] == [3]
        entity = next(iter(hours.query_entities("RowKey eq 'user;All'")))
        key = {name: entity[name] for name in ("PartitionKey", "RowKey")}
        assert hours.get_entity(**_snake(key)) == entity
        for refused in (
            lambda: hours.upsert_entity({**key, "Success": 7}),
            lambda: hours.create_entity({"PartitionKey": "a", "RowKey": "b"}),
            lambda: hours.update_entity({**key, "Success": 7}),
            lambda: hours.submit_transaction([("upsert", {**key, "Success": 7})]),
            hours.delete_table,
            lambda: hours.set_table_access_policy({}),
        ):
            with pytest.raises(HttpResponseError) as caught:
                refused()
            assert caught.value.status_code in (202, 403)
            assert "Write operations are not allowed" in str(caught.value)
        with pytest.raises(ValueError, match="must be alphanumeric"):
            service.create_table("$MetricsHourPrimaryTransactionsTable")
        hours.submit_transaction([("delete", key)])
        assert [each["RowKey"] for each in hours.list_entities()][:1] != ["user;All"]


def _snake(key: dict[str, str]) -> dict[str, str]:
    return {"partition_key": key["PartitionKey"], "row_key": key["RowKey"]}


@needs_folder
def test_a_served_account_keeps_its_logs_and_metrics_across_a_stop(tmp_path: Path) -> None:
    live = LiveServer(tmp_path)
    try:
        text = live.connection_string
        with TableServiceClient.from_connection_string(text) as service:
            policy = TableRetentionPolicy(enabled=True, days=1)
            service.set_service_properties(
                analytics_logging=TableAnalyticsLogging(retention_policy=policy, **ALL),
                hour_metrics=TableMetrics(enabled=True, include_apis=True, retention_policy=policy),
            )
            service.create_table("Staff")
        live.restart()
        text = live.connection_string
        logs = blob_sdk.BlobServiceClient.from_connection_string(text).get_container_client(LOGS)
        texts = [logs.download_blob(name).readall().decode() for name in logs.list_blob_names()]
        operations = Counter(line["operation"] for text in texts for line in parse(text))
        assert operations == {"SetTableServiceProperties": 1, "CreateTable": 1}
        with TableServiceClient.from_connection_string(text) as service:
            rows = service.get_table_client("$MetricsHourPrimaryTransactionsTable")
            found = rows.query_entities("RowKey eq 'user;All'")
            assert sum(each["TotalRequests"].value for each in found) == 2
    finally:
        live.kill()
