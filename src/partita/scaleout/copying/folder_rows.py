"""The rows of an account in its SQLite database, in key order, read without a store.

Only what is in use is read: no dropped tables, queues, containers and contents, and no expired
messages. All calls block.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import apsw

from partita.blobs.store.rows import FORMAT_VERSION as BLOBS_VERSION
from partita.errors import FormatVersionError
from partita.queues.message import MessagePlace, message_damaged, unpack_text
from partita.queues.sqlite_store import FORMAT_VERSION as QUEUES_VERSION
from partita.scaleout.copying.parts import CopyPart, Key, Kind, Plan, Row
from partita.tables.entity import stored_entity
from partita.tables.sqlite_store import FORMAT_VERSION as TABLES_VERSION

VERSIONS: Mapping[str, int] = {
    "tables": TABLES_VERSION,
    "queues": QUEUES_VERSION,
    "blobs": BLOBS_VERSION,
}
OLD_MARK = "ticks"
"""A setting of older versions that is not one of the account."""

IN_USE = (
    "EXISTS (SELECT 1 FROM blob b JOIN container c ON c.id = b.container"
    " WHERE b.content = p.content)"
)
_EXTENT_IN_USE = (
    f"(EXISTS (SELECT 1 FROM piece p WHERE p.extent = e.id AND {IN_USE})"
    " OR EXISTS (SELECT 1 FROM block k JOIN container c ON c.id = k.container"
    " WHERE k.extent = e.id))"
)

_KEYS: Mapping[Kind, str] = {
    "extents": "id",
    "contents": "content, place",
    "container": "name, snapshot",
    "blocks": "name, id",
    "table": "pk, rk",
    "queue": "sequence",
}
_ROWS: Mapping[Kind, str] = {
    "extents": f"SELECT id, size, hash, checks, bytes FROM extent e WHERE {_EXTENT_IN_USE}",
    "contents": f"SELECT content, place, size, start, extent, block FROM piece p WHERE {IN_USE}",
    "container": "SELECT name, snapshot, is_committed, content, facts FROM blob"
    " WHERE container = ?",
    "blocks": "SELECT name, id, extent, size, staged_at FROM block WHERE container = ?",
    "table": "SELECT pk, rk, ticks, document FROM entity WHERE tid = ?",
    "queue": "SELECT sequence, nonce, inserted_at, expires_at, visible_at, dequeue_count, receipt,"
    " text FROM message WHERE queue_id = ? AND expires_at > ?",
}
_ALL: Mapping[Kind, str] = {
    "extents": "SELECT id, size, hash, checks, bytes FROM extent WHERE true",
    "contents": "SELECT content, place, size, start, extent, block FROM piece WHERE true",
}
_COUNTS: Mapping[Kind, str] = {
    "extents": "SELECT count(*), coalesce(sum(length(bytes)), 0) FROM extent e"
    f" WHERE {_EXTENT_IN_USE}",
    "contents": f"SELECT count(*), count(*) * 48 FROM piece p WHERE {IN_USE}",
    "container": "SELECT count(*), coalesce(sum(length(name) + length(facts)), 0) FROM blob"
    " WHERE container = ?",
    "blocks": "SELECT count(*), count(*) * 100 FROM block WHERE container = ?",
    "table": "SELECT count(*), coalesce(sum(length(pk) + length(rk) + length(document)), 0)"
    " FROM entity WHERE tid = ?",
    "queue": "SELECT count(*), coalesce(sum(length(text) + 60), 0) FROM message WHERE queue_id = ?",
}
_LARGE = (
    "SELECT count(*), coalesce(sum(size), 0) FROM (SELECT max(size) AS size FROM extent e"
    f" WHERE hash IS NOT NULL AND {_EXTENT_IN_USE} GROUP BY hash)"
)


class FolderRows:
    """What one connection sees."""

    def __init__(self, connection: apsw.Connection, *, is_target: bool = False) -> None:
        self.connection = connection
        self._is_target = is_target
        """Whether everything is read: until the end, nothing in a target has its name."""
        self._ids: dict[CopyPart, int] = {}

    def check_versions(self) -> set[str]:
        """Return which systems the database has; raise if one is too new."""
        found: dict[Any, Any] = dict(self._rows("SELECT system, version FROM format"))
        for system, version in VERSIONS.items():
            if found.get(system, 0) > version:
                raise FormatVersionError(
                    "FormatVersion",
                    f"The folder has format {found[system]} of {system}; this Partita reads"
                    f" {version}.",
                    hint="Copy with a version of Partita at least as new as the one that wrote it:"
                    " pip install --upgrade partita. Nothing was changed.",
                )
        return set(found) & set(VERSIONS)

    def plans(self) -> list[Plan]:
        """Return all parts; the contents of blobs first, as a server may remove their files."""
        systems = self.check_versions()
        plans: list[Plan] = []
        if "blobs" in systems:
            plans += self._plans_of_blobs()
        if "tables" in systems:
            settings = self._rows(
                "SELECT name, value FROM setting WHERE name <> ? ORDER BY name", OLD_MARK
            )
            plans.append(Plan(CopyPart("settings"), tuple(chain.from_iterable(settings)), 0, 0))
            for identity, folded, *head in self._rows(
                "SELECT id, folded, name, policies FROM catalog ORDER BY folded"
            ):
                plans.append(self._plan(CopyPart("table", folded), identity, *head))
        if "queues" in systems:
            for identity, name, *head in self._rows(
                "SELECT id, name, metadata, policies FROM queue ORDER BY name"
            ):
                plans.append(self._plan(CopyPart("queue", name), identity, *head))
        return plans

    def _plans_of_blobs(self) -> Iterator[Plan]:
        yield self._plan(CopyPart("extents"), 0)
        yield self._plan(CopyPart("contents"), 0)
        for identity, name, facts in self._rows(
            "SELECT id, name, facts FROM container ORDER BY name"
        ):
            yield self._plan(CopyPart("container", name), identity, facts)
            yield self._plan(CopyPart("blocks", name), identity)

    def _plan(self, part: CopyPart, identity: int, *head: object) -> Plan:
        self._ids[part] = identity
        statement = _COUNTS[part.kind]
        rows, size = self._rows(statement, *[identity] * statement.count("?"))[0]
        return Plan(part, head, rows, size)

    def large_contents(self) -> tuple[int, int]:
        """Return how many contents are in files, and their bytes."""
        if "blobs" not in self.check_versions():
            return 0, 0
        ((files, size),) = self._rows(_LARGE)
        return files, size

    def rows(
        self, part: CopyPart, after: Key | None, alive_at: int, identity: int | None = None
    ) -> Iterator[Row]:
        """Yield the rows of a part after a key."""
        if part.kind == "settings":
            return iter(())
        parameters: list[object] = []
        if part.name:
            parameters.append(self._ids[part] if identity is None else identity)
        if part.kind == "queue":
            parameters.append(alive_at)
        keys = _KEYS[part.kind]
        statement = _ALL.get(part.kind) if self._is_target else None
        statement = statement or _ROWS[part.kind]
        if after is not None:
            statement += f" AND ({keys}) > ({', '.join('?' * len(after))})"
            parameters += after
        found = self.connection.execute(f"{statement} ORDER BY {keys}", parameters)
        return map(_CANONICAL[part.kind], found) if part.kind in _CANONICAL else found

    def is_named(self, digest: bytes) -> bool:
        """Return whether a row refers to a content file."""
        return bool(self._rows("SELECT 1 FROM extent WHERE hash = ? LIMIT 1", digest))

    def blob_of(self, extent: int) -> str | None:
        """Return the name of some blob that has bytes of an extent."""
        for container, name in self._rows(
            "SELECT c.name, b.name FROM piece p JOIN blob b ON b.content = p.content"
            " JOIN container c ON c.id = b.container WHERE p.extent = ? LIMIT 1",
            extent,
        ):
            return f"{container}/{name}"
        return None

    def marks(self) -> tuple[int, int]:
        """Return the marks of the clock and of the steady clock, later than all their times."""
        return self._mark("clock"), self._mark("steady_clock")

    def _mark(self, table: str) -> int:
        if not self._rows("SELECT 1 FROM sqlite_schema WHERE name = ?", table):
            return 0
        rows = self._rows(f"SELECT mark FROM {table}")
        return int(rows[0][0]) if rows else 0

    def _rows(self, statement: str, *parameters: object) -> list[Any]:
        return self.connection.execute(statement, parameters).fetchall()


def _entity(row: Row) -> Row:
    return (*row[:3], stored_entity(*row).document)


def _message(row: Row) -> Row:
    sequence, nonce, *rest, stored = row
    text = unpack_text(nonce, stored)
    if text is None:
        raise message_damaged(MessagePlace(sequence, nonce))
    return sequence, nonce, *rest, text


def _blob(row: Row) -> Row:
    return (*row[:2], bool(row[2]), *row[3:])


_CANONICAL: Mapping[Kind, Callable[[Row], Row]] = {
    "container": _blob,
    "table": _entity,
    "queue": _message,
}
