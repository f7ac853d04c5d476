"""Whatever is sent to a service, signed or not, is answered: never with a fault of ours."""

import asyncio
import base64
import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.blobs.rules.model import BlobName
from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT as ACCOUNT
from partita.service.accounts.account import DEVELOPMENT_KEY, Accounts
from partita.service.accounts.respond import Front
from partita.service.auth.shared_key import SigningKey, string_to_sign
from partita.service.hosting.services import KINDS
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Request, Response
from support.accounts import open_folder_account
from support.repeats import repeat

KEY = SigningKey.from_base64(DEVELOPMENT_KEY)
LETTERS = {"blobs": "b", "queues": "q", "tables": "t"}
EXAMPLES = repeat(80, 400, 4_000)


class Doors:
    """The three services of one account in memory, on a loop of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.account = self.loop.run_until_complete(
            open_folder_account(ACCOUNT, [DEVELOPMENT_KEY], root=None, clock=self.clock)
        )
        accounts = Accounts([self.account], self.clock)
        self.fronts = {
            kind.name: Front(kind.build(accounts, self.clock), accounts, self.clock)
            for kind in KINDS
        }

    def send(self, service: str, request: Request, *, is_signed: bool) -> Response:
        if is_signed:
            try:
                text = string_to_sign(request, ACCOUNT, LETTERS[service])
            except PartitaError:
                text = ""
            mac = base64.b64encode(KEY.signature(text)).decode()
            request.headers["authorization"] = f"SharedKey {ACCOUNT}:{mac}"
        return self.loop.run_until_complete(self._send(service, request))

    async def build(self) -> None:
        """Make what requests may hit, where an earlier one took it away."""
        blobs, queues, tables = self.account.blobs, self.account.queues, self.account.tables
        for container in ("photos", "$root"):
            if await blobs.containers.find_container(container) is None:
                await blobs.containers.create_container(container)
            with contextlib.suppress(PartitaError):  # somebody may hold a lease
                await blobs.put_blob(BlobName(container, "work"), b"hello")
        await queues.create_queue("messages", {})
        with contextlib.suppress(PartitaError):
            await queues.create_queue("work", {})
        if await tables.store.find_table("T1x") is None:
            await tables.create_table("T1x")

    async def _send(self, service: str, request: Request) -> Response:
        response = await self.fronts[service].respond(request)
        if response.download is not None:
            await response.download.close()
        return response

    def close(self) -> None:
        self.loop.run_until_complete(self.account.close())
        self.loop.close()


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    opened = Doors()
    yield opened
    opened.close()


WORDS = ["photos", "$root", "work", "messages", "Tables", "T1x()",
         "T1x(PartitionKey='',RowKey='')", "$batch", "a/b", "%2F", "%2e%2e", "%00", "%ff", "é",
         "\udcff", "'", "//", "..", ""]  # fmt: skip
NAMES = ["comp", "restype", "COMP", "include", "prefix", "marker", "maxresults", "delimiter",
         "timeout", "snapshot", "versionid", "blockid", "popreceipt", "visibilitytimeout",
         "numofmessages", "peekonly", "messagettl", "where", "sig", "sv", "sr", "ss", "srt", "sp",
         "se", "si", "tn", "sdd", "rsct", "skoid", "api-version", "$filter", "$top"]  # fmt: skip
VALUES = ["", "list", "container", "service", "account", "properties", "metadata", "acl", "lease",
          "block", "blocklist", "stats", "tags", "batch", "page", "b", "c", "sco", "-1", "0", "1",
          "99999999999", "true", "2021-08-06", "2026-10-06", "%0A", "%00", "%ff", "+", "AAAA",
          "2030-01-01T00:00:00Z", "\u20ac"]  # fmt: skip
HEADERS = ["x-ms-version", "x-ms-blob-type", "x-ms-meta-a", "x-ms-meta-", "x-ms-lease-action",
           "x-ms-lease-id", "x-ms-range", "range", "if-match", "if-none-match", "content-md5",
           "if-modified-since", "x-ms-copy-source", "content-type", "x-ms-client-request-id",
           "origin", "host", "x-http-method", "x-ms-blob-content-length", "date"]  # fmt: skip
HEADER_VALUES = ["", "*", "BlockBlob", "AppendBlob", "PageBlob", "acquire", "break", "bytes=0-",
                 "bytes=5-1", "bytes=-", '"0x8D"', "AAAA", "Mon, 01 Jan 2024 00:00:00 GMT",
                 "2021-08-06", "2099-01-01", "text/xml",
                 "http://127.0.0.1/devstoreaccount1/photos/a",
                 "multipart/mixed; boundary=b", "evil.test", "127.0.0.1", "-1", "512",
                 "é"]  # fmt: skip
BODIES = [b"", b"x", b"{}", b"\xff\xfe", b"<", b"<a/>", b"--b\r\n", b"<StorageServiceProperties />",
          b"<SignedIdentifiers />", b"<BlockList><Latest>AAAA</Latest></BlockList>",
          b"<QueueMessage><MessageText>x</MessageText></QueueMessage>",
          b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>']  # fmt: skip

paths = st.lists(st.sampled_from(WORDS), max_size=4).map(
    lambda words: f"/{ACCOUNT}/" + "/".join(words)
)
queries = st.lists(
    st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5
).map("&".join)
headers = st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(HEADER_VALUES), max_size=4)
METHODS = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "MERGE", "TRACE"]


@pytest.mark.parametrize("service", sorted(LETTERS))
def test_any_request_gets_an_answer_that_is_not_a_server_fault(doors: Doors, service: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(
        st.sampled_from(METHODS), paths, queries, headers, st.sampled_from(BODIES), st.booleans()
    )
    def run(
        method: str,
        path: str,
        query: str,
        given_headers: dict[str, str],
        body: bytes,
        is_signed: bool,
    ) -> None:
        fields = {
            "host": "127.0.0.1",
            "x-ms-date": http_date(doors.clock.ticks()),
            "content-length": str(len(body)),
            **given_headers,
        }
        request = Request(method, path, query, fields, body, "127.0.0.1")
        doors.loop.run_until_complete(doors.build())

        response = doors.send(service, request, is_signed=is_signed)

        assert response.status < 500 or response.status == 501
        assert response.header("x-ms-request-id")
        for name, value in response.headers:
            assert not {"\r", "\n", "\0"} & set(name + value)
        if response.status >= 400 and method != "OPTIONS":
            assert response.header("x-ms-error-code")
        if method == "HEAD" and service != "tables":
            assert response.body == b""

    run()


BOMBS = [
    b'<!DOCTYPE a [<!ENTITY b "c">]><StorageServiceProperties>&b;</StorageServiceProperties>',
    b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><StorageServiceProperties />',
    b"<StorageServiceProperties>" * 100_000,
    b"<StorageServiceProperties>" + b"<Cors />" * 20_000 + b"</StorageServiceProperties>",
    b"<StorageServiceProperties><Cors>" + b" " * 400_000 + b"</Cors></StorageServiceProperties>",
    b'<?xml version="1.0" encoding="no-such"?><StorageServiceProperties />',
    b"\xff\xfe<\x00a\x00",
    b"\x00" * 1000,
]


@pytest.mark.parametrize("service", sorted(LETTERS))
@pytest.mark.parametrize("body", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("target", ["properties", "policies"])
def test_a_document_that_is_not_plain_and_small_is_refused(
    doors: Doors, service: str, body: bytes, target: str
) -> None:
    policies = {
        "blobs": ("/photos", "restype=container&comp=acl"),
        "queues": ("/work", "comp=acl"),
        "tables": ("/T1x", "comp=acl"),
    }
    path, query = ("/", "restype=service&comp=properties")
    if target == "policies":
        path, query = policies[service]
        body = body.replace(b"StorageServiceProperties", b"SignedIdentifiers")
    fields = {
        "host": "127.0.0.1",
        "x-ms-version": "2026-10-06",
        "x-ms-date": http_date(doors.clock.ticks()),
        "content-length": str(len(body)),
    }

    response = doors.send(
        service, Request("PUT", f"/{ACCOUNT}{path}", query, fields, body), is_signed=True
    )

    assert response.status in (400, 404, 413), response.body
