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
from functools import lru_cache
from typing import Any

from partita.errors import PartitaError, UnavailableError
from partita.heat.meter import READ as HEAT_READ
from partita.service.accounts.account import Account
from partita.service.accounts.respond import Front, is_client_request_id, is_served, locate
from partita.service.auth import browser_guard
from partita.service.auth.sas import FULL
from partita.service.http.request import Request, Response
from partita.service.tables.answers import entity_answer
from partita.service.tables.calls import GetEntity
from partita.service.tables.wire import media_level
from partita.tables.engine import TableEngine
from partita.tables.entity import Entity, key_of_pair
from partita.tables.sqlite_store import SqliteTableStore
from partita.tables.store import Table

_PLAIN_KEY = r"'([0-9A-Za-z._~-]{0,200})'"
ENTITY_PATH = rf"([A-Za-z][A-Za-z0-9]{{2,62}})\(PartitionKey={_PLAIN_KEY},RowKey={_PLAIN_KEY}\)"
UNUSUAL_HEADERS = frozenset({"x-http-method", "content-encoding", *browser_guard.ORIGIN_HEADERS})
_ENTITY = re.compile(ENTITY_PATH, re.ASCII)


def read_point(front: Front, request: Request) -> Response | Coroutine[Any, Any, Response] | None:
    """Return the answer of a usual point read; None, or an error, for any other request."""
    usual = None if request.body else find_usual(front, request, UNUSUAL_HEADERS)
    if usual is None:
        return None
    account, root, path = usual
    match = _ENTITY.fullmatch(path)
    if match is None:
        return None
    name, partition_key, row_key = match.groups()
    store = account.tables.store
    folder = store if isinstance(store, SqliteTableStore) else None
    if folder is not None:
        table = folder.find_table_here(name)
    else:
        known_table = getattr(store, "known_table", None)
        table = None if known_table is None else known_table(name)
    if table is None or not is_signed(front, request, account):
        return None
    key = key_of_pair((partition_key, row_key))
    call = GetEntity(name, key, None, media_level(request.headers.get("accept", "")))
    if folder is None:
        return _read_later(front, request, root, account, table, call)
    entity = folder.get_now(table, key)
    return None if entity is None else _answer(front, request, root, account, entity, call)


async def _read_later(
    front: Front, request: Request, root: str, account: Account, table: Table, call: GetEntity
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
    return _answer(front, request, root, account, entity, call)


def _answer(
    front: Front,
    request: Request,
    root: str,
    account: Account,
    entity: Entity,
    call: GetEntity,
) -> Response:
    response = entity_answer(entity, call, root, account.name)
    meter = account.meter
    meter.left -= 1
    if meter.left <= 0:
        meter.take(call.table, call.key, HEAT_READ, len(response.body))
    add_usual_headers(front, request, response)
    return response


# Used by `usual_writes`, too


Usual = tuple[Account, str, str]
"""A request that may be usual, before its signature is checked: its account, the start of printed
addresses, and the path after the account, with plain quotes."""


def find_usual(front: Front, request: Request, unusual: frozenset[str]) -> Usual | None:
    """Return where a request goes; None if it, its account or its store is not usual.

    `unusual` are headers that the request must not have.
    """
    headers = request.headers
    version = headers.get("x-ms-version")
    if (
        version is None
        or not is_served(version, None)
        or request.stranger is not None
        or request.upload is not None
        or not unusual.isdisjoint(headers)
    ):
        return None
    host = headers.get("host", "")
    segment, _, path = request.path[1:].partition("/")
    place = _find_place(request.scheme, host, segment) if request.path[:1] == "/" else None
    if place is None:
        target = locate(request.scheme, host, request.path, front.accounts)
        if target.is_secondary:
            return None
        place, path = (target.account, target.root), target.path
    name, root = place
    account = front.accounts[name]
    if (
        not account.name
        or account.properties["t"].cors
        or (account.is_guarded and not browser_guard.names_this_machine(host))
        or type(account.tables) is not TableEngine
    ):
        return None
    path = path.replace("%27", "'") if "%" in path else path
    return account, root, path


@lru_cache(maxsize=256)
def _find_place(scheme: str, host: str, segment: str) -> tuple[str, str] | None:
    """Return the account of a path that begins with a segment, and the start of its addresses.

    None if the accounts of the server must be known for that, as where the host may name one.
    """
    path = f"/{segment}/"
    target = locate(scheme, host, path, ())
    if target.is_secondary or target != locate(scheme, host, path, browser_guard.EVERY_HOST):
        return None
    return target.account, target.root


def is_signed(front: Front, request: Request, account: Account) -> bool:
    """Return whether a key of the account has signed the request; raise if it is wrong."""
    return front.check_signature(request, account, front.clock.ticks()) is FULL


def add_usual_headers(front: Front, request: Request, response: Response) -> None:
    """Add the headers that `Front.respond` adds to such an answer."""
    headers = response.headers
    headers += (
        ("x-ms-request-id", front.request_ids.take()),
        ("x-ms-version", request.headers["x-ms-version"]),
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "no-cache"),
    )
    client_request_id = request.headers.get("x-ms-client-request-id")
    if client_request_id is not None and is_client_request_id(client_request_id):
        headers.append(("x-ms-client-request-id", client_request_id))
