"""The multipart envelope of a batch, in and out. No I/O, no rules of groups.

Reading is one pass over the body: what real clients send is tolerated, anything else is
refused at the first byte that cannot be right. Content-Length inside a part is not trusted:
a part ends where the next delimiter line begins.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from partita.errors import InvalidRequestError
from partita.refusals import invalid_input
from partita.service.http.request import Request, Response
from partita.tables import limits

# body        = *( "--" batch CRLF part ) "--" batch "--" CRLF
# part        = Content-Type: multipart/mixed, blank line, change set
#             | Content-Type: application/http, blank line, request     (one query, alone)
# change set  = *( "--" changeset CRLF headers, blank line, request ) "--" changeset "--"

BOUNDARY_CHARACTERS_MAX = 70
"""RFC 2046, 5.1.1."""
PART_HEADERS_MAX = 64
PART_HEAD_BYTES_MAX = 16 * limits.KIB
"""The headers of one part, its request line included."""
LOOKALIKES_MAX = 1000
"""Lines that start like a delimiter and are not one: one boundary may be a prefix of another."""


class Span(NamedTuple):
    """A part of the body, which is not copied."""

    start: int
    end: int


class BatchRequest(msgspec.Struct, frozen=True):
    """The requests inside a batch, in order."""

    parts: list[Request]
    """None for an empty change set; at most one more than a group may have, which refuses it."""
    is_query: bool
    """One GET outside of any change set."""


_CR, _LF = b"\r\n"
_CONTENT_TYPE_CHARACTERS_MAX = 1024
_REQUEST_TYPE = "application/http"
_ENCODINGS = frozenset({"binary", "8bit", "7bit"})
_BOUNDARY = re.compile(r""";\s*boundary\s*=\s*(?:"([^"]*)"|([^\s;"]*))""", re.IGNORECASE)
_BOUNDARY_TEXT = re.compile(r"[0-9A-Za-z'()+_,./:=?\- ]*[0-9A-Za-z'()+_,./:=?\-]")
_DELIMITER_END = re.compile(rb"(--)?[ \t]{0,70}(?:\r?\n|\r?\Z)")
_BLANK_LINE = re.compile(rb"\n\r?\n")
_AUTHORITY = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_METHOD = re.compile(r"[A-Z]{1,20}")
_VERSIONS = frozenset({"HTTP/1.1", "HTTP/1.0"})
_HEADER_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+")
_CONTROLS = bytes({*range(32), 127} - {9, 10})
_CONTENT_ID = re.compile(r"[0-9]{1,9}")
REASONS = {status.value: status.phrase for status in HTTPStatus}


Head = tuple[str, str, str, dict[str, str], frozenset[str]]
"""Method, path, query, headers, and the names of those that are repeated."""


def read_batch(body: bytes, content_type: str, root_path: str = "") -> BatchRequest:
    """Parse the requests of a batch.

    `root_path` is `/acct` in path style: it is put before addresses that are relative to the
    service root, so that every part has a path like that of the batch.
    """
    is_query = False
    requests: list[Request] | None = None
    for part in _split_parts(body, _boundary_of(content_type), Span(0, len(body))):
        if requests is not None:
            raise _malformed("Send one change set or one query in a batch.")
        head, content = _cut_head(body, part)
        part_type = _part_type(head)
        is_query = part_type == _REQUEST_TYPE
        if is_query:
            requests = [_read_query(body, content, root_path)]
        else:
            requests = _read_change_set(body, content, part_type, root_path)
    if requests is None:
        raise _malformed("Send at least one operation.")
    return BatchRequest(requests, is_query)


def read_parts(
    body: bytes, content_type: str, root_path: str, parts_max: int
) -> Iterator[tuple[str, Request]]:
    """Parse a batch without change sets: yield the Content-ID of each part, and its request."""
    parts = _split_parts(body, _boundary_of(content_type), Span(0, len(body)))
    for count, part in enumerate(parts):
        if count == parts_max:
            raise _malformed("Send fewer parts in a batch.")
        head, content = _cut_head(body, part)
        if _part_type(head) != _REQUEST_TYPE:
            raise _malformed("Send parts of type application/http in a batch.")
        headers, _ = _parse_headers(_head_lines(head))
        number = headers.get("content-id", str(count))
        if not _CONTENT_ID.fullmatch(number):
            raise _malformed("Use a number for Content-ID.")
        yield number, _read_request(body, content, root_path)[0]


def _read_query(body: bytes, content: Span, root_path: str) -> Request:
    request, _ = _read_request(body, content, root_path)
    if request.method != "GET":
        raise _malformed("Put changes into a change set.")
    return request


def _read_change_set(
    body: bytes, content: Span, content_type: str, root_path: str
) -> list[Request]:
    requests: list[Request] = []
    is_blank = False
    before = b""
    """What precedes the body of the last request in its part: usually equal in all parts."""
    for part in _split_parts(body, _boundary_of(content_type), content):
        if before and body.startswith(before, *part):
            last = requests[-1]
            requests.append(
                Request(
                    last.method,
                    last.path,
                    last.query,
                    last.headers,
                    body[part.start + len(before) : part.end].strip(b"\r\n"),
                    repeated=last.repeated,
                )
            )
            if len(requests) > limits.GROUP_OPERATIONS_MAX:
                break
            continue
        if is_blank:
            raise _malformed("A part of the change set is blank.")
        if not requests and not body[part.start : part.end].strip():
            is_blank = True  # MIME libraries print a multipart without parts as one blank part
            continue
        head, inside = _cut_head(body, part)
        if _part_type(head) != _REQUEST_TYPE:
            raise _malformed("Send parts of type application/http in a change set.")
        request, start = _read_request(body, inside, root_path)
        if request.method == "GET":
            raise _malformed("Send the query outside of a change set.")
        requests.append(request)
        before = body[part.start : start] if start < part.end else b""
        if len(requests) > limits.GROUP_OPERATIONS_MAX:
            break
    return requests


def _boundary_of(content_type: str) -> bytes:
    if len(content_type) > _CONTENT_TYPE_CHARACTERS_MAX:
        raise _malformed("The Content-Type is too long.")
    if content_type.partition(";")[0].strip().lower() != "multipart/mixed":
        raise _malformed("Use multipart/mixed as the Content-Type of a batch and of a change set.")
    found = _BOUNDARY.findall(content_type)
    if len(found) != 1:
        raise _malformed("Give one boundary in the Content-Type.")
    boundary = found[0][0] or found[0][1]
    if len(boundary) > BOUNDARY_CHARACTERS_MAX or not _BOUNDARY_TEXT.fullmatch(boundary):
        raise _malformed("Use 1 to 70 characters that RFC 2046 allows as boundary.")
    return bytes(boundary, "ascii")


def _split_parts(body: bytes, boundary: bytes, within: Span) -> Iterator[Span]:
    """Yield where the text between the delimiter lines is, without the line end before each."""
    start, is_last = _find_first(body, boundary, within)
    lookalikes = 0
    line = b"\n--" + boundary
    search_from = start - 1
    while not is_last:
        found = body.find(line, search_from, within.end)
        if found < 0:
            break
        end = _DELIMITER_END.match(body, found + len(line), within.end)
        if end is None:
            lookalikes += 1
            if lookalikes > LOOKALIKES_MAX:
                raise _malformed("Too many lines begin like a delimiter.")
            search_from = found + 1
            continue
        has_return = found > start and body[found - 1] == _CR
        yield Span(start, found - has_return if found > start else start)
        start, is_last = end.end(), end[1] is not None
        search_from = start - 1
    # Some clients leave out the closing delimiter, or its last two dashes: the end closes too.
    if not is_last and body[start : within.end].strip():
        yield Span(start, within.end)


def _find_first(body: bytes, boundary: bytes, within: Span) -> tuple[int, bool]:
    """Return where the first part starts, and whether the delimiter already closes."""
    delimiter = b"--" + boundary
    start = body.find(delimiter, *within)
    if start < 0 or body[within.start : start].strip():
        raise _malformed("The body does not start with the boundary of its Content-Type.")
    end = _DELIMITER_END.match(body, start + len(delimiter), within.end)
    if end is None or (start > within.start and body[start - 1] != _LF):
        raise _malformed("The body does not start with the boundary of its Content-Type.")
    return end.end(), end[1] is not None


@lru_cache(maxsize=256)
def _part_type(head: bytes) -> str:
    """Check the headers around a request or change set; return the Content-Type they name."""
    headers, repeated = _parse_headers(_head_lines(head))
    if repeated:
        raise _malformed("A header of a part is repeated.")
    if headers.get("content-transfer-encoding", "binary").lower() not in _ENCODINGS:
        raise _malformed("Use binary as Content-Transfer-Encoding.")
    content_type = headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type if media_type == _REQUEST_TYPE else content_type


def _read_request(body: bytes, content: Span, root_path: str) -> tuple[Request, int]:
    """Return a request and where its body starts."""
    start, end = content
    # Some clients put a second blank line before the request line, or before the body.
    while start < end and body[start] in (_CR, _LF):
        start += 1
    head, rest = _cut_head(body, Span(start, end))
    read = _read_insert_head if head.startswith(b"POST ") else _read_head
    method, path, query, headers, repeated = read(head, root_path)
    text = body[rest.start : rest.end].strip(b"\r\n")
    return Request(method, path, query, headers, text, repeated=repeated), rest.start


@lru_cache(maxsize=256)
def _read_insert_head(head: bytes, root_path: str) -> Head:
    """Parse a head that has no keys; equal heads have the same headers, others have others."""
    line, _, fields = head.partition(b"\n")
    return *_read_line(line, root_path), *_parse_fields(fields)


def _read_head(head: bytes, root_path: str) -> Head:
    """Parse a head whose address has keys: only its headers are those of other changes."""
    line, _, fields = head.partition(b"\n")
    return *_read_line(line, root_path), *_read_fields(fields)


def _read_line(first: bytes, root_path: str) -> tuple[str, str, str]:
    line = _text_of(first.removesuffix(b"\r"))
    method, _, rest = line.partition(" ")
    address, _, version = rest.rstrip().rpartition(" ")
    address = address.strip()
    if version not in _VERSIONS or not address or not _METHOD.fullmatch(method):
        raise _malformed("A part of the batch does not start with a request line.")
    return method, *_split_address(address, root_path)


def _parse_fields(fields: bytes) -> tuple[dict[str, str], frozenset[str]]:
    lines = _head_lines(fields)
    return _parse_headers([] if lines == [""] else lines)


_read_fields = lru_cache(maxsize=256)(_parse_fields)


def _cut_head(body: bytes, part: Span) -> tuple[bytes, Span]:
    """Split at the first blank line: return the text before it, and where the rest is."""
    start, end = part
    blank = _BLANK_LINE.search(body, start, min(end, start + PART_HEAD_BYTES_MAX))
    if blank is not None:
        return body[start : blank.start()], Span(blank.end(), end)
    if end - start > PART_HEAD_BYTES_MAX:
        raise _malformed("The headers of a part are too long.")
    return body[start:end], Span(end, end)


def _head_lines(head: bytes) -> list[str]:
    return _text_of(head.replace(b"\r\n", b"\n").rstrip(b"\r\n")).split("\n")


def _text_of(head: bytes) -> str:
    if len(head.translate(None, _CONTROLS)) != len(head):
        raise _malformed("Remove the control character from the headers of a part.")
    try:
        return head.decode()
    except UnicodeDecodeError:
        raise _malformed("The headers of a part are not UTF-8.") from None


def _parse_headers(lines: list[str]) -> tuple[dict[str, str], frozenset[str]]:
    if len(lines) > PART_HEADERS_MAX:
        raise _malformed("A part has too many headers.")
    headers: dict[str, str] = {}
    repeated: frozenset[str] = frozenset()
    for line in lines:
        name, value = _parse_header(line)
        if name in headers:
            repeated |= {name}
            value = f"{headers[name]},{value}"
        headers[name] = value
    return headers, repeated


@lru_cache(maxsize=512)
def _parse_header(line: str) -> tuple[str, str]:
    # The parts of a batch, and all batches of a client, repeat nearly all of their headers.
    name, colon, value = line.partition(":")
    if not colon or not _HEADER_NAME.fullmatch(name):
        raise _malformed("A header of a part is malformed.")
    return name.lower(), value.strip()


def _split_address(address: str, root_path: str) -> tuple[str, str]:
    """Return path and query; the host of an absolute address is ignored."""
    if authority := _AUTHORITY.match(address):
        address = address[authority.end() :]
    path, _, query = address.partition("?")
    path = "/" + path.lstrip("/")
    if not path.startswith(root_path + "/"):
        path = root_path + path
    return path, query


def _malformed(hint: str) -> InvalidRequestError:
    return invalid_input(InvalidRequestError, hint)


def batch_content_type(batch_id: str) -> str:
    """Return the Content-Type of the answer to a batch."""
    return f"multipart/mixed; boundary=batchresponse_{batch_id}"


def print_batch(
    parts: Sequence[Response | bytes], batch_id: str, changeset_id: str | None
) -> bytes:
    """Print the answer; without a `changeset_id` it is the answer to a query.

    The exact bytes matter: some clients fail with an additional line end, others without it, and
    one splits the text at `--changesetresponse_`. A part may be printed already (`print_part`).
    """
    batch = f"--batchresponse_{batch_id}\r\n".encode()
    changeset = f"changesetresponse_{changeset_id}"
    delimiter, pieces = batch, []
    if changeset_id is not None:
        pieces += [batch, f"Content-Type: multipart/mixed; boundary={changeset}\r\n\r\n".encode()]
        delimiter = f"--{changeset}\r\n".encode()
    for part in parts:
        pieces += (delimiter, part if isinstance(part, bytes) else print_part(part))
    if changeset_id is not None:
        pieces.append(f"--{changeset}--\r\n".encode())
    pieces.append(f"--batchresponse_{batch_id}--\r\n".encode())
    return b"".join(pieces)


def print_part(part: Response) -> bytes:
    """Print a part of an answer, without the delimiter before it."""
    headers = "".join([f"{name}: {value}\r\n" for name, value in part.headers])
    head = (
        "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
        f"\r\nHTTP/1.1 {part.status} {REASONS[part.status]}\r\n{headers}\r\n"
    )
    return b"%b%b\r\n" % (head.encode(), part.body)
