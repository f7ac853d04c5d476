"""Lines of logs: text or one JSON object each, with time and level. Pure.

The one rule: a line never contains a signature or a key, and never an end of line.
"""

import logging
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from partita.service.http.message_bytes import redact_query
from partita.service.http.observed import ANONYMOUSLY, BY_KEY, BY_SAS, Observed
from partita.service.http.request import Request, Response
from partita.tables import plan as plans
from partita.tables.advice import advise
from partita.tables.filters import Filter, to_text
from partita.ticks import TICKS_PER_SECOND

TEXT_CHARACTERS_MAX = 2000
"""Longer targets and filters are cut."""
_CREDENTIALS = {BY_KEY: "key", ANONYMOUSLY: "anonymous", BY_SAS: "sas"}
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


class TextFormatter(logging.Formatter):
    """`2026-11-18T03:20:27.123Z WARNING partita.serve: text`."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time_of(record.created)} {record.levelname} {record.name}: {record.getMessage()}"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text


class JsonFormatter(logging.Formatter):
    """One object with time, level, logger, message and, of an error, its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time_of(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _time_of(seconds: float) -> str:
    time = datetime.fromtimestamp(seconds, UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


class AccessEntry(msgspec.Struct, frozen=True, rename={"bytes_in": "in", "bytes_out": "out"}):
    """One line of the access log."""

    time: str
    service: str
    operation: str
    account: str
    object: str
    """The table, queue, container or blob; of a batch, its table."""
    method: str
    target: str
    """Path and query as sent, without signatures."""
    status: int
    code: str
    ms: float
    bytes_in: int
    bytes_out: int
    peer: str
    auth: str
    by: str
    """The stored access policy of a SAS."""
    request_id: str
    client_request_id: str
    agent: str
    filter: str
    """Of a query, decoded."""
    hint: str
    """What resolves a refusal."""

    def as_text(self) -> str:
        """Return the line of the request log."""
        parts = [
            self.peer,
            self.method,
            self.target,
            str(self.status),
            f"{self.ms:.1f}ms",
            f"{self.bytes_out}B",
            self.request_id,
            self.operation,
            *([f"table={self.object}"] if self.operation == "EntityGroupTransaction" else []),
            *([f"filter={self.filter!r}"] if self.filter else []),
            *([f"code={self.code}"] if self.code else []),
            *([f"hint={self.hint!r}"] if self.hint else []),
        ]
        return " ".join(parts)


class SlowEntry(msgspec.Struct, frozen=True):
    """One slow request."""

    at: float
    """When it was answered, in seconds since 1970."""
    ms: float
    service: str
    operation: str
    account: str
    object: str
    status: int
    code: str
    filter: str
    plan: str
    examined: int | None
    is_examined_exact: bool
    """Whether `examined` was counted; otherwise at least so many."""
    returned: int | None
    commit_ms: float
    queue_ms: float
    advice: str
    request_id: str
    peer: str

    def as_text(self) -> str:
        """Return the line of the log."""
        parts = [f"slow request: {self.ms:.0f} ms {self.service}/{self.operation} {self.object}"]
        if self.filter:
            parts.append(f"filter {self.filter!r}")
        if self.plan:
            examined = f"{'' if self.is_examined_exact else 'at least '}{self.examined}"
            parts.append(f"plan {self.plan}; examined {examined}, returned {self.returned}")
        parts.append(f"commit {self.commit_ms:.0f} ms, queue {self.queue_ms:.0f} ms")
        parts += [self.request_id, *([self.advice] if self.advice else [])]
        return "; ".join(parts)


def access_entry(
    service: str, request: Request, response: Response, seconds: float, ticks: int
) -> AccessEntry:
    """Return the line of an exchange."""
    observed, headers, upload = request.observed, request.headers, request.upload
    query = f"?{redact_query(request.query)}" if request.query else ""
    return AccessEntry(
        time=_time_of(ticks / TICKS_PER_SECOND),
        service=service,
        operation=observed.operation,
        account=observed.account,
        object=object_of(observed),
        method=_clean(request.method),
        target=_clean(request.path + query),
        status=response.status,
        code=observed.code,
        ms=round(seconds * 1000, 3),
        bytes_in=len(request.body) if upload is None else upload.received_bytes,
        bytes_out=response.length,
        peer=request.peer,
        auth=_CREDENTIALS[observed.credentials],
        by=_clean(_policy_of(request.query)),
        request_id=response.header("x-ms-request-id") or "",
        client_request_id=_clean(headers.get("x-ms-client-request-id", "")),
        agent=_clean(headers.get("user-agent", "")),
        filter=_filter_of(observed),
        hint=_clean(observed.hint),
    )


def slow_entry(
    service: str, request: Request, response: Response, seconds: float, ticks: int
) -> SlowEntry:
    """Return a slow request with its plan and advice."""
    observed = request.observed
    query = observed.query
    advice = (
        _advice_for_write(observed, seconds)
        if query is None
        else advise(query.plan, query.examined, query.returned)
    )
    return SlowEntry(
        at=ticks / TICKS_PER_SECOND,
        ms=round(seconds * 1000, 3),
        service=service,
        operation=observed.operation,
        account=observed.account,
        object=object_of(observed),
        status=response.status,
        code=observed.code,
        filter=_filter_of(observed),
        plan="" if query is None else plans.describe(query.plan),
        examined=None if query is None else query.examined,
        is_examined_exact=query is None or query.is_counted,
        returned=None if query is None else query.returned,
        commit_ms=round(observed.commit_seconds * 1000, 3),
        queue_ms=round(observed.queue_seconds * 1000, 3),
        advice=advice,
        request_id=response.header("x-ms-request-id") or "",
        peer=request.peer,
    )


def _policy_of(query: str) -> str:
    return next((value for name, value in parse_qsl(query) if name == "si"), "")


def _advice_for_write(observed: Observed, seconds: float) -> str:
    if observed.commit_seconds + observed.queue_seconds < seconds / 2:
        return ""
    if observed.operation == "EntityGroupTransaction":
        return "Most of the time was the wait for the commit: check the disk."
    return "Most of the time was the wait for the commit: write in groups, or check the disk."


def object_of(observed: Observed) -> str:
    """Return the table, queue, container or blob of a request, as far as it is known."""
    if observed.object:
        return _clean(observed.object)
    call: Any = observed.call
    if isinstance(call, list):
        call = call[0]
    for name in ("table", "queue", "name"):
        found = getattr(call, name, None)
        if isinstance(found, str):
            return _clean(found)
    return ""


def _filter_of(observed: Observed) -> str:
    found: Filter | None = getattr(observed.call, "filter", None)
    return "" if found is None else _clean(to_text(found))


def _clean(text: str) -> str:
    """Return a text in one line, cut if it is long."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[:TEXT_CHARACTERS_MAX] + "..."
    return _UNSAFE.sub(" ", text)
