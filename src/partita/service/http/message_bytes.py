"""HTTP/1.1 as bytes: limits, the head of an answer, request targets, refusals. Pure.

The one rule: no CR, LF or NUL from a value ever reaches the wire.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_plus
from xml.sax.saxutils import escape

import msgspec

from partita.errors import InvalidRequestError, LimitExceededError, PartitaError, UnavailableError
from partita.service.http.request import Response
from partita.ticks import TICKS_PER_SECOND

CLOSE: Final = b"Connection: close\r\n"
KEEP: Final = b""
KEEP_AS_ASKED: Final = b"Connection: keep-alive\r\n"
"""For HTTP/1.0 clients: they close the connection without it."""

LENGTH_DIGITS_MAX: Final = 20
"""Leading zeros are legal in any number, and Python refuses to parse thousands of digits."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
METADATA_PREFIX: Final = "x-ms-meta-"
"""The prefix of metadata headers, whose names keep their case."""

STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun",
    "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip

_NAMES_SEEN_OFTEN: Final = (
    "Accept",
    "Accept-Charset",
    "Accept-Encoding",
    "Accept-Language",
    "Authorization",
    "Cache-Control",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Cookie",
    "DataServiceVersion",
    "Date",
    "Expect",
    "Host",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Unmodified-Since",
    "MaxDataServiceVersion",
    "Origin",
    "Prefer",
    "Range",
    "Referer",
    "Transfer-Encoding",
    "User-Agent",
    "X-HTTP-Method",
    "x-ms-client-request-id",
    "x-ms-date",
    "x-ms-return-client-request-id",
    "x-ms-version",
    "x-ms-useragent",
    "x-partita-explain",
)


_NAMES_READY: Final = {
    form.encode(): name.lower()
    for name in _NAMES_SEEN_OFTEN
    for form in (name, name.lower(), name.title())
}


class HeaderNames(dict[bytes, str]):
    """Header names in lower case by their spelling; the usual ones are prepared.

    The spelling of metadata names is collected separately, so that a request without metadata
    costs nothing. One for each thread.
    """

    def __init__(self) -> None:
        super().__init__(_NAMES_READY)
        self.spelled: dict[str, str] = {}
        """Metadata names of the current request: lower-case name → name as sent."""

    def __missing__(self, name: bytes) -> str:
        # Not cached: clients could fill the memory with names.
        spelled = name.decode("latin-1")
        lowered = spelled.lower()
        if lowered.startswith(METADATA_PREFIX):
            self.spelled[lowered] = spelled
        return lowered

    def take_spelled(self) -> Mapping[str, str]:
        """Return the metadata names of the current request, and clear them."""
        spelled, self.spelled = self.spelled, {}
        return spelled


class HttpLimits(msgspec.Struct, frozen=True):
    """The limits of the HTTP server."""

    request_line_bytes_max: int = 32 * 1024
    header_bytes_max: int = 32 * 1024
    header_fields_max: int = 100
    body_bytes_max: int = 4 * 1024 * 1024 + 64 * 1024
    """The 4 MiB of a batch and its envelope; the services check smaller limits."""
    stream_above_bytes: int | None = None
    """A longer body, or one of undeclared length, is streamed to the service; None: never."""
    upload_buffer_bytes_max: int = 1024 * 1024
    """Of streamed bodies: above this, reading pauses until the service has caught up."""
    header_timeout_seconds: float = 10
    """From the first byte of a request, or from the start of a connection that sends none."""
    body_window_seconds: float = 10
    body_rate_bytes_min: int = 1024
    """Bytes per second that a body must average in each window."""
    keep_alive_seconds: float = 75
    write_stall_seconds: float = 60
    """How long a client may read nothing of a pending answer."""
    write_buffer_bytes_max: int = 256 * 1024
    """Above this no further request of the connection is read or started."""
    linger_seconds: float = 2
    """How long to read after a refusal: closing with unread bytes would discard the answer."""
    linger_rate_bytes_min: int = 64 * 1024
    """Bytes per second above which reading continues: such a client still sends its body."""
    linger_bytes_max: int = 16 * 1024 * 1024
    connections_max: int = 4096
    connections_per_peer_max: int = 2048
    """Connections from one IPv4 address or from one IPv6 network of 64 bits."""
    reserved_connections_max: int = 64
    """Connections above `connections_max`: health is answered, other requests get 503."""
    unauthenticated_bytes_max: int = 64 * 1024 * 1024
    """What all connections together hold of requests that are not authenticated yet."""
    chunk_overhead_bytes_max: int = 16 * 1024
    """What a body of chunks has besides its content and 16 bytes per chunk."""
    pipelined_requests_max: int = 16
    backlog_connections_max: int = 1024
    sweep_seconds: float = 1
    """How often the time-outs are checked, which is also their precision."""


STREAM_ABOVE_BYTES: Final = 64 * 1024
"""A longer body of a blob is never in memory as a whole."""

STREAMING_LIMITS: Final = HttpLimits(
    body_bytes_max=5000 * 1024 * 1024,
    stream_above_bytes=STREAM_ABOVE_BYTES,
    linger_bytes_max=256 * 1024 * 1024,
)
"""For blobs: the longest Put Blob, and room to refuse the default upload of clients."""


class Refusal(msgspec.Struct, frozen=True):
    """An answer of the HTTP protocol itself, before or instead of the service."""

    status: int
    code: str
    message: str


MALFORMED = Refusal(400, "InvalidInput", "One of the request inputs is not valid.")
BAD_HEADER = Refusal(
    400,
    "InvalidHeaderValue",
    "The value for one of the HTTP headers is not in the correct format.",
)
BAD_TARGET = Refusal(400, "InvalidUri", "Bad Request - Error in query syntax.")
TOO_SLOW = Refusal(
    408,
    "OperationTimedOut",
    "The operation could not be completed within the permitted time.",
)
BODY_TOO_LARGE = Refusal(
    413,
    "RequestBodyTooLarge",
    "The request body is too large and exceeds the maximum permissible limit.",
)
LINE_TOO_LONG = Refusal(414, "InvalidUri", "The request line is longer than the permitted limit.")
BAD_EXPECTATION = Refusal(417, BAD_HEADER.code, BAD_HEADER.message)
HEADERS_TOO_LARGE = Refusal(
    431, "InvalidHeaderValue", "The header section is larger than the permitted limit."
)
FAILED = Refusal(
    500,
    "InternalError",
    "Server encountered an internal error. Please try again after some time.",
)
NOT_IMPLEMENTED = Refusal(
    501,
    "NotImplemented",
    "The requested operation is not implemented on the specified resource.",
)
BUSY = Refusal(
    503,
    "ServerBusy",
    "The server is currently unable to receive requests. Please retry your request.",
)
VERSION_NOT_SUPPORTED = Refusal(
    505, "NotImplemented", "The HTTP version of the request is not supported."
)


class RefusedError(Exception):
    """Carries a refusal out of a parser callback."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refusal_error(refusal: Refusal) -> PartitaError:
    """Return the error for the reader of the refused body."""
    kind = _ERRORS_BY_STATUS.get(refusal.status, InvalidRequestError)
    return kind(refusal.code, refusal.message)


_ERRORS_BY_STATUS: Final[dict[int, type[PartitaError]]] = {
    TOO_SLOW.status: UnavailableError,
    BODY_TOO_LARGE.status: LimitExceededError,
    BUSY.status: UnavailableError,
}


def _message_of(refusal: Refusal, request_id: str, ticks: int) -> str:
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    time = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:07}Z"
    return f"{refusal.message}\nRequestId:{request_id}\nTime:{time}"


def _refuse_in_json(refusal: Refusal, request_id: str, ticks: int) -> Response:
    value = _message_of(refusal, request_id, ticks)
    error = {"code": refusal.code, "message": {"lang": "en-US", "value": value}}
    body = json.dumps({"odata.error": error}, separators=(",", ":"))
    kind = "application/json;odata=minimalmetadata;streaming=true;charset=utf-8"
    return _refuse(refusal, request_id, kind, body)


def _refuse_in_xml(refusal: Refusal, request_id: str, ticks: int) -> Response:
    value = escape(_message_of(refusal, request_id, ticks))
    body = (
        '\ufeff<?xml version="1.0" encoding="utf-8"?>'
        f"<Error><Code>{refusal.code}</Code><Message>{value}</Message></Error>"
    )
    return _refuse(refusal, request_id, "application/xml", body)


def _refuse(refusal: Refusal, request_id: str, kind: str, body: str) -> Response:
    return Response(
        refusal.status,
        [
            ("Content-Type", kind),
            ("X-Content-Type-Options", "nosniff"),
            ("x-ms-error-code", refusal.code),
            ("x-ms-request-id", request_id),
            *([("Retry-After", "1")] if refusal.status == BUSY.status else []),
        ],
        body.encode(),
    )


class Dialect(msgspec.Struct, frozen=True):
    """The form of the protocol's own answers for one service."""

    server: str
    """The Server header."""
    refuse: Callable[[Refusal, str, int], Response]
    """Format a refusal, with request id and ticks, like the other errors of the service."""


TABLE_DIALECT: Final = Dialect("Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0", _refuse_in_json)
QUEUE_DIALECT: Final = Dialect("Windows-Azure-Queue/1.0 Microsoft-HTTPAPI/2.0", _refuse_in_xml)
BLOB_DIALECT: Final = Dialect("Windows-Azure-Blob/1.0 Microsoft-HTTPAPI/2.0", _refuse_in_xml)


def http_date(ticks: int) -> str:
    """Print a time in the format of the Date header, in any locale.

    >>> http_date(16_345_943_130_000_000)
    'Mon, 18 Oct 2021 21:58:33 GMT'
    """
    return _date_of(ticks // TICKS_PER_SECOND)


@lru_cache(maxsize=4096)
def _date_of(second: int) -> str:
    time = datetime.fromtimestamp(second, UTC)
    day, month = _DAYS[time.weekday()], _MONTHS[time.month - 1]
    return f"{day}, {time.day:02} {month} {time.year:04} {time:%H:%M:%S} GMT"


def server_lines(dialect: Dialect, ticks: int) -> bytes:
    """Return the header lines of every answer within this second."""
    return f"Server: {dialect.server}\r\nDate: {http_date(ticks)}\r\n".encode("latin-1")


def encode_head(response: Response, server_lines: bytes, connection: bytes) -> bytes:
    """Return the head of an answer: everything before the body."""
    status = response.status
    line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    headers = response.headers
    lines = list(map(": ".join, headers))
    whole = "".join(lines)
    # A search in all of them is cheaper than one in each value.
    if "\n" in whole or "\r" in whole or "\0" in whole:
        lines = [f"{name}: {value}" for name, value in sanitised_headers(headers)]
    lines.append("")
    text = "\r\n".join(lines)
    # The length in a 304 would be that of the body that is not sent: omit it.
    download = response.download
    count = len(response.body) if download is None else download.length
    length = b"\r\n" if status == 304 else f"Content-Length: {count}\r\n\r\n".encode()
    return b"".join((line, server_lines, text.encode("latin-1", "replace"), connection, length))


def sanitised_headers(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers with line ends replaced by spaces."""
    return [(_one_line(name), _one_line(value)) for name, value in headers]


def _one_line(text: str) -> str:
    return re.sub(r"[\r\n\0]", " ", text)


def join_repeated(
    fields: list[tuple[bytes, bytes]], names: HeaderNames
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the headers, repeated ones joined by a comma, and the names of repeated ones."""
    headers: dict[str, str] = {}
    repeated: set[str] = set()
    for raw_name, raw_value in fields:
        name, value = names[raw_name], raw_value.decode("latin-1").strip()
        if name in headers:
            repeated.add(name)
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers, frozenset(repeated)


def split_target(target: bytes) -> tuple[str, str, str]:
    """Return the authority (empty unless the target names one), raw path and raw query.

    Raises RefusedError unless the target has origin form, absolute form or is an asterisk.
    """
    try:
        text = target.decode("ascii")
    except UnicodeDecodeError:
        raise RefusedError(BAD_TARGET) from None
    authority = ""
    if not text.startswith("/") and text != "*":
        authority, text = _without_authority(text)
    if "#" in text:
        raise RefusedError(BAD_TARGET)
    path, _, query = text.partition("?")
    return authority, path, query


_ABSOLUTE: Final = re.compile(r"https?://([^/?#@]+)([/?].*)?", re.IGNORECASE)


def _without_authority(target: str) -> tuple[str, str]:
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise RefusedError(BAD_TARGET)
    rest = absolute[2] or "/"
    return absolute[1], rest if rest.startswith("/") else f"/{rest}"


_REQUEST_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} [!-~]+ HTTP/1\.[01]\r\n")


def is_request_line(start: bytes | memoryview) -> bool:
    """Return whether a line is a request line, perhaps with an unknown method."""
    return _REQUEST_LINE.match(start) is not None


def redact_query(query: str) -> str:
    """Return the query with every signature redacted.

    >>> redact_query("sv=2019-02-02&sig=abc%3D&sp=r")
    'sv=2019-02-02&sig=REDACTED&sp=r'
    """
    if not query:
        return query
    return "&".join(_redacted(part) for part in query.split("&"))


def _redacted(part: str) -> str:
    name = part.partition("=")[0]
    return f"{name}=REDACTED" if unquote_plus(name).strip().lower() == "sig" else part
