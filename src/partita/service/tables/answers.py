"""Outcome → Response for the table protocol: headers, and entities and tables as JSON. Pure.

Without `$select`, minimal metadata is the stored document after a prefix: bytes are copied.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote

import msgspec

from partita.errors import PartitaError
from partita.service.formats.address import print_continuation
from partita.service.formats.error_wire import encode_json, message_of
from partita.service.formats.multipart import print_part
from partita.service.http.request import Response
from partita.service.tables.calls import (
    CONTENT,
    NO_CONTENT,
    Change,
    CreateTable,
    GetEntity,
    GetTable,
    Level,
    QueryEntities,
    QueryTables,
)
from partita.tables import edm
from partita.tables.edm import TYPE_SUFFIX
from partita.tables.engine import TablePage
from partita.tables.entity import Entity, EntityKey, etag_of
from partita.tables.filters import PARTITION_KEY, ROW_KEY
from partita.tables.operations import Insert, InsertOrReplace
from partita.tables.paging import Page
from partita.tables.reading.documents import StoredEntities, printed_keys
from partita.tables.store import Table

Headers = list[tuple[str, str]]

_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode

_BATCH_FRONT: Headers = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-cache")]


def entity_answer(entity: Entity, call: GetEntity, root: str, account: str) -> Response:
    view = View(root, account, call.table, call.level, call.select)
    return Response(
        200,
        [("Content-Type", call.level.content_type), ("ETag", etag_of(entity.ticks))],
        one_entity(entity, view),
        None,
        (account, call),
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
    return Response(200, headers, entity_page(page.entities, view))


def items_to_print(page: Page, call: QueryEntities) -> int:
    """Return how much work `page_answer` has, in items of `computed`."""
    entities = page.entities
    if call.level is Level.MINIMAL and call.select is None:
        return 0  # the stored documents are copied
    if isinstance(entities, StoredEntities):
        return sum(map(len, entities.documents)) // 64
    return sum(len(entity.document) for entity in entities) // 64


def change_answer(entity: Entity | None, call: Change, root: str, account: str) -> Response:
    """Answer one write; `entity` is its result, None after a delete."""
    if entity is None:
        return Response(204)
    is_insert = isinstance(call.operation, Insert)
    headers: Headers = [("ETag", entity.etag)]
    location = entity_url(root, call.table, call.operation.key) if is_insert else ""
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
    return Response(201 if is_insert else 200, headers, one_entity(entity, view))


def _is_echoed(call: Change) -> bool:
    """Return whether the answer contains the entity: by default only that of an insert."""
    if isinstance(call.operation, Insert):
        return call.preference != NO_CONTENT
    return call.preference == CONTENT


def table_answer(table: Table, call: GetTable, root: str, account: str) -> Response:
    view = View(root, account, table.name, call.level)
    headers: Headers = [("Content-Type", call.level.content_type)]
    return Response(200, headers, one_table(table, view))


def table_page_answer(page: TablePage, call: QueryTables, root: str, account: str) -> Response:
    view = View(root, account, "Tables", call.level)
    headers: Headers = [("Content-Type", call.level.content_type)]
    if page.continuation is not None:
        headers.append(("x-ms-continuation-NextTableName", print_continuation(page.continuation)))
    return Response(200, headers, table_page(page.tables, view))


def created_table_answer(table: Table, call: CreateTable, root: str, account: str) -> Response:
    location = table_url(root, table.name)
    headers: Headers = [("Location", location)]
    if call.preference is not None:
        headers.append(("Preference-Applied", call.preference))
    if call.preference == NO_CONTENT:
        return Response(204, [*headers, ("DataServiceId", location)])
    headers.append(("Content-Type", call.level.content_type))
    return Response(201, headers, one_table(table, View(root, account, "", call.level)))


# Parts of a batch: the header order is the service's, and clients match on the text


def part_of_change(
    entity: Entity | None, call: Change, root: str, account: str
) -> Response | bytes:
    """Answer one write as a part of a batch, or print this answer."""
    is_insert = type(call.operation) is Insert
    is_silent = call.preference == NO_CONTENT or (call.preference is None and not is_insert)
    if not is_silent or call.content_id or entity is None:
        return _part_of_change(entity, call, root, account)
    front, end = _printed_change(Insert if is_insert else InsertOrReplace, call.preference)
    if is_insert:
        front = front.replace("\0", f"{root}/{edit_link(call.table, call.operation.key)}")
    return (front + etag_of(entity.ticks) + end).encode()


@lru_cache(maxsize=16)
def _printed_change(
    kind: type[Insert | InsertOrReplace], preference: str | None
) -> tuple[str, str]:
    """Print a change without content, with NUL for its address; return what its etag separates."""
    key, etag = EntityKey("", ""), etag_of(0)
    call = Change("T", kind(key, {}), Level.MINIMAL, preference)
    part = print_part(_part_of_change(Entity(*key, 0, b""), call, "\0", ""))
    front, _, end = part.decode().partition(etag)
    return front.replace(entity_url("\0", "T", key), "\0"), end


def _part_of_change(entity: Entity | None, call: Change, root: str, account: str) -> Response:
    is_insert = isinstance(call.operation, Insert)
    headers = list(_BATCH_FRONT)
    body = b""
    if _is_echoed(call):
        assert entity is not None
        headers.append(("Content-Type", call.level.content_type))
        body = one_entity(entity, View(root, account, call.table, call.level))
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


# Entities and tables as JSON


_BOTH_KEYS = (PARTITION_KEY, ROW_KEY)
"""The properties that verbs which count ask for, as they are printed in documents."""


class View(msgspec.Struct, frozen=True, gc=False):
    """The format of an answer: its root, metadata level and properties."""

    root: str
    account: str
    table: str
    level: Level
    select: tuple[str, ...] | None = None

    @property
    def suffix(self) -> str:
        return "" if self.select is None else "&$select=" + ",".join(self.select)

    @property
    def has_keys_only(self) -> bool:
        is_short = self.level is not Level.FULL and bool(self.select)
        return is_short and {PARTITION_KEY, ROW_KEY}.issuperset(self.select or ())


def one_entity(entity: Entity, view: View) -> bytes:
    """Print one entity with the prefix of its level."""
    if view.level is Level.NONE:
        return b"{" + _members(entity, view)
    front = _element_front(view.root, view.table)
    if view.select is None:
        if view.level is Level.MINIMAL:
            return front + b'",' + entity.document
        return front + b'",' + _members(entity, view)
    return front + _encode(view.suffix)[1:] + b"," + _members(entity, view)


@lru_cache(maxsize=1024)
def _element_front(root: str, table: str) -> bytes:
    """Print the constant start of an entity, up to the place of `$select`."""
    return b'{"odata.metadata":' + _encode(f"{root}/$metadata#{table}/@Element")[:-1]


def entity_page(entities: Sequence[Entity], view: View) -> bytes:
    """Print a feed."""
    if view.level is Level.NONE:
        front = b'{"value":['
    else:
        metadata = _encode(f"{view.root}/$metadata#{view.table}{view.suffix}")
        front = b'{"odata.metadata":' + metadata + b',"value":['
    if not entities:
        return front + b"]}"
    if view.level is Level.MINIMAL and view.select is None:
        documents = (
            list(entities.documents)
            if isinstance(entities, StoredEntities)
            else [entity.document for entity in entities]
        )
    elif view.select == _BOTH_KEYS and view.has_keys_only and isinstance(entities, StoredEntities):
        has_etag = view.level is not Level.NONE
        documents = [printed_keys(each, has_etag=has_etag) for each in entities.documents]
    elif view.has_keys_only:
        documents = [_key_members(entity, view) for entity in entities]
    else:
        documents = [_members(entity, view) for entity in entities]
    # Prefix and end are added to the first and last piece, so that a large page is copied once.
    documents[0] = front + b"{" + documents[0]
    documents[-1] += b"]}"
    return b",{".join(documents)


def _key_members(entity: Entity, view: View) -> bytes:
    """Print the same as `_members` without reading the document: verbs that count ask for this."""
    front = {} if view.level is Level.NONE else {"odata.etag": etag_of(entity.ticks)}
    for name in view.select or ():
        front[name] = entity.partition_key if name == PARTITION_KEY else entity.row_key
    return _encode(front)[1:]


def _members(entity: Entity, view: View) -> bytes:
    """Print the members of an entity without the opening brace."""
    if view.level is Level.MINIMAL and view.select is None:
        return entity.document
    stored = _decode(b"{" + entity.document)
    etag = stored.pop("odata.etag")
    front: dict[str, object] = {}
    if view.level is Level.FULL:
        front["odata.type"] = f"{view.account}.{view.table}"
        front["odata.id"] = entity_url(view.root, view.table, entity.key)
    if view.level is not Level.NONE:
        front["odata.etag"] = etag
    if view.level is Level.FULL:
        front["odata.editLink"] = edit_link(view.table, entity.key)
    names = view.select if view.select is not None else _names(stored)
    for name in names:
        annotation = _annotation(stored, name, view.level)
        if annotation is not None:
            front[name + TYPE_SUFFIX] = annotation
        front[name] = stored.get(name)
    return _encode(front)[1:]


def _names(stored: dict[str, str | int | float | bool]) -> list[str]:
    return [name for name in stored if not name.endswith(TYPE_SUFFIX)]


def _annotation(
    stored: dict[str, str | int | float | bool], name: str, level: Level
) -> object | None:
    if level is Level.NONE:
        return None
    if name == "Timestamp" and level is Level.FULL:
        return edm.DATETIME
    return stored.get(name + TYPE_SUFFIX)


def one_table(table: Table, view: View) -> bytes:
    front: dict[str, object] = {}
    if view.level is not Level.NONE:
        front["odata.metadata"] = f"{view.root}/$metadata#Tables/@Element"
    return _encode(front | _table_members(table, view))


def table_page(tables: Sequence[Table], view: View) -> bytes:
    front: dict[str, object] = {}
    if view.level is not Level.NONE:
        front["odata.metadata"] = f"{view.root}/$metadata#Tables"
    front["value"] = [_table_members(table, view) for table in tables]
    return _encode(front)


def _table_members(table: Table, view: View) -> dict[str, object]:
    members: dict[str, object] = {}
    if view.level is Level.FULL:
        members["odata.type"] = f"{view.account}.Tables"
        members["odata.id"] = table_url(view.root, table.name)
        members["odata.editLink"] = f"Tables('{table.name}')"
    members["TableName"] = table.name
    return members


# Addresses


def table_url(root: str, table: str) -> str:
    """Print the address of a table."""
    return f"{root}/Tables('{_print_literal(table)}')"


def entity_url(root: str, table: str, key: tuple[str, str]) -> str:
    """Print the address of an entity for Location and DataServiceId."""
    return f"{root}/{edit_link(table, key)}"


def edit_link(table: str, key: tuple[str, str]) -> str:
    """Print the address of an entity relative to the root."""
    partition_key, row_key = key
    return (
        f"{table}(PartitionKey='{_print_literal(partition_key)}'"
        f",RowKey='{_print_literal(row_key)}')"
    )


def _print_literal(text: str) -> str:
    if (text.isalnum() and text.isascii()) or _PLAIN.fullmatch(text):
        return text
    return quote(text.replace("'", "''"), safe="'")
