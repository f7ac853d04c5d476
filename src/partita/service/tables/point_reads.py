"""Point reads that are answered at once: the most frequent request, without the usual steps.

`Front.respond` takes any request of any service through location, guard, version, authentication,
decoding and an engine, each with a value and a coroutine of its own. The usual point read needs few
of these: it is signed with a key of the account in its path, has plain keys, and reads an entity
that exists; no CORS rules and no rate targets are set. The one rule: the answer is that of
`Front.respond`, byte for byte, and anything else, also every error, is left to it.
"""

import re

from partita.heat.meter import READ as HEAT_READ
from partita.service.accounts.respond import Front, is_client_request_id, is_served, locate
from partita.service.auth import browser_guard
from partita.service.auth.sas import FULL
from partita.service.http.request import Request, Response
from partita.service.tables.answers import entity_answer
from partita.service.tables.calls import GetEntity
from partita.service.tables.wire import media_level
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.sqlite_store import SqliteTableStore

_UNUSUAL = frozenset({"x-http-method", "content-encoding", *browser_guard.ORIGIN_HEADERS})
_PLAIN = r"'([0-9A-Za-z._~-]{0,200})'"
_ENTITY = re.compile(
    rf"([A-Za-z][A-Za-z0-9]{{2,62}})\(PartitionKey={_PLAIN},RowKey={_PLAIN}\)", re.ASCII
)


def read_point(front: Front, request: Request) -> Response | None:
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
        or not isinstance(account.tables.store, SqliteTableStore)
    ):
        return None
    name, partition_key, row_key = match.groups()
    store = account.tables.store
    table = store.find_table_here(name)
    if table is None:
        return None
    if front.check_signature(request, account, front.clock.ticks()) is not FULL:
        return None
    key = EntityKey(partition_key, row_key)
    entity = store.get_now(table, key)
    if entity is None:
        return None
    call = GetEntity(name, key, None, media_level(headers.get("accept", "")))
    response = entity_answer(entity, call, target.root, account.name)
    meter = account.meter
    meter.left -= 1
    if meter.left <= 0:
        meter.take(name, key, HEAT_READ, len(response.body))
    response.headers.extend(
        (
            ("x-ms-request-id", front.request_ids.take()),
            ("x-ms-version", version),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-cache"),
        )
    )
    client_request_id = headers.get("x-ms-client-request-id")
    if client_request_id is not None and is_client_request_id(client_request_id):
        response.headers.append(("x-ms-client-request-id", client_request_id))
    return response
