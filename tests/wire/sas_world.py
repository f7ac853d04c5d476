"""An account in memory, every operation on it, and an oracle of who may do what.

The oracle is written from the protocol's tables of permissions, resource types and ranges. It
knows nothing of the code that decides.
"""

import json
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import combinations
from typing import NamedTuple
from urllib.parse import quote

from partita.clock import ManualClock
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.respond import Front
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.service.http.request import Request, Response
from partita.service.tables.service import TableService
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import Delete, EntityGroup, InsertOrReplace
from partita.tables.paging import KeyRange
from support.accounts import open_folder_account
from wire.hostile import (
    JSON,
    a_batch,
    a_part,
    a_query_batch,
    sign_account_sas,
    sign_table_sas,
)

NOW = "2023-11-14T22:13:20Z"
"""Where the clock of the account stands."""
LATER = "2023-11-15T00:00:00Z"
EARLIER = "2023-11-14T00:00:00Z"

TABLE = "Harbour"
OTHER = "Other"
DOOMED = "Doomed"
PARTITION_KEYS = ("", "B", "a", "a'", "a.", "b", "c", "e\u0301", "\u00e9")
ROW_KEYS = ("", "1", "2", "3", "9")
STORED_ROW_KEYS = ("1", "2", "3")

Key = tuple[str, str]
Fields = Mapping[str, str]

KEYS: list[Key] = [(pk, rk) for pk in PARTITION_KEYS for rk in ROW_KEYS]
STORED: list[Key] = [(pk, rk) for pk in PARTITION_KEYS for rk in STORED_ROW_KEYS]


class Operation(NamedTuple):
    """One way to ask for one thing."""

    name: str
    resource: str
    """s, c or o: what an account SAS calls it."""
    permissions: tuple[str, ...]
    """Alternatives, each with all its letters; none: no SAS will do."""
    method: str
    tunnelled: str | None = None
    is_conditional: bool = False
    target: str = ""
    """Empty: the entity, or the table for an insert."""
    body: str | None = None
    allowed: int = 204
    missing: int | None = None
    """The status if the entity is not there; None: does not matter."""
    existing: int | None = None


def _writes() -> Iterable[Operation]:
    yield Operation("insert", "o", ("a",), "POST", body="{}", allowed=201, existing=409)
    for method in ("PUT", "PATCH", "MERGE"):
        for tunnelled in (None, method):
            verb = "POST" if tunnelled else method
            name = f"tunnelled {method}" if tunnelled else method
            yield Operation(f"{name} upsert", "o", ("au",), verb, tunnelled, body="{}")
            yield Operation(
                f"{name} update", "o", ("u",), verb, tunnelled, True, body="{}", missing=404
            )
    for tunnelled in (None, "DELETE"):
        verb, name = ("POST", "tunnelled delete") if tunnelled else ("DELETE", "delete")
        yield Operation(name, "o", ("d",), verb, tunnelled, True, missing=404)


_SERVICE = "/?restype=service&comp="
WRITES = list(_writes())
GET = Operation("get", "o", ("r",), "GET", allowed=200, missing=404)
QUERY = Operation("query", "o", ("r",), "GET", target=f"/{TABLE}()", allowed=200)
ENTITY_OPERATIONS = [GET, QUERY, *WRITES]
TABLE_OPERATIONS = [
    Operation("list tables", "c", ("l",), "GET", target="/Tables", allowed=200),
    Operation("get table", "c", ("l",), "GET", target=f"/Tables('{TABLE}')", allowed=200),
    Operation(
        "create table",
        "c",
        ("c", "w"),
        "POST",
        target="/Tables",
        body='{"TableName":"New"}',
        allowed=201,
    ),
    Operation("delete table", "c", ("d",), "DELETE", target=f"/Tables('{DOOMED}')"),
    Operation(
        "tunnelled delete of a table", "c", ("d",), "POST", "DELETE", target=f"/Tables('{DOOMED}')"
    ),
    Operation("get policies", "c", (), "GET", target=f"/{TABLE}?comp=acl"),
    Operation("set policies", "c", (), "PUT", target=f"/{TABLE}?comp=acl"),
    Operation("get properties", "s", ("r",), "GET", target=f"{_SERVICE}properties", allowed=200),
    Operation(
        "set properties",
        "s",
        ("w",),
        "PUT",
        target=f"{_SERVICE}properties",
        body="<StorageServiceProperties><Cors/></StorageServiceProperties>",
        allowed=202,
    ),
    Operation(
        "get statistics", "s", ("r",), "GET", target=f"-secondary{_SERVICE}stats", allowed=200
    ),
]


class Verdict(NamedTuple):
    status: int
    code: str = ""

    @property
    def is_success(self) -> bool:
        return self.status < 300


FORBIDDEN = Verdict(403, "AuthorizationFailure")
LACKS_PERMISSION = Verdict(403, "AuthorizationPermissionMismatch")
WRONG_SERVICE = Verdict(403, "AuthorizationServiceMismatch")
WRONG_RESOURCE = Verdict(403, "AuthorizationResourceTypeMismatch")
NOT_FOUND = Verdict(404, "ResourceNotFound")
EXISTS = Verdict(409, "EntityAlreadyExists")
NOT_AUTHENTICATED = Verdict(403, "AuthenticationFailed")


# The oracle


def is_inside(key: Key, fields: Fields) -> bool:
    """Say whether the range of a token holds a key; both ends belong to it."""
    partition_key, row_key = key
    spk, srk = fields.get("spk", ""), fields.get("srk", "")
    epk, erk = fields.get("epk", ""), fields.get("erk", "")
    if spk and partition_key < spk:
        return False
    if spk and srk and partition_key == spk and row_key < srk:
        return False
    if epk and partition_key > epk:
        return False
    return not (epk and erk and partition_key == epk and row_key > erk)


def is_permitted(operation: Operation, letters: str) -> bool:
    return any(set(needed) <= set(letters) for needed in operation.permissions)


def by_table_sas(operation: Operation, key: Key, fields: Fields) -> Verdict:
    """Say what a valid SAS for the table answers."""
    if operation.resource != "o":
        return FORBIDDEN
    if not is_permitted(operation, fields["sp"]):
        return LACKS_PERMISSION
    if operation is QUERY:
        return Verdict(200)
    if not is_inside(key, fields):
        return NOT_FOUND if operation is GET else FORBIDDEN
    return if_let_in(operation, key)


def by_account_sas(operation: Operation, key: Key, fields: Fields) -> Verdict:
    if not operation.permissions:
        return FORBIDDEN
    if "t" not in fields["ss"]:
        return WRONG_SERVICE
    if operation.resource not in fields["srt"]:
        return WRONG_RESOURCE
    if not is_permitted(operation, fields["sp"]):
        return LACKS_PERMISSION
    return if_let_in(operation, key)


def if_let_in(operation: Operation, key: Key) -> Verdict:
    if operation.missing and key not in STORED:
        return NOT_FOUND
    if operation.existing and key in STORED:
        return EXISTS
    return Verdict(operation.allowed)


# The account


class World:
    """The account, and the memory of how it should be."""

    def __init__(self, app: Front, account: Account) -> None:
        self._app = app
        self._account = account
        self._before: list[object] = []

    @property
    def tables(self) -> TableEngine:
        return self._account.tables

    async def ask(self, request: Request) -> Verdict:
        return verdict_of(await self._app.respond(request))

    async def respond(self, request: Request) -> Response:
        return await self._app.respond(request)

    async def everything(self) -> list[object]:
        """Read all that a refused operation could have changed."""
        entities = []
        for name in (TABLE, OTHER):
            _, page = await self.tables.query(name, None, within=KeyRange())
            entities += [(name, entity.key, entity.etag) for entity in page.entities]
        listed = await self.tables.list_tables(None)
        policies = await self.tables.get_policies(TABLE)
        return [entities, listed, policies, self._account.properties["t"]]

    async def remember(self) -> None:
        self._before = await self.everything()

    async def is_unchanged(self) -> bool:
        return await self.everything() == self._before

    async def restore(self, keys: Iterable[Key] = ()) -> None:
        """Undo what an operation was allowed to do."""
        for key in map(EntityKey._make, keys):
            undo = InsertOrReplace(key, {"V": 1})
            await self.tables.run(TABLE, EntityGroup([undo]))
            if key not in STORED:
                await self.tables.run(TABLE, EntityGroup([Delete(key, "*")]))
        names = [table.name for table in (await self.tables.list_tables(None)).tables]
        if "New" in names:
            await self.tables.delete_table("New")
        if DOOMED not in names:
            await self.tables.create_table(DOOMED)
        if self._account.properties["t"] != ServiceProperties():
            await self._account.set_properties("t", ServiceProperties())
        await self.remember()


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    clock = ManualClock()
    account = await open_folder_account(
        DEVELOPMENT_ACCOUNT, [DEVELOPMENT_KEY], root=None, clock=clock
    )
    accounts = Accounts([account], clock)
    world = World(Front(TableService(accounts, clock), accounts, clock), account)
    for name in (TABLE, OTHER, DOOMED):
        await world.tables.create_table(name)
    await world.restore(STORED)
    yield world
    await accounts.close()


def verdict_of(response: Response) -> Verdict:
    """Return status and code; of a batch that was taken in, those of its first part."""
    code = re.search(rb'"code":"(\w+)"|<m:code>(\w+)<', response.body)
    name = (code[1] or code[2]).decode() if code else ""
    status = response.status
    if response.status == 202 and response.body:
        part = re.search(rb"HTTP/1\.1 (\d+)", response.body)
        assert part is not None
        status = int(part[1])
    return Verdict(status, name)


# Requests


def address(key: Key, table: str = TABLE) -> str:
    partition_key, row_key = (quote(text.replace("'", "''"), safe="") for text in key)
    return f"/{table}(PartitionKey='{partition_key}',RowKey='{row_key}')"


def alone(
    operation: Operation,
    key: Key,
    sas: str,
    *,
    table: str = TABLE,
    peer: str = "127.0.0.1",
    scheme: str = "http",
) -> Request:
    target, headers, body = _parts_of(operation, key, table)
    path, _, query = target.partition("?")
    whole_query = "&".join(filter(None, (query, sas)))
    return _request(operation.method, path, whole_query, headers, body, peer=peer, scheme=scheme)


def batched(
    operations: Iterable[tuple[Operation, Key]],
    sas: str,
    *,
    table: str = TABLE,
    peer: str = "127.0.0.1",
    scheme: str = "http",
) -> Request:
    """Return one batch: of writes, or of a single read."""
    parts, has_read = [], False
    for operation, key in operations:
        target, headers, body = _parts_of(operation, key, table)
        part = a_part(operation.method, target, None, headers)
        parts.append(part + (body or ""))
        has_read |= operation in (GET, QUERY)
    headers, content = a_query_batch(parts[0]) if has_read else a_batch(*parts)
    return _request("POST", "/$batch", sas, headers, content.decode(), peer=peer, scheme=scheme)


def _parts_of(operation: Operation, key: Key, table: str) -> tuple[str, dict[str, str], str | None]:
    headers: dict[str, str] = {}
    if operation.tunnelled:
        headers["X-HTTP-Method"] = operation.tunnelled
    if operation.is_conditional:
        headers["If-Match"] = "*"
    if operation.name == "insert":
        body = json.dumps({"PartitionKey": key[0], "RowKey": key[1]})
        return f"/{table}", headers, body
    return operation.target or address(key, table), headers, operation.body


def _request(
    method: str,
    path: str,
    query: str,
    headers: Fields,
    body: str | None,
    *,
    peer: str,
    scheme: str,
) -> Request:
    given = {name.lower(): value for name, value in {**JSON, **headers}.items()}
    given |= {"host": "127.0.0.1:10002"}
    content = (body or "").encode()
    return Request(method, f"/{DEVELOPMENT_ACCOUNT}{path}", query, given, content, peer, scheme)


def table_sas(**fields: str) -> str:
    given = {"sp": "raud", "se": LATER} | fields
    return sign_table_sas(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, TABLE, given)


def account_sas(**fields: str) -> str:
    given = {"sp": "rwdlacu", "se": LATER, "ss": "t", "srt": "sco"} | fields
    return sign_account_sas(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, given)


def subsets(letters: str) -> list[str]:
    """List every choice of letters but the empty one, in their order."""
    return [
        "".join(chosen)
        for count in range(1, len(letters) + 1)
        for chosen in combinations(letters, count)
    ]


def read_continuation(text: str) -> str:
    """Read a key out of a continuation, as anyone can."""
    encoded = text.split("!")[2].translate(str.maketrans("._-", "+/="))
    return b64decode(encoded).decode()
