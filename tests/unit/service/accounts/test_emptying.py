"""The request that empties an account, and its guard."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from partita.blobs.rules.model import LeaseRequest, Retention
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.service.auth.sas import Sas, sign
from support.fronts import PRIVATE_ACCOUNT, VERSION, Fronts, opened_fronts, told

EMPTY = "/?restype=account&comp=empty"


@pytest.fixture
async def served() -> AsyncIterator[Fronts]:
    async with opened_fronts() as fronts:
        yield fronts


@pytest.mark.parametrize("service", ["blobs", "queues", "tables"])
async def test_every_service_empties_the_whole_account(served: Fronts, service: str) -> None:
    account = served.account
    for number in range(3):
        await account.tables.create_table(f"Tab{number}")
        await account.queues.create_queue(f"queue{number}", {})
        await account.blobs.containers.create_container(f"box{number}")
    lease = LeaseRequest("acquire", proposed_id=None, duration=-1)
    await account.blobs.containers.lease_container("box1", lease)

    answer = await served.ask(service, "POST", EMPTY)

    assert answer.status == 200
    assert msgspec.json.decode(answer.body) == {
        "account": "devstoreaccount1",
        "tables": 3,
        "queues": 3,
        "containers": 3,
    }
    assert (await account.tables.list_tables(None)).tables == []
    assert (await account.queues.list_queues()).queues == []
    assert (await account.blobs.containers.list_containers()).items == []


async def test_what_is_kept_of_deleted_containers_is_removed_too(served: Fronts) -> None:
    account, containers = served.account, served.account.blobs.containers
    account.blobs.keeper.retention = Retention(container_days=7)
    for _ in range(2):
        await containers.create_container("box")
        await containers.delete_container("box")
    await containers.create_container("box")
    assert len((await containers.list_containers(with_deleted=True)).items) == 3
    await account.set_properties("b", ServiceProperties(container_retention_days=7))

    answer = await served.ask("blobs", "POST", EMPTY)

    assert msgspec.json.decode(answer.body)["containers"] == 1
    assert (await containers.list_containers(with_deleted=True)).items == []


async def test_an_account_with_a_key_of_its_own_is_emptied_only_if_that_is_allowed(
    served: Fronts,
) -> None:
    private = served.accounts[PRIVATE_ACCOUNT]
    await private.tables.create_table("Kept")

    refused = await served.ask("tables", "POST", EMPTY, account=PRIVATE_ACCOUNT)
    kept = (await private.tables.list_tables(None)).tables
    served.served.allows_empty = True
    answer = await served.ask("tables", "POST", EMPTY, account=PRIVATE_ACCOUNT)

    assert told(refused) == "403 AuthorizationFailure"
    assert b"--allow-empty" in refused.body
    assert [table.name for table in kept] == ["Kept"]
    assert answer.status == 200
    assert (await private.tables.list_tables(None)).tables == []


async def test_no_sas_and_no_anonymous_request_empties_an_account(served: Fronts) -> None:
    await served.account.tables.create_table("Kept")
    terms = {"version": VERSION, "services": "bqt", "resource_types": "sco"}
    sas = Sas(**terms, permissions="rwdlacupxtfi", expiry="2040-01-01T00:00:00Z")
    key = served.account.keys[0]
    query = sign(sas, service="b", account="devstoreaccount1", key=key)

    by_sas = await served.ask("blobs", "POST", f"{EMPTY}&{query}", is_signed=False)
    by_nobody = await served.ask("blobs", "POST", EMPTY, is_signed=False)

    assert told(by_sas) == "403 AuthorizationFailure"
    assert told(by_nobody) == "403 AuthorizationFailure"
    assert len((await served.account.tables.list_tables(None)).tables) == 1


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", EMPTY), ("PUT", EMPTY), ("DELETE", EMPTY), ("POST", f"/box{EMPTY[1:]}")],
)
async def test_other_requests_do_not_empty_the_account(
    served: Fronts, method: str, target: str
) -> None:
    await served.account.tables.create_table("Kept")

    answer = await served.ask("blobs", method, target)

    assert answer.status >= 400
    assert len((await served.account.tables.list_tables(None)).tables) == 1


async def test_the_secondary_endpoint_empties_nothing(served: Fronts) -> None:
    request = served.request("blobs", "POST", EMPTY)
    assert request.path == "/devstoreaccount1/"
    secondary = msgspec.structs.replace(request, path="/devstoreaccount1-secondary/")

    answer = await served.fronts["blobs"].respond(secondary)

    assert told(answer) == "403 InsufficientAccountPermissions"
