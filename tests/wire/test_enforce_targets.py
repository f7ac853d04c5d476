"""`--enforce-targets` over sockets, as the official SDK meets it.

Where the exact count matters the buckets run on a clock that stands still; the last tests start
the command itself, and wait as long as the SDK's own retries do.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.data.tables import TableClient, TableServiceClient

from partita.cli.config import load, warnings
from partita.cli.main import main
from partita.clock import ManualClock, SystemClock
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Accounts
from partita.service.accounts.rate_targets import Targets
from partita.service.accounts.respond import Front
from partita.service.hosting.services import TABLES
from partita.service.http.request import Request, Response
from support.accounts import open_folder_account
from support.live import FRONT_ENDS
from wire.conftest import StartServer
from wire.live_http import Behaviour, LiveServer
from wire.sdk import CREDENTIAL

FAT = "x" * 10_180
"""Text whose entity counts for 20: a hundred of them are a partition's whole second."""


class Served(Behaviour):
    """The table service of one account, with targets on a clock of their own."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._targets = Targets(clock)

    async def open(self) -> None:
        clock = SystemClock()
        self.account = await open_folder_account(
            DEVELOPMENT_ACCOUNT, [DEVELOPMENT_KEY], root=None, clock=clock, targets=self._targets
        )
        accounts = Accounts([self.account], clock)
        self.front = Front(TABLES.build(accounts, clock), accounts, clock)

    async def respond(self, request: Request) -> Response:
        return await self.front.respond(request)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(clock: ManualClock) -> Iterator[TableServiceClient]:
    served = Served(clock)
    live = LiveServer(asyncio.new_event_loop(), served)
    live.call(served.open())
    endpoint = f"http://127.0.0.1:{live.start()}/{DEVELOPMENT_ACCOUNT}"
    with TableServiceClient(endpoint, credential=CREDENTIAL, retry_total=0) as client:
        yield client
    live.call(served.account.close())
    live.tear_down()


@pytest.fixture
def staff(service: TableServiceClient) -> TableClient:
    return service.create_table("Staff")


def upserts(partition_key: str, start: int, count: int = 100, text: str = "") -> list[Any]:
    return [
        ("upsert", {"PartitionKey": partition_key, "RowKey": f"{start + each:05}", "Text": text})
        for each in range(count)
    ]


def refused(call: Any, *arguments: Any, **options: Any) -> Any:
    """Return the answer of a call that must be refused."""
    with pytest.raises(HttpResponseError) as error:
        call(*arguments, **options)
    return error.value.response


def test_a_single_partition_is_throttled_where_spread_keys_pass(staff: TableClient) -> None:
    for start in range(0, 2_000, 100):
        staff.submit_transaction(upserts("2026-01-02", start))

    answer = refused(staff.submit_transaction, upserts("2026-01-02", 2_000))

    assert answer.status_code == 503
    assert answer.headers["x-ms-error-code"] == "ServerBusy"
    assert answer.headers["Retry-After"] == "1"
    for spread in range(20):
        staff.submit_transaction(upserts(f"2026-01-02_{spread:02}", 2_000))


def test_nothing_of_a_refused_group_is_done(staff: TableClient, clock: ManualClock) -> None:
    for start in range(0, 2_000, 100):
        staff.submit_transaction(upserts("Sales", start))
    refused(staff.submit_transaction, upserts("Sales", 2_000))

    clock.advance(1)

    assert refused(staff.get_entity, "Sales", "02000").status_code == 404


def test_the_message_is_the_service_s_and_the_hint_ours(staff: TableClient) -> None:
    staff.submit_transaction(upserts("Sales", 0, text=FAT))

    answer = refused(staff.get_entity, "Sales", "00000")

    body = answer.json()["odata.error"]
    assert body["code"] == "ServerBusy"
    message, hint, request_id, _ = body["message"]["value"].split("\n")
    assert message == "The server is busy."
    assert hint == answer.headers["x-partita-hint"]
    assert "use more partition keys" in hint
    assert "--enforce-targets" in hint
    assert request_id.startswith("RequestId:")


def test_every_kind_of_request_is_refused_until_time_has_passed(
    staff: TableClient, clock: ManualClock
) -> None:
    staff.submit_transaction(upserts("Sales", 0, text=FAT))
    entity = {"PartitionKey": "Sales", "RowKey": "00000"}

    for call, arguments in (
        (staff.get_entity, ("Sales", "00000")),
        (staff.create_entity, (entity,)),
        (staff.update_entity, (entity,)),
        (staff.upsert_entity, (entity,)),
        (staff.delete_entity, ("Sales", "00000")),
        (lambda query: list(staff.query_entities(query)), ("PartitionKey eq 'Sales'",)),
        (staff.submit_transaction, (upserts("Sales", 0, 1),)),
    ):
        assert refused(call, *arguments).status_code == 503, call

    clock.advance(1)
    assert staff.get_entity("Sales", "00000")["Text"] == FAT


def test_a_long_debt_is_told_in_whole_seconds(staff: TableClient) -> None:
    staff.submit_transaction(upserts("Sales", 0, text=FAT * 3))

    assert refused(staff.get_entity, "Sales", "00000").headers["Retry-After"] == "3"


def test_what_a_query_returned_is_met_by_the_next_request(
    staff: TableClient, clock: ManualClock
) -> None:
    staff.submit_transaction(upserts("Sales", 0, text=FAT))
    clock.advance(10)

    assert len(list(staff.query_entities("PartitionKey eq 'Sales'"))) == 100

    assert refused(staff.get_entity, "Sales", "00000").status_code == 503


def test_the_account_has_its_own_target(staff: TableClient) -> None:
    for number in range(10):
        staff.submit_transaction(upserts(f"p{number}", 0, text=FAT))

    answer = refused(staff.upsert_entity, {"PartitionKey": "fresh", "RowKey": ""})

    assert answer.status_code == 503
    assert "Operations per second is over the account limit." in answer.text()


def test_tables_can_still_be_made_and_listed(
    service: TableServiceClient, staff: TableClient
) -> None:
    for number in range(10):
        staff.submit_transaction(upserts(f"p{number}", 0, text=FAT))

    service.create_table("Other")

    assert [table.name for table in service.list_tables()] == ["Other", "Staff"]


# The command


class Watched(RequestsTransport):  # type: ignore[misc]  # the SDK does not type it
    """Remembers the status of each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def send(self, request: Any, **options: Any) -> Any:
        response = super().send(request, **options)
        self.seen.append(response.status_code)
        return response


@pytest.mark.skipif(FRONT_ENDS > 1, reason="each front end has its share, and they take turns")
def test_the_sdk_survives_by_its_own_retries(start_server: StartServer) -> None:
    live = start_server("--in-memory", "--enforce-targets")
    transport = Watched()
    with TableServiceClient(live.endpoint, credential=CREDENTIAL, transport=transport) as service:
        staff = service.create_table("Staff")

        staff.submit_transaction(upserts("Sales", 0, text=FAT * 2))
        staff.submit_transaction(upserts("Sales", 100))

        assert 503 in transport.seen
        rows = [each["RowKey"] for each in staff.list_entities(select="RowKey")]
        assert len(rows) == 200


@pytest.mark.parametrize(
    ("flags", "variable", "file", "source"),
    [
        (["--enforce-targets"], "0", "false", "flag --enforce-targets"),
        ([], "true", "false", "variable PARTITA_ENFORCE_TARGETS"),
        ([], None, "true", "file partita.toml"),
    ],
)
def test_the_setting_is_shown_with_its_source(
    flags: list[str],
    variable: str | None,
    file: str,
    source: str,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("partita.toml").write_text(f"enforce_targets = {file}\n")
    if variable is not None:
        monkeypatch.setenv("PARTITA_ENFORCE_TARGETS", variable)

    assert main(["config", "show", "--json", *flags]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["enforce_targets"] == {"value": True, "source": source}


def test_the_operator_is_told_at_the_start() -> None:
    told = warnings(load({"enforce_targets": True}, {}))

    assert [text for text in told if "2,000 entities" in text]
    assert warnings(load({}, {})) == []


def test_by_default_no_target_is_enforced(start_server: StartServer) -> None:
    live = start_server("--in-memory")
    with TableServiceClient(live.endpoint, credential=CREDENTIAL, retry_total=0) as service:
        staff = service.create_table("Staff")

        for start in range(0, 300, 100):
            staff.submit_transaction(upserts("Sales", start, text=FAT))

        assert len(list(staff.list_entities(select="RowKey"))) == 300
