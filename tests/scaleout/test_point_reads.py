"""A point read on PostgreSQL in few steps has the answer of any other request, byte for byte."""

import uuid
from collections.abc import AsyncIterator

import msgspec
import pytest

from partita.clock import ManualClock
from partita.errors import StoreBusyError
from partita.scaleout.tables.trips import Trips
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT
from partita.service.accounts.respond import Front
from partita.service.hosting.opening import Place, open_accounts
from partita.service.http.request import Request, Response
from partita.storage.durability import Durability
from support.catalog_databases import shared_url
from support.front_ends import cut_ranges
from support.fronts import KEYS, Fronts

USUAL = "(PartitionKey='p',RowKey='r')"


ACCOUNT_KEYS = {DEVELOPMENT_ACCOUNT: [KEYS[DEVELOPMENT_ACCOUNT]]}


class Read:
    """A table with one entity, behind a front end of its own."""

    def __init__(self, fronts: Fronts, place: Place) -> None:
        self.fronts = fronts
        self.place = place
        self.table = f"Staff{uuid.uuid4().hex[:12]}"

    @property
    def front(self) -> Front:
        return self.fronts.fronts["tables"]

    def request(self, key: str = USUAL, **headers: str) -> Request:
        return self.fronts.request("tables", "GET", f"/{self.table}{key}", headers=headers)

    async def at_once(self, request: Request) -> Response:
        """Return the answer that is not made by `respond`, or fail."""
        respond = self.front.respond
        self.front.respond = None  # type: ignore[assignment, method-assign]
        try:
            begun = self.front.begin(request)
            assert not isinstance(begun, Response)
            return await begun
        finally:
            self.front.respond = respond  # type: ignore[method-assign]


@pytest.fixture
async def read() -> AsyncIterator[Read]:
    clock = ManualClock()
    place = Place(await shared_url(), Durability.FAST, checks_clock=False)
    async with open_accounts(ACCOUNT_KEYS, place, clock) as [account]:
        read = Read(Fronts({account.name: account}, clock), place)
        ask = read.fronts.ask
        await ask("tables", "POST", "/Tables", f'{{"TableName":"{read.table}"}}'.encode())
        body = b'{"PartitionKey":"p","RowKey":"r","Text":"\xc3\xa9","Age":4}'
        assert (await ask("tables", "POST", f"/{read.table}", body)).status == 201
        yield read


def masked(response: Response) -> Response:
    headers = [
        (name, "-" if name == "x-ms-request-id" else value) for name, value in response.headers
    ]
    body = response.body.partition(b"RequestId:")[0] if response.status >= 400 else response.body
    return msgspec.structs.replace(response, headers=headers, body=body)


async def test_a_usual_read_has_the_same_answer(read: Read) -> None:
    for headers in ({}, {"x-ms-client-request-id": "one"}, {"accept": "application/json"}):
        request = read.request(**headers)

        found = await read.at_once(request)

        assert found.status == 200
        assert masked(found) == masked(await read.front.respond(request))


@pytest.mark.parametrize(
    "key", [USUAL.replace("'r'", "'none'"), "(PartitionKey='a%20b',RowKey='')"]
)
async def test_an_entity_that_does_not_exist_has_the_same_answer(read: Read, key: str) -> None:
    request = read.request(key)
    begun = read.front.begin(request)
    assert not isinstance(begun, Response)

    found = await begun

    assert found.status == 404
    assert masked(found) == masked(await read.front.respond(request))


async def test_a_busy_database_has_the_same_answer_and_is_asked_once(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def busy(_trips: Trips, _item: object) -> None:
        nonlocal asked
        asked += 1
        raise StoreBusyError("ServerBusy", "The server is busy.", facts={"retry_after": 2})

    monkeypatch.setattr(Trips, "read", busy)
    request = read.request()

    found = await read.at_once(request)

    assert (found.status, found.header("Retry-After"), asked) == (503, "2", 1)
    assert request.observed.operation == "QueryEntity"
    assert masked(found) == masked(await read.front.respond(request))


async def test_a_range_that_was_changed_is_read_again(read: Read) -> None:
    account = read.fronts.account
    table = await account.tables.require_table(read.table)
    await cut_ranges(account.backing, table.id, ["a", "q"])  # type: ignore[arg-type]

    assert (await read.at_once(read.request())).status == 200


async def test_a_table_that_was_dropped_is_not_found(read: Read) -> None:
    async with open_accounts(ACCOUNT_KEYS, read.place, ManualClock()) as [account]:
        await account.tables.delete_table(read.table)
    begun = read.front.begin(read.request())
    assert not isinstance(begun, Response)

    assert (await begun).status == 404
