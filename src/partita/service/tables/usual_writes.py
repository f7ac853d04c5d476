"""Usual writes of one entity, without the general path of a request.

`Front.respond` takes a write through location, guard, version, authentication, decoding, a group of
one, an engine and a store, each with a value and a coroutine of its own, which cost more than the
write itself. The usual insert or upsert needs few of these: it is signed with a key of the account
in its path, has no condition, and is one statement in SQLite. The one rule: such a write either has
the answer of `Front.respond`, byte for byte, or changes nothing and is left to it, which then
decides, also about every error.
"""

import re
from collections.abc import Coroutine
from typing import Any

import apsw

from partita.errors import PartitaError
from partita.heat.meter import WRITE as HEAT_WRITE
from partita.service.accounts.respond import Front
from partita.service.http.request import Request, Response
from partita.service.tables.answers import change_answer
from partita.service.tables.calls import Change
from partita.service.tables.point_reads import (
    ENTITY_PATH,
    UNUSUAL_HEADERS,
    Usual,
    add_usual_headers,
    find_usual,
    is_signed,
)
from partita.service.tables.wire import content_id_of, media_level, preference_of, read_body
from partita.tables import limits
from partita.tables.entity import key_of_pair
from partita.tables.operations import Insert, InsertOrReplace
from partita.tables.sqlite_store import SqliteTableStore
from partita.tables.store import Table

_PATH = re.compile(rf"{ENTITY_PATH}|([A-Za-z][A-Za-z0-9]{{2,62}})(?:\(\))?", re.ASCII)
_UNUSUAL = UNUSUAL_HEADERS | {"if-match", "if-none-match"}
_JSON = "application/json"


def begin_write(front: Front, request: Request) -> Coroutine[Any, Any, Response] | None:
    """Begin a usual POST or PUT; None, or an error, for any other request."""
    headers = request.headers
    if not headers.get("content-type", _JSON).startswith(_JSON):
        return None
    usual = find_usual(front, request, _UNUSUAL)
    if usual is None or len(request.body) > limits.GROUP_BYTES_MAX:
        return None
    account, _, path = usual
    match, store = _PATH.fullmatch(path), account.tables.store
    if match is None or not isinstance(store, SqliteTableStore):
        return None
    entity_table, partition_key, row_key, inserted_table = match.groups()
    is_insert = inserted_table is not None
    name = inserted_table or entity_table
    table = store.find_table_here(name) if is_insert == (request.method == "POST") else None
    if table is None or not is_signed(front, request, account):
        return None
    body = read_body(request.body, is_insert=is_insert)
    operation: Insert | InsertOrReplace
    if not is_insert:
        operation = InsertOrReplace(key_of_pair((partition_key, row_key)), body.properties)
    elif body.partition_key is None or body.row_key is None:
        return None
    else:
        operation = Insert(key_of_pair((body.partition_key, body.row_key)), body.properties)
    level = media_level(headers.get("accept", ""))
    call = Change(name, operation, level, preference_of(request), content_id_of(request))
    return _write(front, request, usual, store, table, call)


async def _write(
    front: Front,
    request: Request,
    usual: Usual,
    store: SqliteTableStore,
    table: Table,
    call: Change,
) -> Response:
    account, root, _ = usual
    operation: Any = call.operation
    observed = request.observe()
    observed.account, observed.call, observed.operation = account.name, call, call.logged_as
    try:
        entity = await store.put(table, operation)
    except (PartitaError, apsw.Error):
        entity = None
    if entity is None:
        return await front.respond(request)
    meter = account.meter
    meter.left -= 1
    if meter.left <= 0:
        meter.take(call.table, operation.key, HEAT_WRITE, len(request.body))
    response = change_answer(entity, call, root, account.name)
    add_usual_headers(front, request, response)
    return response
