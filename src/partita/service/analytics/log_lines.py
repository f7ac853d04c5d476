"""The lines of the log: one request each, in format 1.0 or 2.0. Pure.

A line has the fields below, separated by `;`, and ends with a line feed. A field that may contain
a quote, `;` or a line feed is encoded as HTML and quoted; an empty one is left out. Fields and
names follow the page "Storage Analytics Log Format" of the REST reference.

    1 version            9 requester account     17 x-ms-version           25 etag
    2 start              10 owner account        18 request header bytes   26 last modified
    3 operation          11 service              19 request body bytes     27 conditions
    4 outcome            12 URL                  20 response header bytes  28 user agent
    5 status             13 object               21 response body bytes    29 referrer
    6 latency in ms      14 request id           22 Content-Length         30 client request id
    7 server latency     15 operation count      23 MD5 of the request     31-38 in 2.0: fields of
    8 authentication     16 client address       24 MD5 of the server      OAuth, which are empty
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from partita.service.http.message_bytes import redact_query
from partita.service.http.observed import ANONYMOUSLY, BY_KEY, BY_SAS, UNKNOWN_OPERATION
from partita.service.http.request import Request, Response
from partita.service.observing.outcomes import (
    CLIENT_TIMEOUT,
    KINDS,
    OUTCOMES,
    SERVER_OTHER,
    SERVER_TIMEOUT,
    SUCCESS,
)
from partita.tables import edm
from partita.ticks import TICKS_PER_SECOND

READ: Final = "read"
WRITE: Final = "write"
DELETE: Final = "delete"
TYPES: Final = (READ, WRITE, DELETE)
"""The types of requests that are logged or not, in the order of the metadata of a log."""

_FIELDS_OF_2_0: Final = 8
_AUTHENTICATION: Final = {BY_KEY: "authenticated", ANONYMOUSLY: "anonymous", BY_SAS: "sas"}
_CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
_READS: Final = ("Get", "List", "Query", "Peek", "Find")
_READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOGGED_ANONYMOUSLY: Final = frozenset({SUCCESS, CLIENT_TIMEOUT, SERVER_TIMEOUT, SERVER_OTHER})
_WEEKDAYS: Final = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Fri": "Friday",
    "Sat": "Saturday",
    "Sun": "Sunday",
}
_HTML: Final = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        '"': "&quot;",
        # Readers split a log at whatever they take for the end of a line.
        **{chr(code): f"&#{code};" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)},
    }
)

_SPECIAL: Final = re.compile(f"[{re.escape(''.join(map(chr, _HTML)))}]")


def type_of(operation: str, method: str) -> str:
    """Return whether an operation reads, writes or deletes; by the method if it is unknown.

    >>> type_of("GetMessages", "GET"), type_of("EntityGroupTransaction", "POST")
    ('read', 'write')
    """
    if operation == UNKNOWN_OPERATION:
        if method in _READ_METHODS:
            return READ
        return DELETE if method == "DELETE" else WRITE
    if operation.startswith(_READS) or operation.endswith("PreflightRequest"):
        return READ
    is_delete = operation.startswith("Delete") or operation == "ClearMessages"
    return DELETE if is_delete else WRITE


def is_logged(outcome: int, status: int) -> bool:
    """Return whether a request is logged; of the failed anonymous ones only some are."""
    is_anonymous = ANONYMOUSLY <= outcome < ANONYMOUSLY + len(KINDS)
    return not is_anonymous or outcome - ANONYMOUSLY in _LOGGED_ANONYMOUSLY or status == 304


def log_line(  # noqa: PLR0913 - what is known of a request
    request: Request,
    response: Response,
    *,
    service: str,
    version: str,
    outcome: int,
    seconds: float,
    ended: int,
) -> bytes:
    """Return the line of a request that ended at these ticks, `seconds` after its start."""
    observed, headers = request.observed, request.headers
    answered = {name.lower(): value for name, value in response.headers}
    account, milliseconds = observed.account, str(round(seconds * 1000))
    by_key = observed.credentials == BY_KEY
    fields = (
        version,
        _time_of(ended - int(seconds * TICKS_PER_SECOND)),
        observed.operation,
        OUTCOMES[outcome],
        str(response.status),
        milliseconds,
        milliseconds,
        _AUTHENTICATION[observed.credentials],
        account if by_key else "",
        account,
        service,
        _quoted(_url_of(request)),
        _quoted("/".join(("", account, *_object_of(observed.object, observed.call)))),
        answered.get("x-ms-request-id", ""),
        "0",
        request.peer,
        answered.get("x-ms-version", ""),
        str(_size_of(headers.items())),
        str(len(request.body) if request.upload is None else request.upload.received_bytes),
        str(_size_of(response.headers)),
        str(response.length),
        length if (length := headers.get("content-length", "")).isdecimal() else "0",
        _quoted(headers.get("content-md5", "")),
        _quoted(answered.get("content-md5", "")),
        _quoted(answered.get("etag", "")),
        _date_of(answered.get("last-modified", "")),
        _quoted(
            ";".join(
                f"{name}={value}" for name in _CONDITIONS if (value := headers.get(name.lower()))
            )
        ),
        _quoted(headers.get("user-agent", "")),
        _quoted(headers.get("referer", "")),
        _quoted(headers.get("x-ms-client-request-id", "")),
        *([""] * _FIELDS_OF_2_0 if version == "2.0" else ()),
    )
    return (";".join(fields) + "\n").encode(errors="replace")


def _quoted(text: str) -> str:
    """Return a field that may contain anything.

    >>> _quoted('a "b"; c')
    '"a &quot;b&quot;; c"'
    """
    if not text:
        return ""
    if _SPECIAL.search(text):  # most texts have none, and a search is quick
        text = text.translate(_HTML)
    return f'"{text}"'


def _url_of(request: Request) -> str:
    query = f"?{redact_query(request.query)}" if request.query else ""
    return f"{request.scheme}://{request.headers.get('host', '')}{request.path}{query}"


def _object_of(named: str, call: Any) -> tuple[str, ...]:
    """Return the names of what a request is about: container and blob, queue, table and keys."""
    if named or call is None:
        return (named,) if named else ()
    if isinstance(call, list):
        return _object_of("", call[0])[:1] if call else ()  # a batch has one table
    for attribute in ("table", "queue", "name"):
        name = getattr(call, attribute, None)
        if isinstance(name, str):
            key = getattr(getattr(call, "operation", call), "key", ())
            return (name, *key)
    return ()


def _size_of(headers: Iterable[tuple[str, str]]) -> int:
    """Return the bytes of headers, each with its colon, blank and line end."""
    return sum(len(name) + len(value) + 4 for name, value in headers)


def _time_of(ticks: int) -> str:
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    return f"{edm.text_of_second(seconds)}.{fraction:07}Z"


def _date_of(text: str) -> str:
    """Return the date of a header in the format of RFC 850.

    >>> _date_of("Mon, 03 Jan 2022 20:34:54 GMT")
    'Monday, 03-Jan-22 20:34:54 GMT'
    """
    weekday = _WEEKDAYS.get(text[:3])
    if weekday is None:
        return ""
    return f"{weekday}, {text[5:7]}-{text[8:11]}-{text[14:16]} {text[17:]}"
