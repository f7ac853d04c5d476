"""The multipart body of an entity group transaction, and its answer; pure.

The body is joined from bytes that are already printed, because this is most of the work of a
client that writes in bulk.
"""

import enum
import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote

import msgspec

from partita.errors import DamageError
from partita.tables import limits


class Kind(enum.Enum):
    """What one operation does; `REPLACE` and `MERGE` need an existing entity."""

    INSERT = "insert"
    REPLACE = "replace"
    MERGE = "merge"
    UPSERT_REPLACE = "upsert-replace"
    UPSERT_MERGE = "upsert-merge"
    DELETE = "delete"

    __hash__ = object.__hash__  # that of Enum is written in Python, and is asked for each change


METHODS = {
    Kind.INSERT: "POST",
    Kind.REPLACE: "PUT",
    Kind.MERGE: "PATCH",
    Kind.UPSERT_REPLACE: "PUT",
    Kind.UPSERT_MERGE: "PATCH",
    Kind.DELETE: "DELETE",
}
CONDITIONAL = frozenset({Kind.REPLACE, Kind.MERGE, Kind.DELETE})
REPEATABLE = frozenset({Kind.UPSERT_REPLACE, Kind.UPSERT_MERGE})
"""Writes with the same result if they are performed twice."""

GROUP_BYTES_MAX = limits.GROUP_BYTES_MAX - 4096
"""The bytes of the operations of a group; the rest is for the frame of the batch."""
OPERATION_BYTES = 400
"""More than the bytes of a part besides its address and its document."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """One operation on an entity."""

    kind: Kind
    partition_key: str
    row_key: str
    document: bytes = b""
    """The entity as JSON, with its keys; empty for a delete."""
    etag: str = "*"
    """The version that is required, if the kind is conditional."""

    @property
    def wire_bytes(self) -> int:
        """An upper bound of the bytes of this operation in a batch."""
        keys = 9 * (len(self.partition_key) + len(self.row_key))
        return OPERATION_BYTES + keys + len(self.document)


class Part(msgspec.Struct, frozen=True):
    """The answer to one operation, or to a whole group that was refused."""

    status: int
    headers: dict[str, str]
    """By lower-case names."""
    body: bytes


_HEAD = (
    "\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
    "%s %s HTTP/1.1\r\n"
    "Accept: application/json;odata=minimalmetadata\r\nDataServiceVersion: 3.0\r\n"
)
_BODY = "Prefer: return-no-content\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_BOUNDARY = re.compile(r""";\s*boundary\s*=\s*(?:"([^"]+)"|([^\s;"]+))""", re.IGNORECASE)
_STATUS = re.compile(rb"[1-9][0-9]{2}")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_DONE = re.compile(rb"\nHTTP/1\.1 20[0-9] ")
_ETAG = re.compile(rb"\n(?i:etag): *([^\r\n]+)\r?\n")


def entity_path(partition_key: str, row_key: str) -> str:
    """Return the part of an address that names an entity in its table."""
    return f"(PartitionKey='{_quoted_again(partition_key)}',RowKey='{_quoted(row_key)}')"


def _quoted(key: str) -> str:
    return quote(key.replace("'", "''"), safe="")


_quoted_again = lru_cache(maxsize=256)(_quoted)
"""The changes of a group have the same partition key."""


def content_type(batch_id: str) -> str:
    return f"multipart/mixed; boundary=batch_{batch_id}"


def print_group(table_url: str, changes: Sequence[Change], batch_id: str) -> bytes:
    """Return the body of the request; `table_url` is the address of the table."""
    delimiter = f"--changeset_{batch_id}"
    pieces = [
        f"--batch_{batch_id}\r\n"
        f"Content-Type: multipart/mixed; boundary={delimiter[2:]}\r\n\r\n".encode()
    ]
    for change in changes:
        kind = change.kind
        path = entity_path(change.partition_key, change.row_key)
        head = delimiter + _HEAD % (
            METHODS[kind],
            table_url if kind is Kind.INSERT else table_url + path,
        )
        if kind in CONDITIONAL:
            head += f"If-Match: {change.etag}\r\n"
        head += "\r\n" if kind is Kind.DELETE else _BODY % len(change.document)
        pieces += (head.encode(), change.document, b"\r\n")
    pieces.append(f"{delimiter}--\r\n\r\n--batch_{batch_id}--\r\n".encode())
    return b"".join(pieces)


def find_etags(body: bytes, count: int) -> list[str] | None:
    """Return the etags of a group that was performed; None if the answer is something else.

    A delete has no etag: the list is then shorter. Property values are not in this answer.
    """
    if len(_DONE.findall(body)) != count:
        return None
    return [etag.decode("latin-1") for etag in _ETAG.findall(body)]


def read_answer(body: bytes, content_type: str) -> tuple[Part, ...]:
    """Return the parts of an answer: one for each operation, or a single refusal.

    Lines may end in LF alone, as some servers send them.
    """
    change_set = _split(body, content_type)[0]
    head, rest = _cut_head(change_set)
    inner = _headers(head).get("content-type", "")
    if not inner.startswith("multipart/"):
        return (_read_part(change_set),)
    return tuple(map(_read_part, _split(rest, inner)))


def _split(body: bytes, content_type: str) -> list[bytes]:
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise _unreadable()
    boundary = (found[1] or found[2]).encode("ascii", "replace")
    pieces = re.split(rb"\r?\n--" + re.escape(boundary), b"\n" + body)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise _unreadable()
    return [piece.lstrip(b"\r\n") for piece in pieces[1:-1]]


def _read_part(part: bytes) -> Part:
    head, body = _cut_head(_cut_head(part)[1])
    status, _, headers = head.partition(b"\n")
    words = status.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not _STATUS.fullmatch(words[1]):
        raise _unreadable()
    return Part(int(words[1]), _headers(headers), body)


def _cut_head(part: bytes) -> tuple[bytes, bytes]:
    head, *rest = _BLANK_LINE.split(part, maxsplit=1)
    return head, rest[0] if rest else b""


def _headers(head: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _unreadable() -> DamageError:
    return DamageError(
        "AnswerUnreadable",
        "The answer to a group of changes is not one of a table service.",
        hint="Check that the address is the table endpoint of an account, not a proxy.",
    )
