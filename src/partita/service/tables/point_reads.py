"""Point reads in few steps: the most frequent request, without the usual ones.

`Front.respond` takes any request of any service through location, guard, version, authentication,
decoding and an engine, each with a value and a coroutine of its own. The usual point read needs few
of these: it is signed with a key of the account in its path, has plain keys, and reads an entity
that exists; no CORS rules and no rate targets are set. A folder answers it at once, PostgreSQL
after a trip to the database. The one rule: the answer is that of `Front.respond`, byte for byte,
and anything else, also nearly every error, is left to it.
"""

import re
from collections.abc import Coroutine
from typing import Any

from partita.errors import PartitaError, UnavailableError
from partita.heat.meter import READ as HEAT_READ
from partita.service.accounts.account import Account
from partita.service.accounts.respond import (
    Front,
    Target,
    is_client_request_id,
    is_served,
    locate,
)
from partita.service.auth import browser_guard
from partita.service.auth.sas import FULL
from partita.service.http.request import Request, Response
from partita.service.tables.answers import entity_answer
from partita.service.tables.calls import GetEntity
from partita.service.tables.wire import media_level
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, EntityKey
from partita.tables.sqlite_store import SqliteTableStore
from partita.tables.store import Table

_UNUSUAL = frozenset({"x-http-method", "content-encoding", *browser_guard.ORIGIN_HEADERS})
_PLAIN = r"'([0-9A-Za-z._~-]{0,200})'"
_ENTITY = re.compile(
    rf"([A-Za-z][A-Za-z0-9]{{2,62}})\(PartitionKey={_PLAIN},RowKey={_PLAIN}\)", re.ASCII
)


def read_point(front: Front, request: Request) -> Response | Coroutine[Any, Any, Response] | None:
    """Return the answer of a usual point read; None, or an error, for any other request."""
    headers = request.headers
    version, host = headers.get("x-ms-version"), headers.get("host", "")
    if (
        version is None
        or not is_served(version, None)
        or request.stranger is not None
        or request.upload is not None
        or request.body
        or not _UNUSUAL.isdisjoint(headers)
    ):
        return None
    target = locate(request.scheme, host, request.path, front.accounts)
    account = front.accounts[target.account]
    path = target.path
    match = _ENTITY.fullmatch(path.replace("%27", "'") if "%" in path else path)
    if (
        match is None
        or not account.name
        or target.is_secondary
        or account.properties["t"].cors
        or (account.is_guarded and not browser_guard.names_this_machine(host))
        or type(account.tables) is not TableEngine
    ):
        return None
    name, partition_key, row_key = match.groups()
    store = account.tables.store
    folder = store if isinstance(store, SqliteTableStore) else None
    if folder is not None:
        table = folder.find_table_here(name)
    else:
        known_table = getattr(store, "known_table", None)
        table = None if known_table is None else known_table(name)
    if table is None:
        return None
    if front.check_signature(request, account, front.clock.ticks()) is not FULL:
        return None
    key = EntityKey(partition_key, row_key)
    call = GetEntity(name, key, None, media_level(headers.get("accept", "")))
    if folder is None:
        return _read_later(front, request, target, account, table, call)
    entity = folder.get_now(table, key)
    return None if entity is None else _answer(front, request, target, account, entity, call)


async def _read_later(
    front: Front, request: Request, target: Target, account: Account, table: Table, call: GetEntity
) -> Response:
    """Read the entity from the database."""
    try:
        entity = await account.tables.store.get(table, call.key)
    except UnavailableError as error:
        # Not by `respond`, which would wait as long again.
        observed = request.observe()
        observed.call, observed.operation = call, call.logged_as
        return front.refused(error, request, account.name)
    except PartitaError:
        entity = None
    if entity is None:
        return await front.respond(request)
    return _answer(front, request, target, account, entity, call)


def _answer(
    front: Front,
    request: Request,
    target: Target,
    account: Account,
    entity: Entity,
    call: GetEntity,
) -> Response:
    headers = request.headers
    response = entity_answer(entity, call, target.root, account.name)
    meter = account.meter
    meter.left -= 1
    if meter.left <= 0:
        meter.take(call.table, call.key, HEAT_READ, len(response.body))
    response.headers.extend(
        (
            ("x-ms-request-id", front.request_ids.take()),
            ("x-ms-version", headers["x-ms-version"]),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-cache"),
        )
    )
    client_request_id = headers.get("x-ms-client-request-id")
    if client_request_id is not None and is_client_request_id(client_request_id):
        response.headers.append(("x-ms-client-request-id", client_request_id))
    return response
