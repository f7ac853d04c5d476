"""The multipart body of an entity group transaction, written and read without the SDK.

The SDK builds each part as a request of its own and reads the answer with an e-mail parser: 0.5 ms
per operation, more than the service needs to perform it. These bytes are equivalent; the SDK's
pipeline still signs, sends and retries them. Pure.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.row_json import print_row, row_path, unreadable

METHODS = {
    Verb.INSERT: "POST",
    Verb.REPLACE: "PUT",
    Verb.MERGE: "PATCH",
    Verb.UPSERT_REPLACE: "PUT",
    Verb.UPSERT_MERGE: "PATCH",
    Verb.DELETE: "DELETE",
}
CONDITIONAL = frozenset({Verb.REPLACE, Verb.MERGE, Verb.DELETE})
_PART = (
    "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: %d\r\n\r\n"
    "%s %s HTTP/1.1\r\n"
    "Accept: application/json;odata=minimalmetadata\r\nDataServiceVersion: 3.0\r\n"
)
_BODY = "Prefer: return-no-content\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
_BOUNDARY = re.compile(r""";\s*boundary\s*=\s*(?:"([^"]+)"|([^\s;"]+))""", re.IGNORECASE)
_STATUS = re.compile(rb"[1-9][0-9]{2}")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")

HEADERS = {
    "DataServiceVersion": "3.0",
    "MaxDataServiceVersion": "3.0;NetFx",
    "Accept": "application/json",
}
"""Headers of the request itself, without its content type."""


class Part(msgspec.Struct, frozen=True):
    """The answer to one operation, or to the whole group if it was refused."""

    status: int
    headers: dict[str, str]
    """By lower-case names."""
    body: bytes


def content_type(batch_id: str) -> str:
    return f"multipart/mixed; boundary=batch_{batch_id}"


def print_group(
    table_url: str, operations: Sequence[RowOperation], batch_id: str, *, is_tunnelled: bool = False
) -> bytes:
    """Return the body of the request; `table_url` is the address of the table.

    With `is_tunnelled` a PATCH is sent as a POST with the header for MERGE.
    """
    delimiter = f"--changeset_{batch_id}"
    front = f"Content-Type: multipart/mixed; boundary={delimiter[2:]}\r\n\r\n"
    pieces = [f"--batch_{batch_id}\r\n", front]
    for place, operation in enumerate(operations):
        pieces += (delimiter, "\r\n", *_part(table_url, place, operation, is_tunnelled), "\r\n")
    pieces.append(f"{delimiter}--\r\n\r\n--batch_{batch_id}--\r\n")
    return "".join(pieces).encode("ascii")


def _part(
    table_url: str,
    place: int,
    operation: RowOperation,
    is_tunnelled: bool,  # noqa: FBT001 - internal
) -> Iterator[str]:
    verb = operation.verb
    url = table_url if verb is Verb.INSERT else table_url + row_path(operation.row.key)
    method = METHODS[verb]
    if is_tunnelled and method == "PATCH":
        yield _PART % (place, "POST", url)
        yield "X-HTTP-Method: MERGE\r\n"
    else:
        yield _PART % (place, method, url)
    if verb in CONDITIONAL:
        yield f"If-Match: {operation.etag}\r\n"
    if verb is Verb.DELETE:
        yield "\r\n"
        return
    body = print_row(operation.row)
    yield _BODY % len(body)
    yield "\r\n"
    yield body


# ---------------------------------------------------------------------------------------------
# Answers


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


def etag_of(part: Part) -> str:
    """Return the new etag; empty for a delete."""
    return part.headers.get("etag", "")


def _split(body: bytes, content_type: str) -> list[bytes]:
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise unreadable()
    boundary = (found[1] or found[2]).encode("ascii", "replace")
    pieces = re.split(rb"\r?\n--" + re.escape(boundary), b"\n" + body)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise unreadable()
    return [piece.lstrip(b"\r\n") for piece in pieces[1:-1]]


def _read_part(part: bytes) -> Part:
    head, body = _cut_head(_cut_head(part)[1])
    status, _, headers = head.partition(b"\n")
    words = status.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not _STATUS.fullmatch(words[1]):
        raise unreadable()
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
