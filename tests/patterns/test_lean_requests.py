"""Rows and messages over HTTP: one signed request each, and the SDK for what that does not do."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import (
    AccountSasPermissions,
    ResourceTypes,
    generate_account_sas,
)

from partita.bulk import http_client
from partita.bulk.http_client import HttpSender
from partita.errors import EntityExistsError, EntityNotFoundError, TableNotFoundError
from partita.patterns import Database, connect, entity, index, transaction
from partita.patterns.ports.connecting import open_async
from partita.patterns.ports.lean_port import LeanPort
from partita.patterns.ports.sdk_port import AioPort
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.http.request import Request
from support.live import LiveServer

EMULATOR = "UseDevelopmentStorage=true"
ODD = 'O\'Neil & <Söhne> / 100% ?#\\ "x"'


@entity(table="leanclerks", partition="{dept}", row="{id:06d}")
class Clerk:
    dept: str
    id: int
    name: str = ""


by_name = index(Clerk, table="leannames", partition="{name:esc}", row="{id:06d}_{dept}")
seen: list[str] = []


@transaction
async def note(db: Database, text: str) -> None:
    seen.append(text)


@pytest.fixture
async def served_db(served: LiveServer) -> AsyncIterator[Database]:
    async with connect(served.connection_string) as db:
        db.table(Clerk)
        await db.create_tables()
        await db.table(Clerk).all().allow_scan().delete()
        await db.drain()
        yield db


async def test_rows_and_messages_are_sent_without_the_sdk_and_counted(served_db: Database) -> None:
    clerks = served_db.table(Clerk)

    with served_db.measuring() as cost:
        await clerks.save(Clerk(dept="Sales", id=1, name="Ken"))
    assert cost.requests == 2  # the group, and the hint
    await served_db.drain()
    with served_db.measuring() as cost:
        found = await clerks.via(by_name).get(name="Ken", id=1, dept="Sales")

    assert found == Clerk(dept="Sales", id=1, name="Ken")
    assert cost.requests == 1


async def test_keys_and_messages_of_any_text_are_signed_and_escaped(served_db: Database) -> None:
    seen.clear()
    clerks = served_db.table(Clerk)

    await clerks.save(Clerk(dept="Ö'x %41", id=1, name=ODD))
    await served_db.start(note, ODD)
    report = await served_db.drain()

    assert (report.entries, report.transactions, report.failures) == (1, 1, 0)
    assert seen == [ODD]
    assert [each.name async for each in clerks.partition(dept="Ö'x %41")] == [ODD]


async def test_refusals_are_the_errors_of_the_sdk(served_db: Database) -> None:
    clerks = served_db.table(Clerk)
    await clerks.save(Clerk(dept="Sales", id=1))

    with pytest.raises(EntityExistsError) as exists:
        await clerks.save(Clerk(dept="Sales", id=1))
    with pytest.raises(EntityNotFoundError):
        await clerks.get(dept="Sales", id=2)
    with pytest.raises(TableNotFoundError) as missing:
        await served_db.raw("leanmissing").get("a", "b")

    assert exists.value.code == "EntityAlreadyExists"
    assert missing.value.facts["table"] == "leanmissing"
    assert await clerks.get_or_none(dept="Sales", id=2) is None


async def test_a_sas_is_sent_instead_of_a_signature(
    served: LiveServer, served_db: Database
) -> None:
    await served_db.table(Clerk).save(Clerk(dept="Sales", id=1, name="Ken"))
    sas = generate_account_sas(
        AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY),
        ResourceTypes(service=True, object=True),
        AccountSasPermissions(read=True),
        dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
    )
    parts = dict(part.split("=", 1) for part in served.connection_string.split(";") if part)
    where = f"TableEndpoint={parts['TableEndpoint']};SharedAccessSignature={sas}"

    async with connect(where) as db:
        with db.measuring() as cost:
            found = await db.table(Clerk).get(dept="Sales", id=1)

    assert (found.name, cost.requests) == ("Ken", 1)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "https_proxy", "NETRC"])
async def test_with_a_proxy_or_a_netrc_file_every_request_goes_through_the_sdk(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    lean = await open_async(EMULATOR)
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    through_sdk = await open_async(EMULATOR)

    assert isinstance(lean, LeanPort)
    assert isinstance(through_sdk, AioPort)
    await lean.close()
    await through_sdk.close()


def answer(status: str, body: bytes = b"", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """Answer requests with these bytes, on any connections; yield the address and the agents."""
    left, agents = iter(answers), list[str]()
    serving: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        while head := (await reader.read(65536)).decode():
            lines = head.lower().split("\r\n")
            agents.append(next(line for line in lines if line.startswith("user-agent")))
            writer.write(next(left))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{DEVELOPMENT_ACCOUNT}"
    where = (
        f"DefaultEndpointsProtocol=http;AccountName={DEVELOPMENT_ACCOUNT};"
        f"AccountKey={DEVELOPMENT_KEY};TableEndpoint={root};QueueEndpoint={root}"
    )
    try:
        yield where, agents
    finally:
        server.close()
        await asyncio.gather(*filter(None, serving))


async def test_a_busy_server_is_asked_again_by_the_sdk() -> None:
    row = b'{"PartitionKey":"Sales","RowKey":"000001","EntityType":"Clerk","Name":"Ken"}'

    answers = answer("503 Busy"), answer("200 OK", row)
    async with answering(*answers) as (where, agents), connect(where) as db:
        with db.measuring() as cost:
            found = await db.table(Clerk).get(dept="Sales", id=1)

    assert (found.name, cost.requests) == ("Ken", 2)
    assert [agent == "user-agent: partita" for agent in agents] == [True, False]


async def test_a_connection_that_was_idle_for_long_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        while await reader.read(65536):
            writer.write(answer("200 OK"))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sender = HttpSender(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    await sender.respond(Request("GET", "/"))
    await sender.respond(Request("GET", "/"))
    assert len(connections) == 1
    monkeypatch.setattr(http_client, "IDLE_SECONDS_MAX", -1.0)
    await sender.respond(Request("GET", "/"))
    assert len(connections) == 2

    await sender.close()
    server.close()
    await asyncio.gather(*filter(None, connections))
