"""The multipart body of an entity group transaction, written without the SDK; and its answer.

The SDK builds each part as a request of its own and reads the answer with an e-mail parser: 0.5 ms
per operation, more than the service needs to perform it. These bytes are equivalent; the SDK's
pipeline still signs, sends and retries them. Pure.
"""

from collections.abc import Iterator, Sequence

from partita.bulk import batches
from partita.bulk.batches import Kind, Part
from partita.errors import DamageError
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.row_json import print_row, row_path, unreadable

METHODS = {verb: batches.METHODS[Kind(verb.value)] for verb in Verb}
CONDITIONAL = frozenset(verb for verb in Verb if Kind(verb.value) in batches.CONDITIONAL)
_PART = (
    "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: %d\r\n\r\n"
    "%s %s HTTP/1.1\r\n"
    "Accept: application/json;odata=minimalmetadata\r\nDataServiceVersion: 3.0\r\n"
)
_BODY = "Prefer: return-no-content\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"

HEADERS = {
    "DataServiceVersion": "3.0",
    "MaxDataServiceVersion": "3.0;NetFx",
    "Accept": "application/json",
}
"""Headers of the request itself, without its content type."""


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


def read_answer(body: bytes, content_type: str) -> tuple[Part, ...]:
    """Return the parts of an answer: one for each operation, or a single refusal."""
    try:
        return batches.read_answer(body, content_type)
    except DamageError as error:
        raise unreadable() from error


def etag_of(part: Part) -> str:
    """Return the new etag; empty for a delete."""
    return part.headers.get("etag", "")
