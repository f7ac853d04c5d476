"""Outcome → Response for the table protocol. Pure; headers are those the service sends."""

from partita.errors import PartitaError
from partita.service.formats.address import entity_url, print_continuation, table_url
from partita.service.formats.error_wire import encode_json, message_of
from partita.service.http.request import Response
from partita.service.tables import render
from partita.service.tables.render import Level, View
from partita.service.tables.wire import (
    CONTENT,
    NO_CONTENT,
    Change,
    CreateTable,
    GetEntity,
    GetTable,
    QueryEntities,
    QueryTables,
)
from partita.tables.engine import TablePage
from partita.tables.entity import Entity
from partita.tables.operations import Insert
from partita.tables.paging import Page
from partita.tables.store import Table

Headers = list[tuple[str, str]]

_BATCH_FRONT: Headers = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-cache")]


def entity_answer(entity: Entity, call: GetEntity, root: str, account: str) -> Response:
    view = View(root, account, call.table, call.level, call.select)
    return Response(
        200,
        [("Content-Type", call.level.content_type), ("ETag", entity.etag)],
        render.one_entity(entity, view),
    )


def page_answer(page: Page, call: QueryEntities, root: str, account: str) -> Response:
    view = View(root, account, call.table, call.level, call.select)
    headers: Headers = [("Content-Type", call.level.content_type)]
    if page.continuation is not None:
        partition_key, row_key = page.continuation
        headers += [
            ("x-ms-continuation-NextPartitionKey", print_continuation(partition_key)),
            ("x-ms-continuation-NextRowKey", print_continuation(row_key)),
        ]
    return Response(200, headers, render.entity_page(page.entities, view))


def change_answer(entity: Entity | None, call: Change, root: str, account: str) -> Response:
    """Answer one write; `entity` is what it left, None after a delete."""
    if entity is None:
        return Response(204)
    is_insert = isinstance(call.operation, Insert)
    headers: Headers = [("ETag", entity.etag)]
    location = entity_url(root, call.table, entity.key) if is_insert else ""
    if is_insert:
        headers.append(("Location", location))
    if call.preference is not None:
        headers.append(("Preference-Applied", call.preference))
    if not _is_echoed(call):
        if is_insert:
            headers.append(("DataServiceId", location))
        return Response(204, headers)
    headers.append(("Content-Type", call.level.content_type))
    view = View(root, account, call.table, call.level)
    return Response(201 if is_insert else 200, headers, render.one_entity(entity, view))


def _is_echoed(call: Change) -> bool:
    """Return whether the answer shows the entity: an insert's does unless told otherwise."""
    if isinstance(call.operation, Insert):
        return call.preference != NO_CONTENT
    return call.preference == CONTENT


def table_answer(table: Table, call: GetTable, root: str, account: str) -> Response:
    view = View(root, account, table.name, call.level)
    headers: Headers = [("Content-Type", call.level.content_type)]
    return Response(200, headers, render.one_table(table, view))


def table_page_answer(page: TablePage, call: QueryTables, root: str, account: str) -> Response:
    view = View(root, account, "Tables", call.level)
    headers: Headers = [("Content-Type", call.level.content_type)]
    if page.continuation is not None:
        headers.append(("x-ms-continuation-NextTableName", print_continuation(page.continuation)))
    return Response(200, headers, render.table_page(page.tables, view))


def created_table_answer(table: Table, call: CreateTable, root: str, account: str) -> Response:
    location = table_url(root, table.name)
    headers: Headers = [("Location", location)]
    if call.preference is not None:
        headers.append(("Preference-Applied", call.preference))
    if call.preference == NO_CONTENT:
        return Response(204, [*headers, ("DataServiceId", location)])
    headers.append(("Content-Type", call.level.content_type))
    return Response(201, headers, render.one_table(table, View(root, account, "", call.level)))


# Parts of a batch: the header order is the service's, and clients match on the text


def part_of_change(entity: Entity | None, call: Change, root: str, account: str) -> Response:
    """Answer one write as a part of a batch."""
    is_insert = isinstance(call.operation, Insert)
    headers = list(_BATCH_FRONT)
    body = b""
    if _is_echoed(call):
        assert entity is not None
        headers.append(("Content-Type", call.level.content_type))
        body = render.one_entity(entity, View(root, account, call.table, call.level))
    if call.preference is not None:
        headers.append(("Preference-Applied", call.preference))
    is_new = is_insert or call.preference is not None
    headers.append(("DataServiceVersion", "3.0;" if is_new else "1.0;"))
    if call.content_id is not None:
        headers.append(("Content-ID", call.content_id))
    if is_insert:
        location = entity_url(root, call.table, call.operation.key)
        headers.append(("Location", location))
        if call.preference == NO_CONTENT:
            headers.append(("DataServiceId", location))
    if entity is not None:
        headers.append(("ETag", entity.etag))
    echoed = 201 if is_insert else 200
    return Response(echoed if body else 204, headers, body)


def part_of_query(answer: Response) -> Response:
    given = dict(answer.headers)
    headers = [*_BATCH_FRONT, ("DataServiceVersion", "3.0;")]
    headers += [(name, value) for name, value in given.items() if name != "x-ms-error-code"]
    return Response(answer.status, headers, answer.body)


def part_of_error(
    error: PartitaError, preference: str | None, request_id: str, now: int, *, is_prefixed: bool
) -> Response:
    """Print the one part that answers a failed batch."""
    index = error.facts.get("index", 0) if is_prefixed else None
    message = message_of(error, request_id, now, index=index if isinstance(index, int) else None)
    answer = encode_json(error, message, Level.MINIMAL.content_type, extra=[])
    headers = list(_BATCH_FRONT)
    if preference is not None:
        headers.append(("Preference-Applied", preference))
    headers += [("DataServiceVersion", "3.0;"), ("Content-Type", Level.MINIMAL.content_type)]
    return Response(answer.status, headers, answer.body)
