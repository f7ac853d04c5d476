"""The table protocol as calls: pages, entities, groups of changes and tables of one account.

Entities are JSON in minimal metadata, as the service sends them: `partita.bulk.entities` reads
their types. Every call has a time limit. A busy server is asked again later; a lost answer is
repeated only if the call has the same result when it is performed twice.
"""

import asyncio
import binascii
import codecs
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from partita.bulk import batches
from partita.bulk.batches import Change, Kind
from partita.bulk.entities import decode_keys, last_document
from partita.bulk.http_client import AnswerLostError
from partita.bulk.service_errors import error_of
from partita.errors import (
    DamageError,
    GroupRuleError,
    PartitaError,
    TableExistsError,
    ThrottledError,
    UnavailableError,
)
from partita.service.auth.shared_key import SigningKey
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Request, Response
from partita.tables import limits
from partita.ticks import Clock

VERSION = "2019-02-02"
"""The version of the protocol: the newest that every table service and emulator accepts."""
IDENTITY_VERSION = "2020-12-06"
"""The first version with which Azure accepts tokens for tables."""
ATTEMPT_SECONDS_MAX = 60.0
PATIENCE_SECONDS = 120.0
"""How long a call waits for a server that is busy or cannot be reached."""
BACK_OFF_SECONDS = 0.5
BACK_OFF_SECONDS_MAX = 20.0

T = TypeVar("T")

_ACCEPT = "application/json;odata=minimalmetadata"
_ACCEPT_BARE = "application/json;odata=nometadata"
_RANDOM_VALUES = 1 << 16
_POLICIES = {"comp": "acl"}
_PROPERTIES = {"restype": "service", "comp": "properties"}


class Sender(Protocol):
    """Sends one signed request and returns the answer."""

    async def respond(self, request: Request) -> Response: ...

    async def close(self) -> None: ...


class Tokens(Protocol):
    """Returns a bearer token that has not expired."""

    async def get(self) -> str: ...


class Credential(msgspec.Struct, frozen=True):
    """The key of an account, a shared access signature, or tokens."""

    account: str
    key: SigningKey | None = None
    sas: str = ""
    tokens: Tokens | None = None

    def __repr__(self) -> str:
        return f"Credential({self.account!r})"


class Continuation(msgspec.Struct, frozen=True):
    """Where the next page starts; opaque, as the service wrote it."""

    partition_key: str
    row_key: str = ""


class Query(msgspec.Struct, frozen=True):
    """Which entities of a table, and what of them."""

    filter: str = ""
    select: tuple[str, ...] = ()
    top: int | None = None
    has_metadata: bool = True
    """Whether entities have their etag and the types of their properties."""


EVERYTHING = Query()


class Page(msgspec.Struct, frozen=True, dict=True):
    """Entities as JSON in the order of the service, as the body of an answer has them."""

    body: bytes
    continuation: Continuation | None = None
    """None: this is the last page."""
    plan: str = ""
    """How the server read them, if it is Partita and the query asked for it."""
    examined: int | None = None
    """How many entities the server read for the page, under the same condition."""
    ranges: str = ""
    """Which ranges of a fleet have the keys of the query, and on which shards."""

    @functools.cached_property
    def entities(self) -> list[msgspec.Raw]:
        """The documents; DamageError if the body is not one of a table service."""
        return _decoded(_decode_entities, self.body).value

    def last_keys(self) -> tuple[str, str] | None:
        """Return the keys of the last entity; None if the page is empty."""
        last = last_document(self.body)
        try:
            keys = None if last is None else decode_keys(last)
        except msgspec.MsgspecError:
            keys = None
        if keys is None:
            if not self.entities:
                return None
            keys = decode_keys(self.entities[-1])
        return keys.partition_key, keys.row_key


class Entity(msgspec.Struct, frozen=True):
    """One entity as JSON, and its etag."""

    document: bytes
    etag: str


class _Entities(msgspec.Struct):
    value: list[msgspec.Raw]


class _Table(msgspec.Struct):
    name: str = msgspec.field(name="TableName")


class _Tables(msgspec.Struct):
    value: list[_Table]


_decode_entities = msgspec.json.Decoder(_Entities).decode
_decode_tables = msgspec.json.Decoder(_Tables).decode


class TableClient:
    """The tables of one account. Close it, or use it as a context manager.

    `on_wait` is called with the seconds of each wait for a busy or unreachable server.
    """

    def __init__(  # noqa: PLR0913 - what a client is built from, by name
        self,
        endpoint: str,
        credential: Credential,
        sender: Sender,
        clock: Clock,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        on_wait: Callable[[float], None] | None = None,
        agent: str = "",
    ) -> None:
        parts = urlsplit(endpoint)
        self.account = credential.account
        self.endpoint = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.on_wait = on_wait
        self.throttled_count = 0
        """How often the server answered that it is busy."""
        self._root = parts.path.rstrip("/")
        self._credential = credential
        self._sender = sender
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._agent = {"user-agent": agent} if agent else {}
        self._has_answered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._sender.close()

    # --- entities

    async def query(
        self,
        table: str,
        query: Query = EVERYTHING,
        start: Continuation | None = None,
        *,
        explain: bool = False,
        is_decoded: bool = True,
    ) -> Page:
        """Return one page, perhaps an empty one with a continuation.

        Without `is_decoded` its body is not checked: the caller decodes it.
        """
        options = {
            "$filter": query.filter,
            "$select": ",".join(query.select),
            "$top": "" if query.top is None else str(query.top),
        }
        if start is not None:
            options |= {"NextPartitionKey": start.partition_key, "NextRowKey": start.row_key}
        headers = {"x-partita-explain": "true"} if explain else {}
        if not query.has_metadata:
            headers["accept"] = _ACCEPT_BARE
        answer = await self._get(f"/{_quoted(table)}()", options, headers, facts={"table": table})
        partition_key = answer.header("x-ms-continuation-NextPartitionKey")
        row_key = answer.header("x-ms-continuation-NextRowKey") or ""
        following = None if partition_key is None else Continuation(partition_key, row_key)
        examined = answer.header("x-partita-examined") or ""
        page = Page(
            answer.body,
            following,
            answer.header("x-partita-plan") or "",
            int(examined) if examined.isascii() and examined.isdigit() else None,
            answer.header("x-partita-ranges") or "",
        )
        if is_decoded:
            page.entities  # noqa: B018 - decodes the body, which raises if it is unreadable
        return page

    async def pages(
        self, table: str, query: Query = EVERYTHING, start: Continuation | None = None
    ) -> AsyncIterator[Page]:
        """Yield all pages from `start` on."""
        while True:
            page = await self.query(table, query, start)
            yield page
            if page.continuation is None:
                return
            start = page.continuation

    async def get(
        self, table: str, partition_key: str, row_key: str, *, select: tuple[str, ...] = ()
    ) -> Entity:
        """Return one entity; raise EntityNotFoundError or TableNotFoundError."""
        path = f"/{_quoted(table)}{batches.entity_path(partition_key, row_key)}"
        facts = {"table": table, "partition_key": partition_key, "row_key": row_key}
        answer = await self._get(path, {"$select": ",".join(select)}, facts=facts)
        return Entity(answer.body, answer.header("etag") or "")

    async def insert(self, table: str, partition_key: str, row_key: str, document: bytes) -> str:
        """Store a new entity and return its etag; EntityExistsError if it exists."""
        return await self._change(table, Change(Kind.INSERT, partition_key, row_key, document))

    async def replace(
        self, table: str, partition_key: str, row_key: str, document: bytes, etag: str | None = None
    ) -> str:
        """Replace an entity and return its etag; without `etag`, whether it exists or not."""
        kind = Kind.UPSERT_REPLACE if etag is None else Kind.REPLACE
        return await self._change(
            table, Change(kind, partition_key, row_key, document, etag or "*")
        )

    async def merge(
        self, table: str, partition_key: str, row_key: str, document: bytes, etag: str | None = None
    ) -> str:
        """Change the given properties of an entity and return its etag, as `replace` does."""
        kind = Kind.UPSERT_MERGE if etag is None else Kind.MERGE
        return await self._change(
            table, Change(kind, partition_key, row_key, document, etag or "*")
        )

    async def delete(self, table: str, partition_key: str, row_key: str, etag: str = "*") -> None:
        """Delete an entity of this version; "*" is any version."""
        await self._change(table, Change(Kind.DELETE, partition_key, row_key, etag=etag))

    async def _change(self, table: str, change: Change) -> str:
        etags = await self.run(table, [change])
        return etags[0] if etags else ""

    async def run(self, table: str, changes: Sequence[Change]) -> list[str]:
        """Perform all changes or none, and return the etags of those that are not deletes.

        At most 100 changes of one partition, each entity once, within 4 MiB. The error of the
        first change that fails has its position as `facts["index"]`. AnswerLostError means that
        it is not known whether they were performed.
        """
        if not changes:
            return []
        if len(changes) == 1:
            return await self._run_one(table, changes[0])
        if len(changes) > limits.GROUP_OPERATIONS_MAX:
            raise GroupRuleError(
                "GroupTooLarge",
                f"A group has at most {limits.GROUP_OPERATIONS_MAX} operations, "
                f"not {len(changes)}.",
                hint="Split the changes into several groups.",
            )
        batch_id = self._clock.new_id()
        body = batches.print_group(f"{self.endpoint}/{_quoted(table)}", changes, batch_id)
        headers = {"content-type": batches.content_type(batch_id), "accept": "application/json"}
        is_repeatable = all(change.kind in batches.REPEATABLE for change in changes)
        facts = {"table": table, "partition_key": changes[0].partition_key}
        answer = await self._send(
            "POST", "/$batch", {}, headers, body, is_repeatable=is_repeatable, facts=facts
        )
        etags = batches.find_etags(answer.body, len(changes))
        if etags is not None:
            return etags
        parts = batches.read_answer(answer.body, answer.header("content-type") or "")
        for index, part in enumerate(parts):
            if part.status >= 400:
                raise error_of(part.status, part.headers, part.body, {**facts, "index": index})
        return [part.headers.get("etag", "") for part in parts]

    async def _run_one(self, table: str, change: Change) -> list[str]:
        headers = {"accept": _ACCEPT}
        if change.kind in batches.CONDITIONAL:
            headers["if-match"] = change.etag
        if change.kind is not Kind.DELETE:
            headers["content-type"] = "application/json"
            headers["prefer"] = "return-no-content"
        path = f"/{_quoted(table)}"
        if change.kind is not Kind.INSERT:
            path += batches.entity_path(change.partition_key, change.row_key)
        answer = await self._send(
            batches.METHODS[change.kind],
            path,
            {},
            headers,
            change.document,
            is_repeatable=change.kind in batches.REPEATABLE,
            facts={
                "table": table,
                "partition_key": change.partition_key,
                "row_key": change.row_key,
            },
        )
        etag = answer.header("etag")
        return [] if etag is None else [etag]

    # --- tables

    async def list_tables(self, prefix: str = "") -> list[str]:
        """Return the names of the tables that start with `prefix`, in the order of the service."""
        names: list[str] = []
        options: dict[str, str] = {}
        if prefix.isalnum():
            end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
            options["$filter"] = f"TableName ge '{prefix}' and TableName lt '{end}'"
        while True:
            answer = await self._get("/Tables", options)
            names += [table.name for table in _decoded(_decode_tables, answer.body).value]
            following = answer.header("x-ms-continuation-NextTableName")
            if following is None:
                return names
            options["NextTableName"] = following

    async def create_table(self, table: str, *, may_exist: bool = True) -> bool:
        """Create a table and return whether it is new."""
        body = msgspec.json.encode({"TableName": table})
        headers = {
            "content-type": "application/json",
            "accept": _ACCEPT,
            "prefer": "return-no-content",
        }
        try:
            await self._send(
                "POST",
                "/Tables",
                {},
                headers,
                body,
                is_repeatable=may_exist,
                facts={"table": table},
            )
        except TableExistsError:
            if not may_exist:
                raise
            return False
        return True

    async def delete_table(self, table: str) -> None:
        """Delete a table with all its entities; TableNotFoundError if it does not exist."""
        name = quote(table.replace("'", "''"), safe="")
        await self._send(
            "DELETE",
            f"/Tables('{name}')",
            {},
            {"accept": _ACCEPT},
            b"",
            is_repeatable=False,
            facts={"table": table},
        )

    # --- settings

    async def get_policies(self, table: str) -> bytes:
        """Return the stored access policies of a table, as XML."""
        return await self._get_settings(f"/{_quoted(table)}", _POLICIES, {"table": table})

    async def set_policies(self, table: str, document: bytes) -> None:
        """Replace the stored access policies of a table."""
        await self._set_settings(f"/{_quoted(table)}", _POLICIES, document, {"table": table})

    async def get_properties(self) -> bytes:
        """Return the properties of the table service, as XML: CORS, logging, metrics."""
        return await self._get_settings("/", _PROPERTIES, {})

    async def set_properties(self, document: bytes) -> None:
        """Replace the properties of the table service."""
        await self._set_settings("/", _PROPERTIES, document, {})

    async def _get_settings(
        self, path: str, options: dict[str, str], facts: Mapping[str, object]
    ) -> bytes:
        answer = await self._get(path, options, {"accept": "application/xml"}, facts=facts)
        return answer.body.removeprefix(codecs.BOM_UTF8)

    async def _set_settings(
        self, path: str, options: dict[str, str], document: bytes, facts: Mapping[str, object]
    ) -> None:
        headers = {"content-type": "application/xml", "accept": "application/xml"}
        await self._send("PUT", path, options, headers, document, is_repeatable=True, facts=facts)

    # --- requests

    async def _get(
        self,
        path: str,
        options: dict[str, str],
        headers: dict[str, str] | None = None,
        *,
        facts: Mapping[str, object] | None = None,
    ) -> Response:
        return await self._send(
            "GET",
            path,
            options,
            {"accept": _ACCEPT, **(headers or {})},
            b"",
            is_repeatable=True,
            facts=facts or {},
        )

    async def _send(  # noqa: PLR0913 - the parts of a request, and how it may be repeated
        self,
        method: str,
        path: str,
        options: dict[str, str],
        headers: dict[str, str],
        body: bytes,
        *,
        is_repeatable: bool,
        facts: Mapping[str, object],
    ) -> Response:
        query = "&".join(
            f"{name}={quote(value, safe='')}" for name, value in options.items() if value
        )
        started = self._clock.monotonic()
        attempt = 0
        while True:
            try:
                return await self._attempt(method, path, query, headers, body, facts=facts)
            except PartitaError as error:
                wait = self._wait_after(error, attempt, is_repeatable=is_repeatable)
                if wait is None or (
                    self._clock.monotonic() - started + wait > self._patience_seconds
                ):
                    raise
            attempt += 1
            if self.on_wait is not None:
                self.on_wait(wait)
            await asyncio.sleep(wait)

    def _wait_after(
        self, error: PartitaError, attempt: int, *, is_repeatable: bool
    ) -> float | None:
        """Return the seconds until the next attempt; None if there is none."""
        back_off: float = min(BACK_OFF_SECONDS * 2**attempt, BACK_OFF_SECONDS_MAX)
        share = int.from_bytes(self._clock.random_bytes(2)) / _RANDOM_VALUES
        jittered = back_off * (0.5 + share / 2)
        if isinstance(error, ThrottledError):
            self.throttled_count += 1
            return max(error.retry_after, jittered)
        if error.code == "ServerUnreachable":
            # The first call fails at once: the address is more likely wrong than the server late.
            return jittered if self._has_answered else None
        if not isinstance(error, UnavailableError) or not is_repeatable:
            return None
        return jittered

    async def _attempt(
        self,
        method: str,
        path: str,
        query: str,
        headers: dict[str, str],
        body: bytes,
        *,
        facts: Mapping[str, object],
    ) -> Response:
        tokens = self._credential.tokens
        token = "" if tokens is None else await tokens.get()
        request = self._signed(method, self._root + path, query, headers, body, token)
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS_MAX):
                response = await self._sender.respond(request)
        except TimeoutError as error:
            raise AnswerLostError(
                "AnswerLate",
                f"The server did not answer within {ATTEMPT_SECONDS_MAX:g} s.",
                facts=facts,
                hint="Check the load of the server, then repeat the command.",
            ) from error
        self._has_answered = True
        if response.status < 300:
            return response
        named = {name.lower(): value for name, value in response.headers}
        raise error_of(response.status, named, response.body, facts)

    def _signed(
        self,
        method: str,
        path: str,
        query: str,
        headers: dict[str, str],
        body: bytes,
        token: str,
    ) -> Request:
        credential = self._credential
        date = http_date(self._clock.ticks())
        sent = {
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "dataserviceversion": "3.0",
            "maxdataserviceversion": "3.0;NetFx",
            **self._agent,
            **headers,
        }
        if token:
            sent |= {"authorization": f"Bearer {token}", "x-ms-version": IDENTITY_VERSION}
        elif credential.key is None:
            query = f"{query}&{credential.sas}" if query else credential.sas
        else:
            component = next((each for each in query.split("&") if each.startswith("comp=")), "")
            text = f"{date}\n/{credential.account}{path}{component and '?' + component}"
            signature = _base64(credential.key.signature(text))
            sent["authorization"] = f"SharedKeyLite {credential.account}:{signature}"
        scheme = "https" if self.endpoint.startswith("https:") else "http"
        return Request(method, path, query, sent, body, peer="127.0.0.1", scheme=scheme)


def _quoted(table: str) -> str:
    return quote(table, safe="$")


def _base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamageError(
            "AnswerUnreadable",
            "The answer is not one of a table service.",
            hint="Check that the address is the table endpoint of an account, not a proxy.",
        ) from error
