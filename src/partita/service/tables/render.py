"""Entities and tables as JSON at the three metadata levels, with or without `$select`.

Without `$select`, minimal metadata is the stored document behind a front: bytes are copied.
"""

import enum
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from partita.service.formats.address import edit_link, entity_url, table_url
from partita.tables import edm
from partita.tables.edm import TYPE_SUFFIX
from partita.tables.entity import Entity
from partita.tables.store import Table


class Level(enum.Enum):
    """How much an answer says beside the properties."""

    NONE = "nometadata"
    MINIMAL = "minimalmetadata"
    FULL = "fullmetadata"

    def __init__(self, word: str) -> None:
        self.content_type = f"application/json;odata={word};streaming=true;charset=utf-8"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode


class View(msgspec.Struct, frozen=True, gc=False):
    """How an answer is to look: where it is asked for, at which level, which properties."""

    root: str
    account: str
    table: str
    level: Level
    select: tuple[str, ...] | None = None

    @property
    def suffix(self) -> str:
        return "" if self.select is None else "&$select=" + ",".join(self.select)


def one_entity(entity: Entity, view: View) -> bytes:
    """Print one entity with the front that its level asks for."""
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
    """Print the start of an entity, up to where `$select` would stand; it is always the same."""
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
        documents = [entity.document for entity in entities]
    else:
        documents = [_members(entity, view) for entity in entities]
    # Front and end go into the first and last piece: a page is large, and is copied only once.
    documents[0] = front + b"{" + documents[0]
    documents[-1] += b"]}"
    return b",{".join(documents)


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
