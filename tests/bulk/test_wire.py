"""The wire client against `partita serve`, a folder, and servers that misbehave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from azure.core.credentials import AccessToken

from partita.bulk import http_client, wire
from partita.bulk.batches import Change, Kind
from partita.bulk.connecting import connected, parse_where, place_text
from partita.bulk.http_client import AnswerLostError, HttpSender
from partita.bulk.identity import RENEW_SECONDS, TokenSource
from partita.bulk.wire import Credential, Query, TableClient
from partita.clock import SystemClock
from partita.errors import (
    ConfigurationError,
    DamageError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    GroupRuleError,
    InvalidRequestError,
    NotAuthorizedError,
    PartitaError,
    StoreLockedError,
    TableExistsError,
    TableNotFoundError,
    ThrottledError,
    UnavailableError,
)
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.hosting.locations import Remote
from partita.service.http.request import Request
from partita.ticks import TICKS_PER_SECOND
from support.live import LiveServer

ODD_KEYS = ["", "a b", "it's", "ünï", "a+b=c&d%41", "\U0001f600", '"quoted"', "a,b(c)"]


def an_entity(partition_key: str, row_key: str, **properties: object) -> bytes:
    return msgspec.json.encode({"PartitionKey": partition_key, "RowKey": row_key, **properties})


@asynccontextmanager
async def answering(answer: Callable[[int], bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve raw answers by the number of the request; yield a connection string and requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                heads.append(head)
                sent = answer(len(heads))
                if not sent:
                    break
                writer.write(sent)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    where = (
        f"AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY};"
        f"TableEndpoint=http://127.0.0.1:{port}/{DEVELOPMENT_ACCOUNT}"
    )
    yield where, heads
    server.close()


def test_a_request_without_a_body_is_one_piece() -> None:
    # An empty piece wakes the loop of asyncio without end, from Python 3.12 on.
    assert len(http_client._printed(Request("GET", "/"), "host")) == 1
    assert len(http_client._printed(Request("POST", "/", body=b"{}"), "host")) == 2


def always(sent: bytes) -> Callable[[int], bytes]:
    return lambda _number: sent


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


EMPTY = http("200 OK", b'{"value":[]}')


# --- entities


async def test_an_entity_is_written_changed_and_deleted(client: TableClient, table: str) -> None:
    first = await client.insert(table, "p", "r", an_entity("p", "r", A=1, B="x"))
    second = await client.merge(table, "p", "r", an_entity("p", "r", A=2), first)
    found = await client.get(table, "p", "r")

    assert found.etag == second != first
    assert b'"B":"x","A":2' in found.document

    third = await client.replace(table, "p", "r", an_entity("p", "r", C=3.0), second)
    assert b'"C":3.0' in (await client.get(table, "p", "r")).document
    with pytest.raises(ETagMismatchError):
        await client.delete(table, "p", "r", second)
    await client.delete(table, "p", "r", third)
    with pytest.raises(EntityNotFoundError):
        await client.get(table, "p", "r")


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_odd_keys_are_written_read_and_grouped(
    client: TableClient, table: str, key: str
) -> None:
    await client.replace(table, key, key, an_entity(key, key, N=1))
    changes = [
        Change(Kind.UPSERT_REPLACE, key, f"{key}{n}", an_entity(key, f"{key}{n}")) for n in "12"
    ]
    etags = await client.run(table, changes)
    found = await client.get(table, key, key)

    assert msgspec.json.decode(found.document)["RowKey"] == key
    assert len(etags) == 2
    quoted = key.replace("'", "''")
    page = await client.query(table, Query(f"PartitionKey eq '{quoted}'"))
    assert len(page.entities) == 3


async def test_pages_follow_their_continuation(client: TableClient, table: str) -> None:
    for start in range(0, 300, 100):
        await client.run(
            table,
            [
                Change(Kind.INSERT, "p", f"{n:04}", an_entity("p", f"{n:04}", N=n))
                for n in range(start, start + 100)
            ],
        )

    pages = [page async for page in client.pages(table, Query(top=120, select=("N",)))]

    assert [len(page.entities) for page in pages] == [120, 120, 60]
    assert pages[-1].continuation is None
    assert msgspec.json.decode(pages[1].entities[0])["N"] == 120


async def test_a_group_is_atomic_and_names_the_operation_that_failed(
    client: TableClient, table: str
) -> None:
    await client.insert(table, "p", "2", an_entity("p", "2"))
    changes = [Change(Kind.INSERT, "p", str(n), an_entity("p", str(n))) for n in range(4)]

    with pytest.raises(EntityExistsError) as caught:
        await client.run(table, changes)

    assert caught.value.facts["index"] == 2
    assert "RequestId" not in caught.value.message
    assert len((await client.query(table)).entities) == 1


async def test_deletes_in_a_group_need_their_version(client: TableClient, table: str) -> None:
    etags = [await client.insert(table, "p", n, an_entity("p", n)) for n in "12"]
    changes = [Change(Kind.DELETE, "p", n, etag=etag) for n, etag in zip("12", etags, strict=True)]
    await client.merge(table, "p", "2", an_entity("p", "2", New=True))

    with pytest.raises(ETagMismatchError) as caught:
        await client.run(table, changes)

    assert caught.value.facts["index"] == 1
    assert await client.run(table, changes[:1]) == []


async def test_a_group_above_the_limit_is_refused_here(client: TableClient, table: str) -> None:
    changes = [Change(Kind.INSERT, "p", str(n), an_entity("p", str(n))) for n in range(101)]

    with pytest.raises(GroupRuleError) as caught:
        await client.run(table, changes)

    assert caught.value.code == "GroupTooLarge"


async def test_the_plan_of_a_query_is_read_on_request(client: TableClient, table: str) -> None:
    query = Query("PartitionKey eq 'p' and RowKey ge 'a'")

    assert (await client.query(table, query)).plan == ""
    assert (await client.query(table, query, explain=True)).plan == "range pk='p' rk>='a'"


async def test_a_bad_filter_is_an_error_with_its_code(client: TableClient, table: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await client.query(table, Query("A eq"))

    assert caught.value.code == "InvalidInput"
    assert caught.value.facts["table"] == table


# --- tables


async def test_tables_are_created_listed_and_deleted(client: TableClient, name: str) -> None:
    assert await client.create_table(name)
    assert not await client.create_table(name)
    with pytest.raises(TableExistsError):
        await client.create_table(name, may_exist=False)
    assert await client.list_tables(name) == [name]
    assert name in await client.list_tables()

    await client.delete_table(name)

    assert await client.list_tables(name) == []
    with pytest.raises(TableNotFoundError) as caught:
        await client.query(name)
    assert "create" in caught.value.hint


async def test_a_name_that_is_not_one_of_a_table_stays_in_its_place(client: TableClient) -> None:
    for name in ("a/../Tables", "x?comp=list", "T'", "T\r\nX: 1"):
        with pytest.raises(PartitaError):
            await client.query(name)


# --- where


async def test_a_folder_is_opened_in_process_and_refused_while_a_server_has_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError) as missing:
        async with connected(f"partita:{tmp_path}"):
            pass
    assert missing.value.code == "FolderUnusable"

    live = LiveServer(tmp_path, "--path", str(tmp_path))
    try:
        with pytest.raises(StoreLockedError) as caught:
            async with connected(f"partita:{tmp_path}"):
                pass
    finally:
        live.stop()
    assert "UseDevelopmentStorage=true" in caught.value.hint

    async with connected(str(tmp_path)) as client:
        await client.create_table("Staff")
        changes = [Change(Kind.INSERT, "p", n, an_entity("p", n)) for n in "12"]
        await client.run("Staff", changes)
        assert len((await client.query("Staff")).entities) == 2
        with pytest.raises(EntityExistsError):
            await client.run("Staff", changes)


def test_postgresql_is_refused_and_the_alternative_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_where("partita:postgresql://ada:secret@db/orders")

    assert "partita serve --store" in caught.value.hint
    assert "secret" not in str(caught.value)


async def test_a_sas_url_reads_its_table_and_nothing_else(
    server: LiveServer, client: TableClient, table: str
) -> None:
    from datetime import UTC, datetime, timedelta

    from azure.core.credentials import AzureNamedKeyCredential
    from azure.data.tables import TableSasPermissions, generate_table_sas

    await client.insert(table, "p", "r", an_entity("p", "r"))
    sas = generate_table_sas(
        AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY),
        table,
        permission=TableSasPermissions(read=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    url = f"{server.endpoint}/{table}?{sas}"

    assert place_text(url) == server.endpoint
    async with connected(url) as granted:
        assert len((await granted.query(table)).entities) == 1
        with pytest.raises(NotAuthorizedError):
            await granted.insert(table, "p", "s", an_entity("p", "s"))


async def test_a_wrong_key_is_refused_with_a_hint(server: LiveServer) -> None:
    where = server.connection_string.replace(DEVELOPMENT_KEY, "aGVsbG8=")

    async with connected(where) as client:
        with pytest.raises(NotAuthorizedError) as caught:
            await client.list_tables()

    assert caught.value.code == "AuthenticationFailed"
    assert caught.value.hint


class Signed:
    """A credential of azure-identity, as far as it is used; each token is valid for a minute."""

    def __init__(self) -> None:
        self.scopes: list[str] = []

    def get_token(self, scope: str) -> AccessToken:
        self.scopes.append(scope)
        now = SystemClock().ticks() // TICKS_PER_SECOND
        return AccessToken(f"token-{len(self.scopes)}", now + RENEW_SECONDS + 60)


async def test_tokens_are_sent_instead_of_signatures_and_kept() -> None:
    async with answering(always(EMPTY)) as (where, heads):
        endpoint = where.partition("TableEndpoint=")[2]
        signed = Signed()
        tokens = TokenSource(signed, SystemClock())
        credential = Credential(DEVELOPMENT_ACCOUNT, tokens=tokens)
        client = TableClient(endpoint, credential, HttpSender(endpoint), SystemClock())
        async with client:
            await client.query("T")
            await client.query("T")

    assert signed.scopes == ["https://storage.azure.com/.default"]
    for head in heads:
        assert b"authorization: Bearer token-1\r\n" in head
        assert b"x-ms-version: 2020-12-06\r\n" in head


@pytest.mark.parametrize(
    "where", ["https://acct.table.core.windows.net", "https://acct.table.core.windows.net/"]
)
def test_an_address_alone_is_an_account_to_sign_in_to(where: str) -> None:
    found = parse_where(where)

    assert isinstance(found, Remote)
    assert found.has_identity
    assert found.account == "acct"
    assert found.endpoints["queues"] == "https://acct.queue.core.windows.net"
    with pytest.raises(ConfigurationError):
        parse_where(where.replace("https:", "http:"))
    with pytest.raises(ConfigurationError):
        parse_where(where + "?sv=1")


@pytest.mark.skipif(find_spec("azure.identity") is not None, reason="azure-identity is installed")
async def test_signing_in_without_its_package_names_it() -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with connected("https://acct.table.core.windows.net"):
            pass

    assert caught.value.code == "NotInstalled"
    assert "pip install azure-identity" in caught.value.hint


# --- servers that misbehave


async def test_a_server_that_is_not_there_is_reported_at_once() -> None:
    async with connected(
        f"AccountName=a;AccountKey={DEVELOPMENT_KEY};TableEndpoint=http://127.0.0.1:1/a"
    ) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.list_tables()

    assert caught.value.code == "ServerUnreachable"


async def test_a_busy_server_is_asked_again() -> None:
    def answer(number: int) -> bytes:
        return EMPTY if number == 3 else http("503 Busy", b"{}", "Retry-After: 0")

    waits: list[float] = []
    async with (
        answering(answer) as (where, heads),
        connected(where, on_wait=waits.append) as client,
    ):
        assert (await client.query("T")).entities == []

    assert len(heads) == 3
    assert len(waits) == client.throttled_count == 2


async def test_a_server_that_stays_busy_is_an_error() -> None:
    async with (
        answering(lambda _: http("429 Slow", b"", "Retry-After: 100000")) as (where, _),
        connected(where) as client,
    ):
        client._patience_seconds = 30
        with pytest.raises(ThrottledError) as caught:
            await client.query("T")

    assert caught.value.retry_after == 60


async def test_a_lost_answer_is_repeated_for_reads_and_upserts_only() -> None:
    def answer(number: int) -> bytes:
        return b"" if number in (2, 4) else EMPTY if number < 4 else http("204 No Content")

    async with answering(answer) as (where, heads), connected(where) as client:
        await client.query("T")
        await client.query("T")
        await client.replace("T", "p", "r", an_entity("p", "r"))
        assert len(heads) == 5

    async with answering(lambda _: b"") as (where, heads), connected(where) as client:
        with pytest.raises(AnswerLostError):
            await client.insert("T", "p", "r", an_entity("p", "r"))
        assert len(heads) == 1


@pytest.mark.parametrize(
    "sent",
    [
        http("200 OK", b"<html>"),
        http("200 OK", b'{"value":[1'),
        http("200 OK", b'{"value":7}'),
        http("200 OK", b"\xff\xfe"),
        http("302 Found", b"", "Location: http://elsewhere"),
        http("400 Bad", b"\xff<code>"),
        http("500 Broken", b"x" * 100_000),
    ],
)
async def test_an_answer_of_something_else_is_a_typed_error(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(always(sent)) as (where, _), connected(where) as client:
        client._patience_seconds = 0
        with pytest.raises(PartitaError) as caught:
            await client.query("T")

    assert len(caught.value.message) < 1000


async def test_an_answer_that_is_not_http_or_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_client, "ANSWER_BYTES_MAX", 1000)
    for sent in (b"hello\r\n\r\n", http("200 OK", b'{"value":[]}' + b" " * 2000)):
        async with answering(always(sent)) as (where, _), connected(where) as client:
            client._patience_seconds = 0
            with pytest.raises(AnswerLostError):
                await client.query("T")


async def test_a_batch_answer_of_something_else_is_a_typed_error() -> None:
    changes = [Change(Kind.UPSERT_REPLACE, "p", n, an_entity("p", n)) for n in "12"]
    for content in (b"", b"--x\r\n--x--", b"--x\r\n\r\nHTTP/1.1 9 \r\n\r\n--x--"):
        sent = http("202 Accepted", content, "Content-Type: multipart/mixed; boundary=x")
        async with answering(always(sent)) as (where, _), connected(where) as client:
            with pytest.raises(DamageError):
                await client.run("T", changes)


async def test_a_server_that_never_answers_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ATTEMPT_SECONDS_MAX", 0.05)
    connections: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(
        lambda _reader, writer: connections.append(writer), "127.0.0.1", 0
    )
    port = silent.sockets[0].getsockname()[1]
    where = f"AccountName=a;AccountKey={DEVELOPMENT_KEY};TableEndpoint=http://127.0.0.1:{port}/a"

    async with connected(where) as client:
        with pytest.raises(AnswerLostError) as caught:
            await client.insert("T", "p", "r", an_entity("p", "r"))

    assert caught.value.code == "AnswerLate"
    for writer in connections:
        writer.close()
    silent.close()
